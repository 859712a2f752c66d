"""The ledger of the segment being written: the same numbers and flags, compiled and interpreted."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import StorageError
from stratalog.fs import RealFileSystem
from stratalog.kernel import IN_DOUBT, crc32c, encode_one, loader
from stratalog.kernel import _ledger as current
from stratalog.model import Appended

INTERPRETED = loader.interpreted("_hash", "_encode", "_ledger")["_ledger"]

batches = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=300),
        st.integers(1, 5),
        st.integers(0, 1000),
        st.integers(0, 1000),
        st.sampled_from(["bytes", "crc", "view"]),
    ),
    max_size=40,
)


def feed(module: ModuleType, rows: list[tuple[bytes, int, int, int, str]], interval: int) -> list[object]:
    ledger = module.Ledger(100, 0, 100)
    ledger.interval_bytes = interval
    ledger.sums = sums = module.BlockSums(0, 100)
    seen: list[object] = []
    for data, count, low, spread, form in rows:
        given_as: object = {"bytes": data, "crc": crc32c(data), "view": memoryview(data)}[form]
        offset = ledger.next_offset
        seen.append(
            (
                ledger.fits(len(data), offset + count - 1, low + spread, 5),
                ledger.took(given_as, len(data), offset, offset + count - 1, count, low, low + spread),
                ledger.size,
                ledger.next_offset,
                ledger.bytes_since_entry,
                ledger.max_timestamp,
                ledger.offset_of_max_timestamp,
            )
        )
    seen.append((sums.start, sums.end, sums.crc, sums.first_offset, sums.last_offset, sums.records))
    seen.append((sums.batches, sums.min_timestamp, sums.max_timestamp, bool(sums.contiguous)))
    return seen


@given(batches, st.integers(0, 500))
def test_both_kernels_agree(rows: list[tuple[bytes, int, int, int, str]], interval: int) -> None:
    assert feed(current, rows, interval) == feed(INTERPRETED, rows, interval)


ones = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=90),
        st.none() | st.binary(max_size=9),
        st.sampled_from([(), None, [("h", b"x"), ("i", None)]]),
        st.integers(-1, 1000),
    ),
    max_size=30,
)


def append_all(module: ModuleType, rows: list[tuple[Any, Any, Any, int]], interval: int) -> list[object]:
    ledger = module.Ledger(7, 0, 7)
    ledger.interval_bytes, ledger.roll_bytes, ledger.room_until = interval, 2000, 1500
    ledger.sums = sums = module.BlockSums(0, 7)
    log = bytearray()

    def pwrite(data: bytes, position: int) -> None:
        assert position == len(log)
        log.extend(data)

    seen: list[object] = []
    for value, key, headers, timestamp in rows:
        due = ledger.append_one(pwrite, value, key, headers, timestamp, 3, timestamp % 2, 5, 150)
        seen.append((due, ledger.size, ledger.next_offset, ledger.last_position, ledger.max_timestamp))
        assert due >= 0 or len(log) == ledger.size
        assert ledger.in_doubt == (due >= 0)
        if due >= 0:
            assert ledger.append_one(pwrite, b"", None, (), 0, 3, 0, 5, 150) == IN_DOUBT
        ledger.in_doubt = False
    return [*seen, bytes(log), sums.crc, sums.end]


@given(ones, st.integers(0, 500))
def test_one_record_is_encoded_written_and_accounted_for(
    rows: list[tuple[Any, Any, Any, int]], interval: int
) -> None:
    """As encode_one, a write and took would do it, one after the other."""
    seen = append_all(current, rows, interval)
    assert seen == append_all(INTERPRETED, rows, interval)
    ledger = current.Ledger(7, 0, 7)
    ledger.interval_bytes, ledger.roll_bytes, ledger.room_until = interval, 2000, 1500
    log = bytearray()
    for (value, key, headers, stamp), said in zip(rows, seen, strict=False):
        offset = ledger.next_offset
        data = encode_one(value, key, headers, stamp, offset, 3, stamp % 2)
        due = -1
        if len(data) <= 150 and ledger.fits(len(data), offset, stamp, 5):
            log += data
            due = ledger.took(data, len(data), offset, offset, 1, stamp, stamp)
        assert said == (due, ledger.size, ledger.next_offset, ledger.last_position, ledger.max_timestamp)
    assert seen[-3:] == [bytes(log), crc32c(log), len(log)]


@pytest.mark.parametrize("module", [current, INTERPRETED], ids=["current", "interpreted"])
def test_a_write_that_fails_is_not_accounted_for(module: ModuleType) -> None:
    ledger = module.Ledger(0, 0, 0)

    def refuse(data: bytes, position: int) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        ledger.append_one(refuse, b"v", None, (), 5, 0, 0, 5, 1000)
    assert (ledger.size, ledger.next_offset, ledger.max_timestamp) == (0, 0, -1)


class Caller:
    """Stands for the writer of an Appender: notes its calls, and whether the lock was held."""

    def __init__(self, module: ModuleType) -> None:
        self.lock, self.log, self.calls = threading.RLock(), bytearray(), list[tuple[object, ...]]()
        self.ends = SimpleNamespace(high_watermark=0, waiting={})
        self.active = SimpleNamespace(open_for_append=lambda: self)
        self.ledger = module.Ledger(0, 0, 0)
        self.appender = module.Appender(self, self.lock, lambda: 7, self.ends, Appended, 3)
        self.appender.renew(self.ledger, False, 0, 0, 200, True, False)

    def pwrite(self, data: bytes, position: int) -> None:
        if data.endswith(b"full\0"):
            raise OSError("full")
        self.log[position:] = data

    def __getattr__(self, name: str) -> Any:
        def call(*args: object) -> int:
            self.calls.append((name, self.held(), *args))
            return 70

        return call

    def held(self) -> bool:
        """Return whether another thread would have to wait for the lock."""
        free: list[bool] = []

        def ask() -> None:
            free.append(self.lock.acquire(blocking=False))
            if free[0]:
                self.lock.release()

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
        return not free[0]


@pytest.mark.parametrize("module", [current, INTERPRETED], ids=["current", "interpreted"])
def test_an_appender_calls_its_writer_for_what_is_rare(module: ModuleType) -> None:
    writer = Caller(module)
    ledger, append = writer.ledger, writer.appender.append
    first = append(b"v", b"k", (), None)
    assert (first, type(first)) == ((3, 0, 7), Appended)
    assert (writer.ends.high_watermark, ledger.in_doubt, writer.held()) == (1, False, False)
    assert writer.calls == [("settle_one", True, 4, b"k", 7, 7)]
    assert append(b"v", b"k", (), None) == (3, 1, 7)
    writer.ends.waiting["somebody"] = None
    assert append(b"v", b"k", (), None) == (3, 2, 7)
    assert append(b"v" * 200, b"k", (), None) == (3, 70, 7)
    assert writer.calls[1:] == [("advance", True, 3), ("write_one", True, b"v" * 200, b"k", (), 7, 7)]
    assert len(writer.log) == ledger.size


@pytest.mark.parametrize("module", [current, INTERPRETED], ids=["current", "interpreted"])
def test_an_appender_stops_where_it_must(module: ModuleType) -> None:
    writer = Caller(module)
    append = writer.appender.append
    with pytest.raises(OSError, match="full"):
        append(b"full", b"k", (), None)
    assert [(call[0], call[1]) for call in writer.calls] == [("write_failed", True)]
    assert not writer.held()
    assert append(b"v", b"k", (), None) is None, "the write that failed is in doubt"
    assert not writer.appender.ready
    assert append(b"v", b"k", (), None) is None
    assert not writer.log


@pytest.mark.parametrize("module", [current, INTERPRETED], ids=["current", "interpreted"])
def test_an_appender_writes_to_the_descriptor_of_a_file(module: ModuleType, tmp_path: Path) -> None:
    """What the descriptor does not take goes to the file's ``pwrite``: a closed one, a pipe, a full disk."""
    writer = Caller(module)
    with RealFileSystem().open(str(tmp_path / "log"), "x") as file:
        writer.active.open_for_append = lambda: file
        placed = [writer.appender.append(b"v%d" % at, b"k", (), None) for at in range(3)]
        written = (tmp_path / "log").read_bytes()
    assert placed == [(3, at, 7) for at in range(3)]
    with pytest.raises(StorageError, match="the file is closed"):
        writer.appender.append(b"v3", b"k", (), None)
    assert writer.calls[-1][:2] == ("write_failed", True)

    again, (read_end, write_end) = Caller(module), os.pipe()
    again.active.open_for_append = lambda: SimpleNamespace(fd=write_end, pwrite=again.pwrite)
    assert placed == [again.appender.append(b"v%d" % at, b"k", (), None) for at in range(3)]
    os.close(read_end)
    os.close(write_end)
    assert written == again.log
    with pytest.raises(OSError, match="full"):
        again.appender.append(b"full", b"k", (), None)


