"""One consumer group of the newer protocol (KIP-848), as a pure state machine.

A member sends heartbeats: what it subscribes to, and what it owns. The group decides who should have what:

    group epoch        one more with each change of members, subscriptions and topics
    assignment epoch   the group epoch that the target was made for, by an assignor
    member epoch       how far a member has come to its part of the target

A member goes on by itself, in heartbeats, without waiting for the others:

    STABLE ──target changed──► UNREVOKED ──gave up what it had to──► UNRELEASED ──others let go──► STABLE
       └──────────────nothing to give up──────────────────────────────►┘

A partition has one owner: it belongs to its old member until that confirmed in a heartbeat that it gave it
up, left, or has timed out. Only then the next one is assigned it. A member that has to give
something up gets another epoch at once, and confirms in it: so it has had the answer, and does not take
what an earlier one gave it. (In Kafka it keeps its epoch, and a lost answer can leave a partition with two
owners.)

Nothing here waits, reads a clock or touches a socket. `beat` answers at once. ``changed`` names the records
that must be written before the answer is sent. `tick` removes members whose time is up, and `deadline_s` says
when that is.

A lost answer does no harm: a member that comes again with its previous epoch and owns nothing beyond what it
was given goes on from there.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stratalog.broker.codes import Code
from stratalog.broker.groups.assignors import ASSIGNORS, Place, TopicId, Wish

JOIN, LEAVE, LEAVE_STATIC = 0, -1, -2
"""Epochs in a heartbeat that are none."""
RecordName = tuple[str, str]
"""A kind of record, and the member's id or the regular expression in its key."""


class State(enum.Enum):
    """A group's state; Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Step(enum.IntEnum):
    """Where a member is between two targets; Kafka's numbers in records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class Topics(Protocol):
    """The topics there are, as of one moment; another object after a change."""

    def get(self, name: str) -> tuple[TopicId, int] | None:
        """Return a topic's id and how many partitions it has."""

    def matching(self, regex: str) -> Iterable[str]:
        """Return the names that match a regular expression."""


class Beat(NamedTuple):
    """A heartbeat. None: as before."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_s: float | None = None
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    """An empty one takes the last one back."""
    assignor: str | None = None
    owned: frozenset[Place] | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """True if the member says everything anew, and wants to know everything."""
        subscribed = self.topics is not None or self.regex is not None
        return self.epoch == JOIN or (self.rebalance_s is not None and subscribed and self.owned is not None)


class Answer(NamedTuple):
    """The answer of a heartbeat; without an assignment the member keeps the last one."""

    code: Code
    member_id: str
    epoch: int
    assignment: frozenset[Place] | None = None
    message: str | None = None


@dataclass(slots=True)
class Member:
    """A consumer."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignor: str | None = None
    rebalance_s: float = 0.0
    epoch: int = 0
    previous_epoch: int = 0
    step: Step = Step.STABLE
    assigned: dict[Place, int] = field(default_factory=dict)
    """What it may read, each with the epoch in which it got that."""
    revoking: dict[Place, int] = field(default_factory=dict)
    """What it has to give up and did not yet."""
    heard_s: float = 0.0
    revoke_until_s: float | None = None

    @property
    def subscription(self) -> tuple[tuple[str, ...], str | None]:
        """What it subscribes to."""
        return self.topics, self.regex

    @property
    def wish(self) -> tuple[object, ...]:
        """What the target depends on."""
        return self.topics, self.regex, self.assignor

    @property
    def description(self) -> tuple[object, ...]:
        """What else is written about it."""
        return self.rack_id, self.client_id, self.client_host, self.rebalance_s


