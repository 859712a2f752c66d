"""Kafka's message encoding, read by tables: bytes of any version to the JSON Kafka's converters print.

Pure functions of bytes and tables. A table is text, a message a paragraph whose further lines are indented:

    <name> <versions> <flexible versions> [<id>]: <field>, <field>, …

    field:  <name> <type>[?] [<versions>] [#<tag>[=<default>]] [(<field of that struct>, …)]

A type is a primitive, a struct defined here or earlier in the same message, or [] of either; `?` may be
null. A field without versions is in all of them. Flexible versions have compact lengths and a section of
tagged fields after each struct. A tagged field is printed when it differs from its default, any other when
its versions include the message's.

The bytes may be anything: every length is checked against what is left, nothing is allocated by a count,
and the nesting is that of the table. Bytes that do not fit raise CorruptionError.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.config import canonical_number
from stratalog.errors import CorruptionError, UnsupportedFormat
from stratalog.kernel.dump import java_string

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
MAX_VERSION = 2**15 - 1


@dataclass(frozen=True, slots=True)
class Versions:
    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    @staticmethod
    def parse(text: str) -> Versions:
        if text == "none":
            return Versions(0, -1)
        low, dash, high = text.removesuffix("+").partition("-")
        if dash:
            return Versions(int(low), int(high))
        return Versions(int(low), MAX_VERSION if text.endswith("+") else int(low))


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str
    is_array: bool
    nullable: bool
    versions: Versions
    tag: int | None
    default: Json
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Message:
    name: str
    versions: Versions
    flexible: Versions
    id: int | None
    fields: tuple[Field, ...]


# -- tables ----------------------------------------------------------------------------------------------


_WORD = re.compile(r"[(),]|[^\s(),]+")


def parse_table(text: str) -> dict[str, Message]:
    """Return the messages of a table by name."""
    found = {}
    for paragraph in re.split(r"\n(?! )", text.strip("\n")):
        head, _, body = paragraph.partition(":")
        name, versions, flexible, *rest = head.split()
        number = int(rest[0]) if rest else None
        fields = _fields(iter(_WORD.findall(body)), {})
        found[name] = Message(name, Versions.parse(versions), Versions.parse(flexible), number, fields)
    return found


def _fields(words: Iterator[str], structs: dict[str, tuple[Field, ...]]) -> tuple[Field, ...]:
    """Read fields up to the closing bracket, or the end."""
    fields: list[Field] = []
    said: list[str] = []
    for word in words:
        if word == "(":
            structs[said[1].strip("[]?")] = _fields(words, structs)
        elif word in (",", ")"):
            fields.append(_field(said, structs))
            said = []
            if word == ")":
                return tuple(fields)
        else:
            said.append(word)
    return (*fields, _field(said, structs)) if said else tuple(fields)


def _field(words: list[str], structs: dict[str, tuple[Field, ...]]) -> Field:
    name, full, *rest = words
    kind = full.strip("[]?")
    tag, _, default = next((word[1:] for word in rest if word.startswith("#")), "").partition("=")
    versions = next((word for word in rest if not word.startswith("#")), "0+")
    is_array, fields = full.startswith("[]"), structs.get(kind, ())
    return Field(
        name,
        kind,
        is_array,
        full.endswith("?"),
        Versions.parse(versions),
        int(tag) if tag else None,
        _default(kind, is_array, fields, default),
        fields,
    )


def _default(kind: str, is_array: bool, fields: tuple[Field, ...], text: str) -> Json:
    """Return the value of a tagged field that is absent; null only where the table has it."""
    if text == "null":
        return None
    if is_array:
        return []
    if kind in NUMBERS:
        return int(text or 0)
    if kind == "bool":
        return text == "true"
    if kind == "bytes":
        return b""
    if fields:
        return {each.name: each.default for each in fields if each.tag is None}
    return "A" * 22 if kind == "uuid" else ""


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
    return _struct(message.fields, data, version, version in message.flexible)


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
        if each.name in values and (each.tag is None or values[each.name] != each.default)
    }


def _value(each: Field, data: Reader, version: int, flexible: bool) -> Json:
    if not each.is_array:
        return _single(each, each.nullable, data, version, flexible)
    count = data.unsigned_varint() - 1 if flexible else data.integer("int32")
    if count < 0:
        _check_null(each, each.nullable)
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
        return base64.urlsafe_b64encode(data.take(16)).rstrip(b"=").decode("ascii")
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
    return _struct(each.fields, data, version, flexible)


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
