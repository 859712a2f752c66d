"""``stratalog verify`` and ``stratalog repair``."""

from __future__ import annotations

import enum
import os
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.console import Table, counted, note, progress, show, show_json, warnings
from stratalog.cli.guard import ExitCode, WrongUsage
from stratalog.cli.session import (
    OptionalTopic,
    PartitionOption,
    Session,
    TopicArgument,
    command,
    confirm,
    opt,
)
from stratalog.config.units import format_bytes
from stratalog.errors import FormatError, LogDirOfflineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.log.check.damage import Damage
    from stratalog.log.check.repair import RepairReport
    from stratalog.store import Store, Topic


class Action(enum.StrEnum):
    """What a repair may do."""

    REBUILD_INDEXES = "rebuild-indexes"
    DROP_DAMAGED = "drop-damaged"
    TRUNCATE = "truncate"


@command
def verify(session: Session, topic: OptionalTopic = None, partition: PartitionOption = None) -> None:
    """Check every byte; list damaged ranges and lost offsets (exit code 5 if there are any)."""
    if partition is not None and topic is None:
        raise WrongUsage("--partition needs a TOPIC")
    with warnings.holding() as told, session.read() as store, progress("verifying") as bar:
        from stratalog.store import verify as verify_store

        names = store.topics() if topic is None else [topic]
        total = sum(_size_bytes(store.topic(name), partition) for name in names)
        done = 0

        def went_by(size_bytes: int) -> None:
            nonlocal done
            done += size_bytes
            bar(done, total)

        report = verify_store(store, topic, partition, progress=went_by)
        told += map(_line, report.damages)
    checked = f"{counted(report.segments, 'segment')}, {format_bytes(report.bytes)}"
    facts = {
        "ok": report.ok,
        "segments": report.segments,
        "bytes": report.bytes,
        "records": report.records,
        "damages": [damage_facts(damage) for damage in report.damages],
    }
    if report.ok:
        session.tell(facts, f"no damage in {checked}")
        return
    table = damage_table(report.damages)
    advice = "`stratalog repair TOPIC` shows how to repair it"
    if all(os.path.dirname(damage.path) in map(os.path.normpath, session.paths) for damage in report.damages):
        advice = "no repair is needed, see above"  # files of a log directory, each with what to do
    advice = _unread(report.damages) or advice
    table.footer = f"{counted(len(report.damages), 'damaged range')} in {checked}; {advice}"
    session.tell(facts, table)
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
        Action | None,
        opt(
            "--action -a",
            "rebuild-indexes loses nothing; drop-damaged removes damaged ranges; truncate "
            "ends the log before the first one. Without --action damage is only reported.",
        ),
    ] = None,
    dry_run: Annotated[bool, opt("--dry-run -n", "Only show what would be done.")] = False,
    yes: Annotated[bool, opt("--yes -y", "Do not ask before records are dropped.")] = False,
) -> None:
    """Repair a topic with --action, and list lost records (exit code 5 if damage is left).

    Without --action, or with --dry-run, nothing is changed.
    """
    dry_run = dry_run or action is None
    chosen = (action or Action.REBUILD_INDEXES).value
    with warnings.holding() as told:
        with session.read() as store:
            count = store.topic(topic).partitions
            partitions = list(range(count)) if partition is None else [partition]
            damaged = {each: _damages(store, topic, each) for each in partitions} if dry_run else {}
        with session.look_or_change(only_looks=dry_run) as client:
            done = [(each, client.repair(topic, each, action=chosen, dry_run=True)) for each in partitions]
            if not dry_run:
                if any(report.lost for _, report in done) and not yes:
                    _show_lost(done, topic, "would be lost")
                    confirm("Drop these records permanently?", yes)
                done = [
                    (each, client.repair(topic, each, action=chosen, dry_run=False)) for each in partitions
                ]
        if not dry_run:
            with session.read() as store:  # the repair itself does not look at the archive
                damaged = {each: _damages(store, topic, each) for each in partitions}
        for each, report in done:
            report.left = damaged[each]
            told += [*report.actions, *map(_line, (*report.lost, *report.left))]
    left = [damage for _, report in done for damage in report.left]
    if session.json:
        show_json([_report_facts(report, topic, each, action, dry_run) for each, report in done])
    else:
        _show_lost(done, topic, "would be lost" if dry_run else "lost")
        from stratalog.log.check.repair import NOTHING

        for each, report in done:
            for line in report.actions if report.actions != [NOTHING] or not report.left else ():
                note(f"{topic}-{each}: {'dry run: ' if dry_run else ''}{line}")
        if left:
            lost = [damage for _, report in done for damage in report.lost]
            table = damage_table([damage for damage in left if damage not in lost])
            table.footer = f"{counted(len(left), 'damaged range')}; {_advice(topic, action, dry_run, left)}"
            show(table)
    if left:
        raise typer.Exit(ExitCode.CORRUPTION)


