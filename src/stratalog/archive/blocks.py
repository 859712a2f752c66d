"""Fetching archived objects a block at a time: through the cache, never the same block twice at once, ahead.

A block is a megabyte at a multiple of its size. Missing neighbours are fetched with one ranged get. A reader
that goes on where it stopped has the next few megabytes fetched meanwhile, by a small pool of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from stratalog import locks
from stratalog.archive.cache import BlockCache
from stratalog.archive.objects import Objects

BLOCK_BYTES = 1 << 20
RUN_BLOCKS = 4
"""The most blocks fetched with one request."""
AHEAD_BLOCKS = 8
"""How far a sequential reader is led."""


class Blocks:
    """Every archived object by blocks. Thread-safe."""

    def __init__(self, objects: Objects, cache: BlockCache, pool: ThreadPoolExecutor) -> None:
        self.cache = cache
        self._objects = objects
        self._pool = pool
        self._mutex = locks.lock("archive.blocks")
        self._coming: dict[tuple[str, int], Future[bytes]] = {}

    def read_into(self, key: str, size: int, position: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with what the object, ``size`` bytes long, has from ``position`` on."""
        first, last = position // BLOCK_BYTES, (position + len(buffer) - 1) // BLOCK_BYTES
        for number in range(first, last + 1, RUN_BLOCKS):
            blocks = self._blocks(key, size, range(number, min(number + RUN_BLOCKS, last + 1)))
            for at, data in blocks.items():
                begin = at * BLOCK_BYTES - position
                source = max(0, -begin)
                taken = data[source : source + len(buffer) - max(begin, 0)]
                buffer[max(begin, 0) : max(begin, 0) + len(taken)] = taken

    def lead(self, key: str, size: int, position: int) -> None:
        """Have what comes after ``position`` fetched, for a reader that will want it."""
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
        """The objects whose key begins so are gone."""
        self.cache.forget(prefix)

    def _is_near(self, key: str, number: int) -> bool:
        with self._mutex:
            if (key, number) in self._coming:
                return True
        return self.cache.get((key, number)) is not None

    def _ahead(self, key: str, size: int, numbers: list[int]) -> None:
        try:
            self._blocks(key, size, numbers)
        except Exception:  # noqa: BLE001 - nobody waits for it; whoever needs the block will see the error
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
    """Neighbours together."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
