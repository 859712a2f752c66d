"""Records out of batches: bounds, types of time, what is skipped, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog import kernel
from stratalog.errors import CorruptionError
from stratalog.format import batch
from stratalog.model import Record
from tests.kernel.both import either

__all__ = ["either"]

pytestmark = pytest.mark.usefixtures("either")


def varint(number: int) -> bytes:
    raw = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    made = bytearray()
    while raw >= 0x80:
        made.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*made, raw])


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


def raw_batch(body: bytes, count: int, last_delta: int | None = None, attributes: int = 0) -> bytes:
    last = count - 1 if last_delta is None else last_delta
    tail = struct.pack(">hiqqqhii", attributes, last, 1000, 5000, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 10, len(tail) + 9, 0, 2, kernel.crc32c(tail)) + tail


def decode(data: bytes, **more: Any) -> list[Record]:
    return batch.decode_records(data, batch.scan(data), topic="t", partition=1, **more)


PLAIN = b"\x00" + varint(5) + varint(0) + varint(1) + b"k" + varint(1) + b"v" + varint(0)


def test_a_record_by_hand() -> None:
    data = raw_batch(record(PLAIN), 1)
    assert decode(data) == [Record(b"v", b"k", (), 1005, 10, 1, 0, "t")]


def test_any_negative_length_is_null_and_long_varints_are_read() -> None:
    body = b"\x00" + b"\x8a\x00" + varint(0) + varint(-7) + varint(-1) + varint(0)
    assert decode(raw_batch(record(body), 1)) == [Record(None, None, (), 1005, 10, 1, 0, "t")]


def test_timestamps_wrap_as_in_java() -> None:
    body = b"\x00" + varint(2**63 - 1) + varint(0) + varint(-1) + varint(-1) + varint(0)
    assert decode(raw_batch(record(body), 1))[0].timestamp == 1000 - 2**63 - 1 + 0


@pytest.mark.parametrize(
    ("body", "count", "reason"),
    [
        (record(PLAIN)[:-1], 1, "past the end of its batch"),
        (record(PLAIN) + b"\x00", 1, "bytes left"),
        (record(PLAIN) + bytes(7), 2, "record length"),
        (varint(-5) + PLAIN, 1, "record length"),
        (b"\xff" * 11, 1, "does not end"),
        (record(b"\x00" + b"\x80" * 11 + PLAIN), 1, "does not end"),
        (record(b"\x00" + varint(5) + b"\x80" * 6 + PLAIN), 1, "does not end"),
        (record(b"\x00\x00\x00" + varint(100) + b"k\x01\x00\x00"), 1, "key runs past"),
        (record(b"\x00\x00\x00\x01" + varint(100) + b"v\x00\x00"), 1, "value runs past"),
        (record(b"\x00\x00\x00\x01\x01" + varint(100) + b"abc"), 1, "number of headers"),
        (record(b"\x00\x00\x00\x01\x01" + varint(-1) + b"abc"), 1, "number of headers"),
        (record(b"\x00\x00\x00\x01\x01" + varint(1) + varint(-1) + varint(0)), 1, "header key"),
        (record(b"\x00\x00\x00\x01\x01" + varint(1) + varint(9) + varint(0)), 1, "header key"),
        (record(b"\x00\x00\x00\x01\x01" + varint(1) + varint(0) + varint(9)), 1, "header value"),
        (record(PLAIN + b"\x00"), 1, "longer than its fields"),
        (record(PLAIN) + record(PLAIN), 2, "out of order"),
        (record(b"\x00\x00" + varint(-1) + b"\x01\x01\x00"), 1, "out of order"),
        (record(b"\x00\x00" + varint(1) + b"\x01\x01\x00"), 1, "out of order"),
    ],
)
def test_broken_records(body: bytes, count: int, reason: str) -> None:
    good = raw_batch(record(PLAIN), 1)
    data = good + struct.pack(">q", 11) + raw_batch(body, count)[8:]
    scan = batch.scan(data)
    assert scan.n == 2
    for work in (
        lambda: batch.decode_records(data, scan, topic="t", partition=0),
        lambda: batch.decode_arrow(data, scan, topic="t", partition=0),
        lambda: batch.decode_keys(data, scan),
        lambda: batch.validate(bytearray(data), max_bytes=1 << 20),
    ):
        with pytest.raises(CorruptionError, match=reason) as caught:
            work()
        assert caught.value.position == len(good)


def test_counts_are_checked_before_memory_is_asked_for() -> None:
    """A compressed batch that claims two thousand million records."""
    inner = bytes(
        batch.encode_records(
            [Record(b"v")], options=batch.BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=999)
        )[0].data
    )
    packed = batch.with_codec(inner, 4, None)
    struct.pack_into(">i", packed, 57, 2**31 - 1)
    struct.pack_into(">i", packed, 23, 2**31 - 1)
    struct.pack_into(">I", packed, 17, kernel.crc32c(memoryview(packed)[21:]))
    scan = batch.scan(packed)
    assert scan.n == 1
    for work in (batch.decode_records, batch.decode_arrow):
        with pytest.raises(CorruptionError, match="cannot be in"):
            work(packed, scan, topic="t", partition=0)


def some_log(codecs: list[int], **more: Any) -> tuple[bytes, list[Record]]:
    parts, records = [], []
    offset = 0
    for number, codec in enumerate(codecs):
        made = [
            Record(
                b"%d" % i if i % 3 else None, b"k%d" % i if i % 4 else None, (), (i * 37 + number * 11) % 100
            )
            for i in range(1 + number % 4)
        ]
        encoded, _ = batch.encode_records(
            made,
            options=batch.BatchOptions(
                base_offset=offset, leader_epoch=0, now_ms=0, max_bytes=1 << 20, codec=codec, **more
            ),
        )
        parts.append(encoded.data)
        records += [r._replace(offset=offset + i, partition=1, topic="t") for i, r in enumerate(made)]
        offset = encoded.last_offset + 1
    return b"".join(parts), records


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.integers(-2, 25),
    st.integers(-2, 25),
    st.none() | st.integers(-5, 105),
    st.none() | st.integers(-5, 105),
    st.sets(st.integers(0, 8)),
)
def test_bounds(
    codecs: list[int], lo: int, hi: int, since: int | None, until: int | None, skip: set[int]
) -> None:
    log, records = some_log(codecs)
    scan = batch.scan(log)
    wanted = [
        record
        for record in records
        if lo <= record.offset < hi
        and scan.find_offset(record.offset) not in skip
        and (since is None or (record.timestamp or 0) >= since)
        and (until is None or (record.timestamp or 0) < until)
    ]
    bounds: dict[str, Any] = {"bounds": batch.Bounds(lo, hi, since, until), "skip": skip}
    assert batch.decode_records(log, scan, topic="t", partition=1, **bounds) == wanted
    rows = [
        row
        for made in batch.decode_arrow(log, scan, topic="t", partition=1, **bounds)
        for row in made.to_pylist()
    ]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (record.offset, record.key, record.value) for record in wanted
    ]
    first, last = min(lo % 5, scan.n), scan.n - 1
    part = batch.decode_records(log, scan, first, last, topic="t", partition=1)
    assert part == [r for r in records if first <= scan.find_offset(r.offset) < last]


def test_log_append_time() -> None:
    log, records = some_log([0, 4, 0], timestamp_type=1)
    scan = batch.scan(log)
    found = batch.decode_records(log, scan, topic="t", partition=1)
    assert found == [record._replace(timestamp=0, timestamp_type=1) for record in records]
    assert batch.decode_records(log, scan, topic="t", partition=1, bounds=batch.Bounds(since=1)) == []
    assert batch.decode_records(log, scan, topic="t", partition=1, bounds=batch.Bounds(until=0)) == []
    batch.measure(log, scan)
    assert {(header.min_timestamp, header.max_timestamp) for header in scan} == {(0, 0)}


def test_measure() -> None:
    log, records = some_log([0, 1, 2, 3, 4, 0, 0, 4])
    scan = batch.scan(log)
    batch.measure(log, scan)
    for header in scan:
        times = [r.timestamp for r in records if header.base_offset <= r.offset <= header.last_offset]
        assert header.min_timestamp == min(time for time in times if time is not None)


def test_control_and_empty_batches_are_left_out() -> None:
    marker = batch.encode_control(
        "abort",
        producer_id=5,
        producer_epoch=1,
        base_offset=0,
        leader_epoch=0,
        timestamp=9,
        coordinator_epoch=3,
    )
    empty = struct.pack(">q", 1) + raw_batch(b"", 0, last_delta=4)[8:]
    log = marker + empty + struct.pack(">q", 6) + raw_batch(record(PLAIN), 1)[8:]
    scan = batch.scan(log)
    assert (scan.n, scan.records) == (3, 1)
    assert [r.offset for r in decode(log)] == [6]
    assert batch.decode_control(log, scan.header(0)) == ("abort", 3)
    assert batch.decode_control(log, scan.header(1)) == (None, -1)
    batch.measure(log, scan)
    assert scan.header(1).min_timestamp == 5000


def test_invalid_header_text_is_repaired() -> None:
    body = b"\x00\x00\x00\x01\x01" + varint(1) + varint(2) + b"\xff\xfe" + varint(-1)
    data = raw_batch(record(body), 1)
    assert decode(data)[0].headers == (("\ufffd\ufffd", None),)
    made = batch.decode_arrow(data, batch.scan(data), topic="t", partition=0)[0]
    made.validate(full=True)
    assert made.to_pylist()[0]["headers"] == [{"key": "\ufffd\ufffd", "value": None}]


def test_a_scan_of_another_buffer_is_survived() -> None:
    log, _ = some_log([0, 0, 4, 0])
    scan = batch.scan(log)
    for work in (batch.decode_records, batch.decode_arrow):
        with pytest.raises(CorruptionError):
            work(log[:200], scan, topic="t", partition=0)
        with pytest.raises(CorruptionError):
            work(b"", scan, topic="t", partition=0)


def test_batches_in_the_codec_a_topic_demands() -> None:
    log, records = some_log([0, 1, 2, 3, 4])
    for codec in range(5):
        info = batch.validate(bytearray(log), max_bytes=1 << 20, codec=codec)
        info.place(0, 0, False, -1)
        again = bytes(info.data)
        assert {header.codec for header in batch.scan(again, expect=0)} == {codec}
        assert decode(again) == records
