"""Stores for the tests of the lifecycle: in memory, with a clock that is moved by hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import stratalog
from stratalog import Record
from stratalog.fs import FileSystem, MemoryFileSystem
from stratalog.log.names import parse_file
from stratalog.log.policy.preview import Step
from stratalog.store.lifecycle.reports import LifecycleReport
from stratalog.store.store import Store
from stratalog.testing import ManualClock

ROOT = "/data/log"
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

COMPACT: dict[str, Any] = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 0.0,
    "cleaner_min_segment_age_ms": 0,
    "segment_ms": 100 * DAY_MS,
}


@dataclass
class Life:
    """A store without a thread of its own; `open` again is another life of the same files."""

    config: Mapping[str, object] = field(default_factory=dict)
    janitor: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    fs: FileSystem | None = None
    root: str = ROOT

    def __post_init__(self) -> None:
        self.fs = self.fs or MemoryFileSystem(clock=self.clock.now_ns)
        self.store = self.open()

    def open(self) -> Store:
        self.store = stratalog.open(
            self.root,
            self.config,
            fs=self.fs,
            clock=self.clock,
            background=False,
            janitor=self.janitor,
        )
        return self.store

    def again(self) -> Store:
        self.store.close()
        return self.open()

    def topic(self, name: str = "t", partitions: int = 1, **settings: Any) -> stratalog.Topic:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        return self.store.create_topic(name, partitions, config)

    def pass_time(self, ms: int, step_ms: int = HOUR_MS) -> None:
        """Time passes, and the store is looked after meanwhile."""
        while ms > 0:
            part = min(ms, step_ms)
            self.clock.advance(part)
            self.store.tick()
            ms -= part

    def files(self, name: str = "t", partition: int = 0) -> list[str]:
        assert self.fs is not None
        return sorted(self.fs.list_dir(f"{self.root}/{name}-{partition}"))

    def kinds(self, name: str = "t", partition: int = 0) -> Counter[str]:
        """How many files there are of each kind and suffix."""
        return Counter(each[20:] for each in self.files(name, partition) if parse_file(each) is not None)


def fill(topic: stratalog.Topic, segments: int, records: int = 5, *, size: int = 20, at: int = 0) -> None:
    """So many sealed segments more, each of so many records, stamped now unless told when."""
    for _ in range(segments):
        for _ in range(records):
            topic.append(b"v".ljust(size, b"."), timestamp=at or None)
        topic.roll()


def bases(topic: stratalog.Topic, partition: int = 0) -> list[int]:
    return [segment.base_offset for segment in topic.segments(partition)]


def actions(report: LifecycleReport) -> list[tuple[str, int]]:
    """What is done now: (action, base offset)."""
    return [(step.action, step.base_offset) for step in report.steps if step.due]


def of(steps: Iterable[Step], action: str) -> list[Step]:
    return [step for step in steps if step.action == action]


def eventually(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)


def fill_keys(
    topic: stratalog.Topic, segments: int, keys: int = 3, records: int = 20, size: int = 20
) -> None:
    """Sealed segments where every key comes again and again."""
    for _ in range(segments):
        topic.append_many(
            [Record(b"%d" % at * (size // 2), b"k%d" % (at % keys)) for at in range(records)], partition=0
        )
        topic.roll()
