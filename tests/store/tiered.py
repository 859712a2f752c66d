"""A store with an archive, both in memory, and what it must remember; for tests of tiering."""

from __future__ import annotations

import random
from collections.abc import Mapping

import stratalog
from stratalog import Record, Store, Topic
from stratalog.archive import Archive, ArchiveOptions, Objects
from stratalog.archive.objects import DirectoryObjects
from stratalog.store.tier.tiering import Tiering
from stratalog.testing import ManualClock, MemoryFileSystem
from tests.archive.faulty import FaultyObjects

ROOT = "/data/log"
TOPIC = "orders"
CONFIG: dict[str, object] = {
    "num.recovery.threads.per.data.dir": 1,
    "log.archive.threads": 1,
    "log.archive.cache.bytes": 8 << 20,
}
TOPIC_CONFIG: dict[str, object] = {
    "remote.storage.enable": True,
    "key.index.enable": True,
    "retention.ms": -1,
    "local.retention.ms": -1,
    "file.delete.delay.ms": 0,
}
EVERYTHING_GOES = {"local.retention.ms": 1}
RECORDS = 12


class Tiered:
    """One topic of one partition, archived through requests that a test may interfere with."""

    def __init__(self, objects: Objects | None = None, fs: MemoryFileSystem | None = None) -> None:
        self.clock = ManualClock()
        self.fs = fs or MemoryFileSystem(clock=self.clock.now_ns)
        self.cloud = objects or DirectoryObjects(MemoryFileSystem(), "/cloud")
        self.objects = FaultyObjects(self.cloud)
        self.opened: Store | None = None
        self.records: dict[int, Record] = {}
        """What was appended, by offset."""
        self.surely_gone: set[int] = set()
        self.perhaps_gone: set[int] = set()

    # -- life ------------------------------------------------------------------------------------------

    def open(self, **config: object) -> Store:
        self.opened = stratalog.open(
            ROOT,
            {**CONFIG, **config},
            fs=self.fs,
            clock=self.clock,
            objects=self.objects,
            background=False,
        )
        return self.opened

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None

    def reboot(self) -> Store:
        """The process was killed: another one opens what is there, with a healthy object store."""
        if self.opened is not None:
            self.opened.partitions.archives.close()
        self.fs.crash()
        self.fs = self.fs.survivor("kill", random.Random(0))
        self.objects = FaultyObjects(self.cloud)
        return self.open()

    @property
    def store(self) -> Store:
        assert self.opened is not None
        return self.opened

    @property
    def topic(self) -> Topic:
        return self.store.topic(TOPIC)

    @property
    def tiering(self) -> Tiering:
        tiering = self.store.partitions.archives.tiering
        assert tiering is not None
        return tiering

    def create(self, **config: object) -> Topic:
        named = {name.replace("_", "."): value for name, value in config.items()}
        return self.store.create_topic(TOPIC, config={**TOPIC_CONFIG, **named})

    # -- work ------------------------------------------------------------------------------------------

    def append(
        self, count: int = RECORDS, keys: int = 5, values: Mapping[int, bytes | None] | None = None
    ) -> None:
        """Records with rising timestamps; key k<n % keys>."""
        first = self.topic.log_end_offset()
        for offset in range(first, first + count):
            record = Record(
                (values or {}).get(offset, f"value {offset} ".encode() * 4),
                key=f"k{offset % keys}".encode(),
                timestamp=self.clock.now_ms() - 1_000_000 + offset * 10,
            )
            where = self.topic.append(*record[:1], key=record.key, timestamp=record.timestamp)
            assert where.offset == offset
            self.records[offset] = record
        self.topic.flush()

    def seal(self, segments: int = 1, count: int = RECORDS) -> None:
        for _ in range(segments):
            self.append(count)
            self.topic.roll()

    def archive(self) -> None:
        """Copy what is due; what may leave leaves with the round after it."""
        self.store.archive()

    def leave(self) -> None:
        """Archive everything sealed and keep nothing of it here."""
        self.store.archive()
        self.store.alter_topic(TOPIC, EVERYTHING_GOES)
        self.store.archive()
        self.store.alter_topic(TOPIC, {"local.retention.ms": -1})
        self.store.tick()

    def delete_records(self, before: int) -> None:
        doomed = {offset for offset in self.records if offset < before}
        self.perhaps_gone |= doomed
        self.topic.delete_records(0, before)
        self.surely_gone |= doomed

    def erase(self, key: bytes) -> None:
        doomed = {offset for offset, record in self.records.items() if record.key == key}
        self.perhaps_gone |= doomed
        self.store.erase(TOPIC, [key])
        self.surely_gone |= doomed

    # -- judging ---------------------------------------------------------------------------------------

    def states(self) -> list[tuple[int, str]]:
        return [(segment.base_offset, str(segment.state)) for segment in self.topic.segments(0)]

    def check(self) -> None:
        """Nothing lost, nothing back from the dead, every way of reading tells the same."""
        found = {record.offset: record for record in self.topic.read(0)}
        assert not self.surely_gone & found.keys(), "back from the dead"
        missing = self.records.keys() - found.keys() - self.perhaps_gone
        assert not missing, f"lost: {sorted(missing)}"
        for offset, record in found.items():
            wanted = self.records[offset]
            assert (record.value, record.key, record.timestamp) == (
                wanted.value,
                wanted.key,
                wanted.timestamp,
            )
        table = self.topic.scan([0], ["offset", "value"]).read_all()
        assert table["offset"].to_pylist() == sorted(found)
        assert table["value"].to_pylist() == [found[offset].value for offset in sorted(found)]
        for key in {record.key or b"" for record in found.values()}:
            mine = [offset for offset in sorted(found) if found[offset].key == key]
            assert [record.offset for record in self.topic.history(key)] == mine
        for offset in list(found)[::7]:
            assert self.topic.offset_for_time(0, found[offset].timestamp or 0) == offset
            assert self.topic.at(offset) == found[offset]

    def named(self) -> set[str]:
        """Every object that a manifest names, and the manifests."""
        with self.look() as archive:
            found = set()
            for manifest in archive.manifests():
                prefix = archive.partition(manifest.topic, manifest.topic_id, manifest.partition).prefix
                found.add(f"{prefix}/manifest.json")
                for entry in manifest.segments:
                    found |= {f"{prefix}/segments/{entry.name}/{each.name}" for each in entry.objects}
            return found

    def stored(self) -> set[str]:
        return {info.key for info in self.cloud.list("")}

    def look(self) -> Archive:
        """The archive, for somebody who only looks."""
        options = ArchiveOptions(self.cloud.url, cache_bytes=8 << 20, threads=1)
        return Archive(options, self.cloud, self.fs, "somebody else")

    def check_archive(self) -> None:
        """Everything the manifests name is there and right, and nothing else."""
        assert self.stored() == self.named(), "orphans, or objects that are missing"
        with self.look() as archive:
            assert archive.verify().problems == []
