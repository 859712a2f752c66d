"""The offset checkpoints of a log directory: Kafka's four root files, each owned by one object.

An owner reads its file once, keeps the entries in memory and rewrites the file under its own lock, so that
two changes never overwrite each other.

Crash policy: a file is written beside and renamed, so a crash leaves the old entries or the new ones. A
checkpoint may be older than the log, never newer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog import locks
from stratalog.errors import FormatError
from stratalog.format import checkpoints as formats
from stratalog.log.check.damage import reason_of
from stratalog.log.context import LogContext
from stratalog.log.read.follower import is_still
from stratalog.log.write.writer import PartitionWriter

if TYPE_CHECKING:
    from stratalog.store.catalog import Registry
    from stratalog.store.logdir import LogDir

RECOVERY_POINT = formats.RECOVERY_POINT
LOG_START = formats.LOG_START
HIGH_WATERMARK = formats.HIGH_WATERMARK
CLEANER_OFFSET = formats.CLEANER

Key = tuple[str, int]
Offsets = dict[Key, int]
Change = Callable[[Mapping[Key, int]], Mapping[Key, int]]


class OffsetCheckpoint:
    """One checkpoint file. Thread-safe.

    Its lock protects the entries and the file. The one write of the file happens under it; no other lock may
    be taken under it.
    """

    def __init__(self, context: LogContext, path: str) -> None:
        self.path = path
        self.context = context
        self._lock = locks.lock("checkpoint")
        self._entries: Offsets | None = None
        self._in_doubt = False
        self._missing = False
        self._written: tuple[tuple[int, int, int] | None, Offsets] = (None, {})
        """What the file held when it was last read for a reader, and which file that was."""

    def read(self) -> Offsets:
        """Read the file anew; empty when missing or unreadable.

        That costs a longer recovery. Without the log starts, deleted records of a segment that is still there
        can be read again, as in Kafka.
        """
        try:
            return dict(formats.parse_offsets(self.context.fs.read_file(self.path)))
        except FileNotFoundError:
            self._missing = True
            return {}
        except FormatError as error:
            self.context.warn(f"{self.path}: {reason_of(error)}; file ignored")
            return {}

    def as_written(self) -> Mapping[Key, int]:
        """Return the entries of a file that another process writes: a stat while it did not change."""
        seen, entries = self._written
        stat = None
        with suppress(FileNotFoundError):
            stat = self.context.fs.stat(self.path)
        now = (-1, -1, -1) if stat is None else stat.identity
        if seen != now:
            read_at = time.time_ns()
            entries = self.read()
            # A file replaced just before may be replaced again without its time moving.
            still = stat is None or is_still(stat.changed_ns, read_at)
            self._written = (now if still else None, entries)
        return entries

    def write(self, entries: Mapping[Key, int]) -> None:
        """Replace the file; durable on return. Callers other than this class use `change` or `put`."""
        self.context.fs.write_atomic(self.path, formats.pack_offsets(entries))

    def get(self, key: Key) -> int | None:
        """Return the entry of one partition, from memory."""
        with self._lock:
            return self._known().get(key)

    def entries(self) -> Offsets:
        """Return a copy of all entries, from memory."""
        with self._lock:
            return dict(self._known())

    def change(self, change: Change) -> None:
        """Replace the entries by ``change(entries)`` and write them if they differ; durable on return.

        ``change`` runs under the lock of this file: it may look at memory and must not take a lock or do I/O.
        When the write fails the entries stay as they were.
        """
        with self._lock:
            known = self._known()
            entries = dict(change(known))
            if entries == known and not self._in_doubt:
                return
            self._in_doubt = True  # a write that fails may still have replaced the file
            self.write(entries)
            self._entries, self._in_doubt, self._missing = entries, False, False

    def ensure(self) -> None:
        """Write the file if there is none: a broker always has one, empty or not."""
        with self._lock:
            if self._missing:
                self.write(self._known())
                self._missing = False

    def put(self, key: Key, offset: int) -> None:
        """Set the entry of one partition."""
        self.update({key: offset})

    def update(self, entries: Mapping[Key, int]) -> None:
        """Set the entries of several partitions with one write."""
        self.change(lambda known: {**known, **entries})

    def forget(self, keys: Collection[Key]) -> None:
        """Remove the entries of partitions."""
        gone = set(keys)
        self.change(lambda known: {key: offset for key, offset in known.items() if key not in gone})

    def _known(self) -> Offsets:
        if self._entries is None:
            self._entries = self.read()
        return self._entries


class Checkpoints:
    """The four checkpoint files of one log directory."""

    def __init__(self, context: LogContext, directory: str) -> None:
        self.recovery_point = OffsetCheckpoint(context, f"{directory}/{RECOVERY_POINT}")
        self.log_start = OffsetCheckpoint(context, f"{directory}/{LOG_START}")
        self.high_watermark = OffsetCheckpoint(context, f"{directory}/{HIGH_WATERMARK}")
        self.cleaner_offset = OffsetCheckpoint(context, f"{directory}/{CLEANER_OFFSET}")

    @property
    def all(self) -> tuple[OffsetCheckpoint, ...]:
        return (self.recovery_point, self.log_start, self.high_watermark, self.cleaner_offset)

    def forget(self, keys: Collection[Key]) -> None:
        """Remove partitions from every file: they are gone, or others of the same name are to come."""
        for each in self.all:
            each.forget(keys)

    def take_over(self, key: Key, source: Checkpoints) -> None:
        """Copy one partition's entries from another directory's files, replacing what was known here."""
        for ours, theirs in zip(self.all, source.all, strict=True):
            offset = theirs.get(key)
            if offset is None:
                ours.forget([key])
            else:
                ours.put(key, offset)


Value = Callable[[PartitionWriter, int | None], int | None]
"""Returns the entry of a partition, given the entry before."""


def bring_up_to_date(where: LogDir, registry: Registry, is_changing: Callable[[str], bool]) -> None:
    """Write what the writers in one directory say now.

    Values are looked up under the lock of the file they go to: a partition that was deleted, moved or created
    meanwhile is seen as it is now. Entries of partitions that are not open stay. Those of unknown ones go,
    except of topics that ``is_changing`` tells: a partition that is moved here, or imported, has its entries
    before it has its name.
    """

    def current(known: Mapping[Key, int], value: Value) -> Offsets:
        # First of all: a change that ended before is in the registry.
        result: Offsets = {key: offset for key, offset in known.items() if is_changing(key[0])}
        for entry in registry.entries.values():
            for partition, (each, _) in entry.directories.items():
                if each is where:
                    key = (entry.name, partition)
                    view = registry.view(*key)
                    before = known.get(key)
                    now = value(view, before) if isinstance(view, PartitionWriter) else before
                    if now is not None:
                        result[key] = now
        return result

    files = where.checkpoints
    files.recovery_point.change(lambda known: current(known, lambda writer, _: writer.recovery_point))
    files.log_start.change(lambda known: current(known, _log_start_to_keep))
    files.log_start.ensure()
    files.high_watermark.change(lambda known: current(known, lambda writer, _: writer.end_offset()))
    files.cleaner_offset.change(lambda known: current(known, lambda _, before: before))


def _log_start_to_keep(writer: PartitionWriter, known: int | None) -> int | None:
    """Return the log start to write down: never below the known one, which a deletion may be about to reach.

    Where the log begins with its first segment no entry is needed, as in Kafka; nor a new one, as deleting
    wrote its own: then a first segment that was lost still shows.
    """
    start = writer.log_start_offset
    if start <= writer.segments()[0].base_offset and not writer.is_tiered:
        return known
    return start if known is None else max(start, known)
