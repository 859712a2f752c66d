"""Committed offsets of consumer groups, kept in the topic `__consumer_offsets` in Kafka's own schema.

A key is (group, topic, partition), a value an offset with its leader epoch, some text and a time. The latest
record of a key counts, a tombstone removes it. A group's records are all in one partition, chosen by the hash
of its name as in Kafka, so that a broker and Kafka's tools see the same groups.

A commit that is part of a transaction counts from that one's marker on. Until then it is pending, and what
was committed before it, or beside it by others, is known: a look goes past the last stable offset.

Crash policy: a commit is one append. It is as durable as an append to this topic, and whole or absent.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptionError, InvalidArgumentError, UnstableOffsetCommitError
from stratalog.format import batch as batches
from stratalog.log.read.fetch import Fetched
from stratalog.model import Record
from stratalog.store.internal_topic import for_coordinator
from stratalog.wire import records as wire

if TYPE_CHECKING:
    from stratalog.store.store import Store
    from stratalog.store.topic import Topic

OFFSETS_TOPIC = "__consumer_offsets"
PARTITIONS = 1
"""Kafka has 50, for many brokers. A broker goes by how many there are."""
CONFIG: Mapping[str, object] = {
    "cleanup.policy": "compact",
    "segment.bytes": 100 << 20,
    "compression.type": "producer",
    "key.index.enable": True,
}
MAX_NAME = 2**15 - 1
STABLE_S = 10.0
"""How long a look waits for the end of a transaction that commits the offset."""
TAIL_BYTES = 1 << 20
"""How much of the log behind the last stable offset is read at once."""
TABLE = "offsets"
_VALUE_VERSION = 3
_VERSION_BYTES, _NAME_AT = 2, 4
"""A key begins with a version and the group's name, with its length in two bytes."""

TopicPartition = tuple[str, int]


