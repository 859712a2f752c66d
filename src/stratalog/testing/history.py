"""What a log was asked to keep and what it acknowledged: the judge of every crash test.

A `LogHistory` records, for one partition, what is about to be appended (`begin`), what was acknowledged
(`acknowledge`, and how durable), and after a restart what is there (`settle`). It raises `HistoryError`
when a promise is broken:

- acknowledged records are there after a killed process; after a power cut those acknowledged as synced;
- whatever is there is exactly what was appended, at the offset it was given, and nothing else is;
- what is missing is missing at the end: no record stands behind one that was lost;
- an offset that is empty was given out once and lost, holds a marker, or is below the log's start;
- the next offset is never one that a surviving client of this history has seen.

One writer at a time: what is begun and not acknowledged may be there or not, wholly or its first records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stratalog.model import Header, Record


class HistoryError(AssertionError):
    """A promise of the log was broken."""


class Fact(NamedTuple):
    """What identifies a record, wherever it went."""

    value: bytes | None
    key: bytes | None
    timestamp: int | None
    headers: tuple[Header, ...] = ()

    @classmethod
    def of(cls, record: Record) -> Fact:
        return cls(record.value, record.key, record.timestamp, tuple(record.headers))


@dataclass(slots=True)
class LogHistory:
    """One partition's past. `copy` it before trying several futures."""

    name: str = ""
    given: dict[int, Fact] = field(default_factory=dict)
    """Records acknowledged and not known to be lost, by offset."""
    markers: set[int] = field(default_factory=set)
    """Offsets of acknowledged transaction markers."""
    lost: set[int] = field(default_factory=set)
    """Offsets given out once whose records a power cut took."""
    end: int = 0
    """The next offset."""
    durable_end: int = 0
    """Everything acknowledged below this was acknowledged as durable."""
    start: int = 0
    """The acknowledged log start offset."""
    pending: tuple[Fact, ...] = ()
    pending_marker: bool = False
    pending_start: int | None = None

    def copy(self) -> LogHistory:
        return LogHistory(
            self.name,
            dict(self.given),
            set(self.markers),
            set(self.lost),
            self.end,
            self.durable_end,
            self.start,
            self.pending,
            self.pending_marker,
            self.pending_start,
        )

    # -- while it runs -------------------------------------------------------------------------------

    def begin(self, facts: Iterable[Fact] = (), *, marker: bool = False, start: int | None = None) -> None:
        """Note a request that is about to be made: records, a marker, or a new log start offset."""
        self.pending, self.pending_marker, self.pending_start = tuple(facts), marker, start

    def acknowledge(self, offset: int, *, synced: bool) -> None:
        """Note that the pending request succeeded; its first record, or the marker, is at ``offset``."""
        if offset != self.end:
            self._fail(f"offset {offset} was acknowledged where {self.end} was next")
        for at, fact in enumerate(self.pending):
            self.given[offset + at] = fact
        self.end = offset + len(self.pending)
        if self.pending_marker:
            self.markers.add(offset)
            self.end = offset + 1
        if synced:
            self.durable_end = self.end
        self.begin()

    def acknowledge_flush(self) -> None:
        """Note that everything so far was acknowledged as durable."""
        self.durable_end = self.end
        self.begin()

    def acknowledge_start(self, start: int) -> None:
        """Note that the log start offset was moved."""
        self.start = max(self.start, start)
        self._forget_below(self.start)
        self.begin()

    def saw(self, end: int) -> None:
        """Note that a reader saw everything below ``end`` where acknowledgements wait for the disk."""
        self.durable_end = max(self.durable_end, end)

    # -- what is there -------------------------------------------------------------------------------

    def check_visible(self, found: Sequence[Record], *, up_to: int | None = None) -> None:
        """Check what a reader of the running log got: every record so far, or those below ``up_to``."""
        wanted = {at: fact for at, fact in self.given.items() if up_to is None or at < up_to}
        self._check_order(found)
        self._check_equal({record.offset: Fact.of(record) for record in found}, wanted)
        missing = wanted.keys() - {record.offset for record in found}
        if missing:
            self._fail(f"offsets {_some(missing)} are not shown")

    def settle(
        self,
        found: Sequence[Record],
        *,
        start: int,
        end: int,
        markers: Collection[int] = (),
        power_cut: bool,
    ) -> None:
        """Check what a restart found, then continue from it.

        ``start`` and ``end`` are the log's own, ``markers`` the offsets of transaction markers on disk.
        """
        # A log of which nothing was synced may be gone as a whole: it goes on where it was to go on.
        emptied = power_cut and start == end and self.durable_end <= self.start
        if start not in (self.start, self.pending_start) and not emptied:
            self._fail(f"the log starts at {start}; {self.start} was acknowledged")
        self._forget_below(start)
        self._check_order(found)
        there = {record.offset: Fact.of(record) for record in found}
        if there and not start <= min(there) <= max(there) < end:
            self._fail(f"records from {min(there)} to {max(there)} in a log from {start} to {end}")
        wanted = dict(self.given)
        wanted.update({self.end + at: fact for at, fact in enumerate(self.pending)})
        self._check_equal(there, wanted)
        present = there.keys() | set(markers)
        missing = (self.given.keys() | self.markers) - present
        if missing and not power_cut:
            self._fail(f"acknowledged offsets {_some(missing)} are lost")
        gone = {at for at in missing if at < self.durable_end}
        if gone:
            self._fail(f"offsets {_some(gone)}, acknowledged as synced, are lost")
        if missing and present and min(missing) < max(present):
            self._fail(f"offset {max(present)} is there and {min(missing)}, acknowledged before it, is not")
        if end < self.durable_end or (not power_cut and end < self.end):
            self._fail(
                f"the log ends at {end}; offsets below {self.end} ({self.durable_end} synced) are taken"
            )
        self.lost |= missing
        empty = set(range(start, end)) - present - self.lost
        if empty:
            self._fail(f"offsets {_some(empty)} are empty and were never given out")
        self.start = start
        self.given = there
        self.markers = set(markers)
        self.end = end
        if power_cut:
            self.durable_end = end
        self.begin()

    def _forget_below(self, start: int) -> None:
        self.given = {at: fact for at, fact in self.given.items() if at >= start}
        self.markers = {at for at in self.markers if at >= start}

    def _check_order(self, found: Sequence[Record]) -> None:
        last = -1
        for record in found:
            if record.offset <= last:
                self._fail(f"offset {record.offset} comes after {last}")
            last = record.offset

    def _check_equal(self, there: Mapping[int, Fact], wanted: Mapping[int, Fact]) -> None:
        for at, fact in there.items():
            known = wanted.get(at)
            if known is None:
                self._fail(f"offset {at} holds {fact}, which was not appended there")
            if known != fact:
                self._fail(f"offset {at} holds {fact}, not {known}")

    def _fail(self, what: str) -> None:
        raise HistoryError(f"{self.name}: {what}")


def _some(offsets: Collection[int]) -> str:
    ordered = sorted(offsets)
    text = ", ".join(str(at) for at in ordered[:5])
    return f"{text} … {ordered[-1]}" if len(ordered) > 5 else text
