"""The checkpoint files of a log directory: one owner each, so that no writer of them undoes another."""

from __future__ import annotations

import errno
import random
from typing import Any, cast

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.errors import DiskFullError, LogDirOfflineError, ReadOnlyError
from stratalog.fs import FailingFileSystem, Fault, FileSystem, MemoryFileSystem, SurvivorMode
from stratalog.store.copies import export_topic, import_topic
from stratalog.testing.clock import ManualClock
from tests.store.pausing import PausingFileSystem, Running

CHECKPOINTS = [
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
]
CHECKPOINT_MS = 60_000


def opened(fs: Any, clock: ManualClock | None = None, paths: tuple[str, ...] = ("/data",)) -> Store:
    return stratalog.open(
        list(paths), fs=cast(FileSystem, fs), clock=clock or ManualClock(), background=False
    )


def filled(store: Store, name: str = "t", count: int = 10) -> stratalog.Topic:
    topic = store.create_topic(name, 1)
    topic.append_many([Record(b"%d" % i) for i in range(count)], sync=True)
    return topic


def values(store: Store, name: str = "t") -> list[bytes | None]:
    return [record.value for record in store.topic(name).read()]


def writing_of(checkpoint: str, store: Store, clock: ManualClock) -> Running:
    """Have a checkpoint file written: all of them by time, the log starts by another topic's deletion too."""
    if checkpoint == "log-start-offset-checkpoint":
        return Running(filled(store, "other").delete_records, 0, 3)
    clock.advance(CHECKPOINT_MS)
    return Running(store.tick)


@pytest.mark.parametrize("mode", ["kill", "drop"])
@pytest.mark.parametrize("paused_at", CHECKPOINTS)
def test_deleted_records_stay_deleted_beside_a_checkpoint(paused_at: str, mode: SurvivorMode) -> None:
    disk, clock = MemoryFileSystem(), ManualClock()
    fs = PausingFileSystem(disk)
    store = opened(fs, clock)
    topic = filled(store)
    with fs.pause_at("rename", f"*/{paused_at}") as pause:
        writing = writing_of(paused_at, store, clock)
        pause.wait_until_reached()
        deleting = Running(topic.delete_records, 0, 7)
        deleting.ends_or_blocks()
    writing.result()
    assert deleting.result() == 7
    with opened(disk.survivor(mode, random.Random(1))) as after:
        assert after.topic("t").log_start_offset() == 7
        assert values(after) == [b"7", b"8", b"9"]


@pytest.mark.parametrize("mode", ["kill", "drop"])
@pytest.mark.parametrize("paused_at", CHECKPOINTS)
def test_a_topic_created_anew_owes_nothing_to_its_predecessor(paused_at: str, mode: SurvivorMode) -> None:
    disk, clock = MemoryFileSystem(), ManualClock()
    fs = PausingFileSystem(disk)
    store = opened(fs, clock)
    filled(store).delete_records(0, 7)

    def delete_and_create() -> None:
        store.delete_topic("t")
        filled(store, count=5)

    with fs.pause_at("rename", f"*/{paused_at}") as pause:
        writing = writing_of(paused_at, store, clock)
        pause.wait_until_reached()
        renewing = Running(delete_and_create)
        renewing.ends_or_blocks()
    writing.result()
    renewing.result()
    with opened(disk.survivor(mode, random.Random(1))) as after:
        assert values(after) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_moved_partition_takes_its_log_start_with_it() -> None:
    disk = MemoryFileSystem()
    fs = PausingFileSystem(disk)
    store = opened(fs, paths=("/one", "/two"))
    filled(store).delete_records(0, 7)
    with fs.pause_at("remove_tree", "/one/*") as pause:
        moving = Running(store.move_partition, "t", 0, "/two")
        pause.wait_until_reached()  # the partition is in its new place, nothing came after that
        after = disk.survivor("kill", random.Random(1))
    moving.result()
    with opened(after, paths=("/one", "/two")) as store:
        assert store.topic("t").log_start_offset() == 7
        assert values(store) == [b"7", b"8", b"9"]


def test_a_checkpoint_in_the_middle_of_a_move_leaves_its_entries_alone() -> None:
    """The target has the entries before the partition has its new name: nobody may take them for rubbish."""
    disk, clock = MemoryFileSystem(), ManualClock()
    fs = PausingFileSystem(disk)
    store = opened(fs, clock, ("/one", "/two"))
    filled(store).delete_records(0, 7)
    with fs.pause_at("rename", "/two/t-0") as pause:
        moving = Running(store.move_partition, "t", 0, "/two")
        pause.wait_until_reached()
        clock.advance(CHECKPOINT_MS)
        store.tick()
        now = disk.survivor("kill", random.Random(1))
    moving.result()
    for each in (now, disk.survivor("kill", random.Random(1))):
        for read_only in (True, False):
            with stratalog.open(["/one", "/two"], fs=each, background=False, read_only=read_only) as after:
                assert after.topic("t").log_start_offset() == 7
                assert values(after) == [b"7", b"8", b"9"]


