"""Verified reading of one segment: runs of whole, checked batches, a chunk of bytes at a time.

What is checked depends on what can be known. Every batch: its CRC and its form. A contiguous segment
(ours, never cleaned): each base offset follows from the one before, because base offsets lie outside
the CRC. A cleaned segment of ours: the seal's CRC of each block, for the same reason. A cleaned
segment of another broker: offsets increase, which is all that anybody can check.

Damage raises `CorruptionError` naming the file and the byte. Only what a segment's ``size``
covers is read: a follower lets it grow no further than the last whole valid batch. A file that is shorter
than that was cut by another program, which is damage too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from stratalog import kernel
from stratalog.errors import CorruptionError, UnsupportedFormat
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, Peek, Scan, Stop
from stratalog.fs import File
from stratalog.log.segment.segment import Segment, Start

FIRST_CHUNK = 16 << 10
FULL_CHUNK = 1 << 20
REUSED_BYTES = 256 << 10
_spare: deque[bytearray] = deque(maxlen=8)
"""Buffers of readers that are done, for the next ones; a deque's ends may be used from any thread."""


class Chunk(NamedTuple):
    """Whole batches: ``scan`` describes ``data``, whose first byte is at ``position`` in the log.

    ``data`` is valid until the next chunk is requested: large buffers are reused. With several buffers it is
    valid for as many requests more.
    """

    data: bytes | memoryview
    scan: Scan
    position: int


def read_chunks(
    segment: Segment,
    start: Start,
    *,
    offset: int = -1,
    end_position: int | None = None,
    expect: int | None = None,
    first_size: int = FIRST_CHUNK,
    full_size: int = FULL_CHUNK,
    turns: list[bytearray] | None = None,
) -> Iterator[Chunk]:
    """Yield chunks from ``start`` to ``end_position`` (the segment's readable size when None).

    When an index entry does not meet its batch, the index is rebuilt, once, and reading starts over from the
    segment's first byte. Batches before ``offset`` need not be read. ``expect`` is the base offset of the
    first batch, when a seal gives it. ``turns`` has the caller's own buffers, which take turns.
    """
    if start.position > 0 and not segment.is_active:
        seal = segment.seal
        if seal is not None and not seal.contiguous:
            starts = [block.position for block in seal.blocks]
            at = bisect_right(starts, start.position) - 1
            start = Start(starts[max(at, 0)] if starts else 0, None)
    with segment.open_log() as file:
        indexed = start.last_offset
        if indexed is not None:
            met = meet(file, start)
            if met is not None and indexed < offset:
                # The indexed batch ends before the wanted offset: begin behind it, whatever is in it.
                behind = start.position + met.size
                if _begins_with(file, behind, indexed + 1, segment):
                    start, expect = Start(behind, None), indexed + 1
                else:
                    met = None
            if met is None:
                start = _next_entry(segment, file, start, offset)
        buffers = [bytearray()] if turns is None else turns
        try:
            yield from _chunks(segment, file, start, end_position, expect, first_size, full_size, buffers)
        finally:
            if turns is None and buffers[0]:
                _spare.append(buffers[0])


def read_joined(segments: Sequence[Segment], end: int) -> Generator[Chunk, None, None]:
    """Yield the logs of neighbouring segments as one chunk, if every offset from the first one's base to
    ``end`` is in its place; yield nothing otherwise, and the caller reads each by itself.

    What a seal adds to a CRC is that the offsets are right. Where they follow one another from base to base,
    batch by batch, they are, and no sidecar is read.
    """
    size = sum(each.size for each in segments)
    buffer = _buffer(size)
    try:
        data = memoryview(buffer)[:size]
        starts = []
        at = 0
        for each in segments:
            starts.append(at)
            with each.open_log() as file:
                if file.pread_into(data[at : at + each.size], 0) < each.size:
                    return
            at += each.size
        scan = batches.scan(data, expect=segments[0].base_offset)
        if scan.end < size or scan.last_offset + 1 != end:
            return
        for each, start in zip(segments, starts, strict=True):
            position, _, base_offset, *_ = scan.header(scan.find_position(start))
            if position != start or base_offset != each.base_offset:
                return
        yield Chunk(data, scan, 0)
    finally:
        _spare.append(buffer)


def _buffer(size: int) -> bytearray:
    """Return a buffer of at least this size, used before if there is one."""
    try:
        buffer = _spare.pop()
    except IndexError:
        buffer = bytearray()
    return buffer if len(buffer) >= size else bytearray(size)


def _begins_with(file: File, position: int, offset: int, segment: Segment) -> bool:
    """Return whether a batch with this base offset, or a later one where gaps are allowed, begins here."""
    if position >= segment.size:
        return position == segment.size
    found = batches.peek(file.pread(HEADER_SIZE, position))
    if found is None:
        return False
    if segment.contiguous:
        return found.base_offset == offset
    return found.base_offset >= offset and found.size <= segment.size - position


def _next_entry(segment: Segment, file: File, start: Start, offset: int) -> Start:
    """Return where to begin when an entry does not meet its batch.

    A later entry whose batch holds the wanted offset will do. Else the index is rebuilt from the log, and
    reading begins at the segment's first byte.
    """
    found = segment.offset_index().after_position(start.position)
    if found is not None and offset >= 0:
        later = Start(found[1], found[0])
        met = meet(file, later)
        if met is not None and met.base_offset <= offset <= found[0]:
            return later
    segment.context.warn(f"{segment.path('index')}: does not meet the log; rebuilt from it")
    segment.rebuild_indexes()
    return Start(0, None)


