"""Partitions for the cleaner's tests: opened without a store, filled by hand, read by the plain reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stratalog import Record
from stratalog.config import TopicConfig
from stratalog.format import batch as batches
from stratalog.fs import FileSystem, HandleCache, MemoryFileSystem
from stratalog.log.clean import CleanReport, Pace, clean
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.policy.cleaning import Cleanable
from stratalog.log.write.append import append_records
from stratalog.log.write.produce import append_batches, append_marker
from stratalog.log.write.producers import MarkerType
from stratalog.log.write.recovery import OpenAs, open_partition
from stratalog.log.write.writer import PartitionWriter
from stratalog.testing import ManualClock, read_raw
from stratalog.testing.raw import RawBatch

DIRECTORY = "/data/t-0"
MEMORY_BYTES = 1 << 20
PACE = {"io_bytes_per_s", "progress", "stop"}


def compacted(**settings: Any) -> TopicConfig:
    defaults: dict[str, Any] = {
        "cleanup_policy": frozenset({"compact"}),
        "segment_bytes": 4096,
        "index_interval_bytes": 256,
    }
    return TopicConfig(**{**defaults, **settings})


class Log:
    """One partition that is open for writing, on a filesystem in memory unless told otherwise."""

    def __init__(
        self,
        config: TopicConfig | None = None,
        *,
        fs: FileSystem | None = None,
        directory: str = DIRECTORY,
        clock: ManualClock | None = None,
        how: OpenAs | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.fs: FileSystem = fs or MemoryFileSystem(clock=self.clock.now_ns)
        self.directory = directory
        self.config = config or compacted()
        self.warnings: list[str] = []
        self.saved: list[int] = []
        self.fs.make_dir(directory)
        self._how = how or OpenAs()
        self._sequences: dict[int, int] = {}
        self.open()

    def open(self) -> PartitionWriter:
        self.context = LogContext(
            self.fs, HandleCache(self.fs, 50), clock=self.clock, warn=self.warnings.append
        )
        location = PartitionLocation(self.context, self.directory, "t", 0)
        state, _ = open_partition(location, self.config, self._how)
        self.writer = PartitionWriter(location, self.config, state)
        return self.writer

    def reopen(self) -> None:
        self.writer.close()
        self.open()

    # -- filling ---------------------------------------------------------------------------------------

    def put(self, *pairs: tuple[bytes | None, bytes | None]) -> int:
        """One batch of (key, value); the offset of its first record."""
        now = self.clock.now_ms()
        return append_records(self.writer, [Record(value, key, (), now) for key, value in pairs]).offset

    def puts(self, pairs: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Batches of one."""
        for pair in pairs:
            self.put(pair)

    def produce(
        self, producer_id: int, *pairs: tuple[bytes, bytes | None], transactional: bool = False
    ) -> int:
        """A batch of an idempotent or transactional producer; the offset of its first record."""
        sequence = self._sequences.get(producer_id, 0)
        encoded, _ = batches.encode_records(
            [Record(value, key, (), self.clock.now_ms()) for key, value in pairs],
            options=batches.BatchOptions(
                base_offset=0,
                leader_epoch=-1,
                now_ms=self.clock.now_ms(),
                max_bytes=1 << 20,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=transactional,
            ),
        )
        self._sequences[producer_id] = sequence + len(pairs)
        return append_batches(self.writer, encoded.data).base_offset

    def end(self, producer_id: int, *, commit: bool) -> int:
        marker: MarkerType = "commit" if commit else "abort"
        return append_marker(self.writer, marker, producer_id=producer_id, producer_epoch=0).base_offset

    def roll(self) -> None:
        self.writer.roll()

    # -- cleaning --------------------------------------------------------------------------------------

    def cleanable(self, first_dirty: int | None = None, end: int | None = None) -> Cleanable:
        """Everything up to the active segment, or less."""
        if first_dirty is None:
            first_dirty = self.saved[-1] if self.saved else 0
        end = self.writer.local_segments()[-1].base_offset if end is None else end
        return Cleanable(first_dirty, end, 0, 1, 1.0, False, "")

    def clean(self, first_dirty: int | None = None, end: int | None = None, **options: Any) -> CleanReport:
        settings: dict[str, Any] = {
            "memory_bytes": MEMORY_BYTES,
            "now_ms": self.clock.now_ms(),
            "save": self.saved.append,
            "pace": Pace(**{name: options.pop(name) for name in PACE & options.keys()}),
        }
        return clean(self.writer, self.cleanable(first_dirty, end), **{**settings, **options})

    # -- looking ---------------------------------------------------------------------------------------

    def raw(self) -> list[RawBatch]:
        return read_raw(self.fs, self.directory, "t", 0, gaps=True)

    def records(self) -> list[Seen]:
        return [Seen(r.offset, r.key, r.value) for batch in self.raw() for r in batch.records]

    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.writer.local_segments()]

    def files(self, suffix: str = "") -> list[str]:
        return [name for name in self.fs.list_dir(self.directory) if name.endswith(suffix)]


class Seen(NamedTuple):
    """A record, as far as the cleaner's rules go."""

    offset: int
    key: bytes | None
    value: bytes | None


def latest(records: Sequence[Seen], end: int) -> list[Seen]:
    """What compaction of everything below ``end`` keeps, tombstones included, by the definition."""
    last = {record.key: record.offset for record in records if record.offset < end}
    return [
        record
        for record in records
        if record.offset >= end or (record.key is not None and last[record.key] == record.offset)
    ]
