"""What is refused is let go: an error that is kept holds neither the calls nor their records."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.errors import StorageError, StratalogError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.testing.clock import ManualClock

TIMES = 20


class Value(bytes):
    """Bytes that the garbage collector can count."""


def store_on(fs: Any) -> Store:
    return stratalog.open("/data", fs=fs, clock=ManualClock(), background=False)


def failed_sync(fs: FailingFileSystem, store: Store, topic: Topic) -> None:
    fs.inject(Fault("sync", "*.log"))
    with pytest.raises(StorageError):
        topic.append(b"x", sync=True)


def closed(fs: FailingFileSystem, store: Store, topic: Topic) -> None:
    store.close()


def deleted(fs: FailingFileSystem, store: Store, topic: Topic) -> None:
    store.delete_topic("t")


CALLS: list[Callable[[Topic, bytes], Any]] = [
    lambda topic, value: topic.append(value),
    lambda topic, value: topic.append_many([Record(value)]),
    lambda topic, value: topic.append(value, partition=0, sync=True),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("refuse", [failed_sync, closed, deleted])
def test_a_refused_append_keeps_no_record(refuse: Callable[..., None], call: Callable[..., Any]) -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    store = store_on(fs)
    topic = store.create_topic("t", 1)
    topic.append(b"first")
    refuse(fs, store, topic)
    depths = []
    for _ in range(TIMES):
        value = Value(b"v" * 1000)
        try:
            call(topic, value)
        except StratalogError as error:
            depths.append(depth(error))
    assert len(depths) == TIMES
    assert depths[1:] == [depths[1]] * (TIMES - 1)
    del value
    gc.collect()
    assert sum(type(each) is Value for each in gc.get_objects()) <= 1
    fs.heal()


def depth(error: BaseException) -> int:
    """Return the number of frames in a traceback."""
    count, at = 0, error.__traceback__
    while at is not None:
        count, at = count + 1, at.tb_next
    return count