@pytest.mark.parametrize("module", [current, INTERPRETED], ids=["current", "interpreted"])
def test_a_simple_append_is_left_to_the_writer_where_more_is_to_do(module: ModuleType) -> None:
    writer = Caller(module)
    append = writer.appender.append_simple
    assert append(b"v", b"k", (), None) is None
    writer.appender.renew(writer.ledger, False, 0, 0, 200, True, False, True)
    assert append(b"v", b"k", (), None) == (3, 0, 7)
    with pytest.raises(OSError, match="full"):
        append(b"full", b"k", (), None)
    assert not writer.held()
    assert append(b"v", b"k", (), None) is None, "the write that failed is in doubt"
    writer.appender.ready = False
    assert append(b"v", b"k", (), None) is None
    assert writer.ledger.next_offset == 1


@given(batches)
def test_the_sums_are_those_of_the_bytes(rows: list[tuple[bytes, int, int, int, str]]) -> None:
    ledger = current.Ledger(0, 0, 0)
    ledger.sums = sums = current.BlockSums(0, 0)
    for data, count, low, spread, _ in rows:
        offset = ledger.next_offset
        ledger.took(data, len(data), offset, offset + count - 1, count, low, low + spread)
    assert sums.crc == crc32c(b"".join(row[0] for row in rows))
    assert sums.records == sum(row[1] for row in rows)
    assert ledger.size == sums.end == sum(len(row[0]) for row in rows)
    if rows:
        assert sums.min_timestamp == min(row[2] for row in rows)
        assert sums.max_timestamp == ledger.max_timestamp == max(row[2] + row[3] for row in rows)


