"""Two looks at a log that decode no record: its segments, and its batches.

``segments`` comes from listings and sidecars, ``batches`` from batch headers: a batch larger than a few
pages costs one small read, smaller ones are scanned by the kernel without their checksums. Nothing of them
is verified: that is what reading the records, or `verify`, does.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, Scan, Stop
from stratalog.format.codecs import CODEC_NAMES
from stratalog.fs import File
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.reader import MAX_RELISTS, or_gone, segment_index
from stratalog.log.segment.segment import Segment
from stratalog.spark.logs import Logs
from stratalog.spark.offsets import Pair
from stratalog.spark.planning import LogRange
from stratalog.spark.schema import to_arrow

SEGMENTS_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("baseOffset", LongType()),
        StructField("nextOffset", LongType()),
        StructField("state", StringType()),
        StructField("sizeBytes", LongType()),
        StructField("records", LongType()),
        StructField("minTimestamp", TimestampType()),
        StructField("maxTimestamp", TimestampType()),
        StructField("path", StringType()),
    ]
)
BATCHES_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("segment", LongType()),
        StructField("position", LongType()),
        StructField("sizeBytes", IntegerType()),
        StructField("baseOffset", LongType()),
        StructField("lastOffset", LongType()),
        StructField("records", IntegerType()),
        StructField("codec", StringType()),
        StructField("timestampType", IntegerType()),
        StructField("baseTimestamp", TimestampType()),
        StructField("maxTimestamp", TimestampType()),
        StructField("deleteHorizon", TimestampType()),
        StructField("producerId", LongType()),
        StructField("producerEpoch", IntegerType()),
        StructField("baseSequence", IntegerType()),
        StructField("leaderEpoch", IntegerType()),
        StructField("isTransactional", BooleanType()),
        StructField("isControl", BooleanType()),
    ]
)

_WIDTH = len(batches.BatchHeader._fields)
_AT = {name: at for at, name in enumerate(batches.BatchHeader._fields)}
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LARGE_BATCH = 16 << 10
_CHUNK = 1 << 20
_ROWS = 1 << 16
_NUMBERS = {
    "segment": "segment",
    "position": "position",
    "sizeBytes": "size",
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "records": "count",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "leaderEpoch": "leader_epoch",
}


def view_schema(view: str) -> StructType:
    return SEGMENTS_SCHEMA if view == "segments" else BATCHES_SCHEMA


def segment_rows(logs: Logs, pairs: Sequence[Pair], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Every segment of some partitions, in order."""
    schema = _narrow(SEGMENTS_SCHEMA, names)
    for pair in pairs:
        infos = logs.segment_infos(*pair)
        if not infos:
            continue
        columns: dict[str, list[Any]] = {
            "topic": [info.topic for info in infos],
            "partition": [info.partition for info in infos],
            "baseOffset": [info.base_offset for info in infos],
            "nextOffset": [info.next_offset for info in infos],
            "state": [str(info.state) for info in infos],
            "sizeBytes": [info.size_bytes for info in infos],
            "records": [info.records for info in infos],
            "minTimestamp": [_microseconds(info.min_timestamp) for info in infos],
            "maxTimestamp": [_microseconds(info.max_timestamp) for info in infos],
            "path": [info.path for info in infos],
        }
        yield pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )


