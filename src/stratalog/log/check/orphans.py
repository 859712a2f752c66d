"""Sidecars whose log is gone: the trace that a lost first segment leaves. Reads only.

Deletions and replacements explain what they leave, by the log start they write down first or by files beside
it; see `directory_state`. What nothing explains stays until `repair --action drop-damaged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from stratalog.errors import CorruptionError, FormatError
from stratalog.format import checkpoints
from stratalog.format.seal import parse as parse_seal
from stratalog.fs import FileSystem
from stratalog.log.check.damage import UNKNOWN, Damage
from stratalog.log.names import LOG, MAX_OFFSET, SEAL, file_name
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.reader import LogView, segment_index
from stratalog.log.segment.directory_state import settled_view
from stratalog.log.segment.segment import Segment

MISSING_LOG = (
    "the log file is missing, but its indexes exist;"
    " `stratalog repair TOPIC --action drop-damaged` accepts the loss"
)


def check_orphans(view: LogView, synced: int) -> list[Damage]:
    """Name the logs that are gone while their sidecars are still there: the records of each are lost.

    Not so below the log start, where a deletion was cut short, in what the archive has, and past ``synced``,
    where a power cut may have kept one file and not the other.
    """
    view.refresh()
    segments = view.segments()
    fs = segments[0].context.fs
    found, _ = settled_view(fs, view.directory)
    if not found.orphans:
        return []
    start = checkpointed_start(fs, view.directory, view.topic, view.partition)
    bases = [*found.orphans, *(each.base_offset for each in found.segments)]
    lost = []
    for base in found.orphans:
        path = f"{view.directory}/{file_name(base, LOG)}"
        last = min(each for each in bases if each > base) - 1
        with suppress(FileNotFoundError, FormatError):
            last = parse_seal(fs.read_file(f"{view.directory}/{file_name(base, SEAL)}")).last_offset
        if last < start or last >= synced or _has(segments, base):
            continue
        first = max(base, start)
        lost.append(Damage(path, UNKNOWN, UNKNOWN, first, last, MISSING_LOG))
    return lost


def checkpointed_start(fs: FileSystem, directory: str, topic: str, partition: int) -> int:
    """Return the log start offset written down; past everything when it cannot be read.

    Every deletion writes it before it touches a file.
    """
    path = f"{directory.rpartition('/')[0]}/{checkpoints.LOG_START}"
    try:
        return checkpoints.parse_offsets(fs.read_file(path)).get((topic, partition), 0)
    except FileNotFoundError:
        return 0
    except FormatError:
        return MAX_OFFSET


def _has(segments: Sequence[Segment], offset: int) -> bool:
    """Return True if a segment, here or in the archive, has an offset or cannot tell."""
    segment = segments[segment_index(segments, offset)]
    if segment.base_offset > offset:
        return False
    if isinstance(segment, ArchivedSegment):
        return offset < (segment.next_offset or 0)
    try:
        return offset < segment.batches_end_offset()
    except (CorruptionError, FileNotFoundError):
        return True
