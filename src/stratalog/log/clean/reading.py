"""Reading segments that are to be rewritten: to the last byte, verified, or not at all.

A reader serves what is whole and names what is not. Rewriting must be stricter, because what it did not
read is gone afterwards: a segment counts as read only when every byte of it is part of a right batch (or of
zeros behind the last one, which other brokers preallocate).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from stratalog.errors import CorruptionError, FormatError, StorageError, UnsupportedFormat
from stratalog.format import txn_index
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.check.damage import UNKNOWN, Damage, derived_damage, reason_of
from stratalog.log.read.chunks import FULL_CHUNK, Chunk, read_chunks
from stratalog.log.segment.segment import Segment, Start

READ_AHEAD_FROM = 4 * FULL_CHUNK
"""Smaller segments are read without a second thread."""


class DamagedSegmentError(Exception):
    """A segment that cannot be read; it is left as it is, and named."""

    def __init__(self, segment: Segment, damage: Damage) -> None:
        super().__init__(damage.reason)
        self.segment = segment
        self.damage = damage


class VanishedSegmentError(Exception):
    """A segment that is no longer there: retention, or another rewriting, was faster."""


def sound_chunks(segment: Segment, offset: int = -1) -> Iterator[Chunk]:
    """Whole, checked batches of a sealed segment: all of them, or those from about ``offset`` on."""
    end = 0
    try:
        start = Start(0, None) if offset < 0 else segment.start_for(offset)
        chunks = read_chunks(segment, start, offset=offset, first_size=FULL_CHUNK, full_size=FULL_CHUNK)
        if segment.size > READ_AHEAD_FROM:
            chunks = _read_ahead(chunks)
        for chunk in chunks:
            end = chunk.position + chunk.scan.end
            yield chunk
        if offset < 0 and end < segment.size:
            _check_zeros(segment, end)
    except FileNotFoundError as error:
        raise VanishedSegmentError(segment.path()) from error
    except (FormatError, StorageError) as error:
        raise damaged(segment, error, end) from error


def _read_ahead(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The same chunks, each read and checked by another thread while the one before is being worked on.

    Their bytes are copied, because the reader uses its buffer again; two buffers take turns.
    """
    buffers = [bytearray(FULL_CHUNK), bytearray(FULL_CHUNK)]

    def read(turn: int) -> Chunk | None:
        chunk = next(chunks, None)
        if chunk is None:
            return None
        end = chunk.scan.end
        if len(buffers[turn]) < end:
            buffers[turn] = bytearray(end)
        view = memoryview(buffers[turn])[:end]
        view[:] = memoryview(chunk.data)[:end]
        return Chunk(view, chunk.scan, chunk.position)

    with ThreadPoolExecutor(1, thread_name_prefix="stratalog-read-ahead") as thread:
        turn = 0
        coming = thread.submit(read, turn)
        while (chunk := coming.result()) is not None:
            turn = 1 - turn
            coming = thread.submit(read, turn)
            yield chunk


def _check_zeros(segment: Segment, position: int) -> None:
    with segment.open_log() as file:
        at = position
        while at < segment.size and (data := file.pread(min(FULL_CHUNK, segment.size - at), at)):
            if any(data):
                raise CorruptionError("bytes behind a zero length", path=segment.path(), position=position)
            at += len(data)


def damaged(segment: Segment, error: FormatError | StorageError, position: int) -> DamagedSegmentError:
    """The error for a segment whose bytes around ``position`` are wrong or cannot be had."""
    reason = reason_of(error) if isinstance(error, FormatError) else str(error)
    if isinstance(error, CorruptionError) and error.position >= 0:
        position = error.position
    last = UNKNOWN if segment.next_offset is None else segment.next_offset - 1
    return DamagedSegmentError(
        segment, Damage(segment.path(), position, segment.size, segment.base_offset, last, reason)
    )


def aborted_of(segment: Segment) -> tuple[AbortedTxn, ...] | Damage:
    """The transactions aborted in a segment, or why nobody can tell.

    A seal that contradicts its log does not speak for the index either way: then the index speaks for itself.
    """
    try:
        return segment.aborted()
    except FormatError as error:
        first = error
    try:
        if segment.seal is not None:
            return derived_damage(segment.path("txnindex"), reason_of(first))
    except FormatError:
        pass
    try:
        data = segment.context.fs.read_file(segment.path("txnindex"))
    except FileNotFoundError:
        return ()
    try:
        return tuple(txn_index.parse(data))
    except (CorruptionError, UnsupportedFormat) as error:
        return derived_damage(segment.path("txnindex"), reason_of(error))
