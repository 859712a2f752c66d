"""A crash at any call of a copy: the target is there whole or not at all, and the source is as it was."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import stratalog
from stratalog.fs import SurvivorMode
from stratalog.store.copies import clone, clones, export_topic, import_topic, restore
from stratalog.testing import MemoryFileSystem, SimulatedCrash
from tests.store.copies.copies_life import CONFIG, TOPIC, Life

MODES: tuple[SurvivorMode, ...] = ("kill", "drop", "torn", "reorder")
Contents = list[list[stratalog.Record]]


def open_at(fs: MemoryFileSystem, path: str, life: Life, *, read_only: bool = False) -> stratalog.Store:
    return stratalog.open(path, CONFIG, fs=fs, clock=life.clock, background=False, read_only=read_only)


def contents(store: stratalog.Store, name: str = TOPIC) -> Contents:
    topic = store.topic(name)
    return [list(topic.read(partition)) for partition in range(topic.partitions)]


def crashes(
    base: MemoryFileSystem, act: Callable[[MemoryFileSystem], None]
) -> list[tuple[str, MemoryFileSystem]]:
    """What is left after a crash at every other call of ``act``, and in every way at each of the last."""
    rehearsal = base.survivor("kill", random.Random(0))
    act(rehearsal)
    found = []
    last = len(rehearsal.calls)
    points = [(n, MODES[(n // 2) % len(MODES)]) for n in range(1, last - 4, 2)]
    points += [(n, mode) for n in range(last - 4, last + 1) for mode in MODES]
    for n, mode in points:
        fs = base.survivor("kill", random.Random(0))
        fs.crash_at(n)
        with pytest.raises(SimulatedCrash):
            act(fs)
        found.append((f"call {n}, {fs.calls[-1]}, {mode}", fs.survivor(mode, random.Random(n))))
    assert len(found) > 15
    return found


@pytest.fixture(name="life")
def a_life() -> Life:
    life = Life(3, steps=30)
    life.store.close()
    assert isinstance(life.fs, MemoryFileSystem)
    life.fs.sync_dir("/data")
    return life


@pytest.mark.parametrize("kind", ["clone", "restore"])
def test_a_new_store_is_whole_or_not_there(life: Life, kind: str) -> None:
    base = life.fs
    assert isinstance(base, MemoryFileSystem)
    with open_at(base, life.root, life, read_only=True) as store:
        before = contents(store)
        offsets = {(TOPIC, p): store.topic(TOPIC).high_watermark(p) - 1 for p in range(life.partitions)}

    def act(fs: MemoryFileSystem) -> None:
        if kind == "clone":
            clone(life.root, "/data/copy", fs=fs, clock=life.clock)
        else:
            restore(life.root, "/data/copy", to_offsets=offsets, fs=fs, clock=life.clock)

    whole = before if kind == "clone" else [each[:-1] for each in before]
    finished = 0
    for where, fs in crashes(base, act):
        if fs.exists("/data/copy"):
            finished += 1
            with open_at(fs, "/data/copy", life) as copy:
                assert contents(copy) == whole, where
                assert not stratalog.verify(copy).damages
        else:
            act(fs)  # once more, over what was left
            with open_at(fs, "/data/copy", life) as copy:
                assert contents(copy) == whole, where
        with open_at(fs, life.root, life) as store:
            assert contents(store) == before, where
            assert not stratalog.verify(store).damages
        assert clones(life.root, fs=fs)[0][-1].exists, where
    assert finished


def test_an_imported_topic_is_whole_or_not_there(life: Life) -> None:
    base = life.fs
    assert isinstance(base, MemoryFileSystem)
    export_topic(life.root, TOPIC, "/data/file.tar", fs=base, clock=life.clock)
    with open_at(base, life.root, life, read_only=True) as store:
        before = contents(store)
    with open_at(base, "/data/other", life) as other:
        other.create_topic("mine").append(b"x")
    base.sync_dir("/data")

    def act(fs: MemoryFileSystem) -> None:
        with open_at(fs, "/data/other", life) as other:
            import_topic(other, "/data/file.tar")

    there = {True: 0, False: 0}
    for where, fs in crashes(base, act):
        with open_at(fs, "/data/other", life) as other:
            there[TOPIC in other.topics()] += 1
            if TOPIC in other.topics():
                assert contents(other) == before, where
            assert [record.value for record in other.topic("mine").read()] == [b"x"], where
            assert not stratalog.verify(other).damages, where
        assert not [name for name in fs.list_dir("/data/other") if "-future" in name], where
    assert min(there.values()) > 2


def test_an_export_is_whole_or_not_there(life: Life) -> None:
    base = life.fs
    assert isinstance(base, MemoryFileSystem)

    def act(fs: MemoryFileSystem) -> None:
        export_topic(life.root, TOPIC, "/data/file.tar", fs=fs, clock=life.clock)

    for where, fs in crashes(base, act):
        if not fs.exists("/data/file.tar"):
            act(fs)
        with open_at(fs, "/data/other", life) as other:
            import_topic(other, "/data/file.tar")
            assert other.topics() == [TOPIC], where
