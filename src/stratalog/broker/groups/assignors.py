"""The server-side assignors of consumer groups: who should read which partition.

Pure functions of what members subscribe to, how many partitions topics have, and what the last target was.
Equal input gives equal output, whatever the order it comes in.

uniform    as many partitions for each as possible, and as few of them moved as possible
range      runs of each topic's partitions: equal keys of two topics of the same size meet at one member
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

TopicId = bytes
Place = tuple[TopicId, int]
"""A topic's id and the number of a partition."""
Target = dict[str, frozenset[Place]]
"""What each member should have, by its id."""


class Wish(NamedTuple):
    """What an assignor knows of a member."""

    topics: frozenset[TopicId]
    """Topics it subscribes to; all of them exist."""
    instance_id: str | None = None
    before: frozenset[Place] = frozenset()
    """What it should have had so far."""


Assignor = Callable[[Mapping[str, Wish], Mapping[TopicId, int]], Target]


def range_(members: Mapping[str, Wish], partitions: Mapping[TopicId, int]) -> Target:
    """Cut each topic into as many runs as members want it, the first ones a partition longer."""
    order = sorted(members, key=lambda each: (members[each].instance_id or each, each))
    found: dict[str, set[Place]] = {each: set() for each in members}
    for topic, count in partitions.items():
        wanting = [each for each in order if topic in members[each].topics]
        if not wanting:
            continue
        size, more = divmod(count, len(wanting))
        first = 0
        for number, each in enumerate(wanting):
            end = first + size + (number < more)
            found[each].update((topic, number) for number in range(first, end))
            first = end
    return {each: frozenset(places) for each, places in found.items()}


def uniform(members: Mapping[str, Wish], partitions: Mapping[TopicId, int]) -> Target:
    """Keep what can be kept, deal out the rest to those with least, then even out."""
    found: dict[str, set[Place]] = {each: set() for each in sorted(members)}
    if not found:
        return {}
    wanted = frozenset().union(*(wish.topics for wish in members.values()))
    free = {(topic, number) for topic in wanted for number in range(partitions[topic])}
    for each, kept in found.items():
        wish = members[each]
        kept |= {place for place in wish.before if place[0] in wish.topics and place in free}
        free -= kept
    if len({wish.topics for wish in members.values()}) == 1:
        _even(found, free)
    else:
        _deal(found, free, members)
        while _improve(found, members):
            pass
    return {each: frozenset(places) for each, places in found.items()}


def _even(found: dict[str, set[Place]], free: set[Place]) -> None:
    """Bring every member to the same number, or one more: all of them subscribe to the same topics."""
    size, more = divmod(len(free) + sum(map(len, found.values())), len(found))
    by_load = sorted(found, key=lambda each: -len(found[each]))  # stable: the first ones by id
    quota = {each: size + (number < more) for number, each in enumerate(by_load)}
    for each, kept in found.items():
        if len(kept) > quota[each]:
            over = sorted(kept)[quota[each] :]
            kept.difference_update(over)
            free.update(over)
    rest = iter(sorted(free))
    for each, kept in found.items():
        for _ in range(quota[each] - len(kept)):
            kept.add(next(rest))


def _deal(found: dict[str, set[Place]], free: set[Place], members: Mapping[str, Wish]) -> None:
    """Give each free partition to the one with least among those that want it, rarely wanted ones first."""
    wanting: dict[TopicId, list[str]] = {}
    for each, wish in sorted(members.items()):
        for topic in wish.topics:
            wanting.setdefault(topic, []).append(each)
    for topic, number in sorted(free, key=lambda place: (len(wanting.get(place[0], ())), place)):
        if topic in wanting:
            found[min(wanting[topic], key=lambda each: len(found[each]))].add((topic, number))


def _improve(found: dict[str, set[Place]], members: Mapping[str, Wish]) -> bool:
    """Move partitions from members with more to members with less; return whether any was moved.

    Each move lowers the sum of the squared numbers, so this comes to an end.
    """
    moved = False
    for each in sorted(found, key=lambda name: len(found[name])):
        topics, mine = members[each].topics, found[each]
        for other in sorted(found, key=lambda name: -len(found[name])):
            movable = sorted(place for place in found[other] if place[0] in topics)
            while movable and len(found[other]) > len(mine) + 1:
                place = movable.pop()
                found[other].remove(place)
                mine.add(place)
                moved = True
    return moved


ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": range_}
