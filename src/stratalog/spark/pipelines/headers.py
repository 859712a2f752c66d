"""Counting by batch headers: batches, records, bytes, codecs, and how many records came when.

Executors go over the headers of their range, as the view of batches does, and send on the sums. A batch
belongs to the range it begins in; the rest of one that the log begins in the middle of is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.spark.offsets import Pair
from stratalog.spark.options import Where
from stratalog.spark.pipelines.ranges import over_ranges
from stratalog.spark.planning import LogRange, pair_of
from stratalog.spark.views import batch_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.logs import Logs

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
MOST_WINDOWS = 10_000
"""A range tells of so many windows of time at most, so that what leaves the executors stays small."""
_COLUMNS = ("sizeBytes", "records", "codec", "baseTimestamp", "maxTimestamp", "isControl")


@dataclass(slots=True)
class HeaderCounts:
    """What the headers of a partition, or of a part of it, say; control batches are left out."""

    batches: int = 0
    records: int = 0
    codecs: dict[str, int] = field(default_factory=dict)
    """Bytes of the batches by codec."""
    oldest_ms: int | None = None
    newest_ms: int | None = None

    def add(self, other: HeaderCounts) -> None:
        """The same of both together."""
        self.batches += other.batches
        self.records += other.records
        for codec, size in other.codecs.items():
            self.codecs[codec] = self.codecs.get(codec, 0) + size
        self.oldest_ms = least(self.oldest_ms, other.oldest_ms)
        self.newest_ms = most(self.newest_ms, other.newest_ms)


@dataclass(slots=True)
class Headers:
    """The counts by partition, and the records of each topic by windows of time."""

    window_ms: int
    partitions: dict[Pair, HeaderCounts] = field(default_factory=dict)
    windows: dict[str, Counter[int]] = field(default_factory=dict)

    def peak(self, topic: str) -> tuple[int, float] | None:
        """When the busiest window of a topic begins, in ms, and its records a second."""
        found = self.windows.get(topic)
        if not found:
            return None
        window, records = max(found.items(), key=lambda item: (item[1], -item[0]))
        return window * self.window_ms, records * 1000 / self.window_ms


def window_for(span_ms: int) -> int:
    """Minutes for a log of a week, hours for a year, days for more."""
    for window_ms in (MINUTE_MS, HOUR_MS):
        if span_ms <= window_ms * MOST_WINDOWS:
            return window_ms
    return DAY_MS


def count_headers(
    spark: SparkSession, where: Where, ranges: Sequence[LogRange], window_ms: int = MINUTE_MS
) -> Headers:
    """The headers of these ranges counted."""
    made = Headers(window_ms)
    if not ranges:
        return made
    for pair, counts, windows in over_ranges(spark, where, ranges, CountHeaders(window_ms)).collect():
        made.partitions.setdefault(pair, HeaderCounts()).add(counts)
        made.windows.setdefault(pair[0], Counter()).update(windows)
    return made


@dataclass(frozen=True)
class CountHeaders:
    """The headers of one range counted, on an executor."""

    window_ms: int

    def __call__(
        self, logs: Logs, number: int, part: LogRange
    ) -> Iterator[tuple[Pair, HeaderCounts, Counter[int]]]:
        made, windows = HeaderCounts(), Counter[int]()
        for batch in batch_rows(logs, part, _COLUMNS):
            batch = batch.filter(pc.invert(batch.column("isControl")))
            if not len(batch):
                continue
            first, last = (
                pc.divide(batch.column(name).cast(pa.int64()), 1000)
                for name in ("baseTimestamp", "maxTimestamp")
            )
            sizes = pa.table(
                {"codec": batch.column("codec"), "size": batch.column("sizeBytes").cast(pa.int64())}
            )
            by_codec = sizes.group_by("codec").aggregate([("size", "sum")]).to_pylist()
            made.add(
                HeaderCounts(
                    len(batch),
                    pc.sum(batch.column("records")).as_py(),
                    {row["codec"]: row["size_sum"] for row in by_codec},
                    pc.min(first).as_py(),
                    pc.max(last).as_py(),
                )
            )
            self._spread(first, last, batch.column("records"), windows)
        yield pair_of(part), made, windows

    def _spread(self, first: pa.Array, last: pa.Array, records: pa.Array, windows: Counter[int]) -> None:
        """A batch is taken to have come evenly from its first timestamp to its largest."""
        ends = pc.divide(last, self.window_ms)
        begins = pc.min_element_wise(pc.divide(pc.coalesce(first, last), self.window_ms), ends)
        table = pa.table({"begin": begins, "end": ends, "records": records.cast(pa.int64())}).drop_null()
        sums = table.group_by(["begin", "end"]).aggregate([("records", "sum")])
        for row in sums.to_pylist():
            begin, end = max(row["begin"], row["end"] - MOST_WINDOWS), row["end"]
            share, rest = divmod(row["records_sum"], end - begin + 1)
            if share:
                for window in range(begin, end + 1):
                    windows[window] += share
            for window in range(begin, begin + rest):
                windows[window] += 1


def least(one: int | None, other: int | None) -> int | None:
    """The smaller of two that may be unknown."""
    return other if one is None else one if other is None else min(one, other)


def most(one: int | None, other: int | None) -> int | None:
    """The larger of two that may be unknown."""
    return other if one is None else one if other is None else max(one, other)
