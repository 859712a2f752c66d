"""The rules of compaction: which neighbours are merged, and what becomes of each batch.

Most batches stay while one of their records does. The others are few and are found without looking at every
row: those of transactions, each active producer's last one (its sequence number and epoch must outlive its
records), and the last one of the round, so that the end of the log is not forgotten.

Data of an aborted transaction goes at once. A marker stays as long as a batch of its transaction was met on
the way to it; then it gets a delete horizon, like a tombstone, and goes when that has passed. The index of
the segment that holds an abort marker lists the transaction as long as data of it was met. Where the way was
not seen whole (a damaged segment, segments in the archive below) nothing is concluded from not having met a
batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from stratalog.config import TopicConfig
from stratalog.format import batch as batches
from stratalog.format.batch import BatchHeader
from stratalog.format.batch.filter import (
    DISCARD,
    KEEP_EMPTY,
    START_HORIZON,
    Filtered,
    due_tombstones,
    filter_batches,
    transaction_rows,
)
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.kernel import KeyMap
from stratalog.log.read.chunks import Chunk
from stratalog.log.segment.segment import Segment

MayBeBelow = Callable[[Sequence[bytes]], set[bytes]]
"""Which of these keys an archived segment below may still hold."""


class LastBatches:
    """The last batch of every active producer and the last of the round: they stay, if need be empty."""

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
    """Return a byte for each row, not 0 where the data was aborted; None when none was."""
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
    """Return the filter's flags for the batches of a chunk."""
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
    """`filter_batches` with the rules for one group of segments.

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
        """Return the offsets of expired tombstones that must stay."""
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


Marker = Literal["commit", "abort"]


class CleanedTransactions:
    """Judges transactional and control batches, which it gets in the order of the log.

    ``unseen_below``: batches of transactions may lie below this offset, unseen.
    """

    __slots__ = ("_aborted", "_at", "_blind", "_committed", "_met", "_open", "_unseen_below", "entries")

    def __init__(self, aborted: Iterable[AbortedTxn], *, unseen_below: int = 0) -> None:
        self._aborted = sorted(aborted, key=lambda txn: txn.first_offset)
        self._at = 0
        self._unseen_below = unseen_below
        self._blind = False
        self._open: dict[int, AbortedTxn] = {}  # producer id -> its aborted transaction, as far as begun
        self._met: set[int] = set()  # producer ids with a batch of that transaction met
        self._committed: set[int] = set()  # producer ids with a batch of another transaction met
        self.entries: list[AbortedTxn] = []
        """Aborted transactions for the index of the segment that is being written; the caller takes them."""

    def copy(self) -> CleanedTransactions:
        """Copy the state, to return to it when a segment turns out to be damaged."""
        twin = CleanedTransactions((), unseen_below=self._unseen_below)
        twin._aborted, twin._at, twin._blind = self._aborted, self._at, self._blind
        twin._open, twin._met, twin._committed = dict(self._open), set(self._met), set(self._committed)
        twin.entries = list(self.entries)
        return twin

    def pass_over(self) -> None:
        """Note that a segment was not read: from here on a transaction may have data that was not met."""
        self._blind = True

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a data batch; return whether it is part of an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        producer = header.producer_id
        txn = self._open.get(producer)
        if txn is None or header.base_offset > txn.last_offset:
            # Past its marker, which lay in a part that was not read: another transaction by now.
            self._committed.add(producer)
            return False
        self._met.add(producer)
        return True

    def may_go(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Take in a control batch; return whether it may go, once its delete horizon has passed."""
        self._begin_up_to(header.last_offset)
        producer = header.producer_id
        if marker is None:
            return not header.count  # what an earlier cleaning emptied; or a control record of another kind
        if marker == "commit":
            met = producer in self._committed
            self._committed.discard(producer)
            return not met and not self._blind
        txn = self._open.pop(producer, None)
        met = producer in self._met
        self._met.discard(producer)
        if txn is None or txn.last_offset < header.base_offset:
            return not self._blind
        if met or self._blind or txn.first_offset < self._unseen_below:
            self.entries.append(txn)
            return False
        return True

    def _begin_up_to(self, offset: int) -> None:
        aborted = self._aborted
        while self._at < len(aborted) and aborted[self._at].first_offset <= offset:
            txn = aborted[self._at]
            if txn.producer_id in self._open:
                self._met.discard(txn.producer_id)
            self._open[txn.producer_id] = txn
            self._at += 1


MAX_RELATIVE_OFFSET = 2**31 - 1


def group_segments(
    segments: Sequence[Segment], config: TopicConfig, end: int, *, apart: Collection[Segment] = ()
) -> list[list[Segment]]:
    """Group neighbours that fit into ``segment.bytes``, ``segment.index.bytes`` and 31 bits of offsets.

    Compaction shrinks segments; without merging, a log would end as thousands of tiny files. The sizes before
    cleaning must fit, as Kafka requires. ``end``: the offset before which the last segment's records end.
    Segments in ``apart`` are in no group.
    """
    groups: list[list[Segment]] = []
    total: tuple[int, ...] | None = None
    for at, segment in enumerate(segments):
        if segment in apart:
            total = None
            continue
        sizes = _sizes(segment)
        last = (segments[at + 1].base_offset if at + 1 < len(segments) else end) - 1
        joined = tuple(a + b for a, b in zip(total or sizes, sizes, strict=True))
        # An empty segment needs no index entry; without this one would be left every 2**31 offsets.
        too_far = segment.size and groups and last - groups[-1][0].base_offset > MAX_RELATIVE_OFFSET
        fits = joined[0] <= config.segment_bytes and max(joined[1:]) <= config.segment_index_bytes
        if total is not None and fits and not too_far:
            groups[-1].append(segment)
            total = joined
        else:
            groups.append([segment])
            total = sizes
    return groups


def _sizes(segment: Segment) -> tuple[int, int, int]:
    return segment.size, _size_of(segment, "index"), _size_of(segment, "timeindex")


def _size_of(segment: Segment, kind: str) -> int:
    try:
        return segment.context.fs.stat(segment.path(kind)).size
    except FileNotFoundError:
        return 0
