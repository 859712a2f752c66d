"""``materialize``: the latest value of every key, as of an offset or a time, as a Delta table.

    materialize(spark, path="/var/lib/stratalog", topic="users", output="/lake/users")
    DeltaTable("/lake/users").to_pyarrow_table()

The table has one row for each key that has a value; tombstones remove theirs, and records that were not
committed do not count. A run reads only what came since the last one: executors reduce each partition to the
latest record of every key, and the driver merges these changes into the table by Delta's own merge. The end
offset of each partition is an application transaction of the same commit, so a run that dies changed nothing
or everything, and of two runs at once one commits and the other starts over.

A key that lies in several partitions, because the topic was given more of them or a producer chose them, has
one row: a record replaces a row of its own partition, and one of another partition when its timestamp is
greater, or equal and its partition is the higher one. A tombstone is not remembered: a record that a later
run reads brings the key back.

What retention deletes from the log stays in the table. ``full=True`` makes the table from the log as it is
now; so does a run that cannot go on from the last one (it ends before it, or came after compaction removed
tombstones).
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.config.units import format_duration_ms
from stratalog.errors import ConfigError, FormatError, OffsetOutOfRangeError
from stratalog.format import batch as batches
from stratalog.format.batch import Scan
from stratalog.format.batch.arrow import decode_arrow, schema_for
from stratalog.format.batch.filter import DISCARD, build, filter_batches
from stratalog.format.metadata import text_to_id
from stratalog.format.txn_index import AbortedTxn
from stratalog.kernel import KeyMap
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.chunks import FULL_CHUNK, Chunk
from stratalog.log.read.reader import Isolation, LogView, aborted_rows, check_isolation, iter_chunks
from stratalog.log.segment.segment import Segment
from stratalog.spark.logs import Logs, opened
from stratalog.spark.options import Where
from stratalog.spark.pipelines import PipelineResult, Progress
from stratalog.spark.pipelines.executors import (
    Moment,
    Path,
    attempt_name,
    moment_ms,
    slots,
    spread,
    watched,
    where_of,
)
from stratalog.spark.pipelines.lake import delta
from stratalog.spark.pipelines.lake.files import FileWriter, Place, WrittenFile, disk_errors, place_of
from stratalog.spark.pipelines.lake.tables import ConflictError, Log, log_of
from stratalog.spark.planning import Losses
from stratalog.store.store import open_store

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
MEMORY_BYTES = 256 << 20
SMALLEST_MEMORY_BYTES = 1 << 16
BUCKET_BYTES = 512 << 20
MOST_BUCKETS = 64
TRIES = 5
"""How often a run that lost a race starts over."""
CHANGES = "_changes"
"""Below the output: what a run has reduced, until it is merged."""
FORGOTTEN_MS = 86_400_000
"""Changes that a dead run left are removed after this time; another run may be at work."""
TOPIC, UNCOMMITTED, JOINED = (f"{delta.APP}:{name}" for name in ("topic", "read_uncommitted", "joined"))
"""Application transactions of every commit: which topic the table is of, whether it was read uncommitted, and
whether keys were found in other partitions than the Java client would choose."""
NEWER = (
    "(s.partition = t.partition or s.timestamp > t.timestamp"
    " or (s.timestamp = t.timestamp and s.partition > t.partition))"
)
"""When a change ``s`` counts for a row ``t`` of its key."""


def materialize(
    spark: SparkSession,
    *,
    path: Path = None,
    archive: str | None = None,
    topic: str,
    output: str,
    as_of_offset: int | Mapping[int, int] | None = None,
    as_of_time: Moment = None,
    isolation: Isolation = "read_committed",
    headers: bool = False,
    full: bool = False,
    fail_on_data_loss: bool = True,
    memory_bytes: int = MEMORY_BYTES,
    compression: str = "zstd",
    progress: Progress | None = None,
) -> PipelineResult:
    """Bring the Delta table at ``output`` up to date.

    ``as_of_offset`` is the first offset not to take, for each partition; ``as_of_time`` (ISO, ``-10m``, epoch
    ms) stands for the first offset at that time or later, as ``endingTimestamp`` does. ``headers`` adds a
    column with the records' headers. ``memory_bytes`` is the memory of a task for keys; with more keys it
    takes more steps.
    """
    began = time.monotonic()
    if memory_bytes < SMALLEST_MEMORY_BYTES:
        raise ConfigError(f"memory_bytes={memory_bytes}: expected {SMALLEST_MEMORY_BYTES} or more")
    if as_of_offset is not None and as_of_time is not None:
        raise ConfigError("as_of_offset and as_of_time: pass only one of them")
    now_ms = time.time_ns() // 1_000_000
    as_of_ms = moment_ms(as_of_time, "as_of_time", now_ms)
    wanted = Wanted(
        where_of(path, archive), topic, check_isolation(isolation), headers, memory_bytes, compression,
        fail_on_data_loss,
    )  # fmt: skip
    place = place_of(output)
    for left in reversed(range(TRIES)):
        with opened(wanted.where) as logs:
            now = look(logs, wanted, as_of_offset, as_of_ms, now_ms)
        run = _Run(spark, wanted, place, now)
        try:
            with watched(spark, progress, "materialize"):
                run.run(full)
            break
        except ConflictError:
            if not left:
                raise
        finally:
            run.clean()
    return run.result(time.monotonic() - began)


def read(spark: SparkSession, output: str) -> DataFrame:
    """Read the newest version of the table with Spark, where its executors see the files."""
    place = place_of(output)
    table = delta.open_table(place.url)
    if table is None:
        raise ConfigError(f"output={output}: there is no materialized table; run `materialize` first")
    names = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
    if "headers" in _names(table):
        names += ", headers array<struct<key: string, value: binary>>"
    files = table.file_uris()
    return spark.read.schema(names).parquet(*files) if files else spark.createDataFrame([], names)


@dataclass(frozen=True)
class Wanted:
    """The caller's options. Picklable."""

    where: Where
    topic: str
    isolation: Isolation
    headers: bool
    memory_bytes: int
    compression: str
    fail_on_data_loss: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COLUMNS, "headers") if self.headers else COLUMNS


