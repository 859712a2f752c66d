"""The ledger of the segment being written: the same numbers and flags, compiled and interpreted."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.kernel import _ledger as current
from stratalog.kernel import crc32c, loader

INTERPRETED = loader.interpreted("_hash", "_ledger")["_ledger"]

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
    ledger.sums = module.BlockSums(0, 0)
    with pytest.raises(ValueError, match="does not join"):
        ledger.took(b"x", 1, 3, 3, 1, 5, 5)
