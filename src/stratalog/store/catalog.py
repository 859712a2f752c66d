"""Which topics a store has: those in the settings file, and those that lie on disk without being there.

A topic that is on disk but not in the settings file is foreign: it can be read and appended to, and has
no policy until it is told one, so that no default retention ever meets an adopted archive.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from stratalog.config import BrokerConfig, TopicConfig, parse_overrides, topic_config, with_profile
from stratalog.format.metadata import new_id
from stratalog.log.arguments import check_number
from stratalog.log.names import validate_topic
from stratalog.store.logdir import LogDir

MAX_PARTITIONS = 100_000

NO_POLICY: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


Place: TypeAlias = tuple[LogDir, str]
"""The log directory a partition is in, and its own directory."""


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic: where its partitions lie, and what is known about it. A change makes another entry."""

    name: str
    id: uuid.UUID | None = None
    partitions: int = 0
    overrides: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False
    directories: Mapping[int, Place] = field(default_factory=dict)

    def effective_overrides(self) -> Mapping[str, str]:
        """The overrides that count: a foreign topic has no policy until it is told one."""
        return {**NO_POLICY, **self.overrides} if self.foreign else self.overrides

    def config(self, broker: BrokerConfig) -> TopicConfig:
        return topic_config(broker, self.effective_overrides())

    def owned(self) -> TopicEntry:
        """Return it as ours; what a foreign topic was not told stays without a policy, so its data stays."""
        return replace(self, overrides=self.effective_overrides(), foreign=False, id=self.id or new_id())

    def placed(self, places: Mapping[int, Place]) -> TopicEntry:
        """Return it with some of its partitions in other places."""
        return replace(self, directories={**self.directories, **places})


def new_topic(
    name: str, partitions: int | None, config: Mapping[str, object] | None, broker: BrokerConfig
) -> TopicEntry:
    """Return the entry of a topic to be made; raise when no store could take it."""
    validate_topic(name)
    count = broker.get_int("num.partitions") if partitions is None else partitions
    count = check_number("partitions", count, 1, MAX_PARTITIONS)
    entry = TopicEntry(name, new_id(), count, parse_overrides(with_profile(config or {})))
    entry.config(broker)
    return entry
