"""Where a log is cut, and the batch that the cut goes through.

**As of a moment.** Appended order is offset order; timestamps need not follow it. A partition as of T is
what lay before the first record that did not exist at T:

- a record's time is its timestamp but at most the time its segment was last written: a record stamped in
  the future existed when its file did, and does not end the copy too early;
- a transaction's marker counts too: its time is when the transaction ended, so one that ended after T is
  still open as of T;
- everything from the first record (or marker) later than T on is left out, also records stamped earlier:
  they were appended after something that happened after T. LogAppendTime makes no such records.

So the copy is a state that the log really had: complete up to one offset, with nothing from after T. It is
not "all records stamped up to T".

**Inside a batch** the cut keeps the bytes of the records before it: base offset, producer, sequence, leader
epoch, timestamps and codec stay; count, last offset, largest timestamp, length and CRC follow.

Reads logs, writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog import kernel
from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format.batch import CRC_FROM, HEADER_SIZE, LENGTH_FROM, BatchHeader, Scan, write_field
from stratalog.format.batch.decode import decompress
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.chunks import Chunk, read_chunks
from stratalog.log.segment.segment import Segment, Start, scan_file


class Moment(NamedTuple):
    """Where a partition ended at some time. ``timestamp`` is that of the first record later than it."""

    offset: int
    timestamp: int | None = None
    late_from_offset: int | None = None


def written_ms(segment: Segment) -> int | None:
    """Return when the segment's file was last written; None if unknown."""
    if isinstance(segment, ArchivedSegment):
        return segment.modified_ms
    try:
        return segment.context.fs.stat(segment.path()).mtime_ns // 1_000_000
    except (FileNotFoundError, NotADirectoryError):
        return None


def newest_timestamp(segment: Segment) -> int | None:
    """Return the timestamp of a segment's newest record, of the live one by its batch headers."""
    newest = segment.max_timestamp()
    if newest is None:
        with segment.open_log() as file:
            for _, _, scan in scan_file(file, 0, segment.size):
                newest = max(newest if newest is not None else -1, scan.max_timestamp)
    return newest if newest is not None and newest >= 0 else None


def end_at_time(segments: Sequence[Segment], start: int, end: int, time_ms: int) -> Moment:
    """Return where the log, which holds [start, end), ended at ``time_ms``."""
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
        if late is not None:
            return Moment(*cut, late)
    return Moment(end) if cut is None else Moment(*cut)


def _first_later(segment: Segment, start: int, stop: int, time_ms: int) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record or marker in [start, stop) that is later."""
    newest = segment.max_timestamp()
    if newest is not None and newest <= time_ms:
        return None
    begin = max(segment.first_offset_since(time_ms + 1), start)
    for header, times in _times(segment, begin, start, stop):
        if header.max_timestamp > time_ms:
            for offset, timestamp in times:
                if timestamp > time_ms:
                    return offset, timestamp
    return None


def _first_not_later(segment: Segment, start: int, stop: int, time_ms: int) -> int | None:
    """Return the first record in [start, stop) that is stamped at or before the moment."""
    begin, seal = start, None if segment.is_active else segment.seal
    if seal is not None:
        candidates = [
            block for block in seal.blocks if block.last_offset >= start and block.min_timestamp <= time_ms
        ]
        if not candidates:
            return None
        begin = max(start, candidates[0].first_offset)
    for header, times in _times(segment, begin, start, stop):
        if not header.is_control:
            for offset, timestamp in times:
                if timestamp <= time_ms:
                    return offset
    return None


def _times(
    segment: Segment, begin: int, start: int, stop: int
) -> Iterator[tuple[BatchHeader, Iterator[tuple[int, int]]]]:
    """Yield each batch from ``begin`` on, with offset and time of its records in [start, stop)."""
    for chunk in read_chunks(segment, segment.start_for(begin), offset=begin):
        for row in range(chunk.scan.find_offset(begin), chunk.scan.n):
            header = chunk.scan.header(row)
            if header.base_offset >= stop:
                return
            if header.count:
                times = _record_times(segment, chunk, row, header, start)
                yield header, (each for each in times if start <= each[0] < stop)


def _record_times(
    segment: Segment, chunk: Chunk, row: int, header: BatchHeader, start: int
) -> Iterator[tuple[int, int]]:
    """Yield offset and time of every record; a marker and a batch of LogAppendTime have one time."""
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
    """Yield the checked bytes of a segment's batches before ``cut``; the last batch is cut if necessary."""
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
    """Return a batch with only its records below ``cut``; None if it has none.

    The records' own bytes stay. A compacted batch, with fewer records than offsets, still covers every offset
    up to the cut.
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
    write_field(made, "length", len(made) - LENGTH_FROM)
    write_field(made, "lastOffsetDelta", limit - 1)
    if not header.timestamp_type:
        write_field(made, "maxTimestamp", newest)
    write_field(made, "count", count)
    write_field(made, "crc", kernel.crc32c(memoryview(made)[CRC_FROM:]))
    return bytes(made)


def _records(body: memoryview, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield where each record of a batch begins and ends."""
    at = 0
    for _ in range(header.count):
        size, after = _varint(body, at)
        if size < 0 or after + size > len(body):
            raise CorruptionError("a record runs past the end of its batch", position=header.position)
        yield at, after + size
        at = after + size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a zigzag varint and the position behind it."""
    value, at = uvarint(data, at)
    return (value >> 1) ^ -(value & 1), at


def uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned varint and the position behind it."""
    value = shift = 0
    while at < len(data) and shift <= 63:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise CorruptionError("a varint does not end", position=at)
