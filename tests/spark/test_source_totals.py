"""Aggregates that come from batch headers and seals: equal to those of decoded records."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

import stratalog
from stratalog import Record
from stratalog.format import batch as batches
from stratalog.spark.schema import TOTALS_SCHEMA
from tests.spark.direct import START_MS, UTC_EPOCH, rows
from tests.spark.test_source_columns import scanned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
SETTINGS: dict[str, object] = {
    "retention.ms": -1,
    "index.interval.bytes": 300,
    "min.cleanable.dirty.ratio": 0.0,
    "cleaner.min.segment.age.ms": 0,
}
TOPICS: dict[str, dict[str, object]] = {
    "plain": {},
    "single": {},
    "zipped": {"compression.type": "zstd"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact", "compression.type": "lz4"},
    "squeezed": {"cleanup.policy": "compact"},
    "transactions": {},
    "empty": {},
}
WANTED = ("records", "minOffset", "maxOffset", "minTimestamp", "maxTimestamp")


def some(rng: random.Random, count: int) -> list[Record]:
    """Records whose timestamps go back and forth, with values that make several blocks of a seal."""
    return [
        Record(
            rng.randbytes(rng.randrange(600)), b"k%d" % rng.randrange(40), (), START_MS + rng.randrange(9000)
        )
        for _ in range(count)
    ]


def transact(topic: stratalog.Topic, partition: int, rng: random.Random) -> None:
    producer = 1000 + topic.log_end_offset(partition)
    encoded, _ = batches.encode_records(
        some(rng, rng.randrange(1, 30)),
        options=batches.BatchOptions(
            base_offset=0,
            leader_epoch=-1,
            now_ms=START_MS,
            max_bytes=1 << 20,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            codec=rng.choice((0, 4)),
        ),
    )
    topic.append_batches(partition, bytes(encoded.data))
    if rng.random() < 0.9:
        commit = rng.random() < 0.5
        topic.end_transaction(partition, producer_id=producer, producer_epoch=0, commit=commit)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics of every kind, each with sealed segments and an active one."""
    where = tmp_path_factory.mktemp("totals") / "log"
    rng = random.Random(7)
    with stratalog.open(where, background=False) as store:
        for name, config in TOPICS.items():
            topic = store.create_topic(name, PARTITIONS, SETTINGS | config)
            for segment in range(4 if name != "empty" else 0):
                for partition in range(PARTITIONS):
                    for _ in range(12):
                        count = 1 if name == "single" else rng.randrange(1, 80)
                        topic.append_many(some(rng, count), partition=partition)
                        if name == "transactions":
                            transact(topic, partition, rng)
                if segment < 3:
                    topic.roll()
        for name in ("compacted", "squeezed"):
            store.compact(name)
    return where


