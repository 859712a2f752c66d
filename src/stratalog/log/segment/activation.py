"""A segment found on disk becomes one to append to: its indexes, seal facts and keys, in one pass.

What its files say about the synced part is taken from them; everything behind is gathered from the
batches as recovery checks them, so that a log is read once.
"""

from __future__ import annotations

from stratalog.config import TopicConfig
from stratalog.errors import FormatError, InvalidArgumentError
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, IndexState, Scan
from stratalog.format.keyindex import KeyIndexReader
from stratalog.format.seal import SealBuilder
from stratalog.format.seal import parse as parse_seal
from stratalog.log.check.resync import resume
from stratalog.log.context import LogContext
from stratalog.log.policy.roll import jitter_ms, reopened_created_ms
from stratalog.log.segment.scanning import scan_file
from stratalog.log.segment.segment import Segment
from stratalog.log.write.active import ActiveSegment, rebuild_facts
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.log.write.sync import SyncedEnd


class Activation:
    """Builds the `ActiveSegment` of ``segment``.

    ``trusted`` is the synced end when it lies in this segment, None when nothing of it is trusted. Feed
    every batch behind it, in order, then `finish`.
    """

    def __init__(
        self, context: LogContext, config: TopicConfig, segment: Segment, trusted: SyncedEnd | None
    ) -> None:
        self._context = context
        self._config = config
        self._segment = segment
        self.saw_producers = False
        self.active = ActiveSegment(
            context,
            segment.directory,
            segment.topic,
            segment.partition,
            segment.base_offset,
            size=0,
            next_offset=segment.base_offset,
            created_ms=context.clock.now_ms(),
            jitter_ms=jitter_ms(config, segment.topic, segment.partition, segment.base_offset),
            keyed=config.key_index_enable,
        )
        self._state = IndexState()
        if trusted is not None and trusted.position > 0:
            self._begin(trusted)

    def _begin(self, trusted: SyncedEnd) -> None:
        """What is known of the synced part, and a look at what its files do not cover."""
        position = self._load_indexes(trusted)
        if position:
            self.active.sealer = self._resume_seal(trusted)
        if not self._feed_up_to(trusted, position):
            # Damage below the synced end: readers will name it, and no seal or key index speaks of the log.
            self.active.sealer = self.active.keys = None
        if self.active.keys is not None and position:
            self._load_keys(trusted)
        self.active.size, self.active.next_offset = trusted.position, trusted.offset

    def _feed_up_to(self, trusted: SyncedEnd, position: int) -> bool:
        """Index what the files do not cover, behind damage too; False when there is damage."""
        whole, check_crc, next_offset = True, position == 0, self._segment.base_offset
        try:
            with self._segment.open_log() as file:
                while position < trusted.position:
                    for at, data, scan in scan_file(file, position, trusted.position, check_crc=check_crc):
                        if not scan.n or scan.last_offset >= trusted.offset:
                            break
                        self.feed(at, data, scan)
                        position, next_offset = at + scan.end, scan.last_offset + 1
                    if position < trusted.position:
                        whole, self.active.sealer, self.active.keys = False, None, None
                        position = resume(
                            self._segment,
                            file,
                            position,
                            limit=trusted.position,
                            at_least=next_offset,
                            at_most=trusted.offset - 1,
                        )
        except (InvalidArgumentError, FormatError) as error:
            self._context.warn(f"{self._segment.path()}: {error}")
            return False
        return whole

    def _load_keys(self, trusted: SyncedEnd) -> None:
        """The keys of the synced part, as a clean close left them or from the records; none when damaged."""
        self.active.keys = self._stored_keys(trusted)
        if self.active.keys is None:
            sealer, keys = rebuild_facts(self._segment, keyed=True, contiguous=True, size=trusted.position)
            self.active.keys = keys if sealer.size_bytes == trusted.position else None

    def _stored_keys(self, trusted: SyncedEnd) -> ActiveKeyIndex | None:
        """From the `.keyindex`, when it was made from the very bytes that the seal speaks of."""
        sealer, path = self.active.sealer, self._segment.path("keyindex")
        if sealer is None:
            return None
        try:
            with self._context.fs.open(path) as file:
                reader = KeyIndexReader(file.pread, file.size())
                if not reader.matches(trusted.position, sealer.build().crc):
                    return None
                hashes, offsets = reader.in_offset_order()
        except (FileNotFoundError, FormatError):
            return None
        keys = ActiveKeyIndex()
        keys.extend(hashes, offsets)
        return keys

    def _load_indexes(self, trusted: SyncedEnd) -> int:
        """Index entries from disk up to the synced end; returns the position to index from."""
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
        # Up to the last time entry both are known; its file may have lost more than the other.
        start = None if newest is None else index.lookup(newest[1])
        if newest is None or start is None or not segment.meets_time_entry(newest):
            return 0
        index.truncate(start[1] + 1)
        self.active.index, self.active.times = index, times
        self._state = IndexState(0, *newest)
        return start[1]

    def _resume_seal(self, trusted: SyncedEnd) -> SealBuilder | None:
        """Take up the seal that a clean close left, when it speaks of exactly the synced part."""
        try:
            seal = parse_seal(self._context.fs.read_file(self._segment.path("seal")))
        except (FileNotFoundError, FormatError):
            return None
        if seal.size_bytes != trusted.position:
            return None
        if seal.stranger(self._segment.owner(), self._segment.base_offset):
            return None
        return SealBuilder.resume(seal)

    def feed(self, position: int, data: memoryview, scan: Scan) -> None:
        """Take in the batches of a scan; ``position`` is where ``data`` was read."""
        if not scan.n:
            return
        active = self.active
        found = batches.index_columns(
            scan,
            interval_bytes=self._config.index_interval_bytes,
            state=self._state,
            base_position=position,
        )
        active.index.extend(found.last_offsets, found.positions)
        active.times.extend(found.max_timestamps, found.offsets_of_max_timestamp)
        if active.sealer is not None and position + scan.end > active.sealer.size_bytes:
            batches.measure(data, scan)
            active.sealer.add_scan(data, scan, position)
        if active.keys is not None:
            active.keys.extend(*batches.decode_keys(data, scan))
        self.saw_producers = self.saw_producers or scan.has_producers

    def finish(self, size: int, next_offset: int) -> ActiveSegment:
        """The segment, ``size`` bytes long, whose next record is ``next_offset``."""
        active, state, ledger = self.active, self._state, self.active.ledger
        active.size, active.next_offset = size, next_offset
        active.entries = len(active.index)
        ledger.bytes_since_entry = state.bytes_since_last_entry
        if state.max_timestamp >= 0:
            ledger.max_timestamp = state.max_timestamp
            ledger.offset_of_max_timestamp = state.offset_of_max_timestamp
        if size:
            active.first_timestamp = first = self._first_timestamp()
            mtime_ms = self._context.fs.stat(self._segment.path()).mtime_ns // 1_000_000
            active.created_ms = reopened_created_ms(first, mtime_ms, self._context.clock.now_ms())
        return active

    def _first_timestamp(self) -> int | None:
        with self._segment.open_log() as file:
            first = batches.peek(file.pread(HEADER_SIZE, 0))
        return None if first is None else first.max_timestamp
