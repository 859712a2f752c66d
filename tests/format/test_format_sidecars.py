"""Tail, settings and producer snapshot: round trips, every flipped bit, hostile bytes."""

from __future__ import annotations

import json
import struct
import uuid
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptionError, FormatError, UnsupportedFormat
from stratalog.format import producer_snapshot, settings, tail, txn_index
from stratalog.format.identity import PartitionId
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.settings import Settings, TopicSettings
from stratalog.format.tail import Tail
from stratalog.format.txn_index import AbortedTxn
from stratalog.kernel import crc32c


def flips(data: bytes) -> list[bytes]:
    damaged = []
    for bit in range(len(data) * 8):
        copy = bytearray(data)
        copy[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(copy))
    return damaged


int16, int32 = st.integers(-(1 << 15), (1 << 15) - 1), st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
count = st.integers(0, (1 << 63) - 1)

# -- tail

uint32 = st.integers(0, (1 << 32) - 1)


def make_tail(generation: int, base: int, position: int, delta: int, mark: int, flags: int) -> Tail:
    owner = PartitionId(generation.to_bytes(16, "big"), flags)
    return Tail(generation, base, position, base + delta, mark, flags, owner)


tails = st.builds(make_tail, st.integers(0, (1 << 64) - 1), count, uint32, uint32, count, st.integers(0, 7))


def tail_file(*slots: Tail) -> bytes:
    data = bytearray(tail.FILE_SIZE)
    for slot in slots:
        at = tail.slot_position(slot.generation)
        data[at : at + tail.SLOT_SIZE] = tail.pack_slot(slot)
    return bytes(data)


@given(tails)
def test_tail_round_trip(value: Tail) -> None:
    assert len(tail.pack_slot(value)) == tail.SLOT_SIZE == 64
    assert tail.parse(tail_file(value)) == value
    assert value.read_past_high_watermark == bool(value.flags & 1)
    assert value.clean == bool(value.flags & 2)
    assert value.producers == bool(value.flags & 4)


def test_the_newer_slot_counts() -> None:
    old, new = Tail(6, 0, 100, 10, 10), Tail(7, 0, 200, 20, 15, tail.CLEAN)
    assert tail.parse(tail_file(old, new)) == new
    assert tail.parse(tail_file(Tail(8, 0, 300, 30, 30), new)) == Tail(8, 0, 300, 30, 30)
    assert tail.parse(tail_file(old)[:64]) == old, "the second slot was never written"


def test_a_flipped_bit_costs_one_slot_only() -> None:
    old, new = Tail(6, 0, 100, 10, 10), Tail(7, 0, 200, 20, 15)
    for bit, damaged in enumerate(flips(tail_file(old, new))):
        assert tail.parse(damaged) == (new if bit < 512 else old)
    for damaged in flips(tail_file(new)[64:]):
        assert tail.parse(bytes(64) + damaged) is None


def test_torn_and_missing_tails() -> None:
    new = Tail(7, 0, 200, 20, 15)
    data = tail_file(Tail(6, 0, 100, 10, 10), new)
    for cut in range(128):
        expected = None if cut < 64 else Tail(6, 0, 100, 10, 10)
        assert tail.parse(data[:cut]) == expected
    assert tail.parse(bytes(128)) is None
    assert tail.parse(data + b"more") == new


def test_a_slot_in_the_wrong_place_does_not_count() -> None:
    slot = tail.pack_slot(Tail(7, 0, 200, 20, 15))
    assert tail.parse(slot + bytes(64)) is None


def test_a_newer_tail_is_not_damage() -> None:
    body = bytearray(tail.pack_slot(Tail(6, 0, 100, 10, 10))[:60])
    body[5] = 3
    with pytest.raises(UnsupportedFormat):
        tail.parse(bytes(body) + struct.pack(">I", crc32c(body)) + bytes(64))


@given(st.binary(max_size=200))
def test_tail_of_hostile_bytes(data: bytes) -> None:
    assert tail.parse(data) is None
    for version in (b"\x01", b"\x02"):
        body = b"STTL\x00" + version + data.ljust(54, b"\0")[:54]
        with suppress(UnsupportedFormat):
            tail.parse(body + struct.pack(">I", crc32c(body)))


