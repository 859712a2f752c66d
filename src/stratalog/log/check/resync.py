"""Find the next valid batch after a damaged range of a segment.

The index is asked first, since its entries point at batch starts; then the bytes are searched for a
header that checks out. Nothing found here is believed without its CRC.
"""

from __future__ import annotations

from stratalog.errors import CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, Stop
from stratalog.format.indexes import OffsetIndex
from stratalog.fs import File
from stratalog.log.segment.segment import Segment

SEARCH_BYTES = 1 << 20
_MAGIC_AT = 16


def next_valid(segment: Segment, position: int) -> int | None:
    """The first position at or after ``position`` where a batch with a right CRC begins; None at the end."""
    with segment.open_log() as file:
        return _search(segment, file, position, _next_indexed(segment, file, position))


def resume(
    segment: Segment,
    file: File,
    position: int,
    *,
    limit: int,
    at_least: int,
    at_most: int | None = None,
) -> int:
    """Return where a believable batch begins behind the damage at ``position``; ``limit`` when none does.

    Believable is a valid batch with offsets from ``at_least`` to ``at_most``. The length field of the damaged
    batch is tried first: a record's value may itself hold a batch, which a search would find.
    """

    def believable(at: int) -> bool:
        header = file.pread(HEADER_SIZE, at)
        size = int.from_bytes(header[8:12], "big", signed=True) + 12
        if len(header) < HEADER_SIZE or not HEADER_SIZE <= size <= segment.size - at:
            return False
        scan = batches.scan(file.pread(size, at), max_batches=1)
        if scan.n != 1 or scan.first_base_offset < at_least:
            return False
        return at_most is None or scan.last_offset <= at_most

    length = int.from_bytes(file.pread(12, position)[8:12], "big", signed=True)
    hop = position + 12 + length
    if length >= HEADER_SIZE - 12 and (hop == limit or (hop < limit and believable(hop))):
        return hop
    found = next_valid(segment, position + 1)
    while found is not None and found < limit:
        if believable(found):
            return found
        found = next_valid(segment, found + 1)
    return limit


def _next_indexed(segment: Segment, file: File, position: int) -> int:
    """Position of the first index entry at or after ``position`` that meets a valid batch, or the end."""
    try:
        data = segment.context.fs.read_file(segment.path("index"))
        positions = _positions(data, segment)
    except (FormatError, FileNotFoundError):
        return segment.size
    for candidate in positions:
        if candidate >= position and _valid_at(segment, file, candidate):
            return candidate
    return segment.size


def _positions(data: bytes, segment: Segment) -> list[int]:
    """The positions an index file names, without asking the log."""
    index = OffsetIndex.parse(data, segment.base_offset, segment.size)
    return [index.entry(at)[1] for at in range(len(index))]


def _search(segment: Segment, file: File, position: int, stop: int) -> int | None:
    """Search byte by byte for a header that checks out, up to ``stop`` (known good, or the end)."""
    at = position
    while at < stop:
        data = file.pread(min(SEARCH_BYTES + HEADER_SIZE, segment.size - at), at)
        found = data.find(b"\x02", _MAGIC_AT)
        while found != -1 and found - _MAGIC_AT < SEARCH_BYTES and at + found - _MAGIC_AT < stop:
            candidate = found - _MAGIC_AT
            if _plausible(data, candidate, segment, at) and _valid_at(segment, file, at + candidate):
                return at + candidate
            found = data.find(b"\x02", found + 1)
        at += SEARCH_BYTES
    return stop if stop < segment.size else None


def _plausible(data: bytes, at: int, segment: Segment, position: int) -> bool:
    if at + HEADER_SIZE > len(data):
        return False
    length = int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
    base_offset = int.from_bytes(data[at : at + 8], "big", signed=True)
    return 49 <= length <= segment.size - position - at - 12 and base_offset >= segment.base_offset


def _valid_at(segment: Segment, file: File, position: int) -> bool:
    header = file.pread(HEADER_SIZE, position)
    if len(header) < HEADER_SIZE:
        return False
    size = int.from_bytes(header[8:12], "big", signed=True) + 12
    if size < HEADER_SIZE or position + size > segment.size:
        return False
    try:
        scan = batches.scan(file.pread(size, position), max_batches=1)
    except CorruptionError:
        return False
    return (
        scan.n == 1 and scan.stop in (Stop.END, Stop.FULL) and scan.first_base_offset >= segment.base_offset
    )
