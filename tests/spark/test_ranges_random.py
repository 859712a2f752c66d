"""Random ranges of offsets and times: the same rows before, after and while segments are sealed, archived and
compacted (less what compaction removed), against a model that knows nothing of files.

``STRATALOG_RANGES=full`` draws many more of them.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

import stratalog
from stratalog import Record
from stratalog.errors import StratalogError
from stratalog.spark.logs import forget
from tests.spark.direct import START_MS, UTC_EPOCH, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FULL = os.environ.get("STRATALOG_RANGES") == "full"
WORLDS = 200 if FULL else 8
QUERIES = 2000 if FULL else 60

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)

PARTITIONS = 2
RECORDS = 160
"""In each partition, before anything happens to it."""
SPREAD_MS = 4000
"""How far timestamps jump back and forth."""
SPAN_MS = RECORDS * 50 + SPREAD_MS
LATER_MS = START_MS + 1_000_000
KEYS = 25
SETTINGS: dict[str, object] = {
    "retention.ms": -1,
    "local.retention.ms": -1,
    "file.delete.delay.ms": 0,
    "segment.bytes": 16 << 10,
    "index.interval.bytes": 200,
    "min.cleanable.dirty.ratio": 0.0,
    "cleaner.min.segment.age.ms": 0,
}


class Row(NamedTuple):
    partition: int
    offset: int
    moment_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True)
class Query:
    """What to ask for; offsets and times lie inside of what was there at first, or a little outside."""

    starts: tuple[int, ...] | None = None
    ends: tuple[int, ...] | None = None
    since_ms: int | None = None
    """``startingTimestamp``"""
    until_ms: int | None = None
    where: tuple[int, int] | None = None
    """``timestamp >= … and timestamp < …``, pushed down"""
    options: dict[str, int] = field(default_factory=dict)

    def said(self) -> dict[str, Any]:
        said: dict[str, Any] = {"startingOffsetsByTimestampStrategy": "latest", **self.options}
        for name, numbers in (("startingOffsets", self.starts), ("endingOffsets", self.ends)):
            if numbers is not None:
                said[name] = json.dumps({"orders": {str(at): each for at, each in enumerate(numbers)}})
        if self.since_ms is not None:
            said["startingTimestamp"] = self.since_ms
        if self.until_ms is not None:
            said["endingTimestamp"] = self.until_ms
        elif self.ends is None:
            said["endingOffsets"] = json.dumps({"orders": {str(at): RECORDS for at in range(PARTITIONS)}})
        return said

    def filters(self) -> list[ds.Filter]:
        if self.where is None:
            return []
        since, until = (UTC_EPOCH + dt.timedelta(milliseconds=each) for each in self.where)
        return [ds.GreaterThanOrEqual(("timestamp",), since), ds.LessThan(("timestamp",), until)]

    def range_of(self, there: list[Row], partition: int) -> tuple[int, int]:
        """The offsets it means while these rows are there."""
        start, end = 0, RECORDS
        if self.starts is not None and self.ends is not None:
            start, end = self.starts[partition], self.ends[partition]
        if self.since_ms is not None:
            start = _first(there, partition, self.since_ms)
        if self.until_ms is not None:
            end = _first(there, partition, self.until_ms)
        return start, end

    def wants(self, row: Row) -> bool:
        return self.where is None or self.where[0] <= row.moment_ms < self.where[1]

    def expected(self, there: list[Row]) -> list[Row]:
        ranges = [self.range_of(there, partition) for partition in range(PARTITIONS)]
        return [
            row
            for row in there
            if ranges[row.partition][0] <= row.offset < ranges[row.partition][1] and self.wants(row)
        ]


def _first(there: list[Row], partition: int, moment_ms: int) -> int:
    found = (row.offset for row in there if row.partition == partition and row.moment_ms >= moment_ms)
    return min(found, default=RECORDS)


moments = st.integers(-100, SPAN_MS).map(lambda at: START_MS + at)
pairs_of_moments = st.tuples(moments, moments).map(lambda pair: (min(pair), max(pair)))


@st.composite
def queries(draw: st.DrawFn) -> Query:
    options: dict[str, int] = {}
    if draw(st.booleans()):
        options["minPartitions"] = draw(st.integers(1, 9))
    if draw(st.booleans()):
        options["maxRecordsPerPartition"] = draw(st.integers(1, 50))
    where = draw(st.none() | pairs_of_moments)
    if draw(st.booleans()):
        since = draw(st.none() | moments)
        until = draw(st.none() | moments)
        return Query(since_ms=since, until_ms=until, where=where, options=options)
    drawn = [sorted(draw(st.tuples(*[st.integers(0, RECORDS)] * 2))) for _ in range(PARTITIONS)]
    return Query(tuple(a for a, _ in drawn), tuple(b for _, b in drawn), where=where, options=options)


def ask(where: Path, query: Query) -> list[Row]:
    """Through the planner and the executor's code, in this process."""
    found = rows(
        where / "log", query.filters(), subscribe="orders", archive=str(where / "cold"), **query.said()
    )
    return [row for row in as_rows(found) if query.wants(row)]


