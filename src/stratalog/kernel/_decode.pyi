from array import array
from typing import Any

Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview

def decode_tuples(
    source: Bytes,
    table: Numbers,
    row: int,
    end_row: int,
    body: int,
    bounds: Numbers,
    skip: Bytes,
    cls: type[tuple[Any, ...]],
    topic: str,
    partition: int,
    out: list[Any],
    state: Numbers,
) -> int: ...
def decode_columns(
    source: Bytes,
    table: Numbers,
    row: int,
    end_row: int,
    body: int,
    bounds: Numbers,
    skip: Bytes,
    want: int,
    offsets: Numbers,
    timestamps: Numbers,
    types: Numbers,
    key_ends: Numbers,
    key_data: Bytes,
    key_valid: Bytes,
    value_ends: Numbers,
    value_data: Bytes,
    value_valid: Bytes,
    header_ends: Numbers,
    header_key_ends: Numbers,
    header_key_data: Bytes,
    header_value_ends: Numbers,
    header_value_data: Bytes,
    header_value_valid: Bytes,
    state: Numbers,
) -> int: ...
