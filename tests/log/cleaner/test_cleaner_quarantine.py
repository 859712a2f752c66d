"""Damaged segments: left alone and named, and nothing that they may hold comes back from the dead."""

from __future__ import annotations

import errno
import threading

import pytest

from stratalog.errors import DiskFullError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.log import names
from stratalog.log.clean import rewriting
from stratalog.testing import ManualClock
from tests.log.cleaner.support import Log, Seen, compacted, latest


def four_segments(**settings: object) -> Log:
    """Segments 0-3, 4-7, 8-11 and 12-15; every key of one is in all of them."""
    log = Log(compacted(**{"segment_bytes": 1 << 16, "delete_retention_ms": 0, **settings}))
    for n in range(4):
        log.puts([(b"k%d" % i, b"v%d" % n) for i in range(4)])
        log.roll()
    return log


def flip(log: Log, base: int, at: int = -5, kind: str = "log") -> None:
    path = f"{log.directory}/{base:020d}.{kind}"
    data = bytearray(log.fs.read_file(path))
    data[at] ^= 0xFF
    log.fs.write_file(path, data, sync=True)


def small(log: Log) -> None:
    """So that every segment is a group of its own."""
    log.writer.apply_config(compacted(segment_bytes=400, delete_retention_ms=0))


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


def test_a_damaged_segment_is_named_and_the_rest_goes_on() -> None:
    log = four_segments()
    flip(log, 4)
    report = log.clean()
    [damage] = report.quarantined
    assert damage.path.endswith("00000000000000000004.log")
    assert (damage.first_offset, damage.last_offset) == (4, 7)
    assert "CRC" in damage.reason
    assert log.bases() == [0, 4, 8, 16], "the two above it are one"
    assert any("left" in line or "leaves" in line for line in log.warnings)
    assert log.saved == [4], "the checkpoint does not pass it"
    assert report.next_dirty_offset == 4
    flip(log, 4)
    assert offsets(log) == [4, 5, 6, 7, 12, 13, 14, 15]
    log.clean()
    assert offsets(log) == [12, 13, 14, 15]
    assert log.saved[-1] == 16


def test_what_a_damaged_segment_holds_is_not_brought_back() -> None:
    """Its tombstone must outlive it, however long that takes."""
    log = four_segments()
    log.clean()
    log.put((b"k0", b"in the middle"))
    log.roll()
    log.clean()
    log.puts([(b"k0", None), (b"k9", b"1")])
    log.roll()
    bad = log.bases()[-3] if len(log.bases()) > 3 else log.bases()[0]
    flip(log, bad)
    for _ in range(4):
        log.clock.advance(10)
        assert log.clean().quarantined
    flip(log, bad)
    for _ in range(4):
        values = {record.key: record.value for record in log.records()}
        assert values.get(b"k0") is None
        log.clock.advance(10)
        log.clean()
    assert b"k0" not in {record.key for record in log.records()}
    assert b"k9" in {record.key for record in log.records()}


def test_markers_above_a_damaged_segment_stay() -> None:
    log = Log(compacted(delete_retention_ms=0))
    log.produce(7, (b"a", b"aborted"), transactional=True)
    log.put((b"b", b"1"))
    log.roll()
    log.put((b"c", b"1"))
    log.end(7, commit=False)
    log.roll()
    flip(log, 0)
    for _ in range(3):
        log.clock.advance(10)
        log.clean()
    assert [txn.producer_id for txn in log.writer.aborted(0, 100)] == [7]
    flip(log, 0)
    log.clean()
    assert [record.key for record in log.records()] == [b"b", b"c"]


def test_damage_that_appears_between_the_two_readings() -> None:
    log = four_segments()
    everything = log.records()
    done: list[int] = []

    def progress(read: int, total: int) -> None:
        if not done and read * 2 >= total:
            done.append(read)
            flip(log, 8)

    report = log.clean(progress=progress)
    assert [damage.first_offset for damage in report.quarantined] == [8]
    assert log.bases() == [0, 8, 12, 16]
    assert not log.files(names.CLEANED)
    flip(log, 8)
    assert offsets(log) == [8, 9, 10, 11, 12, 13, 14, 15]
    log.clean()
    assert log.records() == latest(everything, 16)


