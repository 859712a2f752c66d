"""A real broker cleans, and so do we, from the same files at the same moment: the same batches come out.

Each case fills a topic with random records while it may only delete, copies it, lets the broker compact it,
copies it again; twice, so that the second round meets what the first one left. Every random choice comes from
the seed in the case's name; ``STRATALOG_INTEROP=full`` makes many more cases.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratalog.log.write.recovery import OpenAs
from tests.interop.kafka import KafkaBroker, complaints, dump_log, wait_until
from tests.log.cleaner.differential import (
    assert_same,
    checkpoint,
    clean_copy,
    comparable,
    moment_of,
    raw_of,
)
from tests.log.cleaner.support import compacted

pytestmark = pytest.mark.interop

FULL = os.environ.get("STRATALOG_INTEROP") == "full"
SEGMENT_BYTES = 1 << 20  # the least that Kafka takes
DELETE_RETENTION_MS = 1_500
CASES = [
    (codec, kind, seed)
    for seed in range(10 if FULL else 1)
    for codec, kind in (("none", "transactions"), ("lz4", "plain"), ("zstd", "transactions"))
]


class Filler:
    """Random keyed records from several producers, some of them transactional."""

    def __init__(self, broker: KafkaBroker, topic: str, codec: str, kind: str, seed: int) -> None:
        self._topic = topic
        self._rng = random.Random(f"{codec} {kind} {seed}")
        settings: dict[str, Any] = {"compression_type": codec, "linger_ms": 2, "batch_size": 16_384}
        self._plain = [broker.producer(enable_idempotence=at == 0, **settings) for at in range(2)]
        self._transactional = []
        if kind == "transactions":
            for at in range(3):
                producer = broker.producer(transactional_id=f"{topic}-{at}", **settings)
                producer.init_transactions(30)
                self._transactional.append(producer)

    def fill(self, size_bytes: int) -> None:
        """At least so many bytes of values, then enough to roll past them."""
        rng = self._rng
        while size_bytes > 0:
            if self._transactional and rng.random() < 0.6:
                size_bytes -= self._transaction(rng.choice(self._transactional))
            else:
                producer = rng.choice(self._plain)
                size_bytes -= sum(self._send(producer) for _ in range(rng.randint(1, 60)))
                producer.flush(30)

    def _transaction(self, producer: Any) -> int:
        producer.begin_transaction()
        size = sum(self._send(producer) for _ in range(self._rng.randint(1, 40)))
        if self._rng.random() < 0.4:
            producer.flush(30)  # an abort would take back what was not sent yet
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
        return size

    def _send(self, producer: Any) -> int:
        rng = self._rng
        # A few keys are written all the time, many once.
        key = b"key-%d" % min(rng.randrange(5_000), int(rng.expovariate(1 / 60)))
        if rng.random() < 0.02:
            key = rng.randbytes(12)
        value = None if rng.random() < 0.08 else rng.randbytes(rng.randint(0, 700)) + b"v" * 300
        stamp = 1_790_000_000_000 + rng.randrange(10**9)
        producer.produce(self._topic, value, key, timestamp=stamp, headers=[("h", b"1")] if value else [])
        return len(value or b"")


def alter(broker: KafkaBroker, topic: str, policy: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
    from confluent_kafka.admin._resource import ResourceType

    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def copy(source: Path, target: Path) -> Path:
    """The partition as it lies there, less what is about to be removed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.deleted"))
    return target


def wait_until_still(directory: Path) -> None:
    """An aborted transaction is answered before its marker, and the entry of its index, are written."""
    sizes: list[dict[str, int]] = [{}]

    def is_still() -> bool:
        sizes.append({path.name: path.stat().st_size for path in directory.iterdir()})
        return sizes[-1] == sizes[-2]

    wait_until(is_still, f"{directory} to be still")


def active_base(directory: Path) -> int:
    return max(int(path.stem) for path in directory.glob("*.log"))


@pytest.mark.parametrize(("codec", "kind", "seed"), CASES)
def test_the_broker_and_we_clean_alike(
    broker: KafkaBroker, tmp_path: Path, codec: str, kind: str, seed: int
) -> None:
    topic = f"cleaned-{codec}-{kind}-{seed}"
    broker.create_topic(
        topic,
        config={
            "cleanup.policy": "delete",
            "retention.ms": -1,
            "segment.bytes": SEGMENT_BYTES,
            "index.interval.bytes": 2048,
            "delete.retention.ms": DELETE_RETENTION_MS,
            "min.cleanable.dirty.ratio": 0.001,
            "file.delete.delay.ms": 60_000,
            "message.timestamp.before.max.ms": 2**63 - 1,
            "message.timestamp.after.max.ms": 2**63 - 1,
        },
    )
    live = broker.partition_dir(topic)
    filler = Filler(broker, topic, codec, kind, seed)
    config = compacted(
        segment_bytes=SEGMENT_BYTES, index_interval_bytes=2048, delete_retention_ms=DELETE_RETENTION_MS
    )
    first_dirty = 0
    for round_number in (1, 2):
        alter(broker, topic, "delete")
        filler.fill(2_500_000)
        wait_until_still(live)
        before = copy(live, tmp_path / f"{round_number}-before")
        end = active_base(before)
        alter(broker, topic, "compact")
        wait_until(lambda: checkpoint(broker.log_dir, topic) == end, f"the cleaner at {topic}")  # noqa: B023
        after = copy(live, tmp_path / f"{round_number}-after")
        was, wanted = raw_of(before), raw_of(after)
        assert comparable(was) != comparable(wanted)
        now_ms = moment_of(was, wanted, DELETE_RETENTION_MS)
        assert now_ms is not None
        ours = tmp_path / f"{round_number}-ours"
        log, report = clean_copy(before, ours, config, first_dirty, end, now_ms, OpenAs(foreign=True))
        assert_same(log, after)
        assert report.quarantined == ()
        assert log.saved == [end]
        log.writer.close()
        if round_number == 2:
            # It remarks on gaps and on segments of empty batches, the broker's own too.
            assert tool_remarks(ours, end) == tool_remarks(after, end)
        first_dirty = end


def tool_remarks(directory: Path, end: int) -> str:
    """What Kafka's own tool finds odd about sealed segments and their indexes, wherever they lie."""
    sealed = [path for path in sorted(directory.glob("*.*")) if path.stem.isdigit() and int(path.stem) < end]
    files = [path for kind in (".log", ".index", ".timeindex") for path in sealed if path.suffix == kind]
    return "\n".join(complaints(dump_log(files))).replace(str(directory), "")
