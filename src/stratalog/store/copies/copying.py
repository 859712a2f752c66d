"""Copying one partition: every segment below the cut linked, copied or written anew, as it allows.

The source may change meanwhile, by compaction or retention: what was copied counts only when the names still
mean the same files behind it, else it is copied again. Writes only to the directory of its builder.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from stratalog.config import TopicConfig
from stratalog.errors import CorruptionError, StorageError
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.gaps import check_complete
from stratalog.log.segment.directory_state import UnsettledError
from stratalog.store.copies.building import PartitionBuilder
from stratalog.store.copies.parts import CutAt, Part, names_of
from stratalog.store.copies.reports import Meter, PartitionCopy

COPY_TRIES = 50


def make_builder(
    part: Part,
    directory: str,
    meter: Meter,
    *,
    topic_id: uuid.UUID,
    topic: str | None = None,
    config: TopicConfig | None = None,
) -> PartitionBuilder:
    """A builder for a copy of this partition, with its own settings or others."""
    return PartitionBuilder(
        part.context,
        directory,
        topic or part.topic,
        part.partition,
        config or part.config,
        meter,
        topic_id=topic_id,
    )


def copy_partition(
    part: Part,
    builder: PartitionBuilder,
    cut_at: CutAt,
    meter: Meter,
    *,
    archived: bool = True,
    anew: bool = False,
) -> PartitionCopy:
    """Fill ``builder`` with a copy of what lies below the offset that ``cut_at`` tells.

    It is asked again when the source changed meanwhile. Without ``archived`` only what lies in the
    directory is taken; ``anew`` writes every segment anew, each batch checked.
    """
    done_before = meter.done_bytes
    for attempt in range(COPY_TRIES):
        with part.at_rest():
            try:
                if attempt:
                    builder.start_over()
                    meter.back_to(done_before)
                    part.look()
                cut = cut_at(part)
                used = _copy_segments(part, builder, cut, archived=archived, anew=anew)
                if not part.unchanged(used):
                    continue
                _take_snapshots(part, builder, cut)
                made = builder.finish(
                    end=cut,
                    log_start_offset=part.log_start_offset,
                    leader_epochs=part.leader_epochs(),
                )
            except (FileNotFoundError, UnsettledError):
                continue
            return replace(
                made,
                log_start_offset=min(max(part.log_start_offset, builder.segments[0].base_offset), cut),
                source_end_offset=part.end_offset,
            )
    raise StorageError(
        f"{part.topic}-{part.partition}: its segments were replaced or removed {COPY_TRIES} times while they"
        " were copied; try again when no cleanup is running"
    )


def check_part(part: Part, start: int, end: int) -> None:
    """Raise CorruptionError if any of [start, end) is missing, FileNotFoundError if the source changed."""
    try:
        check_complete(part.segments, start, end)
    except CorruptionError as error:
        files = [name for files in part.directory_files.values() for name in names_of(files).values()]
        if part.unchanged(files):
            raise
        raise FileNotFoundError(part.directory) from error


def _take_snapshots(part: Part, builder: PartitionBuilder, cut: int) -> None:
    """The producers' state where segments begin; an archived segment has that at its own end."""
    builder.take_snapshots(part.directory, part.snapshots, cut)
    archived = [
        segment
        for segment in part.segments
        if isinstance(segment, ArchivedSegment) and segment.source.next_offset <= cut
    ]
    if archived and not any(offset <= cut for offset in part.snapshots):
        data = archived[-1].source.read("snapshot")
        if data is not None:
            builder.add_snapshot(archived[-1].source.next_offset, data)


def _copy_segments(
    part: Part, builder: PartitionBuilder, cut: int, *, archived: bool, anew: bool
) -> list[str]:
    """Take every segment below ``cut``; returns the names that must still mean the same afterwards."""
    used: list[str] = []
    segments, start = part.segments, part.log_start_offset
    check_part(part, start, cut)
    for at, segment in enumerate(segments):
        if segment.base_offset >= cut:
            break
        last = at == len(segments) - 1
        following = None if last else segments[at + 1].base_offset
        if following is not None and following <= start:
            continue
        files = part.directory_files.get(segment.base_offset)
        if files is None and not archived:
            continue
        if files is not None:
            used.append(files.log)
        if following is None or following > cut:
            builder.write(segment, cut, whole=False)
            break
        if files is None or anew or not part.ours:
            builder.write(segment, following, whole=True)
            continue
        paths = {kind: f"{part.directory}/{name}" for kind, name in names_of(files).items()}
        if following <= part.linkable_below and builder.link(segment, paths, following):
            used.extend(name for name in names_of(files).values())
        else:
            builder.copy(segment, paths, following)
    return used
