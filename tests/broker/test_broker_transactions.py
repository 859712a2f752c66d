"""Transactions of Kafka clients, by bytes: every API and version, and what Kafka's coordinator refuses."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Record, Store
from stratalog.broker.codes import Code
from stratalog.broker.server import Limits
from stratalog.errors import InvalidProducerEpochError
from stratalog.format.batch import BatchOptions, encode_records
from stratalog.store.internal_topic import for_coordinator
from stratalog.store.transactions import state as states
from stratalog.store.transactions.coordinator import TRANSACTIONS_TOPIC
from stratalog.store.transactions.state import LAST_EPOCH
from stratalog.testing import ManualClock
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import Wire, client, fetch_fields, produce_fields

WAIT_S = 60
OK, FENCED = Code.NONE, Code.PRODUCER_FENCED


@pytest.fixture
def wire(broker: Broker, store: Store) -> Iterator[Wire]:
    store.create_topic("orders", 2)
    with client(broker) as made:
        yield made


def until(true: Callable[[], Any]) -> Any:
    give_up_s = time.monotonic() + WAIT_S
    while not (found := true()):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    return found


def seen(store: Store, topic: str = "orders", isolation: str = "read_committed") -> list[bytes]:
    return sorted(record.value or b"" for record in store.topic(topic).read(isolation=isolation))


def stable(store: Store, topic: str = "orders") -> bool:
    handle = store.topic(topic)
    return all(
        handle.high_watermark(each, "read_committed") == handle.log_end_offset(each)
        for each in range(handle.partitions)
    )


class Client:
    """A producer by bytes, of either version of transactions."""

    def __init__(self, wire: Wire, version: int = 1, name: str = "t") -> None:
        self.wire, self.version, self.name = wire, version, name
        self.id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}

    def init(self, timeout_ms: int = 60_000, *, expected: tuple[int, int] = (-1, -1), api: int = 5) -> Code:
        found = self.wire.ask(
            "InitProducerId",
            api,
            transactional_id=self.name,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        if not found.error_code:
            self.id, self.epoch, self.sequences = found.producer_id, found.producer_epoch, {}
        return Code(found.error_code)

    def add(self, *partitions: int, topic: str = "orders", api: int = 3) -> list[Code]:
        one = codec("AddPartitionsToTxnRequest").struct("AddPartitionsToTxnTopic")
        found = self.wire.ask(
            "AddPartitionsToTxn",
            api,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[one(name=topic, partitions=partitions)],
        )
        (each,) = found.results_by_topic_v3_and_below
        return [Code(part.partition_error_code) for part in each.results_by_partition]

    def produce(self, value: bytes, partition: int = 0, api: int | None = None, **more: Any) -> Code:
        sequence = self.sequences.get(partition, 0)
        data, _ = encode_records(
            [Record(value, timestamp=int(time.time() * 1000))],
            options=BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=1 << 20,
            producer_id=self.id, producer_epoch=self.epoch, base_sequence=sequence,
            transactional=more.pop("transactional", True)),
        )  # fmt: skip
        fields = produce_fields("orders", bytes(data.data), partition=partition)
        fields["transactional_id"] = more.pop("transactional_id", self.name)
        api = api or (11 if self.version == 1 else 12)
        code = self.wire.ask("Produce", api, **fields).responses[0].partition_responses[0].error_code
        if not code:
            self.sequences[partition] = sequence + 1
        return Code(code)

    def end(self, *, commit: bool = True, api: int | None = None) -> Code:
        api = api if api is not None else (4 if self.version == 1 else 5)
        found = self.wire.ask(
            "EndTxn",
            api,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        if not found.error_code and api >= 5:
            self.id, self.epoch, self.sequences = found.producer_id, found.producer_epoch, {}
        return Code(found.error_code)

    def add_offsets(self, group: str = "g", api: int = 4) -> Code:
        found = self.wire.ask(
            "AddOffsetsToTxn",
            api,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return Code(found.error_code)

    def commit_offset(
        self, offset: int, group: str = "g", partition: int = 0, api: int | None = None, **more: Any
    ) -> Code:
        made = codec("TxnOffsetCommitRequest")
        topic, part = (
            made.struct("TxnOffsetCommitRequestTopic"),
            made.struct("TxnOffsetCommitRequestPartition"),
        )
        found = self.wire.ask(
            "TxnOffsetCommit",
            api if api is not None else (3 if self.version == 1 else 5),
            transactional_id=self.name,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[
                topic(
                    name=more.pop("topic", "orders"),
                    partitions=[
                        part(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=more.pop("metadata", None),
                        )
                    ],
                )
            ],
            **more,
        )
        return Code(found.topics[0].partitions[0].error_code)


def fetched_offset(wire: Wire, api: int, *, require_stable: bool, group: str = "g") -> tuple[int, Code]:
    made = codec("OffsetFetchRequest")
    if api >= 8:
        one, topic = made.struct("OffsetFetchRequestGroup"), made.struct("OffsetFetchRequestTopics")
        wanted = [one(group_id=group, topics=[topic(name="orders", partition_indexes=[0])])]
        found = wire.ask("OffsetFetch", api, groups=wanted, require_stable=require_stable).groups[0]
    else:
        topic = made.struct("OffsetFetchRequestTopic")
        found = wire.ask(
            "OffsetFetch",
            api,
            group_id=group,
            topics=[topic(name="orders", partition_indexes=[0])],
            require_stable=require_stable,
        )
    part = found.topics[0].partitions[0]
    return part.committed_offset, Code(part.error_code)


# -- by bytes ------------------------------------------------------------------------------------------------


def test_both_versions_of_transactions(wire: Wire, store: Store) -> None:
    for version in (1, 2):
        made = Client(wire, version, f"t{version}")
        assert made.init() is OK
        for number, commit in enumerate((True, False, True)):
            if version == 1:
                assert made.add(0, 1) == [OK, OK]
            value = b"%d-%d" % (version, number)
            assert made.produce(value, 0) is OK
            assert made.produce(value, 1) is OK
            assert made.produce(value, 0) is OK, "in it already"
            assert not stable(store)
            epoch = made.epoch
            assert made.end(commit=commit) is OK
            assert stable(store)
            assert made.epoch == epoch + (version == 2)
    assert seen(store) == sorted(b"%d-%d" % (v, n) for v in (1, 2) for n in (0, 2) for _ in range(3))


@pytest.mark.parametrize("api", range(6))
def test_every_version_of_init_producer_id(wire: Wire, api: int) -> None:
    made = Client(wire)
    for epoch in range(3):
        assert made.init(api=api) is OK
        assert (made.id, made.epoch) == (0, epoch), "the same id, and one that fences the one before"
    for timeout_ms in (0, -1, 900_001):
        assert made.init(timeout_ms, api=api) is Code.INVALID_TRANSACTION_TIMEOUT
    assert Client(wire, name="").init(api=api) is Code.INVALID_REQUEST
    plain = wire.ask("InitProducerId", api, transactional_id=None)
    assert (plain.error_code, plain.producer_id, plain.producer_epoch) == (OK, 1, 0)


def test_a_client_goes_on_with_its_id_and_epoch(wire: Wire, store: Store) -> None:
    """KIP-360: also where the answer was lost, but not where another one has begun."""
    made = Client(wire)
    made.init()
    assert made.init(expected=(made.id, made.epoch)) is OK
    assert made.epoch == 1
    assert made.init(expected=(made.id, 0)) is OK, "asked again"
    assert made.epoch == 1
    assert made.init(expected=(made.id, 7)) is FENCED
    assert made.init(expected=(made.id + 1, 1)) is FENCED
    assert made.init(expected=(made.id, -1)) is Code.INVALID_REQUEST
    made.add(0)
    assert made.produce(b"a") is OK
    other = Client(wire)
    assert other.init() is OK
    assert stable(store), "what the first one had open is aborted"
    assert made.init(expected=(made.id, made.epoch), api=3) is Code.INVALID_PRODUCER_EPOCH
    assert made.init(expected=(made.id, made.epoch)) is FENCED
    assert other.add(0) == [OK], "a fenced one does not harm the other"
    assert other.produce(b"b") is OK
    assert made.init(expected=(made.id, made.epoch)) is FENCED
    assert not stable(store)
    assert other.end() is OK
    assert seen(store) == [b"b"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_client_goes_on_after_a_timeout(tmp_path: Path, version: int) -> None:
    clock = ManualClock()
    with (
        stratalog.open(tmp_path / "data", background=False, clock=clock) as store,
        stratalog.serve(store) as broker,
        client(broker) as wire,
    ):
        store.create_topic("orders", 2)
        made = Client(wire, version)
        made.init(5_000)
        assert version == 2 or made.add(0) == [OK]
        assert made.produce(b"a") is OK
        clock.advance(4_000)
        store.tick()
        assert not stable(store)
        clock.advance(2_000)
        store.tick()
        assert stable(store)
        assert made.produce(b"b") is Code.INVALID_PRODUCER_EPOCH
        assert made.end() is FENCED
        assert made.end(commit=False) is FENCED
        before = made.id, made.epoch
        assert made.init(expected=before) is OK
        assert made.epoch > before[1]
        assert version == 2 or made.add(0) == [OK]
        assert made.produce(b"c") is OK
        assert made.end() is OK
        assert seen(store) == [b"c"]


def test_versions_of_the_other_requests(wire: Wire, store: Store) -> None:
    made = Client(wire)
    made.init()
    for api in range(4):
        assert made.add(api % 2, api=api) == [OK]
    for api in range(5):
        assert made.add_offsets(api=api) is OK
    for api in range(5):
        assert made.commit_offset(api, api=api) is OK
    for api in range(5):
        assert made.end(api=api) is OK
        assert made.end(api=api) is OK, "told again"
        assert made.end(api=api, commit=False) is Code.INVALID_TXN_STATE
        made.add(0)
    found = store.groups.offsets.committed("g", "orders", 0)
    assert found is not None
    assert found.offset == 4


@pytest.mark.parametrize(("api", "code"), [(1, Code.INVALID_PRODUCER_EPOCH), (2, FENCED)])
def test_old_clients_are_not_told_of_fencing(wire: Wire, api: int, code: Code) -> None:
    made = Client(wire)
    made.init()
    Client(wire).init()
    assert made.add(0, api=api) == [code]
    assert made.add_offsets(api=api) is code
    assert made.end(api=api) is code
    assert made.commit_offset(1) is Code.INVALID_PRODUCER_EPOCH
    assert made.produce(b"a") is Code.INVALID_PRODUCER_EPOCH


def test_wrong_producers_and_places(wire: Wire, store: Store) -> None:
    store.groups.offsets.topic_to_write()
    made = Client(wire)
    unknown = Code.INVALID_PRODUCER_ID_MAPPING
    made.id, made.epoch = 5, 0
    assert made.add(0) == [unknown]
    assert made.end() is made.add_offsets() is made.commit_offset(1) is made.produce(b"a") is unknown
    made.init()
    assert made.end() is Code.INVALID_TXN_STATE, "nothing has begun"
    assert made.produce(b"a", api=10) is Code.INVALID_TXN_STATE
    assert made.produce(b"a", api=11) is Code.TRANSACTION_ABORTABLE
    assert made.add(0, 9) == [Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert made.add(0) == [OK]
    assert made.produce(b"a", 1) is Code.TRANSACTION_ABORTABLE, "the other partition is not in it"
    assert made.produce(b"a", transactional=False) is Code.TRANSACTION_ABORTABLE
    assert made.produce(b"a", transactional_id=None) is Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert made.produce(b"a", transactional_id="other") is unknown
    assert made.commit_offset(1) is Code.INVALID_TXN_STATE, "offsets are not in it"
    assert made.commit_offset(1, api=4) is Code.TRANSACTION_ABORTABLE
    assert made.add_offsets("") is OK, "as in Kafka: the name of a group is looked at with its offsets"
    assert Client(wire, name="").add(0) == [Code.INVALID_REQUEST]
    assert Client(wire, name="").end() is Client(wire, name="").add_offsets() is Code.INVALID_REQUEST
    assert store["orders"].log_end_offset(0) == store["orders"].log_end_offset(1) == 0


def test_an_end_of_the_second_version_is_told_again(wire: Wire, store: Store) -> None:
    """Trap 14: with the epoch before the one it brought."""
    made = Client(wire, 2)
    made.init()
    for commit in (True, False):
        assert made.produce(b"a") is OK
        before = made.id, made.epoch
        assert made.end(commit=commit) is OK
        after = made.id, made.epoch
        made.id, made.epoch = before
        assert made.end(commit=not commit) is Code.INVALID_TXN_STATE
        assert made.end(commit=commit) is OK
        assert (made.id, made.epoch) == after
    assert made.end(commit=True) is Code.INVALID_TXN_STATE, "nothing has begun"
    assert made.end(commit=False) is OK, "an abort of nothing brings an epoch too"
    assert made.epoch == after[1] + 1
    late = Client(wire, 2)
    late.id, late.epoch, late.sequences = made.id, before[1], {0: 1}
    assert late.produce(b"late") is Code.INVALID_PRODUCER_EPOCH, "of the transaction before"
    assert seen(store) == [b"a"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_id_is_used_up(tmp_path: Path, version: int) -> None:
    with stratalog.open(tmp_path) as store:
        store.create_topic("orders", 2)
        state = store.transactions.init_producer("t", 60_000)
        last = replace(state, epoch=LAST_EPOCH)  # thousands of epochs later
        for_coordinator(store[TRANSACTIONS_TOPIC]).append(states.pack(last), states.pack_key("t"))
    with stratalog.open(tmp_path) as store, stratalog.serve(store) as broker, client(broker) as wire:
        made = Client(wire, version)
        old = made.id, made.epoch = state.producer_id, LAST_EPOCH
        if version == 1:
            for _ in range(2):  # the answer was lost
                assert made.init(expected=old) is OK
                assert (made.id != old[0], made.epoch) == (True, 0)
            made.add(0)
        assert made.produce(b"a") is OK
        before = made.id, made.epoch
        assert made.end() is OK
        if version == 2:
            after = made.id, made.epoch
            assert (after[0] != old[0], after[1]) == (True, 0)
            made.id, made.epoch = before
            assert made.end() is OK, "told again"
            assert (made.id, made.epoch) == after
            assert made.produce(b"b") is OK
            assert made.end(commit=False) is OK
        assert seen(store) == [b"a"]
        assert stable(store)


def test_a_duplicate_in_a_transaction_is_appended_once(wire: Wire, store: Store) -> None:
    """Trap 11."""
    made = Client(wire, 2)
    made.init()
    for _ in range(6):
        assert made.produce(b"a") is OK
    for sequence in (1, 5):
        made.sequences[0] = sequence
        assert made.produce(b"a") is OK
    made.sequences[0] = 9
    assert made.produce(b"gap") is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert made.end() is OK
    assert seen(store) == [b"a"] * 6


@pytest.mark.parametrize("restarted", [False, True])
def test_a_sequence_that_was_given_up_with_its_transaction_is_refused(
    tmp_path: Path, restarted: bool
) -> None:
    """Version 1 keeps the epoch; an answer of success would be for a record that is not there."""
    path = tmp_path / "data"
    made: Client
    with ExitStack() as first:
        store = first.enter_context(stratalog.open(path))
        store.create_topic("orders")
        wire = first.enter_context(client(first.enter_context(stratalog.serve(store))))
        made = Client(wire, 1)
        made.init()
        made.add(0)
        assert [made.produce(b"a"), made.produce(b"b"), made.end(commit=False)] == [OK] * 3
        if restarted:
            first.close()
            store = first.enter_context(stratalog.open(path))
            made.wire = first.enter_context(client(first.enter_context(stratalog.serve(store))))
        made.add(0)
        made.sequences[0] = 1  # the client never heard of b's answer
        assert made.produce(b"c") is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        made.sequences[0] = 2
        assert made.produce(b"c") is OK
        made.sequences[0] = 2
        assert made.produce(b"c") is OK, "a retry within the transaction"
        assert made.end() is OK
        assert seen(store) == [b"c"]


def test_produce_without_an_answer(wire: Wire, broker: Broker, store: Store) -> None:
    """Trap 19: acks=0 in a transaction that has not begun names its partition too, and delays nobody."""
    made = Client(wire, 2)
    made.init()
    data, _ = encode_records(
        [Record(b"a", timestamp=5)],
        options=BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=1 << 20, producer_id=made.id,
                             producer_epoch=made.epoch, base_sequence=0, transactional=True),
    )  # fmt: skip
    fields = {**produce_fields("orders", bytes(data.data), acks=0), "transactional_id": "t"}
    wire.sock.sendall(wire.frame("Produce", 12, 7, **fields) + wire.frame("Metadata", 8, 9, topics=[]))
    assert wire.answer("Metadata", 8, 9).cluster_id == broker.cluster_id
    made.sequences[0] = 1
    assert made.end() is OK
    assert seen(store) == [b"a"]


def test_committed_offsets_are_pending_until_the_end(wire: Wire, store: Store) -> None:
    """Trap 15."""
    store.groups.offsets.commit("g", {("orders", 0): 3})
    for version, commit in ((1, True), (2, False), (2, True)):
        made = Client(wire, version, f"t{version}")
        before = store.groups.offsets.look("g", [("orders", 0)])["orders", 0].committed
        assert before is not None
        made.init()
        if version == 1:
            assert made.add_offsets() is OK
        assert made.commit_offset(before.offset + 1) is OK
        for api in (1, 7, 8, 9):
            unstable = (-1, Code.UNSTABLE_OFFSET_COMMIT) if api >= 7 else (before.offset, OK)
            assert fetched_offset(wire, api, require_stable=True) == unstable
            assert fetched_offset(wire, api, require_stable=False) == (before.offset, OK)
        assert fetched_offset(wire, 9, require_stable=True, group="other") == (-1, OK)
        assert made.end(commit=commit) is OK
        assert fetched_offset(wire, 9, require_stable=True) == (before.offset + commit, OK)


def test_a_deleted_group_stays_deleted_when_a_transaction_commits_its_offsets(
    wire: Wire, store: Store
) -> None:
    """Also one that has nothing but what is pending, and partitions that it had not committed before."""
    made = Client(wire)
    made.init()
    for before in (False, True):
        if before:
            store.groups.offsets.commit("g", {("orders", 1): 3})
        assert made.add_offsets() is OK
        assert made.commit_offset(7) is OK
        (deleted,) = wire.ask("DeleteGroups", 2, groups_names=["g"]).results
        assert deleted.error_code == OK
        assert made.end() is OK
        assert store.groups.offsets.all() == {}
    (deleted,) = wire.ask("DeleteGroups", 2, groups_names=["g"]).results
    assert deleted.error_code == Code.GROUP_ID_NOT_FOUND


def test_offsets_are_committed_by_members(wire: Wire, broker: Broker) -> None:
    made = Client(wire, 2)
    made.init()
    assert made.commit_offset(1, generation_id=1, member_id="m") is Code.ILLEGAL_GENERATION
    assert made.commit_offset(1, group="") is Code.INVALID_GROUP_ID
    assert made.commit_offset(1, topic="nope") is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert made.commit_offset(1, partition=9) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert made.commit_offset(1, metadata="x" * 5000) is Code.OFFSET_METADATA_TOO_LARGE
    (member, instance, generation) = joined(wire)
    told: dict[str, Any] = {"member_id": member, "group_instance_id": instance, "generation_id": generation}
    assert made.commit_offset(2, **told) is OK
    assert made.commit_offset(2, **{**told, "generation_id": 9}) is Code.ILLEGAL_GENERATION
    assert made.commit_offset(2, **{**told, "member_id": "other"}) is Code.FENCED_INSTANCE_ID
    assert (
        made.commit_offset(2, **{**told, "member_id": "x", "group_instance_id": None})
        is Code.UNKNOWN_MEMBER_ID
    )
    assert made.commit_offset(2) is OK, "an old client does not tell who it is"
    assert made.end() is OK


def joined(wire: Wire) -> tuple[str, str, int]:
    protocol = codec("JoinGroupRequest").struct("JoinGroupRequestProtocol")
    found = wire.ask(
        "JoinGroup",
        9,
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        group_instance_id="one",
        protocol_type="consumer",
        protocols=[protocol(name="range", metadata=b"")],
    )
    assert found.error_code == OK
    return found.member_id, "one", found.generation_id


def test_aborted_lists_and_the_last_stable_offset(wire: Wire, store: Store) -> None:
    """Trap 13: a transaction that began before the fetch is listed, and the end never goes back."""
    made, other = Client(wire, 2, "a"), Client(wire, 2, "b")
    made.init()
    other.init()
    ends = []

    def look(offset: int) -> tuple[list[tuple[int, int]], int]:
        found = wire.ask("Fetch", 12, **fetch_fields("orders", offset, isolation_level=1))
        part = found.responses[0].partitions[0]
        ends.append(part.last_stable_offset)
        listed = wire.ask("ListOffsets", 7, **latest_fields()).topics[0].partitions[0]
        assert listed.offset == part.last_stable_offset
        return [(each.producer_id, each.first_offset) for each in part.aborted_transactions], len(
            part.records or b""
        )

    for n in range(3):
        assert made.produce(b"%d" % n) is OK
    assert look(0) == ([], 0)
    assert other.produce(b"o") is OK
    assert made.end(commit=False) is OK
    assert look(2)[0] == [(made.id, 0)], "it began before the fetch"
    assert ends[-1] == 3, "the other one is open"
    assert other.end() is OK
    assert look(1)[0] == [(made.id, 0)]
    assert look(4)[0] == [(made.id, 0)], "its marker is fetched"
    assert look(5)[0] == []
    assert ends == sorted(ends)
    assert seen(store) == [b"o"]


def latest_fields() -> dict[str, Any]:
    made = codec("ListOffsetsRequest")
    topic, part = made.struct("ListOffsetsTopic"), made.struct("ListOffsetsPartition")
    return {
        "replica_id": -1,
        "isolation_level": 1,
        "topics": [topic(name="orders", partitions=[part(partition_index=0, timestamp=-1)])],
    }


def test_a_fetch_waits_for_the_end_of_a_transaction(wire: Wire, broker: Broker) -> None:
    made = Client(wire, 2)
    made.init()
    assert made.produce(b"a") is OK
    with client(broker) as other:
        fields = fetch_fields("orders", 0, wait_ms=WAIT_S * 1000, isolation_level=1)
        other.sock.sendall(other.frame("Fetch", 12, **fields))
        assert made.end() is OK
        part = other.answer("Fetch", 12).responses[0].partitions[0]
        assert (part.last_stable_offset, len(part.records) > 0) == (2, True)


def test_features_and_coordinators_are_told(wire: Wire, broker: Broker) -> None:
    """Trap 3."""
    for api in (3, 4):
        told = wire.ask("ApiVersions", api, client_software_name="t", client_software_version="1")
        found = {
            each.name: (each.min_version_level, each.max_version_level) for each in told.finalized_features
        }
        assert found["transaction.version"][1] == 2
        assert told.finalized_features_epoch >= 0
    assert {each.name: each.max_version for each in told.supported_features}["transaction.version"] == 2
    for api in range(1, 7):
        fields = {"coordinator_keys": ["t"]} if api >= 4 else {"key": "t"}
        told = wire.ask("FindCoordinator", api, key_type=1, **fields)
        where = told.coordinators[0] if api >= 4 else told
        assert (where.error_code, where.node_id, where.port) == (OK, 1, broker.address.port)


def test_transactions_are_listed_and_described(wire: Wire, store: Store) -> None:
    made = Client(wire, 2, "orders-1")
    made.init()
    made.produce(b"a", 1)
    Client(wire, name="idle").init()

    def listed(api: int = 2, **filters: Any) -> list[tuple[str, str]]:
        found = wire.ask("ListTransactions", api, **filters)
        assert found.error_code == OK
        return [(each.transactional_id, each.transaction_state) for each in found.transaction_states]

    both = [("idle", "Empty"), ("orders-1", "Ongoing")]
    for api in range(3):
        assert listed(api) == both
    assert listed(state_filters=["Ongoing"]) == listed(producer_id_filters=[made.id]) == both[1:]
    assert listed(duration_filter=3_600_000) == []
    assert listed(transactional_id_pattern="or.*[0-9]") == both[1:]
    assert listed(transactional_id_pattern="orders") == []
    found = wire.ask("ListTransactions", 2, state_filters=["nope"])
    assert (found.unknown_state_filters, found.transaction_states) == (("nope",), ())
    found = wire.ask("ListTransactions", 2, transactional_id_pattern="(")
    assert found.error_code == Code.INVALID_REGULAR_EXPRESSION
    one, other, none = wire.ask(
        "DescribeTransactions", 0, transactional_ids=["orders-1", "nope", ""]
    ).transaction_states
    assert (one.transaction_state, one.producer_id, one.producer_epoch) == ("Ongoing", made.id, made.epoch)
    assert [(each.topic, each.partitions) for each in one.topics] == [("orders", (1,))]
    assert one.transaction_timeout_ms == 60_000
    assert other.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert none.error_code == Code.INVALID_REQUEST
    asked = codec("DescribeProducersRequest").struct("TopicRequest")
    parts = (
        wire.ask("DescribeProducers", 0, topics=[asked(name="orders", partition_indexes=[0, 1, 9])])
        .topics[0]
        .partitions
    )
    assert parts[0].active_producers == ()
    (producer,) = parts[1].active_producers
    assert (producer.producer_id, producer.last_sequence, producer.current_txn_start_offset) == (
        made.id,
        0,
        0,
    )
    assert parts[2].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_deleted_does_not_keep_the_others(wire: Wire, store: Store) -> None:
    """Trap 20: one of the same name is another topic."""
    store.create_topic("other")
    made = Client(wire)
    made.init()
    made.add(0)
    assert made.add(0, topic="other") == [OK]
    assert made.produce(b"a") is OK
    store.delete_topic("orders")
    store.create_topic("orders", 2)
    assert made.end() is OK
    assert stable(store)
    assert seen(store) == []
    assert store["orders"].producers(0) == []


def test_records_of_internal_topics_are_not_deleted(wire: Wire, store: Store) -> None:
    """Also where their policy would allow it: a transaction that no record tells of stays open."""
    Client(wire).init()
    store.alter_topic(TRANSACTIONS_TOPIC, {"cleanup.policy": "compact,delete"})
    made = codec("DeleteRecordsRequest")
    topic, part = made.struct("DeleteRecordsTopic"), made.struct("DeleteRecordsPartition")
    places = [topic(name=TRANSACTIONS_TOPIC, partitions=[part(partition_index=0, offset=-1)])]
    (found,) = wire.ask("DeleteRecords", 2, topics=places, timeout_ms=1000).topics
    assert found.partitions[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert store[TRANSACTIONS_TOPIC].log_start_offset(0) == 0


def test_programs_and_clients_share_one_coordinator(wire: Wire, store: Store) -> None:
    made = Client(wire, 2)
    made.init()
    assert made.produce(b"client") is OK
    t = store.transaction("t")
    assert made.end() is FENCED
    t.append("orders", b"program", partition=0)
    assert Client(wire).init() is OK
    assert t.committed is False
    with pytest.raises(InvalidProducerEpochError):
        t.append("orders", b"late", partition=0)
    assert seen(store) == []
    assert stable(store)
    with store.transaction("t") as t:
        t.append("orders", b"b", partition=0)
    assert seen(store) == [b"b"]


def test_a_batch_never_comes_behind_the_marker(wire: Wire, broker: Broker, store: Store) -> None:
    """A zombie's produce races with the end on another connection: nothing stays open."""
    for _ in range(30):
        made = Client(wire)
        made.init()
        made.add(0)
        assert made.produce(b"first") is OK
        with client(broker) as other:
            zombie = Client(other)
            zombie.id, zombie.epoch, zombie.sequences = made.id, made.epoch, {0: 1}
            with ThreadPoolExecutor(1) as beside:
                late = beside.submit(zombie.produce, b"second")
                assert made.end() is OK
                assert late.result() in (OK, Code.TRANSACTION_ABORTABLE)
        assert stable(store)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("full", [TRANSACTIONS_TOPIC, "orders-1"])
