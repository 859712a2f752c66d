"""Decisions as steps: nothing of a decision is lost, and a step says what a reader would miss."""

from __future__ import annotations

import json
from dataclasses import replace

from stratalog.config.topic import TopicConfig
from stratalog.log.policy import (
    Step,
    archive_turned_off,
    cleanable,
    expired,
    local_expired,
    next_expiry,
    to_archive,
)
from stratalog.log.policy.preview import (
    archive_steps,
    compact_step,
    expiry_steps,
    local_steps,
    roll_step,
    skipped,
    upcoming_step,
)
from stratalog.log.policy.retention import roll_why
from tests.log.policy.policy_cases import ARCHIVED, DAY, HOUR, NOW, row

CONFIG = TopicConfig()
TIERED = replace(CONFIG, remote_storage_enable=True, local_retention_ms=HOUR)


def test_deletions() -> None:
    going = expired(CONFIG, row(9 * DAY, 8 * DAY, 0), NOW, log_start_offset=0, high_watermark=30)
    first, second = expiry_steps("events", 3, going)
    assert first == Step(
        "delete",
        "events",
        3,
        0,
        10,
        100,
        None,
        "newest record 2025-12-23T00:00:00Z is 9d old, retention.ms is 7d",
        0,
    )
    assert first.due
    assert (second.base_offset, second.first_offset_lost) == (10, 10)


def test_below_the_log_start_offset_nothing_is_lost() -> None:
    going = expired(CONFIG, row(9 * DAY, 9 * DAY, 0), NOW, log_start_offset=14, high_watermark=30)
    steps = expiry_steps("events", 0, going, log_start_offset=14)
    assert [step.first_offset_lost for step in steps] == [None, 14]


def test_copies() -> None:
    segments = row(3 * HOUR, 2 * HOUR, 0)
    going_up = to_archive(TIERED, segments, last_stable_offset=20, now_ms=NOW)
    up = archive_steps("events", 0, going_up)
    assert [(step.action, step.base_offset) for step in up] == [("archive", 0), ("archive", 10)]
    assert up[0].why == "sealed, 100 B, not in the archive yet"
    there = [facts._replace(archived=not facts.active) for facts in segments]
    down = local_steps("events", 0, local_expired(TIERED, there, NOW))
    assert [(step.action, step.base_offset, step.first_offset_lost) for step in down] == [
        ("drop-local", 0, None),
        ("drop-local", 10, None),
    ]


def test_an_archive_that_is_turned_off() -> None:
    config = TopicConfig(remote_log_delete_on_disable=True)
    segments = [facts._replace(archived=not facts.active) for facts in row(HOUR, HOUR, 0)]
    segments[0] = segments[0]._replace(state=ARCHIVED)
    going = archive_turned_off(config, segments)
    steps = expiry_steps("events", 0, going)
    assert [(step.action, step.first_offset_lost) for step in steps] == [
        ("delete", 0),
        ("drop-archive", None),
    ]


def test_rolling_and_compacting() -> None:
    active = row(8 * DAY)[0]
    why = roll_why(CONFIG, active, NOW)
    assert why is not None
    assert roll_step("events", 0, active, why)[:6] == ("roll", "events", 0, 0, 10, 100)
    found = cleanable(
        CONFIG,
        row(DAY, DAY, DAY, 0),
        first_dirty_offset=10,
        last_stable_offset=30,
        log_start_offset=0,
        now_ms=NOW,
    )
    step = compact_step("events", 0, 0, found, "asked for")
    assert step == Step("compact", "events", 0, 0, 30, 300, None, "asked for")
    assert step.due


def test_what_comes_later_or_not_at_all_is_not_due() -> None:
    segments = row(6 * DAY, 0)
    coming = next_expiry(CONFIG, segments, NOW, log_start_offset=4, high_watermark=20)
    assert coming is not None
    later = upcoming_step("events", 0, coming, CONFIG.retention_ms, log_start_offset=4)
    assert (later.action, later.when_ms, later.first_offset_lost) == ("delete", NOW + DAY + 1, 4)
    assert later.why == "expires 2026-01-02T00:00:00Z (retention.ms=7d)"
    assert not later.due
    put_off = skipped(later._replace(when_ms=None), "the clock jumped")
    assert (put_off.action, put_off.due, put_off.first_offset_lost) == ("skip", False, None)
    assert put_off.why.endswith("; not now: the clock jumped")


def test_json_there_and_back() -> None:
    step = Step("delete", "events", 1, 0, 10, 100, None, "old", 0)
    assert Step(**json.loads(json.dumps(step.to_json()))) == step
