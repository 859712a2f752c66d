"""A log that lives while it is read: appended, rolled, compacted, archived; the rows stay the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType

import stratalog
from stratalog import Record
from stratalog.errors import OffsetOutOfRangeError, UnknownPartitionError
from stratalog.log.read import arrow_scan
from stratalog.spark import reading
from stratalog.spark.logs import forget
from stratalog.spark.planning import LogRange
from stratalog.spark.schema import schema_of
from stratalog.spark.source import QUERY
from tests.spark.direct import START_MS, append, fill, offsets, read, reader, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIFE: dict[str, object] = {
    "remote.storage.enable": True,
    "retention.ms": -1,
    "local.retention.ms": 1,
    "file.delete.delay.ms": 0,
    "segment.bytes": 16 << 10,
}


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Something that goes on in another thread until the block is over."""
    over, problems = threading.Event(), []

    def run() -> None:
        try:
            while not over.wait(0.02):
                act()
        except (stratalog.errors.StratalogError, OSError) as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not problems, problems


def test_rolling_and_archiving_under_a_query(tmp_path: Path) -> None:
    """Planned once, read many times while segments are sealed, archived and dropped: always the same rows."""
    url = str(tmp_path / "cold")
    with stratalog.open(tmp_path / "log", {"log.archive.url": url}) as store:
        topic = store.create_topic("orders", 1, LIFE)
        append(topic, 500)
        made, _ = reader(tmp_path / "log", subscribe="orders", archive=url, minPartitions=4)
        parts = made.partitions()

        def act() -> None:
            append(topic, 20)
            topic.roll()
            store.archive()

        rounds = 0
        with meanwhile(act):
            while rounds < 15 or str(topic.segments(0)[0].state) != "archived":
                found = [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]
                assert [row["offset"] for row in found] == list(range(500))
                rounds += 1
                assert rounds < 10_000
        assert len(rows(tmp_path / "log", subscribe="orders", archive=url)) == topic.log_end_offset(0)


def test_compaction_under_a_query(tmp_path: Path) -> None:
    """What compaction keeps is always there; what it removes may be there or not."""
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": 16 << 10,
        "min.cleanable.dirty.ratio": 0.0,
        "file.delete.delay.ms": 0,
    }
    with stratalog.open(tmp_path / "log", {"log.cleaner.min.segment.age.ms": 0}) as store:
        topic = store.create_topic("orders", 1, config)
        state = random.Random(7)
        for at in range(60):
            topic.append_many(
                [
                    Record(f"{at}".encode() * 20, f"k{state.randrange(40)}".encode(), (), START_MS + at)
                    for _ in range(20)
                ]
            )
            if at % 6 == 5:
                topic.roll()
        made, _ = reader(tmp_path / "log", subscribe="orders", minPartitions=3)
        parts = made.partitions()
        whole = {row["offset"]: row["value"] for row in read(made)}

        def act() -> None:
            store.compact("orders")
            compacted.set()
            topic.append(b"more", b"k0")
            topic.roll()

        compacted, rounds = threading.Event(), 0
        latest: dict[bytes, int] = {}
        for record in topic.read(0):
            latest[record.key or b""] = record.offset
        with meanwhile(act):
            while rounds < 15 or not compacted.is_set():
                rounds += 1
                found = [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]
                numbers = [row["offset"] for row in found]
                assert numbers == sorted(set(numbers))
                assert set(latest.values()) - {latest[b"k0"]} <= set(numbers)
                assert all(whole[row["offset"]] == row["value"] for row in found)
        assert len(list(topic.read(0, 0, 1200))) < 1200, "it was compacted"