# -- what the log has --------------------------------------------------------------------------------
#
# Where each partition begins and ends for a run. Reads sidecars and what a time lookup needs; decodes no
# record.


@dataclass(frozen=True)
class Looked:
    """One partition at the beginning of a run."""

    log: Log
    start: int
    end: int
    whole: bool
    """The end is that of the log."""
    size_bytes: int
    cleaned: tuple[tuple[int, int], ...]
    """Offsets of segments that compaction may have rewritten."""

    def why_again(self, read_end: int, read_ms: int, now: Now) -> str:
        """Return why the offsets from ``read_end`` on are not enough; empty if they are.

        ``read_ms`` is when an earlier run had read everything up to there, 0 if the log went on then.
        """
        if self.end < read_end:
            return f"it is to end at offset {self.end}, the last result ends at {read_end}"
        late_ms = now.now_ms - read_ms
        touched = any(start < self.end and read_end < end for start, end in self.cleaned)
        if touched and late_ms >= now.delete_retention_ms:
            if not read_ms:
                return "the last result ended inside the log, where compaction has been since"
            return (
                f"compaction may have removed tombstones since the last run {format_duration_ms(late_ms)}"
                f" ago (delete.retention.ms is {format_duration_ms(now.delete_retention_ms)})"
            )
        return ""


@dataclass(frozen=True)
class Now:
    """A topic at the beginning of a run."""

    delete_retention_ms: int
    now_ms: int
    partitions: dict[int, Looked]
    notes: tuple[str, ...]


