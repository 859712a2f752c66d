"""Consumer groups: the state machine by itself, and real clients that share, leave, die and come back."""

from __future__ import annotations

import random
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions as GroupPartitions
from confluent_kafka.admin import AdminClient

import stratalog
from stratalog import Broker, Store
from stratalog.broker.codes import Code
from stratalog.broker.groups.classic import Answers, Group, Join, Joined, State, Synced
from stratalog.wire.messages import codec
from tests.broker.kafka_clients import NO_COMPLAINTS, WAIT_S, commits, partitions_of, served, until, values
from tests.broker.kafka_clients import consumer as any_consumer

CLASSIC = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


def consumer(address: str, *given: Any, **config: Any) -> AbstractContextManager[Consumer]:
    return any_consumer(address, *given, **(CLASSIC | config))


# -- the machine ---------------------------------------------------------------------------------------------


class Driver:
    """A group with its answers by ticket, and a clock."""

    def __init__(self, first_wait_s: float = 0.0) -> None:
        self.group = Group("g", first_wait_s)
        self.answers: dict[str, Joined | Synced] = {}
        self.now_s = 100.0

    def take(self, answers: Answers) -> None:
        for ticket, answer in answers:
            assert ticket not in self.answers, "answered once"
            self.answers[ticket] = answer

    def join(self, ticket: str, member_id: str = "", **more: Any) -> Joined | Synced | None:
        fields = {
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_s": 10.0,
            "rebalance_s": 60.0,
            "protocol_type": "consumer",
            "protocols": (("range", b"meta"),),
            "needs_id": False,
            "fresh_id": f"id-{ticket}",
        } | more
        self.take(self.group.join(Join(member_id, **fields), ticket, self.now_s))
        return self.answers.get(ticket)

    def sync(self, ticket: str, member_id: str, generation: int, **assignments: bytes) -> Any:
        names = {each.replace("_", "-"): data for each, data in assignments.items()}
        self.take(self.group.sync(member_id, None, generation, ticket, self.now_s, names))
        return self.answers.get(ticket)

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.take(self.group.tick(self.now_s))


def stable_pair() -> Driver:
    made = Driver()
    made.join("a")
    made.join("b")
    made.join("a2", "id-a")
    assert isinstance(made.answers["a2"], Joined)
    made.sync("sa", "id-a", 2, id_a=b"A", id_b=b"B")
    made.sync("sb", "id-b", 2)
    assert made.group.state is State.STABLE
    return made


def test_members_join_one_after_the_other() -> None:
    made = Driver()
    first = made.join("a")
    assert isinstance(first, Joined)
    assert (first.code, first.generation, first.leader, len(first.members)) == (Code.NONE, 1, "id-a", 1)
    assert made.join("b") is None, "the first member has to join again"
    assert made.group.heartbeat("id-a", None, 1, made.now_s) is Code.REBALANCE_IN_PROGRESS
    again = made.join("a2", "id-a")
    assert isinstance(again, Joined)
    assert (again.generation, {each[0] for each in again.members}) == (2, {"id-a", "id-b"})
    follower = made.answers["b"]
    assert isinstance(follower, Joined)
    assert (follower.generation, follower.members, follower.protocol) == (2, (), "range")
    assert made.sync("sb", "id-b", 2) is None, "the leader brings the assignments"
    assert made.sync("sa", "id-a", 2, id_a=b"A") == Synced(Code.NONE, "consumer", "range", b"A")
    assert made.answers["sb"] == Synced(Code.NONE, "consumer", "range", b""), "forgotten by the leader"
    assert made.group.dirty


def test_the_first_member_of_an_empty_group_waits_for_others() -> None:
    made = Driver(first_wait_s=1.0)
    assert made.join("a") is None
    made.later(0.5)
    assert made.join("b") is None
    made.later(0.6)
    assert {made.answers["a"].code, made.answers["b"].code} == {Code.NONE}
    assert made.group.generation == 1


