"""The first query of a session, in a process of its own: ``python -m bench.spark.first STORE TOPIC``.

Prints its seconds, and the CPU seconds of the process and everything below it, as JSON. `first_queries` runs
it with what `stratalog.spark.startup` keeps, and as Spark starts by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pyspark

import stratalog
from bench.harness import Case, MismatchError, Row, Sample, take_turns
from bench.spark.cpu import tree_seconds

KEPT, PLAIN = "stratalog.spark.session()", "the same, as Spark starts by itself"
ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(stratalog.__file__).resolve().parents[1]


def main() -> int:
    began = time.perf_counter()
    import stratalog.spark

    store, topic = sys.argv[1:]
    spark = stratalog.spark.session("local[2]", **{"spark.log.level": "ERROR"})
    rows = spark.read.format("stratalog").option("subscribe", topic).load(store)
    found = rows.where("offset >= 5").groupBy("key").count().orderBy("key").limit(5).collect()
    sample = {"seconds": time.perf_counter() - began, "cpu_s": tree_seconds(os.getpid())}
    spark.stop()
    print(json.dumps({**sample, "rows": len(found)}))
    return 0


def first_queries(store: Path, topic: str, scratch: Path, repeat: int) -> list[Row]:
    """Sessions in turn, after one whose JVM leaves its class data."""
    kept = {"XDG_CACHE_HOME": str(scratch / "cache")}
    plain = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    _first(store, topic, kept)
    cases = [
        Case(PLAIN, partial(_first, store, topic, plain)),
        Case(KEPT, partial(_first, store, topic, kept)),
    ]
    return take_turns(cases, repeat)


def _first(store: Path, topic: str, environment: Mapping[str, str]) -> Sample:
    """Wait for the end of the JVM too, which has the output open."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark.first", str(store), topic],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
        env={**inherited, **environment, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
    )
    if done.returncode:
        raise MismatchError(f"a first query ended with exit status {done.returncode}")
    sample: Sample = json.loads(done.stdout.splitlines()[-1])
    if sample.pop("rows") != 5:
        raise MismatchError("the first query found another number of rows")
    return {**sample, "broker_cpu_s": 0.0}


if __name__ == "__main__":
    sys.exit(main())
