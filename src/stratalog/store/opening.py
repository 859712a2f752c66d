"""From log directories to partitions: find them, create new ones, open each for writing.

A start lists the directories, finishes creations and deletions that a crash interrupted, and recovers every
partition. A partition that cannot be opened is offline by itself, with its reason; a disk that fails takes
its directory offline. A partition that the settings know and no directory holds is offline, and so is one
whose directory was emptied: only partitions that the settings call unfinished are created.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from stratalog import locks
from stratalog.config import TopicConfig
from stratalog.errors import (
    ConfigError,
    DiskFullError,
    InvalidArgumentError,
    LogDirOfflineError,
    StorageError,
    StratalogError,
)
from stratalog.format.settings import Settings
from stratalog.fs.contract import is_device_failure, is_refusal
from stratalog.log.check.damage import UNKNOWN, Damage
from stratalog.log.context import PartitionLocation
from stratalog.log.names import partition_dir
from stratalog.log.read.follower import is_still
from stratalog.log.write.recovery import OpenAs, RecoveryReport, open_partition
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.catalog import Place, TopicEntry
from stratalog.store.logdir import LogDir, in_threads
from stratalog.store.moving import is_moved, take_mark_off
from stratalog.store.tier.tiers import local_start_offset

if TYPE_CHECKING:
    from stratalog.log.check.repair import RepairReport
    from stratalog.store.partitions import Partitions


Listing = dict[tuple[str, int], str]
"""Partitions and the directory of each."""

MAX_LISTINGS = 10
"""A read-only open looks so often at most; a store that moves partitions all the time is taken as it is."""


MAX_NAMED = 10
"""A warning names so many partitions."""


class _Job(NamedTuple):
    """A partition to open: what is known of it, and when: at the start, just made, or open here before."""

    entry: TopicEntry
    partition: int
    log_start_offset: int
    recovery_point: int | None = None
    new: bool = False
    reopened: bool = False
    at_start: bool = False
    config: TopicConfig | None = None
    """The topic's settings, where they were looked up for all of its partitions."""


