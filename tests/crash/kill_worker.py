"""The processes that `kill_campaign` kills: a writer with many threads, and a reader beside it.

Some of the writer's threads append; the others move, compact, retain, archive, delete, roll and flush what
these append to. Both processes note in an append-only file what they were told or shown, one ``write`` each,
which outlives the process. A writer's lines::

    R                                            open for writing
    T topic partition count id                   about to append records id, id+1, …
    B topic partition count id producer sequence the same as a batch that a retry must not store again
    A topic partition count id offset            records id, id+1, … were acknowledged at offset, offset+1, …
    D topic partition offset                     about to delete up to offset
    d topic partition offset                     deleted up to offset
    O operation                                  a move, a roll, a retry, … was done
    C                                            closed in order
    ! error                                      a promise was broken

and a reader's ``S topic partition offset id``. Every record can be made again from its id alone.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa  # noqa: F401 - a worker is forked warm: it must not spend its short life on imports

import stratalog
import stratalog.archive
import stratalog.store
from stratalog.errors import (
    ClosedError,
    ControlError,
    LogDirOfflineError,
    OffsetOutOfRangeError,
    StratalogError,
)
from stratalog.fs import RealFile, RealFileSystem
from stratalog.model import Record
from stratalog.store.lifecycle.reports import LifecycleReport
from stratalog.testing import Fact
from tests.crash.driver import encode_batch

SMALL: dict[str, object] = {
    "segment.bytes": 12 << 10,
    "index.interval.bytes": 512,
    "retention.ms": -1,
    "file.delete.delay.ms": 100,
}
TOPICS: dict[str, tuple[int, dict[str, object]]] = {
    "events": (3, {**SMALL, "key.index.enable": True}),
    "waits": (1, {**SMALL, "flush.messages": 1}),
    "state": (
        2,
        {
            **SMALL,
            "segment.bytes": 6 << 10,
            "key.index.enable": True,
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": 0.01,
            "cleaner.min.segment.age.ms": 0,
            "delete.retention.ms": 0,
        },
    ),
    "kept": (1, {**SMALL, "retention.bytes": 48 << 10}),
    "tiered": (
        1,
        {
            **SMALL,
            "remote.storage.enable": True,
            "local.retention.bytes": 24 << 10,
            "retention.bytes": 96 << 10,
        },
    ),
}
CONFIG: dict[str, object] = {"log.retention.check.interval.ms": 100, "log.cleaner.backoff.ms": 20}
COMPACTED = "state"
DELETED_FROM = ("events", "waits", "tiered")
RETAINED = ("kept", "tiered")
MOVED = ("events", "waits", "state", "kept", "tiered")
APPENDERS = 4
KEEPERS = 3
LOG_DIRS = ("store", "other")
KEPT_RECORDS = 300
SYNC_S = 0.0002
PAUSE_S = 0.002


def log_dirs(directory: str) -> list[str]:
    """Return the log directories of the store, between which partitions move."""
    return [os.path.join(directory, name) for name in LOG_DIRS]


def record_of(topic: str, record_id: int) -> Record:
    """Return the record with this id; in the compacted topic some are tombstones."""
    if topic != COMPACTED:
        return Record(_value(record_id), None if record_id % 5 == 0 else b"key-%d" % (record_id % 97))
    key = b"key-%d" % (record_id % 61)
    if record_id % 7 == 0:
        return Record(None, key, [("id", b"%d:" % record_id)])
    return Record(_value(record_id), key)


def _value(record_id: int) -> bytes:
    size = 16 + (record_id * 2654435761 % 2**32) % 240
    text = b"%d:" % record_id
    return text + (record_id * 0x9E3779B97F4A7C15 % 2**128).to_bytes(16, "big") * (size // 16)


def id_of(topic: str, record: Record) -> int:
    """Return the id of a record, -1 when it is none of ours."""
    text = record.value
    if text is None and record.headers:
        text = record.headers[0][1]
    head, colon, _ = (text or b"").partition(b":")
    if not colon or not head.isdigit():
        return -1
    ours = record_of(topic, int(head))
    same = (ours.value, ours.key, list(ours.headers)) == (record.value, record.key, list(record.headers))
    return int(head) if same else -1


class Notes:
    """Lines that outlive the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._fd, " ".join(map(str, words)).replace("\n", " ").encode() + b"\n")


