"""A filesystem in memory that can be crashed at any call: the crash tests run on it.

It keeps track of what the disk would hold if the power failed now. Ways to use it::

    fs.crash_at(17)                      # the 17th mutating call from now raises SimulatedCrash, undone
    after = fs.survivor("reorder", rng)  # the disk the machine boots with
    fs.before_call = look                # or look at every crash point in one run: look(call) before each

Once crashed, every call of the filesystem and its files raises SimulatedCrash, on every thread, so that
background work stops as it would; only ``close`` and ``release``, which touch no disk, pass in silence.

A file has two contents: ``data``, which every reader sees, and ``durable``, which a power cut cannot take,
with the list of writes between them. A directory has two tables of names in the same way; the changes between
them are :class:`NameChange` values in one list for the whole filesystem, because a rename touches two
directories and must not happen by halves.

What a power cut may leave, by mode:

====== ==============================================================================================
drop   nothing that was not synced
torn   order is kept, as on ext4 in ordered mode: of each file the first so many writes, the last of
       them cut at a sector; of all changes of names the first so many
reorder anything POSIX allows: of each 512- or 4096-byte piece of a file any of the contents it has had
       since the last sync, each piece for itself; any size the file has had or passed through, with
       zeros where the data is missing; any set of name changes in which none stands without those it
       builds on (an earlier change of the same name, the emptying of a directory that was removed)
====== ==============================================================================================

Buffers are shared between a filesystem and its survivors and copied only when one of them writes.
"""

from __future__ import annotations

import errno
import functools
import itertools
import json
import posixpath
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from stratalog.errors import InvalidArgumentError, StorageError
from stratalog.fs.contract import (
    Buffer,
    ComposedOperations,
    FileStat,
    LockInfo,
    Mode,
    OpenFile,
    os_error,
    storage_error,
)
from stratalog.fs.lock import locked_error

if TYPE_CHECKING:
    import random

SECTOR_BYTES = 512
PAGE_BYTES = 4096

SurvivorMode: TypeAlias = Literal["kill", "drop", "torn", "reorder"]

# A write at an offset, or (None) a truncation to it.
_Change = tuple[int, bytes | None]

# Chances that a piece is as new as it can be: extremes find other bugs than a fair coin.
_KEEP_CHANCES = (0.1, 0.5, 0.9)


