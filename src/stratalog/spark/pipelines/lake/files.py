"""Records as Parquet files in a directory or an object store: what executors write and the driver commits.

A `Place` is a directory that driver and executors both see, or a prefix of an object store. A `FileWriter`
writes Arrow batches there, one file for each date or bucket; rows never pass through the JVM. `decode` turns
JSON values into columns before that.

Crash policy: a file for which `Target.finish` returned is durable, with its name and the directories above
it. `Place.move` gives one file its final name: a reader sees it whole or not at all.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import types

from stratalog.archive import ObjectInfo, open_objects
from stratalog.archive.objects import RemoteObjects, directory_of
from stratalog.errors import ConfigError, DiskFullError, StorageError
from stratalog.format.batch import arrow
from stratalog.fs import RealFileSystem

# -- places ------------------------------------------------------------------------------------------


class Target(Protocol):
    """Where tasks write files. Names are relative to it, with ``/`` between their parts. Picklable."""

    def begin(self, name: str) -> Any:
        """Return what `pyarrow` writes a new file to: a path or a stream."""

    def finish(self, name: str, sink: Any) -> int:
        """Make a written file durable; return its size in bytes."""

    def reading(self, name: str) -> Any:
        """Return what `pyarrow` reads the file from."""

    def address(self, name: str) -> str:
        """Return the file's path or URL, as Spark and people write it."""


class Place(Target, Protocol):
    """A target whose files the driver lists, moves and removes."""

    @property
    def url(self) -> str: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List every file below ``prefix``, which ends with ``/`` or is empty."""

    def move(self, source: str, target: str) -> None:
        """Give a file its final name, durably; replace an older file of that name."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; names that do not exist are ignored."""


def place_of(url: str) -> Place:
    """Return the place of a path or URL; raise ConfigError if it is none."""
    if not url or not url.strip():
        raise ConfigError("output: no place given; expected a directory or s3://, gs://, az://")
    path = directory_of(url)
    if path is not None:
        return LocalPlace(path)
    place = RemotePlace(url.rstrip("/"))
    try:
        _objects(place.url)
    except ConfigError as error:
        raise ConfigError(f"output={url}: {str(error).removeprefix(f'log.archive.url={url}: ')}") from None
    return place


@dataclass(frozen=True)
class LocalPlace:
    """A directory."""

    url: str

    def address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def reading(self, name: str) -> str:
        return self.address(name)

    def begin(self, name: str) -> str:
        path = self.address(name)
        _make_dir(posixpath.dirname(path))
        return path

    def finish(self, name: str, sink: Any) -> int:
        path, fs = self.address(name), RealFileSystem()
        with fs.open(path, "w") as file:
            file.sync()
            size = file.size()
        fs.sync_dir(posixpath.dirname(path))
        return size

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return open_objects(self.url, RealFileSystem()).list(prefix)

    def move(self, source: str, target: str) -> None:
        path, fs = self.address(target), RealFileSystem()
        _make_dir(posixpath.dirname(path))
        fs.rename(self.address(source), path)
        fs.sync_dir(posixpath.dirname(path))

    def remove(self, names: Iterable[str]) -> None:
        open_objects(self.url, RealFileSystem()).delete(names)


def _make_dir(directory: str) -> None:
    fs, missing, at = RealFileSystem(), [], directory
    while not fs.exists(at):
        missing.append(at)
        at = posixpath.dirname(at)
    fs.make_dir(directory)
    for made in missing:
        fs.sync_dir(posixpath.dirname(made))


