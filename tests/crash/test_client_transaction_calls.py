"""A crash before every call of Kafka clients' transactions, of both versions, as the broker makes them.

Afterwards each transaction is visible whole or not at all. What was decided is decided; what was open stays
open for the client to go on with, and is aborted after its timeout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from stratalog import Record, Store
from stratalog.errors import ProducerError
from stratalog.format.batch import BatchOptions, encode_records
from stratalog.fs import MemoryFileSystem, SurvivorMode
from stratalog.log.write.producers import Origin
from stratalog.store.groups.offsets import OFFSETS_TOPIC, commit_records
from stratalog.store.internal_topic import for_coordinator
from stratalog.store.transactions.state import FIRST, SECOND, Status, TransactionState
from tests.crash.campaign import MODES
from tests.crash.test_transaction_calls import FULL, Ledger, crash_everywhere

pytestmark = pytest.mark.timeout(7200 if FULL else 600)
TIMEOUT_MS = 60_000


class ClientLedger(Ledger):
    """The transactions of one client; number 3 is aborted."""

    def __init__(self, version: int, *, offsets: bool) -> None:
        super().__init__(sync=False)
        self.version = version
        self.offsets = offsets
        self.producer = -1, -1
        self.ending: bool | None = None

    def run(self, store: Store) -> None:
        made = store.transactions.init_producer("t", TIMEOUT_MS)
        self.producer = made.producer_id, made.epoch
        sequences = dict.fromkeys("ab", 0)
        for number in range(1, 5):
            self.running = number
            for topic, count in (("a", 2), ("b", 1)):
                self.append(store, topic, [Record(b"%d" % number)] * count, sequences[topic])
                sequences[topic] += count
            if self.offsets:
                self.append(store, OFFSETS_TOPIC, commit_records("g", {("a", 0): number}, 0), -1)
            self.ending = number != 3
            before = self.producer
            made = self.end(store)
            self.producer, self.ending = (made.producer_id, made.epoch), None
            if self.producer != before:
                sequences = dict.fromkeys("ab", 0)
            if number != 3:
                self.acknowledged.append(number)

    def append(self, store: Store, topic: str, rows: list[Record], sequence: int) -> None:
        store.transactions.add_of_client("t", *self.producer, [(topic, 0)], self.version)
        data, _ = encode_records(
            rows,
            options=BatchOptions(
                base_offset=0,
                leader_epoch=0,
                now_ms=self.clock.now_ms(),
                max_bytes=1 << 20,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                base_sequence=sequence,
                transactional=True,
            ),
        )
        guard = partial(store.transactions.check_batch, "t", (topic, 0))
        origin: Origin = "client" if sequence >= 0 else "coordinator"
        for_coordinator(store.topic(topic)).append_batches(0, bytes(data.data), origin=origin, guard=guard)

    def end(self, store: Store) -> TransactionState:
        return store.transactions.end_of_client(
            "t", *self.producer, commit=bool(self.ending), version=self.version
        )

    def judge(self, fs: MemoryFileSystem) -> None:
        """The client asks for its end again, if it had; then time passes."""
        with self.open(fs) as store:
            states = {each.id: each.status for each in store.transactions.all()}
            assert states.get("t") not in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
            known = list(self.acknowledged)
            again = None
            if self.ending is not None:
                try:
                    self.end(store)
                    again = self.ending
                except ProducerError:  # a power cut took its records
                    again = False
            self.clock.advance(TIMEOUT_MS)
            store.tick()
            a, b = self.seen(store)
            assert a == [each for each in b for _ in range(2)], (a, b)
            wanted = [*known, self.running] if again else known
            assert b == wanted, (b, wanted, states)
            if self.offsets:
                found = store.groups.offsets.committed("g", "a", 0)
                assert (found.offset if found else 0) == (b[-1] if b else 0), (b, found)
            for name in "ab":
                topic = store.topic(name)
                assert topic.high_watermark(0, "read_committed") == topic.log_end_offset(0)

    def seen(self, store: Store) -> Iterator[list[int]]:
        for name in "ab":
            records = store.topic(name).read(isolation="read_committed")
            yield [int(record.value or b"") for record in records]


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_a_killed_broker(version: int) -> None:
    ledger = ClientLedger(version, offsets=True)
    with ledger.open(ledger.fs) as store:
        store.groups.offsets.topic_to_write()
    assert crash_everywhere(ledger, ("kill",), ledger.judge) > 10


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_a_power_cut_where_topics_wait_for_the_disk(version: int) -> None:
    ledger = ClientLedger(version, offsets=False)
    with ledger.open(ledger.fs) as store:
        for name in "ab":
            store.create_topic(name, config={"flush.messages": 1, "segment.bytes": 600})
    modes: tuple[SurvivorMode, ...] = MODES
    assert crash_everywhere(ledger, modes, ledger.judge) > 10
