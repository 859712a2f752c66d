"""Named consumers: each partition of a group's topics is read by one of its consumers at a time.

Consumers of one group in one process share the partitions. When one comes or goes, the partitions are dealt
out again: a consumer gives up what it lost when it next asks for records. Only then another one takes that
over, from the committed offset. So no record is handled by two consumers at once.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from stratalog import locks
from stratalog.errors import (
    ClosedError,
    ConcurrentUseError,
    GroupInUseError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    SerializationError,
    UnknownPartitionError,
)
from stratalog.log.arguments import (
    Moment,
    check_all,
    check_list,
    check_number,
    check_seconds,
    check_text,
    wrong_type,
)
from stratalog.log.read.reader import check_isolation
from stratalog.model import Record
from stratalog.store import reading
from stratalog.store.groups.offsets import GroupOffsets, TopicPartition, pack_key
from stratalog.store.reading import Part, ReadOptions
from stratalog.store.serde import Serde, SerializedTopic
from stratalog.store.topic import Topic, name_of

if TYPE_CHECKING:
    from stratalog.store.store import Store

logger = logging.getLogger("stratalog")

Reset = Literal["earliest", "latest", "error"]
AUTO_COMMIT_S = 5.0
"""Kafka's auto.commit.interval.ms."""
AT_ONCE = 500
"""Records read ahead; Kafka's max.poll.records."""


class _Stop(reading.Stop):
    """Ends a wait when the consumer is closed, and when the partitions were dealt out again."""

    __slots__ = ("again", "dropped")

    def __init__(self) -> None:
        super().__init__(None, follow=True)
        self.again = False
        self.dropped = False
        """Set, without a lock, when the consumer is no longer referenced: the next look removes it."""

    def __call__(self) -> bool:
        return self.again or super().__call__()

    @property
    def closed(self) -> bool:
        return super().__call__()

    def rest(self, until_s: float) -> None:
        """Wait without a partition to wait for."""
        if self.wake is not None and not self():
            self.wake.wait(max(0.0, until_s - time.monotonic()))

    def look_again(self) -> None:
        self.again = True
        if self.wake is not None:
            self.wake.set()


class _Member:
    """A consumer as its group sees it. Not the consumer itself: one that is dropped leaves the group."""

    __slots__ = ("group", "stop", "topics", "user")

    def __init__(self, group: str, topics: tuple[str, ...]) -> None:
        self.group = group
        self.topics = topics
        self.stop = _Stop()
        self.user: threading.Thread | None = None
        """The thread that reads."""

    @property
    def gone(self) -> bool:
        """True if its owner will not remove it: dropped, or closed while its thread was elsewhere."""
        return self.stop.dropped or (self.stop.closed and self.user is not None and not self.user.is_alive())


