"""Bringing partitions together: of each key the row that counts, where several partitions have one.

A partition's own latest row of a key is the one with the highest offset; between partitions there is no order
but the records' timestamps: the greatest counts, of equal ones that of the highest partition. A tombstone
counts like any other row, and then the key is not in the table. A task does one bucket, in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.format.arrow import schema_for
from stratalog.spark.pipelines.export_places import place_of, told
from stratalog.spark.pipelines.materialize_files import READ_ROWS, Files, columns_of, read_rows
from stratalog.spark.pipelines.materialize_manifest import DataFile
from stratalog.spark.pipelines.spread import attempt_name


@dataclass(frozen=True)
class Bucket:
    """The files of one bucket, of every partition."""

    number: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class Joining:
    """Of each key the row with the greatest timestamp, of equal ones that of the highest partition."""

    output: str
    staging: str
    headers: bool
    compression: str

    def __call__(self, bucket: Bucket) -> tuple[DataFile, ...]:
        place, columns = place_of(self.output), columns_of(self.headers)
        with told(self.output):
            parts = [rows for name in bucket.files for rows in read_rows(place, name, columns)]
            out = Files(
                place,
                f"{self.staging}/b{bucket.number:05d}-{attempt_name()}",
                schema_for(columns),
                self.compression,
            )
            if parts:
                # Together they may be more than 32-bit offsets can say.
                table = pa.Table.from_batches(parts)
                for at, name in enumerate(table.schema.names):
                    if name in ("key", "value"):
                        table = table.set_column(at, name, table.column(name).cast(pa.large_binary()))
                for rows in latest_of(table).to_batches(max_chunksize=READ_ROWS):
                    out.add(bucket.number, _narrow(rows))
            return out.finish()


def latest_of(table: pa.Table) -> pa.Table:
    """One row for each key, sorted by key; none where the latest is a tombstone."""
    order = pc.sort_indices(
        table, sort_keys=[("key", "ascending"), ("timestamp", "ascending"), ("partition", "ascending")]
    )
    table = table.take(order).combine_chunks()
    keys = table.column("key").combine_chunks()
    last = pa.array([True])
    if len(keys) > 1:
        differs = pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
        last = pa.concat_arrays([differs, last])
    return table.filter(pc.and_(last, pc.is_valid(table.column("value"))))


def _narrow(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
