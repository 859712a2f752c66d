"""Retention on a real store: what goes, what never goes, and what is left on disk."""

from __future__ import annotations

import random

import pytest

import stratalog
from stratalog import SegmentState
from stratalog.errors import InvalidArgumentError, OffsetOutOfRangeError, UnknownTopicError
from stratalog.format.settings import FILE_NAME as SETTINGS
from stratalog.fs import MemoryFileSystem
from stratalog.model import Record
from stratalog.testing import Fact, read_raw
from tests.crash.driver import encode_batch
from tests.store.lifecycle_support import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    ROOT,
    Life,
    actions,
    bases,
    fill,
    of,
)

SEGMENT_FILES = {".log", ".index", ".timeindex", ".seal"}


# -- by time, bytes and count ------------------------------------------------------------------------------


def test_by_time_whole_segments_oldest_first() -> None:
    life = Life()
    topic = life.topic(retention_ms=10 * HOUR_MS, segment_ms=100 * DAY_MS)
    for _ in range(6):
        fill(topic, 1)
        life.pass_time(2 * HOUR_MS)
    topic.append(b"active")
    # Sealed 12, 10, 8, 6, 4 and 2 hours ago; exactly ten hours is not past it.
    assert actions(life.store.retain(preview=True)) == [("delete", 0)]
    assert bases(topic) == [0, 5, 10, 15, 20, 25, 30]
    report = life.store.retain()
    assert actions(report) == [("delete", 0)]
    assert report.steps[0].first_offset_lost == 0
    assert report.size_bytes == report.steps[0].size_bytes > 0
    assert bases(topic) == [5, 10, 15, 20, 25, 30]
    assert topic.log_start_offset() == 5
    with pytest.raises(OffsetOutOfRangeError):
        topic.read(0, 4)
    assert [record.offset for record in topic.read()] == list(range(5, 31))
    life.clock.advance(1)
    assert actions(life.store.retain()) == [("delete", 5)]
    life.pass_time(4 * HOUR_MS)
    assert actions(life.store.retain()) == [("delete", 10), ("delete", 15)]
    coming = [step for step in life.store.retain(preview=True).steps if not step.due]
    assert [(step.action, step.base_offset) for step in coming] == [("delete", 20)]
    assert coming[0].when_ms is not None
    life.clock.advance(coming[0].when_ms - life.clock.now_ms() - 1)
    assert actions(life.store.retain()) == []
    life.clock.advance(1)
    assert actions(life.store.retain()) == [("delete", 20)]
    life.store.close()


def test_by_bytes_as_kafka_counts() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1, segment_ms=100 * DAY_MS)
    fill(topic, 6)
    sizes = [segment.size_bytes for segment in topic.segments()]
    assert len(set(sizes[:-1])) == 1
    one = sizes[0]
    for limit, kept in (
        (7 * one, 6),
        (6 * one, 6),
        (6 * one - 1, 6),
        (5 * one, 5),
        (2 * one, 2),
        (one - 1, 1),
    ):
        life.store.alter_topic("t", {"retention.bytes": limit})
        life.store.retain()
        assert len(topic.segments()) - 1 == kept, limit
        assert topic.size_bytes() >= limit or kept == 6
    life.store.alter_topic("t", {"retention.bytes": 0})
    life.store.retain()
    assert [segment.state for segment in topic.segments()] == [SegmentState.ACTIVE]
    assert topic.log_start_offset() == topic.log_end_offset() == 30
    assert topic.append(b"goes on").offset == 30
    life.store.close()


def test_by_count_the_active_one_is_not_counted() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1, retention_segments=3)
    fill(topic, 5)
    topic.append(b"active")
    assert actions(life.store.retain()) == [("delete", 0), ("delete", 5)]
    assert bases(topic) == [10, 15, 20, 25]
    assert actions(life.store.retain()) == []
    life.store.close()


def test_together_the_strictest_decides() -> None:
    life = Life()
    topic = life.topic(retention_ms=HOUR_MS, segment_ms=100 * DAY_MS, retention_segments=4)
    fill(topic, 2)
    life.pass_time(2 * HOUR_MS)
    fill(topic, 6)
    report = life.store.retain()
    # Time takes two, the count two more.
    assert actions(report) == [("delete", 0), ("delete", 5), ("delete", 10), ("delete", 15)]
    rules = ["retention.ms", "retention.ms", "retention.segments", "retention.segments"]
    due = [step.why for step in report.steps if step.due]
    assert all(rule in why for rule, why in zip(rules, due, strict=True))
    life.store.alter_topic("t", {"retention.bytes": 0})
    assert actions(life.store.retain()) == [("delete", base) for base in (20, 25, 30, 35)]
    life.store.close()


