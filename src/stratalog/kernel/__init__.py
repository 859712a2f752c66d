"""The per-record loops: batches and records between bytes, tuples and Arrow buffers; checksums and hashes.

A module is one Cython pure-Python source, compiled where it was built and interpreted otherwise, with equal
results. Its C types stand in a ``.pxd`` beside it, its Python types in ``__init__.pyi``. ``compiled`` says
which form runs; ``STRATALOG_PURE=1`` forces the interpreted one. The kernel imports nothing of the package
and keeps no state: bytes in, numbers or bytes out. Files and sockets are the caller's; it writes to the ones
it is given. Hostile bytes are answered with a code,
never with a read outside their buffer.
"""

from __future__ import annotations

from stratalog.kernel import loader

MODULES = (
    "_hash",
    "_scan",
    "_decode",
    "_encode",
    "_ledger",
    "_produce",
    "_keys",
    "_filter",
    "_wire",
    "_dump",
)
"""Each after those it uses. ``_dump`` is imported by the command that needs it."""

compiled: bool = loader.prepare(*MODULES)

from stratalog.kernel._decode import decode_columns, decode_tuples, find_tuple, walk_records  # noqa: E402
from stratalog.kernel._encode import encode_columns, encode_one, encode_tuples, use_error  # noqa: E402
from stratalog.kernel._filter import blank, filter_rows, find_rows  # noqa: E402
from stratalog.kernel._hash import (  # noqa: E402
    crc32c,
    crc32c_combine,
    hash64,
    hash_keys,
    key_row,
    key_rows,
    murmur2,
    partition_for_key,
)
from stratalog.kernel._keys import DropSet, KeyMap, add_rows, hash_key  # noqa: E402
from stratalog.kernel._ledger import (  # noqa: E402
    BLOCK_FULL,
    FIRST_BATCH,
    IN_DOUBT,
    INDEX_ENTRY_DUE,
    NEVER,
    ROOM_DUE,
    Appender,
    BlockSums,
    Ledger,
    add_batches,
    now_ms,
)
from stratalog.kernel._produce import AppendInfo, Producer  # noqa: E402
from stratalog.kernel._scan import find_row, index_batches, plan_run, scan_batches, sum_batches  # noqa: E402
from stratalog.kernel._wire import (  # noqa: E402
    WIRE_KINDS,
    WirePlan,
    decode_message,
    encode_message,
    parse_produce,
    produce_answer,
    receive,
    send,
)

__all__ = [
    "BLOCK_FULL",
    "FIRST_BATCH",
    "INDEX_ENTRY_DUE",
    "IN_DOUBT",
    "MODULES",
    "NEVER",
    "ROOM_DUE",
    "WIRE_KINDS",
    "AppendInfo",
    "Appender",
    "BlockSums",
    "DropSet",
    "KeyMap",
    "Ledger",
    "Producer",
    "WirePlan",
    "add_batches",
    "add_rows",
    "blank",
    "compiled",
    "crc32c",
    "crc32c_combine",
    "decode_columns",
    "decode_message",
    "decode_tuples",
    "encode_columns",
    "encode_message",
    "encode_one",
    "encode_tuples",
    "filter_rows",
    "find_row",
    "find_rows",
    "find_tuple",
    "hash64",
    "hash_key",
    "hash_keys",
    "index_batches",
    "key_row",
    "key_rows",
    "murmur2",
    "now_ms",
    "parse_produce",
    "partition_for_key",
    "plan_run",
    "produce_answer",
    "receive",
    "scan_batches",
    "send",
    "sum_batches",
    "use_error",
    "walk_records",
]
