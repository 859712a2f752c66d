r"""How records are printed: kcat's format strings, JSON lines, and a line for people.

    %s value   %S its length (-1: null)     %k key   %K its length (-1: null)
    %o offset  %p partition  %t topic       %T timestamp in ms
    %h headers as name=value,…              %% a percent sign
    \n \t \r \0 \\ \xNN                     the usual escapes

Everything ends up as bytes: what was appended is printed unchanged.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable

from stratalog.config.units import format_time
from stratalog.errors import InvalidArgumentError
from stratalog.model import LOG_APPEND_TIME, Record

Render = Callable[[Record], bytes]

_TOKEN = re.compile(r"%(?P<field>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers(record: Record) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"" if value is None else value) for name, value in record.headers
    )


_FIELDS: dict[str, Render] = {
    "s": lambda record: record.value or b"",
    "S": lambda record: _length(record.value),
    "k": lambda record: record.key or b"",
    "K": lambda record: _length(record.key),
    "o": lambda record: b"%d" % record.offset,
    "p": lambda record: b"%d" % record.partition,
    "t": lambda record: record.topic.encode(),
    "T": lambda record: b"%d" % (-1 if record.timestamp is None else record.timestamp),
    "h": _headers,
}


def compile_format(text: str) -> Render:
    """A function that prints a record by a format string; InvalidArgumentError names what is unknown."""
    parts: list[bytes | Render] = []
    position = 0
    for match in _TOKEN.finditer(text):
        parts.append(text[position : match.start()].encode("utf-8", "surrogateescape"))
        parts.append(_part(match))
        position = match.end()
    parts.append(text[position:].encode("utf-8", "surrogateescape"))
    pieces = [part for part in parts if part != b""]

    def render(record: Record) -> bytes:
        return b"".join([piece if isinstance(piece, bytes) else piece(record) for piece in pieces])

    return render


def unescape(text: str) -> bytes:
    r"""The bytes of a text with ``\t``, ``\x1f`` and the like in it, for delimiters."""
    return compile_format(text.replace("%", "%%"))(Record(b""))


def _part(match: re.Match[str]) -> bytes | Render:
    if match["hex"] is not None:
        return bytes.fromhex(match["hex"])
    if match["escape"] is not None:
        if match["escape"] not in _ESCAPES:
            raise InvalidArgumentError(f"{match[0]!r} in the format: use \\n \\t \\r \\0 \\\\ or \\xNN")
        return _ESCAPES[match["escape"]]
    if match["field"] == "%":
        return b"%"
    if match["field"] not in _FIELDS:
        known = " ".join(f"%{name}" for name in _FIELDS)
        raise InvalidArgumentError(f"{match[0]!r} in the format: use {known} or %%")
    return _FIELDS[match["field"]]


def to_json(record: Record) -> dict[str, object]:
    """A record as ``append --jsonl`` takes it back; bytes that are not UTF-8 go to ``…_base64``."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type == LOG_APPEND_TIME else "CreateTime",
        **_json_bytes("key", record.key),
        **_json_bytes("value", record.value),
        "headers": [{"key": name, **_json_bytes("value", value)} for name, value in record.headers],
    }


def json_line(record: Record) -> bytes:
    """``to_json`` on one line."""
    return json.dumps(to_json(record), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def value_line(record: Record) -> bytes:
    """The value alone, for pipes."""
    return (record.value or b"") + b"\n"


def people_line(record: Record, color: bool = False) -> bytes:
    """One line for a terminal: where, when, key and value, with control characters made harmless."""
    where = f"{record.partition}:{record.offset}"
    when = format_time(record.timestamp) if record.timestamp is not None else ""
    key = "" if record.key is None else printable(record.key)
    value = "null" if record.value is None else printable(record.value)
    if color:
        where, when = f"\x1b[2m{where}\x1b[0m", f"\x1b[2m{when}\x1b[0m"
        key = f"\x1b[36m{key}\x1b[0m" if key else ""
        value = f"\x1b[2m{value}\x1b[0m" if record.value is None else value
    return "  ".join(part for part in (where, when, key, value) if part).encode() + b"\n"


def printable(data: bytes) -> str:
    """Text with nothing in it that a terminal would obey."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
