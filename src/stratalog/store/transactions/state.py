"""The life of a transaction, and its record in `__transaction_state` in Kafka's own schema.

    EMPTY ──add──► ONGOING ──prepare──► PREPARE_COMMIT / PREPARE_ABORT ──complete──► COMPLETE_COMMIT / _ABORT
                      └──────fence (a newer producer, or the timeout)──► PREPARE_ABORT with a newer epoch

Values and pure functions: events and the time go in, the next state comes out. The caller writes every state
that a function returns as a record, before it acts on it. From PREPARE on the outcome is decided: markers go
to all partitions, and after the last one the transaction is complete.

A program has a new epoch for each of its transactions (`begin`). A Kafka client is a producer that makes many
of them (`init`): its first version has one epoch for all, the second (KIP-890) a new one after each end, so
that a late request of the one before is recognised. ``version`` tells these apart, also in the record.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stratalog.errors import (
    CorruptionError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
)
from stratalog.store.groups.offsets import check_name
from stratalog.wire import records

TopicPartition = tuple[str, int]

TABLE = "transaction-log"
MAX_TIMEOUT_MS = 2**31 - 1
LAST_EPOCH = 2**15 - 2
"""A producer id is used up to here; one more epoch is left to fence its last transaction."""
PROGRAM, FIRST, SECOND = 0, 1, 2
"""Who makes transactions: a program in this process, or a Kafka client of either version."""


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
    version: int = PROGRAM
    previous_id: int = -1
    """The producer id before this one, whose epochs were used up."""
    next_id: int = -1
    """The producer id from the end of this transaction on, if the epochs of the present one are used up."""
    retry_epoch: int = -1
    """The epoch with which a client may ask again for the present one; not in the record."""

    @property
    def prepared(self) -> bool:
        """True if the outcome is decided and markers may be missing."""
        return self.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)

    @property
    def of_client(self) -> bool:
        """True if a Kafka client makes it, which may go on after this process has ended."""
        return self.version != PROGRAM

    @property
    def committing(self) -> bool:
        """True if the outcome, once decided, is a commit."""
        return self.status in (Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT)

    def expired(self, now_ms: int) -> bool:
        """Return True if it is open for longer than its timeout."""
        return self.status == Status.ONGOING and now_ms - self.started_ms >= self.timeout_ms

    def forgettable(self, now_ms: int, expiration_ms: int) -> bool:
        """Return True if nothing is open and nothing was written of it for that long."""
        idle = self.status != Status.ONGOING and not self.prepared
        return idle and 0 <= self.updated_ms <= now_ms - expiration_ms

    def check(self, producer_id: int, epoch: int) -> None:
        """Raise InvalidProducerEpochError unless this is the transaction of that id and epoch."""
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            raise InvalidProducerEpochError(
                f"transaction {self.id!r} was fenced: a newer one has its id, or it was open for longer than"
                f" its timeout and was aborted; nothing of it is visible"
            )


def check_client(state: TransactionState | None, producer_id: int, epoch: int) -> TransactionState:
    """Return the state if a client's request is about its producer; else raise the error to answer."""
    if state is None or state.producer_id != producer_id:
        raise InvalidProducerIdMappingError(
            f"producer {producer_id} has no transactional id here; ask for a producer id first"
        )
    state.check(producer_id, epoch)
    return state


def begin(
    known: TransactionState | None, transactional_id: str, fresh_id: int, timeout_ms: int
) -> TransactionState:
    """Return a new transaction, which fences the one before. ``fresh_id`` is used if an id is needed."""
    if known is None or needs_id(known):
        return TransactionState(transactional_id, fresh_id, 0, timeout_ms)
    if known.status == Status.ONGOING or known.prepared:
        raise InvalidTxnStateError(f"transaction {known.id!r} is not finished")
    return TransactionState(
        known.id, known.producer_id, known.epoch + 1, timeout_ms, updated_ms=known.updated_ms
    )


def needs_id(known: TransactionState | None) -> bool:
    """Return whether the next transaction needs a new producer id."""
    return known is None or known.epoch >= LAST_EPOCH


