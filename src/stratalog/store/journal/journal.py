"""Staged commits taken in exactly once: decided by one durable write, rolled forward until they are done.

    1  the staged files are checked (size, CRC-32C, topics) and made durable
    2  the entry goes to `stratalog.journal` in every log directory: from here on the commit happens
    3  file by file, in order: batches join the active segment, a file as large as a segment becomes one
    4  every partition is synced; the entry leaves the journal, its id stays there
    5  what was staged for it, and what can no longer be committed, is removed

A crash before 2 leaves the log as it was. After 2 the next open, or the next commit, does what is left; a
commit that comes again, with whatever staged files, is then a no-op.

**What is in the log already** after a crash in 3 is read off the log itself, not off a position written
beside it: such a position is late or early by the very append that the crash cut short, and other producers
append in between. Batches that are appended carry this store's own producer id, and sequences that go on
from the last it used in the partition; both are inside the batch's CRC, so they are there exactly when
the records are. The entry says at which offset and sequence each partition begins. What of it is found
from there on is skipped (and the producer state is asked too: compaction keeps each producer's last batch).
A file that becomes a segment needs no mark: once renamed it is gone from the staging directory, in one step,
and a segment of its size is there.

**Decided is decided.** The files of an entry were checked against the settings of their topics before it was
written. Settings that changed since (``max.message.bytes``, ``segment.bytes``, the codec, the limits of
timestamps, ``cleanup.policy=compact``) no longer refuse what it holds: otherwise such an entry could never be
finished, and a part of it may be in the log. Only the records of a deleted topic are left out, even if the
topic was created again.

One entry at a time: a partition that a pending entry still waits for takes no new one.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

from stratalog import kernel, locks
from stratalog.errors import (
    CorruptionError,
    FormatError,
    InvalidArgumentError,
    LogDirOfflineError,
    NotFoundError,
    StorageError,
    StratalogError,
    UnknownTopicError,
)
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format import journal as journals
from stratalog.format.batch import Scan, set_producer
from stratalog.format.journal import Entry, StagedFile, Target
from stratalog.fs import FileSystem
from stratalog.fs.contract import has_errno
from stratalog.log.read.reader import segment_index
from stratalog.log.segment.segment import scan_file
from stratalog.log.write import produce
from stratalog.log.write.adopting import adopt
from stratalog.log.write.append import Admission
from stratalog.log.write.producers import MAX_SEQUENCE, increment_sequence
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.admin.control import Progress
from stratalog.store.journal import staging
from stratalog.store.partitions import Partitions

FIRST_PRODUCER_ID = 1 << 62
"""Brokers count theirs from 0."""


class Committed(NamedTuple):
    """What became of a commit: ``duplicate`` when it had been taken in before."""

    duplicate: bool
    records: int


class Journal:
    """The commits of one writable store. Thread-safe: one commit after the other."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._context = partitions.context
        self.lock = locks.lock("journal")
        """Held for a whole commit, I/O and all."""
        self._state = journals.Journal()
        self._damage: FormatError | None = None

    # -- opening -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """At an open, with every partition recovered: finish what was decided, remove what was not.

        An entry that cannot be finished now (a disk is full or offline) stays, and is tried again with the
        next commit; it does not keep the store from opening.
        """
        with self.lock:
            self._load()
            for entry in self.pending:
                try:
                    self._finish(entry, fresh=False)
                except (StratalogError, FileNotFoundError) as error:
                    self._context.warn(f"commit {entry.query}/{entry.batch} is not finished: {error}")
            self._sweep()

    def _load(self) -> None:
        found = []
        for each in self._partitions.dirs.online():
            path = each.file(journals.FILE_NAME)
            with suppress(FileNotFoundError):
                self._context.fs.remove(f"{path}.tmp")
            try:
                found.append(journals.parse(self._context.fs.read_file(path)))
            except FileNotFoundError:
                continue
            except FormatError as error:
                self._context.warn(f"{path}: {error}")
                self._damage = error.at(path) if isinstance(error, CorruptionError) else error
        self._state = journals.newest(found) or journals.Journal()
        if found:
            self._damage = None

    def _save(self, state: journals.Journal) -> None:
        # Counted even when it fails: one of several directories may have it by then.
        self._state = replace(self._state, generation=self._state.generation + 1)
        state = replace(state, generation=self._state.generation)
        data = journals.pack(state)
        online = self._partitions.dirs.online()
        if not online:
            raise LogDirOfflineError("no log directory can be used")
        for each in online:
            self._partitions.settings.mark_dirty(each)
            self._context.fs.write_atomic(each.file(journals.FILE_NAME), data)
        self._state = state

    # -- committing --------------------------------------------------------------------------------------

    def commit(self, entry: Entry, progress: Progress | None = None) -> Committed:
        """Take staged files in, once; durable on return. Raises, and changes nothing, when one is not right.

        An error after the decision (a full disk, a failing one) leaves the commit pending: coming again
        finishes it.
        """
        staging.check_id(entry.query, entry.batch)
        with self.lock:
            if self._damage is not None:
                raise StorageError(
                    f"the finished commits are unknown: {self._damage}; remove the file"
                    f" {journals.FILE_NAME} from every log directory to start over"
                )
            self._finish_others(entry)
            if self._state.has(entry.query, entry.batch):
                self._sweep()
                return Committed(True, 0)
            entry = self._checked(entry)
            if self._state.producer_id < 0:
                fresh_id = FIRST_PRODUCER_ID + secrets.randbelow(FIRST_PRODUCER_ID - 1)
                self._state = replace(self._state, producer_id=fresh_id)
            entry = replace(entry, targets=tuple(self._targets(entry)))
            self._decide(entry)
            left_out = self._finish(entry, fresh=True, progress=progress)
            self._sweep()
            return Committed(False, sum(file.records for file in entry.files) - left_out)

    def _decide(self, entry: Entry) -> None:
        before, after = self._state, self._state.with_pending(entry)
        try:
            self._save(after)
        except StorageError:
            # A directory may have it. Take it back; where that fails too, it counts as decided.
            try:
                self._save(before)
            except StorageError:
                self._state = replace(after, generation=self._state.generation)
            raise

    def _finish_others(self, entry: Entry) -> None:
        """Bring pending entries to their end; an error counts when this entry must not overtake them."""
        wanted = {(file.topic, file.partition) for file in entry.files}
        for pending in self.pending:
            try:
                self._finish(pending, fresh=False)
            except (StratalogError, FileNotFoundError) as error:
                if (pending.query, pending.batch) == (entry.query, entry.batch):
                    raise
                touched = {(file.topic, file.partition) for file in pending.files}
                if pending.query == entry.query or touched & wanted:
                    raise StorageError(
                        f"commit {entry.query}/{entry.batch} waits for {pending.query}/{pending.batch}, which"
                        f" is decided and not finished: {error}"
                    ) from error

    # -- step 1 ------------------------------------------------------------------------------------------

    def _checked(self, entry: Entry) -> Entry:
        """Verify and sync the files of an entry, and decide which of them become segments."""
        fs, directories, files = self._context.fs, set(), []
        for file in entry.files:
            place = staging.check_name(file.name)
            if (place.query, place.batch) != (entry.query, entry.batch) and not place.is_job:
                raise InvalidArgumentError(f"{file.name} was not staged for {entry.query}/{entry.batch}")
            writer = writer_of(self._partitions, file)
            writer.make_usable()
            path = self.path(file)
            if path is None:
                raise NotFoundError(f"{file.name}: nothing is staged under this name any more")
            with fs.open(path, "w") as opened:
                opened.sync()
            plain = self._examine(writer, path, file)
            directories.add(path.rpartition("/")[0])
            files.append(file._replace(whole=file.whole and plain and self._adoptable(writer, path, file)))
        for directory in sorted(directories):
            root = directory.rpartition("/")[0]
            for each in (directory, root, root.rpartition("/")[0] or "/"):
                fs.sync_dir(each)
        return replace(entry, files=tuple(files))

    def _examine(self, writer: PartitionWriter, path: str, file: StagedFile) -> bool:
        """Check everything an append would refuse, while nothing is decided yet.

        Whether the batches can also be taken as they are, in the topic's codec and within one ``segment.ms``.
        """
        config, now = writer.config, self._context.clock.now_ms()
        crc = size = records = 0
        first, plain = None, True
        for data, scan in chunks(self._context.fs, path, file):
            found = data[: scan.end]
            crc, size = kernel.crc32c(found, crc), size + scan.end
            checked = batches.validate(
                bytearray(found), max_bytes=config.max_message_bytes, require_keys=config.compact
            )
            for header in batches.headers(checked):
                writer.admission.check_timestamps(header.min_timestamp, header.max_timestamp, now)
                first = header.max_timestamp if first is None else first
                plain = plain and header.max_timestamp - first <= config.segment_ms
                plain = plain and header.codec == codecs.NAMES.get(config.compression_type, header.codec)
                records += header.count
        if (size, crc, records) != (file.size_bytes, file.crc, file.records):
            raise CorruptionError(
                f"{records} records in {size} bytes with CRC {crc:08x} are staged, {file.records} in"
                f" {file.size_bytes} with {file.crc:08x} were written",
                path=path,
            )
        return plain

    def _adoptable(self, writer: PartitionWriter, path: str, file: StagedFile) -> bool:
        """Return True if plain appends would have made a segment of about these bytes."""
        config = writer.config
        where = self._partitions.place(file.topic, file.partition)[0]
        return (
            not (config.compact or config.log_append_time or config.segment_align_ms > 0)
            and file.records <= config.segment_records
            and 2 * file.size_bytes > config.segment_bytes >= file.size_bytes
            and path.startswith(staging.root_of(where.path) + "/")
        )

    def _targets(self, entry: Entry) -> Iterator[Target]:
        for topic, partition in sorted({(file.topic, file.partition) for file in entry.files}):
            writer = self._partitions.writer(topic, partition)
            yield self.target(writer)

    @property
    def producer_id(self) -> int:
        return self._state.producer_id

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The commits that are decided and not finished."""
        return self._state.pending

    def target(self, writer: PartitionWriter) -> Target:
        """Return where an entry would begin in a partition now."""
        with writer.lock:
            last = writer.producers.last_sequence(self._state.producer_id)
            first = increment_sequence(last, 1) if last >= 0 else 0
            return Target(writer.topic, writer.partition, writer.next_offset, first)

    # -- steps 3 and 4 -------------------------------------------------------------------------------------

    def _finish(self, entry: Entry, *, fresh: bool, progress: Progress | None = None) -> int:
        """Roll an entry forward to its end; how many records were left out because their topic is gone.

        ``fresh``: nothing of it can be in the log yet.
        """
        work = RollForward(self, self._partitions, entry, fresh=fresh, progress=progress)
        for writer, end in work.run():
            writer.acknowledge(end, True)
        self._save(self._state.with_done(work.entry, self._context.clock.now_ms()))
        return work.left_out

    def decide_anew(self, entry: Entry) -> None:
        """Write down what is left of a decided entry, durably."""
        self._save(self._state.with_pending(entry))

    def path(self, file: StagedFile) -> str | None:
        """Return where a staged file lies; None when it is gone."""
        for each in self._partitions.dirs.online():
            path = f"{staging.root_of(each.path)}/{file.name}"
            if self._context.fs.exists(path):
                return path
        return None

    # -- step 5 ------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        kept = {staging.check_name(file.name).name for entry in self.pending for file in entry.files}
        roots = [each.path for each in self._partitions.dirs.online()]
        staging.sweep(self._context, roots, self._state.has, kept)