@dataclass(frozen=True)
class RemotePlace:
    """A prefix of an object store, by `obstore`; credentials come from the environment, as for the archive.

    A file is made in memory and put in one request: an upload in parts that a crash cuts short would leave
    pieces that no listing shows.
    """

    url: str

    def address(self, name: str) -> str:
        return _objects(self.url).url_of(name)

    def reading(self, name: str) -> pa.NativeFile:
        return pa.BufferReader(_objects(self.url).get(name).data)

    def begin(self, name: str) -> pa.NativeFile:
        return pa.BufferOutputStream()

    def finish(self, name: str, sink: Any) -> int:
        data = memoryview(sink.getvalue()).cast("B")
        _objects(self.url).put(name, data)
        return len(data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return _objects(self.url).list(prefix)

    def move(self, source: str, target: str) -> None:
        _objects(self.url).copy(source, target)  # an object store has no rename
        _objects(self.url).delete([source])

    def remove(self, names: Iterable[str]) -> None:
        _objects(self.url).delete(names)


@lru_cache(maxsize=8)
def _objects(url: str) -> RemoteObjects:
    objects = open_objects(url, RealFileSystem())
    assert isinstance(objects, RemoteObjects)
    return objects


@contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Raise pyarrow's errors about a disk as this package's own."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        kind = DiskFullError if full else StorageError
        raise kind(f"{path}: {error}") from error


# -- Parquet files -----------------------------------------------------------------------------------
#
# Batches are kept until they make a row group, in bounded memory, whatever order the dates come in. A task
# whose records spread over very many dates closes files it has not used for long, and may begin a second one
# for the same date.


ROW_GROUP_BYTES = 32 << 20
BUFFERED_BYTES = 128 << 20
OPEN_FILES = 64
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""The date of a record whose timestamp no calendar holds, as Hive and Spark name it."""
SPANS = ("partition", "offset", "timestamp")
_DELTA = ("offset", "timestamp")
_DICTIONARY = ("key", "topic", "partition", "timestampType", "headers.list.element.key")
_NO_STATISTICS = ("key", "value", "headers.list.element.key", "headers.list.element.value")
_OWN = frozenset(arrow.COLUMNS)
_SAMPLE_ROWS, _SAMPLE_BYTES, _SMALLEST_SAMPLE = 1024, 64 << 10, 4 << 10
_WORTH = 0.9
_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file, and what its rows span. ``name`` is relative to the target."""

    name: str
    key: int
    """The day or the bucket of its rows."""
    records: int
    size_bytes: int
    spans: Mapping[str, tuple[int, int]]
    """Smallest and largest ``partition``, ``offset`` and ``timestamp`` (in microseconds)."""
    topic: str = ""
    start: int = 0
    end: int = 0
    """The range of offsets the file belongs to, where files hold one range each."""

    @property
    def date(self) -> str:
        return date_text(self.key)


@dataclass
class _Open:
    name: str
    sink: Any
    writer: pq.ParquetWriter | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    flushed_bytes: int = 0
    records: int = 0
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass
class FileWriter:
    """Parquet files that are written side by side, one at a time for each key, in bounded memory."""

    target: Target
    name: Callable[[int, int], str]
    """Makes a file's name of its key and its number; unique among the attempts of all tasks of a run."""
    compression: str
    file_bytes: int | None = None
    """Past this size a new file begins."""
    topic: str = ""
    span: tuple[int, int] = (0, 0)
    _open: dict[int, _Open] = field(default_factory=dict)
    _done: list[WrittenFile] = field(default_factory=list)
    _buffered_bytes: int = 0
    _number: int = 0

    def add(self, key: int, batch: pa.RecordBatch) -> None:
        """Add rows to the file of a key."""
        if not batch.num_rows:
            return
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            self._number += 1
            name = self.name(key, self._number)
            file = _Open(name, self.target.begin(name))
        self._open[key] = file  # the one used last is the last
        file.batches.append(batch)
        file.buffered_bytes += batch.nbytes
        self._buffered_bytes += batch.nbytes
        _note(file, batch)
        if file.buffered_bytes >= ROW_GROUP_BYTES:
            self._flush(file)
            if self.file_bytes is not None and file.flushed_bytes >= self.file_bytes:
                self._close(key)
        elif self._buffered_bytes >= BUFFERED_BYTES:
            self._flush(max(self._open.values(), key=lambda each: each.buffered_bytes))

    def finish(self) -> tuple[WrittenFile, ...]:
        """Write what is left; return all files, durable."""
        for key in list(self._open):
            self._close(key)
        return tuple(self._done)

    def _flush(self, file: _Open) -> None:
        if not file.batches:
            return
        table = pa.Table.from_batches(file.batches)
        with disk_errors(self.target.address(file.name)):
            if file.writer is None:
                file.writer = _writer(file.sink, table, self.compression)
            file.writer.write_table(table, row_group_size=table.num_rows)
        self._buffered_bytes -= file.buffered_bytes
        file.flushed_bytes += file.buffered_bytes
        file.batches, file.buffered_bytes = [], 0

    def _close(self, key: int) -> None:
        file = self._open.pop(key)
        self._flush(file)
        assert file.writer is not None
        with disk_errors(self.target.address(file.name)):
            file.writer.close()
            size_bytes = self.target.finish(file.name, file.sink)
        self._done.append(
            WrittenFile(file.name, key, file.records, size_bytes, file.spans, self.topic, *self.span)
        )


def _note(file: _Open, batch: pa.RecordBatch) -> None:
    file.records += batch.num_rows
    for name in SPANS:
        column = batch.column(name)
        ends = pc.min_max(column.cast(pa.int64()) if name == "timestamp" else column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        known = file.spans.get(name, (low, high))
        file.spans[name] = (min(known[0], low), max(known[1], high))


def date_files(
    target: Target, prefix: str, topic: str, *, compression: str, span: tuple[int, int] = (0, 0)
) -> FileWriter:
    """Return the writer for one attempt of a task, all of one topic; its keys are days (`by_day`)."""
    return FileWriter(
        target,
        lambda day, number: f"topic={topic}/date={date_text(day)}/{prefix}-{number:04d}.parquet",
        compression,
        topic=topic,
        span=span,
    )


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split rows by UTC day since 1970; within a day they keep their order. A batch of one day is not
    copied."""
    if not batch.num_rows:
        return
    days = batch.column("timestamp").cast(pa.date32()).cast(pa.int32())
    ends = pc.min_max(days)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first == last:
        yield first, batch
        return
    runs = pc.run_end_encode(days)
    if len(runs.values) > len(pc.unique(runs.values)):  # a date comes up again: sorted, which keeps the order
        order = pc.sort_indices(days)
        batch, runs = batch.take(order), pc.run_end_encode(days.take(order))
    start = 0
    for day, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield day, batch.slice(start, end - start)
        start = end


def date_text(day: int) -> str:
    """Return days since 1970 as ``2026-01-31``."""
    try:
        return (_EPOCH + dt.timedelta(days=day)).isoformat()
    except OverflowError:
        return NO_DATE


def _writer(sink: Any, table: pa.Table, compression: str) -> pq.ParquetWriter:
    leaves = _leaves(table.schema)
    payload = [leaf for leaf, column in leaves.items() if column not in _OWN]
    return pq.ParquetWriter(
        sink,
        table.schema,
        compression={leaf: _worth(table, leaf, compression) for leaf in leaves},
        use_dictionary=[leaf for leaf in leaves if leaf in _DICTIONARY or leaf in payload],
        column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        write_statistics=[leaf for leaf in leaves if leaf not in _NO_STATISTICS],
    )


def _worth(table: pa.Table, leaf: str, compression: str) -> str:
    """Return how to compress a column: values that do not shrink (images, encrypted or compressed data) are
    not worth the time."""
    if compression == "none" or leaf not in ("key", "value"):
        return compression
    sample = b"".join(each or b"" for each in table.column(leaf).slice(0, _SAMPLE_ROWS).to_pylist())
    if len(sample) < _SMALLEST_SAMPLE:
        return compression
    shrunk = pa.Codec(compression).compress(sample[:_SAMPLE_BYTES])
    return compression if len(shrunk) < _WORTH * len(sample[:_SAMPLE_BYTES]) else "none"


def _leaves(schema: pa.Schema) -> Mapping[str, str]:
    """Return the paths of Parquet's own columns, with the column of the table each belongs to."""
    found: dict[str, str] = {}

    def walk(path: str, kind: pa.DataType, column: str) -> None:
        if pa.types.is_struct(kind):
            for each in kind:
                walk(f"{path}.{each.name}", each.type, column)
        elif pa.types.is_list(kind):
            walk(f"{path}.list.element", kind.value_type, column)
        else:
            found[path] = column

    for each in schema:
        walk(each.name, each.type, each.name)
    return found


# -- JSON payloads -----------------------------------------------------------------------------------
#
# A block of values is parsed at once by Arrow; only a block in which something is wrong is cut smaller, down
# to the record that cannot be decoded. What a record becomes depends on itself alone. Strict: a text where a
# number should be is a failure, not a null. A field that is missing or null is null, one that the schema does
# not name is left out, a record without a value (a tombstone) has nulls.


OWN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "date")
"""Names a payload's field cannot have in the output; there it gets the prefix."""
PREFIX = "value_"
_PARTS = 16
_PLAIN: dict[type[types.DataType], pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.ByteType: pa.int8(),
    types.ShortType: pa.int16(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.StringType: pa.string(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", tz="UTC"),
    types.TimestampNTZType: pa.timestamp("us"),
}


@dataclass(frozen=True)
class Payload:
    """How values are decoded. Picklable."""

    schema: pa.Schema
    """The fields as the JSON has them."""
    names: tuple[str, ...]
    """The columns they become."""

    @property
    def fields(self) -> list[pa.Field]:
        return [f.with_name(n) for n, f in zip(self.names, self.schema, strict=True)]

    @property
    def renamed(self) -> dict[str, str]:
        return {f.name: n for n, f in zip(self.names, self.schema, strict=True) if f.name != n}


def payload_of(ddl: str) -> Payload:
    """Parse a DDL string such as ``id BIGINT, tags ARRAY<STRING>``; needs a session."""
    try:
        parsed = types.StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(
            f"schema: {_first_line(error)}; pass a DDL string: id BIGINT, name STRING"
        ) from None
    if not isinstance(parsed, types.StructType) or not parsed.fields:
        raise ConfigError("schema: no column; pass a DDL string: id BIGINT, name STRING")
    schema = pa.schema([pa.field(each.name, _arrow(each.name, each.dataType)) for each in parsed.fields])
    own = {name.lower() for name in OWN}
    names = tuple(PREFIX + name if name.lower() in own else name for name in schema.names)
    if len({name.lower() for name in names}) < len(names):
        raise ConfigError(f"schema: a column occurs twice: {', '.join(names)}")
    return Payload(schema, names)


def _arrow(path: str, kind: types.DataType) -> pa.DataType:
    match kind:
        case types.StructType():
            fields = [
                pa.field(each.name, _arrow(f"{path}.{each.name}", each.dataType)) for each in kind.fields
            ]
            return pa.struct(fields)
        case types.ArrayType():
            return pa.list_(pa.field("element", _arrow(f"{path}[]", kind.elementType)))
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    if type(kind) not in _PLAIN:
        raise ConfigError(
            f"schema: {path} is {kind.simpleString()}, expected BOOLEAN, TINYINT to BIGINT, FLOAT, DOUBLE,"
            " DECIMAL, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, ARRAY or STRUCT"
        )
    return _PLAIN[type(kind)]


def decode(batch: pa.RecordBatch, payload: Payload) -> tuple[pa.RecordBatch, pa.RecordBatch, list[str]]:
    """Return the records that could be decoded, with the payload's columns behind their own; the others as
    they are; and why for each of these."""
    values = batch.column("value")
    present = pc.is_valid(values)
    rows = pc.indices_nonzero(present)
    texts = values.filter(present).to_pylist()
    found: list[pa.StructArray] = []
    bad: dict[int, str] = {}
    at = 0
    for part in _parse(texts, payload.schema):
        if isinstance(part, str):
            bad[rows[at].as_py()] = part
            at += 1
        else:
            found.append(part)
            at += len(part)
    decoded = pa.concat_arrays(found) if found else pa.array([], pa.struct(list(payload.schema)))
    failed = pa.array(sorted(bad), pa.int64())
    if bad:
        good = pc.invert(pc.is_in(pa.array(range(batch.num_rows), pa.int64()), value_set=failed))
        kept, present = batch.filter(good), present.filter(good)
    else:
        kept = batch
    if len(decoded) < kept.num_rows:  # tombstones: a row of nulls each
        place = pc.subtract(pc.cumulative_sum(present.cast(pa.int64())), 1)
        decoded = decoded.take(pc.if_else(present, place, pa.scalar(None, pa.int64())))
    columns = [*kept.columns, *decoded.flatten()]
    made = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*batch.schema, *payload.fields]))
    return made, batch.take(failed), [bad[row] for row in sorted(bad)]


