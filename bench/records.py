"""The records of the benchmarks: 10 bytes of key, 90 of value, each following from its number."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from bench.sizes import VALUE_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = bytes(random.Random(11).choices(b"abcdefghijklmnopqrstuvwxyz0123456789 ", k=1 << 16))
_ROOM = len(_TEXT) - VALUE_BYTES
_EACH_KEY = 5


class Row(NamedTuple):
    """One record as every store must give it back."""

    offset: int
    key: bytes
    value: bytes


def key_of(number: int, count: int) -> bytes:
    """Of ``count`` records each key comes about five times, in no order."""
    return b"key-%06d" % (number * 2_654_435_761 % max(1, count // _EACH_KEY))


def value_of(number: int) -> bytes:
    start = number * 7_919 % _ROOM
    return b"%010d" % number + _TEXT[start : start + VALUE_BYTES - 10]


def rows(start: int, end: int, count: int | None = None) -> list[Row]:
    """The records numbered start … end - 1 of ``count``."""
    total = end if count is None else count
    return [Row(number, key_of(number, total), value_of(number)) for number in range(start, end)]


@lru_cache(maxsize=8)
def expected_table(count: int) -> pa.Table:
    """What a scan of the first ``count`` records must equal, whatever its chunks."""
    import pyarrow as pa

    made = rows(0, count)
    return pa.table(
        {
            "key": pa.array([row.key for row in made], pa.binary()),
            "value": pa.array([row.value for row in made], pa.binary()),
            "offset": pa.array(range(count), pa.int64()),
        }
    )
