"""Scanning to Arrow: ranges of segments read by a few threads at once, delivered in offset order.

A scan is cut into pieces of a few megabytes at places where a batch is known to begin: the blocks of a
seal, or entries of an index. Pieces that cannot hold a wanted record are left out before a byte is
read: by offset always; by time through the seal's minimum and maximum of each block, which are right
for timestamps in any order. Without a seal only a lower time bound can rule anything out.

Memory is bounded in decoded bytes, whatever the batches are compressed to: a thread decodes about 8 MiB of
records (or one batch, if that is larger) into a record batch and hands it over before it goes on. Threads
that are ahead of the caller wait while `WINDOW_BYTES` of record batches are waiting to be taken.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stratalog import locks
from stratalog.errors import CorruptionError, InvalidArgumentError, again
from stratalog.format import batch as batches
from stratalog.format.seal import Seal
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.read.chunks import Chunk, read_chunks, read_joined
from stratalog.log.read.gaps import check_joined
from stratalog.log.read.reader import (
    END,
    Isolation,
    LogView,
    Relists,
    aborted_rows,
    check_not_passed,
    or_gone,
    segments_between,
)
from stratalog.log.segment.segment import Segment, Start

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_BYTES = 8 << 20
CHUNK_BYTES = 1 << 20
WINDOW_BYTES = 64 << 20
SMALL_BYTES = 256 << 10
"""Neighbouring segments up to this size are read as one: each by itself costs more than its records."""
HANDOVER_BYTES = 4 << 20
"""A thread hands over about this much at a time: each hand-over wakes the other threads."""


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Offsets [start, end) of one partition, as far as readers may see.

    Offsets that are deleted meanwhile are an OffsetOutOfRangeError. ``from_log_start``: not those below the
    first record that is found. ``pass_deleted``: the scan goes on behind them; the view's log start is read
    after each listing.
    """

    view: LogView
    start: int
    end: int
    from_log_start: bool = False
    pass_deleted: bool = False


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
    totals: bool = False
    """Deliver totals of each chunk in place of its records: see `stratalog.format.batch.totals`."""

    @property
    def schema(self) -> pa.Schema:
        return batches.schema_for(self.columns)


class _Piece(NamedTuple):
    segment: Segment
    start: Start
    expect: int | None
    end_position: int | None
    lo: int
    hi: int
    lost: CorruptionError | None = None
    """Damage found while planning; it is raised in the piece's turn, behind all records before it."""
    also: tuple[Segment, ...] = ()
    """Small segments that are read whole with this one, and the one behind them, which is not."""


class _Found(NamedTuple):
    batch: pa.RecordBatch | None
    next_offset: int
    """Everything below it in the piece's segment has been read."""


class _Stopped(Exception):  # noqa: N818 - ends a thread, is never seen outside
    """The caller takes no more."""


class _Delivery:
    """What a thread has read of a piece and the caller has not taken."""

    __slots__ = ("found", "future")

    def __init__(self) -> None:
        self.found: deque[tuple[list[_Found], int]] = deque()
        self.future: Future[None] | None = None


