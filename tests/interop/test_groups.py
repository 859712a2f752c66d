"""Committed offsets, between a real broker and us: each goes on where the other stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record
from stratalog.store.groups.offsets import OFFSETS_TOPIC
from tests.interop.kafka import KafkaBroker, dump_log, wait_until

pytestmark = pytest.mark.interop

PARTITIONS = 3


def member(broker: KafkaBroker, group: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})


def committed(broker: KafkaBroker, group: str) -> dict[int, int]:
    from confluent_kafka import TopicPartition

    consumer = member(broker, group)
    try:
        asked = [TopicPartition("orders", number) for number in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(asked, timeout=30)}
    finally:
        consumer.close()


def test_the_broker_and_we_see_the_same_groups(tmp_path: Path) -> None:
    from confluent_kafka import TopicPartition

    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic("orders", PARTITIONS, {"retention.ms": -1})
        producer = broker.producer()
        for number in range(30):
            producer.produce("orders", b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        consumer = member(broker, "theirs")
        theirs = {0: 4, 1: 0, 2: 10}
        consumer.commit(
            offsets=[TopicPartition("orders", *each) for each in theirs.items()], asynchronous=False
        )
        consumer.close()
        with stratalog.open(broker.log_dir, read_only=True) as beside:
            wait_until(lambda: "theirs" in beside.groups.offsets.all(), "the broker's commit")
        broker.stop()

        with stratalog.open(broker.log_dir) as store:
            found = store.groups.offsets.all()["theirs"]
            assert {partition: each.offset for (_, partition), each in found.items()} == theirs
            with store.consumer("theirs", ["orders"], timeout_s=0) as ours:
                assert len(list(ours)) == 30 - 14
                ours.commit(sync=True)
            with store.consumer("ours", ["orders"], timeout_s=0) as ours:
                assert len(ours.poll(17)) == 17
                ours.commit(sync=True)
                positions = {number: ours.position("orders", number) for number in range(PARTITIONS)}
            there = len(list(broker.log_dir.glob(f"{OFFSETS_TOPIC}-*")))
            assert store[OFFSETS_TOPIC].partitions == there, "the broker's own topic is used"
        broker.start()
        assert committed(broker, "theirs") == dict.fromkeys(range(PARTITIONS), 10)
        assert committed(broker, "ours") == positions
        broker.stop()


def test_a_topic_of_offsets_that_we_made_has_kafkas_records(tmp_path: Path) -> None:
    """The dump tool of Kafka decodes them."""
    with stratalog.open(tmp_path / "data") as store:
        store.create_topic("orders", PARTITIONS).append_many([Record(b"x")] * 5, partition=1)
        store.groups.offsets.commit("billing", {("orders", 1): 3}, metadata="note")
        segment = store[OFFSETS_TOPIC].segments(0)[0].path
    text = dump_log([segment], "--offsets-decoder")
    assert '"group":"billing"' in text
    assert '"topic":"orders"' in text
    assert '"offset":3' in text
