"""Committed offsets of consumer groups, kept in the topic `__consumer_offsets` in Kafka's own schema.

A key is (group, topic, partition), a value an offset with its leader epoch, some text and a time. The latest
record of a key counts, a tombstone removes it. A group's records are all in one partition, chosen by the hash
of its name as in Kafka, so that a broker and Kafka's tools see the same groups.

Crash policy: a commit is one append. It is as durable as an append to this topic, and whole or absent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptionError, InvalidArgumentError
from stratalog.model import Record

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
_KEY_VERSION = 1
_VALUE_VERSION = 3
_FLEXIBLE = 4
"""From this version of a value on, strings are preceded by a varint."""

TopicPartition = tuple[str, int]


class CommittedOffset(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    timestamp: int = -1


def partition_of(group: str, partitions: int) -> int:
    """Return the partition of a group's records, by Java's hash of its name."""
    digest = 0
    data = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        digest = (digest * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return (digest & 0x7FFFFFFF) % partitions


def pack_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of a committed offset."""
    return struct.pack(">h", _KEY_VERSION) + _string(group) + _string(topic) + struct.pack(">i", partition)


def pack_value(committed: CommittedOffset) -> bytes:
    """Return the value of a committed offset."""
    return (
        struct.pack(">hqi", _VALUE_VERSION, committed.offset, committed.leader_epoch)
        + _string(committed.metadata)
        + struct.pack(">q", committed.timestamp)
    )


def parse_key(data: bytes) -> tuple[str, str, int] | None:
    """Return group, topic and partition; None for a record of another kind, about members and the like."""
    try:
        (version,) = struct.unpack_from(">h", data)
        if version not in (0, _KEY_VERSION):
            return None
        group, at = _read_string(data, 2)
        topic, at = _read_string(data, at)
        (partition,) = struct.unpack_from(">i", data, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(f"a key of {OFFSETS_TOPIC} is cut short or garbled: {error}") from error
    return group, topic, partition


def parse_value(data: bytes) -> CommittedOffset:
    """Read a value of any version that Kafka ever wrote."""
    try:
        version, offset = struct.unpack_from(">hq", data)
        at, epoch = 10, -1
        if version >= _VALUE_VERSION:
            (epoch,) = struct.unpack_from(">i", data, at)
            at += 4
        read = _read_compact if version >= _FLEXIBLE else _read_string
        metadata, at = read(data, at)
        (timestamp,) = struct.unpack_from(">q", data, at)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise CorruptionError(f"a value of {OFFSETS_TOPIC} is cut short or garbled: {error}") from error
    return CommittedOffset(offset, epoch, metadata, timestamp)


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > MAX_NAME:
        raise InvalidArgumentError(f"{text[:20]!r}… is longer than {MAX_NAME} bytes")
    return struct.pack(">h", len(data)) + data


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", data, at)
    end = at + 2 + max(size, 0)
    if end > len(data):
        raise struct.error("a string reaches past the end")
    return data[at + 2 : end].decode(), end


def _read_compact(data: bytes, at: int) -> tuple[str, int]:
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 28:
            break
    end = at + max(size - 1, 0)
    if end > len(data):
        raise struct.error("a string reaches past the end")
    return data[at:end].decode(), end


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


class GroupOffsets:
    """The committed offsets of a store. Thread-safe: every look and every commit goes to the topic."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def committed(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return what a group committed for a partition; None when nothing."""
        kept = self._topic()
        if kept is None:
            return None
        record = kept.get(pack_key(group, topic, partition), partition_of(group, kept.partitions))
        return None if record is None or record.value is None else parse_value(record.value)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str = "", sync: bool = False
    ) -> None:
        """Commit offsets of a group, all in one batch."""
        if not offsets:
            return
        kept = self._store.create_topic(OFFSETS_TOPIC, PARTITIONS, CONFIG, if_not_exists=True)
        records = commit_records(group, offsets, self._store.partitions.context.clock.now_ms(), metadata)
        kept.append_many(records, partition=partition_of(group, kept.partitions), sync=sync)

    def all(self) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """Return every group with its committed offsets, by name."""
        found: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for group, at, committed in self._records():
            if committed is None:
                found.get(group, {}).pop(at, None)
            else:
                found.setdefault(group, {})[at] = committed
        return {group: offsets for group, offsets in sorted(found.items()) if offsets}

    def forget(self, group: str, offsets: Mapping[TopicPartition, object]) -> None:
        """Delete committed offsets of a group."""
        kept = self._topic()
        if kept is not None and offsets:
            kept.append_many(forget_records(group, offsets), partition=partition_of(group, kept.partitions))

    def forget_topic(self, topic: str) -> None:
        """Delete what groups committed for a topic that was deleted."""
        for group, offsets in self.all().items():
            self.forget(group, {at: None for at in offsets if at[0] == topic})

    def _topic(self) -> Topic | None:
        if OFFSETS_TOPIC not in self._store.partitions.entries:
            return None
        return self._store.topic(OFFSETS_TOPIC)

    def _records(self) -> Iterator[tuple[str, TopicPartition, CommittedOffset | None]]:
        kept = self._topic()
        for record in () if kept is None else kept.read(order="partition"):
            key = None if record.key is None else parse_key(record.key)
            if key is not None:
                group, topic, partition = key
                yield group, (topic, partition), None if record.value is None else parse_value(record.value)
