"""The journal of staged commits: `stratalog.journal` in the root of every log directory.

What lives here: which staged commits are decided and not yet wholly in the log (``pending``), and which
were, so that one that comes again is known. JSON with a CRC line (`checked_json`):

    {"version": 1, "generation": 7, "producer": 6917529027641081857,
     "streams": {"<query id>~<topic id>": [12, 1700000000000]},
     "jobs": {"<job id>": 1700000000000},
     "pending": [{"query": ..., "batch": 13, "job": false,
                  "files": [[name, topic, partition, bytes, crc, records, whole], ...],
                  "targets": [[topic, partition, base offset, first sequence], ...]}]}
    crc32c: 7bff9b32

``streams`` has the last batch of each query, because a query's batches come in order; ``jobs`` the batch
writes, each with an id of its own. Both are bounded; the longest unused go first. ``producer`` is the
producer id that marks appended batches as coming from here.

Written beside and renamed: a crash leaves the old one or the new one. The highest generation counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from stratalog.errors import CorruptionError, UnsupportedFormat
from stratalog.format import checked_json

FILE_NAME = "stratalog.journal"
VERSION = 1
MAX_STREAMS = 1000
MAX_JOBS = 100

TARGET = "~"
"""Separates a query's id from what it writes to: a copy of its checkpoint may write to another topic."""

_T = TypeVar("_T")


class StagedFile(NamedTuple):
    """Whole record batches for one partition, in a file outside the log.

    ``name`` is relative to a staging root; ``crc`` the CRC-32C of all its bytes as they were staged.
    """

    name: str
    topic: str
    partition: int
    size_bytes: int
    crc: int
    records: int
    whole: bool = False
    """It is as large as a segment: one is to be made of it, by rename."""


class Target(NamedTuple):
    """Where the appended part of an entry goes in one partition.

    None of it lies below ``base_offset``; its first record has ``first_sequence``, the others follow.
    """

    topic: str
    partition: int
    base_offset: int
    first_sequence: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit: everything that a micro-batch, or a batch write, brings."""

    query: str
    batch: int
    files: tuple[StagedFile, ...]
    job: bool = False
    """A batch write; ``batch`` is 0 then."""
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Journal:
    generation: int = 0
    producer_id: int = -1
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)
    pending: tuple[Entry, ...] = ()

    def has(self, query: str, batch: int) -> bool:
        """Return whether this batch of a query, or this job, is already completely in the log.

        Earlier versions knew a query without its target: as long as nothing is known of the query with it,
        what they committed counts.
        """
        last = self.streams.get(query) or self.streams.get(query.partition(TARGET)[0], (-1, 0))
        return query in self.jobs or batch <= last[0]

    def with_pending(self, entry: Entry) -> Journal:
        """Return the journal with an entry added or replaced."""
        return replace(self, pending=(*self._others(entry), entry))

    def with_done(self, entry: Entry, now_ms: int) -> Journal:
        """Return the journal with an entry done; the oldest streams and jobs past the limits are dropped."""
        streams, jobs = dict(self.streams), dict(self.jobs)
        if entry.job:
            jobs[entry.query] = now_ms
            jobs = _newest(jobs, jobs, MAX_JOBS)
        else:
            streams[entry.query] = (entry.batch, now_ms)
            streams = _newest(streams, {name: used for name, (_, used) in streams.items()}, MAX_STREAMS)
        return replace(self, pending=self._others(entry), streams=streams, jobs=jobs)

    def _others(self, entry: Entry) -> tuple[Entry, ...]:
        same = (entry.query, entry.batch)
        return tuple(each for each in self.pending if (each.query, each.batch) != same)


def _newest(values: dict[str, _T], used_ms: Mapping[str, int], bound: int) -> dict[str, _T]:
    while len(values) > bound:
        del values[min(values, key=lambda name: used_ms[name])]
    return values


def newest(candidates: Iterable[Journal]) -> Journal | None:
    """Return the candidate with the highest generation, or None."""
    return max(candidates, key=lambda journal: journal.generation, default=None)


def pack(journal: Journal) -> bytes:
    content = {
        "version": VERSION,
        "generation": journal.generation,
        "producer": journal.producer_id,
        "streams": {name: list(value) for name, value in journal.streams.items()},
        "jobs": dict(journal.jobs),
        "pending": [
            {
                "query": entry.query,
                "batch": entry.batch,
                "job": entry.job,
                "files": [list(each) for each in entry.files],
                "targets": [list(each) for each in entry.targets],
            }
            for entry in journal.pending
        ],
    }
    return checked_json.pack(content)


def parse(data: bytes | bytearray | memoryview) -> Journal:
    root: dict[str, Any] = checked_json.parse(data, "journal")
    if root.get("version") != VERSION:
        raise UnsupportedFormat(f"journal of version {root.get('version')!r}")
    try:
        return Journal(
            generation=int(root["generation"]),
            producer_id=int(root["producer"]),
            streams={str(name): (int(value[0]), int(value[1])) for name, value in root["streams"].items()},
            jobs={str(name): int(value) for name, value in root["jobs"].items()},
            pending=tuple(_entry(each) for each in root["pending"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CorruptionError(f"journal: invalid contents: {error!r}", position=0) from None


def _entry(value: Mapping[str, object]) -> Entry:
    files, targets = value["files"], value["targets"]
    if not isinstance(files, list) or not isinstance(targets, list):
        raise TypeError("files and targets are lists")
    return Entry(
        query=str(value["query"]),
        batch=int(str(value["batch"])),
        files=tuple(staged_file(each) for each in files),
        job=value["job"] is True,
        targets=tuple(Target(str(t), int(p), int(base), int(first)) for t, p, base, first in targets),
    )


def staged_file(value: Iterable[object]) -> StagedFile:
    """Parse a staged file from JSON; ValueError or TypeError if it is invalid."""
    name, topic, partition, size, crc, records, whole = value
    if not isinstance(name, str) or not isinstance(topic, str) or not isinstance(whole, bool):
        raise TypeError("a staged file has a name, a topic and a flag")
    return StagedFile(name, topic, _count(partition), _count(size), _count(crc), _count(records), whole)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
