"""Appending many records, or one where the topic compresses: admitted, cut into batches, encoded, written.

A batch holds as many records as ``max.message.bytes`` allows. That is the size of a batch as it is stored:
with a codec one record may be larger before it is compressed. Single records without a codec take a shorter
path, `PartitionWriter.append_one`; ready-made batches come through `produce`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.errors import ConflictError, InvalidRecordError, RecordTooLargeError
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.log.write import sequenced
from stratalog.log.write.producers import increment_sequence
from stratalog.log.write.sequenced import Source
from stratalog.model import CREATE_TIME, LOG_APPEND_TIME, LONG_MAX, Appended, AppendedRange, Record

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.log.write.writer import PartitionWriter

Encode = Callable[..., tuple[int, int, int, int, int]]
"""Like the kernel's ``encode_tuples``: leaves the next batch in a buffer and returns its facts."""

FIRST_BYTES = 64 << 10
KEPT_BYTES = 2 << 20
_spare: deque[bytearray] = deque(maxlen=8)
"""Buffers that batches are encoded in, kept because fresh pages cost as much as encoding does. A deque's ends
may be used from any thread."""

_new_tuple = tuple.__new__  # a named tuple's own costs a Python call


class Encoding(NamedTuple):
    """How batches are encoded according to a topic's settings."""

    attributes: int
    codec: int
    level: int | None

    @classmethod
    def of(cls, config: TopicConfig) -> Encoding:
        kind = LOG_APPEND_TIME if config.log_append_time else CREATE_TIME
        codec = codecs.NAMES.get(config.compression_type, 0)
        levels = {
            codecs.NAMES["gzip"]: config.compression_gzip_level,
            codecs.NAMES["lz4"]: config.compression_lz4_level,
            codecs.NAMES["zstd"]: config.compression_zstd_level,
        }
        return cls(batches.batch_attributes(kind, False), codec, levels.get(codec))


