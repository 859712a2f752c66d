"""The log directories of a store: lock, root files and partitions of each. Exactly Kafka's `log.dirs`.

Root files are written beside and renamed, so a crash leaves the old or the new. `.kafka_cleanshutdown`
says that the last writer stopped in order; it is removed, durably, before the first write and written
last of all at close.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from stratalog import locks
from stratalog.errors import (
    DiskFullError,
    FormatError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
    StoreLockedError,
    SyncFailedError,
)
from stratalog.format import checkpoints, metadata
from stratalog.format import settings as settings_format
from stratalog.format.metadata import CLEAN_SHUTDOWN, META_PROPERTIES, MetaProperties
from stratalog.format.settings import MAX_PARTITIONS, Settings, newest
from stratalog.fs import FileSystem, Lock
from stratalog.fs.contract import is_shortage
from stratalog.log.check.damage import reason_of
from stratalog.log.context import LogContext
from stratalog.log.names import (
    ARCHIVE,
    LEADER_EPOCH_CHECKPOINT,
    LOCK,
    LOG,
    PARTITION_METADATA,
    SWAP,
    TAIL,
    file_name,
    parse_file,
    parse_partition_dir,
    partition_dir,
)
from stratalog.store.checkpoints import Checkpoints

R = TypeVar("R")
T = TypeVar("T")

RESERVE = "stratalog.reserve"
RESERVE_STEP = 4096
"""The reserve is zeros in whole steps of this size, at least one more than the settings take."""

SYNCS_AT_ONCE = 8
"""A disk takes several syncs together for little more than one; for a few, threads are not worth it."""

OUR_BROKER_EPOCH = -1
"""What our clean-shutdown file says; a broker's is never negative."""


def at_once(sync: Callable[[T], object], each: Collection[T]) -> None:
    """Call ``sync`` with each, many of them in several threads; raise the first error when all have ended."""
    if len(each) >= 2 * SYNCS_AT_ONCE:
        in_threads(sync, each, SYNCS_AT_ONCE, "stratalog-sync")
        return
    for one in each:
        sync(one)


