"""``stats``: what topics hold, how fast it comes, and how it is spread.

Sizes, counts, codecs and rates come from sidecars and batch headers. Keys need the records. Everything is
counted up to the ends that the partitions have when it begins. Changes nothing.
"""

from __future__ import annotations

import base64
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from stratalog import kernel
from stratalog.config.units import format_bytes, format_time
from stratalog.errors import InvalidArgumentError
from stratalog.log.read.reader import Isolation
from stratalog.model import SegmentState
from stratalog.spark.logs import Logs, opened
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Where
from stratalog.spark.pipelines import PipelineResult, Progress
from stratalog.spark.pipelines.executors import (
    Engine,
    Path,
    over_ranges,
    pinned,
    ranges_of,
    read,
    settled,
    slots,
    watched,
    where_of,
)
from stratalog.spark.planning import LogRange, pair_of
from stratalog.spark.views import batch_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- batch headers -----------------------------------------------------------------------------------
#
# Executors go over the headers of their range and return the sums. A batch belongs to the range it begins in;
# the rest of one that the log begins in the middle of is not counted.


MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
MOST_WINDOWS = 10_000
"""The most windows of time that a range reports, so that what leaves the executors stays small."""
_HEADERS = ("sizeBytes", "records", "codec", "baseTimestamp", "maxTimestamp", "isControl")


@dataclass(slots=True)
class HeaderCounts:
    """The sums of batch headers without control batches, of a range, a partition or a topic."""

    batches: int = 0
    records: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    """Bytes of the batches by codec."""
    oldest_ms: int | None = None
    newest_ms: int | None = None
    windows: Counter[int] = field(default_factory=Counter)
    """Records by window of time."""

    def add(self, other: HeaderCounts) -> None:
        self.batches += other.batches
        self.records += other.records
        self.codecs += other.codecs
        self.windows += other.windows
        self.see(other.oldest_ms, other.newest_ms)

    def see(self, oldest_ms: int | None, newest_ms: int | None) -> None:
        """Extend the span of time."""
        self.oldest_ms = min(_known(self.oldest_ms, oldest_ms), default=None)
        self.newest_ms = max(_known(self.newest_ms, newest_ms), default=None)

    def facts(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "records": self.records,
            "codecs": dict(sorted(self.codecs.items())),
            "oldest": None if self.oldest_ms is None else format_time(self.oldest_ms),
            "newest": None if self.newest_ms is None else format_time(self.newest_ms),
            "records_per_second": self.rate(self.records),
        }

    def rate(self, number: int) -> float | None:
        """Return so many by the second of this span of time; None if there is none."""
        if self.oldest_ms is None or self.newest_ms is None or self.newest_ms <= self.oldest_ms:
            return None
        return round(number * 1000 / (self.newest_ms - self.oldest_ms), 3)

    def peak(self, window_ms: int) -> dict[str, Any]:
        """Return when the busiest window begins, and its records by the second."""
        if not self.windows:
            return {"peak_records_per_second": None, "peak_at": None}
        window, records = max(self.windows.items(), key=lambda item: (item[1], -item[0]))
        return {
            "peak_records_per_second": round(records * 1000 / window_ms, 3),
            "peak_at": format_time(window * window_ms),
        }


def _known(*numbers: int | None) -> list[int]:
    return [each for each in numbers if each is not None]


def window_for(span_ms: int) -> int:
    """Return minutes for a log of a week, hours for a year, days for more."""
    for window_ms in (MINUTE_MS, HOUR_MS):
        if span_ms <= window_ms * MOST_WINDOWS:
            return window_ms
    return DAY_MS


