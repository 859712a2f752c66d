"""What compaction and erasing leave of a log, byte for byte as the plain model; and what they refuse."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog import kernel
from stratalog.errors import CorruptionError
from stratalog.format import batch
from stratalog.format.batch import filter
from stratalog.format.batch.filter import DISCARD, KEEP_EMPTY, START_HORIZON
from stratalog.model import Record
from tests.format import filter_model as model
from tests.format.filter_model import CONTROL, HORIZON, Batch, Plain, varint
from tests.kernel.both import either, on_each_kernel

__all__ = ["either"]

MEMORY = 1 << 14
NOW = 2_000_000

KEYS = [b"", b"a", b"b", b"key", b"1234567", b"12345678", b"a longer key than any"]

key_bytes = st.sampled_from([*KEYS, None])
value_bytes = st.none() | st.binary(max_size=12) | st.integers(60, 300).map(bytes)
header_bytes = st.sampled_from([b"\0", b"\0", varint(1) + varint(1) + b"h" + varint(-1)])
times = st.sampled_from([0, 5, 1000, 1_000_000, 1_999_999, 2_000_000, 2**40, -1])
record_parts = st.tuples(st.integers(0, 3), times, key_bytes, value_bytes, header_bytes)


@st.composite
def logs(draw: st.DrawFn, most: int = 8) -> list[Batch]:
    """Batches with gaps between and inside them; compressed, transactional, with horizons, empty."""
    made: list[Batch] = []
    offset = draw(st.sampled_from([0, 7, 2**40]))
    for _ in range(draw(st.integers(0, most))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 40]))
        attributes = draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 8, 11]))
        producer = draw(st.sampled_from([-1, -1, 5, 2**40]))
        if producer >= 0:
            attributes |= draw(st.sampled_from([0, 0x10, 0x30]))
        attributes |= draw(st.sampled_from([0, 0, 0x40]))
        delta = -1
        records = []
        for gap, timestamp, key, value, rest in draw(
            st.lists(record_parts, max_size=draw(st.sampled_from([1, 6])))
        ):
            delta += gap + 1
            records.append(Plain(delta, timestamp, key, value, rest))
        base, newest = -1, draw(times)
        if records:
            newest = max(record.timestamp for record in records)
            base = records[0].timestamp
            if attributes & HORIZON:
                base = draw(st.sampled_from([NOW - 1, NOW, NOW + 1]))
            if attributes & 8:
                newest += draw(st.sampled_from([0, 3]))
        else:
            attributes &= draw(st.sampled_from([0x38, 0x7F]))
        if not records and attributes & 7:
            attributes &= ~7
        last = max(delta, 0) + draw(st.sampled_from([0, 0, 0, 2]))
        made.append(
            Batch(
                offset,
                last,
                tuple(records),
                attributes,
                base,
                newest,
                draw(st.integers(-1, 3)),
                producer,
                0 if producer >= 0 else -1,
                draw(st.sampled_from([0, 9, 2**31 - 1])) if producer >= 0 else -1,
                draw(st.sampled_from([0, 0, 0, 0, KEEP_EMPTY, DISCARD, DISCARD | KEEP_EMPTY, START_HORIZON])),
            )
        )
        offset += last + 1
    return made


def joined(batches: list[Batch]) -> tuple[bytes, batch.Scan]:
    log = b"".join(one.encode() for one in batches)
    scan = batch.scan(log)
    assert scan.n == len(batches), scan.reason
    return log, scan


def same(found: filter.Filtered, wanted: model.Outcome, log: bytes, batches: list[Batch]) -> None:
    """The bytes, the counts, and a scan that says what a scan and a measure of those bytes would."""
    assert bytes(found.data) == wanted.data
    assert found.records_in == wanted.records_in
    assert found.records_out == wanted.records_out
    assert found.tombstones_in == wanted.tombstones_in
    assert found.tombstones_out == wanted.tombstones_out
    assert found.batches_rewritten == wanted.batches_rewritten
    assert found.batches_in == len(batches)
    assert found.batches_out == len(wanted.batches)
    assert found.unchanged == (wanted.data == log)
    again = batch.scan(found.data)
    batch.measure(found.data, again)
    assert again.stop is batch.Stop.END
    for name in batch.Scan.__slots__:
        assert getattr(found.scan, name) == getattr(again, name), name


@settings(max_examples=150)
@given(logs(), st.data())
def test_compaction_is_the_models(batches: list[Batch], data: st.DataObject) -> None:
    log, scan = joined(batches)
    offsets = [0, *(one.last_offset for one in batches)]
    skipped = [row for row, one in enumerate(batches) if one.retention & DISCARD]
    lo = data.draw(st.sampled_from(offsets))
    drops = data.draw(st.sets(st.sampled_from(KEYS), max_size=2))
    keep = data.draw(st.sets(st.sampled_from(offsets), max_size=3))
    mapped = data.draw(st.sampled_from([True, True, True, False]))
    retention_ms = data.draw(st.sampled_from([None, 0, 1000, 2**63 - 1]))
    short = data.draw(st.sampled_from([0, 0, 1, 3]))
    watched = data.draw(st.sampled_from([0, 1, 64]))
    wanted_keys = model.latest(batches, skipped, lo)
    wanted = model.compact(
        batches,
        keys=wanted_keys if mapped else None,
        latest_offset=offsets[-1] - short if len(offsets) > 1 else -1,
        drop_keys=drops,
        now_ms=NOW,
        delete_retention_ms=retention_ms,
        keep_offsets=keep,
    )
    for _ in on_each_kernel():
        keys = filter.KeyMap(MEMORY, 0)
        keys.watch(watched)
        skip = bytes(row in skipped for row in range(scan.n))
        assert filter.build(keys, log, scan, skip=skip, lo=lo) == scan.n
        assert len(keys) == len(wanted_keys)
        assert keys.latest_offset == (offsets[-1] if scan.n else -1)
        for key in [*KEYS, b"other"]:
            assert keys.get(key) == wanted_keys.get(key)
        keys.latest_offset -= short if scan.n else 0
        found = filter.filter_batches(
            log,
            scan,
            keys=keys if mapped else None,
            drop_keys=filter.DropSet(drops),
            retention=bytes(one.retention for one in batches),
            now_ms=NOW,
            delete_retention_ms=retention_ms,
            keep_offsets=keep,
        )
        same(found, wanted, log, batches)


@given(logs())
def test_a_second_round_changes_nothing(batches: list[Batch]) -> None:
    """What a round made is final for the same keys at the same moment, and stays byte for byte."""
    log, scan = joined(batches)
    retention = bytes(one.retention & KEEP_EMPTY for one in batches)
    for _ in on_each_kernel():
        keys = filter.KeyMap(MEMORY, 0)
        filter.build(keys, log, scan)
        rules: dict[str, Any] = {"keys": keys, "now_ms": NOW, "delete_retention_ms": 1}
        once = filter.filter_batches(log, scan, retention=retention, **rules)
        stay = bytes([KEEP_EMPTY]) * once.scan.n
        twice = filter.filter_batches(once.data, once.scan, retention=stay, **rules)
        assert twice.unchanged
        assert twice.data == once.data


@given(logs(), st.integers(0, 8), st.integers(0, 8))
def test_rows_can_be_picked(batches: list[Batch], first: int, last: int) -> None:
    """Any cut of a log into calls gives the same bytes as one call."""
    log, scan = joined(batches)
    first, last = sorted((min(first, scan.n), min(last, scan.n)))
    for _ in on_each_kernel():
        keys, pieces = filter.KeyMap(MEMORY, 0), filter.KeyMap(MEMORY, 0)
        filter.build(keys, log, scan)
        for low, high in ((0, first), (first, last), (last, None)):
            assert filter.build(pieces, log, scan, low, high) == (scan.n if high is None else high)
        assert len(keys) == len(pieces)
        assert keys.latest_offset == pieces.latest_offset
        whole = filter.filter_batches(log, scan, keys=keys, now_ms=NOW, delete_retention_ms=9)
        parts = [
            filter.filter_batches(log, scan, low, high, keys=pieces, now_ms=NOW, delete_retention_ms=9)
            for low, high in ((0, first), (first, last), (last, None))
        ]
        assert b"".join(part.data for part in parts) == whole.data
        assert sum(part.records_out for part in parts) == whole.records_out


def summary(data: Any, scan: batch.Scan) -> Any:
    """Records, and the extent of their batches: headers that several passes emptied may tell other times."""
    records = batch.decode_records(data, scan, topic="t", partition=0)
    return records, [(header.base_offset, header.last_offset, header.count) for header in scan]


@given(logs(), st.integers(1, 9))
def test_more_keys_than_fit_take_more_passes(batches: list[Batch], capacity: int) -> None:
    """Passes over a map of a few keys end where one pass over a large one does."""
    log, scan = joined(batches)
    last = batches[-1].last_offset if batches else -1
    retention = bytes([KEEP_EMPTY]) * scan.n
    whole = filter.KeyMap(MEMORY, 0)
    filter.build(whole, log, scan)
    wanted = filter.filter_batches(log, scan, keys=whole, retention=retention)
    for _ in on_each_kernel():
        data, found = log, scan
        dirty = 0
        for _ in range(200):
            keys = filter.KeyMap(filter.KeyMap.memory_for(capacity), dirty)
            assert capacity <= keys.capacity <= capacity + 2
            row = filter.build(keys, data, found, lo=dirty)
            assert keys.full == (row < found.n)
            assert len(keys) <= keys.capacity
            made = filter.filter_batches(data, found, keys=keys, retention=bytes([KEEP_EMPTY]) * found.n)
            data, found = bytes(made.data), made.scan
            if row == found.n:
                break
            assert keys.latest_offset >= dirty
            dirty = keys.latest_offset + 1
        assert keys.latest_offset == last
        assert summary(data, found) == summary(wanted.data, wanted.scan)


@given(logs())
def test_tombstones_that_are_due(batches: list[Batch]) -> None:
    """The tombstones named beforehand are the ones that go, and none goes when all are kept."""
    log, scan = joined(batches)
    retention = bytes(one.retention for one in batches)
    for _ in on_each_kernel():
        keys = filter.KeyMap(MEMORY, 0)
        filter.build(keys, log, scan)
        rules: dict[str, Any] = {"keys": keys, "now_ms": NOW, "retention": retention}
        due = filter.due_tombstones(log, scan, **rules)
        offsets = [one.offset for one in due]
        gone = filter.filter_batches(log, scan, delete_retention_ms=5, **rules)
        kept = filter.filter_batches(log, scan, delete_retention_ms=5, keep_offsets=offsets, **rules)
        assert kept.tombstones_out - gone.tombstones_out == len(due)
        for one in due:
            assert keys.get(one.key) == one.offset


@pytest.mark.usefixtures("either")
def test_a_large_batch_and_many_small_ones() -> None:
    """Far more records than the kernel looks at together, and more batches than it made rows for."""
    many = tuple(
        Plain(i, 1000 + i, b"%d" % (i % 300), None if i % 7 == 0 else b"v" * 40) for i in range(5000)
    )
    small = [
        Batch(5000 + i, 0, (Plain(0, 9, b"%d" % (i % 500), b"x"),), 0, 9, 9, retention=i % 3 == 0)
        for i in range(4000)
    ]
    newest = 1000 + 4999
    batches = [Batch(0, 4999, many, 0, 1000, newest), *small, Batch(9000, 4999, many, 4, 1000, newest)]
    log, scan = joined(batches)
    keys = filter.KeyMap(1 << 18, 0)
    assert filter.build(keys, log, scan) == scan.n
    wanted = model.compact(batches, keys=model.latest(batches), now_ms=NOW, delete_retention_ms=10**11)
    found = filter.filter_batches(
        log,
        scan,
        keys=keys,
        retention=bytes(one.retention for one in batches),
        now_ms=NOW,
        delete_retention_ms=10**11,
    )
    same(found, wanted, log, batches)


@pytest.mark.usefixtures("either")
def test_records_may_grow() -> None:
    """Every record a tombstone: the horizon makes each timestamp delta, and the batch, longer."""
    records = tuple(Plain(i, 5, b"%d" % i, None) for i in range(2000))
    for codec in (0, 3):
        batches = [Batch(0, 1999, records, codec, 5, 5)]
        log, scan = joined(batches)
        keys = filter.KeyMap(1 << 16, 0)
        filter.build(keys, log, scan)
        found = filter.filter_batches(log, scan, keys=keys, now_ms=0, delete_retention_ms=2**62)
        wanted = model.compact(batches, keys=model.latest(batches), delete_retention_ms=2**62)
        same(found, wanted, log, batches)
        assert codec or len(found.data) >= len(log) + 2000 * 8


@pytest.mark.usefixtures("either")
def test_a_batch_larger_than_the_map() -> None:
    """A map stops in the middle of such a batch, and the next one goes on from there."""
    records = tuple(Plain(2 * i, 5, b"%d" % (i // 2), b"v") for i in range(300))
    for codec in (0, 4):
        batches = [Batch(100, 700, records, codec, 5, 5)]
        log, scan = joined(batches)
        keys = filter.KeyMap(16 * 100, 0)
        assert keys.capacity == 85
        assert filter.build(keys, log, scan) == 0
        assert keys.full
        assert len(keys) == 85
        assert keys.latest_offset == 100 + 2 * 169 + 1  # the record after the 170th had no room
        found = filter.filter_batches(log, scan, keys=keys)
        assert found.records_out == 300 - 85


@pytest.mark.usefixtures("either")
def test_offsets_far_apart_end_a_map() -> None:
    near = Batch(0, 0, (Plain(0, 5, b"a", b"v"),), 0, 5, 5)
    edge = Batch(2**32 - 2, 0, (Plain(0, 5, b"b", b"v"),), 0, 5, 5)
    far = Batch(2**32 - 1, 1, (Plain(0, 5, b"a", b"v"), Plain(1, 5, b"b", b"v")), 0, 5, 5)
    log, scan = joined([near, edge, far])
    keys = filter.KeyMap(MEMORY, 0)
    assert filter.build(keys, log, scan) == 2
    assert keys.full
    assert (keys.get(b"a"), keys.get(b"b"), keys.latest_offset) == (0, 2**32 - 2, 2**32 - 2)
    keys.clear(keys.latest_offset + 1)
    assert filter.build(keys, log, scan, 2) == 3
    assert (keys.get(b"a"), keys.get(b"b")) == (2**32 - 1, 2**32)
    keys.clear(0)  # an empty map moves to where its first batch is
    assert filter.build(keys, log, scan, 2) == 3
    assert (keys.get(b"a"), keys.get(b"b")) == (2**32 - 1, 2**32)


@pytest.mark.usefixtures("either")
def test_transactions() -> None:
    """Aborted data goes, a producer's last batch stays bare, a marker without its data gets a horizon."""
    data = (Plain(0, 5, b"a", b"v"), Plain(1, 6, b"b", b"v"))
    marker = (Plain(0, 7, b"\0\0\0\0", b"\0\0\0\0\0\0"),)
    batches = [
        Batch(0, 1, data, 0x10, 5, 6, 0, 9, 0, 0, DISCARD),
        Batch(2, 1, data, 0x10, 5, 6, 0, 9, 0, 2, DISCARD | KEEP_EMPTY),
        Batch(4, 0, marker, 0x30, 7, 7, 0, 9, 0, -1, START_HORIZON),
        Batch(5, 0, marker, 0x30, 7, 7, 0, 8, 0, -1),
        Batch(6, 0, marker, 0x70, 7, 7, 0, 7, 0, -1, START_HORIZON),
    ]
    log, scan = joined(batches)
    assert list(filter.transaction_rows(scan)) == [0, 1, 2, 3, 4]
    keys = filter.KeyMap(MEMORY, 0)
    assert filter.build(keys, log, scan, skip=b"\1\1\0\0\0") == 5
    assert (len(keys), keys.latest_offset) == (0, 6)
    found = filter.filter_batches(
        log,
        scan,
        keys=keys,
        retention=bytes(one.retention for one in batches),
        now_ms=NOW,
        delete_retention_ms=10,
    )
    same(found, model.compact(batches, keys={}, now_ms=NOW, delete_retention_ms=10), log, batches)
    headers = list(found.scan)
    assert [(one.base_offset, one.count, one.has_delete_horizon) for one in headers] == [
        (2, 0, False),
        (4, 1, True),
        (5, 1, False),
        (6, 1, True),
    ]
    assert headers[1].base_timestamp == NOW + 10
    assert batch.decode_control(found.data, headers[1]) == ("abort", 0)


