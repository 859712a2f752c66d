"""SIGKILL for a broker with clients: nothing that a client was told may turn out to be wrong.

Producers (idempotent ones, one that is not, and transactional ones), programs that copy a topic exactly
once, groups of consumers and consumers without a group, all of them confluent-kafka, work in threads of
this process while the broker's process is killed, stopped and continued, restarted, and made to fail,
delay and drop requests. Segments are small, so that logs roll, are compacted and lose their oldest
segments meanwhile. At the end everything is read once more, and `find_anomalies` looks at the whole
history. Run by ``make crash-broker``; the printed seed repeats the plan, as far as threads allow.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

import stratalog
from stratalog.testing import (
    Commit,
    CommitFetch,
    LogEnd,
    Operation,
    Poll,
    Polled,
    ProcessBroker,
    Seek,
    Send,
    TransactionEnd,
    find_anomalies,
)

SMALL: dict[str, object] = {"segment.bytes": 16384, "file.delete.delay.ms": 1000}
TOPICS: dict[str, dict[str, object]] = {
    "plain": SMALL,
    "synced": SMALL | {"flush.messages": 1},
    "short": SMALL | {"retention.bytes": 65536},
    "latest": SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.1},
}
SOURCE, COPIES = "plain", "copies"
"""What is copied in transactions, and where to."""
WRITTEN = tuple(TOPICS)
TOPICS[COPIES] = SMALL
COPIERS = "copiers"
GROUPS = {"g1": tuple(TOPICS), "g2": tuple(TOPICS), COPIERS: (SOURCE,)}
"""What each group reads."""
PARTITIONS = 2
CONFIG = {"log.retention.check.interval.ms": 300, "log.cleaner.backoff.ms": 300}
KEYS = 20
CALL_S = 10
QUIET_S = 30.0
"""How long a reader at the end waits for something that the broker says is there."""
READY_S = 120.0
BREATH_S = 0.2
TRANSACTION_MS = 60_000
"""Longer than a broker is ever away: none is aborted because its producer was not heard."""
QUIET = logging.getLogger("quiet")
"""For what a producer says when another one took its transactional id."""
QUIET.disabled = True
TRANSACTIONAL = ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")


class History:
    """What all clients did, in one list; each client adds its own operations in their order."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._noted_s: list[float] = []
        self._lock = threading.Lock()
        self.fatal: list[str] = []

    def add(self, operation: Operation) -> int:
        """Add one; return its place."""
        with self._lock:
            self.operations.append(operation)
            self._noted_s.append(time.monotonic())
            return len(self.operations) - 1

    def settle(self, at: int, **found: Any) -> None:
        """Say how a send ended."""
        self.operations[at] = replace(self.operations[at], **found)  # type: ignore[arg-type]

    def write(self, path: Path) -> None:
        """Write one operation a line, after the second in which it was noted: a poll as it ended."""
        with path.open("w") as file:
            for noted_s, operation in zip(self._noted_s, self.operations, strict=True):
                told = str(operation)
                if isinstance(operation, Poll):  # a record takes as much as the rest
                    offsets: dict[tuple[str, int], list[int]] = {}
                    for each in operation.records:
                        offsets.setdefault(each.log, []).append(each.offset)
                    parts = (
                        f"{log}: {those[0]} to {those[-1]}, {len(those)}" for log, those in offsets.items()
                    )
                    told = f"Poll {operation.client} {'; '.join(parts)}"
                file.write(f"{noted_s - self._noted_s[0]:.3f} {told}\n")


