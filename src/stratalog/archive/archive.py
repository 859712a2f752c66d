"""An archive as a whole: the partitions in it, what is wrong with it, what is left over in it.

Nothing is remembered here: which partitions there are, and of which store, is read off the object store. The
threads and the cache belong to this object and end with it.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from stratalog import locks
from stratalog.archive import manifest as manifests
from stratalog.archive.cache import BlockCache, Blocks, CacheStats
from stratalog.archive.manifest import Manifest, StoredObject
from stratalog.archive.objects import ObjectInfo, Objects, directory_of, open_objects
from stratalog.archive.partition import PartitionArchive, Tools
from stratalog.archive.upload import PART_BYTES, read_back
from stratalog.config import BrokerConfig
from stratalog.errors import ArchiveError, ConfigError, CorruptionError, FormatError
from stratalog.fs import FileSystem

VerifyProgress = Callable[[int, int, str], None]
"""(bytes checked, bytes in all, what is being checked)."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The address of an archive, and limits for its use."""

    url: str
    cache_bytes: int = 256 << 20
    cache_dir: str = ""
    timeout_ms: int = 60_000
    retries: int = 5
    threads: int = 4
    part_bytes: int = PART_BYTES

    @classmethod
    def of(cls, config: BrokerConfig, first_log_dir: str = "", url: str | None = None) -> ArchiveOptions:
        """Read the settings ``log.archive.*``; the default is a directory beside the first log directory."""
        said = url if url is not None else str(config.get("log.archive.url"))
        return cls(
            url=said or (f"{first_log_dir}.archive" if first_log_dir else ""),
            cache_bytes=config.get_int("log.archive.cache.bytes"),
            cache_dir=str(config.get("log.archive.cache.dir")),
            timeout_ms=config.get_int("log.archive.timeout.ms"),
            retries=config.get_int("log.archive.retries"),
            threads=config.get_int("log.archive.threads"),
        )

    def check_outside(self, log_dirs: Sequence[str]) -> None:
        """Raise ConfigError if the archive or its cache lies inside or around a log directory.

        A broker refuses a log directory with folders it does not know.
        """
        places = {"log.archive.url": directory_of(self.url), "log.archive.cache.dir": self.cache_dir or None}
        for name, place in places.items():
            for log_dir in log_dirs:
                if place is None:
                    continue
                ours, theirs = os.path.abspath(place), os.path.abspath(log_dir)
                if os.path.commonpath([ours, theirs]) in (ours, theirs):
                    raise ConfigError(
                        f"{name}={place}: must not be inside or above the log directory {log_dir}"
                    )


