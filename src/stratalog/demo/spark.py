"""The end of the demonstration: Spark reads the segments, streams, joins live with archived, exports.

One session for all of it. This process holds the store; Spark's workers read the files themselves and what
they write goes through the holder. What the JVM has to say goes to a file beside the store.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import stratalog
from stratalog.cli.pipelines.run import errors_to
from stratalog.demo import streaming
from stratalog.demo.screen import Screen
from stratalog.demo.steps import TOPIC, Facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stratalog.store import Store


def run(screen: Screen, path: str, archive: str, work: str) -> Facts:
    """Every Spark step in one session; ``work`` is a directory for checkpoints, the table and Spark's log."""
    os.makedirs(work, exist_ok=True)
    screen.step("Start Spark; count the same topic there and here")
    facts: Facts = {}
    began = time.perf_counter()
    with quiet_session(work) as spark:
        facts["spark_start_s"] = round(time.perf_counter() - began, 3)
        with stratalog.open(path, config={"log.archive.url": archive}) as store:
            facts |= count(screen, spark, store, path)
            screen.step("Total events in a streaming job while they come in; kill it; let it resume")
            facts |= streaming.stream(screen, spark, store, path, f"{work}/checkpoint")
            screen.step("Archive old segments, then join them with what is live, in one query")
            facts |= join(screen, spark, store, path, archive)
            screen.step("Export to a Delta table, and read that with DuckDB")
            facts |= export(screen, spark, store, path, archive, f"{work}/lake")
        facts["spark_tasks"] = tasks(spark)
    return facts


@contextlib.contextmanager
def quiet_session(work: str) -> Iterator[SparkSession]:
    """A session whose JVM writes to ``spark.log`` instead of into the demonstration's screen."""
    import stratalog.spark

    with errors_to(os.open(f"{work}/spark.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)):
        spark = stratalog.spark.session(
            **{
                "spark.sql.warehouse.dir": f"{work}/warehouse",
                "spark.local.dir": f"{work}/local",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.streaming.metricsEnabled": "false",
                "spark.log.level": "ERROR",
            }
        )
    try:
        yield spark
    finally:
        spark.stop()


def count(screen: Screen, spark: SparkSession, store: Store, path: str) -> Facts:
    """How many records, and how many of each kind: by Spark, and by this process."""
    began = time.perf_counter()
    rows = _by_action(_read(spark, path, TOPIC)).collect()
    taken_s = time.perf_counter() - began
    by_spark = {str(row["action"]): int(row["count"]) for row in rows}
    began = time.perf_counter()
    by_python = actions(store, TOPIC)
    python_s = time.perf_counter() - began
    total = sum(by_python.values())
    screen.check(
        "counted twice",
        by_spark == by_python and total > 0,
        f"{total:,} records by kind: Spark says in {taken_s:.1f} s what Python says in {python_s:.1f} s",
    )
    return {"spark_count_s": round(taken_s, 3), "spark_count": sum(by_spark.values())}


def join(screen: Screen, spark: SparkSession, store: Store, path: str, archive: str) -> Facts:
    """Orders, of which most lie in the archive only, joined with the payments that are live."""
    store.alter_topic(TOPIC, {"remote.storage.enable": True, "local.retention.bytes": 1})
    topic = store.topic(TOPIC)
    for partition in range(topic.partitions):
        topic.roll(partition)
    store.archive(TOPIC)  # copies go up and are read back ...
    store.archive(TOPIC)  # ... and then the local files may go
    topic.append(b'{"action":"ordered"}', b"customer-000001")
    archived = sum(info.state == "archived" for info in topic.segments())
    here = sum(info.state != "archived" for info in topic.segments())
    began = time.perf_counter()
    past = _by_action(_read(spark, path, TOPIC, archive)).withColumnRenamed("count", "orders")
    live = _by_action(_read(spark, path, streaming.EVENTS)).withColumnRenamed("count", "payments")
    rows = past.join(live, "action").collect()
    taken_s = time.perf_counter() - began
    orders, payments = actions(store, TOPIC), actions(store, streaming.EVENTS)
    wanted = {action: (orders[action], payments[action]) for action in orders.keys() & payments.keys()}
    right = {str(row["action"]): (row["orders"], row["payments"]) for row in rows} == wanted
    screen.check(
        "joined",
        right and archived > 0 and len(rows) > 1,
        f"{sum(orders.values()):,} orders, {archived} of {archived + here} segments in the archive only,"
        f" with {sum(payments.values()):,} live payments in {taken_s:.1f} s",
    )
    return {"join_s": round(taken_s, 3), "archived_segments": archived, "local_segments": here}


def export(screen: Screen, spark: SparkSession, store: Store, path: str, archive: str, output: str) -> Facts:
    """The orders as a Delta table, counted by DuckDB."""
    import duckdb
    from deltalake import DeltaTable

    from stratalog.spark.pipelines.export import export as to_delta

    topic = store.topic(TOPIC)
    for partition in range(topic.partitions):
        topic.roll(partition)
    began = time.perf_counter()
    result = to_delta(spark, path=path, archive=archive, topics=TOPIC, output=output)
    taken_s = time.perf_counter() - began
    with duckdb.connect() as connection:
        connection.register("orders", DeltaTable(output).to_pyarrow_dataset())
        found = connection.execute(
            'select count(*), count(distinct (partition, "offset")), sum(octet_length(value)) from orders'
        ).fetchone()
    values = topic.scan(columns=["value"])
    rows = size = 0
    for batch in values:
        rows += batch.num_rows
        size += sum(len(value) for value in batch.column("value").to_pylist() if value is not None)
    screen.check(
        "exported",
        found is not None and tuple(found) == (rows, rows, size) and result.ok,
        f"{rows:,} records to Delta in {taken_s:.1f} s; DuckDB counts the same, none twice",
    )
    return {"export_s": round(taken_s, 3), "exported": rows}


def actions(store: Store, topic: str) -> dict[str, int]:
    """How many records of a topic have each action, without Spark."""
    found: Counter[str] = Counter()
    for batch in store.topic(topic).scan(columns=["value"]):
        found.update(_action(value) for value in batch.column("value").to_pylist())
    return dict(found)


def _action(value: bytes | None) -> str:
    _, found, rest = (value or b"").partition(b'"action":"')
    return rest.partition(b'"')[0].decode() if found else "none"


def tasks(spark: SparkSession) -> int:
    """How many tasks the executors ran in this session."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(int(executors.apply(each).totalTasks()) for each in range(executors.size()))


def _read(spark: SparkSession, path: str, topic: str, archive: str | None = None) -> DataFrame:
    reader = spark.read.format("stratalog").schema("value binary").option("subscribe", topic)
    if archive is not None:
        reader = reader.option("archive", archive)
    return reader.load(path)


def _by_action(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    action = f.regexp_extract(f.col("value").cast("string"), '"action":"([^"]*)"', 1)
    named = f.when(action == "", "none").otherwise(action).alias("action")
    return records.select(named).groupBy("action").count()