class _Window:
    """Bounds the bytes between the threads and the caller.

    A thread waits in `fill` while the window is full, except the one whose piece the caller takes from: it
    may always add one. Threads begin pieces in order, so that piece has always been begun.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._changed = locks.condition("scan")
        self._waiting_bytes = 0
        self._taken_from: _Delivery | None = None
        self._stopped = False
        self._pid = os.getpid()

    def fill(self, delivery: _Delivery, found: Iterator[_Found]) -> None:
        """Put everything of a piece, some megabytes at a time; runs in a thread."""
        held: list[_Found] = []
        size = 0
        try:
            for each in found:
                held.append(each)
                size += 0 if each.batch is None else each.batch.nbytes
                if size >= HANDOVER_BYTES:
                    full, held = held, []
                    self._put(delivery, full, size)
                    size = 0
        finally:  # an error is raised behind what was read before it
            if held:
                self._put(delivery, held, size)

    def _put(self, delivery: _Delivery, found: list[_Found], size: int) -> None:
        with self._changed.lock:
            while not self._stopped and self._waiting_bytes + size > self._limit:
                if self._taken_from is delivery and not delivery.found:
                    break
                self._changed.wait(locks.RECHECK_S)
            if self._stopped:
                raise _Stopped
            delivery.found.append((found, size))
            self._waiting_bytes += size
            self._changed.notify_all()

    def drain(self, delivery: _Delivery) -> Iterator[_Found]:
        """Take everything of a piece, in order; then raise what its thread raised."""
        future = delivery.future
        assert future is not None
        future.add_done_callback(lambda _: self.wake())
        while True:
            locks.check_process(self._pid)  # a forked child has none of the threads
            with self._changed.lock:
                self._taken_from = delivery
                self._changed.notify_all()
                self._changed.wait_for(lambda: delivery.found or future.done())
                if not delivery.found:
                    break
                found, size = delivery.found.popleft()
                self._waiting_bytes -= size
                self._changed.notify_all()
            yield from found
        future.result()

    def wake(self) -> None:
        with self._changed.lock:
            self._changed.notify_all()

    def stop(self) -> None:
        """End the threads that wait."""
        if os.getpid() != self._pid or sys.is_finalizing():  # ended, perhaps with the lock held
            return
        with self._changed.lock:
            self._stopped = True
            self._changed.notify_all()


_Job: TypeAlias = "tuple[Future[None], Callable[[], None]] | None"


class _Threads:
    """Daemon threads for one scan, so that a scan not read to its end does not keep a program alive.

    The threads of `concurrent.futures` would: the interpreter waits for them before it drops the scan.
    """

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._count = count
        self._threads: list[threading.Thread] = []
        self._started = 0

    def submit(self, job: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._jobs.put((future, job))
        self._threads = self._threads or [
            threading.Thread(target=_work, args=(self._jobs,), name=f"stratalog-scan-{number}", daemon=True)
            for number in range(self._count)
        ]
        if self._started < len(self._threads):
            self._threads[self._started].start()
            self._started += 1
        return future

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)
        if not sys.is_finalizing():
            for thread in self._threads:
                if thread.is_alive():
                    thread.join()

    def __del__(self) -> None:
        self._jobs.put(None)  # where an interrupt came before the end of the `with` block


def _work(jobs: SimpleQueue[_Job]) -> None:
    """Do jobs until one is None, which the other threads get too; hold no reference to the scan.

    It counts no threads: an interrupt may leave one running that is not in the list.
    """
    while (job := jobs.get()) is not None:
        future, act = job
        if future.set_running_or_notify_cancel():
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - raised where the result is taken
                future.set_exception(error)
            else:
                future.set_result(None)
        del future, act, job
    jobs.put(None)


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to deliver, in the given order; every column when None."""
    if columns is None:
        return tuple(batches.COLUMNS)
    for name in columns:
        if name not in batches.COLUMNS:
            raise InvalidArgumentError(f"no column {name!r}; there are {', '.join(batches.COLUMNS)}")
    return tuple(columns)


