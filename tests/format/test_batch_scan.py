"""Headers: what a scan finds, where it stops, and why; index entries; offsets assigned."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog import kernel
from stratalog.errors import CorruptionError, InvalidRecordError, RecordTooLargeError, UnsupportedFormat
from stratalog.format import batch
from stratalog.format.batch import Stop
from stratalog.model import Record
from tests.kernel.both import either

__all__ = ["either"]

pytestmark = pytest.mark.usefixtures("either")


def encode(count: int = 3, base_offset: int = 0, **more: Any) -> bytearray:
    records = [Record(b"value-%d" % i, b"key", (), 1000 + i) for i in range(count)]
    args: dict[str, Any] = {"base_offset": base_offset, "leader_epoch": 1, "now_ms": 5, "max_bytes": 1 << 20}
    return bytearray(batch.encode_records(records, options=batch.BatchOptions(**{**args, **more}))[0].data)


def patched(data: bytes | bytearray, fmt: str, at: int, value: int, *, crc: bool = True) -> bytearray:
    made = bytearray(data)
    struct.pack_into(fmt, made, at, value)
    if crc:
        struct.pack_into(">I", made, 17, kernel.crc32c(memoryview(made)[21:]))
    return made


def test_a_log_of_batches() -> None:
    log = encode(3) + encode(1, 3) + encode(2, 4, producer_id=7, producer_epoch=2, base_sequence=2**31 - 1)
    scan = batch.scan(log, expect=0)
    assert (scan.n, scan.end, scan.stop, scan.records) == (3, len(log), Stop.END, 6)
    assert (scan.first_base_offset, scan.last_offset, scan.max_timestamp) == (0, 5, 1002)
    assert scan.has_producers
    assert [header.next_offset for header in scan] == [3, 4, 6]
    last = scan.header(2)
    assert (last.producer_id, last.producer_epoch, last.base_sequence, last.last_sequence) == (
        7,
        2,
        2**31 - 1,
        0,
    )
    assert (last.leader_epoch, last.codec, last.timestamp_type, last.is_control) == (1, 0, 0, False)
    assert [scan.find_offset(offset) for offset in (0, 2, 3, 4, 5, 6)] == [0, 0, 1, 2, 2, 3]
    assert [scan.find_position(at) for at in (0, 1, scan.header(1).position, len(log))] == [0, 1, 1, 3]
    with pytest.raises(IndexError):
        scan.header(3)


def test_many_batches_and_a_limit() -> None:
    log = b"".join(batch.encode_one(b"v", None, (), 1, i, 0, 0) for i in range(1000))
    assert batch.scan(log).n == 1000
    scan = batch.scan(log, max_batches=100)
    assert (scan.n, scan.stop) == (100, Stop.FULL)
    rest = batch.scan(log, scan.end, expect=100)
    assert (rest.n, rest.stop, rest.last_offset) == (900, Stop.END, 999)


def test_nothing() -> None:
    scan = batch.scan(b"")
    assert (scan.n, scan.stop, scan.first_base_offset, scan.last_offset) == (0, Stop.END, -1, -1)


def test_every_cut_is_partial() -> None:
    data = encode(2)
    for size in range(1, len(data)):
        scan = batch.scan(data[:size])
        assert (scan.n, scan.end, scan.stop) == (0, 0, Stop.PARTIAL), size
        assert scan.needed == (len(data) if size >= 61 else 61)


def test_headers_of_batches_that_go_on_behind_the_buffer() -> None:
    log = encode(3) + encode(40, 3)
    second = len(encode(3))
    scan = batch.scan(log[: second + 61], expect=0, reach=len(log))
    assert (scan.n, scan.end, scan.stop, scan.last_offset) == (2, len(log), Stop.END, 42)
    assert (scan.span(0), scan.span(1)) == ((0, second, 2), (second, len(log), 42))
    cut = batch.scan(log[: second + 60], expect=0, reach=len(log))
    assert (cut.n, cut.end, cut.stop, cut.needed) == (1, second, Stop.PARTIAL, 61)
    past = batch.scan(log[: second + 61], expect=0, reach=len(log) - 1)
    assert (past.n, past.end, past.stop, past.needed) == (1, second, Stop.PARTIAL, len(log) - second)
    assert past.reason == f"the batch needs {len(log) - second} bytes, 61 are left"


def test_every_bit_of_a_batch() -> None:
    """The CRC or a check catches each flip, but for offsets and epoch, which lie outside it."""
    data = encode(2, 5)
    for bit in range(len(data) * 8):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << bit % 8
        scan = batch.scan(bad, expect=5)
        if 12 <= bit // 8 < 16:
            assert scan.stop is Stop.END
        else:
            assert scan.n == 0, bit


@pytest.mark.parametrize("size", [12, 13, 60, 61, 62, 5000])
def test_zeros(size: int) -> None:
    log = encode(1) + bytes(size)
    scan = batch.scan(log)
    assert (scan.n, scan.stop, scan.end) == (1, Stop.ZERO, len(log) - size)


def test_a_zero_length_among_other_bytes() -> None:
    data = encode(1)
    data[8:12] = bytes(4)
    assert batch.scan(data).stop is Stop.CORRUPT


@pytest.mark.parametrize(
    ("fmt", "at", "value", "reason"),
    [
        (">i", 8, -5, "length"),
        (">i", 8, 48, "length"),
        (">q", 0, -1, "base offset"),
        (">q", 0, 2**63 - 1, "base offset"),
        (">i", 23, -1, "last offset delta"),
        (">i", 57, -1, "record count"),
        (">i", 57, 4, "record count"),
        (">i", 57, 2**31 - 1, "record count"),
        (">B", 16, 200, "magic"),
    ],
)
def test_impossible_headers(fmt: str, at: int, value: int, reason: str) -> None:
    scan = batch.scan(patched(encode(3), fmt, at, value))
    assert scan.stop is Stop.CORRUPT
    assert reason in scan.reason


def test_crc() -> None:
    data = encode(3)
    data[-1] ^= 1
    scan = batch.scan(data)
    assert scan.stop is Stop.CORRUPT
    assert "CRC" in scan.reason
    assert batch.scan(data, check_crc=False).n == 1


def test_offsets_that_do_not_follow() -> None:
    log = encode(3) + encode(1, 5)
    assert batch.scan(log).n == 2
    scan = batch.scan(log, expect=0)
    assert (scan.n, scan.stop) == (1, Stop.CORRUPT)
    assert "5" in scan.reason
    assert "3" in scan.reason
    assert batch.scan(log, expect=1).n == 0
    back = batch.scan(encode(3, 4) + encode(1, 6))
    assert (back.n, back.stop) == (1, Stop.CORRUPT)


def test_other_formats_are_not_damage() -> None:
    assert batch.scan(patched(encode(1), ">B", 16, 3)).stop is Stop.UNSUPPORTED
    assert batch.scan(patched(encode(1), ">h", 21, 5)).stop is Stop.UNSUPPORTED
    for magic in (0, 1):
        body = (
            struct.pack(">bb", magic, 0) + (bytes(8) if magic else b"") + struct.pack(">ii", -1, 3) + b"old"
        )
        message = struct.pack(">I", zlib.crc32(body)) + body
        data = struct.pack(">qi", 0, len(message)) + message
        scan = batch.scan(data + encode(1))
        assert (scan.n, scan.stop) == (0, Stop.UNSUPPORTED)
        assert batch.scan(data[:-1]).stop is Stop.PARTIAL
        assert batch.scan(data[:-1] + b"?" + encode(1)).stop is Stop.CORRUPT
        assert batch.scan(patched(encode(1), ">B", 16, magic, crc=False)).stop is Stop.CORRUPT


def index_entries(found: batch.Scan, **options: Any) -> list[tuple[int, ...]]:
    return list(zip(*batch.index_columns(found, **options), strict=True))


def entries_by_the_rule(log: bytes, interval: int, since: int, base: int = 0) -> list[tuple[int, ...]]:
    """Kafka's LogSegment.append, one batch at a time."""
    entries: list[tuple[int, ...]] = []
    largest = holder = -1
    for header in batch.scan(log):
        if header.max_timestamp > largest:
            largest, holder = header.max_timestamp, header.last_offset
        if since > interval:
            entries.append((header.last_offset, base + header.position, largest, holder))
            since = 0
        since += header.size
    return entries


