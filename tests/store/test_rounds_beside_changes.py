"""A round of upkeep beside a move, a deletion of records and a topic that is deleted and made anew."""

from __future__ import annotations

from typing import Any, cast

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.archive.objects import DirectoryObjects
from stratalog.errors import UnknownTopicError
from stratalog.fs import FileSystem, MemoryFileSystem
from stratalog.store.lifecycle.reports import LifecycleReport
from stratalog.testing.clock import ManualClock
from tests.store.pausing import PausingFileSystem, Running

OLD, NEW = "/one", "/two"


def opened(fs: PausingFileSystem) -> Store:
    return stratalog.open(
        [OLD, NEW],
        {"log.cleaner.threads": 1, "log.archive.threads": 1},
        fs=cast(FileSystem, fs),
        clock=ManualClock(),
        background=False,
        objects=DirectoryObjects(cast(FileSystem, fs), "/cloud"),
    )


def filled(store: Store, config: dict[str, object]) -> dict[int, str]:
    """Two partitions of three segments each; return where they are."""
    topic = store.create_topic("t", 2, config)
    for partition in range(2):
        for _ in range(3):
            topic.append_many([Record(b"v", b"k") for _ in range(5)], partition=partition, sync=True)
            topic.roll(partition)
    return {each: OLD if each in held(store, OLD) else NEW for each in range(2)}


def held(store: Store, path: str) -> list[int]:
    fs: Any = store.partitions.context.fs
    return [int(name[-1]) for name in fs.list_dir(path) if name in ("t-0", "t-1")]


def moved_during(store: Store, fs: PausingFileSystem, pause: tuple[str, str], round_: Any) -> LifecycleReport:
    """Run a round, hold it up in partition 0 and move partition 1 meanwhile."""
    (here,) = (path for path in (OLD, NEW) if 1 in held(store, path))
    with fs.pause_at(*pause) as paused:
        running = Running(round_)
        paused.wait_until_reached()
        store.move_partition("t", 1, NEW if here == OLD else OLD)
    report: LifecycleReport = running.result()
    return report


def test_compaction_leaves_a_partition_alone_that_was_moved_since_it_was_planned() -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        where = filled(store, {"cleanup.policy": "compact", "cleaner.min.segment.age.ms": 0})
        report = moved_during(
            store, fs, ("open", f"{where[0]}/t-0/*.cleaned"), lambda: store.compact("t", force=True)
        )
        assert [each["partition"] for each in report.compactions] == [0]
        assert [note for note in report.notes if "failed" in note] == []
        again = store.compact("t", 1, force=True)
        assert [each["partition"] for each in again.compactions] == [1]
        assert [record.offset for record in store.topic("t").read(1)] == [14]


def test_archiving_goes_on_when_a_segment_is_deleted_while_it_is_copied() -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        where = filled(store, {"remote.storage.enable": True})
        with fs.pause_at("open", f"{where[0]}/t-0/{5:020}.log") as paused:
            running = Running(store.archive, "t")
            paused.wait_until_reached()
            deleting = Running(store.topic("t").delete_records, 0, 10)
            deleting.ends_or_blocks()
        assert [note for note in running.result().notes if "not finished" in note] == []
        assert deleting.result() == 10
        store.archive("t")
        assert [each.base_offset for each in store.topic("t").segments(0)] == [10, 15]
        assert [record.offset for record in store.topic("t").read(0, 10)] == list(range(10, 15))


def test_deletion_planned_for_a_topic_does_not_reach_the_next_one_of_its_name() -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        filled(store, {})
        planned = store.partitions.writer("t", 0)
        store.delete_topic("t")
        filled(store, {})
        with pytest.raises(UnknownTopicError, match="was deleted"):
            store.partitions.delete_records_of(planned, 5)
        assert store.topic("t").log_start_offset(0) == 0


@pytest.mark.parametrize("work", ["retain", "compact", "archive", "janitor"])
def test_a_partition_that_is_being_moved_is_left_for_the_next_round(work: str) -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        where = filled(store, {"cleanup.policy": "compact", "cleaner.min.segment.age.ms": 0})
        with fs.pause_at("sync_dir", "/*/t-0*-future") as paused:
            moving = Running(store.move_partition, "t", 0, NEW if where[0] == OLD else OLD)
            paused.wait_until_reached()
            report = getattr(store, work)("t")
        moving.result()
        assert [note for note in report.notes if "running on it" not in note] == []