def test_a_failed_end_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str, version: int
) -> None:
    """A disk that is full under the decision or under a marker: the client hears that it may try again."""
    from stratalog.fs.real import RealFile
    from stratalog.log.write.active import ActiveSegment

    write, failing = RealFile.pwrite, threading.Event()
    opened = ActiveSegment.open_for_append

    def pwrite(file: RealFile, data: Any, offset: int) -> None:
        if failing.is_set() and f"/{full}" in file.path:
            raise OSError(28, "No space left on device")
        write(file, data, offset)

    class Called:
        """A file whose ``pwrite`` is called: the kernel would write to the descriptor itself."""

        def __init__(self, segment: ActiveSegment) -> None:
            self.pwrite = opened(segment).pwrite

    def open_for_append(segment: ActiveSegment) -> Called:
        return Called(segment)

    monkeypatch.setattr(RealFile, "pwrite", pwrite)
    monkeypatch.setattr(ActiveSegment, "open_for_append", open_for_append)
    with (
        stratalog.open(tmp_path, background=False) as store,
        stratalog.serve(store) as broker,
        client(broker) as wire,
    ):
        store.create_topic("orders", 2)
        made = Client(wire, version)
        made.init()
        for partition in (0, 1):
            assert version == 2 or made.add(partition) == [OK]
            assert made.produce(b"a", partition) is OK
        failing.set()
        assert made.end() is Code.COORDINATOR_NOT_AVAILABLE
        assert made.end() is Code.COORDINATOR_NOT_AVAILABLE
        failing.clear()
        assert made.end() is OK
        assert stable(store)
        assert seen(store) == [b"a"] * 2
        assert made.end(commit=False) is (Code.INVALID_TXN_STATE if version == 1 else OK)


