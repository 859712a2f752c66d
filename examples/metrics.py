"""Metrics as a time series: appended as they are measured, kept for an hour, asked by time.

    python examples/metrics.py DIRECTORY --seconds 10

Segments roll every few minutes, and retention deletes those whose records are all older than an hour. The
mean of the last minutes is computed on Arrow columns: only the segments of that time are read.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import stratalog

SETTINGS = {"retention.ms": "1h", "segment.ms": "5m", "segment.bytes": "8MiB", "compression.type": "zstd"}


def measure(topic: stratalog.Topic) -> None:
    """Append what the machine says now, a record for each figure."""
    load, memory = os.getloadavg()[0], os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    figures = {b"load": load, b"memory.free": float(memory)}
    topic.append_many([stratalog.Record(repr(value).encode(), key=name) for name, value in figures.items()])


def means(topic: stratalog.Topic, since: str) -> dict[str, float]:
    """Return the mean of each figure since a time."""
    table = topic.scan(columns=["key", "value"], since=since).read_all()
    values = pc.cast(pc.cast(table["value"], pa.string()), pa.float64())
    grouped = pa.table({"name": pc.cast(table["key"], pa.string()), "value": values})
    rows = grouped.group_by("name").aggregate([("value", "mean")]).to_pylist()
    return {row["name"]: row["value_mean"] for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with stratalog.open(options.directory, janitor=True) as store:
        topic = store.create_topic("metrics", config=SETTINGS, if_not_exists=True)
        end_s = time.monotonic() + options.seconds
        while time.monotonic() < end_s:
            measure(topic)
            time.sleep(min(1.0, options.seconds / 10))
        for name, mean in sorted(means(topic, "-5m").items()):
            print(f"{name} {mean:.2f}")


if __name__ == "__main__":
    main()
