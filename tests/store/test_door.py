"""Ready-made batches, as a network server hands them in: checks, deduplication, transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store, Topic, errors
from stratalog.format import batch as batches

NOW = time.time_ns() // 1_000_000 - 60_000


def make_batch(
    values: list[bytes],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    codec: int = 0,
    key: bytes | None = b"k",
    timestamp: int = NOW,
) -> bytes:
    encoded, _ = batches.encode_records(
        [Record(value, key, timestamp=timestamp + i) for i, value in enumerate(values)],
        0,
        options=batches.BatchOptions(
            base_offset=0,
            leader_epoch=-1,
            now_ms=NOW,
            timestamp_type=0,
            codec=codec,
            level=None,
            max_bytes=1 << 20,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        ),
    )
    return bytes(encoded.data)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def topic(store: Store) -> Topic:
    return store.create_topic("t")


def values(topic: Topic, isolation: str = "read_uncommitted") -> list[bytes | None]:
    return [record.value for record in topic.read(isolation=isolation)]


@pytest.mark.parametrize("codec", range(5))
def test_batches_get_their_offsets(topic: Topic, codec: int) -> None:
    topic.append(b"before")
    placed = topic.append_batches(0, make_batch([b"a", b"b"], codec=codec) + make_batch([b"c"]))
    assert (placed.base_offset, placed.last_offset, placed.duplicate) == (1, 3, False)
    assert [(record.offset, record.value) for record in topic.read()] == [
        (0, b"before"),
        (1, b"a"),
        (2, b"b"),
        (3, b"c"),
    ]
    assert [record.timestamp for record in topic.read(0, 1)] == [NOW, NOW + 1, NOW]


def test_the_topic_decides_the_codec_and_the_time(store: Store) -> None:
    zstd = store.create_topic("zstd", config={"compression.type": "zstd"})
    zstd.append_batches(0, make_batch([b"a" * 500] * 10))
    data = Path(zstd.segments()[0].path).read_bytes()
    assert [header.codec for header in batches.scan(data)] == [4]
    assert values(zstd) == [b"a" * 500] * 10
    stamped = store.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    placed = stamped.append_batches(0, make_batch([b"a", b"b"]))
    assert placed.timestamp > NOW
    assert {(record.timestamp, record.timestamp_type) for record in stamped.read()} == {(placed.timestamp, 1)}


def test_bad_batches_are_refused_and_leave_nothing(topic: Topic, store: Store) -> None:
    good = make_batch([b"a", b"b"])
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x41
        if at < 8 or 12 <= at < 16:  # base offset and leader epoch are the log's to assign
            continue
        with pytest.raises(errors.StratalogError):
            topic.append_batches(0, bytes(bad))
    for cut in range(len(good)):
        with pytest.raises(errors.StratalogError):
            topic.append_batches(0, good[:cut])
    with pytest.raises(errors.StratalogError):
        topic.append_batches(0, good + b"\0")
    small = store.create_topic("small", config={"max.message.bytes": 100})
    with pytest.raises(errors.RecordTooLargeError):
        small.append_batches(0, make_batch([b"x" * 100]))
    control = batches.encode_control(
        "commit", producer_id=1, producer_epoch=0, base_offset=0, leader_epoch=0, timestamp=NOW
    )
    with pytest.raises(errors.InvalidRecordError, match="control"):
        topic.append_batches(0, control)
    assert topic.log_end_offset() == 0
    compacted = store.create_topic("c", config={"cleanup.policy": "compact"})
    with pytest.raises(errors.InvalidRecordError):
        compacted.append_batches(0, make_batch([b"a"], key=None))


def test_an_idempotent_producer_is_deduplicated(topic: Topic) -> None:
    first = make_batch([b"a", b"b"], producer_id=7, epoch=0, sequence=0)
    second = make_batch([b"c"], producer_id=7, epoch=0, sequence=2)
    topic.append_batches(0, first)
    placed = topic.append_batches(0, second)
    again = topic.append_batches(0, first)
    assert again.duplicate
    assert (again.base_offset, again.last_offset) == (0, 1)
    assert topic.append_batches(0, second) == placed._replace(duplicate=True)
    with pytest.raises(errors.OutOfOrderSequenceError):
        topic.append_batches(0, make_batch([b"x"], producer_id=7, epoch=0, sequence=9))
    topic.append_batches(0, make_batch([b"d"], producer_id=7, epoch=1, sequence=0))
    with pytest.raises(errors.InvalidProducerEpochError):
        topic.append_batches(0, make_batch([b"x"], producer_id=7, epoch=0, sequence=3))
    assert values(topic) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("records", [2, 3, 100])
def test_each_of_the_last_five_is_known_after_a_reopen(tmp_path: Path, clean: bool, records: int) -> None:
    # What is older than ten minutes is not looked for: this module may have been imported before that.
    now = time.time_ns() // 1_000_000
    sent = [make_batch([b"%d" % n], producer_id=3, epoch=0, sequence=n, timestamp=now) for n in range(7)]
    store = stratalog.open(tmp_path / "data")
    topic = store.create_topic("t", config={"segment.records": records})
    for each in sent:
        topic.append_batches(0, each, sync=True)
    if clean:
        store.close()
    else:
        _abandon(store)
    with stratalog.open(tmp_path / "data") as again:
        topic = again.topic("t")
        for offset, each in enumerate(sent[2:], 2):
            placed = topic.append_batches(0, each)
            assert (placed.duplicate, placed.base_offset) == (True, offset)
        with pytest.raises(errors.OutOfOrderSequenceError):
            topic.append_batches(0, sent[1])


@pytest.mark.parametrize("clean", [True, False])
def test_deduplication_survives_a_reopen(tmp_path: Path, clean: bool) -> None:
    batch = make_batch([b"a"], producer_id=3, epoch=0, sequence=0)
    store = stratalog.open(tmp_path / "data")
    topic = store.create_topic("t", config={"segment.records": 2})
    topic.append_batches(0, batch)
    topic.append_batches(0, make_batch([b"b"], producer_id=3, epoch=0, sequence=1), sync=True)
    if clean:
        store.close()
    else:
        _abandon(store)
    with stratalog.open(tmp_path / "data") as again:
        topic = again.topic("t")
        last = make_batch([b"b"], producer_id=3, epoch=0, sequence=1)
        assert topic.append_batches(0, last).duplicate
        topic.append_batches(0, make_batch([b"c"], producer_id=3, epoch=0, sequence=2))
        assert values(topic) == [b"a", b"b", b"c"]


def _abandon(store: Store) -> None:
    """Let go of a store as a killed process would: the locks are gone, nothing is written."""
    if store._background is not None:
        store._background.stop()
    for each in store.partitions.dirs.all:
        each.release()


@pytest.mark.parametrize("clean", [True, False])
def test_transactions(tmp_path: Path, clean: bool) -> None:
    store = stratalog.open(tmp_path / "data")
    topic = store.create_topic("t", config={"segment.records": 5})
    for producer, commit in ((1, True), (2, False), (3, True)):
        for i in range(3):
            data = make_batch(
                [b"%d-%d" % (producer, i)], producer_id=producer, epoch=0, sequence=i, transactional=True
            )
            topic.append_batches(0, data)
        assert topic.high_watermark(isolation="read_committed") == topic.log_end_offset() - 3
        topic.end_transaction(0, producer_id=producer, producer_epoch=0, commit=commit)
        topic.append(b"plain")
    topic.append_batches(0, make_batch([b"open"], producer_id=9, epoch=0, sequence=0, transactional=True))
    committed = [b"1-0", b"1-1", b"1-2", b"plain", b"plain", b"3-0", b"3-1", b"3-2", b"plain"]
    everything = values(topic)
    assert everything.count(b"2-0") == 1
    assert values(topic, isolation="read_committed") == committed
    table = topic.scan(columns=["value"], isolation="read_committed").read_all()
    assert table.column("value").to_pylist() == committed
    with stratalog.open(tmp_path / "data", read_only=True) as reader:
        assert values(reader.topic("t"), isolation="read_committed") == committed
    if clean:
        store.close()
    else:
        _abandon(store)
    with stratalog.open(tmp_path / "data") as again:
        topic = again.topic("t")
        assert values(topic) == everything
        assert values(topic, isolation="read_committed") == committed
        topic.end_transaction(0, producer_id=9, producer_epoch=0, commit=True)
        assert values(topic, isolation="read_committed") == [*committed, b"open"]
        with pytest.raises(errors.InvalidProducerEpochError):
            topic.end_transaction(0, producer_id=9, producer_epoch=-1, commit=True)
