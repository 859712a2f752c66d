"""Ctrl-C and failed allocations at every event of the handle cache: pins and places are counted right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from stratalog import locks
from stratalog.fs import HandleCache, MemoryFileSystem
from tests.log.interrupting import Interrupter

LIMIT = 3
PATHS = [f"/{name}" for name in "abcdef"]


@pytest.fixture(autouse=True)
def plain_locks() -> Iterator[None]:
    """A checked lock is Python code that could be cut in two."""
    before = locks.use(locks.PLAIN)
    yield
    locks.use(before)


def acquire_an_idle_file(cache: HandleCache) -> None:
    cache.acquire(PATHS[0])


def acquire_with_eviction(cache: HandleCache) -> None:
    with cache.pinned(PATHS[4]):
        pass


def acquire_for_writing(cache: HandleCache) -> None:
    with cache.pinned(PATHS[1], "w"):
        pass


def release(cache: HandleCache) -> None:
    with cache.pinned(PATHS[2]):
        pass


def forget(cache: HandleCache) -> None:
    cache.forget(PATHS[1])


STEPS = (acquire_an_idle_file, acquire_with_eviction, acquire_for_writing, release, forget)


def trial(step: Callable[[HandleCache], None], interrupter: Interrupter) -> None:
    fs = MemoryFileSystem()
    for path in PATHS:
        fs.write_file(path, path.encode(), sync=False)
    cache = HandleCache(fs, LIMIT)
    for path in PATHS[:LIMIT]:
        with cache.pinned(path):
            pass
    with contextlib.suppress(interrupter.error):
        interrupter.run(lambda: step(cache))
    for _ in range(3):
        for path in PATHS:
            with cache.pinned(path) as file:
                assert file.pread(10, 0) == path.encode()
            with cache.pinned(path, "w") as file:
                assert file.pread(10, 0) == path.encode()
        for path in PATHS:
            cache.forget(path)
    stats = cache.stats()
    # At worst the file of the cut call stays pinned.
    assert stats.pinned <= 1
    assert stats.open <= LIMIT
    held = [cache.acquire(path) for path in PATHS[: LIMIT - stats.pinned]]
    assert cache.stats().over_limit == stats.over_limit, "a place is lost"
    for file in held:
        cache.release(file)
    cache.close()
    assert cache.stats().open == stats.pinned


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", STEPS)
def test_a_cut_step_leaves_a_cache_that_goes_on(
    step: Callable[[HandleCache], None], error: type[BaseException]
) -> None:
    counter = Interrupter(error)
    trial(step, counter)
    assert counter.events
    for at in range(1, counter.events + 1):
        interrupter = Interrupter(error, at)
        try:
            trial(step, interrupter)
        except BaseException as failure:
            failure.add_note(f"{step.__name__}@{at} {error.__name__}: {interrupter.where}")
            raise
