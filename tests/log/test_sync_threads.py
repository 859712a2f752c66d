"""Syncs for those who must not block: several at a time, every job once, and no thread left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import stratalog
from stratalog.log import context
from stratalog.log.context import SYNC_THREADS, SyncThreads
from tests.store.test_door import make_batch

WAIT_S = 60


def test_as_many_jobs_as_there_are_threads_run_at_once() -> None:
    together = threading.Barrier(SYNC_THREADS, timeout=WAIT_S)
    done = threading.Semaphore(0)
    threads = SyncThreads()

    def job() -> None:
        together.wait()
        done.release()

    for _ in range(3 * SYNC_THREADS):
        threads.submit(job)
    for _ in range(3 * SYNC_THREADS):
        assert done.acquire(timeout=WAIT_S)
    assert sum(each.name == "stratalog-sync" for each in threading.enumerate()) <= SYNC_THREADS


def test_threads_end_without_work_and_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LINGER_S", 0.01)
    threads = SyncThreads()
    for _ in range(3):
        ran: list[threading.Thread] = []
        done = threading.Event()

        def job(ran: list[threading.Thread] = ran, done: threading.Event = done) -> None:
            ran.append(threading.current_thread())
            done.set()

        threads.submit(job)
        assert done.wait(WAIT_S)
        ran[0].join(WAIT_S)
        assert not ran[0].is_alive()


def test_a_job_that_fails_does_not_keep_the_next() -> None:
    threads = SyncThreads()
    done = threading.Event()

    def wrong() -> None:
        raise OSError("a disk")

    for _ in range(2 * SYNC_THREADS):
        threads.submit(wrong)
    threads.submit(done.set)
    assert done.wait(WAIT_S)


def test_many_partitions_and_rounds_are_all_durable(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("safe", partitions=8, config={"flush.messages": 1})
        waits = []
        for number in range(200):
            placed = topic.append_batches(number % 8, make_batch([b"v"]), wait=False)
            waits.append(topic.durable(number % 8, placed.last_offset + 1))
        assert all(each.wait(WAIT_S) for each in waits)
        assert [topic.when(each, "synced", 25).done for each in range(8)] == [True] * 8