def test_nothing_is_deleted_without_the_policy() -> None:
    life = Life()
    settings = {"retention_ms": 1, "retention_bytes": 0, "retention_segments": 1, "segment_ms": 100 * DAY_MS}
    for name, policy in (("kept", ""), ("compacted", "compact")):
        topic = life.topic(name, cleanup_policy=policy, **settings)
        for _ in range(3):
            topic.append(b"v", b"k")
            topic.roll()
        topic.append(b"v", b"k")
    life.pass_time(30 * DAY_MS, step_ms=DAY_MS)
    assert actions(life.store.retain()) == []
    assert bases(life.store.topic("kept")) == bases(life.store.topic("compacted")) == [0, 1, 2, 3]
    life.store.close()


def test_one_topic_or_all() -> None:
    life = Life()
    for name in ("a", "b"):
        fill(life.topic(name, 2, retention_segments=1), 3)
    report = life.store.retain("b")
    assert {step.topic for step in report.steps} == {"b"}
    assert {step.topic for step in life.store.retain().steps if step.due} == {"a"}
    with pytest.raises(UnknownTopicError):
        life.store.retain("c")
    life.store.close()


# -- the active segment ------------------------------------------------------------------------------------


def test_an_idle_active_segment_is_rolled_and_then_goes() -> None:
    life = Life()
    topic = life.topic(retention_ms=HOUR_MS, segment_ms=100 * DAY_MS)
    for _ in range(3):
        topic.append(b"v")
    life.pass_time(HOUR_MS)
    assert actions(life.store.retain()) == []
    life.clock.advance(1)
    assert actions(life.store.retain(preview=True)) == [("roll", 0)]
    assert actions(life.store.retain()) == [("roll", 0)]
    assert bases(topic) == [0, 3]
    assert actions(life.store.retain()) == [("delete", 0)]
    assert bases(topic) == [3]
    assert topic.log_start_offset() == 3
    # Empty now: never rolled, never deleted, however long nobody comes.
    life.pass_time(30 * DAY_MS, step_ms=DAY_MS)
    assert actions(life.store.retain()) == []
    assert topic.append(b"late").offset == 3
    life.store.close()


def test_an_append_that_comes_in_between_is_not_rolled_away() -> None:
    life = Life()
    topic = life.topic(retention_ms=HOUR_MS, segment_ms=100 * DAY_MS)
    topic.append(b"old")
    life.clock.advance(2 * HOUR_MS)
    roll = life.store.retain(preview=True).steps[0]
    topic.append(b"new")
    writer = life.store.partitions.writer("t", 0)
    assert not writer.roll_idle(roll.next_offset)
    assert actions(life.store.retain()) == []
    assert bases(topic) == [0]
    life.store.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_active_segment_never_goes(seed: int) -> None:
    rng = random.Random(seed)
    life = Life(janitor=True, config={"log.retention.check.interval.ms": 1000})
    topic = life.topic(
        retention_ms=rng.choice([1, HOUR_MS]),
        retention_bytes=0,
        retention_segments=1,
        segment_ms=DAY_MS,
        file_delete_delay_ms=0,
    )
    for _ in range(60):
        topic.append(b"x" * rng.randrange(100))
        if rng.random() < 0.3:
            topic.roll()
        active = topic.segments()[-1]
        assert active.state is SegmentState.ACTIVE
        life.pass_time(rng.choice([0, 1, MINUTE_MS, HOUR_MS, 2 * DAY_MS]), step_ms=DAY_MS)
        life.store.janitor()
        now = topic.segments()[-1]
        # The same one, or an empty one behind it because its time was up.
        assert now.base_offset in (active.base_offset, active.next_offset)
        assert topic.log_end_offset() == active.next_offset
    life.store.close()


# -- timestamps ---------------------------------------------------------------------------------------------


def test_a_record_from_the_future_does_not_hold_its_segment_for_ever() -> None:
    life = Life()
    topic = life.topic(
        retention_ms=HOUR_MS, segment_ms=100 * DAY_MS, message_timestamp_after_max_ms=2**63 - 1
    )
    topic.append(b"soon", timestamp=life.clock.now_ms() + 50 * 365 * DAY_MS)
    topic.roll()
    fill(topic, 1)
    topic.append(b"active")
    life.pass_time(HOUR_MS + 1)
    life.clock.advance(MINUTE_MS)
    report = life.store.retain()
    assert actions(report)[:2] == [("roll", 6), ("delete", 0)]
    assert "lies in the future" in of(report.steps, "delete")[0].why
    assert ("delete", 1) in actions(report)
    life.store.close()


