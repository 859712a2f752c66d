"""Two looks at a log that decode no record: its segments, and its batches.

``segments`` comes from listings and sidecars, ``batches`` from batch headers: a large batch costs one small
read, small ones are scanned by the kernel without their checksums. Offsets that are missing are damage for
``batches``, as for every way of reading; what checksums tell, reading the records does, or `verify`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, Stop
from stratalog.format.codecs import CODEC_NAMES
from stratalog.log.read.gaps import check_joined
from stratalog.log.read.reader import Relists, or_gone, segments_between
from stratalog.log.segment.segment import Segment
from stratalog.spark.logs import Logs
from stratalog.spark.offsets import Pair
from stratalog.spark.planning import LogRange
from stratalog.spark.schema import struct_of, to_arrow

SEGMENTS_SCHEMA = struct_of(
    "topic string, partition int, baseOffset bigint, nextOffset bigint, state string, sizeBytes bigint,"
    " records bigint, minTimestamp timestamp, maxTimestamp timestamp, path string"
)
BATCHES_SCHEMA = struct_of(
    "topic string, partition int, segment bigint, position bigint, sizeBytes int, baseOffset bigint,"
    " lastOffset bigint, records int, codec string, timestampType int, baseTimestamp timestamp,"
    " maxTimestamp timestamp, deleteHorizon timestamp, producerId bigint, producerEpoch int,"
    " baseSequence int, leaderEpoch int, isTransactional boolean, isControl boolean"
)

_WIDTH = len(batches.BatchHeader._fields)
_AT = {name: at for at, name in enumerate(batches.BatchHeader._fields)}
_BASE = _AT["base_offset"]
_LARGE_BATCH = 16 << 10
_CHUNK = 1 << 20
_ROWS = 1 << 16
_NUMBERS = {
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
_BITS = {"timestampType": 3, "isTransactional": 4, "isControl": 5}
"""Places in a batch's attributes."""
_HORIZON_BIT = 6
"""Set if the base timestamp is the delete horizon."""


def view_schema(view: str) -> StructType:
    return SEGMENTS_SCHEMA if view == "segments" else BATCHES_SCHEMA


def segment_rows(logs: Logs, pairs: Sequence[Pair], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield every segment of some partitions, in order."""
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
    """Yield the batches that begin in a range, in order; control batches and empty ones too."""
    schema = _narrow(BATCHES_SCHEMA, names)
    for each in part.each():
        yield from _batches(logs, each, schema)


def _batches(logs: Logs, part: LogRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    view = logs.view(part.topic, part.partition)
    view.refresh()
    at, relists = part.start, Relists(view)
    while at < part.end:
        try:
            for segment, following, stop in segments_between(view.segments(), at, part.end):
                with or_gone(view, segment):
                    # All before the first is used: it may be replaced, and what follows may be missing.
                    found = list(_headers(segment, at, stop))
                    check_joined(view, segment, following, at, part.end)
                if not segment.is_active and view.replaced(segment):
                    raise FileNotFoundError(segment.path())
                for table in found:
                    yield _to_arrow(table, segment, schema)
                at = max(at, stop)
            return
        except FileNotFoundError as error:
            relists.again(error, at)


def _headers(segment: Segment, start: int, end: int) -> Iterator[array[int]]:
    """Yield tables of the batches with base offsets in [start, end), with the columns of a scan."""
    position = segment.start_for(start).position
    table, large = array("q"), True
    with segment.open_log() as file:
        while segment.size - position >= HEADER_SIZE:  # less is a torn end, which readers do not see either
            left = segment.size - position
            data = file.pread(HEADER_SIZE if large else min(_CHUNK, left), position)
            scan = batches.scan(data, check_crc=False, reach=left)
            if not scan.n:
                if scan.stop is Stop.ZERO and segment.is_reserved(file, position):
                    break
                raise CorruptionError(scan.reason or "a batch is cut", path=segment.path(), position=position)
            rows = scan.table
            for at in range(0, len(rows), _WIDTH):
                rows[at] += position
            position += scan.end
            large = scan.end // scan.n >= _LARGE_BATCH
            first, last = 0, scan.n
            while first < last and rows[first * _WIDTH + _BASE] < start:
                first += 1
            stop = last
            while stop > first and rows[(stop - 1) * _WIDTH + _BASE] >= end:
                stop -= 1
            table += rows[first * _WIDTH : stop * _WIDTH]
            if len(table) >= _ROWS * _WIDTH:
                yield table
                table = array("q")
            if stop < last:
                break
    if table:
        yield table


def _to_arrow(table: array[int], segment: Segment, schema: pa.Schema) -> pa.RecordBatch:
    same = {"topic": segment.topic, "partition": segment.partition, "segment": segment.base_offset}
    columns = []
    for name, kind in ((field.name, field.type) for field in schema):
        if name in _NUMBERS:
            columns.append(_column(table, _NUMBERS[name]).cast(kind))
        elif name in same:
            columns.append(pa.repeat(pa.scalar(same[name], kind), len(table) // _WIDTH))
        elif name in _BITS:
            columns.append(_bit(table, _BITS[name]).cast(kind))
        elif name == "codec":
            known = pa.array(CODEC_NAMES, pa.string())
            codes = pc.bit_wise_and(_column(table, "attributes"), 7)
            columns.append(known.take(pc.min_element_wise(codes, len(known) - 1)))
        elif name == "maxTimestamp":
            columns.append(_moments(_column(table, "max_timestamp"), kind))
        else:  # baseTimestamp or deleteHorizon: which one it is, a bit tells
            horizon = _bit(table, _HORIZON_BIT).cast(pa.bool_())
            wanted = horizon if name == "deleteHorizon" else pc.invert(horizon)
            moments = _moments(_column(table, "base_timestamp"), kind)
            columns.append(pc.if_else(wanted, moments, pa.scalar(None, kind)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(table: array[int], name: str) -> pa.Array:
    numbers = table[_AT[name] :: _WIDTH]
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _bit(table: array[int], at: int) -> pa.Array:
    return pc.bit_wise_and(pc.shift_right(_column(table, "attributes"), at), 1)


def _moments(milliseconds: pa.Array, kind: pa.DataType) -> pa.Array:
    known = pc.if_else(pc.greater_equal(milliseconds, 0), milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply_checked(known, 1000).cast(kind)


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def _narrow(schema: StructType, names: Sequence[str]) -> pa.Schema:
    whole = to_arrow(schema)
    return pa.schema([whole.field(name) for name in names])
