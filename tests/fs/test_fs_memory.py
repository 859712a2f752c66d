"""Crashing the filesystem in memory: where it stops, and what a survivor is."""

from __future__ import annotations

import random
import threading

import pytest

from stratalog.errors import InvalidArgumentError, StorageError, StoreLockedError
from stratalog.fs import HandleCache, MemoryFileSystem, SimulatedCrash, SurvivorMode
from tests.fs.crashing import EVERY, POWER_CUTS, contents, durable_file, outcomes

# -- where it crashes


def test_crash_at_stops_before_the_call_and_everything_after() -> None:
    fs = durable_file(b"old")
    file = fs.open("/d/f", "w")
    cache = HandleCache(fs, 5)
    lock = fs.lock("/d/.lock", {"pid": 1})
    before = len(fs.calls)
    fs.crash_at(2)
    file.pwrite(b"NEW", 0)
    assert not fs.crashed
    with pytest.raises(SimulatedCrash, match="sync /d/f"):
        file.sync()
    assert fs.crashed
    assert fs.calls[before:] == ["pwrite /d/f", "sync /d/f"]
    for use in (
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"", 0),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        lambda: fs.open("/d/f"),
        lambda: fs.open("/d/g", "x"),
        lambda: fs.list_dir("/d"),
        lambda: fs.stat("/d/f"),
        lambda: fs.exists("/d/f"),
        lambda: fs.make_dir("/e"),
        lambda: fs.make_dir("/"),
        lambda: fs.rename("/d/f", "/d/g"),
        lambda: fs.link("/d/f", "/d/g"),
        lambda: fs.remove("/d/f"),
        lambda: fs.remove_dir("/d"),
        lambda: fs.remove_tree("/d"),
        lambda: fs.sync_dir("/d"),
        lambda: fs.free_bytes("/"),
        lambda: fs.read_file("/d/f"),
        lambda: fs.write_file("/d/f", b"", sync=False),
        lambda: fs.write_atomic("/d/f", b""),
        lambda: fs.lock("/d/.other", {}),
        lambda: fs.lock_holder("/d/.lock"),
        lambda: cache.acquire("/d/f"),
    ):
        with pytest.raises(SimulatedCrash):
            use()
    file.close()
    lock.release()
    assert fs.calls[before:] == ["pwrite /d/f", "sync /d/f"]
    assert fs.survivor("kill", random.Random(0)).read_file("/d/f") == b"NEW"
    assert fs.survivor("drop", random.Random(0)).read_file("/d/f") == b"old"


def test_half_a_write() -> None:
    fs = durable_file(b"oldold")
    fs.crash_at(1, half=True)
    with pytest.raises(SimulatedCrash):
        fs.open("/d/f", "w").pwrite(bytearray(b"NEWNEW"), 0)
    assert fs.survivor("kill", random.Random(0)).read_file("/d/f") == b"NEWold"
    fs = durable_file()
    fs.crash_at(1, half=True)
    with pytest.raises(SimulatedCrash):
        fs.rename("/d/f", "/d/g")
    assert fs.survivor("kill", random.Random(0)).list_dir("/d") == ["f"]


def test_crash_between_calls_and_bad_counts() -> None:
    fs = MemoryFileSystem()
    with pytest.raises(InvalidArgumentError):
        fs.crash_at(0)
    fs.crash()
    with pytest.raises(SimulatedCrash):
        fs.list_dir("/")


def test_every_step_of_a_composed_call_is_a_crash_point() -> None:
    fs = durable_file(b"old", "/d/f")
    before = len(fs.calls)
    fs.write_atomic("/d/f", b"new")
    steps = ["create /d/f.tmp", "pwrite /d/f.tmp", "sync /d/f.tmp", "rename /d/f.tmp -> /d/f", "sync_dir /d"]
    assert fs.calls[before:] == steps
    for n in range(1, len(steps) + 1):
        for mode in EVERY:
            fs = durable_file(b"old")
            fs.crash_at(n)
            with pytest.raises(SimulatedCrash, match=steps[n - 1]):
                fs.write_atomic("/d/f", b"new")
            # Wholly old or wholly new at every point; a ".tmp" may be left.
            seen = outcomes(fs, mode, contents("/d/f"))
            assert seen <= {b"old", b"new"}
            if n <= 4:
                assert seen == {b"old"}
    assert fs.survivor("drop", random.Random(0)).read_file("/d/f") == b"old"


def test_calls_that_fail_or_only_look_are_not_counted() -> None:
    fs = durable_file(b"x")
    before = list(fs.calls)
    fs.read_file("/d/f")
    fs.list_dir("/d")
    fs.make_dir("/d")
    fs.open("/d/f", "a").close()
    fs.rename("/d/f", "/d/f")
    for use in (
        lambda: fs.open("/d/f", "x"),
        lambda: fs.remove("/none"),
        lambda: fs.rename("/none", "/d/f"),
        lambda: fs.remove_dir("/d"),
        lambda: fs.open("/d/f").pwrite(b"", 0),
    ):
        with pytest.raises((OSError, StorageError)):
            use()
    assert fs.calls == before


