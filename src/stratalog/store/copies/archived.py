"""An archive alone as a source: what a store can be rebuilt from when nothing else is left of it.

The manifests say which topics there are, with their settings, leader epochs and segments; the segments are
fetched, each batch checked. What was never archived, the active segments first of all, is not there. Reads
only: the archive is claimed by nobody and changed by nobody here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from stratalog.archive import Archive, ArchiveOptions, Manifest, open_archive
from stratalog.config import BrokerConfig, TopicConfig
from stratalog.errors import NotFoundError, UnknownTopicError
from stratalog.fs import FileSystem, HandleCache, RealFileSystem
from stratalog.log.context import Clock, LogContext, SystemClock
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.segment.directory_state import SegmentFiles
from stratalog.log.segment.segment import Segment
from stratalog.store.catalog import TopicEntry

READER = "restore"
"""Who asks; nothing is written under this name."""


class ArchivedPartition:
    """One partition of an archive; ``manifest`` is None when nothing of it was archived."""

    ours = False
    linkable_below = 0
    snapshots: tuple[int, ...] = ()

    def __init__(
        self, context: LogContext, config: BrokerConfig, entry: TopicEntry, number: int, archive: Archive
    ) -> None:
        self.context = context
        self.entry = entry
        self.topic = entry.name
        self.partition = number
        self.directory = ""
        self.directory_files: Mapping[int, SegmentFiles] = {}
        self._broker = config
        assert entry.id is not None
        self._archive = archive.partition(entry.name, entry.id, number)
        self._manifest: Manifest | None = None
        self.segments: tuple[Segment, ...] = ()
        self.look()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def config(self) -> TopicConfig:
        return self.entry.config(self._broker)

    @property
    def log_start_offset(self) -> int:
        if self._manifest is None:
            return 0
        first = self.segments[0].base_offset if self.segments else 0
        return max(self._manifest.log_start_offset, first)

    @property
    def end_offset(self) -> int:
        return 0 if self._manifest is None else max(self._manifest.next_offset, self.log_start_offset)

    def leader_epochs(self) -> list[tuple[int, int]]:
        return [] if self._manifest is None else list(self._manifest.leader_epochs)

    def at_rest(self) -> AbstractContextManager[None]:
        return nullcontext()

    def look(self) -> None:
        self._manifest = found = self._archive.manifest(refresh=True)
        self.segments = () if found is None else tuple(self._open(found))

    def _open(self, manifest: Manifest) -> Iterator[Segment]:
        for entry in manifest.segments:
            if entry.next_offset > manifest.log_start_offset:
                source = self._archive.open_segment(entry)
                yield ArchivedSegment(self.context, self.directory, self.topic, self.partition, source)

    def unchanged(self, used: Iterable[str]) -> bool:
        """A manifest names objects that are never changed; what is gone was not found."""
        return True


class ArchiveSource:
    """Every topic of an archive that was not deleted."""

    def __init__(self, context: LogContext, config: BrokerConfig, archive: Archive) -> None:
        self.context = context
        self.config = config
        self.paths: list[str] = []
        self._archive = archive
        self._entries: dict[str, TopicEntry] = {}
        newest: dict[str, tuple[int, uuid.UUID]] = {}
        for manifest in archive.manifests():
            if manifest.deleted:
                continue
            uploaded = max((each.uploaded_ms for each in manifest.segments), default=0)
            known = newest.get(manifest.topic)
            # A topic that was made anew under its old name has two archives: the later one counts.
            if known is None or known[1] == manifest.topic_id or known[0] < uploaded:
                newest[manifest.topic] = (max(uploaded, known[0] if known else 0), manifest.topic_id)
                self._entries[manifest.topic] = TopicEntry(
                    manifest.topic, manifest.topic_id, manifest.partitions, dict(manifest.config)
                )

    def partitions(self, wanted: Iterable[str] | None = None) -> list[ArchivedPartition]:
        if not self._entries:
            raise NotFoundError(f"{self._archive.url}: no archived topic is here; is this the right archive?")
        names = sorted(self._entries) if wanted is None else sorted({*wanted})
        for name in names:
            if name not in self._entries:
                known = ", ".join(sorted(self._entries)[:10]) or "none"
                raise UnknownTopicError(f"no topic {name!r} in {self._archive.url}; there are: {known}")
        return [
            ArchivedPartition(self.context, self.config, self._entries[name], number, self._archive)
            for name in names
            for number in range(self._entries[name].partitions)
        ]


@contextmanager
def open_archive_source(
    url: str,
    config: Mapping[str, object] | None = None,
    *,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> Iterator[ArchiveSource]:
    """Look at an archive that belongs to no store here."""
    fs, clock = fs or RealFileSystem(), clock or SystemClock()
    broker = BrokerConfig.parse(config)
    handles = HandleCache(fs)
    options = ArchiveOptions.of(broker, url=url)
    try:
        with open_archive(options, fs, store_id=READER, now_ms=clock.now_ms) as archive:
            yield ArchiveSource(LogContext(fs, handles, clock), broker, archive)
    finally:
        handles.close()
