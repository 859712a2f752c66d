"""A process that is short of descriptors for a moment: what was refused works again, nothing is offline."""

from __future__ import annotations

import errno

import pytest

import stratalog
from stratalog.errors import LogDirOfflineError, StorageError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.testing import ManualClock


def test_checkpoints_that_cannot_be_opened_take_no_directory_offline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs, clock = FailingFileSystem(MemoryFileSystem()), ManualClock()
    with stratalog.open("/d", fs=fs, clock=clock, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"a", sync=True)
        fs.inject(Fault("*", "*checkpoint*", error=errno.EMFILE))
        clock.advance(120_000)
        store.tick()
        assert "Too many open files" in caplog.text
        fs.heal()
        assert topic.append(b"b", sync=True).offset == 1
        store.create_topic("u").append(b"x")


def test_a_sidecar_that_cannot_be_opened_is_synced_by_the_next_round() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t")
        topic.append(b"a")
        topic.roll()
        fs.inject(Fault("open", "*.index", error=errno.EMFILE))
        with pytest.raises(StorageError, match="Too many open files"):
            topic.append(b"b", sync=True)
        fs.heal()
        assert topic.append(b"c", sync=True).offset == 2
        assert [record.value for record in topic.read()] == [b"a", b"b", b"c"]


def test_a_topic_is_not_created_where_every_directory_is_offline() -> None:
    fs, clock = FailingFileSystem(MemoryFileSystem()), ManualClock()
    with stratalog.open("/d", fs=fs, clock=clock, background=False) as store:
        store.create_topic("t").append(b"a", sync=True)
        fs.inject(Fault("*", "*checkpoint*", error=errno.EIO))
        clock.advance(120_000)
        store.tick()
        fs.heal()
        with pytest.raises(LogDirOfflineError, match="every log directory is offline"):
            store.create_topic("u")
