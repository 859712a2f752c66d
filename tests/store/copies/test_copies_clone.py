"""`clone`: linked where that is safe, copied where not, beside whoever writes; and written down."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.fs import RealFileSystem
from stratalog.store.copies import clone, clones, export_topic, restore
from stratalog.store.copies.clones import FILE_NAME
from stratalog.testing import MemoryFileSystem
from tests.store.copies.copies_life import CONFIG, LIVES, TOPIC, Life

HOLDER = """
import sys, stratalog
from stratalog import Record
with stratalog.open(sys.argv[1]) as store:
    topic = store.create_topic("t", 2, {"segment.bytes": 4096})
    for n in range(200):
        topic.append_many([Record(b"v%d" % n, b"k%d" % n)] * 5, partition=n % 2)
    print("ready", flush=True)
    sys.stdin.readline()
"""


def fill(store: stratalog.Store, records: int = 300) -> stratalog.Topic:
    topic = store.create_topic(TOPIC, 2, {"segment.bytes": 2048, "key.index.enable": True})
    for n in range(records):
        topic.append(b"value-%d" % n, b"key-%d" % (n % 7), partition=n % 2, timestamp=1_000 + n)
    return topic


def contents(store: stratalog.Store) -> dict[int, list[Record]]:
    topic = store.topic(TOPIC)
    return {partition: list(topic.read(partition)) for partition in range(topic.partitions)}


def inodes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_ino for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", range(LIVES // 4))
def test_a_clone_of_any_life_is_that_life(seed: int) -> None:
    life = Life(seed + 500)
    report = clone(life.store, "/clone")
    with stratalog.open("/clone", CONFIG, fs=life.fs, clock=life.clock, background=False) as store:
        assert not stratalog.verify(store).damages
        for copy in report.partitions:
            end = life.topic.high_watermark(copy.partition)
            assert store.topic(TOPIC).log_end_offset(copy.partition) == end
            assert list(store.topic(TOPIC).read(copy.partition)) == life.expected(copy.partition, end)
        assert store.topic(TOPIC).config == life.topic.config
        assert store.topic(TOPIC).id != life.topic.id
    life.store.close()


def test_what_is_only_in_the_archive_is_not_cloned_and_told() -> None:
    life = next(
        life
        for life in (Life(seed, archived=True) for seed in range(700, 800))
        if any(each.state == "archived" for each in life.topic.segments(0))
    )
    local = next(each.base_offset for each in life.topic.segments(0) if each.state != "archived")
    report = clone(life.store, "/clone")
    assert report.partitions[0].log_start_offset == max(local, life.topic.log_start_offset(0))
    assert "only in the archive" in report.partitions[0].notes[0]
    with stratalog.open("/clone", CONFIG, fs=life.fs, clock=life.clock, background=False) as store:
        expected = [record for record in life.topic.read(0) if record.offset >= local]
        assert list(store.topic(TOPIC).read(0)) == expected
        assert not life.fs.exists("/clone/t-0/stratalog.archive")
    life.store.close()


def test_sealed_segments_are_linked_and_neither_side_disturbs_the_other(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    with stratalog.open(source) as store:
        topic = fill(store)
        before = contents(store)
        seen: list[tuple[int, int]] = []
        report = clone(store, str(target), progress=lambda done, total: seen.append((done, total)))
        assert seen[-1][0] == seen[-1][1]
        sealed = sum(1 for each in topic.segments() if each.state == "sealed")
        assert sum(each.linked_segments for each in report.partitions) == sealed > 10
        assert report.linked_bytes > 5 * report.copied_bytes
        shared = set(inodes(source).values()) & set(inodes(target).values())
        # Log, index, timeindex, keyindex; not the seal, which names its topic, and nothing of the active one.
        assert len(shared) == 4 * sealed
        with stratalog.open(target) as copy:
            assert contents(copy) == before
            copy.topic(TOPIC).append_many([Record(b"only in the clone")] * 100, partition=0)
            copy.topic(TOPIC).roll()
        assert contents(store) == before
        topic.append_many([Record(b"only in the source")] * 100, partition=0)
        topic.delete_records(1, topic.high_watermark(1))
    with stratalog.open(target) as copy:
        found = contents(copy)
        assert found[1] == before[1]
        assert [record.value for record in found[0]] == [
            *(record.value for record in before[0]),
            *[b"only in the clone"] * 100,
        ]
        assert not stratalog.verify(copy).damages


def test_repair_replaces_what_a_clone_shares(tmp_path: Path) -> None:
    """Neither rebuilding nor dropping writes into a file that is linked."""
    source, target = tmp_path / "a", tmp_path / "b"
    with stratalog.open(source) as store:
        topic = fill(store)
        clone(store, str(target))
        before = {name: (target / name).read_bytes() for name in inodes(target)}
        segments = topic.segments(0)
        for kind, at in (("index", 0), ("seal", 1), ("keyindex", 2), ("timeindex", 3)):
            path = Path(segments[at].path).with_suffix(f".{kind}")
            data = bytearray(path.read_bytes())
            data += b"junk" if not data else b""
            data[-1] ^= 1
            path.unlink()  # a new file: the damage is the source's alone
            path.write_bytes(data)
        broken = Path(segments[4].path)
        data = bytearray(broken.read_bytes())
        data[len(data) // 2] ^= 0xFF
        broken.unlink()
        broken.write_bytes(data)
        store.repair(TOPIC, 0, action="rebuild-indexes")
        store.repair(TOPIC, 0, action="drop-damaged")
    assert {name: (target / name).read_bytes() for name in inodes(target)} == before


def test_beside_a_program_that_holds_the_store(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "ready\n"
    try:
        report = clone(tmp_path / "data", str(tmp_path / "copy"))
        assert sum(each.linked_segments for each in report.partitions) >= 4
        with stratalog.open(tmp_path / "copy") as copy:
            assert [len(list(copy.topic("t").read(p))) for p in range(2)] == [500, 500]
    finally:
        child.stdin.close()
        assert child.wait(20) == 0
        child.stdout.close()


def test_while_segments_come_and_go(tmp_path: Path) -> None:
    """A clone is a prefix of the log at some moment, whatever is rolled, appended or deleted meanwhile."""
    with stratalog.open(tmp_path / "a", {"log.segment.delete.delay.ms": 0}) as store:
        topic = store.create_topic(TOPIC, 1, {"segment.bytes": 1024})
        stop = threading.Event()

        def work() -> None:
            n = 0
            while not stop.is_set():
                topic.append(b"%d" % n, timestamp=n)
                n += 1
                if n % 200 == 0:
                    topic.delete_records(0, n - 100)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(6):
                clone(store, str(tmp_path / f"copy-{number}"))
        finally:
            stop.set()
            thread.join()
    for number in range(6):
        with stratalog.open(tmp_path / f"copy-{number}") as copy:
            found = list(copy.topic(TOPIC).read())
            assert [record.value for record in found] == [b"%d" % record.offset for record in found]
            assert not stratalog.verify(copy).damages


def test_while_segments_are_compacted(tmp_path: Path) -> None:
    """Segments are swapped under the copy: it still holds every key's latest value of some moment."""
    config = {"cleanup.policy": "compact", "segment.bytes": 2048, "cleaner.min.segment.age.ms": 0}
    with stratalog.open(tmp_path / "a") as store:
        topic = store.create_topic(TOPIC, 1, {**config, "file.delete.delay.ms": 0})
        stop = threading.Event()

        def work() -> None:
            n = 0
            while not stop.is_set():
                topic.append(b"%d" % n, b"k%d" % (n % 50))
                n += 1
                if n % 300 == 0:
                    while store.compact(TOPIC, force=True).notes and not stop.is_set():
                        time.sleep(0.001)  # the copy holds compaction off

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for number in range(6):
                clone(store, str(tmp_path / f"copy-{number}"))
        finally:
            stop.set()
            thread.join()
    for number in range(6):
        with stratalog.open(tmp_path / f"copy-{number}") as copy:
            end = copy.topic(TOPIC).log_end_offset()
            found = {record.key: record.offset for record in copy.topic(TOPIC).read()}
            for key in range(min(50, end)):
                assert found[b"k%d" % key] == end - 1 - (end - 1 - key) % 50
            assert not stratalog.verify(copy).damages


