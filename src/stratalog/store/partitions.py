"""The partitions of a store: where they lie, opened for writing or followed, and what keeps them going.

This is the inside of `Store`: topics ask it for their partitions, the background thread for what is due.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from stratalog.config import BrokerConfig
from stratalog.errors import (
    DiskFullError,
    InvalidArgumentError,
    LogDirOfflineError,
    ReadOnlyError,
    StorageError,
    UnknownPartitionError,
    UnknownTopicError,
)
from stratalog.format.settings import Settings
from stratalog.log.context import LogContext
from stratalog.log.follower import PartitionFollower
from stratalog.log.recovery import OpenAs, RecoveryReport, open_partition
from stratalog.log.writer import PartitionWriter
from stratalog.store import catalog, logdir
from stratalog.store.archives import Archives
from stratalog.store.catalog import TopicEntry
from stratalog.store.logdir import LogDir, Offsets
from stratalog.store.moving import is_moved, take_mark_off
from stratalog.store.tiering import local_start_offset

if TYPE_CHECKING:
    from stratalog.archive.objects import Objects


class Partitions:
    """Every partition of an open store. Changes are serialised by ``lock``."""

    def __init__(
        self,
        context: LogContext,
        paths: list[str],
        config: BrokerConfig,
        *,
        read_only: bool,
        objects: Objects | None = None,
    ) -> None:
        self.context = context
        self.config = config
        self.read_only = read_only
        self.lock = threading.RLock()
        self.dirs = [LogDir(context, path) for path in paths]
        self.entries: dict[str, TopicEntry] = {}
        self.views: dict[tuple[str, int], PartitionWriter | PartitionFollower] = {}
        self.settings = Settings()
        self.closed: Exception | None = None
        self.recovery: list[RecoveryReport] = []
        self.archives = Archives(self, objects)
        self.on_roll: Callable[[], None] = lambda: None
        self._cleaner_lock = threading.Lock()
        self._saving = threading.RLock()
        self.remember = True
        """Whether the settings of this open are kept with the store."""
        self._log_starts: tuple[float, dict[tuple[str, int], int]] = (-1.0, {})
        self._last_checkpoint_s = context.clock.monotonic_s()

    def check_open(self) -> None:
        if self.closed is not None:
            raise self.closed

    def try_dir(self, each: LogDir, act: Callable[[], None]) -> None:
        """Run something on a directory; a failing disk takes only that directory offline."""
        try:
            act()
        except DiskFullError as error:
            self.context.warn(f"log directory {each.path}: {error}")
        except StorageError as error:
            self._take_offline(each, error)

    def _take_offline(self, each: LogDir, error: StorageError) -> None:
        each.offline = each.offline or error
        self.context.warn(f"log directory {each.path} is offline: {error}")
        for writer in self.writers():
            if self.place(writer.topic, writer.partition)[0] is each:
                writer.take_offline(error)

    def online(self) -> list[LogDir]:
        return [each for each in self.dirs if each.offline is None]

    def load(self) -> None:
        """Read settings and listings anew: which topics there are and where their partitions lie."""
        with self.lock:
            self.settings, entries = catalog.load(self.online(), read_only=self.read_only)
            for each in self.online():
                listing: dict[tuple[str, int], str] = {}
                self.try_dir(each, partial(_list_partitions, each, listing))
                for (topic, partition), directory in sorted(listing.items()):
                    if self._finish_deletion(each, directory):
                        continue
                    entry = entries.get(topic)
                    if entry is None:
                        entry = TopicEntry(topic, each.read_topic_id(directory), foreign=True)
                        entries[topic] = entry
                    twin = entry.directories.get(partition)
                    entry.directories[partition] = self._one_of(twin, (each, directory))
                    entry.partitions = max(entry.partitions, partition + 1)
            self.entries = entries

    def _finish_deletion(self, each: LogDir, directory: str) -> bool:
        """Whether a directory belongs to a topic whose deletion was decided; a writer carries it out."""
        if not self.settings.deleting or each.read_topic_id(directory) not in self.settings.deleting:
            return False
        if not self.read_only:
            self.try_dir(each, partial(each.delete_partition, directory))
        return True

    def _one_of(self, twin: tuple[LogDir, str] | None, found: tuple[LogDir, str]) -> tuple[LogDir, str]:
        """A partition found twice: a move that a crash cut short left a mark on the old one."""
        fs = self.context.fs
        if twin is None:
            return found
        for old, new in ((twin, found), (found, twin)):
            if is_moved(fs, old[1]):
                if not self.read_only:
                    old[0].delete_partition(old[1])
                return new
        raise InvalidArgumentError(
            f"{found[1].rsplit('/', 1)[-1]} is in two log directories, {twin[0].path} and {found[0].path};"
            " move one of them away"
        )

    def finish_creations(self) -> None:
        """Make what a crash kept `create_topic` from making: the settings are durable, so the topic is."""
        for entry in self.entries.values():
            if entry.id is None or entry.foreign:
                continue
            for partition in range(entry.partitions):
                placed = entry.directories.get(partition)
                if placed is not None and placed[0].unfinished(placed[1]):
                    placed[0].create_partition(entry.name, partition, entry.id)
                elif placed is None and len(self.online()) == len(self.dirs):
                    where = min(self.online(), key=self._fullness)
                    directory = where.create_partition(entry.name, partition, entry.id)
                    entry.directories[partition] = (where, directory)

    def recover(self) -> None:
        """Open every partition for writing, several at a time."""
        self.finish_creations()
        jobs = []
        for each in self.online():
            points = each.read_offsets(logdir.RECOVERY_POINT)
            starts = each.read_offsets(logdir.LOG_START)
            for entry in self.entries.values():
                for partition, (where, directory) in entry.directories.items():
                    if where is each:
                        jobs.append((entry, partition, each, directory, points, starts))
        if not jobs:
            return
        threads = self.config.get_int("num.recovery.threads.per.data.dir") * len(self.dirs)
        if len(jobs) == 1 or threads == 1:
            results = [self.open_partition(*job) for job in jobs]
        else:
            with ThreadPoolExecutor(min(threads, len(jobs)), thread_name_prefix="stratalog-open") as pool:
                results = list(pool.map(lambda job: self.open_partition(*job), jobs))
        for (entry, partition, *_), writer in zip(jobs, results, strict=True):
            if writer is not None:
                self.views[(entry.name, partition)] = writer

    def open_partition(
        self,
        entry: TopicEntry,
        partition: int,
        where: LogDir,
        directory: str,
        points: Mapping[tuple[str, int], int],
        starts: Mapping[tuple[str, int], int],
    ) -> PartitionWriter | None:
        config = entry.config(self.config)
        how = OpenAs(
            clean=where.clean,
            foreign=where.foreign,
            recovery_point=points.get((entry.name, partition)),
            log_start_offset=starts.get((entry.name, partition), 0),
            local_start_offset=local_start_offset(self.context.fs, directory),
            producer_expiration_ms=self.config.get_int("producer.id.expiration.ms"),
        )
        try:
            if is_moved(self.context.fs, directory):
                take_mark_off(self.context.fs, directory)
            state, report = open_partition(self.context, directory, entry.name, partition, config, how)
        except StorageError as error:
            self._take_offline(where, error)
            return None
        self.recovery.append(report)
        writer = PartitionWriter(
            self.context,
            directory,
            entry.name,
            partition,
            config,
            state,
            before_first_write=lambda: self.mark_dirty(where),
            on_roll=self.on_roll,
        )
        writer.rolls_idle = not entry.foreign
        self.archives.attach(writer, entry, starts.get((entry.name, partition), 0))
        if writer.next_offset > writer.recovery_point:
            # What recovery found past the synced end is kept: make it durable before anybody sees it.
            writer.flush()
        return writer

    def create_partition(self, entry: TopicEntry, partition: int) -> None:
        where = min(self.online(), key=self._fullness)
        self.mark_dirty(where)
        assert entry.id is not None
        entry.directories[partition] = (where, where.create_partition(entry.name, partition, entry.id))
        self.reopen(entry, partition, 0)

    def reopen(self, entry: TopicEntry, partition: int, log_start_offset: int) -> None:
        """Open a partition again after its files were changed while it was closed."""
        where, directory = entry.directories[partition]
        starts = {(entry.name, partition): log_start_offset}
        writer = self.open_partition(entry, partition, where, directory, {}, starts)
        if writer is None:
            raise LogDirOfflineError(f"{where.path}: {where.offline}")
        self.views[(entry.name, partition)] = writer

    def _fullness(self, where: LogDir) -> tuple[int, int]:
        held = sum(
            1 for entry in self.entries.values() for each, _ in entry.directories.values() if each is where
        )
        return held, -self.context.fs.free_bytes(where.path)

    def save(self, entries: Mapping[str, TopicEntry], deleting: uuid.UUID | None = None) -> None:
        """Write the settings to every directory; the highest generation wins at the next open.

        ``deleting``: the id of a topic that is about to go. It stays in the settings, and so stay those of
        directories that are offline; an id is never given twice.
        """
        with self._saving:
            gone = self.settings.deleting if len(self.online()) < len(self.dirs) else ()
            if deleting is not None:
                gone = (*gone, deleting)
            settings = catalog.to_settings(self.settings.generation + 1, entries, self._kept(), gone)
            for each in self.online():
                each.mark_dirty()
                each.write_settings(settings)
            self.settings = settings

    def mark_dirty(self, where: LogDir) -> None:
        """Before the first write to a directory; the settings file in it says that it is ours from now on.

        What was said about the store as a whole is kept from here on, too.
        """
        with self._saving:
            if self.settings.store != self._kept():
                self.save(self.entries)
        if not where.has_settings:
            where.write_settings(self.settings)
        where.mark_dirty()

    def _kept(self) -> dict[str, str]:
        """What is kept of what was said about the store as a whole."""
        return self.config.explicit if self.remember else dict(self.settings.store)

    def entry(self, name: str) -> TopicEntry:
        self.check_open()
        entry = self.entries.get(name)
        if entry is None and self.read_only:
            self.load()
            entry = self.entries.get(name)
        if entry is None:
            known = ", ".join(sorted(self.entries)[:10]) or "none yet"
            raise UnknownTopicError(f"no topic {name!r}; there are: {known}")
        return entry

    def view(self, name: str, partition: int) -> PartitionWriter | PartitionFollower:
        view = self.views.get((name, partition))
        if view is not None and self.closed is None:
            return view
        entry = self.entry(name)
        if not 0 <= partition < entry.partitions:
            raise UnknownPartitionError(
                f"{name} has no partition {partition}; it has 0 to {entry.partitions - 1}"
            )
        placed = entry.directories.get(partition)
        if placed is None or placed[0].offline is not None:
            broken = [each for each in self.dirs if each.offline is not None]
            why = f"{broken[0].path}: {broken[0].offline}" if broken else "its directory is missing"
            raise LogDirOfflineError(f"{name}-{partition} is offline; {why}")
        if not self.read_only:
            raise LogDirOfflineError(f"{name}-{partition} could not be opened; see the log")
        with self.lock:
            follower = PartitionFollower(
                self.context,
                placed[1],
                name,
                partition,
                log_start=lambda: self._log_start(name, partition),
                cold=self.archives.cold(entry, partition, placed[1]),
            )
            self.views[(name, partition)] = follower
            return follower

    def writer(self, name: str, partition: int) -> PartitionWriter:
        view = self.view(name, partition)
        if not isinstance(view, PartitionWriter):
            raise ReadOnlyError("this store was opened with read_only=True; open it without to change it")
        return view

    def _log_start(self, name: str, partition: int) -> int:
        """The checkpointed log start offset, for read-only views; read again after a second at most."""
        read_at, starts = self._log_starts
        now = self.context.clock.monotonic_s()
        if read_at < 0 or now - read_at > 1.0:
            starts = {}
            for each in self.online():
                starts.update(each.read_offsets(logdir.LOG_START))
            self._log_starts = (now, starts)
        return starts.get((name, partition), 0)

    def place(self, name: str, partition: int) -> tuple[LogDir, str]:
        """The log directory a partition is in, and its own directory."""
        try:
            return self.entries[name].directories[partition]
        except KeyError:
            raise UnknownTopicError(f"{name}-{partition} is gone") from None

    def writers(self) -> list[PartitionWriter]:
        return [view for view in list(self.views.values()) if isinstance(view, PartitionWriter)]

    def checkpoint(self) -> None:
        """Kafka's root checkpoints, as a broker would write them."""
        for each in self.online():
            points: dict[tuple[str, int], int] = {}
            starts: dict[tuple[str, int], int] = {}
            marks: dict[tuple[str, int], int] = {}
            for writer in self.writers():
                if self.place(writer.topic, writer.partition)[0] is not each:
                    continue
                key = (writer.topic, writer.partition)
                points[key] = writer.recovery_point
                marks[key] = writer.end_offset()
                if writer.log_start_offset > writer.segments()[0].base_offset or writer.is_tiered:
                    starts[key] = writer.log_start_offset
            offsets = {
                logdir.RECOVERY_POINT: points,
                logdir.LOG_START: starts,
                logdir.HIGH_WATERMARK: marks,
            }
            self.try_dir(each, partial(_write_checkpoints, each, offsets))

    def delete_records(self, name: str, partition: int, before_offset: int) -> int:
        """Move the log start offset up, durably; whole segments below it are deleted."""
        writer = self.writer(name, partition)
        with self.lock, writer.maintenance:
            where = self.place(name, partition)[0]
            start = writer.checked_log_start(before_offset)
            writer.settle_sealed()  # the producers' state at the new start must outlive what is deleted
            marked = self._mark_log_start(where, writer, start)
            hidden = writer.advance_log_start(before_offset)
            delay_s = writer.config.file_delete_delay_ms / 1000
            # Without the mark, no power cut may leave a hole among them: one after the other, each synced.
            for run in [hidden] if marked else [[segment] for segment in hidden]:
                self.context.deletions.add(self.context, writer.directory, run, delay_s)
        if self.archives.tiering is not None:
            self.archives.tiering.expire(writer)
        return writer.log_start_offset

    def _mark_log_start(self, where: LogDir, writer: PartitionWriter, start: int) -> bool:
        """Write down where a log is to begin; False when the disk is full and it can go without saying.

        Deleting must work on a full disk, and whole segments tell by themselves where the log begins.
        """
        try:
            starts = where.read_offsets(logdir.LOG_START)
            starts[(writer.topic, writer.partition)] = start
            where.write_offsets(logdir.LOG_START, starts)
            return True
        except DiskFullError:
            local = writer.local_segments()
            if writer.segments()[0] is not local[0] or all(each.base_offset != start for each in local):
                raise
            return False

    def first_dirty_offset(self, name: str, partition: int) -> int | None:
        """The cleaner's checkpoint; None when this partition was never cleaned."""
        where = self.place(name, partition)[0]
        return where.read_offsets(logdir.CLEANER_OFFSET).get((name, partition))

    def save_first_dirty_offset(self, name: str, partition: int, offset: int) -> None:
        """Remember, durably, up to where a partition is cleaned."""
        where = self.place(name, partition)[0]
        with self._cleaner_lock:
            offsets = where.read_offsets(logdir.CLEANER_OFFSET)
            if offsets.get((name, partition)) != offset:
                offsets[(name, partition)] = offset
                where.write_offsets(logdir.CLEANER_OFFSET, offsets)

    def release_some_handle(self) -> bool:
        """Let one idle writer's file handle go; False when every one is in use."""
        return any(writer.release_handle() for writer in self.writers())

    def tick(self) -> None:
        """What time makes due: idle rolls, flushes, checkpoints, removal of deleted files."""
        for writer in self.writers():
            try:
                writer.tick()
            except StorageError as error:
                self.context.warn(f"{writer.directory}: {error}")
            except FileNotFoundError:
                if self.views.get((writer.topic, writer.partition)) is writer:
                    raise  # else its topic was deleted, or it was moved, meanwhile
        self.context.deletions.run(self.context)
        now = self.context.clock.monotonic_s()
        interval_s = self.config.get_int("log.flush.offset.checkpoint.interval.ms") / 1000
        if now - self._last_checkpoint_s >= interval_s:
            self._last_checkpoint_s = now
            self.checkpoint()

    def tick_interval_s(self) -> float:
        """How long the background thread may sleep."""
        flush_ms = min((writer.config.flush_ms for writer in self.writers()), default=1000)
        return max(0.01, min(1.0, flush_ms / 2000))

    def close_writers(self) -> None:
        """Close every writer; a directory where all went well is marked clean, last of all."""
        failed: set[LogDir] = set()
        first: StorageError | None = None
        dirty = any(each.dirty for each in self.online())
        self.context.deletions.run(self.context, everything=True)
        for writer in self.writers():
            where = self.place(writer.topic, writer.partition)[0]
            broken = writer.unusable is not None
            try:
                writer.close()
            except StorageError as error:
                broken, first = True, first or error
            if broken:
                failed.add(where)
        if dirty:
            self.checkpoint()
        for each in self.online():
            if each not in failed:
                each.mark_clean()
        if first is not None:
            raise first

    def mark_forked(self, error: Exception) -> None:
        """In a forked child: nothing of this may be used any more."""
        self.closed = error
        for writer in self.writers():
            writer.mark_forked()


def _list_partitions(where: LogDir, into: dict[tuple[str, int], str]) -> None:
    into.update(where.partitions())


def _write_checkpoints(where: LogDir, offsets: Mapping[str, Offsets]) -> None:
    for name, values in offsets.items():
        where.write_offsets(name, values)
