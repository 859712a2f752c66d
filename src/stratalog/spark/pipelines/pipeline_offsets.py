"""The progress of a pipeline, kept in the store itself: the topic ``__pipeline_offsets``.

As in Kafka Connect: the records and the note of them are one commit, so no crash comes between them. The
topic is compacted, with one partition; keys and values are JSON:

    ["ingest", "orders", "<topic id>", "orders"]            {"batch": 3, "run": "…", …}     the last batch
    ["ingest", "orders", "<topic id>", "orders", "file:…"]  {"batch": 3, "size": …, …}      one thing done

The topic id is in the key: a topic that was deleted and created again starts from the beginning. Batches are
numbered like a query's micro-batches and the store takes each number once, so of two runs at the same time
one commits a number; the other finds it taken, reads again and goes on with the rest. The same happens when
the store still rolls an earlier run's commit forward.

Crash policy: that of the log. Deleting the topic makes every pipeline start from the beginning.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stratalog.errors import CorruptionError, FormatError, StorageError
from stratalog.format import journal as journals
from stratalog.fs import RealFileSystem
from stratalog.spark.pipelines.commits import (
    DEAD_LETTERS_CONFIG,
    Admit,
    DeadLetters,
    Note,
    dead_letter_topic,
    make_topics,
    rules_of,
)
from stratalog.store.store import open_store
from stratalog.store.topic import Topic

TOPIC = "__pipeline_offsets"
CONFIG = {"cleanup.policy": "compact"}
SHOWS_S = 10.0
"""How long readers may take to see a commit: the store's holder publishes it."""
POLL_S = 0.05

Facts = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """Whose progress: that of one pipeline, into one topic, under one name."""

    pipeline: str
    topic: str
    topic_id: str
    name: str

    @property
    def key(self) -> list[str]:
        return [self.pipeline, self.topic, self.topic_id, self.name]

    @property
    def query(self) -> str:
        """The id under which the store counts its commits."""
        digest = hashlib.sha256(json.dumps(self.key).encode()).hexdigest()[:24]
        return f"{self.pipeline}-{digest}"


@dataclass(frozen=True)
class State:
    """What is known to be done. ``batch`` is the number of the next commit."""

    batch: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)
    done: Mapping[str, Facts] = field(default_factory=dict)


class PipelineOffsets:
    """The progress of one scope. Changed only by commits that carry `noted`."""

    def __init__(self, paths: tuple[str, ...], scope: Scope) -> None:
        self._paths = paths
        self.scope = scope
        self.run = uuid.uuid4().hex
        """Tells this run's commits from others'."""
        self._next = 0
        self._last: Facts = {}
        self._done: dict[str, Facts] = {}

    def read(self) -> State:
        """Return what is done by now. The journal is read first: the topic, read after it, has at least as
        much."""
        following = self._journal_batch() + 1
        with open_store(list(self._paths), read_only=True) as store:
            if TOPIC in store.topics():
                self._read_on(store.topic(TOPIC))
        last = int(self._last.get("batch", -1))
        return State(max(following, last + 1), dict(self._last), dict(self._done))

    def _read_on(self, topic: Topic) -> None:
        start, end = max(self._next, topic.log_start_offset(0)), topic.log_end_offset(0)
        mine = json.dumps(self.scope.key).encode()
        if start >= end:
            return
        for batch in topic.scan([0], columns=["key", "value", "offset"], start=start, end=end):
            for row in batch.to_pylist():
                if not (row["key"] or b"").startswith(mine[:-1]):
                    continue
                key, facts = _parsed(row)
                if key == self.scope.key:
                    self._last = facts
                elif key[:-1] == self.scope.key:
                    self._done[key[-1]] = facts
        self._next = end

    def _journal_batch(self) -> int:
        """Return the last batch of this query that is wholly in the log, as far as the store remembers."""
        fs, found = RealFileSystem(), []
        for path in self._paths:
            try:
                found.append(journals.parse(fs.read_file(f"{path}/{journals.FILE_NAME}")))
            except (FileNotFoundError, FormatError):
                continue  # the next commit reports what is wrong with it
        newest = journals.newest(found)
        return -1 if newest is None else newest.streams.get(self.scope.query, (-1, 0))[0]

    def noted(
        self, batch: int, facts: Facts | None = None, done: Mapping[str, Facts] | None = None
    ) -> dict[str, Note]:
        """Return the notes for `Commit.write` that record what the commit does."""
        return {TOPIC: _Noted(self.scope, batch, self.run, facts or {}, done or {})}

    def after(self, batch: int) -> State:
        """Return what is done once a commit of this number was made; raise StorageError if it does not
        show."""
        deadline = time.monotonic() + SHOWS_S
        while True:
            state = self.read()
            if int(state.last.get("batch", -1)) >= batch:
                return state
            if time.monotonic() > deadline:
                raise StorageError(
                    f"batch {batch} of {self.scope.query} was committed and {TOPIC} does not have it; run"
                    " 'stratalog verify' and check that no other program deletes records there"
                )
            time.sleep(POLL_S)

    def is_mine(self, state: State, batch: int, done: str | None = None) -> bool:
        """Return True if this run made the commit of this number, judged by one of its entries, if any."""
        known = state.done.get(done, {}) if done is not None else state.last
        return known.get("batch") == batch and known.get("run") == self.run