def test_an_id_is_given_out_first_and_expires() -> None:
    made = Driver()
    asked = made.join("a", needs_id=True)
    assert isinstance(asked, Joined)
    assert (asked.code, asked.member_id) == (Code.MEMBER_ID_REQUIRED, "id-a")
    taken = made.join("a2", "id-a")
    assert isinstance(taken, Joined)
    assert taken.code is Code.NONE
    late = made.join("b", needs_id=True)
    assert isinstance(late, Joined)
    made.later(11)
    unknown = made.join("b2", "id-b")
    assert isinstance(unknown, Joined)
    assert unknown.code is Code.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed_and_the_others_are_told() -> None:
    made = stable_pair()
    made.now_s += 8
    assert made.group.heartbeat("id-a", None, 2, made.now_s) is Code.NONE
    made.later(3)
    assert set(made.group.members) == {"id-a"}
    assert made.group.heartbeat("id-a", None, 2, made.now_s) is Code.REBALANCE_IN_PROGRESS
    assert made.group.heartbeat("id-b", None, 2, made.now_s) is Code.UNKNOWN_MEMBER_ID
    joined = made.join("a3", "id-a")
    assert isinstance(joined, Joined)
    assert joined.generation == 3


def test_who_does_not_join_again_in_time_is_left_behind() -> None:
    made = stable_pair()
    made.join("c")
    for _ in range(13):
        made.now_s += 5
        for member in ("id-a", "id-b"):
            if member in made.group.members:
                made.group.heartbeat(member, None, 2, made.now_s)
        made.take(made.group.tick(made.now_s))
    assert set(made.group.members) == {"id-c"}
    joined = made.answers["c"]
    assert isinstance(joined, Joined)
    assert (joined.leader, joined.generation) == ("id-c", 3)


def test_who_waits_for_a_slow_leader_is_not_taken_for_dead() -> None:
    """Its heartbeats wait behind its sync, on one connection."""
    made = stable_pair()
    made.join("a3", "id-a")
    made.join("b3", "id-b")
    made.sync("sb3", "id-b", 3)
    for _ in range(3):
        made.later(6)
        assert made.group.heartbeat("id-a", None, 3, made.now_s) is Code.NONE
    assert "sb3" not in made.answers
    made.sync("sa3", "id-a", 3, id_b=b"B3")
    assert made.answers["sb3"].assignment == b"B3"  # type: ignore[union-attr]


def test_who_waits_for_others_to_join_is_not_taken_for_dead() -> None:
    """Its session ends meanwhile, but its heartbeats wait behind its join, on one connection."""
    made = stable_pair()
    assert made.join("b3", "id-b", protocols=(("range", b"other"),)) is None
    for _ in range(9):
        made.later(6)
        assert made.group.heartbeat("id-a", None, 2, made.now_s) is Code.REBALANCE_IN_PROGRESS
    made.join("a3", "id-a")
    assert made.answers["b3"].code is Code.NONE
    assert set(made.group.members) == {"id-a", "id-b"}


def test_a_leader_that_does_not_sync_in_time_is_removed() -> None:
    made = stable_pair()
    made.join("a3", "id-a")
    made.join("b3", "id-b")
    made.sync("sb3", "id-b", 3)
    for _ in range(10):
        made.later(6)
        made.group.heartbeat("id-a", None, 3, made.now_s)
    assert made.answers["sb3"].code is Code.REBALANCE_IN_PROGRESS
    assert list(made.group.members) == ["id-b"]
    made.join("b4", "id-b")
    assert made.answers["b4"].leader == "id-b"  # type: ignore[union-attr]


def test_a_static_member_that_is_away_does_not_lead() -> None:
    made = Driver()
    made.join("s", instance_id="i", session_s=1800.0)
    made.join("b")
    made.later(60)
    assert made.answers["b"].leader == "id-b"  # type: ignore[union-attr]
    assert set(made.group.members) == {"id-s", "id-b"}
    assert made.sync("sb", "id-b", 2).code is Code.NONE


def test_leaving() -> None:
    made = stable_pair()
    assert made.group.leave("nobody", None, made.now_s)[0] is Code.UNKNOWN_MEMBER_ID
    code, answers = made.group.leave("id-b", None, made.now_s)
    assert (code, answers, made.group.state) == (Code.NONE, [], State.PREPARING)
    made.take(made.group.leave("id-a", None, made.now_s)[1])
    made.later(0)
    assert (made.group.state, made.group.generation, made.group.leader) == (State.EMPTY, 3, None)


