"""A seeded slice of the interleavings; `make explore` runs them all."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from stratalog.testing.locks import LockChecker
from tests.explore import explorer
from tests.explore.world import OPERATIONS, Judged

SLICES = 6
SCHEDULES = 40
ONCE_WRONG: tuple[tuple[explorer.Pair, str], ...] = (
    (("close", "append"), "34"),
    (("compact", "append"), "113"),
    (("erase", "append"), "127"),
    (("recreate", "append"), "164"),
    (("recreate", "append"), "170"),
    (("recreate", "roll"), "130"),
    (("recreate", "delete_topic"), "156"),
    (("move", "tick"), "271"),
    (("alter", "append"), "29^C"),
    (("look_beside", "delete_topic"), "lock76"),
    (("look_beside", "recreate"), "lock76"),
)
"""Schedules that broke a promise once."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("stratalog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def test_every_operation_meets_every_other_one() -> None:
    pairs = explorer.pairs()
    meeting = set(OPERATIONS) - {"follow_until_closed"}
    assert set(pairs) >= {(first, second) for first in meeting for second in meeting}
    assert ("close_failing", "follow_until_closed") in pairs


@pytest.mark.parametrize("seed", range(SLICES))
def test_a_slice_of_the_interleavings_breaks_no_promise(seed: int, lock_checker: LockChecker) -> None:
    failures = []
    judged = Judged()
    for pair, point in explorer.slice_of(seed, SCHEDULES):
        if explorer.is_known(pair):
            continue
        wrong = explorer.run(lock_checker, pair, point, judged)[1]
        if wrong:
            failures.append(f"{pair[0]}@{point} x {pair[1]}: {wrong}")
    assert not failures, "\n".join(failures)


def test_what_broke_a_promise_once_does_so_no_more(lock_checker: LockChecker) -> None:
    judged = Judged()
    for pair, at in ONCE_WRONG:
        point = explorer.Point.parse(at)
        calls, wrong = explorer.run(lock_checker, pair, point, judged)
        assert not wrong, f"{pair[0]}@{at} x {pair[1]}: {wrong}"
        assert calls >= point.number, "nothing was interleaved"


def test_a_close_has_something_to_do(lock_checker: LockChecker) -> None:
    for close, calls in (("close", 20), ("close_failing", 5)):
        alone = explorer.run(lock_checker, (close, "append"), explorer.Point(0), Judged(), crashes=False)
        assert alone[0] > calls
