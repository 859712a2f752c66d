"""Batch writes: columns, routing, errors, and nothing left of what failed."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark import TaskContext
from pyspark.errors import IllegalArgumentException
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

import stratalog
from stratalog import kernel
from stratalog.errors import (
    ConfigError,
    ControlError,
    InvalidArgumentError,
    StratalogError,
    UnknownTopicError,
)
from stratalog.spark.sink import Sink, Staged, make_stream_writer, make_writer
from stratalog.spark.source import StratalogSource
from stratalog.store.journal.staging import owner_of
from stratalog.testing import ProcessBroker
from tests.store.staged import stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("t", 3)
        store.create_topic("other", 1)
        store.create_topic("small", 1, {"segment.bytes": 64 << 10})
        store.create_topic("keyed", 1, {"cleanup.policy": "compact"})
    return tmp_path / "log"


def write(frame: DataFrame, log: Path, **options: str) -> None:
    frame.write.format("stratalog").options(**options).mode("append").save(str(log))


def records(log: Path, topic: str) -> list[stratalog.Record]:
    with stratalog.open(log, read_only=True) as store:
        chosen = store.topic(topic)
        return [record for partition in range(chosen.partitions) for record in chosen.read(partition)]


def nothing_left(log: Path) -> bool:
    return not log.with_name(log.name + ".staging").exists()


def test_keys_go_where_the_java_client_puts_them(spark: SparkSession, log: Path) -> None:
    frame = spark.range(0, 500, 1, 4).selectExpr(
        "cast(id % 50 as string) as key", "cast(id as string) as value"
    )
    write(frame, log, topic="t")
    found = records(log, "t")
    assert sorted(int(record.value or b"") for record in found) == list(range(500))
    for record in found:
        assert record.partition == kernel.partition_for_key(record.key or b"", 3)
    # In order within a key and a task.
    for key in range(50):
        rows = [int(r.value or b"") for r in found if r.key == str(key).encode()]
        assert rows == sorted(rows)
    assert nothing_left(log)


def test_every_column_arrives(spark: SparkSession, log: Path) -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
    schema = (
        "key binary, value binary, topic string, partition int, timestamp timestamp,"
        " headers array<struct<key: string, value: binary>>, extra double"
    )
    rows: list[Any] = [
        (b"k", b"v", "t", 2, at, [("a", b"1"), ("a", None)], 1.0),
        (None, None, "other", None, None, None, None),
        (b"k2", b"", "t", None, at, [], 2.0),
    ]
    before = time.time_ns() // 1_000_000
    write(spark.createDataFrame(rows, schema).coalesce(1), log)
    one, two = sorted(records(log, "t"), key=lambda record: record.key or b"")
    assert (one.key, one.value, one.partition) == (b"k", b"v", 2)
    assert one.timestamp == int(at.timestamp() * 1000)
    assert list(one.headers) == [("a", b"1"), ("a", None)]
    assert (two.value, two.partition) == (b"", kernel.partition_for_key(b"k2", 3))
    (tombstone,) = records(log, "other")
    assert (tombstone.key, tombstone.value) == (None, None)
    assert before <= (tombstone.timestamp or 0) <= time.time_ns() // 1_000_000


def test_threads_write(spark: SparkSession, log: Path) -> None:
    """Spark looks a Python source up in the session that is active in the thread: a new one has none."""
    frame = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) as value")
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(write, frame, log, topic="other") for _ in range(2)]:
            done.result()
    assert len(records(log, "other")) == 20


def test_a_table_in_the_catalog_is_refused_before_a_row_is_written(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """Spark would not hand its options over when it is read: nobody could read the rows."""
    frame = spark.createDataFrame([("v",)], "value string")
    stream = spark.readStream.format("stratalog").option("subscribe", "other").load(str(log))
    options = f"OPTIONS (path '{log}', subscribe 'other', topic 'other')"
    said = {"path": str(log), "topic": "other"}
    attempts: list[Callable[[], object]] = [
        lambda: spark.sql(f"create table t1 using stratalog {options}"),
        lambda: spark.sql(f"create table t1 (value binary) using stratalog {options}"),
        lambda: spark.sql(f"create table t1 using stratalog {options} as select 'v' as value"),
        lambda: frame.write.format("stratalog").mode("append").options(**said).saveAsTable("t1"),
        lambda: frame.write.format("StrataLog").options(**said).saveAsTable("t1"),
        lambda: frame.writeTo("t1").using("stratalog").options(**said).create(),
        lambda: stream.writeStream.format("stratalog").options(**said).toTable("t1"),
    ]
    for attempt in attempts:
        with pytest.raises(IllegalArgumentException, match="a table in the catalog .* is not supported"):
            attempt()
    assert not spark.catalog.tableExists("t1")
    assert records(log, "other") == []
    frame.write.saveAsTable("parquet_table")
    assert spark.table("parquet_table").count() == 1
    spark.sql("drop table parquet_table")


def test_the_option_beats_the_column(spark: SparkSession, log: Path) -> None:
    frame = spark.createDataFrame([("t", "v")], "topic string, value string")
    write(frame, log, topic="other")
    assert [record.value for record in records(log, "other")] == [b"v"]
    assert records(log, "t") == []


def test_what_was_read_can_be_written_as_it_is(spark: SparkSession, log: Path) -> None:
    write(
        spark.range(100).selectExpr("cast(id as string) as key", "cast(id as string) as value"),
        log,
        topic="t",
    )
    rows = spark.read.format("stratalog").option("subscribe", "t").load(str(log))
    write(rows.drop("partition"), log, topic="other")
    assert {r.value for r in records(log, "other")} == {r.value for r in records(log, "t")}


def test_large_writes_become_whole_segments(spark: SparkSession, log: Path) -> None:
    frame = spark.range(0, 4000, 1, 1).selectExpr("repeat(cast(id as string), 25) as value")
    write(frame, log, topic="small")
    found = records(log, "small")
    assert [record.value for record in found] == [str(at).encode() * 25 for at in range(4000)]
    with stratalog.open(log) as store:
        segments = store.topic("small").segments(0)
        assert 4 < len(segments) < 16
        assert all(segment.records for segment in segments[:-1])
        assert stratalog.verify(store).damages == ()
    assert nothing_left(log)


def test_every_job_is_a_new_one(spark: SparkSession, log: Path) -> None:
    frame = spark.range(5).selectExpr("cast(id as string) as value")
    write(frame, log, topic="other")
    write(frame, log, topic="other")
    assert len(records(log, "other")) == 10


def test_nothing_to_write(spark: SparkSession, log: Path) -> None:
    write(spark.range(0).selectExpr("cast(id as string) as value"), log, topic="other")
    assert records(log, "other") == []
    assert nothing_left(log)


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, log: Path) -> None:
    frame = spark.range(0, 4000, 1, 4).selectExpr(
        "cast(if(id = 3500, raise_error('boom'), id) as string) as value"
    )
    with pytest.raises(Exception, match="boom"):
        write(frame, log, topic="small")
    assert records(log, "small") == []
    assert nothing_left(log)


def test_rows_that_cannot_be_written_fail_the_job(spark: SparkSession, log: Path) -> None:
    keyless = spark.range(10).selectExpr("cast(id as string) as value")
    with pytest.raises(Exception, match="every record needs a key"):
        write(keyless, log, topic="keyed")
    with pytest.raises(Exception, match="has no partition 7"):
        write(keyless.selectExpr("value", "7 as partition"), log, topic="t")
    with pytest.raises(Exception, match="a row without a topic"):
        write(keyless.selectExpr("value", "cast(null as string) as topic"), log)
    with pytest.raises(Exception, match="the sink creates none"):
        write(keyless.selectExpr("value", "'nope' as topic"), log)
    with pytest.raises(Exception, match="more than"):
        write(spark.range(1).selectExpr("repeat('x', 2000000) as value"), log, topic="t")
    assert nothing_left(log)
    assert records(log, "t") == []


def test_the_holder_appends_at_the_same_time(spark: SparkSession, log: Path) -> None:
    with stratalog.open(log) as store:
        stop, sent = threading.Event(), 0

        def produce() -> None:
            nonlocal sent
            while not stop.is_set():
                store.topic("small").append(b"p%d" % sent)
                sent += 1
                time.sleep(0.001)

        producer = threading.Thread(target=produce)
        producer.start()
        frame = spark.range(0, 2000, 1, 2).selectExpr("concat('s', repeat(cast(id as string), 20)) as value")
        write(frame, log, topic="small")
        stop.set()
        producer.join()
        found = [record.value or b"" for record in store.topic("small").read(0)]
    ours = [value for value in found if value[:1] == b"s"]
    assert ours == [b"s" + str(at).encode() * 20 for at in range(2000)]
    assert [value for value in found if value[:1] == b"p"] == [b"p%d" % at for at in range(sent)]
    assert nothing_left(log)


def test_a_broker_serves_what_it_writes(spark: SparkSession, log: Path) -> None:
    """A client that waits at the end gets the commit at once, among records of other clients."""
    with ProcessBroker(log) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        consumer.assign([TopicPartition("small", 0, 0)])
        assert consumer.poll(0.1) is None
        producer.produce("small", b"before")
        assert producer.flush(30) == 0
        write(spark.range(0, 500, 1, 2).selectExpr("concat('s', id) as value"), log, topic="small")
        producer.produce("small", b"after")
        assert producer.flush(30) == 0
        found: list[bytes] = []
        while len(found) < 502:
            message = consumer.poll(30)
            assert message is not None, f"{len(found)} came"
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
        consumer.close()
        rows = spark.read.format("stratalog").option("subscribe", "small").load(str(log))
        assert rows.count() == 502
    assert found == [b"before", *(b"s%d" % at for at in range(500)), b"after"]
    assert nothing_left(log)


# -- errors that need no task ------------------------------------------------------------------------------


TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def schema_of(text: str) -> StructType:
    """A schema without a session to parse it."""
    return StructType([StructField(name, TYPES[kind]) for name, kind in map(str.split, text.split(", "))])


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        ("key binary", {"topic": "t"}, "column 'value'"),
        ("value double", {"topic": "t"}, "expected binary or string"),
        ("value string, key int", {"topic": "t"}, "column 'key'"),
        ("value string, partition bigint", {"topic": "t"}, "expected int"),
        ("value string, timestamp string", {"topic": "t"}, "expected timestamp"),
        (
            "value string, headers map<string,string>",
            {"topic": "t"},
            "array<struct<key:string,value:binary>>",
        ),
        ("value string", {}, "option 'topic'"),
        ("value string", {"topic": "a/b"}, "option 'topic'"),
        ("value string", {"topic": "t", "commitTimeout": "soon"}, "option 'commitTimeout'"),
        ("value string", {"topic": "t", "txnAppId": "a"}, "option 'txnVersion'"),
        ("value string", {"topic": "t", "txnVersion": "1"}, "option 'txnAppId'"),
        ("value string", {"topic": "t", "txnAppId": "a", "txnVersion": "-1"}, "option 'txnVersion'"),
        ("value string", {"topic": "t", "archive": "memory://x"}, "an archive cannot be written"),
        ("value string", {"topic": "t", "topik": "x"}, "did you mean topic"),
    ],
)
def test_what_is_wrong_is_told_before_a_task_runs(
    log: Path, schema: str, options: dict[str, str], told: str
) -> None:
    for make in (make_writer, make_stream_writer):
        with pytest.raises(ConfigError) as caught:
            make({"path": str(log), **options}, schema_of(schema), False)
        assert told in str(caught.value)


def test_modes_and_topics_that_cannot_be(log: Path) -> None:
    with pytest.raises(ConfigError, match="append-only"):
        make_writer({"path": str(log), "topic": "t"}, schema_of("value string"), True)
    with pytest.raises(UnknownTopicError, match="there are: keyed, other, small, t; the sink"):
        make_writer({"path": str(log), "topic": "nope"}, schema_of("value string"), False)
    with pytest.raises(StratalogError):
        make_writer({"path": str(log / "nope"), "topic": "t"}, schema_of("value string"), False)


def test_the_source_hands_out_the_writers(log: Path) -> None:
    source = StratalogSource({"path": str(log), "topic": "t"})
    one = source.writer(schema_of("value string"), False)
    assert one.job != source.writer(schema_of("value string"), False).job
    stream = source.streamWriter(schema_of("value string"), False)
    with pytest.raises(InvalidArgumentError, match="other ids"):
        stream.commit([Staged("q", 1, [])], 2)


def rows_of(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def test_of_two_attempts_of_a_task_one_counts(log: Path) -> None:
    """What speculation does: both stage all rows, Spark commits one of them."""
    writer = make_writer({"path": str(log), "topic": "other"}, schema_of("value binary"), False)
    slow, quick = writer.write(iter([rows_of(b"a", b"b")])), writer.write(iter([rows_of(b"a", b"b")]))
    assert slow.files != quick.files
    travelled = pickle.loads(pickle.dumps(writer))
    travelled.commit([pickle.loads(pickle.dumps(quick))])
    assert [record.value for record in records(log, "other")] == [b"a", b"b"]
    assert nothing_left(log)
    late = writer.write(iter([rows_of(b"a", b"b")]))
    assert late.files
    with stratalog.open(log):
        assert nothing_left(log)


def test_a_version_of_an_application_is_written_once(log: Path) -> None:
    """As in Delta Lake: that version or an earlier one again is left out, for each topic by itself."""

    def write_once(value: bytes, version: int, app: str = "my app/1", topic: str = "other") -> None:
        options = {"path": str(log), "topic": topic, "txnAppId": app, "txnVersion": str(version)}
        writer = make_writer(options, schema_of("value binary"), False)
        writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([rows_of(value)]))])
        assert nothing_left(log)

    for value, version in ((b"a", 3), (b"b", 3), (b"c", 2), (b"d", 4), (b"e", 3)):
        write_once(value, version)
    write_once(b"f", 1, app="another")
    write_once(b"g", 3, topic="small")
    assert [record.value for record in records(log, "other")] == [b"a", b"d", b"f"]
    assert [record.value for record in records(log, "small")] == [b"g"]
    options = {"path": str(log), "topic": "t", "txnAppId": "a", "txnVersion": "1"}
    with pytest.raises(ConfigError, match="a stream has the ids of its query"):
        make_stream_writer(options, schema_of("value binary"), False)


def streamed(
    monkeypatch: pytest.MonkeyPatch, log: Path, topic: str, query: str, batch: int, value: bytes
) -> None:
    """One micro-batch of a query, as Spark runs it."""
    told = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    context = TaskContext()
    context._localProperties = told  # type: ignore[attr-defined]
    context._partitionId = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(TaskContext, "_taskContext", context)
    writer = make_stream_writer({"path": str(log), "topic": topic}, schema_of("value binary"), False)
    writer.commit([writer.write(iter([rows_of(value)]))], batch)


def test_a_copy_of_a_checkpoint_may_write_to_another_topic(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has the same query id and the same batches: only the target tells them apart."""
    for batch in range(3):
        streamed(monkeypatch, log, "other", "q", batch, b"%d" % batch)
    for batch in (1, 2, 2):
        streamed(monkeypatch, log, "small", "q", batch, b"%d" % batch)
    streamed(monkeypatch, log, "other", "q", 2, b"again")
    assert [record.value for record in records(log, "other")] == [b"0", b"1", b"2"]
    assert [record.value for record in records(log, "small")] == [b"1", b"2"]
    assert nothing_left(log)


