"""The seal: `<base>.seal`, what a finished segment holds, and a checksum of all of it.

What lives here: the value, its bytes, and the builder that a writer feeds batch by batch. All integers
are big-endian.

    +--------------------------------------------------------+
    | header, 108 bytes: magic "STRASEAL", version, flags,   |
    | CRC-32C and size of the whole `.log`, counts, first    |
    | and last offset, smallest and largest timestamp,       |
    | CRC-32C of the `.txnindex`, the number of blocks, the  |
    | segment it speaks of: topic id, partition, base offset |
    +--------------------------------------------------------+
    | block, 48 bytes, one per run of whole batches of at    |
    | least 64 KiB (the last may be shorter): where it       |
    | starts, CRC-32C of its bytes, counts, offsets, times   |
    +--------------------------------------------------------+
    | CRC-32C of everything above, uint32                    |
    +--------------------------------------------------------+

It says what Kafka's own files cannot: the batch CRC does not cover a batch's offset and leader epoch, the
batch header holds the first record's timestamp and not the smallest, no header says how many batches
there should have been, and the transaction index has no checksum.

The seal is written whole when a segment is sealed or its writer closes; beside an active segment it may
cover less than the log. After a crash it may be missing or fail its CRC: then it is made again from the
log. A sound seal that contradicts a log no longer written to is evidence against the log. A seal of another
segment says nothing about this one: it is left aside, reported, and made again. Version 1 did not name its
segment: its header ends after the number of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stratalog.errors import CorruptionError, InvalidArgumentError, UnsupportedFormat
from stratalog.format.batch.header_scan import Scan
from stratalog.format.identity import UNKNOWN_PARTITION, PartitionId
from stratalog.format.layout import Layout, make_struct
from stratalog.kernel import BlockSums, add_batches, crc32c, crc32c_combine

MAGIC = b"STRASEAL"
VERSION = 2
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
    ("txnIndexCrc", "uint32", 4),
    ("blockCount", "uint32", 4),
    ("topicId", "bytes", 16),
    ("partition", "int32", 4),
    ("baseOffset", "int64", 8),
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
_FIRST_HEADER = make_struct(LAYOUT[:-3])
_BLOCK = make_struct(BLOCK_LAYOUT)
_TRAILER = make_struct(TRAILER_LAYOUT)
HEADER_SIZE, BLOCK_SIZE, TRAILER_SIZE = _HEADER.size, _BLOCK.size, _TRAILER.size
FIRST_HEADER_SIZE = _FIRST_HEADER.size
"""The header of version 1."""


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
    txn_index_crc: int = 0
    """CRC-32C of the `.txnindex`, which has none of its own; 0 when there is no such file."""
    owner: PartitionId = UNKNOWN_PARTITION
    """The partition that the segment belongs to."""
    base_offset: int = -1
    """The base offset of the segment; -1 in a seal of version 1."""

    def stranger(self, owner: PartitionId, base_offset: int) -> str:
        """Return why this is the seal of another segment than the one given; "" when it is not.

        A seal of version 1 names no segment; only its offsets can be compared.
        """
        if not self.owner.matches(owner):
            return f"it is the seal of a segment of {self.owner}"
        if self.base_offset >= 0:
            same = self.base_offset == base_offset
        elif self.contiguous and self.blocks:
            same = self.first_offset == base_offset
        else:
            same = not self.blocks or self.first_offset >= base_offset
        known = self.base_offset if self.base_offset >= 0 else self.first_offset
        return "" if same else f"it is the seal of the segment at offset {known}"

    def block_size(self, i: int) -> int:
        """Return the size in bytes of block ``i``."""
        end = self.blocks[i + 1].position if i + 1 < len(self.blocks) else self.size_bytes
        return end - self.blocks[i].position


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
            seal.txn_index_crc,
            len(seal.blocks),
            *seal.owner,
            seal.base_offset,
        )
    ]
    parts.extend(_BLOCK.pack(*block) for block in seal.blocks)
    body = b"".join(parts)
    return body + _TRAILER.pack(crc32c(body))


def parse(data: bytes | bytearray | memoryview) -> Seal:
    """Parse a seal. Every version ends with the CRC, so that a newer one is not taken for damage."""
    view = memoryview(data)
    body = len(view) - TRAILER_SIZE
    if body < FIRST_HEADER_SIZE:
        raise CorruptionError(f"seal of {len(view)} bytes", position=0)
    if _TRAILER.unpack_from(view, body)[0] != crc32c(view[:body]):
        raise CorruptionError("the CRC of the seal does not match", position=body)
    magic, version, flags, crc, size_bytes, records, batches, first, last, oldest, newest, txns, count = (
        _FIRST_HEADER.unpack_from(view)
    )
    if magic != MAGIC:
        raise CorruptionError(f"not a seal: {magic!r}", position=0)
    if version not in (1, VERSION) or flags & ~(CONTIGUOUS | CLEANED):
        raise UnsupportedFormat(f"seal of version {version}, flags {flags:#x}")
    header_size = FIRST_HEADER_SIZE if version == 1 else HEADER_SIZE
    if body != header_size + count * BLOCK_SIZE:
        raise CorruptionError(f"{count} blocks in a seal of {len(view)} bytes", position=body)
    owner, base_offset = UNKNOWN_PARTITION, -1
    if version != 1:
        *_, topic_id, partition, base_offset = _HEADER.unpack_from(view)
        owner = PartitionId(topic_id, partition)
    blocks = tuple(map(SealBlock._make, _BLOCK.iter_unpack(view[header_size:body])))
    _check_blocks(blocks, size_bytes, records, batches, header_size)
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
        txn_index_crc=txns,
        owner=owner,
        base_offset=base_offset,
    )


def _check_blocks(
    blocks: tuple[SealBlock, ...], size_bytes: int, records: int, batches: int, header_size: int
) -> None:
    end, offset = -1, -1
    for i, block in enumerate(blocks):
        if (
            block.position <= end
            or (i == 0 and block.position)
            or not offset < block.first_offset <= block.last_offset
        ):
            raise CorruptionError(
                f"block {i} does not follow the one before it", position=header_size + i * BLOCK_SIZE
            )
        end, offset = block.position, block.last_offset
    if size_bytes <= end or (not blocks and size_bytes):
        raise CorruptionError(f"a log of {size_bytes} bytes with {len(blocks)} blocks", position=header_size)
    if sum(block.records for block in blocks) != records or sum(block.batches for block in blocks) != batches:
        raise CorruptionError("the counts of the blocks do not add up", position=header_size)


class SealBuilder:
    """Collects a seal while a segment is written.

    The sums of the open block are the kernel's, because ``add`` runs for every append. ``base_offset``,
    where given, is where the first batch must begin for the segment to be contiguous. Not thread-safe: it
    belongs to the writer.
    """

    __slots__ = ("_blocks", "_crc", "sums")

    def __init__(self, base_offset: int | None = None) -> None:
        self._blocks: list[SealBlock] = []
        self._crc = 0
        self.sums = BlockSums(0, -1 if base_offset is None else base_offset)
        """The open block. A caller that feeds it directly calls `close_block` when it is full."""

    @classmethod
    def resume(cls, seal: Seal) -> SealBuilder:
        """Return a builder that continues after ``seal``; an incomplete last block is filled up."""
        builder = cls()
        sums = builder.sums
        sums.contiguous = seal.contiguous
        if not seal.blocks:
            return builder
        builder._blocks = list(seal.blocks)
        builder._crc = seal.crc
        sums.begin(seal.size_bytes)
        sums.next_offset = seal.last_offset + 1
        if seal.block_size(len(seal.blocks) - 1) < BLOCK_BYTES:
            block = builder._blocks.pop()
            builder._crc = _whole_crc(builder._blocks, block.position)
            sums.begin(block.position)
            sums.end, sums.crc = seal.size_bytes, block.crc
            sums.first_offset, sums.last_offset = block.first_offset, block.last_offset
            sums.records, sums.batches = block.records, block.batches
            sums.min_timestamp, sums.max_timestamp = block.min_timestamp, block.max_timestamp
        return builder

    @property
    def size_bytes(self) -> int:
        """Where the next batch must begin."""
        return self.sums.end

    def add(
        self,
        position: int,
        size: int,
        crc_of_bytes: int | bytes | bytearray | memoryview,
        first_offset: int,
        last_offset: int,
        count: int,
        min_timestamp: int,
        max_timestamp: int,
    ) -> None:
        """Add one batch with its bytes in the file.

        ``crc_of_bytes`` is the CRC-32C of all its bytes or, cheaper for a small batch, the bytes themselves:
        joining two CRCs takes a microsecond, a hundred bytes a few nanoseconds.
        """
        full = self.sums.add(
            position, size, crc_of_bytes, first_offset, last_offset, count, min_timestamp, max_timestamp
        )
        if full < 0:
            raise InvalidArgumentError(f"a batch at byte {position} where byte {self.sums.end} was due")
        if full:
            self.close_block()

    def add_scan(self, data: bytes | memoryview, scan: Scan, base_position: int) -> None:
        """Add the batches of a measured scan that were not added yet."""
        view = memoryview(data)
        row = scan.find_position(self.sums.end - base_position)
        while row < scan.n:
            row = add_batches(self.sums, view, base_position, scan.table, row, scan.n)
            if row < 0:
                raise InvalidArgumentError(f"the batches at byte {base_position} do not join the seal")
            if self.sums.end - self.sums.start >= BLOCK_BYTES:
                self.close_block()

    def close_block(self) -> None:
        """Make the open sums a block of the seal, and begin the next."""
        block, sums = self._open_block(), self.sums
        self._crc = crc32c_combine(self._crc, block.crc, sums.end - sums.start)
        self._blocks.append(block)
        sums.begin(sums.end)

    def _open_block(self) -> SealBlock:
        sums = self.sums
        return SealBlock(
            sums.start,
            sums.crc,
            sums.first_offset,
            sums.last_offset,
            sums.records,
            sums.min_timestamp,
            sums.max_timestamp,
            sums.batches,
        )

    def build(
        self,
        *,
        cleaned: bool = False,
        txn_index_crc: int = 0,
        owner: PartitionId = UNKNOWN_PARTITION,
        base_offset: int = -1,
    ) -> Seal:
        """Return the seal of everything added so far. More may be added afterwards."""
        blocks, crc, sums = list(self._blocks), self._crc, self.sums
        if sums.batches:
            blocks.append(self._open_block())
            crc = crc32c_combine(crc, sums.crc, sums.end - sums.start)
        return Seal(
            size_bytes=self.size_bytes,
            crc=crc,
            records=sum(block.records for block in blocks),
            batches=sum(block.batches for block in blocks),
            contiguous=sums.contiguous,
            cleaned=cleaned,
            first_offset=blocks[0].first_offset if blocks else -1,
            last_offset=blocks[-1].last_offset if blocks else -1,
            min_timestamp=min((block.min_timestamp for block in blocks), default=-1),
            max_timestamp=max((block.max_timestamp for block in blocks), default=-1),
            blocks=tuple(blocks),
            txn_index_crc=txn_index_crc,
            owner=owner,
            base_offset=base_offset,
        )


def _whole_crc(blocks: list[SealBlock], end: int) -> int:
    """Compute the CRC of a run of blocks from byte 0 to ``end``."""
    crc = 0
    for i, block in enumerate(blocks):
        size = (blocks[i + 1].position if i + 1 < len(blocks) else end) - block.position
        crc = crc32c_combine(crc, block.crc, size)
    return crc
