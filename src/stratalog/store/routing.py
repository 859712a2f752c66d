"""Which partition the rows of an Arrow table go to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from stratalog import kernel
from stratalog.errors import InvalidRecordError

if TYPE_CHECKING:
    import pyarrow as pa


def is_arrow(records: object) -> TypeGuard[Any]:
    """Whether this is an Arrow table or batch, without importing Arrow to find out."""
    if not type(records).__module__.startswith("pyarrow"):
        return False  # asked first: another thread may be in the middle of importing Arrow
    pyarrow = sys.modules["pyarrow"]
    return isinstance(records, pyarrow.Table | pyarrow.RecordBatch)


def arrow_parts(
    table: pa.Table | pa.RecordBatch, partition: int | None, count: int, sticky: Callable[[int, int], int]
) -> Iterator[tuple[int, pa.Table | pa.RecordBatch]]:
    """(partition, rows) in order. A ``partition`` column decides, else the key, else the sticky partition."""
    names = table.schema.names
    if "value" not in names:
        raise InvalidRecordError(f"a table to append needs a 'value' column; this one has {names}")
    if partition is not None or count == 1:
        if table.num_rows:
            yield partition or 0, table
        return
    import pyarrow as pa

    for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
        if not batch.num_rows:
            continue
        if "partition" in batch.schema.names and not batch.column("partition").null_count:
            yield from _split(batch, batch.column("partition").cast(pa.int32()))
        elif "key" in batch.schema.names:
            yield from _split(batch, _by_key(batch.column("key"), count, sticky))
        else:
            yield sticky(count, batch.nbytes), batch


def _by_key(keys: pa.Array, count: int, sticky: Callable[[int, int], int]) -> pa.Array:
    import pyarrow as pa

    place = kernel.partition_for_key
    numbers = [
        sticky(count, 0) if key is None else place(key, count) for key in keys.cast(pa.binary()).to_pylist()
    ]
    return pa.array(numbers, pa.int32())


def _split(batch: pa.RecordBatch, numbers: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow.compute as pc

    for number in sorted(pc.unique(numbers).to_pylist()):
        yield number, batch.filter(pc.equal(numbers, number))
