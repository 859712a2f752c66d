"""The control socket against clients that send garbage, do not read, stop in the middle, or are too many."""

from __future__ import annotations

import json
import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stratalog
from stratalog import errors
from stratalog.store.admin import control_server
from stratalog.store.admin.admin import COMMANDS, connect, run_command
from stratalog.store.admin.control import ControlClient, Frame, FrameReader
from stratalog.store.store import Store
from tests.store.lifecycle_support import eventually

DEEP = b"[" * 100_000 + b"]" * 100_000


def framed(header: bytes) -> bytes:
    return struct.pack(">I", len(header)) + header


def command(name: object, arguments: object, **more: object) -> bytes:
    return framed(json.dumps({"command": name, "arguments": arguments, "payload": 0, **more}).encode())


BROKEN = {
    "a length of nothing": struct.pack(">I", 0),
    "a length past the limit": b"\xff" * 64,
    "no JSON": framed(b"nope"),
    "no object": framed(b"[1, 2]"),
    "not UTF-8": framed(b'{"command": "\xff\xfe", "payload": 0}'),
    "no payload": framed(b'{"command": "ping", "arguments": {}}'),
    "a payload of 1e999": framed(b'{"command": "ping", "arguments": {}, "payload": 1e999}'),
    "a payload of NaN": framed(b'{"command": "ping", "arguments": {}, "payload": NaN}'),
    "a payload of true": framed(b'{"command": "ping", "arguments": {}, "payload": true}'),
    "a negative payload": framed(b'{"command": "ping", "arguments": {}, "payload": -1}'),
    "a payload past the limit": framed(b'{"command": "ping", "arguments": {}, "payload": 68719476736}'),
    "deep nesting": framed(b'{"command": "ping", "payload": 0, "arguments": ' + DEEP + b"}"),
    "a number of 5,000 digits": framed(
        b'{"command": "ping", "payload": 0, "arguments": ' + b"1" * 5000 + b"}"
    ),
    "millions of values": framed(b'{"payload": 0, "arguments": [' + b"{}," * 2_000_000 + b"{}]}"),
}
"""Bytes that are not a frame: their connection cannot be read on."""

REFUSED = {
    "a list for a command": command([1], {}),
    "an object for a command": command({"a": []}, {}),
    "no command": framed(b'{"payload": 0}'),
    "a list for arguments": command("ping", [1]),
    "no arguments": framed(b'{"command": "ping", "payload": 0}'),
    "an argument too many": command("ping", {"more": 1}),
    "a number for a name": command("create_topic", {"name": 7, "partitions": 1, "config": {}}),
    "true for a number": command("create_topic", {"name": "x", "partitions": True, "config": {}}),
    "a number of 65 bits": command("create_topic", {"name": "x", "partitions": 2**64, "config": {}}),
    "a list for settings": command("create_topic", {"name": "x", "partitions": 1, "config": [1]}),
    "a list for a setting": command("alter_topic", {"name": "t", "changes": {"segment.bytes": [1]}}),
    "half a character": command("alter_topic", {"name": "t\ud800", "changes": {}}),
    "a topic of 10¹⁸ partitions": command("stage_topic", {"name": "x", "partitions": 10**18}),
    "a topic of no partitions": command(
        "take_in_topic", {"name": "x", "id": "AAAAAAAAAAAAAAAAAAAAAQ", "config": {}, "staged": []}
    ),
    "text for bytes": command("erase", {"topic": "t", "keys": ["zz"], "reason": "", "dry_run": True}),
    "a payload for a ping": command("ping", {}, payload=3) + b"abc",
    "garbage for records": command("append", {"topic": "t", "partition": 0, "sync": False}, payload=70)
    + b"\1" * 70,
}
"""Frames whose connection goes on after an error."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as opened:
        topic = opened.create_topic("t", config={"flush.ms": 10})
        topic.append(b"v")
        topic.roll()  # the background thread looks at once, and every few milliseconds from then on
        yield opened


def raw(store: Store) -> socket.socket:
    assert store.control_address is not None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(store.control_address)
    return connection


def answer(connection: socket.socket) -> Frame | None:
    """Return the next frame that is no progress; None at the end."""
    reader = FrameReader()
    with suppress(ConnectionResetError):  # closed before all was read of what we sent
        while data := connection.recv(reader.due):
            frame = reader.feed(data)
            if frame is not None and "progress" not in frame.header:
                return frame
    return None


def ask_without_reading(connection: socket.socket) -> None:
    """Ask until the holder takes nothing more."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            connection.send(command("lifecycle", {}) * 100)


