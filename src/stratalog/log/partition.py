"""What readers in the same process see of a partition that is being written.

The high watermark is the first offset they may not see. It moves after the bytes are written or, where
acknowledgements wait for the disk, after they are synced.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from stratalog.errors import ClosedError
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.context import LogContext
from stratalog.log.producers import ProducerState
from stratalog.log.reader import Isolation
from stratalog.log.segment import Segment
from stratalog.model import SegmentInfo


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
        self.high_watermark = 0
        self._segments = segments
        self._log_start_offset = log_start_offset
        self._closed = False
        self._arrived = threading.Condition(threading.Lock())
        self._waiters = 0

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    def refresh(self) -> None:
        """Nothing to do: this view is always current."""

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        if isolation == "read_committed":
            with self.lock:
                return self.producers.last_stable_offset(self.high_watermark)
        return self.high_watermark

    def segments(self) -> tuple[Segment, ...]:
        return self._segments

    def replaced(self, segment: Segment) -> bool:
        return False

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        return aborted_in(self._segments, start, end)

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
        return [segment.info() for segment in self._segments]


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
