"""The broker: a listener, its connections, and the table of APIs that are served.

What is not in the table is not advertised. Requests are answered in the loop's thread; a handler that would
wait for a disk or an object store does that in another thread and answers later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from stratalog.broker import cluster, configs, fetch, metadata, offsets, produce, transactions
from stratalog.broker.codes import Code, Troubles, code_of
from stratalog.broker.connection import Connection, Part
from stratalog.broker.groups import committed, coordinator, expiry, listing
from stratalog.broker.groups.assignors import ASSIGNORS
from stratalog.broker.loop import READ, EventLoop
from stratalog.broker.queued import QueuedBytes
from stratalog.broker.sessions import Sessions
from stratalog.broker.shortcut import Shortcut
from stratalog.broker.syncing import Syncs
from stratalog.errors import ClosedError, InvalidArgumentError, StratalogError
from stratalog.store import Store
from stratalog.store.catalog import State
from stratalog.wire.messages import Codec, codec
from stratalog.wire.schema import Versions

T = TypeVar("T")
OFF_LOOP_THREADS = 4
EVERYWHERE = ("", "0.0.0.0", "::")
"""What a broker may listen on, but no client can connect to from elsewhere."""
ACCEPT_AGAIN_S = 0.5
"""How long no connection is accepted after the process ran out of file descriptors."""
MAX_ELEMENTS = 1 << 17
"""Of all arrays of one request: what is read and answered for each keeps other clients waiting."""
STOP_S = 5.0
"""How long a stop waits for requests at hand."""

_log = logging.getLogger("stratalog.broker")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one broker takes from its clients; Kafka's names and defaults."""

    socket_request_max_bytes: int = 100 << 20
    queued_max_request_bytes: int = 512 << 20
    """Of large requests and answers in memory, all connections together; Kafka has no limit by default."""
    max_connections: int = 10_000
    max_connections_per_ip: int = 10_000
    connections_max_idle_ms: int = 600_000
    socket_send_buffer_bytes: int = 100 << 10
    fetch_max_bytes: int = 55 << 20
    max_incremental_fetch_session_cache_slots: int = 1000
    group_initial_rebalance_delay_ms: int = 100
    """Kafka waits 3,000 ms, for many consumers on many machines."""
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    """How long an unused transactional id is kept."""
    offsets_retention_minutes: int = 10_080
    """How long the offsets of a group are kept after its last member left; -1: for ever."""
    offsets_retention_check_interval_ms: int = 600_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Those that members may choose; the first one is the default."""


class Address(NamedTuple):
    """Where clients reach the broker."""

    host: str
    port: int


class Api(NamedTuple):
    """One kind of request: its versions, its messages, and what answers it."""

    key: int
    versions: Versions
    request: Codec
    response: Codec
    handle: Callable[[Request], None]
    advertised_low: int


@dataclass(slots=True)
class Counters:
    """What was counted since the start. Changed by the loop alone, except ``errors``."""

    requests: Counter[int] = field(default_factory=Counter)
    """By key of the API."""
    errors: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    refused: int = 0


class Request:
    """One request, decoded. Its handler answers it once, from the loop's thread."""

    __slots__ = ("api", "body", "broker", "client_id", "connection", "correlation_id", "version")

    def __init__(
        self, broker: Broker, connection: Connection, api: Api, version: int, header: Any, body: Any
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.api = api
        self.version = version
        self.correlation_id: int = header.correlation_id
        self.client_id: str | None = header.client_id
        self.body = body

    @property
    def response(self) -> Codec:
        """The codec of the answer, which has its structs."""
        return self.api.response

    def answer(self, value: Any, version: int | None = None) -> None:
        """Send the answer; ``version`` is the request's unless it is another."""
        version = self.version if version is None else version
        flexible = version in self.api.response.flexible and self.api.key != API_VERSIONS
        head = self.correlation_id.to_bytes(4, "big", signed=True) + (b"\0" if flexible else b"")
        gaps: list[tuple[int, Any]] = []
        data = self.api.response.encode(value, version, head, framed=True, gaps=gaps)
        self.connection.answer(_parts(data, gaps) if gaps else (data,))

    def code_of(self, error: BaseException) -> Code:
        """Return Kafka's code for an error. One that is the broker's or its disk's is in the log too."""
        code = code_of(error)
        if code in OURS or (code is Code.CORRUPT_MESSAGE and self.api.key != PRODUCE):
            name = self.api.request.name.removesuffix("Request")
            self.broker.counters.errors[name] += 1
            kind = name, type(error), getattr(error, "errno", None)
            self.broker.troubles.tell_soon(kind, f"{name} failed: {error}")
        return code

    def no_answer(self) -> None:
        """Send nothing and go on with the next request."""
        self.connection.answer(())

    def soon(self, act: Callable[[], None]) -> None:
        """Call ``act`` in the loop; any thread may ask for it. An error in it closes the connection."""

        self.broker.loop.call_soon(partial(self.now, act))

    def now(self, act: Callable[[], None]) -> None:
        """Call ``act`` in the loop's thread. An error in it closes the connection."""
        try:
            act()
        except Exception:
            self.connection.close("an unexpected error")
            raise

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call ``act`` in the loop's thread after a time. An error in it closes the connection."""
        self.broker.loop.call_later(delay_s, partial(self.now, act))

    def off_loop(self, work: Callable[[], T], then: Callable[[T | BaseException], None]) -> None:
        """Do ``work`` in another thread, then call ``then`` with its result or its error in the loop."""

        def done(future: Future[T]) -> None:
            error = future.exception()
            if error is not None and not isinstance(error, StratalogError | OSError | ValueError):
                _log.error("an unexpected error in the broker", exc_info=error)
            self.soon(lambda: then(future.result() if error is None else error))

        try:
            self.broker.pool.submit(work).add_done_callback(done)
        except RuntimeError:
            then(ClosedError("the broker stops"))


def _parts(data: bytes, gaps: list[tuple[int, Any]]) -> Sequence[Part]:
    """Put what was left out of an answer in its places."""
    view, parts, at = memoryview(data), [], 0
    for place, part in gaps:
        parts += [view[at:place], part]
        at = place
    if at < len(view):
        parts.append(view[at:])
    return parts


PRODUCE, API_VERSIONS = 0, 18
OURS = (Code.KAFKA_STORAGE_ERROR, Code.UNKNOWN_SERVER_ERROR)
"""Codes of errors that no client is to blame for."""
HANDLERS: dict[str, tuple[Callable[[Request], None], int]] = {
    # name: what answers it, and the lowest version that is advertised if that is not the lowest served
    "Produce": (produce.produce, 0),  # librdkafka stops compressing where it is not 0
    "Fetch": (fetch.fetch, -1),
    "ListOffsets": (offsets.list_offsets, -1),
    "Metadata": (metadata.metadata, -1),
    "ApiVersions": (metadata.api_versions, -1),
    "CreateTopics": (metadata.create_topics, -1),
    "DeleteTopics": (metadata.delete_topics, -1),
    "CreatePartitions": (metadata.create_partitions, -1),
    "DeleteRecords": (offsets.delete_records, -1),
    "InitProducerId": (transactions.init_producer_id, -1),
    "AddPartitionsToTxn": (transactions.add_partitions_to_txn, -1),
    "AddOffsetsToTxn": (transactions.add_offsets_to_txn, -1),
    "EndTxn": (transactions.end_txn, -1),
    "TxnOffsetCommit": (transactions.txn_offset_commit, -1),
    "DescribeProducers": (transactions.describe_producers, -1),
    "DescribeTransactions": (transactions.describe_transactions, -1),
    "ListTransactions": (transactions.list_transactions, -1),
    "OffsetForLeaderEpoch": (offsets.offset_for_leader_epoch, -1),
    "DescribeTopicPartitions": (metadata.describe_topic_partitions, -1),
    "DescribeCluster": (cluster.describe_cluster, -1),
    "DescribeLogDirs": (cluster.describe_log_dirs, -1),
    "AlterReplicaLogDirs": (cluster.alter_replica_log_dirs, -1),
    "ListPartitionReassignments": (cluster.list_partition_reassignments, -1),
    "ElectLeaders": (cluster.elect_leaders, -1),
    "DescribeQuorum": (cluster.describe_quorum, -1),
    "DescribeAcls": (cluster.describe_acls, -1),
    "ListConfigResources": (configs.list_config_resources, -1),
    "DescribeConfigs": (configs.describe_configs, -1),
    "AlterConfigs": (configs.alter_configs, -1),
    "IncrementalAlterConfigs": (configs.incremental_alter_configs, -1),
    "FindCoordinator": (coordinator.find_coordinator, -1),
    "JoinGroup": (coordinator.join_group, -1),
    "SyncGroup": (coordinator.sync_group, -1),
    "Heartbeat": (coordinator.heartbeat, -1),
    "LeaveGroup": (coordinator.leave_group, -1),
    "OffsetCommit": (committed.offset_commit, -1),
    "OffsetFetch": (committed.offset_fetch, -1),
    "ConsumerGroupHeartbeat": (coordinator.consumer_group_heartbeat, -1),
    "ConsumerGroupDescribe": (listing.consumer_group_describe, -1),
    "ListGroups": (listing.list_groups, -1),
    "DescribeGroups": (listing.describe_groups, -1),
    "DeleteGroups": (listing.delete_groups, -1),
    "OffsetDelete": (expiry.offset_delete, -1),
}
NEWEST = {"InitProducerId": 5, "AddPartitionsToTxn": 3}
"""Where Kafka's newest version is not stable yet, or is for brokers alone."""


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; InvalidArgumentError if the address is taken or not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise InvalidArgumentError(
            f"cannot listen on {host}:{port}: {reason}; give another address, or port 0 for a free one"
        ) from error


def _apis() -> dict[int, Api]:
    found = {}
    for name, (handle, low) in HANDLERS.items():
        request, response = codec(f"{name}Request"), codec(f"{name}Response")
        assert request.id is not None
        versions = Versions(request.versions.low, NEWEST.get(name, request.versions.high))
        found[request.id] = Api(
            request.id, versions, request, response, handle, versions.low if low < 0 else low
        )
    return found


class Broker:
    """Serves one store. Start it with `start` or use it in a ``with`` block; the store stays open."""

    node_id = 1

    def __init__(
        self,
        store: Store,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        advertised: tuple[str, int] | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        auto_create_topics: bool = True,
    ) -> None:
        if store.read_only:
            raise InvalidArgumentError("a broker needs a store that is open for writing")
        known, chosen = sorted(ASSIGNORS), limits.group_consumer_assignors
        if not chosen or not set(chosen) <= set(known):
            raise InvalidArgumentError(f"group_consumer_assignors: expected some of {known}, got {chosen!r}")
        if (advertised or (host, 1))[0] in EVERYWHERE or (advertised and not advertised[1]):
            told = "{}:{}".format(*(advertised or (host, port)))
            raise InvalidArgumentError(
                f"clients cannot connect to {told}: give the address that they are told"
                " (advertised.listeners, --advertise HOST:PORT)"
            )
        if not store.groups.begin_serving():
            raise InvalidArgumentError("another broker serves this store: stop it first")
        store.partitions.served = True
        self.store = store
        self.limits = limits
        self.auto_create_topics = auto_create_topics
        self.apis = _apis()
        self.cluster_id = store.cluster_id
        self.loop = EventLoop()
        self.syncs = Syncs(self.loop)
        self.troubles = Troubles(self.loop)
        self.queued = QueuedBytes(
            self.loop, limits.queued_max_request_bytes, partial(self.troubles.tell, "queued")
        )
        self.groups = coordinator.Groups(self)
        self.sessions = Sessions(self.loop, limits.max_incremental_fetch_session_cache_slots)
        self._shortcut = Shortcut(self)
        self.told: dict[tuple[str, str], tuple[Any, ...]] = {}
        """What Metadata tells of each topic's partitions, as long as the store's topics are ``told_of``."""
        self.told_of: State | None = None
        self.connections: set[Connection] = set()
        self.counters = Counters()
        self.began_s = time.time()
        self._by_ip: Counter[str] = Counter()
        self.pool = ThreadPoolExecutor(OFF_LOOP_THREADS, thread_name_prefix="stratalog-broker-work")
        self._mover = ThreadPoolExecutor(1, thread_name_prefix="stratalog-broker-move")
        self._thread: threading.Thread | None = None
        self._headers = codec("RequestHeader", "headers")
        self._stopping = False
        self._begun = False
        try:
            self._listener = _listening(host, port)
        except BaseException:
            self.pool.shutdown(wait=False)
            self.loop.close()
            store.partitions.served = False
            store.groups.end_serving()
            raise
        self._listener.setblocking(False)
        self.address = Address(host, self._listener.getsockname()[1])
        self.advertised = Address(*(advertised or self.address))
        self._listen()
        self.loop.call_later(self._idle_check_s, self._close_idle)

    def __repr__(self) -> str:
        return f"<Broker {self.bootstrap_servers}>"

    @property
    def bootstrap_servers(self) -> str:
        """What clients are given as ``bootstrap.servers``."""
        return f"{self.advertised.host}:{self.advertised.port}"

    # -- running -------------------------------------------------------------------------------------

    def start(self) -> Broker:
        """Serve in a thread of its own, once."""
        if self._begun:
            raise InvalidArgumentError("a broker is started once; make another one")
        self._thread = threading.Thread(target=self.run, name="stratalog-broker", daemon=True)
        self._begun = True
        self._thread.start()
        return self

    def run(self) -> None:
        """Serve in this thread until `stop`; not at all if that came first."""
        self._begun = True
        try:
            if not self._stopping:
                self.store.transactions.load(self.limits.transactional_id_expiration_ms)
                self.groups.load()
                expiry.Expiry(self).start()
                self.loop.run()
        finally:
            self._stopping = True
            for connection in list(self.connections):
                connection.close("the broker stops")
            self.groups.close()
            self._listener.close()
            self.pool.shutdown(wait=True)
            self._mover.shutdown(wait=True, cancel_futures=True)
            self.loop.close()
            self.store.partitions.served = False
            self.store.groups.end_serving()

    def stop(self) -> None:
        """Stop accepting connections, finish current requests and end `run`. Thread-safe and idempotent."""
        if not self._begun:
            self._stopping = True
            self.run()
            return
        self.loop.call_soon(partial(self._stop, time.monotonic() + STOP_S))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _stop(self, deadline_s: float) -> None:
        if not self._stopping:
            self._stopping = True
            self.loop.forget(self._listener.fileno())
            self._listener.close()
        for connection in list(self.connections):
            if connection.idle:
                connection.close("the broker stops")
        if not self.connections or time.monotonic() >= deadline_s:
            self.loop.stop()
        else:
            self.loop.call_later(0.02, partial(self._stop, deadline_s))

    def move(self, act: Callable[[], None]) -> None:
        """Run slow work in the worker thread, after the work that was submitted before."""
        with contextlib.suppress(RuntimeError):  # the broker stops
            self._mover.submit(act)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- connections ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        if not self._stopping:
            self.loop.watch(self._listener.fileno(), READ, self._accept)

    def _accept(self, _: int) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no file descriptor is left: those that are connected go on
                self.troubles.tell("accept", f"cannot accept a connection: {error}")
                self.loop.forget(self._listener.fileno())
                self.loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            ip = str(peer[0])
            limits = self.limits
            if (
                len(self.connections) >= limits.max_connections
                or self._by_ip[ip] >= limits.max_connections_per_ip
            ):
                sock.close()
                self.counters.refused += 1
                self.troubles.tell(
                    "refused",
                    f"a connection of {ip} was refused: {len(self.connections)} of max.connections="
                    f"{limits.max_connections}, {self._by_ip[ip]} of max.connections.per.ip="
                    f"{limits.max_connections_per_ip} from there",
                )
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.socket_send_buffer_bytes)
            connection = Connection(
                self.loop,
                sock,
                ip,
                limits.socket_request_max_bytes,
                self.queued,
                self._handle,
                self._gone,
            )
            self.connections.add(connection)
            self._by_ip[ip] += 1
            self.counters.accepted += 1

    def _gone(self, connection: Connection, why: str) -> None:
        self.connections.discard(connection)
        self._by_ip[connection.peer] -= 1
        if not self._by_ip[connection.peer]:
            del self._by_ip[connection.peer]
        if why and not self._stopping:
            text = f"the connection of {connection.peer} was closed: {why}"
            self.troubles.tell(("closed", connection.peer), text)

    @property
    def _idle_check_s(self) -> float:
        return max(0.01, min(10.0, self.limits.connections_max_idle_ms / 4000))

    def _close_idle(self) -> None:
        oldest_s = time.monotonic() - self.limits.connections_max_idle_ms / 1000
        for connection in list(self.connections):
            if not connection.busy and connection.last_used_s < oldest_s:
                connection.close()
        self.loop.call_later(self._idle_check_s, self._close_idle)

    # -- requests ------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, frame: memoryview) -> None:
        """Answer one frame. ValueError closes the connection: the stream cannot be parsed from here on."""
        try:
            if self._shortcut.take(connection, frame):
                self.counters.requests[PRODUCE] += 1
                return
            self._handle_plain(connection, frame)
        except ClosedError as error:  # the program closed the store before it stopped the broker
            connection.close(str(error))

    def _handle_plain(self, connection: Connection, frame: memoryview) -> None:
        if len(frame) < 8:
            raise ValueError(f"a request of {len(frame)} bytes")
        key = int.from_bytes(frame[:2], "big", signed=True)
        version = int.from_bytes(frame[2:4], "big", signed=True)
        api = self.apis.get(key)
        if api is None or version not in api.versions:
            if api is None or key != API_VERSIONS:
                raise ValueError(f"API {key}, version {version} is not served")
            header, _ = self._headers.decode(frame, 1)
            request = Request(self, connection, api, 0, header, None)
            metadata.unknown_version(request)
            return
        self.counters.requests[key] += 1
        api.handle(self.request(connection, api, version, frame))

    def request(self, connection: Connection, api: Api, version: int, frame: memoryview) -> Request:
        """Return a frame as a request; ValueError if it is none."""
        flexible = version in api.request.flexible
        header, at = self._headers.decode(frame, 2 if flexible else 1)
        body, _ = (
            api.request.decode(frame, version, at, most=MAX_ELEMENTS)
            if at < len(frame)
            else (api.request(), at)
        )
        return Request(self, connection, api, version, header, body)


def serve(
    store: Store,
    host: str = "127.0.0.1",
    port: int = 0,
    **options: Any,
) -> Broker:
    """Serve a store to Kafka clients: ``with stratalog.serve(store) as broker: … broker.bootstrap_servers``.

    Port 0 takes a free one. The options are those of `Broker`. The store stays open when the broker stops.
    """
    if not hasattr(os, "eventfd"):
        raise InvalidArgumentError("the broker needs Linux")
    return Broker(store, host, port, **options)
