"""The Iceberg side of an export: the table, where its files go, and the changes a commit makes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stratalog.config.units import format_time
from stratalog.errors import ConfigError
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.export_files import date_text
from stratalog.spark.pipelines.export_json import Payload
from stratalog.spark.pipelines.export_log import DataFile, Held
from stratalog.spark.pipelines.export_tasks import COLUMNS
from stratalog.spark.schema import arrow_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table, Transaction

METRICS = {
    f"write.metadata.metrics.column.{name}": "none"
    for name in ("key", "value", "headers.element.key", "headers.element.value")
}
"""Smallest and largest of opaque bytes help nobody, and the files do not have them."""


def table_columns() -> tuple[str, ...]:
    """Of every file: also the topic, which is a column here and not a part of the path."""
    return ("topic", *COLUMNS)


def ensure_table(catalog: Catalog, name: str, location: str | None) -> Table:
    """The table, made when it is not there: partitioned by topic and by the day of the timestamp."""
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
    from pyiceberg.transforms import DayTransform, IdentityTransform

    namespace, _, _ = name.rpartition(".")
    if not namespace:
        raise ConfigError(f"table_name: {name!r} has no namespace, takes NAMESPACE.TABLE")
    with suppress(NoSuchTableError):
        return catalog.load_table(name)
    catalog.create_namespace_if_not_exists(namespace)
    with suppress(TableAlreadyExistsError):
        making = catalog.create_table_transaction(
            name, arrow_schema(table_columns()), location, properties=METRICS
        )
        with making.update_spec() as spec:
            spec.add_field("topic", IdentityTransform(), "topic")
            spec.add_field("timestamp", DayTransform(), "date")
        making.commit_transaction()
    return catalog.load_table(name)


def fit_schema(table: Table, payloads: Sequence[Payload]) -> None:
    """Give the table the columns that payloads bring."""
    for payload in payloads:
        wanted = pa.schema(payload.fields)
        if set(wanted.names) - set(table.schema().column_names):
            with table.update_schema() as change:
                change.union_by_name(wanted)


@dataclass(frozen=True)
class TableTarget:
    """A `Target` below the table's location, through pyiceberg's own way to files."""

    directory: str
    properties: tuple[tuple[str, str], ...]

    def begin(self, name: str) -> Any:
        return self._io.new_output(self.address(name)).create(overwrite=True)

    def finish(self, name: str, sink: Any) -> int:
        sink.close()
        return len(self._io.new_input(self.address(name)))

    def address(self, name: str) -> str:
        return f"{self.directory}/{name}.parquet"

    def reading(self, address: str) -> Any:
        return self._io.new_input(address).open()

    def exists(self, address: str) -> bool:
        return self._io.new_input(address).exists()

    def delete(self, address: str) -> None:
        self._io.delete(address)

    @property
    def _io(self) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.properties), self.directory)


@dataclass(frozen=True)
class Replacing:
    """Dates that are written again; whole days, so whole files go."""

    topics: tuple[str, ...]
    since_ms: int
    until_ms: int

    @property
    def filter(self) -> str:
        since, until = (format_time(each).replace("Z", "+00:00") for each in (self.since_ms, self.until_ms))
        times = f"timestamp >= '{since}' and timestamp < '{until}'"
        names = ", ".join(f"'{topic}'" for topic in self.topics)
        return f"{times} and topic in ({names})" if names else times

    def oldest(self, table: Table) -> dict[Pair, int]:
        """The first offset of each partition that would go."""
        oldest: dict[Pair, int] = {}
        rows = table.scan(self.filter, selected_fields=("topic", "partition", "offset")).to_arrow()
        firsts = rows.group_by(["topic", "partition"]).aggregate([("offset", "min")])
        for row in firsts.to_pylist():
            oldest[row["topic"], row["partition"]] = row["offset_min"]
        return oldest


def add_to(
    transaction: Transaction,
    paths: Sequence[str],
    summary: Mapping[str, str],
    replacing: Replacing | None,
    table: Table,
    instead_of: Mapping[str, IcebergFile] | None = None,
) -> int:
    """Add files to a transaction, after removing what they replace; how many files that were."""
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    removed = 0
    if replacing is not None:
        removed = sum(1 for _ in table.scan(replacing.filter).plan_files())
        if removed:
            transaction.delete(replacing.filter, snapshot_properties=dict(summary))
    if instead_of is not None:
        with transaction.update_snapshot(snapshot_properties=dict(summary)).overwrite() as change:
            for old in instead_of.values():
                change.delete_data_file(old)
            for new in parquet_files_to_data_files(table.io, transaction.table_metadata, iter(paths)):
                change.append_data_file(new)
    elif paths:
        transaction.add_files(list(paths), snapshot_properties=dict(summary), check_duplicate_files=False)
    else:
        # A snapshot without files: it makes the catalog compare what the table was.
        with transaction.update_snapshot(snapshot_properties=dict(summary)).fast_append():
            pass
    return removed


def small_files(table: Table, topics: Sequence[str], small_bytes: int) -> dict[DataFile, IcebergFile]:
    """The small files that exports wrote and nobody deleted rows from, as merging knows files."""
    found: dict[DataFile, IcebergFile] = {}
    columns = str(table.metadata.current_schema_id)
    ours = f"{table.location()}/data/"
    for task in table.scan().plan_files():
        file = task.file
        if (
            task.delete_files
            or file.spec_id != table.spec().spec_id
            or file.file_size_in_bytes >= small_bytes
        ):
            continue
        topic, day = file.partition[0], file.partition[1]
        if not file.file_path.startswith(ours) or (topics and topic not in topics):
            continue
        facts = DataFile(
            path=file.file_path,
            topic=topic,
            date=date_text(day),
            records=file.record_count,
            size_bytes=file.file_size_in_bytes,
            held=(Held(0, _first_offset(table, file), 0, file.record_count),),
            columns=columns,
        )
        found[facts] = file
    return found


def _first_offset(table: Table, file: IcebergFile) -> int:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    bound = (file.lower_bounds or {}).get(table.schema().find_field("offset").field_id)
    return 0 if bound is None else int(from_bytes(LongType(), bound))