def test_old_timestamps_go_at_once_and_the_log_append_time_counts_where_it_is_set() -> None:
    life = Life()
    long_ago = life.clock.now_ms() - 400 * DAY_MS
    old = life.topic("old", retention_ms=DAY_MS, segment_ms=1000 * DAY_MS)
    stamped = life.topic(
        "stamped", retention_ms=DAY_MS, segment_ms=1000 * DAY_MS, message_timestamp_type="LogAppendTime"
    )
    for topic in (old, stamped):
        fill(topic, 2, at=long_ago)
    assert [(step.topic, step.base_offset) for step in life.store.retain().steps if step.due] == [
        ("old", 0),
        ("old", 5),
    ]
    assert bases(stamped) == [0, 5, 10]
    life.store.close()


def test_a_segment_with_one_young_record_stays_and_holds_those_behind_it() -> None:
    life = Life()
    topic = life.topic(retention_ms=DAY_MS, segment_ms=1000 * DAY_MS)
    now = life.clock.now_ms()
    fill(topic, 1, at=now - 3 * DAY_MS)
    topic.append_many([Record(b"old", timestamp=now - 3 * DAY_MS), Record(b"young", timestamp=now)])
    topic.roll()
    fill(topic, 1, at=now - 3 * DAY_MS)
    assert actions(life.store.retain()) == [("delete", 0)]
    assert bases(topic) == [5, 7, 12]
    life.store.close()


# -- delete_records -----------------------------------------------------------------------------------------


def test_delete_records_moves_the_start_and_takes_whole_segments() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1)
    fill(topic, 3)
    topic.append(b"active")
    assert topic.delete_records(0, 7) == 7
    assert bases(topic) == [5, 10, 15]
    assert [record.offset for record in topic.read()] == list(range(7, 16))
    assert topic.delete_records(0, 3) == 7
    with pytest.raises(InvalidArgumentError):
        topic.delete_records(0, 17)
    assert topic.delete_records(0, 16) == 16
    assert bases(topic) == [15]
    assert list(topic.read()) == []
    topic = life.again().topic("t")
    assert topic.log_start_offset() == 16
    assert topic.append(b"next").offset == 16
    life.store.close()


def test_a_segment_emptied_while_active_goes_once_it_is_sealed() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1, file_delete_delay_ms=0)
    for _ in range(4):
        topic.append(b"v")
    topic.delete_records(0, 4)
    topic.roll()
    assert bases(topic) == [0, 4]
    assert life.store.lifecycle()[0].oldest_deletable == 0
    report = life.store.retain()
    assert actions(report) == [("delete", 0)]
    assert report.steps[0].first_offset_lost is None
    assert "log start offset" in report.steps[0].why
    assert bases(topic) == [4]
    life.store.tick()
    assert not [name for name in life.files() if name.startswith("0" * 20 + ".")]
    assert actions(life.store.retain()) == []
    life.store.close()


def test_retention_counts_what_delete_records_hid_as_nothing_lost() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1, retention_segments=1)
    fill(topic, 3)
    topic.delete_records(0, 7)
    step = life.store.retain().steps[0]
    assert (step.action, step.base_offset, step.first_offset_lost) == ("delete", 5, 7)
    life.store.close()


# -- files -------------------------------------------------------------------------------------------------


def test_deleted_files_wait_and_then_go() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1, retention_segments=1, file_delete_delay_ms=5 * MINUTE_MS)
    fill(topic, 3)
    held = topic.read()
    assert next(held).offset == 0
    life.store.retain()
    doomed = {kind: count for kind, count in life.kinds().items() if kind.endswith(".deleted")}
    assert {kind.removesuffix(".deleted") for kind in doomed} >= SEGMENT_FILES
    assert set(doomed.values()) <= {1, 2}
    life.pass_time(5 * MINUTE_MS - 1, step_ms=MINUTE_MS)
    assert sum(count for kind, count in life.kinds().items() if kind.endswith(".deleted")) == sum(
        doomed.values()
    )
    # The delay goes by the monotonic clock: a wall clock that is set changes nothing.
    life.clock.jump(-DAY_MS)
    life.store.tick()
    assert life.kinds()[".log.deleted"] == 2
    life.clock.jump(3 * DAY_MS)
    life.store.tick()
    assert life.kinds()[".log.deleted"] == 2
    life.clock.advance(1)
    life.store.tick()
    assert not [name for name in life.files() if name.endswith(".deleted")]
    # The reader that was in the first segment reads it to its end, and is told that the next one is gone.
    assert [next(held).offset for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(OffsetOutOfRangeError, match="offsets 5 to 9 were deleted"):
        next(held)
    life.store.close()


def test_close_and_start_sweep_what_waits() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1, retention_segments=1)
    fill(topic, 3)
    life.store.retain()
    assert life.kinds()[".log.deleted"] == 2
    assert isinstance(life.fs, MemoryFileSystem)
    killed = life.fs.survivor("kill", random.Random(1))
    after = Life(fs=killed, clock=life.clock)
    assert not [name for name in after.files() if name.endswith(".deleted")]
    assert bases(after.store.topic("t")) == [10, 15]
    after.store.close()
    life.store.close()
    assert not [name for name in life.files() if name.endswith(".deleted")]


