"""How many records a cleaning would drop, without doing it: sketches of keys, one for each segment.

A sketch keeps the smallest few thousand of a segment's key hashes (k minimum values). Hashes are spread
evenly, so how small they are tells how many different ones there are, within a few percent; and the
smallest of several segments together are among the smallest of each, so sketches can be joined.

A sealed segment never changes: its sketch is made once, by one pass over its keys, and kept in memory while
the segment is there. Nothing is written, and a crash loses only time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from stratalog import locks
from stratalog.format import batch as batches
from stratalog.log.policy.cleaning import Cleanable
from stratalog.log.read.chunks import FULL_CHUNK, read_chunks
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.segment.segment import Segment, Start
from stratalog.log.write.writer import PartitionWriter

SKETCH_HASHES = 2048
_ALL_HASHES = 2.0**64


class Sketch(NamedTuple):
    """``records`` with a key, and the smallest hashes of their keys, ascending, each once."""

    records: int
    smallest: array[int]


class DuplicateEstimates:
    """Estimates for the partitions of a store, and the sketches they rest on. Thread-safe."""

    def __init__(self) -> None:
        self._lock = locks.lock("estimates")
        self._sketches: dict[str, dict[tuple[int, int], Sketch]] = {}

    def ratio(self, view: PartitionWriter | PartitionFollower, cleanable: Cleanable) -> float | None:
        """The share of keyed records below the first uncleanable offset that a later one supersedes there.

        None when there are none. CorruptionError when a segment cannot be read.
        """
        end = cleanable.first_uncleanable_offset
        segments = [each for each in view.local_segments()[:-1] if each.base_offset < end]
        with self._lock:
            known = self._sketches.get(view.directory, {})
        found = {(each.base_offset, each.size): known.get((each.base_offset, each.size)) for each in segments}
        sketches = {
            (each.base_offset, each.size): found[each.base_offset, each.size] or sketch_of(each)
            for each in segments
        }
        with self._lock:
            self._sketches[view.directory] = sketches
        records = sum(sketch.records for sketch in sketches.values())
        if not records:
            return None
        return max(0.0, 1.0 - distinct_keys(sketches.values()) / records)

    def forget(self, writer: PartitionWriter) -> None:
        """The partition is gone."""
        with self._lock:
            self._sketches.pop(writer.directory, None)


def sketch_of(segment: Segment) -> Sketch:
    """One pass over the keys of a sealed segment."""
    records = 0
    smallest: list[int] = []
    bound = 1 << 64
    for chunk in read_chunks(segment, Start(0, None), first_size=FULL_CHUNK):
        hashes, _ = batches.decode_keys(chunk.data, chunk.scan)
        records += len(hashes)
        fresh = set(hashes) if bound >> 64 else {each for each in hashes if each < bound}
        if fresh:
            smallest = sorted(fresh.union(smallest))[:SKETCH_HASHES]
            if len(smallest) == SKETCH_HASHES:
                bound = smallest[-1]
    return Sketch(records, array("Q", smallest))


def distinct_keys(sketches: Iterable[Sketch]) -> float:
    """How many different keys the segments of these sketches hold together; exact while they are few."""
    joined = sorted({each for sketch in sketches for each in sketch.smallest})[:SKETCH_HASHES]
    if len(joined) < SKETCH_HASHES:
        return float(len(joined))
    return (SKETCH_HASHES - 1) * _ALL_HASHES / (joined[-1] + 1)
