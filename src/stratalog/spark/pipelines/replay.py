"""``replay``: a range of times or offsets, from a log, an archive or Parquet, into a topic, exactly once.

What is to be replayed is pinned when a replay begins; a run that died half way goes on with it, part by
part, each a commit that also notes down how far it is (see `ledger`). A replay that is done stays done,
until it is asked for ``again``. Records of a partition stay in their order.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql

from stratalog.config.units import format_time
from stratalog.errors import ConfigError
from stratalog.log.reader import Isolation
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
from stratalog.spark.pipelines.jobs import watched
from stratalog.spark.pipelines.ledger import TOPIC, Ledger, Scope, State
from stratalog.spark.pipelines.places import Path, paths_of
from stratalog.spark.pipelines.replay_plan import Moment, Plan, moment_ms, parts_of, said_of
from stratalog.spark.pipelines.replay_sources import (
    KEYED,
    PLACE,
    RECORD,
    Asked,
    LogSource,
    ParquetSource,
    Source,
    WholeOffsets,
)
from stratalog.spark.pipelines.result import PipelineResult, Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
