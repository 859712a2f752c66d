"""Compaction in the plainest Python: batches taken apart, records judged one by one, batches put together.

Shares nothing with the package but the codecs and the CRC. What `stratalog.format.batch.filter` makes must be
byte for byte what comes out here.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.format import codecs
from stratalog.kernel import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 8, 0x10, 0x20, 0x40
KEEP_EMPTY, DISCARD, START_HORIZON = 1, 2, 4


@dataclass(frozen=True)
class Plain:
    """A record. ``delta`` is from its batch's base offset; ``rest`` is its headers, in bytes."""

    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    rest: bytes = b"\0"


@dataclass(frozen=True)
class Batch:
    base_offset: int
    last_delta: int
    records: tuple[Plain, ...]
    attributes: int = 0
    base_timestamp: int = 0
    max_timestamp: int = 0
    leader_epoch: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    retention: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_delta

    def encode(self) -> bytes:
        body = b"".join(encode_record(record, self.base_timestamp) for record in self.records)
        if self.attributes & 7:
            body = codecs.compress(self.attributes & 7, body)
        made = bytearray(61) + body
        HEADER.pack_into(
            made, 0, self.base_offset, len(made) - 12, self.leader_epoch, 2, 0, self.attributes,
            self.last_delta, self.base_timestamp, self.max_timestamp, self.producer_id, self.producer_epoch,
            self.base_sequence, len(self.records),
        )  # fmt: skip
        struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
        return bytes(made)


def varint(number: int) -> bytes:
    raw = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    made = bytearray()
    while raw >= 0x80:
        made.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*made, raw])


def blob(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: Plain, base_timestamp: int) -> bytes:
    body = b"\0" + varint(record.timestamp - base_timestamp) + varint(record.delta)
    body += blob(record.key) + blob(record.value) + record.rest
    return varint(len(body)) + body


@dataclass
class Outcome:
    data: bytes = b""
    records_in: int = 0
    records_out: int = 0
    tombstones_in: int = 0
    tombstones_out: int = 0
    batches_rewritten: int = 0
    batches: list[Batch] = field(default_factory=list)


def latest(batches: Sequence[Batch], skipped: Collection[int] = (), lo: int = 0) -> dict[bytes, int]:
    """The latest offset of each key from ``lo`` on."""
    found: dict[bytes, int] = {}
    for row, batch in enumerate(batches):
        if batch.attributes & CONTROL or row in skipped:
            continue
        for record in batch.records:
            if record.key is not None and batch.base_offset + record.delta >= lo:
                found[record.key] = batch.base_offset + record.delta
    return found


def compact(
    batches: Sequence[Batch],
    *,
    keys: Mapping[bytes, int] | None,
    latest_offset: int = 2**63 - 1,
    drop_keys: Collection[bytes] = (),
    now_ms: int = 0,
    delete_retention_ms: int | None = None,
    keep_offsets: Collection[int] = (),
) -> Outcome:
    out = Outcome()
    horizon = None if delete_retention_ms is None else min(now_ms + delete_retention_ms, 2**63 - 1)

    def stays(batch: Batch, record: Plain) -> bool:
        offset = batch.base_offset + record.delta
        if record.key is not None and record.key in drop_keys:
            return False
        if keys is not None:
            if offset > latest_offset:
                return True
            if record.key is None or keys.get(record.key, -1) > offset:
                return False
        expired = batch.attributes & HORIZON and batch.base_timestamp <= now_ms and horizon is not None
        return not (expired and record.value is None and offset not in keep_offsets)

    for batch in batches:
        control = bool(batch.attributes & CONTROL)
        records = () if batch.retention & DISCARD else batch.records
        kept = tuple(record for record in records if control or stays(batch, record))
        tombstones = sum(record.value is None for record in kept)
        if not control:
            out.records_in += len(batch.records)
            out.records_out += len(kept)
            out.tombstones_in += sum(record.value is None for record in records)
            out.tombstones_out += tombstones
        made: Batch | None = None
        if kept:
            starts = bool(tombstones or batch.retention & START_HORIZON) and horizon is not None
            starts = starts and not batch.attributes & HORIZON
            made = batch
            if starts or len(kept) < len(batch.records):
                if batch.attributes & APPEND_TIME:
                    kept = tuple(replace(record, timestamp=batch.max_timestamp) for record in kept)
                base = kept[0].timestamp
                if batch.attributes & HORIZON:
                    base = batch.base_timestamp
                elif starts and horizon is not None:
                    base = horizon
                made = replace(
                    batch,
                    records=kept,
                    attributes=batch.attributes | (HORIZON if starts else 0),
                    base_timestamp=base,
                    max_timestamp=max(record.timestamp for record in kept),
                )
        elif batch.retention & KEEP_EMPTY:
            made = replace(batch, records=(), attributes=batch.attributes & 0x38, base_timestamp=-1)
        if made is not None:
            out.batches_rewritten += made != batch
            out.batches.append(made)
    out.data = b"".join(batch.encode() for batch in out.batches)
    return out
