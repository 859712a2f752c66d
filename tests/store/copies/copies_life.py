"""A random life of a store, and what it must look like as of any moment: the model that copies are judged by.

Records of all shapes and codecs, time that runs back and ahead, idempotent producers and transactions,
segments of every size, log starts that move. The model is read off the raw bytes, batch by batch.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import stratalog
from stratalog import Record, kernel
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.fs import FileSystem
from stratalog.store.store import Store
from stratalog.testing import ManualClock, MemoryFileSystem, committed, read_raw
from stratalog.testing.raw import RawBatch

TOPIC = "t"
LIVES = 50 if kernel.compiled else 8
CONFIG = {"num.recovery.threads.per.data.dir": 1}
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


class Producer(NamedTuple):
    id: int
    sequence: dict[int, int]
    open: set[int]


class Life:
    """A store of one topic that has seen things. Every choice comes from the seed."""

    def __init__(
        self,
        seed: int,
        *,
        fs: FileSystem | None = None,
        root: str = "/data/log",
        steps: int = 40,
        archived: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(1_700_000_000_000)
        self.fs = fs or MemoryFileSystem(clock=self.clock.now_ns)
        self.root = root
        self.partitions = self.chance.randint(1, 2)
        self.producers = [Producer(100 + n, {}, set()) for n in range(2)]
        self.archived = archived
        self.past: dict[int, list[RawBatch]] = {}
        self.written: dict[str, int] = {}
        """When segments that are no longer here were last written."""
        self.appended = self.chance.random() < 0.2
        self.store = self.open()
        self.store.create_topic(
            TOPIC,
            self.partitions,
            {
                "segment.bytes": self.chance.choice((2600, 6000, 20_000)),
                "index.interval.bytes": self.chance.choice((1, 300, 4096)),
                "compression.type": self.chance.choice(("producer", *CODECS)),
                "key.index.enable": self.chance.random() < 0.3,
                "message.timestamp.type": "LogAppendTime" if self.appended else "CreateTime",
                "remote.storage.enable": archived,
                "file.delete.delay.ms": 0,
                "retention.ms": -1,
                "local.retention.ms": -1 if archived else -2,
                "flush.messages": self.chance.choice((1, 5, 2**63 - 1)),
            },
        )
        for _ in range(steps):
            self.step()

    def open(self) -> Store:
        return stratalog.open(self.root, CONFIG, fs=self.fs, clock=self.clock, background=False)

    @property
    def topic(self) -> stratalog.Topic:
        return self.store.topic(TOPIC)

    def time(self) -> int:
        """Mostly now, sometimes late, sometimes stamped in the future."""
        now = self.clock.now_ms()
        return now + self.chance.choice((0, 0, 0, -5, -2_000, -60_000, 40, 30_000))

    def records(self) -> list[Record]:
        return [
            Record(
                self.chance.choice((None, b"", self.chance.randbytes(self.chance.randint(1, 150)))),
                self.chance.choice((None, b"", b"k%d" % self.chance.randrange(5))),
                [("h", None), ("i", b"x")][: self.chance.randrange(3)],
                self.time(),
            )
            for _ in range(self.chance.choice((1, 1, 2, 5, 12)))
        ]

    def step(self) -> None:
        self.clock.advance(self.chance.choice((1, 10, 1000, 30_000)))
        partition = self.chance.randrange(self.partitions)
        match self.chance.randrange(12):
            case 0:
                self.topic.roll(partition)
            case 1:
                if self.chance.random() < 0.3:
                    self.delete_some(partition)
            case 2 | 3 | 4 | 5:
                self.produce(partition, self.chance.choice(self.producers))
            case 6:
                self.store.tick()
            case 8 if self.archived:
                self.leave()
            case 7 if self.chance.random() < 0.3:
                self.store.close()
                self.store = self.open()
            case _:
                self.topic.append_many(self.records(), partition=partition)

    def produce(self, partition: int, producer: Producer) -> None:
        """An idempotent batch, a transactional one, or the end of a transaction."""
        if partition in producer.open and self.chance.random() < 0.4:
            commit = self.chance.random() < 0.5
            self.topic.end_transaction(partition, producer_id=producer.id, producer_epoch=0, commit=commit)
            producer.open.discard(partition)
            return
        transactional = partition in producer.open or self.chance.random() < 0.7
        self.append_from(self.topic, partition, producer, self.records(), transactional=transactional)
        if transactional:
            producer.open.add(partition)

    def append_from(
        self,
        topic: stratalog.Topic,
        partition: int,
        producer: Producer,
        records: list[Record],
        *,
        transactional: bool,
        sequence: int | None = None,
    ) -> None:
        at = producer.sequence.get(partition, 0) if sequence is None else sequence
        encoded, _ = batches.encode_records(
            records,
            options=batches.BatchOptions(
                base_offset=0,
                leader_epoch=0,
                now_ms=self.clock.now_ms(),
                codec=codecs.NAMES[self.chance.choice(CODECS)]
                if topic.config.compression_type == "producer"
                else 0,
                max_bytes=1 << 20,
                producer_id=producer.id,
                producer_epoch=0,
                base_sequence=at,
                transactional=transactional,
            ),
        )
        topic.append_batches(partition, bytes(encoded.data))
        if sequence is None:
            producer.sequence[partition] = at + len(records)

    def delete_some(self, partition: int) -> None:
        start, end = self.topic.log_start_offset(partition), self.topic.high_watermark(partition)
        before = self.chance.randint(start, (start + end) // 2)
        open_since: dict[int, int] = {}
        for each in self.raw(partition):
            producer = each.header.producer_id
            if each.marker is None and each.header.is_transactional:
                open_since.setdefault(producer, each.header.base_offset)
            elif (
                each.marker and open_since.pop(producer) < before <= each.header.base_offset and self.archived
            ):
                return  # an archive knows nothing of transactions that began before it does
        if not self.archived or all(before <= first for first in open_since.values()):
            self.remember()
            self.topic.delete_records(partition, before)

    def leave(self) -> None:
        """What is sealed goes to the archive, and most of it from here."""
        self.remember()
        self.store.archive()
        if self.chance.random() < 0.7:
            self.store.alter_topic(TOPIC, {"local.retention.ms": 1})
            self.store.archive()
            self.store.alter_topic(TOPIC, {"local.retention.ms": -1})
            self.store.tick()

    def remember(self) -> None:
        """What is about to leave the directory."""
        for partition in range(self.partitions):
            self.past[partition] = self.raw(partition)
            for each in self.topic.segments(partition):
                path = f"{self.root}/{TOPIC}-{partition}/{each.base_offset:020d}.log"
                if self.fs.exists(path):
                    self.written[path] = self.fs.stat(path).mtime_ns // 1_000_000

    # -- the model -----------------------------------------------------------------------------------

    def raw(self, partition: int) -> list[RawBatch]:
        """Every batch there ever was; deleting the head of a log does not end what began there."""
        found = {each.header.base_offset: each for each in self.past.get(partition, [])}
        for each in read_raw(self.fs, f"{self.root}/{TOPIC}-{partition}", TOPIC, partition):
            found[each.header.base_offset] = each
        return [found[base] for base in sorted(found)]

    def end_at(self, partition: int, time_ms: int) -> int:
        """By the definition: the first record or marker, from the log's start on, that is later than the
        moment, by its own time and by when its segment was last written."""
        start, end = self.topic.log_start_offset(partition), self.topic.high_watermark(partition)
        for each in self.raw(partition):
            if each.header.last_offset < start:
                continue
            path = f"{self.root}/{TOPIC}-{partition}/{each.segment:020d}.log"
            there = self.fs.exists(path)
            written = self.fs.stat(path).mtime_ns // 1_000_000 if there else self.written[path]
            times = [(record.offset, record.timestamp) for record in each.records]
            if each.marker is not None:
                times = [(each.header.base_offset, each.header.max_timestamp)]
            for offset, timestamp in times:
                assert timestamp is not None
                if start <= offset < end and min(timestamp, written) > time_ms:
                    return offset
        return end

    def expected(self, partition: int, cut: int, isolation: str = "read_uncommitted") -> list[Record]:
        """The records of the partition as it was when it ended at ``cut``."""
        start = self.topic.log_start_offset(partition)
        kept = [
            each._replace(records=tuple(record for record in each.records if record.offset < cut))
            for each in self.raw(partition)
            if each.header.base_offset < cut
        ]
        if isolation == "read_committed":
            found = committed(kept)
        else:
            found = [record for each in kept for record in each.records]
        return [record for record in found if record.offset >= start]
