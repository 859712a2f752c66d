"""An export to a Delta Lake table, through the package `deltalake`.

    <output>/_delta_log/                            the table's transactions, and its history
    <output>/topic=orders/date=2026-01-31/….parquet data files
    <output>/_dead_letters/<run>/….parquet          records that could not be decoded, until they were sent

The executors write Parquet files below the table; one commit of the driver adds them. The end offset of each
log is the version of an application transaction, ``stratalog:<topic id>:<partition>``, of the same commit.
Delta refuses a commit when another one moved one of its application transactions since the table was read: of
two runs at once one commits, and the other reads and plans again.

Crash policy: before the commit nothing happened; files of a run that died belong to no version of the table
and go with ``vacuum``, which ``--merge`` runs with the table's own retention. After it everything happened
but the dead letters, which stay until a run has sent them. The log entry is synced before a commit returns.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stratalog.archive.objects import directory_of
from stratalog.errors import ConfigError, StorageError
from stratalog.fs import RealFileSystem
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.lake.files import (
    NO_DATE,
    FileTarget,
    FileWriter,
    WrittenFile,
    date_text,
    disk_errors,
    place_of,
)
from stratalog.spark.pipelines.lake.json_columns import Payload, ddl_of
from stratalog.spark.pipelines.lake.tables import (
    COLUMNS,
    LETTERS_PLACE,
    RUN,
    Change,
    ConflictError,
    Dates,
    Log,
    Pending,
    ids_in,
    new_ids,
    plain_type,
    smallest_offsets,
    widest,
)
from stratalog.spark.schema import arrow_schema

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, WriterProperties

PARTITION_BY = ["topic", "date"]
APP = "stratalog"
LETTERS = "stratalog.letters"
"""In a commit's metadata: its files of dead letters by topic."""
END_OF_DATES_US = 253_402_300_800_000_000
"""The year 10000; a later timestamp has no date."""
DAY_MS = 86_400_000
REWRITE_ROWS = 1024
"""Rows in memory at a time, beside the row group that is being written."""
FORGOTTEN_MS = 7 * DAY_MS
"""Dead letters of a run that never committed are removed after this time, as ``vacuum`` does with data."""


def storage_options(url: str) -> dict[str, str]:
    """Return what `deltalake` needs beside the environment, which it reads as the archive does."""
    if not url.startswith(("s3://", "s3a://")):
        return {}
    plain = any(
        os.environ.get(n, "").startswith("http://") for n in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    )
    # A log entry is created only if it is absent: of two commits one wins.
    return {"aws_conditional_put": "etag"} | ({"aws_allow_http": "true"} if plain else {})


def open_table(url: str) -> DeltaTable | None:
    """Open the table; None if there is none."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ImportError as error:
        raise ConfigError(
            "a Delta table needs the package deltalake: pip install 'stratalog[delta]'"
        ) from error
    with delta_errors(url):
        try:
            return DeltaTable(url, storage_options=storage_options(url))
        except TableNotFoundError:
            return None


@contextmanager
def delta_errors(url: str) -> Iterator[None]:
    """Raise the errors of `deltalake` as this package's own; a lost race is a `ConflictError`."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise ConflictError(
            f"{url}: another run changed the table first: {error}; run this one again"
        ) from error
    except (DeltaError, OSError) as error:
        raise StorageError(f"{url}: {str(error).strip().splitlines()[0]}") from error


def application(log_key: str) -> str:
    """Return the id of the application transaction whose version is a log's end."""
    return f"{APP}:{log_key}"


def properties(
    run: str,
    versions: Mapping[str, int],
    metadata: Mapping[str, Any] | None = None,
    *,
    tries: int | None = None,
) -> CommitProperties:
    """Build what a commit carries: the versions of application transactions, and which run made it.

    With ``tries`` 0 it fails when any other commit came first.
    """
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata={RUN: run, **(metadata or {})},
        max_commit_retries=tries,
        app_transactions=[Transaction(name, version) for name, version in sorted(versions.items())],
    )


