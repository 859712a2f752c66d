"""Changing a store from any process: the table of operations, and the client that asks for them.

An operation is a function of an open store, with the JSON form of its arguments and of its result
(`operation`). The process that holds a store runs operations for others through its control socket. When no
process holds the store, the client opens it and runs the same function itself.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from stratalog.config.settings import INT_MAX
from stratalog.errors import (
    ControlError,
    InvalidArgumentError,
    InvalidRecordError,
    RecordTooLargeError,
    StoreLockedError,
    StratalogError,
)
from stratalog.format import batch as batches
from stratalog.format.journal import staged_file
from stratalog.format.metadata import text_to_id
from stratalog.fs import RealFileSystem
from stratalog.log.arguments import check_list
from stratalog.log.check.repair import RepairReport
from stratalog.log.clean import CleanReport
from stratalog.log.clean.remote_compaction import Cleaned, CleaningTask
from stratalog.log.names import LOCK
from stratalog.model import AppendedRange, Record
from stratalog.store import topic_import
from stratalog.store.admin.control import MAX_PAYLOAD_BYTES, ControlClient, Progress
from stratalog.store.groups.offsets import TopicPartition, check_name
from stratalog.store.journal.journal import Committed
from stratalog.store.lifecycle.reports import EraseReport, LifecycleReport, PartitionNumbers
from stratalog.store.paths import Paths, path_list
from stratalog.store.store import Store, open_store

NO_TIMESTAMP = -1
"""Travels with a record that has none yet; the holder's time takes its place."""

MAX_APPEND_RECORDS = 1_000_000
"""The most records one request may append; decoded, a small record takes many times its bytes."""

APPEND_BYTES = 32 << 20
"""The most one request carries, unless one record alone is larger."""

ANSWER_S = 2.0
"""A holder that takes longer to say that it is there is read beside."""

SETTLE_S = 2.0
SETTLE_POLL_S = 0.02

P = ParamSpec("P")
T = TypeVar("T")

# -- values as JSON --------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


class Json(NamedTuple):
    """How an argument or a result travels: its name in errors, the test of its JSON form, both ways."""

    name: str = "JSON"
    accepts: Callable[[object], bool] = lambda value: True
    pack: Callable[[Any], Any] = _same
    unpack: Callable[[Any], Any] = _same

    def or_none(self) -> Json:
        """Return the same for a value that may be None."""
        return Json(
            f"{self.name} or null",
            lambda value: value is None or self.accepts(value),
            lambda value: None if value is None else self.pack(value),
            lambda value: None if value is None else self.unpack(value),
        )


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


def _is_staged(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 3 and _is_text(value[0]) and all(map(_is_number, value[1:]))
    )


