"""One decided commit on its way into the log: what is there already is told, the rest appended or adopted.

Used by `stratalog.store.journal.journal` alone, which says what a commit is and how it survives a crash.

**Decided is decided.** The files of an entry were checked against the settings of their topics before it
was written down. Settings that changed since (``max.message.bytes``, ``segment.bytes``, the codec, the limits
of timestamps, ``cleanup.policy=compact``) no longer refuse what it holds: it goes into the log like the
records that came before the change. Otherwise such an entry could never be finished, and a part of it may be
in the log. Only a topic that was deleted gets nothing, made anew or not: its records would be gone.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, cast

from stratalog.errors import (
    CorruptionError,
    LogDirOfflineError,
    NotFoundError,
    StorageError,
    UnknownTopicError,
)
from stratalog.format.batch import Scan, set_producer
from stratalog.format.journal import Entry, StagedFile, Target
from stratalog.fs import FileSystem
from stratalog.log.read.reader import segment_index
from stratalog.log.segment.segment import scan_file
from stratalog.log.write import produce
from stratalog.log.write.adopting import adopt
from stratalog.log.write.append import Admission
from stratalog.log.write.producers import MAX_SEQUENCE, increment_sequence
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.journal import staging
from stratalog.store.partitions import Partitions

APPEND_BYTES = 1 << 20

_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1

Told = Callable[[str, int, int], None]


class Book(Protocol):
    """The journal, as an entry on its way needs it."""

    @property
    def producer_id(self) -> int: ...

    def path(self, file: StagedFile) -> str | None:
        """Where a staged file lies; None when it is staged no more."""

    def target(self, writer: PartitionWriter) -> Target:
        """Where an entry would begin in a partition now."""

    def decide_anew(self, entry: Entry) -> None:
        """Write down what is left of an entry, durably."""


def writer_of(partitions: Partitions, file: StagedFile) -> PartitionWriter:
    """The partition that a file was staged for; NotFoundError when it, or the topic of its time, is gone."""
    writer = partitions.writer(file.topic, file.partition)
    meant, there = staging.topic_id(file.name), partitions.entry(file.topic).id
    if meant is not None and there is not None and meant != there:
        raise UnknownTopicError(
            f"topic {file.topic!r} was deleted and made anew since {file.name} was staged"
        )
    return writer


def chunks(fs: FileSystem, path: str, file: StagedFile) -> Iterator[tuple[memoryview, Scan]]:
    """The batches of a staged file, their CRCs checked; CorruptionError when that is not all it holds."""
    with fs.open(path) as opened:
        position = 0
        for at, data, scan in scan_file(opened, 0, file.size_bytes, check_crc=True):
            if not scan.n:
                raise CorruptionError(scan.reason, path=path, position=at)
            yield data, scan
            position = at + scan.end
        if position != file.size_bytes:
            raise CorruptionError("no whole batch", path=path, position=position)


class RollForward:
    """One entry; ``entry`` is what is left of it as written down. Under the journal's lock."""

    def __init__(
        self, book: Book, partitions: Partitions, entry: Entry, *, fresh: bool, told: Told | None
    ) -> None:
        self._book = book
        self._partitions = partitions
        self._context = partitions.context
        self._fresh = fresh
        self._told = told
        self._total = sum(file.size_bytes for file in entry.files)
        self._done = 0
        self._adopted: set[tuple[str, int, int]] = set()
        self.entry = entry
        self.left_out = 0
        """Records whose topic or partition is gone."""

    def run(self) -> list[tuple[PartitionWriter, int]]:
        """Put everything into the log that is not there; the partitions it went to, and how far."""
        reached = []
        for target in self.entry.targets:
            files = [file for file in self.entry.files if (file.topic, file.partition) == target[:2]]
            if not files:
                continue
            try:
                writer = writer_of(self._partitions, files[0])
            except LogDirOfflineError:
                raise
            except NotFoundError as error:
                records = sum(file.records for file in files)
                self.left_out += records
                self._context.warn(
                    f"commit {self.entry.query}/{self.entry.batch}: {records} records for {target.topic}-"
                    f"{target.partition} are left out: {error}"
                )
                continue
            self._partition(writer, target, files)
            reached.append((writer, writer.next_offset))
        return reached

    def _partition(self, writer: PartitionWriter, target: Target, files: list[StagedFile]) -> None:
        there = 0
        if not self._fresh:
            there = self._already(writer, target, sum(file.records for file in files))
            target = self._renewed(writer, target, there)
        sequence = target.first_sequence
        for file in files:
            if not (file.whole and self._adopt(writer, target, file)):
                if there < file.records:
                    self._append(writer, file, sequence, there)
                sequence = increment_sequence(sequence, file.records)
                there = max(0, there - file.records)
            self._done += file.size_bytes
            if self._told is not None:
                self._told("commit", self._done, self._total)

    # -- appending ---------------------------------------------------------------------------------------

    def _already(self, writer: PartitionWriter, target: Target, total: int) -> int:
        """How many appended records of the entry the partition has: they are there in order."""
        last = [writer.producers.last_sequence(self._book.producer_id)]
        last += self._sequences(writer, target.base_offset)
        counts = ((each - target.first_sequence & MAX_SEQUENCE) + 1 for each in last if each >= 0)
        return max((count for count in counts if count <= total), default=0)

    def _sequences(self, writer: PartitionWriter, base_offset: int) -> Iterator[int]:
        """The last sequences of our batches from an offset on, as the headers in the log say."""
        segments = writer.local_segments()
        for segment in segments[segment_index(segments, base_offset) :]:
            start = segment.start_for(base_offset).position
            with segment.open_log() as file:
                for _, _, scan in scan_file(file, start, segment.size):
                    for header in scan if scan.has_producers else ():
                        if header.producer_id == self._book.producer_id and header.base_offset >= base_offset:
                            yield header.last_sequence

    def _renewed(self, writer: PartitionWriter, target: Target, there: int) -> Target:
        """Begin anew where a crash took the end of the log, and with it what the entry went by."""
        if there:
            return target
        now = self._book.target(writer)
        now = now._replace(base_offset=min(now.base_offset, target.base_offset))
        if now == target:
            return target
        targets = tuple(now if each == target else each for each in self.entry.targets)
        self._decide_anew(replace(self.entry, targets=targets))
        return now

    def _append(self, writer: PartitionWriter, file: StagedFile, sequence: int, there: int) -> None:
        """Append the batches of a file without its first ``there`` records."""
        path = self._book.path(file)
        if path is None:
            raise self._gone(file)
        admitted = cast("PartitionWriter", _Admitted(writer))
        limit = min(APPEND_BYTES, writer.config.segment_bytes)
        buffer = bytearray()
        passed = 0
        for data, scan in chunks(self._context.fs, path, file):
            for header in scan:
                first, passed = passed, passed + header.count
                if passed <= there:
                    continue
                if buffer and len(buffer) + header.size > limit:
                    produce.append_batches(admitted, buffer)
                    buffer = bytearray()
                at = len(buffer)
                buffer += data[header.position : header.position + header.size]
                with memoryview(buffer) as view, view[at:] as batch:
                    set_producer(batch, self._book.producer_id, 0, increment_sequence(sequence, first))
        if buffer:
            produce.append_batches(admitted, buffer)

    # -- adopting ----------------------------------------------------------------------------------------

    def _adopt(self, writer: PartitionWriter, target: Target, file: StagedFile) -> bool:
        """Make a segment of a file; False when this disk cannot, and it must be appended instead.

        It then leaves the entry: what retention, compaction or the archive do to the segment before the
        rest is in must not make it look as if it were missing.
        """
        path = self._book.path(file)
        if path is None:
            self._find_adopted(writer, target, file)
        else:
            try:
                self._adopted.add((target.topic, target.partition, adopt(writer, path)))
            except StorageError as error:
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EXDEV:
                    raise
                demoted = (each._replace(whole=False) if each == file else each for each in self.entry.files)
                self._decide_anew(replace(self.entry, files=tuple(demoted)))
                return False
        self._decide_anew(replace(self.entry, files=tuple(each for each in self.entry.files if each != file)))
        return True

    def _find_adopted(self, writer: PartitionWriter, target: Target, file: StagedFile) -> None:
        """A file that is not staged any more was renamed before a crash: a segment like it is there."""
        for segment in writer.segments():
            base = segment.base_offset
            if base < target.base_offset or (target.topic, target.partition, base) in self._adopted:
                continue
            if (segment.size, (segment.next_offset or 0) - base) == (file.size_bytes, file.records):
                self._adopted.add((target.topic, target.partition, base))
                return
        if writer.log_start_offset <= target.base_offset:  # else it was there, and was deleted since
            raise self._gone(file)

    def _decide_anew(self, entry: Entry) -> None:
        self.entry = entry
        self._book.decide_anew(entry)

    def _gone(self, file: StagedFile) -> NotFoundError:
        return NotFoundError(
            f"commit {self.entry.query}/{self.entry.batch} is decided and cannot be finished: the staged file"
            f" {file.name} is gone, and {file.topic}-{file.partition} does not have it; put the file back, or"
            f" delete the topic {file.topic!r}"
        )


class _Admitted:
    """A writer as the door sees it for batches that were admitted before: today's limits do not count."""

    def __init__(self, writer: PartitionWriter) -> None:
        self._writer = writer
        self.config = replace(
            writer.config,
            max_message_bytes=_INT_MAX,
            segment_bytes=_INT_MAX,
            cleanup_policy=writer.config.cleanup_policy - {"compact"},
            message_timestamp_before_max_ms=_LONG_MAX,
            message_timestamp_after_max_ms=_LONG_MAX,
        )
        self.admission = Admission(writer.topic, self.config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
