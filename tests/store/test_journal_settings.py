"""Decided commits whose topics change before they are finished: none may stick, none may come half."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog import errors
from stratalog.format.journal import StagedFile
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.journal import staging
from stratalog.testing import ManualClock, MemoryFileSystem
from tests.store.staged import LIVE, stage, staged_files, values

ROWS = [(b"%05d" % at).ljust(500, b".") for at in range(60)]
BATCH_ROWS = 10


@pytest.fixture
def store() -> Iterator[stratalog.Store]:
    clock = ManualClock()
    fs = MemoryFileSystem(clock=clock.now_ns)
    with stratalog.open("/data/log", fs=fs, clock=clock, background=False) as opened:
        opened.create_topic("t", 1, {"segment.bytes": 64 << 10, "retention.ms": -1})
        yield opened


def staged(store: stratalog.Store, *, keyed: bool = True) -> list[StagedFile]:
    """Some batches for t-0, in one file that is to be appended."""
    context = store.partitions.context
    place = staging.Place("q", 0, LIVE)
    facts = staging.facts_of(store, "t")
    attempt = staging.Attempt(context.fs, place, lambda _: facts, now_ms=context.clock.now_ms)
    for at in range(0, len(ROWS), BATCH_ROWS):
        columns = {"value": pa.array(ROWS[at : at + BATCH_ROWS], pa.binary())}
        if keyed:
            columns["key"] = pa.array([row[:5] for row in ROWS[at : at + BATCH_ROWS]], pa.binary())
        attempt.add("t", 0, pa.RecordBatch.from_pydict(columns))
        for key in list(attempt._gathered):
            attempt._encode(key)
    return [file._replace(whole=False) for file in attempt.finish()]


@contextmanager
def full_after(monkeypatch: pytest.MonkeyPatch, offset: int, topic: str = "t") -> Iterator[None]:
    """A disk without room for what lies past an offset."""
    plain = PartitionWriter.write_batches

    def write(self: PartitionWriter, *arguments: Any) -> Any:
        if self.topic == topic and self.next_offset >= offset:
            raise errors.DiskFullError("no room")
        return plain(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(PartitionWriter, "write_batches", write)
        yield


def half(store: stratalog.Store, files: list[StagedFile], monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide a commit, of which only the first half reaches the log."""
    monkeypatch.setattr("stratalog.store.journal.journal.APPEND_BYTES", 1)
    with full_after(monkeypatch, 30), pytest.raises(errors.DiskFullError):
        store.commit_staged("q", 0, files)
    assert values(store, "t") == ROWS[:30]
    assert len(store.journal.pending) == 1


def later(store: stratalog.Store) -> None:
    clock = store.partitions.context.clock
    assert isinstance(clock, ManualClock)
    store.alter_topic("t", {"message.timestamp.before.max.ms": 60_000})
    clock.advance(3_600_000)


