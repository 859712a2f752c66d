"""When a compacted partition is cleaned, how far, and how often: pure functions and frozen values.

Kafka's rules (LogCleanerManager, LogToClean), ``cleaner.min.segment.age.ms`` and the estimate of
duplicates, which are ours, and two brakes: compaction must not feed itself. `Effort` keeps the store's
cleaning to its share of the time, `Backoff` leaves alone a partition that had nothing to give.

The log as the cleaner sees it, local segments only::

    log start        first dirty offset      first uncleanable offset          end
      |  clean: cleaned before  |  cleanable: dirty, may go  |  dirty, must wait  |

Both ends of the cleanable part are those of whole segments, except that a round which ran out of memory for
keys may have stopped inside a segment; that segment counts as dirty. Touches nothing. `Effort` and `Backoff`
live in memory: after a restart the first round may come a little early, and a cleaning more is all it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stratalog.config.topic import TopicConfig
from stratalog.config.units import format_bytes, format_duration_ms
from stratalog.log.policy.retention import SegmentFacts, moment, newest_ms, with_upper

MAX_DUPLICATE_RATIO = 0.3
MAX_BACKOFF_S = 3600.0
_MIN_BACKOFF_S = 1.0
_ALMOST_NOTHING = 0.01


class Cleanable(NamedTuple):
    """What a cleaning of one partition could do now.

    ``clean_bytes``      of the segments below the first dirty offset.
    ``cleanable_bytes``  of those a cleaning would clean for the first time.
    ``must_clean``       a cleanable record waits longer than max.compaction.lag.ms, by ``overdue_ms``.
    ``uncleanable_why``  what stops the cleaner at the first uncleanable offset, for people.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    dirty_ratio: float
    must_clean: bool
    uncleanable_why: str
    overdue_ms: int = 0


def cleanable(
    config: TopicConfig,
    segments: Sequence[SegmentFacts],
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    log_start_offset: int,
    now_ms: int,
) -> Cleanable:
    """Return how far cleaning may go. ``first_dirty_offset`` is the cleaner's checkpoint.

    A checkpoint before the log's start, or past its end because the end was lost, is replaced by the start.
    """
    local = [(segment, upper) for segment, upper in with_upper(segments) if segment.local]
    if not local:
        return Cleanable(first_dirty_offset, first_dirty_offset, 0, 0, 0.0, False, "no segment is here")
    start = max(log_start_offset, local[0][0].base_offset)
    end = local[-1][1]
    first_dirty = first_dirty_offset if start <= first_dirty_offset <= end else start
    dirty = [(segment, upper) for segment, upper in local if upper > first_dirty]
    allowed = 0
    why = "nothing is dirty behind it"
    for segment, upper in dirty:
        stop = _stop(config, segment, upper, last_stable_offset, now_ms)
        if stop is not None:
            why = stop
            break
        allowed += 1
    going = dirty[:allowed]
    clean_bytes = sum(segment.size_bytes for segment, upper in local if upper <= first_dirty)
    cleanable_bytes = sum(segment.size_bytes for segment, _ in going)
    total = clean_bytes + cleanable_bytes
    overdue_ms = max((_overdue_ms(config, segment, now_ms) for segment, _ in going), default=0)
    return Cleanable(
        first_dirty,
        going[-1][1] if going else first_dirty,
        clean_bytes,
        cleanable_bytes,
        cleanable_bytes / total if total else 0.0,
        overdue_ms > 0,
        why,
        overdue_ms,
    )


def wants_cleaning(config: TopicConfig, cleanable: Cleanable, *, duplicate_ratio: float | None) -> str | None:
    """Return why the partition should be cleaned, for people, or None.

    ``duplicate_ratio``: the estimated share of all records up to the first uncleanable offset that a cleaning
    would drop; None when not estimated.
    """
    if not config.compact or cleanable.cleanable_bytes == 0:
        return None
    if cleanable.must_clean:
        late = format_duration_ms(cleanable.overdue_ms)
        limit = format_duration_ms(config.max_compaction_lag_ms)
        return f"a record waits {late} longer than max.compaction.lag.ms, which is {limit}"
    if cleanable.dirty_ratio > config.min_cleanable_dirty_ratio:
        total = cleanable.clean_bytes + cleanable.cleanable_bytes
        return (
            f"{cleanable.dirty_ratio:.0%} of the log is dirty ({format_bytes(cleanable.cleanable_bytes)} of "
            f"{format_bytes(total)}), min.cleanable.dirty.ratio is {config.min_cleanable_dirty_ratio:.0%}"
        )
    if duplicate_ratio is not None and duplicate_ratio > MAX_DUPLICATE_RATIO:
        return (
            f"an estimated {duplicate_ratio:.0%} of the records are superseded by later ones, "
            f"the limit is {MAX_DUPLICATE_RATIO:.0%}"
        )
    return None


