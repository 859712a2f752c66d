"""The Parquet files of a materialized table, as tasks write and read them: bounded in size and in memory.

What is written lies in the run's staging directory and is synced when it is finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.spark.pipelines.export_places import Place
from stratalog.spark.pipelines.materialize_manifest import DataFile

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
ROW_GROUP_BYTES = 32 << 20
GATHERED_BYTES = 128 << 20
FILE_BYTES = 128 << 20
READ_ROWS = 1 << 16


def columns_of(headers: bool) -> tuple[str, ...]:
    """The columns of a table."""
    return (*COLUMNS, "headers") if headers else COLUMNS


def read_rows(place: Place, name: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(place.reading(name)) as file:
        yield from file.iter_batches(READ_ROWS, columns=list(columns))


@dataclass
class _Open:
    name: str
    sink: Any
    writer: pq.ParquetWriter
    rows: int = 0
    bytes: int = 0


@dataclass
class Files:
    """Parquet files that are being written, by bucket; each of bounded size, and so is what is gathered."""

    place: Place
    prefix: str
    schema: pa.Schema
    compression: str
    _gathered: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)
    _done: list[DataFile] = field(default_factory=list)
    _count: int = 0

    def add(self, bucket: int, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        self._gathered.setdefault(bucket, []).append(rows)
        self._bytes[bucket] = self._bytes.get(bucket, 0) + rows.nbytes
        if self._bytes[bucket] >= ROW_GROUP_BYTES:
            self._flush(bucket)
        elif sum(self._bytes.values()) >= GATHERED_BYTES:
            self._flush(max(self._bytes, key=self._bytes.__getitem__))

    def _flush(self, bucket: int) -> None:
        table = pa.Table.from_batches(self._gathered.pop(bucket)).cast(self.schema)
        size = self._bytes.pop(bucket)
        file = self._open.get(bucket)
        if file is None:
            name = f"{self.prefix}-{self._count:05d}.staged"
            self._count += 1
            sink = self.place.begin(name)
            file = self._open[bucket] = _Open(
                name, sink, pq.ParquetWriter(sink, self.schema, compression=self.compression)
            )
        file.writer.write_table(table)
        file.rows += table.num_rows
        file.bytes += size
        if file.bytes >= FILE_BYTES:
            self._close(bucket)
        elif sum(each.bytes for each in self._open.values()) >= 4 * FILE_BYTES:
            # An object store's files are made in memory.
            self._close(max(self._open, key=lambda each: self._open[each].bytes))

    def _close(self, bucket: int) -> None:
        file = self._open.pop(bucket)
        file.writer.close()
        size = self.place.finish(file.name, file.sink)
        self._done.append(DataFile(file.name, file.rows, size, bucket))

    def finish(self) -> tuple[DataFile, ...]:
        """Every file, synced."""
        for bucket in list(self._gathered):
            self._flush(bucket)
        for bucket in list(self._open):
            self._close(bucket)
        return tuple(sorted(self._done, key=lambda file: (file.bucket, file.name)))

    def discard(self) -> None:
        for file in self._open.values():
            file.writer.close()
        self.place.remove([each.name for each in self._done] + [each.name for each in self._open.values()])