@dataclass(frozen=True)
class CountHeaders:
    """Counts the headers of one range, on an executor."""

    window_ms: int

    def __call__(self, logs: Logs, number: int, part: LogRange) -> Iterator[tuple[Pair, HeaderCounts]]:
        made = HeaderCounts()
        for batch in batch_rows(logs, part, _HEADERS):
            batch = batch.filter(pc.invert(batch.column("isControl")))
            if not len(batch):
                continue
            first, last = (
                pc.divide(batch.column(name).cast(pa.int64()), 1000)
                for name in ("baseTimestamp", "maxTimestamp")
            )
            made.batches += len(batch)
            made.records += pc.sum(batch.column("records")).as_py()
            sizes = pa.table(
                {"codec": batch.column("codec"), "size": batch.column("sizeBytes").cast(pa.int64())}
            )
            for row in sizes.group_by("codec").aggregate([("size", "sum")]).to_pylist():
                made.codecs[row["codec"]] += row["size_sum"]
            made.see(pc.min(first).as_py(), pc.max(last).as_py())
            add_to_windows(made.windows, first, last, batch.column("records"), self.window_ms)
        yield pair_of(part), made


def add_to_windows(
    windows: Counter[int], first: pa.Array, last: pa.Array, records: pa.Array, window_ms: int
) -> None:
    """Spread the records of each batch evenly from its first timestamp to its largest."""
    ends = pc.divide(last, window_ms)
    begins = pc.min_element_wise(pc.divide(pc.coalesce(first, last), window_ms), ends)
    table = pa.table({"begin": begins, "end": ends, "records": records.cast(pa.int64())}).drop_null()
    for row in table.group_by(["begin", "end"]).aggregate([("records", "sum")]).to_pylist():
        begin, end = max(row["begin"], row["end"] - MOST_WINDOWS), row["end"]
        share, rest = divmod(row["records_sum"], end - begin + 1)
        if share:
            for window in range(begin, end + 1):
                windows[window] += share
        for window in range(begin, begin + rest):
            windows[window] += 1


# -- keys --------------------------------------------------------------------------------------------
#
# A census of keys: how many there are, how often each comes, and what compaction would leave of them.
#
# Executors hash the keys of a range with the kernel and send one row for each different key; rows of the same
# key meet on one executor, which returns a handful of sums. Keys themselves never travel. They are told apart
# by 64 bits of hash: a billion keys have about one chance in forty of two taken for one.
#
# Sums of a partition. Bytes are those of keys and values, before compression.
#
#     keys            different keys
#     keyed_records   records with a key
#     payload_bytes   their bytes
#     tombstones      those without a value
#     latest_bytes    bytes of the latest record of each key: what a compaction keeps at first
#     deleted_keys    keys whose latest record is a tombstone: they go after ``delete.retention.ms``
#     null_keys       records without a key, which a compacted topic does not take
#     null_key_bytes  their bytes


