"""What a KRaft broker's metadata log says about topics: their ids and settings.

`__cluster_metadata-0` lies in a broker's first log directory (or in `metadata.log.dir`). It is a log like any
other; each record is one change:

    frame version uvarint (1) · type uvarint · version uvarint · fields
    2  TopicRecord         name, id
    4  ConfigRecord        resource type int8 (2: topic), resource name, setting, value or null
    9  RemoveTopicRecord   id

Strings are a uvarint of their length plus one (0: null) and UTF-8. A `<offset>-<epoch>.checkpoint` file
holds, in the same form, everything before its offset. Other types, and newer versions, are skipped.

Reads only; a log that is missing says nothing, and one that cannot be read to its end says what it can.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from stratalog.errors import CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.fs import FileSystem
from stratalog.log.names import parse_file
from stratalog.log.segment.segment import scan_file
from stratalog.model import Record

METADATA_DIR = "__cluster_metadata-0"
TOPIC_RESOURCE = 2
_TOPIC, _CONFIG, _REMOVE_TOPIC = 2, 4, 9
_CHECKPOINT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


@dataclass(slots=True)
class KafkaTopic:
    """A topic of a Kafka cluster as its metadata log knows it."""

    name: str
    id: uuid.UUID
    config: dict[str, str] = field(default_factory=dict)


def read_topics(fs: FileSystem, log_dir: str) -> dict[str, KafkaTopic] | None:
    """The topics by name; None when there is no metadata log in this directory."""
    directory = f"{log_dir}/{METADATA_DIR}"
    try:
        listing = fs.list_dir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    topics: dict[str, KafkaTopic] = {}
    configs: dict[str, dict[str, str]] = {}
    for record in _records(fs, directory, listing):
        try:
            _apply(memoryview(record.value or b""), topics, configs)
        except (CorruptionError, UnicodeDecodeError):
            continue
    for name, topic in topics.items():
        topic.config = configs.get(name, {})
    return topics


def _records(fs: FileSystem, directory: str, listing: list[str]) -> Iterator[Record]:
    """The newest checkpoint, then every record of the log behind it."""
    checkpoints = sorted(name for name in listing if _CHECKPOINT.fullmatch(name))
    start = 0
    if checkpoints:
        start = int(checkpoints[-1][:20])
        yield from _file(fs, f"{directory}/{checkpoints[-1]}", 0)
    for name in listing:
        parsed = parse_file(name)
        if parsed is not None and parsed.kind == "log" and not parsed.suffix:
            yield from _file(fs, f"{directory}/{name}", start)


def _file(fs: FileSystem, path: str, start: int) -> Iterator[Record]:
    with fs.open(path) as file:
        try:
            for _, data, scan in scan_file(file, 0, file.size(), check_crc=True):
                yield from batches.decode_records(data, scan, topic="", partition=0, lo=start)
        except FormatError:
            return


def _apply(data: memoryview, topics: dict[str, KafkaTopic], configs: dict[str, dict[str, str]]) -> None:
    frame, at = _uvarint(data, 0)
    kind, at = _uvarint(data, at)
    version, at = _uvarint(data, at)
    if frame not in (0, 1) or version != 0:
        return
    if kind == _TOPIC:
        name, at = _string(data, at)
        topic_id = _uuid(data, at)
        if name:
            topics[name] = KafkaTopic(name, topic_id)
    elif kind == _REMOVE_TOPIC:
        topic_id = _uuid(data, at)
        for name in [each.name for each in topics.values() if each.id == topic_id]:
            del topics[name]
            configs.pop(name, None)
    elif kind == _CONFIG and len(data) > at and data[at] == TOPIC_RESOURCE:
        resource, at = _string(data, at + 1)
        setting, at = _string(data, at)
        value, at = _string(data, at)
        if resource and setting:
            known = configs.setdefault(resource, {})
            if value is None:
                known.pop(setting, None)
            else:
                known[setting] = value


def _uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise CorruptionError("a varint does not end", position=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _string(data: memoryview, at: int) -> tuple[str | None, int]:
    size, at = _uvarint(data, at)
    if size == 0:
        return None, at
    if at + size - 1 > len(data):
        raise CorruptionError("a string runs past its record", position=at)
    return bytes(data[at : at + size - 1]).decode(), at + size - 1


def _uuid(data: memoryview, at: int) -> uuid.UUID:
    if at + 16 > len(data):
        raise CorruptionError("an id runs past its record", position=at)
    return uuid.UUID(bytes=bytes(data[at : at + 16]))
