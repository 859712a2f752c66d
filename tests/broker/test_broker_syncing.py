"""What one turn of the loop writes is synced together, and nothing is acknowledged before that."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import stratalog
from stratalog import Topic
from stratalog.broker.loop import READ, EventLoop
from stratalog.broker.syncing import Syncs
from stratalog.errors import ReadOnlyError, StorageError
from stratalog.fs import RealFileSystem
from stratalog.fs.failing import FailingFileSystem, Fault
from tests.store.test_door import make_batch

Told = list[tuple[str, BaseException | None, bool]]
"""Who was told, why it failed, and whether everything was on disk then."""


def write_in_one_turn(topic: Topic, *names: str) -> Told:
    """Append for each name in one turn of a loop; return what they were told."""
    loop = EventLoop()
    told: Told = []
    syncs = Syncs(loop)

    def tell(name: str, error: BaseException | None) -> None:
        told.append((name, error, error is None and topic.when(0, "synced", len(names)).done))
        if len(told) == len(names):
            loop.stop()

    def turn() -> None:
        for name in names:
            placed = topic.append_batches(0, make_batch([name.encode()]), wait=False)
            assert placed.flush_due
            syncs.add(topic, 0, placed.last_offset + 1, lambda error, name=name: tell(name, error))  # type: ignore[misc]
        assert told == []

    loop.call_soon(turn)
    loop.run()
    loop.close()
    return told


def test_all_of_a_turn_are_told_in_order_when_the_last_is_on_disk(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("safe", config={"flush.messages": 1})
        told = write_in_one_turn(topic, "a", "b", "c")
        assert told == [("a", None, True), ("b", None, True), ("c", None, True)]


def test_a_sync_that_fails_is_told_to_all_and_to_those_after_them(tmp_path: Path) -> None:
    fs = FailingFileSystem(RealFileSystem())
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        topic = store.create_topic("safe", config={"flush.messages": 1})
        fs.inject(Fault("sync", "*.log"))
        told = write_in_one_turn(topic, "a", "b")
        assert [name for name, _, _ in told] == ["a", "b"]
        assert all(isinstance(error, StorageError | ReadOnlyError) for _, error, _ in told), told
        fs.heal()


def test_an_error_of_one_waiter_is_not_the_others(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("safe", config={"flush.messages": 1})
        loop = EventLoop()
        syncs = Syncs(loop)
        told: list[BaseException | None] = []

        def wrong(_: BaseException | None) -> None:
            raise RuntimeError("a mistake")

        def right(error: BaseException | None) -> None:
            told.append(error)
            loop.stop()

        def turn() -> None:
            placed = topic.append_batches(0, make_batch([b"v"]), wait=False)
            for waiter in (wrong, None, right):
                syncs.add(topic, 0, placed.last_offset + 1, waiter)

        loop.call_soon(turn)
        loop.run()
        loop.close()
        assert told == [None]


def test_a_pause_comes_when_nothing_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.broker.loop.PATIENCE_S", 60.0)
    loop = EventLoop()
    told: list[str] = []
    ours, theirs = socket.socketpair()

    def ready(_: int) -> None:
        told.append("ready")
        if len(told) == 3:
            ours.recv(10)

    with ours, theirs:
        theirs.send(b"x")
        loop.watch(ours.fileno(), READ, ready)
        loop.at_pause(lambda: told.append("paused"))
        loop.call_later(0.05, loop.stop)
        loop.run()
        loop.close()
    assert told == ["ready"] * 3 + ["paused"]


def test_a_pause_that_does_not_come_is_not_waited_for() -> None:
    loop = EventLoop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        loop.watch(ours.fileno(), READ, lambda _: None)  # ready for ever
        loop.at_pause(loop.stop)
        loop.run()
        loop.close()
