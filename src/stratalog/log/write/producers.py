"""What a partition remembers of idempotent and transactional producers, by Kafka's rules.

For each producer id: its epoch, the last five batches (to recognise a retry), the open transaction. The open
transactions give the last stable offset, where ``read_committed`` stops; a marker ends one, and an abort goes
into the ``.txnindex``.

    find_duplicate(batch)  a retry of one of the last five: return where it went
    validate(batch)        before the append: raise if epoch, sequence or transaction do not fit
    update(batch)          after the append, and for every batch replayed at recovery (``replay=True``)

`ProducerState` touches no disk and is guarded by the partition's lock. A crash loses it; `replay_producers`
loads the last valid ``.snapshot`` and replays the batches after it, which ends in the same state, because it
only depends on the batches in their order. A snapshot holds only the last of a producer's five batches, as
in Kafka: the others are looked up in the log before it while a client may still repeat them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from stratalog.errors import (
    FormatError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    StratalogError,
)
from stratalog.format import batch as batches
from stratalog.format import producer_snapshot
from stratalog.format.batch import BatchHeader
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.kernel import AppendInfo, Producer
from stratalog.log.check.resync import scan_past_damage
from stratalog.log.context import PartitionLocation
from stratalog.log.names import segment_name
from stratalog.log.segment.segment import Segment

NO_SEQUENCE = -1
RECALLED_BYTES = 1 << 20
"""How much of the log before a snapshot is read for batches that the snapshot has not."""
RETRIED_MS = 600_000
"""How long after its last batch a producer may repeat one; clients give up after two to five minutes."""
MAX_SEQUENCE = 2**31 - 1
FIRST_NAMED_ID = 1 << 61
"""From here to twice as much are the ids of producers that callers name; they do not expire."""
DUPLICATE, FENCED, UNSEQUENCED, NEW_EPOCH, GAP, NOT_TRANSACTIONAL, COORDINATOR_FENCED = range(1, 8)
"""Codes that the kernel's `Producer` and `AppendInfo.admit` return; 0 accepts the batch."""

MarkerType = Literal["commit", "abort"]
Origin = Literal["client", "coordinator"]


class ProducerBatch(NamedTuple):
    """The facts of one batch with a producer id.

    A control batch is a transaction marker when ``marker`` says which; one without records, all that
    compaction left of a finished transaction, has ``marker`` None and changes nothing.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int
    transactional: bool = False
    control: bool = False
    marker: MarkerType | None = None
    coordinator_epoch: int = -1

    @classmethod
    def of(
        cls, header: BatchHeader, marker: MarkerType | None = None, coordinator_epoch: int = -1
    ) -> ProducerBatch:
        """Take the facts from a header; the marker's type and coordinator epoch are in the control record."""
        return cls(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            increment_sequence(header.base_sequence, header.last_offset - header.base_offset),
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            header.is_transactional,
            header.is_control,
            marker,
            coordinator_epoch,
        )


