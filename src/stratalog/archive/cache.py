"""Archived objects by blocks: a bounded cache, least recently used out first, and fetches that fill it.

A block is a megabyte at a multiple of its size. Missing neighbours are fetched with one ranged get, no block
twice at once, and a sequential reader has the next few megabytes fetched ahead by a small pool of threads.

The cache is in memory, or in files of a directory outside the log directories. The directory may be shared:
every process locks a subdirectory of its own and removes those whose owner is gone, so a crash leaves nothing
that matters.
"""

from __future__ import annotations

import os
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

from stratalog import locks
from stratalog.archive.objects import Objects
from stratalog.errors import StorageError
from stratalog.fs import FileSystem, Lock
from stratalog.kernel import crc32c

_OWN = "blocks-"
_LOCK = ".lock"

BlockKey = tuple[str, int]
"""An object's key, and the number of a block in it."""


class CacheStats(NamedTuple):
    """Counters of a cache; the last three count from its creation."""

    limit_bytes: int
    used_bytes: int
    blocks: int
    hits: int
    misses: int
    evictions: int


class _Shelf(Protocol):
    """Storage for blocks."""

    def store(self, number: int, data: bytes) -> object | None:
        """Store a block and return a handle for `load`; None when it could not be stored."""

    def load(self, kept: object) -> bytes | None: ...

    def drop(self, kept: object) -> None: ...

    def close(self) -> None: ...


class BlockCache:
    """At most ``limit_bytes`` of blocks. Thread-safe."""

    def __init__(self, limit_bytes: int, fs: FileSystem | None = None, directory: str = "") -> None:
        self._limit = limit_bytes
        self._shelf = _shelf(fs, directory)
        self._mutex = locks.lock("archive.cache")
        self._entries: OrderedDict[BlockKey, tuple[object, int]] = OrderedDict()
        self._used = self._number = self._hits = self._misses = self._evictions = 0

    def get(self, key: BlockKey) -> bytes | None:
        with self._mutex:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._entries.move_to_end(key)
        data = self._shelf.load(entry[0])
        with self._mutex:
            if data is None:
                self._misses += 1
                self._remove(key, entry)
            else:
                self._hits += 1
        return data

    def put(self, key: BlockKey, data: bytes) -> None:
        """Store a block, evicting the least recently used ones when there is no room."""
        if len(data) > self._limit:
            return
        with self._mutex:
            if key in self._entries:
                return
            self._number += 1
            number = self._number
            self._used += len(data)
            while self._used > self._limit and self._entries:
                oldest = next(iter(self._entries))
                self._remove(oldest, self._entries[oldest])
                self._evictions += 1
        kept = self._shelf.store(number, data)
        with self._mutex:
            if kept is None or key in self._entries:
                self._used -= len(data)
                if kept is not None:
                    self._shelf.drop(kept)
                return
            self._entries[key] = (kept, len(data))

    def _remove(self, key: BlockKey, entry: tuple[object, int]) -> None:
        if self._entries.get(key) is entry:
            del self._entries[key]
            self._used -= entry[1]
            self._shelf.drop(entry[0])

    def forget(self, prefix: str) -> None:
        """Drop the blocks of all objects whose key has this prefix."""
        with self._mutex:
            for key in [key for key in self._entries if key[0].startswith(prefix)]:
                self._remove(key, self._entries[key])

    def stats(self) -> CacheStats:
        with self._mutex:
            return CacheStats(
                self._limit, self._used, len(self._entries), self._hits, self._misses, self._evictions
            )

    def close(self) -> None:
        """Drop everything; later puts are ignored."""
        with self._mutex:
            self._entries.clear()
            self._used = self._limit = 0
        self._shelf.close()


class _Memory:
    def store(self, number: int, data: bytes) -> object | None:
        return data

    def load(self, kept: object) -> bytes | None:
        return kept if isinstance(kept, bytes) else None

    def drop(self, kept: object) -> None:
        """Do nothing: the garbage collector frees it."""

    def close(self) -> None:
        """Nothing is held."""


