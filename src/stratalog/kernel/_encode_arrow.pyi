from array import array
from typing import Any

Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview

def encode_columns(
    target: bytearray | memoryview, row: int, rows: int, max_bytes: int, now_ms: int, *columns_and_header: Any
) -> int: ...
