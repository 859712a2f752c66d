from array import array
from collections.abc import Callable, Sequence

INDEX_ENTRY_DUE: int
BLOCK_FULL: int
FIRST_BATCH: int
IN_DOUBT: int
ROOM_DUE: int
NEVER: int
BLOCK_BYTES: int

class BlockSums:
    start: int
    end: int
    crc: int
    first_offset: int
    last_offset: int
    records: int
    batches: int
    min_timestamp: int
    max_timestamp: int
    next_offset: int
    contiguous: bool
    def __init__(self, start: int, next_offset: int) -> None: ...
    def begin(self, start: int) -> None: ...
    def add(
        self,
        position: int,
        size: int,
        data: bytes | bytearray | memoryview | int,
        first_offset: int,
        last_offset: int,
        count: int,
        min_timestamp: int,
        max_timestamp: int,
    ) -> int: ...

class Ledger:
    size: int
    next_offset: int
    last_position: int
    bytes_since_entry: int
    max_timestamp: int
    offset_of_max_timestamp: int
    interval_bytes: int
    roll_bytes: int
    roll_offset: int
    roll_timestamp: int
    roll_now_ms: int
    room_until: int
    sums: BlockSums | None
    in_doubt: bool
    def __init__(self, base_offset: int, size: int, next_offset: int) -> None: ...
    def append_one(
        self,
        pwrite: Callable[[bytes, int], None],
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        timestamp: int,
        leader_epoch: int,
        timestamp_type: int,
        now_ms: int,
        max_bytes: int,
    ) -> int: ...
    def fits(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool: ...
    def took(
        self,
        data: bytes | bytearray | memoryview | int,
        size: int,
        base_offset: int,
        last_offset: int,
        count: int,
        min_timestamp: int,
        max_timestamp: int,
    ) -> int: ...

def add_batches(
    sums: BlockSums,
    source: bytes | bytearray | memoryview,
    base_position: int,
    table: array[int],
    row: int,
    rows: int,
) -> int: ...