def totals_of(found: Iterable[Mapping[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """The totals of each partition, from rows of records or from rows of totals."""
    made: dict[int, tuple[Any, ...]] = {}
    for row in found:
        one = [row.get("records", 1)]
        one += [
            row.get(name, row[plain])
            for name, plain in zip(WANTED[1:], ("offset",) * 2 + ("timestamp",) * 2, strict=True)
        ]
        there = made.get(row["partition"])
        if there is not None:
            one = [
                there[0] + one[0],
                min(there[1], one[1]),
                max(there[2], one[2]),
                min(there[3], one[3]),
                max(there[4], one[4]),
            ]
        made[row["partition"]] = tuple(one)
    return made


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, list[ds.Filter], dict[str, Any]]:
    filters: list[ds.Filter] = []
    for name, low, high in (("offset", 0, 1500), ("timestamp", START_MS - 50, START_MS + 9050)):
        for kind in (ds.GreaterThanOrEqual, ds.LessThan):
            at = draw(st.none() | st.integers(low, high))
            if at is not None:
                value = at if name == "offset" else UTC_EPOCH + dt.timedelta(milliseconds=at)
                filters.append(kind((name,), value))
    options: dict[str, Any] = {
        "isolationLevel": draw(st.sampled_from(("read_committed", "read_uncommitted")))
    }
    options["minPartitions"] = draw(st.sampled_from((1, 7)))
    return draw(st.sampled_from(tuple(TOPICS))), filters, options


@given(query=queries(), names=st.sets(st.sampled_from(WANTED), min_size=1))
@settings(max_examples=250)
def test_totals_are_those_of_the_records(
    log: Path, query: tuple[str, list[ds.Filter], dict[str, Any]], names: set[str]
) -> None:
    topic, filters, options = query
    kept = [
        field for field in TOTALS_SCHEMA.fields if field.name in {*names, "partition", "offset", "timestamp"}
    ]
    found = rows(log, filters, StructType(kept), subscribe=topic, view="totals", **options)
    expected = totals_of(rows(log, filters, subscribe=topic, **options))
    told = totals_of(dict.fromkeys(WANTED, 0) | row for row in found)
    at = [WANTED.index(name) for name in names]
    shown = {where: [each[i] for i in at] for where, each in told.items()}
    assert shown == {where: [each[i] for i in at] for where, each in expected.items()}


FRAMES = (
    ("plain", "read_uncommitted"),
    ("compacted", "read_committed"),
    ("transactions", "read_committed"),
    ("empty", "read_uncommitted"),
)


def test_aggregates_of_spark(spark: SparkSession, log: Path) -> None:
    for topic, level in FRAMES:
        reader = spark.read.format("stratalog").option("subscribe", topic).option("isolationLevel", level)
        frame = reader.load(str(log))
        there = frame.select("topic", "partition", "offset", "timestamp").collect()
        offsets, times = [row["offset"] for row in there], [row["timestamp"] for row in there]
        assert frame.count() == len(there)
        few = frame.where(
            f"offset >= 100 and timestamp < timestamp_millis({START_MS + 5000}) and partition = 1"
        )
        until = dt.datetime.fromtimestamp((START_MS + 5000) / 1000, dt.UTC).replace(tzinfo=None)
        expected = [
            row
            for row in there
            if row["offset"] >= 100 and row["timestamp"] < until and row["partition"] == 1
        ]
        assert few.count() == len(expected)
        everything = frame.selectExpr(
            "min(offset)",
            "max(offset)",
            "min(timestamp)",
            "max(timestamp)",
            "count(offset) + 1",
            "max(topic)",
        )
        span = [min(offsets, default=None), max(offsets, default=None)]
        span += [min(times, default=None), max(times, default=None)]
        assert list(everything.collect()[0]) == [*span, len(there) + 1, topic if there else None]
        counts = {row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()}
        places = [row["partition"] for row in there]
        assert counts == {each: places.count(each) for each in set(places)}
        assert {row[0] for row in frame.select("partition").distinct().collect()} == set(places)


def test_which_queries_read_totals(spark: SparkSession, log: Path) -> None:
    from pyspark.sql import functions as sf

    frame = spark.read.format("stratalog").option("subscribe", "plain").load(str(log))
    assert scanned(frame.groupBy().count()) == [("records",)]
    assert scanned(frame.groupBy("partition").agg(sf.max("offset"))) == [("maxOffset", "partition")]
    assert scanned(frame.where("offset < 9").groupBy().count()) == [("records", "offset")]
    assert scanned(frame.agg(sf.countDistinct("partition"))) == [("partition",)]
    assert scanned(frame.agg(sf.count("key"))) == [("key",)]
    assert scanned(frame.agg(sf.max("timestampType"))) == [("timestampType",)]
    assert scanned(frame.groupBy("offset").count()) == [("offset",)]
    assert scanned(frame.where("offset % 2 = 0").groupBy().count()) == [("offset",)]
    assert scanned(frame.agg(sf.expr("count(1) filter (where partition = 1)"))) == [("partition",)]
    assert (
        frame.where("offset % 2 = 0").count()
        == frame.where("offset % 2 = 0").select("key").toArrow().num_rows
    )
    half = frame.agg(sf.expr("count(1) filter (where partition = 1)")).collect()[0][0]
    assert half == frame.where("partition = 1").count()
    both = frame.groupBy().count().union(frame.where("offset < 9").groupBy().count())
    assert [row[0] for row in both.collect()] == [frame.select("key").toArrow().num_rows, 18]


@pytest.mark.parametrize("name", ["plain", "zipped", "stamped"])
def test_damage_is_found(spark: SparkSession, log: Path, tmp_path: Path, name: str) -> None:
    """A flipped byte within a record fails a count, though no record is decoded."""
    from pyspark.errors import PySparkException

    where = tmp_path / "log"
    shutil.copytree(log, where)
    sealed = min((where / f"{name}-0").glob("*.log"))
    data = bytearray(sealed.read_bytes())
    data[len(data) // 2] ^= 1
    sealed.write_bytes(data)
    frame = spark.read.format("stratalog").option("subscribe", name).load(str(where))
    with pytest.raises(PySparkException, match=rf"{sealed.name} at byte \d+"):
        frame.count()
    assert frame.where("partition = 1").count() > 0
