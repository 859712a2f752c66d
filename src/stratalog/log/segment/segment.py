"""One segment: a `.log` file, its Kafka indexes and our sidecars, for reading.

A sealed segment never changes; it is only ever replaced whole (compaction) or removed. The indexes
carry no checksum, so they are trusted only as far as the log confirms them: a lookup says which batch
must be found at a position, and the reader that finds another one asks for a rebuild. The `.seal`
carries its own checksum and speaks for the log: its size, its contiguity, its blocks.

Crash policy: everything but the `.log` is derived and can be rebuilt from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from stratalog import kernel
from stratalog.errors import CorruptionError, FormatError, InvalidArgumentError, UnsupportedFormat
from stratalog.format import batch as batches
from stratalog.format.identity import PartitionId
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.format.seal import Seal
from stratalog.format.seal import parse as parse_seal
from stratalog.format.txn_index import AbortedTxn
from stratalog.format.txn_index import parse as parse_txn_index
from stratalog.fs import File
from stratalog.log.context import LogContext
from stratalog.log.names import MAX_OFFSET, SWAP, segment_name
from stratalog.log.segment.identity import owner_of
from stratalog.log.segment.scanning import scan_file
from stratalog.model import SegmentInfo, SegmentState


class Start(NamedTuple):
    """Where to begin reading: the position of a batch and, when an index said so, its last offset."""

    position: int
    last_offset: int | None


_serials = itertools.count()


class Segment:
    """A segment as readers see it; `ActiveSegment` adds what the writer keeps in memory."""

    __slots__ = (
        "_name",
        "base_offset",
        "context",
        "deleted",
        "directory",
        "next_offset",
        "partition",
        "serial",
        "size",
        "suffix",
        "swapping",
        "topic",
        "unsynced",
    )

    is_active = False

    def __init__(
        self,
        context: LogContext,
        directory: str,
        topic: str,
        partition: int,
        base_offset: int,
        *,
        size: int,
        next_offset: int | None = None,
        suffix: str = "",
    ) -> None:
        self.context = context
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.base_offset = base_offset
        self._name = segment_name(base_offset)
        self.suffix = suffix
        self.deleted = False
        """The topic was deleted: another one may have files of these names."""
        self.swapping = False
        """The log has lost its ``.swap`` and a sidecar perhaps not yet: another process is at it."""
        self.unsynced = False
        """Another process may not have synced its sidecars: after a power cut they are what came through."""
        self.serial = next(_serials)
        """What is cached of this segment goes by it: after a swap the same path is another file."""
        self.size = size
        """Bytes that may be read. Grows for an active segment, after the bytes are written."""
        self.next_offset = next_offset
        """The first offset that is certainly not in here; None when only a scan could tell."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path()} {self.size} bytes>"

    def path(self, kind: str = "log") -> str:
        return f"{self.directory}/{self._name}.{kind}{self.suffix}"

    # -- files ---------------------------------------------------------------------------------

    @contextmanager
    def open_log(self) -> Iterator[File]:
        """The log file, pinned while in use."""
        file = self.pin_log()
        try:
            yield file
        finally:
            self.unpin_log(file)

    def pin_log(self) -> File:
        """Return the log file, open until `unpin_log`, whatever happens to its name meanwhile."""
        file = self.context.handles.acquire(self.path(), "r")
        if self.deleted:  # this may be the file of another topic of that name
            self.context.handles.release(file)
            raise FileNotFoundError(self.path())
        return file

    def unpin_log(self, file: File) -> None:
        """Let a file of `pin_log` go, once."""
        self.context.handles.release(file)

    @contextmanager
    def open_keyindex(self) -> Iterator[File]:
        """The `.keyindex`, pinned likewise; FileNotFoundError when there is none."""
        with self.context.handles.pinned(self.path("keyindex")) as file:
            yield file

    def forget(self) -> None:
        """Drop cached handles and parsed sidecars, because the files were replaced or removed."""
        self.context.handles.forget(self.path())
        self.context.cache.forget(self.serial)

    def _read_sidecar(self, kind: str) -> bytes | None:
        for name in self._sidecar_names(kind):
            with suppress(FileNotFoundError):
                return self.context.fs.read_file(name)
        return None

    def _sidecar_names(self, kind: str) -> tuple[str, ...]:
        """Where to look for a sidecar, in this order."""
        path = self.path(kind)
        return (path, path + SWAP, path) if self.swapping else (path,)

    def inode(self) -> int:
        """Which file the log is, so that a replacement is noticed; FileNotFoundError when it is gone."""
        return self.context.fs.stat(self.path()).inode

    def owner(self) -> PartitionId:
        """Return the partition that its seal must name."""
        return owner_of(self.context.fs, self.directory, self.partition)

    def sidecar(self, kind: str) -> bytes | None:
        """A derived file as it is, however large; None when there is none."""
        for name in self._sidecar_names(kind):
            with suppress(FileNotFoundError):
                return self.context.fs.read_file(name, limit=1 << 40)
        return None

    # -- sidecars ------------------------------------------------------------------------------

    @property
    def seal(self) -> Seal | None:
        """The seal, when there is one and it can be read. One that contradicts the log is corruption."""
        return self.context.cache.get(self.serial, "seal", self._load_seal)

    def _load_seal(self) -> tuple[Seal | None, int]:
        data = self._read_sidecar("seal")
        if data is None:
            return None, 0
        try:
            seal = parse_seal(data)
        except UnsupportedFormat:
            return None, 0
        except CorruptionError as error:
            self.context.warn(f"{self.path('seal')}: {error.reason}; ignored until it is rebuilt")
            return None, 0
        stranger = seal.stranger(self.owner(), self.base_offset)
        if stranger:
            self.context.warn(f"{self.path('seal')}: {stranger}; ignored until it is rebuilt")
            return None, 0
        if seal.size_bytes != self.size:
            raise CorruptionError(
                f"the seal says {seal.size_bytes} bytes, the log has {self.size}; if another program rewrote"
                " this segment, `stratalog repair --action rebuild-indexes` accepts it as it is",
                path=self.path(),
                position=min(seal.size_bytes, self.size),
            )
        return seal, len(data)

    @property
    def contiguous(self) -> bool:
        """True when every offset from base to end must be there: then a gap is damage."""
        seal = self.seal
        return seal is not None and seal.contiguous

    def offset_index(self) -> OffsetIndex:
        return self.context.cache.get(self.serial, "index", self._load_offset_index)

    def _load_offset_index(self) -> tuple[OffsetIndex, int]:
        data = self._read_sidecar("index")
        if data is not None:
            try:
                return OffsetIndex.parse(data, self.base_offset, self.size), len(data)
            except FormatError as error:
                self.context.warn(f"{self.path('index')}: {error}; using one rebuilt from the log")
        index, _ = self.rebuild_indexes()
        return index, len(index) * 8

    def time_index(self) -> TimeIndex:
        return self.context.cache.get(self.serial, "timeindex", self._load_time_index)

    def _load_time_index(self) -> tuple[TimeIndex, int]:
        # Half of a time index looks like a whole one.
        data = None if self.unsynced and self.seal is None else self._read_sidecar("timeindex")
        if data is not None:
            try:
                index = TimeIndex.parse(data, self.base_offset)
                last = index.last()
                if last is None or self.next_offset is None or last[1] < self.next_offset:
                    return index, len(data)
                self.context.warn(f"{self.path('timeindex')}: points past the segment; rebuilt from the log")
            except FormatError as error:
                self.context.warn(f"{self.path('timeindex')}: {error}; using one rebuilt from the log")
        _, times = self.rebuild_indexes()
        return times, len(times) * 12

    def rebuild_indexes(self, interval_bytes: int = 4096) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes from the log itself, in memory; also cached in place of the ones on disk.

        Damaged batches are left out: neither their offsets nor their timestamps can be believed.
        """
        offsets, times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        state = batches.IndexState()
        with self.open_log() as file:
            for position, scan in self._sound_batches(file):
                found = batches.index_columns(
                    scan, interval_bytes=interval_bytes, state=state, base_position=position
                )
                try:
                    offsets.extend(found.last_offsets, found.positions)
                    times.extend(found.max_timestamps, found.offsets_of_max_timestamp)
                except InvalidArgumentError:
                    break  # offsets no segment can hold: damage, which readers will name
        if state.max_timestamp >= 0:
            with suppress(InvalidArgumentError):
                times.maybe_append(state.max_timestamp, state.offset_of_max_timestamp)
        cache = self.context.cache
        cache.forget(self.serial)
        cache.get(self.serial, "index", lambda: (offsets, len(offsets) * 8))
        cache.get(self.serial, "timeindex", lambda: (times, len(times) * 12))
        return offsets, times

    def _sound_batches(self, file: File) -> Iterator[tuple[int, batches.Scan]]:
        """The log, batch by batch behind one another, without those that fail their CRC."""
        position = 0
        while position < self.size:
            for at, _, scan in scan_file(file, position, self.size, check_crc=True):
                yield at, scan
                position = at + scan.end
            damaged = batches.peek(file.pread(batches.HEADER_SIZE, position))
            if damaged is None:
                return  # the end, or nobody can say where the next batch begins
            position += damaged.size

    def aborted(self) -> tuple[AbortedTxn, ...]:
        """Transactions aborted in this segment, from its `.txnindex`."""
        return self.context.cache.get(self.serial, "txnindex", self._load_aborted)

    def _load_aborted(self) -> tuple[tuple[AbortedTxn, ...], int]:
        data = self._read_sidecar("txnindex") or b""
        seal = self.seal
        if seal is not None and (kernel.crc32c(data) if data else 0) != seal.txn_index_crc:
            raise CorruptionError(
                "the transaction index does not match the segment's seal; `stratalog repair --action"
                " rebuild-indexes` makes it again from the log",
                path=self.path("txnindex"),
            )
        if not data:
            return (), 0
        try:
            return tuple(parse_txn_index(data)), len(data)
        except CorruptionError as error:
            raise error.at(self.path("txnindex")) from error

    # -- lookups -------------------------------------------------------------------------------

    def start_for(self, offset: int) -> Start:
        """Where to read from to find ``offset``: the indexed batch at or before it."""
        if offset <= self.base_offset:
            return Start(0, None)
        hit = self.offset_index().lookup(offset)
        return Start(0, None) if hit is None else Start(hit[1], hit[0])

    def batches_end_offset(self) -> int:
        """The offset after the last batch: by the seal, or by the headers behind the last index entry."""
        seal = self.seal
        if seal is not None:
            return max(seal.last_offset + 1, self.base_offset)
        return self.context.cache.get(self.serial, "end", self._find_batches_end)

    def _find_batches_end(self) -> tuple[int, int]:
        end = self.base_offset
        with self.open_log() as file:
            for position in dict.fromkeys((self.start_for(MAX_OFFSET).position, 0)):
                for _, _, scan in scan_file(file, position, self.size):
                    end = max(end, scan.last_offset + 1)
                if end > self.base_offset:
                    break
        return end, 8

    def max_timestamp(self) -> int | None:
        """The newest record's timestamp, without reading the log; None when nothing trustworthy says."""
        seal = self.seal
        if seal is not None:
            return seal.max_timestamp
        last = self.time_index().last()
        return None if last is None or not self.meets_time_entry(last) else last[0]

    def first_offset_since(self, timestamp: int) -> int:
        """An offset below which no record of this segment is at ``timestamp`` or later.

        By the seal's blocks where there is one. The time index has no checksum: an entry of it counts
        only when the batch it speaks of is there and says the same.
        """
        seal = self.seal
        if seal is not None:
            for block in seal.blocks:
                if block.max_timestamp >= timestamp:
                    return block.first_offset
            return seal.last_offset + 1
        before = self.time_index().lookup(timestamp - 1)
        if before is None or not self.meets_time_entry(before):
            return self.base_offset
        return before[1] + 1

    def meets_time_entry(self, entry: tuple[int, int]) -> bool:
        """Whether the batch that ends with the entry's offset has the entry's timestamp as its largest."""
        timestamp, offset = entry
        position = self.start_for(offset).position
        with self.open_log() as file:
            for _, _, scan in scan_file(file, position, self.size):
                row = scan.find_offset(offset)
                if row < scan.n:
                    header = scan.header(row)
                    return header.last_offset == offset and header.max_timestamp == timestamp
        return False

    def info(self, state: SegmentState | None = None) -> SegmentInfo:
        """The segment's facts, as cheap as they come."""
        try:
            seal = self.seal
        except CorruptionError:
            seal = None
        if state is None:
            state = SegmentState.COMPACTED if seal is not None and seal.cleaned else SegmentState.SEALED
        newest = seal.max_timestamp if seal is not None else None
        if seal is None and self.size:
            last = self.time_index().last()
            newest = last[0] if last is not None else None
        return SegmentInfo(
            topic=self.topic,
            partition=self.partition,
            base_offset=self.base_offset,
            next_offset=self.next_offset if self.next_offset is not None else self.base_offset,
            state=state,
            size_bytes=self.size,
            path=self.path(),
            min_timestamp=seal.min_timestamp if seal is not None and seal.records else None,
            max_timestamp=newest if newest is not None and newest >= 0 else None,
            records=seal.records if seal is not None else None,
        )
