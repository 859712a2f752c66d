from array import array

Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview

def walk_records(
    source: Bytes,
    table: Numbers,
    row: int,
    end_row: int,
    body: int,
    strict: bool,
    keyed: bool,
    state: Numbers,
) -> int: ...
