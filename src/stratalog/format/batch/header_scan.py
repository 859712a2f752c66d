"""Record batch headers: found in a buffer, checked, tabled, indexed.

    byte  size  field
    0     8     baseOffset
    8     4     length            bytes after this field; a whole batch is length + 12
    12    4     partitionLeaderEpoch
    16    1     magic             2
    17    4     crc               CRC-32C of everything after it
    21    2     attributes        0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
    23    4     lastOffsetDelta
    27    8     baseTimestamp     of the first record, or the delete horizon
    35    8     maxTimestamp
    43    8     producerId
    51    2     producerEpoch
    53    4     baseSequence
    57    4     count
    61          records, compressed as one block when the codec says so

Pure functions over buffers: no file is touched here. A crash may leave a batch cut short (PARTIAL), a
preallocated tail (ZERO) or bytes that fail their CRC (CORRUPT); a scan says which, and where.
"""

from __future__ import annotations

import enum
import struct
import zlib
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from stratalog import kernel
from stratalog.format.layout import Layout, make_struct

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
CRC_FROM = 21
"""The first byte that a batch's own CRC covers: the attributes."""
LENGTH_FROM = 12
"""The first byte that a batch's length counts: the leader epoch."""
MAGIC = 2
WIDTH = 14  # numbers a batch takes in a scan's table
MAX_SEQUENCE = 2**31 - 1
_FIRST_ROWS = 64
_NO_ROWS = array("q", bytes(8 * WIDTH * _FIRST_ROWS))
_NO_INFO = array("q", (0, 0, 0, 0, 0, 0, 0, -1, 0))
NEWEST_GUESS = 15  # a magic up to here is taken for a newer format, above it for garbage

LAYOUT: Layout = (
    ("baseOffset", "int64", 8),
    ("length", "int32", 4),
    ("partitionLeaderEpoch", "int32", 4),
    ("magic", "int8", 1),
    ("crc", "uint32", 4),
    ("attributes", "int16", 2),
    ("lastOffsetDelta", "int32", 4),
    ("baseTimestamp", "int64", 8),
    ("maxTimestamp", "int64", 8),
    ("producerId", "int64", 8),
    ("producerEpoch", "int16", 2),
    ("baseSequence", "int32", 4),
    ("count", "int32", 4),
)


_new_tuple = tuple.__new__  # a named tuple's own costs a Python call


