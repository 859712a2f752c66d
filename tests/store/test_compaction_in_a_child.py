"""Beside a broker partitions are compacted by a child, whatever becomes of it, the store or the topic."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.broker import Broker
from stratalog.store.lifecycle import children, lifecycle, remote_compaction
from stratalog.store.lifecycle.children import ChildProcess
from stratalog.store.store import Store
from tests.store.lifecycle_support import COMPACT

SETTINGS = {key.replace("_", "."): value for key, value in COMPACT.items()}
KEYS = 50
SLOW: dict[str, object] = {"log.cleaner.io.max.bytes.per.second": 20_000}
"""A round over `filled` takes minutes."""


def filled(path: Path, config: Mapping[str, object] | None = None, *, partitions: int = 1) -> Store:
    """A store that is served, as far as the lifecycle can tell."""
    store = stratalog.open(path / "log", config)
    topic = store.create_topic("t", partitions, SETTINGS)
    for partition in range(partitions):
        for turn in range(6):
            topic.append_many(
                [Record(os.urandom(500), b"k%d" % (at % KEYS)) for at in range(400)], partition=partition
            )
            topic.append(b"%d" % turn, b"last", partition=partition)
            topic.roll(partition)
    store.partitions.served = True
    return store


@pytest.fixture(autouse=True)
def _every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "WORTH_A_CHILD_BYTES", 0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ChildProcess]]:
    """The processes that were started; at the end of the test none of them lives."""
    made: list[ChildProcess] = []
    begin = ChildProcess.__init__

    def noted(self: ChildProcess, stopping: Callable[[], bool]) -> None:
        begin(self, stopping)
        made.append(self)

    monkeypatch.setattr(ChildProcess, "__init__", noted)
    yield made
    assert not [each.pid for each in made if alive(each.pid)]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_for(what: Callable[[], object], seconds: float = 20.0) -> None:
    until_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def leftovers(tmp_path: Path) -> list[Path]:
    found = [path for path in tmp_path.rglob("*") if path.suffix in (".cleaned", ".swap")]
    return [*found, *tmp_path.glob("log/*-delete"), *tmp_path.glob("log.staging*")]


def latest(store: Store) -> list[tuple[bytes | None, bytes | None]]:
    newest = {record.key: record.value for record in store.topic("t").read(0)}
    return sorted(newest.items(), key=repr)


class Compacting:
    """A round in a thread, of which the child is at work when the constructor returns."""

    def __init__(self, store: Store) -> None:
        self.notes: tuple[str, ...] = ()
        self.error: Exception | None = None
        self._store = store
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._begun.wait(20)

    def _run(self) -> None:
        try:
            self.notes = self._store.compact("t", force=True, progress=lambda *_: self._begun.set()).notes
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


# -- when all goes well --------------------------------------------------------------------------------------


def test_one_child_compacts_every_partition_of_a_round(tmp_path: Path, started: list[ChildProcess]) -> None:
    with filled(tmp_path, partitions=3) as store:
        before = latest(store)
        seen: list[str] = []
        report = store.compact("t", force=True, progress=lambda name, done, total: seen.append(name))
        assert len(report.compactions) == 3
        assert report.notes == ()
        assert {each["records_after"] for each in report.compactions} == {KEYS + 1}
        assert len(started) == 1
        assert latest(store) == before
        assert stratalog.verify(store).ok
        assert not leftovers(tmp_path)


def test_only_a_broker_has_children_and_only_for_what_is_worth_one(
    tmp_path: Path, started: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path) as store:
        store.partitions.served = False
        with Broker(store):
            assert store.partitions.served
            monkeypatch.setattr(lifecycle, "WORTH_A_CHILD_BYTES", 1 << 40)
            assert len(store.compact("t", force=True).compactions) == 1
            assert not started
            monkeypatch.setattr(lifecycle, "WORTH_A_CHILD_BYTES", 0)
            store.topic("t").append(b"", b"last", partition=0)
            store.topic("t").roll(0)
            assert len(store.compact("t", force=True).compactions) == 1
            assert len(started) == 1
        assert not store.partitions.served


def test_a_child_yields_the_processor(tmp_path: Path, started: list[ChildProcess]) -> None:
    with filled(tmp_path, SLOW) as store:
        running = Compacting(store)
        assert os.getpriority(os.PRIO_PROCESS, started[0].pid) > os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getsid(started[0].pid) != os.getsid(0)
    running.join()


# -- when the child does not ---------------------------------------------------------------------------------


def test_a_child_that_is_killed_costs_a_round(tmp_path: Path, started: list[ChildProcess]) -> None:
    with filled(tmp_path, SLOW) as store:
        before = latest(store)
        running = Compacting(store)
        os.kill(started[0].pid, signal.SIGKILL)
        running.join()
        (note,) = running.notes
        assert "t-0: compaction failed: the process that compacts ended: status -9" in note
        assert not leftovers(tmp_path)
        assert latest(store) == before
        assert stratalog.verify(store).ok


def test_a_child_that_hangs_is_killed(
    tmp_path: Path, started: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_compaction, "LOAN_S", 3.0)
    with filled(tmp_path, SLOW) as store:
        running = Compacting(store)
        os.kill(started[0].pid, signal.SIGSTOP)
        running.join()
        (note,) = running.notes
        assert "t-0: compaction failed: the process that compacts was silent for 3 s: it was killed" in note
        assert not leftovers(tmp_path)
        assert stratalog.verify(store).ok


def test_a_loan_is_extended_while_the_child_is_heard_of(
    tmp_path: Path, started: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    extend, extended = remote_compaction.Loans.extend, 0

    def counted(self: remote_compaction.Loans, tokens: Sequence[str]) -> list[str]:
        nonlocal extended
        found = extend(self, tokens)
        extended += len(found)
        return found

    monkeypatch.setattr(remote_compaction, "LOAN_S", 2.0)
    monkeypatch.setattr(remote_compaction.Loans, "extend", counted)
    with filled(tmp_path, {"log.cleaner.io.max.bytes.per.second": 500_000}) as store:
        report = store.compact("t", force=True)
        assert extended >= 3  # once a second, so the loan of two seconds is over without it
        assert len(report.compactions) == len(started) == 1
        assert report.notes == ()


def test_an_error_of_the_child_is_told(
    tmp_path: Path, started: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot write: here for a limit to the size of files, which acts as a full disk does."""
    begin = ChildProcess.__init__

    def limited(self: ChildProcess, stopping: Callable[[], bool]) -> None:
        begin(self, stopping)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (1000, 1000))

    monkeypatch.setattr(ChildProcess, "__init__", limited)
    with filled(tmp_path) as store:
        before = latest(store)
        (note,) = store.compact("t", force=True).notes
        assert note.startswith("t-0: compaction failed: ")
        assert "File too large" in note
        assert not leftovers(tmp_path)
        assert latest(store) == before
        assert stratalog.verify(store).ok
        monkeypatch.setattr(ChildProcess, "__init__", begin)
        assert len(store.compact("t", force=True).compactions) == 1