@dataclass(slots=True)
class ArchiveCheck:
    """The result of verifying an archive."""

    url: str
    partitions: int = 0
    segments: int = 0
    objects: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """A line for each object, or manifest, that is not as it should be."""
    orphans: list[str] = field(default_factory=list)
    """Objects that no manifest names. Not damage: the store that owns the archive sweeps them."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def open_archive(
    options: ArchiveOptions,
    fs: FileSystem,
    *,
    store_id: str,
    objects: Objects | None = None,
    now_ms: Callable[[], int] | None = None,
) -> Archive:
    """Open the archive at a URL; makes no request yet. Tests pass their own ``objects``."""
    if objects is None:
        objects = open_objects(options.url, fs, timeout_ms=options.timeout_ms, retries=options.retries)
    return Archive(options, objects, fs, store_id, now_ms)


class Archive:
    """Close it, or use it in a ``with`` block. Thread-safe."""

    def __init__(
        self,
        options: ArchiveOptions,
        objects: Objects,
        fs: FileSystem,
        store_id: str,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        if not store_id:
            raise ConfigError("an archive is opened for a store, which has an id")
        self.url = objects.url
        self.objects = objects
        self.store_id = store_id
        self.session = secrets.token_hex(8)
        """This process, as manifests name it."""
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="stratalog-archive")
        self._blocks = Blocks(objects, BlockCache(options.cache_bytes, fs, options.cache_dir), self._pool)
        clock = {} if now_ms is None else {"now_ms": now_ms}
        self._tools = Tools(
            objects, fs, self._blocks, self._pool, store_id, self.session, options.part_bytes, **clock
        )
        self._lock = locks.lock("archive")
        self._partitions: dict[tuple[uuid.UUID, int], PartitionArchive] = {}

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Archive {self.url}>"

    def partition(self, topic: str, topic_id: uuid.UUID, partition: int) -> PartitionArchive:
        """Return the archive of one partition, which may be empty."""
        with self._lock:
            key = (topic_id, partition)
            if key not in self._partitions:
                self._partitions[key] = PartitionArchive(self._tools, topic, topic_id, partition)
            return self._partitions[key]

    def forget(self, topic_id: uuid.UUID, partition: int) -> None:
        """Forget a partition whose archive was deleted: no other gets its id."""
        with self._lock:
            self._partitions.pop((topic_id, partition), None)

    def manifests(self) -> list[Manifest]:
        """Read the manifests of all partitions, by topic and number; CorruptionError for a damaged one."""
        found = self._read_manifests(self.objects.list(""))
        return sorted(found, key=lambda each: (each.topic, str(each.topic_id), each.partition))

    def _read_manifests(
        self, listing: Iterable[ObjectInfo], problems: list[str] | None = None
    ) -> Iterator[Manifest]:
        for info in listing:
            if not info.key.endswith(f"/{manifests.FILE_NAME}") or info.key.count("/") != 2:
                continue
            url = self.objects.url_of(info.key)
            try:
                yield manifests.parse(self.objects.get(info.key).data, url)
            except FileNotFoundError:
                continue  # removed since it was listed
            except FormatError as error:
                if problems is None:
                    raise
                problems.append(str(error))

    def verify(self, *, deep: bool = True, progress: VerifyProgress | None = None) -> ArchiveCheck:
        """Compare the archive with its manifests: every object's size, and with ``deep`` every byte."""
        check = ArchiveCheck(self.url)
        listing = {info.key: info for info in self.objects.list("")}
        found = list(self._read_manifests(listing.values(), check.problems))
        total = sum(entry.stored_bytes for manifest in found for entry in manifest.segments)
        named = set()
        done = 0
        for manifest in found:
            archive = self.partition(manifest.topic, manifest.topic_id, manifest.partition)
            named.add(f"{archive.prefix}/{manifests.FILE_NAME}")
            check.partitions += 1
            for entry in manifest.segments:
                check.segments += 1
                check.objects += len(entry.objects)
                check.bytes += entry.stored_bytes
                folder = f"{archive.prefix}/segments/{entry.name}"
                named.update(f"{folder}/{each.name}" for each in entry.objects)
                for each in entry.objects:
                    problem = self._problem(listing, folder, each, deep=deep)
                    if problem is not None:
                        check.problems.append(problem)
                done += entry.stored_bytes
                if progress is not None:
                    progress(done, total, archive.prefix)
        broken = {problem.partition(": ")[0] for problem in check.problems}
        urls = (self.objects.url_of(key) for key in sorted(listing) if key not in named)
        check.orphans = [url for url in urls if url not in broken]
        return check

    def _problem(
        self, listing: Mapping[str, ObjectInfo], folder: str, stored: StoredObject, *, deep: bool
    ) -> str | None:
        """Return what is wrong with one object, with its URL; None when nothing is."""
        key = f"{folder}/{stored.name}"
        info = listing.get(key)
        if info is None or info.size != stored.size:
            said = "is missing" if info is None else f"has {info.size} bytes, not {stored.size}"
            return f"{self.objects.url_of(key)}: {said}"
        if deep:
            try:
                read_back(self.objects, folder, stored)
            except (ArchiveError, CorruptionError, FileNotFoundError) as error:
                return str(error)
        return None

    def sweep(self, keep: Callable[[Manifest], Collection[int] | None]) -> list[str]:
        """Remove leftovers of interrupted uploads and removals; return their URLs.

        Only in partitions that this store owns. ``keep`` returns for each the base offsets of local segments
        whose upload will go on, or None when the store has no such topic: an archive marked as deleted is
        then removed.
        """
        swept: list[str] = []
        damaged: list[str] = []  # for `verify` to tell; the other partitions are swept all the same
        for manifest in [*self._read_manifests(self.objects.list(""), damaged)]:
            if manifest.owner != self.store_id:
                continue
            archive = self.partition(manifest.topic, manifest.topic_id, manifest.partition)
            kept = keep(manifest)
            if kept is None:
                if manifest.deleted:
                    archive.delete_everything()
                    self.forget(manifest.topic_id, manifest.partition)
                    swept.append(archive.url)
                continue
            if manifest.deleted:
                archive.mark_deleted(False)
            swept += archive.sweep(kept)
        return swept

    def cache_stats(self) -> CacheStats:
        return self._blocks.cache.stats()

    def close(self) -> None:
        """End the threads and drop the cache. Reads under way fail."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._blocks.cache.close()
