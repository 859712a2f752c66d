"""Deleting a topic, stopped at any call: it is there with all its data, or it is gone for good."""

from __future__ import annotations

import random
from typing import Literal

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.format import settings
from stratalog.fs import MemoryFileSystem, SimulatedCrash
from stratalog.log.write.writer import PartitionWriter

DIRS = ["/one", "/two"]
PARTITIONS = 3
RECORDS = 5


def opened(fs: MemoryFileSystem, *, read_only: bool = False) -> Store:
    return stratalog.open(DIRS, fs=fs, background=False, read_only=read_only)


def built() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    for path in DIRS:
        fs.make_dir(path)
    with opened(fs) as store:
        for name in ("doomed", "other"):
            topic = store.create_topic(name, PARTITIONS, {"retention.ms": 1000})
            for partition in range(PARTITIONS):
                topic.append_many([Record(b"%d" % i) for i in range(RECORDS)], partition=partition, sync=True)
    return fs


def whole(store: Store, name: str) -> bool:
    topic = store.topic(name)
    return topic.partitions == PARTITIONS and all(
        [record.value for record in topic.read(partition)] == [b"%d" % i for i in range(RECORDS)]
        for partition in range(PARTITIONS)
    )


def directories(fs: MemoryFileSystem, name: str) -> list[str]:
    return [found for path in DIRS for found in fs.list_dir(path) if found.startswith(f"{name}-")]


def crashed_at(call: int) -> MemoryFileSystem | None:
    """The disk after a crash at this call of the deletion; None when there are fewer."""
    fs = built()
    store = opened(fs)
    fs.crash_at(call)
    try:
        store.delete_topic("doomed")
    except SimulatedCrash:
        return fs
    return None


def calls_of_a_deletion() -> int:
    fs = built()
    store = opened(fs)
    before = len(fs.calls)
    store.delete_topic("doomed")
    return len(fs.calls) - before


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"])
def test_all_or_nothing_after_a_crash(mode: Literal["kill", "drop", "torn", "reorder"]) -> None:
    seen = set()
    for call in range(1, calls_of_a_deletion() + 1):
        disk = crashed_at(call)
        assert disk is not None
        after = disk.survivor(mode, random.Random(call))
        with opened(after, read_only=True) as store:
            there = "doomed" in store.topics()
            assert "doomed" not in store.topics() or store.topic("doomed").config.retention_ms == 1000
        with opened(after) as store:
            assert ("doomed" in store.topics()) == there, call
            assert not there or whole(store, "doomed"), call
            assert whole(store, "other"), call
            store.create_topic("new")  # writes the settings once more
        with opened(after) as store:
            assert ("doomed" in store.topics()) == there, call
        assert bool(directories(after, "doomed")) == there, call
        seen.add(there)
    assert seen == {True, False}


def test_a_new_topic_of_that_name_is_not_the_old_one() -> None:
    fs = built()
    with opened(fs) as store:
        store.delete_topic("doomed")
        again = store.create_topic("doomed", PARTITIONS)
        again.append(b"new", partition=0)
    with opened(fs) as store:
        assert [record.value for record in store.topic("doomed").read(0)] == [b"new"]
        assert store.topic("doomed").log_end_offset(1) == 0


def test_the_settings_forget_it_when_they_are_written_next() -> None:
    fs = built()
    with opened(fs) as store:
        store.delete_topic("doomed")
        assert len(settings.parse(fs.read_file("/one/stratalog.settings")).deleting) == 1
        store.create_topic("next")
        assert settings.parse(fs.read_file("/two/stratalog.settings")).deleting == ()


def test_a_topic_deleted_under_the_upkeep_of_its_partitions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The background thread has a partition in hand when its directory goes: a failure only if it stays."""
    store = opened(built())

    def missed(writer: PartitionWriter) -> None:
        if writer.topic == "doomed" and "doomed" in store.topics():
            store.delete_topic("doomed")
        raise FileNotFoundError(writer.directory)

    with monkeypatch.context() as patched:
        patched.setattr(PartitionWriter, "tick", missed)
        store.tick()
    assert sum("/other-" in line for line in caplog.messages) == PARTITIONS
    assert not any("/doomed-" in line for line in caplog.messages)
    store.tick()
    assert list(store.topics()) == ["other"]
    assert whole(store, "other")
    store.close()
