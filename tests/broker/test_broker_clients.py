"""A real client, librdkafka, at the broker: topics, every codec, acknowledgements, reading from anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

import stratalog
from stratalog import Broker, Store

WAIT_S = 20
NO_COMPLAINTS = {"log_level": 0}


def producer(broker: Broker, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **NO_COMPLAINTS, **config})


def consumer(broker: Broker, *places: TopicPartition, **config: Any) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **NO_COMPLAINTS,
            **config,
        }
    )
    made.assign(list(places))
    return made


def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, **NO_COMPLAINTS})


def produced(made: Producer, topic: str, values: list[bytes], **more: Any) -> list[int]:
    """Produce and wait; returns the offsets."""
    found: list[tuple[KafkaError | None, int | None]] = []

    def told(error: KafkaError | None, message: Message) -> None:
        found.append((error, message.offset()))

    for value in values:
        made.produce(topic, value, on_delivery=told, **more)
    assert made.flush(WAIT_S) == 0
    assert [error for error, _ in found] == [None] * len(values)
    return [offset for _, offset in found if offset is not None]


def consumed(made: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = made.poll(WAIT_S)
        assert message is not None, f"{len(found)} of {count} came"
        assert message.error() is None, message.error()
        found.append(message)
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_go_there_and_back(broker: Broker, store: Store, codec: str) -> None:
    store.create_topic("orders", 2)
    values = [b"%d" % n * 50 for n in range(500)]
    made = producer(broker, **{"compression.type": codec, "linger.ms": 20})
    offsets = produced(
        made, "orders", values, key=b"k", headers=[("h", b"1"), ("n", None)], partition=1, timestamp=7
    )
    assert offsets == list(range(500))
    reader = consumer(broker, TopicPartition("orders", 1, 0))
    found = consumed(reader, 500)
    assert [each.value() for each in found] == values
    assert found[0].headers() == [("h", b"1"), ("n", None)]
    assert (found[0].key(), found[0].timestamp()) == (b"k", (1, 7))
    reader.close()
    kept = list(store["orders"].read(1))
    assert [record.value for record in kept] == values
    assert store["orders"].log_end_offset(0) == 0
    assert stratalog.verify(store).ok


def test_topics_are_made_grown_and_deleted(broker: Broker, store: Store) -> None:
    client = admin(broker)

    def outcome(futures: dict[Any, Any]) -> dict[str, str]:
        found = {}
        for name, future in futures.items():
            try:
                future.result(WAIT_S)
                found[str(name)] = "ok"
            except KafkaException as error:
                found[str(name)] = error.args[0].name()
        return found

    wanted = [
        NewTopic("a", 3, 1, config={"retention.ms": "1000"}),
        NewTopic("bad name", 1, 1),
        NewTopic("replicas", 1, 3),
        NewTopic("setting", 1, 1, config={"retention.ms": "soon"}),
    ]
    assert outcome(client.create_topics(wanted)) == {
        "a": "ok",
        "bad name": "TOPIC_EXCEPTION",
        "replicas": "INVALID_REPLICATION_FACTOR",
        "setting": "INVALID_CONFIG",
    }
    assert store["a"].config.retention_ms == 1000
    assert outcome(client.create_topics([NewTopic("a", 1, 1)])) == {"a": "TOPIC_ALREADY_EXISTS"}
    assert outcome(client.create_topics([NewTopic("only tried", 1, 1)], validate_only=True)) == {
        "only tried": "TOPIC_EXCEPTION"
    }
    assert outcome(client.create_topics([NewTopic("tried", 1, 1)], validate_only=True)) == {"tried": "ok"}
    assert outcome(client.create_partitions([NewPartitions("a", 5)])) == {"a": "ok"}
    assert outcome(client.create_partitions([NewPartitions("a", 2)])) == {"a": "INVALID_PARTITIONS"}
    told = client.list_topics(timeout=WAIT_S)
    assert {name: len(each.partitions) for name, each in told.topics.items()} == {"a": 5}
    assert told.cluster_id == store.cluster_id
    assert outcome(client.delete_topics(["a", "gone"])) == {"a": "ok", "gone": "UNKNOWN_TOPIC_OR_PART"}
    assert store.topics() == []


def test_settings_are_shown_and_changed(broker: Broker, store: Store) -> None:
    store.create_topic("a", config={"retention.ms": 1000})
    client = admin(broker)
    topic, me = ConfigResource("topic", "a"), ConfigResource("broker", "1")
    found = client.describe_configs([topic, me])
    settings = found[topic].result(WAIT_S)
    assert (settings["retention.ms"].value, settings["retention.ms"].source) == ("1000", 1)
    assert (settings["segment.bytes"].value, settings["segment.bytes"].source) == ("1073741824", 5)
    assert set(settings) == {entry.name for entry in store.describe_topic("a")}
    assert found[me].result(WAIT_S)["num.partitions"].value == "1"

    def change(*entries: tuple[str, str | None, str], **more: Any) -> str:
        wanted = ConfigResource(
            "topic",
            "a",
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType[operation])
                for name, value, operation in entries
            ],
        )
        [future] = client.incremental_alter_configs([wanted], **more).values()
        try:
            future.result(WAIT_S)
            return "ok"
        except KafkaException as error:
            return str(error.args[0].name())

    assert change(("segment.bytes", "2097152", "SET"), ("retention.ms", None, "DELETE")) == "ok"
    assert (store["a"].config.segment_bytes, store["a"].config.retention_ms) == (2097152, 604_800_000)
    assert change(("cleanup.policy", "compact", "APPEND")) == "ok"
    assert store["a"].config.cleanup_policy == {"compact", "delete"}
    assert change(("segment.bytes", "few", "SET")) == "INVALID_CONFIG"
    assert change(("segment.bytes", "1", "SET"), validate_only=True) == "INVALID_CONFIG"
    assert change(("segment.bytes", "3145728", "SET"), validate_only=True) == "ok"
    assert store["a"].config.segment_bytes == 2097152
    missing = ConfigResource("topic", "gone")
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        client.describe_configs([missing])[missing].result(WAIT_S)


def test_an_unknown_topic_is_made_when_it_is_asked_for(store: Store) -> None:
    with stratalog.serve(store) as broker:
        assert produced(producer(broker), "made", [b"x"]) == [0]
    assert store["made"].partitions == 1
    with stratalog.serve(store, auto_create_topics=False) as broker:
        made = producer(broker, **{"topic.metadata.propagation.max.ms": 100})
        errors: list[Any] = []
        made.produce("refused", b"x", on_delivery=lambda error, _: errors.append(error.name()))
        made.flush(WAIT_S)
        assert errors[0] in ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART")
    assert store.topics() == ["made"]


def test_an_acknowledged_record_is_on_disk_where_the_topic_asks_for_it(broker: Broker, store: Store) -> None:
    topic = store.create_topic("safe", config={"flush.messages": 1})
    for acks in ("all", "1"):
        produced(producer(broker, acks=acks), "safe", [b"x"] * 10)
        end = topic.log_end_offset(0)
        assert topic.high_watermark(0) == end
        assert topic.when(0, "synced", end).wait(0)
    produced(producer(broker, acks=0), "safe", [b"x"] * 10)
    assert [each.value() for each in consumed(consumer(broker, TopicPartition("safe", 0, 20)), 10)] == [
        b"x"
    ] * 10


def test_an_idempotent_producer_is_served(broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    made = producer(broker, **{"enable.idempotence": True})
    assert produced(made, "orders", [b"%d" % n for n in range(100)]) == list(range(100))


def test_a_consumer_waits_and_gets_what_the_program_appends(broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders")
    reader = consumer(broker, TopicPartition("orders", 0, 0), **{"fetch.wait.max.ms": 10_000})
    assert reader.poll(0.3) is None
    for n in range(3):
        topic.append(b"%d" % n)
        assert [each.value() for each in consumed(reader, 1)] == [b"%d" % n]
    reader.close()


def test_committed_and_uncommitted_reads(broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    with store.transaction("t") as t:
        t.append("orders", b"kept")
    aborted = store.transaction("t")
    aborted.append("orders", b"aborted")
    aborted.abort()
    opened = store.transaction("t")
    opened.append("orders", b"open")
    levels = {"read_committed": [b"kept"], "read_uncommitted": [b"kept", b"aborted", b"open"]}
    for level, expected in levels.items():
        reader = consumer(broker, TopicPartition("orders", 0, 0), **{"isolation.level": level})
        assert [each.value() for each in consumed(reader, len(expected))] == expected
        assert reader.poll(0.2) is None
        reader.close()
    opened.commit()


def test_offsets_by_time_and_at_both_ends(broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders")
    for n in range(100):
        topic.append(b"x", timestamp=1000 + n)
    topic.delete_records(0, 10)
    reader = consumer(broker, TopicPartition("orders", 0, 10))
    assert reader.get_watermark_offsets(TopicPartition("orders", 0), timeout=WAIT_S) == (10, 100)
    [found] = reader.offsets_for_times([TopicPartition("orders", 0, 1050)], timeout=WAIT_S)
    assert found.offset == 50
    [after] = reader.offsets_for_times([TopicPartition("orders", 0, 9999)], timeout=WAIT_S)
    assert after.offset == -1
    reader.close()
    below = consumer(broker, TopicPartition("orders", 0, 3))
    message = below.poll(WAIT_S)
    assert message is not None
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    below.close()


def test_records_are_deleted_through_the_protocol(broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders")
    for _ in range(10):
        topic.append(b"x")
    client = admin(broker)
    [future] = client.delete_records([TopicPartition("orders", 0, 4)]).values()
    assert future.result(WAIT_S).low_watermark == 4
    assert topic.log_start_offset(0) == 4
    [future] = client.delete_records([TopicPartition("orders", 0, 99)]).values()
    with pytest.raises(KafkaException, match="out of range"):
        future.result(WAIT_S)


def test_refused_records_name_their_reason(broker: Broker, store: Store) -> None:
    store.create_topic("keyed", config={"cleanup.policy": "compact"})
    store.create_topic("small", config={"max.message.bytes": 500})
    told: list[str] = []
    made = producer(broker)
    for topic, value in (("keyed", b"no key"), ("small", os.urandom(2000))):
        made.produce(topic, value, on_delivery=lambda error, _: told.append(error.name()))
        made.flush(WAIT_S)
    assert told == ["INVALID_RECORD", "MSG_SIZE_TOO_LARGE"]
    assert store["keyed"].log_end_offset(0) == store["small"].log_end_offset(0) == 0


def test_archived_segments_are_served(tmp_path: Path) -> None:
    settings = {"log.archive.url": str(tmp_path / "archive")}
    with stratalog.open(tmp_path / "data", settings) as store, stratalog.serve(store) as broker:
        topic = store.create_topic("old", config={"remote.storage.enable": True, "local.retention.bytes": 0})
        for n in range(30):
            topic.append(b"%d" % n)
            if n % 10 == 9:
                topic.roll()
        store.archive()
        store.janitor()
        assert topic.list_offset(0, stratalog.OffsetSpec.EARLIEST_LOCAL).offset > 0  # type: ignore[union-attr]
        reader = consumer(broker, TopicPartition("old", 0, 0))
        assert [each.value() for each in consumed(reader, 30)] == [b"%d" % n for n in range(30)]
        reader.close()


def test_two_hundred_megabytes_in_large_answers(broker: Broker, store: Store) -> None:
    """`sendfile` in many pieces, to a reader that is slower than the disk."""
    topic = store.create_topic("big", config={"max.message.bytes": 4 << 20})
    values = [os.urandom(1 << 20) for _ in range(4)]
    for n in range(50):
        topic.append(values[n % 4])
    reader = consumer(
        broker,
        TopicPartition("big", 0, 0),
        **{"fetch.max.bytes": 60 << 20, "max.partition.fetch.bytes": 60 << 20},
    )
    assert [each.value() for each in consumed(reader, 50)] == [values[n % 4] for n in range(50)]
    reader.close()


SERVE = [sys.executable, "-m", "stratalog", "serve", "--listen", "127.0.0.1:0"]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_stopped(tmp_path: Path, stop: signal.Signals) -> None:
    command = [*SERVE, "--data", str(tmp_path / "data"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = stratalog_address(process.stdout.readline)
        made = Producer({"bootstrap.servers": address, **NO_COMPLAINTS})
        assert produced(made, "orders", [b"x"] * 10) == list(range(10))
        process.send_signal(stop)
        _, errors = process.communicate(timeout=WAIT_S)
        assert (process.returncode, errors) == (0, "")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert len(list(store["orders"].read())) == 10


def stratalog_address(line: Callable[[], str]) -> str:
    return str(json.loads(line())["bootstrap_servers"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--listen", "nowhere"], "is not HOST:PORT"), (["--listen", "127.0.0.1:99999"], "is not HOST:PORT")],
)
def test_wrong_addresses_are_usage_errors(tmp_path: Path, arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "stratalog", "serve", "--data", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr
