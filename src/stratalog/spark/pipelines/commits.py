"""One commit of the sink made of a DataFrame, under an id of the caller's: exactly once a (query, batch).

``df.write.format("stratalog")`` gives every write an id of its own, so a pipeline that died and is run
again would write twice. Here the id is the pipeline's. Tasks stage the rows (`stratalog.spark.sink`),
after a `Prepare` of the pipeline's has had them; Spark tells the commit what the tasks that count have
staged. There the staged files are put in order, rows of the driver's own are added (see `ledger`), and
the store takes it all in by one commit: everything, or nothing.

Crash policy: that of the sink. What was counted comes back to the driver in a file of the staging directory,
which goes as everything does that nobody will commit any more.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.errors import StorageError
from stratalog.format.journal import StagedFile
from stratalog.fs import RealFileSystem
from stratalog.spark.pipelines.failures import ours
from stratalog.spark.scans import quiet
from stratalog.spark.sink import DEFAULT_TIMEOUT_S, Sink, discard, never_committed
from stratalog.spark.staging import driver_of, stage_rows
from stratalog.store.journal.staging import Place, root_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("value", "key", "topic", "timestamp", "headers")
"""What rows must have when they are staged; `PARTITION` too where a commit asks for it."""
PARTITION = "partition"
SOURCE = "stratalog_commit"
_REPORT = "counts"

Order = tuple[str, int]
"""Where in the input the rows of a task come from; tasks are committed in this order, then in Spark's."""


@dataclass
class Tally:
    """What a task notes down while its rows pass."""

    counts: Counter[str] = field(default_factory=Counter)
    order: Order = ("", 0)


Prepare = Callable[[Iterator[pa.RecordBatch], Tally], Iterator[pa.RecordBatch]]
"""Runs in the tasks: rows of the frame in, rows with `COLUMNS` out. Picklable."""
Check = Callable[[Counter[str]], None]
"""Runs before the commit: raises when it must not be, and then nothing is taken in. Picklable."""
Note = Callable[[Counter[str]], pa.RecordBatch]
"""Runs before the commit: rows that belong to it, given what was counted. Picklable."""


@dataclass(frozen=True)
class Commit:
    """One (query, batch) of a store, to be written. ``job``: an id that is used once and then forgotten."""

    paths: tuple[str, ...]
    query: str
    batch: int
    job: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    owner: str = field(default_factory=driver_of)

    def write(
        self,
        frame: DataFrame,
        prepare: Prepare,
        *,
        partition: bool = False,
        check: Check | None = None,
        notes: Mapping[str, Note] | None = None,
    ) -> Counter[str]:
        """Write a frame's rows, and ``notes`` by topic; durable on return, and a no-op when this id was
        before.

        Tasks are committed in the order they tell. ``partition``: rows may say theirs. What the tasks counted
        is returned, also for a no-op: whether it was one the notes must tell.
        """
        columns = (*COLUMNS, PARTITION) if partition else COLUMNS
        sink = Sink(self.paths, None, columns, self.owner, self.timeout_s)
        writer = _Writer(self, sink, prepare, check, dict(notes or {}))
        spark = frame.sparkSession
        try:
            try:
                with _format(spark, writer) as name:
                    frame.write.format(name).mode("append").save()
            except (PySparkException, Py4JError) as error:
                told = ours(error)
                if told is None or "stratalog.errors." not in str(error):
                    raise
                raise told from error
            return Counter(json.loads(RealFileSystem().read_file(f"{self.report}/{_REPORT}")))
        finally:
            self.forget()

    @property
    def place(self) -> Place:
        return Place(self.query, self.batch, self.owner)

    @property
    def report(self) -> str:
        """Where the commit leaves what was counted. Named as a staged batch is, so it is swept as one."""
        return f"{root_of(self.paths[0])}/{Place(f'{self.query}.report', self.batch, self.owner).name}"

    def forget(self) -> None:
        fs = RealFileSystem()
        with suppress(FileNotFoundError, StorageError):
            fs.remove_tree(self.report)
        with suppress(FileNotFoundError, StorageError):
            fs.remove_dir(root_of(self.paths[0]))


@dataclass
class _Part(WriterCommitMessage):
    """What one task staged."""

    order: Order
    task: int
    files: list[StagedFile]
    counts: Counter[str]


class _Writer(DataSourceArrowWriter):
    """Travels to the tasks and to the commit."""

    def __init__(
        self, to: Commit, sink: Sink, prepare: Prepare, check: Check | None, notes: dict[str, Note]
    ) -> None:
        self.to = to
        self.sink = sink
        self.prepare = prepare
        self.check = check
        self.notes = notes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Part:
        tally = Tally()
        staged = self.sink.stage(self.prepare(iterator, tally), self.to.query, self.to.batch)
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        return _Part(tally.order, task, staged.files, tally.counts)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = [each for each in messages if isinstance(each, _Part)]
        counts: Counter[str] = Counter()
        for part in parts:
            counts += part.counts
        try:
            if self.check is not None:
                self.check(counts)
            files = [file for part in sorted(parts, key=_order) for file in part.files]
            files += self._noted(counts, len(parts))
            fs = RealFileSystem()
            fs.make_dir(self.to.report)
            fs.write_file(f"{self.to.report}/{_REPORT}", json.dumps(counts).encode(), sync=False)
        except BaseException:
            discard(self.to.paths, self.to.place)
            raise
        self.sink.commit(self.to.query, self.to.batch, files, job=self.to.job)

    def _noted(self, counts: Counter[str], task: int) -> list[StagedFile]:
        files: list[StagedFile] = []
        for topic, note in self.notes.items():
            files += stage_rows([note(counts)], self.to.paths, self.to.place, topic=topic, task=task)
        return files

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if never_committed(messages):
            discard(self.to.paths, self.to.place)


_busy: set[int] = set()
_busy_lock = threading.Lock()


@contextmanager
def _format(spark: SparkSession, writer: _Writer) -> Iterator[str]:
    """A format that is this writer. Names are used again, so that a session keeps few of them, but never by
    two commits at the same time."""
    with _busy_lock:
        slot = next(number for number in itertools.count() if number not in _busy)
        _busy.add(slot)
    try:
        name = f"{SOURCE}_{slot}"
        with quiet(spark, "org.apache.spark.sql.execution.datasources.DataSourceManager"):
            # The last one of the name is replaced, which Spark warns of.
            spark.dataSource.register(type("Once", (_Once,), {"made": writer, "known_as": name}))
        yield name
    finally:
        with _busy_lock:
            _busy.discard(slot)


class _Once(DataSource):
    """The way to `_Writer` through Spark: made anew for every commit, with the writer in it."""

    made: _Writer
    known_as: str

    @classmethod
    def name(cls) -> str:
        return cls.known_as

    def schema(self) -> StructType:
        return StructType([])

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:
        return self.made


def _order(part: _Part) -> tuple[Order, int]:
    return part.order, part.task


def with_topic(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Rows that all go to one topic."""
    return rows.append_column("topic", pa.repeat(pa.scalar(topic, pa.string()), rows.num_rows))


def json_rows(pairs: Sequence[tuple[Any, Any]]) -> pa.RecordBatch:
    """Keys and values, as JSON."""
    keys = [json.dumps(key).encode() for key, _ in pairs]
    values = [json.dumps(value).encode() for _, value in pairs]
    return pa.RecordBatch.from_pydict(
        {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    )
