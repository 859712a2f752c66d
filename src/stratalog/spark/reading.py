"""Read one range of offsets on an executor.

The files are found when they are read. One that is replaced, sealed, archived or moved meanwhile is looked
for again by offset, locally and then in the archive. Offsets are lost only when the log itself begins later
than it did, and that is always reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stratalog.format.txn_index import AbortedTxn
from stratalog.log.read.arrow_scan import ScanOptions, ScanRange, scan_to_arrow
from stratalog.log.read.reader import Isolation, LogView, segment_index
from stratalog.log.segment.segment import Segment
from stratalog.spark.logs import Logs
from stratalog.spark.planning import GONE, MADE_ANEW, LogRange, Losses, pair_of
from stratalog.spark.schema import nulls_for_no_headers, to_spark

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 8 << 20
"""Larger than for a scan in one process: every record batch has a cost in Spark."""
JOINED_BYTES = 1 << 20
"""Smaller record batches, of small segments, are joined up to this size, for the same reason."""
TOTALS_CHUNK_BYTES = 4 << 20
"""Smaller: the processor's caches still hold what was read when its CRCs are checked."""
STEP_BYTES = 8 << 20
"""A range is read in steps that end with a segment, so that a loss is known to lie behind the last step."""


def read_range(
    logs: Logs, part: LogRange, names: Sequence[str], isolation: Isolation, losses: Losses
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, and of those that share its task, with Spark's types."""
    options = ScanOptions(tuple(names), isolation=isolation, chunk_bytes=CHUNK_BYTES)
    yield from _read(logs, part, options, losses)


def read_rows(
    logs: Logs, part: LogRange, names: Sequence[str], isolation: Isolation, losses: Losses
) -> Iterator[pa.RecordBatch]:
    """Yield the same as a table shows it: as with Spark's Kafka source, no headers are NULL."""
    for batch in _joined(read_range(logs, part, names, isolation, losses)):
        yield nulls_for_no_headers(batch) if "headers" in names else batch


def read_totals(
    logs: Logs, part: LogRange, names: Sequence[str], isolation: Isolation, losses: Losses
) -> Iterator[pa.RecordBatch]:
    """Yield totals of the same rows."""
    options = ScanOptions(tuple(names), isolation=isolation, chunk_bytes=TOTALS_CHUNK_BYTES, totals=True)
    yield from _joined(_read(logs, part, options, losses))


def _joined(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows without small record batches."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in found:
        held.append(batch)
        size += batch.nbytes
        if size >= JOINED_BYTES:
            yield from _one(held)
            held, size = [], 0
    yield from _one(held)


def _one(held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    import pyarrow as pa

    return held if len(held) < 2 else pa.Table.from_batches(held).combine_chunks().to_batches()


def _read(logs: Logs, part: LogRange, options: ScanOptions, losses: Losses) -> Iterator[pa.RecordBatch]:
    for each in part.each():
        bounded = replace(options, since=each.since_ms, until=each.until_ms, threads=1)
        yield from _read_one(logs, each, bounded, losses)


def _read_one(logs: Logs, part: LogRange, options: ScanOptions, losses: Losses) -> Iterator[pa.RecordBatch]:
    try:
        view = logs.view(part.topic, part.partition)
        view.refresh()
        made_anew = bool(part.topic_id) and logs.topic_id(part.topic) != part.topic_id
    except GONE:
        losses.lost_partition(pair_of(part), part.start)
        return
    if made_anew:
        losses.lost_partition(pair_of(part), part.start, MADE_ANEW)
        return
    start, end = losses.within(
        pair_of(part), part.start, part.end, view.log_start_offset, view.end_offset(options.isolation)
    )
    while start < end:
        stop = _step(view, start, end)
        watched = Watched(view, start, losses)
        scan = scan_to_arrow([ScanRange(watched, start, stop, pass_deleted=True)], options)
        try:
            for batch in scan:
                yield to_spark(batch, options.columns)
        except GONE:
            if not _is_gone(view):
                raise
            losses.lost_partition(pair_of(part), start)
            return
        start = stop


def _is_gone(view: LogView) -> bool:
    """Return True if the partition itself was deleted, not only the files that were being read."""
    try:
        view.refresh()
    except GONE:
        return True
    return False


def _step(view: LogView, start: int, end: int) -> int:
    size = 0
    segments = view.segments()
    for segment in segments[segment_index(segments, start) :]:
        following = segment.next_offset
        if segment.is_active or following is None or following >= end:
            break
        if following > start:
            size += segment.size
            if size >= STEP_BYTES:
                return following
    return end


class Watched:
    """A `LogView` that reports when what is being read is deleted.

    A scan reads the log start offset when it begins, and again after it found a file gone: then everything
    from where this step began, up to that offset, may not have been read.
    """

    def __init__(self, view: LogView, floor: int, losses: Losses) -> None:
        self.topic = view.topic
        self.partition = view.partition
        self.directory = view.directory
        self._view = view
        self._floor = floor
        self._losses = losses

    @property
    def log_start_offset(self) -> int:
        first = self._view.log_start_offset
        if first > self._floor:
            pair = (self.topic, self.partition)
            self._losses.lost(pair, self._floor, first, first, self._view.end_offset())
            self._floor = first
        return first

    def refresh(self) -> None:
        self._view.refresh()

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        return self._view.end_offset(isolation)

    def segments(self) -> tuple[Segment, ...]:
        return self._view.segments()

    def replaced(self, segment: Segment) -> bool:
        return self._view.replaced(segment)

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        return self._view.aborted(start, end)

    def wait(self, offset: int, timeout_s: float, isolation: Isolation = "read_uncommitted") -> bool:
        return self._view.wait(offset, timeout_s)
