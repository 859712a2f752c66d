"""Kafka's messages by tables: every message in every version, hostile bytes, and the bytes of Kafka."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from stratalog import kernel
from stratalog.errors import CorruptionError
from stratalog.wire import records
from stratalog.wire.messages import Codec, codec, snake
from stratalog.wire.schema import MAX_VERSION, Field, Message, Struct, Versions, parse_table, table
from tests.kernel.both import plain_kernel

TABLES = (
    "requests", "headers", "consumer-protocol", "control", "offsets", "transaction-log", "share-group-state",
    "cluster-metadata",
)  # fmt: skip
MESSAGES = [(of, message) for of in TABLES for message in table(of).values()]
# One line a message: name, version, bytes in hex ("-" for none), JSON; written by Kafka 4.3.1's classes.
KAFKAS = Path(__file__).parent.parent / "cli" / "dump_expected" / "messages.txt"
LIMITS = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}


def names(messages: list[tuple[str, Message]]) -> list[str]:
    return [message.name for _, message in messages]


def some_value(rng: random.Random, made: Codec, field: Field, version: int, single: bool = False) -> Any:
    """A value that a field may have in a version."""
    if not single and version in field.nullable and rng.random() < 0.2:
        return None
    if field.is_array and not single:
        many = rng.choice((0, 1, 1, 2, 5))
        return tuple(some_value(rng, made, field, version, single=True) for _ in range(many))
    if field.struct is not None:
        return some_struct(rng, made, field.struct, version)
    if field.kind in LIMITS:
        limit = LIMITS[field.kind]
        return rng.choice((0, 1, -1, limit - 1, -limit, rng.randrange(-limit, limit)))
    if field.kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 5, 200)))
    return {
        "bool": rng.random() < 0.5,
        "uint16": rng.choice((0, 65535, 40000)),
        "uint32": rng.choice((0, 2**32 - 1)),
        "float64": rng.random(),
        "uuid": rng.randbytes(16),
        "string": rng.choice(("", "a", "ключ", "x" * 130)),
    }[field.kind]


def some_struct(rng: random.Random, made: Codec, struct: Struct, version: int) -> Any:
    fields = {
        snake(each.name): some_value(rng, made, each, version)
        for each in struct.fields
        if version in each.versions and (each.tag is None or rng.random() < 0.6)
    }
    return made.struct(struct.name)(**fields)


def on_plain_kernel(monkeypatch: pytest.MonkeyPatch, message: Message) -> Codec:
    plain = plain_kernel()
    for name in ("WirePlan", "decode_message", "encode_message"):
        monkeypatch.setattr(kernel, name, getattr(plain, name))
    return Codec(message)


@pytest.mark.parametrize(("of", "message"), MESSAGES, ids=names(MESSAGES))
def test_every_version_goes_there_and_back(
    of: str, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(message.name)
    made = codec(message.name, of)
    wanted = []
    for version in range(message.versions.low, message.versions.high + 1):
        for value in (made(), *(some_struct(rng, made, message.struct, version) for _ in range(5))):
            data = made.encode(value, version, b"head", framed=True)
            assert int.from_bytes(data[:4], "big") == len(data) - 4
            assert data[4:8] == b"head"
            found, end = made.decode(data, version, 8)
            assert (found, end) == (value, len(data))
            wanted.append((version, value, data))
    plain = on_plain_kernel(monkeypatch, message)
    for version, value, data in wanted:
        again = plain.decode(data, version, 8)[0]
        assert again == value, "the interpreted kernel reads alike"
        assert plain.encode(again, version, b"head", framed=True) == data


@pytest.mark.parametrize(("of", "message"), MESSAGES, ids=names(MESSAGES))
def test_hostile_bytes_are_a_value_error(of: str, message: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"hostile {message.name}")
    made = codec(message.name, of)
    tried = []
    for version in range(message.versions.low, message.versions.high + 1):
        data = made.encode(some_struct(rng, made, message.struct, version), version)
        for _ in range(20):
            broken = bytearray(data)
            for _ in range(rng.choice((1, 2, 8))):
                if broken:
                    broken[rng.randrange(len(broken))] = rng.choice((0, 1, 127, 128, 255))
            tried.append((version, bytes(broken[: rng.randrange(len(broken) + 1)] or broken)))
        tried += [(version, data[:at]) for at in range(min(len(data), 40))]
    answers = [answer(made, version, data) for version, data in tried]
    plain = on_plain_kernel(monkeypatch, message)
    for (version, data), expected in zip(tried, answers, strict=True):
        assert answer(plain, version, data) == expected, f"version {version}: {data.hex()}"


def answer(made: Codec, version: int, data: bytes) -> Any:
    """What became of it: values by slot, since the twin has classes of its own. NaN is equal to nothing."""
    try:
        found, end = made.decode(data, version)
        return re.sub(r"<memory at \w+>", "a view", repr(found)), end
    except ValueError as error:
        return str(error)


def test_kafkas_own_bytes_come_out_again() -> None:
    """Decoded and encoded, a message that Kafka's classes wrote has the same bytes."""
    tables = {name: of for of in TABLES for name in table(of)}
    lines = [line.split(" ", 3) for line in KAFKAS.read_bytes().decode().split("\n")[:-1]]
    assert len(lines) > 100
    for name, version, text, _ in lines:
        data = bytes.fromhex(text.replace("-", ""))
        made = codec(name, tables[name])
        try:
            found, end = made.decode(data, int(version))
        except ValueError as error:
            assert "UTF-8" in str(error)  # noqa: PT017 - Kafka repairs them, we refuse them
            continue
        assert end == len(data)
        assert made.encode(found, int(version)) == data, name


