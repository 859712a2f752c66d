"""The active segment: the one that grows, and what the writer keeps of it in memory.

What is derived from the log is collected in `Sidecars`. Index entries are written behind the log in small
runs, never preallocated and never mapped; a crash loses entries, not records. When the segment is sealed or
closed all derived files are written at once.

Crash policy: the `.log` is the truth. `Activation` makes a segment found on disk active again: what its files
say of the synced part is taken from them, the rest from the batches as recovery checks them, so that a log is
read once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.errors import FormatError, InvalidArgumentError, StorageError
from stratalog.format import batch as batches
from stratalog.format import txn_index
from stratalog.format.batch import HEADER_SIZE, IndexState, Scan
from stratalog.format.identity import PartitionId
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.format.keyindex import KeyIndexReader
from stratalog.format.seal import Seal, SealBuilder
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import File
from stratalog.kernel import Ledger
from stratalog.log.check.resync import scan_past_damage
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.policy.roll import (
    OFFSET_INDEX_ENTRY_BYTES,
    TIME_INDEX_ENTRY_BYTES,
    ActiveSegmentFacts,
    jitter_ms,
    limits,
    reopened_created_ms,
)
from stratalog.log.segment.segment import Segment
from stratalog.log.segment.sidecars import Sidecars
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.log.write.sync import SyncedEnd
from stratalog.model import SegmentInfo, SegmentState

RESERVE_FROM_BYTES = 1 << 20
RESERVE_STEP_BYTES = 8 << 20
RESERVE_FREE_BYTES = 1 << 30
"""A segment from 1 MiB on has disk space reserved ahead of its end: as much as it holds already, at most
8 MiB, and only where the disk has a GiB free. Writing into it takes a fifth less time."""

WRITE_BEHIND_ENTRIES = 128
"""Index entries gathered before they are written: one small write per half a megabyte of log."""


class ActiveSegment(Segment):
    """The last segment of a log that this process writes. It is empty at first."""

    __slots__ = (
        "_reserved",
        "created_ms",
        "entries",
        "file",
        "first_timestamp",
        "gaps",
        "index_written",
        "jitter_ms",
        "ledger",
        "roll_entries",
        "sidecars",
        "times_written",
        "txns_written",
    )

    is_active = True

    def __init__(
        self,
        location: PartitionLocation,
        base_offset: int,
        config: TopicConfig,
    ) -> None:
        self.ledger = Ledger(base_offset, 0, base_offset)
        """Where the segment ends and what is due next: the numbers every append touches."""
        super().__init__(location, base_offset, size=0, next_offset=base_offset)
        self.ledger.room_until = RESERVE_FROM_BYTES
        self._reserved = False
        self.created_ms = self.context.clock.now_ms()
        self.jitter_ms = jitter_ms(config, self.topic, self.partition, base_offset)
        self.first_timestamp: int | None = None
        self.gaps = False
        """Offsets may be missing between batches: another broker wrote them, or nothing tells."""
        self.sidecars = Sidecars(base_offset, config.index_interval_bytes, keyed=config.key_index_enable)
        self.collect_seal(self.sidecars.sealer)
        self.entries = 0
        """Entries in the offset index; `len` of it, without the call."""
        self.index_written = self.times_written = self.txns_written = 0
        """Entries that are in the files already."""
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
    def keys(self) -> ActiveKeyIndex | None:
        """The keys of the whole segment; None when they are not known."""
        return self.sidecars.keys

    def collect_seal(self, sealer: SealBuilder | None) -> None:
        """Collect the seal in ``sealer`` from now on; None: one pass over the log makes it in the end."""
        self.sidecars.sealer = sealer
        self.ledger.sums = None if sealer is None else sealer.sums

    # -- what readers ask ----------------------------------------------------------------------

    @property
    def seal(self) -> Seal | None:
        return None

    @property
    def contiguous(self) -> bool:
        return not self.gaps

    def offset_index(self) -> OffsetIndex:
        return self.sidecars.index

    def time_index(self) -> TimeIndex:
        return self.sidecars.times

    def aborted(self) -> tuple[AbortedTxn, ...]:
        return tuple(self.sidecars.aborted)

    def batches_end_offset(self) -> int:
        return self.ledger.next_offset

    def max_timestamp(self) -> int | None:
        return self.ledger.max_timestamp if self.ledger.max_timestamp >= 0 else None

    def info(self, state: SegmentState | None = None) -> SegmentInfo:
        records = self.next_offset - self.base_offset
        found = super().info(state or SegmentState.ACTIVE)
        return replace(found, max_timestamp=self.max_timestamp(), records=records)

    # -- what the writer does --------------------------------------------------------------------

    def open_for_append(self) -> File:
        """Return the log file for writing, pinned until `release_file`."""
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
            time_index_entries=len(self.sidecars.times),
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
        sidecars = self.sidecars
        if flags & kernel.INDEX_ENTRY_DUE:
            sidecars.index.append(last_offset, position)
            sidecars.times.maybe_append(self.ledger.max_timestamp, self.ledger.offset_of_max_timestamp)
            self.entries += 1
        if flags & kernel.BLOCK_FULL and sidecars.sealer is not None:
            sidecars.sealer.close_block()

    def reserve_ahead(self) -> None:
        """Ask for disk space ahead of the end. A hint: it raises no error, and no file grows by it."""
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

    def _give_room_back(self) -> None:
        """Cut what was reserved and not used. A failure costs space and nothing else."""
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
        return len(self.sidecars.index) > self.index_written or len(self.sidecars.aborted) > self.txns_written

    def write_behind(self) -> None:
        """Write entries not yet in their files; cheap, not synced."""
        index, times, aborted = self.sidecars.index, self.sidecars.times, self.sidecars.aborted
        if len(index) > self.index_written:
            self._append_file("index", index.tail_bytes(self.index_written), self.index_written * 8)
            self.index_written = len(index)
            self._append_file("timeindex", times.tail_bytes(self.times_written), self.times_written * 12)
            self.times_written = len(times)
        if len(aborted) > self.txns_written:
            missing = txn_index.pack(aborted[self.txns_written :])
            self._append_file("txnindex", missing, self.txns_written * txn_index.ENTRY_SIZE)
            self.txns_written = len(aborted)

    def _append_file(self, kind: str, data: bytes, position: int) -> None:
        with self.context.fs.open(self.path(kind), "a") as file:
            if data:
                file.pwrite(data, position)

    def write_sidecars(
        self, *, keyed: bool, known: Seal | None = None, owner: PartitionId | None = None
    ) -> None:
        """Write all derived files, unsynced; called when the segment is sealed or closed.

        A damaged log gets no seal and no key index: they would cover a part of it only. No log can tell
        whether it was cleaned and whether a gap at its end is meant: that is taken from ``known``, an earlier
        seal of the same bytes. ``owner`` is the partition that the seal names, if the caller has it at hand.
        """
        self._give_room_back()
        made, ledger = self.sidecars, self.ledger
        if made.sealer is None or (keyed and made.keys is None):
            contiguous = known is None or known.contiguous
            fresh = self.derive(ledger.interval_bytes, keyed=keyed, contiguous=contiguous, partial=True)
            self.collect_seal(fresh.sealer)
            made.keys = fresh.keys if keyed else made.keys
        if made.size_bytes != self.size:
            self.context.warn(f"{self.path()}: damaged at byte {made.size_bytes}; it gets no seal")
            self.collect_seal(None)
            self._remove("seal")
            self._remove("keyindex")
        elif known is not None:
            seal = made.seal
            if (known.size_bytes, known.crc) == (seal.size_bytes, seal.crc):
                made.seal = replace(seal, contiguous=known.contiguous, cleaned=known.cleaned)
        made.owner = owner or self.owner()
        made.state = IndexState(
            ledger.bytes_since_entry, ledger.max_timestamp, ledger.offset_of_max_timestamp
        )
        if not keyed:
            self._remove("keyindex")  # of an earlier close, when the topic still had one
        made.write(self, sync=False, keyed=keyed)
        self.index_written, self.times_written = len(made.index), len(made.times)
        self.txns_written = len(made.aborted)

    def _remove(self, kind: str) -> None:
        with suppress(FileNotFoundError):
            self.context.fs.remove(self.path(kind))

    def sealed(self) -> Segment:
        """Return the same segment as a sealed one."""
        self.context.cache.forget(self.serial)  # what recovery read of it is out of date
        return Segment(self.location, self.base_offset, size=self.size, next_offset=self.next_offset)


class Activation:
    """Builds the `ActiveSegment` of a segment found on disk.

    ``trusted`` is the synced end if it lies in this segment, None if nothing of it is trusted. Feed every
    batch behind it, in order, then `finish`.
    """

    def __init__(
        self,
        context: LogContext,
        config: TopicConfig,
        segment: Segment,
        trusted: SyncedEnd | None,
        owner: PartitionId,
    ) -> None:
        self._owner = owner
        self._seal: tuple[int, Seal | None] = -1, None
        """The seal on disk that was read last, and the size it covers."""
        self._context = context
        self._config = config
        self._segment = segment
        self.saw_producers = False
        self.active = ActiveSegment(segment.location, segment.base_offset, config)
        if trusted is not None and trusted.position > 0:
            self._begin(trusted)

    def _begin(self, trusted: SyncedEnd) -> None:
        """Load what the files say of the synced part; read the rest of it."""
        active = self.active
        position = self._load_indexes(trusted)
        if position:
            seal = self.seal_of(trusted.position)  # as a clean close left it
            active.collect_seal(None if seal is None else SealBuilder.resume(seal))
        if not self._feed_up_to(trusted, position):
            # Damage below the synced end: readers will name it; the log gets no seal and no key index.
            self._give_up_seal()
        if active.keys is not None and position:
            active.sidecars.keys = self._load_keys(trusted)
        active.size, active.next_offset = trusted.position, trusted.offset

    def seal_of(self, size: int) -> Seal | None:
        """Return the segment's seal as it is on disk, if it covers ``size`` bytes."""
        if self._seal[0] != size:
            self._seal = size, self._segment.seal_of(size, self._owner)
        return self._seal[1]

    def forget_seal(self) -> None:
        """Look at the disk again: the sidecars were removed."""
        self._seal = -1, None

    def _give_up_seal(self) -> None:
        self.active.collect_seal(None)
        self.active.sidecars.keys = None

    def _feed_up_to(self, trusted: SyncedEnd, position: int) -> bool:
        """Index what the files do not cover, behind damage too; return False if there is damage."""
        segment, whole = self._segment, True
        try:
            with segment.open_log() as file:
                for at, data, scan in scan_past_damage(
                    segment,
                    file,
                    position,
                    limit=trusted.position,
                    at_least=segment.base_offset,
                    at_most=trusted.offset - 1,
                    check_crc=True,
                ):
                    if at > position:
                        whole = False
                        self._give_up_seal()
                    self.feed(at, data, scan)
                    position = at + scan.end
        except (InvalidArgumentError, FormatError) as error:
            self._context.warn(f"{segment.path()}: {error}")
            return False
        return whole and position == trusted.position

    def _load_keys(self, trusted: SyncedEnd) -> ActiveKeyIndex | None:
        """Return the keys of the synced part: from the `.keyindex` if it was made from the very bytes that
        the seal covers, else from the records; None when those are damaged."""
        sealer = self.active.sidecars.sealer
        if sealer is not None:
            path = self._segment.path("keyindex")
            with suppress(FileNotFoundError, FormatError), self._context.fs.open(path) as file:
                reader = KeyIndexReader(file.pread, file.size())
                if reader.matches(trusted.position, sealer.build().crc):
                    keys = ActiveKeyIndex()
                    keys.extend(*reader.in_offset_order())
                    return keys
        interval = self._config.index_interval_bytes
        made = self._segment.derive(interval, keyed=True, end=trusted.position, contiguous=True, partial=True)
        return made.keys if made.size_bytes == trusted.position else None

    def _load_indexes(self, trusted: SyncedEnd) -> int:
        """Load index entries up to the synced end; return the position to index from."""
        segment = self._segment
        segment.forget()
        try:
            index, times = segment.offset_index(), segment.time_index()
        except FormatError as error:
            self._context.warn(f"{segment.path('index')}: {error}; rebuilt")
            return 0
        index.truncate(trusted.position)
        times.truncate(trusted.offset)
        segment.forget()
        newest = times.last()
        # Both are known up to the last time entry; the time index may have lost more than the other.
        start = None if newest is None else index.lookup(newest[1])
        if newest is None or start is None or not segment.meets_time_entry(newest):
            return 0
        index.truncate(start[1] + 1)
        sidecars = self.active.sidecars
        sidecars.index, sidecars.times, sidecars.state = index, times, IndexState(0, *newest)
        return start[1]

    def feed(self, position: int, data: memoryview, scan: Scan) -> None:
        """Take in the batches of a scan; ``position`` is where ``data`` was read."""
        self.active.sidecars.add(position, data, scan)
        self.saw_producers = self.saw_producers or (scan.n > 0 and scan.has_producers)

    def finish(self, size: int, next_offset: int) -> ActiveSegment:
        """Return the segment, ``size`` bytes long, whose next record gets ``next_offset``."""
        active, state, ledger = self.active, self.active.sidecars.state, self.active.ledger
        active.size, active.next_offset = size, next_offset
        active.entries = len(active.sidecars.index)
        ledger.bytes_since_entry = state.bytes_since_last_entry
        if state.max_timestamp >= 0:
            ledger.max_timestamp = state.max_timestamp
            ledger.offset_of_max_timestamp = state.offset_of_max_timestamp
        if size:
            with self._segment.open_log() as file:
                header = batches.peek(file.pread(HEADER_SIZE, 0))
            active.first_timestamp = first = None if header is None else header.max_timestamp
            mtime_ms = self._context.fs.stat(self._segment.path()).mtime_ns // 1_000_000
            active.created_ms = reopened_created_ms(first, mtime_ms, self._context.clock.now_ms())
        return active
