"""What cleaning knows of transactions while it goes through a log from its start, by Kafka's rules.

Data of an aborted transaction goes at once. A marker stays as long as a batch of its transaction was met on
the way to it; then it gets a delete horizon, like a tombstone, and goes when that has passed. The entry of
an aborted transaction goes into the index of the segment that holds its marker as long as data of it was met.

Where the way was not seen whole (a damaged segment, segments in the archive below) nothing is concluded from
not having met a batch. Pure memory, touches no disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from stratalog.format.batch import BatchHeader
from stratalog.format.txn_index import AbortedTxn

Marker = Literal["commit", "abort"]


class CleanedTransactions:
    """Fed with every transactional and control batch, in the order of the log.

    ``unseen_below``: batches of transactions may lie below this offset where nobody looks.
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
        """The same state, to come back to when a segment turns out to be damaged."""
        twin = CleanedTransactions((), unseen_below=self._unseen_below)
        twin._aborted, twin._at, twin._blind = self._aborted, self._at, self._blind
        twin._open, twin._met, twin._committed = dict(self._open), set(self._met), set(self._committed)
        twin.entries = list(self.entries)
        return twin

    def pass_over(self) -> None:
        """A segment was not read: from here on a transaction may have data that was not met."""
        self._blind = True

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a data batch; whether it is part of an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        producer = header.producer_id
        txn = self._open.get(producer)
        if txn is None or header.base_offset > txn.last_offset:
            # Past its marker, which lay where nobody looked: another transaction by now.
            self._committed.add(producer)
            return False
        self._met.add(producer)
        return True

    def may_go(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Take in a control batch; whether nothing needs it any more, except for its delete horizon."""
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
