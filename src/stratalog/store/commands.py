"""What can be asked of a store from outside: one table of commands, run by the holder.

Each takes the store, JSON arguments, a payload and a way to tell how far it is, and returns a JSON result.
The command line runs the very same functions when nobody holds the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratalog.errors import ControlError
from stratalog.format import batch as batches
from stratalog.format.journal import staged_file
from stratalog.format.metadata import text_to_id
from stratalog.log.cleaner.elsewhere import Cleaned
from stratalog.store import arriving

if TYPE_CHECKING:
    from stratalog.store.control import Progress
    from stratalog.store.store import Store

NO_TIMESTAMP = -1
"""Travels with a record that has none yet; the holder's time takes its place."""

Command = Callable[["Store", dict[str, Any], bytes, "Progress | None"], Any]


def _ping(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return {"topics": len(store.topics())}


def _create_topic(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    topic = store.create_topic(arguments["name"], arguments["partitions"], arguments["config"])
    return {"partitions": topic.partitions, "id": topic.id}


def _add_partitions(
    store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None
) -> Any:
    store.add_partitions(arguments["name"], arguments["total"])


def _delete_topic(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    store.delete_topic(arguments["name"])


def _alter_topic(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    store.alter_topic(arguments["name"], arguments["changes"])


def _append(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    records = batches.decode_records(payload, batches.scan(payload), topic="", partition=-1)
    records = [
        record._replace(timestamp=None) if record.timestamp == NO_TIMESTAMP else record for record in records
    ]
    ranges = store.topic(arguments["topic"]).append_many(
        records, partition=arguments["partition"], sync=arguments["sync"]
    )
    return [list(placed) for placed in ranges]


def _roll(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return store.topic(arguments["topic"]).roll(arguments["partition"])


def _flush(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    store.flush()


def _delete_records(
    store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None
) -> Any:
    return store.topic(arguments["topic"]).delete_records(arguments["partition"], arguments["before_offset"])


def _move_partition(
    store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None
) -> Any:
    store.move_partition(arguments["topic"], arguments["partition"], arguments["to"])


def _repair(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    report = store.repair(
        arguments["topic"], arguments["partition"], action=arguments["action"], dry_run=arguments["dry_run"]
    )
    return report.to_json()


def _lifecycle(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return [numbers.to_json() for numbers in store.lifecycle()]


def _retain(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return store.retain(arguments["topic"], preview=arguments["preview"]).to_json()


def _compact(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    report = store.compact(
        arguments["topic"],
        arguments["partition"],
        preview=arguments["preview"],
        force=arguments["force"],
        progress=progress,
    )
    return report.to_json()


def _archive(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return store.archive(arguments["topic"], preview=arguments["preview"], progress=progress).to_json()


def _take_over_archive(
    store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None
) -> Any:
    store.take_over_archive(arguments["topic"])


def _janitor(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return store.janitor(arguments["topic"], preview=arguments["preview"], progress=progress).to_json()


def _accept_clock(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    store.accept_clock()


def _erase(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    keys = [bytes.fromhex(key) for key in arguments["keys"]]
    report = store.erase(
        arguments["topic"],
        keys,
        reason=arguments["reason"],
        dry_run=arguments["dry_run"],
        progress=progress,
    )
    return report.to_json()


def _stage_topic(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return arriving.stage(store._partitions, arguments["name"], arguments["partitions"])


def _take_in_topic(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    staged = [arriving.Staged(*each) for each in arguments["staged"]]
    topic_id = text_to_id(arguments["id"])
    arriving.take_in(store._partitions, arguments["name"], topic_id, arguments["config"], staged)


def _commit_staged(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    try:
        files = [staged_file(each) for each in arguments["files"]]
    except (TypeError, ValueError) as error:
        raise ControlError(f"commit_staged: not a staged file: {error}") from error
    done = store.commit_staged(
        arguments["query"], arguments["batch"], files, job=arguments["job"], progress=progress
    )
    return {"duplicate": done.duplicate, "records": done.records}


def _lend_compaction(
    store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None
) -> Any:
    report, token, task = store.lend_compaction(
        arguments["topic"], arguments["partition"], force=arguments["force"], beside=arguments["beside"]
    )
    return {"report": report.to_json(), "token": token, "task": None if task is None else task.to_json()}


def _extend_loans(store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None) -> Any:
    return store.extend_loans(arguments["tokens"])


def _take_in_compaction(
    store: Store, arguments: dict[str, Any], payload: bytes, progress: Progress | None
) -> Any:
    try:
        cleaned = None if arguments["cleaned"] is None else Cleaned.from_json(arguments["cleaned"])
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError(f"take_in_compaction: not the outcome of a compaction: {error}") from error
    report = store.take_in_compaction(arguments["token"], cleaned)
    return None if report is None else report.to_json()


COMMANDS: dict[str, Command] = {
    "ping": _ping,
    "create_topic": _create_topic,
    "add_partitions": _add_partitions,
    "delete_topic": _delete_topic,
    "alter_topic": _alter_topic,
    "append": _append,
    "roll": _roll,
    "flush": _flush,
    "delete_records": _delete_records,
    "move_partition": _move_partition,
    "repair": _repair,
    "lifecycle": _lifecycle,
    "retain": _retain,
    "compact": _compact,
    "archive": _archive,
    "janitor": _janitor,
    "take_over_archive": _take_over_archive,
    "accept_clock": _accept_clock,
    "erase": _erase,
    "stage_topic": _stage_topic,
    "take_in_topic": _take_in_topic,
    "commit_staged": _commit_staged,
    "lend_compaction": _lend_compaction,
    "extend_loans": _extend_loans,
    "take_in_compaction": _take_in_compaction,
}

SLOW_COMMANDS = frozenset(
    {
        "delete_topic",
        "repair",
        "move_partition",
        "compact",
        "archive",
        "take_over_archive",
        "janitor",
        "erase",
        "commit_staged",
        "lend_compaction",
        "take_in_compaction",
    }
)
"""Run in a thread of their own, so that the holder's socket and clock go on meanwhile."""


def run_command(
    store: Store,
    command: str,
    arguments: dict[str, Any],
    payload: bytes,
    progress: Progress | None = None,
) -> Any:
    """Run one command by name."""
    run = COMMANDS.get(command)
    if run is None:
        raise ControlError(f"no control command {command!r}; is the holder an older version?")
    try:
        return run(store, arguments, payload, progress)
    except KeyError as error:
        raise ControlError(f"{command}: argument {error} is missing") from error


__all__ = ["COMMANDS", "SLOW_COMMANDS", "run_command"]
