"""Ctrl-C while a claim, a change or a deletion is noted or given back: nothing stays taken."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from stratalog import locks
from stratalog.fs.handles import HandleCache
from stratalog.log.context import LogContext
from stratalog.log.segment.deletion import Deletions
from stratalog.log.write.log_end import LogEnd
from stratalog.store.catalog import Changes
from stratalog.store.lifecycle.claims import Claims
from stratalog.testing import MemoryFileSystem
from tests.log.interrupting import Interrupter


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """Plain locks: a checked one is Python code that could be cut in two."""
    before = locks.use(locks.PLAIN)
    yield
    locks.use(before)


def interrupted(prepare: Callable[[], tuple[Callable[[], object], Callable[[], bool]]]) -> int:
    """Interrupt an action at each of its events; afterwards its check must hold."""
    act, _ = prepare()
    counter = Interrupter(KeyboardInterrupt)
    counter.run(act)
    for at in range(1, counter.events + 1):
        act, free = prepare()
        raised = Interrupter(KeyboardInterrupt, at)
        try:
            raised.run(act)
        except KeyboardInterrupt as error:
            error.__traceback__ = None
        gc.collect()
        assert free(), raised.where
    return counter.events


@pytest.mark.parametrize("way", ["claim", "attempt"])
def test_claims(way: str) -> None:
    def prepare() -> tuple[Callable[[], object], Callable[[], bool]]:
        claims = Claims()

        def act() -> None:
            with getattr(claims, way)(("t", 0)):
                pass

        def free() -> bool:
            with claims.attempt(("t", 0)) as got:
                return got and not claims.wanted(("t", 0))

        return act, free

    assert interrupted(prepare) > 2


def test_changes() -> None:
    def prepare() -> tuple[Callable[[], object], Callable[[], bool]]:
        changes = Changes()

        def act() -> None:
            with changes.of("t"), changes.of("t"):
                pass

        return act, lambda: not changes._held

    assert interrupted(prepare) > 2


def test_deletions() -> None:
    def prepare() -> tuple[Callable[[], object], Callable[[], bool]]:
        fs, deletions = MemoryFileSystem(), Deletions()
        context = LogContext(fs, HandleCache(fs, 10))
        fs.make_dir("d")
        with fs.open("d/0.log", "x") as file:
            file.pwrite(b"x", 0)

        def act() -> None:
            deletions.rename(context, ["d/0.log"], 0.0)
            deletions.run(context, everything=True)

        return act, lambda: not deletions._busy

    assert interrupted(prepare) > 2


def test_a_wait_that_timed_out_leaves_no_callback() -> None:
    ends = LogEnd(0, lambda end: 0)
    with ExitStack() as stack:
        completion = ends.when("synced", 5)
        stack.callback(completion.cancel)
        for _ in range(1000):
            assert not completion.wait(0)
        assert not completion._callbacks
