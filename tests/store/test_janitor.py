"""The janitor of an open store: its rounds, with and without its thread, and the numbers that show a leak."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog import errors
from stratalog.log.names import parse_file
from stratalog.model import SegmentState
from tests.store.lifecycle_support import (
    COMPACT,
    DAY_MS,
    HOUR_MS,
    Life,
    bases,
    eventually,
    fill,
    fill_keys,
)

# -- with its thread ---------------------------------------------------------------------------------------


def test_the_janitor_of_an_open_store(tmp_path: Path) -> None:
    config = {"log.retention.check.interval.ms": 50, "log.cleaner.backoff.ms": 50}
    settings = {"file.delete.delay.ms": 50, "flush.ms": 100}
    with stratalog.open(tmp_path / "log", config, janitor=True) as store:
        queue = store.create_topic("queue", config={"retention.segments": 2, **settings})
        table = store.create_topic(
            "table",
            config={key.replace("_", "."): value for key, value in COMPACT.items()} | settings,
        )
        fill(queue, 6)
        fill_keys(table, 4)
        eventually(lambda: len(queue.segments()) == 3)
        eventually(lambda: table.segments()[0].state is SegmentState.COMPACTED)
        assert {record.key for record in table.read()} == {b"k0", b"k1", b"k2"}
        assert table.log_end_offset() == 80

        def settled() -> bool:
            names = [path.name for path in (tmp_path / "log").rglob("*")]
            return not any(name.endswith((".deleted", ".cleaned", ".swap")) for name in names)

        eventually(settled)
        queue.append(b"still alive")
        assert {(each.topic, each.oldest_deletable) for each in store.lifecycle()} == {
            ("queue", None),
            ("table", None),
        }
    with stratalog.open(tmp_path / "log") as store:
        assert stratalog.verify(store).ok
        assert bases(store.topic("queue")) == [20, 25, 30]


def test_without_a_janitor_nothing_happens_by_itself() -> None:
    life = Life(janitor=False)
    fill(life.topic(retention_ms=1, retention_segments=1), 4)
    life.pass_time(30 * DAY_MS, step_ms=DAY_MS)
    assert bases(life.store.topic("t"))[0] == 0
    life.store.close()


def test_rounds_go_by_the_monotonic_clock() -> None:
    life = Life(janitor=True, config={"log.retention.check.interval.ms": HOUR_MS})
    topic = life.topic(retention_ms=-1, retention_segments=1)
    life.store.tick()
    fill(topic, 3)
    life.clock.jump(10 * HOUR_MS)
    life.store.tick()
    assert len(topic.segments()) == 4
    life.clock.jump(-10 * HOUR_MS)
    life.pass_time(HOUR_MS)
    assert len(topic.segments()) == 2
    life.store.close()


# -- numbers -----------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_a_listing() -> None:
    life = Life()
    topic = life.topic(retention_ms=HOUR_MS, segment_ms=100 * DAY_MS, file_delete_delay_ms=DAY_MS)
    table = life.topic("table", 2, **COMPACT)
    fill(topic, 4)
    topic.append(b"active")
    fill_keys(table, 3)
    life.clock.advance(3 * HOUR_MS)
    numbers = {(each.topic, each.partition): each for each in life.store.lifecycle()}
    assert set(numbers) == {("t", 0), ("table", 0), ("table", 1)}
    mine = numbers["t", 0]
    assert (mine.oldest_deletable, mine.overdue_ms) == (0, 2 * HOUR_MS)
    check_numbers(life, topic)
    check_numbers(life, table)
    life.store.retain()
    life.store.compact(force=True)
    states = check_numbers(life, topic)
    assert states == {"active": 1, "sealed": 1, "deleted": 4}
    assert check_numbers(life, table) == {"active": 1, "compacted": 1, "deleted": 3}
    assert {each.oldest_deletable for each in life.store.lifecycle()} == {20, None}  # sealed, so next
    life.pass_time(2 * DAY_MS, step_ms=DAY_MS)
    assert "deleted" not in check_numbers(life, topic)
    assert check_numbers(life, table) == {"active": 1, "compacted": 1}
    life.store.close()


def check_numbers(life: Life, topic: stratalog.Topic) -> dict[str, int]:
    numbers = next(n for n in life.store.lifecycle() if (n.topic, n.partition) == (topic.name, 0))
    assert life.fs is not None
    files = [(name, parse_file(name)) for name in life.files(topic.name)]
    sizes = {name: life.fs.stat(f"{life.root}/{topic.name}-0/{name}").size for name, _ in files}
    assert sum(state.files for state in numbers.states.values()) == sum(
        parsed is not None for _, parsed in files
    )
    doomed = numbers.states.get("deleted")
    assert (doomed.size_bytes if doomed else 0) == sum(
        size for name, size in sizes.items() if name.endswith(".deleted")
    )
    alive = [state for name, state in numbers.states.items() if name != "deleted"]
    assert sum(state.size_bytes for state in alive) == sum(
        size for name, size in sizes.items() if name.endswith(".log")
    )
    again = type(numbers).from_json(numbers.to_json())
    assert again == numbers
    return {name: state.segments for name, state in numbers.states.items()}


def test_a_round_skips_a_partition_that_failed_and_says_so() -> None:
    life = Life()
    for name in ("a", "b"):
        fill(life.topic(name, retention_segments=1), 3)
    writer = life.store.partitions.writer("a", 0)
    writer.take_offline(errors.StorageError("the disk said no"))
    report = life.store.retain()
    assert {step.topic for step in report.steps} == {"b"}
    assert any("a-0" in note and "the disk said no" in note for note in report.notes)
    assert {each.topic for each in life.store.lifecycle()} == {"a", "b"}


def test_a_partition_that_is_not_there() -> None:
    life = Life()
    life.topic(**COMPACT)
    with pytest.raises(errors.UnknownPartitionError):
        life.store.compact("t", 3)
    assert not any(step.due for step in life.store.compact("t", 0).steps)
    life.store.close()
