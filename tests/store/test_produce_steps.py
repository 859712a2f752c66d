"""Ready-made batches: two steps, no copy, errors that name the record, epochs by KIP-890, bounded memory."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store, errors
from stratalog.format import batch as batches
from stratalog.format import codecs
from stratalog.fs import Buffer, FailingFileSystem, Fault, MemoryFileSystem, Mode, RealFile, RealFileSystem
from tests.store.test_door import NOW, make_batch, values
from tests.store.test_produce_defects import PausingFileSystem


@pytest.fixture
def store() -> Iterator[Store]:
    with stratalog.open("/d", fs=MemoryFileSystem(), background=False) as opened:
        yield opened


def test_an_append_returns_before_its_sync_when_nobody_waits(tmp_path: Path) -> None:
    fs = PausingFileSystem()
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        topic = store.create_topic("t", config={"flush.messages": 1})
        fs.paused = True
        placed = topic.append_batches(0, make_batch([b"a", b"b"]), wait=False)
        assert (placed.base_offset, placed.last_offset, placed.log_start_offset) == (0, 1, 0)
        assert placed.flush_due
        assert (placed.high_watermark, placed.last_stable_offset) == (0, 0)
        waiting = threading.Thread(target=topic.flush)
        waiting.start()
        assert fs.began.wait(10)
        assert topic.append_batches(0, make_batch([b"c"]), wait=False).base_offset == 2
        fs.go_on.set()
        waiting.join(10)
        topic.flush()
        assert topic.high_watermark() == 3


def test_the_answer_has_the_last_stable_state(store: Store) -> None:
    topic = store.create_topic("t")
    topic.append_batches(0, make_batch([b"a"] * 3))
    topic.delete_records(0, 1)
    open_txn = make_batch([b"x"], producer_id=7, epoch=0, sequence=0, transactional=True)
    placed = topic.append_batches(0, open_txn)
    assert placed[5:] == (1, 4, 3, False)
    ended = topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=True)
    assert (ended.high_watermark, ended.last_stable_offset) == (5, 5)


def test_a_writable_buffer_is_patched_and_not_copied(store: Store) -> None:
    topic = store.create_topic("t")
    topic.append(b"before")
    frame = bytearray(b"header" + make_batch([b"a", b"b"]) + b"trailer")
    view = memoryview(frame)[6:-7]
    topic.append_batches(0, view)
    assert batches.scan(view).first_base_offset == 1
    view.release()
    frame += b"may grow again"  # nothing holds on to the buffer
    sent = make_batch([b"c"])
    topic.append_batches(0, sent)
    assert batches.scan(sent).first_base_offset == 0, "bytes never change"
    topic.append_batches(0, memoryview(sent))
    assert values(topic) == [b"before", b"a", b"b", b"c", b"c"]


def test_errors_name_the_batch_and_the_record(store: Store) -> None:
    compacted = store.create_topic("c", config={"cleanup.policy": "compact"})
    good = make_batch([b"a"])
    for codec in (0, 3, 4):
        records = [Record(b"v", b"k", timestamp=NOW), Record(b"v", None, timestamp=NOW)]
        keyless, _ = batches.encode_records(
            records,
            options=batches.BatchOptions(
                base_offset=0, leader_epoch=0, now_ms=NOW, codec=codec, max_bytes=9999
            ),
        )
        with pytest.raises(errors.InvalidRecordError, match="batch 1, record 1.*key") as caught:
            compacted.append_batches(0, good + bytes(keyless.data))
        assert (caught.value.batch_index, caught.value.record_index) == (1, 1)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.batch_index, again.record_index, str(again)) == (1, 1, str(caught.value))
    topic = store.create_topic("t", config={"message.timestamp.after.max.ms": 1000})
    late, _ = batches.encode_records(
        [Record(b"v", timestamp=NOW), Record(b"v", timestamp=NOW), Record(b"v", timestamp=NOW + 10**9)],
        options=batches.BatchOptions(base_offset=0, leader_epoch=0, now_ms=NOW, max_bytes=9999),
    )
    with pytest.raises(errors.InvalidRecordError, match="too far") as caught:
        topic.append_batches(0, bytes(late.data))
    assert (caught.value.batch_index, caught.value.record_index) == (0, 2)
    with pytest.raises(errors.OutOfOrderSequenceError) as gap:
        topic.append_batches(
            0,
            make_batch([b"a"], producer_id=1, epoch=0, sequence=0)
            + make_batch([b"b"], producer_id=1, epoch=0, sequence=2),
        )
    assert gap.value.batch_index == 1
    with pytest.raises(errors.CorruptionError) as torn:
        topic.append_batches(0, good + good[:-1])
    assert torn.value.batch_index == 1
    assert topic.log_end_offset() == compacted.log_end_offset() == 0


def test_coordinators_need_no_sequence_and_clients_do(store: Store) -> None:
    topic = store.create_topic("t")
    batch = make_batch([b"a"], producer_id=3, epoch=0, sequence=-1, transactional=True)
    with pytest.raises(errors.InvalidRecordError, match="sequence"):
        topic.append_batches(0, batch)
    topic.append_batches(0, batch, origin="coordinator")
    assert not topic.append_batches(0, batch, origin="coordinator").duplicate
    assert values(topic) == [b"a", b"a"]


def test_a_marker_of_version_two_brings_the_next_epoch(store: Store) -> None:
    """KIP-890: it ends a transaction only with a newer epoch; sent again, with nothing open, it is taken."""
    topic = store.create_topic("t")
    batch = make_batch([b"a"], producer_id=3, epoch=0, sequence=0, transactional=True)
    topic.append_batches(0, batch)
    with pytest.raises(errors.InvalidProducerEpochError):
        topic.end_transaction(0, producer_id=3, producer_epoch=0, commit=True, transaction_version=2)
    topic.end_transaction(0, producer_id=3, producer_epoch=1, commit=True, transaction_version=2)
    topic.end_transaction(0, producer_id=3, producer_epoch=1, commit=True, transaction_version=2)
    with pytest.raises(errors.InvalidProducerEpochError):
        topic.append_batches(0, make_batch([b"b"], producer_id=3, epoch=0, sequence=1))
    topic.append_batches(0, make_batch([b"b"], producer_id=3, epoch=1, sequence=0))
    assert values(topic, isolation="read_committed") == [b"a", b"b"]


class CountingFileSystem(RealFileSystem):
    """Notes the size of every write to a ``.log``."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    def open(self, path: str, mode: Mode = "r") -> RealFile:
        file = super().open(path, mode)
        written = self.written

        class Counting(RealFile):
            __slots__ = ()

            def pwrite(self, data: Buffer, offset: int) -> None:
                written.append(len(data))
                super().pwrite(data, offset)

        if path.endswith(".log"):
            file.__class__ = Counting
        return file


