"""What the settings know and no directory holds is offline, never made anew."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

import stratalog
from stratalog import Store, errors
from stratalog.fs import MemoryFileSystem, SimulatedCrash, SurvivorMode
from stratalog.store import open_store
from tests.cli.shell import Shell
from tests.store.test_door import make_batch

MODES: tuple[SurvivorMode, ...] = ("kill", "drop", "reorder")


def make(root: Path) -> tuple[list[Path], int, int]:
    """A store of two directories and a topic of four partitions; its paths, and a partition of each."""
    paths = [root / "a", root / "b"]
    with stratalog.open(paths) as store:
        topic = store.create_topic("t", partitions=4)
        for number in range(4):
            for value in range(3):
                topic.append(b"%d" % value, partition=number)
    held = {number: (paths[1] / f"t-{number}").exists() for number in range(4)}
    return paths, min(n for n in held if not held[n]), min(n for n in held if held[n])


def check_offline(store: Store, here: int, away: int) -> None:
    topic = store.topic("t")
    assert topic.partitions == 4
    assert [record.value for record in topic.read(here)] == [b"0", b"1", b"2"]
    with pytest.raises(errors.LogDirOfflineError, match=f"t-{away} is offline"):
        topic.read(away)
    if not store.read_only:
        with pytest.raises(errors.LogDirOfflineError, match=f"t-{away} is offline"):
            topic.append(b"x", partition=away)
        topic.flush(here)


@pytest.mark.parametrize("how", ["missing", "empty mount point", "not given"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_that_is_not_there(tmp_path: Path, how: str, read_only: bool) -> None:
    paths, here, away = make(tmp_path)
    paths[1].rename(tmp_path / "aside")
    if how == "empty mount point":
        paths[1].mkdir()
    given = paths[:1] if how == "not given" else paths
    for _ in range(2):
        with stratalog.open(given, read_only=read_only) as store:
            check_offline(store, here, away)
            if not read_only:
                store.create_topic(f"other{_}", partitions=2).append(b"y", partition=0)
    if how == "empty mount point":
        assert list(paths[1].iterdir()) == []
        paths[1].rmdir()
    assert not paths[1].exists()
    (tmp_path / "aside").rename(paths[1])
    with stratalog.open(paths) as store:  # with the directory back everything is as it was
        for number in range(4):
            assert store.topic("t").append(b"3", partition=number).offset == 3
        assert stratalog.verify(store).ok


def test_a_partition_directory_that_was_deleted(tmp_path: Path) -> None:
    paths, here, away = make(tmp_path)
    shutil.rmtree(paths[1] / f"t-{away}")
    for read_only in (False, True, False):
        with stratalog.open(paths, read_only=read_only) as store:
            check_offline(store, here, away)
    assert not (paths[1] / f"t-{away}").exists()
    report = Shell(*paths)("verify")
    assert report.exit_code == 5
    assert f"t-{away}" in report.output


@pytest.mark.parametrize(
    "left", [(), ("partition.metadata",), ("leader-epoch-checkpoint", "00000000000000000000.index")]
)
def test_an_emptied_partition_directory(tmp_path: Path, left: tuple[str, ...]) -> None:
    """Nothing in it tells where its log ended: to fill it in would give offsets out a second time."""
    with stratalog.open(tmp_path / "live", background=False) as store:
        topic = store.create_topic("t", partitions=4)
        for number in range(4):
            topic.append_many(
                [stratalog.Record(value=b"%d" % n) for n in range(3)], partition=number, sync=True
            )
        shutil.copytree(tmp_path / "live", tmp_path / "data")  # no checkpoint is written yet
    emptied = tmp_path / "data" / "t-0"
    for file in emptied.iterdir():
        if file.name not in left:
            file.unlink()
    for read_only in (True, False, False, True):
        with stratalog.open(tmp_path / "data", read_only=read_only, background=False) as store:
            check_offline(store, 1, 0)
            with pytest.raises(errors.LogDirOfflineError, match=f"nothing of its log is in {emptied}"):
                store.topic("t").high_watermark(0)
    assert not list(emptied.glob("*.log"))
    report = Shell(tmp_path / "data")("verify")
    assert report.exit_code == 5
    assert "t-0" in report.output
    with stratalog.open(tmp_path / "data", background=False) as store:
        assert (
            f"nothing of its log is in {emptied}" in store.repair("t", 0, action="rebuild-indexes").actions[0]
        )
        assert store.repair("t", 0, action="drop-damaged", dry_run=True).lost
        check_offline(store, 1, 0)
        assert store.repair("t", 0, action="drop-damaged").lost_records is None
        assert store.topic("t").append(b"new", partition=0).offset == 0
    with stratalog.open(tmp_path / "data") as store:
        assert [record.value for record in store.topic("t").read(0)] == [b"new"]
        assert stratalog.verify(store).ok


def test_a_topic_with_an_emptied_partition_directory_can_be_deleted(tmp_path: Path) -> None:
    paths, _, away = make(tmp_path)
    for file in (paths[1] / f"t-{away}").iterdir():
        file.unlink()
    with stratalog.open(paths) as store:
        store.delete_topic("t")
    with stratalog.open(paths) as store:
        assert store.topics() == []


def test_an_empty_directory_of_a_topic_being_made_is_completed(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        store.create_topic("t", partitions=2)
        store.partitions.settings.save_topic(store.partitions.entry("t"), creating=0)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for file in (tmp_path / "copy" / "t-1").iterdir():
        file.unlink()
    with stratalog.open(tmp_path / "copy") as store:
        assert store.topic("t").append(b"x", partition=1).offset == 0


@pytest.mark.parametrize("action", ["drop-damaged", "truncate"])
def test_repair_gives_it_up(tmp_path: Path, action: str) -> None:
    paths, here, away = make(tmp_path)
    shutil.rmtree(paths[1] / f"t-{away}")
    with stratalog.open(paths) as store:
        assert "no log directory holds it" in store.repair("t", away, action="rebuild-indexes").actions[0]
        assert store.repair("t", away, action=action, dry_run=True).lost
        check_offline(store, here, away)
        assert store.repair("t", away, action=action).lost_records is None
        # The root checkpoint still knows the end: no offset is given out twice.
        assert store.topic("t").append(b"new", partition=away).offset == 3
    with stratalog.open(paths) as store:
        assert [record.value for record in store.topic("t").read(away)] == [b"new"]


def test_a_dead_disk_is_replaced_when_its_partitions_were_given_up(tmp_path: Path) -> None:
    paths, _, _ = make(tmp_path)
    shutil.rmtree(paths[1])
    with stratalog.open(paths) as store:
        for number in range(4):
            if not (paths[0] / f"t-{number}").exists():
                store.repair("t", number, action="drop-damaged")
    with stratalog.open(paths) as store:
        assert [each.offline for each in store.log_dirs()] == [None, None]
        store.create_topic("u", partitions=4)
    assert (paths[1] / "meta.properties").exists()


def make_unreadable(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let the system refuse a directory's names, as it does without the right to read it."""
    listdir = os.listdir

    def refused(name: str) -> list[str]:
        if str(name) == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return listdir(name)

    monkeypatch.setattr(os, "listdir", refused)


