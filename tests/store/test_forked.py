"""A store in a forked child: every operation raises `ForkedError` at once, whatever the parent was doing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.store.admin.control import ControlClient
from stratalog.store.store import Store
from stratalog.store.topic import Topic

CHILD_S = 5


def in_child(work: Callable[[], object]) -> str:
    """Run ``work`` in a forked child; return the name of its error, "" if there is none, or how it ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(CHILD_S)  # a child that hangs dies of it
            try:
                work()
                told = ""
            except BaseException as error:  # noqa: BLE001 - the child must not go on as a test
                told = type(error).__name__
            os.write(write, told.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        told = answer.read().decode()
    _, status = os.waitpid(pid, 0)
    return told if status == 0 else f"status {status}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as opened:
        opened.create_topic("one", config={"key.index.enable": True})
        opened.create_topic("many", 3)
        opened.topic("one").append_many([Record(b"v" * 1000, b"k%d" % (at % 5)) for at in range(2000)])
        yield opened


OPERATIONS: dict[str, Callable[[Store, Topic, Topic], Any]] = {
    "append": lambda store, one, many: one.append(b"v"),
    "append to one of many": lambda store, one, many: many.append(b"v", partition=2),
    "append by key": lambda store, one, many: many.append(b"v", b"k"),
    "append anywhere": lambda store, one, many: many.append(b"v"),
    "append synced": lambda store, one, many: one.append(b"v", sync=True),
    "append_many": lambda store, one, many: one.append_many([Record(b"v")]),
    "append_many anywhere": lambda store, one, many: many.append_many([Record(b"v")]),
    "append_batches": lambda store, one, many: one.append_batches(0, b"\0" * 70),
    "read": lambda store, one, many: list(one.read()),
    "at": lambda store, one, many: one.at(0),
    "scan": lambda store, one, many: one.scan().read_all(),
    "get": lambda store, one, many: one.get(b"k1"),
    "history": lambda store, one, many: list(one.history(b"k1")),
    "offset_for_time": lambda store, one, many: one.offset_for_time(0, 1),
    "fetch": lambda store, one, many: one.fetch(0, 0, 1),
    "list_offset": lambda store, one, many: one.list_offset(0, -3),
    "durable": lambda store, one, many: one.durable(0, 1),
    "when": lambda store, one, many: one.when(0, "high_watermark", 1),
    "segments": lambda store, one, many: one.segments(),
    "log_end_offset": lambda store, one, many: one.log_end_offset(),
    "high_watermark": lambda store, one, many: one.high_watermark(),
    "partitions": lambda store, one, many: one.partitions,
    "roll": lambda store, one, many: one.roll(),
    "flush a topic": lambda store, one, many: one.flush(),
    "delete_records": lambda store, one, many: one.delete_records(0, 1),
    "topic": lambda store, one, many: store.topic("one"),
    "topics": lambda store, one, many: store.topics(),
    "create_topic": lambda store, one, many: store.create_topic("new"),
    "add_partitions": lambda store, one, many: store.add_partitions("one", 2),
    "alter_topic": lambda store, one, many: store.alter_topic("one", {"segment.bytes": 4096}),
    "delete_topic": lambda store, one, many: store.delete_topic("one"),
    "flush": lambda store, one, many: store.flush(),
    "retain": lambda store, one, many: store.retain(),
    "compact": lambda store, one, many: store.compact(),
    "janitor": lambda store, one, many: store.janitor(),
    "erase": lambda store, one, many: store.erase("one", [b"k1"]),
    "lifecycle": lambda store, one, many: store.lifecycle(),
    "log_dirs": lambda store, one, many: store.log_dirs(),
    "open_files": lambda store, one, many: store.open_files(),
    "accept_clock": lambda store, one, many: store.accept_clock(),
    "tick": lambda store, one, many: store.tick(),
}


class Held:
    """Threads of the parent that hold locks of the store while the child is made."""

    def __init__(self, *locks: Any) -> None:
        self._locks = locks
        self._done = threading.Event()
        self._held = threading.Semaphore(0)

    def _hold(self, lock: Any) -> None:
        with lock:
            self._held.release()
            self._done.wait(CHILD_S)

    def __enter__(self) -> None:
        self._threads = [threading.Thread(target=self._hold, args=(lock,)) for lock in self._locks]
        for thread in self._threads:
            thread.start()
            assert self._held.acquire(timeout=CHILD_S)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()


def held_locks(store: Store) -> Held:
    """Hold every partition's lock and the locks that all operations share, each in a thread of its own."""
    context = store.partitions.context
    owners = [context.handles, context.cache, store.topic("many")]
    shared = [value for owner in owners for value in vars(owner).values() if hasattr(value, "acquire")]
    return Held(*(writer.lock for writer in store.partitions.writers()), *shared)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_every_operation_raises_at_once(store: Store, operation: Callable[..., Any]) -> None:
    one, many = store.topic("one"), store.topic("many")
    with held_locks(store):
        assert in_child(lambda: operation(store, one, many)) == "ForkedError"
    assert one.append(b"after").offset == 2000


def test_iterators_of_the_parent_raise(store: Store) -> None:
    topic = store.topic("one")
    for records in (topic.read(), topic.read(follow=True)):
        next(records)
        with held_locks(store):
            assert in_child(lambda: list(records)) == "ForkedError"  # noqa: B023
        assert next(records).offset == 1


def test_a_scan_of_the_parent_raises(store: Store) -> None:
    topic = store.topic("one")
    for threads in (1, 2):
        topic.roll()
        topic.append_many([Record(b"v" * 1000) for _ in range(2000)])
        batches = topic.scan(threads=threads)
        batches.read_next_batch()
        with held_locks(store):
            assert in_child(batches.read_all) == "ForkedError"


def test_an_append_beside_a_parent_that_appends(store: Store) -> None:
    topic, done = store.topic("one"), threading.Event()

    def append() -> None:
        while not done.is_set():
            topic.append(b"v")

    appender = threading.Thread(target=append)
    appender.start()
    try:
        for _ in range(30):
            assert in_child(lambda: topic.append(b"child")) == "ForkedError"
    finally:
        done.set()
        appender.join()
    assert b"child" not in {record.value for record in topic.read()}


def test_close_in_the_child_leaves_everything_to_the_parent(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with stratalog.open(path) as store:
        topic = store.create_topic("t")
        topic.append(b"a", sync=True)  # nothing is left for the background thread to write
        before = {str(each): each.stat().st_mtime_ns for each in path.rglob("*") if each.is_file()}

        def leave() -> None:
            with store:
                pass
            store.close()

        with held_locks_of(store):
            assert in_child(leave) == ""
        after = {str(each): each.stat().st_mtime_ns for each in path.rglob("*") if each.is_file()}
        assert set(after) == set(before)
        with pytest.raises(errors.StoreLockedError):
            stratalog.open(path)
        assert store.control_address is not None
        client = ControlClient(store.control_address, None)
        assert client.request("ping", {}).header["result"] == {"topics": 1}
        client.close()
        topic.append(b"b")
    with stratalog.open(path) as again:
        assert [record.value for record in again.topic("t").read()] == [b"a", b"b"]


def held_locks_of(store: Store) -> Held:
    return Held(*(writer.lock for writer in store.partitions.writers()))


def test_a_child_that_outlives_its_parent_is_no_holder(tmp_path: Path) -> None:
    """Neither the lock nor the control socket stays with it."""
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        store = stratalog.open(tmp_path / "data")
        store.create_topic("t")
        if os.fork() == 0:
            os.read(read, 1)  # lives on until the test ends it
            os._exit(0)
        os._exit(0)
    os.waitpid(parent, 0)
    try:
        with stratalog.open(tmp_path / "data") as again:
            assert again.topics() == ["t"]
    finally:
        os.write(write, b"x")
        os.close(read)
        os.close(write)


def test_a_read_only_store_too(tmp_path: Path, store: Store) -> None:
    with stratalog.open(tmp_path / "data", read_only=True) as reader:
        topic = reader.topic("one")
        records = topic.read()
        next(records)
        assert in_child(lambda: list(topic.read())) == "ForkedError"
        assert in_child(lambda: list(records)) == "ForkedError"
        assert in_child(reader.close) == ""
        assert len(list(topic.read())) == 2000
