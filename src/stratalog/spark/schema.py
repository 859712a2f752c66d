"""The columns of the source, as Spark and as Arrow know them, and the check of a schema the user gave.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int [, headers array<struct<key: string, value: binary>>]

They are those of Spark's Kafka source. The Arrow schema for Spark must be exactly the one that Spark derives
from its own: plain ``binary``, microseconds, nullable, in the same order. Touches no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.errors import ConfigError

_TYPES: dict[str, tuple[DataType, pa.DataType]] = {
    "binary": (BinaryType(), pa.binary()),
    "string": (StringType(), pa.string()),
    "int": (IntegerType(), pa.int32()),
    "bigint": (LongType(), pa.int64()),
    "boolean": (BooleanType(), pa.bool_()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
}


def struct_of(columns: str) -> StructType:
    """Return the Spark schema of ``name type, …``; Spark's own parser needs a session."""
    pairs = (each.split() for each in columns.split(","))
    return StructType([StructField(name, _TYPES[kind][0]) for name, kind in pairs])


HEADERS = StructField("headers", ArrayType(struct_of("key string, value binary")))
SPARK_SCHEMA = struct_of(
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " timestampType int"
)
SPARK_SCHEMA_WITH_HEADERS = StructType([*SPARK_SCHEMA.fields, HEADERS])

_ARROW = {name: kind for name, (_, kind) in _TYPES.items()}
_ARROW[HEADERS.dataType.simpleString()] = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)


def schema_of(include_headers: bool) -> StructType:
    """Return the schema of ``load()`` without a schema of the user's."""
    return SPARK_SCHEMA_WITH_HEADERS if include_headers else SPARK_SCHEMA


def check_schema(wanted: StructType, known: StructType) -> tuple[str, ...]:
    """Return the columns of a schema; raise ConfigError if one is unknown, of another type or NOT NULL."""
    fields = {field.name: field for field in known.fields}
    names: list[str] = []
    for field in wanted.fields:
        there = fields.get(field.name)
        if there is None:
            raise ConfigError(f"schema: unknown column {field.name!r}; expected some of {', '.join(fields)}")
        if field.dataType.simpleString() != there.dataType.simpleString():
            raise ConfigError(
                f"schema: column {field.name!r} is {field.dataType.simpleString()}, expected"
                f" {there.dataType.simpleString()}; cast it in the query"
            )
        if not field.nullable:
            raise ConfigError(f"schema: column {field.name!r} is NOT NULL; make it nullable")
        if field.name in names:
            raise ConfigError(f"schema: column {field.name!r} occurs twice; name each column once")
        names.append(field.name)
    if not names:
        raise ConfigError(f"schema: no column; name one or more of {', '.join(fields)}")
    return tuple(names)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of one of our Spark schemas."""
    return pa.schema([pa.field(each.name, _ARROW[each.dataType.simpleString()]) for each in schema.fields])


@cache
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with these columns."""
    fields = {field.name: field for field in SPARK_SCHEMA_WITH_HEADERS.fields}
    return to_arrow(StructType([fields[name] for name in names]))


def nulls_for_no_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace empty lists of headers by NULL."""
    import pyarrow.compute as pc

    at = batch.schema.get_field_index("headers")
    headers = batch.column(at)
    none = pc.equal(headers.value_lengths(), 0)
    known = pc.if_else(none, pa.scalar(None, headers.type), headers)
    return batch.set_column(at, batch.schema.field(at), known)


def to_spark(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return a batch of the log's own scan with Spark's types: milliseconds become microseconds."""
    wanted = arrow_schema(tuple(names))
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, wanted, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
