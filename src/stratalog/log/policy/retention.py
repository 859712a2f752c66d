"""Which segments have had their time: pure functions of settings, segment facts and now.

Kafka's rules (UnifiedLog.deleteOldSegments), and ``retention.segments``, which is ours. A segment goes when
one of them says so and every older one goes, so a log never gets a hole, and what is left after one
round needs no second. No rule takes the active segment, or one that reaches past the high watermark. Touches
nothing: the janitor carries out what is decided here, and a preview shows it.

With an archive the segments are those of both sides, each once: retention is about the log, wherever its
bytes lie. What may leave this machine while the log keeps it is the business of ``tiering``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile
from typing import Literal, NamedTuple

from stratalog.config.topic import TopicConfig
from stratalog.config.units import format_bytes, format_duration_ms
from stratalog.log.policy.facts import SegmentFacts, moment, newest_ms, with_upper

Reason = Literal[
    "log start offset",
    "retention.ms",
    "retention.bytes",
    "retention.segments",
    "local.retention.ms",
    "local.retention.bytes",
    "remote.log.delete.on.disable",
]
_NEVER_MS = 2**63 - 1


class Expiry(NamedTuple):
    """A segment that has to go.

    ``reason``      the setting that says so, the first of the list above where several do.
    ``detail``      the same for people, by its name and with its numbers.
    ``overdue_ms``  how long ago its time was up; None where time is not the reason.
    """

    segment: SegmentFacts
    reason: Reason
    detail: str
    overdue_ms: int | None


Rule = Callable[[int, SegmentFacts], Expiry | None]
"""What a limit says of the segment at an index, provided that all before it go."""


def expired(
    config: TopicConfig,
    segments: Sequence[SegmentFacts],
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    by_time: bool = True,
) -> list[Expiry]:
    """The segments to delete, oldest first: always a run from the oldest on.

    ``by_time=False`` leaves ``retention.ms`` out, for a clock that is not to be believed; the other rules
    need no clock.
    """
    rules = [_by_start(segments, log_start_offset)]
    if config.delete:
        rules += [
            by_age("retention.ms", config.retention_ms if by_time else -1, now_ms),
            by_bytes("retention.bytes", config.retention_bytes, segments),
            _by_count(config.retention_segments, segments),
        ]
    return oldest(deletable(segments, high_watermark), rules)


def next_expiry(
    config: TopicConfig,
    segments: Sequence[SegmentFacts],
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
) -> tuple[SegmentFacts, int] | None:
    """The oldest segment that stays for now and the moment ``retention.ms`` takes it.

    None when that is the active one, or time will not take it. What comes by size or count depends on
    appends nobody has made yet.
    """
    gone = expired(config, segments, now_ms, log_start_offset=log_start_offset, high_watermark=high_watermark)
    candidates = deletable(segments, high_watermark)
    if not config.delete or config.retention_ms < 0 or len(gone) == len(candidates):
        return None
    segment = candidates[len(gone)]
    due = _due_ms(segment, config.retention_ms, now_ms)
    return None if due is None or due > _NEVER_MS else (segment, due)


def roll_to_expire(config: TopicConfig, active: SegmentFacts, now_ms: int) -> bool:
    """Whether an active segment nobody writes to any more has to be sealed so that it can go."""
    return roll_why(config, active, now_ms) is not None


def roll_why(config: TopicConfig, active: SegmentFacts, now_ms: int) -> str | None:
    """`roll_to_expire` with its reason for people. An empty segment is never rolled."""
    if not active.active or active.size_bytes == 0:
        return None
    name: Reason = "retention.ms"
    limit_ms = config.retention_ms if config.delete else -1
    local_ms = local_retention_ms(config)
    if local_ms >= 0 and (limit_ms < 0 or local_ms < limit_ms):
        name, limit_ms = "local.retention.ms", local_ms
    overdue = by_age(name, limit_ms, now_ms)(0, active)
    return None if overdue is None else f"sealed so that it can go: {overdue.detail}"


def deletable(segments: Sequence[SegmentFacts], high_watermark: int) -> list[SegmentFacts]:
    """The oldest segments up to the active one, or to the first that reaches past the high watermark."""
    return [
        segment
        for segment, _ in takewhile(
            lambda pair: not pair[0].active and pair[1] <= high_watermark, with_upper(segments)
        )
    ]


def oldest(segments: Sequence[SegmentFacts], rules: Sequence[Rule]) -> list[Expiry]:
    """The oldest segments, up to the first that no rule takes; the first rule that does gives the reason."""
    found: list[Expiry] = []
    for index, segment in enumerate(segments):
        expiry = next((taken for rule in rules if (taken := rule(index, segment)) is not None), None)
        if expiry is None:
            break
        found.append(expiry)
    return found


def by_age(name: Reason, limit_ms: int, now_ms: int) -> Rule:
    """Takes segments whose newest record is older than ``limit_ms``; none when that is negative."""

    def rule(_: int, segment: SegmentFacts) -> Expiry | None:
        newest = newest_ms(segment, now_ms)
        if limit_ms < 0 or newest is None or now_ms - newest <= limit_ms:
            return None
        detail = f"{_age_detail(segment, newest, now_ms)}, {name} is {format_duration_ms(limit_ms)}"
        return Expiry(segment, name, detail, now_ms - newest - limit_ms)

    return rule


def by_bytes(name: Reason, limit_bytes: int, segments: Sequence[SegmentFacts]) -> Rule:
    """Takes segments while ``limit_bytes`` lie behind them; none when that is negative."""
    up_to = list(accumulate(segment.size_bytes for segment in segments))

    def rule(index: int, segment: SegmentFacts) -> Expiry | None:
        rest_bytes = up_to[-1] - up_to[index]
        if not 0 <= limit_bytes <= rest_bytes:
            return None
        detail = f"{format_bytes(rest_bytes)} stay without it, {name} is {format_bytes(limit_bytes)}"
        return Expiry(segment, name, detail, None)

    return rule


def local_retention_ms(config: TopicConfig) -> int:
    """How long this machine keeps what the archive has too; negative: no limit.

    -2 means as long as the log keeps it, which for a topic that never deletes is for ever. As in Kafka
    there is no local limit while nothing is copied.
    """
    return _local(config, config.local_retention_ms, config.retention_ms)


def local_retention_bytes(config: TopicConfig) -> int:
    """How many bytes of a partition this machine keeps; negative: no limit. See `local_retention_ms`."""
    return _local(config, config.local_retention_bytes, config.retention_bytes)


def most_overdue_ms(expiries: Iterable[Expiry]) -> int | None:
    """How long past due the most overdue one is: a number to watch. None when none is, by time."""
    return max((expiry.overdue_ms for expiry in expiries if expiry.overdue_ms is not None), default=None)


def _local(config: TopicConfig, local: int, whole: int) -> int:
    if not config.remote_storage_enable or config.remote_log_copy_disable:
        return -1
    if local == -2:
        return whole if config.delete else -1
    return local


def _by_start(segments: Sequence[SegmentFacts], log_start_offset: int) -> Rule:
    uppers = [upper for _, upper in with_upper(segments)]

    def rule(index: int, segment: SegmentFacts) -> Expiry | None:
        if uppers[index] > log_start_offset:
            return None
        detail = f"last offset {uppers[index] - 1} is below the log start offset {log_start_offset}"
        return Expiry(segment, "log start offset", detail, None)

    return rule


def _by_count(keep: int, segments: Sequence[SegmentFacts]) -> Rule:
    sealed = sum(not segment.active for segment in segments)

    def rule(index: int, segment: SegmentFacts) -> Expiry | None:
        newer = sealed - index - 1
        if not 0 <= keep <= newer:
            return None
        noun = "segment stays" if newer == 1 else "segments stay"
        detail = f"{newer} newer sealed {noun} without it, retention.segments is {keep}"
        return Expiry(segment, "retention.segments", detail, None)

    return rule


def _due_ms(segment: SegmentFacts, limit_ms: int, now_ms: int) -> int | None:
    """The first moment from now on at which `by_age` takes it."""
    newest = newest_ms(segment, now_ms)
    if newest is None:
        return None
    due = newest + limit_ms + 1
    stamped = segment.max_timestamp
    if stamped is not None and newest < stamped <= due:
        return stamped + limit_ms + 1  # no longer in the future by then, so it counts
    return due


def _age_detail(segment: SegmentFacts, newest: int, now_ms: int) -> str:
    age = format_duration_ms(now_ms - newest)
    stamped = segment.max_timestamp
    if stamped is None or stamped < 0:
        return f"no record tells its time and the last write {moment(newest)} is {age} old"
    if newest != stamped:
        return (
            f"newest record {moment(stamped)} lies in the future and the last write {moment(newest)} "
            f"is {age} old"
        )
    return f"newest record {moment(newest)} is {age} old"