def _line(damage: Damage) -> str:
    return f"{damage.path}: {damage.reason}"


def _damages(store: Store, topic: str, partition: int) -> list[Damage]:
    from stratalog.store import verify as verify_store

    return list(verify_store(store, topic, partition).damages)


def _advice(topic: str, action: Action | None, dry_run: bool, left: Sequence[Damage]) -> str:
    if unread := _unread(left):
        return unread
    if action is None:
        return (
            f"nothing was changed: `stratalog repair {topic} --action rebuild-indexes` rebuilds indexes and "
            "seals, --action drop-damaged removes the damaged ranges, --action truncate ends "
            "the log before the first one"
        )
    if dry_run:
        return "dry run, nothing was changed: omit --dry-run to repair"
    return "damage is left: --action drop-damaged or --action truncate drops the lost records"


def _unread(damages: Sequence[Damage]) -> str:
    """Return what to do if nothing is wrong but an archive that cannot be read; else nothing."""
    from stratalog.log.check.verify import UNREAD
    from stratalog.store.tier.tiers import ANOTHER_ARCHIVE

    if all(damage.reason.startswith(UNREAD) for damage in damages):
        return f"a repair does not help; {ANOTHER_ARCHIVE}"
    return ""


def damage_facts(damage: Damage) -> dict[str, Any]:
    """Return a damaged range for JSON; offsets are those of the records lost to it."""
    facts = asdict(damage)
    for name in ("first_offset", "last_offset"):
        facts[name] = facts[name] if facts[name] >= 0 else None
    return facts


def damage_table(damages: Sequence[Damage]) -> Table:
    """Return damaged ranges as a table."""
    table = Table("*~file", "->bytes", ">offsets lost", "~why")
    for damage in damages:
        end = damage.end - 1 if damage.end > damage.start else ""
        table.add(
            damage.path,
            "-" if damage.start < 0 else f"{damage.start}-{end}",
            lost_offsets(damage),
            damage.reason,
        )
    return table


def lost_offsets(damage: Damage) -> str:
    """Return the offsets lost to a damage as text."""
    first, last = damage.first_offset, damage.last_offset
    if first < 0 or last < first:
        return "none" if damage.derived else "unknown"
    return str(first) if first == last else f"{first}-{last}"


def _report_facts(
    report: RepairReport, topic: str, partition: int, action: Action | None, dry_run: bool
) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": partition,
        "action": None if action is None else action.value,
        "dry_run": dry_run,
        "actions": list(report.actions),
        "lost": [damage_facts(damage) for damage in report.lost],
        "lost_records": report.lost_records,
        "left": [damage_facts(damage) for damage in report.left],
    }


def _show_lost(done: Sequence[tuple[int, RepairReport]], topic: str, what: str) -> None:
    table = damage_table([damage for _, report in done for damage in report.lost])
    if table.rows:
        counts = [report.lost_records for _, report in done if report.lost]
        known = sum(count for count in counts if count is not None)
        count = (
            f"{known:,}" if None not in counts else f"{known:,} or more" if known else "an unknown number of"
        )
        table.footer = f"{count} {'record' if counts == [1] else 'records'} of {topic} {what}"
        show(table)