@settings(max_examples=15)
@given(data=st.data())
def test_same_offsets_same_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Random ranges before and after sealing and archiving."""
    where = tmp_path_factory.mktemp("same")
    url = str(where / "cold")
    state = random.Random(data.draw(st.integers(0, 1000)))
    with stratalog.open(where / "log", {"log.archive.url": url}) as store:
        topic = store.create_topic("orders", 1, LIFE)
        for _ in range(6):
            topic.append_many(
                [
                    Record(b"x" * state.randrange(400), None, (), START_MS + state.randrange(9000))
                    for _ in range(20)
                ]
            )
        queries: list[dict[str, Any]] = []
        for _ in range(3):
            start, end = sorted(data.draw(st.tuples(st.integers(0, 120), st.integers(0, 120))))
            queries.append(
                {
                    "startingOffsets": f'{{"orders": {{"0": {start}}}}}',
                    "endingOffsets": f'{{"orders": {{"0": {end}}}}}',
                }
            )
            queries.append({"startingTimestamp": START_MS + data.draw(st.integers(0, 8000))})
            queries[-1]["startingOffsetsByTimestampStrategy"] = "latest"

        def look() -> list[Any]:
            forget()
            return [rows(where / "log", subscribe="orders", archive=url, **query) for query in queries]

        before = look()
        topic.roll()
        assert look() == before, "sealed"
        store.archive()
        store.archive()
        assert look() == before, "archived"


def test_a_range_that_is_gone(tmp_path: Path) -> None:
    fill(tmp_path / "log", segments=4, records=10)
    strict, _ = reader(tmp_path / "log", subscribe="orders")
    kind, _ = reader(tmp_path / "log", subscribe="orders", failOnDataLoss="false")
    parts = strict.partitions()
    with stratalog.open(tmp_path / "log") as store:
        store.topic("orders").delete_records(0, 25)
    forget()
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 24 are gone; the log holds offsets 25"):
        [batch for part in parts for batch in strict.read(part)]
    found = [row for part in parts for batch in kind.read(part) for row in batch.to_pylist()]
    assert offsets(found) == [(0, at) for at in range(25, 50)]


def test_a_segment_that_goes_while_it_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The reading has begun, the file is gone before it is opened: never a gap without a word."""
    value = bytes(5000)
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 1, {"file.delete.delay.ms": 0})
        for _ in range(6):
            topic.append_many([Record(value) for _ in range(2000)])
            topic.roll()
        strict, _ = reader(tmp_path / "log", subscribe="orders")
        kind, _ = reader(tmp_path / "log", subscribe="orders", failOnDataLoss="false")
        parts = strict.partitions()
        for made in (strict, kind):
            batches = made.read(parts[0])
            first = next(batches)
            assert first.column("offset")[0].as_py() == topic.log_start_offset(0)
            if made is strict:
                topic.delete_records(0, 7000)
                store.tick()
                forget()
                with pytest.raises(OffsetOutOfRangeError, match="are gone"):
                    list(batches)
                parts = [LogRange("orders", 0, 7000, 12000)]
            else:
                topic.delete_records(0, 11000)
                store.tick()
                rest = [at for batch in batches for at in batch.column("offset").to_pylist()]
                assert rest[-1] == 11999
                assert "data loss: orders-0: offsets" in caplog.text


@pytest.mark.parametrize("said", ["true", "false"])
def test_segments_that_go_between_two_steps_of_a_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    """No file is found gone: the next step lists segments of which the first ones are missing."""
    monkeypatch.setattr(reading, "STEP_BYTES", 1)
    monkeypatch.setattr(reading, "JOINED_BYTES", 1)
    fill(tmp_path / "log", segments=4, records=10)
    made, _ = reader(tmp_path / "log", subscribe="orders", failOnDataLoss=said)
    batches = made.read(made.partitions()[0])
    assert next(batches).column("offset").to_pylist() == list(range(10))
    with stratalog.open(tmp_path / "log") as store:
        store.topic("orders").delete_records(0, 30)
    list(made.read(LogRange("orders", 0, 35, 40)))  # which makes the view look again
    if said == "true":
        with pytest.raises(OffsetOutOfRangeError, match="offsets 10 to 29 are gone"):
            list(batches)
    else:
        assert [at for batch in batches for at in batch.column("offset").to_pylist()] == list(range(30, 50))
        assert "data loss: orders-0: offsets 10 to 29 are gone" in caplog.text


