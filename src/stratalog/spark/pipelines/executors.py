"""Work on the executors: planned once on the driver, done by the kernel in Spark's workers.

`spread` runs a function on pieces that the driver made, one task each, and returns its answers. A pipeline
that counts goes over ranges of the log instead: `pinned` returns the offsets that each partition has now,
`ranges_of` cuts them, and `over_ranges` reads each range in a worker, so only the results leave it. `watched`
reports how many tasks are done, `ours` finds the error behind a failed job. Nothing on disk is changed.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext

from stratalog import errors
from stratalog.archive.objects import absolute_url
from stratalog.config.units import parse_time
from stratalog.errors import ConfigError, InvalidArgumentError, OffsetOutOfRangeError, StratalogError
from stratalog.fs import RealFileSystem
from stratalog.log.read.reader import Isolation
from stratalog.spark.logs import Logs, opened
from stratalog.spark.options import Subscription, Where, parse_options
from stratalog.spark.pipelines import Progress
from stratalog.spark.planning import RANGE_BYTES, LogRange, Losses, cut
from stratalog.spark.reading import read_range
from stratalog.store.paths import path_of

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

T_co = TypeVar("T_co", covariant=True)

CONNECT_SLOTS = 8
"""How many tasks are taken to run side by side under Spark Connect, which does not tell."""


# -- arguments that all pipelines have ---------------------------------------------------------------


Path = str | Sequence[str] | None
"""One or several log directories; None when everything is in the archive."""
Moment = str | int | dt.datetime | None
"""``2026-01-01T12:00:00Z``, ``-10m``, epoch milliseconds, or a datetime; without a zone it is UTC."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def paths_of(path: Path) -> tuple[str, ...]:
    """Return the directories, absolute: executors have a working directory of their own."""
    return tuple(path_of(RealFileSystem(), each) for each in names_of(path))


