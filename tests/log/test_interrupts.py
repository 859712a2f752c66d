"""Ctrl-C and failed allocations at every event of a write: the same store goes on, and so does the next one.

Each trial interrupts one operation at one event, then appends, syncs and reads with the same store, looks at
what a kill and a power cut would leave, closes, opens again and verifies. The normal run takes a slice of the
events, STRATALOG_INTERRUPTS=all every one. A failure names its trial, which runs again alone with
STRATALOG_INTERRUPTS='append@17 KeyboardInterrupt'.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog.log.check.verify import verify_partition
from stratalog.log.write import sync
from stratalog.log.write.writer import PartitionWriter
from stratalog.model import Record
from stratalog.store.store import Store
from stratalog.testing import Fact, ManualClock, MemoryFileSystem
from tests.crash.driver import encode_batch
from tests.log.interrupting import Interrupter, in_time

pytestmark = pytest.mark.usefixtures("plain_locks")

ROOT = "/data"
CONFIG = {"num.recovery.threads.per.data.dir": 1}
SLICE = 12
"""Events taken of each operation in the normal run."""
SYNCED = 4
"""Records that are synced before the operation; one more is only written."""
LONG = b"longer than all that comes after it: " * 10
"""What is left of it behind a shorter record shows."""


@dataclass
class Trial:
    """A store with five records, an operation to be interrupted, and what may be there afterwards."""

    fs: MemoryFileSystem
    clock: ManualClock
    store: Store
    given: dict[int, bytes] = field(default_factory=dict)
    unsure: list[bytes] = field(default_factory=list)
    """Values of the interrupted operation: a beginning of them may be in the log."""
    synced_end: int = 0

    @property
    def topic(self) -> stratalog.Topic:
        return self.store.topic("t")

    def append(self, value: bytes, *, sync: bool = False) -> None:
        offset = self.topic.append(value, b"k", sync=sync).offset
        assert offset not in self.given, f"offset {offset} was given twice"
        self.given[offset] = value
        if sync:
            self.synced_end = offset + 1

    def acknowledged(self, offset: int, values: list[bytes], *, sync: bool) -> None:
        """The operation came to its end after all."""
        for at, value in enumerate(values):
            assert offset + at not in self.given, f"offset {offset + at} was given twice"
            self.given[offset + at] = value
        if sync:
            self.synced_end = offset + len(values)
        self.unsure = []

    def check(self, store: Store, up_to: int | None = None) -> None:
        """Every acknowledged offset names its record, and nothing else is there but the interrupted one."""
        topic = store.topic("t")
        found = {record.offset: record.value for record in topic.read()}
        wanted = {at: value for at, value in self.given.items() if up_to is None or at < up_to}
        for at, value in wanted.items():
            assert found.get(at) == value, f"offset {at} holds {found.get(at)!r}, not {value!r}"
        others = [value for at, value in sorted(found.items()) if at not in self.given]
        assert others == self.unsure[: len(others)], f"{others} where {self.unsure} may be"
        latest = topic.get(b"k")
        if wanted and up_to is None:
            assert latest is not None
            assert latest.offset == max(found), f"the latest of the key is {latest}, not at {max(found)}"
        report = verify_partition(store.partitions.view("t", 0))
        assert report.ok, report.damages

    def left(self, mode: Any, up_to: int | None) -> None:
        """What would be there had the process been killed, or the power failed, now."""
        fs = self.fs.survivor(mode, random.Random(1))
        for read_only in (True, False):
            with opened(fs, self.clock, read_only=read_only) as store:
                self.check(store, up_to)


def opened(fs: MemoryFileSystem, clock: ManualClock, *, read_only: bool = False) -> Store:
    config = None if read_only else CONFIG
    return stratalog.open(ROOT, config, fs=fs, clock=clock, background=False, read_only=read_only)


def prepared(**settings: object) -> MemoryFileSystem:
    clock = ManualClock()
    fs = MemoryFileSystem(clock=clock.now_ns)
    with opened(fs, clock) as store:
        config = {"key.index.enable": True, "index.interval.bytes": 100, "segment.ms": 2**40, **settings}
        store.create_topic("t", 1, config)
    return fs


def begin(base: MemoryFileSystem) -> Trial:
    clock = ManualClock()
    fs = base.survivor("kill", random.Random(0))
    trial = Trial(fs, clock, opened(fs, clock))
    for at in range(SYNCED):
        trial.append(b"before %d" % at, sync=at == SYNCED - 1)
    trial.append(b"before, written")
    return trial


# -- operations: each says what it may leave, then does it ----------------------------------------------


def append(trial: Trial, sync: bool = False) -> Callable[[], None]:
    values = trial.unsure = [LONG]
    topic = trial.topic
    return lambda: trial.acknowledged(topic.append(LONG, b"k", sync=sync).offset, values, sync=sync)


def append_sync(trial: Trial) -> Callable[[], None]:
    return append(trial, True)


def append_many(trial: Trial) -> Callable[[], None]:
    values = trial.unsure = [b"%d of many" % at for at in range(30)]
    topic, rows = trial.topic, [Record(value, b"k", (), None) for value in values]
    return lambda: trial.acknowledged(topic.append_many(rows)[0].offset, values, sync=False)


def append_arrow(trial: Trial) -> Callable[[], None]:
    values = trial.unsure = [b"%d of a table" % at for at in range(30)]
    topic = trial.topic
    table = pa.table({"key": pa.array([b"k"] * 30, pa.binary()), "value": pa.array(values, pa.binary())})
    return lambda: trial.acknowledged(topic.append_many(table)[0].offset, values, sync=False)


def append_batches(trial: Trial) -> Callable[[], None]:
    values = trial.unsure = [b"%d of a batch" % at for at in range(3)]
    facts = [Fact(value, b"k", trial.clock.now_ms()) for value in values]
    topic, data = trial.topic, encode_batch(facts, 7, 0, False)

    def act() -> None:
        trial.acknowledged(topic.append_batches(0, data, sync=True).base_offset, values, sync=True)

    return act


def append_batches_again(trial: Trial) -> None:
    """A producer that was interrupted sends its batch again: it is in the log once."""
    if trial.unsure:
        facts = [Fact(value, b"k", trial.clock.now_ms()) for value in trial.unsure]
        done = trial.topic.append_batches(0, encode_batch(facts, 7, 0, False))
        trial.acknowledged(done.base_offset, trial.unsure, sync=False)


def roll(trial: Trial) -> Callable[[], None]:
    topic = trial.topic

    def act() -> None:
        assert topic.roll() == 1

    return act


def flush(trial: Trial) -> Callable[[], None]:
    return trial.topic.flush


def close(trial: Trial) -> Callable[[], None]:
    return trial.store.close


@dataclass(frozen=True)
class Operation:
    begin: Callable[[Trial], Callable[[], None]]
    settings: Mapping[str, object] = field(default_factory=dict)
    retry: Callable[[Trial], None] | None = None


ROLLS = {"segment.bytes": 500}
SMALL_BATCHES = {"max.message.bytes": 300, "segment.bytes": 900}
OPERATIONS: dict[str, Operation] = {
    "append": Operation(append),
    "append-that-rolls": Operation(append, ROLLS),
    "append-compressed": Operation(append, {"compression.type": "lz4"}),
    "append-sync": Operation(append_sync),
    "append-acks": Operation(append, {"flush.messages": 1}),
    "append-many": Operation(append_many, SMALL_BATCHES),
    "append-arrow": Operation(append_arrow, SMALL_BATCHES),
    "append-batches": Operation(append_batches, retry=append_batches_again),
    "roll": Operation(roll),
    "flush": Operation(flush),
    "close": Operation(close),
}
ERRORS: tuple[type[BaseException], ...] = (KeyboardInterrupt, MemoryError)
ASKED = os.environ.get("STRATALOG_INTERRUPTS", "")


def one(operation: Operation, base: MemoryFileSystem, interrupter: Interrupter) -> None:
    """One trial, from the beginning to a second open."""
    trial = begin(base)
    act = operation.begin(trial)
    try:
        interrupter.run(act)
    except interrupter.error:
        assert interrupter.at, "not by us"
    else:
        fired = bool(interrupter.at) and interrupter.events >= interrupter.at
        assert not fired, "the exception was swallowed"
    if operation.begin is not close:
        trial.check(trial.store)
        if operation.retry is not None:
            operation.retry(trial)
        trial.append(b"after")
        trial.append(b"after, synced", sync=True)
        trial.check(trial.store)
        trial.left("kill", None)
        trial.left("drop", trial.synced_end)
    trial.store.close()
    with opened(trial.fs, trial.clock, read_only=True) as store:
        trial.check(store)
    with opened(trial.fs, trial.clock) as store:
        trial.store = store
        trial.check(store)
        trial.append(b"after opening")
        trial.check(store)


def events_of(operation: Operation, base: MemoryFileSystem, error: type[BaseException]) -> int:
    counter = Interrupter(error)
    one(operation, base, counter)
    return counter.events


def chosen(name: str, error: type[BaseException], events: int) -> list[int]:
    if ASKED == "all":
        return list(range(1, events + 1))
    if ASKED:
        trial, _, kind = ASKED.partition(" ")
        return (
            [int(trial.rpartition("@")[2])]
            if (trial.rpartition("@")[0], kind) == (name, error.__name__)
            else []
        )
    return sorted(random.Random(f"{name} {error}").sample(range(1, events + 1), min(SLICE, events)))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupted_operation_leaves_a_store_that_goes_on(name: str, error: type[BaseException]) -> None:
    operation = OPERATIONS[name]
    base = prepared(**operation.settings)
    events = events_of(operation, base, error)
    assert events > 5
    failures: list[str] = []
    for at in chosen(name, error, events):
        interrupter = Interrupter(error, at)
        try:
            in_time(partial(one, operation, base, interrupter), f"{name}@{at}")
        except BaseException as failure:  # noqa: BLE001 - all of them are told
            failures.append(
                f"{name}@{at} {error.__name__} ({interrupter.where}): {type(failure).__name__}: {failure}"
            )
    assert not failures, f"{len(failures)} of {events} events:\n" + "\n".join(failures)


# -- planted: two defects that the log has had ------------------------------------------------------------


def what_was_cut_short_is_not_read_again(patch: pytest.MonkeyPatch) -> None:
    """Bytes that were written and never accounted for stay where they are, behind the next record."""

    def only_unmarked(self: PartitionWriter) -> None:
        self.active.ledger.in_doubt = False
        self.swapping = False

    patch.setattr(PartitionWriter, "_reload", only_unmarked)


def an_interrupted_sync_counts_as_a_failed_one(patch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in fsync makes the partition read-only."""
    patch.setattr(sync, "_disk_failure", lambda error, before: error)


HUNTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = [
    (what_was_cut_short_is_not_read_again, "append", "bytes behind the end"),
    (an_interrupted_sync_counts_as_a_failed_one, "append-sync", "ReadOnlyError"),
    (an_interrupted_sync_counts_as_a_failed_one, "flush", "ReadOnlyError"),
]


@pytest.mark.parametrize(("plant", "name", "told"), HUNTS)
def test_the_trials_find(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = OPERATIONS[name]
    base = prepared(**operation.settings)
    events = events_of(operation, base, KeyboardInterrupt)
    plant(monkeypatch)
    found: list[str] = []
    for at in range(1, events + 1):
        try:
            in_time(partial(one, operation, base, Interrupter(KeyboardInterrupt, at)), f"{name}@{at}")
        except Exception as failure:  # noqa: BLE001 - looked at below
            found.append(f"{type(failure).__name__}: {failure}")
    assert any(told in each for each in found), f"in {events} trials: {found}"
