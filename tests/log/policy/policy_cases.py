"""Segments and settings for the tests of the policies: by hand, and as hypothesis makes them up."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from stratalog.config.topic import TopicConfig
from stratalog.log.policy.retention import SegmentFacts
from stratalog.model import SegmentState

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z
LONG_MAX = 2**63 - 1

ACTIVE, SEALED, COMPACTED = SegmentState.ACTIVE, SegmentState.SEALED, SegmentState.COMPACTED
ARCHIVED = SegmentState.ARCHIVED
LOCAL_STATES = (SEALED, COMPACTED, SegmentState.COMPACTING)


def segment(base: int, age_ms: int = 0, *, size: int = 100, **more: Any) -> SegmentFacts:
    """Ten offsets whose newest record is ``age_ms`` old and was written when it was stamped."""
    facts: dict[str, Any] = {
        "base_offset": base,
        "next_offset": base + 10,
        "size_bytes": size,
        "state": SEALED,
        "min_timestamp": NOW - age_ms - 1,
        "max_timestamp": NOW - age_ms,
        "modified_ms": NOW - age_ms,
    }
    return SegmentFacts(**(facts | more))


def row(*ages_ms: int, **more: Any) -> list[SegmentFacts]:
    """Segments of these ages, the last one active."""
    made = [segment(10 * index, age, **more) for index, age in enumerate(ages_ms)]
    made[-1] = made[-1]._replace(state=ACTIVE)
    return made


class Case(NamedTuple):
    """A partition, its settings and its offsets, which may be anywhere in the log or past its end."""

    config: TopicConfig
    segments: list[SegmentFacts]
    start: int
    high: int
    stable: int
    dirty: int


class _Drawn(NamedTuple):
    state: SegmentState
    span: int
    gap: int
    size: int
    min_timestamp: int | None
    max_timestamp: int | None
    modified_ms: int | None
    archived: bool


_EDGES = [None, -1, 0, NOW - 7 * DAY - 1, NOW - 7 * DAY, NOW - 7 * DAY + 1, NOW, NOW + 1, LONG_MAX]
_TIMES = st.sampled_from(_EDGES) | st.integers(NOW - 20 * DAY, NOW + 20 * DAY)
_SPANS = st.sampled_from([-2, -1, 0, HOUR, 7 * DAY, LONG_MAX]) | st.integers(0, 20 * DAY)
_SEGMENTS = st.lists(
    st.builds(
        _Drawn,
        st.sampled_from(LOCAL_STATES),
        st.integers(1, 20),
        st.integers(0, 5),
        st.integers(0, 1000),
        _TIMES,
        _TIMES,
        _TIMES,
        st.booleans(),
    ),
    max_size=8,
)


def _log(drawn: list[_Drawn], archived: int, active: bool) -> list[SegmentFacts]:
    """Archived segments first, local ones behind them, offsets with the gaps that compaction leaves."""
    found: list[SegmentFacts] = []
    base = 0
    for index, each in enumerate(drawn):
        last = active and index == len(drawn) - 1
        state = ACTIVE if last else ARCHIVED if index < archived else each.state
        span = each.span - 1 if last else each.span  # an active segment may be empty
        found.append(
            SegmentFacts(
                base,
                base + span,
                each.size if span else 0,
                state,
                min_timestamp=each.min_timestamp,
                max_timestamp=each.max_timestamp,
                modified_ms=None if each.modified_ms == -1 else each.modified_ms,
                archived=state is ARCHIVED or (each.archived and not last),
            )
        )
        base += span + (each.gap if state is COMPACTED else 0)
    return found


LOGS = st.builds(_log, _SEGMENTS, st.integers(0, 3), st.booleans() | st.just(True))

CONFIGS = st.builds(
    TopicConfig,
    cleanup_policy=st.sampled_from(
        [frozenset({"delete"}), frozenset({"compact"}), frozenset({"compact", "delete"}), frozenset()]
    ),
    retention_ms=_SPANS.map(lambda span: max(-1, span)),
    retention_bytes=st.integers(-1, 5000),
    retention_segments=st.sampled_from([-1, 1, 2, 3, 8]),
    min_compaction_lag_ms=st.sampled_from([0, HOUR, 7 * DAY]),
    max_compaction_lag_ms=st.sampled_from([7 * DAY, LONG_MAX]),
    cleaner_min_segment_age_ms=st.sampled_from([0, HOUR]),
    remote_storage_enable=st.booleans(),
    remote_log_copy_disable=st.sampled_from([False, False, True]),
    remote_log_delete_on_disable=st.booleans(),
    local_retention_ms=_SPANS,
    local_retention_bytes=st.integers(-2, 3000),
)


def _case(config: TopicConfig, segments: list[SegmentFacts], picks: tuple[int, int, int, int]) -> Case:
    """Offsets are picked from the ends of segments, those beside them, and everything else, in turn."""
    ends = sorted({0} | {end for each in segments for end in (each.base_offset, each.next_offset)})
    near = ends[::-1] + [end + 1 for end in ends] + [max(0, end - 1) for end in ends] + [ends[-1] + 50]
    return Case(config, segments, *(near[pick % len(near)] for pick in picks))


CASES = st.builds(_case, CONFIGS, LOGS, st.tuples(*[st.integers(0, 60)] * 4))