class BatchHeader(NamedTuple):
    """One batch. ``position`` and ``size`` (header included) are within the scanned buffer."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    leader_epoch: int
    attributes: int
    crc: int
    base_timestamp: int
    max_timestamp: int
    min_timestamp: int  # -1 until measured or validated
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def timestamp_type(self) -> int:
        return (self.attributes >> 3) & 1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & 0x40)

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap around to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset - self.base_offset) & MAX_SEQUENCE


class Stop(enum.Enum):
    """Why a scan ended."""

    END = "end"  # at the end of the buffer, after a whole batch
    PARTIAL = "partial"  # the batch at the end runs past the buffer
    ZERO = "zero"  # nothing but zeros: a preallocated tail
    FULL = "full"  # ``max_batches`` were found
    CORRUPT = "corrupt"
    UNSUPPORTED = "unsupported"  # an older or newer format, or an unknown codec: not damage


_END, _PARTIAL = Stop.END, Stop.PARTIAL


class Scan:
    """The batches a scan found, in order, as a table of numbers.

    ``records`` counts those outside control batches; ``needed`` is, for PARTIAL, how long the batch at
    ``end`` is if its header was in the buffer, else the size of a header.
    """

    __slots__ = (
        "_left",
        "_reason",
        "end",
        "has_producers",
        "max_timestamp",
        "n",
        "needed",
        "records",
        "stop",
        "table",
    )

    def __init__(
        self,
        table: array[int],
        n: int,
        end: int,
        stop: Stop,
        reason: str,
        needed: int,
        records: int,
        max_timestamp: int,
        has_producers: bool,
        left: int = 0,
    ) -> None:
        self.table = table
        self.n = n
        self.end = end
        self.stop = stop
        self._reason = reason
        self._left = left
        self.needed = needed
        self.records = records
        self.max_timestamp = max_timestamp
        self.has_producers = has_producers

    def __len__(self) -> int:
        return self.n

    @property
    def reason(self) -> str:
        """What the batch at ``end`` is like, in words."""
        if self.stop is Stop.PARTIAL and not self._reason:
            return f"the batch needs {self.needed} bytes, {self._left} are left"
        return self._reason

    def span(self, i: int) -> tuple[int, int, int]:
        """Return where a batch begins and ends in the buffer, and its last offset."""
        position, size, _, last_offset = self.table[i * WIDTH : i * WIDTH + 4]
        return position, position + size, last_offset

    def header(self, i: int) -> BatchHeader:
        if not 0 <= i < self.n:
            raise IndexError(f"batch {i} of {self.n}")
        return _new_tuple(BatchHeader, self.table[i * WIDTH : (i + 1) * WIDTH])

    def __iter__(self) -> Iterator[BatchHeader]:
        for i in range(self.n):
            yield self.header(i)

    @property
    def first_base_offset(self) -> int:
        """The first batch's base offset; -1 when there is none."""
        return self.table[2] if self.n else -1

    @property
    def last_offset(self) -> int:
        """The last batch's last offset; -1 when there is none."""
        return self.table[(self.n - 1) * WIDTH + 3] if self.n else -1

    @property
    def is_dense(self) -> bool:
        """True when there is a record at each offset from the first batch to the last."""
        table = self.table
        bases, lasts, counts = table[2::WIDTH], table[3::WIDTH], table[4::WIDTH]
        return all(
            last - base + 1 == count for base, last, count in zip(bases, lasts, counts, strict=True)
        ) and all(base == last + 1 for base, last in zip(bases[1:], lasts, strict=False))

    def find_offset(self, offset: int) -> int:
        """Return the first batch whose last offset is not below ``offset``, or n."""
        return kernel.find_row(self.table, self.n, 3, offset)

    def find_position(self, position: int) -> int:
        """Return the first batch that does not begin before ``position``, or n."""
        return kernel.find_row(self.table, self.n, 0, position)

    def __repr__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"Scan({self.n} batches, end={self.end}, {self.stop.name}{why})"


class Peek(NamedTuple):
    """What a header says of its batch, before anything of it has been checked against the records."""

    base_offset: int
    size: int
    last_offset: int
    max_timestamp: int


_PEEK = struct.Struct(">qi4xb6xi8xq18x")


def peek(header: Buffer) -> Peek | None:
    """Read the header at the start of ``header``; None if it is cut short or is not one of a batch."""
    if len(header) < HEADER_SIZE:
        return None
    base_offset, length, magic, delta, max_timestamp = _PEEK.unpack_from(header)
    if magic != MAGIC or base_offset < 0 or length < HEADER_SIZE - LENGTH_FROM or delta < 0:
        return None
    return _new_tuple(Peek, (base_offset, length + LENGTH_FROM, base_offset + delta, max_timestamp))


def has_transactional(data: Buffer) -> bool:
    """Return True if one of several batches belongs to a transaction. Looks at their attributes alone."""
    at = 0
    while at + 23 <= len(data):
        if data[at + 22] & 0x10:
            return True
        at += 12 + max(0, int.from_bytes(data[at + 8 : at + 12], "big", signed=True))
    return False


_LENGTH = struct.Struct(">8xi")
_PLACE = struct.Struct(">qii")  # base offset, length, leader epoch: outside the CRC
_PRODUCER = struct.Struct(">qhi")  # producer id, epoch, base sequence
_CRC = struct.Struct(">I")


def size_of(header: Buffer) -> int | None:
    """Return a batch's size by its length field alone; None when that is cut short or too small."""
    length = _LENGTH.unpack_from(header)[0] if len(header) >= _LENGTH.size else 0
    return length + LENGTH_FROM if length >= HEADER_SIZE - LENGTH_FROM else None


def find_magic(data: bytes, start: int) -> int:
    """Return the first place from ``start`` on where a header's magic byte fits; -1 when there is none."""
    return max(data.find(bytes([MAGIC]), start + 16) - 16, -1)


