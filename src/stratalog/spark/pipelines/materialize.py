"""``materialize``: the latest value of every key, as of an offset or a time, as a Delta table.

    materialize(spark, path="/var/lib/stratalog", topic="users", output="/lake/users")
    DeltaTable("/lake/users").to_pyarrow_table()

The table has one row for each key that has a value; tombstones remove theirs, and records that were not
committed do not count. A run reads only what came since the last one: executors reduce each partition to the
latest record of every key (`lake.latest`), and the driver merges these changes into the table by Delta's own
merge. The end offset of each partition is an application transaction of the same commit, so a run that dies
changed nothing or everything, and of two runs at once one commits and the other starts over.

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

from stratalog.config.units import parse_time
from stratalog.errors import ConfigError, InvalidArgumentError
from stratalog.format.batch.arrow import schema_for
from stratalog.format.metadata import id_to_text
from stratalog.log.read.reader import Isolation, check_isolation
from stratalog.spark.logs import opened
from stratalog.spark.options import Where, parse_options
from stratalog.spark.pipelines.executors import slots, spread, watched
from stratalog.spark.pipelines.lake.as_of import AsOf, Now, look
from stratalog.spark.pipelines.lake.delta import (
    APP,
    added,
    application,
    made_by,
    open_table,
    properties,
    storage_options,
    sync_log,
    told_by_delta,
    writer_properties,
)
from stratalog.spark.pipelines.lake.files import WrittenFile
from stratalog.spark.pipelines.lake.latest import (
    COLUMNS,
    Bucket,
    Joining,
    Output,
    Range,
    Reduced,
    Reducing,
    rows_of,
)
from stratalog.spark.pipelines.lake.places import Place, place_of
from stratalog.spark.pipelines.lake.table import ConflictError, Log
from stratalog.spark.pipelines.places import Path, place_options, subscription
from stratalog.spark.pipelines.result import PipelineResult, Progress

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame, SparkSession

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
TOPIC, UNCOMMITTED, JOINED = f"{APP}:topic", f"{APP}:read_uncommitted", f"{APP}:joined"
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
    as_of_time: str | int | None = None,
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
    column with the records' headers. ``memory_bytes`` is what a task takes for keys; with more keys it takes
    more steps.
    """
    began = time.monotonic()
    if memory_bytes < SMALLEST_MEMORY_BYTES:
        raise ConfigError(f"memory_bytes={memory_bytes}: takes {SMALLEST_MEMORY_BYTES} or more")
    now_ms = time.time_ns() // 1_000_000
    as_of = AsOf(_offsets(as_of_offset), _moment(as_of_time, now_ms))
    check_isolation(isolation)
    where = parse_options(place_options(path, archive) | subscription([topic])).where
    place = place_of(output)
    for left in reversed(range(TRIES)):
        with opened(where) as logs:
            now = look(logs, topic, isolation, as_of, now_ms)
        run = _Run(spark, where, place, now, isolation, headers, memory_bytes, compression, fail_on_data_loss)
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
    table = open_table(place.url)
    if table is None:
        raise ConfigError(f"output={output}: there is no materialized table; `materialize` makes one")
    names = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
    if any(field.name == "headers" for field in table.schema().fields):
        names += ", headers array<struct<key: string, value: binary>>"
    files = table.file_uris()
    return spark.read.schema(names).parquet(*files) if files else spark.createDataFrame([], names)


def _offsets(said: int | Mapping[int, int] | None) -> dict[int, int] | int | None:
    if said is None or isinstance(said, int):
        return said
    try:
        return {int(number): int(offset) for number, offset in said.items()}
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f"as_of_offset={said!r}: takes an offset, or one for each partition") from None


def _moment(said: str | int | None, now_ms: int) -> int | None:
    if said is None or isinstance(said, int):
        return said
    try:
        return parse_time(said, now_ms)
    except InvalidArgumentError as error:
        raise ConfigError(f"as_of_time={said!r}: {error}") from None


