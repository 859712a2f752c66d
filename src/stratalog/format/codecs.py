"""The compression codecs of a record batch, bounded in both directions.

What lives here: ``compress`` and ``decompress`` for the five codec ids of a batch's attributes. Bytes in,
bytes out; nothing else is touched, and there is nothing for a crash to leave.

    id  name    what is written                            what is read besides
    0   none    the bytes as they are
    1   gzip    one member, no name, no time               any number of members back to back
    2   snappy  xerial stream: 82 'SNAPPY' 00, version 1,  raw snappy without any framing, and xerial
                compatible 1, then (int32 length, raw      streams back to back
                snappy block of 32 KiB)*
    3   lz4     one frame, independent 64 KiB blocks, no   linked blocks, checksums, frames back to back
                checksums: what the Java client reads
    4   zstd    one frame                                  frames back to back, skippable frames

What a decompression may cost is decided before it runs. ``max_bytes`` bounds the output. ``max_ratio``
bounds amplification: the output may be ``RATIO_SLACK_BYTES`` or ``max_ratio`` times the input, whichever
is more. DEFLATE cannot exceed 1032:1, LZ4 255:1 and snappy 22:1, so with the default of 2000 the bound
only ever bites on zstd (32768:1 at most), and there only past the slack: a large batch of zeros stays
readable, a few kilobytes that claim a gigabyte do not. Buffers are sized from the block structure of
the input, never from a length it merely declares.
"""

from __future__ import annotations

import struct
import zlib

import cramjam

from stratalog.errors import CorruptionError, UnsupportedCodecError, UnsupportedFormat

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES: dict[str, int] = {
    "none": NONE,
    "gzip": GZIP,
    "snappy": SNAPPY,
    "lz4": LZ4,
    "zstd": ZSTD,
    "uncompressed": NONE,
}
CODEC_NAMES: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")

DEFAULT_MAX_BYTES = 1 << 30
DEFAULT_MAX_RATIO = 2000
RATIO_SLACK_BYTES = 64 << 20
KEPT_BYTES = 4 << 20

# Kafka's names, ranges and defaults: compression.{gzip,lz4,zstd}.level.
LEVELS: dict[int, tuple[int, int, int]] = {GZIP: (1, 9, -1), LZ4: (1, 17, 9), ZSTD: (-131072, 22, 3)}

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 << 10
# A copy element of three bytes makes at most 64: no valid block expands further.
SNAPPY_MAX_RATIO = 22

# Magic, FLG 0x60 (version 1, independent blocks, no checksums), BD 0x40 (64 KiB), header checksum.
LZ4_MAGIC = 0x184D2204
LZ4_HEADER = struct.pack("<I", LZ4_MAGIC) + b"\x60\x40\x82"
LZ4_BLOCK_BYTES = 64 << 10
LZ4_UNCOMPRESSED = 0x80000000
LZ4_INDEPENDENT, LZ4_RESERVED = 0x20, 0x03
LZ4_MIN_BYTES = 11
LZ4_MAX_RATIO = 255
LZ4_MAX_LEVEL = 12

ZSTD_MAGIC = 0xFD2FB528
ZSTD_BLOCK_BYTES = 128 << 10
ZSTD_MAX_WINDOW_BYTES = 1 << 27
SKIPPABLE_MAGIC, SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0

_I32 = struct.Struct(">i")
_U32 = struct.Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """``data`` compressed as Kafka's clients expect it; ``level`` None is Kafka's default."""
    if codec == NONE:
        return bytes(data)
    if codec == SNAPPY:
        return _snappy_compress(data)
    if codec not in LEVELS:
        raise UnsupportedCodecError(f"unknown compression codec {codec}")
    lowest, highest, default = LEVELS[codec]
    if level is None:
        level = default
    elif level != default and not lowest <= level <= highest:
        raise UnsupportedCodecError(f"{CODEC_NAMES[codec]} level {level} is not in {lowest}..{highest}")
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    if codec == LZ4:
        return _lz4_compress(data, level)
    squeeze = zlib.compressobj(level, zlib.DEFLATED, 31)
    return squeeze.compress(data) + squeeze.flush()


def decompress(
    codec: int,
    data: Buffer,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_ratio: int = DEFAULT_MAX_RATIO,
) -> bytes:
    """``data`` decompressed, or CorruptionError; never more than the bounds allow, in memory or result."""
    size = len(data)
    limit = min(max_bytes, max(RATIO_SLACK_BYTES, size * max_ratio))
    if codec == NONE:
        if size > max_bytes:
            raise _too_large("none", size, max_bytes)
        return bytes(data)
    if not NONE <= codec <= ZSTD:
        raise UnsupportedFormat(f"compression codec {codec} is not one this library knows")
    if not size:
        raise CorruptionError(f"{CODEC_NAMES[codec]}: no data", position=0)
    if codec == GZIP:
        return _gzip_decompress(data, limit)
    if codec == SNAPPY:
        return _snappy_decompress(data, limit)
    return _framed_decompress(codec, data, _bound(codec, data), limit)