class _Files:
    """Blocks as files. Their CRCs are in memory, so that a bad disk costs a fetch and not an error."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        fs.make_dir(root)
        self._sweep(root)
        self._lock: Lock | None = None
        while self._lock is None:
            self._directory = f"{root}/{_OWN}{os.getpid()}-{secrets.token_hex(4)}"
            fs.make_dir(self._directory)
            with suppress(FileNotFoundError):  # another process took it for a dead one's
                self._lock = fs.lock(f"{self._directory}/{_LOCK}", {"pid": os.getpid()})

    def _sweep(self, root: str) -> None:
        for name in self._fs.list_dir(root):
            if not name.startswith(_OWN):
                continue
            path = f"{root}/{name}"
            with suppress(StorageError, OSError):
                if self._fs.lock_holder(f"{path}/{_LOCK}") is None:
                    self._fs.remove_tree(path)

    def store(self, number: int, data: bytes) -> object | None:
        path = f"{self._directory}/{number}"
        try:
            self._fs.write_file(path, data, sync=False)
        except (StorageError, OSError):
            with suppress(StorageError, OSError):
                self._fs.remove(path)
            return None
        return path, crc32c(data)

    def load(self, kept: object) -> bytes | None:
        assert isinstance(kept, tuple)
        path, crc = kept
        try:
            data = self._fs.read_file(path)
        except (StorageError, OSError):
            return None
        return data if crc32c(data) == crc else None

    def drop(self, kept: object) -> None:
        assert isinstance(kept, tuple)
        with suppress(StorageError, OSError):
            self._fs.remove(kept[0])

    def close(self) -> None:
        with suppress(StorageError, OSError):
            self._fs.remove_tree(self._directory)
        if self._lock is not None:
            self._lock.release()


def _shelf(fs: FileSystem | None, directory: str) -> _Shelf:
    """Use files in the directory; memory without a directory, or where it cannot be written."""
    if fs is not None and directory:
        with suppress(StorageError):
            return _Files(fs, directory)
    return _Memory()


BLOCK_BYTES = 1 << 20
RUN_BLOCKS = 4
"""The most blocks fetched with one request."""
AHEAD_BLOCKS = 8
"""How far a sequential reader is led."""


class Blocks:
    """Read archived objects by blocks, through the cache. Thread-safe."""

    def __init__(self, objects: Objects, cache: BlockCache, pool: ThreadPoolExecutor) -> None:
        self.cache = cache
        self._objects = objects
        self._pool = pool
        self._mutex = locks.lock("archive.blocks")
        self._coming: dict[tuple[str, int], Future[bytes]] = {}

    def read_into(self, key: str, size: int, position: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes of an object of ``size`` bytes from ``position`` on."""
        first, last = position // BLOCK_BYTES, (position + len(buffer) - 1) // BLOCK_BYTES
        for number in range(first, last + 1, RUN_BLOCKS):
            blocks = self._blocks(key, size, range(number, min(number + RUN_BLOCKS, last + 1)))
            for at, data in blocks.items():
                begin = at * BLOCK_BYTES - position
                source = max(0, -begin)
                taken = data[source : source + len(buffer) - max(begin, 0)]
                buffer[max(begin, 0) : max(begin, 0) + len(taken)] = taken

    def lead(self, key: str, size: int, position: int) -> None:
        """Fetch the blocks after ``position`` ahead, for a sequential reader."""
        first = -(-position // BLOCK_BYTES)
        last = min(first + AHEAD_BLOCKS, -(-size // BLOCK_BYTES))
        for number in range(first, last, RUN_BLOCKS):
            wanted = [
                at for at in range(number, min(number + RUN_BLOCKS, last)) if not self._is_near(key, at)
            ]
            if wanted:
                try:
                    self._pool.submit(self._ahead, key, size, wanted)
                except RuntimeError:
                    return  # the archive is closed

    def forget(self, prefix: str) -> None:
        self.cache.forget(prefix)

    def _is_near(self, key: str, number: int) -> bool:
        with self._mutex:
            if (key, number) in self._coming:
                return True
        return self.cache.get((key, number)) is not None

    def _ahead(self, key: str, size: int, numbers: list[int]) -> None:
        try:
            self._blocks(key, size, numbers)
        except Exception:  # noqa: BLE001 - no caller waits for it; the reader of the block will get the error
            return

    def _blocks(self, key: str, size: int, numbers: Iterable[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        others: dict[int, Future[bytes]] = {}
        mine: dict[int, Future[bytes]] = {}
        for number in numbers:
            data = self.cache.get((key, number))
            if data is not None:
                found[number] = data
                continue
            with self._mutex:
                coming = self._coming.get((key, number))
                if coming is None:
                    mine[number] = self._coming[(key, number)] = Future()
                else:
                    others[number] = coming
        try:
            for run in _runs(sorted(mine)):
                for number, data in self._fetch(key, size, run):
                    found[number] = data
                    self.cache.put((key, number), data)
                    mine[number].set_result(data)
        except BaseException as error:
            for future in mine.values():
                if not future.done():
                    future.set_exception(error)
            raise
        finally:
            with self._mutex:
                for number in mine:
                    del self._coming[(key, number)]
        for number, future in others.items():
            found[number] = future.result()
        return found

    def _fetch(self, key: str, size: int, run: list[int]) -> Iterator[tuple[int, bytes]]:
        start = run[0] * BLOCK_BYTES
        length = min((run[-1] + 1) * BLOCK_BYTES, size) - start
        data = self._objects.get_range(key, start, length)
        if len(run) == 1:
            yield run[0], data
            return
        for number in run:
            at = number * BLOCK_BYTES - start
            yield number, data[at : at + BLOCK_BYTES]


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Group consecutive numbers."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
