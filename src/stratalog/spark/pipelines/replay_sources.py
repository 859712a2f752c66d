"""Where a replay reads: a log, an archive, both as one; or Parquet, as ``export`` writes it.

A source pins what there is (`extents`) and gives the rows of such extents: ``topic``, ``partition`` and
``offset`` always, and what else of a record is asked for. Changes nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from stratalog.errors import ConfigError, NotFoundError
from stratalog.log.reader import Isolation
from stratalog.spark.logs import opened
from stratalog.spark.offsets import (
    Offsets,
    Pair,
    format_offsets,
    parse_offsets,
    parse_offsets_option,
    resolve,
)
from stratalog.spark.options import Subscription
from stratalog.spark.pipelines.places import Path, place_options
from stratalog.spark.pipelines.ranges import where_of
from stratalog.spark.pipelines.replay_plan import Extent
from stratalog.spark.schema import HEADERS, SPARK_SCHEMA_WITH_HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PLACE = ("topic", "partition", "offset")
KEYED = (*PLACE, "key", "timestamp")
RECORD = (*KEYED, "value", "headers")
WholeOffsets = str | Mapping[str, Mapping[str, int]] | None
"""As the source's options have them: ``earliest``, ``latest``, or offsets by topic and partition."""


@dataclass(frozen=True)
class Asked:
    """Which records. Times are of records, [since, until), whatever their order."""

    topics: tuple[str, ...] = ()
    starting: WholeOffsets = None
    ending: WholeOffsets = None
    since_ms: int | None = None
    until_ms: int | None = None


class Source(Protocol):
    """Something to replay from."""

    @property
    def ordered(self) -> bool:
        """Whether rows come in the order of their offsets, a partition after the other."""

    def extents(self, spark: SparkSession, asked: Asked) -> list[Extent]: ...

    def rows(
        self, spark: SparkSession, extents: Sequence[Extent], asked: Asked, names: Sequence[str]
    ) -> DataFrame: ...


@dataclass(frozen=True)
class LogSource:
    """Log directories, an archive, or both as one log."""

    path: Path
    archive: str | None
    isolation: Isolation
    fail_on_data_loss: bool
    ordered: bool = True

    def extents(self, spark: SparkSession, asked: Asked) -> list[Extent]:
        """Offsets that there are now; with times, only as far as records of such times are."""
        if not asked.topics:
            raise ConfigError("topics: say which to replay")
        first = parse_offsets_option("starting_offsets", _text(asked.starting, "earliest"))
        last = parse_offsets_option("ending_offsets", _text(asked.ending, "latest"))
        now_ms = time.time_ns() // 1_000_000
        with opened(where_of(self.path, self.archive)) as logs:
            pairs = logs.choose(Subscription(topics=asked.topics))
            starts = resolve(first, logs, pairs, isolation=self.isolation, now_ms=now_ms)
            ends = resolve(last, logs, pairs, isolation=self.isolation, now_ms=now_ms)
            if asked.since_ms is not None:
                for pair in pairs:
                    found = logs.offset_for_time(*pair, asked.since_ms, self.isolation)
                    starts[pair] = ends[pair] if found is None else max(starts[pair], found)
        made = [Extent(*pair, starts[pair], ends[pair]) for pair in pairs if starts[pair] < ends[pair]]
        if asked.until_ms is None or not made:
            return made
        return _spanned(self.rows(spark, made, asked, (*PLACE, "timestamp")))

    def rows(
        self, spark: SparkSession, extents: Sequence[Extent], asked: Asked, names: Sequence[str]
    ) -> DataFrame:
        pairs: dict[str, list[int]] = {}
        for each in extents:
            pairs.setdefault(each.topic, []).append(each.partition)
        starts: Offsets = {(each.topic, each.partition): each.start for each in extents}
        ends: Offsets = {(each.topic, each.partition): each.end for each in extents}
        told = {
            **place_options(self.path, self.archive),
            "assign": json.dumps(pairs),
            "startingOffsets": json.dumps(format_offsets(starts)),
            "endingOffsets": json.dumps(format_offsets(ends)),
            "isolationLevel": self.isolation,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }
        fields = {field.name: field for field in SPARK_SCHEMA_WITH_HEADERS.fields}
        schema = StructType([fields[name] for name in names])
        return _in_time(spark.read.format("stratalog").options(**told).schema(schema).load(), asked)


