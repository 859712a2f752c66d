"""The source without Spark around it: planned, pickled and read as Spark would, in this process."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

import stratalog
from stratalog import Record
from stratalog.spark.planning import LogRange
from stratalog.spark.source import PruningSource, StratalogReader

UTC_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
START_MS = 1_700_000_000_000


def reader(
    path: Path | str | None,
    filters: Iterable[Filter] = (),
    schema: StructType | None = None,
    **options: Any,
) -> tuple[StratalogReader, list[Filter]]:
    """A reader that was offered filters, and the filters it gave back."""
    said = {name: str(value) for name, value in options.items()}
    if path is not None:
        said["path"] = str(path)
    source = pickle.loads(pickle.dumps(PruningSource(said)))
    made = source.reader(schema or source.schema())
    left = list(made.pushFilters(list(filters)))
    return made, left


def plan(path: Path | str | None, filters: Iterable[Filter] = (), **options: Any) -> list[LogRange]:
    made, _ = reader(path, filters, **options)
    return [part for part in made.partitions() if isinstance(part, LogRange)]


def rows(
    path: Path | str | None,
    filters: Iterable[Filter] = (),
    schema: StructType | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """What a query would see before Spark evaluates the filters that were given back."""
    made, _ = reader(path, filters, schema, **options)
    return read(made)


def read(made: StratalogReader) -> list[dict[str, Any]]:
    parts = pickle.loads(pickle.dumps(made.partitions()))
    made = pickle.loads(pickle.dumps(made))
    return [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]


def offsets(found: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in found)


def fill(
    where: Path,
    topic: str = "orders",
    *,
    partitions: int = 1,
    segments: int = 3,
    records: int = 20,
    config: Mapping[str, object] | None = None,
    store_config: Mapping[str, object] | None = None,
) -> None:
    """A topic of a few sealed segments and an active one, a second between neighbours."""
    with stratalog.open(where, store_config) as store:
        made = store.create_topic(topic, partitions, config)
        for segment in range(segments + 1):
            append(made, records)
            if segment < segments:
                made.roll()


def append(topic: stratalog.Topic, records: int) -> None:
    for partition in range(topic.partitions):
        first = topic.log_end_offset(partition)
        topic.append_many(
            [
                Record(f"value {at}".encode(), f"k{at % 5}".encode(), (), START_MS + at * 1000)
                for at in range(first, first + records)
            ],
            partition=partition,
        )
