"""SIGKILL at random moments: a real process on a real disk, and nothing acknowledged may be lost.

Each round starts a writer with several threads, and often a reader beside it, kills them at a random moment
(sometimes while the writer is still opening or closing), and compares what is there with what was
acknowledged. All rounds share one store. Run by ``make crash``; the seed printed at the end repeats the plan.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import stratalog
from stratalog.errors import LogDirOfflineError
from tests.crash.kill_worker import TOPICS, id_of, key_of, value_of, zygote

Log = tuple[str, int]


class Loss(Exception):  # noqa: N818 - what it is
    """A promise was broken."""


class Zygote:
    """The parent's side of the process that forks workers."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            try:
                zygote(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._socket = ours
        self._lines = ours.makefile("rw")

    def _ask(self, **order: object) -> dict[str, int]:
        self._lines.write(json.dumps(order) + "\n")
        self._lines.flush()
        answer: dict[str, int] = json.loads(self._lines.readline())
        return answer

    def start(self, work: str, **arguments: object) -> int:
        return self._ask(work=work, **arguments)["pid"]

    def end(self, pid: int) -> int:
        """Kill a worker and wait until it is gone; its wait status."""
        os.kill(pid, signal.SIGKILL)
        return self._ask(reap=pid)["status"]

    def stop(self) -> None:
        self._lines.close()
        self._socket.close()
        os.waitpid(self.pid, 0)


class Expected:
    """What one partition must hold."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}  # offset -> id
        self.seen: dict[int, int] = {}  # by readers beside the writer
        self.found: dict[int, int] = {}  # in an earlier check
        self.start = 0  # deleted up to here, for certain
        self.start_at_most = 0
        self.checked = 0


class Campaign:
    """One store, killed over and over."""

    def __init__(self, directory: str, seed: int) -> None:
        self.directory = directory
        self.store = os.path.join(directory, "store")
        self.seed = seed
        self.rng = random.Random(seed)
        self.logs = {(name, each): Expected() for name, (count, _) in TOPICS.items() for each in range(count)}
        self.rounds = self.records = self.seen = self.clean_stops = self.early_kills = 0
        self.zygote = Zygote()

    def describe(self) -> str:
        return (
            f"{self.rounds:5} rounds ({self.early_kills} while opening, {self.clean_stops} clean stops),"
            f" {self.records:8} acknowledged records, {self.seen} checked by readers beside"
        )

    def run_round(self, *, thorough: bool) -> None:
        self.rounds += 1
        notes = {work: os.path.join(self.directory, f"{work}-{self.rounds}") for work in ("writer", "reader")}
        plan = {"directory": self.store, "seed": self.seed, "round_number": self.rounds}
        early = self.rng.random() < 0.2
        # On a slow disk the first sync after a kill takes longer than a short round: some rounds get past it.
        longest = 1.0 if self.rng.random() < 0.15 else 0.2
        seconds = self.rng.uniform(0.02, longest)
        patience = self.rng.uniform(0, 0.03) if early else self.rng.uniform(0.01, longest * 1.1)
        beside = self.rounds > 1 and self.rng.random() < 0.5
        started = time.monotonic()
        pids = [self.zygote.start("writer", notes_path=notes["writer"], seconds=seconds, **plan)]
        if beside:
            pids.append(self.zygote.start("reader", notes_path=notes["reader"], seconds=seconds, **plan))
        if not early:
            self._wait_ready(notes["writer"], started + 20)
        time.sleep(patience)
        for pid in pids:
            self.zygote.end(pid)
        self.early_kills += early
        for path in notes.values():
            self._take_notes(path)
        self._check(read_only=self.rng.random() < 0.4, thorough=thorough)

    @staticmethod
    def _wait_ready(path: str, deadline: float) -> None:
        while time.monotonic() < deadline:
            if os.path.exists(path) and os.path.getsize(path):
                return
            time.sleep(0.001)

    def _take_notes(self, path: str) -> None:
        if not os.path.exists(path):
            return
        with open(path, encoding="utf-8") as file:
            for line in file:
                kind, *rest = line.split()
                if kind == "!":
                    raise Loss(f"round {self.rounds}: {line.strip()}")
                if kind == "C":
                    self.clean_stops += 1
                elif kind != "R":
                    self._take_note(kind, (rest[0], int(rest[1])), [int(each) for each in rest[2:]])
        os.unlink(path)

    def _take_note(self, kind: str, log: Log, numbers: list[int]) -> None:
        expected = self.logs[log]
        if kind == "A":
            offset, count, first_id = numbers
            self.records += count
            for at in range(count):
                if expected.acknowledged.setdefault(offset + at, first_id + at) != first_id + at:
                    raise Loss(f"round {self.rounds}: {log} offset {offset + at} was given out twice")
        elif kind == "S":
            self.seen += 1
            expected.seen[numbers[0]] = numbers[1]
        elif kind == "D":
            expected.start_at_most = max(expected.start_at_most, numbers[0])
        else:
            expected.start = max(expected.start, numbers[0])

    def _check(self, *, read_only: bool, thorough: bool) -> None:
        if not os.path.exists(os.path.join(self.store, "meta.properties")):
            if self.records:
                raise Loss("the store is gone")
            return
        with stratalog.open(self.store, read_only=read_only) as store:
            topics = store.topics()
            for log, expected in self.logs.items():
                try:
                    if log[0] in topics:
                        self._check_log(store.topic(log[0]), log, expected, thorough)
                    elif expected.acknowledged:
                        raise Loss(f"round {self.rounds}: topic {log[0]} is gone")
                except LogDirOfflineError:
                    # A writer died while it made the topic; the next one to open it for writing goes on.
                    if expected.acknowledged or not read_only:
                        raise

    def _check_log(self, topic: stratalog.Topic, log: Log, expected: Expected, thorough: bool) -> None:
        where = f"round {self.rounds}, {log[0]}-{log[1]}"
        start, end = topic.log_start_offset(log[1]), topic.high_watermark(log[1])
        if not expected.start <= start <= max(expected.start, expected.start_at_most):
            raise Loss(f"{where}: the log starts at {start}, deleted were {expected.start}")
        expected.start = start
        for facts in (expected.acknowledged, expected.seen, expected.found):
            for offset in [offset for offset in facts if offset < start]:
                del facts[offset]
        first = start if thorough else max(start, expected.checked)
        last_of: dict[int, int] = {}
        at = first
        for record in topic.read(log[1], first):
            record_id = id_of(record.value)
            if record.offset != at:
                raise Loss(f"{where}: offset {record.offset} follows {at - 1}")
            if record_id < 0 or record.value != value_of(record_id) or record.key != key_of(record_id):
                raise Loss(f"{where}: offset {at} holds {record}, which nobody wrote")
            if last_of.get(record_id >> 32, -1) >= record_id:
                raise Loss(f"{where}: offset {at} holds record {record_id} again or out of order")
            last_of[record_id >> 32] = record_id
            for name, facts in (("acknowledged", expected.acknowledged), ("seen", expected.seen)):
                if facts.get(at, record_id) != record_id:
                    raise Loss(f"{where}: offset {at} holds {record_id}, {facts[at]} was {name} there")
            if expected.found.setdefault(at, record_id) != record_id:
                raise Loss(f"{where}: offset {at} holds {record_id}, it held {expected.found[at]}")
            at += 1
        if at != end:
            raise Loss(f"{where}: the log ends at {end}, reading it ended at {at}")
        lost = [
            offset for facts in (expected.acknowledged, expected.seen) for offset in facts if offset >= end
        ]
        if lost:
            raise Loss(
                f"{where}: {len(lost)} records from offset {min(lost)} on are lost, the log ends at {end}"
            )
        expected.checked = end
        expected.seen.clear()


def run(rounds: int, seed: int, directory: str, *, progress: bool = True) -> Campaign:
    """So many rounds in one directory; raises `Loss`."""
    campaign = Campaign(directory, seed)
    started = time.monotonic()
    try:
        for number in range(1, rounds + 1):
            campaign.run_round(thorough=number % 20 == 0 or number == rounds)
            if progress and number % 20 == 0:
                print(f"{campaign.describe()}, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        campaign.zygote.stop()
    return campaign


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="repeat the plan of an earlier run")
    parser.add_argument("--dir", default=None, help="where to put the store; kept when something is lost")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    directory = tempfile.mkdtemp(prefix="stratalog-crash-", dir=options.dir)
    try:
        campaign = run(options.rounds, seed, directory)
    except Loss as loss:
        print(f"LOST: {loss}\nthe store is kept in {directory}; seed {seed}", flush=True)
        return 1
    shutil.rmtree(directory)
    print(f"{campaign.rounds} rounds, {campaign.records} acknowledged records, 0 lost (seed {seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
