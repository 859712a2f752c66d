"""The options that say what keys and values are: JSON, Avro or Protobuf, and where their schemas lie."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

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


@dataclass(frozen=True, slots=True)
class Decoding:
    """The options of a command that decodes keys and values."""

    value_format: Annotated[PayloadFormat | None, opt("--value-format", "Decode values.")] = None
    key_format: Annotated[PayloadFormat | None, opt("--key-format", "Decode keys.")] = None
    schema: Annotated[
        str | None,
        opt("--schema FILE", "Schema of the values: an .avsc file, or a descriptor set from protoc."),
    ] = None
    key_schema: Annotated[str | None, opt("--key-schema FILE", "Schema of the keys.")] = None
    schemas: Annotated[
        str | None,
        opt("--schemas DIR", "Directory of schemas named by id (7.avsc, 7.desc), for registry-framed data."),
    ] = None
    message: Annotated[
        str | None, opt("--message NAME", "Protobuf message type of the values: shop.Order.")
    ] = None
    key_message: Annotated[str | None, opt("--key-message NAME", "Protobuf message type of the keys.")] = None
    framed: Annotated[bool, opt("--framed", "With --schema: data starts with byte 0 and a schema id.")] = (
        False
    )
    on_misfit: Annotated[
        OnMisfit,
        opt(
            "--on-misfit", "For data that does not decode: stop with an error, use null, or keep it as text."
        ),
    ] = OnMisfit.ERROR

    def formats(self) -> dict[str, Payload]:
        """Return the formats chosen by the options."""
        found = {}
        for name, form, schema, message in (
            ("key", self.key_format, self.key_schema, self.key_message),
            ("value", self.value_format, self.schema, self.message),
        ):
            if form is not None:
                is_json = form is PayloadFormat.JSON
                found[name] = Payload(
                    form.value,
                    schema,
                    schemas=None if is_json or schema else self.schemas,
                    message=message,
                    framed=True if self.framed else None,
                    on_misfit=self.on_misfit.value,
                )
            elif schema or message:
                raise WrongUsage(f"a schema or a message needs --{name}-format")
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