def init(
    known: TransactionState | None,
    transactional_id: str,
    fresh_id: int,
    timeout_ms: int,
    now_ms: int,
    expected: tuple[int, int] | None = None,
) -> TransactionState:
    """Return a client's producer with a new epoch, which fences the one before.

    ``expected`` is the producer id and epoch of a client that goes on after an error (KIP-360): it must be
    the present one. One whose answer was lost asks with the epoch before again and gets the same answer.
    """
    again = known is not None and expected is not None and asks_again(known, expected)
    if known is not None and again and known.epoch <= LAST_EPOCH:  # else that one only fences
        return replace(known, status=Status.EMPTY, timeout_ms=timeout_ms, updated_ms=now_ms)
    if known is not None and (known.status == Status.ONGOING or known.prepared):
        raise InvalidTxnStateError(f"transaction {known.id!r} is not finished")
    if known is None or needs_id(known):
        # One that does not go on with the id before has fenced the one that had it.
        previous = -1 if known is None or expected is None else known.producer_id
        return TransactionState(
            transactional_id,
            fresh_id,
            0,
            timeout_ms,
            updated_ms=now_ms,
            version=FIRST,
            previous_id=previous,
        )
    return TransactionState(
        known.id,
        known.producer_id,
        known.epoch + 1,
        timeout_ms,
        updated_ms=now_ms,
        version=FIRST,
        retry_epoch=-1 if expected is None else expected[1],
    )


def asks_again(known: TransactionState, expected: tuple[int, int]) -> bool:
    """Return whether a client asks for the epoch that it has; raise if its producer was fenced."""
    again = expected == (known.producer_id, known.retry_epoch) or _before_rotation(known, *expected)
    if again and known.status != Status.ONGOING and not known.prepared:
        return True
    if expected != (known.producer_id, known.epoch):
        raise InvalidProducerEpochError(
            f"producer {expected[0]} of {known.id!r}, epoch {expected[1]}, was fenced:"
            f" it is producer {known.producer_id} with epoch {known.epoch} now"
        )
    return False


def _before_rotation(state: TransactionState, producer_id: int, epoch: int) -> bool:
    """Return whether a producer id and epoch are the last ones before the present id."""
    return state.epoch == 0 and producer_id >= 0 and (producer_id, epoch) == (state.previous_id, LAST_EPOCH)


def add(
    state: TransactionState,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    version: int = PROGRAM,
) -> TransactionState:
    """Return the transaction with more partitions; itself if it has them all.

    A client's producer that has ended a transaction begins the next one.
    """
    more = state.partitions.union(partitions)
    ended = state.status in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
    begins = state.status == Status.EMPTY or (ended and state.of_client)
    if state.status == Status.ONGOING and more == state.partitions:
        return state
    if state.status != Status.ONGOING and not begins:
        raise InvalidTxnStateError(f"transaction {state.id!r} has ended")
    return replace(
        state,
        status=Status.ONGOING,
        partitions=more,
        updated_ms=now_ms,
        started_ms=now_ms if begins else state.started_ms,
        version=version if begins else state.version,
        retry_epoch=-1,
    )


def prepare(
    state: TransactionState,
    *,
    commit: bool,
    now_ms: int,
    version: int = PROGRAM,
    fresh_id: int = -1,
) -> TransactionState:
    """Return the transaction with its outcome decided.

    A client of the second version has a new epoch with that, and a new producer id where the epochs of the
    present one are used up. It may also abort what has not begun.
    """
    second = version == SECOND
    ended = state.status in (Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT)
    if state.status != Status.ONGOING and not (second and ended and not commit):
        raise InvalidTxnStateError(f"transaction {state.id!r} is not open")
    return replace(
        state,
        status=Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT,
        updated_ms=now_ms,
        epoch=state.epoch + 1 if second else state.epoch,
        version=version or state.version,  # the markers have the epoch of this one
        next_id=fresh_id if second and needs_id(state) else -1,
        retry_epoch=-1,
    )


