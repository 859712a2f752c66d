"""Lookups that are under way while their partition moves: each answers as if nothing had happened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

import stratalog
from stratalog import OffsetSpec, Store, Topic
from stratalog.fs import FileSystem, MemoryFileSystem
from stratalog.testing import ManualClock
from tests.store.pausing import PausingFileSystem, Running
from tests.store.test_door import make_batch

OLD, NEW = "/one", "/two"
LOOKUPS: dict[str, Callable[[Topic], Any]] = {
    "get": lambda topic: topic.get(b"k3"),
    "get what is not there": lambda topic: topic.get(b"nobody"),
    "get in the first segment": lambda topic: topic.get(b"first"),
    "history": lambda topic: list(topic.history(b"k3")),
    "history committed": lambda topic: list(topic.history(b"k3", isolation="read_committed")),
    "at": lambda topic: topic.at(3),
    "at, committed": lambda topic: topic.at(3, isolation="read_committed"),
    "read one": lambda topic: list(topic.read(0, 3, 4)),
    "read": lambda topic: list(topic.read()),
    "read committed": lambda topic: list(topic.read(isolation="read_committed")),
    "scan": lambda topic: topic.scan(threads=1).read_all(),
    "scan committed": lambda topic: topic.scan(threads=2, isolation="read_committed").read_all(),
    "time": lambda topic: topic.offset_for_time(0, 5),
    "time, committed": lambda topic: topic.offset_for_time(0, 5, isolation="read_committed"),
    "largest timestamp": lambda topic: topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP),
    "fetch": lambda topic: topic.fetch(0, 3, 1000, "read_committed").read(),
    "epoch": lambda topic: topic.end_of_epoch(0, 0),
    "segments": lambda topic: [each.base_offset for each in topic.segments(deleted=True)],
    "size": lambda topic: topic.size_bytes(),
}


class MovingFileSystem(PausingFileSystem):
    """Runs ``move`` before the n-th look at a file of the old directory that this thread takes."""

    def __init__(self) -> None:
        super().__init__(MemoryFileSystem())
        self.at, self.calls, self.thread = 0, 0, 0
        self.move: Callable[[], object] = lambda: None

    def _look(self, path: str) -> None:
        if self.at and threading.get_ident() == self.thread and path.startswith(f"{OLD}/t-0"):
            self.calls += 1
            if self.calls == self.at:
                Running(self.move).result()

    def open(self, path: str, mode: Any = "r") -> Any:
        self._look(path)
        return super().open(path, mode)

    def stat(self, path: str) -> Any:
        self._look(path)
        return super().stat(path)

    def exists(self, path: str) -> bool:
        self._look(path)
        return self.inner.exists(path)

    def read_file(self, path: str, *args: Any) -> bytes:
        self._look(path)
        return self.inner.read_file(path, *args)

    def list_dir(self, path: str) -> list[str]:
        self._look(path)
        return self.inner.list_dir(path)


def made() -> tuple[MovingFileSystem, Store, Topic]:
    """Three segments with an aborted transaction in each of two; nothing of them is cached."""
    fs = MovingFileSystem()
    store = stratalog.open([OLD, NEW], fs=cast(FileSystem, fs), clock=ManualClock(), background=False)
    topic = store.create_topic("t", 1, {"key.index.enable": True})
    topic.append(b"first", b"first", timestamp=0)
    for part in range(3):
        for at in range(10):
            topic.append(b"%d-%d" % (part, at), b"k%d" % at, timestamp=part * 10 + at)
        if part < 2:
            batch = make_batch([b"lost"], producer_id=7, epoch=0, sequence=part, transactional=True)
            topic.append_batches(0, batch)
            topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=False)
            topic.roll()
    topic.flush()
    forget(store)
    return fs, store, topic


def forget(store: Store) -> None:
    writer = store.partitions.writers()[0]
    writer.release_handle()
    for segment in writer.segments():
        segment.forget()
    store.partitions.context.handles.forget_below(writer.directory)


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_during_a_move_answers_as_ever(name: str) -> None:
    look = LOOKUPS[name]
    fs, store, topic = made()
    with store:
        wanted = look(topic)
    for at in range(1, 200):
        fs, store, topic = made()
        with store:
            fs.at, fs.thread = at, threading.get_ident()
            fs.move = partial(store.move_partition, "t", 0, NEW)
            found, fs.at = look(topic), 0
            assert found == wanted, at
            if fs.calls < at:
                assert at > 1
                return
            assert not fs.exists(f"{OLD}/t-0")
            assert look(topic) == wanted, at
    pytest.fail("it never ended")


def test_the_numbers_of_the_lifecycle_hold_a_partition_that_moves() -> None:
    for at in range(1, 200):
        fs, store, _ = made()
        with store:
            wanted = store.lifecycle()
            fs.at, fs.thread = at, threading.get_ident()
            fs.move = partial(store.move_partition, "t", 0, NEW)
            found, fs.at = store.lifecycle(), 0
            assert [(each.topic, each.partition) for each in found] == [("t", 0)], at
            assert found[0].states["sealed"].segments == wanted[0].states["sealed"].segments > 1, at
            if fs.calls < at:
                assert at > 1
                return
    pytest.fail("it never ended")
