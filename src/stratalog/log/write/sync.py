"""Making writes durable: group commit, and the order in which things reach the disk.

Many threads wait for one fsync. Those who ask queue for the leader's lock; the first runs a round that
syncs everything written so far, and whoever comes next finds itself covered by it or runs the next one. A
round covers, in this order, segments sealed since the last one with their sidecars, the directory, the active
log; only then does the synced end move, and only then is anybody acknowledged.

After a failed sync nobody is ever acknowledged again: the failure is kept and raised to every waiter,
because the kernel may have dropped the dirty pages that a second fsync would seem to write. An interrupt
(Ctrl-C, no memory) is not a failure of the disk: the round is given up, and the next one does it again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog import locks
from stratalog.errors import ReadOnlyError, StorageError
from stratalog.fs.contract import is_shortage
from stratalog.log.context import LogContext
from stratalog.log.names import SEGMENT_KINDS, segment_name
from stratalog.log.segment.segment import Segment


class InDoubtError(Exception):
    """An operation on the log was cut short; the writer must read it again before a round can begin."""


class SyncedEnd(NamedTuple):
    """Everything before this is durable: a position in a segment, and the offset that comes next."""

    base_offset: int
    position: int
    offset: int


class Syncer:
    """The durable end of one partition.

    ``written`` is called under ``lock`` and returns how far the log is written, or raises `InDoubtError`;
    ``synced`` is called under it too, with the new synced end; ``failed`` once, with what went wrong.

    The leader's lock is held for a whole round, fsyncs included. It is taken before the partition's lock,
    never under it.
    """

    def __init__(
        self,
        context: LogContext,
        directory: str,
        lock: threading.RLock,
        end: SyncedEnd,
        *,
        written: Callable[[], SyncedEnd],
        synced: Callable[[SyncedEnd], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._context = context
        self._directory = directory
        self._lock = lock
        self._written = written
        self._on_synced = synced
        self._on_failed = failed
        self._leader = locks.lock("partition.sync")
        self.failure: BaseException | None = None
        """Why nothing is acknowledged any more."""
        self._abandoned: Exception | None = None
        self._unsynced: tuple[Segment, ...] = ()
        self._dropped: set[int] = set()
        self._created = 0
        self._created_synced = 0
        self.end = end

    def sealed(self, segment: Segment) -> None:
        """A segment was sealed, and another file created: the next round covers both. Under the lock."""
        self._created += 1
        self._unsynced = (*self._unsynced, segment)

    def dropped(self, segments: list[Segment]) -> None:
        """These segments were deleted; nothing of them needs to be synced any more. Under the lock."""
        self._unsynced = tuple(segment for segment in self._unsynced if segment not in segments)
        self._dropped.update(segment.base_offset for segment in segments)

    def reloaded(self, unsynced: Sequence[Segment]) -> None:
        """The log was read again from disk: these sealed segments may not be durable. Under the lock."""
        self._created += 1
        self._unsynced = tuple(unsynced)

    @property
    def behind(self) -> bool:
        """True when a round would have something to do besides the active log."""
        return bool(self._unsynced) or self._created > self._created_synced

    def wait(self, offset: int, *, everything: bool = False) -> None:
        """Return when every offset below ``offset`` is durable; raise when a sync failed, now or before.

        ``everything``: sealed segments, their sidecars and the directory, too.
        """
        while self.end.offset < offset or (everything and self.behind):
            with self._leader:
                self.check()
                if self.end.offset < offset or (everything and self.behind):
                    self._lead()

    def abandon(self, error: Exception) -> None:
        """Let no round begin any more, and wait for the one under way: the files are about to be deleted."""
        self._abandoned = error
        with self._leader:
            pass

    def check(self) -> None:
        """Raise when a sync failed before, or the log was abandoned."""
        if self._abandoned is not None:
            raise self._abandoned
        if self.failure is not None:
            raise ReadOnlyError(
                f"{self._directory}: an earlier sync failed: {self.failure}"
            ) from self.failure

    def _lead(self) -> None:
        before = sys.exc_info()[1]  # what the caller is handling: no failure of this round
        try:
            self._round()
        except InDoubtError:
            raise
        except BaseException as error:
            cause = _disk_failure(error, before)
            if cause is not None:
                self.failure = cause
                self._on_failed(cause)
            raise

    def _round(self) -> None:
        """Sync what is written by now. Nothing is marked as done before all of it is."""
        with self._lock:
            end = self._written()
            unsynced, created = self._unsynced, self._created
        for segment in unsynced:
            self._sync_sealed(segment)
        if created > self._created_synced:
            self._context.fs.sync_dir(self._directory)
        try:
            self._sync(f"{self._directory}/{segment_name(end.base_offset)}.log")
        except FileNotFoundError:
            if end.base_offset not in self._dropped:
                raise  # else it was rolled and deleted while we synced the others
        with self._lock:
            self._unsynced = tuple(segment for segment in self._unsynced if segment not in unsynced)
            self._created_synced = max(self._created_synced, created)
            self.end = max(self.end, end, key=lambda known: (known.offset, known.base_offset))
            self._on_synced(self.end)

    def _sync(self, path: str) -> None:
        with self._context.handles.pinned(path, "w") as file:
            file.sync()

    def _sync_sealed(self, segment: Segment) -> None:
        try:
            self._sync(segment.path())
        except FileNotFoundError:
            return  # deleted since it was sealed; nothing of it can be acknowledged any more
        self.sync_sidecars(segment)

    def sync_sidecars(self, segment: Segment) -> None:
        """Sync what was derived from a segment, and the producer snapshot at its end."""
        sidecars = [segment.path(kind) for kind in SEGMENT_KINDS if kind != "log"]
        if segment.next_offset is not None:
            sidecars.append(f"{self._directory}/{segment_name(segment.next_offset)}.snapshot")
        for path in sidecars:
            try:
                with self._context.fs.open(path, "w") as file:
                    file.sync()
            except FileNotFoundError:
                continue


def _disk_failure(error: BaseException, before: BaseException | None) -> BaseException | None:
    """Return the failure of the disk in ``error`` or behind it; None when it is only an interrupt.

    An interrupt that arrives while a failed fsync is being reported has that failure as its context. A file
    that is not there is looked for in every round; it counts only when nobody handled it. A file that could
    not be opened for want of descriptors was not synced, and the next round tries it again.
    """
    seen: BaseException | None = error
    while seen is not None and seen is not before:
        handled = seen is not error and isinstance(seen, FileNotFoundError)
        if isinstance(seen, StorageError | OSError) and not handled and not is_shortage(seen):
            return seen
        seen = seen.__context__
    return None
