"""Settings on a full disk: they can be changed, and a change that was refused took no effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import DiskFullError
from stratalog.fs import FailingFileSystem, Fault, RealFileSystem
from stratalog.store import open_store
from stratalog.store.store import Store
from tests.cli.shell import Shell
from tests.store.small_disk import SmallDisk, small_disk

NO_SPACE = 28


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


def full_store(disk: SmallDisk) -> Store:
    with stratalog.open(disk.log, fs=disk.fs, background=False) as store:
        store.create_topic("t", config={"retention.ms": 1000}).append(b"x")
    disk.leave(0)
    return stratalog.open(disk.log, fs=disk.fs, background=False)


def test_alter_works_on_a_full_disk(disk: SmallDisk) -> None:
    with full_store(disk) as store:
        for retention_ms in (5, 6, 7):
            store.alter_topic("t", {"retention.ms": retention_ms})
            disk.leave(0)  # clearing the clean-shutdown file gave a page back
    with stratalog.open(disk.log, fs=disk.fs, read_only=True) as store:
        assert store.topic("t").config.retention_ms == 7
        assert [record.value for record in store.topic("t").read()] == [b"x"]


def test_the_command_line_alters_a_topic_on_a_full_disk(disk: SmallDisk) -> None:
    with full_store(disk):
        pass
    disk.leave(0)
    if not disk.real:
        return  # the quota is this process's; the command line has the real filesystem
    shell = Shell(disk.log)
    shell.ok("topic", "alter", "t", "--config", "retention.ms=9")
    shell.ok("lifecycle")
    shell.ok("retain", "--preview")
    assert shell.json("topic", "describe", "t")["config"]["retention.ms"]["value"] == "9"


def test_a_topic_is_deleted_on_a_full_disk(disk: SmallDisk) -> None:
    with stratalog.open(disk.log, fs=disk.fs, background=False) as store:
        topic = store.create_topic("t", config={"key.index.enable": True})
        topic.append(bytes(1000), b"k")
        topic.roll()
        topic.append(bytes(1000), b"k")
        disk.leave(0)
        store.delete_topic("t")
        assert store.topics() == []
        assert not (disk.log / "t-0").exists()


def test_a_create_that_finds_no_room_leaves_no_trace(disk: SmallDisk) -> None:
    with full_store(disk) as store:
        disk.leave(20)
        before = sorted(path.name for path in disk.log.iterdir() if path.is_dir())
        with pytest.raises(DiskFullError):
            store.create_topic("many", partitions=50)
        with pytest.raises(DiskFullError):
            store.add_partitions("t", 50)
        assert store.topics() == ["t"]
        assert store.topic("t").partitions == 1
        assert sorted(path.name for path in disk.log.iterdir() if path.is_dir()) == before
        disk.free()
        store.create_topic("other")  # an unrelated save brings nothing of it back
    with stratalog.open(disk.log, fs=disk.fs) as store:
        assert store.topics() == ["other", "t"]
        assert store.topic("t").partitions == 1
        assert store.create_topic("many", partitions=2).append(b"y").offset == 0


def test_a_refused_change_is_not_saved_by_the_next_one(tmp_path: Path) -> None:
    fs = FailingFileSystem(RealFileSystem())
    with open_store(tmp_path / "data", fs=fs, background=False) as store:
        store.create_topic("t", config={"retention.ms": 1000})
        store.create_topic("u")
        fs.inject(Fault("pwrite", "*/stratalog.settings.tmp", NO_SPACE))
        with pytest.raises(DiskFullError):
            store.alter_topic("t", {"retention.ms": 5})
        with pytest.raises(DiskFullError):
            store.add_partitions("t", 2)
        with pytest.raises(DiskFullError):
            store.create_topic("new")
        with pytest.raises(DiskFullError):
            store.delete_topic("u")
        with pytest.raises(DiskFullError):
            store.allocate_producer_ids()
        fs.heal()
        assert store.topic("t").config.retention_ms == 1000
        assert store.topic("t").partitions == 1
        store.alter_topic("u", {"retention.ms": 7})
        assert store.allocate_producer_ids(1) == range(1)
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert store.topics() == ["t", "u"]
        assert store.topic("t").config.retention_ms == 1000
        assert store.topic("t").partitions == 1
