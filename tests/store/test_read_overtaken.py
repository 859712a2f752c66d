"""A reader whose position the log start passes is told so: it never skips records in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stratalog
from stratalog import OffsetSpec, Record, Store, Topic
from stratalog.errors import OffsetOutOfRangeError
from stratalog.fs import MemoryFileSystem
from stratalog.log.write.segment_list import SegmentList
from stratalog.testing import ManualClock
from tests.store.tiered import CONFIG, RECORDS, ROOT, TOPIC, Tiered

SEGMENT = 10
BIG = b"x" * 40_000
"""So large that a chunk holds one or a few."""


class Log:
    """Four segments of ten records, a store that writes them and one that reads them beside it."""

    def __init__(self) -> None:
        self.fs, self.clock = MemoryFileSystem(), ManualClock()
        self.store = self.opened()
        self.topic = self.store.create_topic("t", 1, {"retention.ms": -1, "file.delete.delay.ms": 0})
        for at in range(4 * SEGMENT):
            self.topic.append(b"%d:" % at + BIG, b"k")
            if at % SEGMENT == SEGMENT - 1:
                self.topic.roll()
        self.topic.flush()
        self.beside = self.opened(read_only=True)

    def opened(self, **options: Any) -> Store:
        return stratalog.open("/data", fs=self.fs, clock=self.clock, background=False, **options)

    def reader(self, how: str) -> Topic:
        return self.topic if how == "writer" else self.beside.topic("t")

    def delete(self, before: int, how: str = "delete") -> None:
        if how == "delete":
            self.topic.delete_records(0, before)
        else:
            self.store.alter_topic("t", {"retention.bytes": 1 + (4 - before // SEGMENT) * SEGMENT * len(BIG)})
            self.store.retain("t")
            assert self.topic.log_start_offset() == before
        self.store.flush()
        self.store.partitions.checkpoint()
        self.store.tick()
        self.clock.advance(5_000)


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    with made.store, made.beside:
        yield made


def drained(found: Iterator[list[int]]) -> tuple[list[int], OffsetOutOfRangeError | None]:
    """Return the offsets that a reader still delivers, and how it ends."""
    seen: list[int] = []
    try:
        for each in found:
            seen += each
    except OffsetOutOfRangeError as error:
        return seen, error
    return seen, None


@pytest.mark.parametrize("how", ["delete", "retain"])
@pytest.mark.parametrize("who", ["writer", "beside"])
@pytest.mark.parametrize("start", [0, None])
def test_a_read_that_was_overtaken_names_both_offsets(log: Log, how: str, who: str, start: int) -> None:
    reading = log.reader(who).read(0, start)
    assert next(reading).offset == 0
    log.delete(30, how)
    seen, told = drained([record.offset] for record in reading)
    assert told is not None
    assert seen == list(range(1, len(seen) + 1))
    assert (told.offset, told.first, told.end) == (len(seen) + 1, 30, 40)
    assert f"offsets {len(seen) + 1} to 29 were deleted" in str(told)
    assert [record.offset for record in log.reader(who).read(0, told.first)] == list(range(30, 40))


@pytest.mark.parametrize("who", ["writer", "beside"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("start", [0, None])
def test_a_scan_that_was_overtaken_says_so(log: Log, who: str, threads: int, start: int | None) -> None:
    scan = log.reader(who).scan([0], ["offset"], start=start, threads=threads)
    first = scan.read_next_batch()["offset"].to_pylist()
    log.delete(30)
    rest, told = drained(batch["offset"].to_pylist() for batch in scan)
    seen = first + rest
    assert seen == list(range(len(seen)))
    if told is not None:
        assert (told.offset, told.first) == (len(seen), 30)
    else:  # threads that are ahead of the caller had read everything
        assert threads > 1
        assert len(seen) == 40


@pytest.mark.parametrize("who", ["writer", "beside"])
def test_a_read_from_the_start_begins_where_the_log_begins_by_then(log: Log, who: str) -> None:
    topic = log.reader(who)
    reading, scan = topic.read(0), topic.scan([0], ["offset"])
    log.delete(20)
    assert [record.offset for record in reading] == list(range(20, 40))
    assert scan.read_all()["offset"].to_pylist() == list(range(20, 40))


@pytest.mark.parametrize("who", ["writer", "beside"])
def test_a_read_from_an_offset_that_is_deleted_before_it_begins(log: Log, who: str) -> None:
    topic = log.reader(who)
    reading, scan = topic.read(0, 5), topic.scan([0], ["offset"], start=5)
    log.delete(20)
    with pytest.raises(OffsetOutOfRangeError):
        next(reading)
    with pytest.raises(OffsetOutOfRangeError):
        scan.read_all()


def test_one_that_is_not_overtaken_goes_on(log: Log) -> None:
    reading = log.topic.read(0, 20)
    assert next(reading).offset == 20
    scan = log.topic.scan([0], ["offset"], start=20)
    log.delete(20)
    assert [record.offset for record in reading] == list(range(21, 40))
    assert scan.read_all()["offset"].to_pylist() == list(range(20, 40))


def test_a_follower_that_was_overtaken_says_so(log: Log) -> None:
    following = log.topic.read(0, 38, follow=True, timeout_s=0)
    assert [next(following).offset for _ in range(2)] == [38, 39]
    log.topic.append_many([Record(b"%d" % at) for at in range(40, 50)])
    log.topic.roll()
    log.delete(50)
    with pytest.raises(OffsetOutOfRangeError) as told:
        next(following)
    assert (told.value.offset, told.value.first) == (40, 50)


LOOKUPS: dict[str, tuple[Callable[[Topic], Any], Any]] = {
    "get": (lambda topic: topic.get(b"k").offset, 39),
    "history": (lambda topic: [record.offset for record in topic.history(b"k")], list(range(30, 40))),
    "time": (lambda topic: topic.offset_for_time(0, 0), 30),
    "largest timestamp": (lambda topic: topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP).offset, 30),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_answers_for_what_is_left(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The records are deleted when the lookup lists the segments for the n-th time."""
    look, wanted = LOOKUPS[name]
    for call in range(1, 50):
        log = Log()
        with log.store, log.beside, monkeypatch.context() as patched:
            listing = Listing(call, log.delete)
            patched.setattr(SegmentList, "all", listing)
            found = look(log.topic)
            if listing.calls < call:
                assert call > 1
                return
        if name == "history":
            assert found[-10:] == wanted
            assert found == list(range(found[0], 40))
        else:
            assert found == wanted or (name != "get" and found == 0)
    pytest.fail("it never ended")


