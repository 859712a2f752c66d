"""Transactions: visible together or not at all, to readers and to consumer groups."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.cli.commands.dump.decoders import decoder
from stratalog.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidTxnStateError,
    LogDirOfflineError,
    ReadOnlyError,
    RecordTooLargeError,
    UnknownTopicError,
)
from stratalog.kernel import partition_for_key
from stratalog.model import AppendedRange
from stratalog.store.groups.offsets import OFFSETS_TOPIC
from stratalog.store.internal_topic import for_coordinator
from stratalog.store.transactions import state as states
from stratalog.store.transactions.coordinator import TRANSACTIONS_TOPIC
from stratalog.store.transactions.state import Status, TransactionState
from stratalog.testing import ManualClock
from tests.log.interrupting import Interrupter

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with opened(tmp_path, clock) as store:
        store.create_topic("orders", 2)
        store.create_topic("payments")
        yield store


def opened(path: Path, clock: ManualClock | None = None) -> Store:
    return stratalog.open(path / "data", background=False, clock=clock)


def seen(store: Store, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in store.topic(topic).read(isolation="read_committed")]


def stable(store: Store, topic: str = "orders") -> bool:
    handle = store.topic(topic)
    return all(
        handle.high_watermark(each, "read_committed") == handle.log_end_offset(each)
        for each in range(handle.partitions)
    )


def test_everything_is_visible_at_the_end_of_the_block(store: Store) -> None:
    with store.transaction("t") as t:
        placed = t.append("orders", b"a", key=b"k")
        ranges = t.append_many("payments", [Record(b"b"), Record(b"c")])
        t.append("orders", b"d", partition=placed.partition)
        t.commit_offsets("billing", {("orders", 0): 7})
        assert t.committed is None
        assert seen(store) == seen(store, "payments") == []
        assert store.groups.offsets.committed("billing", "orders", 0) is None
    assert t.committed is True
    assert seen(store) == [b"a", b"d"]
    assert seen(store, "payments") == [b"b", b"c"]
    assert ranges == [(0, 0, 2)]
    found = store.groups.offsets.committed("billing", "orders", 0)
    assert found is not None
    assert found.offset == 7
    assert list(store.groups.offsets.all()) == ["billing"]


def test_an_exception_leaves_nothing(store: Store) -> None:
    store.groups.offsets.commit("billing", {("orders", 0): 3})
    t = store.transaction("t")
    t.append("orders", b"a", partition=0)
    t.append("payments", b"b")
    t.commit_offsets("billing", {("orders", 0): 7})
    with pytest.raises(KeyboardInterrupt), t:
        raise KeyboardInterrupt
    assert t.committed is False
    assert seen(store) == seen(store, "payments") == []
    assert stable(store)
    assert stable(store, "payments")
    found = store.groups.offsets.committed("billing", "orders", 0)
    assert found is not None
    assert found.offset == 3
    store.topic("orders").append(b"plain", partition=0)
    assert seen(store) == [b"plain"]


def test_the_same_id_many_times(store: Store) -> None:
    for number in range(10):
        with store.transaction("t") as t:
            t.append("orders", b"%d" % number, partition=0)
            if number % 3 == 2:
                t.abort()
    assert seen(store) == [b"%d" % each for each in range(10) if each % 3 != 2]
    with store.transaction("t"):
        pass
    assert stable(store)


def test_a_second_transaction_fences_the_first(store: Store) -> None:
    first = store.transaction("t")
    first.append("orders", b"a", partition=0)
    with store.transaction("t") as second:
        second.append("orders", b"b", partition=0)
        with pytest.raises(InvalidProducerEpochError, match="fenced"):
            first.append("orders", b"c", partition=0)
        with pytest.raises(InvalidProducerEpochError):
            first.commit()
    assert first.committed is False
    assert seen(store) == [b"b"]
    empty = store.transaction("t")
    store.transaction("t")
    with pytest.raises(InvalidProducerEpochError):
        empty.append("orders", b"d", partition=0)


def test_two_ids_at_once(store: Store) -> None:
    def run(name: str) -> None:
        for number in range(20):
            with store.transaction(name) as t:
                for partition in range(2):
                    t.append("orders", b"%s-%d" % (name.encode(), number), partition=partition)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = sorted(b"%s-%d" % (name, n) for name in (b"a", b"b", b"c") for n in range(20))
    for partition in range(2):
        found = store.topic("orders").read(partition, isolation="read_committed")
        assert sorted(record.value or b"" for record in found) == wanted


def test_the_same_id_in_two_threads_commits_some_of_them(store: Store) -> None:
    done: list[bytes] = []

    def run(name: bytes) -> None:
        for number in range(20):
            value = b"%s-%d" % (name, number)
            try:
                with store.transaction("t") as t:
                    for partition in range(2):
                        t.append("orders", value, partition=partition)
            except InvalidProducerEpochError:
                continue
            done.append(value)

    threads = [threading.Thread(target=run, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stable(store)
    for partition in range(2):
        found = store.topic("orders").read(partition, isolation="read_committed")
        assert sorted(record.value or b"" for record in found) == sorted(done)


def test_ids_that_nobody_took_leave_nothing_behind(store: Store) -> None:
    def ask(number: int) -> None:
        with pytest.raises(InvalidProducerIdMappingError):
            store.transactions.end_of_client(f"{number:030000}", 1, 0, commit=True, version=states.FIRST)

    ask(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(300):
            ask(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000, "their names have nine megabytes"


def test_a_transaction_that_hangs_is_aborted_after_its_timeout(store: Store, clock: ManualClock) -> None:
    t = store.transaction("t", transaction_timeout_s=5)
    t.append("orders", b"a", partition=0)
    clock.advance(4_000)
    store.tick()
    assert not stable(store)
    clock.advance(2_000)
    store.tick()
    assert stable(store)
    with pytest.raises(InvalidProducerEpochError, match="timeout"):
        t.append("orders", b"b", partition=0)
    with pytest.raises(InvalidProducerEpochError):
        t.commit()
    assert seen(store) == []


def test_an_open_transaction_is_aborted_at_the_next_open(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("orders")
        t = store.transaction("t")
        t.append("orders", b"a")
    with pytest.raises(stratalog.errors.ClosedError):
        t.commit()
    with opened(tmp_path) as store:
        assert stable(store)
        assert seen(store) == []
        with store.transaction("t") as t:
            t.append("orders", b"b")
        assert seen(store) == [b"b"]


def copy_of_a_broker(path: Path) -> None:
    """A real broker's directory; the last record that it has of a transaction says that it is decided."""
    shutil.copytree(GOLDEN, path)
    for each in [path, *path.rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)
    log = path / f"{TRANSACTIONS_TOPIC}-0" / "00000000000000000000.log"
    data, at, last = log.read_bytes(), 0, 0
    while at < len(data):
        last, at = at, at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    log.write_bytes(data[:last])
    for each in (
        path / ".kafka_cleanshutdown",
        *log.parent.glob("*.timeindex"),
        *log.parent.glob("*.snapshot"),
    ):
        each.unlink(missing_ok=True)
    (path / "recovery-point-offset-checkpoint").write_text("0\n0\n")


