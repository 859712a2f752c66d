"""Where a log may lie: several directories, an archive, both together."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import datasource as ds

import stratalog
import stratalog.spark
from stratalog.errors import InvalidArgumentError, OffsetOutOfRangeError, UnknownTopicError
from stratalog.spark.logs import forget
from tests.archive.s3 import environment, new_bucket, s3_server
from tests.spark.direct import START_MS, UTC_EPOCH, append, fill, offsets, plan, reader, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIERED: dict[str, object] = {
    "remote.storage.enable": True,
    "retention.ms": -1,
    "local.retention.ms": -1,
    "file.delete.delay.ms": 0,
}


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    """Three segments archived, the first two of them no longer here, and an active one."""
    tier(tmp_path / "log", str(tmp_path / "cold"))
    return tmp_path


def tier(where: Path, url: str) -> None:
    with stratalog.open(where, {"log.archive.url": url}) as store:
        topic = store.create_topic("orders", 2, TIERED)
        for _ in range(2):
            append(topic, 10)
            topic.roll()
        store.archive()
        store.alter_topic("orders", {"local.retention.ms": 1})
        store.archive()
        store.alter_topic("orders", {"local.retention.ms": -1})
        append(topic, 10)
        topic.roll()
        store.archive()
        append(topic, 10)
        states = [str(info.state) for info in topic.segments(0)]
        assert states == ["archived", "archived", "sealed", "active"]


def everything(count: int) -> list[tuple[int, int]]:
    return [(part, at) for part in (0, 1) for at in range(count)]


def test_local_and_archive_are_one_log(tiered: Path) -> None:
    found = rows(tiered / "log", subscribe="orders", archive=tiered / "cold")
    assert offsets(found) == everything(40)
    assert {row["value"] for row in found if row["offset"] == 3} == {b"value 3"}


def test_an_archive_alone(tiered: Path) -> None:
    found = rows(None, subscribe="orders", archive=tiered / "cold")
    assert offsets(found) == everything(30), "what was never archived is not there"
    late = ds.GreaterThanOrEqual(("timestamp",), UTC_EPOCH + dt.timedelta(milliseconds=START_MS + 25_000))
    assert offsets(rows(None, [late], subscribe="orders", archive=tiered / "cold")) == [
        (part, at) for part in (0, 1) for at in range(25, 30)
    ]
    planned = plan(None, [late], subscribe="orders", archive=tiered / "cold")
    assert [each.start for part in planned for each in part.each()] == [20, 20]
    by_time = rows(None, subscribe="orders", archive=tiered / "cold", startingTimestamp=START_MS + 28_000)
    assert offsets(by_time) == [(part, at) for part in (0, 1) for at in (28, 29)]
    with pytest.raises(UnknownTopicError, match="no topic 'nope' in .*cold; there are: orders"):
        rows(None, subscribe="nope", archive=tiered / "cold")


def test_an_archive_alone_whose_objects_are_replaced(tiered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest is good for a second; an object that is gone before that is looked for anew at once."""
    monkeypatch.setattr("stratalog.store.read_only.FRESH_S", 3600.0)
    made, _ = reader(None, subscribe="orders", archive=tiered / "cold")
    kind, _ = reader(None, subscribe="orders", archive=tiered / "cold", failOnDataLoss="false")
    parts = made.partitions()
    with stratalog.open(tiered / "log", {"log.archive.url": str(tiered / "cold")}) as store:
        assert store.erase("orders", [b"k3"], reason="asked to").records
        found = [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]
        assert offsets(found) == [(part, at) for part, at in everything(30) if at % 5 != 3]
        forget()  # with what was cached of the objects
        parts = made.partitions()
        for partition in (0, 1):
            store.topic("orders").delete_records(partition, 25)
        store.retain()
        store.archive()
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 24 are gone"):
        [batch for part in parts for batch in made.read(part)]
    found = [row for part in parts for batch in kind.read(part) for row in batch.to_pylist()]
    assert offsets(found) == [(part, at) for part in (0, 1) for at in (25, 26, 27, 29)]


