"""Checksums and hashes against other people's implementations and Kafka's own test values."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import crc32c as package
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stratalog import kernel
from tests.kernel.both import engine, plain_kernel

__all__ = ["engine"]

SIZES = [0, 1, 7, 8, 9, 63, 64, 191, 192, 193, 400, 3071, 3072, 3073, 10_000, 70_001]


@pytest.mark.parametrize("size", SIZES)
def test_crc32c_is_the_packages(engine: Any, size: int) -> None:
    data = bytes((i * 131 + 7) & 0xFF for i in range(size))
    assert engine.crc32c(data) == package.crc32c(data)
    assert engine.crc32c(memoryview(bytearray(data))) == package.crc32c(data)
    cut = size // 3
    assert engine.crc32c(data[cut:], engine.crc32c(data[:cut])) == package.crc32c(data)


def test_crc32c_of_every_size_about_a_whole_step() -> None:
    """Long buffers go through the processor in steps; what is left of one goes another way."""
    data = bytes((i * i * 31 + i) >> 3 & 0xFF for i in range(3000))
    for size in (*range(1000, 1600), *range(2030, 2080)):
        for at in (0, size % 67):
            part = memoryview(data)[at : at + size]
            assert kernel.crc32c(part) == package.crc32c(part)
            assert kernel.crc32c(part, 0x12345678) == package.crc32c(part, 0x12345678)


def test_crc32c_known_value(engine: Any) -> None:
    assert engine.crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_crc32c_combine(a: bytes, b: bytes) -> None:
    for one in (kernel, plain_kernel()):
        joined = one.crc32c_combine(one.crc32c(a), one.crc32c(b), len(b))
        assert joined == one.crc32c(a + b)


def test_crc32c_combine_of_long_parts(engine: Any) -> None:
    a, b = b"a" * 100, bytes(5_000_000)
    assert engine.crc32c_combine(engine.crc32c(a), engine.crc32c(b), len(b)) == package.crc32c(a + b)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # from Kafka's UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(engine: Any, key: bytes, hashed: int) -> None:
    assert engine.murmur2(key) == hashed
    assert engine.partition_for_key(key, 7) == (hashed & 0x7FFFFFFF) % 7


@given(st.binary(max_size=100))
def test_hash64_is_xxh64(key: bytes) -> None:
    assert kernel.hash64(key) == xxhash.xxh64_intdigest(key) == plain_kernel().hash64(key)
    assert kernel.murmur2(key) == plain_kernel().murmur2(key)


@given(st.binary(max_size=100), st.integers(0, 2**63 - 1))
def test_key_row_is_hash_and_offset(key: bytes, offset: int) -> None:
    row = struct.pack("=QQ", xxhash.xxh64_intdigest(key), offset)
    assert kernel.key_row(key, offset) == row == plain_kernel().key_row(key, offset)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1)), max_size=40))
def test_key_rows_are_rows_in_order(rows: list[tuple[int, int]]) -> None:
    hashes, offsets = array("Q", [each[0] for each in rows]), array("q", [each[1] for each in rows])
    packed = b"".join(struct.pack("=QQ", *each) for each in rows)
    assert kernel.key_rows(hashes, offsets) == packed == plain_kernel().key_rows(hashes, offsets)


def test_hash64_of_a_long_key(engine: Any) -> None:
    assert engine.hash64(bytes(1000)) == xxhash.xxh64_intdigest(bytes(1000))
