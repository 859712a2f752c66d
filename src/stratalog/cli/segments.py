"""``stratalog segments``, ``roll`` and ``log-dirs``: the files on disk."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stratalog.cli.console import Table, counted
from stratalog.cli.guard import ExitCode, WrongUsage
from stratalog.cli.session import OptionalTopic, PartitionOption, Session, TopicArgument, command, opt
from stratalog.config.units import format_bytes, format_time
from stratalog.model import SegmentInfo


@command
def segments(
    session: Session,
    topic: OptionalTopic = None,
    partition: PartitionOption = None,
    everything: Annotated[
        bool, opt("--all -a", "Include deleted segments whose files are not removed yet.")
    ] = False,
    paths: Annotated[bool, opt("--paths", "Show the file of each segment.")] = False,
) -> None:
    """List every segment: state, offsets, time range, size.

    A segment is active, sealed, compacting, compacted, archived (only the archive has it) or deleted.
    """
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs a TOPIC")
    with session.read() as store:
        names = [topic] if topic is not None else store.topics()
        found = [
            segment for name in names for segment in store.topic(name).segments(partition, deleted=everything)
        ]
    table = segment_table(found, with_topic=topic is None, paths=paths)
    session.tell([segment_facts(segment) for segment in found], table)


def segment_facts(segment: SegmentInfo) -> dict[str, object]:
    """Return a segment for JSON."""
    return asdict(segment) | {"state": str(segment.state)}


def segment_table(found: list[SegmentInfo], *, with_topic: bool, paths: bool) -> Table:
    """Return segments as a table; several topics get a column for their name."""
    columns = ["*topic"] * with_topic + [">partition", ">base offset", ">next offset", "state", ">records"]
    table = Table(*columns, ">size", "--first (UTC)", "---last (UTC)", *[".~file"] * paths)
    table.footer = f"{counted(len(found), 'segment')}, {format_bytes(sum(each.size_bytes for each in found))}"
    for each in found:
        table.add(
            *[each.topic] * with_topic,
            str(each.partition),
            str(each.base_offset),
            str(each.next_offset),
            str(each.state),
            "" if each.records is None else each.records,
            format_bytes(each.size_bytes),
            *_times(each),
            *[each.path] * paths,
        )
    return table


def _times(segment: SegmentInfo) -> tuple[str, str]:
    last = segment.max_timestamp
    if last is None or last < 0:
        return "", ""
    return _short(segment.min_timestamp), _short(last)


def _short(timestamp: int | None) -> str:
    """Return a time to the second: ``2026-01-01 00:00:00``; nothing if it is not known."""
    return "" if timestamp is None else format_time(timestamp)[:19].replace("T", " ")


@command
def roll(session: Session, topic: TopicArgument, partition: PartitionOption = None) -> None:
    """Seal the active segment and begin a new one."""
    with session.change() as client:
        rolled = client.roll(topic, partition)
    where = f"{topic}{'' if partition is None else f' partition {partition}'}"
    said = f"rolled {where}: {counted(rolled, 'segment')} sealed"
    if not rolled:
        said = f"nothing to roll in {where}: the active segments hold no records"
    session.tell({"topic": topic, "partition": partition, "rolled": rolled > 0, "segments": rolled}, said)


@command
def log_dirs(session: Session) -> None:
    """Show the store's directories: contents, free space, and the process that writes them.

    The exit code is 7 if a directory or a partition is offline; the reason is in the output.
    """
    from stratalog.fs import RealFileSystem

    filesystem = RealFileSystem()
    with session.read() as store:
        found = [(each, filesystem.lock_holder(f"{each.path}/.lock")) for each in store.log_dirs()]
    table = Table("*~directory", "state", "->partitions", "-->segments", ">size", ">free", "---written by")
    facts = []
    for each, holder in found:
        pid = None if holder is None else holder.get("pid")
        table.add(
            each.path,
            "online" if each.offline is None else "offline",
            each.partitions,
            each.segments,
            format_bytes(each.size_bytes),
            "" if each.free_bytes is None else format_bytes(each.free_bytes),
            "no process" if holder is None else f"process {pid or 'unknown'}",
        )
        fact = {"path": each.path, "online": each.offline is None, "error": each.offline} | asdict(each)
        del fact["offline"]
        facts.append(fact | {"held": holder is not None, "holder_pid": pid})
    reasons = [f"{each.path}: {each.offline}" for each, _ in found if each.offline]
    reasons += [why for each, _ in found for why in each.offline_partitions.values()]
    table.footer = "; ".join(reasons)
    session.tell(facts, table)
    if reasons:
        raise typer.Exit(ExitCode.STORAGE)
