"""Messages of any version as the JSON that Kafka's converters print, with the words of its tool for damage.

Pure functions of bytes and of the tables of `stratalog.wire`. A tagged field is printed when it differs from
its default, any other when its versions include the message's.

The bytes may be anything: every length is checked against what is left, nothing is allocated by a count,
and the nesting is that of the table. Bytes that do not fit raise CorruptionError.
"""

from __future__ import annotations

import base64
import math
import re
import struct

from stratalog.config import canonical_number
from stratalog.errors import CorruptionError, UnsupportedFormat
from stratalog.kernel.dump import java_string
from stratalog.wire.schema import Field, Message

Json = None | bool | int | float | str | bytes | list["Json"] | dict[str, "Json"]

NUMBERS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}


# -- bytes in --------------------------------------------------------------------------------------------


class Reader:
    """Bytes with a place in them."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def remaining(self) -> int:
        return len(self.data) - self.position

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.remaining():
            raise CorruptionError(
                f"Error reading byte array of {size} byte(s): only {self.remaining()} byte(s) available",
                position=self.position,
            )
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, kind: str) -> int | float:
        form = NUMBERS[kind]
        if form.size > self.remaining():
            raise CorruptionError("null", position=self.position)  # all that Java's exception says
        value: int | float = form.unpack(self.take(form.size))[0]
        return value

    def integer(self, kind: str) -> int:
        return int(self.number(kind))

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.integer("int8") & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF
        raise CorruptionError("Varint is too long", position=self.position)


def read_message(message: Message, data: Reader, version: int) -> dict[str, Json]:
    """Read one message, as the JSON converter of Kafka would show it."""
    if version not in message.versions:
        raise UnsupportedFormat(f"Can't read version {version} of {message.name}")
    return _struct(message.struct.fields, data, version, version in message.flexible)


def _struct(fields: tuple[Field, ...], data: Reader, version: int, flexible: bool) -> dict[str, Json]:
    here = [each for each in fields if version in each.versions]
    values: dict[str, Json] = {
        each.name: _value(each, data, version, flexible) for each in here if each.tag is None
    }
    if not flexible:
        return values
    tagged = {each.tag: each for each in here if each.tag is not None}
    for _ in range(data.unsigned_varint()):
        tag = data.unsigned_varint()
        size = data.unsigned_varint()
        content = Reader(data.take(size))
        if tag in tagged:
            values[tagged[tag].name] = _value(tagged[tag], content, version, flexible)
    # In the order of the table, not of the bytes; defaults are left out.
    return {
        each.name: values[each.name]
        for each in here
        if each.name in values and (each.tag is None or values[each.name] != _default(each))
    }


def _default(each: Field) -> Json:
    """Return the default of a field as the converters would show it."""
    if each.default is None:
        return None
    if each.is_array:
        return []
    if each.struct is not None:
        return {inside.name: _default(inside) for inside in each.struct.fields if inside.tag is None}
    assert not isinstance(each.default, tuple)
    return _uuid(each.default) if isinstance(each.default, bytes) and each.kind == "uuid" else each.default


def _uuid(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _value(each: Field, data: Reader, version: int, flexible: bool) -> Json:
    if not each.is_array:
        return _single(each, version in each.nullable, data, version, flexible)
    count = data.unsigned_varint() - 1 if flexible else data.integer("int32")
    if count < 0:
        _check_null(each, version in each.nullable)
        return None
    if count > data.remaining():
        raise CorruptionError(
            f"Tried to allocate a collection of size {count}, but there are only "
            f"{data.remaining()} bytes remaining.",
            position=data.position,
        )
    return [_single(each, False, data, version, flexible) for _ in range(count)]


def _single(each: Field, nullable: bool, data: Reader, version: int, flexible: bool) -> Json:
    kind = each.kind
    if kind in NUMBERS:
        return data.number(kind)
    if kind == "bool":
        return data.number("int8") != 0
    if kind == "uuid":
        return _uuid(data.take(16))
    if kind in {"string", "bytes"}:
        if flexible:
            size = data.unsigned_varint() - 1
        else:
            size = data.integer("int16" if kind == "string" else "int32")
        if size < 0:
            _check_null(each, nullable)
            return None
        content = data.take(size)
        return content if kind == "bytes" else java_string(content).decode("utf-8")
    if nullable:
        # Null is -1, but 0 in a tagged field.
        marker = data.integer("int8") if each.tag is None else data.unsigned_varint() - 1
        if marker < 0:
            return None
    assert each.struct is not None
    return _struct(each.struct.fields, data, version, flexible)


def _check_null(each: Field, nullable: bool) -> None:
    if not nullable:
        raise CorruptionError(f"non-nullable field {each.name} was serialized as null")


# -- text out --------------------------------------------------------------------------------------------

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_SPECIAL = re.compile(r'["\\\x00-\x1f]')


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}"


def _quote(text: str) -> str:
    return f'"{_SPECIAL.sub(_escape, text)}"'


def to_json(value: Json) -> str:
    """Return JSON as Jackson writes it: no spaces, nothing escaped that need not be, bytes in base64."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quote(k)}:{to_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bytes):
        return _quote(base64.b64encode(value).decode("ascii"))
    if isinstance(value, float) and not math.isfinite(value):
        return _quote({"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)])
    return canonical_number(value)
