"""``stratalog append``: records from stdin or files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import IO, TYPE_CHECKING, Annotated

import typer

from stratalog.cli.console import note, progress, show_json
from stratalog.cli.record_format import unescape
from stratalog.cli.record_input import (
    LineRules,
    parse_header,
    record_from_file,
    records_from_json_lines,
    records_from_lines,
)
from stratalog.cli.session import Session, TopicArgument, command
from stratalog.config.units import parse_time
from stratalog.errors import StratalogError
from stratalog.model import Record

if TYPE_CHECKING:
    from stratalog.store import AdminClient

Item = tuple[Record, int | None]


@command
def append(
    session: Session,
    topic: TopicArgument,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Input files; stdin when there are none, or for -."),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", help='One JSON object a line, as read --json prints: {"key": "k", "value": "v", …}.'
        ),
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Each file is one record, instead of each line.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "--key-delimiter", "-K", metavar="TEXT", help="Each line is key TEXT value, e.g. ':' or '\\t'."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header for every record; may be repeated."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition", "-p", min=0, metavar="N", help="The partition; else chosen by key as Kafka does."
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp", "-T", metavar="TIME", help="The time of every record: ISO, -10m or epoch ms."
        ),
    ] = None,
    null_empty: Annotated[
        bool, typer.Option("--null-empty", "-Z", help="Empty keys and values are null (a tombstone).")
    ] = False,
    sync: Annotated[bool, typer.Option("--sync", help="Wait until the records are on disk.")] = False,
) -> None:
    """Append records: one a line, one JSON object a line, or one a file."""
    if jsonl and (whole or key_delimiter is not None):
        raise typer.BadParameter("--jsonl does not go with --whole or --key-delimiter")
    if key is not None and key_delimiter is not None:
        raise typer.BadParameter("--key and --key-delimiter contradict each other")
    now_ms = time.time_ns() // 1_000_000
    rules = LineRules(
        key=None if key is None else key.encode("utf-8", "surrogateescape"),
        key_delimiter=None if key_delimiter is None else _delimiter(key_delimiter),
        headers=tuple(parse_header(text) for text in header or []),
        timestamp=None if timestamp is None else parse_time(timestamp, now_ms),
        null_empty=null_empty,
    )
    tally = Tally(topic)
    with session.change() as client:
        try:
            for name in files or ["-"]:
                with _opened(name) as stream, _watched(stream, name) as report:
                    for batch in _batches(stream, name, rules, jsonl=jsonl, whole=whole, now_ms=now_ms):
                        _send(client, tally, batch, partition, sync)
                        report()
        except (StratalogError, OSError):
            if tally.records:
                note(f"stratalog: before the error {tally.line()}")
            raise
    if session.json:
        show_json(tally.facts())
    else:
        note(tally.line())


@dataclass(slots=True)
class Tally:
    """What went where."""

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
        shown = ", ".join(where[:8]) + (f" and {len(where) - 8} more partitions" if len(where) > 8 else "")
        count = self.records
        said = f"appended {count:,} record{'' if count == 1 else 's'} to {self.topic}"
        return f"{said} (partition:offset {shown})" if where else said

    def facts(self) -> dict[str, object]:
        partitions = [
            {"partition": p, "first_offset": first, "last_offset": last, "records": total}
            for p, (first, last, total) in sorted(self.ranges.items())
        ]
        return {"topic": self.topic, "records": self.records, "partitions": partitions}


def _delimiter(text: str) -> bytes:
    delimiter = unescape(text)
    if not delimiter:
        raise typer.BadParameter("--key-delimiter must not be empty")
    return delimiter


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as stream:
        yield stream


@contextmanager
def _watched(stream: IO[bytes], name: str) -> Iterator[Callable[[], None]]:
    """A bar for a file; a pipe or a terminal has no end to measure against."""
    if name == "-" or not stream.seekable():
        yield lambda: None
        return
    total = os.fstat(stream.fileno()).st_size
    with progress(f"appending {name}") as report:
        yield lambda: report(stream.tell(), total)


def _batches(
    stream: IO[bytes], name: str, rules: LineRules, *, jsonl: bool, whole: bool, now_ms: int
) -> Iterator[Iterable[Item]]:
    name = "stdin" if name == "-" else name
    if whole:
        yield [(record_from_file(stream, name, rules), None)]
    elif jsonl:
        yield from records_from_json_lines(stream, name, rules, now_ms)
    else:
        for records in records_from_lines(stream, name, rules):
            yield ((record, None) for record in records)


def _send(
    client: AdminClient, tally: Tally, batch: Iterable[Item], partition: int | None, sync: bool
) -> None:
    """Appends a batch in the order of the input, in runs of one partition that all have a time or none."""
    for (target, _), run in groupby(batch, lambda item: (item[1], item[0].timestamp is None)):
        _append(
            client, tally, [record for record, _ in run], target if partition is None else partition, sync
        )


def _append(client: AdminClient, tally: Tally, run: list[Record], partition: int | None, sync: bool) -> None:
    for where in client.append(tally.topic, run, partition, sync):
        tally.add(where.partition, where.offset, where.count)
