"""What becomes of each batch of a log that is compacted: Kafka's rules, as flags for the filter.

Most batches need no thought: they stay while one of their records does. The others are few and are found
without looking at every row: those of transactions, each active producer's last one (its sequence number and
epoch must outlive its records), and the last one of the round, so that the end of the log is not forgotten.

Pure memory, apart from asking the writer for its producers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from stratalog.format import batch as batches
from stratalog.format.batch.filter import (
    DISCARD,
    KEEP_EMPTY,
    START_HORIZON,
    Filtered,
    KeyMap,
    due_tombstones,
    filter_batches,
    transaction_rows,
)
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.log.clean.transactions import CleanedTransactions
from stratalog.log.read.chunks import Chunk
from stratalog.log.segment.segment import Segment

MayBeBelow = Callable[[Sequence[bytes]], set[bytes]]
"""Which of these keys an archived segment below may still hold."""


class LastBatches:
    """The last batch of every active producer, and the last of the round: they stay, if need be empty."""

    def __init__(self, producers: Iterable[ProducerEntry], round_end: int) -> None:
        known = list(producers)
        self._round_end = round_end
        self._data = sorted((each.last_offset, each.producer_id) for each in known if each.last_offset >= 0)
        # Without data in its epoch, a producer is known by its marker: fencing depends on that.
        self._markers = {each.producer_id: each.producer_epoch for each in known if each.last_offset < 0}

    def mark(self, chunk: Chunk, flags: bytearray) -> None:
        """Set KEEP_EMPTY where a batch with data is one of them."""
        scan = chunk.scan
        if scan.last_offset + 1 == self._round_end:
            flags[scan.n - 1] |= KEEP_EMPTY
        if not scan.has_producers:
            return
        at = bisect_left(self._data, (scan.first_base_offset, -1))
        while at < len(self._data) and self._data[at][0] <= scan.last_offset:
            offset, producer_id = self._data[at]
            row = scan.find_offset(offset)
            header = scan.header(row)
            if header.last_offset == offset and header.producer_id == producer_id:
                flags[row] |= KEEP_EMPTY
            at += 1

    def is_last_marker(self, header: batches.BatchHeader) -> bool:
        return self._markers.get(header.producer_id) == header.producer_epoch


def skip_aborted(chunk: Chunk, transactions: CleanedTransactions) -> bytearray | None:
    """A byte for each row, not 0 where the data was aborted; None when none was."""
    if not chunk.scan.has_producers:
        return None
    skip: bytearray | None = None
    for row in transaction_rows(chunk.scan):
        header = chunk.scan.header(row)
        if header.is_control:
            transactions.may_go(header, batches.decode_control(chunk.data, header)[0])
        elif transactions.is_aborted(header):
            if skip is None:
                skip = bytearray(chunk.scan.n)
            skip[row] = 1
    return skip


def retention_of(
    chunk: Chunk, transactions: CleanedTransactions, last: LastBatches, now_ms: int
) -> bytearray:
    """The filter's flags for the batches of a chunk."""
    scan = chunk.scan
    flags = bytearray(scan.n)
    last.mark(chunk, flags)
    if not scan.has_producers:
        return flags
    for row in transaction_rows(scan):
        header = scan.header(row)
        if not header.is_control:
            if transactions.is_aborted(header):
                flags[row] |= DISCARD
            continue
        if last.is_last_marker(header):
            flags[row] |= KEEP_EMPTY
        if transactions.may_go(header, batches.decode_control(chunk.data, header)[0]):
            expired = header.has_delete_horizon and header.base_timestamp <= now_ms
            flags[row] |= DISCARD if expired else START_HORIZON
    return flags


class CompactionFilter:
    """`filter_batches` with everything that one group of segments is judged by.

    ``hold_above``: tombstones of segments above this base offset stay, because a segment there could not be
    read and may hold what they delete.
    """

    def __init__(
        self,
        keys: KeyMap,
        transactions: CleanedTransactions,
        last: LastBatches,
        *,
        now_ms: int,
        delete_retention_ms: int,
        may_be_below: MayBeBelow | None = None,
        hold_above: int | None = None,
    ) -> None:
        self._keys = keys
        self._transactions = transactions
        self._last = last
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._may_be_below = may_be_below
        self._hold_above = hold_above

    def __call__(self, segment: Segment, chunk: Chunk) -> Filtered:
        flags = retention_of(chunk, self._transactions, self._last, self._now_ms)
        return filter_batches(
            chunk.data,
            chunk.scan,
            keys=self._keys,
            retention=flags,
            now_ms=self._now_ms,
            delete_retention_ms=self._delete_retention_ms,
            keep_offsets=self._held(segment, chunk, flags),
        )

    def _held(self, segment: Segment, chunk: Chunk, flags: bytearray) -> set[int]:
        """Offsets of tombstones whose time is up and that must stay all the same."""
        all_of_them = self._hold_above is not None and segment.base_offset > self._hold_above
        if not all_of_them and self._may_be_below is None:
            return set()
        due = due_tombstones(chunk.data, chunk.scan, keys=self._keys, now_ms=self._now_ms, retention=flags)
        if not due:
            return set()
        if all_of_them or self._may_be_below is None:
            return {each.offset for each in due}
        below = self._may_be_below([each.key for each in due])
        return {each.offset for each in due if each.key in below}
