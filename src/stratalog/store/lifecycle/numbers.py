"""The numbers that show a leak: segments, bytes and files by state, and what is past due."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stratalog.errors import FormatError, LogDirOfflineError, UnknownTopicError
from stratalog.log import names
from stratalog.log.names import parse_file
from stratalog.log.segment.directory_state import list_files, view_of
from stratalog.model import SegmentState
from stratalog.store.lifecycle.planning import overdue
from stratalog.store.lifecycle.reports import PartitionNumbers, StateNumbers

if TYPE_CHECKING:
    from stratalog.store.catalog import TopicEntry
    from stratalog.store.lifecycle.facts import View
    from stratalog.store.lifecycle.lifecycle import Lifecycle
    from stratalog.store.logdir import LogDir
    from stratalog.store.partitions import Partitions


@dataclass(frozen=True, slots=True)
class LogDirInfo:
    """The numbers of one log directory."""

    path: str
    partitions: int
    segments: int
    size_bytes: int
    free_bytes: int | None
    offline: str | None
    offline_partitions: dict[str, str] = field(default_factory=dict)
    """Partitions of this directory that could not be opened, with the reason."""


def log_dir_numbers(partitions: Partitions, where: LogDir) -> LogDirInfo:
    """Partitions, segments and bytes of one log directory; archived segments do not count."""
    if where.offline is not None:
        return LogDirInfo(where.path, 0, 0, 0, None, str(where.offline))
    count = segments = size = 0
    offline = {}
    for entry in partitions.entries.values():
        for partition, (each, _) in entry.directories.items():
            if each is not where:
                continue
            count += 1
            try:
                view = partitions.view(entry.name, partition)
                view.refresh()
            except (LogDirOfflineError, FormatError) as error:
                offline[f"{entry.name}-{partition}"] = str(error)
                continue
            segments += len(view.local_segments())
            size += sum(segment.size for segment in view.local_segments())
    free_bytes = partitions.context.fs.free_bytes(where.path)
    return LogDirInfo(where.path, count, segments, size, free_bytes, None, offline)


def partition_numbers(lifecycle: Lifecycle) -> list[PartitionNumbers]:
    """The numbers of every partition that can be opened."""
    found = []
    for name in sorted(lifecycle.partitions.entries):
        with suppress(UnknownTopicError, FileNotFoundError):  # deleted while we looked
            found += [_numbers(lifecycle, entry, view) for entry, view in lifecycle.views(name)]
    return found


def _numbers(lifecycle: Lifecycle, entry: TopicEntry, log: View) -> PartitionNumbers:
    listing = list_files(log.context.fs, log.directory)
    view = view_of(listing)
    files: defaultdict[int, int] = defaultdict(int)
    doomed_files = doomed_bytes = rewriting_files = rewriting_bytes = 0
    for name, size in listing.items():
        parsed = parse_file(name)
        if parsed is None or parsed.kind == names.TORN:
            continue
        if parsed.suffix == names.DELETED:
            doomed_files, doomed_bytes = doomed_files + 1, doomed_bytes + size
        elif parsed.suffix in (names.CLEANED, names.SWAP):
            rewriting_files, rewriting_bytes = rewriting_files + 1, rewriting_bytes + size
        else:
            files[parsed.base_offset] += 1
    states: dict[str, StateNumbers] = {}
    for info in log.segment_infos():
        known = states.get(info.state, StateNumbers())
        here = 0 if info.state is SegmentState.ARCHIVED else files[info.base_offset]
        states[info.state] = StateNumbers(
            known.segments + 1, known.size_bytes + info.size_bytes, known.files + here
        )
    if view.cleaning:
        states[SegmentState.COMPACTING] = StateNumbers(len(view.cleaning), rewriting_bytes, rewriting_files)
    if doomed_files:
        states[SegmentState.DELETED] = StateNumbers(len(view.deleted), doomed_bytes, doomed_files)
    late = overdue(lifecycle.situation(entry, log, cleaning=False))
    return PartitionNumbers(
        log.topic,
        log.partition,
        {str(state): numbers for state, numbers in states.items()},
        late[0] if late is not None else None,
        late[1] if late is not None else None,
        len(view.torn),
        lifecycle.quarantined.get((log.topic, log.partition), ()),
    )
