"""Batches to records: tuples, key hashes, the least timestamp.

Pure functions over a buffer and the scan that described it. Compressed batches are decompressed one at a
time, within a bound; runs of uncompressed ones go to the kernel in one call. Whatever a batch holds, the
outcome is records or a CorruptionError whose ``position`` is the batch's in the buffer.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from stratalog import kernel
from stratalog.errors import CorruptionError
from stratalog.format import codecs
from stratalog.format.batch.header_scan import HEADER_SIZE, WIDTH, BatchHeader, Buffer, Scan, as_view, scan
from stratalog.model import Record

if TYPE_CHECKING:
    from stratalog.format.seal import SealBlock

MAX_BATCH_BYTES = 1 << 30
"""What one batch may decompress to."""

MAX_OFFSET = 2**63 - 1
_MIN_RECORD = 7
_NO_SKIP = b""
_new_tuple = tuple.__new__  # a named tuple's own costs a Python call
_KEYS = 1 | 4  # the kernel's WANT_KEY and WANT_OFFSET

REASONS = {
    -1: "a record runs past the end of its batch",
    -2: "a varint does not end",
    -3: "invalid record length",
    -4: "a key runs past the end of its record",
    -5: "a value runs past the end of its record",
    -6: "invalid number of headers",
    -7: "invalid header key length",
    -8: "a header value runs past the end of its record",
    -9: "a record is longer than its fields",
    -10: "record offsets out of order",
    -11: "bytes left after the last record",
    -12: "the records do not fit in the batch",
    -13: "unknown record attributes",
    -14: "a record without a key",
    -15: "a record is newer than the batch's maxTimestamp",
}


class Run(NamedTuple):
    """Rows of a scan for the kernel to take together. ``body``: where the records begin, -1: at each row."""

    source: memoryview
    first: int
    last: int
    body: int
    records: int
    size: int


def record_error(scan: Scan, state: array[int]) -> CorruptionError:
    """Return the error for the kernel's result."""
    position = scan.table[state[1] * WIDTH]
    reason = REASONS.get(state[0], f"error {state[0]}")
    base = scan.table[state[1] * WIDTH + 2]
    return CorruptionError(f"batch at offset {base}, record {state[2]}: {reason}", position=position)


class Bounds(NamedTuple):
    """Offsets [lo, hi) at times [since, until)."""

    lo: int = 0
    hi: int = MAX_OFFSET
    since: int | None = None
    until: int | None = None

    def admit_times(self, block: SealBlock) -> bool:
        return (self.since is None or block.min_timestamp >= self.since) and (
            self.until is None or block.max_timestamp < self.until
        )

    def hold(self, block: SealBlock) -> bool:
        """Return whether every record of a block is within these bounds."""
        return self.lo <= block.first_offset and block.last_offset < self.hi and self.admit_times(block)

    def for_kernel(self) -> array[int]:
        """Return the half-open ranges as the kernel's inclusive ones."""
        last = self.hi - 1 if 0 <= self.hi <= MAX_OFFSET else max(-1, min(self.hi - 1, MAX_OFFSET))
        oldest = -(2**63) if self.since is None else max(self.since, -(2**63))
        newest = 2**63 - 1 if self.until is None else max(min(self.until - 1, 2**63 - 1), -(2**63))
        return array("q", (max(self.lo, 0), last, oldest, newest))


EVERYTHING = Bounds()


def make_skip(scan: Scan, skip: Container[int] | None) -> bytes:
    if not skip:
        return _NO_SKIP
    return bytes(1 if i in skip else 0 for i in range(scan.n))


def decompress(view: memoryview, header_row: int, scan: Scan, max_bytes: int = MAX_BATCH_BYTES) -> memoryview:
    """Decompress the records of a batch."""
    at = header_row * WIDTH
    position, size, count = scan.table[at], scan.table[at + 1], scan.table[at + 4]
    if position + size > len(view):
        raise CorruptionError("the batch runs past the buffer", position=position)
    try:
        body = codecs.decompress(
            scan.table[at + 6] & 7, view[position + HEADER_SIZE : position + size], max_bytes=max_bytes
        )
    except CorruptionError as error:
        raise CorruptionError(error.reason, position=position) from error
    if count * _MIN_RECORD > len(body):
        raise CorruptionError(f"{count} records cannot be in {len(body)} bytes", position=position)
    return memoryview(body)


def runs(
    view: memoryview,
    scan: Scan,
    first: int,
    last: int | None,
    bounds: array[int],
    skip: bytes,
    run_bytes: int,
    max_bytes: int,
) -> Iterator[Run]:
    """Yield uncompressed runs of about ``run_bytes``, and compressed batches one by one, in order."""
    last = scan.n if last is None else min(last, scan.n)
    out = array("q", bytes(40))
    while first < last and kernel.plan_run(scan.table, first, last, bounds, skip, run_bytes, out):
        row, first = out[0], out[1]
        if out[4]:
            body = decompress(view, first - 1, scan, max_bytes)
            yield Run(body, first - 1, first, 0, out[2], len(body))
        else:
            yield _new_tuple(Run, (view, row, first, -1, out[2], out[3]))


