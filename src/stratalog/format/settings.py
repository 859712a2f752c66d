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

from stratalog.errors import CorruptionError, UnsupportedFormat
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
    root = checked_json.parse(data, "settings")
    version = root.pop("version", None)
    if version not in (1, VERSION) or isinstance(version, bool):
        raise UnsupportedFormat(f"settings of version {version!r}")
    topics = {name: _topic(name, value) for name, value in _object(root.pop("topics", {}), "topics").items()}
    settings = Settings(
        generation=_count(root.pop("generation", None), "generation"),
        topics=topics,
        store=_strings(root.pop("store", {}), "store"),
        deleting=_ids(root.pop("deleting", [])),
        directories=_strings(root.pop("directories", {}), "directories"),
        next_producer_id=_count(root.pop("next_producer_id", 0), "next_producer_id"),
    )
    _nothing_left(root, "settings")
    return settings


def newest(candidates: Iterable[Settings]) -> Settings | None:
    """The one that counts; None when there is none."""
    return max(candidates, key=lambda settings: settings.generation, default=None)


def _topic(name: str, value: object) -> TopicSettings:
    fields = _object(value, f"topic {name!r}")
    topic_id = fields.pop("id", None)
    if not isinstance(topic_id, str):
        raise CorruptionError(f"settings: topic {name!r} has no id", position=0)
    creating = fields.pop("creating", None)
    topic = TopicSettings(
        id=text_to_id(topic_id),
        partitions=_count(fields.pop("partitions", None), f"partitions of {name!r}", MAX_PARTITIONS),
        config=_strings(fields.pop("config", {}), f"config of {name!r}"),
        creating=None if creating is None else _count(creating, f"creating of {name!r}", MAX_PARTITIONS),
    )
    _nothing_left(fields, f"topic {name!r}")
    return topic


def _ids(value: object) -> tuple[uuid.UUID, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CorruptionError("settings: deleting is not a list of ids", position=0)
    return tuple(text_to_id(each) for each in value)


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise CorruptionError(f"settings: {what} is not an object", position=0)
    return value


def _count(value: object, what: str, most: int = 2**63 - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise CorruptionError(f"settings: {what} is not a count from 0 to {most}", position=0)
    return value


def _strings(value: object, what: str) -> dict[str, str]:
    strings: dict[str, str] = {}
    for name, text in _object(value, what).items():
        if not isinstance(text, str):
            raise CorruptionError(f"settings: {name!r} in {what} is not a string", position=0)
        strings[name] = text
    return strings


def _nothing_left(fields: dict[str, object], what: str) -> None:
    if fields:
        raise CorruptionError(f"settings: {what} has unknown fields {sorted(fields)[:5]}", position=0)
