"""A topic graduates to a real broker and is adopted back, with its producers, transactions and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.format import batch as batches
from stratalog.store.copies import adopt, graduate
from tests.interop.kafka import KafkaBroker
from tests.interop.samples import Seen, append_in_batches, sample_records, seen_by_client, seen_by_us

pytestmark = pytest.mark.interop

TOPIC = "orders"
PARTITIONS = 2
RECORDS = 3_000
OUR_EPOCH = 5
PRODUCER = 4_711


def from_producer(records: list[Record], sequence: int, *, transactional: bool = False) -> bytes:
    encoded, _ = batches.encode_records(
        records,
        options=batches.BatchOptions(
            base_offset=0,
            leader_epoch=0,
            now_ms=0,
            max_bytes=1 << 20,
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        ),
    )
    return bytes(encoded.data)


def write_store(path: Path) -> None:
    """Several segments of old records in a leader epoch that no new topic has, and transactions."""
    with stratalog.open(path) as store:
        store.create_topic(
            TOPIC,
            PARTITIONS,
            {
                "segment.bytes": 128 * 1024,
                "compression.type": "lz4",
                "retention.ms": -1,
                "key.index.enable": True,
            },
        )
    for partition in range(PARTITIONS):
        (path / f"{TOPIC}-{partition}" / "leader-epoch-checkpoint").write_text(f"0\n1\n{OUR_EPOCH} 0\n")
    with stratalog.open(path) as store:
        topic = store.topic(TOPIC)
        append_in_batches(topic, sample_records(RECORDS, seed=9))
        for number, commit in enumerate((True, False, True)):
            records = [Record(b"txn-%d" % number, b"k", timestamp=1_760_000_000_000 + n) for n in range(4)]
            topic.append_batches(0, from_producer(records, 4 * number, transactional=True))
            topic.end_transaction(0, producer_id=PRODUCER, producer_epoch=0, commit=commit)
        topic.delete_records(1, 100)
        store.create_topic("short").append(b"old", timestamp=1_760_000_000_000)


def ours(path: Path, isolation: str) -> dict[int, list[Seen]]:
    with stratalog.open(path, read_only=True) as store:
        topic = store.topic(TOPIC)
        return {
            partition: [seen_by_us(record) for record in topic.read(partition, isolation=isolation)]
            for partition in range(PARTITIONS)
        }


def theirs(broker: KafkaBroker, isolation: str) -> dict[int, list[Seen]]:
    starts = {0: 0, 1: 100}
    return {
        partition: [
            seen_by_client(message)
            for message in broker.consume(TOPIC, partition, start=starts[partition], isolation=isolation)
        ]
        for partition in range(PARTITIONS)
    }


def test_a_topic_graduates_and_comes_back(tmp_path: Path) -> None:
    source, back = tmp_path / "ours", tmp_path / "back"
    write_store(source)
    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic(TOPIC, PARTITIONS, {"retention.ms": -1, "segment.bytes": 2 << 20})
        broker.create_topic("short")
        with pytest.raises(errors.StoreLockedError, match="stop the broker"):
            graduate(source, TOPIC, broker.log_dir)
        broker.stop()
        # an old record would meet the default retention: the broker's own metadata says so
        preview = graduate(source, "short", broker.log_dir, dry_run=True)
        assert ["retention.ms" in problem for problem in preview.problems] == [True]
        assert graduate(source, TOPIC, broker.log_dir, dry_run=True).problems == ()

        report = graduate(source, TOPIC, broker.log_dir)
        assert report.patched_batches > 100
        broker.start()
        for isolation in ("read_uncommitted", "read_committed"):
            assert theirs(broker, isolation) == ours(source, isolation)
        said = broker.output.read_text(errors="replace")
        assert "caused truncation of conflicting entries" not in said
        assert "-stray" not in said

        producer = broker.producer()
        placed = {}
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC,
                b"after",
                partition=partition,
                on_delivery=lambda error, message: placed.update({message.partition(): message.offset()}),
            )
        assert producer.flush(30) == 0
        assert placed == {copy.partition: copy.end_offset for copy in report.partitions}
        with pytest.raises(errors.StoreLockedError, match="stop the broker"):
            adopt(back, broker.log_dir, TOPIC)
        broker.stop()

        adopted = adopt(back, broker.log_dir, TOPIC)
        assert adopted.settings["retention.ms"] == "-1"
        assert adopted.settings["segment.bytes"] == str(2 << 20)
        for isolation in ("read_uncommitted", "read_committed"):
            before, after = ours(source, isolation), ours(back, isolation)
            for partition in range(PARTITIONS):
                assert after[partition][:-1] == before[partition]
                assert after[partition][-1].value == b"after"
        with stratalog.open(back) as store:
            assert not stratalog.verify(store).damages
            with pytest.raises(errors.OutOfOrderSequenceError, match="sequence 99 cannot follow 11"):
                store.topic(TOPIC).append_batches(0, from_producer([Record(b"x", timestamp=1)], 99))
