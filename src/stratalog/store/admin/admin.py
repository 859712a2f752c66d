"""Changing a store from any process: open it, or ask the process that has it open."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from stratalog.errors import ControlError, StoreLockedError
from stratalog.format import batch as batches
from stratalog.format.journal import StagedFile
from stratalog.fs import RealFileSystem
from stratalog.log.check.repair import RepairReport
from stratalog.log.clean import CleanReport
from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask
from stratalog.model import AppendedRange, Record
from stratalog.store.admin.commands import MAX_APPEND_RECORDS, NO_TIMESTAMP, run_command
from stratalog.store.admin.control import ControlClient, Progress
from stratalog.store.journal.journal import Committed
from stratalog.store.lifecycle.reports import EraseReport, LifecycleReport, PartitionNumbers
from stratalog.store.logdir import LOCK
from stratalog.store.paths import Paths, path_list
from stratalog.store.store import Store, open_store

APPEND_BYTES = 32 << 20
"""The most one request carries, and so the largest record that can be appended this way."""

SETTLE_S = 2.0
SETTLE_POLL_S = 0.02


class _Door(Protocol):
    def request(
        self,
        command: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        progress: Progress | None = None,
    ) -> Any: ...

    def close(self) -> None: ...


class _Local:
    """Nobody holds the store: it is opened here."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def request(
        self,
        command: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        progress: Progress | None = None,
    ) -> Any:
        return run_command(self._store, command, arguments, payload, progress)

    def close(self) -> None:
        self._store.close()


