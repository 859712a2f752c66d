"""Offsets missing between two neighbouring segments: damage, unless the log was cleaned there.

Every way of reading asks `check_joined` when it goes from one segment to the next, so that a segment that was
lost or emptied is named and never passed over. A gap is allowed where it can be meant:

* The seal of the segment before it is not contiguous: the segment was cleaned, a repair gave offsets up, or
  recovery skipped offsets after a power cut.
* The segment has no seal (it is another broker's, or the seal was lost) and the cleaner may have run: the log
  directory's `cleaner-offset-checkpoint` names the partition, which Kafka writes there when it has cleaned
  it; or the headers of a neighbour show it. Kafka's cleaner keeps the base and last offset of a batch that it
  takes records from, so the batch holds fewer records than offsets; batches that it drops leave gaps inside a
  segment. A segment that it cleaned to nothing has an empty time index; one that held records with a
  timestamp when it was closed has at least one entry there.

Deleting records and retention only move the start of a log; they leave no gap. Reads only.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from stratalog.errors import CorruptionError, FormatError
from stratalog.format import checkpoints
from stratalog.log.check.damage import UNKNOWN, Damage
from stratalog.log.names import segment_name
from stratalog.log.segment.segment import Segment, scan_file

if TYPE_CHECKING:
    from stratalog.log.read.reader import LogView


def check_complete(segments: Sequence[Segment], start: int, end: int) -> None:
    """Raise CorruptionError if any of the offsets [start, end) is missing between or behind the segments."""
    for segment, following in zip_longest(segments, segments[1:]):
        lost = missing_between(segment, following, start, end)
        if lost is not None:
            raise CorruptionError(lost.reason, path=lost.path)


def check_joined(view: LogView, segment: Segment, following: Segment | None, start: int, end: int) -> None:
    """Raise CorruptionError if any of the offsets [start, end) is missing between two neighbours of a view.

    Without ``following`` the segment is the last one and must reach ``end``.
    """
    lost = missing_in(view, segment, following, start, end)
    if lost is not None:
        raise CorruptionError(lost.reason, path=lost.path)


def missing_in(
    view: LogView, segment: Segment, following: Segment | None, start: int, end: int
) -> Damage | None:
    """Return the offsets that `check_joined` would raise for; None when nothing is missing.

    A gap counts only if the view, looking again, still shows it. Raise FileNotFoundError otherwise: the
    segments were archived, replaced or deleted since they were listed. Local segments are deleted before
    the archive drops those below them, so that a gap below the log start is no damage.
    """
    lost = missing_between(segment, following, start, end)
    if lost is None:
        return None
    view.refresh()
    bases = [each.base_offset for each in view.segments()]
    wanted = [segment.base_offset, *([] if following is None else [following.base_offset])]
    at = bases.index(wanted[0]) if wanted[0] in bases else len(bases)
    if bases[at : at + 2] != wanted or view.log_start_offset > lost.first_offset:
        raise FileNotFoundError(segment.path())
    return lost


def missing_between(segment: Segment, following: Segment | None, start: int, end: int) -> Damage | None:
    """Return the offsets that are missing between two segments as they are; None when none is."""
    goes_on = end if following is None else following.base_offset
    if goes_on <= start or segment.base_offset >= end:
        return None
    first = segment.batches_end_offset()
    if max(first, start) >= min(goes_on, end) or (following is not None and _gap_allowed(segment, following)):
        return None
    return lost_behind(segment, first, goes_on, last=following is None)


def lost_behind(segment: Segment, first: int, goes_on: int, *, last: bool = False) -> Damage:
    """Name the offsets from ``first`` to ``goes_on`` that are missing behind a segment."""
    behind = "no segment follows" if last else f"the next one begins at {goes_on}"
    reason = (
        f"offsets {first}-{goes_on - 1} are missing: the segment before them ends at {first}, {behind};"
        " `stratalog repair TOPIC --action drop-damaged` accepts the loss"
    )
    path = posixpath.join(segment.directory, f"{segment_name(first)}.log")
    return Damage(path, UNKNOWN, UNKNOWN, first, goes_on - 1, reason)


def _gap_allowed(segment: Segment, following: Segment) -> bool:
    if segment.is_active:
        return False
    seal = segment.seal
    if seal is not None:
        return not seal.contiguous
    if in_cleaner_checkpoint(segment) or (segment.size == 0 and segment.sidecar("timeindex") == b""):
        return True
    return _shows_cleaning(segment) or _shows_cleaning(following)


def in_cleaner_checkpoint(segment: Segment) -> bool:
    """Return True if the cleaner of a broker has been at the partition, by the log directory's checkpoint."""
    path = posixpath.join(posixpath.dirname(segment.directory), checkpoints.CLEANER)
    try:
        entries = checkpoints.parse_offsets(segment.context.fs.read_file(path))
    except (FileNotFoundError, FormatError):
        return False
    return (segment.topic, segment.partition) in entries


def _shows_cleaning(segment: Segment) -> bool:
    """True if a batch of the segment holds fewer records than offsets, or does not join the one before it."""
    expect = -1
    with segment.open_log() as file:
        for _, _, scan in scan_file(file, 0, segment.size):
            if scan.n == 0:
                break
            if not scan.is_dense or expect not in (-1, scan.first_base_offset):
                return True
            expect = scan.last_offset + 1
    return False
