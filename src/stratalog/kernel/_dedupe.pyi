from array import array

from stratalog.kernel._keys import KeyMap

Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview

def add_rows(
    keys: KeyMap,
    source: Bytes,
    table: Numbers,
    row: int,
    end_row: int,
    body: int,
    skip: Bytes,
    lo: int,
    state: Numbers,
) -> int: ...
