"""The lock against other processes: ours, a POSIX locker (as a Java broker is), dead ones and forked ones."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog.errors import StorageError, StoreLockedError
from stratalog.fs import DirectoryLock, RealFileSystem
from stratalog.fs.descriptor import Descriptor
from stratalog.fs.lock import holder

OURS = """
import os, sys
from stratalog.fs import DirectoryLock
lock = DirectoryLock.acquire(sys.argv[1], {"pid": os.getpid(), "control": "/tmp/c.sock", "started": 5})
print("held", flush=True)
sys.stdin.read()
"""

POSIX = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""

TRY_POSIX = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("taken")
except OSError:
    print("refused")
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


def run(program: str, path: str) -> str:
    command = [sys.executable, "-c", program, path]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT).stdout.strip()


@contextmanager
def running(program: str, path: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / ".lock")


def test_a_second_opener_is_told_who_holds_it_at_once(path: str) -> None:
    with running(OURS, path) as process:
        with pytest.raises(StoreLockedError, match=f"process {process.pid}") as caught:
            DirectoryLock.acquire(path, {"pid": os.getpid()})
        assert (caught.value.pid, caught.value.control) == (process.pid, "/tmp/c.sock")
        assert holder(path) == {"pid": process.pid, "control": "/tmp/c.sock", "started": 5}


def test_the_lock_ends_with_its_process_and_leaves_a_stale_text(path: str) -> None:
    with running(OURS, path) as process:
        process.kill()
        process.wait()
        assert json.loads(Path(path).read_text())["pid"] == process.pid
        assert holder(path) is None
        lock = DirectoryLock.acquire(path, {"pid": os.getpid()})
        assert holder(path) == {"pid": os.getpid()}
        lock.release()
    assert Path(path).read_text() == ""


def test_a_posix_lock_of_another_process_excludes_us(path: str) -> None:
    # A text left by a store that died: not the words of the process that holds the lock now.
    Path(path).write_text('{"pid":1,"control":"/old.sock"}\n')
    with running(POSIX, path) as process:
        with pytest.raises(StoreLockedError, match="left no other information") as caught:
            DirectoryLock.acquire(path, {"pid": os.getpid()})
        assert (caught.value.pid, caught.value.control) == (process.pid, None)
        assert holder(path) == {"pid": process.pid}
    DirectoryLock.acquire(path, {}).release()


def test_our_lock_excludes_a_posix_locker(path: str) -> None:
    lock = DirectoryLock.acquire(path, {"pid": os.getpid()})
    assert run(TRY_POSIX, path) == "refused"
    lock.release()
    assert run(TRY_POSIX, path) == "taken"


def test_closing_another_descriptor_of_the_file_does_not_drop_it(path: str) -> None:
    lock = DirectoryLock.acquire(path, {"pid": os.getpid()})
    with open(path, "rb+") as other:
        other.read()
    assert holder(path) is not None
    RealFileSystem().read_file(path)
    assert run(TRY_POSIX, path) == "refused"
    lock.release()


def test_a_holder_that_says_nothing(path: str) -> None:
    file = Descriptor(path, os.O_RDWR | os.O_CREAT)
    mute = DirectoryLock(path, file)
    fcntl.fcntl(file.fd, fcntl.F_OFD_SETLK, b"\1" + bytes(31))
    with pytest.raises(StoreLockedError, match="left no information") as caught:
        DirectoryLock.acquire(path, {"pid": os.getpid()})
    assert caught.value.pid is None
    assert holder(path) == {}
    mute.release()


@pytest.mark.parametrize(
    "text", ["", "garbage", "[1]", '{"pid":"x"}', '{"pid":true}', "\xff\xfe", "[" * 5000]
)
def test_any_text_in_the_file_is_survived(path: str, text: str) -> None:
    Path(path).write_bytes(text.encode("latin-1"))
    assert holder(path) is None
    lock = DirectoryLock.acquire(path, {"pid": os.getpid()})
    assert holder(path) == {"pid": os.getpid()}
    Path(path).write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreLockedError) as caught:
        DirectoryLock.acquire(path, {})
    assert caught.value.pid is None
    lock.release()


def test_a_long_old_text_does_not_shine_through(path: str) -> None:
    Path(path).write_text('{"pid":1,"control":"' + "x" * 3000 + '"}\n')
    lock = DirectoryLock.acquire(path, {"pid": os.getpid()})
    assert json.loads(Path(path).read_text()) == {"pid": os.getpid()}
    lock.release()


FORK = """
import os, sys
from stratalog.fs import DirectoryLock
from stratalog.fs.lock import holder
lock = DirectoryLock.acquire(sys.argv[1], {"pid": os.getpid()})
ready_in, ready_out = os.pipe()
gate_in, gate_out = os.pipe()
child = os.fork()
if child == 0:
    lock.release()  # must do nothing: the lock is the parent's
    os.write(ready_out, b"x")
    os.read(gate_in, 1)
    os._exit(0)
os.read(ready_in, 1)
print("after fork:", holder(sys.argv[1]) is not None)
lock._drop()  # as when the parent dies without a word while the child lives on
print("after death:", holder(sys.argv[1]) is not None)
os.write(gate_out, b"x")
print("child:", os.waitpid(child, 0)[1])
"""


def test_a_forked_child_neither_keeps_nor_releases_the_lock(path: str) -> None:
    assert run(FORK, path).split("\n") == ["after fork: True", "after death: False", "child: 0"]


def test_a_dropped_lock_object_gives_the_lock_back(path: str) -> None:
    lock = DirectoryLock.acquire(path, {"pid": os.getpid()})
    del lock
    assert holder(path) is None


def test_a_lock_file_removed_under_us_is_not_trusted(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open
    removals = iter([True, True, False])

    def open_then_remove(name: str, flags: int, mode: int = 0o777) -> int:
        fd = real_open(name, flags, mode)
        if flags & os.O_CREAT and next(removals):
            os.unlink(name)
        return fd

    monkeypatch.setattr(os, "open", open_then_remove)
    lock = DirectoryLock.acquire(path, {"pid": os.getpid()})
    monkeypatch.undo()
    assert holder(path) == {"pid": os.getpid()}
    lock.release()


def test_refusals_of_the_system_are_storage_errors(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        DirectoryLock.acquire(str(tmp_path), {})
    with pytest.raises(FileNotFoundError):
        DirectoryLock.acquire(str(tmp_path / "none" / ".lock"), {})
    assert holder(str(tmp_path / "none" / ".lock")) is None


def test_a_lock_can_be_taken_where_there_is_no_room_for_a_word() -> None:
    lock = DirectoryLock.acquire("/dev/full", {"pid": os.getpid()})
    assert lock.path == "/dev/full"
    lock.release()
