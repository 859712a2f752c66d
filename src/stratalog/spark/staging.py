"""What a task of the sink does: rows are routed as the Java client would and staged as record batches.

Topic: the option, else the column. Partition: the column where it is not null, else murmur2 of the key,
else one partition for a while, as a producer's sticky partitioner has it. Everything about the topics is
read off the log directories; nothing is asked of whoever holds the store. Knows no DataFrame, only Arrow.

Crash policy: what a task leaves is removed by the next commit or open; see `stratalog.store.journal.staging`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stratalog import kernel
from stratalog.errors import InvalidRecordError, UnknownTopicError
from stratalog.format.journal import StagedFile
from stratalog.fs import RealFileSystem
from stratalog.store.journal import staging
from stratalog.store.journal.staging import Attempt, Place, TopicFacts
from stratalog.store.store import open_store
from stratalog.store.topic import STICKY_BYTES

RECORD_COLUMNS = ("key", "value", "timestamp", "headers")


class Topics:
    """The topics of a store, as one task sees them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(paths)
        self._known: dict[str, TopicFacts] = {}

    def __call__(self, name: str) -> TopicFacts:
        facts = self._known.get(name)
        if facts is None:
            with open_store(self._paths, read_only=True) as store:
                try:
                    facts = self._known[name] = staging.facts_of(store, name)
                except UnknownTopicError as error:
                    listed = ", ".join(store.topics()[:20]) or "none"
                    raise UnknownTopicError(
                        f"{error}; the sink creates none: 'stratalog topics create {name}' does, or"
                        f" store.create_topic; there are {listed}"
                    ) from None
        return facts


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    paths: Iterable[str],
    place: Place,
    *,
    topic: str | None,
    task: int,
) -> list[StagedFile]:
    """Stage all rows of a task; what was staged is removed again when one of them is not right."""
    topics = Topics(paths)
    attempt = Attempt(
        RealFileSystem(), place, topics, number=task, now_ms=lambda: time.time_ns() // 1_000_000
    )
    routing = Routing(topics, topic, task)
    try:
        for batch in batches:
            for name, partition, rows in routing.split(batch):
                attempt.add(name, partition, rows)
        return attempt.finish()
    except BaseException:
        attempt.discard()
        raise


class Routing:
    """Which topic and partition rows go to."""

    def __init__(self, topics: Topics, topic: str | None, task: int) -> None:
        self._topics = topics
        self._topic = topic
        self._sticky = task
        self._sticky_left = STICKY_BYTES

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """(topic, partition, rows) with the columns of records only, the order of the rows kept."""
        if not batch.num_rows:
            return
        if self._topic is not None:
            yield from self._split_topic(self._topic, batch)
            return
        names = batch.column("topic")
        if names.null_count:
            raise InvalidRecordError(
                "a row without a topic: the column 'topic' is null, and the option 'topic' is not given"
            )
        for name in pc.unique(names).to_pylist():
            yield from self._split_topic(name, batch.filter(pc.equal(names, name)))

    def _split_topic(self, name: str, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        count = self._topics(name).partitions
        columns = [each for each in RECORD_COLUMNS if each in batch.schema.names]
        rows = batch.select(columns)
        if count == 1 and "partition" not in batch.schema.names:
            yield name, 0, rows
            return
        numbers = self._partitions(batch, count)
        if len(set(numbers)) == 1:
            yield name, numbers[0], rows
            return
        chosen = pa.array(numbers, pa.int32())
        order = pc.sort_indices(chosen)  # stable: rows of one partition stay in order
        rows, start = rows.take(order), 0
        for entry in sorted(pc.value_counts(chosen).to_pylist(), key=lambda each: each["values"]):
            yield name, entry["values"], rows.slice(start, entry["counts"])
            start += entry["counts"]

    def _partitions(self, batch: pa.RecordBatch, count: int) -> list[int]:
        given, keys = _values(batch, "partition"), _values(batch, "key")
        size = batch.nbytes // batch.num_rows
        found = []
        for number, key in zip(given, keys, strict=True):
            if number is None and key is None:
                number = self._keyless(count, size)
            elif number is None:
                number = kernel.partition_for_key(key.encode() if isinstance(key, str) else key, count)
            found.append(number)
        return found

    def _keyless(self, count: int, size: int) -> int:
        if self._sticky_left <= 0:
            self._sticky += 1
            self._sticky_left = STICKY_BYTES
        self._sticky_left -= size + 70
        return self._sticky % count


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    return batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows


def driver_of() -> str:
    """The owner of what this process's job stages: the JVM above it, at whose end nobody commits any more."""
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                head, _, rest = file.read().rpartition(b")")
        except OSError:
            break
        if head.partition(b"(")[2] == b"java":
            return staging.owner_of(pid)
        pid = int(rest.split()[1])
    return staging.owner_of(os.getpid())
