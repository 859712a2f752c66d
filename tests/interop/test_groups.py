"""Committed offsets, between a real broker and us: each goes on where the other stopped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record
from stratalog.cli.app import app
from stratalog.store.groups.offsets import OFFSETS_TOPIC
from tests.interop.kafka import KafkaBroker, complaints, dump_log, wait_until

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


SUBSCRIBED = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}


def read_some(address: str, group: str, count: int, **settings: Any) -> dict[int, int]:
    """Join a group, read, and commit; return the committed offsets."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": address, "group.id": group, **SUBSCRIBED, **settings})
    consumer.subscribe(["orders"])
    read = 0
    while read < count:
        message = consumer.poll(60)
        assert message is not None, f"{group}: {read} of {count} came"
        assert message.error() is None, message.error()
        read += 1
    places = consumer.commit(asynchronous=False)
    consumer.close()
    return {each.partition: each.offset for each in places or [] if each.offset >= 0}


def transact(address: str, name: str, values: list[bytes], *, commit: bool) -> None:
    """Write in a transaction, and commit offsets of the group ``moved`` in it."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "log_level": 0})
    consumer = Consumer({"bootstrap.servers": address, "group.id": "moved", **SUBSCRIBED})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce("copies", value, partition=0)
    producer.send_offsets_to_transaction(
        [TopicPartition("orders", 0, len(values))], consumer.consumer_group_metadata(), 60
    )
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)
    consumer.close()


def test_what_clients_leave_at_our_broker_is_loaded_by_kafka(tmp_path: Path) -> None:
    """Groups of both protocols and transactions, in topics that Kafka made; its dump tool reads them too."""
    with KafkaBroker(tmp_path / "kafka") as kafka:
        kafka.create_topic("orders", PARTITIONS, {"retention.ms": -1})
        kafka.create_topic("copies", 1, {"retention.ms": -1})
        producer = kafka.producer()
        for number in range(30):
            producer.produce("orders", b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(30) == 0
        before = read_some(kafka.bootstrap, "before", 4)
        transact(kafka.bootstrap, "mover", [b"kafka"], commit=True)
        kafka.stop()

        with stratalog.open(kafka.log_dir) as store, stratalog.serve(store) as broker:
            address = broker.bootstrap_servers
            wanted = {"before": before, "classic": read_some(address, "classic", 7)}
            wanted["newer"] = read_some(address, "newer", 30, **{"group.protocol": "consumer"})
            transact(address, "mover", [b"one", b"two"], commit=True)
            transact(address, "mover", [b"never"], commit=False)
            wanted["moved"] = {0: 2}
            offsets = [each.path for each in store[OFFSETS_TOPIC].segments(0)]
            states = [each.path for each in store["__transaction_state"].segments(0)]
        for paths, flag, kinds in (
            (offsets, "--offsets-decoder", {1, 2, 3, 5, 6, 7, 8}),  # offsets, and groups of both protocols
            (states, "--transaction-log-decoder", {0}),
        ):
            text = dump_log(paths, flag)
            assert complaints(text) == []
            assert {int(kind) for kind in re.findall(r'key: {"type":"(\d+)"', text)} >= kinds
            ours = CliRunner().invoke(app, ["dump", *map(str, paths), flag])
            assert ours.output.splitlines() == text.splitlines()

        kafka.start()
        for group, places in wanted.items():
            found = committed(kafka, group)
            assert {number: found[number] for number in places} == places, group
        transact(kafka.bootstrap, "mover", [b"back"], commit=True)
        values = [each.value() for each in kafka.consume("copies", isolation="read_committed")]
        assert values == [b"kafka", b"one", b"two", b"back"]
        kafka.stop()
