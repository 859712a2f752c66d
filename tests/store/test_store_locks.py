"""No lock of the whole store is held while a disk or an object store is waited for."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.archive.objects import DirectoryObjects
from stratalog.errors import ClosedError, TopicExistsError
from stratalog.fs import FileSystem, MemoryFileSystem, RealFileSystem
from stratalog.store.catalog import Changes, Registry, TopicEntry
from stratalog.testing.clock import ManualClock
from tests.store.pausing import Pause, PausingFileSystem, Running

HOUR_MS = 3_600_000


class PausingObjects:
    """An object store whose calls wait while a pause is set."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.pause: Pause | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.pause is not None:
                self.pause.stop_here()
            return found(*args, **kwargs)

        return call if callable(found) else found


@pytest.fixture
def fs() -> PausingFileSystem:
    return PausingFileSystem(MemoryFileSystem())


@pytest.fixture
def store(fs: PausingFileSystem) -> Iterator[Store]:
    with stratalog.open(
        ["/one", "/two"], fs=cast(FileSystem, fs), clock=ManualClock(), background=False
    ) as opened:
        for name in ("busy", "other"):
            topic = opened.create_topic(name)
            topic.append_many([Record(b"%d" % i) for i in range(10)], sync=True)
        yield opened


@contextmanager
def paused(
    fs: PausingFileSystem, operation: str, path: str, act: Callable[..., Any], *args: Any
) -> Iterator[None]:
    with fs.pause_at(operation, path) as pause:
        running = Running(act, *args)
        pause.wait_until_reached()
        yield
    running.result()


def check_the_rest_goes_on(store: Store) -> None:
    """Use, create, change and delete other topics, in a thread, so that a hang is a failure."""

    def work() -> None:
        other = store.topic("other")
        other.append(b"more", sync=True)
        assert [record.value for record in other.read(start=8)] == [b"8", b"9", b"more"]
        assert "other" in store.topics()
        store.alter_topic("other", {"retention.ms": HOUR_MS})
        store.create_topic("third", 2).append(b"x", partition=1)
        store.add_partitions("third", 3)
        store.delete_topic("third")
        store.flush()
        store.tick()

    Running(work).result()


def test_a_slow_creation_stalls_no_other_topic(store: Store, fs: PausingFileSystem) -> None:
    with paused(fs, "rename", "*/busy2-0", store.create_topic, "busy2"):
        assert "busy2" not in store.topics()  # it appears whole
        check_the_rest_goes_on(store)
    assert store.topic("busy2").append(b"x").offset == 0


def test_a_slow_deletion_stalls_no_other_topic(store: Store, fs: PausingFileSystem) -> None:
    with paused(fs, "remove_tree", "*/busy-0*", store.delete_topic, "busy"):
        check_the_rest_goes_on(store)
    assert store.topics() == ["other"]


def test_a_slow_deletion_of_records_stalls_no_other_topic(store: Store, fs: PausingFileSystem) -> None:
    topic = store.topic("busy")
    topic.roll()
    with paused(fs, "rename", "*/busy-0/*.deleted", topic.delete_records, 0, 10):
        check_the_rest_goes_on(store)
    assert topic.log_start_offset() == 10


def test_a_slow_move_stalls_no_other_topic(store: Store, fs: PausingFileSystem) -> None:
    source = next(each.path for each in store.log_dirs() if fs.exists(f"{each.path}/busy-0"))
    target = "/two" if source == "/one" else "/one"
    with paused(fs, "sync_dir", f"{target}/busy-0*-future", store.move_partition, "busy", 0, target):
        check_the_rest_goes_on(store)
    assert store.topic("busy").append(b"x").offset == 10


def test_deletions_under_way_are_finished_after_a_crash(store: Store, fs: PausingFileSystem) -> None:
    """A save of the settings for one topic keeps the mark of another whose files are being removed."""
    store.create_topic("third")
    with paused(fs, "rename", "*/busy-0.*-delete", store.delete_topic, "busy"):
        Running(store.delete_topic, "third").result()
        after = cast(MemoryFileSystem, fs.inner).survivor("kill", random.Random(1))
    with stratalog.open(["/one", "/two"], fs=after, background=False) as opened:
        assert opened.topics() == ["other"]


