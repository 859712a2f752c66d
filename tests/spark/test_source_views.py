"""The views of segments and batches tell what the store and the batches themselves tell."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual

import stratalog
from stratalog import Record
from stratalog.errors import CorruptionError
from stratalog.log.read.reader import iter_chunks
from stratalog.spark.schema import TOTALS_SCHEMA
from tests.spark.direct import START_MS, UTC_EPOCH, append, fill, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 2)
        append(topic, 10)
        topic.roll()
        topic.append_many([Record(bytes(50_000), None, (), START_MS) for _ in range(4)], partition=0)
        append(topic, 5)
    return tmp_path / "log"


def test_segments(spark: SparkSession, log: Path) -> None:
    frame = spark.read.format("stratalog").option("view", "segments").load(str(log))
    found = frame.where("partition = 0").orderBy("baseOffset").collect()
    with stratalog.open(log, read_only=True) as store:
        infos = store.topic("orders").segments(0)
    assert [row.state for row in found] == ["sealed", "active"]
    for row, info in zip(found, infos, strict=True):
        assert (row.baseOffset, row.nextOffset) == (info.base_offset, info.next_offset)
        assert (row.sizeBytes, row.records, row.path) == (info.size_bytes, info.records, info.path)
    assert found[0].records == 10
    assert found[0].maxTimestamp.timestamp() * 1000 == START_MS + 9000


def test_batches(spark: SparkSession, log: Path) -> None:
    frame = (
        spark.read.format("stratalog").option("view", "batches").option("subscribe", "orders").load(str(log))
    )
    assert frame.where("partition = 0").selectExpr("sum(records) as n").collect()[0].n == 19
    narrow = spark.read.format("stratalog").option("view", "batches").schema("records int").load(str(log))
    assert narrow.selectExpr("sum(records) as n").collect()[0].n == 34


@pytest.mark.parametrize("topic", sorted({path.name.rpartition("-")[0] for path in GOLDEN.glob("*-[0-9]")}))
def test_batches_of_a_real_broker(topic: str) -> None:
    """Header by header what a checked scan of the whole log finds, small and large batches alike."""
    found = rows(GOLDEN, view="batches", subscribe=topic)
    with stratalog.open(GOLDEN, read_only=True) as store:
        wanted = [
            (view.partition, segment.base_offset, chunk.position + header.position, header)
            for number in range(store.topic(topic).partitions)
            for view in [store.topic(topic)._view(number)]
            for segment, chunk, _ in iter_chunks(view, view.log_start_offset, view.end_offset())
            for header in chunk.scan
            if header.base_offset >= view.log_start_offset
        ]
    got = [
        (row["partition"], row["segment"], row["position"], row["sizeBytes"], row["baseOffset"])
        for row in found
    ]
    assert got == [(part, base, at, each.size, each.base_offset) for part, base, at, each in wanted]
    for row, (*_, header) in zip(found, wanted, strict=True):
        assert (row["lastOffset"], row["records"]) == (header.last_offset, header.count)
        assert row["codec"] == ("none", "gzip", "snappy", "lz4", "zstd")[header.codec]
        assert (row["producerId"], row["producerEpoch"]) == (header.producer_id, header.producer_epoch)
        assert (row["isTransactional"], row["isControl"]) == (header.is_transactional, header.is_control)
        assert row["timestampType"] == header.timestamp_type
        assert (row["deleteHorizon"] is not None) == header.has_delete_horizon
        if header.max_timestamp >= 0:
            assert row["maxTimestamp"] == UTC_EPOCH + dt.timedelta(milliseconds=header.max_timestamp)


def test_batches_around_a_segment_that_is_empty(tmp_path: Path) -> None:
    """A cleaner may leave a sealed segment without a byte."""
    fill(tmp_path / "log", segments=3, records=10)
    directory = tmp_path / "log" / "orders-0"
    for path in directory.glob(f"{10:020d}.*"):
        path.unlink()
    for suffix in ("log", "index", "timeindex"):
        (directory / f"{10:020d}.{suffix}").touch()
    found = rows(tmp_path / "log", view="batches", subscribe="orders")
    assert sum(row["records"] for row in found) == 30
    assert sorted({row["segment"] for row in found}) == [0, 20, 30]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"failOnDataLoss": "false"},
    {"minPartitions": "4"},
    {"minPartitions": "40"},
    {"maxRecordsPerPartition": "10"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("view", ["records", "batches", "totals"])
@pytest.mark.parametrize("how", ["removed", "log removed", "log emptied", "emptied, no sidecars"])
def test_a_missing_segment_is_named(tmp_path: Path, how: str, view: str, options: dict[str, Any]) -> None:
    """However the rest is cut into tasks."""
    fill(tmp_path / "log", segments=4, records=10)
    log = tmp_path / "log" / "orders-0" / f"{20:020d}.log"
    for path in log.parent.glob(f"{log.stem}.*") if how in ("removed", "emptied, no sidecars") else [log]:
        path.unlink()
    if "emptied" in how:
        log.touch()
    named = re.escape(str(log)) + "( at byte 0|: offsets 20-29 are missing)"
    schema = TOTALS_SCHEMA if view == "totals" else None
    with pytest.raises(CorruptionError, match=named):
        rows(tmp_path / "log", schema=schema, view=view, subscribe="orders", **options)


@pytest.mark.parametrize("after_s", [5, 25])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_missing_segment_is_named_within_the_times_that_are_asked_for(
    tmp_path: Path, how: str, parts: int, sealed: bool, after_s: int
) -> None:
    """Also when all that is left before it is too early."""
    fill(tmp_path / "log", segments=4, records=10)
    if not sealed:
        for seal in (tmp_path / "log" / "orders-0").glob("*.seal"):
            seal.unlink()
    log = tmp_path / "log" / "orders-0" / f"{20:020d}.log"
    for path in log.parent.glob(f"{log.stem}.*"):
        path.unlink()
    if how == "emptied":
        log.touch()
    since = GreaterThanOrEqual(
        ("timestamp",), UTC_EPOCH + dt.timedelta(milliseconds=START_MS + after_s * 1000)
    )
    with pytest.raises(CorruptionError, match="offsets 20-29 are missing"):
        rows(tmp_path / "log", [since], subscribe="orders", minPartitions=parts)


def test_what_lies_around_a_missing_segment_is_found(tmp_path: Path) -> None:
    fill(tmp_path / "log", segments=4, records=10)
    for path in (tmp_path / "log" / "orders-0").glob(f"{20:020d}.*"):
        path.unlink()
    asked: dict[str, Any] = {"view": "batches", "subscribe": "orders"}
    before = rows(tmp_path / "log", endingOffsets='{"orders":{"0":20}}', **asked)
    behind = rows(tmp_path / "log", startingOffsets='{"orders":{"0":30}}', **asked)
    assert [row["baseOffset"] for row in before] == [0, 10]
    assert [row["baseOffset"] for row in behind] == [30, 40]
