"""Staged batches: where tasks put what a commit will take in, whose it is, and when it goes.

Beside every log directory, on the same filesystem and outside of what a Kafka broker looks at:

    <log dir>.staging/<query>@<batch>@<host>@<pid>@<start>/<attempt>.<topic id>.<topic>-<partition>.<number>

The directory names the commit and its owner: the process after whose end it can no longer be committed (for
Spark the driver's JVM); the file the topic it is for, by id: one of the same name that is made later is
another. Files of failed and speculative attempts lie among the others; only a commit says
which count.

Crash policy: nothing here is part of the log. What belongs to a batch that is committed, or to an owner that
is dead, is removed at the next commit or open (`sweep`); an owner on another machine counts as dead when
nothing of its directory changed for a day.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stratalog import kernel
from stratalog.errors import (
    CorruptionError,
    InvalidArgumentError,
    InvalidRecordError,
    StorageError,
    UnknownPartitionError,
)
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format.journal import StagedFile
from stratalog.format.metadata import id_to_text, text_to_id
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import partition_dir

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.store.store import Store

SUFFIX = ".staging"
ABANDONED_MS = 24 * 3600 * 1000
BATCH_BYTES = 1 << 20
"""Rows are gathered up to this for each partition, as far as ``max.message.bytes`` allows."""
GATHERED_BYTES = 64 << 20
"""And up to this for all partitions of a task together."""

JOB = "job-"
"""Begins the id of a batch write. What is staged for one may be committed under another id: whether the write
is a part of a micro-batch, and which, is known only when it is committed."""
_ID = re.compile(r"[A-Za-z0-9._~-]{1,100}")
_DIRECTORY = re.compile(r"([A-Za-z0-9._~-]{1,100})@(\d{1,19})@([A-Za-z0-9._-]{1,64}@\d{1,10}@\d{1,20})")
_NAME = re.compile(r"[A-Za-z0-9._~@-]{1,255}/[A-Za-z0-9._-]{1,255}")
_TOPIC_ID = re.compile(r"[^/]*/\d{6,}-[0-9a-f]{16}\.([A-Za-z0-9_-]{22})\..*")
_MAKE_TRIES = 5


def root_of(log_dir: str) -> str:
    """Return where the batches for the partitions of a log directory are staged."""
    return log_dir.rstrip("/") + SUFFIX


class Place(NamedTuple):
    """What a directory of staged files is for."""

    query: str
    batch: int
    owner: str

    @property
    def name(self) -> str:
        return f"{self.query}@{self.batch}@{self.owner}"

    @property
    def is_job(self) -> bool:
        return self.query.startswith(JOB)

    @classmethod
    def parse(cls, name: str) -> Place | None:
        found = _DIRECTORY.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]), found[3])


def check_id(query: str, batch: int) -> None:
    """Names of queries become names of directories."""
    if not isinstance(query, str) or not _ID.fullmatch(query):
        raise InvalidArgumentError(
            f"a query id is made of letters, digits, '.', '_', '-' and '~', not {query!r}"
        )
    if not isinstance(batch, int) or isinstance(batch, bool) or not 0 <= batch < 2**63:
        raise InvalidArgumentError(f"a batch id is a number from 0 on, not {batch!r}")


def check_name(name: str) -> Place:
    """Return what a staged file's name says; never one that leads elsewhere."""
    place = Place.parse(name.partition("/")[0]) if _NAME.fullmatch(name) else None
    if place is None:
        raise InvalidArgumentError(f"{name!r} is not the name of a staged file")
    return place


def topic_id(name: str) -> uuid.UUID | None:
    """Return the topic a file was staged for; None when its name does not say."""
    found = _TOPIC_ID.fullmatch(name)
    try:
        return None if found is None else text_to_id(found[1])
    except CorruptionError:
        return None


# -- owners --------------------------------------------------------------------------------------------


def host_name() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "localhost"


def owner_of(pid: int) -> str:
    """Name a process of this machine, distinct from later ones with the same pid."""
    return f"{host_name()}@{pid}@{_start_of(pid) or 0}"


