"""Offset and time index: order, lookups, cutting, damage; checked against plain lists."""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptionError, InvalidArgumentError
from stratalog.format.indexes import OffsetIndex, RisingCheck, TimeIndex

BASE = 1_000_000_000_000
INT32 = (1 << 31) - 1
relative = st.integers(0, INT32)
rising_pairs = st.lists(st.tuples(relative, st.integers(1, INT32 - 1)), max_size=60).map(
    lambda pairs: list(zip(sorted({p[0] for p in pairs}), sorted({p[1] for p in pairs}), strict=False))
)
rising_times = st.lists(st.tuples(st.integers(0, (1 << 63) - 1), relative), max_size=60).map(
    lambda pairs: list(zip(sorted({p[0] for p in pairs}), sorted(p[1] for p in pairs), strict=False))
)


def offset_index(pairs: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(BASE)
    for offset, position in pairs:
        index.append(BASE + offset, position)
    return index


def time_index(pairs: list[tuple[int, int]]) -> TimeIndex:
    index = TimeIndex(BASE)
    for timestamp, offset in pairs:
        assert index.maybe_append(timestamp, BASE + offset)
    return index


# -- offset index


@given(rising_pairs, st.integers(0, 20))
def test_offset_index_round_trip(pairs: list[tuple[int, int]], zeros: int) -> None:
    index = offset_index(pairs)
    data = index.to_bytes()
    assert data == b"".join(struct.pack(">ii", *pair) for pair in pairs)
    assert index.size_bytes == len(data)
    parsed = OffsetIndex.parse(data + bytes(8 * zeros), BASE, 1 << 31)
    assert parsed.to_bytes() == data
    assert [parsed.entry(i) for i in range(len(parsed))] == [(BASE + o, p) for o, p in pairs]
    for start in range(len(pairs) + 1):
        assert index.tail_bytes(start) == data[start * 8 :]


@given(rising_pairs, relative)
def test_offset_lookup_is_the_greatest_at_or_below(pairs: list[tuple[int, int]], wanted: int) -> None:
    index = offset_index(pairs)
    below = [(BASE + o, p) for o, p in pairs if o <= wanted]
    assert index.lookup(BASE + wanted) == (below[-1] if below else None)
    assert index.lookup(BASE - 1) is None
    assert index.last() == ((BASE + pairs[-1][0], pairs[-1][1]) if pairs else None)
    above = [(BASE + o, p) for o, p in pairs if p > wanted]
    assert index.after_position(wanted) == (above[0] if above else None)


@given(rising_pairs, relative)
def test_offset_truncate_drops_what_lies_behind(pairs: list[tuple[int, int]], size: int) -> None:
    index = offset_index(pairs)
    index.truncate(size)
    assert [index.entry(i)[1] for i in range(len(index))] == [p for _, p in pairs if p < size]
    assert OffsetIndex.parse(index.to_bytes(), BASE, max(size, 1)).to_bytes() == index.to_bytes()


def test_offset_append_refuses_what_does_not_fit() -> None:
    index = offset_index([(10, 100)])
    for offset, position in (
        (10, 200),
        (9, 200),
        (11, 100),
        (11, 99),
        (-1, 200),
        (INT32 + 1, 200),
        (11, INT32 + 1),
    ):
        with pytest.raises(InvalidArgumentError):
            index.append(BASE + offset, position)
    with pytest.raises(InvalidArgumentError):
        OffsetIndex(BASE).append(BASE, 0)
    assert len(index) == 1


@pytest.mark.parametrize(
    ("entries", "at"),
    [
        ([(5, 100), (5, 200)], 8),
        ([(5, 100), (4, 200)], 8),
        ([(5, 100), (6, 100)], 8),
        ([(5, 100), (6, 99)], 8),
        ([(5, 100), (0, 0), (6, 200)], 8),
        ([(-1, 100)], 0),
        ([(5, -1)], 0),
        ([(5, 0)], 0),
        ([(5, 100), (6, -5)], 8),
        ([(5, 100), (6, 1000)], 8),
        ([(i, i * 10 + 1) for i in range(50)] + [(49, 600)], 400),
    ],
)
def test_offset_index_damage_is_named(entries: list[tuple[int, int]], at: int) -> None:
    data = b"".join(struct.pack(">ii", *entry) for entry in entries)
    with pytest.raises(CorruptionError) as caught:
        OffsetIndex.parse(data, BASE, 1000)
    assert caught.value.position == at


def test_torn_entries_are_damage() -> None:
    with pytest.raises(CorruptionError):
        OffsetIndex.parse(bytes(12), BASE, 1000)
    with pytest.raises(CorruptionError):
        TimeIndex.parse(struct.pack(">qi", 5, 5) + b"\1", BASE)


# -- time index


@given(rising_times, st.integers(0, 20))
def test_time_index_round_trip(pairs: list[tuple[int, int]], zeros: int) -> None:
    index = time_index(pairs)
    data = index.to_bytes()
    assert data == b"".join(struct.pack(">qi", *pair) for pair in pairs)
    assert index.size_bytes == len(data)
    if pairs != [(0, 0)] and (pairs or zeros != 1):
        assert TimeIndex.parse(data + bytes(12 * zeros), BASE).to_bytes() == data
    assert TimeIndex.parse(data, BASE).to_bytes() == data
    for start in range(len(pairs) + 1):
        assert index.tail_bytes(start) == data[start * 12 :]


@given(rising_times, st.integers(-1, (1 << 63) - 1))
def test_time_lookup_is_the_greatest_at_or_below(pairs: list[tuple[int, int]], wanted: int) -> None:
    index = time_index(pairs)
    slot = bisect_right([t for t, _ in pairs], wanted) - 1
    assert index.lookup(wanted) == ((pairs[slot][0], BASE + pairs[slot][1]) if slot >= 0 else None)


@given(rising_times, relative)
def test_time_truncate_drops_offsets_from_there_on(pairs: list[tuple[int, int]], end: int) -> None:
    index = time_index(pairs)
    index.truncate(BASE + end)
    assert [index.entry(i) for i in range(len(index))] == [(t, BASE + o) for t, o in pairs if o < end]


def test_time_append_follows_kafkas_rule() -> None:
    index = TimeIndex(BASE)
    assert not index.maybe_append(-1, BASE), "no timestamp, no entry"
    assert index.maybe_append(0, BASE)
    assert index.maybe_append(100, BASE + 5)
    assert not index.maybe_append(100, BASE + 9), "not above the last"
    assert len(index) == 2
    with pytest.raises(InvalidArgumentError):
        index.maybe_append(99, BASE + 9)
    with pytest.raises(InvalidArgumentError):
        index.maybe_append(101, BASE + 4)
    with pytest.raises(InvalidArgumentError):
        index.maybe_append(101, BASE + INT32 + 1)
    assert index.last() == (100, BASE + 5)


def test_a_lone_zero_entry_is_timestamp_zero() -> None:
    assert TimeIndex.parse(bytes(12), BASE).last() == (0, BASE)
    assert len(TimeIndex.parse(bytes(24), BASE)) == 0


@pytest.mark.parametrize(
    ("entries", "at"),
    [
        ([(100, 5), (100, 6)], 12),
        ([(100, 5), (99, 6)], 12),
        ([(100, 5), (101, 4)], 12),
        ([(-1, 5)], 0),
        ([(100, -5)], 0),
        ([(100, 5), (0, 0), (101, 6)], 12),
        ([(100, 5), (101, 50)], 12),
    ],
)
def test_time_index_damage_is_named(entries: list[tuple[int, int]], at: int) -> None:
    data = b"".join(struct.pack(">qi", *entry) for entry in entries)
    with pytest.raises(CorruptionError) as caught:
        TimeIndex.parse(data, BASE, next_offset=BASE + 50)
    assert caught.value.position == at


# -- both


@given(st.binary(max_size=400), st.integers(0, INT32))
def test_hostile_bytes(data: bytes, log_size: int) -> None:
    with suppress(CorruptionError):
        assert data.startswith(OffsetIndex.parse(data, BASE, log_size).to_bytes())
    with suppress(CorruptionError):
        assert data.startswith(TimeIndex.parse(data, BASE).to_bytes())


LAYOUT = (("a", "int64", 8), ("b", "int32", 4))


@given(
    st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 6)), max_size=8),
    st.sampled_from([(), ("a",), ("b",), ("a", "b")]),
    st.integers(0, 5000),
)
def test_the_wide_check_agrees_with_the_plain_one(
    tail: list[tuple[int, int]], strict: tuple[str, ...], lead: int
) -> None:
    """Runs of entries are compared as one number: the plain comparison of neighbours is the judge."""
    entries = [(i, i) for i in range(lead)] + [(lead + a, lead + b) for a, b in tail]
    expected = -1
    for i, entry in enumerate(entries):
        before = entries[i - 1] if i else (-1, -1)
        steps = [now - then for now, then in zip(entry, before, strict=True)]
        if any(step < (name in strict) for step, name in zip(steps, "ab", strict=True)) or min(entry) < 0:
            expected = i
            break
    data = b"".join(struct.pack(">qi", *entry) for entry in entries)
    assert RisingCheck(LAYOUT, strict).first_bad(data) == expected


def test_a_sound_index_is_never_walked_entry_by_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """250,000 entries are compared in runs: 4 ms instead of 40."""
    monkeypatch.setattr(RisingCheck, "_walk", None)
    offsets = b"".join(struct.pack(">ii", i * 40 + 7, (i + 1) * 4100) for i in range(250_000))
    times = b"".join(struct.pack(">qi", 1_700_000_000_000 + i, i * 40) for i in range(250_000))
    assert OffsetIndex.parse(offsets, 0, 1 << 31).to_bytes() == offsets
    assert TimeIndex.parse(times, 0).to_bytes() == times
