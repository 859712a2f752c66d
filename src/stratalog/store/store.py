"""A store: several log directories, one lock each, many topics, one background thread.

A writable open takes the locks, settles and recovers every partition (side by side), and starts the
background thread. A read-only open takes nothing and changes nothing, and may live beside a writer of
ours or a running Kafka broker.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from stratalog.config import BrokerConfig, ConfigEntry, TopicConfig, describe, parse_overrides
from stratalog.errors import (
    ClosedError,
    ForkedError,
    InvalidArgumentError,
    LogDirOfflineError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    StoreLockedError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from stratalog.format.metadata import id_to_text, new_id
from stratalog.format.settings import Settings
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.context import Clock, LogContext, SystemClock
from stratalog.log.follower import PartitionFollower
from stratalog.log.names import collides, validate_topic
from stratalog.log.recovery import OpenAs, RecoveryReport, open_partition
from stratalog.log.writer import PartitionWriter
from stratalog.store import catalog, logdir
from stratalog.store.background import Background
from stratalog.store.catalog import TopicEntry
from stratalog.store.deletion import Deletions
from stratalog.store.logdir import LogDir
from stratalog.store.moving import is_moved, move_partition, take_mark_off
from stratalog.store.topic import Topic

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class LogDirInfo:
    """The numbers of one log directory."""

    path: str
    partitions: int
    segments: int
    size_bytes: int
    free_bytes: int | None
    offline: str | None


def open_store(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    config: Mapping[str, object] | None = None,
    *,
    read_only: bool = False,
    create: bool = True,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    background: bool = True,
) -> Store:
    """Open a store at one or several log directories.

    ``config`` holds broker settings by Kafka's names. ``create=False`` refuses a directory that is not
    there. ``fs``, ``clock`` and ``background=False`` are for tests: another filesystem, another time, and
    no thread, in which case `Store.tick` must be called.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise InvalidArgumentError("a store needs at least one log directory")
    names = [os.fspath(each).rstrip("/") or "/" for each in paths]
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"the same log directory is given twice: {', '.join(names)}")
    return Store(
        names,
        BrokerConfig.parse(config),
        read_only=read_only,
        create=create,
        fs=fs or RealFileSystem(),
        clock=clock or SystemClock(),
        background=background,
    )


