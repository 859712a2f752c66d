"""Messages of the broker's own topics: every table, every version, as Kafka's converters print them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.cli.commands.dump.decoders import control_facts, control_text, decoder
from stratalog.cli.commands.dump.schema import Reader, read_message, to_json
from stratalog.errors import CorruptionError, FormatError, InvalidArgumentError
from stratalog.kernel.dump import RawRecord
from stratalog.wire.schema import Message, table

# One line a message: name, version, bytes in hex ("-" for none), JSON; written by Kafka 4.3.1's classes.
MESSAGES = (Path(__file__).parent / "dump_expected" / "messages.txt").read_bytes().decode().split("\n")[:-1]

NAMES = ["offsets", "transaction-log", "share-group-state", "cluster-metadata"]
NOT_IN_LOGS = ("ControlRecordTypeSchema", "EndTxnMarker", "QuorumStateData", "DefaultPrincipalData")
TABLES: dict[str, Message] = {
    name: message
    for each in (*NAMES, "consumer-protocol", "control")
    for name, message in table(each).items()
    if name not in NOT_IN_LOGS
}


def record(key: bytes | None, value: bytes | None) -> RawRecord:
    return 7, 0, -1, key, value, []


def test_every_message_is_compared() -> None:
    assert {line.split(" ", 1)[0] for line in MESSAGES} == set(TABLES)
    versions = {tuple(line.split(" ", 2)[:2]) for line in MESSAGES}
    assert versions == {
        (name, str(version))
        for name, message in TABLES.items()
        for version in range(message.versions.low, message.versions.high + 1)
    }


@pytest.mark.parametrize("name", sorted(TABLES))
def test_messages_as_kafka_prints_them(name: str) -> None:
    lines = [line.split(" ", 3)[1:] for line in MESSAGES if line.startswith(f"{name} ")]
    for version, data, expected in lines:
        content = bytes.fromhex(data.replace("-", ""))
        reader = Reader(content)
        assert to_json(read_message(TABLES[name], reader, int(version))) == expected
        assert reader.remaining() == 0
        for end in range(len(content)):  # cut anywhere: an error of ours, or nothing was needed
            with pytest.raises(FormatError):
                read_message(TABLES[name], Reader(content[:end]), int(version))


@given(st.sampled_from(NAMES), st.binary(max_size=80), st.none() | st.binary(max_size=200))
def test_any_bytes_end_in_text(name: str, key: bytes, value: bytes | None) -> None:
    shown_key, shown_value = decoder(name)(record(key, value))
    assert isinstance(shown_key or shown_value, str)


@given(st.sampled_from(sorted(TABLES)), st.binary(max_size=200), st.integers(-1, 5))
def test_any_bytes_end_in_a_message_or_an_error(name: str, data: bytes, version: int) -> None:
    try:
        to_json(read_message(TABLES[name], Reader(data), version))
    except FormatError:
        pass


def test_what_cannot_be_decoded_is_said_in_kafkas_words() -> None:
    offsets = decoder("offsets")
    assert offsets(record(b"\x7f\x00", None)) == ("Unknown record type 32512 at offset 7, skipping.", None)
    assert offsets(record(b"\x00", None))[0] == (
        "Error at offset 7, skipping. Could not read version from key's buffer."
    )
    assert offsets(record(b"\x00\x02", None))[0] == (
        "Error at offset 7, skipping. Could not read record with version 0 from key's buffer due to: null."
    )
    assert offsets(record(b"\x00\x02\x00\x01g", None)) == ('{"type":"2","data":{"group":"g"}}', "<DELETE>")
    with pytest.raises(CorruptionError, match="missing key"):
        offsets(record(None, b""))
    metadata = decoder("cluster-metadata")
    assert metadata(record(None, None)) == (None, "Error at 7, skipping. Error while reading frame version")
    assert "unknown frame version 2(only" in str(metadata(record(None, b"\x02"))[1])
    assert "Unknown metadata id 99" in str(metadata(record(None, b"\x01\x63\x00"))[1])
    with pytest.raises(InvalidArgumentError):
        decoder("remote-log-metadata")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("00000000", "000000000005", " endTxnMarker: ABORT coordinatorEpoch: 5"),
        ("00000001", "0000ffffffff", " endTxnMarker: COMMIT coordinatorEpoch: -1"),
        ("00000003", "0000000000000000000900", ' SnapshotHeader {"version":0,"lastContainedLogTimestamp":9}'),
        ("00000004", "000000", ' SnapshotFooter {"version":0}'),
        ("00000005", "0000000100", ' KRaftVersion {"version":0,"kRaftVersion":1}'),
        (
            "00000002",
            "00000000000102000000010002000000010000",
            ' LeaderChange: {"version":0,"leaderId":1,"voters":VOTERS,"grantingVoters":VOTERS}',
        ),
        ("00000063", "", " controlType: UNKNOWN(99)"),
    ],
)
def test_control_records(key: str, value: str, text: str) -> None:
    expected = text.replace("VOTERS", '[{"voterId":1}]').encode()
    assert control_text(record(bytes.fromhex(key), bytes.fromhex(value))) == expected


@given(st.none() | st.binary(max_size=8), st.none() | st.binary(max_size=60))
def test_control_records_of_any_bytes(key: bytes | None, value: bytes | None) -> None:
    try:
        assert control_facts(record(key, value))
        assert control_text(record(key, value))
    except FormatError:
        pass


def test_numbers_as_java_prints_them() -> None:
    shown = {
        0.0: "0.0",
        1e7: "1.0E7",
        12345678.5: "1.23456785E7",
        0.001: "0.001",
        1e-5: "1.0E-5",
        -2.5: "-2.5",
    }
    for value, text in shown.items():
        assert to_json(value) == text
    assert to_json(float("nan")) == '"NaN"'
