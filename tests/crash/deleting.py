"""A driver that deletes: retention in all its kinds, and what must be true of the files after a restart."""

from __future__ import annotations

import random

from stratalog.fs import MemoryFileSystem
from stratalog.log.names import PARTITION_FILES, SNAPSHOT, parse_file
from stratalog.log.policy.preview import Step
from stratalog.testing import HistoryError, ManualClock
from tests.crash.driver import ROOT, Driver, Log

TIMED: Log = ("timed", 0)
OTHER: Log = ("timed", 1)
COUNTED: Log = ("counted", 0)
SIZED: Log = ("sized", 0)
RETENTION_MS = 60_000
TRANSACTIONAL = 8

SMALL = {"segment_bytes": 600, "index_interval_bytes": 100, "file_delete_delay_ms": 1000}


def of(step: Step) -> Log:
    return step.topic, step.partition


class DeletingDriver(Driver):
    """Notes what retention is about to take; after every restart looks for what should not be there."""

    def branch(self, fs: MemoryFileSystem, *, power_cut: bool) -> DeletingDriver:
        other = DeletingDriver(fs, ManualClock(self.clock.now_ms()))
        other.logs = {name: history.copy() for name, history in self.logs.items()}
        other.settings = {name: dict(config) for name, config in self.settings.items()}
        other.pending_topic = self.pending_topic
        other.power_cut = power_cut or self.power_cut
        other.count = self.count + 1_000_000
        return other

    def retain(self) -> int:
        """A round; how many segments went."""
        planned = [step for step in self.opened.retain(preview=True).steps if step.due]
        starts = {log: history.start for log, history in self.logs.items()}
        for log in starts:
            gone = {step.base_offset for step in planned if step.action == "delete" and of(step) == log}
            left = [each.base_offset for each in self.topic(log).segments(log[1])]
            if gone:
                starts[log] = max(starts[log], min(set(left) - gone))
        for log, start in starts.items():
            self.logs[log].begin(start=start)
        done = self.opened.retain()
        if done.notes or [step for step in done.steps if step.due] != planned:
            raise HistoryError(f"planned {planned}, done {done}")
        for log, start in starts.items():
            self.logs[log].acknowledge_start(start)
            if self.topic(log).log_start_offset(log[1]) != start:
                raise HistoryError(f"{log} does not start at {start}")
        return sum(step.action == "delete" for step in planned)

    def restart(self) -> None:
        super().restart()
        self.check_files()

    def check_files(self) -> None:
        """No orphan, nothing half deleted, and no segment that lies below the log's start as a whole."""
        for name in self.fs.list_dir(ROOT):
            if name.endswith(("-delete", "-future")):
                raise HistoryError(f"{name} is left over")
        for log in self.logs:
            topic = self.topic(log)
            start = topic.log_start_offset(log[1])
            segments = topic.segments(log[1])
            known = {segment.base_offset for segment in segments}
            for segment in segments[:-1]:
                if segment.next_offset <= start:
                    raise HistoryError(f"{segment.path} is back from the dead: the log starts at {start}")
            for name in self.fs.list_dir(self.directory(log)):
                parsed = parse_file(name)
                if parsed is None:
                    if name not in PARTITION_FILES:
                        raise HistoryError(f"{log}: {name} belongs to nobody")
                elif parsed.suffix or (
                    parsed.kind not in (SNAPSHOT, "torn") and parsed.base_offset not in known
                ):
                    raise HistoryError(f"{log}: {name} is left over")
                elif parsed.kind == SNAPSHOT and parsed.base_offset < min(known):
                    raise HistoryError(f"{log}: {name} speaks of what is gone")

    def exercise(self, rng: random.Random) -> None:
        super().exercise(rng)
        if TIMED in self.logs:
            self.coordinate()
        self.retain()
        self.tick(rng.choice([0, 2000]))
        self.retain()

    def coordinate(self) -> None:
        """End a transaction whose marker a power cut took and whose records the log start has passed."""
        topic = self.topic(TIMED)
        if topic.high_watermark(0, "read_committed") < topic.high_watermark(0):
            self.end_transaction(TIMED, TRANSACTIONAL, commit=False, sync=True)


def run(driver: DeletingDriver) -> None:
    """Retention by time, count and bytes, `delete_records`, idle rolls, two restarts."""
    driver.open()
    timed = {"retention_ms": RETENTION_MS, "segment_ms": 10**9, "key_index_enable": True}
    driver.create_topic("timed", 2, **timed, **SMALL)
    driver.create_topic("counted", 1, retention_ms=-1, retention_segments=2, flush_messages=1, **SMALL)
    driver.create_topic("sized", 1, retention_ms=-1, retention_bytes=1500, **SMALL)
    first_life(driver)
    driver.close()
    driver.open()
    driver.judge(driver.opened)
    second_life(driver)
    driver.close()
    driver.open()
    driver.judge(driver.opened)
    driver.check_files()
    driver.check_doors()


def first_life(driver: DeletingDriver) -> None:
    for log in (TIMED, COUNTED, SIZED):
        driver.append_many(log, [driver.fact(log, b"k%d" % at, 90) for at in range(9)])
        driver.append_batch(log, [driver.fact(log, b"p") for _ in range(2)], 7, 0)
        driver.roll(log)
        driver.append_many(log, [driver.fact(log, b"q", 120) for _ in range(9)], sync=True)
    driver.append_batch(TIMED, [driver.fact(TIMED, b"t")], TRANSACTIONAL, 0, transactional=True)
    driver.end_transaction(TIMED, TRANSACTIONAL, commit=False)
    driver.append(OTHER, driver.fact(OTHER, b"o"))
    assert driver.retain() == 3  # by count and bytes
    driver.append(COUNTED)
    driver.tick(RETENTION_MS + 1)  # what was deleted is removed
    driver.append_batch(TIMED, [driver.fact(TIMED, b"p")], 7, 2)
    assert driver.retain() > 2  # by time; the idle one is rolled
    driver.append(OTHER)
    assert driver.retain() == 1  # and goes
    driver.tick(500)
    driver.append_many(SIZED, [driver.fact(SIZED, b"s", 100) for _ in range(12)])  # not synced
    assert driver.retain() > 0
    driver.delete_records(TIMED, driver.logs[TIMED].end)
    driver.roll(TIMED)
    assert driver.retain() == 1  # below the log's start
    driver.tick(600)  # some of what waits is due, some is not
    driver.append(TIMED, driver.fact(TIMED, b"k0"))


def second_life(driver: DeletingDriver) -> None:
    driver.append_batch(COUNTED, [driver.fact(COUNTED, b"p", 300)], 7, 2)
    driver.append_many(COUNTED, [driver.fact(COUNTED, b"c", 100) for _ in range(12)])
    driver.delete_records(COUNTED, driver.logs[COUNTED].end - 2)
    driver.tick(2000)
    driver.tick(RETENTION_MS + 1)
    driver.retain()
    driver.retain()
    driver.append(TIMED, driver.fact(TIMED, b"k0"), sync=True)
    driver.tick(11_000)  # checkpoints
    driver.append_many(SIZED, [driver.fact(SIZED, b"s", 100) for _ in range(8)])
    assert driver.retain() > 0
