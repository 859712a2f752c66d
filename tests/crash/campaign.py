"""Crashes everywhere: at every call of a workload, and at every call of the restart that follows.

`every_call` runs the workload once and, before each call that changes the disk, boots copies of what
each kind of crash would leave and judges them. Failures are gathered, each with the point and the seed
that show it again.

The workload has one thread, so that every call of it is a point. Several threads are stopped at random calls
by `threads`, two at every call by the explorer (`tests/explore`), those of a real process by `kill_campaign`.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from stratalog.fs import SurvivorMode
from stratalog.testing import SimulatedCrash
from tests.crash.driver import Driver

MODES: tuple[SurvivorMode, ...] = ("kill", "drop", "torn", "reorder")


@dataclass
class Tally:
    """What a campaign did."""

    points: int = 0
    states: int = 0
    failures: list[str] = field(default_factory=list)

    def fail(self, where: str, error: BaseException) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        self.failures.append(
            f"{where}: {type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
        )

    def report(self) -> str:
        shown = "\n\n".join(self.failures[:8])
        return f"{len(self.failures)} of {self.states} states at {self.points} points failed:\n{shown}"


def judge_survivor(driver: Driver, mode: SurvivorMode, seed: int, *, deep: bool = True) -> None:
    """Boot what a crash of this kind leaves now, judge it, work on it, crash it again, stop, start, judge."""
    rng = random.Random(seed)
    after = driver.branch(driver.fs.survivor(mode, rng), power_cut=mode != "kill")
    after.restart()
    after.check_doors(arrow=deep)
    after.exercise(rng)
    again = after.branch(after.fs.survivor("drop" if seed % 2 else "reorder", rng), power_cut=True)
    again.restart()
    again.check_doors(arrow=False)
    if not deep:
        return
    after.check_follower()
    after.close()
    after.restart()
    after.check_doors()
    after.close()


def every_call(
    tally: Tally,
    workload: Callable[[Driver], None],
    modes: tuple[SurvivorMode, ...] = MODES,
    *,
    seeds: int = 1,
    every: int = 1,
    first: int = 0,
    judge: bool = True,
    stop_at_first: bool = False,
    at: str = "",
    nested_every: int = 0,
    driver: Driver | None = None,
) -> Tally:
    """Crash before each ``every``-th call from ``first`` on that has ``at`` in it; ``judge`` what is left.

    At every ``nested_every``-th of those points the restart is crashed too, at each of its calls.
    """
    driver = driver or Driver()

    def look(call: str) -> None:
        point = len(driver.fs.calls)
        if point % every != first or at not in call or (stop_at_first and tally.failures):
            return
        tally.points += 1
        driver.look()
        for mode in modes:
            for seed in range(seeds if mode in ("torn", "reorder") else 1):
                state = point * 1000 + seed
                try:
                    if judge:
                        tally.states += 1
                        judge_survivor(driver, mode, state, deep=point % 8 < 4)
                except Exception as error:  # noqa: BLE001 - every failure is gathered
                    tally.fail(f"call {point} ({call}) {mode} seed {state}", error)
                if nested_every and (point // every) % nested_every == 0:
                    crash_restart(tally, driver, mode, state, f"call {point} ({call}) {mode} seed {state}")

    driver.fs.before_call = look
    workload(driver)
    driver.fs.before_call = None
    return tally


def crash_restart(tally: Tally, driver: Driver, mode: SurvivorMode, seed: int, where: str) -> None:
    """Crash the restart itself, before each of its calls."""
    rng = random.Random(seed)
    booting = driver.branch(driver.fs.survivor(mode, rng), power_cut=mode != "kill")

    def look(call: str) -> None:
        point = len(booting.fs.calls)
        second = MODES[(point + seed) % len(MODES)]
        try:
            tally.states += 1
            after = booting.branch(booting.fs.survivor(second, rng), power_cut=second != "kill")
            after.restart()
            after.check_doors(arrow=False)
            after.exercise(rng)
            after.close()
            after.restart()
            after.check_doors(arrow=False)
        except Exception as error:  # noqa: BLE001 - every failure is gathered
            tally.fail(f"{where}, then restart call {point} ({call}) {second}", error)

    booting.fs.before_call = look
    try:
        booting.open()
    except Exception as error:  # noqa: BLE001 - every failure is gathered
        tally.fail(f"{where}, restart", error)


def half_writes(tally: Tally, workload: Callable[[Driver], None], *, every: int = 1) -> Tally:
    """Stop the process in the middle of each ``every``-th write, half of its bytes in the file."""
    calls = _calls_of(workload)
    for point in [at for at, call in enumerate(calls, 1) if call.startswith("pwrite")][::every]:
        driver = Driver()
        driver.fs.crash_at(point, half=True)
        try:
            workload(driver)
        except SimulatedCrash:
            tally.points += 1
        for mode in MODES:
            try:
                tally.states += 1
                judge_survivor(driver, mode, point, deep=False)
            except Exception as error:  # noqa: BLE001 - every failure is gathered
                tally.fail(f"half of write {point} ({calls[point - 1]}) {mode}", error)
    return tally


def _calls_of(workload: Callable[[Driver], None]) -> list[str]:
    driver = Driver()
    workload(driver)
    return driver.fs.calls
