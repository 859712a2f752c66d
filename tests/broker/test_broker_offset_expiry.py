"""Committed offsets that go: OffsetDelete, and offsets of groups that nobody needs any more (KIP-211)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Store
from stratalog.broker.codes import Code
from stratalog.broker.groups.expiry import Facts, expired
from stratalog.broker.server import Limits
from stratalog.store.groups.offsets import CommittedOffset, commit_records
from stratalog.wire.messages import codec
from tests.broker.kafka_clients import until
from tests.broker.test_broker_bytes import Wire, client
from tests.broker.test_broker_consumer_group_clients import beat, commit
from tests.broker.test_broker_hostile import join_fields

HOUR_MS = 3_600_000


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with client(broker) as made:
        yield made


def test_what_expires() -> None:
    offsets = {
        ("a", 0): CommittedOffset(1, timestamp=1_000),
        ("b", 0): CommittedOffset(1, timestamp=5_000),
        ("c", 0): CommittedOffset(1, timestamp=-1),
    }

    def gone(facts: Facts, now_ms: int) -> list[str]:
        return [topic for topic, _ in expired(offsets, facts, now_ms, 100)]

    assert gone(Facts(), 1_099) == []
    assert gone(Facts(), 1_100) == ["a"]
    assert gone(Facts(), 9_000) == ["a", "b"]
    assert gone(Facts(empty_since_ms=4_000), 4_099) == []
    assert gone(Facts(empty_since_ms=4_000), 4_100) == ["a"]
    assert gone(Facts(subscribed=frozenset("a")), 9_000) == ["b"]
    assert gone(Facts(subscribed=None), 9_000) == []


def subscription(*topics: str) -> bytes:
    made = codec("ConsumerProtocolSubscription", "consumer-protocol")
    return made.encode(made(topics=topics), 1, b"\0\1")


def joined(wire: Wire, group: str, metadata: bytes, kind: str = "consumer") -> None:
    protocol = codec("JoinGroupRequest").struct("JoinGroupRequestProtocol")(name="range", metadata=metadata)
    assert (
        wire.ask("JoinGroup", 3, **join_fields(group, protocols=[protocol], protocol_type=kind)).error_code
        == 0
    )


def committed_before(store: Store, group: str, *topics: str) -> None:
    """Commit as of an hour ago."""
    now_ms = round(time.time() * 1000) - HOUR_MS
    store.groups.offsets.topic_to_write().append_many(
        commit_records(group, {(topic, 0): 7 for topic in topics}, now_ms), partition=0
    )


def test_offsets_expire_where_nobody_reads_any_more(store: Store) -> None:
    for name in "ab":
        store.create_topic(name)
    limits = Limits(offsets_retention_minutes=30, offsets_retention_check_interval_ms=50)
    store.groups.offsets.commit("fresh", {("a", 0): 1})
    with (
        store.consumer("program", ["a"]),
        stratalog.serve(store, limits=limits) as broker,
        client(broker) as wire,
        client(broker) as other,
        client(broker) as third,
    ):
        beat(wire, group_id="newer")
        joined(other, "classic", subscription("b"))
        joined(third, "unclear", b"garbage")
        for group in ("simple", "newer", "classic", "unclear", "program"):
            committed_before(store, group, "a", "b")
        until(lambda: [len(each) for each in store.groups.offsets.all().values()] == [1, 1, 1, 2, 2])
        left = {group: {at[0] for at in offsets} for group, offsets in store.groups.offsets.all().items()}
        assert left == {
            "classic": {"b"},
            "fresh": {"a"},
            "newer": {"a"},
            "program": {"a", "b"},
            "unclear": {"a", "b"},
        }
        beat(wire, "m", -1, group_id="newer")
        beat(wire, "m", 0, group_id="empty")
        beat(wire, "m", -1, group_id="empty")
        until(lambda: broker.groups.get("empty") is None)
        assert broker.groups.get("newer") is not None, "its last member has just left"
        assert "newer" in store.groups.offsets.all()


def test_nothing_expires_beside_an_open_transaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it commits would come before what deletes it."""
    store.create_topic("a")
    committed_before(store, "old", "a")
    limits = Limits(offsets_retention_minutes=30, offsets_retention_check_interval_ms=20)
    looks = 0
    with store.transaction("t") as transaction:
        transaction.commit_offsets("old", {("a", 0): 9})
        broker = stratalog.serve(store, limits=limits)
        submit = broker.pool.submit

        def counted(*given: Any, **more: Any) -> Any:
            nonlocal looks
            looks += 1
            return submit(*given, **more)

        monkeypatch.setattr(broker.pool, "submit", counted)
        with broker:
            until(lambda: looks >= 3)
    found = store.groups.offsets.committed("old", "a", 0)
    assert found is not None
    assert found.offset == 9


def delete(wire: Wire, group: str, *places: tuple[str, int]) -> Any:
    made = codec("OffsetDeleteRequest")
    topic, part = made.struct("OffsetDeleteRequestTopic"), made.struct("OffsetDeleteRequestPartition")
    answer = wire.ask(
        "OffsetDelete",
        0,
        group_id=group,
        topics=[topic(name=name, partitions=(part(partition_index=number),)) for name, number in places],
    )
    return answer.error_code or [each.partitions[0].error_code for each in answer.topics]


def test_offsets_are_deleted_but_not_of_topics_that_are_read(
    wire: Wire, broker: Broker, store: Store
) -> None:
    for name in "ab":
        store.create_topic(name)
    assert delete(wire, "none", ("a", 0)) == Code.GROUP_ID_NOT_FOUND
    for group in ("simple", "newer", "classic", "connect", "program"):
        committed_before(store, group, "a", "b")
    unknown = [("a", 1), ("x", 0)]
    assert delete(wire, "simple", ("a", 0), *unknown) == [0, 3, 3]
    assert store.groups.offsets.all()["simple"].keys() == {("b", 0)}
    beat(wire, group_id="newer")
    read = Code.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete(wire, "newer", ("a", 0), ("b", 0)) == [read, 0]
    with client(broker) as other, client(broker) as third:
        joined(other, "classic", subscription("b"))
        joined(third, "connect", b"", "connect")
        assert delete(wire, "classic", ("a", 0), ("b", 0)) == [0, read]
        assert delete(wire, "connect", ("a", 0)) == Code.NON_EMPTY_GROUP
    with store.consumer("program", ["a"]):
        assert delete(wire, "program", ("a", 0), ("b", 0)) == [read, 0]
    beat(wire, "m", -1, group_id="newer")
    assert commit(wire, "", -1, group_id="newer") == 0
    assert delete(wire, "newer", ("a", 0)) == [0]
    assert "newer" not in store.groups.offsets.all()
