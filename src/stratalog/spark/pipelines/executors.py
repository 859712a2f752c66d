"""Work on the executors: planned once on the driver, done by the kernel in Spark's workers.

`spread` runs a function on pieces that the driver made, one task each, and returns its answers. A pipeline
that counts goes over ranges of the log instead: `pinned` says which offsets of which partitions there are
now, `ranges_of` cuts them, and `over_ranges` reads each one in a worker, so that only what was made of it
leaves. `watched` reports how many tasks are done. Nothing on disk is changed.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext

from stratalog.errors import ConfigError
from stratalog.log.read.reader import Isolation
from stratalog.spark.logs import Logs, opened
from stratalog.spark.loss import Losses
from stratalog.spark.options import Subscription, Where, parse_options
from stratalog.spark.pipelines.failures import ours
from stratalog.spark.pipelines.places import Path, place_options
from stratalog.spark.pipelines.result import Progress
from stratalog.spark.planning import RANGE_BYTES, LogRange, cut
from stratalog.spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD, SparkContext, StatusTracker
    from pyspark.sql import SparkSession


# -- progress ----------------------------------------------------------------------------------------
#
# Watching the jobs a pipeline starts: how many of their tasks are done.
#
# The jobs of a block run in a job group of their own. A thread asks Spark's status tracker now and then; it
# changes nothing, and a tracker that does not answer only costs the progress. Interrupting the block cancels
# its jobs. Spark Connect has no tracker on this side: nothing is told there.


POLL_S = 0.2
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_INTERRUPT = "spark.job.interruptOnCancel"


@contextmanager
def watched(spark: SparkSession, progress: Progress | None, what: str) -> Iterator[None]:
    """Tell ``progress(what, done, total)`` in tasks while the block's jobs run; the total grows with them.

    The jobs also carry ``what`` as their description in Spark's own pages. Blocks may be nested.
    """
    context = _context(spark)
    if context is None:
        yield
        return
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION, _INTERRUPT)}
    group = f"stratalog-{uuid.uuid4()}"
    context.setJobGroup(group, what)
    poller = None if progress is None else _Poller(context, group, progress, what)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Py4JError, OSError):
            context.cancelJobGroup(group)
        raise
    finally:
        if poller is not None:
            poller.stop()
        for name, value in before.items():
            with suppress(Py4JError, OSError):
                context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away


class _Poller:
    def __init__(self, context: SparkContext, group: str, progress: Progress, what: str) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._progress = progress
        self._what = what
        self._told = (-1, -1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {what}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._tell()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self._tell()

    def _tell(self) -> None:
        try:
            told = tasks(self._tracker, self._group)
        except (Py4JError, OSError):
            return  # the session is being stopped: nothing to tell any more
        if told[1] and told != self._told:
            self._told = told
            self._progress(self._what, *told)


def tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Tasks done and tasks in all, over the jobs of a group so far.

    Stages a finished job did not need (their output was there) leave with it.
    """
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        if job is None:
            continue
        over = job.status in ("SUCCEEDED", "FAILED")
        for stage_id in job.stageIds:
            stage = tracker.getStageInfo(stage_id)
            if stage is None:
                continue
            done += stage.numCompletedTasks
            total += stage.numCompletedTasks if over else stage.numTasks
    return done, total


def _context(spark: SparkSession) -> SparkContext | None:
    if getattr(spark, "_jsparkSession", None) is None:
        return None  # Spark Connect
    return spark.sparkContext


# -- pieces ------------------------------------------------------------------------------------------
#
# Work that is cut into pieces, done by Spark's tasks: one piece a task, small answers back to the driver.
#
# Spark only schedules; a piece is a value that says what to read, and the work reads it by itself. Both
# travel pickled, so the work is a function or an object of this package. Runs the same under Spark Connect.


Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


def spread(spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], Answer]) -> list[Answer]:
    """``work`` of every piece, by one job with a task for each; the answers in the order of the pieces.

    An error of this package that a task ends with, after Spark's retries, is raised as itself.
    """
    if not pieces:
        return []
    tasks = _Tasks(tuple(pickle.dumps(piece) for piece in pieces), work)
    numbers = range(len(pieces))
    try:
        if getattr(spark, "_jsparkSession", None) is not None:
            found = spark.sparkContext.parallelize(numbers, len(pieces)).map(tasks.run).collect()
        else:  # Spark Connect has no RDDs; tables of Python functions want pandas, which it has
            frame = spark.range(0, len(pieces), 1, len(pieces))
            rows = frame.mapInArrow(tasks, "number long, answer binary").collect()
            found = [(row[0], bytes(row[1])) for row in rows]
    except Exception as error:
        known = ours(error)
        if known is None or known is error:
            raise
        raise known from error
    answers = {number: pickle.loads(answer) for number, answer in found}
    return [answers[number] for number in numbers]


def slots(spark: SparkSession) -> int:
    """How many tasks run side by side, as far as Spark says now."""
    if getattr(spark, "_jsparkSession", None) is None:
        return 8  # Spark Connect does not tell
    return max(spark.sparkContext.defaultParallelism, 1)


def attempt_name() -> str:
    """A name that no other attempt of any task has."""
    context = TaskContext.get()
    number = 0 if context is None else context.taskAttemptId()
    return f"{number}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class _Tasks:
    pieces: tuple[bytes, ...]
    work: Callable[[Any], Any]

    def run(self, number: int) -> tuple[int, bytes]:
        return number, pickle.dumps(self.work(pickle.loads(self.pieces[number])))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = self.run(number)[1]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], ["number", "answer"]
                )


# -- ranges of the log -------------------------------------------------------------------------------


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
