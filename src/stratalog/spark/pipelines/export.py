"""``export``: sealed segments to a Delta table, an Iceberg table, or plain Parquet files.

Columns are the source's: ``key, value, topic, partition, offset, timestamp, timestampType, headers``, and the
UTC ``date`` of the timestamp; with a schema the fields of JSON values as columns in the place of ``value``.
One output holds all topics, partitioned by topic and date: a run is one commit, and dead letters, backfills
and readers that list directories see the same layout whatever the format.

Exactly once: an output holds each log up to an offset, and the commit that adds files moves that offset (see
`lake.table`). A run plans from there, Spark schedules ranges, the kernel reads and Arrow writes in the
workers, the driver commits. A run that loses a race plans again.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.archive.objects import directory_of
from stratalog.errors import ConfigError
from stratalog.log.read.reader import check_isolation
from stratalog.spark.logs import opened
from stratalog.spark.options import Where
from stratalog.spark.pipelines import dead_letters
from stratalog.spark.pipelines.executors import slots, spread, watched, where_of
from stratalog.spark.pipelines.lake.payload import Payload, payload_of
from stratalog.spark.pipelines.lake.plan import Moment, Plan, Wanted, check_times, logs_of, moment, plan
from stratalog.spark.pipelines.lake.table import Change, ConflictError, LakeTable, Pending
from stratalog.spark.pipelines.lake.work import Exporting, ReadingLetters, tasks_of
from stratalog.spark.pipelines.places import Path, paths_of
from stratalog.spark.pipelines.result import PipelineResult, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    dead_letters_path: Path = None,
    table: str = "delta",
    table_name: str = "stratalog.records",
    catalog: Mapping[str, str] | None = None,
    isolation: str = "read_committed",
    include_active: bool = False,
    fail_on_data_loss: bool = True,
    merge: bool = False,
    compression: str = "zstd",
    progress: Progress | None = None,
) -> PipelineResult:
    """Write the sealed records that ``output`` does not hold yet; each record is in it once.

    ``output`` is a directory or a URL (s3://, gs://, az://). ``topics``: all but Kafka's own unless named.
    ``since`` and ``until`` (times of records) filter the first export of a topic; later runs go on from its
    end, so what they left out stays out. With ``replace`` the dates from ``since`` to ``until`` are written
    again as the log has them now, as far as the output holds its offsets; dates that were left out come in
    that way. ``schema`` is a DDL string, or one by topic: JSON values become columns, and records that cannot
    be decoded go to ``<topic>.dead-letters`` in ``path`` or ``dead_letters_path``. ``include_active`` goes up
    to the end readers see. Records of aborted transactions are left out unless
    ``isolation="read_uncommitted"``. Offsets that left the log before they were exported are an error unless
    ``fail_on_data_loss=False``. ``merge`` compacts the Delta table and removes files that no version within
    its retention needs. ``table="iceberg"`` writes the table ``table_name``, in a catalog beside the data or
    in the one that ``catalog`` (pyiceberg's properties) names; ``table="parquet"`` writes plain files.
    """
    began = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    if table not in TABLES:
        raise ConfigError(f"table: {table!r} is not known, takes {', '.join(TABLES)}")
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression: {compression!r} is not known, takes {', '.join(COMPRESSIONS)}")
    wanted = Wanted(
        (topics,) if isinstance(topics, str) else tuple(topics or ()),
        moment(since, "since", now_ms),
        moment(until, "until", now_ms),
        check_isolation(isolation),
        include_active,
        fail_on_data_loss,
        replace,
    )
    check_times(wanted)
    _check_outside(output, (*paths_of(path), *paths_of(dead_letters_path)))
    letters_to = paths_of(dead_letters_path) or paths_of(path)
    if schema and getattr(spark, "_jsparkSession", None) is None:
        raise ConfigError("schema: payloads are not decoded through Spark Connect; give --master the cluster")
    if schema and not letters_to:
        raise ConfigError(
            "dead_letters_path: no store given for the records that cannot be decoded, and the archive is"
            " read-only; pass one"
        )
    place = (directory_of(output) or output.rstrip("/")) if output else ""
    run = _Run(
        spark,
        where_of(path, archive),
        _table(table, place, table_name, catalog),
        wanted,
        _payloads(schema),
        keep_value,
        letters_to,
        compression,
        progress,
    )
    counts, notes = run.export()
    counts["merged_files"] = run.table.merge(wanted.topics, compression) if merge else 0
    return PipelineResult("export", counts, run.table.facts(), notes, seconds=time.monotonic() - began)


def _table(kind: str, output: str, name: str, catalog: Mapping[str, str] | None) -> LakeTable:
    if kind == "delta":
        from stratalog.spark.pipelines.lake.delta import DeltaOutput

        return DeltaOutput(output)
    if kind == "iceberg":
        from stratalog.spark.pipelines.lake.iceberg import IcebergOutput

        return IcebergOutput(output, name, catalog)
    from stratalog.spark.pipelines.lake.parquet_files import ParquetFiles

    return ParquetFiles(output)


@dataclass(frozen=True)
class _Run:
    """One run, its arguments checked."""

    spark: SparkSession
    where: Where
    table: LakeTable
    wanted: Wanted
    payloads: Mapping[str, Payload]
    """By topic; under ``""`` the one for all."""
    keep_value: bool
    letters_to: tuple[str, ...]
    compression: str
    progress: Progress | None

    def export(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """Send what an earlier run left, then write what is new; return counts and notes."""
        made_good = 0
        for left in reversed(range(TRIES)):
            made_good += self._send_pending()
            try:
                planned, counts = self._once()
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
        resent = (
            (f"sent {made_good} files of dead letters that an earlier run could not",) if made_good else ()
        )
        return counts, (*resent, *planned.lost, *sorted(renamed))

    def _once(self) -> tuple[Plan, dict[str, int]]:
        counts = dict.fromkeys(("records", "files", "bytes", "dead_letters", "replaced_files"), 0)
        with opened(self.where) as logs:
            views = logs_of(logs, self.wanted.topics)
            payloads = self._payloads_of({log.topic for log in views})
            bare = bool(views) and all(log.topic in payloads for log in views) and not self.keep_value
            self.table.prepare(list(views), list(payloads.values()), value=not bare)
            planned = plan(logs, views, self.wanted, self.table)
        if not planned:
            return planned, counts
        run = uuid.uuid4().hex
        work = Exporting(
            self.where,
            self.table.target(run),
            run,
            self.wanted.isolation,
            self.wanted.fail_on_data_loss,
            self.table.columns,
            tuple(sorted(payloads.items())),
            self.keep_value,
            self.compression,
            self.table.split,
        )
        try:
            with watched(self.spark, self.progress, "export"):
                written = spread(self.spark, tasks_of(planned.ranges, slots(self.spark)), work)
        except Exception:
            self._discard(run)
            raise
        change = Change(
            run,
            planned.before,
            planned.ends,
            tuple(file for each in written for file in each.files),
            tuple(letters for each in written for letters in each.letters),
            self.wanted.dates,
        )
        try:
            counts["replaced_files"] = self.table.commit(change)
        except ConflictError:
            self._discard(run)
            raise
        counts |= {
            "records": sum(file.records for file in change.files),
            "files": len(change.files),
            "bytes": sum(file.size_bytes for file in change.files),
            "dead_letters": sum(letters.records for letters in change.letters),
        }
        return planned, counts

    def _discard(self, run: str) -> None:
        with suppress(Exception):  # what stays belongs to no commit
            self.table.discard(run)

    def _payloads_of(self, topics: set[str]) -> dict[str, Payload]:
        """The decoding of each topic that has one; dead letters are not decoded again."""
        found = {}
        for topic in sorted(topics):
            general = None if topic.endswith(dead_letters.SUFFIX) else self.payloads.get("")
            payload = self.payloads.get(topic, general)
            if payload is not None:
                found[topic] = payload
        return found

    # -- dead letters --------------------------------------------------------------------------------

    def _send_pending(self) -> int:
        """Send the dead letters of commits that did not get to it; return how many files that were.

        Exactly once by the number of the commit: a send that an earlier run had finished changes nothing.
        """
        if not self.letters_to:
            return 0
        sent = 0
        for each in self.table.pending():
            try:
                self._send(each)
            except Exception:
                still = {file for other in self.table.pending() for file in other.files}
                if still & set(each.files):
                    raise
                continue  # another run sent them meanwhile
            self.table.sent(each)
            sent += len(each.files)
        return sent

    def _send(self, letters: Pending) -> None:
        rows = ReadingLetters(letters.target, letters.files)
        dead_letters.send(
            rows.frame(self.spark),
            path=self.letters_to,
            topic=letters.topic,
            source=f"export {letters.topic}",
            query=letters.query,
            batch=letters.batch,
        )


def _payloads(schema: str | Mapping[str, str] | None) -> dict[str, Payload]:
    given = {"": schema} if isinstance(schema, str) else dict(schema or {})
    return {topic: payload_of(ddl) for topic, ddl in given.items()}


def _check_outside(output: str, paths: Sequence[str]) -> None:
    """Refuse an output in a log directory: it would look like a topic, and stop a Kafka broker."""
    place = directory_of(output) if output else None
    for path in paths:
        root = os.path.realpath(path)
        if place is not None and os.path.commonpath([os.path.realpath(place), root]) == root:
            raise ConfigError(f"output={output}: it lies in the log directory {path}; give another place")
