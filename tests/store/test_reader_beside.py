"""A read-only store beside its holder: nothing the holder does makes it wrong, and nothing stays open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import OffsetSpec, Record, Store, Topic, errors
from stratalog.archive.partition import PartitionArchive
from stratalog.config import BrokerConfig
from stratalog.fs import MemoryFileSystem
from stratalog.log.read import follower
from stratalog.log.read.reader import read_records
from stratalog.store import read_only
from stratalog.store.read_only import ReadOnlyLogs
from stratalog.testing import FailingFileSystem
from tests.store.pausing import Running
from tests.store.tiered import RECORDS, TOPIC, Tiered

DIRS = ["/one", "/two"]
SETTINGS: dict[str, object] = {
    "key.index.enable": True,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "file.delete.delay.ms": 0,
    "retention.ms": -1,
}


class Beside:
    """A holder and a reader of the same two directories; the first three records were deleted."""

    def __init__(self) -> None:
        memory = MemoryFileSystem()
        self.store = stratalog.open(DIRS, fs=memory, background=False)
        self.topic = self.store.create_topic("t", 1, SETTINGS)
        for at in range(20):
            self.topic.append(b"%d" % at, b"k%d" % (at % 5), timestamp=1000 + at)
            if at % 8 == 7:
                self.topic.roll()
        self.topic.delete_records(0, 3)
        self.fs = FailingFileSystem(memory)
        self.reading = stratalog.open(DIRS, fs=self.fs, read_only=True)
        self.reader = self.reading.topic("t")
        assert len(list(self.reader.read())) == 17

    def move(self) -> None:
        here = self.store.partitions.place("t", 0)[0].path
        self.store.move_partition("t", 0, next(path for path in DIRS if path != here))

    def at_call(self, number: int, change: Callable[[], None]) -> list[str]:
        """Let the holder act before the reader's n-th filesystem call; return what it was asked for."""
        ours, calls = threading.get_ident(), list[str]()

        def before_call(call: str) -> None:
            if threading.get_ident() == ours:
                calls.append(call)
                if len(calls) == number:
                    Running(change).result()

        self.fs.before_call = before_call
        return calls

    def close(self) -> None:
        self.fs.before_call = None
        self.reading.close()
        self.store.close()


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    yield made
    made.close()


def _fetched(topic: Topic) -> int:
    with topic.fetch(0, 5, 1 << 20, "read_committed") as found:
        return len(found.read())


LOOKS: dict[str, Callable[[Store, Topic], object]] = {
    "log start": lambda store, topic: topic.log_start_offset(),
    "log end": lambda store, topic: topic.log_end_offset(),
    "high watermark": lambda store, topic: topic.high_watermark(),
    "last stable offset": lambda store, topic: topic.high_watermark(isolation="read_committed"),
    "earliest": lambda store, topic: topic.list_offset(0, OffsetSpec.EARLIEST),
    "latest": lambda store, topic: topic.list_offset(0, OffsetSpec.LATEST),
    "newest": lambda store, topic: topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP),
    "by time": lambda store, topic: topic.offset_for_time(0, 1010),
    "epoch": lambda store, topic: topic.end_of_epoch(0, 0),
    "segments": lambda store, topic: [info.base_offset for info in topic.segments()],
    "size": lambda store, topic: topic.size_bytes(),
    "read": lambda store, topic: [record.offset for record in topic.read()],
    "committed": lambda store, topic: [record.offset for record in topic.read(isolation="read_committed")],
    "scan": lambda store, topic: topic.scan(columns=["offset"], threads=1).read_all()["offset"].to_pylist(),
    "get": lambda store, topic: topic.get(b"k1"),
    "history": lambda store, topic: [record.offset for record in topic.history(b"k1")],
    "at": lambda store, topic: topic.at(10),
    "fetch": lambda store, topic: _fetched(topic),
    "lifecycle": lambda store, topic: [(each.topic, each.partition) for each in store.lifecycle()],
    "repair": lambda store, topic: store.repair("t", 0, action="drop-damaged", dry_run=True),
    "erase": lambda store, topic: store.erase("t", [b"k1"], dry_run=True).records,
    "verify": lambda store, topic: stratalog.verify(store, "t").ok,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_move_before_any_call_changes_no_answer(look: str) -> None:
    number, calls = 1, 0
    while calls >= number - 1:
        beside = Beside()
        expected = LOOKS[look](beside.store, beside.topic)
        made = beside.at_call(number, beside.move)
        assert LOOKS[look](beside.reading, beside.reader) == expected, made[number - 1 :][:1]
        calls = len(made)
        beside.close()
        number += 1
    assert calls > 2


@pytest.mark.parametrize("look", LOOKS)
def test_a_deletion_of_the_topic_before_any_call_is_told(look: str) -> None:
    number, calls = 1, 0
    while calls >= number - 1:
        beside = Beside()
        expected = LOOKS[look](beside.store, beside.topic)
        made = beside.at_call(number, partial(beside.store.delete_topic, "t"))
        try:
            found = LOOKS[look](beside.reading, beside.reader)
            assert found == expected or found == [], made[number - 1 :][:1]
        except errors.UnknownTopicError:
            pass
        calls = len(made)
        beside.close()
        number += 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("change", ["compact", "append", "roll"])
