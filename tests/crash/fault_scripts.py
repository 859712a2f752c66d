"""What `test_faults` runs in processes of their own, because it changes limits, mounts or forks."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time

import stratalog
from stratalog.errors import DiskFullError, ForkedError, StorageError, StoreLockedError
from stratalog.fs import RealFileSystem
from stratalog.testing import read_raw

SETTINGS = {"segment.bytes": 256 << 10}


def full_disk(directory: str) -> None:
    """Append until the disk is full; read; make room; go on."""
    filler = os.path.join(directory, "filler")
    with open(filler, "wb") as file:
        file.write(bytes(1 << 20))
    _fill(directory, DiskFullError, lambda: os.unlink(filler))


def file_size_limit(directory: str) -> None:
    """The same where nothing can be mounted: no file may grow past a limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    _fill(directory, StorageError, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))


def _fill(directory: str, expected: type[StorageError], make_room) -> None:
    path = os.path.join(directory, "log")
    store = stratalog.open(path)
    topic = store.create_topic("t", config=SETTINGS)
    kept: list[bytes] = []

    def append(sync: bool) -> None:
        value = b"%06d" % len(kept) + os.urandom(5000)
        topic.append(value, sync=sync)
        kept.append(value)

    refused = 0
    while not refused:
        try:
            append(sync=len(kept) % 10 == 0)
        except expected:
            refused += 1
    full_after = len(kept)
    for _ in range(3):
        try:
            append(sync=False)
        except expected:
            refused += 1
    assert [record.value for record in topic.read()] == kept
    read_raw(RealFileSystem(), f"{path}/t-0")
    make_room()
    for _ in range(20):
        append(sync=True)
    assert [record.value for record in topic.read()] == kept
    store.close()
    with stratalog.open(path) as store:
        assert [record.value for record in store.topic("t").read()] == kept
    print(f"full after {full_after} records, refused {refused}, {len(kept)} kept")


def many_segments(parent: str, count: str, handles: str) -> None:
    """So many segments, so few file handles: open, read through, read here and there, append."""
    total = int(count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(handles), int(handles)))
    directory = tempfile.mkdtemp(prefix="stratalog-segments-", dir=parent)
    try:
        began = time.monotonic()
        with stratalog.open(f"{directory}/log", background=False) as store:
            topic = store.create_topic("t", config={"segment.records": 1})
            for at in range(total):
                topic.append(b"%d" % at)
        made = time.monotonic()
        with stratalog.open(f"{directory}/log") as store:
            opened = time.monotonic()
            topic = store.topic("t")
            assert len(topic.segments()) == total
            assert [record.value for record in topic.read()] == [b"%d" % at for at in range(total)]
            rng = random.Random(1)
            for at in (rng.randrange(total) for _ in range(2000)):
                assert next(topic.read(0, at)).value == b"%d" % at
            topic.append(b"more", sync=True)
            assert store.open_files() < int(handles)
        done = time.monotonic()
        print(
            f"{total} segments with {handles} handles: made in {made - began:.1f} s, opened in"
            f" {opened - made:.1f} s, read in {done - opened:.1f} s"
        )
    finally:
        shutil.rmtree(directory)


def fork(directory: str) -> None:
    """In a forked child every use of the parent's store raises; the parent goes on."""
    with stratalog.open(f"{directory}/log") as store:
        topic = store.create_topic("t")
        topic.append(b"before", sync=True)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            for use in (
                lambda: topic.append(b"no"),
                lambda: topic.append_many([stratalog.Record(b"no")]),
                lambda: list(topic.read()),
                store.topics,
                lambda: store.create_topic("u"),
            ):
                try:
                    use()
                    print("nothing")
                except ForkedError as error:
                    print(type(error).__name__)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
        topic.append(b"after", sync=True)
        assert [record.value for record in topic.read()] == [b"before", b"after"]


def second_opener(directory: str, holder: str) -> None:
    """From another process: who holds it."""
    try:
        stratalog.open(directory)
    except StoreLockedError as error:
        if error.pid != int(holder) or not error.control:
            raise
        return
    raise AssertionError("two writers")


if __name__ == "__main__":
    import stratalog.store

    {
        "full-disk": full_disk,
        "file-size-limit": file_size_limit,
        "many-segments": many_segments,
        "fork": fork,
        "second-opener": second_opener,
    }[sys.argv[1]](*sys.argv[2:])
