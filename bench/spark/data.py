"""What is read: produced once into a real broker, and its segments as a store of ours by hard links."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stratalog
from bench.harness import MismatchError
from bench.spark.sizes import BATCH_BYTES, FIRST_MS, PARTITIONS, RECORDS_PER_MS, SEGMENTED, Load

_RUN = 2_000
_TEXT = bytes(random.Random(5).choices(b"abcdefghijklmnopqrstuvwxyz0123456789 ", k=1 << 16))
BROKER_SETTINGS = {"log.segment.delete.delay.ms": 60_000, "log.retention.check.interval.ms": 300_000}


def records(load: Load) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Partition, timestamp, key and value of every record, following from its number."""
    chance = random.Random(load.records)
    room = len(_TEXT) - load.value_bytes
    for number in range(load.records):
        key = b"key-%0*d" % (load.key_bytes - 4, int(chance.random() ** 3 * load.keys))
        start = number * 7_919 % room
        value = b"%010d" % number + _TEXT[start : start + load.value_bytes - 10]
        yield number // _RUN % PARTITIONS, FIRST_MS + number // RECORDS_PER_MS, key, value


def produce(broker: Any, load: Load) -> None:
    """The whole load, uncompressed, in batches as large as the Java client makes them."""
    settings = {"segment.bytes": load.segment_bytes, "retention.ms": -1}
    broker.create_topic(load.topic, PARTITIONS, settings)
    producer = broker.producer(
        batch_size=BATCH_BYTES,
        linger_ms=100,
        compression_type="none",
        queue_buffering_max_messages=1_000_000,
    )
    failed: list[str] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    for number, (partition, timestamp, key, value) in enumerate(records(load)):
        if number % 10_000 == 0:
            producer.poll(0)
        while True:
            try:
                producer.produce(
                    load.topic, value, key, partition, timestamp=timestamp, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(600) or failed:
        raise MismatchError(f"{load.topic}: the broker did not take every record: {failed[:1]}")


def segmented(store: Path, load: Load, segments: int) -> None:
    """A topic of ours with so many sealed segments."""
    each = SEGMENTED // segments
    with stratalog.open(store, background=False) as opened:
        topic = opened.create_topic(load.topic, config={"retention.ms": -1})
        rows = [(_TEXT[: load.value_bytes], b"key-%d" % (number % 500)) for number in range(each)]
        for _ in range(segments):
            topic.append_many(rows)
            topic.roll()


def adopt(log_dir: Path, store: Path, loads: tuple[Load, ...]) -> None:
    """A store of ours over the broker's segments; every one of them sealed, the last by rolling it."""
    store.mkdir(parents=True)
    for load in loads:
        for partition in range(PARTITIONS):
            directory = log_dir / f"{load.topic}-{partition}"
            last = max(directory.glob("*.log"))
            target = store / directory.name
            target.mkdir()
            for file in directory.iterdir():
                if file.suffix == ".log" and file != last:
                    os.link(file, target / file.name)
                elif file.suffix != ".snapshot":
                    shutil.copy2(file, target / file.name)
    with stratalog.open(store, background=False) as opened:
        for load in loads:
            topic = opened.topic(load.topic)
            opened.alter_topic(load.topic, {"retention.ms": -1})
            topic.roll()
            held = sum(topic.log_end_offset(partition) for partition in range(PARTITIONS))
            if held != load.records:
                raise MismatchError(f"{load.topic}: {held} records were adopted, {load.records} produced")
    for load in loads:
        for partition in range(PARTITIONS):
            logs = sorted((store / f"{load.topic}-{partition}").glob("*.log"))
            unsealed = [log.name for log in logs[:-1] if not log.with_suffix(".seal").exists()]
            if unsealed:
                raise MismatchError(f"{load.topic}-{partition}: not sealed: {', '.join(unsealed)}")


def linked_copy(store: Path, target: Path, load: Load) -> None:
    """One topic of a store in a store of its own, its sealed logs by hard links."""

    def link(source: str, there: str) -> None:
        if source.endswith(".log") and os.path.getsize(source):
            os.link(source, there)  # a sealed log is replaced, never modified
        else:
            shutil.copy2(source, there)

    target.mkdir(parents=True)
    for partition in range(PARTITIONS):
        name = f"{load.topic}-{partition}"
        shutil.copytree(store / name, target / name, copy_function=link)


def warm(store: Path, load: Load) -> None:
    """Have the page cache hold a topic's logs."""
    buffer = bytearray(1 << 20)
    for partition in range(PARTITIONS):
        for path in (store / f"{load.topic}-{partition}").glob("*.log"):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
