"""The one writer of a partition: encode, write, roll, sync; also the `LogView` of its in-process readers.

An append is one `write(2)` at the end of the active segment. It returns when that is done, or with ``sync``
when an fsync covers it. Readers in this process see the high watermark: the written end, or the synced end
where acknowledgements wait for the disk (``flush.messages=1``).

The writer is built from parts: the `Ledger` of the active segment (where the log ends), `SegmentList` (what
can be read), `LogEnd` (who waits for which end), `Syncer` (what is durable), `ProducerState`, `TailFile`.

**Interrupts.** An operation sets ``ledger.in_doubt`` before its first write and clears it as its last step.
Ctrl-C, a failed allocation or an unexpected error leaves the mark; the next operation finds it and reads the
partition again from disk, exactly as after a crash, before it goes on. So nothing in between has to be
undone, and everything acknowledged before is there.

Promises: after a failed write the file is cut back to the last whole batch. After a failed fsync nothing more
is written or acknowledged here. A full disk refuses appends until there is room. An offset that a reader may
have seen is never assigned again. Closing in order makes the next open cheap; nothing depends on it.

Locks, in the order in which they are taken: ``maintenance`` (held while sealed segments are replaced or
removed, and while the partition is read again; files may be renamed and synced under it), the syncer's leader
lock (held for a round of fsyncs), ``lock`` (memory, positional writes and the files of a roll; no fsync).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, TypeVarTuple

from stratalog import kernel, locks
from stratalog.config import LONG_MAX, TopicConfig
from stratalog.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    ForkedError,
    InvalidArgumentError,
    LogDirOfflineError,
    ReadOnlyError,
    StorageError,
    StratalogError,
    UnknownTopicError,
    again,
)
from stratalog.format import batch as batches
from stratalog.format import producer_snapshot
from stratalog.format import tail as tails
from stratalog.format.txn_index import AbortedTxn
from stratalog.kernel import Appender, AppendInfo
from stratalog.log.context import PartitionLocation
from stratalog.log.names import MAX_OFFSET, segment_name
from stratalog.log.policy.roll import roll_due_idle, should_roll
from stratalog.log.read.reader import Isolation
from stratalog.log.segment.segment import Segment
from stratalog.log.write.active import WRITE_BEHIND_ENTRIES, ActiveSegment
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.log.write.append import Admission, Encoding, append_record
from stratalog.log.write.log_end import Completion, End, LogEnd
from stratalog.log.write.producers import ProducerBatch
from stratalog.log.write.recovery import OpenAs, WriterState, open_partition
from stratalog.log.write.segment_list import SegmentList, aborted_in, of_segments
from stratalog.log.write.sync import InDoubtError, SyncedEnd, Syncer, TailFile
from stratalog.model import Appended, Header, Record, SegmentInfo

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

HIGHEST_START = MAX_OFFSET // 2
"""A log with a higher next offset is opened read-only. No process writes as many records as are left here."""
EXPIRY_INTERVAL_S = 600
"""How often idle producers are looked for, as in Kafka."""


class PartitionWriter:
    """A partition that this process writes. Thread-safe."""

    def __init__(
        self,
        location: PartitionLocation,
        config: TopicConfig,
        state: WriterState,
        *,
        how: OpenAs | None = None,
        before_first_write: Callable[[], None] | None = None,
        on_roll: Callable[[], None] | None = None,
    ) -> None:
        self.location = location
        self.context, self.directory, self.topic, self.partition = location
        self.config = config
        self.lock = locks.rlock("partition")
        self.maintenance = locks.rlock("partition.maintenance")
        self.producers = state.producers
        self.leader_epoch = state.leader_epoch
        self.rolls_idle = True
        """False for a log without a policy: time alone must not change it."""
        self._how = how or OpenAs()
        context = self.context
        self._now_ms = context.clock.now_ms
        self._before_first_write = before_first_write
        self.on_roll = on_roll
        self._unusable: StratalogError | None = None
        self.swapping = False
        """Set while files are being swapped; stays set if the swap was cut short."""
        self._refusal: Callable[[], StratalogError | None] | None = None  # see `refuse_while`
        self._held = False
        """Set while `hold_appends` keeps other threads from appending."""
        self._unpublished = False
        """Set until the tail tells readers in other processes how far these settings let them go."""
        self._closed = False
        self.deleted: UnknownTopicError | None = None  # set when the topic was deleted
        self._written = state.recovered
        self._requested = 0  # everything below this offset is covered by a round that has begun
        self._last_flush_s = self._last_expiry_s = context.clock.monotonic_s()
        self._tail = TailFile(context, self.directory, self.partition, state.tail)
        self.active = state.active
        self.segment_list = SegmentList(
            (*state.sealed, state.active), state.log_start_offset, self._how.log_start_offset
        )
        self.syncer = Syncer(
            context,
            self.directory,
            self.lock,
            state.synced,
            written=self._written_end,
            synced=self._on_synced,
            failed=self._on_sync_failed,
        )
        for segment in state.unsynced:
            self.syncer.sealed(segment)
        self.acks_wait = config.flush_messages == 1
        self.ends = LogEnd(state.synced.offset if self.acks_wait else state.active.next_offset, self._end_now)
        """Waiters for the high watermark, the last stable offset and the synced end."""
        self._appender = Appender(self, self.lock, self._now_ms, self.ends, Appended, self.partition)
        """``ready`` when an append may go ahead: the log is usable, and a first write is prepared."""
        self.append_simple = self._appender.append_simple
        """Append one record where `append_one` would do nothing but write it; else return None."""
        self.apply_config(config)
        known = state.tail
        if state.recovered and known and not (self.acks_wait or known.read_past_high_watermark):
            self._write_tail()  # a power cut took the one that lets readers in other processes go further
        if self.next_offset > HIGHEST_START:
            self._refuse(
                ReadOnlyError(
                    f"{self.directory} cannot be written: its next offset is {self.next_offset}, too close to"
                    f" the largest one, {MAX_OFFSET}; a wrong log start offset or segment name may be the"
                    f" reason, otherwise copy the records to a new topic"
                )
            )

    # -- settings --------------------------------------------------------------------------------

    def apply_config(self, config: TopicConfig) -> None:
        """Apply new settings from the next append on."""
        with self.lock:
            self._appender.ready = False
            self.config = config
            published = self.acks_wait == (config.flush_messages == 1)
            self.acks_wait = config.flush_messages == 1
            self.encoding = Encoding.of(config)
            self._codec = self.encoding.codec
            self.admission = Admission(self.topic, config)
            self._flush_messages = config.flush_messages
            if config.key_index_enable and self.active.keys is None and self.active.size == 0:
                self.active.sidecars.keys = ActiveKeyIndex()
            self.active.arm(config)
            if not published:
                self._unpublished = True
                if not self.acks_wait:
                    # What waited for the disk before is visible from now on, whether a sync comes or not.
                    self.advance(self.active.next_offset)
                self._write_tail()

    # -- usable or not ---------------------------------------------------------------------------

    @property
    def unusable(self) -> StratalogError | None:
        """The error that every write raises, if any."""
        return self._unusable

    def make_usable(self) -> None:
        """Raise when this partition cannot be written; do what must happen before the next write.

        Call it without the partition's lock.
        """
        if self._unusable is not None:
            raise again(self._unusable)
        refusal = self._refusal
        if refusal is not None:
            refused = refusal()
            if refused is not None:
                raise refused
            with self.lock:
                if self._refusal is refusal:
                    self._refusal = None
        if self._held:
            with self.maintenance:
                self._held = False  # the thread that held appends is done, or was interrupted
        if self._before_first_write is not None:
            self._before_first_write()
            with self.lock:
                self._before_first_write = None
                self._written = True
                if self.acks_wait and self._tail.high_watermark < 0:
                    self._write_tail()  # without one, readers in other processes go to the written end
        if self.active.ledger.in_doubt or self.swapping:
            self._reload()
        with self.lock:
            if self._unusable is None and not self._held and self._refusal is None:
                if self._unpublished:
                    self._write_tail()  # a change of settings was interrupted there, or the disk was full
                admission = self.admission
                self._appender.renew(
                    self.active.ledger,
                    self.active.keys is not None,
                    self.leader_epoch,
                    admission.timestamp_type,
                    admission.max_batch_bytes,
                    admission.needs_key,
                    self.acks_wait,
                    not self._codec and not self.acks_wait and self._flush_messages == LONG_MAX,
                )

    def exclusively(self, act: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run ``act`` under the partition's lock, on a log that can be written."""
        while True:
            with self.lock:
                if self._appender.ready and not self.active.ledger.in_doubt:
                    return act(*args)
            self.make_usable()

    def _refuse(self, error: StratalogError) -> None:
        """Refuse every write from now on, with the first error given."""
        self._unusable = self._unusable or error
        self._appender.ready = False

    def _reload(self) -> None:
        """Read the partition again after an operation was cut short, as a start after a crash does.

        Every acknowledged record is in the files, so recovery finds it. Nothing below the high watermark
        changes for readers.
        """
        with self.maintenance:
            with self.lock:
                if not (self.active.ledger.in_doubt or self.swapping):
                    return
                self.active.ledger.in_doubt = True  # appends and rounds of syncs wait until this is done
                self.active.release_file()
            how = replace(
                self._how,
                clean=False,
                foreign=False,
                recovery_point=self.syncer.end.offset,
                log_start_offset=self.segment_list.log_start_offset,
            )
            for segment in self.segment_list.local:
                segment.forget()
            try:
                state, _ = open_partition(self.location, self.config, how)
            except (StratalogError, OSError) as error:
                raise ReadOnlyError(
                    f"{self.directory} cannot be written: an operation was cut short, and reading the log"
                    f" again failed ({error}); the next append tries again"
                ) from error
            with self.lock:
                self._install(state)

    def _install(self, state: WriterState) -> None:
        """Continue with what recovery found. The in-doubt marks are cleared last."""
        self._written = True
        self.producers = state.producers
        self.syncer.reloaded(state.unsynced)
        if state.tail is not None:
            self._tail = TailFile(self.context, self.directory, self.partition, state.tail)
        self.segment_list.local = (*state.sealed, state.active)
        if not self.segment_list.cold:
            self.segment_list.log_start_offset = max(
                self.segment_list.log_start_offset, state.log_start_offset
            )
        state.active.arm(self.config)
        if not self.acks_wait:
            self.advance(state.active.next_offset)
        self.active = state.active
        self.swapping = False

    def take_offline(self, error: StorageError) -> None:
        """Refuse writes because the log directory failed."""
        self._refuse(LogDirOfflineError(f"{self.topic}-{self.partition} is offline: {error}"))

    def refuse_while(self, refusal: Callable[[], StratalogError | None]) -> None:
        """Make every append call ``refusal`` first and raise the error it returns, until it returns None."""
        with self.lock:
            self._refusal, self._appender.ready = refusal, False

    def mark_deleted(self) -> None:
        """Make readers raise UnknownTopicError, before the files of the deleted topic go."""
        self.deleted = UnknownTopicError(f"topic {self.topic} was deleted")
        for segment in self.segments():
            segment.deleted = True
            segment.forget()

    def mark_forked(self) -> None:
        """In a forked child: refuse everything, touch nothing."""
        error = ForkedError("this store was opened before a fork; open it again in the child")
        self._closed = True
        self._unusable, self._appender.ready = error, False
        self.ends.error = error
        locks.refuse_forked(self, self.syncer)

    # -- what readers ask (`LogView`) ------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset the next record gets: where the written log ends."""
        return self.active.ledger.next_offset

    @property
    def high_watermark(self) -> int:
        """The first offset readers may not see."""
        return self.ends.high_watermark

    @property
    def log_start_offset(self) -> int:
        """Return the first offset that can be read."""
        return self.segment_list.log_start_offset

    @property
    def recovery_point(self) -> int:
        """Everything below this offset is durable: Kafka's recovery point."""
        return self.syncer.end.offset

    def refresh(self) -> None:
        """Wait for a swap under way; otherwise this view is always current.

        Raise UnknownTopicError if the topic was deleted.
        """
        if self.deleted is not None:
            raise again(self.deleted)
        if self.swapping:
            with self.maintenance:
                if self.swapping and not self._closed:
                    self._reload()  # the swap was cut short

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        """Return the first offset readers may not see: the high watermark, or the last stable offset."""
        if isolation == "read_committed":
            with self.lock:
                return self._stable_end()
        return self.ends.high_watermark

    def keyed_end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        """Return the end offset while no append is under way: every key below it is in the key index."""
        with self.lock:
            return self._stable_end() if isolation == "read_committed" else self.ends.high_watermark

    def _stable_end(self) -> int:
        # Retention may pass an open transaction; the end is never before the start.
        stable = self.producers.last_stable_offset(self.ends.high_watermark)
        return max(stable, self.segment_list.log_start_offset)

    def _end_now(self, end: End) -> int:
        if end == "synced":
            return self.syncer.end.offset
        return self.end_offset("read_committed" if end == "last_stable_offset" else "read_uncommitted")

    def wait(self, offset: int, timeout_s: float, isolation: Isolation = "read_uncommitted") -> bool:
        """Wait until readers may see what lies below ``offset``; False on time-out."""
        end: End = "last_stable_offset" if isolation == "read_committed" else "high_watermark"
        return self.ends.wait(end, offset, timeout_s)

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments in offset order, archived ones first, the active one last."""
        return self.segment_list.all()

    def local_segments(self) -> tuple[Segment, ...]:
        """Return the segments in this directory; those before them are in the archive."""
        return self.segment_list.local

    def cold_segments(self) -> tuple[Segment, ...]:
        """Return the segments that the archive has, also those that are still in this directory."""
        return self.segment_list.cold

    def segment_infos(self) -> list[SegmentInfo]:
        """Return the facts of every segment."""
        return of_segments(self, lambda segment: segment.info())

    def replaced(self, segment: Segment) -> bool:
        """Return True if the segment is no longer listed: it was cleaned or deleted."""
        self.refresh()
        return not self.segment_list.holds(segment)

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap the offsets [start, end)."""
        while True:
            self.refresh()
            segments = self.segments()
            try:
                found = aborted_in(segments, start, end)
            except (CorruptionError, FileNotFoundError):
                self.refresh()
                if not self.swapping and segments[:-1] == self.segments()[: len(segments) - 1]:
                    raise
                continue
            # An index that was renamed meanwhile looks like one that never existed.
            self.refresh()
            if not self.swapping and segments[:-1] == self.segments()[: len(segments) - 1]:
                return found

    def advance(self, high_watermark: int) -> None:
        """Move the high watermark and complete the waits it reaches. Under the lock."""
        ends = self.ends
        ends.high_watermark = max(high_watermark, ends.high_watermark)
        if ends.waiting:
            ends.reached("high_watermark", ends.high_watermark)
            ends.reached("last_stable_offset", self._stable_end())

    # -- append ----------------------------------------------------------------------------------

    def append_one(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        sync: bool = False,
    ) -> Appended:
        """Append one record: encode, write, account."""
        if self._codec:
            return append_record(self, Record(value, key, headers, timestamp), sync)
        while (placed := self._appender.append(value, key, headers, timestamp)) is None:
            self.make_usable()
        end = placed[1] + 1
        if sync or self.acks_wait or end - self._requested >= self._flush_messages:
            self._sync_to(end)
        return placed

    def settle_one(self, due: int, key: bytes | None, timestamp: int, now_ms: int) -> None:
        """Do what is due with the record that was just written."""
        active, offset = self.active, self.next_offset - 1
        if due:
            self._settle(active, due, offset, active.ledger.last_position, timestamp, now_ms)
        if active.keys is not None and key is not None:
            active.keys.add_row(kernel.key_row(key, offset))

    def write_failed(self, error: Exception) -> None:
        """Undo a write that failed; an error of another kind has written nothing."""
        if isinstance(error, StorageError):
            self._cut_back(self.active, error)

    def write_one(
        self, value: bytes | None, key: bytes | None, headers: Sequence[Header], timestamp: int, now_ms: int
    ) -> int:
        """Write one record that the ledger cannot (too large, or a roll may be due); return its offset."""
        offset = self.next_offset
        data = kernel.encode_one(
            value, key, headers, timestamp, offset, self.leader_epoch, self.admission.timestamp_type
        )
        size = len(data)
        if size > self.admission.max_batch_bytes:
            raise self.admission.too_large(size)
        self.write(data, data, size, offset, offset, 1, timestamp, timestamp, now_ms)
        return offset

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
        producer: ProducerBatch | None = None,
    ) -> None:
        """Write one encoded batch at the end and account for it; roll first when that is due.

        Inside `exclusively`. The offsets in ``data`` must already be the next ones. ``crc`` is the CRC-32C of
        all of ``data``, or its bytes if that is not at hand; ``count`` the records in it that are not control
        records; ``producer`` is set if it has a producer id.
        """
        active = self.active
        ledger = active.ledger
        if not ledger.fits(size, last_offset, max_timestamp, now_ms):
            active = self._roll_if_due(size, base_offset, last_offset, max_timestamp, now_ms)
            ledger = active.ledger
        position = ledger.size
        file = active.file or active.open_for_append()
        ledger.in_doubt = True
        try:
            file.pwrite(data, position)
        except StorageError as error:
            self._cut_back(active, error)
            raise
        due = ledger.took(crc, size, base_offset, last_offset, count, min_timestamp, max_timestamp)
        if due:
            self._settle(active, due, last_offset, position, max_timestamp, now_ms)
        keys = active.sidecars.keys
        if keys is not None and count:
            keys.extend(*batches.decode_keys(data, batches.scan(data, check_crc=False)))
        if producer is not None:
            completed = self.producers.update(producer)
            if completed is not None and completed.aborted:
                active.sidecars.aborted.append(completed.aborted_txn())
                self._write_behind(active)
        if not self.acks_wait:
            self.ends.high_watermark = last_offset + 1
            if self.ends.waiting:
                self.advance(last_offset + 1)
        ledger.in_doubt = False

    def write_batches(self, info: AppendInfo, now_ms: int) -> None:
        """Write placed batches at the end and account for them, in one write per segment.

        Inside `exclusively`. A failure leaves whole batches: all of this call, or those of earlier segments.
        """
        forced = False
        while info.row < info.n:
            active, first = self.active, info.row
            ledger = active.ledger
            try:
                due = info.write(ledger, (active.file or active.open_for_append()).pwrite, now_ms, forced)
            except StorageError as error:
                self._cut_back(active, error)
                raise
            if due < 0:
                self._roll_if_due(*info.next_batch(), now_ms)
                forced = True
                continue
            while due:
                self._settle(active, due, info.last_offset, ledger.last_position, info.timestamp, now_ms)
                due = info.account(ledger)
            if active.sidecars.keys is not None:
                _add_keys(active.sidecars.keys, info, first)
            if info.producers:
                self.producers.remember(info, first)
            if not self.acks_wait:
                self.ends.high_watermark = info.last_offset + 1
                if self.ends.waiting:
                    self.advance(info.last_offset + 1)
            ledger.in_doubt = forced = False

    def ends_after(self, end: int) -> tuple[int, int, int, bool]:
        """Return log start, high watermark, last stable offset, and whether ``flush.messages`` is due.

        Under the lock.
        """
        start, high_watermark = self.segment_list.log_start_offset, self.ends.high_watermark
        due = self.acks_wait or end - self._requested >= self._flush_messages
        return start, high_watermark, self._stable_end(), due and self.syncer.end.offset < end

    def _settle(
        self,
        active: ActiveSegment,
        due: int,
        last_offset: int,
        position: int,
        max_timestamp: int,
        now_ms: int,
    ) -> None:
        """Do what only some appends need: an index entry, a block of the seal, a first batch, more room."""
        active.settle(due, last_offset, position)
        if due & kernel.FIRST_BATCH:
            active.first_timestamp = max_timestamp
            active.created_ms = now_ms
            active.arm(self.config)
        if due & kernel.INDEX_ENTRY_DUE:
            if active.entries - active.index_written >= WRITE_BEHIND_ENTRIES:
                self._write_behind(active)
            if active.entries >= active.roll_entries:
                active.arm(self.config)
        if due & kernel.ROOM_DUE:
            active.reserve_ahead()

    def _cut_back(self, active: ActiveSegment, error: StorageError) -> None:
        """Remove a half batch after a failed write, or else refuse further writes."""
        try:
            active.open_for_append().truncate(active.size)
        except StorageError as second:
            self._refuse(
                ReadOnlyError(
                    f"{self.directory} is read-only: a write failed ({error}) and could not be undone"
                    f" ({second})"
                )
            )
            return
        active.ledger.in_doubt = False
        if not isinstance(error, DiskFullError):
            self.context.warn(f"{error}; the write was undone")

    def _write_behind(self, active: ActiveSegment) -> None:
        try:
            active.write_behind()
        except (StorageError, OSError) as error:
            # Derived data: sealing writes it again and recovery can rebuild it. The append stands.
            if not isinstance(error, DiskFullError):
                self.context.warn(str(error))

    # -- roll --------------------------------------------------------------------------------------

    def _roll_if_due(
        self, size: int, base_offset: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> ActiveSegment:
        records = last_offset - base_offset + 1
        facts = self.active.facts()
        reason = should_roll(self.config, facts, size, records, max_timestamp, last_offset, now_ms)
        if reason is not None and self.active.size > 0:
            self.begin_segment(base_offset)
        return self.active

    def roll(self) -> bool:
        """Seal the active segment now; return False if it is empty."""
        return self.exclusively(self._roll_now)

    def roll_idle(self, next_offset: int) -> bool:
        """Seal the active segment if nothing was appended since ``next_offset`` was its end."""
        return self.exclusively(lambda: self.next_offset == next_offset and self._roll_now())

    def _roll_now(self) -> bool:
        if self.active.size == 0:
            return False
        self.begin_segment(self.next_offset)
        return True

    def begin_segment(self, next_base: int) -> None:
        """Begin a new segment at ``next_base``. Nothing is synced here: the next sync covers both.

        The old segment's sidecars come first, so that a segment with a successor has them.
        """
        old = self.active
        old.ledger.in_doubt = True
        try:
            old.write_sidecars(keyed=self.config.key_index_enable, owner=self._tail.owner)
            self._write_snapshot(next_base)
            new = self.next_segment(next_base)
            new.file = self.context.handles.acquire(new.path(), "x")
        except StorageError:
            old.ledger.in_doubt = False  # only files that are written again were changed
            raise
        sealed = old.sealed()
        self.syncer.sealed(sealed)
        old.release_file()
        self.segment_list.local = (*self.segment_list.local[:-1], sealed, new)
        new.ledger.in_doubt = True
        self.active = new
        if self.on_roll is not None:
            self.on_roll()
        new.ledger.in_doubt = False

    def next_segment(self, base_offset: int) -> ActiveSegment:
        """Return a new, empty segment in memory; its file is not created here."""
        new = ActiveSegment(self.location, base_offset, self.config)
        new.arm(self.config)
        return new

    def _write_snapshot(self, offset: int) -> None:
        path = f"{self.directory}/{segment_name(offset)}.snapshot"
        fs = self.context.fs
        try:
            fs.write_file(path, producer_snapshot.pack(self.producers.to_entries()), sync=False)
        except BaseException:
            # A full disk or an interrupt leaves an empty file; the next start would find it damaged.
            with suppress(StorageError, FileNotFoundError):
                fs.remove(path)
            raise

    # -- durability --------------------------------------------------------------------------------

    def acknowledge(self, end: int, sync: bool) -> None:
        """Wait until the offsets below ``end`` are as durable as the caller or the settings ask."""
        if sync or self.acks_wait or end - self._requested >= self._flush_messages:
            self._sync_to(end)

    def acknowledgement(self, end: int, sync: bool) -> Completion | None:
        """Return what `acknowledge` would wait for; None when there is nothing to wait for."""
        if sync or self.acks_wait or end - self._requested >= self._flush_messages:
            return self.durable(end)
        return None

    def durable(self, end: int) -> Completion:
        """Return a completion that is done when every offset below ``end`` is on disk.

        Returns at once: the store's sync threads do the work, and requests made meanwhile share it.
        """
        completion = self.ends.when("synced", end)
        if not completion.done:
            self.context.sync_threads.submit(lambda: self._sync_for(completion))
        return completion

    def _sync_for(self, completion: Completion) -> None:
        try:
            if not completion.cancelled:  # what is not written yet is left to a later sync
                self._sync_to(min(completion.offset, self.next_offset))
        except Exception as error:
            completion.complete(error)
            raise

    def flush(self) -> int:
        """Make everything written so far durable, and write the tail; return the synced end."""
        self.syncer.check()
        self._sync_to(self.next_offset, everything=True)
        with self.lock:  # the leader of the round may still be writing the tail
            return self.syncer.end.offset

    @property
    def all_durable(self) -> bool:
        """True when everything written is on disk."""
        return self.syncer.failure is None and self.next_offset <= self.syncer.end.offset

    def settle_sealed(self) -> None:
        """Make sealed segments, and the producer snapshots between them, durable."""
        if self.syncer.behind:
            self.flush()

    def settle_tail(self) -> None:
        """Make everything written and the tail durable, before sealed segments are replaced.

        Otherwise a power cut could bring back an older tail that describes bytes that no longer exist.
        """
        self.make_usable()
        self.flush()
        with self.lock:
            self._write_tail(strict=True)
        self._tail.sync()
        self.context.fs.sync_dir(self.directory)

    def _sync_to(self, end: int, *, everything: bool = False) -> None:
        while True:
            try:
                return self.syncer.wait(end, everything=everything)
            except InDoubtError:
                self.make_usable()

    def _written_end(self) -> SyncedEnd:
        if self.active.ledger.in_doubt:
            raise InDoubtError(self.directory)
        self._requested = self.next_offset
        return SyncedEnd(self.active.base_offset, self.active.size, self.next_offset)

    def _on_synced(self, end: SyncedEnd) -> None:
        self._last_flush_s = self.context.clock.monotonic_s()
        if self.acks_wait:
            self.advance(end.offset)
        self._write_tail()
        if self.ends.waiting:
            self.ends.reached("synced", end.offset)

    def _on_sync_failed(self, error: BaseException) -> None:
        refused = ReadOnlyError(
            f"{self.directory} is read-only: a sync failed ({error}); nothing at or after offset"
            f" {self.syncer.end.offset} is certain to be on disk; reopen the store once the disk is well"
        )
        self._refuse(refused)
        self.ends.fail(refused, only="synced")

    def _write_tail(self, *, clean: bool = False, strict: bool = False) -> None:
        synced = self.syncer.end
        try:
            self._tail.write(
                synced.base_offset,
                synced.position,
                synced.offset,
                self.ends.high_watermark,
                flags=(0 if self.acks_wait else tails.READ_PAST_HIGH_WATERMARK)
                | (tails.CLEAN if clean else 0)
                | (tails.PRODUCERS if len(self.producers) else 0),
            )
            self._unpublished = False
        except (StorageError, FileNotFoundError) as error:
            if strict:
                raise
            # The tail may lag: an old one only means that more is scanned after a crash.
            if not isinstance(error, DiskFullError):
                self.context.warn(f"{error}; a start after a crash reads more of the log")

    # -- what time makes due -----------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due by time: an idle roll, flush.ms, a sync after a roll, write-behind."""
        if self._unusable is not None or self._closed:
            return
        active = self.active
        if self.rolls_idle and active.size and roll_due_idle(self.config, active.facts(), self._now_ms()):
            self.roll_idle(active.next_offset)
        now_s = self.context.clock.monotonic_s()
        since_flush_ms = (now_s - self._last_flush_s) * 1000
        flush_due = self.next_offset > self.syncer.end.offset and since_flush_ms >= self.config.flush_ms
        if flush_due or self.syncer.behind:
            self.flush()
        expiry_due = now_s - self._last_expiry_s >= EXPIRY_INTERVAL_S
        if not expiry_due and not self._written_behind():
            return
        with self.lock:
            if self._closed or self.active.ledger.in_doubt:
                return
            if expiry_due:
                self._last_expiry_s = now_s
                self.producers.expire(self._now_ms())
            if self._written_behind():
                self._write_behind(self.active)
                if self._tail_behind():
                    self._write_tail()

    def _written_behind(self) -> bool:
        """Return True if index entries or the tail must be written."""
        return self._written and (self.active.behind or self._tail_behind())

    def _tail_behind(self) -> bool:
        return self._unpublished or self.ends.high_watermark != self._tail.high_watermark

    def release_handle(self) -> bool:
        """Release the active log's file handle until the next append; False if it is in use or not held."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self.active.file is None or self.active.ledger.in_doubt:
                return False
            self._appender.ready = False
            self.active.release_file()
            return True
        finally:
            self.lock.release()

    # -- what changes the list of segments ---------------------------------------------------------

    @property
    def is_tiered(self) -> bool:
        """True when the archive has segments of this partition."""
        return bool(self.segment_list.cold)

    def attach_cold(self, cold: Sequence[Segment], deleted_to: int) -> None:
        """Set the archived segments, ascending, and up to where the archive knows of deletions."""
        with self.lock:
            self.segment_list.attach_cold(cold, deleted_to, self.high_watermark)

    def checked_log_start(self, offset: int) -> int:
        """Return where the log would start after `advance_log_start`; raise if the offset is out of range."""
        return self.exclusively(self._checked_log_start, offset)

    def _checked_log_start(self, offset: int) -> int:
        if offset > self.high_watermark:
            raise InvalidArgumentError(
                f"{self.topic}-{self.partition}: cannot delete up to offset {offset}, the log ends at"
                f" {self.high_watermark}"
            )
        return max(offset, self.segment_list.log_start_offset)

    def advance_log_start(self, offset: int) -> list[Segment]:
        """Move the log start offset up; hide and return the sealed segments wholly below it.

        Call it again for an unchanged offset to remove a segment that was still active the first time.
        """

        def advance() -> list[Segment]:
            start = self._checked_log_start(offset)
            gone = self.segment_list.sealed_below(start)
            self.segment_list.start_at(start)
            self._hide(gone)  # last: a reader that misses a segment finds that the log begins behind it
            self.producers.truncate_head(start)
            return gone

        return self.exclusively(advance)

    def drop_local(self, offset: int) -> list[Segment]:
        """Hide and return the sealed segments wholly below ``offset``; readers continue in the archive.

        The log start does not change. Under ``maintenance``.
        """

        def drop() -> list[Segment]:
            gone = self.segment_list.sealed_below(offset)
            if gone and not self.segment_list.archived(gone[0].base_offset, gone[-1].next_offset or 0):
                raise InvalidArgumentError(
                    f"{self.topic}-{self.partition}: offsets {gone[0].base_offset} to"
                    f" {gone[-1].next_offset} are not all in the archive"
                )
            self._hide(gone)
            return gone

        return self.exclusively(drop)

    def _hide(self, gone: list[Segment]) -> None:
        self.syncer.dropped(gone)
        self.segment_list.hide(gone)

    def hold_appends(self, act: Callable[[], T]) -> T:
        """Run ``act`` while appends of other threads wait; unlike under a lock it may sync and rename.

        ``act`` must not call `exclusively`.
        """
        self.make_usable()
        with self.maintenance:
            self._held = True
            with self.lock:
                self._appender.ready = False
            try:
                return act()
            finally:
                self._held = False

    # -- the end -----------------------------------------------------------------------------------

    def close(self, *, finish: bool = True) -> None:
        """Sync, write what makes the next open cheap, release the files, wake all waiters.

        Waiters are woken even if the rest fails. Without ``finish`` nothing is written: the files are about
        to be deleted.
        """
        if self._closed:
            return
        closed = ClosedError(f"{self.topic}-{self.partition}: the store was closed")
        try:
            if finish and self._unusable is None and (self._written or self.syncer.behind):
                if self.active.ledger.in_doubt or self.swapping:
                    self._reload()
                with self.lock:
                    self._refuse(closed)
                self._finish()
            elif not finish:
                self.syncer.abandon(closed)
        finally:
            with self.lock:
                self._refuse(closed)
                self._closed = True
                self.active.release_file()
            self.ends.fail(closed)

    def _finish(self) -> None:
        # Not under the lock: another thread may be leading a sync and needs it to finish.
        self.flush()
        with self.lock:
            self.active.write_sidecars(keyed=self.config.key_index_enable, owner=self._tail.owner)
            self._write_snapshot(self.next_offset)
        self.syncer.sync_sidecars(self.active)
        self.context.fs.sync_dir(self.directory)
        with self.lock:
            self._write_tail(clean=True)


def _add_keys(keys: ActiveKeyIndex, info: AppendInfo, first: int) -> None:
    view = memoryview(info.data)
    for row in range(first, info.row):
        position, size, *_ = info.header(row)
        data = view[position : position + size]
        keys.extend(*batches.decode_keys(data, batches.scan(data, check_crc=False)))
