"""What a broker tells a monitoring system: `GET /metrics`, in the text format that Prometheus reads.

Each client of its HTTP server has a thread and `CLIENT_S` for its request, however slowly it sends; at most
`CLIENTS` are connected. None can keep another, or the end of the server, waiting. Numbers are collected when
they are read, from memory and a few calls of the operating system: nothing is counted for them on the
way of a request but the request itself.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.broker.server import ACCEPT_AGAIN_S
from stratalog.errors import InvalidArgumentError, StratalogError
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.lifecycle.reports import LogDirInfo
from stratalog.version import __version__

if TYPE_CHECKING:
    from stratalog.broker.server import Broker

CLIENT_S = 5.0
CLIENTS = 16
PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]
"""Labels and a value."""


class Metric(NamedTuple):
    """One metric with its samples; the names end as Prometheus wants them to."""

    name: str
    kind: str
    help: str
    samples: Iterable[Sample]


def collect(broker: Broker) -> Iterator[Metric]:
    """Yield every metric as it is now."""
    store, began_s = broker.store, broker.began_s
    yield Metric("stratalog_info", "gauge", "The version that runs.", [({"version": __version__}, 1)])
    yield from _process(began_s)
    yield Metric(
        "stratalog_connections", "gauge", "Open connections of clients.", [({}, len(broker.connections))]
    )
    yield Metric(
        "stratalog_queued_bytes",
        "gauge",
        "Bytes of large requests and answers in memory.",
        [({}, broker.queued.taken)],
    )
    yield Metric(
        "stratalog_queued_connections",
        "gauge",
        "Connections with a large request that wait for memory.",
        [({}, broker.queued.waiting)],
    )
    counters = broker.counters
    for name, told, count in (
        ("connections_accepted", "Connections that were accepted.", counters.accepted),
        ("connections_refused", "Connections that were refused by a limit.", counters.refused),
    ):
        yield Metric(f"stratalog_{name}_total", "counter", told, [({}, count)])
    names = {key: api.request.name.removesuffix("Request") for key, api in broker.apis.items()}
    yield Metric(
        "stratalog_requests_total",
        "counter",
        "Requests that were received, by API.",
        [({"api": names[key]}, count) for key, count in sorted(dict(counters.requests).items())],
    )
    yield Metric(
        "stratalog_request_errors_total",
        "counter",
        "Errors that were the broker's or its disk's, by API; each is in the log, too.",
        [({"api": name}, count) for name, count in sorted(dict(counters.errors).items())],
    )
    yield Metric(
        "stratalog_groups",
        "gauge",
        "Groups that have or had members.",
        _by("state", broker.groups.states().items()),
    )
    yield from _log_dirs(store.log_dirs())
    yield from _partitions(broker)


def _by(label: str, found: Iterable[tuple[str, float]]) -> list[Sample]:
    return [({label: value}, number) for value, number in found]


def _process(began_s: float) -> Iterator[Metric]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    for name, kind, told, value in (
        ("cpu_seconds_total", "counter", "CPU time of the process.", usage.ru_utime + usage.ru_stime),
        ("resident_memory_bytes", "gauge", "Memory that the process holds.", pages * resource.getpagesize()),
        ("open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd")) - 1),
        ("max_fds", "gauge", "How many may be open.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ("start_time_seconds", "gauge", "When the broker began to listen.", began_s),
    ):
        yield Metric(f"process_{name}", kind, told, [({}, value)])


def _log_dirs(found: list[LogDirInfo]) -> Iterator[Metric]:
    for name, told, samples in (
        ("online", "1 while a log directory can be used.", [(each, each.offline is None) for each in found]),
        ("size_bytes", "Bytes of the logs in it.", [(each, each.size_bytes) for each in found]),
        ("free_bytes", "Free space of its file system.", [(each, each.free_bytes) for each in found]),
        ("partitions", "Partitions in it.", [(each, each.partitions) for each in found]),
        (
            "offline_partitions",
            "Partitions in it that cannot be used.",
            [(each, len(each.offline_partitions)) for each in found],
        ),
    ):
        yield Metric(
            f"stratalog_log_dir_{name}",
            "gauge",
            told,
            [({"path": each.path}, float(value)) for each, value in samples if value is not None],
        )


def _partitions(broker: Broker) -> Iterator[Metric]:
    rows = [
        ({"topic": writer.topic, "partition": str(writer.partition)}, _numbers(writer))
        for writer in broker.store.partitions.writers()
    ]
    for name, told in (
        ("log_start_offset", "The first offset that can be read."),
        ("high_watermark", "The first offset that readers may not see."),
        ("last_stable_offset", "The first offset that read_committed may not see."),
        ("log_segments", "Segments on local disks."),
        ("log_size_bytes", "Bytes on local disks."),
    ):
        yield Metric(f"stratalog_{name}", "gauge", told, [(labels, found[name]) for labels, found in rows])


def _numbers(writer: PartitionWriter) -> dict[str, float]:
    local = writer.local_segments()
    return {
        "log_start_offset": writer.log_start_offset,
        "high_watermark": writer.end_offset(),
        "last_stable_offset": writer.end_offset("read_committed"),
        "log_segments": len(local),
        "log_size_bytes": sum(segment.size for segment in local),
    }


def text(metrics: Iterable[Metric]) -> str:
    """Return metrics in the text format; those without samples are left out."""
    lines = []
    for metric in metrics:
        samples = [f"{metric.name}{_labels(labels)} {_number(value)}" for labels, value in metric.samples]
        if samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *samples]
    return "\n".join([*lines, ""])


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


class MetricsServer:
    """Answers ``GET /metrics`` on an address of its own, from `__enter__` to `__exit__`."""

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self._broker = broker
        try:
            self._server = _Server((host, port), _handler(broker))
        except OSError as error:
            raise InvalidArgumentError(
                f"cannot listen on {host}:{port} for metrics: {(error.strerror or str(error)).lower()}; give"
                " another address, or port 0 for a free one"
            ) from error
        self.address: tuple[str, int] = (host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="stratalog-metrics", daemon=True
        )

    def __enter__(self) -> MetricsServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._clients: set[Any] = set()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without asking the resolver for a name, which may take long."""
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client; one that cannot be accepted is ready again at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_AGAIN_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread of its own, unless there are too many."""
        if len(self._clients) >= CLIENTS:
            self.shutdown_request(request)
            return
        self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Say goodbye to a client."""
        self._clients.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Close the listener, then the clients, and wait for their threads."""
        for each in list(self._clients):
            with contextlib.suppress(OSError):  # it is gone already
                each.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that disconnects in the middle is no error."""


class _Received(io.RawIOBase):
    """What a client sends until its time is up."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._until_s = time.monotonic() + CLIENT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._sock.recv_into(buffer)


def _handler(broker: Broker) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "stratalog"
        sys_version = ""

        def setup(self) -> None:
            super().setup()
            self.rfile = io.BufferedReader(_Received(self.connection))

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(404, f"only {PATH} is served")
                return
            try:
                data = text(collect(broker)).encode()
            except (StratalogError, OSError) as error:
                self.send_error(503, "the store does not answer", str(error))
                return
            self.connection.settimeout(CLIENT_S)  # for all of the answer
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the log for what is wrong."""

    return Handler
