"""The door for ready-made batches: what a network server hands in.

Every batch is checked before anything is written: its CRC, every record, the producer's sequence. Then
offsets and the leader epoch are patched in place, which the CRC does not cover; only a topic that
demands another codec, or LogAppendTime, has its bytes touched. A batch an idempotent producer sends
again is answered with where it went the first time.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog import kernel
from stratalog.errors import InvalidRecordError, RecordTooLargeError
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format.batch import Scan
from stratalog.log.producers import MarkerType, ProducerBatch
from stratalog.log.writer import PartitionWriter


class BatchesAppended(NamedTuple):
    """Where the batches went. ``timestamp`` is the log append time, or -1 with CreateTime."""

    partition: int
    base_offset: int
    last_offset: int
    timestamp: int
    duplicate: bool = False


def append_batches(
    writer: PartitionWriter, data: bytes | bytearray, *, sync: bool = False
) -> BatchesAppended:
    """Append one or more whole RecordBatch v2, as a producer sent them."""
    config = writer.config
    buffer = bytearray(data)
    scan = batches.validate(buffer, max_bytes=config.max_message_bytes, require_keys=config.compact)
    if any(header.is_control for header in scan):
        raise InvalidRecordError("clients may not send control batches; end a transaction with a marker")
    buffer, scan = _recompressed(writer, buffer, scan)
    if len(buffer) > config.segment_bytes:
        raise RecordTooLargeError(
            f"{writer.topic}: {len(buffer)} bytes at once, more than segment.bytes={config.segment_bytes}"
        )
    with writer.lock:
        writer.make_usable()
        now = writer.context.clock.now_ms()
        incoming = [ProducerBatch.of(header) for header in scan if header.producer_id >= 0]
        if len(incoming) == 1 and scan.n == 1:
            duplicate = writer.producers.find_duplicate(incoming[0])
            if duplicate is not None:
                return BatchesAppended(
                    writer.partition,
                    duplicate.base_offset,
                    duplicate.last_offset,
                    duplicate.timestamp if config.log_append_time else -1,
                    True,
                )
        writer.producers.validate(*incoming)
        if not config.log_append_time:
            for header in scan:
                writer.admission.check_timestamps(header.min_timestamp, header.max_timestamp, now)
        first = writer.next_offset
        batches.assign(
            buffer,
            scan,
            base_offset=first,
            leader_epoch=writer.leader_epoch,
            log_append_time_ms=now if config.log_append_time else None,
        )
        _write(writer, buffer, batches.scan(buffer, check_crc=False), scan, now)
        end = writer.next_offset
    writer.acknowledge(end, sync)
    return BatchesAppended(writer.partition, first, end - 1, now if config.log_append_time else -1)


def append_marker(
    writer: PartitionWriter,
    marker: MarkerType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int = 0,
    sync: bool = False,
) -> BatchesAppended:
    """End a producer's transaction in this partition, by commit or abort."""
    with writer.lock:
        writer.make_usable()
        now = writer.context.clock.now_ms()
        offset = writer.next_offset
        facts = ProducerBatch(
            producer_id, producer_epoch, -1, -1, offset, offset, now, True, True, marker, coordinator_epoch
        )
        writer.producers.validate(facts, origin="coordinator")
        data = batches.encode_control(
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_offset=offset,
            leader_epoch=writer.leader_epoch,
            timestamp=now,
            coordinator_epoch=coordinator_epoch,
        )
        active = writer.write(data, data, len(data), offset, offset, 0, now, now, now)
        completed = writer.producers.update(facts)
        if completed is not None and completed.aborted:
            active.add_aborted(completed.aborted_txn())
    writer.acknowledge(offset + 1, sync)
    return BatchesAppended(writer.partition, offset, offset, -1)


def _recompressed(writer: PartitionWriter, buffer: bytearray, scan: Scan) -> tuple[bytearray, Scan]:
    """The batches in the codec the topic demands; as they are when it leaves that to the producer."""
    wanted = writer.config.compression_type
    if wanted == "producer":
        return buffer, scan
    codec = codecs.NAMES[wanted]
    if all(header.codec == codec for header in scan):
        return buffer, scan
    joined = bytearray()
    for row, header in enumerate(scan):
        if header.codec == codec:
            joined += buffer[header.position : header.position + header.size]
        else:
            joined += batches.recompress(buffer, scan, row, codec, writer.level)
    again = batches.scan(joined)
    batches.measure(joined, again)
    return joined, again


def _write(writer: PartitionWriter, buffer: bytearray, placed: Scan, measured: Scan, now: int) -> None:
    """Write each batch and account for it; all of them were checked, so only the disk can fail now."""
    view = memoryview(buffer)
    for header, original in zip(placed, measured, strict=True):
        data = view[header.position : header.position + header.size]
        oldest = header.max_timestamp if header.timestamp_type else original.min_timestamp
        active = writer.write(
            data,
            kernel.crc32c(data),
            header.size,
            header.base_offset,
            header.last_offset,
            header.count,
            oldest,
            header.max_timestamp,
            now,
        )
        if active.keys is not None:
            active.keys.extend(*batches.decode_keys(data, batches.scan(data, check_crc=False)))
        if header.producer_id >= 0:
            writer.producers.update(ProducerBatch.of(header))
