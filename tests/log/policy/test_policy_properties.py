"""What must hold for any log, any settings and any clock.

No decision touches the active segment, nothing inside its limits goes, what goes is a run from the oldest
segment on, and a wall clock that jumps both ways never makes anything go early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from stratalog.config.topic import TopicConfig
from stratalog.log.policy import (
    ClockGuard,
    Expiry,
    SegmentFacts,
    archive_turned_off,
    cleanable,
    expired,
    local_expired,
    newest_ms,
    next_expiry,
    to_archive,
)
from stratalog.log.policy.clock import TOLERANCE_MS
from stratalog.log.policy.preview import archive_steps, expiry_steps, local_steps
from stratalog.log.policy.retention import roll_why
from stratalog.model import SegmentState
from tests.log.policy.policy_cases import (
    ACTIVE,
    ARCHIVED,
    CASES,
    DAY,
    HOUR,
    LOGS,
    LONG_MAX,
    MINUTE,
    NOW,
    Case,
    segment,
)


def gone(
    case: Case, config: TopicConfig | None = None, *, now_ms: int = NOW, by_time: bool = True
) -> list[Expiry]:
    return expired(
        config or case.config,
        case.segments,
        now_ms,
        log_start_offset=case.start,
        high_watermark=case.high,
        by_time=by_time,
    )


def upper(segments: Sequence[SegmentFacts], index: int) -> int:
    return segments[index + 1].base_offset if index + 1 < len(segments) else segments[index].next_offset


def in_its_time(facts: SegmentFacts, limit_ms: int) -> bool:
    """Whether a segment is inside ``limit_ms``, said another way than the policy does."""
    if limit_ms < 0:
        return True
    stamped = facts.max_timestamp if facts.max_timestamp is not None and facts.max_timestamp >= 0 else None
    written = facts.modified_ms
    if stamped is None:
        return written is None or NOW - written <= limit_ms
    if stamped <= NOW:
        return NOW - stamped <= limit_ms
    return written is None or NOW - min(stamped, written) <= limit_ms


@given(CASES)
def test_a_run_from_the_oldest_on_without_the_active_one(case: Case) -> None:
    found = gone(case)
    assert [expiry.segment for expiry in found] == case.segments[: len(found)]
    for index, expiry in enumerate(found):
        assert expiry.segment.state is not ACTIVE
        assert upper(case.segments, index) <= case.high
        assert expiry.reason in expiry.detail


@given(CASES)
def test_nothing_inside_its_limits_goes_and_nothing_outside_them_stays(case: Case) -> None:
    config, segments = case.config, case.segments
    sealed = sum(not facts.active for facts in segments)

    def within(index: int) -> bool:
        if upper(segments, index) <= case.start:
            return False
        if not config.delete:
            return True
        rest_bytes = sum(facts.size_bytes for facts in segments[index + 1 :])
        return (
            in_its_time(segments[index], config.retention_ms)
            and not 0 <= config.retention_bytes <= rest_bytes
            and not 0 <= config.retention_segments <= sealed - index - 1
        )

    found = gone(case)
    assert not any(within(index) for index in range(len(found)))
    kept = len(found)
    if kept < len(segments) and not segments[kept].active and upper(segments, kept) <= case.high:
        assert within(kept)


@given(CASES)
def test_the_limits_together_take_what_each_alone_takes_in_turns_and_no_more(case: Case) -> None:
    """In Kafka's order, until nothing is left to take: one look here is as good as all of Kafka's rounds."""
    off = replace(case.config, retention_ms=-1, retention_bytes=-1, retention_segments=-1)
    alone = (
        off,
        replace(off, retention_bytes=case.config.retention_bytes),
        replace(off, retention_ms=case.config.retention_ms),
        replace(off, retention_segments=case.config.retention_segments),
    )
    rest, before = case, None
    while rest != before:
        before = rest
        for config in alone:
            rest = rest._replace(segments=rest.segments[len(gone(rest, config)) :])
    found = gone(case)
    assert len(found) >= max(len(gone(case, config)) for config in alone)
    assert case.segments[len(found) :] == rest.segments
    assert gone(rest) == []


@given(CASES)
def test_a_clock_that_is_not_believed_takes_only_less(case: Case) -> None:
    found = gone(case, by_time=False)
    assert len(found) <= len(gone(case))
    assert found == gone(case, replace(case.config, retention_ms=-1))


@given(CASES, st.integers(0, 20 * DAY))
def test_what_goes_next_goes_then_and_not_a_millisecond_before(case: Case, retention_ms: int) -> None:
    config = replace(case.config, cleanup_policy=frozenset({"delete"}), retention_ms=retention_ms)
    coming = next_expiry(config, case.segments, NOW, log_start_offset=case.start, high_watermark=case.high)
    rest = case.segments[len(gone(case, config)) :]
    if coming is None:
        for facts in rest[:1]:
            kept_anyway = facts.active or upper(rest, 0) > case.high
            assert kept_anyway or newest_ms(facts, NOW) in (None, LONG_MAX)
        return
    facts, when_ms = coming
    assert rest[0] == facts
    assert not facts.active
    assert when_ms > NOW
    left = case._replace(segments=rest)
    assert gone(left, config, now_ms=when_ms - 1) == []
    assert gone(left, config, now_ms=when_ms) != []


@given(CASES)
def test_only_an_overdue_active_segment_is_rolled(case: Case) -> None:
    for facts in case.segments:
        if not roll_why(case.config, facts, NOW):
            continue
        assert facts.active
        assert facts.size_bytes > 0
        local_ms = case.config.local_retention_ms if case.config.remote_storage_enable else -1
        by_log = case.config.delete and not in_its_time(facts, case.config.retention_ms)
        assert by_log or not in_its_time(facts, local_ms)


@given(CASES)
def test_copies(case: Case) -> None:
    up = to_archive(
        case.config,
        case.segments,
        last_stable_offset=case.stable,
        first_dirty_offset=case.dirty,
        now_ms=NOW,
    )
    assert case.config.remote_storage_enable or not up
    chosen = {facts.base_offset for facts in up}
    assert [facts.base_offset for facts in up] == sorted(chosen)
    skipping = True
    for index, facts in enumerate(case.segments):
        if facts.base_offset in chosen:
            assert facts.state in (SegmentState.SEALED, SegmentState.COMPACTED)
            assert not facts.archived
            assert upper(case.segments, index) <= case.stable
            assert not case.config.compact or upper(case.segments, index) <= case.dirty
            skipping = False
        elif not skipping and not facts.in_archive:
            assert not any(later.base_offset in chosen for later in case.segments[index:])
            break


@given(CASES)
def test_local_files_go_only_when_a_copy_stays(case: Case) -> None:
    found = local_expired(case.config, case.segments, NOW)
    here = [facts for facts in case.segments if facts.local]
    assert [expiry.segment for expiry in found] == here[: len(found)]
    for expiry in found:
        assert expiry.segment.archived
        assert not expiry.segment.active
        assert expiry.reason in expiry.detail
    if found and found[-1].reason == "local.retention.bytes":
        limit = case.config.local_retention_bytes
        limit = case.config.retention_bytes if limit == -2 else limit
        assert sum(facts.size_bytes for facts in here[len(found) :]) >= limit >= 0


@given(CASES)
def test_an_archive_that_is_turned_off_loses_every_copy_or_none(case: Case) -> None:
    found = [expiry.segment for expiry in archive_turned_off(case.config, case.segments)]
    off = case.config.remote_log_delete_on_disable and not case.config.remote_storage_enable
    assert found == [facts for facts in case.segments if off and facts.in_archive]


@given(CASES)
def test_cleaning_stays_between_the_first_dirty_offset_and_what_must_wait(case: Case) -> None:
    found = cleanable(
        case.config,
        case.segments,
        first_dirty_offset=case.dirty,
        last_stable_offset=case.stable,
        log_start_offset=case.start,
        now_ms=NOW,
    )
    low, high = found.first_dirty_offset, found.first_uncleanable_offset
    assert low <= high
    assert 0 <= found.dirty_ratio <= 1
    assert found.uncleanable_why
    touched = []
    for index, facts in enumerate(case.segments if low < high else []):
        if facts.local and facts.base_offset < high and upper(case.segments, index) > low:
            touched.append(facts)
            assert not facts.active
            assert upper(case.segments, index) <= case.stable
            newest = newest_ms(facts, NOW)
            lag_ms = case.config.min_compaction_lag_ms
            assert lag_ms == 0 or newest is None or NOW - newest >= lag_ms
    assert found.cleanable_bytes == sum(facts.size_bytes for facts in touched)
    if not touched:
        assert high == low
        assert not found.must_clean


@given(CASES)
def test_no_step_touches_the_active_segment(case: Case) -> None:
    config = case.config
    steps = expiry_steps("t", 0, gone(case), log_start_offset=case.start)
    steps += local_steps("t", 0, local_expired(config, case.segments, NOW))
    steps += archive_steps(
        "t",
        0,
        to_archive(
            config, case.segments, last_stable_offset=case.stable, first_dirty_offset=case.dirty, now_ms=NOW
        ),
    )
    sealed = {(facts.base_offset, facts.next_offset) for facts in case.segments if not facts.active}
    assert all((step.base_offset, step.next_offset) in sealed and step.due for step in steps)
    lost = [step.first_offset_lost for step in steps if step.first_offset_lost is not None]
    assert all(offset >= case.start for offset in lost)


class Written(NamedTuple):
    stamped_ms: int
    monotonic_ms: int


JUMPS = st.one_of(
    st.integers(-40 * DAY, 40 * DAY),
    st.integers(-4 * MINUTE, 4 * MINUTE),
    st.sampled_from([-30 * DAY, 30 * DAY]),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, 3 * DAY)),
        st.tuples(st.just("run"), st.integers(0, 2 * HOUR)),
        st.tuples(st.just("jump"), JUMPS),
        st.tuples(st.just("write"), st.just(0)),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(0, 8 * DAY), st.booleans())
def test_no_clock_makes_anything_go_early(
    events: list[tuple[str, int]], retention_ms: int, restamped: bool
) -> None:
    """Segments written under a clock that jumps, and a round of deletions after every event.

    ``restamped``: their records have no times and the file's decides. A round watches the clocks first, so at
    most one jump lies between two readings. Early by the minutes that are no jump is allowed, twice: down
    and up again.
    """
    config = TopicConfig(retention_ms=retention_ms)
    guard, wall_ms, monotonic_ms = ClockGuard().observe(NOW, 0.0), NOW, 0
    written: list[Written] = []
    for kind, amount in events:
        if kind == "run":
            wall_ms += amount
            monotonic_ms += amount
        elif kind == "jump":
            wall_ms = max(0, wall_ms + amount)
        else:
            written.append(Written(wall_ms, monotonic_ms))
        guard = guard.observe(wall_ms, monotonic_ms / 1000)
        assert guard.now_ms <= wall_ms
        for each in written:
            stamped = None if restamped else each.stamped_ms
            facts = segment(0, max_timestamp=stamped, modified_ms=each.stamped_ms)
            row = [guard.corrected(facts), segment(10, state=ACTIVE)]
            found = expired(
                config, row, wall_ms, log_start_offset=0, high_watermark=20, by_time=guard.paused is None
            )
            if found:
                assert monotonic_ms - each.monotonic_ms > retention_ms - 2 * TOLERANCE_MS


@given(EVENTS)
def test_a_clock_left_alone_is_believed_again_and_what_is_old_goes(events: list[tuple[str, int]]) -> None:
    guard, wall_ms, monotonic_ms = ClockGuard().observe(NOW, 0.0), NOW, 0
    jumped_ms = 0
    for kind, amount in events:
        if kind == "jump":
            wall_ms += amount
            jumped_ms += abs(amount)
        elif kind == "run":
            wall_ms += amount
            monotonic_ms += amount
        guard = guard.observe(wall_ms, monotonic_ms / 1000)
    stamped_ms = wall_ms
    rest_ms = 7 * DAY + jumped_ms + HOUR
    for _ in range(2):
        wall_ms += rest_ms
        monotonic_ms += rest_ms
        guard = guard.observe(wall_ms, monotonic_ms / 1000)
    assert guard.notice is None
    facts = guard.corrected(segment(0, max_timestamp=stamped_ms, modified_ms=stamped_ms))
    row = [facts, segment(10, state=ACTIVE)]
    assert expired(TopicConfig(), row, wall_ms, log_start_offset=0, high_watermark=20)


@given(LOGS)
def test_the_made_up_logs_are_logs(segments: list[SegmentFacts]) -> None:
    assert all(a.next_offset <= b.base_offset for a, b in pairwise(segments))
    assert [facts.active for facts in segments].count(True) <= 1
    assert all(facts.archived for facts in segments if facts.state is ARCHIVED)
