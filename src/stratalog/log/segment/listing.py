"""Reading a partition directory, and settling it: the part of `view` that touches the disk."""

from __future__ import annotations

import time
from collections.abc import Iterable

from stratalog.errors import CorruptionError, StorageError
from stratalog.fs import FileStat, FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import SWAP, segment_name
from stratalog.log.segment.directory_state import Action, Delete, DirectoryView, Rename, agreed, view_of
from stratalog.log.segment.scanning import scan_file
from stratalog.log.segment.segment import Segment

LISTING_TRIES = 100
LISTING_S = 10.0
"""A directory is listed as many times and for as long at least before it counts as unsettled."""


def list_stats(fs: FileSystem, directory: str) -> dict[str, FileStat]:
    """The plain files in a partition directory by name, less what vanishes meanwhile."""
    found = {}
    for name in fs.list_dir(directory):
        try:
            stat = fs.stat(f"{directory}/{name}")
        except FileNotFoundError:
            continue
        if not stat.is_dir:
            found[name] = stat
    return found


def list_files(fs: FileSystem, directory: str) -> dict[str, int]:
    """Names and sizes of the plain files in a partition directory."""
    return {name: stat.size for name, stat in list_stats(fs, directory).items()}


class UnsettledError(StorageError):
    """A directory changed faster than it could be listed."""


def settled_listing(fs: FileSystem, directory: str) -> tuple[dict[str, int], dict[str, FileStat]]:
    """Names and sizes that two listings in a row agree on, and every file's stat."""
    before, tries, began_s = list_files(fs, directory), 0, time.monotonic()
    while tries < LISTING_TRIES or time.monotonic() - began_s < LISTING_S:
        stats = list_stats(fs, directory)
        now = {name: stat.size for name, stat in stats.items()}
        found = agreed(before, now)
        if found is not None:
            return found, stats
        before, tries = now, tries + 1
    raise UnsettledError(f"{directory}: changes too fast to be listed; try again")


def settled_view(fs: FileSystem, directory: str) -> tuple[DirectoryView, dict[str, FileStat]]:
    """What a reader may rely on: the meaning of two listings in a row that agree, and every file's stat."""
    entries, stats = settled_listing(fs, directory)
    return view_of(entries), stats


def run_actions(context: LogContext, directory: str, actions: Iterable[Action]) -> None:
    """Carry out what a view found left over. Stopped anywhere, a new view leads to the same end."""
    for action in actions:
        if isinstance(action, Delete):
            context.handles.forget(f"{directory}/{action.name}")
            try:
                context.fs.remove(f"{directory}/{action.name}")
            except FileNotFoundError:
                continue
        elif isinstance(action, Rename):
            source, target = f"{directory}/{action.source}", f"{directory}/{action.target}"
            context.handles.forget(source)
            context.handles.forget(target)
            try:
                context.fs.rename(source, target)
            except FileNotFoundError:
                continue
        else:
            context.fs.sync_dir(directory)


def swap_end(context: LogContext, directory: str, base_offset: int) -> int:
    """The offset after the last record of a `.swap` segment, by reading it.

    A swap that does not check out to its last byte must not replace anything: `CorruptionError`.
    """
    path = f"{directory}/{segment_name(base_offset)}.log{SWAP}"
    segment = Segment(context, directory, "", 0, base_offset, size=context.fs.stat(path).size, suffix=SWAP)
    end, position = base_offset, 0
    with segment.open_log() as file:
        for at, _, scan in scan_file(file, 0, segment.size, check_crc=True):
            if scan.n:
                end, position = scan.last_offset + 1, at + scan.end
    segment.forget()
    if position < segment.size:
        raise CorruptionError(
            "a segment waiting to be swapped in is damaged; the ones it replaces are still there: remove the"
            " .swap files to keep those",
            path=segment.path(),
            position=position,
        )
    return end
