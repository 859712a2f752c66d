"""Serializers: functions from keys and values to bytes, and deserializers back; ready-made ones by name.

None is never given to either: a value of None is a tombstone, a key of None is no key. What a function
raises becomes the cause of a `SerializationError` that names the argument, and the record.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from stratalog.analysis.packages import needed
from stratalog.errors import InvalidArgumentError, SerializationError
from stratalog.log.arguments import wrong_type
from stratalog.model import Record

Name = Literal["bytes", "str", "json", "msgspec"]
Serializer = Callable[[Any], bytes] | Name
Deserializer = Callable[[bytes], Any] | Name

Part = Literal["key", "value"]
Function = Callable[[Any], Any]
NAMES = ("bytes", "str", "json", "msgspec")


@dataclass(frozen=True, slots=True)
class Serde:
    """What makes bytes of keys and values, and what makes them again. None leaves bytes as they are."""

    key_serializer: Function | None = None
    value_serializer: Function | None = None
    key_deserializer: Function | None = None
    value_deserializer: Function | None = None

    @classmethod
    def of(
        cls,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> Serde:
        """Check the arguments of a call. A serializer given by name brings its deserializer along."""
        if key_deserializer is None and isinstance(key_serializer, str):
            key_deserializer = key_serializer
        if value_deserializer is None and isinstance(value_serializer, str):
            value_deserializer = value_serializer
        return cls(
            _function("key_serializer", key_serializer),
            _function("value_serializer", value_serializer),
            _function("key_deserializer", key_deserializer),
            _function("value_deserializer", value_deserializer),
        )

    # -- to bytes ------------------------------------------------------------------------------------

    def key(self, key: Any) -> Any:
        """Return the bytes of a key."""
        return _serialized("key", self.key_serializer, key)

    def value(self, value: Any) -> Any:
        """Return the bytes of a value."""
        return _serialized("value", self.value_serializer, value)

    def rows(self, records: list[Any]) -> list[Any]:
        """Return records, or tuples that begin like one, with bytes; the append refuses what is neither."""
        rows = []
        for index, row in enumerate(records):
            if isinstance(row, tuple) and row:
                try:
                    value = self.value(row[0])
                    row = (value, self.key(row[1]), *row[2:]) if len(row) > 1 else (value,)
                except SerializationError as error:
                    named = SerializationError(f"record {index}: {error}").in_batch(0, index)
                    raise named from error.__cause__
            rows.append(row)
        return rows

    # -- from bytes ----------------------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """True if there is a deserializer."""
        return self.key_deserializer is not None or self.value_deserializer is not None

    def record(self, record: Record) -> Record:
        """Return a record that was read, with its key and value as they were before."""
        value = _deserialized("value", self.value_deserializer, record.value, record)
        key = _deserialized("key", self.key_deserializer, record.key, record)
        return Record(value, key, *record[2:])

    def found(self, record: Record | None) -> Record | None:
        """`record` for what may not be there."""
        return None if record is None else self.record(record)


def _serialized(part: Part, serializer: Function | None, given: Any) -> Any:
    if given is None or serializer is None:
        return given
    try:
        made = serializer(given)
    except Exception as error:
        raise SerializationError(
            f"{part} {reprlib.repr(given)}: {part}_serializer raised {_text(error)}"
        ) from error
    if not isinstance(made, bytes):
        raise SerializationError(
            f"{part} {reprlib.repr(given)}: {part}_serializer returned {type(made).__name__}, not bytes"
        )
    return made


def _deserialized(part: Part, deserializer: Function | None, data: bytes | None, record: Record) -> Any:
    if data is None or deserializer is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:
        raise SerializationError(
            f"{record.topic}-{record.partition}, offset {record.offset}: {part} {reprlib.repr(data)}:"
            f" {part}_deserializer raised {_text(error)}",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        ) from error


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# -- by name ---------------------------------------------------------------------------------------------


def _function(argument: str, given: Any) -> Function | None:
    """Return the function of an argument; None for bytes."""
    if given is None or callable(given):
        return given  # type: ignore[no-any-return]
    names = f"{', '.join(map(repr, NAMES))} or a function"
    if not isinstance(given, str):
        raise wrong_type(argument, names, given)
    if given not in NAMES:
        raise InvalidArgumentError(f"{argument} {given!r} is not known; it is {names}")
    if given == "bytes":
        return None
    if argument.endswith("_deserializer"):
        return _DESERIALIZERS[given](f"{argument}={given!r}")
    return _SERIALIZERS[given](f"{argument}={given!r}", argument.startswith("key"))


def _str_serializer(text: Any) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"expected a str, not {type(text).__name__}")
    return text.encode()


def _json_serializer(ordered: bool) -> Function:
    """Return one for JSON; ``ordered``: equal objects make equal bytes, as keys must."""
    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, sort_keys=ordered, separators=(",", ":")
    ).encode
    return lambda given: encoder(given).encode()


def _msgspec_serializer(what: str, ordered: bool) -> Function:
    encode = needed("msgspec.json", what, "msgspec").encode
    return partial(encode, order="deterministic") if ordered else encode


_SERIALIZERS: dict[str, Callable[[str, bool], Function]] = {
    "str": lambda what, ordered: _str_serializer,
    "json": lambda what, ordered: _json_serializer(ordered),
    "msgspec": _msgspec_serializer,
}
_DESERIALIZERS: dict[str, Callable[[str], Function]] = {
    "str": lambda what: bytes.decode,
    "json": lambda what: json.loads,
    "msgspec": lambda what: needed("msgspec.json", what, "msgspec").decode,
}
