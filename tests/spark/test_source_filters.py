"""Pruned rows equal unpruned rows, for every operator and bound, on timestamps in any order."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as ds

import stratalog
from stratalog import Record
from tests.spark.direct import START_MS, UTC_EPOCH, append, offsets, plan, read, reader, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPREAD_MS = 5000
COMPARE: dict[Any, Callable[[Any, Any], bool]] = {
    ds.EqualTo: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
    ds.In: lambda one, other: one in other,
}


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three partitions, sealed and active segments, timestamps that jump back and forth."""
    where = tmp_path_factory.mktemp("shuffled") / "log"
    state = 12345
    with stratalog.open(where) as store:
        topic = store.create_topic("orders", 3)
        for segment in range(4):
            for partition in range(3):
                for _ in range(10):
                    batch = []
                    for _ in range(7):
                        state = (state * 1103515245 + 12345) % 2**31
                        moment = START_MS + segment * SPREAD_MS // 3 + state % SPREAD_MS
                        batch.append(Record(b"x", None, (), moment))
                    topic.append_many(batch, partition=partition)
            if segment < 3:
                topic.roll()
    return where


@pytest.fixture(scope="module")
def everything(shuffled: Path) -> list[dict[str, Any]]:
    found = rows(shuffled, subscribe="orders")
    assert len(found) == 840
    return found


def microseconds(moment: dt.datetime) -> int:
    return (moment - UTC_EPOCH) // dt.timedelta(microseconds=1)


moments = st.integers(-2_000_000, 3 * SPREAD_MS * 1000).map(
    lambda micro: UTC_EPOCH + dt.timedelta(milliseconds=START_MS, microseconds=micro)
)
whole = moments.map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))
times = st.one_of(
    st.builds(
        lambda kind, value: kind(("timestamp",), value),
        st.sampled_from([ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual]),
        st.one_of(moments, whole),
    ),
    st.builds(lambda values: ds.In(("timestamp",), tuple(values)), st.lists(whole, min_size=1, max_size=3)),
)
numbers = st.one_of(
    st.builds(
        lambda kind, column, value: kind((column,), value),
        st.sampled_from([ds.EqualTo, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual]),
        st.sampled_from(["partition", "offset"]),
        st.integers(-3, 290),
    ),
    st.builds(
        lambda column, values: ds.In((column,), tuple(values)),
        st.sampled_from(["partition", "offset"]),
        st.lists(st.integers(-1, 100), min_size=1, max_size=3),
    ),
)
topics = st.sampled_from(
    [
        ds.EqualTo(("topic",), "orders"),
        ds.EqualTo(("topic",), "other"),
        ds.StringStartsWith(("topic",), "or"),
        ds.StringEndsWith(("topic",), "x"),
        ds.StringContains(("topic",), "der"),
        ds.IsNotNull(("offset",)),
        ds.IsNull(("timestamp",)),
    ]
)
anything = st.one_of(times, times, numbers, topics)
filters = st.lists(st.one_of(anything, anything.map(ds.Not)), max_size=4)


def holds(each: Any, row: dict[str, Any]) -> bool:
    if isinstance(each, ds.Not):
        return not holds(each.child, row)
    value = row[each.attribute[0]]
    match each:
        case ds.IsNull():
            return value is None
        case ds.IsNotNull():
            return value is not None
        case ds.StringStartsWith():
            return bool(value.startswith(each.value))
        case ds.StringEndsWith():
            return bool(value.endswith(each.value))
        case ds.StringContains():
            return each.value in value
        case _:
            return COMPARE[type(each)](value, each.value)


@given(pushed=filters)
def test_pruned_equals_unpruned(shuffled: Path, everything: list[dict[str, Any]], pushed: list[Any]) -> None:
    made, left = reader(shuffled, pushed, subscribe="orders")
    found = [row for row in read(made) if all(holds(each, row) for each in left)]
    wanted = [row for row in everything if all(holds(each, row) for each in pushed)]
    assert offsets(found) == offsets(wanted)


@given(pushed=times)
def test_single_time_bounds_are_exact(shuffled: Path, everything: list[dict[str, Any]], pushed: Any) -> None:
    """What is taken is not evaluated again: the rows must be right to the millisecond."""
    made, left = reader(shuffled, [pushed], subscribe="orders")
    found = read(made)
    wanted = [row for row in everything if holds(pushed, row)]
    if left:
        assert set(offsets(wanted)) <= set(offsets(found))
    else:
        assert offsets(found) == offsets(wanted)


