"""What a partition remembers of idempotent and transactional producers, by Kafka's rules.

For each producer id: its epoch, the last five batches (to recognise a retry), the open transaction. From
the open transactions follows the last stable offset, up to which ``read_committed`` may look; a marker
ends one, and an abort goes into the ``.txnindex``.

    find_duplicate(batch)  a retry of one of the last five: answer with where it went, append nothing
    validate(batch)        before the append: epoch, sequence and transaction fit, or a ProducerError
    update(batch)          after the append, and for every batch replayed at recovery (``replay=True``)

Pure memory, touches no disk, not thread-safe by itself: the partition's lock guards it. A crash loses it;
recovery loads the last valid ``.snapshot`` and replays the batches after it, which ends in the same state
because nothing here depends on anything but the batches in their order. (Which of the last five batches
are remembered is the exception: a snapshot holds only the last of each producer, as in Kafka.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
BATCHES_TO_RETAIN = 5
MAX_SEQUENCE = 2**31 - 1

MarkerType = Literal["commit", "abort"]
Origin = Literal["client", "coordinator"]


class _Header(Protocol):
    """The part of a batch header this module looks at."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...


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
        cls, header: _Header, marker: MarkerType | None = None, coordinator_epoch: int = -1
    ) -> ProducerBatch:
        """From a batch header; the marker's type and coordinator epoch are in the control record."""
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
    """Where the batch that is being sent again went the first time."""

    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTxn(NamedTuple):
    """A transaction its marker just ended. ``last_offset`` is the marker's own.

    ``last_stable_offset`` is what Kafka writes beside an abort: the first offset of the earliest other
    open transaction, or the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int

    def aborted_txn(self) -> AbortedTxn:
        """The entry for the ``.txnindex``."""
        return AbortedTxn(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


def increment_sequence(sequence: int, increment: int) -> int:
    """Sequences count 0 .. 2**31 - 1 and start over; -1 is none."""
    if sequence < 0:
        return NO_SEQUENCE
    return (sequence + increment) & MAX_SEQUENCE


class _Batch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_sequence(self) -> int:
        if self.last_sequence < 0:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


class _Producer:
    """One producer's state; -1 where there is no epoch, timestamp or open transaction."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "txn_first_offset")

    def __init__(self) -> None:
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.txn_first_offset = -1
        self.batches: deque[_Batch] = deque(maxlen=BATCHES_TO_RETAIN)

    def copy(self) -> _Producer:
        twin = _Producer()
        twin.epoch = self.epoch
        twin.coordinator_epoch = self.coordinator_epoch
        twin.last_timestamp = self.last_timestamp
        twin.txn_first_offset = self.txn_first_offset
        twin.batches = self.batches.copy()
        return twin

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def add(self, batch: ProducerBatch) -> bool:
        """Take a data batch in; True when it begins a transaction."""
        self._enter_epoch(batch.producer_epoch)
        delta = batch.last_offset - batch.first_offset
        self.batches.append(_Batch(batch.last_sequence, batch.last_offset, delta, batch.timestamp))
        self.last_timestamp = batch.timestamp
        if batch.transactional and self.txn_first_offset < 0:
            self.txn_first_offset = batch.first_offset
            return True
        return False

    def end(self, marker: ProducerBatch) -> int:
        """Take a marker in; the first offset of the transaction it ended, -1 when none was open."""
        first_offset, self.txn_first_offset = self.txn_first_offset, -1
        self._enter_epoch(marker.producer_epoch)
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = marker.timestamp
        return first_offset

    def _enter_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()  # sequences start over with every epoch


