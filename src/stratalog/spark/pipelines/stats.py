"""``stats``: what topics hold, how fast it comes, and how it is spread.

Sizes, counts, codecs and rates come from the views of segments and batches, which read headers only. Keys
need the records: see `stratalog.spark.pipelines.stats`. Everything is counted up to the ends the partitions
have when it begins. Changes nothing.
"""

from __future__ import annotations

import base64
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

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
from stratalog.spark.pipelines.executors import (
    over_ranges,
    parallelism,
    pinned,
    ranges_of,
    read,
    watched,
    where_of,
)
from stratalog.spark.pipelines.places import Path
from stratalog.spark.pipelines.result import PipelineResult, Progress
from stratalog.spark.planning import LogRange, pair_of
from stratalog.spark.views import batch_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.logs import Logs


# -- batch headers -----------------------------------------------------------------------------------
#
# Counting by batch headers: batches, records, bytes, codecs, and how many records came when.
#
# Executors go over the headers of their range, as the view of batches does, and send on the sums. A batch
# belongs to the range it begins in; the rest of one that the log begins in the middle of is not counted.


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


# -- keys --------------------------------------------------------------------------------------------
#
# A census of keys: how many there are, how often each comes, and what compaction would leave of them.
#
# Executors hash the keys of a range with the kernel and send on one row for each different key; rows of the
# same key meet on one executor, which sends on a handful of sums. Keys themselves never travel. They are told
# apart by 64 bits of hash: a billion keys have about one chance in forty of two taken for one.


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


class _Sums(NamedTuple):
    """Of a partition, of a topic, or of one hot key: what leaves the executors."""

    kind: int
    slot: int
    keys: int = 0
    records: int = 0
    bytes: int = 0
    nulls: int = 0
    latest_bytes: int = 0
    deleted: int = 0
    offset: int = -1


_PARTITION, _UNKEYED, _TOPIC, _HOT = range(4)


@dataclass(slots=True)
class KeyCounts:
    """The keys of one partition. Bytes are those of keys and values, before compression."""

    keys: int = 0
    records: int = 0
    """With a key."""
    payload_bytes: int = 0
    tombstones: int = 0
    latest_bytes: int = 0
    """Of the latest record of each key: what a compaction keeps at first."""
    deleted_keys: int = 0
    """Keys whose latest record is a tombstone: they go after ``delete.retention.ms``."""
    null_keys: int = 0
    """Records without a key, which a compacted topic does not take."""
    null_key_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HotKey:
    """One of the keys that come most often; its latest record is at ``offset``."""

    topic: str
    partition: int
    offset: int
    records: int


@dataclass(slots=True)
class Census:
    """The counts by partition, and what only shows over several of them."""

    partitions: dict[Pair, KeyCounts] = field(default_factory=dict)
    topic_keys: dict[str, int] = field(default_factory=dict)
    """Different keys of a topic: a key in two partitions is one."""
    spread_keys: dict[str, int] = field(default_factory=dict)
    """Keys found in more than one partition: the order of their records is lost."""
    hot: list[HotKey] = field(default_factory=list)