def decode_records(
    buf: Buffer,
    scan: Scan,
    first: int = 0,
    last: int | None = None,
    *,
    topic: str,
    partition: int,
    bounds: Bounds = EVERYTHING,
    skip: Container[int] | None = None,
    max_bytes: int = MAX_BATCH_BYTES,
) -> list[Record]:
    """Return the records of batches first … last - 1 that lie within ``bounds``.

    Control batches, and those whose row is in ``skip``, are left out.
    """
    view = as_view(buf)
    limits = bounds.for_kernel()
    mask = make_skip(scan, skip)
    out: list[Record] = []
    state = array("q", bytes(64))
    for run in runs(view, scan, first, last, limits, mask, 1 << 62, max_bytes):
        if kernel.decode_tuples(
            run.source,
            scan.table,
            run.first,
            run.last,
            run.body,
            limits,
            mask,
            Record,
            topic,
            partition,
            out,
            state,
        ):
            raise record_error(scan, state)
    return out


def decode_keys(
    buf: Buffer, scan: Scan, first: int = 0, last: int | None = None, *, max_bytes: int = MAX_BATCH_BYTES
) -> tuple[array[int], array[int]]:
    """hash64 of the key, and the offset, of every record that has a key: array('Q') and array('q')."""
    view = as_view(buf)
    bounds = EVERYTHING.for_kernel()
    all_hashes, all_offsets = array("Q"), array("q")
    empty_q, empty_i, empty_b = array("q"), array("i"), bytearray()
    for run in runs(view, scan, first, last, bounds, _NO_SKIP, 8 << 20, max_bytes):
        state = array("q", bytes(8 * 24))
        offsets = array("q", bytes(8 * run.records))
        ends = array("i", bytes(4 * (run.records + 1)))
        data = bytearray(run.size)
        valid = bytearray(b"\xff") * (run.records // 8 + 1)
        code = kernel.decode_columns(
            run.source, scan.table, run.first, run.last, run.body, bounds, _NO_SKIP, _KEYS,
            offsets, empty_q, empty_i, ends, data, valid, empty_i, empty_b, empty_b,
            empty_i, empty_i, empty_b, empty_i, empty_b, empty_b, state,
        )  # fmt: skip
        if code:
            raise record_error(scan, state)
        hashes = array("Q", bytes(8 * run.records))
        kept = array("q", bytes(8 * run.records))
        n = kernel.hash_keys(data, ends, valid, offsets, run.records, hashes, kept)
        if n < run.records:
            del hashes[n:], kept[n:]
        if all_hashes:
            all_hashes.extend(hashes)
            all_offsets.extend(kept)
        else:
            all_hashes, all_offsets = hashes, kept
    return all_hashes, all_offsets


def measure(buf: Buffer, scan: Scan, *, max_bytes: int = MAX_BATCH_BYTES) -> None:
    """Fill in ``min_timestamp`` of every batch from its records, and check ``max_timestamp`` against them.

    LogAppendTime batches, and those of one record or none, are known without a walk.
    """
    view = as_view(buf)
    state = array("q", bytes(64))
    i = 0
    while i < scan.n:
        code = kernel.walk_records(view, scan.table, i, scan.n, -1, state)
        i = state[3]
        if not code and i < scan.n:
            body = decompress(view, i, scan, max_bytes)
            code = kernel.walk_records(body, scan.table, i, i + 1, 0, state)
            i += 1
        if code:
            raise record_error(scan, state)


def decode_control(buf: Buffer, header: BatchHeader) -> tuple[Literal["commit", "abort"] | None, int]:
    """Return the transaction marker and the coordinator epoch of a control batch.

    (None, -1) for a batch that compaction emptied and for control records that end no transaction.
    """
    if not header.count:
        return None, -1
    view = as_view(buf)
    found = scan(view, header.position, header.position + header.size, check_crc=False)
    if found.n != 1:
        raise CorruptionError(found.reason, position=header.position)
    found.table[6] &= ~0x20  # decoded like any other
    record = decode_records(view, found, topic="", partition=0)[0]
    if record.key is None or len(record.key) < 4:
        raise CorruptionError("a control record without a type", position=header.position)
    version, kind = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise CorruptionError(f"control record version {version}", position=header.position)
    if kind not in (0, 1):
        return None, -1
    if record.value is None or len(record.value) < 6:
        raise CorruptionError("a transaction marker without its coordinator epoch", position=header.position)
    version, epoch = struct.unpack_from(">hi", record.value)
    if version < 0:
        raise CorruptionError(f"transaction marker version {version}", position=header.position)
    return ("commit" if kind else "abort"), epoch
