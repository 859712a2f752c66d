"""One partition's next steps: the policies put together, in the order the janitor carries them out.

Pure functions of a `Situation`, so that a preview is what the janitor then does. Steps of one plan do not
depend on each other's effects: what is deleted is neither compacted nor copied, and what compaction is about
to rewrite is not uploaded first. What a step makes possible (a rolled segment can expire, a copied one can
leave this machine) comes with the next plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.config import TopicConfig
from stratalog.config.units import format_bytes, format_duration_ms
from stratalog.log.policy import preview
from stratalog.log.policy.cleaning import Cleanable, cleanable, wants_cleaning
from stratalog.log.policy.clock import ClockGuard
from stratalog.log.policy.preview import Step
from stratalog.log.policy.retention import (
    Expiry,
    SegmentFacts,
    archive_turned_off,
    expired,
    local_expired,
    newest_ms,
    next_expiry,
    roll_why,
    to_archive,
    with_upper,
)
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.follower import LiveSegment
from stratalog.log.segment.segment import Segment
from stratalog.log.write.segment_list import of_segments
from stratalog.model import SegmentState
from stratalog.store.catalog import View


class Situation(NamedTuple):
    """All that the policies need to know of one partition, read at one moment.

    ``segments``            local and archived, each once, in order, the active one last.
    ``first_dirty_offset``  the cleaner's checkpoint; None when it has none.
    ``duplicate_ratio``     an estimate; None when there is none.
    ``cleaner_wait_s``      how long the brakes on cleaning make it wait.
    ``clock``               what is known of the wall clock.
    """

    topic: str
    partition: int
    config: TopicConfig
    segments: Sequence[SegmentFacts]
    now_ms: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    first_dirty_offset: int | None = None
    duplicate_ratio: float | None = None
    cleaner_enable: bool = True
    cleaner_wait_s: float = 0.0
    clock: ClockGuard = ClockGuard()

    @property
    def facts(self) -> list[SegmentFacts]:
        """The segments with the times that the clock's jumps made too old put right."""
        return [self.clock.corrected(segment) for segment in self.segments]

    @property
    def believed_ms(self) -> int:
        """Now, as far as the clock is believed: what cleaning goes by, its tombstones too."""
        return min(self.now_ms, self.clock.now_ms) if self.clock.paused else self.now_ms


def plan(at: Situation) -> list[Step]:
    """Return everything there is to do for one partition, in the order it is done."""
    gone = retain_steps(at)
    rest = _without(at, gone)
    dropped = drop_local_steps(rest)
    rest = _without(rest, dropped)
    compacting = compact_steps(rest)
    return gone + dropped + compacting + archive_steps(rest, compacting)


def retain_steps(at: Situation, *, forecast: bool = True) -> list[Step]:
    """Return what retention does: rolls an idle active segment, deletes, and says what goes next and when.

    While the clock is not believed, what only time would delete is skipped.
    """
    paused, segments = at.clock.paused, at.facts
    if not segments:
        return []
    steps: list[Step] = []
    why = roll_why(at.config, segments[-1], at.now_ms)
    if why is not None:
        steps.append(preview.roll_step(at.topic, at.partition, segments[-1], why))
    going = _expired(at, segments)
    sure = len(_expired(at, segments, by_time=False)) if paused else len(going)
    deletions = preview.expiry_steps(at.topic, at.partition, going, log_start_offset=at.log_start_offset)
    if paused:
        steps = [preview.skipped(step, paused) for step in steps]
        deletions[sure:] = [preview.skipped(step, paused) for step in deletions[sure:]]
    steps += deletions + _turned_off(at, segments)
    return steps + (_forecast(at, segments, going) if forecast else [])


def drop_local_steps(at: Situation) -> list[Step]:
    """Return what leaves this machine and stays in the archive."""
    going = local_expired(at.config, at.facts, at.now_ms, by_time=at.clock.paused is None)
    return preview.local_steps(at.topic, at.partition, going)


def compact_steps(at: Situation, *, force: bool = False) -> list[Step]:
    """At most one step: the cleaning of everything up to the first uncleanable offset.

    ``force`` cleans whatever is cleanable, however little, without waiting.
    """
    if not at.config.compact or not (at.cleaner_enable or force):
        return []
    found = cleanable_of(at)
    why = wants_cleaning(at.config, found, duplicate_ratio=at.duplicate_ratio)
    if why is None and force and found.cleanable_bytes:
        why = f"{format_bytes(found.cleanable_bytes)} are dirty, and compaction was requested"
    if why is None:
        return []
    base = min((s.base_offset for s in at.segments if s.local), default=found.first_dirty_offset)
    step = preview.compact_step(at.topic, at.partition, base, found, why)
    if at.cleaner_wait_s > 0 and not force:
        step = preview.skipped(step, _rest(at.cleaner_wait_s))
    return [step]


def compact_plan(at: Situation, *, force: bool = False) -> list[Step]:
    """Return the steps of `compact_steps`; a ``skip`` with the reason if there are only dirty records."""
    steps = compact_steps(at, force=force)
    if steps or not at.config.compact:
        return steps
    found = cleanable_of(at)
    dirty = [each for each, upper in with_upper(at.facts) if each.local and upper > found.first_dirty_offset]
    size_bytes = sum(segment.size_bytes for segment in dirty)
    if not size_bytes:
        return []
    if not (at.cleaner_enable or force):
        why = "log.cleaner.enable is false"
    elif not found.cleanable_bytes:
        why = found.uncleanable_why
    else:
        least = at.config.min_cleanable_dirty_ratio
        why = f"{found.dirty_ratio:.0%} of the log can be cleaned, min.cleanable.dirty.ratio is {least:.0%}"
    first, end = found.first_dirty_offset, max(found.first_dirty_offset, at.high_watermark)
    step = Step("compact", at.topic, at.partition, first, end, size_bytes, None, "records are dirty")
    return [preview.skipped(step, why)]


