"""``replay``: a range of times or offsets, from a log, an archive or Parquet, into a topic, exactly once.

The range is pinned when a replay starts; a run that died half way is continued part by part, each a commit
that also notes how far it is (see `pipeline_offsets`). A finished replay does nothing when it is run again,
unless with ``again``. Records of a partition stay in their order.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from stratalog.config.units import format_time
from stratalog.errors import ConfigError, CorruptionError, NotFoundError
from stratalog.log.read.reader import Isolation
from stratalog.spark.logs import opened
from stratalog.spark.offsets import (
    Pair,
    format_offsets,
    parse_offsets,
    parse_offsets_option,
    resolve,
)
from stratalog.spark.options import Subscription
from stratalog.spark.pipelines import PipelineResult, Progress, commits
from stratalog.spark.pipelines.commits import BYTES, DEAD_LETTERS, RECORDS, Admit, Commit, Tally
from stratalog.spark.pipelines.executors import (
    Moment,
    Path,
    moment_ms,
    names_of,
    paths_of,
    place_options,
    watched,
    where_of,
)
from stratalog.spark.pipelines.pipeline_offsets import TOPIC, PipelineOffsets, State, start_writing
from stratalog.spark.schema import HEADERS, SPARK_SCHEMA_WITH_HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# -- what is replayed --------------------------------------------------------------------------------
#
# Offsets of partitions, pinned once, in as many parts as there are commits. A plan is noted with the first
# part, so that a run that continues takes the same records, whatever was appended meanwhile.


class Extent(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def part(self, number: int, parts: int) -> Extent:
        """Return one of so many parts, which together are the whole."""
        length = self.end - self.start
        first, last = self.start + length * number // parts, self.start + length * (number + 1) // parts
        return self._replace(start=first, end=last)


@dataclass(frozen=True)
class Plan:
    """A whole replay."""

    extents: tuple[Extent, ...]
    since_ms: int | None = None
    until_ms: int | None = None
    parts: int = 1
    generation: int = 0
    """How often the same was replayed before."""

    def part(self, number: int) -> list[Extent]:
        """Return the extents of a part; it may be empty."""
        cut = (each.part(number, self.parts) for each in self.extents)
        return [each for each in cut if each.start < each.end]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"extents": [list(each) for each in self.extents]}

    @classmethod
    def from_json(cls, noted: Mapping[str, Any], where: str) -> Plan:
        try:
            return cls(
                tuple(Extent(str(t), int(p), int(s), int(e)) for t, p, s, e in noted["extents"]),
                noted["since_ms"],
                noted["until_ms"],
                int(noted["parts"]),
                int(noted["generation"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"not the plan of a replay: {error!r}", path=where) from None


# -- where from --------------------------------------------------------------------------------------
#
# A log, an archive, both as one; or Parquet, as ``export`` writes it. Changes nothing.


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
        """True if rows come in the order of their offsets, one partition after the other."""

    def extents(self, spark: SparkSession, asked: Asked) -> list[Extent]:
        """Pin what exists now."""

    def rows(
        self, spark: SparkSession, extents: Sequence[Extent], asked: Asked, names: Sequence[str]
    ) -> DataFrame:
        """Return the rows of extents: the columns of `PLACE` and ``names``."""


@dataclass(frozen=True)
class LogSource:
    """Log directories, an archive, or both as one log."""

    path: Path
    archive: str | None
    isolation: Isolation
    fail_on_data_loss: bool
    ordered: bool = True

    def extents(self, spark: SparkSession, asked: Asked) -> list[Extent]:
        if not asked.topics:
            raise ConfigError("topics: pass the topics to replay")
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
        starts = {(each.topic, each.partition): each.start for each in extents}
        ends = {(each.topic, each.partition): each.end for each in extents}
        options = {
            **place_options(self.path, self.archive),
            "assign": json.dumps(pairs),
            "startingOffsets": json.dumps(format_offsets(starts)),
            "endingOffsets": json.dumps(format_offsets(ends)),
            "isolationLevel": self.isolation,
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
        }
        fields = {field.name: field for field in SPARK_SCHEMA_WITH_HEADERS.fields}
        schema = StructType([fields[name] for name in names])
        return _in_time(spark.read.format("stratalog").options(**options).schema(schema).load(), asked)


@dataclass(frozen=True)
class ParquetSource:
    """Parquet with the columns of records. Of a Delta table the files of its newest version are read."""

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
        try:
            if os.path.isdir(os.path.join(local, "_delta_log")):
                from stratalog.spark.pipelines.lake.delta import committed_files

                files = committed_files(local)
                if not files:
                    raise NotFoundError(f"{self.parquet}: the table is empty; run export first")
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
                f"parquet: {self.parquet} has no column {', '.join(dict.fromkeys(missing))}; expected the"
                f" columns that export writes{how}"
            )
        return found.select(*(_cast(found, name).alias(name) for name in dict.fromkeys((*PLACE, *names))))


def _cast(found: DataFrame, name: str) -> Column:
    kind = {field.name: field.dataType for field in SPARK_SCHEMA_WITH_HEADERS.fields}[name]
    there = sql.col(name) if name in found.columns else sql.lit(None)
    return there.cast(kind)


def _spanned(rows: DataFrame) -> list[Extent]:
    """Return the extents that hold these rows."""
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
    """Parse the offsets that were named; earliest and latest bound nothing."""
    text = _text(given, "earliest").strip()
    if text.lower() in ("earliest", "latest"):
        return {}
    try:
        found = parse_offsets(json.loads(text))
    except ValueError as error:
        raise ConfigError(
            f'{what}: {text!r} cannot be read ({error}); expected JSON {{"topic": {{"0": 23}}}} for Parquet'
        ) from None
    return {pair: offset for pair, offset in found.items() if offset >= 0}


# -- the pipeline ------------------------------------------------------------------------------------


BATCH_RECORDS = 5_000_000
BROADCAST_ROWS = 1_000_000
"""Up to so many keys, the places of their latest records are sent to every executor."""
NO_TIMESTAMP_US = -1000
"""The timestamp of a record without one; it gets the time of the replay."""


def replay(
    spark: SparkSession,
    *,
    into: str,
    path: Path = None,
    archive: str | None = None,
    parquet: str | None = None,
    to_path: Path = None,
    topics: str | Sequence[str] | None = None,
    starting_offsets: WholeOffsets = None,
    ending_offsets: WholeOffsets = None,
    since: Moment = None,
    until: Moment = None,
    latest_per_key: bool = False,
    keep_partitions: bool = False,
    keep_timestamps: bool = True,
    isolation: Isolation = "read_committed",
    fail_on_data_loss: bool = True,
    partitions: int | None = None,
    dead_letter_topic: str | None = None,
    name: str | None = None,
    again: bool = False,
    batch_records: int = BATCH_RECORDS,
    progress: Progress | None = None,
) -> PipelineResult:
    """Write records of ``topics`` into the topic ``into`` of the store at ``to_path`` (``path`` unless
    given).

    From the log at ``path`` and ``archive``, or from ``parquet``: a directory as `export` writes it. Offsets
    are as in the source's options of those names; ``since`` and ``until`` are times of records, the end
    excluded. ``latest_per_key``: of each key only the latest record of the range, tombstones too; records
    without a key all stay. Partitions are chosen by key unless ``keep_partitions``; ``keep_timestamps`` False
    gives the time of the replay. A record that ``into`` does not take becomes a dead letter.

    Under the same ``name``, which is derived from the other arguments unless given, an unfinished replay is
    continued and a finished one does nothing, unless ``again``. ``partitions`` creates the topic if it is
    missing.
    """
    started = time.monotonic()
    target = paths_of(to_path) or paths_of(path)
    if not target:
        raise ConfigError("to_path: no store given for the records; pass a log directory")
    if parquet is None and not paths_of(path) and not archive:
        raise ConfigError("nothing to replay from: pass path, archive or parquet")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"isolation: expected read_committed or read_uncommitted, got {isolation!r}")
    now_ms = time.time_ns() // 1_000_000
    asked = Asked(
        names_of(topics),
        starting_offsets,
        ending_offsets,
        moment_ms(since, "since", now_ms),
        moment_ms(until, "until", now_ms),
    )
    source: Source = (
        ParquetSource(parquet)
        if parquet is not None
        else LogSource(paths_of(path), archive, isolation, fail_on_data_loss)
    )
    identity = {
        "path": None if parquet is not None else list(paths_of(path)),
        "archive": None if parquet is not None else archive,
        "parquet": parquet,
        "topics": sorted(asked.topics),
        "offsets": [starting_offsets, ending_offsets],
        "times": [None if each is None else str(each) for each in (since, until)],
        "how": [latest_per_key, keep_partitions, keep_timestamps, isolation],
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    offsets, admit = start_writing(
        "replay",
        target,
        into,
        name=name or digest,
        partitions=partitions,
        letters=dead_letter_topic,
        by_partition=keep_partitions,
    )
    job = _Job(spark, target, source, asked, offsets, admit, latest_per_key, keep_timestamps, progress)
    try:
        job.run(again, max(batch_records, 1))
    finally:
        job.close()
    return job.result(started)


@dataclass
class _Job:
    """One run."""

    spark: SparkSession
    paths: tuple[str, ...]
    source: Source
    asked: Asked
    offsets: PipelineOffsets
    admit: Admit
    latest_per_key: bool
    keep_timestamps: bool
    progress: Progress | None
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    plan: Plan | None = None
    winners: DataFrame | None = None
    few: bool = False

    def run(self, again: bool, most: int) -> None:
        state = self.offsets.read()
        plan, done = self._known(state)
        if plan is not None and not again:
            if done >= plan.parts:
                self.plan = plan
                self.notes.append(
                    "this replay was done before: nothing to do; again=True (--again) replays it once more"
                )
                return
            if done:
                self.notes.append(f"continued after part {done} of {plan.parts}")
        else:
            plan, done = self._planned(0 if plan is None else plan.generation + 1, most), 0
        self.plan = plan
        if not plan.extents:
            self.notes.append("no records there to replay")
            return
        while done < plan.parts:
            if not plan.part(done):
                done += 1
                continue
            rows = self._rows(plan, done)
            commit = Commit(self.paths, self.offsets.scope.query, state.batch)
            what = "replay" if plan.parts == 1 else f"replay part {done + 1} of {plan.parts}"
            with watched(self.spark, self.progress, what):
                counts = commit.write(
                    rows,
                    _Replayed(self.admit, self.keep_timestamps, not self.source.ordered),
                    partition=self.admit.partition,
                    notes=self.offsets.noted(commit.batch, {"plan": plan.to_json(), "part": done + 1}),
                )
            state = self.offsets.after(commit.batch)
            if self.offsets.is_mine(state, commit.batch):
                self.counts += counts
                done += 1
                continue
            # Another run of the same replay was first: what it noted counts.
            known, done = self._known(state)
            plan = known or plan

    def _known(self, state: State) -> tuple[Plan | None, int]:
        noted = state.last.get("plan")
        if noted is None:
            return None, 0
        return Plan.from_json(noted, TOPIC), int(state.last.get("part", 0))

    def _planned(self, generation: int, most: int) -> Plan:
        with watched(self.spark, self.progress, "looking what there is"):
            extents = tuple(self.source.extents(self.spark, self.asked))
        last, rules = max((each.partition for each in extents), default=0), self.admit.rules
        if self.admit.partition and last >= rules.partitions:
            raise ConfigError(
                f"keep_partitions: there is a partition {last}, and {rules.topic} has 0 to"
                f" {rules.partitions - 1}; add some, or leave keep_partitions out"
            )
        parts = max(1, -(-sum(each.end - each.start for each in extents) // most))
        return Plan(extents, self.asked.since_ms, self.asked.until_ms, parts, generation)

    # -- rows --------------------------------------------------------------------------------------------

    def _rows(self, plan: Plan, number: int) -> DataFrame:
        asked = replace(self.asked, since_ms=plan.since_ms, until_ms=plan.until_ms)
        rows = self.source.rows(self.spark, plan.part(number), asked, RECORD)
        if not self.latest_per_key:
            return rows if self.source.ordered else rows.orderBy(*PLACE)
        if self.winners is None:
            self.winners = self._latest(plan, asked).persist()
            with watched(self.spark, self.progress, "looking for the latest"):
                self.few = self.winners.count() <= BROADCAST_ROWS
        won = self.winners.withColumn("__won", sql.lit(True))
        kept = rows.join(sql.broadcast(won) if self.few else won, list(PLACE), "left")
        kept = kept.where(sql.col("key").isNull() | sql.col("__won")).select(*RECORD)
        # Rows that are joined where they are read keep their order.
        return kept if self.few and self.source.ordered else kept.orderBy(*PLACE)

    def _latest(self, plan: Plan, asked: Asked) -> DataFrame:
        """Find the latest record of each key. In a partition it is the one with the highest offset, as for
        compaction; of several partitions the one with the latest of these timestamps."""
        rows = self.source.rows(self.spark, plan.extents, asked, KEYED).where(sql.col("key").isNotNull())
        here = rows.groupBy("key", "topic", "partition").agg(
            sql.max("offset").alias("offset"), sql.max_by("timestamp", "offset").alias("timestamp")
        )
        last = here.groupBy("key").agg(sql.max(sql.struct("timestamp", *PLACE)).alias("it"))
        return last.select(*(sql.col(f"it.{name}").alias(name) for name in PLACE))

    def close(self) -> None:
        if self.winners is not None:
            self.winners.unpersist()

    def result(self, started: float) -> PipelineResult:
        assert self.plan is not None
        counts = {name: self.counts[name] for name in (RECORDS, DEAD_LETTERS, BYTES)}
        into, letters = self.admit.rules.topic, self.admit.letters.topic
        if dead := counts[DEAD_LETTERS]:
            self.notes.append(f"{dead:,} records that {into} does not take went to {letters}")
        for name, at_ms in (("since", self.plan.since_ms), ("until", self.plan.until_ms)):
            if at_ms is not None:
                self.notes.append(f"{name} {format_time(at_ms)}")
        details = {
            "topic": into,
            "name": self.offsets.scope.name,
            "dead_letter_topic": letters,
            **self.plan.to_json(),
            "range": [f"{e.topic}-{e.partition} {e.start} to {e.end - 1}" for e in self.plan.extents],
        }
        seconds = time.monotonic() - started
        return PipelineResult("replay", counts, details, tuple(self.notes), True, seconds)


@dataclass(frozen=True)
class _Replayed:
    """In the tasks: records as they were read become rows to be admitted. Picklable."""

    admit: Admit
    keep_timestamps: bool
    once: bool
    """Rows come sorted, and a record that occurs twice is taken once: files may overlap."""

    def __call__(self, batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        last: tuple[object, ...] | None = None
        for rows in batches:
            if not rows.num_rows:
                continue
            if last is None:
                first = [rows.column(name)[0].as_py() for name in PLACE]
                tally.order = (f"{first[0]}/{first[1]:010d}", first[2])
            here = tuple(rows.column(name)[rows.num_rows - 1].as_py() for name in PLACE)
            if self.once:
                rows = _without_doubles(rows, last)
            last = here
            if rows.num_rows:
                yield from self.admit.sorted_out(self._as_input(rows), tally)

    def _as_input(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        count = rows.num_rows
        text = [pc.cast(rows.column(name), pa.string()) for name in PLACE]
        where = pc.binary_join_element_wise(pc.binary_join_element_wise(text[0], text[1], "-"), text[2], "@")
        stamps = rows.column("timestamp")
        absent = pc.equal(pc.cast(stamps, pa.int64()), NO_TIMESTAMP_US)
        if pc.any(absent).as_py():
            stamps = pc.if_else(absent, pa.scalar(None, stamps.type), stamps)
        made = {
            "key": rows.column("key"),
            "value": rows.column("value"),
            "timestamp": stamps if self.keep_timestamps else pa.nulls(count, stamps.type),
            "headers": rows.column("headers"),
            commits.PARTITION: rows.column("partition"),
            commits.REASON: pa.nulls(count, pa.string()),
            commits.WHERE: where,
            commits.RAW: pa.nulls(count, pa.binary()),
            commits.START: rows.column("offset"),
        }
        return pa.RecordBatch.from_pydict({name: made[name] for name in commits.INPUT})


def _without_doubles(rows: pa.RecordBatch, last: tuple[object, ...] | None) -> pa.RecordBatch:
    """Return sorted rows without those that have the place of the row before them."""
    places = list(zip(*(rows.column(name).to_pylist() for name in PLACE), strict=True))
    fresh = [here != before for here, before in zip(places, [last, *places[:-1]], strict=True)]
    return rows if all(fresh) else rows.filter(pa.array(fresh))