@dataclass
class _Run:
    """One attempt to bring the table up to date."""

    spark: SparkSession
    where: Where
    place: Place
    now: Now
    isolation: Isolation
    headers: bool
    memory_bytes: int
    compression: str
    fail_on_data_loss: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    reduced: Sequence[Reduced] = ()
    changed: frozenset[int] = frozenset()
    joined: bool = False

    def __post_init__(self) -> None:
        self.notes = list(self.now.notes)
        self.table = open_table(self.place.url)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COLUMNS, "headers") if self.headers else COLUMNS

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

    # -- what there is -------------------------------------------------------------------------------

    def _log(self, partition: int) -> Log:
        topic_id = self.now.topic_id
        return Log(self.now.topic, "" if topic_id is None else id_to_text(topic_id), partition)

    def _version(self, name: str) -> int | None:
        return None if self.table is None else self.table.transaction_version(name)

    @property
    def _mark(self) -> int:
        """A number that tells this topic from others, one of its own name that was deleted among them."""
        topic_id = self.now.topic_id
        return zlib.crc32(self.now.topic.encode()) if topic_id is None else topic_id.int >> 65

    def _check(self, full: bool) -> dict[int, int]:
        """Return the end offset of each partition that the table holds; raise if it is another table."""
        if self.table is None:
            return {}
        mark = self._version(TOPIC)
        if mark is None and self.table.version() > 0:
            raise ConfigError(
                f"output={self.place.url}: it is another Delta table; give a directory of its own"
            )
        if mark is not None and mark != self._mark and not full:
            raise ConfigError(
                f"output={self.place.url} is the table of another topic, or of a deleted one of the name"
                f" {self.now.topic}; give another output, or full=True (--full) to begin anew"
            )
        if mark != self._mark:
            return {}
        found = {n: self._version(application(self._log(n).key)) for n in self.now.partitions}
        return {number: end for number, end in found.items() if end is not None}

    def _read_ms(self, partition: int) -> int:
        return self._version(f"{application(self._log(partition).key)}:read_ms") or 0

    def _why_again(self, ends: Mapping[int, int]) -> str:
        """Say why the table cannot be brought up to date from its ends; empty if it can."""
        if not ends:
            return ""
        if self._version(UNCOMMITTED) != int(self.isolation == "read_uncommitted"):
            return "the last result was read with another isolation"
        assert self.table is not None
        if self.headers and "headers" not in _names(self.table):
            return "the last result has no headers"
        for number, end in ends.items():
            why = self.now.partitions[number].why_again(end, self._read_ms(number), self.now)
            if why:
                return f"{self.now.topic}-{number}: {why}"
        return ""

    def _due(self, ends: Mapping[int, int]) -> bool:
        """Whether there is something to do; also to note that there was nothing, before it is too late."""
        stale_ms = self.now.now_ms - self.now.delete_retention_ms // 4
        return any(
            ends.get(number) != looked.end or (looked.whole and self._read_ms(number) < stale_ms)
            for number, looked in self.now.partitions.items()
        )

    def _commit(self) -> CommitProperties:
        joined = self.joined or self._version(JOINED) == 1
        uncommitted = self.isolation == "read_uncommitted"
        versions = {TOPIC: self._mark, UNCOMMITTED: int(uncommitted), JOINED: int(joined)}
        for number, looked in self.now.partitions.items():
            name = application(self._log(number).key)
            versions |= {name: looked.end, f"{name}:read_ms": looked.read_ms(self.now)}
        return properties(self.id, versions)

    # -- work on the executors -----------------------------------------------------------------------

    def _reduce(self, starts: Mapping[int, int], *, live: bool) -> list[WrittenFile]:
        """Reduce what lies behind ``starts`` to one row a key; ``live``: only rows with a value, as files of
        the table, else changes to merge."""
        now = self.now
        ranges = [
            Range(now.topic, number, starts.get(number, looked.start), looked.end, number in starts)
            for number, looked in now.partitions.items()
            if starts.get(number, looked.start) < looked.end
        ]
        ranges.sort(key=lambda part: part.start - part.end)  # the longest first
        self.changed = frozenset(part.partition for part in ranges)
        staged = f"{CHANGES}/{self.id}/"
        changes = Output(self.place.url, staged, self.columns, self.compression, tombstones=True)
        last = replace(changes, prefix=f"{self.id}-", tombstones=False) if live else changes
        if self._version(JOINED) != 1:
            self.reduced = self._spread(ranges, last, 1, len(now.partitions))
            files = [file for each in self.reduced for file in each.files]
            if not any(each.misplaced for each in self.reduced):
                return files
            self.place.remove([file.name for file in files])
            self.joined = True
        size = sum(looked.size_bytes for looked in now.partitions.values())
        buckets = min(MOST_BUCKETS, max(slots(self.spark), -(-size // BUCKET_BYTES)))
        self.reduced = self._spread(ranges, changes, buckets, 0)
        names: dict[int, list[str]] = {}
        for file in (file for each in self.reduced for file in each.files):
            names.setdefault(file.key, []).append(file.name)
        work = [Bucket(number, tuple(names[number])) for number in sorted(names)]
        return [file for each in spread(self.spark, work, Joining(last)) for file in each]

    def _spread(
        self, ranges: Sequence[Range], output: Output, buckets: int, partitions: int
    ) -> list[Reduced]:
        work = Reducing(
            self.where,
            output,
            self.isolation,
            partitions,
            buckets,
            self.memory_bytes,
            self.fail_on_data_loss,
        )
        return spread(self.spark, ranges, work)

    # -- commits -------------------------------------------------------------------------------------

    def _create(self) -> None:
        from deltalake import DeltaTable

        with told_by_delta(self.place.url):
            self.table = DeltaTable.create(
                self.place.url,
                schema_for(self.columns),
                mode="ignore",
                storage_options=storage_options(self.place.url),
            )
        sync_log(self.place.url, 0)

    def _rebuild(self) -> None:
        """Put files that the executors wrote in the place of all others, in one commit."""
        from deltalake import Schema

        assert self.table is not None
        table, now_ms = self.table, time.time_ns() // 1_000_000
        if self.headers and "headers" not in _names(table):
            with told_by_delta(self.place.url):
                table.alter.add_columns(Schema.from_arrow(schema_for(("headers",))).fields)
        try:
            files = self._reduce({}, live=True)
        except Exception:
            with suppress(Exception):  # what stays belongs to no version
                self.place.remove([i.key for i in self.place.list("") if i.key.startswith(f"{self.id}-")])
            raise
        actions = [added(file, {}, now_ms) for file in files]
        try:
            with told_by_delta(self.place.url):
                table.create_write_transaction(
                    actions,
                    "overwrite",
                    table.schema(),
                    commit_properties=self._commit(),
                )
        except Exception as error:
            if made_by(table, self.id) is None:
                if isinstance(error, ConflictError):
                    self.place.remove([file.name for file in files])
                raise
        self._durable()

    def _merge(self, ends: Mapping[int, int]) -> None:
        """Merge what is new since ``ends`` into the table by its own merge."""
        assert self.table is not None
        table = self.table
        files = self._reduce(ends, live=False)
        source = pa.RecordBatchReader.from_batches(schema_for(self.columns), self._changes(files))
        row = {name: f"s.{name}" for name in self.columns}
        before = table.version()
        try:
            with told_by_delta(self.place.url):
                if files:
                    (
                        table.merge(
                            source,
                            "t.key = s.key",
                            source_alias="s",
                            target_alias="t",
                            writer_properties=writer_properties(self.compression),
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
            if made_by(table, self.id) is None:
                raise
        self._durable()

    def _changes(self, files: Sequence[WrittenFile]) -> Iterator[pa.RecordBatch]:
        schema = schema_for(self.columns)
        for file in files:
            for rows in rows_of(self.place, file.name):
                yield rows.cast(schema)

    def _durable(self) -> None:
        assert self.table is not None
        version = made_by(self.table, self.id)
        assert version is not None
        sync_log(self.place.url, version)
        with told_by_delta(self.place.url):
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


def _names(table: DeltaTable) -> set[str]:
    return {field.name for field in table.schema().fields}
