"""JSON payloads decoded to columns, on the executors, without the JVM.

A block of values is parsed at once by Arrow; only a block in which something is wrong is cut smaller, down
to the record that cannot be decoded, so good records cost the same whatever their neighbours are. What a
record becomes depends on itself alone. Strict: a text where a number should be is a failure, not a null; a
field that is missing or null is null, one that the schema does not name is left out, a record without a
value (a tombstone) has nulls. Touches no file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.errors import PySparkException
from pyspark.sql import types

from stratalog.errors import ConfigError

OWN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "date")
"""Names a payload's field cannot have in the output; there it gets the prefix."""
PREFIX = "value_"
_PARTS = 16
_PLAIN: dict[type[types.DataType], pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.ByteType: pa.int8(),
    types.ShortType: pa.int16(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.StringType: pa.string(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", tz="UTC"),
    types.TimestampNTZType: pa.timestamp("us"),
}


@dataclass(frozen=True)
class Payload:
    """How values are decoded. Picklable."""

    schema: pa.Schema
    """The fields as the JSON has them."""
    names: tuple[str, ...]
    """The columns they become."""

    @property
    def fields(self) -> list[pa.Field]:
        return [f.with_name(n) for n, f in zip(self.names, self.schema, strict=True)]

    @property
    def renamed(self) -> dict[str, str]:
        return {f.name: n for n, f in zip(self.names, self.schema, strict=True) if f.name != n}


def payload_of(ddl: str) -> Payload:
    """The decoding that a DDL string such as ``id BIGINT, tags ARRAY<STRING>`` asks for; needs a session."""
    try:
        parsed = types.StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(
            f"schema: {_first_line(error)}; takes a DDL string: id BIGINT, name STRING"
        ) from None
    if not isinstance(parsed, types.StructType) or not parsed.fields:
        raise ConfigError("schema: no column; takes a DDL string: id BIGINT, name STRING")
    schema = pa.schema([pa.field(each.name, _arrow(each.name, each.dataType)) for each in parsed.fields])
    own = {name.lower() for name in OWN}
    names = tuple(PREFIX + name if name.lower() in own else name for name in schema.names)
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(f"schema: a column is there twice: {', '.join(names)}")
    return Payload(schema, names)


def _arrow(path: str, kind: types.DataType) -> pa.DataType:
    match kind:
        case types.StructType():
            fields = [
                pa.field(each.name, _arrow(f"{path}.{each.name}", each.dataType)) for each in kind.fields
            ]
            return pa.struct(fields)
        case types.ArrayType():
            return pa.list_(pa.field("element", _arrow(f"{path}[]", kind.elementType)))
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    if type(kind) not in _PLAIN:
        raise ConfigError(
            f"schema: {path} is {kind.simpleString()}, takes BOOLEAN, TINYINT to BIGINT, FLOAT, DOUBLE,"
            " DECIMAL, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, ARRAY and STRUCT"
        )
    return _PLAIN[type(kind)]


def decode(batch: pa.RecordBatch, payload: Payload) -> tuple[pa.RecordBatch, pa.RecordBatch, list[str]]:
    """The records that could be decoded, with the payload's columns behind their own; the others as they
    are; and for each of these why."""
    values = batch.column("value")
    present = pc.is_valid(values)
    rows = pc.indices_nonzero(present)
    texts = values.filter(present).to_pylist()
    found: list[pa.StructArray] = []
    bad: dict[int, str] = {}
    at = 0
    for part in _parse(texts, payload.schema):
        if isinstance(part, str):
            bad[rows[at].as_py()] = part
            at += 1
        else:
            found.append(part)
            at += len(part)
    decoded = pa.concat_arrays(found) if found else pa.array([], pa.struct(list(payload.schema)))
    failed = pa.array(sorted(bad), pa.int64())
    if bad:
        good = pc.invert(pc.is_in(pa.array(range(batch.num_rows), pa.int64()), value_set=failed))
        kept, present = batch.filter(good), present.filter(good)
    else:
        kept = batch
    if len(decoded) < kept.num_rows:  # tombstones: a row of nulls each
        place = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
        decoded = decoded.take(pc.if_else(present, place, pa.scalar(None, pa.int64())))
    columns = [*kept.columns, *_columns(decoded)]
    made = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *payload.fields]))
    return made, batch.take(failed), [bad[row] for row in sorted(bad)]


def _columns(decoded: pa.StructArray) -> list[pa.Array]:
    return decoded.flatten()  # type: ignore[no-any-return]


def _parse(texts: list[bytes], schema: pa.Schema) -> Iterator[pa.StructArray | str]:
    """What the texts are, in order: runs of decoded ones, and the reason for each that cannot be."""
    if not texts:
        return
    try:
        yield _parse_block(texts, schema)
        return
    except pa.ArrowInvalid as error:
        if len(texts) == 1:
            yield _reason(texts[0], error)
            return
    size = -(-len(texts) // _PARTS)
    for start in range(0, len(texts), size):
        yield from _parse(texts[start : start + size], schema)


def _parse_block(texts: list[bytes], schema: pa.Schema) -> pa.StructArray:
    """ArrowInvalid unless every text is exactly one object that fits.

    Each is numbered and wrapped, so that one text cannot end up as two rows, or two as one, unnoticed.
    """
    data = b"\n".join([b'{"i":%d,"v":%b}' % each for each in enumerate(texts)])
    try:
        data.decode()  # the parser does not look
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"not UTF-8: {error.reason}") from error
    wire = pa.schema([("i", pa.int64()), ("v", pa.struct([_wire(each) for each in schema]))])
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=wire, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.column("i").combine_chunks().to_pylist() != list(range(len(texts))):
        raise pa.ArrowInvalid("not exactly one JSON object")
    found = table.column("v").combine_chunks()
    return found.cast(pa.struct(list(schema)))


def _wire(field: pa.Field) -> pa.Field:
    return field.with_type(_wire_type(field.type))


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's parser takes: a date is a text to it."""
    if pa.types.is_struct(kind):
        return pa.struct([_wire(each) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_wire(kind.value_field))
    return pa.string() if pa.types.is_date(kind) else kind


def _reason(text: bytes, error: pa.ArrowInvalid) -> str:
    """Python's parser says better what is wrong with a text that is no JSON at all."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as why:
        return f"not JSON: {why}"
    return f"does not fit the schema: {_first_line(error).replace('/v/', '/').replace(' in row 0', '')}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
