"""Compaction of one partition: what stays, what goes, and that the log stays whole around it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.kernel import KeyMap
from stratalog.log import names
from stratalog.log.check.verify import verify_partition
from stratalog.log.clean import compact
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.read.list_offsets import offset_for_time
from stratalog.log.read.lookup import history_backwards
from stratalog.log.read.reader import read_records
from stratalog.model import SegmentState
from tests.log.cleaner.support import MEMORY_BYTES, Log, Seen, compacted, latest

DAY_MS = 86_400_000


def fill(log: Log, count: int, keys: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    while count > 0:
        size = min(count, rng.randint(1, 8))
        log.put(
            *(
                (b"key-%d" % rng.randrange(keys), None if rng.random() < 0.1 else rng.randbytes(20))
                for _ in range(size)
            )
        )
        count -= size


def check_whole(log: Log) -> None:
    """Every door shows what the bytes say, before and after the log is opened again."""
    for _ in range(2):
        raw = [record for batch in log.raw() for record in batch.records]
        assert list(read_records(log.writer, 0)) == raw
        follower = PartitionFollower(log.writer.location)
        assert list(read_records(follower, 0)) == raw
        for record in raw[:: max(1, len(raw) // 10)]:
            assert next(iter(read_records(log.writer, record.offset))) == record
            moment = record.timestamp or 0
            first = next(each.offset for each in raw if (each.timestamp or 0) >= moment)
            found = offset_for_time(log.writer, moment)
            assert found is not None
            assert found.offset == first
            if record.key is not None:
                newest = [each for each in raw if each.key == record.key][-1]
                assert next(history_backwards(log.writer, record.key)) == newest
        assert not log.files(names.CLEANED) + log.files(names.SWAP)
        log.reopen()
    log.writer.close()
    assert not verify_partition(follower).damages
    log.open()


def test_keeps_the_latest_of_each_key() -> None:
    log = Log()
    fill(log, 600, 30)
    log.roll()
    log.put((b"key-1", b"in the active segment"))
    before, end, active = log.records(), log.writer.next_offset, log.bases()[-1]
    segments = len(log.bases())
    report = log.clean()
    assert log.records() == latest(before, active)
    assert log.writer.next_offset == end
    assert log.saved == [active] == [report.next_dirty_offset]
    assert (report.records_before, report.records_after) == (600, len(log.records()) - 1)
    assert (report.segments_before, report.segments_after) == (segments - 1, len(log.bases()) - 1)
    assert report.bytes_before > report.bytes_after == sum(each.size for each in log.writer.segments()[:-1])
    states = [each.state for each in log.writer.segment_infos()]
    assert set(states[:-1]) == {SegmentState.COMPACTED}
    check_whole(log)


def test_small_survivors_become_full_segments() -> None:
    log = Log(compacted(segment_bytes=2000))
    for n in range(8):
        fill(log, 80, 10, seed=n)
        log.roll()
    log.clean()
    log.put((b"key-1", b"x"))
    log.roll()
    log.clean()
    assert log.bases() == [0, log.writer.next_offset]
    check_whole(log)


def test_a_second_round_over_the_first() -> None:
    log = Log()
    fill(log, 300, 25, seed=1)
    log.roll()
    log.clean()
    fill(log, 200, 40, seed=2)
    log.roll()
    before = log.records()
    report = log.clean()
    assert log.records() == latest(before, log.writer.next_offset)
    assert report.records_before == len(before)
    assert log.saved[-1] == log.writer.next_offset
    check_whole(log)


def test_more_keys_than_memory_means_more_passes() -> None:
    few, many = Log(), Log()
    for log in (few, many):
        fill(log, 900, 300)
        log.roll()
    few.clean()
    report = many.clean(memory_bytes=2048)
    assert report.passes > 3
    assert many.records() == few.records()
    assert [few.saved[-1], *sorted(many.saved)] == [many.saved[-1], *many.saved]
    assert (report.records_before, report.records_after) == (900, len(many.records()))
    check_whole(many)


def test_a_stopped_pass_ends_inside_a_segment_and_the_next_round_goes_on() -> None:
    log = Log(compacted(segment_bytes=1 << 20))
    fill(log, 500, 400)
    log.roll()
    before = log.records()
    report = log.clean(memory_bytes=2048, stop=lambda: len(log.saved) > 0)
    assert report.stopped is not None
    middle = log.saved[-1]
    assert 0 < middle < log.writer.next_offset
    assert log.bases() == [0, log.writer.next_offset]
    assert log.records() == latest(before, middle)
    log.clean(memory_bytes=2048)
    assert log.records() == latest(before, log.writer.next_offset)
    check_whole(log)


def test_the_map_stays_within_the_memory_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Spy(KeyMap):
        def __init__(self, memory_bytes: int, base_offset: int) -> None:
            asked.append(memory_bytes)
            super().__init__(memory_bytes, base_offset)

    monkeypatch.setattr(compact, "KeyMap", Spy)
    log = Log()
    fill(log, 400, 400)
    log.roll()
    log.clean(memory_bytes=4096)
    assert asked == [3072]
    log.clean(0, memory_bytes=1 << 30)
    assert asked[1] <= KeyMap.memory_for(400) + 64, "a small log needs no large map"


def test_next_to_no_memory_is_slow_and_right() -> None:
    log = Log()
    fill(log, 60, 20)
    log.roll()
    before = log.records()
    report = log.clean(memory_bytes=0)
    assert report.passes > 10
    assert log.records() == latest(before, log.writer.next_offset)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(codec: str) -> None:
    log = Log(compacted(compression_type=codec, key_index_enable=True, segment_bytes=3000))
    fill(log, 400, 20)
    log.roll()
    before = log.records()
    log.clean()
    assert log.records() == latest(before, log.writer.next_offset)
    codecs = {batch.header.codec for batch in log.raw() if batch.header.count}
    assert len(codecs) == 1
    assert (codecs == {0}) == (codec == "uncompressed")
    assert log.files(".keyindex")
    check_whole(log)


# -- tombstones ------------------------------------------------------------------------------------------


def test_a_tombstone_stays_until_its_delete_horizon() -> None:
    log = Log(compacted(delete_retention_ms=DAY_MS))
    log.puts([(b"a", b"1"), (b"b", b"1"), (b"a", None)])
    log.roll()
    log.clean()
    assert log.records() == [Seen(1, b"b", b"1"), Seen(2, b"a", None)]
    [horizon] = [batch.header.base_timestamp for batch in log.raw() if batch.header.has_delete_horizon]
    assert horizon == log.clock.now_ms() + DAY_MS
    log.clock.advance(DAY_MS - 1)
    log.put((b"c", b"1"))
    log.roll()
    log.clean()
    assert [record.offset for record in log.records()] == [1, 2, 3]
    assert horizon in {batch.header.base_timestamp for batch in log.raw()}
    log.clock.advance(1)
    report = log.clean()
    assert [record.offset for record in log.records()] == [1, 3], "with nothing dirty, too"
    assert report.tombstones_dropped == 1
    check_whole(log)


def test_a_tombstone_stays_while_the_archive_may_hold_its_key() -> None:
    log = Log(compacted(delete_retention_ms=10))
    log.puts([(b"a", None), (b"b", None), (b"c", b"1")])
    log.roll()
    log.clean()
    log.clock.advance(10)
    asked: list[bytes] = []

    def may_be_below(keys: list[bytes]) -> set[bytes]:
        asked.extend(keys)
        return {b"a"} & set(keys)

    log.clean(may_be_below=may_be_below)
    assert log.records() == [Seen(0, b"a", None), Seen(2, b"c", b"1")]
    assert set(asked) == {b"a", b"b"}
    log.clean()
    assert log.records() == [Seen(2, b"c", b"1")]


def test_records_without_a_key_go() -> None:
    log = Log(compacted(cleanup_policy=frozenset({"delete"})))
    log.puts([(None, b"1"), (b"a", b"1"), (None, b"2")])
    log.roll()
    log.writer.apply_config(compacted())
    log.put((b"b", b"1"))
    log.roll()
    log.clean()
    assert [record.offset for record in log.records()] == [1, 3]


def test_the_last_batch_of_the_round_stays_empty_if_need_be() -> None:
    log = Log(compacted(delete_retention_ms=0))
    log.puts([(b"a", b"1"), (b"b", b"2"), (b"b", None)])
    log.roll()
    log.clean()
    log.clock.advance(1)
    log.clean()
    assert log.records() == [Seen(0, b"a", b"1")]
    assert [(batch.header.base_offset, batch.header.count) for batch in log.raw()] == [(0, 1), (2, 0)]
    check_whole(log)


def test_everything_may_go_and_the_log_still_begins_where_it_did() -> None:
    log = Log(compacted(delete_retention_ms=0, segment_bytes=300))
    log.puts((b"a", b"x" * 50) for _ in range(8))
    log.put((b"a", None))
    log.roll()
    log.put((b"b", b"1"))
    log.roll()
    log.clean()
    log.clock.advance(1)
    log.clean()
    assert log.records() == [Seen(9, b"b", b"1")]
    assert log.writer.log_start_offset == 0
    log.reopen()
    assert log.writer.log_start_offset == 0
    check_whole(log)


# -- the rest of the log ---------------------------------------------------------------------------------


def test_files_stay_as_old_as_they_were() -> None:
    log = Log(compacted(segment_bytes=1 << 16))
    fill(log, 100, 5)
    log.roll()
    log.clock.advance(1000)
    fill(log, 100, 5)
    log.roll()
    newest = max(log.fs.stat(each.path()).mtime_ns for each in log.writer.segments()[:-1])
    log.clock.advance(DAY_MS)
    log.clean()
    [segment] = log.writer.segments()[:-1]
    assert log.fs.stat(segment.path()).mtime_ns == newest


def test_what_is_clean_is_only_read() -> None:
    log = Log()
    fill(log, 300, 200)
    log.roll()
    log.clean()
    log.clean()  # merges what the first round made small
    calls = log.fs.calls  # type: ignore[attr-defined]
    known = len(calls)
    report = log.clean()
    assert report.groups == 0
    assert report.bytes_before == report.bytes_after
    assert not [call for call in calls[known:] if names.CLEANED in call]
    assert report.records_before == report.records_after == len(log.records())


def test_stops_between_two_groups_and_says_how_far_it_is() -> None:
    log = Log(compacted(segment_bytes=1000))
    fill(log, 300, 10)
    log.roll()
    before = log.records()
    seen: list[tuple[int, int]] = []
    report = log.clean(
        progress=lambda done, total: seen.append((done, total)), stop=lambda: bool(log.files(names.DELETED))
    )
    assert report.stopped is not None
    assert log.saved == []
    assert 0 < len(latest(before, log.writer.next_offset)) < len(log.records()) < len(before)
    assert all(0 <= done <= total for done, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert not log.files(names.CLEANED)
    log.clean()
    assert log.records() == latest(before, log.writer.next_offset)
    check_whole(log)


def test_is_throttled() -> None:
    log = Log()
    fill(log, 200, 10)
    log.roll()
    size = sum(each.size for each in log.writer.segments())
    report = log.clean(io_bytes_per_s=size * 10)
    assert report.seconds >= 0.2, "every byte is read twice"


def test_segments_that_retention_takes_meanwhile() -> None:
    log = Log(compacted(segment_bytes=1000))
    fill(log, 300, 10)
    log.roll()
    before = log.records()
    third = log.bases()[3]

    def progress(done: int, total: int) -> None:
        if done == total and log.writer.log_start_offset == 0:
            gone = log.writer.advance_log_start(third)
            log.context.deletions.add(log.context, log.directory, gone, 0)
            log.context.deletions.run(log.context, everything=True)

    first = log.clean(progress=progress)
    assert first.stopped is not None or log.saved
    log.clean(0)
    kept = [each for each in latest(before, log.writer.next_offset) if each.offset >= third]
    assert log.records() == kept
    assert not log.files(names.CLEANED)


def test_appends_go_on_meanwhile() -> None:
    log = Log(compacted(segment_bytes=1000))
    fill(log, 300, 10)
    log.roll()
    before, end = log.records(), log.writer.next_offset
    more: list[Seen] = []

    def progress(done: int, total: int) -> None:
        offset = log.put((b"key-1", b"%d of %d" % (done, total)))
        more.append(Seen(offset, b"key-1", b"%d of %d" % (done, total)))

    log.clean(progress=progress)
    assert log.saved == [end]
    assert log.records() == latest(before, end) + more
    check_whole(log)


@settings(max_examples=40)
@given(data=st.data())
def test_any_log_any_rounds(data: st.DataObject) -> None:
    """Random batches, rolls and rounds with random memory: at each moment the definition holds."""
    log = Log(compacted(segment_bytes=700, delete_retention_ms=DAY_MS))
    keys = st.integers(0, 9).map(lambda n: b"k%d" % n)
    value = st.one_of(st.none(), st.binary(max_size=30))
    batch = st.lists(st.tuples(keys, value), min_size=1, max_size=6)
    everything: list[Seen] = []
    for _ in range(data.draw(st.integers(1, 3))):
        for pairs in data.draw(st.lists(batch, max_size=15)):
            first = log.put(*pairs)
            everything += [Seen(first + at, *pair) for at, pair in enumerate(pairs)]
        if data.draw(st.booleans()):
            log.roll()
        log.clean(memory_bytes=data.draw(st.sampled_from([400, 1000, MEMORY_BYTES])))
        end = log.bases()[-1]
        if log.saved and log.saved[-1] == end:
            assert log.records() == latest(everything, end)
    check_whole(log)
