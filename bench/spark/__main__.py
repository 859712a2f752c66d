"""``python -m bench.spark``: produce, read, compare; print the report and write it to RESULTS_SPARK.md."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import stratalog
from bench.harness import MismatchError
from bench.sections.compaction import JVM_FLAGS
from bench.spark import report
from bench.spark.cpu import process_seconds
from bench.spark.data import BROKER_SETTINGS, adopt, produce, warm
from bench.spark.first import first_queries
from bench.spark.sizes import FULL, SMALL, Sizes

ROOT = Path(__file__).resolve().parents[2]
KEEP = ROOT / ".bench"
RESULTS = ROOT / "bench" / "RESULTS_SPARK.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured (missed bars are for the reader), 1 when answers were not equal."""
    options = _parse(arguments)
    sizes = (SMALL if options.small else FULL).only(options.topic)
    repeat = options.repeat or sizes.repeat
    where = Path(options.dir or KEEP)
    for folder in (where, KEEP):
        folder.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="spark-", dir=where))
    began = time.monotonic()
    try:
        about, found = _measure(sizes, options.topic, repeat, base, options.section or report.SECTIONS)
    except MismatchError as error:
        print(f"bench: answers are not equal: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    about["sections"] = [*options.section, *(["--topic", options.topic] if options.topic else [])]
    about["minutes"] = round((time.monotonic() - began) / 60, 1)
    sections = report.sections(sizes, found)
    raw = json.dumps(report.as_json(sections, about, found), indent=2)
    kept = KEEP / f"{time.strftime('%Y%m%dT%H%M%S')}-spark-{sizes.name}.json"
    kept.write_text(raw + "\n")
    text = report.as_markdown(sizes, sections, about)
    target = options.report or (None if options.small or options.section or options.topic else RESULTS)
    if target is not None:
        target.write_text(text)
    print(raw if options.json else text)
    print(f"bench: raw numbers in {kept.relative_to(ROOT)}", file=sys.stderr)
    return 0


def _measure(
    sizes: Sizes, topic: str | None, repeat: int, base: Path, only: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the figures were taken with, and every figure by session, measurement and system."""
    kafka = importlib.import_module("tests.interop.kafka")
    connector = importlib.import_module("tests.interop.connector")
    connector.fetch()
    found: dict[str, Any] = {}
    firsts: dict[str, Any] = {}
    with kafka.KafkaBroker(base / "kafka", BROKER_SETTINGS, flags=JVM_FLAGS) as broker:
        cpu = process_seconds(broker.pid)
        for load in sizes.loads:
            _say(f"producing {load.records:,} records of {load.record_bytes:,} bytes")
            produce(broker, load)
        produced = process_seconds(broker.pid) - cpu
        store = base / "store"
        adopt(broker.log_dir, store, sizes.loads)
        for load in sizes.loads:
            warm(store, load)
            warm(broker.log_dir, load)
        for sockets in (True, False) if set(only) & set(report.QUESTION_NAMES) else (True,):
            job = {
                "sizes": sizes.name,
                "topic": topic,
                "repeat": repeat,
                "only": list(only),
                "sockets": sockets,
                "bootstrap": broker.bootstrap,
                "broker_pid": broker.pid,
                "log_dir": str(broker.log_dir),
                "store": str(store),
                "parquet": str(base / "parquet"),
                "scratch": str(base / "scratch"),
            }
            if sockets and "first" in only:
                _say("first queries")
                first = first_queries(store, sizes.loads[0].topic, base / "scratch", repeat)
                firsts = {f"{sizes.loads[0].topic}/first": {row.system: row.raw for row in first}}
            _say(f"a session with Unix domain sockets {'on' if sockets else 'off'}")
            found["sockets on" if sockets else "sockets off"] = _in_child(job)
        found["sockets on"] |= firsts
        about = report.environment(sizes, repeat, kafka.KAFKA_VERSION, connector.CONNECTOR_VERSION)
        about["broker_cpu_s"] = round(process_seconds(broker.pid) - cpu, 1)
        about["broker_cpu_producing_s"] = round(produced, 1)
        broker.stop()
    return about, found


def _in_child(job: Mapping[str, Any]) -> Any:
    source = Path(stratalog.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark.child"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"},
    )
    if done.returncode:
        raise MismatchError(f"the session ended with exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description="Stratalog's Spark source beside Spark's Kafka connector."
    )
    names = ", ".join(report.SECTIONS)
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"which to run: {names} (all)")
    parser.add_argument("--topic", choices=[load.topic for load in FULL.loads], help="one of the loads alone")
    parser.add_argument("--small", action="store_true", help="to see that it works; figures mean little")
    parser.add_argument("--repeat", type=int, metavar="N", help="runs of everything (3; 2 with --small)")
    parser.add_argument("--json", action="store_true", help="print the raw numbers instead of tables")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="where the report goes (bench/RESULTS_SPARK.md)"
    )
    parser.add_argument("--dir", type=Path, help="where the data goes, all on this filesystem (.bench)")
    options = parser.parse_args(arguments)
    for name in options.section:
        if name not in report.SECTIONS:
            parser.error(f"no section {name!r}; there are {names}")
    if options.repeat is not None and options.repeat < 1:
        parser.error("--repeat must be 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
