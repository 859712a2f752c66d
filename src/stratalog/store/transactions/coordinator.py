"""The transactions of a writable store: every step is a record in `__transaction_state`, then it is done.

Crash policy: at the next open a transaction whose outcome is decided gets its missing markers, and every
other one that is open is aborted, since the process it belonged to is gone. Which markers are missing is read
off the partitions: each knows the producers that have a transaction open. So markers may be tried again.

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
from stratalog.errors import CorruptionError, NotFoundError, StratalogError, again
from stratalog.store.groups.offsets import partition_of
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


class Coordinator:
    """The transactions of one store. Thread-safe: those of one id take turns, others do not wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._states: dict[str, TransactionState] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = locks.lock("transactions")
        self._latest: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()
        """What programs hold, by id: it is told its outcome before another one has its id."""
        self._in_doubt: set[str] = set()
        """Ids whose end was cut short."""
        self._loaded = False
        self._unreadable: dict[int, StratalogError] = {}
        """Partitions of the topic that cannot be read whole, and why."""
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
        """Read the topic; finish what was decided, abort what was open."""
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
            if record.key is not None and record.value is not None:
                try:
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
        mine = frozenset(at for at, epoch in left.items() if epoch <= state.epoch)
        self._lost.update({at: (state.producer_id, left[at]) for at in left.keys() - mine})
        status = state.status
        if status == Status.COMPLETE_COMMIT and mine:
            status = Status.PREPARE_COMMIT
        elif status == Status.PREPARE_EPOCH_FENCE or (not state.prepared and mine):
            status = Status.ONGOING
        state = replace(state, status=status, partitions=state.partitions | mine)
        self._states[state.id] = state
        if state.prepared or state.status == Status.ONGOING:
            self._try_to_settle(state.id, reload=False)
        state = self._states[state.id]
        self._states[state.id] = replace(state, epoch=max(state.epoch, last_epoch))

    def _abort_lost(self, *, warn: bool = True) -> None:
        """Abort transactions that no record tells of."""
        for (name, partition), (producer_id, epoch) in list(self._lost.items()):
            try:
                with suppress(NotFoundError):
                    self._store.topic(name).end_transaction(
                        partition, producer_id=producer_id, producer_epoch=epoch, commit=False
                    )
                del self._lost[name, partition]
            except (StratalogError, OSError) as error:
                if warn:
                    self._store.partitions.context.warn(
                        f"{name}-{partition}: an open transaction stays: {error}"
                    )

    def tick(self) -> None:
        """Abort transactions that are open for too long; finish those that are in doubt."""
        if not self._loaded:
            return
        now_ms = self._now_ms()
        if self._lost:
            self._abort_lost(warn=False)
        for state in list(self._states.values()):
            if state.id in self._in_doubt or state.expired(now_ms):
                lock = self._lock_of(state.id)
                if lock.acquire(blocking=False):  # else its own thread is at it
                    try:
                        current = self._states[state.id]
                        if current.id in self._in_doubt or current.expired(now_ms):
                            self._try_to_settle(state.id, reload=state.id in self._in_doubt)
                    finally:
                        lock.release()

    # -- one transaction -----------------------------------------------------------------------------

    def begin(self, transactional_id: str, timeout_ms: int, owner: Transaction) -> TransactionState:
        """Begin a transaction; one of the same id that is open is fenced and aborted first."""
        self._check_known(transactional_id)
        with self._lock_of(transactional_id):
            known = self._states.get(transactional_id)
            if known is not None and (
                transactional_id in self._in_doubt or known.prepared or known.status == Status.ONGOING
            ):
                self._settle(transactional_id, reload=transactional_id in self._in_doubt)
                known = self._states[transactional_id]
            fresh = self._store.allocate_producer_ids(1)[0] if states.needs_id(known) else -1
            made = states.begin(known, transactional_id, fresh, timeout_ms)
            before = self._latest.get(transactional_id)
            if before is not None:
                before.learn(known is not None and known.status == Status.COMPLETE_COMMIT)
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
            self._in_doubt.add(mine.id)
            try:
                self._write(states.prepare(state, commit=commit, now_ms=self._now_ms()), sync=sync)
                self._finish(mine.id, sync=sync)
                self._in_doubt.discard(mine.id)
            except BaseException:
                self._try_to_settle(mine.id, reload=True)
                raise
            return commit

    def committed(self, mine: TransactionState) -> bool | None:
        """Return whether a transaction was committed; None while that is open or in doubt."""
        state = self._states[mine.id]
        if mine.id in self._in_doubt:
            return None
        if (state.producer_id, state.epoch) != (mine.producer_id, mine.epoch):
            return False
        return {Status.COMPLETE_COMMIT: True, Status.COMPLETE_ABORT: False}.get(state.status)

    # -- inside --------------------------------------------------------------------------------------

    def _current(self, mine: TransactionState) -> TransactionState:
        self._store.partitions.check_open()
        if mine.id in self._in_doubt:
            self._settle(mine.id, reload=True)
        state = self._states[mine.id]
        state.check(mine.producer_id, mine.epoch)
        return state

    def _try_to_settle(self, transactional_id: str, *, reload: bool) -> None:
        known = transactional_id in self._in_doubt
        try:
            self._settle(transactional_id, reload=reload)
        except (StratalogError, OSError) as error:
            self._in_doubt.add(transactional_id)
            if known:
                return  # it was told when it came to be in doubt
            self._store.partitions.context.warn(f"transaction {transactional_id!r} is not finished: {error}")

    def _settle(self, transactional_id: str, *, reload: bool) -> None:
        """Bring a transaction to its end: the decided one, or an abort."""
        state = self._states[transactional_id]
        if reload:
            state = self._reloaded(state)
        self._in_doubt.add(transactional_id)
        if state.status == Status.ONGOING:
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
        kept = self._topic() or self._store.create_topic(
            TRANSACTIONS_TOPIC, PARTITIONS, CONFIG, if_not_exists=True
        )
        partition = partition_of(state.id, kept.partitions)
        kept.append(states.pack(state), states.pack_key(state.id), partition=partition, sync=sync)
        self._states[state.id] = state

    def _topic(self) -> Topic | None:
        if TRANSACTIONS_TOPIC not in self._store.partitions.entries:
            return None
        return self._store.topic(TRANSACTIONS_TOPIC)

    def _lock_of(self, transactional_id: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(transactional_id, locks.lock("transaction"))

    def _now_ms(self) -> int:
        return self._store.partitions.context.clock.now_ms()
