"""``stratalog sql``: a query over topics, run by DuckDB inside this process.

Every topic that the query names is a table with the columns of a scan. It is read as a stream, again for each
place in the query where it stands, and always to the ends that the partitions had when the query began. Only
columns that the query names are decoded. SQL gets no access to files and the network unless it is allowed.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

from stratalog.analysis.packages import needed
from stratalog.analysis.payloads import Payload, decoded, to_text
from stratalog.cli.commands.files import ForceOption, OutOption, arrow_writer, form_of, new_file
from stratalog.cli.commands.formats import Decoding
from stratalog.cli.console import Table, counted, escaped, note, show
from stratalog.cli.guard import WrongUsage
from stratalog.cli.session import Isolation, IsolationOption, Session, arg, command, opt
from stratalog.config.units import format_bytes, parse_time
from stratalog.errors import InvalidArgumentError, StratalogError
from stratalog.format.batch import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.store import Store, Topic
    from stratalog.store.reading import Selection

MOST_ROWS = 1000
"""A table for people ends here; files, --json and --csv do not."""
BATCH_ROWS = 10_000
_RAISED_LATE = re.compile(r"[A-Z][\w ]* Error: ")
"""An error of DuckDB that comes while the result is read, as an OSError."""
_LOCKED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
}


@command
def sql(
    session: Session,
    query: Annotated[str, arg("QUERY", "The query; every topic is a table.")],
    since: Annotated[
        str | None, opt("--since TIME", "Only records from this time on: -10m, an ISO time.")
    ] = None,
    until: Annotated[str | None, opt("--until TIME", "Only records before this time.")] = None,
    isolation: IsolationOption = Isolation.READ_UNCOMMITTED,
    as_csv: Annotated[bool, opt("--csv", "CSV on stdout instead of a table.")] = False,
    out: OutOption = None,
    force: ForceOption = False,
    allow_files: Annotated[
        bool, opt("--allow-files", "Let SQL read and write files and the network.")
    ] = False,
    *,
    decoding: Decoding,
) -> None:
    """Run SQL over topics: "select key, count(*) from orders group by key". Needs DuckDB.

    Columns: key, value, topic, partition, "offset" (quoted: a reserved word), timestamp, "timestampType",
    headers. With --value-format json the value is text for DuckDB's JSON functions: value->>'$.amount'; Avro
    and Protobuf give structs: value.amount.
    """
    if as_csv and session.json:
        raise WrongUsage("--csv and --json cannot be used together")
    form = "" if out is None else form_of(out)
    formats = decoding.formats()
    now_ms = time.time_ns() // 1_000_000
    selection: Selection = {"isolation": isolation.value}
    if since is not None:
        selection["since"] = parse_time(since, now_ms)
    if until is not None:
        selection["until"] = parse_time(until, now_ms)
    with session.read() as store, _query(store, query, formats, selection, allow_files) as reader:
        if out is not None:
            with new_file(out, force=force) as file:
                if form in ("parquet", "arrow"):
                    with arrow_writer(file, form, reader.schema) as writer:
                        rows = _each(reader, writer.write_batch)
                else:
                    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
                    rows = _write_text(reader, text, as_csv=form == "csv")
                    text.detach()
                size = file.tell()
            facts = {"file": out, "format": form, "rows": rows, "bytes": size}
            session.tell(facts, f"wrote {counted(rows, 'row')} to {out}, {format_bytes(size)}")
        elif session.json or as_csv:
            _write_text(reader, sys.stdout, as_csv=as_csv)
        else:
            _show(reader)


class _Tables:
    """The topics as DuckDB sees them, and the first error that reading one of them raised."""

    def __init__(self, store: Store, formats: dict[str, Payload], selection: Selection) -> None:
        self._store = store
        self._formats = formats
        self._selection = selection
        self.error: BaseException | None = None

    def table(self, name: str, columns: list[str]) -> _Stream:
        """Return a topic, with the ends that it has now."""
        topic = self._store.topic(name)
        level = self._selection["isolation"]
        ends = {number: topic.high_watermark(number, level) for number in range(topic.partitions)}
        return _Stream(lambda: self._reader(topic, columns, ends))

    def _reader(self, topic: Topic, columns: list[str], ends: dict[int, int]) -> pa.RecordBatchReader:
        import pyarrow as pa

        selection: Selection = {**self._selection, "end": ends}
        reader = decoded(lambda names: topic.scan(None, names, **selection), columns, self._formats)

        def batches() -> Iterator[Any]:
            try:
                yield from reader
            except StratalogError as error:
                self.error = error
                raise

        return pa.RecordBatchReader.from_batches(reader.schema, batches())


class _Stream:
    """Something that can be read more than once: each time a new stream of Arrow data."""

    def __init__(self, open_reader: Callable[[], pa.RecordBatchReader]) -> None:
        self._open = open_reader

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._open().__arrow_c_stream__(requested_schema)


@contextmanager
def _query(
    store: Store, query: str, formats: dict[str, Payload], selection: Selection, allow_files: bool
) -> Iterator[pa.RecordBatchReader]:
    """Yield the result of a query as it is computed."""
    duckdb = needed("duckdb", "`stratalog sql`", "'stratalog[sql]'")
    tables = _Tables(store, formats, selection)
    connection = duckdb.connect(":memory:", config={} if allow_files else _LOCKED)
    relation = reader = None
    try:
        connection.execute("SET TimeZone = 'UTC'")
        with suppress(duckdb.Error):  # names of Python variables are no tables
            connection.execute("SET python_enable_replacement_scans = false")
        words, columns = _named(connection, query)
        for name in _wanted(store.topics(), words, query):
            connection.register(name, tables.table(name, columns))
        connection.execute("SET lock_configuration = true")
        relation = connection.sql(query)
        if relation is None:
            raise InvalidArgumentError("not a query: `stratalog sql` takes one that returns rows")
        arrow = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
        reader = arrow(BATCH_ROWS)
        yield reader
    except (duckdb.Error, OSError) as error:
        if tables.error is not None:
            raise tables.error from error
        if not isinstance(error, duckdb.Error) and not _RAISED_LATE.match(str(error)):
            raise
        raise InvalidArgumentError(_explained(str(error), query, store.topics())) from error
    finally:
        del relation, reader
        connection.close()


def _wanted(topics: list[str], words: set[str] | None, query: str) -> list[str]:
    """Return the topics that a query can mean; names that differ only in case are one name to DuckDB."""
    by_name: dict[str, list[str]] = {}
    for name in topics:
        if words is None or name.lower() in words:
            by_name.setdefault(name.lower(), []).append(name)
    wanted = []
    for names in by_name.values():
        exact = [name for name in names if name in query] if len(names) > 1 else names
        if len(exact) > 1:
            raise InvalidArgumentError(f"{' and '.join(exact)} are the same name in SQL: use one of them")
        wanted += exact
    return wanted


def _explained(text: str, query: str, topics: list[str]) -> str:
    """Return DuckDB's error on one line, without the query again, with a hint where the cause is known."""
    missing = re.match(r"Catalog Error: Table with name (.+) does not exist", text)
    if missing:
        from stratalog.store.catalog import no_topic

        return str(no_topic(missing[1], topics))
    text = " ".join(text.partition("\nLINE ")[0].split())
    if "syntax error" in text:
        unquoted = [name for name in topics if not name.isidentifier() and re.search(_bare(name), query)]
        if unquoted:
            text += f'; quote the topic name: "{max(unquoted, key=len)}"'
        elif re.search(_bare("offset"), query, re.IGNORECASE):
            text += '; offset is a word of SQL: write "offset"'
    if unknown := re.match(r'Binder Error: Referenced column "(\w+)" not found', text):
        text += (
            f"; a topic has the columns {', '.join(COLUMNS)}; a field of a JSON value is"
            f" value->>'$.{unknown[1]}' with --value-format json"
        )
    if "TimestampTZ to Microsecond" in text:
        text = (
            "a record's timestamp is past the year 294246, the last that DuckDB supports: exclude it with"
            " --until"
        )
    if "disabled by configuration" in text:
        text += "; --allow-files allows it"
    return text