class Groups:
    """The groups of one store that have consumers in this process. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self.offsets = GroupOffsets(store)
        self._lock = locks.lock("groups")
        self._members: dict[str, list[_Member]] = {}
        self._owners: dict[str, dict[TopicPartition, _Member]] = {}
        self._claimed: set[str] = set()
        """Groups that clients of a broker have."""
        self._served = False

    def members(self, group: str) -> int:
        """Return how many consumers a group has here."""
        return sum(not each.gone for each in self._members.get(group, ()))

    def topics_of(self, group: str) -> frozenset[str]:
        """Return the topics that consumers of a group read here."""
        with self._lock:
            members = self._members.get(group, ())
            return frozenset(name for each in members if not each.gone for name in each.topics)

    def begin_serving(self) -> bool:
        """Take the groups for a broker; False if one has them: two would give out the same partitions."""
        with self._lock:
            free, self._served = not self._served, True
            return free

    def end_serving(self) -> None:
        """Let another broker have the groups."""
        with self._lock:
            self._served = False

    def claim(self, group: str) -> bool:
        """Keep a group for clients of a broker; False if it has consumers here."""
        with self._lock:
            if any(not each.gone for each in self._members.get(group, ())):
                return False
            self._claimed.add(group)
            return True

    def release(self, group: str) -> None:
        """Let consumers of this process join a group again."""
        with self._lock:
            self._claimed.discard(group)

    def join(self, member: _Member) -> None:
        """Take a consumer in; the others learn of it."""
        with self._lock:
            if member.group in self._claimed:
                raise GroupInUseError(
                    f"clients of the broker are members of the group {member.group!r}, and would read the"
                    " same partitions; use another group, or wait until they have left"
                )
            members = self._members.setdefault(member.group, [])
            members.append(member)
            others = members[:-1]
        _wake(others)

    def leave(self, member: _Member) -> None:
        """Take a consumer out; what it owned is free."""
        with self._lock:
            members = self._members.get(member.group, [])
            if member in members:
                members.remove(member)
            owners = self._owners.get(member.group, {})
            for at in [at for at, owner in owners.items() if owner is member]:
                del owners[at]
            left = list(members)
            if not members:
                self._members.pop(member.group, None)
                self._owners.pop(member.group, None)
        _wake(left)

    def share_of(self, member: _Member, counts: Mapping[str, int]) -> set[TopicPartition]:
        """Return the partitions that a consumer should have, given how many each of its topics has.

        As Kafka's range assignor: each topic is cut into as many runs as consumers want it.
        """
        for each in [each for each in self._members.get(member.group, ()) if each.gone]:
            self.leave(each)
        with self._lock:
            members = list(self._members.get(member.group, ()))
        share: set[TopicPartition] = set()
        for topic, count in counts.items():
            wanting = [each for each in members if topic in each.topics]
            if member in wanting:
                at, size, more = wanting.index(member), *divmod(count, len(wanting))
                first = at * size + min(at, more)
                share |= {(topic, each) for each in range(first, first + size + (at < more))}
        return share

    def take(self, member: _Member, wanted: set[TopicPartition]) -> set[TopicPartition]:
        """Own those of ``wanted`` that have no other owner; return them."""
        with self._lock:
            owners = self._owners.setdefault(member.group, {})
            return {at for at in wanted if owners.setdefault(at, member) is member}

    def give_up(self, member: _Member, lost: set[TopicPartition]) -> None:
        """Let others own what this consumer owned."""
        with self._lock:
            owners = self._owners.get(member.group, {})
            for at in lost:
                if owners.get(at) is member:
                    del owners[at]
            others = [each for each in self._members.get(member.group, ()) if each is not member]
        _wake(others)


def _wake(members: Sequence[_Member]) -> None:
    for each in members:
        each.stop.look_again()


class Consumer:
    """A consumer of a group: loop over it, or call `poll`. Any thread may `close` it.

    It is for one thread at a time: a second one gets `ConcurrentUseError`.

    Made by `Store.consumer`. Use it in a ``with`` block.
    """

    def __init__(
        self,
        store: Store,
        groups: Groups,
        group: str,
        topics: Sequence[str | Topic | SerializedTopic],
        *,
        reset: Reset = "earliest",
        auto_commit: bool = False,
        isolation: str = "read_uncommitted",
        timeout_s: float | None = None,
        serde: Serde | None = None,
    ) -> None:
        self.group = check_text("group", group)
        given = check_list("topics", topics, "topic names")
        self._serdes = {each.name: each.serde for each in given if isinstance(each, SerializedTopic)}
        """Of topics that were given with serializers; the others have ``serde``."""
        self._serde = serde if serde is not None and serde.reads else None
        names = [name_of(each, store.partitions) for each in given]
        self.topics = tuple(dict.fromkeys(check_all("topics", names, str, "topic names")))
        if not self.group or not self.topics:
            raise InvalidArgumentError("a consumer needs the name of its group and at least one topic")
        if reset not in ("earliest", "latest", "error"):
            raise InvalidArgumentError(f"reset is 'earliest', 'latest' or 'error', not {reset!r}")
        for name in self.topics:
            store.topic(name)
            pack_key(self.group, name, 0)  # a name that cannot be kept
        self.one_thread = locks.OneThread(f"a consumer of {self.group}")
        self._store = store
        self._groups = groups
        self._reset = reset
        self.auto_commit = auto_commit
        self._options = ReadOptions(
            isolation=check_isolation(isolation), follow=True, timeout_s=check_seconds("timeout_s", timeout_s)
        )
        self._member = _Member(self.group, self.topics)
        self._stop = self._member.stop
        self._parts: dict[TopicPartition, Part] = {}
        self._read: dict[TopicPartition, Topic] = {}
        """The topics of the partitions: one of the same name may be another one later."""
        self._positions: dict[TopicPartition, int] = {}
        """Behind the last record that was handed out."""
        self._handled: dict[TopicPartition, int] = {}
        """Behind the last record that the caller came back from: what an automatic commit covers."""
        self._committed: dict[TopicPartition, int] = {}
        self._fetched: dict[TopicPartition, int] = {}
        """Behind the last record that was read ahead."""
        self._buffer: deque[Record] = deque()
        self._records: Iterator[Record] | None = None
        """What was there when it was last looked at; None: look again."""
        self._next_commit_s = time.monotonic() + AUTO_COMMIT_S
        self._left = False
        # The collector may come under any lock, so it only leaves a note. Before it joins: an interrupt from
        # here on leaves no member without an owner.
        weakref.finalize(self, setattr, self._stop, "dropped", True).atexit = False
        groups.join(self._member)

    def __repr__(self) -> str:
        return f"<Consumer of {self.group!r}: {', '.join(self.topics)}>"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._handled.update(self._positions)
        self.close()

    # -- reading -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        """Records as they come; ends when the consumer is closed, or after its ``timeout_s`` without one."""
        while True:
            try:
                found = self.poll(1)
                record = found[0] if found else None
            except ConcurrentUseError:
                raise  # the other thread goes on
            except BaseException:
                self._take_back()
                raise
            if record is None:
                return
            yield record

    @locks.for_one_thread
    def poll(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record]:
        """Return the next records; an empty list after ``timeout_s`` or if the consumer is closed.

        With ``auto_commit`` the records returned by the previous call count as processed. A record that
        cannot be deserialized is a `SerializationError`, at each call until `seek` passes its offset.
        """
        max_records = check_number("max_records", max_records, 1)
        timeout_s = self._options.timeout_s if timeout_s is None else check_seconds("timeout_s", timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._member.user = threading.current_thread()
        self._handled.update(self._positions)
        try:
            return self._next(max_records, deadline)
        except BaseException:
            self._take_back()
            raise

    def _take_back(self) -> None:
        """Hand out again what an interrupt kept from the caller, and finish what it cut short."""
        self._stop.again = True
        self._buffer.clear()
        self._records = None
        for at, part in self._parts.items():
            if at in self._handled:
                part.offset = self._fetched[at] = self._positions[at] = self._handled[at]

    def _next(self, max_records: int, deadline: float | None) -> list[Record]:
        while not self._stop.closed:
            self._store.partitions.check_open()  # records that were read ahead are no longer handed out
            if self.auto_commit:
                self._commit_if_due()
            if self._stop.again or not self._buffer:
                self._fill()
            if self._buffer:
                return self._hand_out(max_records)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0 and not self._stop.again:
                return []
            until_s = time.monotonic() + (AUTO_COMMIT_S if left is None else min(left, AUTO_COMMIT_S))
            if self._parts:
                reading.wait(list(self._parts.values()), self._options, self._stop, until_s)
            else:
                self._stop.rest(until_s)
        self._leave()
        return []

    def _hand_out(self, most: int) -> list[Record]:
        """Take records from the buffer; one that cannot be deserialized stays, behind those before it."""
        found: list[Record] = []
        for _ in range(min(most, len(self._buffer))):
            record = self._buffer[0]
            serde = self._serdes.get(record.topic, self._serde)
            if serde is not None:
                try:
                    record = serde.record(record)
                except SerializationError:
                    if found:
                        break  # it is raised by the next call
                    raise
            self._buffer.popleft()
            found.append(record)
            self._positions[record.topic, record.partition] = record.offset + 1
        return found

    def _fill(self) -> None:
        """Read some records ahead, from the partitions that are ours now."""
        self._settle()
        if self._buffer:
            return
        if self._records is None:
            for at, part in self._parts.items():
                part.offset = max(part.offset or 0, self._fetched[at], self._positions[at])
            self._records = reading.what_is_there(list(self._parts.values()), self._options, self._stop)
        error = reading.take(self._records, AT_ONCE, self._buffer)
        for record in self._buffer:
            self._fetched[record.topic, record.partition] = record.offset + 1
        if error is not None:
            self._records = None  # it comes again when it is reached
            if not self._buffer and not isinstance(error, OffsetOutOfRangeError):
                raise error
            if not self._buffer:
                self._leave_deleted()
                return
        if not self._buffer:
            self._records = None
            if not self._stop():  # all of them are read: behind gaps and markers too
                for at, part in self._parts.items():
                    end = max(part.offset or 0, self._fetched[at], self._positions[at])
                    self._positions[at] = self._handled[at] = self._fetched[at] = end

    def _leave_deleted(self) -> None:
        """Go on as ``reset`` says in partitions where retention has deleted the next record."""
        for at in list(self._parts):
            position = max(self._fetched[at], self._positions[at])
            with suppress(UnknownPartitionError):  # its topic was made anew: it is given up next
                start = self._in_range(at, position)
                if start != position:
                    self._go(at, start)
        self._stop.again = True  # also when no time is left

    def _settle(self) -> None:
        """Give up partitions that others should have, and take those that are free."""
        again, self._stop.again = self._stop.again, False
        counts = {name: self._store.topic(name).partitions for name in self.topics}
        share = self._groups.share_of(self._member, counts)
        deleted = {at for at, topic in self._read.items() if topic.deleted}
        if not again and not deleted and share == self._parts.keys():
            return
        lost = {at for at in self._parts if at not in share or at in deleted}
        if lost:
            if self.auto_commit:
                self._commit(self._handled)
            for known in (self._positions, self._handled, self._fetched, self._committed):
                for at in lost:
                    known.pop(at, None)
            self._buffer = deque(each for each in self._buffer if (each.topic, each.partition) not in lost)
            self._groups.give_up(self._member, lost)
            for at in lost:
                self._read.pop(at, None)
                del self._parts[at]  # last: after an interrupt all of it is done again
        gained = self._groups.take(self._member, share) - self._parts.keys()
        for at in sorted(gained):
            try:
                self._begin(at, self._start_of(at))
            except UnknownPartitionError:  # its topic was just made anew, with fewer partitions
                self._groups.give_up(self._member, {at})
                self._stop.again = True
        self._records = None

    def _start_of(self, at: TopicPartition) -> int:
        committed = self._groups.offsets.committed(self.group, *at)
        if committed is not None:
            self._committed[at] = committed.offset
        return self._in_range(at, None if committed is None else committed.offset)

    def _in_range(self, at: TopicPartition, offset: int | None) -> int:
        """Return the offset, or what ``reset`` says where there is none or it is outside the log."""
        topic = self._store.topic(at[0])
        first, end = topic.log_start_offset(at[1]), topic.high_watermark(at[1])
        if offset is not None and first <= offset <= end:
            return offset
        if self._reset == "error":
            did = "committed" if self._committed.get(at) == offset else "continues at"
            where = "committed nothing" if offset is None else f"{did} offset {offset}"
            raise OffsetOutOfRangeError(
                f"group {self.group} {where} for {at[0]}-{at[1]}, which holds offsets {first} to {end - 1}",
                offset=-1 if offset is None else offset,
                first=first,
                end=end,
            )
        start = first if self._reset == "earliest" else self._end_of(at)
        if offset is not None:
            logger.warning(
                "group %s: offset %d of %s-%d is outside the log (%d to %d); it continues from %d (reset=%s)",
                self.group, offset, *at, first, end - 1, start, self._reset,
            )  # fmt: skip
        return start

    def _end_of(self, at: TopicPartition) -> int:
        """Return the first offset that this consumer cannot see yet."""
        return self._store.topic(at[0]).high_watermark(at[1], self._options.isolation)

    def _begin(self, at: TopicPartition, offset: int) -> None:
        topic = self._store.topic(at[0])
        part = topic.part(at[1], offset, self._options)
        self._parts[at] = part
        self._read[at] = topic
        self._positions[at] = self._handled[at] = self._fetched[at] = offset

    # -- positions -----------------------------------------------------------------------------------

    @property
    def assignment(self) -> set[TopicPartition]:
        """The partitions that this consumer reads now."""
        return set(self._parts)

    @locks.for_one_thread
    def position(self, topic: str, partition: int = 0) -> int:
        """Return the offset of the next record to deliver from a partition of this consumer."""
        self._begin_if_new()
        return self._positions[self._owned(topic, partition)]

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record in each partition of this consumer that was not deleted."""
        return {at: offset for at, offset in self._positions.items() if not self._read[at].deleted}

    def committed(self, topic: str, partition: int = 0) -> int | None:
        """Return the committed offset of the group; None if there is none."""
        at = check_text("topic", topic), check_number("partition", partition, 0)
        self._store.partitions.check_open()
        found = self._groups.offsets.committed(self.group, *at)
        return None if found is None else found.offset

    @locks.for_one_thread
    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets not yet delivered, for each partition of this consumer."""
        self._begin_if_new()
        return {at: max(0, self._end_of(at) - position) for at, position in sorted(self._positions.items())}

    @locks.for_one_thread
    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue from ``offset``, which must be inside the log."""
        self._begin_if_new()
        at = self._owned(topic, partition)
        self._go(at, check_number("offset", offset))

    @locks.for_one_thread
    def seek_to_time(self, moment: Moment, topic: str | None = None) -> None:
        """Continue in all partitions from the first record at or after a time, given as for `Topic.read`."""
        self._begin_if_new()
        if topic is not None and topic not in self.topics:
            raise InvalidArgumentError(f"{topic} is not read by this consumer of {self.group}")
        for at in list(self._parts):
            if topic in (None, at[0]):
                isolation = self._options.isolation
                found = self._store.topic(at[0]).offset_for_time(at[1], moment, isolation=isolation)
                self._go(at, self._end_of(at) if found is None else found)

    def _begin_if_new(self) -> None:
        """Take partitions before the first `poll`. Later only `poll` lets go of any: a record is in hand."""
        if not self._parts:
            self._settle()

    def _go(self, at: TopicPartition, offset: int) -> None:
        self._begin(at, offset)
        self._buffer = deque(each for each in self._buffer if (each.topic, each.partition) != at)
        self._records = None

    def _owned(self, topic: str, partition: int) -> TopicPartition:
        at = (topic, check_number("partition", partition, 0))
        if at not in self._positions:
            raise InvalidArgumentError(
                f"{topic}-{partition} is not read by this consumer of {self.group}, which has"
                f" {', '.join(f'{name}-{number}' for name, number in sorted(self._parts)) or 'nothing now'}"
            )
        return at

    # -- committing ----------------------------------------------------------------------------------

    @locks.for_one_thread
    def commit(self, record: Record | None = None, *, sync: bool = False) -> None:
        """Commit the position of every partition: all records delivered so far are processed.

        With a record: commit only its partition, up to that record. ``sync`` waits for the disk. Partitions
        of a topic that was deleted are skipped.
        """
        if record is not None:
            if not isinstance(record, Record) or record.partition < 0:
                raise wrong_type("record", "a Record that was read", record)
            at = self._owned(record.topic, record.partition)
            self._commit({at: check_number("offset", record.offset, 0) + 1}, sync)
        else:
            self._commit(self._positions, sync)

    def _commit(self, offsets: Mapping[TopicPartition, int], sync: bool = False) -> None:
        self.check_open()
        changed = {
            at: offset
            for at, offset in offsets.items()
            if self._committed.get(at) != offset and not self._read[at].deleted
        }
        self._groups.offsets.commit(self.group, changed, sync=sync)
        self._committed.update(changed)
        # A topic that is deleted meanwhile must not leave an offset to the next one of its name.
        self._groups.offsets.forget(self.group, {at: None for at in changed if self._read[at].deleted})

    def check_open(self, store: Store | None = None) -> None:
        """Raise ClosedError when this consumer has left its group; it must be one of ``store``."""
        if store is not None and store is not self._store:
            raise InvalidArgumentError(
                f"this consumer of {self.group} is of another store: a transaction commits in its own"
            )
        if self._left:
            raise ClosedError(f"this consumer of {self.group} is closed")

    def forget_committed(self) -> None:
        """Commit the next position whatever was committed before: a transaction may have committed others."""
        self._committed.clear()

    def _commit_if_due(self) -> None:
        if self.auto_commit and time.monotonic() >= self._next_commit_s:
            self._commit(self._handled)
            self._next_commit_s = time.monotonic() + AUTO_COMMIT_S

    def close(self) -> None:
        """Leave the group. With ``auto_commit`` processed records are committed first.

        From another thread this is a request: the reading thread leaves when it asks for its next record, so
        that no other consumer gets a record that is still being processed.
        """
        self._stop.ask()
        user = self._member.user
        if user in (None, threading.current_thread()) or not user.is_alive():
            self._leave()

    def _leave(self) -> None:
        if self._left:
            return
        try:
            if self.auto_commit:
                self._commit(self._handled)
        finally:
            self._left = True
            self._groups.leave(self._member)