def test_index_entries() -> None:
    log = b"".join(
        batch.encode_one(bytes(100), None, (), t, i, 0, 0) for i, t in enumerate([5, 9, 9, 3, 11, 2, 1])
    )
    size = len(log) // 7
    state = batch.IndexState()
    entries = index_entries(batch.scan(log), interval_bytes=size, state=state, base_position=1000)
    assert entries == [
        (2, 1000 + 2 * size, 9, 1),
        (4, 1000 + 4 * size, 11, 4),
        (6, 1000 + 6 * size, 11, 4),
    ]
    assert (state.bytes_since_last_entry, state.max_timestamp, state.offset_of_max_timestamp) == (size, 11, 4)
    # in pieces, and batch by batch, the same
    pieces = batch.IndexState()
    split = batch.scan(log, max_batches=3)
    found = index_entries(split, interval_bytes=size, state=pieces, base_position=1000)
    rest = batch.scan(log, split.end)
    assert found + index_entries(rest, interval_bytes=size, state=pieces, base_position=1000) == entries
    assert entries_by_the_rule(log, size, 0, 1000) == entries


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(0, 1000))
def test_index_entries_always_fit(sizes: list[int], interval: int) -> None:
    log = b"".join(batch.encode_one(bytes(size), None, (), 1, i, 0, 0) for i, size in enumerate(sizes))
    entries = index_entries(batch.scan(log), interval_bytes=interval, state=batch.IndexState(5000))
    assert entries == entries_by_the_rule(log, interval, 5000)