def _bare(name: str) -> str:
    """Return the pattern of a name that stands in a query without quotes."""
    return rf'(?<!["\w]){re.escape(name)}(?!["\w])'


def _named(connection: Any, query: str) -> tuple[set[str] | None, list[str]]:
    """Return every word of a query, lower case, and the columns that it can need.

    All columns where the query may mean one without naming it: a star, a natural join, a table as a value,
    a column by its number or by a name that the query gives it. None where it names tables inside a text.
    """
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    tree = json.loads(text)
    if tree.get("error"):
        return None, list(COLUMNS)
    words: set[str] = set()
    references: set[str] = set()
    tables: set[str] = set()
    everything = False
    left: list[Any] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, str):
            words.add(node.lower())
        elif isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            left += node.values()
            kind = node.get("type")
            if node.get("function_name") == "query":
                return None, list(COLUMNS)
            everything = (
                everything
                or kind in ("STAR", "POSITIONAL_REFERENCE")
                or node.get("ref_type") == "NATURAL"
                or bool(node.get("column_name_alias"))
            )
            if kind == "COLUMN_REF":
                references.update(str(each).lower() for each in node.get("column_names", ())[-1:])
            if "table_name" in node or "subquery" in node:
                tables.update(str(node.get(each, "")).lower() for each in ("alias", "table_name"))
    if everything or references & tables or "set_operation_node" in words:
        return words, list(COLUMNS)
    # A table without columns cannot be counted.
    return words, [name for name in COLUMNS if name.lower() in words] or ["partition"]