class Clients:
    """All threads with a client, until they are told to end."""

    def __init__(self, servers: str, history: History, seed: int) -> None:
        self._common = {
            "bootstrap.servers": servers,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 200,
            "socket.timeout.ms": 5000,
            "topic.metadata.refresh.interval.ms": 2000,
            # With "rebootstrap", librdkafka 2.16 may never return from send_offsets_to_transaction.
            "metadata.recovery.strategy": "none",
            "log_level": 0,
        }
        self._history = history
        self._seed = seed
        self._end = threading.Event()
        self._producing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._producers: list[threading.Thread] = []
        self._broken: set[str] = set()
        """Transactions whose producer cannot go on."""
        self.errors: list[BaseException] = []

    def start(self) -> None:
        """Start them all."""
        for group, topics in GROUPS.items():
            self._commit_the_start(group, topics)
        for name, idempotent in (("p1", True), ("p2", True), ("p3", False)):
            self._producers.append(self._run(self._produce, name, idempotent))
        for name, group, strategy in (
            ("g1a", "g1", "range"),
            ("g1b", "g1", "range"),
            ("g2a", "g2", "cooperative-sticky"),
        ):
            self._run(self._consume, name, group, strategy)
        for name in ("t1", "t2"):
            self._producers.append(self._run(self._transact, name))
        for name in ("c1", "c2"):
            self._producers.append(self._run(self._copy, name))
        self._run(self._follow, "f1", "read_committed")
        self._run(self._follow, "f2", "read_uncommitted")

    def stop(self) -> None:
        """End the producers, which wait for what they sent, then the others."""
        self._producing.set()
        for each in self._producers:
            each.join()
        self._end.set()
        for each in self._threads:
            each.join()

    def _run(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self.errors.append(error)
                raise

        thread = threading.Thread(target=run, name=str(arguments[0]))
        self._threads.append(thread)
        thread.start()
        return thread

    def _failed(self, error: KafkaError) -> None:
        if error.fatal():
            self._history.fatal.append(str(error))

    def _produce(self, name: str, idempotent: bool) -> None:
        rng = random.Random(f"{self._seed}/{name}")
        producer = Producer(
            {
                **self._common,
                "error_cb": self._failed,
                "acks": "all",
                "batch.size": 4096,
                "enable.idempotence": idempotent,
                "linger.ms": rng.choice((0, 5)),
                "compression.type": rng.choice(("none", "lz4", "zstd")),
                "message.timeout.ms": 300_000,
            }
        )
        topics = list(WRITTEN) if idempotent else ["plain", "synced"]
        number = 0
        while not self._producing.wait(rng.uniform(0, 0.02)):
            for _ in range(rng.choice((1, 1, 5, 20))):
                number += 1
                log = rng.choice(topics), rng.randrange(PARTITIONS)
                key = f"k{rng.randrange(KEYS)}"
                sent = Send(name, log, f"{name}-{number}", None, "unknown", idempotent, None, key)
                self._send(producer, sent, b"." * rng.randrange(100))
            producer.poll(0)
        left = producer.flush(READY_S)
        assert not left, f"{left} records of {name} were not answered in {READY_S} s"

    def _send(self, producer: Producer, sent: Send, filler: bytes) -> None:
        history = self._history
        at = history.add(sent)

        def done(error: KafkaError | None, message: Any) -> None:
            if error is None:
                history.settle(at, outcome="acknowledged", offset=message.offset())
            elif sent.transaction is not None:
                pass  # its transaction tells
            elif error.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_INFLIGHT):
                pass  # unknown
            else:
                history.fatal.append(f"{sent.value}: {error}")

        value = sent.value.encode() + b" " + filler
        assert sent.key is not None
        while True:
            try:
                producer.produce(sent.log[0], value, sent.key, sent.log[1], on_delivery=done)
            except BufferError:
                producer.poll(0.1)
            except KafkaException:
                if sent.transaction is None:
                    raise
                return  # the transaction failed before, and can only be aborted
            else:
                return

    # -- transactions ----------------------------------------------------------------------------------

    def _transactional(self, name: str, rng: random.Random) -> Producer:
        """Return a producer that has taken a transactional id from the one before."""
        producer = Producer(
            {
                **self._common,
                "transactional.id": name,
                "batch.size": 4096,
                "linger.ms": rng.choice((0, 5)),
                "compression.type": rng.choice(("none", "lz4")),
                "transaction.timeout.ms": TRANSACTION_MS,
            },
            logger=QUIET,
        )
        _again(producer.init_transactions)
        return producer

    def _transact(self, name: str) -> None:
        rng = random.Random(f"{self._seed}/{name}")
        producer = self._transactional(name, rng)
        number = records = 0
        while not self._producing.wait(rng.uniform(0, 0.05)):
            number += 1
            transaction = f"{name}/{number}"
            producer.begin_transaction()
            for _ in range(rng.choice((1, 3, 10))):
                records += 1
                log, key = (rng.choice(WRITTEN), rng.randrange(PARTITIONS)), f"k{rng.randrange(KEYS)}"
                value = f"{name}-{records}"
                sent = Send(name, log, value, None, "unknown", True, transaction, key)
                self._send(producer, sent, b"." * rng.randrange(100))
                if rng.random() < 0.3:
                    producer.poll(rng.uniform(0, 0.05))
            if rng.random() < 0.1:
                began = time.monotonic()
                producer = self._transactional(name, rng)
                self._history.add(TransactionEnd(transaction, "aborted", began, time.monotonic()))
            else:
                self._end_transaction(producer, transaction, rng.random() < 0.7)
            if transaction in self._broken:
                producer = self._transactional(name, rng)

    def _end_transaction(self, producer: Producer, transaction: str, commit: bool) -> TransactionEnd:
        """End a transaction; one that cannot be committed is aborted."""
        at = self._history.add(TransactionEnd(transaction, "unknown", time.monotonic()))
        if commit:
            try:
                _again(producer.commit_transaction)
            except KafkaException as raised:
                if not raised.args[0].txn_requires_abort():
                    raise
                commit = False
        if not commit:
            # librdkafka forgets what it sent and has no answer for, and gives its sequence to a later record,
            # which brokers take for a repetition: nothing may be in doubt.
            producer.flush(READY_S)
            try:
                _again(producer.abort_transaction)
            except KafkaException as raised:
                if raised.args[0].code() != KafkaError.INVALID_TXN_STATE:
                    raise
                # Nothing was begun at the broker: librdkafka only asked to add partitions. It cannot go on.
                self._broken.add(transaction)
        outcome = "committed" if commit else "aborted"
        self._history.settle(at, outcome=outcome, ended=time.monotonic())
        ended = self._history.operations[at]
        assert isinstance(ended, TransactionEnd)
        return ended

    def _copy(self, name: str) -> None:
        """Copy records, each transaction with the offsets up to which it read."""
        rng = random.Random(f"{self._seed}/{name}")
        history, number, changes = self._history, 0, 0
        consumer = self._consumer(COPIERS, **{"partition.assignment.strategy": "range"})
        mine: set[tuple[str, int]] = set()

        def assigned(_: Consumer, parts: list[TopicPartition]) -> None:
            nonlocal changes
            changes += 1
            logs = tuple((each.topic, each.partition) for each in parts)
            mine.update(logs)
            history.add(Seek(name, logs))

        def revoked(_: Consumer, parts: list[TopicPartition]) -> None:
            nonlocal changes
            changes += 1
            mine.difference_update((each.topic, each.partition) for each in parts)

        producer = self._transactional(name, rng)
        consumer.subscribe([SOURCE], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while not self._producing.is_set():
            before = changes
            found = [each for each in self._poll(consumer, name, True) if each.error() is None]
            if not found:
                continue
            if changes != before:  # some may be of partitions that another member has now
                self._rewind(consumer, name, mine)
                continue
            number += 1
            transaction = f"{name}/{number}"
            producer.begin_transaction()
            reached: dict[tuple[str, int], int] = {}
            for at, each in enumerate(found):
                place, offset = _place(each)
                value = f"{transaction}:{at}<{place[0]}-{place[1]}:{offset}"
                log = COPIES, place[1]
                sent = Send(name, log, value, None, "unknown", True, transaction, "k")
                self._send(producer, sent, b"")
                reached[place] = offset + 1
            places = [TopicPartition(*log, offset) for log, offset in reached.items()]
            commit = rng.random() < 0.8
            try:
                _again(producer.send_offsets_to_transaction, places, consumer.consumer_group_metadata())
            except KafkaException as raised:
                if not raised.args[0].txn_requires_abort():
                    raise
                commit = False
            ended = self._end_transaction(producer, transaction, commit)
            if ended.outcome == "committed":
                for log, offset in reached.items():
                    history.add(Commit(COPIERS, log, offset, "acknowledged", ended.began, ended.ended))
            else:
                self._rewind(consumer, name, mine)
            if transaction in self._broken:
                producer = self._transactional(name, rng)
        consumer.close()

    def _rewind(self, consumer: Consumer, name: str, mine: set[tuple[str, int]]) -> None:
        """Read on from what is committed."""
        deadline = time.monotonic() + READY_S
        for log in sorted(mine):
            while True:
                try:
                    [found] = consumer.committed([TopicPartition(*log)], timeout=CALL_S)
                    if found.error is None:
                        consumer.seek(TopicPartition(*log, max(found.offset, 0)))
                        break
                except KafkaException:
                    pass  # the broker is away, or the partition is not fetched yet
                assert time.monotonic() < deadline, f"{name} cannot go on with {log}"
                time.sleep(0.05)
        self._history.add(Seek(name, tuple(mine)))

    # -- consumers -------------------------------------------------------------------------------------

    def _commit_the_start(self, group: str, topics: Iterable[str]) -> None:
        """Commit offset 0, so that no member has to look up where a log begins.

        Where nothing is committed, librdkafka 2.16 asks with ListOffsets, and asks again for an answer that
        comes after its assignment ended: half a second later, whatever the partition is used for by then.
        The next assignment then begins at 0, or gives 200 records from there and goes on where the group is.
        """
        consumer = self._consumer(group)
        places = [TopicPartition(topic, at, 0) for topic in topics for at in range(PARTITIONS)]
        began = time.monotonic()
        done = consumer.commit(offsets=places, asynchronous=False)
        ended = time.monotonic()
        for each in done or ():
            assert each.error is None, f"{group} cannot commit: {each.error}"
            log = each.topic, each.partition
            self._history.add(Commit(group, log, each.offset, "acknowledged", began, ended))
        consumer.close()

    def _consumer(self, group: str, **more: object) -> Consumer:
        return Consumer(
            {
                **self._common,
                "error_cb": self._failed,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "fetch.wait.max.ms": 100,
                **more,
            }
        )

    def _consume(self, name: str, group: str, strategy: str) -> None:
        rng = random.Random(f"{self._seed}/{name}")
        history = self._history
        consumer = self._consumer(group, **{"partition.assignment.strategy": strategy})
        mine: set[tuple[str, int]] = set()

        def assigned(_: Consumer, parts: list[TopicPartition]) -> None:
            logs = tuple((each.topic, each.partition) for each in parts)
            mine.update(logs)
            history.add(Seek(name, logs))
            self._ask_committed(consumer, group, parts)

        def revoked(_: Consumer, parts: list[TopicPartition]) -> None:
            mine.difference_update((each.topic, each.partition) for each in parts)

        consumer.subscribe(list(TOPICS), on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while not self._end.is_set():
            self._poll(consumer, name, True)
            if rng.random() < 0.3 and mine:
                self._commit(consumer, group, mine)
            if rng.random() < 0.01:  # leave and come back
                consumer.unsubscribe()
                mine.clear()
                consumer.subscribe(list(TOPICS), on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        deadline = time.monotonic() + READY_S
        while not mine and time.monotonic() < deadline:
            self._poll(consumer, name, True)  # librdkafka aborts when it closes before it has come back
        consumer.close()

    def _ask_committed(self, consumer: Consumer, group: str, parts: list[TopicPartition]) -> bool:
        began = time.monotonic()
        try:
            found = consumer.committed(parts, timeout=CALL_S)
        except KafkaException:
            return False
        ended = time.monotonic()
        for each in found:
            if each.error is None:
                offset = each.offset if each.offset >= 0 else None
                self._history.add(CommitFetch(group, (each.topic, each.partition), offset, began, ended))
        return all(each.error is None for each in found)

    def _commit(self, consumer: Consumer, group: str, mine: set[tuple[str, int]]) -> None:
        places = [
            each for each in consumer.position([TopicPartition(*log) for log in mine]) if each.offset >= 0
        ]
        if not places:
            return
        began, failed = time.monotonic(), None
        try:
            done = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as raised:
            done, failed = places, raised.args[0]
        ended = time.monotonic()
        for each in done or ():
            error = failed or each.error
            # A refusal by the group is certain. Everything else may have taken effect.
            refused = error is not None and error.code() in (
                *(KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID),
                *(KafkaError.REBALANCE_IN_PROGRESS, KafkaError._NO_OFFSET),
            )
            outcome = (
                "acknowledged" if error is None else "failed" if refused and failed is None else "unknown"
            )
            log = each.topic, each.partition
            self._history.add(Commit(group, log, each.offset, outcome, began, ended))  # type: ignore[arg-type]

    def _follow(self, name: str, isolation: str) -> None:
        rng = random.Random(f"{self._seed}/{name}")
        consumer = self._consumer("none", **{"isolation.level": isolation})
        parts = [TopicPartition(topic, at, 0) for topic in TOPICS for at in range(PARTITIONS)]
        self._assign(consumer, name, parts)
        while not self._end.is_set():
            self._poll(consumer, name, isolation == "read_committed")
            if rng.random() < 0.01:
                self._assign(consumer, name, parts)
        consumer.close()

    def _assign(self, consumer: Consumer, name: str, parts: list[TopicPartition]) -> None:
        self._history.add(Seek(name, tuple((each.topic, each.partition) for each in parts)))
        consumer.assign(parts)

    def _poll(self, consumer: Consumer, name: str, committed_only: bool) -> list[Message]:
        found = consumer.consume(200, timeout=0.1)
        records = tuple(
            Polled((each.topic(), each.partition()), each.offset(), each.value().split(b" ")[0].decode())  # type: ignore[arg-type]
            for each in found
            if each.error() is None
        )
        if records:
            self._history.add(Poll(name, records, committed_only, time.monotonic()))
        return found

    def read_everything(self, quiet_s: float) -> None:
        """Read every partition to the end that the broker tells, and ask for every group's offsets."""
        for topic, config in TOPICS.items():
            for at in range(PARTITIONS):
                self._read_log((topic, at), quiet_s, config.get("cleanup.policy") == "compact")
        for group in GROUPS:
            consumer = self._consumer(group)
            parts = [TopicPartition(topic, at) for topic in TOPICS for at in range(PARTITIONS)]
            deadline = time.monotonic() + READY_S
            while not self._ask_committed(consumer, group, parts):
                assert time.monotonic() < deadline, f"the offsets of {group} are not told"
            consumer.close()

    def _read_log(self, log: tuple[str, int], quiet_s: float, compacted: bool) -> None:
        consumer = self._consumer("none", **{"enable.partition.eof": True})
        part = TopicPartition(*log)
        low, high = self._ends(consumer, part)
        name = f"end {log[0]}-{log[1]}"
        self._assign(consumer, name, [TopicPartition(*log, low)])
        position, heard = low, time.monotonic()
        while position < high and time.monotonic() - heard < quiet_s:
            reached = max(consumer.position([part])[0].offset, position)
            for each in self._poll(consumer, name, True):
                if each.error() is None:
                    reached = max(reached, _place(each)[1] + 1)
                elif each.error().code() == KafkaError._PARTITION_EOF:  # behind a marker
                    reached = max(reached, _place(each)[1])
            if reached > position:
                position, heard = reached, time.monotonic()
        low, _ = self._ends(consumer, part)
        self._history.add(LogEnd(log, low, high, position, compacted))
        consumer.close()

    def _ends(self, consumer: Consumer, part: TopicPartition) -> tuple[int, int]:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                found: tuple[int, int] = consumer.get_watermark_offsets(part, timeout=CALL_S)
                return found
            except KafkaException:
                if time.monotonic() > deadline:
                    raise


def _place(message: Message) -> tuple[tuple[str, int], int]:
    """Return the log and the offset of what was polled."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return (topic, partition), offset


def _again(call: Callable[..., object], *arguments: object) -> None:
    """Call what a transactional producer may have to be asked several times."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            call(*arguments, CALL_S)
            return
        except KafkaException as raised:
            if not raised.args[0].retriable() or time.monotonic() > deadline:
                raise


def copied_wrong(history: History) -> Iterator[str]:
    """Find what the copiers lost or copied twice: below their group's offset each record is there once."""
    ends: dict[tuple[str, int], int] = {}
    there: dict[tuple[str, int], set[int]] = {}
    copied: Counter[tuple[str, int]] = Counter()
    for each in history.operations:
        if isinstance(each, CommitFetch) and each.group == COPIERS and each.log[0] == SOURCE:
            ends[each.log] = each.offset or 0
        elif isinstance(each, Poll) and each.client.startswith("end "):
            for record in each.records:
                if record.log[0] == COPIES:
                    source, _, number = record.value.partition("<")[2].rpartition(":")
                    copied[source, int(number)] += 1
                elif record.log[0] == SOURCE:
                    there.setdefault(record.log, set()).add(record.offset)
    for (place, offset), times in copied.items():
        if times > 1:
            yield f"{place}:{offset} was copied {times} times"
    for log, end in ends.items():
        place = f"{log[0]}-{log[1]}"
        wanted = {offset for offset in there.get(log, ()) if offset < end}
        found = {offset for where, offset in copied if where == place}
        for wrong in sorted(wanted ^ found)[:5]:
            state = "was not copied" if wrong in wanted else "was copied"
            yield f"{place}:{wrong} {state}, and the group is at {end}"


class Nemesis:
    """What happens to the broker."""

    def __init__(self, broker: ProcessBroker, seed: int) -> None:
        self._broker = broker
        self._rng = random.Random(f"{seed}/nemesis")
        self.done: Counter[str] = Counter()

    def act(self) -> None:
        """Do one thing, and give clients a moment after it."""
        rng = self._rng
        acts: list[tuple[Callable[[], None], int]] = [
            (self.kill, 5),
            (self.kill_twice, 1),
            (self.pause, 3),
            (self.restart, 1),
            (self.faults, 3),
        ]
        [act] = rng.choices([each for each, _ in acts], [weight for _, weight in acts])
        act()
        self.done[act.__name__] += 1
        time.sleep(rng.uniform(0.1, 1.5))

    def kill(self) -> None:
        self._broker.kill()
        if self._rng.random() < 0.3:
            time.sleep(self._rng.uniform(0, 1))
        self._broker.restart()

    def kill_twice(self) -> None:
        for _ in range(2):
            self.kill()

    def pause(self) -> None:
        self._broker.pause()
        time.sleep(self._rng.uniform(0.05, 2))
        if self._rng.random() < 0.3:
            self.kill()
        else:
            self._broker.resume()

    def restart(self) -> None:
        self._broker.restart()

    def faults(self) -> None:
        """Drop, delay and fail some requests.

        No Produce is failed: where a later one of the same partition is on its way, librdkafka takes a new
        epoch, and sends what another dropped answer has left in doubt once more, as new records.
        """
        rng, broker = self._rng, self._broker
        for _ in range(5):
            broker.drop_next("Produce", when=rng.choice(("before", "after")))
            broker.fail_next("Fetch", "NOT_LEADER_OR_FOLLOWER", topic="plain", partition=0)
            broker.drop_next(rng.choice(("Fetch", "OffsetCommit", "Heartbeat", "JoinGroup")), when="after")
            broker.drop_next(rng.choice(TRANSACTIONAL), when=rng.choice(("before", "after")))
            broker.delay_next(rng.choice(("Produce", "Fetch", "OffsetCommit")), rng.uniform(0.01, 0.5))
            time.sleep(rng.uniform(0, BREATH_S))


def campaign(directory: str, rounds: int, seed: int, quiet_s: float, module: str) -> int:
    """Run one; return 0 if nothing is wrong."""
    history = History()
    with ProcessBroker(Path(directory, "data"), CONFIG, janitor=True, module=module) as broker:
        for name, config in TOPICS.items():
            broker.create_topic(name, PARTITIONS, config)
        clients, nemesis = Clients(broker.bootstrap_servers, history, seed), Nemesis(broker, seed)
        clients.start()
        try:
            for _ in range(rounds):
                nemesis.act()
        finally:
            clients.stop()
        if not clients.errors:
            clients.read_everything(quiet_s)
    found = [str(each) for each in find_anomalies(history.operations)]
    found += [f"fatal: {each}" for each in history.fatal] + [
        f"a client failed: {each!r}" for each in clients.errors
    ]
    found += copied_wrong(history)
    with stratalog.open(Path(directory, "data"), read_only=True) as store:
        report = stratalog.verify(store)
    if not report.ok:
        found.append(f"verify: {report}")
    for each in found:
        print(each)
    if found:
        path = Path(directory, "history.txt")
        history.write(path)
        print(f"what every client saw is in {path}")
    sends = [each for each in history.operations if isinstance(each, Send)]
    known = sum(each.offset is not None for each in sends)
    ends = Counter(each.outcome for each in history.operations if isinstance(each, TransactionEnd))
    polled = sum(len(each.records) for each in history.operations if isinstance(each, Poll))
    print(", ".join(f"{count} × {name}" for name, count in sorted(nemesis.done.items())))
    print(
        f"{rounds} rounds, {known} of {len(sends)} records acknowledged,"
        f" {ends['committed']} transactions committed and {ends['aborted']} aborted,"
        f" {polled} polled, {sum(isinstance(each, Commit) for each in history.operations)} commits,"
        f" {sum(isinstance(each, CommitFetch) for each in history.operations)} looked up,"
        f" {len(found)} violations (seed {seed})"
    )
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--dir", help="where the store is; a temporary one, kept after a violation")
    parser.add_argument("--quiet", type=float, default=QUIET_S, help="seconds of silence at the end of a log")
    parser.add_argument(
        "--module", default="stratalog.testing.brokers", help="what the broker's process runs"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    directory = options.dir or tempfile.mkdtemp(prefix="crash-broker-")
    status = campaign(directory, options.rounds, options.seed, options.quiet, options.module)
    if not status and not options.dir:
        shutil.rmtree(directory)
    return status


if __name__ == "__main__":
    sys.exit(main())
