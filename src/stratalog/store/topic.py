"""A topic: appending to its partitions, and reading them by offset, time and key."""

from __future__ import annotations

import datetime as dt
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeGuard, TypeVar

from stratalog import kernel, locks
from stratalog.config import TopicConfig
from stratalog.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidRecordError,
    UnknownPartitionError,
    UnknownTopicError,
    again,
)
from stratalog.format.batch.arrow import check_names, fitted
from stratalog.format.metadata import id_to_text
from stratalog.log.arguments import (
    Moment,
    check_bytes,
    check_list,
    check_moment,
    check_number,
    check_optional,
    check_seconds,
    check_timestamp,
    wrong_type,
)
from stratalog.log.read import list_offsets, lookup
from stratalog.log.read.arrow_scan import ScanOptions, ScanRange, check_columns, scan_to_arrow
from stratalog.log.read.fetch import Fetched, fetch
from stratalog.log.read.list_offsets import EpochEnd, ListedOffset
from stratalog.log.read.lookup import read_one, record_at
from stratalog.log.read.reader import SkipDamaged, check_isolation, check_start
from stratalog.log.segment.directory_state import segment_states
from stratalog.log.write import produce
from stratalog.log.write.append import append_arrow, append_record, append_records
from stratalog.log.write.log_end import Completion, End, check_end
from stratalog.log.write.producers import Origin
from stratalog.log.write.writer import PartitionWriter
from stratalog.model import Appended, AppendedRange, Header, Record, SegmentInfo
from stratalog.store import reading
from stratalog.store.moving import missing, or_missing, steady, unmoved
from stratalog.store.partitions import HIGH_WATERMARK
from stratalog.store.reading import Offsets, Order, Part, ReadOptions, Records

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.log.read.follower import PartitionFollower
    from stratalog.store.catalog import State, TopicEntry, Views
    from stratalog.store.partitions import Partitions


MAX_SCAN_THREADS = 1024

P = ParamSpec("P")
T = TypeVar("T")

STICKY_BYTES = 16 << 10
"""Keyless records stay with one partition for so many bytes, as a Kafka producer's do for a batch."""


