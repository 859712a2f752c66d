"""Whether the wall clock can be believed: retention is wall time, and a jump of the clock must not delete.

Pure values again: the owner of the clocks passes both readings to `ClockGuard.observe` before each round of
deletions (the more often the better) and keeps the guard it gets back. Two things follow:

- **Pause.** When the wall clock ran ahead of the monotonic one by more than five minutes, deletion by
  time pauses and `paused` says why. It goes on once the two have agreed for an hour of monotonic time, or
  at once after `accept`. A clock that went back deletes less, not more: `notice` tells, nothing pauses.
- **Correction.** While a clock is behind it stamps records and files too old; once it is set right they
  would look expired at once. The same happens to honest stamps when the clock then jumps ahead. So the guard
  remembers which wall times were given in which stretch between two jumps, and `corrected` moves such
  times by what the clock jumped since. Thus whatever the wall clock did, what was written while the guard
  watched is no older than the monotonic clock says, give or take the few minutes that count as no jump;
  its deletion may come late by the sum of the jumps, never early.

A machine that slept looks like a clock that ran ahead unless the monotonic clock counts sleep. Nothing
survives the process: what a clock did between two processes is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from stratalog.config.units import format_duration_ms
from stratalog.log.policy.retention import SegmentFacts, moment

TOLERANCE_MS = 5 * 60_000
HEAL_AFTER_S = 3600.0
_MAX_STRETCHES = 64


class Stretch(NamedTuple):
    """A time between two jumps.

    ``from_ms``, ``to_ms``  the wall times it gave out.
    ``lead_ms``             the wall clock minus the monotonic one at its first reading.
    ``low_ms``              the least of that in the whole stretch.
    ``since_s``             the monotonic time of its first reading.
    """

    from_ms: int
    to_ms: int
    lead_ms: int
    low_ms: int
    since_s: float

    @classmethod
    def begin(cls, wall_ms: int, monotonic_s: float) -> Stretch:
        lead_ms = _lead_ms(wall_ms, monotonic_s)
        return cls(wall_ms, wall_ms, lead_ms, lead_ms, monotonic_s)


@dataclass(frozen=True, slots=True)
class ClockGuard:
    """What was seen of the two clocks. ``ClockGuard()`` has seen nothing and believes the first reading.

    ``trusted_lead_ms``  the wall clock minus the monotonic one when they were last believed.
    ``current``          the stretch since the last jump.
    ``earlier``          those before it, oldest first.
    """

    trusted_lead_ms: int | None = None
    current: Stretch | None = None
    earlier: tuple[Stretch, ...] = ()
    wall_ms: int = 0
    monotonic_s: float = 0.0

    def observe(self, wall_ms: int, monotonic_s: float) -> ClockGuard:
        """Add one reading of both clocks, taken at the same moment."""
        lead_ms = _lead_ms(wall_ms, monotonic_s)
        current, earlier, trusted = self.current, self.earlier, self.trusted_lead_ms
        if current is None or trusted is None:
            current, trusted = Stretch.begin(wall_ms, monotonic_s), lead_ms
        elif abs(lead_ms - current.lead_ms) > TOLERANCE_MS:
            # The jump came somewhere since the last reading: both stretches may have given times in between.
            unseen_ms = round((monotonic_s - self.monotonic_s) * 1000)
            ended = current._replace(to_ms=max(current.to_ms, self.wall_ms + unseen_ms))
            earlier = _bounded((*earlier, ended))
            current = Stretch.begin(wall_ms, monotonic_s)._replace(from_ms=wall_ms - unseen_ms)
        else:
            current = current._replace(
                from_ms=min(current.from_ms, wall_ms),
                to_ms=max(current.to_ms, wall_ms),
                low_ms=min(current.low_ms, lead_ms),
            )
            if monotonic_s - current.since_s >= HEAL_AFTER_S:
                trusted = current.lead_ms
        return ClockGuard(trusted, current, earlier, wall_ms, monotonic_s)

    def accept(self) -> ClockGuard:
        """Trust the wall clock as it is now, and every time it ever gave."""
        if self.current is None:
            return self
        current = Stretch.begin(self.wall_ms, self.monotonic_s)
        return replace(self, trusted_lead_ms=current.lead_ms, current=current, earlier=())

    @property
    def ahead_ms(self) -> int:
        """How far the wall clock ran ahead of the monotonic one since it was trusted; negative: behind."""
        if self.trusted_lead_ms is None:
            return 0
        return _lead_ms(self.wall_ms, self.monotonic_s) - self.trusted_lead_ms

    @property
    def now_ms(self) -> int:
        """The wall clock as far as it is trusted: never ahead of what the monotonic clock allows.

        For deadlines that a jump must not bring forward either, such as that of a tombstone.
        """
        return self.wall_ms - max(0, self.ahead_ms) if self.paused else self.wall_ms

    @property
    def paused(self) -> str | None:
        """Why nothing may be deleted by its age now, for people; None when it may."""
        if self.ahead_ms <= TOLERANCE_MS or self.current is None:
            return None
        heals_s = max(0.0, self.current.since_s + HEAL_AFTER_S - self.monotonic_s)
        return (
            f"the wall clock says {moment(self.wall_ms)}, {format_duration_ms(self.ahead_ms)} ahead of the "
            f"monotonic clock: it jumped, or the machine slept; deletion by time goes on when both agreed "
            f"for {format_duration_ms(round(HEAL_AFTER_S * 1000))}, in "
            f"{format_duration_ms(round(heals_s) * 1000)} at the earliest"
        )

    @property
    def notice(self) -> str | None:
        """What is wrong with the clock, paused or not; None when nothing is."""
        if self.ahead_ms >= -TOLERANCE_MS:
            return self.paused
        return (
            f"the wall clock says {moment(self.wall_ms)}, {format_duration_ms(-self.ahead_ms)} behind the "
            f"monotonic clock: it was set back; what is deleted by time goes later"
        )

    def corrected(self, segment: SegmentFacts) -> SegmentFacts:
        """Move the times of a segment from before the clock's jumps to where they belong now."""
        if not self.earlier:
            return segment
        return segment._replace(
            max_timestamp=self._moved(segment.max_timestamp), modified_ms=self._moved(segment.modified_ms)
        )

    def _moved(self, time_ms: int | None) -> int | None:
        """Return the latest time that the present clock could have given instead."""
        if time_ms is None or self.current is None:
            return time_ms
        lead_ms = max(self.current.lead_ms, _lead_ms(self.wall_ms, self.monotonic_s))
        moved = time_ms
        for stretch in self.earlier:
            if stretch.from_ms - TOLERANCE_MS <= time_ms <= stretch.to_ms + TOLERANCE_MS:
                moved = max(moved, time_ms + lead_ms - stretch.low_ms)
        return moved


def _bounded(stretches: tuple[Stretch, ...]) -> tuple[Stretch, ...]:
    """Merge the oldest two stretches when there are too many."""
    if len(stretches) <= _MAX_STRETCHES:
        return stretches
    a, b, *rest = stretches
    merged = a._replace(
        from_ms=min(a.from_ms, b.from_ms), to_ms=max(a.to_ms, b.to_ms), low_ms=min(a.low_ms, b.low_ms)
    )
    return (merged, *rest)


def _lead_ms(wall_ms: int, monotonic_s: float) -> int:
    return wall_ms - round(monotonic_s * 1000)
