"""Keys and values that are JSON, Avro or Protobuf: bytes to objects, to JSON text and to Arrow columns.

    plain    a schema file, and bytes that are the datum and nothing else
    framed   as producers with a schema registry write them: byte 0, the schema's id in four bytes, for
             Protobuf the indexes of the message, then the datum. Schemas are files of a directory, named by
             id: 7.avsc, 7.desc

A schema is an Avro schema (``.avsc``) or a descriptor set made by ``protoc --include_imports
--descriptor_set_out``. Of several schemas the one with the highest id gives the type of the column, and data
of the others is read as it. Data that does not decode is an error that names its place, or null, or left as
it is.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import math
import os
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.analysis.packages import needed
from stratalog.errors import FormatError, InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("json", "avro", "protobuf")
MISFITS = ("error", "null", "text")
PLACE = ("partition", "offset")
EXTRA = "'stratalog[payloads]'"
MAX_DIGITS = 76
"""Of a decimal in Arrow, with 256 bits."""
DEEPEST_SCHEMA = 100
"""Levels of an Avro schema; Python versions differ in how deeply a function may call itself."""
MAX_FIELDS = 100_000
"""Fields of a schema, counted again for each use of a name: a few names may stand for any number."""
_FRAME = struct.Struct(">bI")
_SUFFIXES = {"avro": ".avsc", "protobuf": ".desc"}


class PayloadError(ValueError):
    """Why bytes do not decode; it never leaves this module."""


class Payload:
    """One format of keys or values. Schemas are read when it is made; thread-safe after that. Picklable, with
    its schemas."""

    def __init__(
        self,
        form: str,
        schema: str | os.PathLike[str] | None = None,
        *,
        schemas: str | os.PathLike[str] | None = None,
        message: str | None = None,
        framed: bool | None = None,
        on_misfit: str = "error",
    ) -> None:
        if form not in FORMATS:
            raise InvalidArgumentError(f"no format {form!r}; there are {', '.join(FORMATS)}")
        if on_misfit not in MISFITS:
            raise InvalidArgumentError(f"on_misfit {on_misfit!r} is not one of {', '.join(MISFITS)}")
        if form == "json" and (schema or schemas or message):
            raise InvalidArgumentError("JSON takes no schema")
        if form != "json" and bool(schema) == bool(schemas):
            raise InvalidArgumentError(
                f"{form} needs a schema file (--schema) or a directory of schemas (--schemas), one of the two"
            )
        self.form = form
        self.on_misfit = on_misfit
        self.framed = framed if framed is not None else schemas is not None
        if schemas is not None and not self.framed:
            raise InvalidArgumentError("a directory of schemas needs framed data, which names the schema")
        self._message = message
        self._by_file = schema is not None
        self._files: dict[int, tuple[Path, bytes]] = {}
        for number, path in _schema_files(form, schema, schemas):
            try:
                self._files[number] = path, path.read_bytes()
            except OSError as error:
                raise NotFoundError(f"{path}: {error.strerror or error}") from error
        self._schemas = self._parsed()
        self._recursive = form == "avro" and any(map(_is_recursive, self._schemas.values()))

    def _parsed(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for number, (path, data) in self._files.items():
            try:
                found[number] = _avro_schema(data) if self.form == "avro" else _Messages(data, self._message)
            except PayloadError as error:
                raise FormatError(f"{path}: {error}") from error
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_schemas", "arrow_type")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._schemas = self._parsed()

    @property
    def _newest(self) -> Any:
        return self._schemas[max(self._schemas)]

    def decode(self, data: bytes, only: str | None = None) -> Any:
        """Return the object of some bytes; PayloadError if they do not decode.

        ``only`` names the Protobuf message that it must be.
        """
        if self.form == "json":
            return _json(data)
        schema, at = self._newest, 0
        if self.framed:
            if len(data) < _FRAME.size or data[0] != 0:
                raise PayloadError("it does not begin with byte 0 and the id of a schema")
            number, at = _FRAME.unpack_from(data)[1], _FRAME.size
            if not self._by_file:
                if number not in self._schemas:
                    raise PayloadError(f"there is no schema with the id {number}")
                schema = self._schemas[number]
        if self.form == "avro":
            return _read_avro(data[at:], schema, self._newest, recursive=self._recursive)
        return schema.read(data, at, self.framed, only)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of a column of decoded data; text for JSON and for schemas that Arrow cannot express."""
        import pyarrow as pa

        return pa.string() if self._own_type is None else self._own_type

    @cached_property
    def _own_type(self) -> pa.DataType | None:
        """The Arrow type of the schema; None where objects are written as JSON."""
        with suppress(PayloadError):
            if self.form == "avro":
                return _avro_type(self._newest, {})
            if self.form == "protobuf":
                return self._newest.arrow_type()
        return None

    def load(self, data: bytes | None, place: Callable[[], str], only: str | None = None) -> Any:
        """Return the object of some bytes, None for none; what does not decode, as ``on_misfit`` tells.

        For "text" that is the bytes themselves.
        """
        if data is None:
            return None
        try:
            return self.decode(data, only)
        except PayloadError as error:
            if self.on_misfit == "error":
                raise FormatError(
                    f"{place()} is not {self.form}: {error}; pass on_misfit (--on-misfit) null or text"
                    " to continue"
                ) from error
            return None if self.on_misfit == "null" else data

    def text(self, data: bytes | None, place: Callable[[], str]) -> bytes | None:
        """Return the object of some bytes as JSON on one line."""
        found = self.load(data, place)
        if found is None and data is not None:
            return b"null" if self.on_misfit != "null" else None
        return found if found is data else to_text(found).encode()

    def column(self, array: pa.Array, place: Callable[[int], str]) -> pa.Array:
        """Return a column of bytes, decoded."""
        import pyarrow as pa

        kind, own = self.arrow_type, self._own_type is not None
        if self.on_misfit == "text" and not pa.types.is_string(kind):
            raise InvalidArgumentError(
                f"on_misfit text needs a column of text, and {self.form} gives one of {kind}: use null"
            )
        only = self._newest.message.full_name if own and self.form == "protobuf" else None
        rows: list[Any] = []
        for row, value in enumerate(array.to_pylist()):
            found = self.load(value, lambda row=row: place(row), only)  # type: ignore[misc]
            if found is not None and (self.form == "json" or found is value):
                found = value.decode("utf-8", "backslashreplace")
            elif own:
                found = _without_uuids(found) if self.form == "avro" else found
            elif found is not None:
                found = to_text(found)
            rows.append(found)
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return pa.array(rows, kind)
        return pa.concat_arrays([self._cell(row, kind, partial(place, at)) for at, row in enumerate(rows)])

    def _cell(self, found: Any, kind: pa.DataType, place: Callable[[], str]) -> pa.Array:
        """Return a column of one object; one that the type cannot hold is a misfit, too."""
        import pyarrow as pa

        try:
            return pa.array([found], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            if self.on_misfit == "null":
                return pa.nulls(1, kind)
            raise FormatError(
                f"{place()} does not fit the column {kind}: {error}; pass on_misfit (--on-misfit) null to"
                " continue"
            ) from error


def as_payload(value: Payload | str | None) -> Payload | None:
    """Return a format given by its name, or as it is."""
    if value is not None and not isinstance(value, str | Payload):
        raise InvalidArgumentError(f"a format is {', '.join(FORMATS)} or a Payload, not {value!r}")
    return Payload(value) if isinstance(value, str) else value


def decoded_schema(schema: pa.Schema, formats: Mapping[str, Payload]) -> pa.Schema:
    """Return a schema with the columns of ``formats`` decoded."""
    for name, payload in formats.items():
        at = schema.get_field_index(name)
        schema = schema if at < 0 else schema.set(at, schema.field(at).with_type(payload.arrow_type))
    return schema


def decoded_batch(batch: pa.RecordBatch, schema: pa.Schema, formats: Mapping[str, Payload]) -> pa.RecordBatch:
    """Return a record batch with the columns of ``formats`` decoded; ``schema`` is its `decoded_schema`."""
    import pyarrow as pa

    columns = []
    for at, field in enumerate(schema):
        column = batch.column(at)
        if field.name in formats:
            column = formats[field.name].column(column, lambda row, name=field.name: _place(batch, row, name))  # type: ignore[misc]
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decoded(
    scan: Callable[[list[str] | None], pa.RecordBatchReader],
    columns: list[str] | None,
    formats: Mapping[str, Payload | None],
) -> pa.RecordBatchReader:
    """Scan columns and decode those of ``formats`` as they are read.

    The scan also reads partitions and offsets, for the error about a record that does not decode.
    """
    import pyarrow as pa

    wanted = {name: payload for name, payload in formats.items() if payload is not None}
    if not wanted:
        return scan(columns)
    place = [] if columns is None else [name for name in PLACE if name not in columns]
    reader = scan(None if columns is None else [*columns, *place])
    schema = decoded_schema(reader.schema, wanted)
    shown = list(range(len(schema) - len(place)))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield decoded_batch(batch, schema, wanted).select(shown)

    return pa.RecordBatchReader.from_batches(pa.schema([schema.field(at) for at in shown]), batches())


def _place(batch: pa.RecordBatch, row: int, name: str) -> str:
    names = batch.schema.names
    known = [f"{each} {batch.column(each)[row].as_py()}" for each in PLACE if each in names]
    return f"the {name} at {' '.join(known) or f'row {row} of a batch'}"


def to_text(value: Any) -> str:
    """Return an object as JSON on one line: bytes as text or base64, times in ISO 8601, decimals as text.

    JSON has no NaN and no infinity: they are text, as in Protobuf's JSON.
    """
    dump = partial(json.dumps, separators=(",", ":"), default=_plain, allow_nan=False)
    try:
        text = dump(value, ensure_ascii=False)
        if not text.isascii():
            text.encode()
        return text
    except UnicodeEncodeError:  # JSON may name half a surrogate pair, and only by its number
        return dump(_finite(value))
    except RecursionError as error:
        raise FormatError("an object that is nested too deeply for JSON") from error
    except ValueError:
        return to_text(_finite(value))


def _finite(value: Any) -> Any:
    """Return an object without numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii")
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    raise InvalidArgumentError(f"{type(value).__name__} has no form in JSON")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PayloadError(str(error)) from error


def _schema_files(form: str, schema: Any, schemas: Any) -> Iterator[tuple[int, Path]]:
    if schema is not None:
        yield 0, Path(schema)
    if schemas is None:
        return
    folder, suffix, found = Path(schemas), _SUFFIXES[form], False
    try:
        listed = sorted(folder.iterdir())
    except OSError as error:
        raise NotFoundError(f"{folder}: {error.strerror or error}") from error
    for path in listed:
        if re.fullmatch(r"[0-9]{1,10}", path.stem) and path.suffix == suffix:
            found = True
            yield int(path.stem), path
    if not found:
        raise NotFoundError(f"{folder} holds no schema: they are named by id, such as 7{suffix}")


# -- Avro ------------------------------------------------------------------------------------------------


def _avro_schema(data: bytes) -> Any:
    fastavro = needed("fastavro", "Avro", EXTRA)
    try:
        schema = fastavro.parse_schema(json.loads(data))
    except Exception as error:  # the package raises many kinds, for input that is not ours
        raise PayloadError(f"not an Avro schema: {error}") from error
    _refuse_deep(schema)
    _is_empty(schema, {})
    _values(schema, {})
    return schema


def _refuse_deep(schema: Any) -> None:
    """Raise PayloadError if a schema is nested so deeply that functions that follow it might not end."""
    level = [schema]
    for _ in range(DEEPEST_SCHEMA):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return
    raise PayloadError("a schema that is nested too deeply")


def _parts(schema: Any) -> list[Any]:
    """Return the schemas that a schema is made of."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    if "fields" in schema:
        return [each["type"] for each in schema["fields"]]
    return [
        schema[each]
        for each in ("items", "values", "type")
        if isinstance(schema.get(each), dict | list | str)
    ]


def _is_recursive(schema: Any, inside: frozenset[str] = frozenset()) -> bool:
    """Return whether data may be nested as deeply as it likes: a type is named inside itself."""
    if isinstance(schema, str):
        return schema in inside
    below = inside | {schema["name"]} if isinstance(schema, dict) and "fields" in schema else inside
    return any(_is_recursive(each, below) for each in _parts(schema))


def _is_empty(schema: Any, named: dict[str, bool]) -> bool:
    """Return whether data of a schema takes no byte; PayloadError for an array of it, whose length is free.

    ``named`` has the types that were named before.
    """
    if isinstance(schema, str):
        return schema == "null" or named.get(schema, False)
    empty = [_is_empty(each, named) for each in _parts(schema)]
    if isinstance(schema, list):
        return False  # it begins with the number of its type
    kind = schema["type"]
    if kind == "array" and empty[0]:
        raise PayloadError("an array of a type without bytes could have any number of elements")
    found = bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))
    if "fields" in schema or isinstance(kind, dict):
        found = all(empty)
    named[schema.get("name", "")] = found
    return found