class _Remote:
    """Another process holds it and is asked through its control socket."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def request(
        self,
        command: str,
        arguments: dict[str, Any],
        payload: bytes = b"",
        progress: Progress | None = None,
    ) -> Any:
        return self._client.request(command, arguments, payload, progress).header.get("result")

    def close(self) -> None:
        self._client.close()


class AdminClient:
    """Everything that changes a store, wherever it is open. `remote` tells which way it goes."""

    def __init__(self, door: _Door, *, remote: bool, pid: int | None, paths: Sequence[str] = ()) -> None:
        self._door = door
        self.remote = remote
        self.pid = pid
        self.paths = tuple(paths)
        """The log directories that were given."""

    @classmethod
    def of(cls, store: Store, paths: Sequence[str] = ()) -> AdminClient:
        """Return a client of a store that is open in this process; closing it closes the store."""
        return cls(_Local(store), remote=False, pid=None, paths=paths)

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
        for first in range(0, len(records), MAX_APPEND_RECORDS):
            rows = [
                record if record.timestamp is not None else record._replace(timestamp=NO_TIMESTAMP)
                for record in records[first : first + MAX_APPEND_RECORDS]
            ]
            ranges += self._append_rows(topic, rows, partition, sync)
        return ranges

    def _append_rows(
        self, topic: str, rows: list[Record], partition: int | None, sync: bool
    ) -> list[AppendedRange]:
        ranges: list[AppendedRange] = []
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

    def lifecycle(self) -> list[PartitionNumbers]:
        """Segments, bytes and files of every partition by state, and what is past due."""
        return [PartitionNumbers.from_json(each) for each in self._door.request("lifecycle", {})]

    def retain(self, topic: str | None = None, *, preview: bool = False) -> LifecycleReport:
        """Delete what retention says; ``preview`` only tells."""
        return self._run("retain", {"topic": topic, "preview": preview}, None)

    def compact(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        preview: bool = False,
        force: bool = False,
        progress: Progress | None = None,
    ) -> LifecycleReport:
        """Compact what is due, or with ``force`` whatever can be compacted."""
        arguments = {"topic": topic, "partition": partition, "preview": preview, "force": force}
        return self._run("compact", arguments, progress)

    def lend_compaction(
        self, topic: str, partition: int, *, force: bool = False, beside: int = 1
    ) -> tuple[LifecycleReport, str, CleaningTask | None]:
        """Borrow a partition that is due for compaction: the loan's token and what there is to do."""
        arguments = {"topic": topic, "partition": partition, "force": force, "beside": beside}
        told = self._door.request("lend_compaction", arguments)
        task = None if told["task"] is None else CleaningTask.from_json(told["task"])
        return LifecycleReport.from_json(told["report"]), str(told["token"]), task

    def extend_loans(self, tokens: Sequence[str]) -> list[str]:
        """Say that the borrower of these loans lives; which of them still stand."""
        return list(self._door.request("extend_loans", {"tokens": list(tokens)}))

    def take_in_compaction(self, token: str, cleaned: Cleaned | None) -> CleanReport | None:
        """Have a compaction that was borrowed swapped in; with None give it up."""
        arguments = {"token": token, "cleaned": None if cleaned is None else cleaned.to_json()}
        told = self._door.request("take_in_compaction", arguments)
        return None if told is None else CleanReport.from_json(told)

    def archive(
        self, topic: str | None = None, *, preview: bool = False, progress: Progress | None = None
    ) -> LifecycleReport:
        """Copy sealed segments to the archive, and let local copies go whose time is up."""
        return self._run("archive", {"topic": topic, "preview": preview}, progress)

    def take_over_archive(self, topic: str) -> None:
        """Make this store the one that writes a topic's archive, whoever did before."""
        self._door.request("take_over_archive", {"topic": topic})

    def janitor(
        self, topic: str | None = None, *, preview: bool = False, progress: Progress | None = None
    ) -> LifecycleReport:
        """One round of everything."""
        return self._run("janitor", {"topic": topic, "preview": preview}, progress)

    def accept_clock(self) -> None:
        """The wall clock is right after all: deletion, paused because it jumped, goes on."""
        self._door.request("accept_clock", {})

    def erase(
        self,
        topic: str,
        keys: Iterable[bytes],
        *,
        reason: str = "",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> EraseReport:
        """Remove every record of these keys, wherever the store or its archive has one."""
        arguments = {
            "topic": topic,
            "keys": [key.hex() for key in keys],
            "reason": reason,
            "dry_run": dry_run,
        }
        return EraseReport.from_json(self._door.request("erase", arguments, progress=progress))

    def _run(self, command: str, arguments: dict[str, Any], progress: Progress | None) -> LifecycleReport:
        return LifecycleReport.from_json(self._door.request(command, arguments, progress=progress))

    def stage_topic(self, name: str, partitions: int) -> list[str]:
        """Where to build the partitions of a topic that is to come in whole; see `topic_import`."""
        return list(self._door.request("stage_topic", {"name": name, "partitions": partitions}))

    def take_in_topic(
        self, name: str, topic_id: str, config: Mapping[str, str], staged: Sequence[tuple[str, int, int]]
    ) -> None:
        """Make staged partitions (directory, log start, first base offset) a topic of the store."""
        arguments = {
            "name": name,
            "id": topic_id,
            "config": dict(config),
            "staged": [list(s) for s in staged],
        }
        self._door.request("take_in_topic", arguments)

    def commit_staged(
        self,
        query: str,
        batch: int,
        files: Iterable[StagedFile],
        *,
        job: bool = False,
        progress: Progress | None = None,
    ) -> Committed:
        """Take staged files in as one commit, exactly once for each (query, batch); durable on return."""
        arguments = {"query": query, "batch": batch, "job": job, "files": [list(each) for each in files]}
        done = self._door.request("commit_staged", arguments, progress=progress)
        return Committed(done["duplicate"], done["records"])

    def close(self) -> None:
        self._door.close()


def connect(
    paths: Paths,
    config: Mapping[str, object] | None = None,
    *,
    create: bool = False,
    remember: bool = True,
    read_only: bool = False,
    timeout_s: float = 30.0,
) -> AdminClient:
    """A way to change the store at ``paths``: opened here when nobody holds it, else through the holder.

    A holder that is just opening or closing the store has the lock and no socket: it is waited for a moment.
    With ``read_only`` only previews and numbers can be asked for, and nothing is written: a holder that
    cannot be reached is read beside.
    """
    if read_only:
        return _connect_read_only(paths, config, timeout_s)
    given = path_list(RealFileSystem(), paths)
    deadline = time.monotonic() + min(SETTLE_S, timeout_s)
    while True:
        try:
            store = open_store(paths, config, create=create, remember=remember)
            return AdminClient.of(store, given)
        except StoreLockedError as locked:
            late = time.monotonic() >= deadline
            if locked.control is None:
                if late or locked.pid is None:
                    raise
            else:
                try:
                    client = ControlClient(locked.control, locked.pid, timeout_s)
                    return AdminClient(_Remote(client), remote=True, pid=locked.pid, paths=given)
                except ControlError:
                    if late:
                        raise
        time.sleep(SETTLE_POLL_S)


def _connect_read_only(paths: Paths, config: Mapping[str, object] | None, timeout_s: float) -> AdminClient:
    fs = RealFileSystem()
    for path in path_list(fs, paths):
        holder = fs.lock_holder(f"{path}/{LOCK}") or {}
        address, pid = holder.get("control"), holder.get("pid")
        if isinstance(address, str) and isinstance(pid, int):
            with suppress(ControlError):
                return AdminClient(_Remote(ControlClient(address, pid, timeout_s)), remote=True, pid=pid)
    return AdminClient.of(open_store(paths, config, read_only=True))