APPEND_BYTES = 1 << 20

_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1


def writer_of(partitions: Partitions, file: StagedFile) -> PartitionWriter:
    """Return the partition that a file was staged for; NotFoundError if it or its topic was deleted."""
    writer = partitions.writer(file.topic, file.partition)
    meant, there = staging.topic_id(file.name), partitions.entry(file.topic).id
    if meant is not None and there is not None and meant != there:
        raise UnknownTopicError(
            f"topic {file.topic!r} was deleted and created again since {file.name} was staged"
        )
    return writer


def chunks(fs: FileSystem, path: str, file: StagedFile) -> Iterator[tuple[memoryview, Scan]]:
    """Yield the batches of a staged file; CorruptionError if a CRC is wrong or other bytes follow."""
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
        self,
        journal: Journal,
        partitions: Partitions,
        entry: Entry,
        *,
        fresh: bool,
        progress: Progress | None,
    ) -> None:
        self._journal = journal
        self._partitions = partitions
        self._context = partitions.context
        self._fresh = fresh
        self._progress = progress
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
            if self._progress is not None:
                self._progress("commit", self._done, self._total)

    # -- appending ---------------------------------------------------------------------------------------

    def _already(self, writer: PartitionWriter, target: Target, total: int) -> int:
        """Return how many appended records of the entry the partition has: they are there in order."""
        last = [writer.producers.last_sequence(self._journal.producer_id)]
        last += self._sequences(writer, target.base_offset)
        counts = ((each - target.first_sequence & MAX_SEQUENCE) + 1 for each in last if each >= 0)
        return max((count for count in counts if count <= total), default=0)

    def _sequences(self, writer: PartitionWriter, base_offset: int) -> Iterator[int]:
        """Return the last sequences of our batches from an offset on, as the headers in the log say."""
        segments, ours = writer.local_segments(), self._journal.producer_id
        for segment in segments[segment_index(segments, base_offset) :]:
            start = segment.start_for(base_offset).position
            with segment.open_log() as file:
                for _, _, scan in scan_file(file, start, segment.size):
                    for header in scan if scan.has_producers else ():
                        if header.producer_id == ours and header.base_offset >= base_offset:
                            yield header.last_sequence

    def _renewed(self, writer: PartitionWriter, target: Target, there: int) -> Target:
        """Begin anew where a crash took the end of the log, and with it what the entry went by."""
        if there:
            return target
        now = self._journal.target(writer)
        now = now._replace(base_offset=min(now.base_offset, target.base_offset))
        if now == target:
            return target
        targets = tuple(now if each == target else each for each in self.entry.targets)
        self._decide_anew(replace(self.entry, targets=targets))
        return now

    def _append(self, writer: PartitionWriter, file: StagedFile, sequence: int, there: int) -> None:
        """Append the batches of a file without its first ``there`` records."""
        path = self._journal.path(file)
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
                    set_producer(batch, self._journal.producer_id, 0, increment_sequence(sequence, first))
        if buffer:
            produce.append_batches(admitted, buffer)

    # -- adopting ----------------------------------------------------------------------------------------

    def _adopt(self, writer: PartitionWriter, target: Target, file: StagedFile) -> bool:
        """Make a segment of a file; False when this disk cannot, and it must be appended instead.

        It then leaves the entry: what retention, compaction or the archive do to the segment before the
        rest is in must not make it look as if it were missing.
        """
        path = self._journal.path(file)
        if path is None:
            self._find_adopted(writer, target, file)
        else:
            try:
                self._adopted.add((target.topic, target.partition, adopt(writer, path)))
            except StorageError as error:
                if not has_errno(error, {errno.EXDEV}):
                    raise
                demoted = (each._replace(whole=False) if each == file else each for each in self.entry.files)
                self._decide_anew(replace(self.entry, files=tuple(demoted)))
                return False
        self._decide_anew(replace(self.entry, files=tuple(each for each in self.entry.files if each != file)))
        return True

    def _find_adopted(self, writer: PartitionWriter, target: Target, file: StagedFile) -> None:
        """Find the segment that a staged file became, by a rename before a crash."""
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
        self._journal.decide_anew(entry)

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