def test_a_store_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stratalog.open(tmp_path / "a") as store:
        store.create_topic("t").append(b"x")
    make_unreadable(monkeypatch, tmp_path / "a")
    with pytest.raises(errors.LogDirOfflineError, match="no log directory can be used"):
        stratalog.open(tmp_path / "a", read_only=True)
    shell = Shell(tmp_path / "a")
    for command in (["verify"], ["topic", "list"], ["segments"], ["read", "t"], ["clone", f"{tmp_path}/c"]):
        done = shell(*command)
        assert done.exit_code == 7, command
        assert "no log directory can be used" in done.stderr
    assert not (tmp_path / "c").exists()


def test_one_directory_of_two_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, here, _ = make(tmp_path)
    for path in paths:
        (path / "stratalog.settings").unlink()  # without them nothing says what the other directory holds
    make_unreadable(monkeypatch, paths[1])
    done = Shell(*paths)("verify")
    assert done.exit_code == 5
    assert f"{paths[1]} " in done.stdout
    assert "offline" in done.stdout
    assert Shell(*paths)("verify", "t", "-p", str(here)).exit_code == 0
    done = Shell(*paths)("clone", f"{tmp_path}/c")
    assert done.exit_code == 7
    assert f"{paths[1]} is offline" in done.stderr
    assert not (tmp_path / "c").exists()


