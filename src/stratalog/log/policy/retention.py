"""Which segments expire, and which move to the archive: pure functions of settings, segment facts and now.

Kafka's rules (UnifiedLog.deleteOldSegments and its remote tier), and ``retention.segments``, which is ours. A
segment goes when one rule takes it and every older one goes, so a log never gets a hole and one round is
enough. No rule takes the active segment, or one that reaches past the high watermark.

With an archive the segments are those of both sides, each once. ``archived`` in the facts means that a copy
was read back and verified. Compacted topics archive only what lies below the cleaner's first dirty offset:
the next round rewrites everything above it, and a segment that left this machine uncleaned would keep
superseded values for good. A segment rewritten later is a new segment and takes the place of its predecessors
in the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Literal, NamedTuple

from stratalog.config.topic import TopicConfig
from stratalog.config.units import format_bytes, format_duration_ms, format_time
from stratalog.model import SegmentState


class SegmentFacts(NamedTuple):
    """One segment of one partition; a list of them is in the order of offsets, the active one last.

    ``state``          ACTIVE, SEALED, COMPACTING or COMPACTED for local ones, ARCHIVED for those that only
                       the archive has.
    ``max_timestamp``  of its newest record, in ms; None when it has none, or nothing trustworthy tells.
    ``modified_ms``    when its ``.log`` was last written to, by the wall clock; cleaning carries it over.
    ``archived``       the archive has a verified copy of it (of local ones too).
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    state: SegmentState
    records: int | None = None
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    modified_ms: int | None = None
    archived: bool = False
    cleaned: bool = False

    @property
    def active(self) -> bool:
        return self.state is SegmentState.ACTIVE

    @property
    def local(self) -> bool:
        """True if this machine has its files."""
        return self.state not in (SegmentState.ARCHIVED, SegmentState.DELETED)

    @property
    def in_archive(self) -> bool:
        return self.archived or self.state is SegmentState.ARCHIVED


def newest_ms(segment: SegmentFacts, now_ms: int | None = None) -> int | None:
    """Return the time a segment's age counts from; None when it is unknown.

    That of its newest record. A record stamped after ``now_ms`` would hold its segment until then, so the
    last write of the file counts if it is earlier. A time that is not in the future is trusted even where the
    file is older: backups, and machines that boot without a clock, give files wrong dates. Without ``now_ms``
    every time after the last write counts as the future. Without a timestamp (-1, or no records) the last
    write counts.
    """
    newest, written = segment.max_timestamp, segment.modified_ms
    if newest is None or newest < 0:
        return written
    if written is None or (now_ms is not None and newest <= now_ms):
        return newest
    return min(newest, written)


def with_upper(segments: Sequence[SegmentFacts]) -> Iterator[tuple[SegmentFacts, int]]:
    """Yield each segment with the offset the log would start at without it: the next one's base.

    After compaction a segment's own ``next_offset`` may lie below that.
    """
    for index, segment in enumerate(segments):
        following = index + 1
        yield segment, segments[following].base_offset if following < len(segments) else segment.next_offset


