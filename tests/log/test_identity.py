"""Sidecars name the partition they belong to: a stranger's seal or tail is left aside and reported."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.format import seal as seals
from stratalog.format import tail as tails
from stratalog.format.identity import PartitionId
from stratalog.format.metadata import parse_partition_metadata
from stratalog.fs import MemoryFileSystem
from stratalog.kernel import crc32c
from stratalog.store.copies import clone, export_topic, import_topic, restore
from stratalog.store.lifecycle.reports import verify

SETTINGS = {"key.index.enable": True}


def segment_path(directory: str, base: int, kind: str) -> str:
    return f"{directory}/{base:020d}.{kind}"


def rewrite(fs: MemoryFileSystem, path: str, data: bytes) -> None:
    fs.write_file(path, data, sync=False)


def two_equal_segments(fs: MemoryFileSystem, topic: str = "t", partitions: int = 1) -> None:
    """Segments of equal size at 0 and 10 whose timestamps do not overlap, and an active one."""
    with stratalog.open("/data", fs=fs, background=False) as store:
        made = store.create_topic(topic, partitions, SETTINGS)
        for partition in range(partitions):
            for base in (0, 10, 20):
                made.append_many(
                    [
                        Record(b"value", b"%02d" % (base + i), (), 1000 * (base + 1) + i + partition)
                        for i in range(10)
                    ],
                    partition=partition,
                )
                if base < 20:
                    made.roll()


def offsets_since(fs: MemoryFileSystem, topic: str, since: int, partition: int = 0) -> list[int]:
    with stratalog.open("/data", read_only=True, fs=fs) as store:
        table = store.topic(topic).scan([partition], since=since).read_all()
        return table.column("offset").to_pylist()


@pytest.mark.parametrize("strange", ["segment", "partition", "topic"])
def test_the_seal_of_another_segment_is_left_aside(strange: str) -> None:
    fs = MemoryFileSystem()
    two_equal_segments(fs, partitions=2)
    two_equal_segments(fs, "u")
    source = {
        "segment": segment_path("/data/t-0", 0, "seal"),
        "partition": segment_path("/data/t-1", 10, "seal"),
        "topic": segment_path("/data/u-0", 10, "seal"),
    }[strange]
    mine = segment_path("/data/t-0", 10, "seal")
    good = fs.read_file(mine)
    rewrite(fs, mine, fs.read_file(source))
    assert offsets_since(fs, "t", 11_000) == list(range(10, 30)), "its times prune nothing here"
    with stratalog.open("/data", read_only=True, fs=fs) as store:
        assert [record.offset for record in store.topic("t").read(0)] == list(range(30))
        [damage] = verify(store).damages
    assert damage.path == mine
    assert damage.derived
    assert "it is the seal of" in damage.reason
    with stratalog.open("/data", fs=fs, background=False) as store:
        store.repair("t", 0, action="rebuild-indexes")
        assert verify(store).ok
    assert fs.read_file(mine) == good


def test_the_tail_of_another_partition_cuts_nothing() -> None:
    """The other log is synced to a byte of its segment that lies inside a batch here."""
    fs = MemoryFileSystem()
    store = stratalog.open("/data", fs=fs, background=False)
    topic = store.create_topic("t", 2)
    for _ in range(9):
        topic.append(b"short", partition=1, sync=True)
    for i in range(200):
        topic.append(b"%d" % i * 50, partition=0, sync=True)
    after = fs.survivor("kill", random.Random(1))
    rewrite(after, "/data/t-0/stratalog.tail", after.read_file("/data/t-1/stratalog.tail"))
    with stratalog.open("/data", read_only=True, fs=after) as found:
        [damage] = verify(found).damages
        assert damage.path == "/data/t-0/stratalog.tail"
        assert "it is the tail of partition 1" in damage.reason
    with stratalog.open("/data", fs=after, background=False) as found:
        assert [record.offset for record in found.topic("t").read(0)] == list(range(200))
        assert not any(report.cuts for report in found.recovery)
        assert any("it is the tail of" in line for report in found.recovery for line in report.damages)
        found.topic("t").append(b"more", partition=0, sync=True)
        assert verify(found).ok
    assert not [name for name in after.list_dir("/data/t-0") if ".torn" in name]


def first_version_seal(data: bytes) -> bytes:
    header = bytearray(data[: seals.FIRST_HEADER_SIZE])
    header[9] = 1
    body = bytes(header) + data[seals.HEADER_SIZE : -4]
    return body + struct.pack(">I", crc32c(body))


def first_version_tail(value: tails.Tail) -> bytes:
    body = struct.pack(">4sHHQqqqq12s", tails.MAGIC, 1, value.flags, *value[:5], bytes(12))
    slot = body + struct.pack(">I", crc32c(body))
    return slot + bytes(64) if value.generation % 2 == 0 else bytes(64) + slot


def test_a_directory_of_the_first_version_opens_as_before() -> None:
    fs = MemoryFileSystem()
    two_equal_segments(fs)
    for base in (0, 10, 20):
        path = segment_path("/data/t-0", base, "seal")
        rewrite(fs, path, first_version_seal(fs.read_file(path)))
    tail = tails.parse(fs.read_file("/data/t-0/stratalog.tail"))
    assert tail is not None
    rewrite(fs, "/data/t-0/stratalog.tail", first_version_tail(tail))
    with stratalog.open("/data", read_only=True, fs=fs) as store:
        assert verify(store).ok
        [first, *_] = store.topic("t").segments()
        assert first.records == 10, "its seal is believed"
    with stratalog.open("/data", fs=fs, background=False) as store:
        store.topic("t").append(b"more", sync=True)
    now = tails.parse(fs.read_file("/data/t-0/stratalog.tail"))
    assert now is not None
    assert now.generation > tail.generation
    assert now.owner.partition == 0, "the next one names its partition"
    with stratalog.open("/data", read_only=True, fs=fs) as store:
        assert verify(store).ok
        assert [record.offset for record in store.topic("t").read(0)] == list(range(31))


def owners(fs: MemoryFileSystem, directory: str) -> set[PartitionId]:
    """The partitions that the sidecars of a directory name."""
    found = set()
    for name in fs.list_dir(directory):
        if name.endswith(".seal"):
            seal = seals.parse(fs.read_file(f"{directory}/{name}"))
            assert seal.base_offset == int(name[:20])
            found.add(seal.owner)
    tail = tails.parse(fs.read_file(f"{directory}/stratalog.tail"))
    assert tail is not None
    return {*found, tail.owner}


def own_id(fs: MemoryFileSystem, directory: str) -> PartitionId:
    data = fs.read_file(f"{directory}/partition.metadata")
    return PartitionId(parse_partition_metadata(data).bytes, int(directory.rpartition("-")[2]))


def test_copies_name_their_own_topic(tmp_path: Path) -> None:
    fs = MemoryFileSystem()
    two_equal_segments(fs, partitions=2)
    fs.make_dir("/second")
    clone("/data", "/clone", fs=fs)
    restore("/data", "/restored", to_offsets={("t", 1): 15}, fs=fs)
    export_topic("/data", "t", tmp_path / "t.stratalog", fs=fs)
    with stratalog.open("/imported", fs=fs, background=False) as store:
        import_topic(store, tmp_path / "t.stratalog")
    made = [f"{root}/t-{n}" for root in ("/clone", "/restored", "/imported") for n in (0, 1)]
    for directory in ("/data/t-1", *made):
        assert owners(fs, directory) == {own_id(fs, directory)}
    assert len({own_id(fs, directory)[0] for directory in ("/data/t-0", *made)}) == 4
    for root in ("/data", "/clone", "/restored", "/imported"):
        with stratalog.open(root, read_only=True, fs=fs) as store:
            assert verify(store).ok
    with stratalog.open(["/data", "/second"], fs=fs, background=False) as store:
        store.move_partition("t", 0, "/second")
        assert verify(store).ok
    assert owners(fs, "/second/t-0") == {own_id(fs, "/second/t-0")}


@pytest.mark.parametrize("how", ["cut", "gone"])
def test_an_active_segment_that_ends_before_the_synced_end_is_damage(how: str) -> None:
    fs = MemoryFileSystem()
    two_equal_segments(fs)
    path = segment_path("/data/t-0", 20, "log")
    if how == "cut":
        rewrite(fs, path, b"")
    else:
        fs.remove(path)
    with stratalog.open("/data", read_only=True, fs=fs) as store:
        lost = [each for each in verify(store).damages if not each.derived]
    assert lost
    assert (lost[-1].first_offset, lost[-1].last_offset) == (20, 29)
    before = {name for name in fs.list_dir("/data/t-0") if name.endswith(".log")}
    with stratalog.open("/data", fs=fs, background=False) as store:
        store.repair("t", 0, action="rebuild-indexes")
        assert [record.offset for record in store.topic("t").read(0, end=20)] == list(range(20))
    assert before <= {*fs.list_dir("/data/t-0"), f"{20:020d}.log"}