def batch_rows(logs: Logs, part: LogRange, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The batches that begin in a range, in order; control batches and empty ones too."""
    schema = _narrow(BATCHES_SCHEMA, names)
    for each in part.each():
        yield from _batches(logs, each, schema)


def _batches(logs: Logs, part: LogRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    view = logs.view(part.topic, part.partition)
    view.refresh()
    at, relists = part.start, 0
    while at < part.end:
        segments = view.segments()
        try:
            for segment in segments[segment_index(segments, at) :] if segments else ():
                if segment.base_offset >= part.end:
                    return
                end = part.end
                if not segment.is_active and segment.next_offset is not None:
                    end = min(end, segment.next_offset)
                with or_gone(view, segment):
                    found = list(_headers(segment, at, end))  # whole before any is given: it may be replaced
                if not segment.is_active and view.replaced(segment):
                    raise FileNotFoundError(segment.path())
                for table in found:
                    yield _to_arrow(table, segment, schema)
                at = max(at, end)
            return
        except FileNotFoundError:
            relists += 1
            if relists > MAX_RELISTS:
                raise
            view.refresh()


def _headers(segment: Segment, start: int, end: int) -> Iterator[array[int]]:
    """Tables of the batches with base offsets in [start, end), laid out as a scan's."""
    position = segment.start_for(start).position
    table = array("q")
    with segment.open_log() as file, _mapped(file, segment) as mapped:
        while position < segment.size:
            rows, position = _next(file, position, segment, mapped)
            first, last = 0, len(rows) // _WIDTH
            while first < last and rows[first * _WIDTH + 2] < start:
                first += 1
            stop = last
            while stop > first and rows[(stop - 1) * _WIDTH + 2] >= end:
                stop -= 1
            table += rows[first * _WIDTH : stop * _WIDTH]
            if len(table) >= _ROWS * _WIDTH:
                yield table
                table = array("q")
            if stop < last:
                break
    if table:
        yield table


@contextmanager
def _mapped(file: File, segment: Segment) -> Iterator[memoryview | None]:
    """A local sealed segment in memory, of which only headers are touched; None where that is not safe.

    A file that gets shorter takes the process with it, so an active segment is not mapped.
    """
    local = not segment.is_active and not isinstance(segment, ArchivedSegment)
    if not local or not 0 < segment.size <= file.size():
        yield None
        return
    with mmap(file.fileno(), segment.size, access=ACCESS_READ) as whole, memoryview(whole) as seen:
        yield seen


def _next(file: File, position: int, segment: Segment, mapped: memoryview | None) -> tuple[array[int], int]:
    """The next batch, or the next run of them; and where the one behind them begins."""
    if mapped is not None:
        scan = batches.scan(mapped, position, check_crc=False, max_batches=_ROWS)
        return _checked(scan, position, segment), scan.end if scan.n else segment.size
    header = file.pread(HEADER_SIZE, position)
    if len(header) < HEADER_SIZE:
        return array("q"), segment.size  # a torn end, which readers do not see either
    size = _HEADER.unpack_from(header)[1] + 12
    if HEADER_SIZE <= _LARGE_BATCH <= size:
        return _row(header, position, segment), position + size
    data = file.pread(min(_CHUNK, segment.size - position), position)
    scan = batches.scan(data, check_crc=False)
    table = _checked(scan, position, segment)
    for at in range(0, len(table), _WIDTH):
        table[at] += position
    return table, position + scan.end if scan.n else segment.size


def _checked(scan: Scan, position: int, segment: Segment) -> array[int]:
    if scan.n == 0 and scan.stop is not Stop.ZERO:
        raise CorruptionError(scan.reason, path=segment.path(), position=position)
    return scan.table


def _row(header: bytes, position: int, segment: Segment) -> array[int]:
    base, length, epoch, magic, crc, attributes, delta, first, newest, producer, pepoch, sequence, count = (
        _HEADER.unpack_from(header)
    )
    if magic != 2 or delta < 0 or count < 0 or base < segment.base_offset:
        raise CorruptionError("no batch begins here", path=segment.path(), position=position)
    said = (position, length + 12, base, base + delta, count, epoch, attributes, crc, first, newest, -1)
    return array("q", (*said, producer, pepoch, sequence))


def _to_arrow(table: array[int], segment: Segment, schema: pa.Schema) -> pa.RecordBatch:
    n = len(table) // _WIDTH
    columns = []
    for field in schema:
        name = field.name
        if name in _NUMBERS and name != "segment":
            columns.append(_column(table, _NUMBERS[name]).cast(field.type))
        elif name in ("topic", "partition", "segment"):
            value = {"topic": segment.topic, "partition": segment.partition, "segment": segment.base_offset}
            columns.append(pa.repeat(pa.scalar(value[name], field.type), n))
        else:
            columns.append(_derived(table, name, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(table: array[int], name: str) -> pa.Array:
    numbers = table[_AT[name] :: _WIDTH]
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _derived(table: array[int], name: str, kind: pa.DataType) -> pa.Array:
    attributes = _column(table, "attributes")

    def bit(at: int) -> pa.Array:
        return pc.bit_wise_and(pc.shift_right(attributes, at), 1)

    match name:
        case "codec":
            known = pa.array(CODEC_NAMES, pa.string())
            return known.take(pc.min_element_wise(pc.bit_wise_and(attributes, 7), len(known) - 1))
        case "timestampType":
            return bit(3).cast(kind)
        case "isTransactional":
            return bit(4).cast(kind)
        case "isControl":
            return bit(5).cast(kind)
        case "maxTimestamp":
            return _moments(_column(table, "max_timestamp"), kind)
        case _:
            horizon = bit(6).cast(pa.bool_())
            wanted = horizon if name == "deleteHorizon" else pc.invert(horizon)
            moments = _moments(_column(table, "base_timestamp"), kind)
            return pc.if_else(wanted, moments, pa.scalar(None, kind))


def _moments(milliseconds: pa.Array, kind: pa.DataType) -> pa.Array:
    known = pc.if_else(pc.greater_equal(milliseconds, 0), milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply_checked(known, 1000).cast(kind)


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def _narrow(schema: StructType, names: Sequence[str]) -> pa.Schema:
    whole = to_arrow(schema)
    return pa.schema([whole.field(name) for name in names])
