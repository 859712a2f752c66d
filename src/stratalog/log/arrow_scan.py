"""Scanning to Arrow: ranges of segments read by a few threads at once, delivered in offset order.

A scan is cut into pieces of a few megabytes at places where a batch is known to begin: the blocks of a
seal, or entries of an index. Pieces that cannot hold a wanted record are left out before a byte is
read: by offset always; by time through the seal's minimum and maximum of each block, which are right
for timestamps in any order. Without a seal only a lower time bound can rule anything out.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptionError, InvalidArgumentError
from stratalog.format import arrow
from stratalog.format import batch as batches
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.chunks import read_chunks
from stratalog.log.reader import END, MAX_RELISTS, Isolation, LogView, aborted_rows, or_gone, segment_index
from stratalog.log.segment import Segment, Start

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ScanRange:
    """What to scan of one partition: offsets [start, end) as far as readers may see."""

    view: LogView
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What to deliver. Times are half-open, in milliseconds; None is no bound."""

    columns: tuple[str, ...]
    since: int | None = None
    until: int | None = None
    isolation: Isolation = "read_uncommitted"
    threads: int = 0
    """0 takes one per core, at most four."""
    chunk_bytes: int = CHUNK_BYTES
    """How much of a log is decoded into one record batch, about."""

    @property
    def schema(self) -> pa.Schema:
        return arrow.schema_for(self.columns)


class _Piece(NamedTuple):
    segment: Segment
    start: Start
    expect: int | None
    end_position: int | None
    lo: int
    hi: int


class _Found(NamedTuple):
    batches: list[pa.RecordBatch]
    next_offset: int
    """Everything below it in the piece's segment has been read."""


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns to deliver, in the order asked for; every column when None."""
    if columns is None:
        return tuple(arrow.COLUMNS)
    for name in columns:
        if name not in arrow.COLUMNS:
            raise InvalidArgumentError(f"no column {name!r}; there are {', '.join(arrow.COLUMNS)}")
    return tuple(columns)


def scan_to_arrow(ranges: Sequence[ScanRange], options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """Record batches of the ranges, one partition after the other, in offset order."""
    threads = options.threads or min(4, os.cpu_count() or 1)
    if threads <= 1:
        for scan_range in ranges:
            yield from _scan_range(scan_range, options, None, 0)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-scan") as pool:
        for scan_range in ranges:
            yield from _scan_range(scan_range, options, pool, threads + 2)


def _scan_range(
    scan_range: ScanRange, options: ScanOptions, pool: ThreadPoolExecutor | None, ahead: int
) -> Iterator[pa.RecordBatch]:
    view, offset, relists = scan_range.view, scan_range.start, 0
    aborted: list[AbortedTxn] = []
    if options.isolation == "read_committed":
        aborted = view.aborted(offset, scan_range.end)
    while offset < scan_range.end:
        pieces = _plan(view, offset, scan_range.end, options)
        running: deque[Future[_Found]] = deque()
        try:
            for piece in pieces:
                if pool is None:
                    found = _read(view, piece, options, aborted)
                else:
                    running.append(pool.submit(_read, view, piece, options, aborted))
                    if len(running) < ahead:
                        continue
                    found = running.popleft().result()
                yield from found.batches
                offset = max(offset, found.next_offset)
            while running:
                found = running.popleft().result()
                yield from found.batches
                offset = max(offset, found.next_offset)
            return
        except FileNotFoundError:
            relists += 1
            if relists > MAX_RELISTS:
                raise
            view.refresh()
            offset = max(offset, view.log_start_offset)
        finally:
            for future in running:
                future.cancel()


def _plan(view: LogView, start: int, end: int, options: ScanOptions) -> Iterator[_Piece]:
    segments = view.segments()
    if not segments:
        return
    for segment in segments[segment_index(segments, start) :]:
        if segment.base_offset >= end:
            return
        stop = end
        if not segment.is_active and segment.next_offset is not None:
            stop = min(end, segment.next_offset)
        if stop > max(start, segment.base_offset) and segment.size:
            with or_gone(view, segment):
                yield from _plan_segment(segment, start, stop, options)


def _plan_segment(segment: Segment, start: int, stop: int, options: ScanOptions) -> Iterator[_Piece]:
    seal = None if segment.is_active else segment.seal
    if seal is not None:
        yield from _by_seal(segment, start, stop, options)
        return
    since = options.since
    if since is not None and not segment.is_active:
        newest = segment.max_timestamp()
        if newest is not None and newest < since:
            return
    if since is not None:
        start = max(start, segment.first_offset_since(since))
        if start >= stop:
            return
    index = segment.offset_index()
    at = segment.start_for(start)
    for row in range(len(index)):
        last_offset, position = index.entry(row)
        if last_offset >= stop:
            break
        if position - at.position >= PIECE_BYTES:
            yield _Piece(segment, at, None, position, start, stop)
            at = Start(position, last_offset)
    yield _Piece(segment, at, None, None, start, stop)


def _by_seal(segment: Segment, start: int, stop: int, options: ScanOptions) -> Iterator[_Piece]:
    """Pieces along the seal's blocks, without the blocks whose offsets or times rule them out."""
    seal = segment.seal
    assert seal is not None
    first: int | None = None
    since = -END if options.since is None else options.since
    until = END if options.until is None else options.until

    def piece(begin: int, end: int) -> _Piece:
        block = seal.blocks[begin]
        end_position = seal.blocks[end].position if end < len(seal.blocks) else None
        return _Piece(
            segment,
            Start(block.position, None),
            block.first_offset,
            end_position,
            max(start, block.first_offset),
            stop,
        )

    for at, block in enumerate(seal.blocks):
        wanted = (
            block.last_offset >= start
            and block.first_offset < stop
            and block.max_timestamp >= since
            and block.min_timestamp < until
        )
        if first is not None and (not wanted or block.position - seal.blocks[first].position >= PIECE_BYTES):
            yield piece(first, at)
            first = None
        if wanted and first is None:
            first = at
    if first is not None:
        yield piece(first, len(seal.blocks))


def _read(view: LogView, piece: _Piece, options: ScanOptions, aborted: list[AbortedTxn]) -> _Found:
    """The record batches of one piece; FileNotFoundError when its file was replaced meanwhile."""
    with or_gone(view, piece.segment):
        found = _read_file(view, piece, options, aborted)
    if not piece.segment.is_active and view.replaced(piece.segment):
        raise FileNotFoundError(piece.segment.path())
    return found


def _read_file(view: LogView, piece: _Piece, options: ScanOptions, aborted: list[AbortedTxn]) -> _Found:
    found: list[pa.RecordBatch] = []
    next_offset = piece.lo
    for chunk in read_chunks(
        piece.segment,
        piece.start,
        offset=piece.lo,
        end_position=piece.end_position,
        expect=piece.expect,
        first_size=options.chunk_bytes,
        full_size=options.chunk_bytes,
    ):
        first = chunk.scan.find_offset(piece.lo)
        try:
            found += batches.decode_arrow(
                chunk.data,
                chunk.scan,
                first,
                columns=options.columns,
                topic=view.topic,
                partition=view.partition,
                lo=piece.lo,
                hi=piece.hi,
                since=options.since,
                until=options.until,
                skip=aborted_rows(chunk.scan, aborted),
            )
        except CorruptionError as error:
            raise error.at(piece.segment.path(), chunk.position) from error
        next_offset = min(chunk.scan.last_offset + 1, piece.hi)
        if next_offset >= piece.hi:
            break
    return _Found(found, next_offset)