@dataclass(slots=True)
class ConsumerGroup:
    """One group; see the module."""

    id: str
    session_s: float = 45.0
    max_size: int = 2**31 - 1
    assignors: Sequence[str] = tuple(ASSIGNORS)
    """Those that members may choose; the first one is the default."""
    epoch: int = 0
    topics_hash: int = 0
    """Of the topics that are subscribed to, as they were at the last epoch."""
    assignment_epoch: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    targets: dict[str, frozenset[Place]] = field(default_factory=dict)
    owners: dict[Place, str] = field(default_factory=dict)
    """Who has a partition, also while giving it up."""
    changed: set[RecordName] = field(default_factory=set)
    """Records that are not written yet."""
    looked: Topics | None = None
    """The topics at the last look for changes; None: look again."""
    since_ms: int = -1
    """When it was last written, or read after a restart: an empty group is empty since then."""
    dead: bool = False
    """It is deleted, and so are its records."""

    # -- requests ------------------------------------------------------------------------------------

    def beat(self, beat: Beat, topics: Topics, now_s: float) -> Answer:
        """Take a heartbeat."""
        if beat.epoch in (LEAVE, LEAVE_STATIC):
            return self._leave(beat)
        refused = self._refuse_join(beat) if beat.epoch == JOIN else self._refuse(beat)
        if refused is not None:
            code, why = refused
            return Answer(code, beat.member_id, beat.epoch, message=why)
        member = self._member(beat)
        before, behind = frozenset(member.assigned), beat.epoch != member.epoch
        self._update(member, beat)
        self._look(topics)
        if self.assignment_epoch < self.epoch:
            self._assign(topics)
        owned = beat.owned if beat.epoch != JOIN else frozenset()
        if member.step is not Step.UNREVOKED or self._gave_up(member, beat):
            self._reconcile(member, beat.epoch == JOIN, now_s)
        member.heard_s = now_s
        tell = (
            beat.is_full
            or behind
            or before != member.assigned.keys()
            or (owned is not None and owned != member.assigned.keys())
        )
        return Answer(Code.NONE, member.id, member.epoch, frozenset(member.assigned) if tell else None)

    def may_commit(self, member_id: str, epoch: int) -> Code:
        """Return whether offsets may be committed: by a member, or by anybody while there are none.

        An earlier epoch passes here; `may_commit_at` looks at each partition.
        """
        if epoch < 0 and not self.members:
            return Code.NONE
        member = self.members.get(member_id)
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if 0 <= epoch <= member.epoch else Code.STALE_MEMBER_EPOCH

    def may_commit_at(self, member_id: str, epoch: int, place: Place) -> Code:
        """Return whether one offset may be committed: now, or with an epoch since it has the partition."""
        member = self.members.get(member_id)
        if member is None or epoch == member.epoch:
            return Code.NONE
        since = member.assigned.get(place, member.revoking.get(place))
        return Code.NONE if since is not None and since <= epoch else Code.STALE_MEMBER_EPOCH

    def may_fetch(self, member_id: str | None, epoch: int) -> Code:
        """Return whether offsets may be fetched: by a member in its epoch, or without a member id."""
        if not member_id and epoch < 0:
            return Code.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if member.epoch == epoch else Code.STALE_MEMBER_EPOCH

    # -- time ----------------------------------------------------------------------------------------

    def deadline_s(self) -> float | None:
        """Return when `tick` has something to do next."""
        times = [each.heard_s + self.session_s for each in self.members.values()]
        times += [each.revoke_until_s for each in self.members.values() if each.revoke_until_s is not None]
        return min(times, default=None)

    def tick(self, now_s: float) -> None:
        """Remove members that are not heard of, or did not give up partitions in time."""
        for member in list(self.members.values()):
            late = member.revoke_until_s is not None and member.revoke_until_s <= now_s
            if late or member.heard_s + self.session_s <= now_s:
                self._remove(member)

    # -- what there is -------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """How far the group is with its target."""
        if not self.members:
            return State.EMPTY
        if self.assignment_epoch < self.epoch:
            return State.ASSIGNING
        done = all(
            each.step is Step.STABLE and each.epoch == self.assignment_epoch for each in self.members.values()
        )
        return State.STABLE if done else State.RECONCILING

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        votes = Counter(each.assignor for each in self.members.values() if each.assignor in self.assignors)
        most = max(votes.values(), default=0)
        return min(
            (name for name, count in votes.items() if name and count == most), default=self.assignors[0]
        )

    @property
    def regexes(self) -> set[str]:
        """The regular expressions that members subscribe to."""
        return {each.regex for each in self.members.values() if each.regex}

    def static(self, instance_id: str | None) -> Member | None:
        """Return the member with an instance id."""
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    def subscribed_names(self, topics: Topics) -> frozenset[str]:
        """Return the topics that members subscribe to."""
        found: set[str] = set()
        for each in self.members.values():
            found.update(each.topics)
            if each.regex:
                found.update(topics.matching(each.regex))
        return frozenset(found)

    def restore(self, member: Member, now_s: float) -> None:
        """Take in a member that an earlier run wrote; it has a session's time to be heard of."""
        member.heard_s = now_s
        member.revoke_until_s = now_s + member.rebalance_s if member.revoking else None
        self.members[member.id] = member
        for place in member.assigned.keys() | member.revoking.keys():
            self.owners[place] = member.id

    # -- inside --------------------------------------------------------------------------------------

    def _refuse_join(self, beat: Beat) -> tuple[Code, str] | None:
        known = self.static(beat.instance_id)
        if known is not None and known.id != beat.member_id and known.epoch != LEAVE_STATIC:
            return (
                Code.UNRELEASED_INSTANCE_ID,
                f"the instance {beat.instance_id!r} is used by the member {known.id!r}",
            )
        same = self.members.get(beat.member_id)
        if same is not None and same.instance_id != beat.instance_id:
            return Code.INVALID_REQUEST, f"the member {beat.member_id!r} has another instance id"
        if known is None and same is None and len(self.members) >= self.max_size:
            return (
                Code.GROUP_MAX_SIZE_REACHED,
                f"the group has {len(self.members)} members, which is its most",
            )
        return None

    def _refuse(self, beat: Beat) -> tuple[Code, str] | None:
        """Return why a member cannot go on, if it cannot."""
        refused = self._refuse_stranger(beat)
        if refused is not None:
            return refused
        member = self.members[beat.member_id]
        if beat.epoch == member.epoch:
            return None
        lost = beat.epoch == member.previous_epoch and 0 < beat.epoch < member.epoch
        has = member.assigned.keys() | member.revoking.keys()
        if lost and beat.owned is not None and beat.owned <= has:
            return None
        return (
            Code.FENCED_MEMBER_EPOCH,
            f"the member {member.id!r} has epoch {member.epoch}, not {beat.epoch}; join again",
        )

    def _refuse_stranger(self, beat: Beat) -> tuple[Code, str] | None:
        unknown = Code.UNKNOWN_MEMBER_ID, f"{beat.member_id!r} is no member of the group {self.id!r}"
        known = self.members.get(beat.member_id)
        if beat.instance_id is not None:
            static = self.static(beat.instance_id)
            if static is not None and static is not known:
                return (
                    Code.FENCED_INSTANCE_ID,
                    f"the instance {beat.instance_id!r} is used by the member {static.id!r}",
                )
            return unknown if static is None else None
        return unknown if known is None else None

    def _member(self, beat: Beat) -> Member:
        """Return the member that a heartbeat is of: known, new, or a static one under another id."""
        member = self.members.get(beat.member_id)
        if member is not None:
            if member.epoch == LEAVE_STATIC:
                member.epoch = member.previous_epoch = 0
            return member
        member = Member(beat.member_id, beat.instance_id)
        away = self.static(beat.instance_id)
        if away is not None:
            assigned = away.assigned
            self._drop(away)
            self._own(member, assigned, {})
            member.topics, member.regex, member.assignor = away.topics, away.regex, away.assignor
            self.targets[member.id] = self.targets.pop(away.id, frozenset())
            self.changed.add(("ConsumerGroupTargetAssignmentMember", member.id))
        self.members[member.id] = member
        if away is None:
            self._bump()
        self.changed |= {
            ("ConsumerGroupMemberMetadata", member.id),
            ("ConsumerGroupCurrentMemberAssignment", member.id),
        }
        return member

    def _update(self, member: Member, beat: Beat) -> None:
        """Note what a heartbeat says about its member."""
        before = member.wish, member.description
        if beat.epoch == JOIN:
            member.rack_id, member.assignor = beat.rack_id, None
            member.topics, member.regex = (), None
        if beat.topics is not None:
            member.topics = tuple(sorted(set(beat.topics)))
        if beat.regex is not None:
            member.regex = beat.regex or None
        if beat.assignor is not None:
            member.assignor = beat.assignor
        if beat.rebalance_s is not None:
            member.rebalance_s = beat.rebalance_s
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if before != (member.wish, member.description):
            self.changed.add(("ConsumerGroupMemberMetadata", member.id))
        if before[0] != member.wish:
            self._bump()

    def _leave(self, beat: Beat) -> Answer:
        refused = self._refuse_stranger(beat)
        if refused is not None:
            code, why = refused
            return Answer(code, beat.member_id, beat.epoch, message=why)
        member = self.members[beat.member_id]
        if beat.epoch == LEAVE:
            self._remove(member)
        else:  # a static one that will come back: it keeps its part until its session ends
            self._go(member, LEAVE_STATIC, Step.STABLE, member.assigned, {})
            member.revoke_until_s = None
        return Answer(Code.NONE, beat.member_id, beat.epoch)

    def _remove(self, member: Member) -> None:
        self._drop(member)
        self.targets.pop(member.id, None)
        self._bump()

    def _drop(self, member: Member) -> None:
        self._own(member, {}, {})
        del self.members[member.id]
        self.changed |= {
            ("ConsumerGroupMemberMetadata", member.id),
            ("ConsumerGroupTargetAssignmentMember", member.id),
        }

    def _bump(self) -> None:
        """Begin another epoch, unless the last one has no target yet."""
        if self.epoch == self.assignment_epoch:
            self.epoch += 1
        self.looked = None
        self.changed.add(("ConsumerGroupMetadata", ""))

    @staticmethod
    def _subscribed(member: Member, topics: Topics) -> dict[TopicId, int]:
        """Return the topics of a member, with how many partitions they have."""
        names = {*member.topics, *(topics.matching(member.regex) if member.regex else ())}
        return dict(found for name in names if (found := topics.get(name)) is not None)

    def _look(self, topics: Topics) -> None:
        """Begin another epoch if topics that are subscribed to came, went or grew."""
        if self.looked is topics:
            return
        every: dict[TopicId, int] = {}
        for each in {each.subscription: each for each in self.members.values()}.values():
            every |= self._subscribed(each, topics)
        found = topics_hash(every)
        if found != self.topics_hash:
            self.topics_hash = found
            self._bump()
        self.looked = topics

    def _assign(self, topics: Topics) -> None:
        """Make the target of the group's epoch."""
        every: dict[TopicId, int] = {}
        by_subscription: dict[object, frozenset[TopicId]] = {}
        wishes: dict[str, Wish] = {}
        for each in self.members.values():
            wanted = by_subscription.get(each.subscription)
            if wanted is None:
                found = self._subscribed(each, topics)
                wanted = by_subscription[each.subscription] = frozenset(found)
                every |= found
            wishes[each.id] = Wish(wanted, each.instance_id, self.targets.get(each.id, frozenset()))
        target = ASSIGNORS[self.assignor](wishes, every)
        for name, places in target.items():
            if self.targets.get(name) != places:
                self.changed.add(("ConsumerGroupTargetAssignmentMember", name))
        self.targets = target
        self.assignment_epoch = self.epoch
        self.changed.add(("ConsumerGroupTargetAssignmentMetadata", ""))

    @staticmethod
    def _gave_up(member: Member, beat: Beat) -> bool:
        """Return whether a member had to give partitions up, and did."""
        if beat.epoch == JOIN:
            return True
        told = beat.epoch == member.epoch and beat.owned is not None
        return told and not (beat.owned or frozenset()) & member.revoking.keys()

    def _reconcile(self, member: Member, owns_nothing: bool, now_s: float) -> None:
        """Bring a member closer to its target."""
        if member.step is Step.STABLE and member.epoch == self.assignment_epoch:
            return
        target = self.targets.get(member.id, frozenset())
        kept = {place: since for place, since in member.assigned.items() if place in target}
        lost = {place: since for place, since in member.assigned.items() if place not in target}
        if lost and not owns_nothing:
            self._go(member, member.epoch + 1, Step.UNREVOKED, kept, lost)
            member.revoke_until_s = now_s + member.rebalance_s
            return
        wanted = target - kept.keys()
        free = [place for place in wanted if self.owners.get(place, member.id) == member.id]
        kept |= dict.fromkeys(free, self.assignment_epoch)
        step = Step.UNRELEASED if len(free) < len(wanted) else Step.STABLE
        self._go(member, self.assignment_epoch, step, kept, {})
        member.revoke_until_s = None

    def _go(
        self, member: Member, epoch: int, step: Step, assigned: dict[Place, int], revoking: dict[Place, int]
    ) -> None:
        if (member.epoch, member.step) != (epoch, step):
            self.changed.add(("ConsumerGroupCurrentMemberAssignment", member.id))
        if member.epoch != epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch
        member.step = step
        self._own(member, assigned, revoking)

    def _own(self, member: Member, assigned: Mapping[Place, int], revoking: Mapping[Place, int]) -> None:
        """Set what a member has; what it does not have any more is free."""
        had, has = member.assigned.keys() | member.revoking.keys(), assigned.keys() | revoking.keys()
        for place in had - has:
            if self.owners.get(place) == member.id:
                del self.owners[place]
        for place in has:
            self.owners[place] = member.id
        if (member.assigned, member.revoking) != (assigned, revoking):
            self.changed.add(("ConsumerGroupCurrentMemberAssignment", member.id))
        member.assigned, member.revoking = dict(assigned), dict(revoking)


def topics_hash(topics: Mapping[TopicId, int]) -> int:
    """Return a number that is another one, as good as always, for other topics or numbers of partitions."""
    data = b"".join(name + count.to_bytes(4, "big") for name, count in sorted(topics.items()))
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big", signed=True) if topics else 0