class Batch(NamedTuple):
    """A producer's batch; whatever becomes of it, it can be sent again."""

    topic: str
    partition: int
    records: int
    first_id: int
    producer_id: int
    sequence: int

    def encoded(self) -> bytes:
        now_ms = int(time.time() * 1000)
        rows = [record_of(self.topic, self.first_id + at) for at in range(self.records)]
        facts = [Fact(row.value, row.key, now_ms, tuple(row.headers)) for row in rows]
        return encode_batch(facts, self.producer_id, self.sequence)


class Writer:
    """A store and the threads that work on it."""

    def __init__(self, directory: str, notes: Notes, store: stratalog.Store, plan: str, end_s: float) -> None:
        self._paths = log_dirs(directory)
        self._notes = notes
        self._store = store
        self._plan = plan
        self._end_s = end_s
        self._closing = False
        self._clients = threading.local()
        self._operations: tuple[Callable[[random.Random], str], ...] = (
            self._move, self._compact, self._retain, self._archive, self._delete, self._roll, self._flush,
        )  # fmt: skip

    def run(self, first_id: int, retries: list[Batch], *, close_early: bool) -> None:
        """Work until the end, then close the store: in order, or with ``close_early`` under the threads."""
        producers = self._store.allocate_producer_ids(APPENDERS)
        threads = [
            threading.Thread(
                target=self._guarded,
                args=(self._append, number, first_id | number << 32, producers[number]),
                daemon=True,
            )
            for number in range(APPENDERS)
        ]
        threads += [
            threading.Thread(
                target=self._guarded, args=(self._keep, number, retries[number::KEEPERS]), daemon=True
            )
            for number in range(KEEPERS)
        ]
        for thread in threads:
            thread.start()
        if close_early:
            time.sleep(max(0.0, self._end_s - time.monotonic()))
        else:
            for thread in threads:
                thread.join()
        self._closing = True
        self._store.close()
        if not close_early:
            self._notes.write("C")
            return
        self._notes.write("O", "close under threads")
        for thread in threads:
            thread.join()

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            ended = isinstance(error, ClosedError | ControlError)
            if not (self._closing and ended):
                self._notes.write("!", f"{type(error).__name__}: {error}")
                raise

    def _client(self) -> stratalog.AdminClient:
        """Return this thread's way through the control socket."""
        if not hasattr(self._clients, "client"):
            self._clients.client = stratalog.connect(self._paths)
        client: stratalog.AdminClient = self._clients.client
        return client

    # -- appending -------------------------------------------------------------------------------------

    def _append(self, number: int, next_id: int, producer_id: int) -> None:
        rng = random.Random(f"{self._plan}/{number}")
        names = list(TOPICS)
        sequences: Counter[tuple[str, int]] = Counter()
        while time.monotonic() < self._end_s:
            name = rng.choices(names, (4, 1, 4, 2, 3))[0]
            partition = rng.randrange(TOPICS[name][0])
            topic = self._store.topic(name)
            chance, sync = rng.random(), rng.random() < 0.04
            count = 1 if 0.2 <= chance < 0.5 else rng.randint(1, 25)
            told = (name, partition, count, next_id)
            rows = [record_of(name, next_id + at) for at in range(count)]
            if chance < 0.2:
                batch = Batch(*told, producer_id, sequences[name, partition])
                sequences[name, partition] += count
                self._send(batch, sync=sync, again=rng.choice(("", "", "after", "at once")))
                next_id += count
                continue
            self._notes.write("T", *told)
            if chance < 0.5:
                row = rows[0]
                at = topic.append(
                    row.value, row.key, headers=row.headers, partition=partition, sync=sync
                ).offset
            elif chance < 0.6:
                at = self._client().append(name, rows, partition, sync)[0].offset
                self._notes.write("O", "append by socket")
            else:
                at = topic.append_many(rows, partition=partition, sync=sync)[0].offset
            self._notes.write("A", *told, at)
            next_id += count
            time.sleep(PAUSE_S)  # for the threads that do everything else

    def _send(self, batch: Batch, *, sync: bool, again: str) -> None:
        """Append a batch, perhaps twice: then both answers must be the same offset."""
        topic, data, told = self._store.topic(batch.topic), batch.encoded(), batch[:4]
        offsets: list[int] = []

        def send() -> None:
            offset = topic.append_batches(batch.partition, data, sync=sync).base_offset
            offsets.append(offset)
            self._notes.write("A", *told, offset)

        self._notes.write("B", *batch)
        if again == "at once":
            other = threading.Thread(target=self._guarded, args=(send,), daemon=True)
            other.start()
            send()
            other.join()
        else:
            send()
            if again:
                send()
        if again:
            self._notes.write("O", f"retry {again}")
        if len(set(offsets)) != 1 and not self._closing:
            self._notes.write("!", f"{batch} was acknowledged at {offsets}")

    # -- everything else -------------------------------------------------------------------------------

    def _keep(self, number: int, retries: list[Batch]) -> None:
        for batch in retries:
            self._send(batch, sync=False, again="")
            self._notes.write("O", "retry of a killed process")
        rng = random.Random(f"{self._plan}/keep/{number}")
        while time.monotonic() < self._end_s:
            done = rng.choices(self._operations, (1, 4, 2, 3, 2, 2, 1))[0](rng)
            if done:
                self._notes.write("O", done)

    def _by(self, rng: random.Random) -> tuple[stratalog.Store | stratalog.AdminClient, str]:
        return (self._client(), " by socket") if rng.random() < 0.3 else (self._store, "")

    @staticmethod
    def _partition(rng: random.Random, names: tuple[str, ...] = tuple(TOPICS)) -> tuple[str, int]:
        name = rng.choice(names)
        return name, rng.randrange(TOPICS[name][0])

    def _move(self, rng: random.Random) -> str:
        name, partition = self._partition(rng, MOVED)
        to = [path for path in self._paths if not os.path.isdir(os.path.join(path, f"{name}-{partition}"))]
        if len(to) != 1:
            return ""  # another thread moves it
        by, how = self._by(rng)
        by.move_partition(name, partition, to[0])
        return "move" + how

    def _compact(self, rng: random.Random) -> str:
        by, how = self._by(rng)
        report = by.compact(COMPACTED, rng.randrange(TOPICS[COMPACTED][0]), force=True)
        self._check(report)
        return "compact" + how if report.compactions else ""

    def _retain(self, rng: random.Random) -> str:
        name = rng.choice(RETAINED)
        by, how = self._by(rng)
        report = by.retain(name)
        self._check(report)
        self._notes.write("d", name, 0, self._store.topic(name).log_start_offset(0))
        return "retain" + how if _did(report, "delete") else ""

    def _archive(self, rng: random.Random) -> str:
        by, how = self._by(rng)
        report = by.archive("tiered")
        self._check(report)
        return "archive" + how if _did(report) else ""

    def _check(self, report: LifecycleReport) -> None:
        """Check that each partition was worked on, unless another thread was at it."""
        for note in report.notes:
            if "running on it" not in note and not self._closing:
                self._notes.write("!", note)

    def _delete(self, rng: random.Random) -> str:
        name, partition = self._partition(rng, DELETED_FROM)
        topic = self._store.topic(name)
        before = topic.high_watermark(partition) - KEPT_RECORDS
        if before <= topic.log_start_offset(partition):
            return ""
        self._notes.write("D", name, partition, before)
        if rng.random() < 0.3:
            self._client().delete_records(name, partition, before)
        else:
            topic.delete_records(partition, before)
        self._notes.write("d", name, partition, before)
        return "delete"

    def _roll(self, rng: random.Random) -> str:
        name, partition = self._partition(rng)
        self._store.topic(name).roll(partition)
        return "roll"

    def _flush(self, rng: random.Random) -> str:
        by, how = self._by(rng)
        by.flush()
        return "flush" + how


