"""The columns of the source, as Spark and as Arrow know them; the check of a schema the user gave; keys and
values decoded.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int [, headers array<struct<key: string, value: binary>>]

They are those of Spark's Kafka source. The Arrow schema for Spark must be exactly the one that Spark derives
from its own: plain ``binary``, microseconds, nullable, in the same order. Touches no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from pyspark.sql import Column

    from stratalog.analysis.payloads import Payload

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
TOTALS_SCHEMA = struct_of(
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, records bigint,"
    " minOffset bigint, maxOffset bigint, minTimestamp timestamp, maxTimestamp timestamp"
)
"""What aggregates read. Filters name columns of their scan: those that only records have are here for them,
and are NULL."""

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
    fields = {field.name: field for field in (*SPARK_SCHEMA_WITH_HEADERS.fields, *TOTALS_SCHEMA.fields)}
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


# -- keys and values -----------------------------------------------------------------------------------


def decoded(column: Column | str, form: Payload | str) -> Column:
    """Return a column of keys or values as what they hold: a struct for Avro and Protobuf, checked text for
    JSON.

    ``form`` is ``"json"`` or a `stratalog.analysis.payloads.Payload`, whose schema files are read here and
    travel with the query. Works in batch queries and in streams.
    """
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # its stub lags behind
    from pyspark.sql.pandas.types import from_arrow_type

    from stratalog.analysis.payloads import as_payload

    payload = as_payload(form)
    assert payload is not None
    kind = _spark_kind(payload.arrow_type)

    def decode(values: pa.Array) -> pa.Array:
        return payload.column(values, lambda row: f"row {row} of a batch").cast(kind)

    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    made: Column = arrow_udf(decode, from_arrow_type(kind, prefer_timestamp_ntz=True))(column)
    return made


def _spark_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for one of a payload's: no unsigned numbers, no milliseconds, no time of
    a day."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _spark_kind(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _spark_kind(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_spark_kind(kind.key_type), _spark_kind(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind) or pa.types.is_null(kind):
        return pa.string()
    return {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}.get(kind, kind)
