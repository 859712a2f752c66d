"""What only the operating system can show: full disks, failed fsyncs, descriptors, symlinks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.errors import DiskFullError, StorageError, SyncFailedError
from stratalog.fs import RealFile, RealFileSystem, real


@contextlib.contextmanager
def small_disk(where: Path, size_kib: int) -> Iterator[bool]:
    """A tmpfs of that size at ``where``; False where mounting is not allowed."""
    where.mkdir()
    options = f"size={size_kib}k"
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(where)], capture_output=True, check=False
        )
        mounted = made.returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk(tmp_path: Path) -> None:
    fs = RealFileSystem()
    with small_disk(tmp_path / "small", 256) as mounted:
        if not mounted:
            # No small disk to be had: the device that is always full gives the same answer.
            with fs.open("/dev/full", "w") as file, pytest.raises(DiskFullError, match="/dev/full"):
                file.pwrite(b"x", 0)
            return
        root = str(tmp_path / "small")
        with fs.open(f"{root}/f", "x") as file:
            with pytest.raises(DiskFullError, match="No space left") as caught:
                file.pwrite(b"x" * 2**20, 0)
            assert isinstance(caught.value.__cause__, OSError)
            # What fitted was written, short; the loop then met the error.
            assert 0 < file.size() <= 256 * 1024
            assert file.pread(file.size(), 0) == b"x" * file.size()
            file.truncate(1000)
            file.pwrite(b"room again", 1000)
            file.sync()
            assert fs.free_bytes(root) > 0
            fs.write_file(f"{root}/kept", b"old", sync=True)
            with pytest.raises(DiskFullError):
                fs.write_atomic(f"{root}/kept", b"n" * 2**20)
        assert fs.read_file(f"{root}/kept") == b"old"
        assert fs.list_dir(root) == ["f", "kept"]


def test_a_device_without_room() -> None:
    with RealFileSystem().open("/dev/full", "w") as file, pytest.raises(DiskFullError):
        file.pwrite(b"x", 0)


def test_other_errors_are_storage_errors(tmp_path: Path) -> None:
    fs = RealFileSystem()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with fs.open(str(tmp_path / "f"), "x") as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(StorageError, match="File too large") as caught:
                file.pwrite(b"x" * 4000, 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not isinstance(caught.value, DiskFullError)
        assert file.size() == 1000
    with pytest.raises(StorageError, match="too long"):
        fs.open(str(tmp_path / ("x" * 300)), "a")


def test_a_failed_sync_sticks_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RealFileSystem()
    path, other = str(tmp_path / "f"), str(tmp_path / "other")
    file = fs.open(path, "x")
    file.pwrite(b"x", 0)
    healthy = fs.open(other, "x")

    def fails_once(fd: int) -> None:
        monkeypatch.undo()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(real, "_datasync", fails_once)
    with pytest.raises(SyncFailedError, match="sync failed"):
        file.sync()
    # The kernel would say yes now, to this handle and to any other.
    os.fdatasync(file.fileno())
    with pytest.raises(SyncFailedError, match="earlier sync failed"):
        file.sync()
    fs.rename(path, path + ".renamed")
    with fs.open(path + ".renamed", "w") as second, pytest.raises(SyncFailedError):
        second.sync()
    healthy.sync()
    # A new file, even one that is given the same inode number, starts clean.
    file.close()
    fs.rename(other, path + ".renamed")
    fs.write_file(path, b"new", sync=True)
    healthy.close()


def test_a_full_disk_at_sync_is_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(real, "_datasync", full)
    with RealFileSystem().open(str(tmp_path / "f"), "x") as file, pytest.raises(SyncFailedError):
        file.sync()


def test_a_failed_directory_sync_sticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = RealFileSystem()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(SyncFailedError):
            fs.sync_dir(str(tmp_path))
    with pytest.raises(SyncFailedError, match="earlier"):
        fs.sync_dir(str(tmp_path))
    RealFileSystem().sync_dir(str(tmp_path))


def test_of_two_threads_syncing_both_learn_of_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealFileSystem().open(str(tmp_path / "f"), "x")
    inside, go = threading.Event(), threading.Event()
    answers: list[str] = []

    def slow_failure_then_success(fd: int) -> None:
        monkeypatch.setattr(real, "_datasync", lambda fd: None)
        inside.set()
        go.wait(5)
        raise OSError(errno.EIO, "Input/output error")

    def sync() -> None:
        try:
            file.sync()
            answers.append("fine")
        except SyncFailedError:
            answers.append("failed")

    monkeypatch.setattr(real, "_datasync", slow_failure_then_success)
    first, second = threading.Thread(target=sync), threading.Thread(target=sync)
    first.start()
    assert inside.wait(5)
    second.start()
    go.set()
    first.join()
    second.join()
    file.close()
    assert answers == ["failed", "failed"]


def test_short_reads_and_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_pwrite", lambda fd, data, offset: os.pwrite(fd, bytes(data)[:3], offset))
    monkeypatch.setattr(real, "_pread", lambda fd, size, offset: os.pread(fd, min(size, 4), offset))
    with RealFileSystem().open(str(tmp_path / "f"), "x") as file:
        file.pwrite(b"0123456789", 0)
        file.pwrite(bytearray(b"abcdefg"), 10)
        assert file.pread(17, 0) == b"0123456789abcdefg"
        assert file.pread(100, 1) == b"123456789abcdefg"
        assert file.pread(5, 17) == b""


def test_descriptors_are_not_inherited_and_not_leaked(tmp_path: Path) -> None:
    fs = RealFileSystem()
    file = fs.open(str(tmp_path / "f"), "x")
    fd = file.fileno()
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    before = len(os.listdir("/proc/self/fd"))
    del file
    assert len(os.listdir("/proc/self/fd")) == before - 1
    with pytest.raises(StorageError):
        fs.open(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_remove_tree_does_not_follow_symlinks(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "dangling").symlink_to(tmp_path / "nowhere")
    RealFileSystem().remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "precious").read_text() == "x"


def test_a_file_that_grows_while_it_is_read_stays_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = RealFileSystem()
    fs.write_file(str(tmp_path / "f"), b"x" * 100, sync=False)
    monkeypatch.setattr(RealFile, "size", lambda self: 10)
    assert len(fs.read_file(str(tmp_path / "f"), limit=100)) == 100
    with pytest.raises(StorageError, match="grew"):
        fs.read_file(str(tmp_path / "f"), limit=50)


def test_reserved_space_is_taken_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with RealFileSystem().open(str(path), "x") as file:
        file.pwrite(b"x" * 5000, 0)
        file.sync()
        small = path.stat().st_blocks
        if not file.reserve(5000, 4 << 20):
            return  # this filesystem has no such thing, and says so
        assert path.stat().st_blocks * 512 >= 4 << 20
        assert path.stat().st_size == 5000
        file.truncate(5000)
        assert path.stat().st_blocks <= small + 8


def test_a_refused_reservation_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with RealFileSystem().open(str(tmp_path / "f")) as file:
        assert file.reserve(0, 1 << 20) is False  # opened for reading
    with RealFileSystem().open(str(tmp_path / "f"), "w") as file:
        assert file.reserve(0, 1 << 62) is False  # more than any disk has
        assert file.pread(10, 0) == b"x"


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f")
    with pytest.raises(StorageError, match=f"{tmp_path / 'f'}: .* not a regular file"):
        RealFileSystem().open(str(tmp_path / "f"))
    assert RealFileSystem().lock_holder(str(tmp_path / "f")) is None
    with pytest.raises(StorageError, match=str(tmp_path / "f")):
        RealFileSystem().lock(str(tmp_path / "f"), {})


def test_what_is_not_there_leaves_nothing_for_the_collector(tmp_path: Path) -> None:
    """An error raised from itself keeps its frames; a store looks for many files that may be missing."""
    fs = RealFileSystem()
    gc.collect()
    gc.disable()
    try:
        for name in range(100):
            assert not fs.exists(f"{tmp_path}/{name}")
            with contextlib.suppress(FileNotFoundError):
                fs.read_file(f"{tmp_path}/{name}")
        assert gc.collect() < 10
    finally:
        gc.enable()
