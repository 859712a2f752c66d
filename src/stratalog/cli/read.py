"""``stratalog read``: records by offset, by time, by key, as they come."""

from __future__ import annotations

import enum
import json
import os
import sys
import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.check import damage_facts, lost_offsets
from stratalog.cli.console import is_terminal
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.guard import complain
from stratalog.cli.positions import Position, parse_position
from stratalog.cli.reading import Reading
from stratalog.cli.record_format import Render, compile_format, json_line, people_line, value_line
from stratalog.cli.session import Session, TopicArgument, command
from stratalog.errors import NotFoundError, UnknownPartitionError
from stratalog.model import Record

if TYPE_CHECKING:
    from stratalog.log.check.damage import Damage
    from stratalog.store import Topic


class Isolation(enum.StrEnum):
    """Kafka's isolation levels."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@command
def read(
    session: Session,
    topic: TopicArgument,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            "-o",
            metavar="WHERE",
            help="earliest, latest, an offset, -5 (the last five of each partition), -10m, an ISO time or "
            "@epoch-ms. Default: earliest, or latest with --follow.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="Where to stop, itself not included. Default: the end."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only this partition; may be repeated."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key.")] = None,
    last: Annotated[bool, typer.Option("--last", help="With --key: only its latest record.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records; Ctrl-C ends it.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="Stop after N records.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="%s value, %k key, %o offset, %p partition, %t topic, %T timestamp, %h headers, %S and %K "
            "lengths, \\n \\t \\xNN.",
        ),
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="read_committed hides aborted and open transactions.")
    ] = Isolation.READ_UNCOMMITTED,
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged",
            help="Go on behind damaged data instead of stopping there; what was skipped is named on stderr.",
        ),
    ] = False,
) -> None:
    """Print records: the values, one a line, in a pipe; with offset, time and key on a terminal.

    Several partitions are merged by time.
    """
    if format_ is not None and session.json:
        raise typer.BadParameter("--format and --json contradict each other")
    if last and key is None:
        raise typer.BadParameter("--last needs --key")
    if follow and (to is not None or key is not None):
        raise typer.BadParameter("--follow does not go with --to or --key")
    now_ms = time.time_ns() // 1_000_000
    start = (
        parse_position(from_, now_ms) if from_ is not None else Position("latest" if follow else "earliest")
    )
    end = parse_position(to, now_ms) if to is not None else Position("latest")
    render = _renderer(format_, session.json)
    with session.read() as store:
        found = store.topic(topic)
        partitions = _partitions(found, partition)
        if len(partitions) > 1 and "offset" in (start.kind, end.kind):
            raise typer.BadParameter(f"an offset needs --partition: {topic} has {len(partitions)}")
        skipped: list[Damage] = []
        reading = Reading(
            found, partitions, start, end, isolation.value, skipped.append if skip_damaged else False
        )
        if key is not None:
            records = reading.of_key(key.encode("utf-8", "surrogateescape"), last=last)
        else:
            records = reading.follow() if follow else reading.records()
        count = _print(records if limit is None else islice(records, limit), render, at_once=follow)
    if skipped:
        for damage in skipped:
            _name_skipped(damage, session.json)
        raise typer.Exit(ExitCode.UNFINISHED)
    if key is not None and not count and limit != 0:
        raise NotFoundError(f"no record with the key {key} in {topic}")


def _name_skipped(damage: Damage, as_json: bool) -> None:
    """Name a range that was skipped, on stderr: stdout holds records only."""
    if as_json:
        print(json.dumps({"skipped": damage_facts(damage)}), file=sys.stderr)
    else:
        where = f"{damage.path} at bytes {damage.start} to {damage.end}"
        complain(f"skipped {where}, offsets lost: {lost_offsets(damage)} ({damage.reason})")


def _renderer(text: str | None, as_json: bool) -> Render:
    if as_json:
        return json_line
    if text is not None:
        return compile_format(text)
    if not is_terminal(sys.stdout):
        return value_line
    color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return lambda record: people_line(record, color)


def _print(records: Iterable[Record], render: Render, *, at_once: bool) -> int:
    """Writes records to stdout; without waiting for more when somebody looks at each of them."""
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


def _partitions(topic: Topic, wanted: list[int] | None) -> list[int]:
    known = range(topic.partitions)
    for partition in wanted or []:
        if partition not in known:
            raise UnknownPartitionError(f"topic {topic.name} has no partition {partition}")
    return sorted(set(wanted)) if wanted else list(known)
