"""Appending: the acknowledgement, the batch that is stored and its timestamp are those the caller is told."""

from __future__ import annotations

import random
import struct
import threading
from pathlib import Path

import cramjam
import pytest

import stratalog
from stratalog import Store, errors
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.format.batch.encode import replace_body
from stratalog.fs import MemoryFileSystem, RealFile, RealFileSystem
from stratalog.fs.contract import Mode
from tests.store.test_door import make_batch, values


class PausingFileSystem(RealFileSystem):
    """Every sync of a ``.log`` waits until ``go_on`` is set, and says that it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.began = threading.Event()
        self.go_on = threading.Event()

    def open(self, path: str, mode: Mode = "r") -> RealFile:
        file = super().open(path, mode)
        if not path.endswith(".log"):
            return file
        fs = self

        class Pausing(RealFile):
            __slots__ = ()

            def sync(self) -> None:
                if fs.paused:
                    fs.began.set()
                    assert fs.go_on.wait(10)
                super().sync()

        file.__class__ = Pausing
        return file


@pytest.mark.parametrize("config", [{}, {"flush.messages": 1}])
def test_a_retry_waits_for_the_sync_of_the_first_attempt(tmp_path: Path, config: dict[str, int]) -> None:
    fs = PausingFileSystem()
    batch = make_batch([b"a"], producer_id=7, epoch=0, sequence=0)
    acknowledged: list[bool] = []
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        topic = store.create_topic("t", config=config)
        fs.paused = True

        def attempt() -> None:
            acknowledged.append(topic.append_batches(0, batch, sync=not config).duplicate)

        first = threading.Thread(target=attempt)
        first.start()
        assert fs.began.wait(10)
        retry = threading.Thread(target=attempt)
        retry.start()
        retry.join(0.05)
        early = list(acknowledged)
        fs.go_on.set()
        first.join(10)
        retry.join(10)
        assert early == []
        assert sorted(acknowledged) == [False, True]


def opened() -> Store:
    return stratalog.open("/d", fs=MemoryFileSystem(), background=False)


@pytest.mark.parametrize("codec", ["zstd", "uncompressed", "lz4"])
def test_batches_that_all_start_at_zero_are_all_recompressed(codec: str) -> None:
    with opened() as store:
        topic = store.create_topic("t", config={"compression.type": codec, "key.index.enable": True})
        sent = make_batch([b"a", b"b"], codec=1) + make_batch([b"c"], codec=2) + make_batch([b"d"], codec=1)
        placed = topic.append_batches(0, sent)
        assert (placed.base_offset, placed.last_offset) == (0, 3)
        assert values(topic) == [b"a", b"b", b"c", b"d"]
        assert topic.log_end_offset() == 4


class TickingClock:
    """A clock that never gives the same time twice."""

    def __init__(self) -> None:
        self.ms = 1_760_000_000_000

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@pytest.mark.parametrize("codec", ["producer", "zstd"])
@pytest.mark.parametrize("kind", ["LogAppendTime", "CreateTime"])
def test_the_timestamp_told_is_the_one_stored(codec: str, kind: str) -> None:
    config = {"compression.type": codec, "message.timestamp.type": kind}
    with stratalog.open("/d", fs=MemoryFileSystem(), background=False, clock=TickingClock()) as store:
        topic = store.create_topic("t", config=config)
        told = [topic.append(b"v").timestamp, topic.append(b"v", timestamp=1_760_000_000_000).timestamp]
        if kind == "LogAppendTime":
            told.append(topic.append_batches(0, make_batch([b"x"])).timestamp)
        assert [record.timestamp for record in topic.read()] == told


def test_max_message_bytes_is_compared_with_what_is_stored() -> None:
    """As in Kafka: a batch is measured as it came, and again where the topic's codec changed it."""
    zeros, noise = bytes(5000), random.Random(4).randbytes(1800)
    fs = MemoryFileSystem()
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t", config={"max.message.bytes": 1000, "compression.type": "zstd"})
        topic.append(zeros, timestamp=1_760_000_000_000)
        topic.append_many([stratalog.Record(zeros), stratalog.Record(b"small"), stratalog.Record(zeros)])
        assert [len(record.value or b"") for record in topic.read()] == [5000, 5000, 5, 5000]
        with pytest.raises(errors.RecordTooLargeError, match="more than the 1000"):
            topic.append(noise)
        with pytest.raises(errors.RecordTooLargeError):
            topic.append_batches(0, make_batch([zeros]))  # too large as it came
        topic.append_many([stratalog.Record(noise[i : i + 1]) for i in range(900)])
        assert topic.log_end_offset() == 904
        stored = batches.scan(fs.read_file(topic.segments()[0].path))
        assert max(header.size for header in stored) <= 1000
    with opened() as store:
        topic = store.create_topic(
            "t", config={"max.message.bytes": 1000, "compression.type": "uncompressed"}
        )
        with pytest.raises(errors.RecordTooLargeError) as caught:
            topic.append_batches(0, make_batch([b"a"]) + make_batch([zeros], codec=4))  # as it is stored
        assert "batch 1" in str(caught.value)
        assert topic.log_end_offset() == 0


def lz4_frame(data: bytes, linked: bool = False) -> bytes:
    writer = cramjam.lz4.Compressor(level=1, block_linked=linked)
    writer.compress(data)
    return bytes(writer.finish())


def test_lz4_that_kafkas_clients_do_not_read_is_refused() -> None:
    """They read one frame of independent blocks; a consumer would stop at the batch for ever."""
    batch = make_batch([b"a" * 200_000, b"b"])
    body = bytes(batch[batches.HEADER_SIZE :])
    half = len(body) // 2
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    refused = {
        "linked blocks": lz4_frame(body, linked=True),
        "more than one frame": lz4_frame(body[:half]) + lz4_frame(body[half:]),
        "of more than one": lz4_frame(body) + skippable,
        "not begin with a frame": skippable + lz4_frame(body),
    }
    with opened() as store:
        topic = store.create_topic("t")
        for reason, packed in refused.items():
            with pytest.raises(errors.InvalidRecordError, match=reason):
                topic.append_batches(0, replace_body(batch, packed, codecs.LZ4))
        topic.append_batches(0, replace_body(batch, lz4_frame(body), codecs.LZ4))
        assert values(topic) == [b"a" * 200_000, b"b"]
