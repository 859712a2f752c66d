"""A store: several log directories, one lock each, many topics, one background thread.

A writable open takes the locks, settles and recovers every partition (side by side), and starts the
background thread. A read-only open takes nothing and changes nothing, and may live beside a writer of
ours or a running Kafka broker.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from stratalog.config import (
    BrokerConfig,
    ConfigEntry,
    TopicConfig,
    check_names,
    describe,
    parse_overrides,
    with_profile,
)
from stratalog.errors import (
    ClosedError,
    ForkedError,
    InvalidArgumentError,
    LogDirOfflineError,
    NotFoundError,
    ReadOnlyError,
    TopicExistsError,
)
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.context import Clock, LogContext, SystemClock
from stratalog.log.names import collides, validate_topic
from stratalog.log.recovery import RecoveryReport
from stratalog.log.repair import RepairReport, repair_partition
from stratalog.log.writer import PartitionWriter
from stratalog.store import arriving, catalog
from stratalog.store.background import Background
from stratalog.store.catalog import TopicEntry
from stratalog.store.janitor import Janitor
from stratalog.store.journal import Journal
from stratalog.store.lifecycle import Lifecycle
from stratalog.store.logdir import LogDir
from stratalog.store.moving import move_partition
from stratalog.store.numbers import LogDirInfo, log_dir_numbers
from stratalog.store.partitions import Partitions
from stratalog.store.remembering import remembered
from stratalog.store.topic import Topic
from stratalog.store.upkeep import Upkeep

if TYPE_CHECKING:
    from stratalog.archive.objects import Objects

MAX_PARTITIONS = 100_000

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def open_store(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    config: Mapping[str, object] | None = None,
    *,
    read_only: bool = False,
    create: bool = True,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    background: bool = True,
    janitor: bool = False,
    remember: bool = True,
    objects: Objects | None = None,
) -> Store:
    """Open a store at one or several log directories.

    ``config`` holds broker settings by Kafka's names. They are kept with the store from its first write on:
    None means what was said last, so that a command line beside a program goes by the program's settings;
    an empty mapping means the defaults; with ``remember=False`` they hold for this open only.

    ``create=False`` refuses a directory that is not there. ``janitor=True`` carries the topics' policies out
    while the store is open: retention every ``log.retention.check.interval.ms``, compaction and archiving
    whenever they are due.

    ``fs``, ``clock``, ``objects`` and ``background=False`` are for tests: another filesystem, another time,
    another object store, and no thread, in which case `Store.tick` must be called.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise InvalidArgumentError("a store needs at least one log directory")
    names = [os.fspath(each).rstrip("/") or "/" for each in paths]
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"the same log directory is given twice: {', '.join(names)}")
    fs = fs or RealFileSystem()
    return Store(
        names,
        remembered(fs, names) if config is None else BrokerConfig.parse(config),
        read_only=read_only,
        create=create,
        fs=fs,
        clock=clock or SystemClock(),
        background=background,
        janitor=janitor,
        remember=remember,
        objects=objects,
    )


