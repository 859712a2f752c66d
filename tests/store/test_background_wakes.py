"""The background thread looks at once when something new may be due, not at the end of its pause."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import stratalog
from stratalog import Store
from stratalog.fs import MemoryFileSystem
from stratalog.store.background import LONGEST_PAUSE_S, Background
from stratalog.store.partitions import Partitions
from tests.store.lifecycle_support import eventually
from tests.store.pausing import PATIENCE_S


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store whose background thread is in a long pause, from which only a wake brings it back in time."""
    fs = MemoryFileSystem()
    with stratalog.open("/data", fs=fs) as store:
        store.create_topic("quiet")
    pausing = threading.Event()
    interval_s = Partitions.tick_interval_s

    def pause_s(self: Partitions) -> float:
        found = interval_s(self)
        if found < LONGEST_PAUSE_S:
            return found
        pausing.set()
        return 3600.0

    monkeypatch.setattr(Partitions, "tick_interval_s", pause_s)
    with stratalog.open("/data", fs=fs) as store:
        assert pausing.wait(PATIENCE_S)
        yield store


def check_flushed(store: Store, name: str, end: int, partition: int = 0) -> None:
    writer = store.partitions.writer(name, partition)
    eventually(lambda: writer.recovery_point >= end, timeout_s=5.0)


def test_a_new_topic_is_flushed_in_its_time(store: Store) -> None:
    store.create_topic("t", config={"flush.ms": 20}).append(b"x")
    check_flushed(store, "t", 1)


def test_a_changed_flush_ms_counts_at_once(store: Store) -> None:
    topic = store.topic("quiet")
    topic.append(b"x")
    store.alter_topic("quiet", {"flush.ms": 20})
    check_flushed(store, "quiet", 1)


@pytest.mark.parametrize("opened_again", [False, True])
def test_a_roll_wakes_it(opened_again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a partition that was there before the background thread was."""
    woken: list[Background] = []
    wake = Background.wake

    def noted(self: Background) -> None:
        woken.append(self)
        wake(self)

    monkeypatch.setattr(Background, "wake", noted)
    fs = MemoryFileSystem()
    store = stratalog.open("/data", fs=fs)
    store.create_topic("t").append(b"x")
    if opened_again:
        store.close()
        store = stratalog.open("/data", fs=fs)
        store.topic("t").append(b"y")
    with store:
        before = len(woken)
        store.topic("t").roll()
        assert len(woken) == before + 1
