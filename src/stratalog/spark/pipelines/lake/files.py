"""Records as Parquet files in a directory or an object store: what executors write and the driver commits.

A `Place` is a directory that driver and executors both see, or a prefix of an object store. A `FileWriter`
writes Arrow batches there, one file for each date or bucket; rows never pass through the JVM.

Crash policy: a file for which `FileTarget.finish` returned is durable, with its name and the directories
above it. `Place.move` gives one file its final name: a reader sees it whole or not at all.
"""

from __future__ import annotations

import datetime as dt
import errno
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.archive import ObjectInfo, open_objects
from stratalog.archive.objects import RemoteObjects, directory_of
from stratalog.errors import ConfigError, DiskFullError, StorageError
from stratalog.format.batch import arrow
from stratalog.fs import RealFileSystem

# -- places ------------------------------------------------------------------------------------------


class FileTarget(Protocol):
    """Where tasks write files. Names are relative to it, with ``/`` between their parts. Picklable."""

    def begin(self, name: str) -> Any:
        """Return what `pyarrow` writes a new file to: a path or a stream."""

    def finish(self, name: str, sink: Any) -> int:
        """Make a written file durable; return its size in bytes."""

    def reading(self, name: str) -> Any:
        """Return what `pyarrow` reads the file from."""

    def address(self, name: str) -> str:
        """Return the file's path or URL, as Spark and people write it."""


class Place(FileTarget, Protocol):
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

    target: FileTarget
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
    target: FileTarget, prefix: str, topic: str, *, compression: str, span: tuple[int, int] = (0, 0)
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
