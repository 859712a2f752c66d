"""How fast cleaning may go, how far it is, and whether it should stop: one object for a whole round.

Time spent waiting is real time, whatever the log's clock says; nothing else here touches the outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 0.1
"""The longest wait before somebody is asked again whether to stop."""


class StopCleaningError(Exception):
    """The round was asked to stop. What is swapped in stays, the rest is as it was before."""


class Pace:
    """Counts the bytes read and written; waits where they would pass ``io_bytes_per_s``."""

    def __init__(
        self,
        io_bytes_per_s: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        limited = io_bytes_per_s is not None and 0 < io_bytes_per_s < float(1 << 62)
        self._rate = io_bytes_per_s if limited else None
        self._progress = progress
        self._stop = stop
        self._began = time.monotonic()
        self._moved = 0
        self.bytes_read = 0
        self.total_bytes = 0
        """What there is to read, as far as it is known: the whole for `progress`."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def plan(self, bytes_left: int) -> None:
        """So much is left to read, as far as anybody knows now."""
        self.total_bytes = self.bytes_read + bytes_left
        self._tell()

    def read(self, size: int) -> None:
        """So many bytes of the log were read."""
        self.bytes_read += size
        self._tell()
        self._wait(size)

    def wrote(self, size: int) -> None:
        self._wait(size)

    def check(self) -> None:
        """Raise when the round should stop."""
        if self._stop is not None and self._stop():
            raise StopCleaningError

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(min(self.bytes_read, self.total_bytes), self.total_bytes)

    def _wait(self, size: int) -> None:
        self.check()
        if self._rate is None:
            return
        self._moved += size
        due = self._began + self._moved / self._rate
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, PAUSE_S))
            self.check()
