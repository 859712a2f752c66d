"""What lifecycle work did or would do, for people and for programs: tables of steps, one line of summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stratalog.cli.console import Column, Table, is_terminal, note, show
from stratalog.cli.exit_codes import ExitCode
from stratalog.config.units import format_bytes, format_duration_ms

if TYPE_CHECKING:
    from stratalog.log.policy.preview import Step
    from stratalog.store.lifecycle.reports import LifecycleReport

MOST_ROWS = 40
"""On a terminal; a pipe gets every row."""

_VERBS = {
    "roll": ("seal {}", "sealed {}", "idle segment"),
    "delete": ("delete {}", "deleted {}", "segment"),
    "drop-local": ("leave {} to the archive", "left {} to the archive", "segment"),
    "drop-archive": ("take {} out of the archive", "took {} out of the archive", "segment"),
    "compact": ("compact {}", "compacted {}", "partition"),
    "archive": ("archive {}", "archived {}", "segment"),
}
_FREEING = frozenset({"delete", "drop-local"})


def facts(report: LifecycleReport) -> dict[str, Any]:
    """A report for programs."""
    freed = sum(step.size_bytes for step in report.steps if step.due and step.action in _FREEING)
    return {
        "preview": report.preview,
        "steps": [{**step.to_json(), "due": step.due} for step in report.steps],
        "freed_bytes": freed,
        "compactions": [dict(each) for each in report.compactions],
        "notes": list(report.notes),
    }


def outcome(report: LifecycleReport) -> ExitCode:
    """How a run ends: damage that compaction went around, work that was left, or all done."""
    if any(each.get("quarantined") for each in report.compactions):
        return ExitCode.CORRUPTION
    return ExitCode.UNFINISHED if report.notes and not report.preview else ExitCode.OK


def show_report(report: LifecycleReport, now_ms: int) -> None:
    """Tables on stdout: the steps, and what compaction did. Notes and a summary on stderr."""
    steps = [step for step in report.steps if report.preview or step.due or step.action == "skip"]
    if steps:
        show(steps_table(steps, report, now_ms))
    if report.compactions:
        if steps:
            print()
        show(compactions_table(report.compactions))
    for line in report.notes:
        note(f"note: {line}")
    for each in report.compactions:
        for damage in each.get("quarantined", ()):
            note(f"damaged, compaction went around it: {damage['path']} ({damage['reason']})")
    note(summary(report, now_ms))


def steps_table(steps: Sequence[Step], report: LifecycleReport, now_ms: int) -> Table:
    """What goes or went, when, how many bytes, the first offset lost, and why."""
    table = Table(
        [
            Column("partition", style="bold"),
            Column("what"),
            Column("offsets", right=True),
            Column("size", right=True),
            Column("when", right=True),
            Column("lost from", right=True),
            Column("why", fold=True),
        ]
    )
    shown = steps
    if is_terminal(sys.stdout) and len(steps) > MOST_ROWS + 5:
        shown = steps[:MOST_ROWS]
        table.footer = f"and {len(steps) - MOST_ROWS:,} more; --json lists them all"
    for step in shown:
        table.add(
            f"{step.topic}-{step.partition}",
            step.action,
            f"{step.base_offset}-{max(step.base_offset, step.next_offset - 1)}",
            format_bytes(step.size_bytes),
            _when(step, report, now_ms),
            "" if step.first_offset_lost is None else str(step.first_offset_lost),
            step.why,
        )
    return table


def compactions_table(compactions: Sequence[Any]) -> Table:
    """Each compacted partition, before and after."""
    table = Table(
        [
            Column("partition", style="bold"),
            Column("segments", right=True),
            Column("records", right=True),
            Column("size", right=True),
            Column("tombstones dropped", right=True),
            Column("passes", right=True),
            Column("took", right=True),
        ]
    )
    for each in compactions:
        table.add(
            f"{each['topic']}-{each['partition']}",
            f"{each['segments_before']:,} → {each['segments_after']:,}",
            f"{each['records_before']:,} → {each['records_after']:,}",
            f"{format_bytes(each['bytes_before'])} → {format_bytes(each['bytes_after'])}",
            f"{each['tombstones_dropped']:,}",
            str(each["passes"]),
            format_duration_ms(round(each["seconds"] * 1000)),
        )
    return table


def summary(report: LifecycleReport, now_ms: int) -> str:
    """One line: ``deleted 3 segments (1.2 GiB), compacted 1 partition (4.0 GiB)``."""
    due = [step for step in report.steps if step.due]
    if not due:
        skipped = sum(step.action == "skip" for step in report.steps)
        return f"nothing to do now{f', {skipped} put off' if skipped else ''}{_coming(report, now_ms)}"
    parts = []
    sure = due if report.preview else [step for step in due if not _noted(step, report)]
    for action, (would, did, thing) in _VERBS.items():
        chosen = [step for step in sure if step.action == action]
        if chosen:
            size = format_bytes(sum(step.size_bytes for step in chosen))
            count = f"{len(chosen):,} {thing}{'' if len(chosen) == 1 else 's'} ({size})"
            parts.append((would if report.preview else did).format(count))
    said = ", ".join(parts)
    if report.preview:
        return f"would {said}; a preview, nothing was changed"
    open_ends = len(
        {(step.topic, step.partition) for step in report.steps if step.due and _noted(step, report)}
    )
    left = f"{open_ends} partition{'' if open_ends == 1 else 's'} not finished, see the notes"
    return ", ".join(part for part in (said, left if open_ends else "") if part)


def _when(step: Step, report: LifecycleReport, now_ms: int) -> str:
    if step.action == "skip":
        return "not now"
    if step.when_ms is not None:
        return f"in {format_duration_ms(max(0, step.when_ms - now_ms) // 1000 * 1000)}"
    if report.preview:
        return "now"
    return "see note" if _noted(step, report) else "done"


def _noted(step: Step, report: LifecycleReport) -> bool:
    """Whether a note says how far this partition came: the round goes on when one of them fails."""
    name = f"{step.topic}-{step.partition}: "
    return any(line.startswith(name) for line in report.notes)


def _coming(report: LifecycleReport, now_ms: int) -> str:
    later = [step for step in report.steps if step.when_ms is not None and step.action != "skip"]
    if not later:
        return ""
    first = min(later, key=lambda step: step.when_ms or 0)
    return (
        f"; next to go is {first.topic}-{first.partition} up to offset {first.next_offset - 1} "
        f"({format_bytes(first.size_bytes)}), {_when(first, report, now_ms)}"
    )
