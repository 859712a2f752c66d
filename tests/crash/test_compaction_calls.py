"""A crash before every call of compaction and of erasing, in every kind of crash.

Everything is synced before; so whatever the crash, the next start must find

- at every offset the record that was appended there, or none;
- the latest record of every key, unless that deletes it: then no older one ("back from the dead");
- nothing of an erased key, once erasing it was acknowledged;
- the same first and next offset, and no file that belongs to nobody;

and compaction, run again, must end where the undisturbed one does. The short run looks at a slice of the
points; ``STRATALOG_CRASH=full`` looks at all of them, with more seeds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

import stratalog
from stratalog.errors import StratalogError
from stratalog.fs import SurvivorMode
from stratalog.log.names import PARTITION_FILES, SEGMENT_KINDS, SNAPSHOT, parse_file
from stratalog.store.lifecycle.reports import verify
from stratalog.store.store import Store
from stratalog.testing import HistoryError, ManualClock, MemoryFileSystem, committed, read_raw
from tests.crash.campaign import Tally
from tests.crash.driver import CONFIG, ROOT, encode_batch
from tests.crash.workload import SMALL

FULL = os.environ.get("STRATALOG_CRASH") == "full"
pytestmark = pytest.mark.timeout(7200 if FULL else 600)

TOPIC = "keyed"
DIRECTORY = f"{ROOT}/{TOPIC}-0"
SETTINGS = {
    **{name.replace("_", "."): value for name, value in SMALL.items()},
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "cleaner.min.segment.age.ms": 0,
    "delete.retention.ms": 1000,
    "key.index.enable": True,
}
SECRETS = (b"secret", b"hidden")

Seen = tuple[bytes | None, bytes | None]


class KeyedLog:
    """One compacted partition, what was appended to it, and what was erased from it."""

    def __init__(self, fs: MemoryFileSystem | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.fs = fs or MemoryFileSystem(clock=self.clock.now_ns)
        self.appended: dict[int, Seen] = {}
        self.aborted: set[int] = set()
        self.erased: set[bytes] = set()
        self.erasing: set[bytes] = set()
        self.end = 0
        self.store: Store | None = None
        self.memory = {"log.cleaner.dedupe.buffer.size": 1 << 20}

    def branch(self, fs: MemoryFileSystem) -> KeyedLog:
        other = KeyedLog(fs, ManualClock(self.clock.now_ms()))
        other.appended, other.aborted, other.end = dict(self.appended), set(self.aborted), self.end
        other.erased, other.erasing = set(self.erased), set(self.erasing)
        return other

    def open(self) -> Store:
        self.store = stratalog.open(
            ROOT, {**CONFIG, **self.memory}, fs=self.fs, clock=self.clock, background=False
        )
        return self.store

    @property
    def topic(self) -> stratalog.Topic:
        assert self.store is not None
        return self.store.topic(TOPIC)

    # -- working -----------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes | None) -> None:
        offset = self.topic.append(value, key, sync=True).offset
        self.appended[offset] = (key, value)
        self.end = offset + 1

    def transaction(self, producer_id: int, sequence: int, keys: list[bytes], *, commit: bool) -> None:
        from stratalog.testing import Fact

        facts = [Fact(b"%d-%d" % (producer_id, sequence), key, self.clock.now_ms()) for key in keys]
        data = encode_batch(facts, producer_id, sequence, True)
        first = self.topic.append_batches(0, data, sync=True).base_offset
        for at, fact in enumerate(facts):
            self.appended[first + at] = (fact.key, fact.value)
            if not commit:
                self.aborted.add(first + at)
        done = self.topic.end_transaction(
            0, producer_id=producer_id, producer_epoch=0, commit=commit, sync=True
        )
        self.end = done.base_offset + 1

    def fill(self, seed: int) -> None:
        rng = random.Random(seed)
        for n in range(18):
            key = rng.choice([b"a", b"b", b"c", b"gone", *SECRETS])
            self.put(key, None if key == b"gone" and n > 9 else b"%d:%d" % (seed, n) + b"v" * 60)
        self.transaction(7, seed * 2, [b"a", b"t"], commit=False)
        self.transaction(8, seed, [b"t"], commit=True)
        self.put(b"gone", None)
        self.topic.roll(0)
        self.put(b"z%d" % seed, b"active")
        assert self.store is not None
        self.topic.flush(0)

    def compact(self) -> None:
        assert self.store is not None
        report = self.store.compact(TOPIC, force=True)
        if report.notes:
            raise HistoryError(f"compaction: {report.notes}")

    def erase(self, *keys: bytes) -> None:
        assert self.store is not None
        self.erasing.update(keys)
        self.store.erase(TOPIC, keys)
        self.erased.update(keys)
        self.erasing.difference_update(keys)

    # -- judging -----------------------------------------------------------------------------------------

    def found(self) -> tuple[dict[int, Seen], dict[int, Seen]]:
        """Records on disk by offset: all, and those that are committed."""
        raw = read_raw(self.fs, DIRECTORY, TOPIC, 0, gaps=True)
        everything = {r.offset: (r.key, r.value) for batch in raw for r in batch.records}
        return everything, {r.offset: (r.key, r.value) for r in committed(raw)}

    def judge(self) -> None:
        everything, visible = self.found()
        self.judge_records(everything, visible)
        topic = self.topic
        if (topic.log_start_offset(0), topic.log_end_offset(0)) != (0, self.end):
            raise HistoryError(f"{topic.log_start_offset(0)} to {topic.log_end_offset(0)}, not {self.end}")
        served = {record.offset: (record.key, record.value) for record in topic.read(0)}
        if served != everything:
            raise HistoryError(f"served {sorted(served)}, on disk {sorted(everything)}")
        for key, at in {seen[0]: at for at, seen in visible.items()}.items():
            record = topic.get(key, 0) if key is not None else None
            if key is not None and (record is None or record.offset < at):
                raise HistoryError(f"get {key!r} finds {record}, not offset {at}")

    def judge_unrecovered(self) -> None:
        """Judge what a reader sees that comes before the next writer."""
        with stratalog.open(ROOT, fs=self.fs, clock=self.clock, read_only=True) as store:
            topic = store.topic(TOPIC)
            everything, visible = (
                {each.offset: (each.key, each.value) for each in topic.read(0, isolation=isolation)}
                for isolation in ("read_uncommitted", "read_committed")
            )
            self.judge_records(everything, visible)
            if damages := verify(store).damages:
                raise HistoryError(f"damage: {damages}")

    def judge_records(self, everything: dict[int, Seen], visible: dict[int, Seen]) -> None:
        for offset, seen in everything.items():
            if self.appended.get(offset) != seen:
                raise HistoryError(f"offset {offset} holds {seen}, not {self.appended.get(offset)}")
        if set(visible) & self.aborted:
            raise HistoryError(f"aborted offsets {sorted(set(visible) & self.aborted)} are visible")
        latest = {seen[0]: at for at, seen in self.appended.items() if at not in self.aborted}
        shown = {seen[0]: at for at, seen in visible.items()}
        for key, at in latest.items():
            value = self.appended[at][1]
            if key in self.erased:
                if key in shown:
                    raise HistoryError(f"{key!r} was erased and is at offset {shown[key]}")
            elif key in self.erasing:
                continue
            elif value is None and shown.get(key, at) != at:
                raise HistoryError(f"{key!r}, deleted at {at}, is back from the dead at {shown[key]}")
            elif value is not None and shown.get(key) != at:
                raise HistoryError(f"{key!r}: the latest is at {at}, shown is {shown.get(key)}")

    def check_orphans(self) -> None:
        """Every file is one of a segment that is there, or one of the partition."""
        names = self.fs.list_dir(DIRECTORY)
        bases = {int(name[:20]) for name in names if name.endswith(".log")}
        for name in names:
            parsed = parse_file(name)
            if parsed is None:
                if name not in PARTITION_FILES:
                    raise HistoryError(f"{name} belongs to nobody")
            elif parsed.suffix or (
                parsed.base_offset not in bases
                and not (parsed.kind == SNAPSHOT and parsed.base_offset == self.end)
            ):
                raise HistoryError(f"{name} is an orphan; segments {sorted(bases)}")
            elif parsed.kind not in (*SEGMENT_KINDS, SNAPSHOT):
                raise HistoryError(f"{name} is left over")
        self._check_traces(names)

    def _check_traces(self, names: list[str]) -> None:
        for name in names:
            data = self.fs.read_file(f"{DIRECTORY}/{name}")
            for key in self.erased:
                if key in data:
                    raise HistoryError(f"{key!r} was erased and is in {name}")

    def close(self) -> None:
        assert self.store is not None
        self.store.close()


def judge_survivor(log: KeyedLog, mode: SurvivorMode, seed: int) -> None:
    """Boot what a crash leaves now, judge it, finish the work, crash and boot again, judge."""
    rng = random.Random(seed)
    after = log.branch(log.fs.survivor(mode, rng))
    after.judge_unrecovered()
    after.open()
    after.check_orphans()
    after.judge()
    if after.erasing:
        after.erase(*after.erasing)
        after.judge()
    after.compact()
    after.judge()
    again = after.branch(after.fs.survivor("drop" if seed % 2 else "reorder", rng))
    again.open()
    again.check_orphans()
    again.judge()
    after.put(b"a", b"after")
    after.judge()
    after.close()
    after.open()
    after.judge()


def crash_everywhere(work: Callable[[KeyedLog], None], *, every: int, first: int, seeds: int) -> Tally:
    """Run ``work`` on a filled log; before each ``every``-th call look at what each crash would leave."""
    log, tally = KeyedLog(), Tally()
    log.open().create_topic(TOPIC, 1, SETTINGS)
    log.fill(1)

    def look(call: str) -> None:
        point = len(log.fs.calls)
        if point % every != first % every:
            return
        tally.points += 1
        for mode in MODES:
            for seed in range(seeds if mode in ("torn", "reorder") else 1):
                tally.states += 1
                try:
                    judge_survivor(log, mode, point * 1000 + seed)
                except (StratalogError, HistoryError, OSError) as error:
                    tally.fail(f"call {point} ({call}) {mode} seed {point * 1000 + seed}", error)

    log.fs.before_call = look
    work(log)
    log.fs.before_call = None
    log.judge()
    log.close()
    log.open()
    log.judge()
    log.check_orphans()
    return tally


MODES: tuple[SurvivorMode, ...] = ("kill", "drop", "torn", "reorder")


def quietly(log: KeyedLog, step: Callable[[], None]) -> None:
    """A step whose calls are not looked at."""
    look, log.fs.before_call = log.fs.before_call, None
    step()
    log.fs.before_call = look


def compaction(log: KeyedLog) -> None:
    """Three rounds: the first of everything, one over a cleaned log, one in which tombstones go."""
    log.compact()
    quietly(log, lambda: log.fill(2))
    log.compact()
    log.clock.advance(2000)
    assert log.store is not None
    log.store.tick()
    log.compact()


def erasing(log: KeyedLog) -> None:
    log.erase(SECRETS[0])
    quietly(log, lambda: log.put(b"b", b"between"))
    log.compact()
    log.erase(SECRETS[1])
    log.clock.advance(2000)
    assert log.store is not None
    log.store.tick()


def test_crash_at_every_call_of_compaction() -> None:
    tally = crash_everywhere(compaction, every=1 if FULL else 9, first=4, seeds=6 if FULL else 1)
    assert tally.points > (300 if FULL else 30)
    assert not tally.failures, tally.report()


def test_crash_at_every_call_of_erasing() -> None:
    tally = crash_everywhere(erasing, every=1 if FULL else 9, first=1, seeds=6 if FULL else 1)
    assert tally.points > (300 if FULL else 30)
    assert not tally.failures, tally.report()
