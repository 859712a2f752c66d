"""Bytes at the broker's socket: frames in pieces and many at once, garbage, limits, slow clients."""

from __future__ import annotations

import logging
import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import stratalog
from stratalog import Broker, Record, Store, Topic
from stratalog.broker.codes import Code
from stratalog.broker.server import Limits
from stratalog.format.batch import BatchOptions, encode_records
from stratalog.wire.messages import codec

WAIT_S = 20


class Wire:
    """A client by bytes."""

    def __init__(self, broker: Broker) -> None:
        self.sock = socket.create_connection(broker.address, timeout=WAIT_S)

    def frame(self, name: str, version: int, number: int = 1, **fields: Any) -> bytes:
        made, header = codec(f"{name}Request"), codec("RequestHeader", "headers")
        if name == "ApiVersions":
            fields = {"client_software_name": "t", "client_software_version": "1"} | fields
        head = header.encode(
            header(
                request_api_key=made.id, request_api_version=version, correlation_id=number, client_id="t"
            ),
            2 if version in made.flexible else 1,
        )
        return made.encode(made(**fields), version, head, framed=True)

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        self.sock.sendall(self.frame(name, version, **fields))
        return self.answer(name, version)

    def answer(self, name: str, version: int, number: int = 1) -> Any:
        data = self.read()
        assert int.from_bytes(data[:4], "big") == number
        made = codec(f"{name}Response")
        start = 5 if version in made.flexible and name != "ApiVersions" else 4
        found, end = made.decode(data, version, start)
        assert end == len(data)
        return found

    def read(self) -> bytes:
        return self.exactly(int.from_bytes(self.exactly(4), "big"))

    def exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.sock.recv(size - len(found))
            if not piece:
                raise ConnectionError(f"closed after {len(found)} of {size} bytes")
            found += piece
        return bytes(found)

    @property
    def closed(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with client(broker) as made:
        yield made


@contextmanager
def client(broker: Broker) -> Iterator[Wire]:
    made = Wire(broker)
    try:
        yield made
    finally:
        made.sock.close()


def batch(*values: bytes) -> bytes:
    records = [Record(value, timestamp=5) for value in values]
    made, _ = encode_records(
        records, options=BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=1 << 20)
    )
    return bytes(made.data)


def test_every_version_of_api_versions(wire: Wire, broker: Broker) -> None:
    for version in range(5):
        told = wire.ask("ApiVersions", version, client_software_name="t", client_software_version="1")
        keys = {each.api_key: (each.min_version, each.max_version) for each in told.api_keys}
        assert keys[0] == (0, 13), "librdkafka stops compressing where it is not 0"
        assert set(keys) == set(broker.apis)


def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest(wire: Wire) -> None:
    frame = bytearray(wire.frame("ApiVersions", 4))
    frame[6:8] = (99).to_bytes(2, "big")
    wire.sock.sendall(frame)
    told = wire.answer("ApiVersions", 0)
    assert told.error_code == Code.UNSUPPORTED_VERSION
    assert {each.api_key for each in told.api_keys} >= {0, 1, 3, 18}
    assert wire.ask("ApiVersions", 3).error_code == 0


def test_metadata_in_every_version(wire: Wire, store: Store, broker: Broker) -> None:
    store.create_topic("orders", 2)
    for version in range(14):
        told = wire.ask("Metadata", version, topics=() if version == 0 else None)
        [topic] = told.topics
        assert (topic.name, len(topic.partitions)) == ("orders", 2)
        assert told.brokers[0].port == broker.address.port
        if version >= 10:
            by_id = wire.ask("Metadata", 12, topics=[metadata_topic(topic_id=topic.topic_id)])
            assert by_id.topics[0].name == "orders"
    nobody = wire.ask("Metadata", 12, topics=[metadata_topic(topic_id=bytes(15) + b"\1")])
    assert nobody.topics[0].error_code == Code.UNKNOWN_TOPIC_ID


def metadata_topic(**fields: Any) -> Any:
    return codec("MetadataRequest").struct("MetadataRequestTopic")(**{"name": None, **fields})


def produce_fields(topic: str, data: bytes | None, acks: int = -1, partition: int = 0) -> dict[str, Any]:
    made = codec("ProduceRequest")
    part = made.struct("PartitionProduceData")(index=partition, records=data)
    return {
        "acks": acks,
        "timeout_ms": 1000,
        "topic_data": [made.struct("TopicProduceData")(name=topic, partition_data=[part])],
    }


def fetch_fields(topic: str, offset: int, wait_ms: int = 0, **more: Any) -> dict[str, Any]:
    made = codec("FetchRequest")
    part = made.struct("FetchPartition")(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [made.struct("FetchTopic")(topic=topic, partitions=[part])],
        **more,
    }