def test_names_that_differ_in_a_dot_exclude_each_other(store: Store, fs: PausingFileSystem) -> None:
    with fs.pause_at("rename", "*/a.b-0") as pause:
        first = Running(store.create_topic, "a.b")
        pause.wait_until_reached()
        second = Running(store.create_topic, "a_b")
        assert not second.ends_or_blocks()
    first.result()
    with pytest.raises(TopicExistsError):
        second.result()


def test_changes_wait_for_each_other_by_topic_and_end_with_the_store() -> None:
    changes = Changes()

    def change(name: str) -> None:
        with changes.of(name):
            pass

    with changes.of("a"), changes.of("a"):
        waiting = Running(change, "a")
        Running(change, "b").result()
        assert not waiting.ends_or_blocks()
        closing = Running(changes.close)
        with pytest.raises(ClosedError):
            waiting.result()
        with changes.of("a"):
            assert not closing.ends_or_blocks()
    closing.result()
    with pytest.raises(ClosedError):
        change("b")


# -- the object store ----------------------------------------------------------------------------------------


def test_retention_waits_for_the_object_store_in_its_own_thread(tmp_path: Any) -> None:
    disk = RealFileSystem()
    objects = PausingObjects(DirectoryObjects(disk, str(tmp_path / "archive")))
    config = {"log.retention.check.interval.ms": 20, "log.cleaner.backoff.ms": HOUR_MS}
    with stratalog.open(tmp_path / "data", config, objects=cast(Any, objects), janitor=True) as store:
        cold = store.create_topic(
            "cold", config={"remote.storage.enable": True, "retention.ms": -1, "flush.ms": 20}
        )
        warm = store.create_topic("warm", config={"flush.ms": 20})
        for _ in range(3):
            cold.append(b"x", sync=True)
            cold.roll()
        store.archive("cold")
        with Pause("object", "store") as pause:
            objects.pause = pause
            store.alter_topic("cold", {"retention.ms": 1, "local.retention.ms": 1})
            pause.wait_until_reached()
            end = warm.append(b"y").offset + 1
            writer = store.partitions.writer("warm", 0)
            Running(lambda: _wait_until(lambda: writer.recovery_point >= end)).result()
            objects.pause = None


def _wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.005)


# -- the registry --------------------------------------------------------------------------------------------


def test_topics_are_found_by_name_and_by_id_and_snapshots_stay() -> None:
    registry = Registry()
    first, second = uuid.uuid4(), uuid.uuid4()
    registry.put(TopicEntry("t", first, 2))
    before = registry.entries
    assert registry.topic("t") is registry.topic_by_id(first) is before["t"]
    assert registry.views("t") == (None, None)
    assert registry.view("t", 2) is None
    assert registry.view("t", -1) is None
    registry.remove("t")
    registry.put(TopicEntry("t", second, 1))
    assert registry.topic_by_id(first) is None
    assert registry.topic_by_id(second) is registry.topic("t")
    assert before["t"].partitions == 2


def test_a_view_stays_only_with_its_partition(store: Store) -> None:
    registry, partitions = store.partitions.registry, store.partitions
    entry, view = registry.entries["busy"], registry.view("busy", 0)
    assert view is not None
    assert view in registry.writers
    registry.replace(registry.entries)
    assert registry.view("busy", 0) is view
    where = partitions.place("busy", 0)[0]
    registry.replace({**registry.entries, "busy": entry.placed({0: (where, "/elsewhere/busy-0")})})
    assert registry.view("busy", 0) is view, "it finds the partition where it was moved to"
    registry.replace({**registry.entries, "busy": replace(entry, id=uuid.uuid4())})
    assert registry.view("busy", 0) is None
    assert view not in registry.writers
    registry.put(entry, {0: view})