def test_place() -> None:
    log = encode(3) + encode(2)
    info = batch.validate(log, max_bytes=1 << 20)
    crcs = [header.crc for header in batch.headers(info)]
    assert info.place(100, 9, False, -1) == 105
    again = batch.scan(log, expect=100)
    assert [header.leader_epoch for header in again] == [9, 9]
    assert [header.crc for header in again] == crcs  # nothing under the CRC changed
    assert [h[:10] for h in again] == [h[:10] for h in batch.headers(info)]
    assert info.place(7, 1, True, 77) == 12
    again = batch.scan(log, expect=7)
    assert [h.timestamp_type for h in again] == [1, 1]
    assert again.max_timestamp == 77
    assert {record.timestamp for record in batch.decode_records(log, again, topic="t", partition=0)} == {77}


def test_a_lying_max_timestamp_is_corrected() -> None:
    data = patched(encode(3), ">q", 35, 10**15)
    with_error = patched(encode(3), ">q", 35, 5)
    info = batch.validate(data, max_bytes=1 << 20)
    assert batch.headers(info)[0].max_timestamp == 1002
    info.place(0, 0, False, -1)
    assert batch.scan(data).max_timestamp == 1002
    with pytest.raises(CorruptionError, match="maxTimestamp"):
        batch.measure(with_error, batch.scan(with_error))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (bytearray(), InvalidRecordError, "no batches"),
        (patched(encode(3), ">i", 57, 2), InvalidRecordError, "records over"),
        (patched(encode(3), ">h", 21, 0x20), InvalidRecordError, "control"),
        (patched(encode(3), ">h", 21, 8), InvalidRecordError, "LogAppendTime"),
        (patched(encode(3), ">h", 21, 0x40), InvalidRecordError, "delete horizon"),
        (patched(encode(3), ">q", 43, 5), InvalidRecordError, "sequence"),
        (patched(encode(3), ">h", 21, 0x10), InvalidRecordError, "producer id"),
        (patched(encode(3), ">h", 21, 6), UnsupportedFormat, "codec"),
        (patched(encode(3), ">h", 21, 3), CorruptionError, "at byte 0"),
        (encode(3)[:-1], CorruptionError, "bytes"),
        (encode(3) + b"x", CorruptionError, "batch 1"),
        (encode(3) + bytes(100), CorruptionError, "zeros"),
    ],
)
def test_what_the_network_may_not_send(data: bytearray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        batch.validate(data, max_bytes=1 << 20)


def test_validate_sizes_and_keys() -> None:
    data = encode(3)
    with pytest.raises(RecordTooLargeError):
        batch.validate(data, max_bytes=len(data) - 1)
    batch.validate(data, max_bytes=len(data), require_keys=True)
    keyless = bytearray(batch.encode_one(b"v", None, (), 1, 0, 0, 0))
    with pytest.raises(InvalidRecordError, match="key"):
        batch.validate(keyless, max_bytes=1 << 20, require_keys=True)
    for codec in range(1, 5):
        packed = encode(3, codec=codec)
        header = batch.headers(batch.validate(packed, max_bytes=1 << 20))[0]
        assert (header.codec, header.min_timestamp) == (codec, 1000)
        with pytest.raises(CorruptionError):
            batch.validate(packed, max_bytes=1 << 20, max_decompressed_bytes=20)


@given(st.integers(0, 2**62), st.integers(1, 30))
def test_a_peek_says_what_a_scan_says(base_offset: int, count: int) -> None:
    data = bytes(encode(count, base_offset))
    header = batch.scan(data).header(0)
    for cut in (data, data[: batch.HEADER_SIZE], memoryview(data)):
        assert batch.peek(cut) == (base_offset, len(data), base_offset + count - 1, header.max_timestamp)
    assert batch.peek(data[: batch.HEADER_SIZE - 1]) is None


@pytest.mark.parametrize(
    ("fmt", "position", "value"),
    [
        (">q", 0, -1),
        (">i", 8, -1),
        (">i", 8, 0),
        (">i", 8, 48),
        (">b", 16, 1),
        (">b", 16, -1),
        (">i", 23, -1),
    ],
    ids=["base offset", "length", "no length", "too short", "magic 1", "magic -1", "delta"],
)
def test_a_peek_at_what_cannot_be_a_header(fmt: str, position: int, value: int) -> None:
    assert batch.peek(patched(encode(), fmt, position, value)) is None


def test_header_fields_by_name() -> None:
    log = encode(3) + encode(2, 3)
    second = batch.scan(log).header(1)
    batch.write_field(log, "baseOffset", 77, second.position)
    batch.write_field(log, "partitionLeaderEpoch", 9, second.position)
    changed = batch.scan(log).header(1)
    assert (changed.base_offset, changed.leader_epoch, changed.crc) == (77, 9, second.crc)
    assert batch.read_field(log, "crc", second.position) == second.crc
    assert batch.read_field(log, "count") == 3
