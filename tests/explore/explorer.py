"""Every pair of operations, the first one stopped before each of its filesystem calls and of its locks.

    make explore                                  every schedule; prints how many there were
    make explore SCHEDULE="append@7 x move"       one of them again
    make explore SCHEDULE="append@lock7 x move"   the same, where it takes its seventh lock
    make explore SCHEDULE="append@7^C x move"     the same, the first operation then interrupted
    make explore SCHEDULE="append x move"         one pair at all its pause points; * is any operation
    make explore EVERY=5                          every fifth pause point of every pair
    make explore PART=1/2                         the first half of the pairs

The operations ``*_beside`` are those of a read-only store beside the holder, on a topic that lies partly in
the archive. Each schedule is judged several times: what a kill and power cuts leave while the first operation
stands before a filesystem call, and when both are done, the store that goes on, and the store when it is
opened again. A kill is judged once more for each half-written file that it leaves, with that file spoiled: at
most its partition is offline. Every schedule runs a second time with the first operation interrupted
(Ctrl-C) where it stood. A state of the disks that was judged before is not judged again.
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
from typing import NamedTuple

from stratalog.fs import SurvivorMode
from stratalog.testing.locks import LockChecker, LockViolationError
from tests.explore.schedules import Schedule, ScheduleError, repeatable_draws
from tests.explore.world import BESIDE, ENDS, OPERATIONS, Judged, World, WorldError, allowed, world_of

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


class Point(NamedTuple):
    """Where the first operation stops, and whether it is interrupted there (by no lock)."""

    number: int
    at_locks: bool = False
    interrupt: bool = False

    def __str__(self) -> str:
        return f"{'lock' * self.at_locks}{self.number}{'^C' * self.interrupt}"

    @classmethod
    def parse(cls, text: str) -> Point:
        number = text.removeprefix("lock").removesuffix("^C")
        return cls(int(number), text.startswith("lock"), text.endswith("^C"))


def run(
    checker: LockChecker, pair: Pair, point: Point, judged: Judged, *, crashes: bool = True
) -> tuple[int, str]:
    """Run one schedule; return how many calls the first operation made, and what is wrong ("" if nothing).

    If it stops at locks: how many it took. ``judged`` remembers what need not be judged again.
    """
    with repeatable_draws():
        return _run(checker, pair, point, judged, crashes)


def _run(checker: LockChecker, pair: Pair, point: Point, judged: Judged, crashes: bool) -> tuple[int, str]:
    world = world_of(*pair, judged)
    schedule = Schedule(checker, point.number, at_locks=point.at_locks, interrupt=point.interrupt)
    world.fs.before_call = world.cloud_fs.before_call = schedule.before_call
    modes: tuple[SurvivorMode, ...] = (
        ("kill", "drop", "torn" if point.number % 2 else "reorder") if crashes else ()
    )
    # At a lock the disk is as before the next filesystem call; before an interrupt as before a pause.
    while_paused = () if point.at_locks or point.interrupt else modes
    failures: list[BaseException] = []

    def act(name: str, other: str) -> None:
        try:
            (OPERATIONS | BESIDE)[name](world)
        except Exception as error:  # noqa: BLE001 - judged here
            world.errors[name] = error
            if isinstance(error, WorldError | LockViolationError) or not allowed(name, other, error):
                failures.append(error)

    def first() -> None:
        try:
            act(*pair)
        except KeyboardInterrupt as error:
            if not schedule.interrupted:
                raise
            world.errors[pair[0]] = error
            world.interrupted.set()

    try:
        schedule.run(
            first,
            partial(act, pair[1], pair[0]),
            partial(_look, world, while_paused, point.number, failures),
        )
        world.fs.before_call = world.cloud_fs.before_call = None
        if schedule.interrupted and not world.interrupted.is_set():
            raise WorldError(f"the interrupt at {schedule.paused_at} was swallowed")
        if not failures:
            world.look(modes[:2], point.number)
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


def explore(
    checker: LockChecker, chosen: Iterable[Pair], *, every: int = 1, tell: bool = False
) -> tuple[int, list[str]]:
    """Run every (or every n-th) schedule of these pairs; return how many, and those that broke a promise."""
    count, judged = 0, Judged()
    failures: list[str] = []
    for pair in chosen:
        began, found, schedules = time.process_time(), len(failures), 0
        for at_locks, interrupt in ((False, False), (True, False), (False, True)):
            at = 1
            while True:
                point = Point(at, at_locks, interrupt)
                calls, wrong = run(checker, pair, point, judged, crashes=pair[0] not in BESIDE)
                schedules += 1
                if wrong:
                    failures.append(f"{pair[0]}@{point} x {pair[1]}: {wrong}")
                if calls < at or "does not end" in wrong:
                    break
                at += every * (THINNED if pair[0] in BESIDE else 1)
        count += schedules
        if tell:
            for failure in failures[found:]:
                print(failure)
            took, broken = time.process_time() - began, len(failures) - found
            print(f"{pair[0]} x {pair[1]}: {schedules} schedules, {broken} wrong, {took:.1f} s", flush=True)
    return count, failures


def slice_of(seed: int, size: int) -> list[tuple[Pair, Point]]:
    """A seeded choice of schedules: pairs in turn, each at a pause point of its own, of every kind."""
    rng = random.Random(seed)
    order = pairs()
    rng.shuffle(order)
    kinds = ((False, False), (True, False), (False, True))
    return [(order[at % len(order)], Point(rng.randrange(1, 40), *rng.choice(kinds))) for at in range(size)]


def main(arguments: list[str]) -> int:
    logging.getLogger("stratalog").setLevel(logging.CRITICAL)
    asked = " ".join(arguments).strip()
    with LockChecker().active() as checker:
        if "@" in asked:
            left, _, second = asked.partition(" x ")
            first, _, at = left.partition("@")
            wrong = run(checker, (first, second), Point.parse(at), Judged())[1]
            print(wrong or "nothing wrong")
            return bool(wrong)
        chosen = pairs()
        if asked:
            first, _, second = asked.partition(" x ")
            chosen = [each for each in chosen if first in (each[0], "*") and second in (each[1], "*", "")]
        part, _, parts = os.environ.get("PART", "1/1").partition("/")
        chosen = chosen[int(part) - 1 :: int(parts)]
        count, failures = explore(checker, chosen, every=int(os.environ.get("EVERY", "1")), tell=True)
    for failure in failures:
        print(failure)
    seconds = time.process_time()
    print(
        f"{count} schedules of {len(chosen)} pairs, {len(failures)} violations, {seconds:.0f} s of CPU time"
    )
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
