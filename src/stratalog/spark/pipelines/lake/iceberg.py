"""An export to an Iceberg table, through pyiceberg.

The executors write Parquet files below the table's location; a commit of the table adds them. The end offset
of each log is a table property, ``stratalog.end.<topic id>:<partition>``, which the same transaction changes;
readers see a commit whole or not at all. The table is partitioned by ``topic`` and by the day of
``timestamp``.

Of two exports at once one commits; the other finds the table changed under it. When another program changed
it, the commit is tried again; when an end moved, the run plans again. Crash policy: files of a run that did
not commit belong to no snapshot; ``remove_orphan_files`` of Spark or Trino removes them. Dead letters are
named in a property until a run has sent them. pyiceberg cannot compact a table: ``rewrite_data_files`` of
Spark or Trino does.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stratalog.archive import open_objects
from stratalog.archive.objects import directory_of
from stratalog.config.units import format_time
from stratalog.errors import ConfigError, CorruptionError, StorageError, StoreError
from stratalog.fs import RealFileSystem
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.lake.files import FileTarget
from stratalog.spark.pipelines.lake.json_columns import Payload
from stratalog.spark.pipelines.lake.tables import (
    COLUMNS,
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
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

END, LETTERS = "stratalog.end.", "stratalog.dead-letters"
"""Properties: the end offset of a log, and the dead letters of the newest commit that had some."""
TRIES = 5
METRICS = {
    f"write.metadata.metrics.column.{name}": "none"
    for name in ("key", "value", "headers.element.key", "headers.element.value")
}
"""The files have no smallest and largest value of these."""


def catalog_of(output: str, properties: Mapping[str, str] | None) -> Catalog:
    """Return the catalog that the properties name; without them one in SQLite, in the output directory."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise ConfigError(
            "table=iceberg needs the package pyiceberg: pip install 'stratalog[iceberg]'"
        ) from error
    given = dict(properties or {})
    if not given:
        path = directory_of(output)
        if path is None:
            raise ConfigError(
                f"output={output}: the embedded catalog lies in a directory; for an object store pass a"
                " catalog (catalog={'type': 'rest', 'uri': …}, --catalog type=rest --catalog uri=…)"
            )
        RealFileSystem().make_dir(path)
        given = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
    try:
        return load_catalog(given.pop("name", "stratalog"), **given)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"catalog: {error}") from error


@dataclass(frozen=True)
class TableTarget:
    """A `FileTarget` below the table's location, through pyiceberg's own file access."""

    directory: str
    properties: tuple[tuple[str, str], ...]

    def begin(self, name: str) -> Any:
        return self._io.new_output(self.address(name)).create(overwrite=True)

    def finish(self, name: str, sink: Any) -> int:
        sink.close()
        return len(self._io.new_input(self.address(name)))

    def address(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def reading(self, name: str) -> Any:
        return self._io.new_input(self.address(name)).open()

    def exists(self, name: str) -> bool:
        return self._io.new_input(self.address(name)).exists()

    def delete(self, name: str) -> None:
        self._io.delete(self.address(name))

    @property
    def _io(self) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.properties), self.directory)