def _each(reader: pa.RecordBatchReader, put: Callable[[Any], object]) -> int:
    rows = 0
    for batch in reader:
        put(batch)
        rows += batch.num_rows
    return rows


def _write_text(reader: pa.RecordBatchReader, out: Any, *, as_csv: bool) -> int:
    """Write rows as CSV or as JSON lines. Bytes are text, or base64 if they are not UTF-8."""
    names = reader.schema.names
    if not as_csv:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidArgumentError(
                f"two columns are named {twice}: an object needs names of their own (as)"
            )

        def put_json(batch: Any) -> None:
            columns = [_values(column) for column in batch.columns]
            out.writelines(
                to_text(dict(zip(names, row, strict=True))) + "\n" for row in zip(*columns, strict=True)
            )

        return _each(reader, put_json)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)

    def put_csv(batch: Any) -> None:
        columns = [_values(column) for column in batch.columns]
        writer.writerows([_cell(each) for each in row] for row in zip(*columns, strict=True))

    return _each(reader, put_csv)


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column; text for a time that Python has no object for, past the year 9999."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_value(each) for each in column]


def _value(scalar: pa.Scalar) -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_nested(scalar.type):
            raise InvalidArgumentError(
                "a time inside a list or a struct is out of the range that can be shown: select it by itself"
            ) from None
        return scalar.cast(pa.string()).as_py()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    text = to_text(value)
    return json.loads(text) if text.startswith('"') else text


def _show(reader: pa.RecordBatchReader) -> None:
    """Print a table for people; note that there are more rows if there are."""
    import pyarrow as pa

    numeric = [pa.types.is_integer(each.type) or pa.types.is_floating(each.type) for each in reader.schema]
    table = Table(
        *(
            f">{name}" if right else f"~{name}"
            for name, right in zip(reader.schema.names, numeric, strict=True)
        )
    )
    more = False
    for batch in reader:
        for row in zip(*map(_values, batch.columns), strict=True):
            if len(table.rows) >= MOST_ROWS:
                more = True
                break
            table.add(*("" if each is None else _printable(_cell(each)) for each in row))
        if more:
            break
    table.footer = counted(len(table.rows), "row")
    show(table)
    if more:
        note(f"only the first {MOST_ROWS:,} rows are shown: --csv, --json and --out have all")


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return escaped(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value)
