"""``stratalog lifecycle``: the numbers that show a leak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.cli.console import Column, Table, note, show, show_json
from stratalog.cli.session import (
    OptionalTopic,
    Session,
    command,
)
from stratalog.config.units import format_bytes, format_duration_ms
from stratalog.errors import UnknownTopicError
from stratalog.model import SegmentState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.store.lifecycle.reports import PartitionNumbers

_ORDER = {str(state): at for at, state in enumerate(SegmentState)}


@command
def lifecycle(session: Session, topic: OptionalTopic = None) -> None:
    """Segments, bytes and files of each partition by state, and what should have gone by now.

    A partition that stays past due, or whose deleted files stay, leaks.
    """
    with session.look() as client:
        numbers = client.lifecycle()
    if topic is not None:
        numbers = [each for each in numbers if each.topic == topic]
        if not numbers:
            raise UnknownTopicError(f"no topic {topic}")
    if session.json:
        show_json([facts(each) for each in numbers])
        return
    show(numbers_table(numbers))
    for each in numbers:
        name = f"{each.topic}-{each.partition}"
        if each.torn_files:
            note(f"{name}: {each.torn_files:,} .torn files, what crashes left behind a cut; yours to remove")
        for path in each.quarantined:
            note(f"{name}: compaction goes around {path}, which is damaged; `stratalog repair` can help")


def facts(numbers: PartitionNumbers) -> dict[str, Any]:
    """A partition's numbers for programs."""
    return numbers.to_json()


def numbers_table(numbers: Sequence[PartitionNumbers]) -> Table:
    """A row for each partition and state; what is past due stands in the partition's first row."""
    table = Table(
        [
            Column("topic", style="bold"),
            Column("partition", right=True),
            Column("state"),
            Column("segments", right=True),
            Column("size", right=True),
            Column("files", right=True),
            Column("oldest deletable", right=True),
            Column("past due", right=True),
        ]
    )
    for each in numbers:
        due = "" if each.oldest_deletable is None else str(each.oldest_deletable)
        late = "" if each.overdue_ms is None else format_duration_ms(each.overdue_ms)
        for state, counted in sorted(each.states.items(), key=lambda item: _ORDER.get(item[0], 99)):
            table.add(
                each.topic,
                str(each.partition),
                state,
                f"{counted.segments:,}",
                format_bytes(counted.size_bytes),
                f"{counted.files:,}",
                due,
                late,
            )
            due = late = ""
    table.footer = _footer(numbers)
    return table


def _footer(numbers: Sequence[PartitionNumbers]) -> str:
    here = [row for each in numbers for state, row in each.states.items() if state != SegmentState.ARCHIVED]
    there = [each.states[SegmentState.ARCHIVED] for each in numbers if SegmentState.ARCHIVED in each.states]
    segments, files = sum(row.segments for row in here), sum(row.files for row in here)
    size = format_bytes(sum(row.size_bytes for row in here))
    said = f"{segments:,} segment{'' if segments == 1 else 's'}, {size}, {files:,} files"
    if there:
        size = format_bytes(sum(row.size_bytes for row in there))
        said += f"; {sum(row.segments for row in there):,} more, {size}, only in the archive"
    waiting = sum(each.oldest_deletable is not None for each in numbers)
    if waiting:
        said += f"; {waiting:,} partition{'' if waiting == 1 else 's'} past due: `stratalog retain --preview`"
    return said
