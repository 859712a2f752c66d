"""The segments of a partition that is being written: local ones, archived ones, and where the log starts.

Values are replaced whole, never changed in place: a reader takes a tuple and keeps it. Changes are serialised
by the partition's lock. Touches no disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TypeVar

from stratalog.format.txn_index import AbortedTxn
from stratalog.log.read.reader import MAX_RELISTS, LogView, segment_index
from stratalog.log.segment.segment import Segment

T = TypeVar("T")


class SegmentList:
    """The segments that readers of a written log use, in offset order; the last of ``local`` is active."""

    __slots__ = ("cold", "deleted_to", "local", "log_start_offset")

    def __init__(self, local: Sequence[Segment], log_start_offset: int, deleted_to: int) -> None:
        self.local = tuple(local)
        self.cold: tuple[Segment, ...] = ()
        """Archived segments, ascending. A segment that is also local is read from the local file."""
        self.log_start_offset = log_start_offset
        self.deleted_to = deleted_to
        """Records below this offset were deleted, whatever segments are there. It never goes back."""

    def all(self) -> tuple[Segment, ...]:
        """Return the archived segments below the local ones, then the local ones."""
        local = self.local  # first: a segment leaves it only after it is among the archived ones
        return with_cold(self.cold, local) if self.cold else local

    def holds(self, segment: Segment) -> bool:
        """Return True if the very same segment is still listed."""
        for listed in (self.local, self.cold):
            if listed and listed[segment_index(listed, segment.base_offset)] is segment:
                return True
        return False

    def sealed_below(self, offset: int) -> list[Segment]:
        """Return the local sealed segments that lie wholly below ``offset``."""
        return [
            segment
            for segment in self.local[:-1]
            if segment.next_offset is not None and segment.next_offset <= offset
        ]

    def hide(self, gone: Sequence[Segment]) -> None:
        """Take local segments out of the list."""
        self.local = tuple(segment for segment in self.local if segment not in gone)

    def start_at(self, offset: int) -> None:
        """Move the log start offset up; archived segments wholly below it are no longer listed."""
        self.log_start_offset = offset
        self.deleted_to = max(self.deleted_to, offset)
        self.cold = self._left(self.cold)

    def replace(self, olds: Sequence[Segment], news: Sequence[Segment]) -> None:
        """Put ``news`` in the place of ``olds``, a run of sealed segments."""
        at = self.local.index(olds[0])
        after = self.local[at + len(olds) :]
        for segment, following in pairwise((*news, after[0])):
            segment.next_offset = following.base_offset
        self.local = (*self.local[:at], *news, *after)

    def attach_cold(self, cold: Sequence[Segment], deleted_to: int, high_watermark: int) -> None:
        """Set the archived segments, and up to where the archive knows that records were deleted."""
        self.deleted_to = max(self.deleted_to, min(deleted_to, high_watermark))
        self.cold = self._left(cold)
        self.log_start_offset = max(self.all()[0].base_offset, min(self.deleted_to, high_watermark))

    def _left(self, cold: Sequence[Segment]) -> tuple[Segment, ...]:
        """Return those that hold more than deleted records."""
        return tuple(each for each in cold if each.next_offset is None or each.next_offset > self.deleted_to)

    def archived(self, start: int, end: int) -> bool:
        """Return True if the archive holds all offsets of [start, end) that the log still shows."""
        at = max(start, self.log_start_offset)
        for segment in self.cold:
            if segment.base_offset <= at:
                at = max(at, segment.next_offset or 0)
        return at >= end


def with_cold(cold: tuple[Segment, ...], local: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Return the archived segments below the local ones, then the local ones."""
    if not cold:
        return local
    base = local[0].base_offset if local else 2**63 - 1
    below = tuple(segment for segment in cold if segment.base_offset < base)
    return (*below, *local)


def of_segments(view: LogView, tell: Callable[[Segment], T]) -> list[T]:
    """Return ``tell(segment)`` for every segment; start again if one was removed or replaced meanwhile."""
    for _ in range(MAX_RELISTS):
        segments = view.segments()
        with suppress(FileNotFoundError):
            found = [tell(segment) for segment in segments]
            if segments[:-1] == view.segments()[: len(segments) - 1]:
                return found
        view.refresh()
    return [tell(segment) for segment in view.segments()]


def aborted_in(segments: Sequence[Segment], start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions that overlap [start, end).

    A transaction may begin in one segment and be aborted in a later one, whose index then lists it: so every
    segment from the one with ``start`` on is read.
    """
    found: list[AbortedTxn] = []
    for segment in segments:
        if segment.next_offset is None or segment.next_offset > start:
            found += [txn for txn in segment.aborted() if txn.last_offset >= start and txn.first_offset < end]
    return found
