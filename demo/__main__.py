"""``python -m demo``: the order of the demonstration, its command line and its end."""

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
from demo import clients, steps
from demo.events import Events
from demo.screen import Screen
from stratalog import kernel

DEFAULT_EVENTS = 1_000_000
ARCHIVE = ".archive"
"""The archive lies beside the store, as it would by default."""
SPARK = ".spark"
"""Beside the store too: Spark's checkpoints, its tables and its log."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 0 if every check held, 1 if one failed, 2 for a wrong command line."""
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
    # Recovery warns about the tail it cuts; the demonstration reports the same itself.
    logging.getLogger("stratalog").setLevel(logging.CRITICAL)
    try:
        facts = run(screen, path, options.events, spark=not options.no_spark)
        screen.summary(float(str(facts["elapsed_s"])), _closing(path, keep))
    finally:
        if not keep:
            for suffix in ("", ARCHIVE, SPARK):
                shutil.rmtree(path.rstrip("/") + suffix, ignore_errors=True)
    if options.json:
        checks = [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in screen.checks]
        print(json.dumps({**facts, "directory": path if keep else None, "checks": checks}, indent=2))
    return 1 if screen.failed else 0


def run(screen: Screen, path: str, count: int, *, spark: bool) -> dict[str, object]:
    """Run every step in order; return the facts that ``--json`` shows."""
    began = time.perf_counter()
    archive = path.rstrip("/") + ARCHIVE
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
    facts |= steps.live(screen, path, archive)
    screen.step("Serve the store, and let a Kafka client produce and consume")
    facts |= clients.run(screen, path, events)
    if spark:
        from demo import spark as in_spark

        facts |= in_spark.run(screen, path, archive, path.rstrip("/") + SPARK)
    facts["elapsed_s"] = round(time.perf_counter() - began, 3)
    return facts


def _closing(path: str, keep: bool) -> list[str]:
    if not keep:
        return ["Removed its data; `--keep` leaves it for you to look at."]
    return [f"Kept in {path}", f"Look at it: stratalog --data {path} segments"]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="A million events in, found again, kept through a kill, served to clients and to Spark.",
    )
    parser.add_argument("--events", type=int, default=DEFAULT_EVENTS, metavar="N", help="how many (1000000)")
    parser.add_argument("--dir", type=Path, help="where to put the store, which then stays")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    parser.add_argument("--no-spark", action="store_true", help="end before Spark, which needs a JDK")
    parser.add_argument("--json", action="store_true", help="print only the facts and checks, as JSON")
    options = parser.parse_args(arguments)
    options.dir = None if options.dir is None else os.fspath(options.dir)
    return options


if __name__ == "__main__":
    sys.exit(main())
