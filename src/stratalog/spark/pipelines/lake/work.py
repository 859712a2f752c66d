"""The work of an export on the executors: ranges of the log in, Parquet files out, facts about them back.

A Spark task is one `Task`: ranges of one topic, read by the kernel and written by Arrow in the worker's
process. Only facts about the files travel to the driver. Every attempt writes under names of its own, so
failed and speculative attempts disturb nobody; the driver commits what the attempts that counted say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from stratalog.errors import InvalidRecordError
from stratalog.log.read.reader import Isolation
from stratalog.spark.logs import Logs, opened
from stratalog.spark.loss import Losses
from stratalog.spark.options import Where
from stratalog.spark.pipelines.lake.files import DataFile, DateFiles, Target
from stratalog.spark.pipelines.lake.payload import Payload, decode
from stratalog.spark.pipelines.lake.places import Place, place_of, told
from stratalog.spark.planning import LogRange
from stratalog.spark.reading import read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LETTERS_PLACE = "_dead_letters"
"""Below the target: ``_dead_letters/<run>/….parquet``. Readers of a table skip what begins with ``_``."""
COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")
"""Of a record; the topic is in the file's path, as Hive has it."""
SMALLEST_TASK_BYTES = 16 << 20
LARGEST_TASK_BYTES = 512 << 20
ROUNDS = 3
"""Tasks for each core, at least: the last to end should not be waited for long."""
LETTERS = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("reason", pa.string()), ("where", pa.string())]
)
LETTERS_TABLE = "key binary, value binary, reason string, where string"


@dataclass(frozen=True)
class Task:
    """Ranges of one topic whose records go into the same files."""

    number: int
    topic: str
    ranges: tuple[LogRange, ...]


@dataclass(frozen=True)
class Letters:
    """A file with records of one topic that could not be decoded. ``name`` is relative to the target."""

    topic: str
    partition: int
    name: str
    records: int
    start: int = 0
    end: int = 0
    """The range of offsets it belongs to, where files hold one range each."""


@dataclass(frozen=True)
class PlaceTarget:
    """A `Target` below a directory or a prefix of an object store."""

    url: str

    def begin(self, name: str) -> Any:
        return self._place.begin(name)

    def finish(self, name: str, sink: Any) -> int:
        return self._place.finish(name, sink)

    def address(self, name: str) -> str:
        return self._place.address(name)

    def reading(self, name: str) -> Any:
        return self._place.reading(name)

    @property
    def _place(self) -> Place:
        return _place(self.url)


@lru_cache(maxsize=8)
def _place(url: str) -> Place:
    return place_of(url)


@dataclass(frozen=True)
class Written:
    """What an attempt of a task wrote."""

    files: tuple[DataFile, ...]
    letters: tuple[Letters, ...] = ()


@dataclass(frozen=True)
class Exporting:
    """What every task of a run does; travels to the executors."""

    where: Where
    target: Target
    run: str
    isolation: Isolation
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    payloads: tuple[tuple[str, Payload], ...]
    keep_value: bool
    compression: str
    split: bool
    """Whether each range has files of its own."""

    def __call__(self, task: Task) -> Written:
        prefix = f"{self.run}-{task.number:05d}-{attempt()}"
        with opened(self.where) as logs:
            if not self.split:
                return self._write(logs, task.topic, task.ranges, prefix, (0, 0))
            done = [
                self._write(logs, task.topic, (part,), f"{prefix}-{number}", (part.start, part.end))
                for number, part in enumerate(task.ranges)
            ]
        return Written(
            tuple(file for each in done for file in each.files),
            tuple(file for each in done for file in each.letters),
        )

    def _write(
        self, logs: Logs, topic: str, ranges: Sequence[LogRange], prefix: str, span: tuple[int, int]
    ) -> Written:
        payload = dict(self.payloads).get(topic)
        files = DateFiles(self.target, prefix, topic, compression=self.compression, span=span)
        letters = LetterFile(self.target, f"{LETTERS_PLACE}/{self.run}/{prefix}.parquet")
        for part in ranges:
            for batch in self._read(logs, part):
                if payload is not None:
                    batch, failed, reasons = decode(batch, payload)
                    letters.add(part, failed, reasons)
                    if not self.keep_value:
                        batch = batch.drop_columns(["value"])
                files.add(batch)
        return Written(tuple(files.finish()), letters.finish(ranges[0], span))

    def _read(self, logs: Logs, part: LogRange) -> Iterator[pa.RecordBatch]:
        losses = Losses(self.fail_on_data_loss)
        try:
            yield from read_rows(logs, part, self.columns, self.isolation, losses)
        except pa.ArrowInvalid as error:
            raise InvalidRecordError(
                f"{part.topic}-{part.partition}: offsets {part.start} to {part.end - 1} hold a record that"
                f" cannot be written: {error}"
            ) from error


class LetterFile:
    """The records of one attempt that could not be decoded, in a file of their own."""

    def __init__(self, target: Target, name: str) -> None:
        self._target = target
        self._name = name
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._records = 0

    def add(self, part: LogRange, failed: pa.RecordBatch, reasons: Sequence[str]) -> None:
        if not failed.num_rows:
            return
        where = [f"{part.topic}-{part.partition}@{each}" for each in failed.column("offset").to_pylist()]
        said = [failed.column("key"), failed.column("value"), pa.array(reasons, pa.string()), pa.array(where)]
        with told(self._target.address(self._name)):
            if self._writer is None:
                self._sink = self._target.begin(self._name)
                self._writer = pq.ParquetWriter(self._sink, LETTERS, compression="zstd")
            self._writer.write_batch(pa.RecordBatch.from_arrays(said, schema=LETTERS))
        self._records += failed.num_rows

    def finish(self, part: LogRange, span: tuple[int, int]) -> tuple[Letters, ...]:
        if self._writer is None:
            return ()
        with told(self._target.address(self._name)):
            self._writer.close()
            self._target.finish(self._name, self._sink)
        return (Letters(part.topic, part.partition, self._name, self._records, *span),)


@dataclass(frozen=True)
class ReadingLetters:
    """Files of dead letters as rows, on the executors."""

    target: Target
    files: tuple[str, ...]

    def __call__(self, number: int) -> Iterator[tuple[object, ...]]:
        source = pq.ParquetFile(self.target.reading(self.files[number]))
        for batch in source.iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def frame(self, spark: SparkSession) -> DataFrame:
        rows = spark.sparkContext.parallelize(range(len(self.files)), len(self.files)).flatMap(self)
        return spark.createDataFrame(rows, LETTERS_TABLE)


def attempt() -> int:
    """An id that no other attempt of a task of this run has."""
    context = TaskContext.get()
    return 0 if context is None else context.taskAttemptId()


def tasks_of(ranges: Iterable[LogRange], parallelism: int) -> list[Task]:
    """Ranges bundled: those of small partitions share a task and its files, the largest tasks come first."""
    every = list(ranges)
    total = sum(each.size_bytes for each in every)
    share = total // (ROUNDS * max(parallelism, 1))
    worth = min(max(share, SMALLEST_TASK_BYTES), LARGEST_TASK_BYTES)
    bundles: list[list[LogRange]] = []
    room, topic = 0, None
    for each in sorted(every, key=lambda part: (part.topic, part.partition, part.start)):
        if each.topic != topic or each.size_bytes > room:
            bundles.append([])
            room, topic = worth, each.topic
        bundles[-1].append(each)
        room -= each.size_bytes
    bundles.sort(key=lambda bundle: -sum(each.size_bytes for each in bundle))
    return [Task(number, bundle[0].topic, tuple(bundle)) for number, bundle in enumerate(bundles)]
