"""The one writer of a partition: an `Appender`, and what time and the store ask of it besides.

Crash policy: closing in order writes what makes the next open cheap; nothing depends on it.
"""

from __future__ import annotations

from stratalog.errors import (
    ClosedError,
    ForkedError,
    InvalidArgumentError,
    LogDirOfflineError,
    StorageError,
    StratalogError,
)
from stratalog.log.appender import Appender, WriterState
from stratalog.log.roll import roll_due_idle
from stratalog.log.segment import Segment

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

    def advance_log_start(self, offset: int) -> list[Segment]:
        """Move the log start offset up; returns the sealed segments wholly below it, which are hidden now."""
        with self.lock:
            self.make_usable()
            if offset > self.high_watermark:
                raise InvalidArgumentError(
                    f"{self.topic}-{self.partition}: cannot delete up to offset {offset}, the log ends at"
                    f" {self.high_watermark}"
                )
            if offset <= self._log_start_offset:
                return []
            self._log_start_offset = offset
            gone = [
                segment
                for segment in self._segments[:-1]
                if segment.next_offset is not None and segment.next_offset <= offset
            ]
            self._segments = tuple(segment for segment in self._segments if segment not in gone)
            self._syncer.dropped(gone)
            self.producers.truncate_head(offset)
            return gone

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
