"""The latest record of every key, as tasks of ``materialize`` find it.

First task, a partition each (`Reducing`): the kernel collects the latest offset of every key of a range
(`KeyMap`), then the range is read again and of each key only that record is decoded to Arrow. Memory is
bounded: where the keys do not fit, the range is done in several steps. A partition's own latest record of a
key is the one with the highest offset.

Second task, where a key may lie in several partitions (`Joining`): rows are split by the hash of their key,
and of each key the row with the greatest timestamp is kept, of equal ones that of the highest partition. A
tombstone counts like any other row.

Every attempt writes files of its own names; only what the driver commits counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog import kernel
from stratalog.errors import ConfigError
from stratalog.format import batch as batches
from stratalog.format.batch import Scan
from stratalog.format.batch.arrow import decode_arrow
from stratalog.format.batch.filter import DISCARD, build, filter_batches
from stratalog.format.txn_index import AbortedTxn
from stratalog.kernel import KeyMap
from stratalog.log.read.chunks import FULL_CHUNK, Chunk
from stratalog.log.read.reader import Isolation, LogView, aborted_rows, iter_chunks
from stratalog.spark.logs import opened
from stratalog.spark.loss import Losses
from stratalog.spark.options import Where
from stratalog.spark.pipelines.executors import attempt_name
from stratalog.spark.pipelines.lake.files import FileWriter, WrittenFile
from stratalog.spark.pipelines.lake.places import Place, place_of, told
from stratalog.spark.pipelines.lake.work import PlaceTarget

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
FILE_BYTES = 128 << 20
READ_ROWS = 1 << 16


@dataclass(frozen=True)
class Output:
    """Where and how rows are written; travels to the executors."""

    url: str
    prefix: str
    columns: tuple[str, ...]
    compression: str
    tombstones: bool
    """Whether rows without a value are kept."""

    def writer(self, name: str) -> FileWriter:
        """Return what writes the files of one attempt, a file for each bucket."""
        prefix = f"{self.prefix}{name}-{attempt_name()}"
        return FileWriter(
            PlaceTarget(self.url),
            lambda bucket, number: f"{prefix}-{number:05d}.parquet",
            self.compression,
            FILE_BYTES,
        )


def rows_of(place: Place, name: str) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file, some at a time."""
    with pq.ParquetFile(place.reading(name)) as file:
        yield from file.iter_batches(READ_ROWS)


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int
    incremental: bool
    """Whether an earlier run read up to ``start``: then nothing may be missing from there on."""


@dataclass(frozen=True)
class Reduced:
    """What came of a range."""

    files: tuple[WrittenFile, ...]
    records: int
    tombstones: int
    vanished: int
    """Keys whose record compaction took while this ran."""
    misplaced: bool = False
    """A key is where the Java client would not have put it: it may be in another partition, too."""


@dataclass(frozen=True)
class Reducing:
    """The first task; travels to the executors."""

    where: Where
    output: Output
    isolation: Isolation
    partitions: int
    """Of the topic, to find misplaced keys; 0 where nobody asks."""
    buckets: int
    memory_bytes: int
    fail_on_data_loss: bool

    def __call__(self, part: Range) -> Reduced:
        place = place_of(self.output.url)
        with opened(self.where) as logs, told(self.output.url):
            view = logs.view(part.topic, part.partition)
            view.refresh()
            first = view.log_start_offset
            start = part.start if part.incremental else max(part.start, first)
            losses = Losses(self.fail_on_data_loss)
            pair = (part.topic, part.partition)
            start, end = losses.within(pair, start, part.end, first, view.end_offset(self.isolation))
            return _Reducing(self, replace(part, start=start, end=end), place, view).run()