def look(
    logs: Logs, wanted: Wanted, as_of: int | Mapping[int, int] | None, as_of_ms: int | None, now_ms: int
) -> Now:
    """Look at the topic, up to where it is wanted; raise ConfigError if that is not possible."""
    topic, numbers = wanted.topic, logs.partitions(wanted.topic)
    offsets = _offsets(topic, as_of, numbers)
    found, notes = {}, []
    for number in numbers:
        view = logs.view(topic, number)
        view.refresh()
        upto = offsets.get(number)
        if as_of_ms is not None:
            upto = logs.offset_for_time(topic, number, as_of_ms, wanted.isolation)
        looked = found[number] = _look(view, wanted.isolation, upto)
        later = max((end for _, end in looked.cleaned), default=0)
        if upto is not None and later > looked.end:
            notes.append(
                f"{topic}-{number}: compaction has gone past offset {looked.end}: keys that came again"
                f" between it and {later} are missing as of then"
            )
    retention_ms = TopicConfig().delete_retention_ms
    if wanted.where.paths:
        with open_store(list(wanted.where.paths), read_only=True) as store:
            if topic in store.topics():
                retention_ms = store.topic(topic).config.delete_retention_ms
    return Now(retention_ms, now_ms, found, tuple(notes))


def _offsets(topic: str, as_of: int | Mapping[int, int] | None, numbers: Sequence[int]) -> dict[int, int]:
    if as_of is None:
        return {}
    if isinstance(as_of, int):
        if len(numbers) != 1:
            raise ConfigError(
                f"as_of_offset={as_of}: {topic} has {len(numbers)} partitions; pass an offset for each:"
                ' {"0": 100, "1": 200}'
            )
        return {numbers[0]: as_of}
    try:
        offsets = {int(number): int(offset) for number, offset in as_of.items()}
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"as_of_offset={as_of!r}: expected an offset, or one for each partition") from None
    for number in offsets:
        if number not in numbers:
            raise ConfigError(f"as_of_offset: {topic} has no partition {number}, only {numbers}")
    return offsets


def _look(view: LogView, isolation: Isolation, upto: int | None) -> Looked:
    start = view.log_start_offset
    end = last = max(view.end_offset(isolation), start)
    if upto is not None:
        if not start <= upto <= end:
            raise OffsetOutOfRangeError(
                f"{view.topic}-{view.partition}: as of offset {upto} is out of range: the log holds offsets"
                f" {start} to {end - 1}",
                offset=upto,
                first=start,
                end=end,
            )
        end = upto
    segments = view.segments()
    cleaned = tuple(
        (each.base_offset, each.next_offset or each.base_offset)
        for each in segments
        if not each.is_active and _may_be_cleaned(each)
    )
    return Looked(log_of(view), start, end, end == last, sum(each.size for each in segments), cleaned)


def _may_be_cleaned(segment: Segment) -> bool:
    """Return True if compaction may have rewritten the segment; without a seal that is unknown."""
    if isinstance(segment, ArchivedSegment):
        return segment.source.cleaned
    try:
        seal = segment.seal
    except (FormatError, FileNotFoundError):
        return True
    return seal is None or seal.cleaned


# -- the run -----------------------------------------------------------------------------------------


