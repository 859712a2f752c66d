"""A read-only store changes no file, tells what a writable one tells, and needs no room."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, Store, errors
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.fs.failing import FailingFileSystem, Fault
from stratalog.fs.memory import MemoryFileSystem
from stratalog.store import copies
from stratalog.store import verify as verify_store
from tests.cli.shell import Shell
from tests.store.small_disk import small_disk

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
CONFIG = {"log.archive.url": "/archive"}
POLICIES: dict[str, dict[str, object]] = {
    "aged": {"retention.ms": 2 * HOUR_MS},
    "many": {"retention.segments": 2},
    "table": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "key.index.enable": True},
    "cold": {"remote.storage.enable": True, "local.retention.bytes": 1, "retention.ms": 9 * HOUR_MS},
    "open": {"retention.ms": -1},
}


class Clock:
    """One moment for ever."""

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return 0.0


def fill(store: Store) -> None:
    """Segments of many ages; some only in the archive, some in both places, some waiting for both."""
    for name, policy in POLICIES.items():
        topic = store.create_topic(name, 1, {**policy, "file.delete.delay.ms": 0})
        for age in (8, 6, 4, 3, 1):
            stamp = NOW_MS - age * HOUR_MS
            topic.append_many([Record(b"v%d" % age, b"k%d" % n, (), stamp) for n in range(5)], sync=True)
            if age > 1:
                topic.roll()
            if name == "cold" and age > 3:
                store.archive("cold")


def opened(fs: FileSystem, *, read_only: bool = False) -> Store:
    return stratalog.open("/d", CONFIG, fs=fs, clock=Clock(), read_only=read_only, background=False)


def looks(store: Store) -> dict[str, Any]:
    """Everything that can be asked of a store without changing it."""
    told: dict[str, Any] = {
        "lifecycle": [each.to_json() for each in store.lifecycle()],
        "retain": store.retain(preview=True),
        "compact": store.compact(preview=True),
        "force": store.compact(preview=True, force=True),
        "archive": store.archive(preview=True),
        "janitor": store.janitor(preview=True),
    }
    for name in store.topics():
        told[f"erase {name}"] = store.erase(name, [b"k1"], dry_run=True).to_json()
        for action in ("rebuild-indexes", "drop-damaged", "truncate"):
            told[f"{action} {name}"] = store.repair(name, 0, action=action, dry_run=True)
        topic = store.topic(name)
        told[f"read {name}"] = [record.offset for record in topic.read(0)]
        told[f"last {name}"] = topic.get(b"k1")
        told[f"describe {name}"] = store.describe_topic(name)
    return told


def segments(told: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    """What `lifecycle` counts, without files."""
    return [
        (each["topic"], state, found["segments"], found["size_bytes"])
        for each in told["lifecycle"]
        for state, found in each["states"].items()
        if state != "deleted"
    ]


def made(how: str) -> tuple[MemoryFileSystem, Store | None]:
    fs = MemoryFileSystem()
    store = opened(fs)
    fill(store)
    if how == "clean":
        store.close()
    elif how == "unclean":
        fs = fs.survivor("kill", random.Random(0))
    return fs, store if how == "held" else None


@pytest.mark.parametrize("how", ["clean", "unclean", "held"])
def test_no_call_that_could_change_a_file_is_made(how: str) -> None:
    inside, holder = made(how)
    fs = FailingFileSystem(inside, [Fault("mutating")])
    with opened(fs, read_only=True) as store:
        looks(store)
        assert verify_store(store).ok
        store.log_dirs()
        exported: list[bytes] = []
        copies.export_topic(store, "aged", _Into(exported))
        assert exported
        for change in CHANGES:
            with pytest.raises(errors.ReadOnlyError):
                change(store)
    assert fs.failed == []
    if holder is not None:
        holder.close()


CHANGES: tuple[Callable[[Store], object], ...] = (
    lambda store: store.retain(),
    lambda store: store.compact(),
    lambda store: store.archive(),
    lambda store: store.janitor(),
    lambda store: store.erase("aged", [b"k1"]),
    lambda store: store.repair("aged", 0, action="truncate"),
    lambda store: store.create_topic("more"),
    lambda store: store.topic("aged").append(b"v"),
)


class _Into:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def write(self, data: bytes) -> None:
        self._chunks.append(bytes(data))


@pytest.mark.parametrize("how", ["clean", "unclean", "held"])
def test_a_read_only_store_tells_what_a_writable_one_tells(how: str) -> None:
    fs, holder = made(how)
    with opened(fs, read_only=True) as store:
        told = looks(store)
    writable = opened(fs) if holder is None else holder
    then = looks(writable)
    writable.close()
    if how == "unclean":  # recovery makes and removes files, and no others
        for each in (told, then):
            del each["erase cold"]
        assert segments(told) == segments(then)
        told["lifecycle"] = then["lifecycle"]
    assert told == then
    numbers = {each["topic"]: each for each in told["lifecycle"]}
    assert numbers.keys() == POLICIES.keys()
    assert "archived" in numbers["cold"]["states"]
    assert numbers["many"]["oldest_deletable"] == 0


def test_a_read_only_store_follows_what_the_holder_does() -> None:
    fs, holder = made("held")
    assert holder is not None
    with opened(fs, read_only=True) as store:
        assert [step.action for step in store.retain("many", preview=True).steps] == ["delete"] * 3
        holder.retain("many")
        assert [step.due for step in store.retain("many", preview=True).steps] == [False]
        holder.compact("table")
        assert not any(step.due for step in store.compact("table", preview=True).steps)
        holder.create_topic("late")
        assert [each.topic for each in store.lifecycle()] == sorted([*POLICIES, "late"])
    holder.close()


def test_a_partition_that_cannot_be_opened_does_not_hide_the_others() -> None:
    fs, _ = made("clean")
    log = "/d/many-0/00000000000000000000.log"
    fs.remove(log)
    fs.make_dir(log)
    with opened(fs, read_only=True) as store:
        assert {each.topic for each in store.lifecycle()} >= POLICIES.keys() - {"many"}
        assert any(step.topic == "aged" for step in store.janitor(preview=True).steps)


def test_a_dry_run_of_a_repair_leaves_the_partition_open() -> None:
    fs, holder = made("held")
    assert holder is not None
    writer = holder.topic("aged").append
    before = len(fs.calls)
    report = holder.repair("aged", 0, action="truncate", dry_run=True)
    assert report.actions == ["nothing to do"]
    assert fs.calls[before:] == []
    writer(b"goes on")
    holder.close()


REPORTS = (
    ("lifecycle",),
    ("retain", "--preview"),
    ("compact", "--preview", "--force"),
    ("archive", "--preview"),
    ("janitor", "--preview"),
    ("erase", "aged", "--key", "k1", "--dry-run"),
    ("repair", "aged", "--action", "truncate", "--dry-run"),
    ("verify",),
    ("segments", "aged"),
    ("read", "aged"),
    ("log-dirs",),
)


def test_reports_work_on_a_read_only_mount(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", pages=4096) as disk:
        with stratalog.open(disk.log, background=False) as store:
            fill(store)
        if disk.real:
            subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
            with pytest.raises(OSError):
                os.open(disk.log / "x", os.O_CREAT | os.O_WRONLY)
        for arguments in REPORTS:
            done = Shell(disk.log)(*arguments)
            assert done.exit_code == 0, (arguments, done.output)
        copy = tmp_path / "export"
        assert Shell(disk.log)("export", "aged", str(copy)).exit_code == 0
        assert copies.check_export(copy).topic == "aged"


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_reports_need_no_room(tmp_path: Path, how: str) -> None:
    with small_disk(tmp_path / "disk", pages=4096) as disk:
        store = stratalog.open(disk.log, background=False)
        fill(store)
        if how == "clean":
            store.close()
        disk.leave(0)
        for arguments in REPORTS:
            done = Shell(disk.log)(*arguments)
            assert done.exit_code == 0, (arguments, done.output)
        told = Shell(disk.log).json("retain", "--preview")
        assert {step["topic"] for step in told["steps"] if step["action"] == "delete"} >= {"aged", "many"}
        disk.free()
        store.close()


def test_the_reads_of_a_read_only_store_are_real(tmp_path: Path) -> None:
    """The same on the real filesystem: no lock, no socket, no directory sync."""
    with stratalog.open(tmp_path / "d", {"log.archive.url": str(tmp_path / "archive")}) as store:
        fill(store)
    fs = FailingFileSystem(RealFileSystem(), [Fault("mutating")])
    before = sorted(tmp_path.rglob("*"))
    with stratalog.open(tmp_path / "d", fs=fs, read_only=True) as store:
        looks(store)
    assert fs.failed == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cache_of_archived_blocks_that_cannot_be_written_is_kept_in_memory() -> None:
    fs, _ = made("clean")
    failing = FailingFileSystem(fs, [Fault("mutating", "/cache*", errno.EROFS)])
    config = {**CONFIG, "log.archive.cache.dir": "/cache"}
    with stratalog.open("/d", config, fs=failing, clock=Clock(), read_only=True) as store:
        assert [record.offset for record in store.topic("cold").read(0)] == list(range(25))
    assert failing.failed
