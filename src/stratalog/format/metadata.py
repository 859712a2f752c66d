"""The small text files that say what a directory is, as Kafka writes them.

What lives here: `partition.metadata` (which topic id a partition belongs to), `meta.properties` (which
cluster and node a log directory belongs to) and `.kafka_cleanshutdown` (it was closed in order).

    partition.metadata       version: 0
                             topic_id: roDDSUiMQXS8nx9aJr7Q4w           no newline at the end
    meta.properties          Java properties: version=1, cluster.id, node.id, directory.id
    .kafka_cleanshutdown     {"version":0,"brokerEpoch":12}

Ids are 16 bytes in URL-safe base64 without padding. The first two files are written beside and renamed: a
crash leaves the old or the new one. The third is there or not; it is removed, durably, before the first
write, and what it holds only tells who closed the directory.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from functools import lru_cache
from typing import NamedTuple

from stratalog.errors import CorruptionError, UnsupportedFormat

Buffer = bytes | bytearray | memoryview

PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_RESERVED = (uuid.UUID(int=0), uuid.UUID(int=1))
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_LINE_END = re.compile(r"\r\n|\n|\r")
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


# -- ids


def id_to_text(value: uuid.UUID) -> str:
    """Kafka's way to print an id: 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def text_to_id(text: str) -> uuid.UUID:
    """Parse an id as Kafka prints it; CorruptionError for anything else."""
    text = text.removesuffix("==")
    if _ID.fullmatch(text):
        try:
            value = uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
        except (binascii.Error, ValueError):
            pass
        else:
            if id_to_text(value) == text:
                return value
    raise CorruptionError(f"{text[:40]!r} is not an id")


def new_id() -> uuid.UUID:
    """Return a random id by Kafka's rules: not reserved, and not beginning with a dash."""
    while True:
        value = uuid.uuid4()
        if value not in _RESERVED and not id_to_text(value).startswith("-"):
            return value


# -- partition.metadata


def pack_partition_metadata(topic_id: uuid.UUID) -> bytes:
    return f"version: 0\ntopic_id: {id_to_text(topic_id)}".encode()


@lru_cache(32)  # the partitions of a topic have the same
def parse_partition_metadata(data: bytes) -> uuid.UUID:
    """Return the topic id. As in Kafka, later versions are accepted if they keep the second line."""
    lines = _LINE_END.split(_text(data, PARTITION_METADATA))
    if len(lines) < 2:
        raise CorruptionError(f"{PARTITION_METADATA}: {len(lines)} lines", position=0)
    version = _labelled(lines[0], "version:")
    if not _NUMBER.fullmatch(version) or int(version) < 0:
        raise CorruptionError(f"{PARTITION_METADATA}: version {version[:20]!r}", position=0)
    topic_id = text_to_id(_labelled(lines[1], "topic_id:"))
    if topic_id == _RESERVED[0]:
        raise CorruptionError(f"{PARTITION_METADATA}: the topic id is all zeros", position=0)
    return topic_id


def _labelled(line: str, label: str) -> str:
    fields = line.split()
    if len(fields) != 2 or fields[0] != label:
        raise CorruptionError(f"{PARTITION_METADATA}: {line[:60]!r} where {label!r} belongs", position=0)
    return fields[1]


# -- meta.properties


class MetaProperties(NamedTuple):
    """Version 1. In version 0, read only, the node id is called broker.id and all of it may be missing."""

    cluster_id: str | None
    node_id: int | None
    directory_id: uuid.UUID | None = None
    version: int = 1


def pack_meta_properties(value: MetaProperties, comment: str = "") -> bytes:
    """Pack the file with ``comment`` (Kafka: the date) in its second line."""
    entries = (
        ("node.id" if value.version else "broker.id", value.node_id),
        ("directory.id", None if value.directory_id is None else id_to_text(value.directory_id)),
        ("version", value.version),
        ("cluster.id", value.cluster_id),
    )
    lines = ["#", f"#{_LINE_END.sub(' ', comment)}"]
    lines.extend(f"{name}={_escape(str(item))}" for name, item in entries if item is not None)
    return ("\n".join(lines) + "\n").encode()


def parse_meta_properties(data: Buffer) -> MetaProperties:
    entries = parse_properties(data)
    version = _property_number(entries, "version", default=0)
    if version not in (0, 1):
        raise UnsupportedFormat(f"{META_PROPERTIES} of version {version}")
    node_id = _property_number(entries, "node.id" if version else "broker.id", default=-1)
    cluster_id = entries.get("cluster.id")
    if version == 1 and (cluster_id is None or node_id < 0):
        raise CorruptionError(f"{META_PROPERTIES}: no cluster.id or no node.id", position=0)
    directory_id = entries.get("directory.id")
    return MetaProperties(
        cluster_id=cluster_id,
        node_id=node_id if node_id >= 0 else None,
        directory_id=text_to_id(directory_id) if directory_id is not None else None,
        version=version,
    )


def _property_number(entries: dict[str, str], name: str, default: int) -> int:
    text = entries.get(name, str(default)).strip()
    if not _NUMBER.fullmatch(text):
        raise CorruptionError(f"{META_PROPERTIES}: {name} is {text[:20]!r}", position=0)
    return int(text)


def parse_properties(data: Buffer) -> dict[str, str]:
    """Parse a Java properties file: comments, continued lines, escapes, any of the three separators."""
    lines = iter(_LINE_END.split(_text(data, META_PROPERTIES)))
    entries: dict[str, str] = {}
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _ends_open(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        name, value = _split_property(line)
        entries[_unescape(name)] = _unescape(value)
    return entries


def _ends_open(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split_property(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    value = line[end:].lstrip(" \t\f")
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(" \t\f")
    return line[:end], value


def _escape(text: str) -> str:
    out = "".join(f"\\{c}" if c in "\\=:#!" else c for c in text)
    for letter, char in _ESCAPES.items():
        out = out.replace(char, f"\\{letter}")
    return f"\\{out}" if out.startswith(" ") else out


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char = text[at]
            at += 1
            if char == "u":
                if not _UNICODE.match(text, at):
                    raise CorruptionError(f"{META_PROPERTIES}: malformed \\u escape", position=0)
                char = chr(int(text[at : at + 4], 16))
                at += 4
            else:
                char = _ESCAPES.get(char, char)
        out.append(char)
    return "".join(out)


# -- .kafka_cleanshutdown


def pack_clean_shutdown(broker_epoch: int = -1) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def parse_clean_shutdown(data: Buffer) -> int | None:
    """Return the broker epoch, or None if the file has none: older brokers left it empty."""
    try:
        content = json.loads(bytes(data))
    except (ValueError, RecursionError):
        return None
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None


def _text(data: Buffer, what: str) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"{what}: not UTF-8", position=error.start) from None
