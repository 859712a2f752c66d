"""The compiled and the interpreted kernel answer alike, to right bytes and to wrong ones."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from array import array
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog import kernel
from stratalog.errors import InvalidRecordError
from stratalog.kernel import loader
from stratalog.model import Record
from tests.kernel.both import engine, plain_kernel
from tests.kernel.fuzz_kernel import one_round

__all__ = ["engine"]

ROUNDS = 1500


def test_hostile_bytes_alike() -> None:
    other = plain_kernel()
    kernel.use_error(ValueError)
    other.use_error(ValueError)
    try:
        for seed in range(ROUNDS):
            one_round(seed, other)
    finally:
        kernel.use_error(InvalidRecordError)
        other.use_error(InvalidRecordError)


def test_a_lying_table_is_survived() -> None:
    for seed in range(10_000, 10_000 + ROUNDS):
        one_round(seed)


blobs = st.none() | st.binary(max_size=40) | st.integers(100, 300).map(bytes)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple)
stamps = st.none() | st.integers(-1, 2**63 - 1)
record_lists = st.lists(st.builds(Record, blobs, blobs, headers, stamps), min_size=1, max_size=20)


sizes = st.integers(0, 140) | st.sampled_from([8191, 20_000])
plain_rows = st.lists(st.tuples(sizes, sizes, st.integers(-2, 2**40)), min_size=1, max_size=40)


@settings(max_examples=300)
@given(plain_rows, st.integers(61, 70_000), st.integers(0, 200), st.integers(0, 3), st.integers(0, 39))
def test_plain_columns_alike(
    made: list[tuple[int, int, int]], limit: int, spare: int, columns: int, row: int
) -> None:
    """Rows without nulls and headers take a shorter way in compiled code, up to the last that fits."""
    ends = [array("i", [0]), array("i", [0])]
    for each in made:
        for at in (0, 1):
            ends[at].append(ends[at][-1] + each[at])
    data = [bytes(number % 251 for number in range(each[-1] + spare % 3)) for each in ends]
    stamps = array("q", [each[2] for each in made])
    args = [ends[0], data[0], b"", 0, ends[1], data[1], b"", 0, stamps, b"", 0]
    if columns & 1:
        args[4:8] = [array("i"), b"", b"", 0]
    if columns & 2:
        args[8] = array("q")
    args += [array("i"), b"", 0, *[array("i"), b"", b"", 0] * 2]
    said = []
    for engine_ in (kernel, plain_kernel()):
        target, state = bytearray(b"x" * (limit + spare)), array("q", bytes(64))
        code = engine_.encode_columns(
            target, row % len(made), len(made), limit, 7, *args, 9, 0, 0, -1, -1, -1, state
        )
        assert target[limit:] == b"x" * spare
        said.append((code, state, target[: state[0]] if state[1] and not code else b""))
    assert said[0] == said[1]


@settings(max_examples=200)
@given(record_lists, st.integers(0, 2**62), st.sampled_from([0, 8, 0x10]), st.integers(70, 2000))
def test_encoding_alike(made: list[Record], base_offset: int, attributes: int, max_bytes: int) -> None:
    args = (made, 0, 7, max_bytes, base_offset, 3, attributes, 9, 1, 5)
    data, same = bytearray(), bytearray(b"x" * 300)
    said = size, count, _, largest, crc = kernel.encode_tuples(data, *args)
    assert plain_kernel().encode_tuples(same, *args) == said
    if not count:
        assert size > max_bytes
        return
    del data[size:], same[size:]
    assert data == same
    assert crc == kernel.crc32c(data)
    for one in (kernel, plain_kernel()):
        table = array("q", bytes(8 * 14))
        info = array("q", (0, 0, 0, 0, 0, 0, 0, -1, 0))
        assert one.scan_batches(data, 0, len(data), True, False, table, 0, info) == 1
        assert info[0] == 0
        out: list[Record] = []
        bounds = array("q", (0, 2**63 - 1, -(2**63), 2**63 - 1))
        state = array("q", bytes(64))
        assert one.decode_tuples(data, table, 0, 1, -1, bounds, b"", Record, "t", 2, out, state) == 0
        assert len(out) == count
        for i, (was, now) in enumerate(zip(made, out, strict=False)):
            stamp = 7 if was.timestamp is None else was.timestamp
            assert now == Record(
                was.value,
                was.key,
                was.headers,
                largest if attributes & 8 else stamp,
                base_offset + i,
                2,
                attributes >> 3 & 1,
                "t",
            )
            end = base_offset + count
            found = one.find_tuple(data, base_offset + i, base_offset, end - 1, end, Record, "t", 2)
            assert found == (None if attributes & 0x67 else now)
        assert one.find_tuple(data, base_offset + count, base_offset, -1, 2**63 - 1, Record, "t", 2) is None


def test_a_single_record_is_right_or_not_found(engine: Any) -> None:
    """Whichever byte of two batches is damaged: the record is the one that was written, or none."""
    made = [Record(b"v%d" % i, b"k%d" % i, (("h", b"x"),), 1000 + i) for i in range(6)]
    log = b""
    for start in (0, 3):
        target = bytearray()
        size, *_ = engine.encode_tuples(target, made[: start + 3], start, 0, 1 << 20, start, 0, 0, -1, -1, -1)
        log += target[:size]

    def at(data: bytes, offset: int, ceiling: int = 6) -> Record | None:
        found: Record | None = engine.find_tuple(data, offset, 0, 2, ceiling, Record, "t", 0)
        return found

    written = [at(log, offset) for offset in range(6)]
    assert [record and record[:4] for record in written] == [tuple(record[:4]) for record in made]
    assert at(log, 6) is None
    assert at(log, 4, ceiling=5) is None
    assert all(at(log[:cut], 5) is None for cut in range(len(log)))
    for position in range(len(log)):
        for bit in (1, 0x80):
            damaged = bytearray(log)
            damaged[position] ^= bit
            for offset in (1, 4):
                assert at(bytes(damaged), offset) in (written[offset], None), (position, bit)


def test_tuples_survive_the_collector(engine: Any) -> None:
    made = [Record(b"v%d" % i, b"k", (("h", b"x"),), i) for i in range(2000)]
    data = bytearray()
    size, count, *_ = engine.encode_tuples(data, made, 0, 0, 1 << 20, 0, 0, 0, -1, -1, -1)
    del data[size:]
    table = array("q", bytes(8 * 14))
    engine.scan_batches(data, 0, len(data), True, False, table, 0, array("q", (0, 0, 0, 0, 0, 0, 0, -1, 0)))
    out: list[Record] = []
    bounds = array("q", (0, 2**63 - 1, -(2**63), 2**63 - 1))
    engine.decode_tuples(data, table, 0, 1, -1, bounds, b"", Record, "t", 2, out, array("q", bytes(64)))
    gc.collect()
    assert len(out) == count == 2000
    assert all(type(record) is Record for record in out)
    assert out[3]._replace(key=None).key is None
    del out
    gc.collect()


@pytest.mark.parametrize("change", ["shrink", "grow", "swap", "cut target"])
def test_things_changed_while_encoded(engine: Any, change: str) -> None:
    """Headers may run any code: the list they sit in, and the buffer they go to, can change meanwhile."""

    class Sly(list[Any]):
        def __iter__(self) -> Any:
            if change == "shrink":
                del records[1:]
            elif change == "grow":
                records.append(Record(b"e"))
            elif change == "swap":
                records[0] = Record(bytes(5000))
            else:
                target.clear()
            return super().__iter__()

    target = bytearray(1000)
    records: list[Any] = [Record(b"a"), Record(b"b"), Record(b"c", None, Sly([("k", b"v")])), Record(b"d")]
    args = (target, records, 0, 0, 1 << 20, 0, 0, 0, -1, -1, -1)
    if change == "swap":
        assert engine.encode_tuples(*args)[1] == 4
    else:
        with pytest.raises(RuntimeError, match="changed"):
            engine.encode_tuples(*args)


def test_one_module_that_was_not_built_makes_all_of_them_interpreted() -> None:
    """Compiled modules call each other in C, so the two forms cannot be mixed."""
    program = """
from pathlib import Path
there = Path.exists
Path.exists = lambda self: there(self) and not (self.name.startswith("_produce.") and self.suffix != ".py")
from stratalog import kernel
print(kernel.compiled, kernel.AppendInfo().n, kernel.crc32c(b"123456789") == 0xE3069283)
"""
    env = {name: value for name, value in os.environ.items() if name != "STRATALOG_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "0", "True"]


@pytest.mark.parametrize("pure", ["0", "1"])
def test_the_choice_of_kernel(pure: str) -> None:
    """STRATALOG_PURE=1 runs interpreted, without Cython's package and without leaving a fake one behind."""
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("Cython", "cython"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
from stratalog import kernel
assert "cython" not in sys.modules
assert kernel.crc32c(b"123456789") == 0xE3069283
print(kernel.compiled)
"""
    env = {**os.environ, "STRATALOG_PURE": pure}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    built = any(Path(loader.__file__).with_name("_scan" + suffix).exists() for suffix in EXTENSION_SUFFIXES)
    assert done.stdout.strip() == str(built and pure == "0")
