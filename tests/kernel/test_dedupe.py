"""The map of keys and the set of exact keys against a dict and a set, on both kernels; what they refuse."""

from __future__ import annotations

import threading
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog import kernel
from stratalog.format import batch
from stratalog.model import Record
from tests.kernel.both import engine, plain_kernel

__all__ = ["engine"]

P61 = 2**61 - 1
some_keys = st.binary(max_size=40) | st.integers(0, 20).map(lambda i: b"key-%d" % i)


@given(st.binary(max_size=80), st.integers(0, 2**128 - 1))
def test_both_kernels_hash_alike(key: bytes, seed: int) -> None:
    found = kernel.hash_key(key, seed)
    assert found == plain_kernel().hash_key(key, seed)
    assert 0 <= found[0] < 2**64
    assert 0 <= found[1] < 2**32


def test_the_hash_tells_lengths_and_zeros_apart(engine: Any) -> None:
    """Words are padded with zeros: what a key ends with must still count."""
    keys = {bytes(n) for n in range(40)} | {b"a" + bytes(n) for n in range(40)}
    keys |= {bytes(n) + b"a" for n in range(40)}
    assert len({engine.hash_key(key, 5) for key in keys}) == len(keys)
    assert len({engine.hash_key(b"key", seed)[0] for seed in range(100)}) == 100
    assert len({engine.hash_key(b"key", seed)[1] for seed in range(100)}) == 100


def test_hashes_are_spread(engine: Any) -> None:
    """Keys that count up fill the range evenly: no run of slots gets more than chance gives it."""
    tops = sorted(engine.hash_key(b"%d" % i, 3)[0] >> 54 for i in range(4096))
    assert len(set(tops)) > 970  # 1024 boxes, 4096 keys: 1005 expected
    assert max(tops.count(top) for top in set(tops)) < 18
    assert all(a <= b for a, b in pairwise(tops))


@given(
    st.lists(st.tuples(some_keys, st.integers(0, 10**6)), max_size=60),
    st.integers(1, 70),
    st.integers(0, 1000),
)
def test_the_map_is_a_dict_of_largest_offsets(
    pairs: list[tuple[bytes, int]], records: int, base: int
) -> None:
    for one in (kernel, plain_kernel()):
        keys = one.KeyMap(one.KeyMap.memory_for(records), base)
        assert keys.capacity >= records
        wanted: dict[bytes, int] = {}
        for key, offset in pairs:
            room = offset < base or key in wanted or len(wanted) < keys.capacity
            assert keys.add(key, offset) == room
            if offset >= base and room:
                wanted[key] = max(offset, wanted.get(key, 0))
        assert len(keys) == len(wanted)
        assert all(keys.get(key) == offset for key, offset in wanted.items())
        assert keys.get(b"not one of them") is None
        keys.clear(base + 1)
        assert (len(keys), keys.full, keys.latest_offset, keys.base_offset) == (0, False, -1, base + 1)
        assert all(keys.get(key) is None for key in wanted)


def test_a_map_grows_to_its_limit() -> None:
    """Through every table it has, nothing is lost; at the end it takes what it said and no more."""
    keys = kernel.KeyMap(9 << 20, 0)
    assert keys.capacity == (9 * 2**16 - 9 * 2**13) * 85 // 100
    assert kernel.KeyMap.memory_for(keys.capacity) <= (9 << 20) + 256
    for i in range(keys.capacity):
        assert keys.add(b"%d" % i, i)
    assert not keys.full
    assert not keys.add(b"one more", 5)
    assert keys.full
    assert len(keys) == keys.capacity
    assert all(keys.get(b"%d" % i) == i for i in range(keys.capacity))
    assert keys.get(b"one more") is None


def test_the_interpreted_map_grows_too() -> None:
    keys = plain_kernel().KeyMap(9 << 20, 0)
    assert keys.capacity == kernel.KeyMap(9 << 20, 0).capacity
    for i in range(30_000):
        assert keys.add(b"%d" % i, i)
    assert all(keys.get(b"%d" % i) == i for i in range(0, 30_000, 100))


def test_keys_beyond_32_bits_of_offsets(engine: Any) -> None:
    keys = engine.KeyMap(4096, 10)
    assert keys.add(b"a", 10)
    assert keys.add(b"b", 10 + 2**32 - 2)
    assert (keys.get(b"a"), keys.get(b"b")) == (10, 10 + 2**32 - 2)
    assert not keys.add(b"c", 10 + 2**32 - 1)
    assert keys.full


