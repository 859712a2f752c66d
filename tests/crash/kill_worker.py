"""The processes that `kill_campaign` kills: a writer with several threads, and a reader beside it.

Both note in an append-only file what they were told or shown, one ``write`` each, which outlives the process.
A writer's lines::

    A topic partition offset count id    records id, id+1, … were acknowledged at offset, offset+1, …
    D topic partition offset             about to delete up to offset
    d topic partition offset             deleted up to offset

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
from typing import Any

import pyarrow as pa  # noqa: F401 - a worker is forked warm: it must not spend its short life on imports

import stratalog
import stratalog.store
from stratalog.errors import LogDirOfflineError, OffsetOutOfRangeError, StratalogError
from stratalog.model import Record

TOPICS: dict[str, tuple[int, dict[str, object]]] = {
    "events": (3, {"segment.bytes": 48 << 10, "index.interval.bytes": 512, "key.index.enable": True}),
    "waits": (1, {"segment.bytes": 16 << 10, "flush.messages": 1, "index.interval.bytes": 512}),
}
THREADS = 4
KEPT_RECORDS = 4000


def value_of(record_id: int) -> bytes:
    size = 16 + (record_id * 2654435761 % 2**32) % 240
    text = b"%d:" % record_id
    return text + (record_id * 0x9E3779B97F4A7C15 % 2**128).to_bytes(16, "big") * (size // 16)


def key_of(record_id: int) -> bytes | None:
    return None if record_id % 5 == 0 else b"key-%d" % (record_id % 97)


def id_of(value: bytes | None) -> int:
    """The id of a record, -1 when it is none of ours."""
    head, colon, _ = (value or b"").partition(b":")
    return int(head) if colon and head.isdigit() else -1


class Notes:
    """Lines that outlive the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")


def writer(directory: str, notes_path: str, seed: int, round_number: int, seconds: float) -> None:
    """Append from several threads for a while, then stop in order, unless killed before."""
    notes = Notes(notes_path)
    store = stratalog.open(directory)
    for name, (partitions, config) in TOPICS.items():
        if name not in store.topics():
            store.create_topic(name, partitions, config)
    notes.write("R")
    deadline = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_appender, args=(store, notes, seed, round_number, number, deadline))
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    notes.write("C")


def _appender(store: stratalog.Store, notes: Notes, *plan: Any) -> None:
    try:
        _append(store, notes, *plan)
    except Exception as error:
        notes.write(f"! {type(error).__name__}: {error}".replace("\n", " "))
        raise


def _append(
    store: stratalog.Store, notes: Notes, seed: int, round_number: int, number: int, deadline: float
) -> None:
    rng = random.Random(f"{seed}/{round_number}/{number}")
    next_id = round_number << 40 | number << 32
    while time.monotonic() < deadline:
        name = "waits" if rng.random() < 0.2 else "events"
        partition = rng.randrange(TOPICS[name][0])
        topic = store.topic(name)
        chance = rng.random()
        sync = rng.random() < 0.05
        if chance < 0.005:
            topic.roll(partition)
        elif chance < 0.01:
            before = topic.high_watermark(partition) - KEPT_RECORDS
            if before > topic.log_start_offset(partition):
                notes.write(f"D {name} {partition} {before}")
                topic.delete_records(partition, before)
                notes.write(f"d {name} {partition} {before}")
        elif chance < 0.6:
            at = topic.append(value_of(next_id), key_of(next_id), partition=partition, sync=sync).offset
            notes.write(f"A {name} {partition} {at} 1 {next_id}")
            next_id += 1
        else:
            ids = range(next_id, next_id + rng.randint(1, 60))
            rows = [Record(value_of(each), key_of(each)) for each in ids]
            placed = topic.append_many(rows, partition=partition, sync=sync)[0]
            notes.write(f"A {name} {partition} {placed.offset} {placed.count} {next_id}")
            next_id += len(ids)


def reader(directory: str, notes_path: str, seed: int, round_number: int, seconds: float) -> None:
    """Follow every partition as another process would, and note some of what was seen."""
    notes = Notes(notes_path)
    rng = random.Random(f"{seed}/{round_number}/reader")
    places: dict[tuple[str, int], int] = {}
    with stratalog.open(directory, read_only=True) as store:
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
            record_id = id_of(record.value)
            if record_id < 0 or record.value != value_of(record_id) or record.offset < at:
                notes.write(f"! {topic.name} {partition} at {at}: {record}")
            elif rng.random() < 0.1:
                notes.write(f"S {topic.name} {partition} {record.offset} {record_id}")
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
    except FileNotFoundError:
        os._exit(0)  # a reader that came before the first directory was there
    except (Exception, StratalogError) as error:  # noqa: BLE001 - told to the parent, whatever it is
        Notes(order["notes_path"]).write(f"! {type(error).__name__}: {error}".replace("\n", " "))
        traceback.print_exc(file=sys.stderr)
        os._exit(3)
    os._exit(0)
