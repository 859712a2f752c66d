"""Retention and clocks: a wall clock that jumps must not delete, and the store says what it saw."""

from __future__ import annotations

from tests.store.lifecycle_support import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Life,
    actions,
    bases,
    fill,
    of,
)


def test_a_wall_clock_that_jumps_ahead_pauses_deletion_and_says_why() -> None:
    life = Life(janitor=True, config={"log.retention.check.interval.ms": 1000})
    topic = life.topic(retention_ms=DAY_MS, segment_ms=1000 * DAY_MS, file_delete_delay_ms=0)
    fill(topic, 3)
    topic.append(b"active")
    life.store.tick()
    life.clock.jump(365 * DAY_MS)
    life.store.tick()
    report = life.store.retain()
    assert actions(report) == []
    assert any("ahead of the monotonic clock" in note for note in report.notes)
    assert all("ahead of the monotonic clock" in step.why for step in of(report.steps, "skip"))
    assert bases(topic) == [0, 5, 10, 15]
    # Ten minutes later nobody believes it yet; what needs no clock goes on.
    life.pass_time(10 * MINUTE_MS, step_ms=MINUTE_MS)
    assert bases(topic) == [0, 5, 10, 15]
    life.store.alter_topic("t", {"retention.segments": 2})
    assert actions(life.store.retain()) == [("delete", 0)]
    # An hour of agreement: believed again. What was written before the jump is no older for it.
    life.pass_time(HOUR_MS, step_ms=MINUTE_MS)
    assert life.store.retain().notes == ()
    assert bases(topic) == [5, 10, 15]
    life.pass_time(DAY_MS)
    life.store.tick()
    assert bases(topic) == [16]
    life.store.close()


def test_a_person_may_accept_the_clock() -> None:
    life = Life()
    topic = life.topic(retention_ms=DAY_MS, segment_ms=1000 * DAY_MS)
    fill(topic, 2)
    life.clock.jump(3 * DAY_MS)
    report = life.store.retain()
    assert actions(report) == []
    assert len(report.notes) == 1
    life.store.accept_clock()
    report = life.store.retain()
    assert report.notes == ()
    assert actions(report) == [("delete", 0), ("delete", 5)]
    life.store.close()


def test_a_clock_that_was_set_back_deletes_later_and_says_so() -> None:
    life = Life()
    topic = life.topic(retention_ms=DAY_MS, segment_ms=1000 * DAY_MS, message_timestamp_after_max_ms=2**62)
    fill(topic, 2)
    life.store.tick()
    life.clock.jump(-2 * DAY_MS)
    report = life.store.retain()
    assert any("behind the monotonic clock" in note for note in report.notes)
    assert actions(report) == []
    life.pass_time(DAY_MS - MINUTE_MS)
    assert actions(life.store.retain()) == []
    life.clock.jump(2 * DAY_MS)  # put right again
    life.store.retain()
    assert bases(topic)[0] == 0
    life.pass_time(2 * HOUR_MS, step_ms=MINUTE_MS)
    life.store.retain()
    life.pass_time(4 * DAY_MS)
    life.store.retain()
    assert bases(topic) == [10]
    life.store.close()


def test_a_clock_that_jumped_before_anybody_asked_is_seen() -> None:
    """The store looks at the clocks when it is opened, not when it is first told to retain."""
    life = Life()
    fill(life.topic(retention_ms=DAY_MS, segment_ms=1000 * DAY_MS), 2)
    life.clock.jump(30 * DAY_MS)
    assert actions(life.store.retain()) == []
    life.store.close()