def test_a_child_without_memory_fails_alone(
    tmp_path: Path, started: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ChildProcess.__init__

    def limited(self: ChildProcess, stopping: Callable[[], bool]) -> None:
        begin(self, stopping)
        resource.prlimit(self.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))

    monkeypatch.setattr(ChildProcess, "__init__", limited)
    with filled(tmp_path) as store:
        (note,) = store.compact("t", force=True).notes
        assert note.startswith("t-0: compaction failed: ")
        assert not leftovers(tmp_path)
        assert stratalog.verify(store).ok


@pytest.mark.parametrize("how", ["no program", "another program", "hangs"])
def test_without_a_child_a_thread_compacts_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    program = tmp_path / "program"
    if how != "no program":
        program.write_text("#!/bin/sh\n" + ("exec sleep 60" if how == "hangs" else "echo no >&2; exit 3"))
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(children, "START_S", 0.5)
    with filled(tmp_path, partitions=2) as store, caplog.at_level(logging.WARNING, "stratalog"):
        report = store.compact("t", force=True)
        assert len(report.compactions) == 2
        (line,) = [each.getMessage() for each in caplog.records]
        assert line.startswith("compacting in a thread")
        told = {"no program": "No such file", "another program": "status 3: no", "hangs": "is not ready"}
        assert told[how] in line
        assert not leftovers(tmp_path)
        assert stratalog.verify(store).ok


