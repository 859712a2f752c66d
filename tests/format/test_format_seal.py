"""The seal: round trips, every flipped bit, and a builder that agrees with a plain computation."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptionError, FormatError, InvalidArgumentError, UnsupportedFormat
from stratalog.format import seal
from stratalog.format.identity import PartitionId
from stratalog.format.seal import Seal, SealBlock, SealBuilder
from stratalog.kernel import crc32c, crc32c_combine

BATCH_SIZES = (70, 1000, 5000, 70_000, 200_000)


class Batches:
    """Random batches that lie one behind the other, and what is true of them."""

    def __init__(self, rng: random.Random, count: int, *, gaps: bool = False) -> None:
        self.rows: list[tuple[int, bytes, int, int, int, int, int]] = []
        position, offset = 0, 500
        for _ in range(count):
            data = rng.randbytes(rng.choice(BATCH_SIZES))
            records = rng.randint(0, 50)
            first = offset + (rng.randint(0, 3) if gaps else 0)
            last = first + max(records - 1, 0)
            oldest = rng.randint(0, 10_000)
            self.rows.append((position, data, first, last, records, oldest, oldest + rng.randint(0, 100)))
            position, offset = position + len(data), last + 1
        self.data = b"".join(row[1] for row in self.rows)

    def feed(self, builder: SealBuilder, start: int = 0, *, as_bytes: bool | None = None) -> None:
        for i, (position, data, *facts) in enumerate(self.rows[start:]):
            given_bytes = i % 3 == 0 if as_bytes is None else as_bytes
            builder.add(position, len(data), data if given_bytes else crc32c(data), *facts)

    def check(self, result: Seal) -> None:
        assert result.size_bytes == len(self.data)
        assert result.crc == crc32c(self.data)
        assert result.batches == len(self.rows)
        assert result.records == sum(row[4] for row in self.rows)
        assert result.first_offset == self.rows[0][2]
        assert result.last_offset == self.rows[-1][3]
        assert result.min_timestamp == min(row[5] for row in self.rows)
        assert result.max_timestamp == max(row[6] for row in self.rows)
        assert result.contiguous == all(
            a[3] + 1 == b[2] for a, b in zip(self.rows, self.rows[1:], strict=False)
        )
        for i, block in enumerate(result.blocks):
            end = block.position + result.block_size(i)
            inside = [row for row in self.rows if block.position <= row[0] < end]
            assert block.crc == crc32c(self.data[block.position : end])
            assert block[2:] == (
                inside[0][2],
                inside[-1][3],
                sum(row[4] for row in inside),
                min(row[5] for row in inside),
                max(row[6] for row in inside),
                len(inside),
            )
            if i + 1 < len(result.blocks):
                assert end - block.position >= seal.BLOCK_BYTES
                assert end - block.position - len(inside[-1][1]) < seal.BLOCK_BYTES, "no longer than needed"


@pytest.mark.parametrize("seed", range(20))
def test_builder_agrees_with_the_bytes(seed: int) -> None:
    rng = random.Random(seed)
    batches = Batches(rng, rng.randint(1, 60), gaps=seed % 4 == 3)
    results = []
    for as_bytes in (True, False, None):
        builder = SealBuilder()
        batches.feed(builder, as_bytes=as_bytes)
        assert builder.size_bytes == len(batches.data)
        results.append(builder.build())
    assert results[0] == results[1] == results[2]
    batches.check(results[0])
    assert seal.parse(seal.pack(results[0])) == results[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_resumed_builder_ends_where_one_run_would(seed: int) -> None:
    rng = random.Random(seed)
    batches = Batches(rng, rng.randint(1, 40), gaps=seed % 5 == 4)
    whole = SealBuilder()
    batches.feed(whole)
    cut = rng.randint(0, len(batches.rows))
    builder = SealBuilder()
    for position, data, *facts in batches.rows[:cut]:
        builder.add(position, len(data), data, *facts)
    # Through the file, twice: what is resumed must be resumable.
    again = SealBuilder.resume(seal.parse(seal.pack(builder.build())))
    again = SealBuilder.resume(again.build())
    assert again.size_bytes == builder.size_bytes
    batches.feed(again, cut)
    assert again.build() == whole.build()
    assert again.build(cleaned=True).cleaned


def test_base_offset_counts_as_where_the_first_batch_must_be() -> None:
    for base, contiguous in ((500, True), (499, False), (None, True)):
        builder = SealBuilder(base)
        builder.add(0, 100, 1, 500, 509, 10, 5, 6)
        assert builder.build().contiguous is contiguous


def test_batches_that_do_not_join_are_refused() -> None:
    builder = SealBuilder()
    builder.add(0, 100, 1, 0, 0, 1, 5, 5)
    with pytest.raises(InvalidArgumentError):
        builder.add(101, 100, 1, 1, 1, 1, 5, 5)


def test_an_empty_segment_has_a_seal_too() -> None:
    empty = SealBuilder(7).build()
    assert (empty.size_bytes, empty.crc, empty.first_offset, empty.max_timestamp) == (0, 0, -1, -1)
    assert empty.blocks == ()
    assert seal.parse(seal.pack(empty)) == empty
    assert SealBuilder.resume(empty).build() == empty


def test_the_size_of_a_block() -> None:
    blocks = tuple(SealBlock(i * 70_000, 0, i * 100, i * 100 + 50, 51, 0, 0, 1) for i in range(5))
    value = Seal(350_000, 0, 255, 5, False, True, 0, 450, 0, 0, blocks)
    assert value.block_size(4) == 70_000


def sample() -> bytes:
    builder = SealBuilder()
    Batches(random.Random(1), 8).feed(builder)
    return seal.pack(builder.build())


def test_every_flipped_bit_is_found() -> None:
    data = sample()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            seal.parse(damaged)


def test_every_cut_is_found() -> None:
    data = sample()
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            seal.parse(data[:size])
    with pytest.raises(CorruptionError):
        seal.parse(data + b"\0")


def with_crc(body: bytes) -> bytes:
    return body + struct.pack(">I", crc32c(body))


def test_a_newer_version_is_not_damage() -> None:
    body = bytearray(sample()[:-4])
    body[9] = 3
    with pytest.raises(UnsupportedFormat):
        seal.parse(with_crc(bytes(body)))


def test_a_sound_crc_over_nonsense_is_still_damage() -> None:
    body = sample()[:-4]
    for changed in (
        body.replace(b"STRASEAL", b"STRALEAS"),
        body[: -seal.BLOCK_SIZE],
        body[: seal.HEADER_SIZE] + body[seal.HEADER_SIZE :][::-1],
        body[:16] + bytes(8) + body[24:],
        body[:24] + bytes(8) + body[32:],
    ):
        with pytest.raises(CorruptionError):
            seal.parse(with_crc(changed))


@given(st.binary(max_size=500))
def test_hostile_bytes(data: bytes) -> None:
    for attempt in (data, with_crc(data), with_crc(sample()[:76] + data)):
        with pytest.raises(FormatError):
            seal.parse(attempt)


def test_small_batches_cost_one_joined_checksum_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """``add`` runs for every append: joining checksums waits until a block is full."""
    calls = []

    def counted(function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            calls.append(function)
            return function(*arguments)

        return call

    monkeypatch.setattr(seal, "crc32c", counted(crc32c))
    monkeypatch.setattr(seal, "crc32c_combine", counted(crc32c_combine))
    builder = SealBuilder(0)
    data = bytes(130)
    for i in range(20_000):
        builder.add(i * 130, 130, data, i, i, 1, i, i)
    built = builder.build()
    assert built.crc == crc32c(bytes(130 * 20_000))
    assert len(calls) == len(built.blocks)


def first_version(data: bytes) -> bytes:
    """The same seal as version 1 wrote it: without the last three fields of the header."""
    body = data[:-4]
    header = bytearray(body[: seal.FIRST_HEADER_SIZE])
    header[9] = 1
    return with_crc(bytes(header) + body[seal.HEADER_SIZE :])


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_seal_of_the_first_version_keeps_its_word(cleaned: bool) -> None:
    builder = SealBuilder(500)
    Batches(random.Random(1), 8).feed(builder)
    value = builder.build(cleaned=cleaned, owner=PartitionId(b"t" * 16, 3), base_offset=500)
    old = seal.parse(first_version(seal.pack(value)))
    assert old == replace(value, owner=PartitionId(), base_offset=-1)
    assert old.contiguous
    assert old.cleaned is cleaned
    assert not old.stranger(PartitionId(b"t" * 16, 3), 500)
    assert "offset 500" in old.stranger(PartitionId(b"t" * 16, 3), 400), "a contiguous one begins at its base"


def test_a_seal_names_its_segment() -> None:
    mine = PartitionId(b"t" * 16, 3)
    value = SealBuilder(500).build(owner=mine, base_offset=500)
    assert seal.parse(seal.pack(value)) == value
    assert not value.stranger(mine, 500)
    assert not value.stranger(PartitionId(bytes(16), 3), 500), "a topic without an id"
    for owner, base in ((PartitionId(b"u" * 16, 3), 500), (PartitionId(b"t" * 16, 4), 500), (mine, 501)):
        assert value.stranger(owner, base)
