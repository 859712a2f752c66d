"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's schemas.

One step of a group is one batch of records. A restart reads the latest record of each key and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stratalog.broker.groups.assignors import Place
from stratalog.broker.groups.consumer import ConsumerGroup, Member, RecordName, Step
from stratalog.errors import CorruptionError
from stratalog.model import Record
from stratalog.wire import records as wire

TABLE = "offsets"
GROUP, MEMBER = "ConsumerGroupMetadata", "ConsumerGroupMemberMetadata"
TARGET, TARGET_MEMBER = "ConsumerGroupTargetAssignmentMetadata", "ConsumerGroupTargetAssignmentMember"
CURRENT = "ConsumerGroupCurrentMemberAssignment"
ORDER = (MEMBER, GROUP, TARGET_MEMBER, TARGET, CURRENT)
"""Kafka reads them in this order; those that delete come before, and the other way round."""
OF_MEMBERS = (MEMBER, TARGET_MEMBER, CURRENT)
OF_GROUP: frozenset[RecordName] = frozenset({(GROUP, ""), (TARGET, "")})
"""The records of a group without members."""


def step_records(group: ConsumerGroup, now_ms: int) -> list[Record]:
    """Return the records of everything that changed in a group."""
    names = sorted(group.changed, key=lambda name: (ORDER.index(name[0]), name[1]))
    made = [(name, _value(group, name, now_ms)) for name in names]
    gone = [Record(None, _key(group, name)) for name, value in reversed(made) if value is None]
    return gone + [Record(value, _key(group, name)) for name, value in made if value is not None]


def parse(record: Record) -> tuple[str, RecordName, Any] | None:
    """Return a record's group, its name, and its fields or None; None if it is about something else."""
    kind, key = wire.parse_key(TABLE, record.key or b"")
    if kind not in ORDER:
        return None
    value = None if record.value is None else wire.parse_value(TABLE, kind, record.value)
    return key.group_id, (kind, key.member_id if kind in OF_MEMBERS else ""), value


def restore(group: ConsumerGroup, found: Mapping[RecordName, Any], now_s: float) -> bool:
    """Fill a new group from the latest records of it; return whether there is such a group."""
    about = found.get((GROUP, ""))
    if about is None:
        return False
    group.epoch, group.topics_hash = about.epoch, about.metadata_hash
    target = found.get((TARGET, ""))
    group.assignment_epoch = 0 if target is None else target.assignment_epoch
    for (kind, name), value in found.items():
        if kind != MEMBER:
            continue
        member = Member(
            name,
            value.instance_id,
            value.rack_id,
            value.client_id,
            value.client_host,
            tuple(value.subscribed_topic_names),
            value.subscribed_topic_regex or None,
            value.server_assignor,
            value.rebalance_timeout_ms / 1000,
        )
        current = found.get((CURRENT, name))
        if current is not None:
            member.epoch, member.previous_epoch = current.member_epoch, current.previous_member_epoch
            try:
                member.step = Step(current.state)
            except ValueError:
                raise CorruptionError(f"a member in state {current.state}") from None
            member.assigned = _epochs(current.assigned_partitions, current.member_epoch)
            member.revoking = _epochs(current.partitions_pending_revocation, current.member_epoch)
        group.restore(member, now_s)
        planned = found.get((TARGET_MEMBER, name))
        if planned is not None:
            group.targets[name] = frozenset(
                (each.topic_id, number) for each in planned.topic_partitions for number in each.partitions
            )
    group.changed.clear()
    return True


def by_topic(places: Iterable[Place]) -> dict[bytes, list[int]]:
    """Return the numbers of partitions of each topic, in order."""
    found: dict[bytes, list[int]] = {}
    for topic, number in sorted(places):
        found.setdefault(topic, []).append(number)
    return found


def _epochs(topics: Any, otherwise: int) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for each in topics:
        epochs = each.assignment_epochs or [otherwise] * len(each.partitions)
        if len(epochs) != len(each.partitions):
            raise CorruptionError(f"{len(epochs)} epochs of {len(each.partitions)} partitions")
        found |= {(each.topic_id, number): at for number, at in zip(each.partitions, epochs, strict=True)}
    return found


def _key(group: ConsumerGroup, name: RecordName) -> bytes:
    kind, member = name
    more = {"member_id": member} if kind in OF_MEMBERS else {}
    return wire.pack_key(TABLE, kind, group_id=group.id, **more)


def _value(group: ConsumerGroup, name: RecordName, now_ms: int) -> bytes | None:
    """Return the value of a record as the group is now; None if it must be deleted."""
    kind, member_id = name
    fields: dict[str, Any]
    if kind in (GROUP, TARGET):
        if group.dead:
            return None
        if kind == GROUP:
            fields = {"epoch": group.epoch, "metadata_hash": group.topics_hash}
        else:
            fields = {"assignment_epoch": group.assignment_epoch, "assignment_timestamp": now_ms}
        return wire.pack_value(TABLE, kind, 0, **fields)
    member = group.members.get(member_id)
    if member is None:
        return None
    if kind == MEMBER:
        fields = {
            "instance_id": member.instance_id,
            "rack_id": member.rack_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "subscribed_topic_names": member.topics,
            "subscribed_topic_regex": member.regex,
            "rebalance_timeout_ms": round(member.rebalance_s * 1000),
            "server_assignor": member.assignor,
        }
    elif kind == TARGET_MEMBER:
        part = wire.struct_of(TABLE, kind, "TopicPartition")
        places = by_topic(group.targets.get(member_id, ()))
        fields = {"topic_partitions": [part(topic_id=topic, partitions=at) for topic, at in places.items()]}
    else:
        fields = {
            "member_epoch": member.epoch,
            "previous_member_epoch": member.previous_epoch,
            "state": member.step,
            "assigned_partitions": _packed(member.assigned),
            "partitions_pending_revocation": _packed(member.revoking),
        }
    return wire.pack_value(TABLE, kind, 0, **fields)


def _packed(places: Mapping[Place, int]) -> list[Any]:
    part = wire.struct_of(TABLE, CURRENT, "TopicPartitions")
    return [
        part(topic_id=topic, partitions=numbers, assignment_epochs=[places[topic, each] for each in numbers])
        for topic, numbers in by_topic(places).items()
    ]
