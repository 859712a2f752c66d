"""What groups there are, of both protocols: listed, described, deleted."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code
from stratalog.broker.groups.assignors import Place
from stratalog.broker.groups.classic import Group, State
from stratalog.broker.groups.consumer import ConsumerGroup
from stratalog.broker.groups.records import by_topic

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from stratalog.broker.server import Request

CLASSIC, CONSUMER = "classic", "consumer"
DEAD = State.DEAD.value
NEWER_MEMBER = 1
"""A type of member; 0 is one of the classic protocol in a group of the newer one."""


def list_groups(request: Request) -> None:
    """List every group: those with members, and those that committed something."""
    body, made, groups = request.body, request.response, request.broker.groups
    one = made.struct("ListedGroup")
    states = {each.lower() for each in body.states_filter}
    kinds = {each.lower() for each in body.types_filter}
    known = {group.id: _listed(group) for group in groups.all()}

    def then(committed: dict[str, Any] | BaseException) -> None:
        if not isinstance(committed, BaseException):
            for name in committed:
                known.setdefault(name, ("", State.EMPTY.value, CLASSIC))
        request.answer(
            made(
                groups=[
                    one(group_id=name, protocol_type=protocol, group_state=state, group_type=kind)
                    for name, (protocol, state, kind) in sorted(known.items())
                    if (not states or state.lower() in states) and (not kinds or kind in kinds)
                ]
            )
        )

    request.off_loop(request.broker.store.groups.offsets.all, then)


def _listed(group: Group | ConsumerGroup) -> tuple[str, str, str]:
    if isinstance(group, ConsumerGroup):
        return CONSUMER, group.state.value, CONSUMER
    return group.protocol_type or "", group.state.value, CLASSIC


def describe_groups(request: Request) -> None:
    """Tell the members of groups of the classic protocol and what they are assigned."""
    made = request.response
    one, member = made.struct("DescribedGroup"), made.struct("DescribedGroupMember")

    def described(name: str, committed: Container[str]) -> Any:
        group = request.broker.groups.classic(name)
        if group is None and request.broker.groups.get(name) is None and name in committed:
            return one(group_id=name, group_state=State.EMPTY.value)
        if group is None:
            code = Code.GROUP_ID_NOT_FOUND if request.version >= 6 else Code.NONE
            return one(error_code=code, group_id=name, group_state=DEAD)
        stable = group.state is State.STABLE
        return one(
            group_id=name,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if stable else "",
            members=[
                member(
                    member_id=each.id,
                    group_instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    member_metadata=each.metadata(group.protocol) if stable else b"",
                    member_assignment=each.assignment if stable else b"",
                )
                for each in group.members.values()
            ],
        )

    def then(committed: dict[str, Any] | BaseException) -> None:
        known = () if isinstance(committed, BaseException) else committed
        request.answer(made(groups=[described(name, known) for name in dict.fromkeys(request.body.groups)]))

    if all(request.broker.groups.get(name) is not None for name in request.body.groups):
        then({})
    else:
        request.off_loop(partial(request.broker.store.groups.offsets.all, request.body.groups), then)


def delete_groups(request: Request) -> None:
    """Delete groups without members, and what they committed."""
    made, groups = request.response, request.broker.groups
    one = made.struct("DeletableGroupResult")
    offsets = request.broker.store.groups.offsets
    names = list(dict.fromkeys(request.body.groups_names))
    busy = {name for name in names if (found := groups.get(name)) and found.members}
    groups.being_deleted.update(names)

    def work() -> dict[str, Code]:
        committed, codes = offsets.places(names), {}
        for name in names:
            codes[name] = Code.NON_EMPTY_GROUP if name in busy else Code.GROUP_ID_NOT_FOUND
            if name not in busy and name in committed:
                offsets.forget(name, dict.fromkeys(sorted(committed[name])))
                codes[name] = Code.NONE
        return codes

    def then(codes: dict[str, Code] | BaseException) -> None:
        found = []
        groups.being_deleted -= Counter(names)
        for name in names:
            code = Code.COORDINATOR_NOT_AVAILABLE if isinstance(codes, BaseException) else codes[name]
            group = groups.get(name)
            if group is not None and group.members:  # perhaps since the look
                code = Code.NON_EMPTY_GROUP
            elif group is not None:
                if not groups.forgotten(name):
                    code = Code.COORDINATOR_NOT_AVAILABLE
                code = Code.NONE if code is Code.GROUP_ID_NOT_FOUND else code
            found.append(one(group_id=name, error_code=code))
        request.answer(made(results=found))

    request.off_loop(work, then)


def consumer_group_describe(request: Request) -> None:
    """Tell the members of groups of the newer protocol, what they have and what they should have."""
    made, groups = request.response, request.broker.groups
    one, member = made.struct("DescribedGroup"), made.struct("Member")
    names = {
        entry.id.bytes: name
        for name, entry in request.broker.store.partitions.entries.items()
        if entry.id is not None
    }

    def assignment(places: Iterable[Place]) -> Any:
        part = made.struct("TopicPartitions")
        return made.struct("Assignment")(
            topic_partitions=[
                part(topic_id=topic, topic_name=names[topic], partitions=numbers)
                for topic, numbers in by_topic(places).items()
                if topic in names
            ]
        )

    def described(name: str) -> Any:
        group = groups.get(name)
        if not isinstance(group, ConsumerGroup):
            why = f"there is no consumer group {name!r}"
            return one(error_code=Code.GROUP_ID_NOT_FOUND, error_message=why, group_id=name, group_state=DEAD)
        return one(
            group_id=name,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor,
            members=[
                member(
                    member_id=each.id,
                    instance_id=each.instance_id,
                    rack_id=each.rack_id,
                    member_epoch=each.epoch,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    subscribed_topic_names=each.topics,
                    subscribed_topic_regex=each.regex,
                    assignment=assignment(each.assigned),
                    target_assignment=assignment(group.targets.get(each.id, ())),
                    member_type=NEWER_MEMBER,
                )
                for each in group.members.values()
            ],
        )

    request.answer(made(groups=[described(name) for name in dict.fromkeys(request.body.group_ids)]))
