"""The partitions of a store: where they lie, opened for writing or followed, and what keeps them going.

This is the inside of `Store`: topics ask it for their partitions, the background thread for what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from stratalog import locks
from stratalog.config import BrokerConfig
from stratalog.errors import (
    ClosedError,
    DiskFullError,
    ReadOnlyError,
    StorageError,
    StratalogError,
    UnknownPartitionError,
    UnknownTopicError,
    again,
)
from stratalog.log.arguments import check_text
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.read.follower import Cold, PartitionFollower
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.background import Ticker
from stratalog.store.catalog import Changes, Registry, TopicEntry, no_topic
from stratalog.store.checkpoints import bring_up_to_date
from stratalog.store.lifecycle.claims import Claims
from stratalog.store.logdir import LogDir, LogDirs, at_once
from stratalog.store.moving import Moves, missing, or_missing
from stratalog.store.opening import Opening
from stratalog.store.settings import SavedSettings
from stratalog.store.tier.tiering import Archives

if TYPE_CHECKING:
    from stratalog.archive.objects import Objects
    from stratalog.log.check.repair import RepairReport


P = ParamSpec("P")
T = TypeVar("T")

HIGH_WATERMARK = -1
"""The offset that stands for the high watermark in `delete_records`."""


class Partitions:
    """Every partition of an open store.

    Lookups go through ``registry`` and take no lock. A change to a topic's structure runs inside
    ``changes.of(name)`` and publishes what it made when it is there.
    """

    def __init__(
        self,
        context: LogContext,
        paths: list[str],
        config: BrokerConfig,
        *,
        read_only: bool,
        remember: bool = True,
        objects: Objects | None = None,
    ) -> None:
        self.context = context
        self.config = config
        self.read_only = read_only
        self.registry = Registry()
        self.claims = Claims()
        self.moves = Moves(self)
        self.changes = Changes(self.settle)
        self._altering: dict[str, TopicEntry] = {}
        """Topics whose settings are being changed, or whose change was cut short: as they are to be."""
        self.dirs = LogDirs(context, paths, self.registry.take_offline)
        self.settings = SavedSettings(self.dirs, self.registry, config, remember=remember)
        self.archives = Archives(self, objects)
        self.opening = Opening(self)
        self.closed: Exception | None = None
        self.served = False
        """True while a network server of this process serves the store: nothing else should keep it busy."""
        self._last_checkpoint_s = context.clock.monotonic_s()
        self._ticker = Ticker(context, self.registry)

    @property
    def entries(self) -> Mapping[str, TopicEntry]:
        """Every topic by name, as of now."""
        return self.registry.entries

    def check_open(self) -> None:
        if self.closed is not None:
            raise again(self.closed)

    def check_writable(self) -> None:
        """Raise ReadOnlyError if the store cannot be changed."""
        if self.read_only:
            raise _read_only()

    def entry(self, name: str) -> TopicEntry:
        """Return a topic by name; a read-only store looks first whether its directories have changed."""
        self.check_open()
        check_text("topic", name)
        if self.read_only:
            self.opening.look()
        entry = self.registry.topic(name)
        if entry is None:
            raise no_topic(name, self.entries)
        return entry

    def view(self, name: str, partition: int) -> PartitionWriter | PartitionFollower:
        """Return a partition to read from; a read-only store begins to follow it with its first use."""
        view = self.registry.view(name, partition)
        if view is not None and self.closed is None:
            return view
        entry = self.entry(name)
        check_partition(entry, partition)
        placed = entry.directories.get(partition)
        offline = placed is None or placed[0].offline is not None or not self.read_only
        if placed is None or offline or self.opening.is_emptied(entry, partition):
            raise self.opening.why_offline(entry, partition)
        follower = PartitionFollower(
            PartitionLocation(self.context, placed[1], name, partition),
            topic_id=entry.id,
            log_start=lambda: self._log_start(name, partition),
            cold=self.cold(entry, partition, placed[1]),
            find_again=lambda: self._find_again(entry, partition),
        )
        return self.registry.put_if_absent(name, partition, follower)

    def _find_again(self, known: TopicEntry, partition: int) -> tuple[str, Cold]:
        """Return where a partition that its holder moved lies now."""
        self.opening.load()
        entry = self.entries.get(known.name)
        if entry is None or entry.id != known.id:
            raise UnknownTopicError(f"topic {known.name} was deleted")
        placed = entry.directories.get(partition)
        if placed is None or placed[0].offline is not None:
            raise self.opening.why_offline(entry, partition)
        return placed[1], self.cold(entry, partition, placed[1])

    def cold(self, entry: TopicEntry, partition: int, directory: str) -> Cold:
        """Return what finds the archived segments of a followed partition."""
        return self.archives.cold(entry, partition, directory, self._log_start(entry.name, partition))

    def successor(self, writer: PartitionWriter) -> PartitionWriter | None:
        """Return the writer that took over from one, for the same partition of the same topic."""
        view = self.registry.view(writer.topic, writer.partition)
        if view is writer or not isinstance(view, PartitionWriter):
            return None
        ids = self.opening.topic_ids.get(writer), self.opening.topic_ids.get(view)
        return view if ids[0] == ids[1] or ids[0] is None else None

    def wait_for_successor(self, writer: PartitionWriter) -> PartitionWriter | None:
        """Wait for the change under way to a partition whose writer is closed; return its new writer.

        None when there is none: the topic was deleted, or the partition is offline.
        """
        self.check_open()
        found = self.successor(writer)
        if found is not None:
            return found
        with self.changes.of(writer.topic):
            found = self.successor(writer)
        if found is None:
            if writer.deleted is not None:
                raise again(writer.deleted)
            entry = self.entry(writer.topic)
            placed = entry.directories.get(writer.partition)
            if (writer.topic, writer.partition) in self.opening.offline or (
                placed is not None and placed[0].offline is not None
            ):
                raise self.opening.why_offline(entry, writer.partition)
        return found

    def settle_changes(self) -> None:
        """End moves and changes of settings that an interrupt cut short; waits for none that is under way."""
        for name in self.moves.topics() | set(self._altering.copy()):
            with self.changes.of(name, wait=False):
                pass

    def settle(self, name: str) -> None:
        """End what was cut short in a topic: a move, and a change of its settings that is written already.

        Inside ``changes.of`` the topic. May be cut short itself: the next change or `tick` goes on.
        """
        self.moves.settle(name)
        altered = self._altering.get(name)
        if altered is None:
            return
        saved = self.settings.current.topics.get(name)
        if saved is not None and saved.id == altered.id and saved.config == altered.overrides:
            try:
                self._put_in_force(altered)
            except (StratalogError, OSError) as error:
                self.context.warn(f"topic {name}: its settings are changed, but not all in force: {error}")
        self._altering.pop(name, None)

    def alter(self, entry: TopicEntry) -> None:
        """Write the changed settings of a topic, and put them in force in all of its partitions.

        Inside ``changes.of`` the topic. Once they are written, no interrupt leaves a partition without them.
        """
        self._altering[entry.name] = entry
        try:
            self.settings.save_topic(entry)
            self._put_in_force(entry)
        except BaseException:
            self.settle(entry.name)
            raise
        self._altering.pop(entry.name, None)

    def _put_in_force(self, entry: TopicEntry) -> None:
        config = entry.config(self.config)
        self.registry.put(entry)
        writers = [view for view in self.registry.views(entry.name) if isinstance(view, PartitionWriter)]
        for writer in writers:
            writer.apply_config(config)
            writer.rolls_idle = True
        for writer in writers:
            self.archives.attach(writer, entry)

    def writer(self, name: str, partition: int) -> PartitionWriter:
        view = self.view(name, partition)
        if (
            isinstance(view, PartitionWriter)
            and isinstance(view.unusable, ClosedError)
            and name in self.moves.topics()
        ):
            with self.changes.of(name):  # which ends a move that was cut short
                view = self.view(name, partition)
        if not isinstance(view, PartitionWriter):
            raise _read_only()
        return view

    def _log_start(self, name: str, partition: int) -> int:
        """Return the checkpointed log start offset as it is now, for read-only views."""
        entry = self.registry.topic(name)
        placed = None if entry is None else entry.directories.get(partition)
        return 0 if placed is None else placed[0].checkpoints.log_start.as_written().get((name, partition), 0)

    def place(self, name: str, partition: int) -> tuple[LogDir, str]:
        """Return the log directory a partition is in, and its own directory."""
        try:
            return self.entries[name].directories[partition]
        except KeyError:
            raise UnknownTopicError(f"{name}-{partition} no longer exists") from None

    def writers(self) -> tuple[PartitionWriter, ...]:
        return self.registry.writers

    def is_missing(self, entry: TopicEntry, partition: int) -> bool:
        """Return True if no log directory holds a partition: its directory was removed, or its files were."""
        if not 0 <= partition < entry.partitions:
            return False
        placed = entry.directories.get(partition)
        if placed is None:
            return True
        gone = not self.context.fs.exists(placed[1]) or self.opening.is_emptied(entry, partition)
        return placed[0].offline is None and gone

    def give_up(self, entry: TopicEntry, partition: int, action: str) -> RepairReport:
        """Recreate a partition that no directory holds, after the end that its writer has."""
        view = self.registry.view(entry.name, partition)
        end = 0
        if isinstance(view, PartitionWriter) and action != "rebuild-indexes":
            end = view.next_offset
            with view.maintenance:
                view.close(finish=False)
        return self.opening.give_up(entry, partition, action=action, dry_run=False, behind=end)

    def checkpoint(self) -> None:
        """Write Kafka's root checkpoints, as a broker would."""
        for each in self.dirs.online():
            self._try(each.path, partial(self._checkpoint, each))

    def _checkpoint(self, where: LogDir) -> None:
        self.dirs.try_dir(where, partial(bring_up_to_date, where, self.registry, self._is_changing))

    def _is_changing(self, name: str) -> bool:
        """Return True if a topic is being changed, or one of its moves was cut short."""
        return self.changes.under_way(name) or name in self.moves.topics()

    def delete_records_of(self, writer: PartitionWriter, before_offset: int) -> int:
        """Move the log start offset of a writer's partition up, durably; whole segments below it are deleted.

        ``HIGH_WATERMARK`` (-1) deletes all that readers can see, as in Kafka. Another topic that has the
        writer's name by now is left alone. Return the new log start offset.
        """
        writer = self.on(writer, self._delete_records, before_offset)
        tiering = self.archives.tiering
        if tiering is not None:
            writer = self.on(writer, tiering.expire)
        return writer.log_start_offset

    def on(
        self,
        writer: PartitionWriter,
        act: Callable[Concatenate[PartitionWriter, P], T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Run ``act`` on a writer or, if that was closed for a move, on the one that took over.

        A writer raises `ClosedError` before it changes anything, so nothing is done twice.
        """
        while True:
            try:
                return act(writer, *args, **options)
            except ClosedError:
                found = self.wait_for_successor(writer)
                if found is None:
                    raise
                writer = found
            except FileNotFoundError as error:
                raise missing(writer, error) from error

    def _delete_records(self, writer: PartitionWriter, before_offset: int) -> PartitionWriter:
        with writer.maintenance:
            where = self.place(writer.topic, writer.partition)[0]
            if before_offset == HIGH_WATERMARK:
                before_offset = writer.end_offset()
            start = writer.checked_log_start(before_offset)
            writer.settle_sealed()  # the producers' state at the new start must outlive what is deleted
            marked = self._mark_log_start(where, writer, start)
            hidden = writer.advance_log_start(before_offset)
            delay_s = writer.config.file_delete_delay_ms / 1000
            # Without the mark, no power cut may leave a hole among them: one after the other, each synced.
            for run in [hidden] if marked else [[segment] for segment in hidden]:
                self.context.deletions.add(self.context, writer.directory, run, delay_s)
        return writer

    def _mark_log_start(self, where: LogDir, writer: PartitionWriter, start: int) -> bool:
        """Write down where a log is to begin; False when the disk is full and it can go without saying.

        Deleting must work on a full disk, and whole segments tell by themselves where the log begins.
        """
        try:
            where.checkpoints.log_start.put((writer.topic, writer.partition), start)
            return True
        except DiskFullError:
            local = writer.local_segments()
            if writer.segments()[0] is not local[0] or all(each.base_offset != start for each in local):
                raise
            return False

    def first_dirty_offset(self, name: str, partition: int) -> int | None:
        """Return the cleaner's checkpoint; None when this partition was never cleaned."""
        known = self.place(name, partition)[0].checkpoints.cleaner_offset
        key = (name, partition)
        return known.read().get(key) if self.read_only else known.get(key)  # another process may write it

    def save_first_dirty_offset(self, name: str, partition: int, offset: int) -> None:
        """Save, durably, up to where a partition is cleaned."""
        where = self.place(name, partition)[0]
        where.checkpoints.cleaner_offset.put((name, partition), offset)

    def release_some_handle(self) -> bool:
        """Let one idle writer's file handle go; False when every one is in use."""
        return any(writer.release_handle() for writer in self.writers())

    def tick(self) -> None:
        """Run what is due by time: idle rolls, flushes, checkpoints, removal of deleted files."""
        self._ticker.tick()
        self._try("removing deleted files", lambda: self.context.deletions.run(self.context))
        self._try("ending a change that was cut short", self.settle_changes)
        now = self.context.clock.monotonic_s()
        interval_s = self.config.get_int("log.flush.offset.checkpoint.interval.ms") / 1000
        if now - self._last_checkpoint_s >= interval_s:
            self._last_checkpoint_s = now
            self._try("writing checkpoints", self.checkpoint)

    def _try(self, what: str, act: Callable[[], None]) -> Exception | None:
        """Call a function whose failure must not stop other work; return what it raised."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - reported, or raised when the rest is done
            self._ticker.troubles.report(what, error)
            return error
        self._ticker.troubles.clear(what)
        return None

    def flush(self) -> None:
        """Make everything appended so far durable; a partition that fails does not keep others from it."""
        self.settle_changes()
        first: Exception | None = None
        for writer in self.writers():
            if writer.unusable is None or isinstance(writer.unusable, ClosedError):
                try:
                    self.on(writer, PartitionWriter.flush)  # a move syncs the old place
                except Exception as error:  # noqa: BLE001 - raised when the others are flushed
                    if self.registry.view(writer.topic, writer.partition) is writer:
                        first = first or error
        if first is not None:
            raise first

    def tick_interval_s(self) -> float:
        """Return how long the background thread may sleep."""
        flush_ms = min((writer.config.flush_ms for writer in self.writers()), default=1000)
        return max(0.01, min(1.0, flush_ms / 2000))

    def close_writers(self) -> None:
        """Close every writer; a directory where all went well is marked clean, last of all."""
        # What was never opened was never recovered: its directory does not count as closed in order.
        failed = {
            where
            for entry in self.entries.values()
            for number, (where, _) in entry.directories.items()
            if (entry.name, number) in self.opening.offline
        }
        dirty = any(each.dirty for each in self.dirs.online())
        errors: list[tuple[str, Exception]] = []
        no_room: list[Exception] = []
        """What kept files from being written that only make the next open quick."""

        def finish(where: str, act: Callable[[], None], durable: Callable[[], bool] = lambda: True) -> bool:
            """Return True if it went well; a full disk is no failure of the close when all is durable."""
            try:
                act()
            except Exception as error:  # noqa: BLE001 - raised when the rest is done
                if isinstance(error, DiskFullError) and durable():
                    no_room.append(error)
                elif isinstance(error, FileNotFoundError):
                    gone = f"{error.filename or where} is gone: another program removed or unmounted it"
                    errors.append((where, StorageError(f"{gone}; put it back and open the store again")))
                else:
                    errors.append((where, error))
                return False
            return True

        finish("the settings", self.settings.settle)
        finish("topics that could not be made", self.opening.remove_in_vain)
        finish("removing deleted files", lambda: self.context.deletions.run(self.context, everything=True))

        def close(writer: PartitionWriter) -> None:
            broken = writer.unusable is not None
            closed = finish(writer.directory, partial(self._close, writer), partial(_all_durable, writer))
            if broken or not closed:
                failed.add(self.entries[writer.topic].directories[writer.partition][0])

        at_once(close, self.writers())
        for each in self.dirs.online():
            if dirty and not finish(each.path, partial(self._checkpoint, each)):
                failed.add(each)
        for each in self.dirs.online():
            if each not in failed:
                finish(each.path, each.mark_clean)
        if no_room:
            self.context.warn(
                f"{no_room[0]}; no data is lost: the files of a clean shutdown could not be written, so the"
                " next open takes longer"
            )
        for where, error in errors[1:]:
            self._ticker.troubles.report(where, error)
        if errors:
            raise errors[0][1]

    def _close(self, writer: PartitionWriter) -> None:
        with or_missing(writer):
            writer.close()

    def mark_forked(self, error: Exception) -> None:
        """In a forked child: nothing of this may be used any more."""
        self.closed = error
        context = self.context
        locks.refuse_forked(
            self, self.settings, self.opening, context.handles, context.cache, context.deletions
        )
        for name in self.registry.entries:
            for view in self.registry.views(name):
                if isinstance(view, PartitionWriter):
                    view.mark_forked()
                elif view is not None:
                    locks.refuse_forked(view)


def _read_only() -> ReadOnlyError:
    error = ReadOnlyError("this store is open for reading only")
    return error.advising("open it without read_only=True to change it")


def _all_durable(writer: PartitionWriter) -> bool:
    return writer.all_durable


def check_partition(entry: TopicEntry, partition: int) -> None:
    """Raise UnknownPartitionError when the topic has no partition of that number."""
    if not 0 <= partition < entry.partitions:
        raise UnknownPartitionError(
            f"{entry.name} has no partition {partition}; it has 0 to {entry.partitions - 1}"
        )
