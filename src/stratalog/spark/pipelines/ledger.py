"""How far a pipeline is, kept in the store itself: the topic ``__pipeline_offsets``.

As Kafka Connect keeps its sources' offsets, and for the same reason: what was done and the note that it
was are one commit, so no crash comes between them. The topic is compacted, with one partition; keys and
values are JSON:

    ["ingest", "orders", "<topic id>", "orders"]            {"batch": 3, "run": "…", …}     the last batch
    ["ingest", "orders", "<topic id>", "orders", "file:…"]  {"batch": 3, "size": …, …}      one thing done

The topic id is in the key: a topic that was deleted and made anew begins anew. Batches are numbered as a
query's micro-batches are; the store takes each number once, so of two runs at the same time one commits a
number and the other finds it taken, reads again and goes on with what is left. A holder that still rolls
an earlier run's commit forward is the same case.

Crash policy: that of the log. Deleting the topic makes every pipeline begin anew.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stratalog.errors import CorruptionError, FormatError, StorageError, TopicExistsError
from stratalog.format import journal as journals
from stratalog.fs import RealFileSystem
from stratalog.spark.pipelines.commits import Note, json_rows
from stratalog.store.admin.admin import connect
from stratalog.store.store import open_store
from stratalog.store.topic import Topic

TOPIC = "__pipeline_offsets"
CONFIG = {"cleanup.policy": "compact"}
SHOWS_S = 10.0
"""How long readers may take to see a commit: the store's holder tells them."""
POLL_S = 0.05

Facts = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """Whose progress: one pipeline's, into one topic, under one name."""

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
    """What is known to be done. ``batch`` is the number the next commit has to take."""

    batch: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)
    done: Mapping[str, Facts] = field(default_factory=dict)


class Ledger:
    """The progress of one scope. Changed only by commits that carry `noted`."""

    def __init__(self, paths: tuple[str, ...], scope: Scope) -> None:
        self._paths = paths
        self.scope = scope
        self.run = uuid.uuid4().hex
        """Tells this run's commits from others'."""
        self._next = 0
        self._last: Facts = {}
        self._done: dict[str, Facts] = {}

    def prepare(self, topics: Mapping[str, tuple[int | None, Mapping[str, str]]]) -> None:
        """Have the store finish what it had decided, and make the topics that are missing, the ledger's
        too."""
        with connect(list(self._paths)) as client, open_store(list(self._paths), read_only=True) as store:
            there = set(store.topics())
            for name, (partitions, config) in {**topics, TOPIC: (1, CONFIG)}.items():
                if name not in there:
                    with suppress(TopicExistsError):
                        client.create_topic(name, partitions, config)

    def read(self) -> State:
        """What is done by now. The journal is asked first: the topic, read after it, has at least as much."""
        following = self._journal_batch() + 1
        with open_store(list(self._paths), read_only=True) as store:
            if TOPIC in store.topics():
                self._read_on(store.topic(TOPIC))
        last = int(self._last.get("batch", -1))
        return State(max(following, last + 1), dict(self._last), dict(self._done))

    def _read_on(self, topic: Topic) -> None:
        """Take in what is new since the last time."""
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
        """The last batch of this query that is wholly in the log, as far as the store remembers."""
        fs, found = RealFileSystem(), []
        for path in self._paths:
            try:
                found.append(journals.parse(fs.read_file(f"{path}/{journals.FILE_NAME}")))
            except (FileNotFoundError, FormatError):
                continue  # a commit will say what is wrong with it
        newest = journals.newest(found)
        return -1 if newest is None else newest.streams.get(self.scope.query, (-1, 0))[0]

    def noted(
        self, batch: int, facts: Facts | None = None, done: Mapping[str, Facts] | None = None
    ) -> dict[str, Note]:
        """What a commit must bring along so that it is known what it did: `Commit.write` takes it."""
        return {TOPIC: _Noted(self.scope, batch, self.run, facts or {}, done or {})}

    def after(self, batch: int) -> State:
        """What is done once a commit of this number was made; StorageError when that does not show."""
        deadline = time.monotonic() + SHOWS_S
        while True:
            state = self.read()
            if int(state.last.get("batch", -1)) >= batch:
                return state
            if time.monotonic() > deadline:
                raise StorageError(
                    f"batch {batch} of {self.scope.query} was committed and {TOPIC} does not have it; see"
                    " 'stratalog verify', and whether somebody deletes records there"
                )
            time.sleep(POLL_S)

    def is_mine(self, state: State, batch: int, done: str | None = None) -> bool:
        """Whether the commit of this number was this run's, told by one thing it did, if any."""
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
        return json_rows(rows)


def _parsed(row: Mapping[str, Any]) -> tuple[list[Any], Facts]:
    try:
        key, value = json.loads(row["key"] or b"null"), json.loads(row["value"] or b"{}")
        if not isinstance(key, list) or not isinstance(value, dict):
            raise ValueError("not a list and an object")
    except ValueError as error:
        raise CorruptionError(f"offset {row['offset']}: {error}", path=TOPIC) from None
    return key, value
