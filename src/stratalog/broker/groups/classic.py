"""One consumer group of the classic protocol, as a pure state machine.

    EMPTY ──join──► PREPARING ──all joined, or time is up──► COMPLETING ──leader synced──► STABLE
                        ▲                                        │                            │
                        └──── a member joins anew, leaves or is not heard of any more ────────┘

Nothing here waits, reads a clock or touches a socket. A caller passes tickets for requests that are answered
later; every method returns the answers that are due now, as (ticket, answer). ``dirty`` says that the group
must be written before they are sent. `tick` does what is due by time, and `deadline_s` says when that is.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stratalog.broker.codes import Code
from stratalog.wire.messages import codec

CONSUMER_PROTOCOL = "consumer"

Ticket = Any


class State(enum.Enum):
    """Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Joined(NamedTuple):
    """The answer of a join. Only the leader gets ``members``: id, instance id and metadata of each."""

    code: Code
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer of a sync."""

    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


Answer = Joined | Synced
Answers = list[tuple[Ticket, Answer]]


@dataclass(slots=True)
class Member:
    """A consumer. It is heard of with every request; ``joining`` and ``syncing`` are requests that wait."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    heard_s: float = 0.0
    joining: Ticket | None = None
    syncing: Ticket | None = None

    @property
    def waits(self) -> bool:
        """True while a request of the member waits: it cannot send a heartbeat behind it."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return what the member says about itself under a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def topics(self) -> frozenset[str] | None:
        """Return the topics that a consumer reads, by all its protocols; None if it does not say so."""
        made = codec("ConsumerProtocolSubscription", "consumer-protocol")
        found: set[str] = set()
        for _, data in self.protocols:
            try:
                version = min(int.from_bytes(data[:2], "big"), made.versions.high)
                found.update(made.decode(data, version, 2)[0].topics)
            except ValueError:
                return None
        return frozenset(found)


class Join(NamedTuple):
    """A request to join."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_id: bool
    """The client accepts a member id and joins again with it (KIP-394)."""
    fresh_id: str
    """An id for a member that has none."""