def in_threads(act: Callable[[T], R], each: Collection[T], count: int, name: str) -> list[R]:
    """Call ``act`` with each in ``count`` threads; return the results, or raise the first error.

    However often it is interrupted, no thread is at work any more when it ends: the caller gives back the
    lock of the directories that they write to.
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix=name)
    interrupt: BaseException | None = None
    ended = False
    try:
        return list(pool.map(act, each))
    finally:
        # Without a function of its own: an interrupt at its entry would leave the threads at work.
        while not ended:
            try:
                pool.shutdown(cancel_futures=True)
                ended = True
            except (KeyboardInterrupt, SystemExit) as error:  # as a handler of a signal raises them
                interrupt = error
        if interrupt is not None:
            raise interrupt


class LogDir:
    """A log directory of a store. Reading needs no lock; changing anything does."""

    def __init__(self, context: LogContext, path: str) -> None:
        self.context = context
        self.path = path
        self.checkpoints = Checkpoints(context, path)
        self.offline: StorageError | None = None
        self.clean = False
        self.foreign = False
        self._lock: Lock | None = None
        self._mutex = locks.lock("log-dir")
        self._marked_dirty = False
        self._passed_over: set[str] = set()
        self._id: str | None = None

    @property
    def _fs(self) -> FileSystem:
        return self.context.fs

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    # -- opening and closing -----------------------------------------------------------------------

    def acquire(self, info: Mapping[str, object]) -> None:
        """Take the directory for writing; creates it when it is not there."""
        try:
            self._fs.make_dir(self.path)
            self._lock = self._fs.lock(self.file(LOCK), info)
        except StoreLockedError as error:
            asking = (
                "" if error.pid is None else ", or change it through that process with stratalog.connect()"
            )
            raise error.advising(f"read beside it with open(read_only=True){asking}") from None
        except OSError as error:
            raise StorageError(f"{self.path}: cannot create directory: {error.strerror or error}") from error
        if not self._fs.exists(self.file(META_PROPERTIES)):
            self.sync_ancestors()

    def check_place(self) -> None:
        """Raise InvalidArgumentError for a file, and for a partition of a store."""
        if not self._fs.exists(self.path):
            return
        if not self._fs.stat(self.path).is_dir:
            raise InvalidArgumentError(f"{self.path} is a file, not a directory")
        above, _, name = self.path.rpartition("/")
        if self._fs.exists(self.file(PARTITION_METADATA)) or (
            parse_partition_dir(name) is not None
            and any(parse_file(each) is not None for each in self._fs.list_dir(self.path))
        ):
            raise InvalidArgumentError(
                f"{self.path} is a partition, not a store; its store is {above or '/'}"
            )

    def sync_ancestors(self) -> None:
        """Sync the directories above a new store, so that its path survives a power cut.

        `meta.properties` is written after this, so a start that was cut short does it again.
        """
        above = os.path.dirname(self.path) or "."
        while True:
            try:
                self._fs.sync_dir(above)
            except SyncFailedError:
                raise
            except StorageError as error:
                # A directory we may pass through but not open: it was there before us.
                self.context.warn(f"{error}; not synced")
            if above in ("/", "."):
                return
            above = os.path.dirname(above) or "."

    def announce(self, info: Mapping[str, object]) -> None:
        """Add facts about the holder to the lock, once its control socket is known."""
        if self._lock is not None:
            self._lock.update(info)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_state(self) -> None:
        """Read how the last writer left the directory, and whether it was one of ours."""
        try:
            epoch = metadata.parse_clean_shutdown(self._fs.read_file(self.file(CLEAN_SHUTDOWN)))
        except FileNotFoundError:
            self.clean = False
            self.foreign = not self._fs.exists(self.file(settings_format.FILE_NAME))
            # The names a killed process left, and the absence of the clean-shutdown file, may not be durable.
            self._fs.sync_dir(self.path)
            self._marked_dirty = True
            return
        self.clean = True
        self.foreign = epoch != OUR_BROKER_EPOCH

    def mark_dirty(self) -> None:
        """Remove the clean-shutdown file before the first write: a stop is not clean until `mark_clean`."""
        with self._mutex:
            if self._marked_dirty:
                return
            try:
                self._fs.remove(self.file(CLEAN_SHUTDOWN))
            except FileNotFoundError:
                pass
            self._fs.sync_dir(self.path)
            self._marked_dirty = True

    def mark_clean(self) -> None:
        """Write the clean-shutdown file, as the very last write: everything else is on disk."""
        with self._mutex:
            if self._marked_dirty:
                self._fs.write_atomic(
                    self.file(CLEAN_SHUTDOWN), metadata.pack_clean_shutdown(OUR_BROKER_EPOCH)
                )
                self._marked_dirty = False

    @property
    def dirty(self) -> bool:
        """True when a stop now would not be a clean one."""
        return self._marked_dirty

    # -- root files --------------------------------------------------------------------------------

    def ensure_meta_properties(self, cluster_id: str) -> str:
        """Return the cluster id of the directory, written as ``cluster_id`` when it has none yet."""
        try:
            known = metadata.parse_meta_properties(self._fs.read_file(self.file(META_PROPERTIES)))
            return known.cluster_id or cluster_id
        except FileNotFoundError:
            value = MetaProperties(cluster_id, 0, metadata.new_id())
            self._fs.write_atomic(self.file(META_PROPERTIES), metadata.pack_meta_properties(value))
            return cluster_id

    @property
    def id(self) -> str | None:
        """The id in `meta.properties`, read once; None when the directory has none."""
        if self._id is None:
            self._id = self._read_id()
        return self._id

    def _read_id(self) -> str | None:
        try:
            known = metadata.parse_meta_properties(self._fs.read_file(self.file(META_PROPERTIES)))
        except (FileNotFoundError, NotADirectoryError, FormatError):
            return None
        return None if known.directory_id is None else metadata.id_to_text(known.directory_id)

    @property
    def is_new(self) -> bool:
        """True when the directory is missing, or nothing of a store is in it."""
        return not (self._fs.exists(self.file(META_PROPERTIES)) or self.has_settings or self.has_partitions())

    def has_partitions(self) -> bool:
        return self._fs.exists(self.path) and bool(self.partitions())

    def read_settings(self) -> Settings | None:
        """This directory's copy of the settings; None when there is none or it is damaged."""
        path = self.file(settings_format.FILE_NAME)
        try:
            return settings_format.parse(self._fs.read_file(path))
        except FileNotFoundError:
            return None
        except FormatError as error:
            if path not in self._passed_over:
                self._passed_over.add(path)
                self.context.warn(f"{path}: {reason_of(error)}; this copy is not used")
            return None

    @property
    def has_settings(self) -> bool:
        return self._fs.exists(self.file(settings_format.FILE_NAME))

    def write_settings(self, value: Settings) -> None:
        """Replace this directory's copy of the settings; on a full disk the reserve makes room for it.

        Settings must be changeable on a full disk: a shorter retention is a way out of it.
        """
        data = settings_format.pack(value)
        path, reserve = self.file(settings_format.FILE_NAME), self.file(RESERVE)
        try:
            self._fs.write_atomic(path, data)
        except DiskFullError:
            if not self._fs.exists(reserve):
                raise
            self._fs.remove(reserve)
            self._fs.write_atomic(path, data)
        self._keep_reserve(len(data))

    def _keep_reserve(self, settings_bytes: int) -> None:
        """Hold as much room as the next settings file may take; without room for that it is done without."""
        size = (settings_bytes // RESERVE_STEP + 2) * RESERVE_STEP
        path = self.file(RESERVE)
        try:
            if not self._fs.exists(path) or self._fs.stat(path).size < size:
                self._fs.write_file(path, bytes(size), sync=False)
        except DiskFullError:
            with suppress(FileNotFoundError):
                self._fs.remove(path)

    # -- partitions --------------------------------------------------------------------------------

    def partitions(self) -> dict[tuple[str, int], str]:
        """Partitions that live here and the directory of each; Kafka's dying and moving ones are left out."""
        found = {}
        for name in self._fs.list_dir(self.path):
            parsed = parse_partition_dir(name)
            if parsed is None or parsed.state:
                continue
            if parsed.partition >= MAX_PARTITIONS:
                if name not in self._passed_over:
                    self._passed_over.add(name)
                    last = MAX_PARTITIONS - 1
                    self.context.warn(f"{self.file(name)}: passed over, partitions end at {last}")
                continue
            with suppress(FileNotFoundError):  # moved or deleted by the holder since it was listed
                if self._fs.stat(self.file(name)).is_dir:
                    found[(parsed.topic, parsed.partition)] = self.file(name)
        return found

    def leftovers(self) -> list[str]:
        """Directories of partitions that were being deleted or moved when an earlier life ended."""
        found = []
        for name in self._fs.list_dir(self.path):
            parsed = parse_partition_dir(name)
            if parsed is not None and parsed.state in ("delete", "future"):
                found.append(self.file(name))
        return found

    def aside(self, directory: str, state: str) -> str:
        """Return a new name here for a partition directory that is being made or removed."""
        name = directory.rsplit("/", 1)[-1]
        return self.file(f"{name[:200]}.{uuid.uuid4().hex}-{state}")

    def read_topic_id(self, directory: str) -> uuid.UUID | None:
        try:
            return metadata.parse_partition_metadata(self._fs.read_file(f"{directory}/{PARTITION_METADATA}"))
        except (FileNotFoundError, FormatError):
            return None

    def create_partitions(
        self, topic: str, partitions: Collection[int], topic_id: uuid.UUID, *, base_offset: int = 0
    ) -> dict[int, str]:
        """Make empty partition directories, durable on return: all of them or, on an error, none.

        Each is made beside and renamed when it is complete and synced; a crash before leaves a `-future`
        directory, which the next start removes. Everything is written before anything is synced, so that no
        partition waits for another's sync.
        """
        for number in partitions:
            self.check_absent(partition_dir(topic, number))
        made = {number: self.file(partition_dir(topic, number)) for number in partitions}
        new = {path: self.aside(path, "future") for path in made.values()}
        files = _new_files(topic_id)
        try:
            # What they say of others that had these names.
            self.checkpoints.forget([(topic, number) for number in partitions])
            for future in new.values():
                self._fs.make_dir(future)
                for name, data in files.items():
                    self._fs.write_file(f"{future}/{name}", data, sync=False)
                self._fs.open(f"{future}/{file_name(base_offset, 'log')}", "x").close()
            at_once(partial(self._sync_new, files), new.values())
            for directory, future in new.items():
                self._fs.rename(future, directory)
            self._fs.sync_dir(self.path)
        except BaseException:
            for directory, future in new.items():
                with suppress(StorageError, OSError):
                    self._fs.remove_tree(future)
                with suppress(StorageError, OSError):
                    self.delete_partition(directory)
            raise
        return made

    def _sync_new(self, files: Iterable[str], directory: str) -> None:
        for name in files:
            with self._fs.open(f"{directory}/{name}") as file:
                file.sync()
        self._fs.sync_dir(directory)

    def check_absent(self, name: str) -> None:
        """Raise StorageError if there is something under the name of a new partition."""
        if self._fs.exists(self.file(name)):
            raise StorageError(
                f"{self.file(name)} exists already, so a new partition cannot be created there: move it away,"
                f" or open the store again to restore its topic"
            )

    def complete_partition(self, directory: str, topic_id: uuid.UUID) -> None:
        """Write the files that a partition directory lacks; durable on return."""
        for name, data in _new_files(topic_id).items():
            if not self._fs.exists(f"{directory}/{name}"):
                self._fs.write_atomic(f"{directory}/{name}", data)

    def is_emptied(self, directory: str) -> bool:
        """Return True if a partition has neither a log left nor a file that tells where it ended."""
        try:
            found = self._fs.list_dir(directory)
        except (FileNotFoundError, StorageError):
            return False  # opening it reports why
        logs = (parsed for parsed in map(parse_file, found) if parsed is not None and parsed.kind == LOG)
        return not ({TAIL, ARCHIVE}.intersection(found) or any(each.suffix in ("", SWAP) for each in logs))

    def delete_partition(self, directory: str) -> None:
        """Rename away, durably, then remove: what a crash leaves as `-delete`, the next start removes."""
        doomed = self.aside(directory, "delete")
        try:
            self._fs.rename(directory, doomed)
        except FileNotFoundError:
            if self._fs.exists(directory):
                raise
            return  # another program removed it
        finally:
            self.context.handles.forget_below(directory)
        self._fs.sync_dir(self.path)
        self._fs.remove_tree(doomed)


def _new_files(topic_id: uuid.UUID) -> dict[str, bytes]:
    """Return the files of a new partition, besides its log."""
    return {
        PARTITION_METADATA: metadata.pack_partition_metadata(topic_id),
        LEADER_EPOCH_CHECKPOINT: checkpoints.pack_leader_epochs([(0, 0)]),
    }


class LogDirs:
    """The log directories of a store, in the order they were given. One that fails does not stop the others.

    ``on_offline`` is called with a directory whose disk failed, and with the error.
    """

    def __init__(
        self, context: LogContext, paths: Iterable[str], on_offline: Callable[[LogDir, StorageError], None]
    ) -> None:
        self.all = tuple(LogDir(context, path) for path in paths)
        self._context = context
        self._on_offline = on_offline

    def online(self) -> list[LogDir]:
        """Return the directories that can be used."""
        return [each for each in self.all if each.offline is None]

    def try_dir(self, each: LogDir, act: Callable[[], None]) -> None:
        """Run something on a directory; a failing disk takes only it offline.

        A full disk, and a process without free descriptors, are no failures of a disk: raised.
        """
        try:
            act()
        except StorageError as error:
            if isinstance(error, DiskFullError) or is_shortage(error):
                raise
            self.take_offline(each, error)

    def take_offline(self, each: LogDir, error: StorageError) -> None:
        """Use a directory no more: its disk failed. Its partitions are offline with it."""
        each.offline = each.offline or error
        self._context.warn(f"log directory {each.path} is offline: {error}")
        self._on_offline(each, error)

    def check(self, *, must_exist: bool) -> None:
        """Check every directory before the store is opened; NotFoundError if one must exist and does not."""
        for each in self.all:
            self.try_dir(each, each.check_place)
        self.find_unmounted()
        for each in self.online():
            if must_exist and not self._context.fs.exists(each.path):
                raise NotFoundError(f"no log directory at {each.path}")

    def find_unmounted(self) -> None:
        """Take directories offline that the settings know and that are missing, or are empty mount points.

        An empty directory counts as another one when every partition is found without it: then nothing that
        was in the old one is missed.
        """
        there: list[LogDir] = []
        for each in self.online():
            try:
                if not each.is_new:
                    there.append(each)
            except StorageError as error:
                self.take_offline(each, error)
        settings = newest(found for found in (each.read_settings() for each in there) if found is not None)
        if settings is None or len(there) == len(self.all):
            return
        found = {each.id for each in there}
        missing = {path: known for known, path in settings.directories.items() if known not in found}
        held = {key for each in there for key in each.partitions()}
        complete = all(
            (name, number) in held
            for name, topic in settings.topics.items()
            for number in range(topic.partitions if topic.creating is None else topic.creating)
        )
        for each in self.online():
            if each.path in missing and each not in there and not complete:
                each.offline = StorageError(
                    f"log directory {each.path} is missing or not mounted: it is known as directory.id"
                    f" {missing[each.path]}, and that is not there"
                )
                self._context.warn(str(each.offline))
