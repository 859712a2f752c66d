"""Batches filtered for compaction and erasing: which records of a log stay, and the bytes they become.

Pure functions over a buffer and the scan that described it; no file is touched, so there is nothing for a
crash to leave. What they do is what Kafka's Cleaner does with its RecordFilter: `build` collects the latest
offset of every key, `filter_batches` writes what survives.

    keys = KeyMap(memory_bytes, first_dirty_offset)
    for data, scan in dirty chunks:
        if build(keys, data, scan, skip=aborted, lo=first_dirty_offset) < scan.n:
            break                          # keys.full; the next pass begins at keys.latest_offset + 1
    for data, scan in all chunks up to keys.latest_offset:
        made = filter_batches(data, scan, keys=keys, retention=flags, now_ms=…, delete_retention_ms=…)
        write(made.data)                   # made.scan describes made.data, and is measured

``KeyMap(memory_bytes, base_offset, seed=None)`` never takes more than that memory, and at first far less:
16 bytes a slot, for 96 bits of a keyed hash and the offset less ``base_offset`` (offsets 2**32 - 1 apart or
more end a map, as if it were full). Records below ``base_offset`` do not count. How many bytes are enough
is said by ``KeyMap.memory_for(records)``. A map has ``capacity`` (the keys it takes), ``full``,
``base_offset``, ``latest_offset`` (-1 at first; may be set, to pass over a gap in offsets), ``len()``,
``get(key) -> offset | None``, ``add(key, offset) -> bool`` (False: no room) and ``clear(base_offset)``.
``watch(bytes)`` adds a bit for each offset from ``base_offset`` on, set when a later record of its key goes
in: `filter_batches` then drops the record without asking the map.
``DropSet(keys)`` holds keys to erase, compared byte by byte. The GIL is released; a map that one thread uses
is refused (RuntimeError) to another that would change it, several may read it at once.

``retention`` has a byte for each row of the scan (None: 0 for all), made of

    KEEP_EMPTY (1)      the batch stays, as a bare header if no record survives (Kafka's RETAIN_EMPTY: a
                        producer's last batch, the last batch of the round)
    DISCARD (2)         none of its records survives, they are not even looked at: aborted data, a control
                        batch past its horizon. Alone it is Kafka's DELETE; with KEEP_EMPTY a header stays
    START_HORIZON (4)   a control batch that stays but whose transaction is gone: it gets a delete horizon, if
                        it has none, as if it held a tombstone

A batch with neither of the first two stays if a record of it does. Records of control batches survive unless
discarded; those of others are judged like this:

    its key is in ``drop_keys``                                     goes
    its offset is beyond ``keys.latest_offset``                     stays
    it has no key                                                   goes (only when there are ``keys``)
    ``keys`` knows a later offset of its key                        goes
    a tombstone in a batch with a delete horizon <= ``now_ms``      goes (only with ``delete_retention_ms``
                                                                    and if not in ``keep_offsets``)
    anything else                                                   stays

A batch that keeps a tombstone and has no delete horizon yet gets ``now_ms + delete_retention_ms`` as its
horizon; with ``delete_retention_ms=None`` (erasing) horizons and tombstones are left as they are. A batch
that loses nothing and gets no horizon is copied byte for byte. One that is rewritten keeps base and last
offset, producer, sequence, leader epoch, codec and timestamp type; its base timestamp becomes the horizon or
that of its first record, its maxTimestamp that of its newest. A bare header keeps its maxTimestamp.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import NamedTuple

from stratalog import kernel
from stratalog.format import codecs
from stratalog.format.batch.decode import MAX_BATCH_BYTES, decode_records, decompress, record_error
from stratalog.format.batch.encode import replace_body
from stratalog.format.batch.header_scan import HEADER_SIZE, WIDTH, Buffer, Scan, Stop, as_view, read_field
from stratalog.kernel import DropSet, KeyMap
from stratalog.model import saturated

__all__ = [
    "DISCARD",
    "KEEP_EMPTY",
    "START_HORIZON",
    "DropSet",
    "DueTombstone",
    "Filtered",
    "KeyMap",
    "build",
    "due_tombstones",
    "filter_batches",
    "transaction_rows",
]

KEEP_EMPTY = 1
DISCARD = 2
START_HORIZON = 4

_DELETE_HORIZON = 0x40
_TRANSACTIONAL_OR_CONTROL = 0x30
_GROWTH = 10  # bytes that another timestamp delta may add to a record
_PLACES = 1024  # for records that the kernel looks at together, at first
# The kernel's answers, and the slots of the state it keeps from call to call.
_TARGET_ROOM, _MADE_ROOM, _RECORD_ROOM = 1, 2, 3
_COPIED, _REWRITTEN = 1, 2
_ROW, _SIZE, _ROWS, _RECORDS_IN, _RECORDS_OUT, _TOMBSTONES_IN, _TOMBSTONES_OUT, _REWRITES = range(3, 11)
_OUTCOME, _NEEDED, _LARGEST, _PRODUCERS = range(11, 15)
_STATE_SIZE = 16


class Filtered(NamedTuple):
    """What `filter_batches` made of the batches it was given.

    ``scan`` describes ``data``, ``min_timestamp`` filled in, as after ``measure``. Records and tombstones are
    counted outside control batches; tombstones of discarded batches are not counted, since they are not read.
    """

    data: bytearray
    scan: Scan
    records_in: int
    records_out: int
    tombstones_in: int
    tombstones_out: int
    batches_in: int
    batches_out: int
    batches_rewritten: int

    @property
    def unchanged(self) -> bool:
        """``data`` is byte for byte what was read."""
        return self.batches_in == self.batches_out and not self.batches_rewritten


class DueTombstone(NamedTuple):
    """A tombstone that the next `filter_batches` would drop because its batch's delete horizon has passed."""

    offset: int
    key: bytes


