"""Records into Parquet files, one for each date or bucket: what an executor does with Arrow batches.

Rows never pass through the JVM. Batches are kept until they make a row group, in bounded memory, whatever
order the dates come in; a task whose records spread over very many dates closes files it has not used for
long and may begin a second one for the same date. Touches files only through the `Target` it is handed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.format.batch import arrow
from stratalog.spark.pipelines.lake.places import told

ROW_GROUP_BYTES = 32 << 20
BUFFERED_BYTES = 128 << 20
OPEN_FILES = 64
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""The date of a record whose timestamp no calendar holds, as Hive and Spark name it."""
_DELTA = ("offset", "timestamp")
_DICTIONARY = ("key", "topic", "partition", "timestampType", "headers.list.element.key")
_NO_STATISTICS = ("key", "value", "headers.list.element.key", "headers.list.element.value")
_OWN = frozenset(arrow.COLUMNS)
_SAMPLE_ROWS, _SAMPLE_BYTES, _SMALLEST_SAMPLE = 1024, 64 << 10, 4 << 10
_WORTH = 0.9
_EPOCH = dt.date(1970, 1, 1)


class Target(Protocol):
    """Where a task's files go. It travels to the executors."""

    def begin(self, name: str) -> Any:
        """Return what `pyarrow` writes to; ``name`` is unique among the attempts of all tasks of the run."""

    def finish(self, name: str, sink: Any) -> int:
        """Make the file durable; return its size in bytes."""

    def address(self, name: str) -> str:
        """Return the file's path or URL, for messages."""

    def reading(self, name: str) -> Any:
        """Return what `pyarrow` reads a written file from."""


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


@dataclass(frozen=True, slots=True)
class DataFile(WrittenFile):
    """A file of an export: rows of one topic and one date."""

    topic: str
    date: str
    start: int = 0
    end: int = 0
    """The range of offsets the file belongs to, where files hold one range each."""


SPANS = ("partition", "offset", "timestamp")


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


class FileWriter:
    """Parquet files that are written side by side, one at a time for each key, in bounded memory."""

    def __init__(
        self, target: Target, name: Callable[[int, int], str], compression: str, file_bytes: int | None = None
    ) -> None:
        """``name`` makes a file's name of its key and its number; past ``file_bytes`` a new file begins."""
        self._target = target
        self._name = name
        self._compression = compression
        self._file_bytes = file_bytes
        self._open: dict[int, _Open] = {}
        self._done: list[WrittenFile] = []
        self._buffered_bytes = 0
        self._number = 0

    def add(self, key: int, batch: pa.RecordBatch) -> None:
        """Add rows to the file of a key."""
        if not batch.num_rows:
            return
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            self._number += 1
            name = self._name(key, self._number)
            file = _Open(name, self._target.begin(name))
        self._open[key] = file  # the one used last is the last
        file.batches.append(batch)
        file.buffered_bytes += batch.nbytes
        self._buffered_bytes += batch.nbytes
        _note(file, batch)
        if file.buffered_bytes >= ROW_GROUP_BYTES:
            self._flush(file)
            if self._file_bytes is not None and file.flushed_bytes >= self._file_bytes:
                self._close(key)
        elif self._buffered_bytes >= BUFFERED_BYTES:
            self._flush(max(self._open.values(), key=lambda each: each.buffered_bytes))

    def finish(self) -> list[WrittenFile]:
        """Write what is left; return all files, durable."""
        for key in list(self._open):
            self._close(key)
        return self._done

    def _flush(self, file: _Open) -> None:
        if not file.batches:
            return
        table = pa.Table.from_batches(file.batches)
        with told(self._target.address(file.name)):
            if file.writer is None:
                file.writer = _writer(file.sink, table, self._compression)
            file.writer.write_table(table, row_group_size=table.num_rows)
        self._buffered_bytes -= file.buffered_bytes
        file.flushed_bytes += file.buffered_bytes
        file.batches, file.buffered_bytes = [], 0

    def _close(self, key: int) -> None:
        file = self._open.pop(key)
        self._flush(file)
        assert file.writer is not None
        with told(self._target.address(file.name)):
            file.writer.close()
            size_bytes = self._target.finish(file.name, file.sink)
        self._done.append(WrittenFile(file.name, key, file.records, size_bytes, file.spans))


def _note(file: _Open, batch: pa.RecordBatch) -> None:
    file.records += batch.num_rows
    for name in SPANS:
        column = batch.column(name)
        ends = pc.min_max(column.cast(pa.int64()) if name == "timestamp" else column)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        known = file.spans.get(name, (low, high))
        file.spans[name] = (min(known[0], low), max(known[1], high))


class DateFiles:
    """The files of one attempt of a task, all of one topic: ``topic=…/date=…/<prefix>-<number>.parquet``."""

    def __init__(
        self, target: Target, prefix: str, topic: str, *, compression: str, span: tuple[int, int] = (0, 0)
    ) -> None:
        def name(day: int, number: int) -> str:
            return f"topic={topic}/date={date_text(day)}/{prefix}-{number:04d}.parquet"

        self._topic = topic
        self._span = span
        self._files = FileWriter(target, name, compression)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records of one partition, in the order of their offsets."""
        if batch.num_rows:
            for day, part in by_day(batch):
                self._files.add(day, part)

    def finish(self) -> list[DataFile]:
        """Write what is left; return all files, durable."""
        return [
            DataFile(
                each.name,
                each.key,
                each.records,
                each.size_bytes,
                each.spans,
                self._topic,
                date_text(each.key),
                *self._span,
            )
            for each in self._files.finish()
        ]


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each UTC day since 1970, in the order they came in; a batch of one day stays as it is."""
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
    """Days since 1970 as ``2026-01-31``."""
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
    """How to compress a column: values that do not shrink (images, what is encrypted or compressed already)
    are not worth the time."""
    if compression == "none" or leaf not in ("key", "value"):
        return compression
    sample = b"".join(each or b"" for each in table.column(leaf).slice(0, _SAMPLE_ROWS).to_pylist())
    if len(sample) < _SMALLEST_SAMPLE:
        return compression
    shrunk = pa.Codec(compression).compress(sample[:_SAMPLE_BYTES])
    return compression if len(shrunk) < _WORTH * len(sample[:_SAMPLE_BYTES]) else "none"


def _leaves(schema: pa.Schema) -> Mapping[str, str]:
    """The paths of Parquet's own columns, with the column of the table each belongs to."""
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
