"""A change to topics that fails or is interrupted: the session and the next open say the same."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import cast

import pytest

import stratalog
from stratalog import Store
from stratalog.errors import LogDirOfflineError, StorageError, UnknownTopicError
from stratalog.fs import FailingFileSystem, Fault, FileSystem, MemoryFileSystem
from stratalog.store.copies import export_topic, import_topic
from stratalog.testing.clock import ManualClock
from tests.log.interrupting import Interrupter

DIRS = ["/one", "/two"]


def opened(fs: object) -> Store:
    return stratalog.open(DIRS, fs=cast(FileSystem, fs), clock=ManualClock(), background=False)


def filled(store: Store) -> None:
    for name in ("t", "u", "v"):
        store.create_topic(name, 2, {"retention.ms": -1}).append(b"old", partition=0, sync=True)


def told(store: Store) -> dict[str, tuple[int, str]]:
    """The topics, their partitions, and a setting."""
    return {
        name: (
            store.topic(name).partitions,
            next(each.value for each in store.describe_topic(name) if each.name == "retention.ms"),
        )
        for name in store.topics()
    }


CHANGES: dict[str, Callable[[Store], object]] = {
    "create": lambda store: store.create_topic("n", 3),
    "alter": lambda store: store.alter_topic("t", {"retention.ms": 1000}),
    "delete": lambda store: store.delete_topic("t"),
    "add": lambda store: store.add_partitions("t", 4),
}


@pytest.mark.parametrize("operation", ["rename", "sync_dir", "pwrite", "sync"])
@pytest.mark.parametrize("where", DIRS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_failed_does_not_happen_at_the_next_open(
    change: str, where: str, operation: str
) -> None:
    failures = 0
    for after in range(40):
        disk = MemoryFileSystem()
        fs = FailingFileSystem(disk)
        store = opened(fs)
        filled(store)
        before = told(store)
        fs.inject(Fault(operation, f"{where}*", after=after, times=1))
        try:
            CHANGES[change](store)
        except StorageError:
            failures += 1
        else:
            break
        fs.heal()
        here = told(store)
        if here != before:  # a deletion that was decided goes on
            assert change == "delete"
            assert "t" not in here
        else:
            try:
                assert store.topic("t").append(b"new", partition=0, sync=True).offset == 1
            except UnknownTopicError:  # the disk does not let it be decided: nothing more is taken
                assert (change, operation) == ("delete", "sync_dir")
                here.pop("t")
        crashed = disk.survivor("kill", random.Random(after))
        store.close()
        for left in (crashed, disk):
            with opened(left) as again:
                found = told(again)
                assert {name: found.get(name) for name in here} == here, after
                assert found.keys() <= before.keys(), after
                if "t" in here:
                    assert [each.value for each in again.topic("t").read(0)] == [b"old", b"new"]
    assert failures


@pytest.mark.usefixtures("plain_locks")
def test_nothing_acknowledged_after_an_interrupted_deletion_is_lost() -> None:
    outcomes = set()
    for at in range(1, 2000):
        fs = MemoryFileSystem()
        store = opened(fs)
        filled(store)
        topic = store.topic("t")
        interrupter = Interrupter(KeyboardInterrupt, at)
        try:
            interrupter.run(lambda store=store: store.delete_topic("t"))  # type: ignore[misc]
        except KeyboardInterrupt:
            pass
        else:
            break
        try:
            topic.append(b"new", partition=0, sync=True)
            kept = True
        except UnknownTopicError:
            kept = False
        outcomes.add(kept)
        if not kept:  # nothing brings half of it back
            for change in (CHANGES["alter"], CHANGES["add"]):
                with pytest.raises(UnknownTopicError):
                    change(store)
        for other in ("u", "v"):
            assert store.topic(other).append(b"x", partition=0, sync=True).offset == 1
        crashed = fs.survivor("kill", random.Random(at))
        store.close()
        for left in (crashed, fs):
            with opened(left) as again:
                assert ("t" in again.topics()) == kept, interrupter.where
                if kept:
                    assert [each.value for each in again.topic("t").read(0)] == [b"old", b"new"]
                else:
                    again.create_topic("t", 2)
                    assert list(again.topic("t").read(0)) == []
    assert outcomes == {True, False}


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.parametrize(("change", "name", "partition"), [("create", "n", 2), ("add", "t", 3)])
def test_partitions_that_appeared_outlive_an_interrupt(change: str, name: str, partition: int) -> None:
    outcomes = set()
    for at in range(1, 3000):
        fs = MemoryFileSystem()
        store = opened(fs)
        filled(store)
        interrupter = Interrupter(KeyboardInterrupt, at, within="/store/opening.py")
        try:
            interrupter.run(lambda store=store: CHANGES[change](store))  # type: ignore[misc]
        except KeyboardInterrupt:
            pass
        else:
            break
        there = name in store and store.topic(name).partitions > partition
        outcomes.add(there)
        if there:
            store.topic(name).append(b"new", partition=partition, sync=True)
        crashed = fs.survivor("kill", random.Random(at))
        store.close()
        for left in (crashed, fs):
            with opened(left) as again:
                assert (name in again and again.topic(name).partitions > partition) == there, (
                    interrupter.where
                )
                if there:
                    assert [each.value for each in again.topic(name).read(partition)] == [b"new"]
    assert outcomes == {True, False}


@pytest.mark.parametrize("operation", ["rename", "sync_dir", "remove", "mutating"])
def test_an_import_that_failed_leaves_nothing_and_can_be_repeated(operation: str) -> None:
    failures = 0
    for after in range(120):
        disk = MemoryFileSystem()
        fs = FailingFileSystem(disk)
        store = opened(fs)
        filled(store)
        export_topic(store, "t", "/t.export")
        fs.inject(Fault(operation, "/*/n-[01]*", after=after, times=1))
        try:
            import_topic(store, "/t.export", name="n")
        except StorageError:
            failures += 1
        else:
            break
        fs.heal()
        assert store.topics() == ["t", "u", "v"]
        if operation not in ("sync_dir", "mutating"):  # after which the directory is not trusted any more
            import_topic(store, "/t.export", name="n")
            store.delete_topic("n")
        store.close()
        with opened(disk) as again:
            assert again.topics() == ["t", "u", "v"], after
            import_topic(again, "/t.export", name="n")
            assert [each.value for each in again.topic("n").read(0)] == [b"old"]
    assert failures


def test_a_new_topic_takes_no_directory_that_is_in_the_way() -> None:
    fs = MemoryFileSystem()
    with opened(fs) as store:
        fs.make_dir("/one/n-1")
        fs.make_dir("/two/n-1")
        with pytest.raises(StorageError, match=r"n-1 exists already"):
            store.create_topic("n", 2)
        assert store.topics() == []
        for path in DIRS:
            fs.remove_dir(f"{path}/n-1")
        assert list(store.create_topic("n", 2).read(0)) == []


@pytest.mark.parametrize("action", ["rebuild-indexes", "truncate"])
def test_a_partition_goes_on_after_a_repair_that_failed(action: str) -> None:
    failures = 0
    for after in range(60):
        fs = FailingFileSystem(MemoryFileSystem())
        with opened(fs) as store:
            topic = store.create_topic("t", 1)
            topic.append(b"old")
            fs.inject(Fault("mutating", "*/t-0/*", after=after, times=1, error=errno.ENOSPC))
            try:
                store.repair("t", 0, action=action)
            except StorageError:
                failures += 1
                fs.heal()
                try:
                    assert topic.append(b"new", sync=True).offset == 1
                except LogDirOfflineError:  # a sync failed: the disk is not trusted any more
                    continue
                assert [each.value for each in topic.read()] == [b"old", b"new"]
            else:
                break
    assert failures


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.parametrize("within", ["/store/partitions.py", "/store/tier/tiering.py", "/log/write/writer.py"])
def test_settings_whose_change_is_interrupted_are_in_force_everywhere_or_nowhere(within: str) -> None:
    def flush_messages(store: Store) -> set[int]:
        told = {int(each.value) for each in store.describe_topic("t") if each.name == "flush.messages"}
        return told | {each.config.flush_messages for each in store.partitions.writers() if each.topic == "t"}

    for at in range(1, 200):
        fs = MemoryFileSystem()
        store = opened(fs)
        store.create_topic("t", 2)
        interrupter = Interrupter(KeyboardInterrupt, at, within)
        try:
            interrupter.run(lambda store=store: store.alter_topic("t", {"flush.messages": 1}))  # type: ignore[misc]
        except KeyboardInterrupt:
            pass
        else:
            assert at > 1
            break
        here = flush_messages(store)
        assert len(here) == 1, interrupter.where
        crashed = fs.survivor("kill", random.Random(at))
        store.close()
        for left in (crashed, fs):
            with opened(left) as again:
                assert flush_messages(again) == here, interrupter.where
