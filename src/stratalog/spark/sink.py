"""``df.write.format("stratalog")`` and ``writeStream``: exactly once, by staging and one commit.

Tasks stage record batches beside the log directories (`staging`); the driver's commit hands the list of
staged files to the store, through its control socket when another process has it open, and the store
takes them in at once or at its next open, whatever crashes meanwhile (`stratalog.store.journal.journal`). A
micro-batch that Spark runs again carries the same query and batch id and is a no-op; a batch write has an
id of its own. Files of failed and speculative tasks are not in the list and go with the next commit or open.

Columns are those of Spark's Kafka sink: ``value`` and optionally ``key``, ``topic``, ``partition``,
``headers``, and ``timestamp``; others are ignored, as there. Objects here travel between processes and hold
nothing open.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

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
from stratalog.format.journal import StagedFile
from stratalog.fs import RealFileSystem
from stratalog.log.names import validate_topic
from stratalog.spark.offsets import bad_option
from stratalog.spark.options import parse_options
from stratalog.spark.schema import HEADERS
from stratalog.spark.staging import Topics, driver_of, stage_rows
from stratalog.store.admin.admin import connect
from stratalog.store.journal.staging import Place, root_of

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
DEFAULT_TIMEOUT_S = 120.0
RETRY_S = 0.1
UNREACHED = "holds the store"
"""Said by errors about the holder itself; others are what it answered."""

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

    def stage(self, batches: Iterator[pa.RecordBatch], query: str, batch: int) -> Staged:
        place = Place(query, batch, self.owner)
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        chosen = (each.select(list(self.columns)) for each in batches)
        return Staged(query, batch, stage_rows(chosen, self.paths, place, topic=self.topic, task=task))

    def commit(self, query: str, batch: int, files: Sequence[StagedFile], *, job: bool) -> None:
        """Hand the files over; asked again, for as long as the time-out says, while the holder changes.

        Asking twice is safe: the second time finds the commit done. What the store refuses before it
        decides is not kept: settings that changed since the tasks staged it, a topic that was deleted.
        """
        if not files:
            return
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                with connect(list(self.paths), timeout_s=self.timeout_s) as client:
                    client.commit_staged(query, batch, files, job=job)
                return
            except (InvalidRecordError, UnknownTopicError, UnknownPartitionError):
                discard(self.paths, Place(query, batch, self.owner))
                raise
            except (StoreLockedError, ControlError, ClosedError) as error:
                if isinstance(error, ControlError) and UNREACHED not in str(error):
                    raise  # it answered
                if time.monotonic() + RETRY_S >= deadline or "did not answer" in str(error):
                    raise ControlError(
                        f"batch {batch} of {query} was not committed within {self.timeout_s:g} s: {error}"
                    ) from error
            time.sleep(RETRY_S)


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged."""

    query: str
    batch: int
    files: list[StagedFile]


class StratalogWriter(DataSourceArrowWriter):
    """A batch write. The id is made with the writer, which Spark pickles to the tasks and to the commit."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.job = f"job-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return self.sink.stage(iterator, self.job, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.commit(self.job, 0, _files(messages), job=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if never_committed(messages):
            discard(self.sink.paths, Place(self.job, 0, self.sink.owner))


class StratalogStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: Spark tells the tasks their query and batch, the commit only the batch."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise ConfigError(
                f"Spark does not say which query a task belongs to ({QUERY_ID}, {BATCH_ID}); without it a"
                " batch that is run again could not be told from a new one"
            )
        return self.sink.stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = [each for each in messages if isinstance(each, Staged)]
        ids = {(each.query, each.batch) for each in staged}
        if len(ids) > 1 or any(batch != batchId for _, batch in ids):
            raise InvalidArgumentError(f"the tasks of batch {batchId} were told other ids: {sorted(ids)}")
        for query, batch in ids:
            self.sink.commit(query, batch, _files(messages), job=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for query in {each.query for each in messages if isinstance(each, Staged)}:
            if never_committed(messages):
                discard(self.sink.paths, Place(query, batchId, self.sink.owner))


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    """In the order of the tasks, and within a task as they were staged."""
    return [file for each in messages if isinstance(each, Staged) for file in each.files]


def never_committed(messages: Sequence[WriterCommitMessage | None]) -> bool:
    """Whether a task failed: then Spark did not ask for the commit, and what was staged may go.

    After a commit that failed nobody but the store knows whether it was decided and needs the files.
    """
    return any(each is None for each in messages)


def discard(paths: Sequence[str], place: Place) -> None:
    """Remove what was staged for a commit that will not be; what cannot be is swept later."""
    fs = RealFileSystem()
    for path in paths:
        with suppress(FileNotFoundError, StorageError):
            fs.remove_tree(f"{root_of(path)}/{place.name}")
        with suppress(FileNotFoundError, StorageError):
            fs.remove_dir(root_of(path))


# -- making them -----------------------------------------------------------------------------------------


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StratalogWriter:
    """The writer of a batch; everything that can be wrong before a task runs is an error here."""
    return StratalogWriter(_sink(options, schema, overwrite))


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> StratalogStreamWriter:
    """The writer of a stream."""
    return StratalogStreamWriter(_sink(options, schema, overwrite))


def _sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Sink:
    if overwrite:
        raise ConfigError(
            "mode 'overwrite' or 'complete': a log is only ever added to, takes .mode(\"append\") for a batch"
            ' and .outputMode("append") or ("update") for a stream; delete the topic to begin anew'
        )
    where = parse_options(options).where
    said = {name.lower(): str(value) for name, value in options.items()}
    if where.archive or not where.paths:
        raise bad_option("archive", "an archive cannot be written", "the option 'path', a log directory")
    topic = said.get("topic")
    if topic is not None:
        try:
            validate_topic(topic)
        except InvalidArgumentError as error:
            raise bad_option("topic", str(error), "the name of a topic") from None
    columns = _columns(schema, topic)
    if topic is not None:
        Topics(where.paths)(topic)
    return Sink(where.paths, topic, columns, driver_of(), _timeout_s(said.get("committimeout")))


def _timeout_s(text: str | None) -> float:
    if text is None:
        return DEFAULT_TIMEOUT_S
    try:
        return max(parse_duration_ms(text), 1) / 1000
    except InvalidArgumentError as error:
        raise bad_option("commitTimeout", str(error), "a duration such as 2m") from None


def _columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns to write, each of a type that can be."""
    fields = {field.name: field.dataType for field in schema.fields}
    if "value" not in fields:
        raise ConfigError(f"column 'value': there is none among {', '.join(fields)}, takes binary or string")
    if topic is None and "topic" not in fields:
        raise bad_option("topic", "neither it nor a column 'topic' says where rows go", "a topic")
    wanted = [name for name in (*_COLUMNS, HEADERS.name) if name in fields]
    for name in wanted:
        kind = fields[name]
        if name == HEADERS.name:
            right, takes = (
                kind.simpleString() == HEADERS.dataType.simpleString(),
                HEADERS.dataType.simpleString(),
            )
        else:
            right = isinstance(kind, _COLUMNS[name])
            takes = " or ".join(each().simpleString() for each in _COLUMNS[name])
        if not right:
            raise ConfigError(f"column {name!r}: it is {kind.simpleString()}, takes {takes}; cast it")
    return tuple(name for name in wanted if not (name == "topic" and topic is not None))