@dataclass(frozen=True)
class _Noted:
    """Makes the rows, once everything is counted. Picklable."""

    scope: Scope
    batch: int
    run: str
    facts: Facts
    done: Mapping[str, Facts]

    def __call__(self, counts: Counter[str]) -> pa.RecordBatch:
        which = {"batch": self.batch, "run": self.run}
        numbers = {name: count for name, count in counts.items() if name.isidentifier()}
        rows: list[tuple[list[str], Facts]] = [(self.scope.key, {**numbers, **self.facts, **which})]
        rows += [([*self.scope.key, name], {**each, **which}) for name, each in self.done.items()]
        keys = [json.dumps(key).encode() for key, _ in rows]
        values = [json.dumps(value).encode() for _, value in rows]
        return pa.RecordBatch.from_pydict(
            {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        )


def _parsed(row: Mapping[str, Any]) -> tuple[list[Any], Facts]:
    try:
        key, value = json.loads(row["key"] or b"null"), json.loads(row["value"] or b"{}")
        if not isinstance(key, list) or not isinstance(value, dict):
            raise ValueError("not a list and an object")
    except ValueError as error:
        raise CorruptionError(f"offset {row['offset']}: {error}", path=TOPIC) from None
    return key, value


def start_writing(
    pipeline: str,
    paths: tuple[str, ...],
    topic: str,
    *,
    name: str,
    partitions: int | None,
    letters: str | None,
    by_partition: bool,
    explain: Callable[[str, bytes | None], str] | None = None,
) -> tuple[PipelineOffsets, Admit]:
    """Prepare the store for a pipeline that writes to ``topic``: return its progress and its admission.

    Creates what is missing: the topics of offsets and of dead letters (``letters``), and ``topic`` itself if
    the number of ``partitions`` is given. ``by_partition``: rows may name their partition.
    """
    letters = letters or dead_letter_topic(topic)
    wanted: dict[str, tuple[int, Mapping[str, str]]] = {
        letters: (1, DEAD_LETTERS_CONFIG),
        TOPIC: (1, CONFIG),
    }
    if partitions is None:
        rules_of(paths, topic)  # raises before anything is created
    else:
        wanted[topic] = (partitions, {})
    make_topics(paths, wanted)
    rules = rules_of(paths, topic)
    dead = DeadLetters(letters, f"{pipeline} {topic}", rules_of(paths, letters).max_batch_bytes)
    scope = Scope(pipeline, topic, rules.topic_id, name)
    return PipelineOffsets(paths, scope), Admit(rules, dead, by_partition, explain)
