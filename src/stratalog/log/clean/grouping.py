"""Which neighbours become one: segments that together fit into a full one, as Kafka groups them.

Compaction shrinks segments; without merging, a log would end as thousands of tiny files. The sum of the
sizes before cleaning must fit, because nobody knows yet what survives. Asks files for their size, no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stratalog.config import TopicConfig
from stratalog.log.segment.segment import Segment

MAX_RELATIVE_OFFSET = 2**31 - 1


def group_segments(
    segments: Sequence[Segment], config: TopicConfig, end: int, *, apart: Collection[Segment] = ()
) -> list[list[Segment]]:
    """Runs of neighbours within ``segment.bytes``, ``segment.index.bytes`` and 31 bits of offsets.

    ``end``: the offset where the last segment's records end at most. Segments in ``apart`` are in no group.
    """
    groups: list[list[Segment]] = []
    room = _Room(config)
    for at, segment in enumerate(segments):
        if segment in apart:
            room.close()
            continue
        last = (segments[at + 1].base_offset if at + 1 < len(segments) else end) - 1
        if room.takes(segment, last):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            room.begin(segment)
    return groups


class _Room:
    """What is left of one group's limits."""

    def __init__(self, config: TopicConfig) -> None:
        self._config = config
        self._base_offset: int | None = None
        self._sizes = (0, 0, 0)

    def begin(self, segment: Segment) -> None:
        self._base_offset = segment.base_offset
        self._sizes = _sizes(segment)

    def close(self) -> None:
        self._base_offset = None

    def takes(self, segment: Segment, last_offset: int) -> bool:
        if self._base_offset is None:
            return False
        more = _sizes(segment)
        log, index, times = (a + b for a, b in zip(self._sizes, more, strict=True))
        limit = self._config.segment_index_bytes
        if log > self._config.segment_bytes or index > limit or times > limit:
            return False
        # An empty segment needs no index entry; without this one would be left every 2**31 offsets.
        if segment.size and last_offset - self._base_offset > MAX_RELATIVE_OFFSET:
            return False
        self._sizes = (log, index, times)
        return True


def _sizes(segment: Segment) -> tuple[int, int, int]:
    return segment.size, _size_of(segment, "index"), _size_of(segment, "timeindex")


def _size_of(segment: Segment, kind: str) -> int:
    try:
        return segment.context.fs.stat(segment.path(kind)).size
    except FileNotFoundError:
        return 0
