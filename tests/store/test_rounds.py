"""Background rounds, flushes and closing over many partitions: each partition's failure is its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.errors import FormatError, InvalidArgumentError, StorageError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.log.write.writer import PartitionWriter
from stratalog.testing.clock import ManualClock

CHECKPOINT_MS = 60_000


def opened(fs: Any, clock: ManualClock) -> Store:
    return stratalog.open("/data", fs=fs, clock=clock, background=False)


def broken_for(patch: pytest.MonkeyPatch, method: str, topic: str, error: Exception) -> list[str]:
    """Make a method fail for one topic; the topics for which it was called otherwise."""
    original, called = getattr(PartitionWriter, method), []

    def fails(self: PartitionWriter, *args: Any, **kwargs: Any) -> Any:
        if self.topic == topic:
            raise error
        called.append(self.topic)
        return original(self, *args, **kwargs)

    patch.setattr(PartitionWriter, method, fails)
    return called


@pytest.mark.parametrize("error", [FormatError("damaged"), ValueError("surprise"), FileNotFoundError("gone")])
def test_one_partition_s_failure_stops_neither_the_others_nor_the_checkpoint(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    with opened(fs, clock) as store:
        for name in ("a", "b"):
            store.create_topic(name, config={"flush.ms": 100}).append(b"x")
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "stratalog"):
            called = broken_for(patch, "tick", "a", error)
            for _ in range(3):
                clock.advance(CHECKPOINT_MS)
                store.topic("b").append(b"y")
                store.tick()
        assert called == ["b"] * 3
        assert fs.read_file("/data/recovery-point-offset-checkpoint") == b"0\n2\na 0 0\nb 0 4\n"
        assert len([line for line in caplog.messages if "a-0" in line]) == 1  # once, not with every tick


def test_a_failure_that_comes_back_is_reported_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with opened(MemoryFileSystem(), clock) as store, caplog.at_level(logging.WARNING, "stratalog"):
        topic = store.create_topic("a")
        for _ in range(2):
            with monkeypatch.context() as patch:
                broken_for(patch, "tick", "a", FormatError("damaged"))
                for _ in range(2):
                    topic.append(b"x")
                    store.tick()
            topic.append(b"x")
            store.tick()
    assert len([line for line in caplog.messages if "damaged" in line]) == 2


def test_a_quiet_partition_is_not_looked_at_with_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with opened(MemoryFileSystem(), clock) as store:
        quiet = store.create_topic("quiet", config={"segment.ms": 30_000, "flush.ms": 100})
        busy = store.create_topic("busy")
        quiet.append(b"x", sync=True)
        store.tick()
        called = broken_for(monkeypatch, "tick", "none", ValueError())
        for _ in range(5):
            busy.append(b"y")
            clock.advance(100)
            store.tick()
        assert called == ["busy"] * 5
        quiet.append(b"x")
        clock.advance(100)
        store.tick()
        assert called[5:].count("quiet") == 1
        assert store.partitions.writer("quiet", 0).recovery_point == 2
        clock.advance(30_001)
        store.tick()
        assert [segment.state for segment in quiet.segments()] == ["sealed", "active"]
        quiet.append(b"x", sync=True)
        clock.advance(1)
        store.tick()
        store.alter_topic("quiet", {"segment.ms": 1})
        clock.advance(2)
        store.tick()
        assert len(quiet.segments()) == 3


def test_closing_closes_every_partition_and_lets_go_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stratalog.open(tmp_path / "data")
    for name in ("a", "b"):
        store.create_topic(name).append(b"x")
    with monkeypatch.context() as patch:
        called = broken_for(patch, "close", "a", ValueError("surprise"))
        with pytest.raises(ValueError, match="surprise"):
            store.close()
    assert called == ["b"]
    with stratalog.open(tmp_path / "data") as again:  # the lock is free
        assert [record.value for record in again.topic("b").read()] == [b"x"]
        assert [record.value for record in again.topic("a").read()] == [b"x"]


def test_a_flush_of_all_goes_on_behind_one_that_fails() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    store = opened(fs, ManualClock())
    for name in ("a", "b"):
        store.create_topic(name).append(b"x")
    fs.inject(Fault("sync", "/data/a-0/*"))
    with pytest.raises(StorageError, match="a-0"):
        store.flush()
    assert store.partitions.writer("b", 0).recovery_point == 1
    fs.heal()
    store.close()


def test_a_round_of_the_janitor_goes_on_behind_a_partition_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(MemoryFileSystem(), ManualClock()) as store:
        for name in ("a", "b"):
            topic = store.create_topic(name, config={"retention.segments": 1})
            for _ in range(3):
                topic.append(b"x")
                topic.roll()
        with monkeypatch.context() as patch:
            broken_for(patch, "advance_log_start", "a", ValueError("surprise"))
            report = store.retain()
        assert store.topic("b").log_start_offset() > 0
        assert store.topic("a").log_start_offset() == 0
        assert any("a-0" in note and "surprise" in note for note in report.notes)


def test_minus_one_deletes_up_to_the_high_watermark() -> None:
    with opened(MemoryFileSystem(), ManualClock()) as store:
        topic = store.create_topic("t")
        topic.append_many([Record(b"%d" % i) for i in range(10)])
        assert topic.delete_records(0, -1) == 10
        assert list(topic.read()) == []
        assert topic.append(b"x").offset == 10
        with pytest.raises(InvalidArgumentError):
            topic.delete_records(0, -2)