def _values(schema: Any, named: dict[str, int]) -> int:
    """Return how many values data of a schema has at least; PayloadError for more than `MAX_FIELDS`.

    Those that take no bytes would be decoded without end. ``named`` has the types that were named before.
    """
    if isinstance(schema, str):
        return named.get(schema, 1)
    found = 1 + sum(_values(each, named) for each in _parts(schema))
    if isinstance(schema, list) or schema["type"] in ("array", "map"):
        return 1
    if found > MAX_FIELDS:
        raise PayloadError(f"a record of more than {MAX_FIELDS} fields")
    named[schema.get("name", "")] = found
    return found


def _without_uuids(value: Any) -> Any:
    """Return an object with UUIDs as text, which is what they are in the data."""
    if isinstance(value, dict):
        return {name: _without_uuids(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_uuids(each) for each in value]
    return str(value) if isinstance(value, uuid.UUID) else value


def _read_avro(data: bytes, schema: Any, reader: Any, *, recursive: bool) -> Any:
    # What is compiled does not watch its stack: some kilobytes of nested data would end the process.
    fastavro = needed("fastavro._read_py" if recursive else "fastavro", "Avro", EXTRA)
    source = io.BytesIO(data)
    try:
        found = fastavro.schemaless_reader(source, schema, None if reader is schema else reader)
    except Exception as error:  # see above
        raise PayloadError(
            f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        ) from error
    if source.tell() != len(data):
        raise PayloadError(f"{len(data) - source.tell()} bytes remain after it")
    return found


def _avro_type(schema: Any, inside: dict[str, Any]) -> Any:
    """Return the Arrow type of a schema; PayloadError where there is none."""
    import pyarrow as pa

    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise PayloadError("a union of several types")
        return _avro_type(kinds[0], inside)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in ("record", "error"):
        if schema["name"] in inside:
            raise PayloadError("a record inside itself")
        below = {**inside, schema["name"]: None}
        return pa.struct([(each["name"], _avro_type(each["type"], below)) for each in schema["fields"]])
    if kind == "array":
        return pa.list_(_avro_type(schema["items"], inside))
    if kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], inside))
    if kind == "enum" or logical == "uuid":
        return pa.string()
    if logical == "decimal":
        digits, scale = schema["precision"], schema.get("scale", 0)
        if digits > MAX_DIGITS:
            raise PayloadError(f"a decimal of {digits} digits")
        return pa.decimal128(digits, scale) if digits <= MAX_DIGITS // 2 else pa.decimal256(digits, scale)
    logicals = {
        "timestamp-millis": pa.timestamp("ms", "UTC"),
        "timestamp-micros": pa.timestamp("us", "UTC"),
        "local-timestamp-millis": pa.timestamp("ms"),
        "local-timestamp-micros": pa.timestamp("us"),
        "date": pa.date32(),
        "time-millis": pa.time32("ms"),
        "time-micros": pa.time64("us"),
    }
    plain = {
        "null": pa.null(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "fixed": pa.binary(),
        "string": pa.string(),
    }
    if logical in logicals:
        return logicals[logical]
    if isinstance(kind, dict | list):
        return _avro_type(kind, inside)
    if kind not in plain:
        raise PayloadError(f"the name {kind}")  # of a type given elsewhere
    return plain[kind]


# -- Protobuf --------------------------------------------------------------------------------------------


class _Messages:
    """The messages of a descriptor set."""

    def __init__(self, data: bytes, message: str | None) -> None:
        descriptor_pb2 = needed("google.protobuf.descriptor_pb2", "Protobuf", EXTRA)
        pools = needed("google.protobuf.descriptor_pool", "Protobuf", EXTRA)
        self._factory = needed("google.protobuf.message_factory", "Protobuf", EXTRA)
        self._pool = pools.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(data).file
            for each in files:
                self._pool.Add(each)
            self._file = self._pool.FindFileByName(files[-1].name)
        except Exception as error:  # the package raises many kinds, for input that is not ours
            raise PayloadError(
                f"not a descriptor set of protoc --include_imports --descriptor_set_out: {error}"
            ) from error
        self._tops = [self._file.message_types_by_name[each.name] for each in files[-1].message_type]
        self._named = message is not None
        if message is not None:
            try:
                self.message = self._pool.FindMessageTypeByName(message)
            except KeyError:
                raise PayloadError(f"no message {message}") from None
        elif self._tops:
            self.message = self._tops[0]
        else:
            raise PayloadError("it has no message")

    def read(self, data: bytes, at: int, framed: bool, only: str | None) -> Any:
        message = self.message
        if framed:
            indexes, at = _indexes(data, at)
            message = message if self._named else self._nested(indexes)
        if only is not None and message.full_name != only:
            raise PayloadError(f"it is a {message.full_name}, and the column has {only}: name one as message")
        try:
            found = self._factory.GetMessageClass(message).FromString(data[at:])
        except Exception as error:  # see above
            raise PayloadError(str(error)) from error
        return _to_object(found)

    def _nested(self, indexes: list[int]) -> Any:
        try:
            message = self._tops[indexes[0]]
            for each in indexes[1:]:
                message = message.nested_types[each]
        except IndexError:
            raise PayloadError(f"no message at {indexes}") from None
        return message

    def arrow_type(self) -> Any:
        return _message_type(self.message, (), [MAX_FIELDS])


def _indexes(data: bytes, at: int) -> tuple[list[int], int]:
    """Read the indexes of a message: zigzag varints, their count first; a single 0 is the first message."""
    count, at = _varint(data, at)
    if not 0 <= count <= len(data) - at:
        raise PayloadError(f"{count} message indexes")
    found = []
    for _ in range(count):
        number, at = _varint(data, at)
        if number < 0:
            raise PayloadError(f"message index {number}")
        found.append(number)
    return found or [0], at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift <= 28:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise PayloadError("the message indexes are cut short")


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _to_object(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            kind = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _element(kind, value[key]) for key in value}
        elif _repeated(field):
            found[field.name] = [_element(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _element(field, value)
    return found


def _element(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _to_object(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value


def _message_type(message: Any, inside: tuple[str, ...], room: list[int]) -> Any:
    """Return the Arrow type of a message; ``room`` has the number of fields that are left."""
    import pyarrow as pa

    if message.full_name in inside:
        raise PayloadError("a message inside itself")
    room[0] -= len(message.fields)
    if len(inside) >= DEEPEST_SCHEMA or room[0] < 0:
        raise PayloadError("a message that is nested too deeply or has too many fields")
    below = (*inside, message.full_name)
    fields = []
    for field in message.fields:
        if _is_map(field):
            pair = field.message_type.fields_by_name
            kind = pa.map_(_field_type(pair["key"], below, room), _field_type(pair["value"], below, room))
        else:
            kind = _field_type(field, below, room)
            kind = pa.list_(kind) if _repeated(field) else kind
        fields.append((field.name, kind))
    return pa.struct(fields)


def _field_type(field: Any, inside: tuple[str, ...], room: list[int]) -> Any:
    import pyarrow as pa

    if field.message_type is not None:
        return _message_type(field.message_type, inside, room)
    if field.enum_type is not None:
        return pa.string()
    return {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.uint32(),
        field.CPPTYPE_UINT64: pa.uint64(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }[field.cpp_type]
