"""The codecs: others read what we write, we read what others write, and bombs do not go off."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptionError, FormatError, UnsupportedCodecError, UnsupportedFormat
from stratalog.format import codecs

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1"
COMPRESSING = (codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD)
TEXT = b"".join(b'{"user": %d, "page": "/home/%d"}' % (i, i * 7919 % 1000) for i in range(20_000))
SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "text": TEXT,
    "noise": os.urandom(200_000),
    "zeros": bytes(3_000_000),
    "exactly one lz4 block": TEXT[: codecs.LZ4_BLOCK_BYTES],
    "one byte more": TEXT[: codecs.LZ4_BLOCK_BYTES + 1],
}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip(codec: int, name: str) -> None:
    data = SAMPLES[name]
    packed = codecs.compress(codec, data)
    if packed:
        assert codecs.decompress(codec, packed, max_bytes=len(data)) == data
        assert codecs.decompress(codec, memoryview(packed)) == data
        assert codecs.decompress(codec, bytearray(packed)) == data
    assert codecs.compress(codec, memoryview(data)) == packed


@pytest.mark.parametrize(
    ("codec", "level"),
    [(c, n) for c, (low, high, default) in codecs.LEVELS.items() for n in (low, 1, 5, high, default)],
)
def test_every_level_can_be_read(codec: int, level: int) -> None:
    text = TEXT[:70_000]
    for kind in (bytes, bytearray, memoryview):
        assert codecs.decompress(codec, codecs.compress(codec, kind(text), level)) == text


def test_a_higher_lz4_level_compresses_more() -> None:
    assert len(codecs.compress(codecs.LZ4, TEXT, 12)) < len(codecs.compress(codecs.LZ4, TEXT, 9))


def test_names_and_ids() -> None:
    assert [codecs.NAMES[name] for name in codecs.CODEC_NAMES] == [0, 1, 2, 3, 4]
    assert codecs.NAMES["uncompressed"] == 0
    with pytest.raises(UnsupportedCodecError):
        codecs.compress(5, b"")
    with pytest.raises(UnsupportedCodecError, match="level 10"):
        codecs.compress(codecs.GZIP, b"", 10)
    with pytest.raises(UnsupportedFormat):
        codecs.decompress(5, b"x")


@given(st.binary(max_size=5000), st.sampled_from(COMPRESSING))
def test_any_bytes_round_trip(data: bytes, codec: int) -> None:
    assert codecs.decompress(codec, codecs.compress(codec, data), max_bytes=len(data)) == data


# -- what other clients write


def payloads(codec: int) -> Iterator[tuple[int, bytes]]:
    """(record count, compressed records) of every batch of one codec in the golden logs."""
    for path in sorted(GOLDEN.rglob("*.log")):
        data = path.read_bytes()
        position = 0
        while position < len(data):
            (length,) = struct.unpack_from(">i", data, position + 8)
            attributes, count = struct.unpack_from(">h34xi", data, position + 21)
            if attributes & 7 == codec:
                yield count, data[position + 61 : position + 12 + length]
            position += 12 + length


def count_records(data: bytes) -> int:
    """Records in a decompressed batch, by their length varints; fails unless they fill it exactly."""
    position = count = 0
    while position < len(data):
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        position += value >> 1
        count += 1
    assert position == len(data)
    return count


@pytest.mark.parametrize("codec", COMPRESSING)
def test_batches_of_a_real_broker(codec: int) -> None:
    batches = list(payloads(codec))
    assert batches
    for count, payload in batches:
        assert count_records(codecs.decompress(codec, payload)) == count


def xerial(*blocks: bytes) -> bytes:
    """A stream of the Java snappy library, framed by hand."""
    stream = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    for block in blocks:
        raw = bytes(cramjam.snappy.compress_raw(block))
        stream += struct.pack(">i", len(raw)) + raw
    return stream


def test_snappy_is_read_with_and_without_framing() -> None:
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert codecs.decompress(codecs.SNAPPY, raw) == TEXT
    blocks = [TEXT[i : i + 32768] for i in range(0, len(TEXT), 32768)]
    assert codecs.decompress(codecs.SNAPPY, xerial(*blocks)) == TEXT
    assert codecs.decompress(codecs.SNAPPY, xerial(b"ab") + xerial(b"cd", b"e")) == b"abcde"
    assert codecs.decompress(codecs.SNAPPY, xerial()) == b""
    assert codecs.compress(codecs.SNAPPY, TEXT) == xerial(*blocks)


def test_snappy_framing_of_another_version_is_not_damage() -> None:
    stream = bytearray(xerial(b"ab"))
    stream[15] = 2
    with pytest.raises(UnsupportedFormat):
        codecs.decompress(codecs.SNAPPY, stream)


def lz4_blocks(frame: bytes) -> list[int]:
    """The stored sizes of the blocks of one frame without checksums."""
    sizes, position = [], 7
    while size := struct.unpack_from("<I", frame, position)[0]:
        sizes.append(size)
        position += 4 + (size & 0x7FFFFFFF)
    assert position + 4 == len(frame)
    return sizes


def test_lz4_frames_are_what_the_java_client_takes() -> None:
    frame = codecs.compress(codecs.LZ4, TEXT)
    magic, flags, block_descriptor = struct.unpack_from("<IBB", frame)
    assert magic == 0x184D2204
    assert flags >> 6 == 1, "version"
    assert flags & 0x20, "independent blocks"
    assert flags & 0x0D == 0, "no content size, content checksum or dictionary"
    assert block_descriptor == 0x40
    assert len(lz4_blocks(frame)) == -(-len(TEXT) // 65536)
    # Each block decodes without the ones before it.
    position = 7
    plain = b""
    for size in lz4_blocks(frame):
        block = bytearray(65536)
        made = cramjam.lz4.decompress_block_into(frame[position + 4 : position + 4 + size], block)
        plain += block[:made]
        position += 4 + size
    assert plain == TEXT
    assert codecs.compress(codecs.LZ4, TEXT, 12)[4] & 0x20, "independent blocks at every level"


def test_lz4_stores_what_does_not_compress() -> None:
    noise = os.urandom(70_000)
    frame = codecs.compress(codecs.LZ4, noise)
    assert all(size & 0x80000000 for size in lz4_blocks(frame))
    assert len(frame) == len(noise) + 7 + 2 * 4 + 4


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_lz4_frames_of_other_writers(linked: bool, checksum: bool) -> None:
    writer = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=linked)
    writer.compress(TEXT)
    frame = bytes(writer.finish())
    assert codecs.decompress(codecs.LZ4, frame) == TEXT
    if checksum:
        with pytest.raises(CorruptionError):
            codecs.decompress(codecs.LZ4, frame[:-1] + bytes([frame[-1] ^ 1]))


def test_members_and_frames_back_to_back() -> None:
    parts = [TEXT[:100], b"", TEXT[100:70_000], b"x"]
    joined = b"".join(parts)
    assert codecs.decompress(codecs.GZIP, b"".join(map(gzip.compress, parts))) == joined
    for codec in (codecs.GZIP, codecs.LZ4, codecs.ZSTD):
        packed = b"".join(codecs.compress(codec, part) for part in parts)
        assert codecs.decompress(codec, packed, max_bytes=len(joined)) == joined
        with pytest.raises(CorruptionError):
            codecs.decompress(codec, packed, max_bytes=len(joined) - 1)


def test_zstd_without_a_content_size_and_with_skippable_frames() -> None:
    stream = cramjam.zstd.Compressor()
    stream.compress(TEXT)
    packed = bytes(stream.finish())
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"hello"
    assert codecs.decompress(codecs.ZSTD, packed) == TEXT
    assert codecs.decompress(codecs.ZSTD, skippable + packed + skippable) == TEXT


def test_many_tiny_gzip_members_do_not_cost_a_square() -> None:
    member = gzip.compress(b"")
    assert codecs.decompress(codecs.GZIP, member * 20_000) == b""


# -- bombs and damage


def bombs() -> Iterator[tuple[str, int, bytes]]:
    zeros = bytes(8 << 20)
    yield "gzip", codecs.GZIP, codecs.compress(codecs.GZIP, zeros) * 40
    yield "lz4", codecs.LZ4, codecs.compress(codecs.LZ4, zeros) * 40
    yield "zstd", codecs.ZSTD, codecs.compress(codecs.ZSTD, zeros) * 40
    rle = struct.pack("<I", 0xFD2FB528) + b"\x00\x58" + b"\x02\x00\x10\x00" * 4000 + b"\x03\x00\x10\x00"
    yield "zstd of run-length blocks", codecs.ZSTD, rle
    yield (
        "zstd that declares a huge size",
        codecs.ZSTD,
        b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + b"\x01\x00\x00",
    )
    yield "snappy that declares a huge size", codecs.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(50)
    block = b"\xff\xff\xff\x7f" + bytes(20)
    yield "xerial block that declares a huge size", codecs.SNAPPY, xerial() + struct.pack(">i", 24) + block
    yield "lz4 that declares a huge size", codecs.LZ4, b"\x04\x22\x4d\x18\x68\x40" + b"\xff" * 8 + b"\x00" * 5


@pytest.mark.parametrize(("codec", "bomb"), [pytest.param(c, b, id=name) for name, c, b in bombs()])
def test_bombs_are_refused_in_bounded_memory(codec: int, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            codecs.decompress(codec, bomb, max_bytes=4 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_the_ratio_bound_bites_past_the_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "RATIO_SLACK_BYTES", 1 << 20)
    packed = codecs.compress(codecs.ZSTD, bytes(8 << 20))
    assert codecs.decompress(codecs.ZSTD, packed, max_ratio=100_000) == bytes(8 << 20)
    with pytest.raises(CorruptionError, match="allowed"):
        codecs.decompress(codecs.ZSTD, packed)
    small = codecs.compress(codecs.ZSTD, bytes(1 << 20))
    assert len(codecs.decompress(codecs.ZSTD, small, max_ratio=1)) == 1 << 20


def test_uncompressed_data_is_bounded_too() -> None:
    assert codecs.decompress(codecs.NONE, b"abc", max_bytes=3) == b"abc"
    with pytest.raises(CorruptionError):
        codecs.decompress(codecs.NONE, b"abcd", max_bytes=3)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_cut_data_is_corruption_at_every_byte(codec: int) -> None:
    packed = codecs.compress(codec, TEXT[:300])
    for end in range(len(packed)):
        if codec == codecs.SNAPPY and end == len(codecs.XERIAL_HEADER):
            continue  # a stream without blocks
        with pytest.raises(CorruptionError):
            codecs.decompress(codec, packed[:end])


@pytest.mark.parametrize("codec", COMPRESSING)
def test_trailing_garbage_is_corruption(codec: int) -> None:
    for garbage in (b"\0", b"garbage!", b"\xff" * 40):
        with pytest.raises(CorruptionError):
            codecs.decompress(codec, codecs.compress(codec, TEXT[:300]) + garbage)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_flipped_bits_raise_nothing_unexpected(codec: int) -> None:
    packed = codecs.compress(codec, TEXT[:400])
    for bit in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            result = codecs.decompress(codec, damaged, max_bytes=1 << 20)
        except FormatError:
            continue
        assert len(result) <= 1 << 20


@given(st.sampled_from(COMPRESSING), st.binary(max_size=300), st.integers(0, 9))
def test_hostile_bytes(codec: int, data: bytes, keep: int) -> None:
    prefix = codecs.compress(codec, b"x" * 100)[:keep]
    with suppress(FormatError):
        assert len(codecs.decompress(codec, prefix + data, max_bytes=1 << 20)) <= 1 << 20


def test_gzip_checksum_is_verified() -> None:
    packed = bytearray(codecs.compress(codecs.GZIP, TEXT))
    packed[-5] ^= 1
    with pytest.raises(CorruptionError):
        codecs.decompress(codecs.GZIP, packed)
    assert zlib.decompress(codecs.compress(codecs.GZIP, TEXT), 31) == TEXT
