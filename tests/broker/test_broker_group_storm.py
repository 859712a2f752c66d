"""Random requests of both group protocols at few groups: each is answered, and a restart knows the same."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Store
from stratalog.broker.groups.consumer import ConsumerGroup
from stratalog.broker.server import Limits
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import Wire, client
from tests.broker.test_broker_consumer_group_clients import commit, id_of
from tests.broker.test_broker_hostile import join_fields

LIMITS = Limits(group_initial_rebalance_delay_ms=0, group_consumer_max_size=4)


class Storm:
    """What a random client may send."""

    def __init__(self, seed: int, store: Store) -> None:
        self.rng = random.Random(seed)
        self.ids = [id_of(store, "a"), id_of(store, "b"), bytes(16), b"x" * 16]
        self.known: list[tuple[str, str, int, str | None]] = [("g0", "", -1, None)]
        """Group, member id, epoch or generation, instance id."""

    def send(self, wire: Wire) -> None:
        self.rng.choice(
            (
                self.beat,
                self.beat,
                self.beat,
                self.join,
                self.leave,
                self.commit,
                self.fetch,
                self.look,
                self.delete,
            )
        )(wire)

    def who(self) -> tuple[str, str, int, str | None]:
        group, member, epoch, instance = self.rng.choice(self.known[-8:])
        if self.rng.random() < 0.2:
            group = f"g{self.rng.randint(0, 2)}"
        if self.rng.random() < 0.2:
            epoch += self.rng.choice((-1, 1, -100))
        return group, member, epoch, instance

    def beat(self, wire: Wire) -> None:
        rng = self.rng
        group, member, epoch, instance = self.who()
        if rng.random() < 0.3:
            group, member = f"g{rng.randint(0, 2)}", f"m{rng.randint(0, 5)}"
            epoch, instance = 0, rng.choice((None, None, "i0", "i1"))
        elif rng.random() < 0.2:
            epoch = rng.choice((-1, -2))
        part = codec("ConsumerGroupHeartbeatRequest").struct("TopicPartitions")
        owned = [part(topic_id=rng.choice(self.ids), partitions=(rng.randint(-1, 3),))]
        fields = {
            "rebalance_timeout_ms": rng.choice((-1, 0, 1000)) if epoch else 1000,
            "subscribed_topic_names": rng.choice((None, (), ("a",), ("b", "b", "none"))),
            "subscribed_topic_regex": rng.choice((None, "", ".*", "[ab]", "(")),
            "server_assignor": rng.choice((None, None, "range", "uniform", "x")),
            "topic_partitions": rng.choice((None, (), owned)) if epoch else (),
        }
        answer = wire.ask(
            "ConsumerGroupHeartbeat", 1, group_id=group, member_id=member, member_epoch=epoch,
            instance_id=instance, **fields,
        )  # fmt: skip
        if not answer.error_code and answer.member_epoch > 0:
            self.known.append((group, answer.member_id, answer.member_epoch, instance))

    def join(self, wire: Wire) -> None:
        """Join alone, or not at all: a second member would make the first answer wait."""
        group = f"g{self.rng.randint(0, 2)}"
        told = wire.ask("DescribeGroups", 5, groups=(group,)).groups[0]
        if told.group_state in ("Empty", "Dead"):
            instance = self.rng.choice((None, "i0"))
            answer = wire.ask("JoinGroup", 5, **join_fields(group, group_instance_id=instance))
            self.known.append((group, answer.member_id, answer.generation_id, instance))

    def leave(self, wire: Wire) -> None:
        group, member, generation, instance = self.who()
        identity = codec("LeaveGroupRequest").struct("MemberIdentity")
        wire.ask("Heartbeat", 3, group_id=group, member_id=member, generation_id=generation)
        members = (identity(member_id=member, group_instance_id=instance),)
        wire.ask("LeaveGroup", 4, group_id=group, members=members)

    def commit(self, wire: Wire) -> None:
        group, member, epoch, _ = self.who()
        commit(wire, member, epoch, group_id=group)

    def fetch(self, wire: Wire) -> None:
        group, member, epoch, _ = self.who()
        asked = codec("OffsetFetchRequest").struct("OffsetFetchRequestGroup")
        groups = (asked(group_id=group, member_id=member, member_epoch=epoch, topics=None),)
        wire.ask("OffsetFetch", 9, groups=groups)

    def look(self, wire: Wire) -> None:
        wire.ask("ListGroups", 5)
        wire.ask("ConsumerGroupDescribe", 1, group_ids=("g0", "g1", "g2"))

    def delete(self, wire: Wire) -> None:
        wire.ask("DeleteGroups", 2, groups_names=(f"g{self.rng.randint(0, 2)}",))


def told(broker: Broker) -> dict[str, Any]:
    """Return what a restart must know of every group."""
    found: dict[str, Any] = {}
    for group in broker.groups.all():
        if isinstance(group, ConsumerGroup):
            members = {
                each.id: (each.epoch, each.previous_epoch, each.step, each.assigned, each.revoking, each.wish)
                for each in group.members.values()
            }
            found[group.id] = group.epoch, group.assignment_epoch, group.topics_hash, members, group.targets
    return found


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_is_answered(store: Store, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    store.create_topic("a", 3)
    store.create_topic("b", 2)
    storm = Storm(seed, store)
    for _ in range(3):
        with (
            caplog.at_level(logging.WARNING),
            stratalog.serve(store, limits=LIMITS) as broker,
            client(broker) as first,
            client(broker) as second,
        ):
            for _ in range(150):
                storm.send(storm.rng.choice((first, second)))
            before = told(broker)
        with stratalog.serve(store, limits=LIMITS) as broker, client(broker) as wire:
            wire.ask("ListGroups", 0)
            again = told(broker)
        assert {name: group for name, group in before.items() if group[3]} == {
            name: group for name, group in again.items() if group[3]
        }
    assert len(storm.known) > 50, "members joined and went on"
    assert not [record for record in caplog.records if "unexpected" in record.getMessage()]
    assert stratalog.verify(store).ok
