"""A transaction of a program: append to several topics, commit offsets, and end it once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stratalog import locks
from stratalog.errors import (
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    StratalogError,
)
from stratalog.log.arguments import (
    check_list,
    check_mapping,
    check_number,
    check_text,
    check_timestamp,
    wrong_type,
)
from stratalog.log.write.sequenced import Source
from stratalog.model import Appended, AppendedRange, Header, Record
from stratalog.store.groups import Consumer
from stratalog.store.groups.offsets import OFFSETS_TOPIC, commit_records, partition_of
from stratalog.store.internal_topic import check_writable, for_coordinator
from stratalog.store.serde import SerializedTopic
from stratalog.store.topic import Topic, name_of
from stratalog.store.transactions.state import TopicPartition

if TYPE_CHECKING:
    from stratalog.store.store import Store


class Transaction:
    """Records and committed offsets that readers with ``read_committed`` see together or not at all.

    Made by `Store.transaction`. Use it in a ``with`` block, which commits at its end and aborts on an
    exception. It is for one thread at a time: a second one gets `ConcurrentUseError`.
    """

    def __init__(self, store: Store, transactional_id: str, timeout_ms: int, *, sync: bool) -> None:
        self.one_thread = locks.OneThread(f"a transaction of {transactional_id!r}")
        self._store = store
        self._coordinator = store.transactions
        self._sync = sync
        self._sequences: dict[TopicPartition, int] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._read: dict[str, Topic] = {}
        """The topics of the offsets."""
        self._consumers: list[Consumer] = []
        self._failed: BaseException | None = None
        self._ended = False
        self._outcome: bool | None = None
        self._state = self._coordinator.begin(transactional_id, timeout_ms, self)

    def __repr__(self) -> str:
        return f"<Transaction {self.id!r}>"

    @property
    def id(self) -> str:
        """The transactional id."""
        return self._state.id

    @property
    def committed(self) -> bool | None:
        """True if it was committed, False if it was aborted, None before that.

        Use it to find out the result of an interrupted commit.
        """
        if self._outcome is None:
            self._outcome = self._coordinator.committed(self._state)
        return self._outcome

    def learn(self, committed: bool) -> None:
        """Keep what became of it: the next transaction of its id takes the place where that is known."""
        if self._outcome is None:
            self._outcome = committed

    @locks.for_one_thread
    def append(
        self,
        topic: str | Topic | SerializedTopic,
        value: Any,
        key: Any = None,
        headers: Sequence[Header] = (),
        timestamp: int | dt.datetime | None = None,
        *,
        partition: int | None = None,
    ) -> Appended:
        """Append one record; the arguments are those of `Topic.append`.

        The topic is a name, a `Topic`, or what `Topic.using` returned: its serializers are used.
        """
        stamp = None if timestamp is None else check_timestamp("timestamp", timestamp)
        if isinstance(topic, SerializedTopic):
            value, key = topic.serde.value(value), topic.serde.key(key)
            topic = topic.topic
        name = name_of(topic, self._store.partitions)
        (placed,) = self.append_many(topic, [Record(value, key, headers, stamp)], partition=partition)
        return self._store.topic(name).appended(placed)

    @locks.for_one_thread
    def append_many(
        self,
        topic: str | Topic | SerializedTopic,
        records: Iterable[Record],
        *,
        partition: int | None = None,
    ) -> list[AppendedRange]:
        """Append records; return a range for each partition that got some. The topic is as for `append`."""
        self._check_open()
        if isinstance(topic, SerializedTopic):
            records = topic.serialized(records)
        name = name_of(topic, self._store.partitions)
        target = topic if isinstance(topic, Topic) else self._store.topic(name)
        check_writable(target)
        groups: dict[int, list[Record]] = {}
        rows = check_list("records", records, "records")
        if partition is not None:
            groups = {check_number("partition", partition, 0, target.partitions - 1): rows}
        else:
            groups = target.by_partition(rows)
        ranges: list[AppendedRange] = []
        try:
            for number, group in groups.items():
                if group:
                    ranges.append(self._append(name, number, group))
        except BaseException as error:
            if ranges:
                self._failed = error  # some of the records are written
            raise
        return ranges

    def _append(self, topic: str, partition: int, rows: list[Record]) -> AppendedRange:
        at = (topic, partition)
        self._coordinator.add(self._state, [at])
        sequence = self._sequences.get(at, 0)
        source = Source(self._state.producer_id, self._state.epoch, sequence, transactional=True)
        try:
            (placed,) = for_coordinator(self._store.topic(topic)).append_from(source, partition, rows)
            self._sequences[at] = sequence + len(rows)
        except InvalidArgumentError as error:
            if len(rows) > 1:
                self._failed = error  # some of them may be written
            raise
        except BaseException as error:
            self._failed = error
            raise
        return placed

    @locks.for_one_thread
    def commit_offsets(
        self, group: str | Consumer, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit offsets of a consumer group with the transaction.

        ``offsets`` has the next offset by (topic, partition). They may be omitted for a `Consumer` without
        ``auto_commit``: all records that it delivered so far count as processed.
        """
        self._check_open()
        if isinstance(group, Consumer):
            if group.auto_commit:
                raise InvalidArgumentError("a consumer with auto_commit commits by itself; open it without")
            group.check_open(self._store)
            if offsets is None:
                offsets = group.positions()
            self._consumers.append(group)
            group = group.group
        elif offsets is None:
            raise InvalidArgumentError("offsets are needed with the name of a group")
        if not check_text("group", group):
            raise InvalidArgumentError("group is empty: pass the name of a group")
        wanted: dict[TopicPartition, int] = {}
        for at, offset in check_mapping("offsets", offsets).items():
            if not isinstance(at, tuple) or len(at) != 2:
                raise wrong_type("offsets", "by (topic, partition)", at)
            topic = self._store.topic(check_text("topic", at[0]))
            number = check_number("partition", at[1], 0, topic.partitions - 1)
            wanted[topic.name, number] = check_number("offset", offset, 0)
            self._read[topic.name] = topic
        commit_records(group, wanted, 0)  # names that cannot be kept
        self._offsets.setdefault(group, {}).update(wanted)

    @locks.for_one_thread
    def commit(self) -> None:
        """Make everything visible. After an error or an interrupt `committed` tells the result."""
        self._check_open()
        if self._failed is not None:
            failed = self._failed
            self.abort()
            raise InvalidTxnStateError(
                f"transaction {self.id!r} was aborted: an append failed: {failed}"
            ) from failed
        try:
            # As late as possible: other groups' commits are not seen behind an open transaction.
            for group, offsets in self._offsets.items():
                left = {at: offset for at, offset in offsets.items() if not self._read[at[0]].deleted}
                if left:
                    kept = self._store.groups.offsets.topic_to_write()
                    rows = commit_records(group, left, self._store.partitions.context.clock.now_ms())
                    self._append(OFFSETS_TOPIC, partition_of(group, kept.partitions), rows)
            self._outcome = self._coordinator.end(self._state, commit=True, sync=self._sync)
            self._ended = True
        except BaseException:
            self._give_up()
            raise
        finally:
            for consumer in self._consumers:
                consumer.forget_committed()

    def abort(self) -> None:
        """Discard the transaction. A fenced transaction is already aborted. Any thread may call it."""
        if self._ended:
            return
        self._ended = True
        try:
            self._outcome = self._coordinator.end(self._state, commit=False, sync=False)
        except InvalidProducerEpochError:
            self._outcome = False

    def _give_up(self) -> None:
        """Abort what is not decided. If that fails too it is in doubt, and the first error tells why."""
        with suppress(StratalogError, OSError):
            self.abort()

    def _check_open(self) -> None:
        if self._ended:
            raise InvalidTxnStateError(f"transaction {self.id!r} has ended; begin another one")

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            try:
                self.commit()
            except BaseException:
                self._give_up()
                raise
