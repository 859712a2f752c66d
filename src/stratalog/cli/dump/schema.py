"""Kafka's message encoding, read by tables: bytes of any version to the JSON Kafka's converters print.

Pure functions of bytes and tables. A table is text, a message a paragraph:

    <name> <versions> <flexible versions> [<id>]
     <field> <type>[?] <versions> [tag=<n>] [default=<value>]
      <field of that struct> …

A type is a primitive, a struct named here or earlier in the same message, or [] of either; `?` may be
null. Flexible versions have compact lengths and a section of tagged fields after each struct. A tagged
field is printed when it differs from its default, any other when its versions include the message's.

The bytes may be anything: every length is checked against what is left, nothing is allocated by a count,
and the nesting is that of the table. What does not fit raises CorruptionError.
"""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import dataclass, field

from stratalog.cli.dump.kernel import java_string
from stratalog.errors import CorruptionError, UnsupportedFormat

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


@dataclass(slots=True)
class _Line:
    words: list[str]
    children: list[_Line] = field(default_factory=list)


def parse_table(text: str) -> dict[str, Message]:
    """The messages of a table by name."""
    root: list[_Line] = []
    stack: list[list[_Line]] = [root]
    for raw in text.strip("\n").splitlines():
        depth = len(raw) - len(raw.lstrip(" "))
        line = _Line(raw.split())
        del stack[depth + 1 :]
        stack[depth].append(line)
        stack.append(line.children)
    return {line.words[0]: _message(line) for line in root}


def _message(line: _Line) -> Message:
    name, versions, flexible, *rest = line.words
    structs: dict[str, tuple[Field, ...]] = {}
    fields = tuple(_field(child, structs) for child in line.children)
    number = int(rest[0]) if rest else None
    return Message(name, Versions.parse(versions), Versions.parse(flexible), number, fields)


def _field(line: _Line, structs: dict[str, tuple[Field, ...]]) -> Field:
    name, kind, versions, *rest = line.words
    extras = dict(word.split("=", 1) for word in rest)
    nullable = kind.endswith("?")
    kind = kind.removesuffix("?")
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    if line.children:
        structs[kind] = tuple(_field(child, structs) for child in line.children)
    tag = int(extras["tag"]) if "tag" in extras else None
    fields = structs.get(kind, ())
    default = _default(kind, is_array, fields, extras.get("default"))
    return Field(name, kind, is_array, nullable, Versions.parse(versions), tag, default, fields)


def _default(kind: str, is_array: bool, fields: tuple[Field, ...], text: str | None) -> Json:
    """What a tagged field is when it is absent; null only where the table says so."""
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
    """One message, as the JSON converter of Kafka would show it."""
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
    # In the order of the table, not of the bytes; defaults stay unsaid.
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


def _double(value: float) -> str:
    """As Java prints it: an exponent below 1e-3 and from 1e7 on."""
    if value != value or value in {float("inf"), float("-inf")}:
        return _quote({"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)])
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, _, exponent = f"{value:.17e}".partition("e")
    for precision in range(1, 18):
        text = f"{value:.{precision}e}"
        if float(text) == value:
            digits, _, exponent = text.partition("e")
            break
    return f"{digits}E{int(exponent)}"


def to_json(value: Json) -> str:
    """JSON as Jackson writes it: no spaces, nothing escaped that need not be, bytes in base64."""
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
    return _double(value) if isinstance(value, float) else str(value)
