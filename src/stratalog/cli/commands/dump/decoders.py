"""Records of the broker's own topics, and control records, as text.

Pure functions of one record. A decoder returns the text of key and payload, None for one that is not
printed. Bytes it cannot read become text too, as in Kafka's tool ("Error at offset …, skipping.").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from stratalog.cli.commands.dump.schema import Json, Reader, read_message, to_json
from stratalog.errors import CorruptionError, FormatError, InvalidArgumentError
from stratalog.kernel.dump import RawRecord
from stratalog.wire.schema import MAX_VERSION, Message, table

Decoder = Callable[[RawRecord], tuple[str | None, str | None]]

COORDINATORS = ("offsets", "transaction-log", "share-group-state")
CONTROL_TYPES = {0: "ABORT", 1: "COMMIT"}
# The raft layer's control records; the colon is Kafka's.
KRAFT_CONTROL = {
    2: ("LeaderChangeMessage", "LeaderChange:"),
    3: ("SnapshotHeaderRecord", "SnapshotHeader"),
    4: ("SnapshotFooterRecord", "SnapshotFooter"),
    5: ("KRaftVersionRecord", "KRaftVersion"),
    6: ("VotersRecord", "KRaftVoters"),
}


def decoder(name: str) -> Decoder:
    """Return a decoder by the name of its flag without ``-decoder``."""
    if name == "cluster-metadata":
        return _cluster_metadata
    if name not in COORDINATORS:
        raise InvalidArgumentError(f"no decoder for {name}")
    return _Coordinator(name)


def reason(error: Exception) -> str:
    """Return an error's text without the place."""
    return error.reason if isinstance(error, CorruptionError) else str(error)


class _Coordinator:
    """Keys begin with the record's type, values with their version."""

    def __init__(self, name: str) -> None:
        self._keys: dict[int, Message] = {}
        self._values: dict[int, Message] = {}
        for message in table(name).values():
            if message.id is not None:
                side = self._keys if message.name.endswith("Key") else self._values
                side[message.id] = message

    def __call__(self, record: RawRecord) -> tuple[str | None, str | None]:
        offset, _, _, key, value, _ = record
        if key is None:
            raise CorruptionError(
                f"Failed to decode message at offset {offset} using the specified decoder "
                "(message had a missing key)"
            )
        try:
            data = Reader(key)
            kind = _version(data, "key")
            if kind not in self._keys:
                return f"Unknown record type {kind} at offset {offset}, skipping.", None
            shown: Json = {"type": str(kind), "data": _read(self._keys[kind], data, 0, "key")}
            return to_json(shown), self._value(kind, value)
        except FormatError as error:
            return f"Error at offset {offset}, skipping. {reason(error)}", None

    def _value(self, kind: int, value: bytes | None) -> str:
        if value is None:
            return "<DELETE>"
        data = Reader(value)
        version = _version(data, "value")
        message = self._values[kind]
        fields = _read(message, data, version, "value")
        if message.name == "GroupMetadataValue" and fields.get("protocolType") == "consumer":
            _open_members(fields)
        return to_json({"version": str(version), "data": fields})


def _read(message: Message, data: Reader, version: int, what: str) -> dict[str, Json]:
    try:
        return read_message(message, data, version)
    except FormatError as error:
        raise CorruptionError(
            f"Could not read record with version {version} from {what}'s buffer due to: {reason(error)}."
        ) from error


def _version(data: Reader, what: str) -> int:
    if data.remaining() < 2:
        raise CorruptionError(f"Could not read version from {what}'s buffer.")
    return data.integer("int16")


def _open_members(fields: dict[str, Json]) -> None:
    """Decode the two opaque fields of a member where a consumer wrote them; leave other bytes as they are."""
    members, messages = fields.get("members"), table("consumer-protocol")
    for member in members if isinstance(members, list) else []:
        if not isinstance(member, dict):
            continue
        for name, protocol in (
            ("subscription", "ConsumerProtocolSubscription"),
            ("assignment", "ConsumerProtocolAssignment"),
        ):
            content = member.get(name)
            if isinstance(content, bytes):
                data = Reader(content)
                try:
                    version = data.integer("int16")
                    member[name] = read_message(messages[protocol], data, version)
                except FormatError:
                    continue


@cache
def _metadata_messages() -> dict[int, Message]:
    return {message.id: message for message in table("cluster-metadata").values() if message.id is not None}


def _framing(data: Reader, what: str) -> int:
    try:
        value = data.unsigned_varint()
    except CorruptionError:
        raise CorruptionError(f"Error while reading {what}") from None
    if value > MAX_VERSION:
        raise CorruptionError(f"Value for {what} was too large.")
    return value


def _cluster_metadata(record: RawRecord) -> tuple[str | None, str | None]:
    """Frame version, type and version as varints, then the message."""
    offset, value = record[0], record[4]
    try:
        data = Reader(value or b"")
        frame = _framing(data, "frame version")
        if frame == 0:
            raise CorruptionError(
                "Could not deserialize metadata record with frame version 0. Note that upgrades from the "
                "preview release of KRaft in 2.8 to newer versions are not supported."
            )
        if frame != 1:
            raise CorruptionError(
                f"Could not deserialize metadata record due to unknown frame version {frame}"
                "(only frame version 1 is supported)"
            )
        kind, version = _framing(data, "type"), _framing(data, "version")
        message = _metadata_messages().get(kind)
        if message is None:
            raise CorruptionError(f"Unknown metadata id {kind}")
        shown: Json = {
            "type": re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.name).upper(),
            "version": version,
            "data": read_message(message, data, version),
        }
        if data.remaining():
            raise CorruptionError(f"Found {data.remaining()} byte(s) of garbage after {kind}")
    except FormatError as error:
        return None, f"Error at {offset}, skipping. {reason(error)}"
    return None, to_json(shown)


# -- control records -------------------------------------------------------------------------------------


def _control_type(record: RawRecord) -> int:
    key = record[3]
    if key is None or len(key) < 4:
        raise CorruptionError(
            "Invalid value size found for control record key. Must have at least 4 bytes, "
            f"but found only {0 if key is None else len(key)}"
        )
    data = Reader(key)
    version = data.integer("int16")
    if version < 0:
        raise CorruptionError(f"Invalid version found for control record: {version}")
    return data.integer("int16")


def control_facts(record: RawRecord) -> dict[str, Json]:
    """Return a control record's content for JSON; raise CorruptionError if it has none."""
    kind = _control_type(record)
    value = record[4]
    data = Reader(value or b"")
    if kind in CONTROL_TYPES:
        version = data.integer("int16")
        if version < 0:
            raise CorruptionError(f"Invalid version found for end transaction marker: {version}")
        return {"endTxnMarker": CONTROL_TYPES[kind], "coordinatorEpoch": data.integer("int32")}
    if kind in KRAFT_CONTROL:
        name, label = KRAFT_CONTROL[kind]
        message = table("control")[name]
        version = int.from_bytes((value or b"")[:2], "big")  # the message's own first field
        return {label.rstrip(":"): read_message(message, data, version)}
    return {"controlType": f"UNKNOWN({kind})"}


def control_text(record: RawRecord) -> bytes:
    """Return what Kafka's tool appends to a control record's line."""
    facts = control_facts(record)
    kind = _control_type(record)
    if kind in KRAFT_CONTROL:
        label = KRAFT_CONTROL[kind][1]
        return f" {label} {to_json(facts[label.rstrip(':')])}".encode()
    return "".join(f" {name}: {value!s}" for name, value in facts.items()).encode()
