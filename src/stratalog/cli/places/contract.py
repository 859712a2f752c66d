"""The interface of the commands that work on a store and on a Kafka cluster.

`Reads` and `Changes` are for `Session.reads` and `Session.changes`. A store's `Topic` is a `TopicReads`, and
its `AdminClient` a `Changes`. Numbers that only the files can tell are None for a cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from stratalog.model import AppendedRange, Record

if TYPE_CHECKING:
    from stratalog.config import ConfigEntry
    from stratalog.log.read.reader import SkipDamaged
    from stratalog.store.groups.offsets import CommittedOffset

Place = tuple[str, int]
"""A topic and the number of a partition."""


class PartitionFacts(NamedTuple):
    """One partition for ``topic list`` and ``topic describe``; ``offline`` says why it has only zeros."""

    partition: int
    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: int | None = 0
    size_bytes: int | None = 0
    directory: str | None = ""
    offline: str | None = None


class TopicReads(Protocol):
    """A topic that is read; the methods are those of `stratalog.Topic`."""

    name: str

    @property
    def partitions(self) -> int: ...

    def log_start_offset(self, partition: int = 0) -> int: ...

    def high_watermark(self, partition: int = 0, isolation: str = "read_uncommitted") -> int: ...

    def get(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Record | None: ...

    def history(self, key: bytes, partition: int | None = None) -> Iterator[Record]: ...

    def read(
        self,
        partition: list[int] | None = None,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        isolation: str = "read_uncommitted",
        follow: bool = False,
        skip_damaged: SkipDamaged = False,
    ) -> Iterator[Record]: ...


class Reads(Protocol):
    """Topics and groups, for commands that change nothing."""

    def topics(self) -> list[str]: ...

    def topic(self, name: str) -> TopicReads: ...

    def topic_id(self, name: str) -> str | None: ...

    def settings(self, topic: str) -> list[ConfigEntry]:
        """Return every setting of a topic."""
        ...

    def partition_facts(self, topics: Sequence[str]) -> dict[str, list[PartitionFacts]]: ...

    def bounds(self, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
        """Return the first offset and the high watermark of each partition that there is."""
        ...

    def offsets_for_time(self, places: Iterable[Place], time_ms: int) -> dict[Place, int | None]:
        """Return the first offset of this time or a later one; None where there is none."""
        ...

    def groups(self) -> dict[str, dict[Place, CommittedOffset]]:
        """Return every group with its committed offsets; their time is -1 if it is not known."""
        ...

    def group(self, name: str) -> dict[Place, CommittedOffset] | None:
        """Return the committed offsets of a group; None if there is no such group."""
        ...


class Changes(Protocol):
    """Topics, records and committed offsets, for commands that change them."""

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Any: ...

    def describe_topic(self, name: str) -> dict[str, Any]:
        """Return the number of a topic's partitions and its id."""
        ...

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> Any: ...

    def add_partitions(self, name: str, total: int) -> Any: ...

    def delete_topic(self, name: str) -> Any: ...

    def append(
        self, topic: str, records: Iterable[Record], partition: int | None = None, sync: bool = False
    ) -> Iterable[AppendedRange]:
        """Append records; the places of those that were acknowledged come also before an error."""
        ...

    def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> Any: ...

    def forget_offsets(self, group: str, places: Collection[Place]) -> Any: ...
