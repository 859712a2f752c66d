"""A stand-in for a Spark session: what a pipeline spreads over tasks is pickled and run in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class InProcess:
    """As much of a session as `spread` asks for, in the way it asks Spark Connect."""

    def range(self, start: int, end: int, step: int, parts: int) -> InProcess._Numbers:
        return self._Numbers(list(range(start, end, step)))

    class _Numbers:
        def __init__(self, numbers: list[int]) -> None:
            self._numbers = numbers
            self._work: Work | None = None

        def mapInArrow(self, work: Work, schema: str) -> InProcess._Numbers:  # noqa: N802 - Spark's name
            self._work = pickle.loads(pickle.dumps(work))
            return self

        def collect(self) -> list[tuple[Any, ...]]:
            assert self._work is not None
            rows: list[tuple[Any, ...]] = []
            for number in self._numbers:
                batch = pa.RecordBatch.from_pydict({"id": [number]})
                for made in self._work(iter([batch])):
                    rows += [tuple(row.values()) for row in made.to_pylist()]
            return rows


def in_process() -> SparkSession:
    return cast(SparkSession, InProcess())
