"""Records to batches: from tuples, one at a time, transaction markers, and other codecs for ready batches.

Pure functions: records in, the bytes of one batch and its facts out. The kernel makes the uncompressed
batch; compression replaces its records. Input that cannot be a record is an InvalidRecordError that names it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

from stratalog import kernel
from stratalog.errors import InvalidRecordError, RecordTooLargeError
from stratalog.format import codecs
from stratalog.format.batch.header_scan import (
    CRC_FROM,
    HEADER_SIZE,
    LENGTH_FROM,
    Buffer,
    read_field,
    write_field,
)
from stratalog.model import LOG_APPEND_TIME, Record

_FIRST_ROOM = 4096  # what a batch of a few records takes; the kernel lets the buffer grow

kernel.use_error(InvalidRecordError)

encode_one = kernel.encode_one
"""One uncompressed batch of one record:
encode_one(value, key, headers, timestamp, base_offset, leader_epoch, timestamp_type) -> bytes."""


class Encoded(NamedTuple):
    """One batch, ready to be written. ``crc`` is the CRC-32C of all of ``data``, not the one inside it."""

    data: bytes | bytearray
    base_offset: int
    last_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    min_timestamp: int
    max_timestamp: int
    offset_of_max_timestamp: int
    crc: int


def whole_crc(data: Buffer) -> int:
    """The CRC-32C of a whole batch, from the one it carries."""
    head = kernel.crc32c(data[:CRC_FROM])
    return kernel.crc32c_combine(head, read_field(data, "crc"), len(data) - CRC_FROM)


def batch_attributes(codec: int, timestamp_type: int, transactional: bool) -> int:
    return codec | (8 if timestamp_type == LOG_APPEND_TIME else 0) | (0x10 if transactional else 0)


def with_codec(data: Buffer, codec: int, level: int | None) -> bytearray:
    """An uncompressed batch, its records compressed."""
    body = codecs.compress(codec, memoryview(data)[HEADER_SIZE:], level)
    return replace_body(data, body, codec)


def replace_body(data: Buffer, body: Buffer, codec: int) -> bytearray:
    """The header of ``data`` before other bytes of the same records; codec, length and CRC set to fit."""
    made = bytearray(HEADER_SIZE + len(body))
    made[:HEADER_SIZE] = memoryview(data)[:HEADER_SIZE]
    made[HEADER_SIZE:] = body
    write_field(made, "length", len(made) - LENGTH_FROM)
    write_field(made, "attributes", (read_field(made, "attributes") & ~7) | codec)
    write_field(made, "crc", kernel.crc32c(memoryview(made)[CRC_FROM:]))
    return made


def encode_records(
    records: Sequence[Record],
    start: int = 0,
    *,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
    timestamp_type: int = 0,
    codec: int = 0,
    level: int | None = None,
    max_bytes: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> tuple[Encoded, int]:
    """One batch of records[start:], as many as fit in ``max_bytes`` uncompressed; and the index of the next.

    Records are ``Record`` or plain tuples that begin like one. A timestamp of None is ``now_ms``. With
    LogAppendTime the batch is stamped ``now_ms`` and the records keep their own times inside.
    """
    if not isinstance(records, list):
        records = list(records)
    data = bytearray(_FIRST_ROOM)
    size, count, least, largest, crc = kernel.encode_tuples(
        data,
        records,
        start,
        now_ms,
        max_bytes,
        base_offset,
        leader_epoch,
        batch_attributes(0, timestamp_type, transactional),
        producer_id,
        producer_epoch,
        base_sequence,
    )
    if not count:
        raise too_large(start, size, max_bytes)
    del data[size:]
    return finished(data, count, least, largest, crc, base_offset, codec, level), start + count


def finished(
    data: bytearray,
    count: int,
    least: int,
    largest: int,
    crc: int,
    base_offset: int,
    codec: int,
    level: int | None,
) -> Encoded:
    """What the kernel encoded, compressed where that is asked for."""
    if codec:
        data = with_codec(data, codec, level)
        crc = whole_crc(data)
    last = base_offset + count - 1
    return Encoded(data, base_offset, last, count, least, largest, last, crc)


def too_large(index: int, size: int, max_bytes: int) -> RecordTooLargeError:
    """The error for a record that does not even fit in a batch of its own."""
    return RecordTooLargeError(
        f"record {index}: {size} bytes as a batch, more than the {max_bytes} allowed, the smaller of the"
        " topic's max.message.bytes and segment.bytes"
    )


def encode_control(
    marker: Literal["commit", "abort"],
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int,
    leader_epoch: int,
    timestamp: int,
    coordinator_epoch: int = 0,
) -> bytes:
    """The control batch that ends a transaction."""
    kinds = {"abort": 0, "commit": 1}
    if marker not in kinds:
        raise InvalidRecordError(f"a transaction ends with commit or abort, not {marker!r}")
    record = Record(
        struct.pack(">hi", 0, coordinator_epoch), struct.pack(">hh", 0, kinds[marker]), (), timestamp
    )
    data = bytearray(_FIRST_ROOM)
    size, *_ = kernel.encode_tuples(
        *(data, [record], 0, timestamp, _FIRST_ROOM),
        *(base_offset, leader_epoch, 0x30, producer_id, producer_epoch, -1),
    )
    return bytes(data[:size])
