"""What is known of a partition's segments, for the policies: from its directory and the archive."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.log.policy.retention import SegmentFacts
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.follower import LiveSegment, PartitionFollower
from stratalog.log.segment.segment import Segment
from stratalog.log.write.segment_list import of_segments
from stratalog.log.write.writer import PartitionWriter
from stratalog.model import SegmentState

View = PartitionWriter | PartitionFollower


def facts_of(view: View, is_archived: Callable[[Segment], bool] | None = None) -> list[SegmentFacts]:
    """The facts of every segment, the active one last.

    ``is_archived`` tells whether the archive has a verified copy of a local segment, just as it is now.
    """
    return of_segments(view, lambda segment: _facts(segment, is_archived))


def _facts(segment: Segment, is_archived: Callable[[Segment], bool] | None) -> SegmentFacts:
    info = segment.full_info() if isinstance(segment, LiveSegment) else segment.info()
    remote = info.state is SegmentState.ARCHIVED
    return SegmentFacts(
        base_offset=segment.base_offset,
        next_offset=info.next_offset,
        size_bytes=segment.size,
        state=info.state,
        records=info.records,
        min_timestamp=info.min_timestamp,
        max_timestamp=info.max_timestamp,
        modified_ms=modified_ms(segment),
        archived=remote or (is_archived is not None and not segment.is_active and is_archived(segment)),
        cleaned=info.state is SegmentState.COMPACTED,
    )


def modified_ms(segment: Segment) -> int | None:
    """When the segment's log was last written to; None when it is gone."""
    if isinstance(segment, ArchivedSegment):
        return segment.source.modified_ms
    try:
        return segment.context.fs.stat(segment.path()).mtime_ns // 1_000_000
    except FileNotFoundError:
        return None
