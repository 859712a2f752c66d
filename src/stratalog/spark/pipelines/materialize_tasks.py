"""What a task of ``materialize`` does: the new offsets of one partition merged into its last result.

The kernel collects the latest offset of every key of the new range (`KeyMap`), then the range is read again
and of each key only that record is decoded to Arrow. Rows of the last result stay unless their key came
again. Memory is bounded: where the keys do not fit, the range is done in several steps.

Where a key may lie in several partitions the result is kept in buckets by the key's hash, tombstones
included, and a second kind of task brings the partitions' rows of one bucket together (`materialize_join`).

Every attempt writes files of its own names; only the driver's manifest says which count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from stratalog import kernel
from stratalog.errors import ConfigError
from stratalog.format import batch as batches
from stratalog.format.arrow import decode_arrow, schema_for
from stratalog.format.batch import Scan
from stratalog.format.batch_filter import DISCARD, KeyMap, build, filter_batches
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.chunks import FULL_CHUNK, Chunk
from stratalog.log.reader import Isolation, LogView, aborted_rows, iter_chunks
from stratalog.spark.logs import opened
from stratalog.spark.loss import Losses
from stratalog.spark.options import Where
from stratalog.spark.pipelines.export_places import Place, place_of, told
from stratalog.spark.pipelines.materialize_files import Files, columns_of, read_rows
from stratalog.spark.pipelines.materialize_manifest import DataFile
from stratalog.spark.pipelines.spread import attempt_name


@dataclass(frozen=True)
class Merge:
    """One partition: offsets [start, end) over the files of the last result."""

    topic: str
    partition: int
    start: int
    end: int
    files: tuple[DataFile, ...]
    incremental: bool
    """Whether an earlier run read up to ``start``: then nothing may be missing from there on."""
    partitions: int
    """Of the topic; 0 when nobody wants to know whether keys are where the Java client puts them."""


@dataclass(frozen=True)
class Merged:
    """What came of it. Names of files are the staged ones."""

    partition: int
    files: tuple[DataFile, ...]
    records: int
    tombstones: int
    vanished: int
    """Keys whose record compaction took while this ran."""
    misplaced: bool
    """A key is where the Java client would not have put it: it may be in another partition, too."""


@dataclass(frozen=True)
class Merging:
    """The work; travels to the executors."""

    where: Where
    output: str
    staging: str
    isolation: Isolation
    headers: bool
    buckets: int
    keep_tombstones: bool
    memory_bytes: int
    compression: str
    fail_on_data_loss: bool

    def __call__(self, merge: Merge) -> Merged:
        place = place_of(self.output)
        with opened(self.where) as logs, told(self.output):
            view = logs.view(merge.topic, merge.partition)
            view.refresh()
            first = view.log_start_offset
            start = merge.start if merge.incremental else max(merge.start, first)
            losses = Losses(self.fail_on_data_loss)
            pair = (merge.topic, merge.partition)
            start, end = losses.within(pair, start, merge.end, first, view.end_offset(self.isolation))
            return _Merging(self, replace(merge, start=start, end=end), place, view).run()


class _Merging:
    """One attempt."""

    def __init__(self, job: Merging, merge: Merge, place: Place, view: LogView) -> None:
        self._job = job
        self._merge = merge
        self._place = place
        self._view = view
        self._columns = columns_of(job.headers)
        self._prefix = f"{job.staging}/{merge.partition:05d}-{attempt_name()}"
        self._steps = 0
        self._records = self._tombstones = self._vanished = 0
        self._misplaced = False

    def run(self) -> Merged:
        merge = self._merge
        start, files = merge.start, merge.files
        made: tuple[DataFile, ...] = ()
        while True:
            room = min(self._job.memory_bytes, KeyMap.memory_for(max(merge.end - start, 1)))
            keys = KeyMap(max(room, 64), start)
            aborted = self._view.aborted(start, merge.end) if self._committed else []
            upto = self._collect(keys, start, aborted)
            before, made = made, self._write(keys, start, upto, aborted, files)
            self._place.remove(each.name for each in before)
            if upto >= merge.end:
                break
            start, files = upto, made
        return Merged(merge.partition, made, self._records, self._tombstones, self._vanished, self._misplaced)

    @property
    def _committed(self) -> bool:
        return self._job.isolation == "read_committed"

    def _chunks(self, start: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """Chunks with the offsets [lo, hi) that are wanted of each, none twice."""
        at = start
        for _, chunk, limit in iter_chunks(self._view, start, end, first_size=FULL_CHUNK):
            hi = min(limit, end)
            if at < hi:
                yield chunk, at, hi
            at = max(at, min(chunk.scan.last_offset + 1, hi))

    # -- the keys ------------------------------------------------------------------------------------

    def _collect(self, keys: KeyMap, start: int, aborted: list[AbortedTxn]) -> int:
        """Fill the map from ``start`` on; the offset up to which it speaks for every key."""
        end = self._merge.end
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
                f" {self._merge.topic}-{self._merge.partition}; give more"
            )
        return upto

    # -- the rows ------------------------------------------------------------------------------------

    def _write(
        self, keys: KeyMap, start: int, upto: int, aborted: list[AbortedTxn], files: Sequence[DataFile]
    ) -> tuple[DataFile, ...]:
        job = self._job
        self._steps += 1
        out = Files(self._place, f"{self._prefix}-{self._steps}", schema_for(self._columns), job.compression)
        try:
            for file in files:
                for rows in read_rows(self._place, file.name, self._columns):
                    out.add(file.bucket, _without(rows, keys))
            found = 0
            for rows in self._latest(keys, start, upto, aborted):
                found += rows.num_rows
                self._check_places(rows)
                dead = rows.column("value").null_count
                self._tombstones += dead
                if dead and not job.keep_tombstones:
                    rows = rows.filter(pc.is_valid(rows.column("value")))
                for bucket, part in split(rows, job.buckets):
                    out.add(bucket, part)
            self._vanished += max(0, len(keys) - found)
            return out.finish()
        except BaseException:
            out.discard()
            raise

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
                columns=self._columns,
                topic=self._merge.topic,
                partition=self._merge.partition,
                lo=lo,
                hi=hi,
            )

    def _check_places(self, rows: pa.RecordBatch) -> None:
        count, ours = self._merge.partitions, self._merge.partition
        if count > 1 and not self._misplaced:
            place = kernel.partition_for_key
            self._misplaced = any(place(key, count) != ours for key in rows.column("key").to_pylist())


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
    """Rows by the bucket of their key."""
    if buckets == 1:
        yield 0, rows
        return
    of = pa.array([kernel.hash64(key) % buckets for key in rows.column("key").to_pylist()], pa.int32())
    for bucket in pc.unique(of).to_pylist():
        yield bucket, rows.filter(pc.equal(of, bucket))
