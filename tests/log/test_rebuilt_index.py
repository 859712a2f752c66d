"""Indexes rebuilt from the log in memory: a damaged batch leaves no entry, and hides nothing behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.errors import CorruptionError
from stratalog.fs import HandleCache, RealFileSystem
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.segment.segment import Segment

NOW = 1_760_000_000_000
BATCHES = 12


def value_of(i: int) -> bytes:
    return b"value %02d" % i + bytes(6000)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Twelve batches of one record each, every one indexed; the segment is sealed."""
    with stratalog.open(tmp_path) as store:
        topic = store.create_topic("t", config={"index.interval.bytes": 0})
        for i in range(BATCHES):
            topic.append(value_of(i), timestamp=NOW + i)
        topic.roll()
    return tmp_path / "t-0" / f"{0:020d}.log"


def segment_of(log: Path) -> Segment:
    fs = RealFileSystem()
    context = LogContext(fs, HandleCache(fs, 10), warn=lambda message: None)
    location = PartitionLocation(context, str(log.parent), "t", 0)
    return Segment(location, 0, size=log.stat().st_size, next_offset=BATCHES)


def harm(log: Path, batch: int, field: int) -> int:
    """Change a byte of a batch's header; returns where the batch is."""
    data = bytearray(log.read_bytes())
    position = batch * (len(data) // BATCHES)
    data[position + field] ^= 0x40
    log.write_bytes(data)
    return position


def entries(log: Path) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    offsets, times = segment_of(log).rebuild_indexes(0)
    return [offsets.entry(i) for i in range(len(offsets))], [times.entry(i) for i in range(len(times))]


def test_as_the_writer_had_them(log: Path) -> None:
    offsets, times = entries(log)
    assert [offset for offset, _ in offsets] == list(range(1, BATCHES))
    assert times[-1] == (NOW + BATCHES - 1, BATCHES - 1)


@pytest.mark.parametrize("field", [26, 36, 60], ids=["lastOffsetDelta", "maxTimestamp", "count"])
def test_a_damaged_batch_is_left_out(log: Path, field: int) -> None:
    """Its last offset would lead readers astray, its timestamp would hide every later one."""
    sound_offsets, sound_times = entries(log)
    position = harm(log, 5, field)
    offsets, times = entries(log)
    assert offsets == [entry for entry in sound_offsets if entry[1] != position]
    assert times == [entry for entry in sound_times if entry[1] != 5]


def test_a_length_that_leads_nowhere_ends_it(log: Path) -> None:
    harm(log, 5, 9)
    offsets, _ = entries(log)
    assert [offset for offset, _ in offsets] == [1, 2, 3, 4]


def test_what_lies_behind_is_read_by_the_rebuilt_index(log: Path) -> None:
    harm(log, 5, 26)
    log.with_suffix(".index").write_bytes(b"\x00" * 7)  # cannot be an index
    with stratalog.open(log.parents[1], read_only=True) as store:
        topic = store.topic("t")
        assert [record.offset for record in topic.read(0, 7)] == list(range(7, BATCHES))
        with pytest.raises(CorruptionError):
            list(topic.read(0, 4))
        with pytest.raises(CorruptionError):
            topic.at(5)
        assert topic.at(8) == Record(value_of(8), None, (), NOW + 8, 8, 0, 0, "t")
