"""Moving a partition: appends wait and go on in the new place, reads go on, a failure changes nothing."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.errors import DiskFullError, StorageError, UnknownTopicError
from stratalog.format import batch as batches
from stratalog.fs import FailingFileSystem, Fault, FileSystem, MemoryFileSystem, RealFileSystem
from stratalog.store.catalog import Registry
from stratalog.testing.clock import ManualClock
from tests.store.pausing import PausingFileSystem, Running

OLD, NEW = "/one", "/two"


def opened(fs: Any) -> Store:
    return stratalog.open([OLD, NEW], fs=cast(FileSystem, fs), clock=ManualClock(), background=False)


def filled(store: Store, count: int = 10) -> Topic:
    topic = store.create_topic("t", 1)
    topic.append_many([Record(b"%d" % i) for i in range(count)], sync=True)
    topic.roll()
    topic.append_many([Record(b"%d" % i) for i in range(count, 2 * count)])
    return topic


def values(topic: Topic) -> list[bytes | None]:
    return [record.value for record in topic.read()]


@contextmanager
def moving(fs: PausingFileSystem, store: Store, operation: str, path: str) -> Iterator[None]:
    with fs.pause_at(operation, path) as pause:
        running = Running(store.move_partition, "t", 0, NEW)
        pause.wait_until_reached()
        yield
    running.result()


PLACES = [
    ("sync_dir", f"{NEW}/t-0*-future"),  # copying
    ("rename", f"{NEW}/t-0"),  # about to count
    ("remove_tree", f"{OLD}/t-0*"),  # counts, the old one is being removed
]

APPENDS: list[Callable[[Topic], Any]] = [
    lambda topic: topic.append(b"x").offset,
    lambda topic: topic.append(b"x", partition=0, sync=True).offset,
    lambda topic: topic.append_many([Record(b"x")])[0].offset,
    lambda topic: topic.append_many([Record(b"x")], sync=True)[0].offset,
    lambda topic: topic.end_transaction(0, producer_id=1, producer_epoch=0, commit=True).base_offset,
]


@pytest.mark.parametrize("append", APPENDS)
@pytest.mark.parametrize(("operation", "path"), PLACES)
def test_appends_wait_for_a_move(operation: str, path: str, append: Callable[[Topic], Any]) -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        topic = filled(store)
        with moving(fs, store, operation, path):
            appending = Running(append, topic)
            appending.ends_or_blocks()
        assert appending.result() == 20
        assert topic.append(b"y").offset == 21
        assert fs.list_dir(f"{NEW}/t-0")
        assert not fs.exists(f"{OLD}/t-0")


@pytest.mark.parametrize(("operation", "path"), PLACES)
def test_reads_and_followers_go_on(operation: str, path: str) -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        topic = filled(store)
        slow = topic.read()
        assert next(slow).value == b"0"
        scan = topic.scan(columns=["offset"])
        following = Running(lambda: [record.value for record in topic.read(start=19, end=22, follow=True)])
        with moving(fs, store, operation, path):
            assert values(topic) == [b"%d" % i for i in range(20)]
            following.ends_or_blocks()
        assert [record.value for record in slow] == [b"%d" % i for i in range(1, 20)]
        assert scan.read_all()["offset"].to_pylist() == list(range(20))
        topic.append(b"20")
        topic.append(b"21")
        assert following.result() == [b"19", b"20", b"21"]


def test_records_deleted_during_a_move_stay_deleted() -> None:
    disk = MemoryFileSystem()
    fs = PausingFileSystem(disk)
    store = opened(fs)
    topic = filled(store)
    with moving(fs, store, *PLACES[0]):
        deleting = Running(topic.delete_records, 0, 15)
        deleting.ends_or_blocks()
    assert deleting.result() == 15
    with opened(disk.survivor("kill", random.Random(1))) as after:
        assert after.topic("t").log_start_offset() == 15


def test_a_move_that_fails_at_any_call_leaves_the_partition_usable() -> None:
    failures = 0
    for call in range(200):
        disk = MemoryFileSystem()
        fs = FailingFileSystem(disk)
        store = opened(fs)
        topic = filled(store)
        fs.inject(Fault("mutating", f"{NEW}/*", after=call, times=1))
        try:
            store.move_partition("t", 0, NEW)
        except StorageError:
            failures += 1
        else:
            assert failures > 10
            assert disk.exists(f"{NEW}/t-0")
            return
        fs.heal()
        assert values(topic) == [b"%d" % i for i in range(20)], call
        assert topic.append(b"20", sync=True).offset == 20
        after = disk.survivor("drop", random.Random(call))
        store.close()
        for left in (after, disk):
            with opened(left) as again:
                assert values(again.topic("t")) == [b"%d" % i for i in range(21)], call
    pytest.fail("the move never succeeded")


def test_a_topic_that_is_deleted_is_no_move() -> None:
    with opened(MemoryFileSystem()) as store:
        topic = filled(store)
        store.delete_topic("t")
        store.create_topic("t")
        with pytest.raises(UnknownTopicError, match="another one was created"):
            topic.append(b"x")
        assert values(store.topic("t")) == []


class ListingFileSystem(PausingFileSystem):
    """Runs a function right after the next listing of a partition."""

    then: Callable[[], object] | None = None

    def list_dir(self, path: str) -> list[str]:
        names = self.inner.list_dir(path)
        if self.then is not None and path == f"{OLD}/t-0":
            then, self.then = self.then, None
            then()
        return names


def test_files_of_deleted_segments_that_are_removed_during_a_move_do_not_stop_it() -> None:
    fs, clock = ListingFileSystem(MemoryFileSystem()), ManualClock()
    with stratalog.open([OLD, NEW], fs=cast(FileSystem, fs), clock=clock, background=False) as store:
        topic = filled(store)
        topic.delete_records(0, 10)
        assert any(name.endswith(".deleted") for name in fs.list_dir(f"{OLD}/t-0"))
        clock.advance(120_000)
        with moving(fs, store, "make_dir", f"{NEW}/t-0*-future"):
            fs.then = lambda: Running(store.tick).ends_or_blocks()
        assert not any(name.endswith(".deleted") for name in fs.list_dir(f"{NEW}/t-0"))
        assert values(topic) == [b"%d" % i for i in range(10, 20)]


def test_a_reader_during_a_move_leaves_no_handle_behind(tmp_path: Path) -> None:
    """A handle of the old file, found again when the partition comes back, would cut what came since."""
    fs = PausingFileSystem(RealFileSystem())
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    with stratalog.open(places, fs=cast(FileSystem, fs), background=False) as store:
        topic = store.create_topic("t")
        topic.append_many([Record(b"%d" % i) for i in range(10)], sync=True)
        old = store.partitions.place("t", 0)[0].path
        new = next(path for path in places if path != old)
        with fs.pause_at("rename", f"{new}/t-0") as pause:
            running = Running(store.move_partition, "t", 0, new)
            pause.wait_until_reached()
            assert len(values(topic)) == 10
        running.result()
        assert not [path for path in store.partitions.context.handles.paths() if path.startswith(old)]
        topic.append_many([Record(b"%d" % i) for i in range(10, 20)], sync=True)
        store.move_partition("t", 0, old)
        assert values(topic) == [b"%d" % i for i in range(20)]
        assert topic.append(b"next").offset == 20


def test_a_move_that_is_published_stays_whatever_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(MemoryFileSystem()) as store:
        topic = filled(store)
        put = Registry.put

        def put_and_interrupt(self: Registry, *args: Any) -> None:
            put(self, *args)
            assert Running(lambda: topic.append_many([Record(b"new")], sync=True)[0].offset).result() == 20
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Registry, "put", put_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.move_partition("t", 0, NEW)
        assert store.partitions.place("t", 0)[0].path == NEW
        assert topic.append(b"next").offset == 21
        assert values(topic)[20:] == [b"new", b"next"]
        assert not store.partitions.context.fs.exists(f"{OLD}/t-0")


def abort_two_records(topic: Topic) -> None:
    """Append an aborted transaction of two records."""
    encoded, _ = batches.encode_records(
        [Record(b"aborted", key=b"k")] * 2,
        options=batches.BatchOptions(
            base_offset=0,
            leader_epoch=0,
            now_ms=ManualClock().now_ms(),
            max_bytes=1 << 20,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        ),
    )
    topic.append_batches(0, bytes(encoded.data), sync=True)
    topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=False)


def test_a_move_that_fails_on_a_full_disk_keeps_aborted_records_out_of_sight() -> None:
    """The index of aborted transactions could not be written; the store was opened after a clean stop."""
    fs = FailingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        filled(store)
    store = opened(fs)
    topic = store.topic("t")
    topic.roll()
    store.flush()
    fs.inject(Fault("create", f"{OLD}/t-0/*index", errno.ENOSPC))
    fs.inject(Fault("pwrite", f"{OLD}/t-0/*index", errno.ENOSPC))
    abort_two_records(topic)
    expected = [b"%d" % i for i in range(20)]
    assert [each.value for each in topic.read(0, isolation="read_committed")] == expected
    with pytest.raises(DiskFullError):
        store.move_partition("t", 0, NEW)
    assert [each.value for each in topic.read(0, isolation="read_committed")] == expected
    fs.heal()
    topic.append(b"after")
    store.close()
    with opened(fs) as store:
        found = [each.value for each in store.topic("t").read(0, isolation="read_committed")]
        assert found == [*expected, b"after"]


def test_a_file_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    with stratalog.open(places, background=False) as store:
        topic = filled(store)
        here = next(place for place in places if (place / "t-0").exists())
        there = places[1 - places.index(here)]
        (here / "t-0" / "notes").symlink_to(tmp_path / "nowhere")
        with pytest.raises(StorageError, match=r"t-0/notes is gone"):
            store.move_partition("t", 0, str(there))
        topic.append(b"20")
        assert values(topic) == [b"%d" % i for i in range(21)]


def test_a_move_keeps_the_time_that_retention_goes_by() -> None:
    day_ms, clock = 86_400_000, ManualClock()
    fs = MemoryFileSystem(clock=clock.now_ns)
    with stratalog.open([OLD, NEW], fs=fs, clock=clock, background=False) as store:
        topic = store.create_topic("t", 1, {"message.timestamp.after.max.ms": 2**62})
        topic.append(b"of a wrong clock", timestamp=clock.now_ms() + 300 * day_ms)
        topic.roll()
        for day in range(1, 9):
            clock.advance(day_ms)
            store.tick()
            store.retain()
            if day == 5:
                store.move_partition("t", 0, NEW)
        assert topic.log_start_offset() == 1
