"""The producer snapshot: `<offset>.snapshot`, what each producer last wrote below that offset.

What lives here: Kafka's version 1, big-endian.

    version int16 · crc uint32 · count int32 · entries of 46 bytes

The CRC-32C covers everything behind it. An entry is a producer's id and epoch, its last data batch (last
sequence, last offset, offset delta, timestamp; -1 and 0 where it has none), the epoch of the transaction
coordinator (-1 before the first marker) and the first offset of its open transaction (-1 when none is).

A snapshot is written when a segment is rolled and at close, whole. A crash may leave one that is missing,
short or fails its CRC: it is dropped, and the state is rebuilt from an older one and the log behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stratalog.errors import CorruptionError, UnsupportedFormat
from stratalog.format.layout import Layout, make_struct
from stratalog.kernel import crc32c

VERSION = 1
LAYOUT: Layout = (("version", "int16", 2), ("crc", "uint32", 4), ("count", "int32", 4))
ENTRY_LAYOUT: Layout = (
    ("producerId", "int64", 8),
    ("producerEpoch", "int16", 2),
    ("lastSequence", "int32", 4),
    ("lastOffset", "int64", 8),
    ("offsetDelta", "int32", 4),
    ("timestamp", "int64", 8),
    ("coordinatorEpoch", "int32", 4),
    ("currentTxnFirstOffset", "int64", 8),
)
_HEADER = make_struct(LAYOUT)
_PREFIX = make_struct(LAYOUT[:2])
_COUNT = make_struct(LAYOUT[2:])
_ENTRY = make_struct(ENTRY_LAYOUT)
HEADER_SIZE, ENTRY_SIZE = _HEADER.size, _ENTRY.size


class ProducerEntry(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def pack(entries: Iterable[ProducerEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _PREFIX.pack(VERSION, crc32c(body)) + body


def parse(data: bytes | bytearray | memoryview) -> list[ProducerEntry]:
    view = memoryview(data)
    if len(view) < HEADER_SIZE:
        raise CorruptionError(f"snapshot of {len(view)} bytes", position=0)
    version, crc, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise UnsupportedFormat(f"snapshot of version {version}")
    if crc != crc32c(view[_PREFIX.size :]):
        raise CorruptionError("the CRC of the snapshot does not match", position=_PREFIX.size)
    if len(view) != HEADER_SIZE + count * ENTRY_SIZE:
        raise CorruptionError(f"{count} entries in a snapshot of {len(view)} bytes", position=_PREFIX.size)
    return list(map(ProducerEntry._make, _ENTRY.iter_unpack(view[HEADER_SIZE:])))
