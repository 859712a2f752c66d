"""Records from lines, JSON lines and whole files.

Input is read in chunks as it arrives, so a slow pipe is appended line by line and a fast file in large
batches; a line has a limit, so memory has one. Errors name the file and the line.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from stratalog.config.units import parse_time
from stratalog.errors import InvalidArgumentError, InvalidRecordError
from stratalog.model import Header, Record

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class LineRules:
    """How a line becomes a record: what the options of ``append`` said."""

    key: bytes | None = None
    key_delimiter: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None
    null_empty: bool = False

    def record(self, line: bytes) -> Record:
        key, value = self.key, line
        if self.key_delimiter is not None:
            before, found, after = line.partition(self.key_delimiter)
            if found:
                key, value = before, after
        if self.null_empty:
            return Record(value or None, key or None, self.headers, self.timestamp)
        return Record(value, key, self.headers, self.timestamp)


def chunks_of_lines(stream: IO[bytes], name: str) -> Iterator[list[bytes]]:
    """Lists of whole lines without their newline, one list per chunk that arrived."""
    pending: list[bytes] = []
    pending_bytes = 0
    read = getattr(stream, "read1", stream.read)
    while data := read(CHUNK_BYTES):
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*pending, lines[0]))
            pending, pending_bytes = [], 0
            yield lines
        if rest:
            pending.append(rest)
            pending_bytes += len(rest)
            if pending_bytes > MAX_LINE_BYTES:
                raise InvalidRecordError(f"{name}: a line longer than {MAX_LINE_BYTES} bytes; is it text?")
    if pending:
        yield [b"".join(pending)]


def records_from_lines(stream: IO[bytes], name: str, rules: LineRules) -> Iterator[list[Record]]:
    """One record a line."""
    for lines in chunks_of_lines(stream, name):
        yield [rules.record(line) for line in lines]


def records_from_json_lines(
    stream: IO[bytes], name: str, rules: LineRules, now_ms: int
) -> Iterator[list[tuple[Record, int | None]]]:
    """One JSON object a line, as ``read --json`` prints them, each with the partition it names."""
    number = 0
    for lines in chunks_of_lines(stream, name):
        found = []
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                found.append(_from_json(json.loads(line), rules, now_ms))
            except (ValueError, RecursionError) as error:
                reason = f"not JSON ({error})" if isinstance(error, json.JSONDecodeError) else error
                raise InvalidRecordError(f"{name} line {number}: {reason}") from None
        yield found


def record_from_file(stream: IO[bytes], name: str, rules: LineRules) -> Record:
    """All of a file as one value."""
    data = stream.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise InvalidRecordError(f"{name}: more than {MAX_LINE_BYTES} bytes in one record")
    return Record(data or (None if rules.null_empty else data), rules.key, rules.headers, rules.timestamp)


def parse_header(text: str) -> Header:
    """``name=value``; ``name`` alone has a null value."""
    name, found, value = text.partition("=")
    if not name:
        raise InvalidArgumentError(f"header {text!r}: write NAME=VALUE")
    return name, value.encode("utf-8", "surrogateescape") if found else None


_KNOWN = frozenset(
    {
        *("topic", "partition", "offset", "timestamp", "timestamp_type", "headers"),
        *("key", "key_base64", "value", "value_base64"),
    }
)


def _from_json(item: Any, rules: LineRules, now_ms: int) -> tuple[Record, int | None]:
    if not isinstance(item, dict):
        raise InvalidArgumentError('must be an object such as {"key": "k", "value": "v"}')
    unknown = sorted(set(item) - _KNOWN)
    if unknown:
        raise InvalidArgumentError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(_KNOWN))}")
    if "value" not in item and "value_base64" not in item:
        raise InvalidArgumentError("no value; write null for a tombstone")
    key = _bytes(item, "key") if "key" in item or "key_base64" in item else rules.key
    value = _bytes(item, "value")
    headers = (*_headers(item.get("headers")), *rules.headers)
    partition = item.get("partition")
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int)):
        raise InvalidArgumentError("partition must be a whole number")
    if rules.null_empty:
        key, value = key or None, value or None
    return Record(value, key, headers, _timestamp(item.get("timestamp"), rules, now_ms)), partition


def _timestamp(given: Any, rules: LineRules, now_ms: int) -> int | None:
    if rules.timestamp is not None or given is None:
        return rules.timestamp
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str):
        return parse_time(given, now_ms)
    raise InvalidArgumentError("timestamp must be milliseconds or an ISO time")


def _bytes(item: dict[str, Any], name: str) -> bytes | None:
    """A text, or base64 under ``…_base64``, or null."""
    if name in item and f"{name}_base64" in item:
        raise InvalidArgumentError(f"both {name} and {name}_base64")
    if f"{name}_base64" in item:
        text = item[f"{name}_base64"]
        try:
            return None if text is None else base64.b64decode(text, validate=True)
        except (TypeError, binascii.Error, ValueError):
            raise InvalidArgumentError(f"{name}_base64 is not base64") from None
    text = item.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{name} must be a string or null (use {name}_base64 for bytes)")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{name} has half a surrogate pair in it") from None


def _headers(given: Any) -> list[Header]:
    """``[{"key": …, "value": …}, …]``, ``[[key, value], …]`` or ``{key: value, …}``."""
    if given is None:
        return []
    if isinstance(given, dict):
        given = [{"key": key, "value": value} for key, value in given.items()]
    if not isinstance(given, list):
        raise InvalidArgumentError("headers must be a list or an object")
    headers: list[Header] = []
    for entry in given:
        if isinstance(entry, list) and len(entry) == 2:
            entry = {"key": entry[0], "value": entry[1]}
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            raise InvalidArgumentError('a header is {"key": "name", "value": "text"}')
        headers.append((entry["key"], _bytes(entry, "value")))
    return headers