def names_of(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names, whether one, several or none were given."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def place_options(path: Path, archive: str | None = None) -> dict[str, str]:
    """Return the source's options for a place; raise ConfigError if neither path nor archive is given."""
    paths = paths_of(path)
    if not paths and not archive:
        raise ConfigError("no log given: pass path, archive or both")
    options: dict[str, str] = {}
    if paths:
        options["paths"] = json.dumps(paths)
    if archive:
        options["archive"] = absolute_url(archive)
    return options


def where_of(path: Path, archive: str | None = None) -> Where:
    """Return the place of the log, as driver and executors open it."""
    return parse_options(place_options(path, archive)).where


def moment_ms(given: Moment, name: str, now_ms: int) -> int | None:
    """Return a moment in epoch milliseconds; raise ConfigError naming the argument if it is not one."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, dt.datetime):
        zoned = given if given.tzinfo is not None else given.replace(tzinfo=dt.UTC)
        return (zoned - _EPOCH) // dt.timedelta(milliseconds=1)
    if not isinstance(given, str):
        raise ConfigError(f"{name}: {given!r} is not a time; pass one such as 2026-01-01T12:00:00Z or -1h")
    try:
        return parse_time(given, now_ms)
    except InvalidArgumentError as error:
        raise ConfigError(f"{name}: {error}") from None


def is_connect(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect, which has no RDDs and no status tracker here."""
    return getattr(spark, "_jsparkSession", None) is None


def slots(spark: Engine) -> int:
    """Return how many tasks run side by side, as far as Spark tells."""
    if spark is None:
        return 1
    if isinstance(spark, OnDemand):
        return os.cpu_count() or 1
    return CONNECT_SLOTS if is_connect(spark) else max(spark.sparkContext.defaultParallelism, 1)


# -- with Spark or without ---------------------------------------------------------------------------


SMALL_BYTES = 256 << 20
"""Up to so much of the log is read here sooner than Spark starts."""


@dataclass(frozen=True)
class OnDemand:
    """A Spark session that is started only for work that is worth it."""

    start: Callable[[], SparkSession]


Engine: TypeAlias = "SparkSession | OnDemand | None"
"""What runs a pipeline that only reads: Spark, Spark if it is worth it, or this process (None)."""


def settled(spark: Engine, reading: Sequence[LogRange]) -> SparkSession | None:
    """Return what runs a pipeline that reads the records of these ranges, beside headers."""
    if not isinstance(spark, OnDemand):
        return spark
    return spark.start() if sum(each.size_bytes for each in reading) > SMALL_BYTES else None


class Results(Protocol[T_co]):
    """As much of an RDD as the pipelines use that may run without Spark."""

    def collect(self) -> Sequence[T_co]: ...

    def partitionBy(self, count: int, function: Callable[[Any], int]) -> Results[Any]: ...  # noqa: N802

    def mapPartitions(self, function: Callable[[Any], Iterable[Any]]) -> Results[Any]: ...  # noqa: N802


@dataclass(frozen=True)
class _Here(Generic[T_co]):
    """Results of work in this process, in one partition."""

    rows: Iterable[T_co]

    def collect(self) -> list[T_co]:
        return list(self.rows)

    def partitionBy(self, count: int, function: Callable[[Any], int]) -> _Here[T_co]:  # noqa: N802
        return self

    def mapPartitions(self, function: Callable[[Any], Iterable[Any]]) -> _Here[Any]:  # noqa: N802
        return _Here(function(self.rows))


# -- progress ----------------------------------------------------------------------------------------
#
# The jobs of a block run in a job group of their own. A thread polls Spark's status tracker; if that fails,
# only the progress is lost. An interrupt of the block cancels its jobs.


POLL_S = 0.2
_GROUP = "spark.jobGroup.id"
_PROPERTIES = (_GROUP, "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def watched(spark: SparkSession | None, progress: Progress | None, what: str) -> Iterator[None]:
    """Call ``progress(what, done, total)`` in tasks while the block's jobs run; the total grows with them.

    The jobs also carry ``what`` as their description in Spark's own pages. Blocks may be nested.
    """
    if spark is None or is_connect(spark):
        yield
        return
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
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


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel the jobs of the `watched` block that this thread is in."""
    if not is_connect(spark) and (group := spark.sparkContext.getLocalProperty(_GROUP)) is not None:
        spark.sparkContext.cancelJobGroup(group)


class _Poller:
    def __init__(self, context: SparkContext, group: str, progress: Progress, what: str) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._progress = progress
        self._what = what
        self._reported = (-1, -1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {what}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._report()

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            self._report()

    def _report(self) -> None:
        try:
            found = tasks(self._tracker, self._group)
        except (Py4JError, OSError):
            return  # the session is being stopped
        if found[1] and found != self._reported:
            self._reported = found
            self._progress(self._what, *found)


def tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Return tasks done and tasks in all, over the jobs of a group so far.

    Stages that a finished job did not need, because their output existed, do not count.
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


# -- failures ----------------------------------------------------------------------------------------
#
# An error raised on an executor, or inside the source, arrives as one of Spark's with a traceback as its
# text. The type and the message of ours are in it; the rest is for ``--debug``.


_OURS = re.compile(r"stratalog\.errors\.(\w+): ([^\n]*(?:\noption [^\n]*)?)")
_OTHER = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Failure)): ([^\n]*)", re.MULTILINE)
_LONGEST = 2000


def ours(error: BaseException) -> StratalogError | None:
    """Return the error of this package behind one of Spark's, or one line of a foreign one; None if Spark did
    not raise it."""
    if isinstance(error, StratalogError):
        return error
    if not _is_sparks(error):
        return None
    text = str(error)
    if found := _OURS.findall(text):
        name, message = found[-1]
        return _rebuilt(getattr(errors, name, StratalogError), message.strip())
    raised = _OTHER.findall(text)
    line = f"{raised[-1][0]}: {raised[-1][1]}" if raised else text.strip().partition("\n")[0]
    return StratalogError(f"Spark failed: {line[:_LONGEST]}")


def is_unknown(error: BaseException) -> bool:
    """Return True if Spark raised the error by itself: then Spark's own log may give the reason."""
    return _is_sparks(error) and not _OURS.search(str(error))


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def _rebuilt(kind: type[StratalogError], message: str) -> StratalogError:
    """Build an error from its message; the values the message was made of are not known."""
    if issubclass(kind, OffsetOutOfRangeError):
        return StratalogError(message)
    made = kind(message)
    made.args = (message,)
    return made


# -- pieces ------------------------------------------------------------------------------------------
#
# Spark only schedules; a piece is a value that says what to read, and the work reads it by itself. Both
# travel pickled, so the work is a function or an object of this package. Runs the same under Spark Connect.


Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


def spread(spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], Answer]) -> list[Answer]:
    """Run ``work`` on every piece, by one job with a task for each; return the answers in the same order.

    An error of this package that a task ends with, after Spark's retries, is raised as itself.
    """
    if not pieces:
        return []
    job = _Pieces(tuple(pickle.dumps(piece) for piece in pieces), work)
    numbers = range(len(pieces))
    try:
        if is_connect(spark):  # no RDDs; functions over tables want pandas, which Spark Connect has
            frame = spark.range(0, len(pieces), 1, len(pieces))
            rows = frame.mapInArrow(job, "number long, answer binary").collect()
            found = [(row[0], bytes(row[1])) for row in rows]
        else:
            found = spark.sparkContext.parallelize(numbers, len(pieces)).map(job.run).collect()
    except Exception as error:
        known = ours(error)
        if known is None or known is error:
            raise
        raise known from error
    answers = {number: pickle.loads(answer) for number, answer in found}
    return [answers[number] for number in numbers]


