"""An operation that is cut short at any filesystem call: the same open log goes on, nothing is wrong later.

Whatever was acknowledged keeps its offset and its record; what was not may be there or not; no offset is
given out twice; the log is neither damaged nor read-only.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.errors import DiskFullError, StorageError
from stratalog.fs import MemoryFileSystem
from stratalog.log.write import writer
from stratalog.store.lifecycle.reports import verify
from stratalog.store.topic import Topic
from tests.log.cut_short import CuttingFileSystem, When
from tests.store.test_door import make_batch

CONFIG = {
    "segment.bytes": 4096,
    "index.interval.bytes": 0,
    "key.index.enable": True,
    "min.compaction.lag.ms": 0,
    "file.delete.delay.ms": 0,
}
Acknowledged = dict[int, bytes | None]


def open_store(fs: CuttingFileSystem) -> Store:
    return stratalog.open("/data", fs=fs, background=False)


def appends(topic: Topic, done: Acknowledged) -> None:
    for number in range(4):
        value = b"one-%d" % number
        done[topic.append(value, key=b"k%d" % number).offset] = value


def synced_appends(topic: Topic, done: Acknowledged) -> None:
    for number in range(3):
        value = b"synced-%d" % number
        done[topic.append(value, key=b"s", sync=True).offset] = value


def many(topic: Topic, done: Acknowledged) -> None:
    records = [Record(b"many-%d" % number + b"x" * 200, b"m%d" % number) for number in range(40)]
    for placed in topic.append_many(records, sync=True):
        for number, record in enumerate(records):
            done[placed.offset + number] = record.value


def idempotent(topic: Topic, done: Acknowledged) -> None:
    for sequence in range(3):
        batch = make_batch([b"batch-%d" % sequence], producer_id=7, epoch=0, sequence=sequence)
        for _ in range(2):  # every batch is sent twice
            done[topic.append_batches(0, batch, sync=True).base_offset] = b"batch-%d" % sequence


def rolls(topic: Topic, done: Acknowledged) -> None:
    done[topic.append(b"before", key=b"r").offset] = b"before"
    topic.roll()
    done[topic.append(b"after", key=b"r", sync=True).offset] = b"after"


def contents(topic: Topic) -> Acknowledged:
    return {record.offset: record.value for record in topic.read()}


def check(topic: Topic, done: Acknowledged) -> Acknowledged:
    found = contents(topic)
    assert {offset: found.get(offset) for offset in done} == done
    return found


def interrupted(
    work: Callable[[Topic, Acknowledged], None],
    at: int,
    when: When,
    error: Callable[[], BaseException] = KeyboardInterrupt,
    names: list[str] | None = None,
) -> int:
    """Interrupt ``work`` at one call and check what comes of it; return how many calls it makes.

    ``names`` takes the calls that were made.
    """
    inner = MemoryFileSystem()
    fs = CuttingFileSystem(inner)
    done: Acknowledged = {}
    store = open_store(fs)
    topic = store.create_topic("t", config=CONFIG)
    for number in range(3):
        done[topic.append(b"early-%d" % number, key=b"e").offset] = b"early-%d" % number
    fs.arm(at, when, error)
    try:
        work(topic, done)
    except (KeyboardInterrupt, MemoryError, StorageError, OSError):
        pass
    calls = fs.disarm()
    if names is not None:
        names += fs.names
    where = f"{fs.names[at] if at >= 0 else 'nothing'} ({when})"
    seen = check(topic, done)
    for number in range(3):
        placed = topic.append(b"later-%d" % number, key=b"l", sync=True)
        assert placed.offset not in seen, where
        done[placed.offset] = b"later-%d" % number
    topic.append_many([Record(b"bulk", b"b")] * 30)
    topic.roll()
    assert topic.get(b"l").value == b"later-2", where
    before = check(topic, done)
    store.close()
    with open_store(fs) as store:
        assert check(store.topic("t"), done) == before, where
        assert not verify(store).damages, where
    return calls


WORKS = [appends, synced_appends, many, idempotent, rolls]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("when", ["before", "half", "after"])
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_the_same_log_goes_on(
    work: Callable[[Topic, Acknowledged], None], when: When, error: Callable[[], BaseException]
) -> None:
    calls = interrupted(work, -1, when)
    assert calls > 3
    for at in range(calls):
        interrupted(work, at, when, error)


def rolls_unsynced(topic: Topic, done: Acknowledged) -> None:
    for number in range(3):
        value = b"rolled-%d" % number
        done[topic.append(value, key=b"r").offset] = value
        topic.roll()


@pytest.mark.parametrize("work", [appends, rolls_unsynced], ids=lambda work: work.__name__)
def test_an_unexpected_error_costs_no_offset(work: Callable[[Topic, Acknowledged], None]) -> None:
    """One that is none of ours, as when the directory is gone for a moment."""
    calls = interrupted(work, -1, "before")
    for at in range(calls):
        interrupted(work, at, "before", lambda: FileNotFoundError(errno.ENOENT, "gone for a moment"))


def appends_with_entries(topic: Topic, done: Acknowledged) -> None:
    """Every one is newer than all before it, so that each has an entry in the time index too."""
    now = int(time.time() * 1000)
    for number in range(10):
        value = b"indexed-%d" % number
        done[topic.append(value, timestamp=now + (number + 1) * 60_000).offset] = value


ERRORS: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "gone": lambda: FileNotFoundError(errno.ENOENT, "gone for a moment"),
    "EIO": lambda: StorageError("EIO"),
    "full": lambda: DiskFullError("no room"),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_an_index_that_cannot_be_written_behind_costs_no_append(
    monkeypatch: pytest.MonkeyPatch, when: When, error: str
) -> None:
    monkeypatch.setattr(writer, "WRITE_BEHIND_ENTRIES", 4)
    names: list[str] = []
    interrupted(appends_with_entries, -1, when, names=names)
    behind = [at for at, name in enumerate(names) if name.endswith("index")]
    assert {names[at].partition(" ")[0] for at in behind} == {"open", "pwrite"}
    for at in behind:
        interrupted(appends_with_entries, at, when, ERRORS[error])