def test_where_links_are_not_possible_everything_is_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(self: object, src: str, dst: str) -> None:
        raise errors.StorageError(f"{src}: cannot link as {dst}: Invalid cross-device link")

    with stratalog.open(tmp_path / "a") as store:
        fill(store)
        before = contents(store)
        times = {name: (tmp_path / "a" / name).stat().st_mtime_ns for name in inodes(tmp_path / "a")}
        monkeypatch.setattr(RealFileSystem, "link", refuse)
        report = clone(store, str(tmp_path / "b"))
        assert report.linked_bytes == 0
        assert report.copied_bytes == sum(each.size_bytes for each in store.topic(TOPIC).segments())
    with stratalog.open(tmp_path / "b", read_only=True) as copy:
        assert contents(copy) == before
        assert not stratalog.verify(copy).damages
        for each in copy.topic(TOPIC).segments():
            name = os.path.relpath(each.path, tmp_path / "b")
            assert os.stat(each.path).st_mtime_ns == times[name]


def test_damage_is_copied_as_it_is_and_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(self: object, src: str, dst: str) -> None:
        raise errors.StorageError("no links here")

    monkeypatch.setattr(RealFileSystem, "link", refuse)
    with stratalog.open(tmp_path / "a") as store:
        path = Path(fill(store).segments(0)[1].path)
    data = bytearray(path.read_bytes())
    data[100] ^= 0xFF
    path.write_bytes(data)
    report = clone(tmp_path / "a", str(tmp_path / "b"))
    assert "damaged, and copied as it is" in report.partitions[0].notes[0]
    assert (tmp_path / "b" / path.parent.name / path.name).read_bytes() == data


