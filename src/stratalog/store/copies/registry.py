"""`stratalog.clones` in the root of a log directory: which copies were made of what is in it.

A copy holds records that a later `erase` cannot reach, so each is written down before it is begun:

    {"id": "…", "kind": "clone", "made_ms": 1794797623000, "target": "/b", "topics": ["orders"]} 7bff9b32

One line each: JSON, a blank, the CRC-32C of the JSON in hexadecimal. The file is written beside and
renamed, under a lock of its own (`.stratalog.clones.lock`), so that several programs may add to it while
another holds the store; a crash leaves the old one or the new one, perhaps with a copy in it that was
never finished. A line that fails its CRC is kept and told as damaged.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stratalog.errors import FormatError, StorageError, StoreLockedError
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
    """Whether anything is at the target now; not kept in the file."""
    via: str = ""
    """The copy that this is a copy of, when it is not one of the store itself; not kept in the file."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def register(fs: FileSystem, root: str, entry: CopyEntry) -> None:
    """Write a copy down, durably, before it is begun."""
    lock = _lock(fs, f"{root}/{LOCK_NAME}")
    try:
        path = f"{root}/{FILE_NAME}"
        try:
            known = fs.read_file(path)
        except FileNotFoundError:
            known = b""
        if known and not known.endswith(b"\n"):
            known += b"\n"
        fs.write_atomic(path, known + _line(entry))
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
    text = json.dumps(
        {
            "id": entry.id,
            "kind": entry.kind,
            "made_ms": entry.made_ms,
            "target": entry.target,
            "topics": list(entry.topics),
        },
        sort_keys=True,
    ).encode()
    return text + f" {crc32c(text):08x}\n".encode()


def parse(data: bytes) -> tuple[list[CopyEntry], int]:
    """The copies in a file, and the number of lines that cannot be read."""
    found: list[CopyEntry] = []
    damaged = 0
    for line in data.split(b"\n"):
        if not line:
            continue
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
    """Every copy known to have been made of a store, copies of copies included where they can be reached.

    The second value counts lines that could not be read: copies that nobody can name any more.
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
            entries, unread = parse(fs.read_file(f"{root}/{FILE_NAME}"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (StorageError, FormatError):
            damaged += 1
            continue
        damaged += unread
        for entry in entries:
            if topic is not None and topic not in entry.topics:
                continue
            there = fs.exists(entry.target) or fs.exists(entry.target + BUILDING)
            found.append(
                CopyEntry(entry.id, entry.kind, entry.target, entry.made_ms, entry.topics, there, via)
            )
            waiting.append((entry.target, entry.id))
    return found, damaged


def remember(fs: FileSystem, roots: Sequence[str], entry: CopyEntry) -> str | None:
    """`register` in the first root that takes it; why not, when none does (a source that is read-only)."""
    why: str | None = None
    for root in roots:
        try:
            register(fs, root, entry)
        except StorageError as error:
            why = str(error)
        else:
            return None
    return why
