"""`clone`: an instant copy of a store by hard links; `restore`: a store as it was at some moment.

Both build a new store from what readers of the source may see: `clone` up to each partition's high
watermark, `restore` up to given offsets or to a moment (`cutting` defines what that means). Whole sealed
segments are linked where the filesystem allows; the segment that the cut goes through is copied. They work
beside a program that holds the source, and write nothing there but a line in `stratalog.clones`.

The new store grows as `<target>.building`, whose lock is held meanwhile. Then its root files are written,
everything is synced, and one rename gives it its name. A crash leaves the `.building` directory, which the
next attempt removes, and no store.

A copy's topics get new ids, so that it shares nothing with the source that is kept by id.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from stratalog.config import topic_config
from stratalog.errors import InvalidArgumentError, StoreLockedError
from stratalog.format.metadata import id_to_text, new_id
from stratalog.format.settings import Settings, TopicSettings
from stratalog.fs import FileSystem, Lock
from stratalog.log.context import Clock, LogContext, PartitionLocation
from stratalog.log.names import LOCK, partition_dir
from stratalog.log.read.reader import out_of_range
from stratalog.log.write import produce
from stratalog.log.write.recovery import OpenAs, open_partition
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.copies.building import (
    FOR_EVER_MS,
    Meter,
    PartitionBuilder,
    PartitionCopy,
    Progress,
    Report,
    copy_partition,
)
from stratalog.store.copies.clones import BUILDING, CopyEntry, kept_if_made, remember
from stratalog.store.copies.cutting import Moment, end_at_time
from stratalog.store.copies.source import Part, Source, open_source, settle
from stratalog.store.logdir import LogDir
from stratalog.store.paths import Paths, path_of
from stratalog.store.store import Store

OpenTransactions = Literal["keep", "abort"]
MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class CloneReport(Report):
    """What `clone` made."""

    id: str
    target: str
    made_ms: int
    partitions: tuple[PartitionCopy, ...]
    notes: tuple[str, ...] = ()

    @property
    def linked_bytes(self) -> int:
        return sum(each.linked_bytes for each in self.partitions)

    @property
    def copied_bytes(self) -> int:
        return sum(each.copied_bytes for each in self.partitions)


@dataclass(frozen=True, slots=True)
class RestoreReport(CloneReport):
    """What `restore` made. ``to_time`` in ms, or None when offsets were given."""

    to_time: int | None = None
    held_retention: dict[str, str] = field(default_factory=dict)
    """Topics whose ``retention.ms`` was set to -1 in the copy, and its value before: records of that moment
    would have been deleted at once."""


def clone(
    source: Store | Paths,
    target: str | os.PathLike[str],
    topics: Iterable[str] | None = None,
    *,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> CloneReport:
    """Copy a store, or some of its topics, to the new directory ``target``.

    Segments that are only in an archive are not copied: the clone begins with the first local one. Its sealed
    segments are the very files of the source, which both stores only ever replace. No other program may write
    to them: to hand a topic to a Kafka broker use `graduate`.
    """
    settle(source, fs)
    with open_source(source, config, fs=fs, clock=clock) as origin:
        building = _Building(origin, topics, target, "clone", progress)
        for part in building.parts:
            sizes = {segment.base_offset: segment.size for segment in part.segments}
            building.meter.total_bytes += sum(sizes.get(base, 0) for base in part.directory_files)
        with building.kept_if_made(), new_store(origin.context, building.target) as directory:
            copies = [_clone_one(part, building.builder(part, directory)) for part in building.parts]
            _write_root(LogDir(origin.context, directory), building.settings(), copies)
        entry = building.entry
        return CloneReport(entry.id, entry.target, entry.made_ms, tuple(copies), building.notes)


def restore(
    source: Store | Paths | None,
    target: str | os.PathLike[str],
    *,
    archive: str | None = None,
    to_time: int | None = None,
    to_offsets: Mapping[tuple[str, int], int] | None = None,
    topics: Iterable[str] | None = None,
    open_transactions: OpenTransactions = "keep",
    keep_retention: bool = False,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> RestoreReport:
    """Build a new store as the source was at a moment.

    With ``archive``, an archive's URL, and None for the source, it is built from that archive alone; then all
    of it is taken unless a moment or offsets are given.

    ``to_time`` (ms) holds for every partition; ``to_offsets`` cuts those it names, by (topic, partition), and
    takes the others whole; with both the smaller counts. What compaction or retention has removed since that
    moment does not come back.

    ``open_transactions``: those without a marker before the cut stay open ("keep"), or are ended by an abort
    marker at the end of the copy ("abort"), as a database rolls back what was in flight. A topic whose
    ``retention.ms`` would delete records of the copy at once gets -1 instead, unless ``keep_retention``.
    """
    if (source is None) == (archive is None):
        raise InvalidArgumentError("pass a store or archive=…, and not both")
    if to_time is None and to_offsets is None and archive is None:
        raise InvalidArgumentError("no target given: pass to_time=… or to_offsets={(topic, partition): …}")
    if open_transactions not in get_args(OpenTransactions):
        raise InvalidArgumentError(f"open_transactions is 'keep' or 'abort', not {open_transactions!r}")
    if source is not None:
        settle(source, fs)
    with open_source(source, config, archive=archive or "", fs=fs, clock=clock) as origin:
        building = _Building(origin, topics, target, "restore", progress, to_offsets or {})
        for part in building.parts:
            building.meter.total_bytes += sum(segment.size for segment in part.segments)
        with building.kept_if_made(), new_store(origin.context, building.target) as directory:
            copies = []
            for part in building.parts:
                builder = building.builder(part, directory)
                to_offset = building.offsets.get((part.topic, part.partition))
                copy = _restore_one(part, builder, to_time, to_offset)
                if open_transactions == "abort" and copy.open_transactions:
                    copy = _abort_open(part, builder.directory, copy)
                copies.append(copy)
            settings = building.settings()
            held = {} if keep_retention else _hold_retention(origin, copies, settings)
            _write_root(LogDir(origin.context, directory), settings, copies)
        entry = building.entry
        return RestoreReport(
            entry.id, entry.target, entry.made_ms, tuple(copies), building.notes, to_time, held
        )


class _Building:
    """What `clone` and `restore` have in common: the partitions to copy and the entry in the source."""

    def __init__(
        self,
        origin: Source,
        topics: Iterable[str] | None,
        target: str | os.PathLike[str],
        kind: str,
        progress: Progress | None,
        offsets: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        context = origin.context
        self.parts = origin.parts(topics)
        self.offsets = _check_offsets(self.parts, offsets or {})
        self.target = path_of(context.fs, target, "directory for the copy")
        check_target(context.fs, self.target)
        for path in origin.paths:
            if os.path.commonpath([self.target, os.path.abspath(path)]) == os.path.abspath(path):
                raise InvalidArgumentError(
                    f"{self.target} is inside the log directory {path}; give a place outside of the store"
                )
        names = {part.topic for part in self.parts}
        self.entry: CopyEntry
        self.entry, why = remember(context.fs, origin.paths, kind, self.target, names, context.clock.now_ms())
        self.notes: tuple[str, ...] = ()
        if why is not None:
            self.notes = (f"`erase` in the source will not name this copy: {why}",)
        self._origin = origin
        self.meter = Meter(progress)
        self._ids = {name: new_id() for name in names}

    def kept_if_made(self) -> AbstractContextManager[None]:
        """Take the entry out of the source again if the copy fails within."""
        return kept_if_made(self._origin.context.fs, self._origin.paths, self.entry)

    def builder(self, part: Part, directory: str) -> PartitionBuilder:
        where = f"{directory}/{partition_dir(part.topic, part.partition)}"
        topic_id = self._ids[part.topic]
        location = PartitionLocation(part.context, where, part.topic, part.partition)
        return PartitionBuilder(location, part.config, self.meter, topic_id)

    def settings(self) -> dict[str, TopicSettings]:
        return {
            name: TopicSettings(self._ids[name], entry.partitions, entry.effective_overrides())
            for name, entry in {part.topic: part.entry for part in self.parts}.items()
        }


def _clone_one(part: Part, builder: PartitionBuilder) -> PartitionCopy:
    copy = copy_partition(part, builder, lambda each: each.end_offset, archived=False)
    if copy.log_start_offset > part.log_start_offset:
        note = (
            f"offsets {part.log_start_offset} to {copy.log_start_offset - 1} are only in the archive and"
            " not part of the clone; `restore` takes them along"
        )
        copy = replace(copy, notes=(*copy.notes, note))
    return copy


def _restore_one(
    part: Part, builder: PartitionBuilder, to_time: int | None, to_offset: int | None
) -> PartitionCopy:
    moment = Moment(0)

    def cut_at(each: Part) -> int:
        nonlocal moment
        first, end = each.log_start_offset, each.end_offset
        if to_offset is not None:
            end = max(min(to_offset, end), first)
        moment = Moment(end) if to_time is None else end_at_time(each.segments, first, end, to_time)
        return moment.offset

    copy = copy_partition(part, builder, cut_at)
    notes = list(copy.notes)
    if moment.late_from_offset is not None:
        notes.append(
            f"offset {moment.late_from_offset}, and perhaps later ones, has a timestamp at or before the"
            f" given time, but was appended after offset {moment.offset}, which is later: use --to-offset"
            " (to_offsets) to include it"
        )
    if moment.timestamp is not None and moment.offset == part.log_start_offset > 0:
        notes.append(f"records below offset {part.log_start_offset} have been deleted since")
    return replace(
        copy, cut_timestamp=moment.timestamp, late_from_offset=moment.late_from_offset, notes=tuple(notes)
    )


def _check_offsets(
    parts: Sequence[Part], wanted: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    known = {(part.topic, part.partition): part for part in parts}
    for key, offset in wanted.items():
        part = known.get(key)
        if part is None:
            name = f"{key[0]}:{key[1]}" if isinstance(key, tuple) and len(key) == 2 else repr(key)
            have = ", ".join(f"{topic}:{partition}" for topic, partition in sorted(known)[:MOST_NAMES])
            raise InvalidArgumentError(
                f"--to-offset (to_offsets) names {name}, which is no partition of what is restored: {have}"
                + (f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else "")
            )
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidArgumentError(f"--to-offset (to_offsets): an offset is a number, not {offset!r}")
        first, end = part.log_start_offset, part.end_offset
        if not first <= offset <= end:
            raise out_of_range(part.view, offset, first, end)
    return dict(wanted)


def _hold_retention(
    origin: Source, copies: Iterable[PartitionCopy], settings: dict[str, TopicSettings]
) -> dict[str, str]:
    """Set ``retention.ms`` to -1 where it would delete records at once; return the values before."""
    held: dict[str, str] = {}
    now = origin.context.clock.now_ms()
    for copy in copies:
        known = settings[copy.topic]
        config = topic_config(origin.config, dict(known.config))
        if copy.would_expire(config, now):
            held[copy.topic] = str(config.retention_ms)
            overrides = {**known.config, "retention.ms": "-1"}
            settings[copy.topic] = TopicSettings(known.id, known.partitions, overrides)
    return held


def _abort_open(part: Part, directory: str, copy: PartitionCopy) -> PartitionCopy:
    """End open transactions by abort markers, in a partition that no store has opened yet."""
    how = OpenAs(clean=True, log_start_offset=copy.log_start_offset, producer_expiration_ms=FOR_EVER_MS)
    location = PartitionLocation(part.context, directory, part.topic, part.partition)
    state, _ = open_partition(location, part.config, how)
    writer = PartitionWriter(location, part.config, state)
    try:
        epochs = {entry.producer_id: entry.producer_epoch for entry in state.producers.to_entries()}
        for producer_id, _ in copy.open_transactions:
            produce.append_marker(
                writer, "abort", producer_id=producer_id, producer_epoch=epochs[producer_id], sync=True
            )
    finally:
        writer.close()
        for segment in writer.segments():
            segment.forget()
    return replace(copy, end_offset=writer.next_offset, open_transactions=())


# -- a new store


def check_target(fs: FileSystem, target: str) -> None:
    """Raise InvalidArgumentError unless ``target`` is a free name or an empty directory."""
    try:
        if fs.exists(target) and (not fs.stat(target).is_dir or fs.list_dir(target)):
            raise InvalidArgumentError(
                f"{target} already exists and is not empty; give a new name, or move it away first"
            )
    except NotADirectoryError as error:
        raise InvalidArgumentError(f"{target}: a part of the path is not a directory") from error


@contextmanager
def new_store(context: LogContext, target: str) -> Iterator[str]:
    """Yield a directory to build a store in; rename it to ``target`` at the end, or remove it on an error."""
    fs = context.fs
    check_target(fs, target)
    building = target + BUILDING
    fs.make_dir(building)
    lock = take_lock(fs, building, f"{target} is being made by another process")
    try:
        _clear(context, building)
        yield building
        fs.sync_dir(building)
        fs.rename(building, target)
        LogDir(context, target).sync_ancestors()
    except BaseException:
        if fs.exists(building):
            _clear(context, building)
            fs.remove_tree(building)
        raise
    finally:
        lock.release()


def take_lock(fs: FileSystem, directory: str, why: str) -> Lock:
    """Lock a log directory; ``why`` begins the message if another process holds it."""
    try:
        return fs.lock(f"{directory}/{LOCK}", {"pid": os.getpid(), "started": int(time.time())})
    except StoreLockedError as error:
        raise StoreLockedError(f"{why}: {error}", pid=error.pid, control=error.control) from error


def _clear(context: LogContext, building: str) -> None:
    """Remove everything but the lock file."""
    for name in context.fs.list_dir(building):
        path = f"{building}/{name}"
        if name == LOCK:
            continue
        if context.fs.stat(path).is_dir:
            for each in context.fs.list_dir(path):
                context.handles.forget(f"{path}/{each}")
            context.fs.remove_tree(path)
        else:
            context.fs.remove(path)


def _write_root(where: LogDir, topics: Mapping[str, TopicSettings], copies: Sequence[PartitionCopy]) -> None:
    """Write the settings and Kafka's checkpoints, and last the clean-shutdown file."""
    where.write_settings(Settings(1, dict(topics), {}))
    where.ensure_meta_properties(id_to_text(new_id()))
    ends = {(copy.topic, copy.partition): copy.end_offset for copy in copies}
    starts = {
        (copy.topic, copy.partition): copy.log_start_offset for copy in copies if copy.log_start_offset > 0
    }
    where.checkpoints.recovery_point.write(ends)
    where.checkpoints.log_start.write(starts)
    where.checkpoints.high_watermark.write(ends)
    where.read_state()
    where.mark_clean()
