"""The key index: lookups against a dictionary, few reads, and no page that lies."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptionError, FormatError, InvalidArgumentError, UnsupportedFormat
from stratalog.format import keyindex
from stratalog.format.keyindex import KeyIndexReader
from stratalog.kernel import crc32c

BASE = 5_000_000_000


def pack(hashes: list[int], offsets: list[int] | None = None) -> bytes:
    if offsets is None:
        offsets = [BASE + i for i in range(len(hashes))]
    return keyindex.pack(array("Q", hashes), array("q", offsets), BASE, 123_456, 0xDEADBEEF)


def reader(data: bytes | bytearray) -> KeyIndexReader:
    raw = bytes(data)
    return KeyIndexReader(lambda size, offset: raw[offset : offset + size], len(raw))


@given(
    st.lists(st.one_of(st.integers(0, 5), st.integers(0, (1 << 64) - 1)), max_size=1500),
    st.integers(0, (1 << 64) - 1),
)
def test_lookups_agree_with_a_dictionary(hashes: list[int], absent: int) -> None:
    expected: dict[int, list[int]] = {}
    for i, value in enumerate(hashes):
        expected.setdefault(value, []).append(BASE + i)
    data = pack(hashes)
    assert len(data) == keyindex.file_size(len(hashes))
    index = reader(data)
    index.verify()
    for value, offsets in expected.items():
        assert index.lookup(value) == offsets
        assert next(index.newest_first(value)) == offsets[-1]
    assert index.lookup(absent) == expected.get(absent, [])
    assert (index.count, index.base_offset) == (len(hashes), BASE)
    assert index.matches(123_456, 0xDEADBEEF)
    assert not index.matches(123_456, 0)
    assert not index.matches(0, 0xDEADBEEF)


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=1500))
def test_all_entries_come_back_in_log_order(hashes: list[int]) -> None:
    assert reader(pack(hashes)).in_offset_order() == (
        array("Q", hashes),
        array("q", range(BASE, BASE + len(hashes))),
    )


def test_many_entries_come_back_too() -> None:
    rng = random.Random(1)
    hashes = [rng.getrandbits(64) for _ in range(30_000)]
    assert reader(pack(hashes)).in_offset_order()[0] == array("Q", hashes)
    bad = bytearray(pack(hashes))
    bad[20_000] ^= 1
    with pytest.raises(CorruptionError):
        reader(bad).in_offset_order()


@pytest.mark.parametrize("shape", ["even", "low", "high", "hot"])
def test_any_shape_of_hashes_is_found(shape: str) -> None:
    rng = random.Random(3)
    make: dict[str, Callable[[], int]] = {
        "even": lambda: rng.getrandbits(64),
        "low": lambda: rng.getrandbits(20),
        "high": lambda: (1 << 64) - 1 - rng.getrandbits(16),
        "hot": lambda: rng.choice((0, 7, 7, 7, (1 << 64) - 1)),
    }
    hashes = [make[shape]() for _ in range(20_000)]
    index = reader(pack(hashes))
    for value in set(rng.sample(hashes, 200)):
        assert index.lookup(value) == [BASE + i for i, other in enumerate(hashes) if other == value]


def test_a_lookup_reads_few_pages() -> None:
    rng = random.Random(4)
    hashes = [rng.getrandbits(64) for _ in range(200_000)]
    data = pack(hashes)
    reads: list[int] = []

    def pread(size: int, offset: int) -> bytes:
        reads.append(size)
        return data[offset : offset + size]

    index = KeyIndexReader(pread, len(data))
    worst = 0
    reads.clear()
    for value in hashes[:1000]:
        before = len(reads)
        assert index.lookup(value)
        worst = max(worst, len(reads) - before)
    assert max(reads) <= keyindex.PAGE_SIZE
    assert len(reads) / 1000 < 2.5
    assert worst <= 16


def test_the_newest_offset_of_a_hot_key_needs_one_page_or_two() -> None:
    data = pack([7] * 100_000 + [9] * 1000)
    reads = 0

    def pread(size: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        return data[offset : offset + size]

    index = KeyIndexReader(pread, len(data))
    reads = 0
    assert next(index.newest_first(7)) == BASE + 99_999
    assert reads <= 12


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, (1 << 64) - 1)), max_size=300))
def test_both_sorts_agree(hashes: list[int]) -> None:
    packed, offsets = array("Q", hashes), array("q", range(100, 100 + len(hashes)))
    plain = keyindex.pack(packed, offsets, 100, 1, 2)
    with patch.object(keyindex, "_ARROW_SORT_ROWS", 1):
        assert keyindex.pack(packed, offsets, 100, 1, 2) == plain
    packed.append(1)  # nothing holds on to the array


def test_offsets_out_of_order_are_sorted_within_a_hash() -> None:
    index = reader(pack([1, 1, 1], [BASE + 9, BASE + 3, BASE + 6]))
    assert index.lookup(1) == [BASE + 3, BASE + 6, BASE + 9]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        pack([1], [BASE - 1])
    with pytest.raises(InvalidArgumentError):
        pack([1], [BASE + (1 << 31)])
    with pytest.raises(InvalidArgumentError):
        pack([1, 2], [BASE])


def test_every_flipped_bit_is_found() -> None:
    rng = random.Random(5)
    data = pack([rng.getrandbits(64) for _ in range(400)])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            reader(damaged).verify()


def test_a_damaged_page_is_never_served() -> None:
    rng = random.Random(6)
    hashes = [rng.getrandbits(64) for _ in range(341 * 3)]
    data = bytearray(pack(hashes))
    position = keyindex.HEADER_SIZE + keyindex.PAGE_SIZE + 700
    data[position] ^= 16
    index = reader(data)
    in_page = set(sorted(hashes)[341 : 341 * 2])
    for i, value in enumerate(hashes):
        if value in in_page:
            with pytest.raises(CorruptionError) as caught:
                index.lookup(value)
            assert caught.value.position == keyindex.HEADER_SIZE + keyindex.PAGE_SIZE
        else:
            with suppress(CorruptionError):  # the search may pass through the bad page
                assert index.lookup(value) == [BASE + i]


def test_swapped_pages_are_found() -> None:
    rng = random.Random(7)
    data = pack([rng.getrandbits(64) for _ in range(341 * 2)])
    first = keyindex.HEADER_SIZE
    second = first + keyindex.PAGE_SIZE
    swapped = data[:first] + data[second:] + data[first:second]
    with pytest.raises(CorruptionError):
        reader(swapped).verify()


def test_every_cut_is_found() -> None:
    data = pack(list(range(350)))
    for size in [*range(100), *range(len(data) - 100, len(data))]:
        with pytest.raises(CorruptionError):
            reader(data[:size])
    with pytest.raises(CorruptionError):
        reader(data + b"\0")
    # The size was right when it was asked for, and the file shrank since.
    short = KeyIndexReader(lambda size, offset: data[: len(data) - 5][offset : offset + size], len(data))
    with pytest.raises(CorruptionError):
        short.verify()


def with_header_crc(data: bytes) -> bytes:
    body = data[: keyindex.HEADER_SIZE - 4]
    return body + struct.pack(">I", crc32c(body)) + data[keyindex.HEADER_SIZE :]


def test_a_newer_version_is_not_damage() -> None:
    data = bytearray(pack([1, 2, 3]))
    data[9] = 2
    with pytest.raises(UnsupportedFormat):
        reader(with_header_crc(bytes(data)))


@given(st.binary(max_size=300), st.integers(0, (1 << 64) - 1))
def test_hostile_bytes(data: bytes, key_hash: int) -> None:
    header = pack([1, 2, 3])[: keyindex.HEADER_SIZE]
    huge = with_header_crc(header[:12] + b"\xff" * 8 + header[20:])
    for attempt in (data, header + data, huge + data, with_header_crc(data.ljust(48, b"\0"))):
        try:
            reader(attempt).lookup(key_hash)
        except FormatError:
            continue
