"""``ingest``: files, or any DataFrame, into a topic, exactly once.

Key, value, timestamp, partition and headers are SQL expressions over the columns of the input; partitions are
those the Java client would choose. A row that cannot be read, or makes no record the topic takes, becomes a
dead letter and does not hold up the others.

Files are taken whole, a batch of them in each commit; the same commit notes which (see `pipeline_offsets`).
So a run that died half way is continued, and a later run takes only new files, however they are named on the
command line. Within a commit, and from commit to commit, records come in the order of the files' names.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import functions as sql
from pyspark.sql import types
from pyspark.sql.types import StringType, StructField, StructType

from stratalog.config.units import format_bytes
from stratalog.errors import ConfigError, CorruptionError, InvalidRecordError, NotFoundError
from stratalog.spark.pipelines import PipelineResult, Progress, commits
from stratalog.spark.pipelines.commits import (
    BYTES,
    DEAD_LETTERS,
    PARTITION,
    RECORDS,
    WHY,
    Admit,
    Commit,
    Note,
)
from stratalog.spark.pipelines.executors import Path, names_of, paths_of, slots, watched
from stratalog.spark.pipelines.pipeline_offsets import PipelineOffsets, State, start_writing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# -- files -------------------------------------------------------------------------------------------
#
# Spark finds the files, so everything it can read can be ingested: local paths, ``s3a://``, ``hdfs://``;
# names, patterns and directories, which are searched recursively. Names that begin with ``_`` or ``.`` are
# skipped: write a file under such a name and rename it when it is complete.


FORMATS = ("json", "csv", "parquet")
BAD, RAW, FILE, START = "__bad", "__raw", "__file", "__start"
"""Beside the columns of a file: what could not be read, the line, the file, where in it Spark began to
read."""
SHOWN = {"_line": RAW, "_file": FILE}
"""Names under which expressions may use them, where the file has none of the kind."""
UNREADABLE = {
    "json": "the line is not a JSON object that fits the schema",
    "csv": "the line does not fit the columns",
}
_EXTENSIONS = {"json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet"}
_SUFFIX = re.compile(r"\.(\w+)(?:\.(?:gz|bz2|zst|zstd|lz4|snappy|deflate|xz))?\Z", re.IGNORECASE)
_GLOB = re.compile(r"([\\*?\[\]{}])")


@dataclass(frozen=True, order=True)
class File:
    """One file, as Spark lists it. ``url`` names it in `pipeline_offsets` and dead letters."""

    url: str
    path: str
    size_bytes: int
    modified_ms: int

    def facts(self) -> dict[str, object]:
        return {"size": self.size_bytes, "modified_ms": self.modified_ms}


def find_files(spark: SparkSession, names: Sequence[str]) -> list[File]:
    """Return every file that matches these names, sorted; raise NotFoundError if a name matches none."""
    if not names:
        raise ConfigError("no files given: pass files, patterns or directories")
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        rows = (
            reader.load(list(names))
            .select("_metadata.file_path", "path", "length", sql.unix_millis("modificationTime"))
            .collect()
        )
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise NotFoundError(str(error).partition("] ")[2].partition(" SQLSTATE")[0]) from None
        raise
    return sorted({File(*row) for row in rows})


def format_of(files: Sequence[File]) -> str:
    """Return the format by the files' names; raise ConfigError if they have none, or several."""
    found = set()
    for file in files:
        match = _SUFFIX.search(file.path)
        kind = _EXTENSIONS.get(match[1].lower()) if match else None
        if kind is None:
            raise ConfigError(
                f"the name of {file.path} does not show its format; pass the format: {', '.join(FORMATS)}"
            )
        found.add(kind)
    if len(found) > 1:
        raise ConfigError(
            f"files of more than one format ({', '.join(sorted(found))}); ingest one format at a time"
        )
    return found.pop()


