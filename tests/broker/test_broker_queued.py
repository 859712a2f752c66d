"""Large requests and answers of all connections share one limit of memory; small ones never wait."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import stratalog
from stratalog import Broker, Store
from stratalog.broker import queued
from stratalog.broker.server import Limits
from tests.broker.test_broker_bytes import Wire, batch, client, fetch_fields, produce_fields
from tests.broker.test_broker_hostile import until

LIMIT = 1 << 20
VALUE = 600 << 10


@pytest.fixture
def broker(store: Store) -> Iterator[Broker]:
    with stratalog.serve(store, limits=Limits(queued_max_request_bytes=LIMIT)) as broker:
        yield broker


@pytest.fixture
def frame(store: Store) -> bytes:
    store.create_topic("orders")
    return Wire.frame(Wire.__new__(Wire), "Produce", 9, **produce_fields("orders", batch(os.urandom(VALUE))))


def answered(wire: Wire) -> None:
    assert wire.answer("Produce", 9).responses[0].partition_responses[0].error_code == 0


def crowd(broker: Broker, frame: bytes, made: ExitStack) -> tuple[Wire, Wire, Wire]:
    """Two clients hold more than there is, with all but the last byte; the third waits for memory."""
    first, second, third = (made.enter_context(client(broker)) for _ in range(3))
    first.sock.sendall(frame[:-1])
    until(lambda: broker.queued.taken == len(frame))
    second.sock.sendall(frame[:-1])
    until(lambda: broker.queued.taken == 2 * len(frame))
    third.sock.sendall(frame[: 100 << 10])
    until(lambda: bool(broker.queued.waiting) or len(broker.connections) == 2)
    return first, second, third


def test_large_requests_wait_for_each_other_and_small_ones_do_not(
    broker: Broker, frame: bytes, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as made, caplog.at_level(logging.WARNING, "stratalog.broker"):
        first, second, third = crowd(broker, frame, made)
        small = made.enter_context(client(broker))
        assert small.ask("ApiVersions", 3).error_code == 0
        first.sock.sendall(frame[-1:])
        answered(first)
        third.sock.sendall(frame[100 << 10 :])
        answered(third)
        second.sock.sendall(frame[-1:])
        answered(second)
        assert broker.queued.taken <= LIMIT
        assert "of queued.max.request.bytes=1048576 are taken: large requests wait" in caplog.text
        for each in (first, second, third):
            assert each.ask("ApiVersions", 3).error_code == 0
    until(lambda: not broker.connections)
    assert broker.queued.taken == 0
    assert store["orders"].log_end_offset(0) == 3


def test_a_client_that_leaves_while_it_waits_is_forgotten(broker: Broker, frame: bytes) -> None:
    with ExitStack() as made:
        _, second, third = crowd(broker, frame, made)
        third.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        third.sock.close()
        until(lambda: len(broker.connections) == 2)
        fourth = made.enter_context(client(broker))
        second.sock.close()
        fourth.sock.sendall(frame)
        answered(fourth)
    until(lambda: not broker.connections)
    assert broker.queued.taken == 0


def test_one_that_takes_more_than_there_is_may_not_take_for_ever(
    broker: Broker, frame: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queued, "PATIENCE_S", 0.05)
    with ExitStack() as made, caplog.at_level(logging.WARNING, "stratalog.broker"):
        first, second, third = crowd(broker, frame, made)
        assert second.closed
        third.sock.sendall(frame[100 << 10 :])
        answered(third)
        assert "came too slowly while others waited for memory" in caplog.text
        first.sock.sendall(frame[-1:])
        answered(first)


def test_buffers_that_hold_nothing_are_given_back(broker: Broker, frame: bytes) -> None:
    with ExitStack() as made:
        for _ in range(5):
            wire = made.enter_context(client(broker))
            wire.sock.sendall(frame)
            answered(wire)
            assert broker.queued.taken <= LIMIT
        assert len(broker.connections) == 5


def test_what_a_client_does_not_take_of_the_archive_is_bounded(tmp_path: Path) -> None:
    """Archived segments are answered from memory, and share the limit."""
    settings = {"log.archive.url": str(tmp_path / "archive")}
    with stratalog.open(tmp_path / "data", settings) as store:
        old = store.create_topic("old", config={"remote.storage.enable": True, "local.retention.bytes": 0})
        for _ in range(30):
            old.append(os.urandom(200 << 10))
        old.roll()
        store.archive()
        store.janitor()
        limits = Limits(queued_max_request_bytes=LIMIT, socket_send_buffer_bytes=4096)
        with stratalog.serve(store, limits=limits) as broker, ExitStack() as made:
            wanted = fetch_fields("old", 0, max_bytes=8 << 20)
            [topic] = wanted["topics"]
            part = topic.partitions[0]._replace(partition_max_bytes=8 << 20)
            wanted["topics"] = [topic._replace(partitions=[part])]
            slow = made.enter_context(client(broker))
            slow.sock.sendall(slow.frame("Fetch", 12, **wanted))
            until(lambda: broker.queued.taken > 0)
            other = made.enter_context(client(broker))
            [told] = other.ask("Fetch", 12, **wanted).responses
            assert 200 << 10 < len(told.partitions[0].records) < LIMIT // 2, "there is less left"
            until(lambda: broker.queued.taken <= LIMIT)
            [told] = slow.answer("Fetch", 12).responses
            assert LIMIT // 2 < len(told.partitions[0].records) <= LIMIT
            until(lambda: broker.queued.taken == 0)
