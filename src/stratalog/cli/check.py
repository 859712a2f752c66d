"""``stratalog verify`` and ``stratalog repair``."""

from __future__ import annotations

import enum
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Column, Table, note, progress, show, show_json
from stratalog.cli.exit_codes import ExitCode
from stratalog.cli.session import OptionalTopic, PartitionOption, Session, TopicArgument, command
from stratalog.cli.topics import confirm
from stratalog.config.units import format_bytes
from stratalog.errors import FormatError, LogDirOfflineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.log.check.damage import Damage
    from stratalog.log.check.repair import RepairReport
    from stratalog.store import Topic


class Action(enum.StrEnum):
    """What a repair may do."""

    REBUILD_INDEXES = "rebuild-indexes"
    DROP_DAMAGED = "drop-damaged"
    TRUNCATE = "truncate"


@command
def verify(session: Session, topic: OptionalTopic = None, partition: PartitionOption = None) -> None:
    """Check every byte and name each damaged range and the records lost to it (exit code 5)."""
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs a TOPIC")
    with session.read() as store, progress("verifying") as bar:
        from stratalog.store import verify as verify_store

        names = store.topics() if topic is None else [topic]
        total = sum(_size_bytes(store.topic(name), partition) for name in names)
        done = 0

        def went_by(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            bar(done, total)

        report = verify_store(store, topic, partition, progress=went_by)
    checked = (
        f"{report.segments:,} segment{'' if report.segments == 1 else 's'}, {format_bytes(report.bytes)}"
    )
    if session.json:
        show_json(
            {
                "ok": report.ok,
                "segments": report.segments,
                "bytes": report.bytes,
                "records": report.records,
                "damages": [damage_facts(damage) for damage in report.damages],
            }
        )
    elif report.ok:
        note(f"no damage in {checked}")
    else:
        table = damage_table(report.damages)
        table.footer = (
            f"{len(report.damages):,} damaged in {checked}; `stratalog repair` says what can be done"
        )
        show(table)
    if not report.ok:
        raise typer.Exit(ExitCode.CORRUPTION)


def _size_bytes(topic: Topic, partition: int | None) -> int:
    """Return the bytes to check; a partition that is offline has none."""
    size = 0
    for number in range(topic.partitions) if partition is None else [partition]:
        with suppress(LogDirOfflineError, FormatError, FileNotFoundError):
            size += topic.size_bytes(number)
    return size


@command
def repair(
    session: Session,
    topic: TopicArgument,
    partition: PartitionOption = None,
    action: Annotated[
        Action,
        typer.Option(
            "--action",
            "-a",
            help="rebuild-indexes gives nothing up; drop-damaged leaves the damaged ranges out; truncate "
            "ends the log before the first of them.",
        ),
    ] = Action.REBUILD_INDEXES,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before records are given up.")] = False,
) -> None:
    """Repair a topic: does only what it is told and says what it gave up (exit code 5: damage is left)."""
    with session.read() as store:
        count = store.topic(topic).partitions
    partitions = list(range(count)) if partition is None else [partition]
    with session.look_or_change(only_looks=dry_run) as client:
        done = [(each, client.repair(topic, each, action=action.value, dry_run=True)) for each in partitions]
        if not dry_run:
            if any(report.lost for _, report in done) and not yes:
                _show_lost(done, topic, "would be given up")
                confirm("Give these records up for good?", yes)
            done = [
                (each, client.repair(topic, each, action=action.value, dry_run=False)) for each in partitions
            ]
    if session.json:
        show_json([report_facts(report, topic, each, action, dry_run) for each, report in done])
    else:
        _show_lost(done, topic, "would be given up" if dry_run else "were given up")
        lines = [f"{topic}-{each}: {line}" for each, report in done for line in report.actions]
        for line in lines:
            note(line)
    left = [damage for _, report in done for damage in report.left]
    if left:
        if not session.json:
            table = damage_table(left)
            table.footer = f"{len(left):,} damaged still; drop-damaged or truncate gives up what is lost"
            show(table)
        raise typer.Exit(ExitCode.CORRUPTION)


def damage_facts(damage: Damage) -> dict[str, Any]:
    """A damaged range for programs; offsets are the records lost to it."""
    return {
        "path": damage.path,
        "start": damage.start,
        "end": damage.end,
        "first_offset": damage.first_offset if damage.first_offset >= 0 else None,
        "last_offset": damage.last_offset if damage.last_offset >= 0 else None,
        "reason": damage.reason,
        "derived": damage.derived,
    }


def damage_table(damages: Sequence[Damage]) -> Table:
    """Damaged ranges for people."""
    table = Table(
        [
            Column("file", style="bold", fold=True),
            Column("bytes", right=True),
            Column("offsets lost", right=True),
            Column("why", fold=True),
        ]
    )
    for damage in damages:
        table.add(damage.path, _bytes(damage), lost_offsets(damage), damage.reason)
    return table


def _bytes(damage: Damage) -> str:
    if damage.start < 0:
        return "-"
    return f"{damage.start}-{damage.end}" if damage.end >= 0 else f"{damage.start}-"


def lost_offsets(damage: Damage) -> str:
    """Return the offsets lost to a damage, for people."""
    first, last = damage.first_offset, damage.last_offset
    if first < 0 or last < first:
        return "none" if damage.derived else "unknown"
    return str(first) if first == last else f"{first}-{last}"


def report_facts(
    report: RepairReport, topic: str, partition: int, action: Action, dry_run: bool
) -> dict[str, Any]:
    """What a repair did to one partition, or would do, for programs."""
    return {
        "topic": topic,
        "partition": partition,
        "action": action.value,
        "dry_run": dry_run,
        "actions": list(report.actions),
        "lost": [damage_facts(damage) for damage in report.lost],
        "lost_records": report.lost_records,
        "left": [damage_facts(damage) for damage in report.left],
    }


def _show_lost(done: Sequence[tuple[int, RepairReport]], topic: str, said: str) -> None:
    table = damage_table([damage for _, report in done for damage in report.lost])
    if table.rows:
        counts = [report.lost_records for _, report in done if report.lost]
        known = sum(count for count in counts if count is not None)
        count = (
            f"{known:,}" if None not in counts else f"{known:,} or more" if known else "an unknown number of"
        )
        table.footer = f"{count} records of {topic} {said}"
        show(table)
