"""Produce requests on the short way: the answers, and the log, are those of the plain one, byte for byte."""

from __future__ import annotations

import errno
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import stratalog
from stratalog import Broker, Store
from stratalog.broker.codes import Code
from stratalog.broker.shortcut import Shortcut
from stratalog.fs.failing import FailingFileSystem, Fault
from stratalog.fs.real import RealFileSystem
from stratalog.testing.clock import ManualClock
from stratalog.wire.messages import codec
from tests.store.test_door import NOW, make_batch

REQUEST, RESPONSE = codec("ProduceRequest"), codec("ProduceResponse")
HEADER = codec("RequestHeader", "headers")
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "safe": {"flush.messages": 1},
    "small": {"max.message.bytes": 300},
    "keyed": {"cleanup.policy": "compact"},
    "packed": {"compression.type": "lz4"},
}


def frames(store: Store) -> list[bytes]:
    """Requests, good and bad, of every version that is served."""
    bodies = {
        "one": make_batch([b"a"]),
        "several": make_batch([b"a", b"bb"], codec=3) + make_batch([b"c"], codec=4),
        "keyless": make_batch([b"a"], key=None),
        "large": make_batch([b"x" * 400]),
        "crc": make_batch([b"a"])[:-1] + b"\x01",
        "garbage": b"\0" * 80,
        "short": make_batch([b"a"])[:-3],
        "transactional": make_batch([b"a"], producer_id=5, epoch=0, sequence=0, transactional=True),
        "first": make_batch([b"a"], producer_id=7, epoch=0, sequence=0),
        "repeated": make_batch([b"a"], producer_id=7, epoch=0, sequence=0),
        "gap": make_batch([b"a"], producer_id=7, epoch=0, sequence=9),
        "fenced": make_batch([b"a"], producer_id=7, epoch=-1, sequence=1),
        "empty": b"",
    }
    made = []
    for version in range(3, 14):
        for name in CONFIGS:
            made += [frame(store, version, name, 0, records) for records in bodies.values()]
        made += [
            frame(store, version, "plain", 1, bodies["one"]),
            frame(store, version, "plain", -1, bodies["one"]),
            frame(store, version, "unknown", 0, bodies["one"]),
            frame(store, version, "__consumer_offsets", 0, bodies["one"]),
            frame(store, version, "plain", 0, bodies["one"], acks=1),
            frame(store, version, "plain", 0, bodies["one"], acks=7),
            frame(store, version, "plain", 0, None),
        ]
    return made


def frame(
    store: Store, version: int, topic: str, partition: int, records: bytes | None, acks: int = -1
) -> bytes:
    part = REQUEST.struct("PartitionProduceData")(index=partition, records=records)
    where: dict[str, Any] = {"name": topic}
    if version >= 13:
        entry = store.partitions.registry.topic(topic)
        assert entry is None or entry.id is not None
        where = {"topic_id": b"\x07" * 16 if entry is None or entry.id is None else entry.id.bytes}
    topics = [REQUEST.struct("TopicProduceData")(partition_data=[part], **where)]
    head = HEADER.encode(
        HEADER(request_api_key=0, request_api_version=version, correlation_id=version, client_id="c"),
        2 if version in REQUEST.flexible else 1,
    )
    return REQUEST.encode(REQUEST(acks=acks, timeout_ms=1000, topic_data=topics), version, head, framed=True)


@contextmanager
def connected(broker: Broker) -> Iterator[tuple[socket.socket, BinaryIO]]:
    with socket.create_connection(broker.address, timeout=30) as sock, sock.makefile("rb") as file:
        yield sock, file


