"""Grouping, the estimate of duplicates, new segments that would outgrow their index, pacing."""

from __future__ import annotations

import random
import time

import pytest

from stratalog.format.batch.filter import Filtered, filter_batches
from stratalog.log.clean import CleanReport, DuplicateEstimates, RewriteTarget
from stratalog.log.clean.rewriting import Pace, StopCleaningError, rewrite
from stratalog.log.clean.rules import group_segments
from stratalog.log.read.chunks import Chunk, read_chunks
from stratalog.log.segment.segment import Segment, Start
from tests.log.cleaner.support import Log, compacted
from tests.log.cleaner.test_cleaner_quarantine import flip


def sealed(log: Log, sizes: list[tuple[int, int]]) -> list[Segment]:
    """Segments that are only names and sizes."""
    location = log.writer.location._replace(directory="/nowhere")
    return [Segment(location, base, size=size) for base, size in sizes]


def bases(groups: list[list[Segment]]) -> list[list[int]]:
    return [[segment.base_offset for segment in group] for group in groups]


def test_groups_fit_into_a_segment() -> None:
    log = Log()
    segments = sealed(log, [(0, 400), (10, 400), (20, 300), (30, 1200), (40, 0), (50, 1)])
    groups = group_segments(segments, compacted(segment_bytes=1000), 60)
    assert bases(groups) == [[0, 10], [20], [30], [40, 50]]
    apart = group_segments(segments, compacted(segment_bytes=10_000), 60, apart=[segments[2]])
    assert bases(apart) == [[0, 10], [30, 40, 50]]
    assert group_segments([], compacted(), 60) == []


def test_groups_fit_into_an_index() -> None:
    log = Log()
    segments = sealed(log, [(0, 10), (10, 10), (20, 10)])
    log.fs.make_dir("/nowhere")
    for segment in segments:
        log.fs.write_file(segment.path("index"), bytes(48), sync=False)
        log.fs.write_file(segment.path("timeindex"), bytes(48), sync=False)
    assert bases(group_segments(segments, compacted(segment_index_bytes=100), 30)) == [[0, 10], [20]]


def test_groups_fit_into_31_bits_of_offsets() -> None:
    log = Log()
    far = 2**31
    segments = sealed(log, [(0, 10), (far - 1, 10), (far, 0), (far + 1, 10)])
    assert bases(group_segments(segments, compacted(), far + 2)) == [[0, far - 1, far], [far + 1]]
    assert bases(group_segments(segments[:2], compacted(), far)) == [[0, far - 1]]
    assert bases(group_segments(segments[:2], compacted(), far + 1)) == [[0], [far - 1]]


def test_a_new_segment_that_would_outgrow_its_index_is_two() -> None:
    log = Log(compacted(segment_bytes=1 << 16))
    for n in range(3):
        log.puts((b"%d-%d" % (n, at), b"v" * 20) for at in range(30))
        log.roll()
    group = log.writer.segments()[:-1]
    sizes = [segment.size for segment in group]
    target = RewriteTarget(log.writer.location, log.config, max_bytes=sum(sizes[:2]))

    def keep(segment: Segment, chunk: Chunk) -> Filtered:
        return filter_batches(chunk.data, chunk.scan)

    made = rewrite(group, target, keep, aborted=[], pace=Pace(), cleaned=True)
    assert [(each.base_offset, each.next_offset, each.size) for each in made.segments] == [
        (0, 60, sum(sizes[:2])),
        (60, 90, sizes[2]),
    ]
    for each in made.segments:
        assert each.seal is not None
        assert each.seal.size_bytes == each.size
        assert each.suffix == ".cleaned"
    assert (made.records_in, made.records_out) == (90, 90)


# -- estimates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("records", "keys"), [(2000, 50), (20_000, 15_000), (20_000, 1_000)])
def test_duplicates_are_estimated(records: int, keys: int) -> None:
    rng = random.Random(records + keys)
    log = Log(compacted(segment_bytes=200_000))
    chosen = [rng.randrange(keys) for _ in range(records)]
    for start in range(0, records, 500):
        log.put(*((b"%d" % key, b"v") for key in chosen[start : start + 500]))
    log.roll()
    true = 1 - len(set(chosen)) / records
    found = DuplicateEstimates().ratio(log.writer, log.cleanable())
    assert found is not None
    assert abs(found - true) < 0.05


def test_estimates_are_made_once_for_each_segment() -> None:
    log = Log()
    log.puts([(b"a", b"1"), (b"a", b"2"), (b"b", b"1")])
    log.roll()
    estimates = DuplicateEstimates()
    assert estimates.ratio(log.writer, log.cleanable()) == pytest.approx(1 / 3)
    flip(log, 0)
    assert estimates.ratio(log.writer, log.cleanable()) == pytest.approx(1 / 3), "it was not read again"
    flip(log, 0)
    log.puts([(b"c", b"1"), (b"d", b"1"), (b"e", b"1")])
    log.roll()
    assert estimates.ratio(log.writer, log.cleanable()) == pytest.approx(1 / 6)
    log.clean()
    assert estimates.ratio(log.writer, log.cleanable()) == 0


def test_nothing_to_estimate() -> None:
    log = Log()
    assert DuplicateEstimates().ratio(log.writer, log.cleanable()) is None


# -- pace ------------------------------------------------------------------------------------------------


def test_a_pace_waits_for_its_bytes() -> None:
    pace = Pace(1_000_000)
    pace.read(50_000)
    pace.wrote(50_000)
    assert 0.1 <= pace.seconds < 2
    assert pace.bytes_read == 50_000
    free = Pace(1.7976931348623157e308)
    free.read(10**12)
    assert free.seconds < 1


def test_a_pace_stops_while_it_waits() -> None:
    began = time.monotonic()
    pace = Pace(1.0, stop=lambda: time.monotonic() - began > 0.15)
    with pytest.raises(StopCleaningError):
        pace.read(1_000_000)
    assert time.monotonic() - began < 5


def test_reports_survive_json() -> None:
    log = Log()
    log.puts([(b"a", b"1"), (b"a", b"2")])
    log.roll()
    log.puts([(b"a", b"3")])
    log.roll()
    flip(log, 0)
    report = log.clean()
    assert report.quarantined
    assert CleanReport.from_json(report.to_json()) == report


def test_chunks_in_buffers_that_take_turns_stay_for_one_more() -> None:
    """What is in use while the next one is read keeps its bytes, also when a batch needs a larger buffer."""
    log = Log(compacted(segment_bytes=64 << 20, max_message_bytes=8 << 20))
    for number in range(40):
        size = 3 << 20 if number % 13 == 5 else 200 << 10
        log.puts([(b"%d" % number, bytes([number]) * size)])
    log.roll()
    (segment, *_) = log.writer.segments()
    whole = log.fs.read_file(segment.path())
    turns = [bytearray(), bytearray()]
    before: Chunk | None = None
    read = 0
    for chunk in read_chunks(segment, Start(0, None), first_size=1 << 20, turns=turns):
        for each in (before, chunk):
            if each is not None:
                end = each.scan.end
                assert memoryview(each.data)[:end] == whole[each.position : each.position + end]
        before, read = chunk, read + chunk.scan.end
    assert read == len(whole) == segment.size
