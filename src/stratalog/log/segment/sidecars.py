"""The derived files of a segment, built from the batches of its log: the only builder there is.

`.index`, `.timeindex`, `.seal`, `.keyindex` where the topic has one, `.txnindex` where transactions were
aborted. The active segment, recovery, rebuilding, compaction, repair and copies all feed this one.

Crash policy: derived data, always rebuildable from the log. A crash before all files are written leaves files
that recovery writes again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stratalog import kernel
from stratalog.format import batch as batches
from stratalog.format import keyindex, txn_index
from stratalog.format import seal as seals
from stratalog.format.batch import IndexState, Scan
from stratalog.format.identity import UNKNOWN_PARTITION, PartitionId
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.format.seal import Seal, SealBuilder
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.names import SEGMENT_KINDS
from stratalog.log.write.active_keys import ActiveKeyIndex

if TYPE_CHECKING:
    from stratalog.log.segment.segment import Segment


class Sidecars:
    """What is derived from one log, in memory. Feed its batches in order.

    ``sealer`` is None when no seal is wanted, ``keys`` when no key index is. ``aborted`` may be set before
    packing, and so may ``seal`` once all batches are added.
    """

    __slots__ = (
        "_interval_bytes",
        "_seal",
        "aborted",
        "base_offset",
        "index",
        "keys",
        "owner",
        "sealer",
        "state",
        "times",
    )

    def __init__(
        self, base_offset: int, interval_bytes: int, *, keyed: bool, owner: PartitionId = UNKNOWN_PARTITION
    ) -> None:
        self.base_offset = base_offset
        self.owner = owner
        self.index, self.times = OffsetIndex(base_offset), TimeIndex(base_offset)
        self.state = IndexState()
        self.keys = ActiveKeyIndex() if keyed else None
        self.sealer: SealBuilder | None = SealBuilder(base_offset)
        self.aborted: list[AbortedTxn] = []
        self._interval_bytes = interval_bytes
        self._seal: Seal | None = None

    def add(
        self, position: int, data: bytes | bytearray | memoryview, scan: Scan, *, measured: bool = False
    ) -> None:
        """Add the batches of ``scan``, which lie in ``data``, whose first byte is at ``position`` in the log.

        ``measured``: the scan already has the smallest timestamp of every batch. Raise InvalidArgumentError
        for offsets that no segment can hold; the seal then ends before them.
        """
        if not scan.n:
            return
        found = batches.index_columns(
            scan, interval_bytes=self._interval_bytes, state=self.state, base_position=position
        )
        self.index.extend(found.last_offsets, found.positions)
        self.times.extend(found.max_timestamps, found.offsets_of_max_timestamp)
        view = memoryview(data)
        if self.sealer is not None and position + scan.end > self.sealer.size_bytes:
            if not measured:
                batches.measure(view, scan)
            self.sealer.add_scan(view, scan, position)
        if self.keys is not None:
            self.keys.extend(*batches.decode_keys(view, scan))
        self._seal = None

    @property
    def size_bytes(self) -> int:
        """How many bytes of the log the seal covers so far."""
        return 0 if self.sealer is None else self.sealer.size_bytes

    @property
    def seal(self) -> Seal:
        """The seal of what was added so far, or the one that was set."""
        if self._seal is not None:
            return self._seal
        assert self.sealer is not None, "no seal was collected"
        return self.sealer.build()

    @seal.setter
    def seal(self, value: Seal) -> None:
        self._seal = value

    def finish_times(self) -> TimeIndex:
        """End the time index with the newest timestamp, as Kafka does when it seals a segment."""
        if self.state.max_timestamp >= 0:
            self.times.maybe_append(self.state.max_timestamp, self.state.offset_of_max_timestamp)
        return self.times

    def pack(self, kind: str) -> bytes | None:
        """Return the bytes of one kind of file; None when the segment has no such file."""
        match kind:
            case "index":
                return self.index.to_bytes()
            case "timeindex":
                return self.finish_times().to_bytes()
            case "txnindex":
                return txn_index.pack(self.aborted) if self.aborted else None
            case "seal" if self.sealer is not None:
                aborted = self.pack("txnindex")
                crc = kernel.crc32c(aborted) if aborted else 0
                return seals.pack(
                    replace(self.seal, txn_index_crc=crc, owner=self.owner, base_offset=self.base_offset)
                )
            case "keyindex" if self.sealer is not None and self.keys is not None:
                seal = self.seal
                return keyindex.pack(*self.keys.arrays(), self.base_offset, seal.size_bytes, seal.crc)
            case _:
                return None

    def write(self, segment: Segment, *, sync: bool = True, keyed: bool = True) -> list[str]:
        """Write all files beside the log of ``segment``; return the kinds it has now, the log's first.

        The names are not durable yet: that takes a sync of the directory.
        """
        kinds: list[str] = [SEGMENT_KINDS[0]]
        for kind in SEGMENT_KINDS[1:]:
            data = self.pack(kind) if keyed or kind != "keyindex" else None
            if data is not None:
                segment.context.fs.write_file(segment.path(kind), data, sync=sync)
                kinds.append(kind)
        return kinds
