"""Changing a store from any process: open it, or ask the process that has it open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from stratalog.errors import StoreLockedError
from stratalog.format import batch as batches
from stratalog.log.repair import RepairReport
from stratalog.model import AppendedRange, Record
from stratalog.store.commands import NO_TIMESTAMP, run_command
from stratalog.store.control import ControlClient
from stratalog.store.store import Store, open_store

APPEND_BYTES = 32 << 20
"""The most one request carries, and so the largest record that can be appended this way."""


class _Door(Protocol):
    def request(self, command: str, arguments: dict[str, Any], payload: bytes = b"") -> Any: ...

    def close(self) -> None: ...


class _Local:
    """Nobody holds the store: it is opened here."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def request(self, command: str, arguments: dict[str, Any], payload: bytes = b"") -> Any:
        return run_command(self._store, command, arguments, payload)

    def close(self) -> None:
        self._store.close()


class _Remote:
    """Another process holds it and is asked through its control socket."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def request(self, command: str, arguments: dict[str, Any], payload: bytes = b"") -> Any:
        return self._client.request(command, arguments, payload).header.get("result")

    def close(self) -> None:
        self._client.close()


class AdminClient:
    """Everything that changes a store, wherever it is open. `remote` tells which way it goes."""

    def __init__(self, door: _Door, *, remote: bool, pid: int | None) -> None:
        self._door = door
        self.remote = remote
        self.pid = pid

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        arguments = {"name": name, "partitions": partitions, "config": dict(config or {})}
        return dict(self._door.request("create_topic", arguments))

    def add_partitions(self, name: str, total: int) -> None:
        self._door.request("add_partitions", {"name": name, "total": total})

    def delete_topic(self, name: str) -> None:
        self._door.request("delete_topic", {"name": name})

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        self._door.request("alter_topic", {"name": name, "changes": dict(changes)})

    def append(
        self, topic: str, records: Sequence[Record], partition: int | None = None, sync: bool = False
    ) -> list[AppendedRange]:
        """Append records; those without a timestamp get the holder's time."""
        ranges: list[AppendedRange] = []
        rows = [
            record if record.timestamp is not None else record._replace(timestamp=NO_TIMESTAMP)
            for record in records
        ]
        at = 0
        while at < len(rows):
            encoded, at = batches.encode_records(
                rows,
                at,
                base_offset=0,
                leader_epoch=0,
                now_ms=0,
                timestamp_type=0,
                codec=0,
                level=None,
                max_bytes=APPEND_BYTES,
            )
            arguments = {"topic": topic, "partition": partition, "sync": sync}
            ranges += [
                AppendedRange(*placed)
                for placed in self._door.request("append", arguments, bytes(encoded.data))
            ]
        return ranges

    def roll(self, topic: str, partition: int | None = None) -> int:
        return int(self._door.request("roll", {"topic": topic, "partition": partition}))

    def flush(self) -> None:
        self._door.request("flush", {})

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        arguments = {"topic": topic, "partition": partition, "before_offset": before_offset}
        return int(self._door.request("delete_records", arguments))

    def move_partition(self, topic: str, partition: int, to: str) -> None:
        self._door.request("move_partition", {"topic": topic, "partition": partition, "to": to})

    def repair(self, topic: str, partition: int, *, action: str, dry_run: bool = False) -> RepairReport:
        arguments = {"topic": topic, "partition": partition, "action": action, "dry_run": dry_run}
        return RepairReport.from_json(self._door.request("repair", arguments))

    def close(self) -> None:
        self._door.close()


def connect(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    config: Mapping[str, object] | None = None,
    *,
    create: bool = False,
    timeout_s: float = 30.0,
) -> AdminClient:
    """A way to change the store at ``paths``: opened here when nobody holds it, else through the holder."""
    try:
        return AdminClient(_Local(open_store(paths, config, create=create)), remote=False, pid=None)
    except StoreLockedError as locked:
        if locked.control is None:
            raise
        client = ControlClient(locked.control, locked.pid, timeout_s)
        return AdminClient(_Remote(client), remote=True, pid=locked.pid)
