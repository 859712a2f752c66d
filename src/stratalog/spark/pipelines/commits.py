"""Rows of a DataFrame into topics by one commit of the sink, exactly once for each (query, batch).

``df.write.format("stratalog")`` gives every write an id of its own, so a pipeline that died and is run again
would write twice. Here the id is the pipeline's (`Commit`). Tasks stage the rows (`stratalog.spark.sink`)
after a `Prepare` of the pipeline had them. The commit puts the staged files in order, adds rows of the
driver's own (see `pipeline_offsets`), and the store takes in everything or nothing.

The store refuses a commit as a whole. So `Admit` decides row by row before anything is staged, by the topic's
settings, and a row that the topic does not take becomes a dead letter in a topic of its own:

    topic      <topic>.dead-letters, created when first needed: one partition, no retention limit
    key        the record's, where it is known
    value      what could not be taken, byte for byte: the line, the record's value, the row as JSON
    headers    reason     why, for people
               source which pipeline: "ingest orders" where a file, or "orders-3@1234" (topic, partition,
               offset) truncated its size in bytes, when it is too large even for this topic; the first bytes
               are here
    timestamp  when it became one

Crash policy: that of the sink. The counts come back to the driver in a file of the staging directory, which
is swept like everything there that no commit will take.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.errors import (
    InvalidRecordError,
    RecordTooLargeError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from stratalog.format import batch as batches
from stratalog.format.journal import StagedFile
from stratalog.fs import RealFileSystem
from stratalog.spark.pipelines.executors import ours
from stratalog.spark.session import replacing_quietly
from stratalog.spark.sink import (
    DEFAULT_TIMEOUT_S,
    Sink,
    discard,
    driver_of,
    never_committed,
    stage_rows,
    task_number,
)
from stratalog.store.admin.admin import connect
from stratalog.store.catalog import no_topic
from stratalog.store.journal.staging import Place, root_of
from stratalog.store.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION = "partition"
COLUMNS = ("value", "key", "topic", "timestamp", "headers")
"""The columns of rows when they are staged; `PARTITION` too where a commit asks for it."""
_REPORT = "counts"

Order = tuple[str, int]
"""Where in the input the rows of a task come from; tasks are committed in this order, then in Spark's."""


@dataclass
class Tally:
    """What a task notes down while its rows pass."""

    counts: Counter[str] = field(default_factory=Counter)
    order: Order = ("", 0)


Prepare = Callable[[Iterator[pa.RecordBatch], Tally], Iterator[pa.RecordBatch]]
"""Runs in the tasks: rows of the frame in, rows with `COLUMNS` out. Picklable."""
Check = Callable[[Counter[str]], None]
"""Runs before the commit, with the counts; if it raises, nothing is taken in. Picklable."""
Note = Callable[[Counter[str]], pa.RecordBatch]
"""Runs before the commit, with the counts; returns more rows of the commit. Picklable."""


@dataclass(frozen=True)
class Commit:
    """One (query, batch) of a store, to be written. ``job``: an id that is used once and then forgotten."""

    paths: tuple[str, ...]
    query: str
    batch: int
    job: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    owner: str = field(default_factory=driver_of)

    def write(
        self,
        frame: DataFrame,
        prepare: Prepare,
        *,
        partition: bool = False,
        check: Check | None = None,
        notes: Mapping[str, Note] | None = None,
    ) -> Counter[str]:
        """Write a frame's rows, and ``notes`` by topic; durable on return, and a no-op when this id was
        committed before.

        Tasks are committed in the order of their tallies. ``partition``: rows may name theirs. Returns what
        the tasks counted, also for a no-op: only the notes tell whether it was one.
        """
        columns = (*COLUMNS, PARTITION) if partition else COLUMNS
        sink = Sink(self.paths, None, columns, self.owner, self.timeout_s)
        writer = _Writer(self, sink, prepare, check, dict(notes or {}))
        try:
            try:
                with _format(frame.sparkSession, writer) as name:
                    frame.write.format(name).mode("append").save()
            except (PySparkException, Py4JError) as error:
                known = ours(error)
                if known is None or "stratalog.errors." not in str(error):
                    raise
                raise known from error
            return Counter(json.loads(RealFileSystem().read_file(f"{self.report}/{_REPORT}")))
        finally:
            self._forget()

    @property
    def place(self) -> Place:
        return Place(self.query, self.batch, self.owner)

    @property
    def report(self) -> str:
        """The directory for the counts. Named like a staged batch, so it is swept like one."""
        return f"{root_of(self.paths[0])}/{Place(f'{self.query}.report', self.batch, self.owner).name}"

    def _forget(self) -> None:
        fs = RealFileSystem()
        with suppress(FileNotFoundError, StorageError):
            fs.remove_tree(self.report)
        with suppress(FileNotFoundError, StorageError):
            fs.remove_dir(root_of(self.paths[0]))


