"""What a power cut leaves of files and of names, as sets of everything that may be found."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.fs import MemoryFileSystem, SurvivorMode
from tests.fs.crashing import EVERY, POWER_CUTS, contents, durable_file, outcomes

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


def test_what_was_moved_out_of_a_directory_does_not_go_with_it() -> None:
    fs = durable_file(b"data")
    fs.make_dir("/e")
    fs.sync_dir("/")
    fs.rename("/d/f", "/e/f")
    fs.remove_dir("/d")

    def look(fs: MemoryFileSystem) -> tuple:
        return fs.exists("/d"), contents("/d/f")(fs), contents("/e/f")(fs)

    for mode in ("torn", "reorder"):
        assert outcomes(fs, mode, look) == {
            (True, b"data", None),
            (True, None, b"data"),
            (False, None, b"data"),
        }
    fs.sync_dir("/")
    for mode in POWER_CUTS:
        assert outcomes(fs, mode, look) == {(False, None, b"data")}


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
