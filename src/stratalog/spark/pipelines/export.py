"""``export``: sealed segments to a Delta table, an Iceberg table, or plain Parquet files.

Columns are the source's: ``key, value, topic, partition, offset, timestamp, timestampType, headers``, and the
UTC ``date`` of the timestamp; with a schema the fields of JSON values are columns instead of ``value``. One
output holds all topics, partitioned by topic and date: a run is one commit, and dead letters, backfills and
readers that list directories see the same layout whatever the format.

Exactly once: an output holds each log up to an offset, and the commit that adds files moves that offset (see
`lake.tables`). A run plans from there, Spark schedules ranges, the kernel reads and Arrow writes in the
workers, the driver commits. A run that loses a race plans again. Every attempt of a task writes under names
of its own, so failed and speculative attempts disturb nothing.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.archive.objects import directory_of
from stratalog.config.units import format_time
from stratalog.errors import ConfigError, InvalidRecordError, OffsetOutOfRangeError, StoreError
from stratalog.log.read.reader import Isolation, LogView, check_isolation
from stratalog.spark.logs import Logs, opened
from stratalog.spark.options import Subscription, Where
from stratalog.spark.pipelines import PipelineResult, Progress, commits
from stratalog.spark.pipelines.executors import (
    Moment,
    Path,
    attempt_name,
    is_connect,
    moment_ms,
    names_of,
    paths_of,
    slots,
    spread,
    watched,
    where_of,
)
from stratalog.spark.pipelines.lake.files import (
    FileTarget,
    WrittenFile,
    by_day,
    date_files,
    disk_errors,
)
from stratalog.spark.pipelines.lake.json_columns import ON_MISFIT, Payload, ddl_of, decode, payload_of
from stratalog.spark.pipelines.lake.tables import (
    LETTERS_PLACE,
    Change,
    ConflictError,
    Dates,
    LakeTable,
    Letters,
    Log,
    log_of,
)
from stratalog.spark.planning import LogRange, Losses, cut
from stratalog.spark.reading import read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
TABLES = ("delta", "iceberg", "parquet")
TRIES = 5
"""How often a run that lost a race plans again."""


def export(
    spark: SparkSession,
    *,
    output: str,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | str | None = None,
    since: Moment = None,
    until: Moment = None,
    replace: bool = False,
    schema: str | Mapping[str, str] | None = None,
    keep_value: bool = False,
    on_misfit: str = ON_MISFIT[0],
    max_dead_letters: int | None = None,
    dead_letters_path: Path = None,
    table: str = "delta",
    table_name: str = "stratalog.records",
    catalog: Mapping[str, str] | None = None,
    table_per_topic: bool = False,
    isolation: str = "read_committed",
    include_active: bool = False,
    fail_on_data_loss: bool = True,
    merge: bool = False,
    rewrite_wider: bool = False,
    compression: str = "zstd",
    progress: Progress | None = None,
) -> PipelineResult:
    """Write the sealed records that ``output`` does not hold yet; each record is in it once.

    ``output`` is a directory or a URL (s3://, gs://, az://). ``topics``: all but Kafka's own unless named.
    ``since`` and ``until`` (times of records) filter the first export of a topic; later runs go on from its
    end, so what they left out stays out. With ``replace`` the dates from ``since`` to ``until`` are written
    again as the log has them now, as far as the output holds its offsets; dates that were left out come in
    that way. ``schema`` is a DDL string, or one by topic: JSON values become columns, and records that cannot
    be decoded go to ``<topic>.dead-letters`` in ``path`` or ``dead_letters_path``. ``on_misfit`` tells what
    becomes of a record with a value that does not fit its column: "dead-letter", "null" (the column is null)
    or "text" (a STRING column takes the value's JSON text; for other columns a dead letter). With more than
    ``max_dead_letters`` nothing is exported and InvalidRecordError is raised. ``include_active`` goes up
    to the end readers see. Records of aborted transactions are left out unless
    ``isolation="read_uncommitted"``. Offsets that left the log before they were exported are an error unless
    ``fail_on_data_loss=False``. ``merge`` compacts the Delta table and removes files that no version within
    its retention needs. ``rewrite_wider``: when a column of the Delta table must become wider (INT to
    BIGINT), write all of the table again, in one commit before that of the new records; otherwise that is an
    error. ``table="iceberg"`` writes the table ``table_name``, in a catalog beside the data or
    in the one that ``catalog`` (pyiceberg's properties) names; ``table="parquet"`` writes plain files. With
    ``table_per_topic`` each topic has a table of its own: the directory ``<output>/<topic>``, the Iceberg
    table of that name beside ``table_name``; each is a commit of its own, and counts are sums.
    """
    began = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    if table not in TABLES:
        raise ConfigError(f"table: expected one of {', '.join(TABLES)}, got {table!r}")
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression: expected one of {', '.join(COMPRESSIONS)}, got {compression!r}")
    if on_misfit not in ON_MISFIT:
        raise ConfigError(f"on_misfit: expected one of {', '.join(ON_MISFIT)}, got {on_misfit!r}")
    if max_dead_letters is not None and max_dead_letters < 0:
        raise ConfigError(f"max_dead_letters: expected 0 or more, got {max_dead_letters}")
    if not schema and (max_dead_letters is not None or on_misfit != ON_MISFIT[0]):
        raise ConfigError("on_misfit and max_dead_letters need a schema: without one nothing is decoded")
    given = {"": schema} if isinstance(schema, str) else dict(schema or {})
    wanted = Wanted(
        where_of(path, archive),
        names_of(topics),
        moment_ms(since, "since", now_ms),
        moment_ms(until, "until", now_ms),
        check_isolation(isolation),
        include_active,
        fail_on_data_loss,
        replace,
        keep_value,
        on_misfit,
        max_dead_letters,
        compression,
    )
    _check_times(wanted)
    _check_outside(output, (*paths_of(path), *paths_of(dead_letters_path)))
    letters_to = paths_of(dead_letters_path) or paths_of(path)
    if schema and not letters_to:
        raise ConfigError(
            "dead_letters_path: no store given for the records that cannot be decoded, and the archive is"
            " read-only; pass one"
        )
    payloads = {topic: payload_of(ddl) for topic, ddl in given.items()}
    if schema and is_connect(spark):
        raise ConfigError("schema: payloads are not decoded through Spark Connect; pass --master the cluster")
    place = (directory_of(output) or output.rstrip("/")) if output else ""

    def make(place: str, name: str) -> LakeTable:
        return _table(table, place, name, catalog, rewrite_wider=rewrite_wider, compression=compression)

    if not table_per_topic:
        run = _Run(spark, make(place, table_name), wanted, payloads, letters_to, progress)
        result = run.result(merge=merge)
    else:
        results = {}
        for topic, at in _tables_of(wanted, table, place, table_name).items():
            own = replaced(wanted, topics=(topic,))
            run = _Run(spark, make(*at), own, payloads, letters_to, progress)
            results[topic] = run.result(merge=merge)
        result = _together(results)
    return replaced(result, seconds=time.monotonic() - began)


def _tables_of(wanted: Wanted, kind: str, place: str, table_name: str) -> dict[str, tuple[str, str]]:
    """Return the place and the name of each topic's own table; Iceberg tables share a catalog."""
    with opened(wanted.where) as logs:
        topics = sorted({log.topic for log in logs_of(logs, wanted.topics)})
    if kind != "iceberg":
        return {topic: (f"{place}/{topic}", table_name) for topic in topics}
    namespace = table_name.rpartition(".")[0]
    names = {topic: f"{namespace}.{re.sub(r'[.-]', '_', topic)}" for topic in topics}
    if len(set(names.values())) < len(names):
        raise ConfigError("table_per_topic: two topics differ in '.', '_' and '-' only; name one of them")
    return {topic: (place, name) for topic, name in names.items()}


def _together(results: Mapping[str, PipelineResult]) -> PipelineResult:
    counts: Counter[str] = Counter()
    for each in results.values():
        counts.update(each.counts)
    misfits: dict[str, object] = {}
    for each in results.values():
        misfits |= cast(dict[str, object], each.details["misfits"])
    tables = {
        topic: {name: fact for name, fact in each.details.items() if name != "misfits"}
        for topic, each in results.items()
    }
    notes = dict.fromkeys(note for each in results.values() for note in each.notes)
    return PipelineResult("export", counts, {"tables": tables, "misfits": misfits}, tuple(notes))


def _table(
    kind: str,
    output: str,
    name: str,
    catalog: Mapping[str, str] | None,
    *,
    rewrite_wider: bool,
    compression: str,
) -> LakeTable:
    if kind == "delta":
        from stratalog.spark.pipelines.lake.delta import DeltaOutput

        return DeltaOutput(output, rewrite_wider=rewrite_wider, compression=compression)
    if kind == "iceberg":
        from stratalog.spark.pipelines.lake.iceberg import IcebergOutput

        return IcebergOutput(output, name, catalog)
    from stratalog.spark.pipelines.lake.parquet_files import ParquetFiles

    return ParquetFiles(output)


def _check_times(wanted: Wanted) -> None:
    since, until = wanted.since_ms, wanted.until_ms
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"since ({format_time(since)}) is not before until ({format_time(until)})")
    if wanted.replace and (since is None or until is None or since % DAY_MS or until % DAY_MS):
        raise ConfigError(
            "replace writes whole dates again: pass since and until, both at midnight UTC, as in 2026-01-31"
        )


def _check_outside(output: str, paths: Sequence[str]) -> None:
    """Refuse an output in a log directory: it would look like a topic, and stop a Kafka broker."""
    place = directory_of(output) if output else None
    for path in paths:
        root = os.path.realpath(path)
        if place is not None and os.path.commonpath([os.path.realpath(place), root]) == root:
            raise ConfigError(f"output={output}: it lies in the log directory {path}; pass another place")


@dataclass(frozen=True)
class Wanted:
    """The caller's options. Picklable."""

    where: Where
    topics: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    isolation: Isolation = "read_committed"
    include_active: bool = False
    fail_on_data_loss: bool = True
    replace: bool = False
    keep_value: bool = False
    on_misfit: str = ON_MISFIT[0]
    max_dead_letters: int | None = None
    compression: str = "zstd"

    @property
    def dates(self) -> Dates | None:
        """The dates to write again."""
        if not self.replace or self.since_ms is None or self.until_ms is None:
            return None
        return Dates(self.topics, self.since_ms, self.until_ms)


@dataclass(frozen=True)
class _Done:
    """What a run added to the output."""

    files: Sequence[WrittenFile] = ()
    letters: Sequence[Letters] = ()
    misfits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How many values did not fit, by topic and column."""
    replaced_files: int = 0

    def counts(self) -> dict[str, int]:
        return {
            "records": sum(file.records for file in self.files),
            "files": len(self.files),
            "bytes": sum(file.size_bytes for file in self.files),
            "misfits": sum(count for each in self.misfits.values() for count in each.values()),
            "dead_letters": sum(each.records for each in self.letters),
            "replaced_files": self.replaced_files,
        }


@dataclass(frozen=True)
class _Run:
    """One run, its arguments checked."""

    spark: SparkSession
    table: LakeTable
    wanted: Wanted
    payloads: Mapping[str, Payload]
    """By topic; under ``""`` the one for all."""
    letters_to: tuple[str, ...]
    progress: Progress | None

    def result(self, *, merge: bool) -> PipelineResult:
        """Export, and compact the table if wanted."""
        done, notes = self.export()
        counts = done.counts()
        merged = self.table.merge(self.wanted.topics, self.wanted.compression) if merge else 0
        counts["merged_files"] = merged
        return PipelineResult("export", counts, self.table.facts() | {"misfits": done.misfits}, notes)

    def export(self) -> tuple[_Done, tuple[str, ...]]:
        """Send what an earlier run left, then write what is new; return what and notes."""
        resent = 0
        for left in reversed(range(TRIES)):
            resent += self._send_pending()
            try:
                planned, done = self._once()
                break
            except ConflictError:
                if not left:
                    raise
        self._send_pending()
        renamed = {
            f"the payload's field {old} is the column {new}: the record has a {old} of its own"
            for payload in self.payloads.values()
            for old, new in payload.renamed.items()
        }
        note = f"sent {resent} files of dead letters that an earlier run could not"
        notes = (*planned.lost, *planned.unsealed, *sorted(renamed), *self._about(done.misfits))
        return done, (*((note,) if resent else ()), *notes)

    def _about(self, misfits: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        """Yield what became of the values that did not fit."""
        payloads = self._payloads_of(set(misfits))
        for topic, columns in sorted(misfits.items()):
            kinds = {each.name: each.type for each in payloads[topic].fields}
            for name, count in sorted(columns.items()):
                fate = "their records are dead letters"
                if self.wanted.on_misfit == "null":
                    fate = "the column is null"
                elif self.wanted.on_misfit == "text" and kinds[name] == pa.string():
                    fate = "the column has their JSON text"
                yield f"{topic}: {count:,} values of {name} do not fit {ddl_of(kinds[name])}: {fate}"

    def _once(self) -> tuple[Plan, _Done]:
        with opened(self.wanted.where) as logs:
            views = logs_of(logs, self.wanted.topics)
            payloads = self._payloads_of({log.topic for log in views})
            bare = bool(views) and all(log.topic in payloads for log in views) and not self.wanted.keep_value
            fitted = self.table.prepare(list(views), list(payloads.values()), value=not bare)
            payloads = dict(zip(payloads, fitted, strict=True))
            planned = plan(logs, views, self.wanted, self.table)
        if not planned.ends:
            return planned, _Done()
        run = uuid.uuid4().hex
        target, columns, split = self.table.target(run), self.table.columns, self.table.split
        work = Exporting(self.wanted, target, run, columns, payloads, split)
        try:
            with watched(self.spark, self.progress, "export"):
                written = spread(self.spark, tasks_of(planned.ranges, slots(self.spark)), work)
        except Exception:
            self._discard(run)
            raise
        files = tuple(file for each in written for file in each.files)
        letters = tuple(file for each in written for file in each.letters)
        misfits: dict[str, Counter[str]] = {}
        for each in written:
            if each.misfits:
                misfits.setdefault(each.topic, Counter()).update(each.misfits)
        change = Change(run, planned.before, planned.ends, files, letters, self.wanted.dates)
        try:
            self._check_letters(letters, misfits)
            replaced = self.table.commit(change)
        except (ConflictError, InvalidRecordError):
            self._discard(run)
            raise
        return planned, _Done(files, letters, misfits, replaced)

    def _check_letters(self, letters: Sequence[Letters], misfits: Mapping[str, Mapping[str, int]]) -> None:
        """Raise InvalidRecordError if there are more dead letters than wanted."""
        count, most = sum(each.records for each in letters), self.wanted.max_dead_letters
        if most is not None and count > most:
            about = "; ".join(self._about(misfits)) or "they are not JSON objects"
            raise InvalidRecordError(
                f"{count:,} records cannot be decoded, max_dead_letters is {most:,}: {about}; nothing was"
                " exported"
            )

    def _discard(self, run: str) -> None:
        with suppress(Exception):  # what stays belongs to no commit
            self.table.discard(run)

    def _payloads_of(self, topics: set[str]) -> dict[str, Payload]:
        """Return the decoding of each topic that has one; dead letters are not decoded again."""
        found = {}
        for topic in sorted(topics):
            general = None if topic.endswith(commits.SUFFIX) else self.payloads.get("")
            payload = self.payloads.get(topic, general)
            if payload is not None:
                found[topic] = payload
        return found

    def _send_pending(self) -> int:
        """Send the dead letters of commits that did not get to it; return how many files that were.

        Exactly once by the number of the commit: a send that an earlier run had finished changes nothing.
        """
        if not self.letters_to:
            return 0
        sent = 0
        for each in self.table.pending():
            try:
                commits.send_dead_letters(
                    ReadingLetters(each.target, each.files).frame(self.spark),
                    paths=self.letters_to,
                    topic=each.topic,
                    source=f"export {each.topic}",
                    query=each.query,
                    batch=each.batch,
                )
            except Exception:
                still = {file for other in self.table.pending() for file in other.files}
                if still & set(each.files):
                    raise
                continue  # another run sent them meanwhile
            self.table.sent(each)
            sent += len(each.files)
        return sent


# -- planning ----------------------------------------------------------------------------------------
#
# Reads sidecars and manifests only. Ends are pinned here, so that what is appended, sealed or removed while
# the export runs does not change what it takes.


DAY_MS = 86_400_000
INTERNAL = "__"
"""Kafka's own topics begin so; they are exported when named."""


@dataclass(frozen=True)
class Plan:
    """The ranges to read, and where the output ends afterwards."""

    before: Mapping[Log, int] = field(default_factory=dict)
    ends: Mapping[Log, int] = field(default_factory=dict)
    """Of the logs that are written to; with the same end as before where dates are written again."""
    ranges: tuple[LogRange, ...] = ()
    lost: tuple[str, ...] = ()
    """Sentences about offsets that were never exported and are no longer in the log."""
    unsealed: tuple[str, ...] = ()
    """Sentences about offsets in active segments, if nothing else is new."""


def logs_of(logs: Logs, topics: Sequence[str]) -> dict[Log, LogView]:
    """Return the logs of these topics, or of all but Kafka's own, as they are now."""
    found: dict[Log, LogView] = {}
    for topic, partition in logs.choose(Subscription(topics=tuple(topics))):
        if topics or not topic.startswith(INTERNAL):
            view = logs.view(topic, partition)
            view.refresh()
            found[log_of(view)] = view
    return found


def plan(logs: Logs, views: Mapping[Log, LogView], wanted: Wanted, table: LakeTable) -> Plan:
    """Plan what is new in each log since the end that the table holds, or the dates to write again."""
    before = table.ends(list(views))
    for log, view in views.items():
        if (known := before.get(log, 0)) > view.end_offset():
            raise StoreError(
                f"{log.topic}-{log.partition}: the output holds offsets up to {known - 1}, the log ends at"
                f" {view.end_offset()}: it is another log, or was restored from an older copy; export it to"
                " another output"
            )
    if (dates := wanted.dates) is not None:
        return _again(logs, views, wanted, table, dates, before)
    if before and (wanted.since_ms is not None or wanted.until_ms is not None):
        held = min(before)
        raise ConfigError(
            f"since and until: {table.url} holds {held.topic}-{held.partition} up to offset"
            f" {before[held] - 1} already; pass replace (--replace) to write dates again, or leave them out"
        )
    ends: dict[Log, int] = {}
    lost: list[str] = []
    ranges: list[LogRange] = []
    active: Counter[str] = Counter()
    for log, view in views.items():
        first, end = view.log_start_offset, _sealed_end(view, wanted)
        start = before.get(log, first)
        active[log.topic] += max(0, view.end_offset(wanted.isolation) - max(start, end))
        if start < first:
            lost.append(_lose(log, start, first, view.end_offset(), wanted.fail_on_data_loss))
            start = first
        if start < end:
            ends[log] = end
            ranges.append(LogRange(log.topic, log.partition, start, end, wanted.since_ms, wanted.until_ms))
    unsealed = () if ends else tuple(_unsealed(topic, count) for topic, count in active.items() if count)
    return Plan(before, ends, tuple(cut(logs, ranges)), tuple(lost), unsealed)


def _again(
    logs: Logs,
    views: Mapping[Log, LogView],
    wanted: Wanted,
    table: LakeTable,
    dates: Dates,
    before: Mapping[Log, int],
) -> Plan:
    """Take the exported offsets of these dates once more; raise StoreError where that would lose some."""
    oldest = table.oldest(dates)
    ranges = []
    for log, view in views.items():
        pair = (log.topic, log.partition)
        held = oldest.pop(pair, None)
        if held is not None and (held < view.log_start_offset or table.ids_of(log.topic) - {log.topic_id}):
            raise StoreError(
                f"{log.topic}-{log.partition}: the output holds offset {held} at these dates, which the log"
                " does not hold any more (or held under another topic of that name): replacing it would lose"
                " it; choose other dates"
            )
        start, end = view.log_start_offset, min(before.get(log, 0), view.end_offset(wanted.isolation))
        if start < end:
            ranges.append(LogRange(*pair, start, end, dates.since_ms, dates.until_ms))
    if oldest:
        topic, partition = min(oldest)
        raise StoreError(
            f"{topic}-{partition}: the output holds it at these dates and the log has no such partition:"
            " replacing it would lose it; name the topics to replace"
        )
    return Plan(before, before, tuple(cut(logs, ranges)))


def _sealed_end(view: LogView, wanted: Wanted) -> int:
    """Return the first offset that is not to be exported: that of the active segment, or the end readers
    see."""
    end = view.end_offset(wanted.isolation)
    segments = view.segments()
    if segments and segments[-1].is_active and not wanted.include_active:
        end = min(end, segments[-1].base_offset)
    return max(end, view.log_start_offset)


def _unsealed(topic: str, count: int) -> str:
    where = "1 offset is in an active segment" if count == 1 else f"{count} offsets are in active segments"
    return (
        f"{topic}: nothing new is sealed, and {where}: seal them (stratalog roll {topic}),"
        " or pass include_active (--include-active)"
    )


def _lose(log: Log, start: int, first: int, end: int, fail: bool) -> str:
    gone = f"{log.topic}-{log.partition}: offsets {start} to {first - 1}"
    if fail:
        raise OffsetOutOfRangeError(
            f"{gone} were never exported and are no longer in the log; pass fail_on_data_loss=False"
            " (--allow-data-loss) to go on without them",
            offset=start,
            first=first,
            end=end,
        )
    return f"{gone} left the log before they were exported"


# -- work on the executors ---------------------------------------------------------------------------


SMALLEST_TASK_BYTES = 16 << 20
LARGEST_TASK_BYTES = 512 << 20
ROUNDS = 3
"""Tasks for each core, at least: the last to end should not be waited for long."""
LETTERS = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("reason", pa.string()), ("where", pa.string())]
)
LETTERS_TABLE = "key binary, value binary, reason string, where string"


