"""A wall clock that jumps, in both directions: when deletion pauses, heals, and what it never takes."""

from __future__ import annotations

from stratalog.config.topic import TopicConfig
from stratalog.log.policy import ClockGuard, expired
from stratalog.log.policy.clock import HEAL_AFTER_S, TOLERANCE_MS
from tests.log.policy.policy_cases import ACTIVE, DAY, HOUR, MINUTE, NOW, segment


class Clocks:
    """Two clocks and a guard that watches them every minute."""

    def __init__(self) -> None:
        self.wall_ms, self.monotonic_s = NOW, 1000.0
        self.guard = ClockGuard().observe(self.wall_ms, self.monotonic_s)

    def jump(self, ms: int) -> ClockGuard:
        self.wall_ms += ms
        self.guard = self.guard.observe(self.wall_ms, self.monotonic_s)
        return self.guard

    def run(self, ms: int) -> ClockGuard:
        for _ in range(ms // MINUTE):
            self.wall_ms += MINUTE
            self.monotonic_s += MINUTE / 1000
            self.guard = self.guard.observe(self.wall_ms, self.monotonic_s)
        return self.guard

    def takes(self, stamped_ms: int, config: TopicConfig | None = None) -> bool:
        """Whether a segment with this time would be deleted now."""
        facts = [segment(0, max_timestamp=stamped_ms, modified_ms=stamped_ms), segment(10, state=ACTIVE)]
        return bool(
            expired(
                config or TopicConfig(),
                [self.guard.corrected(each) for each in facts],
                self.wall_ms,
                log_start_offset=0,
                high_watermark=20,
                by_time=self.guard.paused is None,
            )
        )


def test_clocks_that_agree() -> None:
    clocks = Clocks()
    guard = clocks.run(3 * HOUR)
    assert guard.paused is None
    assert guard.notice is None
    assert guard.now_ms == clocks.wall_ms
    facts = segment(0, HOUR)
    assert guard.corrected(facts) is facts
    assert clocks.takes(NOW - 7 * DAY)
    assert not clocks.takes(NOW - 6 * DAY)


def test_a_guard_that_saw_nothing_believes() -> None:
    assert ClockGuard().paused is None
    assert ClockGuard().notice is None
    assert ClockGuard().accept() == ClockGuard()
    assert ClockGuard().ahead_ms == 0


def test_a_jump_ahead_pauses_says_why_and_heals_after_an_hour() -> None:
    clocks = Clocks()
    clocks.run(HOUR)
    old = NOW - 6 * DAY
    guard = clocks.jump(2 * DAY)
    assert guard.paused == (
        "the wall clock says 2026-01-03T01:00:00Z, 2d ahead of the monotonic clock: it jumped, or the "
        "machine slept; deletion by time goes on when both agreed for 1h, in 1h at the earliest"
    )
    assert guard.notice == guard.paused
    assert guard.now_ms == NOW + HOUR
    assert not clocks.takes(old)
    assert "in 1m at the earliest" in clocks.run(59 * MINUTE).paused
    assert clocks.run(MINUTE).paused is None
    assert clocks.takes(old)


def test_minutes_do_not_pause() -> None:
    clocks = Clocks()
    assert clocks.jump(TOLERANCE_MS).paused is None
    assert clocks.jump(1).paused is not None


def test_small_steps_add_up() -> None:
    clocks = Clocks()
    for _ in range(3):
        clocks.run(10 * MINUTE)
        clocks.jump(2 * MINUTE)
    assert clocks.guard.paused is not None


def test_a_clock_that_keeps_jumping_does_not_heal() -> None:
    clocks = Clocks()
    for _ in range(6):
        clocks.jump(HOUR)
        assert clocks.run(50 * MINUTE).paused is not None
    assert clocks.run(10 * MINUTE).paused is None


def test_a_jump_that_is_taken_back_is_over_at_once() -> None:
    clocks = Clocks()
    clocks.jump(2 * DAY)
    assert clocks.jump(-2 * DAY).paused is None
    assert clocks.guard.notice is None


def test_someone_may_say_that_the_clock_is_right() -> None:
    clocks = Clocks()
    clocks.jump(30 * DAY)
    clocks.guard = clocks.guard.accept()
    assert clocks.guard.paused is None
    assert clocks.takes(NOW)
    assert clocks.run(HOUR).paused is None


def test_a_clock_that_went_back_is_reported_and_deletes_less() -> None:
    clocks = Clocks()
    guard = clocks.jump(-2 * DAY)
    assert guard.paused is None
    assert guard.notice == (
        "the wall clock says 2025-12-30T00:00:00Z, 2d behind the monotonic clock: it was set back; what is "
        "deleted by time goes later"
    )
    assert not clocks.takes(NOW - 8 * DAY)
    assert clocks.run(HOUR).notice is None


def test_back_and_then_further_ahead() -> None:
    clocks = Clocks()
    clocks.jump(-DAY)
    clocks.run(10 * MINUTE)
    assert clocks.jump(2 * DAY).paused is not None


def test_back_until_it_was_believed_and_then_right_again() -> None:
    clocks = Clocks()
    clocks.jump(-30 * DAY)
    clocks.run(2 * HOUR)
    assert clocks.jump(30 * DAY).paused is not None
    assert clocks.run(HOUR).paused is None
    assert clocks.takes(NOW - 7 * DAY)


def test_what_was_written_while_the_clock_was_behind_is_not_deleted_when_it_is_set_right() -> None:
    for behind_ms in (10 * MINUTE, 3 * HOUR):  # too short to be believed, and long enough
        clocks = Clocks()
        clocks.jump(-30 * DAY)
        clocks.run(MINUTE)
        written = clocks.wall_ms
        clocks.run(behind_ms)
        clocks.jump(30 * DAY)
        clocks.run(2 * HOUR)
        assert clocks.guard.paused is None
        assert not clocks.takes(written)
        assert clocks.takes(written - DAY)  # from before the jump, and old indeed
        clocks.run(7 * DAY - 3 * HOUR - behind_ms)
        assert not clocks.takes(written)
        clocks.run(4 * HOUR + behind_ms)
        assert clocks.takes(written)


def test_what_was_written_before_a_jump_ahead_keeps_its_time_after_the_healing() -> None:
    clocks = Clocks()
    written = clocks.run(HOUR).wall_ms
    clocks.jump(30 * DAY)
    clocks.run(2 * HOUR)
    assert clocks.guard.paused is None
    assert not clocks.takes(written)
    assert clocks.jump(-30 * DAY).paused is None
    assert (
        clocks.guard.corrected(segment(0, max_timestamp=written, modified_ms=None)).max_timestamp == written
    )


def test_times_move_by_what_the_clock_jumped_since() -> None:
    clocks = Clocks()
    clocks.run(HOUR)
    honest = segment(0, max_timestamp=NOW + 30 * MINUTE, modified_ms=NOW + 31 * MINUTE)
    clocks.jump(-3 * DAY)
    behind = segment(0, max_timestamp=clocks.run(HOUR).wall_ms, modified_ms=None)
    assert clocks.guard.corrected(honest) == honest
    guard = clocks.jump(5 * DAY)
    moved = guard.corrected(honest)
    assert (moved.max_timestamp, moved.modified_ms) == (
        NOW + 30 * MINUTE + 2 * DAY,
        NOW + 31 * MINUTE + 2 * DAY,
    )
    assert guard.corrected(behind).max_timestamp == clocks.wall_ms
    foreign = segment(0, 20 * DAY)
    assert guard.corrected(foreign) == foreign


def test_a_stretch_that_wavered_moves_by_its_lowest() -> None:
    clocks = Clocks()
    clocks.jump(-4 * MINUTE)
    clocks.run(HOUR)
    written = clocks.wall_ms
    guard = clocks.jump(DAY)
    assert guard.corrected(segment(0, max_timestamp=written)).max_timestamp == written + DAY


def test_a_jump_between_two_readings() -> None:
    clocks = Clocks()
    clocks.run(HOUR)
    before = clocks.wall_ms + 5 * HOUR  # written before the jump, which came after six hours unseen
    clocks.monotonic_s += 6 * 3600
    clocks.wall_ms += 6 * HOUR
    clocks.jump(30 * DAY)
    clocks.run(HOUR)
    assert not clocks.takes(before)


def test_a_clock_that_never_stops_jumping_costs_bounded_memory() -> None:
    clocks = Clocks()
    first = clocks.wall_ms
    for _ in range(500):
        clocks.jump(HOUR)
        clocks.run(MINUTE)
    assert len(clocks.guard.earlier) <= 64
    clocks.run(round(HEAL_AFTER_S * 1000))
    assert clocks.guard.paused is None
    assert not clocks.takes(first)
