"""How far cleaning goes, when it starts, and what keeps it from feeding itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config.topic import TopicConfig
from stratalog.log.policy import Backoff, Cleanable, Effort, SegmentFacts, cleanable, wants_cleaning
from tests.log.policy.policy_cases import ACTIVE, ARCHIVED, DAY, HOUR, MINUTE, NOW, row, segment

CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}))


def clean(
    config: TopicConfig, segments: list[SegmentFacts], dirty: int = 0, *, stable: int = 10**6, start: int = 0
) -> Cleanable:
    return cleanable(
        config,
        segments,
        first_dirty_offset=dirty,
        last_stable_offset=stable,
        log_start_offset=start,
        now_ms=NOW,
    )


def test_up_to_the_active_segment() -> None:
    found = clean(CONFIG, row(DAY, DAY, DAY, DAY), dirty=10)
    assert found == Cleanable(10, 30, 100, 200, 200 / 300, False, "the segment from offset 30 on is active")


def test_never_past_the_last_stable_offset() -> None:
    found = clean(CONFIG, row(DAY, DAY, DAY), stable=19)
    assert found.first_uncleanable_offset == 10
    assert found.uncleanable_why == "the segment from offset 10 on reaches past the last stable offset 19"
    assert clean(CONFIG, row(DAY, DAY, DAY), stable=20).first_uncleanable_offset == 20
    assert clean(CONFIG, row(DAY, DAY, DAY), dirty=10, stable=5).first_uncleanable_offset == 10


def test_not_before_the_minimum_lag() -> None:
    config = replace(CONFIG, min_compaction_lag_ms=3 * DAY)
    found = clean(config, row(4 * DAY, 3 * DAY - 1, 5 * DAY, 0))
    assert (found.first_uncleanable_offset, found.cleanable_bytes) == (10, 100)
    assert found.uncleanable_why == (
        "the segment from offset 10 on has a record of 2025-12-29T00:00:00Z, min.compaction.lag.ms is 3d"
    )
    assert clean(config, row(4 * DAY, 3 * DAY, 5 * DAY, 0)).first_uncleanable_offset == 30


def test_not_before_the_segment_is_old_enough() -> None:
    segments = [segment(0, DAY), segment(10, 9 * DAY, modified_ms=NOW - HOUR + 1), segment(20, state=ACTIVE)]
    found = clean(CONFIG, segments)
    assert found.first_uncleanable_offset == 10
    assert found.uncleanable_why == (
        "the segment from offset 10 on was last written 2025-12-31T23:00:00Z, "
        "cleaner.min.segment.age.ms is 1h"
    )
    segments[1] = segments[1]._replace(modified_ms=NOW - HOUR)
    assert clean(CONFIG, segments).first_uncleanable_offset == 20


def test_a_shorter_maximum_lag_shortens_that_wait() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=10 * MINUTE)
    found = clean(config, row(20 * MINUTE, 5 * MINUTE, 0))
    assert (found.first_uncleanable_offset, found.must_clean) == (10, True)
    assert found.uncleanable_why.endswith("max.compaction.lag.ms is 10m")


def test_a_checkpoint_outside_the_log_is_replaced_by_its_start() -> None:
    assert clean(CONFIG, row(DAY, DAY, DAY), dirty=0, start=10).first_dirty_offset == 10
    assert clean(CONFIG, row(DAY, DAY, DAY), dirty=31).first_dirty_offset == 0
    assert clean(CONFIG, row(DAY, DAY, DAY), dirty=30) == Cleanable(
        30, 30, 300, 0, 0.0, False, "nothing is dirty behind it"
    )


def test_a_segment_cleaned_in_part_counts_as_dirty_once() -> None:
    found = clean(CONFIG, row(DAY, DAY, DAY), dirty=15)
    assert (found.first_dirty_offset, found.clean_bytes, found.cleanable_bytes) == (15, 100, 100)


def test_archived_segments_are_not_cleaned_here() -> None:
    segments = row(DAY, DAY, DAY)
    segments[0] = segments[0]._replace(state=ARCHIVED, archived=True)
    found = clean(CONFIG, segments)
    assert (found.first_dirty_offset, found.clean_bytes, found.cleanable_bytes) == (10, 0, 100)
    assert clean(CONFIG, segments[:1]).cleanable_bytes == 0
    assert clean(CONFIG, []).uncleanable_why == "no segment is here"


def test_maximum_lag() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=2 * DAY, min_cleanable_dirty_ratio=1.0)
    late = clean(config, row(4 * DAY, 3 * DAY, 0), dirty=10)
    assert (late.must_clean, late.overdue_ms) == (True, DAY + 1)
    assert wants_cleaning(config, late, duplicate_ratio=None) == (
        "a record waits 1d longer than max.compaction.lag.ms, which is 2d"
    )
    assert not clean(config, row(4 * DAY, 2 * DAY - 1, 0), dirty=10).must_clean
    unstamped = segment(0, 3 * DAY, min_timestamp=None, max_timestamp=-1)
    assert clean(config, [unstamped, segment(10, state=ACTIVE)]).must_clean
    assert not clean(config, [unstamped._replace(modified_ms=None), segment(10, state=ACTIVE)]).must_clean


def test_what_waits_behind_an_open_transaction_does_not_force_a_cleaning() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=2 * DAY)
    found = clean(config, row(3 * DAY, 3 * DAY, 0), stable=0)
    assert not found.must_clean


def test_the_dirty_ratio_must_be_exceeded() -> None:
    half = clean(CONFIG, row(DAY, DAY, 0), dirty=10)
    assert wants_cleaning(CONFIG, half, duplicate_ratio=None) is None
    assert wants_cleaning(replace(CONFIG, min_cleanable_dirty_ratio=0.4), half, duplicate_ratio=None) == (
        "50% of the log is dirty (100 B of 200 B), min.cleanable.dirty.ratio is 40%"
    )


def test_duplicates() -> None:
    half = clean(CONFIG, row(DAY, DAY, 0), dirty=10)
    assert wants_cleaning(CONFIG, half, duplicate_ratio=0.3) is None
    assert wants_cleaning(CONFIG, half, duplicate_ratio=0.45) == (
        "an estimated 45% of the records are superseded by later ones, the limit is 30%"
    )


def test_a_clean_log_and_a_topic_that_is_not_compacted_want_nothing() -> None:
    config = replace(CONFIG, min_cleanable_dirty_ratio=0.0, max_compaction_lag_ms=1)
    assert wants_cleaning(config, clean(config, row(DAY, DAY, 0), dirty=20), duplicate_ratio=0.9) is None
    full = clean(config, row(DAY, DAY, 0))
    assert wants_cleaning(config, full, duplicate_ratio=None) is not None
    assert wants_cleaning(replace(config, cleanup_policy=frozenset()), full, duplicate_ratio=0.9) is None


@pytest.mark.parametrize(("ratio", "rest"), [(0.5, 10.0), (0.25, 30.0), (1.0, 0.0)])
def test_effort(ratio: float, rest: float) -> None:
    fresh = Effort(ratio)
    assert fresh.may_start(0.0) == 0.0
    tired = fresh.after(10.0, 100.0)
    assert tired.may_start(100.0) == pytest.approx(rest)
    assert tired.may_start(100.0 + rest) == 0.0
    assert fresh.may_start(100.0) == 0.0


def test_no_effort_at_all() -> None:
    assert Effort(0.0).may_start(0.0) == float("inf")
    assert Effort(0.0).after(1.0, 1.0).may_start(10.0**9) == float("inf")


@given(
    st.floats(0.05, 1.0),
    st.lists(st.tuples(st.floats(0.001, 1000), st.floats(0, 1000)), min_size=1, max_size=30),
)
def test_effort_keeps_to_its_share_whatever_the_rounds(
    ratio: float, rounds: list[tuple[float, float]]
) -> None:
    effort, now, busy = Effort(ratio), 0.0, 0.0
    for run, idle in rounds:
        now += idle + effort.may_start(now + idle)
        now += run
        busy += run
        effort = effort.after(run, now)
    assert busy <= ratio * (now + effort.may_start(now)) * (1 + 1e-9)


def test_backoff_doubles_to_an_hour_and_ends_with_a_fruitful_round() -> None:
    backoff, waits = Backoff(15_000), []
    for _ in range(10):
        backoff = backoff.after(bytes_before=1000, bytes_after=991, now_s=50.0)
        waits.append(backoff.may_start(50.0, dirty_bytes=0))
    assert waits == [15, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert backoff.may_start(51.0, dirty_bytes=0) == 3599
    assert backoff.may_start(50.0 + 3600, dirty_bytes=0) == 0.0
    done = backoff.after(bytes_before=1000, bytes_after=990, now_s=60.0)
    assert done.may_start(60.0, dirty_bytes=0) == 0.0
    again = done.after(bytes_before=1000, bytes_after=1000, now_s=60.0)
    assert again.may_start(60.0, dirty_bytes=0) == 15


def test_enough_new_dirt_ends_a_backoff() -> None:
    waiting = Backoff(15_000).after(bytes_before=1000, bytes_after=1000, now_s=0.0, dirty_left_bytes=200)
    assert waiting.may_start(0.0, dirty_bytes=699) == 15
    assert waiting.may_start(0.0, dirty_bytes=700) == 0.0


def test_a_failed_round_and_a_store_without_backoff_wait_too() -> None:
    failed = Backoff(0).after(bytes_before=0, bytes_after=0, now_s=0.0)
    assert failed.may_start(0.0, dirty_bytes=10**9) == 1.0
    long = Backoff(2 * HOUR)
    for _ in range(3):
        long = long.after(bytes_before=1, bytes_after=1, now_s=0.0)
        assert long.may_start(0.0, dirty_bytes=0) == 7200
