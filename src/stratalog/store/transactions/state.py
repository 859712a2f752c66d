"""The life of a transaction, and its record in `__transaction_state` in Kafka's own schema.

    EMPTY ──add──► ONGOING ──prepare──► PREPARE_COMMIT / PREPARE_ABORT ──complete──► COMPLETE_COMMIT / _ABORT
                      └──────fence (a newer transaction, or the timeout)──► PREPARE_ABORT with the next epoch

Values and pure functions: events and the time go in, the next state comes out. The caller writes every state
that a function returns as a record, before it acts on it. From PREPARE on the outcome is decided: markers go
to all partitions, and after the last one the transaction is complete.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stratalog.errors import CorruptionError, InvalidProducerEpochError, InvalidTxnStateError
from stratalog.store.groups.offsets import check_name
from stratalog.wire import records

TopicPartition = tuple[str, int]

TABLE = "transaction-log"
MAX_TIMEOUT_MS = 2**31 - 1
LAST_EPOCH = 2**15 - 2
"""A producer id is used up to here; one more epoch is left to fence its last transaction."""


class Status(enum.IntEnum):
    """Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class TransactionState:
    """What is known of one transactional id. ``updated_ms`` is -1 while no record was written."""

    id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: Status = Status.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = -1
    started_ms: int = -1

    @property
    def prepared(self) -> bool:
        """Whether the outcome is decided and markers may be missing."""
        return self.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def committing(self) -> bool:
        """Whether the outcome, once decided, is a commit."""
        return self.status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)

    def expired(self, now_ms: int) -> bool:
        """Whether it is open for longer than its timeout."""
        return self.status == Status.ONGOING and now_ms - self.started_ms >= self.timeout_ms

    def check(self, producer_id: int, epoch: int) -> None:
        """Raise InvalidProducerEpochError unless this is the transaction of that id and epoch."""
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            raise InvalidProducerEpochError(
                f"transaction {self.id!r} was fenced: a newer one has its id, or it was open for longer than"
                f" its timeout and was aborted; nothing of it is visible"
            )


def begin(
    known: TransactionState | None, transactional_id: str, fresh_id: int, timeout_ms: int
) -> TransactionState:
    """Return a new transaction, which fences the one before. ``fresh_id`` is used if an id is needed."""
    if known is None or known.epoch >= LAST_EPOCH:
        return TransactionState(transactional_id, fresh_id, 0, timeout_ms)
    if known.status == Status.ONGOING or known.prepared:
        raise InvalidTxnStateError(f"transaction {known.id!r} is not finished")
    return TransactionState(
        known.id, known.producer_id, known.epoch + 1, timeout_ms, updated_ms=known.updated_ms
    )


def needs_id(known: TransactionState | None) -> bool:
    """Return whether the next transaction needs a new producer id."""
    return known is None or known.epoch >= LAST_EPOCH


def add(state: TransactionState, partitions: Iterable[TopicPartition], now_ms: int) -> TransactionState:
    """Return the transaction with more partitions; itself if it has them all."""
    more = state.partitions.union(partitions)
    if state.status == Status.ONGOING and more == state.partitions:
        return state
    if state.status not in (Status.EMPTY, Status.ONGOING):
        raise InvalidTxnStateError(f"transaction {state.id!r} has ended")
    started = now_ms if state.status == Status.EMPTY else state.started_ms
    return replace(state, status=Status.ONGOING, partitions=more, updated_ms=now_ms, started_ms=started)


def prepare(state: TransactionState, *, commit: bool, now_ms: int) -> TransactionState:
    """Return the transaction with its outcome decided."""
    if state.status != Status.ONGOING:
        raise InvalidTxnStateError(f"transaction {state.id!r} is not open")
    status = Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT
    return replace(state, status=status, updated_ms=now_ms)


def fence(state: TransactionState, now_ms: int) -> TransactionState:
    """Return the transaction decided as an abort, under an epoch that shuts its producer out."""
    return replace(prepare(state, commit=False, now_ms=now_ms), epoch=state.epoch + 1)


def complete(state: TransactionState, now_ms: int) -> TransactionState:
    """Return the transaction with every marker written."""
    status = Status.COMPLETE_COMMIT if state.committing else Status.COMPLETE_ABORT
    return replace(state, status=status, partitions=frozenset(), updated_ms=now_ms)


# -- records ---------------------------------------------------------------------------------------------


def pack_key(transactional_id: str) -> bytes:
    """Return the key of a transaction's record."""
    return records.pack_key(TABLE, "TransactionLog", transactional_id=check_name(transactional_id))


def pack(state: TransactionState) -> bytes:
    """Return the value of a transaction's record, version 0."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(state.partitions):
        topics.setdefault(topic, []).append(partition)
    made = records.struct_of(TABLE, "TransactionLog", "PartitionsSchema")
    return records.pack_value(
        TABLE,
        "TransactionLog",
        0,
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        transaction_timeout_ms=state.timeout_ms,
        transaction_status=int(state.status),
        transaction_partitions=(
            None if state.status == Status.EMPTY else [made(*each) for each in topics.items()]
        ),
        transaction_last_update_timestamp_ms=state.updated_ms,
        transaction_start_timestamp_ms=state.started_ms,
    )


def parse(key: bytes, value: bytes) -> TransactionState | None:
    """Read a record of either version; None for a key of another kind."""
    kind, named = records.parse_key(TABLE, key)
    if kind != "TransactionLog":
        return None
    found = records.parse_value(TABLE, kind, value)
    try:
        status = Status(found.transaction_status)
    except ValueError as error:
        raise CorruptionError(f"a record of __transaction_state is garbled: {error}") from error
    partitions = frozenset(
        (each.topic, number) for each in found.transaction_partitions or () for number in each.partition_ids
    )
    return TransactionState(
        named.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        status,
        partitions,
        found.transaction_last_update_timestamp_ms,
        found.transaction_start_timestamp_ms,
    )