def replay(path: Path) -> tuple[list[bytes], dict[str, bytes]]:
    """Return the answers to all requests, and the log of each topic."""
    answers = []
    with stratalog.open(path, clock=ManualClock(NOW + 1000)) as store:
        for name, config in CONFIGS.items():
            store.create_topic(name, config=config)
        with stratalog.serve(store) as broker, connected(broker) as (sock, file):
            for each in frames(store):
                sock.sendall(each)
                answers.append(file.read(int.from_bytes(file.read(4), "big")))
        for name in CONFIGS:  # ids are random
            entry = store.partitions.entry(name)
            assert entry.id is not None
            answers = [each.replace(entry.id.bytes, name.encode()) for each in answers]
        assert all(store.topic(name).log_end_offset(0) > 10 for name in CONFIGS)
    found = {name: sorted(path.glob(f"{name}-0/*.log")) for name in CONFIGS}
    return answers, {name: b"".join(map(Path.read_bytes, files)) for name, files in found.items()}


@contextmanager
def held(broker: Broker) -> Iterator[None]:
    """Let the loop stand still: what is sent meanwhile is ready in its next turn."""
    holds, goes = threading.Event(), threading.Event()

    def wait() -> None:
        holds.set()
        goes.wait()

    broker.loop.call_soon(wait)
    holds.wait()
    try:
        yield
    finally:
        goes.set()


def together(path: Path, seed: int) -> tuple[list[bytes], dict[str, bytes]]:
    """As `replay`, from many clients: their requests are ready in one turn of the loop, in one order."""
    answers: list[bytes] = []
    rng = random.Random(seed)
    with stratalog.open(path, clock=ManualClock(NOW + 1000)) as store, ExitStack() as stack:
        for name, config in CONFIGS.items():
            store.create_topic(name, config=config)
        broker = stack.enter_context(stratalog.serve(store))
        clients = [stack.enter_context(connected(broker)) for _ in range(24)]
        # what is several batches is appended at once, not at the end of the turn
        left = [each for each in frames(store) if each.count(make_batch([b"c"], codec=4)[61:]) == 0]
        rng.shuffle(left)
        while left:
            requests = [left.pop() for _ in range(min(len(left), rng.randrange(1, 25)))]
            with held(broker):
                for (sock, _), request in zip(clients, requests, strict=False):
                    sock.sendall(request)
            for (_, file), _ in zip(clients, requests, strict=False):
                answers.append(file.read(int.from_bytes(file.read(4), "big")))
        for name in CONFIGS:
            entry = store.partitions.entry(name)
            assert entry.id is not None
            answers = [each.replace(entry.id.bytes, name.encode()) for each in answers]
    found = {name: sorted(path.glob(f"{name}-0/*.log")) for name in CONFIGS}
    return answers, {name: b"".join(map(Path.read_bytes, files)) for name, files in found.items()}


@pytest.mark.parametrize("seed", range(3))
def test_requests_of_one_turn_are_answered_as_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    sizes: list[int] = []
    real = Shortcut._append_together

    def append_together(self: Shortcut, requests: Any, *args: Any) -> None:
        sizes.append(len(requests))
        real(self, requests, *args)

    monkeypatch.setattr(Shortcut, "_append_together", append_together)
    short = together(tmp_path / "short", seed)
    assert sum(size > 1 for size in sizes) > 40
    monkeypatch.setattr(Shortcut, "take", lambda *_: False)
    plain = together(tmp_path / "plain", seed)
    assert short[0] == plain[0]
    assert short[1] == plain[1]


def test_a_write_that_fails_is_told_to_every_request_it_was_for(tmp_path: Path) -> None:
    fs = FailingFileSystem(RealFileSystem())
    with stratalog.open(tmp_path, fs=fs) as store, ExitStack() as stack:
        topic = store.create_topic("orders")
        topic.append(b"first")
        broker = stack.enter_context(stratalog.serve(store))
        clients = [stack.enter_context(connected(broker)) for _ in range(5)]

        def round_of(*faults: Fault) -> list[tuple[int, int]]:
            with held(broker):
                for sock, _ in clients:
                    sock.sendall(frame(store, 8, "orders", 0, make_batch([b"a", b"b"])))
                for fault in faults:
                    fs.inject(fault)
            answers = [file.read(int.from_bytes(file.read(4), "big")) for _, file in clients]
            parts = [RESPONSE.decode(each, 8, 4)[0].responses[0].partition_responses[0] for each in answers]
            return [(part.error_code, part.base_offset) for part in parts]

        assert round_of() == [(0, 1), (0, 3), (0, 5), (0, 7), (0, 9)]
        failed = round_of(Fault("pwrite", path="*.log", error=errno.EIO))
        assert failed == [(Code.KAFKA_STORAGE_ERROR, -1)] * 5
        assert topic.log_end_offset(0) == 11
        fs.heal()
        assert round_of() == [(0, 11), (0, 13), (0, 15), (0, 17), (0, 19)]