@dataclass(frozen=True)
class Task:
    """Ranges of one topic whose records go into the same files."""

    number: int
    topic: str
    ranges: tuple[LogRange, ...]


def tasks_of(ranges: Iterable[LogRange], parallelism: int) -> list[Task]:
    """Bundle ranges: those of small partitions share a task and its files, the largest tasks come first."""
    every = list(ranges)
    total = sum(each.size_bytes for each in every)
    share = total // (ROUNDS * max(parallelism, 1))
    worth = min(max(share, SMALLEST_TASK_BYTES), LARGEST_TASK_BYTES)
    bundles: list[list[LogRange]] = []
    room, topic = 0, None
    for each in sorted(every, key=lambda part: (part.topic, part.partition, part.start)):
        if each.topic != topic or each.size_bytes > room:
            bundles.append([])
            room, topic = worth, each.topic
        bundles[-1].append(each)
        room -= each.size_bytes
    bundles.sort(key=lambda bundle: -sum(each.size_bytes for each in bundle))
    return [Task(number, bundle[0].topic, tuple(bundle)) for number, bundle in enumerate(bundles)]


@dataclass(frozen=True)
class Written:
    """What an attempt of a task wrote."""

    topic: str
    files: tuple[WrittenFile, ...]
    letters: tuple[Letters, ...] = ()
    misfits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Exporting:
    """The work of every task of a run; travels to the executors."""

    wanted: Wanted
    target: FileTarget
    run: str
    columns: tuple[str, ...]
    payloads: Mapping[str, Payload]
    split: bool
    """True if each range has files of its own."""

    def __call__(self, task: Task) -> Written:
        prefix = f"{self.run}-{task.number:05d}-{attempt_name()}"
        with opened(self.wanted.where) as logs:
            if not self.split:
                return self._write(logs, task.topic, task.ranges, prefix, (0, 0))
            done = [
                self._write(logs, task.topic, (part,), f"{prefix}-{number}", (part.start, part.end))
                for number, part in enumerate(task.ranges)
            ]
        return Written(
            task.topic,
            tuple(file for each in done for file in each.files),
            tuple(file for each in done for file in each.letters),
            sum((Counter(each.misfits) for each in done), Counter()),
        )

    def _write(
        self, logs: Logs, topic: str, ranges: Sequence[LogRange], prefix: str, span: tuple[int, int]
    ) -> Written:
        payload = self.payloads.get(topic)
        files = date_files(self.target, prefix, topic, compression=self.wanted.compression, span=span)
        letters = LetterFile(self.target, f"{LETTERS_PLACE}/{self.run}/{prefix}.parquet")
        misfits: Counter[str] = Counter()
        doubtful = False
        for part in ranges:
            for batch in self._read(logs, part):
                if payload is not None:
                    decoded = decode(batch, payload, self.wanted.on_misfit, doubtful=doubtful)
                    letters.add(part, decoded.failed, decoded.reasons)
                    misfits += decoded.misfits
                    doubtful = bool(misfits or decoded.reasons)
                    batch = decoded.rows
                    if not self.wanted.keep_value:
                        batch = batch.drop_columns(["value"])
                for day, rows in by_day(batch):
                    files.add(day, rows)
        return Written(topic, files.finish(), letters.finish(ranges[0], span), misfits)

    def _read(self, logs: Logs, part: LogRange) -> Iterator[pa.RecordBatch]:
        losses = Losses(self.wanted.fail_on_data_loss)
        try:
            yield from read_rows(logs, part, self.columns, self.wanted.isolation, losses)
        except pa.ArrowInvalid as error:
            raise InvalidRecordError(
                f"{part.topic}-{part.partition}: offsets {part.start} to {part.end - 1} hold a record that"
                f" cannot be written: {error}"
            ) from error