@pytest.mark.usefixtures("either")
def test_erasing_leaves_the_rest_alone() -> None:
    """Without keys and a retention time: exact keys go, tombstones, horizons and null keys stay."""
    records = tuple(
        Plain(i, 5 + i, key, value)
        for i, (key, value) in enumerate(
            [(b"a", b"v"), (b"b", None), (None, b"x"), (b"a", None), (b"aa", b"")]
        )
    )
    batches = [
        Batch(0, 4, records, 0, 5, 9),
        Batch(5, 4, records, 3, 5, 9),
        Batch(10, 0, records[:1], 0, 5, 5),
        Batch(11, 0, records[:1], 0, 5, 5, retention=KEEP_EMPTY),
        Batch(12, 4, records, HORIZON, 1, 9),
    ]
    log, scan = joined(batches)
    found = filter.filter_batches(
        log,
        scan,
        drop_keys=filter.DropSet([b"a"]),
        retention=bytes(one.retention for one in batches),
        now_ms=NOW,
    )
    same(found, model.compact(batches, keys=None, drop_keys={b"a"}, now_ms=NOW), log, batches)
    left = batch.decode_records(found.data, found.scan, topic="t", partition=0)
    assert [record.key for record in left] == [b"b", None, b"aa"] * 3
    assert not filter.filter_batches(log, scan).batches_rewritten


