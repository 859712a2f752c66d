"""Making many partitions at once: how often the disk is waited for, and what a crash in between leaves."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stratalog.errors import StorageError
from stratalog.format.checkpoints import parse_leader_epochs
from stratalog.format.metadata import id_to_text, parse_partition_metadata
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem, SurvivorMode
from stratalog.store import open_store

ROOTS = ["a", "b"]
CUTS: tuple[SurvivorMode, ...] = ("drop", "torn", "reorder")


def syncs(calls: list[str]) -> Counter[str]:
    """Count the syncs among calls, by what they sync: a file of a partition, its directory, or the root."""
    found: Counter[str] = Counter()
    for call in calls:
        operation, _, path = call.partition(" ")
        if operation in ("sync", "sync_dir"):
            parts = path.split("/")
            found["root" if len(parts) == 1 + (operation == "sync") else operation] += 1
    return found


def test_each_partition_costs_three_syncs_and_the_log_directory_a_constant_number() -> None:
    """Its two files and its directory; without waiting for the disk between the partitions."""
    counted = []
    for partitions in (10, 110):
        fs = MemoryFileSystem()
        store = open_store("data", fs=fs, background=False)
        before = len(fs.calls)
        store.create_topic("t", partitions)
        counted.append(syncs(fs.calls[before:]))
    few, many = counted
    assert few["root"] == many["root"] < 15
    assert (few["sync"], few["sync_dir"]) == (20, 10)
    assert (many["sync"], many["sync_dir"]) == (220, 110)
    writes = [call for call in fs.calls if "/t-" in call]
    first = next(n for n, call in enumerate(writes) if call.startswith("sync"))
    assert {call.split()[0] for call in writes[first:]} == {"sync", "sync_dir", "rename"}


def test_more_partitions_cost_as_much() -> None:
    fs = MemoryFileSystem()
    store = open_store(ROOTS, fs=fs, background=False)
    store.create_topic("t", 2)
    before = len(fs.calls)
    store.add_partitions("t", 42)
    counted = syncs(fs.calls[before:])
    assert (counted["sync"], counted["sync_dir"]) == (80, 40)
    assert counted["root"] < 20


def check_whole(fs: MemoryFileSystem, topic_id: str | None) -> int:
    """Every directory of the topic is complete on disk; return how many there are."""
    left = fs.survivor("drop", random.Random(1))
    found = 0
    for root in ROOTS:
        for name in left.list_dir(root):
            if name.startswith("t-"):
                found += 1
                data = left.read_file(f"{root}/{name}/partition.metadata")
                assert id_to_text(parse_partition_metadata(data)) == topic_id
                epochs = left.read_file(f"{root}/{name}/leader-epoch-checkpoint")
                assert list(parse_leader_epochs(epochs)) == [(0, 0)]
                assert left.exists(f"{root}/{name}/{0:020}.log")
    return found


def test_what_was_made_is_on_disk_with_its_contents() -> None:
    fs = MemoryFileSystem()
    store = open_store(ROOTS, fs=fs, background=False)
    topic_id = store.create_topic("t", 6).id
    assert check_whole(fs, topic_id) == 6


def test_a_power_cut_leaves_no_directory_with_empty_files() -> None:
    """A file that was written and not synced may be empty or torn: its directory has no name until then."""
    fs = MemoryFileSystem()
    store = open_store(ROOTS, fs=fs, background=False)
    cuts: list[MemoryFileSystem] = []
    fs.before_call = lambda _: cuts.extend(fs.survivor(mode, random.Random(len(cuts))) for mode in CUTS)
    topic_id = store.create_topic("t", 3).id
    fs.before_call = None
    finished = 0
    for left in cuts:
        with open_store(ROOTS, fs=left, background=False) as again:
            if "t" in again.topics():
                finished += 1
                assert check_whole(left, topic_id) == 3
    assert finished > 50


def test_a_partition_that_cannot_be_synced_undoes_all_of_them() -> None:
    """Also where several threads sync."""
    fs = FailingFileSystem(MemoryFileSystem())
    store = open_store("data", fs=fs, background=False)
    fs.inject(Fault("sync", times=1, after=70))
    with pytest.raises(StorageError):
        store.create_topic("t", 60)
    assert "t" not in store.topics()
    assert [name for name in fs.list_dir("data") if name.startswith("t-")] == []
    fs.heal()
    assert store.create_topic("t", 60).partitions == 60


def test_many_partitions_are_closed_in_order() -> None:
    """Several threads close them: the next open scans nothing and finds all."""
    fs = MemoryFileSystem()
    with open_store("data", fs=fs, background=False) as store:
        topic = store.create_topic("t", 50)
        for number in range(50):
            topic.append(value=b"v", partition=number)
    again = open_store("data", fs=fs.survivor("drop", random.Random(1)), background=False)
    assert sum(report.scanned_bytes for report in again.recovery) == 0
    assert [len(list(again.topic("t").read(partition=number))) for number in range(50)] == [1] * 50
