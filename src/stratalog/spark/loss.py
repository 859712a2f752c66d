"""Offsets that a query was promised and the log no longer has: an error, or a report of what is missing.

Gaps that compaction and transactions leave are not losses; only what lies before the log's start or past
its end is.
"""

from __future__ import annotations

import logging

from stratalog.errors import OffsetOutOfRangeError
from stratalog.spark.offsets import Pair

logger = logging.getLogger("stratalog.spark")


class Losses:
    """What ``failOnDataLoss`` decides."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail

    def within(self, pair: Pair, start: int, end: int, first: int, visible: int) -> tuple[int, int]:
        """The part of [start, end) that is there; the rest is lost."""
        if start >= end:
            return start, start
        if start < first:
            self.lost(pair, start, min(first, end), first, visible)
            start = min(first, end)
        if end > visible:
            self.lost(pair, max(start, visible), end, first, visible)
            end = max(start, visible)
        return start, end

    def lost(self, pair: Pair, start: int, end: int, first: int, visible: int) -> None:
        """Offsets [start, end) are gone; raises unless told to go on."""
        gone = (
            f"{pair[0]}-{pair[1]}: offsets {start} to {end - 1} are not there;"
            f" the log holds {first} to {visible} (the end is not included)"
        )
        if self.fail:
            raise OffsetOutOfRangeError(
                f"{gone}\noption 'failOnDataLoss': it is true, takes false to go on without them",
                offset=start,
                first=first,
                end=visible,
            )
        logger.warning("data loss: %s", gone)
