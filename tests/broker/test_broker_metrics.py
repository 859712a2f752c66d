"""What Prometheus is told: the format, the numbers, and clients that misbehave."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from stratalog import Broker, Store
from stratalog.broker.operations.metrics import CLIENT_S, CLIENTS, CONTENT_TYPE, Metric, MetricsServer, text
from stratalog.errors import InvalidArgumentError
from tests.broker.test_broker_bytes import batch, client, produce_fields
from tests.broker.test_broker_settings import WAIT_S, refused, serve

LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (-?[0-9.e+-]+)")


@pytest.fixture
def metrics(broker: Broker) -> Iterator[MetricsServer]:
    with MetricsServer(broker, "127.0.0.1", 0) as server:
        yield server


def asked(server: MetricsServer) -> dict[str, float]:
    """Every sample by name and labels; each metric has its help and type before it."""
    with urllib.request.urlopen("http://{}:{}/metrics".format(*server.address), timeout=WAIT_S) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        lines = answer.read().decode().splitlines()
    found, told = {}, set()
    for line in lines:
        if line.startswith("#"):
            told.add(tuple(line.split()[1:3]))
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        name, labels, value = match.groups()
        assert {("HELP", name), ("TYPE", name)} <= told
        assert name.endswith("_total") or ("TYPE", name) in told
        found[f"{name}{{{labels}}}" if labels else name] = float(value)
    return found


def test_numbers_follow_what_happens(broker: Broker, store: Store, metrics: MetricsServer) -> None:
    topic = store.create_topic("orders", partitions=2)
    before = asked(metrics)
    with client(broker) as wire:
        for _ in range(3):
            assert wire.ask("Produce", 9, **produce_fields("orders", batch(b"v"))).responses
        assert wire.ask("ApiVersions", 3).error_code == 0
        after = asked(metrics)
    ends = topic.high_watermark(0)
    assert ends > 0
    assert after['stratalog_high_watermark{topic="orders",partition="0"}'] == ends
    assert after['stratalog_high_watermark{topic="orders",partition="1"}'] == 0
    assert after['stratalog_log_size_bytes{topic="orders",partition="0"}'] > 0
    assert after['stratalog_requests_total{api="Produce"}'] == 3
    assert after['stratalog_requests_total{api="ApiVersions"}'] == 1
    assert 'stratalog_requests_total{api="Produce"}' not in before
    assert after["stratalog_connections"] == before["stratalog_connections"] + 1
    assert after["stratalog_connections_accepted_total"] == 1
    assert after["process_resident_memory_bytes"] > 1 << 20
    assert 0 < after["process_open_fds"] < after["process_max_fds"]
    assert after["process_cpu_seconds_total"] >= before["process_cpu_seconds_total"] > 0
    assert abs(after["process_start_time_seconds"] - time.time()) < WAIT_S
    [online] = [value for name, value in after.items() if name.startswith("stratalog_log_dir_online")]
    assert online == 1


def test_labels_are_escaped() -> None:
    made = text(
        [Metric("m", "gauge", "About it.", [({"path": 'a"b\\c\nd'}, 1.5)]), Metric("n", "gauge", "", [])]
    )
    assert made == '# HELP m About it.\n# TYPE m gauge\nm{path="a\\"b\\\\c\\nd"} 1.5\n'


def test_nothing_else_is_served(metrics: MetricsServer) -> None:
    for path in ("/", "/metricsx", "/../etc/passwd"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen("http://{}:{}{}".format(*metrics.address, path), timeout=WAIT_S)


def test_clients_that_stop_or_send_garbage_keep_nobody_waiting_for_long(
    metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        socket.create_connection(metrics.address) as silent,
        socket.create_connection(metrics.address) as bad,
    ):
        silent.sendall(b"GET /met")
        bad.sendall(b"\x16\x03\x01" + bytes(500))
        assert asked(metrics)["stratalog_connections"] == 0


def test_clients_that_send_slowly_keep_neither_others_nor_the_end_waiting(broker: Broker) -> None:
    done = threading.Event()
    with ExitStack() as stack:
        slow: list[socket.socket] = []
        stack.callback(done.set)

        def drip() -> None:
            while not done.wait(0.2):
                for each in slow:
                    with suppress(OSError):
                        each.sendall(b"a")

        with MetricsServer(broker, "127.0.0.1", 0) as server:
            for _ in range(CLIENTS - 1):
                slow.append(stack.enter_context(socket.create_connection(server.address)))
                slow[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            threading.Thread(target=drip, daemon=True).start()
            began_s = time.monotonic()
            assert asked(server)["stratalog_connections"] == 0
            assert time.monotonic() - began_s < CLIENT_S / 2
            slow[0].settimeout(WAIT_S)
            assert slow[0].recv(1) == b""  # dropped, though it never stopped
            slow.append(stack.enter_context(socket.create_connection(server.address)))
            slow[-1].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            time.sleep(0.3)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < CLIENT_S / 2


def test_more_clients_than_are_answered_at_once_are_sent_away(metrics: MetricsServer) -> None:
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(metrics.address))
        last = stack.enter_context(socket.create_connection(metrics.address, timeout=CLIENT_S / 2))
        assert last.recv(1) == b""
    assert asked(metrics)["stratalog_connections"] == 0


def test_a_taken_address_is_an_error_that_says_so(broker: Broker, metrics: MetricsServer) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot listen on 127.0.0.1:.* for metrics"):
        MetricsServer(broker, *metrics.address)


def test_the_command_tells_where(tmp_path: Path) -> None:
    arguments = "--data", f"{tmp_path}/data", "--listen", "127.0.0.1:0", "--metrics-listen"
    with serve(*arguments, "127.0.0.1:0") as process:
        assert process.stderr is not None
        assert "ready: " in process.stderr.readline()
        url = process.stderr.readline().split()[-1]
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            assert b"stratalog_info" in answer.read()
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
        assert process.returncode == 0
    code, errors = refused(*arguments, "nowhere")
    assert code == 2
    assert "--metrics-listen" in errors
