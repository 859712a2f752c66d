"""Compaction by somebody else: the same bytes as our own, whatever crashes, and loans that end."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.fs import HandleCache, MemoryFileSystem, RealFileSystem
from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask, clean_elsewhere
from stratalog.log.context import LogContext
from stratalog.store import connect
from stratalog.store.lifecycle import remote_compaction
from stratalog.store.store import Store
from stratalog.testing import ManualClock, read_raw
from tests.crash.driver import CONFIG, ROOT
from tests.crash.test_compaction_calls import TOPIC, KeyedLog, crash_everywhere, quietly
from tests.store.lifecycle_support import COMPACT

FULL = os.environ.get("STRATALOG_CRASH") == "full"


def elsewhere(
    store: Store, fs: MemoryFileSystem | RealFileSystem, topic: str, partition: int = 0
) -> list[str]:
    """What a borrower does, in this process; why it ended early, if it did."""
    report, token, task = store.lend_compaction(topic, partition, force=True)
    if task is None:
        return list(report.notes)
    cleaned = clean_elsewhere(
        CleaningTask.from_json(task.to_json()), LogContext(fs, HandleCache(fs, 20)), attempt="0-a"
    )
    done = store.take_in_compaction(token, Cleaned.from_json(cleaned.to_json()))
    assert done is not None
    return [done.stopped] if done.stopped else []


def compact_elsewhere(log: KeyedLog) -> None:
    assert log.store is not None
    assert elsewhere(log.store, log.fs, TOPIC) == []


def rounds(log: KeyedLog) -> None:
    """As the crash tests of our own compaction have it."""
    compact_elsewhere(log)
    quietly(log, lambda: log.fill(2))
    compact_elsewhere(log)
    log.clock.advance(2000)
    assert log.store is not None
    log.store.tick()
    compact_elsewhere(log)


def test_a_crash_at_every_call_leaves_old_or_new() -> None:
    tally = crash_everywhere(rounds, every=1 if FULL else 41, first=3, seeds=6 if FULL else 1)
    assert tally.points > (300 if FULL else 6)
    assert not tally.failures, tally.report()


# -- the same bytes ----------------------------------------------------------------------------------------


def tree(fs: MemoryFileSystem, directory: str) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and its time, except those that say when they were written."""
    return {
        name: (
            fs.read_file(f"{directory}/{name}"),
            fs.stat(f"{directory}/{name}").mtime_ns if "log" in name else 0,
        )
        for name in fs.list_dir(directory)
        if name.endswith((".log", ".index", ".timeindex", ".txnindex", ".seal", ".keyindex", ".snapshot"))
    }


def fill(topic: stratalog.Topic, clock: ManualClock, rng: random.Random, *, keys: int) -> None:
    for _ in range(rng.randint(4, 9)):
        for _ in range(rng.randint(1, 6)):
            rows = [
                Record(
                    None if rng.random() < 0.1 else os.urandom(rng.randint(0, 60)),
                    b"k%d" % rng.randrange(keys),
                )
                for _ in range(rng.randint(1, 40))
            ]
            topic.append_many(rows, partition=0)
            clock.advance(rng.randint(0, 400))
        topic.roll(0)


