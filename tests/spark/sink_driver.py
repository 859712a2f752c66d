"""A driver to be killed: streams topic ``in`` to topic ``out`` until everything there was is written.

    sink_driver.py <log dir> <checkpoint> <master> [failing]

With ``failing``, a task now and then fails at one of its rows, and is tried again.
"""

from __future__ import annotations

import sys
from typing import Any

import stratalog.spark


def main() -> None:
    log, checkpoint, master, *how = sys.argv[1:]
    conf: dict[str, Any] = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": 2,
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "1ms",
        "spark.log.level": "OFF",
    }
    spark = stratalog.spark.session(master, **conf)
    rows = (
        spark.readStream.format("stratalog")
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .load(log)
        .selectExpr("key", "value")
    )
    if "failing" in how:
        chance = "cast(reflect('java.lang.Math', 'random') as double)"
        doomed = f"if({chance} < 0.0004, raise_error('a task that fails'), value)"
        rows = rows.selectExpr("key", f"{doomed} as value")
    query = (
        rows.writeStream.format("stratalog")
        .option("topic", "out")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(log)
    )
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main()
