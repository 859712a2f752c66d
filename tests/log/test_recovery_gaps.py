"""Recovery keeps what lies behind a gap that a valid seal owns up to, and only that."""

from __future__ import annotations

import pytest

import stratalog
from stratalog import Record
from stratalog.config import TopicConfig
from stratalog.format import seal as seals
from stratalog.format import tail as tails
from stratalog.format.tail import Tail
from stratalog.fs import HandleCache, MemoryFileSystem
from stratalog.log.check.repair import repair_partition
from stratalog.log.context import LogContext, PartitionLocation

DIRECTORY = "/data/t-0"
FIRST, SECOND, ACTIVE, END = 0, 8, 16, 24


def path_of(base: int, kind: str = "log") -> str:
    return f"{DIRECTORY}/{base:020d}.{kind}"


@pytest.fixture
def fs() -> MemoryFileSystem:
    """Two sealed segments and an active one, each with four batches of two records."""
    fs = MemoryFileSystem()
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.create_topic("t", 1, {"index.interval.bytes": 0})
        for base in (FIRST, SECOND, ACTIVE):
            if base:
                topic.roll()
            for offset in range(base, base + 8, 2):
                topic.append_many([Record(b"%d" % (offset + i), None, (), 1000) for i in range(2)])
    return fs


def lose_tail(fs: MemoryFileSystem, base: int) -> None:
    """The last batch of a segment can no longer be read."""
    data = bytearray(fs.read_file(path_of(base)))
    data[-1] ^= 0xFF
    fs.write_file(path_of(base), data, sync=True)


def drop_damaged(fs: MemoryFileSystem) -> None:
    context = LogContext(fs, HandleCache(fs, 50), warn=lambda message: None)
    config = TopicConfig(index_interval_bytes=0)
    location = PartitionLocation(context, DIRECTORY, "t", 0)
    report = repair_partition(location, config, action="drop-damaged", dry_run=False)
    assert report.lost_records == 2


def crash(fs: MemoryFileSystem) -> None:
    """A kill when nothing was known to be synced: all of the log must be looked at again."""
    fs.remove("/data/.kafka_cleanshutdown")
    fs.remove("/data/recovery-point-offset-checkpoint")
    slots = tails.pack_slot(Tail(2, 0, 0, 0, 0, tails.READ_PAST_HIGH_WATERMARK))
    fs.write_file(f"{DIRECTORY}/stratalog.tail", slots, sync=True)


def reopened(fs: MemoryFileSystem) -> list[int]:
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.topic("t")
        found = [record.offset for record in topic.read()]
        assert topic.append(b"next").offset == END
    return found


def torn(fs: MemoryFileSystem) -> list[str]:
    return [name for name in fs.list_dir(DIRECTORY) if "torn" in name]


@pytest.mark.parametrize("base", [FIRST, SECOND])
def test_what_lies_behind_a_dropped_tail_stays(fs: MemoryFileSystem, base: int) -> None:
    lose_tail(fs, base)
    drop_damaged(fs)
    assert not seals.parse(fs.read_file(path_of(base, "seal"))).contiguous
    before = torn(fs)
    crash(fs)
    assert reopened(fs) == [offset for offset in range(END) if offset not in (base + 6, base + 7)]
    assert torn(fs) == before
    crash(fs)
    with stratalog.open("/data", fs=fs, background=False) as store:
        assert len(list(store.topic("t").read())) == END - 2 + 1


@pytest.mark.parametrize("harm", ["no seal", "broken seal", "seal of other bytes"])
def test_a_gap_that_no_valid_seal_speaks_of_is_damage(fs: MemoryFileSystem, harm: str) -> None:
    """Then nobody knows whether what follows belongs there: it is put aside, and not deleted."""
    lose_tail(fs, FIRST)
    drop_damaged(fs)
    path = path_of(FIRST, "seal")
    if harm == "no seal":
        fs.remove(path)
    elif harm == "broken seal":
        seal = bytearray(fs.read_file(path))
        seal[len(seal) // 2] ^= 1
        fs.write_file(path, seal, sync=True)
    else:
        with fs.open(path_of(FIRST), "w") as file:
            file.truncate(file.size() - 1)
    crash(fs)
    with stratalog.open("/data", fs=fs, background=False) as store:
        assert [record.offset for record in store.topic("t").read()] in (
            list(range(FIRST + 6)),
            list(range(FIRST + 4)),
        )
    assert [name for name in torn(fs) if name.startswith(f"{SECOND:020d}")]