def writer_properties(compression: str) -> WriterProperties:
    """Return how the table's own operations write files."""
    from deltalake import WriterProperties

    name = {"none": "UNCOMPRESSED", "lz4": "LZ4_RAW"}.get(compression, compression.upper())
    return WriterProperties(compression=name)  # type: ignore[arg-type]


def made_by(table: DeltaTable, run: str) -> int | None:
    """Return the version that this run committed; None if it did not."""
    table.update_incremental()
    return next((entry["version"] for entry in table.history(100) if entry.get(RUN) == run), None)


def sync_log(url: str, version: int) -> None:
    """Make a log entry of a local table survive a power cut; `deltalake` does not sync."""
    path = directory_of(url)
    if path is None:
        return
    fs = RealFileSystem()
    with fs.open(f"{path}/_delta_log/{version:020d}.json", "w") as file:
        file.sync()
    fs.sync_dir(f"{path}/_delta_log")


class DeltaOutput:
    """The table of an export, partitioned by topic and date."""

    columns: tuple[str, ...] = COLUMNS
    split = False

    def __init__(self, url: str, *, rewrite_wider: bool = False, compression: str = "zstd") -> None:
        self.url = url
        self._rewrite_wider = rewrite_wider
        self._compression = compression
        self._place = place_of(url)
        self._found = open_table(url)

    @property
    def table(self) -> DeltaTable:
        assert self._found is not None, "prepare comes first"
        return self._found

    # -- the table as it is --------------------------------------------------------------------------

    def prepare(self, logs: Sequence[Log], payloads: Sequence[Payload], *, value: bool) -> list[Payload]:
        from deltalake import DeltaTable, Schema

        names = [name for name in COLUMNS if value or name != "value"]
        wanted = pa.schema([*arrow_schema(tuple(names)), ("topic", pa.string()), ("date", pa.date32())])
        if self._found is not None:
            with delta_errors(self.url):
                self._found.update_incremental()
        known = {} if self._found is None else self._types()
        kinds, fitted = widest(known, payloads)
        wider = {name: kinds[name] for name, kind in known.items() if kinds[name] != kind}
        for name, kind in wider.items():
            if not self._rewrite_wider:
                raise ConfigError(
                    f"schema: column {name} is {ddl_of(known[name])} in the table and would have to become"
                    f" {ddl_of(kind)}, which delta-rs cannot do without writing the table again; pass"
                    " rewrite_wider (--rewrite-wider) for that, or export to another output, or with"
                    " table=iceberg (--table iceberg), which widens columns"
                )
        for each in dict.fromkeys(name for payload in payloads for name in payload.names):
            wanted = wanted.append(pa.field(each, kinds[each]))
        with delta_errors(self.url):
            if self._found is None:
                self._found = DeltaTable.create(
                    self.url,
                    wanted,
                    mode="ignore",
                    partition_by=PARTITION_BY,
                    storage_options=storage_options(self.url),
                )
                sync_log(self.url, 0)
            if list(self.table.metadata().partition_columns) != PARTITION_BY:
                raise ConfigError(
                    f"output={self.url}: it is another Delta table; pass a directory of its own"
                )
            if wider:
                self._widen(wider, logs)
            there = self._types()
            added = pa.schema([each for each in wanted if each.name not in there])
            if added:
                self.table.alter.add_columns(Schema.from_arrow(added).fields)
            if changed := new_ids(self.table.metadata().configuration, logs):
                self.table.alter.set_table_properties(changed, raise_if_not_exists=False)
        return fitted

    def _types(self) -> dict[str, pa.DataType]:
        return {each.name: plain_type(each.type) for each in pa.schema(self.table.schema().to_arrow())}

    def ids_of(self, topic: str) -> set[str]:
        return ids_in(self.table.metadata().configuration, topic)

    def ends(self, logs: Sequence[Log]) -> dict[Log, int]:
        with delta_errors(self.url):
            self.table.update_incremental()
            return self._ends(logs)

    def _ends(self, logs: Sequence[Log]) -> dict[Log, int]:
        found = ((log, self.table.transaction_version(application(log.key))) for log in logs)
        return {log: version for log, version in found if version is not None}

    def oldest(self, dates: Dates) -> dict[Pair, int]:
        since, until = _days(dates)
        where = (ds.field("date") >= since) & (ds.field("date") < until)
        if dates.topics:
            where &= ds.field("topic").isin(list(dates.topics))
        data = self.table.to_pyarrow_dataset()
        return smallest_offsets(data.to_table(columns=["topic", "partition", "offset"], filter=where))

    def facts(self) -> dict[str, object]:
        rows = pa.table(self.table.get_add_actions(flatten=True))
        return {
            "output": self.url,
            "table": "delta",
            "version": self.table.version(),
            "files_in_all": rows.num_rows,
            "records_in_all": pc.sum(rows["num_records"]).as_py() or 0,
        }

    def _widen(self, wider: Mapping[str, pa.DataType], logs: Sequence[Log]) -> None:
        """Write the table again with wider columns, in one commit; nothing happened before that.

        File by file, one row group at a time: memory does not grow with the table.
        """
        self._check_rewritable()
        table, run = self.table, uuid.uuid4().hex
        ends = {application(log.key): end for log, end in self._ends(logs).items()}
        old = pa.schema(table.schema().to_arrow())
        schema = pa.schema([each.with_type(wider[each.name]) if each.name in wider else each for each in old])
        try:
            actions = [
                added(each, values, time.time_ns() // 1_000_000)
                for number, (path, _, values) in enumerate(self._all_files())
                for each in self._widened(path, values, wider, f"{run}-{number:05d}")
            ]
            table.create_write_transaction(
                actions, "overwrite", schema, PARTITION_BY, commit_properties=properties(run, ends, tries=0)
            )
        except Exception:
            if made_by(table, run) is None:
                self.discard(run)
                raise
        version = made_by(table, run)
        assert version is not None
        sync_log(self.url, version)

    def _check_rewritable(self) -> None:
        protocol = self.table.protocol()
        lost = set(protocol.reader_features or ()) - {"timestampNtz"}
        if protocol.min_reader_version == 2 or lost:
            named = ", ".join(sorted(lost)) or "columnMapping"
            raise ConfigError(
                f"output={self.url}: the table has {named}, which writing it again would lose; widen its"
                " columns with Spark, or export to another output"
            )

    def _widened(
        self, path: str, values: Mapping[str, str | None], wider: Mapping[str, pa.DataType], prefix: str
    ) -> tuple[WrittenFile, ...]:
        """Write one data file again; its columns that are not in ``wider`` stay as they are."""
        place, directory = self._place, path.rpartition("/")[0]
        writer = FileWriter(
            place, lambda _, number: f"{directory}/{prefix}-{number:04d}.parquet", self._compression
        )
        with disk_errors(place.address(path)):
            source = pq.ParquetFile(place.reading(path))
            schema = pa.schema(
                [each.with_type(wider.get(each.name, each.type)) for each in source.schema_arrow]
            )
            for batch in source.iter_batches(REWRITE_ROWS):
                writer.add(0, batch.cast(schema))
            return writer.finish()

    # -- commits -------------------------------------------------------------------------------------

    def target(self, run: str) -> FileTarget:
        return self._place

    def commit(self, change: Change) -> int:
        from deltalake.transaction import AddAction, RemoveAction

        table, now_ms = self.table, time.time_ns() // 1_000_000
        change.check_ends(self.url, self._ends(list(change.ends)))
        doomed = [] if change.replacing is None else self._files_of(change.replacing)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(path, True, now_ms, size=size, partition_values=values)
            for path, size, values in doomed
        ]
        actions += [
            added(file, {"topic": file.topic, "date": None if file.date == NO_DATE else file.date}, now_ms)
            for file in change.files
        ]
        letters = change.letters_by_topic()
        try:
            with delta_errors(self.url):
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    PARTITION_BY,
                    commit_properties=properties(
                        change.run,
                        {application(log.key): end for log, end in change.ends.items()},
                        {LETTERS: letters} if letters else None,
                    ),
                )
        except (StorageError, ConflictError):
            # A request may fail after it took effect, and then conflict with itself when it is tried again.
            if made_by(table, change.run) is None:
                raise
        version = made_by(table, change.run)
        assert version is not None
        sync_log(self.url, version)
        return len(doomed)

    def _files_of(self, dates: Dates) -> list[tuple[str, int, dict[str, str | None]]]:
        since, until = (each.isoformat() for each in _days(dates))
        return [
            (path, size, values)
            for path, size, values in self._all_files()
            if values["date"] is not None
            and since <= values["date"] < until
            and (not dates.topics or values["topic"] in dates.topics)
        ]

    def _all_files(self) -> list[tuple[str, int, dict[str, str | None]]]:
        rows = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return [
            (
                row["path"],
                row["size_bytes"],
                {
                    "topic": row["partition.topic"],
                    "date": None if row["partition.date"] is None else row["partition.date"].isoformat(),
                },
            )
            for row in rows
        ]

    def discard(self, run: str) -> None:
        self._place.remove([info.key for info in self._place.list("") if f"{run}-" in info.key])

    def merge(self, topics: Sequence[str], compression: str) -> int:
        done = 0
        filters: list[Any] = [[("topic", "=", topic)] for topic in topics] or [None]
        with delta_errors(self.url):
            for each in filters:
                merged = self.table.optimize.compact(
                    partition_filters=each, writer_properties=writer_properties(compression)
                )
                done += int(merged["numFilesRemoved"])
                sync_log(self.url, self.table.version())
            self.table.vacuum(dry_run=False)
        return done

    # -- dead letters --------------------------------------------------------------------------------

    def pending(self) -> list[Pending]:
        if self._found is None:
            return []
        there = {info.key: info.modified_ms for info in self._place.list(f"{LETTERS_PLACE}/")}
        if not there:
            return []
        self.table.update_incremental()
        found: list[Pending] = []
        for entry in reversed(self.table.history()):
            for topic, files in entry.get(LETTERS, {}).items():
                left = tuple(file for file in files if there.pop(file, None) is not None)
                if left:
                    found.append(
                        Pending(
                            topic,
                            query_of(self.table.metadata().id, topic),
                            entry["version"],
                            left,
                            self._place,
                        )
                    )
        now_ms = time.time_ns() // 1_000_000
        self._place.remove([key for key, at_ms in there.items() if at_ms < now_ms - FORGOTTEN_MS])
        return found

    def sent(self, letters: Pending) -> None:
        self._place.remove(letters.files)