def test_what_is_no_map(engine: Any) -> None:
    for memory in (0, 16, -5, 1 << 60):
        with pytest.raises((ValueError, MemoryError, OverflowError)):
            engine.KeyMap(memory, 0)
    with pytest.raises(ValueError, match="base offset"):
        engine.KeyMap(4096, -1)
    keys = engine.KeyMap(4096, 0)
    with pytest.raises(ValueError, match="base offset"):
        keys.clear(-1)
    with pytest.raises((TypeError, AttributeError)):
        keys.add("text", 1)
    state = array("q", bytes(64))
    for rows in ((-1, 1), (0, 1), (0, 2**60)):
        with pytest.raises(ValueError, match="outside the table"):
            engine.add_rows(keys, b"x", array("q"), *rows, -1, b"", 0, state)


def test_a_map_in_use_is_refused_to_others() -> None:
    """While the GIL is released, no second thread may change the memory under the first."""
    if not kernel.compiled:  # then nobody releases it, and the mark can be set by hand
        plain: Any = kernel.KeyMap(4096, 0)
        plain.users = -1
        for work in (lambda: plain.get(b"a"), lambda: plain.add(b"a", 1), lambda: plain.clear(0)):
            with pytest.raises(RuntimeError, match="another thread"):
                work()
        return
    parts = []
    for start in range(0, 400_000, 4000):
        made, _ = batch.encode_records(
            [Record(b"", b"%d" % (start + i)) for i in range(4000)],
            options=batch.BatchOptions(base_offset=start, leader_epoch=0, now_ms=0, max_bytes=1 << 30),
        )
        parts.append(bytes(made.data))
    log = b"".join(parts)
    scan = batch.scan(log)
    keys = kernel.KeyMap(64 << 20, 0)
    refused = threading.Event()
    stop = threading.Event()

    def meddle() -> None:
        while not stop.is_set():
            try:
                keys.add(b"meddler", 0)
            except RuntimeError:
                refused.set()

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        for _ in range(200):
            try:
                assert (
                    kernel.add_rows(keys, log, scan.table, 0, scan.n, -1, b"", 0, array("q", bytes(64))) == 0
                )
            except RuntimeError:
                continue
            if refused.is_set():
                break
    finally:
        stop.set()
        thread.join()
    assert refused.is_set()
    assert len(keys) == 400_001


@given(st.sets(some_keys, max_size=40), st.lists(some_keys, max_size=20))
def test_the_set_is_a_set(dropped: set[bytes], asked: list[bytes]) -> None:
    for one in (kernel, plain_kernel()):
        found = one.DropSet([*dropped, *dropped])
        assert len(found) == len(dropped)
        for key in [*dropped, *asked, b""]:
            assert (key in found) == (key in dropped)
        assert "text" not in found


def test_only_bytes_are_dropped(engine: Any) -> None:
    with pytest.raises(TypeError, match="must be bytes"):
        engine.DropSet([b"a", "b"])


def test_what_is_watched_belongs_to_one_pass(engine: Any) -> None:
    """Bits are set for earlier records of a key, in whatever order they came, and cleared with the map."""
    keys = engine.KeyMap(4096, 100, 7)
    with pytest.raises((ValueError, OverflowError)):
        keys.watch(-1)
    keys.watch(1)
    for key, offset in ((b"a", 103), (b"b", 101), (b"a", 100), (b"b", 101), (b"a", 107), (b"b", 109)):
        assert keys.add(key, offset)
    with pytest.raises(ValueError, match="before the first key"):
        keys.watch(2)
    assert filtered(engine, keys, 100, 10) == [2, 4, 5, 6, 7, 8, 9]
    keys.clear(100)
    assert filtered(engine, keys, 100, 10) == list(range(10))


def filtered(engine: Any, keys: Any, base: int, count: int) -> list[int]:
    """Return which of some records of another key stay: only bits can make them go."""
    records = [Record(b"v", b"other") for _ in range(count)]
    made = bytearray()
    size = engine.encode_tuples(made, records, 0, 5, 1 << 16, base, 0, 0, -1, -1, -1)[0]
    scan = batch.scan(made[:size])
    keys.latest_offset = base + count
    target, rows = bytearray(2 * size), array("q", bytes(8 * 14))
    scratch = (array("q", bytes(512)), array("q", bytes(512)), bytearray(64))
    state = array("q", bytes(128))
    rules = (b"", keys, None, array("q"), 0, -1)
    assert engine.filter_rows(made[:size], scan.table, 0, 1, -1, *rules, target, rows, *scratch, state) == 0
    left = batch.scan(target[: state[4]])
    found = batch.decode_records(target[: state[4]], left, topic="t", partition=0)
    return [record.offset - base for record in found]
