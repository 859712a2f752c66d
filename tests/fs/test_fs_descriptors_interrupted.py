"""Ctrl-C at every place where Python may run a signal handler: no descriptor stays open without an owner."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.fs import RealFileSystem
from tests.log.interrupting import Interrupter

FS = RealFileSystem()


def open_and_close(root: str) -> None:
    FS.open(f"{root}/file").close()


def create(root: str) -> None:
    FS.open(f"{root}/new", "a").close()


def sync_a_directory(root: str) -> None:
    FS.sync_dir(root)


def lock_and_release(root: str) -> None:
    FS.lock(f"{root}/.lock", {}).release()


def ask_for_the_holder(root: str) -> None:
    FS.lock_holder(f"{root}/.lock")


STEPS = (open_and_close, create, sync_a_directory, lock_and_release, ask_for_the_holder)


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C in a finalizer
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_no_descriptor_is_left(
    tmp_path: Path, step: Callable[[str], None], error: type[BaseException]
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    step(str(tmp_path))
    counting = Interrupter(error)
    counting.run(lambda: step(str(tmp_path)))
    assert counting.events > 3
    gc.collect()
    before = descriptors()
    for at in range(1, counting.events + 1):
        interrupter = Interrupter(error, at)
        with contextlib.suppress(error):
            interrupter.run(lambda: step(str(tmp_path)))
        gc.collect()
        assert descriptors() == before, interrupter.where
