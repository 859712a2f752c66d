"""The two forms of a dump: the lines of Kafka's tool, or one JSON object a line.

Turns facts into lines of an ``Output`` and touches nothing else. Batches and plain records are printed
in Kafka's form by the kernel; what is here is everything else, and the whole of the JSON form:

    {"type": "file", "path": …}               {"type": "log", "baseOffset": …}
    {"type": "batch", …}                      the fields of Kafka's line; deleteHorizonMs null when unset
    {"type": "record", …}                     key and payload when contents are asked for; text where the
                                              bytes are UTF-8, else keyBase64 and payloadBase64
    {"type": "offsetIndexEntry", …}  {"type": "timeIndexEntry", …}  {"type": "abortedTxn", …}
    {"type": "producer", …}  {"type": "emptyIndex", …}  {"type": "sane", …}  {"type": "trailingBytes", …}
"""

from __future__ import annotations

import base64
import json
from typing import Protocol

from stratalog.cli.dump.kernel import RawRecord
from stratalog.cli.dump.output import Output
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn

Facts = dict[str, object]


class Printer(Protocol):
    """One line for each thing a file can hold."""

    def file(self, path: str) -> None: ...

    def log_start(self, base_offset: int) -> None: ...

    def snapshot_start(self, offset: int, epoch: int) -> None: ...

    def bootstrap_start(self) -> None: ...

    def trailing_bytes(self, count: int, name: str) -> None: ...

    def empty_index(self, path: str) -> None: ...

    def sane(self, path: str) -> None: ...

    def offset_entry(self, offset: int, position: int) -> None: ...

    def time_entry(self, timestamp: int, offset: int) -> None: ...

    def aborted_txn(self, version: int, txn: AbortedTxn) -> None: ...

    def producer(self, entry: ProducerEntry) -> None: ...


def first_sequence(entry: ProducerEntry) -> int:
    """Of a producer's last batch; sequences wrap at 2**31 - 1."""
    if entry.last_sequence < entry.offset_delta:
        return 2**31 - 1 - (entry.offset_delta - entry.last_sequence) + 1
    return entry.last_sequence - entry.offset_delta


class TextPrinter:
    """Kafka's lines."""

    def __init__(self, out: Output) -> None:
        self._line = out.line

    def file(self, path: str) -> None:
        self._line(f"Dumping {path}")

    def log_start(self, base_offset: int) -> None:
        self._line(f"Log starting offset: {base_offset}")

    def snapshot_start(self, offset: int, epoch: int) -> None:
        self._line(f"Snapshot end offset: {offset}, epoch: {epoch}")

    def bootstrap_start(self) -> None:
        self._line("KRaft bootstrap snapshot")

    def trailing_bytes(self, count: int, name: str) -> None:
        self._line(f"Found {count} invalid bytes at the end of {name}")

    def empty_index(self, path: str) -> None:
        self._line(f"{path} is empty.")

    def sane(self, path: str) -> None:
        self._line(f"{path} passed sanity check.")

    def offset_entry(self, offset: int, position: int) -> None:
        self._line(f"offset: {offset} position: {position}")

    def time_entry(self, timestamp: int, offset: int) -> None:
        self._line(f"timestamp: {timestamp} offset: {offset}")

    def aborted_txn(self, version: int, txn: AbortedTxn) -> None:
        self._line(
            f"version: {version} producerId: {txn.producer_id} firstOffset: {txn.first_offset} "
            f"lastOffset: {txn.last_offset} lastStableOffset: {txn.last_stable_offset}"
        )

    def producer(self, entry: ProducerEntry) -> None:
        first = entry.current_txn_first_offset
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {f'OptionalLong[{first}]' if first >= 0 else 'OptionalLong.empty'} "
            f"lastTimestamp: {entry.timestamp}"
        )
        if entry.last_offset >= 0:  # a producer that has written nothing since its snapshot has no batch
            line += (
                f" firstSequence: {first_sequence(entry)} lastSequence: {entry.last_sequence} "
                f"lastOffset: {entry.last_offset} offsetDelta: {entry.offset_delta} "
                f"timestamp: {entry.timestamp}"
            )
        self._line(line)


def _bytes(name: str, data: bytes | None) -> Facts:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data).decode("ascii")}


class JsonPrinter:
    """One object a line."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def _put(self, kind: str, **facts: object) -> None:
        # ASCII only: the escapes keep even undecodable file names in one valid line.
        self._out.line(json.dumps({"type": kind, **facts}, separators=(",", ":")))

    def file(self, path: str) -> None:
        self._put("file", path=path)

    def log_start(self, base_offset: int) -> None:
        self._put("log", baseOffset=base_offset)

    def snapshot_start(self, offset: int, epoch: int) -> None:
        self._put("snapshot", endOffset=offset, epoch=epoch)

    def bootstrap_start(self) -> None:
        self._put("bootstrapSnapshot")

    def trailing_bytes(self, count: int, name: str) -> None:
        self._put("trailingBytes", bytes=count, name=name)

    def empty_index(self, path: str) -> None:
        self._put("emptyIndex", path=path)

    def sane(self, path: str) -> None:
        self._put("sane", path=path)

    def offset_entry(self, offset: int, position: int) -> None:
        self._put("offsetIndexEntry", offset=offset, position=position)

    def time_entry(self, timestamp: int, offset: int) -> None:
        self._put("timeIndexEntry", timestamp=timestamp, offset=offset)

    def aborted_txn(self, version: int, txn: AbortedTxn) -> None:
        self._put(
            "abortedTxn",
            version=version,
            producerId=txn.producer_id,
            firstOffset=txn.first_offset,
            lastOffset=txn.last_offset,
            lastStableOffset=txn.last_stable_offset,
        )

    def producer(self, entry: ProducerEntry) -> None:
        first = entry.current_txn_first_offset
        facts: Facts = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": first if first >= 0 else None,
            "lastTimestamp": entry.timestamp,
        }
        if entry.last_offset >= 0:
            facts["firstSequence"] = first_sequence(entry)
            facts["lastSequence"] = entry.last_sequence
            facts["lastOffset"] = entry.last_offset
            facts["offsetDelta"] = entry.offset_delta
            facts["timestamp"] = entry.timestamp
        self._put("producer", **facts)

    def batch(self, facts: Facts) -> None:
        self._put("batch", **facts)

    def record(self, record: RawRecord, time_type: str, metadata: bool, extra: Facts) -> None:
        """A record; ``extra`` is what a decoder or a control record adds."""
        offset, timestamp, sequence, key, value, headers = record
        facts: Facts = {}
        if metadata:
            facts = {
                "offset": offset,
                "timestampType": time_type,
                "timestamp": timestamp,
                "keySize": -1 if key is None else len(key),
                "valueSize": -1 if value is None else len(value),
                "sequence": sequence,
                "headers": [{**_bytes("key", name), **_bytes("value", data)} for name, data in headers],
            }
        self._put("record", **facts, **extra)

    @staticmethod
    def contents(key: bytes | None, value: bytes | None) -> Facts:
        return {**_bytes("key", key), **_bytes("payload", value)}
