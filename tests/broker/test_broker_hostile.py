"""What clients must not be able to do to a store, to each other, or to a program that stops its broker."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Record, Store
from stratalog.broker.codes import Code
from stratalog.broker.fetch import _Fetch
from stratalog.broker.loop import EventLoop
from stratalog.broker.server import MAX_ELEMENTS, OFF_LOOP_THREADS
from stratalog.errors import InvalidArgumentError
from stratalog.format.batch import BatchOptions, encode_records
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import (
    WAIT_S,
    Wire,
    batch,
    client,
    fetch_fields,
    metadata_topic,
    produce_fields,
)

OFFSETS = "__consumer_offsets"


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with client(broker) as made:
        yield made


# -- stopping ------------------------------------------------------------------------------------------------


def test_a_call_after_the_end_writes_to_nobody(tmp_path: Path) -> None:
    """The loop's file descriptor is given back; its number may by then be a segment's."""
    loop = EventLoop()
    loop.close()
    with (tmp_path / "segment").open("wb") as file:
        fds = [file.fileno()] + [os.dup(file.fileno()) for _ in range(20)]
        loop.call_soon(lambda: None)
        loop.stop()
        for fd in fds[1:]:
            os.close(fd)
    assert (tmp_path / "segment").read_bytes() == b""


def test_an_append_after_a_stop_harms_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.broker.server.STOP_S", 0.05)
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("orders")
        broker = stratalog.serve(store).start()
        with client(broker) as wire:
            wire.sock.sendall(wire.frame("Fetch", 12, **fetch_fields("orders", 0, wait_ms=60_000)))
            until(lambda: any(each.busy for each in list(broker.connections)))
            broker.stop()
        others = [os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT) for _ in range(30)]
        topic.append(b"a")
        broker.stop()
        for fd in others:
            os.close(fd)
    assert (tmp_path / "other").read_bytes() == b""


def test_a_broker_that_was_never_started_gives_its_port_back(store: Store) -> None:
    broker = stratalog.serve(store)
    broker.stop()
    broker.stop()
    with stratalog.serve(store, port=broker.address.port) as again, client(again) as wire:
        assert wire.ask("ApiVersions", 3).error_code == 0


def test_a_store_has_one_broker_at_a_time(store: Store) -> None:
    """Each of two would be the coordinator of every group, and give its partitions to its own members."""
    with stratalog.serve(store) as broker:
        with pytest.raises(InvalidArgumentError, match="another broker serves this store"):
            stratalog.serve(store)
        port = broker.address.port
        with client(broker) as wire:
            assert wire.ask("ApiVersions", 3).error_code == 0
    with stratalog.serve(store, port=port) as broker, client(broker) as wire:
        assert wire.ask("ApiVersions", 3).error_code == 0
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InvalidArgumentError, match="already in use"),
    ):
        stratalog.serve(store, port=taken.getsockname()[1])
    with stratalog.serve(store) as broker:
        assert broker.bootstrap_servers


@pytest.mark.parametrize("advertised", [None, ("0.0.0.0", 9092), ("::", 9092), ("logs.example.org", 0)])
def test_clients_are_told_no_address_that_is_none(store: Store, advertised: tuple[str, int] | None) -> None:
    with pytest.raises(InvalidArgumentError, match="clients cannot connect to .*advertised.listeners"):
        stratalog.serve(store, "0.0.0.0", advertised=advertised)
    with stratalog.serve(store, "0.0.0.0", advertised=("localhost", 9)) as broker:
        assert broker.bootstrap_servers == "localhost:9"


def test_a_stop_sends_the_answer_that_is_on_its_way(store: Store) -> None:
    topic = store.create_topic("orders")
    for _ in range(16):
        topic.append(os.urandom(1 << 19))
    broker = stratalog.serve(store).start()
    with client(broker) as wire:
        wanted = fetch_fields("orders", 0, max_bytes=8 << 20)
        part = codec("FetchRequest").struct("FetchPartition")
        wanted["topics"] = [
            each._replace(partitions=[part(partition=0, fetch_offset=0, partition_max_bytes=8 << 20)])
            for each in wanted["topics"]
        ]
        wire.sock.sendall(wire.frame("Fetch", 12, **wanted))
        size = int.from_bytes(wire.exactly(4), "big")
        stopping = threading.Thread(target=broker.stop)
        stopping.start()
        time.sleep(0.1)
        assert len(wire.exactly(size)) == size > 7 << 20
        assert wire.closed
        stopping.join()


def test_no_file_descriptor_left_is_not_a_busy_loop(
    wire: Wire, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    assert wire.ask("ApiVersions", 3).error_code == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    waiting = [socket.socket() for _ in range(2)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for each in waiting:
            each.connect(broker.address)
        until(lambda: "cannot accept" in caplog.text)
        for _ in range(50):
            assert wire.ask("ApiVersions", 3).error_code == 0
        assert caplog.text.count("cannot accept") < 20
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    waiting[0].settimeout(WAIT_S)
    waiting[0].sendall(wire.frame("ApiVersions", 3))
    assert waiting[0].recv(4)
    for each in waiting:
        each.close()


# -- what a client may write ---------------------------------------------------------------------------------


def produced(wire: Wire, topic: str, data: bytes) -> Any:
    answer = wire.ask("Produce", 9, **produce_fields(topic, data))
    return answer.responses[0].partition_responses[0].error_code


def test_a_batch_of_no_transaction_does_not_hold_readers_up(wire: Wire, store: Store) -> None:
    topic = store.create_topic("orders")
    made, _ = encode_records(
        [Record(b"a", timestamp=5)],
        options=BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=1 << 20,
        producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
    )  # fmt: skip
    assert produced(wire, "orders", bytes(made.data)) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    topic.append(b"b")
    assert [each.value for each in topic.read(isolation="read_committed")] == [b"b"]


def test_a_client_does_not_write_to_internal_topics(wire: Wire, store: Store) -> None:
    store.groups.offsets.topic_to_write()
    assert produced(wire, OFFSETS, batch(b"garbage")) == Code.INVALID_TOPIC_EXCEPTION
    assert store.topic(OFFSETS).high_watermark(0) == 0


def test_asking_for_internal_topics_does_not_make_them_as_ordinary_ones(wire: Wire, store: Store) -> None:
    wanted = [metadata_topic(name=OFFSETS), metadata_topic(name="__transaction_state")]
    wire.ask("Metadata", 8, topics=wanted, allow_auto_topic_creation=True)
    for name in (OFFSETS, "__transaction_state"):
        if name in store.partitions.entries:
            assert store.topic(name).config.cleanup_policy == {"compact"}


# -- fetches -------------------------------------------------------------------------------------------------


def test_a_client_that_left_waits_for_nothing(broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    end = store.partitions.registry.views("orders")[0].ends  # type: ignore[union-attr]
    with client(broker) as wire:
        wire.sock.sendall(wire.frame("Fetch", 12, **fetch_fields("orders", 0, wait_ms=2**31 - 1)))
        until(lambda: bool(end.waiting))
    until(lambda: not end.waiting)


def test_a_client_that_left_during_a_look_elsewhere_waits_for_nothing(
    broker: Broker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And while the archive is slow, the others are answered."""
    store.create_topic("orders")
    end = store.partitions.registry.views("orders")[0].ends  # type: ignore[union-attr]
    reading, go_on = threading.Event(), threading.Event()
    real = _Fetch._read

    def slow(fetch: _Fetch) -> Any:
        reading.set()
        go_on.wait(WAIT_S)
        return real(fetch)

    monkeypatch.setattr(_Fetch, "_is_archived", lambda *_: True)
    monkeypatch.setattr(_Fetch, "_read", slow)
    with client(broker) as wire:
        wire.sock.sendall(wire.frame("Fetch", 12, **fetch_fields("orders", 0, wait_ms=2**31 - 1)))
        assert reading.wait(WAIT_S)
        with client(broker) as other:
            assert other.ask("Produce", 9, **produce_fields("gone", batch(b"x"))).responses
    until(lambda: not broker.connections)
    go_on.set()
    broker.stop()  # after what the other thread brought
    assert not end.waiting


