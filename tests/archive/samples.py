"""Sealed segments as a store leaves them, to be archived."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path

import stratalog
from stratalog import Record
from stratalog.archive import Archive, ArchiveOptions, Objects, PartitionArchive, SegmentUpload
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.log.names import parse_file

TOPIC = "orders"
TOPIC_ID = uuid.UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)
NOW_MS = 1_760_000_000_000
PART_BYTES = 4 << 10
_sessions = itertools.count()


def make_segments(
    path: Path, segments: int = 3, records: int = 40, value_bytes: int = 200, **config: object
) -> list[SegmentUpload]:
    """A partition directory of sealed segments and an empty active one; what `upload` wants of the sealed."""
    with stratalog.open(path) as store:
        topic = store.create_topic(TOPIC, config={"key.index.enable": True, **config})
        for segment in range(segments):
            first = segment * records
            topic.append_many(
                [
                    Record(
                        f"value {number} ".encode().ljust(value_bytes, b"."),
                        key=f"key {number % 7}".encode(),
                        timestamp=NOW_MS + number * 1000,
                    )
                    for number in range(first, first + records)
                ]
            )
            topic.roll()
    return sealed(RealFileSystem(), f"{path}/{TOPIC}-0")


def sealed(fs: FileSystem, directory: str) -> list[SegmentUpload]:
    """Every segment of a directory but the last."""
    parsed = [parse_file(name) for name in fs.list_dir(directory)]
    bases = sorted(
        each.base_offset for each in parsed if each is not None and each.kind == "log" and not each.suffix
    )
    return [SegmentUpload.collect(fs, directory, base, end) for base, end in itertools.pairwise(bases)]


def open_for(objects: Objects, store_id: str = "store-1", *, threads: int = 1, **options: object) -> Archive:
    """The archive as a process of its own would open it; parts are small, so that logs have several."""
    known = {"part_bytes": PART_BYTES, "cache_bytes": 8 << 20, "threads": threads, **options}
    chosen = ArchiveOptions(objects.url, **known)  # type: ignore[arg-type]
    return Archive(chosen, objects, RealFileSystem(), store_id)


def partition_of(archive: Archive) -> PartitionArchive:
    return archive.partition(TOPIC, TOPIC_ID, 0)


def names_in(objects: Objects) -> set[str]:
    return {info.key for info in objects.list("")}
