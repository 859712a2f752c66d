"""The example of Structured Streaming: each window is written once, with what came late, not with what came
too late."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import stratalog
from examples.windowed_totals import came_too_late, start
from stratalog import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_MS = 60_000
START_MS = 1_700_000_040_000  # a full minute


def payment(customer: str, amount: int, seconds: float) -> Record:
    value = json.dumps({"customer": customer, "amount": amount}).encode()
    return Record(value, customer.encode(), (), START_MS + int(seconds * 1000))


def written(log: Path) -> list[tuple[str, int, int, int]]:
    with stratalog.open(log, read_only=True) as store:
        records = [record for at in range(2) for record in store.topic("totals").read(at)]
    found = []
    for record in records:
        row = json.loads(record.value or b"")
        assert record.key == row["customer"].encode()
        assert record.timestamp == row["to_ms"] == row["from_ms"] + MINUTE_MS
        found.append(
            (row["customer"], (row["from_ms"] - START_MS) // MINUTE_MS, row["total"], row["payments"])
        )
    return sorted(found)


def wanted(payments: list[Record], minutes: int) -> list[tuple[str, int, int, int]]:
    totals: Counter[tuple[str, int]] = Counter()
    counts: Counter[tuple[str, int]] = Counter()
    for record in payments:
        row = json.loads(record.value or b"")
        place = (row["customer"], (record.timestamp - START_MS) // MINUTE_MS)
        totals[place] += row["amount"]
        counts[place] += 1
    return sorted((*place, totals[place], counts[place]) for place in totals if place[1] < minutes)


def test_each_window_once_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    names = ("ann", "bob", "cem")
    first = [payment(names[at % 3], at, at * 5.0) for at in range(60)]  # five minutes
    first += [payment("ann", 1000, 200), payment("bob", 1000, 181)]  # late, and waited for
    with stratalog.open(log) as store:
        store.create_topic("payments", 2)
        store.create_topic("totals", 2)
        store.topic("payments").append_many(first)
        store.topic("payments").append_many([Record(b"not JSON", None, (), START_MS)])

    def run() -> int:
        query = start(spark, str(log), str(checkpoint), once=True, records_per_batch=100)
        assert query.awaitTermination(240)
        assert query.exception() is None
        return came_too_late(query)

    assert run() == 0
    # The largest timestamp is 295 s, the lateness two minutes: windows that end by 175 s are written.
    assert written(log) == wanted(first, 2)

    # As after a kill between the sink's commit and Spark's note of it: that batch is run again.
    commits = [int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit()]
    for name in (str(max(commits)), f".{max(commits)}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    second = [payment(names[at % 3], at, 300 + at * 5.0) for at in range(48)]  # four minutes more
    second.insert(8, payment("cem", 500, 250))  # late, and its window is open
    with stratalog.open(log) as store:
        store.topic("payments").append_many(second)
        store.topic("payments").append_many([payment("ann", 9999, 10)])  # too late: its window is written
    assert run() == 1
    # The largest timestamp is 535 s now: windows that end by 415 s are written, each of them once.
    assert written(log) == wanted(first + second, 6)
    assert not log.with_name("log.staging").exists()
