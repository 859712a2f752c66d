"""Disk space reserved ahead of the active segment: taken, given back, and never a reason to fail."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.fs import FailingFileSystem, Fault, FileSystem, RealFileSystem
from stratalog.log.write import active

ROWS = [Record(bytes(1000)) for _ in range(100)]


def segment_log(data: Path, base: int = 0) -> Path:
    return data / "t-0" / f"{base:020d}.log"


def blocks_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def opened(data: Path, fs: FileSystem | None = None) -> Store:
    return stratalog.open(data, config={"log.segment.bytes": 64 << 20}, fs=fs or RealFileSystem())


def reserves(tmp_path: Path) -> bool:
    with RealFileSystem().open(str(tmp_path / "probe"), "x") as file:
        return file.reserve(0, 1 << 16)


def fill(store: Store, lists: int) -> None:
    topic = store.topic("t") if "t" in store.topics() else store.create_topic("t")
    for _ in range(lists):
        topic.append_many(ROWS)


def test_small_segments_take_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "d") as store:
        fill(store, 5)
        log = segment_log(tmp_path / "d")
        assert blocks_bytes(log) < log.stat().st_size + 65536


def test_room_is_taken_ahead_and_given_back_at_the_roll(tmp_path: Path) -> None:
    with opened(tmp_path / "d") as store:
        fill(store, 25)
        log = segment_log(tmp_path / "d")
        size = log.stat().st_size
        if reserves(tmp_path):
            assert blocks_bytes(log) > size + 65536
            assert blocks_bytes(log) <= 2 * size + 65536
        store.topic("t").roll()
        assert log.stat().st_size == size
        assert blocks_bytes(log) < size + 65536
        assert len(list(store.topic("t").read())) == 2500


def test_a_clean_stop_and_a_crashed_one_before_it_leave_nothing_behind(tmp_path: Path) -> None:
    with opened(tmp_path / "d") as store:
        fill(store, 25)
    log = segment_log(tmp_path / "d")
    size = log.stat().st_size
    assert blocks_bytes(log) < size + 65536
    with RealFileSystem().open(str(log), "w") as file:  # what a killed process leaves
        file.reserve(size, 4 << 20)
    with opened(tmp_path / "d") as store:
        store.topic("t").append(b"one more")
    assert blocks_bytes(log) < log.stat().st_size + 65536
    with opened(tmp_path / "d") as store:
        assert len(list(store.topic("t").read())) == 2501


@pytest.mark.parametrize("operation", ["reserve", "free_bytes", "truncate"])
def test_no_append_fails_because_of_the_hint(
    tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(active, "RESERVE_FROM_BYTES", 100_000)
    fs = FailingFileSystem(RealFileSystem(), [Fault(operation, f"{tmp_path}/d/t-0*", errno.ENOSPC)])
    with opened(tmp_path / "d", fs) as store:
        fill(store, 10)
        store.topic("t").roll()
        fill(store, 1)
        assert len(list(store.topic("t").read())) == 1100
        assert [segment.next_offset for segment in store.topic("t").segments()] == [1000, 1100]


def test_a_disk_that_is_nearly_full_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealFileSystem, "free_bytes", lambda self, path: 100 << 20)
    fs = FailingFileSystem(RealFileSystem())
    with opened(tmp_path / "d", fs) as store:
        fill(store, 25)
        assert not [call for call in fs.calls if call.startswith("reserve")]
