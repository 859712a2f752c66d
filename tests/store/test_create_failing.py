"""A topic that could not be made because the disk fails: after a kill it is whole or not there."""

from __future__ import annotations

import errno
import random

import pytest

import stratalog
from stratalog.errors import StorageError, StratalogError
from stratalog.testing import FailingFileSystem, Fault, MemoryFileSystem


def create_with_syncs_failing_from(at: int) -> tuple[int, MemoryFileSystem]:
    """Return how many calls creating made, and what a kill leaves."""
    memory = MemoryFileSystem()
    fs = FailingFileSystem(memory)
    calls: list[str] = []

    def fail_from_here(call: str) -> None:
        calls.append(call)
        if len(calls) == at:
            fs.inject(Fault("sync", error=errno.EIO))

    store = stratalog.open(["/one", "/two"], fs=fs, background=False)
    fs.before_call = fail_from_here
    try:
        store.create_topic("t", 2)
    except StratalogError as error:
        assert isinstance(error, StorageError)  # noqa: PT017 - creating may also succeed
    fs.before_call = None
    return len(calls), memory.survivor("kill", random.Random(0))


def test_it_is_whole_or_not_there() -> None:
    count, _ = create_with_syncs_failing_from(0)
    for at in range(1, count + 1):
        _, left = create_with_syncs_failing_from(at)
        with stratalog.open(["/one", "/two"], fs=left, background=False) as store:
            if "t" in store.topics():
                for partition in range(2):
                    try:
                        store.topic("t").append(b"one", partition=partition)
                    except StorageError as error:
                        pytest.fail(f"syncs failing from call {at} on: {error}")


@pytest.mark.parametrize("operation", ["open", "rename", "*"])
def test_what_is_left_of_it_is_in_nobodys_way(operation: str) -> None:
    """The disk fails from some call on, as without file handles left; then it works, and all goes on."""
    failures = 0
    for after in range(80):
        memory = MemoryFileSystem()
        fs = FailingFileSystem(memory)
        store = stratalog.open(["/one", "/two"], fs=fs, background=False)
        store.create_topic("other")
        fs.inject(Fault(operation, after=after, error=errno.EMFILE))
        try:
            store.create_topic("t", 3)
        except StorageError:
            failures += 1
        fs.heal()
        again = after % 2 == 0
        if "t" not in store and again:
            store.create_topic("another")
            store.create_topic("t", 3)
        made = "t" in store
        try:
            store.close()
        except StorageError as error:
            pytest.fail(f"failing from call {after} on: {error}")
        with stratalog.open(["/one", "/two"], fs=memory, background=False) as store:
            assert ("t" in store) == made, after
            assert store.create_topic("t", 3, if_not_exists=True).append(b"x", partition=2).offset == 0
    assert failures > 5