def test_before_call_sees_every_crash_point_in_one_run() -> None:
    fs = durable_file(b"old")
    seen: list[tuple[str, bytes]] = []

    def look(call: str) -> None:
        seen.append((call, fs.survivor("drop", random.Random(0)).read_file("/d/f")))

    fs.before_call = look
    with fs.open("/d/f", "w") as file:
        file.pwrite(b"new", 0)
        file.sync()
        file.truncate(1)
    assert seen == [("pwrite /d/f", b"old"), ("sync /d/f", b"old"), ("truncate /d/f", b"new")]
    fs.before_call = lambda call: fs.crash()
    with pytest.raises(SimulatedCrash):
        fs.make_dir("/e")
    assert fs.survivor("kill", random.Random(0)).list_dir("/") == ["d"]


def test_background_threads_stop_too() -> None:
    fs = durable_file()
    stopped = []

    def work() -> None:
        try:
            file = fs.open("/d/f", "w")
            for i in range(10**9):
                file.pwrite(b"x", i % 100)
        except SimulatedCrash:
            stopped.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    fs.crash_at(500)
    for thread in threads:
        thread.join(20)
    assert stopped == [True] * 4


# -- survivors


def test_a_killed_process_leaves_the_page_cache_to_a_later_power_cut() -> None:
    fs = durable_file(b"old")
    fs.open("/d/f", "w").pwrite(b"new", 0)
    fs.write_file("/d/g", b"g", sync=True)
    fs.rename("/d/g", "/d/h")
    fs.crash()
    killed = fs.survivor("kill", random.Random(0))
    assert killed.read_file("/d/f") == b"new"
    assert killed.list_dir("/d") == ["f", "h"]
    cut = killed.survivor("drop", random.Random(0))
    assert cut.read_file("/d/f") == b"old"
    assert cut.list_dir("/d") == ["f"]
    assert (
        fs.survivor("kill", random.Random(0)).survivor("drop", random.Random(0)).read_file("/d/f") == b"old"
    )
    killed.open("/d/f", "w").sync()
    assert fs.survivor("torn", random.Random(0)).read_file("/d/f") in (b"old", b"new")
    assert b"new" in outcomes(fs, "torn", contents("/d/f"))
    killed.sync_dir("/d")
    cut = killed.survivor("drop", random.Random(0))
    assert cut.read_file("/d/f") == b"new"
    assert cut.list_dir("/d") == ["f", "h"]


@pytest.mark.parametrize("mode", EVERY)
def test_survivors_are_independent(mode: SurvivorMode) -> None:
    fs = durable_file(b"0" * 100)
    first, second = (fs.survivor(mode, random.Random(i)) for i in range(2))
    with fs.open("/d/f", "w") as file:
        file.pwrite(b"A", 0)
        file.sync()
    with first.open("/d/f", "w") as file:
        file.pwrite(b"B", 0)
        file.sync()
        file.pwrite(b"C", 1)
    first.remove_tree("/d")
    assert fs.read_file("/d/f")[:2] == b"A0"
    assert second.read_file("/d/f") == b"0" * 100
    third = second.survivor("drop", random.Random(0))
    second.write_file("/d/f", b"", sync=True)
    assert third.read_file("/d/f") == b"0" * 100


@pytest.mark.parametrize("mode", POWER_CUTS)
def test_what_survives_a_power_cut_is_durable(mode: SurvivorMode) -> None:
    fs = durable_file(b"o" * 4000)
    fs.open("/d/f", "w").pwrite(b"n" * 4000, 100)
    fs.write_file("/d/g", b"g", sync=True)
    fs.rename("/d/g", "/d/h")
    for seed in range(20):
        after = fs.survivor(mode, random.Random(seed))
        again = after.survivor("drop", random.Random(0))
        assert again.list_dir("/d") == after.list_dir("/d")
        assert again.read_file("/d/f") == after.read_file("/d/f")
        assert fs.survivor(mode, random.Random(seed)).read_file("/d/f") == after.read_file("/d/f")


def test_new_files_in_a_survivor_get_numbers_of_their_own() -> None:
    after = durable_file(b"x").survivor("drop", random.Random(0))
    after.write_file("/d/g", b"", sync=False)
    assert len({after.stat(path).inode for path in ("/", "/d", "/d/f", "/d/g")}) == 4


def test_a_crash_frees_the_locks() -> None:
    fs = durable_file()
    fs.lock("/d/.lock", {"pid": 7})
    with pytest.raises(StoreLockedError):
        fs.lock("/d/.lock", {"pid": 8})
    fs.sync_dir("/d")
    for mode in EVERY:
        after = fs.survivor(mode, random.Random(0))
        assert after.exists("/d/.lock")
        assert after.lock_holder("/d/.lock") is None
        after.lock("/d/.lock", {"pid": 9})
        assert after.lock_holder("/d/.lock") == {"pid": 9}


def test_paths_are_read_from_one_root() -> None:
    fs = MemoryFileSystem(capacity_bytes=1000)
    fs.make_dir("a//b/./c/../c")
    fs.write_file("/a/b/c/f", b"12345", sync=False)
    assert fs.read_file("a/b/c/f") == b"12345"
    assert fs.list_dir(".") == fs.list_dir("/") == ["a"]
    assert fs.free_bytes("/") == 995
    assert fs.open("/a/b/c/f").fileno() == -1
    with pytest.raises(FileNotFoundError):
        fs.stat("")
    fs.remove_tree("/a")
    with pytest.raises(StorageError, match="busy"):
        fs.remove_dir("/")
    assert fs.list_dir("/") == []