def _start_of(pid: int) -> int | None:
    """Return when a process started, in the system's own count; None when that is unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def is_alive(owner: str) -> bool | None:
    """Return True if an owner is alive; None for one on another machine."""
    host, pid, start = owner.split("@")
    if host != host_name():
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    now = _start_of(int(pid))
    return True if now is None else now == int(start)


# -- staging -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a task must know of a topic to stage for it: where its partitions lie, what it takes."""

    name: str
    id: uuid.UUID | None
    log_dirs: tuple[str, ...]
    codec: int
    level: int | None
    max_batch_bytes: int
    segment_bytes: int
    needs_key: bool

    @property
    def partitions(self) -> int:
        return len(self.log_dirs)


def facts_of(store: Store, topic: str) -> TopicFacts:
    """Read off an open store, for reading or for writing."""
    partitions = store.partitions
    entry = partitions.entry(topic)
    config = entry.config(partitions.config)
    codec = codecs.NAMES.get(config.compression_type, 0)
    levels = {"gzip": config.compression_gzip_level, "lz4": config.compression_lz4_level}
    return TopicFacts(
        topic,
        entry.id,
        tuple(partitions.place(topic, number)[0].path for number in range(entry.partitions)),
        codec,
        {**levels, "zstd": config.compression_zstd_level}.get(config.compression_type),
        min(config.max_message_bytes, config.segment_bytes),
        config.segment_bytes,
        config.compact,
    )


class Attempt:
    """One try of one task: rows in, staged files out. Nothing is held open between calls."""

    def __init__(
        self,
        fs: FileSystem,
        place: Place,
        facts: Callable[[str], TopicFacts],
        *,
        number: int = 0,
        now_ms: Callable[[], int],
    ) -> None:
        check_id(place.query, place.batch)
        self._fs = fs
        self._place = place
        self._facts = facts
        self._now_ms = now_ms
        self._prefix = f"{number:06d}-{uuid.uuid4().hex[:16]}"
        self._gathered: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        self._bytes: dict[tuple[str, int], int] = {}
        self._files: dict[tuple[str, int], list[_Growing]] = {}

    def add(self, topic: str, partition: int, rows: pa.RecordBatch) -> None:
        """Rows for one partition, in order. The columns are those that `Topic.append_many` takes."""
        facts = self._facts(topic)
        if not 0 <= partition < facts.partitions:
            raise UnknownPartitionError(
                f"{topic} has no partition {partition}; it has 0 to {facts.partitions - 1}"
            )
        if facts.needs_key and ("key" not in rows.schema.names or rows.column("key").null_count):
            raise InvalidRecordError(
                f"{topic} is compacted: every record needs a key (cleanup.policy contains 'compact')"
            )
        key = (topic, partition)
        self._gathered.setdefault(key, []).append(rows)
        self._bytes[key] = self._bytes.get(key, 0) + rows.nbytes
        if self._bytes[key] >= BATCH_BYTES:
            self._encode(key)
        elif sum(self._bytes.values()) >= GATHERED_BYTES:
            for each in list(self._gathered):
                self._encode(each)

    def finish(self) -> list[StagedFile]:
        """Write what is left and sync it all; what was staged, by partition and in order."""
        for key in list(self._gathered):
            self._encode(key)
        found = []
        for (topic, partition), files in sorted(self._files.items()):
            for file in files:
                with self._fs.open(file.path, "w") as opened:
                    opened.sync()
                found.append(
                    StagedFile(
                        f"{self._place.name}/{file.path.rpartition('/')[2]}",
                        topic,
                        partition,
                        file.size,
                        file.crc,
                        file.records,
                        file.full,
                    )
                )
        return found

    def discard(self) -> None:
        """Remove what was staged: this try failed."""
        for files in self._files.values():
            for file in files:
                try:
                    self._fs.remove(file.path)
                except (FileNotFoundError, StorageError):
                    continue

    def _encode(self, key: tuple[str, int]) -> None:
        import pyarrow as pa

        gathered = self._gathered.pop(key)
        self._bytes.pop(key)
        facts = self._facts(key[0])
        rows = batches.ArrowRows(pa.Table.from_batches(gathered))
        row = 0
        while row < len(rows):
            encoded, row = batches.encode_arrow(
                rows,
                row,
                options=batches.BatchOptions(
                    base_offset=self._next_offset(key),
                    leader_epoch=-1,
                    now_ms=self._now_ms(),
                    codec=facts.codec,
                    level=facts.level,
                    max_bytes=facts.max_batch_bytes,
                ),
            )
            self._write(key, facts, encoded)

    def _next_offset(self, key: tuple[str, int]) -> int:
        files = self._files.get(key)
        return files[-1].records if files else 0

    def _write(self, key: tuple[str, int], facts: TopicFacts, encoded: batches.Encoded) -> None:
        files = self._files.setdefault(key, [])
        if files and files[-1].size + len(encoded.data) > facts.segment_bytes:
            files[-1].full = True
        if not files or files[-1].full:
            directory = f"{root_of(facts.log_dirs[key[1]])}/{self._place.name}"
            meant = "" if facts.id is None else f".{id_to_text(facts.id)}"
            name = f"{self._prefix}{meant}.{partition_dir(*key)[:180]}.{len(files):06d}"
            files.append(_Growing(f"{directory}/{name}"))
            make_dir(self._fs, directory)
        files[-1].write(self._fs, encoded)