def test_answers_and_logs_are_those_of_the_plain_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    real = Shortcut.take

    def take(self: Shortcut, *args: Any) -> bool:
        taken.append(real(self, *args))
        return taken[-1]

    monkeypatch.setattr(Shortcut, "take", take)
    short = replay(tmp_path / "short")
    assert taken.count(True) > taken.count(False) > 100, "both ways were gone"
    monkeypatch.setattr(Shortcut, "take", lambda *_: False)
    plain = replay(tmp_path / "plain")
    assert short[0] == plain[0]
    assert short[1] == plain[1]


def test_a_topic_made_again_under_its_name_is_found(store: Store, broker: Broker) -> None:
    with connected(broker) as (sock, file):

        def produce(version: int) -> bytes:
            sock.sendall(frame(store, version, "orders", 0, make_batch([b"a"])))
            return file.read(int.from_bytes(file.read(4), "big"))

        for _ in range(3):
            store.create_topic("orders")
            assert produce(8) != produce(8)
            assert produce(13)
            assert store.topic("orders").log_end_offset(0) == 3
            before = frame(store, 13, "orders", 0, make_batch([b"a"]))
            store.delete_topic("orders")
            sock.sendall(before)
            answer = file.read(int.from_bytes(file.read(4), "big"))
            part = RESPONSE.decode(answer, 13, 5)[0].responses[0].partition_responses[0]
            assert part.error_code == Code.UNKNOWN_TOPIC_ID


def test_without_acknowledgement_nothing_is_answered_and_an_error_closes(
    store: Store, broker: Broker
) -> None:
    topic = store.create_topic("orders")
    with connected(broker) as (sock, file):
        sock.sendall(frame(store, 8, "orders", 0, make_batch([b"a"]), acks=0))
        sock.sendall(frame(store, 8, "orders", 0, make_batch([b"b"])))
        answer = file.read(int.from_bytes(file.read(4), "big"))
        part = RESPONSE.decode(answer, 8, 4)[0].responses[0].partition_responses[0]
        assert (part.error_code, part.base_offset) == (0, 1)
        sock.sendall(frame(store, 8, "orders", 0, make_batch([b"c"])[:-1] + b"\1", acks=0))
        assert file.read(1) == b""
    assert topic.log_end_offset(0) == 2


def test_requests_in_pieces_and_in_a_row_do_not_mix_between_clients(store: Store, broker: Broker) -> None:
    """What one client sent in part waits while others are served through the buffer that all share."""
    topic = store.create_topic("orders", config={"flush.messages": 1})
    rng = random.Random(7)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(broker)) for _ in range(5)]
        values = [[b"%d-%d" % (number, each) * 40 for each in range(30)] for number in range(5)]
        left = [
            b"".join(frame(store, 8, "orders", 0, make_batch([value])) for value in mine) for mine in values
        ]
        while any(left):
            number = rng.randrange(5)
            size = rng.randrange(1, 900)
            clients[number][0].sendall(left[number][:size])
            left[number] = left[number][size:]
        for _, file in clients:
            for _ in range(30):
                part = file.read(int.from_bytes(file.read(4), "big"))
                assert RESPONSE.decode(part, 8, 4)[0].responses[0].partition_responses[0].error_code == 0
    found = [record.value for record in topic.read(0)]
    assert sorted(found, key=repr) == sorted((each for mine in values for each in mine), key=repr)
    for number, mine in enumerate(values):
        assert [each for each in found if each is not None and each.startswith(b"%d-" % number)] == mine
