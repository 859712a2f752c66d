"""`stratalog.audit`: every erasure leaves its two lines, whole, whatever else happens."""

from __future__ import annotations

import errno
import json
from typing import Any, cast

import pytest

import stratalog
from stratalog import Store
from stratalog.errors import DiskFullError
from stratalog.fs import FailingFileSystem, Fault, FileSystem, MemoryFileSystem
from stratalog.testing.clock import ManualClock
from tests.store.pausing import PausingFileSystem, Running

AUDIT = "/data/stratalog.audit"


def opened(fs: Any) -> Store:
    return stratalog.open("/data", fs=cast(FileSystem, fs), clock=ManualClock(), background=False)


def events(fs: Any) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in fs.read_file(AUDIT).splitlines()]
    return [(line["topic"], line["event"]) for line in lines]


def test_two_erasures_at_once_leave_four_whole_lines() -> None:
    fs = PausingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        for name in ("a", "b"):
            store.create_topic(name).append(b"v", key=b"k")
        with fs.pause_at("pwrite", AUDIT) as pause:
            first = Running(store.erase, "a", [b"k"], reason="asked for")
            pause.wait_until_reached()
            second = Running(store.erase, "b", [b"k"], reason="asked for, in other words")
            second.ends_or_blocks()
        first.result()
        second.result()
    assert sorted(events(fs)) == [("a", "begin"), ("a", "end"), ("b", "begin"), ("b", "end")]


def test_a_line_that_was_cut_short_spoils_no_other() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        store.create_topic("a").append(b"v", key=b"k")
        fs.inject(Fault("pwrite", AUDIT, errno.ENOSPC, times=1, partial_bytes=20))
        with pytest.raises(DiskFullError):
            store.erase("a", [b"k"], reason="asked for")
        store.erase("a", [b"k"], reason="asked for")
    cut, *lines = fs.read_file(AUDIT).splitlines()
    assert len(cut) == 20
    assert [json.loads(line)["event"] for line in lines] == ["begin", "end"]
