"""Totals per customer and minute, from one topic into another, exactly once, with late data.

    python examples/windowed_totals.py --data /var/lib/stratalog --checkpoint /var/lib/totals

Payments are JSON, ``{"customer": "ann", "amount": 1250}``, and happen at their record's timestamp. A window
is written to the other topic once, when the watermark has passed its end: that is the largest timestamp seen,
less the lateness that is waited for. A payment that comes later than that belongs to a window that is written
already; it is left out and counted.

Stop it however you like, kill -9 included, and start it again with the same checkpoint: it goes on where it
was. Spark runs the batch that was cut short again, with the same offsets, and the sink knows the batches it
has taken: no total is lost and none is there twice.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

import stratalog
import stratalog.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PAYMENT = "customer string, amount bigint"


def totals(payments: DataFrame, *, window: str, lateness: str) -> DataFrame:
    """Rows of a topic to rows of another: one for each customer and window."""
    return (
        payments.withWatermark("timestamp", lateness)
        .select("timestamp", f.from_json(f.col("value").cast("string"), PAYMENT).alias("payment"))
        .where("payment.customer is not null and payment.amount is not null")
        .groupBy(f.window("timestamp", window), "payment.customer")
        .agg(f.sum("payment.amount").alias("total"), f.count("*").alias("payments"))
        .select(
            f.col("customer").alias("key"),
            f.to_json(
                f.struct(
                    "customer",
                    f.unix_millis("window.start").alias("from_ms"),
                    f.unix_millis("window.end").alias("to_ms"),
                    "total",
                    "payments",
                )
            ).alias("value"),
            f.col("window.end").alias("timestamp"),
        )
    )


def start(
    spark: SparkSession,
    data: str,
    checkpoint: str,
    *,
    source: str = "payments",
    target: str = "totals",
    window: str = "1 minute",
    lateness: str = "2 minutes",
    once: bool = False,
    records_per_batch: int = 100_000,
) -> StreamingQuery:
    """Begin, or go on; with ``once`` up to what is there now, and then end."""
    payments = (
        spark.readStream.format("stratalog")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .load(data)
    )
    writer = (
        totals(payments, window=window, lateness=lateness)
        .writeStream.format("stratalog")
        .outputMode("append")
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")
    return writer.start(data)


def came_too_late(query: StreamingQuery) -> int:
    """What the windows of this run had no place for any more.

    Spark counts payments of one customer, window and batch that one task read as one.
    """
    progress = query.recentProgress
    return sum(each.numRowsDroppedByWatermark for one in progress for each in one.stateOperators)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="the store's log directory")
    parser.add_argument("--checkpoint", required=True, help="a directory for Spark, the same at every start")
    parser.add_argument("--source", default="payments")
    parser.add_argument("--target", default="totals")
    parser.add_argument("--window", default="1 minute")
    parser.add_argument("--lateness", default="2 minutes", help="how long to wait for late payments")
    parser.add_argument("--once", action="store_true", help="up to what is there now, and then end")
    parser.add_argument("--master", default="local[*]")
    said = parser.parse_args()
    with stratalog.open(said.data, read_only=True) as store:
        missing = [name for name in (said.source, said.target) if name not in store.topics()]
    if missing:
        parser.error(
            f"no topic {missing[0]}: `stratalog topic create {missing[0]} --data {said.data}` makes it"
        )
    spark = stratalog.spark.session(said.master, app_name="windowed totals")
    query = start(
        spark,
        said.data,
        said.checkpoint,
        source=said.source,
        target=said.target,
        window=said.window,
        lateness=said.lateness,
        once=said.once,
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    print(f"{came_too_late(query):,} rows came too late for their window")
    spark.stop()


if __name__ == "__main__":
    main()
