"""A clean open takes the active segment's keys from the `.keyindex` that the stop left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.fs import RealFile

KEYS = 50
RECORDS = 3000


def opened(path: Path) -> Store:
    return stratalog.open(path, background=False)


def key_of(i: int) -> bytes:
    return b"key %d" % (i * 7919 % KEYS)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with opened(tmp_path / "d") as store:
        topic = store.create_topic("t", config={"key.index.enable": True})
        # With times of their own: batches of one millisecond share an entry of the time index.
        topic.append_many([Record(b"%d" % i, key_of(i), (), 1000 + i) for i in range(RECORDS)])
        topic.append(b"keyless", timestamp=1000 + RECORDS)
    return tmp_path / "d"


def check(store: Store, more: int = 0) -> None:
    topic = store.topic("t")
    for number in range(KEYS):
        key = b"key %d" % number
        offsets = [i for i in range(RECORDS) if key_of(i) == key]
        offsets += [RECORDS + 1 + i for i in range(more) if key_of(i) == key]
        assert [record.offset for record in topic.history(key)] == offsets
    assert topic.get(b"no such key") is None


@contextmanager
def log_bytes_read(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of all reads of logs."""
    sizes: list[int] = []
    pread, pread_into = RealFile.pread, RealFile.pread_into

    def read(self: RealFile, size: int, offset: int) -> bytes:
        data = pread(self, size, offset)
        sizes.append(len(data) if self.path.endswith(".log") else 0)
        return data

    def read_into(self: RealFile, buffer: bytearray | memoryview, offset: int) -> int:
        size = pread_into(self, buffer, offset)
        sizes.append(size if self.path.endswith(".log") else 0)
        return size

    with patch.context() as patched:
        patched.setattr(RealFile, "pread", read)
        patched.setattr(RealFile, "pread_into", read_into)
        yield sizes


def test_the_log_is_not_read_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with log_bytes_read(monkeypatch) as sizes, opened(data) as store:
        few = sum(sizes)
        check(store)
    for kind in ("keyindex", "seal"):
        copy = data.with_name(kind)
        shutil.copytree(data, copy)
        (copy / "t-0" / f"{0:020d}.{kind}").unlink()
        with log_bytes_read(monkeypatch) as sizes, opened(copy) as store:
            assert sum(sizes) > few + 10_000
            check(store)


def test_it_goes_on_from_there(data: Path) -> None:
    for more in (10, 20):
        with opened(data) as store:
            store.topic("t").append_many([Record(b"more", key_of(i)) for i in range(more - 10, more)])
            check(store, more)
    with opened(data) as store:
        check(store, 20)
        store.topic("t").roll()
        check(store, 20)


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "other segment"])
def test_one_that_is_wrong_is_not_believed(data: Path, harm: str) -> None:
    path = data / "t-0" / f"{0:020d}.keyindex"
    good = path.read_bytes()
    bad = bytearray(good)
    if harm == "flip":
        bad[len(bad) // 2] ^= 1
    elif harm == "cut":
        del bad[-5:]
    elif harm == "empty":
        bad.clear()
    else:
        with opened(data.with_name("other")) as store:
            topic = store.create_topic("t", config={"key.index.enable": True})
            topic.append_many([Record(b"x", b"key %d" % i) for i in range(RECORDS)])
        bad = bytearray((data.with_name("other") / "t-0" / path.name).read_bytes())
    path.write_bytes(bad)
    with opened(data) as store:
        check(store)
        store.topic("t").append(b"one more", b"new")
    with opened(data) as store:
        assert store.topic("t").get(b"new") is not None
        check(store)


@pytest.mark.parametrize("roll", [False, True])
def test_a_topic_that_gave_its_key_index_up_leaves_no_old_one(data: Path, roll: bool) -> None:
    with opened(data) as store:
        store.alter_topic("t", {"key.index.enable": None})
        store.topic("t").append_many([Record(b"%d" % i, key_of(i)) for i in range(KEYS)])
        if roll:
            store.topic("t").roll()
    assert not list(data.glob("t-0/*.keyindex"))
    with opened(data) as store:
        assert stratalog.verify(store).ok
        check(store, KEYS)
        store.alter_topic("t", {"key.index.enable": True})
    with opened(data) as store:
        check(store, KEYS)
        assert stratalog.verify(store).ok
