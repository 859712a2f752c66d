"""diskcache: a Deque as the log, which numbers its items itself; a Cache beside it for key -> offset.

Items are the record's key and value in one bytes object, which is stored as it is (no pickling). A batch
is one transaction. ``sqlite_synchronous`` 0 or 2 (FULL), as for SQLite. Deque's own indexing walks from
one end, so a read by offset asks the Cache under it for the item's number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.records import Row
from bench.sizes import KEY_BYTES
from bench.systems.contract import System, table_of_packed

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_ITEM = 500_000_000_000_000


class DiskCache(System):
    name = "diskcache"
    slow = True

    def __init__(self, path: Path, *, sync: bool = False, keyed: bool = False) -> None:
        import diskcache

        super().__init__(path, sync=sync, keyed=keyed)
        settings = {"eviction_policy": "none", "sqlite_synchronous": 2 if sync else 0}
        self.cache = diskcache.Cache(str(path / "log"), **settings)
        self.log = diskcache.Deque.fromcache(self.cache)
        self.keys = diskcache.Cache(str(path / "keys"), **settings) if keyed else None

    def prepare(self, rows: Sequence[Row]) -> Any:
        return [row.key + row.value for row in rows], [(row.key, row.offset) for row in rows]

    def append_batch(self, prepared: Any) -> None:
        packed, keys = prepared
        with self.log.transact():
            self.log.extend(packed)
        if self.keys is not None:
            with self.keys.transact():
                for key, offset in keys:
                    self.keys[key] = offset

    def prepare_single(self, row: Row) -> tuple[Any, ...]:
        return (row.key + row.value,)

    def single(self) -> Callable[..., object]:
        return self.log.append

    def scan(self) -> pa.Table:
        import pyarrow as pa

        packed = list(self.log)
        return table_of_packed(packed, pa.array(range(len(packed)), pa.int64()))

    def by_offset(self, offset: int) -> Row:
        packed = self.cache[_FIRST_ITEM + offset]
        return Row(offset, packed[:KEY_BYTES], packed[KEY_BYTES:])

    def by_key(self, key: bytes) -> Row:
        assert self.keys is not None
        return self.by_offset(self.keys[key])

    def close(self) -> None:
        self.cache.close()
        if self.keys is not None:
            self.keys.close()