@pytest.mark.usefixtures("either")
def test_nothing_in_nothing_out() -> None:
    scan = batch.scan(b"")
    keys = filter.KeyMap(32, 0)
    assert filter.build(keys, b"", scan) == 0
    found = filter.filter_batches(b"", scan, keys=keys)
    assert (len(found.data), found.scan.n, found.unchanged) == (0, 0, True)
    assert filter.due_tombstones(b"", scan, keys=None, now_ms=5) == []


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("codec", [0, 4])
def test_broken_records_are_named(codec: int) -> None:
    """The batch that is wrong is told by its position, by both halves of the work."""
    good = Batch(0, 0, (Plain(0, 5, b"a", b"v"),), 0, 5, 5).encode()
    bad = Batch(1, 1, (Plain(0, 5, b"a", b"v"), Plain(0, 5, b"b", b"v")), codec, 5, 5).encode()
    log = good + bad
    scan = batch.scan(log)
    assert scan.n == 2
    keys = filter.KeyMap(MEMORY, 0)
    with pytest.raises(CorruptionError, match="out of order") as caught:
        filter.build(keys, log, scan)
    assert caught.value.position == len(good)
    with pytest.raises(CorruptionError, match="out of order") as caught:
        filter.filter_batches(log, scan, keys=keys)
    assert caught.value.position == len(good)


