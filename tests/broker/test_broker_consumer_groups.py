"""The newer consumer group protocol (KIP-848): assignors, the machine over many schedules, its records."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from stratalog.broker.codes import Code
from stratalog.broker.groups import records
from stratalog.broker.groups.assignors import ASSIGNORS, Place, Wish, range_, uniform
from stratalog.broker.groups.consumer import (
    JOIN,
    LEAVE,
    LEAVE_STATIC,
    Answer,
    Beat,
    ConsumerGroup,
    RecordName,
    State,
    Step,
)

SESSION_S, REBALANCE_S = 45.0, 60.0
A, B = b"a" * 16, b"b" * 16


class World:
    """The topics there are; a change makes another one."""

    def __init__(self, topics: dict[str, tuple[bytes, int]]) -> None:
        self.topics = topics

    def get(self, name: str) -> tuple[bytes, int] | None:
        return self.topics.get(name)

    def matching(self, regex: str) -> Iterable[str]:
        return [name for name in self.topics if re.fullmatch(regex, name)]


def both(a: int = 4, b: int = 4) -> World:
    return World({"a": (A, a), "b": (B, b)})


def places(topic: bytes, *numbers: int) -> frozenset[Place]:
    return frozenset((topic, number) for number in numbers)


# -- assignors -----------------------------------------------------------------------------------------------


def test_range_cuts_each_topic_into_runs() -> None:
    wish = Wish(frozenset((A, B)))
    found = range_({"m1": wish, "m2": wish, "m3": Wish(frozenset((A,)))}, {A: 7, B: 4})
    assert found == {
        "m1": places(A, 0, 1, 2) | places(B, 0, 1),
        "m2": places(A, 3, 4) | places(B, 2, 3),
        "m3": places(A, 5, 6),
    }
    assert range_({"z": Wish(frozenset((A,)), "1"), "a": Wish(frozenset((A,)), "2")}, {A: 1}) == {
        "z": places(A, 0),
        "a": frozenset(),
    }, "static members are ordered by their instance"


def test_uniform_moves_as_little_as_it_can() -> None:
    alone = uniform({"m1": Wish(frozenset((A,)))}, {A: 5})
    assert alone == {"m1": places(A, *range(5))}
    both_of_them = uniform(
        {"m1": Wish(frozenset((A,)), None, alone["m1"]), "m2": Wish(frozenset((A,)))}, {A: 5}
    )
    assert sorted(map(len, both_of_them.values())) == [2, 3]
    assert len(both_of_them["m1"]) == 3, "the one that had more keeps more"
    assert both_of_them["m1"] < alone["m1"]


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@pytest.mark.parametrize("seed", range(20))
def test_assignors_deal_out_every_partition_once(name: str, seed: int) -> None:
    rng = random.Random(seed)
    topics = {bytes([number]) * 16: rng.randint(1, 12) for number in range(rng.randint(1, 5))}
    before: dict[str, frozenset[Place]] = {}
    for _ in range(6):
        same = rng.random() < 0.5
        members = {
            f"m{number}": Wish(
                frozenset(topics if same else rng.sample(sorted(topics), rng.randint(0, len(topics)))),
                None,
                before.get(f"m{number}", frozenset()),
            )
            for number in rng.sample(range(8), rng.randint(1, 7))
        }
        found = ASSIGNORS[name](members, topics)
        shuffled = rng.sample(sorted(members), len(members))
        assert found == ASSIGNORS[name]({each: members[each] for each in shuffled}, topics)
        given = [place for each in found.values() for place in each]
        assert len(given) == len(set(given))
        wanted = {topic for wish in members.values() for topic in wish.topics}
        assert set(given) == {(topic, number) for topic in wanted for number in range(topics[topic])}
        assert all(place[0] in members[each].topics for each, theirs in found.items() for place in theirs)
        if name == "uniform":
            for one, wish in members.items():
                for theirs in found.values():
                    movable = [place for place in theirs if place[0] in wish.topics]
                    assert not movable or len(theirs) <= len(found[one]) + 1
        if name == "uniform" and same:
            again = {each: Wish(wish.topics, None, found[each]) for each, wish in members.items()}
            assert uniform(again, topics) == found, "nothing moves without a reason"
        before = found


# -- the machine ---------------------------------------------------------------------------------------------


def join(group: ConsumerGroup, name: str, world: World, now_s: float = 0.0, **more: object) -> Answer:
    fields = {"rebalance_s": REBALANCE_S, "topics": ("a",), "owned": frozenset()} | more
    return group.beat(Beat(name, JOIN, **fields), world, now_s)  # type: ignore[arg-type]


def beat(
    group: ConsumerGroup, name: str, epoch: int, topics: World, owned: frozenset[Place] | None = None,
    now_s: float = 0.0, instance_id: str | None = None,
) -> Answer:  # fmt: skip
    return group.beat(Beat(name, epoch, instance_id, owned=owned), topics, now_s)


def state(group: ConsumerGroup) -> State:
    return group.state


def test_a_partition_waits_until_its_owner_gave_it_up() -> None:
    group, topics = ConsumerGroup("g"), both()
    first = join(group, "m1", topics)
    assert first == Answer(Code.NONE, "m1", 1, places(A, 0, 1, 2, 3))
    assert state(group) is State.STABLE
    second = join(group, "m2", topics)
    assert second == Answer(Code.NONE, "m2", 2, frozenset()), "nothing is free yet"
    assert state(group) is State.RECONCILING
    told = beat(group, "m1", 1, topics)
    assert told.epoch == 2
    assert told.assignment is not None
    kept = told.assignment
    assert len(kept) == 2
    assert beat(group, "m2", 2, topics).assignment is None
    assert beat(group, "m1", 2, topics).code is Code.NONE
    assert beat(group, "m1", 1, topics, kept).assignment == kept, "it may not have had the answer"
    assert beat(group, "m1", 2, topics, places(A, 0, 1, 2, 3)).assignment == kept
    assert group.members["m1"].step is Step.UNREVOKED, "nothing of this confirms that it gave something up"
    assert beat(group, "m1", 2, topics, kept).code is Code.NONE
    taken = beat(group, "m2", 2, topics)
    assert taken.assignment == places(A, 0, 1, 2, 3) - kept
    assert state(group) is State.STABLE


def test_a_lost_answer_does_no_harm_and_a_stale_epoch_is_fenced() -> None:
    group, topics = ConsumerGroup("g"), both()
    join(group, "m1", topics)
    join(group, "m2", topics)
    kept = beat(group, "m1", 1, topics).assignment
    assert kept is not None
    again = beat(group, "m1", 1, topics, places(A, 0, 1, 2, 3))
    assert again == Answer(Code.NONE, "m1", 2, kept)
    assert beat(group, "m1", 2, topics, kept).epoch == 2
    assert beat(group, "m1", 1, topics, kept).epoch == 2
    assert beat(group, "m1", 1, topics).code is Code.FENCED_MEMBER_EPOCH, "it may own more than it has"
    assert beat(group, "m1", 1, topics, places(A, 0, 1, 2, 3)).code is Code.FENCED_MEMBER_EPOCH
    assert beat(group, "m1", 3, topics).code is Code.FENCED_MEMBER_EPOCH
    assert beat(group, "nobody", 3, topics).code is Code.UNKNOWN_MEMBER_ID


def test_who_does_not_give_up_in_time_is_removed() -> None:
    group, topics = ConsumerGroup("g"), both()
    join(group, "m1", topics, rebalance_s=5.0)
    join(group, "m2", topics)
    beat(group, "m1", 1, topics)
    assert group.deadline_s() == 5.0
    beat(group, "m1", 2, topics, now_s=4.0)
    group.tick(4.9)
    assert set(group.members) == {"m1", "m2"}
    group.tick(5.0)
    assert set(group.members) == {"m2"}
    assert beat(group, "m2", 2, topics, now_s=5.0).assignment == places(A, 0, 1, 2, 3)
    assert beat(group, "m1", 1, topics, now_s=5.0).code is Code.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed() -> None:
    group, topics = ConsumerGroup("g"), both()
    join(group, "m1", topics)
    assert group.deadline_s() == SESSION_S
    beat(group, "m1", 1, topics, now_s=40.0)
    group.tick(SESSION_S)
    assert set(group.members) == {"m1"}
    group.tick(40.0 + SESSION_S)
    assert (group.state, group.epoch) == (State.EMPTY, 2)


def test_static_members() -> None:
    group, topics = ConsumerGroup("g"), both()
    assert join(group, "m1", topics, instance_id="one").assignment == places(A, 0, 1, 2, 3)
    assert join(group, "m2", topics, instance_id="one").code is Code.UNRELEASED_INSTANCE_ID
    assert beat(group, "m1", LEAVE_STATIC, topics, instance_id="one") == Answer(Code.NONE, "m1", LEAVE_STATIC)
    other = join(group, "n", topics)
    assert (other.epoch, other.assignment) == (2, frozenset()), "the one that is away keeps its part"
    back = join(group, "m2", topics, instance_id="one")
    assert (back.code, back.epoch) == (Code.NONE, 2)
    assert back.assignment is not None
    assert len(back.assignment) == 2
    assert beat(group, "m1", 1, topics, instance_id="one").code is Code.FENCED_INSTANCE_ID
    assert beat(group, "m1", LEAVE, topics, instance_id="one").code is Code.FENCED_INSTANCE_ID
    assert beat(group, "x", 1, topics, instance_id="two").code is Code.UNKNOWN_MEMBER_ID
    assert join(group, "m2", topics, instance_id=None).code is Code.INVALID_REQUEST
    assert len(beat(group, "n", 2, topics).assignment or ()) == 2
    epoch = group.epoch
    beat(group, "m2", LEAVE_STATIC, topics, instance_id="one")
    same = join(group, "m3", topics, instance_id="one")
    assert (group.epoch, same.assignment) == (epoch, back.assignment), "nothing is dealt out again"
    beat(group, "m3", LEAVE, topics, instance_id="one")
    assert set(group.members) == {"n"}


def test_topics_that_grow_come_and_go_begin_another_epoch() -> None:
    group = ConsumerGroup("g")
    assert join(group, "m", World({"a": (A, 2)}), topics=("a", "b")).assignment == places(A, 0, 1)
    assert beat(group, "m", 1, World({"a": (A, 3)})) == Answer(Code.NONE, "m", 2, places(A, 0, 1, 2))
    with_b = World({"a": (A, 3), "b": (B, 1)})
    assert beat(group, "m", 2, with_b).assignment == places(A, 0, 1, 2) | places(B, 0)
    assert beat(group, "m", 3, World({"b": (B, 1), "other": (A, 1)})) == Answer(
        Code.NONE, "m", 4, places(B, 0)
    )
    assert beat(group, "m", 4, World({"b": (B, 1)}), places(B, 0)).epoch == 4
    assert state(group) is State.STABLE


def test_a_regular_expression_subscribes_to_what_matches() -> None:
    group = ConsumerGroup("g")
    topics = World({"a1": (A, 1), "b1": (B, 1)})
    assert join(group, "m", topics, topics=None, regex="a.*").assignment == places(A, 0)
    assert group.subscribed_names(topics) == {"a1"}
    more = World({"a1": (A, 1), "a2": (B, 1)})
    assert beat(group, "m", 1, more).assignment == places(A, 0) | places(B, 0)
    changed = group.beat(Beat("m", 2, regex="", topics=("a2",)), more, 0.0)
    assert changed.assignment == places(B, 0)
    assert group.members["m"].regex is None


def test_the_assignor_is_what_most_ask_for() -> None:
    group, topics = ConsumerGroup("g"), both()
    join(group, "m1", topics)
    assert group.assignor == "uniform"
    join(group, "m2", topics, assignor="range")
    assert group.assignor == "range"
    assert group.targets == {"m1": places(A, 0, 1), "m2": places(A, 2, 3)}


def test_a_full_group_takes_nobody_in_but_those_it_knows() -> None:
    group, topics = ConsumerGroup("g", max_size=1), both()
    join(group, "m1", topics)
    assert join(group, "m2", topics).code is Code.GROUP_MAX_SIZE_REACHED
    assert set(group.members) == {"m1"}
    assert join(group, "m1", topics).code is Code.NONE


def test_commits_are_of_members_in_their_epoch() -> None:
    group, topics = ConsumerGroup("g"), both()
    assert group.may_commit("", -1) is Code.NONE
    join(group, "m1", topics)
    assert group.may_commit("", -1) is Code.UNKNOWN_MEMBER_ID
    assert group.may_commit("m1", 1) is Code.NONE
    assert group.may_commit("m1", 2) is Code.STALE_MEMBER_EPOCH
    join(group, "m2", topics)
    kept = beat(group, "m1", 1, topics).assignment
    assert kept is not None
    lost = places(A, 0, 1, 2, 3) - kept
    assert {group.may_commit_at("m1", 1, each) for each in lost | kept} == {Code.NONE}, "before it gives up"
    assert {group.may_commit_at("m1", 2, each) for each in lost | kept} == {Code.NONE}
    assert beat(group, "m1", 2, topics, kept).epoch == 2
    assert {group.may_commit_at("m1", 1, each) for each in kept} == {Code.NONE}, "it had them all the time"
    assert {group.may_commit_at("m1", 1, each) for each in lost} == {Code.STALE_MEMBER_EPOCH}
    assert group.may_fetch(None, -1) is Code.NONE
    assert group.may_fetch("m1", 2) is Code.NONE
    assert group.may_fetch("m1", 1) is Code.STALE_MEMBER_EPOCH
    assert group.may_fetch("x", 1) is Code.UNKNOWN_MEMBER_ID


# -- the machine and its records, over many schedules --------------------------------------------------------


@dataclass
class Client:
    """A consumer as clients are: it reads what it owns, and gives up before it takes."""

    id: str
    instance_id: str | None
    topics: tuple[str, ...] | None
    regex: str | None
    assignor: str | None
    epoch: int = JOIN
    owned: set[Place] = field(default_factory=set)
    told: frozenset[Place] = frozenset()
    says_all: bool = True
    dirty: bool = False
    changed: bool = False

    def beat(self) -> Beat:
        full = self.says_all or self.epoch == JOIN
        return Beat(
            self.id,
            self.epoch,
            self.instance_id,
            None,
            REBALANCE_S if full else None,
            self.topics if full or self.changed else None,
            (self.regex or "") if full or self.changed else None,
            self.assignor if full else None,
            frozenset(self.owned) if full or self.dirty else None,
        )

    def take(self, answer: Answer) -> None:
        if answer.code is Code.NONE:
            self.epoch, self.says_all, self.dirty, self.changed = answer.epoch, False, False, False
            if answer.assignment is not None:
                self.told = answer.assignment
        elif answer.code in (Code.FENCED_MEMBER_EPOCH, Code.UNKNOWN_MEMBER_ID):
            self.epoch, self.told = JOIN, frozenset()
            self.owned.clear()
        else:
            assert answer.code is Code.UNRELEASED_INSTANCE_ID, answer

    def reconcile(self) -> None:
        """Give up what must be given up, or take what was given."""
        if self.owned - self.told:
            self.owned &= self.told
            self.dirty = True
        elif self.told - self.owned:
            self.owned |= self.told
            self.dirty = True


class Schedule:
    """One group with its clients, a network that loses and repeats, and a log that a kill leaves."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.serial = 0
        self.topics = World({})
        self.clients: list[Client] = []
        self.group = self.fresh()
        self.log: dict[RecordName, object] = {}
        self.epochs: dict[str, int] = {}
        for name in "abc":
            self.change_topic(name)

    def fresh(self) -> ConsumerGroup:
        return ConsumerGroup("g", SESSION_S)

    def change_topic(self, name: str) -> None:
        known = dict(self.topics.topics)
        old = known.get(name)
        if old is None:
            self.serial += 1
            known[name] = (self.serial.to_bytes(16, "big"), self.rng.randint(1, 4))
        elif self.rng.random() < 0.3:
            del known[name]
        elif old[1] < 12:
            known[name] = (old[0], old[1] + 1)
        self.topics = World(known)

    def write(self) -> None:
        """Append the changed records as the broker does."""
        for record in records.step_records(self.group, 0):
            parsed = records.parse(record)
            assert parsed is not None
            _, name, value = parsed
            if value is None:
                self.log.pop(name, None)
            else:
                self.log[name] = value
        self.group.changed.clear()

    def restart(self) -> None:
        self.group = self.fresh()
        records.restore(self.group, self.log, self.now_s)

    def send(self, client: Client) -> None:
        """One heartbeat: it may be lost, repeated, its write may fail, its answer may be lost."""
        luck = self.rng.random()
        beat = client.beat()
        if luck < 0.1:
            client.says_all = True
            return
        answer = self.group.beat(beat, self.topics, self.now_s)
        if luck < 0.15:  # the write fails; what changed is written with the next step, or a kill loses it
            client.says_all = True
            return
        self.write()
        if luck < 0.2:
            self.restart()
        if luck < 0.3:
            client.says_all = True
            return
        if luck < 0.4:  # the client gave up too early and asked again: it hears the second answer
            client.says_all = True
            answer = self.group.beat(client.beat(), self.topics, self.now_s)
            self.write()
        client.take(answer)

    def leave(self, client: Client) -> None:
        self.clients.remove(client)
        epoch = LEAVE_STATIC if client.instance_id and self.rng.random() < 0.7 else LEAVE
        client.owned.clear()
        if self.rng.random() < 0.7 and client.epoch != JOIN:  # else it dies
            self.group.beat(Beat(client.id, epoch, client.instance_id), self.topics, self.now_s)
            self.write()

    def join(self) -> None:
        self.serial += 1
        instance = f"i{self.rng.randint(0, 2)}" if self.rng.random() < 0.4 else None
        if any(each.instance_id == instance for each in self.clients if instance):
            return
        names, regex = self.subscription()
        assignor = self.rng.choice((None, "range", "uniform"))
        self.clients.append(Client(f"m{self.serial}", instance, names, regex, assignor))

    def subscription(self) -> tuple[tuple[str, ...] | None, str | None]:
        if self.rng.random() < 0.3:
            return None, self.rng.choice(("a|b", ".*", "[bc]"))
        return tuple(self.rng.sample("abc", self.rng.randint(1, 3))), None

    def step(self) -> None:
        luck = self.rng.random()
        if luck < 0.06 and len(self.clients) < 6:
            self.join()
        elif luck < 0.09 and self.clients:
            self.leave(self.rng.choice(self.clients))
        elif luck < 0.12:
            self.change_topic(self.rng.choice("abc"))
        elif luck < 0.15 and self.clients:
            client = self.rng.choice(self.clients)
            names, client.regex = self.subscription()
            client.topics, client.changed = names or (), True
        elif luck < 0.17:
            self.now_s += self.rng.choice((1.0, 30.0, 50.0))
            self.group.tick(self.now_s)
            self.write()
        elif luck < 0.45 and self.clients:
            self.rng.choice(self.clients).reconcile()
        elif self.clients:
            self.send(self.rng.choice(self.clients))
        self.check()

    def check(self) -> None:
        group = self.group
        read = [place for each in self.clients if each.id in group.members for place in each.owned]
        assert len(read) == len(set(read)), "two members read one partition"
        have = [
            (place, each.id) for each in group.members.values() for place in [*each.assigned, *each.revoking]
        ]
        assert len(have) == len(dict(have))
        assert dict(have) == group.owners
        for client in self.clients:
            member = group.members.get(client.id)
            if member is not None and client.epoch == member.epoch and not client.says_all:
                assert client.owned <= member.assigned.keys() | member.revoking.keys()
        for each in group.members.values():
            assert (each.step is Step.UNREVOKED) == bool(each.revoking)
            assert each.epoch <= group.assignment_epoch <= group.epoch
            if each.epoch > 0:
                assert self.epochs.get(each.id, 0) <= each.epoch
                self.epochs[each.id] = each.epoch
        if not group.changed:
            again = self.fresh()
            if records.restore(again, self.log, self.now_s):
                assert again.members.keys() == group.members.keys()
                for name, member in again.members.items():
                    mine = group.members[name]
                    for what in ("epoch", "previous_epoch", "step", "assigned", "revoking", "wish"):
                        assert getattr(member, what) == getattr(mine, what)
                assert again.targets == group.targets
                assert (again.epoch, again.assignment_epoch) == (group.epoch, group.assignment_epoch)

    def calm(self) -> None:
        """Without losses and changes the group comes to rest, and every partition is read by one client."""
        for _ in range(40):
            self.now_s += 5.0
            self.group.tick(self.now_s)
            self.write()
            for each in self.clients:
                each.take(self.group.beat(each.beat(), self.topics, self.now_s))
                self.write()
                each.reconcile()
                self.check()
        wanted: set[Place] = set()
        for each in self.clients:
            names = {*(each.topics or ()), *(self.topics.matching(each.regex) if each.regex else ())}
            for name in names & self.topics.topics.keys():
                topic, count = self.topics.topics[name]
                wanted |= {(topic, number) for number in range(count)}
        assert self.group.members.keys() == {each.id for each in self.clients}
        assert self.group.state in (State.STABLE, State.EMPTY)
        assert {place for each in self.clients for place in each.owned} == wanted


@pytest.mark.parametrize("seed", range(150))
def test_no_partition_is_read_by_two_members_whatever_happens(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(200):
        schedule.step()
    schedule.calm()