def test_a_brokers_transactions_stay_until_the_first_of_ours(tmp_path: Path) -> None:
    """A transaction of ours finishes what the broker had decided; an open alone writes nothing."""
    copy_of_a_broker(tmp_path / "data")
    for _ in range(2):
        with opened(tmp_path) as store:
            assert store[TRANSACTIONS_TOPIC].log_end_offset(0) == 15
    with opened(tmp_path) as store:
        with store.transaction("tx-1") as t:
            t.append("transactions", b"ours", partition=0)
        kept = [
            states.parse(each.key or b"", each.value or b"") for each in store[TRANSACTIONS_TOPIC].read(0)
        ]
        assert [each.status for each in kept[14:] if each is not None] == [
            Status.PREPARE_ABORT,
            Status.COMPLETE_ABORT,
            Status.ONGOING,
            Status.PREPARE_COMMIT,
            Status.COMPLETE_COMMIT,
        ]
        assert kept[-1] is not None
        assert (kept[-1].producer_id, kept[-1].epoch) == (3, 4)
        assert seen(store, "transactions")[-1] == b"ours"


def damaged_state(root: Path) -> None:
    log = root / f"{TRANSACTIONS_TOPIC}-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-5] ^= 1
    log.write_bytes(data)


def test_a_record_that_is_no_state_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("orders")
        with store.transaction("t") as t:
            t.append("orders", b"1")
        placed = for_coordinator(store[TRANSACTIONS_TOPIC]).append(b"", b"\0\0garbage")
    with (
        opened(tmp_path) as store,
        pytest.raises(CorruptionError, match=f"state-0, offset {placed.offset}: "),
    ):
        store.transaction("t")