def was_ended(state: TransactionState, producer_id: int, epoch: int, version: int, *, commit: bool) -> bool:
    """Return whether a client asks to end what it has ended already; raise if that had the other outcome.

    One of the second version has not heard of its new epoch, or of its new producer id.
    """
    mine = (producer_id, epoch) == (state.producer_id, state.epoch)
    if version == SECOND:
        # The next epoch of one that ended otherwise is of another producer, or behind the last one a fence.
        told = state.version == SECOND and state.epoch <= LAST_EPOCH
        mine = (told and (producer_id, epoch + 1) == (state.producer_id, state.epoch)) or _before_rotation(
            state, producer_id, epoch
        )
    if not mine or state.status not in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT):
        return False
    if state.committing != commit:
        ended = "committed" if state.committing else "aborted"
        raise InvalidTxnStateError(f"transaction {state.id!r} was {ended}")
    return True


def fence(state: TransactionState, now_ms: int) -> TransactionState:
    """Return the transaction decided as an abort, under an epoch that shuts its producer out.

    Of a client's second version it is not the epoch that an end of its own would bring: the client would
    take the abort for that. A client may ask to go on after it, if no other one has begun.
    """
    decided = prepare(state, commit=False, now_ms=now_ms)
    step = 2 if state.version == SECOND else 1
    return replace(decided, epoch=min(state.epoch + step, LAST_EPOCH + 1), retry_epoch=state.epoch)


def complete(state: TransactionState, now_ms: int) -> TransactionState:
    """Return the transaction with every marker written."""
    status = Status.COMPLETE_COMMIT if state.committing else Status.COMPLETE_ABORT
    done = replace(state, status=status, partitions=frozenset(), updated_ms=now_ms)
    if state.next_id < 0:
        return done
    return replace(done, producer_id=state.next_id, epoch=0, previous_id=state.producer_id, next_id=-1)


# -- records ---------------------------------------------------------------------------------------------


def pack_key(transactional_id: str) -> bytes:
    """Return the key of a transaction's record."""
    return records.pack_key(TABLE, "TransactionLog", transactional_id=check_name(transactional_id))


def pack(state: TransactionState) -> bytes:
    """Return the value of a transaction's record: version 0, as of old, unless a client makes it."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(state.partitions):
        topics.setdefault(topic, []).append(partition)
    made = records.struct_of(TABLE, "TransactionLog", "PartitionsSchema")
    return records.pack_value(
        TABLE,
        "TransactionLog",
        1 if state.of_client else 0,
        producer_id=state.producer_id,
        previous_producer_id=state.previous_id,
        next_producer_id=state.next_id,
        client_transaction_version=state.version,
        producer_epoch=state.epoch,
        transaction_timeout_ms=state.timeout_ms,
        transaction_status=int(state.status),
        transaction_partitions=(
            None if state.status == Status.EMPTY else [made(*each) for each in topics.items()]
        ),
        transaction_last_update_timestamp_ms=state.updated_ms,
        transaction_start_timestamp_ms=state.started_ms,
    )


def parse_key(key: bytes) -> str | None:
    """Return the transactional id of a record; None for a key of another kind."""
    kind, named = records.parse_key(TABLE, key)
    return named.transactional_id if kind == "TransactionLog" else None


def parse(key: bytes, value: bytes) -> TransactionState | None:
    """Read a record of either version; None for a key of another kind."""
    transactional_id = parse_key(key)
    if transactional_id is None:
        return None
    found = records.parse_value(TABLE, "TransactionLog", value)
    try:
        status = Status(found.transaction_status)
    except ValueError as error:
        raise CorruptionError(f"a record of __transaction_state is garbled: {error}") from error
    partitions = frozenset(
        (each.topic, number) for each in found.transaction_partitions or () for number in each.partition_ids
    )
    return TransactionState(
        transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        status,
        partitions,
        found.transaction_last_update_timestamp_ms,
        found.transaction_start_timestamp_ms,
        found.client_transaction_version,
        found.previous_producer_id,
        found.next_producer_id,
    )
