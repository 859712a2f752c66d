"""Work on ranges of the log: planned once on the driver, done by the kernel on the executors.

A pipeline that counts does not need rows in the JVM. `pinned` says which offsets of which partitions there
are now, `ranges_of` cuts them, and `over_ranges` runs a task of ours on each piece: the task reads its range
in the worker and only what it made of it leaves. Nothing on disk is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from stratalog.errors import ConfigError
from stratalog.log.reader import Isolation
from stratalog.spark.logs import Logs, opened
from stratalog.spark.loss import Losses
from stratalog.spark.options import Subscription, Where, parse_options
from stratalog.spark.pipelines.places import Path, place_options
from stratalog.spark.planning import RANGE_BYTES, LogRange, cut
from stratalog.spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import SparkSession

T_co = TypeVar("T_co", covariant=True)


class Task(Protocol[T_co]):
    """What an executor does with the range of that number. It is pickled, so it holds only plain values."""

    def __call__(self, logs: Logs, number: int, part: LogRange, /) -> Iterator[T_co]: ...


def where_of(path: Path, archive: str | None = None) -> Where:
    """Where the log is, as driver and executors open it; ConfigError when nothing says so."""
    return parse_options(place_options(path, archive)).where


def pinned(
    logs: Logs,
    topics: Sequence[str] | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    isolation: Isolation = "read_uncommitted",
) -> list[LogRange]:
    """What every partition of these topics, or of all, holds at this moment, empty ones too.

    With ``since_ms``, from the first record at that time or later on; with ``until_ms``, up to the first
    record at that time or later: what was appended between, whatever its own timestamps are.
    """
    extents = []
    chosen = (topics,) if isinstance(topics, str) else tuple(topics or ())
    for pair in logs.choose(Subscription(topics=chosen)):
        start, end = logs.start_offset(*pair), logs.end_offset(*pair, isolation)
        if since_ms is not None:
            found = logs.offset_for_time(*pair, since_ms, isolation)
            start = end if found is None else max(start, found)
        if until_ms is not None:
            found = logs.offset_for_time(*pair, until_ms, isolation)
            end = end if found is None else min(end, found)
        extents.append(LogRange(*pair, min(start, end), end))
    return extents


def ranges_of(spark: SparkSession, logs: Logs, extents: Sequence[LogRange]) -> list[LogRange]:
    """Extents cut into ranges, enough of them to keep every core busy."""
    return cut(logs, extents, min_partitions=parallelism(spark))


def parallelism(spark: SparkSession) -> int:
    """How many tasks run side by side; a guess under Spark Connect, which does not say."""
    if getattr(spark, "_jsparkSession", None) is None:
        return 8
    return max(spark.sparkContext.defaultParallelism, 1)


def over_ranges(spark: SparkSession, where: Where, ranges: Sequence[LogRange], task: Task[T_co]) -> RDD[T_co]:
    """What ``task`` makes of each range, in their order. Small ranges share a Spark task."""
    if getattr(spark, "_jsparkSession", None) is None:
        raise ConfigError(
            "this pipeline does not run through Spark Connect: give --master the cluster itself"
        )
    size = sum(each.size_bytes for each in ranges)
    tasks = max(1, min(len(ranges), max(parallelism(spark), -(-size // (RANGE_BYTES // 2)))))
    numbered = spark.sparkContext.parallelize(list(enumerate(ranges)), tasks)
    return numbered.mapPartitions(_OnRanges(where, task))


@dataclass(frozen=True)
class _OnRanges(Generic[T_co]):
    """Numbered ranges to what the task makes of them."""

    where: Where
    task: Task[T_co]

    def __call__(self, ranges: Iterable[tuple[int, LogRange]]) -> Iterator[T_co]:
        for number, part in ranges:
            with opened(self.where) as logs:
                yield from self.task(logs, number, part)


def read(
    logs: Logs, part: LogRange, columns: Sequence[str], isolation: Isolation = "read_uncommitted"
) -> Iterator[pa.RecordBatch]:
    """The records of a range; what retention takes away meanwhile is reported and left out."""
    return read_range(logs, part, columns, isolation, Losses(False))