@dataclass(frozen=True, slots=True)
class Effort:
    """The store's limit for the time spent cleaning.

    After a round of r seconds the next one waits r * (1 - ratio) / ratio, for log.cleaner.max.time.ratio.
    Partitions cleaned side by side are one round. All times are monotonic seconds.
    """

    max_time_ratio: float
    rest_until_s: float = float("-inf")

    def may_start(self, now_s: float) -> float:
        """Return 0.0 when a round may start, else the seconds to wait; infinity when the ratio is 0."""
        return float("inf") if self.max_time_ratio <= 0 else max(0.0, self.rest_until_s - now_s)

    def after(self, run_seconds: float, now_s: float) -> Effort:
        """Return the state after a round that took ``run_seconds`` and ended now."""
        if self.max_time_ratio <= 0:
            return self
        rest_s = max(0.0, run_seconds) * (1 - self.max_time_ratio) / self.max_time_ratio
        return replace(self, rest_until_s=max(self.rest_until_s, now_s + rest_s))


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long one partition is left alone after a round that removed almost nothing.

    ``backoff_ms``  log.cleaner.backoff.ms: the first wait. Each further fruitless round doubles it, up to an
                    hour; a fruitful one ends it. So does new dirty data, half as much as was cleaned.
    """

    backoff_ms: int
    wait_s: float = 0.0
    not_before_s: float = float("-inf")
    cleaned_bytes: int = 0
    dirty_left_bytes: int = 0

    def after(
        self, *, bytes_before: int, bytes_after: int, now_s: float, dirty_left_bytes: int = 0
    ) -> Backoff:
        """Return the state after a round over ``bytes_before`` that ended now and left ``bytes_after``.

        A failed round removed nothing. ``dirty_left_bytes``: what is still cleanable, because it is damaged
        or there was no time.
        """
        fruitless = bytes_before - bytes_after < bytes_before * _ALMOST_NOTHING or bytes_before <= 0
        wait_s = 0.0
        if fruitless:
            first_s = max(self.backoff_ms / 1000, _MIN_BACKOFF_S)
            wait_s = min(max(first_s, 2 * self.wait_s), max(first_s, MAX_BACKOFF_S))
        return replace(
            self,
            wait_s=wait_s,
            not_before_s=now_s + wait_s,
            cleaned_bytes=max(0, bytes_before),
            dirty_left_bytes=dirty_left_bytes,
        )

    def may_start(self, now_s: float, *, dirty_bytes: int) -> float:
        """Return 0.0 when the partition may be cleaned, else the seconds to wait.

        ``dirty_bytes``: the current `Cleanable.cleanable_bytes`.
        """
        new_bytes = dirty_bytes - self.dirty_left_bytes
        if self.cleaned_bytes > 0 and 2 * new_bytes >= self.cleaned_bytes:
            return 0.0
        return max(0.0, self.not_before_s - now_s)


def _stop(
    config: TopicConfig, segment: SegmentFacts, upper: int, last_stable_offset: int, now_ms: int
) -> str | None:
    """Return why cleaning ends before this segment, or None."""
    base = segment.base_offset
    if segment.active:
        return f"the segment from offset {base} on is active"
    if upper > last_stable_offset:
        return f"the segment from offset {base} on reaches past the last stable offset {last_stable_offset}"
    newest = newest_ms(segment, now_ms)
    lag_ms = config.min_compaction_lag_ms
    if lag_ms > 0 and newest is not None and newest > now_ms - lag_ms:
        return (
            f"the segment from offset {base} on has a record of {moment(newest)}, "
            f"min.compaction.lag.ms is {format_duration_ms(lag_ms)}"
        )
    name, age_ms = "cleaner.min.segment.age.ms", config.cleaner_min_segment_age_ms
    if config.max_compaction_lag_ms < age_ms:  # who asks for less than an hour does not want to wait for one
        name, age_ms = "max.compaction.lag.ms", config.max_compaction_lag_ms
    written = segment.modified_ms if segment.modified_ms is not None else newest
    if age_ms > 0 and written is not None and written > now_ms - age_ms:
        return (
            f"the segment from offset {base} on was last written {moment(written)}, "
            f"{name} is {format_duration_ms(age_ms)}"
        )
    return None


def _overdue_ms(config: TopicConfig, segment: SegmentFacts, now_ms: int) -> int:
    """Return by how much a segment's oldest record is past max.compaction.lag.ms; 0 when it is not."""
    for time_ms in (segment.min_timestamp, segment.max_timestamp, segment.modified_ms):
        if time_ms is not None and time_ms > 0:
            return max(0, now_ms - time_ms - config.max_compaction_lag_ms)
    return 0
