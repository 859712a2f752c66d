"""The tables of Kafka's messages: which fields a message has, in which versions, and how they are written.

A table is text, a message a paragraph whose further lines are indented:

    <name> <versions> <flexible versions> [<id>]: <field>, <field>, …

    field:  <name> <type>[?[<versions>]] [<versions>] [#<tag>] [=<default>] [!] [(<field of that struct>, …)]

A type is a primitive, a struct defined here or earlier in the same message, or [] of either; `?` may be
null, in these versions or in all. A field without versions is in all of them. Flexible versions have compact
lengths, except of a field with `!`, and a section of tagged fields after each struct.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

MAX_VERSION = 2**15 - 1
INTEGERS = ("int8", "int16", "uint16", "int32", "uint32", "int64")
NIL_UUID = bytes(16)

Value = None | bool | int | float | str | bytes | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions; empty if ``low`` is above ``high``."""

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


ALL = Versions(0, MAX_VERSION)


@dataclass(frozen=True, slots=True)
class Struct:
    """A name and fields; a message is one too."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A field in all versions of its struct. ``struct`` is None for a primitive."""

    name: str
    kind: str
    is_array: bool
    nullable: Versions
    versions: Versions
    tag: int | None
    default: Value
    compact: bool
    struct: Struct | None


@dataclass(frozen=True, slots=True)
class Message:
    """A request, a response, or a record's key or value."""

    name: str
    versions: Versions
    flexible: Versions
    id: int | None
    struct: Struct


@cache
def table(name: str) -> dict[str, Message]:
    """Return the messages of one of our tables, by name."""
    text = resources.files("stratalog.wire").joinpath("tables", f"{name}.txt").read_text(encoding="utf-8")
    return parse_table(text)


_WORD = re.compile(r"[(),]|[^\s(),]+")


def parse_table(text: str) -> dict[str, Message]:
    """Return the messages of a table by name."""
    found = {}
    for paragraph in re.split(r"\n(?! )", text.strip("\n")):
        head, _, body = paragraph.partition(":")
        name, versions, flexible, *rest = head.split()
        number = int(rest[0]) if rest else None
        struct = Struct(name, _fields(iter(_WORD.findall(body)), {}))
        found[name] = Message(name, Versions.parse(versions), Versions.parse(flexible), number, struct)
    return found


def _fields(words: Iterator[str], structs: dict[str, Struct]) -> tuple[Field, ...]:
    """Read fields up to the closing bracket, or the end."""
    fields: list[Field] = []
    said: list[str] = []
    for word in words:
        if word == "(":
            kind = _KIND.sub("", said[1])
            structs[kind] = Struct(kind, _fields(words, structs))
        elif word in (",", ")"):
            fields.append(_field(said, structs))
            said = []
            if word == ")":
                return tuple(fields)
        else:
            said.append(word)
    return (*fields, _field(said, structs)) if said else tuple(fields)


_KIND = re.compile(r"^\[\]|\?.*$")


def _field(words: list[str], structs: dict[str, Struct]) -> Field:
    name, full, *rest = words
    kind = _KIND.sub("", full)
    _, mark, nullable = full.partition("?")
    marks = {word[0]: word[1:] for word in rest if word[0] in "#=!"}
    versions = next((word for word in rest if word[0] not in "#=!"), None)
    struct, is_array = structs.get(kind), full.startswith("[]")
    return Field(
        name,
        kind,
        is_array,
        Versions.parse(nullable or ("0+" if mark else "none")),
        ALL if versions is None else Versions.parse(versions),
        int(marks["#"]) if "#" in marks else None,
        _default(kind, is_array, struct, marks.get("=", "")),
        "!" not in marks,
        struct,
    )


def _default(kind: str, is_array: bool, struct: Struct | None, text: str) -> Value:
    """Return the value of a field that a message does not have; null only where the table has it."""
    if text == "null":
        return None
    if is_array:
        return ()
    if struct is not None:
        return tuple(each.default for each in struct.fields)
    if kind in INTEGERS:
        return int(text or "0", 0)
    if kind == "bool":
        return text.lower() == "true"
    if kind == "float64":
        return float(text or 0)
    if kind == "string":
        return text
    return NIL_UUID if kind == "uuid" else b""