@dataclass(frozen=True)
class Input:
    """How files are read. ``options`` are those of Spark's reader for the format."""

    format: str
    schema: StructType | None
    options: Mapping[str, str]

    def read(self, spark: SparkSession, files: Sequence[File], *, columns: bool) -> DataFrame:
        """Return their rows, with `BAD`, `RAW`, `FILE` and `START`. ``columns`` False: none of JSON's columns
        is used."""
        paths = [_GLOB.sub(r"\\\1", file.path) for file in files]
        if self.format == "json":
            rows = self._json(spark, paths, columns)
        elif self.format == "csv":
            rows = self._csv(spark, paths)
        else:
            rows = self._with_place(spark.read.options(**self.options).parquet(*paths), None, None)
        shown = {name: sql.col(real) for name, real in SHOWN.items() if real in rows.columns}
        return rows.withColumns({name: at for name, at in shown.items() if name not in rows.columns})

    def _json(self, spark: SparkSession, paths: list[str], columns: bool) -> DataFrame:
        schema = self.schema or StructType([])
        if self.schema is None and columns:
            inferred = spark.read.options(**self.options).option("columnNameOfCorruptRecord", BAD).json(paths)
            schema = StructType([each for each in inferred.schema.fields if each.name != BAD])
        options = {**self.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        text = {name: self.options[name] for name in ("lineSep", "encoding") if name in self.options}
        lines = spark.read.options(**text).text(paths)
        lines = lines.where(sql.length(sql.btrim("value", sql.lit(" \t\r\n"))) > 0)
        parsed = lines.select(
            sql.from_json(
                "value", StructType([*schema.fields, StructField(BAD, StringType())]), options
            ).alias("__row"),
            sql.col("value").cast("binary").alias(RAW),
            sql.col("_metadata.file_path").alias(FILE),
            sql.col("_metadata.file_block_start").alias(START),
        )
        return parsed.select("__row.*", RAW, FILE, START)

    def _csv(self, spark: SparkSession, paths: list[str]) -> DataFrame:
        options = {"header": "true", **self.options}
        schema = self.schema or spark.read.options(**options).csv(paths[:1]).schema
        rows = (
            spark.read.options(**options)
            .schema(StructType([*schema.fields, StructField(BAD, StringType())]))
            .option("mode", "PERMISSIVE")
            .option("columnNameOfCorruptRecord", BAD)
            .option("columnPruning", "false")  # else a line is only parsed up to the last selected column
            .option("enforceSchema", "false")  # columns in another order are an error, not other columns
            .csv(paths)
        )
        return self._with_place(rows, BAD, schema.names)

    def _with_place(self, rows: DataFrame, bad: str | None, names: list[str] | None) -> DataFrame:
        columns = [sql.col(quoted(name)) for name in (names or rows.columns)]
        broken = sql.lit(None).cast("string") if bad is None else sql.col(bad)
        return rows.select(
            *columns,
            broken.alias(BAD),
            broken.cast("binary").alias(RAW),
            sql.col("_metadata.file_path").alias(FILE),
            sql.col("_metadata.file_block_start").alias(START),
        )


def explain(reason: str, raw: bytes | None) -> str:
    """Add to the reason why a line is not JSON; runs in the tasks."""
    if reason != UNREADABLE["json"] or raw is None:
        return reason
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return f"{reason}: {error}"
    return reason if isinstance(found, dict) else f"{reason}: it is {type(found).__name__}, not an object"


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change the session's settings for the block."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


# -- rows --------------------------------------------------------------------------------------------
#
# Rows of any frame as records, by SQL expressions; a row that gives none keeps its place and has a reason.


LAST_MS = 253_402_300_799_999
"""The end of the year 9999, Spark's last time."""
_HEADERS = "array<struct<key: string, value: binary>>"
_TIMES = (types.TimestampType, types.TimestampNTZType, types.DateType, StringType, types.NullType)


@dataclass(frozen=True)
class Expressions:
    """The parts of a record as expressions over a row, in Spark's SQL."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    partition: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    allow_null: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if wrong := sorted(self.allow_null - {"key", "value"}):
            raise ConfigError(f"allow_null: expected key, value or both, got {', '.join(wrong)}")

    @property
    def any(self) -> bool:
        """True if any column is used."""
        return bool(self.key or self.value or self.timestamp or self.partition or self.headers)

    def apply(self, rows: DataFrame, unreadable: str) -> DataFrame:
        """Return rows with the columns `commits.INPUT`; raise ConfigError for an expression that is wrong.

        Rows of files have `BAD`, `RAW`, `FILE` and `START`; a frame of the user's has none of them.
        """
        inner = (BAD, RAW, FILE, START)
        own = [name for name in rows.columns if name not in (*inner, *SHOWN)]
        from_file = FILE in rows.columns
        raw = sql.col(RAW) if from_file else _none("binary")
        if own:
            columns = sql.struct(*(sql.col(quoted(name)) for name in own))
            whole = sql.to_json(columns, {"ignoreNullFields": "false"})
            raw = sql.coalesce(raw, whole.cast("binary"))
        value = raw if self.value is None else self._bytes(rows, "value", self.value)
        made = rows.select(
            (_none("binary") if self.key is None else self._bytes(rows, "key", self.key)).alias("key"),
            value.alias("value"),
            self._timestamp(rows).alias("timestamp"),
            self._header_list(rows).alias("headers"),
            self._partition(rows).alias(PARTITION),
            (sql.col(BAD) if from_file else _none("string")).alias("bad"),
            (sql.col(FILE) if from_file else sql.lit("a DataFrame")).alias(commits.WHERE),
            raw.alias(commits.RAW),
            (sql.col(START) if from_file else sql.lit(0).cast("bigint")).alias(commits.START),
        )
        reason = self._reason(unreadable)
        made = made.withColumn(commits.REASON, reason)
        # What a record was made of matters only where none was made.
        dead = sql.when(sql.col(commits.REASON).isNotNull(), sql.col(commits.RAW))
        return made.withColumn(commits.RAW, dead).select(*commits.INPUT)

    def _reason(self, unreadable: str) -> Column:
        reason = sql.when(sql.col("bad").isNotNull(), sql.lit(unreadable))
        if self.timestamp is not None:
            why = f"the timestamp's expression {self.timestamp!r} gives no time from 1970 to 9999"
            reason = reason.when(sql.col("timestamp").isNull(), sql.lit(why))
        for name, text in (("key", self.key), ("value", self.value)):
            if text is not None and name not in self.allow_null:
                why = f"the {name}'s expression {text!r} gives null"
                reason = reason.when(sql.col(name).isNull(), sql.lit(why))
        return reason

    def _bytes(self, rows: DataFrame, what: str, text: str) -> Column:
        """Return a value as bytes: text as UTF-8, structs, arrays and maps as JSON."""
        kind = _type_of(rows, what, text)
        found = sql.expr(text)
        if isinstance(kind, types.BinaryType):
            return found
        if isinstance(kind, (StructType, types.ArrayType, types.MapType, types.VariantType)):
            found = sql.to_json(found)
        return found.cast("string").cast("binary")

    def _timestamp(self, rows: DataFrame) -> Column:
        if self.timestamp is None:
            return _none("timestamp")
        kind, found = _type_of(rows, "timestamp", self.timestamp), sql.expr(self.timestamp)
        if isinstance(kind, types.IntegralType):
            found = found.cast("bigint")
            return sql.when(found.between(0, LAST_MS), sql.timestamp_millis(found))
        if not isinstance(kind, _TIMES):
            raise ConfigError(
                f"timestamp: the expression {self.timestamp!r} gives {kind.simpleString()}; expected a"
                " timestamp, a date, ISO text or whole epoch milliseconds"
            )
        found = found.cast("timestamp")
        return sql.when(
            found.between(sql.timestamp_millis(sql.lit(0)), sql.timestamp_millis(sql.lit(LAST_MS))), found
        )

    def _partition(self, rows: DataFrame) -> Column:
        if self.partition is None:
            return _none("int")
        kind = _type_of(rows, "partition", self.partition)
        if not isinstance(kind, (types.IntegralType, types.NullType)):
            raise ConfigError(
                f"partition: the expression {self.partition!r} gives {kind.simpleString()}; expected a whole"
                " number"
            )
        # A number that is no int must stay wrong.
        wide = sql.expr(self.partition).cast("bigint")
        return sql.when(wide.between(0, 2**31 - 1), wide.cast("int")).when(wide.isNotNull(), sql.lit(-1))

    def _header_list(self, rows: DataFrame) -> Column:
        if not self.headers:
            return _none(_HEADERS)
        pairs = [
            sql.struct(sql.lit(name).alias("key"), self._bytes(rows, f"header {name!r}", text).alias("value"))
            for name, text in self.headers.items()
        ]
        return sql.array(*pairs).cast(_HEADERS)


def _type_of(rows: DataFrame, what: str, text: str) -> types.DataType:
    try:
        return rows.select(sql.expr(text).alias("it")).schema["it"].dataType
    except (AnalysisException, ParseException) as error:
        first = str(error).strip().partition("\n")[0]
        names = [name for name in rows.columns if not name.startswith("__")]
        raise ConfigError(
            f"{what}: the expression {text!r} is wrong: {first[:300]}; the columns are"
            f" {', '.join(names[:40]) or 'none'}"
        ) from None


def _none(kind: str) -> Column:
    return sql.lit(None).cast(kind)


# -- the pipeline ------------------------------------------------------------------------------------


Changed = Literal["report", "ingest", "skip"]
CHANGED = ("report", "ingest", "skip")

BATCH_BYTES = 1 << 30
BATCH_FILES = 1000
SMALLEST_SPLIT = 4 << 20
LARGEST_SPLIT = 128 << 20
_SPLIT = "spark.sql.files.maxPartitionBytes"
_OPEN_COST = "spark.sql.files.openCostInBytes"
_LENIENT = {"spark.sql.ansi.enabled": "false"}
"""What cannot be computed is null, and the row a dead letter, instead of failing the job."""
_BAD_FILE = re.compile(r"FAILED_READ_FILE[\w.]*\] Encountered error while reading file (\S+?)\.\s")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+?)(?=^\t|\Z)", re.MULTILINE | re.DOTALL)


def ingest(
    spark: SparkSession,
    *,
    path: Path,
    topic: str,
    files: str | Sequence[str] | None = None,
    frame: DataFrame | None = None,
    format: str | None = None,
    schema: str | StructType | None = None,
    options: Mapping[str, object] | None = None,
    key: str | None = None,
    value: str | None = None,
    timestamp: str | None = None,
    headers: Mapping[str, str] | None = None,
    partition: str | None = None,
    allow_null: Sequence[str] = (),
    partitions: int | None = None,
    dead_letter_topic: str | None = None,
    max_dead_letters: int | None = None,
    name: str | None = None,
    changed: Changed = "report",
    ordered: bool = True,
    batch_bytes: int = BATCH_BYTES,
    batch_files: int = BATCH_FILES,
    archive: str | None = None,
    progress: Progress | None = None,
) -> PipelineResult:
    """Write ``files`` (names, patterns, directories) or a ``frame`` into a topic, each exactly once.

    ``format`` is json (one object a line), csv or parquet, by the files' names unless given; ``schema`` the
    columns, as Spark writes them (``"id bigint, at timestamp"``), inferred for JSON and all text for CSV
    unless given; ``options`` are those of Spark's reader. The expressions may also use ``_file`` and, in
    JSON, ``_line``. Without ``value`` a record is the line as it is, or the row as JSON. ``timestamp`` gives
    a timestamp, ISO text or epoch milliseconds; without it records get the time of their ingestion. A null
    key or value is a dead letter unless ``allow_null`` names it.

    ``partitions`` creates the topic if it is missing. More than ``max_dead_letters`` in a batch of files
    raise InvalidRecordError, and nothing of the batch is taken in; without it that happens when a first batch
    has not one row that can be taken. ``name`` tells apart ingests of the same files into the same topic; a
    frame is ingested once under its name, and each time without one. ``changed`` decides about a file that
    was ingested and has changed since: ``report`` leaves it and makes the result not ``ok``. ``ordered``
    False reads many small files faster, in no order.
    """
    started = time.monotonic()
    paths = paths_of(path)
    if not paths:
        raise ConfigError(
            "ingest writes to a log directory: pass path"
            + (", an archive cannot be written" if archive else "")
        )
    if (files is None) == (frame is None):
        raise ConfigError("ingest takes either files or a frame: pass one of them")
    if frame is not None and frame.isStreaming:
        raise ConfigError("the frame is a stream: write it with writeStream.format('stratalog')")
    if changed not in CHANGED:
        raise ConfigError(f"changed: expected one of {', '.join(CHANGED)}, got {changed!r}")
    if format is not None and format not in FORMATS:
        raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    made = Expressions(key, value, timestamp, partition, dict(headers or {}), frozenset(allow_null))
    offsets, admit = start_writing(
        "ingest",
        paths,
        topic,
        name=name or topic,
        partitions=partitions,
        letters=dead_letter_topic,
        by_partition=partition is not None,
        explain=explain,
    )
    job = _Job(spark, paths, topic, offsets, admit, made, max_dead_letters, progress)
    if frame is not None:
        with settings(spark, _LENIENT):
            job.frame(frame, once=name is not None)
        return job.result(started)
    names = names_of(files)
    with watched(spark, progress, "listing files"):
        found = find_files(spark, names)
    if not found:
        job.notes.append(f"no files match {', '.join(names)}")
    else:
        how = _input(format or format_of(found), schema, options)
        job.files(found, how, changed, ordered, max(batch_bytes, 1), max(batch_files, 1))
    return job.result(started)


def _input(format: str, schema: str | StructType | None, options: Mapping[str, object] | None) -> Input:
    columns: types.DataType | None = schema if isinstance(schema, StructType) else None
    if isinstance(schema, str):
        try:
            columns = StructType.fromDDL(schema)
        except ParseException as error:
            line = str(error).strip().partition("\n")[0]
            raise ConfigError(f'schema: {line}; write "id bigint, at timestamp"') from None
    if columns is not None and not isinstance(columns, StructType):
        raise ConfigError(
            f'schema: expected a list of columns such as "id bigint, at timestamp", got {schema!r}'
        )
    texts = {
        key: str(each).lower() if isinstance(each, bool) else str(each)
        for key, each in (options or {}).items()
    }
    return Input(format, columns, texts)


@dataclass
class _Job:
    """One run."""

    spark: SparkSession
    paths: tuple[str, ...]
    topic: str
    offsets: PipelineOffsets
    admit: Admit
    made: Expressions
    max_dead_letters: int | None
    progress: Progress | None
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)
    ok: bool = True

    # -- a frame -----------------------------------------------------------------------------------------

    def frame(self, frame: DataFrame, *, once: bool) -> None:
        name = self.offsets.scope.name
        state = self.offsets.read() if once else State()
        if once and state.last:
            self.notes.append(f"a frame was ingested under the name {name!r} before: nothing done")
            return
        query = self.offsets.scope.query if once else f"ingest-{uuid.uuid4()}"
        commit = Commit(self.paths, query, state.batch if once else 0, job=not once)
        notes = self.offsets.noted(commit.batch) if once else {}
        rows = self.made.apply(frame, "")
        counts = self._write(commit, rows, f"ingest into {self.topic}", first=True, notes=notes)
        if once and not self.offsets.is_mine(self.offsets.after(commit.batch), commit.batch):
            self.notes.append(f"another run ingested a frame under the name {name!r}: nothing done")
            return
        self.counts += counts

    # -- files -------------------------------------------------------------------------------------------

    def files(
        self,
        found: list[File],
        how: Input,
        changed: Changed,
        ordered: bool,
        batch_bytes: int,
        batch_files: int,
    ) -> None:
        state = self.offsets.read()
        others = [file for file in found if _differs(file, state)]
        again = {file.url for file in others} if changed == "ingest" else set()
        before = sum(1 for file in found if file.url in state.done and file.url not in again)
        if others and changed == "report":
            self._report_changed(others)
        total = sum(file.size_bytes for file in found if file.url not in state.done or file.url in again)
        done = 0
        while True:
            todo = [file for file in found if file.url not in state.done or file.url in again]
            if not todo:
                break
            batch = _cut(todo, batch_bytes, batch_files)
            several = len(batch) < len(todo) or done
            what = f"ingest {format_bytes(done)} of {format_bytes(total)}" if several else "ingest"
            commit = Commit(self.paths, self.offsets.scope.query, state.batch)
            marks = {file.url: file.facts() for file in batch}
            notes = self.offsets.noted(commit.batch, {"files": len(batch)}, marks)
            counts = self._read(commit, batch, how, ordered, what, notes)
            state = self.offsets.after(commit.batch)
            if self.offsets.is_mine(state, commit.batch, batch[0].url):
                self.counts += counts
                self.counts["files"] += len(batch)
                self.counts["batches"] += 1
            again = {file.url for file in batch if _differs(file, state)} | again - set(marks)
            done += sum(file.size_bytes for file in batch)
        self.details |= {"files_before": before, "files_changed": [file.url for file in others]}
        if before:
            self.notes.append(f"{before:,} file{'s were' if before > 1 else ' was'} ingested before")

    def _report_changed(self, others: list[File]) -> None:
        self.ok = False
        shown = ", ".join(file.url for file in others[:5]) + (" …" if len(others) > 5 else "")
        self.notes.append(
            f"{len(others)} ingested before and changed since, left alone: {shown}; changed='ingest'"
            " takes them once more, whole, 'skip' ignores them"
        )

    def _read(
        self, commit: Commit, batch: list[File], how: Input, ordered: bool, what: str, notes: dict[str, Note]
    ) -> Counter[str]:
        conf = dict(_LENIENT)
        if ordered:
            # Each piece of a file is a task of its own, so that they can be put in order.
            size = sum(file.size_bytes for file in batch) // (2 * slots(self.spark))
            split = str(min(max(size, SMALLEST_SPLIT), LARGEST_SPLIT))
            conf |= {_SPLIT: split, _OPEN_COST: split}
        with settings(self.spark, conf), _bad_files_named():
            with watched(self.spark, self.progress, "looking at columns"):
                rows = how.read(self.spark, batch, columns=self.made.any)
                rows = self.made.apply(rows, UNREADABLE.get(how.format, ""))
            return self._write(commit, rows, what, first=commit.batch == 0, notes=notes)

    def _write(
        self, commit: Commit, rows: DataFrame, what: str, *, first: bool, notes: dict[str, Note]
    ) -> Counter[str]:
        limit = _Limit(self.max_dead_letters, first)
        with watched(self.spark, self.progress, what):
            return commit.write(rows, self.admit, partition=self.admit.partition, check=limit, notes=notes)

    def result(self, started: float) -> PipelineResult:
        counts = {name: self.counts[name] for name in ("files", RECORDS, DEAD_LETTERS, BYTES)}
        letters = self.admit.letters.topic
        if dead := counts[DEAD_LETTERS]:
            self.notes.append(f"{dead:,} to {letters}: {_reasons(self.counts)}")
        details = {
            "topic": self.topic,
            "dead_letter_topic": letters,
            "name": self.offsets.scope.name,
            **self.details,
            "batches": self.counts["batches"],
            "reasons": {each.removeprefix(WHY): n for each, n in self.counts.items() if each.startswith(WHY)},
        }
        seconds = time.monotonic() - started
        return PipelineResult("ingest", counts, details, tuple(self.notes), self.ok, seconds)


@dataclass(frozen=True)
class _Limit:
    """Raises when there are too many dead letters. Picklable: the commit calls it."""

    most: int | None
    first: bool

    def __call__(self, counts: Counter[str]) -> None:
        dead = counts[DEAD_LETTERS]
        if self.most is None and self.first and dead and not counts[RECORDS]:
            raise InvalidRecordError(
                f"none of the {dead:,} rows can be ingested: {_reasons(counts)}; nothing was ingested. Pass"
                " max_dead_letters to make them all dead letters"
            )
        if self.most is not None and dead > self.most:
            raise InvalidRecordError(
                f"{dead:,} rows cannot be ingested, max_dead_letters is {self.most:,}: {_reasons(counts)};"
                " nothing of this batch was ingested"
            )


@contextmanager
def _bad_files_named() -> Iterator[None]:
    """Raise a CorruptionError with the file's name instead of a page of Java."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        file, cause = _BAD_FILE.search(text), _CAUSE.search(text)
        if file is None:
            raise
        why = " ".join((cause[1] if cause else text).split())[:500]
        raise CorruptionError(
            f"{why}; nothing of this batch was ingested: repair the file, or leave it out", path=file[1]
        ) from error


def _differs(file: File, state: State) -> bool:
    known = state.done.get(file.url)
    return known is not None and (known.get("size"), known.get("modified_ms")) != (
        file.size_bytes,
        file.modified_ms,
    )


def _cut(files: list[File], most_bytes: int, most_files: int) -> list[File]:
    """Return the first of the files, as many as fit into a batch, and at least one."""
    size = 0
    for count, file in enumerate(files):
        size += file.size_bytes
        if count and (size > most_bytes or count >= most_files):
            return files[:count]
    return files


def _reasons(counts: Counter[str]) -> str:
    found = sorted(
        ((n, each.removeprefix(WHY)) for each, n in counts.items() if each.startswith(WHY)), reverse=True
    )
    shown = [f"{n:,} × {each}" for n, each in found[:3]]
    return "; ".join(shown) + ("; …" if len(found) > 3 else "")
