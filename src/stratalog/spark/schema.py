"""The columns of the source, as Spark and as Arrow know them, and the check of a schema the user gave.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int [, headers array<struct<key: string, value: binary>>]

They are those of Spark's Kafka source. The Arrow schema handed to Spark must be exactly the one Spark derives
from its own: plain ``binary``, microseconds, nullable, in the order asked for. Touches no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.errors import ConfigError

HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
SPARK_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
SPARK_SCHEMA_WITH_HEADERS = StructType([*SPARK_SCHEMA.fields, HEADERS])

_UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")
_ARROW = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": _UTC_MICROSECONDS,
    HEADERS.dataType.simpleString(): pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
}


def schema_of(include_headers: bool) -> StructType:
    """What ``load()`` gives when the user names no schema."""
    return SPARK_SCHEMA_WITH_HEADERS if include_headers else SPARK_SCHEMA


def check_schema(wanted: StructType, known: StructType) -> tuple[str, ...]:
    """The columns a schema asks for; ConfigError when one is not there, of another type or NOT NULL."""
    fields = {field.name: field for field in known.fields}
    names: list[str] = []
    for field in wanted.fields:
        there = fields.get(field.name)
        if there is None:
            raise ConfigError(f"schema: there is no column {field.name!r}, takes {', '.join(fields)}")
        if not _same(field.dataType, there.dataType):
            raise ConfigError(
                f"schema: column {field.name!r} is {field.dataType.simpleString()}, takes"
                f" {there.dataType.simpleString()}; cast it in the query"
            )
        if not field.nullable:
            raise ConfigError(f"schema: column {field.name!r} is NOT NULL, takes nullable columns only")
        if field.name in names:
            raise ConfigError(f"schema: column {field.name!r} is there twice, takes each column once")
        names.append(field.name)
    if not names:
        raise ConfigError(f"schema: no column, takes one or more of {', '.join(fields)}")
    return tuple(names)


def _same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()


def to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow schema of one of our Spark schemas."""
    return pa.schema([pa.field(each.name, _ARROW[each.dataType.simpleString()]) for each in schema.fields])


@cache
def _arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    fields = {field.name: field for field in SPARK_SCHEMA_WITH_HEADERS.fields}
    return to_arrow(StructType([fields[name] for name in names]))


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """What Spark expects of batches with these columns."""
    return _arrow_schema(tuple(names))


def nulls_for_no_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Empty lists of headers become NULL."""
    import pyarrow.compute as pc

    at = batch.schema.get_field_index("headers")
    headers = batch.column(at)
    none = pc.equal(headers.value_lengths(), 0)
    known = pc.if_else(none, pa.scalar(None, headers.type), headers)
    return batch.set_column(at, batch.schema.field(at), known)


def to_spark(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """A batch of the log's own scan, with the types Spark expects: milliseconds become microseconds."""
    wanted = arrow_schema(names)
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
