"""A crash before every call of transactions: afterwards each is visible whole or not at all.

``kill`` keeps every write, so all commits that returned are there. A power cut keeps those made with
``sync``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.fs import MemoryFileSystem, SurvivorMode
from stratalog.testing import ManualClock
from tests.crash.campaign import MODES
from tests.crash.driver import CONFIG, ROOT

FULL = os.environ.get("STRATALOG_CRASH") == "full"
pytestmark = pytest.mark.timeout(7200 if FULL else 600)


class Ledger:
    """A store and the transactions that were made in it; each has one number."""

    def __init__(self, *, sync: bool) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFileSystem(clock=self.clock.now_ns)
        self.sync = sync
        self.acknowledged: list[int] = []
        self.running: int | None = None

    def open(self, fs: MemoryFileSystem) -> Store:
        return stratalog.open(ROOT, CONFIG, fs=fs, clock=self.clock, background=False)

    def run(self, store: Store) -> None:
        for number in range(1, 5):
            self.running = number
            with store.transaction("t", sync=self.sync) as t:
                t.append_many("a", [Record(b"%d" % number), Record(b"%d" % number)])
                t.append("b", b"%d" % number)
                t.commit_offsets("g", {("a", 0): number})
                if number == 3:
                    t.abort()
            if number != 3:
                self.acknowledged.append(number)

    def judge(self, fs: MemoryFileSystem) -> None:
        with self.open(fs) as store:
            a, b = (
                [int(record.value or b"") for record in store.topic(name).read(isolation="read_committed")]
                for name in "ab"
            )
            found = store.groups.offsets.committed("g", "a", 0)
            assert a == [each for each in b for _ in range(2)], (a, b)
            assert (found.offset if found else 0) == (b[-1] if b else 0), (b, found)
            assert b in (self.acknowledged, [*self.acknowledged, self.running]), (b, self.acknowledged)
            for name in "ab":
                topic = store.topic(name)
                assert topic.high_watermark(0, "read_committed") == topic.log_end_offset(0)
            with store.transaction("t", sync=True) as t:
                t.append("a", b"99")
                t.append("b", b"99")
            for name in "ab":
                assert [each.value for each in store.topic(name).read(isolation="read_committed")][
                    -1
                ] == b"99"


def crash_everywhere(ledger: Ledger, modes: tuple[SurvivorMode, ...], judge: Callable[..., None]) -> int:
    store = ledger.open(ledger.fs)
    for name in "ab":
        store.create_topic(
            name, config={"segment.bytes": 600, "index.interval.bytes": 200}, if_not_exists=True
        )
    store.flush()
    points, every = 0, 1 if FULL else 3

    def look(call: str) -> None:
        nonlocal points
        point = len(ledger.fs.calls)
        if point % every == 0:
            points += 1
            for mode in modes:
                try:
                    judge(ledger.fs.survivor(mode, random.Random(point)))
                except AssertionError as error:
                    raise AssertionError(f"call {point} ({call}), {mode}: {error}") from error

    ledger.fs.before_call = look
    ledger.run(store)
    ledger.fs.before_call = None
    store.close()
    return points


def test_a_killed_process() -> None:
    ledger = Ledger(sync=False)
    assert crash_everywhere(ledger, ("kill",), ledger.judge) > 10


def test_a_power_cut() -> None:
    ledger = Ledger(sync=True)
    assert crash_everywhere(ledger, MODES, ledger.judge) > 10
