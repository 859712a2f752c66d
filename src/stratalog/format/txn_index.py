"""The transaction index: `<base>.txnindex`, the transactions aborted in a segment, as Kafka writes it.

What lives here: one entry of 34 bytes for each aborted transaction whose marker lies in the segment,
big-endian, in the order of the markers; no header, no checksum.

    version int16 (0) · producerId int64 · firstOffset int64 · lastOffset int64 · lastStableOffset int64

``last_offset`` is the marker's offset and rises from entry to entry. ``last_stable_offset`` is the last
stable offset after the marker: a reader that ends below it does not need later indexes.

The file exists only where a transaction was aborted. It is appended to after the marker is in the log; a
crash may leave it missing, short or torn inside an entry. It is rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stratalog.errors import CorruptionError, UnsupportedFormat
from stratalog.format.layout import Layout, make_struct

VERSION = 0
LAYOUT: Layout = (
    ("version", "int16", 2),
    ("producerId", "int64", 8),
    ("firstOffset", "int64", 8),
    ("lastOffset", "int64", 8),
    ("lastStableOffset", "int64", 8),
)
_ENTRY = make_struct(LAYOUT)
ENTRY_SIZE = _ENTRY.size


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def pack(entries: Iterable[AbortedTxn]) -> bytes:
    return b"".join(_ENTRY.pack(VERSION, *entry) for entry in entries)


def parse(data: bytes | bytearray | memoryview) -> list[AbortedTxn]:
    if len(data) % ENTRY_SIZE:
        raise CorruptionError(
            f"transaction index of {len(data)} bytes, not a multiple of {ENTRY_SIZE}",
            position=len(data) - len(data) % ENTRY_SIZE,
        )
    entries: list[AbortedTxn] = []
    before = -1
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != VERSION:
            raise UnsupportedFormat(f"transaction index entry {len(entries)} of version {version}")
        entry = AbortedTxn._make(fields)
        if not 0 <= entry.first_offset <= entry.last_offset or entry.last_offset <= before:
            raise CorruptionError(f"{entry} after offset {before}", position=len(entries) * ENTRY_SIZE)
        entries.append(entry)
        before = entry.last_offset
    return entries
