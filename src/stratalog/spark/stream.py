"""``spark.readStream.format("stratalog")``: offsets, micro-batches, and what they read.

Offsets are JSON with the shape of the Kafka source's, ``{"orders": {"0": 23, "1": 40}}``, and the checkpoint
keeps them as they are. Spark asks for the start of a query again until its first batch is committed;
``latest`` or ``-10m`` would then mean another offset, and records would be lost. So the start is resolved
once and carried: the end of the first batch has it under ``@start``, a name no topic can have, and so has
every batch in which a partition appears. If nothing is new yet, an empty first batch writes the start down.

The ids of the topics are kept under ``@ids``: offsets of a deleted topic mean nothing in one that is created
again under its name. Checkpoints of earlier versions have none; their next batch adds them.

Crash policy: everything needed to read a batch again is in its start and its end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from stratalog.spark.logs import Logs, forget, opened
from stratalog.spark.offsets import (
    Offsets,
    Pair,
    Position,
    bad_option,
    format_offsets,
    parse_offsets,
    resolve,
)
from stratalog.spark.options import Limits, SourceOptions, Subscription
from stratalog.spark.planning import GONE, MADE_ANEW, LogRange, Losses, Span, spans_of, tasks_of
from stratalog.spark.reading import read_rows
from stratalog.spark.schema import SPARK_SCHEMA_WITH_HEADERS, check_schema

if TYPE_CHECKING:
    import pyarrow as pa

START = "@start"
LAG = "@lag"
IDS = "@ids"
LATEST = Position("startingOffsets", "latest")


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One process of the driver asks it for offsets while the query runs; executors only call ``read``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            raise bad_option(options.ending.option, "a stream has no end", "a batch query")
        if options.view != "records":
            raise bad_option("view", f"{options.view!r} cannot be streamed", "a batch query")
        self.options = options
        self.names = check_schema(schema, SPARK_SCHEMA_WITH_HEADERS)
        self._losses = Losses(options.fail_on_data_loss)
        self._initial: dict[str, Any] | None = None
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._read: Offsets = {}
        self._last_batch_ms = 0

    # -- offsets -------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with opened(self.options.where) as logs:
            pairs = logs.choose(self.options.subscription)
            starts = resolve(
                self.options.starting or LATEST,
                logs,
                pairs,
                isolation=self.options.isolation,
                now_ms=_now_ms(),
            )
            ids = topic_ids(logs, pairs)
        self._initial = _with_ids(format_offsets(starts), ids)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Any limit but `ReadAllAvailable` means the limits of the options."""
        wanted = self.options.limits
        if wanted.max_offsets is not None:
            return ReadMaxRows(wanted.max_offsets)
        if wanted.max_bytes is not None:
            return ReadMaxBytes(wanted.max_bytes)
        return ReadAllAvailable() if wanted.min_offsets is None else ReadMinRows(wanted.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with opened(self.options.where) as logs:
            self._target = self._ends(logs)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        starts = parse_offsets(start)
        known: dict[str, str] = start.get(IDS, {})
        carried: Offsets = {}
        with opened(self.options.where) as logs:
            self._latest = latest = self._ends(logs)
            ends = latest if self._target is None else self._up_to(self._target, latest)
            ids = topic_ids(logs, latest)
            anew = {topic for topic, each in ids.items() if known.get(topic, each) != each}
            for pair in sorted(starts):
                if pair[0] in anew:
                    self._losses.lost_partition(pair, starts.pop(pair), MADE_ANEW)
                elif pair not in latest:
                    self._losses.lost_partition(pair, starts[pair])
            for pair in ends:
                if pair not in starts:
                    carried[pair] = logs.start_offset(*pair)  # a new partition is read from its beginning
                elif latest[pair] < starts[pair]:
                    first = logs.start_offset(*pair)
                    self._losses.lost(pair, latest[pair], starts[pair], first, latest[pair])
                    carried[pair] = first  # made anew, and no id was kept
            starts |= carried
            if not isinstance(limit, ReadAllAvailable):
                ends = self._limited(logs, starts, ends)
        first_batch = self._initial is not None and start == self._initial
        self._read = {pair: max(offset, 0) for pair, offset in starts.items()} | ends
        if not carried and all(stop <= starts[pair] for pair, stop in ends.items()):
            self._read = starts
            if not first_batch or self._start_stays():
                return start
        self._last_batch_ms = _now_ms()
        end = _with_ids(format_offsets(self._read), known | ids)
        if first_batch:
            end[START] = format_offsets(starts)
        elif carried:
            end[START] = format_offsets(carried)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the logs' ends when the last batch was made, and how far behind them it was."""
        if self._latest is None:
            return None
        return {**format_offsets(self._latest), LAG: lag(self._read, self._latest)}

    def _start_stays(self) -> bool:
        """Return True if resolving the start again gives the same offsets."""
        starting = self.options.starting
        if starting is None or starting.kind in ("latest", "time", "times"):
            return False
        return starting.kind != "offsets" or -1 not in starting.offsets.values()

    def _ends(self, logs: Logs) -> Offsets:
        return {pair: logs.end_offset(*pair, self.options.isolation) for pair in self._pairs(logs)}

    def _pairs(self, logs: Logs) -> list[Pair]:
        """Return the partitions that exist. `Losses` judges those that existed before."""
        wanted = self.options.subscription
        try:
            return logs.choose(wanted)
        except GONE:
            named = [Subscription(topics=(topic,)) for topic in wanted.topics]
            named += [Subscription(pairs=(pair,)) for pair in wanted.pairs]
        found = []
        for each in named:
            with suppress(*GONE):
                found += logs.choose(each)
        return sorted(found)

    def _up_to(self, target: Offsets, latest: Offsets) -> Offsets:
        return {pair: min(end, target[pair]) for pair, end in latest.items() if pair in target}

    def _limited(self, logs: Logs, starts: Offsets, ends: Offsets) -> Offsets:
        wanted = self.options.limits
        waiting = sum(new_offsets(starts, ends).values())
        waited_ms = _now_ms() - self._last_batch_ms
        if self._target is None and not worth_a_batch(wanted, waiting, waited_ms):
            return {pair: starts[pair] for pair in ends}
        if wanted.max_offsets is not None:
            ends = by_offsets(starts, ends, wanted.max_offsets)
        if wanted.max_bytes is not None:
            spans = {
                pair: list(spans_of(logs.view(*pair), LogRange(*pair, starts[pair], end)))
                for pair, end in ends.items()
                if starts[pair] < end
            }
            ends = by_bytes(spans, ends, wanted.max_bytes)
        return ends

    # -- reading -------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts = parse_offsets(start) | parse_offsets(end.get(START, {}))
        ids: dict[str, str] = end.get(IDS, {})
        extents = []
        with opened(self.options.where) as logs:
            for pair, stop in parse_offsets(end).items():
                begin = starts.get(pair, 0)
                if begin >= stop:
                    continue
                try:
                    first, visible = logs.start_offset(*pair), logs.end_offset(*pair, self.options.isolation)
                    topic_id = logs.topic_id(pair[0])
                except GONE:
                    self._losses.lost_partition(pair, begin)
                    continue
                if ids.get(pair[0], topic_id) != topic_id:
                    self._losses.lost_partition(pair, begin, MADE_ANEW)
                    continue
                begin, stop = self._losses.within(pair, begin, stop, first, visible)
                extents.append(LogRange(*pair, begin, stop, topic_id=topic_id))
            return tasks_of(logs, self.options, extents)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogRange):
            with opened(self.options.where) as logs:
                yield from read_rows(logs, partition, self.names, self.options.isolation, self._losses)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a batch."""

    def stop(self) -> None:
        forget()


def topic_ids(logs: Logs, pairs: Iterable[Pair]) -> dict[str, str]:
    """Return the ids of the topics that have one and still exist, sorted."""
    found = {}
    for topic in sorted({topic for topic, _ in pairs}):
        with suppress(*GONE):
            found[topic] = logs.topic_id(topic)
    return {topic: each for topic, each in found.items() if each}


def _with_ids(offsets: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
    kept = {topic: ids[topic] for topic in sorted(ids) if topic in offsets}
    return {**offsets, IDS: kept} if kept else {**offsets}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- limits ------------------------------------------------------------------------------------------
#
# How much of what is new a micro-batch takes: pure functions of offsets and sizes, by the rules of Spark's
# Kafka source. A limit is shared out among the partitions by how much each has, and every partition that has
# anything moves by at least one offset.


def new_offsets(starts: Mapping[Pair, int], ends: Mapping[Pair, int]) -> dict[Pair, int]:
    """Return how many offsets of each partition were not read."""
    return {pair: max(end - starts.get(pair, end), 0) for pair, end in ends.items()}


def worth_a_batch(limits: Limits, waiting: int, waited_ms: int) -> bool:
    """Return True if ``minOffsetsPerTrigger`` is reached or the longest delay has passed."""
    return limits.min_offsets is None or waiting >= limits.min_offsets or waited_ms > limits.max_delay_ms


def by_offsets(starts: Mapping[Pair, int], ends: Mapping[Pair, int], most: int) -> Offsets:
    """Return ends that take at most about ``most`` offsets altogether."""
    sizes = new_offsets(starts, ends)
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    return {
        pair: min(end, starts[pair] + _share(most, sizes[pair], total)) if sizes[pair] else end
        for pair, end in ends.items()
    }


def by_bytes(spans: Mapping[Pair, Sequence[Span]], ends: Mapping[Pair, int], most: int) -> Offsets:
    """Return ends that take at most about ``most`` bytes of log altogether."""
    sizes = {pair: sum(span.size_bytes for span in found) for pair, found in spans.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    return {
        pair: min(end, _reach(spans[pair], _share(most, sizes[pair], total))) if spans.get(pair) else end
        for pair, end in ends.items()
    }


def _share(most: int, size: int, total: int) -> int:
    share = most * size / total
    return math.ceil(share) if share < 1 else math.floor(share)


def _reach(spans: Sequence[Span], size_bytes: int) -> int:
    """Return how far so many bytes reach; inside a span bytes are taken to be spread evenly."""
    at = spans[0].start
    for span in spans:
        if span.size_bytes > size_bytes:
            part = (span.end - span.start) * size_bytes // span.size_bytes
            return max(span.start + part, spans[0].start + 1)
        size_bytes -= span.size_bytes
        at = span.end
    return at


def lag(read: Mapping[Pair, int], latest: Mapping[Pair, int]) -> dict[str, int | float]:
    """Return how far a query is behind the logs' ends, under the names of Kafka's source."""
    behind = [max(end - read.get(pair, end), 0) for pair, end in latest.items()]
    return {
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / len(behind) if behind else 0.0,
    }
