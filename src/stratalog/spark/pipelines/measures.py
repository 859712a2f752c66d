"""Measuring records for `check`: executors read their range and send on a handful of numbers.

A record is late by how far its timestamp is behind the largest one before it in its partition. What lies
before a range is known from the batch headers of the ranges before it, so ranges are measured side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.log.reader import Isolation
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Where
from stratalog.spark.pipelines.limits import Limits, Measures
from stratalog.spark.pipelines.ranges import over_ranges, read
from stratalog.spark.planning import LogRange, pair_of
from stratalog.spark.views import batch_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.logs import Logs

NO_TIMESTAMP = -1


class Seen(NamedTuple):
    """What the batch headers of a range say."""

    number: int
    measures: Measures
    behind: int
    """The offset behind its last batch, which may lie in the next range."""


def measure_headers(spark: SparkSession, where: Where, ranges: Sequence[LogRange]) -> list[Seen]:
    """Of each range: its records and its largest timestamp. A batch belongs to the range it begins in."""
    made = [Seen(number, Measures(), part.start) for number, part in enumerate(ranges)]
    if ranges:
        begins = {pair_of(part): number for number, part in reversed(list(enumerate(ranges)))}
        task = MeasureHeaders(frozenset(begins.values()))
        for seen in over_ranges(spark, where, ranges, task).collect():
            made[seen.number] = seen
    return made


def measure_records(
    spark: SparkSession,
    where: Where,
    ranges: Sequence[LogRange],
    limits: Mapping[str, Limits],
    isolation: Isolation = "read_uncommitted",
) -> dict[str, Measures]:
    """Of each topic everything its limits ask for. Ranges of one partition are in their order."""
    made = {topic: Measures() for topic in limits}
    if not ranges:
        return made
    floors = [NO_TIMESTAMP] * len(ranges)
    several = len({pair_of(each) for each in ranges}) < len(ranges)
    if several and any(each.judges_lateness for each in limits.values()):
        ranges, floors = in_turn(ranges, measure_headers(spark, where, ranges))
    task = MeasureRecords(dict(limits), tuple(floors), isolation)
    for topic, found in over_ranges(spark, where, ranges, task).collect():
        made[topic].add(found)
    return made


def in_turn(ranges: Sequence[LogRange], seen: Sequence[Seen]) -> tuple[list[LogRange], list[int]]:
    """The ranges moved to where batches begin, and of each the largest timestamp before it."""
    largest: dict[Pair, int] = {}
    reached: dict[Pair, int] = {}
    ends: dict[Pair, int] = {pair_of(part): part.end for part in ranges}
    moved, floors = [], []
    for part, (_, measures, behind) in zip(ranges, seen, strict=True):
        pair = pair_of(part)
        start = max(part.start, reached.get(pair, part.start))
        reached[pair] = end = min(max(start, part.end, behind), ends[pair])
        moved.append(replace(part, start=start, end=end))
        floors.append(largest.get(pair, NO_TIMESTAMP))
        largest[pair] = max(floors[-1], NO_TIMESTAMP if measures.newest is None else measures.newest)
    return moved, floors


@dataclass(frozen=True)
class MeasureHeaders:
    """Counts of a range by its batch headers; of a batch that the log begins in the middle of, by records."""

    begins: frozenset[int]
    """The numbers of the ranges with which a partition begins."""

    def __call__(self, logs: Logs, number: int, part: LogRange) -> Iterator[Seen]:
        made, behind = Measures(), part.start
        first: int | None = None
        for batch in batch_rows(
            logs, part, ("baseOffset", "lastOffset", "records", "maxTimestamp", "isControl")
        ):
            first = batch.column("baseOffset")[0].as_py() if first is None else first
            behind = batch.column("lastOffset")[-1].as_py() + 1
            batch = batch.filter(pc.invert(batch.column("isControl")))
            newest = pc.max(batch.column("maxTimestamp").cast(pa.int64())).as_py()
            made.add(
                Measures(
                    newest=None if newest is None else newest // 1000,
                    records=pc.sum(batch.column("records")).as_py() or 0,
                )
            )
        if number in self.begins and first != part.start:
            rest = replace(part, end=part.end if first is None else first)
            for batch in read(logs, rest, ("timestamp",)):
                times = pc.max(batch.column(0).cast(pa.int64())).as_py()
                made.add(Measures(newest=times // 1000, records=len(batch)))
        yield Seen(number, made, behind)


@dataclass(frozen=True)
class MeasureRecords:
    """Counts of a range by its records, reading only the columns that the topic's limits need."""

    limits: Mapping[str, Limits]
    floors: tuple[int, ...]
    isolation: Isolation

    def __call__(self, logs: Logs, number: int, part: LogRange) -> Iterator[tuple[str, Measures]]:
        limits = self.limits[part.topic]
        columns = ["timestamp"]
        sized = limits.min_bytes is not None or limits.max_bytes is not None
        if sized or limits.max_null_keys is not None:
            columns.append("key")
        if sized or limits.max_null_values is not None or limits.max_null_fields:
            columns.append("value")
        made, floor = Measures(), self.floors[number]
        for batch in read(logs, part, columns, self.isolation):
            found = Measures(records=len(batch))
            for name in columns[1:]:
                column = batch.column(name)
                found.bytes += pc.sum(pc.binary_length(column)).as_py() or 0
                setattr(found, f"null_{name}s", column.null_count)
            if limits.max_null_fields:
                found.null_fields = null_fields(batch.column("value"), tuple(limits.max_null_fields))
            times = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)
            times = times.filter(pc.greater(times, NO_TIMESTAMP))
            if len(times):
                # A start only the sum takes; so the floor goes in front, and is left out again.
                running = pc.cumulative_max(pa.concat_arrays([pa.array([floor], pa.int64()), times]))
                floor = running[-1].as_py()
                lateness = pc.subtract(running.slice(1), times)
                found.newest = pc.max(times).as_py()
                found.late = pc.sum(pc.greater(lateness, limits.late_after)).as_py()
                found.lateness = pc.max(lateness).as_py()
            made.add(found)
        yield part.topic, made


def null_fields(values: pa.Array, names: Sequence[str]) -> dict[str, int]:
    """How many of the values that are there lack each field, or have null in it.

    A name with dots goes into nested objects. What is not a JSON object lacks every field.
    """
    paths = [name.split(".") for name in names]
    nulls = [0] * len(names)
    for value in values.drop_null().to_pylist():
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            document = None
        for at, path in enumerate(paths):
            found = document
            for step in path:
                found = found.get(step) if isinstance(found, dict) else None
            nulls[at] += found is None
    return dict(zip(names, nulls, strict=True))
