"""Small files of an output made into larger ones.

Every run adds files, and frequent runs add small ones. Those of one topic and date are read and written
again, on the executors, as one; a commit of its own puts the new file in the place of the old ones. Files
with different payload columns stay apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.spark.pipelines.export_files import DateFiles, Target
from stratalog.spark.pipelines.export_log import DataFile
from stratalog.spark.pipelines.export_places import told
from stratalog.spark.pipelines.export_tasks import Written, attempt

SMALL_BYTES = 8 << 20
"""Less than a task with its share of a large log writes: what a run writes is not written again at once."""
MERGED_BYTES = 128 << 20
MANY = 8
"""So many small files of one topic and date are merged without being asked."""
_ROWS = 1 << 16


@dataclass(frozen=True)
class Merge:
    """Files that become one."""

    number: int
    files: tuple[DataFile, ...]


def merges(files: Iterable[DataFile], *, asked: bool, small_bytes: int = SMALL_BYTES) -> list[Merge]:
    """What to merge: from two small files on when that was asked for, else where many have gathered."""
    groups: dict[tuple[str, str, str], list[DataFile]] = defaultdict(list)
    for file in files:
        if file.size_bytes < small_bytes:
            groups[file.topic, file.date, file.columns].append(file)
    found: list[tuple[DataFile, ...]] = []
    for _, group in sorted(groups.items()):
        if len(group) < (2 if asked else MANY):
            continue
        group.sort(key=lambda file: min((each.partition, each.first) for each in file.held))
        found += [bundle for bundle in _bundles(group) if len(bundle) > 1]
    return [Merge(number, bundle) for number, bundle in enumerate(found)]


def _bundles(files: list[DataFile]) -> Iterator[tuple[DataFile, ...]]:
    bundle: list[DataFile] = []
    size_bytes = 0
    for file in files:
        if bundle and size_bytes + file.size_bytes > MERGED_BYTES:
            yield tuple(bundle)
            bundle, size_bytes = [], 0
        bundle.append(file)
        size_bytes += file.size_bytes
    if bundle:
        yield tuple(bundle)


@dataclass(frozen=True)
class Merging:
    """What every task of a merge does; travels to the executors."""

    target: Target
    compression: str = "zstd"

    def __call__(self, merge: Merge) -> Written:
        first = merge.files[0]
        prefix = f"{merge.number:05d}-{attempt()}"
        made = DateFiles(
            self.target, prefix, first.topic, compression=self.compression, columns=first.columns
        )
        sources = []
        for file in merge.files:
            with told(file.path):
                sources.append((file, pq.ParquetFile(self.target.reading(file.path))))
        # Schemas grow: what an older file does not have is null.
        schema = pa.unify_schemas([source.schema_arrow.remove_metadata() for _, source in sources])
        for file, source in sources:
            with told(file.path):
                for batch in source.iter_batches(_ROWS):
                    made.add_dated(file.date, fitted(batch, schema))
        return Written(tuple(made.finish()))


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with all columns of ``schema``, in its order."""
    if batch.schema.equals(schema):
        return batch
    names = set(batch.schema.names)
    columns = [
        batch.column(each.name) if each.name in names else pa.nulls(batch.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
