"""The archive of a store, opened when the first topic needs it, and what it has for each partition.

A store without an archived topic never looks for one. Touches the archive only through `Tiering`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.archive import ArchiveOptions, open_archive
from stratalog.errors import FormatError
from stratalog.format import metadata
from stratalog.log.names import ARCHIVE
from stratalog.log.segment.segment import Segment
from stratalog.store.logdir import META_PROPERTIES
from stratalog.store.tier.tiering import ColdFollower, Tiering
from stratalog.store.tier.tiers import copy_of, read_local_copy

if TYPE_CHECKING:
    from stratalog.archive import Archive
    from stratalog.archive.objects import Objects
    from stratalog.log.write.writer import PartitionWriter
    from stratalog.store.catalog import TopicEntry
    from stratalog.store.lifecycle.facts import View
    from stratalog.store.partitions import Partitions

WORK = ".archive-work"


class Archives:
    """One archive, or none yet. Thread-safe."""

    def __init__(self, partitions: Partitions, objects: Objects | None) -> None:
        self._partitions = partitions
        self.objects = objects
        self._lock = locks.lock("archives")
        self._archive: Archive | None = None
        self.tiering: Tiering | None = None

    def attach(self, writer: PartitionWriter, entry: TopicEntry, log_start_offset: int) -> None:
        """Give a writer that was just opened, or whose settings changed, what the archive has of it."""
        if writer.config.remote_storage_enable or self._has_copy(writer.directory):
            self._ensure_tiering().attach(writer, entry, log_start_offset)

    def if_any(self) -> Tiering | None:
        """The archive where one is set or lies in its usual place, archived topics or not."""
        if self.tiering is None:
            partitions = self._partitions
            url = str(partitions.config.get("log.archive.url"))
            usual = ArchiveOptions.of(partitions.config, partitions.dirs.all[0].path).url
            if url or partitions.context.fs.exists(usual):
                return self._ensure_tiering()
        return self.tiering

    def cold_segments(self, entry: TopicEntry, partition: int, directory: str) -> ColdFollower | None:
        """What a reader beside another process sees of the archive; None for a topic without an id."""
        if entry.id is None:
            return None
        context = self._partitions.context
        return ColdFollower(context, directory, entry.name, entry.id, partition, self._ensure_archive())

    def copies_of(self, view: View) -> Callable[[Segment], bool] | None:
        """Return the test whether the archive has a verified copy of a partition's local segment.

        None where there is no archive. A read-only store goes by the copy of the manifest.
        """
        if self.tiering is not None:
            return self.tiering.is_archived
        if not self._partitions.read_only:
            return None
        try:
            copy = read_local_copy(self._partitions.context.fs, view.directory)
        except FormatError as error:
            self._partitions.context.warn(f"{error}; what is archived is not known")
            return None
        if copy is None or copy.manifest.owner != self._store_id():
            return None
        return lambda segment: copy_of(copy.manifest, segment) is not None

    def cold(self, entry: TopicEntry, partition: int, directory: str) -> _Cold:
        """The archived segments of a followed partition, by the copy of the manifest in its directory."""
        return _Cold(self, entry, partition, directory)

    def _has_copy(self, directory: str) -> bool:
        return self._partitions.context.fs.exists(f"{directory}/{ARCHIVE}")

    def _ensure_archive(self) -> Archive:
        with self._lock:
            if self._archive is None:
                partitions = self._partitions
                options = ArchiveOptions.of(partitions.config, partitions.dirs.all[0].path)
                options.check_outside([each.path for each in partitions.dirs.all])
                self._archive = open_archive(
                    options,
                    partitions.context.fs,
                    store_id=self._store_id(),
                    objects=self.objects,
                    now_ms=partitions.context.clock.now_ms,
                )
            return self._archive

    def _ensure_tiering(self) -> Tiering:
        archive = self._ensure_archive()
        with self._lock:
            if self.tiering is None:
                work = self._partitions.dirs.all[0].path + WORK
                self.tiering = Tiering(self._partitions, archive, work)
            return self.tiering

    def _store_id(self) -> str:
        """Who writes the archive: the cluster id in `meta.properties`, which a store keeps for life."""
        fs = self._partitions.context.fs
        for each in self._partitions.dirs.online():
            try:
                known = metadata.parse_meta_properties(fs.read_file(each.file(META_PROPERTIES)))
            except (FileNotFoundError, FormatError):
                continue
            if known.cluster_id:
                return known.cluster_id
        return self._partitions.dirs.all[0].path

    def close(self) -> None:
        with self._lock:
            if self._archive is not None:
                self._archive.close()
                self._archive = self.tiering = None


class _Cold:
    """Asked with every refresh of a follower: one stat while nothing is archived."""

    def __init__(self, archives: Archives, entry: TopicEntry, partition: int, directory: str) -> None:
        self._archives = archives
        self._entry = entry
        self._partition = partition
        self._directory = directory
        self._follower: ColdFollower | None = None

    def __call__(self) -> tuple[Segment, ...]:
        if self._follower is None:
            if not self._archives._has_copy(self._directory):
                return ()
            self._follower = self._archives.cold_segments(self._entry, self._partition, self._directory)
        return () if self._follower is None else self._follower.segments()
