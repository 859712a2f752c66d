"""Work that is cut into pieces, done by Spark's tasks: one piece a task, small answers back to the driver.

Spark only schedules; a piece is a value that says what to read, and the work reads it by itself. Both travel
pickled, so the work is a function or an object of this package. Runs the same under Spark Connect.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from stratalog.spark.pipelines.failures import ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