def as_rows(found: list[dict[str, Any]]) -> list[Row]:
    return sorted(
        Row(
            row["partition"],
            row["offset"],
            (row["timestamp"] - UTC_EPOCH) // dt.timedelta(milliseconds=1),
            row["key"],
            row["value"],
        )
        for row in found
    )


def fill(topic: stratalog.Topic, state: random.Random, *, seals: bool) -> list[Row]:
    """Batches of any size, timestamps in any order, keys that come again; what there is then."""
    there = []
    for partition in range(PARTITIONS):
        at = 0
        while at < RECORDS:
            batch = []
            for offset in range(at, min(at + state.choice([1, 3, 20]), RECORDS)):
                moment = START_MS + offset * 50 + state.randrange(SPREAD_MS)
                value = None if state.random() < 0.02 else b"%d " % offset * state.randrange(30)
                row = Row(partition, offset, moment, b"k%d" % state.randrange(KEYS), value)
                batch.append(Record(row.value, row.key, (), row.moment_ms))
                there.append(row)
            topic.append_many(batch, partition=partition)
            at += len(batch)
            if seals and state.random() < 0.1:
                topic.roll(partition)
    return there


@contextmanager
def world(where: Path, state: random.Random, *, seals: bool, **config: object) -> Iterator[tuple[Any, ...]]:
    with stratalog.open(where / "log", {"log.archive.url": str(where / "cold")}) as store:
        topic = store.create_topic("orders", PARTITIONS, {**SETTINGS, **config})
        with pytest.MonkeyPatch.context() as patched:
            if state.random() < 0.5:  # small segments are pruned like large ones
                patched.setattr("stratalog.spark.planning.SEGMENT_BYTES", 0)
            yield store, topic, fill(topic, state, seals=seals)
    forget()


def kept(topic: stratalog.Topic, there: list[Row]) -> list[Row]:
    """What compaction left of them, as a plain reader sees it, and unchanged."""
    left = {(at, record.offset) for at in range(PARTITIONS) for record in topic.read(at)}
    found = [row for row in there if (row.partition, row.offset) in left]
    for record in (record for at in range(PARTITIONS) for record in topic.read(at, 0, RECORDS)):
        assert (record.value, record.key) in [
            (row.value, row.key) for row in found if row.offset == record.offset
        ]
    return found


@settings(max_examples=WORLDS)
@given(seed=st.integers(0, 2**32), asked=st.lists(queries(), min_size=4, max_size=6), fresh=st.booleans())
def test_before_and_after(
    tmp_path_factory: pytest.TempPathFactory, seed: int, asked: list[Query], fresh: bool
) -> None:
    """Active, sealed, archived, gone from here, compacted: opened anew each time or all along."""
    where = tmp_path_factory.mktemp("ranges")
    state = random.Random(seed)

    def look(said: str, there: list[Row]) -> None:
        if fresh:
            forget()
        for query in asked:
            assert ask(where, query) == query.expected(there), said

    with world(where, state, seals=state.random() < 0.5, **{"remote.storage.enable": True}) as (
        store,
        topic,
        there,
    ):
        look("active", there)
        topic.roll()
        look("sealed", there)
        store.archive()
        look("archived", there)
        store.alter_topic("orders", {"local.retention.ms": 1})
        store.archive()
        assert "archived" in {str(each.state) for each in topic.segments(0)}
        look("archived and gone from here", there)
    where = tmp_path_factory.mktemp("ranges")
    with world(where, state, seals=True, **{"cleanup.policy": "compact"}) as (store, topic, there):
        look("before compaction", there)
        topic.roll()
        store.compact("orders")
        left = kept(topic, there)
        latest = {(row.partition, row.key): row for row in there}
        assert {row for row in latest.values() if row.value is not None} <= set(left)
        assert len(left) < len(there) / 2
        look("compacted", left)


@contextmanager
def meanwhile(act: Callable[[], None], pause_s: float = 0.005, *, at_least: int = 1) -> Iterator[None]:
    """Repeat ``act`` in another thread until the block is over, ``at_least`` so often, with longer pauses.

    It makes segments: on a slow machine there would be more of them than queries can look at.
    """
    over, problems, done = threading.Event(), [], threading.Event()

    def run() -> None:
        try:
            for rounds in itertools.count(1):
                if over.wait(pause_s * rounds):
                    break
                act()
                if rounds >= at_least:
                    done.set()
        except (StratalogError, OSError) as error:
            problems.append(error)
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        assert done.wait(60)
    finally:
        over.set()
        thread.join()
    assert not problems, problems


