"""``stratalog append``: records from lines, JSON lines and whole files.

Input is read in chunks as it arrives, so a slow pipe is appended line by line and a fast file in large
batches; the length of a line is limited, so memory is too. Errors name the file and the line.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import IO, TYPE_CHECKING, Annotated, Any

from stratalog.cli.commands.read import unescape
from stratalog.cli.console import counted, note, progress
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import Session, TopicArgument, arg, command_anywhere, opt
from stratalog.config.units import parse_time
from stratalog.errors import (
    InvalidArgumentError,
    InvalidRecordError,
    RecordTooLargeError,
    StratalogError,
    UnknownPartitionError,
)
from stratalog.model import Header, Record

if TYPE_CHECKING:
    from stratalog.cli.places.contract import Changes

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 256 << 20
Item = tuple[Record, int | None, int]
"""A record, the partition it names, and the number of its line; 0 for a whole file."""


@command_anywhere
def append(
    session: Session,
    topic: TopicArgument,
    files: Annotated[
        list[str] | None, arg("[FILE]...", "Input files; stdin when there are none, or for -.")
    ] = None,
    jsonl: Annotated[
        bool,
        opt("--jsonl", 'One JSON object per line, as from read --json: {"key": "k", "value": "v", …}.'),
    ] = False,
    whole: Annotated[bool, opt("--whole", "Make each file one record, not each line.")] = False,
    key: Annotated[str | None, opt("--key -k", "The key of every record.")] = None,
    key_delimiter: Annotated[
        str | None,
        opt(
            "--key-delimiter -K TEXT",
            "Each line is key TEXT value, e.g. ':' or '\\t'; a line without TEXT is a value without a key.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None, opt("--header -H NAME=VALUE", "A header for every record; repeatable.")
    ] = None,
    partition: Annotated[
        int | None, opt("--partition -p N", "The partition; chosen by key by default, as in Kafka.", min=0)
    ] = None,
    timestamp: Annotated[
        str | None, opt("--timestamp -T TIME", "The time of every record: ISO, -10m or epoch ms.")
    ] = None,
    null_empty: Annotated[
        bool, opt("--null-empty -Z", "Empty keys and values are null (a tombstone).")
    ] = False,
    sync: Annotated[bool, opt("--sync", "Wait until the records are on disk.")] = False,
) -> None:
    """Append records: one per line, one JSON object per line, or one per file."""
    if jsonl and (whole or key_delimiter is not None):
        raise WrongUsage("--jsonl cannot be used with --whole or --key-delimiter")
    if key is not None and key_delimiter is not None:
        raise WrongUsage("--key and --key-delimiter cannot be used together")
    now_ms = time.time_ns() // 1_000_000
    rules = LineRules(
        key=None if key is None else key.encode("utf-8", "surrogateescape"),
        key_delimiter=None if key_delimiter is None else _delimiter(key_delimiter),
        headers=tuple(parse_header(text) for text in header or []),
        timestamp=None if timestamp is None else parse_time(timestamp, now_ms),
        null_empty=null_empty,
    )
    tally = Tally(topic)
    with session.changes() as client:
        found = client.describe_topic(topic)  # before the input is read, and also when there is none
        if partition is not None and partition >= found["partitions"]:
            raise UnknownPartitionError(f"topic {topic} has no partition {partition}")
        try:
            for name in files or ["-"]:
                with open_input(name) as stream, _watched(stream, name) as report:
                    for batch in _batches(stream, name, rules, jsonl=jsonl, whole=whole, now_ms=now_ms):
                        _send(client, tally, batch, _shown(name), partition, sync)
                        report()
        except (StratalogError, OSError):
            if tally.records:
                note(f"stratalog: before the error {tally.line()}")
            raise
        except KeyboardInterrupt:
            note(f"stratalog: interrupted; {tally.line()}; the batch being written may also be in the log")
            raise
    session.tell(tally.facts(), tally.line())


@dataclass(slots=True)
class Tally:
    """The offsets of the records acknowledged so far, by partition."""

    topic: str
    ranges: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, partition: int, offset: int, count: int) -> None:
        first, _, total = self.ranges.get(partition, (offset, offset, 0))
        self.ranges[partition] = (first, offset + count - 1, total + count)

    @property
    def records(self) -> int:
        return sum(total for _, _, total in self.ranges.values())

    def line(self) -> str:
        """``appended 3 records to orders: 0:5, 1:7-8``."""
        where = [
            f"{p}:{first}" if first == last else f"{p}:{first}-{last}"
            for p, (first, last, _) in sorted(self.ranges.items())
        ]
        more = f" and {counted(len(where) - 8, 'more partition')}" if len(where) > 8 else ""
        shown = ", ".join(where[:8]) + more
        text = f"appended {counted(self.records, 'record')} to {self.topic}"
        return f"{text} (partition:offset {shown})" if where else text

    def facts(self) -> dict[str, object]:
        partitions = [
            {"partition": p, "first_offset": first, "last_offset": last, "records": total}
            for p, (first, last, total) in sorted(self.ranges.items())
        ]
        return {"topic": self.topic, "records": self.records, "partitions": partitions}


def _delimiter(text: str) -> bytes:
    delimiter = unescape(text)
    if not delimiter:
        raise WrongUsage("--key-delimiter must not be empty")
    return delimiter


def open_input(name: str) -> AbstractContextManager[IO[bytes]]:
    """Open a file for reading; ``-`` is stdin."""
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    if os.path.isdir(name):
        raise InvalidArgumentError(f"{name} is a directory: give the files in it, or - for stdin")
    return open(name, "rb")


def _shown(name: str) -> str:
    return "stdin" if name == "-" else name


@contextmanager
def _watched(stream: IO[bytes], name: str) -> Iterator[Callable[[], None]]:
    """Show a bar for a file; a pipe or a terminal has no known end."""
    if name == "-" or not stream.seekable():
        yield lambda: None
        return
    total = os.fstat(stream.fileno()).st_size
    with progress(f"appending {name}") as report:
        yield lambda: report(stream.tell(), total)


def _batches(
    stream: IO[bytes], name: str, rules: LineRules, *, jsonl: bool, whole: bool, now_ms: int
) -> Iterator[Iterable[Item]]:
    name = _shown(name)
    if whole:
        yield [(record_from_file(stream, name, rules), None, 0)]
    elif jsonl:
        yield from records_from_json_lines(stream, name, rules, now_ms)
    else:
        number = 0
        for lines in chunks_of_lines(stream, name):
            yield [(rules.record(line), None, at) for at, line in enumerate(lines, number + 1)]
            number += len(lines)


_NUMBERED = re.compile(r"\Arecord \d+: ")
"""The number of a record within a batch, which means nothing to the reader of a file."""


def _send(
    client: Changes, tally: Tally, batch: Iterable[Item], name: str, partition: int | None, sync: bool
) -> None:
    """Append a batch in the order of the input, in runs of one partition that all have a time or none."""
    for (target, _), run in groupby(batch, lambda item: (item[1], item[0].timestamp is None)):
        items = list(run)
        records = [record for record, _, _ in items]
        target = target if partition is None else partition
        try:
            for placed in client.append(tally.topic, records, target, sync):
                tally.add(placed.partition, placed.offset, placed.count)
        except RecordTooLargeError as error:
            *_, line = max(items, key=lambda item: len(item[0].value or b"") + len(item[0].key or b""))
            where = f"{name} line {line}" if line else name
            raise RecordTooLargeError(f"{where}: {_NUMBERED.sub('', error.message)}") from error


@dataclass(frozen=True, slots=True)
class LineRules:
    """How a line becomes a record: the options of ``append``."""

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
    """Yield lists of whole lines without their newline, one list per chunk that arrived."""
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
                raise InvalidRecordError(
                    f"{name}: a line is longer than {MAX_LINE_BYTES} bytes: use --whole or --jsonl"
                )
    if pending:
        yield [b"".join(pending)]


def records_from_json_lines(
    stream: IO[bytes], name: str, rules: LineRules, now_ms: int
) -> Iterator[list[Item]]:
    """Read one JSON object a line, as ``read --json`` prints them, each with the partition it names."""
    number = 0
    for lines in chunks_of_lines(stream, name):
        found = []
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                found.append((*_from_json(json.loads(line), rules, now_ms), number))
            except (ValueError, RecursionError) as error:
                reason = f"not JSON ({error})" if isinstance(error, json.JSONDecodeError) else error
                raise InvalidRecordError(f"{name} line {number}: {reason}") from None
        yield found


def record_from_file(stream: IO[bytes], name: str, rules: LineRules) -> Record:
    """Read all of a file as one value."""
    data = stream.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise InvalidRecordError(f"{name}: longer than {MAX_LINE_BYTES} bytes, the most one record may have")
    return Record(data or (None if rules.null_empty else data), rules.key, rules.headers, rules.timestamp)


def parse_header(text: str) -> Header:
    """Parse ``name=value``; ``name`` alone has a null value."""
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
    """Return a text, base64 under ``…_base64``, or null, as bytes."""
    if name in item and f"{name}_base64" in item:
        raise InvalidArgumentError(f"has both {name} and {name}_base64: give one of them")
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
        raise InvalidArgumentError(f"{name} holds half a surrogate pair, which is not text") from None


def _headers(given: Any) -> list[Header]:
    """Parse ``[{"key": …, "value": …}, …]``, ``[[key, value], …]`` or ``{key: value, …}``."""
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
