"""A streaming job that totals events into another topic while they come in, is killed, and resumes.

The events are appended by this process, which holds the store; Spark reads the segments itself and hands
its totals to the holder. The kill is a real one: SIGKILL for Spark's Python workers until the job is dead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stratalog.config.units import format_duration_ms
from stratalog.demo.events import ACTIONS, DAY_MS, Events
from stratalog.demo.screen import Screen
from stratalog.demo.steps import Facts
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


class Feeder(threading.Thread):
    """Appends events, a round at a time, until told that it is enough; the last one is far ahead of all."""

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
    """Run the job, kill it, run it again; then every window must be there once, with the right sum."""
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
    """SIGKILL for the Python workers of this session, as they come, until the query has failed."""
    killed: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while query.isActive and time.monotonic() < deadline:
        for pid in workers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    return len(killed)


def workers() -> list[int]:
    """The processes under this one that run tasks: forked by Spark's daemon, which itself is left alone."""
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


def _wait(done: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
