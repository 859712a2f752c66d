"""The ledger of the segment being written: the same numbers and flags, compiled and interpreted."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.kernel import IN_DOUBT, crc32c, encode_one, loader
from stratalog.kernel import _ledger as current

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
