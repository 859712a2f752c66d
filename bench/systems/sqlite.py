"""SQLite by the standard library's sqlite3.

A table whose integer primary key is the offset. WAL with ``synchronous=OFF`` (a killed process loses
nothing) or ``FULL`` (every commit is fsynced); a batch is one ``executemany`` in one transaction, a
single append one INSERT in autocommit. A 64 MiB page cache and a memory map for reads. For reading by key
an index over (key, offset).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.records import Row
from bench.systems.contract import System, table_of

if TYPE_CHECKING:
    import pyarrow as pa

_INSERT = "INSERT INTO log VALUES (?, ?, ?)"


class Sqlite(System):
    name = "sqlite"

    def __init__(self, path: Path, *, sync: bool = False, keyed: bool = False) -> None:
        super().__init__(path, sync=sync, keyed=keyed)
        self.db = sqlite3.connect(path / "log.db", isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if sync else 'OFF'}")
        self.db.execute("PRAGMA cache_size=-65536")
        self.db.execute("PRAGMA mmap_size=1073741824")
        self.db.execute("CREATE TABLE IF NOT EXISTS log (offset INTEGER PRIMARY KEY, key BLOB, value BLOB)")
        if keyed:
            self.db.execute("CREATE INDEX IF NOT EXISTS by_key ON log (key, offset)")

    def prepare(self, rows: Sequence[Row]) -> Any:
        return [tuple(row) for row in rows]

    def append_batch(self, prepared: Any) -> None:
        execute = self.db.execute
        execute("BEGIN")
        self.db.executemany(_INSERT, prepared)
        execute("COMMIT")

    def prepare_single(self, row: Row) -> tuple[Any, ...]:
        return (_INSERT, tuple(row))

    def single(self) -> Callable[..., object]:
        return self.db.execute

    def scan(self) -> pa.Table:
        import pyarrow as pa

        found = self.db.execute("SELECT key, value, offset FROM log ORDER BY offset").fetchall()
        keys, values, offsets = zip(*found, strict=True)
        return table_of(
            pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(offsets, pa.int64())
        )

    def by_offset(self, offset: int) -> Row:
        return Row(
            *self.db.execute("SELECT offset, key, value FROM log WHERE offset = ?", (offset,)).fetchone()
        )

    def by_key(self, key: bytes) -> Row:
        query = "SELECT offset, key, value FROM log WHERE key = ? ORDER BY offset DESC LIMIT 1"
        return Row(*self.db.execute(query, (key,)).fetchone())

    def close(self) -> None:
        self.db.close()
