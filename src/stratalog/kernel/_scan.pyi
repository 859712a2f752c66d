from array import array

Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview

HEADER_SIZE: int
WIDTH: int

def scan_batches(
    source: Bytes,
    start: int,
    end: int,
    check_crc: bool,
    contiguous: bool,
    table: Numbers,
    row: int,
    info: Numbers,
    reach: int = -1,
) -> int: ...
def find_row(table: Numbers, rows: int, column: int, least: int) -> int: ...
def plan_run(
    table: Numbers, row: int, end_row: int, bounds: Numbers, skip: Bytes, max_bytes: int, out: Numbers
) -> bool: ...
def index_batches(
    table: Numbers, rows: int, interval_bytes: int, base_position: int, state: Numbers, out: Numbers
) -> int: ...