class Scratch:
    """Memory that is decompressed into, used again and again: fresh pages cost more than most codecs do.

    For one thread at a time. More than ``KEPT_BYTES`` is not kept.
    """

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = bytearray()

    def decompress(
        self,
        codec: int,
        data: Buffer,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_ratio: int = DEFAULT_MAX_RATIO,
    ) -> memoryview:
        """`decompress`, with the same bounds; the result holds until the next call.

        The room is what the blocks of ``data`` can make at most, known before a byte is decompressed.
        """
        if codec not in (LZ4, ZSTD) or not len(data):
            return memoryview(decompress(codec, data, max_bytes=max_bytes, max_ratio=max_ratio))
        limit = min(max_bytes, max(RATIO_SLACK_BYTES, len(data) * max_ratio))
        room = min(_bound(codec, data), limit)
        out = memoryview(self._room(room))[:room]
        return out[: _decompress_into(codec, data, out, limit)]

    def _room(self, size: int) -> bytearray:
        if size <= len(self._memory):
            return self._memory
        if size > KEPT_BYTES:
            return bytearray(size)
        self._memory = bytearray(max(size, 64 << 10))
        return self._memory


def _decompress_into(codec: int, data: Buffer, out: bytearray | memoryview, limit: int) -> int:
    """Decompress lz4 or zstd into ``out``; CorruptionError when it is wrong or does not fit."""
    name = CODEC_NAMES[codec]
    try:
        return int((cramjam.lz4 if codec == LZ4 else cramjam.zstd).decompress_into(data, out))
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise _too_large(name, limit + 1, limit) from None
        raise CorruptionError(f"{name}: {error}", position=0) from None


def _too_large(name: str, size: int, limit: int) -> CorruptionError:
    return CorruptionError(f"{name}: decompresses to {size} bytes or more, {limit} are allowed", position=0)


def _framed_decompress(codec: int, data: Buffer, bound: int, limit: int) -> bytes:
    """lz4 and zstd: ``bound`` is what the block structure can make at most."""
    name = CODEC_NAMES[codec]
    module = cramjam.lz4 if codec == LZ4 else cramjam.zstd
    if bound <= limit:
        try:
            return bytes(module.decompress(data))
        except cramjam.DecompressionError as error:
            raise CorruptionError(f"{name}: {error}", position=0) from None
    out = bytearray(limit)
    return bytes(memoryview(out)[: _decompress_into(codec, data, out, limit)])


# -- gzip


