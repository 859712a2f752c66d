"""What is copied to the archive, what may leave this machine then, and what leaves the archive."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.log.policy import SegmentFacts, archive_turned_off, expired, local_expired, to_archive
from stratalog.model import SegmentState
from tests.log.policy.policy_cases import ARCHIVED, COMPACTED, DAY, HOUR, NOW, row

CONFIG = TopicConfig(remote_storage_enable=True)
COMPACT = replace(CONFIG, cleanup_policy=frozenset({"compact"}))


def copied(
    config: TopicConfig, segments: list[SegmentFacts], *, stable: int = 10**6, dirty: int | None = None
) -> list[int]:
    found = to_archive(config, segments, last_stable_offset=stable, first_dirty_offset=dirty, now_ms=NOW)
    return [facts.base_offset for facts in found]


def archived(segments: list[SegmentFacts], *indexes: int) -> list[SegmentFacts]:
    return [facts._replace(archived=index in indexes) for index, facts in enumerate(segments)]


def test_sealed_segments_that_are_not_there_yet() -> None:
    assert copied(CONFIG, row(DAY, DAY, DAY)) == [0, 10]
    assert copied(CONFIG, archived(row(DAY, DAY, DAY), 0)) == [10]
    assert copied(CONFIG, []) == []


def test_a_segment_in_work_holds_up_those_behind_it() -> None:
    segments = row(DAY, DAY, DAY, DAY)
    segments[1] = segments[1]._replace(state=SegmentState.COMPACTING)
    assert copied(CONFIG, segments) == [0]


def test_not_past_the_last_stable_offset() -> None:
    assert copied(CONFIG, row(DAY, DAY, DAY), stable=19) == [0]
    assert copied(CONFIG, row(DAY, DAY, DAY), stable=20) == [0, 10]


def test_what_retention_takes_anyway_is_not_copied() -> None:
    assert copied(CONFIG, row(8 * DAY, DAY, 0)) == [10]
    assert copied(COMPACT, row(8 * DAY, DAY, 0), dirty=20) == [0, 10]


def test_only_where_the_archive_is_on() -> None:
    assert copied(TopicConfig(), row(DAY, DAY)) == []
    assert copied(replace(CONFIG, remote_log_copy_disable=True), row(DAY, DAY)) == []


def test_compacted_topics_send_what_was_cleaned() -> None:
    segments = row(DAY, DAY, DAY, DAY, state=COMPACTED)
    assert copied(COMPACT, segments, dirty=20) == [0, 10]
    assert copied(COMPACT, segments, dirty=15) == [0]
    assert copied(COMPACT, segments) == []
    assert copied(COMPACT, archived(segments, 0, 2), dirty=30) == [10]  # rewritten since it was copied


def local(config: TopicConfig, segments: list[SegmentFacts]) -> list[tuple[int, str]]:
    return [(e.segment.base_offset, e.reason) for e in local_expired(config, segments, NOW)]


def test_local_time() -> None:
    config = replace(CONFIG, local_retention_ms=HOUR)
    segments = archived(row(2 * HOUR, HOUR + 1, HOUR, 0), 0, 1, 2)
    assert local(config, segments) == [(0, "local.retention.ms"), (10, "local.retention.ms")]
    (first, _) = local_expired(config, segments, NOW)
    assert first.detail == "newest record 2025-12-31T22:00:00Z is 2h old, local.retention.ms is 1h"
    assert first.overdue_ms == HOUR
    assert local_expired(config, segments, NOW, by_time=False) == []


def test_local_bytes_count_what_is_here() -> None:
    config = replace(CONFIG, local_retention_bytes=200)
    segments = archived(row(HOUR, HOUR, HOUR, HOUR, 0), 0, 1, 2, 3)
    segments[0] = segments[0]._replace(state=ARCHIVED)
    assert local(config, segments) == [(10, "local.retention.bytes"), (20, "local.retention.bytes")]


def test_only_a_verified_copy_lets_the_local_one_go_and_there_is_no_gap() -> None:
    config = replace(CONFIG, local_retention_ms=0, local_retention_bytes=0)
    assert local(config, archived(row(HOUR, HOUR, HOUR, 0), 0, 2)) == [(0, "local.retention.ms")]
    assert local(config, row(HOUR, HOUR, 0)) == []
    assert local(config, archived(row(HOUR, HOUR), 0, 1)) == [(0, "local.retention.ms")]  # never the active


def test_minus_one_is_no_limit() -> None:
    config = replace(CONFIG, local_retention_ms=-1, local_retention_bytes=-1, retention_bytes=0)
    assert local(config, archived(row(9 * DAY, 9 * DAY, 0), 0, 1)) == []


def test_minus_two_is_the_limit_of_the_log() -> None:
    config = replace(CONFIG, retention_ms=2 * HOUR, retention_bytes=150)
    segments = archived(row(3 * HOUR, HOUR, 0), 0, 1)
    assert local(config, segments) == [(0, "local.retention.ms")]
    assert local(replace(config, retention_ms=-1), segments) == [(0, "local.retention.bytes")]
    never = replace(config, cleanup_policy=frozenset({"compact"}))
    assert local(never, segments) == []
    assert local(replace(never, local_retention_ms=2 * HOUR), segments) == [(0, "local.retention.ms")]


@pytest.mark.parametrize("config", [TopicConfig(), replace(CONFIG, remote_log_copy_disable=True)])
def test_local_limits_mean_nothing_while_nothing_is_copied(config: TopicConfig) -> None:
    config = replace(config, local_retention_ms=0, local_retention_bytes=0)
    assert local(config, archived(row(HOUR, HOUR), 0)) == []


def test_retention_reaches_into_the_archive() -> None:
    config = replace(CONFIG, retention_ms=-1, retention_bytes=150)
    segments = archived(row(HOUR, HOUR, HOUR, 0), 0, 1)
    segments[0] = segments[0]._replace(state=ARCHIVED)
    found = expired(config, segments, NOW, log_start_offset=0, high_watermark=40)
    assert [(e.segment.base_offset, e.reason) for e in found] == [
        (0, "retention.bytes"),
        (10, "retention.bytes"),
    ]


def test_turning_the_archive_off_may_empty_it() -> None:
    config = TopicConfig(remote_log_delete_on_disable=True)
    segments = archived(row(HOUR, HOUR, HOUR, 0), 1)
    segments[0] = segments[0]._replace(state=ARCHIVED)
    found = archive_turned_off(config, segments)
    assert [e.segment.base_offset for e in found] == [0, 10]
    assert {e.reason for e in found} == {"remote.log.delete.on.disable"}
    kept = replace(config, remote_log_delete_on_disable=False)
    assert archive_turned_off(kept, segments) == []
