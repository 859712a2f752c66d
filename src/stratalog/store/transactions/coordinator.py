"""The transactions of a writable store: every step is a record in `__transaction_state`, then it is done.

Programs in this process use it (`begin`, `add`, `end`) and so do Kafka clients, whose requests come through
the broker (`init_producer`, `add_of_client`, `end_of_client`).

Crash policy: at the next open a transaction whose outcome is decided gets its missing markers. One of a
program that is open is aborted, since the process it belonged to is gone. One of a client stays open, since
the client may go on with it, until its timeout. Its record tells which of the two it is. Which markers are
missing is read off the partitions: each knows the producers that have a transaction open. So markers may be
tried again.

A broker's `__transaction_state` is left as it is until the first transaction here. A partition of this topic
that is damaged or offline settles nothing: an older record in place of a lost one could commit what was
aborted. Its ids are refused until it is whole again.

An interrupt or an error in the middle of an end leaves the transaction in doubt: its record is read again and
what it says is done, at once if possible, else by the background thread, the next transaction of this id or
the next open.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.errors import CorruptionError, InvalidTxnStateError, NotFoundError, StratalogError, again
from stratalog.format.batch import BatchHeader
from stratalog.store.groups.offsets import partition_of
from stratalog.store.internal_topic import for_coordinator
from stratalog.store.transactions import state as states
from stratalog.store.transactions.state import Status, TopicPartition, TransactionState

if TYPE_CHECKING:
    from stratalog.store.store import Store
    from stratalog.store.topic import Topic
    from stratalog.store.transactions.transaction import Transaction

TRANSACTIONS_TOPIC = "__transaction_state"
PARTITIONS = 1
"""Kafka has 50, for many brokers. A broker goes by how many there are."""
CONFIG: Mapping[str, object] = {
    "cleanup.policy": "compact",
    "segment.bytes": 100 << 20,
    "compression.type": "uncompressed",
    "key.index.enable": True,
}
EXPIRATION_MS = 7 * 86_400_000
"""How long unused ids are kept, where no broker has another `transactional.id.expiration.ms`."""


class Coordinator:
    """The transactions of one store. Thread-safe: those of one id take turns, others do not wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._states: dict[str, TransactionState] = {}
        self._locks: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        """By id, while a thread has it or waits for it."""
        self._lock = locks.lock("transactions")
        self._latest: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()
        """Transactions of programs, by id: each learns its outcome before another one gets its id."""
        self._in_doubt: set[str] = set()
        """Ids whose end was cut short."""
        self._loaded = False
        self._unreadable: dict[int, StratalogError] = {}
        """Partitions of the topic that cannot be read whole, and why."""
        self._expiration_ms = EXPIRATION_MS
        self._lost: dict[TopicPartition, tuple[int, int]] = {}
        """Partitions with an open transaction that no record tells of: producer id and epoch."""

    # -- opening and time ----------------------------------------------------------------------------

    def recover(self) -> None:
        """At an open, with every partition recovered: settle what the store's own topic tells.

        What cannot be finished now (a disk is full or offline) is tried again by `tick`.
        """
        entry = self._store.partitions.entries.get(TRANSACTIONS_TOPIC)
        if entry is None:
            self._loaded = True
        elif not entry.foreign:
            self._load()

    def _load(self) -> None:
        """Read the topic; finish what was decided, abort what programs left open."""
        kept = self._topic()
        found: dict[str, TransactionState] = {}
        before = dict(self._unreadable)
        self._unreadable.clear()
        for partition in range(0 if kept is None else kept.partitions):
            try:
                found.update(self._read(partition))
            except StratalogError as error:
                self._unreadable[partition] = error
                if partition in before:
                    continue
                self._store.partitions.context.warn(
                    f"{TRANSACTIONS_TOPIC}-{partition}: its transactions stay as they are: {error}"
                )
        left: dict[int, dict[TopicPartition, int]] = {}
        epochs: dict[int, int] = {}
        for writer in self._store.partitions.registry.writers:
            opened = set(writer.producers.open_txns().values())
            for entry in writer.producers.to_entries():
                producer_id, epoch = entry.producer_id, entry.producer_epoch
                epochs[producer_id] = max(epoch, epochs.get(producer_id, -1))
                if producer_id in opened:
                    left.setdefault(producer_id, {})[writer.topic, writer.partition] = epoch
        for state in found.values():
            if state.id not in self._states:
                self._recover(state, left.get(state.producer_id, {}), epochs.get(state.producer_id, -1))
        self._abort_lost()
        self._loaded = True

    def _read(self, partition: int) -> dict[str, TransactionState]:
        """Return the latest state of each id in one partition; raise when it is damaged or offline."""
        latest: dict[str, TransactionState] = {}
        for record in self._store.topic(TRANSACTIONS_TOPIC).read(partition):
            if record.key is not None:
                try:
                    if record.value is None:  # the id was forgotten
                        latest.pop(states.parse_key(record.key) or "", None)
                        continue
                    found = states.parse(record.key, record.value)
                except CorruptionError as error:
                    where = f"{TRANSACTIONS_TOPIC}-{partition}, offset {record.offset}"
                    raise CorruptionError(error.reason, path=where) from error
                if found is not None:
                    latest[found.id] = found
        return latest

    def _check_known(self, transactional_id: str) -> None:
        """Load what is not loaded yet; refuse an id whose partition cannot be read."""
        with self._lock_of(""):  # no transaction's id
            if not self._loaded or self._unreadable:
                self._load()
        if self._unreadable:
            partition = partition_of(transactional_id, self._store.topic(TRANSACTIONS_TOPIC).partitions)
            if (error := self._unreadable.get(partition)) is not None:
                raise again(error)

    def _recover(self, state: TransactionState, left: Mapping[TopicPartition, int], last_epoch: int) -> None:
        """Settle one transaction; ``left`` has the partitions where one is open, with its epoch.

        A power cut may take the end of this topic and leave records of a later transaction: it is aborted.
        """
        mine = frozenset(at for at, epoch in left.items() if _is_told_of(state, epoch))
        self._lost.update({at: (state.producer_id, left[at]) for at in left.keys() - mine})
        status = state.status
        if status == Status.COMPLETE_COMMIT and mine:
            status = Status.PREPARE_COMMIT
        elif status == Status.PREPARE_EPOCH_FENCE or (not state.prepared and mine):
            status = Status.ONGOING
        state = replace(
            state,
            status=status,
            partitions=state.partitions | mine,
            # One that seems to begin in the future, by another clock, would not be aborted before that.
            started_ms=min(state.started_ms, self._now_ms()),
        )
        self._states[state.id] = state
        # The end of a client's transaction is lost if its producer has a newer epoch.
        gone = state.status == Status.ONGOING and (not state.of_client or last_epoch > state.epoch)
        if state.prepared or gone:
            self._abort_lost()  # a later transaction in the same partition would take a marker for its own
            self._try_to_settle(state.id, reload=False, abort=gone)
        state = self._states[state.id]
        self._states[state.id] = replace(state, epoch=max(state.epoch, last_epoch))

    def _abort_lost(self, *, warn: bool = True) -> None:
        """Abort transactions that no record tells of."""
        for (name, partition), (producer_id, epoch) in list(self._lost.items()):
            try:
                with suppress(NotFoundError):
                    topic = self._store.topic(name)
                    if producer_id in topic.open_transactions(partition):
                        topic.end_transaction(
                            partition, producer_id=producer_id, producer_epoch=epoch, commit=False
                        )
                del self._lost[name, partition]
            except (StratalogError, OSError) as error:
                if warn:
                    self._store.partitions.context.warn(
                        f"{name}-{partition}: an open transaction stays: {error}"
                    )

    def tick(self) -> None:
        """Abort what is open for too long, finish what is in doubt, forget ids that are no longer used."""
        if not self._loaded:
            return
        now_ms = self._now_ms()
        if self._lost:
            self._abort_lost(warn=False)
        for state in list(self._states.values()):
            if self._is_due(state, now_ms):
                lock = self._lock_of(state.id)
                if lock.acquire(blocking=False):  # else its own thread is at it
                    try:
                        current = self._states.get(state.id)
                        if current is None:
                            continue
                        if self._is_forgettable(current, now_ms):
                            self._try_to_forget(current)
                        elif self._is_due(current, now_ms):
                            self._try_to_settle(state.id, reload=state.id in self._in_doubt)
                    finally:
                        lock.release()

    def _is_due(self, state: TransactionState, now_ms: int) -> bool:
        return state.id in self._in_doubt or state.expired(now_ms) or self._is_forgettable(state, now_ms)

    def _is_forgettable(self, state: TransactionState, now_ms: int) -> bool:
        """Return whether an id may go; its next producer gets a new producer id."""
        held = state.id in self._in_doubt or state.id in self._latest
        return not held and state.forgettable(now_ms, self._expiration_ms)

    def _try_to_forget(self, state: TransactionState) -> None:
        """Write a tombstone for an id and forget it; after an error the next tick tries again."""
        key = states.pack_key(state.id)
        with suppress(StratalogError, OSError):
            if (kept := self._topic()) is not None:
                kept.append(None, key, partition=partition_of(state.id, kept.partitions))
            del self._states[state.id]

    # -- one transaction -----------------------------------------------------------------------------

    def begin(self, transactional_id: str, timeout_ms: int, owner: Transaction) -> TransactionState:
        """Begin a transaction; one of the same id that is open is fenced and aborted first."""
        self._check_known(transactional_id)
        with self._lock_of(transactional_id):
            known, fresh = self._settled(transactional_id)
            made = states.begin(known, transactional_id, fresh, timeout_ms)
            self._states[transactional_id] = made
            self._latest[transactional_id] = owner
            return made

    def add(self, mine: TransactionState, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions into a transaction, before anything is written to them."""
        with self._lock_of(mine.id):
            state = self._current(mine)
            added = states.add(state, partitions, self._now_ms())
            if added is not state:
                # A producer id that is not on disk could not be found again after a power cut.
                self._write(added, sync=state.updated_ms < 0)

    def end(self, mine: TransactionState, *, commit: bool, sync: bool) -> bool:
        """End a transaction; return whether it is committed. An error leaves the rest to `tick`.

        One that an interrupted call has ended stays as it is.
        """
        with self._lock_of(mine.id):
            state = self._current(mine)
            if state.status == Status.EMPTY:
                return commit
            if state.status in (Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT):
                return state.committing
            if sync and commit:
                for at in sorted(state.partitions):
                    with suppress(NotFoundError):
                        self._store.topic(at[0]).flush(at[1])
            self._decide(states.prepare(state, commit=commit, now_ms=self._now_ms()), sync=sync)
            return commit

    def committed(self, mine: TransactionState) -> bool | None:
        """Return whether a transaction was committed; None while that is open or in doubt."""
        state = self._states[mine.id]
        if mine.id in self._in_doubt:
            return None
        if (state.producer_id, state.epoch) != (mine.producer_id, mine.epoch):
            return False
        return {Status.COMPLETE_COMMIT: True, Status.COMPLETE_ABORT: False}.get(state.status)

    # -- Kafka clients -------------------------------------------------------------------------------

    def load(self, expiration_ms: int = EXPIRATION_MS) -> None:
        """Take over what a broker left here before: its clients come to this one."""
        self._expiration_ms = expiration_ms
        with self._lock_of(""):
            if not self._loaded:
                self._load()

    def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None = None
    ) -> TransactionState:
        """Give a client its producer id and a new epoch; an open transaction of its id is aborted first.

        ``expected`` is the producer id and epoch of a client that goes on after an error.
        """
        self._check_known(transactional_id)
        with self._lock_of(transactional_id):
            known = self._states.get(transactional_id)
            if known is not None and expected is not None:
                states.asks_again(known, expected)  # one that was fenced aborts nothing
            known, fresh = self._settled(transactional_id)
            made = states.init(known, transactional_id, fresh, timeout_ms, self._now_ms(), expected)
            # A producer id that is not on disk could not be found again after a power cut.
            self._write(made, sync=fresh >= 0)
            self._latest.pop(transactional_id, None)
            return made

    def add_of_client(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        version: int,
    ) -> None:
        """Take partitions into a client's transaction, which begins with that if none is open."""
        self._check_known(transactional_id)
        with self._lock_of(transactional_id):
            state = states.check_client(self._undoubted(transactional_id), producer_id, epoch)
            added = states.add(state, partitions, self._now_ms(), version)
            if added is not state:
                # With one epoch for many transactions, what is on disk of this one must not be taken for a
                # part of the one before after a power cut.
                first = added.version == states.FIRST
                self._write(added, sync=first and self._waits_for_disk(added.partitions - state.partitions))

    def end_of_client(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, version: int
    ) -> TransactionState:
        """End a client's transaction; return its producer as it is then. One that was ended stays so."""
        self._check_known(transactional_id)
        with self._lock_of(transactional_id):
            state = self._undoubted(transactional_id)
            if state is not None and states.was_ended(state, producer_id, epoch, version, commit=commit):
                return state
            state = states.check_client(state, producer_id, epoch)
            rotates = version == states.SECOND and states.needs_id(state)
            fresh = self._store.allocate_producer_ids(1)[0] if rotates else -1
            now_ms = self._now_ms()
            decided = states.prepare(state, commit=commit, now_ms=now_ms, version=version, fresh_id=fresh)
            # No record tells of the old producer id afterwards: nothing of it may be open after a power cut.
            self._decide(decided, sync=rotates)
            return self._states[transactional_id]

    def admits(self, transactional_id: str, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether a transaction is open with these partitions. Takes no lock."""
        state = self._states.get(transactional_id)
        return (
            state is not None
            and state.status == Status.ONGOING
            and transactional_id not in self._in_doubt
            and state.partitions.issuperset(partitions)
        )

    def check_batch(self, transactional_id: str, at: TopicPartition, batch: BatchHeader) -> None:
        """Raise unless a batch belongs to the open transaction of its producer. Takes no lock.

        Called under the partition's lock. An end is published here before its marker is written under that
        lock: no batch comes behind the marker.
        """
        state = self._states.get(transactional_id)
        if not batch.is_transactional:
            raise InvalidTxnStateError(f"a batch of no transaction came in one of {transactional_id!r}")
        state = states.check_client(state, batch.producer_id, batch.producer_epoch)
        if not self.admits(transactional_id, [at]):
            raise InvalidTxnStateError(
                f"{at[0]}-{at[1]} is not in an open transaction of {transactional_id!r}"
            )

    def all(self) -> list[TransactionState]:
        """Return what is known of every transactional id, by name."""
        return [each for _, each in sorted(self._states.copy().items())]

    def producer_ids(self) -> set[int]:
        """Return the producer ids that transactional ids have or get at the end of their transactions."""
        known = list(self._states.values())
        return {each.producer_id for each in known} | {each.next_id for each in known}

    # -- inside --------------------------------------------------------------------------------------

    def _current(self, mine: TransactionState) -> TransactionState:
        state = self._undoubted(mine.id)
        assert state is not None
        state.check(mine.producer_id, mine.epoch)
        return state

    def _undoubted(self, transactional_id: str) -> TransactionState | None:
        """Return the state of an id; one that an error left in doubt is settled first."""
        self._store.partitions.check_open()
        if transactional_id in self._in_doubt:
            self._settle(transactional_id, reload=True)
        return self._states.get(transactional_id)

    def _settled(self, transactional_id: str) -> tuple[TransactionState | None, int]:
        """Return the state of an id with nothing open any more, and a fresh producer id if one is needed.

        A program that had the id learns the outcome of its transaction.
        """
        known = self._states.get(transactional_id)
        if known is not None and (
            transactional_id in self._in_doubt or known.prepared or known.status == Status.ONGOING
        ):
            self._settle(transactional_id, reload=transactional_id in self._in_doubt, abort=True)
            known = self._states[transactional_id]
        fresh = self._store.allocate_producer_ids(1)[0] if states.needs_id(known) else -1
        before = self._latest.get(transactional_id)
        if before is not None:
            before.learn(known is not None and known.status == Status.COMPLETE_COMMIT)
        return known, fresh

    def _decide(self, decided: TransactionState, *, sync: bool) -> None:
        """Write the outcome of a transaction and carry it out.

        Where a topic of it waits for the disk, so does the outcome: a marker that is on disk is a decision.
        """
        sync = sync or self._waits_for_disk(decided.partitions)
        self._in_doubt.add(decided.id)
        try:
            self._write(decided, sync=sync)
            self._finish(decided.id, sync=sync)
            self._in_doubt.discard(decided.id)
        except BaseException:
            self._try_to_settle(decided.id, reload=True)
            raise

    def _waits_for_disk(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether a topic of these acknowledges what is on disk alone."""
        for name in {name for name, _ in partitions}:
            with suppress(NotFoundError):
                if self._store.topic(name).config.flush_messages == 1:
                    return True
        return False

    def _try_to_settle(self, transactional_id: str, *, reload: bool, abort: bool = False) -> None:
        known = transactional_id in self._in_doubt
        try:
            self._settle(transactional_id, reload=reload, abort=abort)
        except (StratalogError, OSError) as error:
            self._in_doubt.add(transactional_id)
            if known:
                return  # it learned this when it became in doubt
            self._store.partitions.context.warn(f"transaction {transactional_id!r} is not finished: {error}")

    def _settle(self, transactional_id: str, *, reload: bool, abort: bool = False) -> None:
        """Bring a transaction to its end: the decided one, or an abort.

        One of a client that was not decided stays open, unless ``abort`` is set: the client tries again.
        """
        state = self._states[transactional_id]
        if reload:
            state = self._reloaded(state)
        self._in_doubt.add(transactional_id)
        if state.status == Status.ONGOING and (abort or not state.of_client or state.expired(self._now_ms())):
            self._write(states.fence(state, self._now_ms()), sync=False)
        self._finish(transactional_id, sync=False)
        self._in_doubt.discard(transactional_id)

    def _reloaded(self, state: TransactionState) -> TransactionState:
        """Take over what the log says of a transaction whose last record may be there or not."""
        kept = self._topic()
        key = states.pack_key(state.id)
        record = None if kept is None else kept.get(key, partition_of(state.id, kept.partitions))
        if record is not None and record.value is not None:
            found = states.parse(key, record.value)
            if found is not None and found.producer_id == state.producer_id and found.epoch >= state.epoch:
                state = self._states[state.id] = found
        return state

    def _finish(self, transactional_id: str, *, sync: bool) -> None:
        """Write the markers that are missing, then that the transaction is complete.

        A partition that fails does not keep readers of the others waiting.
        """
        state = self._states[transactional_id]
        if not state.prepared:
            return
        failed: StratalogError | OSError | None = None
        for name, partition in sorted(state.partitions):
            try:
                topic = self._store.topic(name)
                if state.producer_id in topic.open_transactions(partition):
                    topic.end_transaction(
                        partition,
                        producer_id=state.producer_id,
                        producer_epoch=state.epoch,
                        commit=state.committing,
                        transaction_version=max(state.version, states.FIRST),
                        sync=sync,
                    )
            except NotFoundError:
                continue  # its topic was deleted
            except (StratalogError, OSError) as error:
                failed = failed or error
        if failed is not None:
            raise failed
        self._write(states.complete(state, self._now_ms()), sync=False)

    def _write(self, state: TransactionState, *, sync: bool) -> None:
        kept = self._topic()
        if kept is None:
            made = self._store.create_topic(TRANSACTIONS_TOPIC, PARTITIONS, CONFIG, if_not_exists=True)
            kept = for_coordinator(made)
        partition = partition_of(state.id, kept.partitions)
        kept.append(states.pack(state), states.pack_key(state.id), partition=partition, sync=sync)
        self._states[state.id] = state

    def _topic(self) -> Topic | None:
        if TRANSACTIONS_TOPIC not in self._store.partitions.entries:
            return None
        return for_coordinator(self._store.topic(TRANSACTIONS_TOPIC))

    def _lock_of(self, transactional_id: str) -> threading.Lock:
        with self._lock:
            found = self._locks.get(transactional_id)
            if found is None:
                found = self._locks[transactional_id] = locks.lock("transaction")
            return found

    def _now_ms(self) -> int:
        return self._store.partitions.context.clock.now_ms()


def _is_told_of(state: TransactionState, epoch: int) -> bool:
    """Return whether a record is about a transaction that its producer has open with this epoch.

    A program has one epoch for one transaction. A client of the first version has it for many: what is open
    behind a complete one is of the next, whose record is lost. The second version has the epoch before the
    record's own until that is complete.
    """
    if not state.of_client:
        return epoch <= state.epoch
    if state.status == Status.ONGOING:
        return epoch == state.epoch
    if state.prepared:
        return epoch < state.epoch or (state.version == states.FIRST and epoch == state.epoch)
    complete = state.version == states.SECOND and state.status == Status.COMPLETE_COMMIT
    return complete and epoch < state.epoch