@pytest.mark.parametrize("keyed", [False, True])
def test_a_thousand_rolls_leak_nothing(keyed: bool) -> None:
    life = Life(janitor=True, config={"log.retention.check.interval.ms": 1000})
    topic = life.topic(
        retention_ms=-1,
        retention_segments=5,
        segment_ms=1000 * DAY_MS,
        file_delete_delay_ms=2000,
        key_index_enable=keyed,
    )
    for turn in range(1000):
        topic.append(b"v", b"k")
        topic.roll()
        if turn % 10 == 0:
            life.pass_time(3000, step_ms=1000)
        if turn % 300 == 299:
            topic.append(b"left in the active one")  # so that a stop writes a snapshot inside of it
            topic = life.again().topic("t")
            topic.append(b"and more")
    life.pass_time(10_000, step_ms=1000)
    segments = topic.segments()
    assert len(segments) == 6
    kinds = life.kinds()
    wanted = {".log": 6, ".index": 5, ".timeindex": 5, ".seal": 5} | ({".keyindex": 5} if keyed else {})
    assert {kind: count for kind, count in kinds.items() if kind != ".snapshot"} == wanted
    assert kinds[".snapshot"] <= 6
    numbers = life.store.lifecycle()[0]
    assert sum(state.files for state in numbers.states.values()) == sum(kinds.values())
    assert life.store.partitions.context.deletions.waiting() == []
    assert life.store.open_files() < 20
    life.store.close()
    assert life.kinds()[".snapshot"] <= 7


def test_what_is_deleted_stays_deleted_after_a_restart() -> None:
    life = Life()
    topic = life.topic(retention_ms=-1, retention_segments=2)
    fill(topic, 6)
    life.store.retain()
    topic = life.again().topic("t")
    assert bases(topic) == [20, 25, 30]
    assert topic.log_start_offset() == 20
    assert [record.offset for record in topic.read()] == list(range(20, 30))
    assert life.fs is not None
    assert [batch.header.base_offset for batch in read_raw(life.fs, f"{ROOT}/t-0", "t", 0)] == list(
        range(20, 30)
    )
    life.store.close()


def test_producers_survive_the_deletion_of_their_records() -> None:
    """A retry of a producer whose batch lies in the kept part is recognised after a restart too."""

    life = Life()
    topic = life.topic(retention_ms=-1, retention_segments=1)
    for sequence in range(6):
        batch = encode_batch([Fact(b"v", b"k", life.clock.now_ms())], 7, sequence)
        topic.append_batches(0, batch)
        topic.roll()
    life.store.retain()
    assert isinstance(life.fs, MemoryFileSystem)
    after = Life(fs=life.fs.survivor("drop", random.Random(2)), clock=life.clock)
    again = after.store.topic("t").append_batches(0, batch)
    assert again.duplicate
    assert (
        after.store.topic("t")
        .append_batches(0, encode_batch([Fact(b"v", b"k", life.clock.now_ms())], 7, 6))
        .base_offset
        == 6
    )
    after.store.close()


# -- others ------------------------------------------------------------------------------------------------


def test_a_foreign_topic_keeps_its_data() -> None:
    life = Life()
    fill(life.topic(retention_ms=1, segment_ms=1000 * DAY_MS), 3)
    life.store.close()
    assert life.fs is not None
    life.fs.remove(f"{ROOT}/{SETTINGS}")
    store = life.open()
    life.pass_time(30 * DAY_MS, step_ms=DAY_MS)
    assert actions(store.retain()) == []
    assert actions(store.retain("t")) == []
    assert bases(store.topic("t")) == [0, 5, 10, 15]
    store.alter_topic("t", {"retention.ms": str(DAY_MS), "cleanup.policy": "delete"})
    assert len(actions(store.retain())) == 3
    store.close()


def test_a_read_only_store_says_so() -> None:
    life = Life()
    life.topic()
    life.store.close()
    reader = stratalog.open(ROOT, fs=life.fs, clock=life.clock, read_only=True)
    with pytest.raises(stratalog.errors.ReadOnlyError):
        reader.retain()
    with pytest.raises(stratalog.errors.ReadOnlyError):
        reader.janitor()
    assert reader.janitor(preview=True).steps == ()
    reader.close()
