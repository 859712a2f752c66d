"""``export``: sealed segments to Parquet partitioned by topic and date, or to an Iceberg table.

    <output>/topic=orders/date=2026-01-31/v00000001-00000-0001.parquet

Columns are the source's (``topic`` is in the path): ``key, value, partition, offset, timestamp,
timestampType, headers``; with a schema the fields of JSON values as columns in the place of ``value``.
Exactly once: the output's own commit log (see `export_log`) says which offsets it holds, so a run writes
what is new, and one that died is made good by the next. Spark schedules ranges, the kernel reads and Arrow
writes in the workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stratalog.archive.objects import directory_of
from stratalog.errors import ConfigError
from stratalog.log.reader import check_isolation
from stratalog.spark.pipelines.export_job import Job
from stratalog.spark.pipelines.export_json import Payload, payload_of
from stratalog.spark.pipelines.export_log import CommitLog
from stratalog.spark.pipelines.export_merge import SMALL_BYTES
from stratalog.spark.pipelines.export_parquet import ParquetExport
from stratalog.spark.pipelines.export_places import place_of
from stratalog.spark.pipelines.export_plan import Moment, Wanted, check_times, moment
from stratalog.spark.pipelines.places import Path, paths_of
from stratalog.spark.pipelines.ranges import where_of
from stratalog.spark.pipelines.result import PipelineResult, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
TABLES = ("parquet", "iceberg")


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
    table: str = "parquet",
    table_name: str = "stratalog.records",
    catalog: Mapping[str, str] | None = None,
    isolation: str = "read_committed",
    include_active: bool = False,
    fail_on_data_loss: bool = True,
    merge: bool | None = None,
    merge_bytes: int = SMALL_BYTES,
    compression: str = "zstd",
    progress: Progress | None = None,
) -> PipelineResult:
    """Write the sealed records that ``output`` does not hold yet; every record is there once, whatever fails.

    ``output`` is a directory or a URL (s3://, gs://, az://). ``topics``: all but Kafka's own unless named.
    ``since`` and ``until`` (times of records) take only those; run again, or before or after runs without
    them, nothing is written twice. ``replace`` writes the dates from ``since`` to ``until`` again, as the
    log has them now. ``schema`` is a DDL string, or one by topic: JSON values become columns, and what
    cannot be decoded goes to ``<topic>.dead-letters`` in ``path`` or ``dead_letters_path``.
    ``include_active`` goes up to the end readers see. What an aborted transaction wrote is left out unless
    ``isolation="read_uncommitted"``. Offsets that left the log before they were exported are an error unless
    ``fail_on_data_loss=False``. ``merge``: small files become larger ones when many
    have gathered (None), whenever there are two (True), or never. ``table="iceberg"`` writes the table
    ``table_name``, in a catalog beside the data or in the one that ``catalog`` (pyiceberg's properties)
    names.
    """
    began = time.monotonic()
    now_ms = time.time_ns() // 1_000_000
    if table not in TABLES:
        raise ConfigError(f"table: {table!r} is not known, takes {' or '.join(TABLES)}")
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression: {compression!r} is not known, takes {', '.join(COMPRESSIONS)}")
    wanted = Wanted(
        (topics,) if isinstance(topics, str) else tuple(topics or ()),
        moment(since, "since", now_ms),
        moment(until, "until", now_ms),
        check_isolation(isolation),
        include_active,
        fail_on_data_loss,
    )
    check_times(wanted, replace=replace)
    _check_outside(output, (*paths_of(path), *paths_of(dead_letters_path)))
    job = Job(
        spark=spark,
        where=where_of(path, archive),
        output=directory_of(output) or output if output else "",
        wanted=wanted,
        replace=replace,
        payloads=_payloads(schema),
        keep_value=keep_value,
        letters_to=paths_of(dead_letters_path) or paths_of(path),
        compression=compression,
        now_ms=now_ms,
        progress=progress,
    )
    if schema and getattr(spark, "_jsparkSession", None) is None:
        raise ConfigError("schema: payloads are not decoded through Spark Connect; give --master the cluster")
    if schema and not job.letters_to:
        raise ConfigError(
            "dead_letters_path: nothing says which store takes the records that cannot be decoded; give"
            " one, the archive is read-only"
        )
    if table == "iceberg":
        from stratalog.spark.pipelines.export_iceberg import export_iceberg

        counts, details, notes = export_iceberg(job, table_name, catalog, merge, merge_bytes)
    else:
        counts, details, notes = ParquetExport(job).export(merge, merge_bytes)
    return PipelineResult("export", counts, details, notes, seconds=time.monotonic() - began)


def committed_files(output: str) -> list[str]:
    """The data files of a Parquet output that count, as paths or URLs.

    For readers that want one commit and no half of the next: a listing of the directory may show some files
    of a commit before the others. A commit counts here when all of its files are there.
    """
    place = place_of(output)
    state = CommitLog(place.objects).visible(place.exists)
    return sorted(place.address(name) for name in state.files)


def _payloads(schema: str | Mapping[str, str] | None) -> dict[str, Payload]:
    given = {"": schema} if isinstance(schema, str) else dict(schema or {})
    return {topic: payload_of(ddl) for topic, ddl in given.items()}


def _check_outside(output: str, paths: Sequence[str]) -> None:
    """Other directories in a log directory stop a Kafka broker, and look like topics to us."""
    place = directory_of(output) if output else None
    for path in paths:
        root = os.path.realpath(path)
        if place is not None and os.path.commonpath([os.path.realpath(place), root]) == root:
            raise ConfigError(f"output={output}: it lies in the log directory {path}, takes another place")
