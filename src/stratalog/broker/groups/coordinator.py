"""All groups of a broker: their requests, their timers, and their records in `__consumer_offsets`.

A group is written when a generation is complete, when a static member comes back and when it becomes empty,
before its members are answered; a broker that starts again reads it and goes on. Committed offsets are the
same that the store's own consumers use.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code
from stratalog.broker.groups.classic import Answers, Group, Join, Joined, Member, State
from stratalog.broker.loop import Timer
from stratalog.errors import CorruptionError, StratalogError
from stratalog.model import Record
from stratalog.store.groups.offsets import OFFSETS_TOPIC, partition_of
from stratalog.wire import records

if TYPE_CHECKING:
    from stratalog.broker.server import Broker, Request

TABLE = "offsets"
VALUE_VERSION = 3
MIN_SESSION_MS, MAX_SESSION_MS = 6_000, 1_800_000
MAX_NAME, MAX_TEXT = 249, 2**15 - 1
GROUP = 0
"""A kind of coordinator; the other one is for transactions."""


class Groups:
    """The groups of one broker; in the loop's thread only, but for `load`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[str, Group] = {}
        self._timer: Timer | None = None

    def load(self) -> None:
        """Read the groups that an earlier run wrote; their members have a session's time to be heard of."""
        store, now_s = self._broker.store, time.monotonic()
        if OFFSETS_TOPIC not in store.partitions.entries:
            return
        kept = store.topic(OFFSETS_TOPIC)
        for partition in range(kept.partitions):
            try:
                for record in kept.read(partition, isolation="read_committed"):
                    try:
                        self._load(record, now_s)
                    except CorruptionError as error:
                        place = f"{OFFSETS_TOPIC}-{partition} at {record.offset}"
                        store.partitions.context.warn(f"{place}: a record is left out: {error}")
            except (StratalogError, OSError) as error:
                store.partitions.context.warn(
                    f"{OFFSETS_TOPIC}-{partition}: its groups are not known: {error}"
                )
        self._set_timer()

    def _load(self, record: Record, now_s: float) -> None:
        if record.key is None:
            return
        kind, key = records.parse_key(TABLE, record.key)
        if kind != "GroupMetadata":
            return
        if record.value is None:
            self._groups.pop(key.group, None)
            return
        value = records.parse_value(TABLE, kind, record.value)
        group = self._groups[key.group] = self._new(key.group)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol, group.leader = value.protocol, value.leader
        for each in value.members:
            group.members[each.member_id] = Member(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout / 1000,
                each.rebalance_timeout / 1000,
                ((value.protocol or "", each.subscription),),
                each.assignment,
                now_s,
            )
        group.state = State.STABLE if group.members else State.EMPTY

    def _new(self, name: str) -> Group:
        return Group(name, self._broker.limits.group_initial_rebalance_delay_ms / 1000)

    def get(self, name: str) -> Group | None:
        """Return a group that is known."""
        return self._groups.get(name)

    def get_or_new(self, name: str) -> Group:
        """Return a group, made if there is none."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = self._new(name)
        return found

    def forget(self, name: str) -> None:
        """Delete a group's record."""
        if self._groups.pop(name, None) is not None:
            self._append(name, None)

    def all(self) -> list[Group]:
        """Return every group, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    # -- what a step of a group brings ---------------------------------------------------------------

    def settle(self, group: Group, answers: Answers) -> None:
        """Write the group if it must be, send the answers, and set the timer."""
        failed = False
        if group.dirty:
            group.dirty = False
            try:
                self._append(group.id, self._packed(group))
            except (StratalogError, OSError, ValueError) as error:
                failed = True
                self._broker.store.partitions.context.warn(f"group {group.id!r} is not written: {error}")
        for ticket, answer in answers:
            if failed and answer.code is Code.NONE:
                answer = answer._replace(code=Code.COORDINATOR_NOT_AVAILABLE)
            ticket(answer)
        self._set_timer()

    def _packed(self, group: Group) -> bytes:
        member = records.struct_of(TABLE, "GroupMetadata", "MemberMetadata")
        return records.pack_value(
            TABLE,
            "GroupMetadata",
            VALUE_VERSION,
            protocol_type=group.protocol_type or "",
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader,
            current_state_timestamp=self._broker.store.partitions.context.clock.now_ms(),
            members=[
                member(
                    member_id=each.id,
                    group_instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    rebalance_timeout=round(each.rebalance_s * 1000),
                    session_timeout=round(each.session_s * 1000),
                    subscription=each.metadata(group.protocol),
                    assignment=each.assignment,
                )
                for each in group.members.values()
            ],
        )

    def _append(self, name: str, value: bytes | None) -> None:
        kept = self._broker.store.groups.offsets.topic_to_write()
        kept.append(
            value,
            records.pack_key(TABLE, "GroupMetadata", group=name),
            partition=partition_of(name, kept.partitions),
        )

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [at for group in self._groups.values() if (at := group.deadline_s()) is not None]
        if times:
            self._timer = self._broker.loop.call_later(max(0.0, min(times) - time.monotonic()), self._tick)

    def _tick(self) -> None:
        now_s = time.monotonic()
        for group in list(self._groups.values()):
            due = group.deadline_s()
            if due is not None and due <= now_s:
                self.settle(group, group.tick(now_s))
        self._set_timer()


# -- requests ------------------------------------------------------------------------------------------------


def find_coordinator(request: Request) -> None:
    """Tell that this broker coordinates every group. Transactions are not served yet."""
    body, broker, made = request.body, request.broker, request.response
    host, port = broker.advertised
    code = Code.NONE if body.key_type == GROUP else Code.COORDINATOR_NOT_AVAILABLE
    where = {"node_id": broker.node_id, "host": host, "port": port}
    if code is not Code.NONE:
        where = {"node_id": -1, "host": "", "port": -1}
    one = made.struct("Coordinator")
    request.answer(
        made(
            error_code=code,
            error_message=None,
            coordinators=[
                one(key=key, error_code=code, error_message=None, **where) for key in body.coordinator_keys
            ],
            **where,
        )
    )


def join_group(request: Request) -> None:
    """Take a member into a group; answered when its next generation begins."""
    body, groups = request.body, request.broker.groups
    code = Code.NONE
    texts = [body.protocol_type, *(each.name for each in body.protocols)]
    if not body.group_id or _is_long(body.group_id):
        code = Code.INVALID_GROUP_ID
    elif len(body.group_instance_id or "") > MAX_NAME or any(map(_is_long, texts)):
        code = Code.INVALID_REQUEST
    elif not MIN_SESSION_MS <= body.session_timeout_ms <= MAX_SESSION_MS:
        code = Code.INVALID_SESSION_TIMEOUT
    elif groups.get(body.group_id) is None and body.member_id:
        code = Code.UNKNOWN_MEMBER_ID
    if code is not Code.NONE:
        _tell_joined(request, Joined(code, body.member_id))
        return
    rebalance_ms = body.rebalance_timeout_ms if request.version >= 1 else body.session_timeout_ms
    name = (body.group_instance_id or request.client_id or "member")[:MAX_NAME]
    wanted = Join(
        body.member_id,
        body.group_instance_id,
        request.client_id or "",
        f"/{request.connection.peer}",
        body.session_timeout_ms / 1000,
        max(0, rebalance_ms) / 1000,
        body.protocol_type,
        tuple((each.name, bytes(each.metadata)) for each in body.protocols),
        request.version >= 4,
        f"{name}-{uuid.uuid4()}",
    )
    group = groups.get_or_new(body.group_id)
    groups.settle(
        group, group.join(wanted, _later(request, partial(_tell_joined, request)), time.monotonic())
    )


def _later(request: Request, tell: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ticket: the step of a group is over, for all its members, before one of them is answered."""
    return lambda answer: request.soon(partial(tell, answer))