def _gzip_decompress(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    size, position = len(view), 0
    parts: list[bytes] = []
    left = limit
    feed = size
    while position < size:
        inflate = zlib.decompressobj(31)
        member = position
        while not inflate.eof:
            chunk = view[position : position + feed]
            if not chunk:
                raise CorruptionError("gzip: the data ends inside a member", position=size)
            try:
                part = inflate.decompress(chunk, left + 1)
            except zlib.error as error:
                raise CorruptionError(f"gzip: {error}", position=member) from None
            position += len(chunk) - len(inflate.unused_data)
            left -= len(part)
            if left < 0 or inflate.unconsumed_tail:
                raise _too_large("gzip", limit + 1, limit)
            parts.append(part)
            # What follows a member is copied by zlib: after the first, feed little and grow.
            feed = min(feed * 2, 1 << 20) if feed < size else feed
        feed = 4096
    return parts[0] if len(parts) == 1 else b"".join(parts)


# -- snappy


def _snappy_compress(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts.append(_I32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_decompress(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    size = len(view)
    if size < len(XERIAL_HEADER) or view[:8] != XERIAL_MAGIC:
        return _snappy_block(view, 0, limit)
    parts: list[bytes] = []
    left = limit
    position = 0
    while position < size:
        if view[position : position + 8] == XERIAL_MAGIC:
            if position + len(XERIAL_HEADER) > size:
                raise CorruptionError("snappy: the data ends inside a stream header", position=position)
            compatible = _I32.unpack_from(view, position + 12)[0]
            if compatible != 1:
                raise UnsupportedFormat(f"snappy: xerial stream of version {compatible}")
            position += len(XERIAL_HEADER)
            continue
        if position + 4 > size:
            raise CorruptionError("snappy: the data ends inside a block length", position=position)
        length = _I32.unpack_from(view, position)[0]
        position += 4
        if not 0 < length <= size - position:
            raise CorruptionError(
                f"snappy: block of {length} bytes where {size - position} are left", position=position
            )
        part = _snappy_block(view[position : position + length], position, left)
        left -= len(part)
        parts.append(part)
        position += length
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy_block(block: memoryview, position: int, limit: int) -> bytes:
    try:
        declared = cramjam.snappy.decompress_raw_len(block)
        if declared > limit:
            raise _too_large("snappy", declared, limit)
        if declared > len(block) * SNAPPY_MAX_RATIO:
            raise CorruptionError(f"snappy: {len(block)} bytes cannot make {declared}", position=position)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptionError(f"snappy: {error}", position=position) from None


# -- lz4


def _lz4_compress(data: Buffer, level: int) -> bytes:
    if level != LEVELS[LZ4][2]:
        # As in Kafka, any level but the default means the high compression mode, where LZ4 ends at 12.
        squeeze = cramjam.lz4.Compressor(
            level=min(level, LZ4_MAX_LEVEL), content_checksum=False, block_linked=False
        )
        squeeze.compress(bytes(data))  # it takes no other buffer
        return bytes(squeeze.finish())
    view = memoryview(data)
    parts = [LZ4_HEADER]
    for start in range(0, len(view), LZ4_BLOCK_BYTES):
        raw = view[start : start + LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(raw, mode="fast", acceleration=1, store_size=False))
        if len(block) < len(raw):
            parts.append(_U32.pack(len(block)))
            parts.append(block)
        else:
            parts.append(_U32.pack(len(raw) | LZ4_UNCOMPRESSED))
            parts.append(bytes(raw))
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _lz4_frame(view: memoryview, position: int) -> tuple[int, int]:
    bound = 0
    flags, descriptor = view[position], view[position + 1]
    if flags >> 6 != 1:
        raise UnsupportedFormat(f"lz4: frame version {flags >> 6}")
    block_max = 1 << (8 + 2 * max(4, descriptor >> 4 & 7))
    position += 3 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    while length := _U32.unpack_from(view, position)[0]:
        stored = length & ~LZ4_UNCOMPRESSED
        if stored > len(view) - position:
            raise CorruptionError(f"lz4: block of {stored} bytes runs past the data", position=position)
        bound += stored if length & LZ4_UNCOMPRESSED else min(block_max, stored * LZ4_MAX_RATIO)
        position += 4 + stored + (4 if flags & 16 else 0)
    return bound, position + 4 + (4 if flags & 4 else 0)


def unread_by_kafka(data: Buffer) -> str | None:
    """Return why Kafka's Java clients would not read all of lz4 that decompresses; None if they do.

    They read one frame, of independent blocks and without a dictionary.
    """
    view = memoryview(data)
    if len(view) < LZ4_MIN_BYTES or _U32.unpack_from(view)[0] != LZ4_MAGIC:
        return "lz4 does not begin with a frame"
    if not view[4] & LZ4_INDEPENDENT or view[4] & LZ4_RESERVED:
        return "lz4 with linked blocks or a dictionary"
    return None if _lz4_frame(view, 4)[1] == len(view) else "lz4 of more than one frame"


# -- zstd


def _zstd_frame(view: memoryview, position: int) -> tuple[int, int]:
    bound = 0
    flags = view[position]
    single_segment = flags & 0x20
    if not single_segment:
        window = view[position + 1]
        if (8 + (window & 7)) << (7 + (window >> 3)) > ZSTD_MAX_WINDOW_BYTES:
            raise CorruptionError("zstd: a window of more than 128 MiB", position=position + 1)
    content_size = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
    position += 1 + (0 if single_segment else 1) + (0, 1, 2, 4)[flags & 3] + content_size
    last = 0
    while not last:
        header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        position += 3
        last, kind, length = header & 1, header >> 1 & 3, header >> 3
        bound += ZSTD_BLOCK_BYTES if kind == 2 else min(length, ZSTD_BLOCK_BYTES)
        position += 1 if kind == 1 else length
    return bound, position + (4 if flags & 4 else 0)


# -- frames of lz4 and zstd

_FRAMES = {LZ4: (LZ4_MAGIC, _lz4_frame), ZSTD: (ZSTD_MAGIC, _zstd_frame)}


def _bound(codec: int, data: Buffer) -> int:
    """Return the most that the blocks of these frames can make; CorruptionError where they do not add up."""
    view = memoryview(data)
    name, (wanted, frame) = CODEC_NAMES[codec], _FRAMES[codec]
    bound = position = 0
    try:
        while position < len(view):
            (magic,) = _U32.unpack_from(view, position)
            position += 4
            if magic & SKIPPABLE_MASK == SKIPPABLE_MAGIC:
                position += 4 + _U32.unpack_from(view, position)[0]
                continue
            if magic != wanted:
                raise CorruptionError(f"{name}: no frame magic but {magic:#010x}", position=position - 4)
            size, position = frame(view, position)
            bound += size
    except (struct.error, IndexError):
        raise CorruptionError(f"{name}: the data ends inside a frame", position=len(view)) from None
    if position != len(view):
        raise CorruptionError(f"{name}: the data ends inside a frame", position=len(view))
    return bound
