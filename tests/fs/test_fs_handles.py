"""The handle cache: never more files open than allowed while pins allow it, never a pinned one closed."""

from __future__ import annotations

import gc
import os
import random
import resource
import threading
from pathlib import Path

import pytest

from stratalog.errors import ClosedError, InvalidArgumentError, StorageError
from stratalog.fs import File, HandleCache, MemoryFileSystem, RealFileSystem, default_limit


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def make_files(root: Path, count: int) -> list[str]:
    paths = [str(root / f"{i:05}") for i in range(count)]
    for i, path in enumerate(paths):
        Path(path).write_bytes(b"%d" % i)
    return paths


def test_a_thousand_files_under_a_limit_of_fifty(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 1000)
    gc.collect()  # what other tests dropped must not close in the middle
    before = open_descriptors()
    cache = HandleCache(RealFileSystem(), 50)
    rng = random.Random(1)
    for turn in range(5000):
        i = rng.randrange(1000)
        with cache.pinned(paths[i]) as file:
            assert file.pread(10, 0) == b"%d" % i
        if turn % 100 == 0:
            assert open_descriptors() - before <= 50
    stats = cache.stats()
    assert (stats.open, stats.pinned, stats.over_limit) == (50, 0, 0)
    assert stats.hits + stats.misses == 5000
    assert stats.evictions == stats.misses - 50
    assert stats.hits > 100
    cache.close()
    assert open_descriptors() == before


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    a, b, c = make_files(tmp_path, 3)
    cache = HandleCache(RealFileSystem(), 2)
    for path in (a, b, a, c, a):
        cache.release(cache.acquire(path))
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.evictions) == (2, 3, 1)
    cache.close()


def test_pins_are_respected(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 20)
    cache = HandleCache(RealFileSystem(), 5)
    pinned = [cache.acquire(path) for path in paths[:4]]
    for path in paths[4:]:
        with cache.pinned(path):
            pass
    assert cache.stats().open == 5
    for i, file in enumerate(pinned):
        assert file.pread(10, 0) == b"%d" % i
    # All places pinned and nobody to ask: the limit gives way, and the extra file goes at its release.
    pinned.append(cache.acquire(paths[4]))
    extra = cache.acquire(paths[5])
    assert (cache.stats().open, cache.stats().over_limit) == (6, 1)
    cache.release(extra)
    assert cache.stats().open == 5
    with pytest.raises(StorageError):
        extra.pread(1, 0)
    for file in pinned:
        cache.release(file)
    assert cache.stats().pinned == 0
    cache.close()