def more(topic: stratalog.Topic, state: random.Random) -> None:
    """New records at the end, sealed; some are newer values of keys that were there."""
    for partition in range(PARTITIONS):
        topic.append_many(
            [Record(b"later", b"k%d" % state.randrange(2 * KEYS), (), LATER_MS) for _ in range(5)],
            partition=partition,
        )
    topic.roll()


def test_while_segments_are_sealed_archived_and_dropped(tmp_path: Path) -> None:
    state = random.Random(11)
    config = {"remote.storage.enable": True}
    with world(tmp_path, state, seals=True, **config) as (store, topic, there):
        rounds = 0

        def act() -> None:
            nonlocal rounds
            rounds += 1
            more(topic, state)
            store.archive()
            if rounds == 3:
                store.alter_topic("orders", {"local.retention.ms": 1})

        @settings(max_examples=QUERIES)
        @given(queries())
        def check(query: Query) -> None:
            assert ask(tmp_path, query) == query.expected(there)

        with meanwhile(act):
            check()
            while rounds < 5:
                check()
        assert str(topic.segments(0)[0].state) == "archived"


def test_while_segments_are_compacted(tmp_path: Path) -> None:
    """What the last compaction kept is there all the time; what it took may be there, and then unchanged."""
    state = random.Random(12)
    with world(tmp_path, state, seals=True, **{"cleanup.policy": "compact"}) as (store, topic, there):
        topic.roll()
        found: list[tuple[Query, list[Row]]] = []

        def act() -> None:
            more(topic, state)
            store.compact("orders")

        @settings(max_examples=QUERIES)
        @given(queries())
        def check(query: Query) -> None:
            found.append((query, ask(tmp_path, query)))

        with meanwhile(act):
            check()
        left = kept(topic, there)
        assert len(left) < len(there) / 2
        for query, got in found:
            assert set(got) <= set(there)
            assert got == sorted(set(got))
            must, may = bounds_of(query, there, left)
            assert must <= {row[:2] for row in got} <= may


def bounds_of(
    query: Query, there: list[Row], left: list[Row]
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Rows that must, and that may be found between two states; a time is found later when records went."""
    must: set[tuple[int, int]] = set()
    may: set[tuple[int, int]] = set()
    for partition in range(PARTITIONS):
        early, late = query.range_of(there, partition), query.range_of(left, partition)
        must |= {
            row[:2]
            for row in left
            if row.partition == partition and late[0] <= row.offset < early[1] and query.wants(row)
        }
        may |= {
            row[:2]
            for row in there
            if row.partition == partition and early[0] <= row.offset < late[1] and query.wants(row)
        }
    return must, may


def frame_of(spark: SparkSession, where: Path, query: Query) -> DataFrame:
    reader = spark.read.format("stratalog").option("subscribe", "orders")
    for name, value in {**query.said(), "archive": where / "cold"}.items():
        reader = reader.option(name, str(value))
    frame = reader.load(str(where / "log"))
    if query.where is not None:
        since, until = query.where
        frame = frame.where(
            f"timestamp >= timestamp_millis({since}) and timestamp < timestamp_millis({until})"
        )
    return frame.selectExpr("partition", "offset", "unix_millis(timestamp) as moment", "key", "value")


def test_in_spark_while_everything_happens(spark: SparkSession, tmp_path: Path) -> None:
    """Executors in processes of their own; segments are sealed, archived and dropped meanwhile."""
    state = random.Random(13)
    asked = [
        Query((10, 0), (150, 77), options={"minPartitions": 4}),
        Query(since_ms=START_MS + 2500, until_ms=START_MS + 7000),
        Query(where=(START_MS + 3000, START_MS + 3600), options={"maxRecordsPerPartition": 40}),
    ]
    config = {"remote.storage.enable": True, "local.retention.ms": 1}
    with world(tmp_path, state, seals=True, **config) as (store, topic, there):

        def act() -> None:
            more(topic, state)
            store.archive()

        with meanwhile(act, 0.1, at_least=2):  # the first round copies, the next one drops
            for query in asked:
                found = [
                    Row(row[0], row[1], row[2], _bytes(row[3]), _bytes(row[4]))
                    for row in frame_of(spark, tmp_path, query).collect()
                ]
                assert sorted(found) == query.expected(there)
        assert str(topic.segments(0)[0].state) == "archived"


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
