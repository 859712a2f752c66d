"""SIGKILL at random moments: a real process on a real disk, and nothing acknowledged may be lost.

Each round starts a writer, and often a reader beside it, kills them at a random moment (sometimes while the
writer is still opening or closing), and compares what is there with what was acknowledged. The writer's
threads append, directly, as retried batches of a producer and through its control socket; beside them
other threads move partitions between two log directories, compact, retain, archive, delete, roll and flush.
All rounds share one store. Run by ``make crash``; the seed printed at the end repeats the plan.

An acknowledged record is at its offset with its value, unless it was deleted by an acknowledged
``delete_records``, by retention that leaves at least ``retention.bytes``, or by compaction that leaves a
later record of its key. No record is there twice, no offset is given out twice, no removed record comes
back, a batch that was in doubt when its process died is stored once by its retry, no opened store has
leftovers of an operation that was cut short, and `verify` finds no damage.
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
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import stratalog
from stratalog.archive import ArchiveOptions, open_archive
from stratalog.config import BrokerConfig
from stratalog.errors import LogDirOfflineError
from stratalog.fs import RealFileSystem
from stratalog.store.lifecycle.reports import verify
from tests.crash.kill_worker import COMPACTED, TOPICS, Batch, id_of, log_dirs, record_of, skip_syncs, zygote

Log = tuple[str, int]
LEFTOVERS = (".cleaned", ".swap", ".deleted", "-delete", "-future")


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
        self.offset_of: dict[int, int] = {}  # of every id that was acknowledged or found, ever
        self.in_flight: set[int] = set()  # ids that the last writer was about to append
        self.start = 0  # deleted up to here, for certain
        self.start_at_most = 0
        self.checked = 0

    def place(self, record_id: int, offset: int, where: str) -> None:
        if self.offset_of.setdefault(record_id, offset) != offset:
            raise Loss(f"{where}: record {record_id} is at {offset} and at {self.offset_of[record_id]}")

    def forget_before(self, start: int) -> None:
        self.start = start
        for facts in (self.acknowledged, self.seen, self.found):
            for offset in [offset for offset in facts if offset < start]:
                del facts[offset]


class Campaign:
    """One store, killed over and over."""

    def __init__(self, directory: str, seed: int) -> None:
        self.directory = directory
        self.paths = log_dirs(directory)
        self.operations: Counter[str] = Counter()
        self.seed = seed
        self.rng = random.Random(seed)
        self.logs = {(name, each): Expected() for name, (count, _) in TOPICS.items() for each in range(count)}
        self.in_doubt: dict[int, Batch] = {}  # by first id
        self.rounds = self.records = self.seen = self.clean_stops = self.early_kills = 0
        self.zygote = Zygote()

    def describe(self) -> str:
        return (
            f"{self.rounds:5} rounds ({self.early_kills} while opening, {self.clean_stops} clean stops),"
            f" {self.records:8} acknowledged records, {self.seen} checked by readers beside; "
            + ", ".join(f"{count} × {name}" for name, count in sorted(self.operations.items()))
        )

    def run_round(self, *, thorough: bool) -> None:
        self.rounds += 1
        notes = {work: os.path.join(self.directory, f"{work}-{self.rounds}") for work in ("writer", "reader")}
        plan = {"directory": self.directory, "plan": f"{self.seed}/{self.rounds}"}
        early = self.rng.random() < 0.2
        # The first sync after a kill and a move take longer than a short round: some rounds get past them.
        longest = 2.0 if self.rng.random() < 0.5 else 0.3
        seconds = self.rng.uniform(0.02, longest)
        patience = self.rng.uniform(0, 0.03) if early else self.rng.uniform(0.01, longest * 1.1)
        beside = self.rounds > 1 and self.rng.random() < 0.5
        started = time.monotonic()
        pids = [
            self.zygote.start(
                "writer",
                notes_path=notes["writer"],
                seconds=seconds,
                first_id=self.rounds << 40,
                retries=list(self.in_doubt.values()),
                **plan,
            )
        ]
        if beside:
            pids.append(self.zygote.start("reader", notes_path=notes["reader"], **plan))
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
                elif kind == "O":
                    self.operations[" ".join(rest)] += 1
                elif kind != "R":
                    self._take_note(kind, (rest[0], int(rest[1])), [int(each) for each in rest[2:]])
        os.unlink(path)

    def _take_note(self, kind: str, log: Log, numbers: list[int]) -> None:
        expected, where = self.logs[log], f"round {self.rounds}, {log[0]}-{log[1]}"
        if kind in "TBA":
            count, first_id = numbers[:2]
            ids = range(first_id, first_id + count)
            if kind == "B":
                self.in_doubt[first_id] = Batch(*log, *numbers)
            if kind != "A":
                expected.in_flight.update(ids)
                return
            self.in_doubt.pop(first_id, None)
            expected.in_flight.difference_update(ids)
            for offset, record_id in enumerate(ids, numbers[2]):
                expected.place(record_id, offset, where)
                if expected.acknowledged.setdefault(offset, record_id) != record_id:
                    raise Loss(f"{where}: offset {offset} was given out twice")
            self.records += count
        elif kind == "S":
            self.seen += 1
            expected.seen[numbers[0]] = numbers[1]
        elif kind == "D":
            expected.start_at_most = max(expected.start_at_most, numbers[0])
        else:
            expected.start = max(expected.start, numbers[0])

    def _check(self, *, read_only: bool, thorough: bool) -> None:
        if not all(os.path.exists(os.path.join(each, "meta.properties")) for each in self.paths):
            if self.records:
                raise Loss("the store is gone")
            return
        with stratalog.open(self.paths, read_only=read_only) as store:
            if not read_only:
                self._check_files()
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
            if self.records and not read_only:
                report = verify(store)
                if not report.ok:
                    raise Loss(f"round {self.rounds}: damage: {report.damages}")
        if thorough:
            self._check_archive()

    def _check_files(self) -> None:
        for path in self.paths:
            for where, directories, files in os.walk(path):
                left = [name for name in (*directories, *files) if name.endswith(LEFTOVERS)]
                if where != path:  # those of a log directory's own files are written over by the next one
                    left += [name for name in files if name.endswith(".tmp")]
                if left:
                    raise Loss(f"round {self.rounds}: opening left {left} in {where}")

    def _check_archive(self) -> None:
        options = ArchiveOptions.of(BrokerConfig.parse({}), self.paths[0])
        with open_archive(options, RealFileSystem(), store_id="campaign") as archive:
            check = archive.verify()
        if not check.ok:
            raise Loss(f"round {self.rounds}: the archive: {check.problems}")

    def _check_log(self, topic: stratalog.Topic, log: Log, expected: Expected, thorough: bool) -> None:
        where = f"round {self.rounds}, {log[0]}-{log[1]}"
        start, end = topic.log_start_offset(log[1]), topic.high_watermark(log[1])
        if start < expected.start:
            raise Loss(f"{where}: the log starts at {start}, deleted were {expected.start}")
        if start > max(expected.start, expected.start_at_most):
            self._check_retention(topic, log, where)
        expected.forget_before(start)
        lost = [
            offset for facts in (expected.acknowledged, expected.seen) for offset in facts if offset >= end
        ]
        if lost:
            raise Loss(
                f"{where}: {len(lost)} records from offset {min(lost)} on are lost, the log ends at {end}"
            )
        if log[0] == COMPACTED:
            self._check_compacted(topic, log, expected, where)
        else:
            at = first = start if thorough else max(start, expected.checked)
            for offset in self._read(topic, log, expected, first, where):
                if offset != at:
                    raise Loss(f"{where}: offset {offset} follows {at - 1}")
                at += 1
            if at != end:
                raise Loss(f"{where}: the log ends at {end}, reading it ended at {at}")
        expected.checked = end
        expected.seen.clear()
        expected.in_flight.clear()

    @staticmethod
    def _check_retention(topic: stratalog.Topic, log: Log, where: str) -> None:
        """Check that what retention left is what it must leave."""
        limit, left = topic.config.retention_bytes, sum(each.size_bytes for each in topic.segments(log[1]))
        if limit < 0 or left < limit:
            raise Loss(f"{where}: the log starts too late: {left} bytes are left, {limit} must be")

    @staticmethod
    def _read(topic: stratalog.Topic, log: Log, expected: Expected, first: int, where: str) -> dict[int, int]:
        """Read the log from an offset on and compare it with everything known; offset -> id."""
        read: dict[int, int] = {}
        last_of: dict[int, int] = {}
        before = first - 1
        for record in topic.read(log[1], first):
            at, record_id = record.offset, id_of(log[0], record)
            if at <= before:
                raise Loss(f"{where}: offset {at} follows {before}")
            if record_id < 0:
                raise Loss(f"{where}: offset {at} holds {record}, which nobody wrote")
            if last_of.get(record_id >> 32, -1) >= record_id:
                raise Loss(f"{where}: offset {at} holds record {record_id} again or out of order")
            expected.place(record_id, at, where)
            for name in ("acknowledged", "seen", "found"):
                known = getattr(expected, name).get(at, record_id)
                if known != record_id:
                    raise Loss(f"{where}: offset {at} holds {record_id}, {known} was {name} there")
            read[at] = last_of[record_id >> 32] = record_id
            expected.found.setdefault(at, record_id)
            before = at
        return read

    def _check_compacted(self, topic: stratalog.Topic, log: Log, expected: Expected, where: str) -> None:
        """Check that the latest record of each key is there, or its tombstone went with all before it."""
        earlier = expected.found
        expected.found = {}
        read = self._read(topic, log, expected, expected.start, where)
        back = [offset for offset in read if offset < expected.checked and offset not in earlier]
        if back:
            raise Loss(f"{where}: compaction had removed {back}, they are back")
        latest = _latest(log[0], {**earlier, **expected.acknowledged, **expected.seen})
        newest = _latest(log[0], read)
        maybe_gone = {
            record.key
            for record in (record_of(log[0], each) for each in expected.in_flight)
            if record.value is None
        }
        for key, offset in latest.items():
            if newest.get(key, -1) >= offset:
                continue
            known = expected.acknowledged.get(offset, expected.seen.get(offset, earlier.get(offset, -1)))
            deleted = record_of(log[0], known).value is None or key in maybe_gone
            if key in newest or not deleted:
                raise Loss(f"{where}: {key!r} is at {newest.get(key)}, its latest record was at {offset}")
        expected.acknowledged = {at: each for at, each in expected.acknowledged.items() if at in read}
        key = self.rng.choice(sorted(latest)) if latest else b""
        record = topic.get(key, log[1])
        if (None if record is None else record.offset) != newest.get(key):
            raise Loss(f"{where}: get({key!r}) finds {record}, reading it {newest.get(key)}")


def _latest(topic: str, ids: dict[int, int]) -> dict[bytes, int]:
    """Return the last offset of each key."""
    return {record_of(topic, ids[offset]).key or b"": offset for offset in sorted(ids)}


def run(rounds: int, seed: int, directory: str, *, progress: bool = True) -> Campaign:
    """So many rounds in one directory; raises `Loss`."""
    campaign = Campaign(directory, seed)
    skip_syncs()  # in the checks; the writers, which come from the zygote, choose for themselves
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
    print(campaign.describe())
    print(f"{campaign.rounds} rounds, {campaign.records} acknowledged records, 0 lost (seed {seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
