"""``stratalog clone`` and ``stratalog restore``: a new store out of this one, beside whoever holds it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.console import Column, Table, note, progress, show, show_json
from stratalog.cli.session import Session, TopicsOption, command
from stratalog.config.units import format_bytes, format_time, parse_time
from stratalog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratalog.store.copies import CloneReport, PartitionCopy

_TO_OFFSET = re.compile(r"(?:(?P<topic>[^:=]+):(?P<partition>[0-9]{1,9})=)?(?P<offset>[0-9]{1,19})\Z")

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="The directory of the new store.", show_default=False)
]


@command
def clone(
    session: Session,
    target: TargetArgument,
    topics: TopicsOption = None,
) -> None:
    """Copy the store in an instant: sealed segments are hard links, only the active ones are copied.

    On another filesystem everything is copied. The copy is a store of its own: whatever happens to one of
    them does not touch the other.
    """
    from stratalog.store import copies

    session.refuse_read_only()  # the source is told of its copies
    session.require_store()
    with progress("cloning") as bar:
        report = copies.clone(session.paths, target, topics or None, config=session.config, progress=bar)
    _tell(session, report, f"cloned to {report.target}")


@command
def restore(
    session: Session,
    target: TargetArgument,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time", metavar="TIME", help="As of this moment: 2026-01-01T12:00:00Z, -10m or epoch ms."
        ),
    ] = None,
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--to-offset",
            metavar="TOPIC:PARTITION=N",
            help="Up to this offset, not included; as often as needed, the other partitions come whole. With "
            "one partition in all, N alone.",
            show_default=False,
        ),
    ] = None,
    from_archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="URL",
            help="From this archive alone, a directory or s3://…; the store it belonged to may be gone. All "
            "of it unless a moment or offsets are given.",
        ),
    ] = None,
    topics: TopicsOption = None,
    abort_open: Annotated[
        bool,
        typer.Option("--abort-open", help="End transactions that were open at that moment with an abort."),
    ] = False,
    keep_retention: Annotated[
        bool,
        typer.Option(
            "--keep-retention",
            help="Keep retention.ms even where it would delete what was restored; else it is set to -1.",
        ),
    ] = False,
) -> None:
    """Build a new store as this one was at a moment, from local and archived segments.

    What retention or compaction removed since then does not come back. This store stays as it is.
    """
    from stratalog.store import copies

    if to_time is None and not to_offset and from_archive is None:
        raise typer.BadParameter("say where to restore to: --to-time TIME or --to-offset TOPIC:PARTITION=N")
    session.refuse_read_only()
    moment = None if to_time is None else parse_time(to_time, time.time_ns() // 1_000_000)
    source = None
    if from_archive is None:
        session.require_store()
        source = session.paths
    offsets = _offsets(session, to_offset or [], topics, known=source is not None)
    with progress("restoring") as bar:
        report = copies.restore(
            source,
            target,
            archive=from_archive,
            to_time=moment,
            to_offsets=offsets or None,
            topics=topics or None,
            open_transactions="abort" if abort_open else "keep",
            keep_retention=keep_retention,
            config=session.config,
            progress=bar,
        )
    as_of = "" if moment is None else f" as of {format_time(moment)}"
    _tell(session, report, f"restored to {report.target}{as_of}")
    if not session.json:
        for topic, was in report.held_retention.items():
            note(f"{topic}: retention.ms is -1 in the copy (it was {was}), or its records would go at once")


def copies_table(partitions: Sequence[PartitionCopy]) -> Table:
    """Each partition of a copy: which offsets, and how its bytes got there."""
    table = Table(
        [
            Column("partition", style="bold"),
            Column("first offset", right=True),
            Column("next offset", right=True),
            Column("left out", right=True),
            Column("segments", right=True),
            Column("linked", right=True),
            Column("copied", right=True),
        ]
    )
    for each in partitions:
        left = each.source_end_offset - each.end_offset
        table.add(
            f"{each.topic}-{each.partition}",
            str(each.log_start_offset),
            str(each.end_offset),
            f"{left:,}" if left else "",
            f"{each.segments:,}",
            format_bytes(each.linked_bytes),
            format_bytes(each.copied_bytes),
        )
    return table


def show_notes(partitions: Sequence[PartitionCopy], notes: Sequence[str] = ()) -> None:
    """What a copy lacks or has to be known about it, on stderr."""
    for each in partitions:
        for line in each.notes:
            note(f"note: {each.topic}-{each.partition}: {line}")
        for producer, first in each.open_transactions:
            note(
                f"note: {each.topic}-{each.partition}: the transaction producer {producer} began at offset "
                f"{first} has no end in the copy"
            )
    for line in notes:
        note(f"note: {line}")


def _tell(session: Session, report: CloneReport, did: str) -> None:
    if session.json:
        show_json(report.to_json())
        return
    show(copies_table(report.partitions))
    show_notes(report.partitions, report.notes)
    note(f"{did}: {format_bytes(report.linked_bytes)} linked, {format_bytes(report.copied_bytes)} copied")


def _offsets(
    session: Session, given: list[str], topics: list[str] | None, *, known: bool
) -> dict[tuple[str, int], int]:
    """``TOPIC:PARTITION=N``, or N alone where a store is ``known`` and only one partition can be meant."""
    found: dict[tuple[str, int], int] = {}
    for text in given:
        match = _TO_OFFSET.match(text.strip())
        if match is None or (match["topic"] is None and not known):
            raise InvalidArgumentError(f"--to-offset {text}: write TOPIC:PARTITION=N, such as orders:0=1000")
        if match["topic"] is not None:
            key = (match["topic"], int(match["partition"]))
        else:
            key = _only_partition(session, text, topics)
        if key in found:
            raise InvalidArgumentError(f"--to-offset {key[0]}:{key[1]} is given twice")
        found[key] = int(match["offset"])
    return found


def _only_partition(session: Session, text: str, topics: list[str] | None) -> tuple[str, int]:
    with session.read() as store:
        names = topics or store.topics()
        if len(names) == 1 and store.topic(names[0]).partitions == 1:
            return names[0], 0
    raise InvalidArgumentError(
        f"--to-offset {text}: there is more than one partition; write TOPIC:PARTITION=N, as in orders:0=1000"
    )