class Store(Upkeep):
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
        janitor: bool,
        remember: bool = True,
        objects: Objects | None = None,
    ) -> None:
        self.config = config
        self.read_only = read_only
        for path in paths:
            if (read_only or not create) and not fs.exists(path):
                raise NotFoundError(f"no log directory at {path}")
        handles = HandleCache(fs, config.get_int("log.max.open.files") or None)
        context = LogContext(fs, handles, clock)
        self._partitions = Partitions(context, paths, config, read_only=read_only, objects=objects)
        self._partitions.remember = remember
        handles.on_pressure = self._partitions.release_some_handle
        self._topics: dict[str, Topic] = {}
        self._background: Background | None = None
        self._lifecycle = Lifecycle(self._partitions)
        self._journal = Journal(self._partitions)
        self._janitor = Janitor(self._lifecycle) if janitor and not read_only else None
        if read_only:
            self._partitions.load()
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
        return f"<Store {', '.join(each.path for each in self._partitions.dirs)}, {mode}>"

    def _open_for_writing(self, background: bool) -> None:
        partitions, fs = self._partitions, self._partitions.context.fs
        info = {"pid": os.getpid(), "started": int(time.time())}
        taken: list[LogDir] = []
        try:
            for each in partitions.dirs:
                partitions.try_dir(each, partial(each.acquire, info))
                taken.append(each)
            if not partitions.online():
                raise LogDirOfflineError(f"no log directory can be used: {partitions.dirs[0].offline}")
            cluster_id = id_to_text(new_id())
            arriving.finish(partitions.online())
            for each in partitions.online():
                each.read_state()
                cluster_id = each.ensure_meta_properties(cluster_id)
                for leftover in each.leftovers():
                    fs.remove_tree(leftover)
            partitions.load()
            partitions.recover()
            self._journal.recover()
            if background:
                self._background = Background(self, control=isinstance(fs, RealFileSystem))
                partitions.on_roll = self._background.wake
                if self._background.address is not None:
                    for each in partitions.online():
                        each.announce({**info, "control": self._background.address})
        except BaseException:
            if self._background is not None:
                self._background.stop()
            for each in taken:
                each.release()
            partitions.context.handles.close()
            raise

    # -- topics --------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self._partitions.check_open()
        if self.read_only:
            self._partitions.load()
        return sorted(self._partitions.entries)

    def topic(self, name: str) -> Topic:
        """A topic by name; `UnknownTopicError` when there is none."""
        self._partitions.entry(name)
        with self._partitions.lock:
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = Topic(self._partitions, name)
                topic.refresh_writers()
            return topic

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic; its partitions go to the log directories that hold the fewest."""
        self._check_writable()
        validate_topic(name)
        count = self.config.get_int("num.partitions") if partitions is None else partitions
        if not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
            raise InvalidArgumentError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {count!r}")
        entry = TopicEntry(name, new_id(), count, parse_overrides(with_profile(config or {})))
        entry.config(self.config)
        with self._partitions.lock:
            entries = self._partitions.entries
            for known in entries:
                if known == name:
                    raise TopicExistsError(f"topic {name} already exists")
                if collides(known, name):
                    raise TopicExistsError(f"topic {name} differs from {known} only in '.' and '_'")
            self._partitions.save({**entries, name: entry})
            entries[name] = entry
            for partition in range(count):
                self._partitions.create_partition(entry, partition)
        return self.topic(name)

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions; keys may map to other partitions from then on, as in Kafka."""
        self._check_writable()
        with self._partitions.lock:
            entry = self._partitions.entry(name)
            if not entry.partitions < total <= MAX_PARTITIONS:
                raise InvalidArgumentError(f"{name} has {entry.partitions} partitions; {total} is not more")
            entry.own()
            first, entry.partitions = entry.partitions, total
            self._partitions.save(self._partitions.entries)
            for partition in range(first, total):
                self._partitions.create_partition(entry, partition)
            self.topic(name).refresh_writers()

    def alter_topic(self, name: str, changes: Mapping[str, object]) -> TopicConfig:
        """Change settings of a topic; None takes an override back. Returns what is in force then."""
        self._check_writable()
        check_names(changes)
        sets = parse_overrides(
            with_profile({key: value for key, value in changes.items() if value is not None})
        )
        with self._partitions.lock:
            entry = self._partitions.entry(name)
            overrides = {**(catalog.NO_POLICY if entry.foreign else {}), **entry.overrides, **sets}
            for key, value in changes.items():
                if value is None:
                    overrides.pop(key, None)
            config = TopicEntry(name, overrides=overrides).config(self.config)
            entry.own()
            entry.overrides = overrides
            self._partitions.save(self._partitions.entries)
            for partition in range(entry.partitions):
                view = self._partitions.views.get((name, partition))
                if isinstance(view, PartitionWriter):
                    view.apply_config(config)
                    view.rolls_idle = True
                    self._partitions.archives.attach(view, entry, view.log_start_offset)
            return config

    def delete_topic(self, name: str) -> None:
        """Remove a topic and all its data."""
        self._check_writable()
        partitions = self._partitions
        with ExitStack() as claimed:
            for number in range(partitions.entry(name).partitions):
                claimed.enter_context(self._lifecycle.claims.claim((name, number)))
            claimed.enter_context(partitions.lock)
            entry = partitions.entry(name)
            tiering = partitions.archives.tiering
            if tiering is not None:
                tiering.begin_deletion(entry)
            partitions.save(
                {key: value for key, value in partitions.entries.items() if key != name}, deleting=entry.id
            )
            self._topics.pop(name, None)
            for partition, (where, directory) in entry.directories.items():
                partitions.mark_dirty(where)
                view = partitions.views.pop((name, partition), None)
                if view is not None:
                    view.close()
                    for segment in view.segments():
                        segment.forget()
                where.delete_partition(directory)
                self._lifecycle.forget((name, partition))
            del partitions.entries[name]
            if tiering is not None:
                tiering.finish_deletion(entry)

    def describe_topic(self, name: str) -> list[ConfigEntry]:
        """Every setting of a topic with its value and where it comes from."""
        return describe(self.config, self._partitions.entry(name).effective_overrides())

    # -- maintenance -----------------------------------------------------------------------------------

    @property
    def recovery(self) -> list[RecoveryReport]:
        """What opening found, for each partition."""
        return self._partitions.recovery

    def tick(self) -> None:
        """Do what time makes due; only needed without the background thread."""
        self._partitions.tick()
        if self._janitor is not None:
            self._janitor.tick()

    def flush(self) -> None:
        """Make everything appended so far durable, in every partition."""
        self._check_writable()
        for writer in self._partitions.writers():
            if writer.unusable is None:
                writer.flush()

    def move_partition(self, name: str, partition: int, to: str) -> None:
        """Move a partition to another log directory of this store; readers and writers wait."""
        self._check_writable()
        partitions = self._partitions
        with self._lifecycle.claims.claim((name, partition)), partitions.lock:
            writer = partitions.writer(name, partition)
            entry = partitions.entry(name)
            target = next((each for each in partitions.online() if each.path == to.rstrip("/")), None)
            if target is None:
                known = ", ".join(each.path for each in partitions.online())
                raise InvalidArgumentError(f"{to} is not a log directory of this store; it has {known}")
            where, directory = partitions.place(name, partition)
            if where is target:
                return
            for each in (where, target):
                partitions.mark_dirty(each)
            writer.close()
            entry.directories[partition] = (
                target,
                move_partition(partitions.context, directory, where, target),
            )
            partitions.reopen(entry, partition, writer.log_start_offset)
            partitions.checkpoint()
            self.topic(name).refresh_writers()

    def repair(self, name: str, partition: int, *, action: str, dry_run: bool = False) -> RepairReport:
        """Give up or rebuild what is damaged, exactly as told; the partition is closed meanwhile."""
        self._check_writable()
        partitions = self._partitions
        with self._lifecycle.claims.claim((name, partition)), partitions.lock:
            writer = partitions.writer(name, partition)
            where, directory = partitions.place(name, partition)
            partitions.mark_dirty(where)
            writer.close()
            for segment in writer.segments():
                segment.forget()
            try:
                return repair_partition(
                    partitions.context,
                    directory,
                    name,
                    partition,
                    writer.config,
                    action=action,
                    dry_run=dry_run,
                )
            finally:
                partitions.reopen(partitions.entry(name), partition, writer.log_start_offset)
                self.topic(name).refresh_writers()

    # -- numbers ---------------------------------------------------------------------------------------

    def log_dirs(self) -> list[LogDirInfo]:
        """Partitions, segments and bytes of each log directory."""
        partitions = self._partitions
        partitions.check_open()
        if self.read_only:
            partitions.load()
        return [log_dir_numbers(partitions, each) for each in partitions.dirs]

    def open_files(self) -> int:
        """File handles the store has open right now."""
        return self._partitions.context.handles.stats().open

    @property
    def control_address(self) -> str | None:
        """Where other processes reach this store; None when it cannot be reached."""
        return self._background.address if self._background is not None else None

    # -- end -------------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        self._partitions.check_open()
        if self.read_only:
            raise ReadOnlyError("this store was opened with read_only=True; open it without to change it")

    def close(self) -> None:
        """Sync everything, write the checkpoints and the clean-shutdown file, let the locks go."""
        if self._partitions.closed is not None:
            return
        self._lifecycle.stopping.set()
        if self._background is not None:
            self._background.stop()
        if self._janitor is not None:
            self._janitor.join()
        self._lifecycle.claims.close()  # whoever rewrites segments must be done before the lock goes
        with self._partitions.lock:
            if self._partitions.closed is not None:
                return
            try:
                if not self.read_only:
                    self._partitions.close_writers()
            finally:
                self._partitions.closed = ClosedError("the store is closed")
                self._partitions.archives.close()
                for each in self._partitions.dirs:
                    each.release()
                self._partitions.context.handles.close()

    def _mark_forked(self) -> None:
        self._partitions.mark_forked(
            ForkedError("this store was opened before a fork; open it again in the child")
        )


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store._mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