@pytest.mark.parametrize("seed", range(40 if FULL else 4))
def test_somebody_else_makes_the_same_files_byte_for_byte(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, clock = random.Random(seed), ManualClock()
    passes = seed % 3 == 0  # so little memory that one pass does not do
    if passes:
        from stratalog.store.lifecycle.lifecycle import Lifecycle

        monkeypatch.setattr(Lifecycle, "cleaning_memory", lambda self, count: (1, 2000))
    fs = MemoryFileSystem(clock=clock.now_ns)
    settings = {
        **{name.replace("_", "."): value for name, value in COMPACT.items()},
        "delete.retention.ms": 500,
        "segment.bytes": rng.choice([2000, 8000, 1 << 20]),
        "key.index.enable": seed % 2 == 0,
        "compression.type": rng.choice(["producer", "lz4", "zstd"]),
        "max.message.bytes": 1500,
        "index.interval.bytes": 200,
    }
    with stratalog.open(ROOT, CONFIG, fs=fs, clock=clock, background=False) as store:
        fill(store.create_topic("t", 1, settings), clock, rng, keys=200 if passes else 30)
    for _ in range(3):
        ours, theirs = fs.survivor("kill", rng), fs.survivor("kill", rng)
        for branch, other in ((ours, False), (theirs, True)):
            time = ManualClock(clock.now_ms())
            with stratalog.open(ROOT, CONFIG, fs=branch, clock=time, background=False) as store:
                if other:
                    assert elsewhere(store, branch, "t") == []
                else:
                    (report,) = store.compact(force=True).compactions
                    assert (report["passes"] > 1) == passes or report["bytes_read"] < 40_000
                assert stratalog.verify(store).ok
        assert tree(ours, f"{ROOT}/t-0") == tree(theirs, f"{ROOT}/t-0")
        name = f"{ROOT}/cleaner-offset-checkpoint"
        assert ours.read_file(name) == theirs.read_file(name)
        assert read_raw(ours, f"{ROOT}/t-0", "t", 0, gaps=True) == read_raw(
            theirs, f"{ROOT}/t-0", "t", 0, gaps=True
        )
        assert not theirs.exists(f"{ROOT}.staging")
        fs = theirs
        clock.advance(rng.choice([0, 600, 3_600_000]))
        with stratalog.open(ROOT, CONFIG, fs=fs, clock=clock, background=False) as store:
            fill(store.topic("t"), clock, rng, keys=200 if passes else 30)


# -- loans -------------------------------------------------------------------------------------------------


def some_store(tmp_path: Path) -> Store:
    store = stratalog.open(tmp_path / "log")
    topic = store.create_topic("t", 2, {key.replace("_", "."): value for key, value in COMPACT.items()})
    for partition in range(2):
        for _ in range(3):
            topic.append_many([Record(b"v" * 50, b"k%d" % (at % 7)) for at in range(60)], partition=partition)
            topic.roll(partition)
    return store


def staged(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("log.staging/*"))


def test_what_is_lent_is_left_alone_and_given_to_who_needs_it(tmp_path: Path) -> None:
    fs = RealFileSystem()
    with some_store(tmp_path) as store:
        report, token, task = store.lend_compaction("t", 0, force=True)
        assert task is not None
        assert [step.action for step in report.steps] == ["compact"]
        assert len(staged(tmp_path)) == 1
        assert store.lend_compaction("t", 0, force=True)[2] is None
        told = store.compact("t", force=True)
        assert [each["partition"] for each in told.compactions] == [1]
        assert "another operation is running" in told.notes[0]
        cleaned = clean_elsewhere(task, LogContext(fs, HandleCache(fs, 20)), attempt="0-a")
        store.topic("t").append(b"late", b"k1", partition=0)
        store.erase("t", [b"k3"])
        assert store.extend_loans([token]) == []
        done = store.take_in_compaction(token, cleaned)
        assert done is not None
        assert done.stopped == "another operation took the partition meanwhile"
        assert done.bytes_after == done.bytes_before
        assert not staged(tmp_path)
        assert {record.key for record in store.topic("t").read(0)} == {
            b"k%d" % at for at in (0, 1, 2, 4, 5, 6)
        }
        with pytest.raises(errors.ControlError, match="start it again"):
            store.take_in_compaction(token, cleaned)
        assert elsewhere(store, fs, "t") == []
        assert len(list(store.topic("t").read(0))) == 6
        assert stratalog.verify(store).ok
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".cleaned", ".swap")]


def test_a_borrower_that_is_not_heard_of_loses_its_loan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with some_store(tmp_path) as store:
        monkeypatch.setattr(remote_compaction, "LOAN_S", 0.0)
        _, token, task = store.lend_compaction("t", 0, force=True)
        assert task is not None
        assert store.extend_loans([token]) == []
        monkeypatch.setattr(remote_compaction, "LOAN_S", 60.0)
        _, later, again = store.lend_compaction("t", 0, force=True)
        assert again is not None
        assert [path.name for path in staged(tmp_path)] == [Path(again.work).name]
        fs = RealFileSystem()
        with pytest.raises(errors.StorageError, match="is not seen from"):
            clean_elsewhere(task, LogContext(fs, HandleCache(fs, 20)), attempt="0-a")
        assert store.extend_loans([token, later]) == [later]
        store.take_in_compaction(later, None)
        assert not staged(tmp_path)


def test_retention_beside_a_borrower_stops_it_and_wrong_answers_are_refused(tmp_path: Path) -> None:
    fs = RealFileSystem()
    with some_store(tmp_path) as store:
        _, token, task = store.lend_compaction("t", 0, force=True)
        assert task is not None
        cleaned = clean_elsewhere(task, LogContext(fs, HandleCache(fs, 20)), attempt="0-a")
        store.topic("t").delete_records(0, 61)
        done = store.take_in_compaction(token, cleaned)
        assert done is not None
        assert done.stopped is not None
        assert "the log changed meanwhile" in done.stopped
        _, token, task = store.lend_compaction("t", 1, force=True)
        assert task is not None
        cleaned = clean_elsewhere(task, LogContext(fs, HandleCache(fs, 20)), attempt="0-a")
        (made,) = cleaned.replacements
        wrong = made._replace(news=(made.news[0]._replace(folder="../../../log/t-0"),))
        with pytest.raises(errors.ControlError, match="not a segment that was written"):
            store.take_in_compaction(token, replace(cleaned, replacements=(wrong,)))
        assert stratalog.verify(store).ok
        assert not staged(tmp_path)


def test_the_holder_is_asked_through_its_socket_and_a_dead_one_leaves_nothing(tmp_path: Path) -> None:
    fs = RealFileSystem()
    with some_store(tmp_path) as store, connect(tmp_path / "log") as client:
        assert client.remote
        _, token, task = client.lend_compaction("t", 0, force=True)
        assert task is not None
        assert client.extend_loans([token]) == [token]
        cleaned = clean_elsewhere(task, LogContext(fs, HandleCache(fs, 20)), attempt="0-a")
        done = client.take_in_compaction(token, cleaned)
        assert done is not None
        assert done.stopped is None
        assert done.records_after < done.records_before
        assert len(list(store.topic("t").read(0))) == 7
        assert client.lend_compaction("t", 1, force=True)[2] is not None
    (left,) = staged(tmp_path)
    dead = left.rename(left.with_name(left.name.rpartition("@")[0] + "@1"))  # as of an earlier process
    with stratalog.open(tmp_path / "log"):
        assert not dead.exists()
