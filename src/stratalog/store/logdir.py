"""One log directory: its lock, its root files, the partitions in it. Exactly a Kafka `log.dirs` entry.

Root files are written beside and renamed, so a crash leaves the old or the new. `.kafka_cleanshutdown`
says that the last writer stopped in order; it is removed, durably, before the first write and written
last of all at close.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping

from stratalog.errors import FormatError, StorageError, SyncFailedError
from stratalog.format import checkpoints, metadata
from stratalog.format import settings as settings_format
from stratalog.format.metadata import MetaProperties
from stratalog.format.settings import Settings
from stratalog.fs import FileSystem, Lock
from stratalog.log.context import LogContext
from stratalog.log.names import parse_partition_dir, partition_dir

LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER_OFFSET = "cleaner-offset-checkpoint"

OUR_BROKER_EPOCH = -1
"""What our clean-shutdown file says; a broker's is never negative."""

Offsets = dict[tuple[str, int], int]


class LogDir:
    """A log directory of a store. Reading needs no lock; changing anything does."""

    def __init__(self, context: LogContext, path: str) -> None:
        self.context = context
        self.path = path
        self.offline: StorageError | None = None
        self.clean = False
        self.foreign = False
        self._lock: Lock | None = None
        self._mutex = threading.Lock()
        self._marked_dirty = False

    @property
    def _fs(self) -> FileSystem:
        return self.context.fs

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    # -- opening and closing -----------------------------------------------------------------------

    def acquire(self, info: Mapping[str, object]) -> None:
        """Take the directory for writing; creates it when it is not there."""
        self._fs.make_dir(self.path)
        self._lock = self._fs.lock(self.file(LOCK), info)
        if not self._fs.exists(self.file(META_PROPERTIES)):
            self.sync_ancestors()

    def sync_ancestors(self) -> None:
        """A new store: its own name, and those above that were made for it, must survive a power cut too.

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
                self.context.warn(f"{above}: {error}; not synced")
            if above in ("/", "."):
                return
            above = os.path.dirname(above) or "."

    def announce(self, info: Mapping[str, object]) -> None:
        """Say more about the holder, once its control socket is known."""
        if self._lock is not None:
            self._lock.update(info)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read_state(self) -> None:
        """How the last writer left the directory, and whether that was us."""
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
        """Before the first write: from now on a stop is not clean until `mark_clean`."""
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
        """The very last write: everything else is on disk."""
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
        """The cluster id of the directory, written as ``cluster_id`` when it has none yet."""
        try:
            known = metadata.parse_meta_properties(self._fs.read_file(self.file(META_PROPERTIES)))
            return known.cluster_id or cluster_id
        except FileNotFoundError:
            value = MetaProperties(cluster_id, 0, metadata.new_id())
            self._fs.write_atomic(self.file(META_PROPERTIES), metadata.pack_meta_properties(value))
            return cluster_id

    def read_settings(self) -> Settings | None:
        """This directory's copy of the settings; None when there is none or it is damaged."""
        path = self.file(settings_format.FILE_NAME)
        try:
            return settings_format.parse(self._fs.read_file(path))
        except FileNotFoundError:
            return None
        except FormatError as error:
            self.context.warn(f"{path}: {error}; looking in the other log directories")
            return None

    @property
    def has_settings(self) -> bool:
        return self._fs.exists(self.file(settings_format.FILE_NAME))

    def write_settings(self, value: Settings) -> None:
        self._fs.write_atomic(self.file(settings_format.FILE_NAME), settings_format.pack(value))

    def read_offsets(self, name: str) -> Offsets:
        """A root checkpoint; empty when missing or unreadable, which only costs a longer recovery."""
        try:
            return dict(checkpoints.parse_offsets(self._fs.read_file(self.file(name))))
        except FileNotFoundError:
            return {}
        except FormatError as error:
            self.context.warn(f"{self.file(name)}: {error}; ignored")
            return {}

    def write_offsets(self, name: str, offsets: Offsets) -> None:
        self._fs.write_atomic(self.file(name), checkpoints.pack_offsets(offsets))

    # -- partitions --------------------------------------------------------------------------------

    def partitions(self) -> dict[tuple[str, int], str]:
        """Partitions that live here and the directory of each; Kafka's dying and moving ones are left out."""
        found = {}
        for name in self._fs.list_dir(self.path):
            parsed = parse_partition_dir(name)
            if parsed is None or parsed.state or not self._fs.stat(self.file(name)).is_dir:
                continue
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

    def read_topic_id(self, directory: str) -> uuid.UUID | None:
        try:
            return metadata.parse_partition_metadata(self._fs.read_file(f"{directory}/partition.metadata"))
        except (FileNotFoundError, FormatError):
            return None

    def create_partition(self, topic: str, partition: int, topic_id: uuid.UUID) -> str:
        """A new, empty partition directory, durable on return; one a crash left unfinished is finished."""
        directory = self.file(partition_dir(topic, partition))
        if not self._fs.exists(directory):
            self._forget_offsets(topic, partition)
            self._fs.make_dir(directory)
        self._fs.write_atomic(f"{directory}/partition.metadata", metadata.pack_partition_metadata(topic_id))
        self._fs.write_atomic(
            f"{directory}/leader-epoch-checkpoint", checkpoints.pack_leader_epochs([(0, 0)])
        )
        self._fs.sync_dir(self.path)
        return directory

    def unfinished(self, directory: str) -> bool:
        """Whether a crash cut short the making of a partition directory."""
        return not (
            self._fs.exists(f"{directory}/leader-epoch-checkpoint")
            and self._fs.exists(f"{directory}/partition.metadata")
        )

    def _forget_offsets(self, topic: str, partition: int) -> None:
        """Take a partition out of the root checkpoints: one of that name lived here before."""
        for name in (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER_OFFSET):
            offsets = self.read_offsets(name)
            if offsets.pop((topic, partition), None) is not None:
                self.write_offsets(name, offsets)

    def delete_partition(self, directory: str) -> None:
        """Rename away, durably, then remove: what a crash leaves as `-delete`, the next start removes."""
        name = directory.rsplit("/", 1)[-1]
        doomed = self.file(f"{name[:200]}.{uuid.uuid4().hex}-delete")
        self._fs.rename(directory, doomed)
        self._fs.sync_dir(self.path)
        self._fs.remove_tree(doomed)