CHANGES: dict[str, Callable[[stratalog.Store], object]] = {
    "max.message.bytes": lambda store: store.alter_topic("t", {"max.message.bytes": 1000}),
    "segment.bytes": lambda store: store.alter_topic("t", {"segment.bytes": 4096}),
    "keys": lambda store: store.alter_topic("t", {"cleanup.policy": "compact"}),
    "codec": lambda store: store.alter_topic("t", {"compression.type": "gzip", "max.message.bytes": 100}),
    "LogAppendTime": lambda store: store.alter_topic("t", {"message.timestamp.type": "LogAppendTime"}),
    "timestamps": later,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("reopened", [False, True])
def test_settings_of_today_do_not_stop_what_was_decided(
    store: stratalog.Store, monkeypatch: pytest.MonkeyPatch, change: str, reopened: bool
) -> None:
    half(store, staged(store, keyed=change != "keys"), monkeypatch)
    CHANGES[change](store)
    if reopened:
        store.close()
        context = store.partitions.context
        store = stratalog.open("/data/log", fs=context.fs, clock=context.clock, background=False)
        assert values(store, "t") == ROWS
    assert store.commit_staged("q", 0, []).duplicate
    assert values(store, "t") == ROWS
    assert staged_files(store) == []
    assert store.journal.pending == ()
    assert stratalog.verify(store).damages == ()
    if change == "keys":
        store.topic("t").roll()
        store.compact("t")
    store.close()


def test_the_same_settings_refuse_what_is_not_decided_yet(store: stratalog.Store) -> None:
    large, keyless = staged(store), staged(store, keyed=False)
    store.alter_topic("t", {"max.message.bytes": 1000})
    with pytest.raises(errors.RecordTooLargeError):
        store.commit_staged("q", 0, large)
    store.alter_topic("t", {"max.message.bytes": 1 << 20, "cleanup.policy": "compact"})
    with pytest.raises(errors.InvalidRecordError):
        store.commit_staged("q", 0, keyless)
    assert store.journal.pending == ()
    assert store.commit_staged("q", 0, large).records == 60


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_topic_gets_nothing_and_the_others_all(
    store: stratalog.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    """Made anew, it is another topic: half of an old commit must not turn up in it."""
    store.create_topic("u", 1)
    files = [*staged(store), *stage(store, "q", 0, {("u", 0): [b"kept"]})]
    half(store, files, monkeypatch)
    store.delete_topic("t")
    if again:
        store.create_topic("t", 1)
    assert store.commit_staged("q", 0, []).duplicate
    assert values(store, "u") == [b"kept"]
    assert not again or values(store, "t") == []
    assert "commit q/0: 60 records for t-0 are left out: " in caplog.text
    assert staged_files(store) == []
    assert store.journal.pending == ()


def test_what_was_staged_for_a_topic_of_the_same_name_is_refused(store: stratalog.Store) -> None:
    files = staged(store)
    store.delete_topic("t")
    store.create_topic("t", 1)
    with pytest.raises(
        errors.UnknownTopicError, match="'t' was deleted and created again since q@0@.* was staged"
    ):
        store.commit_staged("q", 0, files)
    store.commit_staged("q", 0, staged(store))
    assert values(store, "t") == ROWS


def retained(store: stratalog.Store) -> None:
    store.topic("t").append(b"x" * 3000, b"k")
    store.topic("t").roll()
    store.alter_topic("t", {"retention.bytes": 1})
    store.retain("t")


def compacted(store: stratalog.Store) -> None:
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.0,
        "cleaner.min.segment.age.ms": 0,
    }
    store.alter_topic("t", settings)
    for row in ROWS:
        store.topic("t").append(b"newer", row[:1])
    store.topic("t").roll()
    store.compact("t")


@pytest.mark.parametrize("then", [retained, compacted])
def test_a_segment_that_was_taken_in_may_change_before_the_rest_is(
    store: stratalog.Store, monkeypatch: pytest.MonkeyPatch, then: Callable[[stratalog.Store], object]
) -> None:
    """It is not looked for again: retention or compaction may have taken it in the meantime."""
    store.alter_topic("t", {"segment.bytes": 4096, "file.delete.delay.ms": 0})
    store.create_topic("u", 1)
    files = stage(store, "q", 0, {("t", 0): ROWS[:15], ("u", 0): ROWS[:3]})
    assert [file.whole for file in files] == [True, True, False, False]
    with full_after(monkeypatch, 0, "u"), pytest.raises(errors.DiskFullError):
        store.commit_staged("q", 0, files)
    assert values(store, "t") == ROWS[:15]
    before = store.topic("t").segments(0)[0].size_bytes
    then(store)
    left = store.topic("t").segments(0)
    assert left[0].base_offset > 0 or left[0].size_bytes != before
    assert store.commit_staged("q", 0, []).duplicate
    assert values(store, "u") == ROWS[:3]
    assert [value for value in values(store, "t") if value in ROWS].count(ROWS[14]) <= 1
    assert staged_files(store) == []


def test_who_waits_is_told_for_what(store: stratalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    half(store, staged(store), monkeypatch)
    other = stage(store, "other", 7, {("t", 0): [b"next"]})
    with (
        full_after(monkeypatch, 0),
        pytest.raises(errors.StorageError, match="other/7 waits for q/0, .* not finished: no room"),
    ):
        store.commit_staged("other", 7, other)
    store.commit_staged("other", 7, other)
    assert values(store, "t") == [*ROWS, b"next"]
