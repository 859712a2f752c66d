"""Logs on a file system whose times are whole seconds: what changes twice within one is seen twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog.fs import FileStat, RealFileSystem
from stratalog.log.read import follower
from stratalog.spark import logs
from stratalog.spark.options import Where
from tests.spark.direct import append, fill

SECOND_NS = 1_000_000_000


@pytest.fixture
def within_a_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let files and directories have the times of such a file system; the second stands still."""
    real = RealFileSystem.stat
    now = time.time_ns() // SECOND_NS * SECOND_NS

    def stat(fs: RealFileSystem, path: str) -> FileStat:
        found = real(fs, path)
        return found._replace(mtime_ns=min(found.mtime_ns, now), changed_ns=min(found.changed_ns, now))

    monkeypatch.setattr(RealFileSystem, "stat", stat)
    monkeypatch.setattr(follower, "COARSE_TICK_NS", 10**12)  # or a slow test is over the second
    logs.forget()
    return lambda: time.sleep(max(0.0, now / SECOND_NS + 0.1 - time.time()))


def test_a_view_sees_each_change(tmp_path: Path, within_a_second: Callable[[], None]) -> None:
    fill(tmp_path)
    where = Where((os.fspath(tmp_path),))
    within_a_second()
    with stratalog.open(tmp_path, background=False) as store:
        topic = store.topic("orders")
        for more in range(4):
            end = topic.log_end_offset(0)
            with logs.opened(where) as found:
                assert found.end_offset("orders", 0) == end
                assert [name for name in found.topics() if name != "orders"] == [f"t{n}" for n in range(more)]
            append(topic, 3)
            topic.roll()
            store.create_topic(f"t{more}")
            topic.delete_records(0, 5 * (more + 1))
            with logs.opened(where) as found:
                assert found.start_offset("orders", 0) == 5 * (more + 1)
                assert found.end_offset("orders", 0) == end + 3