def test_every_copy_is_written_down_where_it_came_from(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "a") as store:
        fill(store)
        store.create_topic("other")
    first = clone(tmp_path / "a", str(tmp_path / "b"), [TOPIC])
    clone(tmp_path / "a", str(tmp_path / "c"))
    second = clone(tmp_path / "b", str(tmp_path / "d"))
    found, damaged = clones(tmp_path / "a")
    assert damaged == 0
    assert {(Path(each.target).name, each.topics, each.via) for each in found} == {
        ("b", (TOPIC,), ""),
        ("c", ("other", TOPIC), ""),
        ("d", (TOPIC,), first.id),
    }
    assert second.id in {each.id for each in found}
    assert all(each.exists for each in found)
    assert len(clones(tmp_path / "a", topic="other")[0]) == 1

    registry = tmp_path / "a" / FILE_NAME
    lines = registry.read_bytes().split(b"\n")
    registry.write_bytes(b"\n".join([lines[0].replace(b"clone", b"clown"), *lines[1:]]))
    found, damaged = clones(tmp_path / "a")
    assert damaged == 1
    assert [Path(each.target).name for each in found] == ["c"]


def test_two_copies_at_once_are_both_written_down() -> None:
    fs = MemoryFileSystem()
    with stratalog.open("/a", CONFIG, fs=fs, background=False) as store:
        fill(store, 20)
        threads = [threading.Thread(target=clone, args=(store, f"/copy-{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(clones("/a", fs=fs)[0]) == 4


def test_a_copy_that_failed_is_not_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`erase` told people to look into directories that never existed."""
    source, inside = tmp_path / "a", str(tmp_path / "file" / "c")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    with stratalog.open(source) as store:
        fill(store, 10)
        topic = store.topics()[0]
    clone(source, str(tmp_path / "b"))

    def full(*arguments: object) -> None:
        raise errors.DiskFullError("no room")

    monkeypatch.setattr(sys.modules[clone.__module__], "_write_root", full)
    failing: list[Callable[[], object]] = [
        lambda: clone(source, inside),
        lambda: clone(source, str(tmp_path / "c")),
        lambda: clone(source, str(tmp_path / "empty")),
        lambda: restore(source, str(tmp_path / "c"), to_time=0),
        lambda: export_topic(source, topic, inside),
    ]
    for fails in failing:
        with pytest.raises((errors.StorageError, OSError)):
            fails()
        assert [each.target for each in clones(source)[0]] == [str(tmp_path / "b")]


def test_a_target_that_is_being_made_or_is_there_is_refused(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "a") as store:
        fill(store, 10)
    (tmp_path / "b.building").mkdir()
    (tmp_path / "b.building" / "t-0").mkdir()
    lock = RealFileSystem().lock(str(tmp_path / "b.building" / ".lock"), {"pid": os.getpid()})
    with pytest.raises(errors.StoreLockedError, match="being made by another process"):
        clone(tmp_path / "a", str(tmp_path / "b"))
    lock.release()
    clone(tmp_path / "a", str(tmp_path / "b"))  # what an earlier attempt left is swept
    assert not (tmp_path / "b.building").exists()
    with pytest.raises(errors.InvalidArgumentError, match="not empty"):
        clone(tmp_path / "a", str(tmp_path / "b"))
    with pytest.raises(errors.NotFoundError):
        clone(tmp_path / "nowhere", str(tmp_path / "c"))


def test_a_partition_that_moves_meanwhile_is_copied_from_its_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    with stratalog.open(places, background=False) as store:
        topic = store.create_topic(TOPIC, 1)
        for at in range(5):
            topic.append(b"%d" % at)
            topic.roll()
        cloning: Any = sys.modules["stratalog.store.copies.clone"]
        plain = cloning.check_target

        def moving(*args: Any) -> None:
            here = Path(topic.segments()[0].path).parent.parent
            store.move_partition(TOPIC, 0, str(next(each for each in places if each != here)))
            plain(*args)

        monkeypatch.setattr(cloning, "check_target", moving)
        clone(store, tmp_path / "copy")
    with stratalog.open(tmp_path / "copy", background=False) as copy:
        assert [record.value for record in copy.topic(TOPIC).read()] == [b"%d" % at for at in range(5)]
