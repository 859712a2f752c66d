"""Listing offsets, and waiting for the ends of a log, by public names only: what a network server uses."""

from __future__ import annotations

import asyncio
import random
import threading
from functools import partial
from pathlib import Path

import pytest

import stratalog
from stratalog import OffsetSpec, Record, Topic, errors
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.log.write.log_end import Completion
from tests.log.interleaved import interleave, lines
from tests.store.pausing import Running
from tests.store.test_door import NOW, make_batch
from tests.store.test_fetch import ISOLATIONS, Workload
from tests.store.test_produce_defects import PausingFileSystem
from tests.store.tiered import Tiered


def when_done(completion: Completion) -> asyncio.Future[None]:
    """What an event loop awaits; no thread waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def tell(done: Completion) -> None:
        if done.error is None:
            future.set_result(None)
        else:
            future.set_exception(done.error)

    completion.add_callback(lambda done: loop.call_soon_threadsafe(tell, done))
    return future


def test_an_event_loop_waits_for_every_end_without_threads(tmp_path: Path) -> None:
    fs = PausingFileSystem()
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"first", sync=True)

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            before = threading.active_count()
            high = [when_done(topic.when(0, "high_watermark", 2)) for _ in range(100)]
            stable = [when_done(topic.when(0, "last_stable_offset", 2)) for _ in range(100)]
            synced = [when_done(topic.when(0, "synced", 2)) for _ in range(100)]
            assert threading.active_count() == before
            batch = make_batch([b"a"], producer_id=7, epoch=0, sequence=0, transactional=True)
            await loop.run_in_executor(None, lambda: topic.append_batches(0, batch))
            await asyncio.wait_for(asyncio.gather(*high), 10)
            assert not any(each.done() for each in stable + synced)
            topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=True)
            await asyncio.wait_for(asyncio.gather(*stable), 10)
            assert not any(each.done() for each in synced)
            fs.paused = True
            durable = when_done(topic.durable(0, 3))
            assert not durable.done()
            fs.go_on.set()
            await asyncio.wait_for(asyncio.gather(durable, *synced), 10)

        asyncio.run(serve())
        assert topic.durable(0, 3).done


def test_a_wait_that_is_cancelled_is_forgotten() -> None:
    with stratalog.open("/d", fs=MemoryFileSystem(), background=False) as store:
        topic = store.create_topic("t")
        told: list[Completion] = []
        completion = topic.when(0, "high_watermark", 1)
        completion.add_callback(told.append)
        completion.cancel()
        topic.append(b"x")
        assert not told
        assert not store.partitions.writer("t", 0).ends.waiting
        with pytest.raises(errors.InvalidArgumentError, match="use one of high_watermark, last_stable"):
            topic.when(0, "end", 1)  # type: ignore[arg-type]


def test_a_thread_that_waits_goes_on_when_the_wait_is_cancelled() -> None:
    with stratalog.open("/d", fs=MemoryFileSystem(), background=False) as store:
        topic = store.create_topic("t")
        completion = topic.when(0, "high_watermark", 1)
        waiting = Running(completion.wait)
        completion.cancel()
        assert waiting.result() is False
        assert completion.wait() is False
        topic.append(b"x")
        assert not completion.done
        done = topic.when(0, "high_watermark", 1)
        done.cancel()
        assert done.wait()


def test_the_first_outcome_of_a_wait_is_its_only_one() -> None:
    for line in lines():
        told: list[BaseException | None] = []
        completion, failure = Completion("synced", 1, {}), errors.ClosedError("closed")
        completion.add_callback(lambda done, told=told: told.append(done.error))  # type: ignore[misc]
        fail = partial(completion.complete, failure)
        if not interleave("write/log_end.py", completion.complete, fail, line):
            break
        assert told == [completion.error]
    assert line > 1


def test_durable_of_what_is_not_written_yet_waits_for_a_later_sync() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t", 2)
        for partition in (0, 1):
            topic.append(b"x", partition=partition)
        ahead, cancelled = topic.durable(0, 3), topic.durable(0, 3)
        cancelled.cancel()
        assert topic.durable(0, 1).wait(10)
        assert topic.durable(1, 1).wait(10)
        syncs = sum(call.startswith("sync ") for call in fs.calls)
        topic.append(b"y", partition=1, sync=True)
        assert sum(call.startswith("sync ") for call in fs.calls) == syncs + 1
        assert not ahead.done
        topic.append_many([Record(b"y"), Record(b"z")], partition=0, sync=True)
        assert ahead.wait(10)
        assert not cancelled.done


def test_no_wait_for_the_synced_end_begins_after_a_failed_sync() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    store = stratalog.open("/d", fs=fs, background=False)
    topic = store.create_topic("t")
    topic.append(b"x", sync=True)
    topic.append(b"y")
    fs.inject(Fault("sync", "*.log"))
    with pytest.raises(errors.StorageError):
        topic.flush()
    for end in (2, 5):
        for waiting in (topic.durable(0, end), topic.when(0, "synced", end)):
            with pytest.raises(errors.ReadOnlyError, match="sync failed"):
                waiting.wait(10)
    assert topic.durable(0, 1).wait(0)
    store.close()


def test_waits_end_when_the_store_closes_and_go_on_after_a_move() -> None:
    store = stratalog.open(["/one", "/two"], fs=MemoryFileSystem(), background=False)
    topic = store.create_topic("t")
    waiting = topic.when(0, "high_watermark", 1)
    store.move_partition("t", 0, "/two" if "/one/" in topic.segments(0)[0].path else "/one")
    assert isinstance(waiting.error, errors.ClosedError)
    waiting = topic.when(0, "high_watermark", 1)
    topic.append(b"x")
    assert waiting.wait(0)
    waiting = topic.when(0, "high_watermark", 2)
    store.close()
    with pytest.raises(errors.ClosedError):
        waiting.wait(10)
    with pytest.raises(errors.ClosedError):
        topic.when(0, "synced", 1)
    with pytest.raises(errors.ClosedError):
        topic.durable(0, 1)


def newest(topic: Topic, isolation: str) -> tuple[int, int] | None:
    """The first of the records with the largest timestamp, by reading all of them."""
    found = [(record.timestamp or 0, -record.offset) for record in topic.read(0, isolation=isolation)]
    if not found:
        return None
    timestamp, offset = max(found)
    return -offset, timestamp


def check_listed(topic: Topic, rng: random.Random) -> None:
    for isolation in ISOLATIONS:
        found = topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP, isolation=isolation)
        assert (found and found[:2]) == newest(topic, isolation)
        records = list(topic.read(0, isolation=isolation))
        for _ in range(5):
            moment = NOW + rng.randrange(-10, 10**6)
            first = next((each for each in records if (each.timestamp or 0) >= moment), None)
            listed = topic.list_offset(0, moment, isolation=isolation)
            assert (listed and listed[:2]) == (first and (first.offset, first.timestamp))
            assert topic.offset_for_time(0, moment, isolation=isolation) == (first and first.offset)
        latest = topic.list_offset(0, OffsetSpec.LATEST, isolation=isolation)
        assert latest == (topic.high_watermark(0, isolation), -1, 0)
        assert topic.list_offset(0, OffsetSpec.EARLIEST, isolation=isolation) == (
            topic.log_start_offset(),
            -1,
            0,
        )


@pytest.mark.parametrize("seed", range(5))
def test_offsets_are_listed_as_reading_finds_them(seed: int) -> None:
    rng, fs = random.Random(seed), MemoryFileSystem()
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t", config={"cleanup.policy": "compact", "index.interval.bytes": 200})
        assert topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP) is None
        work = Workload(topic, rng)
        with stratalog.open("/d", fs=fs, read_only=True) as beside:
            for _ in range(3):
                work.run(20)
                check_listed(topic, rng)
                check_listed(beside.topic("t"), rng)
            topic.roll()
            store.compact("t", force=True)
            check_listed(topic, rng)
            topic.delete_records(0, rng.randint(topic.log_start_offset(), topic.high_watermark()))
            check_listed(topic, rng)
        assert topic.list_offset(0, OffsetSpec.EARLIEST_LOCAL) == topic.list_offset(0, OffsetSpec.EARLIEST)
        assert topic.list_offset(0, OffsetSpec.LATEST_TIERED) is None
        with pytest.raises(errors.InvalidArgumentError, match=r"called -6.*-5 \(LATEST_TIERED\)"):
            topic.list_offset(0, -6)


def test_the_first_of_equal_timestamps_is_the_newest() -> None:
    with stratalog.open("/d", fs=MemoryFileSystem(), background=False) as store:
        topic = store.create_topic("t")
        for timestamps in ([5, 9, 9], [1], [9, 8]):
            topic.append_many([Record(b"x", timestamp=NOW + at) for at in timestamps])
            topic.roll()
        assert topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP) == (1, NOW + 9, 0)


def test_offsets_here_and_in_the_archive() -> None:
    tiered = Tiered()
    tiered.open()
    topic = tiered.create()
    tiered.seal(3)
    tiered.archive()
    assert topic.list_offset(0, OffsetSpec.LATEST_TIERED) == (35, -1, 0)
    assert topic.list_offset(0, OffsetSpec.EARLIEST_LOCAL) == (0, -1, 0)
    tiered.leave()
    tiered.append(4)
    assert topic.list_offset(0, OffsetSpec.LATEST_TIERED) == (35, -1, 0)
    assert topic.list_offset(0, OffsetSpec.EARLIEST_LOCAL) == (36, -1, 0)
    assert topic.list_offset(0, OffsetSpec.EARLIEST) == (0, -1, 0)
    assert topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP) == (39, tiered.records[39].timestamp, 0)
    tiered.close()


def test_epochs_of_a_log_that_another_broker_led(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t")
        topic.append_many([Record(b"x", timestamp=NOW + at) for at in range(10)])
        assert topic.end_of_epoch(0, 0) == (0, 10)
        assert topic.end_of_epoch(0, 1) == (-1, -1)
    (tmp_path / "data/t-0/leader-epoch-checkpoint").write_bytes(b"0\n2\n0 0\n4 10\n")
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.topic("t")
        topic.append_many([Record(b"x", timestamp=NOW + at) for at in range(10, 15)])
        assert topic.end_of_epoch(0, 0) == (0, 10)
        assert topic.end_of_epoch(0, 3) == (0, 10)
        assert topic.end_of_epoch(0, 4) == (4, 15)
        assert topic.end_of_epoch(0, 5) == (-1, -1)
        assert topic.list_offset(0, NOW + 3) == (3, NOW + 3, 0)
        assert topic.list_offset(0, NOW + 12) == (12, NOW + 12, 4)
        assert topic.list_offset(0, OffsetSpec.LATEST) == (15, -1, 4)
        assert topic.list_offset(0, OffsetSpec.EARLIEST) == (0, -1, 0)
        assert topic.list_offset(0, OffsetSpec.MAX_TIMESTAMP) == (14, NOW + 14, 4)