def is_alive(store: Store) -> bool:
    """Return True once the background thread has flushed a new record, and the socket answers."""
    assert store.control_address is not None
    topic = store.topic("t")
    end = topic.append(b"v").offset + 1
    eventually(lambda: store.partitions.writer("t", 0).recovery_point >= end, timeout_s=5.0)
    client = ControlClient(store.control_address, None)
    try:
        return "topics" in client.request("ping", {}).header["result"]
    finally:
        client.close()


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_frame_gets_an_error_and_ends_its_connection(
    store: Store, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stratalog"), raw(store) as connection:
        connection.sendall(data)
        told = answer(connection)
        assert told is not None
        assert told.header["error"]["type"] == "ControlError"
        assert answer(connection) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert is_alive(store)


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_a_frame_that_asks_for_nonsense_gets_an_error_and_another_try(
    store: Store, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stratalog"), raw(store) as connection:
        connection.sendall(data)
        told = answer(connection)
        assert told is not None
        assert told.header["error"]["type"] in ("ControlError", "InvalidArgumentError")
        connection.sendall(command("ping", {}))
        told = answer(connection)
        assert told is not None
        assert told.header["result"] == {"topics": 1}
    assert caplog.records == []
    assert is_alive(store)


def test_a_client_that_does_not_read_delays_no_flush(store: Store) -> None:
    with raw(store) as connection:
        ask_without_reading(connection)
        assert is_alive(store)


def test_a_store_closes_while_a_client_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "STOP_TIMEOUT_S", 0.01)
    with stratalog.open(tmp_path / "data") as store:
        connection = raw(store)
        ask_without_reading(connection)
    connection.close()
    with stratalog.open(tmp_path / "data"):
        pass


def test_a_frame_that_never_ends_is_dropped_and_its_room_is_free_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "FRAME_TIMEOUT_S", 0.2)
    header = json.dumps({"command": "ping", "arguments": {}, "payload": 64 << 20}).encode()
    halves = [raw(store) for _ in range(6)]
    for half in halves:
        half.sendall(framed(header) + b"x" * 1000)
    for half in halves:  # two find room and never end, the others wait for it
        told = answer(half)
        assert told is not None
        assert told.header["error"]["type"] == "ControlError"
        half.close()
    monkeypatch.undo()  # a whole frame has all the time it needs
    assert store.control_address is not None
    client = ControlClient(store.control_address, None)
    with pytest.raises(errors.ControlError, match="takes no payload"):
        client.request("ping", {}, b"x" * (64 << 20))
    client.close()
    assert is_alive(store)