@dataclass
class _Part(WriterCommitMessage):
    """What one task staged."""

    order: Order
    task: int
    files: list[StagedFile]
    counts: Counter[str]


@dataclass
class _Writer(DataSourceArrowWriter):
    """Travels to the tasks and to the commit."""

    to: Commit
    sink: Sink
    prepare: Prepare
    check: Check | None
    notes: dict[str, Note]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Part:
        tally = Tally()
        staged = self.sink.stage(self.prepare(iterator, tally), self.to.query, self.to.batch)
        return _Part(tally.order, task_number(), staged.files, tally.counts)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = sorted(
            (each for each in messages if isinstance(each, _Part)), key=lambda part: (part.order, part.task)
        )
        counts: Counter[str] = Counter()
        for part in parts:
            counts += part.counts
        try:
            if self.check is not None:
                self.check(counts)
            files = [file for part in parts for file in part.files]
            for topic, note in self.notes.items():
                files += stage_rows(
                    [note(counts)], self.to.paths, self.to.place, topic=topic, task=len(parts)
                )
            fs = RealFileSystem()
            fs.make_dir(self.to.report)
            fs.write_file(f"{self.to.report}/{_REPORT}", json.dumps(counts).encode(), sync=False)
        except BaseException:
            discard(self.to.paths, self.to.place)
            raise
        self.sink.commit(self.to.query, self.to.batch, files, job=self.to.job)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if never_committed(messages):
            discard(self.to.paths, self.to.place)


_busy: set[int] = set()
_busy_lock = threading.Lock()


@contextmanager
def _format(spark: SparkSession, writer: _Writer) -> Iterator[str]:
    """Register a format that is this writer. Names are used again, so that a session keeps few of them, but
    never by two commits at the same time."""
    with _busy_lock:
        slot = next(number for number in itertools.count() if number not in _busy)
        _busy.add(slot)
    try:
        name = f"stratalog_commit_{slot}"
        with replacing_quietly(spark):
            # Spark warns that the last one of the name is replaced.
            spark.dataSource.register(type("Once", (_Once,), {"made": writer, "known_as": name}))
        yield name
    finally:
        with _busy_lock:
            _busy.discard(slot)


class _Once(DataSource):
    """Brings a `_Writer` to Spark: made anew for every commit, with the writer in it."""

    made: _Writer
    known_as: str

    @classmethod
    def name(cls) -> str:
        return cls.known_as

    def schema(self) -> StructType:
        return StructType([])

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:
        return self.made


# -- topics ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """The records that a topic takes."""

    topic: str
    topic_id: str
    partitions: int
    max_batch_bytes: int
    needs_key: bool
    before_ms: int | None
    after_ms: int | None