class IcebergOutput:
    """The table of an export."""

    columns: tuple[str, ...] = ("topic", *COLUMNS)
    split = False

    def __init__(self, output: str, name: str, properties: Mapping[str, str] | None) -> None:
        if "." not in name:
            raise ConfigError(f"table_name: {name!r} has no namespace, expected NAMESPACE.TABLE")
        self._catalog = catalog_of(output, properties)
        self._name = name
        self._location = f"{output.rstrip('/')}/{name}" if properties and output else None
        self._table = self._load()

    @property
    def url(self) -> str:
        return self._name

    def _load(self) -> Table:
        """Load the table; create it if it does not exist, partitioned by topic and by day."""
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform, IdentityTransform

        with suppress(NoSuchTableError):
            return self._catalog.load_table(self._name)
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with suppress(TableAlreadyExistsError):
            making = self._catalog.create_table_transaction(
                self._name, arrow_schema(self.columns), self._location, properties=METRICS
            )
            with making.update_spec() as spec:
                spec.add_field("topic", IdentityTransform(), "topic")
                spec.add_field("timestamp", DayTransform(), "date")
            making.commit_transaction()
        return self._catalog.load_table(self._name)

    # -- the table as it is --------------------------------------------------------------------------

    def prepare(self, logs: Sequence[Log], payloads: Sequence[Payload], *, value: bool) -> list[Payload]:
        from pyiceberg.exceptions import CommitFailedException

        self._table.refresh()
        known = {each.name: plain_type(each.type) for each in self._table.schema().as_arrow()}
        kinds, fitted = widest(known, payloads)
        try:
            if kinds != known:
                with self._table.update_schema() as change:
                    changed_kinds = [each for each in kinds.items() if known.get(each[0]) != each[1]]
                    change.union_by_name(pa.schema(changed_kinds))
            if changed := new_ids(self._table.properties, logs):
                with self._table.transaction() as noting:
                    noting.set_properties(changed)
        except CommitFailedException as error:
            raise ConflictError(
                f"{self._name}: another program changed the table: {error}; run this one again"
            ) from error
        return fitted

    def ids_of(self, topic: str) -> set[str]:
        return ids_in(self._table.properties, topic)

    def ends(self, logs: Sequence[Log]) -> dict[Log, int]:
        self._table.refresh()
        found = ((log, self._table.properties.get(END + log.key)) for log in logs)
        try:
            return {log: int(text) for log, text in found if text is not None}
        except ValueError as error:
            raise CorruptionError(f"not an offset: {error}", path=f"{self._name}, property {END}…") from error

    def oldest(self, dates: Dates) -> dict[Pair, int]:
        columns = ("topic", "partition", "offset")
        return smallest_offsets(self._table.scan(_filter(dates), selected_fields=columns).to_arrow())

    def facts(self) -> dict[str, object]:
        self._table.refresh()
        return {
            "table": self._name,
            "location": self._table.location(),
            "metadata": self._table.metadata_location,
        }

    # -- commits -------------------------------------------------------------------------------------

    def target(self, run: str) -> FileTarget:
        return self._target

    @property
    def _target(self) -> TableTarget:
        return TableTarget(f"{self._table.location()}/data", tuple(sorted(self._table.io.properties.items())))

    def commit(self, change: Change) -> int:
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        logs = list(change.ends)
        for left in reversed(range(TRIES)):
            change.check_ends(self._name, self.ends(logs))
            if change.letters and self.pending():
                raise ConflictError(
                    f"{self._name}: dead letters of another export are sent first; run this one again"
                )
            try:
                return self._apply(change)
            except (CommitFailedException, CommitStateUnknownException) as error:
                self._table.refresh()
                if self._table.properties.get(RUN) == change.run:
                    return 0
                if isinstance(error, CommitStateUnknownException):
                    raise StorageError(f"{self._name}: the commit may have failed: {error}") from error
                if not left:
                    raise StoreError(f"{self._name}: the commit failed {TRIES} times: {error}") from error
        raise AssertionError("unreachable")

    def _apply(self, change: Change) -> int:
        properties = {RUN: change.run} | {END + log.key: str(end) for log, end in change.ends.items()}
        summary = {
            RUN: change.run,
            "stratalog.ends": json.dumps({log.key: e for log, e in change.ends.items()}),
        }
        if letters := change.letters_by_topic():
            properties[LETTERS] = json.dumps({"batch": self._letters()["batch"] + 1, "topics": letters})
        transaction = _without_retries(self._table).transaction()
        transaction.set_properties(properties)
        removed = 0
        if change.replacing is not None:
            where = _filter(change.replacing)
            removed = sum(1 for _ in self._table.scan(where).plan_files())
            if removed:
                transaction.delete(where, snapshot_properties=summary)
        target = self._target
        if change.files:
            paths = [target.address(file.name) for file in change.files]
            transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
        else:
            # A snapshot without files makes the catalog compare what the table was.
            with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                pass
        transaction.commit_transaction()
        return removed

    def discard(self, run: str) -> None:
        objects = open_objects(f"{self._table.location()}/data", RealFileSystem())
        objects.delete([info.key for info in objects.list("") if f"{run}-" in info.key])

    def merge(self, topics: Sequence[str], compression: str) -> int:
        raise ConfigError(
            "merge: pyiceberg cannot compact a table; call rewrite_data_files with Spark or Trino instead"
        )

    # -- dead letters --------------------------------------------------------------------------------

    def _letters(self) -> Mapping[str, Any]:
        try:
            found = json.loads(self._table.properties.get(LETTERS, "{}"))
            return {"batch": int(found.get("batch", 0)), "topics": dict(found.get("topics", {}))}
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptionError(
                f"not a value that an export writes there: {error!r}", path=f"{self._name}, {LETTERS}"
            ) from error

    def pending(self) -> list[Pending]:
        self._table.refresh()
        noted, target = self._letters(), self._target
        found = []
        for topic, files in sorted(noted["topics"].items()):
            left = tuple(file for file in files if target.exists(file))
            if left:
                query = f"export-{uuid.uuid5(self._table.metadata.table_uuid, topic).hex}"
                found.append(Pending(topic, query, noted["batch"], left, target))
        return found

    def sent(self, letters: Pending) -> None:
        for file in letters.files:
            with suppress(FileNotFoundError):
                self._target.delete(file)


def _filter(dates: Dates) -> str:
    since, until = (format_time(each).replace("Z", "+00:00") for each in (dates.since_ms, dates.until_ms))
    times = f"timestamp >= '{since}' and timestamp < '{until}'"
    names = ", ".join(f"'{topic}'" for topic in dates.topics)
    return f"{times} and topic in ({names})" if names else times


def _without_retries(table: Table) -> Table:
    """Keep pyiceberg from trying again by itself: it would not see whose commit came first.

    Only in memory; the table's own setting stays.
    """
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table