def test_checkpoints_of_earlier_versions_are_continued(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commits were known by the query's id alone."""
    with stratalog.open(log) as store:
        store.commit_staged("q", 5, stage(store, "q", 5, {("other", 0): [b"5"]}))
    streamed(monkeypatch, log, "other", "q", 5, b"again")
    streamed(monkeypatch, log, "other", "q", 6, b"6")
    streamed(monkeypatch, log, "other", "q", 6, b"again")
    assert [record.value for record in records(log, "other")] == [b"5", b"6"]


def test_only_what_was_never_committed_is_discarded(log: Path) -> None:
    """After a commit that failed, the store may need the files: it alone knows what was decided."""
    writer = make_writer({"path": str(log), "topic": "other"}, schema_of("value binary"), False)
    staged = writer.write(iter([rows_of(b"a")]))
    writer.abort([staged])
    assert not nothing_left(log)
    writer.commit([staged])
    assert [record.value for record in records(log, "other")] == [b"a"]
    other = make_writer({"path": str(log), "topic": "other"}, schema_of("value binary"), False)
    staged = other.write(iter([rows_of(b"b")]))
    other.abort([staged, None])
    assert nothing_left(log)


def test_a_holder_that_does_not_answer_is_named(log: Path) -> None:
    with stratalog.open(log) as store:
        files = stage(store, "q", 0, {("t", 0): [b"v"]})
        sink = Sink((str(log),), "t", ("value",), owner_of(1), 0.5)
        taken, done = threading.Event(), threading.Event()

        def hold() -> None:
            with store.journal.lock:
                taken.set()
                done.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait(60)
        try:
            with pytest.raises(ControlError, match=r"may still be committed after 0\.5 s: process \d+ holds"):
                sink.commit("q", 0, files, job=False)
        finally:
            done.set()
            holder.join()
        sink.commit("q", 0, files, job=False)
        assert [record.value for record in store.topic("t").read(0)] == [b"v"]
