"""The operating system's files.

Positional reads and writes straight on descriptors: no buffering in Python, nothing mapped, no cursor.
What a crash leaves is what the kernel and the disk leave; this module adds only that a failed fsync is
remembered by inode, so that a second handle, for which the kernel would report success, is refused too.
"""

from __future__ import annotations

import errno
import os
import stat as stat_bits
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import ParamSpec, TypeVar

from stratalog.errors import StorageError, SyncFailedError
from stratalog.fs.contract import (
    PLAIN,
    Buffer,
    ComposedOperations,
    FileStat,
    LockInfo,
    Mode,
    OpenFile,
    os_error,
    storage_error,
)
from stratalog.fs.descriptor import Descriptor
from stratalog.fs.lock import DirectoryLock, holder

P = ParamSpec("P")
T = TypeVar("T")

_pread = os.pread
_pwrite = os.pwrite
# Where fdatasync is missing (macOS) the heavier call does the same and more.
_datasync = getattr(os, "fdatasync", os.fsync)

_FLAGS: dict[str, int] = {
    "r": os.O_RDONLY | os.O_NONBLOCK,  # a FIFO is refused, not waited for
    "w": os.O_RDWR,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "a": os.O_RDWR | os.O_CREAT,
}

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE

# (device, inode) of files and directories whose fsync failed -> why.
_Broken = dict[tuple[int, int], str]


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's fallocate, which Python does not offer: `os.posix_fallocate` would change the file's size."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    import ctypes

    try:
        call = ctypes.CDLL(None).fallocate
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


class RealFile(OpenFile):
    """A descriptor and its path; see ``contract.File``."""

    __slots__ = ("__weakref__", "_broken", "_descriptor", "_sync_lock", "fd", "path")

    def __init__(self, path: str, descriptor: Descriptor, broken: _Broken) -> None:
        self.path = path
        self._descriptor = descriptor
        self.fd = descriptor.fd
        """-1 once the file is closed."""
        self._broken = broken
        self._sync_lock = threading.Lock()

    def pread(self, size: int, offset: int) -> bytes:
        try:
            data = _pread(self.fd, size, offset)
            if len(data) == size:
                return data
            # Short: the end of the file, or more than the kernel moves in one call (2 GiB).
            while data and (more := _pread(self.fd, size - len(data), offset + len(data))):
                data += more
                if len(data) == size:
                    break
            return data
        except OSError as error:
            raise self._error(error, "read") from error

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        view = memoryview(buffer).cast("B")
        done = 0
        try:
            while done < len(view):
                count = os.preadv(self.fd, [view[done:]], offset + done)
                if count == 0:
                    break
                done += count
            return done
        except OSError as error:
            raise self._error(error, "read") from error

    def pwrite(self, data: Buffer, offset: int) -> None:
        try:
            written = _pwrite(self.fd, data, offset)
            if written != len(data):
                view = memoryview(data).cast("B")
                while written < len(view):
                    written += _pwrite(self.fd, view[written:], offset + written)
        except OSError as error:
            raise self._error(error, "write") from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise self._error(error, "truncate") from error

    def reserve(self, offset: int, size: int) -> bool:
        call = _fallocate()
        return call is not None and bool(call(self.fd, _KEEP_SIZE, offset, size) == 0)

    def sync(self) -> None:
        # One at a time: the kernel tells a failure once per descriptor, so of two threads syncing at the
        # same moment one would be told that all is well.
        with self._sync_lock:
            if self.fd < 0:
                raise self._error(os_error(errno.EBADF, self.path), "sync")
            if self._broken:
                _refuse_broken(self._broken, self.fd, self.path)
            try:
                _datasync(self.fd)
            except OSError as error:
                raise _mark_broken(self._broken, self.fd, self.path, error) from error

    def size(self) -> int:
        try:
            return os.fstat(self.fd).st_size
        except OSError as error:
            raise self._error(error, "stat") from error

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        self.fd = -1
        try:
            self._descriptor.close()
        except OSError as error:
            raise storage_error(error, self.path, "close") from error

    def _error(self, error: OSError, action: str) -> Exception:
        if self.fd < 0:
            return StorageError(f"{self.path}: cannot {action}: the file is closed")
        return storage_error(error, self.path, action)

    def __repr__(self) -> str:
        return f"RealFile({self.path!r}, fd={self.fd})"


