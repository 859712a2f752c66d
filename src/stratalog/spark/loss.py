"""Offsets that a query was promised and the log no longer has: an error, or a report of what is missing.

Gaps that compaction and transactions leave are not losses; only what lies before the log's start or past
its end is.
"""

from __future__ import annotations

import logging

from stratalog.errors import OffsetOutOfRangeError, UnknownPartitionError, UnknownTopicError
from stratalog.spark.offsets import Pair

logger = logging.getLogger("stratalog.spark")

GONE = (UnknownTopicError, UnknownPartitionError, FileNotFoundError)
"""What finding a partition that was deleted ends in."""


class Losses:
    """What ``failOnDataLoss`` decides."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._told: set[str] = set()

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
        if gone not in self._told:  # a stream asks again and again
            self._told.add(gone)
            logger.warning("data loss: %s", gone)

    def lost_partition(self, pair: Pair, start: int) -> None:
        """A partition that was read up to ``start`` is not there any more; raises unless told to go on."""
        gone = f"{pair[0]}-{pair[1]}: it is not there any more; offsets up to {start} were read"
        if self.fail:
            raise UnknownPartitionError(
                f"{gone}\noption 'failOnDataLoss': it is true, takes false to go on without it"
            )
        if gone not in self._told:
            self._told.add(gone)
            logger.warning("data loss: %s", gone)
