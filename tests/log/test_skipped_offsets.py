"""Offsets that recovery skips on purpose after a power cut are passed over by readers; they are no damage."""

from __future__ import annotations

import pytest

import stratalog
from stratalog.format import tail as tails
from stratalog.fs import MemoryFileSystem
from stratalog.log.segment.segment import owner_of
from stratalog.log.write.sync import read_tail


@pytest.mark.parametrize("rolled", [True, False])
def test_a_gap_that_is_meant_is_read_over(rolled: bool) -> None:
    fs = MemoryFileSystem()
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t")
        for at in range(10):
            topic.append(b"%d" % at)
        if rolled:
            topic.roll()
    tail = read_tail(fs, "/d/t-0", owner_of(fs, "/d/t-0", 0))
    assert tail is not None
    # Five more were published, never synced, and lost.
    seen = tail._replace(generation=tail.generation + 2, high_watermark=15)
    fs.write_file("/d/t-0/stratalog.tail", tails.pack_slot(seen), sync=True)
    fs.remove("/d/.kafka_cleanshutdown")
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.topic("t")
        assert topic.append(b"next").offset == 15
        wanted = [*range(10), 15]
        assert [record.offset for record in topic.read()] == wanted
        assert topic.scan().read_all().num_rows == len(wanted)
        assert topic.at(12) is None
        with stratalog.open("/d", fs=fs, read_only=True) as beside:
            assert [record.offset for record in beside.topic("t").read()] == wanted
