"""Crashing the filesystem in memory: where, and what the next boot finds."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidArgumentError, StorageError, StoreLockedError
from stratalog.fs import HandleCache, MemoryFileSystem, SimulatedCrash, SurvivorMode

POWER_CUTS: tuple[SurvivorMode, ...] = ("drop", "torn", "reorder")
EVERY: tuple[SurvivorMode, ...] = ("kill", *POWER_CUTS)
ROUNDS = 300


def outcomes(fs: MemoryFileSystem, mode: SurvivorMode, look: Callable[[MemoryFileSystem], object]) -> set:
    """Everything ``look`` sees in many survivors."""
    return {look(fs.survivor(mode, random.Random(seed))) for seed in range(ROUNDS)}


def contents(path: str) -> Callable[[MemoryFileSystem], bytes | None]:
    return lambda fs: fs.read_file(path) if fs.exists(path) else None


def durable_file(data: bytes = b"", path: str = "/d/f") -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_dir("/d")
    fs.sync_dir("/")
    fs.write_file(path, data, sync=True)
    fs.sync_dir("/d")
    return fs


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


# -- what survives of a file


@pytest.mark.parametrize("mode", EVERY)
def test_synced_data_and_names_always_survive(mode: SurvivorMode) -> None:
    fs = durable_file(b"a" * 5000)
    with fs.open("/d/f", "w") as file:
        file.pwrite(b"b" * 100, 4000)
        file.truncate(4500)
        file.sync()
    expected = b"a" * 4000 + b"b" * 100 + b"a" * 400
    assert outcomes(fs, mode, contents("/d/f")) == {expected}


def test_unsynced_data_is_lost_or_torn() -> None:
    old, new = b"o" * 2048, b"N" * 2048
    fs = durable_file(old)
    fs.open("/d/f", "w").pwrite(new, 0)
    assert outcomes(fs, "kill", contents("/d/f")) == {new}
    assert outcomes(fs, "drop", contents("/d/f")) == {old}
    assert outcomes(fs, "torn", contents("/d/f")) == {new[:n] + old[n:] for n in range(0, 2049, 512)}
    every = {b"".join((new if mask >> i & 1 else old)[:512] for i in range(4)) for mask in range(16)}
    assert outcomes(fs, "reorder", contents("/d/f")) == every


def test_unsynced_appends() -> None:
    fs = durable_file(b"head")
    with fs.open("/d/f", "w") as file:
        file.pwrite(b"x" * 1000, 4)
        file.pwrite(b"y" * 1000, 1004)
    whole = b"head" + b"x" * 1000 + b"y" * 1000
    torn = outcomes(fs, "torn", contents("/d/f"))
    assert torn == {whole[:n] for n in (4, 512, 1004, 1024, 1536, 2004)}
    reordered = outcomes(fs, "reorder", contents("/d/f"))
    assert len(reordered) > 100
    # Longer than its data: zeros where bytes were lost, with later bytes behind them.
    assert any(b"\0" * 512 + b"y" in found for found in reordered)
    for found in reordered:
        assert found[:4] == b"head"
        assert all(byte in (0, want) for byte, want in zip(found, whole, strict=False))


def test_a_lost_truncation_brings_the_old_bytes_back_and_a_kept_one_never_does() -> None:
    fs = durable_file(b"s" * 3000)
    with fs.open("/d/f", "w") as file:
        file.truncate(1000)
        file.pwrite(b"n" * 100, 2500)
    seen = outcomes(fs, "reorder", contents("/d/f"))
    assert b"s" * 3000 in seen
    assert b"s" * 1000 in seen
    for found in seen - {b"s" * 3000}:
        assert found[:1000] == b"s" * 1000
        assert b"s" not in found[1000:]


changes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3000), st.integers(1, 1500)),
        st.tuples(st.just("truncate"), st.integers(0, 4000), st.just(0)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@given(changes, st.integers(0, 2**32), st.sampled_from(POWER_CUTS))
def test_no_byte_is_ever_invented(steps: list, seed: int, mode: SurvivorMode) -> None:
    fs = durable_file()
    file = fs.open("/d/f", "w")
    model = bytearray()
    had: list[set[int]] = [{0} for _ in range(4500)]  # the values each byte has had since the last sync
    sizes = {0}
    for number, (kind, at, length) in enumerate(steps, 1):
        if kind == "sync":
            file.sync()
            had = [{0} for _ in had]
            sizes = set()
        elif kind == "truncate":
            file.truncate(at)
            model[at:] = bytes(max(0, at - len(model)))
        else:
            file.pwrite(bytes([number]) * length, at)
            model.extend(bytes(max(0, at + length - len(model))))
            model[at : at + length] = bytes([number]) * length
        for i, byte in enumerate(model):
            had[i].add(byte)
        sizes.add(len(model))
        assert file.pread(20_000, 0) == model
    rng = random.Random(seed)
    for _ in range(3):
        found = fs.survivor(mode, rng).read_file("/d/f")
        assert min(sizes) <= len(found) <= max(sizes)
        assert all(byte in had[i] for i, byte in enumerate(found))
        if not steps or steps[-1][0] == "sync":
            assert found == model
        if mode == "drop":
            assert len(found) in sizes
    assert fs.survivor("kill", rng).read_file("/d/f") == model


# -- what survives of names


def test_a_created_file_may_vanish_until_its_directory_is_synced() -> None:
    fs = durable_file()
    fs.write_file("/d/new", b"data", sync=True)
    assert outcomes(fs, "drop", contents("/d/new")) == {None}
    for mode in ("torn", "reorder"):
        assert outcomes(fs, mode, contents("/d/new")) == {None, b"data"}
    fs.sync_dir("/d")
    for mode in POWER_CUTS:
        assert outcomes(fs, mode, contents("/d/new")) == {b"data"}


def test_a_name_without_its_data() -> None:
    fs = durable_file()
    fs.write_file("/d/new", b"data", sync=False)
    fs.sync_dir("/d")
    assert outcomes(fs, "drop", contents("/d/new")) == {b""}
    assert outcomes(fs, "torn", contents("/d/new")) == {b"", b"data"}
    assert {b"", b"data", b"\0\0\0\0"} <= outcomes(fs, "reorder", contents("/d/new"))


def test_a_directory_needs_the_one_above() -> None:
    fs = MemoryFileSystem()
    fs.make_dir("/a/b")
    fs.write_file("/a/b/f", b"data", sync=True)
    fs.sync_dir("/a/b")
    fs.sync_dir("/")
    assert outcomes(fs, "drop", lambda fs: fs.exists("/a")) == {True}
    assert outcomes(fs, "drop", lambda fs: fs.exists("/a/b")) == {False}
    assert outcomes(fs, "reorder", contents("/a/b/f")) == {None, b"data"}
    fs.sync_dir("/a")
    assert outcomes(fs, "drop", contents("/a/b/f")) == {b"data"}


def test_a_rename_is_old_or_new_never_neither() -> None:
    fs = durable_file(b"data")
    fs.rename("/d/f", "/d/g")
    assert outcomes(fs, "drop", lambda fs: tuple(fs.list_dir("/d"))) == {("f",)}
    for mode in ("torn", "reorder"):
        assert outcomes(fs, mode, lambda fs: tuple(fs.list_dir("/d"))) == {("f",), ("g",)}
    fs.sync_dir("/d")
    assert outcomes(fs, "reorder", lambda fs: tuple(fs.list_dir("/d"))) == {("g",)}


def test_a_rename_between_directories_is_one_step() -> None:
    def look(fs: MemoryFileSystem) -> tuple:
        return tuple(fs.list_dir("/d")), tuple(fs.list_dir("/e"))

    for synced in (None, "/d", "/e"):
        fs = durable_file(b"data")
        fs.make_dir("/e")
        fs.sync_dir("/")
        fs.write_file("/d/new", b"", sync=True)
        fs.rename("/d/new", "/e/new")
        if synced is None:
            seen = outcomes(fs, "reorder", look)
            assert seen == {(("f",), ()), (("f", "new"), ()), (("f",), ("new",))}
        else:
            fs.sync_dir(synced)
            assert outcomes(fs, "reorder", look) == {(("f",), ("new",))}


def test_replacing_keeps_one_of_the_two() -> None:
    fs = durable_file(b"old")
    fs.write_file("/d/f.tmp", b"new", sync=True)
    fs.rename("/d/f.tmp", "/d/f")
    assert outcomes(fs, "reorder", contents("/d/f")) == {b"old", b"new"}
    assert outcomes(fs, "torn", contents("/d/f")) == {b"old", b"new"}


def test_renames_of_different_names_may_survive_in_any_order_only_when_reordered() -> None:
    fs = durable_file()
    for name in ("a", "b"):
        fs.write_file(f"/d/{name}", b"", sync=True)
    fs.sync_dir("/d")
    fs.rename("/d/a", "/d/a2")
    fs.rename("/d/b", "/d/b2")
    in_order = {("a", "b", "f"), ("a2", "b", "f"), ("a2", "b2", "f")}
    assert outcomes(fs, "torn", lambda fs: tuple(fs.list_dir("/d"))) == in_order
    assert outcomes(fs, "reorder", lambda fs: tuple(fs.list_dir("/d"))) == in_order | {("a", "b2", "f")}


def test_a_change_builds_on_the_earlier_ones_of_its_name() -> None:
    fs = durable_file(b"first")
    fs.remove("/d/f")
    fs.write_file("/d/f", b"second", sync=True)
    fs.rename("/d/f", "/d/g")
    seen = outcomes(fs, "reorder", lambda fs: (contents("/d/f")(fs), contents("/d/g")(fs)))
    assert seen == {(b"first", None), (None, None), (b"second", None), (None, b"second")}


def test_a_removed_directory_was_empty() -> None:
    fs = durable_file(b"data")
    fs.write_file("/d/g", b"", sync=True)
    fs.remove_tree("/d")
    fs.make_dir("/d")
    fs.sync_dir("/")
    assert outcomes(fs, "reorder", lambda fs: tuple(fs.list_dir("/d"))) == {()}
    fs = durable_file(b"data")
    fs.write_file("/d/g", b"", sync=True)
    fs.remove_tree("/d")
    seen = outcomes(fs, "reorder", lambda fs: tuple(fs.list_dir("/d")) if fs.exists("/d") else None)
    assert seen == {None, (), ("f",), ("g",), ("f", "g")}


def test_links_keep_naming_one_file() -> None:
    fs = durable_file(b"data")
    fs.link("/d/f", "/d/g")
    fs.open("/d/g", "w").pwrite(b"DATA", 0)
    for mode in EVERY:
        for seed in range(50):
            after = fs.survivor(mode, random.Random(seed))
            if after.exists("/d/g"):
                assert after.stat("/d/f").inode == after.stat("/d/g").inode
                after.open("/d/f", "w").pwrite(b"!", 0)
                assert after.read_file("/d/g") == after.read_file("/d/f")


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
