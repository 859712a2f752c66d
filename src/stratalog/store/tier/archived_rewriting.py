"""Rewriting a segment that only the archive has: fetched, given to an engine, put back in its place.

The work is done in a directory outside the log directories, which is removed afterwards; what a crash leaves
there is removed by the next `Tiering.sweep`. Until the archive's manifest changes, nothing has happened; from
then on the old objects belong to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stratalog.archive import SegmentEntry, SegmentUpload
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.segment.segment import Segment
from stratalog.store.tier.tiers import Tier

Engine = Callable[[Segment, str], Sequence[Segment]]
"""Rewrites a segment into a directory: the new segments, written and synced there under any suffix, the first
with the base offset of the old one; or none when nothing is to change."""


def rewrite_archived(
    context: LogContext,
    tier: Tier,
    entry: SegmentEntry,
    engine: Engine,
    work: str,
    progress: Callable[[int, int], None] | None = None,
) -> list[SegmentEntry]:
    """What takes the place of ``entry`` in the archive now; empty when the engine left it as it is."""
    fs = context.fs
    old, new = f"{work}/old", f"{work}/new"
    remove_tree(fs, work)
    for directory in (old, new):
        fs.make_dir(directory)
    archive = tier.archive
    source = Segment(
        context,
        old,
        archive.topic,
        archive.partition,
        entry.base_offset,
        size=entry.size_bytes,
        next_offset=entry.next_offset,
    )
    made: list[Segment] = []
    try:
        archive.download(entry, old, progress=progress)
        made += engine(source, new)
        if not made:
            return []
        return archive.replace([entry], _uploads(fs, made, entry, old), progress)
    finally:
        for segment in (source, *made):
            segment.forget()
        remove_tree(fs, work)


def _uploads(fs: FileSystem, made: Sequence[Segment], entry: SegmentEntry, old: str) -> list[SegmentUpload]:
    """The rewritten segments, up to where the old one ended; its snapshot is that of its end, still."""
    uploads = []
    for at, segment in enumerate(made):
        end = made[at + 1].base_offset if at + 1 < len(made) else entry.next_offset
        found = SegmentUpload.collect(fs, segment.directory, segment.base_offset, end, segment.suffix)
        snapshot = f"{old}/{entry.next_offset:020d}.snapshot"
        if end == entry.next_offset and fs.exists(snapshot):
            found = replace(found, files={**found.files, "snapshot": snapshot})
        uploads.append(found)
    return uploads


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory and all in it, if it is there."""
    if fs.exists(path):
        fs.remove_tree(path)