@pytest.mark.usefixtures("either")
def test_other_lies() -> None:
    late = Batch(0, 1, (Plain(0, 5, b"a", b"v"), Plain(1, 9, b"b", b"v")), 0, 5, 8)
    log, scan = joined([late])
    with pytest.raises(CorruptionError, match="newer than the batch's maxTimestamp"):
        filter.filter_batches(log, scan)
    packed = bytearray(Batch(0, 0, (Plain(0, 5, b"a", b"v"),), 4, 5, 5).encode())
    struct.pack_into(">i", packed, 57, 2**31 - 1)
    struct.pack_into(">i", packed, 23, 2**31 - 1)
    struct.pack_into(">I", packed, 17, kernel.crc32c(memoryview(packed)[21:]))
    scan = batch.scan(packed)
    keys = filter.KeyMap(MEMORY, 0)
    for work in (
        lambda: filter.build(keys, packed, scan),
        lambda: filter.filter_batches(packed, scan, keys=keys),
    ):
        with pytest.raises(CorruptionError, match="cannot be in"):
            work()
    log, scan = joined([late, Batch(2, 0, ())])
    with pytest.raises(ValueError, match="retention has 1 bytes for 2 batches"):
        filter.filter_batches(log, scan, retention=b"\0")
    with pytest.raises(CorruptionError):
        filter.filter_batches(log[:80], scan)


