"""When a segment ends: Kafka's rules one by one, ours, and what must hold for any numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config.topic import TopicConfig
from stratalog.log.policy.roll import (
    MAX_RELATIVE_OFFSET,
    ActiveSegmentFacts,
    RollReason,
    jitter_ms,
    limits,
    max_segment_ms,
    reopened_created_ms,
    roll_due_idle,
    should_roll,
)

HOUR = 3_600_000
CONFIG = TopicConfig(segment_bytes=1000, segment_ms=HOUR)
FACTS = ActiveSegmentFacts(base_offset=100, size_bytes=400, records=4, created_ms=5000, first_timestamp=1000)
QUIET: dict[str, Any] = {
    "incoming_bytes": 100,
    "incoming_records": 1,
    "incoming_max_ts": 1001,
    "incoming_last_offset": 104,
    "now_ms": 5001,
}


def roll(
    config: TopicConfig = CONFIG, facts: ActiveSegmentFacts = FACTS, **incoming: int
) -> RollReason | None:
    return should_roll(config, facts, **(QUIET | incoming))


def test_an_append_that_fits() -> None:
    assert roll() is None


def test_bytes() -> None:
    assert roll(incoming_bytes=600) is None
    assert roll(incoming_bytes=601) is RollReason.BYTES


def test_records() -> None:
    config = replace(CONFIG, segment_records=6)
    assert roll(config, incoming_records=2) is None
    assert roll(config, incoming_records=3) is RollReason.RECORDS


def test_time_is_record_time() -> None:
    assert roll(incoming_max_ts=1000 + HOUR, now_ms=99 * HOUR) is None
    assert roll(incoming_max_ts=1001 + HOUR) is RollReason.TIME


@pytest.mark.parametrize("first_timestamp", [None, -1])
def test_without_timestamps_the_wall_clock_decides(first_timestamp: int | None) -> None:
    facts = replace(FACTS, first_timestamp=first_timestamp)
    assert roll(facts=facts, incoming_max_ts=99 * HOUR, now_ms=5000 + HOUR) is None
    assert roll(facts=facts, incoming_max_ts=-1, now_ms=5001 + HOUR) is RollReason.TIME


def test_jitter_brings_it_forward() -> None:
    facts = replace(FACTS, jitter_ms=600)
    assert roll(facts=facts, incoming_max_ts=1000 + HOUR - 600) is None
    assert roll(facts=facts, incoming_max_ts=1001 + HOUR - 600) is RollReason.TIME


def test_a_compacted_topic_rolls_for_its_longest_lag() -> None:
    lagging = replace(CONFIG, max_compaction_lag_ms=50)
    assert max_segment_ms(lagging) == HOUR
    compacted = replace(lagging, cleanup_policy=frozenset({"compact"}))
    assert max_segment_ms(compacted) == 50
    assert roll(compacted, incoming_max_ts=1051) is RollReason.TIME


def test_full_indexes() -> None:
    config = replace(CONFIG, segment_index_bytes=100)  # 12 offset entries; 8 time entries, one kept back
    assert roll(config, replace(FACTS, offset_index_entries=11, time_index_entries=6)) is None
    assert roll(config, replace(FACTS, offset_index_entries=12)) is RollReason.OFFSET_INDEX
    assert roll(config, replace(FACTS, time_index_entries=7)) is RollReason.TIME_INDEX


def test_offsets_past_31_bits_even_into_an_empty_segment() -> None:
    assert roll(incoming_last_offset=100 + MAX_RELATIVE_OFFSET) is None
    assert roll(incoming_last_offset=101 + MAX_RELATIVE_OFFSET) is RollReason.OFFSETS
    empty = ActiveSegmentFacts(base_offset=100, size_bytes=0, records=0, created_ms=0)
    assert roll(facts=empty, incoming_last_offset=101 + MAX_RELATIVE_OFFSET) is RollReason.OFFSETS


def test_an_empty_segment_takes_what_comes() -> None:
    config = replace(CONFIG, segment_records=1, segment_align_ms=10, segment_index_bytes=0)
    empty = ActiveSegmentFacts(base_offset=100, size_bytes=0, records=0, created_ms=0)
    assert roll(config, empty, incoming_bytes=10**9, incoming_records=9, now_ms=99 * HOUR) is None
    assert roll_due_idle(config, empty, 99 * HOUR) is None


def test_windows_only_move_forward() -> None:
    config = replace(CONFIG, segment_align_ms=100)
    facts = replace(FACTS, first_timestamp=1010)
    assert roll(config, facts, incoming_max_ts=1099) is None
    assert roll(config, facts, incoming_max_ts=1100) is RollReason.WINDOW
    assert roll(config, facts, incoming_max_ts=1000) is None
    assert roll(config, facts, incoming_max_ts=20) is None, "late, by many windows"
    assert roll(config, facts, incoming_max_ts=-1) is None


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=200))
def test_alternating_windows_make_no_storm(timestamps: list[int]) -> None:
    config = TopicConfig(segment_align_ms=1000)
    first: int | None = None
    windows: list[int] = []
    for timestamp in timestamps:
        if first is not None:
            facts = replace(FACTS, first_timestamp=first)
            if should_roll(config, facts, 1, 1, timestamp, 200, 0) is None:
                continue
        first = timestamp
        windows.append(timestamp // 1000)
    assert windows == sorted(set(windows)), "each window begins at most once, in order"


def test_idle_segments_roll_by_the_wall_clock() -> None:
    facts = replace(FACTS, first_timestamp=0, created_ms=10 * HOUR)
    assert roll_due_idle(CONFIG, facts, 11 * HOUR) is None
    assert roll_due_idle(CONFIG, facts, 11 * HOUR + 1) is RollReason.TIME
    aligned = replace(CONFIG, segment_ms=99 * HOUR, segment_align_ms=HOUR)
    assert roll_due_idle(aligned, replace(facts, created_ms=10 * HOUR + 5), 11 * HOUR - 1) is None
    assert roll_due_idle(aligned, replace(facts, created_ms=10 * HOUR + 5), 11 * HOUR) is RollReason.WINDOW


def test_jitter_is_spread_and_repeatable() -> None:
    config = TopicConfig(segment_ms=1000, segment_jitter_ms=400)
    chosen = [jitter_ms(config, "orders", 0, base) for base in range(500)]
    assert chosen == [jitter_ms(config, "orders", 0, base) for base in range(500)]
    assert min(chosen) >= 0
    assert max(chosen) < 400
    assert len(set(chosen)) > 200
    assert jitter_ms(config, "orders", 1, 7) != jitter_ms(config, "orders", 0, 7)
    assert jitter_ms(TopicConfig(), "orders", 0, 7) == 0
    assert jitter_ms(replace(config, segment_ms=1, segment_jitter_ms=10**9), "orders", 0, 7) == 0


def test_created_after_a_reopen() -> None:
    assert reopened_created_ms(500, log_mtime_ms=900, now_ms=1000) == 500
    assert reopened_created_ms(950, log_mtime_ms=900, now_ms=1000) == 900
    assert reopened_created_ms(None, log_mtime_ms=900, now_ms=1000) == 900
    assert reopened_created_ms(-1, log_mtime_ms=2000, now_ms=1000) == 1000


CONFIGS = st.builds(
    TopicConfig,
    segment_bytes=st.integers(14, 2000),
    segment_ms=st.integers(1, 5000),
    segment_records=st.integers(1, 50),
    segment_align_ms=st.sampled_from([0, 1, 7, 100, 1000]),
    segment_index_bytes=st.integers(24, 200),
    max_compaction_lag_ms=st.integers(1, 3000),
    cleanup_policy=st.sampled_from([frozenset({"delete"}), frozenset({"compact"})]),
)
FACTS_OF = st.builds(
    ActiveSegmentFacts,
    base_offset=st.integers(0, 2**40),
    size_bytes=st.integers(0, 2000),
    records=st.integers(0, 60),
    created_ms=st.integers(0, 6000),
    first_timestamp=st.one_of(st.none(), st.integers(-1, 6000)),
    offset_index_entries=st.integers(0, 30),
    time_index_entries=st.integers(0, 20),
    jitter_ms=st.integers(0, 100),
)


@given(
    CONFIGS,
    FACTS_OF,
    st.integers(1, 2000),
    st.integers(1, 60),
    st.integers(-1, 12_000),
    st.sampled_from([0, 1, MAX_RELATIVE_OFFSET, MAX_RELATIVE_OFFSET + 1]),
    st.integers(0, 12_000),
)
def test_limits_say_what_should_roll_says(
    config: TopicConfig,
    facts: ActiveSegmentFacts,
    size: int,
    records: int,
    timestamp: int,
    relative: int,
    now_ms: int,
) -> None:
    bound = limits(config, facts)
    last_offset = facts.base_offset + relative
    stays = (
        facts.size_bytes + size <= bound.size_bytes
        and facts.records + records <= bound.records
        and last_offset <= bound.last_offset
        and timestamp <= bound.timestamp
        and now_ms <= bound.now_ms
    )
    reason = should_roll(config, facts, size, records, timestamp, last_offset, now_ms)
    assert stays is (reason is None)
