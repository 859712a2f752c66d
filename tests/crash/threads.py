"""Several threads work on one partition until the machine stops at a random call; what is left is judged.

Two threads append, each in its own way; a third one reads, rolls, flushes, deletes, retains, compacts,
archives and moves. The store, its model and the operations are the explorer's (`tests/explore/world.py`). A
seed gives the kind of topic, what each thread does and the call at which the machine stops; the system
decides how the threads take turns, so a seed that failed is to be run several times:

    STRATALOG_CRASH_SEED=17 make test TESTS=tests/crash/test_threads.py
"""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections.abc import Callable

from stratalog.fs import SurvivorMode
from stratalog.testing import SimulatedCrash
from tests.explore import world as worlds
from tests.explore.world import Judged, World, WorldError

MODES: tuple[SurvivorMode, ...] = ("kill", "drop", "torn", "reorder")
LAST_CALL = 250
"""The machine stops at one of so many calls that change the disk."""
PATIENCE_S = 20.0
Act = Callable[[World], None]
UPKEEP: tuple[Act, ...] = (
    worlds.read, worlds.get, worlds.roll, worlds.flush, worlds.delete_records, worlds.retain, worlds.tick,
    worlds.move,
)  # fmt: skip
ALSO: dict[str, tuple[Act, ...]] = {
    "plain": (),
    "acks": (worlds.alter,),
    "compact": (worlds.compact, worlds.erase),
    "tiered": (worlds.archive,),
    "split": (worlds.archive,),
}
"""What else happens to a topic of this kind."""


def crash(seed: int) -> None:
    """Run the threads, stop the machine, judge what each kind of crash leaves; WorldError if it is wrong."""
    rng = random.Random(seed)
    kind = rng.choice(list(ALSO))
    world = worlds.world_of_kind(kind, Judged())
    jobs: list[tuple[Act, ...]] = [
        (worlds.append, worlds.append_sync),
        (worlds.append_sync, worlds.append, worlds.command, worlds.batch),
        UPKEEP + ALSO[kind] * 2,
    ]
    failures: list[str] = []
    threads = [
        threading.Thread(target=_work, args=(world, acts, rng.random(), failures), daemon=True)
        for acts in jobs
    ]
    world.memory.crash_at(rng.randrange(1, LAST_CALL), half=rng.random() < 0.3)
    for thread in threads:
        thread.start()
    _until_crashed(world, threads, failures)
    if failures:
        raise WorldError(failures[0])
    world.look(MODES, seed)
    left = World(*world.survivors("kill", seed), world.model.copy())
    left.numbers = 1_000_000
    left.interrupted.set()
    left.finish()


def _work(world: World, acts: tuple[Act, ...], seed: float, failures: list[str]) -> None:
    rng = random.Random(seed)
    while not failures:
        act = rng.choice(acts)
        if act is worlds.delete_records:
            known = world.before()
            world.delete_before = rng.choice(sorted(known)) if known else 0
        try:
            act(world)
        except SimulatedCrash:
            return
        except BaseException as error:  # noqa: BLE001 - judged here
            if world.memory.crashed:
                return  # what a call says once the machine has stopped, nobody hears
            failures.append(
                f"{act.__name__}: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
            )


def _until_crashed(world: World, threads: list[threading.Thread], failures: list[str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not world.memory.crashed and not failures:
        if time.monotonic() > end:
            frames = sys._current_frames()
            stacks = ["".join(traceback.format_stack(frames.get(each.ident or 0))[-6:]) for each in threads]
            failures.append("the threads do not go on:\n" + "\n".join(stacks))
        time.sleep(0.001)
    for thread in threads:
        thread.join(3.0)  # one that waits for another stopped thread stays