def _did(report: LifecycleReport, action: str = "") -> bool:
    return any(step.action != "skip" and action in step.action for step in report.steps)


def writer(
    directory: str, notes_path: str, plan: str, first_id: int, seconds: float, retries: list[list[Any]]
) -> None:
    """Work with many threads for a while, then stop, unless killed before."""
    sys.setswitchinterval(0.0005)
    rng = random.Random(plan)
    if rng.random() < 0.8:
        skip_syncs()
    notes = Notes(notes_path)
    store = stratalog.open(log_dirs(directory), CONFIG, janitor=rng.random() < 0.3)
    for name, (partitions, config) in TOPICS.items():
        if name not in store.topics():
            store.create_topic(name, partitions, config)
    notes.write("R")
    working = Writer(directory, notes, store, plan, time.monotonic() + seconds)
    working.run(first_id, [Batch(*each) for each in retries], close_early=rng.random() < 0.5)


def skip_syncs() -> None:
    """Spend no time on syncs: what a killed process wrote outlives it without them. Other threads get in."""
    setattr(RealFile, "sync", lambda file: time.sleep(SYNC_S))  # noqa: B010 - a method, for this process
    setattr(RealFileSystem, "sync_dir", lambda fs, path: time.sleep(SYNC_S))  # noqa: B010


