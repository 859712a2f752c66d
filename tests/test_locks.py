"""The order of locks, and what may happen under them: the table, its checker, and that the code uses it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import locks
from stratalog.fs import MemoryFileSystem
from stratalog.locks import Io
from stratalog.testing.locks import LockChecker, LockViolationError

SOURCE = Path(stratalog.__file__).parent
ENGINE = [path for room in ("log", "store", "archive") for path in sorted((SOURCE / room).rglob("*.py"))]


@pytest.fixture
def checker() -> Iterator[LockChecker]:
    with LockChecker().active() as checker:
        yield checker


def names(io: Io) -> list[str]:
    return [rank.name for rank in locks.ORDER if rank.io == io]


def test_plain_locks_unless_a_test_asks(lock_checker: LockChecker) -> None:
    before = locks.use(locks.PLAIN)
    try:
        assert type(locks.lock("handles")) is type(threading.Lock())
        assert type(locks.rlock("partition")) is type(threading.RLock())
        assert type(locks.condition("claims")) is locks.Condition
    finally:
        locks.use(before)


def test_locks_in_order_pass_and_are_seen(checker: LockChecker) -> None:
    with locks.rlock("partition.maintenance") as _, locks.rlock("partition"), locks.lock("handles"):
        assert [each.name for each in checker.held] == ["partition.maintenance", "partition", "handles"]
    assert checker.held == []
    assert ("partition", "handles") in checker.edges


def test_a_wrong_order_raises_and_is_kept(checker: LockChecker) -> None:
    outer, inner = locks.rlock("partition"), locks.rlock("partition.maintenance")
    with (
        outer,
        pytest.raises(LockViolationError, match="'partition.maintenance' is taken under 'partition'"),
        inner,
    ):
        pass
    assert len(checker.violations) == 1
    assert "test_a_wrong_order_raises_and_is_kept" in checker.violations[0]


def test_two_locks_of_one_name_are_not_held_together(checker: LockChecker) -> None:
    one, other = locks.rlock("partition"), locks.rlock("partition")
    with one, pytest.raises(LockViolationError), other:
        pass
    with one, one:  # the same one may be taken again
        pass


def test_a_lock_that_is_only_tried_may_come_in_any_order(checker: LockChecker) -> None:
    with locks.lock("handles"):
        writer = locks.rlock("partition")
        assert writer.acquire(blocking=False)
        writer.release()


@pytest.mark.parametrize("name", names(Io.MEMORY))
def test_no_file_is_touched_under_a_lock_of_memory(checker: LockChecker, name: str) -> None:
    fs = MemoryFileSystem()
    with locks.lock(name), pytest.raises(LockViolationError, match=r"open \(FILES\)"):
        fs.open("/f", "x")
    assert not fs.exists("/f")


@pytest.mark.parametrize("name", names(Io.FILES))
def test_no_fsync_under_a_lock_of_files(checker: LockChecker, name: str) -> None:
    fs = MemoryFileSystem()
    with locks.lock(name), fs.open("/f", "x") as file:
        file.pwrite(b"x", 0)
        with pytest.raises(LockViolationError, match=r"sync \(SYNC\)"):
            file.sync()
        with pytest.raises(LockViolationError, match=r"sync_dir \(SYNC\)"):
            fs.sync_dir("/")


def test_nobody_waits_under_a_lock_that_forbids_it(checker: LockChecker) -> None:
    condition = locks.condition("deletions")
    with condition.lock:
        assert not condition.wait_for(lambda: False, 0.001)
    with locks.rlock("partition"), condition.lock, pytest.raises(LockViolationError, match="waiting"):
        condition.wait(0.001)


def test_another_thread_is_not_held_responsible(checker: LockChecker) -> None:
    fs, errors = MemoryFileSystem(), []

    def write() -> None:
        try:
            fs.write_file("/f", b"x", sync=True)
        except LockViolationError as error:
            errors.append(error)

    with locks.rlock("registry"):
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert not errors


def test_the_engine_makes_its_locks_here_and_the_table_has_no_idle_row() -> None:
    used = set()
    for path in [*ENGINE, SOURCE / "fs" / "handles.py"]:
        text = path.read_text()
        assert not re.search(r"threading\.(R?Lock|Condition|Semaphore|Event)\(", text), path
        used |= set(re.findall(r'\blocks\.(?:lock|rlock|condition)\(\s*"([^"]+)"\)', text))
    assert used == {rank.name for rank in locks.ORDER}


def test_the_lock_of_a_condition_is_taken_in_one_step() -> None:
    """An interrupt inside `Condition.__enter__` would leave the lock taken."""
    for path in ENGINE:
        for name in re.findall(r"(self\.\w+) = locks\.condition\(", path.read_text()):
            assert f"with {name}:" not in path.read_text(), path
