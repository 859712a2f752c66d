"""Reads tables with Spark and leaves what it saw as Parquet files, for a test to compare.

    delta_driver.py <scratch directory> <plan>

The plan is JSON: by the name of a result, either the place of a Delta table or a list of Parquet files. A
process of its own: Spark finds a connector's jars only when its JVM starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq

import stratalog.spark
from tests.interop import delta


def main() -> None:
    scratch = Path(sys.argv[1])
    spark = stratalog.spark.session(
        "local[1]",
        app_name="delta",
        **{
            **delta.settings(),
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": 1,
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch / "local"),
            "spark.log.level": "ERROR",
        },
    )
    for name, place in json.loads(sys.argv[2]).items():
        if isinstance(place, str):
            frame = spark.read.format("delta").load(place)
        else:
            frame = spark.read.option("mergeSchema", "true").parquet(*place)
        pq.write_table(frame.toArrow(), scratch / f"{name}.parquet")
    spark.stop()


if __name__ == "__main__":
    main()