class CommittedOffset(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    timestamp: int = -1


class Look(NamedTuple):
    """What is committed for one partition. ``pending``: an open transaction is committing another offset."""

    committed: CommittedOffset | None
    pending: bool


class _Tail(NamedTuple):
    """Records behind the last stable offset, by key: the newest that count, with offset and value."""

    newest: Mapping[bytes, tuple[int, bytes | None]]
    pending: frozenset[bytes]


def partition_of(group: str, partitions: int) -> int:
    """Return the partition of a group's records, by Java's hash of its name."""
    digest = 0
    data = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        digest = (digest * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return (digest & 0x7FFFFFFF) % partitions


def pack_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of a committed offset."""
    for name in (group, topic):
        check_name(name)
    return wire.pack_key(TABLE, "OffsetCommit", group=group, topic=topic, partition=partition)


def pack_value(committed: CommittedOffset) -> bytes:
    """Return the value of a committed offset."""
    check_name(committed.metadata)
    return wire.pack_value(
        TABLE,
        "OffsetCommit",
        _VALUE_VERSION,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.timestamp,
    )


def parse_key(data: bytes) -> tuple[str, str, int] | None:
    """Return group, topic and partition; None for a record of another kind, about members and the like."""
    kind, key = wire.parse_key(TABLE, data)
    return (key.group, key.topic, key.partition) if kind.endswith("OffsetCommit") else None


def parse_value(data: bytes) -> CommittedOffset:
    """Read a value of any version that Kafka ever wrote."""
    value = wire.parse_value(TABLE, "OffsetCommit", data)
    return CommittedOffset(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp)


def check_name(text: str) -> str:
    """Return a name that Kafka's schema can hold; raise InvalidArgumentError for another."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{text[:20]!r} holds half a surrogate pair, which is not text") from None
    if size > MAX_NAME:
        raise InvalidArgumentError(f"{text[:20]!r}… is longer than {MAX_NAME} bytes")
    return text


def commit_records(
    group: str, offsets: Mapping[TopicPartition, int], now_ms: int, metadata: str = ""
) -> list[Record]:
    """Return the records that commit offsets of a group."""
    return [
        Record(pack_value(CommittedOffset(offset, -1, metadata, now_ms)), pack_key(group, *at))
        for at, offset in offsets.items()
    ]


def forget_records(group: str, places: Iterable[TopicPartition]) -> list[Record]:
    """Return the records that delete committed offsets of a group."""
    return [Record(None, pack_key(group, *at)) for at in places]


def offsets_in(records: Iterable[Record]) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    """Return every group with what it committed last, by name, from the records of `__consumer_offsets`."""
    found: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    for record in records:
        with _named(record):
            key = None if record.key is None else parse_key(record.key)
            value = None if key is None or record.value is None else parse_value(record.value)
        if key is None:
            continue
        group, topic, partition = key
        if value is None:
            found.get(group, {}).pop((topic, partition), None)
        else:
            found.setdefault(group, {})[topic, partition] = value
    return {group: offsets for group, offsets in sorted(found.items()) if offsets}


@contextmanager
def _named(record: Record) -> Iterator[None]:
    """Name the record in an error about its bytes."""
    try:
        yield
    except CorruptionError as error:
        where = f"{record.topic}-{record.partition}, offset {record.offset}"
        raise CorruptionError(error.reason, path=where) from error


def _renew(
    known: dict[bytes, tuple[int, bytes | None]], more: Mapping[bytes, tuple[int, bytes | None]]
) -> None:
    """Take records in by key, of which the one with the larger offset counts."""
    for key, record in more.items():
        if key not in known or known[key][0] < record[0]:
            known[key] = record


def _partitions(groups: Collection[str] | None, partitions: int) -> list[int]:
    """Return the partitions that hold the records of some groups; all of them for None."""
    return sorted(set(range(partitions) if groups is None else (partition_of(g, partitions) for g in groups)))


def _of(records: Iterable[Record], groups: Collection[str] | None) -> Iterable[Record]:
    """Leave out what is of other groups without decoding it: every key begins with its group's name."""
    if groups is None:
        return records
    encoded = [group.encode("utf-8", "surrogatepass") for group in groups]
    names = {len(name).to_bytes(2, "big") + name for name in encoded if len(name) <= MAX_NAME}
    return (
        record
        for record in records
        if record.key is not None
        and record.key[_VERSION_BYTES : int.from_bytes(record.key[_VERSION_BYTES:_NAME_AT], "big") + _NAME_AT]
        in names
    )


def _bytes_of(found: Fetched) -> bytes:
    if found.file is None:
        return found.data or b""
    return bytes(found.file.pread(found.length, found.position))


class GroupOffsets:
    """The committed offsets of a store. Thread-safe: every look and every commit goes to the topic."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def committed(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return what a group committed for a partition; None when nothing.

        Wait for a transaction that is just committing it: an older offset would have records handled again.
        """
        give_up_s = time.monotonic() + STABLE_S
        while True:
            kept = self._topic()
            if kept is None:
                return None
            number = partition_of(group, kept.partitions)
            stable = kept.high_watermark(number, "read_committed")  # before the look: it may move meanwhile
            found = self.look(group, [(topic, partition)])[topic, partition]
            if not found.pending:
                return found.committed
            completion = kept.when(number, "last_stable_offset", stable + 1)
            try:
                if not completion.wait(max(0.0, give_up_s - time.monotonic())):
                    raise UnstableOffsetCommitError(
                        f"{OFFSETS_TOPIC}-{number}: a transaction that commits offsets of {group!r} did not"
                        f" end within {STABLE_S:g} s, and the group's position is unknown until then: try"
                        " again"
                    )
            finally:
                completion.cancel()

    def look(self, group: str, places: Sequence[TopicPartition]) -> dict[TopicPartition, Look]:
        """Return what a group committed for some partitions, and whether a transaction is committing more."""
        kept = self._topic()
        if kept is None:
            return dict.fromkeys(places, Look(None, pending=False))
        number = partition_of(group, kept.partitions)
        tail = self._tail(kept, number)
        found = {}
        for at in places:
            key = pack_key(group, *at)
            record: Record | None
            if key in tail.newest:
                offset, value = tail.newest[key]
                record = Record(value, key, topic=OFFSETS_TOPIC, partition=number, offset=offset)
            else:
                record = kept.get(key, number, isolation="read_committed")
            committed = None
            if record is not None and record.value is not None:
                with _named(record):
                    committed = parse_value(record.value)
            found[at] = Look(committed, key in tail.pending)
        return found

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str = "", sync: bool = False
    ) -> None:
        """Commit offsets of a group, all in one batch; with ``sync`` those before are on disk too."""
        if not offsets:
            kept = self._topic() if sync else None
            if kept is not None:
                kept.flush(partition_of(group, kept.partitions))
            return
        kept = self.topic_to_write()
        records = commit_records(group, offsets, self._store.partitions.context.clock.now_ms(), metadata)
        kept.append_many(records, partition=partition_of(group, kept.partitions), sync=sync)

    def all(self, groups: Collection[str] | None = None) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """Return every group with its committed offsets, by name; of some ``groups`` in one pass as well."""
        kept = self._topic()
        if kept is None:
            return {}
        numbers = _partitions(groups, kept.partitions)
        tails = {number: self._tail(kept, number) for number in numbers}
        known = chain.from_iterable(kept.read(number, isolation="read_committed") for number in numbers)
        newer = (
            Record(value, key, topic=OFFSETS_TOPIC, partition=number, offset=offset)
            for number, tail in tails.items()
            for key, (offset, value) in tail.newest.items()
        )
        return offsets_in(_of(chain(known, newer), groups))

    def places(self, groups: Collection[str] | None = None) -> dict[str, set[TopicPartition]]:
        """Return where every group, or some, committed something, also in transactions that are open."""
        found = {group: set(offsets) for group, offsets in self.all(groups).items()}
        kept = self._topic()
        numbers = [] if kept is None else _partitions(groups, kept.partitions)
        tails = [] if kept is None else [self._tail(kept, number) for number in numbers]
        for named in (parse_key(key) for tail in tails for key in tail.pending):
            if named is not None and (groups is None or named[0] in groups):
                group, topic, partition = named
                found.setdefault(group, set()).add((topic, partition))
        return found

    def has(self, group: str) -> bool:
        """Return whether a group committed something, also in a transaction that is open."""
        return group in self.places([group])

    def forget(self, group: str, offsets: Mapping[TopicPartition, object]) -> None:
        """Delete committed offsets of a group."""
        kept = self._topic()
        if kept is not None and offsets:
            kept.append_many(forget_records(group, offsets), partition=partition_of(group, kept.partitions))

    def forget_topic(self, topic: str) -> None:
        """Delete what groups committed for a topic that was deleted, also in transactions that are open."""
        for group, places in sorted(self.places().items()):
            self.forget(group, {at: None for at in sorted(places) if at[0] == topic})

    def topic_to_write(self) -> Topic:
        """Return the topic that offsets are committed to; create it when there is none."""
        found = self._topic()
        if found is None:
            made = self._store.create_topic(OFFSETS_TOPIC, PARTITIONS, CONFIG, if_not_exists=True)
            found = for_coordinator(made)
        return found

    def _tail(self, kept: Topic, partition: int) -> _Tail:
        """Read what lies behind the last stable offset: there a marker follows later or not at all."""
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        opened: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}
        if self._store.read_only:
            return _Tail(newest, frozenset())
        at = kept.high_watermark(partition, "read_committed")
        end = kept.high_watermark(partition)
        while at < end:
            with kept.fetch(partition, at, TAIL_BYTES, minimum_one=True) as found:
                if found.next_offset <= at:
                    break
                data, next_offset = _bytes_of(found), found.next_offset
            scan = batches.scan(data, check_crc=False)
            for row, header in enumerate(scan):
                if header.is_control:
                    marker, _ = batches.decode_control(data, header)
                    ended = opened.pop(header.producer_id, {}) if marker else {}
                    _renew(newest, ended if marker == "commit" else {})
                    continue
                rows = batches.decode_records(
                    data,
                    scan,
                    row,
                    row + 1,
                    topic=OFFSETS_TOPIC,
                    partition=partition,
                    bounds=batches.Bounds(at),
                )
                part = {each.key: (each.offset, each.value) for each in rows if each.key is not None}
                into = opened.setdefault(header.producer_id, {}) if header.is_transactional else newest
                _renew(into, part)
            at = next_offset
        return _Tail(newest, frozenset(key for each in opened.values() for key in each))

    def _topic(self) -> Topic | None:
        if OFFSETS_TOPIC not in self._store.partitions.entries:
            return None
        return for_coordinator(self._store.topic(OFFSETS_TOPIC))