def first_version(value: Tail) -> bytes:
    body = struct.pack(">4sHHQqqqq12s", b"STTL", 1, value.flags, *value[:5], bytes(12))
    return body + struct.pack(">I", crc32c(body))


def test_a_tail_of_the_first_version_names_no_partition() -> None:
    old, new = Tail(6, 100, 4096, 140, 139, tail.CLEAN), Tail(7, 100, 5000, 150, 150)
    assert tail.parse(first_version(old) + bytes(64)) == old
    assert tail.parse(first_version(old) + tail.pack_slot(new)) == new, "one of each"
    assert old.owner.matches(PartitionId(b"x" * 16, 3)), "what is not named matches"


# -- settings

texts = st.text(max_size=20)
topics = st.dictionaries(
    st.text("abcXYZ019._-", min_size=1, max_size=20),
    st.builds(TopicSettings, st.uuids(), st.integers(0, 1000), st.dictionaries(texts, texts, max_size=4)),
    max_size=5,
)
all_settings = st.builds(
    Settings,
    count,
    topics,
    st.dictionaries(texts, texts, max_size=4),
    st.lists(st.uuids(), max_size=2).map(tuple),
)

SETTINGS = Settings(
    generation=7,
    topics={
        "orders": TopicSettings(uuid.UUID(int=99), 2, {"retention.ms": "-1"}),
        "aé": TopicSettings(uuid.UUID(int=3), 1),
    },
    store={"default.replication": "1"},
)


@given(all_settings)
def test_settings_round_trip(value: Settings) -> None:
    data = settings.pack(value)
    assert settings.parse(data) == value
    assert settings.pack(settings.parse(data)) == data
    assert settings.parse(memoryview(data)) == value


def test_settings_are_json_for_people() -> None:
    lines = settings.pack(SETTINGS).decode().splitlines()
    content = json.loads("\n".join(lines[:-1]))
    assert content["topics"]["orders"]["config"] == {"retention.ms": "-1"}
    assert content["version"] == 2
    assert lines[-1].startswith("crc32c: ")


def test_settings_every_flipped_bit_is_found() -> None:
    for damaged in flips(settings.pack(SETTINGS)):
        with pytest.raises(CorruptionError):
            settings.parse(damaged)


def test_settings_every_cut_is_found() -> None:
    data = settings.pack(SETTINGS)
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            settings.parse(data[:size])


def sealed(text: str) -> bytes:
    body = text.encode()
    return body + f"crc32c: {crc32c(body):08x}\n".encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]\n",
        "{\n",
        '{"version": 1, "generation": -1}\n',
        '{"version": 1, "generation": true}\n',
        '{"version": 1, "generation": 1.5}\n',
        '{"version": 1, "generation": 1, "surprise": 1}\n',
        '{"version": 1, "generation": 1, "store": {"a": 1}}\n',
        '{"version": 1, "generation": 1, "topics": []}\n',
        '{"version": 1, "generation": 1, "topics": {"t": {"id": 5, "partitions": 1}}}\n',
        '{"version": 1, "generation": 1, "topics": {"t": {"id": "x", "partitions": 1}}}\n',
        '{"version": 1, "generation": 1, "topics": {"t": {"id": "AAAAAAAAAAAAAAAAAAAAAw"}}}\n',
        '{"version": 1, "generation": 1, "topics": {"t": {"id": "AAAAAAAAAAAAAAAAAAAAAw", "x": 1}}}\n',
        "[" * 100_000,
        '{"version": 1, "generation": ' + "9" * 10_000 + "}\n",
    ],
)
def test_settings_that_are_sealed_but_wrong(text: str) -> None:
    with pytest.raises(CorruptionError):
        settings.parse(sealed(text))


def test_newer_settings_are_not_damage() -> None:
    with pytest.raises(UnsupportedFormat):
        settings.parse(sealed('{"version": 3, "anything": [1]}\n'))