def query_of(table_id: object, topic: str) -> str:
    """Return the id under which the dead letters of a topic are sent."""
    return f"export-{uuid.uuid5(uuid.NAMESPACE_URL, f'{table_id}/{topic}').hex}"


def committed_files(url: str) -> list[str] | None:
    """Return the data files of the table's newest version; None if there is no table."""
    table = open_table(url)
    return None if table is None else sorted(table.file_uris())


def added(file: WrittenFile, values: Mapping[str, str | None], now_ms: int) -> Any:
    """Return the action that adds a file, with the statistics that readers skip files by."""
    from deltalake.transaction import AddAction

    spans = dict(file.spans)
    if spans["timestamp"][1] >= END_OF_DATES_US:
        spans.pop("timestamp")
    stats = {
        "numRecords": file.records,
        "minValues": {name: _stat(name, low) for name, (low, _) in spans.items()},
        "maxValues": {name: _stat(name, high) for name, (_, high) in spans.items()},
    }
    return AddAction(file.name, file.size_bytes, values, now_ms, True, json.dumps(stats))


def _stat(name: str, value: int) -> object:
    if name != "timestamp":
        return value
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _days(dates: Dates) -> tuple[dt.date, dt.date]:
    since, until = (dt.date.fromisoformat(date_text(ms // DAY_MS)) for ms in (dates.since_ms, dates.until_ms))
    return since, until