def scan_to_arrow(ranges: Sequence[ScanRange], options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """Yield record batches of the ranges, one partition after the other, in offset order."""
    threads = options.threads or min(4, os.cpu_count() or 1)
    if threads <= 1:
        for scan_range in ranges:
            yield from _scan_range(scan_range, options, None, 0)
        return
    with _Threads(threads) as pool:
        for scan_range in ranges:
            yield from _scan_range(scan_range, options, pool, threads + 2)


def _scan_range(
    scan_range: ScanRange, options: ScanOptions, pool: _Threads | None, ahead: int
) -> Iterator[pa.RecordBatch]:
    view, offset = scan_range.view, scan_range.start
    may_pass = scan_range.pass_deleted or scan_range.from_log_start
    relists = Relists(view)
    aborted: list[AbortedTxn] = []
    if options.isolation == "read_committed":
        aborted = view.aborted(offset, scan_range.end)
    while offset < scan_range.end:
        segments = view.segments()
        if may_pass:
            offset = max(offset, view.log_start_offset)
        else:
            check_not_passed(view, offset)
        try:
            for found in _found(view, segments, offset, scan_range.end, options, aborted, pool, ahead):
                may_pass = scan_range.pass_deleted
                if found.batch is not None:
                    yield found.batch
                offset = max(offset, found.next_offset)
            return
        except FileNotFoundError as error:
            relists.again(error, offset)


def _found(
    view: LogView,
    segments: tuple[Segment, ...],
    start: int,
    end: int,
    options: ScanOptions,
    aborted: list[AbortedTxn],
    pool: _Threads | None,
    ahead: int,
) -> Iterator[_Found]:
    """Yield the results of a range's pieces, in order; at most ``ahead`` pieces are begun at a time."""
    pieces = _plan(view, segments, start, end, options)
    if pool is not None:
        begun = list(islice(pieces, 2))
        pieces = chain(begun, pieces)
        if len(begun) < 2:
            pool = None  # one piece: a thread would only cost time
    if pool is None:
        for piece in pieces:
            yield from _read(view, piece, options, aborted)
        return
    window = _Window(WINDOW_BYTES)
    running: deque[_Delivery] = deque()
    try:
        for piece in pieces:
            delivery = _Delivery()
            found = _read(view, piece, options, aborted)
            delivery.future = pool.submit(partial(window.fill, delivery, found))
            running.append(delivery)
            if len(running) >= ahead:
                yield from window.drain(running.popleft())
        while running:
            yield from window.drain(running.popleft())
    finally:
        window.stop()
        for delivery in running:
            if delivery.future is not None:
                delivery.future.cancel()


def _plan(
    view: LogView,
    segments: tuple[Segment, ...],
    start: int,
    end: int,
    options: ScanOptions,
    *,
    join: bool = True,
) -> Iterator[_Piece]:
    small: list[Segment] = []
    size = 0
    behind: Segment | None = None
    for segment, following, stop in segments_between(segments, start, end):
        if join and following is not None and _is_small(segment, start, stop, options):
            small.append(segment)
            size, behind = size + segment.size, following
            if size >= min(options.chunk_bytes, PIECE_BYTES):
                yield _joined(small, following)
                small, size = [], 0
            continue
        if small:
            yield _joined(small, segment)
            small, size = [], 0
        try:
            with or_gone(view, segment):
                if stop > max(start, segment.base_offset):
                    yield from _plan_segment(segment, start, stop, options)
                check_joined(view, segment, following, start, end)
        except CorruptionError as error:
            yield _Piece(segment, Start(0, None), None, 0, start, stop, error)
            return
    if small and behind is not None:
        yield _joined(small, behind)


def _is_small(segment: Segment, start: int, stop: int, options: ScanOptions) -> bool:
    """Return True for a segment to be read whole together with others, when its seal has nothing to add."""
    return (
        0 < segment.size <= SMALL_BYTES
        and type(segment) is Segment  # on a disk
        and not (segment.is_active or segment.suffix or segment.swapping)
        and start <= segment.base_offset
        and stop == segment.next_offset
        and options.since is None
        and options.until is None
        and not (options.totals and "minTimestamp" in options.columns)
    )


def _joined(small: Sequence[Segment], behind: Segment) -> _Piece:
    lo, hi = small[0].base_offset, behind.base_offset
    return _Piece(small[0], Start(0, None), None, None, lo, hi, also=(*small[1:], behind))


def _plan_segment(segment: Segment, start: int, stop: int, options: ScanOptions) -> Iterator[_Piece]:
    seal = None if segment.is_active else segment.seal
    if seal is not None:
        yield from _by_seal(segment, seal, start, stop, options)
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


def _by_seal(segment: Segment, seal: Seal, start: int, stop: int, options: ScanOptions) -> Iterator[_Piece]:
    """Yield pieces along the seal's blocks, without blocks ruled out by their offsets or times."""
    first: int | None = None
    since = -END - 1 if options.since is None else options.since
    until = END + 1 if options.until is None else options.until  # past every time that there is

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


def _read(view: LogView, piece: _Piece, options: ScanOptions, aborted: list[AbortedTxn]) -> Iterator[_Found]:
    """Yield the record batches of one piece; FileNotFoundError when its file was replaced meanwhile."""
    if piece.lost is not None:
        raise again(piece.lost)
    if piece.also:
        yield from _read_joined(view, piece, options, aborted)
        return
    with or_gone(view, piece.segment):
        for found in _read_file(view, piece, options, aborted):
            if not piece.segment.is_active and view.replaced(piece.segment):
                raise FileNotFoundError(piece.segment.path())
            yield found


def _read_joined(
    view: LogView, piece: _Piece, options: ScanOptions, aborted: list[AbortedTxn]
) -> Iterator[_Found]:
    """Yield the record batches of small segments read as one; where they are not whole, of each by itself:
    that names the damage, or knows that it is none."""
    *segments, behind = (piece.segment, *piece.also)
    offset = piece.lo
    with suppress(CorruptionError), closing(read_joined(segments, behind.base_offset)) as chunks:
        for chunk in chunks:
            for each in segments:
                if view.replaced(each):
                    raise FileNotFoundError(each.path())
            for found in _decoded(view, piece, chunk, options, aborted):
                yield found
                offset = found.next_offset
    if offset < piece.hi:
        for part in _plan(view, (*segments, behind), offset, piece.hi, options, join=False):
            yield from _read(view, part, options, aborted)


def _read_file(
    view: LogView, piece: _Piece, options: ScanOptions, aborted: list[AbortedTxn]
) -> Iterator[_Found]:
    for chunk in read_chunks(
        piece.segment,
        piece.start,
        offset=piece.lo,
        end_position=piece.end_position,
        expect=piece.expect,
        first_size=options.chunk_bytes,
        full_size=options.chunk_bytes,
    ):
        try:
            yield from _decoded(view, piece, chunk, options, aborted)
        except CorruptionError as error:
            raise error.at(piece.segment.path(), chunk.position) from error
        if chunk.scan.last_offset + 1 >= piece.hi:
            break


def _decoded(
    view: LogView, piece: _Piece, chunk: Chunk, options: ScanOptions, aborted: list[AbortedTxn]
) -> Iterator[_Found]:
    """Yield the records of a chunk, or their totals; the last one reaches to the chunk's end."""
    scan = chunk.scan
    next_offset = min(scan.last_offset + 1, piece.hi)
    reached = -1
    if options.totals:
        yield _Found(_total(view, piece, chunk, options, aborted), next_offset)
        return
    for batch, end_row in _decode(view, piece, chunk, options, aborted):
        reached = min(scan.header(end_row - 1).last_offset + 1, piece.hi)
        yield _Found(batch, reached)
    if reached < next_offset:
        yield _Found(None, next_offset)


def _decode(
    view: LogView, piece: _Piece, chunk: Chunk, options: ScanOptions, aborted: list[AbortedTxn]
) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    return batches.iter_arrow(
        chunk.data,
        chunk.scan,
        chunk.scan.find_offset(piece.lo),
        columns=options.columns,
        topic=view.topic,
        partition=view.partition,
        bounds=batches.Bounds(piece.lo, piece.hi, options.since, options.until),
        skip=aborted_rows(chunk.scan, aborted),
    )


def _total(
    view: LogView, piece: _Piece, chunk: Chunk, options: ScanOptions, aborted: list[AbortedTxn]
) -> pa.RecordBatch | None:
    seal = None if piece.segment.is_active or piece.also else piece.segment.seal
    return batches.total(
        chunk.data,
        chunk.scan,
        chunk.scan.find_offset(piece.lo),
        columns=options.columns,
        topic=view.topic,
        partition=view.partition,
        bounds=batches.Bounds(piece.lo, piece.hi, options.since, options.until),
        skip=aborted_rows(chunk.scan, aborted),
        blocks=() if seal is None else seal.blocks,
        position=chunk.position,
    )
