"""A crash before every call of staging and committing, in every kind of crash, and of the restart after it.

Whatever the crash, the next start and the replay of what was under way must find every row of every commit
exactly once and in order, every record that others appended and synced, no damage, and no staged file. The
short run looks at a slice of the points; ``STRATALOG_CRASH=full`` looks at all of them, with more seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

import stratalog
from stratalog.errors import StratalogError
from stratalog.format.journal import FILE_NAME
from stratalog.fs import SurvivorMode
from stratalog.log.names import PARTITION_FILES, SEGMENT_KINDS, SNAPSHOT, parse_file
from stratalog.store.store import Store
from stratalog.testing import HistoryError, ManualClock, MemoryFileSystem, SimulatedCrash, read_raw
from tests.crash.campaign import MODES, Tally
from tests.crash.driver import CONFIG, ROOT
from tests.store.staged import DEAD, LIVE, stage, staged_files

FULL = os.environ.get("STRATALOG_CRASH") == "full"
pytestmark = pytest.mark.timeout(7200 if FULL else 600)

TOPIC = "t"
SETTINGS = {"segment.bytes": 1500, "index.interval.bytes": 200, "retention.ms": -1, "file.delete.delay.ms": 0}
Rows = dict[tuple[str, int], list[bytes]]


class Sink:
    """A store, what was committed to it, and the commit that is under way."""

    def __init__(self, fs: MemoryFileSystem | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.fs = fs or MemoryFileSystem(clock=self.clock.now_ns)
        self.acknowledged: list[tuple[str, int, Rows]] = []
        self.running: tuple[str, int, Rows] | None = None
        self.synced: list[tuple[int, bytes]] = []
        self.unsure: set[bytes] = set()
        self.store: Store | None = None
        self.made = 0
        self.owner = DEAD

    def branch(self, fs: MemoryFileSystem) -> Sink:
        other = Sink(fs, ManualClock(self.clock.now_ms()))
        other.acknowledged, other.running = list(self.acknowledged), self.running
        other.synced, other.unsure, other.made = list(self.synced), set(self.unsure), self.made
        return other

    def open(self) -> Store:
        self.store = stratalog.open(ROOT, CONFIG, fs=self.fs, clock=self.clock, background=False)
        return self.store

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    # -- working -----------------------------------------------------------------------------------------

    def rows(self, partition: int, count: int, size: int = 20) -> Rows:
        first, self.made = self.made, self.made + count
        return {(TOPIC, partition): [(b"r%05d" % at).ljust(size, b".") for at in range(first, first + count)]}

    def append(self, partition: int, *, sync: bool = True) -> None:
        self.made += 1
        value = b"p%05d" % self.made
        self.unsure.add(value)
        self.opened.topic(TOPIC).append(value, partition=partition, sync=sync)
        if sync:
            self.synced.append((partition, value))

    def commit(self, query: str, batch: int, rows: Rows, *, failing: bool = False) -> None:
        """Stage, with a failed attempt beside when asked to, and commit."""
        self.running = (query, batch, rows)
        if failing:
            stage(self.opened, query, batch, rows, owner=self.owner)
        files = stage(self.opened, query, batch, rows, owner=self.owner)
        self.opened.commit_staged(query, batch, files)
        self.acknowledged.append(self.running)
        self.running = None

    def replay(self) -> None:
        """The driver, restarted, runs its last batch again."""
        if self.running is not None:
            self.owner = LIVE
            self.commit(*self.running)

    # -- judging -----------------------------------------------------------------------------------------

    def found(self, partition: int) -> list[bytes]:
        raw = read_raw(self.fs, f"{ROOT}/{TOPIC}-{partition}", TOPIC, partition)
        values = [record.value or b"" for batch in raw for record in batch.records]
        served = [record.value for record in self.opened.topic(TOPIC).read(partition)]
        if served != values:
            raise HistoryError(f"partition {partition}: served {served}, on disk {values}")
        return values

    def judge(self) -> None:
        found = {partition: self.found(partition) for partition in range(2)}
        twice = [
            value for value, count in Counter(v for each in found.values() for v in each).items() if count > 1
        ]
        if twice:
            raise HistoryError(f"twice: {twice[:5]}")
        for query, batch, rows in self.acknowledged:
            for (_, partition), wanted in rows.items():
                there = [value for value in found[partition] if value in set(wanted)]
                if there != wanted:
                    raise HistoryError(f"{query}/{batch}: {len(there)} of {len(wanted)} rows, or in disorder")
        for partition, value in self.synced:
            if value not in found[partition]:
                raise HistoryError(f"{value!r} was synced and is gone")
        known = {value for _, _, rows in self.acknowledged for each in rows.values() for value in each}
        known |= self.unsure
        if self.running is not None:
            known |= {value for each in self.running[2].values() for value in each}
        strange = [value for each in found.values() for value in each if value not in known]
        if strange:
            raise HistoryError(f"from nowhere: {strange[:5]}")

    def check_files(self) -> None:
        if left := staged_files(self.opened):
            raise HistoryError(f"left behind: {left}")
        if odd := [name for name in self.fs.list_dir(ROOT) if name == f"{FILE_NAME}.tmp"]:
            raise HistoryError(f"left behind: {odd}")
        for partition in range(2):
            names = self.fs.list_dir(f"{ROOT}/{TOPIC}-{partition}")
            bases = {int(name[:20]) for name in names if name.endswith(".log")}
            for name in names:
                parsed = parse_file(name)
                if parsed is None or parsed.kind == "torn":
                    if parsed is None and name not in PARTITION_FILES:
                        raise HistoryError(f"{name} belongs to nobody")
                elif parsed.kind not in (*SEGMENT_KINDS, SNAPSHOT) or parsed.suffix:
                    raise HistoryError(f"{name} is left over")
                elif parsed.base_offset not in bases and parsed.kind != SNAPSHOT:
                    raise HistoryError(f"{name} is an orphan; segments {sorted(bases)}")
        # A power cut may spoil a snapshot that was not synced yet; recovery takes the one before it.
        damages = [each for each in stratalog.verify(self.opened).damages if SNAPSHOT not in each.path]
        if damages:
            raise HistoryError(f"damaged: {damages[:3]}")


def judge_survivor(sink: Sink, mode: SurvivorMode, seed: int) -> None:
    """Boot what a crash leaves now, replay, judge; crash, boot and judge that; stop, start, judge."""
    rng = random.Random(seed)
    after = sink.branch(sink.fs.survivor(mode, rng))
    judge_restarted(after, rng, seed)
    after.opened.close()
    after.open()
    after.judge()
    after.check_files()


def judge_restarted(after: Sink, rng: random.Random, seed: int) -> None:
    after.open()
    after.judge()
    after.check_files()
    after.replay()
    after.judge()
    after.check_files()
    again = after.branch(after.fs.survivor("drop" if seed % 2 else "reorder", rng))
    again.open()
    again.judge()
    again.check_files()
    rows = after.rows(seed % 2, 3)
    after.commit("next", seed, rows)
    after.append(seed % 2)
    after.judge()


def judge_cut_short(sink: Sink, mode: SurvivorMode, seed: int) -> int:
    """The restart is itself crashed, before each of its calls or, in the short run, some; how far it went."""
    at = 0 if FULL else seed % 5
    while True:
        at += 1 if FULL else 5
        rng = random.Random(seed + at)
        booting = sink.branch(sink.fs.survivor(mode, rng))
        booting.fs.crash_at(at)
        try:
            booting.open()
        except SimulatedCrash:
            judge_restarted(booting.branch(booting.fs.survivor(rng.choice(MODES), rng)), rng, seed)
        else:
            return at


Judge = Callable[[Sink, SurvivorMode, int], object]


def crash_everywhere(
    work: Callable[[Sink], None], judge: Judge, *, every: int, first: int, seeds: int, running: bool = False
) -> Tally:
    sink, tally = Sink(), Tally()
    sink.open().create_topic(TOPIC, 2, SETTINGS)
    sink.append(0)

    def look(call: str) -> None:
        point = len(sink.fs.calls)
        if point % every != first % every or (running and sink.running is None):
            return
        tally.points += 1
        for mode in MODES:
            for seed in range(seeds if mode in ("torn", "reorder") else 1):
                tally.states += 1
                try:
                    judge(sink, mode, point * 1000 + seed)
                except (StratalogError, HistoryError, OSError, AssertionError) as error:
                    tally.fail(f"call {point} ({call}) {mode} seed {point * 1000 + seed}", error)

    sink.fs.before_call = look
    work(sink)
    sink.fs.before_call = None
    sink.judge()
    sink.check_files()
    return tally


def merged(rows: Sequence[Rows]) -> Rows:
    return {key: value for each in rows for key, value in each.items()}


def committing(sink: Sink) -> None:
    """Small commits to both partitions, whole segments, both at once, other producers in between."""
    sink.commit("q", 0, merged([sink.rows(0, 3), sink.rows(1, 2)]))
    sink.append(0, sync=False)
    sink.commit("q", 1, sink.rows(0, 4), failing=True)
    sink.append(1)
    sink.commit("q", 2, merged([sink.rows(0, 9, 500), sink.rows(1, 2)]))
    sink.append(0, sync=False)
    sink.append(0, sync=False)
    sink.commit("job", 0, sink.rows(0, 40, 100))
    sink.opened.close()
    sink.open()
    sink.commit("q", 3, merged([sink.rows(1, 6, 500), sink.rows(0, 1)]), failing=True)
    sink.append(1)


def test_crash_at_every_call() -> None:
    tally = crash_everywhere(
        committing, judge_survivor, every=1 if FULL else 5, first=2, seeds=6 if FULL else 1
    )
    assert tally.points > (300 if FULL else 60)
    assert not tally.failures, tally.report()


def test_crash_during_the_restart() -> None:
    tally = crash_everywhere(
        committing, judge_cut_short, every=1 if FULL else 131, first=57, seeds=1, running=True
    )
    assert tally.points > (200 if FULL else 1)
    assert not tally.failures, tally.report()


@pytest.mark.parametrize("seed", range(40 if FULL else 6))
def test_random_lives(seed: int) -> None:
    """Random commits and appends, a crash at a random call, again and again, each time replayed."""
    rng = random.Random(seed)
    sink = Sink()
    sink.open().create_topic(TOPIC, 2, SETTINGS)
    batch = 0
    for _ in range(8):
        sink.fs.crash_at(rng.randint(1, 150))
        try:
            while True:
                if rng.random() < 0.4:
                    sink.append(rng.randrange(2), sync=rng.random() < 0.5)
                if sink.running is None:
                    size, count = rng.choice([(20, 3), (500, 5), (100, 30)])
                    rows = merged([sink.rows(at, count, size) for at in range(2) if rng.random() < 0.8])
                    sink.commit("q", batch, rows, failing=rng.random() < 0.3)
                    batch += 1
        except SimulatedCrash:
            mode = rng.choice(MODES)
            sink = sink.branch(sink.fs.survivor(mode, rng))
            sink.open()
            sink.judge()
            sink.check_files()
            replayed = sink.running is not None
            sink.replay()
            batch += replayed
            sink.owner = DEAD
            sink.judge()
            sink.check_files()