@pytest.mark.parametrize(
    ("kind", "micro", "kept"),
    [
        (ds.GreaterThan, 0, [1, 2]),
        (ds.GreaterThan, 1, [1, 2]),
        (ds.GreaterThan, 999, [1, 2]),
        (ds.GreaterThanOrEqual, 0, [0, 1, 2]),
        (ds.GreaterThanOrEqual, 1, [1, 2]),
        (ds.LessThan, 0, []),
        (ds.LessThan, 1, [0]),
        (ds.LessThan, 1000, [0]),
        (ds.LessThan, 1001, [0, 1]),
        (ds.LessThanOrEqual, 0, [0]),
        (ds.LessThanOrEqual, 999, [0]),
        (ds.LessThanOrEqual, 1000, [0, 1]),
        (ds.EqualTo, 0, [0]),
        (ds.EqualTo, 1, []),
    ],
)
def test_microseconds_round_by_operator(tmp_path: Path, kind: Any, micro: int, kept: list[int]) -> None:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("orders", 1).append_many(
            [Record(b"x", None, (), START_MS + at) for at in range(3)]
        )
    bound = UTC_EPOCH + dt.timedelta(milliseconds=START_MS, microseconds=micro)
    made, left = reader(tmp_path / "log", [kind(("timestamp",), bound)], subscribe="orders")
    assert left == []
    assert [row["offset"] for row in read(made)] == kept


def test_nothing_is_planned_for_what_is_ruled_out(shuffled: Path) -> None:
    late = UTC_EPOCH + dt.timedelta(days=40000)
    assert len(plan(shuffled, subscribe="orders")) == 3
    one = plan(shuffled, [ds.EqualTo(("partition",), 1)], subscribe="orders")
    assert [part.partition for part in one] == [1]
    assert plan(shuffled, [ds.GreaterThan(("offset",), 1000)], subscribe="orders") == []
    early = plan(shuffled, [ds.LessThan(("timestamp",), UTC_EPOCH)], subscribe="orders")
    assert all(part.start == 210 for part in early), "only the active segments, which have no seal yet"
    assert plan(shuffled, [ds.GreaterThan(("timestamp",), late)], subscribe="orders")[0].start == 210


def test_filters_that_cannot_be_taken_come_back(shuffled: Path) -> None:
    odd = [
        ds.EqualTo(("key",), b"x"),
        ds.EqualTo(("offset",), 1.5),
        ds.EqualTo(("timestamp",), dt.datetime(2024, 1, 1)),  # noqa: DTZ001 - as an NTZ literal would come
        ds.Not(ds.EqualTo(("offset",), 3)),
        ds.In(("offset",), (3, None)),
        ds.EqualTo(("headers", "key"), "x"),
    ]
    assert reader(shuffled, odd, subscribe="orders")[1] == odd


def test_queries_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Through Spark itself, one DataFrame in several queries and several times in one."""
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 2)
        for _ in range(3):
            append(topic, 20)
            topic.roll()
    frame = spark.read.format("stratalog").option("subscribe", "orders").load(str(tmp_path / "log"))
    low, high = frame.where("offset < 10"), frame.where("offset >= 10 and partition = 1")
    assert low.count() == 20
    assert frame.count() == 120
    assert high.count() == 50
    assert low.union(high).count() == 70
    assert low.union(frame).count() == 140
    assert frame.join(high, ["partition", "offset"]).count() == 50
    since = "timestamp '2023-11-14 22:13:25.0005'"
    assert frame.where(f"timestamp > {since}").count() == 108
    assert frame.where(f"timestamp <= {since} or partition = 7").count() == 12
    assert frame.where(f"timestamp between {since} and {since} + interval 3 seconds").count() == 6
    rows = high.orderBy("offset").limit(2).collect()
    assert [row.offset for row in rows] == [10, 11]
    late = "timestamp '+12000-01-01 00:00:00'"
    assert frame.where(f"timestamp < {late}").count() == 120
    assert frame.where(f"timestamp >= {late} or partition = 7").count() == 0
    assert frame.where(f"timestamp > {late}").count() == 0