def build(
    keys: KeyMap,
    data: Buffer,
    scan: Scan,
    first: int = 0,
    last: int | None = None,
    *,
    skip: bytes | bytearray | None = None,
    lo: int = 0,
    max_bytes: int = MAX_BATCH_BYTES,
) -> int:
    """Add the latest offset of each key of batches first … last - 1, records below ``lo`` left out.

    ``skip``: a byte for each row of the scan, not 0 for batches to leave out (aborted transactions); control
    batches always are. Returns the row after the last one that went in: ``last``, or less when the map is
    full. It stops before a batch whose records may not all fit, and inside one only if that is larger than
    the whole map. ``keys.latest_offset`` rises to the end of what went in, what was left out included.
    """
    view = as_view(data)
    last = scan.n if last is None else min(last, scan.n)
    mask = _mask(scan, skip, "skip")
    state = array("q", bytes(64))
    row = max(first, 0)
    while row < last:
        code = kernel.add_rows(keys, view, scan.table, row, last, -1, mask, lo, state)
        row = state[3]
        if not code and row < last and not keys.full:
            body = decompress(view, row, scan, max_bytes)
            code = kernel.add_rows(keys, body, scan.table, row, row + 1, 0, mask, lo, state)
            row = state[3]
        if code:
            raise record_error(scan, state)
        if keys.full:
            break
    return row


def due_tombstones(
    data: Buffer,
    scan: Scan,
    first: int = 0,
    last: int | None = None,
    *,
    keys: KeyMap | None,
    now_ms: int,
    retention: bytes | bytearray | None = None,
    max_bytes: int = MAX_BATCH_BYTES,
) -> list[DueTombstone]:
    """Return the tombstones that are due for removal, so that older segments can be searched for their keys.

    Pass the offsets of those that must stay to `filter_batches` as ``keep_offsets``.
    """
    view = as_view(data)
    flags = _mask(scan, retention, "retention")
    found: list[DueTombstone] = []
    for row in _rows_with(scan, first, last, _DELETE_HORIZON):
        header = scan.header(row)
        if header.is_control or header.base_timestamp > now_ms or (flags and flags[row] & DISCARD):
            continue
        for record in decode_records(view, scan, row, row + 1, topic="", partition=0, max_bytes=max_bytes):
            offset, key = record.offset, record.key
            if record.value is not None or key is None or offset is None:
                continue
            if keys is not None and (offset > keys.latest_offset or offset < (keys.get(key) or 0)):
                continue
            found.append(DueTombstone(offset, key))
    return found


def transaction_rows(scan: Scan) -> array[int]:
    """Return the rows of transactional and control batches, whose retention the caller must decide."""
    return _rows_with(scan, 0, None, _TRANSACTIONAL_OR_CONTROL)


