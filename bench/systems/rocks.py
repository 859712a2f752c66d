"""RocksDB by rocksdict.

Raw mode (bytes in, bytes out, no pickling). Keys are offsets as 8 bytes big-endian, so that the order of
bytes is the order of offsets; the value is the record's key and value in one. A batch is one WriteBatch,
one write. The write-ahead log stays on, or a killed process would lose acknowledged records; it is synced
only when asked. No compression, which would only cost time here. For reading by key a second column
family holds key -> offset.
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

_OFFSET = struct.Struct(">q")


class RocksDict(System):
    name = "rocksdict"

    def __init__(self, path: Path, *, sync: bool = False, keyed: bool = False) -> None:
        from rocksdict import DBCompressionType, Options, Rdict, WriteOptions

        super().__init__(path, sync=sync, keyed=keyed)

        def options() -> Options:
            made = Options(raw_mode=True)
            made.create_if_missing(True)
            made.create_missing_column_families(True)
            made.set_compression_type(DBCompressionType.none())
            return made

        families = {"default": options()}
        if keyed:
            families["keys"] = options()
        self.db = Rdict(str(path), options(), column_families=families)
        self._write = WriteOptions()
        self._write.sync = sync
        self.db.set_write_options(self._write)
        self._keys = self.db.get_column_family("keys") if keyed else None
        self._keys_handle = self.db.get_column_family_handle("keys") if keyed else None

    def prepare(self, rows: Sequence[Row]) -> Any:
        return [(_OFFSET.pack(row.offset), row.key + row.value, row.key) for row in rows]

    def append_batch(self, prepared: Any) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        put = batch.put
        if self._keys_handle is None:
            for offset, packed, _ in prepared:
                put(offset, packed)
        else:
            for offset, packed, key in prepared:
                put(offset, packed)
                put(key, offset, self._keys_handle)
        self.db.write(batch, self._write)

    def prepare_single(self, row: Row) -> tuple[Any, ...]:
        return (_OFFSET.pack(row.offset), row.key + row.value)

    def single(self) -> Callable[..., object]:
        return self.db.put

    def scan(self) -> pa.Table:
        import pyarrow as pa

        offsets, packed = zip(*self.db.items(), strict=True)
        numbers = array("q", b"".join(offsets))
        numbers.byteswap()
        made = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
        return table_of_packed(packed, made)

    def by_offset(self, offset: int) -> Row:
        packed: Any = self.db[_OFFSET.pack(offset)]
        return Row(offset, packed[:KEY_BYTES], packed[KEY_BYTES:])

    def by_key(self, key: bytes) -> Row:
        assert self._keys is not None
        offset: Any = self._keys[key]
        packed: Any = self.db[offset]
        return Row(_OFFSET.unpack(offset)[0], packed[:KEY_BYTES], packed[KEY_BYTES:])

    def close(self) -> None:
        # The database stays locked while a column family or its handle is alive.
        if self._keys is not None:
            self._keys.close()
        self._keys = self._keys_handle = None
        self.db.close()
