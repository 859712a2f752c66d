"""All groups of a broker: their requests, their timers, and their records in `__consumer_offsets`.

A step of a group is written before its members are answered; a broker that starts again reads that and goes
on. A group is of the classic protocol or of the newer one (KIP-848); an empty one becomes what its next
member asks for. Committed offsets are the same that the store's own consumers use, but a group has members
in one place: no client joins a group that has consumers in this program, nor the other way round.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import AGAIN_S, Code
from stratalog.broker.groups import records as consumer_records
from stratalog.broker.groups.classic import Answers, Group, Join, Joined, Member, State, Synced
from stratalog.broker.groups.consumer import JOIN, LEAVE, LEAVE_STATIC, Answer, Beat, ConsumerGroup
from stratalog.broker.groups.topics import CatalogTopics
from stratalog.broker.loop import Timer
from stratalog.broker.metadata import INTERNAL
from stratalog.errors import CorruptionError, InvalidArgumentError, StratalogError
from stratalog.model import Record
from stratalog.store.groups.offsets import OFFSETS_TOPIC, partition_of
from stratalog.wire import records

if TYPE_CHECKING:
    from stratalog.broker.server import Broker, Request

TABLE = "offsets"
VALUE_VERSION = 3
MIN_SESSION_MS, MAX_SESSION_MS = 6_000, 1_800_000
MAX_NAME, MAX_TEXT = 249, 2**15 - 1
GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""

AnyGroup = Group | ConsumerGroup


class Groups:
    """The groups of one broker; in the loop's thread only, but for `load`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._groups: dict[str, AnyGroup] = {}
        self._timer: Timer | None = None
        self._due_s = 0.0
        self._topics: CatalogTopics | None = None
        self.being_deleted: Counter[str] = Counter()
        """Groups whose offsets are being deleted. No member may join: its commits would be deleted too."""

    # -- after a restart -----------------------------------------------------------------------------

    def load(self) -> None:
        """Read the groups that an earlier run wrote; their members have a session's time to be heard of."""
        store, now_s = self._broker.store, time.monotonic()
        classic: dict[str, Any] = {}
        newer: dict[str, dict[tuple[str, str], Any]] = {}
        if OFFSETS_TOPIC in store.partitions.entries:
            kept = store.topic(OFFSETS_TOPIC)
            for partition in range(kept.partitions):
                place = f"{OFFSETS_TOPIC}-{partition}"
                try:
                    # Groups are no part of transactions: also those behind an open one are read.
                    for record in kept.read(partition):
                        try:
                            _note(record, classic, newer)
                        except CorruptionError as error:
                            self._warn(f"{place} at {record.offset}: a record is left out: {error}")
                except (StratalogError, OSError) as error:
                    self._warn(f"{place}: its groups are not known: {error}")
        for name, value in classic.items():
            self._groups[name] = self._restored(name, value, now_s)
        for name, rows in newer.items():
            group = self._new_consumer_group(name)
            group.since_ms = self._now_ms
            try:
                if consumer_records.restore(group, rows, now_s):
                    self._groups[name] = group
            except CorruptionError as error:
                self._warn(f"group {name!r} is not known: {error}")
        for name, found in self._groups.items():
            if found.members and not self.claim(name):
                self._warn(
                    f"group {name!r} has consumers in this program: its members of before have to wait"
                )
                found.members.clear()
        self._set_timer()

    def _restored(self, name: str, value: Any, now_s: float) -> Group:
        group = self._new(name)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol, group.leader = value.protocol, value.leader
        group.since_ms = value.current_state_timestamp
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
        return group

    # -- looking up ----------------------------------------------------------------------------------

    def get(self, name: str) -> AnyGroup | None:
        """Return a group that is known, of either kind."""
        return self._groups.get(name)

    def classic(self, name: str) -> Group | None:
        """Return a group of the classic protocol."""
        found = self._groups.get(name)
        return found if isinstance(found, Group) else None

    def all(self) -> list[AnyGroup]:
        """Return every group, by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def states(self) -> Counter[str]:
        """Count groups by state; any thread may ask."""
        return Counter(str(group.state.value) for group in list(self._groups.values()))

    @property
    def topics(self) -> CatalogTopics:
        """The topics there are; the same object until they change."""
        entries = self._broker.store.partitions.entries
        if self._topics is None or self._topics.entries is not entries:
            self._topics = CatalogTopics(entries, INTERNAL)
        return self._topics

    # -- making and deleting -------------------------------------------------------------------------

    def classic_for_join(self, name: str) -> Group | Code:
        """Return a group for a member of the classic protocol, made if need be; or why there is none."""
        found = self._groups.get(name)
        if self.being_deleted[name]:
            return Code.COORDINATOR_NOT_AVAILABLE
        if isinstance(found, ConsumerGroup):
            if found.members:
                return Code.INCONSISTENT_GROUP_PROTOCOL
            if not self.forgotten(name):
                return Code.COORDINATOR_NOT_AVAILABLE
            found = None
        if not self.claim(name):
            return Code.INCONSISTENT_GROUP_PROTOCOL
        if found is None:
            found = self._groups[name] = self._new(name)
        return found

    def consumer_for_join(self, name: str) -> ConsumerGroup | tuple[Code, str]:
        """Return a group for a member of the newer protocol, made if need be; or why there is none."""
        found = self._groups.get(name)
        if self.being_deleted[name]:
            return Code.COORDINATOR_NOT_AVAILABLE, f"the group {name!r} is being deleted"
        if isinstance(found, Group):
            if found.members:
                why = f"the group {name!r} has members of the classic protocol"
                return Code.GROUP_ID_NOT_FOUND, why
            if not self.forgotten(name):
                return Code.COORDINATOR_NOT_AVAILABLE, f"the group {name!r} cannot be written"
            found = None
        if not self.claim(name):
            why = f"the group {name!r} has consumers in the program that serves it"
            return Code.GROUP_ID_NOT_FOUND, why
        if found is None:
            found = self._groups[name] = self._new_consumer_group(name)
        return found

    def forget(self, name: str) -> None:
        """Delete a group that has no members, and its records. If they cannot be written, it stays."""
        group = self._groups.get(name)
        if isinstance(group, ConsumerGroup):
            group.dead = True
            group.changed |= consumer_records.OF_GROUP
            try:
                self._append(name, consumer_records.step_records(group, 0))
            except BaseException:
                group.dead = False
                raise
        elif group is not None:
            self._append(name, [_classic_record(name, None)])
        self._groups.pop(name, None)

    def forgotten(self, name: str) -> bool:
        """Delete a group as `forget` does; return False if its records cannot be written."""
        try:
            self.forget(name)
        except (StratalogError, OSError) as error:
            self._broker.troubles.tell("group", f"group {name!r} is not deleted: {error}")
            return False
        return True

    def claim(self, name: str) -> bool:
        """Keep a group for clients; False if it has consumers in this program."""
        return self._broker.store.groups.claim(name)

    def close(self) -> None:
        """Let programs use the groups again."""
        for name in self._groups:
            self._broker.store.groups.release(name)

    def _new(self, name: str) -> Group:
        return Group(name, self._broker.limits.group_initial_rebalance_delay_ms / 1000)

    def _new_consumer_group(self, name: str) -> ConsumerGroup:
        limits = self._broker.limits
        return ConsumerGroup(
            name,
            limits.group_consumer_session_timeout_ms / 1000,
            limits.group_consumer_max_size,
            limits.group_consumer_assignors,
        )

    # -- offsets -------------------------------------------------------------------------------------

    def may_commit(
        self, name: str, member_id: str, instance_id: str | None, epoch: int, version: int
    ) -> Code:
        """Return whether offsets of a group may be committed, by a member or from outside."""
        group = self._groups.get(name)
        if isinstance(group, ConsumerGroup):
            code = group.may_commit(member_id, epoch)
            return Code.UNSUPPORTED_VERSION if code is Code.NONE and member_id and version < 9 else code
        if group is not None:
            return group.may_commit(member_id, instance_id, epoch, time.monotonic())
        if epoch < 0:
            return Code.UNKNOWN_MEMBER_ID if self._broker.store.groups.members(name) else Code.NONE
        return Code.GROUP_ID_NOT_FOUND if version >= 9 else Code.ILLEGAL_GENERATION

    def may_commit_at(self, name: str, member_id: str, epoch: int, topic_id: bytes, partition: int) -> Code:
        """Return whether one partition's offset may be committed, once the group's may."""
        group = self._groups.get(name)
        if isinstance(group, ConsumerGroup):
            return group.may_commit_at(member_id, epoch, (topic_id, partition))
        return Code.NONE

    def may_fetch(self, name: str, member_id: str | None, epoch: int) -> Code:
        """Return whether a member may fetch the offsets of its group."""
        group = self._groups.get(name)
        return group.may_fetch(member_id, epoch) if isinstance(group, ConsumerGroup) else Code.NONE

    # -- what a step of a group brings ---------------------------------------------------------------

    def settle(self, group: Group, answers: Answers) -> None:
        """Write a classic group if it must be, send the answers, and set the timer."""
        failed = False
        if group.dirty and group.state in (State.STABLE, State.EMPTY):  # else one is written that is not over
            group.dirty = False
            group.since_ms = self._now_ms
            try:
                self._append(group.id, [_classic_record(group.id, group)])
            except (StratalogError, OSError, ValueError) as error:
                failed = group.dirty = True  # before the next answer it is tried again
                self._not_written(group, error)
        for ticket, answer in answers:
            if failed and answer.code is Code.NONE:
                answer = answer._replace(code=Code.COORDINATOR_NOT_AVAILABLE)
                if isinstance(answer, Synced):
                    answer = answer._replace(assignment=b"")
                self._broker.loop.call_later(AGAIN_S, partial(ticket, answer))
            else:
                ticket(answer)
        self._set_timer_for(group)

    def settle_consumer_group(self, group: ConsumerGroup) -> bool:
        """Write what changed in a group; what could not be written is tried again with its next step."""
        written = True
        if group.changed:
            group.since_ms = self._now_ms
            try:
                self._append(group.id, consumer_records.step_records(group, group.since_ms))
                group.changed.clear()
            except (StratalogError, OSError, ValueError) as error:
                written = False
                self._not_written(group, error)
        self._set_timer_for(group)
        return written

    def _append(self, name: str, rows: list[Record]) -> None:
        if rows:
            kept = self._broker.store.groups.offsets.topic_to_write()
            kept.append_many(rows, partition=partition_of(name, kept.partitions))

    @property
    def _now_ms(self) -> int:
        return self._broker.store.partitions.context.clock.now_ms()

    def _not_written(self, group: AnyGroup, error: Exception) -> None:
        self._broker.troubles.tell("group", f"group {group.id!r} is not written: {error}")

    def _warn(self, text: str) -> None:
        self._broker.store.partitions.context.warn(text)

    # -- time ----------------------------------------------------------------------------------------

    def _set_timer_for(self, group: AnyGroup) -> None:
        """Set the timer earlier if a group needs it; one that is too early does no harm."""
        if not group.members:
            self._broker.store.groups.release(group.id)
        due_s = group.deadline_s()
        if due_s is not None and (self._timer is None or due_s < self._due_s):
            self._set_timer_at(due_s)

    def _set_timer(self) -> None:
        times = [at for group in self._groups.values() if (at := group.deadline_s()) is not None]
        if times:
            self._set_timer_at(min(times))

    def _set_timer_at(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        self._timer = self._broker.loop.call_later(max(0.0, due_s - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        for group in list(self._groups.values()):
            due = group.deadline_s()
            if due is None or due > now_s:
                continue
            if isinstance(group, ConsumerGroup):
                group.tick(now_s)
                self.settle_consumer_group(group)
            else:
                self.settle(group, group.tick(now_s))
        self._set_timer()


def _note(record: Record, classic: dict[str, Any], newer: dict[str, dict[tuple[str, str], Any]]) -> None:
    """Note the latest record of each key about groups."""
    if record.key is None:
        return
    found = consumer_records.parse(record)
    if found is not None:
        group, name, value = found
        rows = newer.setdefault(group, {})
        if value is None:
            rows.pop(name, None)
        else:
            rows[name] = value
        return
    kind, key = records.parse_key(TABLE, record.key)
    if kind == "GroupMetadata":
        if record.value is None:
            classic.pop(key.group, None)
        else:
            classic[key.group] = records.parse_value(TABLE, kind, record.value)


def _classic_record(name: str, group: Group | None) -> Record:
    """Return the record of a classic group, or the one that deletes it."""
    key = records.pack_key(TABLE, "GroupMetadata", group=name)
    if group is None:
        return Record(None, key)
    member = records.struct_of(TABLE, "GroupMetadata", "MemberMetadata")
    value = records.pack_value(
        TABLE,
        "GroupMetadata",
        VALUE_VERSION,
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.since_ms,
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
    return Record(value, key)


# -- requests ------------------------------------------------------------------------------------------------


def find_coordinator(request: Request) -> None:
    """Tell that this broker coordinates every group and every transaction."""
    body, broker, made = request.body, request.broker, request.response
    host, port = broker.advertised
    code = Code.NONE if body.key_type in (GROUP, TRANSACTION) else Code.COORDINATOR_NOT_AVAILABLE
    if not 0 <= body.key_type <= 2:
        code = Code.INVALID_REQUEST
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
    group = groups.classic_for_join(body.group_id)
    if isinstance(group, Code):
        _tell_joined(request, Joined(group, body.member_id))
        return
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

    group = request.broker.groups.classic(body.group_id)
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
    group = request.broker.groups.classic(body.group_id)
    code = Code.UNKNOWN_MEMBER_ID
    if group is not None:
        code = group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, time.monotonic())
    request.answer(request.response(error_code=code))


def leave_group(request: Request) -> None:
    """Remove members from a group."""
    body, made, groups = request.body, request.response, request.broker.groups
    group = groups.classic(body.group_id)
    identity = request.api.request.struct("MemberIdentity")
    leaving = body.members if request.version >= 3 else [identity(member_id=body.member_id)]
    one, found, answers = made.struct("MemberResponse"), [], []
    for each in leaving:
        code = Code.UNKNOWN_MEMBER_ID
        if group is not None:
            code, due = group.leave(each.member_id, each.group_instance_id, time.monotonic())
            answers += due
        found.append(one(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code))
    if group is not None:
        groups.settle(group, answers)
    first = found[0].error_code if found and request.version < 3 else Code.NONE
    request.answer(made(error_code=first, members=found))


# -- the newer protocol --------------------------------------------------------------------------------------


def consumer_group_heartbeat(request: Request) -> None:
    """Take a heartbeat of a member: it joins, goes on, or leaves.

    Regular expressions are matched off the loop first: a hostile one takes seconds for thousands of names.
    """
    body, groups = request.body, request.broker.groups
    group, topics = groups.get(body.group_id), groups.topics
    wanted = group.regexes if isinstance(group, ConsumerGroup) else set()
    wanted = {*wanted, body.subscribed_topic_regex or ""} - {""}
    if topics.missing(wanted):

        def matched(error: BaseException | None) -> None:
            if error is None:
                consumer_group_heartbeat(request)
            else:
                failed = Answer(Code.COORDINATOR_NOT_AVAILABLE, body.member_id, body.member_epoch)
                _tell_beat(request, failed)

        request.off_loop(partial(topics.match, wanted), matched)
        return
    refused = _invalid(request)
    if refused is not None:
        _tell_beat(request, Answer(*refused))
        return
    member_id = body.member_id or str(uuid.uuid4())
    leaves = body.member_epoch in (LEAVE, LEAVE_STATIC)
    if body.member_epoch == JOIN:
        found = groups.consumer_for_join(body.group_id)
    elif isinstance(group, ConsumerGroup):
        found = group
    else:
        found = Code.GROUP_ID_NOT_FOUND, f"there is no consumer group {body.group_id!r}"
    if not isinstance(found, ConsumerGroup):
        code, why = found
        _tell_beat(request, Answer(code, member_id, body.member_epoch, message=why))
        return
    group = found
    owned = body.topic_partitions
    answer = group.beat(
        Beat(
            member_id,
            body.member_epoch,
            body.instance_id,
            body.rack_id,
            None if body.rebalance_timeout_ms < 0 else body.rebalance_timeout_ms / 1000,
            body.subscribed_topic_names,
            body.subscribed_topic_regex,
            body.server_assignor,
            None
            if owned is None
            else frozenset((each.topic_id, number) for each in owned for number in each.partitions),
            request.client_id or "",
            f"/{request.connection.peer}",
        ),
        topics,
        time.monotonic(),
    )
    if not groups.settle_consumer_group(group) and answer.code is Code.NONE:
        answer = Answer(Code.COORDINATOR_NOT_AVAILABLE, member_id, body.member_epoch)
        request.later(AGAIN_S, partial(_tell_beat, request, answer, leaves))
        return
    _tell_beat(request, answer, leaves)


def _invalid(request: Request) -> tuple[Code, str, int, None, str] | None:
    """Return what is wrong with a heartbeat by itself."""
    body, limits = request.body, request.broker.limits
    joins = body.member_epoch == JOIN
    texts = (body.group_id, body.member_id, body.instance_id or "", body.rack_id or "")
    code, why = Code.INVALID_REQUEST, ""
    if not body.group_id:
        why = "the group id is empty"
    elif any(map(_is_long, (*texts, *(body.subscribed_topic_names or ())))):
        why = f"a text is longer than {MAX_TEXT} bytes"
    elif not body.member_id and (request.version >= 1 or not joins):
        why = "the member id is empty"
    elif body.instance_id == "" or body.rack_id == "":
        why = "the instance id or the rack id is empty"
    elif body.member_epoch < LEAVE_STATIC:
        why = f"the member epoch is {body.member_epoch}"
    elif body.member_epoch == LEAVE_STATIC and body.instance_id is None:
        why = "a member without an instance id leaves for good"
    elif joins and body.rebalance_timeout_ms < 0:
        why = "a member that joins says its rebalance timeout"
    elif joins and body.topic_partitions:
        why = "a member that joins owns no partitions"
    elif joins and body.subscribed_topic_names is None and not body.subscribed_topic_regex:
        why = "a member that joins subscribes to topics"
    elif body.server_assignor is not None and body.server_assignor not in limits.group_consumer_assignors:
        known = ", ".join(limits.group_consumer_assignors)
        code, why = Code.UNSUPPORTED_ASSIGNOR, f"the assignors are {known}, not {body.server_assignor!r}"
    elif body.subscribed_topic_regex:
        try:
            request.broker.groups.topics.matching(body.subscribed_topic_regex)
        except InvalidArgumentError as error:
            code, why = Code.INVALID_REGULAR_EXPRESSION, str(error)
    return (code, body.member_id, body.member_epoch, None, why) if why else None


def _tell_beat(request: Request, answer: Answer, leaves: bool = False) -> None:
    made = request.response
    part = made.struct("TopicPartitions")
    assignment = None
    if answer.assignment is not None:
        topics = consumer_records.by_topic(answer.assignment)
        assignment = made.struct("Assignment")(
            topic_partitions=[part(topic_id=topic, partitions=numbers) for topic, numbers in topics.items()]
        )
    good = answer.code is Code.NONE
    interval_ms = request.broker.limits.group_consumer_heartbeat_interval_ms
    request.answer(
        made(
            error_code=answer.code,
            error_message=answer.message,
            member_id=answer.member_id if good else None,
            member_epoch=answer.epoch if good else 0,
            heartbeat_interval_ms=interval_ms if good and not leaves else 0,
            assignment=assignment,
        )
    )
