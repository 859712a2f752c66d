"""Faults on request: which call, which error, what reached the file."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import DiskFullError, InvalidArgumentError, StorageError, SyncFailedError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem, RealFileSystem


def make(*plan: Fault) -> FailingFileSystem:
    memory = MemoryFileSystem()
    memory.make_dir("/d")
    memory.write_file("/d/f", b"0123456789", sync=True)
    memory.sync_dir("/d")
    memory.sync_dir("/")
    return FailingFileSystem(memory, plan)


def test_the_nth_call_fails_once() -> None:
    fs = make(Fault("pwrite", after=2, times=1))
    file = fs.open("/d/f", "w")
    file.pwrite(b"a", 0)
    file.pwrite(b"b", 1)
    with pytest.raises(StorageError, match="Input/output error") as caught:
        file.pwrite(b"c", 2)
    assert isinstance(caught.value.__cause__, OSError)
    file.pwrite(b"d", 3)
    assert file.pread(10, 0) == b"ab2d456789"
    assert fs.failed == ["pwrite /d/f"]


def test_every_call_can_be_made_to_fail_by_number() -> None:
    def workload(fs: FailingFileSystem) -> None:
        fs.make_dir("/d/e")
        fs.write_file("/d/e/g", b"x", sync=True)
        fs.sync_dir("/d/e")
        fs.link("/d/e/g", "/d/e/h")
        fs.rename("/d/e/h", "/d/e/i")
        fs.list_dir("/d/e")
        fs.stat("/d/e/i")
        fs.read_file("/d/e/i")
        fs.free_bytes("/d")
        fs.lock("/d/.lock", {}).release()
        fs.lock_holder("/d/.lock")
        fs.remove("/d/e/i")
        fs.remove_tree("/d/e")
        fs.make_dir("/d/e")
        fs.remove_dir("/d/e")

    counting = make()
    workload(counting)
    assert len(counting.calls) > 20
    for n, call in enumerate(counting.calls):
        fs = make(Fault(after=n, times=1))
        with pytest.raises(StorageError):
            workload(fs)
        assert fs.failed == [call]
        assert fs.calls == counting.calls[: n + 1]


def test_a_full_disk_takes_a_part_and_heals() -> None:
    fs = make(Fault("pwrite", "*/f", errno.ENOSPC, partial_bytes=3), Fault("create", error=errno.EDQUOT))
    file = fs.open("/d/f", "w")
    with pytest.raises(DiskFullError, match="No space left"):
        file.pwrite(bytearray(b"ABCDEF"), 8)
    assert file.pread(100, 0) == b"01234567ABC"
    with pytest.raises(DiskFullError):
        fs.open("/d/new", "a")
    with pytest.raises(DiskFullError):
        fs.write_atomic("/d/f", b"")
    assert fs.list_dir("/d") == ["f"]
    fs.heal()
    file.pwrite(b"ABCDEF", 8)
    assert file.pread(100, 0) == b"01234567ABCDEF"
    fs.write_atomic("/d/f", b"whole")
    assert fs.read_file("/d/f") == b"whole"


@pytest.mark.parametrize("real", [False, True])
def test_a_failed_sync_sticks_to_the_file(real: bool, tmp_path: Path) -> None:
    fs = (
        FailingFileSystem(RealFileSystem(), [Fault("sync", times=1)])
        if real
        else make(Fault("sync", times=1))
    )
    root = str(tmp_path) if real else "/d"
    file = fs.open(f"{root}/f", "a")
    file.pwrite(b"X", 0)
    with pytest.raises(SyncFailedError, match="sync failed"):
        file.sync()
    with pytest.raises(SyncFailedError, match="earlier"):
        file.sync()
    fs.rename(f"{root}/f", f"{root}/g")
    with fs.open(f"{root}/g", "w") as other, pytest.raises(SyncFailedError):
        other.sync()
    fs.write_file(f"{root}/healthy", b"", sync=True)
    fs.heal()
    file.sync()


def test_what_a_failed_sync_did_not_write_a_power_cut_loses() -> None:
    fs = make(Fault("sync"))
    file = fs.open("/d/f", "w")
    file.pwrite(b"X", 0)
    with pytest.raises(SyncFailedError):
        file.sync()
    assert isinstance(fs.inner, MemoryFileSystem)
    assert fs.inner.survivor("drop", random.Random(0)).read_file("/d/f") == b"0123456789"


def test_directory_sync() -> None:
    fs = make(Fault("sync_dir", "/d", times=1))
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            fs.sync_dir("/d")
    fs.sync_dir("/")
    with pytest.raises(SyncFailedError):
        fs.write_atomic("/d/f", b"new")
    assert fs.read_file("/d/f") == b"new"


@pytest.mark.parametrize(
    ("fault", "use", "error"),
    [
        (Fault("open", error=errno.ENOENT), lambda fs: fs.open("/d/f"), FileNotFoundError),
        (Fault("open", error=errno.EMFILE), lambda fs: fs.open("/d/f"), StorageError),
        (Fault("create", error=errno.EEXIST), lambda fs: fs.open("/d/n", "x"), FileExistsError),
        (Fault("list_dir", error=errno.ENOTDIR), lambda fs: fs.list_dir("/d"), NotADirectoryError),
        (Fault("rename", "*.new"), lambda fs: fs.rename("/d/f", "/d/f.new"), StorageError),
        (Fault("rename", "/d/f"), lambda fs: fs.rename("/d/f", "/d/f.new"), StorageError),
        (Fault("pread"), lambda fs: fs.read_file("/d/f"), StorageError),
        (Fault("pread"), lambda fs: fs.open("/d/f").pread_into(bytearray(3), 0), StorageError),
        (Fault("truncate"), lambda fs: fs.open("/d/f", "w").truncate(0), StorageError),
        (Fault("size"), lambda fs: fs.open("/d/f").size(), StorageError),
        (Fault("mutating"), lambda fs: fs.remove("/d/f"), StorageError),
        (Fault("stat", error=errno.EACCES), lambda fs: fs.exists("/d/f"), StorageError),
    ],
)
def test_errors_are_those_of_the_contract(
    fault: Fault, use: Callable[[FailingFileSystem], object], error: type[Exception]
) -> None:
    fs = make(fault)
    with pytest.raises(error):
        use(fs)
    fs.heal()
    assert fs.read_file("/d/f") == b"0123456789"


def test_rules_match_what_they_say() -> None:
    fs = make(Fault("mutating"), Fault("pread", "*.index"))
    assert fs.read_file("/d/f") == b"0123456789"
    with pytest.raises(StorageError):
        fs.make_dir("/e")
    assert not fs.inner.exists("/e")
    with pytest.raises(InvalidArgumentError, match="'write'"):
        Fault("write")


def test_rules_may_come_later_and_count_from_then() -> None:
    fs = make()
    fs.stat("/d/f")
    fs.inject(Fault("stat", after=1))
    fs.stat("/d/f")
    for _ in range(3):
        with pytest.raises(StorageError):
            fs.stat("/d/f")
