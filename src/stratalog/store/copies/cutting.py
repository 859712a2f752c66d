"""Where a log is cut, and the batch that the cut goes through.

**As of a moment.** Appended order is offset order; timestamps need not follow it. A partition as of T is
what lay before the first record that was not yet there at T:

- a record's time is its timestamp but at most the moment its segment was last written: a record stamped in
  the future was there when its file was, and does not end the copy before its time;
- a transaction's marker counts too: its time is when the transaction ended, so one that ended after T is
  still open as of T;
- everything from the first record (or marker) later than T on is left out, also what is stamped earlier:
  it was appended behind something that happened after T. With LogAppendTime there is nothing of the kind.

So the copy is a state that the log really had: whole up to one offset, nothing missing inside, nothing
from after T. It is not "all records stamped up to T".

**Inside a batch** the cut keeps the bytes of the records before it: base offset, producer, sequence, leader
epoch, timestamps and codec stay; count, last offset, largest timestamp, length and CRC follow.

Reads logs, writes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog import kernel
from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format.batch import HEADER_SIZE, BatchHeader, Scan
from stratalog.format.batch.decode import decompress
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.chunks import Chunk, read_chunks
from stratalog.log.segment.segment import Segment, Start, scan_file

_ATTRIBUTES, _LAST_DELTA, _MAX_TIMESTAMP, _COUNT, _CRC, _LENGTH = 21, 23, 35, 57, 17, 8


class Moment(NamedTuple):
    """Where a partition ended at some time. ``timestamp`` is that of the first record later than it."""

    offset: int
    timestamp: int | None = None
    late_from_offset: int | None = None


def written_ms(segment: Segment) -> int | None:
    """When the segment was last written, by its file; None when nothing says."""
    if isinstance(segment, ArchivedSegment):
        return segment.modified_ms
    try:
        return segment.context.fs.stat(segment.path()).mtime_ns // 1_000_000
    except (FileNotFoundError, NotADirectoryError):
        return None


def newest_timestamp(segment: Segment) -> int | None:
    """The newest record of a segment; of the live one by its batch headers. None when there is none."""
    newest = segment.max_timestamp()
    if newest is None:
        with segment.open_log() as file:
            for _, _, scan in scan_file(file, 0, segment.size):
                newest = max(newest if newest is not None else -1, scan.max_timestamp)
    return newest if newest is not None and newest >= 0 else None


def end_at_time(segments: Sequence[Segment], start: int, end: int, time_ms: int) -> Moment:
    """Where the log, which holds [start, end), ended at ``time_ms``; ``end`` when all of it was there."""
    cut: tuple[int, int] | None = None
    for segment in segments:
        if segment.base_offset >= end:
            break
        stop = min(end, segment.next_offset if segment.next_offset is not None else end)
        if cut is None:
            last_written = written_ms(segment)
            if last_written is None or last_written > time_ms:
                cut = _first_later(segment, start, stop, time_ms)
            if cut is None:
                continue
            late = _first_not_later(segment, cut[0], stop, time_ms)
        else:
            late = _first_not_later(segment, cut[0], stop, time_ms)
        if late is not None:
            return Moment(*cut, late)
    return Moment(end) if cut is None else Moment(*cut)


def _first_later(segment: Segment, start: int, stop: int, time_ms: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record in [start, stop) that is later."""
    newest = segment.max_timestamp()
    if newest is not None and newest <= time_ms:
        return None
    begin = max(segment.first_offset_since(time_ms + 1), start)
    for chunk, row, header in _batches(segment, begin, stop):
        if header.max_timestamp <= time_ms or not header.count:
            continue
        for offset, timestamp in _times(segment, chunk, row, header, start):
            if timestamp > time_ms and start <= offset < stop:
                return offset, timestamp
    return None


def _first_not_later(segment: Segment, start: int, stop: int, time_ms: int) -> int | None:
    """The first record at or after ``start`` that is stamped at or before the moment."""
    seal = None if segment.is_active else segment.seal
    begin = start
    if seal is not None:
        candidates = [
            block for block in seal.blocks if block.last_offset >= start and block.min_timestamp <= time_ms
        ]
        if not candidates:
            return None
        begin = max(start, candidates[0].first_offset)
    for chunk, row, header in _batches(segment, begin, stop):
        if header.is_control or not header.count:
            continue
        for offset, timestamp in _times(segment, chunk, row, header, start):
            if timestamp <= time_ms and start <= offset < stop:
                return offset
    return None


