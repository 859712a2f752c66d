"""Find the next valid batch after a damaged range of a segment.

The index is asked first, since its entries point at batch starts; then the bytes are searched for a
header that checks out. Nothing found here is believed without its CRC.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.errors import CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, Scan, Stop
from stratalog.format.indexes import OffsetIndex
from stratalog.fs import File
from stratalog.log.segment.segment import Scanned, Segment, scan_file

SEARCH_BYTES = 1 << 20


def next_valid(segment: Segment, position: int) -> int | None:
    """Return the first position from ``position`` on where a valid batch begins; None at the end."""
    with segment.open_log() as file:
        return _search(segment, file, position, _next_indexed(segment, file, position))


def scan_past_damage(
    segment: Segment,
    file: File,
    position: int,
    *,
    limit: int,
    at_least: int,
    at_most: int | None = None,
    check_crc: bool = False,
) -> Iterator[Scanned]:
    """Yield chunks of whole batches from ``position`` to ``limit`` like `scan_file`, but go on after damage.

    A batch with an offset above ``at_most`` counts as damage. ``at_least`` is the lowest offset that may
    follow the first damage.
    """
    while position < limit:
        for found in scan_file(file, position, limit, check_crc=check_crc, due=at_least):
            scan = found.scan
            if at_most is not None and scan.last_offset > at_most:
                start = scan.header(scan.find_offset(at_most + 1)).position
                scan = batches.scan(found.data, 0, start, check_crc=False)
            if not scan.n:
                break
            yield found._replace(scan=scan)
            position, at_least = found.position + scan.end, scan.last_offset + 1
            if scan.n < found.scan.n:
                break
        if position < limit:
            position = resume(segment, file, position, limit=limit, at_least=at_least, at_most=at_most)


def resume(
    segment: Segment,
    file: File,
    position: int,
    *,
    limit: int,
    at_least: int,
    at_most: int | None = None,
) -> int:
    """Return where a plausible batch begins behind the damage at ``position``; ``limit`` when none does.

    Plausible is a valid batch with offsets from ``at_least`` to ``at_most``. The length field of the damaged
    batch is tried first: a record's value may itself hold a batch, which a search would find.
    """

    def plausible(at: int) -> bool:
        found = _batch_at(segment, file, at)
        if found is None or found.first_base_offset < at_least:
            return False
        return at_most is None or found.last_offset <= at_most

    size = batches.size_of(file.pread(HEADER_SIZE, position))
    if size is not None:
        hop = position + size
        if hop == limit or (hop < limit and plausible(hop)):
            return hop
    found = next_valid(segment, position + 1)
    while found is not None and found < limit:
        if plausible(found):
            return found
        found = next_valid(segment, found + 1)
    return limit


def _next_indexed(segment: Segment, file: File, position: int) -> int:
    """Return the first indexed position from ``position`` on that holds a valid batch, or the end."""
    try:
        data = segment.context.fs.read_file(segment.path("index"))
        index = OffsetIndex.parse(data, segment.base_offset, segment.size)
    except (FormatError, FileNotFoundError):
        return segment.size
    for entry in range(len(index)):
        candidate = index.entry(entry)[1]
        if candidate >= position and _batch_at(segment, file, candidate) is not None:
            return candidate
    return segment.size


def _search(segment: Segment, file: File, position: int, stop: int) -> int | None:
    """Search byte by byte for a valid batch, up to ``stop`` (known good, or the end)."""
    at = position
    while at < stop:
        data = file.pread(min(SEARCH_BYTES + HEADER_SIZE, segment.size - at), at)
        found = batches.find_magic(data, 0)
        while found != -1 and found < SEARCH_BYTES and at + found < stop:
            header = batches.peek(data[found : found + HEADER_SIZE])
            if (
                header is not None
                and header.size <= segment.size - at - found
                and header.base_offset >= segment.base_offset
                and _batch_at(segment, file, at + found) is not None
            ):
                return at + found
            found = batches.find_magic(data, found + 1)
        at += SEARCH_BYTES
    return stop if stop < segment.size else None


def _batch_at(segment: Segment, file: File, position: int) -> Scan | None:
    """Return the valid batch at ``position``, alone in a scan; None when there is none."""
    size = batches.size_of(file.pread(HEADER_SIZE, position))
    if size is None or position + size > segment.size:
        return None
    try:
        scan = batches.scan(file.pread(size, position), max_batches=1)
    except CorruptionError:
        return None
    if scan.n != 1 or scan.stop not in (Stop.END, Stop.FULL) or scan.first_base_offset < segment.base_offset:
        return None
    return scan