@pytest.mark.usefixtures("either")
def test_control_records_are_not_judged() -> None:
    """A batch is told by its control bit alone, whatever its records look like."""
    odd = Batch(0, 1, (Plain(0, 5, b"a", None), Plain(1, 5, b"a", b"v")), CONTROL, 5, 5)
    log, scan = joined([odd])
    keys = filter.KeyMap(MEMORY, 0)
    assert filter.build(keys, log, scan) == 1
    assert len(keys) == 0
    found = filter.filter_batches(log, scan, keys=keys)
    assert (found.unchanged, found.records_in, found.tombstones_in) == (True, 0, 0)


@pytest.mark.usefixtures("either")
def test_from_records_to_records() -> None:
    """The example of the module's docstring, on batches as the log writes them."""
    records = [Record(b"v%d" % i, b"k%d" % (i % 10), (), 1000 + i) for i in range(100)]
    parts = []
    for start in range(0, 100, 25):
        made, _ = batch.encode_records(
            records[start : start + 25],
            options=batch.BatchOptions(
                base_offset=start, leader_epoch=1, now_ms=0, codec=4, max_bytes=1 << 20
            ),
        )
        parts.append(bytes(made.data))
    log = b"".join(parts)
    scan = batch.scan(log, expect=0)
    keys = filter.KeyMap(filter.KeyMap.memory_for(scan.records), 0)
    assert filter.build(keys, log, scan) == scan.n
    found = filter.filter_batches(log, scan, keys=keys, now_ms=5, delete_retention_ms=5)
    left = batch.decode_records(found.data, found.scan, topic="t", partition=0)
    assert [(record.offset, record.key, record.timestamp) for record in left] == [
        (i, b"k%d" % (i % 10), 1000 + i) for i in range(90, 100)
    ]
