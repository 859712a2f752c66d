"""The tail: `stratalog.tail`, how far a partition is synced and how far readers may go.

What lives here: two slots of 64 bytes, written in turn by one positional write each; big-endian.

    +----------------------+----------------------+
    | slot 0, 64 bytes     | slot 1, 64 bytes     |   slot = generation modulo 2
    +----------------------+----------------------+

    magic "STTL" · version uint16 · flags uint16 · generation uint64 · synced base, high watermark int64 ·
    synced position uint32 · synced offset less synced base uint32 · topic id, 16 bytes · partition int32 ·
    CRC-32C of the 60 bytes before, uint32

The slot with the higher generation counts. It may lag behind the log and never leads it: the log is
synced first. A crash may leave either slot torn; the other one, a generation older, is then true as well,
only less recent. With neither, the partition is treated as one that has no synced end.

Version 1 did not name its partition. Its slots have the same size and places, so that a file may hold one
of each.
"""

from __future__ import annotations

from typing import NamedTuple

from stratalog.errors import UnsupportedFormat
from stratalog.format.identity import UNKNOWN_PARTITION, PartitionId
from stratalog.format.layout import Layout, make_struct
from stratalog.kernel import crc32c

FILE_NAME = "stratalog.tail"
MAGIC = b"STTL"
VERSION = 2
READ_PAST_HIGH_WATERMARK, CLEAN, PRODUCERS = 1, 2, 4
_KNOWN_FLAGS = READ_PAST_HIGH_WATERMARK | CLEAN | PRODUCERS

LAYOUT: Layout = (
    ("magic", "bytes", 4),
    ("version", "uint16", 2),
    ("flags", "uint16", 2),
    ("generation", "uint64", 8),
    ("syncedBase", "int64", 8),
    ("highWatermark", "int64", 8),
    ("syncedPosition", "uint32", 4),
    ("syncedOffsetDelta", "uint32", 4),
    ("topicId", "bytes", 16),
    ("partition", "int32", 4),
    ("crc", "uint32", 4),
)
FIRST_LAYOUT: Layout = (
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
"""Version 1."""
_SLOT = make_struct(LAYOUT)
_FIRST = make_struct(FIRST_LAYOUT)
_BODY = make_struct(LAYOUT[:-1])
_CRC = make_struct(LAYOUT[-1:])
_HEAD = make_struct(LAYOUT[:3])
SLOT_SIZE = _SLOT.size
FILE_SIZE = 2 * SLOT_SIZE


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
    owner: PartitionId = UNKNOWN_PARTITION
    """The partition it was written for."""

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
    """Return the position of the slot of this generation."""
    return (generation & 1) * SLOT_SIZE


def pack_slot(tail: Tail) -> bytes:
    generation, base, position, offset, high_watermark, flags, (topic_id, partition) = tail
    body = _BODY.pack(
        MAGIC, VERSION, flags, generation, base, high_watermark, position, offset - base, topic_id, partition
    )
    return body + _CRC.pack(crc32c(body))


def parse(data: bytes | bytearray | memoryview, owner: PartitionId = UNKNOWN_PARTITION) -> Tail | None:
    """Return the newest valid slot of ``owner``; None when there is none.

    A sound slot of another version is UnsupportedFormat.
    """
    newest: Tail | None = None
    view = memoryview(data)
    for start in (0, SLOT_SIZE):
        slot = view[start : start + SLOT_SIZE]
        if len(slot) < SLOT_SIZE:
            break
        magic, version, flags = _HEAD.unpack_from(slot)
        if magic != MAGIC or _CRC.unpack_from(slot, SLOT_SIZE - 4)[0] != crc32c(slot[: SLOT_SIZE - 4]):
            continue
        if version not in (1, VERSION) or flags & ~_KNOWN_FLAGS:
            raise UnsupportedFormat(f"tail of version {version}, flags {flags:#x}")
        tail = _first_version(slot) if version == 1 else _second_version(slot)
        if slot_position(tail.generation) != start or min(tail[1:5]) < 0:
            continue
        if tail.owner.matches(owner) and (newest is None or tail.generation > newest.generation):
            newest = tail
    return newest


def _first_version(slot: memoryview) -> Tail:
    _, _, flags, generation, base, position, offset, high_watermark, _, _ = _FIRST.unpack(slot)
    return Tail(generation, base, position, offset, high_watermark, flags)


def _second_version(slot: memoryview) -> Tail:
    _, _, flags, generation, base, high_watermark, position, delta, *owner, _ = _SLOT.unpack(slot)
    return Tail(generation, base, position, base + delta, high_watermark, flags, PartitionId(*owner))
