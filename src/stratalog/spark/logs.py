"""The logs a query reads: directories, an archive, or both as one; opened read-only, kept for a short while.

Every process (the driver's planner, each executor's worker) opens them for itself from the same `Where`:
nothing here travels. A partition is a `LogView`: the follower of a directory, which crosses into the
archive by itself, or the archive alone. Changes nothing on disk or in the archive.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from stratalog.archive import Archive, ArchiveOptions, Manifest, open_archive
from stratalog.config import BrokerConfig
from stratalog.errors import NotFoundError, UnknownPartitionError, UnknownTopicError
from stratalog.fs import HandleCache, RealFileSystem
from stratalog.log.context import LogContext
from stratalog.log.read.list_offsets import offset_for_time
from stratalog.log.read.reader import Isolation, LogView
from stratalog.log.segment.directory_state import segment_states
from stratalog.model import SegmentInfo
from stratalog.spark.archived import ArchivedLog, newest_manifests
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Subscription, Where
from stratalog.store.partitions import Partitions
from stratalog.store.settings import remembered

LIFE_S = 30.0
"""How long opened logs are used again; then they are opened anew."""
READER = "reader"
"""Who asks the archive; nothing is written under this name."""


class View(LogView, Protocol):
    """A partition, and what its segments are."""

    @property
    def context(self) -> LogContext: ...

    def segment_infos(self) -> list[SegmentInfo]: ...


class Logs:
    """Thread-safe. Use `opened`, which keeps and closes them."""

    def __init__(self, where: Where) -> None:
        self.where = where
        fs = RealFileSystem()
        said = remembered(fs, where.paths).explicit | dict(where.config)
        config = BrokerConfig.parse(said)
        handles = HandleCache(fs, config.get_int("log.max.open.files") or None)
        self._context = LogContext(fs, handles)
        self._config = config
        self._lock = threading.RLock()
        self._seen: tuple[tuple[int, int], ...] = ()
        self._archive: Archive | None = None
        self._manifests: dict[str, dict[int, Manifest]] = {}
        self._archived: dict[Pair, ArchivedLog] = {}
        self._local: Partitions | None = None
        for path in where.paths:
            if not fs.exists(path):
                raise NotFoundError(f"option 'path': no log directory at {path}, takes one that is there")
        if where.paths:
            self._local = Partitions(self._context, list(where.paths), config, read_only=True)
        self.look()

    def look(self) -> None:
        """Are there new topics or partitions? A stat for each log directory while there are none."""
        with self._lock:
            if self._local is None:
                self._load_archive()
                return
            stats = (self._context.fs.stat(path) for path in self.where.paths)
            seen = tuple((stat.mtime_ns, stat.inode) for stat in stats)
            if seen == self._seen:
                return
            self._local.opening.load()
            changed_lately = time.time_ns() - max(mtime for mtime, _ in seen) < 50_000_000
            self._seen = () if changed_lately else seen

    def _load_archive(self) -> None:
        if self.where.archive and not self._manifests:
            options = ArchiveOptions.of(self._config, url=self.where.archive)
            if self._archive is None:
                self._archive = open_archive(options, self._context.fs, store_id=READER)
            self._manifests = newest_manifests(self._archive)

    # -- topics --------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Local and archived, sorted."""
        with self._lock:
            self._load_archive()
            local = set() if self._local is None else set(self._local.entries)
            return sorted(local | set(self._manifests))

    def partitions(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions; of a topic that is spread over brokers those that are here."""
        with self._lock:
            entry = None if self._local is None else self._local.entries.get(topic)
            if entry is not None:
                return sorted(entry.directories) if entry.foreign else list(range(entry.partitions))
            self._load_archive()
            manifests = self._manifests.get(topic)
            if manifests is None:
                known = ", ".join(self.topics()[:10]) or "none"
                raise UnknownTopicError(f"no topic {topic!r} in {self}; there are: {known}")
            total = max(manifest.partitions for manifest in manifests.values())
            return list(range(max(total, max(manifests) + 1)))

    def choose(self, subscription: Subscription) -> list[Pair]:
        """The partitions a subscription means, sorted. A topic or partition that is named must be there."""
        if subscription.pairs:
            for topic, partition in subscription.pairs:
                there = self.partitions(topic)
                if partition not in there:
                    raise UnknownPartitionError(
                        f"option 'assign': {topic} has no partition {partition}, takes {_span(there)}"
                    )
            return sorted(subscription.pairs)
        if subscription.topics:
            topics = list(subscription.topics)
        elif subscription.pattern:
            pattern = re.compile(subscription.pattern)
            topics = [name for name in self.topics() if pattern.fullmatch(name)]
        else:
            topics = self.topics()
        return sorted((topic, number) for topic in topics for number in self.partitions(topic))

    def view(self, topic: str, partition: int) -> View:
        """One partition as readers see it."""
        with self._lock:
            if self._local is not None and topic in self._local.entries:
                return self._local.view(topic, partition)
            self._load_archive()
            if topic not in self._manifests and self._local is not None:
                self._local.opening.load()  # it may be new
                return self._local.view(topic, partition)
            if partition not in self.partitions(topic):
                raise UnknownPartitionError(f"{topic} has no partition {partition} in {self}")
            key = (topic, partition)
            if key not in self._archived:
                assert self._archive is not None
                manifests = self._manifests[topic]
                topic_id = next(iter(manifests.values())).topic_id
                archive = self._archive.partition(topic, topic_id, partition)
                self._archived[key] = ArchivedLog(self._context, archive, manifests.get(partition))
            return self._archived[key]

    # -- facts ---------------------------------------------------------------------------------------

    def start_offset(self, topic: str, partition: int) -> int:
        """The first offset that can be read."""
        view = self.view(topic, partition)
        view.refresh()
        return view.log_start_offset

    def end_offset(self, topic: str, partition: int, isolation: Isolation = "read_uncommitted") -> int:
        """The first offset readers cannot see yet."""
        view = self.view(topic, partition)
        view.refresh()
        return max(view.end_offset(isolation), view.log_start_offset)

    def offset_for_time(
        self, topic: str, partition: int, timestamp: int, isolation: Isolation = "read_uncommitted"
    ) -> int | None:
        """The first offset whose record is at ``timestamp`` (ms) or later; None when there is none."""
        found = offset_for_time(self.view(topic, partition), timestamp, isolation)
        return None if found is None else found.offset

    def segment_infos(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Every segment with its state, those that wait for their removal too."""
        view = self.view(topic, partition)
        if isinstance(view, ArchivedLog):
            return view.segment_infos()
        return segment_states(view, deleted=True)

    def __str__(self) -> str:
        return " and ".join(filter(None, (*self.where.paths, self.where.archive)))

    def close(self) -> None:
        if self._local is not None:
            self._local.archives.close()
        if self._archive is not None:
            self._archive.close()
        self._context.handles.close()


class LookedAt:
    """The ends of logs as they were when each partition was first asked for: one look at it, not several."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._seen: set[Pair] = set()

    def _view(self, topic: str, partition: int) -> View:
        view = self._logs.view(topic, partition)
        if (topic, partition) not in self._seen:
            self._seen.add((topic, partition))
            view.refresh()
        return view

    def start_offset(self, topic: str, partition: int) -> int:
        """As `Logs.start_offset`."""
        return self._view(topic, partition).log_start_offset

    def end_offset(self, topic: str, partition: int, isolation: Isolation = "read_uncommitted") -> int:
        """As `Logs.end_offset`."""
        view = self._view(topic, partition)
        return max(view.end_offset(isolation), view.log_start_offset)

    def offset_for_time(
        self, topic: str, partition: int, timestamp: int, isolation: Isolation = "read_uncommitted"
    ) -> int | None:
        """As `Logs.offset_for_time`."""
        self._view(topic, partition)
        return self._logs.offset_for_time(topic, partition, timestamp, isolation)


class _Kept:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.since_s = time.monotonic()
        self.users = 0


_kept: dict[Where, _Kept] = {}
_kept_lock = threading.Lock()


@contextmanager
def opened(where: Where) -> Iterator[Logs]:
    """The logs, opened at most once in this process for a while; closed when old and nobody uses them."""
    with _kept_lock:
        kept = _kept.get(where)
        if kept is not None and time.monotonic() - kept.since_s > LIFE_S:
            del _kept[where]
            if not kept.users:
                kept.logs.close()
            kept = None
        if kept is not None:
            kept.logs.look()
        else:
            kept = _Kept(Logs(where))
            _kept[where] = kept
        kept.users += 1
    try:
        yield kept.logs
    finally:
        with _kept_lock:
            kept.users -= 1
            if not kept.users and _kept.get(where) is not kept:
                kept.logs.close()


def forget() -> None:
    """Close what nobody uses at the moment."""
    with _kept_lock:
        for where, kept in list(_kept.items()):
            del _kept[where]
            if not kept.users:
                kept.logs.close()


def _span(numbers: list[int]) -> str:
    if numbers == list(range(len(numbers))):
        return f"0 to {len(numbers) - 1}"
    return ", ".join(map(str, numbers))