class Inode:
    """A regular file."""

    __slots__ = ("_data_shared", "_durable_shared", "data", "durable", "mtime_ns", "number", "pending")

    def __init__(self, number: int, mtime_ns: int) -> None:
        self.number = number
        self.mtime_ns = mtime_ns
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[_Change] = []  # what leads from durable to data, in order
        self._data_shared = False
        self._durable_shared = False

    def write(self, data: Buffer, offset: int) -> None:
        copy = bytes(data)
        if copy:
            self._change(offset, copy)

    def truncate(self, size: int) -> None:
        self._change(size, None)

    def _change(self, offset: int, data: bytes | None) -> None:
        if self._data_shared:
            self.data = bytearray(self.data)
            self._data_shared = False
        _apply(self.data, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        if self.pending:
            if self._durable_shared:
                self.durable = bytearray(self.durable)
                self._durable_shared = False
            for offset, data in self.pending:
                _apply(self.durable, offset, data)
            self.pending.clear()

    def survivor(self, mode: SurvivorMode, rng: random.Random) -> Inode:
        """Return the file after a kill (the page cache stays) or a power cut."""
        after = Inode(self.number, self.mtime_ns)
        if mode == "kill":
            after.data, after.durable, after.pending = self.data, self.durable, list(self.pending)
            self._data_shared = self._durable_shared = True
        elif mode == "drop" or not self.pending:
            after.data = after.durable = self.durable
            self._durable_shared = True
        else:
            choose = _torn if mode == "torn" else _reordered
            after.data = after.durable = choose(self.durable, self.pending, rng)
        after._data_shared = after._durable_shared = True
        return after


class Directory:
    """A table of names, as seen and as durable."""

    __slots__ = ("durable", "entries", "mtime_ns", "number")

    def __init__(self, number: int, mtime_ns: int) -> None:
        self.number = number
        self.mtime_ns = mtime_ns
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node: TypeAlias = Inode | Directory
_Name = tuple[Directory, str]


class NameChange(NamedTuple):
    """One step that changes names: a removal, an addition, or (a rename) both at once."""

    removed: _Name | None
    added: _Name | None
    node: Node | None  # what `added` names
    emptied: Directory | None = None  # a directory that goes, and so must have lost its names before

    def names(self) -> tuple[_Name, ...]:
        return tuple(name for name in (self.removed, self.added) if name is not None)

    def apply(self, tables: dict[Directory, dict[str, Node]]) -> None:
        """Carry the step out on copies of the durable tables, made in ``tables`` as needed."""
        for directory, _ in self.names():
            if directory not in tables:
                tables[directory] = dict(directory.durable)
        if self.removed is not None:
            directory, name = self.removed
            tables[directory].pop(name, None)
        if self.added is not None and self.node is not None:
            directory, name = self.added
            tables[directory][name] = self.node


def with_foundations(changes: Sequence[NameChange], wanted: Iterable[bool]) -> list[bool]:
    """``wanted`` plus every earlier change that a wanted one builds on."""
    chosen = list(wanted)
    names: set[_Name] = set()
    emptied: set[Directory] = set()
    for i in range(len(changes) - 1, -1, -1):
        touched = changes[i].names()
        if not chosen[i]:
            chosen[i] = any(name in names or name[0] in emptied for name in touched)
        if chosen[i]:
            names.update(touched)
            gone = changes[i].emptied
            if gone is not None:
                emptied.add(gone)
    return chosen


def sync_directory(directory: Directory, changes: list[NameChange]) -> list[NameChange]:
    """Make every change in ``directory`` durable; the changes that are still pending."""
    wanted = [any(name[0] is directory for name in change.names()) for change in changes]
    chosen = with_foundations(changes, wanted)
    tables: dict[Directory, dict[str, Node]] = {}
    rest: list[NameChange] = []
    for change, now in zip(changes, chosen, strict=True):
        if now:
            change.apply(tables)
        else:
            rest.append(change)
    for changed, table in tables.items():
        changed.durable = table
    return rest


def surviving_tree(
    root: Directory, changes: list[NameChange], mode: SurvivorMode, rng: random.Random
) -> tuple[Directory, list[NameChange]]:
    """Return the tree after a kill or a power cut, without shared nodes, and its pending name changes."""
    copies: dict[Node, Node] = {}
    if mode == "kill":
        return _killed_tree(root, changes, copies, rng)
    tables: dict[Directory, dict[str, Node]] = {}
    for change, kept in zip(changes, _kept_changes(changes, mode, rng), strict=True):
        if kept:
            change.apply(tables)

    def copy(node: Node) -> Node:
        known = copies.get(node)
        if known is not None:
            return known
        if isinstance(node, Inode):
            copies[node] = file = node.survivor(mode, rng)
            return file
        copies[node] = directory = Directory(node.number, node.mtime_ns)
        directory.durable = {name: copy(child) for name, child in tables.get(node, node.durable).items()}
        directory.entries = dict(directory.durable)
        return directory

    after = copy(root)
    assert isinstance(after, Directory)
    return after, []


def _killed_tree(
    root: Directory, changes: list[NameChange], copies: dict[Node, Node], rng: random.Random
) -> tuple[Directory, list[NameChange]]:
    """Copy everything as it is, durable or not: a power cut may still follow."""

    def copy_directory(node: Directory) -> Directory:
        known = copies.get(node)
        if known is not None:
            assert isinstance(known, Directory)
            return known
        copies[node] = directory = Directory(node.number, node.mtime_ns)
        directory.entries = {name: copy(child) for name, child in node.entries.items()}
        directory.durable = {name: copy(child) for name, child in node.durable.items()}
        return directory

    def copy(node: Node) -> Node:
        if isinstance(node, Directory):
            return copy_directory(node)
        known = copies.get(node)
        if known is None:
            copies[node] = known = node.survivor("kill", rng)
        return known

    def copy_name(name: _Name | None) -> _Name | None:
        return None if name is None else (copy_directory(name[0]), name[1])

    after = copy_directory(root)
    pending = [
        NameChange(
            copy_name(change.removed),
            copy_name(change.added),
            None if change.node is None else copy(change.node),
            None if change.emptied is None else copy_directory(change.emptied),
        )
        for change in changes
    ]
    return after, pending


def _kept_changes(changes: list[NameChange], mode: SurvivorMode, rng: random.Random) -> list[bool]:
    if mode == "drop" or not changes:
        return [False] * len(changes)
    if mode == "torn":
        cut = rng.randint(0, len(changes))
        return [i < cut for i in range(len(changes))]
    chance = rng.choice(_KEEP_CHANCES)
    return with_foundations(changes, (rng.random() < chance for _ in changes))


def _apply(buffer: bytearray, offset: int, data: bytes | None) -> None:
    size = len(buffer)
    if data is None and offset < size:
        del buffer[offset:]
        return
    if offset > size:
        buffer.extend(bytes(offset - size))
    if data is not None:
        buffer[offset : offset + len(data)] = data


def _torn(durable: bytearray, pending: list[_Change], rng: random.Random) -> bytearray:
    after = bytearray(durable)
    cut = rng.randint(0, len(pending))
    for offset, data in pending[:cut]:
        _apply(after, offset, data)
    if cut < len(pending):
        offset, data = pending[cut]
        if data is not None:
            first = offset // SECTOR_BYTES + 1
            last = (offset + len(data) - 1) // SECTOR_BYTES
            end = rng.randint(first - 1, last) * SECTOR_BYTES  # the first choice: not a sector of it
            if end > offset:
                _apply(after, offset, data[: end - offset])
    return after


def _reordered(durable: bytearray, pending: list[_Change], rng: random.Random) -> bytearray:
    count = len(pending)
    # sizes[k] is the size after the first k changes; a version of a piece is also named by such a k.
    sizes = [len(durable)]
    for offset, data in pending:
        sizes.append(offset if data is None else max(sizes[-1], offset + len(data)))
    at = rng.randint(0, count)
    size = sizes[at]
    if at < count and sizes[at + 1] > size and rng.random() < 0.5:
        size = rng.randint(size, sizes[at + 1])
    # A cut moves blocks, not bytes: what lies behind a durable one is gone, what lies behind a lost one
    # is still there. So it bounds the versions of the pieces it touches.
    cuts = [(i, offset) for i, (offset, data) in enumerate(pending) if data is None and offset < sizes[i]]

    after = bytearray(durable)
    for i, offset in cuts:
        if i < at:
            del after[offset:]
    _apply(after, size, None)

    piece_bytes = rng.choice((SECTOR_BYTES, PAGE_BYTES))
    chance = rng.choice(_KEEP_CHANCES)
    touching: dict[int, list[int]] = {}
    for i, (offset, data) in enumerate(pending):
        if data is not None:
            for piece in range(offset // piece_bytes, (offset + len(data) - 1) // piece_bytes + 1):
                touching.setdefault(piece, []).append(i)
    for piece, writes in touching.items():
        start = piece * piece_bytes
        if start >= size:
            continue
        end = start + piece_bytes
        oldest, newest = 0, count
        for i, offset in cuts:
            if offset < end:
                if i < at:
                    oldest = i + 1
                else:
                    newest = i
                    break
        if rng.random() < chance:
            version = newest
        else:
            version = rng.choice([oldest] + [i + 1 for i in writes if oldest <= i < newest])
        content = _piece(durable, pending, cuts, writes, version, start, end)
        after[start : min(end, size)] = content[: size - start]
    return after


def _piece(
    durable: bytearray,
    pending: list[_Change],
    cuts: list[tuple[int, int]],
    writes: list[int],
    version: int,
    start: int,
    end: int,
) -> bytearray:
    """Bytes ``start`` to ``end`` as they were after the first ``version`` changes, zeros past the end."""
    content = bytearray(durable[start:end])
    content.extend(bytes(end - start - len(content)))
    steps = sorted(writes + [i for i, _ in cuts]) if cuts else writes
    for i in steps:
        if i >= version:
            break
        offset, data = pending[i]
        if data is None:
            keep = max(0, offset - start)
            content[keep:] = bytes(len(content[keep:]))
        else:
            low, high = max(offset, start), min(offset + len(data), end)
            content[low - start : high - start] = data[low - offset : high - offset]
    return content


# -- the filesystem


class SimulatedCrash(BaseException):
    """The machine stopped here. Not an Exception, so that no error handling of the program survives it."""


class MemoryFile(OpenFile):
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
        """Return the files as a kill of the process, or (other modes) a power cut at this moment leaves them.

        ``kill`` keeps everything visible, and also what of it is not yet durable, so that a power cut may
        follow. ``drop``, ``torn`` and ``reorder`` are power cuts (see above); all that survives one is
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
        """Return the directory of ``path`` and the name in it ("" for the root); neither need exist."""
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
    """Return what the real filesystem raises for this errno, with the same chain behind it."""
    cause = os_error(code, path)
    error = storage_error(cause, path, action)
    error.__cause__ = cause if error is not cause else None
    return error
