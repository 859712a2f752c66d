"""Walking a log file chunk by chunk: the loop that recovery, rebuilding and replaying share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.format import batch as batches
from stratalog.format.batch import Scan, Stop
from stratalog.fs import File

SCAN_BYTES = 1 << 20
"""How much of a log is read at a time where speed, not latency, matters: what fits a core's cache."""


class Scanned(NamedTuple):
    """Whole batches found in ``data``, which was read at ``position``; good until the next one."""

    position: int
    data: memoryview
    scan: Scan


def scan_file(
    file: File, position: int, end: int, *, check_crc: bool = False, expect: int | None = None
) -> Iterator[Scanned]:
    """Chunks of whole batches from ``position`` to ``end``, until something is wrong or nothing is left.

    With ``expect`` the first batch must have that base offset and all must be contiguous. When it ends
    early the last item has no batch (``scan.n == 0``) and says why in ``scan.stop`` and ``scan.reason``;
    so does a file that is shorter than ``end``.
    """
    needed = 0
    buffer = bytearray(min(SCAN_BYTES, max(end - position, 0)))
    while position < end:
        want = min(max(SCAN_BYTES, needed), end - position)
        if len(buffer) < want:
            buffer = bytearray(want)
        view = memoryview(buffer)[:want]
        data = view[: file.pread_into(view, position)]
        scan = batches.scan(data, check_crc=check_crc, expect=expect)
        if scan.n == 0:
            if scan.stop is Stop.PARTIAL and len(data) == want and want < scan.needed <= end - position:
                needed = scan.needed
                continue
            yield Scanned(position, data, scan)
            return
        yield Scanned(position, data, scan)
        position += scan.end
        needed = 0
        if expect is not None:
            expect = scan.last_offset + 1
