"""Reading one partition by offset, across segments, whatever happens to the files meanwhile.

A reader works on a `LogView`: the writer in this process, or a directory that another process writes.
Offsets are the only position a reader keeps. When a file it was about to open is gone (cleaned,
archived, swapped) it asks the view for a fresh list of segments and goes on from its offset, so
compaction never disturbs it. When the log start passes its position, because records were deleted, it
ends with `OffsetOutOfRangeError`, as a Kafka consumer does: it never passes over them in silence.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from operator import attrgetter
from types import TracebackType
from typing import Literal, Protocol, TypeVar

from stratalog import locks
from stratalog.errors import CorruptionError, InvalidArgumentError, OffsetOutOfRangeError
from stratalog.format import batch as batches
from stratalog.format.batch import Scan
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.check.damage import UNKNOWN, Damage
from stratalog.log.check.resync import next_valid
from stratalog.log.read.chunks import FIRST_CHUNK, FULL_CHUNK, Chunk, read_chunks
from stratalog.log.read.gaps import check_joined, missing_in
from stratalog.log.segment.segment import Segment, Start
from stratalog.model import Record

T = TypeVar("T")
SkipDamaged = bool | Callable[[Damage], None]
Isolation = Literal["read_uncommitted", "read_committed"]
END = 2**63 - 1
MAX_RELISTS = 50
_base_offset = attrgetter("base_offset")


class LogView(Protocol):
    """A partition as readers need it. Every method may be called from any thread."""

    topic: str
    partition: int
    directory: str

    @property
    def log_start_offset(self) -> int: ...

    def refresh(self) -> None:
        """Look for new segments and a new end. Free where the view is always current."""

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        """Return the first offset readers may not see: the high watermark, or the last stable offset."""

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments in offset order, the active one last."""

    def replaced(self, segment: Segment) -> bool:
        """Return whether another process has cleaned or deleted the segment's file since it was listed."""

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap the offsets [start, end)."""

    def wait(self, offset: int, timeout_s: float, isolation: Isolation = "read_uncommitted") -> bool:
        """Wait until everything below ``offset`` may be read; return False on time-out."""


class KeyedView(LogView, Protocol):
    """A partition whose records can be found by key."""

    def keyed_end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        """Return an end offset such that a lookup by key that begins now finds every key below it."""


def check_isolation(isolation: str) -> Isolation:
    if isolation not in ("read_uncommitted", "read_committed"):
        raise InvalidArgumentError(
            f"isolation {isolation!r} is not known; use 'read_uncommitted' or 'read_committed'"
        )
    return isolation  # type: ignore[return-value]


def check_start(view: LogView, start: int, isolation: Isolation) -> None:
    """Raise OffsetOutOfRangeError if ``start`` is outside the log; the end itself is inside."""
    first, end = view.log_start_offset, view.end_offset("read_uncommitted")
    if not first <= start <= end:
        raise out_of_range(view, start, first, end)


def out_of_range(view: LogView, offset: int, first: int, end: int) -> OffsetOutOfRangeError:
    """Build the error for an offset outside [first, end]."""
    return OffsetOutOfRangeError(
        f"{view.topic}-{view.partition}: offset {offset} is out of range: {_holds(first, end)}",
        offset=offset,
        first=first,
        end=end,
    )


def _holds(first: int, end: int) -> str:
    return f"the log holds offsets {first}-{end - 1}" if first < end else f"the log is empty at offset {end}"


def check_not_passed(view: LogView, offset: int) -> None:
    """Raise OffsetOutOfRangeError if the log start has passed the position of a reader.

    Call it after listing segments: they leave the list after the log start has moved.
    """
    first = view.log_start_offset
    if first > offset:
        end = view.end_offset()
        raise OffsetOutOfRangeError(
            f"{view.topic}-{view.partition}: offsets {offset} to {first - 1} were deleted while they were"
            f" being read; {_holds(first, end)}: continue from {first}",
            offset=offset,
            first=first,
            end=end,
        )


def segments_between(
    segments: Sequence[Segment], start: int, end: int
) -> Iterator[tuple[Segment, Segment | None, int]]:
    """Yield the segments of [start, end): each with the next one and the first offset not to read of it."""
    first = segment_index(segments, start) if segments else 0
    for segment, following in zip_longest(segments[first:], segments[first + 1 :]):
        if segment.base_offset >= end:
            return
        bounded = not segment.is_active and segment.next_offset is not None
        yield segment, following, min(end, segment.next_offset or 0) if bounded else end


class Relists:
    """Bounds how often a read may start over because the file of a segment was gone.

    A file may vanish once for each cleaning or deletion, and the view then lists others. A file that is still
    listed and still gone after `MAX_RELISTS` tries without progress is missing: CorruptionError names it.
    """

    __slots__ = ("_mark", "_tries", "_view")

    def __init__(self, view: LogView) -> None:
        self._view = view
        self._mark = -1
        self._tries = 0

    def again(self, error: FileNotFoundError | CorruptionError, mark: int = 0) -> None:
        """Refresh the view for another try; a changed ``mark``, the reader's position, counts as progress."""
        if mark != self._mark:
            self._mark, self._tries = mark, 0
        self._tries += 1
        if self._tries > MAX_RELISTS:
            if isinstance(error, CorruptionError):
                raise error
            path = error.filename or (error.args[0] if error.args else self._view.directory)
            raise CorruptionError("the file is gone, but the log lists it", path=str(path)) from error
        self._view.refresh()


