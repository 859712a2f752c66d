"""LMDB by the lmdb package.

Integer keys (native 8 bytes), the record's key and value in one. A batch is one write transaction with
``putmulti`` in append mode, which loops in C; a single append is a transaction of its own. Without a sync
(``sync=False``) commits are left to the kernel: a killed process loses nothing, after a power cut the last
transactions may be missing. For reading by key a second database holds key -> offset.

``writemap`` is faster still and gives up more: commits go straight into the shared map, the kernel writes its
pages in any order, and a power cut may leave a database that cannot be read at all. No other store here risks
that, so it has its own row, and the bars are judged without it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.records import Row
from bench.sizes import KEY_BYTES
from bench.systems.contract import System, table_of_packed

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET = struct.Struct("=q")
_MAP_BYTES = 4 << 30


class Lmdb(System):
    name = "lmdb"
    writemap = False

    def __init__(self, path: Path, *, sync: bool = False, keyed: bool = False) -> None:
        import lmdb

        super().__init__(path, sync=sync, keyed=keyed)
        self.env = lmdb.open(
            str(path),
            map_size=_MAP_BYTES,
            max_dbs=2,
            sync=sync,
            metasync=sync,
            writemap=self.writemap,
            map_async=self.writemap and not sync,
        )
        self.log = self.env.open_db(b"log", integerkey=True)
        self.keys = self.env.open_db(b"keys") if keyed else None

    def prepare(self, rows: Sequence[Row]) -> Any:
        pairs = [(_OFFSET.pack(row.offset), row.key + row.value) for row in rows]
        return pairs, [(row.key, _OFFSET.pack(row.offset)) for row in rows]

    def append_batch(self, prepared: Any) -> None:
        pairs, keys = prepared
        with self.env.begin(write=True) as txn:
            with txn.cursor(self.log) as cursor:
                cursor.putmulti(pairs, append=True)
            if self.keys is not None:
                with txn.cursor(self.keys) as cursor:
                    cursor.putmulti(keys)

    def prepare_single(self, row: Row) -> tuple[Any, ...]:
        return (_OFFSET.pack(row.offset), row.key + row.value)

    def single(self) -> Callable[..., object]:
        begin, log = self.env.begin, self.log

        def append(offset: bytes, packed: bytes) -> None:
            with begin(db=log, write=True) as txn:
                txn.put(offset, packed, append=True)

        return append

    def scan(self) -> pa.Table:
        import pyarrow as pa

        with self.env.begin(db=self.log) as txn, txn.cursor() as cursor:
            offsets, packed = zip(*cursor.iternext(), strict=True)
        numbers = array("q", b"".join(offsets))
        made = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
        return table_of_packed(packed, made)

    def by_offset(self, offset: int) -> Row:
        with self.env.begin(db=self.log) as txn:
            packed: Any = txn.get(_OFFSET.pack(offset))
        return Row(offset, packed[:KEY_BYTES], packed[KEY_BYTES:])

    def by_key(self, key: bytes) -> Row:
        with self.env.begin() as txn:
            offset: Any = txn.get(key, db=self.keys)
            packed: Any = txn.get(offset, db=self.log)
        return Row(_OFFSET.unpack(offset)[0], packed[:KEY_BYTES], packed[KEY_BYTES:])

    def close(self) -> None:
        self.env.close()


class LmdbWritemap(Lmdb):
    name = "lmdb, writemap"
    writemap = True
