"""A disk that fills up, a real one: writes are refused, reads go on, and with room everything goes on.

Whatever was acknowledged is there afterwards, verify finds nothing, and no file is left over.
"""

from __future__ import annotations

import errno
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.errors import DiskFullError, SyncFailedError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.log.names import PARTITION_FILES, parse_file
from stratalog.store.store import Store
from stratalog.testing import ManualClock
from tests.store.lifecycle_support import actions
from tests.store.small_disk import SmallDisk, small_disk

VALUE = b"v" * 900


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("stratalog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def open_on(disk: SmallDisk, clock: ManualClock | None = None) -> Store:
    return stratalog.open(disk.log, fs=disk.fs, clock=clock, background=False)


def fill_up(topic: stratalog.Topic, acknowledged: list[bytes], *, sync: bool = False) -> None:
    """Append until there is no room, in batches of one."""
    while True:
        value = b"%d:" % len(acknowledged) + VALUE
        try:
            placed = topic.append(value, b"k%d" % (len(acknowledged) % 7), sync=sync)
        except DiskFullError:
            return
        assert placed.offset == len(acknowledged)
        acknowledged.append(value)


def values(topic: stratalog.Topic) -> list[bytes | None]:
    return [record.value for record in topic.read()]


def check_sound(disk: SmallDisk, acknowledged: list[bytes]) -> None:
    """With room again: opened anew all is there, sound, and nothing besides."""
    with open_on(disk) as store:
        assert values(store.topic("t")) == acknowledged
        report = stratalog.verify(store)
        assert report.ok, report.damages
    no_orphans(disk)
    with open_on(disk) as store:
        assert values(store.topic("t")) == acknowledged


def no_orphans(disk: SmallDisk) -> None:
    """Every file in the store belongs to something."""
    assert not list(disk.log.glob("*.tmp"))
    for directory in [path for path in disk.log.iterdir() if path.is_dir()]:
        names = [path.name for path in directory.iterdir()]
        bases = {name[:20] for name in names if name.endswith(".log")}
        for name in names:
            parsed = parse_file(name)
            if parsed is None:
                assert name in PARTITION_FILES, name
            elif parsed.kind != "snapshot":
                assert parsed.suffix == "", name
                assert name[:20] in bases, name


# -- append and roll ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
def test_appends_are_refused_and_go_on(disk: SmallDisk, sync: bool) -> None:
    acknowledged: list[bytes] = []
    with open_on(disk) as store:
        topic = store.create_topic("t", config={"segment.bytes": 60_000, "key.index.enable": True})
        for pages in (200, 60):
            disk.leave(pages)
            fill_up(topic, acknowledged, sync=sync)
            for _ in range(3):
                with pytest.raises(DiskFullError):
                    topic.append(VALUE * 5, sync=sync)
            with pytest.raises(DiskFullError):
                topic.append_many([Record(VALUE) for _ in range(20)])
            # Reads go on: here, by key and time, and for somebody beside.
            assert values(topic) == acknowledged
            latest = topic.get(b"k3")
            assert latest is not None
            assert latest.value == max(
                (value for at, value in enumerate(acknowledged) if at % 7 == 3),
                key=lambda value: int(value.split(b":")[0]),
            )
            with stratalog.open(disk.log, fs=disk.fs, read_only=True) as beside:
                assert values(beside.topic("t")) == acknowledged
            store.tick()
            disk.free()
            value = b"%d:" % len(acknowledged) + VALUE
            assert topic.append(value, b"k0", sync=True).offset == len(acknowledged)
            acknowledged.append(value)
            topic.flush()
    check_sound(disk, acknowledged)


@pytest.mark.parametrize("pages", range(7))
def test_a_roll_without_room(disk: SmallDisk, pages: int) -> None:
    """So many pages are free when a segment is to be sealed: each of its files in turn finds no room."""
    acknowledged: list[bytes] = []
    with open_on(disk) as store:
        topic = store.create_topic("t", config={"key.index.enable": True, "index.interval.bytes": 100})
        for at in range(20):
            acknowledged.append(b"%d" % at)
            topic.append(acknowledged[-1], b"k")
        disk.leave(pages)
        rolled = 0
        for _ in range(3):
            try:
                rolled += topic.roll()
            except DiskFullError:
                continue
        assert values(topic) == acknowledged
        try:
            topic.append(b"20", b"k")
            acknowledged.append(b"20")
        except DiskFullError:
            pass
        assert values(topic) == acknowledged
        disk.free()
        assert topic.roll() + rolled >= 1
        value = b"%d" % len(acknowledged)
        assert topic.append(value, b"k", sync=True).offset == len(acknowledged)
        acknowledged.append(value)
    check_sound(disk, acknowledged)


@pytest.mark.parametrize("pages", range(4))
def test_stopping_without_room(disk: SmallDisk, pages: int) -> None:
    acknowledged: list[bytes] = []
    store = open_on(disk)
    topic = store.create_topic("t", config={"segment.bytes": 60_000})
    disk.leave(disk.pages // 4)
    fill_up(topic, acknowledged)
    topic.flush()
    disk.leave(pages)
    store.close()  # all is durable: what could not be written only makes the next open quick
    # Nothing is held any more, and the next one serves what is there even now.
    with stratalog.open(disk.log, fs=disk.fs, read_only=True) as beside:
        assert values(beside.topic("t")) == acknowledged
    disk.free()
    check_sound(disk, acknowledged)


def test_stopping_without_room_tells_a_failed_sync() -> None:
    """No room for the files of a clean stop, and the records cannot be synced: that is what is raised."""
    failing = FailingFileSystem(MemoryFileSystem())
    store = stratalog.open("/log", fs=failing, background=False)
    store.create_topic("t").append(b"0")
    failing.inject(Fault("pwrite", error=errno.ENOSPC))
    failing.inject(Fault("sync", "*.log"))
    with pytest.raises(SyncFailedError, match="t-0"):
        store.close()


def test_no_store_is_open_without_its_lock() -> None:
    failing = FailingFileSystem(MemoryFileSystem())
    with stratalog.open("/log", fs=failing, background=False) as store:
        store.create_topic("t")
    failing.inject(Fault("lock", error=errno.ENOSPC))
    with pytest.raises(DiskFullError, match=r"\.lock"):
        stratalog.open("/log", fs=failing, background=False)


KILLED = """
import os, sys, stratalog
from stratalog.errors import DiskFullError, SyncFailedError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
store = stratalog.open(sys.argv[1], background=False)
topic = store.create_topic("t", config={"segment.bytes": 60_000})
print("ready", flush=True)
sys.stdin.readline()
at = 0
while at < int(sys.argv[2]):
    try:
        topic.append(b"%d:" % at + b"v" * 900)
        at += 1
    except DiskFullError:
        break
print(at, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_starting_without_room_after_a_kill(disk: SmallDisk, pages: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(disk.log), "100000" if disk.real else "400"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    disk.leave(disk.pages // 4)
    child.stdin.write("go\n")
    child.stdin.flush()
    count = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.communicate()
    acknowledged = [b"%d:" % at + VALUE for at in range(count)]
    disk.leave(pages)
    with stratalog.open(disk.log, fs=disk.fs, read_only=True) as beside:
        assert values(beside.topic("t")) == acknowledged
    with open_on(disk) as store:
        assert values(store.topic("t")) == acknowledged
        with pytest.raises(DiskFullError):
            store.topic("t").append(VALUE * 30)
        disk.free()
        value = b"%d:" % count + VALUE
        assert store.topic("t").append(value).offset == count
        acknowledged.append(value)
    check_sound(disk, acknowledged)


# -- deletion ----------------------------------------------------------------------------------------------


def test_retention_makes_room_on_a_full_disk(disk: SmallDisk) -> None:
    clock = ManualClock()
    acknowledged: list[bytes] = []
    with open_on(disk, clock) as store:
        topic = store.create_topic("t", config={"segment.bytes": 60_000, "retention.segments": 2})
        disk.leave(disk.pages // 2)
        fill_up(topic, acknowledged)
        disk.leave(0)
        segments = topic.segments()
        report = store.retain()
        assert report.notes == ()
        gone = [base for action, base in actions(report) if action == "delete"]
        assert gone == [segment.base_offset for segment in segments[:-3]]
        start = topic.log_start_offset()
        assert start == segments[-3].base_offset
        assert values(topic) == acknowledged[start:]
        with pytest.raises(DiskFullError):
            topic.append(VALUE * 10)
        clock.advance(60_000)
        store.tick()
        assert disk.free_pages() > 20
        value = b"%d:" % len(acknowledged) + VALUE
        assert topic.append(value, sync=True).offset == len(acknowledged)
        acknowledged.append(value)
    disk.free()
    with open_on(disk, clock) as store:
        assert store.topic("t").log_start_offset() == start
    check_sound(disk, acknowledged[start:])


def test_delete_records_without_room_does_all_or_nothing(disk: SmallDisk) -> None:
    acknowledged: list[bytes] = []
    with open_on(disk) as store:
        topic = store.create_topic("t", config={"segment.records": 10, "file.delete.delay.ms": 0})
        for at in range(45):
            acknowledged.append(b"%d" % at)
            topic.append(acknowledged[-1])
        disk.leave(0)
        with pytest.raises(DiskFullError):
            topic.delete_records(0, 15)
        assert topic.log_start_offset() == 0
        assert values(topic) == acknowledged
        assert topic.delete_records(0, 20) == 20
        assert values(topic) == acknowledged[20:]
        disk.free()
        assert topic.delete_records(0, 25) == 25
        store.tick()
    check_sound(disk, acknowledged[25:])


# -- compaction --------------------------------------------------------------------------------------------

COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": 100_000,
    "min.cleanable.dirty.ratio": 0,
    "cleaner.min.segment.age.ms": 0,
    "key.index.enable": True,
    "file.delete.delay.ms": 0,
}


@pytest.mark.parametrize("pages", [0, 1, 3, 10, 26, 27, 28, 29, 30, 31, 32, 33, 40, 60])
def test_compaction_without_room(disk: SmallDisk, pages: int) -> None:
    latest: dict[bytes, bytes] = {}
    with open_on(disk) as store:
        topic = store.create_topic("t", config=COMPACT)
        for at in range(700):
            key = b"k%d" % (at % 350)
            latest[key] = b"%d:" % at + VALUE
            topic.append(latest[key], key)
        topic.roll()
        before = values(topic)
        disk.leave(pages)
        report = store.compact(force=True)
        failed = any("compaction failed" in note for note in report.notes)
        if failed:
            assert any("space" in note for note in report.notes), report.notes
        assert failed or not report.notes
        assert not list(disk.log.rglob("*.cleaned"))
        assert not list(disk.log.rglob("*.swap"))
        now = values(topic)
        assert now == sorted(now, key=lambda value: int((value or b"").split(b":")[0]))
        assert set(latest.values()) <= set(now) <= set(before)
        for key in (b"k0", b"k17", b"k349"):
            found = topic.get(key)
            assert found is not None
            assert found.value == latest[key]
        disk.free()
        store.tick()
        assert store.compact(force=True).notes == ()
        assert set(values(topic)) == set(latest.values())
        assert topic.append(b"on", b"new", sync=True).offset == 700
        store.tick()
        after = [value or b"" for value in values(topic)]
    check_sound(disk, after)


def test_the_store_grows_and_compacts_in_a_disk_it_fills(disk: SmallDisk) -> None:
    """Appends and compactions by turns with hardly any room: nothing acknowledged is ever lost."""
    latest: dict[bytes, int] = {}
    refused = compacted = 0
    with open_on(disk) as store:
        topic = store.create_topic("t", config={**COMPACT, "segment.bytes": 40_000})
        disk.leave(150)
        for at in range(1500):
            key = b"k%d" % (at * 7 % 60)
            try:
                latest[key] = topic.append(VALUE, key).offset
            except DiskFullError:
                refused += 1
                assert store.compact(force=True).notes or disk.free_pages()
                disk.leave(disk.free_pages() + 30)  # room for one rewritten segment
                compacted += bool(store.compact(force=True).compactions)
                store.tick()
                disk.leave(max(0, disk.free_pages() - 30))
        assert refused
        assert compacted
        for key, offset in latest.items():
            found = topic.get(key)
            assert found is not None
            assert found.offset == offset
        disk.free()
        store.compact(force=True)
        store.tick()
        left = [value or b"" for value in values(topic)]
        offsets = {record.offset for record in topic.read()}
    assert set(latest.values()) <= offsets
    check_sound(disk, left)


# -- topics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pages", range(5))
def test_a_topic_without_room(disk: SmallDisk, pages: int) -> None:
    with open_on(disk) as store:
        topic = store.create_topic("t")
        topic.append(b"0")
        disk.leave(pages)
        made = False
        try:
            store.create_topic("u", 3)
            made = True
        except DiskFullError:
            pass
        assert values(topic) == [b"0"]
        disk.free()
        if not made and "u" in store.topics():
            store.delete_topic("u")
        if not made:
            store.create_topic("u", 3)
        for partition in range(3):
            store.topic("u").append(b"u", partition=partition)
    check_sound(disk, [b"0"])


# -- archive -----------------------------------------------------------------------------------------------

ARCHIVED = {
    "remote.storage.enable": True,
    "segment.records": 20,
    "retention.ms": -1,
    "local.retention.ms": -1,
    "file.delete.delay.ms": 0,
    "key.index.enable": True,
}


def everything_archived(store: Store, clock: ManualClock, count: int) -> None:
    """With room: all sealed segments go up, then leave, and are read from there."""
    assert store.archive().notes == ()
    store.alter_topic("t", {"local.retention.ms": 1})
    clock.advance(60_000)
    store.archive()
    store.tick()
    topic = store.topic("t")
    assert {segment.state for segment in topic.segments()[:-1]} == {stratalog.SegmentState.ARCHIVED}
    assert len(values(topic)) == count


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 5, 8, 12, 20, 40])
def test_an_archive_without_room(disk: SmallDisk, tmp_path: Path, pages: int) -> None:
    """The archive's disk is full: what is here stays here until it is safely there."""
    clock = ManualClock()
    config = {"log.archive.url": str(disk.path / "archive"), "log.archive.threads": 1}
    with stratalog.open(tmp_path / "log", config, clock=clock, background=False) as store:
        topic = store.create_topic("t", config=ARCHIVED)
        acknowledged = [b"%d:" % at + VALUE for at in range(130)]
        for at, value in enumerate(acknowledged):
            topic.append(value, b"k%d" % (at % 9))
        disk.leave(pages)
        store.alter_topic("t", {"local.retention.ms": 1})
        for _ in range(3):
            clock.advance(60_000)
            report = store.archive()
            assert not report.notes or "space" in report.notes[0], report.notes
            assert values(topic) == acknowledged
        assert report.notes or pages >= 40 or not disk.real
        assert topic.append(b"on", b"k").offset == 130  # this disk has room
        disk.free()
        everything_archived(store, clock, 131)
        found = topic.get(b"k3")
        assert found is not None
        assert found.value == acknowledged[129]
        report_of_all = stratalog.verify(store)
        assert report_of_all.ok, report_of_all.damages
    with stratalog.open(tmp_path / "log", config, clock=clock, background=False) as store:
        assert values(store.topic("t")) == [*acknowledged, b"on"]


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 4])
def test_a_store_without_room_is_archived(disk: SmallDisk, tmp_path: Path, pages: int) -> None:
    """The store's own disk is full: the archive is how it gets room again, or it stays as it is."""
    clock = ManualClock()
    config = {"log.archive.url": str(tmp_path / "archive"), "log.archive.threads": 1}
    with stratalog.open(disk.log, config, fs=disk.fs, clock=clock, background=False) as store:
        topic = store.create_topic("t", config=ARCHIVED)
        acknowledged = [b"%d:" % at + VALUE for at in range(130)]
        for at, value in enumerate(acknowledged):
            topic.append(value, b"k%d" % (at % 9))
        store.alter_topic("t", {"local.retention.ms": 1})
        disk.leave(pages)
        for _ in range(3):
            clock.advance(60_000)
            report = store.archive()
            store.tick()
            assert not report.notes or "space" in report.notes[0], report.notes
            assert values(topic) == acknowledged
        disk.free()
        everything_archived(store, clock, 130)
    with stratalog.open(disk.log, config, fs=disk.fs, clock=clock, background=False) as store:
        assert values(store.topic("t")) == acknowledged
        assert stratalog.verify(store).ok