def _is_long(text: str) -> bool:
    """Return whether a text fits into new messages only, not into records and old messages."""
    return len(text.encode()) > MAX_TEXT


def _tell_joined(request: Request, answer: Joined) -> None:
    made = request.response
    member = made.struct("JoinGroupResponseMember")
    protocol = answer.protocol
    request.answer(
        made(
            error_code=answer.code,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name="" if protocol is None and request.version < 7 else protocol,
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=[
                member(member_id=each, group_instance_id=instance_id, metadata=metadata)
                for each, instance_id, metadata in answer.members
            ],
        )
    )


def sync_group(request: Request) -> None:
    """Give a member its assignment; answered when the leader has brought it."""
    body, made = request.body, request.response

    def tell(answer: Any) -> None:
        request.answer(
            made(
                error_code=answer.code,
                protocol_type=answer.protocol_type,
                protocol_name=answer.protocol,
                assignment=answer.assignment,
            )
        )

    group = request.broker.groups.get(body.group_id)
    if group is None:
        request.answer(made(error_code=Code.UNKNOWN_MEMBER_ID))
        return
    answers = group.sync(
        body.member_id,
        body.group_instance_id,
        body.generation_id,
        _later(request, tell),
        time.monotonic(),
        {each.member_id: bytes(each.assignment) for each in body.assignments},
        (body.protocol_type, body.protocol_name),
    )
    request.broker.groups.settle(group, answers)