def archive_steps(at: Situation, compacting: Sequence[Step] = ()) -> list[Step]:
    """Return what is copied to the archive, but for what a ``compact`` step of the same plan rewrites."""
    rewritten = max((step.next_offset for step in compacting if step.due), default=-1)
    going = to_archive(
        at.config,
        at.facts,
        last_stable_offset=at.last_stable_offset,
        first_dirty_offset=at.first_dirty_offset if at.cleaner_enable else at.last_stable_offset,
        now_ms=at.now_ms,
    )
    ready = [segment for segment in going if segment.base_offset >= rewritten]
    return preview.archive_steps(at.topic, at.partition, ready)


def archive_plan(at: Situation) -> list[Step]:
    """Return what a round of archiving does: drop local copies, then copy what compaction leaves alone."""
    return [*drop_local_steps(at), *archive_steps(at, compact_steps(at))]


def cleanable_of(at: Situation) -> Cleanable:
    """Return how far cleaning may go now, and how much there is of it."""
    first_dirty = at.first_dirty_offset
    return cleanable(
        at.config,
        at.facts,
        first_dirty_offset=at.log_start_offset if first_dirty is None else first_dirty,
        last_stable_offset=at.last_stable_offset,
        log_start_offset=at.log_start_offset,
        now_ms=at.believed_ms,
    )


def overdue(at: Situation) -> tuple[int, int | None] | None:
    """Return the base offset of the oldest expired segment, and how long it is past due (ms)."""
    going = _expired(at, at.facts)
    if not going:
        return None
    oldest, late = going[0].segment, going[0].overdue_ms
    newest = newest_ms(oldest, at.now_ms)
    if late is None and newest is not None and at.config.delete and at.config.retention_ms >= 0:
        late = max(0, at.now_ms - newest - at.config.retention_ms) or None
    return oldest.base_offset, late


def _expired(at: Situation, segments: Sequence[SegmentFacts], *, by_time: bool = True) -> list[Expiry]:
    return expired(
        at.config,
        segments,
        at.now_ms,
        log_start_offset=at.log_start_offset,
        high_watermark=at.high_watermark,
        by_time=by_time,
    )


def _turned_off(at: Situation, segments: Sequence[SegmentFacts]) -> list[Step]:
    """Copies that leave the archive because it was turned off for this topic."""
    going = archive_turned_off(at.config, segments)
    return preview.expiry_steps(at.topic, at.partition, going, log_start_offset=at.log_start_offset)


def _forecast(at: Situation, segments: Sequence[SegmentFacts], going: Sequence[Expiry]) -> list[Step]:
    """Return what time takes next, as a step that is not due yet."""
    coming = next_expiry(
        at.config,
        segments,
        at.now_ms,
        log_start_offset=at.log_start_offset,
        high_watermark=at.high_watermark,
    )
    if coming is None or any(expiry.segment.base_offset == coming[0].base_offset for expiry in going):
        return []
    return [
        preview.upcoming_step(
            at.topic,
            at.partition,
            coming,
            at.config.retention_ms,
            log_start_offset=at.log_start_offset,
        )
    ]


def _without(at: Situation, steps: Sequence[Step]) -> Situation:
    """Return the partition once the steps are done, as far as they take something away."""
    deleted = {step.base_offset for step in steps if step.due and step.action == "delete"}
    dropped = {step.base_offset for step in steps if step.due and step.action == "drop-local"}
    segments = [
        segment._replace(state=SegmentState.ARCHIVED) if segment.base_offset in dropped else segment
        for segment in at.segments
        if segment.base_offset not in deleted
    ]
    start = max(at.log_start_offset, segments[0].base_offset if segments else 0)
    return at._replace(segments=segments, log_start_offset=start)


def _rest(wait_s: float) -> str:
    if math.isinf(wait_s):
        return "log.cleaner.max.time.ratio leaves no time for it"
    return f"cleaning rests for another {format_duration_ms(math.ceil(wait_s) * 1000)}"


def facts_of(view: View, is_archived: Callable[[Segment], bool] | None = None) -> list[SegmentFacts]:
    """Return the facts of every segment, the active one last.

    ``is_archived`` tells whether the archive has a verified copy of a local segment, just as it is now.
    """
    return of_segments(view, lambda segment: _facts(segment, is_archived))


def _facts(segment: Segment, is_archived: Callable[[Segment], bool] | None) -> SegmentFacts:
    info = segment.full_info() if isinstance(segment, LiveSegment) else segment.info()
    remote = info.state is SegmentState.ARCHIVED
    return SegmentFacts(
        base_offset=segment.base_offset,
        next_offset=info.next_offset,
        size_bytes=segment.size,
        state=info.state,
        records=info.records,
        min_timestamp=info.min_timestamp,
        max_timestamp=info.max_timestamp,
        modified_ms=modified_ms(segment),
        archived=remote or (is_archived is not None and not segment.is_active and is_archived(segment)),
        cleaned=info.state is SegmentState.COMPACTED,
    )


def modified_ms(segment: Segment) -> int | None:
    """Return when the segment's log was last written to; None when it is gone."""
    if isinstance(segment, ArchivedSegment):
        return segment.source.modified_ms
    try:
        return segment.context.fs.stat(segment.path()).mtime_ns // 1_000_000
    except FileNotFoundError:
        return None