# -- groups --------------------------------------------------------------------------------------------------


def join_fields(group: str, member_id: str = "", **more: Any) -> dict[str, Any]:
    protocol = codec("JoinGroupRequest").struct("JoinGroupRequestProtocol")(name="range", metadata=b"m")
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [protocol],
    } | more


def test_nobody_joins_a_group_that_is_being_deleted(
    wire: Wire, broker: Broker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a member commits that joins meanwhile would be deleted with the rest."""
    store.create_topic("orders")
    with client(broker) as other:
        first = other.ask("JoinGroup", 3, **join_fields("g"))
        left = other.ask("LeaveGroup", 1, group_id="g", member_id=first.member_id)
        assert left.error_code == 0
        looking, go_on = threading.Event(), threading.Event()
        offsets = store.groups.offsets
        real = offsets.all

        def slow(*groups: Any) -> Any:
            looking.set()
            go_on.wait(WAIT_S)
            return real()

        monkeypatch.setattr(offsets, "all", slow)
        wire.sock.sendall(wire.frame("DeleteGroups", 1, groups_names=["g"]))
        assert looking.wait(WAIT_S)
        refused = other.ask("JoinGroup", 3, **join_fields("g"))
        assert refused.error_code == Code.COORDINATOR_NOT_AVAILABLE
        go_on.set()
        assert wire.answer("DeleteGroups", 1).results[0].error_code == 0
        assert other.ask("JoinGroup", 3, **join_fields("g")).error_code == 0


def test_a_name_that_cannot_be_written_keeps_nobody_waiting(wire: Wire, broker: Broker) -> None:
    """Strings of flexible versions have any length, those of older ones and of records 32 KiB."""
    long = "i" * 40_000
    with client(broker) as other:
        wire.sock.sendall(wire.frame("JoinGroup", 5, **join_fields("g", group_instance_id="short")))
        other.sock.sendall(other.frame("JoinGroup", 7, **join_fields("g", group_instance_id=long)))
        answers = [wire.answer("JoinGroup", 5), other.answer("JoinGroup", 7)]
        assert answers[0].error_code == 0
        assert [each.member_id for each in answers[0].members] == [answers[0].member_id]
        assert answers[1].error_code == Code.INVALID_REQUEST
        assert wire.ask("JoinGroup", 7, **join_fields("g" * 40_000)).error_code == Code.INVALID_GROUP_ID


def commit_fields(group: str, generation: int = -1) -> dict[str, Any]:
    made = codec("OffsetCommitRequest")
    part = made.struct("OffsetCommitRequestPartition")(
        partition_index=0, committed_offset=3, committed_leader_epoch=-1, committed_metadata=""
    )
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": "",
        "group_instance_id": None,
        "topics": [made.struct("OffsetCommitRequestTopic")(name="orders", partitions=[part])],
    }


def test_a_commit_that_waits_for_the_disk_keeps_nobody_else_waiting(
    wire: Wire, broker: Broker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_topic("orders")
    store.groups.offsets.topic_to_write()
    store.alter_topic(OFFSETS, {"flush.messages": 1})
    syncing, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        syncing.set()
        assert go_on.wait(WAIT_S), "the loop waits for the disk"
        real(fd)

    monkeypatch.setattr("stratalog.fs.real._datasync", slow)
    try:
        wire.sock.sendall(wire.frame("OffsetCommit", 7, **commit_fields("g")))
        assert syncing.wait(WAIT_S)
        with client(broker) as other:
            other.sock.settimeout(5)
            assert other.ask("ApiVersions", 3).error_code == 0
    finally:
        go_on.set()
    answer = wire.answer("OffsetCommit", 7)
    assert answer.topics[0].partitions[0].error_code == 0


def test_a_commit_that_was_checked_is_written_before_anything_else_happens(
    wire: Wire, broker: Broker, store: Store
) -> None:
    """With ``flush.messages=1`` too: in a queue for another thread it could come behind the next owner's."""
    store.create_topic("orders")
    store.groups.offsets.topic_to_write()
    store.alter_topic(OFFSETS, {"flush.messages": 1})
    go_on = threading.Event()
    try:
        for _ in range(OFF_LOOP_THREADS):
            broker.pool.submit(go_on.wait, WAIT_S)
        wire.sock.settimeout(5)
        answer = wire.ask("OffsetCommit", 7, **commit_fields("g"))
        assert answer.topics[0].partitions[0].error_code == 0
        committed = store.groups.offsets.committed("g", "orders", 0)
        assert committed is not None
        assert committed.offset == 3
    finally:
        go_on.set()


def test_a_commit_of_an_unknown_generation_makes_no_group(wire: Wire, broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    answer = wire.ask("OffsetCommit", 7, **commit_fields("nobody", 5))
    assert answer.topics[0].partitions[0].error_code == Code.ILLEGAL_GENERATION
    assert broker.groups.get("nobody") is None


def test_a_store_that_is_closed_first_closes_connections_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stratalog.open(tmp_path / "data") as store:
        store.create_topic("orders")
        broker = stratalog.serve(store).start()
    for name, version, fields in (
        ("Fetch", 12, fetch_fields("orders", 0)),
        ("OffsetCommit", 7, commit_fields("g")),
    ):
        with client(broker) as wire:
            wire.sock.sendall(wire.frame(name, version, **fields))
            assert wire.closed
    broker.stop()
    assert "unexpected" not in caplog.text


def test_a_request_of_countless_elements_is_refused_before_they_are_made(
    wire: Wire, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """One megabyte could hold a million of them: each takes time and memory, as do the answers."""
    names = [metadata_topic(name="t") for _ in range(MAX_ELEMENTS + 1)]
    wire.sock.sendall(wire.frame("Metadata", 12, topics=names, allow_auto_topic_creation=False))
    assert wire.sock.recv(1) == b""
    until(lambda: f"more than {MAX_ELEMENTS} elements in one message" in caplog.text)
    with client(broker) as other:
        assert other.ask("ApiVersions", 3).error_code == 0


def test_a_slow_client_is_not_idle(wire: Wire, broker: Broker, store: Store) -> None:
    """Bytes that come or go count, not whole requests: a large one takes a slow network minutes."""
    topic = store.create_topic("orders")
    assert wire.ask("ApiVersions", 3).error_code == Code.NONE
    [connection] = broker.connections
    frame = wire.frame("Produce", 9, **produce_fields("orders", batch(b"x")))
    before = connection.last_used_s
    wire.sock.sendall(frame[:-1])
    until(lambda: connection.last_used_s > before)
    wire.sock.sendall(frame[-1:])
    assert wire.answer("Produce", 9).responses[0].partition_responses[0].error_code == Code.NONE
    for _ in range(40):
        topic.append(b"x" * 1_000_000)
    fields = fetch_fields("orders", 1, max_bytes=40 << 20)
    [part] = fields["topics"][0].partitions
    topics = [fields["topics"][0]._replace(partitions=[part._replace(partition_max_bytes=40 << 20)])]
    wire.sock.sendall(wire.frame("Fetch", 12, **(fields | {"topics": topics})))
    size = int.from_bytes(wire.exactly(4), "big")
    begun = connection.last_used_s
    wire.exactly(size)  # far more than the sockets hold
    until(lambda: connection.last_used_s > begun)
