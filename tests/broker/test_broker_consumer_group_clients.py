"""Groups of the newer protocol at the socket: by bytes, and with librdkafka's `group.protocol=consumer`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import stratalog
from stratalog import Broker, Store
from stratalog.broker.codes import Code
from stratalog.broker.groups import topics as group_topics
from stratalog.broker.server import Limits
from stratalog.errors import DiskFullError, GroupInUseError
from stratalog.wire.messages import codec
from tests.broker.kafka_clients import NO_COMPLAINTS, WAIT_S, commits, partitions_of, served, until, values
from tests.broker.kafka_clients import consumer as any_consumer
from tests.broker.test_broker_bytes import Wire, client
from tests.broker.test_broker_hostile import join_fields

LIMITS = Limits(group_consumer_heartbeat_interval_ms=100, group_consumer_session_timeout_ms=6_000)
NIL = bytes(16)


@pytest.fixture
def broker(store: Store) -> Iterator[Broker]:
    with stratalog.serve(store, limits=LIMITS) as broker:
        yield broker


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with client(broker) as made:
        yield made


# -- by bytes ------------------------------------------------------------------------------------------------


def beat(wire: Wire, member_id: str = "m", epoch: int = 0, version: int = 1, **more: Any) -> Any:
    fields: dict[str, Any] = {"group_id": "g", "member_id": member_id, "member_epoch": epoch} | more
    if epoch == 0:
        joining = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ("a",), "topic_partitions": ()}
        fields = joining | fields
    return wire.ask("ConsumerGroupHeartbeat", version, **fields)


def parts(answer: Any) -> dict[bytes, tuple[int, ...]] | None:
    if answer.assignment is None:
        return None
    return {each.topic_id: tuple(each.partitions) for each in answer.assignment.topic_partitions}


def own(topic_id: bytes, *numbers: int) -> tuple[Any, ...]:
    part = codec("ConsumerGroupHeartbeatRequest").struct("TopicPartitions")
    return (part(topic_id=topic_id, partitions=numbers),) if numbers else ()


def id_of(store: Store, name: str) -> bytes:
    found = store.partitions.entry(name).id
    assert found is not None
    return found.bytes


def test_the_feature_is_finalized(wire: Wire) -> None:
    told = wire.ask("ApiVersions", 4, client_software_name="t", client_software_version="1")
    assert told.finalized_features_epoch >= 0
    levels = {each.name: (each.min_version_level, each.max_version_level) for each in told.finalized_features}
    assert levels["group.version"] == (1, 1)
    assert "group.version" in {each.name for each in told.supported_features}


def test_a_member_joins_commits_and_leaves(wire: Wire, store: Store) -> None:
    store.create_topic("a", 2)
    topic_id = id_of(store, "a")
    joined = beat(wire, "", version=0)
    assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms) == (0, 1, 100)
    assert parts(joined) == {topic_id: (0, 1)}
    name = joined.member_id
    assert parts(beat(wire, name, 1)) is None
    for epoch, code in ((1, Code.NONE), (0, Code.STALE_MEMBER_EPOCH), (2, Code.STALE_MEMBER_EPOCH)):
        assert commit(wire, name, epoch) == code
    assert commit(wire, "other", 1) == Code.UNKNOWN_MEMBER_ID
    assert commit(wire, "", -1) == Code.UNKNOWN_MEMBER_ID, "not from outside while it has members"
    assert commit(wire, name, 1, version=8) == Code.UNSUPPORTED_VERSION
    assert commit(wire, "m", 1, group_id="none") == Code.GROUP_ID_NOT_FOUND
    asked = codec("OffsetFetchRequest").struct("OffsetFetchRequestGroup")
    for member, epoch, code in (
        (None, -1, Code.NONE),
        (name, 1, Code.NONE),
        (name, 2, Code.STALE_MEMBER_EPOCH),
        ("other", 1, Code.UNKNOWN_MEMBER_ID),
    ):
        groups = (asked(group_id="g", member_id=member, member_epoch=epoch, topics=None),)
        [found] = wire.ask("OffsetFetch", 9, groups=groups).groups
        assert found.error_code == code
    left = beat(wire, name, -1)
    assert (left.error_code, left.member_id, left.member_epoch, left.assignment) == (0, name, -1, None)
    assert commit(wire, "", -1) == Code.NONE


def commit(wire: Wire, member_id: str, epoch: int, version: int = 9, group_id: str = "g") -> int:
    made = codec("OffsetCommitRequest")
    topic, part = made.struct("OffsetCommitRequestTopic"), made.struct("OffsetCommitRequestPartition")
    answer = wire.ask(
        "OffsetCommit",
        version,
        group_id=group_id,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=(topic(name="a", partitions=(part(partition_index=0, committed_offset=0),)),),
    )
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, Code.INVALID_REQUEST),
        ({"member_id": ""}, Code.INVALID_REQUEST),
        ({"instance_id": ""}, Code.INVALID_REQUEST),
        ({"rack_id": ""}, Code.INVALID_REQUEST),
        ({"epoch": -3}, Code.INVALID_REQUEST),
        ({"epoch": -2}, Code.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, Code.INVALID_REQUEST),
        ({"topic_partitions": own(b"t" * 16, 1)}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, Code.INVALID_REQUEST),
        ({"member_id": "m" * 40_000}, Code.INVALID_REQUEST),
        ({"server_assignor": "best"}, Code.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, Code.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "a)|(b"}, Code.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "((a{100}){100}){100}"}, Code.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "a" * 2_000}, Code.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 5}, Code.GROUP_ID_NOT_FOUND),
        ({"epoch": -1}, Code.GROUP_ID_NOT_FOUND),
    ],
)
def test_wrong_heartbeats_are_refused(wire: Wire, broker: Broker, fields: dict[str, Any], code: Code) -> None:
    answer = beat(wire, **fields)
    assert answer.error_code == code
    assert answer.error_message
    assert broker.groups.all() == []


def test_a_regular_expression_that_takes_others_for_ever_is_answered_at_once(
    wire: Wire, store: Store
) -> None:
    store.create_topic("a" * 200, 1)
    answer = beat(wire, subscribed_topic_regex="(a+)+(a*)*b|a{200}")
    assert parts(answer) == {id_of(store, "a" * 200): (0,)}


def test_a_group_with_more_regular_expressions_than_are_kept_is_answered(
    wire: Wire, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_topics, "MAX_KNOWN", 3)
    for number in range(6):
        joined = beat(wire, f"m{number}", subscribed_topic_regex=f"a{number}")
        assert joined.error_code == Code.NONE


def test_a_heartbeat_while_the_broker_stops_is_answered(wire: Wire, broker: Broker) -> None:
    broker.pool.shutdown()
    assert beat(wire, subscribed_topic_regex="a.*").error_code == Code.COORDINATOR_NOT_AVAILABLE


def test_topics_that_come_later_are_assigned(wire: Wire, store: Store) -> None:
    assert parts(beat(wire, subscribed_topic_names=(), subscribed_topic_regex="[ab]|_.*")) == {}
    store.create_topic("b", 1)
    commit(wire, "m", 1)  # makes an internal topic, which is not matched
    told = beat(wire, "m", 1)
    assert (parts(told), told.member_epoch) == ({id_of(store, "b"): (0,)}, 2)
    store.add_partitions("b", 2)
    assert parts(beat(wire, "m", 2)) == {id_of(store, "b"): (0, 1)}
    before = id_of(store, "b")
    store.delete_topic("b")
    store.create_topic("b", 1)
    gone = beat(wire, "m", 3)
    assert parts(gone) == {}, "the one that was deleted is given up first"
    assert parts(beat(wire, "m", gone.member_epoch, topic_partitions=own(before, 0))) == {}
    assert parts(beat(wire, "m", gone.member_epoch, topic_partitions=())) == {id_of(store, "b"): (0,)}


def test_a_group_changes_its_kind_when_it_is_empty(wire: Wire, broker: Broker) -> None:
    with client(broker) as other:
        first = other.ask("JoinGroup", 3, **join_fields("g"))
        assert first.error_code == 0
        refused = beat(wire)
        assert (refused.error_code, "classic" in refused.error_message) == (Code.GROUP_ID_NOT_FOUND, True)
        assert kinds(wire) == {"g": ("classic", "CompletingRebalance")}
        other.ask("LeaveGroup", 1, group_id="g", member_id=first.member_id)
        assert beat(wire).error_code == 0
        assert kinds(wire) == {"g": ("consumer", "Stable")}
        for name, fields in (
            ("JoinGroup", join_fields("g")),
            ("SyncGroup", {"group_id": "g", "member_id": "m", "generation_id": 1}),
            ("Heartbeat", {"group_id": "g", "member_id": "m", "generation_id": 1}),
        ):
            code = other.ask(name, 3, **fields).error_code
            assert code == (
                Code.INCONSISTENT_GROUP_PROTOCOL if name == "JoinGroup" else Code.UNKNOWN_MEMBER_ID
            )
        assert other.ask("DescribeGroups", 6, groups=("g",)).groups[0].error_code == Code.GROUP_ID_NOT_FOUND
        beat(wire, "m", -1)
        assert other.ask("JoinGroup", 3, **join_fields("g")).error_code == 0
    assert kinds(wire)["g"][0] == "classic"
    [told] = wire.ask("ConsumerGroupDescribe", 1, group_ids=("g",)).groups
    assert told.error_code == Code.GROUP_ID_NOT_FOUND


def kinds(wire: Wire, **filters: Any) -> dict[str, tuple[str, str]]:
    found = wire.ask("ListGroups", 5, **filters).groups
    return {each.group_id: (each.group_type, each.group_state) for each in found}


def test_both_kinds_are_listed_described_and_deleted(wire: Wire, broker: Broker, store: Store) -> None:
    store.create_topic("a", 2)
    beat(wire, instance_id="one", rack_id="r")
    with client(broker) as other:
        other.ask("JoinGroup", 3, **join_fields("old"))
        assert kinds(wire) == {
            "g": ("consumer", "Stable"), "old": ("classic", "CompletingRebalance")
        }  # fmt: skip
        assert kinds(wire, types_filter=("Consumer",)).keys() == {"g"}
        assert kinds(wire, types_filter=("classic",)).keys() == {"old"}
        assert kinds(wire, states_filter=("stable",)).keys() == {"g"}
    [told, none] = wire.ask("ConsumerGroupDescribe", 1, group_ids=("g", "none")).groups
    assert none.error_code == Code.GROUP_ID_NOT_FOUND
    assert (told.group_state, told.group_epoch, told.assignment_epoch) == ("Stable", 1, 1)
    assert told.assignor_name == "uniform"
    [member] = told.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "one", "r", 1)
    assert member.subscribed_topic_names == ("a",)
    [topic] = member.assignment.topic_partitions
    assert (topic.topic_id, topic.topic_name, topic.partitions) == (id_of(store, "a"), "a", (0, 1))
    assert member.target_assignment == member.assignment
    commit(wire, "m", 1)
    assert wire.ask("DeleteGroups", 2, groups_names=("g",)).results[0].error_code == Code.NON_EMPTY_GROUP
    beat(wire, "m", -1, instance_id="one")
    assert kinds(wire)["g"] == ("consumer", "Empty")
    assert wire.ask("DeleteGroups", 2, groups_names=("g",)).results[0].error_code == 0
    assert "g" not in kinds(wire)
    assert store.groups.offsets.all() == {}


def test_a_silent_member_makes_room_and_is_known_no_more(store: Store) -> None:
    store.create_topic("a", 2)
    limits = Limits(group_consumer_session_timeout_ms=300, group_consumer_max_size=1)
    with stratalog.serve(store, limits=limits) as broker, client(broker) as wire:
        assert beat(wire, "m1").error_code == 0
        assert beat(wire, "m2").error_code in (Code.GROUP_MAX_SIZE_REACHED, Code.NONE)  # slow machines
        until(lambda: not any(group.members for group in broker.groups.all()))
        assert parts(beat(wire, "m3")) == {id_of(store, "a"): (0, 1)}
        assert beat(wire, "m1", 1).error_code == Code.UNKNOWN_MEMBER_ID


def test_a_restart_knows_members_epochs_and_what_is_being_given_up(store: Store) -> None:
    store.create_topic("a", 2)
    topic_id = id_of(store, "a")
    with stratalog.serve(store, limits=LIMITS) as broker, client(broker) as wire:
        assert beat(wire, "m1", instance_id="one").member_epoch == 1
        assert beat(wire, "m2").member_epoch == 2
        told = beat(wire, "m1", 1, instance_id="one")
        assert told.member_epoch == 2
        [kept] = (parts(told) or {})[topic_id]
    with stratalog.serve(store, limits=LIMITS) as broker, client(broker) as wire:
        assert kinds(wire) == {"g": ("consumer", "Reconciling")}
        assert parts(beat(wire, "m2", 2)) is None
        assert beat(wire, "m1", 1, instance_id="one").error_code == Code.FENCED_MEMBER_EPOCH
        confirmed = beat(wire, "m1", 2, instance_id="one", topic_partitions=own(topic_id, kept))
        assert confirmed.error_code == 0
        assert parts(beat(wire, "m2", 2)) == {topic_id: (1 - kept,)}
        assert beat(wire, "m1", -2, instance_id="one").member_epoch == -2
    with stratalog.serve(store, limits=LIMITS) as broker, client(broker) as wire:
        back = beat(wire, "m3", instance_id="one")
        assert (back.error_code, parts(back)) == (0, {topic_id: (kept,)})
        beat(wire, "m3", -1, instance_id="one")
        beat(wire, "m2", -1)
        assert wire.ask("DeleteGroups", 2, groups_names=("g",)).results[0].error_code == 0
    with stratalog.serve(store, limits=LIMITS) as broker, client(broker) as wire:
        assert kinds(wire) == {}


def test_what_cannot_be_written_is_not_told(
    wire: Wire, broker: Broker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("a", 2)
    commit(wire, "", -1)
    offsets = store.groups.offsets

    def full() -> Any:
        raise DiskFullError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(offsets, "topic_to_write", full)
        failed = beat(wire)
        assert (failed.error_code, failed.assignment) == (Code.COORDINATOR_NOT_AVAILABLE, None)
        with client(broker) as other:
            joined = other.ask("JoinGroup", 3, **join_fields("old"))
            synced = other.ask("SyncGroup", 3, group_id="old", member_id=joined.member_id, generation_id=1)
            assert synced.error_code == Code.COORDINATOR_NOT_AVAILABLE
    assert parts(beat(wire)) == {id_of(store, "a"): (0, 1)}
    beat(wire, "m", -1)
    with client(broker) as other, monkeypatch.context() as patch:
        patch.setattr(offsets, "topic_to_write", full)
        assert other.ask("JoinGroup", 3, **join_fields("g")).error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert kinds(wire)["g"] == ("consumer", "Empty")
    assert beat(wire).error_code == 0
    broker.stop()
    with stratalog.serve(store, limits=LIMITS) as again, client(again) as other:
        assert kinds(other)["g"] == ("consumer", "Stable")
        assert beat(other, "m", 2).error_code == 0


def test_a_group_is_of_clients_or_of_programs(wire: Wire, broker: Broker, store: Store) -> None:
    store.create_topic("a")
    with client(broker) as other:
        with store.consumer("g", ["a"]):
            refused = beat(wire)
            assert (refused.error_code, "program" in refused.error_message) == (Code.GROUP_ID_NOT_FOUND, True)
            code = other.ask("JoinGroup", 3, **join_fields("g")).error_code
            assert code == Code.INCONSISTENT_GROUP_PROTOCOL
            assert commit(wire, "", -1) == Code.UNKNOWN_MEMBER_ID
        assert beat(wire).error_code == 0
        with pytest.raises(GroupInUseError, match="'g'"):
            store.consumer("g", ["a"])
        store.consumer("another", ["a"]).close()
        beat(wire, "m", -1)
        joined = other.ask("JoinGroup", 3, **join_fields("g"))
        assert joined.error_code == 0
        with pytest.raises(GroupInUseError):
            store.consumer("g", ["a"])
        other.ask("LeaveGroup", 1, group_id="g", member_id=joined.member_id)
        store.consumer("g", ["a"]).close()
        other.ask("JoinGroup", 3, **join_fields("g"))
    broker.stop()
    store.consumer("g", ["a"]).close()


# -- librdkafka ----------------------------------------------------------------------------------------------


def consumer(address: str, *given: Any, **config: Any) -> AbstractContextManager[Consumer]:
    return any_consumer(address, *given, **({"group.protocol": "consumer"} | config))


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_consumers_share_and_take_over(broker: Broker, store: Store, assignor: str) -> None:
    store.create_topic("orders", 6)
    settings: dict[str, Any] = {"group.remote.assignor": assignor}
    with consumer(broker.bootstrap_servers, **settings) as first:
        until(lambda: partitions_of(first) == set(range(6)), first)
        with (
            consumer(broker.bootstrap_servers, **settings) as second,
            consumer(broker.bootstrap_servers, **settings) as third,
        ):
            every = (first, second, third)
            until(lambda: [len(partitions_of(each)) for each in every] == [2, 2, 2], *every)
            assert set().union(*map(partitions_of, every)) == set(range(6))
        until(lambda: partitions_of(first) == set(range(6)), first)


def test_rebalances_while_producing_skip_nothing_and_share_nothing(broker: Broker, store: Store) -> None:
    """Members commit what they handled when they give partitions up: each record is handled once."""
    store.create_topic("orders", 4)
    stop = threading.Event()
    produced = 0

    def produce() -> None:
        nonlocal produced
        made = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, **NO_COMPLAINTS})
        while not stop.wait(0.002):
            made.produce("orders", b"%d" % produced, partition=produced % 4)
            produced += 1
        assert made.flush(WAIT_S) == 0

    thread = threading.Thread(target=produce)
    handled: list[int] = []
    owners: dict[int, Consumer] = {}

    def gained(made: Consumer, places: list[TopicPartition]) -> None:
        for each in places:
            assert owners.setdefault(each.partition, made) is made, "two members own a partition"
        made.incremental_assign(places)

    refused: list[KafkaException] = []

    def lost(made: Consumer, places: list[TopicPartition]) -> None:
        try:
            made.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                refused.append(error)
        for each in places:
            assert owners.pop(each.partition) is made
        made.incremental_unassign(places)

    def poll(*consumers: Consumer) -> None:
        for each in consumers:
            message = each.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                handled.append(int(value))
                each.store_offsets(message)

    thread.start()
    try:
        with ExitStack() as stack:
            running: list[Consumer] = []
            for count in (1, 2, 3, 2, 1, 2):
                if count > len(running):
                    settings: dict[str, Any] = {"enable.auto.offset.store": False}
                    callbacks = {"on_assign": gained, "on_revoke": lost}
                    made = stack.enter_context(
                        consumer(broker.bootstrap_servers, callbacks=callbacks, **settings)
                    )
                    running.append(made)
                else:
                    running[0].close()
                    running.pop(0)
                seen, deadline_s = len(handled), time.monotonic() + WAIT_S
                while (
                    len(handled) < seen + 60
                    or len(set(map(id, owners.values()))) != count
                    or len(owners) != 4
                ):
                    assert time.monotonic() < deadline_s, (count, owners)
                    poll(*running)
            stop.set()
            thread.join()
            deadline_s = time.monotonic() + WAIT_S
            while len(handled) < produced and time.monotonic() < deadline_s:
                poll(*running)
    finally:
        stop.set()
        thread.join()
    assert not refused
    assert sorted(handled) == list(range(produced))


def test_a_static_member_keeps_its_partitions(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 2)
    settings: dict[str, Any] = {"group.instance.id": "one"}
    with consumer(broker.bootstrap_servers, **settings) as made:
        until(lambda: partitions_of(made) == {0, 1}, made)
        [group] = broker.groups.all()
        [epoch] = {each.epoch for each in group.members.values()}  # type: ignore[union-attr]
    with consumer(broker.bootstrap_servers, **settings) as made:
        until(lambda: partitions_of(made) == {0, 1}, made)
        [member] = group.members.values()
        assert (member.instance_id, member.epoch) == ("one", epoch)  # type: ignore[union-attr]


def test_a_regular_expression_finds_new_topics(broker: Broker, store: Store) -> None:
    store.create_topic("orders-eu", 1)
    store.create_topic("other", 1)
    with consumer(broker.bootstrap_servers, ["^orders-.*"]) as made:
        until(lambda: {each.topic for each in made.assignment()} == {"orders-eu"}, made)
        store.create_topic("orders-us", 1)
        until(lambda: {each.topic for each in made.assignment()} == {"orders-eu", "orders-us"}, made)


def test_the_admin_client_sees_both_kinds(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **NO_COMPLAINTS})
    with consumer(broker.bootstrap_servers) as made:
        until(lambda: partitions_of(made) == {0, 1}, made)
        [listed] = admin.list_consumer_groups(request_timeout=WAIT_S).result().valid
        assert (listed.group_id, listed.state.name, listed.type.name) == ("billing", "STABLE", "CONSUMER")
        described = admin.describe_consumer_groups(["billing"], request_timeout=WAIT_S)["billing"].result()
        [member] = described.members
        assert {each.partition for each in member.assignment.topic_partitions} == {0, 1}
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["billing"], request_timeout=WAIT_S)["billing"].result()
        made.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    until(lambda: not any(group.members for group in broker.groups.all()))
    admin.delete_consumer_groups(["billing"], request_timeout=WAIT_S)["billing"].result()
    assert broker.groups.all() == []


def test_seek_by_time(broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders")
    for n in range(10):
        topic.append(b"%d" % n, timestamp=1_000 * n)
    with consumer(broker.bootstrap_servers) as made:
        until(lambda: partitions_of(made) == {0}, made)
        [at] = made.offsets_for_times([TopicPartition("orders", 0, 6_500)], timeout=WAIT_S)
        assert at.offset == 7
        made.seek(at)
        deadline_s = time.monotonic() + WAIT_S
        while True:
            message = made.poll(0.5)
            if message is not None and message.value() == b"7":
                break
            assert time.monotonic() < deadline_s


def test_a_group_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with stratalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        for n in range(20):
            topic.append(b"%d" % n, partition=n % 2)
    with served(tmp_path, "127.0.0.1:0") as (process, address), consumer(address) as made:
        seen = values(made, 12)
        until(lambda: commits(made), made)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with served(tmp_path, address) as (_, again):
            assert again == address
            seen += values(made, 8)
            assert sorted(map(int, seen)) == list(range(20)), "it goes on where it was"
            until(lambda: commits(made), made)
            made.close()
            with consumer(address) as other:
                until(lambda: partitions_of(other) == {0, 1}, other)
                offsets = other.committed([TopicPartition("orders", n) for n in range(2)], timeout=WAIT_S)
                assert [each.offset for each in offsets] == [10, 10]
