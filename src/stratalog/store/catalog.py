"""Which topics a store has: those in the settings file, and those that lie on disk without being there.

A topic that is on disk but not in the settings file is foreign: it can be read and appended to, and has
no policy until it is told one, so that no default retention ever meets an adopted archive.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.config import BrokerConfig, TopicConfig, topic_config
from stratalog.errors import CorruptionError
from stratalog.format.metadata import new_id
from stratalog.format.settings import FILE_NAME, Settings, TopicSettings, newest
from stratalog.store.logdir import LogDir

NO_POLICY: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}


@dataclass(slots=True)
class TopicEntry:
    """One topic: where its partitions lie, and what is known about it."""

    name: str
    id: uuid.UUID | None = None
    partitions: int = 0
    overrides: dict[str, str] = field(default_factory=dict)
    foreign: bool = False
    directories: dict[int, tuple[LogDir, str]] = field(default_factory=dict)

    def effective_overrides(self) -> dict[str, str]:
        """The overrides that count: a foreign topic has no policy until it is told one."""
        return {**NO_POLICY, **self.overrides} if self.foreign else self.overrides

    def config(self, broker: BrokerConfig) -> TopicConfig:
        return topic_config(broker, self.effective_overrides())

    def own(self) -> None:
        """A foreign topic becomes ours; what it was not told stays without a policy, so its data stays."""
        self.overrides = self.effective_overrides()
        self.foreign = False
        self.id = self.id or new_id()


def load(dirs: list[LogDir], *, read_only: bool) -> tuple[Settings, dict[str, TopicEntry]]:
    """The newest settings among the directories, and the topics in them.

    A writer does not go on without settings that are there and damaged: it would overwrite them.
    """
    settings = newest(found for found in (each.read_settings() for each in dirs) if found is not None)
    damaged = [each for each in dirs if settings is None and each.has_settings]
    if damaged and not read_only:
        raise CorruptionError(
            "no copy of the store's settings can be read; move the file away to go on with every topic's"
            " data and without its settings",
            path=damaged[0].file(FILE_NAME),
        )
    settings = settings or Settings()
    topics = {
        name: TopicEntry(name, known.id, known.partitions, dict(known.config))
        for name, known in settings.topics.items()
    }
    return settings, topics


def to_settings(
    generation: int,
    topics: Mapping[str, TopicEntry],
    store: Mapping[str, str],
    deleting: tuple[uuid.UUID, ...] = (),
) -> Settings:
    """The settings file for these topics; foreign ones are not in it until somebody sets something."""
    return Settings(
        generation,
        {
            entry.name: TopicSettings(entry.id, entry.partitions, dict(entry.overrides))
            for entry in topics.values()
            if not entry.foreign and entry.id is not None
        },
        dict(store),
        deleting,
    )
