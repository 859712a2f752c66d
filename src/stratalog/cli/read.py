"""``stratalog read``: records by offset, by time, by key, as they come."""

from __future__ import annotations

import enum
import heapq
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import is_terminal
from stratalog.cli.positions import Position, parse_position
from stratalog.cli.record_format import Render, compile_format, json_line, people_line, value_line
from stratalog.cli.session import Session, TopicArgument, command
from stratalog.errors import NotFoundError, UnknownPartitionError
from stratalog.model import Record

if TYPE_CHECKING:
    from stratalog.store import Topic

POLL_S = 0.1


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
        _check_offsets(start, end, partitions, topic)
        if key is not None:
            wanted = key.encode("utf-8", "surrogateescape")
            records = _by_key(found, wanted, partitions, start, end, last=last, isolation=isolation.value)
        elif follow:
            records = _follow(found, partitions, start, isolation.value)
        else:
            records = _range(found, partitions, start, end, isolation.value)
        count = _print(records if limit is None else islice(records, limit), render, unbuffered=follow)
    if key is not None and not count and limit != 0:
        raise NotFoundError(f"no record with the key {key} in {topic}")


def _renderer(text: str | None, as_json: bool) -> Render:
    if as_json:
        return json_line
    if text is not None:
        return compile_format(text)
    if not is_terminal(sys.stdout):
        return value_line
    color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return lambda record: people_line(record, color)


def _print(records: Iterable[Record], render: Render, *, unbuffered: bool) -> int:
    """Writes records to stdout; at once when somebody waits for each of them."""
    out = sys.stdout.buffer
    at_once = unbuffered or is_terminal(sys.stdout)
    count = 0
    for record in records:
        out.write(render(record))
        count += 1
        if at_once:
            out.flush()
    out.flush()
    return count


def _partitions(topic: Topic, wanted: list[int] | None) -> list[int]:
    known = range(topic.partitions)
    for partition in wanted or []:
        if partition not in known:
            raise UnknownPartitionError(f"topic {topic.name} has no partition {partition}")
    return sorted(set(wanted)) if wanted else list(known)


def _check_offsets(start: Position, end: Position, partitions: list[int], topic: str) -> None:
    """An offset means something in one partition only."""
    if len(partitions) > 1 and "offset" in (start.kind, end.kind):
        raise typer.BadParameter(f"an offset needs --partition: {topic} has {len(partitions)}")


def resolve_start(topic: Topic, partition: int, position: Position, isolation: str) -> int:
    """The offset a read of one partition begins at."""
    if position.kind == "offset":
        return position.value  # as it is: outside the log it must be an error with the valid range
    first, end = topic.log_start_offset(partition), topic.high_watermark(partition, isolation)
    if position.kind == "latest":
        return end
    if position.kind == "tail":
        return max(first, end - position.value)
    if position.kind == "time":
        found = topic.offset_for_time(partition, position.value, isolation=isolation)
        return end if found is None else found
    return first


def resolve_end(topic: Topic, partition: int, position: Position, isolation: str) -> int:
    """The offset a read of one partition stops before; a time stops nothing, it filters."""
    first, end = topic.log_start_offset(partition), topic.high_watermark(partition, isolation)
    if position.kind == "offset":
        return min(position.value, end)
    if position.kind == "earliest":
        return first
    if position.kind == "tail":
        return max(first, end - position.value)
    return end


def _time(record: Record) -> int:
    return -1 if record.timestamp is None else record.timestamp


def _within(records: Iterable[Record], start: Position, end: Position) -> Iterator[Record]:
    """Times are half-open and records may be out of order: each one is looked at."""
    since = start.value if start.kind == "time" else -(2**63)
    until = end.value if end.kind == "time" else 2**63
    return (record for record in records if since <= _time(record) < until)


def _range(
    topic: Topic, partitions: list[int], start: Position, end: Position, isolation: str
) -> Iterator[Record]:
    """Records between two positions; several partitions merged by time."""
    runs: list[Iterator[Record]] = []
    for partition in partitions:
        first = resolve_start(topic, partition, start, isolation)
        stop = resolve_end(topic, partition, end, isolation)
        if end.kind == "time" and first < stop:
            runs.append(_scan(topic, partition, (first, stop), start, end, isolation))
        elif first < stop or start.kind == "offset":
            run = topic.read(partition, first, max(stop, first), isolation=isolation)
            runs.append(_within(run, start, end) if start.kind == "time" else run)
    return runs[0] if len(runs) == 1 else heapq.merge(*runs, key=_time)


def _scan(
    topic: Topic, partition: int, offsets: tuple[int, int], start: Position, end: Position, isolation: str
) -> Iterator[Record]:
    """By way of Arrow, which leaves out whole segments that lie outside the times."""
    reader = topic.scan(
        [partition],
        start=offsets[0],
        end=offsets[1],
        since=start.value if start.kind == "time" else None,
        until=end.value,
        isolation=isolation,
    )
    for batch in reader:
        for row in _rows(batch):
            yield Record(*row, topic.name)


def _rows(batch: Any) -> Iterator[tuple[Any, Any, Any, Any, Any, Any, Any]]:
    """The columns of ``scan`` in the order of ``Record``."""
    import pyarrow as pa

    column = batch.column
    stamps = column("timestamp").cast(pa.int64()).to_pylist()
    headers = ([(h["key"], h["value"]) for h in row or ()] for row in column("headers").to_pylist())
    return zip(
        column("value").to_pylist(),
        column("key").to_pylist(),
        headers,
        stamps,
        column("offset").to_pylist(),
        column("partition").to_pylist(),
        column("timestampType").to_pylist(),
        strict=True,
    )


def _by_key(
    topic: Topic,
    key: bytes,
    partitions: list[int],
    start: Position,
    end: Position,
    *,
    last: bool,
    isolation: str,
) -> Iterator[Record]:
    """Every record of a key, oldest first; only the newest of them with ``last``."""
    runs = []
    for partition in partitions:
        first = resolve_start(topic, partition, start, isolation)
        stop = resolve_end(topic, partition, end, isolation)
        if isolation == Isolation.READ_COMMITTED:  # the key index knows nothing of transactions
            every: Iterable[Record] = topic.read(partition, first, max(first, stop), isolation=isolation)
            history = [record for record in every if record.key == key]
        else:
            history = [record for record in topic.history(key, partition) if first <= record.offset < stop]
        runs.append(_within(history, start, end))
    merged = heapq.merge(*runs, key=_time)
    return iter(deque(merged, maxlen=1)) if last else merged


def _follow(topic: Topic, partitions: list[int], start: Position, isolation: str) -> Iterator[Record]:
    """What is there from ``start`` on, merged by time, then what comes, as it comes."""
    if len(partitions) == 1:
        first = resolve_start(topic, partitions[0], start, isolation)
        records = topic.read(partitions[0], first, follow=True, isolation=isolation)
        yield from _within(records, start, Position("latest"))
        return
    at = {partition: resolve_start(topic, partition, start, isolation) for partition in partitions}
    while True:
        runs = []
        for partition, offset in at.items():
            end = topic.high_watermark(partition, isolation)
            if end > offset:
                runs.append(topic.read(partition, offset, end, isolation=isolation))
                at[partition] = end
        if runs:
            yield from _within(heapq.merge(*runs, key=_time), start, Position("latest"))
        else:
            time.sleep(POLL_S)
