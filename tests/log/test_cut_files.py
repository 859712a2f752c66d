"""A `.log` that is cut or removed under an open store: every read ends, and names the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.fs import MemoryFileSystem
from stratalog.store.topic import Topic

NOW = 1_760_000_000_000


def path_of(base: int, kind: str = "log") -> str:
    return f"/d/t-0/{base:020d}.{kind}"


def filled(fs: MemoryFileSystem) -> stratalog.Store:
    """A sealed and an active segment, each with ten batches of two records of the same size."""
    store = stratalog.open("/d", fs=fs, background=False)
    topic = store.create_topic("t", config={"index.interval.bytes": 100})
    for at in range(20):
        if at == 10:
            topic.roll()
        topic.append_many([Record(b"%02d" % at, b"k%d" % at, (), NOW + at)] * 2, sync=True)
    return store


READS: dict[str, Callable[[Topic], object]] = {
    "read": lambda topic: list(topic.read()),
    "scan": lambda topic: topic.scan().read_all(),
    "at": lambda topic: [topic.at(offset) for offset in range(40)],
    "get": lambda topic: [topic.get(b"k%d" % at) for at in range(20)],
    "history": lambda topic: [list(topic.history(b"k%d" % at)) for at in range(20)],
    "time": lambda topic: [topic.offset_for_time(0, NOW + at) for at in range(20)],
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("base", [0, 20])
@pytest.mark.parametrize("odd_bytes", [0, 7])
def test_a_cut_log_is_named(how: str, read_only: bool, base: int, odd_bytes: int) -> None:
    fs = MemoryFileSystem()
    holder = filled(fs)
    store = stratalog.open("/d", fs=fs, read_only=True) if read_only else holder
    topic = store.topic("t")
    list(topic.read())
    size = fs.stat(path_of(base)).size
    with fs.open(path_of(base), "w") as file:
        file.truncate(size * 6 // 10 + odd_bytes)
    with pytest.raises(errors.CorruptionError, match=f"{base:020d}.log"):
        READS[how](topic)


@pytest.mark.parametrize("how", READS)
def test_a_log_that_is_gone_is_named(how: str) -> None:
    fs = MemoryFileSystem()
    store = filled(fs)
    store_handles(store).forget(path_of(0))
    fs.remove(path_of(0))
    with pytest.raises(errors.CorruptionError, match=f"{0:020d}.log"):
        READS[how](store.topic("t"))


def store_handles(store: stratalog.Store) -> Any:
    return store.partitions.context.handles


@pytest.mark.parametrize("read_only", [True, False])
def test_iterators_of_a_closed_store_say_so(read_only: bool) -> None:
    fs = MemoryFileSystem()
    filled(fs).close()
    store = stratalog.open("/d", fs=fs, read_only=read_only)
    topic = store.topic("t")
    read, history = topic.read(), topic.history(b"k1")
    follow = topic.read(start=40, follow=True)
    scan = topic.scan()
    store.close()
    for pending in (read, history, follow, scan):
        with pytest.raises(errors.ClosedError):
            list(pending)
