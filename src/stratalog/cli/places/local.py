"""A store, opened read-only, as commands see it that also work on a Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.cli.places.contract import PartitionFacts, Place
from stratalog.errors import FormatError, LogDirOfflineError, UnknownPartitionError, UnknownTopicError

if TYPE_CHECKING:
    from stratalog.config import ConfigEntry
    from stratalog.store import Store, Topic
    from stratalog.store.groups.offsets import CommittedOffset


@dataclass(frozen=True, slots=True)
class StoreReads:
    """`Reads` of a store."""

    store: Store

    def topics(self) -> list[str]:
        return self.store.topics()

    def topic(self, name: str) -> Topic:
        return self.store.topic(name)

    def topic_id(self, name: str) -> str | None:
        return self.store.topic(name).id

    def settings(self, topic: str) -> list[ConfigEntry]:
        return self.store.describe_topic(topic)

    def partition_facts(self, topics: Sequence[str]) -> dict[str, list[PartitionFacts]]:
        found = map(self.store.topic, topics)
        return {topic.name: [_facts(topic, each) for each in range(topic.partitions)] for topic in found}

    def bounds(self, places: Iterable[Place]) -> dict[Place, tuple[int, int]]:
        found = {}
        for name, partition in places:
            try:
                topic = self.store.topic(name)
                found[name, partition] = topic.log_start_offset(partition), topic.high_watermark(partition)
            except (UnknownTopicError, UnknownPartitionError):
                continue
        return found

    def offsets_for_time(self, places: Iterable[Place], time_ms: int) -> dict[Place, int | None]:
        return {at: self.store.topic(at[0]).offset_for_time(at[1], time_ms) for at in places}

    def groups(self) -> dict[str, dict[Place, CommittedOffset]]:
        return self.store.groups.offsets.all()

    def group(self, name: str) -> dict[Place, CommittedOffset] | None:
        return self.groups().get(name)


def _facts(topic: Topic, partition: int) -> PartitionFacts:
    try:
        segments = topic.segments(partition)
        return PartitionFacts(
            partition,
            topic.log_start_offset(partition),
            topic.log_end_offset(partition),
            len(segments),
            sum(segment.size_bytes for segment in segments),
            # The active one: the first may be in the archive.
            segments[-1].path.rpartition("/")[0] if segments else "",
        )
    except (LogDirOfflineError, FormatError, FileNotFoundError) as error:
        return PartitionFacts(partition, offline=str(error))
