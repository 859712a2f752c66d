"""What a query was promised and the log no longer has: an error, or a report, in batches and in streams."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import stratalog
from stratalog import Record
from stratalog.errors import OffsetOutOfRangeError, UnknownPartitionError
from stratalog.spark.logs import forget
from stratalog.spark.planning import LogRange
from stratalog.spark.stream import IDS, START
from tests.spark.direct import START_MS, append, fill
from tests.spark.test_stream_offsets import bare, batch, grow, stream, travelled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS = START_MS + 10_000_000
LAST_LINE = "option 'failOnDataLoss': set it to false to go on without"


def deleted(path: Path) -> None:
    with stratalog.open(path) as store:
        store.delete_topic("orders")


def test_a_topic_that_was_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path / "log", records=5)
    strict = stream(tmp_path / "log", startingOffsets="earliest")
    kind = stream(tmp_path / "log", startingOffsets="earliest", failOnDataLoss="false")
    start = kind.initialOffset()
    end = kind.latestOffset(travelled(start), ReadAllAvailable())
    parts = kind.partitions(start, end)
    deleted(tmp_path / "log")
    forget()
    with pytest.raises(UnknownPartitionError) as error:
        strict.latestOffset(travelled(end), ReadAllAvailable())
    assert str(error.value).splitlines()[-1] == f"{LAST_LINE} it"
    with pytest.raises(UnknownPartitionError):
        strict.partitions(start, end)
    with pytest.raises(UnknownPartitionError):
        [each for part in parts for each in strict.read(part)]
    for _ in range(20):
        assert kind.latestOffset(travelled(end), ReadAllAvailable()) == end
    said = [each for each in caplog.messages if each.startswith("data loss: orders-0: the partition is gone")]
    assert len(said) == 1, "once, however often it is asked"
    assert kind.partitions(start, end) == []
    assert [each for part in parts for each in kind.read(part)] == []
    with stratalog.open(tmp_path / "log") as store:
        append(store.create_topic("orders", 1), 3)
    following = kind.latestOffset(travelled(end), ReadAllAvailable())
    assert batch(kind, end, following) == [(0, 0), (0, 1), (0, 2)], "made anew, it is read from its beginning"


def test_a_deleted_topic_takes_no_other_with_it(tmp_path: Path) -> None:
    """Small ranges share a task: what is gone of one is no reason to leave the others out."""
    for topic in ("orders", "payments", "zebras"):
        fill(tmp_path / "log", topic, records=5)
    topics = "orders,payments,zebras"
    kind = stream(tmp_path / "log", subscribe=topics, startingOffsets="earliest", failOnDataLoss="false")
    start = kind.initialOffset()
    end = kind.latestOffset(travelled(start), ReadAllAvailable())
    first, *others = (
        each for part in kind.partitions(start, end) if isinstance(part, LogRange) for each in part.each()
    )
    task = replace(first, also=tuple(others))
    with stratalog.open(tmp_path / "log") as store:
        store.delete_topic("payments")
    forget()
    found = [row["topic"] for each in kind.read(task) for row in each.to_pylist()]
    assert found == ["orders"] * 20 + ["zebras"] * 20


def test_available_now_on_a_topic_made_anew(tmp_path: Path) -> None:
    """With fewer records than were read: nothing must be waited for, and nothing passed over in silence."""
    fill(tmp_path / "log", records=5)
    first = stream(tmp_path / "log", startingOffsets="earliest")
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    deleted(tmp_path / "log")
    with stratalog.open(tmp_path / "log") as store:
        append(store.create_topic("orders", 1), 3)
    forget()
    strict = stream(tmp_path / "log", startingOffsets="earliest")
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(OffsetOutOfRangeError, match="offsets 3 to 19 are gone"):
        strict.latestOffset(travelled(bare(end)), ReadAllAvailable())
    kind = stream(tmp_path / "log", startingOffsets="earliest", failOnDataLoss="false")
    kind.prepareForTriggerAvailableNow()
    following = kind.latestOffset(travelled(end), ReadAllAvailable())
    assert bare(following) == {"orders": {"0": 3}, START: {"orders": {"0": 0}}}
    assert batch(kind, end, following) == [(0, 0), (0, 1), (0, 2)]
    assert kind.latestOffset(travelled(following), ReadAllAvailable()) == following


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_made_anew_with_more_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, restarted: bool
) -> None:
    """Only its id shows that the offsets that were read are those of another topic."""
    log = tmp_path / "log"
    fill(log, partitions=2, records=5)
    strict = stream(log, startingOffsets="earliest")
    kind = stream(log, startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(travelled(start), ReadAllAvailable())
    parts = strict.partitions(start, end)
    deleted(log)
    with stratalog.open(log) as store:
        append(store.create_topic("orders", 1), 50)
    if restarted:
        forget()
        strict = stream(log, startingOffsets="earliest")
        kind = stream(log, startingOffsets="earliest", failOnDataLoss="false")
    for fails in (
        lambda: strict.latestOffset(travelled(end), ReadAllAvailable()),
        lambda: strict.partitions(travelled(start), travelled(end)),
        lambda: [each for part in parts for each in strict.read(part)],
    ):
        with pytest.raises(UnknownPartitionError, match="orders-0: the topic was deleted and created again"):
            fails()
    assert kind.partitions(start, end) == []
    assert [each for part in parts for each in kind.read(part)] == []
    following = kind.latestOffset(travelled(end), ReadAllAvailable())
    assert bare(following) == {"orders": {"0": 50}, START: {"orders": {"0": 0}}}
    assert batch(kind, end, following) == [(0, at) for at in range(50)]
    assert kind.latestOffset(travelled(following), ReadAllAvailable()) == following
    said = [each for each in caplog.messages if each.startswith("data loss: orders-")]
    assert len(said) == 4, "each partition, with each of the offsets that were read, once"
    with stratalog.open(log) as store:
        store.add_partitions("orders", 2)
        append(store.topic("orders"), 1)
    more = kind.latestOffset(travelled(following), ReadAllAvailable())
    assert batch(kind, following, more) == [(0, 50), (1, 0)], "nothing is kept of the old partition"


def test_a_checkpoint_without_ids_is_read_on(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    reader = stream(tmp_path / "log", startingOffsets="earliest")
    end = bare(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    again = stream(tmp_path / "log", startingOffsets="earliest")
    assert again.latestOffset(travelled(end), ReadAllAvailable()) == end, "nothing new: the very same text"
    grow(tmp_path / "log", 3)
    following = again.latestOffset(travelled(end), ReadAllAvailable())
    assert batch(again, end, following) == [(0, at) for at in range(20, 23)]
    assert list(following[IDS]) == ["orders"]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "-10m"},
        {"startingTimestamp": "-10m"},
        {
            "startingOffsetsByTimestamp": '{"orders": {"0": -1}}',
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ],
)
def test_a_start_that_moves_with_the_clock_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """The first batch fails; by the restart its records are older than ten minutes, others came since."""
    now = [NOW_MS]
    monkeypatch.setattr("stratalog.spark.stream._now_ms", lambda: now[0])
    fill(tmp_path / "log", records=5)
    with stratalog.open(tmp_path / "log") as store:
        recent = [Record(b"recent", None, (), NOW_MS - 540_000 + at) for at in range(10)]
        store.topic("orders").append_many(recent)
    first = stream(tmp_path / "log", **options)
    start = first.initialOffset()
    begin = 30 if "startingOffsetsByTimestamp" in options else 20
    assert bare(start) == {"orders": {"0": begin}}
    end = first.latestOffset(travelled(start), ReadAllAvailable())
    assert bare(end) == {"orders": {"0": 30}, START: {"orders": {"0": begin}}}
    now[0] += 3_600_000
    grow(tmp_path / "log", 5)
    again = stream(tmp_path / "log", **options)
    later = again.initialOffset()
    assert bare(later) == {"orders": {"0": 35}}, "asked now, it means something else"
    seen = batch(again, later, end)
    seen += batch(again, end, again.latestOffset(travelled(end), ReadAllAvailable()))
    assert seen == [(0, at) for at in range(begin, 35)]


def test_offsets_that_are_gone_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Batch and stream, both ways."""
    log = str(tmp_path / "log")
    fill(tmp_path / "log", records=10)
    seen: list[int] = []

    def keep(frame: DataFrame, number: int) -> None:
        seen.extend(row.offset for row in frame.select("offset").collect())

    def run(**options: Any) -> None:
        frame = (
            spark.readStream.format("stratalog").option("subscribe", "orders").options(**options).load(log)
        )
        query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(300)

    run(startingOffsets="earliest")
    assert seen == list(range(40))
    with stratalog.open(log) as store:
        topic = store.topic("orders")
        append(topic, 20)
        topic.delete_records(0, 45)
    table = spark.read.format("stratalog").option("subscribe", "orders")
    table = table.option("startingOffsets", json.dumps({"orders": {"0": 5}}))
    for query in (lambda: table.load(log).count(), run):
        with pytest.raises(
            Exception, match="offsets [45]0? to 44 are gone; the log holds offsets 45 to 59"
        ) as error:
            query()
        assert f"{LAST_LINE} them" in str(error.value)
    assert table.option("failOnDataLoss", "false").load(log).count() == 15
    run(failOnDataLoss="false")
    assert seen == [*range(40), *range(45, 60)]
