"""Random and hostile clients at a live socket: no crash, no hang, no memory, and no harm to others."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog import Broker, Store
from stratalog.broker.loop import FIRST_BUFFER
from stratalog.testing import ProcessBroker
from stratalog.wire.messages import codec
from tests.broker.test_broker_bytes import WAIT_S, Wire, batch, client, produce_fields
from tests.wire.fuzz_wire import mutate, some_request

ROUNDS = 4
SLOW, FILES = 2000, 4096
"""Clients at the same time, and the file descriptors that they and their tests need at most."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def frame(rng: random.Random, broker: Broker, changed: bool) -> bytes:
    """Return a request of any API and version with random values, perhaps with some bytes changed."""
    api = rng.choice(list(broker.apis.values()))
    return frame_of(rng, api.request.name, rng.randint(api.versions.low, api.versions.high), changed)


def frame_of(rng: random.Random, name: str, version: int, changed: bool) -> bytes:
    made, body = some_request(rng, name, version)
    header = codec("RequestHeader", "headers")
    head = header.encode(
        header(request_api_key=made.id, request_api_version=version, correlation_id=1, client_id="t"),
        2 if version in made.flexible else 1,
    )
    data = bytearray(made.encode(body, version, head))
    if changed:
        for _ in range(rng.choice((1, 2, 5))):
            if len(data) > 8:
                rest = data[8:]
                mutate(rng, rest)
                data[8:] = rest
    return struct.pack(">i", len(data)) + data


def send(broker: Broker, data: bytes) -> None:
    """Send it and leave, as a client does that dies."""
    with socket.create_connection(broker.address, timeout=WAIT_S) as sock, contextlib.suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(0.02)
        while sock.recv(1 << 16):
            pass


@pytest.mark.parametrize("changed", [False, True])
def test_random_requests_of_every_api_and_version(
    broker: Broker, store: Store, caplog: pytest.LogCaptureFixture, changed: bool
) -> None:
    rng = random.Random(2026 + changed)
    with client(broker) as other:
        for api in list(broker.apis.values()):
            for version in range(api.versions.low, api.versions.high + 1):
                for _ in range(ROUNDS):
                    send(broker, frame_of(rng, api.request.name, version, changed))
                assert other.ask("ApiVersions", 3).error_code == 0, (api.request.name, version)
    assert "unexpected" not in caplog.text, caplog.text
    store.create_topic("after").append(b"a")
    assert [each.value for each in store["after"].read()] == [b"a"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ProcessBroker]:
    """A broker in a process of its own; both may have thousands of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))
    try:
        with ProcessBroker(tmp_path / "data") as made:
            yield made
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident(process: ProcessBroker) -> int:
    """Return the memory of the broker's process."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE


def address(process: ProcessBroker) -> tuple[str, int]:
    host, port = process.bootstrap_servers.split(":")
    return host, int(port)


class Place:
    """What a `Wire` needs of a broker."""

    def __init__(self, process: ProcessBroker) -> None:
        self.address = address(process)


@pytest.fixture
def others(process: ProcessBroker) -> Iterator[Callable[[], Wire]]:
    """Make clients by bytes, which are closed at the end."""
    place: Any = Place(process)
    with contextlib.ExitStack() as made:
        yield lambda: made.enter_context(client(place))


def test_thousands_of_clients_that_stop_within_a_frame(
    process: ProcessBroker, others: Callable[[], Wire]
) -> None:
    """Their frames are as long as allowed, and take the memory of what came."""
    process.create_topic("orders")
    count = min(SLOW, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    other = others()
    assert other.ask("ApiVersions", 3).error_code == 0
    before = resident(process)
    slow = [others().sock for _ in range(count)]
    for at, sock in enumerate(slow):
        sock.sendall((struct.pack(">i", 100 << 20) + b"\0\0")[: 2 + at % 5])
    for at in range(20):
        answer = other.ask("Produce", 9, **produce_fields("orders", batch(b"x")))
        assert answer.responses[0].partition_responses[0].base_offset == at
    grown = resident(process) - before
    assert grown < count * 2 * FIRST_BUFFER, f"{grown} bytes for {count} clients"
    for sock in slow:
        sock.close()
    assert other.ask("ApiVersions", 3).error_code == 0


def test_clients_that_never_read_their_answers(process: ProcessBroker, others: Callable[[], Wire]) -> None:
    process.create_topic("orders")
    other = others()
    for _ in range(8):
        other.ask("Produce", 9, **produce_fields("orders", batch(os.urandom(500_000))))
    before = resident(process)
    count = 50
    for _ in range(count):
        made = others()
        made.sock.setblocking(False)
        ask = frame_of(random.Random(1), "ApiVersionsRequest", 3, False) * 2000
        with contextlib.suppress(BlockingIOError):
            while ask:
                ask = ask[made.sock.send(ask) :]
    for _ in range(20):
        assert other.ask("ApiVersions", 3).error_code == 0
    grown = resident(process) - before
    assert grown < count * (1 << 20), f"{grown} bytes for {count} clients"


def test_lengths_that_cannot_be(process: ProcessBroker, others: Callable[[], Wire]) -> None:
    other = others()
    for size in (-1, -(2**31), 0, 1, 7, (100 << 20) + 1, 2**31 - 1):
        with socket.create_connection(address(process), timeout=WAIT_S) as sock:
            sock.sendall(struct.pack(">i", size) + bytes(8 if size > 8 else max(0, size)))
            with contextlib.suppress(ConnectionError):
                assert sock.recv(1) == b"", size
    assert other.ask("ApiVersions", 3).error_code == 0


def test_rubbish_does_not_add_up(process: ProcessBroker, others: Callable[[], Wire]) -> None:
    """Thousands of clients with rubbish leave no memory and no connection behind."""
    rng = random.Random(7)
    other = others()

    def some(count: int) -> None:
        for _ in range(count):
            with socket.create_connection(address(process), timeout=WAIT_S) as sock:
                data = rng.randbytes(rng.randrange(1, 400))
                sock.sendall(struct.pack(">i", len(data)) + data if rng.random() < 0.7 else data)
        deadline = time.monotonic() + WAIT_S
        while len(os.listdir(f"/proc/{process.pid}/fd")) > 60:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert other.ask("ApiVersions", 3).error_code == 0

    some(500)
    before = resident(process)
    some(3000)
    assert resident(process) - before < 1500 * FIRST_BUFFER