class ProducerState:
    """The producers of one partition."""

    def __init__(self, expiration_ms: int = 86_400_000, log_start_offset: int = 0) -> None:
        self._expiration_ms = expiration_ms
        self._log_start_offset = log_start_offset
        self.seen_any = False
        """Whether a batch with a producer id was ever taken in: without one there is nothing to replay."""
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # first offset of a transaction -> producer id
        self._decided: dict[int, int] = {}  # first offset -> marker the high watermark has yet to pass

    def __len__(self) -> int:
        return len(self._producers)

    def last_sequence(self, producer_id: int) -> int:
        """The sequence of a producer's last record here; -1 when it is not known."""
        producer = self._producers.get(producer_id)
        return NO_SEQUENCE if producer is None else producer.last_sequence

    def find_duplicate(self, batch: ProducerBatch) -> Duplicate | None:
        """Where this very batch went, when it is one of the producer's last five in its epoch."""
        producer = self._producers.get(batch.producer_id)
        if (
            producer is None
            or producer.epoch != batch.producer_epoch
            or batch.control
            or batch.base_sequence < 0
        ):
            return None
        for known in producer.batches:
            if known.last_sequence == batch.last_sequence and known.base_sequence == batch.base_sequence:
                return Duplicate(known.last_offset - known.offset_delta, known.last_offset, known.timestamp)
        return None

    def validate(self, *batches: ProducerBatch, origin: Origin = "client") -> None:
        """Raise what Kafka would answer when these batches, in one append, do not fit. Changes nothing.

        A coordinator writes markers, and batches that have no sequence; clients always have one.
        """
        trial: dict[int, _Producer] = {}
        for batch in batches:
            if batch.producer_id < 0 or (batch.control and batch.marker is None):
                continue
            producer = trial.get(batch.producer_id)
            if producer is None:
                known = self._producers.get(batch.producer_id)
                producer = _Producer() if known is None else known if len(batches) == 1 else known.copy()
                trial[batch.producer_id] = producer
            if batch.control:
                _check_marker(producer, batch)
            else:
                _check_data(producer, batch, origin)
            if len(batches) > 1:
                if batch.control:
                    producer.end(batch)
                else:
                    producer.add(batch)

    def update(self, batch: ProducerBatch, *, replay: bool = False) -> CompletedTxn | None:
        """Take an appended batch in. A marker that ended a transaction gives a CompletedTxn.

        With ``replay`` the batch comes from the log: whatever is there was accepted once, so nothing is
        checked. Without it a wrong batch is a programmer's error, since `validate` came first.
        """
        if batch.producer_id < 0:
            return None
        if batch.control:
            return self.complete_txn(batch, replay=replay)
        producer = self._producer(batch.producer_id)
        assert replay or batch.producer_epoch >= producer.epoch, "update() without validate()"
        if producer.add(batch):
            self._open[batch.first_offset] = batch.producer_id
        return None

    def complete_txn(self, marker: ProducerBatch, *, replay: bool = False) -> CompletedTxn | None:
        """Take an appended marker in; None when the producer had nothing open here, which is normal.

        The transaction stays unstable until the high watermark has passed its marker.
        """
        if marker.marker is None or marker.producer_id < 0:
            return None
        producer = self._producer(marker.producer_id)
        assert replay or marker.producer_epoch >= producer.epoch, "complete_txn() without validate()"
        first_offset = producer.end(marker)
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
        """Where the earliest transaction begins that is open, or whose marker is not yet known to be passed
        by the high watermark; None when there is none. Never below the log's start."""
        if not self._open and not self._decided:
            return None
        return max(min((*self._open, *self._decided)), self._log_start_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset ``read_committed`` ends at: the first unstable one, at most the high watermark.

        The high watermark never goes back, so transactions decided below it are forgotten here.
        """
        self._forget_decided(high_watermark)
        unstable = self.first_unstable_offset
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def open_txns(self) -> dict[int, int]:
        """First offset -> producer id of every open transaction, ascending."""
        return dict(sorted(self._open.items()))

    def expire(self, now_ms: int) -> list[int]:
        """Forget producers idle for ``producer.id.expiration.ms`` with nothing open; their ids."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.txn_first_offset < 0 and now_ms - producer.last_timestamp >= self._expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return expired

    def truncate_head(self, log_start_offset: int) -> None:
        """The log now starts here. Producers stay known, as in Kafka; decided transactions below go."""
        self._log_start_offset = max(self._log_start_offset, log_start_offset)
        self._forget_decided(log_start_offset)

    def to_entries(self) -> list[ProducerEntry]:
        """What a ``.snapshot`` holds, by producer id."""
        entries = []
        for producer_id, producer in sorted(self._producers.items()):
            last = producer.batches[-1] if producer.batches else _Batch(NO_SEQUENCE, -1, 0, -1)
            entries.append(
                ProducerEntry(
                    producer_id=producer_id,
                    producer_epoch=producer.epoch,
                    last_sequence=last.last_sequence,
                    last_offset=last.last_offset,
                    offset_delta=last.offset_delta,
                    timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_first_offset=producer.txn_first_offset,
                )
            )
        return entries

    @classmethod
    def from_entries(
        cls, entries: Iterable[ProducerEntry], expiration_ms: int = 86_400_000, log_start_offset: int = 0
    ) -> ProducerState:
        """The state a ``.snapshot`` holds. Kafka drops expired producers here: call `expire` next."""
        state = cls(expiration_ms, log_start_offset)
        for entry in entries:
            producer = state._producer(entry.producer_id)
            producer.epoch = entry.producer_epoch
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.last_timestamp = entry.timestamp
            producer.txn_first_offset = max(entry.current_txn_first_offset, -1)
            if entry.last_offset >= 0:
                producer.batches.append(
                    _Batch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
                )
            if producer.txn_first_offset >= 0:
                state._open[producer.txn_first_offset] = entry.producer_id
        return state

    def _producer(self, producer_id: int) -> _Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer()
            self.seen_any = True
        return producer

    def _forget_decided(self, offset: int) -> None:
        if self._decided:
            self._decided = {first: last for first, last in self._decided.items() if last >= offset}


def _check_epoch(producer: _Producer, batch: ProducerBatch) -> None:
    if batch.producer_epoch < producer.epoch:
        raise InvalidProducerEpochError(
            f"producer {batch.producer_id} has epoch {producer.epoch}; a batch of epoch "
            f"{batch.producer_epoch} comes from one that was fenced"
        )


def _check_data(producer: _Producer, batch: ProducerBatch, origin: Origin) -> None:
    _check_epoch(producer, batch)
    if origin == "client":
        _check_sequence(producer, batch)
    if producer.txn_first_offset >= 0 and not batch.transactional:
        raise InvalidTxnStateError(
            f"producer {batch.producer_id} has a transaction open since offset "
            f"{producer.txn_first_offset}; this batch is not part of one"
        )


def _check_sequence(producer: _Producer, batch: ProducerBatch) -> None:
    sequence = batch.base_sequence
    if sequence < 0:
        raise InvalidRecordError(f"a batch of producer {batch.producer_id} has no sequence number")
    if producer.epoch == NO_PRODUCER_EPOCH:
        return  # unknown here, perhaps since retention took all it wrote: any sequence will do
    if batch.producer_epoch != producer.epoch:
        if sequence != 0:
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} begins epoch {batch.producer_epoch} (it had "
                f"{producer.epoch}) with sequence {sequence} instead of 0"
            )
        return
    last = producer.last_sequence
    if sequence != last + 1 and not (sequence == 0 and last == MAX_SEQUENCE):
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id}, epoch {producer.epoch}: sequence {sequence} cannot follow {last}"
        )


def _check_marker(producer: _Producer, marker: ProducerBatch) -> None:
    _check_epoch(producer, marker)
    if marker.coordinator_epoch < producer.coordinator_epoch:
        raise InvalidTxnStateError(
            f"a marker for producer {marker.producer_id} comes from coordinator epoch "
            f"{marker.coordinator_epoch}, which {producer.coordinator_epoch} has replaced"
        )
