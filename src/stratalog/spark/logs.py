"""The logs a query reads: directories, an archive, or both as one; opened read-only, kept for a short while.

Every process (the driver's planner, each executor's worker) opens them for itself from the same `Where`.
Changes nothing on disk or in the archive.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import NamedTuple

from stratalog.config import BrokerConfig
from stratalog.errors import NotFoundError, UnknownPartitionError
from stratalog.format.metadata import id_to_text
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.log.read.list_offsets import offset_for_time
from stratalog.log.read.reader import Isolation
from stratalog.log.segment.directory_state import segment_states
from stratalog.model import SegmentInfo
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Subscription, Where
from stratalog.store.read_only import ArchiveView, ReadOnlyLogs, View
from stratalog.store.settings import remembered

LIFE_S = 30.0
"""How long opened logs are used again; then it is asked whether they may stay open."""


class _Opened(NamedTuple):
    config: BrokerConfig
    inodes: tuple[int, ...]


def _opened(fs: FileSystem, where: Where) -> _Opened:
    given = remembered(fs, where.paths).explicit | dict(where.config)
    return _Opened(BrokerConfig.parse(given), tuple(fs.stat(path).inode for path in where.paths))


class Logs(ReadOnlyLogs):
    """The logs of a query. Thread-safe. Use `opened`, which keeps and closes them."""

    def __init__(self, where: Where) -> None:
        fs = RealFileSystem()
        for path in where.paths:
            if not fs.exists(path):
                raise NotFoundError(f"option 'path': no log directory at {path}, takes one that exists")
        self._where = where
        self._opened = _opened(fs, where)
        super().__init__(self._opened.config, where.paths, where.archive, fs=fs)

    def may_stay(self) -> bool:
        """Return whether logs opened now would be the same: the topics of an archive are listed once, those
        of directories again with each `look`."""
        try:
            return not self._where.archive and _opened(self.context.fs, self._where) == self._opened
        except FileNotFoundError:
            return False

    def choose(self, subscription: Subscription) -> list[Pair]:
        """Return the partitions of a subscription, sorted. Named topics and partitions must exist."""
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

    # -- facts ---------------------------------------------------------------------------------------

    def topic_id(self, topic: str) -> str:
        """Return a topic's id; empty if it has none, as in files of old brokers."""
        found = self.entry(topic).id
        return "" if found is None else id_to_text(found)

    def start_offset(self, topic: str, partition: int) -> int:
        """Return the first offset that can be read."""
        view = self.view(topic, partition)
        view.refresh()
        return view.log_start_offset

    def end_offset(self, topic: str, partition: int, isolation: Isolation = "read_uncommitted") -> int:
        """Return the first offset that readers cannot see yet."""
        view = self.view(topic, partition)
        view.refresh()
        return max(view.end_offset(isolation), view.log_start_offset)

    def offset_for_time(
        self, topic: str, partition: int, timestamp: int, isolation: Isolation = "read_uncommitted"
    ) -> int | None:
        """Return the first offset whose record is at ``timestamp`` (ms) or later; None if there is none."""
        found = offset_for_time(self.view(topic, partition), timestamp, isolation)
        return None if found is None else found.offset

    def segment_infos(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Return every segment with its state, including those that wait for their removal."""
        view = self.view(topic, partition)
        if isinstance(view, ArchiveView):
            return view.segment_infos()
        return segment_states(view, deleted=True)


class LookedAt:
    """The ends of logs at the first call for each partition: it is refreshed once, not with every call.

    ``known`` has the ends that other scans of the query have found, and gets those found here.
    """

    def __init__(self, logs: Logs, known: MutableMapping[str, int] | None = None) -> None:
        self._logs = logs
        self._known = {} if known is None else known
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
        end = max(view.end_offset(isolation), view.log_start_offset)
        return self._known.setdefault(f"{topic}-{partition} {isolation}", end)

    def offset_for_time(
        self, topic: str, partition: int, timestamp: int, isolation: Isolation = "read_uncommitted"
    ) -> int | None:
        """As `Logs.offset_for_time`."""
        end = self.end_offset(topic, partition, isolation)
        found = self._logs.offset_for_time(topic, partition, timestamp, isolation)
        return found if found is not None and found < end else None


class _Kept:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.since_s = time.monotonic()
        self.users = 0


_kept: dict[Where, _Kept] = {}
_kept_lock = threading.Lock()


@contextmanager
def opened(where: Where) -> Iterator[Logs]:
    """Yield the logs, opened at most once in `LIFE_S` in this process; those of before are closed when
    unused."""
    with _kept_lock:
        kept = _kept.get(where)
        if kept is not None and time.monotonic() - kept.since_s > LIFE_S:
            kept.since_s = time.monotonic()
            if not kept.logs.may_stay():
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
    """Close kept logs that are not in use."""
    with _kept_lock:
        for where, kept in list(_kept.items()):
            del _kept[where]
            if not kept.users:
                kept.logs.close()


def _span(numbers: list[int]) -> str:
    if numbers == list(range(len(numbers))):
        return f"0 to {len(numbers) - 1}"
    return ", ".join(map(str, numbers))
