"""Transactions with Kafka clients of three makes, and through kill -9."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError
from kafka.errors import ProducerFencedError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as PythonTopicPartition

import stratalog
from stratalog import Broker, Record, Store
from stratalog.broker.codes import Code
from stratalog.store.groups.offsets import OFFSETS_TOPIC
from stratalog.store.transactions.coordinator import TRANSACTIONS_TOPIC
from stratalog.store.transactions.state import Status
from stratalog.testing import ManualClock
from tests.broker.kafka_clients import consumer as any_consumer
from tests.broker.kafka_clients import served, serving, values
from tests.broker.test_broker_bytes import Wire, client
from tests.broker.test_broker_transactions import OK, WAIT_S, Client, seen, stable, until

# -- with clients --------------------------------------------------------------------------------------------


def consumer(address: str, **config: Any) -> AbstractContextManager[Consumer]:
    return any_consumer(address, (), **({"group.id": "g"} | config))


def producer(address: str, **config: Any) -> Producer:
    made = Producer({"bootstrap.servers": address, "transactional.id": "t", "linger.ms": 0, **config})
    made.init_transactions(WAIT_S)
    return made


def test_commit_and_abort(broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    made = producer(broker.bootstrap_servers)
    for n in range(6):
        made.begin_transaction()
        made.produce("orders", b"%d" % n)
        (made.abort_transaction if n % 2 else made.commit_transaction)(WAIT_S)
    made.begin_transaction()
    made.produce("orders", b"open")
    made.flush(WAIT_S)
    place = [TopicPartition("orders", 0, 0)]
    with consumer(broker.bootstrap_servers, **{"isolation.level": "read_uncommitted"}) as every:
        every.assign(place)
        found = values(every, len(seen(store, isolation="read_uncommitted")))
        assert {b"0", b"2", b"4", b"open"} <= set(found)
    with consumer(broker.bootstrap_servers, **{"isolation.level": "read_committed"}) as committed:
        committed.assign(place)
        assert values(committed, 3) == [b"0", b"2", b"4"]
        assert (
            committed.get_watermark_offsets(place[0], timeout=WAIT_S)[1] <= store["orders"].log_end_offset()
        )
        made.commit_transaction(WAIT_S)
        assert values(committed, 1) == [b"open"]


def test_consume_transform_produce(broker: Broker, store: Store) -> None:
    store.create_topic("in")
    store.create_topic("out")
    store["in"].append_many([Record(b"%d" % n) for n in range(30)])
    made = producer(broker.bootstrap_servers)
    done = 0
    for attempt in range(6):
        with consumer(broker.bootstrap_servers, **{"isolation.level": "read_committed"}) as source:
            source.subscribe(["in"])
            read = values(source, 5)
            made.begin_transaction()
            for value in read:
                made.produce("out", value)
            made.send_offsets_to_transaction(
                source.position(source.assignment()), source.consumer_group_metadata(), WAIT_S
            )
            if attempt % 2:
                made.abort_transaction(WAIT_S)
            else:
                made.commit_transaction(WAIT_S)
                done += len(read)
    assert seen(store, "out") == sorted(b"%d" % n for n in range(done))
    found = store.groups.offsets.committed("g", "in", 0)
    assert found is not None
    assert found.offset == done == 15
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    told = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")])["g"].result(WAIT_S)
    assert [each.offset for each in told.topic_partitions] == [done]


def test_a_zombie_is_fenced(broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    zombie = producer(broker.bootstrap_servers)
    zombie.begin_transaction()
    zombie.produce("orders", b"zombie")
    zombie.flush(WAIT_S)
    made = producer(broker.bootstrap_servers)
    made.begin_transaction()
    made.produce("orders", b"a")
    made.commit_transaction(WAIT_S)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(WAIT_S)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert caught.value.args[0].fatal()
    assert seen(store) == [b"a"]


def test_a_transaction_that_hangs_is_aborted(broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    made = producer(broker.bootstrap_servers, **{"transaction.timeout.ms": 1000, "message.timeout.ms": 1000})
    made.begin_transaction()
    made.produce("orders", b"a")
    made.flush(WAIT_S)
    assert store["orders"].log_end_offset(0) == 1
    until(lambda: stable(store))
    with pytest.raises(KafkaException):
        made.commit_transaction(WAIT_S)
    assert seen(store) == []
    again = producer(broker.bootstrap_servers)
    again.begin_transaction()
    again.produce("orders", b"b")
    again.commit_transaction(WAIT_S)
    assert seen(store) == [b"b"]


def test_a_timeout_over_the_maximum_is_refused(broker: Broker) -> None:
    with pytest.raises(KafkaException) as caught:
        producer(broker.bootstrap_servers, **{"transaction.timeout.ms": 900_001})
    assert caught.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


def test_aiokafka(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 2)

    async def run() -> None:
        made = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="aio")
        await made.start()
        try:
            async with made.transaction():
                for n in range(10):
                    await made.send_and_wait("orders", b"%d" % n, partition=n % 2)
                await made.send_offsets_to_transaction({AioTopicPartition("orders", 0): 7}, "g")
            await made.begin_transaction()
            await made.send_and_wait("orders", b"aborted")
            await made.abort_transaction()
            other = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="aio")
            await other.start()
            await other.stop()
            with pytest.raises(AioKafkaError):
                async with made.transaction():
                    await made.send_and_wait("orders", b"zombie")
        finally:
            await made.stop()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    assert seen(store) == sorted(b"%d" % n for n in range(10))
    assert stable(store)
    found = store.groups.offsets.committed("g", "orders", 0)
    assert found is not None
    assert found.offset == 7


def test_kafka_python(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 2)
    made = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="python")
    try:
        made.init_transactions()
        for commit in (True, False, True):
            made.begin_transaction()
            for n in range(10):
                made.send("orders", b"%d-%d" % (commit, n), partition=n % 2)
            made.send_offsets_to_transaction(
                {PythonTopicPartition("orders", 0): OffsetAndMetadata(7 if commit else 9, "", -1)}, "g"
            )
            if commit:
                made.commit_transaction()
            else:
                made.flush()
                made.abort_transaction()
        other = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="python")
        other.init_transactions()
        other.close()
        made.begin_transaction()
        with pytest.raises(ProducerFencedError):
            made.send("orders", b"zombie", partition=0).get(WAIT_S)
        with pytest.raises(PythonKafkaError, match="ProducerFencedError"):
            made.commit_transaction()
    finally:
        made.close()
    assert seen(store) == sorted(b"1-%d" % n for n in range(10) for _ in range(2))
    found = store.groups.offsets.committed("g", "orders", 0)
    assert found is not None
    assert found.offset == 7


# -- kill -9 -------------------------------------------------------------------------------------------------


def test_a_client_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with stratalog.open(tmp_path) as store:
        store.create_topic("orders", 2)
    with served(tmp_path, "127.0.0.1:0") as (process, address):
        made = producer(address)
        made.begin_transaction()
        made.produce("orders", b"before", partition=0)
        made.flush(WAIT_S)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with served(tmp_path, address) as (process, _):
            made.produce("orders", b"after", partition=1)
            made.commit_transaction(WAIT_S)
            process.send_signal(signal.SIGTERM)
            process.wait()
    with stratalog.open(tmp_path, background=False) as store:
        assert seen(store) == [b"after", b"before"]
        assert stable(store)


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_killed_broker_leaves_open_is_aborted_in_time(tmp_path: Path, version: int) -> None:
    """Nothing is lost at once, nothing stays for ever."""
    with stratalog.open(tmp_path) as store:
        store.create_topic("orders", 2)
    with served(tmp_path, "127.0.0.1:0") as (process, address), by_bytes(address) as wire:
        made = Client(wire, version)
        made.init(30_000)
        assert version == 2 or made.add(0) == [OK]
        assert made.produce(b"a") is OK
        process.send_signal(signal.SIGKILL)
        process.wait()
    clock = ManualClock(start_ms=int(time.time() * 1000))
    for _ in range(2):
        with stratalog.open(tmp_path, background=False, clock=clock) as store:
            assert not stable(store)
            (state,) = store.transactions.all()
            assert (state.status, state.version) == (Status.ONGOING, version)
    with stratalog.open(tmp_path, background=False, clock=clock) as store:
        clock.advance(31_000)
        store.tick()
        assert stable(store)
        assert seen(store) == []


@contextmanager
def by_bytes(address: str) -> Iterator[Wire]:
    host, _, port = address.rpartition(":")

    class There:
        def __init__(self) -> None:
            self.address = (host, int(port))

    with client(There()) as wire:  # type: ignore[arg-type]
        yield wire


KILLED = """
import os, signal, sys
from stratalog.fs.real import RealFile
from stratalog.log.write.active import ActiveSegment
from stratalog.cli import main