def test_a_disk_that_cannot_read_a_segment() -> None:
    clock = ManualClock()
    fs = FailingFileSystem(MemoryFileSystem(clock=clock.now_ns))
    log = Log(compacted(segment_bytes=1 << 16), fs=fs, clock=clock)
    for n in range(3):
        log.puts([(b"a", b"%d" % n), (b"b", b"%d" % n)])
        log.roll()
    fs.inject(Fault("pread", "*00000000000000000002.log"))
    report = log.clean()
    assert [damage.first_offset for damage in report.quarantined] == [2]
    fs.heal()
    assert offsets(log) == [2, 3, 4, 5]


def test_bytes_behind_zeros_are_not_dropped() -> None:
    """Another broker's segment may end in zeros; zeros in its middle are damage."""
    log = four_segments()
    path = f"{log.directory}/{4:020d}.log"
    data = log.fs.read_file(path)
    third = len(data) // 4
    log.fs.remove(f"{log.directory}/{4:020d}.seal")
    log.fs.write_file(path, data[:third] + bytes(third) + data[2 * third :], sync=True)
    log.context.cache.forget(log.writer.segments()[1].serial)
    assert [damage.first_offset for damage in log.clean().quarantined] == [4]
    assert log.fs.stat(path).size == len(data)


def test_without_its_transaction_index_a_segment_ends_the_round() -> None:
    """A transaction that was open before it may have been aborted in it: its data cannot be judged."""
    log = Log(compacted(segment_bytes=1 << 16))
    log.puts([(b"a", b"1"), (b"a", b"2")])
    log.roll()
    log.produce(7, (b"a", b"aborted"), transactional=True)
    log.roll()
    log.put((b"b", b"1"))
    log.end(7, commit=False)
    log.roll()
    third = log.bases()[2]
    flip(log, third, kind="txnindex")
    log.context.cache.forget(log.writer.segments()[2].serial)
    report = log.clean()
    assert report.stopped is not None
    assert "txnindex" in report.stopped
    assert offsets(log) == [1, 2, 3]
    assert log.saved == [2]
    flip(log, third, kind="txnindex")
    log.context.cache.forget(log.writer.segments()[-2].serial)
    assert log.clean().stopped is None
    assert offsets(log) == [1, 3]


def test_a_damaged_segment_between_groups_of_one() -> None:
    log = four_segments()
    small(log)
    flip(log, 8)
    log.clean()
    flip(log, 8)
    assert offsets(log)[-4:] == [12, 13, 14, 15]
    assert set(offsets(log)) >= {8, 9, 10, 11}
    assert Seen(0, b"k0", b"v0") not in log.records()


def test_chunks_that_are_read_ahead_are_checked_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "READ_AHEAD_FROM", 0)
    monkeypatch.setattr(rewriting, "FULL_CHUNK", 100)
    log = four_segments()
    everything = log.records()
    flip(log, 8)
    threads = threading.active_count()
    report = log.clean()
    assert threading.active_count() == threads
    assert [damage.first_offset for damage in report.quarantined] == [8]
    flip(log, 8)
    log.clean()
    assert log.records() == latest(everything, 16)


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    clock = ManualClock()
    fs = FailingFileSystem(MemoryFileSystem(clock=clock.now_ns))
    log = Log(compacted(segment_bytes=600), fs=fs, clock=clock)
    log.puts((b"k%d" % (n % 3), b"v" * 30) for n in range(40))
    log.roll()
    before = log.records()
    for after in (0, 1):
        fs.inject(Fault("pwrite", "*.cleaned", errno.ENOSPC, after=after, partial_bytes=10))
        with pytest.raises(DiskFullError):
            log.clean()
        assert not log.files(names.CLEANED)
        assert log.saved == []
        fs.heal()
    log.put((b"k0", b"goes on"))
    log.clean()
    assert [each for each in log.records() if each.offset < 40] == latest(before, 40)