def subscription(*topics: str, generation: int = -1) -> tuple[tuple[str, bytes], ...]:
    """What a consumer says about itself, as Kafka's clients do."""
    made = codec("ConsumerProtocolSubscription", "consumer-protocol")
    return (("range", made.encode(made(topics=topics, generation_id=generation), 2, b"\0\2")),)


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    made = Driver()
    made.join("a", instance_id="one", protocols=subscription("orders", generation=7))
    made.sync("sa", "id-a", 1, id_a=b"A")
    back = made.join("b", instance_id="one", protocols=subscription("orders"))
    assert isinstance(back, Joined)
    assert (back.code, back.generation, back.member_id, back.skip_assignment) == (Code.NONE, 1, "id-b", True)
    assert made.group.state is State.STABLE
    assert made.sync("sb", "id-b", 1) == Synced(Code.NONE, "consumer", "range", b"A")
    assert made.group.heartbeat("id-a", "one", 1, made.now_s) is Code.FENCED_INSTANCE_ID
    changed = made.join("c", instance_id="one", protocols=subscription("orders", "more"))
    assert isinstance(changed, Joined)
    assert changed.generation == 2


def test_wrong_requests_are_refused() -> None:
    made = stable_pair()
    assert made.group.heartbeat("id-a", None, 1, made.now_s) is Code.ILLEGAL_GENERATION
    assert made.sync("x", "id-a", 1).code is Code.ILLEGAL_GENERATION
    other = made.join("y", protocols=(("roundrobin", b""),))
    assert other is not None
    assert other.code is Code.INCONSISTENT_GROUP_PROTOCOL
    connect = made.join("z", protocol_type="connect")
    assert connect is not None
    assert connect.code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert made.group.may_commit("", None, -1, made.now_s) is Code.UNKNOWN_MEMBER_ID
    assert made.group.may_commit("id-a", None, 2, made.now_s) is Code.NONE
    assert Group("empty").may_commit("", None, -1, 0.0) is Code.NONE


@pytest.mark.parametrize("seed", range(40))
def test_random_lives_keep_the_rules(seed: int) -> None:
    """No member is assigned in two generations at once, no request is answered twice, none waits for ever."""
    rng = random.Random(seed)
    made = Driver(first_wait_s=rng.choice((0.0, 0.5)))
    living: set[str] = set()
    asked = 0
    for _ in range(300):
        made.now_s += rng.random()
        group = made.group
        choice = rng.random()
        if choice < 0.2 and len(living) < 6:
            asked += 1
            made.join(f"j{asked}", fresh_id=f"m{asked}")
            living.add(f"m{asked}")
        elif choice < 0.3 and living:
            gone = rng.choice(sorted(living))
            living.discard(gone)
            if rng.random() < 0.5:
                made.take(group.leave(gone, None, made.now_s)[1])
        for member in sorted(living):
            if member not in group.members:
                continue
            known = group.members[member]
            if known.joining is not None or known.syncing is not None:
                continue
            code = group.heartbeat(member, None, group.generation, made.now_s)
            asked += 1
            if code is Code.REBALANCE_IN_PROGRESS:
                made.join(f"j{asked}", member)
            elif group.state is State.COMPLETING:
                all_of_them = {each: each.encode() for each in group.members}
                made.take(group.sync(member, None, group.generation, f"s{asked}", made.now_s, all_of_them))
        made.take(group.tick(made.now_s))
        if group.state is State.STABLE:
            assert group.leader in group.members
            assert {each.assignment for each in group.members.values()} == {
                name.encode() for name in group.members
            }
        due = group.deadline_s()
        assert due is None or due > made.now_s
    for answer in made.answers.values():
        assert answer.code in (Code.NONE, Code.REBALANCE_IN_PROGRESS, Code.UNKNOWN_MEMBER_ID)
    for _ in range(200):
        made.later(5)
    assert made.group.state is State.EMPTY, "nobody is heard of any more"


