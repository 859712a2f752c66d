"""A census of keys: how many there are, how often each comes, and what compaction would leave of them.

Executors hash the keys of a range with the kernel and send on one row for each different key; rows of the
same key meet on one executor, which sends on a handful of sums. Keys themselves never travel. They are told
apart by 64 bits of hash: a billion keys have about one chance in forty of two taken for one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog import kernel
from stratalog.log.reader import Isolation
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Where
from stratalog.spark.pipelines.ranges import over_ranges, parallelism, read
from stratalog.spark.planning import LogRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.logs import Logs

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