def test_topics_are_given_as_objects_too(store: Store) -> None:
    topic = store.create_topic("objects")
    with store.transaction("t") as t:
        placed = t.append(topic, b"1")
        t.append_many(topic, [Record(b"2")])
        topic.delete_records(0, 1)
        assert topic.appended(AppendedRange(0, placed.offset, 1)) == placed._replace(timestamp=-1)
    with store.consumer("g", [topic], timeout_s=0, isolation="read_committed") as consumer:
        assert [record.value for record in consumer] == [b"2"]


def test_what_belongs_to_another_store_is_refused(store: Store, tmp_path: Path) -> None:
    """A topic of that name here would get the records, and a group of that name the offsets."""
    with stratalog.open(tmp_path / "other", background=False) as other:
        topic = other.create_topic("orders")
        topic.append(b"1")
        with other.consumer("g", [topic], timeout_s=0) as consumer, store.transaction("t") as t:
            consumer.poll()
            for wrong in (topic, topic.using(key_serializer="str")):
                with pytest.raises(InvalidArgumentError, match="of another store"):
                    t.append(wrong, b"1")
                with pytest.raises(InvalidArgumentError, match="of another store"):
                    store.consumer("g", [wrong])
            with pytest.raises(InvalidArgumentError, match="of another store"):
                t.commit_offsets(consumer)
            with pytest.raises(InvalidArgumentError, match="nope is not read"):
                consumer.seek_to_time(0, "nope")
    old = store["orders"]
    store.delete_topic("orders")
    store.create_topic("orders")
    with pytest.raises(UnknownTopicError, match="was deleted"), store.transaction("t") as t:
        t.append(old, b"1")


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_lost_state_settles_nothing_and_harms_nothing_else(tmp_path: Path, harm: str) -> None:
    """An older state in place of a damaged one could end a transaction in the wrong way."""
    root, aside = tmp_path / "data", tmp_path / "aside"
    with opened(tmp_path) as store:
        store.create_topic("orders", 2)
        with store.transaction("t") as t:
            t.append("orders", b"committed", partition=0)
        t = store.transaction("t")
        t.append("orders", b"open", partition=1)
        ended = store[TRANSACTIONS_TOPIC].log_end_offset(0)
    if harm == "damaged":
        damaged_state(root)
    else:
        (root / f"{TRANSACTIONS_TOPIC}-0").rename(aside)
    refusal, words = (CorruptionError, "at byte") if harm == "damaged" else (LogDirOfflineError, "repair")
    with opened(tmp_path) as store:
        assert not stable(store), "it stays open"
        assert store["orders"].append(b"more", partition=0).offset == 2
        with pytest.raises(refusal, match=words):
            store.transaction("t")
        if harm == "damaged":
            assert store[TRANSACTIONS_TOPIC].log_end_offset(0) == ended
            store.repair(TRANSACTIONS_TOPIC, 0, action="drop-damaged")
    if harm == "gone":
        aside.rename(root / f"{TRANSACTIONS_TOPIC}-0")
    with opened(tmp_path) as store:
        with store.transaction("t") as t:
            t.append("orders", b"next", partition=0)
        assert set(seen(store)) == {b"committed", b"more", b"next"}
        assert stable(store)


