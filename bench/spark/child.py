"""One Spark session in a process of its own: ``python -m bench.spark.child``, a job as JSON on stdin.

The socket setting is fixed when a session begins, so each has its own process; its CPU time is that of the
process and everything below it. Prints the rows as JSON on its last line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import stratalog.spark
from bench.harness import MismatchError, Row
from bench.spark.data import segmented
from bench.spark.questions import QUESTIONS, Asking, Places
from bench.spark.rewrites import Rewrites
from bench.spark.sizes import FULL, SMALL, Load, Sizes
from tests.interop import connector


def main() -> int:
    job: Mapping[str, Any] = json.load(sys.stdin)
    sizes = (SMALL if job["sizes"] == "small" else FULL).only(job["topic"])
    places = Places(
        job["bootstrap"],
        job["broker_pid"],
        Path(job["log_dir"]),
        Path(job["store"]),
        Path(job["parquet"]),
    )
    scratch = Path(job["scratch"])
    spark = stratalog.spark.session(
        f"local[{os.cpu_count() or 2}]",
        app_name="bench",
        **{
            "spark.driver.memory": "3g",
            "spark.jars": connector.jars(),
            "spark.python.unix.domain.socket.enabled": job["sockets"],
            "spark.sql.session.timeZone": "UTC",
            "spark.local.dir": str(scratch / "spark"),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.log.level": "ERROR",
        },
    )
    found: dict[str, list[Row]] = {}
    try:
        asking = Asking(spark, places, job["repeat"])
        for name, run in _work(asking, sizes, scratch, job["sockets"], job["only"]):
            _say(name)
            found[name] = run()
    except MismatchError as error:
        print(f"bench: not equal: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    print(json.dumps({name: {row.system: row.raw for row in rows} for name, rows in found.items()}))
    return 0


def _work(
    asking: Asking, sizes: Sizes, scratch: Path, sockets: bool, only: Sequence[str]
) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """What to measure, by name; everything in the first session, the questions again in the second."""
    for load in sizes.loads:
        wanted = [question for question in QUESTIONS if question.name in only]
        if sockets and (wanted or "window" in only):
            asking.write_parquet(load)
        for question in wanted:
            compare = partial(asking.compare, load, question, parquet=sockets)
            yield f"{load.topic}/{question.name}", compare
    if sockets:
        load = sizes.loads[0]
        rewrites = Rewrites(asking, load, scratch)
        others: dict[str, Callable[[], list[Row]]] = {
            "totals": lambda: asking.totals(load),
            "segments": lambda: _segments(asking, load, sizes, scratch),
            "window": lambda: asking.window(load),
            "batches": lambda: asking.batches(load),
            "compact": rewrites.compaction,
            "export": rewrites.exporting,
        }
        for name, run in others.items():
            if name in only:
                yield f"{load.topic}/{name}", run


def _segments(asking: Asking, load: Load, sizes: Sizes, scratch: Path) -> list[Row]:
    few, many = scratch / "few", scratch / "many"
    segmented(few, load, sizes.segments)
    segmented(many, load, 100 * sizes.segments)
    return asking.segments(load, few, many)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