def _parse(texts: list[bytes], schema: pa.Schema) -> Iterator[pa.StructArray | str]:
    """Yield in order: runs of decoded texts, and the reason for each that cannot be decoded."""
    if not texts:
        return
    try:
        yield _parse_block(texts, schema)
        return
    except pa.ArrowInvalid as error:
        if len(texts) == 1:
            yield _reason(texts[0], error)
            return
    size = -(-len(texts) // _PARTS)
    for start in range(0, len(texts), size):
        yield from _parse(texts[start : start + size], schema)


def _parse_block(texts: list[bytes], schema: pa.Schema) -> pa.StructArray:
    """Decode texts; raise ArrowInvalid unless each is exactly one object that fits.

    Each is numbered and wrapped, so that one text cannot end up as two rows, or two as one, unnoticed.
    """
    data = b"\n".join([b'{"i":%d,"v":%b}' % each for each in enumerate(texts)])
    try:
        data.decode()  # the parser does not check
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"not UTF-8: {error.reason}") from error
    wire = pa.schema([("i", pa.int64()), ("v", pa.struct([_wire(each) for each in schema]))])
    table = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=wire, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.column("i").combine_chunks().to_pylist() != list(range(len(texts))):
        raise pa.ArrowInvalid("not exactly one JSON object")
    found = table.column("v").combine_chunks()
    return found.cast(pa.struct(list(schema)))


def _wire(field: pa.Field) -> pa.Field:
    return field.with_type(_wire_type(field.type))


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """Return the type for Arrow's parser, to which a date is a text."""
    if pa.types.is_struct(kind):
        return pa.struct([_wire(each) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_wire(kind.value_field))
    return pa.string() if pa.types.is_date(kind) else kind


def _reason(text: bytes, error: pa.ArrowInvalid) -> str:
    """Python's parser has the better message for a text that is not JSON at all."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as why:
        return f"not JSON: {why}"
    return f"does not fit the schema: {_first_line(error).replace('/v/', '/').replace(' in row 0', '')}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
