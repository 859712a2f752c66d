"""Making writes durable: group commit, the order in which things reach the disk, and the tail that says so.

Many threads wait for one fsync. They queue for the leader's lock; the first runs a round that syncs all that
is written so far, and the next finds itself covered by it or runs another one. A round covers, in this order,
segments sealed since the last one with their sidecars, the directory, the active log; only then does the
synced end move, and only then is anything acknowledged.

After a failed sync nothing is ever acknowledged again: the failure is kept and raised to every waiter,
because the kernel may have dropped the dirty pages that a second fsync would seem to write. A log file that
another program removed or replaced is such a failure. An interrupt (Ctrl-C, no memory) is not: the round is
given up, and the next one does it again.

`stratalog.tail` holds the synced end, and what readers in other processes may see. Each write of 64 bytes
goes to one of two slots, alternately, each with its own CRC: a write torn by a crash leaves the other slot.
The tail may lag behind the log, which costs a longer scan after a crash, and never leads it, because it is
written after the sync it describes. Only a swap syncs it: a tail from before the swap would describe bytes
that the swap removed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog import locks
from stratalog.errors import CorruptionError, ReadOnlyError, StorageError, again
from stratalog.format import tail as tails
from stratalog.format.identity import PartitionId
from stratalog.format.tail import Tail
from stratalog.fs import FileSystem
from stratalog.fs.contract import is_shortage
from stratalog.log.context import LogContext
from stratalog.log.names import SEGMENT_KINDS, TAIL, segment_name
from stratalog.log.segment.segment import Segment, owner_of


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
    ``synced`` is called under it too, with the new synced end; ``failed`` once, with the failure.

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
        """Segments that were deleted since the last round began: it may be about to sync them."""
        self._created = 0
        self._created_synced = 0
        self.end = end

    def sealed(self, segment: Segment) -> None:
        """Include a sealed segment and its successor's file in the next round. Under the lock."""
        self._created += 1
        self._unsynced = (*self._unsynced, segment)

    def dropped(self, segments: list[Segment]) -> None:
        """These segments are being deleted; nothing of them needs to be synced any more. Under the lock."""
        self._unsynced = tuple(segment for segment in self._unsynced if segment not in segments)
        self._dropped.update(segment.base_offset for segment in segments)

    def reloaded(self, unsynced: Sequence[Segment]) -> None:
        """Take over sealed segments, perhaps not durable, of a log that was reloaded. Under the lock."""
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
        """Let no further round begin, and wait for the one under way: the files are about to be deleted."""
        self._abandoned = error
        with self._leader:
            pass

    def check(self) -> None:
        """Raise when a sync failed before, or the log was abandoned."""
        if self._abandoned is not None:
            raise again(self._abandoned)
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
            self._dropped.clear()  # none of them is among those
        for segment in unsynced:
            self._sync_sealed(segment)
        if created > self._created_synced:
            self._context.fs.sync_dir(self._directory)
        self._sync_log(end.base_offset, at_least=end.position)
        with self._lock:
            self._unsynced = tuple(segment for segment in self._unsynced if segment not in unsynced)
            self._created_synced = max(self._created_synced, created)
            self.end = max(self.end, end, key=lambda known: (known.offset, known.base_offset))
            self._on_synced(self.end)

    def _sync_log(self, base_offset: int, *, at_least: int = 0) -> bool:
        """Sync a log file; return False if the segment was deleted meanwhile.

        A handle outlives the name of its file, and data without a name is lost: raise StorageError if another
        program removed the file or put one with fewer than ``at_least`` bytes in its place.
        """
        path = f"{self._directory}/{segment_name(base_offset)}.log"
        try:
            self._sync(path)
            if self._context.fs.stat(path).size >= at_least:
                return True
        except FileNotFoundError:
            pass
        if base_offset in self._dropped:
            return False
        raise StorageError(
            f"{path}: removed or replaced by another program while it was open; records written to it since"
            f" offset {self.end.offset} are lost"
        )

    def _sync(self, path: str) -> None:
        with self._context.handles.pinned(path, "w") as file:
            file.sync()

    def _sync_sealed(self, segment: Segment) -> None:
        if self._sync_log(segment.base_offset):
            self.sync_sidecars(segment)

    def sync_sidecars(self, segment: Segment) -> None:
        """Sync what was derived from a segment, and the producer snapshot at its end."""
        sidecars = [segment.path(kind) for kind in SEGMENT_KINDS if kind != "log"]
        if segment.next_offset is not None:
            sidecars.append(f"{self._directory}/{segment_name(segment.next_offset)}.snapshot")
        for path in sidecars:
            sync_file(self._context.fs, path)


def sync_file(fs: FileSystem, path: str) -> None:
    """Sync a file if it exists."""
    try:
        with fs.open(path, "w") as file:
            file.sync()
    except FileNotFoundError:
        return


def _disk_failure(error: BaseException, before: BaseException | None) -> BaseException | None:
    """Return the failure of the disk in ``error`` or its context; None when it is only an interrupt.

    An interrupt that arrives while a failed fsync is being reported has that failure as its context. A
    missing file counts only if it was not handled: sidecars are looked for in every round. A file that could
    not be opened for lack of descriptors was not synced, and the next round tries it again.
    """
    seen: BaseException | None = error
    while seen is not None and seen is not before:
        handled = seen is not error and isinstance(seen, FileNotFoundError)
        if isinstance(seen, StorageError | OSError) and not handled and not is_shortage(seen):
            return seen
        seen = seen.__context__
    return None


def read_tail(fs: FileSystem, directory: str, owner: PartitionId) -> Tail | None:
    """Return the newest valid slot of ``owner``; None when there is no tail or neither slot is valid.

    CorruptionError when it was written for another partition: it does not describe this log.
    """
    path = f"{directory}/{TAIL}"
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return None
    tail = tails.parse(data, owner)
    stranger = tails.parse(data) if tail is None else None
    if stranger is not None:
        raise CorruptionError(f"it is the tail of {stranger.owner}", path=path)
    return tail


class TailFile:
    """The writer's side of the tail. Calls are serialised by the partition's lock."""

    def __init__(self, context: LogContext, directory: str, partition: int, known: Tail | None) -> None:
        self.path = f"{directory}/{TAIL}"
        self._context = context
        self._known = known
        self._generation = 0 if known is None else known.generation
        self.owner = owner_of(context.fs, directory, partition)
        """The partition that this directory is, as long as a writer has it."""

    @property
    def high_watermark(self) -> int:
        """The one last written; -1 before the first."""
        return -1 if self._known is None else self._known.high_watermark

    def write(self, base: int, position: int, offset: int, high_watermark: int, *, flags: int) -> Tail:
        """Write the next slot and return it. A failure leaves the other one in force."""
        self._generation += 1
        tail = Tail(self._generation, base, position, offset, high_watermark, flags, self.owner)
        with self._context.handles.pinned(self.path, "a") as file:
            file.pwrite(tails.pack_slot(tail), tails.slot_position(self._generation))
        self._known = tail
        return tail

    def sync(self) -> None:
        """Make the slot last written durable."""
        with self._context.handles.pinned(self.path, "a") as file:
            file.sync()
