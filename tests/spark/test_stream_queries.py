"""Streaming queries through Spark: a first batch that fails, limits, AvailableNow, the progress report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stratalog
from stratalog.spark.stream import LAG, START
from tests.spark.direct import append, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def started(
    spark: SparkSession, tmp_path: Path, each: Callable[[DataFrame, int], None], **options: object
) -> StreamingQuery:
    now = options.pop("available_now", True)
    frame = spark.readStream.format("stratalog").option("subscribe", "orders")
    for name, value in options.items():
        frame = frame.option(name, str(value))
    writer = (
        frame.load(str(tmp_path / "log"))
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    return writer.trigger(availableNow=True).start() if now else writer.start()


def grow(path: Path, records: int) -> None:
    with stratalog.open(path) as store:
        append(store.topic("orders"), records)


@pytest.mark.parametrize("starting", ["latest", "-10m"])
def test_a_failed_first_batch_loses_nothing(spark: SparkSession, tmp_path: Path, starting: str) -> None:
    """The very first, before any is committed: what comes until the restart belongs to the query."""
    fill(tmp_path / "log", records=5)  # old timestamps: -10m is the end, too
    tries: list[int] = []
    seen: list[int] = []

    def failing(frame: DataFrame, batch: int) -> None:
        tries.append(batch)
        raise RuntimeError("the sink is down")

    query = started(spark, tmp_path, failing, startingOffsets=starting, available_now=False)
    try:
        with pytest.raises(Exception, match="the sink is down"):
            query.awaitTermination(120)
    finally:
        query.stop()
    assert tries == [0]
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    grow(tmp_path / "log", 55)

    def keep(frame: DataFrame, batch: int) -> None:
        seen.extend(row.offset for row in frame.select("offset").collect())

    again = started(spark, tmp_path, keep, startingOffsets=starting)
    again.awaitTermination(120)
    assert sorted(seen) == list(range(20, 75))


def test_limits_and_progress(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "log", partitions=2, records=10)
    sizes: list[int] = []

    def count(frame: DataFrame, batch: int) -> None:
        sizes.append(frame.count())

    query = started(spark, tmp_path, count, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    query.awaitTermination(120)
    assert sum(sizes) == 80
    assert max(sizes) <= 30
    reports: list[Any] = [report["sources"][0] for report in query.recentProgress]
    first, last = json.loads(reports[0]["endOffset"]), json.loads(reports[-1]["endOffset"])
    assert first[START] == {"orders": {"0": 0, "1": 0}}
    assert last["orders"] == {"0": 40, "1": 40}
    lags = [json.loads(report["latestOffset"])[LAG]["maxOffsetsBehindLatest"] for report in reports]
    assert lags == [25, 10, 0]
    assert json.loads(reports[0]["latestOffset"])["orders"] == {"0": 40, "1": 40}


def test_micro_batches_make_the_segments_of_plain_appends(spark: SparkSession, tmp_path: Path) -> None:
    """A thousand commits are in tests/store/test_journal.py; these come from a real query, six of them."""
    log, size, count = tmp_path / "log", 40, 6
    rows = [stratalog.Record(b"%06d" % at + bytes(500), b"%d" % at) for at in range(size * count)]
    with stratalog.open(log) as store:
        for name in ("orders", "streamed", "plain"):
            store.create_topic(name, 1, {"segment.bytes": 48 << 10})
        store.topic("orders").append_many(rows)
        query = (
            spark.readStream.format("stratalog")
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", size)
            .load(str(log))
            .selectExpr("key", "value")
            .writeStream.format("stratalog")
            .option("topic", "streamed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(log))
        )
        query.awaitTermination(300)
        for at in range(0, len(rows), size):
            store.topic("plain").append_many(rows[at : at + size])
        streamed, plain = store.topic("streamed"), store.topic("plain")
        assert [record.value for record in streamed.read(0)] == [record.value for record in rows]
        assert [each.base_offset for each in streamed.segments(0)] == [
            each.base_offset for each in plain.segments(0)
        ]
        assert len(plain.segments(0)) == 3