def test_a_topic_that_only_the_archive_has(tiered: Path) -> None:
    fill(tiered / "other", "new", records=3)
    both = rows(tiered / "other", subscribePattern=".*", archive=tiered / "cold")
    assert {row["topic"] for row in both} == {"new", "orders"}
    assert len(both) == 12 + 60


def test_local_and_archive_in_spark(spark: SparkSession, tiered: Path) -> None:
    reader = (
        spark.read.format("stratalog").option("subscribe", "orders").option("archive", str(tiered / "cold"))
    )
    assert reader.load(str(tiered / "log")).count() == 80
    assert reader.load().where("offset >= 15").count() == 30
    states = reader.option("view", "segments").load(str(tiered / "log")).where("partition = 0")
    assert [row.state for row in states.orderBy("baseOffset").collect()] == [
        "archived",
        "archived",
        "sealed",
        "active",
    ]


@contextmanager
def told(spark: SparkSession, names: dict[str, str]) -> Iterator[None]:
    """Environment for the processes of a session that runs already; a new session takes the driver's."""
    spark.sparkContext.environment.update(names)
    stratalog.spark.register(spark)
    try:
        yield
    finally:
        for name in names:
            del spark.sparkContext.environment[name]
        stratalog.spark.register(spark)


@pytest.mark.long
def test_an_archive_on_s3(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket and a log directory as one log, the bucket alone, a stream across the boundary."""
    with s3_server() as endpoint, told(spark, environment(endpoint)):
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        url = new_bucket(endpoint)
        tier(tmp_path / "log", url)
        assert offsets(rows(tmp_path / "log", subscribe="orders", archive=url)) == everything(40)
        forget()  # while the server is there
        reader = spark.read.format("stratalog").option("subscribe", "orders").option("archive", url)
        one = reader.option("minPartitions", "4").load(str(tmp_path / "log"))
        found = sorted((row.partition, row.offset, bytes(row.value)) for row in one.collect())
        assert found == [(part, at, b"value %d" % at) for part, at in everything(40)]
        late = f"timestamp >= timestamp_millis({START_MS + 25_000})"
        assert sorted(
            tuple(row) for row in reader.load().where(late).select("partition", "offset").collect()
        ) == [(part, at) for part in (0, 1) for at in range(25, 30)]
        seen: list[tuple[int, int]] = []
        query = (
            spark.readStream.format("stratalog")
            .options(subscribe="orders", archive=url, startingOffsets="earliest")
            .load(str(tmp_path / "log"))
            .writeStream.foreachBatch(
                lambda frame, _: seen.extend((row.partition, row.offset) for row in frame.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)
        assert sorted(seen) == everything(40)


def test_several_paths(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "one", "orders", records=5)
    fill(tmp_path / "two", "payments", records=5)
    both = [str(tmp_path / "one"), str(tmp_path / "two")]
    frame = spark.read.format("stratalog").option("subscribePattern", ".*").load(both)  # type: ignore[arg-type]
    counts: dict[Any, Any] = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"orders": 20, "payments": 20}


def test_the_directories_of_one_store(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    with stratalog.open(paths) as store:
        append(store.create_topic("orders", 4), 5)
    listed = str([str(path) for path in paths]).replace("'", '"')
    assert len(rows(None, subscribe="orders", paths=listed)) == 20


def test_the_same_directory_by_two_names_is_one(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    os.symlink(tmp_path / "log", tmp_path / "link")
    listed = f'["{tmp_path / "log"}", "{tmp_path / "link"}", "file:{tmp_path / "log"}/"]'
    assert len(rows(None, subscribe="orders", paths=listed)) == 20


def test_the_same_partition_twice_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    listed = f'["{tmp_path / "log"}", "{tmp_path / "copy"}"]'
    with pytest.raises(InvalidArgumentError, match="orders-0 is in two log directories, .*log and .*copy"):
        plan(None, subscribe="orders", paths=listed)