class Topic:
    """A topic of an open store. Thread-safe; appends to one partition take turns, partitions do not."""

    def __init__(self, partitions: Partitions, name: str, entry_id: uuid.UUID | None) -> None:
        self._partitions = partitions
        self.name = name
        self.entry_id = entry_id
        """Tells this topic from one of the same name that is created after it was deleted."""
        self._views: Sequence[PartitionWriter | PartitionFollower | None] = ()
        self._only: PartitionWriter | None = None  # the writer of a topic with one partition
        self._seen: tuple[State | None, Views] = (None, ())
        """The store when this topic was last looked up, and the partitions it had then."""
        self._sticky = 0
        self._sticky_left = STICKY_BYTES
        self._sticky_lock = locks.lock("topic.sticky")
        self.refresh_writers()

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}, {self.partitions} partitions>"

    # -- facts ---------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return self._entry().partitions

    @property
    def id(self) -> str | None:
        """The topic id as Kafka writes it."""
        topic_id = self._entry().id
        return None if topic_id is None else id_to_text(topic_id)

    @property
    def config(self) -> TopicConfig:
        """The settings in force."""
        return self._entry().config(self._partitions.config)

    def log_start_offset(self, partition: int = 0) -> int:
        """The first offset that can be read."""
        view = self._view(partition)
        view.refresh()
        return view.log_start_offset

    def log_end_offset(self, partition: int = 0) -> int:
        """The offset the next record will get (in another process's store: as far as can be seen)."""
        view = self._view(partition)
        view.refresh()
        return view.next_offset

    def high_watermark(self, partition: int = 0, isolation: str = "read_uncommitted") -> int:
        """The first offset readers cannot see yet; with ``read_committed`` the last stable offset."""
        view = self._view(partition)
        view.refresh()
        return view.end_offset(check_isolation(isolation))

    def segments(self, partition: int | None = None, *, deleted: bool = False) -> list[SegmentInfo]:
        """Every segment with its state, offsets and size, in order.

        With ``deleted`` also those that wait, renamed, for the end of ``file.delete.delay.ms``.
        """
        found: list[SegmentInfo] = []
        for each in self._choose(partition):
            view = self._view(each)
            with or_missing(view):
                found += unmoved(self._partitions, view, partial(segment_states, deleted=deleted))
        return found

    def size_bytes(self, partition: int | None = None) -> int:
        total = 0
        for each in self._choose(partition):
            view = self._view(each)
            with or_missing(view):
                infos = unmoved(self._partitions, view, lambda view: view.segment_infos())
                total += sum(info.size_bytes for info in infos)
        return total

    # -- writing ---------------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | dt.datetime | None = None,
        *,
        partition: int | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append one record. Returns after its write, or with ``sync`` when it is on disk.

        ``timestamp`` is epoch milliseconds or a datetime with a time zone; now when None.
        Without ``partition`` the key decides, as in the Java client; without a key too, the topic sticks
        to one partition for a while.

        ``expected_offset`` is the offset that the record must get, the log end offset of its partition: if
        another append came first, nothing is written, which is a `ConflictError` with the actual end.
        """
        only = self._only
        if timestamp is not None and type(timestamp) is not int:
            timestamp = check_timestamp("timestamp", timestamp)
        if expected_offset is not None:
            record = Record(value, key, headers, timestamp)
            return self._append_expected(record, partition, sync, expected_offset)
        if only is not None and (partition is None or (partition == 0 and type(partition) is int)):
            try:
                return only.append_one(value, key, headers, timestamp, sync)
            except ClosedError:
                one = PartitionWriter.append_one
                return self._again(only, one, value, key, headers, timestamp, sync)
            except FileNotFoundError as error:
                raise missing(only, error) from error
        if partition is None:
            count = len(self._views) or self.partitions
            if count == 1:
                partition = 0
            else:
                try:
                    if key is not None:
                        partition = kernel.partition_for_key(key, count)
                    else:
                        partition = self._sticky_partition(count, 0 if value is None else len(value))
                except TypeError:
                    name, bad = ("value", value) if key is None else ("key", key)
                    raise wrong_type(name, "bytes or None", bad) from None
        elif type(partition) is not int:
            partition = check_number("partition", partition)
        writers = self._views
        if 0 <= partition < len(writers):
            writer: Any = writers[partition]
            if writer is not None:
                try:
                    return writer.append_one(value, key, headers, timestamp, sync)  # type: ignore[no-any-return]
                except ClosedError:
                    one = PartitionWriter.append_one
                    return self._again(writer, one, value, key, headers, timestamp, sync)
                except FileNotFoundError as error:
                    raise missing(writer, error) from error
        return self._on(partition, PartitionWriter.append_one, value, key, headers, timestamp, sync)

    def _append_expected(
        self, record: Record, partition: int | None, sync: bool, expected_offset: int
    ) -> Appended:
        if partition is None:
            partition = self._place(record)
        expected = check_number("expected_offset", expected_offset, 0)
        return self._on(check_number("partition", partition), _append_record, record, sync, expected)

    def append_many(
        self,
        records: Iterable[Record] | pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
    ) -> list[AppendedRange]:
        """Append records, or an Arrow table with the columns of `scan`, in as few batches as fit.

        Returns a range for each partition that got records. The order of the records is kept within a
        partition. When a partition fails, what went to those before it stays. ``expected_offset`` is the
        offset that the first record must get, as for `append`; all records go to one partition then.
        """
        if partition is not None:
            partition = check_number("partition", partition)
        expected = self._expected(expected_offset, partition)
        if type(records) is not list and is_arrow(records):
            return self._append_arrow(records, partition, sync, expected)
        rows = records if isinstance(records, list) else check_list("records", records, "records")
        if expected is not None:
            placed = self._on(partition or 0, _append_rows, rows, sync, expected)
            return [placed] if rows else []
        if not rows:
            return []
        only = self._only
        if only is not None and not partition:
            try:
                return [_append_rows(only, rows, sync)]
            except ClosedError:
                return [self._again(only, _append_rows, rows, sync)]
            except FileNotFoundError as error:
                raise missing(only, error) from error
        count = len(self._views) or self.partitions
        if partition is not None or count == 1:
            return [self._on(partition or 0, _append_rows, rows, sync)]
        groups = self._group(rows, count)
        ranges = [self._on(number, _append_rows, group, False) for number, group in groups.items()]
        self._sync_all(ranges, sync)
        return ranges

    def _append_arrow(
        self, table: Any, partition: int | None, sync: bool, expected: int | None
    ) -> list[AppendedRange]:
        count = self.partitions
        ranges: dict[int, AppendedRange] = {}
        for number, part in arrow_parts(table, partition, count, self._sticky_partition):
            if not 0 <= number < count:
                raise self._no_partition(number)
            placed = self._on(number, append_arrow, part, False, expected)
            known = ranges.get(number)
            ranges[number] = (
                placed
                if known is None
                else AppendedRange(number, known.offset, placed.offset + placed.count - known.offset)
            )
        self._sync_all(list(ranges.values()), sync)
        return list(ranges.values())

    def _sync_all(self, ranges: list[AppendedRange], sync: bool) -> None:
        for placed in ranges:
            if sync and placed.count:
                end = placed.offset + placed.count
                self._on(placed.partition, PartitionWriter.acknowledge, end, True)

    def _group(self, rows: list[Record], count: int) -> dict[int, list[Record]]:
        groups: dict[int, list[Record]] = {}
        for index, row in enumerate(rows):
            try:
                key = row[1] if len(row) > 1 else None
                if key is None:
                    value = row[0]
                    number = self._sticky_partition(count, 0 if value is None else len(value))
                else:
                    number = kernel.partition_for_key(key, count)
            except (TypeError, LookupError) as error:
                raise InvalidRecordError(f"record {index}: {wrong_record(row) or error}") from error
            groups.setdefault(number, []).append(row)
        return groups

    def _place(self, record: Record) -> int:
        """Choose the partition of a record."""
        ((partition, _),) = self._group([record], len(self._views) or self.partitions).items()
        return partition

    def _sticky_partition(self, count: int, size: int) -> int:
        with self._sticky_lock:
            if self._sticky_left <= 0 or self._sticky >= count:
                others = count - 1
                self._sticky = (self._sticky + 1 + random.randrange(others)) % count if others else 0
                self._sticky_left = STICKY_BYTES
            self._sticky_left -= size + 70
            return self._sticky

    async def aappend(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | dt.datetime | None = None,
        *,
        partition: int | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
    ) -> Appended:
        """`append` for an event loop: waiting for the disk does not block the loop.

        Many that wait share one fsync. When it is cancelled, the record may be written all the same.
        """
        if timestamp is not None:
            timestamp = check_timestamp("timestamp", timestamp)
        record = Record(value, key, headers, timestamp)
        expected = check_optional("expected_offset", expected_offset, 0)
        if partition is None:
            partition = self._place(record)
        put = partial(_append_record, record=record, sync=False, expected=expected, wait=False)
        placed = await self._put(partition, put)
        await self._acknowledged(partition, placed.offset + 1, sync)
        return placed

    async def aappend_many(
        self,
        records: Iterable[Record],
        *,
        partition: int | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
    ) -> list[AppendedRange]:
        """`append_many` for an event loop; see `aappend`. Not for Arrow tables."""
        if is_arrow(records):
            raise wrong_type("records", "a list of records", records).advising(
                "append an Arrow table with asyncio.to_thread(topic.append_many, table)"
            )
        expected = self._expected(expected_offset, partition)
        rows = records if isinstance(records, list) else check_list("records", records, "records")
        groups = (
            self._group(rows, len(self._views) or self.partitions)
            if partition is None
            else {check_number("partition", partition): rows}
        )
        ranges = []
        for at, group in groups.items():
            if group:
                put = partial(_append_rows, rows=group, sync=False, expected=expected, wait=False)
                ranges.append(await self._put(at, put))
        for placed in ranges:
            await self._acknowledged(placed.partition, placed.offset + placed.count, sync)
        return ranges

    async def _put(self, partition: int, put: Callable[[PartitionWriter], T]) -> T:
        """`_on` for an event loop: a move is waited for in a thread."""
        writer = self._writer(partition)
        try:
            return put(writer)
        except ClosedError:
            import asyncio

            return await asyncio.to_thread(self._again, writer, put)
        except FileNotFoundError as error:
            raise missing(writer, error) from error

    def _expected(self, expected_offset: int | None, partition: int | None) -> int | None:
        expected = check_optional("expected_offset", expected_offset, 0)
        if expected is not None and partition is None and (len(self._views) or self.partitions) > 1:
            raise InvalidArgumentError("expected_offset is the end of one partition; pass partition= too")
        return expected

    async def _acknowledged(self, partition: int, end: int, sync: bool) -> None:
        completion = self._writer(partition).acknowledgement(end, sync)
        if completion is not None:
            await reading.done(completion, lambda: self._on(partition, _durable, end))

    def append_batches(
        self,
        partition: int,
        data: bytes | bytearray | memoryview,
        *,
        sync: bool = False,
        origin: Origin = "client",
        wait: bool = True,
    ) -> produce.BatchesAppended:
        """Append ready-made RecordBatch v2 bytes, fully checked; idempotent producers are deduplicated.

        A writable buffer is not copied: offsets are patched in it. Without ``wait`` this returns when the
        batches are written, however durable the settings want them.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise wrong_type("data", "bytes, a bytearray or a memoryview", data)
        if isinstance(data, memoryview) and not (data.format == "B" and data.c_contiguous and data.ndim == 1):
            raise wrong_type("data", "bytes in a row", data).advising("copy them with bytes(data)")
        return self._on(partition, produce.append_batches, data, sync=sync, origin=origin, wait=wait)

    def end_transaction(
        self,
        partition: int,
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int = 0,
        transaction_version: int = 1,
        sync: bool = False,
        wait: bool = True,
    ) -> produce.BatchesAppended:
        """Write the marker that ends a producer's transaction in one partition.

        From ``transaction_version`` 2 on (KIP-890) ``producer_epoch`` is the producer's next one.
        """
        return self._on(
            partition,
            produce.append_marker,
            "commit" if commit else "abort",
            producer_id=check_number("producer_id", producer_id, 0),
            producer_epoch=check_number("producer_epoch", producer_epoch, -1, 2**15 - 1),
            coordinator_epoch=check_number("coordinator_epoch", coordinator_epoch, 0, 2**31 - 1),
            transaction_version=check_number("transaction_version", transaction_version, 0),
            sync=sync,
            wait=wait,
        )

    def roll(self, partition: int | None = None) -> int:
        """Seal the active segments here and now; returns how many held anything."""
        return sum(self._on(each, PartitionWriter.roll) for each in self._choose(partition))

    def flush(self, partition: int | None = None) -> None:
        """Make everything appended so far durable."""
        for each in self._choose(partition):
            self._on(each, _flush)

    def delete_records(self, partition: int, before_offset: int) -> int:
        """Move the log start offset up to ``before_offset``; returns the new log start offset.

        -1 stands for the high watermark: everything that readers can see is deleted.
        """
        writer = self._writer(partition)
        before_offset = check_number("before_offset", before_offset, HIGH_WATERMARK)
        return self._partitions.delete_records_of(writer, before_offset)

    # -- reading ---------------------------------------------------------------------------------------

    def read(
        self,
        partition: int | list[int] | tuple[int, ...] | range | None = None,
        start: Offsets | None = None,
        end: Offsets | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        order: Order = "time",
        isolation: str = "read_uncommitted",
        follow: bool = False,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
        skip_damaged: SkipDamaged = False,
    ) -> Records:
        """Records of the topic, or of one partition or some, lazily.

        Several partitions are merged by timestamp; with ``order="partition"`` one comes after the other.
        ``start`` and ``end`` are offsets, the end not included: one for a single partition, or a mapping from
        partition to offset. ``start`` None is the log's start; outside the log it is an
        `OffsetOutOfRangeError`, raised at once. ``since`` and ``until`` choose records by their timestamps,
        the end not included: a datetime with a time zone, ISO 8601 text, ``-10m``, or epoch milliseconds.

        ``follow`` waits for more records, of partitions that are added too: until `Records.close` is called,
        ``stop`` is set, or nothing came for ``timeout_s``. Offsets that compaction or transactions left empty
        are skipped: the next record's offset shows the gap. Records that are deleted before they are read are
        not: the log start passed this reader, which is an `OffsetOutOfRangeError` with the offset to go on
        from as ``first``, as for a consumer of Kafka. ``skip_damaged`` goes on behind corrupt batches instead
        of raising; a function given for it is called with each `Damage` that was skipped.
        """
        level = check_isolation(isolation)
        plain = (
            not (follow or skip_damaged or stop) and since is until is timeout_s is None and order == "time"
        )
        if plain and type(partition) is type(start) is type(end) is int and end == start + 1:
            view = self._view(partition)
            view.refresh()
            check_start(view, start, level)
            return reading.just(read_one(steady(self._partitions, view), start, level))
        now_ms = self._partitions.context.clock.now_ms
        options = ReadOptions(
            check_moment("since", since, now_ms),
            check_moment("until", until, now_ms),
            reading.check_order(order),
            level,
            follow,
            check_seconds("timeout_s", timeout_s),
            reading.check_stop(stop),
            skip_damaged,
        )
        if follow and until is not None:
            raise InvalidArgumentError("follow waits for new records; it does not go with until")
        if follow and partition is None and end is None:
            options = replace(options, more=self._added(options))
        several = isinstance(partition, list | tuple | range)
        chosen = list(dict.fromkeys(partition)) if several else self._choose(partition)  # type: ignore[arg-type]
        return reading.read(self._parts(chosen, start, end, options), options)

    def part(self, partition: int, start: int, options: ReadOptions) -> Part:
        """One partition for a reader that keeps its own position; OffsetOutOfRangeError outside the log."""
        return Part.of(self._steady(partition), start, None, options)

    def _added(self, options: ReadOptions) -> Callable[[int], list[Part]]:
        """Return what finds partitions that were added; it looks once a second."""
        looked_s = time.monotonic()

        def more(known: int) -> list[Part]:
            nonlocal looked_s
            if time.monotonic() - looked_s < locks.RECHECK_S:
                return []
            looked_s = time.monotonic()
            return [
                Part.of(self._steady(each), None, None, options) for each in range(known, self.partitions)
            ]

        return more

    def _parts(
        self, chosen: Sequence[int], start: Offsets | None, end: Offsets | None, options: ReadOptions
    ) -> list[Part]:
        parts = []
        for each in chosen:
            first, last = (
                reading.offset_of(*bound, each, chosen) for bound in (("start", start), ("end", end))
            )
            parts.append(Part.of(steady(self._partitions, self._view(each)), first, last, options))
        return parts

    aread = read
    """`read` by another name: what it returns can be used in an ``async for`` loop."""

    def at(self, offset: int, partition: int = 0, *, isolation: str = "read_uncommitted") -> Record | None:
        """The record at ``offset``; None where there is none: a gap, a marker, or the end of the log.

        Outside the log it is an `OffsetOutOfRangeError`, as for `read`.
        """
        view = self._view(partition)
        level = check_isolation(isolation)
        view.refresh()
        offset = check_number("offset", offset)
        check_start(view, offset, level)
        return unmoved(self._partitions, view, record_at, offset, level)

    def scan(
        self,
        partitions: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        start: Offsets | None = None,
        end: Offsets | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        isolation: str = "read_uncommitted",
        threads: int = 0,
    ) -> pa.RecordBatchReader:
        """Arrow record batches: partitions one after the other, each in offset order.

        Offsets [start, end), for all partitions or by partition; times [since, until) as for `read`, by
        each record's own timestamp. ``columns`` chooses and orders; what is not asked for is not decoded.
        Records that are deleted before they are read are an `OffsetOutOfRangeError`, as for `read`.
        """
        import pyarrow as pa

        level = check_isolation(isolation)
        now_ms = self._partitions.context.clock.now_ms
        since_ms, until_ms = check_moment("since", since, now_ms), check_moment("until", until, now_ms)
        threads = check_number("threads", threads, 0, MAX_SCAN_THREADS)
        names = None if columns is None else check_list("columns", columns, "names")
        options = ScanOptions(check_columns(names), since_ms, until_ms, level, threads)
        chosen = self._choose(None) if partitions is None else check_list("partitions", partitions, "numbers")
        ranges = []
        for number in chosen:
            view = self._view(number)
            view.refresh()
            first, last = _bound("start", start, number), _bound("end", end, number)
            if first is not None:
                check_start(view, first, level)
            visible = view.end_offset(level)
            ranges.append(
                ScanRange(
                    steady(self._partitions, view),
                    view.log_start_offset if first is None else first,
                    visible if last is None else min(last, visible),
                    from_log_start=first is None,
                )
            )
        return pa.RecordBatchReader.from_batches(options.schema, scan_to_arrow(ranges, options))

    def get(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Record | None:
        """The latest record of a key (a tombstone too: its value is None), or None when there is none.

        In more than one partition the newest by timestamp wins. Quick with ``key.index.enable``.
        """
        key, level = check_bytes("key", key), check_isolation(isolation)
        newest: Record | None = None
        for number in self._choose(partition):
            record = unmoved(self._partitions, self._view(number), lookup.newest, key, level)
            if record is not None and (newest is None or (record.timestamp or 0) > (newest.timestamp or 0)):
                newest = record
        return newest

    def history(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Iterator[Record]:
        """Every record of a key, in offset order, partition by partition."""
        key, level = check_bytes("key", key), check_isolation(isolation)
        for number in self._choose(partition):
            yield from reversed(list(lookup.history_backwards(self._steady(number), key, level)))

    def offset_for_time(
        self, partition: int = 0, timestamp: Moment = 0, *, isolation: str = "read_uncommitted"
    ) -> int | None:
        """The first offset whose record is at ``timestamp`` or later; None when there is none.

        The time is given as for `read`.
        """
        time_ms = check_moment("timestamp", timestamp, self._partitions.context.clock.now_ms)
        if time_ms is None:
            raise wrong_type("timestamp", "a time", None)
        found = list_offsets.offset_for_time(self._steady(partition), time_ms, check_isolation(isolation))
        return None if found is None else found.offset

    # -- for a server ----------------------------------------------------------------------------------

    def fetch(
        self,
        partition: int,
        offset: int,
        max_bytes: int,
        isolation: str = "read_uncommitted",
        *,
        minimum_one: bool = True,
    ) -> Fetched:
        """Return whole batches as they lie in the log, from the one that holds ``offset`` on, to be sent on.

        The answer names a range of a segment's file (or holds the bytes, where there is no file) with the
        high watermark, the last stable offset, the log start offset and, for ``read_committed``, the aborted
        transactions. It never goes past what ``isolation`` allows and never beyond one segment. The first
        batch comes even if it is larger than ``max_bytes``, unless ``minimum_one`` is False. At the end it is
        empty. An offset before the log's start or past its written end is an `OffsetOutOfRangeError`.

        The file stays readable until ``release()``, whatever happens to the segment: call it or use ``with``.
        """
        return fetch(
            self._steady(partition),
            check_number("offset", offset),
            check_number("max_bytes", max_bytes, 0),
            check_isolation(isolation),
            minimum_one=minimum_one,
        )

    def list_offset(
        self, partition: int, which: int, *, isolation: str = "read_uncommitted"
    ) -> ListedOffset | None:
        """Return an offset with its record's timestamp and leader epoch, as Kafka's ListOffsets does.

        ``which`` is a timestamp (the first record at it or later) or an `OffsetSpec`, whose numbers are
        Kafka's. None when there is no such offset.
        """
        which, level = check_number("which", which), check_isolation(isolation)
        view = self._view(partition)
        return unmoved(self._partitions, view, list_offsets.list_offset, which, level)

    def end_of_epoch(self, partition: int, leader_epoch: int) -> EpochEnd:
        """Return the largest known leader epoch up to ``leader_epoch`` and the offset where it ends.

        (-1, -1) for an epoch beyond the latest, as Kafka's OffsetsForLeaderEpoch.
        """
        epoch = check_number("leader_epoch", leader_epoch)
        view = self._view(partition)
        return unmoved(self._partitions, view, list_offsets.end_of_epoch, epoch)

    def durable(self, partition: int, end: int) -> Completion:
        """Return a `Completion` that is done when every offset below ``end`` is on disk; never waits itself.

        The store's sync thread does the work, and what is asked for meanwhile shares its next round. A failed
        sync completes it with the error. It syncs what is written by now: an ``end`` past that is reached
        with a later sync, as with `when`.
        """
        return self._on(partition, _durable, check_number("end", end, 0))

    def when(self, partition: int, end: End, offset: int) -> Completion:
        """Return a `Completion` that is done when an end of the log is at or past ``offset``.

        ``end`` is "high_watermark", "last_stable_offset" or "synced". Attach a callback or wait for it; to
        stop waiting, ``cancel()`` it. A store that is closed, or a partition that is moved, completes it with
        `ClosedError`; after a move, ask again.
        """
        return self._on(partition, _when, check_end(end), check_number("offset", offset, 0))

    # -- inside ----------------------------------------------------------------------------------------

    def refresh_writers(self) -> None:
        """Keep the writers at hand, so that an append finds its partition without asking the store."""
        if not self._partitions.read_only:
            self._views = self._partitions.registry.views(self.name)
            only: Any = self._views[0] if len(self._views) == 1 else None
            self._only = only

    def _choose(self, partition: int | None) -> Sequence[int]:
        if partition is None:
            return range(len(self._views) or self.partitions)
        return [check_number("partition", partition)]

    def _no_partition(self, partition: int) -> UnknownPartitionError:
        return UnknownPartitionError(
            f"{self.name} has no partition {partition}; it has 0 to {self.partitions - 1}"
        )

    def _entry(self) -> TopicEntry:
        """Return what the store knows of this topic; UnknownTopicError when it was deleted."""
        try:
            entry = self._partitions.entry(self.name)
        except UnknownTopicError:
            raise UnknownTopicError(f"topic {self.name} was deleted") from None
        if self.entry_id is not None and entry.id != self.entry_id:
            raise UnknownTopicError(
                f"topic {self.name} was deleted, and another one was created under its name; get that one"
                f" with store.topic({self.name!r})"
            )
        return entry

    def _view(self, partition: int) -> PartitionWriter | PartitionFollower:
        if type(partition) is not int:
            partition = check_number("partition", partition)
        partitions, (state, views) = self._partitions, self._seen
        if state is partitions.registry.state and partitions.closed is None and 0 <= partition < len(views):
            view = views[partition]
            if view is not None:
                return view
        try:
            view = partitions.view(self.name, partition)
        except UnknownTopicError:
            self._entry()
            raise
        self._entry()  # behind it: a view of this topic is gone before another topic has its name
        state = partitions.registry.state
        entry = state.entries.get(self.name)
        if entry is not None and self.entry_id in (entry.id, None):
            self._seen = state, state.views.get(self.name, ())
        return view

    def _steady(self, partition: int) -> PartitionWriter | PartitionFollower:
        return steady(self._partitions, self._view(partition))

    def _on(
        self,
        partition: int,
        act: Callable[Concatenate[PartitionWriter, P], T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Run ``act`` on a partition's writer; when that was closed for a move, on the next one."""
        writer = self._writer(partition)
        try:
            return act(writer, *args, **options)
        except ClosedError:
            return self._again(writer, act, *args, **options)
        except FileNotFoundError as error:
            raise missing(writer, error) from error

    def _again(
        self,
        writer: PartitionWriter,
        act: Callable[Concatenate[PartitionWriter, P], T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Run ``act`` once more after a writer was closed: on the writer that took over, if there is one."""
        try:
            return self._partitions.on(writer, act, *args, **options)
        except (ClosedError, UnknownTopicError):
            self._entry()
            raise
        finally:
            self.refresh_writers()

    def _writer(self, partition: int) -> PartitionWriter:
        view = self._view(partition)
        return view if isinstance(view, PartitionWriter) else self._partitions.writer(self.name, partition)


def _append_record(
    writer: PartitionWriter, record: Record, sync: bool, expected: int | None, *, wait: bool = True
) -> Appended:
    try:
        return append_record(writer, record, sync, expected, wait=wait)
    except TypeError as error:
        raise InvalidRecordError(wrong_record(record) or str(error)) from error


def _append_rows(
    writer: PartitionWriter,
    rows: list[Record],
    sync: bool,
    expected: int | None = None,
    *,
    wait: bool = True,
) -> AppendedRange:
    """Append records; one that is not a record is an InvalidRecordError that names it."""
    try:
        return append_records(writer, rows, sync, expected, wait=wait)
    except (TypeError, IndexError, KeyError) as error:
        for index, row in enumerate(rows):
            if (why := wrong_record(row)) is not None:
                raise InvalidRecordError(f"record {index}: {why}") from error
            if len(row) < 2 and writer.admission.needs_key:
                raise writer.admission.keyless() from error
        raise


def wrong_record(row: object) -> str | None:
    """Return why this is not a record, or a tuple that begins like one, as far as value and key tell."""
    if not isinstance(row, tuple):
        return f"it must be a Record, not {type(row).__name__}"
    if not row:
        return "an empty tuple has no value"
    for name, part in zip(("value", "key"), row, strict=False):
        if not isinstance(part, bytes | None):
            return f"{name} must be bytes or None, not {type(part).__name__}"
    return None


def _flush(writer: PartitionWriter) -> None:
    if isinstance(writer.ends.error, ClosedError):  # for a move: the next writer is asked
        raise again(writer.ends.error)
    writer.flush()


def _durable(writer: PartitionWriter, end: int) -> Completion:
    return _unless_closed(writer.durable(end))


def _when(writer: PartitionWriter, end: End, offset: int) -> Completion:
    return _unless_closed(writer.ends.when(end, offset))


def _unless_closed(completion: Completion) -> Completion:
    """Raise the error of a completion that was asked for too late, so that the next writer is asked."""
    if isinstance(completion.error, ClosedError):
        raise again(completion.error)
    return completion


def _bound(name: str, value: int | Mapping[int, int] | None, partition: int) -> int | None:
    return check_optional(name, value.get(partition) if isinstance(value, Mapping) else value)


def is_arrow(records: object) -> TypeGuard[Any]:
    """Whether this is an Arrow table or batch, without importing Arrow to find out."""
    if not type(records).__module__.startswith("pyarrow"):
        return False  # asked first: another thread may be in the middle of importing Arrow
    pyarrow = sys.modules["pyarrow"]
    return isinstance(records, pyarrow.Table | pyarrow.RecordBatch)


def arrow_parts(
    table: pa.Table | pa.RecordBatch, partition: int | None, count: int, sticky: Callable[[int, int], int]
) -> Iterator[tuple[int, pa.Table | pa.RecordBatch]]:
    """(partition, rows) in order. A ``partition`` column decides, else the key, else the sticky partition."""
    check_names(table.schema.names)
    if partition is not None or count == 1:
        if table.num_rows:
            yield partition or 0, table
        return
    import pyarrow as pa

    for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
        if not batch.num_rows:
            continue
        if "partition" in batch.schema.names and not batch.column("partition").null_count:
            yield from _split(batch, fitted("partition", batch.column("partition")))
        elif "key" in batch.schema.names:
            yield from _split(batch, _by_key(batch.column("key"), count, sticky))
        else:
            yield sticky(count, batch.nbytes), batch


def _by_key(keys: pa.Array, count: int, sticky: Callable[[int, int], int]) -> pa.Array:
    import pyarrow as pa

    place = kernel.partition_for_key
    numbers = [
        sticky(count, 0) if key is None else place(key, count) for key in fitted("key", keys).to_pylist()
    ]
    return pa.array(numbers, pa.int32())


def _split(batch: pa.RecordBatch, numbers: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow.compute as pc

    for number in sorted(pc.unique(numbers).to_pylist()):
        yield number, batch.filter(pc.equal(numbers, number))