def census(
    spark: SparkSession,
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
    pairs = sorted({(each.topic, each.partition) for each in ranges})
    counted = Census(
        partitions={pair: KeyCounts() for pair in pairs},
        topic_keys={topic: 0 for topic, _ in pairs},
        spread_keys={topic: 0 for topic, _ in pairs},
    )
    if not ranges:
        return counted
    steps = min(max(round(sample * SAMPLE_STEPS), 1), SAMPLE_STEPS)
    slots = {pair: slot for slot, pair in enumerate(pairs)}
    topics = sorted({topic for topic, _ in pairs})
    enough = max(parallelism(spark), -(-records * steps // (SAMPLE_STEPS * BUCKET_ROWS)))
    buckets = 1 << min((enough - 1).bit_length(), 16)
    find = FindKeys(tuple(slots[each.topic, each.partition] for each in ranges), steps, buckets, isolation)
    count = CountKeys(tuple(topics.index(topic) for topic, _ in pairs), top)
    found = over_ranges(spark, where, ranges, find).partitionBy(buckets, int)
    scale = SAMPLE_STEPS / steps
    for row in found.mapPartitions(count).collect():
        if row.kind == _TOPIC:
            counted.topic_keys[topics[row.slot]] += round(row.keys * scale)
            counted.spread_keys[topics[row.slot]] += round(row.records * scale)
            continue
        topic, partition = pairs[row.slot]
        sums = counted.partitions[topic, partition]
        if row.kind == _HOT:
            counted.hot.append(HotKey(topic, partition, row.offset, row.records))
        elif row.kind == _UNKEYED:
            sums.null_keys += row.records
            sums.null_key_bytes += row.bytes
        else:
            sums.keys += round(row.keys * scale)
            sums.records += round(row.records * scale)
            sums.payload_bytes += round(row.bytes * scale)
            sums.tombstones += round(row.nulls * scale)
            sums.latest_bytes += round(row.latest_bytes * scale)
            sums.deleted_keys += round(row.deleted * scale)
    counted.hot.sort(key=lambda each: (-each.records, each.topic, each.partition, each.offset))
    del counted.hot[top:]
    return counted


@dataclass(frozen=True)
class FindKeys:
    """The different keys of a range, by the buckets in which they meet those of others: the first step."""

    slots: tuple[int, ...]
    """Of each range, the number of its partition."""
    steps: int
    buckets: int
    isolation: Isolation

    def __call__(self, logs: Logs, number: int, part: LogRange) -> Iterator[tuple[int, bytes]]:
        pieces: list[pa.RecordBatch] = []
        unkeyed = [0, 0]
        for batch in read(logs, part, ("key", "value", "offset"), self.isolation):
            if batch.column("key").null_count:
                without = batch.filter(batch.column("key").is_null())
                unkeyed[0] += len(without)
                unkeyed[1] += pc.sum(pc.binary_length(without.column("value"))).as_py() or 0
                batch = batch.filter(batch.column("key").is_valid())
            if len(batch):
                pieces.append(self._narrow(batch))
        slot = self.slots[number]
        if unkeyed[0]:
            row = {"slot": slot, "records": unkeyed[0], "bytes": unkeyed[1]}
            yield 0, _packed(pa.Table.from_pylist([row], _FOUND))
        if not pieces:
            return
        # In one thread the groups see their rows in order, so that the last one is the latest.
        made = pa.Table.from_batches(pieces).group_by("hash", use_threads=False)
        found = made.aggregate(
            [("bytes", "count"), ("bytes", "sum"), ("null", "sum"), ("offset", "last"), ("latest", "last")]
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
        yield from self._spread(pa.table(columns, schema=_FOUND))

    def _spread(self, keys: pa.Table) -> Iterator[tuple[int, bytes]]:
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
    """Sums over the keys that met here: the second step."""

    topics: tuple[int, ...]
    """Of each partition, the number of its topic."""
    top: int

    def __call__(self, packed: Iterable[tuple[int, bytes]]) -> Iterator[_Sums]:
        tables = [pa.ipc.open_stream(data).read_all() for _, data in packed]
        found = pa.concat_tables(tables or [_FOUND.empty_table()])
        for row in found.filter(found["hash"].is_null()).to_pylist():
            yield _Sums(_UNKEYED, row["slot"], records=row["records"], bytes=row["bytes"])
        found = found.filter(found["hash"].is_valid())
        if not len(found):
            return
        keys = found.group_by(["slot", "hash"]).aggregate(
            [("records", "sum"), ("bytes", "sum"), ("nulls", "sum"), ("offset", "max"), ("latest", "max")]
        )
        latest = pc.bit_wise_and(keys["latest_max"], (1 << _LATEST_BITS) - 1)
        keys = keys.append_column("latest_bytes", pc.shift_right(latest, 1))
        keys = keys.append_column("deleted", pc.bit_wise_and(latest, 1))
        keys = keys.append_column("topic", pa.array(self.topics, pa.int32()).take(keys["slot"]))
        yield from self._partitions(keys)
        yield from self._topics(keys)
        hot = pc.select_k_unstable(keys, self.top, [("records_sum", "descending")])
        for row in keys.take(hot).to_pylist():
            yield _Sums(_HOT, row["slot"], records=row["records_sum"], offset=row["offset_max"])

    def _partitions(self, keys: pa.Table) -> Iterator[_Sums]:
        names = ("records_sum", "bytes_sum", "nulls_sum", "latest_bytes", "deleted")
        wanted = [("hash", "count"), *((name, "sum") for name in names)]
        for row in keys.group_by("slot").aggregate(wanted).to_pylist():
            sums = (row[f"{name}_sum"] for name in names)
            yield _Sums(_PARTITION, row["slot"], row["hash_count"], *sums)

    def _topics(self, keys: pa.Table) -> Iterator[_Sums]:
        places = keys.group_by(["topic", "hash"]).aggregate([("slot", "count")])
        places = places.append_column("spread", pc.greater(places["slot_count"], 1).cast(pa.int64()))
        for row in places.group_by("topic").aggregate([("hash", "count"), ("spread", "sum")]).to_pylist():
            yield _Sums(_TOPIC, row["topic"], row["hash_count"], row["spread_sum"])


def hashes(keys: pa.Array) -> pa.Array:
    """XXH64 of every key of a binary column without nulls, as the signed numbers Spark has."""
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


def stats(
    spark: SparkSession,
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
    """Sizes, rates, keys, duplicates and skew of these topics, or of all: ``details["topics"]`` has each.

    ``keys=False`` reads headers only. ``key_sample=0.1`` counts a tenth of the keys and scales up. ``top`` is
    how many of the most frequent keys are named. ``duplicate_ratio`` is the share of keyed records that a
    later one supersedes, ``compaction_saves_bytes`` about what the log would shrink by without them.
    """
    if not 0 < key_sample <= 1:
        raise InvalidArgumentError(f"key_sample is {key_sample}, takes a share above 0 and up to 1")
    began_s = time.monotonic()
    where = where_of(path, archive)
    with opened(where) as logs:
        extents = pinned(logs, topics, isolation=isolation)
        found = {(each.topic, each.partition): _partition(each) for each in extents}
        ranges = ranges_of(spark, logs, extents)
        span_ms = _add_segments(logs, found)
        with watched(spark, progress, "headers"):
            headers = count_headers(spark, where, ranges, window_for(span_ms))
        for pair, each in headers.partitions.items():
            found[pair] |= asdict(each)
        counted = Census()
        if keys:
            records = sum(each["records"] for each in found.values())
            with watched(spark, progress, "keys"):
                counted = census(
                    spark,
                    where,
                    ranges,
                    records=records,
                    sample=key_sample,
                    top=top,
                    isolation=isolation,
                )
        hot = [_hot_key(logs, each, found) for each in counted.hot]
    shown = [
        _topic(
            name, [row for pair, row in found.items() if pair[0] == name], headers, counted if keys else None
        )
        for name in sorted({pair[0] for pair in found})
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


def _partition(extent: LogRange) -> dict[str, Any]:
    return {
        "topic": extent.topic,
        "partition": extent.partition,
        "start_offset": extent.start,
        "end_offset": extent.end,
        "segments": 0,
        "bytes": 0,
        "archived_bytes": 0,
        **asdict(HeaderCounts()),
    }


def _add_segments(logs: Logs, found: Mapping[Pair, dict[str, Any]]) -> int:
    """What lies on disk and in the archive, less what only waits for its removal; gives the span of time."""
    oldest: int | None = None
    newest: int | None = None
    for pair, sums in found.items():
        for info in logs.segment_infos(*pair):
            if info.state is SegmentState.DELETED:
                continue
            sums["segments"] += 1
            sums["archived_bytes" if info.state is SegmentState.ARCHIVED else "bytes"] += info.size_bytes
            oldest, newest = least(oldest, info.min_timestamp), most(newest, info.max_timestamp)
    return 0 if oldest is None or newest is None else max(newest - oldest, 0)


def _topic(
    name: str, rows: Sequence[dict[str, Any]], headers: Headers, counted: Census | None
) -> dict[str, Any]:
    """A topic's numbers from those of its partitions."""
    made: dict[str, Any] = {"topic": name, "partitions": len(rows)}
    for column in ("segments", "batches", "records", "bytes", "archived_bytes"):
        made[column] = sum(row[column] for row in rows)
    made["codecs"] = {
        codec: sum(row["codecs"].get(codec, 0) for row in rows)
        for codec in sorted({codec for row in rows for codec in row["codecs"]})
    }
    oldest, newest = None, None
    for row in rows:
        row["records_per_second"] = _rate(row["records"], row["oldest_ms"], row["newest_ms"])
        oldest, newest = least(oldest, row["oldest_ms"]), most(newest, row["newest_ms"])
        for side in ("oldest", "newest"):
            moment = row.pop(f"{side}_ms")
            row[side] = None if moment is None else format_time(moment)
    made["oldest"] = None if oldest is None else format_time(oldest)
    made["newest"] = None if newest is None else format_time(newest)
    made |= _rates(made, oldest, newest, headers.peak(name))
    made["skew"] = {column: _skew([row[column] for row in rows]) for column in ("records", "bytes")}
    if counted is not None:
        for row in rows:
            row |= _keys(row, counted.partitions.get((name, row["partition"]), KeyCounts()))
        for column in ("keyed_records", "null_keys", "tombstones", "superseded", "compaction_saves_bytes"):
            made[column] = sum(row[column] for row in rows)
        made["keys"] = counted.topic_keys.get(name, 0)
        made["deleted_keys"] = sum(row["deleted_keys"] for row in rows)
        made["spread_keys"] = counted.spread_keys.get(name, 0)
        made["duplicate_ratio"] = _ratio(made["superseded"], made["keyed_records"])
        made["skew"]["keys"] = _skew([row["keys"] for row in rows])
    made["by_partition"] = [{key: value for key, value in row.items() if key != "topic"} for row in rows]
    return made


def _rates(
    made: Mapping[str, Any], oldest: int | None, newest: int | None, peak: tuple[int, float] | None
) -> dict[str, Any]:
    return {
        "records_per_second": _rate(made["records"], oldest, newest),
        "bytes_per_second": _rate(sum(made["codecs"].values()), oldest, newest),
        "peak_records_per_second": None if peak is None else round(peak[1], 3),
        "peak_at": None if peak is None else format_time(peak[0]),
    }


def _rate(number: int, oldest: int | None, newest: int | None) -> float | None:
    if oldest is None or newest is None or newest <= oldest:
        return None
    return round(number * 1000 / (newest - oldest), 3)


def _keys(row: Mapping[str, Any], counts: KeyCounts) -> dict[str, Any]:
    superseded = max(counts.records - counts.keys, 0)
    payload = counts.payload_bytes + counts.null_key_bytes
    size = sum(row["codecs"].values())
    saved = max(counts.payload_bytes - counts.latest_bytes, 0)
    facts = asdict(counts)
    facts["keyed_records"] = facts.pop("records")
    facts["superseded"] = superseded
    facts["duplicate_ratio"] = _ratio(superseded, counts.records)
    facts["compaction_saves_bytes"] = size * saved // payload if payload else 0
    return facts


def _hot_key(logs: Logs, hot: HotKey, found: Mapping[Pair, Mapping[str, Any]]) -> dict[str, Any]:
    part = LogRange(hot.topic, hot.partition, hot.offset, hot.offset + 1)
    key = next((each for batch in read(logs, part, ("key",)) for each in batch.column(0).to_pylist()), None)
    made: dict[str, Any] = {"topic": hot.topic, "partition": hot.partition}
    try:
        made["key"] = None if key is None else key.decode()
    except UnicodeDecodeError:
        made["key_base64"] = base64.b64encode(key or b"").decode()
    records = found[hot.topic, hot.partition]["records"]
    return made | {"records": hot.records, "share_of_partition": _ratio(hot.records, records)}


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
    """The largest over the mean: 1 when all are equal, their number when one has everything."""
    total = sum(sizes)
    return round(max(sizes) * len(sizes) / total, 3) if total else 1.0


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