def place(header: Buffer, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first bytes of a batch with another base offset and leader epoch; no CRC covers them."""
    return _PLACE.pack(base_offset, _LENGTH.unpack_from(header)[0], leader_epoch)


def set_producer(
    batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Set the producer of a whole batch in place, and its CRC."""
    _PRODUCER.pack_into(batch, 43, producer_id, producer_epoch, base_sequence)
    with memoryview(batch) as view:
        _CRC.pack_into(batch, 17, kernel.crc32c(view[21:]))


def as_view(buf: Buffer) -> memoryview:
    """``buf`` as a flat view of unsigned bytes."""
    view = memoryview(buf)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def scan(
    buf: Buffer,
    start: int = 0,
    end: int | None = None,
    *,
    check_crc: bool = True,
    expect: int | None = None,
    max_batches: int = 1 << 20,
    reach: int = -1,
    due: int = 0,
    more: int = 0,
) -> Scan:
    """Read the batches of buf[start:end] until the first that is not whole and right.

    With ``expect`` the first batch must have that base offset and each next one must follow without a gap;
    without it offsets must only increase, from ``due`` on. With ``reach`` past the end only headers are read:
    a batch may go on behind the buffer, up to that position, and ``Scan.end`` then lies there, too.

    A batch behind a gap is compared with the one that follows it: see `_misplaced`. ``more`` bytes of the log
    lie behind the buffer: a last batch that only they can confirm is left out, as if it were not whole.
    """
    view = buf if type(buf) is bytes else as_view(buf)
    size = len(view)
    if end is None:
        end = size
    if not 0 <= start <= end <= size:
        raise ValueError(f"range {start}:{end} outside a buffer of {size} bytes")
    rows = min(max_batches, _FIRST_ROWS, (end - start) // HEADER_SIZE + 1)
    table = _NO_ROWS[: WIDTH * rows]
    info = _NO_INFO[:]
    info[3] = due if expect is None else expect
    n = 0
    position = start
    while True:
        n = kernel.scan_batches(view, position, end, check_crc, expect is not None, table, n, info, reach)
        position = info[1]
        if info[0] != 3 or n >= max_batches:
            break
        average = (position - start) // n
        rows = min(max_batches, max(2 * n, n + (end - position) // average + 64))
        table.frombytes(bytes(8 * WIDTH * (rows - n)))
    del table[n * WIDTH :]
    if expect is None and n:
        wrong = _misplaced(view, table, n, position, end, due, more)
        if wrong is not None:
            first = table[(n - 1) * WIDTH]
            before = scan(buf, start, first, check_crc=False)
            return Scan(
                before.table,
                before.n,
                first,
                *wrong,
                records=before.records,
                max_timestamp=before.max_timestamp,
                has_producers=before.has_producers,
                left=end - first,
            )
    code, _, needed, _, _, _, records, largest, producers = info
    stop, reason = _PARTIAL if code else _END, ""
    if code > 1:
        stop, reason, needed = _stop(as_view(buf), position, end, info)
    return Scan(table, n, position, stop, reason, needed, records, largest, producers > 0, end - position)


def _misplaced(
    view: bytes | memoryview, table: array[int], n: int, position: int, end: int, due: int, more: int
) -> tuple[Stop, str, int] | None:
    """Return what is wrong with the last batch of a scan if its base offset was raised; None if it was not.

    No CRC covers a base offset. One that was raised leaves a gap before the batch, and the batch behind it
    begins where it would end without that gap. In a cleaned log, where gaps are meant, the next one begins
    after it.
    """
    _, size, base, last = table[(n - 1) * WIDTH : (n - 1) * WIDTH + 4]
    if n > 1:
        due = table[(n - 2) * WIDTH + 3] + 1
    if base <= due:
        return None
    if end - position < 8:
        needed = min(size + HEADER_SIZE, end - position + size + more)
        return (Stop.PARTIAL, "", needed) if more else None
    following = int.from_bytes(view[position : position + 8], "big")
    if following != due + last - base + 1:
        return None
    return Stop.CORRUPT, f"base offset {base} where {due} was due: the next batch begins with {following}", 0


def _stop(view: memoryview, position: int, end: int, info: array[int]) -> tuple[Stop, str, int]:
    code, a, b = info[0], info[4], info[5]
    match code:
        case 2:
            return Stop.ZERO, "zeros from here on", 0
        case 3:
            return Stop.FULL, "", 0
        case 10:
            return Stop.CORRUPT, f"invalid batch length {a}", 0
        case 11:
            return _foreign_magic(view, position, end, a, b)
        case 12:
            return Stop.UNSUPPORTED, f"unknown compression codec {a}", 0
        case 13:
            return Stop.CORRUPT, f"invalid base offset {a}", 0
        case 14:
            return Stop.CORRUPT, f"invalid last offset delta {a}", 0
        case 15:
            return Stop.CORRUPT, f"invalid record count {a}", 0
        case 16:
            return Stop.CORRUPT, f"base offset {b} where {a} was expected", 0
        case 17:
            return Stop.CORRUPT, f"base offset {b} where at least {a} was due", 0
        case _:
            return Stop.CORRUPT, f"CRC mismatch: stored {a:#010x}, computed {b:#010x}", 0


def _foreign_magic(view: memoryview, position: int, end: int, magic: int, size: int) -> tuple[Stop, str, int]:
    """Not magic 2: an older or newer format, or garbage? Old messages have a CRC-32 that can tell."""
    if magic > NEWEST_GUESS:
        return Stop.CORRUPT, f"invalid magic {magic}", 0
    if magic > MAGIC:
        return Stop.UNSUPPORTED, f"message format {magic} is newer than this library", 0
    if size > end - position:
        return (
            Stop.PARTIAL,
            f"a message of format {magic} needs {size} bytes, {end - position} are left",
            size,
        )
    stored = int.from_bytes(view[position + 12 : position + 16], "big")
    if zlib.crc32(view[position + 16 : position + size]) != stored:
        return Stop.CORRUPT, f"magic {magic}, and no message of that format", 0
    return Stop.UNSUPPORTED, f"message format {magic} is older than this library reads", 0


class IndexState:
    """What Kafka's LogSegment remembers between appends."""

    __slots__ = ("_numbers",)

    def __init__(
        self, bytes_since_last_entry: int = 0, max_timestamp: int = -1, offset_of_max_timestamp: int = -1
    ) -> None:
        self._numbers = array("q", (bytes_since_last_entry, max_timestamp, offset_of_max_timestamp))

    @property
    def bytes_since_last_entry(self) -> int:
        return self._numbers[0]

    @property
    def max_timestamp(self) -> int:
        return self._numbers[1]

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the first batch that holds the largest timestamp."""
        return self._numbers[2]


class IndexColumns(NamedTuple):
    """Index entries in columns: for each, a batch by its last offset and position, and the largest timestamp
    up to it with the last offset of the first batch that holds it.
    """

    last_offsets: array[int]
    positions: array[int]
    max_timestamps: array[int]
    offsets_of_max_timestamp: array[int]


def index_columns(
    scan: Scan, *, interval_bytes: int, state: IndexState, base_position: int = 0
) -> IndexColumns:
    """Return the index entries for the batches of a scan, by the rule of Kafka's LogSegment.append.

    A batch is indexed, by its last offset and own position, when more than ``interval_bytes`` lie between the
    last indexed batch's start and it. ``base_position`` is where in the file the scanned buffer begins.
    """
    if not scan.n:
        return IndexColumns(array("q"), array("q"), array("q"), array("q"))
    table = scan.table
    covered = table[(scan.n - 1) * WIDTH] + table[(scan.n - 1) * WIDTH + 1] - table[0]
    most = min(scan.n, (covered + state.bytes_since_last_entry) // max(interval_bytes, 1) + 2)
    out = array("q", bytes(32 * most))
    n = kernel.index_batches(table, scan.n, interval_bytes, base_position, state._numbers, out)
    del out[n * 4 :]
    return IndexColumns(out[0::4], out[1::4], out[2::4], out[3::4])


_FIELDS = {
    field[0]: (make_struct((field,)), sum(size for _, _, size in LAYOUT[:i]))
    for i, field in enumerate(LAYOUT)
}


def read_field(batch: Buffer, name: str, position: int = 0) -> int:
    """Return a header field, by its name in `LAYOUT`, of the batch at ``position`` of a buffer."""
    field, at = _FIELDS[name]
    value: int = field.unpack_from(batch, position + at)[0]
    return value


def write_field(batch: bytearray | memoryview, name: str, value: int, position: int = 0) -> None:
    """Change a header field of the batch at ``position``. From ``attributes`` on the CRC covers it."""
    field, at = _FIELDS[name]
    field.pack_into(batch, position + at, value)
