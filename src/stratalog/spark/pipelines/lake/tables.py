"""What an export asks of its output, whatever the format.

An output holds each log (a partition of one topic id) up to an end offset. A `Change` adds files, moves the
ends and names the dead letters that belong to it; `LakeTable.commit` applies all of it at once, or nothing. A
commit raises `ConflictError` when another run moved one of the same ends first. The caller then reads the
ends again and plans again: exactly once needs nothing else.

Dead letters are Parquet files that the executors wrote. They are pending from the commit that names them
until they were sent: `pending` lists them with a number that is the same in every run, and `sent` ends it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from stratalog.errors import ConfigError, StoreError
from stratalog.format.metadata import id_to_text, parse_partition_metadata
from stratalog.fs import RealFileSystem
from stratalog.log.read.reader import LogView
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.lake.files import FileTarget, WrittenFile
from stratalog.spark.pipelines.lake.json_columns import Payload, ddl_of

COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")
"""Of a record; the topic is in the file's path, as Hive has it."""
LETTERS_PLACE = "_dead_letters"
"""Below the target: ``_dead_letters/<run>/….parquet``. Readers of a table skip names that begin with
``_``."""
RUN = "stratalog.run"
"""In a commit: which run made it."""
TOPIC_IDS = "stratalog.topic."
"""Table properties of this prefix hold the ids of the topics of each name."""


@dataclass(frozen=True, order=True, slots=True)
class Log:
    """One log: a topic that was deleted and created again has another id, and so is another log."""

    topic: str
    topic_id: str
    partition: int

    @property
    def key(self) -> str:
        """The name under which tables keep its end. A directory older than topic ids has no id."""
        return f"{self.topic_id or self.topic}:{self.partition}"


@dataclass(frozen=True)
class Letters:
    """A file with records of one topic that could not be decoded. ``name`` is relative to the target."""

    topic: str
    partition: int
    name: str
    records: int
    start: int = 0
    end: int = 0
    """The range of offsets it belongs to, where files hold one range each."""


@dataclass(frozen=True)
class Pending:
    """Dead letters of one topic that are committed and not yet known to be sent."""

    topic: str
    query: str
    batch: int
    """With ``query`` the id of the send; batches of a query rise."""
    files: tuple[str, ...]
    target: FileTarget
    """What reads the files."""


@dataclass(frozen=True)
class Dates:
    """Whole UTC days [since_ms, until_ms) of some topics, or of all."""

    topics: tuple[str, ...]
    since_ms: int
    until_ms: int


