"""What is deleted, rule by rule, to the millisecond and the byte, and what people are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.log.policy import SegmentFacts, expired, newest_ms, next_expiry
from stratalog.log.policy.retention import roll_why
from tests.log.policy.policy_cases import (
    ACTIVE,
    ARCHIVED,
    COMPACTED,
    DAY,
    HOUR,
    LONG_MAX,
    NOW,
    row,
    segment,
)

CONFIG = TopicConfig()  # a week
BYTES = TopicConfig(retention_ms=-1, retention_bytes=250)
COUNT = TopicConfig(retention_ms=-1, retention_segments=2)


def bases(
    config: TopicConfig, segments: list[SegmentFacts], *, start: int = 0, high: int | None = None
) -> list[int]:
    high = segments[-1].next_offset if high is None else high
    found = expired(config, segments, NOW, log_start_offset=start, high_watermark=high)
    return [expiry.segment.base_offset for expiry in found]


def test_nothing_to_do() -> None:
    assert bases(CONFIG, row(2 * DAY, DAY, 0)) == []
    assert expired(CONFIG, [], NOW, log_start_offset=0, high_watermark=0) == []
    assert next_expiry(CONFIG, [], NOW, log_start_offset=0, high_watermark=0) is None


def test_time_is_up_after_the_limit_and_not_at_it() -> None:
    assert bases(CONFIG, row(7 * DAY, 0)) == []
    assert bases(CONFIG, row(7 * DAY + 1, 0)) == [0]


def test_a_young_segment_protects_the_old_ones_behind_it() -> None:
    assert bases(CONFIG, row(9 * DAY, 2 * DAY, 9 * DAY, 0)) == [0]


def test_the_active_segment_stays_however_old() -> None:
    assert bases(CONFIG, row(9 * DAY, 9 * DAY, 9 * DAY)) == [0, 10]
    assert bases(replace(CONFIG, retention_bytes=0), row(0, 0, 0)) == [0, 10]
    assert bases(CONFIG, row(9 * DAY, 9 * DAY), start=20) == [0]


def test_what_lies_at_or_past_the_high_watermark_stays() -> None:
    segments = row(9 * DAY, 9 * DAY, 0)
    assert bases(CONFIG, segments, high=19) == [0]
    assert bases(CONFIG, segments, high=20) == [0, 10]
    assert bases(CONFIG, segments, start=20, high=9) == []


def test_the_high_watermark_is_compared_with_where_the_log_would_start() -> None:
    cleaned = segment(0, 9 * DAY, next_offset=4, state=COMPACTED)  # offsets 4 to 9 were compacted away
    assert bases(CONFIG, [cleaned, *row(0, 0)[1:]], high=9) == []


@pytest.mark.parametrize(("limit", "gone"), [(0, 3), (99, 3), (100, 3), (101, 2), (300, 1), (301, 0)])
def test_bytes_are_kept_and_not_cut_below(limit: int, gone: int) -> None:
    config = replace(BYTES, retention_bytes=limit)
    assert len(bases(config, row(0, 0, 0, 0))) == gone  # 400 bytes, 100 of them active


def test_any_negative_number_of_bytes_is_no_limit() -> None:
    assert bases(replace(BYTES, retention_bytes=-5), row(0, 0)) == []


def test_count_is_of_sealed_segments() -> None:
    assert bases(COUNT, row(0, 0, 0)) == []
    assert bases(COUNT, row(0, 0, 0, 0)) == [0]
    assert bases(replace(COUNT, retention_segments=1), row(0, 0, 0, 0)) == [0, 10]


def test_the_log_start_offset_takes_whole_segments_whatever_the_policy() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), retention_ms=0, retention_bytes=0)
    segments = row(9 * DAY, 9 * DAY, 9 * DAY)
    assert bases(config, segments, start=9) == []
    assert bases(config, segments, start=10) == [0]
    assert bases(config, segments, start=30) == [0, 10]
    assert bases(replace(config, cleanup_policy=frozenset()), segments, start=10) == [0]


def test_the_longest_run_wins_and_each_segment_names_its_first_reason() -> None:
    config = TopicConfig(retention_bytes=200, retention_segments=1)
    segments = row(9 * DAY, 9 * DAY, 0, 0, 0)
    found = expired(config, segments, NOW, log_start_offset=10, high_watermark=50)
    assert [expiry.reason for expiry in found] == ["log start offset", "retention.ms", "retention.bytes"]
    alone = expired(replace(config, retention_bytes=-1), segments, NOW, log_start_offset=0, high_watermark=50)
    assert [expiry.reason for expiry in alone] == ["retention.ms", "retention.ms", "retention.segments"]


def test_archived_segments_count() -> None:
    segments = row(0, 0, 0, 0)
    segments[0] = segments[0]._replace(state=ARCHIVED, archived=True)
    assert bases(COUNT, segments) == [0]
    assert bases(BYTES, segments) == [0]


def test_a_clock_that_is_not_believed() -> None:
    config = replace(CONFIG, retention_segments=3)
    segments = row(9 * DAY, 9 * DAY, 9 * DAY, 9 * DAY, 0)
    found = expired(config, segments, NOW, log_start_offset=0, high_watermark=50, by_time=False)
    assert [expiry.reason for expiry in found] == ["retention.segments"]


def test_sentences() -> None:
    config = replace(CONFIG, retention_segments=1, retention_bytes=2**20)
    big = 2 * 2**20
    segments = row(9 * DAY, 8 * DAY, 0, 0, 0, size=big)
    found = expired(config, segments, NOW, log_start_offset=10, high_watermark=50)
    assert [(expiry.detail, expiry.overdue_ms) for expiry in found] == [
        ("last offset 9 is below the log start offset 10", None),
        ("newest record 2025-12-24T00:00:00Z is 8d old, retention.ms is 7d", DAY),
        ("4.0 MiB would remain without it; the limit is 1.0 MiB (retention.bytes)", None),
        ("2.0 MiB would remain without it; the limit is 1.0 MiB (retention.bytes)", None),
    ]
    (last,) = expired(COUNT, row(0, 0, 0, 0), NOW, log_start_offset=0, high_watermark=40)
    assert (
        last.detail == "2 newer sealed segments would remain without it; the limit is 2 (retention.segments)"
    )


def test_a_record_from_the_future_counts_from_its_writing() -> None:
    late = segment(0, 8 * DAY, max_timestamp=NOW + 1)
    fresh = segment(0, 6 * DAY, max_timestamp=LONG_MAX)
    (found,) = expired(CONFIG, [late, *row(0, 0)[1:]], NOW, log_start_offset=0, high_watermark=20)
    assert found.detail == (
        "newest record 2026-01-01T00:00:00Z lies in the future and the last write 2025-12-24T00:00:00Z "
        "is 8d old, retention.ms is 7d"
    )
    assert bases(CONFIG, [fresh, *row(0, 0)[1:]]) == []


def test_a_file_that_claims_to_be_older_than_its_records_is_not_believed() -> None:
    restored = segment(0, DAY, modified_ms=0)
    assert newest_ms(restored, NOW) == NOW - DAY
    assert newest_ms(restored) == 0
    assert bases(CONFIG, [restored, *row(0, 0)[1:]]) == []


def test_without_timestamps_the_last_write_counts() -> None:
    for stamped in (None, -1):
        old = segment(0, 8 * DAY, max_timestamp=stamped)
        (found,) = expired(CONFIG, [old, *row(0, 0)[1:]], NOW, log_start_offset=0, high_watermark=20)
        assert found.detail.startswith("no record tells its time and the last write 2025-12-24T00:00:00Z")
        assert newest_ms(old._replace(modified_ms=None), NOW) is None
        assert bases(CONFIG, [old._replace(modified_ms=None), *row(0, 0)[1:]]) == []


def test_what_goes_next() -> None:
    segments = row(8 * DAY, 6 * DAY, 0)
    coming = next_expiry(CONFIG, segments, NOW, log_start_offset=0, high_watermark=30)
    assert coming == (segments[1], NOW + DAY + 1)
    assert next_expiry(CONFIG, segments, NOW, log_start_offset=0, high_watermark=15) is None
    assert next_expiry(CONFIG, row(8 * DAY, 0), NOW, log_start_offset=0, high_watermark=20) is None
    for config in (BYTES, replace(CONFIG, retention_ms=LONG_MAX), TopicConfig(cleanup_policy=frozenset())):
        assert next_expiry(config, segments, NOW, log_start_offset=0, high_watermark=30) is None


def test_when_a_record_from_the_future_goes() -> None:
    soon = segment(0, 0, max_timestamp=NOW + HOUR)
    edge = segment(0, 0, max_timestamp=NOW + 7 * DAY + 1)
    past_it = segment(0, 0, max_timestamp=NOW + 7 * DAY + 2)
    far = segment(0, 0, max_timestamp=NOW + 30 * DAY)
    for facts, when_ms in (
        (soon, NOW + HOUR + 7 * DAY + 1),
        (edge, NOW + 14 * DAY + 2),
        (past_it, NOW + 7 * DAY + 1),
        (far, NOW + 7 * DAY + 1),
    ):
        segments = [facts, *row(0, 0)[1:]]
        assert next_expiry(CONFIG, segments, NOW, log_start_offset=0, high_watermark=20) == (facts, when_ms)


def test_an_idle_active_segment_is_sealed_when_its_time_is_up() -> None:
    old = segment(0, 8 * DAY, state=ACTIVE)
    assert roll_why(CONFIG, old, NOW)
    assert roll_why(CONFIG, old, NOW) == (
        "sealed so that it can go: newest record 2025-12-24T00:00:00Z is 8d old, retention.ms is 7d"
    )
    assert not roll_why(CONFIG, segment(0, 7 * DAY, state=ACTIVE), NOW)
    assert not roll_why(CONFIG, old._replace(size_bytes=0), NOW)
    assert not roll_why(CONFIG, segment(0, 8 * DAY), NOW)
    assert not roll_why(replace(CONFIG, retention_ms=-1), old, NOW)
    assert not roll_why(replace(CONFIG, cleanup_policy=frozenset({"compact"})), old, NOW)


def test_an_idle_active_segment_is_sealed_for_the_archive_too() -> None:
    tiered = replace(CONFIG, remote_storage_enable=True, local_retention_ms=HOUR)
    active = segment(0, 2 * HOUR, state=ACTIVE)
    assert "local.retention.ms is 1h" in roll_why(tiered, active, NOW)
    assert roll_why(replace(tiered, remote_log_copy_disable=True), active, NOW) is None
    assert roll_why(replace(tiered, cleanup_policy=frozenset({"compact"})), active, NOW) is not None