SUMS = (
    "keys",
    "keyed_records",
    "payload_bytes",
    "tombstones",
    "latest_bytes",
    "deleted_keys",
    "null_keys",
    "null_key_bytes",
)
BUCKET_ROWS = 2_000_000
"""About how many keys one executor's worker holds at a time."""
SAMPLE_STEPS = 1024
_LATEST_BITS = 33
_FOUND = pa.schema(
    [
        ("slot", pa.int32()),
        ("hash", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("nulls", pa.int64()),
        ("offset", pa.int64()),
        # The number of the range, the bytes of the key's last record in it, and whether that is a tombstone,
        # in one number: the largest of several ranges is that of the last one.
        ("latest", pa.int64()),
    ]
)

Sums = tuple[Literal["partition", "topic", "hot"], int, dict[str, int]]
"""What leaves the executors: sums of the partition or topic of that number, or a frequent key of that
partition, with ``records`` and the ``offset`` of its latest record."""


@dataclass(slots=True)
class Census:
    """The sums by partition; of a topic its ``keys`` (a key in two partitions is one) and ``spread_keys`` (in
    more than one partition: the order of their records is lost); and the most frequent keys."""

    partitions: dict[Pair, Counter[str]]
    topics: dict[str, Counter[str]]
    hot: list[tuple[Pair, dict[str, int]]]


def census(
    spark: SparkSession | None,
    where: Where,
    ranges: Sequence[LogRange],
    *,
    records: int,
    sample: float = 1.0,
    top: int = 10,
    isolation: Isolation = "read_uncommitted",
) -> Census:
    """Count the keys in these ranges, which hold about so many ``records``.

    ``sample`` takes that share of the keys (all records of a key or none) and scales the counts up.
    """
    pairs = sorted({pair_of(each) for each in ranges})
    numbers = {pair: number for number, pair in enumerate(pairs)}
    topics = sorted({topic for topic, _ in pairs})
    counted = Census({pair: Counter() for pair in pairs}, {topic: Counter() for topic in topics}, [])
    if not ranges:
        return counted
    steps = min(max(round(sample * SAMPLE_STEPS), 1), SAMPLE_STEPS)
    enough = max(slots(spark), -(-records * steps // (SAMPLE_STEPS * BUCKET_ROWS)))
    buckets = 1 << min((enough - 1).bit_length(), 16)
    find = FindKeys(tuple(numbers[pair_of(each)] for each in ranges), steps, buckets, isolation)
    count = CountKeys(tuple(topics.index(topic) for topic, _ in pairs), top)
    found = over_ranges(spark, where, ranges, find).partitionBy(buckets, int)
    scale = SAMPLE_STEPS / steps
    for kind, number, sums in found.mapPartitions(count).collect():
        if kind == "hot":
            counted.hot.append((pairs[number], sums))
            continue
        into = counted.topics[topics[number]] if kind == "topic" else counted.partitions[pairs[number]]
        for name, each in sums.items():
            into[name] += each if name.startswith("null_key") else round(each * scale)
    counted.hot.sort(key=lambda each: (-each[1]["records"], each[0], each[1]["offset"]))
    del counted.hot[top:]
    return counted


@dataclass(frozen=True)
class FindKeys:
    """The first step: the different keys of a range, by the buckets in which they meet those of others."""

    slots: tuple[int, ...]
    """Of each range, the number of its partition."""
    steps: int
    buckets: int
    isolation: Isolation

    def __call__(self, logs: Logs, number: int, part: LogRange) -> Iterator[tuple[int, bytes]]:
        pieces: list[pa.RecordBatch] = []
        unkeyed = unkeyed_bytes = 0
        for batch in read(logs, part, ("key", "value", "offset"), self.isolation):
            if batch.column("key").null_count:
                without = batch.filter(batch.column("key").is_null())
                unkeyed += len(without)
                unkeyed_bytes += pc.sum(pc.binary_length(without.column("value"))).as_py() or 0
                batch = batch.filter(batch.column("key").is_valid())
            if len(batch):
                pieces.append(self._narrow(batch))
        slot = self.slots[number]
        if unkeyed:
            row = {"slot": slot, "records": unkeyed, "bytes": unkeyed_bytes}
            yield 0, _packed(pa.Table.from_pylist([row], _FOUND))
        if not pieces:
            return
        # In one thread the groups see their rows in order, so that the last one is the latest.
        found = (
            pa.Table.from_batches(pieces)
            .group_by("hash", use_threads=False)
            .aggregate(
                [
                    ("bytes", "count"),
                    ("bytes", "sum"),
                    ("null", "sum"),
                    ("offset", "last"),
                    ("latest", "last"),
                ]
            )
        )
        place = pa.scalar(number << _LATEST_BITS, pa.int64())
        columns = {
            "slot": pa.repeat(pa.scalar(slot, pa.int32()), len(found)),
            "hash": found["hash"],
            "records": found["bytes_count"],
            "bytes": found["bytes_sum"],
            "nulls": found["null_sum"],
            "offset": found["offset_last"],
            "latest": pc.add(found["latest_last"], place),
        }
        keys = pa.table(columns, schema=_FOUND)
        # Not the bits that a sample is taken by.
        bucket = pc.bit_wise_and(pc.shift_right(keys["hash"], 16), self.buckets - 1)
        order = pc.sort_indices(bucket)
        keys, start = keys.take(order), 0
        for each in bucket.take(order).value_counts().to_pylist():
            yield each["values"], _packed(keys.slice(start, each["counts"]))
            start += each["counts"]

    def _narrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        key, value = batch.column("key"), batch.column("value")
        size = pc.add(pc.binary_length(key), pc.fill_null(pc.binary_length(value), 0)).cast(pa.int64())
        null = value.is_null().cast(pa.int64())
        made = pa.RecordBatch.from_arrays(
            [hashes(key), batch.column("offset"), size, null, pc.add(pc.shift_left(size, 1), null)],
            names=["hash", "offset", "bytes", "null", "latest"],
        )
        if self.steps < SAMPLE_STEPS:
            step = pc.bit_wise_and(made.column("hash"), SAMPLE_STEPS - 1)
            made = made.filter(pc.less(step, self.steps))
        return made


@dataclass(frozen=True)
class CountKeys:
    """The second step: sums over the keys that met here."""

    topics: tuple[int, ...]
    """Of each partition, the number of its topic."""
    top: int

    def __call__(self, packed: Iterable[tuple[int, bytes]]) -> Iterator[Sums]:
        tables = [pa.ipc.open_stream(data).read_all() for _, data in packed]
        found = pa.concat_tables(tables or [_FOUND.empty_table()])
        for row in found.filter(found["hash"].is_null()).to_pylist():
            yield "partition", row["slot"], {"null_keys": row["records"], "null_key_bytes": row["bytes"]}
        found = found.filter(found["hash"].is_valid())
        if not len(found):
            return
        names = ("records", "bytes", "nulls")
        keys = found.group_by(["slot", "hash"]).aggregate(
            [*((name, "sum") for name in names), ("offset", "max"), ("latest", "max")]
        )
        latest = pc.bit_wise_and(keys["latest_max"], (1 << _LATEST_BITS) - 1)
        keys = keys.append_column("latest_bytes", pc.shift_right(latest, 1))
        keys = keys.append_column("deleted", pc.bit_wise_and(latest, 1))
        keys = keys.append_column("topic", pa.array(self.topics, pa.int32()).take(keys["slot"]))
        summed = (*(f"{name}_sum" for name in names), "latest_bytes", "deleted")
        wanted = [("hash", "count"), *((name, "sum") for name in summed)]
        for row in keys.group_by("slot").aggregate(wanted).to_pylist():
            sums = (row["hash_count"], *(row[f"{name}_sum"] for name in summed))
            yield "partition", row["slot"], dict(zip(SUMS, sums, strict=False))
        places = keys.group_by(["topic", "hash"]).aggregate([("slot", "count")])
        places = places.append_column("spread", pc.greater(places["slot_count"], 1).cast(pa.int64()))
        for row in places.group_by("topic").aggregate([("hash", "count"), ("spread", "sum")]).to_pylist():
            yield "topic", row["topic"], {"keys": row["hash_count"], "spread_keys": row["spread_sum"]}
        hot = pc.select_k_unstable(keys, self.top, [("records_sum", "descending")])
        for row in keys.take(hot).to_pylist():
            yield "hot", row["slot"], {"records": row["records_sum"], "offset": row["offset_max"]}


def hashes(keys: pa.Array) -> pa.Array:
    """Return XXH64 of every key of a binary column without nulls, as the signed numbers Spark has."""
    rows = len(keys)
    _, ends, data = keys.buffers()
    made, kept = array("Q", bytes(8 * rows)), array("q", bytes(8 * rows))
    kernel.hash_keys(
        memoryview(data).cast("B") if data is not None else b"",
        memoryview(ends).cast("B").cast("i")[keys.offset : keys.offset + rows + 1],
        b"\xff" * (rows // 8 + 1),
        kept,
        rows,
        made,
        kept,
    )
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(made)])


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


# -- the pipeline ------------------------------------------------------------------------------------


_SKEWED = 2.0
_WORTH_COMPACTING = 0.5
_HOT_SHARE = 0.1
_STORED = ("segments", "bytes", "archived_bytes")


def stats(
    spark: Engine,
    *,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | None = None,
    keys: bool = True,
    key_sample: float = 1.0,
    top: int = 10,
    isolation: Isolation = "read_uncommitted",
    progress: Progress | None = None,
) -> PipelineResult:
    """Count sizes, rates, keys, duplicates and skew of these topics, or of all: see ``details["topics"]``.

    Without Spark (None) everything is read in this process.
    ``keys=False`` reads headers only. ``key_sample=0.1`` counts a tenth of the keys and scales up. ``top`` is
    how many of the most frequent keys are named. ``duplicate_ratio`` is the share of keyed records that a
    later one supersedes, ``compaction_saves_bytes`` about what the log would shrink by without them.
    """
    if not 0 < key_sample <= 1:
        raise InvalidArgumentError(f"key_sample: expected a share above 0 and up to 1, got {key_sample}")
    began_s = time.monotonic()
    where = where_of(path, archive)
    headers: dict[Pair, HeaderCounts] = {}
    counted: Census | None = None
    with opened(where) as logs:
        extents = pinned(logs, topics, isolation=isolation)
        ranges = ranges_of(spark, logs, extents)
        runner = settled(spark, ranges if keys else ())
        stored, window_ms = _segments(logs, [pair_of(each) for each in extents])
        with watched(runner, progress, "headers"):
            if ranges:
                for pair, each in over_ranges(runner, where, ranges, CountHeaders(window_ms)).collect():
                    headers.setdefault(pair, HeaderCounts()).add(each)
        if keys:
            records = sum(each.records for each in headers.values())
            with watched(runner, progress, "keys"):
                counted = census(
                    runner, where, ranges, records=records, sample=key_sample, top=top, isolation=isolation
                )
        hot = [_hot_key(logs, *each, headers) for each in (counted.hot if counted else ())]
    shown = [
        _topic(name, [each for each in extents if each.topic == name], stored, headers, window_ms, counted)
        for name in sorted({each.topic for each in extents})
    ]
    names: tuple[str, ...] = ("partitions", "segments", "batches", "records", "bytes", "archived_bytes")
    names += ("keys", "null_keys", "tombstones", "superseded", "compaction_saves_bytes") if keys else ()
    return PipelineResult(
        "stats",
        {"topics": len(shown), **{name: sum(each[name] for each in shown) for name in names}},
        {"topics": shown, "hot_keys": hot, "key_sample": key_sample if keys else 0.0},
        _notes(shown, hot),
        seconds=time.monotonic() - began_s,
    )


def _segments(logs: Logs, pairs: Iterable[Pair]) -> tuple[dict[Pair, Counter[str]], int]:
    """Count what lies on disk and in the archive, without segments that wait for their removal; return it
    with the window of time that fits."""
    stored, span = {}, HeaderCounts()
    for pair in pairs:
        sums = stored[pair] = Counter(dict.fromkeys(_STORED, 0))
        for info in logs.segment_infos(*pair):
            if info.state is SegmentState.DELETED:
                continue
            sums["segments"] += 1
            sums["archived_bytes" if info.state is SegmentState.ARCHIVED else "bytes"] += info.size_bytes
            span.see(info.min_timestamp, info.max_timestamp)
    if span.oldest_ms is None or span.newest_ms is None:
        return stored, MINUTE_MS
    return stored, window_for(max(span.newest_ms - span.oldest_ms, 0))


def _topic(
    name: str,
    extents: Sequence[LogRange],
    stored: Mapping[Pair, Counter[str]],
    headers: Mapping[Pair, HeaderCounts],
    window_ms: int,
    counted: Census | None,
) -> dict[str, Any]:
    total = HeaderCounts()
    rows: list[dict[str, Any]] = []
    for each in extents:
        pair = pair_of(each)
        counts = headers.get(pair, HeaderCounts())
        total.add(counts)
        rows.append(
            {
                "partition": each.partition,
                "start_offset": each.start,
                "end_offset": each.end,
                **stored[pair],
                **counts.facts(),
                **({} if counted is None else _keys(counted.partitions.get(pair, Counter()), counts)),
            }
        )

    def in_all(*columns: str) -> dict[str, int]:
        return {column: sum(row[column] for row in rows) for column in columns}

    made = {
        "topic": name,
        "partitions": len(rows),
        **in_all(*_STORED),
        **total.facts(),
        "bytes_per_second": total.rate(total.codecs.total()),
        **total.peak(window_ms),
        "skew": {column: _skew([row[column] for row in rows]) for column in ("records", "bytes")},
    }
    if counted is not None:
        made |= in_all("keyed_records", "null_keys", "tombstones", "superseded", "compaction_saves_bytes")
        made |= {column: counted.topics.get(name, Counter())[column] for column in ("keys", "spread_keys")}
        made |= in_all("deleted_keys")
        made["duplicate_ratio"] = _ratio(made["superseded"], made["keyed_records"])
        made["skew"]["keys"] = _skew([row["keys"] for row in rows])
    return made | {"by_partition": rows}


def _keys(sums: Counter[str], counts: HeaderCounts) -> dict[str, Any]:
    superseded = max(sums["keyed_records"] - sums["keys"], 0)
    payload = sums["payload_bytes"] + sums["null_key_bytes"]
    saved = max(sums["payload_bytes"] - sums["latest_bytes"], 0)
    return {
        **{name: sums[name] for name in SUMS},
        "superseded": superseded,
        "duplicate_ratio": _ratio(superseded, sums["keyed_records"]),
        "compaction_saves_bytes": counts.codecs.total() * saved // payload if payload else 0,
    }


def _hot_key(
    logs: Logs, pair: Pair, hot: Mapping[str, int], headers: Mapping[Pair, HeaderCounts]
) -> dict[str, Any]:
    part = LogRange(*pair, hot["offset"], hot["offset"] + 1)
    key = next((each for batch in read(logs, part, ("key",)) for each in batch.column(0).to_pylist()), None)
    made: dict[str, Any] = {"topic": pair[0], "partition": pair[1]}
    try:
        made["key"] = None if key is None else key.decode()
    except UnicodeDecodeError:
        made["key_base64"] = base64.b64encode(key or b"").decode()
    share = _ratio(hot["records"], headers[pair].records)
    return made | {"records": hot["records"], "share_of_partition": share}


def _notes(topics: Sequence[Mapping[str, Any]], hot: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    notes = []
    for each in topics:
        name = each["topic"]
        if (each.get("duplicate_ratio") or 0) >= _WORTH_COMPACTING:
            saved = format_bytes(each["compaction_saves_bytes"])
            notes.append(
                f"{name}: a later record supersedes {each['duplicate_ratio']:.0%} of those with a key;"
                f" compaction would save about {saved}"
            )
        if each.get("spread_keys"):
            notes.append(
                f"{name}: {each['spread_keys']:,} keys are in more than one partition: the order among their"
                " records is lost"
            )
        if each["skew"]["bytes"] >= _SKEWED and each["partitions"] > 1:
            largest = max(each["by_partition"], key=lambda row: int(row["bytes"]))
            notes.append(
                f"{name}: partition {largest['partition']} has {each['skew']['bytes']:.1f} times its share"
            )
    for each in hot:
        if each["records"] > 1 and each["share_of_partition"] >= _HOT_SHARE:
            shown = repr(each["key"]) if "key" in each else each["key_base64"]
            share = f"{each['share_of_partition']:.0%}"
            notes.append(f"{each['topic']}: key {shown} is {share} of partition {each['partition']}")
    return tuple(notes)


def _skew(sizes: Sequence[int]) -> float:
    """Return the largest over the mean: 1 when all are equal, their number when one has everything."""
    total = sum(sizes)
    return round(max(sizes) * len(sizes) / total, 3) if total else 1.0


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
