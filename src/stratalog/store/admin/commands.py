"""What can be asked of a store from outside: one table of commands with the types of their arguments.

A command gets the store and a `Request` whose arguments were checked, and returns a JSON result. The holder
runs it for other processes; the command line runs the very same function when nobody holds the store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.errors import ControlError, InvalidArgumentError
from stratalog.format import batch as batches
from stratalog.format.journal import staged_file
from stratalog.format.metadata import text_to_id
from stratalog.log.clean.remote_compaction import Cleaned
from stratalog.store import topic_import

if TYPE_CHECKING:
    from stratalog.store.admin.control import Progress
    from stratalog.store.store import Store

NO_TIMESTAMP = -1
"""Travels with a record that has none yet; the holder's time takes its place."""

MAX_APPEND_RECORDS = 1_000_000
"""The most records one request may append; decoded, a small record takes many times its bytes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a command; its arguments by name."""

    arguments: Mapping[str, Any]
    payload: bytes
    progress: Progress | None

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


class Type(NamedTuple):
    """A type of arguments: its name for errors, and the test of a value."""

    name: str
    accepts: Callable[[object], bool]


class Command(NamedTuple):
    """A command as the table has it."""

    run: Callable[[Store, Request], Any]
    arguments: Mapping[str, Type]
    takes_payload: bool


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_setting(value: object) -> bool:
    finite = isinstance(value, float) and math.isfinite(value)
    return value is None or isinstance(value, bool) or _is_number(value) or finite or _is_text(value)


def _is_hex(value: object) -> bool:
    try:
        return isinstance(value, str) and value.isascii() and bytes.fromhex(value) is not None
    except ValueError:
        return False


def _list_of(name: str, accepts: Callable[[object], bool]) -> Type:
    return Type(
        f"a list of {name}", lambda value: isinstance(value, list) and all(accepts(each) for each in value)
    )


def _is_staged(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 3 and _is_text(value[0]) and all(map(_is_number, value[1:]))
    )


def _or_none(kind: Type) -> Type:
    return Type(f"{kind.name} or null", lambda value: value is None or kind.accepts(value))


_TEXT = Type("text", _is_text)
_NUMBER = Type("an integer of 64 bits", _is_number)
_POSITIVE = Type("a positive integer", lambda value: _is_number(value) and value > 0)  # type: ignore[operator]
_FLAG = Type("true or false", lambda value: isinstance(value, bool))
_OBJECT = Type("an object", lambda value: isinstance(value, dict))
_SETTINGS = Type(
    "an object with settings",
    lambda value: isinstance(value, dict) and all(_is_text(k) and _is_setting(v) for k, v in value.items()),
)

COMMANDS: dict[str, Command] = {}


def _command(
    takes_payload: bool = False, **arguments: Type
) -> Callable[[Callable[[Store, Request], Any]], Callable[[Store, Request], Any]]:
    """Enter a function into the table under its name."""

    def enter(run: Callable[[Store, Request], Any]) -> Callable[[Store, Request], Any]:
        COMMANDS[run.__name__] = Command(run, arguments, takes_payload)
        return run

    return enter


@_command()
def ping(store: Store, asked: Request) -> Any:
    return {"topics": len(store.topics())}


@_command(name=_TEXT, partitions=_or_none(_NUMBER), config=_SETTINGS)
def create_topic(store: Store, asked: Request) -> Any:
    topic = store.create_topic(asked["name"], asked["partitions"], asked["config"])
    return {"partitions": topic.partitions, "id": topic.id}


@_command(name=_TEXT, total=_NUMBER)
def add_partitions(store: Store, asked: Request) -> Any:
    store.add_partitions(asked["name"], asked["total"])


@_command(name=_TEXT)
def delete_topic(store: Store, asked: Request) -> Any:
    store.delete_topic(asked["name"])


@_command(name=_TEXT, changes=_SETTINGS)
def alter_topic(store: Store, asked: Request) -> Any:
    store.alter_topic(asked["name"], asked["changes"])


@_command(topic=_TEXT, partition=_or_none(_NUMBER), sync=_FLAG, takes_payload=True)
def append(store: Store, asked: Request) -> Any:
    scan = batches.scan(asked.payload, check_crc=True)
    if scan.end != len(asked.payload) or any(header.codec or header.is_control for header in scan):
        raise ControlError("append: the payload must be whole, uncompressed batches of records")
    if scan.records > MAX_APPEND_RECORDS:
        raise ControlError(f"append: {scan.records} records in one request; {MAX_APPEND_RECORDS} at most")
    records = [
        record._replace(timestamp=None) if record.timestamp == NO_TIMESTAMP else record
        for record in batches.decode_records(asked.payload, scan, topic="", partition=-1)
    ]
    ranges = store.topic(asked["topic"]).append_many(
        records, partition=asked["partition"], sync=asked["sync"]
    )
    return [list(placed) for placed in ranges]


@_command(topic=_TEXT, partition=_or_none(_NUMBER))
def roll(store: Store, asked: Request) -> Any:
    return store.topic(asked["topic"]).roll(asked["partition"])


@_command()
def flush(store: Store, asked: Request) -> Any:
    store.flush()


@_command(topic=_TEXT, partition=_NUMBER, before_offset=_NUMBER)
def delete_records(store: Store, asked: Request) -> Any:
    return store.topic(asked["topic"]).delete_records(asked["partition"], asked["before_offset"])


@_command(topic=_TEXT, partition=_NUMBER, to=_TEXT)
def move_partition(store: Store, asked: Request) -> Any:
    store.move_partition(asked["topic"], asked["partition"], asked["to"])


