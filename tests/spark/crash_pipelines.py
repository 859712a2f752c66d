"""Kills of an ingest followed by a replay: every line once in the topic, every record once replayed.

    python -m tests.spark.crash_pipelines [kills]

A driver process ingests files in many small commits and replays the topic in many parts; it is killed with
its JVM and its workers at random moments and started again, for as often as asked. Half of the time another
process (this one) holds the store, so that commits go through its control socket.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import stratalog

FILES, LINES, PARTITIONS = 40, 50, 3
PATIENCE_S = 300
DRIVER = """
import sys
import stratalog.spark
from stratalog.spark.pipelines.ingest import ingest
from stratalog.spark.pipelines.replay import replay

log, files = sys.argv[1:]
conf = {"spark.driver.memory": "1g", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": 2}
spark = stratalog.spark.session("local[2]", **conf)
print("started", flush=True)
done = ingest(
    spark, path=log, topic="in", files=files, schema="id bigint", key="id", batch_files=2, max_dead_letters=10
)
print("ingested", done.counts["files"], flush=True)
done = replay(spark, path=log, topics="in", into="out", keep_partitions=True, batch_records=100)
print("replayed", done.counts["records"], flush=True)
spark.stop()
"""


def fill(files: Path) -> None:
    files.mkdir()
    for number in range(FILES):
        rows = [json.dumps({"id": number * LINES + at}) for at in range(LINES)]
        (files / f"{number:04d}.jsonl").write_text("\n".join([*rows, f"bad {number}"]) + "\n")


def start(log: Path, files: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(log), str(files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def kill(driver: subprocess.Popen[str]) -> None:
    """The driver, its JVM and its workers, at once: only what was started here."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(60)


def values(log: Path, topic: str) -> list[bytes]:
    with stratalog.open(log, read_only=True) as store:
        chosen = store.topic(topic)
        return [record.value or b"" for number in range(chosen.partitions) for record in chosen.read(number)]


def check(log: Path, *, complete: bool) -> tuple[int, int]:
    """No record twice; with ``complete`` none missing either."""
    wanted = {json.dumps({"id": at}).encode() for at in range(FILES * LINES)}
    counts = []
    for topic in ("in", "out"):
        found = values(log, topic)
        assert len(found) == len(set(found)), f"{topic}: records twice"
        assert set(found) <= wanted
        assert not complete or set(found) == wanted, f"{topic}: {len(wanted) - len(found)} records missing"
        counts.append(len(found))
    if complete:
        assert values(log, "in") == values(log, "out"), "another order"
        letters = values(log, "in.dead-letters")
        assert sorted(letters) == sorted(b"bad %d" % number for number in range(FILES)), "dead letters"
    return counts[0], counts[1]


def wait_for_commits(log: Path, count: int) -> None:
    """Until so many more were made, or nothing moves."""
    seen, limit = check(log, complete=False), time.monotonic() + PATIENCE_S
    while count and time.monotonic() < limit:
        time.sleep(0.05)
        now = check(log, complete=False)
        if now != seen:
            seen, count, limit = now, count - 1, time.monotonic() + PATIENCE_S


def main(kills: int, seed: int) -> None:
    rng = random.Random(seed)
    print(f"{kills} kills, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as where:
        log, files = Path(where) / "log", Path(where) / "files"
        fill(files)
        with stratalog.open(log) as store:
            store.create_topic("in", PARTITIONS)
            store.create_topic("out", PARTITIONS)
        for number in range(kills):
            with ExitStack() as stack:
                held = rng.random() < 0.5
                if held:
                    stack.enter_context(stratalog.open(log))
                driver = start(log, files)
                assert driver.stdout is not None
                with driver.stdout:
                    assert driver.stdout.readline() == "started\n", "the driver died by itself"
                    before = check(log, complete=False)
                    if rng.random() < 0.8:
                        wait_for_commits(log, rng.randrange(1, 6))
                    time.sleep(rng.uniform(0, 3))
                    kill(driver)
            after = check(log, complete=False)
            print(f"kill {number + 1}: {'held, ' if held else ''}{before} -> {after}", flush=True)
        driver = start(log, files)
        out, _ = driver.communicate(timeout=3600)
        assert driver.returncode == 0, out
        check(log, complete=True)
        with stratalog.open(log) as store:
            assert stratalog.verify(store).damages == ()
        assert not log.with_name("log.staging").exists(), "staged files are left"
    print(f"nothing lost, nothing twice after {kills} kills", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, int(os.environ.get("SEED", time.time_ns() % 10**6)))