class _Reducing:
    """One attempt."""

    def __init__(self, job: Reducing, part: Range, place: Place, view: LogView) -> None:
        self._job = job
        self._part = part
        self._place = place
        self._view = view
        self._steps = 0
        self._records = self._tombstones = self._vanished = 0
        self._misplaced = False

    def run(self) -> Reduced:
        end, start = self._part.end, self._part.start
        made: tuple[WrittenFile, ...] = ()
        while True:
            room = min(self._job.memory_bytes, KeyMap.memory_for(max(end - start, 1)))
            keys = KeyMap(max(room, 64), start)
            aborted = self._view.aborted(start, end) if self._committed else []
            upto = self._collect(keys, start, aborted)
            before, made = made, self._write(keys, start, upto, aborted, made)
            self._place.remove(each.name for each in before)
            if upto >= end:
                break
            start = upto
        return Reduced(made, self._records, self._tombstones, self._vanished, self._misplaced)

    @property
    def _committed(self) -> bool:
        return self._job.isolation == "read_committed"

    def _chunks(self, start: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """Chunks with the offsets [lo, hi) that are wanted of each, none twice."""
        at = start
        # A table made anew holds what the log holds; one that goes on was promised every offset.
        may_pass = not (self._part.incremental and self._job.fail_on_data_loss)
        chunks = iter_chunks(self._view, start, end, first_size=FULL_CHUNK, pass_deleted=may_pass)
        for _, chunk, limit in chunks:
            hi = min(limit, end)
            if at < hi:
                yield chunk, at, hi
            at = max(at, min(chunk.scan.last_offset + 1, hi))

    # -- the keys ------------------------------------------------------------------------------------

    def _collect(self, keys: KeyMap, start: int, aborted: list[AbortedTxn]) -> int:
        """Fill the map from ``start`` on; the offset up to which it speaks for every key."""
        end = self._part.end
        for chunk, lo, hi in self._chunks(start, end):
            scan = chunk.scan
            first, last = scan.find_offset(lo), scan.find_offset(hi)
            skip = _mask(scan, aborted, 1)
            if build(keys, chunk.data, scan, first, last, skip=skip, lo=lo) < last:
                return self._covered(keys.latest_offset + 1, start)
            if last < scan.n and (header := scan.header(last)).base_offset < hi:
                # The batch that holds the end: some of its records count.
                rows = batches.decode_records(
                    chunk.data, scan, last, last + 1, topic="", partition=0, lo=lo, hi=hi,
                    skip=aborted_rows(scan, aborted),
                )  # fmt: skip
                if not all(keys.add(each.key, each.offset or 0) for each in rows if each.key is not None):
                    return self._covered(max(header.base_offset, lo), start)
        keys.latest_offset = max(keys.latest_offset, end - 1)
        return end

    def _covered(self, upto: int, start: int) -> int:
        if upto <= start:
            raise ConfigError(
                f"memory_bytes={self._job.memory_bytes} is too little for the batch at offset {start} of"
                f" {self._part.topic}-{self._part.partition}; give more"
            )
        return upto

    # -- the rows ------------------------------------------------------------------------------------

    def _write(
        self, keys: KeyMap, start: int, upto: int, aborted: list[AbortedTxn], before: Sequence[WrittenFile]
    ) -> tuple[WrittenFile, ...]:
        """Write the rows of a step, and those of the steps before whose key did not come again."""
        job = self._job
        self._steps += 1
        out = job.output.writer(f"{self._part.partition:05d}-{self._steps}")
        for file in before:
            for rows in rows_of(self._place, file.name):
                out.add(file.key, _without(rows, keys))
        found = 0
        for rows in self._latest(keys, start, upto, aborted):
            found += rows.num_rows
            self._check_places(rows)
            dead = rows.column("value").null_count
            self._tombstones += dead
            if dead and not job.output.tombstones:
                rows = rows.filter(pc.is_valid(rows.column("value")))
            for bucket, part in split(rows, job.buckets):
                out.add(bucket, part)
        self._vanished += max(0, len(keys) - found)
        return tuple(out.finish())

    def _check_places(self, rows: pa.RecordBatch) -> None:
        count, ours = self._job.partitions, self._part.partition
        if count > 1 and not self._misplaced:
            place = kernel.partition_for_key
            self._misplaced = any(place(key, count) != ours for key in rows.column("key").to_pylist())

    def _latest(
        self, keys: KeyMap, start: int, upto: int, aborted: list[AbortedTxn]
    ) -> Iterator[pa.RecordBatch]:
        """Of every key the record that the map knows as its latest."""
        for chunk, lo, hi in self._chunks(start, upto):
            scan = chunk.scan
            first, last = scan.find_offset(lo), scan.find_offset(hi)
            if last < scan.n and scan.header(last).base_offset < hi:
                last += 1
            made = filter_batches(
                chunk.data,
                scan,
                first,
                last,
                keys=keys,
                retention=_mask(scan, aborted, DISCARD),
                recompress=False,
            )
            self._records += made.records_in
            yield from decode_arrow(
                made.data,
                made.scan,
                columns=self._job.output.columns,
                topic=self._part.topic,
                partition=self._part.partition,
                lo=lo,
                hi=hi,
            )


def _mask(scan: Scan, aborted: list[AbortedTxn], mark: int) -> bytearray | None:
    rows = aborted_rows(scan, aborted)
    if rows is None:
        return None
    mask = bytearray(scan.n)
    for row in rows:
        mask[row] = mark
    return mask


def _without(rows: pa.RecordBatch, keys: KeyMap) -> pa.RecordBatch:
    """The rows whose key is not in the map."""
    get = keys.get
    return rows.filter(pa.array([get(key) is None for key in rows.column("key").to_pylist()], pa.bool_()))


def split(rows: pa.RecordBatch, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split rows by the bucket of their key."""
    if buckets == 1:
        yield 0, rows
        return
    of = pa.array([kernel.hash64(key) % buckets for key in rows.column("key").to_pylist()], pa.int32())
    for bucket in pc.unique(of).to_pylist():
        yield bucket, rows.filter(pc.equal(of, bucket))


# -- several partitions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """The files of one bucket, of every partition."""

    number: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class Joining:
    """The second task; travels to the executors. A bucket is joined in memory."""

    output: Output

    def __call__(self, bucket: Bucket) -> tuple[WrittenFile, ...]:
        place = place_of(self.output.url)
        with told(self.output.url):
            parts = [rows for name in bucket.files for rows in rows_of(place, name)]
            out = self.output.writer(f"b{bucket.number:05d}")
            if parts:
                # Together they may be more than 32-bit offsets can say.
                table = pa.Table.from_batches(parts)
                for at, name in enumerate(table.schema.names):
                    if name in ("key", "value"):
                        table = table.set_column(at, name, table.column(name).cast(pa.large_binary()))
                table = latest_of(table)
                if not self.output.tombstones:
                    table = table.filter(pc.is_valid(table.column("value")))
                for rows in table.to_batches(max_chunksize=READ_ROWS):
                    out.add(bucket.number, _narrow(rows))
            return tuple(out.finish())


def latest_of(table: pa.Table) -> pa.Table:
    """Return one row for each key, sorted by key."""
    order = pc.sort_indices(
        table, sort_keys=[("key", "ascending"), ("timestamp", "ascending"), ("partition", "ascending")]
    )
    table = table.take(order).combine_chunks()
    keys = table.column("key").combine_chunks()
    last = pa.array([True])
    if len(keys) > 1:
        differs = pc.not_equal(keys.slice(0, len(keys) - 1), keys.slice(1))
        last = pa.concat_arrays([differs, last])
    return table.filter(last)


def _narrow(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
