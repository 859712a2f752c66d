"""A query reads the columns it uses and no others, and its rows are those it has with all of them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stratalog
from stratalog import Record
from tests.spark.direct import START_MS, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions, sealed and active; nulls, headers, values of several sizes."""
    where = tmp_path_factory.mktemp("columns") / "log"
    with stratalog.open(where) as store:
        topic = store.create_topic("orders", 2)
        for number in range(60):
            key = None if number % 7 == 0 else b"k%d" % (number % 5)
            value = None if number % 11 == 0 else b"v" * (number % 13)
            headers = ((("trace", b"%d" % number),) if number % 3 == 0 else ()) + (("n", None),)
            topic.append_many([Record(value, key, headers, START_MS + number)], partition=number % 2)
            if number in (20, 40):
                topic.roll()
    return where


@pytest.fixture
def orders(spark: SparkSession, log: Path) -> DataFrame:
    reader = spark.read.format("stratalog").option("subscribe", "orders").option("includeHeaders", "true")
    return reader.load(str(log))


def scanned(frame: DataFrame) -> list[tuple[str, ...]]:
    """The columns of every scan in a query's plan."""
    plan: Any = frame._jdf
    found = re.findall(r"RelationV2\[(.*?)\]", plan.queryExecution().optimizedPlan().toString())
    return [tuple(re.sub(r"#.*", "", each.strip()) for each in columns.split(",")) for columns in found]


def test_what_is_read(orders: DataFrame, spark: SparkSession, log: Path) -> None:
    from pyspark.sql import functions as sf

    assert scanned(orders.groupBy().count()) == [("records",)]
    assert scanned(orders.agg(sf.sum(sf.length("value")))) == [("value",)]
    assert scanned(orders.groupBy("key").agg(sf.max("timestamp"))) == [("key", "timestamp")]
    assert scanned(orders.where("length(value) > 3").select("key")) == [("key", "value")]
    assert scanned(orders.where("offset < 3").select("key")) == [("key", "offset")]
    where = orders.where("offset < 3 and partition = 1")
    assert scanned(where.selectExpr("1 AS one")) == [("partition", "offset")]
    assert scanned(orders) == [COLUMNS]
    reader = spark.read.format("stratalog").option("subscribe", "orders")
    batches = reader.option("view", "batches").load(str(log))
    assert scanned(batches.agg(sf.sum("records"))) == [("records",)]
    reader = spark.read.format("stratalog").option("subscribe", "orders")
    asked = reader.schema("offset bigint, value binary, key binary").load(str(log))
    assert scanned(asked.select("key")) == [("key",)]
    assert scanned(asked.selectExpr("1 AS one")) == [("offset",)]


def test_every_choice_of_columns_has_the_same_rows(orders: DataFrame, log: Path) -> None:
    def text(row: dict[str, Any]) -> dict[str, str]:
        return {name: repr(_plain(value)) for name, value in row.items()}

    whole = [text(row) for row in rows(log, subscribe="orders", includeHeaders="true")]
    assert len(whole) == 60
    choices = [*((name,) for name in COLUMNS), *itertools.combinations(COLUMNS, 2), COLUMNS[::-1]]
    every = orders.select(*COLUMNS).collect()
    assert [text(row.asDict(recursive=True)) for row in every] == whole
    for names in choices[::4] + [("headers", "offset"), COLUMNS[::-1]]:
        frame = orders.select(*names)
        assert scanned(frame) == [tuple(name for name in COLUMNS if name in names)]
        found = [text(row.asDict(recursive=True)) for row in frame.collect()]
        assert found == [{name: row[name] for name in names} for row in whole]


def _plain(value: Any) -> Any:
    if hasattr(value, "timestamp"):
        return value.timestamp()
    if isinstance(value, bytearray | bytes):
        return bytes(value)
    if isinstance(value, list):
        return [(each["key"], _plain(each["value"])) for each in value]
    return value


def test_one_frame_read_in_several_ways_in_one_query(orders: DataFrame, spark: SparkSession) -> None:
    few, many = orders.where("offset < 5"), orders.where("offset < 9")
    joined = few.alias("a").join(many.alias("b"), ["partition", "offset"]).selectExpr("a.key", "b.value")
    assert set(scanned(joined)) == {("key", "partition", "offset"), ("value", "partition", "offset")}
    assert joined.count() == 10
    both = few.select("key").union(many.select("value"))
    assert set(scanned(both)) == {("key", "offset"), ("value", "offset")}
    assert both.count() == 28
    orders.createOrReplaceTempView("orders_seen")
    newest = spark.sql(
        "SELECT count(*) AS n FROM orders_seen WHERE timestamp = (SELECT max(timestamp) FROM orders_seen)"
    )
    assert newest.collect()[0]["n"] == 1
    traced = spark.sql("SELECT h.key AS name FROM orders_seen LATERAL VIEW explode(headers) AS h")
    assert traced.where("name = 'trace'").count() == 20
    kept = orders.select("key", "offset").cache()
    try:
        assert kept.where("key is null").count() == kept.select("key").where("key is null").count() == 9
    finally:
        kept.unpersist()


def test_nothing_below_a_projection_is_lost_by_it(orders: DataFrame) -> None:
    assert orders.select("key").distinct().count() == 6
    assert orders.where("value is null").select("offset").count() == 6
    first = orders.orderBy("timestamp").select("timestampType").limit(3)
    assert [row[0] for row in first.collect()] == [0, 0, 0]
    assert orders.sample(1.0, seed=1).select("topic").distinct().collect()[0][0] == "orders"
    assert orders.selectExpr("1 AS one").count() == 60
    assert len(orders.limit(7).select("key").collect()) == 7
