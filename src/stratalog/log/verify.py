"""Checking a partition to the last byte, changing nothing.

Every batch: its CRC, its form, each record in it, its place among the offsets. Every seal: its own CRC and
the CRCs and facts it states. Every index entry: that it meets its batch and keeps its promise. Behind
damage the walk finds its feet again, so one bad byte costs one batch, and each `Damage` names the bytes
and the offsets lost, which follow from the batches before and after.

Works on any `LogView`, also beside a running writer: a segment that is replaced or removed meanwhile is
looked up again and never taken for damage. What lies past a live segment's readable end is not judged: a
torn tail is not corruption. Nothing here is written, so a crash has nothing to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stratalog.errors import FormatError
from stratalog.format import producer_snapshot
from stratalog.log.damage import UNKNOWN, Damage, derived_damage, reason_of
from stratalog.log.listing import list_files
from stratalog.log.names import SNAPSHOT, parse_file, segment_name
from stratalog.log.reader import LogView
from stratalog.log.verify_segment import CheckedSegment, check_segment
from stratalog.log.verify_sidecars import Transactions

Check = Callable[[int], CheckedSegment | None]

LOOKS = 5
"""So often is a segment looked at that changes, or is gone, while it is checked."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and what is wrong with it."""

    segments: int = 0
    bytes: int = 0
    records: int = 0
    damages: tuple[Damage, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.damages

    def merge(self, other: VerifyReport) -> VerifyReport:
        """Both together."""
        return VerifyReport(
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.records + other.records,
            self.damages + other.damages,
        )


def verify_partition(view: LogView, *, progress: Callable[[int], None] | None = None) -> VerifyReport:
    """Read every byte of a partition and check it; ``progress`` gets bytes as they go by."""
    found: list[Damage] = []
    segments = size = records = 0
    for checked in check_segments(view, progress):
        segments += 1
        size += checked.segment.size
        records += checked.records
        found += checked.damages
    found += check_snapshots(view)
    return VerifyReport(segments, size, records, tuple(found))


def check_segments(
    view: LogView,
    progress: Callable[[int], None] | None = None,
    *,
    check: Check | None = None,
) -> Iterator[CheckedSegment]:
    """Every segment of a view, in order, checked by itself and against the one before it.

    ``check`` checks one by itself, given its base offset; whoever did that before knows the answer.
    """
    check = check or (lambda base_offset: check_standing_still(view, base_offset, progress))
    view.refresh()
    before: CheckedSegment | None = None
    transactions: Transactions | None = None
    done = UNKNOWN
    while True:
        segment = next((each for each in view.segments() if each.base_offset > done), None)
        if segment is None:
            break
        checked = check(segment.base_offset)
        done = segment.base_offset
        if checked is None:
            continue  # removed while we looked: not damage
        if transactions is None:
            transactions = Transactions(checked.segment)
        transactions.check(checked)
        if before is not None:
            _check_gap(view, before, checked)
            yield before
        before = checked
    if before is not None:
        yield before


def check_standing_still(
    view: LogView, base_offset: int, progress: Callable[[int], None] | None = None
) -> CheckedSegment | None:
    """Check one segment by itself; what looks damaged while it is being replaced is looked at again.

    None when it was removed meanwhile.
    """
    checked: CheckedSegment | None = None
    for _ in range(LOOKS):
        segment = next((each for each in view.segments() if each.base_offset == base_offset), None)
        if segment is None:
            return None
        try:
            inode = segment.inode()
            checked = check_segment(segment, progress)
            checked.inode = inode
            if not checked.damages or segment.inode() == inode:
                return checked
        except FileNotFoundError:
            checked = None
        segment.forget()
        view.refresh()
    if checked is None and segment is not None:
        checked = CheckedSegment(segment, at_rest=False, next_offset=segment.base_offset)
        last = max(segment.next_offset or 0, segment.base_offset) - 1
        first = segment.base_offset if last >= segment.base_offset else UNKNOWN
        checked.log.append(
            Damage(segment.path(), 0, UNKNOWN, first, max(last, UNKNOWN), "the file is missing")
        )
    return checked


def _check_gap(view: LogView, before: CheckedSegment, after: CheckedSegment) -> None:
    """A segment that was never cleaned must be followed by one that begins where it ends."""
    seal, segment = before.seal, before.segment
    if seal is None or not seal.contiguous:
        return
    end, base = max(seal.last_offset + 1, segment.base_offset), after.segment.base_offset
    if end >= base:
        return
    view.refresh()
    if all(each.base_offset != segment.base_offset for each in view.segments()):
        return  # the head of the log was deleted while we looked
    try:
        if segment.inode() != before.inode:
            return  # it was replaced by one that reaches further
    except FileNotFoundError:
        return
    path = f"{segment.directory}/{segment_name(end)}.log"
    reason = f"no segment holds these offsets: one ends at {end}, the next begins at {base}"
    before.log.append(Damage(path, UNKNOWN, UNKNOWN, end, base - 1, reason))


def check_snapshots(view: LogView) -> list[Damage]:
    """The producer snapshots, which must parse."""
    segments = view.segments()
    if not segments:
        return []
    fs, directory = segments[0].context.fs, view.directory
    try:
        listed = list_files(fs, directory)
    except (FileNotFoundError, NotADirectoryError):
        return []  # nothing but the archive is left of it
    found = []
    for name in listed:
        parsed = parse_file(name)
        path = f"{directory}/{name}"
        if parsed is None or parsed.kind != SNAPSHOT or parsed.suffix:
            continue
        try:
            producer_snapshot.parse(fs.read_file(path))
        except FileNotFoundError:
            continue
        except FormatError as error:
            found.append(derived_damage(path, reason_of(error)))
    return found


__all__ = [
    "CheckedSegment",
    "Damage",
    "VerifyReport",
    "check_segments",
    "check_snapshots",
    "check_standing_still",
    "verify_partition",
]