@dataclass(frozen=True)
class ParquetSource:
    """Parquet with the columns of records. Of an output of ``export`` only what is committed is read."""

    parquet: str
    ordered: bool = False

    def extents(self, spark: SparkSession, asked: Asked) -> list[Extent]:
        rows = _in_time(self._read(spark, (*PLACE, "timestamp")), asked)
        if asked.topics:
            rows = rows.where(sql.col("topic").isin(*asked.topics))
        starts, ends = _bounds("starting_offsets", asked.starting), _bounds("ending_offsets", asked.ending)
        made = []
        for each in _spanned(rows):
            pair = (each.topic, each.partition)
            start, end = max(each.start, starts.get(pair, 0)), min(each.end, ends.get(pair, each.end))
            if start < end:
                made.append(each._replace(start=start, end=end))
        return made

    def rows(
        self, spark: SparkSession, extents: Sequence[Extent], asked: Asked, names: Sequence[str]
    ) -> DataFrame:
        windows = spark.createDataFrame(
            [tuple(each) for each in extents], "topic string, partition int, __start bigint, __end bigint"
        )
        rows = _in_time(self._read(spark, names), asked).where(
            sql.col("topic").isin(*{each.topic for each in extents})
            & sql.col("offset").between(
                min(each.start for each in extents), max(each.end for each in extents) - 1
            )
        )
        inside = (sql.col("offset") >= sql.col("__start")) & (sql.col("offset") < sql.col("__end"))
        return rows.join(sql.broadcast(windows), ["topic", "partition"]).where(inside).select(*names)

    def _read(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        local = self.parquet.removeprefix("file://")
        exported = os.path.isdir(os.path.join(local, "_stratalog"))
        try:
            if exported:
                from stratalog.spark.pipelines.export import committed_files

                files = committed_files(local)
                if not files:
                    raise NotFoundError(f"{self.parquet}: nothing has been exported there")
                found = spark.read.option("basePath", local).parquet(*files)
            else:
                found = spark.read.parquet(self.parquet)
        except AnalysisException as error:
            line = str(error).strip().partition("\n")[0]
            raise NotFoundError(f"parquet: {line[:500]}") from None
        missing = [name for name in (*PLACE, *names) if name not in found.columns and name != HEADERS.name]
        if missing:
            how = "; export it with keep_value" if "value" in missing else ""
            raise ConfigError(
                f"parquet: {self.parquet} has no column {', '.join(dict.fromkeys(missing))}, takes the"
                f" columns that export writes{how}"
            )
        return found.select(*(_cast(found, name).alias(name) for name in dict.fromkeys((*PLACE, *names))))


def _cast(found: DataFrame, name: str) -> Column:
    kind = {field.name: field.dataType for field in SPARK_SCHEMA_WITH_HEADERS.fields}[name]
    there = sql.col(name) if name in found.columns else sql.lit(None)
    return there.cast(kind)


def _spanned(rows: DataFrame) -> list[Extent]:
    """The extents that hold these rows."""
    found = rows.groupBy("topic", "partition").agg(sql.min("offset"), sql.max("offset") + 1).collect()
    return sorted(Extent(*row) for row in found)


def _in_time(rows: DataFrame, asked: Asked) -> DataFrame:
    if asked.since_ms is not None:
        rows = rows.where(sql.col("timestamp") >= sql.timestamp_millis(sql.lit(asked.since_ms)))
    if asked.until_ms is not None:
        rows = rows.where(sql.col("timestamp") < sql.timestamp_millis(sql.lit(asked.until_ms)))
    return rows


def _text(given: WholeOffsets, default: str) -> str:
    if given is None:
        return default
    return given if isinstance(given, str) else json.dumps(given)


def _bounds(what: str, given: WholeOffsets) -> dict[Pair, int]:
    """Offsets that were named; earliest and latest bound nothing."""
    text = _text(given, "earliest").strip()
    if text.lower() in ("earliest", "latest"):
        return {}
    try:
        told = parse_offsets(json.loads(text))
    except ValueError as error:
        raise ConfigError(
            f'{what}: {text!r} cannot be read ({error}), takes JSON {{"topic": {{"0": 23}}}} for Parquet'
        ) from None
    return {pair: offset for pair, offset in told.items() if offset >= 0}
