"""``df.write.format("stratalog")`` and ``writeStream``: exactly once, by staging and one commit.

Tasks stage record batches beside the log directories; the driver's commit hands the list of staged files to
the store, through its control socket when another process has it open, and the store takes them in at once or
at its next open, whatever crashes meanwhile (`stratalog.store.journal.journal`). A micro-batch that Spark
runs again has the same query and batch id and is a no-op. So has the n-th write to a topic in a
``foreachBatch``, and a batch write with ``txnAppId`` and ``txnVersion``; any other has an id of its own.
Files of failed and speculative tasks are not in the list and are removed by the next commit or open.

Columns are those of Spark's Kafka sink: ``value`` and optionally ``key``, ``topic``, ``partition``,
``headers``, and ``timestamp``; others are ignored, as there. Objects here travel between processes and hold
nothing open.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from stratalog import kernel
from stratalog.config.units import parse_duration_ms
from stratalog.errors import (
    ClosedError,
    ConfigError,
    ControlError,
    InvalidArgumentError,
    InvalidRecordError,
    StorageError,
    StoreLockedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from stratalog.format.journal import TARGET, StagedFile
from stratalog.format.metadata import id_to_text
from stratalog.fs import RealFileSystem
from stratalog.log.names import validate_topic
from stratalog.log.write.partitioner import STICKY_BYTES
from stratalog.spark.offsets import bad_option
from stratalog.spark.options import BATCH_ID, MICRO_BATCH, QUERY_ID, RUN_ID, Given, parse_options
from stratalog.spark.schema import HEADERS
from stratalog.spark.workers import FAILED, count_failed_write, counted_write
from stratalog.store.admin.admin import connect
from stratalog.store.journal import staging
from stratalog.store.journal.staging import Attempt, Place, TopicFacts, root_of
from stratalog.store.store import open_store

EVERY_TOPIC = "rows"
"""The target of rows that name their topics themselves."""
DEFAULT_TIMEOUT_S = 120.0
RETRY_S = 0.1
UNREACHED = "holds the store"
"""Part of errors about the holder process; other errors come from its reply."""

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}


@dataclass(frozen=True)
class Sink:
    """Where rows go. Picklable."""

    paths: tuple[str, ...]
    topic: str | None
    columns: tuple[str, ...]
    owner: str
    timeout_s: float
    target: str = EVERY_TOPIC
    """The id of the topic, or `EVERY_TOPIC`."""

    def stage(self, batches: Iterator[pa.RecordBatch], query: str, batch: int) -> Staged:
        place = Place(query, batch, self.owner)
        chosen = (each.select(list(self.columns)) for each in batches)
        files = stage_rows(chosen, self.paths, place, topic=self.topic, task=task_number())
        return Staged(query, batch, files)

    def commit(self, query: str, batch: int, files: Sequence[StagedFile], *, job: bool) -> None:
        """Hand the files over; retry until the time-out while the holder changes.

        If the time is up after the holder began, the commit may still happen, and the error says so.

        A retry is safe: it finds the commit done. What the store refuses before it decides is removed:
        settings changed since the tasks staged it, or a topic was deleted.
        """
        if not files:
            return
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                with connect(list(self.paths), timeout_s=self.timeout_s) as client:
                    client.commit_staged(query, batch, files, job=job)
                self._discard(files, but=query)
                return
            except (InvalidRecordError, UnknownTopicError, UnknownPartitionError):
                self._discard(files)
                raise
            except (StoreLockedError, ControlError, ClosedError) as error:
                if isinstance(error, ControlError) and UNREACHED not in str(error):
                    raise  # it answered
                if time.monotonic() + RETRY_S >= deadline or "did not answer" in str(error):
                    begun = isinstance(error, ControlError) and error.begun
                    outcome = "may still be committed" if begun else "was not committed"
                    raise ControlError(
                        f"batch {batch} of {query} {outcome} after {self.timeout_s:g} s: {error}"
                    ) from error
            time.sleep(RETRY_S)

    def _discard(self, files: Sequence[StagedFile], but: str = "") -> None:
        """Remove what was staged; the store itself removes what was staged for ``but``."""
        for place in {staging.check_name(file.name) for file in files}:
            if place.query != but:
                discard(self.paths, place)


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged."""

    query: str
    batch: int
    files: list[StagedFile]
    within: MicroBatch | None = None
    """The micro-batch whose ``foreachBatch`` writes."""


