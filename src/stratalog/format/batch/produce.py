"""Ready-made batches, as a producer sends them: checked to the last record, put into a topic's codec.

Pure functions over a buffer and the kernel's `AppendInfo`. Whatever the bytes are, the outcome is an
`AppendInfo` ready to be placed, or an error that names the batch and the record (``batch_index``,
``record_index``). Decompressed records go to memory that is used again, within a bound.
"""

from __future__ import annotations

from typing import NoReturn

from stratalog.errors import CorruptionError, InvalidRecordError, RecordTooLargeError, UnsupportedFormat
from stratalog.format import codecs
from stratalog.format.batch.decode import MAX_BATCH_BYTES, REASONS
from stratalog.format.batch.encode import replace_body
from stratalog.format.batch.header_scan import HEADER_SIZE, BatchHeader, Stop, read_field, scan
from stratalog.kernel import AppendInfo

MIN_TIMESTAMP, MAX_TIMESTAMP = -(2**63), 2**63 - 1
_NO_BATCHES, _HEADER, _TOO_LARGE = -30, -31, -32

_REFUSALS = {
    -14: "a compacted topic needs a key on every record",
    -30: "no batches",
    -33: "{number} records over other than {number} offsets",
    -34: "no records",
    -35: "clients may not write control records; end a transaction with a marker",
    -36: "producers may not set the timestamp type to LogAppendTime",
    -37: "producers may not set a delete horizon",
    -38: "producer {number} without a sequence",
    -39: "a transaction without a producer id",
    -40: "timestamp {number} is too far from now; see message.timestamp.before.max.ms and"
    " message.timestamp.after.max.ms",
}
"""By the kernel's codes: what a valid batch may not be. The codes of `REASONS` are damage."""


def validate(
    data: bytearray | memoryview,
    *,
    max_bytes: int,
    max_decompressed_bytes: int = MAX_BATCH_BYTES,
    require_keys: bool = False,
    client: bool = True,
    oldest: int = MIN_TIMESTAMP,
    newest: int = MAX_TIMESTAMP,
    codec: int | None = None,
    level: int | None = None,
    info: AppendInfo | None = None,
    scratch: codecs.Scratch | None = None,
) -> AppendInfo:
    """Check batches from outside, to the last record; returns what they are, ready to be placed.

    ``data`` is writable and holds whole batches and nothing else. As in Kafka ``max_bytes`` holds for each
    batch as it came and, where ``codec`` changes it, again as it will be stored. Timestamps lie between
    ``oldest`` and ``newest``, and ``require_keys`` asks for a key on every record. A ``client`` must number
    its records; a coordinator need not. Offsets in ``data`` mean nothing.
    """
    if info is None:
        info = AppendInfo()
    code = info.check(data, max_bytes, require_keys, client, oldest, newest)
    if code:
        _refuse(info, data, code, max_bytes)
    if info.compressed or codec is not None:
        _unpack(info, data, max_bytes, max_decompressed_bytes, codec, level, scratch or codecs.Scratch())
    return info


def headers(info: AppendInfo) -> list[BatchHeader]:
    """Return the headers of the batches of an append."""
    return [BatchHeader._make(info.header(row)) for row in range(info.n)]


def _unpack(
    info: AppendInfo,
    data: bytearray | memoryview,
    max_bytes: int,
    max_decompressed_bytes: int,
    codec: int | None,
    level: int | None,
    scratch: codecs.Scratch,
) -> None:
    """Check the records of compressed batches; bring those of another codec into ``codec``."""
    view = memoryview(data)
    parts: list[memoryview | bytearray] = []
    places: list[tuple[int, int, int, int]] = []
    position, changed = 0, False
    for row, header in enumerate(headers(info)):
        whole: memoryview | bytearray = view[header.position : header.position + header.size]
        body: memoryview | bytes = view[header.position + HEADER_SIZE : header.position + header.size]
        attributes, crc = header.attributes, header.crc
        if header.codec:
            packed = body
            try:
                body = scratch.decompress(header.codec, packed, max_bytes=max_decompressed_bytes)
            except CorruptionError as error:
                reason = f"batch {row}: {error.reason}"
                raise CorruptionError(reason, position=header.position).in_batch(row) from error
            unread = codecs.unread_by_kafka(packed) if header.codec == codecs.LZ4 else None
            if unread:
                raise InvalidRecordError(
                    f"batch {row}: {unread}, which Kafka's clients do not read"
                ).in_batch(row)
            code = info.walk(row, body)
            if code:
                _refuse(info, data, code, max_bytes)
        if codec is not None and header.codec != codec:
            whole = replace_body(whole, codecs.compress(codec, body, level) if codec else body, codec)
            attributes, crc = attributes & ~7 | codec, read_field(whole, "crc")
            changed = True
            if len(whole) > max_bytes:
                raise RecordTooLargeError(
                    f"batch {row}: {len(whole)} bytes as it is stored ({codecs.CODEC_NAMES[codec]}), more"
                    f" than the {max_bytes} allowed"
                ).in_batch(row)
        parts.append(whole)
        places.append((position, len(whole), attributes, crc))
        position += len(whole)
    if changed:
        info.replace(bytearray().join(parts), places)


def _refuse(info: AppendInfo, data: bytearray | memoryview, code: int, max_bytes: int) -> NoReturn:
    """Raise what the kernel's answer means."""
    batch, record, position = info.batch_index, info.record_index, info.position
    where = f"batch {batch}" if record < 0 else f"batch {batch}, record {record}"
    if code == _HEADER:
        found = scan(memoryview(data)[position:], max_batches=1)
        if found.stop is Stop.UNSUPPORTED:
            raise UnsupportedFormat(f"batch {batch} at byte {position}: {found.reason}").in_batch(batch)
        raise CorruptionError(f"batch {batch}: {found.reason}", position=position).in_batch(batch)
    if code == _TOO_LARGE:
        raise RecordTooLargeError(
            f"{where}: {info.number} bytes, more than the {max_bytes} allowed"
        ).in_batch(batch)
    if code in _REFUSALS:
        reason = _REFUSALS[code].format(number=info.number)
        raise InvalidRecordError(reason if code == _NO_BATCHES else f"{where}: {reason}").in_batch(
            batch, record
        )
    reason = REASONS.get(code, f"error {code}")
    raise CorruptionError(f"{where}: {reason}", position=position).in_batch(batch, record)
