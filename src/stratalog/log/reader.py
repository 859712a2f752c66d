"""Reading one partition by offset, across segments, whatever happens to the files meanwhile.

A reader works on a `LogView`: the writer in this process, or a directory that somebody else writes.
Offsets are the only position a reader keeps. When a file it was about to open is gone (cleaned,
deleted, swapped) it asks the view for a fresh list of segments and goes on from its offset, so
retention and compaction never disturb it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from stratalog.errors import CorruptionError, InvalidArgumentError, OffsetOutOfRangeError
from stratalog.format import batch as batches
from stratalog.format.batch import Scan
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.chunks import FIRST_CHUNK, FULL_CHUNK, Chunk, read_chunks
from stratalog.log.resync import next_valid
from stratalog.log.segment import Segment, Start
from stratalog.model import Record

Isolation = Literal["read_uncommitted", "read_committed"]
END = 2**63 - 1
MAX_RELISTS = 50


class LogView(Protocol):
    """What readers need of a partition. Every method may be called from any thread."""

    topic: str
    partition: int
    directory: str

    @property
    def log_start_offset(self) -> int: ...

    def refresh(self) -> None:
        """Look again: new segments, a new end. Free where the view is always current."""

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        """The first offset readers may not see: the high watermark, or the last stable offset."""

    def segments(self) -> tuple[Segment, ...]:
        """The segments in offset order, the active one last."""

    def replaced(self, segment: Segment) -> bool:
        """True when the segment's file is no longer the one listed: another process cleaned or deleted it."""

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions that overlap the offsets [start, end)."""

    def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until ``offset`` may be read; False on time-out."""


def check_isolation(isolation: str) -> Isolation:
    if isolation not in ("read_uncommitted", "read_committed"):
        raise InvalidArgumentError(
            f"isolation {isolation!r} is not known; use 'read_uncommitted' or 'read_committed'"
        )
    return isolation  # type: ignore[return-value]


def check_start(view: LogView, start: int, isolation: Isolation) -> None:
    """Raise when ``start`` is outside the log; the end itself is inside (nothing to read yet)."""
    first, end = view.log_start_offset, view.end_offset("read_uncommitted")
    if not first <= start <= end:
        raise OffsetOutOfRangeError(
            f"{view.topic}-{view.partition}: offset {start} is outside the log, which holds {first} to {end}"
            " (the end is not included)",
            offset=start,
            first=first,
            end=end,
        )


@contextmanager
def or_gone(view: LogView, segment: Segment) -> Iterator[None]:
    """Around work on a segment: what looks like damage because it was replaced is FileNotFoundError."""
    try:
        yield
    except CorruptionError as error:
        if not view.replaced(segment):
            raise
        raise FileNotFoundError(segment.path()) from error


def segment_index(segments: tuple[Segment, ...], offset: int) -> int:
    """Index of the segment that would hold ``offset``: the last one that does not begin after it."""
    return max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)


def iter_chunks(
    view: LogView,
    start: int,
    end: int,
    *,
    first_size: int = FIRST_CHUNK,
    full_size: int = FULL_CHUNK,
    skip_damaged: bool = False,
) -> Iterator[tuple[Segment, Chunk, int]]:
    """Checked chunks that hold the offsets [start, end), in order, each with the first offset not to take.

    The first chunk may begin before ``start``. A segment is only read up to the base of the next one: while
    a cleaned segment is being swapped in, old and new may both be in sight.
    """
    offset, relists = start, 0
    while offset < end:
        segments = view.segments()
        if not segments:
            return
        try:
            for segment in segments[segment_index(segments, offset) :]:
                stop = end
                if not segment.is_active and segment.next_offset is not None:
                    stop = min(end, segment.next_offset)
                if segment.base_offset >= end:
                    return
                if offset >= stop:
                    continue
                for chunk in _segment_chunks(view, segment, offset, first_size, full_size, skip_damaged):
                    if chunk.scan.last_offset >= offset:
                        yield segment, chunk, stop
                        offset = chunk.scan.last_offset + 1
                        first_size = full_size
                    if offset >= stop:
                        break
                if not segment.is_active:
                    if view.replaced(segment):
                        raise FileNotFoundError(segment.path())
                    offset = stop
                relists = 0
            return
        except (FileNotFoundError, CorruptionError) as error:
            if isinstance(error, CorruptionError) and not view.replaced(segment):
                raise
            # Cleaned or deleted under us. The offset is all we need to find our place again.
            relists += 1
            if relists > MAX_RELISTS:
                raise
            for segment in segments:
                segment.forget()
            view.refresh()
            offset = max(offset, view.log_start_offset)