def relisting(view: LogView, look: Callable[[], T]) -> T:
    """Return ``look()``; look again when a file was removed, replaced or moved meanwhile."""
    relists = Relists(view)
    while True:
        try:
            return look()
        except FileNotFoundError as error:
            relists.again(error)


class or_gone:  # noqa: N801 - reads as `with or_gone(…):`
    """Turn CorruptionError into FileNotFoundError for a segment that was replaced meanwhile."""

    __slots__ = ("_segment", "_view")

    def __init__(self, view: LogView, segment: Segment) -> None:
        self._view = view
        self._segment = segment

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, CorruptionError) and self._view.replaced(self._segment):
            raise FileNotFoundError(self._segment.path()) from error


def segment_index(segments: Sequence[Segment], offset: int) -> int:
    """Return the index of the last segment that does not begin after ``offset``."""
    if segments[-1].base_offset <= offset:
        return len(segments) - 1
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def iter_chunks(
    view: LogView,
    start: int,
    end: int,
    *,
    first_size: int = FIRST_CHUNK,
    full_size: int = FULL_CHUNK,
    skip_damaged: SkipDamaged = False,
    pass_deleted: bool = False,
) -> Iterator[tuple[Segment, Chunk, int]]:
    """Yield checked chunks that hold the offsets [start, end), each with the first offset not to take.

    The first chunk may begin before ``start``. A segment is only read up to the base of the next one: while a
    cleaned segment is being swapped in, old and new may both be visible. Offsets missing between two segments
    or at the end are damage (`gaps`), unless ``skip_damaged``. Offsets that are deleted meanwhile are an
    OffsetOutOfRangeError, unless ``pass_deleted``.
    """
    offset, relists = start, Relists(view)
    while offset < end:
        segments = view.segments()
        if pass_deleted:
            offset = max(offset, view.log_start_offset)
        else:
            check_not_passed(view, offset)
        if not segments:
            return
        segment = segments[-1]
        try:
            for segment, following, stop in segments_between(segments, offset, end):
                begin = offset
                if offset < stop:
                    for chunk in _segment_chunks(view, segment, offset, first_size, full_size, skip_damaged):
                        if chunk.scan.last_offset >= offset:
                            yield segment, chunk, stop
                            offset = min(chunk.scan.last_offset + 1, stop)
                            first_size = full_size
                        if offset >= stop:
                            break
                    if not segment.is_active and view.replaced(segment):
                        raise FileNotFoundError(segment.path())
                if not skip_damaged:
                    check_joined(view, segment, following, begin, end)
                elif callable(skip_damaged):
                    with suppress(CorruptionError):  # of the segment itself, which was skipped already
                        lost = missing_in(view, segment, following, begin, end)
                        if lost is not None:
                            skip_damaged(lost)
                if not segment.is_active:
                    offset = max(offset, stop)
            return
        except (FileNotFoundError, CorruptionError) as error:
            if isinstance(error, CorruptionError) and not view.replaced(segment):
                raise
            # Cleaned or deleted under us. The offset is all we need to find our place again.
            for segment in segments:
                segment.forget()
            relists.again(error, offset)


