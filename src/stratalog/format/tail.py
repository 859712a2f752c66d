"""The tail: `stratalog.tail`, how far a partition is synced and how far readers may go.

What lives here: two slots of 64 bytes, written in turn by one positional write each; big-endian.

    +----------------------+----------------------+
    | slot 0, 64 bytes     | slot 1, 64 bytes     |   slot = generation modulo 2
    +----------------------+----------------------+

    magic "STTL" · version uint16 · flags uint16 · generation uint64 · synced base, synced position,
    synced offset, high watermark int64 · 12 bytes of zeros · CRC-32C of the 60 bytes before, uint32

The slot with the higher generation counts. It may lag behind the log and never leads it: the log is
synced first. A crash may leave either slot torn; the other one, a generation older, is then true as well,
only less recent. With neither, the partition is treated as one that has no synced end.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.errors import UnsupportedFormat
from stratalog.format.layout import Layout, make_struct
from stratalog.kernel import crc32c

FILE_NAME = "stratalog.tail"
MAGIC = b"STTL"
VERSION = 1
READ_PAST_HIGH_WATERMARK, CLEAN, PRODUCERS = 1, 2, 4
_KNOWN_FLAGS = READ_PAST_HIGH_WATERMARK | CLEAN | PRODUCERS

LAYOUT: Layout = (
    ("magic", "bytes", 4),
    ("version", "uint16", 2),
    ("flags", "uint16", 2),
    ("generation", "uint64", 8),
    ("syncedBase", "int64", 8),
    ("syncedPosition", "int64", 8),
    ("syncedOffset", "int64", 8),
    ("highWatermark", "int64", 8),
    ("reserved", "bytes", 12),
    ("crc", "uint32", 4),
)
_SLOT = make_struct(LAYOUT)
_BODY = make_struct(LAYOUT[:-1])
_CRC = make_struct(LAYOUT[-1:])
SLOT_SIZE = _SLOT.size
FILE_SIZE = 2 * SLOT_SIZE
_ZEROS = bytes(12)


class Tail(NamedTuple):
    """One slot. ``synced_offset`` is the offset after the last synced record."""

    generation: int
    synced_base: int
    """Base offset of the segment the synced end lies in."""
    synced_position: int
    """Byte in that segment up to which everything is on disk."""
    synced_offset: int
    high_watermark: int
    flags: int = 0

    @property
    def read_past_high_watermark(self) -> bool:
        """Readers may go on from the high watermark to the last whole valid batch."""
        return bool(self.flags & READ_PAST_HIGH_WATERMARK)

    @property
    def clean(self) -> bool:
        """The writer closed the partition in order; nothing was written since."""
        return bool(self.flags & CLEAN)

    @property
    def producers(self) -> bool:
        """Batches with a producer id were appended: recovery must replay them from the last snapshot on."""
        return bool(self.flags & PRODUCERS)


def slot_position(generation: int) -> int:
    """Where in the file the slot of this generation belongs."""
    return (generation & 1) * SLOT_SIZE


def pack_slot(tail: Tail) -> bytes:
    generation, base, position, offset, high_watermark, flags = tail
    body = _BODY.pack(MAGIC, VERSION, flags, generation, base, position, offset, high_watermark, _ZEROS)
    return body + _CRC.pack(crc32c(body))


def parse(data: bytes | bytearray | memoryview) -> Tail | None:
    """The newest valid slot; None when neither is. A sound slot of another version is UnsupportedFormat."""
    newest: Tail | None = None
    view = memoryview(data)
    for start in (0, SLOT_SIZE):
        slot = view[start : start + SLOT_SIZE]
        if len(slot) < SLOT_SIZE:
            break
        magic, version, flags, generation, base, position, offset, high_watermark, _, crc = _SLOT.unpack(slot)
        if magic != MAGIC or crc != crc32c(slot[: SLOT_SIZE - 4]):
            continue
        if version != VERSION or flags & ~_KNOWN_FLAGS:
            raise UnsupportedFormat(f"tail of version {version}, flags {flags:#x}")
        if slot_position(generation) != start or min(base, position, offset, high_watermark) < 0:
            continue
        if newest is None or generation > newest.generation:
            newest = Tail(generation, base, position, offset, high_watermark, flags)
    return newest