class Store:
    """An open store; use it in a ``with`` block or call `close`."""

    def __init__(
        self,
        paths: list[str],
        config: BrokerConfig,
        *,
        read_only: bool,
        create: bool,
        fs: FileSystem,
        clock: Clock,
        background: bool,
    ) -> None:
        self.config = config
        self.read_only = read_only
        limit = config.get_int("log.max.open.files")
        self._context = LogContext(fs, HandleCache(fs, limit or None, self._release_some_handle), clock)
        self._dirs = [LogDir(self._context, path) for path in paths]
        self._lock = threading.RLock()
        self._entries: dict[str, TopicEntry] = {}
        self._topics: dict[str, Topic] = {}
        self._views: dict[tuple[str, int], PartitionWriter | PartitionFollower] = {}
        self._settings = Settings()
        self._log_starts: tuple[float, dict[tuple[str, int], int]] = (-1.0, {})
        self._closed: Exception | None = None
        self._background: Background | None = None
        self._last_checkpoint_s = clock.monotonic_s()
        self._deletions = Deletions(self._context)
        self.recovery: list[RecoveryReport] = []
        """What opening found, for each partition that was recovered."""
        for each in self._dirs:
            if (read_only or not create) and not fs.exists(each.path):
                raise NotFoundError(f"no log directory at {each.path}")
        if read_only:
            self._load()
        else:
            self._open_for_writing(background)
        _open_stores.add(self)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        mode = "read-only" if self.read_only else "writable"
        return f"<Store {', '.join(each.path for each in self._dirs)}, {mode}>"

    # -- opening -------------------------------------------------------------------------------------

    def _open_for_writing(self, background: bool) -> None:
        info = {"pid": os.getpid(), "started": int(time.time())}
        taken: list[LogDir] = []
        try:
            for each in self._dirs:
                self._try_dir(each, lambda each=each: each.acquire(info))  # type: ignore[misc]
                taken.append(each)
            if all(each.offline is not None for each in self._dirs):
                raise LogDirOfflineError(f"no log directory can be used: {self._dirs[0].offline}")
            cluster_id = id_to_text(new_id())
            for each in self._online():
                each.read_state()
                cluster_id = each.ensure_meta_properties(cluster_id)
                for leftover in each.leftovers():
                    self._context.fs.remove_tree(leftover)
            self._load()
            self._recover()
            if background:
                self._background = Background(self, control=isinstance(self._context.fs, RealFileSystem))
                if self._background.address is not None:
                    for each in self._online():
                        each.announce({**info, "control": self._background.address})
        except BaseException:
            if self._background is not None:
                self._background.stop()
            for each in taken:
                each.release()
            self._context.handles.close()
            raise

    def _try_dir(self, each: LogDir, act: Callable[[], None]) -> None:
        """Run something on a directory; a failing disk takes only that directory offline."""
        try:
            act()
        except StorageError as error:
            each.offline = error
            self._context.warn(f"log directory {each.path} is offline: {error}")

    def _online(self) -> list[LogDir]:
        return [each for each in self._dirs if each.offline is None]

    def _load(self) -> None:
        """Read settings and listings anew: which topics there are and where their partitions lie."""
        with self._lock:
            self._settings, entries = catalog.load(self._online())
            for each in self._online():
                listing: dict[tuple[str, int], str] = {}
                self._try_dir(each, lambda each=each, listing=listing: listing.update(each.partitions()))  # type: ignore[misc]
                for (topic, partition), directory in sorted(listing.items()):
                    entry = entries.get(topic)
                    if entry is None:
                        entry = TopicEntry(topic, each.read_topic_id(directory), foreign=True)
                        entries[topic] = entry
                    twin = entry.directories.get(partition)
                    entry.directories[partition] = self._one_of(twin, (each, directory))
                    entry.partitions = max(entry.partitions, partition + 1)
            self._entries = entries

    def _one_of(self, twin: tuple[LogDir, str] | None, found: tuple[LogDir, str]) -> tuple[LogDir, str]:
        """A partition found twice: a move that a crash cut short left a mark on the old one."""
        fs = self._context.fs
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

    def _recover(self) -> None:
        """Open every partition for writing, several at a time."""
        jobs = []
        for each in self._online():
            points = each.read_offsets(logdir.RECOVERY_POINT)
            starts = each.read_offsets(logdir.LOG_START)
            for entry in self._entries.values():
                for partition, (where, directory) in entry.directories.items():
                    if where is each:
                        jobs.append((entry, partition, each, directory, points, starts))
        if not jobs:
            return
        threads = self.config.get_int("num.recovery.threads.per.data.dir") * len(self._dirs)
        if len(jobs) == 1 or threads == 1:
            results = [self._open_partition(*job) for job in jobs]
        else:
            with ThreadPoolExecutor(min(threads, len(jobs)), thread_name_prefix="stratalog-open") as pool:
                results = list(pool.map(lambda job: self._open_partition(*job), jobs))
        for (entry, partition, *_), writer in zip(jobs, results, strict=True):
            if writer is not None:
                self._views[(entry.name, partition)] = writer

    def _open_partition(
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
            producer_expiration_ms=self.config.get_int("producer.id.expiration.ms"),
        )
        try:
            if is_moved(self._context.fs, directory):
                take_mark_off(self._context.fs, directory)
            state, report = open_partition(self._context, directory, entry.name, partition, config, how)
        except StorageError as error:
            where.offline = where.offline or error
            self._context.warn(f"{directory}: {error}; its log directory is offline")
            return None
        self.recovery.append(report)
        return PartitionWriter(
            self._context,
            directory,
            entry.name,
            partition,
            config,
            state,
            before_first_write=where.mark_dirty,
            on_roll=self._wake,
        )

    def _wake(self) -> None:
        if self._background is not None:
            self._background.wake()

    # -- topics --------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self._check_open()
        if self.read_only:
            self._load()
        return sorted(self._entries)

    def topic(self, name: str) -> Topic:
        """A topic by name; `UnknownTopicError` when there is none."""
        self._entry(name)
        with self._lock:
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = Topic(self, name)
                self._refresh_views(topic)
            return topic

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic; its partitions go to the log directories that hold the fewest."""
        self._check_writable()
        validate_topic(name)
        count = self.config.get_int("num.partitions") if partitions is None else partitions
        if not isinstance(count, int) or not 1 <= count <= 100_000:
            raise InvalidArgumentError(f"a topic has 1 to 100000 partitions, not {count!r}")
        overrides = parse_overrides(config or {})
        with self._lock:
            for known in self._entries:
                if known == name:
                    raise TopicExistsError(f"topic {name} already exists")
                if collides(known, name):
                    raise TopicExistsError(f"topic {name} differs from {known} only in '.' and '_'")
            entry = TopicEntry(name, new_id(), count, overrides)
            entry.config(self.config)
            self._save({**self._entries, name: entry})
            self._entries[name] = entry
            for partition in range(count):
                self._create_partition(entry, partition)
        return self.topic(name)

    def _create_partition(self, entry: TopicEntry, partition: int) -> None:
        where = min(self._online(), key=self._fullness)
        where.mark_dirty()
        assert entry.id is not None
        directory = where.create_partition(entry.name, partition, entry.id)
        entry.directories[partition] = (where, directory)
        writer = self._open_partition(entry, partition, where, directory, {}, {})
        if writer is None:
            raise LogDirOfflineError(f"{where.path}: {where.offline}")
        self._views[(entry.name, partition)] = writer

    def _fullness(self, where: LogDir) -> tuple[int, int]:
        held = sum(
            1 for entry in self._entries.values() for each, _ in entry.directories.values() if each is where
        )
        return held, -self._context.fs.free_bytes(where.path)

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions; keys may map to other partitions from then on, as in Kafka."""
        self._check_writable()
        with self._lock:
            entry = self._entry(name)
            if total <= entry.partitions:
                raise InvalidArgumentError(f"{name} has {entry.partitions} partitions; {total} is not more")
            self._own(entry)
            first, entry.partitions = entry.partitions, total
            self._save(self._entries)
            for partition in range(first, total):
                self._create_partition(entry, partition)
            self._refresh_views(self.topic(name))

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> TopicConfig:
        """Change settings of a topic; None takes an override back. Returns what is in force then."""
        self._check_writable()
        sets = parse_overrides({key: value for key, value in changes.items() if value is not None})
        parse_overrides({key: "-1" for key, value in changes.items() if value is None and key == "retention.ms"})
        with self._lock:
            entry = self._entry(name)
            overrides = {**entry.overrides, **sets}
            for key, value in changes.items():
                if value is None:
                    overrides.pop(key, None)
            changed = TopicEntry(name, entry.id, entry.partitions, overrides, entry.foreign, entry.directories)
            config = changed.config(self.config)
            self._own(entry)
            entry.overrides = overrides
            self._save(self._entries)
            config = entry.config(self.config)
            for partition in range(entry.partitions):
                view = self._views.get((name, partition))
                if isinstance(view, PartitionWriter):
                    view.apply_config(config)
            return config

    def _own(self, entry: TopicEntry) -> None:
        """A foreign topic becomes ours, keeping its data: what it had no word on stays without a policy."""
        if entry.foreign:
            entry.overrides = {**catalog.NO_POLICY, **entry.overrides}
            entry.foreign = False
            entry.id = entry.id or new_id()

    def delete_topic(self, name: str) -> None:
        """Remove a topic and all its data."""
        self._check_writable()
        with self._lock:
            entry = self._entry(name)
            self._save({key: value for key, value in self._entries.items() if key != name})
            del self._entries[name]
            self._topics.pop(name, None)
            for partition, (where, directory) in entry.directories.items():
                where.mark_dirty()
                view = self._views.pop((name, partition), None)
                if view is not None:
                    view.close()
                    for segment in view.segments():
                        segment.forget()
                where.delete_partition(directory)

    def _save(self, entries: Mapping[str, TopicEntry]) -> None:
        """Write the settings to every directory; the highest generation wins at the next open."""
        settings = catalog.to_settings(self._settings.generation + 1, entries, self._settings.store)
        for each in self._online():
            each.mark_dirty()
            each.write_settings(settings)
        self._settings = settings

    def describe_topic(self, name: str) -> list[ConfigEntry]:
        """Every setting of a topic with its value and where it comes from."""
        entry = self._entry(name)
        return describe(self.config, {**catalog.NO_POLICY, **entry.overrides} if entry.foreign else entry.overrides)

    # -- views ---------------------------------------------------------------------------------------

    def _entry(self, name: str) -> TopicEntry:
        self._check_open()
        entry = self._entries.get(name)
        if entry is None and self.read_only:
            self._load()
            entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(sorted(self._entries)[:10]) or "none yet"
            raise UnknownTopicError(f"no topic {name!r}; there are: {known}")
        return entry

    def _topic_id_text(self, name: str) -> str | None:
        topic_id: uuid.UUID | None = self._entry(name).id
        return None if topic_id is None else id_to_text(topic_id)

    def _config(self, name: str) -> TopicConfig:
        return self._entry(name).config(self.config)

    def _view(self, name: str, partition: int) -> PartitionWriter | PartitionFollower:
        view = self._views.get((name, partition))
        if view is not None and self._closed is None:
            return view
        entry = self._entry(name)
        if not 0 <= partition < entry.partitions:
            raise UnknownPartitionError(
                f"{name} has no partition {partition}; it has {entry.partitions} (0 to {entry.partitions - 1})"
            )
        placed = entry.directories.get(partition)
        if placed is None or placed[0].offline is not None:
            broken = [each for each in self._dirs if each.offline is not None]
            why = f"{broken[0].path}: {broken[0].offline}" if broken else "its directory is missing"
            raise LogDirOfflineError(f"{name}-{partition} is offline; {why}")
        if not self.read_only:
            raise LogDirOfflineError(f"{name}-{partition} could not be opened; see the log")
        with self._lock:
            follower = PartitionFollower(
                self._context, placed[1], name, partition, log_start=lambda: self._log_start(name, partition)
            )
            self._views[(name, partition)] = follower
            return follower

    def _writer(self, name: str, partition: int) -> PartitionWriter:
        view = self._view(name, partition)
        if not isinstance(view, PartitionWriter):
            raise ReadOnlyError("this store was opened with read_only=True; open it without to change it")
        return view

    def _refresh_views(self, topic: Topic) -> None:
        """Give a topic its writers at hand, so that an append finds its partition without asking us."""
        if not self.read_only:
            count = self._entries[topic.name].partitions
            topic._views = [self._views.get((topic.name, partition)) for partition in range(count)]

    def _log_start(self, name: str, partition: int) -> int:
        """The checkpointed log start offset, for read-only views; read again after a second at most."""
        read_at, starts = self._log_starts
        now = self._context.clock.monotonic_s()
        if read_at < 0 or now - read_at > 1.0:
            starts = {}
            for each in self._online():
                starts.update(each.read_offsets(logdir.LOG_START))
            self._log_starts = (now, starts)
        return starts.get((name, partition), 0)

    # -- maintenance -----------------------------------------------------------------------------------

    def tick(self) -> None:
        """What time makes due: idle rolls, flushes, checkpoints, removal of deleted files."""
        for writer in self._writers():
            try:
                writer.tick()
            except StorageError as error:
                self._context.warn(f"{writer.directory}: {error}")
        self._deletions.run()
        now = self._context.clock.monotonic_s()
        interval_s = self.config.get_int("log.flush.offset.checkpoint.interval.ms") / 1000
        if now - self._last_checkpoint_s >= interval_s:
            self._last_checkpoint_s = now
            self._checkpoint()

    def tick_interval_s(self) -> float:
        """How long the background thread may sleep."""
        flush_ms = min((writer.config.flush_ms for writer in self._writers()), default=1000)
        return max(0.01, min(1.0, flush_ms / 2000))

    def _writers(self) -> list[PartitionWriter]:
        return [view for view in list(self._views.values()) if isinstance(view, PartitionWriter)]

    def flush(self) -> None:
        """Make everything appended so far durable, in every partition."""
        self._check_writable()
        for writer in self._writers():
            if writer.unusable is None:
                writer.flush()

    def _checkpoint(self) -> None:
        """Kafka's root checkpoints, as a broker would write them."""
        for each in self._online():
            points: dict[tuple[str, int], int] = {}
            starts: dict[tuple[str, int], int] = {}
            marks: dict[tuple[str, int], int] = {}
            for writer in self._writers():
                if self._entries[writer.topic].directories[writer.partition][0] is not each:
                    continue
                key = (writer.topic, writer.partition)
                points[key] = writer.recovery_point
                marks[key] = writer.end_offset()
                if writer.log_start_offset > writer.segments()[0].base_offset:
                    starts[key] = writer.log_start_offset

            def write(
                each: LogDir = each,
                points: dict[tuple[str, int], int] = points,
                starts: dict[tuple[str, int], int] = starts,
                marks: dict[tuple[str, int], int] = marks,
            ) -> None:
                each.write_offsets(logdir.RECOVERY_POINT, points)
                each.write_offsets(logdir.LOG_START, starts)
                each.write_offsets(logdir.HIGH_WATERMARK, marks)

            self._try_dir(each, write)

    def _delete_records(self, name: str, partition: int, before_offset: int) -> int:
        writer = self._writer(name, partition)
        with self._lock:
            where = self._entries[name].directories[partition][0]
            hidden = writer.advance_log_start(before_offset)
            starts = where.read_offsets(logdir.LOG_START)
            starts[(name, partition)] = writer.log_start_offset
            where.write_offsets(logdir.LOG_START, starts)
            delay_s = writer.config.file_delete_delay_ms / 1000
            self._deletions.add(writer.directory, hidden, delay_s)
        return writer.log_start_offset

    def _release_some_handle(self) -> bool:
        return any(writer.release_handle() for writer in self._writers())

    def move_partition(self, name: str, partition: int, to: str) -> None:
        """Move a partition to another log directory of this store; readers and appenders wait meanwhile."""
        self._check_writable()
        with self._lock:
            entry = self._entry(name)
            target = next((each for each in self._online() if each.path == to.rstrip("/")), None)
            if target is None:
                known = ", ".join(each.path for each in self._online())
                raise InvalidArgumentError(f"{to} is not a log directory of this store; it has {known}")
            where, directory = entry.directories[partition]
            if where is target:
                return
            writer = self._writer(name, partition)
            start = writer.log_start_offset
            writer.close()
            moved = move_partition(self._context, directory, where, target)
            entry.directories[partition] = (target, moved)
            starts = {(name, partition): start}
            reopened = self._open_partition(entry, partition, target, moved, {}, starts)
            if reopened is None:
                raise LogDirOfflineError(f"{target.path}: {target.offline}")
            self._views[(name, partition)] = reopened
            self._checkpoint()
            self._refresh_views(self.topic(name))

    # -- numbers ---------------------------------------------------------------------------------------

    def log_dirs(self) -> list[LogDirInfo]:
        """Partitions, segments and bytes of each log directory."""
        self._check_open()
        if self.read_only:
            self._load()
        found = []
        for each in self._dirs:
            if each.offline is not None:
                found.append(LogDirInfo(each.path, 0, 0, 0, None, str(each.offline)))
                continue
            partitions = segments = size = 0
            for entry in self._entries.values():
                for partition, (where, _) in entry.directories.items():
                    if where is each:
                        partitions += 1
                        view = self._view(entry.name, partition)
                        view.refresh()
                        segments += len(view.segments())
                        size += sum(segment.size for segment in view.segments())
            free = self._context.fs.free_bytes(each.path)
            found.append(LogDirInfo(each.path, partitions, segments, size, free, None))
        return found

    def open_files(self) -> int:
        """File handles the store has open right now."""
        return self._context.handles.stats().open

    @property
    def control_address(self) -> str | None:
        """Where other processes reach this store; None when it cannot be reached."""
        return self._background.address if self._background is not None else None

    # -- end -------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnlyError("this store was opened with read_only=True; open it without to change it")

    def close(self) -> None:
        """Sync everything, write the checkpoints and the clean-shutdown file, let the locks go."""
        if self._closed is not None:
            return
        if self._background is not None:
            self._background.stop()
        with self._lock:
            if self._closed is not None:
                return
            try:
                if not self.read_only:
                    self._close_writers()
            finally:
                self._closed = ClosedError("the store is closed")
                for each in self._dirs:
                    each.release()
                self._context.handles.close()

    def _close_writers(self) -> None:
        failed: set[LogDir] = set()
        first: BaseException | None = None
        dirty = any(each.dirty for each in self._online())
        self._deletions.run(everything=True)
        for writer in self._writers():
            where = self._entries[writer.topic].directories[writer.partition][0]
            broken = writer.unusable is not None
            try:
                writer.close()
            except StorageError as error:
                broken, first = True, first or error
            if broken:
                failed.add(where)
        if dirty:
            self._checkpoint()
        for each in self._online():
            if each not in failed:
                each.mark_clean()
        if first is not None:
            raise first

    def _mark_forked(self) -> None:
        self._closed = ForkedError("this store was opened before a fork; open it again in the child")
        for writer in self._writers():
            writer.mark_forked()


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store._mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["LogDirInfo", "Store", "StoreLockedError", "open_store"]
