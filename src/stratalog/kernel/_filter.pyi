from array import array

from stratalog.kernel._keys import DropSet, KeyMap

Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview

def blank(size: int) -> bytearray: ...
def find_rows(table: Numbers, row: int, end_row: int, mask: int, rows: Numbers) -> int: ...
def filter_rows(
    source: Bytes,
    table: Numbers,
    row: int,
    end_row: int,
    body: int,
    retention: Bytes,
    keys: KeyMap | None,
    drop_keys: DropSet | None,
    keep_offsets: Numbers,
    now_ms: int,
    horizon_ms: int,
    target: bytearray | memoryview,
    made: Numbers,
    starts: Numbers,
    stamps: Numbers,
    marks: bytearray | memoryview,
    state: Numbers,
) -> int: ...
