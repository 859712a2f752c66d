"""Making writes durable: group commit, and the order in which things reach the disk.

Many threads wait for one fsync. The first to ask becomes the leader and syncs everything written so
far; those who arrive meanwhile are covered by it or by the next one. A round covers, in this order,
segments sealed since the last one with their sidecars, the directory, the active log; only then does
the synced end move, and only then is anybody acknowledged.

After a failed sync nobody is ever acknowledged again: the failure is kept and raised to every waiter,
because the kernel may have dropped the dirty pages that a second fsync would seem to write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from stratalog.errors import ReadOnlyError
from stratalog.log.context import LogContext
from stratalog.log.names import SEGMENT_KINDS, segment_name
from stratalog.log.segment import Segment


class SyncedEnd(NamedTuple):
    """Everything before this is durable: a position in a segment, and the offset that comes next."""

    base_offset: int
    position: int
    offset: int


class Syncer:
    """The durable end of one partition.

    ``written`` is called under ``lock`` and says how far the log is written; ``synced`` is called under
    it too, with the new synced end; ``failed`` once, with what went wrong.
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
        self._condition = threading.Condition()
        self._syncing = False
        self._failure: BaseException | None = None
        self._unsynced: list[Segment] = []
        self._dropped: set[int] = set()
        self._directory_dirty = False
        self.end = end

    def sealed(self, segment: Segment) -> None:
        """A segment was sealed, and another file created: the next round covers both. Under the lock."""
        self._unsynced.append(segment)
        self._directory_dirty = True

    def dropped(self, segments: list[Segment]) -> None:
        """These segments were deleted; nothing of them needs to be synced any more. Under the lock."""
        self._unsynced = [segment for segment in self._unsynced if segment not in segments]
        self._dropped.update(segment.base_offset for segment in segments)

    @property
    def behind(self) -> bool:
        """True when a round would have something to do besides the active log."""
        return bool(self._unsynced) or self._directory_dirty

    def wait(self, offset: int, *, at_least_one_round: bool = False) -> None:
        """Return when every offset below ``offset`` is durable; raise when a sync failed, now or before."""
        with self._condition:
            while True:
                if self._failure is not None:
                    raise ReadOnlyError(
                        f"{self._directory}: an earlier sync failed: {self._failure}"
                    ) from self._failure
                if self.end.offset >= offset and not at_least_one_round:
                    return
                if not self._syncing:
                    self._syncing = True
                    break
                self._condition.wait()
        try:
            self._round()
        except BaseException as error:
            with self._condition:
                self._failure = error
            self._on_failed(error)
            raise
        finally:
            with self._condition:
                self._syncing = False
                self._condition.notify_all()

    def _round(self) -> None:
        with self._lock:
            end = self._written()
            unsynced, self._unsynced = self._unsynced, []
            directory_dirty, self._directory_dirty = self._directory_dirty, False
        for segment in unsynced:
            self._sync_sealed(segment)
        if directory_dirty:
            self._context.fs.sync_dir(self._directory)
        try:
            self._sync(f"{self._directory}/{segment_name(end.base_offset)}.log")
        except FileNotFoundError:
            if end.base_offset not in self._dropped:
                raise  # else it was rolled and deleted while we synced the others
        with self._lock:
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
        """What was derived from a segment, and the producer snapshot at its end."""
        sidecars = [segment.path(kind) for kind in SEGMENT_KINDS if kind != "log"]
        if segment.next_offset is not None:
            sidecars.append(f"{self._directory}/{segment_name(segment.next_offset)}.snapshot")
        for path in sidecars:
            try:
                with self._context.fs.open(path, "w") as file:
                    file.sync()
            except FileNotFoundError:
                continue
