"""The same query through Spark's own Kafka connector and through our source gives the same rows.

A real broker adopts every golden topic. The connector asks it for the records; we read its log directory
while it runs. Compared is everything a row has: key, value, topic, partition, offset, timestamp, its type and
the headers; at both isolation levels, between offsets and times, and while a transaction is open.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop.kafka import KafkaBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"
KEPT_BY_THE_BROKER = {"partition.metadata", "leader-epoch-checkpoint"}
ALL = "(?!__|live).*"
Row = tuple[Any, ...]


def golden_topics() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for path in sorted(GOLDEN.iterdir()):
        if path.is_dir() and not path.name.startswith("__"):
            topic, _, partition = path.name.rpartition("-")
            found.setdefault(topic, []).append(int(partition))
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A running broker that holds the golden topics as their own broker left them."""
    topics = golden_topics()
    with KafkaBroker(tmp_path_factory.mktemp("connector")) as broker:
        for topic, partitions in topics.items():
            # Nothing may be deleted or cleaned meanwhile: both sides are asked one after the other.
            settings: dict[str, object] = {"retention.ms": -1, "cleanup.policy": "delete"}
            if topic == "log-append-time":
                settings["message.timestamp.type"] = "LogAppendTime"
            broker.create_topic(topic, len(partitions), settings)
        broker.stop()
        for topic, partitions in topics.items():
            for partition in partitions:
                target = broker.partition_dir(topic, partition)
                for file in target.iterdir():
                    if file.name not in KEPT_BY_THE_BROKER:
                        file.unlink()
                for file in (GOLDEN / target.name).iterdir():
                    if file.name not in KEPT_BY_THE_BROKER:
                        shutil.copy2(file, target / file.name)
        shutil.copy2(GOLDEN / "log-start-offset-checkpoint", broker.log_dir)
        (broker.log_dir / ".kafka_cleanshutdown").unlink()
        broker.start()
        yield broker


def rows(
    spark: SparkSession,
    broker: KafkaBroker,
    options: Mapping[str, str],
    *,
    ours: bool,
    committed: bool = False,
) -> list[Row]:
    """Every column of every row, in order of topic, partition and offset."""
    reader = spark.read.format("stratalog" if ours else "kafka").option("includeHeaders", "true")
    level = "read_committed" if committed else "read_uncommitted"
    if ours:
        reader = reader.option("path", str(broker.log_dir)).option("isolationLevel", level)
    else:
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.option("kafka.isolation.level", level)
    frame = reader.options(**options).load()
    names = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    assert tuple(frame.columns) == names
    found = frame.selectExpr(*names[:5], "unix_micros(timestamp) AS timestamp", *names[6:]).collect()
    return sorted((tuple(row) for row in found), key=lambda row: row[2:5])


def same_rows(
    spark: SparkSession, broker: KafkaBroker, options: Mapping[str, str], *, committed: bool = False
) -> list[Row]:
    theirs = rows(spark, broker, options, ours=False, committed=committed)
    mine = rows(spark, broker, options, ours=True, committed=committed)
    assert [row[2:5] for row in mine] == [row[2:5] for row in theirs]
    differing = [(one, other) for one, other in zip(mine, theirs, strict=True) if one != other]
    assert not differing, f"{len(differing)} of {len(mine)} rows differ: {str(differing[0])[:1000]}"
    return mine


def schema_of(spark: SparkSession, broker: KafkaBroker, kind: str) -> str:
    reader = spark.read.format(kind).option("includeHeaders", "true").option("subscribe", "empty")
    reader = reader.option("path", str(broker.log_dir)).option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.load().schema.simpleString()


def test_every_golden_topic(spark: SparkSession, served: KafkaBroker) -> None:
    assert schema_of(spark, served, "stratalog") == schema_of(spark, served, "kafka")
    everything = same_rows(spark, served, {"subscribePattern": ALL})
    committed = same_rows(spark, served, {"subscribePattern": ALL}, committed=True)
    with_rows = {row[2] for row in everything}
    assert with_rows == golden_topics().keys() - {"empty"}
    assert len(committed) < len(everything)
    aborted = {row[2] for row in set(map(_place, everything)) - set(map(_place, committed))}
    assert aborted == {"transactions"}
    assert min(row[4] for row in everything if row[2] == "head-deleted") == 138


def _place(row: Row) -> Row:
    return (None, None, *row[2:5])


def test_between_times_and_offsets(spark: SparkSession, served: KafkaBroker) -> None:
    topics = {"subscribe": "out-of-order,codec-zstd"}
    every = rows(spark, served, topics, ours=True)
    stamps = sorted(row[5] // 1000 for row in every)
    since, until = stamps[len(stamps) // 3], stamps[2 * len(stamps) // 3]
    lax = {"startingOffsetsByTimestampStrategy": "latest"}
    by_time = {"out-of-order": {"0": since}, "codec-zstd": {"0": until}}
    for ends in (
        {"startingTimestamp": str(since), "endingTimestamp": str(until), **lax},
        {"startingTimestamp": str(stamps[-1] + 1), **lax},
        {"endingTimestamp": str(since)},
        {
            "startingOffsetsByTimestamp": json.dumps(by_time),
            "endingOffsets": '{"out-of-order": {"0": -1}, "codec-zstd": {"0": 599}}',
            **lax,
        },
        {
            "startingOffsets": '{"out-of-order": {"0": 17}, "codec-zstd": {"0": -2}}',
            "endingOffsets": '{"out-of-order": {"0": 90}, "codec-zstd": {"0": 333}}',
        },
    ):
        found = same_rows(spark, served, {**topics, **ends})
        assert len(found) < len(every), ends


def test_while_a_transaction_is_open(spark: SparkSession, served: KafkaBroker) -> None:
    live = {"subscribe": "live"}
    served.create_topic("live", config={"segment.bytes": 2**20, "retention.ms": -1})
    plain = served.producer(compression_type="lz4")
    for number in range(3_000):
        headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number), ("nil", None)][: number % 3]
        plain.produce("live", bytes(1000), b"%d" % (number % 7), headers=headers)
    assert plain.flush(60) == 0
    open_one, other = (served.producer(transactional_id=name) for name in ("open", "other"))
    for producer in (open_one, other):
        producer.init_transactions(30)
        producer.begin_transaction()
    open_one.produce("live", b"not yet")
    assert open_one.flush(30) == 0
    other.produce("live", b"gone")
    assert other.flush(30) == 0
    other.abort_transaction(30)
    other.begin_transaction()
    other.produce("live", b"done, behind an open one")
    other.commit_transaction(30)
    assert len(same_rows(spark, served, live)) == 3_003
    assert len(same_rows(spark, served, live, committed=True)) == 3_000
    open_one.commit_transaction(30)
    values = [row[1] for row in same_rows(spark, served, live, committed=True)[3_000:]]
    assert values == [b"not yet", b"done, behind an open one"]
