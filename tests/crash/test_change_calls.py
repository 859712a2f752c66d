"""A crash before every call of a change to a store loses no record, and the next start leaves no remains."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.errors import UnknownTopicError
from stratalog.fs import MemoryFileSystem, SurvivorMode
from stratalog.log.names import PARTITION_FILES, parse_file, parse_partition_dir
from stratalog.store.copies import export_topic, import_topic
from stratalog.testing.clock import ManualClock

DIRS = ["/one", "/two"]
KEPT = [b"%d" % i for i in range(20)]


def opened(fs: MemoryFileSystem) -> Store:
    return stratalog.open(DIRS, fs=fs, clock=ManualClock(), background=False)


def filled(store: Store) -> None:
    topic = store.create_topic("t", 1)
    topic.append_many([Record(value) for value in KEPT[:10]])
    topic.roll()
    topic.append_many([Record(value) for value in KEPT[10:]])
    store.flush()
    export_topic(store, "t", "/t.export")


def move_there_and_back(store: Store) -> None:
    for _ in DIRS:
        here = next(each.path for each in store.log_dirs() if each.partitions)
        store.move_partition("t", 0, next(path for path in DIRS if path != here))


def recreate(store: Store) -> None:
    store.create_topic("u", 2)
    store.delete_topic("u")
    store.create_topic("u", 1)


def alter(store: Store) -> None:
    store.alter_topic("t", {"segment.bytes": "2048"})
    store.add_partitions("t", 3)


def bring_in(store: Store) -> None:
    import_topic(store, "/t.export", name="u")


def remains(fs: MemoryFileSystem) -> list[str]:
    """Files that no open store has. Those of a log directory's own are written over by the next one."""
    left = []
    for path in DIRS:
        for name in fs.list_dir(path):
            parsed = parse_partition_dir(name)
            if parsed is None:
                continue
            if parsed.state:
                left.append(f"{path}/{name}")
                continue
            for file in fs.list_dir(f"{path}/{name}"):
                known = parse_file(file)
                if known.suffix if known is not None else file not in PARTITION_FILES:
                    left.append(f"{path}/{name}/{file}")
    return left


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"])
@pytest.mark.parametrize("change", [move_there_and_back, recreate, alter, bring_in])
def test_a_crash_anywhere_leaves_the_records_and_nothing_else(
    change: Callable[[Store], None], mode: SurvivorMode
) -> None:
    fs = MemoryFileSystem()
    crashes = 0
    with opened(fs) as store:
        filled(store)

        def crash(call: str) -> None:
            nonlocal crashes
            if call.split()[0] in ("pread", "stat", "list_dir"):
                return
            crashes += 1
            left = fs.survivor(mode, random.Random(crashes))
            with opened(left) as after:
                assert [record.value for record in after.topic("t").read()] == KEPT, call
                assert remains(left) == [], call
                try:
                    brought = [record.value for record in after.topic("u").read()]
                except UnknownTopicError:
                    brought = []
                assert brought in ([], KEPT), call

        fs.before_call = crash
        change(store)
        fs.before_call = None
    assert crashes > 20
