"""A partition of which only the archive is there, as a `LogView`: what a query on an archive URL reads.

The manifest is asked for again after a second at most, and at once when an object it names is gone; the
objects never change. Everything in an
archive lies below the last stable offset of its log, so both isolation levels see the same end. Reads only.
"""

from __future__ import annotations

import threading
import time

from stratalog.archive import Archive, Manifest, PartitionArchive, SegmentEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.context import LogContext
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.reader import Isolation
from stratalog.log.segment.segment import Segment
from stratalog.log.write.segment_list import aborted_in, of_segments
from stratalog.model import SegmentInfo

FRESH_S = 1.0
POLL_S = 0.2


class ArchivedLog:
    """Thread-safe."""

    def __init__(self, context: LogContext, archive: PartitionArchive, manifest: Manifest | None) -> None:
        self.context = context
        self.topic = archive.topic
        self.partition = archive.partition
        self.directory = archive.url
        self._archive = archive
        self._lock = threading.Lock()
        self._manifest: Manifest | None = None
        self._segments: dict[str, ArchivedSegment] = {}
        self._listed: tuple[Segment, ...] = ()
        self._asked_s = time.monotonic()
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
        return self._listed

    def refresh(self) -> None:
        """Ask for the manifest again, unless it was asked for a moment ago."""
        with self._lock:
            if time.monotonic() - self._asked_s < FRESH_S:
                return
            self._ask()

    def replaced(self, segment: Segment) -> bool:
        if segment not in self._listed:
            return True
        with self._lock:
            if time.monotonic() - self._asked_s >= FRESH_S:
                self._ask()
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
        """An object is missing: whoever looks for its offsets again goes by what the manifest says now."""
        with self._lock:
            self._ask()
            return entry.name in self._segments

    def _ask(self) -> None:
        self._take(self._archive.manifest(refresh=True))
        self._asked_s = time.monotonic()

    def _take(self, manifest: Manifest | None) -> None:
        self._manifest = manifest
        found: dict[str, ArchivedSegment] = {}
        if manifest is not None and not manifest.deleted:
            for entry in manifest.segments:
                if entry.next_offset > manifest.log_start_offset:
                    found[entry.name] = self._segments.get(entry.name) or ArchivedSegment(
                        self.context,
                        self.directory,
                        self.topic,
                        self.partition,
                        self._archive.open_segment(entry, listed=self._is_listed),
                    )
        self._segments = found
        self._listed = tuple(found.values())


def newest_manifests(archive: Archive) -> dict[str, dict[int, Manifest]]:
    """The manifests by topic and partition. Of a topic that was made anew the later one counts."""
    by_id: dict[tuple[str, str], dict[int, Manifest]] = {}
    for manifest in archive.manifests():
        if not manifest.deleted:
            by_id.setdefault((manifest.topic, str(manifest.topic_id)), {})[manifest.partition] = manifest
    newest: dict[str, tuple[int, dict[int, Manifest]]] = {}
    for (topic, _), manifests in by_id.items():
        uploaded = max(
            (entry.uploaded_ms for each in manifests.values() for entry in each.segments), default=0
        )
        if topic not in newest or newest[topic][0] < uploaded:
            newest[topic] = (uploaded, manifests)
    return {topic: manifests for topic, (_, manifests) in newest.items()}