def moment(timestamp_ms: int) -> str:
    """Format a time for messages: ``2026-01-02T03:04:05Z``."""
    return format_time(timestamp_ms // 1000 * 1000).replace(".000Z", "Z")


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
    """Return the segments to delete: always a run from the oldest on.

    ``by_time=False`` ignores ``retention.ms``, for a clock that is not trusted.
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
    """Return the oldest segment that stays for now, and when ``retention.ms`` takes it.

    None when that is the active one, or time will not take it. Expiry by size or count depends on future
    appends.
    """
    gone = expired(config, segments, now_ms, log_start_offset=log_start_offset, high_watermark=high_watermark)
    candidates = deletable(segments, high_watermark)
    if not config.delete or config.retention_ms < 0 or len(gone) == len(candidates):
        return None
    segment = candidates[len(gone)]
    due = _due_ms(segment, config.retention_ms, now_ms)
    return None if due is None or due > _NEVER_MS else (segment, due)


def roll_why(config: TopicConfig, active: SegmentFacts, now_ms: int) -> str | None:
    """Return why an idle active segment must be sealed so that it can expire; None when it must not.

    An empty segment is never rolled.
    """
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
    """Return the oldest segments up to the active one or the first that reaches past the high watermark."""
    return [
        segment
        for segment, _ in takewhile(
            lambda pair: not pair[0].active and pair[1] <= high_watermark, with_upper(segments)
        )
    ]


def oldest(segments: Sequence[SegmentFacts], rules: Sequence[Rule]) -> list[Expiry]:
    """Return the oldest segments up to the first that no rule takes; the first rule gives the reason."""
    found: list[Expiry] = []
    for index, segment in enumerate(segments):
        expiry = next((taken for rule in rules if (taken := rule(index, segment)) is not None), None)
        if expiry is None:
            break
        found.append(expiry)
    return found


def by_age(name: Reason, limit_ms: int, now_ms: int) -> Rule:
    """Take segments whose newest record is older than ``limit_ms``; none when that is negative."""

    def rule(_: int, segment: SegmentFacts) -> Expiry | None:
        newest = newest_ms(segment, now_ms)
        if limit_ms < 0 or newest is None or now_ms - newest <= limit_ms:
            return None
        detail = f"{_age_detail(segment, newest, now_ms)}, {name} is {format_duration_ms(limit_ms)}"
        return Expiry(segment, name, detail, now_ms - newest - limit_ms)

    return rule


def by_bytes(name: Reason, limit_bytes: int, segments: Sequence[SegmentFacts]) -> Rule:
    """Take segments while ``limit_bytes`` lie behind them; none when that is negative."""
    up_to = list(accumulate(segment.size_bytes for segment in segments))

    def rule(index: int, segment: SegmentFacts) -> Expiry | None:
        rest_bytes = up_to[-1] - up_to[index]
        if not 0 <= limit_bytes <= rest_bytes:
            return None
        rest, limit = format_bytes(rest_bytes), format_bytes(limit_bytes)
        detail = f"{rest} would remain without it; the limit is {limit} ({name})"
        return Expiry(segment, name, detail, None)

    return rule


def local_retention_ms(config: TopicConfig) -> int:
    """Return how long this machine keeps archived segments; negative: no limit.

    -2 means as long as the log keeps them, which for a topic that never deletes is for ever. As in Kafka
    there is no local limit while nothing is copied.
    """
    return _local(config, config.local_retention_ms, config.retention_ms)


def local_retention_bytes(config: TopicConfig) -> int:
    """Return how many bytes of a partition this machine keeps; negative: no limit."""
    return _local(config, config.local_retention_bytes, config.retention_bytes)


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
        rest = f"{newer} newer sealed segment{'' if newer == 1 else 's'}"
        detail = f"{rest} would remain without it; the limit is {keep} (retention.segments)"
        return Expiry(segment, "retention.segments", detail, None)

    return rule


def _due_ms(segment: SegmentFacts, limit_ms: int, now_ms: int) -> int | None:
    """Return the first time from now on at which `by_age` takes it."""
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


_AT_REST = (SegmentState.SEALED, SegmentState.COMPACTED)


def to_archive(
    config: TopicConfig,
    segments: Sequence[SegmentFacts],
    *,
    last_stable_offset: int,
    first_dirty_offset: int | None = None,
    now_ms: int,
) -> list[SegmentFacts]:
    """Return the segments to copy, oldest first, up to the first that has to wait.

    They are sealed, below the last stable offset (an open transaction may still be aborted), not archived,
    and not about to be deleted. For a compacted topic ``first_dirty_offset`` is the cleaner's; None: nothing
    was cleaned yet. Where cleaning is off for the whole store, pass the last stable offset.
    """
    if not config.remote_storage_enable or config.remote_log_copy_disable or not segments:
        return []
    limit = last_stable_offset
    if config.compact:
        limit = min(limit, first_dirty_offset if first_dirty_offset is not None else segments[0].base_offset)
    start = segments[0].base_offset
    going = len(expired(config, segments, now_ms, log_start_offset=start, high_watermark=limit))
    ready = takewhile(
        lambda pair: pair[1] <= limit and (pair[0].state in _AT_REST or pair[0].in_archive),
        with_upper(segments[going:]),
    )
    return [segment for segment, _ in ready if not segment.in_archive]


def local_expired(
    config: TopicConfig, segments: Sequence[SegmentFacts], now_ms: int, *, by_time: bool = True
) -> list[Expiry]:
    """Return the archived segments whose files may leave this machine: the oldest local ones.

    ``local.retention.ms`` and ``local.retention.bytes``, the latter over all local files, the active one's
    too. No record is lost, so it needs no ``delete`` in the topic's cleanup.policy.
    """
    local = [segment for segment in segments if segment.local]
    may_go = list(takewhile(lambda segment: segment.archived and segment.state in _AT_REST, local))
    rules = [
        by_age("local.retention.ms", local_retention_ms(config) if by_time else -1, now_ms),
        by_bytes("local.retention.bytes", local_retention_bytes(config), local),
    ]
    return oldest(may_go, rules)


def archive_turned_off(config: TopicConfig, segments: Sequence[SegmentFacts]) -> list[Expiry]:
    """Return every archived copy if the archive is off with ``remote.log.delete.on.disable``."""
    if config.remote_storage_enable or not config.remote_log_delete_on_disable:
        return []
    detail = "remote.storage.enable is off and remote.log.delete.on.disable is on"
    return [
        Expiry(segment, "remote.log.delete.on.disable", detail, None)
        for segment in segments
        if segment.in_archive
    ]
