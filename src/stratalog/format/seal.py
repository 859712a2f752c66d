"""The seal: `<base>.seal`, what a finished segment holds, and a checksum of all of it.

What lives here: the value, its bytes, and the builder that a writer feeds batch by batch. All integers
are big-endian.

    +--------------------------------------------------------+
    | header, 76 bytes: magic "STRASEAL", version, flags,    |
    | CRC-32C and size of the whole `.log`, counts, first    |
    | and last offset, smallest and largest timestamp, and   |
    | the number of blocks                                   |
    +--------------------------------------------------------+
    | block, 48 bytes, one per run of whole batches of at    |
    | least 64 KiB (the last may be shorter): where it       |
    | starts, CRC-32C of its bytes, counts, offsets, times   |
    +--------------------------------------------------------+
    | CRC-32C of everything above, uint32                    |
    +--------------------------------------------------------+

It says what Kafka's own files cannot: the batch CRC does not cover a batch's offset and leader epoch, the
batch header holds the first record's timestamp and not the smallest, and no header says how many batches
there should have been.

The seal is written whole when a segment is sealed or its writer closes; beside an active segment it may
cover less than the log. After a crash it may be missing or fail its CRC: then it is made again from the
log. A sound seal that contradicts a log no longer written to is evidence against the log.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from operator import sub
from typing import NamedTuple

from stratalog.errors import CorruptionError, InvalidArgumentError, UnsupportedFormat
from stratalog.format.layout import Layout, make_struct
from stratalog.kernel import crc32c, crc32c_combine

MAGIC = b"STRASEAL"
VERSION = 1
BLOCK_BYTES = 64 << 10
CONTIGUOUS, CLEANED = 1, 2

LAYOUT: Layout = (
    ("magic", "bytes", 8),
    ("version", "uint16", 2),
    ("flags", "uint16", 2),
    ("logCrc", "uint32", 4),
    ("logSize", "int64", 8),
    ("records", "int64", 8),
    ("batches", "int64", 8),
    ("firstOffset", "int64", 8),
    ("lastOffset", "int64", 8),
    ("minTimestamp", "int64", 8),
    ("maxTimestamp", "int64", 8),
    ("blockCount", "uint32", 4),
)
BLOCK_LAYOUT: Layout = (
    ("position", "uint32", 4),
    ("crc", "uint32", 4),
    ("firstOffset", "int64", 8),
    ("lastOffset", "int64", 8),
    ("records", "uint32", 4),
    ("minTimestamp", "int64", 8),
    ("maxTimestamp", "int64", 8),
    ("batches", "uint32", 4),
)
TRAILER_LAYOUT: Layout = (("sealCrc", "uint32", 4),)

_HEADER = make_struct(LAYOUT)
_BLOCK = make_struct(BLOCK_LAYOUT)
_TRAILER = make_struct(TRAILER_LAYOUT)
HEADER_SIZE, BLOCK_SIZE, TRAILER_SIZE = _HEADER.size, _BLOCK.size, _TRAILER.size


class SealBlock(NamedTuple):
    """A run of whole batches. ``records`` counts what a reader may get; times cover every batch."""

    position: int
    crc: int
    first_offset: int
    last_offset: int
    records: int
    min_timestamp: int
    max_timestamp: int
    batches: int


@dataclass(frozen=True, slots=True)
class Seal:
    """The facts of a finished segment. Offsets and timestamps are -1 where there are no batches."""

    size_bytes: int
    crc: int
    records: int
    batches: int
    contiguous: bool
    """Each batch begins at the offset after the one before it: a gap found later is damage."""
    cleaned: bool
    first_offset: int
    last_offset: int
    min_timestamp: int
    max_timestamp: int
    blocks: tuple[SealBlock, ...]

    def block_size(self, i: int) -> int:
        """The bytes of block ``i``."""
        end = self.blocks[i + 1].position if i + 1 < len(self.blocks) else self.size_bytes
        return end - self.blocks[i].position

    def find_block(self, offset: int) -> int:
        """The first block that may hold ``offset`` or a later one; ``len(blocks)`` when none does."""
        return bisect_left(self.blocks, offset, key=lambda block: block.last_offset)


def pack(seal: Seal) -> bytes:
    flags = (CONTIGUOUS if seal.contiguous else 0) | (CLEANED if seal.cleaned else 0)
    parts = [
        _HEADER.pack(
            MAGIC,
            VERSION,
            flags,
            seal.crc,
            seal.size_bytes,
            seal.records,
            seal.batches,
            seal.first_offset,
            seal.last_offset,
            seal.min_timestamp,
            seal.max_timestamp,
            len(seal.blocks),
        )
    ]
    parts.extend(_BLOCK.pack(*block) for block in seal.blocks)
    body = b"".join(parts)
    return body + _TRAILER.pack(crc32c(body))


def parse(data: bytes | bytearray | memoryview) -> Seal:
    """The seal in ``data``. Any version of it ends with the CRC, so damage is told from novelty."""
    view = memoryview(data)
    body = len(view) - TRAILER_SIZE
    if body < HEADER_SIZE:
        raise CorruptionError(f"seal of {len(view)} bytes", position=0)
    if _TRAILER.unpack_from(view, body)[0] != crc32c(view[:body]):
        raise CorruptionError("the CRC of the seal does not match", position=body)
    magic, version, flags, crc, size_bytes, records, batches, first, last, oldest, newest, count = (
        _HEADER.unpack_from(view)
    )
    if magic != MAGIC:
        raise CorruptionError(f"not a seal: {magic!r}", position=0)
    if version != VERSION or flags & ~(CONTIGUOUS | CLEANED):
        raise UnsupportedFormat(f"seal of version {version}, flags {flags:#x}")
    if body != HEADER_SIZE + count * BLOCK_SIZE:
        raise CorruptionError(f"{count} blocks in a seal of {len(view)} bytes", position=body)
    blocks = tuple(map(SealBlock._make, _BLOCK.iter_unpack(view[HEADER_SIZE:body])))
    _check_blocks(blocks, size_bytes, records, batches)
    return Seal(
        size_bytes=size_bytes,
        crc=crc,
        records=records,
        batches=batches,
        contiguous=bool(flags & CONTIGUOUS),
        cleaned=bool(flags & CLEANED),
        first_offset=first,
        last_offset=last,
        min_timestamp=oldest,
        max_timestamp=newest,
        blocks=blocks,
    )


def _check_blocks(blocks: tuple[SealBlock, ...], size_bytes: int, records: int, batches: int) -> None:
    end, offset = -1, -1
    for i, block in enumerate(blocks):
        if (
            block.position <= end
            or (i == 0 and block.position)
            or not offset < block.first_offset <= block.last_offset
        ):
            raise CorruptionError(
                f"block {i} does not follow the one before it", position=HEADER_SIZE + i * BLOCK_SIZE
            )
        end, offset = block.position, block.last_offset
    if size_bytes <= end or (not blocks and size_bytes):
        raise CorruptionError(f"a log of {size_bytes} bytes with {len(blocks)} blocks", position=HEADER_SIZE)
    if sum(block.records for block in blocks) != records or sum(block.batches for block in blocks) != batches:
        raise CorruptionError("the counts of the blocks do not add up", position=HEADER_SIZE)


_Facts = tuple[int, int, int | bytes | bytearray, int, int, int, int, int]


class SealBuilder:
    """Collects a seal while a segment is written.

    ``add`` runs for every append, so it only keeps what it is given; sums and checksums are made when a
    block is full. ``base_offset``, where given, is where the first batch must begin for the segment to be
    contiguous. Not thread-safe: it belongs to the writer.
    """

    __slots__ = ("_blocks", "_contiguous", "_crc", "_full_at", "_next_offset", "_open", "_reopened")

    def __init__(self, base_offset: int | None = None) -> None:
        self._blocks: list[SealBlock] = []
        self._crc = 0
        self._contiguous = True
        self._next_offset = base_offset
        self._open: list[_Facts] = []
        self._reopened = 0
        self._full_at = BLOCK_BYTES

    @classmethod
    def resume(cls, seal: Seal) -> SealBuilder:
        """A builder that goes on behind ``seal``; a last block that was cut short is filled up."""
        builder = cls()
        builder._contiguous = seal.contiguous
        builder._blocks = list(seal.blocks)
        if not seal.blocks:
            return builder
        size = seal.block_size(len(seal.blocks) - 1)
        builder._next_offset = seal.last_offset + 1
        builder._full_at = seal.size_bytes + BLOCK_BYTES
        builder._crc = seal.crc
        if size < BLOCK_BYTES:
            block = builder._blocks.pop()
            builder._open.append((block.position, size, block.crc, *block[2:7]))
            builder._reopened = block.batches
            builder._next_offset = block.first_offset
            builder._full_at = block.position + BLOCK_BYTES
            builder._crc = _whole_crc(builder._blocks, block.position)
        return builder

    @property
    def size_bytes(self) -> int:
        """Where the next batch must begin."""
        if self._open:
            return self._open[-1][0] + self._open[-1][1]
        return self._full_at - BLOCK_BYTES

    def add(
        self,
        position: int,
        size: int,
        crc_of_bytes: int | bytes | bytearray,
        first_offset: int,
        last_offset: int,
        count: int,
        min_timestamp: int,
        max_timestamp: int,
    ) -> None:
        """One batch, as it lies in the file.

        ``crc_of_bytes`` is the CRC-32C of all its bytes or, cheaper for a small batch, the bytes themselves:
        joining two CRCs takes a microsecond, a hundred bytes a few nanoseconds. Bytes are held until their
        block is full, 64 KiB later at most, and must not change before.
        """
        self._open.append(
            (position, size, crc_of_bytes, first_offset, last_offset, count, min_timestamp, max_timestamp)
        )
        if position + size >= self._full_at:
            self._close_block()

    def _close_block(self) -> None:
        block, size, contiguous = self._fold()
        self._crc = crc32c_combine(self._crc, block.crc, size)
        self._contiguous = contiguous
        self._blocks.append(block)
        self._next_offset = block.last_offset + 1
        self._full_at = block.position + size + BLOCK_BYTES
        self._open.clear()
        self._reopened = 0

    def _fold(self) -> tuple[SealBlock, int, bool]:
        """The open batches as one block; its size; and whether all is contiguous up to its end."""
        positions, sizes, crcs, firsts, lasts, counts, oldest, newest = zip(*self._open, strict=True)
        size = sum(sizes)
        start = self._full_at - BLOCK_BYTES
        if positions[0] != start or positions[-1] + sizes[-1] != start + size:
            raise InvalidArgumentError(f"the batches from {positions[0]} on do not join at byte {start}")
        crc = _join_crcs(crcs, sizes)
        steps = list(map(sub, firsts[1:], lasts))
        contiguous = (
            self._contiguous
            and (self._next_offset is None or firsts[0] == self._next_offset)
            and steps.count(1) == len(steps)
        )
        batches = len(sizes) - 1 + (self._reopened or 1)
        block = SealBlock(start, crc, firsts[0], lasts[-1], sum(counts), min(oldest), max(newest), batches)
        return block, size, contiguous

    def build(self, *, cleaned: bool = False) -> Seal:
        """The seal of everything added so far. More may be added afterwards."""
        blocks, crc, contiguous = list(self._blocks), self._crc, self._contiguous
        if self._open:
            block, size, contiguous = self._fold()
            crc = crc32c_combine(crc, block.crc, size)
            blocks.append(block)
        return Seal(
            size_bytes=self.size_bytes,
            crc=crc,
            records=sum(block.records for block in blocks),
            batches=sum(block.batches for block in blocks),
            contiguous=contiguous,
            cleaned=cleaned,
            first_offset=blocks[0].first_offset if blocks else -1,
            last_offset=blocks[-1].last_offset if blocks else -1,
            min_timestamp=min((block.min_timestamp for block in blocks), default=-1),
            max_timestamp=max((block.max_timestamp for block in blocks), default=-1),
            blocks=tuple(blocks),
        )


def _join_crcs(crcs: tuple[int | bytes | bytearray, ...], sizes: tuple[int, ...]) -> int:
    """The CRC of batches one behind the other, each given as its CRC or as its bytes."""
    crc = first = 0
    if type(crcs[0]) is int:
        # A block that was reopened starts with the CRC of what it held.
        crc, first = crcs[0], 1
    rest = crcs[first:]
    if int not in set(map(type, rest)):
        return crc32c(b"".join(rest), crc)  # type: ignore[arg-type]  # no CRC among them
    for known, size in zip(rest, sizes[first:], strict=True):
        crc = crc32c_combine(crc, known, size) if isinstance(known, int) else crc32c(known, crc)
    return crc


def _whole_crc(blocks: list[SealBlock], end: int) -> int:
    """The CRC of a run of blocks from byte 0 to ``end``."""
    crc = 0
    for i, block in enumerate(blocks):
        size = (blocks[i + 1].position if i + 1 < len(blocks) else end) - block.position
        crc = crc32c_combine(crc, block.crc, size)
    return crc