@pytest.mark.parametrize("module", [current, INTERPRETED], ids=["current", "interpreted"])
def test_limits_flags_and_joins(module: ModuleType) -> None:
    ledger = module.Ledger(0, 0, 0)
    ledger.roll_bytes, ledger.roll_offset, ledger.roll_timestamp, ledger.roll_now_ms = 100, 9, 50, 7
    assert ledger.fits(100, 9, 50, 7)
    for beyond in ((101, 9, 50, 7), (100, 10, 50, 7), (100, 9, 51, 7), (100, 9, 50, 8)):
        assert not ledger.fits(*beyond)
    ledger.sums = sums = module.BlockSums(0, 0)
    ledger.interval_bytes = 10
    assert ledger.took(b"x" * 11, 11, 0, 0, 1, 5, 5) == module.FIRST_BATCH
    assert ledger.took(b"x" * 70_000, 70_000, 2, 2, 1, 5, 5) == module.INDEX_ENTRY_DUE | module.BLOCK_FULL
    assert not sums.contiguous
    assert sums.add(5, 1, b"x", 3, 3, 1, 5, 5) == -1
    ledger.room_until, ledger.sums = ledger.size + 9, None
    assert not ledger.took(b"x", 9, 3, 3, 1, 5, 5) & module.ROOM_DUE
    assert ledger.took(b"x", 1, 4, 4, 1, 5, 5) & module.ROOM_DUE
    ledger.sums = module.BlockSums(0, 0)
    with pytest.raises(ValueError, match="does not join"):
        ledger.took(b"x", 1, 3, 3, 1, 5, 5)
