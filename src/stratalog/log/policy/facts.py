"""What the policies know of a segment, and the few readings of it that all of them share.

Pure values: whoever holds the directory or the archive's manifest fills them in, and a decision refers
back to them. Touches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.config.units import format_time
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
        """Whether this machine has its files."""
        return self.state not in (SegmentState.ARCHIVED, SegmentState.DELETED)

    @property
    def in_archive(self) -> bool:
        return self.archived or self.state is SegmentState.ARCHIVED


def newest_ms(segment: SegmentFacts, now_ms: int | None = None) -> int | None:
    """The moment a segment's age counts from; None when nothing tells.

    That of its newest record. A record stamped after ``now_ms`` would hold its segment until then, however
    far off, so it counts from when the file was last written at the latest. A time that is not in the future
    is believed even where the file claims to be older: files come out of backups, and out of machines that
    boot without a clock, with dates that would make fresh records old. Without ``now_ms`` every time after
    the last write counts as the future. Without a timestamp (-1, or no records) the last write counts.
    """
    newest, written = segment.max_timestamp, segment.modified_ms
    if newest is None or newest < 0:
        return written
    if written is None or (now_ms is not None and newest <= now_ms):
        return newest
    return min(newest, written)


def with_upper(segments: Sequence[SegmentFacts]) -> Iterator[tuple[SegmentFacts, int]]:
    """Each segment with the offset the log would start at without it: the next one's base.

    After compaction a segment's own ``next_offset`` may lie below that.
    """
    for index, segment in enumerate(segments):
        following = index + 1
        yield segment, segments[following].base_offset if following < len(segments) else segment.next_offset


def moment(timestamp_ms: int) -> str:
    """A time as sentences have it: ``2026-01-02T03:04:05Z``."""
    return format_time(timestamp_ms // 1000 * 1000).replace(".000Z", "Z")