def heartbeat(request: Request) -> None:
    """Note that a member lives."""
    body = request.body
    group = request.broker.groups.get(body.group_id)
    code = Code.UNKNOWN_MEMBER_ID
    if group is not None:
        code = group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, time.monotonic())
    request.answer(request.response(error_code=code))


def leave_group(request: Request) -> None:
    """Remove members from a group."""
    body, made, groups = request.body, request.response, request.broker.groups
    group = groups.get(body.group_id)
    identity = request.api.request.struct("MemberIdentity")
    leaving = body.members if request.version >= 3 else [identity(member_id=body.member_id)]
    one, found, answers = made.struct("MemberResponse"), [], []
    for each in leaving:
        code = Code.UNKNOWN_MEMBER_ID
        if group is not None:
            code, due = group.leave(each.member_id, each.group_instance_id, time.monotonic())
            answers += due
        found.append(one(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code))
    first = found[0].error_code if found and request.version < 3 else Code.NONE
    request.answer(made(error_code=first, members=found))
    if group is not None:
        groups.settle(group, answers)


def list_groups(request: Request) -> None:
    """List every group: those with members, and those that committed something."""
    body, made, groups = request.body, request.response, request.broker.groups
    one = made.struct("ListedGroup")
    states = {each.lower() for each in body.states_filter}
    kinds = {each.lower() for each in body.types_filter}
    known = {group.id: (group.protocol_type or "", group.state.value) for group in groups.all()}

    def then(committed: dict[str, Any] | BaseException) -> None:
        if not isinstance(committed, BaseException):
            for name in committed:
                known.setdefault(name, ("", State.EMPTY.value))
        request.answer(
            made(
                groups=[
                    one(group_id=name, protocol_type=kind, group_state=state, group_type="classic")
                    for name, (kind, state) in sorted(known.items())
                    if (not states or state.lower() in states) and (not kinds or "classic" in kinds)
                ]
            )
        )

    request.off_loop(request.broker.store.groups.offsets.all, then)


def describe_groups(request: Request) -> None:
    """Tell the members of groups and what they are assigned."""
    made = request.response
    one, member = made.struct("DescribedGroup"), made.struct("DescribedGroupMember")

    def described(name: str) -> Any:
        group = request.broker.groups.get(name)
        if group is None:
            code = Code.GROUP_ID_NOT_FOUND if request.version >= 6 else Code.NONE
            return one(error_code=code, group_id=name, group_state=State.DEAD.value)
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

    request.answer(made(groups=[described(name) for name in request.body.groups]))


def delete_groups(request: Request) -> None:
    """Delete groups without members, and what they committed."""
    made, groups = request.response, request.broker.groups
    one = made.struct("DeletableGroupResult")
    offsets = request.broker.store.groups.offsets
    busy = {name for name in request.body.groups_names if (found := groups.get(name)) and found.members}

    def work() -> dict[str, Code]:
        committed, codes = offsets.all(), {}
        for name in request.body.groups_names:
            codes[name] = Code.NON_EMPTY_GROUP if name in busy else Code.GROUP_ID_NOT_FOUND
            if name not in busy and name in committed:
                offsets.forget(name, committed[name])
                codes[name] = Code.NONE
        return codes

    def then(codes: dict[str, Code] | BaseException) -> None:
        found = []
        for name in request.body.groups_names:
            code = Code.COORDINATOR_NOT_AVAILABLE if isinstance(codes, BaseException) else codes[name]
            group = groups.get(name)
            if group is not None and group.members:  # perhaps since the look
                code = Code.NON_EMPTY_GROUP
            elif group is not None:
                groups.forget(name)
                code = Code.NONE if code is Code.GROUP_ID_NOT_FOUND else code
            found.append(one(group_id=name, error_code=code))
        request.answer(made(results=found))

    request.off_loop(work, then)