class MicroBatch(NamedTuple):
    """What Spark tells a task about the stream it runs for."""

    query: str
    batch: int
    run: str

    @classmethod
    def of_task(cls) -> MicroBatch | None:
        context = TaskContext.get()
        names = (QUERY_ID, BATCH_ID, RUN_ID)
        query, batch, run = (context.getLocalProperty(each) if context else None for each in names)
        return None if query is None or batch is None else cls(query, int(batch), run or "")

    @classmethod
    def given(cls, given: Given) -> MicroBatch | None:
        """Return the driver's mark on the thread that saves."""
        text = given.get(MICRO_BATCH)
        return None if text is None else cls(*json.loads(text))


class Transaction(NamedTuple):
    """``txnAppId`` and ``txnVersion``: a write is left out if this version or a later one was written."""

    app: str
    version: int

    @property
    def query(self) -> str:
        """The name as a commit's id."""
        plain = re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.app)
        return f"txn-{self.app if plain else hashlib.sha256(self.app.encode()).hexdigest()}"


class StratalogWriter(DataSourceArrowWriter):
    """A batch write. It is staged under an id made with the writer, which Spark pickles to the tasks and to
    the commit, and committed under the id by which it is known when it comes again."""

    def __init__(self, sink: Sink, txn: Transaction | None = None, within: MicroBatch | None = None) -> None:
        self.sink = sink
        self.txn = txn
        self.within = within
        self.job = f"{staging.JOB}{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = self.sink.stage(iterator, self.job, 0)
        staged.within = MicroBatch.of_task()
        return staged

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = _files(messages)
        within = self._micro_batch(messages)
        if self.txn is not None:
            self.sink.commit(_aimed(self.txn.query, self.sink), self.txn.version, files, job=False)
        elif within is None:
            self.sink.commit(self.job, 0, files, job=True)
        else:
            query = _aimed(within.query, self.sink)
            with counted_write(self._series(within), within.batch) as before:
                if before is None:
                    self.sink.commit(self.job, 0, files, job=True)
                elif before == FAILED:
                    self._discard()
                    raise ConfigError(
                        f"a write to {self.sink.topic or 'this log'} failed before in micro-batch"
                        f" {within.batch}, so the two cannot be distinguished when the micro-batch is"
                        " run again; let the function of foreachBatch raise the error, or give each write"
                        " txnAppId and txnVersion"
                    )
                else:
                    number = f"{TARGET}{before}"
                    self.sink.commit(query + number, within.batch, files, job=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if never_committed(messages):
            self._discard()
            within = self._micro_batch(messages)
            if within is not None and self.txn is None:
                count_failed_write(self._series(within), within.batch)

    def _micro_batch(self, messages: Sequence[WriterCommitMessage | None]) -> MicroBatch | None:
        told = (each.within for each in messages if isinstance(each, Staged))
        within = next(told, None) or self.within
        return within if within is not None and within.run else None

    def _series(self, within: MicroBatch) -> str:
        return " ".join((within.run, _aimed(within.query, self.sink), *self.sink.paths))

    def _discard(self) -> None:
        discard(self.sink.paths, Place(self.job, 0, self.sink.owner))


class StratalogStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: Spark tells the tasks their query and batch, the commit only the batch."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        within = MicroBatch.of_task()
        if within is None:
            raise ConfigError(
                f"Spark did not set {QUERY_ID} and {BATCH_ID} in a task: a batch that is run again cannot be"
                " told from a new one; write with writeStream.format('stratalog')"
            )
        return self.sink.stage(iterator, _aimed(within.query, self.sink), within.batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = [each for each in messages if isinstance(each, Staged)]
        ids = {(each.query, each.batch) for each in staged}
        if len(ids) > 1 or any(batch != batchId for _, batch in ids):
            raise InvalidArgumentError(f"the tasks of batch {batchId} have other ids: {sorted(ids)}")
        for query, batch in ids:
            self.sink.commit(query, batch, _files(messages), job=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for query in {each.query for each in messages if isinstance(each, Staged)}:
            if never_committed(messages):
                discard(self.sink.paths, Place(query, batchId, self.sink.owner))


def _aimed(query: str, sink: Sink) -> str:
    """Return the id of a query's commits to one target: a copy of its checkpoint may write elsewhere."""
    return f"{query}{TARGET}{sink.target}"


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    """Return the files in the order of the tasks, and within a task as they were staged."""
    return [file for each in messages if isinstance(each, Staged) for file in each.files]


def never_committed(messages: Sequence[WriterCommitMessage | None]) -> bool:
    """Return True if a task failed: then Spark did not call commit, and staged files can be removed.

    After a commit that failed only the store knows whether it was decided and needs the files.
    """
    return any(each is None for each in messages)


def discard(paths: Sequence[str], place: Place) -> None:
    """Remove what was staged for a commit that will not happen; what stays is swept later."""
    fs = RealFileSystem()
    for path in paths:
        with suppress(FileNotFoundError, StorageError):
            fs.remove_tree(f"{root_of(path)}/{place.name}")
        with suppress(FileNotFoundError, StorageError):
            fs.remove_dir(root_of(path))


# -- making them -----------------------------------------------------------------------------------------


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StratalogWriter:
    """Return the writer of a batch; raise on everything that can be wrong before a task runs."""
    given = Given(options)
    return StratalogWriter(_sink(options, schema, overwrite), _transaction(given), MicroBatch.given(given))


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StratalogStreamWriter:
    """Return the writer of a stream."""
    sink = _sink(options, schema, overwrite)
    if _transaction(Given(options)) is not None:
        raise bad_option("txnAppId", "a stream has the ids of its query and batches", "a batch write")
    return StratalogStreamWriter(sink)


def _transaction(given: Given) -> Transaction | None:
    app, version = given.get("txnAppId"), given.get("txnVersion")
    if app is None and version is None:
        return None
    if not app or not app.strip():
        raise bad_option("txnAppId", "it is not given with txnVersion", "a name for the writing program")
    if version is None or not re.fullmatch(r"\s*[0-9]{1,18}\s*", version):
        raise bad_option("txnVersion", f"got {version!r}", "a whole number, larger for each write")
    return Transaction(app, int(version))


def _sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Sink:
    if overwrite:
        raise ConfigError(
            "mode 'overwrite' or 'complete': a log is append-only; use .mode(\"append\") for a batch"
            ' and .outputMode("append") or ("update") for a stream; delete the topic to start over'
        )
    where = parse_options(options).where
    given = Given(options)
    if where.archive or not where.paths:
        raise bad_option("archive", "an archive cannot be written", "the option 'path', a log directory")
    topic = given.get("topic")
    if topic is not None:
        try:
            validate_topic(topic)
        except InvalidArgumentError as error:
            raise bad_option("topic", str(error), "the name of a topic") from None
    columns = _columns(schema, topic)
    target = EVERY_TOPIC
    if topic is not None:
        found = Topics(where.paths)(topic).id
        target = hashlib.sha256(topic.encode()).hexdigest()[:22] if found is None else id_to_text(found)
    timeout_ms = given.parsed("commitTimeout", parse_duration_ms, "a duration such as 2m")
    timeout_s = DEFAULT_TIMEOUT_S if timeout_ms is None else max(timeout_ms, 1) / 1000
    return Sink(where.paths, topic, columns, driver_of(), timeout_s, target)


def _columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Return the columns to write; raise if one has another type."""
    fields = {field.name: field.dataType for field in schema.fields}
    if "value" not in fields:
        raise ConfigError(f"column 'value': not among {', '.join(fields)}; add one of type binary or string")
    if topic is None and "topic" not in fields:
        raise bad_option("topic", "neither it nor a column 'topic' is given", "one of them")
    wanted = [name for name in (*_COLUMNS, HEADERS.name) if name in fields]
    for name in wanted:
        kind = fields[name]
        if name == HEADERS.name:
            expected = HEADERS.dataType.simpleString()
            right = kind.simpleString() == expected
        else:
            right = isinstance(kind, _COLUMNS[name])
            expected = " or ".join(each().simpleString() for each in _COLUMNS[name])
        if not right:
            raise ConfigError(f"column {name!r}: it is {kind.simpleString()}, expected {expected}; cast it")
    return tuple(name for name in wanted if not (name == "topic" and topic is not None))


def task_number() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


# -- staging -----------------------------------------------------------------------------------------
#
# What a task does: rows are routed as the Java client would and staged as record batches. Topic: the option,
# else the column. Partition: the column where it is not null, else murmur2 of the key, else one partition for
# a while, as a producer's sticky partitioner has it. Topics are read from the log directories; the holder of
# the store is not asked. What a task leaves is removed by the next commit or open; see
# `store.journal.staging`.


RECORD_COLUMNS = ("key", "value", "timestamp", "headers")


class Topics:
    """The topics of a store, each read once in a task."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(paths)
        self._known: dict[str, TopicFacts] = {}

    def __call__(self, name: str) -> TopicFacts:
        facts = self._known.get(name)
        if facts is None:
            with open_store(self._paths, read_only=True) as store:
                try:
                    facts = self._known[name] = staging.facts_of(store, name)
                except UnknownTopicError as error:
                    raise UnknownTopicError(
                        f"{error}; the sink creates none: run 'stratalog topic create {name}' or call"
                        " store.create_topic"
                    ) from None
        return facts


def stage_rows(
    batches: Iterable[pa.RecordBatch],
    paths: Iterable[str],
    place: Place,
    *,
    topic: str | None,
    task: int,
) -> list[StagedFile]:
    """Stage all rows of a task; remove what was staged if one of them is wrong."""
    topics = Topics(paths)
    attempt = Attempt(
        RealFileSystem(), place, topics, number=task, now_ms=lambda: time.time_ns() // 1_000_000
    )
    routing = Routing(topics, topic, task)
    try:
        for batch in batches:
            for name, partition, rows in routing.split(batch):
                attempt.add(name, partition, rows)
        return attempt.finish()
    except BaseException:
        attempt.discard()
        raise


class Routing:
    """Decides which topic and partition rows go to."""

    def __init__(self, topics: Topics, topic: str | None, task: int) -> None:
        self._topics = topics
        self._topic = topic
        self._sticky = task
        self._sticky_left = STICKY_BYTES

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Yield (topic, partition, rows) with the columns of records only, in the order of the rows."""
        if not batch.num_rows:
            return
        if self._topic is not None:
            yield from self._split_topic(self._topic, batch)
            return
        names = batch.column("topic")
        if names.null_count:
            raise InvalidRecordError(
                "a row without a topic: the column 'topic' is null; fill it, or pass the option 'topic'"
            )
        for name in pc.unique(names).to_pylist():
            yield from self._split_topic(name, batch.filter(pc.equal(names, name)))

    def _split_topic(self, name: str, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        count = self._topics(name).partitions
        columns = [each for each in RECORD_COLUMNS if each in batch.schema.names]
        rows = batch.select(columns)
        if count == 1 and "partition" not in batch.schema.names:
            yield name, 0, rows
            return
        numbers = self._partitions(batch, count)
        if len(set(numbers)) == 1:
            yield name, numbers[0], rows
            return
        chosen = pa.array(numbers, pa.int32())
        order = pc.sort_indices(chosen)  # stable: rows of one partition stay in order
        rows, start = rows.take(order), 0
        for entry in sorted(pc.value_counts(chosen).to_pylist(), key=lambda each: each["values"]):
            yield name, entry["values"], rows.slice(start, entry["counts"])
            start += entry["counts"]

    def _partitions(self, batch: pa.RecordBatch, count: int) -> list[int]:
        given, keys = _values(batch, "partition"), _values(batch, "key")
        size = batch.nbytes // batch.num_rows
        found = []
        for number, key in zip(given, keys, strict=True):
            if number is None and key is None:
                number = self._keyless(count, size)
            elif number is None:
                number = kernel.partition_for_key(key.encode() if isinstance(key, str) else key, count)
            found.append(number)
        return found

    def _keyless(self, count: int, size: int) -> int:
        if self._sticky_left <= 0:
            self._sticky += 1
            self._sticky_left = STICKY_BYTES
        self._sticky_left -= size + 70
        return self._sticky % count


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    return batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows


def driver_of() -> str:
    """Return the owner of what this process's job stages: the JVM above it; when it ends, no commit
    follows."""
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                head, _, rest = file.read().rpartition(b")")
        except OSError:
            break
        if head.partition(b"(")[2] == b"java":
            return staging.owner_of(pid)
        pid = int(rest.split()[1])
    return staging.owner_of(os.getpid())
