"""Stratalog as it comes: default settings, one partition, uncompressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stratalog
from bench.records import Row
from bench.systems.contract import System

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "bench"


class Stratalog(System):
    """A list of `stratalog.Record` to `append_many`; `append` for one; `scan`, `read` and `get` to read."""

    name = "stratalog"

    def __init__(self, path: Path, *, sync: bool = False, keyed: bool = False) -> None:
        super().__init__(path, sync=sync, keyed=keyed)
        self.store = stratalog.open(path)
        if TOPIC in self.store.topics():
            self.topic = self.store.topic(TOPIC)
        else:
            self.topic = self.store.create_topic(TOPIC, config={"key.index.enable": keyed})

    def prepare(self, rows: Sequence[Row]) -> Any:
        return [stratalog.Record(row.value, row.key) for row in rows]

    def append_batch(self, prepared: Any) -> None:
        self.topic.append_many(prepared, sync=self.sync)

    def prepare_single(self, row: Row) -> tuple[Any, ...]:
        return (row.value, row.key)

    def single(self) -> Callable[..., object]:
        append = self.topic.append
        if not self.sync:
            return append
        return lambda value, key: append(value, key, sync=True)

    def scan(self) -> pa.Table:
        return self.topic.scan(columns=["key", "value", "offset"]).read_all()

    def by_offset(self, offset: int) -> Row:
        record = next(self.topic.read(0, offset, offset + 1))
        return Row(record.offset, record.key or b"", record.value or b"")

    def by_key(self, key: bytes) -> Row:
        record = self.topic.get(key)
        assert record is not None
        return Row(record.offset, record.key or b"", record.value or b"")

    def close(self) -> None:
        self.store.close()


class StratalogArrow(Stratalog):
    """The same, fed with Arrow tables: no Python object per record."""

    name = "stratalog, from Arrow"

    def prepare(self, rows: Sequence[Row]) -> Any:
        import pyarrow as pa

        return pa.table(
            {
                "key": pa.array([row.key for row in rows], pa.binary()),
                "value": pa.array([row.value for row in rows], pa.binary()),
            }
        )


class StratalogSingles(Stratalog):
    """The same records, each in a batch of its own, as single appends leave them."""

    name = "stratalog, one-record batches"

    def append_batch(self, prepared: Any) -> None:
        append = self.topic.append
        for record in prepared:
            append(record.value, record.key)
