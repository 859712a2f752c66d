"""A store: several log directories, one lock each, many topics, one background thread.

A writable open takes the locks, settles and recovers every partition (side by side), and starts the
background thread. A read-only open takes nothing and changes nothing, and may live beside a writer of
ours or a running Kafka broker.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.config import (
    BrokerConfig,
    ConfigEntry,
    TopicConfig,
    change_lists,
    check_names,
    describe,
    parse_overrides,
    with_profile,
)
from stratalog.errors import (
    ClosedError,
    ConfigError,
    ForkedError,
    FormatError,
    InvalidArgumentError,
    StorageError,
    UnstableOffsetCommitError,
)
from stratalog.format.journal import Entry, StagedFile
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.arguments import (
    check_all,
    check_mapping,
    check_moment,
    check_number,
    check_optional,
    check_seconds,
    check_text,
    wrong_type,
)
from stratalog.log.context import Clock, LogContext, PartitionLocation, SystemClock
from stratalog.log.write.recovery import RecoveryReport
from stratalog.log.write.writer import PartitionWriter
from stratalog.store import topic_import
from stratalog.store.admin.control import Progress
from stratalog.store.background import Background
from stratalog.store.catalog import MAX_PARTITIONS, new_topic
from stratalog.store.groups import Consumer, Groups
from stratalog.store.groups.consumers import Reset
from stratalog.store.groups.offsets import MAX_NAME, OFFSETS_TOPIC
from stratalog.store.internal_topic import InternalTopic
from stratalog.store.journal.journal import Committed, Journal
from stratalog.store.opening import MAX_LISTINGS
from stratalog.store.partitions import Partitions, check_partition
from stratalog.store.paths import Paths, absolute_places, path_list, path_of
from stratalog.store.serde import Deserializer, Serde, SerializedTopic
from stratalog.store.settings import remembered
from stratalog.store.topic import Topic
from stratalog.store.transactions import Coordinator, Transaction
from stratalog.store.transactions.coordinator import TRANSACTIONS_TOPIC
from stratalog.store.transactions.state import MAX_TIMEOUT_MS

if TYPE_CHECKING:
    from stratalog.archive.objects import Objects
    from stratalog.log.arguments import Moment
    from stratalog.log.check.repair import RepairReport
    from stratalog.log.clean import CleanReport
    from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask
    from stratalog.store.copies import CloneReport, ExportReport, ImportReport, RestoreReport
    from stratalog.store.copies import Progress as CopyProgress
    from stratalog.store.copies.clone import OpenTransactions
    from stratalog.store.copies.topic_file import InFile, OutFile
    from stratalog.store.lifecycle.lifecycle import Janitor, Lifecycle
    from stratalog.store.lifecycle.reports import EraseReport, LifecycleReport, LogDirInfo, PartitionNumbers

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def open_store(
    path: Paths,
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

    ``config`` holds broker settings by their Kafka names. They are saved with the store at its first write,
    so that later opens and the command line use them. None means the saved settings, an empty mapping the
    defaults. With ``remember=False`` the settings apply to this open only.

    ``create=False`` refuses a directory that does not exist. ``janitor=True`` applies the topics' policies
    while the store is open: retention every ``log.retention.check.interval.ms``, compaction and archiving
    when they are due.

    ``fs``, ``clock``, ``objects`` and ``background=False`` are for tests: another filesystem, another time,
    another object store, and no background thread (then `Store.tick` must be called).
    """
    fs = fs or RealFileSystem()
    names = path_list(fs, path)
    return Store(
        names,
        remembered(fs, names) if config is None else BrokerConfig.parse(absolute_places(config)),
        read_only=read_only,
        create=create,
        fs=fs,
        clock=clock or SystemClock(),
        background=background,
        janitor=janitor,
        remember=remember,
        objects=objects,
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
        janitor: bool,
        remember: bool = True,
        objects: Objects | None = None,
    ) -> None:
        self.config = config
        self.read_only = read_only
        handles = HandleCache(fs, config.get_int("log.max.open.files") or None)
        context = LogContext(fs, handles, clock)
        self.partitions = Partitions(
            context, paths, config, read_only=read_only, remember=remember, objects=objects
        )
        """The inside of the store, for the other rooms of Stratalog; not for programs that use it."""
        self.partitions.dirs.check(must_exist=read_only or not create)
        handles.on_pressure = self.partitions.release_some_handle
        self.cluster_id = ""
        """The cluster id of the log directories, as `meta.properties` has it; empty in a read-only store."""
        self._topics: dict[str, Topic] = {}
        self._closing = locks.lock("closing")
        """Held while the store is closed, I/O and all; only `close` takes it."""
        self._released = False
        """True when the locks, files and threads are given back, or belong to a forked child's parent."""
        self._close_failure: BaseException | None = None
        self._background: Background | None = None
        self._made_lifecycle: Lifecycle | None = None
        self._janitor: Janitor | None = None
        if not read_only:
            self._make_lifecycle(janitor)
        self.journal = Journal(self.partitions)
        """The commits of staged files."""
        self.transactions = Coordinator(self)
        """The transactions of this store."""
        self.groups = Groups(self)
        """The consumer groups: their committed offsets, and the consumers in this process."""
        try:
            if read_only:
                self.partitions.opening.load()
            else:
                self._open_for_writing(background)
            self.partitions.opening.warn_of_missing()
            _open_stores.add(self)
        except BaseException:
            self._give_back()
            raise

    def _make_lifecycle(self, janitor: bool = False) -> Lifecycle:
        from stratalog.store.lifecycle.lifecycle import Janitor, Lifecycle

        made = self._made_lifecycle = Lifecycle(self.partitions)
        if janitor:
            self._janitor = Janitor(made)
        return made

    @property
    def _lifecycle(self) -> Lifecycle:
        """Made by a writable open; a store that is only read makes it for its first preview."""
        return self._made_lifecycle or self._make_lifecycle()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        mode = "read-only" if self.read_only else "writable"
        return f"<Store {', '.join(each.path for each in self.partitions.dirs.all)}, {mode}>"

    def _open_for_writing(self, background: bool) -> None:
        partitions, fs = self.partitions, self.partitions.context.fs
        info = {"pid": os.getpid(), "started": int(time.time())}
        for each in partitions.dirs.online():
            partitions.dirs.try_dir(each, partial(each.acquire, info))
        partitions.opening.check_usable()
        cluster_id = id_to_text(new_id())
        topic_import.finish(partitions.dirs.online())
        for each in partitions.dirs.online():
            each.read_state()
            cluster_id = each.ensure_meta_properties(cluster_id)
            for leftover in each.leftovers():
                fs.remove_tree(leftover)
        self.cluster_id = cluster_id
        partitions.opening.load()
        partitions.opening.recover()
        self.journal.recover()
        self.transactions.recover()
        if background:
            from stratalog.store.admin.admin import payload_limit, run_command  # it imports this module

            self._background = Background(self)
            partitions.opening.on_wake = self._background.wake
            control = partial(run_command, self), partial(payload_limit, self)
            self._background.start(control if isinstance(fs, RealFileSystem) else None)
            if self._background.address is not None:
                for each in partitions.dirs.online():
                    each.announce({**info, "control": self._background.address})

    @contextmanager
    def _giving_back(self) -> Iterator[None]:
        """At the end let the locks and files go: each whatever becomes of the others."""
        partitions = self.partitions
        with ExitStack() as rest:
            for release in (
                partitions.context.handles.close,
                *(each.release for each in reversed(partitions.dirs.all)),
                partitions.archives.close,
            ):
                for _ in range(2):  # the second time for one that an interrupt cut short
                    rest.callback(release)
            yield

    def _give_back(self) -> None:
        """After an open that failed or was interrupted."""
        with self._giving_back():
            if self._background is not None:
                self._background.stop()

    # -- topics --------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._check(only_looks=True)
        return sorted(self.partitions.entries)

    def topic(self, name: str) -> Topic:
        """Return a topic by name; raise `UnknownTopicError` if it does not exist."""
        entry = self.partitions.entry(name)
        topic = self._topics.get(name)
        if topic is None or topic.entry_id not in (entry.id, None):
            kind = InternalTopic if name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) else Topic
            topic = self._topics[name] = kind(self.partitions, name, entry.id)
        topic.entry_id = entry.id
        return topic

    def __getitem__(self, name: str) -> Topic:
        """`topic`, written ``store["orders"]``; `UnknownTopicError` is a LookupError."""
        return self.topic(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.topics()

    def __iter__(self) -> Iterator[Topic]:
        """Iterate over the topics, by name."""
        return iter([self.topic(name) for name in self.topics()])

    def __len__(self) -> int:
        return len(self.topics())

    def __bool__(self) -> bool:
        """Return True, also without topics."""
        return True

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> Topic:
        """Create a topic; its partitions go to the log directories that hold the fewest.

        With ``if_not_exists`` an existing topic is returned unchanged; its partitions and settings may differ
        from the arguments.
        """
        self._check_writable()
        entry = new_topic(name, partitions, check_mapping("config", config), self.config)
        with self.partitions.changes.of(name):
            if if_not_exists and name in self.partitions.entries:
                return self.topic(name)
            topic_import.check_free(self.partitions, name)
            self.partitions.archives.check(entry.config(self.config))
            self.partitions.opening.create_partitions(entry, None)
        return self.topic(name)

    def check_new_topic(self, name: str, partitions: int | None, config: Mapping[str, object]) -> None:
        """Raise what `create_topic` would raise for these arguments; create nothing."""
        self._check_writable()
        entry = new_topic(name, partitions, config, self.config)
        topic_import.check_free(self.partitions, name)
        self.partitions.archives.check(entry.config(self.config))

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions; keys may then map to other partitions, as in Kafka."""
        self._check_writable(name)
        total = check_number("total", total, 1, MAX_PARTITIONS)
        if name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            raise InvalidArgumentError(
                f"{name} keeps its number of partitions: it decides where a group or transaction is stored,"
                " and all of them would be lost"
            )
        with self.partitions.changes.of(name):
            entry = self.partitions.entry(name)
            if total <= entry.partitions:
                raise InvalidArgumentError(f"{name} has {entry.partitions} partitions; {total} is not more")
            grown = replace(entry.owned(), partitions=total)
            self.partitions.opening.create_partitions(grown, entry)
            self.topic(name).refresh_writers()

    def alter_topic(
        self,
        name: str,
        changes: Mapping[str, object] | None = None,
        *,
        append: Mapping[str, object] | None = None,
        subtract: Mapping[str, object] | None = None,
    ) -> TopicConfig:
        """Change settings of a topic, all or (on an error) none. Return the effective settings.

        The operations are those of Kafka's IncrementalAlterConfigs: a value in ``changes`` sets, None deletes
        the override; ``append`` and ``subtract`` add elements to a list and remove them.
        """
        self._check_writable(name)
        changes, append = check_mapping("changes", changes), check_mapping("append", append)
        subtract = check_mapping("subtract", subtract)
        twice = changes.keys() & {*append, *subtract}
        if twice:
            raise ConfigError(f"{min(twice)} is given to more than one operation")
        sets = parse_overrides(
            with_profile({key: value for key, value in changes.items() if value is not None})
        )
        partitions = self.partitions
        with partitions.changes.of(name):
            entry = partitions.entry(name).owned()
            check_names(changes.keys() - entry.overrides.keys())  # a newer version may have set others
            overrides = {**entry.overrides, **sets}
            if append or subtract:
                in_force = {each.name: each.value for each in describe(self.config, entry.overrides)}
                lists = change_lists(lambda each: in_force.get(each, ""), append, subtract)
                overrides.update(parse_overrides(lists))
            for key, value in changes.items():
                if value is None:
                    overrides.pop(key, None)
            entry = replace(entry, overrides=overrides)
            config = entry.config(self.config)
            partitions.archives.check(config)
            partitions.alter(entry)
            partitions.opening.wake()  # a flush may be due earlier
            waiting = partitions.opening.offline_by_settings(entry)
            if waiting:
                partitions.opening.open_and_publish(entry, waiting)
                self.topic(name).refresh_writers()
            return config

    def delete_topic(self, name: str) -> None:
        """Delete a topic, all its data, and the offsets that consumer groups committed for it."""
        self._check_writable()
        partitions = self.partitions
        with ExitStack() as claimed:
            for number in range(partitions.entry(name).partitions):
                claimed.enter_context(self.partitions.claims.claim((name, number)))
            claimed.enter_context(partitions.changes.of(name))
            entry = partitions.entry(name)
            tiering = partitions.archives.tiering
            if tiering is not None:
                tiering.begin_deletion(entry)
            writers = [view for view in partitions.registry.views(name) if isinstance(view, PartitionWriter)]
            with partitions.settings.deleting(entry, writers):
                self._topics.pop(name, None)
                for view in partitions.registry.remove(name):
                    if isinstance(view, PartitionWriter):
                        with view.maintenance:  # a deletion of records under way ends before its files go
                            view.close(finish=False)  # no room is needed to make some
                        view.mark_deleted()
                for partition, (where, directory) in entry.directories.items():
                    partitions.settings.mark_dirty(where)
                    where.delete_partition(directory)
                    self._lifecycle.forget((name, partition))
                    partitions.opening.offline.pop((name, partition), None)
            if tiering is not None:
                tiering.finish_deletion(entry)
        try:
            self.groups.offsets.forget_topic(name)
        except (FormatError, StorageError, UnstableOffsetCommitError) as error:
            partitions.context.warn(
                f"topic {name} is deleted, but not the offsets that groups committed for it: {error}"
            )

    def allocate_producer_ids(self, count: int = 1000) -> range:
        """Allocate producer ids that were never allocated before, also not before a crash; 1,000 as in Kafka.

        Ids already used in a partition or by a transactional id are skipped: an adopted log may contain ids
        of its broker.
        """
        self._check_writable()
        check_number("count", count, 1, 2**31 - 1)
        taken = {each for writer in self.partitions.registry.writers for each in writer.producers.ids()}
        taken.update(self.transactions.producer_ids())
        return self.partitions.settings.allocate_producer_ids(count, taken)

    def describe_topic(self, name: str) -> list[ConfigEntry]:
        """Return every setting of a topic with its value and source."""
        return describe(self.config, self.partitions.entry(name).effective_overrides())

    # -- maintenance -----------------------------------------------------------------------------------

    @property
    def recovery(self) -> list[RecoveryReport]:
        """The result of recovery at the last open, for each partition."""
        return self.partitions.opening.recovery

    def tick(self) -> None:
        """Run the periodic work that is due; only needed without the background thread."""
        self.partitions.check_open()
        self.partitions.tick()
        if not self.read_only:
            self.transactions.tick()
        if self._janitor is not None:
            self._janitor.tick()
            if self._background is None:
                self._janitor.wait_for_retention()

    def flush(self) -> None:
        """Sync everything appended so far to disk, in every partition."""
        self._check_writable()
        self.partitions.flush()

    def move_partition(self, name: str, partition: int, to: str) -> None:
        """Move a partition to another log directory of this store; appends wait, reads continue.

        If the move fails, the partition stays in its old directory. If it is interrupted, the partition is in
        one of the two directories; after a second interrupt the next operation finishes this.
        """
        self._check_writable(name)
        partitions = self.partitions
        partition = check_number("partition", partition)
        with self.partitions.claims.claim((name, partition)), partitions.changes.of(name):
            writer = partitions.writer(name, partition)
            wanted = path_of(partitions.context.fs, to)
            target = next((each for each in partitions.dirs.online() if each.path == wanted), None)
            if target is None:
                known = ", ".join(each.path for each in partitions.dirs.online())
                raise InvalidArgumentError(f"{to} is not a log directory of this store; it has {known}")
            where, _ = partitions.place(name, partition)
            if where is target:
                return
            for each in (where, target):
                partitions.settings.mark_dirty(each)
            try:
                partitions.moves.make(writer, target)
            finally:
                self.topic(name).refresh_writers()

    def repair(self, name: str, partition: int, *, action: str, dry_run: bool = False) -> RepairReport:
        """Rebuild or drop damaged data according to ``action``; the partition is closed during the repair.

        ``dry_run`` changes nothing, works on a read-only store and leaves the partition open.
        """
        self._check(only_looks=dry_run)
        check_text("topic", name)
        from stratalog.log.check.repair import check_action, repair_partition

        check_action(action)
        partitions = self.partitions
        partition = check_number("partition", partition)
        if dry_run:
            with self.partitions.claims.claim((name, partition)):
                return self._try_repair(name, partition, action)
        with self.partitions.claims.claim((name, partition)), partitions.changes.of(name):
            entry = partitions.entry(name)
            if partitions.is_missing(entry, partition):
                try:
                    return partitions.give_up(entry, partition, action)
                finally:
                    self.topic(name).refresh_writers()
            offline = (name, partition) in partitions.opening.offline
            if not offline:
                writer = partitions.writer(name, partition)
            where, directory = partitions.place(name, partition)
            partitions.settings.mark_dirty(where)
            try:
                if not offline:
                    partitions.moves.close(writer)
                location = PartitionLocation(partitions.context, directory, name, partition)
                return repair_partition(location, entry.config(self.config), action=action, dry_run=False)
            finally:
                if offline:
                    start = where.checkpoints.log_start.get((name, partition)) or 0
                    partitions.opening.open_and_publish(entry, {partition: start})
                else:
                    partitions.moves.settle(name)
                self.topic(name).refresh_writers()

    def _try_repair(self, name: str, partition: int, action: str) -> RepairReport:
        """Report what a repair would do, with its own handles; the partition stays open.

        Beside a holder, which may move the partition or replace files, it looks again where they are now.
        """
        from stratalog.log.check.repair import repair_partition

        partitions, fs = self.partitions, self.partitions.context.fs
        for _ in range(MAX_LISTINGS if self.read_only else 1):
            entry = partitions.entry(name)
            check_partition(entry, partition)
            config = entry.config(self.config)
            missing = partitions.is_missing(entry, partition)
            if not missing:
                _, directory = partitions.place(name, partition)
                with closing(HandleCache(fs)) as handles:
                    context = LogContext(fs, handles, partitions.context.clock)
                    location = PartitionLocation(context, directory, name, partition)
                    try:
                        return repair_partition(location, config, action=action, dry_run=True)
                    except FileNotFoundError as error:
                        gone = error
            if self.read_only:
                partitions.opening.load()
        if missing:
            return partitions.opening.give_up(entry, partition, action=action, dry_run=True)
        raise StorageError(f"{directory}: a file was removed while it was checked: try again") from gone

    # -- the life of segments ---------------------------------------------------------------------------

    def retain(self, topic: str | None = None, *, preview: bool = False) -> LifecycleReport:
        """Delete expired segments; ``preview`` only reports them and the ones that expire next.

        Previews and dry runs also work on a read-only store.
        """
        self._check(only_looks=preview, topic=topic)
        from stratalog.store.lifecycle.lifecycle import Round
        from stratalog.store.lifecycle.planning import retain_steps

        return self._lifecycle.run(Round(retain_steps, topic, preview=preview))

    def compact(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        preview: bool = False,
        force: bool = False,
        progress: Progress | None = None,
    ) -> LifecycleReport:
        """Compact the partitions that are due, or with ``force`` all that can be compacted.

        ``progress(what, done_bytes, total_bytes)`` is called from time to time.
        """
        self._check(only_looks=preview, topic=topic)
        number = check_optional("partition", partition)
        return self._lifecycle.compact(topic, number, force=force, preview=preview, progress=progress)

    def lend_compaction(
        self, topic: str, partition: int, *, force: bool = False, beside: int = 1
    ) -> tuple[LifecycleReport, str, CleaningTask | None]:
        """Lend a partition that is due to a process that compacts it elsewhere; see `remote_compaction`.

        Return the report of the round, the loan's token, and the task; None if nothing is due.
        """
        self._check_writable(topic)
        partition, beside = check_number("partition", partition), check_number("beside", beside, 1)
        return self._lifecycle.loans.lend(topic, partition, force=force, beside=beside)

    def extend_loans(self, tokens: Sequence[str]) -> list[str]:
        """Extend the loans of a borrower that is alive; return those that are still valid."""
        self._check_writable()
        return self._lifecycle.loans.extend(check_all("tokens", tokens, str, "strings"))

    def take_in_compaction(self, token: str, cleaned: Cleaned | None) -> CleanReport | None:
        """Swap in the outcome of a compaction that was lent; None gives the loan back."""
        self._check_writable()
        check_text("token", token)
        from stratalog.log.clean.remote_compaction import Cleaned

        if cleaned is not None and not isinstance(cleaned, Cleaned):
            raise wrong_type("cleaned", "the outcome of a compaction", cleaned)
        if cleaned is None:
            self._lifecycle.loans.give_back(token)
            return None
        return self._lifecycle.loans.take_in(token, cleaned)

    def archive(
        self, topic: str | None = None, *, preview: bool = False, progress: Progress | None = None
    ) -> LifecycleReport:
        """Copy sealed segments to the archive, and remove expired local copies."""
        self._check(only_looks=preview, topic=topic)
        if not preview:
            self.partitions.archives.sweep()
        from stratalog.store.lifecycle.lifecycle import Round
        from stratalog.store.lifecycle.planning import archive_plan

        return self._lifecycle.run(Round(archive_plan, topic, preview=preview, progress=progress))

    def take_over_archive(self, topic: str) -> None:
        """Make this store the writer of a topic's archive.

        Use it for a store that was rebuilt from its archive. The previous writer is fenced off.
        """
        self._check_writable(topic)
        self._lifecycle.take_over_archive(topic)

    def janitor(
        self, topic: str | None = None, *, preview: bool = False, progress: Progress | None = None
    ) -> LifecycleReport:
        """Run retention, compaction and archiving once, as `open(janitor=True)` does periodically."""
        self._check(only_looks=preview, topic=topic)
        from stratalog.store.lifecycle.lifecycle import Round
        from stratalog.store.lifecycle.planning import plan

        return self._lifecycle.run(Round(plan, topic, preview=preview, cleaning=True, progress=progress))

    def accept_clock(self) -> None:
        """Accept the wall clock after a jump, and resume the deletion by time that paused."""
        self._check_writable()
        self._lifecycle.accept_clock()

    def erase(
        self,
        topic: str,
        keys: Iterable[bytes],
        *,
        reason: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> EraseReport:
        """Remove every record of these keys from the log and its archive; other records keep their offsets.

        The erasure is recorded in an audit file; the report lists clones that still hold the keys.
        """
        self._check(only_looks=dry_run)
        erased = frozenset(check_all("keys", keys, bytes, "bytes"))
        check_text("reason", reason)
        from stratalog.store.lifecycle.erasing import erase

        return erase(
            self._lifecycle,
            self.topic(topic),
            erased,
            reason=reason,
            dry_run=dry_run,
            progress=progress,
        )

    def lifecycle(self) -> list[PartitionNumbers]:
        """Return segments, bytes and files of every partition by state, and segments past their retention."""
        self._check(only_looks=True)
        from stratalog.store.lifecycle.reports import partition_numbers

        return partition_numbers(self._lifecycle)

    def commit_staged(
        self,
        query: str,
        batch: int,
        files: Iterable[StagedFile],
        *,
        job: bool = False,
        progress: Progress | None = None,
    ) -> Committed:
        """Take staged files in as one commit, exactly once for each (query, batch); durable on return."""
        self._check_writable()
        staged = check_all("files", files, StagedFile, "staged files")
        return self.journal.commit(Entry(query, batch, tuple(staged), job), progress)

    # -- consumers -----------------------------------------------------------------------------------

    def consumer(
        self,
        group: str,
        topics: Sequence[str | Topic | SerializedTopic],
        *,
        reset: Reset = "earliest",
        auto_commit: bool = False,
        isolation: str = "read_uncommitted",
        timeout_s: float | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> Consumer:
        """Return a consumer of topics that stores its position under the name of its group.

        Several consumers of one group in this process share the partitions. ``reset`` is the start if the
        group has committed nothing, or if its offset is no longer in the log: ``earliest``, ``latest`` or
        ``error``. With ``auto_commit`` the records that a loop has finished are committed every five seconds
        and at the end; otherwise call `Consumer.commit`. A loop over it ends after ``timeout_s`` seconds
        without a record; None waits forever.

        The deserializers are those of `Topic.using`. A topic is given by its name, as a `Topic`, or as
        `Topic.using` returned it, with its own deserializers.
        """
        self._check_writable()
        return Consumer(
            self,
            self.groups,
            group,
            topics,
            reset=reset,
            auto_commit=auto_commit,
            isolation=isolation,
            timeout_s=timeout_s,
            serde=Serde.of(key_deserializer=key_deserializer, value_deserializer=value_deserializer),
        )

    def transaction(
        self, transactional_id: str, *, transaction_timeout_s: float = 60, sync: bool = False
    ) -> Transaction:
        """Begin a transaction; ``read_committed`` readers see all of it or nothing.

        Use it in a ``with`` block: its end commits, an exception aborts. An open transaction with the same id
        is fenced: it is aborted, and its next step raises `InvalidProducerEpochError`. The same happens to a
        transaction that is open longer than ``transaction_timeout_s``. A commit is as durable as the appends
        in it; with ``sync`` it is on disk when it returns, and stays complete after a power cut.
        """
        self._check_writable()
        size = len(check_text("transactional_id", transactional_id).encode("utf-8", "surrogatepass"))
        if not 0 < size <= MAX_NAME:
            raise InvalidArgumentError(f"transactional_id is a name of 1 to {MAX_NAME} bytes")
        timeout_s = check_seconds("transaction_timeout_s", transaction_timeout_s)
        if timeout_s is None or not 0 < timeout_s * 1000 <= MAX_TIMEOUT_MS:
            raise InvalidArgumentError(
                f"transaction_timeout_s is a number of seconds up to {MAX_TIMEOUT_MS // 1000}"
            )
        return Transaction(self, transactional_id, max(1, int(timeout_s * 1000)), sync=sync)

    # -- copies --------------------------------------------------------------------------------------

    def clone(
        self,
        target: str | os.PathLike[str],
        topics: Iterable[str] | None = None,
        *,
        progress: CopyProgress | None = None,
    ) -> CloneReport:
        """Copy the store, or some of its topics, to a new directory by hard links."""
        from stratalog.store import copies

        return copies.clone(self, target, topics, progress=progress)

    def restore(
        self,
        target: str | os.PathLike[str],
        *,
        to_time: Moment | None = None,
        to_offsets: Mapping[tuple[str, int], int] | None = None,
        topics: Iterable[str] | None = None,
        open_transactions: OpenTransactions = "keep",
        keep_retention: bool = False,
        progress: CopyProgress | None = None,
    ) -> RestoreReport:
        """Build a new store with the state at a given time, or up to offsets by (topic, partition).

        The time is given as for `Topic.read`; see `stratalog.store.copies.restore` for the rest.
        """
        from stratalog.store import copies

        return copies.restore(
            self,
            target,
            to_time=check_moment("to_time", to_time, self.partitions.context.clock.now_ms),
            to_offsets=to_offsets,
            topics=topics,
            open_transactions=open_transactions,
            keep_retention=keep_retention,
            progress=progress,
        )

    def export(self, topic: str, file: OutFile, *, progress: CopyProgress | None = None) -> ExportReport:
        """Write a topic, up to the high watermark of each partition, to a file with checksums.

        A file that exists is replaced.
        """
        from stratalog.store import copies

        return copies.export_topic(self, topic, file, progress=progress)

    def import_topic(
        self,
        file: InFile,
        *,
        name: str | None = None,
        settings: Mapping[str, object] | None = None,
        keep_retention: bool = False,
        progress: CopyProgress | None = None,
    ) -> ImportReport:
        """Import an exported topic; ``settings`` override those it was exported with."""
        from stratalog.store import copies

        self._check_writable()
        return copies.import_topic(
            self, file, name=name, settings=settings, keep_retention=keep_retention, progress=progress
        )

    # -- facts ---------------------------------------------------------------------------------------

    def log_dirs(self) -> list[LogDirInfo]:
        """Return partitions, segments and bytes of each log directory."""
        self._check(only_looks=True)
        from stratalog.store.lifecycle.reports import log_dir_numbers

        return [log_dir_numbers(self.partitions, each) for each in self.partitions.dirs.all]

    def open_files(self) -> int:
        """Return the number of file handles the store has open now."""
        return self.partitions.context.handles.stats().open

    @property
    def control_address(self) -> str | None:
        """The address of the control socket for other processes; None if there is none."""
        return self._background.address if self._background is not None else None

    # -- end -------------------------------------------------------------------------------------------

    def _check(self, *, only_looks: bool, topic: object = None) -> None:
        """Raise if the store is closed, or read-only and about to be changed; reload a read-only one.

        ``topic`` must be a name, or None for all.
        """
        self.partitions.check_open()
        if topic is not None:
            check_text("topic", topic)
        if not only_looks:
            self.partitions.check_writable()
        if self.read_only:
            self.partitions.opening.load()

    def _check_writable(self, *topics: object) -> None:
        """Raise if the store cannot be changed, or one of ``topics`` is no name."""
        self._check(only_looks=False)
        for topic in topics:
            check_text("topic", topic)

    def close(self) -> None:
        """Sync everything, write the checkpoints and the clean-shutdown file, and release the locks.

        If it fails or is interrupted while it writes, the locks are still released, and the next open runs
        recovery. If it is interrupted while it waits for running work, nothing is closed. In both cases a
        second call does the rest. Concurrent calls succeed or fail together.
        """
        if self._released:
            return
        began_open = self.partitions.closed is None
        if self._made_lifecycle is not None:
            self._made_lifecycle.stopping = True
        if self._background is not None:
            self._background.stop()
        if self._janitor is not None:
            self._janitor.join()
        self.partitions.claims.close()  # rewrites of segments must end before the lock is released
        self.partitions.changes.close()
        with self._closing:
            if self._released:
                return
            partitions = self.partitions
            with self._giving_back():
                if partitions.closed is None:  # afterwards another process may hold the directories
                    began_open = False  # this call tells by itself what fails
                    try:
                        if not self.read_only:
                            partitions.close_writers()
                    except BaseException as error:
                        self._close_failure = error
                        raise
                    finally:
                        partitions.closed = ClosedError("the store is closed")
            self._released = True
        if began_open and self._close_failure is not None:
            raise StorageError(
                f"the store was closed by another thread, which failed: {self._close_failure}"
            ) from self._close_failure

    def _mark_forked(self) -> None:
        self._released = True
        if self._background is not None:
            self._background.abandon()
        locks.refuse_forked(self, *self._topics.values())
        self.partitions.mark_forked(
            ForkedError("this store was opened before a fork; open it again in the child")
        )


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store._mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