def meet(file: File, start: Start) -> Peek | None:
    """Return the header at the indexed position; None when it does not end with the indexed offset."""
    found = batches.peek(file.pread(HEADER_SIZE, start.position))
    return found if found is not None and found.last_offset == start.last_offset else None


def _chunks(
    segment: Segment,
    file: File,
    start: Start,
    end_position: int | None,
    first_base_offset: int | None,
    size: int,
    full_size: int,
    buffers: list[bytearray],
) -> Iterator[Chunk]:
    contiguous = segment.contiguous
    blocks = None
    if not contiguous and not segment.is_active and segment.seal is not None:
        blocks = _BlockCheck(segment)
    position = start.position
    expect: int | None = segment.base_offset if contiguous and position == 0 else None
    if contiguous and first_base_offset is not None:
        expect = first_base_offset
    floor = segment.base_offset
    ceiling = segment.ceiling
    needed = 0
    while True:
        limit = segment.size if end_position is None else min(end_position, segment.size)
        if position >= limit:
            return
        want = max(size, needed)
        if blocks is not None:
            want = blocks.round_up(position, want)
        want = min(want, limit - position)
        data = _fill(file, want, position, buffers)
        cut: CorruptionError | None = None
        if len(data) < want:
            cut = cut_short(segment, limit, position + len(data))
        if blocks is not None:
            if cut is not None:
                raise cut  # the seal's CRC of the last block cannot be checked
            blocks.check(data, position)
        if contiguous and expect is None and len(data) >= 8:
            expect = batches.read_field(data, "baseOffset")
        more = limit - position - want if blocks is None and cut is None else 0
        scan = batches.scan(data, expect=expect, due=floor, more=more)
        if scan.n and scan.last_offset >= ceiling:
            row = scan.find_offset(ceiling)
            if row == 0:
                raise CorruptionError(
                    f"offset {scan.header(0).last_offset} in a segment that ends before {ceiling}",
                    path=segment.path(),
                    position=position,
                )
            scan = batches.scan(data, 0, scan.header(row).position, expect=expect)
        if scan.n:
            yield Chunk(data, scan, position)
            buffers[:] = (*buffers[1:], buffers[0])  # in one step: an interrupt must not lose one
            floor = scan.last_offset + 1
            expect = floor if contiguous else None
            position += scan.end
            needed = 0
            size = min(size * 4, full_size)
            if cut is not None:
                raise cut
            if scan.stop in (Stop.END, Stop.FULL, Stop.PARTIAL):
                if scan.stop is Stop.PARTIAL:
                    needed = scan.needed
                continue
        if cut is not None:
            raise cut
        if scan.stop is Stop.PARTIAL and want < scan.needed <= limit - position:
            needed = scan.needed
            continue
        if scan.stop is Stop.END or (
            scan.stop is Stop.ZERO and not contiguous and segment.is_reserved(file, position)
        ):
            return
        raise scan_error(segment, scan, position)


def _fill(file: File, size: int, position: int, buffers: list[bytearray]) -> bytes | memoryview:
    """Read bytes of the log, many of them into a reused buffer: fresh pages cost more than reading."""
    if size < REUSED_BYTES:
        return file.pread(size, position)
    if len(buffers[0]) < size:
        buffers[0] = _buffer(size)
    view = memoryview(buffers[0])[:size]
    return view[: file.pread_into(view, position)]


def cut_short(segment: Segment, size: int, position: int) -> CorruptionError:
    """Build the error for a file that ends at ``position`` where the log has ``size`` bytes."""
    return CorruptionError(
        f"the file ends here, where the log has {size} bytes: it was cut",
        path=segment.path(),
        position=position,
    )


def scan_error(segment: Segment, scan: Scan, position: int) -> CorruptionError | UnsupportedFormat:
    """Build the error for the batch at ``position``, at which ``scan`` stopped."""
    if scan.stop is Stop.UNSUPPORTED and not segment.contiguous:
        return UnsupportedFormat(f"{segment.path()} at byte {position}: {scan.reason}")
    reason = scan.reason
    if scan.stop is Stop.PARTIAL:
        reason = f"a batch of {scan.needed} bytes runs past the end of the segment"
    return CorruptionError(reason, path=segment.path(), position=position)


class _BlockCheck:
    """Checks the seal's block CRCs of a cleaned segment; reads are rounded to blocks."""

    def __init__(self, segment: Segment) -> None:
        seal = segment.seal
        assert seal is not None
        self._path = segment.path()
        self._blocks = seal.blocks
        self._starts = [block.position for block in seal.blocks]
        self._ends = [*self._starts[1:], seal.size_bytes]

    def round_up(self, position: int, want: int) -> int:
        at = bisect_right(self._starts, position + want - 1) - 1
        return self._ends[at] - position if at >= 0 else want

    def check(self, data: bytes | memoryview, position: int) -> None:
        view = memoryview(data)
        at = bisect_right(self._starts, position) - 1
        while 0 <= at < len(self._blocks):
            start, end = self._starts[at] - position, self._ends[at] - position
            if start >= len(data):
                return
            if start >= 0 and end <= len(data) and kernel.crc32c(view[start:end]) != self._blocks[at].crc:
                raise CorruptionError(
                    "a block does not match the segment's seal", path=self._path, position=position + start
                )
            at += 1