def test_a_look_that_is_cut_short_is_made_again(
    beside: Beside, change: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [record.offset for record in beside.reader.read()]
    if change == "compact":
        beside.store.compact("t", force=True)
    else:
        beside.topic.append(b"more", b"k")
        if change == "roll":
            beside.topic.roll()
    extend = follower.PartitionFollower._extend

    def fail(*_: Any) -> bool:
        monkeypatch.setattr(follower.PartitionFollower, "_extend", extend)
        raise error

    monkeypatch.setattr(follower.PartitionFollower, "_extend", fail)
    with pytest.raises(error):
        beside.reader.high_watermark()
    expected = [record.offset for record in beside.topic.read()]
    assert expected != before
    assert [record.offset for record in beside.reader.read()] == expected
    assert beside.reader.high_watermark() == beside.topic.high_watermark()


def test_nothing_that_the_holder_removed_stays_open(beside: Beside) -> None:
    for _ in range(3):
        beside.topic.append(b"more", b"k")
        beside.topic.roll()
        assert list(beside.reader.read())
        beside.topic.delete_records(0, -1)
        beside.store.tick()
        beside.topic.append(b"last", b"k")
        assert len(list(beside.reader.read())) == 1
        assert beside.reading.open_files() <= 1
    beside.move()
    assert len(list(beside.reader.read())) == 1
    assert beside.reading.open_files() <= 1
    beside.store.delete_topic("t")
    assert beside.reading.topics() == []
    assert beside.reading.open_files() == 0


def test_a_thread_that_follows_a_move_hides_nothing_from_another(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two steps of one thread, the new place and the listing there, another one reads."""
    look, seen = follower.PartitionFollower._look, list[list[int]]()

    def look_slowly(self: follower.PartitionFollower) -> None:
        assert self.segments(), "an empty log is published"
        if len(seen) < 2:
            seen.append([])
            with suppress(errors.StratalogError):
                seen[-1] += [segment.base_offset for segment in self.segments()]
        look(self)

    beside.move()
    monkeypatch.setattr(follower.PartitionFollower, "_look", look_slowly)
    assert len(list(beside.reader.read())) == 17
    assert all(seen)


def test_changes_to_a_topic_are_seen(beside: Beside) -> None:
    beside.store.add_partitions("t", 2)
    beside.store.alter_topic("t", {"retention.ms": 5000})
    beside.topic.append(b"there", b"k", partition=1)
    assert beside.reader.partitions == 2
    assert beside.reader.config.retention_ms == 5000
    assert [record.value for record in beside.reader.read(1)] == [b"there"]
    assert beside.reader.scan().read_all().num_rows == 18


@pytest.mark.parametrize("number", range(1, 12))
def test_a_topic_that_is_created_while_the_directories_are_listed(beside: Beside, number: int) -> None:
    def create() -> None:
        beside.store.create_topic("u", 3, {"retention.ms": 5000})

    beside.at_call(number, create)
    names = beside.reading.topics()
    beside.fs.before_call = None
    if "u" in names:
        entry = beside.reading.partitions.entries["u"]
        assert (entry.partitions, len(entry.directories), entry.foreign) == (3, 3, False)
    assert beside.reading.topic("u").config.retention_ms == 5000


@pytest.mark.parametrize("number", range(1, 12))
def test_a_topic_that_is_deleted_while_the_directories_are_listed(beside: Beside, number: int) -> None:
    beside.at_call(number, lambda: beside.store.delete_topic("t"))
    names = beside.reading.topics()
    beside.fs.before_call = None
    with pytest.raises(errors.UnknownTopicError):
        beside.reading.topic("t").high_watermark()
    assert names in ([], ["t"])


def test_verify_beside_a_compaction_finds_no_damage(beside: Beside) -> None:
    done: list[int] = []

    def progress(*_: object) -> None:
        if not done:
            done.append(1)
            beside.store.compact("t", force=True)

    report = stratalog.verify(beside.reading, progress=progress)
    assert report.ok, report.damages
    assert done


@pytest.mark.parametrize("how", ["topic", "records"])
def test_a_reader_of_an_archive_alone_is_told_of_a_deletion(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_only, "FRESH_S", 0.0)
    with stratalog.open(tmp_path / "log", background=False) as store:
        settings = {"remote.storage.enable": True, "local.retention.ms": 0, "file.delete.delay.ms": 0}
        topic = store.create_topic("t", 1, {**settings, "retention.ms": -1})
        for _ in range(3):
            topic.append_many([Record(b"v", timestamp=1000)] * 4)
            topic.roll()
        store.archive()
        store.archive()
        logs = ReadOnlyLogs(BrokerConfig.parse({}), archive=f"file://{tmp_path}/log.archive")
        reading = read_records(logs.view("t", 0), 0)
        assert next(reading).offset == 0
        if how == "topic":
            store.delete_topic("t")
        else:
            topic.delete_records(0, -1)
        with pytest.raises((errors.UnknownTopicError, errors.OffsetOutOfRangeError)):
            list(reading)
        logs.close()


def test_an_answer_of_the_archive_is_not_compared_with_a_newer_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread asks the archive, the holder archives more and another thread reads the new copy."""
    tiered = Tiered()
    with tiered.open():
        tiered.create()
        tiered.seal()
        tiered.leave()
        with stratalog.open(
            "/data/log", fs=tiered.fs, clock=tiered.clock, objects=tiered.cloud, read_only=True
        ) as reading:
            topic, asked = reading.topic(TOPIC), list[int]()
            assert topic.high_watermark() == RECORDS
            manifest = PartitionArchive.manifest

            def ask(self: PartitionArchive, *, refresh: bool = False) -> Any:
                found = manifest(self, refresh=refresh)
                if not asked and threading.current_thread() is ours:
                    asked.append(1)
                    Running(tiered.seal).result()
                    Running(tiered.leave).result()
                    Running(topic.high_watermark).result()  # which does not wait for the archive
                return found

            ours = threading.current_thread()
            monkeypatch.setattr(PartitionArchive, "manifest", ask)
            assert len(list(topic.read())) >= RECORDS
            assert asked
            assert len(list(topic.read())) == 2 * RECORDS