class Admission:
    """The sizes, keys and timestamps that a topic accepts, by its settings."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_config",
        "_topic",
        "max_batch_bytes",
        "needs_key",
        "timestamp_type",
    )

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self._topic = topic
        self._config = config
        self._after_ms = config.message_timestamp_after_max_ms
        self._before_ms = config.message_timestamp_before_max_ms
        self.max_batch_bytes = min(config.max_message_bytes, config.segment_bytes)
        self.needs_key = config.compact
        self.timestamp_type = LOG_APPEND_TIME if config.log_append_time else CREATE_TIME

    def keyless(self) -> InvalidRecordError:
        """Return the error for a record without a key in a compacted topic."""
        return InvalidRecordError(
            f"{self._topic} is compacted: every record needs a key (cleanup.policy contains 'compact')"
        )

    def too_large(self, size: int) -> RecordTooLargeError:
        """Return the error for a batch past ``max_batch_bytes``."""
        return RecordTooLargeError(
            f"{self._topic}: a batch of {size} bytes is larger than {self.max_batch_bytes}, the smaller of"
            f" max.message.bytes={self._config.max_message_bytes} and"
            f" segment.bytes={self._config.segment_bytes}"
        )

    def check_timestamps(self, oldest: int, newest: int, now_ms: int) -> None:
        """Raise when producers' own timestamps lie too far from now; the log's own never do."""
        if self._config.log_append_time:
            return
        for timestamp in (newest, oldest):
            if timestamp > LONG_MAX or not -self._before_ms <= timestamp - now_ms <= self._after_ms:
                raise InvalidRecordError(
                    f"{self._topic}: timestamp {timestamp} is too far from now ({now_ms}); see"
                    " message.timestamp.before.max.ms and message.timestamp.after.max.ms"
                )


def append_record(
    writer: PartitionWriter,
    record: Record,
    sync: bool,
    expected: int | None = None,
    *,
    wait: bool = True,
) -> Appended:
    """Append one record to a topic with a codec, or where the log must end at ``expected``.

    Without ``wait`` it returns when the record is written; see `PartitionWriter.acknowledgement`.
    """
    if writer.admission.needs_key and record.key is None:
        raise writer.admission.keyless()
    target = take_buffer()
    encode = partial(kernel.encode_tuples, target, [record])
    placed, timestamp = _append(writer, encode, target, 1, sync, expected, wait)
    return Appended(writer.partition, placed.offset, timestamp)


def append_records(
    writer: PartitionWriter,
    records: Sequence[Record],
    sync: bool = False,
    expected: int | None = None,
    *,
    wait: bool = True,
) -> AppendedRange:
    """Append records in order; ConflictError if the log does not end at ``expected``. As `append_record`."""
    rows = records if isinstance(records, list) else list(records)
    _check_keys(writer, rows)
    target = take_buffer()
    encode = partial(kernel.encode_tuples, target, rows)
    return _append(writer, encode, target, len(rows), sync, expected, wait)[0]


def append_arrow(
    writer: PartitionWriter,
    table: pa.Table | pa.RecordBatch,
    sync: bool = False,
    expected: int | None = None,
) -> AppendedRange:
    """Append the rows of an Arrow table or record batch in order; ``expected`` as for `append_records`."""
    rows = batches.ArrowRows(table)
    if writer.admission.needs_key:
        _check_key_column(writer, table)
    target = take_buffer()
    return _append(writer, partial(rows.encode_into, target), target, len(rows), sync, expected)[0]


def _check_keys(writer: PartitionWriter, rows: list[Record]) -> None:
    if writer.admission.needs_key:
        for record in rows:
            if record[1] is None:
                raise writer.admission.keyless()


def _check_key_column(writer: PartitionWriter, table: pa.Table | pa.RecordBatch) -> None:
    if "key" not in table.schema.names or table.column("key").null_count:
        raise writer.admission.keyless()


def append_sequenced(
    writer: PartitionWriter,
    records: list[Record] | pa.Table | pa.RecordBatch,
    source: Source,
    sync: bool = False,
    *,
    wait: bool = True,
) -> list[AppendedRange]:
    """Append records that carry a producer's sequences; return where they are, in order.

    Of a named producer those that are in the log already are not written again.
    """
    target = take_buffer()
    if isinstance(records, list):
        _check_keys(writer, records)
        total, encode = len(records), partial(kernel.encode_tuples, target, records)
    else:
        rows = batches.ArrowRows(records)
        if writer.admission.needs_key:
            _check_key_column(writer, records)
        total, encode = len(rows), partial(rows.encode_into, target)
    first, end, _ = writer.exclusively(_encode_and_write, writer, encode, target, total, None, source)
    give_back(target)
    known = total - (end - first)
    ranges = [] if not known else sequenced.find(writer, source, known)
    if end > first:
        ranges.append(AppendedRange(writer.partition, first, end - first))
    if wait:
        writer.acknowledge(max(each.offset + each.count for each in ranges), sync)
    return sequenced.joined(ranges)


def take_buffer() -> bytearray:
    """Return a buffer that no other thread uses, with undefined contents."""
    try:
        return _spare.pop()
    except IndexError:
        return bytearray(FIRST_BYTES)


def give_back(buffer: bytearray) -> None:
    """Keep a buffer for the next append. Not after an error: its traceback may still refer to it."""
    if len(buffer) <= KEPT_BYTES:
        _spare.append(buffer)


def _append(
    writer: PartitionWriter,
    encode: Encode,
    target: bytearray,
    total: int,
    sync: bool,
    expected: int | None,
    wait: bool = True,
) -> tuple[AppendedRange, int]:
    """Return where the batches went, and the largest timestamp of the last one."""
    first, end, stamped = writer.exclusively(_encode_and_write, writer, encode, target, total, expected)
    give_back(target)
    if wait and end > first:
        writer.acknowledge(end, sync)
    return _new_tuple(AppendedRange, (writer.partition, first, end - first)), stamped


def _encode_and_write(
    writer: PartitionWriter,
    encode: Encode,
    target: bytearray,
    total: int,
    expected: int | None,
    source: Source | None = None,
) -> tuple[int, int, int]:
    """Return the first offset, the one after the last, and the last batch's largest timestamp."""
    admission, now_ms, epoch = writer.admission, writer.context.clock.now_ms, writer.leader_epoch
    attributes, codec, level = writer.encoding
    largest_batch = limit = admission.max_batch_bytes
    done, stamped = 0, -1
    producer, producer_id, producer_epoch, sequence = None, -1, -1, -1
    if source is not None:
        producer_id, producer_epoch = source.producer_id, source.epoch
        if source.transactional:
            attributes |= batches.batch_attributes(CREATE_TIME, True)
        else:
            done = sequenced.already(writer, source, total)
    first = offset = writer.active.ledger.next_offset
    if expected is not None and expected != first:
        then = f"another append came first; read the records from {expected} and decide again"
        raise ConflictError(
            f"{writer.topic}-{writer.partition} ends at offset {first}, not at {expected}:"
            f" {then if expected < first else 'the log is shorter'}",
            partition=writer.partition,
            expected=expected,
            actual=first,
        )
    while done < total:
        now = now_ms()
        if source is not None:
            sequence = increment_sequence(source.sequence, done)
        size, count, least, largest, crc = encode(
            done, now, limit, offset, epoch, attributes, producer_id, producer_epoch, sequence
        )
        if writer.active.ledger.next_offset != offset:
            raise RuntimeError("a record was appended while others were encoded")
        if not count:
            if not codec:
                raise batches.too_large(done, size, largest_batch)
            limit = size  # that one record: compressed it may be small enough
            continue
        if least != now or largest != now:
            admission.check_timestamps(least, largest, now)
        data = memoryview(target)[:size]
        if codec:
            data = memoryview(batches.with_codec(data, codec, level))
            if len(data) > largest_batch:
                if count == 1:
                    raise batches.too_large(done, len(data), largest_batch)
                limit = min(size, largest_batch) - (len(data) - largest_batch) - 1
                continue
            size, crc = len(data), batches.whole_crc(data)
        if source is not None:
            producer = source.batch(done, offset, count, largest)
            writer.producers.validate(producer)
        writer.write(data, crc, size, offset, offset + count - 1, count, least, largest, now, producer)
        data.release()
        done += count
        offset += count
        limit, stamped = largest_batch, largest
    return first, offset, stamped
