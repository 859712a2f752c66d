"""What every part of a log needs from outside: files, handles, time, warnings, a cache, sync threads.

Nothing here touches a disk by itself. Time comes in through `Clock`, never from `time.time()` in the
middle of a policy, so that tests can move it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from stratalog import kernel, locks
from stratalog.fs import FileSystem, HandleCache
from stratalog.log.segment.deletion import Deletions

logger = logging.getLogger("stratalog")

T = TypeVar("T")


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for intervals."""

    def now_ms(self) -> int: ...

    def monotonic_s(self) -> float: ...


class SystemClock:
    """The machine's clocks. The monotonic one also counts the time a machine is suspended."""

    __slots__ = ()

    now_ms = staticmethod(kernel.now_ms)  # every append asks: without a Python call

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


ENTRY_BYTES = 512
"""What a cached value of almost nothing costs: its object, its key and its place."""


class SidecarCache:
    """Parsed indexes and seals of sealed segments, least recently used out first.

    Bounded in bytes, so that 20,000 segments may be open while only those being read cost memory. Entries are
    derived data: dropping one costs a re-read.
    """

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._entries: OrderedDict[tuple[int, str], tuple[object, int]] = OrderedDict()
        self._kinds: set[str] = set()
        """Every kind so far: a few, so that a segment is forgotten without a search."""
        self._lock = locks.lock("sidecars")

    @property
    def used_bytes(self) -> int:
        """What the entries cost together."""
        return self._used

    def get(self, serial: int, kind: str, load: Callable[[], tuple[T, int]]) -> T:
        """Return the cached value for (serial, kind), or load it. ``load`` returns (value, bytes)."""
        key = (serial, kind)
        with self._lock:
            hit = self._entries.get(key)
            if hit is not None:
                self._entries.move_to_end(key)
                return hit[0]  # type: ignore[return-value]
        value, cost = load()
        with self._lock:
            if key not in self._entries:
                self._kinds.add(kind)
                self._entries[key] = (value, cost + ENTRY_BYTES)
                self._used += cost + ENTRY_BYTES
            while self._used > self._limit and len(self._entries) > 1:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._used -= dropped
        return value

    def forget(self, serial: int) -> None:
        """Drop what is cached of one segment."""
        with self._lock:
            for kind in self._kinds:
                found = self._entries.pop((serial, kind), None)
                if found is not None:
                    self._used -= found[1]


LINGER_S = 1.0
"""How long a thread waits for more work before it ends."""
SYNC_THREADS = 4
"""Of one store: a disk takes several syncs at once, and partitions need not wait for each other's."""


class SyncThreads:
    """Syncs for callers that must not block, such as an event loop: a few threads for a store.

    A thread starts with a job that finds none idle, and ends when there was no job for a while. Ctrl-C never
    reaches one. Jobs for one partition share rounds, as threads that wait for them do.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._guard = locks.lock("sync-thread")
        self._threads = 0
        self._idle = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` in a thread. The job itself reports its errors to those who wait for it."""
        self._jobs.put(job)
        with self._guard:
            if self._jobs.qsize() > self._idle and self._threads < SYNC_THREADS:
                threading.Thread(target=self._run, name="stratalog-sync", daemon=True).start()
                self._threads += 1

    def _run(self) -> None:
        while True:
            with self._guard:
                self._idle += 1
            try:
                job = self._jobs.get(timeout=LINGER_S)
            except queue.Empty:
                with self._guard:
                    self._idle -= 1
                    if self._jobs.empty():
                        self._threads -= 1
                        return
                continue
            with self._guard:
                self._idle -= 1
            try:
                job()
            except Exception as error:  # noqa: BLE001 - the job has reported it
                logger.debug("sync: %s", error)


def _log_warning(message: str) -> None:
    logger.warning(message)


@dataclass(frozen=True, slots=True)
class LogContext:
    """One per store, shared by all its partitions."""

    fs: FileSystem
    handles: HandleCache
    clock: Clock = field(default_factory=SystemClock)
    warn: Callable[[str], None] = _log_warning
    cache: SidecarCache = field(default_factory=SidecarCache)
    deletions: Deletions = field(default_factory=Deletions)
    sync_threads: SyncThreads = field(default_factory=SyncThreads)


class PartitionLocation(NamedTuple):
    """A partition in a directory: what its segments, its writer and its readers have in common."""

    context: LogContext
    directory: str
    topic: str
    partition: int
