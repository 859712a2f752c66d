"""One suite for every filesystem: the contract holds on the real one, in memory, and through a wrapper."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import StorageError, StoreLockedError
from stratalog.fs import FailingFileSystem, FileSystem, MemoryFileSystem, RealFileSystem


@pytest.fixture(params=["real", "memory", "wrapped"])
def fs(request: pytest.FixtureRequest) -> FileSystem:
    if request.param == "real":
        return RealFileSystem()
    memory = MemoryFileSystem()
    return memory if request.param == "memory" else FailingFileSystem(memory)


@pytest.fixture
def root(fs: FileSystem, tmp_path: Path) -> str:
    path = str(tmp_path / "root")
    fs.make_dir(path)
    return path


def test_write_and_read_by_position(fs: FileSystem, root: str) -> None:
    with fs.open(f"{root}/f", "x") as file:
        assert file.path == f"{root}/f"
        assert file.size() == 0
        file.pwrite(b"hello world", 0)
        file.pwrite(bytearray(b"W"), 6)
        file.pwrite(memoryview(b"xx!xx")[2:3], 11)
        assert file.size() == 12
        assert file.pread(5, 0) == b"hello"
        assert file.pread(100, 6) == b"World!"
        assert file.pread(1, 12) == b""
        assert file.pread(10, 10_000) == b""
        assert file.pread(0, 0) == b""
        assert isinstance(file.pread(2, 0), bytes)


def test_pread_into(fs: FileSystem, root: str) -> None:
    fs.write_file(f"{root}/f", b"0123456789", sync=False)
    with fs.open(f"{root}/f") as file:
        buffer = bytearray(b"........")
        assert file.pread_into(buffer, 0) == 8
        assert buffer == b"01234567"
        assert file.pread_into(memoryview(buffer)[2:5], 8) == 2
        assert buffer == b"01894567"
        assert file.pread_into(buffer, 10) == 0


def test_a_gap_reads_as_zeros(fs: FileSystem, root: str) -> None:
    with fs.open(f"{root}/f", "x") as file:
        file.pwrite(b"ab", 5)
        assert file.pread(100, 0) == b"\0\0\0\0\0ab"
        file.pwrite(b"", 50)
        assert file.size() == 7


def test_truncate_cuts_and_extends_with_zeros(fs: FileSystem, root: str) -> None:
    with fs.open(f"{root}/f", "x") as file:
        file.pwrite(b"abcdef", 0)
        file.truncate(2)
        assert file.pread(10, 0) == b"ab"
        file.truncate(5)
        assert file.pread(10, 0) == b"ab\0\0\0"
        file.truncate(5)
        assert file.size() == 5


def test_modes(fs: FileSystem, root: str) -> None:
    path = f"{root}/f"
    for mode in ("r", "w"):
        with pytest.raises(FileNotFoundError):
            fs.open(path, mode)  # type: ignore[arg-type]
    with fs.open(path, "x") as file:
        file.pwrite(b"one", 0)
    with pytest.raises(FileExistsError):
        fs.open(path, "x")
    with fs.open(path, "w") as file:
        assert file.pread(10, 0) == b"one"
        file.pwrite(b"O", 0)
    with fs.open(path, "a") as file:
        assert file.pread(10, 0) == b"One"
    with fs.open(f"{root}/new", "a") as file:
        assert file.size() == 0
    with fs.open(path) as file:
        with pytest.raises(StorageError) as caught:
            file.pwrite(b"x", 0)
        assert isinstance(caught.value.__cause__, OSError)
        assert path in str(caught.value)
        with pytest.raises(StorageError):
            file.truncate(0)
        assert file.pread(10, 0) == b"One"


def test_handles_share_the_file(fs: FileSystem, root: str) -> None:
    with fs.open(f"{root}/f", "a") as writer, fs.open(f"{root}/f") as reader:
        writer.pwrite(b"seen at once", 0)
        assert reader.pread(100, 0) == b"seen at once"
        writer.truncate(4)
        assert reader.size() == 4


def test_closed_files_refuse(fs: FileSystem, root: str) -> None:
    file = fs.open(f"{root}/f", "a")
    file.close()
    file.close()
    for use in (
        lambda: file.pread(1, 0),
        lambda: file.pread_into(bytearray(1), 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        file.size,
        file.sync,
    ):
        with pytest.raises(StorageError, match="closed"):
            use()


def test_negative_positions_refuse(fs: FileSystem, root: str) -> None:
    with fs.open(f"{root}/f", "a") as file:
        for use in (lambda: file.pread(1, -1), lambda: file.pwrite(b"x", -1), lambda: file.truncate(-1)):
            with pytest.raises(StorageError):
                use()


def test_directories_are_not_files(fs: FileSystem, root: str) -> None:
    fs.make_dir(f"{root}/d")
    fs.write_file(f"{root}/f", b"x", sync=False)
    for mode in ("r", "w", "a"):
        with pytest.raises(StorageError):
            fs.open(f"{root}/d", mode)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError):
        fs.open(f"{root}/d", "x")
    with pytest.raises(StorageError):
        fs.remove(f"{root}/d")
    for use in (fs.list_dir, fs.sync_dir, fs.remove_dir, fs.remove_tree):
        with pytest.raises(NotADirectoryError):
            use(f"{root}/f")
    with pytest.raises(NotADirectoryError):
        fs.open(f"{root}/f/below", "a")
    with pytest.raises(NotADirectoryError):
        fs.stat(f"{root}/f/below")


def test_missing_things(fs: FileSystem, root: str) -> None:
    gone = f"{root}/gone"
    for use in (
        fs.open, fs.list_dir, fs.stat, fs.remove, fs.remove_dir, fs.remove_tree, fs.sync_dir, fs.read_file,
        fs.free_bytes,
    ):  # fmt: skip
        with pytest.raises(FileNotFoundError):
            use(gone)  # type: ignore[operator]
    with pytest.raises(FileNotFoundError):
        fs.rename(gone, f"{root}/other")
    with pytest.raises(FileNotFoundError):
        fs.link(gone, f"{root}/other")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{gone}/f", "a")
    assert not fs.exists(gone)
    assert not fs.exists(f"{gone}/deeper")
    assert fs.list_dir(root) == []


def test_make_dir_with_parents(fs: FileSystem, root: str) -> None:
    fs.make_dir(f"{root}/a/b/c")
    fs.make_dir(f"{root}/a/b/c")
    assert fs.list_dir(f"{root}/a") == ["b"]
    assert fs.stat(f"{root}/a/b/c").is_dir
    fs.write_file(f"{root}/a/f", b"", sync=False)
    with pytest.raises(FileExistsError):
        fs.make_dir(f"{root}/a/f")
    with pytest.raises(NotADirectoryError):
        fs.make_dir(f"{root}/a/f/g/h")


def test_list_is_sorted(fs: FileSystem, root: str) -> None:
    for name in ("b", "a", "C", "10", "9"):
        fs.write_file(f"{root}/{name}", b"", sync=False)
    assert fs.list_dir(root) == ["10", "9", "C", "a", "b"]
    assert fs.list_dir(root + "/") == fs.list_dir(root)


def test_stat(fs: FileSystem, root: str) -> None:
    fs.write_file(f"{root}/f", b"12345", sync=True)
    found = fs.stat(f"{root}/f")
    assert (found.size, found.is_dir) == (5, False)
    assert found.mtime_ns > 1_600_000_000 * 10**9
    fs.rename(f"{root}/f", f"{root}/g")
    assert fs.stat(f"{root}/g").inode == found.inode
    fs.write_file(f"{root}/f", b"", sync=False)
    assert fs.stat(f"{root}/f").inode != found.inode


def test_set_mtime(fs: FileSystem, root: str) -> None:
    moment = 1_600_000_000_123_456_789
    fs.write_file(f"{root}/f", b"12345", sync=True)
    fs.set_mtime_ns(f"{root}/f", moment)
    assert fs.stat(f"{root}/f").mtime_ns == moment
    assert fs.stat(f"{root}/f").size == 5
    fs.rename(f"{root}/f", f"{root}/g")
    assert fs.stat(f"{root}/g").mtime_ns == moment
    with fs.open(f"{root}/g", "w") as file:
        file.pwrite(b"6", 5)
    assert fs.stat(f"{root}/g").mtime_ns > moment
    with pytest.raises(FileNotFoundError):
        fs.set_mtime_ns(f"{root}/f", moment)


def test_rename_replaces(fs: FileSystem, root: str) -> None:
    fs.write_file(f"{root}/old", b"old", sync=False)
    fs.write_file(f"{root}/new", b"new", sync=False)
    with fs.open(f"{root}/old") as reader:
        fs.rename(f"{root}/new", f"{root}/old")
        assert reader.pread(10, 0) == b"old"
    assert fs.list_dir(root) == ["old"]
    assert fs.read_file(f"{root}/old") == b"new"
    fs.rename(f"{root}/old", f"{root}/old")
    assert fs.read_file(f"{root}/old") == b"new"


def test_rename_directories(fs: FileSystem, root: str) -> None:
    fs.make_dir(f"{root}/a/sub")
    fs.make_dir(f"{root}/empty")
    fs.make_dir(f"{root}/full/x")
    fs.write_file(f"{root}/f", b"", sync=False)
    fs.rename(f"{root}/a", f"{root}/empty")
    assert fs.list_dir(root) == ["empty", "f", "full"]
    assert fs.list_dir(f"{root}/empty") == ["sub"]
    with pytest.raises(StorageError):
        fs.rename(f"{root}/empty", f"{root}/full")
    with pytest.raises(StorageError):
        fs.rename(f"{root}/f", f"{root}/full")
    with pytest.raises(NotADirectoryError):
        fs.rename(f"{root}/full", f"{root}/f")
    with pytest.raises(StorageError):
        fs.rename(f"{root}/full", f"{root}/full/x/y")


def test_link(fs: FileSystem, root: str) -> None:
    fs.write_file(f"{root}/f", b"one", sync=False)
    fs.link(f"{root}/f", f"{root}/g")
    assert fs.stat(f"{root}/f").inode == fs.stat(f"{root}/g").inode
    with fs.open(f"{root}/g", "w") as file:
        file.pwrite(b"two", 0)
    assert fs.read_file(f"{root}/f") == b"two"
    fs.remove(f"{root}/f")
    assert fs.read_file(f"{root}/g") == b"two"
    with pytest.raises(FileExistsError):
        fs.link(f"{root}/g", f"{root}/g")
    with pytest.raises(StorageError):
        fs.link(root, f"{root}/h")


def test_removed_files_stay_readable_where_open(fs: FileSystem, root: str) -> None:
    fs.write_file(f"{root}/f", b"still here", sync=False)
    with fs.open(f"{root}/f", "w") as file:
        fs.remove(f"{root}/f")
        file.pwrite(b"S", 0)
        file.sync()
        assert file.pread(100, 0) == b"Still here"
    assert fs.list_dir(root) == []


def test_remove_dir_and_tree(fs: FileSystem, root: str) -> None:
    fs.make_dir(f"{root}/d/e/f")
    fs.write_file(f"{root}/d/x", b"", sync=False)
    fs.write_file(f"{root}/d/e/y", b"", sync=False)
    with pytest.raises(StorageError):
        fs.remove_dir(f"{root}/d")
    fs.remove_dir(f"{root}/d/e/f")
    fs.remove_tree(f"{root}/d")
    assert fs.list_dir(root) == []


def test_whole_files(fs: FileSystem, root: str) -> None:
    path = f"{root}/f"
    fs.write_file(path, b"a long first text", sync=True)
    fs.write_file(path, memoryview(b"short"), sync=False)
    assert fs.read_file(path) == b"short"
    assert fs.read_file(path, limit=5) == b"short"
    with pytest.raises(StorageError, match="5 bytes"):
        fs.read_file(path, limit=4)
    fs.write_file(path, b"", sync=True)
    assert fs.read_file(path) == b""
    fs.write_atomic(path, b"first")
    fs.write_atomic(path, b"2")
    assert fs.read_file(path) == b"2"
    assert fs.list_dir(root) == ["f"]
    with pytest.raises(FileNotFoundError):
        fs.write_atomic(f"{root}/none/f", b"")


def test_sync_and_free_bytes(fs: FileSystem, root: str) -> None:
    with fs.open(f"{root}/f", "x") as file:
        file.pwrite(b"data", 0)
        file.sync()
        file.sync()
    fs.sync_dir(root)
    with fs.open(f"{root}/f") as reader:
        reader.sync()
    assert fs.free_bytes(root) > 0


def test_lock_excludes_in_the_same_process(fs: FileSystem, root: str) -> None:
    path = f"{root}/.lock"
    info = {"pid": os.getpid(), "control": "/run/here.sock", "started": 1}
    assert fs.lock_holder(path) is None
    lock = fs.lock(path, info)
    assert fs.lock_holder(path) == info
    with pytest.raises(StoreLockedError) as caught:
        fs.lock(path, {"pid": 1})
    assert (caught.value.pid, caught.value.control) == (os.getpid(), "/run/here.sock")
    lock.update({"pid": os.getpid()})
    assert fs.lock_holder(path) == {"pid": os.getpid()}
    lock.release()
    lock.release()
    assert fs.lock_holder(path) is None
    assert fs.read_file(path) == b""
    again = fs.lock(path, info)
    lock.release()
    assert fs.lock_holder(path) == info
    again.release()
    with pytest.raises(FileNotFoundError):
        fs.lock(f"{root}/none/.lock", info)


def test_errors_carry_their_errno(fs: FileSystem, root: str) -> None:
    fs.make_dir(f"{root}/d/x")
    with pytest.raises(StorageError) as caught:
        fs.remove_dir(f"{root}/d")
    cause = caught.value.__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == errno.ENOTEMPTY
    assert f"{root}/d" in str(caught.value)


def test_threads_write_side_by_side(fs: FileSystem, root: str) -> None:
    file = fs.open(f"{root}/f", "x")

    def work(number: int) -> None:
        for i in range(100):
            file.pwrite(bytes([number]) * 10, (i * 4 + number) * 10)
            assert file.pread(10, (i * 4 + number) * 10) == bytes([number]) * 10
            fs.write_file(f"{root}/{number}-{i}", b"x", sync=False)
            fs.rename(f"{root}/{number}-{i}", f"{root}/{number}")
            fs.list_dir(root)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.pread(10_000, 0) == b"".join(bytes([n]) * 10 for n in range(4)) * 100
    assert fs.list_dir(root) == ["0", "1", "2", "3", "f"]
    file.close()


def random_step(rng: random.Random, fs: FileSystem, root: str) -> object:
    """One random call on a handful of names, and what it answered: a value or the kind of its error."""

    def name() -> str:
        return root + rng.choice(("/a", "/b", "/c", "/a/a", "/a/b", "/b/a", "/a/a/a"))

    first, second = name(), name()
    data, at = rng.randbytes(rng.randrange(20)), rng.randrange(30)
    mode = rng.choice("rwxa")
    steps: list[Callable[[], object]] = [
        lambda: fs.make_dir(first),
        lambda: fs.rename(first, second),
        lambda: fs.link(first, second),
        lambda: fs.remove(first),
        lambda: fs.remove_dir(first),
        lambda: fs.remove_tree(first) if at < 10 else None,
        lambda: fs.list_dir(first),
        lambda: fs.sync_dir(first),
        lambda: fs.write_atomic(first, data),
        lambda: fs.stat(first).is_dir or fs.stat(first).size,
        lambda: fs.set_mtime_ns(first, at),
        lambda: change(True),
        lambda: change(False),
    ]

    def change(cut: bool) -> object:
        with fs.open(first, mode) as file:  # type: ignore[arg-type]
            if cut:
                file.truncate(at)
            file.pwrite(data, at)
            return file.size(), file.pread(50, 0)

    try:
        return rng.choice(steps)()
    except (OSError, StorageError) as error:
        return type(error)


@pytest.mark.parametrize("seed", range(40))
def test_memory_answers_as_the_system_does(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        real, memory = RealFileSystem(), MemoryFileSystem()
        memory.make_dir("/root")
        for step in range(120):
            ours = random_step(random.Random(f"{seed} {step}"), memory, "/root")
            systems = random_step(random.Random(f"{seed} {step}"), real, directory)
            assert ours == systems, step


def test_reserved_space_cannot_be_seen(fs: FileSystem, root: str) -> None:
    with fs.open(f"{root}/f", "x") as file:
        file.pwrite(b"abc", 0)
        before = fs.stat(f"{root}/f").size
        assert isinstance(file.reserve(3, 1 << 20), bool)
        assert file.size() == fs.stat(f"{root}/f").size == before
        assert file.pread(100, 0) == b"abc"
        file.pwrite(b"def", 3)
        file.sync()
        file.truncate(6)
        assert file.pread(100, 0) == fs.read_file(f"{root}/f") == b"abcdef"
    assert file.reserve(0, 10) is False  # closed: a hint does not raise
