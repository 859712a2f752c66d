"""``ingest``: files, or any DataFrame, into a topic, exactly once.

Key, value, timestamp, partition and headers are SQL expressions over the columns of the input; partitions
are those the Java client would choose. A row that cannot be read, or makes no record the topic takes,
becomes a dead letter and does not hold up the others.

Files are taken whole, a batch of them in each commit; the same commit notes down which (see `ledger`). So
a run that died half way is gone on with, and a later run takes only the files that are new, however they
are named on the command line. Within a commit, and from commit to commit, records come in the order of
the files' names.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from py4j.protocol import Py4JError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql.types import DataType, StructType

from stratalog.config.units import format_bytes
from stratalog.errors import ConfigError, CorruptionError, InvalidRecordError
from stratalog.spark.pipelines import dead_letters
from stratalog.spark.pipelines.admission import BYTES, RECORDS, WHY, Admit, rules_of
from stratalog.spark.pipelines.commits import Commit, Note
from stratalog.spark.pipelines.ingest_files import (
    FORMATS,
    UNREADABLE,
    File,
    Input,
    explain,
    find_files,
    format_of,
    settings,
)
from stratalog.spark.pipelines.ingest_rows import Expressions
from stratalog.spark.pipelines.jobs import watched
from stratalog.spark.pipelines.ledger import Ledger, Scope, State
from stratalog.spark.pipelines.places import Path, paths_of
from stratalog.spark.pipelines.ranges import parallelism
from stratalog.spark.pipelines.result import PipelineResult, Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """Bring ``files`` (names, patterns, directories) or a ``frame`` into a topic, each exactly once.

    ``format`` is json (one object a line), csv or parquet, by the files' names unless given; ``schema``
    the columns, as Spark writes them (``"id bigint, at timestamp"``), inferred for JSON and all text for
    CSV unless given; ``options`` are those of Spark's reader. The expressions may also use ``_file`` and,
    in JSON, ``_line``. Without ``value`` a record is the line as it is, or the row as JSON. ``timestamp``
    gives a timestamp, ISO text or epoch milliseconds; without it records get the time of their ingestion.
    A null key or value is a dead letter unless ``allow_null`` names it.

    ``partitions`` makes the topic when it is missing. More than ``max_dead_letters`` in a batch of files
    are an InvalidRecordError, and nothing of the batch is taken in; without it that is so when a first
    batch has not one row that could be taken. ``name`` tells apart ingests of the same files into the
    same topic; a frame is ingested once under its name, and each time without one. ``changed`` says what
    to do with a file that was ingested and is another now: ``report`` leaves it and makes the result not
    ``ok``. ``ordered`` False reads many small files faster, in no order.
    """
    started = time.monotonic()
    paths = paths_of(path)
    if not paths:
        raise ConfigError(
            "ingest writes to a log directory: give path"
            + (", an archive cannot be written" if archive else "")
        )
    if (files is None) == (frame is None):
        raise ConfigError("ingest takes files or a frame, one of them")
    if frame is not None and frame.isStreaming:
        raise ConfigError("the frame is a stream: write it with writeStream.format('stratalog')")
    if changed not in CHANGED:
        raise ConfigError(f"changed: {changed!r} is none of {', '.join(CHANGED)}")
    said = Expressions(key, value, timestamp, partition, dict(headers or {}), frozenset(allow_null))
    letters = dead_letter_topic or dead_letters.topic_for(topic)
    job = _Job(spark, paths, topic, letters, said, max_dead_letters, progress)
    job.prepare(name, partitions)
    if frame is not None:
        with settings(spark, _LENIENT):
            job.frame(frame, once=name is not None)
        return job.result(started)
    names = [files] if isinstance(files, str) else list(files or ())
    with watched(spark, progress, "listing files"):
        found = find_files(spark, names)
    if not found:
        job.notes.append(f"no files behind {', '.join(names)}")
    else:
        how = _input(spark, format or format_of(found), schema, options)
        job.files(found, how, changed, ordered, max(batch_bytes, 1), max(batch_files, 1))
    return job.result(started)


def _input(
    spark: SparkSession,
    format: str,
    schema: str | StructType | None,
    options: Mapping[str, object] | None,
) -> Input:
    if format not in FORMATS:
        raise ConfigError(f"format: {format!r} is none of {', '.join(FORMATS)}")
    columns: DataType | None = schema if isinstance(schema, StructType) else None
    if isinstance(schema, str):
        try:
            columns = StructType.fromDDL(schema)
        except ParseException as error:
            line = str(error).strip().partition("\n")[0]
            raise ConfigError(f'schema: {line}; write "id bigint, at timestamp"') from None
    if columns is not None and not isinstance(columns, StructType):
        raise ConfigError(f'schema: {schema!r} is no list of columns; write "id bigint, at timestamp"')
    told = {
        key: str(each).lower() if isinstance(each, bool) else str(each)
        for key, each in (options or {}).items()
    }
    return Input(format, columns, told)


@dataclass
class _Job:
    """One run."""

    spark: SparkSession
    paths: tuple[str, ...]
    topic: str
    letters: str
    said: Expressions
    max_dead_letters: int | None
    progress: Progress | None
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)
    ok: bool = True
    ledger: Ledger = field(init=False)
    admit: Admit = field(init=False)

    def prepare(self, name: str | None, partitions: int | None) -> None:
        wanted: dict[str, tuple[int | None, Mapping[str, str]]] = {self.letters: (1, dead_letters.CONFIG)}
        if partitions is not None:
            wanted[self.topic] = (partitions, {})
        else:
            rules_of(self.paths, self.topic)
        scope = Scope("ingest", self.topic, "", name or self.topic)
        Ledger(self.paths, scope).prepare(wanted)
        rules = rules_of(self.paths, self.topic)
        self.ledger = Ledger(self.paths, replace(scope, topic_id=rules.topic_id))
        self.admit = Admit(
            rules,
            self.letters,
            rules_of(self.paths, self.letters).max_batch_bytes,
            f"ingest {self.topic}",
            self.said.partition is not None,
            explain,
        )
        self.details |= {"topic": self.topic, "dead_letter_topic": self.letters, "name": name or self.topic}

    # -- a frame -----------------------------------------------------------------------------------------

    def frame(self, frame: DataFrame, *, once: bool) -> None:
        state = self.ledger.read() if once else State()
        if once and state.last:
            self.notes.append(
                f"a frame was ingested under the name {self.ledger.scope.name!r} before: nothing done"
            )
            return
        query = self.ledger.scope.query if once else f"ingest-{uuid.uuid4()}"
        commit = Commit(self.paths, query, state.batch if once else 0, job=not once)
        notes = self.ledger.noted(commit.batch) if once else {}
        rows = self.said.apply(frame, "")
        counts = self._write(commit, rows, f"ingest into {self.topic}", first=True, notes=notes)
        if once and not self.ledger.is_mine(self.ledger.after(commit.batch), commit.batch):
            self.notes.append(
                f"another run ingested a frame under the name {self.ledger.scope.name!r}: nothing done"
            )
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
        state = self.ledger.read()
        others = [file for file in found if _differs(file, state)]
        again = {file.url for file in others} if changed == "ingest" else set()
        before = sum(1 for file in found if file.url in state.done and file.url not in again)
        if others and changed == "report":
            self._tell_changed(others)
        total = sum(file.size_bytes for file in found if file.url not in state.done or file.url in again)
        done = 0
        while True:
            todo = [file for file in found if file.url not in state.done or file.url in again]
            if not todo:
                break
            batch = _cut(todo, batch_bytes, batch_files)
            what = (
                f"ingest {format_bytes(done)} of {format_bytes(total)}"
                if len(batch) < len(todo) or done
                else "ingest"
            )
            commit = Commit(self.paths, self.ledger.scope.query, state.batch)
            marks = {file.url: file.facts() for file in batch}
            notes = self.ledger.noted(commit.batch, {"files": len(batch)}, marks)
            counts = self._read(commit, batch, how, ordered, what, notes)
            state = self.ledger.after(commit.batch)
            if self.ledger.is_mine(state, commit.batch, batch[0].url):
                self.counts += counts
                self.counts["files"] += len(batch)
                self.counts["batches"] += 1
            again = {file.url for file in batch if _differs(file, state)} | again - set(marks)
            done += sum(file.size_bytes for file in batch)
        self.details |= {"files_before": before, "files_changed": [file.url for file in others]}
        if before:
            self.notes.append(f"{before:,} file{'s were' if before > 1 else ' was'} ingested before")

    def _tell_changed(self, others: list[File]) -> None:
        self.ok = False
        shown = ", ".join(file.url for file in others[:5]) + (" …" if len(others) > 5 else "")
        self.notes.append(
            f"{len(others)} ingested before and changed since, left alone: {shown}; changed='ingest'"
            " takes them once more, whole, 'skip' leaves them in peace"
        )

    def _read(
        self, commit: Commit, batch: list[File], how: Input, ordered: bool, what: str, notes: dict[str, Note]
    ) -> Counter[str]:
        conf = dict(_LENIENT)
        if ordered:
            # Each piece of a file a task of its own, so that they can be put in order.
            size = sum(file.size_bytes for file in batch) // (2 * parallelism(self.spark))
            split = str(min(max(size, SMALLEST_SPLIT), LARGEST_SPLIT))
            conf |= {_SPLIT: split, _OPEN_COST: split}
        with settings(self.spark, conf), _bad_files_named():
            with watched(self.spark, self.progress, "looking at columns"):
                rows = how.read(self.spark, batch, columns=self.said.any)
                rows = self.said.apply(rows, UNREADABLE.get(how.format, ""))
            return self._write(commit, rows, what, first=commit.batch == 0, notes=notes)

    def _write(
        self, commit: Commit, rows: DataFrame, what: str, *, first: bool, notes: dict[str, Note]
    ) -> Counter[str]:
        limit = _Limit(self.max_dead_letters, first)
        with watched(self.spark, self.progress, what):
            return commit.write(rows, self.admit, partition=self.admit.partition, check=limit, notes=notes)

    def result(self, started: float) -> PipelineResult:
        counts = {name: self.counts[name] for name in ("files", RECORDS, dead_letters.COUNT, BYTES)}
        if dead := counts[dead_letters.COUNT]:
            self.notes.append(f"{dead:,} to {self.letters}: {_reasons(self.counts)}")
        reasons = {each.removeprefix(WHY): n for each, n in self.counts.items() if each.startswith(WHY)}
        details = self.details | {"batches": self.counts["batches"], "reasons": reasons}
        seconds = time.monotonic() - started
        return PipelineResult("ingest", counts, details, tuple(self.notes), self.ok, seconds)


@dataclass(frozen=True)
class _Limit:
    """Whether so many dead letters are all right. Picklable: the commit asks."""

    most: int | None
    first: bool

    def __call__(self, counts: Counter[str]) -> None:
        dead = counts[dead_letters.COUNT]
        if self.most is None and self.first and dead and not counts[RECORDS]:
            raise InvalidRecordError(
                f"not one of {dead:,} rows can be taken: {_reasons(counts)}; nothing was ingested. With"
                " max_dead_letters they all become dead letters"
            )
        if self.most is not None and dead > self.most:
            raise InvalidRecordError(
                f"{dead:,} rows cannot be taken, max_dead_letters is {self.most:,}: {_reasons(counts)};"
                " nothing of this batch was ingested"
            )


@contextmanager
def _bad_files_named() -> Iterator[None]:
    """A file that is not what it should be is a CorruptionError with its name, instead of a page of Java."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        file, cause = _BAD_FILE.search(text), _CAUSE.search(text)
        if file is None:
            raise
        why = " ".join((cause[1] if cause else text).split())[:500]
        raise CorruptionError(
            f"{why}; nothing of this batch was ingested: mend the file, or leave it out", path=file[1]
        ) from error


def _differs(file: File, state: State) -> bool:
    known = state.done.get(file.url)
    return known is not None and (known.get("size"), known.get("modified_ms")) != (
        file.size_bytes,
        file.modified_ms,
    )


def _cut(files: list[File], most_bytes: int, most_files: int) -> list[File]:
    """The first of the files, as many as fit into a batch, and at least one."""
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
    told = [f"{n:,} × {each}" for n, each in found[:3]]
    return "; ".join(told) + ("; …" if len(found) > 3 else "")