def make_dir(fs: FileSystem, directory: str) -> None:
    """Make a directory below a root; a sweep may remove the empty root meanwhile."""
    for _ in range(_MAKE_TRIES):
        with suppress(FileNotFoundError):
            fs.make_dir(directory)
            return
    raise StorageError(f"{directory}: cannot be made")


class _Growing:
    """One staged file. Its batches carry offsets from 0 on."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = self.records = self.crc = 0
        self.full = False

    def write(self, fs: FileSystem, encoded: batches.Encoded) -> None:
        with fs.open(self.path, "a") as file:
            file.pwrite(encoded.data, self.size)
        self.crc = kernel.crc32c(encoded.data, self.crc)
        self.size += len(encoded.data)
        self.records += encoded.count


# -- sweeping ------------------------------------------------------------------------------------------


def sweep(
    context: LogContext,
    log_dirs: list[str],
    is_committed: Callable[[str, int], bool],
    kept: Container[str],
) -> None:
    """Remove what can no longer be committed; ``kept`` names the directories that a pending commit needs."""
    for log_dir in log_dirs:
        try:
            for directory in _doomed(context, root_of(log_dir), is_committed, kept):
                context.fs.remove_tree(directory)
            if not context.fs.list_dir(root_of(log_dir)):
                context.fs.remove_dir(root_of(log_dir))
        except (FileNotFoundError, NotADirectoryError):
            continue  # nothing staged, or a task is at work there
        except StorageError as error:
            context.warn(f"{error}; swept at the next commit or open")


def _doomed(
    context: LogContext,
    root: str,
    is_committed: Callable[[str, int], bool],
    kept: Container[str],
) -> Iterator[str]:
    for name in context.fs.list_dir(root):
        place = Place.parse(name)
        if place is None or name in kept:
            continue
        alive = is_alive(place.owner)
        if alive is None:
            alive = not _abandoned(context, f"{root}/{name}")
        if not alive or is_committed(place.query, place.batch):
            yield f"{root}/{name}"


def _abandoned(context: LogContext, directory: str) -> bool:
    paths = [directory, *(f"{directory}/{name}" for name in context.fs.list_dir(directory))]
    newest_ns = 0
    for path in paths:
        try:
            newest_ns = max(newest_ns, context.fs.stat(path).mtime_ns)
        except FileNotFoundError:
            return False
    return context.clock.now_ms() - newest_ns // 1_000_000 > ABANDONED_MS
