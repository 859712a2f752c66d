"""SIGKILL under a streaming write on a real cluster: nothing lost, nothing twice, nothing left behind.

A standalone master and two workers run as processes; a stream copies one topic to another while a producer
feeds it, speculation on, some attempts slow. Every round waits until the stream has moved and then kills, at
a random moment, one of: the driver with all below it, an executor's JVM, one of the executors' Python
processes, one of the driver's (which plan, read offsets and commit). A driver that died starts again from the
checkpoint. In some rounds another program, this one, holds the store, so that commits go through its control
socket. Run by ``make crash-spark``; the seed printed at the end repeats the plan, not the moments.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import stratalog
from stratalog.errors import StoreLockedError
from tests.spark.cluster import Cluster, Driver, command_of, descendants, signal_one

PARTITIONS = 2
PER_BATCH = 300
FED = 900
"""Rows a round adds; it ends when the stream has written some of them."""
LIMIT_S = 900.0
KINDS = ("driver", "executor", "executor's Python", "driver's Python")


class Campaign:
    """One store, one checkpoint, many kills."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log = directory / "log"
        self.checkpoint = directory / "checkpoint"
        self.scratch = directory / "driver"
        self.rng = random.Random(seed)
        self.fed = 0
        self.kills: Counter[str] = Counter()
        self.starts = 0
        self.driver: Driver | None = None
        with self.opened() as store:
            store.create_topic("in", PARTITIONS)
            store.create_topic("out", PARTITIONS, {"segment.bytes": 256 << 10})
        self.cluster = Cluster(directory / "cluster")

    @property
    def second_attempts(self) -> int:
        """Of tasks that were slow: speculative twins, and what ran again after a kill."""
        return sum(1 for each in self.scratch.glob("attempt-*") if each.name.split("-")[2] != "0")

    def close(self) -> None:
        if self.driver is not None:
            self.driver.kill()
        self.cluster.stop()

    def opened(self) -> stratalog.Store:
        """The store, for writing; waited for while a commit of the stream holds it."""
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                return stratalog.open(self.log)
            except StoreLockedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def feed(self, store: stratalog.Store) -> None:
        rows = range(self.fed, self.fed + FED)
        topic = store.topic("in")
        topic.append_many([stratalog.Record(b"%08d" % at + b"." * 60, b"%d" % (at % 97)) for at in rows])
        self.fed += FED

    def written(self) -> int:
        with stratalog.open(self.log, read_only=True) as store:
            return sum(store.topic("out").high_watermark(at) for at in range(PARTITIONS))

    # -- rounds --------------------------------------------------------------------------------------

    def run_round(self) -> str:
        """What was killed."""
        kind = self.rng.choice(KINDS)
        held, share, patience_s = self.rng.random() < 0.5, self.rng.random(), self.rng.random()
        with self.opened() as store:
            self.feed(store)
            if held:
                self._until(int(self.fed - FED * share))
                time.sleep(patience_s)
                self._kill(kind)
        if not held:
            self._until(int(self.fed - FED * share))
            time.sleep(patience_s)
            self._kill(kind)
        self.kills[kind] += 1
        return f"{kind}{', the store held' if held else ''}"

    def _start(self, *, forever: bool) -> Driver:
        self.starts += 1
        self.driver = Driver(self.cluster.url, self.log, self.scratch, {"spark.log.level": "OFF"})
        slow_s = self.rng.choice((0.0, 0.5, 2.0))
        self.driver.tell(
            "stream", checkpoint=str(self.checkpoint), per_batch=PER_BATCH, slow_s=slow_s, forever=forever
        )
        return self.driver

    def _until(self, count: int) -> None:
        """Until so much is written; a driver that is not there, or gave up meanwhile, is started again."""
        end = time.monotonic() + LIMIT_S
        while self.driver is None or self.driver.process.poll() is not None or self.written() < count:
            if self.driver is None or self.driver.process.poll() is not None:
                if self.driver is not None:
                    self.driver.kill()
                self._start(forever=True)
            if time.monotonic() > end:
                raise TimeoutError(f"the stream does not move: {self.written()} of {self.fed} rows")
            time.sleep(0.05)

    def _kill(self, kind: str) -> None:
        """One process of a kind, as soon as there is one."""
        end = time.monotonic() + LIMIT_S
        while not (found := self._victims(kind)):
            if time.monotonic() > end:
                raise TimeoutError(f"there is no {kind} to kill")
            self._until(0)
            time.sleep(0.05)
        if kind == "driver" and self.driver is not None:
            self.driver.kill()
            self.driver = None
            return
        signal_one(self.rng.choice(found))

    def _victims(self, kind: str) -> list[int]:
        if self.driver is None or self.driver.process.poll() is not None:
            return []
        if kind == "driver":
            return [self.driver.process.pid]
        if kind == "executor":
            return self.cluster.executors()
        if kind == "executor's Python":
            return self.cluster.pythons()
        below = {pid: command_of(pid) for pid in descendants([self.driver.process.pid])}
        return [pid for pid, command in below.items() if " -m pyspark." in command]

    # -- the end -------------------------------------------------------------------------------------

    def finish(self) -> tuple[int, int, int]:
        """Let the stream write everything; (rows lost, rows too many, files left)."""
        if self.driver is not None:
            self.driver.kill()
        driver = self._start(forever=False)
        if driver.answer() != {"done": True}:
            raise RuntimeError("the last run of the stream did not end")
        driver.stop()
        self.driver = None
        with self.opened() as store:
            damages = stratalog.verify(store).damages
            found = Counter(
                record.value for at in range(PARTITIONS) for record in store.topic("out").read(at)
            )
        if damages:
            raise RuntimeError(f"the log is damaged: {damages}")
        staged = self.log.with_name(f"{self.log.name}.staging")
        left = sum(1 for each in staged.rglob("*")) + 1 if staged.exists() else 0
        return self.fed - len(found), found.total() - len(found), left


def main() -> int:
    parser = argparse.ArgumentParser(description="SIGKILL under a streaming write on a Spark cluster")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="leave the directory behind")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    directory = Path(tempfile.mkdtemp(prefix="stratalog-crash-spark-"))
    began = time.monotonic()
    campaign = Campaign(directory, seed)
    try:
        for number in range(1, arguments.rounds + 1):
            killed = campaign.run_round()
            print(
                f"{number:4} {time.monotonic() - began:7.1f} s  {campaign.fed:8} rows  {killed}", flush=True
            )
        lost, twice, left = campaign.finish()
        attempts = campaign.second_attempts
    finally:
        campaign.close()
        if not arguments.keep:
            shutil.rmtree(directory, ignore_errors=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(campaign.kills.items()))
    print(
        f"{campaign.kills.total()} kills ({kinds}; {campaign.starts} starts of the driver, {attempts} second"
        f" attempts of slow tasks) under a streaming write of {campaign.fed} rows:"
        f" {lost} lost / {twice} twice / {left} files left (seed {seed})"
    )
    return 1 if lost or twice or left else 0


if __name__ == "__main__":
    sys.exit(main())
