"""Fetch sessions: full and incremental fetches, partitions forgotten and added, epochs, a bounded cache."""

from __future__ import annotations

import random
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Store, Topic
from stratalog.broker.codes import Code
from stratalog.broker.server import Limits
from stratalog.broker.sessions import EVICT_AFTER_S, Session
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import Wire, client, wire
from tests.broker.test_broker_hostile import until

__all__ = ["wire"]
WIDE = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}


def topics(store: Store, version: int, wanted: dict[str, dict[int, int]]) -> list[Any]:
    """Topics of a fetch: for each name its partitions with their offsets."""
    made = codec("FetchRequest")
    topic, part = made.struct("FetchTopic"), made.struct("FetchPartition")
    found = []
    for name, places in wanted.items():
        parts = [
            part(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
            for number, offset in places.items()
        ]
        by_id = version >= 13
        topic_id = store.partitions.entry(name).id if by_id else None
        found.append(
            topic(
                topic="" if by_id else name,
                topic_id=topic_id.bytes if topic_id else bytes(16),
                partitions=parts,
            )
        )
    return found


def forgotten(store: Store, version: int, name: str, *numbers: int) -> list[Any]:
    entry = store.partitions.entry(name)
    made = codec("FetchRequest").struct("ForgottenTopic")
    return [made(topic=name, topic_id=entry.id.bytes if entry.id else bytes(16), partitions=numbers)]


def numbers(answer: Any) -> list[int]:
    return [part.partition_index for topic in answer.responses for part in topic.partitions]


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_an_incremental_fetch_answers_what_has_news(wire: Wire, store: Store, version: int) -> None:
    topic = store.create_topic("orders", 3)
    wanted = topics(store, version, {"orders": {0: 0, 1: 0, 2: 0}})
    first = wire.ask("Fetch", version, session_id=0, session_epoch=0, topics=wanted, **WIDE)
    assert first.session_id > 0
    assert numbers(first) == [0, 1, 2]
    known: dict[str, Any] = {"session_id": first.session_id, **WIDE}
    assert numbers(wire.ask("Fetch", version, session_epoch=1, **known)) == []
    topic.append(b"x", partition=1)
    second = wire.ask("Fetch", version, session_epoch=2, **known)
    assert numbers(second) == [1]
    assert second.session_id == first.session_id
    third = wire.ask("Fetch", version, session_epoch=3, **known)
    assert numbers(third) == [1], "the client did not say that it has it"
    moved = topics(store, version, {"orders": {1: 1}})
    assert numbers(wire.ask("Fetch", version, session_epoch=4, topics=moved, **known)) == []
    gone = forgotten(store, version, "orders", 0, 2)
    assert numbers(wire.ask("Fetch", version, session_epoch=5, forgotten_topics_data=gone, **known)) == []
    for partition in range(3):
        topic.append(b"y", partition=partition)
    assert numbers(wire.ask("Fetch", version, session_epoch=6, **known)) == [1]
    back = topics(store, version, {"orders": {2: 0}})
    assert sorted(numbers(wire.ask("Fetch", version, session_epoch=7, topics=back, **known))) == [1, 2]


def test_a_new_high_watermark_or_log_start_is_news(wire: Wire, store: Store) -> None:
    topic = store.create_topic("orders", 2)
    for _ in range(4):
        topic.append(b"x", partition=0)
    first = wire.ask("Fetch", 12, session_epoch=0, topics=topics(store, 12, {"orders": {0: 4}}), **WIDE)
    topic.delete_records(0, 2)
    known: dict[str, Any] = {"session_id": first.session_id, **WIDE}
    again = topics(store, 12, {"orders": {0: 4}})
    [told] = wire.ask("Fetch", 12, session_epoch=1, topics=again, **known).responses
    assert told.partitions[0].log_start_offset == 2
    assert not wire.ask("Fetch", 12, session_epoch=2, topics=again, **known).responses
    topic.append(b"y", partition=0)
    [told] = wire.ask("Fetch", 12, session_epoch=3, **{**known, "max_bytes": 0}).responses
    assert told.partitions[0].high_watermark == 5


def test_wrong_epochs_and_ids_are_refused(wire: Wire, store: Store) -> None:
    store.create_topic("orders")
    wanted = topics(store, 12, {"orders": {0: 0}})
    made = wire.ask("Fetch", 12, session_epoch=0, topics=wanted, **WIDE)
    known: dict[str, Any] = {"session_id": made.session_id, **WIDE}
    for epoch in (2, 7, -2):
        told = wire.ask("Fetch", 12, session_epoch=epoch, **known)
        assert (told.error_code, told.session_id) == (Code.INVALID_FETCH_SESSION_EPOCH, 0)
    told = wire.ask("Fetch", 12, session_id=made.session_id + 1, session_epoch=1, **WIDE)
    assert (told.error_code, told.session_id) == (Code.FETCH_SESSION_ID_NOT_FOUND, 0)
    told = wire.ask("Fetch", 13, session_epoch=1, **known)
    assert told.error_code == Code.FETCH_SESSION_TOPIC_ID_ERROR
    assert wire.ask("Fetch", 12, session_epoch=1, **known).error_code == 0
    assert wire.ask("Fetch", 12, session_epoch=1, **known).error_code == Code.INVALID_FETCH_SESSION_EPOCH
    closed = wire.ask("Fetch", 12, session_epoch=-1, topics=wanted, **known)
    assert (closed.session_id, numbers(closed)) == (0, [0])
    assert wire.ask("Fetch", 12, session_epoch=2, **known).error_code == Code.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_partitions_ends(wire: Wire, broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    made = wire.ask("Fetch", 12, session_epoch=0, topics=topics(store, 12, {"orders": {0: 0}}), **WIDE)
    wait = {**WIDE, "max_wait_ms": 60_000}
    gone = forgotten(store, 12, "orders", 0)
    told = wire.ask(
        "Fetch", 12, session_id=made.session_id, session_epoch=1, forgotten_topics_data=gone, **wait
    )
    assert (told.session_id, told.responses, len(broker.sessions)) == (0, (), 0)


def test_epochs_begin_again_behind_the_last(wire: Wire, broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    made = wire.ask("Fetch", 12, session_epoch=0, topics=topics(store, 12, {"orders": {0: 0}}), **WIDE)
    session = broker.sessions.begin(
        codec("FetchRequest")(session_id=made.session_id, session_epoch=1), by_id=False, now_s=0
    )
    assert isinstance(session, Session)
    session.epoch = 2**31 - 1
    known: dict[str, Any] = {"session_id": made.session_id, **WIDE}
    assert wire.ask("Fetch", 12, session_epoch=2**31 - 1, **known).error_code == 0
    assert wire.ask("Fetch", 12, session_epoch=1, **known).error_code == 0


def test_an_idle_session_waits_without_a_look_at_its_partitions(
    wire: Wire, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("orders", 50)
    wanted = topics(store, 13, {"orders": dict.fromkeys(range(50), 0)})
    first = wire.ask("Fetch", 13, session_epoch=0, topics=wanted, **WIDE)
    looks: list[int] = []
    real = Topic.fetch

    def counted(self: Topic, partition: int, *rest: Any, **more: Any) -> Any:
        looks.append(partition)
        return real(self, partition, *rest, **more)

    monkeypatch.setattr(Topic, "fetch", counted)
    known: dict[str, Any] = {"session_id": first.session_id}
    for epoch in range(1, 5):
        told = wire.ask("Fetch", 13, session_epoch=epoch, **known, **{**WIDE, "max_wait_ms": 5})
        assert not told.responses
    assert looks == []
    wire.sock.sendall(wire.frame("Fetch", 13, session_epoch=5, **known, **{**WIDE, "max_wait_ms": 60_000}))
    topic.append(b"x", partition=17)
    assert numbers(wire.answer("Fetch", 13)) == [17]
    assert set(looks) == {17}


def test_a_topic_made_anew_is_another_topic(wire: Wire, store: Store) -> None:
    store.create_topic("orders").append(b"x")
    first = wire.ask("Fetch", 13, session_epoch=0, topics=topics(store, 13, {"orders": {0: 1}}), **WIDE)
    known: dict[str, Any] = {"session_id": first.session_id, **WIDE, "max_wait_ms": 60_000}
    wire.sock.sendall(wire.frame("Fetch", 13, session_epoch=1, **known))
    store.delete_topic("orders")
    store.create_topic("orders").append(b"y")
    [told] = wire.answer("Fetch", 13).responses
    assert told.partitions[0].error_code == Code.UNKNOWN_TOPIC_ID
    [told] = wire.ask("Fetch", 13, session_epoch=2, **known).responses
    assert told.partitions[0].error_code == Code.UNKNOWN_TOPIC_ID, "told until it is forgotten"
    gone = [codec("FetchRequest").struct("ForgottenTopic")(topic_id=told.topic_id, partitions=(0,))]
    added = topics(store, 13, {"orders": {0: 0}})
    told = wire.ask("Fetch", 13, session_epoch=3, topics=added, forgotten_topics_data=gone, **known)
    assert [(part.error_code, part.high_watermark) for part in told.responses[0].partitions] == [(0, 1)]


def test_partitions_take_turns_where_not_all_fit(wire: Wire, store: Store) -> None:
    topic = store.create_topic("orders", 3)
    for partition in range(3):
        topic.append(b"x" * 5000, partition=partition)
    wanted = topics(store, 12, {"orders": {0: 0, 1: 0, 2: 0}})
    little = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 100}
    first = wire.ask("Fetch", 12, session_epoch=0, topics=wanted, **little)
    got = [[len(part.records) > 0 for part in first.responses[0].partitions].index(True)]
    for epoch in (1, 2):
        told = wire.ask("Fetch", 12, session_id=first.session_id, session_epoch=epoch, **little)
        got += [part.partition_index for part in told.responses[0].partitions if part.records]
    assert sorted(got) == [0, 1, 2]


def test_a_wrong_leader_epoch_is_told(wire: Wire, store: Store) -> None:
    store.create_topic("orders")
    part = codec("FetchRequest").struct("FetchPartition")(partition=0, current_leader_epoch=5)
    topic = codec("FetchRequest").struct("FetchTopic")(topic="orders", partitions=[part])
    [told] = wire.ask("Fetch", 12, topics=[topic], **{**WIDE, "max_wait_ms": 60_000}).responses
    assert told.partitions[0].error_code == Code.UNKNOWN_LEADER_EPOCH
    ours = topic._replace(partitions=[part._replace(current_leader_epoch=0)])
    [told] = wire.ask("Fetch", 12, topics=[ours], **WIDE).responses
    assert told.partitions[0].error_code == 0


# -- the cache -----------------------------------------------------------------------------------------------


def test_a_client_that_begins_a_session_with_each_fetch_has_one(
    wire: Wire, broker: Broker, store: Store
) -> None:
    store.create_topic("orders")
    wanted = topics(store, 12, {"orders": {0: 0}})
    ids = {wire.ask("Fetch", 12, session_epoch=0, topics=wanted, **WIDE).session_id for _ in range(20)}
    assert len(ids) == 20
    assert len(broker.sessions) == 1
    with client(broker) as other:
        other.ask("Fetch", 12, session_epoch=0, topics=wanted, **WIDE)
    assert len(broker.sessions) == 2


def test_a_full_cache_gives_up_old_sessions_then_smaller_ones(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("orders", 3)
    now = [1000.0]
    monkeypatch.setattr("stratalog.broker.fetch.time.monotonic", lambda: now[0])
    limits = Limits(max_incremental_fetch_session_cache_slots=2)
    with stratalog.serve(store, limits=limits) as broker:
        wires = [Wire(broker) for _ in range(5)]

        def begin(which: int, partitions: int) -> int:
            wanted = topics(store, 12, {"orders": dict.fromkeys(range(partitions), 0)})
            answer = wires[which].ask("Fetch", 12, session_epoch=0, topics=wanted, **WIDE)
            assert len(numbers(answer)) == partitions
            found: int = answer.session_id
            return found

        def goes_on(which: int, session: int, epoch: int) -> bool:
            answer = wires[which].ask("Fetch", 12, session_id=session, session_epoch=epoch, **WIDE)
            return bool(answer.error_code == 0)

        small, large = begin(0, 1), begin(1, 2)
        assert begin(2, 3) == 0, "there is room for two, and both are new"
        now[0] += EVICT_AFTER_S + 1
        assert goes_on(1, large, 1)
        third = begin(2, 1)
        assert third, "the first was not used for long"
        assert not goes_on(0, small, 1)
        now[0] += EVICT_AFTER_S + 1
        assert goes_on(1, large, 2)
        assert goes_on(2, third, 1)
        assert begin(3, 1) == 0, "none is smaller"
        assert begin(4, 2), "the third is smaller, and no longer new"
        assert not goes_on(2, third, 2)
        for each in wires:
            each.sock.close()


def test_no_slots_no_sessions(store: Store) -> None:
    store.create_topic("orders")
    limits = Limits(max_incremental_fetch_session_cache_slots=0)
    with stratalog.serve(store, limits=limits) as broker, client(broker) as wire:
        wanted = topics(store, 12, {"orders": {0: 0}})
        assert wire.ask("Fetch", 12, session_epoch=0, topics=wanted, **WIDE).session_id == 0


def test_partitions_of_all_sessions_are_bounded(
    wire: Wire, broker: Broker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.broker.sessions.MAX_PARTITIONS", 5)
    store.create_topic("orders", 8)
    few, more = ({"orders": dict.fromkeys(range(number), 0)} for number in (5, 6))
    assert wire.ask("Fetch", 12, session_epoch=0, topics=topics(store, 12, more), **WIDE).session_id == 0
    made = wire.ask("Fetch", 12, session_epoch=0, topics=topics(store, 12, few), **WIDE)
    grown = wire.ask(
        "Fetch", 12, session_id=made.session_id, session_epoch=1, topics=topics(store, 12, more), **WIDE
    )
    assert (grown.error_code, len(broker.sessions)) == (Code.FETCH_SESSION_ID_NOT_FOUND, 0)


def test_the_next_request_of_a_session_ends_the_one_that_waits(
    wire: Wire, broker: Broker, store: Store
) -> None:
    store.create_topic("orders")
    made = wire.ask("Fetch", 12, session_epoch=0, topics=topics(store, 12, {"orders": {0: 0}}), **WIDE)
    known = {"session_id": made.session_id, **WIDE, "max_wait_ms": 60_000}
    with client(broker) as other:
        wire.sock.sendall(wire.frame("Fetch", 12, session_epoch=1, **known))
        until(lambda: any(each.busy for each in list(broker.connections)))
        refused = other.ask("Fetch", 12, session_epoch=1, **known)
        assert refused.error_code == Code.INVALID_FETCH_SESSION_EPOCH
        other.sock.sendall(other.frame("Fetch", 12, session_epoch=2, **known))
        assert wire.answer("Fetch", 12).error_code == 0
        store["orders"].append(b"x")
        assert numbers(other.answer("Fetch", 12)) == [0]


def test_a_session_sees_every_record_once(wire: Wire, store: Store) -> None:
    """Random appends between polls, partitions forgotten and added as clients do that have data left."""
    rng = random.Random(5)
    topic = store.create_topic("orders", 8)
    at = dict.fromkeys(range(8), 0)
    wanted = topics(store, 13, {"orders": at})
    little = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 300}
    answer = wire.ask("Fetch", 13, session_epoch=0, topics=wanted, **little)
    session, away = answer.session_id, set[int]()
    for epoch in range(1, 400):
        changed: dict[int, int] = {}
        for part in (each for topic_answer in answer.responses for each in topic_answer.partitions):
            assert part.error_code == 0
            data = bytes(part.records)
            while data:
                base, size = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:12], "big") + 12
                assert base == at[part.partition_index]
                at[part.partition_index] = base + int.from_bytes(data[23:27], "big") + 1
                changed[part.partition_index] = at[part.partition_index]
                data = data[size:]
        leave = {number for number in range(8) if rng.random() < 0.1} - away
        back = {number for number in away if rng.random() < 0.5}
        away = (away | leave) - back
        changed = {n: o for n, o in {**changed, **{n: at[n] for n in back}}.items() if n not in away}
        if epoch < 350:
            for _ in range(rng.randrange(4)):
                topic.append(b"x" * rng.randrange(200), partition=rng.randrange(8))
        elif away:
            changed.update({number: at[number] for number in away})
            away = set()
            leave = set()
        answer = wire.ask(
            "Fetch", 13, session_id=session, session_epoch=epoch,
            topics=topics(store, 13, {"orders": changed}) if changed else (),
            forgotten_topics_data=forgotten(store, 13, "orders", *leave) if leave else (), **little,
        )  # fmt: skip
        assert answer.error_code == 0
    assert at == {number: topic.log_end_offset(number) for number in range(8)}