def _batches(segment: Segment, start: int, stop: int) -> Iterator[tuple[Chunk, int, BatchHeader]]:
    for chunk in read_chunks(segment, segment.start_for(start), offset=start):
        for row in range(chunk.scan.find_offset(start), chunk.scan.n):
            header = chunk.scan.header(row)
            if header.base_offset >= stop:
                return
            yield chunk, row, header


def _times(
    segment: Segment, chunk: Chunk, row: int, header: BatchHeader, start: int
) -> Iterator[tuple[int, int]]:
    """Offset and time of every record of a batch; of a marker and with LogAppendTime all have the batch's."""
    if header.is_control or header.timestamp_type:
        yield max(header.base_offset, start), header.max_timestamp
        return
    try:
        records = batches.decode_records(chunk.data, chunk.scan, row, row + 1, topic="", partition=0)
    except CorruptionError as error:
        raise error.at(segment.path(), chunk.position) from error
    for record in records:
        assert record.timestamp is not None
        yield record.offset, record.timestamp


def pieces_before(segment: Segment, cut: int) -> Iterator[tuple[memoryview, Scan]]:
    """The bytes of the batches of a segment before ``cut``, checked, in order; the last cut if need be."""
    for chunk in read_chunks(segment, Start(0, None)):
        scan = chunk.scan
        row = scan.find_offset(cut)
        view = memoryview(chunk.data)
        if row == scan.n:
            yield view[: scan.end], scan
            continue
        header = scan.header(row)
        if header.position:
            yield view[: header.position], batches.scan(view[: header.position], check_crc=False)
        if header.base_offset < cut:
            try:
                prefix = batch_before(view, scan, row, cut)
            except CorruptionError as error:
                raise error.at(segment.path(), chunk.position) from error
            if prefix is not None:
                yield memoryview(prefix), batches.scan(prefix)
        return


def batch_before(data: memoryview, scan: Scan, row: int, cut: int) -> bytes | None:
    """The batch with only its records below ``cut``; None when it holds none of them.

    The records' own bytes are kept as they are. A compacted batch has fewer records than offsets: it still
    speaks for every offset up to the cut.
    """
    header = scan.header(row)
    if header.is_control:
        return None
    body: memoryview = data[header.position + HEADER_SIZE : header.position + header.size]
    if header.codec:
        body = decompress(data, row, scan)
    limit = cut - header.base_offset
    count = end = 0
    newest = -1
    for start, stop in _records(body, header):
        _, at = _varint(body, start)
        delta_ms, at = _varint(body, at + 1)
        delta, _ = _varint(body, at)
        if delta >= limit:
            break
        count, end = count + 1, stop
        newest = max(newest, header.base_timestamp + delta_ms)
    if not count:
        return None
    kept: bytes | memoryview = body[:end]
    if header.codec:
        kept = codecs.compress(header.codec, kept, None)
    made = bytearray(data[header.position : header.position + HEADER_SIZE])
    made += kept
    struct.pack_into(">i", made, _LENGTH, len(made) - 12)
    struct.pack_into(">i", made, _LAST_DELTA, limit - 1)
    if not header.timestamp_type:
        struct.pack_into(">q", made, _MAX_TIMESTAMP, newest)
    struct.pack_into(">i", made, _COUNT, count)
    struct.pack_into(">I", made, _CRC, kernel.crc32c(memoryview(made)[_ATTRIBUTES:]))
    return bytes(made)


def _records(body: memoryview, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Where each record of a batch begins and ends."""
    at = 0
    for _ in range(header.count):
        size, after = _varint(body, at)
        if size < 0 or after + size > len(body):
            raise CorruptionError("a record runs past the end of its batch", position=header.position)
        yield at, after + size
        at = after + size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise CorruptionError("a varint does not end", position=0)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