@_command(topic=_TEXT, partition=_NUMBER, action=_TEXT, dry_run=_FLAG)
def repair(store: Store, asked: Request) -> Any:
    report = store.repair(
        asked["topic"], asked["partition"], action=asked["action"], dry_run=asked["dry_run"]
    )
    return report.to_json()


@_command()
def lifecycle(store: Store, asked: Request) -> Any:
    return [numbers.to_json() for numbers in store.lifecycle()]


@_command(topic=_or_none(_TEXT), preview=_FLAG)
def retain(store: Store, asked: Request) -> Any:
    return store.retain(asked["topic"], preview=asked["preview"]).to_json()


@_command(topic=_or_none(_TEXT), partition=_or_none(_NUMBER), preview=_FLAG, force=_FLAG)
def compact(store: Store, asked: Request) -> Any:
    report = store.compact(
        asked["topic"],
        asked["partition"],
        preview=asked["preview"],
        force=asked["force"],
        progress=asked.progress,
    )
    return report.to_json()


@_command(topic=_or_none(_TEXT), preview=_FLAG)
def archive(store: Store, asked: Request) -> Any:
    return store.archive(asked["topic"], preview=asked["preview"], progress=asked.progress).to_json()


@_command(topic=_TEXT)
def take_over_archive(store: Store, asked: Request) -> Any:
    store.take_over_archive(asked["topic"])


@_command(topic=_or_none(_TEXT), preview=_FLAG)
def janitor(store: Store, asked: Request) -> Any:
    return store.janitor(asked["topic"], preview=asked["preview"], progress=asked.progress).to_json()


@_command()
def accept_clock(store: Store, asked: Request) -> Any:
    store.accept_clock()


@_command(topic=_TEXT, keys=_list_of("keys in hexadecimal", _is_hex), reason=_TEXT, dry_run=_FLAG)
def erase(store: Store, asked: Request) -> Any:
    report = store.erase(
        asked["topic"],
        [bytes.fromhex(key) for key in asked["keys"]],
        reason=asked["reason"],
        dry_run=asked["dry_run"],
        progress=asked.progress,
    )
    return report.to_json()


@_command(name=_TEXT, partitions=_NUMBER)
def stage_topic(store: Store, asked: Request) -> Any:
    return topic_import.stage(store.partitions, asked["name"], asked["partitions"])


@_command(
    name=_TEXT,
    id=_TEXT,
    config=_SETTINGS,
    staged=_list_of("staged partitions (directory, log start, first base offset)", _is_staged),
)
def take_in_topic(store: Store, asked: Request) -> Any:
    staged = [topic_import.Staged(*each) for each in asked["staged"]]
    topic_id = text_to_id(asked["id"])
    topic_import.take_in(store.partitions, asked["name"], topic_id, asked["config"], staged)


@_command(
    query=_TEXT,
    batch=_NUMBER,
    job=_FLAG,
    files=_list_of("staged files", lambda value: isinstance(value, list)),
)
def commit_staged(store: Store, asked: Request) -> Any:
    try:
        files = [staged_file(each) for each in asked["files"]]
    except (TypeError, ValueError) as error:
        raise ControlError(f"commit_staged: not a staged file: {error}") from error
    done = store.commit_staged(
        asked["query"], asked["batch"], files, job=asked["job"], progress=asked.progress
    )
    return {"duplicate": done.duplicate, "records": done.records}


@_command(topic=_TEXT, partition=_NUMBER, force=_FLAG, beside=_POSITIVE)
def lend_compaction(store: Store, asked: Request) -> Any:
    report, token, task = store.lend_compaction(
        asked["topic"], asked["partition"], force=asked["force"], beside=asked["beside"]
    )
    return {"report": report.to_json(), "token": token, "task": None if task is None else task.to_json()}


@_command(tokens=_list_of("text", _is_text))
def extend_loans(store: Store, asked: Request) -> Any:
    return store.extend_loans(asked["tokens"])


@_command(token=_TEXT, cleaned=_or_none(_OBJECT))
def take_in_compaction(store: Store, asked: Request) -> Any:
    try:
        cleaned = None if asked["cleaned"] is None else Cleaned.from_json(asked["cleaned"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ControlError(f"take_in_compaction: not the outcome of a compaction: {error}") from error
    report = store.take_in_compaction(asked["token"], cleaned)
    return None if report is None else report.to_json()


def run_command(
    store: Store, name: object, arguments: object, payload: bytes, progress: Progress | None = None
) -> Any:
    """Check a command and its arguments against the table, then run it."""
    command = COMMANDS.get(name) if isinstance(name, str) else None
    if command is None:
        raise ControlError(f"no control command {str(name)[:40]!r}; is the holder an older version?")
    if not isinstance(arguments, dict):
        raise ControlError(f"{name}: the arguments must be an object")
    if missing := command.arguments.keys() - arguments.keys():
        raise ControlError(f"{name}: argument {min(missing)!r} is missing")
    if unknown := arguments.keys() - command.arguments.keys():
        raise ControlError(f"{name}: no argument {min(unknown)!r}; is the holder an older version?")
    if payload and not command.takes_payload:
        raise ControlError(f"{name}: takes no payload")
    for argument, kind in command.arguments.items():
        if not kind.accepts(arguments[argument]):
            raise InvalidArgumentError(f"{name}: {argument} must be {kind.name}")
    return command.run(store, Request(arguments, payload, progress))


__all__ = ["COMMANDS", "run_command"]