def test_bytes_as_the_protocol_has_them() -> None:
    header = codec("RequestHeader", "headers")
    value = header(request_api_key=18, request_api_version=4, correlation_id=7, client_id="me")
    assert header.encode(value, 1) == b"\x00\x12\x00\x04\x00\x00\x00\x07\x00\x02me"
    assert header.encode(value, 2) == b"\x00\x12\x00\x04\x00\x00\x00\x07\x00\x02me\x00", "never compact"
    heartbeat = codec("HeartbeatRequest")
    value = heartbeat(group_id="g", generation_id=3, member_id="m", group_instance_id="i")
    assert heartbeat.encode(value, 0) == b"\x00\x01g\x00\x00\x00\x03\x00\x01m", "no instance id yet"
    assert heartbeat.encode(value, 4) == b"\x02g\x00\x00\x00\x03\x02m\x02i\x00"
    found, _ = heartbeat.decode(b"\x00\x01g\x00\x00\x00\x03\x00\x01m", 0)
    assert found.group_instance_id is None


def test_records_point_into_their_request() -> None:
    produce = codec("ProduceRequest")
    topic, part = produce.struct("TopicProduceData"), produce.struct("PartitionProduceData")
    value = produce(acks=-1, topic_data=[topic(name="t", partition_data=[part(index=0, records=b"batch")])])
    data = bytearray(produce.encode(value, 9))
    found, _ = produce.decode(data, 9)
    view = found.topic_data[0].partition_data[0].records
    data[data.index(b"batch")] = ord("B")
    assert bytes(view) == b"Batch"


def test_a_count_makes_nothing() -> None:
    """An array of 2**31 elements in a few bytes is refused before anything is made."""
    metadata = codec("MetadataRequest")
    with pytest.raises(ValueError, match="topics: 4294967294 elements in"):
        metadata.decode(b"\xff\xff\xff\xff\x0f" + bytes(20), 12)
    with pytest.raises(ValueError, match="elements in"):
        metadata.decode(b"\x7f\xff\xff\xff" + bytes(20), 1)
    topics = codec("CreateTopicsRequest")
    with pytest.raises(ValueError, match="elements in"):  # each takes some bytes: as many do not fit
        topics.decode((b"\x00\x00\x01\x00" + bytes(256)), 2)


