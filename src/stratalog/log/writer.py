"""The one writer of a partition: an `Appender`, and what time and the store ask of it besides.

Crash policy: closing in order writes what makes the next open cheap; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from stratalog.errors import (
    ClosedError,
    ForkedError,
    InvalidArgumentError,
    LogDirOfflineError,
    ReadOnlyError,
    StorageError,
    StratalogError,
    SyncFailedError,
)
from stratalog.format import producer_snapshot
from stratalog.log import swap
from stratalog.log.active import ActiveSegment
from stratalog.log.appender import Appender, WriterState
from stratalog.log.names import LOG, SEGMENT_KINDS, SNAPSHOT, file_name
from stratalog.log.roll import jitter_ms, roll_due_idle
from stratalog.log.segment import Segment
from stratalog.log.sidecars import Sidecars

EXPIRY_INTERVAL_S = 600
"""How often idle producers are looked for, as in Kafka."""


class PartitionWriter(Appender):
    """A partition that this process may write; also the `LogView` of its in-process readers."""

    def tick(self) -> None:
        """What time alone makes due: an idle roll, flush.ms, a sync after a roll, write-behind."""
        if self._unusable is not None or self._closed:
            return
        with self.lock:
            usable = self.rolls_idle and not self._closed and self._unusable is None
            if usable and roll_due_idle(self.config, self._facts(), self._now_ms()):
                self.roll()
        since_flush_ms = (self.context.clock.monotonic_s() - self._last_flush_s) * 1000
        flush_due = self.next_offset > self._syncer.end.offset and since_flush_ms >= self.config.flush_ms
        if flush_due or self._syncer.behind:
            self.flush()
        with self.lock:
            if self._closed:
                return
            self._expire_producers()
            if self._written and len(self._active.index) > self._active.index_written:
                self._write_behind(self._active, force=True)
            if self._written and self.high_watermark != self._tail.high_watermark:
                self._write_tail()

    def _expire_producers(self) -> None:
        now_s = self.context.clock.monotonic_s()
        if now_s - self._last_expiry_s >= EXPIRY_INTERVAL_S:
            self._last_expiry_s = now_s
            self.producers.expire(self._now_ms())

    @property
    def unusable(self) -> StratalogError | None:
        """Why this partition refuses to be written, if it does."""
        return self._unusable

    @property
    def recovery_point(self) -> int:
        """Everything below this offset is durable: Kafka's recovery point."""
        return self._syncer.end.offset

    @property
    def level(self) -> int | None:
        """The compression level of the topic's codec."""
        return self._level

    def release_handle(self) -> bool:
        """Let the active log's file handle go until the next append; False when it is in use or not held."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self._active.file is None:
                return False
            self._active.release_file()
            return True
        finally:
            self.lock.release()

    def take_offline(self, error: StorageError) -> None:
        """The log directory failed: nothing more is written here."""
        self._unusable = self._unusable or LogDirOfflineError(
            f"{self.topic}-{self.partition} is offline: {error}"
        )

    def mark_forked(self) -> None:
        """In a forked child: refuse everything, touch nothing."""
        self._closed = True
        self._unusable = ForkedError("this store was opened before a fork; open it again in the child")

    def checked_log_start(self, offset: int) -> int:
        """Where the log would start after `advance_log_start`; raises when it cannot."""
        with self.lock:
            self.make_usable()
            if offset > self.high_watermark:
                raise InvalidArgumentError(
                    f"{self.topic}-{self.partition}: cannot delete up to offset {offset}, the log ends at"
                    f" {self.high_watermark}"
                )
            return max(offset, self._log_start_offset)

    def advance_log_start(self, offset: int) -> list[Segment]:
        """Move the log start offset up; returns the sealed segments wholly below it, which are hidden now.

        It may be there already: a segment that was active when its last record was deleted goes once sealed.
        """
        with self.lock:
            self._log_start_offset = offset = self.checked_log_start(offset)
            gone = [
                segment
                for segment in self._segments[:-1]
                if segment.next_offset is not None and segment.next_offset <= offset
            ]
            self._hide(gone)
            self._cold = tuple(
                segment
                for segment in self._cold
                if segment.next_offset is None or segment.next_offset > offset
            )
            self.producers.truncate_head(offset)
            return gone

    def drop_local(self, offset: int) -> list[Segment]:
        """Hide the sealed segments wholly below ``offset``: the archive has them, and readers go on there.

        The log starts where it did. Under ``maintenance``.
        """
        with self.lock:
            self.make_usable()
            gone = [
                segment
                for segment in self._segments[:-1]
                if segment.next_offset is not None and segment.next_offset <= offset
            ]
            if gone and not self._cold_covers(gone[0].base_offset, gone[-1].next_offset or 0):
                raise InvalidArgumentError(
                    f"{self.topic}-{self.partition}: offsets {gone[0].base_offset} to"
                    f" {gone[-1].next_offset} are not all in the archive"
                )
            self._hide(gone)
            return gone

    def _cold_covers(self, start: int, end: int) -> bool:
        """Whether the archive has all offsets of [start, end) that the log still shows, without a gap."""
        at = max(start, self._log_start_offset)
        for segment in self._cold:
            if segment.base_offset <= at:
                at = max(at, segment.next_offset or 0)
        return at >= end

    def _hide(self, gone: list[Segment]) -> None:
        self._segments = tuple(segment for segment in self._segments if segment not in gone)
        self._syncer.dropped(gone)

    def roll_idle(self, next_offset: int) -> bool:
        """Seal the active segment if it still ends at ``next_offset``: nothing came since somebody looked."""
        with self.lock:
            return self.next_offset == next_offset and self.roll()

    def settle_tail(self) -> None:
        """Make everything sealed durable, and that the log is trusted up to the active segment at least.

        Before sealed segments change: a tail that a power cut brings back from before would speak of
        bytes that are no longer there.
        """
        with self.lock:
            self.make_usable()
        self.flush()
        with self.lock:
            self._write_tail(strict=True)
            self._tail.sync()
        self._fs.sync_dir(self.directory)

    def replace_segments(self, olds: Sequence[Segment], news: Sequence[Segment]) -> None:
        """Swap files and publish the new list; ``swap_in`` has prepared both. Under ``maintenance``.

        A failure here leaves files that the next open puts in order; until then nothing is written.
        """
        context, directory = self.context, self.directory
        self._swapping = True
        try:
            swap.commit(context, directory, news)
            swap.retire(context, directory, olds, self.config.file_delete_delay_ms / 1000)
            swap.take_suffix_off(context, directory, news)
            with self.lock:
                at = self._segments.index(olds[0])
                after = self._segments[at + len(olds) :]
                for segment, following in pairwise((*news, after[0])):
                    segment.next_offset = following.base_offset
                self._segments = (*self._segments[:at], *news, *after)
                self._syncer.dropped(list(olds))
        except (StorageError, OSError) as error:
            self._unusable = self._unusable or ReadOnlyError(
                f"{directory} is read-only: segments could not be swapped ({error}); reopen the store, which"
                " finishes or undoes it"
            )
            raise
        finally:
            self._swapping = False
            for segment in olds:
                segment.forget()
        kept = {segment.base_offset for segment in self._segments}
        for segment in olds:
            if segment.base_offset not in kept:
                path = f"{directory}/{file_name(segment.base_offset, SNAPSHOT)}"
                try:
                    self._fs.remove(path)
                except FileNotFoundError:
                    continue
                except StorageError as error:
                    context.warn(f"{path}: {error}; the next start removes it")

    def adopt_segment(self, source: str, sidecars: Sidecars, next_offset: int) -> None:
        """Make a whole log that lies elsewhere on this disk the next segment, by rename. Under the lock.

        ``source`` is synced and holds the offsets from the end of this log up to ``next_offset``. What lies
        before must be durable first: recovery cuts at the first gap, and would cut this off. Everything else
        is written beside ``source``, so that nothing but renames can fail once the log has its name.
        """
        if self._active.size:
            self._roll(self.next_offset)
        old, fs = self._active, self._fs
        assert old.base_offset == self.next_offset == sidecars.base_offset
        self._sync_before(old.base_offset)
        packed = {kind: sidecars.pack(kind) for kind in SEGMENT_KINDS[1:]}
        moves = {f"{source}.{kind}": old.path(kind) for kind, data in packed.items() if data is not None}
        for kind, data in packed.items():
            if data is not None:
                fs.write_file(f"{source}.{kind}", data, sync=True)
        for kind, data in ((SNAPSHOT, producer_snapshot.pack(self.producers.to_entries())), (LOG, b"")):
            fs.write_file(f"{source}.{kind}", data, sync=True)
            moves[f"{source}.{kind}"] = f"{self.directory}/{file_name(next_offset, kind)}"
        old.release_file()
        self.context.handles.forget(old.path())
        fs.rename(source, old.path())
        try:
            for path, target in moves.items():
                fs.rename(path, target)
            fs.sync_dir(self.directory)
            fs.sync_dir(source.rpartition("/")[0])
        except (StorageError, OSError) as error:
            self._unusable = self._unusable or ReadOnlyError(
                f"{self.directory} is read-only: a segment was taken in and its files were not ({error});"
                " reopen the store, which finishes it"
            )
            raise
        finally:
            self.context.handles.forget(old.path())
            self.context.cache.forget(old.serial)
        self._publish_adopted(old, sidecars.size_bytes, next_offset)

    def _sync_before(self, base_offset: int) -> None:
        """Make the logs before a segment durable, while the lock is held: a round of syncs would need it."""
        try:
            for segment in self._segments[:-1]:
                if self._syncer.end.base_offset <= segment.base_offset < base_offset:
                    with self.context.handles.pinned(segment.path(), "w") as file:
                        file.sync()
                    self._syncer.sync_sidecars(segment)
            self._fs.sync_dir(self.directory)
        except SyncFailedError as error:
            self._on_sync_failed(error)
            raise

    def _publish_adopted(self, old: ActiveSegment, size: int, next_offset: int) -> None:
        context, where = self.context, (self.directory, self.topic, self.partition)
        adopted = Segment(context, *where, old.base_offset, size=size, next_offset=next_offset)
        self._active = ActiveSegment(
            context,
            *where,
            next_offset,
            size=0,
            next_offset=next_offset,
            created_ms=self._now_ms(),
            jitter_ms=jitter_ms(self.config, self.topic, self.partition, next_offset),
            keyed=self.config.key_index_enable,
        )
        self._syncer.sealed(adopted)
        self._segments = (*self._segments[:-1], adopted, self._active)
        self.next_offset = next_offset
        self._set_roll_limits()
        if not self._acks_wait:
            self._advance(next_offset)
        if self._on_roll is not None:
            self._on_roll()

    def close(self) -> None:
        """Sync, write what makes the next open cheap, release the files."""
        with self.lock:
            if self._closed:
                return
            usable = self._unusable is None
            self._unusable = self._unusable or ClosedError(f"{self.topic}-{self.partition} is closed")
        try:
            if usable and (self._written or self._syncer.behind):
                # Not under the lock: another thread may be leading a sync and needs it to finish.
                self.flush()
                with self.lock:
                    self._active.write_sidecars(keyed=self.config.key_index_enable)
                    self._write_snapshot(self.next_offset)
                    self._syncer.sync_sidecars(self._active)
                    self._fs.sync_dir(self.directory)
                    self._write_tail(clean=True)
        finally:
            with self.lock:
                self._closed = True
                self._active.release_file()
        with self._arrived:
            self._arrived.notify_all()


__all__ = ["PartitionWriter", "WriterState"]
