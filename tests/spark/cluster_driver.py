"""A driver program for a cluster: does what it is told on stdin, a JSON line each, and answers on stdout.

    cluster_driver.py <master> <log dir> <scratch directory> <conf as JSON>

    {"do": "read", "topic": …, "to": file}          the topic as an Arrow file
    {"do": "few", "topic": …}                       a few rows of it, in several ways
    {"do": "write", "topic": …, "rows": n}          n rows in four tasks, one of which is slow at first
    {"do": "stream", "checkpoint": …}               topic `in` to topic `out`, all there is or `forever`

Slow attempts note in the scratch directory that they ran, so that a test can tell that speculation did.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow.feather
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import stratalog.spark

CONF: dict[str, Any] = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": 1,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    # Whichever executor is free: there is no data that is nearer to one of them.
    "spark.locality.wait": "0s",
    "spark.log.level": "WARN",
}


def slow_at_first(scratch: str, seconds: float, row: int) -> Callable[..., Any]:
    """A value as it is; but the first attempt of the first task stops for a while at one of its rows.

    Every attempt of that task leaves a note in the scratch directory.
    """
    rows: dict[int, int] = {}

    def value(text: Any) -> Any:
        context = TaskContext.get()
        if context is None or context.partitionId() != 0:
            return text
        attempt = context.taskAttemptId()
        rows[attempt] = rows.get(attempt, 0) + 1
        if rows[attempt] == 1:
            name = f"attempt-{context.stageId()}-{context.attemptNumber()}-{attempt}"
            open(os.path.join(scratch, name), "w").close()
        if rows[attempt] == row and context.attemptNumber() == 0:
            time.sleep(seconds)
        return text

    return value


def read(spark: SparkSession, log: str, scratch: str, *, topic: str, to: str) -> object:
    frame = spark.read.format("stratalog").option("subscribe", topic).option("minPartitions", 4).load(log)
    table = frame.toArrow()
    pyarrow.feather.write_feather(table, to, compression="uncompressed")
    return {"rows": table.num_rows}


def few(spark: SparkSession, log: str, scratch: str, *, topic: str) -> object:
    """Queries that stop before their tasks do."""
    frame = spark.read.format("stratalog").option("subscribe", topic).load(log)
    return [len(frame.take(3)), frame.limit(10).count(), frame.first() is not None, frame.isEmpty()]


def write(spark: SparkSession, log: str, scratch: str, *, topic: str, rows: int, slow_s: float) -> object:
    frame = spark.range(0, rows, 1, 4).selectExpr(
        "cast(id % 97 as string) as key",
        "concat(lpad(cast(id as string), 7, '0'), repeat('.', 200)) as value",
    )
    slow = udf(slow_at_first(scratch, slow_s, rows // 5), "string", useArrow=False).asNondeterministic()
    began = time.monotonic()
    frame.select("key", slow("value").alias("value")).write.format("stratalog").mode("append").option(
        "topic", topic
    ).save(log)
    return {"seconds": time.monotonic() - began}


def stream(
    spark: SparkSession,
    log: str,
    scratch: str,
    *,
    checkpoint: str,
    per_batch: int,
    slow_s: float = 0,
    forever: bool = False,
) -> object:
    rows: DataFrame = (
        spark.readStream.format("stratalog")
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .option("minPartitions", 4)
        .load(log)
        .selectExpr("key", "value")
    )
    if slow_s:
        slow = udf(slow_at_first(scratch, slow_s, 5), "binary", useArrow=False).asNondeterministic()
        rows = rows.select("key", slow("value").alias("value"))
    writer = rows.writeStream.format("stratalog").option("topic", "out")
    writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="0 seconds") if forever else writer.trigger(availableNow=True)
    writer.start(log).awaitTermination()
    return {"done": True}


def main() -> None:
    master, log, scratch, conf = sys.argv[1:]
    said = CONF | {"spark.local.dir": os.path.join(scratch, "local")} | json.loads(conf)
    spark = stratalog.spark.session(master, **said)
    answers = {"read": read, "few": few, "write": write, "stream": stream}
    for line in sys.stdin:
        order = json.loads(line)
        what = order.pop("do")
        print(json.dumps(answers[what](spark, log, scratch, **order)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