write, left, place = RealFile.pwrite, [int(sys.argv[1])], sys.argv[2]

def killing(file, data, offset):
    mine = place in file.path and file.path.endswith(".log")
    left[0] -= mine
    if mine and not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(file, data, offset)

class Called:  # by the kernel, which would write to the descriptor itself
    def __init__(self, file):
        self.pwrite = file.pwrite

opened = ActiveSegment.open_for_append
ActiveSegment.open_for_append = lambda segment: Called(opened(segment))
RealFile.pwrite = killing
sys.argv = ["stratalog", *sys.argv[3:]]
main()
"""


@pytest.mark.parametrize(
    ("version", "commit", "place", "number"),
    [
        (1, True, TRANSACTIONS_TOPIC, 5),  # the decision, behind the producer id and three partitions
        (2, True, TRANSACTIONS_TOPIC, 5),
        (1, False, "orders", 2),  # a marker, behind the other partition's
        (2, True, "orders", 2),
        (2, False, TRANSACTIONS_TOPIC, 6),  # that it is complete
        (1, True, TRANSACTIONS_TOPIC, 6),
    ],
)
def test_a_kill_at_each_step_of_an_end(
    tmp_path: Path, version: int, commit: bool, place: str, number: int
) -> None:
    """Before each kind of write; tests/crash does the same at every call, without processes."""
    partition = 1 if place == "orders" else 0
    with stratalog.open(tmp_path) as store:
        store.create_topic("orders", 2)
        store.groups.offsets.topic_to_write()
    command = [sys.executable, "-c", KILLED, str(number), f"/{place}-{partition}/"]
    command += ["serve", "--json", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    with serving(command) as (process, address), by_bytes(address) as wire:
        made = Client(wire, version)
        made.init()
        for each in (0, 1):
            if version == 1:
                made.add(each)
            assert made.produce(b"a", each) is OK
        if version == 1:
            made.add_offsets()
        assert made.commit_offset(5) is OK
        with pytest.raises(ConnectionError):
            made.end(commit=commit)
        assert process.wait(WAIT_S) == -signal.SIGKILL
    with served(tmp_path, "127.0.0.1:0") as (process, address), by_bytes(address) as wire:
        made.wire = wire
        assert made.end(commit=commit) is OK, "asked again"
        assert made.end(commit=not commit) is Code.INVALID_TXN_STATE or version == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    with stratalog.open(tmp_path, background=False) as store:
        assert stable(store)
        assert stable(store, OFFSETS_TOPIC)
        assert seen(store) == [b"a", b"a"] * commit
        found = store.groups.offsets.committed("g", "orders", 0)
        assert (found.offset if found else None) == (5 if commit else None)
