"""A read-only store finds a partition again that its holder moved to another log directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import stratalog
from stratalog.fs import FileSystem, MemoryFileSystem, RealFileSystem
from stratalog.fs.contract import FileStat
from stratalog.log.read import follower
from stratalog.log.segment.directory_state import settled_view
from tests.store.pausing import PausingFileSystem, Running

DIRS = ["/one", "/two"]


def test_a_reader_goes_on_where_the_partition_was_moved_to() -> None:
    fs = MemoryFileSystem()
    with stratalog.open(DIRS, fs=fs, background=False) as store:
        topic = store.create_topic("t")
        for at in range(30):
            topic.append(b"%d" % at)
            if at % 10 == 9:
                topic.roll()
        with stratalog.open(DIRS, fs=fs, read_only=True) as beside:
            reader = beside.topic("t")
            assert reader.high_watermark() == 30
            under_way = reader.read()
            assert next(under_way).offset == 0
            here = "/one" if fs.exists("/one/t-0") else "/two"
            there = "/two" if here == "/one" else "/one"
            store.move_partition("t", 0, there)
            assert not fs.exists(f"{here}/t-0")
            topic.append(b"30")
            assert [record.offset for record in under_way] == list(range(1, 30))
            assert [record.offset for record in reader.read()] == list(range(31))
            assert reader.scan().read_all().num_rows == 31
            assert all(info.path.startswith(there) for info in reader.segments())


class MovingFileSystem(RealFileSystem):
    """Calls ``then`` once: when ``path`` was listed, or before it is looked at."""

    def __init__(self, path: str, then: Callable[[], None], *, stat: bool) -> None:
        super().__init__()
        self._path, self._then, self._stat, self._done = path, then, stat, False

    def _act(self) -> None:
        if not self._done:
            self._done = True
            Running(self._then).result()

    def list_dir(self, path: str) -> list[str]:
        found = super().list_dir(path)
        if not self._stat and path == self._path:
            self._act()
        return found

    def stat(self, path: str) -> FileStat:
        if self._stat and path == f"{self._path}/t-0":
            self._act()
        return super().stat(path)


@pytest.mark.parametrize("stat", [False, True])
def test_a_partition_that_moves_while_a_reader_opens_the_store_is_found(tmp_path: Path, stat: bool) -> None:
    """From a directory not yet listed to one already listed, or between its listing and a look at it."""
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    with stratalog.open(places, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"one")
        old = store.log_dirs()
        where = next(each.path for each in old if (Path(each.path) / "t-0").exists())
        other = next(path for path in places if path != where)
        order = [where, other] if stat else [other, where]
        fs = MovingFileSystem(order[0], lambda: store.move_partition("t", 0, other), stat=stat)
        with stratalog.open(order, read_only=True, fs=fs) as reader:
            assert [record.value for record in reader.topic("t").read()] == [b"one"]


def test_a_move_that_ends_while_a_reader_opens_the_store(tmp_path: Path) -> None:
    """Both directories are listed; by the time the mark on the old one is looked for, it is gone."""
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    pausing = PausingFileSystem(RealFileSystem())
    with stratalog.open(places, background=False, fs=cast(FileSystem, pausing)) as store:
        store.create_topic("t").append(b"one")
        where = next(path for path in places if (Path(path) / "t-0").exists())
        other = next(path for path in places if path != where)
        with pausing.pause_at("rename", f"{where}/t-0*-delete") as pause:
            moving = Running(store.move_partition, "t", 0, other)
            pause.wait_until_reached()
            assert (Path(where) / "t-0").exists()

            def finish() -> None:
                pause.resume()
                moving.result()

            fs = FinishingFileSystem(f"{where}/t-0/stratalog.moved", finish)
            with stratalog.open(places, read_only=True, fs=fs) as reader:
                assert [record.value for record in reader.topic("t").read()] == [b"one"]


class FinishingFileSystem(RealFileSystem):
    """Calls ``then`` before ``path`` is looked at for the first time."""

    def __init__(self, path: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._path, self._then = path, then

    def stat(self, path: str) -> FileStat:
        if path == self._path:
            self._path = ""
            Running(self._then).result()
        return super().stat(path)


def test_a_thread_beside_a_look_sees_no_end_that_its_segments_do_not_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several threads share a read-only store: one reads while another looks at what is new."""
    fs = MemoryFileSystem()
    with stratalog.open("a", fs=fs, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"0", sync=True)
        with stratalog.open("a", fs=fs, read_only=True, background=False) as reader:
            view = reader.partitions.view("t", 0)
            topic.append(b"1")
            topic.roll()
            topic.append(b"2", sync=True)
            seen: list[tuple[int, int | None]] = []
            plain = settled_view

            def looking(*args: Any) -> Any:
                seen.append((view.end_offset(), view.segments()[-1].next_offset))
                return plain(*args)

            monkeypatch.setattr(follower, "settled_view", looking)
            view.refresh()
            assert seen == [(1, 1)]
            assert view.end_offset() == 3
