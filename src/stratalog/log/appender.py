"""Appending to a partition: encode, write, roll, sync. `PartitionWriter` adds what time makes due.

An append is one `write(2)` at the end of the active segment; it returns when that is done, or with
``sync`` when an fsync covers it. Readers in this process see the high watermark: the written end, or
the synced end where acknowledgements wait for the disk (``flush.messages=1``).

Promises: after a failed write the file is cut back to the last whole batch. After a failed fsync
nothing more is written or acknowledged here. A full disk refuses appends until there is room. An
offset that a reader may have seen is never given out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.errors import DiskFullError, ReadOnlyError, StorageError, StratalogError
from stratalog.format import batch as batches
from stratalog.format import codecs, producer_snapshot
from stratalog.format import tail as tails
from stratalog.format.tail import Tail
from stratalog.log import buffers
from stratalog.log.active import WRITE_BEHIND_ENTRIES, ActiveSegment
from stratalog.log.admission import Admission
from stratalog.log.context import LogContext
from stratalog.log.keys import ActiveKeyIndex
from stratalog.log.names import segment_name
from stratalog.log.partition import WrittenLog
from stratalog.log.producers import ProducerState
from stratalog.log.roll import (
    OFFSET_INDEX_ENTRY_BYTES,
    TIME_INDEX_ENTRY_BYTES,
    ActiveSegmentFacts,
    jitter_ms,
    limits,
    should_roll,
)
from stratalog.log.segment import Segment
from stratalog.log.sync import SyncedEnd, Syncer
from stratalog.log.tailfile import TailFile
from stratalog.model import CREATE_TIME, LOG_APPEND_TIME, Appended, AppendedRange, Header, Record

if TYPE_CHECKING:
    import pyarrow as pa

_new_tuple = tuple.__new__  # a named tuple's own costs a Python call


class WriterState(NamedTuple):
    """What recovery found; the writer starts from it."""

    sealed: tuple[Segment, ...]
    active: ActiveSegment
    log_start_offset: int
    synced: SyncedEnd
    producers: ProducerState
    leader_epoch: int
    tail: Tail | None
    unsynced: tuple[Segment, ...] = ()
    recovered: bool = False
    """Something was found anew, so that a close must write it down even if nothing is appended."""


class Appender(WrittenLog):
    """The end of a partition that grows."""

    def __init__(
        self,
        context: LogContext,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        state: WriterState,
        *,
        before_first_write: Callable[[], None] | None = None,
        on_roll: Callable[[], None] | None = None,
    ) -> None:
        segments = (*state.sealed, state.active)
        super().__init__(
            context, directory, topic, partition, segments, state.log_start_offset, state.producers
        )
        self.leader_epoch = state.leader_epoch
        self._fs = context.fs
        self._now_ms = context.clock.now_ms
        self._active = state.active
        self.next_offset: int = state.active.next_offset
        self._before_first_write = before_first_write
        self._on_roll = on_roll
        self._unusable: StratalogError | None = None
        self._written = state.recovered
        self.rolls_idle = True
        """False for a log without a policy: time alone must not change it."""
        self._unflushed_records = 0
        self._last_flush_s = self._last_expiry_s = context.clock.monotonic_s()
        self._tail = TailFile(context, directory, state.tail)
        self._syncer = Syncer(
            context,
            directory,
            self.lock,
            state.synced,
            written=self._written_end,
            synced=self._on_synced,
            failed=self._on_sync_failed,
        )
        for segment in state.unsynced:
            self._syncer.sealed(segment)
        self._acks_wait = config.flush_messages == 1
        self.apply_config(config)
        self.high_watermark = state.synced.offset if self._acks_wait else self.next_offset

    # -- settings --------------------------------------------------------------------------------

    def apply_config(self, config: TopicConfig) -> None:
        """Take new settings; they hold from the next append on."""
        with self.lock:
            self.config = config
            published = self._acks_wait == (config.flush_messages == 1)
            self._acks_wait = config.flush_messages == 1
            self._timestamp_type = LOG_APPEND_TIME if config.log_append_time else CREATE_TIME
            self._codec = codecs.NAMES.get(config.compression_type, 0)
            self._level = {
                codecs.NAMES["gzip"]: config.compression_gzip_level,
                codecs.NAMES["lz4"]: config.compression_lz4_level,
                codecs.NAMES["zstd"]: config.compression_zstd_level,
            }.get(self._codec)
            self.admission = Admission(self.topic, config)
            self._max_batch_bytes = self.admission.max_batch_bytes
            self._attributes = batches.batch_attributes(0, self._timestamp_type, False)
            self._flush_messages = config.flush_messages
            if config.key_index_enable and self._active.keys is None and self._active.size == 0:
                self._active.keys = ActiveKeyIndex()
            self._set_roll_limits()
            if not published:
                self._write_tail()  # how far readers in other processes may go has changed

    def _set_roll_limits(self) -> None:
        """The roll policy as numbers, so that nearly every append only makes a few comparisons."""
        bound, ledger = limits(self.config, self._facts()), self._active.ledger
        ledger.interval_bytes = self.config.index_interval_bytes
        ledger.roll_bytes = bound.size_bytes
        ledger.roll_timestamp = bound.timestamp
        ledger.roll_now_ms = bound.now_ms
        ledger.roll_offset = min(bound.last_offset, self._active.base_offset + bound.records - 1)
        index_bytes = self.config.segment_index_bytes
        self._roll_entries = min(
            index_bytes // OFFSET_INDEX_ENTRY_BYTES, index_bytes // TIME_INDEX_ENTRY_BYTES - 1
        )

    # -- append ----------------------------------------------------------------------------------

    def append_one(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        sync: bool = False,
    ) -> Appended:
        """Append one record: encode, write, account. The path of every single append."""
        if self._codec:
            return self._append_one_compressed(Record(value, key, headers, timestamp), sync)
        with self.lock:
            if self._unusable is not None or self._before_first_write is not None:
                self._make_usable()
            now = self._now_ms()
            if timestamp is None or self._timestamp_type:
                timestamp = now
            else:
                self.admission.check_timestamps(timestamp, timestamp, now)
            if key is None and self.admission.needs_key:
                raise self.admission.keyless()
            active, offset = self._active, self.next_offset
            epoch, kind, limit = self.leader_epoch, self._timestamp_type, self._max_batch_bytes
            pwrite = (active.file or active.open_for_append()).pwrite
            try:
                due = active.ledger.append_one(
                    pwrite, value, key, headers, timestamp, epoch, kind, now, limit
                )
            except StorageError as error:
                self._cut_back(active, error)
                raise
            end = offset + 1
            if due < 0:
                active = self._write_one(value, key, headers, timestamp, now)
            else:
                if due:
                    self._settle(active, due, offset, active.ledger.last_position, timestamp, now)
                self.next_offset = end
                self._unflushed_records += 1
                if not self._acks_wait:
                    self.high_watermark = end
                    if self._waiters:
                        self._advance(end)
            if active.keys is not None and key is not None:
                active.keys.add(kernel.hash64(key), offset)
        if sync or self._acks_wait or self._unflushed_records >= self._flush_messages:
            self._syncer.wait(end)
        return _new_tuple(Appended, (self.partition, offset, timestamp))

    def _write_one(
        self, value: bytes | None, key: bytes | None, headers: Sequence[Header], timestamp: int, now_ms: int
    ) -> ActiveSegment:
        """One record where the ledger alone cannot say yes: too large, or the roll policy is to be asked."""
        offset = self.next_offset
        data = kernel.encode_one(
            value, key, headers, timestamp, offset, self.leader_epoch, self._timestamp_type
        )
        size = len(data)
        if size > self._max_batch_bytes:
            raise self.admission.too_large(size)
        return self.write(data, data, size, offset, offset, 1, timestamp, timestamp, now_ms)

    def _append_one_compressed(self, record: Record, sync: bool) -> Appended:
        now = self._now_ms()
        if record.timestamp is None or self._timestamp_type:
            record = record._replace(timestamp=now)
        assert record.timestamp is not None
        placed = self.append_records([record], sync)
        return Appended(self.partition, placed.offset, record.timestamp)

    def append_records(self, records: Sequence[Record], sync: bool = False) -> AppendedRange:
        """Append records in order, in as few batches as ``max.message.bytes`` allows."""
        rows = records if isinstance(records, list) else list(records)
        if self.admission.needs_key:
            for record in rows:
                if record[1] is None:
                    raise self.admission.keyless()
        target = buffers.take()
        return self._append_batches(partial(kernel.encode_tuples, target, rows), target, len(rows), sync)

    def append_arrow(self, table: pa.Table | pa.RecordBatch, sync: bool = False) -> AppendedRange:
        """Append the rows of an Arrow table or record batch in order."""
        if self.admission.needs_key and ("key" not in table.schema.names or table.column("key").null_count):
            raise self.admission.keyless()
        rows = batches.ArrowRows(table)
        target = buffers.take()
        return self._append_batches(partial(rows.encode_into, target), target, len(rows), sync)

    def _append_batches(
        self, encode: Callable[..., tuple[int, int, int, int, int]], target: bytearray, total: int, sync: bool
    ) -> AppendedRange:
        """Batch after batch, as the kernel's ``encode_tuples`` leaves them at the start of ``target``."""
        done = 0
        with self.lock:
            if self._unusable is not None or self._before_first_write is not None:
                self._make_usable()
            first = self.next_offset
            while done < total:
                now, offset = self._now_ms(), self.next_offset
                size, count, least, largest, crc = encode(
                    done, now, self._max_batch_bytes, offset, self.leader_epoch, self._attributes, -1, -1, -1
                )
                if self.next_offset != offset:
                    raise RuntimeError("a record was appended while others were encoded")
                if not count:
                    raise batches.too_large(done, size, self._max_batch_bytes)
                if least != now or largest != now:
                    self.admission.check_timestamps(least, largest, now)
                data = memoryview(target)[:size]
                if self._codec:
                    data = memoryview(batches.with_codec(data, self._codec, self._level))
                    size, crc = len(data), batches.whole_crc(data)
                active = self.write(data, crc, size, offset, offset + count - 1, count, least, largest, now)
                if active.keys is not None:
                    active.keys.extend(*batches.decode_keys(data, batches.scan(data, check_crc=False)))
                data.release()
                done += count
            end = self.next_offset
        buffers.give_back(target)
        if end > first and (sync or self._acks_wait or self._unflushed_records >= self._flush_messages):
            self._syncer.wait(end)
        return _new_tuple(AppendedRange, (self.partition, first, end - first))

    def write(
        self,
        data: bytes | bytearray | memoryview,
        crc: bytes | bytearray | memoryview | int,
        size: int,
        base_offset: int,
        last_offset: int,
        count: int,
        min_timestamp: int,
        max_timestamp: int,
        now_ms: int,
    ) -> ActiveSegment:
        """Write one encoded batch at the end and account for it; roll first when that is due. Under the lock.

        The offsets in ``data`` must already be the next ones. ``crc`` is the CRC-32C of all of ``data``
        or, where that is not at hand, its bytes; ``count`` the records in it that are not control records.
        """
        active = self._active
        ledger = active.ledger
        if not ledger.fits(size, last_offset, max_timestamp, now_ms):
            active = self._roll_if_due(size, base_offset, last_offset, max_timestamp, now_ms)
            ledger = active.ledger
        position = ledger.size
        try:
            (active.file or active.open_for_append()).pwrite(data, position)
        except StorageError as error:
            self._cut_back(active, error)
            raise
        due = ledger.took(crc, size, base_offset, last_offset, count, min_timestamp, max_timestamp)
        if due:
            self._settle(active, due, last_offset, position, max_timestamp, now_ms)
        next_offset = self.next_offset = last_offset + 1
        self._unflushed_records += next_offset - base_offset
        if not self._acks_wait:
            self.high_watermark = next_offset
            if self._waiters:
                self._advance(next_offset)
        return active

    def _settle(
        self,
        active: ActiveSegment,
        due: int,
        last_offset: int,
        position: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """What only some appends bring with them: an index entry, a block of the seal, a first batch."""
        active.settle(due, last_offset, position)
        if due & kernel.FIRST_BATCH:
            active.first_timestamp = max_timestamp
            active.created_ms = now_ms
            self._set_roll_limits()
        if due & kernel.INDEX_ENTRY_DUE:
            if active.entries - active.index_written >= WRITE_BEHIND_ENTRIES:
                self._write_behind(active)
            if active.entries >= self._roll_entries:
                self._set_roll_limits()
        if due & kernel.ROOM_DUE:
            active.reserve_ahead()

    def acknowledge(self, end: int, sync: bool) -> None:
        """Wait until the offsets below ``end`` are as durable as the caller or the settings ask."""
        if sync or self._acks_wait or self._unflushed_records >= self._flush_messages:
            self._syncer.wait(end)

    def _cut_back(self, active: ActiveSegment, error: StorageError) -> None:
        """After a failed write: leave no half batch behind, or else refuse to go on."""
        try:
            active.open_for_append().truncate(active.size)
        except StorageError as second:
            self._unusable = ReadOnlyError(
                f"{self.directory} is read-only: a write failed ({error}) and could not be undone ({second})"
            )
            return
        if not isinstance(error, DiskFullError):
            self.context.warn(f"{active.path()}: {error}; the write was undone")

    def _write_behind(self, active: ActiveSegment, *, force: bool = False) -> None:
        try:
            active.write_behind(force=force)
        except StorageError as error:
            # Derived data: sealing writes it again and recovery can rebuild it. The append stands.
            self.context.warn(f"{active.path('index')}: {error}")

    def make_usable(self) -> None:
        """Raise when this partition cannot be written; run what must happen before the first write."""
        if self._unusable is not None or self._before_first_write is not None:
            self._make_usable()

    def _make_usable(self) -> None:
        if self._unusable is not None:
            raise self._unusable
        if self._before_first_write is not None:
            self._before_first_write()
            self._before_first_write = None
            if self._acks_wait and self._tail.high_watermark < 0:
                self._write_tail()  # without one a reader beside would go to the written end
            self._written = True

    # -- roll --------------------------------------------------------------------------------------

    def _facts(self) -> ActiveSegmentFacts:
        active = self._active
        return ActiveSegmentFacts(
            base_offset=active.base_offset,
            size_bytes=active.size,
            records=active.next_offset - active.base_offset,
            created_ms=active.created_ms,
            first_timestamp=active.first_timestamp,
            offset_index_entries=active.entries,
            time_index_entries=len(active.times),
            jitter_ms=active.jitter_ms,
        )

    def _roll_if_due(
        self, size: int, base_offset: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> ActiveSegment:
        records = last_offset - base_offset + 1
        reason = should_roll(self.config, self._facts(), size, records, max_timestamp, last_offset, now_ms)
        if reason is not None and self._active.size > 0:
            self._roll(base_offset)
        return self._active

    def roll(self) -> bool:
        """Seal the active segment now; False when it holds nothing."""
        with self.lock:
            self.make_usable()
            if self._active.size == 0:
                return False
            self._roll(self.next_offset)
            return True

    def _roll(self, next_base: int) -> None:
        """Begin a new segment at ``next_base``. Nothing is synced here: the next sync covers both.

        The old segment's sidecars come first, so that a segment with a successor has them.
        """
        old = self._active
        old.write_sidecars(keyed=self.config.key_index_enable)
        self._write_snapshot(next_base)
        new = ActiveSegment(
            self.context,
            self.directory,
            self.topic,
            self.partition,
            next_base,
            size=0,
            next_offset=next_base,
            created_ms=self._now_ms(),
            jitter_ms=jitter_ms(self.config, self.topic, self.partition, next_base),
            keyed=self.config.key_index_enable,
        )
        new.file = self.context.handles.acquire(new.path(), "x")
        sealed = old.sealed()
        self._syncer.sealed(sealed)
        old.release_file()
        self._segments = (*self._segments[:-1], sealed, new)
        self._active = new
        self._set_roll_limits()
        if self._on_roll is not None:
            self._on_roll()

    def _write_snapshot(self, offset: int) -> None:
        path = f"{self.directory}/{segment_name(offset)}.snapshot"
        try:
            self._fs.write_file(path, producer_snapshot.pack(self.producers.to_entries()), sync=False)
        except StorageError:
            # A full disk leaves an empty file, and the next start would find a damaged snapshot.
            with suppress(StorageError, FileNotFoundError):
                self._fs.remove(path)
            raise

    # -- sync --------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Make everything written so far durable; returns the synced end."""
        end = self.next_offset
        self._syncer.wait(end, at_least_one_round=self._syncer.behind)
        return self._syncer.end.offset

    def settle_sealed(self) -> None:
        """Make sealed segments, and the producer snapshots between them, durable."""
        if self._syncer.behind:
            self.flush()

    def _written_end(self) -> SyncedEnd:
        self._unflushed_records = 0
        return SyncedEnd(self._active.base_offset, self._active.size, self.next_offset)

    def _on_synced(self, end: SyncedEnd) -> None:
        self._last_flush_s = self.context.clock.monotonic_s()
        if self._acks_wait:
            self._advance(max(self.high_watermark, end.offset))
        self._write_tail()

    def _on_sync_failed(self, error: BaseException) -> None:
        with self.lock:
            self._unusable = ReadOnlyError(
                f"{self.directory} is read-only: a sync failed ({error}); nothing at or after offset"
                f" {self._syncer.end.offset} is certain to be on disk; reopen the store once the disk is well"
            )

    def _write_tail(self, *, clean: bool = False, strict: bool = False) -> None:
        synced = self._syncer.end
        try:
            self._tail.write(
                synced.base_offset,
                synced.position,
                synced.offset,
                self.high_watermark,
                flags=(0 if self._acks_wait else tails.READ_PAST_HIGH_WATERMARK)
                | (tails.CLEAN if clean else 0)
                | (tails.PRODUCERS if len(self.producers) else 0),
            )
        except StorageError as error:
            if strict:
                raise
            # The tail may lag: an old one only means that more is scanned after a crash.
            self.context.warn(f"{self._tail.path}: {error}")
