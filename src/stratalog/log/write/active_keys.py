"""The key index of the active segment, in memory: 64-bit key hash -> offsets.

One packed array of rows in offset order (16 bytes a record), to which an append only adds, and over it a
chained hash table (4 to 8 bytes a record) that is brought up to date by each lookup:

    rows  [h0 o0 h1 o1 h2 o2 ...]   heads  [bucket -> newest row of the bucket, -1 when empty]
                                    older  [row -> the row before it in the same bucket, -1 at the end]

Equal hashes are not equal keys: the caller verifies the key on the record. Touches no disk. A crash loses
it, and recovery builds it again from the batches. When the segment is sealed, its ``.keyindex`` is made from
`arrays`.

One writer may add while any number of threads look up. Rows are added in one step that neither a thread
switch nor a signal can split, so a lookup never sees half a row. Only lookups touch the table, under a lock
of its own: it protects the table alone, is held for memory work only, and no other lock is taken under it. A
lookup does not see offsets that are added after it began; the caller takes the end of the log first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from stratalog import kernel, locks

_FIRST_BUCKETS = 1 << 10


class ActiveKeyIndex:
    """Offsets of the active segment by key hash. Offsets are added in ascending order."""

    __slots__ = ("_heads", "_lock", "_older", "_rows", "add_row")

    def __init__(self) -> None:
        self._rows = array("Q")
        self.add_row = self._rows.frombytes
        """Add one keyed record, a `kernel.key_row`."""
        self._older = array("i")
        self._heads = array("i", [-1]) * _FIRST_BUCKETS
        self._lock = locks.lock("keys")

    def __len__(self) -> int:
        return len(self._rows) // 2

    def extend(self, hashes: array[int], offsets: array[int]) -> None:
        """Add many keyed records: ``array('Q')`` of hashes and ``array('q')`` of offsets, equally long."""
        self.add_row(kernel.key_rows(hashes, offsets))

    def lookup(self, hash64: int) -> list[int]:
        """Return the offsets added with this hash, ascending."""
        found = list(self.newest_first(hash64))
        found.reverse()
        return found

    def newest_first(self, hash64: int) -> Iterator[int]:
        """Yield the offsets added with this hash, newest first.

        Offsets added while it is being consumed are not seen.
        """
        with self._lock:
            self._index()
            rows, older = self._rows, self._older
            row = self._heads[hash64 & (len(self._heads) - 1)]
        while row >= 0:
            if rows[2 * row] == hash64:
                yield rows[2 * row + 1]
            row = older[row]

    def arrays(self) -> tuple[array[int], array[int]]:
        """Return hashes (``array('Q')``) and offsets (``array('q')``), in log order."""
        return self._rows[0::2], array("q", self._rows[1::2].tobytes())

    def _index(self) -> None:
        """Chain the rows added since the last lookup. Under the lock."""
        rows = len(self._rows) // 2
        done = len(self._older)
        if done == rows:
            return
        buckets = len(self._heads)
        if rows > 2 * buckets:
            while rows > buckets:
                buckets *= 2
            heads, older = array("i", [-1]) * buckets, array("i")
            _chain(self._rows[0 : 2 * rows : 2], 0, heads, older)
            self._heads, self._older = heads, older  # lookups that walk the old table keep it
            return
        _chain(self._rows[2 * done : 2 * rows : 2], done, self._heads, self._older)


def _chain(hashes: array[int], first_row: int, heads: array[int], older: array[int]) -> None:
    chain, mask = older.append, len(heads) - 1
    for row, hash64 in enumerate(hashes, first_row):
        bucket = hash64 & mask
        chain(heads[bucket])
        heads[bucket] = row
