"""Putting rewritten segments in the place of old ones, while the log is read and appended to.

The new files lie beside the old ones under ``.cleaned``, whole and synced. From here on the order of
renames, with a directory sync wherever order matters, makes every moment one that `view` understands:

    1  sidecars, then logs from the highest base down:  .cleaned -> .swap      the old segments still count
    2  the old ones, as `removal_order` says:                    -> .deleted   the .swap files count
    3  from the lowest up, log before sidecars:         .swap    -> (plain)

Crash policy: before the end of 1 the next start keeps the old segments and drops what was new; from then on
it finishes the swap. Readers go by offset: one that finds its file gone, or another file under its name,
lists again; the swap itself makes them wait only for the renames. Appends are never made to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.errors import StorageError, StratalogError
from stratalog.log import names
from stratalog.log.context import LogContext
from stratalog.log.segment.directory_state import removal_order
from stratalog.log.segment.segment import Segment

if TYPE_CHECKING:
    from stratalog.log.write.writer import PartitionWriter


def swap_in(writer: PartitionWriter, olds: Sequence[Segment], news: Sequence[Segment]) -> bool:
    """Replace ``olds``, a run of sealed segments, by ``news``, written and synced under ``.cleaned``.

    Return False, with ``news`` removed, when the log no longer has all of ``olds``. The old files stay as
    ``.deleted`` for ``file.delete.delay.ms``.
    """
    with writer.maintenance:
        if not is_run(writer.local_segments()[:-1], olds):
            discard(writer.context, news)
            return False
        try:
            writer.settle_tail()
            stage(writer.context, writer.directory, news)
        except (StratalogError, OSError):
            with suppress(StorageError, OSError):
                discard(writer.context, news)
            raise
        _replace(writer, olds, news)
        return True


def _replace(writer: PartitionWriter, olds: Sequence[Segment], news: Sequence[Segment]) -> None:
    """Swap files and publish the new list. Call it under ``maintenance``, after `stage`.

    When this is interrupted, the next reader or writer finishes or undoes it as a start after a crash does.
    """
    context, directory = writer.context, writer.directory
    writer.swapping = True
    commit(context, directory, news)
    retire(context, directory, olds, news, writer.config.file_delete_delay_ms / 1000)
    take_suffix_off(context, directory, news)
    with writer.lock:
        writer.syncer.dropped(list(olds))
        writer.segment_list.replace(olds, news)
        writer.swapping = False
    for segment in olds:
        segment.forget()
    kept = {segment.base_offset for segment in writer.segment_list.local}
    for segment in olds:
        if segment.base_offset not in kept:
            path = f"{directory}/{names.file_name(segment.base_offset, names.SNAPSHOT)}"
            try:
                context.fs.remove(path)
            except FileNotFoundError:
                continue
            except StorageError as error:
                context.warn(f"{error}; the next start removes it")


def is_run(segments: Sequence[Segment], wanted: Sequence[Segment]) -> bool:
    """Return whether ``wanted`` are neighbours in ``segments``, by identity."""
    for at, segment in enumerate(segments):
        if wanted and segment is wanted[0]:
            found = segments[at : at + len(wanted)]
            return len(found) == len(wanted) and all(a is b for a, b in zip(found, wanted, strict=True))
    return False


def stage(context: LogContext, directory: str, news: Sequence[Segment]) -> None:
    """Rename all but the logs to ``.swap``: the first half of step 1. A crash leaves the old segments."""
    context.fs.sync_dir(directory)
    for segment in _highest_first(news):
        for kind in names.SEGMENT_KINDS[1:]:
            with suppress(FileNotFoundError):
                _rename(context, segment.path(kind), _swap_path(segment, kind))
    context.fs.sync_dir(directory)


def commit(context: LogContext, directory: str, news: Sequence[Segment]) -> None:
    """Rename the logs to ``.swap``: the second half of step 1. With the last one the new segments count."""
    for segment in _highest_first(news):
        _rename(context, segment.path(), _swap_path(segment, names.LOG))
        context.fs.sync_dir(directory)
    for segment in news:
        segment.forget()
        segment.suffix = names.SWAP


def retire(
    context: LogContext, directory: str, olds: Sequence[Segment], news: Sequence[Segment], delay_s: float
) -> None:
    """Rename the old segments to ``.deleted``: step 2."""
    files = {
        old.base_offset: {kind: names.file_name(old.base_offset, kind) for kind in names.SEGMENT_KINDS}
        for old in olds
    }
    for part in filter(None, removal_order(files, {new.base_offset for new in news})):
        context.deletions.rename(context, [f"{directory}/{name}" for name in part], delay_s)
        context.fs.sync_dir(directory)


def take_suffix_off(context: LogContext, directory: str, news: Sequence[Segment]) -> None:
    """Give the new segments their names: step 3."""
    for segment in sorted(news, key=lambda each: each.base_offset):
        plain = segment.path().removesuffix(names.SWAP)
        _rename(context, segment.path(), plain)
        context.fs.sync_dir(directory)
        for kind in names.SEGMENT_KINDS[1:]:
            with suppress(FileNotFoundError):
                path = segment.path(kind)
                _rename(context, path, path.removesuffix(names.SWAP))
        segment.suffix = ""
        context.fs.sync_dir(directory)


def discard(context: LogContext, news: Sequence[Segment]) -> None:
    """Remove segments that will not be used: the highest base first, the log of each last."""
    for segment in _highest_first(news):
        for kind in reversed(names.SEGMENT_KINDS):
            for suffix in (names.CLEANED, names.SWAP):
                path = f"{segment.directory}/{names.file_name(segment.base_offset, kind, suffix)}"
                context.handles.forget(path)
                with suppress(FileNotFoundError):
                    context.fs.remove(path)
        segment.forget()


def _highest_first(segments: Sequence[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: -segment.base_offset)


def _swap_path(segment: Segment, kind: str) -> str:
    return segment.path(kind).removesuffix(names.CLEANED) + names.SWAP


def _rename(context: LogContext, source: str, target: str) -> None:
    """Rename, and drop the open handles of both names."""
    context.handles.forget(source)
    context.fs.rename(source, target)
    context.handles.forget(source)
    context.handles.forget(target)
