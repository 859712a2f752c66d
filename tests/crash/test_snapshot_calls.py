"""A crash while a producer snapshot is written: recovery leaves none that `verify` calls damaged."""

from __future__ import annotations

import random

import pytest

import stratalog
from stratalog.fs import MemoryFileSystem, SurvivorMode
from stratalog.store.lifecycle.reports import verify
from stratalog.testing import Fact, ManualClock
from tests.crash.driver import encode_batch


def life(fs: MemoryFileSystem) -> None:
    with stratalog.open("/data", fs=fs, clock=ManualClock(), background=False) as store:
        topic = store.create_topic("t")
        for at in range(3):
            topic.append_batches(0, encode_batch([Fact(b"v", b"k", 0)], 7, at))
            topic.roll()
        topic.append_batches(0, encode_batch([Fact(b"v", b"k", 0)], 7, 3))


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"])
def test_recovery_leaves_no_torn_snapshot(mode: SurvivorMode) -> None:
    fs = MemoryFileSystem()
    damaged: list[str] = []
    points = 0

    def look(call: str) -> None:
        nonlocal points
        if ".snapshot" not in call or "read" in call:
            return
        points += 1
        left = fs.survivor(mode, random.Random(points))
        with stratalog.open("/data", fs=left, clock=ManualClock(), background=False) as store:
            damaged.extend(f"{call}: {each.path}: {each.reason}" for each in verify(store).damages)

    fs.before_call = look
    life(fs)
    fs.before_call = None
    assert points >= 8
    assert damaged == []
