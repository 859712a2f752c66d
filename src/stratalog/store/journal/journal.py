"""Staged commits taken in exactly once: decided by one durable write, rolled forward until they are done.

    1  the staged files are checked (size, CRC-32C, topics) and made durable
    2  the entry goes to `stratalog.journal` in every log directory: from here on the commit happens
    3  file by file, in order: batches join the active segment, a file as large as a segment becomes one
    4  every partition is synced; the entry leaves the journal, its id stays there
    5  what was staged for it, and whatever nobody will commit any more, is removed

A crash before 2 leaves the log as it was. After 2 the next open, or the next commit, does what is left; a
commit that comes again, with whatever staged files, is then a no-op.

**What is in the log already** after a crash in 3 is read off the log itself, not off a position written
beside it: such a position is late or early by the very append that the crash cut short, and other producers
append in between. Batches that are appended carry this store's own producer id, and sequences that go on
from the last it used in the partition; both are inside the batch's CRC, so they are there exactly when
the records are. The entry says at which offset and sequence each partition begins. What of it is found
from there on is skipped (and the producer state is asked too: compaction keeps each producer's last batch).
Unlike a comparison of log end offsets this needs no lock over the whole entry, and holds when a power cut
took the tail of the log, or offsets were skipped because readers had seen them. A producer id for each query
would do as well but leave one behind for every query that ever was. A file that becomes a segment needs no
mark: once renamed it is gone from the staging directory, in one step, and a segment of its size is there.

One entry at a time: a partition that a pending entry still waits for takes no new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from stratalog import kernel, locks
from stratalog.errors import (
    CorruptionError,
    FormatError,
    InvalidArgumentError,
    LogDirOfflineError,
    NotFoundError,
    StorageError,
    StratalogError,
)
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format import journal as journals
from stratalog.format.journal import Entry, StagedFile, Target
from stratalog.log.write.producers import increment_sequence
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.journal import staging
from stratalog.store.journal.roll_forward import RollForward, Told, chunks, writer_of
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
        self._lock = locks.lock("journal")
        self._state = journals.Journal()
        self._damage: FormatError | None = None

    # -- opening -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """At an open, with every partition recovered: finish what was decided, remove what was not.

        An entry that cannot be finished now (a disk is full or offline) stays, and is tried again with the
        next commit; it does not keep the store from opening.
        """
        with self._lock:
            self._load()
            for entry in self._state.pending:
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

    def commit(self, entry: Entry, told: Told | None = None) -> Committed:
        """Take staged files in, once; durable on return. Raises, and changes nothing, when one is not right.

        An error after the decision (a full disk, a failing one) leaves the commit pending: coming again
        finishes it.
        """
        staging.check_id(entry.query, entry.batch)
        with self._lock:
            if self._damage is not None:
                raise StorageError(
                    f"which commits were taken in is not known: {self._damage}; remove the file"
                    f" {journals.FILE_NAME} from every log directory to begin anew"
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
            left_out = self._finish(entry, fresh=True, told=told)
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
        for pending in self._state.pending:
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
        """The entry with its files verified and durable; which of them become segments is settled here."""
        fs, directories, files = self._context.fs, set(), []
        for file in entry.files:
            place = staging.check_name(file.name)
            if (place.query, place.batch) != (entry.query, entry.batch):
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
        """Whether plain appends would have made a segment of about these bytes."""
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

    def target(self, writer: PartitionWriter) -> Target:
        """Where an entry would begin in a partition now."""
        with writer.lock:
            last = writer.producers.last_sequence(self._state.producer_id)
            first = increment_sequence(last, 1) if last >= 0 else 0
            return Target(writer.topic, writer.partition, writer.next_offset, first)

    # -- steps 3 and 4 -------------------------------------------------------------------------------------

    def _finish(self, entry: Entry, *, fresh: bool, told: Told | None = None) -> int:
        """Roll an entry forward to its end; how many records were left out because their topic is gone.

        ``fresh``: nothing of it can be in the log yet.
        """
        work = RollForward(self, self._partitions, entry, fresh=fresh, told=told)
        for writer, end in work.run():
            writer.acknowledge(end, True)
        self._save(self._state.with_done(work.entry, self._context.clock.now_ms()))
        return work.left_out

    def decide_anew(self, entry: Entry) -> None:
        """Write down what is left of a decided entry, durably."""
        self._save(self._state.with_pending(entry))

    def path(self, file: StagedFile) -> str | None:
        """Where a staged file lies: whoever staged it may know the log directory by another name."""
        for each in self._partitions.dirs.online():
            path = f"{staging.root_of(each.path)}/{file.name}"
            if self._context.fs.exists(path):
                return path
        return None

    # -- step 5 ------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        kept = {staging.check_name(file.name).name for entry in self._state.pending for file in entry.files}
        roots = [each.path for each in self._partitions.dirs.online()]
        staging.sweep(self._context, roots, self._state.has, kept)