def attempt_name() -> str:
    """Return a name that no other attempt of any task has."""
    context = TaskContext.get()
    number = 0 if context is None else context.taskAttemptId()
    return f"{number}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class _Pieces:
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


class RangeTask(Protocol[T_co]):
    """The work of an executor on the range of that number. It is pickled, so it holds only plain values."""

    def __call__(self, logs: Logs, number: int, part: LogRange, /) -> Iterator[T_co]: ...


def pinned(
    logs: Logs,
    topics: str | Sequence[str] | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    isolation: Isolation = "read_uncommitted",
) -> list[LogRange]:
    """Return what every partition of these topics, or of all, holds at this moment, empty ones too.

    With ``since_ms``, from the first record at that time or later on; with ``until_ms``, up to the first
    record at that time or later: what was appended between, whatever its own timestamps are.
    """
    extents = []
    for pair in logs.choose(Subscription(topics=names_of(topics))):
        start, end = logs.start_offset(*pair), logs.end_offset(*pair, isolation)
        if since_ms is not None:
            found = logs.offset_for_time(*pair, since_ms, isolation)
            start = end if found is None else max(start, found)
        if until_ms is not None:
            found = logs.offset_for_time(*pair, until_ms, isolation)
            end = end if found is None else min(end, found)
        extents.append(LogRange(*pair, min(start, end), end))
    return extents


def ranges_of(spark: Engine, logs: Logs, extents: Sequence[LogRange]) -> list[LogRange]:
    """Cut extents into ranges, enough of them to keep every core busy."""
    return cut(logs, extents, min_partitions=slots(spark))


def over_ranges(
    spark: SparkSession | None, where: Where, ranges: Sequence[LogRange], task: RangeTask[T_co]
) -> Results[T_co]:
    """Run ``task`` on each range and return its results in order. Small ranges share a Spark task."""
    if spark is None:
        return _Here(_OnRanges(where, task)(enumerate(ranges)))
    if is_connect(spark):
        raise ConfigError(
            "this pipeline does not run through Spark Connect: pass --master the cluster itself"
        )
    size = sum(each.size_bytes for each in ranges)
    count = max(1, min(len(ranges), max(slots(spark), -(-size // (RANGE_BYTES // 2)))))
    numbered = spark.sparkContext.parallelize(list(enumerate(ranges)), count)
    return numbered.mapPartitions(_OnRanges(where, task))


@dataclass(frozen=True)
class _OnRanges(Generic[T_co]):
    where: Where
    task: RangeTask[T_co]

    def __call__(self, ranges: Iterable[tuple[int, LogRange]]) -> Iterator[T_co]:
        for number, part in ranges:
            with opened(self.where) as logs:
                yield from self.task(logs, number, part)


def read(
    logs: Logs, part: LogRange, columns: Sequence[str], isolation: Isolation = "read_uncommitted"
) -> Iterator[pa.RecordBatch]:
    """Read the records of a range; what retention removes meanwhile is reported and left out."""
    return read_range(logs, part, columns, isolation, Losses(False))
