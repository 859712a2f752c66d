"""Every pair of operations, the first one stopped before each of its filesystem calls and of its locks.

    make explore                                  every schedule; prints how many there were
    make explore SCHEDULE="append@7 x move"       one of them again
    make explore SCHEDULE="append@lock7 x move"   the same, where it takes its seventh lock
    make explore SCHEDULE="append x move"         one pair at all its pause points; * is any operation
    make explore EVERY=5                          every fifth pause point of every pair

The operations ``*_beside`` are those of a read-only store beside the holder, on a topic that lies partly in
the archive. Each schedule is judged several times: what a kill and power cuts leave while the first operation
stands before a filesystem call, and when both are done, the store that goes on, and the store when it is
opened again.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Iterable
from functools import partial

from stratalog.fs import SurvivorMode
from stratalog.testing.locks import LockChecker, LockViolationError
from tests.explore.schedules import Schedule, ScheduleError
from tests.explore.world import BESIDE, ENDS, OPERATIONS, World, WorldError, allowed, world_of
from tests.known_lock_violations import KNOWN

Pair = tuple[str, str]
THINNED = 3
"""Readers beside make hundreds of calls, most of them alike: one in three is a pause point."""
KNOWN_WRONG: tuple[Pair, ...] = ()
"""Pairs, in either order, with violations that are being repaired; the slice leaves them out until then."""


def pairs() -> list[Pair]:
    """All ordered pairs; a follower that waits for the end needs an operation that brings it."""
    waits = "follow_until_closed"
    found = [(a, b) for a in OPERATIONS for b in OPERATIONS if waits not in (a, b)]
    changes = [each for each in OPERATIONS if each not in ("read", "follow", "get", waits)]
    beside = [pair for a in BESIDE for b in changes for pair in ((a, b), (b, a))]
    return found + beside + [(end, waits) for end in sorted(ENDS)]


def is_known(pair: Pair) -> bool:
    """Return True if these two have a violation that is being repaired."""
    return any(second in pair and first in ("*", *pair) for first, second in KNOWN_WRONG)


def run(
    checker: LockChecker, pair: Pair, pause_at: int, *, crashes: bool = True, at_locks: bool = False
) -> tuple[int, str]:
    """Run one schedule; return how many calls the first operation made, and what is wrong ("" if nothing).

    ``at_locks``: how many locks it took, and it stops before one of them.
    """
    world = world_of(*pair)
    schedule = Schedule(checker, pause_at, at_locks=at_locks)
    world.fs.before_call = world.cloud_fs.before_call = schedule.before_call
    modes: tuple[SurvivorMode, ...] = (
        ("kill", "drop", "torn" if pause_at % 2 else "reorder") if crashes else ()
    )
    while_paused = () if at_locks else modes  # the disk is as before the next filesystem call
    failures: list[BaseException] = []

    def act(name: str, other: str) -> None:
        try:
            (OPERATIONS | BESIDE)[name](world)
        except Exception as error:  # noqa: BLE001 - judged here
            world.errors[name] = error
            if isinstance(error, WorldError | LockViolationError) or not allowed(name, other, error):
                failures.append(error)

    try:
        schedule.run(
            partial(act, pair[0], pair[1]),
            partial(act, pair[1], pair[0]),
            partial(_look, world, while_paused, pause_at, failures),
        )
        world.fs.before_call = world.cloud_fs.before_call = None
        if not failures:
            world.look(modes[:2], pause_at)
            world.finish()
    except Exception as error:  # noqa: BLE001 - judged here
        failures.append(error)
    return schedule.calls, "" if not failures else _told(failures[0], schedule)


def _look(world: World, modes: tuple[SurvivorMode, ...], seed: int, failures: list[BaseException]) -> None:
    try:
        world.look(modes, seed)
    except WorldError as error:
        failures.append(error)


def _told(error: BaseException, schedule: Schedule) -> str:
    if isinstance(error, ScheduleError):
        return f"stopped at {schedule.paused_at}: {error}"
    last = [each for each in traceback.extract_tb(error.__traceback__) if "stratalog" in each.filename][-1:]
    where = f" ({last[0].filename.rpartition('/')[2]}:{last[0].lineno})" if last else ""
    return f"stopped at {schedule.paused_at}: {type(error).__name__}: {error}{where}"


def points(checker: LockChecker, pair: Pair) -> int:
    """How many filesystem calls the first operation makes by itself."""
    return run(checker, pair, 0, crashes=False)[0]


def explore(
    checker: LockChecker, chosen: Iterable[Pair], *, every: int = 1, tell: bool = False
) -> tuple[int, list[str]]:
    """Run every (or every n-th) schedule of these pairs; return how many, and those that broke a promise."""
    count, failures = 0, []
    for pair, at_locks in ((pair, at_locks) for pair in chosen for at_locks in (False, True)):
        began, bad, at, schedules = time.monotonic(), 0, 1, 1
        crashes = pair[0] not in BESIDE  # a reader changes nothing
        while True:
            calls, wrong = run(checker, pair, at, crashes=crashes, at_locks=at_locks)
            if wrong:
                bad += 1
                failures.append(f"{pair[0]}@{'lock' * at_locks}{at} x {pair[1]}: {wrong}")
            count += 1
            if calls < at or "does not end" in wrong:
                break
            at += every * (THINNED if pair[0] in BESIDE else 1)
            schedules += 1
        if tell:
            took, where = time.monotonic() - began, " at locks" if at_locks else ""
            print(
                f"{pair[0]} x {pair[1]}{where}: {schedules} schedules, {bad} wrong, {took:.1f} s", flush=True
            )
    return count, failures


def slice_of(seed: int, size: int) -> list[tuple[Pair, int, bool]]:
    """A seeded choice of schedules: pairs in turn, each at a pause point of its own, some at locks."""
    rng = random.Random(seed)
    order = pairs()
    rng.shuffle(order)
    return [(order[at % len(order)], rng.randrange(1, 40), rng.random() < 0.4) for at in range(size)]


def main(arguments: list[str]) -> int:
    logging.getLogger("stratalog").setLevel(logging.CRITICAL)
    asked = " ".join(arguments).strip()
    with LockChecker(KNOWN).active() as checker:
        if "@" in asked:
            left, _, second = asked.partition(" x ")
            first, _, at = left.partition("@")
            at_locks = at.startswith("lock")
            wrong = run(checker, (first, second), int(at.removeprefix("lock")), at_locks=at_locks)[1]
            print(wrong or "nothing wrong")
            return bool(wrong)
        chosen = pairs()
        if asked:
            first, _, second = asked.partition(" x ")
            chosen = [each for each in chosen if first in (each[0], "*") and second in (each[1], "*", "")]
        count, failures = explore(checker, chosen, every=int(os.environ.get("EVERY", "1")), tell=True)
    for failure in failures:
        print(failure)
    print(f"{count} schedules of {len(chosen)} pairs, {len(failures)} violations")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