def test_a_topic_that_goes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "JOINED_BYTES", 1)
    monkeypatch.setattr(arrow_scan, "SMALL_BYTES", 0)  # or all that is left is read ahead
    for said, name in (("true", "strict"), ("false", "kind")):
        fill(tmp_path / name, partitions=2)
        made, _ = reader(tmp_path / name, subscribe="orders", failOnDataLoss=said)
        begun, other = made.partitions()
        batches = made.read(begun)
        assert next(batches).num_rows == 20
        with stratalog.open(tmp_path / name) as store:
            store.delete_topic("orders")
        if name == "strict":
            for left in (batches, made.read(other)):
                with pytest.raises(UnknownPartitionError, match="set it to false to go on without it"):
                    list(left)
        else:
            assert [*batches, *made.read(other)] == []
            for partition in (0, 1):
                assert f"data loss: orders-{partition}: the partition is gone" in caplog.text


def test_a_live_directory_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 2, {"segment.bytes": 16 << 10})
        append(topic, 200)

        def act() -> None:
            append(topic, 5)
            topic.roll()

        with meanwhile(act):
            frame = (
                spark.read.format("stratalog")
                .option("subscribe", "orders")
                .option("endingOffsets", '{"orders": {"0": 200, "1": 200}}')
                .option("minPartitions", "4")
                .load(str(tmp_path / "log"))
            )
            for _ in range(3):
                assert frame.selectExpr("count(*) as n", "sum(offset) as s").collect()[0] == (400, 2 * 19900)


def test_a_statement_sees_one_end(spark: SparkSession, tmp_path: Path) -> None:
    """However many scans a statement has, with filters or without; the next statement sees more."""
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 2)
        topic.append_many([Record(b"v", b"k")] * 100)

        def act() -> None:
            topic.append_many([Record(b"v", b"k")] * 5)

        with meanwhile(act):
            for options in ({}, {"endingTimestamp": "-1ms"}):
                source = spark.read.format("stratalog").option("subscribe", "orders").options(**options)
                source.load(str(tmp_path / "log")).createOrReplaceTempView("live")
                [row] = spark.sql(
                    "select (select count(*) from live), (select count(value) from live where offset >= 0),"
                    " (select count(key) from live where partition < 2), (select count(topic) from live)"
                ).collect()
                assert len(set(row)) == 1, row
                rows = spark.sql(
                    "select count(*) from live union all select count(value) from live where partition >= 0"
                    " union all select count(key) from live where offset >= 0"
                ).collect()
                assert len({each[0] for each in rows}) == 1
                assert rows[0][0] > row[0]
                alone = spark.sql("select partition, offset from live").join(
                    spark.sql("select * from live"), ["partition", "offset"], "left_anti"
                )
                assert alone.count() == 0
            spark.catalog.dropTempView("live")


def test_scans_of_a_query_share_what_they_found(spark: SparkSession, tmp_path: Path) -> None:
    """Planned in one process here, with the id of a query that Spark's planners get from the optimizer."""
    fill(tmp_path / "log", partitions=2)

    def ends(query: str, **options: Any) -> list[tuple[int, int]]:
        first, *rest = schema_of(False).fields
        marked = StructType([StructField(first.name, first.dataType, True, {QUERY: query}), *rest])
        made, _ = reader(tmp_path / "log", schema=marked, subscribe="orders", **options)
        return sorted((part.partition, part.end) for part in made.partitions() if isinstance(part, LogRange))

    first = ends("one")
    with stratalog.open(tmp_path / "log") as store:
        append(store.topic("orders"), 7)
    forget()
    assert first == ends("one") == [(0, 80), (1, 80)]
    assert ends("two") == ends("") == [(0, 87), (1, 87)]
    at = f"{START_MS + 85_000}"
    assert ends("one", endingTimestamp=at) == first, "a record past the end is none of the query's"
    assert ends("two", endingTimestamp=at) == [(0, 85), (1, 85)]
