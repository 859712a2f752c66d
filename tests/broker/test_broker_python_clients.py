"""aiokafka and kafka-python at the broker: codecs, headers, times, groups, static members, admin calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions, NewTopic
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from stratalog import Broker, Store

# kafka-python leaves sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
WAIT_S = 30
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
HEADERS = [("h", b"1"), ("h", b"2")]


def filled(store: Store, name: str = "orders", partitions: int = 1) -> None:
    store.create_topic(name, partitions, config={"retention.ms": -1})
    append_100(store, name)


def append_100(store: Store, name: str = "orders") -> None:
    topic = store[name]
    for n in range(100):
        topic.append(b"%d" % n, partition=n % topic.partitions, timestamp=1_000_000 + 10 * n)


def assert_read_once(found: list[Any], times: int) -> None:
    """Each record of a topic of 4 partitions was found, once."""
    assert sorted((each.partition, each.offset) for each in found) == [
        (partition, offset) for partition in range(4) for offset in range(25 * times)
    ]


def kept(store: Store) -> list[Any]:
    return [
        (record.key, record.value, record.timestamp, list(record.headers))
        for record in store["orders"].read(0)
    ]


# -- kafka-python --------------------------------------------------------------------------------------------


def consumer(broker: Broker, *topics: str, **more: Any) -> KafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **more}
    return KafkaConsumer(*topics, bootstrap_servers=broker.bootstrap_servers, **settings)


def polled(made: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    give_up_s = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < give_up_s, f"{len(found)} of {count} came"
        for records in made.poll(100).values():
            found += records
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_python_records_go_there_and_back(broker: Broker, store: Store, codec: str | None) -> None:
    store.create_topic("orders", config={"retention.ms": -1})
    made = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, compression_type=codec, linger_ms=20)
    wanted = [(None if n % 3 else b"k", b"%d" % n * 50, 1_000_000 + n, HEADERS) for n in range(200)]
    for key, value, timestamp, headers in wanted:
        made.send("orders", value, key, headers=headers, partition=0, timestamp_ms=timestamp)
    made.close()
    assert kept(store) == wanted
    reader = consumer(broker, "orders", group_id=None)
    found = polled(reader, 200)
    assert [(each.key, each.value, each.timestamp, list(each.headers)) for each in found] == wanted
    reader.close()


def test_python_seeks_by_time(broker: Broker, store: Store) -> None:
    filled(store)
    place = TopicPartition("orders", 0)
    reader = consumer(broker)
    reader.assign([place])
    [found] = reader.offsets_for_times({place: 1_000_495}).values()
    assert (found.offset, found.timestamp) == (50, 1_000_500)
    reader.seek(place, found.offset)
    assert polled(reader, 1)[0].value == b"50"
    assert reader.end_offsets([place]) == {place: 100}
    reader.close()


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor])
def test_python_groups(broker: Broker, store: Store, assignor: Any) -> None:
    """Members come and go, and every record is read once."""
    filled(store, partitions=4)
    settings = {
        "group_id": "g", "partition_assignment_strategy": [assignor], "heartbeat_interval_ms": 100,
    }  # fmt: skip
    one, two = (consumer(broker, "orders", **settings) for _ in range(2))
    found = polled(one, 100)
    one.commit()
    shared(one, two)
    append_100(store)
    found += polled(one, 50) + polled(two, 50)
    for each in (one, two):
        each.commit()
    one.close()
    shared(two)
    append_100(store)
    found += polled(two, 100)
    assert_read_once(found, 3)
    two.close()


def shared(*members: KafkaConsumer) -> None:
    """Poll members, with nothing to read, until each has its part of four partitions."""
    give_up_s = time.monotonic() + WAIT_S
    while {len(each.assignment()) for each in members} != {4 // len(members)}:
        assert time.monotonic() < give_up_s
        assert [each.poll(50) for each in members] == [{}] * len(members), "read twice"
    assert len({place for each in members for place in each.assignment()}) == 4


def test_python_static_members(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 4)
    settings = {"group_id": "g", "heartbeat_interval_ms": 100}
    one, two = (consumer(broker, "orders", group_instance_id=name, **settings) for name in ("one", "two"))
    shared(one, two)
    [group] = broker.groups.all()
    generation, before = group.generation, two.assignment()
    two.close()
    two = consumer(broker, "orders", group_instance_id="two", **settings)
    give_up_s = time.monotonic() + WAIT_S
    while two.assignment() != before:
        assert time.monotonic() < give_up_s
        assert one.poll(50) == two.poll(50) == {}
    assert group.generation == generation, "a static member came back"
    one.close()
    two.close()


def test_python_admin_calls(broker: Broker, store: Store) -> None:
    filled(store)
    made = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    made.create_topics([NewTopic("made", 2, 1)])
    made.create_partitions({"made": NewPartitions(3)})
    assert store["made"].partitions == 3
    assert set(made.list_topics()) == {"made", "orders"}
    place = TopicPartition("orders", 0)
    made.delete_records({place: 10})
    assert store["orders"].log_start_offset(0) == 10
    reader = consumer(broker, "orders", group_id="g")
    polled(reader, 90)
    reader.commit()
    reader.close()
    assert [each["group_id"] for each in made.list_groups()] == ["g"]
    made.delete_topics(["made"])
    assert "made" not in store.topics()
    made.close()


# -- aiokafka ------------------------------------------------------------------------------------------------


async def gathered(made: AIOKafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found.append(await asyncio.wait_for(made.getone(), WAIT_S))
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_aio_records_go_there_and_back(broker: Broker, store: Store, codec: str | None) -> None:
    store.create_topic("orders", config={"retention.ms": -1})
    wanted = [(None if n % 3 else b"k", b"%d" % n * 50, 1_000_000 + n, HEADERS) for n in range(200)]

    async def run() -> list[Any]:
        address = {"bootstrap_servers": broker.bootstrap_servers}
        async with AIOKafkaProducer(
            **address, compression_type=codec, linger_ms=20, enable_idempotence=True
        ) as made:
            for key, value, timestamp, headers in wanted:
                await made.send("orders", value, key, 0, timestamp, headers)
        async with AIOKafkaConsumer("orders", **address, auto_offset_reset="earliest") as reader:
            return await gathered(reader, 200)

    found = asyncio.run(run())
    assert kept(store) == wanted
    assert [(each.key, each.value, each.timestamp, list(each.headers)) for each in found] == wanted


def test_aio_seeks_by_time(broker: Broker, store: Store) -> None:
    filled(store)
    place = AioPartition("orders", 0)

    async def run() -> None:
        async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers) as reader:
            reader.assign([place])
            [found] = (await reader.offsets_for_times({place: 1_000_495})).values()
            assert (found.offset, found.timestamp) == (50, 1_000_500)
            reader.seek(place, found.offset)
            assert (await gathered(reader, 1))[0].value == b"50"
            assert await reader.end_offsets([place]) == {place: 100}

    asyncio.run(run())


def aio_member(broker: Broker, **more: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "orders",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        metadata_max_age_ms=1000,
        **more,
    )


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(WAIT_S * 50):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("waited in vain")


async def aio_shared(*members: AIOKafkaConsumer) -> None:
    """Wait until each member has its part of four partitions."""
    await until(lambda: {len(each.assignment()) for each in members} == {4 // len(members)})
    assert len({place for each in members for place in each.assignment()}) == 4


@pytest.mark.parametrize("assignor", [AioRange, AioRoundRobin, AioSticky])
def test_aio_groups(broker: Broker, store: Store, assignor: Any) -> None:
    """Members come and go, and every record is read once."""
    filled(store, partitions=4)
    settings = {"partition_assignment_strategy": [assignor]}

    async def run() -> list[Any]:
        async with aio_member(broker, **settings) as two:
            async with aio_member(broker, **settings) as one:
                await aio_shared(one, two)
                found = await gathered(one, 50) + await gathered(two, 50)
                for each in (one, two):
                    await each.commit()
            await aio_shared(two)
            append_100(store)
            found += await gathered(two, 100)
            await two.commit()
            async with aio_member(broker, **settings) as three:
                await aio_shared(two, three)
                append_100(store)
                return found + await gathered(two, 50) + await gathered(three, 50)

    assert_read_once(asyncio.run(run()), 3)


def test_aio_static_members(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 4)

    async def run() -> None:
        async with aio_member(broker, group_instance_id="one") as one:
            async with aio_member(broker, group_instance_id="two") as two:
                await aio_shared(one, two)
                [group] = broker.groups.all()
                generation, before = group.generation, two.assignment()
            async with aio_member(broker, group_instance_id="two") as two:
                await until(lambda: two.assignment() == before)
                assert group.generation == generation, "a static member came back"

    asyncio.run(run())


def test_aio_admin_calls(broker: Broker, store: Store) -> None:
    filled(store)

    async def run() -> None:
        made = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await made.start()
        try:
            await made.create_topics([AioNewTopic("made", 2, 1)])
            assert set(await made.list_topics()) == {"made", "orders"}
            assert [each["topic"] for each in await made.describe_topics(["made"])] == ["made"]
            await made.create_partitions({"made": AioNewPartitions(3)})
            assert store["made"].partitions == 3
            wanted = {"retention.ms": "1000000"}
            await made.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "made", wanted)])
            assert store["made"].config.retention_ms == 1_000_000
            [told] = await made.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "made")])
            [(code, _, _, name, entries)] = told.resources
            assert (code, name) == (0, "made")
            assert "1000000" in [value for key, value, *_ in entries if key == "retention.ms"]
            place = AioPartition("orders", 0)
            assert await made.delete_records({place: RecordsToDelete(10)}) == {place: 10}
            assert store["orders"].log_start_offset(0) == 10
            await made.delete_topics(["made"])
            assert store.topics() == ["orders"]
            assert await made.list_consumer_groups() == []
        finally:
            await made.close()

    asyncio.run(run())
