"""When the active segment ends and the next one begins: pure functions of config, facts and time.

Kafka's rules (LogSegment.shouldRoll), and three of ours: ``segment.records``, ``segment.align.ms`` and the
rolling of a segment that is no longer written to. Touches nothing; the writer asks before every append
and the background thread now and then. An empty segment never rolls: the next one would have its name.

Time, as Kafka sees it, is record time: ``segment.ms`` compares the incoming timestamp with that of the
segment's first batch, so replaying a year of history makes the segments that year would have made. Only
when the first batch has no timestamp, and for idle segments, the wall clock decides.

**Alignment.** With ``segment.align.ms`` a segment belongs to the window its first batch fell in, and an
incoming timestamp of a *later* window rolls. Late records, of an earlier window, stay in the active
segment however late they are: windows only ever move forward, so a stream that alternates between two
windows makes two segments and not one for each record. The price: a record stamped far in the future
opens its window early, and what follows joins it until the wall clock (through the idle rule) or another
limit ends that segment. Aligned segments thus tell where a window begins, not that nothing of it comes later.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from stratalog.config.topic import TopicConfig
from stratalog.model import LONG_MAX, saturated

OFFSET_INDEX_ENTRY_BYTES = 8
TIME_INDEX_ENTRY_BYTES = 12
MAX_RELATIVE_OFFSET = 2**31 - 1


class RollReason(enum.StrEnum):
    """Why a segment ended; the value is fit for a log line."""

    BYTES = "segment.bytes"
    TIME = "segment.ms"
    OFFSET_INDEX = "offset index full"
    TIME_INDEX = "time index full"
    OFFSETS = "relative offsets past 31 bits"
    RECORDS = "segment.records"
    WINDOW = "segment.align.ms"


@dataclass(frozen=True, slots=True)
class ActiveSegmentFacts:
    """What the policy needs to know of the active segment.

    ``created_ms``       wall clock when its first batch was written (when the file was made, while empty).
    ``first_timestamp``  the largest timestamp in its first batch; None while empty, -1 when it has none.
    ``jitter_ms``        what `jitter_ms` chose for this segment.
    """

    base_offset: int
    size_bytes: int
    records: int
    created_ms: int
    first_timestamp: int | None = None
    offset_index_entries: int = 0
    time_index_entries: int = 0
    jitter_ms: int = 0


@dataclass(frozen=True, slots=True)
class RollLimits:
    """The same rules worked out into numbers an append can be compared with, one comparison each.

    Good until the segment gets its first batch or its next index entry; `limits` makes new ones then.
    An append stays in the segment when all hold:
    ``size + incoming bytes <= size_bytes``, ``records + incoming records <= records``,
    ``incoming last offset <= last_offset``, ``incoming timestamp <= timestamp`` and ``now <= now_ms``.
    """

    size_bytes: int
    records: int
    last_offset: int
    timestamp: int
    now_ms: int


def should_roll(
    config: TopicConfig,
    facts: ActiveSegmentFacts,
    incoming_bytes: int,
    incoming_records: int,
    incoming_max_ts: int,
    incoming_last_offset: int,
    now_ms: int,
) -> RollReason | None:
    """Return why the segment must end before this append; None when the append fits.

    ``incoming_max_ts``: the append's largest timestamp; with LogAppendTime, now.
    """
    if incoming_last_offset - facts.base_offset > MAX_RELATIVE_OFFSET:
        return RollReason.OFFSETS
    if facts.size_bytes == 0:
        return None
    if facts.size_bytes + incoming_bytes > config.segment_bytes:
        return RollReason.BYTES
    full = _index_full(config, facts)
    if full is not None:
        return full
    if facts.records + incoming_records > config.segment_records:
        return RollReason.RECORDS
    since, by_records = _since(facts)
    seen = incoming_max_ts if by_records else now_ms
    if seen - since > max_segment_ms(config) - facts.jitter_ms:
        return RollReason.TIME
    align_ms = config.segment_align_ms
    if align_ms > 0 and seen // align_ms > since // align_ms:
        return RollReason.WINDOW
    return None


def roll_due_idle(config: TopicConfig, facts: ActiveSegmentFacts, now_ms: int) -> RollReason | None:
    """Return why an idle segment should end now, by the wall clock alone; or None.

    By record time a segment with last year's records would be due at once.
    """
    if facts.size_bytes == 0:
        return None
    if now_ms - facts.created_ms > max_segment_ms(config) - facts.jitter_ms:
        return RollReason.TIME
    align_ms = config.segment_align_ms
    if align_ms > 0 and now_ms // align_ms > facts.created_ms // align_ms:
        return RollReason.WINDOW
    return None


def limits(config: TopicConfig, facts: ActiveSegmentFacts) -> RollLimits:
    """Return `should_roll` as numbers, for the hot path of single appends."""
    last_offset = saturated(facts.base_offset + MAX_RELATIVE_OFFSET)
    if facts.size_bytes == 0:
        return RollLimits(LONG_MAX, LONG_MAX, last_offset, LONG_MAX, LONG_MAX)
    if _index_full(config, facts) is not None:
        return RollLimits(-1, -1, -1, -1, -1)
    since, by_records = _since(facts)
    latest = since + max_segment_ms(config) - facts.jitter_ms
    align_ms = config.segment_align_ms
    if align_ms > 0:
        latest = min(latest, (since // align_ms + 1) * align_ms - 1)
    latest = saturated(latest)
    return RollLimits(
        size_bytes=config.segment_bytes,
        records=config.segment_records,
        last_offset=last_offset,
        timestamp=latest if by_records else LONG_MAX,
        now_ms=LONG_MAX if by_records else latest,
    )


def max_segment_ms(config: TopicConfig) -> int:
    """Return ``segment.ms``, or ``max.compaction.lag.ms`` where shorter: only sealed logs are compacted."""
    if config.compact and config.max_compaction_lag_ms > 0:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def jitter_ms(config: TopicConfig, topic: str, partition: int, base_offset: int) -> int:
    """Return this segment's share of ``segment.jitter.ms``: pseudo-random, and the same after a restart."""
    bound = min(config.segment_jitter_ms, config.segment_ms)
    if bound <= 0:
        return 0
    digest = hashlib.blake2b(f"{topic}-{partition}/{base_offset}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % bound


def reopened_created_ms(first_timestamp: int | None, log_mtime_ms: int, now_ms: int) -> int:
    """Return ``created_ms`` for a segment found on disk.

    Its first write was no later than the file's last change; the first batch's own time is the better guess
    unless it is later. History written with old timestamps is rolled once, early.
    """
    latest = min(log_mtime_ms, now_ms)
    if first_timestamp is not None and 0 <= first_timestamp <= latest:
        return first_timestamp
    return latest


def _since(facts: ActiveSegmentFacts) -> tuple[int, bool]:
    """Return when the segment's time began, and whether that is record time (else the wall clock's)."""
    if facts.first_timestamp is not None and facts.first_timestamp >= 0:
        return facts.first_timestamp, True
    return facts.created_ms, False


def _index_full(config: TopicConfig, facts: ActiveSegmentFacts) -> RollReason | None:
    if facts.offset_index_entries >= config.segment_index_bytes // OFFSET_INDEX_ENTRY_BYTES:
        return RollReason.OFFSET_INDEX
    # The last slot is kept for the entry that sealing adds.
    if facts.time_index_entries >= config.segment_index_bytes // TIME_INDEX_ENTRY_BYTES - 1:
        return RollReason.TIME_INDEX
    return None
