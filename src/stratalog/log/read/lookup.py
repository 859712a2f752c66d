"""Find records of one partition by offset and by key, reading the batches that hold them and little more.

By offset: the index gives the two entries between which the batch lies. Small batches there are read in one
go; large ones are found by their headers, and only the wanted one is read. Of an uncompressed batch only the
wanted record is decoded. The checks are those of every reader: the batch's CRC and form, and that its base
offset, which no CRC covers, follows from the batch before it or from the index. In every unusual case (a
gap, a cleaned segment, an index that does not meet the log, a file that is gone) the general reader does it
all again, rebuilds what is wrong and names what is damaged.

By key: newest first, by the key index of each segment, or by reading its keys where there is none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from stratalog import kernel
from stratalog.errors import CorruptionError, FormatError, OffsetOutOfRangeError
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, Stop
from stratalog.format.keyindex import KeyIndexReader
from stratalog.fs import File
from stratalog.log.read.chunks import FULL_CHUNK, Chunk, read_chunks
from stratalog.log.read.gaps import check_joined
from stratalog.log.read.reader import (
    Isolation,
    KeyedView,
    LogView,
    Relists,
    aborted_rows,
    decode_rows,
    iter_chunks,
    or_gone,
    segment_index,
)
from stratalog.log.segment.segment import Segment, Start
from stratalog.log.write.active import ActiveSegment
from stratalog.model import Record

NEAR_BYTES = 16 << 10
"""Up to here everything between two index entries is read at once."""
PAST_ENTRY_BYTES = 1 << 10
MAX_HEADERS = 32


def record_at(view: LogView, offset: int, isolation: Isolation = "read_uncommitted") -> Record | None:
    """Return the record at exactly ``offset``, if it exists and readers may see it."""
    if offset >= view.end_offset(isolation):
        return None
    segments = view.segments()
    aborted = view.aborted(offset, offset + 1) if isolation == "read_committed" else []
    if segments:
        segment = segments[segment_index(segments, offset)]
        try:
            found = _find(view, segment, offset, not aborted)
        except (FileNotFoundError, CorruptionError):
            found = None
        if isinstance(found, Record):
            return found
        if found is not None:
            return _decode(view, segment, found, offset, aborted_rows(found.scan, aborted))
    for segment, chunk, stop in iter_chunks(view, offset, offset + 1):
        if offset < stop:
            record = _decode(view, segment, chunk, offset, aborted_rows(chunk.scan, aborted))
            if record is not None:
                return record
    return None


def records_at(
    view: LogView, offsets: Sequence[int], isolation: Isolation = "read_uncommitted"
) -> Iterator[Record]:
    """Yield the records at ``offsets``, which rise and lie near each other, in one pass over the log."""
    end = min(offsets[-1] + 1, view.end_offset(isolation))
    aborted = view.aborted(offsets[0], end) if isolation == "read_committed" else []
    at = 0
    for segment, chunk, stop in iter_chunks(view, offsets[0], end):
        scan, skip = chunk.scan, aborted_rows(chunk.scan, aborted)
        until = bisect_left(offsets, min(scan.last_offset + 1, stop), at)
        while at < until:
            first, at = at, at + 1
            row = last_row = scan.find_offset(offsets[first])
            end_position = scan.header(row).position + NEAR_BYTES
            while at < until:
                found = scan.find_offset(offsets[at])
                if found > last_row + 1 and scan.header(found).position > end_position:
                    break
                last_row, at = found, at + 1
            wanted = offsets[first:at]
            bounds = batches.Bounds(wanted[0], wanted[-1] + 1)
            for record in decode_rows(view, segment, chunk, row, last_row + 1, bounds, skip):
                assert record.offset is not None
                place = bisect_left(wanted, record.offset)
                if place < len(wanted) and wanted[place] == record.offset:
                    yield record


def read_one(view: LogView, offset: int, isolation: Isolation) -> Iterator[Record]:
    """Yield what `record_at` returns, if anything."""
    record = record_at(view, offset, isolation)
    if record is not None:
        yield record


def _decode(
    view: LogView, segment: Segment, chunk: Chunk, offset: int, skip: frozenset[int] | None
) -> Record | None:
    row = chunk.scan.find_offset(offset)
    records = decode_rows(view, segment, chunk, row, row + 1, batches.Bounds(offset, offset + 1), skip)
    return records[0] if records else None


def _find(view: LogView, segment: Segment, offset: int, plain: bool) -> Chunk | Record | None:
    """Return checked batches, one of which holds ``offset``; None when the general reader must look.

    When ``plain``, no record is left out for an aborted transaction, and the record itself is returned if it
    is easy to find.
    """
    if not segment.contiguous or offset < segment.base_offset or segment.suffix:
        return None
    if not segment.is_active and segment.next_offset is not None and offset >= segment.next_offset:
        return None
    below, above = segment.offset_index().around(offset)
    position, end = 0 if below is None else below[1], segment.size
    file = segment.pin_log()
    try:
        if (end if above is None else above[1]) - position <= NEAR_BYTES:
            until = end if above is None else min(above[1] + PAST_ENTRY_BYTES, end)
            data = file.pread(until - position, position)
            if plain:
                expect, last = (segment.base_offset, -1) if below is None else (-1, below[0])
                record = _record(view, segment, data, offset, expect, last)
                if record is not None:
                    return record
            return _near(segment, file, offset, below, data)
        start = _start(segment, file, offset, below, above)
        if start is None:
            return None
        position, found = start
        if found.size > end - position or not _within(segment, found.last_offset):
            return None
        data = file.pread(found.size, position)
    finally:
        segment.unpin_log(file)
    if plain:
        record = _record(view, segment, data, offset, found.base_offset, found.last_offset)
        if record is not None:
            return record
    return _checked(data, position, found)


def _record(
    view: LogView, segment: Segment, data: bytes, offset: int, expect: int, last: int
) -> Record | None:
    return kernel.find_tuple(data, offset, expect, last, segment.ceiling, Record, view.topic, view.partition)


def _near(
    segment: Segment, file: File, offset: int, below: tuple[int, int] | None, data: bytes
) -> Chunk | None:
    """Look in small batches: ``data`` begins at the entry below."""
    position, expect = (0, segment.base_offset) if below is None else (below[1], None)
    if below is not None:
        first = batches.peek(data)
        if first is None or first.last_offset != below[0]:
            return None
        expect = first.base_offset
    scan = batches.scan(data, expect=expect)
    if not scan.n or not _within(segment, scan.last_offset):
        return None
    if scan.last_offset >= offset:
        return Chunk(data, scan, position)
    if scan.stop is not Stop.PARTIAL:
        return None
    start = _walk(file, offset, position + scan.end, scan.last_offset + 1)
    if start is None:
        return None
    position, found = start
    if found.size > segment.size - position or not _within(segment, found.last_offset):
        return None
    return _checked(file.pread(found.size, position), position, found)


def _start(
    segment: Segment,
    file: File,
    offset: int,
    below: tuple[int, int] | None,
    above: tuple[int, int] | None,
) -> tuple[int, batches.Peek] | None:
    """Return where the batch that holds ``offset`` begins, with its header, which is not checked yet."""
    if above is not None:
        found = batches.peek(file.pread(HEADER_SIZE, above[1]))
        if found is None or found.last_offset != above[0]:
            return None
        if found.base_offset <= offset:
            return above[1], found
    if below is None:
        return _walk(file, offset, 0, segment.base_offset)
    found = batches.peek(file.pread(HEADER_SIZE, below[1]))
    if found is None or found.last_offset != below[0]:
        return None
    return _walk(file, offset, below[1], found.base_offset)


def _walk(file: File, offset: int, position: int, expect: int) -> tuple[int, batches.Peek] | None:
    """Go from header to header, from the batch at ``position`` with base offset ``expect`` on."""
    for _ in range(MAX_HEADERS):
        found = batches.peek(file.pread(HEADER_SIZE, position))
        if found is None or found.base_offset != expect:
            return None
        if found.last_offset >= offset:
            return position, found
        position, expect = position + found.size, found.last_offset + 1
    return None


def _checked(data: bytes, position: int, found: batches.Peek) -> Chunk | None:
    scan = batches.scan(data, expect=found.base_offset, max_batches=1)
    return Chunk(data, scan, position) if scan.n else None


def _within(segment: Segment, last_offset: int) -> bool:
    return segment.is_active or segment.next_offset is None or last_offset < segment.next_offset


TOGETHER_BYTES = 16 << 10
TOGETHER_RECORDS = 4096
"""Records of a key that lie within 16 KiB of each other are read in one pass, at most 4096 at a time."""


def key_offsets(segment: Segment, digest: int) -> Iterable[int]:
    """Return the offsets in a segment that may hold a key with this hash, newest first."""
    if isinstance(segment, ActiveSegment) and segment.keys is not None:
        return segment.keys.newest_first(digest)
    if not segment.is_active:
        indexed = _indexed(segment, digest)
        if indexed is not None:
            return reversed(indexed)
    return reversed(_scanned(segment, digest))


def _indexed(segment: Segment, digest: int) -> list[int] | None:
    """Look the hash up in the `.keyindex`; None when there is no valid one."""
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
    """Read every key of the segment."""
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
    view: KeyedView, key: bytes, isolation: Isolation = "read_uncommitted"
) -> Iterator[Record]:
    """Yield every record of a key, newest first.

    Segments below a record are not touched before it is yielded. Equal hashes are not equal keys: the key of
    the record decides.
    """
    view.refresh()
    digest = kernel.hash64(key)
    start = view.log_start_offset
    bound = view.keyed_end_offset(isolation)
    relists: Relists | None = None
    while True:
        try:
            following: Segment | None = None
            for segment in reversed(view.segments()):
                if segment.base_offset >= bound:
                    following = segment
                    continue
                with or_gone(view, segment):
                    check_joined(view, segment, following, start, bound)
                    offsets = [at for at in key_offsets(segment, digest) if start <= at < bound]
                for record in _newest_first(view, segment, offsets, isolation):
                    if record.key == key:
                        yield record
                        assert record.offset is not None
                        bound = record.offset
                bound, following = min(bound, segment.base_offset), segment
            return
        except (FileNotFoundError, OffsetOutOfRangeError) as error:
            # A segment was replaced or removed: go on below the records that were already yielded.
            if isinstance(error, FileNotFoundError):
                relists = relists or Relists(view)
                relists.again(error, bound)
            start = max(start, view.log_start_offset)
            if bound <= start:
                return


def newest(view: KeyedView, key: bytes, isolation: Isolation = "read_uncommitted") -> Record | None:
    """Return the newest record of a key; None when there is none."""
    return next(history_backwards(view, key, isolation), None)


def _newest_first(
    view: LogView, segment: Segment, offsets: list[int], isolation: Isolation
) -> Iterator[Record]:
    """Yield the records at ``offsets`` of a segment, newest first as they are.

    The first is read alone, because a lookup mostly needs no other. Then neighbours are read together, more
    and more at a time.
    """
    records = max((segment.next_offset or 0) - segment.base_offset, 1)
    near = max(TOGETHER_BYTES * records // max(segment.size, 1), 1)
    at, limit = 0, 1
    while at < len(offsets):
        end = at + 1
        while end < len(offsets) and end - at < limit and offsets[end - 1] - offsets[end] <= near:
            end += 1
        if end - at == 1:
            record = record_at(view, offsets[at], isolation)
            if record is not None:
                yield record
        else:
            yield from reversed(list(records_at(view, offsets[at:end][::-1], isolation)))
        at, limit = end, min(limit * 4, TOGETHER_RECORDS)