def test_a_mistyped_path_is_told(tmp_path: Path) -> None:
    paths, _, _ = make(tmp_path)
    with pytest.raises(errors.NotFoundError, match="no log directory at"):
        stratalog.open([*paths, tmp_path / "typo"], read_only=True)


def test_a_crash_at_every_call_of_create_topic_leaves_all_or_nothing() -> None:
    """The next start finishes or forgets it, and a reader never sees a part of it."""
    steps = 0
    while True:
        steps += 1
        fs = MemoryFileSystem()
        store = open_store(["a", "b"], fs=fs, background=False)
        store.create_topic("first").append(b"x", sync=True)
        fs.crash_at(steps)
        try:
            store.create_topic("t", partitions=3)
            store.add_partitions("t", 5)
        except SimulatedCrash:
            pass
        else:
            break
        for mode in MODES:
            left = fs.survivor(mode, random.Random(steps))
            with open_store(["a", "b"], fs=left, read_only=True, background=False) as reader:
                for name in reader.topics():
                    for number in range(reader.topic(name).partitions):
                        reader.topic(name).log_end_offset(number)
            with open_store(["a", "b"], fs=left, background=False) as again:
                assert "first" in again.topics()
                if "t" in again.topics():
                    assert again.topic("t").partitions in (3, 5)
                    for number in range(again.topic("t").partitions):
                        assert again.topic("t").append(b"y", partition=number).offset == 0
    assert steps > 30


def test_producer_ids_are_never_handed_out_twice() -> None:
    given: set[int] = set()
    fs = MemoryFileSystem()
    for steps in range(1, 40):
        store = open_store("data", fs=fs, background=False)
        fs.crash_at(steps)
        try:
            while True:
                block = store.allocate_producer_ids()
                assert len(block) == 1000
                assert not given & set(block)
                given.update(block)
        except SimulatedCrash:
            fs = fs.survivor("drop", random.Random(steps))
    with open_store("data", fs=fs, background=False) as store:
        assert store.allocate_producer_ids(5).start not in given
        for bad in (0, -1, True, "1"):
            with pytest.raises(errors.InvalidArgumentError, match="count"):
                store.allocate_producer_ids(bad)  # type: ignore[arg-type]


def test_producer_ids_of_an_adopted_log_are_not_handed_out() -> None:
    fs = MemoryFileSystem()
    with open_store("data", fs=fs, background=False) as store:
        topic = store.create_topic("t")
        for known in (0, 3, 2**63 - 1):
            topic.append_batches(0, make_batch([b"v"], producer_id=known, epoch=7, sequence=0))
    with open_store("data", fs=fs, background=False) as store:
        assert store.allocate_producer_ids(2) == range(1, 3)
        assert store.allocate_producer_ids(10) == range(4, 14)


def test_the_list_of_directories_fails_where_one_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A health check goes by the exit code."""
    paths, _, _ = make(tmp_path)
    assert Shell(*paths)("log-dirs").exit_code == 0
    make_unreadable(monkeypatch, paths[1])
    for options in ((), ("--json",)):
        done = Shell(*paths)("log-dirs", *options)
        assert done.exit_code == 7
        assert f"{paths[1]}" in done.stdout
        assert "offline" in done.stdout or '"online":false' in done.stdout.replace(" ", "")
