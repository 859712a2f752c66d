"""Replay: ranges from a log, an archive and Parquet, in order, exactly once, of each key the latest."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import stratalog
from stratalog import Record
from stratalog.errors import ConfigError
from stratalog.spark.pipelines.commits import Commit
from stratalog.spark.pipelines.replay import Extent, Plan, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = 1_700_000_000_000
PARTITIONS = 3
TIERED = {
    "segment.bytes": 2000,
    "retention.ms": -1,
    "remote.storage.enable": True,
    "local.retention.bytes": 1,
}


def some_records(count: int) -> list[Record]:
    """Out of order in time, some without a key, some tombstones, the same keys in several partitions."""
    rng = random.Random(7)
    return [
        Record(
            None if rng.random() < 0.1 else b"v%d" % at,
            None if rng.random() < 0.1 else b"k%d" % rng.randrange(12),
            (("h", b"%d" % at), ("none", None)),
            AT + at * 10 + rng.randrange(-200, 200),
        )
        for at in range(count)
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    config = {"log.archive.url": f"file://{tmp_path / 'archive'}"}
    with stratalog.open(tmp_path / "log", config) as store:
        topic = store.create_topic("in", PARTITIONS, TIERED)
        for at, record in enumerate(some_records(300)):
            topic.append_many([record], partition=at * 7 % PARTITIONS)
        store.create_topic("out", PARTITIONS)
        store.create_topic("one", 1)
        store.create_topic("two", 2)
    return tmp_path / "log"


def records(log: Path, topic: str) -> list[Record]:
    with stratalog.open(log, read_only=True) as store:
        chosen = store.topic(topic)
        return [record for partition in range(chosen.partitions) for record in chosen.read(partition)]


def content(found: list[Record]) -> list[tuple[Any, ...]]:
    return [(each.partition, each.key, each.value, each.headers, each.timestamp) for each in found]


def came_from(row: tuple[Any, ...]) -> int:
    return int(row[3][0][1]) * 7 % PARTITIONS


def latest(found: list[Record]) -> list[Record]:
    """Told plainly: by offset in a partition, then by time; what has no key stays."""
    last: dict[tuple[bytes, int], Record] = {}
    for each in found:
        if each.key is not None:
            last[each.key, each.partition] = each
    winners: dict[bytes, Record] = {}
    for (key, _), each in sorted(last.items(), key=lambda item: (item[1].timestamp, item[1].partition)):
        winners[key] = each
    return [each for each in found if each.key is None or winners[each.key] is each]


def test_a_replay_that_died_goes_on_with_what_was_pinned(
    spark: SparkSession, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = records(log, "in")
    how: dict[str, Any] = {"path": str(log), "topics": "in", "into": "out", "keep_partitions": True}
    write, calls = Commit.write, []

    def dying(self: Commit, *given: Any, **more: Any) -> Any:
        calls.append(self.batch)
        if len(calls) == 3:
            raise RuntimeError("the driver dies")
        return write(self, *given, **more)

    monkeypatch.setattr(Commit, "write", dying)
    with pytest.raises(RuntimeError, match="dies"):
        replay(spark, batch_records=100, **how)
    monkeypatch.undo()
    assert len(records(log, "out")) == 198
    with stratalog.open(log) as store:
        store.topic("in").append(b"after it was pinned", b"k0")
    done = replay(spark, batch_records=100, **how)
    assert (done.counts["records"], done.notes) == (102, ("continued after part 2 of 3",))
    assert content(records(log, "out")) == content(before)
    assert replay(spark, **how).counts["records"] == 0
    again = replay(spark, again=True, **how)
    assert (again.counts["records"], again.details["generation"]) == (301, 1)
    assert not log.with_name("log.staging").exists()


def test_the_latest_of_each_key_in_a_range_of_time(
    spark: SparkSession, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since, until = AT + 500, AT + 2500
    everything = records(log, "in")
    wanted = latest([each for each in everything if since <= (each.timestamp or 0) < until])
    assert {each.value is None for each in wanted} == {True, False}
    how: dict[str, Any] = {"since": since, "until": until, "latest_per_key": True}
    done = replay(spark, path=str(log), topics=["in"], into="one", batch_records=150, **how)
    assert done.counts["records"] == len(wanted)
    for partition in range(PARTITIONS):
        found, there = (
            [each[1:] for each in content(all_of) if came_from(each) == partition]
            for all_of in (records(log, "one"), wanted)
        )
        assert found == there

    # The same from Parquet in which records are more than once, in no order; with keys as if there were many.
    monkeypatch.setattr("stratalog.spark.pipelines.replay.BROADCAST_ROWS", 0)
    rows = (
        spark.read.format("stratalog").option("subscribe", "in").option("includeHeaders", True).load(str(log))
    )
    rows.union(rows.where("offset % 3 = 0")).repartition(3).write.parquet(str(tmp_path / "parquet"))
    done = replay(
        spark, parquet=str(tmp_path / "parquet"), to_path=str(log), into="two", keep_timestamps=False, **how
    )
    assert done.counts["records"] == len(wanted)
    by_key = sorted(content(records(log, "two")), key=lambda each: each[3])
    assert [each[1:4] for each in by_key] == [
        each[1:4] for each in sorted(content(wanted), key=lambda e: e[3])
    ]
    assert all(each[4] > AT + 10**9 for each in by_key)


def test_from_an_archive_into_another_store(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    everything = records(log, "in")
    url = f"file://{tmp_path / 'archive'}"
    with stratalog.open(log, {"log.archive.url": url}) as store:
        store.topic("in").roll()
        store.archive()
    with stratalog.open(tmp_path / "other") as store:
        store.create_topic("short", 1, {"max.message.bytes": 100})
    offsets = {"in": {"0": 10, "1": -2, "2": 95}}
    ends = {"in": {"0": 20, "1": 5, "2": -1}}
    how: dict[str, Any] = {"archive": url, "topics": "in", "to_path": str(tmp_path / "other")}
    how |= {"starting_offsets": offsets, "ending_offsets": ends}
    with pytest.raises(ConfigError, match="there is a partition 2"):
        replay(spark, into="short", keep_partitions=True, **how)
    done = replay(spark, into="all", partitions=2, **how)
    bounds = {0: (10, 20), 1: (0, 5), 2: (95, 300)}
    wanted = [
        each
        for each in everything
        if bounds[each.partition][0] <= (each.offset or 0) < bounds[each.partition][1]
    ]
    assert done.counts["records"] == len(wanted) > 15
    assert {each.headers for each in records(tmp_path / "other", "all")} == {each.headers for each in wanted}
    done = replay(spark, into="short", **how)
    large = done.counts["dead_letters"]
    assert (done.counts["records"] + large, len(records(tmp_path / "other", "short.dead-letters"))) == (
        len(wanted), large,
    )  # fmt: skip


def test_what_cannot_be_replayed(spark: SparkSession, log: Path) -> None:
    how: dict[str, Any] = {"path": str(log), "topics": "in", "into": "out"}
    for more, told in (
        ({"topics": None}, "pass the topics"),
        ({"since": "someday"}, "since: 'someday'"),
        ({"path": None}, "to_path"),
        ({"path": None, "to_path": str(log)}, "pass path, archive or parquet"),
        ({"starting_offsets": {"in": {"0": 1}}}, "no offset for in-1"),
        ({"isolation": "none"}, "isolation"),
    ):
        with pytest.raises(ConfigError, match=told):
            replay(spark, **(how | more))
    assert records(log, "out") == []


@given(some.lists(some.tuples(some.integers(0, 50), some.integers(0, 40)), max_size=6), some.integers(1, 30))
def test_the_parts_of_a_plan_are_the_whole(lengths: list[tuple[int, int]], parts: int) -> None:
    extents = tuple(Extent("t", at, start, start + length) for at, (start, length) in enumerate(lengths))
    plan = Plan.from_json(Plan(extents, None, 5, parts).to_json(), "here")
    assert plan == Plan(extents, None, 5, parts)
    for extent in extents:
        mine = [each for number in range(parts) for each in plan.part(number) if each[1] == extent.partition]
        covered = [offset for each in mine for offset in range(each.start, each.end)]
        assert covered == list(range(extent.start, extent.end))