def rules_of(paths: tuple[str, ...], topic: str) -> Rules:
    """Read the rules from the store; raise UnknownTopicError if it has no such topic."""
    with open_store(list(paths), read_only=True) as store:
        if topic not in store.topics():
            missing = no_topic(topic, store.topics(), f" in {', '.join(paths)}")
            way_out = f"pass partitions to create it, or run 'stratalog topic create {topic}'"
            raise UnknownTopicError(f"{missing}; {way_out}")
        found = store.topic(topic)
        config = found.config
        checked = not config.log_append_time
        return Rules(
            topic,
            found.id or "",
            found.partitions,
            min(config.max_message_bytes, config.segment_bytes),
            config.compact,
            config.message_timestamp_before_max_ms if checked else None,
            config.message_timestamp_after_max_ms if checked else None,
        )


def make_topics(paths: tuple[str, ...], wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
    """Create the topics that are missing, each with partitions and settings. Opens the store for writing or
    reaches its holder, so commits that were decided before are finished on return."""
    with connect(list(paths)) as client, open_store(list(paths), read_only=True) as store:
        existing = set(store.topics())
        for name, (partitions, config) in wanted.items():
            if name not in existing:
                with suppress(TopicExistsError):
                    client.create_topic(name, partitions, config)


# -- dead letters ------------------------------------------------------------------------------------


SUFFIX = ".dead-letters"
DEAD_LETTERS_CONFIG = {"retention.ms": "-1", "cleanup.policy": "delete"}
DEAD_LETTERS = "dead_letters"
"""The name under which tasks count them."""
ROOM_BYTES = 8 << 10
"""For the key's, the headers' and the batch's own bytes beside a value that is cut."""
LONGEST_TEXT = 2000
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def dead_letter_topic(topic: str) -> str:
    """Return the default topic for the dead letters of a topic."""
    return topic[: 249 - len(SUFFIX)] + SUFFIX


@dataclass(frozen=True)
class DeadLetters:
    """In the tasks: rows with ``reason`` and ``where`` (strings), ``value`` and perhaps ``key`` (binary)
    become records of the topic. ``max_bytes`` is its largest batch. Picklable."""

    topic: str
    source: str
    max_bytes: int

    def __call__(self, batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            if rows.num_rows:
                yield self.records(rows, tally)

    def records(self, rows: pa.RecordBatch, tally: Tally) -> pa.RecordBatch:
        count, most = rows.num_rows, max(self.max_bytes - ROOM_BYTES, 0)
        tally.counts[DEAD_LETTERS] += count
        values = rows.column("value")
        keys = rows.column("key") if "key" in rows.schema.names else pa.nulls(count, pa.binary())
        fits = pc.less_equal(pc.fill_null(pc.binary_length(keys), 0), min(most, ROOM_BYTES // 4))
        sizes = pc.fill_null(pc.binary_length(values), 0).to_pylist()
        if max(sizes) > most:
            values = pa.array(
                [each if each is None else each[:most] for each in values.to_pylist()], pa.binary()
            )
        columns = (rows.column("reason").to_pylist(), rows.column("where").to_pylist(), sizes)
        headers = [self._headers(*each, most) for each in zip(*columns, strict=True)]
        made = {
            "key": pc.if_else(fits, keys, pa.scalar(None, pa.binary())),
            "value": values,
            "timestamp": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "headers": pa.array(headers, _HEADERS),
        }
        return with_topic(pa.RecordBatch.from_pydict(made), self.topic)

    def _headers(
        self, reason: str | None, where: str | None, size: int, most: int
    ) -> list[dict[str, object]]:
        texts = {"reason": reason or "", "source": self.source, "where": where or ""}
        if size > most:
            texts["truncated"] = str(size)
        return [
            {"key": name, "value": text[:LONGEST_TEXT].encode()[:LONGEST_TEXT]}
            for name, text in texts.items()
        ]


def send_dead_letters(
    frame: DataFrame, *, paths: tuple[str, ...], topic: str, source: str, query: str, batch: int
) -> int:
    """Send rows as `DeadLetters` takes them to the dead letters of ``topic``, in one commit; return how many
    there were.

    Exactly once for each (``query``, ``batch``), where the batches of a query come in rising order: called
    again with the same ids it changes nothing.
    """
    target = dead_letter_topic(topic)
    make_topics(paths, {target: (1, DEAD_LETTERS_CONFIG)})
    letters = DeadLetters(target, source, rules_of(paths, target).max_batch_bytes)
    return Commit(paths, query, batch).write(frame, letters)[DEAD_LETTERS]


def with_topic(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    return rows.append_column("topic", pa.repeat(pa.scalar(topic, pa.string()), rows.num_rows))


# -- admission ---------------------------------------------------------------------------------------


SLACK_MS = 10 * 60_000
"""A commit may come this long after its rows were checked: those nearly too old are too old."""
RECORD_ROOM = batches.HEADER_SIZE + 40
"""The most that a batch of one record takes beside its key, value and headers."""
HEADER_ROOM = 10
REASON, WHERE, RAW, START = "reason", "where", "raw", "start"
INPUT = ("key", "value", "timestamp", "headers", PARTITION, REASON, WHERE, RAW, START)
"""Columns of the frames: those of a record; why it is none; where it is; what it is; where in its file."""
RECORDS, BYTES = "records", "bytes"
WHY = "why: "
"""Prefix of a reason, under which tasks count how often it occurred."""
_RECORD = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True)
class Admit:
    """In the tasks: rows that the topic takes go to it, the others to its dead letters. Picklable."""

    rules: Rules
    letters: DeadLetters
    partition: bool = False
    explain: Callable[[str, bytes | None], str] | None = None
    """Adds to a reason, given what could not be taken."""

    def __call__(self, batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            if not rows.num_rows:
                continue
            if START in rows.schema.names and tally.order == ("", 0):
                tally.order = (rows.column(WHERE)[0].as_py() or "", rows.column(START)[0].as_py() or 0)
            yield from self.sorted_out(rows, tally)

    def sorted_out(self, rows: pa.RecordBatch, tally: Tally) -> Iterator[pa.RecordBatch]:
        """Turn rows with the columns `INPUT` into those to be staged."""
        reasons = self._reasons(rows)
        taken = rows
        if reasons.null_count < len(reasons):
            taken = rows.filter(pc.is_null(reasons))
            for each in pc.value_counts(reasons.drop_null()).to_pylist():
                tally.counts[WHY + each["values"]] += each["counts"]
            yield self._dead(rows.set_column(rows.schema.get_field_index(REASON), REASON, reasons), tally)
        if not taken.num_rows:
            return
        tally.counts[RECORDS] += taken.num_rows
        for name in ("key", "value"):
            tally.counts[BYTES] += pc.sum(pc.binary_length(taken.column(name))).as_py() or 0
        names = [name for name in COLUMNS if name != "topic"]
        if self.partition:
            names.append(PARTITION)
        yield with_topic(taken.select(names), self.rules.topic)

    def _dead(self, rows: pa.RecordBatch, tally: Tally) -> pa.RecordBatch:
        dead = rows.filter(pc.is_valid(rows.column(REASON)))
        value = pc.coalesce(dead.column(RAW), dead.column("value"))
        reasons = dead.column(REASON)
        if self.explain is not None:
            pairs = zip(reasons.to_pylist(), value.to_pylist(), strict=True)
            reasons = pa.array([self.explain(*pair) for pair in pairs], pa.string())
        columns = {"key": dead.column("key"), "value": value, "reason": reasons, "where": dead.column(WHERE)}
        made = self.letters.records(pa.RecordBatch.from_pydict(columns), tally)
        if self.partition:
            made = made.append_column(PARTITION, pa.nulls(made.num_rows, pa.int32()))
        return made

    def _reasons(self, rows: pa.RecordBatch) -> pa.Array:
        """Return why each row is not taken; null where it is. The first reason counts."""
        rules, reasons = self.rules, rows.column(REASON)
        stamps = pc.cast(rows.column("timestamp"), pa.int64())  # microseconds
        checks = [(pc.less(stamps, 0), "its timestamp is before 1970")]
        if rules.needs_key:
            reason = f"{rules.topic} is compacted: every record needs a key"
            checks.insert(0, (pc.is_null(rows.column("key")), reason))
        if rules.after_ms is not None and rules.before_ms is not None:
            now_ms = time.time_ns() // 1_000_000
            last_us = min((now_ms + rules.after_ms) * 1000, 2**63 - 1)
            first_us = max((now_ms - rules.before_ms + SLACK_MS) * 1000, 0)
            late = f"its timestamp is later than message.timestamp.after.max.ms={rules.after_ms} allows"
            old = f"its timestamp is older than message.timestamp.before.max.ms={rules.before_ms} allows"
            checks += [(pc.greater(stamps, last_us), late), (pc.less(stamps, first_us), old)]
        if self.partition:
            number = rows.column(PARTITION)
            wrong = pc.or_(pc.less(number, 0), pc.greater_equal(number, rules.partitions))
            checks.append((wrong, f"its partition is none of 0 to {rules.partitions - 1} of {rules.topic}"))
        for wrong, reason in checks:
            wrong = pc.fill_null(wrong, False)
            if pc.any(wrong).as_py():
                fresh = pc.and_(wrong, pc.is_null(reasons))
                reasons = pc.if_else(fresh, pa.scalar(reason, pa.string()), reasons)
        return self._unfit(rows, reasons)

    def _unfit(self, rows: pa.RecordBatch, reasons: pa.Array) -> pa.Array:
        """Encode the few rows that could be too large, or have a header without a name, to find out."""
        size = pc.add(_length(rows.column("key")), _length(rows.column("value")))
        most = self.rules.max_batch_bytes - RECORD_ROOM
        headers = rows.column("headers")
        if headers.null_count < len(headers):
            size = pc.add(size, _header_bytes(headers, nameless=most + 1))
        doubtful = pc.and_(pc.greater(size, most), pc.is_null(reasons))
        if not pc.any(doubtful).as_py():
            return reasons
        found = reasons.to_pylist()
        for at in pc.indices_nonzero(doubtful).to_pylist():
            found[at] = self._refused(rows.slice(at, 1).select(_RECORD))
        return pa.array(found, pa.string())

    def _refused(self, row: pa.RecordBatch) -> str | None:
        try:
            batches.encode_arrow(
                row,
                options=batches.BatchOptions(
                    base_offset=0, leader_epoch=-1, now_ms=0, max_bytes=self.rules.max_batch_bytes
                ),
            )
        except RecordTooLargeError:
            return (
                f"the record is too large: a batch of {self.rules.topic} has at most"
                f" {self.rules.max_batch_bytes} bytes (max.message.bytes, segment.bytes)"
            )
        except InvalidRecordError as error:
            return str(error).removeprefix("record 0: ")
        return None


def _length(column: pa.Array) -> pa.Array:
    return pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())


def _header_bytes(column: pa.Array, nameless: int) -> pa.Array:
    """Return the most that the headers of each row take; ``nameless`` for one without a name."""
    pairs = pc.list_flatten(column)
    names, contents = pc.struct_field(pairs, 0), pc.struct_field(pairs, 1)
    sizes = pc.add(pc.add(_length(names), _length(contents)), HEADER_ROOM)
    sizes = pc.if_else(pc.is_null(names), pa.scalar(nameless, pa.int64()), sizes)
    rows = pa.table({"row": pc.list_parent_indices(column), "size": sizes})
    found = rows.group_by("row").aggregate([("size", "sum")])
    totals = [0] * len(column)
    for row, size in zip(found.column("row").to_pylist(), found.column("size_sum").to_pylist(), strict=True):
        totals[row] = size
    return pa.array(totals, pa.int64())
