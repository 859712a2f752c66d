"""Exactly once under kills: the driver dies in the middle of a streaming write, again and again.

Tasks fail too, speculation is asked for, and the program that holds the store appends all the while. Five
kills in the short run, fifty with ``STRATALOG_CRASH=full``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import stratalog

FULL = os.environ.get("STRATALOG_CRASH") == "full"
KILLS = 50 if FULL else 5
ROWS = 80_000 if FULL else 12_000
DRIVER = Path(__file__).with_name("sink_driver.py")

pytestmark = pytest.mark.timeout(7200 if FULL else 900)


def start(log: Path, checkpoint: Path, master: str = "local[2,4]", *how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(log), str(checkpoint), master, *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def kill(driver: subprocess.Popen[str]) -> None:
    """The driver, its JVM and its workers, at once: only what this test started."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(60)
    assert driver.stdout is not None
    driver.stdout.close()


def finish(driver: subprocess.Popen[str]) -> None:
    out, _ = driver.communicate(timeout=600)
    assert out.split() == ["started", "done"], out
    assert driver.returncode == 0


def fill(store: stratalog.Store, rows: int) -> None:
    store.create_topic("in", 2)
    store.create_topic("out", 2, {"segment.bytes": 256 << 10})
    records = [stratalog.Record(b"%07d" % at + b"." * 40, b"%d" % (at % 97)) for at in range(rows)]
    for begin in range(0, rows, 100):
        store.topic("in").append_many(records[begin : begin + 100])


def written(store: stratalog.Store) -> list[bytes]:
    found = [record.value or b"" for partition in range(2) for record in store.topic("out").read(partition)]
    return [value for value in found if value[:1] != b"p"]


def wait_for(store: stratalog.Store, count: int, driver: subprocess.Popen[str], limit_s: float = 300) -> None:
    """Until so many records are in the topic, or the driver is done."""
    end = time.monotonic() + limit_s
    while sum(store.topic("out").log_end_offset(at) for at in range(2)) < count:
        assert time.monotonic() < end, "the stream does not move"
        if driver.poll() is not None:
            assert driver.returncode == 0, "the driver died by itself"
            return
        time.sleep(0.02)


def test_kills_of_the_driver_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    log, checkpoint, rng = tmp_path / "log", tmp_path / "checkpoint", random.Random(5)
    with stratalog.open(log) as store:
        fill(store, ROWS)
        stop = threading.Event()
        sent = [0, 0]

        def produce() -> None:
            while not stop.is_set():
                partition = rng.randrange(2)
                store.topic("out").append(b"p%06d" % sent[partition], partition=partition)
                sent[partition] += 1
                time.sleep(0.01)

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for _ in range(KILLS):
                driver = start(log, checkpoint, "local[2,4]", "failing")
                try:
                    wait_for(store, len(written(store)) + sum(sent) + 800, driver)
                    time.sleep(rng.random())
                finally:
                    kill(driver)
                found = written(store)
                assert len(found) == len(set(found))
            finish(start(log, checkpoint, "local[2,4]", "failing"))
        finally:
            stop.set()
            producer.join()
        found = written(store)
        assert len(found) == ROWS
        assert len(set(found)) == ROWS
        assert store.topic("in").high_watermark(0) + store.topic("in").high_watermark(1) == ROWS
        for partition in range(2):
            ours = [r.value or b"" for r in store.topic("out").read(partition) if r.value]
            assert [v for v in ours if v[:1] == b"p"] == [b"p%06d" % at for at in range(sent[partition])]
        assert stratalog.verify(store).damages == ()
        assert not log.with_name("log.staging").exists()
