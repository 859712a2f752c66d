"""One store under test together with what it must remember: every operation is noted before and after.

A `Driver` may be branched at any filesystem call: `branch` gives the one that boots from a survivor of the
filesystem, with the same past. `restart` opens it and judges what is there; `exercise` goes on working.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import stratalog
from stratalog.errors import ClosedError, OutOfOrderSequenceError, UnknownTopicError
from stratalog.format import batch as batches
from stratalog.model import Record
from stratalog.store.store import Store
from stratalog.testing import (
    Fact,
    HistoryError,
    LogHistory,
    ManualClock,
    MemoryFileSystem,
    committed,
    read_raw,
)
from stratalog.testing.raw import RawBatch

ROOT = "/data/log"
CONFIG = {"num.recovery.threads.per.data.dir": 1, "log.flush.offset.checkpoint.interval.ms": 10_000}
Log = tuple[str, int]


class Driver:
    """A store on a crashable filesystem, its clock, and the history of each of its partitions."""

    def __init__(self, fs: MemoryFileSystem | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.fs = fs or MemoryFileSystem(clock=self.clock.now_ns)
        self.logs: dict[Log, LogHistory] = {}
        self.pending_topic: str | None = None
        self.power_cut = False
        self.count = 0
        self.store: Store | None = None
        self.settings: dict[str, dict[str, object]] = {}

    def branch(self, fs: MemoryFileSystem, *, power_cut: bool) -> Driver:
        """The driver of what was left after a crash at this moment."""
        other = Driver(fs, ManualClock(self.clock.now_ms()))
        other.logs = {name: history.copy() for name, history in self.logs.items()}
        other.settings = {name: dict(config) for name, config in self.settings.items()}
        other.pending_topic = self.pending_topic
        other.power_cut = power_cut or self.power_cut
        other.count = self.count + 1_000_000
        return other

    # -- life ------------------------------------------------------------------------------------------

    def open(self) -> Store:
        self.store = stratalog.open(ROOT, CONFIG, fs=self.fs, clock=self.clock, background=False)
        return self.store

    def close(self) -> None:
        self.opened.close()
        self.store = None
        for history in self.logs.values():
            history.acknowledge_flush()

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def topic(self, log: Log) -> stratalog.Topic:
        return self.opened.topic(log[0])

    def waits(self, log: Log) -> bool:
        """Whether acknowledgements of this topic wait for the disk."""
        return self.settings[log[0]].get("flush.messages") == 1

    # -- topics ----------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **settings: object) -> None:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.pending_topic = name
        self.settings[name] = config
        self.opened.create_topic(name, partitions, config)
        for partition in range(partitions):
            self.logs[name, partition] = LogHistory(f"{name}-{partition}")
        self.pending_topic = None

    def delete_topic(self, name: str) -> None:
        self.pending_topic = name
        self.opened.delete_topic(name)
        self._drop(name)
        self.pending_topic = None

    def _drop(self, name: str) -> None:
        for log in [log for log in self.logs if log[0] == name]:
            del self.logs[log]

    def alter_topic(self, name: str, **settings: object) -> None:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        if "flush.messages" in config:
            # Either value may be in force after a crash; the weaker promise holds meanwhile.
            self.settings[name].pop("flush.messages", None)
        self.opened.alter_topic(name, config)
        if config.get("flush.messages") == 1:
            # What was visible before the change may still be lost; from here on nothing is.
            for log in self.logs:
                if log[0] == name:
                    self.flush(log)
        self.settings[name].update(config)

    # -- writing ---------------------------------------------------------------------------------------

    def fact(self, log: Log, key: bytes | None = None, size: int = 20, lag_ms: int = 0) -> Fact:
        """A record like no other."""
        self.count += 1
        value = f"{log[0]}-{log[1]}:{self.count}:".encode().ljust(size, b"v")
        headers = (("h", str(self.count).encode()),) if self.count % 3 == 0 else ()
        return Fact(value, key, self.clock.now_ms() - lag_ms, headers)

    def append(self, log: Log, fact: Fact | None = None, *, sync: bool = False) -> None:
        fact = fact or self.fact(log)
        history = self.logs[log]
        history.begin([fact])
        done = self.topic(log).append(
            fact.value, fact.key, fact.headers, fact.timestamp, partition=log[1], sync=sync
        )
        history.acknowledge(done.offset, synced=sync or self.waits(log))

    def append_many(
        self, log: Log, facts: Sequence[Fact], *, sync: bool = False, arrow: bool = False
    ) -> None:
        history = self.logs[log]
        history.begin(facts)
        rows = _table(facts) if arrow else [Record(*_record(fact)) for fact in facts]
        placed = self.topic(log).append_many(rows, partition=log[1], sync=sync)
        if [each.count for each in placed] != [len(facts)]:
            raise HistoryError(f"{log}: {placed} for {len(facts)} records")
        history.acknowledge(placed[0].offset, synced=sync or self.waits(log))

    def append_batch(
        self,
        log: Log,
        facts: Sequence[Fact],
        producer_id: int,
        sequence: int,
        *,
        transactional: bool = False,
        sync: bool = False,
    ) -> None:
        """One batch of an idempotent producer, new to the log."""
        history = self.logs[log]
        history.begin(facts)
        data = encode_batch(facts, producer_id, sequence, transactional)
        done = self.topic(log).append_batches(log[1], data, sync=sync)
        if done.duplicate or done.last_offset - done.base_offset + 1 != len(facts):
            raise HistoryError(f"{log}: {done} for {len(facts)} new records")
        history.acknowledge(done.base_offset, synced=sync or self.waits(log))

    def resend(self, log: Log, batch: RawBatch) -> None:
        """A producer's last batch again: recognised where it is; refused when its transaction has ended."""
        header = batch.header
        ended = header.is_transactional and header.producer_id not in open_transactions(self.raw(log))
        try:
            done = self.topic(log).append_batches(log[1], batch.data)
        except OutOfOrderSequenceError:
            if ended:
                return
            raise
        if ended or not done.duplicate or done.base_offset != header.base_offset:
            raise HistoryError(f"{log}: {done} for a retry of the batch at {header.base_offset}")

    def end_transaction(self, log: Log, producer_id: int, *, commit: bool, sync: bool = False) -> None:
        history = self.logs[log]
        history.begin(marker=True)
        done = self.topic(log).end_transaction(
            log[1], producer_id=producer_id, producer_epoch=0, commit=commit, sync=sync
        )
        history.acknowledge(done.base_offset, synced=sync or self.waits(log))

    def roll(self, log: Log) -> None:
        self.topic(log).roll(log[1])

    def flush(self, log: Log) -> None:
        self.topic(log).flush(log[1])
        self.logs[log].acknowledge_flush()

    def delete_records(self, log: Log, before: int) -> None:
        history = self.logs[log]
        history.begin(start=before)
        history.acknowledge_start(self.topic(log).delete_records(log[1], before))

    def tick(self, ms: int = 0) -> None:
        self.clock.advance(ms)
        self.opened.tick()

    # -- judging ---------------------------------------------------------------------------------------

    def directory(self, log: Log) -> str:
        return f"{ROOT}/{log[0]}-{log[1]}"

    def raw(self, log: Log) -> list[RawBatch]:
        return read_raw(self.fs, self.directory(log), *log)

    def restart(self) -> None:
        """Open what a crash left and judge it."""
        store = self.open()
        self.judge(store)

    def judge(self, store: Store) -> None:
        topics = set(store.topics())
        known = {name for name, _ in self.logs}
        unsure = {self.pending_topic} - {None}
        if topics - known - unsure or known - topics - unsure:
            raise HistoryError(f"topics {sorted(topics)} where {sorted(known)} were made, unsure {unsure}")
        if self.pending_topic is not None:
            self._settle_topic(store, self.pending_topic)
        for log, history in self.logs.items():
            topic = store.topic(log[0])
            raw = self.raw(log)
            start, end = topic.log_start_offset(log[1]), topic.log_end_offset(log[1])
            found = [record for batch in raw for record in batch.records if record.offset >= start]
            markers = {
                batch.header.base_offset
                for batch in raw
                if batch.marker is not None and batch.header.base_offset >= start
            }
            history.settle(found, start=start, end=end, markers=markers, power_cut=self.power_cut)
        self.power_cut = False

    def _settle_topic(self, store: Store, name: str) -> None:
        """A topic whose creation or deletion was under way is there, and usable, or it is not."""
        self.pending_topic = None
        try:
            topic = store.topic(name)
        except UnknownTopicError:
            self._drop(name)
            return
        if not any(log[0] == name for log in self.logs):
            for partition in range(topic.partitions):
                self.logs[name, partition] = LogHistory(f"{name}-{partition}")

    def look(self) -> None:
        """What readers can see at this very moment, in the middle of whatever the store is doing."""
        if self.store is None:
            return
        waiting = [log for log in self.logs if self.waits(log) and log[0] != self.pending_topic]
        try:
            for log in waiting:
                self.logs[log].saw(self.topic(log).high_watermark(log[1]))
        except ClosedError:
            return
        with stratalog.open(ROOT, CONFIG, read_only=True, fs=self.fs, clock=self.clock) as beside:
            for log in waiting:
                self.logs[log].saw(beside.topic(log[0]).high_watermark(log[1]))

    def check_doors(self, *, arrow: bool = True) -> None:
        """Every way to read shows what the bytes say."""
        for log in self.logs:
            topic, partition = self.topic(log), log[1]
            history = self.logs[log]
            raw = self.raw(log)
            start, visible = topic.log_start_offset(partition), topic.high_watermark(partition)
            shown = list(topic.read(partition))
            history.check_visible(shown, up_to=visible)
            if self.waits(log):
                history.saw(visible)
            rows = [record for batch in raw for record in batch.records]
            _same(log, "read", shown, [row for row in rows if start <= row.offset < visible])
            wanted = [row for row in committed(raw) if start <= row.offset < visible]
            _same(log, "read_committed", list(topic.read(partition, isolation="read_committed")), wanted)
            if arrow:
                offsets = topic.scan([partition], ["offset", "value"]).read_all().to_pydict()
                _same(log, "scan", offsets["offset"], [row.offset for row in shown])
                _same(log, "scan", offsets["value"], [row.value for row in shown])
            self._check_lookups(log, topic, shown)

    def _check_lookups(self, log: Log, topic: stratalog.Topic, shown: list[Record]) -> None:
        partition = log[1]
        for key in {row.key for row in shown if row.key is not None} | {b"no such key"}:
            wanted = [row for row in shown if row.key == key]
            _same(log, f"history {key!r}", list(topic.history(key, partition)), wanted)
            _same(log, f"get {key!r}", topic.get(key, partition), wanted[-1] if wanted else None)
        times = sorted({row.timestamp or 0 for row in shown})
        for time_ms in [*times[:: max(1, len(times) // 4)], (times[-1] if times else 0) + 1]:
            first = next((row.offset for row in shown if (row.timestamp or 0) >= time_ms), None)
            _same(log, f"time {time_ms}", topic.offset_for_time(partition, time_ms), first)
        for row in shown[:: max(1, len(shown) // 4)]:
            _same(log, f"read at {row.offset}", next(topic.read(partition, row.offset)), row)

    def check_follower(self) -> None:
        """A reader beside the writer sees real records only, and all that it should."""
        with stratalog.open(ROOT, CONFIG, read_only=True, fs=self.fs, clock=self.clock) as beside:
            for log, history in self.logs.items():
                topic = beside.topic(log[0])
                shown = list(topic.read(log[1]))
                up_to = topic.high_watermark(log[1])
                history.check_visible(shown, up_to=up_to)
                if self.waits(log):
                    history.saw(up_to)
                elif up_to < history.end:
                    raise HistoryError(f"{log}: a reader beside sees up to {up_to} of {history.end}")

    def exercise(self, rng: random.Random) -> None:
        """Go on working: nothing that a crash left may be in the way."""
        for log in list(self.logs):
            producers = last_batches(self.raw(log))
            for batch in producers.values():
                if batch.header.base_offset >= self.logs[log].start:
                    self.resend(log, batch)
            self.append(log, self.fact(log, key=b"after"), sync=rng.random() < 0.5)
            for producer_id in open_transactions(self.raw(log)):
                self.end_transaction(log, producer_id, commit=False)
            for batch in producers.values():
                header = batch.header
                facts = [self.fact(log), self.fact(log)]
                self.append_batch(log, facts, header.producer_id, header.last_sequence + 1)
            self.append_many(log, [self.fact(log, key=b"more") for _ in range(3)], sync=True)


def last_batches(raw: Sequence[RawBatch]) -> dict[int, RawBatch]:
    """The last batch with records of every producer."""
    return {
        batch.header.producer_id: batch
        for batch in raw
        if batch.header.producer_id >= 0 and not batch.header.is_control
    }


def open_transactions(raw: Sequence[RawBatch]) -> list[int]:
    found: dict[int, bool] = {}
    for batch in raw:
        if batch.header.is_transactional or batch.marker is not None:
            found[batch.header.producer_id] = batch.marker is None
    return [producer_id for producer_id, is_open in found.items() if is_open]


def encode_batch(
    facts: Sequence[Fact], producer_id: int, sequence: int, transactional: bool = False
) -> bytes:
    encoded, _ = batches.encode_records(
        [Record(*_record(fact)) for fact in facts],
        options=batches.BatchOptions(
            base_offset=0,
            leader_epoch=-1,
            now_ms=0,
            max_bytes=1 << 20,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        ),
    )
    return bytes(encoded.data)


def _record(fact: Fact) -> tuple:
    return fact.value, fact.key, fact.headers, fact.timestamp


def _table(facts: Sequence[Fact]):
    import pyarrow as pa

    return pa.table(
        {
            "value": pa.array([fact.value for fact in facts], pa.binary()),
            "key": pa.array([fact.key for fact in facts], pa.binary()),
            "timestamp": pa.array([fact.timestamp for fact in facts], pa.timestamp("ms", "UTC")),
            "headers": pa.array(
                [[{"key": key, "value": value} for key, value in fact.headers] for fact in facts],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


def _same(log: Log, door: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise HistoryError(f"{log[0]}-{log[1]}: {door} shows\n{found}\nand not\n{wanted}")