class Duplicate(NamedTuple):
    """Where the repeated batch was appended the first time."""

    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTxn(NamedTuple):
    """A transaction that a marker just ended. ``last_offset`` is the marker's own.

    ``last_stable_offset`` is what Kafka writes with an abort: the first offset of the earliest other open
    transaction, or the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int

    def aborted_txn(self) -> AbortedTxn:
        """Return the entry for the ``.txnindex``."""
        return AbortedTxn(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


def increment_sequence(sequence: int, increment: int) -> int:
    """Advance a sequence: they count 0 .. 2**31 - 1 and start over; -1 is none."""
    if sequence < 0:
        return NO_SEQUENCE
    return (sequence + increment) & MAX_SEQUENCE


class ProducerState:
    """The producers of one partition."""

    def __init__(self, expiration_ms: int = 86_400_000) -> None:
        self._expiration_ms = expiration_ms
        self._log_start_offset = 0
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # first offset of a transaction -> producer id
        self._decided: dict[int, int] = {}  # first offset -> marker the high watermark has yet to pass

    def __len__(self) -> int:
        return len(self._producers)

    def ids(self) -> list[int]:
        """Return the producer ids that are known."""
        return list(self._producers)

    def last_sequence(self, producer_id: int) -> int:
        """Return the sequence of a producer's last record here; -1 when it is not known."""
        producer = self._producers.get(producer_id)
        return NO_SEQUENCE if producer is None else producer.last_sequence()

    def last_batch(self, producer_id: int) -> ProducerBatch | None:
        """Return a producer's newest batch here; None when it is not known."""
        producer = self._producers.get(producer_id)
        newest = None if producer is None else producer.last_batch()
        if producer is None or newest is None:
            return None
        last, offset, delta, stamp = newest
        return ProducerBatch(producer_id, producer.epoch, last - delta, last, offset - delta, offset, stamp)

    def find_duplicate(self, batch: ProducerBatch) -> Duplicate | None:
        """Return where a repeated batch went, if it is among the producer's last five in this epoch.

        Batches from before the last marker do not count for one of a transaction.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None or batch.control:
            return None
        found = producer.find(
            batch.producer_epoch, batch.base_sequence, batch.last_sequence, batch.transactional
        )
        return None if found is None else Duplicate(*found)

    def validate(
        self, *batches: ProducerBatch, origin: Origin = "client", transaction_version: int = 1
    ) -> None:
        """Raise the error Kafka would return if these batches of one append do not fit. Changes nothing.

        A coordinator writes markers, and batches that have no sequence; clients always have one. From
        ``transaction_version`` 2 on (KIP-890) a marker must have a newer epoch than the transaction it ends.
        """
        trial: dict[int, Producer] = {}
        for index, batch in enumerate(batches):
            if batch.producer_id < 0 or (batch.control and batch.marker is None):
                continue
            producer = trial.get(batch.producer_id)
            if producer is None:
                known = self._producers.get(batch.producer_id)
                producer = trial[batch.producer_id] = Producer() if known is None else known.copy()
            epoch = batch.producer_epoch
            if batch.control:
                code = producer.check_marker(epoch, batch.coordinator_epoch, transaction_version)
            else:
                client = origin == "client"
                code = producer.check(epoch, batch.base_sequence, batch.transactional, client)
            if code:
                raise _refusal(code, producer, batch).in_batch(index)
            _take(producer, batch)

    def admit(self, info: AppendInfo, origin: Origin = "client") -> bool:
        """Return True if ready-made batches may be appended, False for a duplicate; raise as `validate` does.

        A duplicate is a batch that comes alone and is among its producer's last five in this epoch: ``info``
        then has its offsets and timestamp. Changes nothing.
        """
        code = info.admit(self._producers, origin == "client")
        if code > DUPLICATE:
            batches = [ProducerBatch.of(BatchHeader._make(info.header(row))) for row in range(info.n)]
            self.validate(*batches, origin=origin)
            raise AssertionError(f"the kernel refused what validate() accepts: {code}")
        return not code

    def remember(self, info: AppendInfo, first: int) -> None:
        """Take ready-made batches in, from row ``first`` to the last that is written."""
        info.remember(self._producers, self._open, first)

    def update(self, batch: ProducerBatch, *, replay: bool = False) -> CompletedTxn | None:
        """Take an appended batch in; return the transaction that it ended, if any.

        With ``replay`` the batch comes from the log: it was accepted once, so nothing is checked.
        """
        if batch.producer_id < 0:
            return None
        if batch.control:
            return self.complete_txn(batch, replay=replay)
        producer = self._producer(batch.producer_id)
        assert replay or batch.producer_epoch >= producer.epoch, "update() without validate()"
        if _take(producer, batch):
            self._open[batch.first_offset] = batch.producer_id
        return None

    def complete_txn(self, marker: ProducerBatch, *, replay: bool = False) -> CompletedTxn | None:
        """Take an appended marker in; return None if the producer had no open transaction here (normal).

        The transaction stays unstable until the high watermark has passed its marker.
        """
        if marker.marker is None or marker.producer_id < 0:
            return None
        producer = self._producer(marker.producer_id)
        assert replay or marker.producer_epoch >= producer.epoch, "complete_txn() without validate()"
        first_offset = producer.end(marker.producer_epoch, marker.coordinator_epoch, marker.timestamp)
        if first_offset < 0:
            return None
        self._open.pop(first_offset, None)
        self._decided[first_offset] = marker.first_offset
        last_stable_offset = min(self._open, default=marker.first_offset + 1)
        return CompletedTxn(
            marker.producer_id,
            first_offset,
            marker.first_offset,
            marker.marker == "abort",
            last_stable_offset,
        )

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the earliest transaction begins that is open, or whose marker is not yet below the high
        watermark; None when there is none. Never below the log's start."""
        if not self._open and not self._decided:
            return None
        return max(min((*self._open, *self._decided)), self._log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return where ``read_committed`` ends: the first unstable offset, at most the high watermark.

        The high watermark never goes back, so transactions decided below it are forgotten here.
        """
        if not self._open and not self._decided:
            return high_watermark
        self._forget_decided(high_watermark)
        unstable = self.first_unstable_offset
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def open_txns(self) -> dict[int, int]:
        """Return first offset -> producer id of every open transaction, ascending."""
        return dict(sorted(self._open.items()))

    def expire(self, now_ms: int) -> list[int]:
        """Forget producers idle for ``producer.id.expiration.ms`` with nothing open; return their ids.

        A producer that a caller named stays: its next sequence must be known after any pause.
        """
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.txn_first_offset < 0
            and now_ms - producer.last_timestamp >= self._expiration_ms
            and not FIRST_NAMED_ID <= producer_id < 2 * FIRST_NAMED_ID
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return expired

    def truncate_head(self, log_start_offset: int) -> None:
        """Move the log's start. Producers stay known, as in Kafka; decided transactions below it go."""
        self._log_start_offset = max(self._log_start_offset, log_start_offset)
        self._forget_decided(log_start_offset)

    def to_entries(self) -> list[ProducerEntry]:
        """Return the entries of a ``.snapshot``, by producer id."""
        entries = []
        for producer_id, producer in sorted(self._producers.items()):
            sequence, offset, delta, _ = producer.last_batch() or (NO_SEQUENCE, -1, 0, -1)
            entries.append(
                ProducerEntry(
                    producer_id=producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=sequence,
                    last_offset=offset,
                    offset_delta=delta,
                    timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_first_offset=producer.txn_first_offset,
                )
            )
        return entries

    @classmethod
    def from_entries(cls, entries: Iterable[ProducerEntry], expiration_ms: int = 86_400_000) -> ProducerState:
        """Build the state from a ``.snapshot``. Kafka drops expired producers here: call `expire` next."""
        state = cls(expiration_ms)
        for entry in entries:
            producer = state._producer(entry.producer_id)
            producer.epoch = entry.producer_epoch
            if entry.last_offset >= 0:
                producer.add(
                    entry.producer_epoch,
                    entry.last_sequence,
                    entry.last_offset,
                    entry.offset_delta,
                    entry.timestamp,
                    False,
                )
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.last_timestamp = entry.timestamp
            producer.txn_first_offset = max(entry.current_txn_first_offset, -1)
            if producer.txn_first_offset >= 0:
                state._open[producer.txn_first_offset] = entry.producer_id
        return state

    def recall(self, headers: Iterable[BatchHeader]) -> None:
        """Remember the batches before the one of each producer that a snapshot holds.

        ``headers`` are the batches before the snapshot, in their order.
        """
        before: dict[int, list[BatchHeader]] = {}
        for header in headers:
            if header.producer_id in self._producers and not header.is_control and header.base_sequence >= 0:
                before.setdefault(header.producer_id, []).append(header)
        for producer_id, found in before.items():
            producer = self._producers[producer_id]
            run = [each for each in found if each.producer_epoch == producer.epoch]
            newest = producer.last_batch()
            if not run or newest is None or run[-1].last_offset != newest[1]:
                continue  # compaction took it, or it is further back
            whole = Producer()
            for each in run:
                _take(whole, ProducerBatch.of(each)._replace(transactional=False))
            whole.coordinator_epoch = producer.coordinator_epoch
            whole.last_timestamp = producer.last_timestamp
            whole.txn_first_offset = producer.txn_first_offset
            self._producers[producer_id] = whole

    def may_repeat(self, now_ms: int) -> bool:
        """Return whether a producer wrote so recently that it may repeat a batch."""
        return any(now_ms - each.last_timestamp < RETRIED_MS for each in self._producers.values())

    def _producer(self, producer_id: int) -> Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer()
        return producer

    def _forget_decided(self, offset: int) -> None:
        if self._decided:
            self._decided = {first: last for first, last in self._decided.items() if last >= offset}


def _take(producer: Producer, batch: ProducerBatch) -> bool:
    """Take a batch into a producer's state; return True if it begins a transaction."""
    if batch.control:
        producer.end(batch.producer_epoch, batch.coordinator_epoch, batch.timestamp)
        return False
    delta = batch.last_offset - batch.first_offset
    return producer.add(
        batch.producer_epoch,
        batch.last_sequence,
        batch.last_offset,
        delta,
        batch.timestamp,
        batch.transactional,
    )


def _refusal(code: int, producer: Producer, batch: ProducerBatch) -> StratalogError:
    """Return the error for a code of the kernel's `Producer`."""
    who = f"producer {batch.producer_id}"
    if code == FENCED:
        return InvalidProducerEpochError(
            f"{who} has epoch {producer.epoch}; a batch of epoch {batch.producer_epoch} comes from one that"
            " was fenced"
        )
    if code == UNSEQUENCED:
        return InvalidRecordError(f"a batch of {who} has no sequence number")
    if code == NEW_EPOCH:
        return OutOfOrderSequenceError(
            f"{who} begins epoch {batch.producer_epoch} (it had {producer.epoch}) with sequence"
            f" {batch.base_sequence} instead of 0"
        )
    if code == GAP:
        return OutOfOrderSequenceError(
            f"{who}, epoch {producer.epoch}: sequence {batch.base_sequence} cannot follow"
            f" {producer.last_sequence()}"
        )
    if code == NOT_TRANSACTIONAL:
        return InvalidTxnStateError(
            f"{who} has a transaction open since offset {producer.txn_first_offset}; this batch is not part"
            " of one"
        )
    assert code == COORDINATOR_FENCED
    return InvalidTxnStateError(
        f"a marker for {who} comes from coordinator epoch {batch.coordinator_epoch}, which"
        f" {producer.coordinator_epoch} has replaced"
    )


NO_LISTS: Mapping[int, list[AbortedTxn]] = {}


def load_snapshot(
    location: PartitionLocation, offsets: Iterable[int], end: int, expiration_ms: int
) -> tuple[ProducerState, int]:
    """Load the newest valid snapshot at or below ``end``; return its state and its offset."""
    context = location.context
    for offset in sorted(offsets, reverse=True):
        if offset > end:
            continue
        path = f"{location.directory}/{segment_name(offset)}.snapshot"
        try:
            entries = producer_snapshot.parse(context.fs.read_file(path))
        except FileNotFoundError:
            continue
        except FormatError as error:
            context.warn(f"{path}: {error}; using an older one")
            continue
        state = ProducerState.from_entries(entries, expiration_ms)
        state.expire(context.clock.now_ms())
        return state, offset
    return ProducerState(expiration_ms), 0


def replay_producers(
    location: PartitionLocation,
    segments: Sequence[Segment],
    snapshots: Iterable[int],
    end: int,
    *,
    trusted_offset: int | None,
    expiration_ms: int,
    snapshot_limit: int,
    aborted: Mapping[int, list[AbortedTxn]],
) -> ProducerState:
    """Return the producer state at ``end``: the newest snapshot, then the batches after it.

    ``trusted_offset`` is set when no batch below it has a producer id. ``aborted`` is filled, by base offset
    of the segment, with the aborted transactions of the replayed part; no snapshot past ``snapshot_limit`` is
    used, so that this part covers these segments.
    """
    state, at = load_snapshot(location, snapshots, snapshot_limit, expiration_ms)
    if state.may_repeat(location.context.clock.now_ms()):
        state.recall(headers_before(segments, at))
    start = at if trusted_offset is None or len(state) else max(at, min(trusted_offset, end))
    if start < end:
        replay(state, segments, start, end, aborted)
    return state


def headers_before(segments: Sequence[Segment], end: int) -> list[BatchHeader]:
    """Return the headers of the last batches below an offset, of `RECALLED_BYTES` or a little more."""
    found: list[BatchHeader] = []
    left = RECALLED_BYTES
    for segment in reversed(segments):
        if left <= 0:
            break
        if segment.base_offset >= end:
            continue
        last = segment.start_for(end).position
        start = _start_at(segment, end, max(0, last - left))
        part: list[BatchHeader] = []
        with segment.open_log() as file:
            for _, _, scan in scan_past_damage(
                segment, file, start, limit=segment.size, at_least=segment.base_offset
            ):
                part += [header for header in scan if header.last_offset < end]
                if scan.last_offset >= end:
                    break
        found[:0] = part
        left -= last - start + 1
    return found


def _start_at(segment: Segment, end: int, position: int) -> int:
    """Return where an indexed batch begins, at or before a position."""
    low, high = segment.base_offset, end
    while low < high:
        middle = (low + high + 1) // 2
        if segment.start_for(middle).position <= position:
            low = middle
        else:
            high = middle - 1
    return segment.start_for(low).position


def replay(
    state: ProducerState,
    segments: Sequence[Segment],
    start: int,
    end: int,
    aborted: Mapping[int, list[AbortedTxn]] = NO_LISTS,
) -> None:
    """Carry ``state`` from ``start`` to ``end``; add aborted transactions to their segment's list."""
    for segment in segments:
        if segment.next_offset is not None and segment.next_offset <= start:
            continue
        at, base = segment.start_for(start).position, segment.base_offset
        with segment.open_log() as file:
            for _, data, scan in scan_past_damage(
                segment, file, at, limit=segment.size, at_least=base, check_crc=True
            ):
                if not scan.has_producers:
                    continue
                for header in scan:
                    if header.producer_id < 0 or not start <= header.base_offset < end:
                        continue
                    marker, epoch = batches.decode_control(data, header) if header.is_control else (None, -1)
                    completed = state.update(ProducerBatch.of(header, marker, epoch), replay=True)
                    if completed is not None and completed.aborted and base in aborted:
                        aborted[base].append(completed.aborted_txn())
