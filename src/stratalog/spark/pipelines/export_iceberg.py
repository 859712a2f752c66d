"""An export to an Iceberg table, through pyiceberg.

The executors write Parquet files below the table's location; a commit of the table adds them. What the
table holds of the logs is in one of its properties, ``stratalog.export``, which the same commit changes:
there is no moment at which the one is true and the other not, and readers see a commit whole or not at all.
Each snapshot says in its summary which offsets it brought. The table is partitioned by ``topic`` and by the
day of ``timestamp``.

Of two exports at once one commits; the other finds the table changed under it and fails, unless it was
somebody else's change: then it tries again. Crash policy: files of a run that did not commit belong to no
snapshot, and are swept once the commit of that number is made.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stratalog.archive import open_objects
from stratalog.archive.objects import directory_of
from stratalog.errors import ConfigError, CorruptionError, StoreError, StratalogError, UnsupportedFormat
from stratalog.fs import RealFileSystem
from stratalog.spark.logs import opened
from stratalog.spark.pipelines.export_coverage import Extent, joined
from stratalog.spark.pipelines.export_iceberg_table import (
    Replacing,
    TableTarget,
    add_to,
    ensure_table,
    fit_schema,
    small_files,
    table_columns,
)
from stratalog.spark.pipelines.export_job import Job, Outcome, send_letters
from stratalog.spark.pipelines.export_log import FORMAT
from stratalog.spark.pipelines.export_merge import Merging, merges
from stratalog.spark.pipelines.export_plan import Plan, plan, plan_again
from stratalog.spark.pipelines.export_tasks import Written, tasks_of
from stratalog.spark.pipelines.jobs import watched
from stratalog.spark.pipelines.spread import Piece, slots, spread

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

STATE = "stratalog.export"
Change = Callable[["Transaction", Mapping[str, str]], int]
"""What to do to the table in a transaction; the snapshot's summary goes with it."""
TRIES = 5
_RUN = re.compile(r"([0-9]{8,})-([0-9a-f]+)/")


