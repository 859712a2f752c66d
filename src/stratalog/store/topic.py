"""A topic: appending to its partitions, and reading them by offset, time and key."""

from __future__ import annotations

import datetime as dt
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from stratalog import kernel, locks
from stratalog.analysis.packages import needed
from stratalog.analysis.payloads import Payload, as_payload, decoded
from stratalog.config import TopicConfig
from stratalog.errors import (
    ClosedError,
    InvalidArgumentError,
    StratalogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from stratalog.format.batch.arrow import arrow_parts, is_arrow
from stratalog.format.metadata import id_to_text
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.log.arguments import (
    Moment,
    check_key,
    check_list,
    check_moment,
    check_number,
    check_optional,
    check_seconds,
    check_text,
    check_timestamp,
    not_bytes,
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
from stratalog.log.write.append import append_arrow
from stratalog.log.write.log_end import Completion, End, check_end
from stratalog.log.write.named_errors import append_record, append_rows, append_sequenced
from stratalog.log.write.partitioner import Partitioner
from stratalog.log.write.producers import MAX_SEQUENCE, Origin
from stratalog.log.write.sequenced import Source, named_id
from stratalog.log.write.writer import PartitionWriter
from stratalog.model import Appended, AppendedRange, Header, Record, SegmentInfo
from stratalog.store import moving, reading
from stratalog.store.moving import missing, or_missing, steady, unmoved
from stratalog.store.partitions import HIGH_WATERMARK
from stratalog.store.reading import Offsets, Order, Part, ReadOptions, Records, Selection
from stratalog.store.serde import Deserializer, Serde, SerializedTopic, Serializer

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.log.read.follower import PartitionFollower
    from stratalog.store.catalog import State, TopicEntry, Views
    from stratalog.store.partitions import Partitions

MAX_SCAN_THREADS = 1024
MAX_NAME = 1024
"""Characters in the name of a producer."""

P = ParamSpec("P")
T = TypeVar("T")


class Topic:
    """A topic of an open store. Thread-safe; appends to one partition are serialized."""

    def __init__(self, partitions: Partitions, name: str, entry_id: uuid.UUID | None) -> None:
        self._partitions = partitions
        self.name = name
        self.entry_id = entry_id
        """Tells this topic from one of the same name that is created after it was deleted."""
        self._views: Sequence[PartitionWriter | PartitionFollower | None] = ()
        self._only: PartitionWriter | None = None  # the writer of a topic with one partition
        self._seen: tuple[State | None, Views] = (None, ())
        """The store when this topic was last looked up, and the partitions it had then."""
        self._partitioner = Partitioner()
        self.refresh_writers()

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}, {self.partitions} partitions>"

    def using(
        self,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> SerializedTopic:
        """Return the same topic for keys and values that are not bytes.

        Each is a function or a name: ``str``, ``json``, ``msgspec`` (JSON by that package) or ``bytes``, the
        default. A serializer's name stands for the deserializer too. None is not given to any of them.
        """
        serde = Serde.of(key_serializer, value_serializer, key_deserializer, value_deserializer)
        return SerializedTopic(self, serde)

    # -- facts ---------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self._entry().partitions

    @property
    def deleted(self) -> bool:
        """True when the topic was deleted; another one may have its name now."""
        try:
            self._entry()
        except UnknownTopicError:
            return True
        return False

    @property
    def id(self) -> str | None:
        """The topic id as Kafka writes it."""
        topic_id = self._entry().id
        return None if topic_id is None else id_to_text(topic_id)

    @property
    def config(self) -> TopicConfig:
        """The effective settings."""
        return self._entry().config(self._partitions.config)

    def log_start_offset(self, partition: int = 0) -> int:
        """Return the first offset that can be read."""
        view = self._view(partition)
        view.refresh()
        return view.log_start_offset

    def log_end_offset(self, partition: int = 0) -> int:
        """Return the offset of the next record; in a store that another process writes, as far as visible."""
        view = self._view(partition)
        view.refresh()
        return view.next_offset

    def high_watermark(self, partition: int = 0, isolation: str = "read_uncommitted") -> int:
        """Return the first offset not visible to readers; with ``read_committed`` the last stable offset."""
        view = self._view(partition)
        view.refresh()
        return view.end_offset(check_isolation(isolation))

    def segments(self, partition: int | None = None, *, deleted: bool = False) -> list[SegmentInfo]:
        """Return every segment with its state, offsets and size, in order.

        With ``deleted`` also deleted ones whose files are kept for ``file.delete.delay.ms``.
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
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """Append one record. Return after the write, or with ``sync`` after the sync to disk.

        ``timestamp`` is epoch milliseconds or a datetime with a time zone; None means now.
        Without ``partition`` it is chosen by key, as in the Java client; records without a key go to one
        partition for a while, then to another one.

        ``expected_offset`` is the offset that the record must get, the log end offset of its partition. If
        another append came first, nothing is written and `ConflictError` has the actual end. In a topic with
        several partitions it needs ``partition`` or a key.

        ``producer`` and ``sequence`` make the append idempotent: the caller has a name and numbers its
        records in each partition consecutively. A sequence that is already in the log is not written again,
        and its offset is returned; a gap raises `OutOfOrderSequenceError`.
        """
        only = self._only
        if timestamp is not None and type(timestamp) is not int:
            timestamp = check_timestamp("timestamp", timestamp)
        if expected_offset is not None or producer is not None or sequence is not None:
            record = Record(value, key, headers, timestamp)
            source = self._source(producer, sequence, expected_offset)
            if source is not None:
                return self._append_named(record, partition, source, sync)
            expected = check_number("expected_offset", expected_offset, 0)
            number = self._partition_of("expected_offset", record, partition)
            return self._on(number, append_record, record, sync, expected)
        if only is not None and (partition is None or (partition == 0 and type(partition) is int)):
            try:
                placed = None if sync else only.append_simple(value, key, headers, timestamp)
                return placed or only.append_one(value, key, headers, timestamp, sync)
            except ClosedError:
                return self._again(only, PartitionWriter.append_one, value, key, headers, timestamp, sync)
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
                        partition = self._partitioner.sticky(count, 0 if value is None else len(value))
                except TypeError:
                    name, bad = ("value", value) if key is None else ("key", key)
                    raise not_bytes(name, bad) from None
        elif type(partition) is not int:
            partition = check_number("partition", partition)
        writers = self._views
        if 0 <= partition < len(writers):
            writer: Any = writers[partition]
            if writer is not None:
                try:
                    placed = None if sync else writer.append_simple(value, key, headers, timestamp)
                    return placed or writer.append_one(value, key, headers, timestamp, sync)  # type: ignore[no-any-return]
                except ClosedError:
                    one = PartitionWriter.append_one
                    return self._again(writer, one, value, key, headers, timestamp, sync)
                except FileNotFoundError as error:
                    raise missing(writer, error) from error
        return self._on(partition, PartitionWriter.append_one, value, key, headers, timestamp, sync)

    @staticmethod
    def _source(producer: Any, sequence: Any, expected_offset: int | None) -> Source | None:
        """Return who appends, by the arguments of a call; None when it names no producer."""
        if producer is None and sequence is None:
            return None
        if producer is None or sequence is None:
            raise InvalidArgumentError("producer and sequence go together: pass both")
        if expected_offset is not None:
            raise InvalidArgumentError("expected_offset does not go with producer and sequence")
        return Source.named(_check_name(producer), check_number("sequence", sequence, 0, MAX_SEQUENCE))

    def _append_named(self, record: Record, partition: int | None, source: Source, sync: bool) -> Appended:
        number = self._partition_of("sequence", record, partition)
        (placed,) = self._on(number, append_sequenced, [record], source, sync)
        return self.appended(placed)

    def appended(self, placed: AppendedRange) -> Appended:
        """Return where one record is that is in the log; its timestamp is -1 if it cannot be read now.

        An append that is done must not fail because its record was deleted or damaged since.
        """
        found: Record | None = None
        with suppress(StratalogError, OSError):
            found = self.at(placed.offset, placed.partition)
        stamp = None if found is None else found.timestamp
        return Appended(placed.partition, placed.offset, -1 if stamp is None else stamp)

    def _partition_of(self, argument: str, record: Record, partition: int | None) -> int:
        """Return the partition of a record that is appended with an argument about one partition."""
        if partition is not None:
            return check_number("partition", partition)
        if record.key is None and (len(self._views) or self.partitions) > 1:
            raise InvalidArgumentError(f"{argument} is about one partition; pass partition= or a key")
        return self._place(record)

    def last_sequence(self, producer: str, partition: int = 0) -> int | None:
        """Return the last sequence that a named producer appended to a partition; None if there is none.

        After a restart a producer continues with the next one.
        """
        found = self._on(partition, _last_sequence, named_id(_check_name(producer)))
        return None if found < 0 else found

    def append_many(
        self,
        records: Iterable[Record] | pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> list[AppendedRange]:
        """Append records, or an Arrow table with the columns of `scan`, in as few batches as fit.

        Return a range for each partition that got records. The order of the records is kept within a
        partition. If the append to a partition fails, records already written to others stay.
        ``expected_offset`` is the offset that the first record must get, as for `append`; then all records go
        to one partition.

        ``producer`` and ``sequence`` are as for `append`: the first record has ``sequence``, each further one
        the next number, all in one partition. Records that are already in the log are not written again. Then
        several ranges may be returned; together they are all records in order.
        """
        if partition is not None:
            partition = check_number("partition", partition)
        if producer is not None or sequence is not None:
            number = self._one_partition("sequence", partition)
            if not is_arrow(records):
                records = check_list("records", records, "records")
            source = self._source(producer, sequence, expected_offset)
            assert source is not None
            return self._on(number, append_sequenced, records, source, sync) if len(records) else []
        expected = self._expected(expected_offset, partition)
        only, put = None if partition else self._only, append_rows
        if type(records) is list:
            rows: Any = records
        elif not is_arrow(records):
            rows = check_list("records", records, "records")
        elif only is None or not len(records):
            return self._append_arrow(records, partition, sync, expected)
        else:
            rows, put = records, append_arrow  # type: ignore[assignment]
        if expected is not None:
            placed = self._on(partition or 0, put, rows, sync, expected)
            return [placed] if len(rows) else []
        if not len(rows):
            return []
        if only is not None:
            try:
                return [put(only, rows, sync)]
            except ClosedError:
                return [self._again(only, put, rows, sync)]
            except FileNotFoundError as error:
                raise missing(only, error) from error
        count = len(self._views) or self.partitions
        if partition is not None or count == 1:
            return [self._on(partition or 0, append_rows, rows, sync)]
        groups = self._partitioner.group(rows, count)
        ranges = [self._on(number, append_rows, group, False) for number, group in groups.items()]
        self._sync_all(ranges, sync)
        return ranges

    def _append_arrow(
        self, table: Any, partition: int | None, sync: bool, expected: int | None
    ) -> list[AppendedRange]:
        count = self.partitions
        ranges: dict[int, AppendedRange] = {}
        for number, part in arrow_parts(table, partition, count, self._partitioner.sticky):
            if not 0 <= number < count:
                raise self._no_partition(number)
            placed = self._on(number, append_arrow, part, False, expected)
            first = ranges.get(number, placed).offset
            ranges[number] = AppendedRange(number, first, placed.offset + placed.count - first)
        self._sync_all(list(ranges.values()), sync)
        return list(ranges.values())

    def _sync_all(self, ranges: list[AppendedRange], sync: bool) -> None:
        for placed in ranges:
            if sync and placed.count:
                self._on(placed.partition, PartitionWriter.acknowledge, placed.offset + placed.count, True)

    def by_partition(self, records: list[Record]) -> dict[int, list[Record]]:
        """Choose the partition of each record, as `append_many` does."""
        return self._partitioner.group(records, len(self._views) or self.partitions)

    def _place(self, record: Record) -> int:
        """Choose the partition of a record."""
        return int(next(iter(self.by_partition([record]))))

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
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """`append` for an event loop: waiting for the disk does not block the loop.

        Concurrent calls share one fsync. If it is cancelled, the record may still be written.
        """
        if timestamp is not None:
            timestamp = check_timestamp("timestamp", timestamp)
        record = Record(value, key, headers, timestamp)
        expected = check_optional("expected_offset", expected_offset, 0)
        source = self._source(producer, sequence, expected_offset)
        if source is not None:
            number = self._partition_of("sequence", record, partition)
            (found,) = await self._aput_sequenced(number, [record], source, sync)
            return self.appended(found)
        if expected is not None:
            partition = self._partition_of("expected_offset", record, partition)
        elif partition is None:
            partition = self._place(record)
        put = partial(append_record, record=record, sync=False, expected=expected, wait=False)
        placed = await self._put(partition, put)
        await self._acknowledged([AppendedRange(partition, placed.offset, 1)], sync)
        return placed

    async def aappend_many(
        self,
        records: Iterable[Record],
        *,
        partition: int | None = None,
        sync: bool = False,
        expected_offset: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> list[AppendedRange]:
        """`append_many` for an event loop; see `aappend`. Not for Arrow tables."""
        if is_arrow(records):
            raise wrong_type("records", "a list of records", records).advising(
                "append an Arrow table with asyncio.to_thread(topic.append_many, table)"
            )
        expected = self._expected(expected_offset, partition)
        rows = records if isinstance(records, list) else check_list("records", records, "records")
        source = self._source(producer, sequence, expected_offset)
        if source is not None:
            number = self._one_partition("sequence", partition)
            return await self._aput_sequenced(number, rows, source, sync) if rows else []
        groups = (
            self.by_partition(rows) if partition is None else {check_number("partition", partition): rows}
        )
        ranges = []
        for at, group in groups.items():
            if group:
                put = partial(append_rows, rows=group, sync=False, expected=expected, wait=False)
                ranges.append(await self._put(at, put))
        await self._acknowledged(ranges, sync)
        return ranges

    async def _aput_sequenced(
        self, partition: int, rows: list[Record], source: Source, sync: bool
    ) -> list[AppendedRange]:
        put = partial(append_sequenced, records=rows, source=source, sync=False, wait=False)
        ranges = await self._put(partition, put)
        await self._acknowledged(ranges[-1:], sync)
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
        if expected is not None:
            self._one_partition("expected_offset", partition)
        return expected

    def _one_partition(self, argument: str, partition: int | None) -> int:
        """Return the partition of an argument that is about one."""
        if partition is None and (len(self._views) or self.partitions) > 1:
            raise InvalidArgumentError(f"{argument} is about one partition; pass partition= too")
        return check_number("partition", partition or 0)

    async def _acknowledged(self, ranges: list[AppendedRange], sync: bool) -> None:
        """Wait for the disk, for all partitions at the same time."""
        ends = [(placed.partition, placed.offset + placed.count) for placed in ranges]
        waits = [(*at, self._writer(at[0]).acknowledgement(at[1], sync)) for at in ends]
        try:
            for at, end, completion in waits:
                if completion is not None:
                    await reading.done(completion, partial(self._on, at, moving.durable, end))
        finally:
            for *_, completion in waits:
                if completion is not None:
                    completion.cancel()

    def append_batches(
        self,
        partition: int,
        data: bytes | bytearray | memoryview,
        *,
        sync: bool = False,
        origin: Origin = "client",
        wait: bool = True,
        guard: produce.Guard | None = None,
    ) -> produce.BatchesAppended:
        """Append ready-made RecordBatch v2 bytes, fully checked; idempotent producers are deduplicated.

        A writable buffer is not copied: offsets are patched in it. Without ``wait`` this returns when the
        batches are written, however durable the settings want them. ``guard`` may refuse a batch.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise wrong_type("data", "bytes, a bytearray or a memoryview", data)
        if isinstance(data, memoryview) and not (data.format == "B" and data.c_contiguous and data.ndim == 1):
            raise wrong_type("data", "bytes in a row", data).advising("copy them with bytes(data)")
        return self._on(
            partition, produce.append_batches, data, sync=sync, origin=origin, wait=wait, guard=guard
        )

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

    def append_from(self, source: Source, partition: int, records: list[Record]) -> list[AppendedRange]:
        """Append records of a producer that keeps its own id, epoch and sequences."""
        return self._on(partition, append_sequenced, records, source, False)

    def open_transactions(self, partition: int = 0) -> dict[int, int]:
        """Return the first offset of each open transaction in a partition, by producer id."""
        return self._on(partition, _open_transactions)

    def producers(self, partition: int = 0) -> list[ProducerEntry]:
        """Return the producers that a partition keeps, by id."""
        return self._on(partition, _producers)

    def roll(self, partition: int | None = None) -> int:
        """Seal the active segments now; return how many were not empty."""
        return sum(self._on(each, PartitionWriter.roll) for each in self._choose(partition))

    def flush(self, partition: int | None = None) -> None:
        """Sync everything appended so far to disk."""
        for each in self._choose(partition):
            self._on(each, moving.flush)

    def delete_records(self, partition: int, before_offset: int) -> int:
        """Move the log start offset up to ``before_offset``; return the new log start offset.

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
        """Return an iterator over the records of all partitions, or of those given.

        Several partitions are merged by timestamp; with ``order="partition"`` they follow one another.
        ``start`` and ``end`` (exclusive) are offsets: a number for a single partition, or a mapping from
        partition to offset. Without ``start`` it begins at the log start; a ``start`` outside the log raises
        `OffsetOutOfRangeError` immediately. ``since`` and ``until`` (exclusive) select by timestamp: a
        datetime with a time zone, ISO 8601 text, ``-10m``, or epoch milliseconds.

        ``follow`` waits for more records, also of partitions added later, until `Records.close` is called,
        ``stop`` is set, or no record arrived for ``timeout_s`` seconds. Gaps that compaction or transactions
        left in the offsets are skipped. If records are deleted before they are read, `OffsetOutOfRangeError`
        is raised, as for a Kafka consumer; its ``first`` is the offset to continue from. ``skip_damaged``
        continues after corrupt batches instead of raising; if it is a function, it is called with each
        skipped `Damage`.
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
        """Return a partition for a reader with its own position; OffsetOutOfRangeError outside the log."""
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
        """Return the record at ``offset``; None for a gap, a transaction marker or the end of the log.

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
        """Return Arrow record batches: partitions one after the other, each in offset order.

        Offsets [start, end), for all partitions or by partition; times [since, until) as for `read`, by
        each record's own timestamp. ``columns`` selects and orders the columns; others are not decoded.
        If records are deleted before they are read, `OffsetOutOfRangeError` is raised, as for `read`.
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

    def to_arrow(
        self,
        partitions: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        key_format: Payload | str | None = None,
        value_format: Payload | str | None = None,
        **selection: Unpack[Selection],
    ) -> pa.Table:
        """Return the result of `scan` with the same arguments as a Table; decode keys and values if asked."""
        formats = {"key": as_payload(key_format), "value": as_payload(value_format)}
        names = None if columns is None else check_list("columns", columns, "names")
        return decoded(lambda names: self.scan(partitions, names, **selection), names, formats).read_all()

    def to_pandas(self, *selected: Sequence[Any] | None, **selection: Any) -> Any:
        """Like `to_arrow`, but return a pandas.DataFrame; needs pandas."""
        needed("pandas", "to_pandas()")
        return self.to_arrow(*selected, **selection).to_pandas()

    def to_polars(self, *selected: Sequence[Any] | None, **selection: Any) -> Any:
        """Like `to_arrow`, but return a polars.DataFrame; needs polars."""
        polars = needed("polars", "to_polars()")
        return polars.from_arrow(self.to_arrow(*selected, **selection))

    def get(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Record | None:
        """Return the latest record of a key, maybe a tombstone (its value is None); None if there is none.

        In more than one partition the newest by timestamp wins. Quick with ``key.index.enable``.
        """
        key, level = check_key(key), check_isolation(isolation)
        newest: Record | None = None
        for number in self._choose(partition):
            record = unmoved(self._partitions, self._view(number), lookup.newest, key, level)
            if record is not None and (newest is None or (record.timestamp or 0) > (newest.timestamp or 0)):
                newest = record
        return newest

    def history(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Iterator[Record]:
        """Return every record of a key, in offset order, partition by partition."""
        key, level = check_key(key), check_isolation(isolation)
        for number in self._choose(partition):
            yield from reversed(list(lookup.history_backwards(self._steady(number), key, level)))

    def offset_for_time(
        self, partition: int = 0, timestamp: Moment = 0, *, isolation: str = "read_uncommitted"
    ) -> int | None:
        """Return the first offset whose record has this ``timestamp`` or a later one; None if there is none.

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
        """Return whole batches as stored in the log, starting with the one that contains ``offset``.

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
        """Return a `Completion` that is done when every offset below ``end`` is on disk; does not wait.

        The store's sync threads do the work, and requests made meanwhile share the next round. A failed
        sync completes it with the error. It syncs what is written by now: an ``end`` past that is reached
        with a later sync, as with `when`.
        """
        return self._on(partition, moving.durable, check_number("end", end, 0))

    def when(self, partition: int, end: End, offset: int) -> Completion:
        """Return a `Completion` that is done when an end of the log reaches ``offset``.

        ``end`` is "high_watermark", "last_stable_offset" or "synced". Attach a callback or wait for it; to
        stop waiting, ``cancel()`` it. A store that is closed, or a partition that is moved, completes it with
        `ClosedError`; after a move, ask again.
        """
        return self._on(partition, moving.when, check_end(end), check_number("offset", offset, 0))

    # -- inside ----------------------------------------------------------------------------------------

    def refresh_writers(self) -> None:
        """Keep the writers at hand, so that an append finds its partition without asking the store."""
        if not self._partitions.read_only:
            state = self._partitions.registry.state
            entry = state.entries.get(self.name)
            same = entry is not None and self.entry_id in (entry.id, None)
            self._views = state.views.get(self.name, ()) if same else ()
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
        """Return this topic's entry in the store; UnknownTopicError when it was deleted."""
        try:
            entry = self._partitions.entry(self.name)
        except UnknownTopicError:
            raise UnknownTopicError(f"topic {self.name} was deleted") from None
        if self.entry_id is not None and entry.id != self.entry_id:
            raise UnknownTopicError(
                f"topic {self.name} was deleted, and another one was created under its name"
            ).advising(f"get that one with store.topic({self.name!r})")
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


def name_of(topic: Any, partitions: Partitions) -> Any:
    """Return the name of a topic that is given as a name, or as a topic of this store."""
    given = topic.topic if isinstance(topic, SerializedTopic) else topic
    if not isinstance(given, Topic):
        return given
    if given._partitions is not partitions:
        raise InvalidArgumentError(f"topic {given.name} is of another store")
    given._entry()
    return given.name


def _last_sequence(writer: PartitionWriter, producer_id: int) -> int:
    return writer.exclusively(lambda: writer.producers.last_sequence(producer_id))


def _open_transactions(writer: PartitionWriter) -> dict[int, int]:
    return writer.exclusively(lambda: {each: at for at, each in writer.producers.open_txns().items()})


def _producers(writer: PartitionWriter) -> list[ProducerEntry]:
    return writer.exclusively(writer.producers.to_entries)


def _check_name(producer: Any) -> str:
    if not 0 < len(check_text("producer", producer)) <= MAX_NAME:
        raise InvalidArgumentError(f"producer is a name of 1 to {MAX_NAME} characters")
    return str(producer)


def _bound(name: str, value: int | Mapping[int, int] | None, partition: int) -> int | None:
    return check_optional(name, value.get(partition) if isinstance(value, Mapping) else value)
