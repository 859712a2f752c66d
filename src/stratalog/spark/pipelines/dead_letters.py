"""Dead letters: what a pipeline could not take, kept in a topic of its own with the reason.

    topic      <topic>.dead-letters, made when first needed: one partition, kept until somebody deletes it
    key        the record's, where it is known
    value      what could not be taken, byte for byte: the line, the record's value, the row as JSON
    headers    reason     why, for people
               source     which pipeline: "ingest orders"
               where      where it is: a file, or "orders-3@1234" (topic, partition, offset)
               truncated  how many bytes it has, when it is too large even for this topic; the first are here
    timestamp  when it became one

A pipeline sends them in the same commit as what it could take (`letters`), or by themselves (`send`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import ConfigError, TopicExistsError
from stratalog.spark.pipelines.commits import Commit, Tally, with_topic
from stratalog.spark.pipelines.places import Path, paths_of
from stratalog.spark.staging import Topics
from stratalog.store.admin.admin import connect
from stratalog.store.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUFFIX = ".dead-letters"
CONFIG = {"retention.ms": "-1", "cleanup.policy": "delete"}
COUNT = "dead_letters"
"""The name under which tasks count them."""
ROOM_BYTES = 8 << 10
"""For the key's, the headers' and the batch's own bytes beside a value that is cut."""
LONGEST_TEXT = 2000
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TEXTS = {"key": "binary", "value": "binary", "reason": "string", "where": "string"}


def topic_for(topic: str) -> str:
    """Where a topic's dead letters go unless told otherwise."""
    return topic[: 249 - len(SUFFIX)] + SUFFIX


def ensure(path: Path, topic: str) -> None:
    """Make the topic when it is not there; called on the driver, also while another process has the store."""
    paths = list(paths_of(path))
    with open_store(paths, read_only=True) as store:
        if topic in store.topics():
            return
    with connect(paths) as client:
        try:
            client.create_topic(topic, 1, CONFIG)
        except TopicExistsError:
            return


def letters(rows: pa.RecordBatch, *, source: str, max_bytes: int) -> pa.RecordBatch:
    """Rows with ``reason`` and ``where`` (strings), ``value`` and perhaps ``key`` (binary), as records with
    ``key``, ``value``, ``timestamp`` and ``headers``. ``max_bytes`` is the topic's largest batch."""
    values, most = rows.column("value"), max(max_bytes - ROOM_BYTES, 0)
    names, count = rows.schema.names, rows.num_rows
    keys = rows.column("key") if "key" in names else pa.nulls(count, pa.binary())
    fits = pc.less_equal(pc.fill_null(pc.binary_length(keys), 0), min(most, ROOM_BYTES // 4))
    keys = pc.if_else(fits, keys, pa.scalar(None, pa.binary()))
    lengths = pc.fill_null(pc.binary_length(values), 0).to_pylist()
    cut = values
    if any(length > most for length in lengths):
        cut = pa.array([each if each is None else each[:most] for each in values.to_pylist()], pa.binary())
    told = [
        _headers(reason, source, where, length if length > most else None)
        for reason, where, length in zip(
            rows.column("reason").to_pylist(), rows.column("where").to_pylist(), lengths, strict=True
        )
    ]
    return pa.RecordBatch.from_pydict(
        {
            "key": keys,
            "value": cut,
            "timestamp": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "headers": pa.array(told, _HEADERS),
        }
    )


def _headers(reason: str | None, source: str, where: str | None, size: int | None) -> list[dict[str, object]]:
    told = {"reason": reason or "", "source": source, "where": where or ""}
    if size is not None:
        told["truncated"] = str(size)
    return [
        {"key": name, "value": text[:LONGEST_TEXT].encode()[:LONGEST_TEXT]} for name, text in told.items()
    ]


def send(
    frame: DataFrame,
    *,
    path: Path,
    topic: str,
    source: str,
    query: str,
    batch: int = 0,
    to: str | None = None,
) -> int:
    """Send rows to the dead letters of ``topic`` (or to the topic ``to``), in one commit; how many there
    were.

    Columns: ``reason`` and ``where`` strings, ``value`` binary or string, ``key`` likewise and optional;
    others are ignored. ``source`` names the pipeline ("export orders"). Exactly once for each (``query``,
    ``batch``), where the batches of a query come in rising order: asked again with the same ids it
    changes nothing.
    """
    from pyspark.sql import functions as sql

    missing = [name for name in ("reason", "where", "value") if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"dead letters need the columns reason, where and value; {', '.join(missing)} not among"
            f" {', '.join(frame.columns)}"
        )
    place, target = paths_of(path), to or topic_for(topic)
    ensure(path, target)
    wanted = [name for name in _TEXTS if name in frame.columns]
    rows = frame.select(*(sql.col(name).cast(_TEXTS[name]).alias(name) for name in wanted))
    return Commit(place, query, batch).write(rows, Letters(place, target, source))[COUNT]


@dataclass(frozen=True)
class Letters:
    """In the tasks: rows that say why become dead letters. Picklable."""

    paths: tuple[str, ...]
    topic: str
    source: str

    def __call__(self, batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        most: int | None = None
        for rows in batches:
            if not rows.num_rows:
                continue
            if most is None:
                most = Topics(self.paths)(self.topic).max_batch_bytes
            tally.counts[COUNT] += rows.num_rows
            yield with_topic(letters(rows, source=self.source, max_bytes=most), self.topic)
