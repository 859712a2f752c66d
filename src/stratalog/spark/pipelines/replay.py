"""``replay``: a range of times or offsets, from a log, an archive or Parquet, into a topic, exactly once.

What is to be replayed is pinned when a replay begins; a run that died half way goes on with it, part by
part, each a commit that also notes down how far it is (see `ledger`). A replay that is done stays done,
until it is asked for ``again``. Records of a partition stay in their order.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from stratalog.config.units import format_time, parse_time
from stratalog.errors import ConfigError, CorruptionError, InvalidArgumentError, NotFoundError
from stratalog.log.read.reader import Isolation
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
from stratalog.spark.pipelines import dead_letters
from stratalog.spark.pipelines.admission import (
    BYTES,
    INPUT,
    RAW,
    REASON,
    RECORDS,
    START,
    WHERE,
    Admit,
    rules_of,
)
from stratalog.spark.pipelines.commits import PARTITION, Commit, Tally
from stratalog.spark.pipelines.executors import watched, where_of
from stratalog.spark.pipelines.ledger import TOPIC, Ledger, Scope, State
from stratalog.spark.pipelines.places import Path, paths_of, place_options
from stratalog.spark.pipelines.result import PipelineResult, Progress
from stratalog.spark.schema import HEADERS, SPARK_SCHEMA_WITH_HEADERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# -- what is replayed --------------------------------------------------------------------------------
#
# What a replay takes: offsets of partitions, pinned once, in as many parts as it has commits.
#
# Pure values. A plan is kept in the ledger with the first part, so that a run that goes on takes the very
# same records, whatever was appended meanwhile.


Moment = str | int | dt.datetime | None
"""``2026-01-01T12:00:00Z``, ``-10m``, epoch milliseconds, or a datetime; without a zone it is UTC."""
_UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def moment_ms(given: Moment, what: str, now_ms: int) -> int | None:
    """A moment in epoch milliseconds; ConfigError names the argument that is none."""
    if isinstance(given, dt.datetime):
        zoned = given if given.tzinfo is not None else given.replace(tzinfo=dt.UTC)
        return (zoned - _UTC_EPOCH) // dt.timedelta(milliseconds=1)
    if given is None:
        return None
    try:
        return parse_time(str(given), now_ms)
    except InvalidArgumentError as error:
        raise ConfigError(f"{what}: {error}") from None


class Extent(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    def part(self, number: int, parts: int) -> Extent:
        """One of so many parts, which together are the whole."""
        length = self.end - self.start
        first, last = self.start + length * number // parts, self.start + length * (number + 1) // parts
        return self._replace(start=first, end=last)


@dataclass(frozen=True)
class Plan:
    """All of a replay."""

    extents: tuple[Extent, ...]
    since_ms: int | None = None
    until_ms: int | None = None
    parts: int = 1
    generation: int = 0
    """How often the same was replayed anew before."""

    def part(self, number: int) -> list[Extent]:
        """What of the partitions a part takes; nothing of some, or of any."""
        cut = (each.part(number, self.parts) for each in self.extents)
        return [each for each in cut if each.start < each.end]

    def to_json(self) -> dict[str, Any]:
        return {
            "extents": [list(each) for each in self.extents],
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "parts": self.parts,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any], where: str) -> Plan:
        try:
            return cls(
                tuple(Extent(str(t), int(p), int(s), int(e)) for t, p, s, e in told["extents"]),
                told["since_ms"],
                told["until_ms"],
                int(told["parts"]),
                int(told["generation"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"not the plan of a replay: {error!r}", path=where) from None


def parts_of(extents: Sequence[Extent], most: int) -> int:
    """Into how many parts of about ``most`` offsets these are cut."""
    return max(1, -(-sum(each.end - each.start for each in extents) // most))


def said_of(extents: Sequence[Extent]) -> Iterator[str]:
    """For people."""
    for each in extents:
        yield f"{each.topic}-{each.partition} {each.start} to {each.end - 1}"


# -- where from --------------------------------------------------------------------------------------
#
# Where a replay reads: a log, an archive, both as one; or Parquet, as ``export`` writes it.
#
# A source pins what there is (`extents`) and gives the rows of such extents: ``topic``, ``partition`` and
# ``offset`` always, and what else of a record is asked for. Changes nothing.


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


# -- the pipeline ------------------------------------------------------------------------------------


BATCH_RECORDS = 5_000_000
BROADCAST_ROWS = 1_000_000
"""Of so many keys the places of their latest records are sent to every executor."""
NO_TIMESTAMP_US = -1000
"""What a record without a timestamp has; it gets the time of the replay."""


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

    From the log at ``path`` and ``archive``, or from ``parquet``: a directory as `export` writes it.
    Offsets are as in the source's options of those names; ``since`` and ``until`` are times of records,
    the end excluded. ``latest_per_key``: of each key only the latest record of the range, tombstones too;
    records without a key all stay. Partitions are chosen by key unless ``keep_partitions``;
    ``keep_timestamps`` False gives the time of the replay. A record that ``into`` does not take becomes a
    dead letter.

    Under the same ``name``, which the other arguments make unless it is given, an unfinished replay is
    gone on with and a finished one does nothing, unless ``again``. ``partitions`` makes the topic when it
    is missing.
    """
    started = time.monotonic()
    target = paths_of(to_path) or paths_of(path)
    if not target:
        raise ConfigError("to_path: nothing says which store the records go to; give a log directory")
    if parquet is None and not paths_of(path) and not archive:
        raise ConfigError("nothing says what to replay: give path, archive or parquet")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"isolation: {isolation!r} is neither read_committed nor read_uncommitted")
    chosen = (topics,) if isinstance(topics, str) else tuple(topics or ())
    now_ms = time.time_ns() // 1_000_000
    asked = Asked(
        chosen,
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
    told = {
        "path": None if parquet is not None else list(paths_of(path)),
        "archive": None if parquet is not None else archive,
        "parquet": parquet,
        "topics": sorted(chosen),
        "offsets": [starting_offsets, ending_offsets],
        "times": [None if each is None else str(each) for each in (since, until)],
        "how": [latest_per_key, keep_partitions, keep_timestamps, isolation],
    }
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    job = _Job(spark, target, into, source, asked, latest_per_key, keep_partitions, keep_timestamps, progress)
    job.prepare(name or digest, partitions, dead_letter_topic or dead_letters.topic_for(into))
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
    into: str
    source: Source
    asked: Asked
    latest_per_key: bool
    keep_partitions: bool
    keep_timestamps: bool
    progress: Progress | None
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)
    ledger: Ledger = field(init=False)
    admit: Admit = field(init=False)
    winners: DataFrame | None = None
    few: bool = False

    def prepare(self, name: str, partitions: int | None, letters: str) -> None:
        wanted: dict[str, tuple[int | None, Mapping[str, str]]] = {letters: (1, dead_letters.CONFIG)}
        if partitions is not None:
            wanted[self.into] = (partitions, {})
        else:
            rules_of(self.paths, self.into)
        scope = Scope("replay", self.into, "", name)
        Ledger(self.paths, scope).prepare(wanted)
        rules = rules_of(self.paths, self.into)
        self.ledger = Ledger(self.paths, replace(scope, topic_id=rules.topic_id))
        room = rules_of(self.paths, letters).max_batch_bytes
        self.admit = Admit(rules, letters, room, f"replay {self.into}", self.keep_partitions)
        self.details |= {"topic": self.into, "name": name, "dead_letter_topic": letters}

    def run(self, again: bool, most: int) -> None:
        state = self.ledger.read()
        plan, done = self._known(state)
        if plan is not None and done < plan.parts and not again:
            if done:
                self.notes.append(f"gone on with after part {done} of {plan.parts}")
        elif plan is not None and not again:
            self._describe(plan)
            self.notes.append(
                "this replay was done before: nothing to do; again=True (--again) replays it once more"
            )
            return
        else:
            plan, done = self._planned(0 if plan is None else plan.generation + 1, most), 0
        self._describe(plan)
        if not plan.extents:
            self.notes.append("no records there to replay")
            return
        while done < plan.parts:
            part = plan.part(done)
            if not part:
                done += 1
                continue
            asked = replace(self.asked, since_ms=plan.since_ms, until_ms=plan.until_ms)
            rows = self._rows(plan, done, asked)
            commit = Commit(self.paths, self.ledger.scope.query, state.batch)
            facts = {"plan": plan.to_json(), "part": done + 1}
            what = "replay" if plan.parts == 1 else f"replay part {done + 1} of {plan.parts}"
            with watched(self.spark, self.progress, what):
                counts = commit.write(
                    rows,
                    _Replayed(self.admit, self.keep_timestamps, not self.source.ordered),
                    partition=self.keep_partitions,
                    notes=self.ledger.noted(commit.batch, facts),
                )
            state = self.ledger.after(commit.batch)
            if self.ledger.is_mine(state, commit.batch):
                self.counts += counts
                done += 1
                continue
            # Another run of the same replay was first: what it noted down counts.
            known, done = self._known(state)
            plan = known or plan

    def _known(self, state: State) -> tuple[Plan | None, int]:
        told = state.last.get("plan")
        if told is None:
            return None, 0
        return Plan.from_json(told, TOPIC), int(state.last.get("part", 0))

    def _planned(self, generation: int, most: int) -> Plan:
        with watched(self.spark, self.progress, "looking what there is"):
            extents = tuple(self.source.extents(self.spark, self.asked))
        self._check_partitions(extents)
        parts = parts_of(extents, most)
        return Plan(extents, self.asked.since_ms, self.asked.until_ms, parts, generation)

    def _check_partitions(self, extents: Sequence[tuple[str, int, int, int]]) -> None:
        most = max((each[1] for each in extents), default=0)
        if self.keep_partitions and most >= self.admit.rules.partitions:
            raise ConfigError(
                f"keep_partitions: there is a partition {most}, and {self.into} has 0 to"
                f" {self.admit.rules.partitions - 1}; add some, or let keys choose"
            )

    def _describe(self, plan: Plan) -> None:
        self.details |= {**plan.to_json(), "range": list(said_of(plan.extents))}

    # -- rows --------------------------------------------------------------------------------------------

    def _rows(self, plan: Plan, number: int, asked: Asked) -> DataFrame:
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
        # What is joined where it is read keeps its order.
        return kept if self.few and self.source.ordered else kept.orderBy(*PLACE)

    def _latest(self, plan: Plan, asked: Asked) -> DataFrame:
        """Where the latest record of each key is. In a partition the one with the highest offset, as for
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
        counts = {name: self.counts[name] for name in (RECORDS, dead_letters.COUNT, BYTES)}
        if dead := counts[dead_letters.COUNT]:
            self.notes.append(f"{dead:,} records that {self.into} does not take went to {self.admit.letters}")
        for name in ("since_ms", "until_ms"):
            if isinstance(at := self.details.get(name), int):
                self.notes.append(f"{name.removesuffix('_ms')} {format_time(at)}")
        seconds = time.monotonic() - started
        return PipelineResult("replay", counts, self.details, tuple(self.notes), True, seconds)


@dataclass(frozen=True)
class _Replayed:
    """In the tasks: records as they were read become rows to be admitted. Picklable."""

    admit: Admit
    keep_timestamps: bool
    once: bool
    """Rows come sorted, and one that is there twice is taken once: files may overlap."""

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
        if pc.any(pc.equal(pc.cast(stamps, pa.int64()), NO_TIMESTAMP_US)).as_py():
            absent = pc.equal(pc.cast(stamps, pa.int64()), NO_TIMESTAMP_US)
            stamps = pc.if_else(absent, pa.scalar(None, stamps.type), stamps)
        made = {
            "key": rows.column("key"),
            "value": rows.column("value"),
            "timestamp": stamps if self.keep_timestamps else pa.nulls(count, stamps.type),
            "headers": rows.column("headers"),
            PARTITION: rows.column("partition"),
            REASON: pa.nulls(count, pa.string()),
            WHERE: where,
            RAW: pa.nulls(count, pa.binary()),
            START: rows.column("offset"),
        }
        return pa.RecordBatch.from_pydict({name: made[name] for name in INPUT})


def _without_doubles(rows: pa.RecordBatch, last: tuple[object, ...] | None) -> pa.RecordBatch:
    """Sorted rows without those that are where the one before them is."""
    places = list(zip(*(rows.column(name).to_pylist() for name in PLACE), strict=True))
    fresh = [here != before for here, before in zip(places, [last, *places[:-1]], strict=True)]
    return rows if all(fresh) else rows.filter(pa.array(fresh))