def _is_place(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_text(value[0]) and _is_number(value[1])


def _is_offset(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and _is_place(value[:2]) and _is_number(value[2])


def _list_of(
    name: str,
    accepts: Callable[[object], bool] = lambda value: True,
    pack: Callable[[Any], Any] = _same,
    unpack: Callable[[Any], Any] = _same,
) -> Json:
    return Json(
        f"a list of {name}",
        lambda value: isinstance(value, list) and all(accepts(each) for each in value),
        lambda values: [pack(each) for each in values],
        lambda values: [unpack(each) for each in values],
    )


PLAIN = Json()
TEXT = Json("text", _is_text)
NUMBER = Json("an integer of 64 bits", _is_number)
POSITIVE = Json("a positive integer", lambda value: _is_number(value) and value > 0)  # type: ignore[operator]
FLAG = Json("true or false", lambda value: isinstance(value, bool))
SETTINGS = Json(
    "an object with settings",
    lambda value: isinstance(value, dict) and all(_is_text(k) and _is_setting(v) for k, v in value.items()),
    lambda value: dict(value or {}),
)
KEYS = _list_of("keys in hexadecimal", _is_hex, lambda key: key.hex(), bytes.fromhex)
TOKENS = _list_of("text", _is_text)
PLACES = _list_of("places (topic, partition)", _is_place, list, tuple)
OFFSETS = Json(
    "a list of offsets (topic, partition, offset)",
    lambda value: isinstance(value, list) and all(map(_is_offset, value)),
    lambda offsets: [[*at, offset] for at, offset in offsets.items()],
    lambda rows: {(topic, partition): offset for topic, partition, offset in rows},
)
STAGED_PARTITIONS = _list_of(
    "staged partitions (directory, log start, first base offset)",
    _is_staged,
    list,
    lambda each: topic_import.Staged(*each),
)
STAGED_FILES = _list_of("staged files", lambda value: isinstance(value, list), list, staged_file)
CLEANED = Json(
    "an object", lambda value: isinstance(value, dict), lambda cleaned: cleaned.to_json(), Cleaned.from_json
)
RANGES = _list_of("ranges", pack=list, unpack=lambda placed: AppendedRange(*placed))
COMMITTED = Json(pack=lambda done: done._asdict(), unpack=lambda told: Committed(**told))


def _report(kind: Any) -> Json:
    return Json(pack=kind.to_json, unpack=kind.from_json)


REPORT = _report(LifecycleReport)
TASK = _report(CleaningTask).or_none()
LENT = Json(
    pack=lambda lent: {"report": REPORT.pack(lent[0]), "token": lent[1], "task": TASK.pack(lent[2])},
    unpack=lambda told: (REPORT.unpack(told["report"]), str(told["token"]), TASK.unpack(told["task"])),
)

# -- the table -------------------------------------------------------------------------------------------


class Command(NamedTuple):
    """An operation as the table has it: ``run(store, **arguments)``, with ``progress`` if it takes that."""

    run: Callable[..., Any]
    arguments: Mapping[str, Json]
    result: Json = PLAIN
    takes_progress: bool = False
    takes_payload: bool = False


COMMANDS: dict[str, Command] = {}


def operation(
    act: Callable[Concatenate[Store, P], T], result: Json = PLAIN, **arguments: Json
) -> Callable[Concatenate[AdminClient, P], T]:
    """Enter a function into the table under its name; return the client's method that asks for it."""
    name, signature = act.__name__, inspect.signature(act)
    COMMANDS[name] = Command(act, arguments, result, "progress" in signature.parameters)

    @wraps(act)
    def ask(self: AdminClient, /, *args: P.args, **options: P.kwargs) -> T:
        given = signature.bind(self, *args, **options)
        given.apply_defaults()
        packed = {each: _packed(name, each, kind, given.arguments[each]) for each, kind in arguments.items()}
        told: T = result.unpack(self.ask(name, packed, b"", given.arguments.get("progress")))
        return told

    return ask


def _packed(name: str, argument: str, kind: Json, value: object) -> object:
    try:
        return kind.pack(value)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name}: {argument} must be {kind.name}: {error}") from error


def run_command(
    store: Store, name: object, arguments: object, payload: bytes = b"", progress: Progress | None = None
) -> Any:
    """Check an operation and its arguments against the table and run it; return its result as JSON."""
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
    given: dict[str, Any] = {}
    for argument, kind in command.arguments.items():
        if not kind.accepts(arguments[argument]):
            raise InvalidArgumentError(f"{name}: {argument} must be {kind.name}")
    for argument, kind in command.arguments.items():
        try:
            given[argument] = kind.unpack(arguments[argument])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ControlError(f"{name}: {argument} must be {kind.name}: {error}") from error
    if command.takes_progress:
        given["progress"] = progress
    if command.takes_payload:
        given["payload"] = payload
    return command.result.pack(command.run(store, **given))


def payload_limit(store: Store, header: dict[str, Any]) -> int:
    """Return how many bytes may follow the header of a request: as many as a record of its topic may have."""
    arguments = header.get("arguments")
    topic = (
        arguments.get("topic") if header.get("command") == "append" and isinstance(arguments, dict) else None
    )
    if not isinstance(topic, str) or topic not in store.topics():
        return MAX_PAYLOAD_BYTES
    config = store.topic(topic).config
    limit = max(MAX_PAYLOAD_BYTES, min(config.max_message_bytes, config.segment_bytes))
    if header["payload"] > limit:
        raise RecordTooLargeError(
            f"{topic}: a record of {header['payload']} bytes is larger than {limit}, the smaller of"
            f" max.message.bytes={config.max_message_bytes} and segment.bytes={config.segment_bytes}"
        )
    return limit


# -- operations that are not methods of `Store` ----------------------------------------------------------


def ping(store: Store) -> dict[str, Any]:
    return {"topics": len(store.topics())}


def create_topic(
    store: Store, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Create a topic; return the number of its partitions and its id."""
    topic = store.create_topic(name, partitions, config)
    return {"partitions": topic.partitions, "id": topic.id}


def alter_topic(store: Store, name: str, changes: Mapping[str, str | None]) -> None:
    """Change settings of a topic; None deletes an override."""
    store.alter_topic(name, changes)


def describe_topic(store: Store, name: str) -> dict[str, Any]:
    """Return the number of a topic's partitions and its id."""
    topic = store.topic(name)
    return {"partitions": topic.partitions, "id": topic.id}


def append(
    store: Store, topic: str, partition: int | None, sync: bool, payload: bytes
) -> list[AppendedRange]:
    scan = batches.scan(payload, check_crc=True)
    if scan.end != len(payload) or any(header.codec or header.is_control for header in scan):
        raise ControlError("append: the payload must be whole, uncompressed batches of records")
    if scan.records > MAX_APPEND_RECORDS:
        raise ControlError(f"append: {scan.records} records in one request; {MAX_APPEND_RECORDS} at most")
    records = [
        record._replace(timestamp=None) if record.timestamp == NO_TIMESTAMP else record
        for record in batches.decode_records(payload, scan, topic="", partition=-1)
    ]
    return store.topic(topic).append_many(records, partition=partition, sync=sync)


def commit_offsets(store: Store, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets of a group."""
    store.groups.offsets.commit(check_name(group), offsets)


def forget_offsets(store: Store, group: str, places: Collection[TopicPartition]) -> None:
    """Delete committed offsets of a group."""
    store.groups.offsets.forget(check_name(group), dict.fromkeys(places))


def roll(store: Store, topic: str, partition: int | None = None) -> int:
    """Seal the active segments of a topic; return how many were not empty."""
    return store.topic(topic).roll(partition)


def delete_records(store: Store, topic: str, partition: int, before_offset: int) -> int:
    """Move the log start offset up to ``before_offset``, -1 for the high watermark; return the new one."""
    return store.topic(topic).delete_records(partition, before_offset)


def move_partition(store: Store, topic: str, partition: int, to: str) -> None:
    """Move a partition to another log directory of the store; appends wait, reads continue."""
    store.move_partition(topic, partition, to)


def repair(store: Store, topic: str, partition: int, *, action: str, dry_run: bool = False) -> RepairReport:
    """Rebuild or drop damaged data according to ``action``; ``dry_run`` changes nothing."""
    return store.repair(topic, partition, action=action, dry_run=dry_run)


def stage_topic(store: Store, name: str, partitions: int) -> list[str]:
    """Choose where to build the partitions of a topic that is to come in whole; see `topic_import`."""
    return topic_import.stage(store.partitions, name, partitions)


def _take_in_topic(
    store: Store, name: str, config: Mapping[str, str], staged: Sequence[topic_import.Staged], **more: str
) -> None:
    topic_import.take_in(store.partitions, name, text_to_id(more["id"]), config, staged)


operation(ping)
COMMANDS["append"] = Command(
    append, {"topic": TEXT, "partition": NUMBER.or_none(), "sync": FLAG}, RANGES, takes_payload=True
)
COMMANDS["take_in_topic"] = Command(
    _take_in_topic, {"name": TEXT, "id": TEXT, "config": SETTINGS, "staged": STAGED_PARTITIONS}
)


class AdminClient:
    """A client that changes a store, opened in this process or in another one.

    ``remote`` is True if another process, ``pid``, holds the store; ``paths`` are the given log directories.
    """

    def __init__(
        self,
        ask: Callable[[str, dict[str, Any], bytes, Progress | None], Any],
        close: Callable[[], None],
        *,
        remote: bool,
        pid: int | None,
        paths: Sequence[str] = (),
    ) -> None:
        self.ask = ask
        """Runs a command of the table: its name, arguments as JSON, payload and progress; JSON back."""
        self.close = close
        self.remote = remote
        self.pid = pid
        self.paths = tuple(paths)

    @classmethod
    def of(cls, store: Store, paths: Sequence[str] = ()) -> AdminClient:
        """Return a client of a store that is open in this process; closing it closes the store."""
        return cls(partial(run_command, store), store.close, remote=False, pid=None, paths=paths)

    @classmethod
    def through(cls, client: ControlClient, pid: int | None, paths: Sequence[str] = ()) -> AdminClient:
        """Return a client that sends its calls to the process that holds the store."""
        return cls(
            lambda *asked: client.request(*asked).header.get("result"),
            client.close,
            remote=True,
            pid=pid,
            paths=paths,
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(
        self, topic: str, records: Iterable[Record], partition: int | None = None, sync: bool = False
    ) -> list[AppendedRange]:
        """Append records; those without a timestamp get the time of the process that holds the store."""
        arguments = {"topic": topic, "partition": partition, "sync": sync}
        given = check_list("records", records, "records")
        for index, record in enumerate(given):
            if not isinstance(record, Record):
                raise InvalidRecordError(f"record {index}: it must be a Record, not {type(record).__name__}")
        ranges: list[AppendedRange] = []
        for first in range(0, len(given), MAX_APPEND_RECORDS):
            rows = [
                record if record.timestamp is not None else record._replace(timestamp=NO_TIMESTAMP)
                for record in given[first : first + MAX_APPEND_RECORDS]
            ]
            at = 0
            while at < len(rows):
                encoded, at = _encoded(rows, at)
                ranges += RANGES.unpack(self.ask("append", arguments, bytes(encoded.data), None))
        return ranges

    def take_in_topic(
        self, name: str, topic_id: str, config: Mapping[str, str], staged: Sequence[tuple[str, int, int]]
    ) -> None:
        """Make staged partitions (directory, log start, first base offset) a topic of the store."""
        places = STAGED_PARTITIONS.pack(staged)
        arguments = {"name": name, "id": topic_id, "config": dict(config), "staged": places}
        self.ask("take_in_topic", arguments, b"", None)

    create_topic = operation(create_topic, name=TEXT, partitions=NUMBER.or_none(), config=SETTINGS)
    describe_topic = operation(describe_topic, name=TEXT)
    commit_offsets = operation(commit_offsets, group=TEXT, offsets=OFFSETS)
    forget_offsets = operation(forget_offsets, group=TEXT, places=PLACES)
    add_partitions = operation(Store.add_partitions, name=TEXT, total=NUMBER)
    delete_topic = operation(Store.delete_topic, name=TEXT)
    alter_topic = operation(alter_topic, name=TEXT, changes=SETTINGS)
    roll = operation(roll, topic=TEXT, partition=NUMBER.or_none())
    flush = operation(Store.flush)
    delete_records = operation(delete_records, topic=TEXT, partition=NUMBER, before_offset=NUMBER)
    move_partition = operation(move_partition, topic=TEXT, partition=NUMBER, to=TEXT)
    repair = operation(repair, _report(RepairReport), topic=TEXT, partition=NUMBER, action=TEXT, dry_run=FLAG)
    lifecycle = operation(
        Store.lifecycle, _list_of("numbers", pack=PartitionNumbers.to_json, unpack=PartitionNumbers.from_json)
    )
    retain = operation(Store.retain, REPORT, topic=TEXT.or_none(), preview=FLAG)
    compact = operation(
        Store.compact,
        REPORT,
        topic=TEXT.or_none(),
        partition=NUMBER.or_none(),
        preview=FLAG,
        force=FLAG,
    )
    lend_compaction = operation(
        Store.lend_compaction, LENT, topic=TEXT, partition=NUMBER, force=FLAG, beside=POSITIVE
    )
    extend_loans = operation(Store.extend_loans, tokens=TOKENS)
    take_in_compaction = operation(
        Store.take_in_compaction, _report(CleanReport).or_none(), token=TEXT, cleaned=CLEANED.or_none()
    )
    archive = operation(Store.archive, REPORT, topic=TEXT.or_none(), preview=FLAG)
    take_over_archive = operation(Store.take_over_archive, topic=TEXT)
    janitor = operation(Store.janitor, REPORT, topic=TEXT.or_none(), preview=FLAG)
    accept_clock = operation(Store.accept_clock)
    erase = operation(Store.erase, _report(EraseReport), topic=TEXT, keys=KEYS, reason=TEXT, dry_run=FLAG)
    stage_topic = operation(stage_topic, name=TEXT, partitions=NUMBER)
    commit_staged = operation(
        Store.commit_staged, COMMITTED, query=TEXT, batch=NUMBER, files=STAGED_FILES, job=FLAG
    )


def _encoded(rows: list[Record], at: int) -> tuple[batches.Encoded, int]:
    """Return a batch from the row ``at`` on, and the row after it: `APPEND_BYTES` at most, or one record."""
    options = batches.BatchOptions(base_offset=0, leader_epoch=0, now_ms=0, max_bytes=APPEND_BYTES)
    try:
        return batches.encode_records(rows, at, options=options)
    except RecordTooLargeError:
        return batches.encode_records(rows[: at + 1], at, options=replace(options, max_bytes=INT_MAX))


def connect(
    paths: Paths,
    config: Mapping[str, object] | None = None,
    *,
    create: bool = False,
    remember: bool = True,
    read_only: bool = False,
    timeout_s: float = 30.0,
) -> AdminClient:
    """Return a client for the store at ``paths``: opened here, or connected to the process that holds it.

    A process that is just opening or closing the store has the lock but no socket: this waits briefly for
    it. With ``read_only`` only previews and statistics are available, and nothing is written; if the process
    that holds the store does not answer, its files are read directly.
    """
    given = path_list(RealFileSystem(), paths)
    if read_only:
        return _connect_read_only(given, config, timeout_s)
    deadline = time.monotonic() + min(SETTLE_S, timeout_s)
    while True:
        try:
            return AdminClient.of(open_store(paths, config, create=create, remember=remember), given)
        except StoreLockedError as locked:
            late = time.monotonic() >= deadline
            if locked.control is None:
                if late or locked.pid is None:
                    raise
            else:
                try:
                    client = ControlClient(locked.control, locked.pid, timeout_s)
                    return AdminClient.through(client, locked.pid, given)
                except ControlError:
                    if late:
                        raise
        time.sleep(SETTLE_POLL_S)


def _connect_read_only(
    paths: list[str], config: Mapping[str, object] | None, timeout_s: float
) -> AdminClient:
    for path in paths:
        holder = RealFileSystem().lock_holder(f"{path}/{LOCK}") or {}
        address, pid = holder.get("control"), holder.get("pid")
        if isinstance(address, str) and isinstance(pid, int):
            # A stopped process takes the connection all the same: the kernel accepts it.
            with suppress(StratalogError):
                with closing(ControlClient(address, pid, min(ANSWER_S, timeout_s))) as first:
                    first.request("ping", {})
                return AdminClient.through(ControlClient(address, pid, timeout_s), pid)
    return AdminClient.of(open_store(paths, config, read_only=True))