def test_two_pins_need_two_releases(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    cache = HandleCache(RealFileSystem(), 5)
    first, second = cache.acquire(path), cache.acquire(path)
    assert first is second
    cache.release(first)
    cache.close()
    assert second.pread(1, 0) == b"0"
    cache.release(second)
    with pytest.raises(StorageError, match="closed"):
        second.pread(1, 0)
    with pytest.raises(InvalidArgumentError):
        cache.release(second)
    with pytest.raises(ClosedError):
        cache.acquire(path)


def test_pressure_asks_for_pins_back(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 10)
    cache = HandleCache(RealFileSystem(), 3)
    held: list[File] = []
    asked = 0

    def give_back() -> bool:
        nonlocal asked
        asked += 1
        if not held:
            return False
        cache.release(held.pop(0))
        return True

    cache.on_pressure = give_back
    for path in paths:
        file = cache.acquire(path)
        held.append(file)
    assert (len(held), asked) == (3, 7)
    stats = cache.stats()
    assert (stats.open, stats.pinned, stats.over_limit) == (3, 3, 0)
    keep, held[:] = list(held), []
    cache.acquire(paths[0])
    assert (asked, cache.stats().over_limit) == (8, 1)
    for file in keep:
        cache.release(file)
    cache.close()


def test_a_callback_that_only_promises_does_not_hang_us(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 2)
    cache = HandleCache(RealFileSystem(), 1)
    cache.on_pressure = lambda: True
    first, second = cache.acquire(paths[0]), cache.acquire(paths[1])
    assert cache.stats().over_limit == 1
    cache.release(first)
    cache.release(second)
    cache.close()


def test_forget(tmp_path: Path) -> None:
    a, b = make_files(tmp_path, 2)
    fs = RealFileSystem()
    cache = HandleCache(fs, 5)
    cache.release(cache.acquire(a))
    fs.rename(b, a)
    with cache.pinned(a) as stale:
        assert stale.pread(1, 0) == b"0"
        cache.forget(a)
        with cache.pinned(a) as fresh:
            assert fresh.pread(1, 0) == b"1"
            assert stale.pread(1, 0) == b"0"
    assert cache.stats().open == 1
    fs.remove(a)
    cache.forget(a)
    cache.forget("never seen")
    assert cache.stats().open == 0
    with pytest.raises(FileNotFoundError):
        cache.acquire(a)
    assert cache.stats().open == 0
    cache.close()


def test_a_forget_during_an_open_is_not_missed() -> None:
    fs = MemoryFileSystem()
    fs.write_file("/a", b"old", sync=False)
    fs.write_file("/b", b"new", sync=False)
    cache = HandleCache(fs, 5)
    plain_open = fs.open

    def open_and_replace(path: str, mode: str = "r") -> File:
        file = plain_open(path, mode)  # type: ignore[arg-type]
        fs.open = plain_open  # type: ignore[method-assign]
        fs.rename("/b", "/a")
        cache.forget("/a")
        return file

    fs.open = open_and_replace  # type: ignore[method-assign,assignment]
    with cache.pinned("/a") as file:
        assert file.pread(10, 0) == b"new"
    assert cache.stats().open == 1


def test_modes_share_where_they_can(tmp_path: Path) -> None:
    (path,) = make_files(tmp_path, 1)
    cache = HandleCache(RealFileSystem(), 5)
    reader = cache.acquire(path)
    writer = cache.acquire(path, "w")
    assert writer is not reader
    writer.pwrite(b"W", 0)
    assert reader.pread(1, 0) == b"W"
    assert cache.acquire(path) is writer
    assert cache.acquire(path, "a") is writer
    cache.release(reader)
    assert cache.stats().open == 1
    with pytest.raises(FileExistsError):
        cache.acquire(path, "x")
    made = cache.acquire(path + ".new", "x")
    assert cache.acquire(path + ".new") is made
    for file in (writer, writer, writer, made, made):
        cache.release(file)
    cache.close()


def test_a_reader_that_a_writer_replaces_is_closed(tmp_path: Path) -> None:
    a, b = make_files(tmp_path, 2)
    cache = HandleCache(RealFileSystem(), 5)
    idle = cache.acquire(a)
    cache.release(idle)
    used = cache.acquire(b)
    for path in (a, b):
        cache.release(cache.acquire(path, "w"))
    with pytest.raises(StorageError, match="closed"):
        idle.pread(1, 0)
    assert used.pread(1, 0) == b"1"
    assert cache.stats().open == 3
    cache.forget_below(str(tmp_path))
    assert cache.stats().open == 1
    cache.release(used)
    assert cache.stats().open == 0
    made = cache.acquire(a + ".new", "x")
    cache.release(made)
    os.remove(a + ".new")
    cache.release(cache.acquire(a + ".new", "x"))
    assert cache.stats().open == 1
    with pytest.raises(StorageError, match="closed"):
        made.pread(1, 0)
    cache.close()


def test_when_the_process_runs_out_first_idle_files_make_room(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cache = HandleCache(RealFileSystem(), 1000)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    ceiling = next(n for n in range(1000) if n - sum(fd < n for fd in used) == 20)  # room for twenty
    resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
    try:
        for i, path in enumerate(paths):
            with cache.pinned(path) as file:
                assert file.pread(5, 0) == b"%d" % i
        assert cache.stats().open < 60
        pins: list[File] = []

        def pin_all() -> None:
            for path in paths:
                file = cache.acquire(path)
                pins.append(file)

        with pytest.raises(StorageError, match="Too many open files"):
            pin_all()
        for file in pins:
            cache.release(file)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    cache.close()


def test_default_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert default_limit() == 128
        assert HandleCache(RealFileSystem()).limit == 128
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
        assert default_limit() == 16
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 16 <= default_limit() <= 8192
    with pytest.raises(InvalidArgumentError):
        HandleCache(RealFileSystem(), 0)


def test_threads_hammer_it(tmp_path: Path) -> None:
    paths = make_files(tmp_path, 60)
    gc.collect()  # what other tests dropped must not close in the middle
    before = open_descriptors()
    cache = HandleCache(RealFileSystem(), 10)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(1500):
                i = rng.randrange(60)
                with cache.pinned(paths[i], rng.choice(("r", "r", "w"))) as file:  # type: ignore[arg-type]
                    if file.pread(10, 0) != b"%d" % i:
                        wrong.append(f"{paths[i]} read wrong")
                    if rng.random() < 0.1:
                        cache.forget(paths[rng.randrange(60)])
        except BaseException as error:
            wrong.append(repr(error))
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    stats = cache.stats()
    assert stats.pinned == 0
    assert stats.open <= 10
    held = [cache.acquire(path) for path in paths[:10]]
    assert cache.stats().over_limit == stats.over_limit, "a place is lost"
    for file in held:
        cache.release(file)
    cache.close()
    assert cache.stats().open == 0
    assert open_descriptors() == before
