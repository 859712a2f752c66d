"""A filesystem in memory that can be crashed at any call: the ground the crash suite stands on.

It keeps what is durable apart from what is only visible (``nodes`` holds that model), so it can say what the
disk would hold had the power failed now. The ways to use it::

    fs.crash_at(17)                      # the 17th mutating call from now raises SimulatedCrash, undone
    after = fs.survivor("reorder", rng)  # the disk the machine boots with
    fs.before_call = look                # or look at every crash point in one run: look(call) before each

Once crashed, every call of the filesystem and its files raises SimulatedCrash, on every thread, so that
background work stops as it would; only ``close`` and ``release``, which touch no disk, pass in silence.
"""

from __future__ import annotations

import errno
import functools
import itertools
import json
import posixpath
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from stratalog.errors import InvalidArgumentError, StorageError
from stratalog.fs.composed import ComposedOperations
from stratalog.fs.contract import Buffer, FileStat, LockInfo, Mode, os_error, storage_error
from stratalog.fs.lock import locked_error
from stratalog.fs.nodes import (
    Directory,
    Inode,
    NameChange,
    Node,
    SurvivorMode,
    surviving_tree,
    sync_directory,
)

if TYPE_CHECKING:
    import random


class SimulatedCrash(BaseException):
    """The machine stopped here. Not an Exception, so that no error handling of the program survives it."""


class MemoryFile:
    """An open file in memory; see ``contract.File``."""

    __slots__ = ("__weakref__", "_fs", "_node", "_open", "_writable", "path")

    def __init__(self, fs: MemoryFileSystem, node: Inode, path: str, writable: bool) -> None:
        self.path = path
        self._fs = fs
        self._node = node
        self._writable = writable
        self._open = True

    def pread(self, size: int, offset: int) -> bytes:
        with self._fs._mutex:
            self._check("read", offset if size >= 0 else size)
            return bytes(self._node.data[offset : offset + size])

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self.pread(len(view), offset)
        view[: len(data)] = data
        return len(data)

    def pwrite(self, data: Buffer, offset: int) -> None:
        fs = self._fs
        with fs._mutex:
            self._check_writable("write", offset)
            fs._step("pwrite", self.path, (self._node, data, offset))
            self._node.write(data, offset)
            self._node.mtime_ns = fs._clock()

    def truncate(self, size: int) -> None:
        with self._fs._mutex:
            self._check_writable("truncate", size)
            self._fs._step("truncate", self.path)
            self._node.truncate(size)
            self._node.mtime_ns = self._fs._clock()

    def reserve(self, offset: int, size: int) -> bool:
        return False

    def sync(self) -> None:
        with self._fs._mutex:
            self._check("sync")
            self._fs._step("sync", self.path)
            self._node.sync()

    def size(self) -> int:
        with self._fs._mutex:
            self._check("stat")
            return len(self._node.data)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._open = False

    def _check(self, action: str, position: int = 0) -> None:
        self._fs._check()
        if not self._open:
            raise StorageError(f"{self.path}: cannot {action}: the file is closed")
        if position < 0:
            raise _refusal(errno.EINVAL, self.path, action)

    def _check_writable(self, action: str, position: int) -> None:
        self._check(action, position)
        if not self._writable:
            # As the system has it: a wrong descriptor for a write, a wrong argument for a truncation.
            code = errno.EBADF if action == "write" else errno.EINVAL
            raise _refusal(code, self.path, action)

    def __enter__(self) -> MemoryFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MemoryFile({self.path!r})"


class MemoryLock:
    """A lock in a memory filesystem's own table; a crash frees it."""

    def __init__(self, fs: MemoryFileSystem, node: Inode, path: str) -> None:
        self.path = path
        self._fs = fs
        self._node = node

    def update(self, info: Mapping[str, object]) -> None:
        with self._fs._mutex:
            if self._fs._locks.get(self._node) is self:
                line = json.dumps(dict(info), separators=(",", ":")).encode() + b"\n"
                with MemoryFile(self._fs, self._node, self.path, True) as file:
                    file.pwrite(line, 0)
                    file.truncate(len(line))

    def release(self) -> None:
        fs = self._fs
        with fs._mutex:
            if not fs.crashed and fs._locks.get(self._node) is self:
                MemoryFile(fs, self._node, self.path, True).truncate(0)
                del fs._locks[self._node]


