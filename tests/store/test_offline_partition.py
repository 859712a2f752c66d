"""One partition that cannot be opened is offline by itself; the others open, and repair works on it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.fs import FailingFileSystem, Fault, RealFileSystem
from stratalog.store import open_store
from tests.cli.shell import Shell

SEGMENT = "00000000000000000000"
Damage = Callable[[Path], None]


def make(path: Path, *, clean: bool = True) -> None:
    """A store with two topics; partition 0 of the first has two segments."""
    with stratalog.open(path) as store:
        topic = store.create_topic("t", partitions=2)
        topic.append_many([Record(b"%d" % i) for i in range(10)], partition=0)
        topic.roll(0)
        topic.append(b"10", partition=0)
        topic.append(b"other", partition=1)
        store.create_topic("u").append(b"u")
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()


def damaged_swap(directory: Path) -> None:
    data = bytearray((directory / f"{SEGMENT}.log").read_bytes())
    data[-1] ^= 1
    (directory / f"{SEGMENT}.log.swap").write_bytes(data)


def damaged_swap_alone(directory: Path) -> None:
    damaged_swap(directory)
    (directory / f"{SEGMENT}.log").unlink()


def newer_tail(directory: Path) -> None:
    data = bytearray((directory / "stratalog.tail").read_bytes())
    (directory / "stratalog.tail").write_bytes(bytes([*data[:4], 0xFF, *data[5:]]) if data else b"")


def test_a_damaged_swap_takes_only_its_partition_offline(tmp_path: Path) -> None:
    make(tmp_path / "data")
    damaged_swap(tmp_path / "data" / "t-0")
    for opened in range(2):  # and again: what a close wrote must not hide it
        with stratalog.open(tmp_path / "data") as store:
            topic = store.topic("t")
            assert [record.value for record in topic.read(1)] == [b"other"] + [b"more"] * opened
            topic.append(b"more", partition=1)
            store.topic("u").append(b"more")
            offline = pytest.raises(errors.LogDirOfflineError, match=r"t-0 is offline.*swap.*damaged")
            with offline:
                topic.append(b"x", partition=0)
            with offline:
                topic.read(0)
            with offline:
                topic.flush(0)
            assert {each.partition for each in store.lifecycle() if each.topic == "t"} == {1}
            info = store.log_dirs()[0]
            assert info.offline is None
            assert list(info.offline_partitions) == ["t-0"]
            assert "damaged" in info.offline_partitions["t-0"]
            store.flush()
            store.retain()
            store.compact()
        assert (tmp_path / "data" / "t-0" / f"{SEGMENT}.log.swap").exists()


def test_a_partition_offline_keeps_its_directory_from_being_clean(tmp_path: Path) -> None:
    make(tmp_path / "data", clean=False)
    damaged_swap(tmp_path / "data" / "t-0")
    stratalog.open(tmp_path / "data").close()
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("action", ["rebuild-indexes", "drop-damaged", "truncate"])
@pytest.mark.parametrize("damage", [damaged_swap, damaged_swap_alone])
def test_repair_brings_it_back(tmp_path: Path, damage: Damage, action: str) -> None:
    make(tmp_path / "data")
    damage(tmp_path / "data" / "t-0")
    with stratalog.open(tmp_path / "data") as store:
        preview = store.repair("t", 0, action=action, dry_run=True)
        with pytest.raises(errors.LogDirOfflineError):
            store.topic("t").append(b"x", partition=0)
        report = store.repair("t", 0, action=action)
        assert any(".swap" in line for line in report.actions)
        assert any(".swap" in line for line in preview.actions)
        assert preview.dry_run
        topic = store.topic("t")
        assert topic.append(b"11", partition=0).offset == 11
        kept = [record.value for record in topic.read(0, skip_damaged=True)]
        if damage is damaged_swap:
            assert report.lost == []
            assert kept == [b"%d" % i for i in range(12)]
        else:
            assert kept[-1] == b"11"
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert store.topic("t").log_end_offset(0) == 12
        if action != "rebuild-indexes" or damage is damaged_swap:
            assert stratalog.verify(store).ok


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ELOOP])
def test_a_refused_file_takes_only_its_partition_offline(tmp_path: Path, code: int) -> None:
    make(tmp_path / "data", clean=False)
    fs = FailingFileSystem(RealFileSystem())
    fs.inject(Fault("open", f"*/data/t-0/{SEGMENT}*", code))
    fs.inject(Fault("open", "*/data/t-0/00000000000000000010.log", code))
    with open_store(tmp_path / "data", fs=fs, background=False) as store:
        assert list(store.log_dirs()[0].offline_partitions) == ["t-0"]
        store.topic("t").append(b"x", partition=1)


def test_a_failing_disk_takes_the_directory_offline(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make(tmp_path / name, clean=False)
    both = [tmp_path / "a", tmp_path / "c"]
    with stratalog.open(both) as store:
        store.create_topic("v", partitions=4)
    (tmp_path / "a" / ".kafka_cleanshutdown").unlink()
    fs = FailingFileSystem(RealFileSystem())
    fs.inject(Fault("*", f"{tmp_path}/a/t-0*", errno.EIO))
    with open_store(both, fs=fs, background=False) as store:
        assert [each.offline is None for each in store.log_dirs()] == [False, True]


def test_a_newer_version_is_offline_alone(tmp_path: Path) -> None:
    make(tmp_path / "data", clean=False)
    newer_tail(tmp_path / "data" / "t-0")
    with stratalog.open(tmp_path / "data") as store:
        assert [record.value for record in store.topic("t").read(1)] == [b"other"]


def test_the_command_line_shows_it_and_repairs_it(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "data")
    make(tmp_path / "data")
    damaged_swap_alone(tmp_path / "data" / "t-0")
    with stratalog.open(tmp_path / "data"):  # the holder has it offline
        shell.ok("topic", "describe", "t")
        shell.ok("topic", "list")
    verified = shell("verify")
    assert verified.exit_code == 5
    assert "t-0" in verified.output
    shell("repair", "t", "-p", "0", "--action", "drop-damaged", "--yes")
    shell.ok("append", "t", "-p", "0", stdin=b"x\n")


def test_a_topic_with_a_partition_offline_can_be_deleted(tmp_path: Path) -> None:
    make(tmp_path / "data")
    damaged_swap(tmp_path / "data" / "t-0")
    with stratalog.open(tmp_path / "data") as store:
        store.delete_topic("t")
        assert store.create_topic("t", partitions=2).append(b"new", partition=0).offset == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