def _segment_chunks(
    view: LogView,
    segment: Segment,
    offset: int,
    first_size: int,
    full_size: int,
    skip_damaged: SkipDamaged,
) -> Iterator[Chunk]:
    start = segment.start_for(offset)
    skipped: Damage | None = None
    following = max(offset, segment.base_offset)

    def tell(end: int) -> None:
        """Name the range that was skipped, now that it is known where the log goes on."""
        if skipped is not None and callable(skip_damaged):
            lost = (skipped.first_offset, end - 1) if end > skipped.first_offset else (UNKNOWN, UNKNOWN)
            skip_damaged(replace(skipped, first_offset=lost[0], last_offset=lost[1]))

    while True:
        try:
            for chunk in read_chunks(
                segment,
                start,
                offset=offset,
                first_size=first_size,
                full_size=full_size,
            ):
                if skipped is not None:
                    tell(chunk.scan.first_base_offset)
                    skipped = None
                following = max(following, chunk.scan.last_offset + 1)
                yield chunk
            tell(segment.next_offset or following)
            return
        except CorruptionError as error:
            if not skip_damaged:
                raise
            damaged = max(error.position, start.position)
            position = next_valid(segment, damaged + 1)
            end = segment.size if position is None else position
            if skipped is None:
                skipped = Damage(segment.path(), damaged, end, following, UNKNOWN, error.reason)
            else:
                skipped = replace(skipped, end=end)
            if position is None:
                tell(segment.next_offset or following)
                return
            start = Start(position, None)


def aborted_rows(scan: Scan, aborted: list[AbortedTxn]) -> frozenset[int] | None:
    """Return the rows of a scan that belong to an aborted transaction; None when there are none."""
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
    skip_damaged: SkipDamaged = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Yield the records with offsets in [start, end), up to the end of the log.

    ``start`` None is the log's start, also when that moves before the first record is found. ``skip_damaged``
    goes on behind damage; a function gets each skipped range. ``stopped`` is asked between batches whether to
    end.
    """
    view.refresh()
    offset = view.log_start_offset if start is None else start
    check_start(view, offset, isolation)
    pid = os.getpid()
    limit = END if end is None else end
    visible = min(view.end_offset(isolation), limit)
    while offset < visible:
        aborted = view.aborted(offset, visible) if isolation == "read_committed" else []
        try:
            for segment, chunk, stop in iter_chunks(view, offset, visible, skip_damaged=skip_damaged):
                start = offset  # from now on this is where it began
                yield from _decode(view, segment, chunk, offset, stop, aborted)
                locks.check_process(pid)
                if stopped():
                    return
                offset = max(offset, min(chunk.scan.last_offset + 1, stop))
            return
        except OffsetOutOfRangeError as error:
            if start is not None:
                raise
            offset, visible = error.first, min(view.end_offset(isolation), limit)


RECORDS_AT_ONCE = 64 << 10
COMPRESSED_AT_ONCE = 8 << 10
"""Bytes of batches decoded at a time for `read`: a reader that stops early has not paid for a chunk, and
batches that are compressed far do not fill the memory."""


def _decode(
    view: LogView, segment: Segment, chunk: Chunk, lo: int, hi: int, aborted: list[AbortedTxn]
) -> Iterator[Record]:
    scan, bounds = chunk.scan, batches.Bounds(lo, hi)
    skip = aborted_rows(scan, aborted)
    row = scan.find_offset(lo)
    while row < scan.n:
        first = scan.header(row)
        if first.base_offset >= hi:
            return
        last = row + 1
        at_once = COMPRESSED_AT_ONCE if first.codec else RECORDS_AT_ONCE
        if scan.end - first.position > at_once:
            last = max(last, scan.find_position(first.position + at_once))
        else:
            last = scan.n
        yield from decode_rows(view, segment, chunk, row, last, bounds, skip)
        row = last


def decode_rows(
    view: LogView,
    segment: Segment,
    chunk: Chunk,
    first_row: int,
    end_row: int | None,
    bounds: batches.Bounds,
    skip: frozenset[int] | None,
) -> list[Record]:
    """Decode batches of a chunk into the records that lie within ``bounds``."""
    try:
        return batches.decode_records(
            chunk.data,
            chunk.scan,
            first_row,
            end_row,
            topic=view.topic,
            partition=view.partition,
            bounds=bounds,
            skip=skip,
        )
    except CorruptionError as error:
        raise error.at(segment.path(), chunk.position) from error