# -- real clients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_two_consumers_share_and_one_takes_over(broker: Broker, store: Store, assignor: str) -> None:
    """Every record is read once."""
    topic = store.create_topic("orders", 4)
    settings = {"partition.assignment.strategy": assignor}
    found: list[bytes] = []

    def more(*members: Consumer) -> None:
        """Append ten records to each partition and read them."""
        begin = len(found)
        for n in range(begin, begin + 40):
            topic.append(b"%d" % n, partition=n % 4)
        for each in members:
            found.extend(values(each, 40 // len(members)))
            each.commit(asynchronous=False)

    with consumer(broker.bootstrap_servers, **settings) as first:
        until(lambda: partitions_of(first) == {0, 1, 2, 3}, first)
        more(first)
        with consumer(broker.bootstrap_servers, **settings) as second:
            until(lambda: len(partitions_of(first)) == len(partitions_of(second)) == 2, first, second)
            assert partitions_of(first) | partitions_of(second) == {0, 1, 2, 3}
            more(first, second)
        until(lambda: partitions_of(first) == {0, 1, 2, 3}, first)
        more(first)
    assert sorted(map(int, found)) == list(range(120))


def test_what_was_committed_is_where_the_next_one_goes_on(broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders")
    for n in range(10):
        topic.append(b"%d" % n)
    with consumer(broker.bootstrap_servers) as made:
        assert values(made, 4) == [b"0", b"1", b"2", b"3"]
        made.commit(offsets=[TopicPartition("orders", 0, 4, metadata="note")], asynchronous=False)
        [found] = made.committed([TopicPartition("orders", 0)], timeout=WAIT_S)
        assert (found.offset, found.metadata) == (4, "note")
    with consumer(broker.bootstrap_servers) as made:
        assert values(made, 6) == [b"%d" % n for n in range(4, 10)]
    committed = store.groups.offsets.committed("billing", "orders", 0)
    assert committed is not None
    assert (committed.offset, committed.metadata.rstrip("\0")) == (4, "note")  # the client sends C's zero
    with store.consumer("billing", ["orders"], timeout_s=0) as ours:
        assert [record.value for record in ours] == [b"%d" % n for n in range(4, 10)]


def test_a_static_member_keeps_its_partitions(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 2)
    with consumer(broker.bootstrap_servers, **{"group.instance.id": "one"}) as made:
        until(lambda: partitions_of(made) == {0, 1}, made)
        [group] = broker.groups.all()
        generation, member = group.generation, group.static("one")
    assert member is not None, "it does not leave when it is closed"
    with consumer(broker.bootstrap_servers, **{"group.instance.id": "one"}) as made:
        until(lambda: partitions_of(made) == {0, 1}, made)
        assert group.generation == generation


def test_groups_are_listed_described_and_deleted(broker: Broker, store: Store) -> None:
    store.create_topic("orders", 2)
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers, **NO_COMPLAINTS})
    with consumer(broker.bootstrap_servers) as made:
        until(lambda: partitions_of(made) == {0, 1}, made)
        made.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        [listed] = client.list_consumer_groups(request_timeout=WAIT_S).result().valid
        assert (listed.group_id, listed.state.name) == ("billing", "STABLE")
        described = client.describe_consumer_groups(["billing"], request_timeout=WAIT_S)["billing"].result()
        [member] = described.members
        assert {each.partition for each in member.assignment.topic_partitions} == {0, 1}
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            client.delete_consumer_groups(["billing"], request_timeout=WAIT_S)["billing"].result()
    told = client.list_consumer_group_offsets([GroupPartitions("billing")], request_timeout=WAIT_S)
    assert [each.offset for each in told["billing"].result().topic_partitions] == [0]
    client.delete_consumer_groups(["billing"], request_timeout=WAIT_S)["billing"].result()
    assert store.groups.offsets.all() == {}
    assert broker.groups.all() == []
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        client.delete_consumer_groups(["billing"], request_timeout=WAIT_S)["billing"].result()


def test_a_group_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with stratalog.open(tmp_path) as store:
        topic = store.create_topic("orders", 2)
        for n in range(20):
            topic.append(b"%d" % n, partition=n % 2)
    with served(tmp_path, "127.0.0.1:0") as (process, address), consumer(address) as made:
        seen = values(made, 12)
        made.commit(asynchronous=False)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with served(tmp_path, address) as (_, again):
            assert again == address
            seen += values(made, 8)
            assert sorted(seen, key=int) == [b"%d" % n for n in range(20)]
            until(lambda: commits(made), made)
