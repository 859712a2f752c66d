"""A `Topic` whose topic was deleted refuses everything, also when another topic has its name by now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.errors import UnknownTopicError
from tests.store.pausing import Running

READS: dict[str, Callable[[Topic], object]] = {
    "read": lambda topic: list(topic.read()),
    "read committed": lambda topic: list(topic.read(isolation="read_committed")),
    "follow": lambda topic: list(topic.read(follow=True, timeout_s=0.01)),
    "at": lambda topic: topic.at(0),
    "get": lambda topic: topic.get(b"k"),
    "history": lambda topic: list(topic.history(b"k")),
    "scan": lambda topic: topic.scan().read_all(),
    "fetch": lambda topic: topic.fetch(0, 0, 100).release(),
    "segments": lambda topic: topic.segments(),
    "size_bytes": lambda topic: topic.size_bytes(),
    "high_watermark": lambda topic: topic.high_watermark(),
    "log_end_offset": lambda topic: topic.log_end_offset(),
    "log_start_offset": lambda topic: topic.log_start_offset(),
    "offset_for_time": lambda topic: topic.offset_for_time(0, 0),
    "list_offset": lambda topic: topic.list_offset(0, -1),
    "end_of_epoch": lambda topic: topic.end_of_epoch(0, 0),
}
WRITES: dict[str, Callable[[Topic], object]] = {
    "append": lambda topic: topic.append(b"stale", b"k"),
    "append_many": lambda topic: topic.append_many([Record(b"stale", b"k")]),
    "append_batches": lambda topic: topic.append_batches(0, b""),
    "end_transaction": lambda topic: topic.end_transaction(0, producer_id=1, producer_epoch=0, commit=True),
    "delete_records": lambda topic: topic.delete_records(0, -1),
    "roll": lambda topic: topic.roll(),
    "flush": lambda topic: topic.flush(),
    "durable": lambda topic: topic.durable(0, 0),
    "when": lambda topic: topic.when(0, "synced", 0),
    "id": lambda topic: topic.id,
    "partitions": lambda topic: topic.partitions,
    "config": lambda topic: topic.config,
}


def fresh(store: Store, value: bytes) -> Topic:
    topic = store.create_topic("t")
    topic.append(value, b"k", sync=True)
    return topic


@pytest.mark.parametrize("again", [False, True], ids=["gone", "created again"])
@pytest.mark.parametrize("act", [*READS.values(), *WRITES.values()], ids=[*READS, *WRITES])
def test_in_the_process_that_deleted_it(tmp_path: Path, act: Callable[[Topic], object], again: bool) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        stale = fresh(store, b"old")
        store.delete_topic("t")
        topic = fresh(store, b"new") if again else None
        told = "created under its name" if again else "topic t was deleted"
        with pytest.raises(UnknownTopicError, match=told):
            act(stale)
        if topic is not None:
            assert [record.value for record in topic.read()] == [b"new"]


@pytest.mark.parametrize("warm", [False, True], ids=["unread", "read before"])
@pytest.mark.parametrize("again", [False, True], ids=["gone", "created again"])
@pytest.mark.parametrize("act", READS.values(), ids=READS)
def test_in_a_reader_beside_it(
    tmp_path: Path, act: Callable[[Topic], object], again: bool, warm: bool
) -> None:
    root = tmp_path / "data"
    with stratalog.open(root, background=False) as store:
        fresh(store, b"old")
        with stratalog.open(root, read_only=True, background=False) as reader:
            stale = reader.topic("t")
            if warm:
                act(stale)
            store.delete_topic("t")
            if again:
                fresh(store, b"new")
            with pytest.raises(UnknownTopicError, match="topic t was deleted"):
                act(stale)
            if again:
                assert [record.value for record in reader.topic("t").read()] == [b"new"]


def test_a_partition_without_its_id_is_read_all_the_same(tmp_path: Path) -> None:
    """Another broker may have written none, or one of its own; nothing was deleted."""
    root = tmp_path / "data"
    with stratalog.open(root, background=False) as store:
        topic = store.create_topic("t", 2)
        for partition in (0, 1):
            topic.append(b"v", partition=partition)
    (root / "t-1" / "partition.metadata").unlink()
    with stratalog.open(root, read_only=True, background=False) as reader:
        for partition in (0, 1):
            assert [record.value for record in reader.topic("t").read(partition)] == [b"v"]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "created again"])
def test_a_reader_that_waits_is_told_that_it_was_deleted(tmp_path: Path, again: bool) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = fresh(store, b"old")
        reading = topic.read(follow=True)
        assert next(reading).value == b"old"
        waiting = Running(lambda: next(reading))
        store.delete_topic("t")
        if again:
            fresh(store, b"new")
        with pytest.raises(UnknownTopicError, match="topic t was deleted"):
            waiting.result()


def test_what_was_cached_of_it_is_forgotten(tmp_path: Path) -> None:
    with (
        stratalog.open(tmp_path / "data", background=False) as store,
        stratalog.open(tmp_path / "data", read_only=True) as beside,
    ):
        topic = fresh(store, b"old")
        topic.roll()
        topic.append(b"more", timestamp=5)
        caches = [each.partitions.context.cache for each in (store, beside)]
        before = [cache.used_bytes for cache in caches]
        for each in (topic, beside["t"]):
            assert each.offset_for_time(0, 1) == 0
            assert each.segments()
        assert all(cache.used_bytes > used for cache, used in zip(caches, before, strict=True))
        store.delete_topic("t")
        assert beside.topics() == []
        assert [cache.used_bytes for cache in caches] == before


def test_what_was_cached_of_a_partition_that_moved_is_forgotten(tmp_path: Path) -> None:
    with stratalog.open([tmp_path / "a", tmp_path / "b"], background=False) as store:
        topic = fresh(store, b"old")
        topic.roll()
        cache = store.partitions.context.cache
        before = cache.used_bytes
        assert topic.offset_for_time(0, 1) == 0
        assert cache.used_bytes > before
        (here,) = [name for name in ("a", "b") if (tmp_path / name / "t-0").exists()]
        store.move_partition("t", 0, str(tmp_path / ("b" if here == "a" else "a")))
        assert cache.used_bytes == before


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_second_append_does_not_go_to_the_new_topic_either(tmp_path: Path, partitions: int) -> None:
    appends: list[Callable[[Topic], object]] = [
        lambda topic: topic.append(b"stale"),
        lambda topic: topic.append(b"stale", b"k"),
        lambda topic: topic.append(b"stale", partition=0, sync=True),
        lambda topic: topic.append(b"stale", partition=0, expected_offset=0),
        lambda topic: topic.append(b"stale", partition=0, producer="me", sequence=0),
        lambda topic: topic.append_many([Record(b"stale"), Record(b"stale", b"k")]),
        lambda topic: asyncio.run(topic.aappend(b"stale", partition=0)),
        lambda topic: asyncio.run(topic.aappend_many([Record(b"stale")], partition=0)),
        lambda topic: topic.delete_records(0, -1),
    ]
    with stratalog.open(tmp_path, background=False) as store:
        for _ in range(2):
            old = store.create_topic("t", partitions)
            old.append(b"old", partition=0)
            store.delete_topic("t")
            new = store.create_topic("t", partitions)
            new.append(b"new", partition=0)
            for _ in range(2):
                for append in appends:
                    with pytest.raises(UnknownTopicError):
                        append(old)
            assert [record.value for record in new.read()] == [b"new"]
            store.delete_topic("t")