def reader(directory: str, notes_path: str, plan: str) -> None:
    """Follow every partition as another process would, and note some of what was seen."""
    notes = Notes(notes_path)
    rng = random.Random(f"{plan}/reader")
    places: dict[tuple[str, int], int] = {}
    if not all(os.path.isdir(each) for each in log_dirs(directory)):
        return  # the first writer has not made them all
    with stratalog.open(log_dirs(directory), read_only=True) as store:
        while True:
            for name in store.topics():
                topic = store.topic(name)
                for partition in range(topic.partitions):
                    _look(topic, partition, places, notes, rng)
            time.sleep(0.002)


def _look(
    topic: stratalog.Topic,
    partition: int,
    places: dict[tuple[str, int], int],
    notes: Notes,
    rng: random.Random,
) -> None:
    at = places.get((topic.name, partition))
    try:
        if at is None:
            at = max(topic.log_start_offset(partition), topic.high_watermark(partition) - 500)
        for record in topic.read(partition, at):
            record_id = id_of(topic.name, record)
            if record_id < 0 or record.offset < at:
                notes.write("!", f"{topic.name} {partition} at {at}: {record}")
            elif rng.random() < 0.1:
                notes.write("S", topic.name, partition, record.offset, record_id)
            at = record.offset + 1
    except OffsetOutOfRangeError as error:
        at = error.first
    except LogDirOfflineError:
        return  # the topic is still being made
    places[topic.name, partition] = at


def zygote(channel: socket.socket) -> None:
    """A process with everything imported and nothing opened: it forks workers, and says when they died."""
    lines = channel.makefile("rw")
    for line in lines:
        order: dict[str, Any] = json.loads(line)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            answer = {"status": status}
        else:
            pid = os.fork()
            if pid == 0:
                _worker(order)
            answer = {"pid": pid}
        lines.write(json.dumps(answer) + "\n")
        lines.flush()


def _worker(order: dict[str, Any]) -> None:
    try:
        {"writer": writer, "reader": reader}[order.pop("work")](**order)
    except (Exception, StratalogError) as error:  # noqa: BLE001 - told to the parent, whatever it is
        Notes(order["notes_path"]).write("!", f"{type(error).__name__}: {error}")
        traceback.print_exc(file=sys.stderr)
        os._exit(3)
    os._exit(0)
