"""A clock that tests move: for roll, flush and retention by time, and for runs that repeat exactly."""

from __future__ import annotations

import itertools

START_MS = 2_000_000_000_000


class ManualClock:
    """Wall and monotonic time that tests move; see ``stratalog.log.context.Clock``."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms
        self._jumped_ms = 0
        self._ticks = itertools.count()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return (self._now_ms - self._jumped_ms) / 1000

    def now_ns(self) -> int:
        """Return a modification time for a filesystem; it rises with each call."""
        return self._now_ms * 1_000_000 + next(self._ticks)

    def advance(self, ms: int) -> None:
        """Time passes."""
        self._now_ms += ms

    def jump(self, ms: int) -> None:
        """Move the wall clock ahead or back; no time passes."""
        self._now_ms += ms
        self._jumped_ms += ms
