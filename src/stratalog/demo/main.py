"""The order of the demonstration, its command line and its end."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import stratalog
from stratalog import kernel
from stratalog.config.units import format_bytes
from stratalog.demo import lifecycle, steps
from stratalog.demo.events import Events
from stratalog.demo.screen import Screen

DEFAULT_EVENTS = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 when every check held, 1 when one failed, 2 when it was asked for something impossible."""
    options = _parse(arguments)
    if options.events < 1:
        print("demo: --events must be 1 or more", file=sys.stderr)
        return 2
    keep = options.keep or options.dir is not None
    path = options.dir or tempfile.mkdtemp(prefix="stratalog-demo-")
    if options.dir is not None and os.path.exists(os.path.join(path, "meta.properties")):
        print(f"demo: {path} already holds a store; give another directory", file=sys.stderr)
        return 2
    screen = Screen(silent=options.json)
    # Recovery warns about the tail it cuts; the demonstration says the same in its own words.
    logging.getLogger("stratalog").setLevel(logging.CRITICAL)
    try:
        facts = run(screen, path, options.events, spark=not options.no_spark)
        elapsed_s = float(str(facts["elapsed_s"]))
        screen.summary(_summary(facts), elapsed_s, _closing(path, keep))
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(archive_of(path), ignore_errors=True)
            shutil.rmtree(spark_of(path), ignore_errors=True)
    if options.json:
        checks = [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in screen.checks]
        print(json.dumps({**facts, "directory": path if keep else None, "checks": checks}, indent=2))
    return 1 if screen.failed else 0


def archive_of(path: str) -> str:
    """Where the demonstration's archive lies: beside the store, as it would by default."""
    return f"{path.rstrip('/')}.archive"


def spark_of(path: str) -> str:
    """Where Spark puts checkpoints, Parquet and its log."""
    return f"{path.rstrip('/')}.spark"


def run(screen: Screen, path: str, count: int, *, spark: bool) -> dict[str, object]:
    """Every step in order; returns the facts that the summary and ``--json`` show."""
    began = time.perf_counter()
    events = Events(count, time.time_ns() // 1_000_000)
    made = "compiled kernel" if kernel.compiled else "interpreted kernel (slow)"
    screen.title(f"Stratalog {stratalog.__version__}", f"{made} · {path}")

    screen.step(f"Append {count:,} keyed events; segments roll as they fill")
    facts: dict[str, object] = {"events": count, "kernel_compiled": kernel.compiled}
    with stratalog.open(path) as store:
        topic = steps.create(store, count)
        facts |= steps.append(screen, topic, events)
        screen.step("Read everything back: every event once, with its key, value, time and order")
        found, more = steps.scan(screen, topic, events)
        facts |= more
        screen.step("Find events by offset, by time and by key")
        facts |= steps.find_by_offset(screen, topic, events, found)
        facts |= steps.find_by_time(screen, topic, events, found)
        facts |= steps.find_by_key(screen, topic, events)

    screen.step("Kill a process with SIGKILL while it appends, and open what it left")
    facts |= steps.kill_and_recover(screen, path, events)
    screen.step("Leave half a batch at the end, as a power cut would, and open again")
    facts |= steps.tear_and_recover(screen, path)
    screen.step("Follow one segment through its life")
    facts |= lifecycle.live(screen, path, archive_of(path))
    if spark:
        from stratalog.demo import spark as in_spark

        facts |= in_spark.run(screen, path, archive_of(path), spark_of(path))
    facts["elapsed_s"] = round(time.perf_counter() - began, 3)
    return facts


def _summary(facts: dict[str, object]) -> list[tuple[str, str, str]]:
    def number(name: str) -> float:
        return float(str(facts.get(name) or 0))

    def rate(records: str, seconds: str) -> str:
        return f"{number(records) / max(number(seconds), 1e-9) / 1e6:.2f} M/s"

    def micros(name: str) -> str:
        return f"{number(name):,.0f} µs"

    size = format_bytes(int(number("size_bytes")))
    checked = format_bytes(int(number("recover_scanned_bytes")))
    recovered = (
        f"of {int(number('acknowledged')):,} acknowledged;"
        f" open took {number('recover_s') * 1e3:,.0f} ms and checked {checked}"
    )
    rows = [
        ("append", rate("events", "append_s"), f"{int(number('events')):,} events, {size}, key index on"),
        ("segments", f"{int(number('segments'))}", f"in {int(number('partitions'))} partitions"),
        ("scan to Arrow", rate("events", "scan_s"), "key, value, offset, timestamp"),
        ("read by offset", micros("by_offset_us"), "median, random offsets"),
        ("read by time", micros("by_time_us"), "median, first offset at a random time"),
        ("read by key", micros("by_key_us"), "median, latest record of a random key"),
        ("after SIGKILL", f"{int(number('lost'))} lost", recovered),
        (
            "after a torn write",
            f"{int(number('torn_bytes'))} B cut",
            "saved beside the segment; nothing else lost",
        ),
        (
            "a segment's life",
            f"{number('lifecycle_s') * 1e3:,.0f} ms",
            " → ".join(str(state) for state in facts.get("states", ())),  # type: ignore[attr-defined]
        ),
    ]
    return rows + _spark_summary(facts) if "spark_tasks" in facts else rows


def _spark_summary(facts: dict[str, object]) -> list[tuple[str, str, str]]:
    """What ran where: this process holds the store, the executors read its files themselves."""

    def number(name: str) -> float:
        return float(str(facts.get(name) or 0))

    def seconds(name: str) -> str:
        return f"{number(name):.1f} s"

    return [
        (
            "Spark counts",
            seconds("spark_count_s"),
            f"{int(number('spark_count')):,} records, in executors",
        ),
        (
            "Spark streams",
            f"{int(number('stream_twice'))} twice",
            f"{int(number('stream_events')):,} events appended here, totalled in executors, through a kill",
        ),
        (
            "Spark joins",
            seconds("join_s"),
            f"{int(number('archived_segments'))} archived segments and live ones as one table, in executors",
        ),
        (
            "Spark exports",
            seconds("export_s"),
            f"{int(number('exported')):,} records to a Delta table, written by executors, read with DuckDB",
        ),
        (
            "Spark itself",
            f"{int(number('spark_tasks'))} tasks",
            f"one session, up in {number('spark_start_s'):.1f} s; the log had no server",
        ),
    ]


def _closing(path: str, keep: bool) -> list[str]:
    if not keep:
        return ["Removed its data; `--keep` leaves it for you to look at."]
    return [f"Kept in {path}", f"Look at it: stratalog --data {path} segments"]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m stratalog.demo",
        description="A million events in, found again, kept through a kill, and taken to Spark.",
    )
    parser.add_argument("--events", type=int, default=DEFAULT_EVENTS, metavar="N", help="how many (1000000)")
    parser.add_argument("--dir", type=Path, help="where to put the store, which then stays")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    parser.add_argument("--no-spark", action="store_true", help="end before Spark, which needs a JDK")
    parser.add_argument("--json", action="store_true", help="print only the facts and checks, as JSON")
    options = parser.parse_args(arguments)
    options.dir = None if options.dir is None else os.fspath(options.dir)
    return options