@dataclass
class _Run:
    """One attempt to bring the table up to date."""

    spark: SparkSession
    wanted: Wanted
    place: Place
    now: Now
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    reduced: Sequence[Reduced] = ()
    changed: frozenset[int] = frozenset()
    joined: bool = False

    def __post_init__(self) -> None:
        self.notes = list(self.now.notes)
        self.table = delta.open_table(self.place.url)

    def run(self, full: bool) -> None:
        """Read what is new and commit it; raise ConflictError when another run was first."""
        ends = self._check(full)
        why = "" if full or self.table is None else self._why_again(ends)
        if why:
            self.notes.append(f"everything is read again: {why}")
        if self.table is None:
            self._create()
        if full or why or not ends:
            self._rebuild()
        elif self._due(ends):
            self._merge(ends)

    # -- the table as it is --------------------------------------------------------------------------

    def _version(self, name: str) -> int | None:
        return None if self.table is None else self.table.transaction_version(name)

    @property
    def _mark(self) -> int:
        """A number that tells this topic from others, also from a deleted one of its name."""
        topic_id = next(iter(self.now.partitions.values())).log.topic_id
        return text_to_id(topic_id).int >> 65 if topic_id else zlib.crc32(self.wanted.topic.encode())

    def _check(self, full: bool) -> dict[int, int]:
        """Return the end offset of each partition that the table holds; raise if it is another table."""
        if self.table is None:
            return {}
        mark = self._version(TOPIC)
        if mark is None and self.table.version() > 0:
            raise ConfigError(
                f"output={self.place.url}: it is another Delta table; pass a directory of its own"
            )
        if mark is not None and mark != self._mark and not full:
            raise ConfigError(
                f"output={self.place.url} is the table of another topic, or of a deleted one of the name"
                f" {self.wanted.topic}; pass another output, or full=True (--full) to begin anew"
            )
        if mark != self._mark:
            return {}
        found = {n: self._version(_end_of(looked)) for n, looked in self.now.partitions.items()}
        return {number: end for number, end in found.items() if end is not None}

    def _read_ms(self, looked: Looked) -> int:
        return self._version(f"{_end_of(looked)}:read_ms") or 0

    def _why_again(self, ends: Mapping[int, int]) -> str:
        """Return why the table cannot be brought up to date from its ends; empty if it can."""
        if not ends:
            return ""
        if self._version(UNCOMMITTED) != int(self.wanted.isolation == "read_uncommitted"):
            return "the last result was read with another isolation"
        assert self.table is not None
        if self.wanted.headers and "headers" not in _names(self.table):
            return "the last result has no headers"
        for number, end in ends.items():
            looked = self.now.partitions[number]
            if why := looked.why_again(end, self._read_ms(looked), self.now):
                return f"{self.wanted.topic}-{number}: {why}"
        return ""

    def _due(self, ends: Mapping[int, int]) -> bool:
        """Return True if there is work, also if only an empty result must be recorded in time."""
        stale_ms = self.now.now_ms - self.now.delete_retention_ms // 4
        return any(
            ends.get(number) != looked.end or (looked.whole and self._read_ms(looked) < stale_ms)
            for number, looked in self.now.partitions.items()
        )

    def _commit(self) -> CommitProperties:
        joined = self.joined or self._version(JOINED) == 1
        uncommitted = self.wanted.isolation == "read_uncommitted"
        versions = {TOPIC: self._mark, UNCOMMITTED: int(uncommitted), JOINED: int(joined)}
        for looked in self.now.partitions.values():
            versions[_end_of(looked)] = looked.end
            versions[f"{_end_of(looked)}:read_ms"] = self.now.now_ms if looked.whole else 0
        return delta.properties(self.id, versions)

    # -- work on the executors -----------------------------------------------------------------------

    def _reduce(self, starts: Mapping[int, int], *, live: bool) -> list[WrittenFile]:
        """Reduce what lies behind ``starts`` to one row a key; ``live``: only rows with a value, as files of
        the table, else changes to merge."""
        partitions = self.now.partitions
        ranges = [
            Range(number, starts.get(number, looked.start), looked.end, number in starts)
            for number, looked in partitions.items()
            if starts.get(number, looked.start) < looked.end
        ]
        ranges.sort(key=lambda part: part.start - part.end)  # the longest first
        self.changed = frozenset(part.partition for part in ranges)
        changes = Output(self.place, f"{CHANGES}/{self.id}/", self.wanted.compression, tombstones=True)
        last = replace(changes, prefix=f"{self.id}-", tombstones=False) if live else changes
        if self._version(JOINED) != 1:
            self.reduced = spread(self.spark, ranges, Reducing(self.wanted, last, len(partitions), 1))
            files = [file for each in self.reduced for file in each.files]
            if not any(each.misplaced for each in self.reduced):
                return files
            self.place.remove([file.name for file in files])
            self.joined = True
        size = sum(looked.size_bytes for looked in partitions.values())
        buckets = min(MOST_BUCKETS, max(slots(self.spark), -(-size // BUCKET_BYTES)))
        self.reduced = spread(self.spark, ranges, Reducing(self.wanted, changes, 0, buckets))
        names: dict[int, list[str]] = {}
        for file in (file for each in self.reduced for file in each.files):
            names.setdefault(file.key, []).append(file.name)
        return [file for each in spread(self.spark, sorted(names.items()), Joining(last)) for file in each]

    # -- commits -------------------------------------------------------------------------------------

    def _create(self) -> None:
        from deltalake import DeltaTable

        with delta.delta_errors(self.place.url):
            self.table = DeltaTable.create(
                self.place.url,
                schema_for(self.wanted.columns),
                mode="ignore",
                storage_options=delta.storage_options(self.place.url),
            )
        delta.sync_log(self.place.url, 0)

    def _rebuild(self) -> None:
        """Replace all files of the table by those that the executors wrote, in one commit."""
        from deltalake import Schema

        assert self.table is not None
        table, now_ms = self.table, time.time_ns() // 1_000_000
        if self.wanted.headers and "headers" not in _names(table):
            with delta.delta_errors(self.place.url):
                table.alter.add_columns(Schema.from_arrow(schema_for(("headers",))).fields)
        try:
            files = self._reduce({}, live=True)
        except Exception:
            with suppress(Exception):  # what stays belongs to no version
                self.place.remove([i.key for i in self.place.list("") if i.key.startswith(f"{self.id}-")])
            raise
        actions = [delta.added(file, {}, now_ms) for file in files]
        try:
            with delta.delta_errors(self.place.url):
                table.create_write_transaction(
                    actions, "overwrite", table.schema(), commit_properties=self._commit()
                )
        except Exception as error:
            if delta.made_by(table, self.id) is None:
                if isinstance(error, ConflictError):
                    self.place.remove([file.name for file in files])
                raise
        self._durable()

    def _merge(self, ends: Mapping[int, int]) -> None:
        """Merge what is new since ``ends`` into the table by its own merge."""
        assert self.table is not None
        table = self.table
        files = self._reduce(ends, live=False)
        schema = schema_for(self.wanted.columns)
        changes = (rows.cast(schema) for file in files for rows in rows_of(self.place, file.name))
        row = {name: f"s.{name}" for name in self.wanted.columns}
        before = table.version()
        try:
            with delta.delta_errors(self.place.url):
                if files:
                    (
                        table.merge(
                            pa.RecordBatchReader.from_batches(schema, changes),
                            "t.key = s.key",
                            source_alias="s",
                            target_alias="t",
                            writer_properties=delta.writer_properties(self.wanted.compression),
                            commit_properties=self._commit(),
                        )
                        .when_matched_delete(f"s.value is null and {NEWER}")
                        .when_matched_update(row, NEWER)
                        .when_not_matched_insert(row, "s.value is not null")
                        .execute()
                    )
                if table.version() == before:  # no row changed, which a merge does not commit
                    table.create_write_transaction(
                        [], "append", table.schema(), commit_properties=self._commit()
                    )
        except Exception:
            if delta.made_by(table, self.id) is None:
                raise
        self._durable()

    def _durable(self) -> None:
        assert self.table is not None
        version = delta.made_by(self.table, self.id)
        assert version is not None
        delta.sync_log(self.place.url, version)
        with delta.delta_errors(self.place.url):
            self.table.vacuum(dry_run=False)  # what no version within the table's retention needs

    def clean(self) -> None:
        """Remove the changes of this run, and those that dead runs left."""
        old_ms = self.now.now_ms - FORGOTTEN_MS
        with suppress(Exception):  # what stays belongs to no version
            self.place.remove(
                [
                    info.key
                    for info in self.place.list(f"{CHANGES}/")
                    if f"/{self.id}/" in info.key or info.modified_ms < old_ms
                ]
            )

    def result(self, seconds: float) -> PipelineResult:
        vanished = sum(each.vanished for each in self.reduced)
        if vanished:
            self.notes.append(
                f"{vanished} keys came again and were compacted while this ran; the next run brings them"
                " up to date"
            )
        assert self.table is not None
        self.table.update_incremental()
        files = pa.table(self.table.get_add_actions(flatten=True))
        counts = {
            "records": sum(each.records for each in self.reduced),
            "tombstones": sum(each.tombstones for each in self.reduced),
            "keys": pc.sum(files["num_records"]).as_py() or 0,
            "files": files.num_rows,
            "bytes": pc.sum(files["size_bytes"]).as_py() or 0,
        }
        details: dict[str, object] = {
            "output": self.place.url,
            "version": self.table.version(),
            "partitions": {
                str(number): {"end": looked.end, "changed": number in self.changed}
                for number, looked in self.now.partitions.items()
            },
        }
        return PipelineResult("materialize", counts, details, tuple(self.notes), seconds=seconds)


def _end_of(looked: Looked) -> str:
    return delta.application(looked.log.key)


def _names(table: DeltaTable) -> set[str]:
    return {field.name for field in table.schema().fields}


# -- the latest record of every key ------------------------------------------------------------------
#
# First task, a partition each (`Reducing`): the kernel collects the latest offset of every key of a range
# (`KeyMap`), then the range is read again and of each key only that record is decoded to Arrow. Memory is
# bounded: where the keys do not fit, the range is done in several steps. A partition's own latest record of a
# key is the one with the highest offset.
#
# Second task, where a key may lie in several partitions (`Joining`): rows are split by the hash of their key,
# and of each key the row with the greatest timestamp is kept, of equal ones that of the highest partition. A
# tombstone counts like any other row.
#
# Every attempt writes files of its own names; only what the driver commits counts.


FILE_BYTES = 128 << 20
READ_ROWS = 1 << 16


@dataclass(frozen=True)
class Output:
    """Where and how rows are written; travels to the executors."""

    place: Place
    prefix: str
    compression: str
    tombstones: bool
    """True if rows without a value are kept."""

    def writer(self, name: str) -> FileWriter:
        """Return the writer of one attempt, with a file for each bucket."""
        prefix = f"{self.prefix}{name}-{attempt_name()}"
        return FileWriter(
            self.place, lambda bucket, number: f"{prefix}-{number:05d}.parquet", self.compression, FILE_BYTES
        )


def rows_of(place: Place, name: str) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file, some at a time."""
    with pq.ParquetFile(place.reading(name)) as file:
        yield from file.iter_batches(READ_ROWS)


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int
    incremental: bool
    """True if an earlier run read up to ``start``: then nothing may be missing from there on."""


@dataclass(frozen=True)
class Reduced:
    """The result of a range."""

    files: tuple[WrittenFile, ...]
    records: int
    tombstones: int
    vanished: int
    """Keys whose record compaction removed while this ran."""
    misplaced: bool = False
    """A key is where the Java client would not have put it: it may be in another partition, too."""


@dataclass(frozen=True)
class Reducing:
    """The first task; travels to the executors."""

    wanted: Wanted
    output: Output
    partitions: int
    """Of the topic, to find misplaced keys; 0 if that does not matter."""
    buckets: int

    def __call__(self, part: Range) -> Reduced:
        wanted = self.wanted
        with opened(wanted.where) as logs, disk_errors(self.output.place.url):
            view = logs.view(wanted.topic, part.partition)
            view.refresh()
            first = view.log_start_offset
            start = part.start if part.incremental else max(part.start, first)
            start, end = Losses(wanted.fail_on_data_loss).within(
                (wanted.topic, part.partition), start, part.end, first, view.end_offset(wanted.isolation)
            )
            return _Reducing(self, replace(part, start=start, end=end), view).run()


class _Reducing:
    """One attempt."""

    def __init__(self, job: Reducing, part: Range, view: LogView) -> None:
        self._job = job
        self._wanted = job.wanted
        self._part = part
        self._place = job.output.place
        self._view = view
        self._steps = 0
        self._records = self._tombstones = self._vanished = 0
        self._misplaced = False

    def run(self) -> Reduced:
        end, start = self._part.end, self._part.start
        made: tuple[WrittenFile, ...] = ()
        while True:
            room = min(self._wanted.memory_bytes, KeyMap.memory_for(max(end - start, 1)))
            keys = KeyMap(max(room, 64), start)
            committed = self._wanted.isolation == "read_committed"
            aborted = self._view.aborted(start, end) if committed else []
            upto = self._collect(keys, start, aborted)
            before, made = made, self._write(keys, start, upto, aborted, made)
            self._place.remove(each.name for each in before)
            if upto >= end:
                break
            start = upto
        return Reduced(made, self._records, self._tombstones, self._vanished, self._misplaced)

    def _chunks(self, start: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """Yield chunks with the offsets [lo, hi) that are wanted of each, none twice."""
        at = start
        # A table made anew holds what the log holds; one that goes on must not miss an offset.
        may_pass = not (self._part.incremental and self._wanted.fail_on_data_loss)
        chunks = iter_chunks(self._view, start, end, first_size=FULL_CHUNK, pass_deleted=may_pass)
        for _, chunk, limit in chunks:
            hi = min(limit, end)
            if at < hi:
                yield chunk, at, hi
            at = max(at, min(chunk.scan.last_offset + 1, hi))

    # -- the keys ------------------------------------------------------------------------------------

    def _collect(self, keys: KeyMap, start: int, aborted: list[AbortedTxn]) -> int:
        """Fill the map from ``start`` on; return the offset up to which it has every key."""
        end = self._part.end
        for chunk, lo, hi in self._chunks(start, end):
            scan = chunk.scan
            first, last = scan.find_offset(lo), scan.find_offset(hi)
            skip = _mask(scan, aborted, 1)
            if build(keys, chunk.data, scan, first, last, skip=skip, lo=lo) < last:
                return self._covered(keys.latest_offset + 1, start)
            if last < scan.n and (header := scan.header(last)).base_offset < hi:
                # The batch that holds the end: some of its records count.
                rows = batches.decode_records(
                    chunk.data, scan, last, last + 1, topic="", partition=0,
                    bounds=batches.Bounds(lo, hi), skip=aborted_rows(scan, aborted),
                )  # fmt: skip
                if not all(keys.add(each.key, each.offset or 0) for each in rows if each.key is not None):
                    return self._covered(max(header.base_offset, lo), start)
        keys.latest_offset = max(keys.latest_offset, end - 1)
        return end

    def _covered(self, upto: int, start: int) -> int:
        if upto <= start:
            raise ConfigError(
                f"memory_bytes={self._wanted.memory_bytes} is too little for the batch at offset {start} of"
                f" {self._wanted.topic}-{self._part.partition}; pass more"
            )
        return upto

    # -- the rows ------------------------------------------------------------------------------------

    def _write(
        self, keys: KeyMap, start: int, upto: int, aborted: list[AbortedTxn], before: Sequence[WrittenFile]
    ) -> tuple[WrittenFile, ...]:
        """Write the rows of a step, and those of the steps before whose key did not come again."""
        job = self._job
        self._steps += 1
        out = job.output.writer(f"{self._part.partition:05d}-{self._steps}")
        for file in before:
            for rows in rows_of(self._place, file.name):
                out.add(file.key, _without(rows, keys))
        found = 0
        for rows in self._latest(keys, start, upto, aborted):
            found += rows.num_rows
            self._check_places(rows)
            dead = rows.column("value").null_count
            self._tombstones += dead
            if dead and not job.output.tombstones:
                rows = rows.filter(pc.is_valid(rows.column("value")))
            for bucket, part in split(rows, job.buckets):
                out.add(bucket, part)
        self._vanished += max(0, len(keys) - found)
        return out.finish()

    def _check_places(self, rows: pa.RecordBatch) -> None:
        count, ours = self._job.partitions, self._part.partition
        if count > 1 and not self._misplaced:
            place = kernel.partition_for_key
            self._misplaced = any(place(key, count) != ours for key in rows.column("key").to_pylist())

    def _latest(
        self, keys: KeyMap, start: int, upto: int, aborted: list[AbortedTxn]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the record of every key that the map has as its latest."""
        for chunk, lo, hi in self._chunks(start, upto):
            scan = chunk.scan
            first, last = scan.find_offset(lo), scan.find_offset(hi)
            if last < scan.n and scan.header(last).base_offset < hi:
                last += 1
            made = filter_batches(
                chunk.data,
                scan,
                first,
                last,
                keys=keys,
                retention=_mask(scan, aborted, DISCARD),
                recompress=False,
            )
            self._records += made.records_in
            yield from decode_arrow(
                made.data,
                made.scan,
                columns=self._wanted.columns,
                topic=self._wanted.topic,
                partition=self._part.partition,
                bounds=batches.Bounds(lo, hi),
            )


def _mask(scan: Scan, aborted: list[AbortedTxn], mark: int) -> bytearray | None:
    rows = aborted_rows(scan, aborted)
    if rows is None:
        return None
    mask = bytearray(scan.n)
    for row in rows:
        mask[row] = mark
    return mask


def _without(rows: pa.RecordBatch, keys: KeyMap) -> pa.RecordBatch:
    """Return the rows whose key is not in the map."""
    get = keys.get
    return rows.filter(pa.array([get(key) is None for key in rows.column("key").to_pylist()], pa.bool_()))


def split(rows: pa.RecordBatch, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split rows by the bucket of their key."""
    if buckets == 1:
        yield 0, rows
        return
    of = pa.array([kernel.hash64(key) % buckets for key in rows.column("key").to_pylist()], pa.int32())
    for bucket in pc.unique(of).to_pylist():
        yield bucket, rows.filter(pc.equal(of, bucket))


@dataclass(frozen=True)
class Joining:
    """The second task: the files of one bucket, of every partition, are joined in memory. Travels to the
    executors."""

    output: Output

    def __call__(self, bucket: tuple[int, list[str]]) -> tuple[WrittenFile, ...]:
        number, files = bucket
        with disk_errors(self.output.place.url):
            parts = [rows for name in files for rows in rows_of(self.output.place, name)]
            out = self.output.writer(f"b{number:05d}")
            if parts:
                # Together they may exceed 32-bit offsets.
                table = pa.Table.from_batches(parts)
                for at, name in enumerate(table.schema.names):
                    if name in ("key", "value"):
                        table = table.set_column(at, name, table.column(name).cast(pa.large_binary()))
                table = latest_of(table)
                if not self.output.tombstones:
                    table = table.filter(pc.is_valid(table.column("value")))
                for rows in table.to_batches(max_chunksize=READ_ROWS):
                    out.add(number, _narrow(rows))
            return out.finish()


def latest_of(table: pa.Table) -> pa.Table:
    """Return one row for each key, sorted by key."""
    order = pc.sort_indices(
        table, sort_keys=[("key", "ascending"), ("timestamp", "ascending"), ("partition", "ascending")]
    )
    table = table.take(order).combine_chunks()
    keys = table.column("key").combine_chunks()
    last = pa.array([True])
    if len(keys) > 1:
        differs = pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
        last = pa.concat_arrays([differs, last])
    return table.filter(last)


def _narrow(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
