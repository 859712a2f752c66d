"""One record by its offset: the cheap way finds what the general reader finds, damage or not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from stratalog import Record, Store, errors
from stratalog.fs import FailingFileSystem, MemoryFileSystem, RealFileSystem
from stratalog.log.read import lookup
from stratalog.store.topic import Topic

NOW = 1_760_000_000_000


def opened(fs: Any, **config: Any) -> Store:
    return stratalog.open("/d", fs=fs, config=config)


def every_offset(topic: Topic, isolation: str = "read_uncommitted") -> dict[int, Record | None]:
    return {
        offset: topic.at(offset, isolation=isolation)
        for offset in range(topic.log_start_offset(0), topic.log_end_offset(0) + 1)
    }


def as_read(topic: Topic, isolation: str = "read_uncommitted") -> dict[int, Record | None]:
    found = {record.offset: record for record in topic.read(isolation=isolation)}
    return {
        offset: found.get(offset) for offset in range(topic.log_start_offset(0), topic.log_end_offset(0) + 1)
    }


steps = st.lists(
    st.tuples(st.sampled_from(["one", "many", "roll"]), st.integers(0, 3000), st.integers(1, 30)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps, st.sampled_from([0, 300, 4096]), st.sampled_from(["producer", "lz4"]), st.booleans())
def test_every_offset_as_the_general_reader_has_it(
    plan: list[tuple[str, int, int]], interval: int, codec: str, reopened: bool
) -> None:
    fs = MemoryFileSystem()
    store = opened(fs)
    topic = store.create_topic("t", config={"index.interval.bytes": interval, "compression.type": codec})
    for step, size, count in plan:
        if step == "roll":
            topic.roll()
        elif step == "one":
            topic.append(bytes(size), b"k", timestamp=NOW)
        else:
            topic.append_many([Record(bytes(size), b"%d" % i, (), NOW + i) for i in range(count)])
    if reopened:
        store.close()
        store = opened(fs)
        topic = store.topic("t")
    assert every_offset(topic) == as_read(topic)
    with stratalog.open("/d", fs=fs, read_only=True) as beside:
        assert every_offset(beside.topic("t")) == as_read(topic)
    store.close()


def test_outside_the_log_and_at_its_end() -> None:
    with opened(MemoryFileSystem()) as store:
        topic = store.create_topic("t", partitions=2)
        assert topic.at(0) is None
        topic.append_many([Record(b"%d" % i) for i in range(10)], partition=1)
        assert topic.at(4, 1) == next(topic.read(1, 4))
        assert topic.at(10, partition=1) is None
        for outside in (-1, 11):
            with pytest.raises(errors.OffsetOutOfRangeError):
                topic.at(outside, 1)
        topic.delete_records(1, 5)
        with pytest.raises(errors.OffsetOutOfRangeError):
            topic.at(4, 1)
        with pytest.raises(errors.UnknownPartitionError):
            topic.at(0, 7)
        with pytest.raises(errors.InvalidArgumentError):
            topic.at(5, 1, isolation="dirty")


def test_read_of_one_offset_is_the_same_and_lazy() -> None:
    with opened(MemoryFileSystem()) as store:
        topic = store.create_topic("t")
        topic.append_many([Record(b"%d" % i) for i in range(10)])
        assert [record.value for record in topic.read(0, 3, 4)] == [b"3"]
        assert list(topic.read(0, 10, 11)) == []
        with pytest.raises(errors.OffsetOutOfRangeError):
            topic.read(0, 11, 12)


def test_transactions_are_hidden_and_markers_are_no_records() -> None:
    from stratalog.format import batch as batches

    def batch(values: list[bytes], sequence: int) -> bytes:
        encoded, _ = batches.encode_records(
            [Record(value, None, (), NOW) for value in values],
            options=batches.BatchOptions(
                base_offset=0,
                leader_epoch=0,
                now_ms=NOW,
                max_bytes=1 << 20,
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            ),
        )
        return bytes(encoded.data)

    with opened(MemoryFileSystem()) as store:
        topic = store.create_topic("t")
        topic.append_batches(0, batch([b"gone", b"too"], 0))
        topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=False)
        topic.append(b"plain")
        topic.append_batches(0, batch([b"stays"], 2))
        topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=True)
        topic.append_batches(0, batch([b"open"], 3))
        for isolation in ("read_uncommitted", "read_committed"):
            assert every_offset(topic, isolation) == as_read(topic, isolation)
        assert topic.at(0) is not None
        assert topic.at(0, isolation="read_committed") is None
        assert topic.at(2) is None
        assert topic.at(topic.log_end_offset() - 1, isolation="read_committed") is None


def test_large_batches_are_found_by_their_headers(tmp_path: Path) -> None:
    """Two headers and one batch are read, not the batches before it."""
    fs = FailingFileSystem(RealFileSystem())
    with stratalog.open(tmp_path / "d", fs=fs) as store:
        topic = store.create_topic("t")
        for _ in range(20):
            topic.append_many([Record(bytes(100)) for _ in range(1000)])
        topic.at(15_500)
        fs.calls.clear()
        assert topic.at(12_345) is not None
        assert len([call for call in fs.calls if call.startswith("pread")]) <= 3


def sealed_store(root: Path, batch: int) -> tuple[Path, dict[int, Record | None]]:
    with stratalog.open(root) as store:
        topic = store.create_topic("t", config={"index.interval.bytes": 200})
        for start in range(0, 24, batch):
            topic.append_many([Record(b"v%04d" % (start + i), b"k", (), NOW) for i in range(batch)])
        topic.roll()
        topic.append(b"after")
        return root / "t-0" / f"{0:020d}.log", as_read(topic)


@pytest.mark.parametrize("batch", [1, 8])
def test_a_flipped_bit_never_gives_another_record(tmp_path: Path, batch: int) -> None:
    log, right = sealed_store(tmp_path / "d", batch)
    good = log.read_bytes()
    rng = random.Random(batch)
    named = 0
    for position in range(0, len(good), 3):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        log.write_bytes(bad)
        with stratalog.open(tmp_path / "d", read_only=True) as store:
            topic = store.topic("t")
            for offset in (rng.randrange(24), rng.randrange(24), 23):
                try:
                    assert topic.at(offset) == right[offset], (position, offset)
                except (errors.CorruptionError, errors.UnsupportedFormat):
                    named += 1
    assert named


def test_an_index_that_lies_is_found_out(tmp_path: Path) -> None:
    log, right = sealed_store(tmp_path / "d", 1)
    index = log.with_suffix(".index")
    good = index.read_bytes()
    assert len(good) >= 24
    for entry in range(0, len(good), 8):
        for byte in (3, 7):
            bad = bytearray(good)
            bad[entry + byte] ^= 1
            index.write_bytes(bad)
            with stratalog.open(tmp_path / "d", read_only=True) as store:
                assert every_offset(store.topic("t")) == right


def test_the_cheap_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or all of the above would only have tried the general reader."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the general reader was asked")

    monkeypatch.setattr(lookup, "iter_chunks", refuse)
    with opened(MemoryFileSystem()) as store:
        topic = store.create_topic("t")
        for size, count in ((10, 300), (1000, 40), (30_000, 5), (10, 3)):
            topic.append_many([Record(bytes(size)) for _ in range(count)])
            topic.append(bytes(size))
        topic.roll()
        topic.append(b"x")
        for offset in range(topic.log_end_offset()):
            assert topic.at(offset) is not None