def test_the_longest_idle_connection_makes_place(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a client whose connection was dropped meanwhile connects again by itself."""
    monkeypatch.setattr(control_server, "MAX_CONNECTIONS", 4)
    assert store.control_address is not None
    clients = [ControlClient(store.control_address, None) for _ in range(12)]
    for client in clients:
        assert client.request("ping", {}).header["result"] == {"topics": 1}
    assert sum(thread.name == "stratalog-command" for thread in threading.enumerate()) <= 5
    for client in clients:
        assert client.request("ping", {}).header["result"] == {"topics": 1}
        client.close()


def test_when_all_are_busy_a_client_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "MAX_CONNECTIONS", 2)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def wait(*_: object) -> None:
        begun.release()
        go_on.wait(20)

    monkeypatch.setitem(COMMANDS, "flush", COMMANDS["flush"]._replace(run=wait))
    with raw(store) as one, raw(store) as two:
        for each in (one, two):
            each.sendall(command("flush", {}))
            assert begun.acquire(timeout=20)
        with raw(store) as third:
            told = answer(third)
        assert told is not None
        assert "busy connections" in told.header["error"]["message"]
        go_on.set()
        assert answer(one) == answer(two) == Frame({"result": None, "payload": 0})
    assert is_alive(store)


def test_an_idle_client_is_dropped_and_comes_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "IDLE_TIMEOUT_S", 0.01)
    with raw(store) as idle:
        assert answer(idle) is None
    with connect(store.partitions.dirs.all[0].path) as client:
        for _ in range(3):
            assert client.roll("t") in (0, 1)


def test_an_answer_that_is_too_large_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "ping", COMMANDS["ping"]._replace(run=lambda store: "x" * (17 << 20)))
    assert store.control_address is not None
    client = ControlClient(store.control_address, None)
    with pytest.raises(errors.ControlError, match="too large"):
        client.request("ping", {})
    client.close()


def test_every_command_refuses_every_wrong_type(store: Store) -> None:
    """A value of a wrong type is refused by the table, before anything runs."""
    good: dict[str, Any] = {"text": "t", "an integer of 64 bits": 0, "a positive integer": 1}
    wrong: tuple[Any, ...] = ({"a": object()}, 1.5, [object()], object())
    assert store.control_address is not None
    for name, entry in COMMANDS.items():
        for argument in entry.arguments:
            for value in wrong:
                arguments = {each: good.get(kind.name) for each, kind in entry.arguments.items()}
                for each, kind in entry.arguments.items():
                    if not kind.accepts(arguments[each]):
                        others: tuple[Any, ...] = (False, [], {})
                        arguments[each] = next(other for other in others if kind.accepts(other))
                arguments[argument] = value
                kind = entry.arguments[argument]
                if kind.name.startswith("an object") and kind.accepts(value):
                    continue
                with pytest.raises(errors.InvalidArgumentError, match=f"{name}: {argument} must be"):
                    run_command(store, name, arguments, b"")
    assert store.topics() == ["t"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.just(2**64) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted(set(COMMANDS) - {"accept_clock", "delete_topic"})) | JSON


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return a frame: any values, the right arguments with any values, a wrong payload, a piece cut out."""
    name = draw(NAMES)
    entry = COMMANDS.get(name) if isinstance(name, str) else None
    if entry is not None and draw(st.booleans()):
        arguments: object = {each: draw(JSON | st.just("t") | st.just(0)) for each in entry.arguments}
    else:
        arguments = draw(JSON)
    payload = draw(st.binary(max_size=80))
    size = draw(st.just(len(payload)) | st.integers(-2, 1 << 70))
    header = json.dumps({"command": name, "arguments": arguments, "payload": size}).encode()
    data = framed(header) + payload
    at, until = draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))
    return data if draw(st.booleans()) else data[: min(at, until)] + data[max(at, until) :]


def test_no_stream_of_bytes_stops_the_flush(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Hostile frames, whole and cut, on many connections at once, beside an appender whose log is flushed."""
    caplog.set_level(logging.ERROR, "stratalog")
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("t", config={"flush.ms": 10})
        stop = threading.Event()

        def append() -> None:
            while not stop.is_set():
                topic.append(b"v")
                stop.wait(0.001)

        appender = threading.Thread(target=append)
        appender.start()

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(frames(), min_size=1, max_size=6), st.integers(0, 2**32))
        def attack(streams: list[bytes], seed: int) -> None:
            chance = random.Random(seed)
            connections = [raw(store) for _ in streams]
            for connection, data in zip(connections, streams, strict=True):
                at = chance.randint(0, len(data))
                with suppress(BrokenPipeError):  # it was refused already
                    connection.sendall(data[:at])
                    if chance.random() < 0.5:
                        connection.sendall(data[at:])
                    if chance.random() < 0.3:
                        connection.shutdown(socket.SHUT_WR)
                        told = answer(connection)
                        assert told is None or set(told.header) & {"error", "result"}
            for connection in connections:
                connection.close()

        try:
            attack()
            assert is_alive(store)
        finally:
            stop.set()
            appender.join()
        end = topic.log_end_offset()
        assert [record.offset for record in topic.read(0, topic.log_start_offset())] == list(
            range(topic.log_start_offset(), end)
        )
    with stratalog.open(tmp_path / "data") as again:
        assert again.topic("t").log_end_offset() == end
        assert [report.cuts + report.damages for report in again.recovery if report.cuts] == []
