"""A crash before every call of a scripted life, in every kind of crash, and during the restart too.

The short run looks at a slice of the points, spread over the whole workload; ``STRATALOG_CRASH=full`` looks
at all of them, with more seeds, and crashes every restart at every one of its calls.
"""

from __future__ import annotations

import os

import pytest

from stratalog.fs import SurvivorMode
from tests.crash import workload
from tests.crash.campaign import Tally, every_call, half_writes

FULL = os.environ.get("STRATALOG_CRASH") == "full"
pytestmark = pytest.mark.timeout(7200 if FULL else 600)


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"])
def test_crash_at_every_call(mode: SurvivorMode) -> None:
    # The modes look at different points.
    first = {"kill": 0, "drop": 2, "torn": 4, "reorder": 6}[mode]
    tally = every_call(
        Tally(),
        workload.run,
        (mode,),
        seeds=4 if FULL else 1,
        every=1 if FULL else 8,
        first=0 if FULL else first,
    )
    assert tally.points > (800 if FULL else 100)
    assert not tally.failures, tally.report()


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"])
def test_crash_during_the_restart(mode: SurvivorMode) -> None:
    """The restart after a crash is itself cut short, before each of its calls."""
    first = {"kill": 250, "drop": 60, "torn": 320, "reorder": 170}[mode]
    every = 1 if FULL else 397
    tally = every_call(
        Tally(), workload.run, (mode,), every=every, first=0 if FULL else first, judge=False, nested_every=1
    )
    assert tally.states > (8000 if FULL else 20)
    assert not tally.failures, tally.report()


def test_crash_in_the_middle_of_a_write() -> None:
    tally = half_writes(Tally(), workload.run, every=1 if FULL else 12)
    assert tally.points > (200 if FULL else 15)
    assert not tally.failures, tally.report()