def test_the_versions_of_one_transaction_may_differ(tmp_path: Path) -> None:
    """Its records are of the second version, its end of the first: a crash under the markers lost a part."""
    with (
        stratalog.open(tmp_path / "data", background=False) as store,
        stratalog.serve(store) as broker,
        client(broker) as wire,
    ):
        store.create_topic("orders", 2)
        made = Client(wire, 2)
        made.init()
        for value in (b"a", b"b"):
            assert made.produce(value, 0) is OK
            assert made.produce(value, 1) is OK
            assert value == b"b" or made.end(api=4) is OK
        (open_,) = store.transactions.all()
        decided = states.prepare(open_, commit=True, now_ms=1, version=states.FIRST)
        for_coordinator(store[TRANSACTIONS_TOPIC]).append(states.pack(decided), states.pack_key("t"))
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    with stratalog.open(tmp_path / "crashed", background=False) as store:
        assert seen(store) == [b"a", b"a", b"b", b"b"]
        assert stable(store)


def test_unused_transactional_ids_are_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    limits = Limits(transactional_id_expiration_ms=3_600_000)

    def names(store: Store) -> list[str]:
        return [each.id for each in store.transactions.all()]

    with (
        stratalog.open(tmp_path, background=False, clock=clock) as store,
        stratalog.serve(store, limits=limits) as broker,
        client(broker) as wire,
    ):
        store.create_topic("orders", 2)
        idle, used, busy = (Client(wire, 1, name) for name in ("idle", "used", "busy"))
        for each in (idle, used, busy):
            assert each.init(900_000) is OK
            assert each.add(0) == [OK]
            assert each.produce(b"a") is OK
            assert each.end() is OK
        with store.transaction("held") as held:
            held.append("orders", b"a")
        with store.transaction("program") as program:
            program.append("orders", b"a")
        del program
        clock.advance(3_000_000)
        assert used.init() is OK
        clock.advance(599_000)
        store.tick()
        assert names(store) == ["busy", "held", "idle", "program", "used"]
        assert busy.add(0) == [OK]
        clock.advance(1_000)
        store.tick()
        assert names(store) == ["busy", "held", "used"]
        assert held.committed
        assert idle.add(0) == [Code.INVALID_PRODUCER_ID_MAPPING]
        assert busy.end() is OK
    with (
        stratalog.open(tmp_path, background=False, clock=clock) as store,
        stratalog.serve(store) as broker,
        client(broker) as wire,
    ):
        assert names(store) == ["busy", "held", "used"]
        before = idle.id
        idle.wire = wire
        assert idle.init() is OK
        assert (idle.id != before, idle.epoch) == (True, 0)
        assert idle.add(0) == [OK]
        assert idle.produce(b"b") is OK
        assert idle.end() is OK


def test_no_producer_gets_the_producer_id_of_another_ones_name(tmp_path: Path) -> None:
    """A broker's `__transaction_state` tells of producers that its partitions have forgotten."""
    with stratalog.open(tmp_path) as store:
        state = store.transactions.init_producer("t", 60_000)
        other = replace(state, id="other", producer_id=state.producer_id + 1, epoch=3)
        for_coordinator(store[TRANSACTIONS_TOPIC]).append(states.pack(other), states.pack_key("other"))
    with stratalog.open(tmp_path) as store, stratalog.serve(store) as broker, client(broker) as wire:
        third = Client(wire, name="third")
        assert third.init() is OK
        assert third.id not in (state.producer_id, other.producer_id)
