"""How many records batches hold, and their first and last offsets and times: from headers where those tell.

Headers tell how many records a batch has, its offsets if it has no gaps, its largest timestamp, and its least
one if all records have the same. The seal tells the least timestamp of a block. Records are decoded where
neither does, and the totals are those of decoded records. The caller has checked the CRCs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from stratalog import kernel
from stratalog.format.batch.arrow import column_types, iter_arrow
from stratalog.format.batch.decode import Bounds, make_skip
from stratalog.format.batch.header_scan import Buffer, Scan

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.format.seal import SealBlock

_OFFSETS, _LEAST = 1, 2
_NO_TOTALS = array("q", (0, 2**63 - 1, -1, 2**63 - 1, -(2**63), 0))


def total(
    buf: Buffer,
    scan: Scan,
    first: int,
    *,
    columns: Sequence[str],
    topic: str,
    partition: int,
    bounds: Bounds,
    skip: Container[int] | None = None,
    blocks: Sequence[SealBlock] = (),
    position: int = 0,
) -> pa.RecordBatch | None:
    """Return the totals of the batches from row ``first`` on as one row; None if there is no record.

    Columns are topic, partition, records, minOffset, maxOffset, minTimestamp and maxTimestamp; those that
    only records have are NULL. ``blocks`` are the seal's, for a scan whose first byte is at ``position`` of
    the log.
    """
    totals = _Totals(buf, scan, columns, bounds, skip)
    for row, end, block in _stretches(scan, first, blocks if totals.needs_times else (), position):
        totals.add(row, end, block)
    return totals.row(columns, topic, partition)


def _stretches(
    scan: Scan, first: int, blocks: Sequence[SealBlock], position: int
) -> Iterator[tuple[int, int, SealBlock | None]]:
    """Yield rows [row, end) with the block that they are, or None."""
    at = bisect_left(blocks, position, key=lambda block: block.position) if blocks else 0
    row = first
    for block in blocks[at:]:
        begin = scan.find_position(block.position - position)
        end = begin + block.batches
        if end > scan.n:
            break
        same = scan.header(begin).base_offset == block.first_offset
        if begin < row or not same or scan.header(end - 1).last_offset != block.last_offset:
            continue
        if row < begin:
            yield row, begin, None
        yield begin, end, block
        row = end
    if row < scan.n:
        yield row, scan.n, None


class _Totals:
    """Sums, carried on from stretch to stretch."""

    def __init__(
        self, buf: Buffer, scan: Scan, columns: Sequence[str], bounds: Bounds, skip: Container[int] | None
    ) -> None:
        self.buf = buf
        self.scan = scan
        self.bounds = bounds
        self.skip = skip
        self.mask = make_skip(scan, skip)
        self.out = _NO_TOTALS[:]
        self.want = _OFFSETS if {"minOffset", "maxOffset"} & set(columns) else 0
        self.want |= _LEAST if "minTimestamp" in columns else 0
        self.needs_times = bool(self.want & _LEAST) or bounds.since is not None or bounds.until is not None

    def add(self, row: int, end: int, block: SealBlock | None) -> None:
        if block is None or not self.bounds.hold(block):
            self._add(row, end, self.bounds, self.want)
            return
        before = self.out[:]
        self._add(row, end, self.bounds._replace(since=None, until=None), self.want & ~_LEAST)
        if self.want & _LEAST:
            if self.out[5] == before[5]:
                self.out[3] = min(self.out[3], block.min_timestamp)
            else:  # the block's least timestamp may be that of a batch that holds nothing wanted
                self.out = before
                self._add(row, end, self.bounds, self.want)

    def _add(self, row: int, end: int, bounds: Bounds, want: int) -> None:
        numbers = bounds.for_kernel()
        at_once = 1
        while True:
            reached = kernel.sum_batches(self.scan.table, row, end, numbers, self.mask, want, self.out)
            if reached >= end:
                return
            at_once = 1 if reached > row else at_once * 2  # where one must be decoded, more must be
            row = min(reached + at_once, end)
            self._decode(reached, row, bounds)

    def _decode(self, row: int, end: int, bounds: Bounds) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        decoded = iter_arrow(
            self.buf,
            self.scan,
            row,
            end,
            columns=("offset", "timestamp"),
            topic="",
            partition=0,
            bounds=bounds,
            skip=self.skip,
        )
        for batch, _ in decoded:
            if batch is not None:
                offsets, times = batch.columns
                span = pc.min_max(times.view(pa.int64()))
                self.out[0] += len(batch)
                self.out[1] = min(self.out[1], offsets[0].as_py())
                self.out[2] = max(self.out[2], offsets[-1].as_py())
                self.out[3] = min(self.out[3], span["min"].as_py())
                self.out[4] = max(self.out[4], span["max"].as_py())

    def row(self, columns: Sequence[str], topic: str, partition: int) -> pa.RecordBatch | None:
        import pyarrow as pa

        records, first, last, oldest, newest, _ = self.out
        if not records:
            return None
        types = column_types()
        made = {
            "topic": (topic, types["topic"]),
            "partition": (partition, types["partition"]),
            "records": (records, pa.int64()),
            "minOffset": (first, types["offset"]),
            "maxOffset": (last, types["offset"]),
            "minTimestamp": (oldest, types["timestamp"]),
            "maxTimestamp": (newest, types["timestamp"]),
        }
        wanted = [made.get(name) or (None, types[name]) for name in columns]
        return pa.RecordBatch.from_arrays(
            [pa.array([value], kind) for value, kind in wanted], names=list(columns)
        )
