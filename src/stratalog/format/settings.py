"""The settings of a store: `stratalog.settings` in the root of every log directory.

What lives here: topics with their ids, partition counts and overrides, and settings of the store itself.
The file is JSON, indented for people, with one line behind it:

    {
      "version": 2,
      "generation": 7,
      "store": {},
      "directories": {"Cz1fvXJRTLyS3yhF5dxqQg": "/data/log"},
      "next_producer_id": 1000,
      "topics": {
        "orders": {"id": "roDDSUiMQXS8nx9aJr7Q4w", "partitions": 2, "config": {"retention.ms": "-1"}}
      }
    }
    crc32c: c4121908

``directories``: the log directories of the store by the ``directory.id`` of their `meta.properties`, with the
path of each when this was written. One that is not found at an open is missing; an empty directory in its
place is not it. ``next_producer_id``: ids below it were handed out. A topic whose partitions are being made
has ``"creating": 0``, the first of them: only those may be made anew at the next start. Any other partition
that no directory holds is missing. Version 1 has none of the three.

While a topic is being deleted there is also ``"deleting": [its id]``: what a crash leaves of its directories
is known by it and goes at the next start.

The last line is described in `checked_json`. Every log directory has a copy; the highest generation wins,
and the others are written anew from it.

The file is written beside and renamed: a crash leaves the old one or the new one, and in a store of
several directories perhaps the new one in some of them only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stratalog.errors import UnsupportedFormat
from stratalog.format import checked_json
from stratalog.format.metadata import id_to_text, text_to_id

FILE_NAME = "stratalog.settings"
VERSION = 2
MAX_PARTITIONS = 100_000
"""The most partitions of a topic: a table with a place for each is kept in memory."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    id: uuid.UUID
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    creating: int | None = None
    """Partitions from this one on are still being made; None when all were."""


@dataclass(frozen=True, slots=True)
class Settings:
    generation: int = 0
    topics: Mapping[str, TopicSettings] = field(default_factory=dict)
    store: Mapping[str, str] = field(default_factory=dict)
    deleting: tuple[uuid.UUID, ...] = ()
    """Ids of topics whose deletion is decided; directories that carry one are no topic any more."""
    directories: Mapping[str, str] = field(default_factory=dict)
    next_producer_id: int = 0


def pack(settings: Settings) -> bytes:
    topics = {name: _pack_topic(topic) for name, topic in sorted(settings.topics.items())}
    content: dict[str, object] = {
        "version": VERSION,
        "generation": settings.generation,
        "store": dict(settings.store),
        "directories": dict(settings.directories),
        "next_producer_id": settings.next_producer_id,
        "topics": topics,
    }
    if settings.deleting:
        content["deleting"] = [id_to_text(topic_id) for topic_id in settings.deleting]
    return checked_json.pack(content, indent=2)


def _pack_topic(topic: TopicSettings) -> dict[str, object]:
    packed: dict[str, object] = {
        "id": id_to_text(topic.id),
        "partitions": topic.partitions,
        "config": dict(topic.config),
    }
    if topic.creating is not None:
        packed["creating"] = topic.creating
    return packed


def parse(data: bytes | bytearray | memoryview) -> Settings:
    fields = checked_json.Fields(checked_json.parse(data, "settings"), "settings")
    version = fields.take("version", None)
    if version not in (1, VERSION) or isinstance(version, bool):
        raise UnsupportedFormat(f"settings of version {version!r}")
    topics = fields.take("topics", {})
    if not isinstance(topics, dict):
        fields.fail("topics is not an object")
    deleting = fields.take("deleting", [])
    if not isinstance(deleting, list):
        fields.fail("deleting is not a list")
    settings = Settings(
        generation=fields.count("generation"),
        topics={name: _topic(name, value) for name, value in topics.items()},
        store=fields.strings("store", {}),
        deleting=tuple(text_to_id(fields.as_text(each, "an id in deleting")) for each in deleting),
        directories=fields.strings("directories", {}),
        next_producer_id=fields.count("next_producer_id", default=0),
    )
    fields.nothing_left()
    return settings


def newest(candidates: Iterable[Settings]) -> Settings | None:
    """Return the candidate with the highest generation, or None."""
    return max(candidates, key=lambda settings: settings.generation, default=None)


def _topic(name: str, value: object) -> TopicSettings:
    fields = checked_json.Fields(value, f"settings of {name!r}")
    creating = fields.take("creating", None)
    topic = TopicSettings(
        id=text_to_id(fields.text("id")),
        partitions=fields.count("partitions", MAX_PARTITIONS),
        config=fields.strings("config", {}),
        creating=None if creating is None else fields.as_count(creating, "creating", MAX_PARTITIONS),
    )
    fields.nothing_left()
    return topic