def test_many_batches_are_one_write_and_a_roll_splits_them(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        whole = b"".join(make_batch([b"%d" % i]) for i in range(20))
        topic = store.create_topic("t")
        small = store.create_topic("s", config={"segment.records": 8})
        for each in (topic, small):  # an empty segment takes one batch, by which the roll policy goes
            each.append(b"first")
        fs.written.clear()
        topic.append_batches(0, whole)
        assert fs.written == [len(whole)]
        small.append_batches(0, whole)
        assert len(fs.written) == 1 + 1 + 2 + 2
        assert [segment.base_offset for segment in small.segments()] == [0, 8, 16]
        assert values(topic) == values(small) == [b"first", *(b"%d" % i for i in range(20))]
        assert [record.offset for record in small.read()] == list(range(21))


def test_a_failed_write_leaves_nothing_and_the_next_goes_on() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t")
        batch = make_batch([b"a"], producer_id=3, epoch=0, sequence=0)
        fs.inject(Fault("pwrite", "*.log", times=1, partial_bytes=10))
        with pytest.raises(errors.StorageError):
            topic.append_batches(0, batch)
        assert not topic.append_batches(0, batch).duplicate
        assert topic.append_batches(0, batch).duplicate
        assert values(topic) == [b"a"]


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_bomb_is_refused(codec: int) -> None:
    zeros = [Record(bytes(3 << 20), timestamp=NOW)]
    packed, _ = batches.encode_records(
        zeros,
        options=batches.BatchOptions(
            base_offset=0, leader_epoch=0, now_ms=NOW, codec=codec, max_bytes=1 << 24
        ),
    )
    with pytest.raises(errors.CorruptionError, match="decompresses to"):
        batches.validate(bytearray(packed.data), max_bytes=1 << 20, max_decompressed_bytes=1 << 20)


@pytest.mark.parametrize("codec", range(5))
def test_scratch_memory_is_used_again(codec: int) -> None:
    """Large, then small, then large: what is left of one batch never shows in another."""
    scratch = codecs.Scratch()
    for plain in (b"abc" * 40_000, b"x", bytes(5 << 20), b"de" * 9_000):
        assert bytes(scratch.decompress(codec, codecs.compress(codec, plain))) == plain
    if codec in (codecs.LZ4, codecs.ZSTD):
        for bad in (b"", b"garbage", codecs.compress(codec, b"abc" * 99)[:-5]):
            with pytest.raises(errors.CorruptionError):
                scratch.decompress(codec, bad)