def test_produce_and_fetch_in_every_version_by_name(wire: Wire, store: Store) -> None:
    store.create_topic("orders")
    for at, version in enumerate(range(3, 13)):
        told = wire.ask("Produce", version, **produce_fields("orders", batch(b"%d" % version)))
        [part] = told.responses[0].partition_responses
        assert (part.error_code, part.base_offset) == (0, at)
    for version in range(4, 13):
        [topic] = wire.ask("Fetch", version, **fetch_fields("orders", 3)).responses
        [part] = topic.partitions
        assert (part.error_code, part.high_watermark) == (0, 10)
        assert bytes(part.records).count(b"orders") == 0
        assert len(part.records) == sum(len(batch(b"%d" % each)) for each in range(6, 13))
    [topic] = wire.ask("Fetch", 12, **fetch_fields("orders", 11)).responses
    assert topic.partitions[0].error_code == Code.OFFSET_OUT_OF_RANGE


def test_produce_and_fetch_by_topic_id(wire: Wire, store: Store) -> None:
    store.create_topic("orders")
    entry = store.partitions.entry("orders")
    assert entry.id is not None
    for at, topic_id in enumerate((entry.id.bytes, bytes(15) + b"\1")):
        fields = produce_fields("", batch(b"x"))
        fields["topic_data"] = [each._replace(topic_id=topic_id) for each in fields["topic_data"]]
        [told] = wire.ask("Produce", 13, **fields).responses
        assert told.partition_responses[0].error_code == (0, Code.UNKNOWN_TOPIC_ID)[at]
        fields = fetch_fields("", 0)
        fields["topics"] = [each._replace(topic_id=topic_id) for each in fields["topics"]]
        for version in range(13, 19):
            [told] = wire.ask("Fetch", version, **fields).responses
            assert told.topic_id == topic_id
            assert told.partitions[0].error_code == (0, Code.UNKNOWN_TOPIC_ID)[at]
            assert len(told.partitions[0].records) == (len(batch(b"x")), 0)[at]


def test_a_fetch_waits_for_bytes_or_for_its_time(wire: Wire, store: Store) -> None:
    topic = store.create_topic("orders")
    [told] = wire.ask("Fetch", 12, **fetch_fields("orders", 0, wait_ms=50)).responses
    assert not told.partitions[0].records
    wire.sock.sendall(wire.frame("Fetch", 12, **fetch_fields("orders", 0, wait_ms=20_000)))
    topic.append(b"x")
    [told] = wire.answer("Fetch", 12).responses
    assert len(told.partitions[0].records) > 60
    many = fetch_fields("orders", 0, wait_ms=20_000, min_bytes=1000)
    wire.sock.sendall(wire.frame("Fetch", 12, **many))
    for _ in range(30):
        topic.append(b"x" * 50)
    [told] = wire.answer("Fetch", 12).responses
    assert len(told.partitions[0].records) >= 1000
    with client_gone_while_waiting(wire):
        topic.append(b"y")


