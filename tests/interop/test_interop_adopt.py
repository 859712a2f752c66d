"""A real broker adopts directories we wrote, sidecars and all, and serves what we would have served."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import stratalog
from tests.interop.kafka import KafkaBroker
from tests.interop.samples import CODECS, Seen, append_in_batches, sample_records, seen_by_client, seen_by_us

pytestmark = pytest.mark.interop

PARTITIONS = 2
RECORDS = 4_000
TOPICS = (*(f"codec-{codec}" for codec in CODECS), "stamped")
KEPT_BY_THE_BROKER = {"partition.metadata", "leader-epoch-checkpoint"}


def write_store(path: Path) -> dict[tuple[str, int], list[Seen]]:
    """Small segments, sealed ones with every sidecar; returns what we read back from it."""
    config = {"segment.bytes": 128 * 1024, "index.interval.bytes": 1024, "key.index.enable": True}
    expected = {}
    with stratalog.open(path) as store:
        for number, name in enumerate(TOPICS):
            settings: dict[str, object] = {**config, "retention.ms": -1}
            if name == "stamped":
                settings["message.timestamp.type"] = "LogAppendTime"
            else:
                settings["compression.type"] = CODECS[name.removeprefix("codec-")]
            topic = store.create_topic(name, partitions=PARTITIONS, config=settings)
            append_in_batches(topic, sample_records(RECORDS, seed=number))
            for partition in range(PARTITIONS):
                read = [seen_by_us(record) for record in topic.read(partition=partition, start=0)]
                expected[name, partition] = read
            assert sum(len(expected[name, partition]) for partition in range(PARTITIONS)) == RECORDS
    return expected


def hand_over(ours: Path, broker: KafkaBroker) -> None:
    """The steps of an adoption, on a broker that was stopped cleanly."""
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            target = broker.partition_dir(topic, partition)
            for file in target.iterdir():
                if file.name not in KEPT_BY_THE_BROKER:
                    file.unlink()
            for file in (ours / target.name).iterdir():
                if file.name not in KEPT_BY_THE_BROKER:
                    shutil.copy2(file, target / file.name)
    shutil.copy2(ours / "stratalog.settings", broker.log_dir)
    (broker.log_dir / ".kafka_cleanshutdown").unlink()


def sidecars(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.suffix in {".seal", ".keyindex", ".tail"}}


def test_broker_adopts_our_directories(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    expected = write_store(ours)
    with KafkaBroker(tmp_path / "kafka") as broker:
        for topic in TOPICS:
            stamped = {"message.timestamp.type": "LogAppendTime"} if topic == "stamped" else {}
            broker.create_topic(topic, PARTITIONS, {"retention.ms": -1, **stamped})
        broker.stop()
        hand_over(ours, broker)
        carried = {topic: sidecars(broker.partition_dir(topic)) for topic in TOPICS}
        for names in carried.values():
            assert {Path(name).suffix for name in names} == {".seal", ".keyindex", ".tail"}
        broker.start()

        for (topic, partition), records in expected.items():
            served = [seen_by_client(message) for message in broker.consume(topic, partition)]
            assert served == records, f"{topic}-{partition}"

        # the log goes on where ours ended
        producer = broker.producer()
        ends = {}
        for topic in TOPICS:
            producer.produce(
                topic,
                b"after adoption",
                partition=0,
                on_delivery=lambda error, message: ends.update({message.topic(): message.offset()}),
            )
        assert producer.flush(30) == 0
        assert ends == {topic: expected[topic, 0][-1].offset + 1 for topic in TOPICS}
        broker.stop()
        assert {topic: sidecars(broker.partition_dir(topic)) for topic in TOPICS} == carried

        # and back: what the broker left is read by us
        with stratalog.open(broker.log_dir, read_only=True) as store:
            for topic in TOPICS:
                read = [seen_by_us(record) for record in store.topic(topic).read(partition=0, start=0)]
                assert read[:-1] == expected[topic, 0]
                assert read[-1].value == b"after adoption"