def test_wrong_values_are_refused_by_name() -> None:
    heartbeat = codec("HeartbeatRequest")
    for wrong, words in (
        ({"generation_id": 2**31}, "generation_id: 2147483648 does not fit"),
        ({"generation_id": "3"}, "generation_id: '3' does not fit"),
        ({"group_id": None}, "group_id: must not be null"),
        ({"group_id": 5}, "group_id: 5 is no string"),
        ({"group_id": "x" * 40000}, "longer than 32767"),
    ):
        with pytest.raises(ValueError, match=words):
            heartbeat.encode(heartbeat(**wrong), 3)
    with pytest.raises(ValueError, match="has no version 9, but 0 to 4"):
        heartbeat.encode(heartbeat(), 9)
    with pytest.raises(ValueError, match="where HeartbeatRequest belongs"):
        heartbeat.encode(codec("ApiVersionsRequest")(), 4)
    fetch = codec("FetchRequest")
    with pytest.raises(ValueError, match="FetchTopic belongs"):
        fetch.encode(fetch(topics=[("t",)]), 12)


def test_a_tagged_field_comes_once() -> None:
    fetch = codec("FetchRequest")
    value = fetch(cluster_id="c")
    data = fetch.encode(value, 12)
    assert data.endswith(b"\x01\x00\x02\x02c")
    assert fetch.decode(data, 12)[0].cluster_id == "c"
    with pytest.raises(ValueError, match="cluster_id: twice"):
        fetch.decode(data[:-5] + b"\x02\x00\x02\x02c\x00\x02\x02c", 12)
    unknown = fetch.decode(data[:-5] + b"\x01\x63\x03xyz", 12)
    assert unknown[0].cluster_id is None


def test_tables_are_read() -> None:
    [message] = parse_table(
        "M 1-3 2+ 7: a int32 2+ =-1, b []S? (c string?2+ #0 =null, d S2 (e bool)), f []S !"
    ).values()
    assert (message.versions, message.flexible, message.id) == (Versions(1, 3), Versions(2, MAX_VERSION), 7)
    first, second, third = message.struct.fields
    assert (first.default, 1 in first.versions, 2 in first.versions) == (-1, False, True)
    assert second.is_array
    assert second.struct is third.struct
    assert not third.compact
    assert second.struct is not None
    inside = second.struct.fields[0]
    assert (inside.tag, inside.default, 1 in inside.nullable, 2 in inside.nullable) == (0, None, False, True)
    assert second.struct.fields[1].default == (False,)


def test_records_of_internal_topics() -> None:
    key = records.pack_key("offsets", "OffsetCommit", group="g", topic="t", partition=3)
    assert key == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    kind, found = records.parse_key("offsets", key)
    assert (kind, found.group, found.topic, found.partition) == ("OffsetCommit", "g", "t", 3)
    value = records.pack_value("offsets", "OffsetCommit", 4, offset=9, metadata="m", commit_timestamp=5)
    assert records.parse_value("offsets", "OffsetCommit", value).offset == 9
    assert records.parse_key("offsets", b"\x7f\x00") == ("", None)
    for broken in (b"", b"\x00", b"\x00\x01\x00\x05g"):
        with pytest.raises(CorruptionError, match="cut short or garbled"):
            records.parse_key("offsets", broken)
    for broken in (b"", value[:-3], b"\x00\x63" + value[2:]):
        with pytest.raises(CorruptionError, match="cut short or garbled"):
            records.parse_value("offsets", "OffsetCommit", broken)


@pytest.mark.parametrize("interpreted", [False, True])
def test_elements_of_all_arrays_are_counted(interpreted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    [message] = [message for of, message in MESSAGES if message.name == "OffsetFetchRequest"]
    made = on_plain_kernel(monkeypatch, message) if interpreted else Codec(message)
    topic = made.struct("OffsetFetchRequestTopic")
    data = made.encode(
        made(group_id="g", topics=[topic(name=name, partition_indexes=[0, 1, 2]) for name in "abcd"]), 7
    )
    assert made.decode(data, 7, most=16)[0].topics[3].partition_indexes == (0, 1, 2)
    with pytest.raises(ValueError, match=r"partition_indexes: more than 15 elements in one message"):
        made.decode(data, 7, most=15)