class Listing:
    """`SegmentList.all`, which deletes records when it has listed the segments for the n-th time."""

    listed = staticmethod(SegmentList.all)

    def __init__(self, call: int, delete: Callable[[int], None]) -> None:
        self.calls = 0
        self._call = call
        self._delete = delete

    def __get__(self, segments: SegmentList, _: type) -> Callable[[], Any]:
        return lambda: self._list(segments)

    def _list(self, segments: SegmentList) -> Any:
        found = self.listed(segments)
        self.calls += 1
        if self.calls == self._call:
            self._delete(30)
        return found


def test_segments_leave_the_list_after_the_log_start_moved(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who misses a segment must find that the log begins behind it."""
    hide = SegmentList.hide
    starts = []

    def hiding(segments: SegmentList, gone: Any) -> None:
        starts.append(segments.log_start_offset)
        hide(segments, gone)

    monkeypatch.setattr(SegmentList, "hide", hiding)
    log.topic.delete_records(0, 30)
    assert starts == [30]


def test_a_reader_beside_sees_at_once_that_records_of_a_tiered_log_were_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The archive follows a deletion last: until then it lists segments before deleted local ones."""
    tiered = Tiered()
    with tiered.open():
        tiered.create()
        tiered.seal()
        tiered.leave()
        tiered.seal(2)
        with stratalog.open(
            ROOT, CONFIG, fs=tiered.fs, clock=tiered.clock, objects=tiered.cloud, read_only=True
        ) as beside:
            reader = beside.topic(TOPIC)
            reading = reader.read(0)
            assert next(reading).offset == 0
            assert reader.log_start_offset() == 0
            monkeypatch.setattr(tiered.tiering, "expire", lambda writer: writer)
            tiered.topic.delete_records(0, 2 * RECORDS + 1)
            tiered.store.tick()
            with pytest.raises(OffsetOutOfRangeError) as told:
                list(reading)
            assert told.value.first == 2 * RECORDS + 1
            assert reader.log_start_offset() == 2 * RECORDS + 1