def test_without_room_for_a_copy_a_thread_compacts_group_by_group(
    tmp_path: Path, started: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path) as store:
        monkeypatch.setattr(type(store.partitions.context.fs), "free_bytes", lambda self, path: 1_000_000)
        assert len(store.compact("t", force=True).compactions) == 1
        assert not started
        assert not leftovers(tmp_path)


# -- when something happens to the store or the topic --------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
def test_a_store_that_closes_waits_for_no_child(
    tmp_path: Path, started: list[ChildProcess], stopped: bool
) -> None:
    store = filled(tmp_path, SLOW)
    before = latest(store)
    running = Compacting(store)
    if stopped:
        os.kill(started[0].pid, signal.SIGSTOP)
    began_s = time.monotonic()
    store.close()
    assert time.monotonic() - began_s < 5
    running.join()
    with stratalog.open(tmp_path / "log") as again:
        assert latest(again) == before
        assert stratalog.verify(again).ok
    assert not leftovers(tmp_path)


def test_a_topic_is_deleted_without_waiting(tmp_path: Path, started: list[ChildProcess]) -> None:
    with filled(tmp_path, SLOW) as store:
        running = Compacting(store)
        began_s = time.monotonic()
        store.delete_topic("t")
        assert time.monotonic() - began_s < 5
        running.join()
        assert "another operation is running on it" in running.notes[0]
        wait_for(lambda: not leftovers(tmp_path))


def test_keys_are_erased_without_waiting(tmp_path: Path, started: list[ChildProcess]) -> None:
    with filled(tmp_path, SLOW) as store:
        running = Compacting(store)
        store.partitions.served = False
        os.kill(started[0].pid, signal.SIGSTOP)
        assert store.erase("t", [b"last"], dry_run=True)
        with store.partitions.claims.claim(("t", 0)):
            running.join()
        assert "another operation is running on it" in running.notes[0]
        assert not leftovers(tmp_path)
        assert stratalog.verify(store).ok


def test_a_topic_that_is_no_longer_compacted_stays_as_it_is(
    tmp_path: Path, started: list[ChildProcess]
) -> None:
    with filled(tmp_path, {"log.cleaner.io.max.bytes.per.second": 400_000}) as store:
        before = list(store.topic("t").read(0))
        running = Compacting(store)
        store.alter_topic("t", {"cleanup.policy": "delete", "retention.ms": -1})
        running.join()
        assert running.notes == ("t-0: not finished: the topic is no longer compacted",)
        assert list(store.topic("t").read(0)) == before
        assert not leftovers(tmp_path)


# -- when the parent ends ------------------------------------------------------------------------------------

PARENT = """
import json, sys, threading, time
import stratalog
from pathlib import Path
from stratalog.store.lifecycle import lifecycle
from stratalog.store.lifecycle.children import ChildProcess
from tests.store import test_compaction_in_a_child as own
lifecycle.WORTH_A_CHILD_BYTES = 0
begin = ChildProcess.__init__
pids = []
def noted(self, stopping):
    begin(self, stopping)
    pids.append(self.pid)
ChildProcess.__init__ = noted
store = own.filled(Path(sys.argv[1]), own.SLOW)
store.compact("t", force=True, progress=lambda *_: print(pids[0], flush=True))
"""


@pytest.mark.parametrize("how", ["kill", "kill while it is stopped", "interrupt"])
def test_a_child_does_not_outlive_its_parent(tmp_path: Path, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if how == "kill while it is stopped":
            os.kill(child, signal.SIGSTOP)
        os.killpg(parent.pid, signal.SIGINT if how == "interrupt" else signal.SIGKILL)
        parent.wait(20)
    if how == "kill while it is stopped":
        with stratalog.open(tmp_path / "log") as store:  # it holds no lock
            assert len(latest(store)) == KEYS + 1
        assert not leftovers(tmp_path)
        os.kill(child, signal.SIGCONT)
    wait_for(lambda: not alive(child))
    with stratalog.open(tmp_path / "log") as store:
        assert len(latest(store)) == KEYS + 1
        assert stratalog.verify(store).ok
    assert not leftovers(tmp_path)


def test_a_child_that_nobody_talks_to_ends(tmp_path: Path) -> None:
    """A fork of the parent may keep the pipe open; the child looks who its parent is."""
    code = "from stratalog.log.clean.child import main; main(1)"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert "ready" in json.loads(process.stdout.readline())
        assert process.wait(20) == 0
