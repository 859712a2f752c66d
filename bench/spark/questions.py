"""What is asked, of whom, and how an answer is timed: runs inside one Spark session."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.harness import Case, MismatchError, Row, Sample, take_turns
from bench.spark.cpu import process_seconds, tree_seconds
from bench.spark.sizes import Load

CONNECTOR = "Kafka connector"
TOLD = "Kafka connector, startingTimestamp"
SOURCE = "stratalog"
NARROW = "stratalog, narrow schema"
LIVE = "stratalog, the broker's directory"
PARQUET = "Parquet"
RECORDS, HEADERS = "count, every record decoded", "count, from headers"
RECORDS_ENDS = "count, max(offset), max(timestamp) by partition, every record decoded"
HEADERS_ENDS = "count, max(offset), max(timestamp) by partition, from headers"
FEW, MANY = "few segments", "a hundred times as many"


@dataclass(frozen=True, slots=True)
class Places:
    """Where each side finds the records."""

    bootstrap: str
    broker_pid: int
    log_dir: Path
    store: Path
    parquet: Path


@dataclass(frozen=True, slots=True)
class Question:
    """``schema`` has the columns it needs and no more."""

    name: str
    title: str
    schema: str
    ask: Callable[[DataFrame], Any]


def _count(rows: DataFrame) -> int:
    return rows.count()


def _sum(rows: DataFrame) -> int:
    return int(rows.agg(sf.sum(sf.length("value")).alias("bytes")).collect()[0]["bytes"])


def _top(rows: DataFrame) -> list[tuple[bytes, int]]:
    counted = rows.groupBy("key").agg(sf.count("*").alias("n"))
    best = counted.orderBy(sf.desc("n"), "key").limit(10).collect()
    return [(bytes(row["key"]), int(row["n"])) for row in best]


QUESTIONS = (
    Question("count", "count", "partition int", _count),
    Question("sum", "sum(length(value))", "value binary", _sum),
    Question("top", "top-10 keys", "key binary", _top),
)


class Asking:
    """One session, its sources, and how runs are timed."""

    def __init__(self, spark: SparkSession, places: Places, repeat: int) -> None:
        self.spark = spark
        self.places = places
        self.repeat = repeat

    # -- frames --------------------------------------------------------------------------------------

    def connector(self, load: Load, **options: object) -> DataFrame:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.places.bootstrap)
        reader = reader.option("subscribe", load.topic)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def source(self, load: Load, path: Path, schema: str | None = None) -> DataFrame:
        reader = self.spark.read.format("stratalog").option("subscribe", load.topic)
        return (reader if schema is None else reader.schema(schema)).load(str(path))

    def parquet(self, load: Load) -> DataFrame:
        return self.spark.read.parquet(str(self.places.parquet / load.topic))

    def write_parquet(self, load: Load) -> None:
        """The ceiling's file: the same columns, written by Spark from our source."""
        rows = self.source(load, self.places.store)
        rows.write.mode("overwrite").parquet(str(self.places.parquet / load.topic))

    # -- timing --------------------------------------------------------------------------------------

    def timed(self, run: Callable[[], Any], expected: Any, what: str) -> Sample:
        """Wall time, the session's CPU time and the broker's; MismatchError when the answer is another."""
        pid, broker = os.getpid(), self.places.broker_pid
        cpu, brokers = tree_seconds(pid), process_seconds(broker)
        wall = time.perf_counter()
        answer = run()
        sample = {"seconds": time.perf_counter() - wall}
        sample["cpu_s"] = tree_seconds(pid) - cpu
        sample["broker_cpu_s"] = process_seconds(broker) - brokers
        if expected is not None and answer != expected:
            raise MismatchError(f"{what} gave {str(answer)[:200]}, expected {str(expected)[:200]}")
        return sample

    def turns(self, cases: Sequence[tuple[str, Callable[[], Any]]], expected: Any, what: str) -> list[Row]:
        """Every case once to warm up, then ``repeat`` rounds in turn."""
        for _, run in cases:
            run()
        made = [Case(name, partial(self.timed, run, expected, f"{what}, {name}")) for name, run in cases]
        return take_turns(made, self.repeat)

    # -- questions -----------------------------------------------------------------------------------

    def compare(self, load: Load, question: Question, *, parquet: bool) -> list[Row]:
        """One question, of the connector, of us, of us with a narrow schema, and of Parquet."""
        ask, store = question.ask, self.places.store
        expected = ask(self.source(load, store))
        cases: list[tuple[str, Callable[[], Any]]] = [
            (CONNECTOR, lambda: ask(self.connector(load))),
            (SOURCE, lambda: ask(self.source(load, store))),
            (NARROW, lambda: ask(self.source(load, store, question.schema))),
        ]
        if parquet:
            cases.append((LIVE, lambda: ask(self.source(load, self.places.log_dir))))
            cases.append((PARQUET, lambda: ask(self.parquet(load))))
        return self.turns(cases, expected, f"{question.title} of {load.topic}")

    def window(self, load: Load) -> list[Row]:
        """A few seconds in the middle, by ``where``; the connector also by its own options."""
        since, until = load.window
        within = sf.col("timestamp") >= sf.timestamp_millis(sf.lit(since))
        within &= sf.col("timestamp") < sf.timestamp_millis(sf.lit(until))

        def told() -> int:
            # Its end is an offset: the first record at ``until`` or later.
            options = {"startingTimestamp": since, "endingTimestamp": until}
            return self.connector(load, **options).where(within).count()

        cases: list[tuple[str, Callable[[], Any]]] = [
            (CONNECTOR, lambda: self.connector(load).where(within).count()),
            (TOLD, told),
            (SOURCE, lambda: self.source(load, self.places.store).where(within).count()),
            (LIVE, lambda: self.source(load, self.places.log_dir).where(within).count()),
            (PARQUET, lambda: self.parquet(load).where(within).count()),
        ]
        return self.turns(cases, load.windowed, f"the window of {load.topic}")

    def totals(self, load: Load) -> list[Row]:
        """How many records, and up to which offset and time: from headers, and with every record decoded."""

        partitions = sf.sum("partition")  # nothing that headers tell
        cases: list[tuple[str, Callable[[], Any]]] = [
            (RECORDS, lambda: self._counted(load, partitions)),
            (HEADERS, lambda: self._counted(load)),
            (RECORDS_ENDS, lambda: self._ends(load, partitions)),
            (HEADERS_ENDS, lambda: self._ends(load)),
        ]
        return self.turns(cases, load.records, f"the totals of {load.topic}")

    def _counted(self, load: Load, *more: Column) -> int:
        rows = self.source(load, self.places.store)
        return int(rows.agg(sf.count("*").alias("n"), *more).collect()[0]["n"])

    def _ends(self, load: Load, *more: Column) -> int:
        rows = self.source(load, self.places.store).groupBy("partition")
        ends = rows.agg(sf.count("*").alias("n"), sf.max("offset"), sf.max("timestamp"), *more)
        return sum(int(row["n"]) for row in ends.collect())

    def segments(self, load: Load, few: Path, many: Path) -> list[Row]:
        """The values of a topic in few segments and in many."""
        cases = [(FEW, partial(self._summed, load, few)), (MANY, partial(self._summed, load, many))]
        return self.turns(cases, self._summed(load, few), "many segments")

    def _summed(self, load: Load, path: Path) -> int:
        return _sum(self.source(load, path))

    def batches(self, load: Load) -> list[Row]:
        """The records of a topic, summed over its batch headers; ``job_s`` is what Spark says it took."""

        def run() -> Sample:
            reader = self.spark.read.format("stratalog").option("subscribe", load.topic)
            rows = reader.option("view", "batches").load(str(self.places.store))
            before = max((int(job.jobId()) for job in self._jobs()), default=-1)
            sample = self.timed(
                lambda: int(rows.agg(sf.sum("records").alias("n")).collect()[0]["n"]),
                load.records,
                f"view=batches of {load.topic}",
            )
            return {**sample, "job_s": self._job_seconds(before)}

        run()
        return take_turns([Case(SOURCE, run)], max(self.repeat, 5))

    def _jobs(self) -> list[Any]:
        context: Any = self.spark.sparkContext._jsc.sc()
        jobs = context.statusStore().jobsList(None)
        return [jobs.apply(at) for at in range(jobs.size())]

    def _job_seconds(self, before: int) -> float:
        """From the beginning of the first job after ``before`` to the end of the last, as Spark has it."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # the listeners are a moment behind
            jobs = [job for job in self._jobs() if int(job.jobId()) > before]
            if jobs and all(job.completionTime().isDefined() for job in jobs):
                began = min(int(job.submissionTime().get().getTime()) for job in jobs)
                return (max(int(job.completionTime().get().getTime()) for job in jobs) - began) / 1000
            time.sleep(0.01)
        raise MismatchError("Spark does not say when its last job ended")
