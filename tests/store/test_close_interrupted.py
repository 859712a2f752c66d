"""A close that Ctrl-C or an error cuts short: the locks go, and nothing is called clean too soon."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.format.metadata import CLEAN_SHUTDOWN
from stratalog.fs import DirectoryLock, HandleCache, MemoryFileSystem
from stratalog.fs.lock import holder
from stratalog.store.logdir import LogDir
from stratalog.store.partitions import Partitions
from stratalog.store.tier.tiering import Archives
from tests.store.pausing import PausingFileSystem


def cut_once(act: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """Raise instead of the first call."""
    left = [error]

    def cut(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return act(*arguments)

    return cut


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (Archives, "close"),
        (LogDir, "release"),
        (DirectoryLock, "release"),
        (HandleCache, "close"),
        (Partitions, "close_writers"),
        (LogDir, "mark_clean"),
    ],
)
def test_an_interrupted_close_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    threads = threading.active_count()
    store = stratalog.open([tmp_path / "a", tmp_path / "b"])
    store.create_topic("t", 2).append(b"one", b"k")
    monkeypatch.setattr(where, name, cut_once(getattr(where, name), KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert [holder(str(tmp_path / each / ".lock")) for each in "ab"] == [None, None]
    assert threading.active_count() == threads
    store.close()
    with stratalog.open([tmp_path / "a", tmp_path / "b"]) as again:
        assert [record.value for record in again.topic("t").read()] == [b"one"]


def test_a_second_close_finishes_one_that_was_interrupted_while_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stratalog.open(tmp_path)
    store.create_topic("t", 1).append(b"one")
    monkeypatch.setattr(threading.Thread, "join", cut_once(threading.Thread.join, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        store.close()
    store.close()
    assert holder(str(tmp_path / ".lock")) is None
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def test_a_lock_is_given_back_when_its_release_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DirectoryLock.acquire(str(tmp_path / ".lock"), {"pid": os.getpid()})
    monkeypatch.setattr(os, "ftruncate", cut_once(os.ftruncate, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    DirectoryLock.acquire(str(tmp_path / ".lock"), {"pid": os.getpid()}).release()


def test_a_directory_whose_checkpoints_were_not_written_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stratalog.open(tmp_path, background=False)
    store.create_topic("t", 1).append(b"one")
    monkeypatch.setattr(Partitions, "_checkpoint", cut_once(Partitions._checkpoint, MemoryError()))
    with pytest.raises(MemoryError):
        store.close()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert holder(str(tmp_path / ".lock")) is None


@pytest.mark.parametrize("action", ["open", "close"])
def test_no_thread_writes_after_a_second_interrupt(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(fs: Any) -> stratalog.Store:
        config = {"num.recovery.threads.per.data.dir": 2}
        return stratalog.open("/data", config, fs=fs, background=False)

    def working() -> list[threading.Thread]:
        return [
            each for each in threading.enumerate() if each.name.startswith(("stratalog-o", "stratalog-s"))
        ]

    disk = MemoryFileSystem()
    store = opened(disk)
    topic = store.create_topic("t", 20)
    for partition in range(20):
        topic.append(b"one", partition=partition)
    fs = PausingFileSystem(disk.survivor("kill", random.Random(0)))
    store.close()
    act: Callable[[], object] = partial(opened, fs)
    if action == "close":
        store = opened(fs)
        store.topic("t").append(b"two", partition=7)
        act = store.close
    result, join = Future.result, threading.Thread.join
    with fs.pause_at("sync_dir", "/data/t-7") as pause:

        def first(future: Future[Any], *arguments: Any) -> Any:
            pause.wait_until_reached()
            raise KeyboardInterrupt

        def second(thread: threading.Thread, *arguments: Any) -> None:
            monkeypatch.setattr(threading.Thread, "join", third)
            raise KeyboardInterrupt

        def third(thread: threading.Thread, *arguments: Any) -> None:
            pause.resume()
            join(thread, *arguments)

        monkeypatch.setattr(Future, "result", first)
        monkeypatch.setattr(threading.Thread, "join", second)
        with pytest.raises(KeyboardInterrupt):
            act()
        left = working()
    monkeypatch.setattr(Future, "result", result)
    for thread in left:
        join(thread)
    assert not left
