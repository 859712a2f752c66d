"""Disks that fill up, fail and come back; too few file handles; forks; a second opener."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import (
    DiskFullError,
    ForkedError,
    LogDirOfflineError,
    ReadOnlyError,
    StoreLockedError,
    StratalogError,
    SyncFailedError,
)
from stratalog.model import Record
from stratalog.store.store import Store
from stratalog.testing import FailingFileSystem, Fault, ManualClock, MemoryFileSystem, read_raw
from tests.crash import fault_scripts

ROOT = "/data/log"
SCRIPT = Path(fault_scripts.__file__)


def failing_store(*paths: str) -> tuple[FailingFileSystem, Store]:
    fs = FailingFileSystem(MemoryFileSystem())
    return fs, stratalog.open(list(paths) or [ROOT], fs=fs, clock=ManualClock(), background=False)


def values(topic: stratalog.Topic, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in topic.read(partition)]


def reopened(fs: FailingFileSystem) -> list[bytes | None]:
    """What is there after the process was killed, and that every byte of it is part of a right batch."""
    read_raw(fs, f"{ROOT}/t-0")
    inner = fs.inner
    assert isinstance(inner, MemoryFileSystem)
    after = inner.survivor("kill", random.Random(0))
    with stratalog.open(ROOT, fs=after, clock=ManualClock(), background=False) as store:
        return values(store.topic("t"))


@pytest.mark.parametrize("partial_bytes", [0, 1, 30, 61, 70])
def test_a_full_disk_refuses_the_append_and_heals(partial_bytes: int) -> None:
    fs, store = failing_store()
    topic = store.create_topic("t")
    topic.append(b"one")
    fs.inject(Fault("pwrite", "*.log", errno.ENOSPC, partial_bytes=partial_bytes))
    for _ in range(3):
        with pytest.raises(DiskFullError):
            topic.append(b"no room")
    with pytest.raises(DiskFullError):
        topic.append_many([Record(b"no"), Record(b"room")], sync=True)
    assert values(topic) == [b"one"]
    assert reopened(fs) == [b"one"]
    fs.heal()
    assert topic.append(b"two", sync=True).offset == 1
    assert values(topic) == [b"one", b"two"] == reopened(fs)
    store.close()


@pytest.mark.parametrize("what", ["*.log", "*.index", "*.timeindex", "*.seal", "*.snapshot"])
@pytest.mark.parametrize("operation", ["create", "pwrite"])
def test_a_full_disk_at_a_roll(what: str, operation: str) -> None:
    fs, store = failing_store()
    topic = store.create_topic("t", config={"segment.records": 3})
    written = [f"{at}".encode() for at in range(3)]
    for value in written:
        topic.append(value)
    fs.inject(Fault(operation, what, errno.ENOSPC))
    for _ in range(2):
        try:
            topic.append(b"perhaps")
            written.append(b"perhaps")
        except DiskFullError:
            continue
    assert values(topic) == written == reopened(fs)
    fs.heal()
    for at in range(5):
        topic.append(b"after %d" % at, sync=True)
        written.append(b"after %d" % at)
    assert values(topic) == written == reopened(fs)
    assert topic.log_end_offset() == len(written)
    store.close()
    assert reopened(fs) == written


def test_a_failed_sync_ends_the_writing_and_says_why() -> None:
    fs, store = failing_store()
    topic = store.create_topic("t")
    other = store.create_topic("u")
    topic.append(b"safe", sync=True)
    topic.append(b"written")
    fs.inject(Fault("sync", "*/t-0/*.log", times=1))
    with pytest.raises(SyncFailedError):
        topic.append(b"not safe", sync=True)
    fs.heal()  # the kernel would say yes to the next one; that must not count
    for sync in (True, False):
        with pytest.raises(ReadOnlyError, match="sync failed"):
            topic.append(b"too late", sync=sync)
    assert values(topic)[:2] == [b"safe", b"written"]
    other.append(b"not concerned", sync=True)
    with pytest.raises(StratalogError):
        topic.flush()
    try:
        store.close()
    except StratalogError:
        assert not fs.exists(f"{ROOT}/.kafka_cleanshutdown")
    assert reopened(fs)[:2] == [b"safe", b"written"]


def test_a_failed_directory_sync_is_a_failed_sync() -> None:
    fs, store = failing_store()
    topic = store.create_topic("t", config={"segment.records": 1})
    topic.append(b"one", sync=True)
    fs.inject(Fault("sync_dir", "*/t-0"))
    with pytest.raises(SyncFailedError):
        topic.append(b"two", sync=True)
    fs.heal()
    with pytest.raises(ReadOnlyError):
        topic.append(b"three", sync=True)


def test_a_failing_directory_takes_only_its_own_partitions_offline() -> None:
    paths = ["/disk1/log", "/disk2/log"]
    fs, store = failing_store(*paths)
    topic = store.create_topic("t", 4)
    for partition in range(4):
        topic.append(b"%d" % partition, partition=partition, sync=True)
    store.close()
    fs.inject(Fault("*", "/disk2/*", errno.EIO))
    with stratalog.open(paths, fs=fs, clock=ManualClock(), background=False) as store:
        states = {info.path: info.offline for info in store.log_dirs()}
        assert states["/disk1/log"] is None
        assert "Input/output error" in str(states["/disk2/log"])
        topic = store.topic("t")
        working = []
        for partition in range(4):
            try:
                working.append(values(topic, partition) == [b"%d" % partition])
                topic.append(b"more", partition=partition, sync=True)
            except LogDirOfflineError as error:
                assert "/disk2/log" in str(error)  # noqa: PT017 - two of the four raise
        assert working == [True, True]
    fs.heal()
    with stratalog.open(paths, fs=fs, clock=ManualClock(), background=False) as store:
        topic = store.topic("t")
        found = [values(topic, partition) for partition in range(4)]
        assert [rows[0] for rows in found] == [b"0", b"1", b"2", b"3"]
        assert sorted(len(rows) for rows in found) == [1, 1, 2, 2]


def run_script(
    *arguments: str, prefix: tuple[str, ...] = (), timeout_s: float = 120
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*prefix, sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def test_a_real_disk_that_fills_up(tmp_path: Path) -> None:
    """A tmpfs of two megabytes, in a namespace of its own; where that is refused, a limit on file size."""
    mount = f'mount -t tmpfs -o size=2m none {tmp_path} && exec "$@"'
    for space in (("unshare", "-m"), ("unshare", "-r", "-m")):
        prefix = (*space, "sh", "-c", mount, "sh")
        allowed = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
        if allowed:
            done = run_script("full-disk", str(tmp_path), prefix=prefix)
            break
    else:
        done = run_script("file-size-limit", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("full after ")


def test_twenty_thousand_segments_with_256_handles(tmp_path: Path) -> None:
    where = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    done = run_script("many-segments", str(where), "20000", "256", timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("20000 segments")


def test_use_after_fork_raises(tmp_path: Path) -> None:
    done = run_script("fork", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [ForkedError.__name__] * 5


def test_the_second_opener_is_told_at_once(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("t").append(b"kept", sync=True)
        with pytest.raises(StoreLockedError) as caught:
            stratalog.open(tmp_path / "log")
        assert caught.value.pid == os.getpid()
        assert caught.value.control == store.control_address
        assert str(os.getpid()) in str(caught.value)
        done = run_script("second-opener", str(tmp_path / "log"), str(os.getpid()))
        assert done.returncode == 0, done.stdout + done.stderr
        with stratalog.open(tmp_path / "log", read_only=True) as beside:
            assert values(beside.topic("t")) == [b"kept"]
