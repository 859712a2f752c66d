"""Records into Parquet files, one for each date: what an executor does with Arrow batches.

Rows never pass through the JVM. Batches are kept until they make a row group, in bounded memory, whatever
order the dates come in; a task whose records spread over very many dates closes files it has not used for
long and may begin a second one for the same date. Touches files only through the `Target` it is handed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.format import arrow
from stratalog.spark.pipelines.export_log import DataFile, Held
from stratalog.spark.pipelines.export_places import told

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
        """What `pyarrow` writes to; ``name`` is unique among the attempts of all tasks of the run."""

    def finish(self, name: str, sink: Any) -> int:
        """Make the file durable; its size in bytes."""

    def address(self, name: str) -> str:
        """The file, for whoever commits it."""

    def reading(self, address: str) -> Any:
        """What `pyarrow` reads a file that was written from."""


@dataclass
class _Open:
    name: str
    date: str
    sink: Any
    writer: pq.ParquetWriter | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    records: int = 0
    held: dict[int, list[int]] = field(default_factory=dict)


class DateFiles:
    """The files of one attempt of a task, all of one topic."""

    def __init__(
        self, target: Target, prefix: str, topic: str, *, compression: str, columns: str = ""
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._topic = topic
        self._compression = compression
        self._columns = columns
        self._open: dict[str, _Open] = {}
        self._done: list[DataFile] = []
        self._buffered_bytes = 0
        self._number = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Records of one partition, in the order of their offsets."""
        if batch.num_rows:
            for day, part in by_day(batch):
                self._add(str(day), date_text(day), part)

    def add_dated(self, date: str, batch: pa.RecordBatch) -> None:
        """Records whose date is known, of any partitions, as a file of this output holds them."""
        if batch.num_rows:
            self._add(date, date, batch)

    def finish(self) -> list[DataFile]:
        """Write what is left; the files."""
        for key in list(self._open):
            self._close(key)
        return self._done

    def _add(self, key: str, date: str, batch: pa.RecordBatch) -> None:
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            self._number += 1
            name = f"{self._prefix}-{self._number:04d}"
            file = _Open(name, date, self._target.begin(name))
        self._open[key] = file  # the one used last is the last
        file.batches.append(batch)
        file.records += batch.num_rows
        file.buffered_bytes += batch.nbytes
        self._buffered_bytes += batch.nbytes
        _note(file.held, batch)
        if file.buffered_bytes >= ROW_GROUP_BYTES:
            self._flush(file)
        elif self._buffered_bytes >= BUFFERED_BYTES:
            self._flush(max(self._open.values(), key=lambda each: each.buffered_bytes))

    def _flush(self, file: _Open) -> None:
        if not file.batches:
            return
        table = pa.Table.from_batches(file.batches)
        with told(self._target.address(file.name)):
            if file.writer is None:
                file.writer = _writer(file.sink, table, self._compression)
            file.writer.write_table(table, row_group_size=table.num_rows)
        self._buffered_bytes -= file.buffered_bytes
        file.batches, file.buffered_bytes = [], 0

    def _close(self, key: str) -> None:
        file = self._open.pop(key)
        self._flush(file)
        assert file.writer is not None
        with told(self._target.address(file.name)):
            file.writer.close()
        size_bytes = self._target.finish(file.name, file.sink)
        held = tuple(Held(partition, *said) for partition, said in sorted(file.held.items()))
        self._done.append(
            DataFile(
                path="",
                topic=self._topic,
                date=file.date,
                records=file.records,
                size_bytes=size_bytes,
                held=held,
                columns=self._columns,
                staged=self._target.address(file.name),
            )
        )


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


def _note(held: dict[int, list[int]], batch: pa.RecordBatch) -> None:
    partitions, offsets = batch.column("partition"), batch.column("offset")
    ends = pc.min_max(partitions)
    first: int = ends["min"].as_py()
    last: int = ends["max"].as_py()
    for partition in range(first, last + 1):
        of = offsets if first == last else offsets.filter(pc.equal(partitions, partition))
        if not len(of):
            continue
        span = pc.min_max(of)
        low, high = span["min"].as_py(), span["max"].as_py()
        known = held.setdefault(partition, [low, high, 0])
        known[0], known[1], known[2] = min(known[0], low), max(known[1], high), known[2] + len(of)


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
