"""The short way of a Produce request equals the tables', in every version, compiled and interpreted."""

from __future__ import annotations

import errno
import random
import socket
from typing import Any

import pytest

from stratalog import kernel
from stratalog.format.batch import encode_control
from stratalog.kernel.loader import interpreted
from stratalog.wire.messages import codec
from tests.store.test_door import make_batch

REQUEST, RESPONSE, HEADER = (
    codec("ProduceRequest"),
    codec("ProduceResponse"),
    codec("RequestHeader", "headers"),
)
VERSIONS = range(3, 14)
TOPIC_ID = bytes(range(16))
FORMS: dict[str, Any] = {
    "as built": kernel,
    "interpreted": interpreted(*kernel.MODULES[: kernel.MODULES.index("_wire") + 1])["_wire"],
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return FORMS[request.param]


def part(records: bytes | None, index: int = 3) -> Any:
    return REQUEST.struct("PartitionProduceData")(index=index, records=records)


def topic(version: int, *parts: Any, name: str = "orders") -> Any:
    made = REQUEST.struct("TopicProduceData")
    return (
        made(topic_id=TOPIC_ID, partition_data=parts)
        if version >= 13
        else made(name=name, partition_data=parts)
    )


def frame(version: int, *topics: Any, client_id: str | None = "c", acks: int = -1, **fields: Any) -> bytes:
    head = HEADER.encode(
        HEADER(request_api_key=0, request_api_version=version, correlation_id=77, client_id=client_id),
        2 if version in REQUEST.flexible else 1,
    )
    return REQUEST.encode(REQUEST(acks=acks, timeout_ms=1500, topic_data=topics, **fields), version, head)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", [None, "", "a client"])
@pytest.mark.parametrize("name", ["o", "n" * 126, "n" * 127, "n" * 249])
def test_a_request_of_one_partition_is_read_as_by_the_tables(
    form: Any, version: int, client_id: str | None, name: str
) -> None:
    records = make_batch([b"x" * 200, b"y"])
    data = frame(version, topic(version, part(records), name=name), client_id=client_id, acks=1)
    found = form.parse_produce(memoryview(bytearray(data)))
    assert found is not None
    told_version, correlation, acks, told, partition, start, end, count = found
    assert (told_version, correlation, acks, partition) == (version, 77, 1, 3)
    assert (data[start:end], count) == (records, 2)
    assert told == (TOPIC_ID if version >= 13 else name.encode())


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_so_simple_is_left_to_the_tables(form: Any, version: int) -> None:
    records = make_batch([b"x"])
    transactional = make_batch([b"x"], producer_id=7, epoch=0, sequence=0, transactional=True)
    marker = encode_control(
        "commit", producer_id=7, producer_epoch=0, base_offset=0, leader_epoch=0, timestamp=1
    )
    other = [
        frame(version),
        frame(version, topic(version)),
        frame(version, topic(version, part(records), part(records, 4))),
        frame(version, topic(version, part(records)), topic(version, part(records))),
        frame(version, topic(version, part(None))),
        frame(version, topic(version, part(b""))),
        frame(version, topic(version, part(records)), transactional_id="t"),
        frame(version, topic(version, part(transactional))),
        frame(version, topic(version, part(records + transactional))),
        frame(version, topic(version, part(bytes(marker)))),
        frame(version, topic(version, part(records))) + b"\0",
    ]
    assert [form.parse_produce(memoryview(bytearray(each))) for each in other] == [None] * len(other)


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_that_are_cut_short_or_garbled_are_left_to_the_tables_or_read_alike(
    form: Any, version: int
) -> None:
    data = frame(version, topic(version, part(make_batch([b"x" * 20]))))
    for size in range(len(data)):
        assert form.parse_produce(memoryview(bytearray(data[:size]))) is None
    rng = random.Random(version)
    for _ in range(2000):
        harmed = bytearray(data)
        harmed[rng.randrange(4, len(data))] = rng.randrange(256)
        found = form.parse_produce(memoryview(harmed))
        if found is None:
            continue
        header, at = HEADER.decode(bytes(harmed), 2 if version in REQUEST.flexible else 1)
        body, end = REQUEST.decode(bytes(harmed), version, at)
        [each] = body.topic_data
        [one] = each.partition_data
        _, correlation, acks, told, partition, start, stop, _ = found
        assert end == len(harmed)
        assert body.transactional_id is None
        assert (correlation, acks) == (header.correlation_id, body.acks)
        assert told == (each.topic_id if version >= 13 else each.name.encode())
        assert (partition, bytes(harmed[start:stop])) == (one.index, bytes(one.records))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["o", "n" * 126, "n" * 127, "n" * 249])
@pytest.mark.parametrize("offsets", [(0, -1, 0), (2**40, 1_700_000_000_000, 5), (7, -1, -1)])
def test_an_answer_has_the_bytes_that_the_tables_make(
    form: Any, version: int, name: str, offsets: tuple[int, int, int]
) -> None:
    base, append_time, start = offsets
    one = RESPONSE.struct("PartitionProduceResponse")(
        index=3, base_offset=base, log_append_time_ms=append_time, log_start_offset=start
    )
    made = RESPONSE.struct("TopicProduceResponse")
    told = (
        made(topic_id=TOPIC_ID, partition_responses=[one])
        if version >= 13
        else made(name=name, partition_responses=[one])
    )
    head = (77).to_bytes(4, "big") + (b"\0" if version in RESPONSE.flexible else b"")
    plain = RESPONSE.encode(RESPONSE(responses=[told]), version, head, framed=True)
    topic_bytes = TOPIC_ID if version >= 13 else name.encode()
    assert form.produce_answer(version, 77, topic_bytes, 3, base, append_time, start) == plain


def test_sockets_give_and_take_what_they_have_now(form: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        buffer = memoryview(bytearray(16))
        assert form.receive(ours.fileno(), buffer, 0) == -errno.EAGAIN
        theirs.sendall(b"0123456789" * 2)
        assert form.receive(ours.fileno(), buffer, 4) == 12
        assert bytes(buffer) == b"\0" * 4 + b"0123456789" + b"01"
        assert form.receive(ours.fileno(), buffer, 0) == 8
        with pytest.raises(ValueError, match="room"):
            form.receive(ours.fileno(), buffer, 16)
        with pytest.raises(ValueError, match="room"):
            form.receive(ours.fileno(), buffer, -1)
        with pytest.raises(BufferError):
            form.receive(ours.fileno(), memoryview(b"0123"), 0)
        assert form.send(ours.fileno(), b"abc") == 3
        assert theirs.recv(10) == b"abc"
        sent = 0
        while (size := form.send(ours.fileno(), b"x" * 65536)) > 0:
            sent += size
        assert sent > 0
        assert size == -errno.EAGAIN
        theirs.close()
        assert form.receive(ours.fileno(), buffer, 0) in (0, -errno.ECONNRESET)
        assert form.send(ours.fileno(), b"abc") in (-errno.EPIPE, -errno.ECONNRESET)
