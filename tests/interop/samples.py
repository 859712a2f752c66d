"""Records that stretch the format, and how a Kafka client's message is compared with ours."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

from stratalog import Record, Topic

# codec as the dump tool names it -> compression.type of a topic
CODECS = {"none": "uncompressed", "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}

_CREATE_TIME_OF_CLIENT = 1  # confluent-kafka counts from 1, the format from 0
_SEGMENT_KINDS = frozenset({".index", ".log", ".snapshot", ".timeindex", ".txnindex"})


class Seen(NamedTuple):
    """What both sides must agree on about one record."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def sample_records(count: int, seed: int) -> list[Record]:
    """Null and empty keys and values, headers of all kinds, up to 20 KB, time running back and forth."""
    chance = random.Random(seed)
    records = []
    for n in range(count):
        size = chance.choice((0, 1, 20, 100, 300, 300, 1_000, 20_000 if n % 50 == 0 else 50))
        value = bytes(chance.choices(b"abcdefgh ", k=size))
        headers = [("trace", b"%d" % n), ("nil", None), ("empty", b""), ("sch\u00fcssel", b"\x00\xff")]
        records.append(
            Record(
                value=None if n % 23 == 5 else value,
                key=None if n % 7 == 3 else b"" if n % 31 == 8 else b"key-%d" % chance.randrange(200),
                headers=tuple(headers[: n % 5]),
                timestamp=1_760_000_000_000 + n * 10 + chance.randrange(-5_000, 5_000),
            )
        )
    return records


def append_in_batches(topic: Topic, records: list[Record], size: int = 25) -> None:
    """Many small batches, so that every segment has several and its indexes have entries."""
    for start in range(0, len(records), size):
        topic.append_many(records[start : start + size])


def seen_by_us(record: Record) -> Seen:
    assert record.timestamp is not None
    return Seen(
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        tuple((name, value) for name, value in record.headers),
    )


def seen_by_client(message: Any) -> Seen:
    kind, timestamp = message.timestamp()
    headers = tuple(message.headers() or ())
    return Seen(
        message.offset(), timestamp, kind - _CREATE_TIME_OF_CLIENT, message.key(), message.value(), headers
    )


def segment_files(partition_dir: Path, *suffixes: str) -> list[Path]:
    """The files of a partition that Kafka's dump tool knows, or those with ``suffixes``, in name order."""
    wanted = suffixes or _SEGMENT_KINDS
    return sorted(path for path in partition_dir.iterdir() if path.suffix in wanted)
