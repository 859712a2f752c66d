"""The Python types of the kernel. The C types stand in the .pxd of each module."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview
Numbers = array[int] | memoryview
Header = tuple[str, bytes | None]

__all__: list[str]
MODULES: tuple[str, ...]
compiled: bool

# -- _hash: checksums and hashes

def crc32c(data: Bytes, crc: int = 0) -> int: ...
def crc32c_combine(crc_a: int, crc_b: int, len_b: int) -> int: ...
def murmur2(key: bytes) -> int: ...
def partition_for_key(key: bytes, partitions: int) -> int: ...
def hash64(key: bytes) -> int: ...
def key_row(key: bytes, offset: int) -> bytes: ...
def key_rows(hashes: array[int], offsets: array[int]) -> bytes: ...
def hash_keys(
    data: Bytes, ends: Numbers, valid: Bytes, offsets: Numbers, rows: int, hashes: Numbers, kept: Numbers
) -> int: ...

# -- _scan: batch headers

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
def sum_batches(
    table: Numbers, row: int, end_row: int, bounds: Numbers, skip: Bytes, want: int, out: Numbers
) -> int: ...
def index_batches(
    table: Numbers, rows: int, interval_bytes: int, base_position: int, state: Numbers, out: Numbers
) -> int: ...

# -- _decode: records of batches

def walk_records(
    source: Bytes,
    table: Numbers,
    row: int,
    end_row: int,
    body: int,
    state: Numbers,
) -> int: ...
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
def find_tuple(
    source: Bytes,
    offset: int,
    expect: int,
    first_last: int,
    ceiling: int,
    cls: type[T],
    topic: str,
    partition: int,
) -> T | None: ...
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

# -- _encode: records into batches

def use_error(error: type[Exception]) -> None: ...
def encode_one(
    value: bytes | None,
    key: bytes | None,
    headers: Sequence[Header] | None,
    timestamp: int,
    base_offset: int,
    leader_epoch: int,
    timestamp_type: int,
) -> bytes: ...
def encode_tuples(
    target: bytearray,
    records: list[Any],
    start: int,
    now_ms: int,
    max_bytes: int,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> tuple[int, int, int, int, int]: ...
def encode_columns(
    target: bytearray | memoryview, row: int, rows: int, max_bytes: int, now_ms: int, *columns_and_header: Any
) -> int: ...

# -- _ledger: the segment being written

INDEX_ENTRY_DUE: int
BLOCK_FULL: int
FIRST_BATCH: int
IN_DOUBT: int
ROOM_DUE: int
NEVER: int

def now_ms() -> int: ...

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
        data: Bytes | int,
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
        headers: Sequence[Header] | None,
        timestamp: int,
        leader_epoch: int,
        timestamp_type: int,
        now_ms: int,
        max_bytes: int,
    ) -> int: ...
    def fits(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool: ...
    def took(
        self,
        data: Bytes | int,
        size: int,
        base_offset: int,
        last_offset: int,
        count: int,
        min_timestamp: int,
        max_timestamp: int,
    ) -> int: ...

class Appender(Generic[T]):
    ready: bool
    def __init__(
        self,
        writer: object,
        lock: object,
        now_ms: Callable[[], int],
        ends: object,
        made: type[T],
        partition: int,
    ) -> None: ...
    def renew(
        self,
        ledger: Ledger,
        keyed: bool,
        leader_epoch: int,
        timestamp_type: int,
        max_bytes: int,
        needs_key: bool,
        acks_wait: bool,
        simple: bool = False,
    ) -> None: ...
    def append_simple(
        self, value: bytes | None, key: bytes | None, headers: Sequence[Header] | None, timestamp: int | None
    ) -> T | None: ...
    def append(
        self, value: bytes | None, key: bytes | None, headers: Sequence[Header] | None, timestamp: int | None
    ) -> T | None: ...

def add_batches(
    sums: BlockSums,
    source: Bytes,
    base_position: int,
    table: array[int],
    row: int,
    rows: int,
) -> int: ...

# -- _produce: ready-made batches

class Producer:
    epoch: int
    coordinator_epoch: int
    last_timestamp: int
    txn_first_offset: int
    @property
    def count(self) -> int: ...
    def copy(self) -> Producer: ...
    def last_sequence(self) -> int: ...
    def last_batch(self) -> tuple[int, int, int, int] | None: ...
    def find(
        self, epoch: int, base_sequence: int, last_sequence: int, transactional: bool
    ) -> tuple[int, int, int] | None: ...
    def check(self, epoch: int, base_sequence: int, transactional: bool, client: bool) -> int: ...
    def check_marker(self, epoch: int, coordinator_epoch: int, transaction_version: int) -> int: ...
    def add(
        self,
        epoch: int,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp: int,
        transactional: bool,
    ) -> bool: ...
    def end(self, epoch: int, coordinator_epoch: int, timestamp: int) -> int: ...

class AppendInfo:
    @property
    def data(self) -> bytearray | memoryview: ...
    @property
    def n(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def compressed(self) -> int: ...
    @property
    def producers(self) -> int: ...
    @property
    def batch_index(self) -> int: ...
    @property
    def record_index(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def row(self) -> int: ...
    @property
    def written(self) -> int: ...
    def release(self) -> None: ...
    def check(
        self,
        data: bytearray | memoryview,
        max_bytes: int,
        keyed: bool,
        client: bool,
        oldest: int,
        newest: int,
    ) -> int: ...
    def walk(self, row: int, body: Bytes) -> int: ...
    def header(self, row: int) -> tuple[int, ...]: ...
    def replace(self, data: bytearray | memoryview, places: Sequence[tuple[int, int, int, int]]) -> None: ...
    def admit(self, producers: dict[int, Producer], client: bool) -> int: ...
    def place(self, base_offset: int, leader_epoch: int, append_time: bool, append_time_ms: int) -> int: ...
    def next_batch(self) -> tuple[int, int, int, int]: ...
    def write(
        self,
        ledger: Ledger,
        pwrite: Callable[[bytearray | memoryview, int], None],
        now_ms: int,
        forced: bool,
    ) -> int: ...
    def account(self, ledger: Ledger) -> int: ...
    def remember(self, producers: dict[int, Producer], open_txns: dict[int, int], first: int) -> None: ...

# -- _keys: keys by their hash

class KeyMap:
    latest_offset: int
    def __init__(self, memory_bytes: int, base_offset: int, seed: int | None = None) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def full(self) -> bool: ...
    @staticmethod
    def memory_for(records: int) -> int: ...
    def clear(self, base_offset: int) -> None: ...
    def watch(self, size: int) -> None: ...
    def __len__(self) -> int: ...
    def get(self, key: bytes) -> int | None: ...
    def add(self, key: bytes, offset: int) -> bool: ...

class DropSet:
    def __init__(self, keys: Iterable[bytes]) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: object) -> bool: ...

def hash_key(key: bytes, seed: int) -> tuple[int, int]: ...
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

# -- _filter: batches with records left out

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

# -- _wire: Kafka's messages

WIRE_KINDS: dict[str, int]

class WirePlan:
    cls: type[Any]
    slots: int
    flexible: bool
    least: int
    def __init__(
        self, cls: type[Any], rows: Sequence[tuple[Any, ...]], defaults: Sequence[Any], flexible: bool
    ) -> None: ...

def decode_message(
    plan: WirePlan, source: Bytes, start: int = 0, end: int = -1, most: int = 0x7FFFFFFF
) -> tuple[Any, int]: ...
def encode_message(
    plan: WirePlan,
    value: Any,
    head: bytes = b"",
    framed: bool = False,
    gaps: list[tuple[int, Any]] | None = None,
) -> bytes: ...
def receive(fd: int, buffer: bytearray | memoryview, start: int) -> int: ...
def send(fd: int, data: bytes) -> int: ...
def parse_produce(frame: Bytes) -> tuple[int, int, int, bytes, int, int, int, int] | None: ...
def produce_answer(
    version: int,
    correlation: int,
    topic: bytes,
    partition: int,
    base_offset: int,
    append_time: int,
    log_start_offset: int,
) -> bytes: ...