@dataclass(slots=True)
class Group:
    """One group; see the module."""

    id: str
    first_wait_s: float = 0.0
    """How long the first member of an empty group waits for others."""
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    promised: dict[str, float] = field(default_factory=dict)
    """Ids that were given out, and until when they may be used."""
    rebalance_until_s: float = 0.0
    """When those are removed who have not joined again, or not synced."""
    not_before_s: float = 0.0
    """A group that was empty waits until then for more members."""
    since_ms: int = -1
    """When it was last written: an empty group is empty since then."""
    dirty: bool = False

    # -- requests ------------------------------------------------------------------------------------

    def join(self, wanted: Join, ticket: Ticket, now_s: float) -> Answers:
        """Take a member in, or again; the answer comes when the group is complete."""
        if not self._fits(wanted):
            return [(ticket, Joined(Code.INCONSISTENT_GROUP_PROTOCOL, wanted.member_id))]
        known = self.static(wanted.instance_id)
        if not wanted.member_id:
            if known is not None:
                return self._replace(known, wanted, ticket, now_s)
            if wanted.instance_id is None and wanted.needs_id:
                self.promised[wanted.fresh_id] = now_s + wanted.session_s
                return [(ticket, Joined(Code.MEMBER_ID_REQUIRED, wanted.fresh_id))]
            return self._add(wanted.fresh_id, wanted, ticket, now_s)
        if wanted.member_id in self.promised:
            return self._add(wanted.member_id, wanted, ticket, now_s)
        code = self._check(wanted.member_id, wanted.instance_id)
        if code is not Code.NONE:
            return [(ticket, Joined(code, wanted.member_id))]
        member = self.members[wanted.member_id]
        member.heard_s = now_s
        same = member.protocols == wanted.protocols
        if same and (
            self.state is State.COMPLETING or (self.state is State.STABLE and member.id != self.leader)
        ):
            return [(ticket, self._joined(member))]
        answers: Answers = []
        if member.joining is not None:
            answers.append((member.joining, Joined(Code.REBALANCE_IN_PROGRESS, member.id)))
        member.protocols, member.joining = wanted.protocols, ticket
        member.session_s, member.rebalance_s = wanted.session_s, wanted.rebalance_s
        return answers + self._rebalance(now_s)

    def sync(
        self, member_id: str, instance_id: str | None, generation: int, ticket: Ticket, now_s: float,
        assignments: dict[str, bytes], protocol: tuple[str | None, str | None] = (None, None),
    ) -> Answers:  # fmt: skip
        """Give a member its assignment; the leader brings those of all."""
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE and any(
            asked is not None and asked != mine
            for asked, mine in zip(protocol, (self.protocol_type, self.protocol), strict=True)
        ):
            code = Code.INCONSISTENT_GROUP_PROTOCOL
        if code is Code.NONE and self.state is State.PREPARING:
            code = Code.REBALANCE_IN_PROGRESS
        if code is not Code.NONE:
            return [(ticket, Synced(code))]
        member = self.members[member_id]
        member.heard_s = now_s
        if self.state is State.STABLE:
            return [(ticket, self._synced(member))]
        answers: Answers = []
        if member.syncing is not None:
            answers.append((member.syncing, Synced(Code.REBALANCE_IN_PROGRESS)))
        member.syncing = ticket
        if member_id != self.leader:
            return answers
        self.state, self.dirty = State.STABLE, True
        for each in self.members.values():
            each.assignment = assignments.get(each.id, b"")
        for each in self.members.values():
            if each.syncing is not None:
                answers.append((each.syncing, self._synced(each)))
                each.syncing, each.heard_s = None, now_s
        return answers

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_s: float) -> Code:
        """Note that a member lives; tell it to join again while the group is being rebalanced."""
        code = self._check(member_id, instance_id, generation)
        if code is not Code.NONE:
            return code
        self.members[member_id].heard_s = now_s
        return Code.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else Code.NONE

    def leave(self, member_id: str, instance_id: str | None, now_s: float) -> tuple[Code, Answers]:
        """Remove a member, by its id or, a static one, by its instance id alone."""
        if instance_id is not None and not member_id:
            known = self.static(instance_id)
            member_id = "" if known is None else known.id
        if self.promised.pop(member_id, None) is not None:
            return Code.NONE, self._complete_if_all(now_s)
        code = self._check(member_id, instance_id)
        return (code, []) if code is not Code.NONE else (code, self._remove(member_id, now_s))

    def may_commit(self, member_id: str, instance_id: str | None, generation: int, now_s: float) -> Code:
        """Return whether offsets may be committed: by a member, or by anybody while there are none."""
        if generation < 0 and not self.members and not member_id:
            return Code.NONE
        code = self._check(member_id, instance_id, generation)
        if code is Code.NONE:
            self.members[member_id].heard_s = now_s
            return Code.REBALANCE_IN_PROGRESS if self.state is State.COMPLETING else code
        return code

    # -- time ----------------------------------------------------------------------------------------

    def deadline_s(self) -> float | None:
        """Return when `tick` has something to do next."""
        times = list(self.promised.values())
        times += [each.heard_s + each.session_s for each in self.members.values() if not each.waits]
        if self.state in (State.PREPARING, State.COMPLETING):
            times.append(self.rebalance_until_s)
        return min(times, default=None)

    def tick(self, now_s: float) -> Answers:
        """Remove members that are not heard of any more; end a rebalance whose time is up."""
        answers: Answers = []
        self.promised = {name: until for name, until in self.promised.items() if until > now_s}
        for member in list(self.members.values()):
            if not member.waits and member.heard_s + member.session_s <= now_s:
                answers += self._remove(member.id, now_s)
        if self.state is State.COMPLETING and self.rebalance_until_s <= now_s:
            for member in [each for each in self.members.values() if each.syncing is None]:
                answers += self._forget(member)
            answers += self._rebalance(now_s)
        if self.state is State.PREPARING:
            if self.rebalance_until_s <= now_s:
                for member in list(self.members.values()):
                    if member.joining is None and member.instance_id is None:
                        answers += self._forget(member)
                answers += self._complete(now_s)
            else:
                answers += self._complete_if_all(now_s)
        return answers

    # -- inside --------------------------------------------------------------------------------------

    def static(self, instance_id: str | None) -> Member | None:
        """Return the member with an instance id."""
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    def _check(self, member_id: str, instance_id: str | None, generation: int | None = None) -> Code:
        known = self.static(instance_id)
        if instance_id is not None and (known is None or known.id != member_id):
            return Code.UNKNOWN_MEMBER_ID if known is None else Code.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        if generation is not None and generation != self.generation:
            return Code.ILLEGAL_GENERATION
        return Code.NONE

    def _fits(self, wanted: Join) -> bool:
        """Return whether all members would have a protocol in common."""
        if not wanted.protocol_type or not wanted.protocols:
            return False
        others = [each for each in self.members.values() if each.id != wanted.member_id]
        if wanted.instance_id is not None:
            others = [each for each in others if each.instance_id != wanted.instance_id]
        if not others:
            return True
        common = set.intersection(*({name for name, _ in each.protocols} for each in others))
        return wanted.protocol_type == self.protocol_type and bool(
            common & {name for name, _ in wanted.protocols}
        )

    def _add(self, member_id: str, wanted: Join, ticket: Ticket, now_s: float) -> Answers:
        self.promised.pop(member_id, None)
        if not self.members:
            self.protocol_type = wanted.protocol_type
        self.members[member_id] = Member(
            member_id,
            wanted.instance_id,
            wanted.client_id,
            wanted.client_host,
            wanted.session_s,
            wanted.rebalance_s,
            wanted.protocols,
            heard_s=now_s,
            joining=ticket,
        )
        return self._rebalance(now_s)

    def _replace(self, known: Member, wanted: Join, ticket: Ticket, now_s: float) -> Answers:
        """Take a static member in again under a new id, with its assignment if it reads the same topics.

        What else it says about itself (partitions it had, its last generation) differs after every restart.
        """
        answers = self._fenced(known)
        del self.members[known.id]
        before = known.topics()
        known.id, known.protocols, known.heard_s = wanted.fresh_id, wanted.protocols, now_s
        known.session_s, known.rebalance_s = wanted.session_s, wanted.rebalance_s
        led = self.leader is not None and self.leader not in self.members
        self.members[known.id] = known
        if led:
            self.leader = known.id
        if self.state is State.STABLE and self._choose() == self.protocol and known.topics() == before:
            self.dirty = True
            return [*answers, (ticket, self._joined(known)._replace(skip_assignment=led))]
        known.joining = ticket
        return answers + self._rebalance(now_s)

    @staticmethod
    def _fenced(member: Member) -> Answers:
        answers: Answers = []
        if member.joining is not None:
            answers.append((member.joining, Joined(Code.FENCED_INSTANCE_ID, member.id)))
        if member.syncing is not None:
            answers.append((member.syncing, Synced(Code.FENCED_INSTANCE_ID)))
        member.joining = member.syncing = None
        return answers

    def _rebalance(self, now_s: float) -> Answers:
        """Ask every member to join again, unless that is under way."""
        answers: Answers = []
        if self.state is not State.PREPARING:
            first = self.state is State.EMPTY
            for each in self.members.values():
                if each.syncing is not None:
                    answers.append((each.syncing, Synced(Code.REBALANCE_IN_PROGRESS)))
                    each.syncing = None
            self.state = State.PREPARING
            longest = max((each.rebalance_s for each in self.members.values()), default=0.0)
            self.rebalance_until_s = now_s + (self.first_wait_s if first else longest)
            self.not_before_s = self.rebalance_until_s if first else now_s
        return answers + self._complete_if_all(now_s)

    def _complete_if_all(self, now_s: float) -> Answers:
        if self.state is not State.PREPARING or now_s < self.not_before_s:
            return []
        if any(each.joining is None for each in self.members.values()) or (self.promised and self.members):
            return []
        return self._complete(now_s)

    def _complete(self, now_s: float) -> Answers:
        """Begin the next generation with the members that are here."""
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader, self.dirty = State.EMPTY, None, None, True
            return []
        self.protocol = self._choose()
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:  # a static member may be away, and would never sync
            here = (each.id for each in self.members.values() if each.joining is not None)
            self.leader = next(here, next(iter(self.members)))
        self.state = State.COMPLETING
        self.rebalance_until_s = now_s + max(each.rebalance_s for each in self.members.values())
        answers: Answers = []
        for each in self.members.values():
            each.heard_s = now_s
            if each.joining is not None:
                answers.append((each.joining, self._joined(each)))
                each.joining = None
        return answers

    def _choose(self) -> str | None:
        """Return the protocol that most members prefer among those that all have."""
        common = set.intersection(*({name for name, _ in each.protocols} for each in self.members.values()))
        votes = Counter(
            next(name for name, _ in each.protocols if name in common) for each in self.members.values()
        ) if common else Counter()  # fmt: skip
        return votes.most_common(1)[0][0] if votes else None

    def _joined(self, member: Member) -> Joined:
        everybody: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.id == self.leader:
            everybody = tuple(
                (each.id, each.instance_id, each.metadata(self.protocol)) for each in self.members.values()
            )
        return Joined(
            Code.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            everybody,
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(Code.NONE, self.protocol_type, self.protocol, member.assignment)

    def _forget(self, member: Member) -> Answers:
        answers: Answers = []
        if member.joining is not None:
            answers.append((member.joining, Joined(Code.UNKNOWN_MEMBER_ID, member.id)))
        if member.syncing is not None:
            answers.append((member.syncing, Synced(Code.UNKNOWN_MEMBER_ID)))
        del self.members[member.id]
        return answers

    def _remove(self, member_id: str, now_s: float) -> Answers:
        answers = self._forget(self.members[member_id])
        if not self.members and self.state is not State.PREPARING:
            return answers + self._complete(now_s)
        return answers + self._rebalance(now_s)
