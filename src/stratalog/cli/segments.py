"""``stratalog segments``, ``roll`` and ``log-dirs``: what lies on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.console import Column, Table, note, show, show_json
from stratalog.cli.session import OptionalTopic, PartitionOption, Session, TopicArgument, command
from stratalog.config.units import format_bytes, format_duration_ms, format_time
from stratalog.model import SegmentInfo

if TYPE_CHECKING:
    from stratalog.store import LogDirInfo


@command
def segments(
    session: Session,
    topic: OptionalTopic = None,
    partition: PartitionOption = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Deleted ones too, as long as their files wait for removal.")
    ] = False,
    paths: Annotated[bool, typer.Option("--paths", help="Show each segment's file.")] = False,
) -> None:
    """Every segment: state, offsets, time range, size.

    A segment is active, sealed, compacting, compacted, archived (only the archive has it) or deleted.
    """
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs a TOPIC")
    with session.read() as store:
        names = [topic] if topic is not None else store.topics()
        found = [
            segment for name in names for segment in store.topic(name).segments(partition, deleted=everything)
        ]
    if session.json:
        show_json([segment_facts(segment) for segment in found])
    else:
        show(segment_table(found, with_topic=topic is None, paths=paths))


def segment_facts(segment: SegmentInfo) -> dict[str, object]:
    """A segment for programs."""
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "base_offset": segment.base_offset,
        "next_offset": segment.next_offset,
        "state": str(segment.state),
        "records": segment.records,
        "size_bytes": segment.size_bytes,
        "min_timestamp": segment.min_timestamp,
        "max_timestamp": segment.max_timestamp,
        "path": segment.path,
    }


def segment_table(found: list[SegmentInfo], *, with_topic: bool, paths: bool) -> Table:
    """Segments for people; several topics get a column for their name."""
    columns = [Column("topic", style="bold")] if with_topic else []
    columns += [
        Column("partition", right=True),
        Column("base offset", right=True),
        Column("next offset", right=True),
        Column("state"),
        Column("records", right=True),
        Column("size", right=True),
        Column("from (UTC)"),
        Column("spans", right=True),
    ]
    if paths:
        columns.append(Column("file", style="dim", fold=True))
    total = sum(segment.size_bytes for segment in found)
    count = len(found)
    table = Table(columns, footer=f"{count:,} segment{'' if count == 1 else 's'}, {format_bytes(total)}")
    for segment in found:
        cells = [segment.topic] if with_topic else []
        cells += [
            str(segment.partition),
            str(segment.base_offset),
            str(segment.next_offset),
            str(segment.state),
            "" if segment.records is None else f"{segment.records:,}",
            format_bytes(segment.size_bytes),
            *_times(segment),
        ]
        if paths:
            cells.append(segment.path)
        table.add(*cells)
    return table


def _times(segment: SegmentInfo) -> tuple[str, str]:
    first, last = segment.min_timestamp, segment.max_timestamp
    if last is None or last < 0:
        return "", ""
    if first is None:
        return f"… to {_short(last)}", ""
    return _short(first), format_duration_ms(max(0, last - first))


def _short(timestamp: int) -> str:
    """To the second: ``2026-01-01 00:00:00``."""
    return format_time(timestamp)[:19].replace("T", " ")


@command
def roll(session: Session, topic: TopicArgument, partition: PartitionOption = None) -> None:
    """Seal the active segment and begin a new one."""
    with session.change() as client:
        client.roll(topic, partition)
    if session.json:
        show_json({"topic": topic, "partition": partition, "rolled": True})
    else:
        note(f"rolled {topic}" + ("" if partition is None else f" partition {partition}"))


@command
def log_dirs(session: Session) -> None:
    """The store's directories: what they hold, what is free, who writes."""
    from stratalog.fs import RealFileSystem

    filesystem = RealFileSystem()
    with session.read() as store:
        found = [(each, filesystem.lock_holder(f"{each.path}/.lock")) for each in store.log_dirs()]
    if session.json:
        show_json([_dir_facts(each, holder) for each, holder in found])
        return
    table = Table(
        [
            Column("directory", style="bold", fold=True),
            Column("state"),
            Column("partitions", right=True),
            Column("segments", right=True),
            Column("size", right=True),
            Column("free", right=True),
            Column("written by"),
        ]
    )
    for each, holder in found:
        table.add(
            each.path,
            "online" if each.offline is None else "offline",
            f"{each.partitions:,}",
            f"{each.segments:,}",
            format_bytes(each.size_bytes),
            "" if each.free_bytes is None else format_bytes(each.free_bytes),
            "nobody" if holder is None else f"process {holder.get('pid', 'unknown')}",
        )
    reasons = [f"{each.path}: {each.offline}" for each, _ in found if each.offline]
    table.footer = "; ".join(
        [*reasons, *(why for each, _ in found for why in each.offline_partitions.values())]
    )
    show(table)


def _dir_facts(each: LogDirInfo, holder: dict[str, object] | None) -> dict[str, object]:
    return {
        "path": each.path,
        "online": each.offline is None,
        "error": each.offline,
        "partitions": each.partitions,
        "segments": each.segments,
        "size_bytes": each.size_bytes,
        "free_bytes": each.free_bytes,
        "offline_partitions": each.offline_partitions,
        "held": holder is not None,
        "holder_pid": None if holder is None else holder.get("pid"),
    }