def test_a_record_between_the_look_and_the_wait_wakes_the_fetch(
    wire: Wire, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.create_topic("orders")
    wait = Topic.when

    def append_first(self: Topic, *arguments: Any) -> Any:
        monkeypatch.undo()
        self.append(b"x")
        return wait(self, *arguments)

    monkeypatch.setattr(Topic, "when", append_first)
    [told] = wire.ask("Fetch", 12, **fetch_fields("orders", 0, wait_ms=60_000)).responses
    assert len(told.partitions[0].records) > 60
    assert topic.log_end_offset(0) == 1


@contextmanager
def client_gone_while_waiting(wire: Wire) -> Iterator[None]:
    """A long poll whose client leaves harms nobody."""
    wire.sock.sendall(wire.frame("Fetch", 12, **fetch_fields("orders", 10_000, wait_ms=20_000)))
    wire.sock.close()
    yield


def test_the_first_batch_always_fits_and_the_next_partition_gets_none(wire: Wire, store: Store) -> None:
    topic = store.create_topic("orders", 2)
    for partition in (0, 1):
        topic.append(b"x" * 5000, partition=partition)
    made = codec("FetchRequest")
    part = made.struct("FetchPartition")
    parts = [part(partition=number, fetch_offset=0, partition_max_bytes=100) for number in (0, 1)]
    told = wire.ask(
        "Fetch", 12, max_wait_ms=0, min_bytes=1, max_bytes=100,
        topics=[made.struct("FetchTopic")(topic="orders", partitions=parts)],
    )  # fmt: skip
    sizes = [len(each.records or b"") for each in told.responses[0].partitions]
    assert sizes[0] > 5000
    assert sizes[1] == 0


def test_an_answer_keeps_some_files_open_whatever_the_number_of_partitions(
    wire: Wire, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.broker.fetch.MAX_FILES", 2)
    topic = store.create_topic("orders", 6)
    for number, size in enumerate((1, 0, 5000, 1, 5000, 1)):
        if size:
            topic.append(b"x" * size, partition=number)
    fields = fetch_fields("orders", 0, 3_600_000, min_bytes=1 << 20)
    [part] = fields["topics"][0].partitions
    every = [part._replace(partition=number) for number in range(6)]

    def sizes(parts: list[Any]) -> list[int]:
        topics = [fields["topics"][0]._replace(partitions=parts)]
        [told] = wire.ask("Fetch", 12, **(fields | {"topics": topics})).responses
        return [len(each.records) for each in told.partitions]

    found = sizes(every)
    small, large = found[0], found[2]
    assert found == [small, 0, large, small, 0, small], "the last two are copied, of what is small"
    assert sizes([every[4], every[2], every[0]]) == [large, large, small]


def test_acks_0_sends_nothing_and_a_failure_closes(wire: Wire, broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders")
    wire.sock.sendall(wire.frame("Produce", 9, **produce_fields("orders", batch(b"x"), acks=0)))
    assert wire.ask("ApiVersions", 3).error_code == 0, "the next answer is that of the next request"
    assert topic.log_end_offset(0) == 1
    with client(broker) as other:
        other.sock.sendall(other.frame("Produce", 9, **produce_fields("gone", batch(b"x"), acks=0)))
        assert other.closed
    told = wire.ask("Produce", 9, **produce_fields("orders", batch(b"x"), acks=5))
    assert told.responses[0].partition_responses[0].error_code == Code.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize("harm", ["crc", "cut", "null", "garbage"])
def test_bad_batches_are_refused_alone(wire: Wire, store: Store, harm: str) -> None:
    topic = store.create_topic("orders", 2)
    good, data = batch(b"good"), bytearray(batch(b"bad" * 20))
    if harm == "crc":
        data[-1] ^= 1
    bad = {"crc": bytes(data), "cut": bytes(data[:-3]), "null": None, "garbage": b"\0" * 40}[harm]
    made = codec("ProduceRequest")
    part = made.struct("PartitionProduceData")
    fields = produce_fields("orders", None)
    fields["topic_data"] = [
        made.struct("TopicProduceData")(
            name="orders", partition_data=[part(index=0, records=bad), part(index=1, records=good)]
        )
    ]
    [answer] = wire.ask("Produce", 9, **fields).responses
    first, second = answer.partition_responses
    assert first.error_code in (Code.CORRUPT_MESSAGE, Code.INVALID_RECORD)
    assert second.error_code == 0
    assert [topic.log_end_offset(number) for number in (0, 1)] == [0, 1]


def test_requests_in_one_piece_and_byte_by_byte_are_answered_in_order(wire: Wire, store: Store) -> None:
    topic = store.create_topic("orders", config={"flush.messages": 1})
    frames = b"".join(
        wire.frame("Produce", 9, number, **produce_fields("orders", batch(b"%d" % number)))
        for number in range(50)
    )
    wire.sock.sendall(frames)
    for number in range(50):
        [answer] = wire.answer("Produce", 9, number).responses
        assert answer.partition_responses[0].base_offset == number
    for byte in wire.frame("ApiVersions", 3, 77):
        wire.sock.sendall(bytes([byte]))
    assert wire.answer("ApiVersions", 3, 77).error_code == 0
    assert topic.log_end_offset(0) == 50


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x04\0\x12\0\x03",
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, 3, 99, 1, -1),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_garbage_closes_that_connection_alone(
    wire: Wire, broker: Broker, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stratalog.broker"), client(broker) as other:
        other.sock.sendall(data)
        assert other.closed
        assert wire.ask("ApiVersions", 3).error_code == 0
        assert len(caplog.records) == 1


def test_mutated_frames_harm_nobody(wire: Wire, broker: Broker, store: Store) -> None:
    store.create_topic("orders")
    rng = random.Random(11)
    frames = [
        wire.frame("Produce", 9, **produce_fields("orders", batch(b"x" * 20))),
        wire.frame("Fetch", 12, **fetch_fields("orders", 0)),
        wire.frame("Metadata", 12, topics=[metadata_topic(name="orders")], allow_auto_topic_creation=False),
        wire.frame("ListOffsets", 6),
        wire.frame("CreateTopics", 7),
    ]
    for _ in range(300):
        frame = bytearray(rng.choice(frames))
        for _ in range(rng.choice((1, 3, 9))):
            frame[rng.randrange(8, len(frame))] = rng.choice((0, 1, 127, 128, 255))
        with client(broker) as other:
            other.sock.sendall(frame)
            other.sock.shutdown(socket.SHUT_WR)
            while not other.closed:
                pass
    assert wire.ask("ApiVersions", 3).error_code == 0
    assert stratalog.verify(store).ok


def test_limits_of_connections_and_frames(store: Store) -> None:
    limits = Limits(socket_request_max_bytes=1000, max_connections=3, connections_max_idle_ms=2000)
    with stratalog.serve(store, limits=limits) as broker:
        with client(broker) as first, client(broker) as second, client(broker) as third:
            for each in (first, second, third):
                assert each.ask("ApiVersions", 3).error_code == 0
            with client(broker) as refused:
                assert refused.closed
            first.sock.sendall((1001).to_bytes(4, "big"))
            assert first.closed
            assert second.closed, "nothing came for two seconds"
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            with client(broker) as again:
                again.sock.settimeout(WAIT_S)
                try:
                    assert again.ask("ApiVersions", 3).error_code == 0
                    return
                except (ConnectionError, OSError):
                    time.sleep(0.02)
        raise AssertionError("those that left make room")


def test_a_client_that_does_not_read_delays_nobody(wire: Wire, broker: Broker, store: Store) -> None:
    topic = store.create_topic("orders")
    for _ in range(100):
        topic.append(b"x" * 10_000)
    with client(broker) as slow:
        for number in range(200):
            slow.sock.sendall(slow.frame("Fetch", 12, number, **fetch_fields("orders", 0)))
        for _ in range(20):
            assert wire.ask("ApiVersions", 3).error_code == 0
        sizes = {
            len(slow.answer("Fetch", 12, number).responses[0].partitions[0].records) for number in range(200)
        }
    assert len(sizes) == 1
    assert sizes.pop() > 900_000


def test_a_stop_finishes_what_is_being_done(store: Store) -> None:
    store.create_topic("orders")
    broker = stratalog.serve(store).start()
    with client(broker) as wire:
        wire.sock.sendall(wire.frame("Fetch", 12, **fetch_fields("orders", 0, wait_ms=300)))
        deadline = time.monotonic() + WAIT_S
        while not any(each.busy for each in list(broker.connections)) and time.monotonic() < deadline:
            time.sleep(0.005)
        broker.stop()
        assert wire.answer("Fetch", 12).error_code == 0
        assert wire.closed
    broker.stop()
    with pytest.raises(ConnectionError):
        Wire(broker)
    store["orders"].append(b"the store is open")


def test_a_read_only_store_is_not_served(store: Store) -> None:
    where = store.partitions.dirs.all[0].path
    with (
        stratalog.open(where, read_only=True) as beside,
        pytest.raises(stratalog.errors.InvalidArgumentError, match="open for writing"),
    ):
        stratalog.serve(beside)


def test_alter_configs_replaces_all_settings(wire: Wire, store: Store) -> None:
    store.create_topic("a", config={"retention.ms": 1000, "segment.bytes": 2 << 20})
    made = codec("AlterConfigsRequest")
    resource, setting = made.struct("AlterConfigsResource"), made.struct("AlterableConfig")
    new = resource(resource_type=2, resource_name="a", configs=[setting(name="retention.ms", value="5000")])
    for version in range(3):
        [told] = wire.ask("AlterConfigs", version, resources=[new], validate_only=version == 0).responses
        assert told.error_code == 0
        assert store["a"].config.retention_ms == (1000 if version == 0 else 5000)
    assert store["a"].config.segment_bytes == 1 << 30, "it went back to the default"
    [told] = wire.ask(
        "AlterConfigs", 2, resources=[new._replace(resource_type=4, resource_name="1")]
    ).responses
    assert told.error_code == Code.INVALID_REQUEST


def test_committed_offsets_make_a_group(wire: Wire, store: Store) -> None:
    store.create_topic("orders")
    one = codec("OffsetCommitRequest").struct("OffsetCommitRequestPartition")(
        partition_index=0, committed_offset=1
    )
    topic = codec("OffsetCommitRequest").struct("OffsetCommitRequestTopic")(name="orders", partitions=[one])

    def commit(epoch: int) -> int:
        fields = {"member_id": "" if epoch < 0 else "x", "generation_id_or_member_epoch": epoch}
        told = wire.ask("OffsetCommit", 9, group_id="g", topics=[topic], **fields)
        code: int = told.topics[0].partitions[0].error_code
        return code

    def described() -> tuple[int, str]:
        [told] = wire.ask("DescribeGroups", 6, groups=("g",)).groups
        return told.error_code, told.group_state

    assert (commit(7), described()) == (Code.GROUP_ID_NOT_FOUND, (Code.GROUP_ID_NOT_FOUND, "Dead"))
    assert (commit(-1), described()) == (Code.NONE, (Code.NONE, "Empty"))
    assert commit(7) == Code.UNKNOWN_MEMBER_ID