@dataclass(frozen=True)
class Change:
    """What one run adds to an output."""

    run: str
    """An id that no other run has."""
    before: Mapping[Log, int]
    """The ends this change was planned with; a log that is new is not among them."""
    ends: Mapping[Log, int]
    files: tuple[WrittenFile, ...]
    letters: tuple[Letters, ...] = ()
    replacing: Dates | None = None

    def check_ends(self, url: str, ends: Mapping[Log, int]) -> None:
        """Raise ConflictError if the table's ends are not those this change was planned with."""
        if ends != {log: self.before[log] for log in self.ends if log in self.before}:
            raise ConflictError(f"{url}: another export moved an end first; run this one again")

    def letters_by_topic(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for each in self.letters:
            found.setdefault(each.topic, []).append(each.name)
        return found


class ConflictError(StoreError):
    """Another run changed the output first; nothing of the change was applied."""


class LakeTable(Protocol):
    """An output of an export."""

    columns: tuple[str, ...]
    """The record columns that its data files have."""
    split: bool
    """True if each range of a log needs files of its own."""

    @property
    def url(self) -> str:
        """Where it is, for people."""

    def prepare(self, logs: Sequence[Log], payloads: Sequence[Payload], *, value: bool) -> list[Payload]:
        """Create the table if it does not exist; add the columns of the payloads, and the value's unless no
        row will have one; widen columns where the format can; note the topic ids.

        Return the payloads with the types that the table has. Raise ConfigError, before anything is changed,
        if a column cannot take its values.
        """

    def ends(self, logs: Sequence[Log]) -> dict[Log, int]:
        """Read the table as it is now; return the end offset of each log that it holds something of."""

    def ids_of(self, topic: str) -> set[str]:
        """Return the ids of the topics of this name that the table holds or was about to hold."""

    def oldest(self, dates: Dates) -> dict[Pair, int]:
        """Return the smallest offset of each partition that the table holds at these dates."""

    def target(self, run: str) -> FileTarget:
        """Return where the executors write the files of a run."""

    def commit(self, change: Change) -> int:
        """Apply a change; durable on return. Return how many files it replaced.

        Raise ConflictError only if nothing of it was applied; after another error it may have been.
        """

    def discard(self, run: str) -> None:
        """Remove the files of a run that did not commit."""

    def pending(self) -> list[Pending]:
        """Return the dead letters of earlier commits that are to be sent, oldest first."""

    def sent(self, letters: Pending) -> None:
        """Forget dead letters that were sent."""

    def merge(self, topics: Sequence[str], compression: str) -> int:
        """Make small files into larger ones; return how many files were replaced."""

    def facts(self) -> dict[str, object]:
        """Return details for the result of a run."""


def widest(
    known: Mapping[str, pa.DataType], payloads: Sequence[Payload]
) -> tuple[dict[str, pa.DataType], list[Payload]]:
    """Return the types that hold what the table has and what the payloads bring, by column; and the payloads
    with these types. Raise ConfigError where there is no such type."""
    kinds = dict(known)
    for payload in payloads:
        for each in payload.fields:
            kind = _wider(kinds.get(each.name, each.type), each.type)
            if kind is None:
                raise ConfigError(
                    f"schema: column {each.name} is {ddl_of(kinds[each.name])} in the table or in another"
                    f" topic's schema and {ddl_of(each.type)} here; give the field that type or export the"
                    " topic to another output"
                )
            kinds[each.name] = kind
    return kinds, [payload.with_types(kinds) for payload in payloads]


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both, as Iceberg promotes types; None if there is none."""
    if one == other:
        return one
    for same in (pa.types.is_signed_integer, pa.types.is_floating):
        if same(one) and same(other):
            return max(one, other, key=lambda kind: kind.bit_width)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
        return max(one, other, key=lambda kind: kind.precision)
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = _wider(one.value_type, other.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {each.name: each.type for each in one}
        for each in other:
            kinds[each.name] = _wider(kinds.get(each.name, each.type), each.type)
        return None if None in kinds.values() else pa.struct([*kinds.items()])
    return None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that a table's library reports as a schema has it: without large and view types."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, plain_type(each.type)) for each in kind])
    return kind


def ids_in(properties: Mapping[str, str], topic: str) -> set[str]:
    """Return the ids of the topics of this name that the table's properties name."""
    text = properties.get(TOPIC_IDS + topic)
    return set() if text is None else set(text.split(","))


def new_ids(properties: Mapping[str, str], logs: Sequence[Log]) -> dict[str, str]:
    """Return the properties to set before anything of these logs is written: the table may hold another topic
    of that name."""
    changed: dict[str, str] = {}
    for log in logs:
        known = ids_in(properties, log.topic)
        if log.topic_id not in known:
            changed[TOPIC_IDS + log.topic] = ",".join(sorted({*known, log.topic_id}))
    return changed


def smallest_offsets(rows: pa.Table) -> dict[Pair, int]:
    firsts = rows.group_by(["topic", "partition"]).aggregate([("offset", "min")])
    return {(row["topic"], row["partition"]): row["offset_min"] for row in firsts.to_pylist()}


def log_of(view: LogView) -> Log:
    """Return which log a partition is. Without a topic id if nothing names it (a directory older than topic
    ids)."""
    try:
        data = RealFileSystem().read_file(f"{view.directory}/partition.metadata")
        topic_id = id_to_text(parse_partition_metadata(data))
    except FileNotFoundError:  # an archive has the id in the names of its directories
        place = re.escape(view.topic) + r"-([A-Za-z0-9_-]{22})/" + str(view.partition)
        found = re.search(rf"/{place}(?:/|\Z)", view.directory)
        topic_id = "" if found is None else found[1]
    return Log(view.topic, topic_id, view.partition)