class LetterFile:
    """The records of one attempt that could not be decoded, in a file of their own."""

    def __init__(self, target: FileTarget, name: str) -> None:
        self._target = target
        self._name = name
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._records = 0

    def add(self, part: LogRange, failed: pa.RecordBatch, reasons: Sequence[str]) -> None:
        if not failed.num_rows:
            return
        where = [f"{part.topic}-{part.partition}@{each}" for each in failed.column("offset").to_pylist()]
        columns = [
            failed.column("key"),
            failed.column("value"),
            pa.array(reasons, pa.string()),
            pa.array(where),
        ]
        with disk_errors(self._target.address(self._name)):
            if self._writer is None:
                self._sink = self._target.begin(self._name)
                self._writer = pq.ParquetWriter(self._sink, LETTERS, compression="zstd")
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=LETTERS))
        self._records += failed.num_rows

    def finish(self, part: LogRange, span: tuple[int, int]) -> tuple[Letters, ...]:
        if self._writer is None:
            return ()
        with disk_errors(self._target.address(self._name)):
            self._writer.close()
            self._target.finish(self._name, self._sink)
        return (Letters(part.topic, part.partition, self._name, self._records, *span),)


@dataclass(frozen=True)
class ReadingLetters:
    """Files of dead letters as rows, on the executors."""

    target: FileTarget
    files: tuple[str, ...]

    def __call__(self, number: int) -> Iterator[tuple[object, ...]]:
        source = pq.ParquetFile(self.target.reading(self.files[number]))
        for batch in source.iter_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def frame(self, spark: SparkSession) -> DataFrame:
        rows = spark.sparkContext.parallelize(range(len(self.files)), len(self.files)).flatMap(self)
        return spark.createDataFrame(rows, LETTERS_TABLE)
