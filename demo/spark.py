"""The end of the demonstration: Spark reads the segments, streams, joins live with archived, exports.

One session for all of it. This process holds the store; Spark's workers read the files themselves and
write through the holder. The JVM's messages go to a file beside the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import stratalog
from demo.clients import CLICKS
from demo.events import ACTIONS, DAY_MS, Events
from demo.screen import Screen
from demo.steps import TOPIC, Facts
from stratalog.cli.commands.pipelines.run import errors_to
from stratalog.config.units import format_duration_ms
from stratalog.model import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from stratalog.store import Store, Topic

EVENTS = "payments"
TOTALS = "totals"
WINDOW_MS = 60_000
LATENESS_MS = 10_000
ROUND = 500
ROUNDS = 20
"""Events an append, and how many appends there are at least; a window holds five of them."""
PATIENCE_S = 90.0
Total = tuple[int, str]
"""The beginning of a window, and what was done."""


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
            facts |= stream(screen, spark, store, path, f"{work}/checkpoint")
            screen.step("Archive old segments, then join them with what is live, in one query")
            facts |= join(screen, spark, store, path, archive)
            screen.step("Export to a Delta table, and read that with DuckDB")
            facts |= export(screen, spark, store, path, archive, f"{work}/lake")
        facts["spark_tasks"] = tasks(spark)
    detail = f"one session, up in {facts['spark_start_s']:.1f} s; the log had no server"
    screen.row("Spark itself", f"{facts['spark_tasks']} tasks", detail)
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
    screen.row("Spark counts", f"{taken_s:.1f} s", f"{sum(by_spark.values()):,} records, in executors")
    clicks = {
        str(row["action"]): int(row["count"]) for row in _by_action(_read(spark, path, CLICKS)).collect()
    }
    screen.check(
        "what the client wrote",
        clicks == actions(store, CLICKS) and len(clicks) > 0,
        f"{sum(clicks.values()):,} records that a Kafka client produced, counted by Spark from the segments",
    )
    return {
        "spark_count_s": round(taken_s, 3),
        "spark_count": sum(by_spark.values()),
        "spark_clicks": sum(clicks.values()),
    }


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
    live = _by_action(_read(spark, path, EVENTS)).withColumnRenamed("count", "payments")
    rows = past.join(live, "action").collect()
    taken_s = time.perf_counter() - began
    orders, payments = actions(store, TOPIC), actions(store, EVENTS)
    wanted = {action: (orders[action], payments[action]) for action in orders.keys() & payments.keys()}
    right = {str(row["action"]): (row["orders"], row["payments"]) for row in rows} == wanted
    screen.check(
        "joined",
        right and archived > 0 and len(rows) > 1,
        f"{sum(orders.values()):,} orders, {archived} of {archived + here} segments in the archive only,"
        f" with {sum(payments.values()):,} live payments in {taken_s:.1f} s",
    )
    detail = f"{archived} archived segments and live ones as one table, in executors"
    screen.row("Spark joins", f"{taken_s:.1f} s", detail)
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
    detail = f"{rows:,} records to a Delta table, written by executors, read with DuckDB"
    screen.row("Spark exports", f"{taken_s:.1f} s", detail)
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


# -- the streaming job ----------------------------------------------------------------------------------


class Feeder(threading.Thread):
    """Appends events, a round at a time, until `enough` is called; the last one is far ahead of all."""

    def __init__(self, topic: Topic, events: Events) -> None:
        super().__init__(name="events", daemon=True)
        self._topic = topic
        self._events = events
        self._enough = threading.Event()
        self.truth: Counter[Total] = Counter()
        self.cents: Counter[Total] = Counter()
        self.sent = 0

    def run(self) -> None:
        start_ms = (self._events.end_ms - DAY_MS) // WINDOW_MS * WINDOW_MS
        step_ms = WINDOW_MS // (5 * ROUND)
        rounds = 0
        while rounds < ROUNDS or not self._enough.is_set():
            records = []
            for number in range(rounds * ROUND, (rounds + 1) * ROUND):
                event = self._events.record(number)
                # Up to five seconds out of order: none is later than the watermark allows.
                moment = start_ms + number * step_ms + 5_000 - number * 7_919 % 5_000
                records.append(event._replace(timestamp=moment))
                total = moment // WINDOW_MS * WINDOW_MS, ACTIONS[number % 6].decode()
                self.truth[total] += 1
                self.cents[total] += json.loads(event.value or b"")["cents"]
            self._topic.append_many(records)
            self.sent += len(records)
            rounds += 1
            self._enough.wait(0.1)
        # Ends every window but its own.
        end = Record(b'{"action":"closed","cents":0}', None, (), self._events.end_ms)
        self._topic.append_many([end], partition=0)

    def enough(self) -> None:
        self._enough.set()


def stream(screen: Screen, spark: SparkSession, store: Store, path: str, checkpoint: str) -> Facts:
    """Total events into another topic; kill the job, run it again; every total must be right, once.

    This process appends the events and holds the store; Spark reads the segments itself and hands its totals
    to the holder. The kill is real: SIGKILL for Spark's Python workers until the job is dead.
    """
    began = time.perf_counter()
    topic = store.create_topic(EVENTS, partitions=2)
    totals = store.create_topic(TOTALS)
    feeder = Feeder(topic, Events(1_000_000, time.time_ns() // 1_000_000))
    feeder.start()
    query = _start(spark, path, checkpoint)
    _wait(lambda: totals.log_end_offset(0) > 0 or not query.isActive)
    before = totals.log_end_offset(0)
    workers = _kill(query)
    screen.check(
        "stream killed",
        before > 0 and workers > 0 and not query.isActive,
        f"the job had written {before} totals when {workers} of its workers got SIGKILL; it is dead",
    )
    query = _start(spark, path, checkpoint)
    feeder.enough()
    feeder.join()
    wanted = len(feeder.truth)
    _wait(lambda: totals.log_end_offset(0) >= wanted or not query.isActive)
    query.processAllAvailable()
    batches = query.lastProgress["batchId"] + 1 if query.lastProgress else 0
    query.stop()
    found: Counter[Total] = Counter()
    right = True
    for record in totals.read(0):
        row = json.loads(record.value or b"")
        total = row["window_ms"], row["action"]
        found[total] += 1
        right = right and (row["events"], row["cents"]) == (feeder.truth[total], feeder.cents[total])
    twice = sum(count > 1 for count in found.values())
    span = format_duration_ms(WINDOW_MS)
    screen.check(
        "stream resumed",
        right and set(found) == set(feeder.truth) and twice == 0,
        f"it went on from its checkpoint: {len(found)} totals of {span} windows over {feeder.sent:,} events,"
        f" each once and right, {twice} twice",
    )
    detail = f"{feeder.sent:,} events appended here, totalled in executors, through a kill"
    screen.row("Spark streams", f"{twice} twice", detail)
    return {
        "stream_events": feeder.sent,
        "stream_totals": len(found),
        "stream_twice": twice,
        "stream_batches": batches,
        "stream_s": round(time.perf_counter() - began, 3),
    }


def _totals(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.sql import functions as f

    events = (
        spark.readStream.format("stratalog")
        .option("subscribe", EVENTS)
        .option("startingOffsets", "earliest")
        .load(path)
    )
    fields = f.from_json(f.col("value").cast("string"), "action string, cents long")
    return (
        events.select("timestamp", fields.alias("event"))
        .withWatermark("timestamp", f"{LATENESS_MS} milliseconds")
        .groupBy(f.window("timestamp", f"{WINDOW_MS} milliseconds"), "event.action")
        .agg(f.count("*").alias("events"), f.sum("event.cents").alias("cents"))
        .select(
            f.col("action").alias("key"),
            f.to_json(
                f.struct(
                    (f.col("window.start").cast("double") * 1000).cast("long").alias("window_ms"),
                    "action",
                    "events",
                    "cents",
                )
            ).alias("value"),
        )
    )


def _start(spark: SparkSession, path: str, checkpoint: str) -> StreamingQuery:
    return (
        _totals(spark, path)
        .writeStream.format("stratalog")
        .option("topic", TOTALS)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .start(path)
    )


def _kill(query: StreamingQuery) -> int:
    """Send SIGKILL to the Python workers of this session until the query has failed; return how many."""
    killed: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while query.isActive and time.monotonic() < deadline:
        for pid in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    return len(killed)


def workers() -> list[int]:
    """Return the processes below this one that run tasks: forked by Spark's daemon, which is left alone."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    children: dict[int, list[tuple[int, str]]] = {}
    for line in listing.splitlines():
        pid, parent, args = (*line.split(None, 2), "")[:3]
        children.setdefault(int(parent), []).append((int(pid), args))
    found: list[int] = []
    waiting = [(os.getpid(), False)]
    while waiting:
        parent_pid, by_daemon = waiting.pop()
        for child, args in children.get(parent_pid, []):
            runs_tasks = "pyspark.daemon pyspark.worker" in args
            if by_daemon and runs_tasks:
                found.append(child)
            waiting.append((child, runs_tasks))
    return found


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
