"""Which rows a topic takes, decided row by row before anything is staged.

The store refuses a commit as a whole; a pipeline must instead give way to the rows that are right and
send the others to the dead letters. The rules are those of the topic's settings: size, key, timestamp,
partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import InvalidRecordError, RecordTooLargeError, UnknownTopicError
from stratalog.format import batch as batches
from stratalog.spark.pipelines import dead_letters
from stratalog.spark.pipelines.commits import COLUMNS, PARTITION, Tally, with_topic
from stratalog.store.store import open_store

SLACK_MS = 10 * 60_000
"""A commit may come this long after its rows were looked at: those nearly too old are too old."""
RECORD_ROOM = 61 + 40
"""What a batch of one record takes beside its key, value and headers, at most."""
HEADER_ROOM = 10
REASON, WHERE, RAW, START = "reason", "where", "raw", "start"
INPUT = ("key", "value", "timestamp", "headers", PARTITION, REASON, WHERE, RAW, START)
"""Columns of the frames: those of a record; why it is none; where it is; what it is; where in its file."""
RECORDS, BYTES = "records", "bytes"
WHY = "why: "
"""Before a reason, under which tasks count how often they had it."""
_RECORD = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True)
class Rules:
    """What a topic takes."""

    topic: str
    topic_id: str
    partitions: int
    max_batch_bytes: int
    needs_key: bool
    before_ms: int | None
    after_ms: int | None


def rules_of(paths: tuple[str, ...], topic: str) -> Rules:
    """Read off the store; UnknownTopicError, with the way out, when there is no such topic."""
    with open_store(list(paths), read_only=True) as store:
        if topic not in store.topics():
            listed = ", ".join(store.topics()[:20]) or "none"
            raise UnknownTopicError(
                f"no topic {topic!r} in {', '.join(paths)}; there are {listed}. Say how many"
                f" partitions it is to have, or make it with 'stratalog topic create {topic}'"
            )
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


@dataclass(frozen=True)
class Admit:
    """In the tasks: rows that are right go to the topic, the others to its dead letters. Picklable."""

    rules: Rules
    letters: str
    letters_max_bytes: int
    source: str
    partition: bool = False
    explain: Callable[[str, bytes | None], str] | None = None
    """Says more about a reason, given what could not be taken."""

    def __call__(self, batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            if not rows.num_rows:
                continue
            if START in rows.schema.names and tally.order == ("", 0):
                tally.order = (rows.column(WHERE)[0].as_py() or "", rows.column(START)[0].as_py() or 0)
            yield from self.sorted_out(rows, tally)

    def sorted_out(self, rows: pa.RecordBatch, tally: Tally) -> Iterator[pa.RecordBatch]:
        """Rows with the columns `INPUT`, as those that are to be staged."""
        reasons = self._reasons(rows)
        taken = rows
        if reasons.null_count < len(reasons):
            taken = rows.filter(pc.is_null(reasons))
            for each in pc.value_counts(reasons.drop_null()).to_pylist():
                tally.counts[WHY + each["values"]] += each["counts"]
            yield self._letters(rows.set_column(rows.schema.get_field_index(REASON), REASON, reasons), tally)
        if not taken.num_rows:
            return
        tally.counts[RECORDS] += taken.num_rows
        for name in ("key", "value"):
            tally.counts[BYTES] += pc.sum(pc.binary_length(taken.column(name))).as_py() or 0
        names = [name for name in COLUMNS if name != "topic"]
        if self.partition:
            names.append(PARTITION)
        yield with_topic(taken.select(names), self.rules.topic)

    def _letters(self, rows: pa.RecordBatch, tally: Tally) -> pa.RecordBatch:
        dead = rows.filter(pc.is_valid(rows.column(REASON)))
        tally.counts[dead_letters.COUNT] += dead.num_rows
        value = pc.coalesce(dead.column(RAW), dead.column("value"))
        reasons = dead.column(REASON)
        if self.explain is not None:
            pairs = zip(reasons.to_pylist(), value.to_pylist(), strict=True)
            reasons = pa.array([self.explain(*pair) for pair in pairs], pa.string())
        told = pa.RecordBatch.from_pydict(
            {
                "key": dead.column("key"),
                "value": value,
                "reason": reasons,
                "where": dead.column(WHERE),
            }
        )
        made = dead_letters.letters(told, source=self.source, max_bytes=self.letters_max_bytes)
        if self.partition:
            made = made.append_column(PARTITION, pa.nulls(made.num_rows, pa.int32()))
        return with_topic(made, self.letters)

    def _reasons(self, rows: pa.RecordBatch) -> pa.Array:
        """Why each row is not taken; null where it is. The first reason counts."""
        rules, reasons = self.rules, rows.column(REASON)
        if rules.needs_key:
            reasons = _also(
                reasons,
                pc.is_null(rows.column("key")),
                f"{rules.topic} is compacted: every record needs a key",
            )
        stamps = pc.cast(rows.column("timestamp"), pa.int64())  # microseconds
        reasons = _also(reasons, pc.less(stamps, 0), "its timestamp is before 1970")
        if rules.after_ms is not None and rules.before_ms is not None:
            now_ms = time.time_ns() // 1_000_000
            reasons = _also(
                reasons,
                pc.greater(stamps, min((now_ms + rules.after_ms) * 1000, 2**63 - 1)),
                f"its timestamp is later than message.timestamp.after.max.ms={rules.after_ms} allows",
            )
            reasons = _also(
                reasons,
                pc.less(stamps, max((now_ms - rules.before_ms + SLACK_MS) * 1000, 0)),
                f"its timestamp is older than message.timestamp.before.max.ms={rules.before_ms} allows",
            )
        if self.partition:
            number = rows.column(PARTITION)
            wrong = pc.or_(pc.less(number, 0), pc.greater_equal(number, rules.partitions))
            reasons = _also(
                reasons,
                wrong,
                f"its partition is none of 0 to {rules.partitions - 1}, those of {rules.topic}",
            )
        return self._unfit(rows, reasons)

    def _unfit(self, rows: pa.RecordBatch, reasons: pa.Array) -> pa.Array:
        """Rows that could be too large, or have a header without a name, are encoded to see: there are
        few."""
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
                row, base_offset=0, leader_epoch=-1, now_ms=0, max_bytes=self.rules.max_batch_bytes
            )
        except RecordTooLargeError:
            return (
                f"the record is too large: a batch of {self.rules.topic} has at most"
                f" {self.rules.max_batch_bytes} bytes (max.message.bytes, segment.bytes)"
            )
        except InvalidRecordError as error:
            return str(error).removeprefix("record 0: ")
        return None


def _also(reasons: pa.Array, wrong: pa.Array, reason: str) -> pa.Array:
    """The reasons, with one more where there was none yet; a null is not wrong."""
    wrong = pc.fill_null(wrong, False)
    if not pc.any(wrong).as_py():
        return reasons
    return pc.if_else(pc.and_(wrong, pc.is_null(reasons)), pa.scalar(reason, pa.string()), reasons)


def _length(column: pa.Array) -> pa.Array:
    return pc.cast(pc.fill_null(pc.binary_length(column), 0), pa.int64())


def _header_bytes(column: pa.Array, nameless: int) -> pa.Array:
    """What the headers of each row take at most; ``nameless`` for one without a name."""
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
