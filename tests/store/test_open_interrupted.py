"""Ctrl-C anywhere in `stratalog.open`: no lock and no thread stays, and the next open succeeds."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

import stratalog
from stratalog.format.metadata import CLEAN_SHUTDOWN
from stratalog.fs.lock import holder
from tests.log.interrupting import Interrupter


def ours() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("stratalog")]


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("read_only", [False, True])
def test_an_open_interrupted_anywhere_gives_everything_back(tmp_path: Path, read_only: bool) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with stratalog.open(dirs) as store:
        store.create_topic("t", 2).append(b"one", b"k", sync=True)

    def open_store() -> stratalog.Store:
        for each in dirs:
            (each / CLEAN_SHUTDOWN).unlink(missing_ok=True)  # so that there is something to recover
        return stratalog.open(dirs, read_only=read_only)

    counter = Interrupter(KeyboardInterrupt)
    counter.run(open_store).close()
    assert counter.events > 300
    # All of the end, where threads run and locks are held; a sample of the rest.
    points = [*range(1, counter.events - 150, 23), *range(counter.events - 150, counter.events + 1)]
    interrupted = 0
    for at in points:
        interrupter = Interrupter(KeyboardInterrupt, at)
        try:
            interrupter.run(open_store).close()
        except KeyboardInterrupt:
            interrupted += 1
        gc.collect()
        assert ours() == [], interrupter.where
        assert [holder(str(each / ".lock")) for each in dirs] == [None, None], interrupter.where
    assert interrupted > 100
    with stratalog.open(dirs) as store:
        assert [record.value for record in store.topic("t").read()] == [b"one"]
