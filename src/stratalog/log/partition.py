"""What readers in the same process see of a partition that is being written.

The high watermark is the first offset they may not see. It moves after the bytes are written or, where
acknowledgements wait for the disk, after they are synced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from stratalog.errors import ClosedError, CorruptionError
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.context import LogContext
from stratalog.log.producers import ProducerState
from stratalog.log.reader import MAX_RELISTS, Isolation, LogView
from stratalog.log.segment import Segment
from stratalog.model import SegmentInfo

T = TypeVar("T")


class WrittenLog:
    """The `LogView` of a partition this process writes; `PartitionWriter` is the part that writes."""

    def __init__(
        self,
        context: LogContext,
        directory: str,
        topic: str,
        partition: int,
        segments: tuple[Segment, ...],
        log_start_offset: int,
        producers: ProducerState,
    ) -> None:
        self.context = context
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.producers = producers
        self.lock = threading.RLock()
        self.maintenance = threading.RLock()
        """Held while sealed segments are replaced or removed; taken before ``lock``."""
        self.high_watermark = 0
        self._segments = segments
        self._cold: tuple[Segment, ...] = ()
        self._swapping = False
        self._log_start_offset = log_start_offset
        self._closed = False
        self._arrived = threading.Condition(threading.Lock())
        self._waiters = 0

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    def refresh(self) -> None:
        """This view is always current; while files are being swapped it will be in a moment."""
        if self._swapping:
            with self.maintenance:
                return

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        if isolation == "read_committed":
            with self.lock:
                # Retention may pass an open transaction; the end is never before the start.
                return max(self.producers.last_stable_offset(self.high_watermark), self.log_start_offset)
        return self.high_watermark

    def segments(self) -> tuple[Segment, ...]:
        return with_cold(self._cold, self._segments)

    def local_segments(self) -> tuple[Segment, ...]:
        """The segments that lie in this directory; those before them are in the archive."""
        return self._segments

    @property
    def is_tiered(self) -> bool:
        """True when the archive has segments of this partition."""
        return bool(self._cold)

    def attach_cold(self, cold: Sequence[Segment], log_start_offset: int) -> None:
        """What the archive has of this partition, ascending; the log begins at ``log_start_offset`` or there.

        Where a segment is both here and there, the one here is read.
        """
        with self.lock:
            self._cold = tuple(cold)
            first = self.segments()[0].base_offset
            self._log_start_offset = max(first, min(log_start_offset, self.high_watermark))

    def replaced(self, segment: Segment) -> bool:
        self.refresh()
        return segment not in self._segments and segment not in self._cold

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        while True:
            self.refresh()
            segments = self.segments()
            try:
                found = aborted_in(segments, start, end)
            except (CorruptionError, FileNotFoundError):
                if not self._swapping and segments[:-1] == self.segments()[: len(segments) - 1]:
                    raise
                continue
            # An index that was renamed away meanwhile looks like one that was never there.
            if not self._swapping and segments[:-1] == self.segments()[: len(segments) - 1]:
                return found

    def wait(self, offset: int, timeout_s: float) -> bool:
        with self._arrived:
            self._waiters += 1
            try:
                self._arrived.wait_for(lambda: self.high_watermark >= offset or self._closed, timeout_s)
            finally:
                self._waiters -= 1
        if self._closed and self.high_watermark < offset:
            raise ClosedError(f"{self.topic}-{self.partition}: the store was closed")
        return self.high_watermark >= offset

    def _advance(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        if self._waiters:
            with self._arrived:
                self._arrived.notify_all()

    def segment_infos(self) -> list[SegmentInfo]:
        return of_segments(self, lambda segment: segment.info())


def with_cold(cold: tuple[Segment, ...], local: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Archived segments as far as they lie below the local ones, then those."""
    if not cold:
        return local
    base = local[0].base_offset if local else 2**63 - 1
    below = tuple(segment for segment in cold if segment.base_offset < base)
    return (*below, *local)


def of_segments(view: LogView, tell: Callable[[Segment], T]) -> list[T]:
    """What ``tell`` says of every segment; asked again when one was removed or replaced meanwhile."""
    for _ in range(MAX_RELISTS):
        segments = view.segments()
        with suppress(FileNotFoundError):
            found = [tell(segment) for segment in segments]
            if segments[:-1] == view.segments()[: len(segments) - 1]:
                return found
        view.refresh()
    return [tell(segment) for segment in view.segments()]


def aborted_in(segments: Sequence[Segment], start: int, end: int) -> list[AbortedTxn]:
    """Aborted transactions that overlap [start, end).

    A transaction may begin in one segment and be aborted in a later one, whose index then lists it: so
    every segment from the one holding ``start`` on is asked.
    """
    found: list[AbortedTxn] = []
    for segment in segments:
        if segment.next_offset is None or segment.next_offset > start:
            found += [txn for txn in segment.aborted() if txn.last_offset >= start and txn.first_offset < end]
    return found
