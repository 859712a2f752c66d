"""The lock that makes one process the writer of a log directory.

``.lock`` carries an open-file-description lock (``F_OFD_SETLK``) over the whole file. It excludes other
Stratalog processes, other opens in this process, and the POSIX lock of a Java broker; it ends with the
process however that dies, and, unlike a POSIX lock, not when some other descriptor of the file is closed.

The file's first line is JSON about the holder (pid, control address, start), written after the lock was
taken and emptied before it is given back. It is for people and messages only: after a crash the text is
stale, and only the kernel's lock says whether the directory is held. The file itself is never removed,
because a lock on a removed file excludes no one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import time
import weakref
from collections.abc import Mapping

from stratalog.errors import StorageError, StoreLockedError
from stratalog.fs.contract import LockInfo, storage_error
from stratalog.fs.descriptor import Descriptor

# struct flock: l_type, l_whence, l_start, l_len (0: to the end, however far), l_pid (0 for this kind).
_FLOCK = struct.Struct("hhqqi4x")
_INFO_LIMIT_BYTES = 4096
# A holder needs a moment between taking the lock and writing its line: a second opener waits for it.
_INFO_WAIT_S = 0.03
_INFO_POLL_S = 0.002
_OPEN_ATTEMPTS = 100

_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """A lock this process holds; made by :meth:`acquire`."""

    __slots__ = ("__weakref__", "_descriptor", "path")

    def __init__(self, path: str, descriptor: Descriptor) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def _fd(self) -> int:
        return self._descriptor.fd

    @classmethod
    def acquire(cls, path: str, info: Mapping[str, object]) -> DirectoryLock:
        """Take the lock or raise StoreLockedError at once; ``info`` must be JSON values."""
        for _ in range(_OPEN_ATTEMPTS):
            try:
                lock = cls(path, Descriptor(path, os.O_RDWR | os.O_CREAT))
            except OSError as error:
                raise storage_error(error, path, "open the lock") from error
            try:
                if not _try_lock(lock._fd, path):
                    info_of_holder = _holder_of(lock._fd)
                    if info_of_holder is not None:
                        raise locked_error(path, info_of_holder)
                elif _still_named(lock._fd, path):
                    lock.update(info)
                    _held.add(lock)
                    return lock
            except BaseException:
                lock._drop()
                raise
            # Released just now, or removed between open and lock (it would exclude no process): try again.
            lock._drop()
        raise StorageError(f"{path}: cannot lock: the file changes hands or is removed again and again")

    def update(self, info: Mapping[str, object]) -> None:
        """Replace the line about the holder; on a full disk the lock is kept and the line may be missing."""
        line = json.dumps(dict(info), separators=(",", ":")).encode() + b"\n"
        try:
            # Written over the old line before the rest is cut, so that a block once allocated is reused and
            # a reader, who takes the first line only, never finds half of one.
            os.pwrite(self._fd, line, 0)
            os.ftruncate(self._fd, len(line))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise storage_error(error, self.path, "write the lock") from error

    def release(self) -> None:
        """Give the lock back; the file stays, empty."""
        if self._fd >= 0:
            try:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, 0)
            finally:
                try:
                    # Unlocked explicitly: a child forked by foreign code may share the description.
                    with contextlib.suppress(OSError):
                        unlocked = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
                        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, unlocked)
                finally:
                    self._drop()
        _held.discard(self)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.release()

    def _drop(self) -> None:
        """Close without unlocking: in a forked child the description, and so the lock, is the parent's."""
        self._descriptor.close()


def holder(path: str) -> LockInfo | None:
    """Return the holder of the lock at ``path``, or None. Creates nothing."""
    try:
        file = Descriptor(path, os.O_RDONLY | os.O_NONBLOCK)  # not for the writer of a FIFO
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, path, "open the lock") from error
    try:
        return _holder_of(file.fd)
    except OSError as error:
        raise storage_error(error, path, "ask for the lock") from error
    finally:
        file.close()


def _try_lock(fd: int, path: str) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise storage_error(error, path, "lock") from error
    return True


def _holder_of(fd: int) -> LockInfo | None:
    """Return the holder through any descriptor of the file; wait until it has written its line."""
    deadline = time.monotonic() + _INFO_WAIT_S
    while True:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, _, _, posix_pid = _FLOCK.unpack(answer)
        if kind == fcntl.F_UNLCK:
            return None
        info = _read_info(fd)
        if posix_pid > 0:
            # A POSIX lock, as a Java broker takes: the kernel has the pid; the text is of another process.
            return {"pid": posix_pid}
        if info is not None and _alive(info.get("pid")):
            return info
        # No line yet, or one left by a process that is gone (or that lives in another pid namespace).
        if time.monotonic() >= deadline:
            return info or {}
        time.sleep(_INFO_POLL_S)


def _read_info(fd: int) -> LockInfo | None:
    line, _, _ = os.pread(fd, _INFO_LIMIT_BYTES, 0).partition(b"\n")
    try:
        info = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) else None


def _alive(pid: object) -> bool:
    if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _still_named(fd: int, path: str) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def locked_error(path: str, info: Mapping[str, object]) -> StoreLockedError:
    """Return the error for a second opener, naming the first as far as it is known."""
    pid, control = info.get("pid"), info.get("control")
    if not isinstance(pid, int) or isinstance(pid, bool):
        pid = None
    if pid is None:
        who = "another process, which left no information (a Kafka broker leaves none)"
    elif len(info) == 1:
        who = f"process {pid}, which left no other information (a Kafka broker leaves none)"
    else:
        who = f"process {pid}"
    return StoreLockedError(
        f"{path}: locked by {who}",
        pid=pid,
        control=control if isinstance(control, str) else None,
    )


def _after_fork_in_child() -> None:
    # A child that kept the descriptor would keep the directory locked after its parent died.
    for lock in list(_held):
        lock._drop()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
