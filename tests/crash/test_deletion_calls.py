"""A crash before every call of retention and deletion, in every kind of crash, and during the restart too.

What was acknowledged and kept is there, nothing below the log's start comes back, and after the next start
there is no orphan. The short run looks at a slice; ``STRATALOG_CRASH=full`` looks at every call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

import pytest

from stratalog.fs import SurvivorMode
from tests.crash import deleting
from tests.crash.campaign import Tally, every_call
from tests.crash.deleting import DeletingDriver
from tests.crash.driver import Driver

FULL = os.environ.get("STRATALOG_CRASH") == "full"
pytestmark = pytest.mark.timeout(7200 if FULL else 600)
WORKLOAD = cast(Callable[[Driver], None], deleting.run)


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"])
def test_crash_at_every_call(mode: SurvivorMode) -> None:
    first = {"kill": 0, "drop": 3, "torn": 6, "reorder": 9}[mode]
    tally = every_call(
        Tally(),
        WORKLOAD,
        (mode,),
        seeds=4 if FULL else 1,
        every=1 if FULL else 60,
        first=0 if FULL else first,
        driver=DeletingDriver(),
    )
    assert tally.points > (800 if FULL else 15)
    assert not tally.failures, tally.report()


@pytest.mark.parametrize("mode", ["drop", "torn", "reorder"])
def test_crash_at_every_rename_of_a_deletion(mode: SurvivorMode) -> None:
    """The heart of it: a power cut among the renames to ``.deleted`` keeps any of them."""
    tally = every_call(
        Tally(),
        WORKLOAD,
        (mode,),
        seeds=6 if FULL else 1,
        every=1 if FULL else 11,
        first=0 if FULL else {"drop": 0, "torn": 3, "reorder": 7}[mode],
        at=".deleted",
        driver=DeletingDriver(),
    )
    assert tally.points > (150 if FULL else 10)
    assert not tally.failures, tally.report()


@pytest.mark.parametrize("mode", ["drop", "torn", "reorder"])
def test_crash_while_a_segment_below_the_start_is_sealed(mode: SurvivorMode) -> None:
    """`delete_records` took all there is: what recovery begins anew, it begins without what lies below."""
    tally = every_call(
        Tally(),
        WORKLOAD,
        (mode,),
        seeds=6 if FULL else 1,
        every=1 if FULL else 2,
        first=0 if FULL else {"drop": 0, "torn": 0, "reorder": 1}[mode],
        at="timed-0/00000000000000000019.",
        driver=DeletingDriver(),
    )
    assert tally.points > (30 if FULL else 10)
    assert not tally.failures, tally.report()


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"] if FULL else ["kill", "reorder"])
def test_crash_during_the_restart(mode: SurvivorMode) -> None:
    first = {"kill": 431, "drop": 257, "torn": 601, "reorder": 349}[mode]
    tally = every_call(
        Tally(),
        WORKLOAD,
        (mode,),
        every=1 if FULL else 1201,
        first=0 if FULL else first,
        judge=False,
        nested_every=1,
        driver=DeletingDriver(),
    )
    assert tally.states > (8000 if FULL else 15)
    assert not tally.failures, tally.report()


def emptied(driver: Driver) -> None:
    """A log that `delete_records` emptied, stopped and started: the start removes the segment below."""
    log = ("emptied", 0)
    driver.open()
    driver.create_topic("emptied", 2, segment_bytes=600, file_delete_delay_ms=1000, retention_ms=-1)
    driver.append(log)
    driver.delete_records(log, 1)
    driver.roll(log)
    for segment_bytes in (500, 700):
        driver.close()
        driver.open()
        driver.alter_topic("emptied", segment_bytes=segment_bytes)
    driver.append(log)


@pytest.mark.parametrize("mode", ["drop", "torn", "reorder"])
def test_what_a_start_removed_stays_removed(mode: SurvivorMode) -> None:
    """The checkpoint no longer names a start where a segment begins: by then the removal is durable."""
    tally = every_call(Tally(), emptied, (mode,), seeds=4, every=1 if FULL else 3, first=0 if FULL else 1)
    assert tally.points > 20
    assert not tally.failures, tally.report()
