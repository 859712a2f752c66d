"""``spark.readStream.format("stratalog")``: offsets, micro-batches, and what they read.

Offsets are JSON shaped as the Kafka source's, ``{"orders": {"0": 23, "1": 40}}``, and the checkpoint keeps
them as they are. Spark asks for the start of a query again until its first batch is committed; ``latest``
or ``-10m`` would then mean something else than it did, and records would be lost. So the start is resolved
once and carried: the end of the first batch has it under ``@start``, a name no topic can have, and so has
every batch in which a partition appears. Where nothing is new yet, an empty first batch writes the start
down.

Crash policy: everything needed to read a batch again is in its start and its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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

from stratalog.spark import limits
from stratalog.spark.logs import Logs, forget, opened
from stratalog.spark.loss import GONE, Losses
from stratalog.spark.offsets import (
    Offsets,
    Pair,
    Position,
    bad_option,
    format_offsets,
    parse_offsets,
    resolve,
)
from stratalog.spark.options import SourceOptions, Subscription
from stratalog.spark.planning import LogRange, bundled, cut, spans_of
from stratalog.spark.reading import read_rows
from stratalog.spark.schema import SPARK_SCHEMA_WITH_HEADERS, check_schema

if TYPE_CHECKING:
    import pyarrow as pa

START = "@start"
LAG = "@lag"
LATEST = Position("startingOffsets", "latest")


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One process of the driver asks it for offsets while the query runs; executors only call ``read``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            raise bad_option(options.ending.option, "a stream has no end", "batch queries only")
        if options.view != "records":
            raise bad_option("view", f"{options.view!r} cannot be streamed", "batch queries only")
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
            starts = resolve(
                self.options.starting or LATEST,
                logs,
                logs.choose(self.options.subscription),
                isolation=self.options.isolation,
                now_ms=_now_ms(),
            )
        self._initial = format_offsets(starts)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Any limit but `ReadAllAvailable` means: as the options say."""
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
        carried: Offsets = {}
        with opened(self.options.where) as logs:
            self._latest = latest = self._ends(logs)
            ends = latest if self._target is None else self._up_to(self._target, latest)
            for pair in sorted(starts.keys() - latest.keys()):
                self._losses.lost_partition(pair, starts[pair])
            for pair in ends:
                if pair not in starts:
                    carried[pair] = logs.start_offset(*pair)  # a new partition is read from its beginning
                elif latest[pair] < starts[pair]:
                    first = logs.start_offset(*pair)
                    self._losses.lost(pair, latest[pair], starts[pair], first, latest[pair])
                    carried[pair] = first  # the topic was made anew
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
        end: dict[str, Any] = {**format_offsets(self._read)}
        if first_batch:
            end[START] = format_offsets(starts)
        elif carried:
            end[START] = format_offsets(carried)
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The logs' ends when the last batch was made, and how far behind them it was."""
        if self._latest is None:
            return None
        return {**format_offsets(self._latest), LAG: limits.lag(self._read, self._latest)}

    def _start_stays(self) -> bool:
        """Whether asking for the start again will tell the same."""
        starting = self.options.starting
        if starting is None or starting.kind in ("latest", "time", "times"):
            return False
        return starting.kind != "offsets" or -1 not in starting.offsets.values()

    def _ends(self, logs: Logs) -> Offsets:
        return {pair: logs.end_offset(*pair, self.options.isolation) for pair in self._pairs(logs)}

    def _pairs(self, logs: Logs) -> list[Pair]:
        """The partitions that are there. What was and is not any more is for `Losses` to judge."""
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
        waiting = sum(limits.new_offsets(starts, ends).values())
        waited_ms = _now_ms() - self._last_batch_ms
        if self._target is None and not limits.worth_a_batch(wanted, waiting, waited_ms):
            return {pair: starts[pair] for pair in ends}
        if wanted.max_offsets is not None:
            ends = limits.by_offsets(starts, ends, wanted.max_offsets)
        if wanted.max_bytes is not None:
            spans = {
                pair: list(spans_of(logs.view(*pair), LogRange(*pair, starts[pair], end)))
                for pair, end in ends.items()
                if starts[pair] < end
            }
            ends = limits.by_bytes(spans, ends, wanted.max_bytes)
        return ends

    # -- reading -------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        starts = parse_offsets(start) | parse_offsets(end.get(START, {}))
        extents = []
        with opened(self.options.where) as logs:
            for pair, stop in parse_offsets(end).items():
                begin = starts.get(pair, 0)
                if begin >= stop:
                    continue
                try:
                    first, visible = logs.start_offset(*pair), logs.end_offset(*pair, self.options.isolation)
                except GONE:
                    self._losses.lost_partition(pair, begin)
                    continue
                begin, stop = self._losses.within(pair, begin, stop, first, visible)
                extents.append(LogRange(*pair, begin, stop))
            at_least, at_most = self.options.min_partitions, self.options.max_records_per_partition
            ranges = cut(logs, extents, min_partitions=at_least, max_records=at_most)
            return bundled(ranges, min_partitions=at_least, max_records=at_most)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogRange):
            with opened(self.options.where) as logs:
                yield from read_rows(logs, partition, self.names, self.options.isolation, self._losses)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a batch."""

    def stop(self) -> None:
        forget()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
