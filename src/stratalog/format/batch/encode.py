"""Records to batches: from tuples, one at a time, transaction markers, and other codecs for ready batches.

Pure functions: records in, the bytes of one batch and its facts out. The kernel makes the uncompressed
batch; compression replaces its records. Input that cannot be a record is an InvalidRecordError that names it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch to be encoded has beside its records.

    It has at most ``max_bytes`` before it is compressed. Records without a timestamp get ``now_ms``, and with
    LogAppendTime so does the batch, whose records keep their own times inside.
    """

    base_offset: int
    leader_epoch: int
    now_ms: int
    max_bytes: int
    timestamp_type: int = 0
    codec: int = 0
    level: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


def whole_crc(data: Buffer) -> int:
    """Compute the CRC-32C of a whole batch from the one in its header."""
    head = kernel.crc32c(data[:CRC_FROM])
    return kernel.crc32c_combine(head, read_field(data, "crc"), len(data) - CRC_FROM)


def batch_attributes(timestamp_type: int, transactional: bool) -> int:
    return (8 if timestamp_type == LOG_APPEND_TIME else 0) | (0x10 if transactional else 0)


def with_codec(data: Buffer, codec: int, level: int | None) -> bytearray:
    """Return an uncompressed batch with its records compressed."""
    body = codecs.compress(codec, memoryview(data)[HEADER_SIZE:], level)
    return replace_body(data, body, codec)


def replace_body(data: Buffer, body: Buffer, codec: int) -> bytearray:
    """Return the batch with other bytes for its records; codec, length and CRC are set to fit."""
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
    options: BatchOptions,
) -> tuple[Encoded, int]:
    """Encode one batch of records[start:], as many as fit; return it and the index of the next record.

    Records are ``Record`` or plain tuples that begin like one.
    """
    if not isinstance(records, list):
        records = list(records)
    data = bytearray(_FIRST_ROOM)
    return encode_with(partial(kernel.encode_tuples, data, records), data, start, options)


def encode_with(
    encode: Callable[..., tuple[int, int, int, int, int]],
    data: bytearray,
    start: int,
    options: BatchOptions,
) -> tuple[Encoded, int]:
    """Encode one batch from row ``start`` on with ``encode``, which leaves it in ``data``."""
    base = options.base_offset
    size, count, least, largest, crc = encode(
        start,
        options.now_ms,
        options.max_bytes,
        base,
        options.leader_epoch,
        batch_attributes(options.timestamp_type, options.transactional),
        options.producer_id,
        options.producer_epoch,
        options.base_sequence,
    )
    if not count:
        raise too_large(start, size, options.max_bytes)
    del data[size:]
    if options.codec:
        data = with_codec(data, options.codec, options.level)
        crc = whole_crc(data)
    last = base + count - 1
    return Encoded(data, base, last, count, least, largest, last, crc), start + count


def too_large(index: int, size: int, max_bytes: int) -> RecordTooLargeError:
    """Return the error for a record that does not fit in a batch of its own."""
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
    """Return the control batch that ends a transaction."""
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
