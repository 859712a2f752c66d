"""`stratalog.clones` in the root of a log directory: which copies were made of the store.

A copy holds records that a later `erase` cannot reach, so each is written down before it is begun. One that
fails and leaves nothing is taken out again:

    {"id": "…", "kind": "clone", "made_ms": 1794797623000, "target": "/b", "topics": ["orders"]} 7bff9b32

One line each: JSON, a blank, the CRC-32C of the JSON in hexadecimal. The file is written beside and renamed,
under a lock of its own (`.stratalog.clones.lock`): several programs may add to it while another holds the
store. A crash leaves the old file or the new one, perhaps with a copy in it that was never finished. A line
that fails its CRC is kept and reported as damaged.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from stratalog.errors import FormatError, StorageError, StoreLockedError
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import FileSystem, Lock, RealFileSystem
from stratalog.kernel import crc32c
from stratalog.store.paths import Paths, path_list

FILE_NAME = "stratalog.clones"
LOCK_NAME = ".stratalog.clones.lock"
BUILDING = ".building"
LOCK_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class CopyEntry:
    """One copy that was made, or begun: ``kind`` is clone, restore, export or graduate."""

    id: str
    kind: str
    target: str
    made_ms: int
    topics: tuple[str, ...] = ()
    exists: bool = False
    """True if the target exists now (not persisted)."""
    via: str = ""
    """The id of the copy that this is a copy of; empty for a copy of the store itself (not persisted)."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def remember(
    fs: FileSystem, roots: Sequence[str], kind: str, target: str, topics: Iterable[str], now_ms: int
) -> tuple[CopyEntry, str | None]:
    """Write a copy down before it is begun, in the first root that can be written to; durable on return.

    The second value is the reason if there is none: a source that is read-only.
    """
    entry = CopyEntry(id_to_text(new_id()), kind, target, now_ms, tuple(sorted({*topics})))
    why: str | None = None
    for root in roots:
        try:
            _add(fs, root, entry)
        except StorageError as error:
            why = str(error)
        else:
            return entry, None
    return entry, why


@contextmanager
def kept_if_made(fs: FileSystem, roots: Sequence[str], entry: CopyEntry) -> Iterator[None]:
    """Make a copy within: if that fails and nothing is left at its target, its entry goes too.

    An entry that cannot be taken out stays: `erase` then names a copy that does not exist.
    """
    try:
        yield
    except BaseException:
        with suppress(StorageError, StoreLockedError, OSError):
            if not _holds_something(fs, entry.target) and not fs.exists(entry.target + BUILDING):
                forget(fs, roots, entry)
        raise


def forget(fs: FileSystem, roots: Sequence[str], entry: CopyEntry) -> None:
    """Take out the entry of a copy of which nothing is left."""
    line = _line(entry)
    for root in roots:
        if fs.exists(f"{root}/{FILE_NAME}"):
            _change(fs, root, lambda known: known.replace(line, b""))


def _holds_something(fs: FileSystem, path: str) -> bool:
    return fs.exists(path) and (not fs.stat(path).is_dir or bool(fs.list_dir(path)))


def _add(fs: FileSystem, root: str, entry: CopyEntry) -> None:
    def add(known: bytes) -> bytes:
        return (known if known.endswith(b"\n") or not known else known + b"\n") + _line(entry)

    _change(fs, root, add)


def _change(fs: FileSystem, root: str, change: Callable[[bytes], bytes]) -> None:
    """Replace the file, under its lock, by what ``change`` makes of it."""
    lock = _lock(fs, f"{root}/{LOCK_NAME}")
    try:
        path = f"{root}/{FILE_NAME}"
        try:
            known = fs.read_file(path)
        except FileNotFoundError:
            known = b""
        changed = change(known)
        if changed != known:
            fs.write_atomic(path, changed)
    finally:
        lock.release()


def _lock(fs: FileSystem, path: str) -> Lock:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fs.lock(path, {"pid": os.getpid(), "started": int(time.time())})
        except StoreLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _line(entry: CopyEntry) -> bytes:
    fields = {name: value for name, value in entry.to_json().items() if name not in ("exists", "via")}
    text = json.dumps(fields, sort_keys=True).encode()
    return text + f" {crc32c(text):08x}\n".encode()


def _parse(data: bytes) -> tuple[list[CopyEntry], int]:
    """Return the copies in a file, and the number of lines that cannot be read."""
    found: list[CopyEntry] = []
    damaged = 0
    for line in filter(None, data.split(b"\n")):
        text, _, crc = line.rpartition(b" ")
        try:
            if f"{crc32c(text):08x}".encode() != crc:
                raise ValueError("CRC")
            fields = json.loads(text)
            found.append(
                CopyEntry(
                    str(fields["id"]),
                    str(fields["kind"]),
                    str(fields["target"]),
                    int(fields["made_ms"]),
                    tuple(str(topic) for topic in fields["topics"]),
                )
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged += 1
    return found, damaged


def clones(
    source: Paths, *, topic: str | None = None, fs: FileSystem | None = None
) -> tuple[list[CopyEntry], int]:
    """Return every copy known to have been made of a store, copies of copies included if they can be reached.

    The second value counts lines that cannot be read: copies whose names are lost.
    """
    fs = fs or RealFileSystem()
    found: list[CopyEntry] = []
    seen: set[str] = set()
    damaged = 0
    waiting: list[tuple[str, str]] = [(path, "") for path in path_list(fs, source)]
    while waiting:
        root, via = waiting.pop(0)
        if root in seen:
            continue
        seen.add(root)
        try:
            entries, unread = _parse(fs.read_file(f"{root}/{FILE_NAME}"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (StorageError, FormatError):
            damaged += 1
            continue
        damaged += unread
        for entry in entries:
            if topic is None or topic in entry.topics:
                exists = fs.exists(entry.target) or fs.exists(entry.target + BUILDING)
                found.append(replace(entry, exists=exists, via=via))
                waiting.append((entry.target, entry.id))
    return found, damaged
