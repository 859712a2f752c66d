from array import array

Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview

def walk_records(
    source: Bytes,
    table: Numbers,
    row: int,
    end_row: int,
    body: int,
    state: Numbers,
) -> int: ...
