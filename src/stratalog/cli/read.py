r"""``stratalog read``: records by offset, by time, by key, as they come, and how they are printed.

Positions:

    earliest   latest   1234 (an offset)   -5 (the last five)   @1767225600000 (epoch ms)
    -10m   now   2026-01-01   2026-01-01T12:00:00Z (a time)

Formats are kcat's:

    %s value   %S its length (-1: null)     %k key   %K its length (-1: null)
    %o offset  %p partition  %t topic       %T timestamp in ms
    %h headers as name=value,…              %% a percent sign
    \n \t \r \0 \\ \xNN                     the usual escapes

Everything is printed as bytes: what was appended is printed unchanged.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stratalog.analysis.payloads import to_text
from stratalog.analysis.where import compile_where
from stratalog.cli.analysis.files import ForceOption, OutOption, form_of, json_bytes, new_file, write_records
from stratalog.cli.analysis.formats import Decoding, Formats, load, loader, with_text
from stratalog.cli.check import damage_facts, lost_offsets
from stratalog.cli.console import counted, escaped, is_terminal, progress
from stratalog.cli.guard import ExitCode, WrongUsage, complain
from stratalog.cli.session import Isolation, IsolationOption, Session, TopicArgument, command_anywhere, opt
from stratalog.config.units import format_bytes, format_time, parse_time
from stratalog.errors import InvalidArgumentError, NotFoundError, UnknownPartitionError
from stratalog.model import LOG_APPEND_TIME, Record

if TYPE_CHECKING:
    from stratalog.cli.places.contract import TopicReads
    from stratalog.log.check.damage import Damage
    from stratalog.log.read.reader import SkipDamaged

END = 2**63 - 1
READ_COMMITTED = "read_committed"
PROGRESS_EVERY = 1000
Render = Callable[[Record], bytes]


@command_anywhere
def read(
    session: Session,
    topic: TopicArgument,
    from_: Annotated[
        str | None,
        opt(
            "--from --since -o WHERE",
            "earliest, latest, an offset, -5 (the last five of each partition), -10m, an ISO time or "
            "@epoch-ms. Default: earliest, or latest with --follow.",
        ),
    ] = None,
    to: Annotated[
        str | None, opt("--to --until WHERE", "Where to stop (exclusive). Default: the end.")
    ] = None,
    partition: Annotated[
        list[int] | None, opt("--partition -p N", "Only this partition; repeatable.", min=0)
    ] = None,
    key: Annotated[str | None, opt("--key -k", "Only records with this key.")] = None,
    last: Annotated[bool, opt("--last", "With --key: only the latest record.")] = False,
    follow: Annotated[bool, opt("--follow -f", "Wait for new records until Ctrl-C.")] = False,
    limit: Annotated[int | None, opt("--limit -n N", "Stop after N records.", min=0, max=END)] = None,
    format_: Annotated[
        str | None,
        opt(
            "--format TEXT",
            "%s value, %k key, %o offset, %p partition, %t topic, %T timestamp, %h headers, %S and %K "
            "lengths, \\n \\t \\xNN.",
        ),
    ] = None,
    isolation: IsolationOption = Isolation.READ_UNCOMMITTED,
    skip_damaged: Annotated[
        bool,
        opt(
            "--skip-damaged",
            "Skip damaged data instead of stopping there; skipped ranges are listed on stderr.",
        ),
    ] = False,
    where: Annotated[
        str | None,
        opt("--where CONDITION", "Only records whose JSON value matches: 'amount>100 and country==\"DE\"'."),
    ] = None,
    out: OutOption = None,
    force: ForceOption = False,
    key_hex: Annotated[bool, opt("--key-hex", "Show keys as hexadecimal digits.")] = False,
    value_hex: Annotated[bool, opt("--value-hex", "Show values as hexadecimal digits.")] = False,
    *,
    decoding: Decoding,
) -> None:
    """Print records: values only in a pipe; offset, time, key and value on a terminal.

    Several partitions are merged by time. With --out they go to a file, in bounded memory.
    """
    hexed = {name for name, wanted in (("key", key_hex), ("value", value_hex)) if wanted}
    formats = decoding.formats()
    if hexed & formats.keys():
        raise WrongUsage("--key-hex and --value-hex show bytes as they are: omit the format")
    meets = None if where is None else compile_where(where, loader(formats))
    form = "" if out is None else form_of(out)
    if out is not None and (follow or format_ is not None):
        raise WrongUsage("--out cannot be used with --follow or --format")
    if hexed and form in ("parquet", "arrow"):
        raise WrongUsage(f"a {form} file holds bytes as they are: omit --key-hex and --value-hex")
    if force and out is None:
        raise WrongUsage("--force needs --out")
    if format_ is not None and session.json:
        raise WrongUsage("--format and --json cannot be used together")
    if last and key is None:
        raise WrongUsage("--last needs --key")
    if follow and (to is not None or key is not None):
        raise WrongUsage("--follow cannot be used with --to or --key")
    now_ms = time.time_ns() // 1_000_000
    start = (
        parse_position(from_, now_ms) if from_ is not None else Position("latest" if follow else "earliest")
    )
    end = parse_position(to, now_ms) if to is not None else Position("latest")
    render = _renderer(format_, session.json, hexed, formats)
    with session.reads() as source:
        found = source.topic(topic)
        partitions = _partitions(found, partition)
        if len(partitions) > 1 and "offset" in (start.kind, end.kind):
            raise WrongUsage(f"an offset needs --partition: {topic} has {len(partitions)}")
        skipped: list[Damage] = []
        reading = Reading(
            found, partitions, start, end, isolation.value, skipped.append if skip_damaged else False
        )
        if key is not None:
            records = reading.of_key(key.encode("utf-8", "surrogateescape"), last=last)
        else:
            records = reading.records(follow=follow)
        if meets is not None:
            records = filter(meets, records)
        records = records if limit is None else islice(records, limit)
        if out is not None:
            _write(
                session,
                out,
                form,
                records,
                reading,
                formats,
                force=force,
                hexed=hexed,
                key=None if limit == 0 else key,
            )
            count = 1  # none would have been an error
        else:
            count = _print(records, render, at_once=follow)
    if skipped:
        for damage in skipped:
            _name_skipped(damage, session.json)
        raise typer.Exit(ExitCode.UNFINISHED)
    if key is not None and not count and limit != 0:
        raise _no_record(topic, key)


def _no_record(topic: str, key: str) -> NotFoundError:
    return NotFoundError(f"no record with the key {key} in {topic}")


def _write(
    session: Session,
    path: str,
    form: str,
    records: Iterable[Record],
    reading: Reading,
    formats: Formats,
    *,
    force: bool,
    hexed: set[str],
    key: str | None,
) -> None:
    """Write records to a file, and tell how many; none of a ``key`` is an error, and makes no file."""
    with new_file(path, force=force) as file, progress("writing") as bar:
        total = reading.offsets()

        def watched() -> Iterator[Record]:
            for number, record in enumerate(records):
                if not number % PROGRESS_EVERY:
                    bar(number, total)
                yield record

        line = partial(json_line, hexed=hexed, formats=formats)
        count = write_records(file, form, watched(), line, hexed, formats)
        if key is not None and not count:
            raise _no_record(reading.topic.name, key)
    size = os.path.getsize(path)
    facts = {"topic": reading.topic.name, "file": path, "format": form, "records": count, "bytes": size}
    session.tell(facts, f"wrote {counted(count, 'record')} to {path}, {format_bytes(size)}")


def _name_skipped(damage: Damage, as_json: bool) -> None:
    """Print a range that was skipped on stderr: stdout holds records only."""
    if as_json:
        print(json.dumps({"skipped": damage_facts(damage)}), file=sys.stderr)
    else:
        end = f" to {damage.end - 1}" if damage.end > damage.start else " to the end"
        where = f" bytes {damage.start}{end}" if damage.start >= 0 else ""
        complain(f"skipped {damage.path}{where}, offsets lost: {lost_offsets(damage)} ({damage.reason})")


def _renderer(text: str | None, as_json: bool, hexed: set[str], formats: Formats) -> Render:
    if as_json:
        return partial(json_line, hexed=hexed, formats=formats)
    render = _text_renderer(text)
    if formats:
        return lambda record: render(_in_hex(with_text(record, formats), hexed))
    return (lambda record: render(_in_hex(record, hexed))) if hexed else render


def _text_renderer(text: str | None) -> Render:
    if text is not None:
        return compile_format(text)
    if not is_terminal(sys.stdout):
        return value_line
    color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return lambda record: people_line(record, color)


def _in_hex(record: Record, hexed: set[str]) -> Record:
    key = record.key.hex().encode() if record.key is not None and "key" in hexed else record.key
    value = record.value.hex().encode() if record.value is not None and "value" in hexed else record.value
    return record._replace(key=key, value=value)


def _print(records: Iterable[Record], render: Render, *, at_once: bool) -> int:
    """Write records to stdout; flush after each if ``at_once`` or on a terminal. Return how many."""
    out = sys.stdout.buffer
    at_once = at_once or is_terminal(sys.stdout)
    count = 0
    try:
        for record in records:
            out.write(render(record))
            count += 1
            if at_once:
                out.flush()
    finally:
        out.flush()  # what came before an error is good data
    return count


def _partitions(topic: TopicReads, wanted: list[int] | None) -> list[int]:
    known = range(topic.partitions)
    for partition in wanted or []:
        if partition not in known:
            raise UnknownPartitionError(f"topic {topic.name} has no partition {partition}")
    return sorted(set(wanted)) if wanted else list(known)


# -- which records ---------------------------------------------------------------------------------------

Kind = Literal["earliest", "latest", "offset", "tail", "time"]
_OFFSET = re.compile(r"[0-9]{1,19}\Z")
_TAIL = re.compile(r"-[0-9]{1,19}\Z")


@dataclass(frozen=True, slots=True)
class Position:
    """``value`` is an offset, a number of records before the end, or epoch milliseconds."""

    kind: Kind
    value: int = 0


def parse_position(text: str, now_ms: int) -> Position:
    """Parse a position; InvalidArgumentError lists the forms."""
    stripped = text.strip()
    if stripped in ("earliest", "beginning"):
        return Position("earliest")
    if stripped in ("latest", "end"):
        return Position("latest")
    if _OFFSET.match(stripped):
        return Position("offset", int(stripped))
    if _TAIL.match(stripped):
        return Position("tail", int(stripped[1:]))
    try:
        stripped = stripped.removeprefix("@")
        return Position("time", parse_time(stripped, now_ms))
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"{text!r} is not a position: use earliest, latest, an offset, -5 (the last five), -10m, "
            "2026-01-01T12:00:00Z or @ with epoch milliseconds"
        ) from None


@dataclass(frozen=True, slots=True)
class Reading:
    """Which records to print. Times are half-open and compared record by record: they may be out of order."""

    topic: TopicReads
    partitions: list[int]
    start: Position
    end: Position
    isolation: str
    skip_damaged: SkipDamaged = False

    def records(self, *, follow: bool = False) -> Iterator[Record]:
        """Return everything between the two positions; with ``follow`` also what comes after."""
        return self._read(self.partitions, follow=follow)

    def of_key(self, key: bytes, *, last: bool) -> Iterator[Record]:
        """Yield every record of a key, oldest first; only the newest of them with ``last``."""
        whole = self.start.kind == "earliest" and self.end.kind == "latest"
        if last and whole and not self.skip_damaged:  # stops at the first one found from the end
            found = [self.topic.get(key, each, isolation=self.isolation) for each in self.partitions]
            return iter(sorted((each for each in found if each is not None), key=_time)[-1:])
        runs = [self._history(key, partition) for partition in self.partitions]
        merged = heapq.merge(*runs, key=_time)
        return iter(deque(merged, maxlen=1)) if last else merged

    def offsets(self) -> int:
        """Return about how many records there are, for a progress bar; 0 when only reading them can tell."""
        if "time" in (self.start.kind, self.end.kind):
            return 0
        total = 0
        for each in self.partitions:
            low, high = self._bounds(each)
            first, stop = self.first(each), self.stop(each)
            total += max(0, (high if stop is None else stop) - (low if first is None else first))
        return total

    def first(self, partition: int) -> int | None:
        """Return the offset a partition is read from; None where the start or a time decides."""
        position = self.start
        if position.kind == "offset":
            return position.value  # as it is: outside the log it must be an error with the valid range
        first, end = self._bounds(partition)
        if position.kind == "latest":
            return end
        return max(first, end - position.value) if position.kind == "tail" else None

    def stop(self, partition: int) -> int | None:
        """Return the offset a partition is read up to; None where the end or a time decides."""
        position = self.end
        if position.kind == "offset":
            return position.value
        first, end = self._bounds(partition)
        if position.kind == "earliest":
            return first
        return max(first, end - position.value) if position.kind == "tail" else None

    def _bounds(self, partition: int) -> tuple[int, int]:
        return self.topic.log_start_offset(partition), self.topic.high_watermark(partition, self.isolation)

    def _times(self) -> tuple[int | None, int | None]:
        return tuple(at.value if at.kind == "time" else None for at in (self.start, self.end))  # type: ignore[return-value]

    def _history(self, key: bytes, partition: int) -> Iterator[Record]:
        if self.isolation == READ_COMMITTED or self.skip_damaged:  # the key index knows of neither
            return (record for record in self._read([partition]) if record.key == key)
        low, high = self.first(partition) or 0, self.stop(partition)
        since, until = self._times()
        return (
            record
            for record in self.topic.history(key, partition)
            if low <= record.offset < (END if high is None else high)
            and (since is None or since <= _time(record))
            and (until is None or _time(record) < until)
        )

    def _read(self, partitions: list[int], *, follow: bool = False) -> Iterator[Record]:
        since, until = self._times()
        bounds = [(each, self.first(each), self.stop(each)) for each in partitions]
        everything = follow and len(partitions) == self.topic.partitions  # those that are added too
        return self.topic.read(
            None if everything else partitions,
            {each: first for each, first, _ in bounds if first is not None},
            {each: stop for each, _, stop in bounds if stop is not None and not follow},
            since=since,
            until=until,
            isolation=self.isolation,
            follow=follow,
            skip_damaged=self.skip_damaged,
        )


def _time(record: Record) -> int:
    return -1 if record.timestamp is None else record.timestamp


# -- how they are printed --------------------------------------------------------------------------------

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
    """Return a function that prints a record by a format string; InvalidArgumentError if it is wrong."""
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
    r"""Return the bytes of a text with ``\t``, ``\x1f`` and the like in it, for delimiters."""
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


def to_json(
    record: Record, hexed: Collection[str] = (), formats: Formats = MappingProxyType({})
) -> dict[str, object]:
    """Return a record as ``append --jsonl`` reads it; bytes that are not UTF-8 go to ``…_base64``.

    Those of ``hexed``, key and value, go to ``…_hex``; those of ``formats`` are objects.
    """
    parts: dict[str, object] = {}
    for name, data in (("key", record.key), ("value", record.value)):
        found = load(record, name, formats) if name in formats else data
        parts |= json_bytes(name, data, hexed=name in hexed) if found is data else {name: found}
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type == LOG_APPEND_TIME else "CreateTime",
        **parts,
        "headers": [{"key": name, **json_bytes("value", value)} for name, value in record.headers],
    }


def json_line(record: Record, hexed: Collection[str] = (), formats: Formats = MappingProxyType({})) -> bytes:
    """Return `to_json` on one line."""
    return to_text(to_json(record, hexed, formats)).encode() + b"\n"


def value_line(record: Record) -> bytes:
    """Return the value alone, for pipes."""
    return (record.value or b"") + b"\n"


def people_line(record: Record, color: bool = False) -> bytes:
    """Return one line for a terminal: place, time, key and value, with control characters escaped."""
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
    """Return text without control characters."""
    return escaped(data.decode("utf-8", "backslashreplace"))
