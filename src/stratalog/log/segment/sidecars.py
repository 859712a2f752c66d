"""Everything that is derived from a whole log: indexes, keys, seal, in memory until it is written.

A segment that is written anew (compaction, erasing, repair) gets all of them: `.index`, `.timeindex`,
`.seal`, `.keyindex` where the topic has one, `.txnindex` where transactions were aborted. They come from
the log's own bytes, either while they are written (`add`) or by one pass over a segment (`of`), under
whatever suffix its files carry.

Crash policy: derived data. A crash before they are all written leaves files that nobody looks at yet.
"""

from __future__ import annotations

from dataclasses import replace

from stratalog import kernel
from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format import keyindex, txn_index
from stratalog.format import seal as seals
from stratalog.format.batch import Scan
from stratalog.format.identity import UNKNOWN_PARTITION, PartitionId
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.format.seal import Seal, SealBuilder
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.names import SEGMENT_KINDS
from stratalog.log.segment.scanning import scan_file
from stratalog.log.segment.segment import Segment
from stratalog.log.write.active_keys import ActiveKeyIndex


class Sidecars:
    """The derived files of one log. Fed in order; ``seal`` and ``aborted`` may be amended before packing."""

    def __init__(
        self,
        base_offset: int,
        interval_bytes: int,
        *,
        keyed: bool,
        owner: PartitionId = UNKNOWN_PARTITION,
    ) -> None:
        self.base_offset = base_offset
        self._owner = owner
        self.aborted: list[AbortedTxn] = []
        self._interval_bytes = interval_bytes
        self._index, self._times = OffsetIndex(base_offset), TimeIndex(base_offset)
        self._keys = ActiveKeyIndex() if keyed else None
        self._builder, self._state = SealBuilder(base_offset), batches.IndexState()
        self._seal: Seal | None = None

    @classmethod
    def of(cls, segment: Segment, interval_bytes: int, *, keyed: bool) -> Sidecars:
        """By one pass over a segment, every byte of which must be part of a right batch."""
        made = cls(segment.base_offset, interval_bytes, keyed=keyed, owner=segment.owner())
        with segment.open_log() as file:
            for at, data, scan in scan_file(file, 0, segment.size, check_crc=True):
                made.add(at, data, scan)
        if made.seal.size_bytes != segment.size:
            # Checked a moment ago: somebody else is at work here, and nothing has been changed yet.
            raise CorruptionError("no whole batch", path=segment.path(), position=made.seal.size_bytes)
        return made

    def add(
        self, position: int, data: bytes | bytearray | memoryview, scan: Scan, *, measured: bool = False
    ) -> None:
        """The batches of ``scan``, which lie in ``data``, whose first byte is at ``position`` in the log.

        ``measured``: the scan knows every batch's smallest timestamp already.
        """
        view = memoryview(data)
        if not measured:
            batches.measure(view, scan)
        self._builder.add_scan(view, scan, position)
        found = batches.index_columns(
            scan, interval_bytes=self._interval_bytes, state=self._state, base_position=position
        )
        self._index.extend(found.last_offsets, found.positions)
        self._times.extend(found.max_timestamps, found.offsets_of_max_timestamp)
        if self._keys is not None:
            self._keys.extend(*batches.decode_keys(view, scan))
        self._seal = None

    @property
    def size_bytes(self) -> int:
        """How much of the log was added."""
        return self._builder.size_bytes

    @property
    def seal(self) -> Seal:
        """The facts of what was added so far."""
        if self._seal is None:
            self._seal = self._builder.build()
        return self._seal

    @seal.setter
    def seal(self, value: Seal) -> None:
        self._seal = value

    def pack(self, kind: str) -> bytes | None:
        """The bytes of one kind; None when there is to be no such file."""
        match kind:
            case "index":
                return self._index.to_bytes()
            case "timeindex":
                if self._state.max_timestamp >= 0:
                    self._times.maybe_append(self._state.max_timestamp, self._state.offset_of_max_timestamp)
                return self._times.to_bytes()
            case "seal":
                aborted = self.pack("txnindex")
                crc = kernel.crc32c(aborted) if aborted else 0
                return seals.pack(
                    replace(self.seal, txn_index_crc=crc, owner=self._owner, base_offset=self.base_offset)
                )
            case "txnindex":
                return txn_index.pack(self.aborted) if self.aborted else None
            case _:
                if self._keys is None:
                    return None
                base, size, crc = self.base_offset, self.seal.size_bytes, self.seal.crc
                return keyindex.pack(*self._keys.sorted_arrays(), base, size, crc)

    def write(self, segment: Segment) -> list[str]:
        """Write and sync them all beside the log of ``segment``; the kinds there are now, the log's first.

        The names are not durable yet: that takes a sync of the directory.
        """
        kinds: list[str] = [SEGMENT_KINDS[0]]
        for kind in SEGMENT_KINDS[1:]:
            data = self.pack(kind)
            if data is not None:
                segment.context.fs.write_file(segment.path(kind), data, sync=True)
                kinds.append(kind)
        return kinds
