"""Logs opened for reading only: those of log directories, of an archive alone, or of both as one.

A partition is a `LogView`: the follower of a directory, which continues in the archive by itself, or an
`ArchiveView` where only the archive has it. Takes no lock of the store and changes nothing, neither on disk
nor in the archive.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stratalog import locks
from stratalog.archive import Archive, ArchiveOptions, Manifest, PartitionArchive, SegmentEntry, open_archive
from stratalog.config import BrokerConfig
from stratalog.errors import UnknownPartitionError, UnknownTopicError
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.context import Clock, LogContext, PartitionLocation, SystemClock
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.read.reader import Isolation
from stratalog.log.segment.segment import Segment
from stratalog.log.write.segment_list import aborted_in, of_segments
from stratalog.model import SegmentInfo
from stratalog.store.catalog import TopicEntry, no_topic
from stratalog.store.partitions import Partitions

if TYPE_CHECKING:
    from stratalog.archive.objects import Objects

READER = "reader"
"""The store id under which the archive is opened; nothing is written under it."""
FRESH_S = 1.0
"""A manifest is used for this long before it is read again."""
POLL_S = 0.2


class ArchiveView:
    """The `LogView` of a partition that only the archive has. Thread-safe.

    The manifest is read again after `FRESH_S`, and at once when an object that it names is gone; objects
    never change. Everything in an archive lies below the last stable offset of its log, so both isolation
    levels see the same end.
    """

    def __init__(self, context: LogContext, archive: PartitionArchive, manifest: Manifest | None) -> None:
        self.context = context
        self.topic = archive.topic
        self.topic_id = archive.topic_id
        self.partition = archive.partition
        self.directory = archive.url
        self._archive = archive
        self._lock = locks.lock("archive-view")
        self._manifest: Manifest | None = None
        self._deleted = False
        self._segments: dict[str, ArchivedSegment] = {}
        self._listed: tuple[Segment, ...] = ()
        self._read_s = time.monotonic()
        self._take(manifest)

    @property
    def log_start_offset(self) -> int:
        manifest, segments = self._manifest, self._listed
        if manifest is None:
            return 0
        return max(manifest.log_start_offset, segments[0].base_offset if segments else 0)

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        segments = self._listed
        return (segments[-1].next_offset or 0) if segments else self.log_start_offset

    def segments(self) -> tuple[Segment, ...]:
        if self._deleted:
            raise UnknownTopicError(f"topic {self.topic} was deleted")
        return self._listed

    def leader_epochs(self) -> list[tuple[int, int]]:
        return [] if self._manifest is None else list(self._manifest.leader_epochs)

    def refresh(self) -> None:
        """Read the manifest again unless it is fresh."""
        with self._lock:
            if time.monotonic() - self._read_s >= FRESH_S:
                self._read()

    def replaced(self, segment: Segment) -> bool:
        if segment in self._listed:
            self.refresh()
        return segment not in self._listed

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        return aborted_in(self._listed, start, end)

    def wait(self, offset: int, timeout_s: float, isolation: Isolation = "read_uncommitted") -> bool:
        deadline = time.monotonic() + timeout_s
        while self.end_offset() < offset:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
            self.refresh()
        return True

    def segment_infos(self) -> list[SegmentInfo]:
        self.refresh()
        return of_segments(self, lambda segment: segment.info())

    def _is_listed(self, entry: SegmentEntry) -> bool:
        """Read the manifest again because an object is missing; True if it still has the segment."""
        with self._lock:
            self._read()
            return entry.name in self._segments

    def _read(self) -> None:
        self._take(self._archive.manifest(refresh=True))
        self._read_s = time.monotonic()

    def _take(self, manifest: Manifest | None) -> None:
        gone = manifest is None or manifest.deleted
        self._deleted = gone and (self._deleted or self._manifest is not None)
        self._manifest = manifest
        found: dict[str, ArchivedSegment] = {}
        if manifest is not None and not manifest.deleted:
            for entry in manifest.segments:
                if entry.next_offset > manifest.log_start_offset:
                    found[entry.name] = self._segments.get(entry.name) or ArchivedSegment(
                        PartitionLocation(self.context, self.directory, self.topic, self.partition),
                        self._archive.open_segment(entry, listed=self._is_listed),
                    )
        self._segments = found
        self._listed = tuple(found.values())


View: TypeAlias = PartitionFollower | ArchiveView


class ReadOnlyLogs:
    """The topics of log directories, of an archive, or of both. Thread-safe; close it.

    A topic of the directories hides one of its name in the archive. New topics of the directories are found
    by `look`; those of the archive are listed once.
    """

    def __init__(
        self,
        config: BrokerConfig,
        paths: Sequence[str] = (),
        archive: str = "",
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        objects: Objects | None = None,
    ) -> None:
        fs = fs or RealFileSystem()
        handles = HandleCache(fs, config.get_int("log.max.open.files") or None)
        self.config = config
        self.paths = list(paths)
        self.context = LogContext(fs, handles, clock or SystemClock())
        self.local: Partitions | None = None
        self._url = archive
        self._lock = locks.rlock("read-only")
        self._archive: Archive | None = None
        self._archived: dict[str, _ArchivedTopic] = {}
        self._views: dict[tuple[str, int], ArchiveView] = {}
        if paths:
            self.local = Partitions(self.context, self.paths, config, read_only=True, objects=objects)
            self.local.dirs.check(must_exist=True)
        self.look()

    def __str__(self) -> str:
        return " and ".join(filter(None, (*self.paths, self._url)))

    def look(self) -> None:
        """List topics and partitions again; costs a stat for each log directory while none are new."""
        with self._lock:
            if self.local is None:
                self._list_archive()
                return
            self.local.opening.look()

    def _list_archive(self) -> None:
        if self._url and not self._archived:
            if self._archive is None:
                options = ArchiveOptions.of(self.config, url=self._url)
                fs, clock = self.context.fs, self.context.clock
                self._archive = open_archive(options, fs, store_id=READER, now_ms=clock.now_ms)
            self._archived = _newest_topics(self._archive)

    def topics(self) -> list[str]:
        """Return the names of local and archived topics, sorted."""
        with self._lock:
            self._list_archive()
            local = () if self.local is None else self.local.entries
            return sorted({*local, *self._archived})

    def entry(self, topic: str) -> TopicEntry:
        """Return a topic by name; one that only the archive has lies in no directory."""
        with self._lock:
            if self.local is not None and topic in self.local.entries:
                return self.local.entries[topic]
            self._list_archive()
            if topic in self._archived:
                return self._archived[topic].entry
            raise no_topic(topic, self.topics(), f" in {self}")

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic; of one that is spread over brokers those that are here."""
        entry = self.entry(topic)
        return sorted(entry.directories) if entry.foreign else list(range(entry.partitions))

    def view(self, topic: str, partition: int) -> View:
        """Return a partition to read from."""
        with self._lock:
            if self.local is not None and topic not in self.local.entries:
                self._list_archive()
                if topic not in self._archived:
                    self.local.opening.load()  # it may be new
            if self.local is not None and (topic in self.local.entries or topic not in self._archived):
                followed = self.local.view(topic, partition)
                assert isinstance(followed, PartitionFollower)
                return followed
            if partition not in self.partitions(topic):
                raise UnknownPartitionError(f"{topic} has no partition {partition} in {self}")
            key = (topic, partition)
            if key not in self._views:
                entry, manifests = self._archived[topic]
                assert self._archive is not None
                assert entry.id is not None
                archive = self._archive.partition(topic, entry.id, partition)
                self._views[key] = ArchiveView(self.context, archive, manifests.get(partition))
            return self._views[key]

    def close(self) -> None:
        if self.local is not None:
            self.local.archives.close()
        if self._archive is not None:
            self._archive.close()
        self.context.handles.close()


class _ArchivedTopic(NamedTuple):
    entry: TopicEntry
    manifests: dict[int, Manifest]


def _newest_topics(archive: Archive) -> dict[str, _ArchivedTopic]:
    """Return the archived topics by name. Of two topics of one name the one uploaded to last counts."""
    by_id: dict[tuple[str, str], dict[int, Manifest]] = {}
    for manifest in archive.manifests():
        if not manifest.deleted:
            by_id.setdefault((manifest.topic, str(manifest.topic_id)), {})[manifest.partition] = manifest
    newest: dict[str, int] = {}
    found: dict[str, _ArchivedTopic] = {}
    for (topic, _), manifests in by_id.items():
        uploaded = max((each.uploaded_ms for one in manifests.values() for each in one.segments), default=0)
        if topic not in newest or newest[topic] < uploaded:
            newest[topic] = uploaded
            last = manifests[max(manifests)]
            total = max(max(manifests) + 1, *(each.partitions for each in manifests.values()))
            found[topic] = _ArchivedTopic(
                TopicEntry(topic, last.topic_id, total, dict(last.config)), manifests
            )
    return found