class RealFileSystem(ComposedOperations):
    """The operating system's tree; see ``contract.FileSystem``."""

    def __init__(self) -> None:
        self._broken: _Broken = {}

    def absolute(self, path: str) -> str:
        # Taken by letter, `link/..` would be another directory than the one the system goes to.
        return os.path.realpath(path) if ".." in path.split("/") else os.path.abspath(path)

    def open(self, path: str, mode: Mode = "r") -> RealFile:
        file = RealFile(path, _call(path, "open", Descriptor, path, _FLAGS[mode]), self._broken)
        if mode == "r" and not stat_bits.S_ISREG(found := os.fstat(file.fd).st_mode):
            file.close()
            if stat_bits.S_ISDIR(found):
                raise storage_error(os_error(errno.EISDIR, path), path, "open")
            raise StorageError(f"{path}: cannot open: it is not a regular file; put the file back")
        return file

    def list_dir(self, path: str) -> list[str]:
        return sorted(_call(path, "list", os.listdir, path))

    def stat(self, path: str) -> FileStat:
        found = _call(path, "stat", os.stat, path)
        is_dir = stat_bits.S_ISDIR(found.st_mode)
        return FileStat(found.st_size, found.st_mtime_ns, is_dir, found.st_ino, found.st_ctime_ns)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        _call(path, "set the time of", os.utime, path, ns=(mtime_ns, mtime_ns))

    def make_dir(self, path: str) -> None:
        _call(path, "create directory", os.makedirs, path, exist_ok=True)

    def rename(self, src: str, dst: str) -> None:
        self._pardon(dst)
        _call(src, f"rename to {dst}", os.replace, src, dst)

    def link(self, src: str, dst: str) -> None:
        _call(src, f"link as {dst}", os.link, src, dst)

    def remove(self, path: str) -> None:
        self._pardon(path)
        _call(path, "remove", os.unlink, path)

    def remove_dir(self, path: str) -> None:
        self._pardon(path)
        _call(path, "remove directory", os.rmdir, path)

    def remove_tree(self, path: str) -> None:
        try:
            with os.scandir(path) as entries:
                found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            raise storage_error(error, path, "list") from error
        for child, is_dir in found:
            try:
                if is_dir:
                    self.remove_tree(child)
                else:
                    self.remove(child)
            except FileNotFoundError:
                continue  # another process was faster; the result is the same
        self.remove_dir(path)

    def sync_dir(self, path: str) -> None:
        directory = _call(path, "open directory", Descriptor, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if self._broken:
                _refuse_broken(self._broken, directory.fd, path)
            os.fsync(directory.fd)
        except OSError as error:
            raise _mark_broken(self._broken, directory.fd, path, error) from error
        finally:
            directory.close()

    def free_bytes(self, path: str) -> int:
        found = _call(path, "ask for free space", os.statvfs, path)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str, info: Mapping[str, object]) -> DirectoryLock:
        return DirectoryLock.acquire(path, info)

    def lock_holder(self, path: str) -> LockInfo | None:
        return holder(path)

    def _pardon(self, path: str) -> None:
        """Forget a failed fsync when its file goes: the inode number may come back as another file."""
        if self._broken:
            try:
                found = os.lstat(path)
            except OSError:
                return
            if found.st_nlink <= 1 or stat_bits.S_ISDIR(found.st_mode):
                self._broken.pop((found.st_dev, found.st_ino), None)


def _call(path: str, action: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the system; an OSError becomes the error of the contract, with ``path`` and ``action``."""
    try:
        return call(*args, **kwargs)
    except PLAIN:
        raise
    except OSError as error:
        raise storage_error(error, path, action) from error


def _refuse_broken(broken: _Broken, fd: int, path: str) -> None:
    found = os.fstat(fd)
    reason = broken.get((found.st_dev, found.st_ino))
    if reason is not None:
        raise SyncFailedError(f"{path}: not synced, an earlier sync failed: {reason}")


def _mark_broken(broken: _Broken, fd: int, path: str, error: OSError) -> SyncFailedError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    found = os.fstat(fd)
    broken[found.st_dev, found.st_ino] = reason
    return SyncFailedError(f"{path}: sync failed: {reason}")
