"""Finding records by time and by key in one partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from stratalog import kernel
from stratalog.errors import CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format.keyindex import KeyIndexReader
from stratalog.log.active import ActiveSegment
from stratalog.log.chunks import FULL_CHUNK, read_chunks
from stratalog.log.point import record_at
from stratalog.log.reader import MAX_RELISTS, Isolation, LogView, aborted_rows, iter_chunks, or_gone
from stratalog.log.segment import Segment, Start
from stratalog.model import Record


def offset_for_time(view: LogView, timestamp: int, isolation: Isolation = "read_uncommitted") -> int | None:
    """The first offset whose record is at ``timestamp`` or later, as in Kafka; None when none is."""
    for _ in range(MAX_RELISTS):
        view.refresh()
        with suppress(FileNotFoundError):  # replaced or removed while we looked: look again
            return _offset_for_time(view, timestamp, isolation)
    return _offset_for_time(view, timestamp, isolation)


def _offset_for_time(view: LogView, timestamp: int, isolation: Isolation) -> int | None:
    start, end = view.log_start_offset, view.end_offset(isolation)
    for segment in view.segments():
        if segment.base_offset >= end:
            return None
        next_offset = segment.next_offset
        if next_offset is not None and next_offset <= start:
            continue
        with or_gone(view, segment):
            newest = segment.max_timestamp()
            if newest is not None and newest < timestamp:
                continue
            begin = max(start, segment.base_offset, segment.first_offset_since(timestamp))
        stop = end if next_offset is None or segment.is_active else min(end, next_offset)
        aborted = view.aborted(begin, stop) if isolation == "read_committed" else []
        for found, chunk, limit in iter_chunks(view, begin, stop, full_size=FULL_CHUNK):
            try:
                records = batches.decode_records(
                    chunk.data,
                    chunk.scan,
                    chunk.scan.find_offset(begin),
                    topic=view.topic,
                    partition=view.partition,
                    lo=begin,
                    hi=limit,
                    since=timestamp,
                    skip=aborted_rows(chunk.scan, aborted),
                )
            except CorruptionError as error:
                raise error.at(found.path(), chunk.position) from error
            if records:
                return records[0].offset
    return None


def key_offsets(segment: Segment, digest: int) -> Iterator[int]:
    """Offsets in a segment that may hold a key with this hash, newest first."""
    if isinstance(segment, ActiveSegment) and segment.keys is not None:
        yield from list(segment.keys.newest_first(digest))
        return
    if not segment.is_active:
        indexed = _indexed(segment, digest)
        if indexed is not None:
            yield from reversed(indexed)
            return
    yield from reversed(_scanned(segment, digest))


def _indexed(segment: Segment, digest: int) -> list[int] | None:
    """By the `.keyindex`; None when there is none to trust."""
    try:
        with segment.open_keyindex() as file:
            reader = KeyIndexReader(file.pread, file.size())
            seal = segment.seal
            if reader.log_size != segment.size or (seal is not None and seal.crc != reader.log_crc):
                return None
            return reader.lookup(digest)
    except FileNotFoundError:
        return None
    except FormatError as error:
        segment.context.warn(f"{segment.path('keyindex')}: {error}; scanning the segment instead")
        return None


def _scanned(segment: Segment, digest: int) -> list[int]:
    """By reading every key of the segment."""
    found: list[int] = []
    for chunk in read_chunks(segment, Start(0, None), first_size=FULL_CHUNK):
        hashes, offsets = batches.decode_keys(chunk.data, chunk.scan)
        at = 0
        with suppress(ValueError):
            while True:
                at = hashes.index(digest, at)
                found.append(offsets[at])
                at += 1
    return found


def history_backwards(
    view: LogView, key: bytes, isolation: Isolation = "read_uncommitted"
) -> Iterator[Record]:
    """Every record of a key, newest first. A hash may lie; the key on the record is what counts."""
    view.refresh()
    digest = kernel.hash64(key)
    start = view.log_start_offset
    bound = view.end_offset(isolation)
    while True:
        try:
            for segment in reversed(view.segments()):
                if segment.base_offset >= bound:
                    continue
                with or_gone(view, segment):
                    offsets = list(key_offsets(segment, digest))
                for offset in offsets:
                    if not start <= offset < bound:
                        continue
                    record = record_at(view, offset, isolation)
                    if record is not None and record.key == key:
                        yield record
                        bound = offset
                bound = min(bound, segment.base_offset)
            return
        except FileNotFoundError:
            # A segment was replaced or removed: go on below what was already given out.
            view.refresh()
            start = max(start, view.log_start_offset)
            if bound <= start:
                return