class Opening:
    """Finds, makes and opens the partitions of a store, and publishes them in its registry.

    A change to a topic must run inside ``changes.of(name)`` of the store; `load` and `recover` belong to the
    start, `load` also to a read-only store, where several threads may call it.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._context = partitions.context
        self._dirs = partitions.dirs
        self._registry = partitions.registry
        self._settings = partitions.settings
        self._archives = partitions.archives
        self._config = partitions.config
        self._read_only = partitions.read_only
        self._seen: tuple[tuple[int, int], ...] = ()
        """The log directories when they were last loaded, if they were not changing."""
        self._loading = locks.lock("listing")
        """Held for a listing, I/O and all, and its publication: an older one must not replace a newer one."""
        self.on_wake: Callable[[], None] = lambda: None
        """Called by `wake`; the background thread, which starts after the first partitions, sets it."""
        self.recovery: list[RecoveryReport] = []
        """What the start found in each partition, and what was cut or missing in those opened later."""
        self._in_vain: dict[uuid.UUID, Mapping[int, Place]] = {}
        """Partitions that could not be made, by topic id: what may be left of them is no topic's."""
        self.offline: dict[tuple[str, int], Exception] = {}
        """Partitions that could not be opened, with the reason; their directories are online."""
        self.topic_ids: WeakKeyDictionary[PartitionWriter, uuid.UUID | None] = WeakKeyDictionary()
        """Which topic a writer was opened for; its name may be another topic's by now."""

    def wake(self) -> None:
        """Let the background thread look now: a segment was rolled, or a flush may be due earlier."""
        self.on_wake()

    def load(self) -> None:
        """Read settings and listings anew: which topics there are and where their partitions lie."""
        with self._loading:
            settings, listings = self._settings_and_listings()
            hidden = {
                name: known.creating
                for name, known in settings.topics.items()
                if known.creating is not None and self._read_only
            }
            """Partitions that are still being made; a reader does not see them."""
            places: dict[str, dict[int, Place]] = {
                name: {} for name in settings.topics if hidden.get(name) != 0
            }
            ids: dict[str, uuid.UUID | None] = {}
            for each, listing in listings.items():
                for (topic, partition), directory in sorted(listing.items()):
                    if self._finish_deletion(each, directory):
                        continue
                    if partition >= hidden.get(topic, partition + 1):
                        continue
                    if topic not in places:
                        places[topic] = {}
                        ids[topic] = each.read_topic_id(directory)
                    twin = places[topic].get(partition)
                    places[topic][partition] = self._one_of(twin, (each, directory))
            followed = self._registry.state.views
            self._registry.replace({name: self._entry(name, ids, found) for name, found in places.items()})
            for name, views in followed.items():
                for view in views:
                    if view is not None and self._registry.view(name, view.partition) is not view:
                        for segment in view.segments():  # its topic was deleted
                            segment.forget()
                        self._context.handles.forget_below(view.directory)

    def look(self) -> None:
        """Load again if anything changed in a log directory: a stat for each while nothing did."""
        seen: tuple[tuple[int, int], ...] = ()
        with suppress(FileNotFoundError, StorageError):
            stats = [self._context.fs.stat(each.path) for each in self._dirs.online()]
            seen = tuple((stat.mtime_ns, stat.inode) for stat in stats)
        if not seen or seen != self._seen:
            looked_at = time.time_ns()
            self.load()
            self._seen = seen if all(is_still(mtime, looked_at) for mtime, _ in seen) else ()

    def _settings_and_listings(self) -> tuple[Settings, dict[LogDir, Listing]]:
        """Read both; beside a holder again until no change of the settings came between."""
        settings = self._settings.load(read_only=self._read_only)
        for _ in range(MAX_LISTINGS):
            before, listings = settings, self._listings()
            self.check_usable()
            if self._read_only:
                settings = self._settings.load(read_only=True)
            if settings == before:
                break
        return settings, listings

    def check_usable(self) -> None:
        """Raise LogDirOfflineError if every log directory is offline: nothing is known of an unread store."""
        if not self._dirs.online():
            why = self._dirs.all[0].offline
            error = LogDirOfflineError(f"no log directory can be used: {why}")
            only_reading = not self._read_only and is_refusal(why)
            raise error.advising("read it with open(read_only=True)" * only_reading) from why

    def _listings(self) -> dict[LogDir, Listing]:
        """List the partitions of every directory.

        Beside a holder a partition may move from a directory not yet listed to one already listed: the
        listings of a read-only store count when two of them agree. Within one directory nothing moves.
        """
        found = self._list()
        for _ in range(MAX_LISTINGS if self._read_only and len(found) > 1 else 0):
            again = self._list()
            if again == found:
                break
            found = again
        return found

    def _list(self) -> dict[LogDir, Listing]:
        found: dict[LogDir, Listing] = {}
        for each in self._dirs.online():
            found[each] = {}
            self._dirs.try_dir(each, partial(_list_partitions, each, found[each]))
        return found

    def _entry(
        self, name: str, foreign: Mapping[str, uuid.UUID | None], places: Mapping[int, Place]
    ) -> TopicEntry:
        count = max(places, default=-1) + 1
        if name in foreign:
            return TopicEntry(name, foreign[name], count, foreign=True, directories=places)
        known = self._settings.current.topics[name]
        total = known.partitions
        if self._read_only and known.creating is not None:
            total = known.creating
        return TopicEntry(name, known.id, max(total, count), dict(known.config), directories=places)

    def _finish_deletion(self, each: LogDir, directory: str) -> bool:
        """Return True if a directory belongs to a topic whose deletion was decided; a writer removes it."""
        if (
            not self._settings.current.deleting
            or each.read_topic_id(directory) not in self._settings.current.deleting
        ):
            return False
        if not self._read_only:
            with suppress(DiskFullError):  # the next start removes it
                self._dirs.try_dir(each, partial(each.delete_partition, directory))
        return True

    def _one_of(self, twin: tuple[LogDir, str] | None, found: tuple[LogDir, str]) -> tuple[LogDir, str]:
        """Choose one of two directories of a partition: an interrupted move left a mark on the old one."""
        fs = self._context.fs
        if twin is None:
            return found
        for old, new in ((twin, found), (found, twin)):
            if is_moved(fs, old[1]):
                if not self._read_only:
                    old[0].delete_partition(old[1])
                return new
        for old, new in ((twin, found), (found, twin)):
            if self._read_only and not fs.exists(old[1]):
                return new  # the holder has finished the move since it was listed
        raise InvalidArgumentError(
            f"{found[1].rsplit('/', 1)[-1]} is in two log directories, {twin[0].path} and {found[0].path};"
            " move one of them away"
        )

    def finish_creations(self) -> None:
        """Finish creations that a crash interrupted: the settings are durable, so the topic is.

        Only partitions that the settings call unfinished are made: any other that is not there is missing.
        """
        for entry in self._registry.entries.values():
            if entry.id is None or entry.foreign:
                continue
            known = self._settings.current.topics[entry.name].creating
            first = entry.partitions if known is None else known
            for number, (where, directory) in entry.directories.items():
                if number < first and self.is_emptied(entry, number):
                    why = self.offline[entry.name, number] = self._emptied(directory)
                    self._context.warn(f"{entry.name}-{number} is offline: {why}")
                where.complete_partition(directory, entry.id)
            absent = [number for number in range(first, entry.partitions) if number not in entry.directories]
            if absent and len(self._dirs.online()) == len(self._dirs.all):
                places = self._places(entry, absent)
                self._make(entry, places)
                entry = entry.placed(places)
                self._registry.put(entry)
            if known is not None and len(entry.directories) == entry.partitions:
                self._settings.save_topic(entry)

    def is_emptied(self, entry: TopicEntry, partition: int) -> bool:
        """Return True if nothing is left of a partition of ours that tells where its log ended."""
        where, directory = entry.directories[partition]
        if entry.id is None or entry.foreign or not where.is_emptied(directory):
            return False
        points = where.checkpoints.recovery_point
        known = points.as_written() if self._read_only else points
        return not known.get((entry.name, partition))

    def _emptied(self, directory: str) -> StorageError:
        return StorageError(f"nothing of its log is in {directory}")

    def _places(self, entry: TopicEntry, partitions: Sequence[int]) -> dict[int, Place]:
        """Choose the directories of new partitions, spread over the log directories."""
        return {
            number: (where, where.file(partition_dir(entry.name, number)))
            for number, where in zip(partitions, self.spread(len(partitions)), strict=True)
        }

    def _make(self, entry: TopicEntry, places: Mapping[int, Place]) -> None:
        """Make directories for partitions; durable on return."""
        assert entry.id is not None
        self.remove_in_vain()
        shares: dict[LogDir, list[int]] = {}
        for partition, (where, _) in places.items():
            shares.setdefault(where, []).append(partition)
        for where, share in shares.items():
            self._settings.mark_dirty(where)
            for partition in share:
                self._finish_deletion(where, places[partition][1])
            where.create_partitions(entry.name, share, entry.id)

    def recover(self) -> None:
        """Open every partition for writing, several at a time."""
        self.finish_creations()
        jobs = [
            _Job(
                entry,
                number,
                known.log_start.get(key) or 0,
                known.recovery_point.get(key),
                at_start=True,
                config=config,
            )
            for entry in self._registry.entries.values()
            for config in [self._usable_config(entry)]
            for number, (where, _) in entry.directories.items()
            if where.offline is None and (entry.name, number) not in self.offline
            for key, known in [((entry.name, number), where.checkpoints)]
        ]
        if not jobs:
            return
        threads = self._config.get_int("num.recovery.threads.per.data.dir") * len(self._dirs.all)
        if len(jobs) == 1 or threads == 1:
            results = [self._open(job) for job in jobs]
        else:
            results = in_threads(self._open, jobs, min(threads, len(jobs)), "stratalog-open")
        opened: dict[str, dict[int, PartitionWriter]] = {}
        for job, writer in zip(jobs, results, strict=True):
            if writer is not None:
                opened.setdefault(job.entry.name, {})[job.partition] = writer
        self._registry.put_all((self._registry.entries[name], writers) for name, writers in opened.items())

    def _usable_config(self, entry: TopicEntry) -> TopicConfig | None:
        """Return a topic's settings; None if they are unusable, which takes each partition offline."""
        try:
            return entry.config(self._config)
        except ConfigError:
            return None

    def _open(self, job: _Job) -> PartitionWriter | None:
        """Open one partition; when it fails, take it offline and return None.

        A failing disk takes its whole directory offline.
        """
        name, partition = key = job.entry.name, job.partition
        try:
            writer = self._open_writer(job)
        except (StratalogError, OSError) as error:
            if isinstance(error, StorageError) and is_device_failure(error):
                self._dirs.take_offline(job.entry.directories[partition][0], error)
            else:
                self.offline[key] = error
                self._context.warn(f"{name}-{partition} is offline: {error}")
            return None
        self.offline.pop(key, None)
        return writer

    def _open_writer(self, job: _Job) -> PartitionWriter:
        context, entry, partition = self._context, job.entry, job.partition
        where, directory = entry.directories[partition]
        location = PartitionLocation(context, directory, entry.name, partition)
        config = job.config or entry.config(self._config)
        how = OpenAs(
            # How the directory was found says nothing of what this store wrote, or failed to write, since.
            clean=job.new or (where.clean and not job.reopened),
            foreign=where.foreign,
            recovery_point=job.recovery_point,
            log_start_offset=job.log_start_offset,
            local_start_offset=local_start_offset(context.fs, directory),
            producer_expiration_ms=self._config.get_int("producer.id.expiration.ms"),
        )
        if is_moved(context.fs, directory):
            take_mark_off(context.fs, directory)
        state, report = open_partition(location, config, how)
        if job.at_start or report.cuts or report.damages:
            self.recovery.append(report)
        writer = PartitionWriter(
            location,
            config,
            state,
            how=how,
            before_first_write=lambda: self._settings.mark_dirty(where),
            on_roll=self.wake,
        )
        self.topic_ids[writer] = entry.id
        writer.rolls_idle = not entry.foreign
        self._archives.attach(writer, entry)
        if writer.next_offset > writer.recovery_point:
            # What recovery found past the synced end is kept: make it durable before a reader sees it.
            writer.flush()
        return writer

    def create_partitions(self, entry: TopicEntry, before: TopicEntry | None) -> None:
        """Make and publish the partitions that a topic has more than ``before``.

        They appear together or, on an error, not at all. An interrupt after they appeared takes nothing back:
        other threads may have written to them.
        """
        numbers = range(0 if before is None else before.partitions, entry.partitions)
        places = self._places(entry, numbers)
        made = entry.placed(places)
        try:
            self._settings.save_topic(entry, creating=numbers.start)
            self._make(entry, places)
            self.open_and_publish(
                made, dict.fromkeys(numbers, 0), new=True, before=lambda: self._settings.save_topic(made)
            )
        except BaseException:
            known = self._registry.topic(entry.name)
            if known is None or known.id != entry.id or known.partitions < entry.partitions:
                self._unmake(entry, places, before)
            raise

    def _unmake(self, entry: TopicEntry, places: Mapping[int, Place], before: TopicEntry | None) -> None:
        """Take back partitions that were not published; what the disk does not let go of, later."""
        assert entry.id is not None
        self._in_vain[entry.id] = places
        with suppress(StorageError, OSError):
            # No directory goes while the settings may say that it is complete: the next start would miss it.
            if self._exist(places):
                self._settings.save_topic(entry, creating=min(places), as_far_as_possible=True)
                self._remove(entry.id, places)
        with suppress(StorageError, OSError):
            self._settings.restore_topic(entry.name, before)
            self.remove_in_vain()

    def remove_in_vain(self) -> None:
        """Remove directories that are left of partitions which could not be made, or raise."""
        for topic_id, places in self._in_vain.copy().items():
            if self._exist(places):
                self._settings.renew()
                self._remove(topic_id, places)
            self._in_vain.pop(topic_id, None)

    def _exist(self, places: Mapping[int, Place]) -> bool:
        return any(self._context.fs.exists(directory) for _, directory in places.values())

    def _remove(self, topic_id: uuid.UUID, places: Mapping[int, Place]) -> None:
        """Remove partitions of a topic where they are there; one that fails holds up no other."""
        failed: StorageError | OSError | None = None
        for where, directory in places.values():
            try:
                if self._context.fs.exists(directory) and where.read_topic_id(directory) == topic_id:
                    where.delete_partition(directory)
            except (StorageError, OSError) as error:
                failed = error
        if failed is not None:
            raise failed

    def open_and_publish(
        self,
        entry: TopicEntry,
        log_starts: Mapping[int, int],
        *,
        new: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> TopicEntry:
        """Open some of a topic's partitions, given their log start offsets; publish them with the topic.

        ``before`` is called between the two. ``new``: they were just made, and are durable.
        """
        writers: dict[int, PartitionWriter] = {}
        try:
            for partition, log_start_offset in log_starts.items():
                writer = self._open(self._job(entry, partition, log_start_offset, new=new))
                if writer is None:
                    failed = self.offline.get((entry.name, partition))
                    raise failed if isinstance(failed, ConfigError) else self.why_offline(entry, partition)
                writers[partition] = writer
            before()
        except BaseException:
            for writer in writers.values():
                with suppress(StorageError, OSError):
                    writer.close()
            raise
        self._registry.put(entry, writers)
        self.wake()
        return entry

    def _job(self, entry: TopicEntry, partition: int, log_start_offset: int, *, new: bool) -> _Job:
        """Return the job to open a partition while the store is open."""
        earlier = self._registry.view(entry.name, partition)
        if isinstance(earlier, PartitionWriter):
            return _Job(entry, partition, log_start_offset, earlier.recovery_point, new, reopened=True)
        known = entry.directories[partition][0].checkpoints.recovery_point.get((entry.name, partition))
        return _Job(entry, partition, log_start_offset, known, new)

    def offline_by_settings(self, entry: TopicEntry) -> dict[int, int]:
        """Find what was not opened because of the topic's settings: log starts by partition."""
        found = {}
        for partition, (where, _) in entry.directories.items():
            key = (entry.name, partition)
            if isinstance(self.offline.get(key), ConfigError):
                found[partition] = where.checkpoints.log_start.get(key) or 0
        return found

    def spread(self, count: int) -> list[LogDir]:
        """Choose log directories for new partitions: those that hold the fewest, then by room."""
        held = dict.fromkeys(self._dirs.online(), 0)
        if not held:
            paths = ", ".join(f"{each.path}: {each.offline}" for each in self._dirs.all)
            raise LogDirOfflineError(f"every log directory is offline: {paths}")
        for entry in self._registry.entries.values():
            for where, _ in entry.directories.values():
                if where in held:
                    held[where] += 1
        room = {where: -self._context.fs.free_bytes(where.path) for where in held}
        chosen = []
        for _ in range(count):
            where = min(held, key=lambda each: (held[each], room[each]))
            held[where] += 1
            chosen.append(where)
        return chosen

    def why_offline(self, entry: TopicEntry, partition: int) -> LogDirOfflineError:
        """Build the error for a partition that is offline, naming the reason and the way out."""
        name = f"{entry.name}-{partition}"
        failed = self.offline.get((entry.name, partition))
        if failed is None and partition in entry.directories and self.is_emptied(entry, partition):
            failed = self._emptied(entry.directories[partition][1])
        if failed is not None:
            way_out = "topic alter" if isinstance(failed, ConfigError) else "repair"
            return LogDirOfflineError(f"{name} is offline: {failed}; see `stratalog {way_out} {entry.name}`")
        broken = [each for each in self._dirs.all if each.offline is not None]
        why = f"{broken[0].path}: {broken[0].offline}" if broken else "no log directory holds it"
        absent = self._not_given()
        if absent:
            why += f"; missing: {', '.join(absent)}"
        return LogDirOfflineError(
            f"{name} is offline: {why}; bring it back, or give it up with `stratalog repair {entry.name}"
            f" --partition {partition} --action drop-damaged`"
        )

    def _not_given(self) -> list[str]:
        """Return the log directories that the settings know and that were not given."""
        here = {each.id for each in self._dirs.online()}
        here |= {each.path for each in self._dirs.all if each.offline is not None}
        return [
            path for known, path in self._settings.current.directories.items() if not {known, path} & here
        ]

    def warn_of_missing(self) -> None:
        """Warn, once the store is open, of partitions that no directory holds, and which directory may."""
        missing = [
            f"{entry.name}-{number}"
            for entry in self._registry.entries.values()
            for number in range(entry.partitions)
            if number not in entry.directories
        ]
        if missing:
            names = ", ".join(missing[:MAX_NAMED])
            more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
            where = ", ".join(self._not_given())
            why = (
                f"the store has another log directory, {where}; give it too"
                if where
                else "no log directory holds it"
            )
            self._context.warn(f"offline: {names}{more}: {why}")

    def give_up(
        self, entry: TopicEntry, partition: int, *, action: str, dry_run: bool, behind: int = 0
    ) -> RepairReport:
        """Make a missing or emptied partition anew, empty, behind the last end that is known of it."""
        from stratalog.log.check.repair import RepairReport

        report, name = RepairReport(dry_run=dry_run), f"{entry.name}-{partition}"
        left = entry.directories.get(partition)
        there = left is not None and self._context.fs.exists(left[1])
        why = str(self._emptied(left[1])) if left is not None and there else "no log directory holds it"
        gone = Damage(name, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, why)
        if action == "rebuild-indexes":
            report.actions.append(f"{name}: {gone.reason}; drop-damaged or truncate gives it up")
            report.left += [] if dry_run else [gone]
            return report
        key = (entry.name, partition)
        marks = (each.checkpoints.high_watermark.get(key) or 0 for each in self._dirs.online())
        start = max(behind, *marks)
        report.actions.append(f"{name}: given up; it begins anew, empty, at offset {start}")
        report.lost.append(gone)
        report.lost_records = None
        if not dry_run:
            assert entry.id is not None
            where = self.spread(1)[0]
            self._settings.mark_dirty(where)
            if left is not None:
                left[0].delete_partition(left[1])
            made = where.create_partitions(entry.name, [partition], entry.id, base_offset=start)
            placed = entry.placed({partition: (where, made[partition])})
            self.open_and_publish(placed, {partition: start}, new=True)
        return report


def _list_partitions(where: LogDir, into: Listing) -> None:
    into.update(where.partitions())