@dataclass(frozen=True, slots=True)
class TableState:
    """What the table's property says."""

    version: int = 0
    run: str = ""
    export_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    covered: tuple[Extent, ...] = ()
    letters: tuple[tuple[str, str, int], ...] = ()
    """Dead letters of the newest commit: topic, file, records. They are sent when the files are gone."""
    letters_to: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "version": self.version,
                "run": self.run,
                "export_id": self.export_id,
                "covered": [each.to_json() for each in self.covered],
                "letters": self.letters,
                "letters_to": self.letters_to,
            }
        )

    @classmethod
    def of(cls, table: Table) -> TableState:
        text = table.properties.get(STATE)
        if text is None:
            return cls()
        where = f"{'.'.join(table.name())}, property {STATE}"
        try:
            said = json.loads(text)
            if said["format"] != FORMAT:
                raise UnsupportedFormat(
                    f"{where}: version {said['format']!r} of this format, known is {FORMAT}"
                )
            return cls(
                int(said["version"]),
                str(said["run"]),
                str(said["export_id"]),
                tuple(map(Extent.from_json, said["covered"])),
                tuple((str(t), str(f), int(n)) for t, f, n in said["letters"]),
                tuple(map(str, said["letters_to"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"not what an export leaves there: {error!r}", path=where) from error


def export_iceberg(
    job: Job, name: str, properties: Mapping[str, str] | None, merge: bool | None, merge_bytes: int
) -> Outcome:
    """One run: what is new into the table ``name``, as ``namespace.table``."""
    return _IcebergExport(job, name, properties).export(merge, merge_bytes)


def catalog_of(output: str, properties: Mapping[str, str] | None) -> Catalog:
    """The catalog that the properties name; without them one in SQLite, in the output directory."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise ConfigError(
            "table=iceberg needs the package pyiceberg: pip install 'stratalog[iceberg]'"
        ) from error
    said = dict(properties or {})
    if not said:
        path = directory_of(output)
        if path is None:
            raise ConfigError(
                f"output={output}: the embedded catalog lies in a directory; for an object store name a"
                " catalog (catalog={'type': 'rest', 'uri': …}, --catalog type=rest --catalog uri=…)"
            )
        RealFileSystem().make_dir(path)
        said = {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
    try:
        return load_catalog(said.pop("name", "stratalog"), **said)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"catalog: {error}") from error


class _IcebergExport:
    def __init__(self, job: Job, name: str, properties: Mapping[str, str] | None) -> None:
        self._job = job
        self._run = uuid.uuid4().hex
        self._catalog = catalog_of(job.output, properties)
        self._name = name
        self._location = f"{job.output.rstrip('/')}/{name}" if properties and job.output else None
        self._table: Table = ensure_table(self._catalog, name, self._location)

    def export(self, merge: bool | None, merge_bytes: int) -> Outcome:
        job = self._job
        state = self._recover()
        replacing = Replacing(job.wanted.topics, *job.wanted.times) if job.replace else None
        with opened(job.where) as logs:
            if replacing is None:
                planned = plan(logs, job.wanted, state.covered)
            else:
                planned = plan_again(logs, job.wanted, state.covered, replacing.oldest(self._table))
        names = ("records", "files", "bytes", "dead_letters", "replaced_files", "merged_files")
        counts = dict.fromkeys(names, 0)
        if planned:
            written = self._write(planned, state.version + 1)
            files = [file for each in written for file in each.files]
            letters = [each for one in written for each in one.letters]
            if files or letters or replacing is not None:
                state, removed = self._commit(state, planned, written, replacing)
                counts |= {
                    "records": sum(file.records for file in files),
                    "files": len(files),
                    "bytes": sum(file.size_bytes for file in files),
                    "dead_letters": sum(records for _, _, records in letters),
                    "replaced_files": removed,
                }
        if merge is not False:
            state, counts["merged_files"] = self._merge(state, bool(merge), merge_bytes)
        details: dict[str, object] = {
            "table": self._name,
            "location": self._table.location(),
            "metadata": self._table.metadata_location,
            "version": state.version,
            "exported": [each.to_json() for each in planned.extents],
        }
        return counts, details, job.notes(planned)

    # -- commits -------------------------------------------------------------------------------------

    def _recover(self) -> TableState:
        state = TableState.of(self._table)
        if state.letters:
            self._send(state)
        if state.version:
            self._sweep(state)
        return state

    def _commit(
        self, state: TableState, planned: Plan, written: Sequence[Written], replacing: Replacing | None
    ) -> tuple[TableState, int]:
        new = TableState(
            state.version + 1,
            self._run,
            state.export_id,
            tuple(joined((*state.covered, *planned.extents))),
            tuple(letters for each in written for letters in each.letters),
            self._job.letters_to,
        )
        paths = [file.staged for each in written for file in each.files]
        removed = self._change(
            state, new, planned, lambda tx, said: add_to(tx, paths, said, replacing, self._table)
        )
        if new.letters:
            self._send(new)
        self._sweep(new)
        return new, removed

    def _change(self, state: TableState, new: TableState, planned: Plan, change: Change) -> int:
        """Commit a change together with the state it leads to; StoreError when another export was first."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        summary = {
            f"{STATE}.version": str(new.version),
            f"{STATE}.run": new.run,
            f"{STATE}.offsets": json.dumps([each.to_json() for each in planned.extents]),
        }
        done = 0
        for left in reversed(range(TRIES)):
            try:
                transaction = _without_retries(self._table).transaction()
                transaction.set_properties({STATE: new.to_json()})
                done = change(transaction, summary)
                transaction.commit_transaction()
                return done
            except (CommitFailedException, CommitStateUnknownException, FileNotFoundError) as error:
                # Our files are gone when the export that was first has swept them.
                self._table.refresh()
                now = TableState.of(self._table)
                if (now.run, now.version) == (new.run, new.version):
                    return done
                if now.version != state.version:
                    raise StoreError(
                        f"{self._name}: another export made commit {new.version} first; run this one again"
                    ) from error
                if not left or isinstance(error, FileNotFoundError):
                    raise StoreError(
                        f"{self._name}: commit {new.version} cannot be made: {error}; run this export again"
                    ) from error
        raise AssertionError("unreachable")

    def _send(self, state: TableState) -> None:
        """Send the dead letters of the newest commit; their files go when that is done."""
        target = self._target(state.version, state.run)
        if not all(target.exists(file) for _, file, _ in state.letters):
            return
        send_letters(self._job, target, state.export_id, state.version, state.letters, state.letters_to)
        for _, file, _ in state.letters:
            target.delete(file)

    def _sweep(self, state: TableState) -> None:
        """Remove the files of runs that meant to make this commit and did not."""
        with suppress(StratalogError, OSError):  # some catalogs' stores cannot be listed from here
            objects = open_objects(f"{self._table.location()}/data", RealFileSystem())
            found = [(info.key, _RUN.match(info.key)) for info in objects.list("")]
            objects.delete(
                key for key, run in found if run and int(run[1]) == state.version and run[2] != state.run
            )

    # -- work ----------------------------------------------------------------------------------------

    def _target(self, version: int, run_id: str) -> TableTarget:
        directory = f"{self._table.location()}/data/{version:08d}-{run_id}"
        return TableTarget(directory, tuple(sorted(self._table.io.properties.items())))

    def _write(self, planned: Plan, version: int) -> list[Written]:
        work = self._job.exporting(planned, self._target(version, self._run), table_columns())
        fit_schema(self._table, [payload for _, payload in work.payloads])
        return self._done(tasks_of(planned.ranges, slots(self._job.spark)), work, "export", version)

    def _done(
        self, pieces: Sequence[Piece], work: Callable[[Piece], Written], what: str, version: int
    ) -> list[Written]:
        try:
            with watched(self._job.spark, self._job.progress, what):
                return spread(self._job.spark, pieces, work)
        except Exception as error:
            self._table.refresh()
            if TableState.of(self._table).version >= version:
                raise StoreError(
                    f"{self._name}: another export made commit {version} first; run this one again"
                ) from error
            raise

    def _merge(self, state: TableState, asked: bool, small_bytes: int) -> tuple[TableState, int]:
        self._table.refresh()
        known = small_files(self._table, self._job.wanted.topics, small_bytes)
        found = merges(known, asked=asked, small_bytes=small_bytes)
        if not found:
            return state, 0
        new = replace(state, version=state.version + 1, run=self._run, letters=(), letters_to=())
        work = Merging(self._target(new.version, self._run), self._job.compression)
        written = self._done(found, work, "merge", new.version)
        old = {file.path: known[file] for merge in found for file in merge.files}
        paths = [file.staged for each in written for file in each.files]
        self._change(
            state, new, Plan(), lambda tx, said: add_to(tx, paths, said, None, self._table, instead_of=old)
        )
        self._sweep(new)
        return new, len(old)


def _without_retries(table: Table) -> Table:
    """The table, such that pyiceberg does not try again by itself: it would not see whose commit came first.

    Only in memory; the table's own setting stays.
    """
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table
