"""Appending ready-made batches, as a network server receives them.

Every batch is checked before anything is written: its CRC, every record, the producer's sequence. Then
offsets and the leader epoch are patched in place, which the CRC does not cover; other bytes only change if
the topic demands another codec, or LogAppendTime. For a batch that an idempotent producer sends again, the
offsets of the first append are returned.

An append has two steps: write the batches (`BatchesAppended` says where), then wait until they are durable,
unless ``wait`` is False. A server appends to many partitions first and then waits once, with
`PartitionWriter.durable`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stratalog.errors import RecordTooLargeError
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format.batch import BatchHeader
from stratalog.kernel import AppendInfo
from stratalog.log.write.producers import MarkerType, Origin, ProducerBatch
from stratalog.log.write.writer import PartitionWriter

MAX_DECOMPRESSED_BYTES = 256 << 20
"""The largest size of the records of one batch after decompression."""

Guard = Callable[[BatchHeader], None]

_MAX_TIMESTAMP = 2**63 - 1
_MIN_TIMESTAMP = -(2**63)
_new_tuple = tuple.__new__  # a named tuple's own costs a Python call


class BatchesAppended(NamedTuple):
    """Where the batches went, and the state of the log right after.

    ``timestamp`` is the log append time, or -1 with CreateTime. ``flush_due``: ``flush.messages`` asks for a
    sync before this is acknowledged.
    """

    partition: int
    base_offset: int
    last_offset: int
    timestamp: int
    duplicate: bool = False
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    flush_due: bool = False


class _Tools:
    """Reusable memory of a check: the kernel's table, and a buffer to decompress into."""

    __slots__ = ("info", "scratch")

    def __init__(self) -> None:
        self.info = AppendInfo()
        self.scratch = codecs.Scratch()


_spare: deque[_Tools] = deque(maxlen=16)
"""A deque's ends may be used from any thread."""


def append_batches(
    writer: PartitionWriter,
    data: bytes | bytearray | memoryview,
    *,
    sync: bool = False,
    origin: Origin = "client",
    wait: bool = True,
    guard: Guard | None = None,
) -> BatchesAppended:
    """Append one or more whole RecordBatch v2, as a producer sent them.

    A writable buffer is not copied: the batches are changed in it, and it must not change until this returns.
    ``max.message.bytes`` limits each batch as it was sent, and again as it is stored if the topic's
    ``compression.type`` changed it, as in Kafka. A duplicate returns when the append it repeats is as durable
    as ``sync`` or the topic's settings ask. Without ``wait`` this returns when the batches are written. A
    coordinator's batches need no sequences. An error names the batch and the record in ``batch_index`` and
    ``record_index``; nothing is written then. ``guard`` is asked about each batch under the partition's lock
    and raises what is against it.
    """
    if not isinstance(data, bytearray):
        data = bytearray(data) if isinstance(data, bytes) or data.readonly else data
    try:
        tools = _spare.pop()
    except IndexError:
        tools = _Tools()
    info = tools.info
    try:
        placed = _append(writer, data, origin, info, tools.scratch, guard)
    finally:
        info.release()
        _spare.append(tools)
    if wait:
        writer.acknowledge(placed.last_offset + 1, sync)
    return placed


def _append(
    writer: PartitionWriter,
    data: bytearray | memoryview,
    origin: Origin,
    info: AppendInfo,
    scratch: codecs.Scratch,
    guard: Guard | None,
) -> BatchesAppended:
    config = writer.config
    clock = writer.context.clock
    now = clock.now_ms()
    stamped = config.log_append_time
    oldest, newest = _MIN_TIMESTAMP, _MAX_TIMESTAMP
    if not stamped:
        oldest = max(now - config.message_timestamp_before_max_ms, oldest)
        newest = min(now + config.message_timestamp_after_max_ms, newest)
    codec = None if config.compression_type == "producer" else codecs.NAMES[config.compression_type]
    batches.validate(
        data,
        max_bytes=config.max_message_bytes,
        max_decompressed_bytes=MAX_DECOMPRESSED_BYTES,
        require_keys=config.compact,
        client=origin == "client",
        oldest=oldest,
        newest=newest,
        codec=codec,
        level=None if codec is None else writer.encoding.level,
        info=info,
        scratch=scratch,
    )
    if info.size > config.segment_bytes:
        raise RecordTooLargeError(
            f"{writer.topic}: {info.size} bytes at once, more than segment.bytes={config.segment_bytes}"
        )

    def append() -> BatchesAppended:
        stamp = now
        if guard is not None:
            for header in batches.headers(info):
                guard(header)
        duplicate = bool(info.producers) and not writer.producers.admit(info, origin)
        if duplicate:
            first, last, stamp = info.base_offset, info.last_offset, info.timestamp
        else:
            if stamped:
                stamp = clock.now_ms()  # not older than that of the batch before
            first = writer.next_offset
            last = info.place(first, writer.leader_epoch, stamped, stamp) - 1
            writer.write_batches(info, stamp)
        ends = writer.ends_after(last + 1)
        placed = (writer.partition, first, last, stamp if stamped else -1, duplicate, *ends)
        return _new_tuple(BatchesAppended, placed)

    return writer.exclusively(append)


def append_marker(
    writer: PartitionWriter,
    marker: MarkerType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    transaction_version: int = 1,
    sync: bool = False,
    wait: bool = True,
) -> BatchesAppended:
    """End a producer's transaction in this partition, by commit or abort.

    From ``transaction_version`` 2 on (KIP-890) the marker brings the producer's next epoch with it.
    """

    def append() -> BatchesAppended:
        now = writer.context.clock.now_ms()
        offset = writer.next_offset
        facts = ProducerBatch(
            producer_id, producer_epoch, -1, -1, offset, offset, now, True, True, marker, coordinator_epoch
        )
        writer.producers.validate(facts, origin="coordinator", transaction_version=transaction_version)
        data = batches.encode_control(
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_offset=offset,
            leader_epoch=writer.leader_epoch,
            timestamp=now,
            coordinator_epoch=coordinator_epoch,
        )
        writer.write(data, data, len(data), offset, offset, 0, now, now, now, facts)
        ends = writer.ends_after(offset + 1)
        return BatchesAppended(writer.partition, offset, offset, -1, False, *ends)

    placed = writer.exclusively(append)
    if wait:
        writer.acknowledge(placed.last_offset + 1, sync)
    return placed