class MemoryFileSystem(ComposedOperations):
    """A tree in memory with a power switch. Paths are taken from one root, relative ones too."""

    def __init__(self, *, clock: Callable[[], int] = time.time_ns, capacity_bytes: int = 2**40) -> None:
        # Every mutating call, "operation path", in order; after a crash the last is the one it happened at.
        self.calls: list[str] = []
        self.before_call: Callable[[str], None] | None = None
        self.capacity_bytes = capacity_bytes  # for free_bytes only: to run out of room, use the failing one
        self.crashed = False
        self._clock = clock
        self._mutex = threading.RLock()
        self._numbers = itertools.count(1)
        self._root = Directory(next(self._numbers), clock())
        self._name_changes: list[NameChange] = []
        self._locks: dict[Inode, MemoryLock] = {}
        self._calls_left = 0  # until the crash; 0: none planned
        self._half = False

    # -- crashing

    def crash_at(self, n: int, *, half: bool = False) -> None:
        """Let the n-th mutating call from now (1: the next) raise SimulatedCrash instead of taking effect.

        With ``half``, when that call is a ``pwrite``, the first half of its bytes is written before.
        """
        if n < 1:
            raise InvalidArgumentError(f"calls are counted from 1, not {n}")
        with self._mutex:
            self._calls_left, self._half = n, half

    def crash(self) -> None:
        """Stop now, between two calls."""
        with self._mutex:
            self.crashed = True

    def survivor(self, mode: SurvivorMode, rng: random.Random) -> MemoryFileSystem:
        """What is there if the process is killed, or (other modes) the power fails, at this moment.

        ``kill`` keeps everything visible, and also what of it is not yet durable, so that a power cut may
        follow. ``drop``, ``torn`` and ``reorder`` are power cuts (see ``nodes``); all that survives one is
        durable. The new filesystem is independent, holds no locks and plans no crash; this one may be asked
        again, and goes on if it was not crashed.
        """
        after = MemoryFileSystem(clock=self._clock, capacity_bytes=self.capacity_bytes)
        with self._mutex:
            after._root, after._name_changes = surviving_tree(self._root, self._name_changes, mode, rng)
            after._numbers = itertools.count(next(self._numbers))
        return after

    def _check(self) -> None:
        if self.crashed:
            raise SimulatedCrash("the filesystem has crashed")

    def _step(self, operation: str, path: str, write: tuple[Inode, Buffer, int] | None = None) -> None:
        """Count a mutating call that is about to take effect; the place where crashes happen."""
        call = f"{operation} {path}"
        if self.before_call is not None:
            self.before_call(call)
            self._check()
        self.calls.append(call)
        if self._calls_left:
            self._calls_left -= 1
            if self._calls_left == 0:
                self.crashed = True
                if self._half and write is not None:
                    node, data, offset = write
                    node.write(memoryview(data)[: len(data) // 2], offset)
                raise SimulatedCrash(f"at call {len(self.calls)}: {call}")

    # -- files

    def absolute(self, path: str) -> str:
        return path.rstrip("/") or "/"

    def open(self, path: str, mode: Mode = "r") -> MemoryFile:
        with self._mutex:
            parent, name = self._parent(path)
            node = parent.entries.get(name) if name else parent
            if node is not None and mode == "x":
                raise os_error(errno.EEXIST, path)
            if isinstance(node, Directory):
                raise _refusal(errno.EISDIR, path, "open")
            if node is None:
                if mode in ("r", "w"):
                    raise os_error(errno.ENOENT, path)
                self._step("create", path)
                node = Inode(next(self._numbers), self._clock())
                self._set_name(parent, name, node)
            return MemoryFile(self, node, path, mode != "r")

    def list_dir(self, path: str) -> list[str]:
        with self._mutex:
            return sorted(self._directory(path).entries)

    def stat(self, path: str) -> FileStat:
        with self._mutex:
            node = self._find(path)
            if isinstance(node, Directory):
                return FileStat(0, node.mtime_ns, True, node.number)
            return FileStat(len(node.data), node.mtime_ns, False, node.number)

    def set_mtime_ns(self, path: str, mtime_ns: int) -> None:
        with self._mutex:
            node = self._find(path)
            self._step("set_mtime_ns", path)
            node.mtime_ns = mtime_ns

    def make_dir(self, path: str) -> None:
        with self._mutex:
            self._check()
            node = self._root
            parts = _split(path)
            for depth, name in enumerate(parts):
                child = node.entries.get(name)
                if child is None:
                    self._step("make_dir", "/" + "/".join(parts[: depth + 1]))
                    child = Directory(next(self._numbers), self._clock())
                    self._set_name(node, name, child)
                elif isinstance(child, Inode):
                    last = depth == len(parts) - 1
                    raise os_error(errno.EEXIST if last else errno.ENOTDIR, path)
                node = child

    def rename(self, src: str, dst: str) -> None:
        with self._mutex:
            from_dir, from_name = self._parent(src)
            to_dir, to_name = self._parent(dst)
            node = from_dir.entries.get(from_name)
            if node is None:
                raise os_error(errno.ENOENT, src)
            target = to_dir.entries.get(to_name) if to_name else to_dir
            if target is node:
                return
            emptied = None
            if isinstance(node, Directory) and _split(dst)[: len(_split(src))] == _split(src):
                raise _refusal(errno.EINVAL, src, f"rename to {dst}")
            if isinstance(target, Directory):
                if isinstance(node, Inode):
                    raise _refusal(errno.EISDIR, src, f"rename to {dst}")
                if target.entries:
                    raise _refusal(errno.ENOTEMPTY, src, f"rename to {dst}")
                emptied = target
            elif isinstance(node, Directory) and target is not None:
                raise os_error(errno.ENOTDIR, dst)
            self._step("rename", f"{src} -> {dst}")
            del from_dir.entries[from_name]
            to_dir.entries[to_name] = node
            from_dir.mtime_ns = to_dir.mtime_ns = self._clock()
            self._name_changes.append(NameChange((from_dir, from_name), (to_dir, to_name), node, emptied))

    def link(self, src: str, dst: str) -> None:
        with self._mutex:
            node = self._find(src)
            parent, name = self._parent(dst)
            if not name or name in parent.entries:
                raise os_error(errno.EEXIST, dst)
            if isinstance(node, Directory):
                raise _refusal(errno.EPERM, src, f"link as {dst}")
            self._step("link", f"{src} -> {dst}")
            self._set_name(parent, name, node)

    def remove(self, path: str) -> None:
        with self._mutex:
            if isinstance(self._find(path), Directory):
                raise _refusal(errno.EISDIR, path, "remove")
            self._step("remove", path)
            self._drop_name(*self._parent(path), None)

    def remove_dir(self, path: str) -> None:
        with self._mutex:
            node = self._directory(path)
            if node.entries or node is self._root:
                raise _refusal(errno.ENOTEMPTY if node.entries else errno.EBUSY, path, "remove directory")
            self._step("remove_dir", path)
            self._drop_name(*self._parent(path), node)

    def remove_tree(self, path: str) -> None:
        with self._mutex:
            for name, child in list(self._directory(path).entries.items()):
                inside = posixpath.join(path, name)
                if isinstance(child, Directory):
                    self.remove_tree(inside)
                else:
                    self.remove(inside)
            self.remove_dir(path)

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            node = self._directory(path)
            self._step("sync_dir", path)
            self._name_changes = sync_directory(node, self._name_changes)

    def free_bytes(self, path: str) -> int:
        def used(node: Node) -> int:
            if isinstance(node, Inode):
                return len(node.data)
            return sum(used(child) for child in node.entries.values())

        with self._mutex:
            self._find(path)
            return max(0, self.capacity_bytes - used(self._root))

    # -- locks

    def lock(self, path: str, info: Mapping[str, object]) -> MemoryLock:
        with self._mutex:
            file = self.open(path, "a")
            if file._node in self._locks:
                raise locked_error(path, self.lock_holder(path) or {})
            lock = self._locks[file._node] = MemoryLock(self, file._node, path)
            lock.update(info)
            return lock

    def lock_holder(self, path: str) -> LockInfo | None:
        with self._mutex:
            try:
                node = self._find(path)
            except FileNotFoundError:
                return None
            if isinstance(node, Directory) or node not in self._locks:
                return None
            info = json.loads(bytes(node.data).partition(b"\n")[0])
            return info if isinstance(info, dict) else {}

    # -- names

    def _set_name(self, parent: Directory, name: str, node: Node) -> None:
        parent.entries[name] = node
        parent.mtime_ns = self._clock()
        self._name_changes.append(NameChange(None, (parent, name), node))

    def _drop_name(self, parent: Directory, name: str, emptied: Directory | None) -> None:
        del parent.entries[name]
        parent.mtime_ns = self._clock()
        self._name_changes.append(NameChange((parent, name), None, None, emptied))

    def _find(self, path: str) -> Node:
        self._check()
        return self._walk(_split(path), path)

    def _walk(self, parts: tuple[str, ...], path: str) -> Node:
        node: Node = self._root
        for name in parts:
            if isinstance(node, Inode):
                raise os_error(errno.ENOTDIR, path)
            child = node.entries.get(name)
            if child is None:
                raise os_error(errno.ENOENT, path)
            node = child
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if isinstance(node, Inode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        """The directory that holds, or would hold, ``path``, and the name in it ("" for the root itself)."""
        self._check()
        parts = _split(path)
        node = self._walk(parts[:-1], path)
        if isinstance(node, Inode):
            raise os_error(errno.ENOTDIR, path)
        return node, parts[-1] if parts else ""


@functools.lru_cache(maxsize=4096)
def _split(path: str) -> tuple[str, ...]:
    if not path:
        raise os_error(errno.ENOENT, path)
    return tuple(part for part in posixpath.normpath("/" + path).split("/") if part)


def _refusal(code: int, path: str, action: str) -> Exception:
    """What the real filesystem raises for this errno, with the same chain behind it."""
    cause = os_error(code, path)
    error = storage_error(cause, path, action)
    error.__cause__ = cause if error is not cause else None
    return error
