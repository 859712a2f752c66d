"""Waiting for the ends of a log: high watermark, last stable offset, synced end."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

import stratalog
from stratalog import Store, errors
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.log.segment.segment import Segment
from stratalog.log.write.log_end import Completion, LogEnd
from stratalog.log.write.sync import Syncer
from stratalog.log.write.writer import PartitionWriter
from stratalog.store import reading
from stratalog.store.topic import Topic
from tests.store.pausing import PausingFileSystem, Running
from tests.store.test_door import make_batch


def writer_of(store: Store, topic: str = "t") -> PartitionWriter:
    return store.partitions.writer(topic, 0)


def open_transaction(topic: Topic) -> None:
    topic.append_batches(0, make_batch([b"open"], producer_id=7, epoch=0, sequence=0, transactional=True))


def commit(topic: Topic) -> None:
    topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=True)


class CountingWait:
    """Counts how often a reader goes to wait."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.began = threading.Event()
        wait = reading.wait

        def counted(*args) -> bool:
            self.calls += 1
            self.began.set()
            return wait(*args)

        patch.setattr(reading, "wait", counted)


def test_following_committed_records_times_out_while_a_transaction_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t")
        open_transaction(topic)
        counted = CountingWait(monkeypatch)
        assert list(topic.read(isolation="read_committed", follow=True, timeout_s=0.01)) == []
        assert counted.calls == 1


def test_following_committed_records_goes_on_with_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t")
        open_transaction(topic)
        counted = CountingWait(monkeypatch)
        records = topic.read(isolation="read_committed", follow=True, timeout_s=30)
        waiting = Running(lambda: next(records).value)
        assert counted.began.wait(10)
        topic.append(b"behind the open transaction")
        commit(topic)
        assert waiting.result() == b"open"
        assert counted.calls == 1


def test_what_waited_for_the_disk_is_visible_when_the_setting_goes() -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.create_topic("t", config={"flush.messages": 1})
        topic.append(b"first")
        with fs.pause_at("sync", "*.log") as pause:
            appending = Running(topic.append, b"second")
            pause.wait_until_reached()
            store.alter_topic("t", {"flush.messages": None})
            assert topic.high_watermark() == 2
        assert appending.result().offset == 1
        assert [record.value for record in topic.read()] == [b"first", b"second"]


def test_a_close_that_fails_wakes_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    store = stratalog.open("/data", fs=fs, background=False)
    topic = store.create_topic("t")
    topic.append(b"one")
    counted = CountingWait(monkeypatch)
    following = Running(lambda: list(topic.read(start=1, follow=True)))
    assert counted.began.wait(10)
    fs.inject(Fault("sync", "*.log"))
    with pytest.raises(errors.StratalogError):
        store.close()
    with pytest.raises(errors.ClosedError):
        following.result()


def test_durability_is_waited_for_apart_from_the_append(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topics = [store.create_topic(name) for name in "abc"]
        ends = [topic.append(b"x").offset + 1 for topic in topics]
        completions = [writer_of(store, name).durable(end) for name, end in zip("abc", ends, strict=True)]
        for completion in completions:
            assert completion.wait(30)
        assert [writer_of(store, name).recovery_point for name in "abc"] == ends
        assert writer_of(store, "a").durable(1).done  # already so


def test_durability_that_fails_is_told_once_to_all() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    store = stratalog.open("/data", fs=fs, background=False)
    topic = store.create_topic("t")
    topic.append(b"x")
    fs.inject(Fault("sync", "*.log"))
    writer, told = writer_of(store), threading.Event()
    first, second = writer.durable(1), writer.durable(1)
    second.add_callback(lambda _: told.set())
    for completion in (first, second):
        with pytest.raises(errors.ReadOnlyError, match="sync failed"):
            completion.wait(30)
    assert told.wait(10)
    assert not writer.ends.waiting
    with pytest.raises(errors.ReadOnlyError):
        topic.append(b"y")
    store.close()


def test_an_event_loop_waits_without_a_thread_of_its_own(tmp_path: Path) -> None:
    async def wait_for(completion: Completion) -> None:
        loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        completion.add_callback(lambda _: loop.call_soon_threadsafe(future.set_result, None))
        await asyncio.wait_for(future, 30)

    async def main(store: Store, topic: Topic) -> None:
        ends = writer_of(store).ends
        seen = [ends.when("high_watermark", offset) for offset in (1, 2)]
        stable = ends.when("last_stable_offset", 1)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, open_transaction, topic)
        await wait_for(seen[0])
        assert (seen[1].done, stable.done) == (False, False)
        await loop.run_in_executor(None, commit, topic)
        await wait_for(seen[1])
        await wait_for(stable)
        await wait_for(writer_of(store).durable(2))

    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t")
        asyncio.run(main(store, topic))
        deadline = time.monotonic() + 30
        while writer_of(store).ends.waiting and time.monotonic() < deadline:
            time.sleep(0.001)  # a wait is removed just after its callback ran, by the thread that syncs
        assert not writer_of(store).ends.waiting


def test_a_cancelled_wait_is_never_told() -> None:
    value = 0
    ends = LogEnd(0, lambda end: value)
    told: list[Completion] = []
    kept, cancelled = ends.when("synced", 5), ends.when("synced", 5)
    for completion in (kept, cancelled):
        completion.add_callback(told.append)
    cancelled.cancel()
    ends.reached("synced", 4)
    ends.reached("high_watermark", 9)
    assert not told
    ends.reached("synced", 5)
    assert told == [kept]
    assert not ends.waiting
    late: list[Completion] = []
    kept.add_callback(late.append)
    assert late == [kept]
    assert not ends.wait("synced", 6, 0.001)


def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    ends = LogEnd(0, lambda end: 0)
    completion, told = ends.when("synced", 1), threading.Event()
    completion.add_callback(lambda _: told.set())
    completion.add_callback(lambda _: 1 // 0)
    ends.reached("synced", 1)
    assert told.is_set()
    assert "a listener failed" in caplog.text


def test_an_interrupted_sync_is_no_failure_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the caller is handling an error of its own, or a sidecar was looked for in vain."""
    with stratalog.open("/data", fs=MemoryFileSystem(), background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"one")
        topic.roll()
        topic.append(b"two")
        find = Syncer.sync_sidecars

        def interrupted(self: Syncer, segment: Segment) -> None:
            find(self, segment)
            try:
                raise FileNotFoundError("no such sidecar")
            except FileNotFoundError:
                raise KeyboardInterrupt from None

        with monkeypatch.context() as patched:
            patched.setattr(Syncer, "sync_sidecars", interrupted)
            try:
                raise PermissionError("the caller's own")
            except PermissionError:
                with pytest.raises(KeyboardInterrupt):
                    topic.flush()
        assert writer_of(store).unusable is None
        topic.append(b"three", sync=True)
        assert writer_of(store).recovery_point == 3
