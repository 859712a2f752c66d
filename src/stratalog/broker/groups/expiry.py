"""Committed offsets that go: deleted by a client (OffsetDelete), or not needed for a long time (KIP-211).

An offset goes when its group does not read its topic any more and it is older than
`offsets.retention.minutes`: without members that counts from when the last one left. A group without members
and offsets goes too.

Deletions are one append that fails if anything was committed since the look, also by a program: it is tried
again. So no offset goes that was just committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.broker.codes import Code
from stratalog.broker.groups.classic import CONSUMER_PROTOCOL, Group, State
from stratalog.broker.groups.consumer import ConsumerGroup
from stratalog.errors import ConflictError, StratalogError
from stratalog.store.groups.offsets import (
    OFFSETS_TOPIC,
    CommittedOffset,
    TopicPartition,
    forget_records,
    offsets_in,
)
from stratalog.store.internal_topic import for_coordinator

if TYPE_CHECKING:
    from stratalog.broker.groups.topics import CatalogTopics
    from stratalog.broker.server import Broker, Request

TRIES = 10


class Facts(NamedTuple):
    """What the expiry must know of a group."""

    empty_since_ms: int | None = None
    """None: it has members, or the time of its last one is unknown."""
    subscribed: frozenset[str] | None = frozenset()
    """Topics that members read; None: perhaps all."""


def facts_of(group: Group | ConsumerGroup, topics: CatalogTopics) -> Facts:
    """Return what the expiry must know of a group that has or had members."""
    if isinstance(group, ConsumerGroup):
        if not group.members:
            return Facts(group.since_ms)
        return Facts(subscribed=group.subscribed_names(topics))
    if group.state is State.EMPTY:
        return Facts(group.since_ms if group.protocol_type else None)
    return Facts(subscribed=_subscribed(group))


def expired(
    offsets: Mapping[TopicPartition, CommittedOffset], facts: Facts, now_ms: int, retention_ms: int
) -> list[TopicPartition]:
    """Return what may go of the offsets of a group; an offset without a time stays."""
    if facts.subscribed is None:
        return []
    return [
        at
        for at, committed in offsets.items()
        if at[0] not in facts.subscribed
        and committed.timestamp >= 0
        and max(committed.timestamp, facts.empty_since_ms or 0) + retention_ms <= now_ms
    ]


def _subscribed(group: Group) -> frozenset[str] | None:
    """Return the topics that members of a classic group read; None if one does not say so."""
    if group.protocol_type != CONSUMER_PROTOCOL:
        return None
    found: set[str] = set()
    for member in group.members.values():
        topics = member.topics()
        if topics is None:
            return None
        found |= topics
    return frozenset(found)


# -- by time -------------------------------------------------------------------------------------------------


class Expiry:
    """Deletes expired offsets of a broker's groups every now and then."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def start(self) -> None:
        """Look for the first time after a pause; in the loop's thread."""
        limits = self._broker.limits
        if limits.offsets_retention_minutes > 0:
            pause_s = limits.offsets_retention_check_interval_ms / 1000
            self._broker.loop.call_later(pause_s, self._begin)

    def _begin(self) -> None:
        groups = self._broker.groups
        facts = {group.id: facts_of(group, groups.topics) for group in groups.all()}
        try:
            self._broker.pool.submit(self._work, facts).add_done_callback(
                lambda future: self._broker.loop.call_soon(partial(self._done, future.result()))
            )
        except RuntimeError:  # the broker stops
            return

    def _work(self, facts: Mapping[str, Facts]) -> list[str]:
        """Delete what is expired, in another thread; return the groups that have no offsets."""
        store = self._broker.store
        kept: set[str] = set()
        try:
            topic = store.topic(OFFSETS_TOPIC) if OFFSETS_TOPIC in store.partitions.entries else None
            for number in range(0 if topic is None else topic.partitions):
                kept |= self._expire(number, facts)
        except (StratalogError, OSError) as error:
            store.partitions.context.warn(f"expired offsets are not deleted: {error}")
            return []
        return [name for name in facts if name not in kept]

    def _expire(self, number: int, facts: Mapping[str, Facts]) -> set[str]:
        """Delete what is expired in a partition; return the groups that have offsets left."""
        store = self._broker.store
        topic = for_coordinator(store.topic(OFFSETS_TOPIC))
        retention_ms = self._broker.limits.offsets_retention_minutes * 60_000
        left: set[str] = set()
        for _ in range(TRIES):
            end = topic.high_watermark(number)
            if topic.high_watermark(number, "read_committed") < end:
                break  # a transaction is open: what it commits must not be deleted
            now_ms = store.partitions.context.clock.now_ms()
            found = offsets_in(topic.read(number, end=end, isolation="read_committed"))
            gone = {
                group: set(expired(offsets, facts.get(group, Facts()), now_ms, retention_ms))
                for group, offsets in found.items()
                if not store.groups.members(group)
            }
            left = {group for group, offsets in found.items() if gone.get(group) != offsets.keys()}
            rows = [row for group, places in gone.items() for row in forget_records(group, sorted(places))]
            try:
                if rows:
                    topic.append_many(rows, partition=number, expected_offset=end)
                return left
            except ConflictError:
                continue
        return set(facts)

    def _done(self, without_offsets: Iterable[str]) -> None:
        groups = self._broker.groups
        for name in without_offsets:
            group = groups.get(name)
            if group is not None and not group.members and group.deadline_s() is None:
                groups.forgotten(name)
        self.start()


# -- by a client ---------------------------------------------------------------------------------------------


def offset_delete(request: Request) -> None:
    """Delete committed offsets of a group, but not of topics that its members read."""
    made, body, broker = request.response, request.body, request.broker
    topic, part = made.struct("OffsetDeleteResponseTopic"), made.struct("OffsetDeleteResponsePartition")
    group = broker.groups.get(body.group_id)
    read = frozenset() if group is None else facts_of(group, broker.groups.topics).subscribed
    if group is not None and read is None and group.protocol_type != CONSUMER_PROTOCOL:  # type: ignore[union-attr]
        request.answer(made(error_code=Code.NON_EMPTY_GROUP))
        return
    offsets, registry = broker.store.groups.offsets, broker.store.partitions.registry
    in_program = broker.store.groups.topics_of(body.group_id)

    def code_at(name: str, number: int) -> Code:
        entry = registry.topic(name)
        if entry is None or not 0 <= number < entry.partitions:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        if read is None or name in read or name in in_program:
            return Code.GROUP_SUBSCRIBED_TO_TOPIC
        return Code.NONE

    def work() -> tuple[Code, list[Any]]:
        if group is None and not offsets.has(body.group_id):
            return Code.GROUP_ID_NOT_FOUND, []
        codes = {
            (each.name, one.partition_index): code_at(each.name, one.partition_index)
            for each in body.topics
            for one in each.partitions
        }
        offsets.forget(body.group_id, {at: None for at, code in codes.items() if code is Code.NONE})
        return Code.NONE, [
            topic(
                name=each.name,
                partitions=[
                    part(
                        partition_index=one.partition_index, error_code=codes[each.name, one.partition_index]
                    )
                    for one in each.partitions
                ],
            )
            for each in body.topics
        ]

    def then(found: tuple[Code, list[Any]] | BaseException) -> None:
        code, topics = (request.code_of(found), []) if isinstance(found, BaseException) else found
        request.answer(made(error_code=code, topics=topics))

    request.off_loop(work, then)