def test_a_killed_program(tmp_path: Path) -> None:
    script = """
import os, signal, stratalog
store = stratalog.open(os.environ["PLACE"])
store.create_topic("orders", 2)
with store.transaction("t") as t:
    t.append("orders", b"a", partition=0)
    t.append("orders", b"b", partition=1)
    t.commit_offsets("g", {("orders", 0): 5})
t = store.transaction("t")
t.append("orders", b"c", partition=0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PLACE": str(tmp_path / "data")}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with opened(tmp_path) as store:
        assert sorted(each or b"" for each in seen(store)) == [b"a", b"b"]
        assert stable(store)
        found = store.groups.offsets.committed("g", "orders", 0)
        assert found is not None
        assert found.offset == 5


def test_a_consumer_commits_with_what_it_made(store: Store) -> None:
    store.topic("payments").append_many([Record(b"%d" % n) for n in range(6)])
    for _ in range(3):
        with store.consumer("work", ["payments"], timeout_s=0) as consumer, store.transaction("w") as t:
            t.append_many("orders", [Record(each.value) for each in consumer.poll(2)], partition=0)
            t.commit_offsets(consumer)
    assert seen(store) == [b"%d" % n for n in range(6)]
    with store.consumer("work", ["payments"], auto_commit=True, timeout_s=0) as consumer:
        assert list(consumer) == []
        with store.transaction("w") as t, pytest.raises(InvalidArgumentError, match="auto_commit"):
            t.commit_offsets(consumer)


def test_another_group_is_seen_behind_a_transaction_that_commits(store: Store) -> None:
    with store.transaction("t") as t:
        t.commit_offsets("a", {("orders", 0): 1})
        store.groups.offsets.commit("b", {("orders", 0): 2})
        found = store.groups.offsets.committed("b", "orders", 0)
        assert found is not None
        assert found.offset == 2


def test_a_deleted_topic_does_not_keep_the_others(store: Store) -> None:
    t = store.transaction("t")
    t.append("orders", b"a", partition=0)
    t.append("payments", b"b")
    store.delete_topic("orders")
    with pytest.raises(UnknownTopicError):
        t.append("orders", b"c", partition=0)
    t.commit()
    assert seen(store, "payments") == [b"b"]


def test_a_refused_record_does_not_end_the_transaction(store: Store) -> None:
    with store.transaction("t") as t:
        with pytest.raises(InvalidRecordError):
            t.append("orders", "text", partition=0)  # type: ignore[arg-type]
        t.append("orders", b"a", partition=0)
    assert seen(store) == [b"a"]


def test_an_append_that_failed_in_the_middle_aborts(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("orders", config={"max.message.bytes": 200})
        rows = [Record(b"x" * 100), Record(b"x" * 100), Record(b"x" * 500)]
        t = store.transaction("t")
        with pytest.raises(InvalidRecordError):
            t.append_many("orders", rows)
        with pytest.raises(InvalidTxnStateError, match="append failed"):
            t.commit()
        assert seen(store) == []
        assert stable(store)


def test_a_part_of_many_records_is_not_committed(store: Store) -> None:
    """A record is refused, and the one before it is written already, to another partition."""
    topic = store.create_topic("parts", 2)
    keys = [b"%d" % number for number in range(20)]
    first = next(key for key in keys if partition_for_key(key, 2) == 0)
    second = next(key for key in keys if partition_for_key(key, 2) == 1)
    t = store.transaction("t")
    with pytest.raises(RecordTooLargeError):
        t.append_many("parts", [Record(b"small", first), Record(bytes(2_000_000), second)])
    with pytest.raises(InvalidTxnStateError, match="an append failed"):
        t.commit()
    assert list(topic.read(isolation="read_committed")) == []


def test_wrong_uses_are_refused(store: Store, tmp_path: Path) -> None:
    for wrong in ("", 5, "x" * 40_000):
        with pytest.raises(InvalidArgumentError):
            store.transaction(wrong)  # type: ignore[arg-type]
    for seconds in (0, -1, None, 1e12):
        with pytest.raises(InvalidArgumentError):
            store.transaction("t", transaction_timeout_s=seconds)  # type: ignore[arg-type]
    t = store.transaction("t")
    with pytest.raises(InvalidArgumentError):
        t.commit_offsets("group")
    with pytest.raises(InvalidArgumentError):
        t.append("orders", b"a", partition=9)
    t.commit()
    with pytest.raises(InvalidTxnStateError, match="has ended"):
        t.append("orders", b"a")
    with stratalog.open(tmp_path / "data", read_only=True) as other, pytest.raises(ReadOnlyError):
        other.transaction("t")


def test_an_interrupted_commit_is_finished_or_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each write of a commit, before it and after it."""
    from stratalog.fs.real import RealFile

    outcomes = set()
    write = RealFile.pwrite
    for point in range(12):
        with opened(tmp_path / str(point)) as store:
            store.create_topic("orders", 2)
            t = store.transaction("t")
            for partition in range(2):
                t.append("orders", b"a", partition=partition)
            left = [point // 2]

            def cut(
                file: RealFile, data: bytes, offset: int, left: list[int] = left, point: int = point
            ) -> None:
                left[0] -= 1
                if left[0] != -1:
                    return write(file, data, offset)
                if point % 2:
                    write(file, data, offset)
                raise KeyboardInterrupt

            monkeypatch.setattr(RealFile, "pwrite", cut)
            interrupted = False
            try:
                t.commit()
            except KeyboardInterrupt:
                interrupted = True
            monkeypatch.setattr(RealFile, "pwrite", write)
            store.tick()
            assert stable(store)
            assert t.committed is not None
            assert interrupted or t.committed
            assert seen(store) == ([b"a", b"a"] if t.committed else [])
            outcomes.add((interrupted, t.committed))
            with store.transaction("t") as t:
                t.append("orders", b"b", partition=0)
    assert (True, True) in outcomes


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.parametrize("file", ["transactions/transaction.py", "transactions/coordinator.py"])
def test_an_interrupt_anywhere_in_a_commit_decides_it(tmp_path: Path, file: str) -> None:
    """Nothing stays open until its timeout, and the outcome is known also behind the next of its id."""
    outcomes = set()
    with opened(tmp_path) as store:
        store.create_topic("orders", 2)
        store.create_topic("payments")
        store.groups.offsets.commit("other", {("orders", 0): 0})
        at, interrupted = 1, True  # not before the first step of `__exit__`
        while interrupted:
            at += 1
            t = store.transaction("t")
            t.append("orders", b"%d" % at, partition=0)
            t.append("payments", b"%d" % at)
            t.commit_offsets(f"g{at}", {("orders", 0): 1})
            interrupter = Interrupter(KeyboardInterrupt, at, file)
            with suppress(KeyboardInterrupt):
                interrupter.run(lambda t=t: t.__exit__(None, None, None))  # type: ignore[misc]
            interrupted = bool(interrupter.where)
            for topic in ("orders", "payments", OFFSETS_TOPIC):
                assert stable(store, topic), interrupter.where
            for topic in ("orders", "payments"):
                assert (b"%d" % at in seen(store, topic)) is t.committed, interrupter.where
            assert (store.groups.offsets.committed(f"g{at}", "orders", 0) is not None) is t.committed
            outcomes.add(t.committed)
    assert outcomes == {True, False}


def test_an_outcome_is_known_behind_the_next_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers cannot be written for a while: a commit is in doubt, and the next transaction finishes it."""
    t = store.transaction("t")
    t.append("orders", b"a", partition=0)
    t.append("payments", b"b")
    t.commit_offsets("g", {("orders", 0): 1})
    end = Topic.end_transaction

    def full(topic: Topic, *arguments: Any, **options: Any) -> Any:
        if topic.name == "orders":
            raise DiskFullError("no room")
        return end(topic, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Topic, "end_transaction", full)
        with pytest.raises(DiskFullError):
            t.commit()
        assert t.committed is None
        assert seen(store, "payments") == [b"b"], "others do not wait for the partition that fails"
        assert stable(store, OFFSETS_TOPIC)
    store.transaction("t")
    assert t.committed is True
    assert seen(store) == [b"a"]


def test_a_closed_consumer_commits_nothing(store: Store) -> None:
    store.topic("payments").append_many([Record(b"%d" % n) for n in range(6)])
    closed = store.consumer("g", ["payments"], timeout_s=0)
    closed.poll(2)
    closed.close()
    with store.consumer("g", ["payments"], timeout_s=0) as consumer:
        consumer.poll()
        consumer.commit()
        with pytest.raises(ClosedError), store.transaction("t") as t:
            t.commit_offsets(closed)
        assert consumer.committed("payments") == 6


@pytest.mark.parametrize(
    ("group", "offsets", "error"),
    [
        ("", {("orders", 0): 1}, InvalidArgumentError),
        ("\ud800", {("orders", 0): 1}, InvalidArgumentError),
        ("g", {("orders", 2**40): 1}, InvalidArgumentError),
        ("g", {"orders": 1}, InvalidArgumentError),
        ("g", {("nowhere", 0): 1}, UnknownTopicError),
    ],
)
def test_offsets_of_nothing_are_refused(
    store: Store, group: str, offsets: Any, error: type[Exception]
) -> None:
    with store.transaction("t") as t:
        t.append("orders", b"a", partition=0)
        with pytest.raises(error):
            t.commit_offsets(group, offsets)
    assert seen(store) == [b"a"]
    with pytest.raises(InvalidArgumentError, match="half a surrogate pair"):
        store.transaction("\ud800").append("orders", b"a")


def test_ids_go_on_after_the_last_epoch() -> None:
    last = TransactionState("t", 5, states.LAST_EPOCH, 1000, Status.COMPLETE_COMMIT, updated_ms=1)
    assert states.needs_id(last)
    assert states.begin(last, "t", 9, 1000) == TransactionState("t", 9, 0, 1000)
    before = TransactionState("t", 5, 7, 1000, Status.COMPLETE_ABORT, updated_ms=1)
    assert states.begin(before, "t", -1, 1000).epoch == 8


def test_steps_out_of_turn_are_refused() -> None:
    empty = TransactionState("t", 5, 0, 1000)
    with pytest.raises(InvalidTxnStateError):
        states.prepare(empty, commit=True, now_ms=1)
    ongoing = states.add(empty, [("a", 0)], 10)
    assert states.add(ongoing, [("a", 0)], 20) is ongoing
    assert ongoing.expired(1010)
    assert not ongoing.expired(1009)
    with pytest.raises(InvalidTxnStateError):
        states.begin(ongoing, "t", 9, 1000)
    prepared = states.prepare(ongoing, commit=True, now_ms=30)
    with pytest.raises(InvalidTxnStateError):
        states.add(prepared, [("b", 0)], 40)
    assert states.complete(prepared, 50).status == Status.COMPLETE_COMMIT
    assert states.fence(ongoing, 60).epoch == 1


def test_the_records_are_kafkas(store: Store) -> None:
    with store.transaction("t") as t:
        t.append_many("orders", [Record(b"a")], partition=1)
        t.append("payments", b"b")
    show, shown = decoder("transaction-log"), []
    for record in store.topic(TRANSACTIONS_TOPIC).read():
        assert record.key is not None
        assert record.value is not None
        shown.append(show((0, 0, 0, record.key, record.value, ())))  # type: ignore[arg-type]
        found = states.parse(record.key, record.value)
        assert found is not None
        assert states.pack(found) == record.value
    assert all(key == '{"type":"0","data":{"transactionalId":"t"}}' for key, _ in shown)
    prepared = shown[2][1] or ""
    assert '"transactionStatus":2' in prepared
    assert '[{"topic":"orders","partitionIds":[1]},{"topic":"payments","partitionIds":[0]}]' in prepared
    newer = bytes.fromhex("0001 0000000000000007 0003 0000ea60 01 02 02 61 02 00000004 00" + 17 * "00")
    found = states.parse(states.pack_key("x"), newer)
    assert found == TransactionState(
        "x", 7, 3, 60000, Status.ONGOING, frozenset({("a", 4)}), updated_ms=0, started_ms=0
    )
    for cut in range(2, len(newer) - 1):
        with pytest.raises(CorruptionError):
            states.parse(states.pack_key("x"), newer[:cut])
