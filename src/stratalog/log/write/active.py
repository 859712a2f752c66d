"""The active segment: the one that grows, and what the writer keeps of it in memory.

Index entries are collected in memory and written behind the log in small runs, never preallocated and
never mapped; a crash loses entries, not records. When the segment is sealed everything derived from
it is written at once: `.index`, `.timeindex`, `.seal`, `.keyindex`, and `.txnindex` where transactions
were aborted.

Crash policy: the `.log` is the truth. Entries past the synced end are rebuilt by recovery.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.errors import StorageError
from stratalog.format import batch as batches
from stratalog.format import keyindex, txn_index
from stratalog.format import seal as seals
from stratalog.format.identity import PartitionId
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.format.seal import Seal, SealBuilder
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import File
from stratalog.kernel import Ledger
from stratalog.log.context import LogContext
from stratalog.log.policy.roll import (
    OFFSET_INDEX_ENTRY_BYTES,
    TIME_INDEX_ENTRY_BYTES,
    ActiveSegmentFacts,
    limits,
)
from stratalog.log.segment.scanning import scan_file
from stratalog.log.segment.segment import Segment
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.model import SegmentInfo, SegmentState

RESERVE_FROM_BYTES = 1 << 20
RESERVE_STEP_BYTES = 8 << 20
RESERVE_FREE_BYTES = 1 << 30
"""A segment from 1 MiB on has disk space reserved ahead of its end: as much as it holds already, at most
8 MiB, and only where the disk has a GiB free. Writing into it takes a fifth less time."""

WRITE_BEHIND_ENTRIES = 128
"""Index entries gathered before they are written: one small write per half a megabyte of log."""


class ActiveSegment(Segment):
    """The last segment of a log that this process writes."""

    __slots__ = (
        "_reserved",
        "_sealer",
        "aborted_txns",
        "created_ms",
        "entries",
        "file",
        "first_timestamp",
        "index",
        "index_written",
        "jitter_ms",
        "keys",
        "ledger",
        "roll_entries",
        "times",
        "times_written",
        "txns_written",
    )

    is_active = True

    def __init__(
        self,
        context: LogContext,
        directory: str,
        topic: str,
        partition: int,
        base_offset: int,
        *,
        size: int,
        next_offset: int,
        created_ms: int,
        jitter_ms: int = 0,
        keyed: bool = False,
    ) -> None:
        self.ledger = Ledger(base_offset, size, next_offset)
        """Where the segment ends and what is due next: the numbers every append touches."""
        super().__init__(
            context, directory, topic, partition, base_offset, size=size, next_offset=next_offset
        )
        self.ledger.room_until = RESERVE_FROM_BYTES
        self._reserved = size >= RESERVE_FROM_BYTES  # by another process, perhaps
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.first_timestamp: int | None = None
        self.index = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.entries = 0
        """Entries in the offset index; `len` of it, without the call."""
        self.index_written = 0
        self.times_written = 0
        self.sealer = SealBuilder(base_offset)
        self.keys: ActiveKeyIndex | None = ActiveKeyIndex() if keyed else None
        self.aborted_txns: list[AbortedTxn] = []
        self.txns_written = 0
        self.roll_entries = 0
        """So many index entries end the segment; set by `arm`."""
        self.file: File | None = None

    @property
    def size(self) -> int:
        return self.ledger.size

    @size.setter
    def size(self, value: int) -> None:
        self.ledger.size = value

    @property
    def next_offset(self) -> int:
        return self.ledger.next_offset

    @next_offset.setter
    def next_offset(self, value: int) -> None:
        self.ledger.next_offset = value

    @property
    def sealer(self) -> SealBuilder | None:
        """Collects the seal; None when it will be made by one pass over the log instead."""
        return self._sealer

    @sealer.setter
    def sealer(self, value: SealBuilder | None) -> None:
        self._sealer = value
        self.ledger.sums = None if value is None else value.sums

    # -- what readers ask ----------------------------------------------------------------------

    @property
    def seal(self) -> Seal | None:
        return None

    @property
    def contiguous(self) -> bool:
        return True

    def offset_index(self) -> OffsetIndex:
        return self.index

    def time_index(self) -> TimeIndex:
        return self.times

    def aborted(self) -> tuple[AbortedTxn, ...]:
        return tuple(self.aborted_txns)

    def batches_end_offset(self) -> int:
        return self.ledger.next_offset

    def first_offset_since(self, timestamp: int) -> int:
        before = self.times.lookup(timestamp - 1)
        if before is None or not self.meets_time_entry(before):
            return self.base_offset
        return before[1] + 1

    def max_timestamp(self) -> int | None:
        return self.ledger.max_timestamp if self.ledger.max_timestamp >= 0 else None

    def info(self, state: SegmentState | None = None) -> SegmentInfo:
        return SegmentInfo(
            topic=self.topic,
            partition=self.partition,
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            state=state or SegmentState.ACTIVE,
            size_bytes=self.size,
            path=self.path(),
            max_timestamp=self.max_timestamp(),
            records=self.next_offset - self.base_offset,
        )

    # -- what the writer does --------------------------------------------------------------------

    def open_for_append(self) -> File:
        """The log file for writing, pinned until `release_file`."""
        if self.file is None:
            self.file = self.context.handles.acquire(self.path(), "w")
        return self.file

    def release_file(self) -> None:
        file, self.file = self.file, None  # first, so that a release cut short is not done twice
        if file is not None:
            self.context.handles.release(file)

    def facts(self) -> ActiveSegmentFacts:
        """Return what the roll policy needs to know."""
        return ActiveSegmentFacts(
            base_offset=self.base_offset,
            size_bytes=self.size,
            records=self.next_offset - self.base_offset,
            created_ms=self.created_ms,
            first_timestamp=self.first_timestamp,
            offset_index_entries=self.entries,
            time_index_entries=len(self.times),
            jitter_ms=self.jitter_ms,
        )

    def arm(self, config: TopicConfig) -> None:
        """Set the roll policy as numbers, so that nearly every append only makes a few comparisons."""
        bound, ledger = limits(config, self.facts()), self.ledger
        ledger.interval_bytes = config.index_interval_bytes
        ledger.roll_bytes = bound.size_bytes
        ledger.roll_timestamp = bound.timestamp
        ledger.roll_now_ms = bound.now_ms
        ledger.roll_offset = min(bound.last_offset, self.base_offset + bound.records - 1)
        index_bytes = config.segment_index_bytes
        self.roll_entries = min(
            index_bytes // OFFSET_INDEX_ENTRY_BYTES, index_bytes // TIME_INDEX_ENTRY_BYTES - 1
        )

    def settle(self, flags: int, last_offset: int, position: int) -> None:
        """Do what the ledger found due with the batch it just took at ``position``."""
        if flags & kernel.INDEX_ENTRY_DUE:
            self.index.append(last_offset, position)
            self.times.maybe_append(self.ledger.max_timestamp, self.ledger.offset_of_max_timestamp)
            self.entries += 1
        if flags & kernel.BLOCK_FULL and self.sealer is not None:
            self.sealer.close_block()

    def reserve_ahead(self) -> None:
        """Ask for disk space ahead of the end. A hint: no error comes of it, and no file grows by it."""
        ledger, start = self.ledger, self.ledger.size
        end = min(start + min(start, RESERVE_STEP_BYTES), ledger.roll_bytes)
        ledger.room_until = kernel.NEVER
        if self.file is None or end <= start:
            return
        with suppress(StorageError):
            if self.context.fs.free_bytes(self.directory) < RESERVE_FREE_BYTES:
                return
        self._reserved = True
        if self.file.reserve(start, end - start):
            ledger.room_until = end - (end - start) // 8

    def give_room_back(self) -> None:
        """Cut what was reserved and not used. One that cannot be cut costs space and nothing else."""
        if self._reserved:
            self._reserved = False
            self.ledger.room_until = RESERVE_FROM_BYTES
            try:
                self.open_for_append().truncate(self.size)
            except StorageError as error:
                self.context.warn(f"{error}; reserved space is not given back")

    @property
    def behind(self) -> bool:
        """True when there are entries that no file has yet."""
        return len(self.index) > self.index_written or len(self.aborted_txns) > self.txns_written

    def write_behind(self) -> None:
        """Write entries not yet in their files; cheap, not synced."""
        if len(self.index) > self.index_written:
            self._append_file("index", self.index.tail_bytes(self.index_written), self.index_written * 8)
            self.index_written = len(self.index)
            self._append_file("timeindex", self.times.tail_bytes(self.times_written), self.times_written * 12)
            self.times_written = len(self.times)
        if len(self.aborted_txns) > self.txns_written:
            missing = txn_index.pack(self.aborted_txns[self.txns_written :])
            self._append_file("txnindex", missing, self.txns_written * txn_index.ENTRY_SIZE)
            self.txns_written = len(self.aborted_txns)

    def _append_file(self, kind: str, data: bytes, position: int) -> None:
        file = self.context.fs.open(self.path(kind), "a")
        try:
            if data:
                file.pwrite(data, position)
        finally:
            file.close()

    def write_sidecars(
        self, *, keyed: bool, known: Seal | None = None, owner: PartitionId | None = None
    ) -> None:
        """Everything derived from the log, whole, unsynced; called when the segment is sealed or closed.

        A log that is damaged gets no seal and no key index: they would speak of a part of it only. What no
        log can tell, that a gap at its end is meant and that it was cleaned, is taken over from ``known``,
        an earlier seal of the same bytes. ``owner`` is whom the seal must name, when that is at hand.
        """
        self.give_room_back()
        if self.ledger.max_timestamp >= 0:
            self.times.maybe_append(self.ledger.max_timestamp, self.ledger.offset_of_max_timestamp)
        if self.sealer is None or (keyed and self.keys is None):
            self.sealer, keys = rebuild_facts(self, keyed=keyed, contiguous=known is None or known.contiguous)
            self.keys = keys if keyed else self.keys
        fs = self.context.fs
        if self.sealer.size_bytes != self.size:
            self.context.warn(f"{self.path()}: damaged at byte {self.sealer.size_bytes}; it gets no seal")
            self.sealer, keyed = None, False
            for kind in ("seal", "keyindex"):
                with suppress(FileNotFoundError):
                    fs.remove(self.path(kind))
        aborted = txn_index.pack(self.aborted_txns)
        fs.write_file(self.path("index"), self.index.to_bytes(), sync=False)
        fs.write_file(self.path("timeindex"), self.times.to_bytes(), sync=False)
        self.index_written, self.times_written = len(self.index), len(self.times)
        if aborted:
            fs.write_file(self.path("txnindex"), aborted, sync=False)
            self.txns_written = len(self.aborted_txns)
        if self.sealer is None:
            return
        seal = self.sealer.build(
            txn_index_crc=kernel.crc32c(aborted) if aborted else 0,
            owner=owner or self.owner(),
            base_offset=self.base_offset,
        )
        if known is not None and (known.size_bytes, known.crc) == (seal.size_bytes, seal.crc):
            seal = replace(seal, contiguous=known.contiguous, cleaned=known.cleaned)
        if keyed and self.keys is not None:
            hashes, offsets = self.keys.sorted_arrays()
            fs.write_file(
                self.path("keyindex"),
                keyindex.pack(hashes, offsets, self.base_offset, seal.size_bytes, seal.crc),
                sync=False,
            )
        fs.write_file(self.path("seal"), seals.pack(seal), sync=False)

    def sealed(self) -> Segment:
        """The same segment as a sealed one."""
        self.context.cache.forget(self.serial)  # what recovery read of it is out of date
        return Segment(
            self.context,
            self.directory,
            self.topic,
            self.partition,
            self.base_offset,
            size=self.size,
            next_offset=self.next_offset,
        )


def rebuild_facts(
    segment: Segment, *, keyed: bool, contiguous: bool = False, size: int | None = None
) -> tuple[SealBuilder, ActiveKeyIndex | None]:
    """The seal's facts, and the keys when wanted, by one pass over the log, up to the first damage.

    With ``contiguous`` a gap is damage too. ``size`` ends the pass early.
    """
    sealer = SealBuilder(segment.base_offset)
    keys = ActiveKeyIndex() if keyed else None
    expect = segment.base_offset if contiguous else None
    end = segment.size if size is None else size
    with segment.open_log() as file:
        for at, data, scan in scan_file(file, 0, end, check_crc=True, expect=expect):
            batches.measure(data, scan)
            sealer.add_scan(data, scan, at)
            if keys is not None:
                keys.extend(*batches.decode_keys(data, scan))
    return sealer, keys
