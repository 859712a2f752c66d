"""Spark's own Kafka connector at our broker: tables and streams, from offsets and times, with headers.

Also committed records only, and a query that goes on from its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stratalog
from stratalog import Broker, Record, Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.interop


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
def broker(store: Store) -> Iterator[Broker]:
    with stratalog.serve(store) as broker:
        yield broker


def table(spark: SparkSession, broker: Broker, **options: str) -> DataFrame:
    """What the connector reads, with headers."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.option("includeHeaders", "true").options(**options).load()


def values(frame: DataFrame) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(value AS string)").collect())


def test_what_it_writes_is_read_by_all(spark: SparkSession, broker: Broker, store: Store) -> None:
    store.create_topic("orders", 3)
    rows = [
        (f"k{n}".encode(), f"v{n}".encode() if n % 7 else None, n % 3, [("n", b"%d" % n), ("nil", None)])
        for n in range(300)
    ]
    headers = "headers array<struct<key: string, value: binary>>"
    frame = spark.createDataFrame(rows, f"key binary, value binary, partition int, {headers}")
    writer = frame.write.format("kafka").option("topic", "orders")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        place = {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.compression.type": codec}
        writer.options(**place).save()
    wanted = sorted(5 * rows, key=str)
    kept = [
        (record.key, record.value, partition, list(record.headers))
        for partition in range(3)
        for record in store["orders"].read(partition)
    ]
    assert sorted(kept, key=str) == wanted
    read = table(spark, broker, subscribe="orders").select("key", "value", "partition", "headers").collect()
    found = [
        (bytes(key), None if value is None else bytes(value), partition, [tuple(each) for each in pairs])
        for key, value, partition, pairs in read
    ]
    plain = [
        (*row[:3], [(name, None if data is None else bytes(data)) for name, data in row[3]]) for row in found
    ]
    assert sorted(plain, key=str) == wanted


def test_between_offsets_and_times(spark: SparkSession, broker: Broker, store: Store) -> None:
    for name in ("orders-1", "orders-2"):
        topic = store.create_topic(name, 2, config={"retention.ms": -1})
        for n in range(100):
            topic.append(b"%s %03d" % (name.encode(), n), partition=n % 2, timestamp=1_000_000 + 10 * n)
    every = values(table(spark, broker, subscribePattern="orders-[0-9]"))
    assert len(every) == 200
    times = json.dumps({"orders-1": {"0": 1_000_195, "1": 1_000_195}})
    since = table(spark, broker, subscribe="orders-1", startingOffsetsByTimestamp=times)
    assert values(since) == [f"orders-1 {n:03d}" for n in range(20, 100)]
    until = table(spark, broker, subscribe="orders-1", startingTimestamp="1000400", endingTimestamp="1000500")
    assert values(until) == [f"orders-1 {n:03d}" for n in range(40, 50)]
    ends = {
        "startingOffsets": json.dumps({"orders-1": {"0": -2, "1": 49}}),
        "endingOffsets": json.dumps({"orders-1": {"0": 1, "1": -1}}),
    }
    assert values(table(spark, broker, subscribe="orders-1", **ends)) == ["orders-1 000", "orders-1 099"]
    assigned = table(spark, broker, assign=json.dumps({"orders-2": [1]}))
    assert values(assigned) == [f"orders-2 {n:03d}" for n in range(1, 100, 2)]


def test_committed_records_only(spark: SparkSession, broker: Broker, store: Store) -> None:
    from confluent_kafka import Producer

    store.create_topic("orders")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(30)
    for n in range(6):
        producer.begin_transaction()
        producer.produce("orders", b"%d" % n)
        assert producer.flush(30) == 0
        if n < 5:
            (producer.abort_transaction if n % 2 else producer.commit_transaction)(30)
    committed = {"subscribe": "orders", "kafka.isolation.level": "read_committed"}
    assert values(table(spark, broker, **committed)) == ["0", "2", "4"]
    assert values(table(spark, broker, subscribe="orders")) == ["0", "1", "2", "3", "4", "5"]
    producer.commit_transaction(30)
    assert values(table(spark, broker, **committed)) == ["0", "2", "4", "5"]


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: Broker, store: Store, tmp_path: Path
) -> None:
    source, target = store.create_topic("source", 2), store.create_topic("target", 2)
    place = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    options = {**place, "subscribe": "source", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}

    def run() -> list[Any]:
        stream = spark.readStream.format("kafka").options(**options, includeHeaders="true").load()
        query = (
            stream.select("key", "value", "headers")
            .writeStream.format("kafka")
            .options(**place, topic="target", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return [each for each in query.recentProgress if each["numInputRows"]]

    wanted: list[bytes] = []
    for begin in (0, 100, 200):
        records = [Record(b"%d" % n, headers=(("n", b"%d" % n),)) for n in range(begin, begin + 100)]
        for n, record in enumerate(records):
            source.append_many([record], partition=n % source.partitions)
        wanted += [record.value or b"" for record in records]
        assert len(run()) >= 3, "no batch has more than 30"
        found = [record for partition in range(2) for record in target.read(partition)]
        assert sorted(record.value or b"" for record in found) == sorted(wanted)
        assert all(record.headers == (("n", record.value),) for record in found)
        if begin == 100:
            store.add_partitions("source", 3)
            source = store["source"]
