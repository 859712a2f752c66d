"""The options that say what keys and values are: JSON, Avro or Protobuf, and where their schemas lie."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from stratalog.analysis.payloads import Payload
from stratalog.analysis.where import NOWHERE, load_json
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import opt
from stratalog.model import Record

Formats = Mapping[str, Payload]
"""By ``key`` and ``value``; what is missing stays bytes."""


class PayloadFormat(enum.StrEnum):
    """What bytes are."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class OnMisfit(enum.StrEnum):
    """What to do with bytes that do not decode."""

    ERROR = "error"
    NULL = "null"
    TEXT = "text"


FormatOption = Annotated[PayloadFormat | None, opt("--value-format", "Decode values.")]
KeyFormatOption = Annotated[PayloadFormat | None, opt("--key-format", "Decode keys.")]
SchemaOption = Annotated[
    str | None, opt("--schema FILE", "Schema of the values: an .avsc file, or a descriptor set from protoc.")
]
KeySchemaOption = Annotated[str | None, opt("--key-schema FILE", "Schema of the keys.")]
SchemasOption = Annotated[
    str | None,
    opt(
        "--schemas DIR",
        "Directory of schemas named by id (7.avsc, 7.desc), for registry-framed data.",
    ),
]
MessageOption = Annotated[
    str | None, opt("--message NAME", "Protobuf message type of the values: shop.Order.")
]
KeyMessageOption = Annotated[str | None, opt("--key-message NAME", "Protobuf message type of the keys.")]
FramedOption = Annotated[bool, opt("--framed", "With --schema: data starts with byte 0 and a schema id.")]
MisfitOption = Annotated[
    OnMisfit,
    opt("--on-misfit", "For data that does not decode: stop with an error, use null, or keep it as text."),
]


class Way(NamedTuple):
    """The options of keys or of values."""

    form: PayloadFormat | None
    schema: str | None
    message: str | None
    schemas: str | None
    framed: bool
    on_misfit: OnMisfit


def payloads(value: Way, key: Way) -> dict[str, Payload]:
    """Return the formats that were asked for."""
    found = {}
    for name, way in (("key", key), ("value", value)):
        if way.form is None:
            if way.schema or way.message:
                raise WrongUsage(f"a schema or a message needs --{name}-format")
            continue
        is_json = way.form is PayloadFormat.JSON
        found[name] = Payload(
            way.form.value,
            way.schema,
            schemas=None if is_json or way.schema else way.schemas,
            message=way.message,
            framed=True if way.framed else None,
            on_misfit=way.on_misfit.value,
        )
    return found


def load(record: Record, name: str, formats: Formats) -> Any:
    """Return the decoded key or value of a record; the bytes themselves if they stay."""
    data = record.value if name == "value" else record.key
    return formats[name].load(data, lambda: _place(record, name))


def with_text(record: Record, formats: Formats) -> Record:
    """Return a record with its decoded parts as JSON text."""
    key, value = record.key, record.value
    if "key" in formats:
        key = formats["key"].text(key, lambda: _place(record, "key"))
    if "value" in formats:
        value = formats["value"].text(value, lambda: _place(record, "value"))
    return record._replace(key=key, value=value)


def loader(formats: Formats) -> Callable[[Record], Any]:
    """Return what conditions look into: the decoded value, or JSON."""
    if "value" not in formats:
        return load_json

    def found(record: Record) -> Any:
        value = load(record, "value", formats)
        return NOWHERE if value is None or value is record.value else value

    return found


def _place(record: Record, name: str) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}: the {name}"