def test_a_checkpoint_in_the_middle_of_an_import_leaves_its_entries_alone() -> None:
    disk, clock = MemoryFileSystem(), ManualClock()
    fs = PausingFileSystem(disk)
    store = opened(fs, clock)
    filled(store, "source").delete_records(0, 7)
    export_topic(store, "source", "/source.topic")
    with fs.pause_at("rename", "/data/t-0") as pause:
        importing = Running(import_topic, store, "/source.topic", name="t", fs=disk)
        pause.wait_until_reached()
        clock.advance(CHECKPOINT_MS)
        store.tick()
    importing.result()
    with opened(disk.survivor("kill", random.Random(1))) as after:
        assert after.topic("t").log_start_offset() == 7
        assert values(after) == [b"7", b"8", b"9"]


def test_a_partition_that_is_offline_keeps_its_checkpoints() -> None:
    disk, clock = MemoryFileSystem(), ManualClock()
    with opened(disk) as store:
        filled(store).delete_records(0, 7)
        filled(store, "other")
    failing = FailingFileSystem(disk, [Fault("pread", "*/t-0/*.log")])
    store = opened(failing, clock)
    try:
        store.topic("other").append(b"more")
        clock.advance(CHECKPOINT_MS)
        store.tick()
    finally:
        failing.heal()
        store.close()
    with opened(disk) as store:
        assert values(store) == [b"7", b"8", b"9"]


def test_a_checkpoint_that_could_not_be_written_is_written_next_time() -> None:
    disk, clock = MemoryFileSystem(), ManualClock()
    fs = FailingFileSystem(disk)
    store = opened(fs, clock)
    topic = filled(store)
    fs.inject(Fault("create", "*/log-start-offset-checkpoint.tmp", error=errno.ENOSPC, times=1))
    with pytest.raises(DiskFullError):
        topic.delete_records(0, 7)
    assert topic.log_start_offset() == 0
    assert topic.delete_records(0, 7) == 7
    fs.inject(Fault("create", "*/recovery-point-offset-checkpoint.tmp", error=errno.ENOSPC, times=1))
    for _ in range(2):
        clock.advance(CHECKPOINT_MS)
        store.tick()
    assert disk.read_file("/data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 10\n"
    assert disk.read_file("/data/log-start-offset-checkpoint") == b"0\n1\nt 0 7\n"


def with_log_start(fs: MemoryFileSystem, offset: int) -> None:
    fs.write_file("/data/log-start-offset-checkpoint", b"0\n1\nt 0 %d\n" % offset, sync=True)


def test_a_log_start_past_the_end_removes_nothing() -> None:
    fs = MemoryFileSystem()
    with opened(fs) as store:
        filled(store).roll()
        filled(store, "other")
        store.topic("t").delete_records(0, 2)
    with_log_start(fs, 9010)
    with opened(fs) as store:
        assert len(values(store, "other")) == 10
        with pytest.raises(LogDirOfflineError, match=r"log-start-offset-checkpoint.* 9010.*ends at"):
            store.topic("t").append(b"x")
    with_log_start(fs, 2)
    with opened(fs) as store:
        assert values(store) == [b"%d" % i for i in range(2, 10)]


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63 - 3])
def test_no_offset_is_given_past_the_largest_one(offset: int) -> None:
    fs = MemoryFileSystem()
    with opened(fs) as store:
        filled(store)
        disk = fs.survivor("kill", random.Random(1))  # after a crash a log may end before it starts
    with_log_start(disk, offset)
    with opened(disk) as store:
        topic = store.topic("t")
        for _ in range(3):
            with pytest.raises(ReadOnlyError, match="too close to the largest one"):
                topic.append(b"x", sync=True)
        assert (topic.log_start_offset(), topic.log_end_offset()) == (offset, offset)


def test_a_tail_that_a_power_cut_took_back_does_not_contradict_the_log_start() -> None:
    """A clean stop does not sync the tail: the one of the stop before it may be what is left."""
    fs = MemoryFileSystem()
    with opened(fs) as store:
        store.create_topic("t", 1).append(b"a")
    older = fs.read_file("/data/t-0/stratalog.tail")
    with opened(fs) as store:
        store["t"].append(b"x")
        store["t"].delete_records(0, 2)
    fs.write_file("/data/t-0/stratalog.tail", older, sync=True)
    with opened(fs) as store:
        assert (store["t"].log_start_offset(0), store["t"].log_end_offset(0)) == (2, 2)
        assert store["t"].append(b"y").offset == 2
