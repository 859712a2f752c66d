"""What can be asked of a store from outside: one table of commands, run by the holder.

Each takes the store, JSON arguments and a payload, and returns a JSON result. The command line runs the
very same functions when nobody holds the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratalog.errors import ControlError
from stratalog.format import batch as batches

if TYPE_CHECKING:
    from stratalog.store.store import Store

NO_TIMESTAMP = -1
"""Travels with a record that has none yet; the holder's time takes its place."""

Command = Callable[["Store", dict[str, Any], bytes], Any]


def _ping(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    return {"topics": len(store.topics())}


def _create_topic(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    topic = store.create_topic(arguments["name"], arguments["partitions"], arguments["config"])
    return {"partitions": topic.partitions, "id": topic.id}


def _add_partitions(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    store.add_partitions(arguments["name"], arguments["total"])


def _delete_topic(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    store.delete_topic(arguments["name"])


def _alter_topic(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    store.alter_topic(arguments["name"], arguments["changes"])


def _append(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    records = batches.decode_records(payload, batches.scan(payload), topic="", partition=-1)
    records = [
        record._replace(timestamp=None) if record.timestamp == NO_TIMESTAMP else record for record in records
    ]
    ranges = store.topic(arguments["topic"]).append_many(
        records, partition=arguments["partition"], sync=arguments["sync"]
    )
    return [list(placed) for placed in ranges]


def _roll(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    return store.topic(arguments["topic"]).roll(arguments["partition"])


def _flush(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    store.flush()


def _delete_records(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    return store.topic(arguments["topic"]).delete_records(arguments["partition"], arguments["before_offset"])


def _move_partition(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    store.move_partition(arguments["topic"], arguments["partition"], arguments["to"])


def _repair(store: Store, arguments: dict[str, Any], payload: bytes) -> Any:
    report = store.repair(
        arguments["topic"], arguments["partition"], action=arguments["action"], dry_run=arguments["dry_run"]
    )
    return report.to_json()


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
}


def run_command(store: Store, command: str, arguments: dict[str, Any], payload: bytes) -> Any:
    """Run one command by name."""
    run = COMMANDS.get(command)
    if run is None:
        raise ControlError(f"no control command {command!r}; is the holder an older version?")
    try:
        return run(store, arguments, payload)
    except KeyError as error:
        raise ControlError(f"{command}: argument {error} is missing") from error


__all__ = ["COMMANDS", "run_command"]
