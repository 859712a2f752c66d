"""A topic: its partitions behind one door, for appending and for reading by offset, time and key."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.errors import InvalidArgumentError, InvalidRecordError, UnknownPartitionError
from stratalog.format.metadata import id_to_text
from stratalog.log import door, lookup
from stratalog.log.arrow_scan import ScanOptions, ScanRange, check_columns, scan_to_arrow
from stratalog.log.point import read_one, record_at
from stratalog.log.reader import check_isolation, check_start, read_records
from stratalog.log.states import segment_states
from stratalog.model import Appended, AppendedRange, Header, Record, SegmentInfo
from stratalog.store.routing import arrow_parts, is_arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.log.follower import PartitionFollower
    from stratalog.log.writer import PartitionWriter
    from stratalog.store.partitions import Partitions

STICKY_BYTES = 16 << 10
"""Keyless records stay with one partition for so many bytes, as a Kafka producer's do for a batch."""


class Topic:
    """A topic of an open store. Thread-safe; appends to one partition take turns, partitions do not."""

    def __init__(self, partitions: Partitions, name: str) -> None:
        self._partitions = partitions
        self.name = name
        self._views: list[PartitionWriter | PartitionFollower | None] = []
        self._only: PartitionWriter | None = None  # the writer of a topic with one partition
        self._sticky = 0
        self._sticky_left = STICKY_BYTES
        self._sticky_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Topic {self.name!r}, {self.partitions} partitions>"

    # -- facts ---------------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return self._partitions.entry(self.name).partitions

    @property
    def id(self) -> str | None:
        """The topic id as Kafka writes it."""
        topic_id = self._partitions.entry(self.name).id
        return None if topic_id is None else id_to_text(topic_id)

    @property
    def config(self) -> TopicConfig:
        """The settings in force."""
        return self._partitions.entry(self.name).config(self._partitions.config)

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
        return [
            info
            for each in self._choose(partition)
            for info in segment_states(self._view(each), deleted=deleted)
        ]

    def size_bytes(self, partition: int | None = None) -> int:
        return sum(
            info.size_bytes for each in self._choose(partition) for info in self._view(each).segment_infos()
        )

    # -- writing ---------------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        *,
        partition: int | None = None,
        sync: bool = False,
    ) -> Appended:
        """Append one record. Returns after its write, or with ``sync`` when it is on disk.

        Without ``partition`` the key decides, as in the Java client; without a key too, the topic sticks
        to one partition for a while.
        """
        only = self._only
        if only is not None and (partition is None or partition == 0):
            return only.append_one(value, key, headers, timestamp, sync)
        if partition is None:
            count = len(self._views) or self.partitions
            if count == 1:
                partition = 0
            elif key is not None:
                partition = kernel.partition_for_key(key, count)
            else:
                partition = self._sticky_partition(count, 0 if value is None else len(value))
        writers = self._views
        if 0 <= partition < len(writers):
            writer: Any = writers[partition]
            if writer is not None:
                return writer.append_one(value, key, headers, timestamp, sync)  # type: ignore[no-any-return]
        return self._writer(partition).append_one(value, key, headers, timestamp, sync)

    def append_many(
        self,
        records: Iterable[Record] | pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        sync: bool = False,
    ) -> list[AppendedRange]:
        """Append records, or an Arrow table with the columns of `scan`, in as few batches as fit.

        Returns a range for each partition that got records. The order of the records is kept within a
        partition. When a partition fails, what went to those before it stays.
        """
        if type(records) is not list and is_arrow(records):
            return self._append_arrow(records, partition, sync)
        rows = records if isinstance(records, list) else list(records)
        if not rows:
            return []
        only = self._only
        if only is not None and (partition is None or partition == 0):
            return [only.append_records(rows, sync)]
        count = self.partitions
        if partition is not None or count == 1:
            return [self._writer(partition or 0).append_records(rows, sync)]
        groups = self._group(rows, count)
        ranges = [self._writer(number).append_records(group, False) for number, group in groups.items()]
        self._sync_all(ranges, sync)
        return ranges

    def _append_arrow(self, table: Any, partition: int | None, sync: bool) -> list[AppendedRange]:
        count = self.partitions
        ranges: dict[int, AppendedRange] = {}
        for number, part in arrow_parts(table, partition, count, self._sticky_partition):
            if not 0 <= number < count:
                raise self._no_partition(number)
            placed = self._writer(number).append_arrow(part, False)
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
                self._writer(placed.partition).acknowledge(placed.offset + placed.count, True)

    def _group(self, rows: list[Record], count: int) -> dict[int, list[Record]]:
        groups: dict[int, list[Record]] = {}
        for index, row in enumerate(rows):
            try:
                key = row[1]
                if key is None:
                    value = row[0]
                    number = self._sticky_partition(count, 0 if value is None else len(value))
                else:
                    number = kernel.partition_for_key(key, count)
            except (TypeError, IndexError) as error:
                raise InvalidRecordError(f"record {index}: {error}") from error
            groups.setdefault(number, []).append(row)
        return groups

    def _sticky_partition(self, count: int, size: int) -> int:
        with self._sticky_lock:
            if self._sticky_left <= 0 or self._sticky >= count:
                others = count - 1
                self._sticky = (self._sticky + 1 + random.randrange(others)) % count if others else 0
                self._sticky_left = STICKY_BYTES
            self._sticky_left -= size + 70
            return self._sticky

    def append_batches(self, partition: int, data: bytes, *, sync: bool = False) -> door.BatchesAppended:
        """Append ready-made RecordBatch v2 bytes, fully checked; idempotent producers are deduplicated."""
        return door.append_batches(self._writer(partition), data, sync=sync)

    def end_transaction(
        self,
        partition: int,
        *,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int = 0,
        sync: bool = False,
    ) -> door.BatchesAppended:
        """Write the marker that ends a producer's transaction in one partition."""
        return door.append_marker(
            self._writer(partition),
            "commit" if commit else "abort",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            sync=sync,
        )

    def roll(self, partition: int | None = None) -> int:
        """Seal the active segments here and now; returns how many held anything."""
        return sum(self._writer(each).roll() for each in self._choose(partition))

    def flush(self, partition: int | None = None) -> None:
        """Make everything appended so far durable."""
        for each in self._choose(partition):
            self._writer(each).flush()

    def delete_records(self, partition: int, before_offset: int) -> int:
        """Move the log start offset up to ``before_offset``; returns the new log start offset."""
        return self._partitions.delete_records(self.name, partition, before_offset)

    # -- reading ---------------------------------------------------------------------------------------

    def read(
        self,
        partition: int = 0,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = "read_uncommitted",
        follow: bool = False,
        timeout_s: float | None = None,
        skip_damaged: bool = False,
    ) -> Iterator[Record]:
        """Records of one partition with offsets in [start, end), lazily.

        ``start`` None is the log's start; outside the log it is an `OffsetOutOfRangeError`, raised at once.
        ``follow`` waits for more, for ``timeout_s`` at a time when given. Offsets that compaction or
        transactions left empty are skipped: the next record's offset shows the gap. ``skip_damaged``
        goes on behind corrupt batches instead of raising.
        """
        view = self._view(partition)
        level = check_isolation(isolation)
        view.refresh()
        if start is not None:
            check_start(view, start, level)
            if end == start + 1 and not follow and not skip_damaged:
                return read_one(view, start, level)
        return read_records(
            view,
            start,
            end,
            isolation=level,
            follow=follow,
            skip_damaged=skip_damaged,
            poll_timeout_s=timeout_s,
        )

    def at(self, offset: int, partition: int = 0, *, isolation: str = "read_uncommitted") -> Record | None:
        """The record at ``offset``; None where there is none: a gap, a marker, or the end of the log.

        Outside the log it is an `OffsetOutOfRangeError`, as for `read`.
        """
        view = self._view(partition)
        level = check_isolation(isolation)
        view.refresh()
        check_start(view, offset, level)
        return record_at(view, offset, level)

    def scan(
        self,
        partitions: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        start: int | Mapping[int, int] | None = None,
        end: int | Mapping[int, int] | None = None,
        since: int | None = None,
        until: int | None = None,
        isolation: str = "read_uncommitted",
        threads: int = 0,
    ) -> pa.RecordBatchReader:
        """Arrow record batches: partitions one after the other, each in offset order.

        Offsets [start, end), for all partitions or by partition; times [since, until) in milliseconds, by
        each record's own timestamp. ``columns`` chooses and orders; what is not asked for is not decoded.
        """
        import pyarrow as pa

        level = check_isolation(isolation)
        options = ScanOptions(check_columns(columns), since, until, level, threads)
        ranges = []
        for number in self._choose(None) if partitions is None else partitions:
            view = self._view(number)
            view.refresh()
            first, last = _bound(start, number), _bound(end, number)
            if first is not None:
                check_start(view, first, level)
            visible = view.end_offset(level)
            ranges.append(
                ScanRange(
                    view,
                    view.log_start_offset if first is None else first,
                    visible if last is None else min(last, visible),
                )
            )
        return pa.RecordBatchReader.from_batches(options.schema, scan_to_arrow(ranges, options))

    def get(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Record | None:
        """The latest record of a key (a tombstone too: its value is None), or None when there is none.

        In more than one partition the newest by timestamp wins. Quick with ``key.index.enable``.
        """
        level = check_isolation(isolation)
        newest: Record | None = None
        for number in self._choose(partition):
            record = next(lookup.history_backwards(self._view(number), key, level), None)
            if record is not None and (newest is None or (record.timestamp or 0) > (newest.timestamp or 0)):
                newest = record
        return newest

    def history(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Iterator[Record]:
        """Every record of a key, in offset order, partition by partition."""
        level = check_isolation(isolation)
        for number in self._choose(partition):
            yield from reversed(list(lookup.history_backwards(self._view(number), key, level)))

    def offset_for_time(
        self, partition: int = 0, timestamp: int = 0, *, isolation: str = "read_uncommitted"
    ) -> int | None:
        """The first offset whose record is at ``timestamp`` (ms) or later; None when there is none."""
        return lookup.offset_for_time(self._view(partition), timestamp, check_isolation(isolation))

    # -- inside ----------------------------------------------------------------------------------------

    def refresh_writers(self) -> None:
        """Keep the writers at hand, so that an append finds its partition without asking the store."""
        if not self._partitions.read_only:
            views = self._partitions.views
            self._views = [views.get((self.name, number)) for number in range(self.partitions)]
            only: Any = self._views[0] if len(self._views) == 1 else None
            self._only = only

    def _choose(self, partition: int | None) -> list[int]:
        return list(range(self.partitions)) if partition is None else [partition]

    def _no_partition(self, partition: int) -> UnknownPartitionError:
        return UnknownPartitionError(
            f"{self.name} has no partition {partition}; it has 0 to {self.partitions - 1}"
        )

    def _view(self, partition: int) -> PartitionWriter | PartitionFollower:
        if not isinstance(partition, int):
            raise InvalidArgumentError(f"a partition is a number, not {partition!r}")
        return self._partitions.view(self.name, partition)

    def _writer(self, partition: int) -> PartitionWriter:
        return self._partitions.writer(self.name, partition)


def _bound(value: int | Mapping[int, int] | None, partition: int) -> int | None:
    return value.get(partition) if isinstance(value, Mapping) else value
