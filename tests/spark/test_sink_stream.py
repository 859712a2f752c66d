"""Streaming writes: topic to topic, replayed batches, failing commits, and who may be in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.errors import ConfigError
from stratalog.format import journal as journals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("in", 2)
        store.create_topic("out", 2)
        add(store, 0, ROWS)
    return tmp_path / "log"


def add(store: stratalog.Store, first: int, count: int) -> None:
    rows = [stratalog.Record(b"v%05d" % at, b"%d" % (at % 7)) for at in range(first, first + count)]
    store.topic("in").append_many(rows)


def run(spark: SparkSession, log: Path, checkpoint: Path, **options: str) -> None:
    """Write all there is from ``in`` to ``out``, a few micro-batches of it."""
    rows = (
        spark.readStream.format("stratalog")
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load(str(log))
        .selectExpr("key", "value")
    )
    query = (
        rows.writeStream.format("stratalog")
        .option("topic", "out")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(log))
    )
    query.awaitTermination()


def written(log: Path) -> list[bytes]:
    with stratalog.open(log, read_only=True) as store:
        return sorted(record.value or b"" for at in range(2) for record in store.topic("out").read(at))


def wanted(count: int) -> list[bytes]:
    return [b"v%05d" % at for at in range(count)]


def test_topic_to_topic_and_a_replayed_batch(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, log, checkpoint)
    assert written(log) == wanted(ROWS)
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
    assert last >= 2
    state = journals.parse((log / journals.FILE_NAME).read_bytes())
    with stratalog.open(log, read_only=True) as store:
        assert state.streams[f"{query}~{store.topic('out').id}"][0] == last
    # Spark did not write down that the last batch was done: it runs it again.
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    with stratalog.open(log) as store:
        add(store, ROWS, 50)
    run(spark, log, checkpoint)
    assert written(log) == wanted(ROWS + 50)
    assert not log.with_name("log.staging").exists()


def test_a_commit_that_fails_is_made_good_by_the_restart(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    with stratalog.open(log) as store:
        with store.journal.lock, pytest.raises(Exception, match="holds the store and did not answer"):
            run(spark, log, tmp_path / "checkpoint", commitTimeout="1s")
        run(spark, log, tmp_path / "checkpoint")
        assert written(log) == wanted(ROWS)
        assert not log.with_name("log.staging").exists()


def test_foreach_batch_writes_once(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """It fails after its commits, and is run again: two topics, and one of them twice in a batch."""
    with stratalog.open(log) as store:
        store.create_topic("copy", 1)
    failed: list[int] = []

    def keep(frame: DataFrame, number: int) -> None:
        rows = frame.selectExpr("key", "value")
        for topic, part in (("out", "key < '4'"), ("copy", "true"), ("out", "key >= '4'")):
            rows.where(part).write.format("stratalog").mode("append").option("topic", topic).save(str(log))
            if topic == "copy" and number == 1 and not failed:
                failed.append(number)
                raise RuntimeError("after two commits")

    def follow() -> None:
        rows = spark.readStream.format("stratalog").option("subscribe", "in")
        rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)
        query = rows.load(str(log)).writeStream.foreachBatch(keep).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with pytest.raises(Exception, match="after two commits"):
        follow()
    follow()
    assert failed == [1]
    assert written(log) == wanted(ROWS)
    with stratalog.open(log, read_only=True) as store:
        assert sorted(record.value or b"" for record in store.topic("copy").read(0)) == wanted(ROWS)
    assert not log.with_name("log.staging").exists()


@pytest.mark.parametrize("fails", ["tasks", "commit"])
def test_foreach_batch_goes_on_after_a_failed_write(
    spark: SparkSession, log: Path, tmp_path: Path, fails: str
) -> None:
    """The next write must not take its number: run again, one would be lost and the other doubled."""
    from pyspark.errors import PySparkException

    swallowed: list[str] = []

    def keep(frame: DataFrame, number: int) -> None:
        low, high = (frame.where(part).selectExpr("key", "value") for part in ("key < '4'", "key >= '4'"))
        first = number == 1 and not swallowed
        if not first:
            to_out(low, log)
        else:
            try:
                if fails == "tasks":
                    to_out(low.selectExpr("key", "cast(raise_error('broken') as binary) as value"), log)
                else:
                    with stratalog.open(log) as store, store.journal.lock:
                        to_out(low, log, commitTimeout="1s")
            except PySparkException as error:
                swallowed.append(str(error))
        to_out(high, log)
        if first:
            raise RuntimeError("after the second write")

    def follow() -> None:
        rows = spark.readStream.format("stratalog").option("subscribe", "in")
        rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)
        query = rows.load(str(log)).writeStream.foreachBatch(keep).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with pytest.raises(Exception) as caught:
        follow()
    follow()
    assert written(log) == wanted(ROWS)
    assert "a write to out failed before in micro-batch 1" in str(caught.value)
    assert len(swallowed) == 1
    if fails == "tasks":  # after a commit that failed only the store knows whether it needs the files
        assert not log.with_name("log.staging").exists()


def to_out(rows: DataFrame, log: Path, **options: str) -> None:
    rows.write.format("stratalog").mode("append").option("topic", "out").options(**options).save(str(log))


def test_complete_mode_is_refused(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    rows = spark.readStream.format("stratalog").option("subscribe", "in").load(str(log))
    counted = rows.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    with pytest.raises(Exception, match="append-only") as caught:
        (
            counted.writeStream.format("stratalog")
            .outputMode("complete")
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(log))
            .awaitTermination()
        )
    assert ConfigError.__name__ in str(caught.value)
