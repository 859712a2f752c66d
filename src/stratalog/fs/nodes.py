"""What a disk holds and what only the page cache holds, kept apart: the model under ``memory``.

A file is two contents: ``data``, which every reader sees, and ``durable``, which a power cut cannot take,
with the list of writes between them. A directory is two tables of names in the same way; the changes between
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

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from stratalog.fs.contract import Buffer

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
        """The file after the process died (kill: the page cache stays as it is) or the power failed."""
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
    """The tree after a kill or a power cut, sharing no node with this one, and its pending name changes."""
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
    """Everything as it is, durable or not: a power cut may still follow."""

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
