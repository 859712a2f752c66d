"""A filesystem that fails on request, around any other.

Faults are a list of rules, matched by operation and path, that let some calls through and fail the next ones
with an errno; the caller gets the error the real filesystem would raise for it. A failed sync never reaches
the filesystem inside, so over a :class:`~stratalog.fs.memory.MemoryFileSystem` the data in question is what a
power cut then loses, and it sticks: later syncs of that file fail too, as the contract has it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from stratalog.errors import InvalidArgumentError, SyncFailedError
from stratalog.fs.contract import (
    Buffer,
    ComposedOperations,
    File,
    FileStat,
    FileSystem,
    Lock,
    LockInfo,
    Mode,
    OpenFile,
    os_error,
    storage_error,
)

MUTATING = frozenset(
    {
        "create", "pwrite", "truncate", "sync", "make_dir", "rename", "link", "remove", "remove_dir",
        "remove_tree", "set_mtime_ns", "sync_dir", "lock",
    }
)  # fmt: skip
READING = frozenset({"open", "pread", "size", "list_dir", "stat", "free_bytes", "lock_holder", "reserve"})


@dataclass(frozen=True, slots=True)
class Fault:
    """Fail calls of ``operation`` whose path matches.

    ``operation``: a name of MUTATING or READING, "mutating" for any of the first, or "*". "create" is an
    ``open`` that makes a file. ``path``: a pattern where ``*`` matches anything, ``/`` too; a rename or link
    matches by either of its paths. The first ``after`` matching calls pass, then ``times`` fail (None: all).
    ``partial_bytes``: so much of a failing ``pwrite`` is written all the same.
    """

    operation: str = "*"
    path: str = "*"
    error: int = errno.EIO
    after: int = 0
    times: int | None = None
    partial_bytes: int = 0

    def __post_init__(self) -> None:
        if self.operation not in MUTATING | READING | {"mutating", "*"}:
            raise InvalidArgumentError(f"no operation is called {self.operation!r}")

    def matches(self, operation: str, paths: tuple[str, ...]) -> bool:
        """Return True if this rule is about such a call."""
        if self.operation not in ("*", operation) and not (
            self.operation == "mutating" and operation in MUTATING
        ):
            return False
        return any(fnmatchcase(path, self.path) for path in paths)


class FailingFile(OpenFile):
    """A file whose calls may fail; see ``contract.File``."""

    __slots__ = ("__weakref__", "_file", "_fs", "_inode", "path")

    def __init__(self, fs: FailingFileSystem, file: File, inode: int) -> None:
        self.path = file.path
        self._fs = fs
        self._file = file
        self._inode = inode

    def pread(self, size: int, offset: int) -> bytes:
        self._fs._call("pread", "read", self.path)
        return self._file.pread(size, offset)

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        self._fs._call("pread", "read", self.path)
        return self._file.pread_into(buffer, offset)

    def pwrite(self, data: Buffer, offset: int) -> None:
        fault = self._fs._next("pwrite", self.path)
        if fault is not None:
            if fault.partial_bytes:
                self._file.pwrite(memoryview(data)[: fault.partial_bytes], offset)
            raise _error(fault, "write", self.path)
        self._file.pwrite(data, offset)

    def truncate(self, size: int) -> None:
        self._fs._call("truncate", "truncate", self.path)
        self._file.truncate(size)

    def reserve(self, offset: int, size: int) -> bool:
        return self._fs._next("reserve", self.path) is None and self._file.reserve(offset, size)

    def sync(self) -> None:
        self._fs._sync_call("sync", self.path, self._inode)
        self._file.sync()

    def size(self) -> int:
        self._fs._call("size", "stat", self.path)
        return self._file.size()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class FailingFileSystem(ComposedOperations):
    """``inner`` with faults; rules may be added and taken away while it is in use."""

    def __init__(self, inner: FileSystem, plan: Iterable[Fault] = ()) -> None:
        self.inner = inner
        self.calls: list[str] = []  # every call that could fail, "operation path", in order
        self.failed: list[str] = []  # those that did
        self.before_call: Callable[[str], None] | None = None
        """Called before each of them, "operation path", with no lock of a filesystem held: it may wait."""
        self._mutex = threading.Lock()
        self._rules: list[tuple[Fault, list[int]]] = []  # with the number of matching calls so far
        self._unsyncable: dict[int, str] = {}  # inode -> the reason its first sync failed
        for fault in plan:
            self.inject(fault)

    def inject(self, fault: Fault) -> None:
        """Add a rule; it counts from now. Of several that apply the first added decides."""
        with self._mutex:
            self._rules.append((fault, [0]))

    def heal(self) -> None:
        """Take every rule away, and forget failed syncs, as after a repair and a restart."""
        with self._mutex:
            self._rules.clear()
            self._unsyncable.clear()

    def absolute(self, path: str) -> str:
        return self.inner.absolute(path)

    def open(self, path: str, mode: Mode = "r") -> FailingFile:
        creates = mode == "x" or (mode == "a" and not self.inner.exists(path))
        self._call("create" if creates else "open", "open", path)
        file = self.inner.open(path, mode)
        try:
            inode = self.inner.stat(path).inode
        except FileNotFoundError:  # renamed or removed by another thread meanwhile
            inode = -1
        return FailingFile(self, file, inode)

    def list_dir(self, path: str) -> list[str]:
        self._call("list_dir", "list", path)
        return self.inner.list_dir(path)

    def stat(self, path: str) -> FileStat:
        self._call("stat", "stat", path)
        return self.inner.stat(path)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        self._call("set_mtime_ns", "set the time of", path)
        self.inner.set_mtime_ns(path, mtime_ns)

    def make_dir(self, path: str) -> None:
        self._call("make_dir", "create directory", path)
        self.inner.make_dir(path)

    def rename(self, src: str, dst: str) -> None:
        self._call("rename", f"rename to {dst}", src, dst)
        self.inner.rename(src, dst)

    def link(self, src: str, dst: str) -> None:
        self._call("link", f"link as {dst}", src, dst)
        self.inner.link(src, dst)

    def remove(self, path: str) -> None:
        self._call("remove", "remove", path)
        self.inner.remove(path)

    def remove_dir(self, path: str) -> None:
        self._call("remove_dir", "remove directory", path)
        self.inner.remove_dir(path)

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", "remove", path)
        self.inner.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self._sync_call("sync_dir", path, self.inner.stat(path).inode)
        self.inner.sync_dir(path)

    def free_bytes(self, path: str) -> int:
        self._call("free_bytes", "ask for free space", path)
        return self.inner.free_bytes(path)

    def lock(self, path: str, info: Mapping[str, object]) -> Lock:
        self._call("lock", "lock", path)
        return self.inner.lock(path, info)

    def lock_holder(self, path: str) -> LockInfo | None:
        self._call("lock_holder", "ask for the lock", path)
        return self.inner.lock_holder(path)

    def _next(self, operation: str, *paths: str) -> Fault | None:
        """Note the call; the rule that fails it, if one does."""
        call = f"{operation} {' -> '.join(paths)}"
        if self.before_call is not None:
            self.before_call(call)
        decided: Fault | None = None
        with self._mutex:
            self.calls.append(call)
            for fault, seen in self._rules:
                if fault.matches(operation, paths):
                    seen[0] += 1
                    past = seen[0] - fault.after
                    if decided is None and past > 0 and (fault.times is None or past <= fault.times):
                        decided = fault
            if decided is not None:
                self.failed.append(call)
        return decided

    def _call(self, operation: str, action: str, *paths: str) -> None:
        fault = self._next(operation, *paths)
        if fault is not None:
            raise _error(fault, action, *paths)

    def _sync_call(self, operation: str, path: str, inode: int) -> None:
        fault = self._next(operation, path)
        earlier = self._unsyncable.get(inode)
        if earlier is not None:
            raise SyncFailedError(f"{path}: not synced, an earlier sync failed: {earlier}")
        if fault is not None:
            reason = os.strerror(fault.error)
            if inode >= 0:
                self._unsyncable[inode] = reason
            raise SyncFailedError(f"{path}: sync failed: {reason}") from os_error(fault.error, path)


def _error(fault: Fault, action: str, *paths: str) -> Exception:
    cause = os_error(fault.error, paths[0])
    error = storage_error(cause, paths[0], action)
    if error is not cause:
        error.__cause__ = cause
    return error