def _segment_chunks(
    view: LogView, segment: Segment, offset: int, first_size: int, full_size: int, skip_damaged: bool
) -> Iterator[Chunk]:
    start = segment.start_for(offset)
    while True:
        try:
            yield from read_chunks(
                segment,
                start,
                offset=offset,
                first_size=first_size,
                full_size=full_size,
            )
            return
        except CorruptionError as error:
            if not skip_damaged:
                raise
            position = next_valid(segment, max(error.position, start.position) + 1)
            if position is None:
                return
            start = Start(position, None)


def aborted_rows(scan: Scan, aborted: list[AbortedTxn]) -> frozenset[int] | None:
    """Rows of a scan that belong to an aborted transaction; None when there are none to leave out."""
    if not aborted:
        return None
    rows = []
    for row, header in enumerate(scan):
        if not header.is_transactional or header.is_control:
            continue
        for txn in aborted:
            if (
                txn.producer_id == header.producer_id
                and txn.first_offset <= header.base_offset <= txn.last_offset
            ):
                rows.append(row)
                break
    return frozenset(rows) if rows else None


def read_records(
    view: LogView,
    start: int | None = None,
    end: int | None = None,
    *,
    isolation: Isolation = "read_uncommitted",
    follow: bool = False,
    skip_damaged: bool = False,
    poll_timeout_s: float | None = None,
) -> Iterator[Record]:
    """Records with offsets in [start, end), lazily. ``follow`` waits for more at the end of the log.

    ``poll_timeout_s`` bounds the wait for the next record when following; None waits for ever.
    """
    view.refresh()
    offset = view.log_start_offset if start is None else start
    check_start(view, offset, isolation)
    limit = END if end is None else end
    while True:
        visible = min(view.end_offset(isolation), limit)
        if offset < visible:
            aborted = view.aborted(offset, visible) if isolation == "read_committed" else []
            for segment, chunk, stop in iter_chunks(view, offset, visible, skip_damaged=skip_damaged):
                yield from _decode(view, segment, chunk, offset, stop, aborted)
                offset = max(offset, min(chunk.scan.last_offset + 1, stop))
            offset = visible
        if not follow or offset >= limit:
            return
        if not view.wait(offset + 1, 3600.0 if poll_timeout_s is None else poll_timeout_s):
            if poll_timeout_s is not None:
                return
            continue
        view.refresh()


RECORDS_AT_ONCE = 64 << 10
"""Bytes of batches decoded at a time for `read`: a reader that stops early has not paid for a chunk."""


def _decode(
    view: LogView, segment: Segment, chunk: Chunk, lo: int, hi: int, aborted: list[AbortedTxn]
) -> Iterator[Record]:
    scan = chunk.scan
    skip = aborted_rows(scan, aborted)
    row = scan.find_offset(lo)
    while row < scan.n:
        first = scan.header(row)
        if first.base_offset >= hi:
            return
        last = row + 1
        if scan.end - first.position > RECORDS_AT_ONCE:
            last = max(last, scan.find_position(first.position + RECORDS_AT_ONCE))
        else:
            last = scan.n
        try:
            records = batches.decode_records(
                chunk.data,
                scan,
                row,
                last,
                topic=view.topic,
                partition=view.partition,
                lo=lo,
                hi=hi,
                skip=skip,
            )
        except CorruptionError as error:
            raise error.at(segment.path(), chunk.position) from error
        yield from records
        row = last