@pytest.mark.parametrize("fields", [{"partitions": 100_001}, {"partitions": 10**9}, {"creating": 10**9}])
def test_settings_with_more_partitions_than_a_topic_may_have(fields: dict[str, int]) -> None:
    topic = replace(SETTINGS.topics["orders"], **fields)  # type: ignore[arg-type]
    with pytest.raises(CorruptionError, match="settings of 'orders': .* is not a count from 0 to 100000"):
        settings.parse(settings.pack(replace(SETTINGS, topics={"orders": topic})))


def test_the_newest_settings_win() -> None:
    assert settings.newest([]) is None
    assert settings.newest([Settings(3), SETTINGS, Settings(5)]) is SETTINGS


@given(st.binary(max_size=300))
def test_settings_of_hostile_bytes(data: bytes) -> None:
    for attempt in (data, data + f"crc32c: {crc32c(data):08x}\n".encode()):
        with pytest.raises(FormatError):
            settings.parse(attempt)


# -- producer snapshot

entries = st.builds(ProducerEntry, int64, int16, int32, int64, int32, int64, int32, int64)
SNAPSHOT = producer_snapshot.pack(
    [
        ProducerEntry(2, 3, 6, 165, 6, 1794000000000, 0, -1),
        ProducerEntry(4, 0, 9, 190, 0, 1794000000001, -1, 190),
    ]
)


@given(st.lists(entries, max_size=30))
def test_snapshot_round_trip(values: list[ProducerEntry]) -> None:
    assert producer_snapshot.parse(producer_snapshot.pack(values)) == values


def test_snapshot_every_flipped_bit_is_found() -> None:
    for bit, damaged in enumerate(flips(SNAPSHOT)):
        with pytest.raises(UnsupportedFormat if bit < 16 else CorruptionError):
            producer_snapshot.parse(damaged)


def test_snapshot_every_cut_is_found() -> None:
    for size in range(len(SNAPSHOT)):
        with pytest.raises(CorruptionError):
            producer_snapshot.parse(SNAPSHOT[:size])


@given(st.binary(max_size=200), int32)
def test_snapshot_of_hostile_bytes(data: bytes, announced: int) -> None:
    body = struct.pack(">i", announced) + data
    for attempt in (data, struct.pack(">hI", 1, crc32c(body)) + body):
        try:
            assert len(producer_snapshot.parse(attempt)) * 46 + 10 == len(attempt)
        except FormatError:
            continue


# -- transaction index


@given(st.lists(st.tuples(count, count, count, count), max_size=20))
def test_txn_index_round_trip(rows: list[tuple[int, int, int, int]]) -> None:
    values: list[AbortedTxn] = []
    for producer_id, one, two, stable in sorted(rows, key=lambda row: max(row[1:3])):
        txn = AbortedTxn(producer_id, min(one, two), max(one, two), stable)
        if not values or txn.last_offset > values[-1].last_offset:
            values.append(txn)
    assert txn_index.parse(txn_index.pack(values)) == values


def test_txn_index_damage() -> None:
    one, two = AbortedTxn(1, 5, 10, 11), AbortedTxn(2, 3, 20, 21)
    with pytest.raises(CorruptionError) as caught:
        txn_index.parse(txn_index.pack([two, one]))
    assert caught.value.position == 34
    with pytest.raises(CorruptionError):
        txn_index.parse(txn_index.pack([AbortedTxn(1, 11, 10, 11)]))
    with pytest.raises(CorruptionError):
        txn_index.parse(txn_index.pack([AbortedTxn(1, -1, 10, 11)]))
    with pytest.raises(CorruptionError) as caught:
        txn_index.parse(txn_index.pack([one, two])[:-1])
    assert caught.value.position == 34
    with pytest.raises(UnsupportedFormat):
        txn_index.parse(b"\0\1" + txn_index.pack([one])[2:])


@given(st.binary(max_size=34 * 4))
def test_txn_index_of_hostile_bytes(data: bytes) -> None:
    with suppress(FormatError):
        assert txn_index.pack(txn_index.parse(data)) == data
