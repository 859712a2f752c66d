"""What goes to the archive, what may then leave this machine, and what leaves the archive: pure functions.

Kafka's rules for its remote tier, and compacted topics, which Kafka's tier refuses. Nothing here looks at a
file: ``archived`` in the facts means that a copy was read back and verified.

**Compacted topics** send up only what lies below the cleaner's first dirty offset. Above it the next round
of cleaning rewrites everything, so the upload would be wasted; and a segment that left this machine
uncleaned would keep superseded values for good, because the cleaner works on local files. A segment
that cleaning rewrites again later is a new segment, not archived yet, and takes the place of its
predecessors in the archive. The share of dirty bytes that cleaning waits for bounds how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from stratalog.config.topic import TopicConfig
from stratalog.log.policy.facts import SegmentFacts, with_upper
from stratalog.log.policy.retention import (
    Expiry,
    by_age,
    by_bytes,
    expired,
    local_retention_bytes,
    local_retention_ms,
    oldest,
)
from stratalog.model import SegmentState

_AT_REST = (SegmentState.SEALED, SegmentState.COMPACTED)


def to_archive(
    config: TopicConfig,
    segments: Sequence[SegmentFacts],
    *,
    last_stable_offset: int,
    first_dirty_offset: int | None = None,
    now_ms: int,
    by_time: bool = True,
) -> list[SegmentFacts]:
    """The segments to copy, oldest first; the archive never gets ahead of a segment it has to wait for.

    Sealed, below the last stable offset (an open transaction may still be aborted), not archived yet, and
    not about to be deleted by retention anyway. For a compacted topic ``first_dirty_offset`` is the
    cleaner's; None means that nothing was cleaned yet. Where cleaning is turned off for the whole store, pass
    the last stable offset.
    """
    if not config.remote_storage_enable or config.remote_log_copy_disable or not segments:
        return []
    limit = last_stable_offset
    if config.compact:
        limit = min(limit, first_dirty_offset if first_dirty_offset is not None else segments[0].base_offset)
    start = segments[0].base_offset
    going = len(
        expired(config, segments, now_ms, log_start_offset=start, high_watermark=limit, by_time=by_time)
    )
    ready = takewhile(
        lambda pair: pair[1] <= limit and (pair[0].state in _AT_REST or pair[0].in_archive),
        with_upper(segments[going:]),
    )
    return [segment for segment, _ in ready if not segment.in_archive]


def local_expired(
    config: TopicConfig, segments: Sequence[SegmentFacts], now_ms: int, *, by_time: bool = True
) -> list[Expiry]:
    """The archived segments whose files may leave this machine: the oldest local ones, without a gap.

    ``local.retention.ms`` and ``local.retention.bytes``, the latter over all local files, the active one's
    too. No record is lost by it, so it needs no ``delete`` in the topic's cleanup.policy.
    """
    local = [segment for segment in segments if segment.local]
    may_go = list(takewhile(lambda segment: segment.archived and segment.state in _AT_REST, local))
    rules = [
        by_age("local.retention.ms", local_retention_ms(config) if by_time else -1, now_ms),
        by_bytes("local.retention.bytes", local_retention_bytes(config), local),
    ]
    return oldest(may_go, rules)


def archive_expired(
    config: TopicConfig,
    segments: Sequence[SegmentFacts],
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    by_time: bool = True,
) -> list[Expiry]:
    """The copies that have to leave the archive: those of `expired` segments, counted over both sides.

    With ``remote.log.delete.on.disable`` and the archive turned off, every copy.
    """
    if config.remote_log_delete_on_disable and not config.remote_storage_enable:
        detail = "remote.storage.enable is off and remote.log.delete.on.disable is on"
        return [
            Expiry(segment, "remote.log.delete.on.disable", detail, None)
            for segment in segments
            if segment.in_archive
        ]
    going = expired(
        config,
        segments,
        now_ms,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        by_time=by_time,
    )
    return [expiry for expiry in going if expiry.segment.in_archive]
