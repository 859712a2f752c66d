"""``stratalog group list | describe | reset-offsets | delete``: what consumer groups committed."""

from __future__ import annotations

import time
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
    command,
    complete_topic,
    confirm,
    opt,
)
from stratalog.config.units import format_time
from stratalog.errors import NotFoundError, UnknownPartitionError, UnknownTopicError

if TYPE_CHECKING:
    from stratalog.store import AdminClient, Store
    from stratalog.store.groups.offsets import CommittedOffset, TopicPartition

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

GroupArgument = Annotated[str, arg("GROUP", "The group's name.")]
TopicOption = Annotated[
    str | None, opt("--topic -t TOPIC", "Only this topic.", autocompletion=complete_topic)
]
DryRunOption = Annotated[bool, opt("--dry-run", "Only show what would change.")]


@app.command(name="list")
@command
def list_(session: Session) -> None:
    """List every group with its topics and its lag."""
    with session.read() as store:
        rows = {group: _rows(store, offsets) for group, offsets in store.groups.offsets.all().items()}
    table = Table("*group", "->partitions", ">lag", "topics", "last commit")
    table.footer = "" if rows else "no groups"
    facts = []
    for group, each in rows.items():
        topics = sorted({row["topic"] for row in each})
        lag = sum(row["lag"] or 0 for row in each)
        last = max(row["committed_ms"] for row in each)
        facts.append(
            {"group": group, "partitions": len(each), "lag": lag, "topics": topics, "committed_ms": last}
        )
        table.add(_shown(group), len(each), lag, ", ".join(map(_shown, topics)), format_time(last))
    session.tell(facts, table)


@app.command()
@command
def describe(session: Session, group: GroupArgument) -> None:
    """Show a group: the committed offset, the end and the lag of each partition."""
    with session.read() as store:
        rows = _rows(store, _offsets_of(store, group))
    table = Table(
        "*topic", ">partition", ">committed", "->end", ">lag", "--last commit", "note", title=_shown(group)
    )
    for row in rows:
        table.add(
            _shown(row["topic"]),
            str(row["partition"]),
            row["offset"],
            "-" if row["end"] is None else row["end"],
            "-" if row["lag"] is None else row["lag"],
            format_time(row["committed_ms"]),
            row["note"],
        )
    session.tell({"group": group, "partitions": rows}, table)


@app.command(name="reset-offsets")
@command
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
        raise WrongUsage("a group has a name")
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs --topic")
    with session.read() as store:
        known = store.groups.offsets.all().get(group, {})
        chosen = _chosen(store, known, group, topic, partition)
        if where.kind == "offset" and len(chosen) > 1:
            raise WrongUsage(f"an offset needs --topic and --partition: {counted(len(chosen), 'partition')}")
        changes = {at: _offset_at(store, at, where) for at in chosen}
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
    from stratalog.store.groups import offsets

    with session.change() as client:
        _append(client, group, offsets.commit_records(group, changes, time.time_ns() // 1_000_000), session)
    shown = [table] if yes else []
    session.tell(
        {"group": group, "dry_run": False, "partitions": facts}, *shown, f"committed for {_shown(group)}"
    )


@app.command()
@command
def delete(
    session: Session,
    group: GroupArgument,
    topic: TopicOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Delete the committed offsets of a group, or only those of --topic."""
    with session.read() as store:
        gone = [at for at in _offsets_of(store, group) if topic in (None, at[0])]
    if not gone:
        raise NotFoundError(f"group {group} committed nothing for {topic}")
    facts: dict[str, Any] = {"group": group, "deleted": [f"{name}-{number}" for name, number in gone]}
    what = f"the offsets of {_shown(group)} in {counted(len(gone), 'partition')}"
    if dry_run:
        session.tell({**facts, "dry_run": True}, f"would delete {what}")
        return
    confirm(f"Delete {what}?", yes=yes)
    from stratalog.store.groups import offsets

    with session.change() as client:
        _append(client, group, offsets.forget_records(group, gone), session)
    session.tell({**facts, "dry_run": False}, f"deleted {what}")


def _shown(name: str) -> str:
    """Return the name of a group or a topic without control characters: whoever commits chooses it."""
    return printable(name.encode("utf-8", "surrogateescape"))


def _append(client: AdminClient, group: str, records: Any, session: Session) -> None:
    from stratalog.store.groups import offsets

    with session.read() as store:
        there = offsets.OFFSETS_TOPIC in store
        count = store[offsets.OFFSETS_TOPIC].partitions if there else offsets.PARTITIONS
    if not there:
        client.create_topic(offsets.OFFSETS_TOPIC, count, {k: str(v) for k, v in offsets.CONFIG.items()})
    client.append(offsets.OFFSETS_TOPIC, records, offsets.partition_of(group, count), True)


def _offsets_of(store: Store, group: str) -> dict[TopicPartition, CommittedOffset]:
    found = store.groups.offsets.all().get(group)
    if found is None:
        raise NotFoundError(f"no group {group} — `stratalog group list` shows the groups")
    return found


def _rows(store: Store, offsets: dict[TopicPartition, CommittedOffset]) -> list[dict[str, Any]]:
    rows = []
    for (topic, partition), committed in sorted(offsets.items()):
        row: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "offset": committed.offset,
            "start": None,
            "end": None,
            "lag": None,
            "committed_ms": committed.timestamp,
            "metadata": committed.metadata,
            "note": "",
        }
        try:
            found = store.topic(topic)
            row["start"], row["end"] = found.log_start_offset(partition), found.high_watermark(partition)
        except (UnknownTopicError, UnknownPartitionError):
            row["note"] = "no such partition"
        else:
            row["lag"] = max(0, row["end"] - max(committed.offset, row["start"]))
            if committed.offset < row["start"]:
                row["note"] = f"{row['start'] - committed.offset} offsets were deleted before they were read"
            elif committed.offset > row["end"]:
                row["note"] = "after the end of the log"
        rows.append(row)
    return rows


def _chosen(
    store: Store,
    known: dict[TopicPartition, CommittedOffset],
    group: str,
    topic: str | None,
    partition: int | None,
) -> list[TopicPartition]:
    if topic is None:
        if not known:
            raise NotFoundError(f"no group {group}; pass --topic TOPIC to create one")
        names = sorted({name for name, _ in known})
    else:
        names = [topic]
    chosen = [(name, each) for name in names for each in range(store.topic(name).partitions)]
    if partition is not None:
        chosen = [at for at in chosen if at[1] == partition]
        if not chosen:
            raise UnknownPartitionError(f"topic {topic} has no partition {partition}")
    return chosen


def _offset_at(store: Store, at: TopicPartition, where: Position) -> int:
    """Return the offset that a position means in a partition, brought into the log."""
    topic = store.topic(at[0])
    first, end = topic.log_start_offset(at[1]), topic.high_watermark(at[1])
    if where.kind == "earliest":
        return first
    if where.kind == "offset":
        return min(max(where.value, first), end)
    if where.kind == "tail":
        return max(first, end - where.value)
    if where.kind == "time":
        found = topic.offset_for_time(at[1], where.value)
        return end if found is None else found
    return end