def filter_batches(
    data: Buffer,
    scan: Scan,
    first: int = 0,
    last: int | None = None,
    *,
    keys: KeyMap | None = None,
    drop_keys: DropSet | None = None,
    retention: bytes | bytearray | None = None,
    now_ms: int = 0,
    delete_retention_ms: int | None = None,
    keep_offsets: Collection[int] = (),
    recompress: bool = True,
    max_bytes: int = MAX_BATCH_BYTES,
) -> Filtered:
    """Filter batches first … last - 1 by the rules at the top of this module.

    Without ``recompress`` what becomes of a compressed batch is left plain, for who reads it at once.
    A record that fails its checks is a CorruptionError whose ``position`` is its batch's in ``data``.
    """
    view = as_view(data)
    table = scan.table
    row, last = max(first, 0), scan.n if last is None else min(last, scan.n)
    batches_in = max(last - row, 0)
    horizon_ms = -1 if delete_retention_ms is None else saturated(now_ms + delete_retention_ms)
    rules = (
        _mask(scan, retention, "retention"),
        keys,
        drop_keys,
        array("q", sorted(keep_offsets)),
        now_ms,
        horizon_ms,
    )
    span = 0
    if batches_in:
        span = table[(last - 1) * WIDTH] + table[(last - 1) * WIDTH + 1] - table[row * WIDTH]
    target = kernel.blank(span + HEADER_SIZE)
    made = array("q", bytes(8 * WIDTH * max(1, min(batches_in, _PLACES))))
    places = _places(_PLACES)
    state = array("q", bytes(8 * _STATE_SIZE))
    state[_LARGEST] = -1
    while row < last:
        code = kernel.filter_rows(view, table, row, last, -1, *rules, target, made, *places, state)
        row = state[_ROW]
        if code < 0:
            raise record_error(scan, state)
        if code == _TARGET_ROOM:
            target += bytes(state[_NEEDED] + len(target) // 2)
        elif code == _MADE_ROOM:
            made.frombytes(bytes(8 * len(made)))
        elif code == _RECORD_ROOM:
            places = _places(state[_NEEDED])
        elif row < last:  # a compressed batch: filtered without its codec, then compressed again
            at, count = state[_SIZE], table[row * WIDTH + 4]
            body = decompress(view, row, scan, max_bytes)
            plain = kernel.blank(HEADER_SIZE + len(body) + _GROWTH * count)
            if count > len(places[0]):
                places = _places(count)
            state[_SIZE] = 0
            code = kernel.filter_rows(body, table, row, row + 1, 0, *rules, plain, made, *places, state)
            if code < 0:
                raise record_error(scan, state)
            size, state[_SIZE] = state[_SIZE], at
            if code == _MADE_ROOM:
                made.frombytes(bytes(8 * len(made)))
                continue
            row = state[_ROW]
            if state[_OUTCOME]:
                piece = _finished(view, scan, row - 1, memoryview(plain)[:size], state[_OUTCOME], recompress)
                target += bytes(max(0, at + len(piece) - len(target)))
                target[at : at + len(piece)] = piece
                state[_SIZE] += len(piece)
                _describe(made, state[_ROWS] - 1, at, piece)
    del target[state[_SIZE] :]
    del made[state[_ROWS] * WIDTH :]
    rows, size, records = state[_ROWS], state[_SIZE], state[_RECORDS_OUT]
    found = Scan(made, rows, size, Stop.END, "", 0, records, state[_LARGEST], state[_PRODUCERS] > 0)
    return Filtered(
        target,
        found,
        state[_RECORDS_IN],
        records,
        state[_TOMBSTONES_IN],
        state[_TOMBSTONES_OUT],
        batches_in,
        rows,
        state[_REWRITES],
    )


def _places(records: int) -> tuple[array[int], array[int], bytearray]:
    """Scratch for so many records: where they begin, their timestamps, and marks."""
    return array("q", bytes(8 * records)), array("q", bytes(8 * records)), bytearray(records)


def _finished(
    view: memoryview, scan: Scan, row: int, plain: memoryview, outcome: int, recompress: bool
) -> memoryview | bytearray:
    """Return the bytes to write for a compressed batch whose records the kernel has filtered."""
    at = row * WIDTH
    if outcome == _COPIED:
        return view[scan.table[at] : scan.table[at] + scan.table[at + 1]]
    if outcome == _REWRITTEN:
        if not recompress:
            return replace_body(plain, plain[HEADER_SIZE:], 0)
        codec = scan.table[at + 6] & 7
        return replace_body(plain, codecs.compress(codec, plain[HEADER_SIZE:]), codec)
    return plain


def _describe(made: array[int], row: int, position: int, piece: memoryview | bytearray) -> None:
    """Bring a row in line with the batch as it is written."""
    made[row * WIDTH] = position
    made[row * WIDTH + 1] = len(piece)
    made[row * WIDTH + 6] = read_field(piece, "attributes")
    made[row * WIDTH + 7] = read_field(piece, "crc")


def _mask(scan: Scan, mask: bytes | bytearray | None, name: str) -> bytes | bytearray:
    if mask is None:
        return b""
    if len(mask) < scan.n:
        raise ValueError(f"{name} has {len(mask)} bytes for {scan.n} batches")
    return mask


def _rows_with(scan: Scan, first: int, last: int | None, attributes: int) -> array[int]:
    """Return the rows of batches that have one of these attributes."""
    row, last = max(first, 0), scan.n if last is None else min(last, scan.n)
    rows = array("q")
    rows.frombytes(bytes(8 * kernel.find_rows(scan.table, row, last, attributes, rows)))
    kernel.find_rows(scan.table, row, last, attributes, rows)
    return rows
