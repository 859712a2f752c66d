"""``stratalog group list | describe | reset-offsets | delete``: what consumer groups committed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Table, counted, show
from stratalog.cli.guard import WrongUsage
from stratalog.cli.read import Position, parse_position, printable
from stratalog.cli.session import (
    PartitionOption,
    Session,
    YesOption,
    arg,
    command_anywhere,
    complete_topic,
    confirm,
    opt,
)
from stratalog.config.units import format_time
from stratalog.errors import NotFoundError, UnknownPartitionError

if TYPE_CHECKING:
    from stratalog.cli.places.contract import Place, Reads
    from stratalog.store.groups.offsets import CommittedOffset

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

GroupArgument = Annotated[str, arg("GROUP", "The group's name.")]
TopicOption = Annotated[
    str | None, opt("--topic -t TOPIC", "Only this topic.", autocompletion=complete_topic)
]
DryRunOption = Annotated[bool, opt("--dry-run", "Only show what would change.")]


@app.command(name="list")
@command_anywhere
def list_(session: Session) -> None:
    """List every group with its topics and its lag."""
    with session.reads() as source:
        groups = source.groups()
        bounds = source.bounds({at for offsets in groups.values() for at in offsets})
    rows = {group: _rows(bounds, offsets) for group, offsets in groups.items()}
    table = Table("*group", "->partitions", ">lag", "topics", "last commit")
    table.footer = "" if rows else "no groups"
    facts = []
    for group, each in rows.items():
        topics = sorted({row["topic"] for row in each})
        lag = sum(row["lag"] or 0 for row in each)
        last = max((row["committed_ms"] for row in each if row["committed_ms"] is not None), default=None)
        facts.append(
            {"group": group, "partitions": len(each), "lag": lag, "topics": topics, "committed_ms": last}
        )
        table.add(_shown(group), len(each), lag, ", ".join(map(_shown, topics)), _when(last))
    session.tell(facts, table)


@app.command()
@command_anywhere
def describe(session: Session, group: GroupArgument) -> None:
    """Show a group: the committed offset, the end and the lag of each partition."""
    with session.reads() as source:
        offsets = _offsets_of(source, group)
        rows = _rows(source.bounds(offsets), offsets)
    table = Table(
        "*topic", ">partition", ">committed", "->end", ">lag", "--last commit", "note", title=_shown(group)
    )
    table.footer = "" if rows else "nothing is committed"
    for row in rows:
        table.add(
            _shown(row["topic"]),
            str(row["partition"]),
            row["offset"],
            "-" if row["end"] is None else row["end"],
            "-" if row["lag"] is None else row["lag"],
            _when(row["committed_ms"]),
            row["note"],
        )
    session.tell({"group": group, "partitions": rows}, table)


@app.command(name="reset-offsets")
@command_anywhere
def reset_offsets(
    session: Session,
    group: GroupArgument,
    to: Annotated[
        str,
        opt(
            "--to WHERE", "earliest, latest, an offset, -5 (before the end), -10m, an ISO time or @epoch-ms."
        ),
    ],
    topic: TopicOption = None,
    partition: PartitionOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Set the committed offsets of a group, for all of its topics or for --topic.

    Stop the group's consumers first: a running consumer does not notice the change.
    """
    where = parse_position(to, time.time_ns() // 1_000_000)
    if not group:
        raise WrongUsage("GROUP is empty: give the name of a group")
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs --topic")
    with session.reads() as source:
        known = source.group(group) or {}
        chosen = _chosen(source, known, group, topic, partition)
        if where.kind == "offset" and len(chosen) > 1:
            raise WrongUsage(f"an offset needs --topic and --partition: {counted(len(chosen), 'partition')}")
        changes = _offsets_at(source, chosen, where)
    facts = [
        {
            "topic": at[0],
            "partition": at[1],
            "before": known[at].offset if at in known else None,
            "offset": offset,
        }
        for at, offset in changes.items()
    ]
    table = Table("*topic", ">partition", ">before", ">offset", title=_shown(group))
    for fact in facts:
        before = "-" if fact["before"] is None else fact["before"]
        table.add(fact["topic"], str(fact["partition"]), before, fact["offset"])
    if dry_run:
        table.footer = "nothing was changed (--dry-run)"
        session.tell({"group": group, "dry_run": True, "partitions": facts}, table)
        return
    if not yes:
        show(table)
    confirm(f"Commit these offsets for {_shown(group)}?", yes=yes)
    with session.changes() as client:
        client.commit_offsets(group, changes)
    shown = [table] if yes else []
    session.tell(
        {"group": group, "dry_run": False, "partitions": facts}, *shown, f"committed for {_shown(group)}"
    )


@app.command()
@command_anywhere
def delete(
    session: Session,
    group: GroupArgument,
    topic: TopicOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Delete the committed offsets of a group, or only those of --topic."""
    with session.reads() as source:
        gone = [at for at in _offsets_of(source, group) if topic in (None, at[0])]
    if not gone and topic is not None:
        raise NotFoundError(f"group {group} committed nothing for {topic}")
    facts: dict[str, Any] = {"group": group, "deleted": [f"{name}-{number}" for name, number in gone]}
    what = f"the offsets of {_shown(group)} in {counted(len(gone), 'partition')}"
    what = what if gone else f"group {_shown(group)}, which committed nothing"
    if dry_run:
        session.tell({**facts, "dry_run": True}, f"would delete {what}")
        return
    confirm(f"Delete {what}?", yes=yes)
    with session.changes() as client:
        client.forget_offsets(group, gone)
    session.tell({**facts, "dry_run": False}, f"deleted {what}")


def _shown(name: str) -> str:
    """Return the name of a group or a topic without control characters: clients choose it."""
    return printable(name.encode("utf-8", "surrogateescape"))


def _when(time_ms: int | None) -> str:
    """Return when an offset was committed; Kafka's protocol does not tell."""
    return "-" if time_ms is None else format_time(time_ms)


def _offsets_of(source: Reads, group: str) -> dict[Place, CommittedOffset]:
    found = source.group(group)
    if found is None:
        raise NotFoundError(f"no group {group} — `stratalog group list` shows the groups")
    return found


def _rows(
    bounds: Mapping[Place, tuple[int, int]], offsets: Mapping[Place, CommittedOffset]
) -> list[dict[str, Any]]:
    rows = []
    for (topic, partition), committed in sorted(offsets.items()):
        row: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "offset": committed.offset,
            "start": None,
            "end": None,
            "lag": None,
            "committed_ms": committed.timestamp if committed.timestamp >= 0 else None,
            "metadata": committed.metadata,
            "note": "",
        }
        if (topic, partition) not in bounds:
            row["note"] = "no such partition"
        else:
            row["start"], row["end"] = bounds[topic, partition]
            row["lag"] = max(0, row["end"] - max(committed.offset, row["start"]))
            if committed.offset < row["start"]:
                row["note"] = f"{row['start'] - committed.offset} offsets were deleted before they were read"
            elif committed.offset > row["end"]:
                row["note"] = "after the end of the log"
        rows.append(row)
    return rows


def _chosen(
    source: Reads,
    known: Mapping[Place, CommittedOffset],
    group: str,
    topic: str | None,
    partition: int | None,
) -> list[Place]:
    if topic is None:
        if not known:
            raise NotFoundError(f"no group {group}; pass --topic TOPIC to create one")
        names = sorted({name for name, _ in known})
    else:
        names = [topic]
    chosen = [(name, each) for name in names for each in range(source.topic(name).partitions)]
    if partition is not None:
        chosen = [at for at in chosen if at[1] == partition]
        if not chosen:
            raise UnknownPartitionError(f"topic {topic} has no partition {partition}")
    return chosen


def _offsets_at(source: Reads, places: list[Place], where: Position) -> dict[Place, int]:
    """Return the offset that a position means in each partition, brought into the log."""
    bounds = source.bounds(places)
    if where.kind == "time":
        found = source.offsets_for_time(places, where.value)
        return {at: bounds[at][1] if (offset := found[at]) is None else offset for at in places}
    return {at: _offset_in(*bounds[at], where) for at in places}


def _offset_in(first: int, end: int, where: Position) -> int:
    if where.kind == "earliest":
        return first
    if where.kind == "offset":
        return min(max(where.value, first), end)
    if where.kind == "tail":
        return max(first, end - where.value)
    return end
