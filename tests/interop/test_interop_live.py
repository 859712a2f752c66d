"""We read the log directory of a running broker while it writes, rolls, cleans and deletes.

Whatever we read must be what the producer was told at that offset, never half a batch, never out of order;
and in the end nothing acknowledged may be missing that the broker still keeps.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import stratalog
from stratalog.errors import OffsetOutOfRangeError
from tests.interop.kafka import KafkaBroker, wait_until
from tests.interop.samples import Seen, seen_by_client, seen_by_us

pytestmark = pytest.mark.interop

SEGMENT_BYTES = 2**20  # the least that Kafka takes


class Writer(threading.Thread):
    """Produces until told to stop, at a bounded rate, and remembers what was acknowledged at which offset."""

    def __init__(self, broker: KafkaBroker, topic: str, *, keys: int, value_bytes: int, codec: str) -> None:
        super().__init__(name=f"writer of {topic}", daemon=True)
        self.topic = topic
        self.acknowledged: dict[int, Seen] = {}
        self.errors: list[str] = []
        self._producer = broker.producer(compression_type=codec, linger_ms=5, batch_size=64 * 1024)
        self._keys = keys
        self._value_bytes = value_bytes
        self._done = threading.Event()

    def run(self) -> None:
        chance = random.Random(7)
        number = 0
        while not self._done.is_set():
            for _ in range(200):
                self._send(chance, number)
                number += 1
            self._producer.poll(0)
            self._done.wait(0.015)
        self._producer.flush(60)

    def finish(self) -> dict[int, Seen]:
        self._done.set()
        self.join(90)
        assert not self.is_alive()
        assert self.errors == []
        return self.acknowledged

    def _send(self, chance: random.Random, number: int) -> None:
        key = b"key-%d" % chance.randrange(self._keys)
        tombstone = number % 97 == 96
        value = None if tombstone else b"%d " % number + chance.randbytes(self._value_bytes // 2) * 2
        headers: list[tuple[str, bytes | None]] = [("n", b"%d" % number)] if number % 3 == 0 else []
        # a stamp of its own for each record, so that a swapped one shows
        stamp = int(time.time() * 1000) - chance.randrange(1000)
        self._producer.produce(
            self.topic,
            value,
            key,
            headers=headers,
            timestamp=stamp,
            on_delivery=partial(self._delivered, headers),
        )

    def _delivered(self, headers: list[tuple[str, bytes | None]], error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:  # the client's report leaves the headers out
            self.acknowledged[message.offset()] = seen_by_client(message)._replace(headers=tuple(headers))


def read_pass(topic: stratalog.Topic, start: int, seen: dict[int, Seen]) -> int:
    """Reads once from ``start`` to the present end into ``seen``; returns the offset to go on from."""
    last = start - 1
    for record in topic.read(partition=0, start=start):
        one = seen_by_us(record)
        assert one.offset > last, "offsets must rise"
        last = one.offset
        assert seen.setdefault(one.offset, one) == one, "the same offset must give the same record"
    return last + 1


def compare(seen: dict[int, Seen], acknowledged: dict[int, Seen]) -> None:
    """Every record read is the one acknowledged at its offset (flushed writers know of all of them)."""
    wrong = [offset for offset, record in seen.items() if acknowledged.get(offset) != record]
    assert not wrong, f"{len(wrong)} of {len(seen)} records differ, first at offset {min(wrong)}"


def rolled(broker: KafkaBroker, topic: str, segments: int) -> Callable[[], bool]:
    """Whether the broker has begun its n-th segment."""
    return lambda: len(list(broker.partition_dir(topic).glob("*.log"))) >= segments


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_following_a_partition_that_rolls(broker: KafkaBroker, codec: str) -> None:
    name = f"rolling-{codec}"
    broker.create_topic(name, config={"segment.bytes": SEGMENT_BYTES, "retention.ms": -1})
    writer = Writer(broker, name, keys=1_000, value_bytes=400, codec=codec)
    seen: dict[int, Seen] = {}
    has_rolled = rolled(broker, name, 12)
    with stratalog.open(broker.log_dir, read_only=True) as store:
        topic = store.topic(name)
        writer.start()
        next_offset = 0
        deadline = time.monotonic() + 60
        while not has_rolled() and time.monotonic() < deadline:
            next_offset = read_pass(topic, next_offset, seen)
        acknowledged = writer.finish()
        read_pass(topic, next_offset, seen)
    assert has_rolled(), "the broker was meant to roll a dozen segments"
    compare(seen, acknowledged)
    assert sorted(seen) == list(range(len(acknowledged)))


def test_follow_waits_for_the_broker(broker: KafkaBroker) -> None:
    broker.create_topic("followed", config={"segment.bytes": SEGMENT_BYTES, "retention.ms": -1})
    writer = Writer(broker, "followed", keys=100, value_bytes=300, codec="zstd")
    seen: dict[int, Seen] = {}
    with stratalog.open(broker.log_dir, read_only=True) as store:
        writer.start()
        for record in store.topic("followed").read(partition=0, start=0, follow=True):
            one = seen_by_us(record)
            assert one.offset == len(seen)
            seen[one.offset] = one
            if len(seen) == 20_000:
                break
    compare(seen, writer.finish())


def test_reading_a_partition_that_is_cleaned(broker: KafkaBroker) -> None:
    """Passes over the whole log while segments are cleaned and swapped under the reader."""
    broker.create_topic(
        "cleaned",
        config={
            "cleanup.policy": "compact",
            "segment.bytes": SEGMENT_BYTES,
            "min.cleanable.dirty.ratio": 0.01,
            "min.compaction.lag.ms": 0,
            "delete.retention.ms": 100,
            "file.delete.delay.ms": 100,
        },
    )
    writer = Writer(broker, "cleaned", keys=500, value_bytes=600, codec="none")
    seen: dict[int, Seen] = {}
    passes = 0
    checkpoint = broker.log_dir / "cleaner-offset-checkpoint"

    def cleaned_up_to() -> int:
        lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        return max((int(line.split()[2]) for line in lines if line.startswith("cleaned ")), default=0)

    with stratalog.open(broker.log_dir, read_only=True) as store:
        topic = store.topic("cleaned")
        writer.start()
        rounds: set[int] = set()
        deadline = time.monotonic() + 90
        while len(rounds) < 12 and time.monotonic() < deadline:
            read_pass(topic, 0, seen)
            passes += 1
            rounds.add(cleaned_up_to())
        acknowledged = writer.finish()
        final: dict[int, Seen] = {}
        read_pass(topic, 0, final)
    assert len(rounds) >= 12, "the broker was meant to clean a dozen times"
    assert passes >= 3
    compare(seen, acknowledged)
    compare(final, acknowledged)
    assert len(final) < len(acknowledged), "cleaning leaves gaps"
    latest = {record.key: record for _, record in sorted(acknowledged.items())}
    kept = {record.key: record for _, record in sorted(final.items())}
    for key, record in latest.items():
        # a tombstone may be gone already, and then so is all that came before it
        assert kept.get(key, record if record.value is None else None) == record


def test_reading_a_partition_whose_head_is_deleted(broker: KafkaBroker) -> None:
    broker.create_topic(
        "shrinking",
        config={
            "segment.bytes": SEGMENT_BYTES,
            "retention.bytes": 2 * SEGMENT_BYTES,
            "file.delete.delay.ms": 0,
        },
    )
    writer = Writer(broker, "shrinking", keys=100, value_bytes=1_000, codec="none")
    seen: dict[int, Seen] = {}
    refused = 0
    with stratalog.open(broker.log_dir, read_only=True) as store:
        topic = store.topic("shrinking")
        writer.start()
        starts: set[int] = set()
        deadline = time.monotonic() + 60
        while len(starts) < 5 and time.monotonic() < deadline:
            start = topic.log_start_offset(0)
            starts.add(start)
            try:
                read_pass(topic, start, seen)
            except OffsetOutOfRangeError as error:  # deleted between the two calls
                refused += 1
                first_after_refusal = error.first
            else:
                first_after_refusal = start
            assert first_after_refusal >= start
        acknowledged = writer.finish()
        with pytest.raises(OffsetOutOfRangeError):
            next(iter(topic.read(partition=0, start=0)))
    assert len(starts) >= 5, "the broker was meant to delete several segments"
    assert refused < len(starts)
    compare(seen, acknowledged)


def test_transactions_are_read_as_the_consumer_reads_them(broker: KafkaBroker) -> None:
    broker.create_topic("bank", config={"segment.bytes": SEGMENT_BYTES, "retention.ms": -1})
    producer = broker.producer(transactional_id="teller")
    producer.init_transactions(30)
    for number in range(60):
        producer.begin_transaction()
        for n in range(5):
            producer.produce("bank", b"%d/%d" % (number, n), b"account-%d" % n)
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce("bank", b"still open", b"account-0")
    assert producer.flush(30) == 0
    with stratalog.open(broker.log_dir, read_only=True) as store:
        topic = store.topic("bank")
        for isolation in ("read_uncommitted", "read_committed"):
            ours = [seen_by_us(record) for record in topic.read(partition=0, start=0, isolation=isolation)]
            theirs = [seen_by_client(message) for message in broker.consume("bank", isolation=isolation)]
            assert ours == theirs
            assert len(ours) == (200 if isolation == "read_committed" else 301)
    producer.abort_transaction(30)


def test_reading_next_to_a_broker_that_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a killed broker left is readable as it is, before the broker's own recovery."""
    with KafkaBroker(tmp_path_factory.mktemp("killed")) as broker:
        broker.create_topic("victim", config={"segment.bytes": SEGMENT_BYTES, "retention.ms": -1})
        writer = Writer(broker, "victim", keys=100, value_bytes=400, codec="snappy")
        writer.start()
        wait_until(rolled(broker, "victim", 4), "four segments")
        acknowledged = writer.finish()
        broker.kill()
        seen: dict[int, Seen] = {}
        with stratalog.open(broker.log_dir, read_only=True) as store:
            read_pass(store.topic("victim"), 0, seen)
        assert seen == acknowledged
