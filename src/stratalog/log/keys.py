"""The key index of the active segment, in memory: 64-bit key hash -> offsets.

Two packed arrays in offset order (16 bytes a record), to which an append only adds, and over them a
chained hash table (4 to 8 bytes a record) that is brought up to date when somebody looks a key up:

    hashes   [h0 h1 h2 h3 ...]      heads  [bucket -> newest row of the bucket, -1 when empty]
    offsets  [o0 o1 o2 o3 ...]      older  [row -> the row before it in the same bucket, -1 at the end]

Equal hashes are not equal keys: whoever asks verifies the key on the record. Touches no disk and is not
thread-safe by itself; the partition's lock guards it. A crash loses it, and recovery builds it anew from
the batches. When the segment is sealed, `sorted_arrays` is what its ``.keyindex`` is made of.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_FIRST_BUCKETS = 1 << 10
_ARROW_SORT_ROWS = 1 << 16  # below this, importing pyarrow costs more than it saves


class ActiveKeyIndex:
    """Offsets of the active segment by key hash. Offsets are added in ascending order."""

    __slots__ = ("_add_hash", "_add_offset", "_hashes", "_heads", "_offsets", "_older")

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._offsets = array("q")
        self._add_hash = self._hashes.append
        self._add_offset = self._offsets.append
        self._older = array("i")
        self._heads = array("i", [-1]) * _FIRST_BUCKETS

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, hash64: int, offset: int) -> None:
        """One keyed record. Two array appends: the table waits for the next lookup."""
        self._add_hash(hash64)
        self._add_offset(offset)

    def extend(self, hashes: array[int], offsets: array[int]) -> None:
        """Many keyed records: ``array('Q')`` of hashes and ``array('q')`` of offsets, equally long."""
        if len(hashes) != len(offsets):
            raise ValueError(f"{len(hashes)} hashes for {len(offsets)} offsets")
        self._hashes.extend(hashes)
        self._offsets.extend(offsets)

    def lookup(self, hash64: int) -> list[int]:
        """The offsets added with this hash, ascending."""
        found = list(self.newest_first(hash64))
        found.reverse()
        return found

    def newest_first(self, hash64: int) -> Iterator[int]:
        """The same from the newest down, one at a time: the latest record of a key is mostly the first.

        What is added while it is being consumed is not seen.
        """
        self._index()
        heads, older, hashes, offsets = self._heads, self._older, self._hashes, self._offsets
        row = heads[hash64 & (len(heads) - 1)]
        while row >= 0:
            if hashes[row] == hash64:
                yield offsets[row]
            row = older[row]

    def truncate(self, end_offset: int) -> None:
        """Forget every offset at or above ``end_offset``: an append was taken back."""
        offsets = self._offsets
        keep = len(offsets)
        while keep and offsets[keep - 1] >= end_offset:
            keep -= 1
        del self._hashes[keep:], offsets[keep:]
        if keep < len(self._older):
            self._rebuild(len(self._heads))

    def sorted_arrays(self) -> tuple[array[int], array[int]]:
        """Hashes (``array('Q')``) and offsets (``array('q')``) sorted by hash, then offset."""
        # Both sorts are stable and rows are in offset order already.
        if len(self._hashes) >= _ARROW_SORT_ROWS:
            return _arrow_sorted(self._hashes, self._offsets)
        return _plain_sorted(self._hashes, self._offsets)

    def _index(self) -> None:
        """Chain the rows added since the last lookup."""
        rows = len(self._hashes)
        done = len(self._older)
        if done == rows:
            return
        buckets = len(self._heads)
        if rows > 2 * buckets:
            while rows > buckets:
                buckets *= 2
            self._rebuild(buckets)
            return
        heads = self._heads
        chain = self._older.append
        mask = buckets - 1
        for row in range(done, rows):
            bucket = self._hashes[row] & mask
            chain(heads[bucket])
            heads[bucket] = row

    def _rebuild(self, buckets: int) -> None:
        heads = array("i", [-1]) * buckets
        older = array("i")
        chain = older.append
        mask = buckets - 1
        for row, hash64 in enumerate(self._hashes):
            bucket = hash64 & mask
            chain(heads[bucket])
            heads[bucket] = row
        self._heads, self._older = heads, older


def _plain_sorted(hashes: array[int], offsets: array[int]) -> tuple[array[int], array[int]]:
    values = hashes.tolist()
    order = sorted(range(len(values)), key=values.__getitem__)
    return array("Q", map(values.__getitem__, order)), array("q", map(offsets.__getitem__, order))


def _arrow_sorted(hashes: array[int], offsets: array[int]) -> tuple[array[int], array[int]]:
    """The same, six times as fast: a roll of a million keyed records must not take seconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = len(hashes)
    keys = pa.Array.from_buffers(pa.uint64(), rows, [None, pa.py_buffer(hashes)])
    values = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)])
    order = pc.array_sort_indices(keys)
    sorted_hashes, sorted_offsets = array("Q"), array("q")
    sorted_hashes.frombytes(memoryview(keys.take(order).buffers()[1])[: 8 * rows])
    sorted_offsets.frombytes(memoryview(values.take(order).buffers()[1])[: 8 * rows])
    return sorted_hashes, sorted_offsets
