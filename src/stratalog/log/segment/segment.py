"""One segment: a `.log` file, its Kafka indexes and our sidecars, for reading.

A sealed segment never changes; it is only replaced whole (compaction) or removed. The indexes have no
checksum, so they are trusted only as far as the log confirms them: a lookup names the batch that must be at a
position, and a reader that finds another one asks for a rebuild. The `.seal` has its own checksum and
describes the log: its size, its contiguity, its blocks.

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
from stratalog.format.batch import Scan, Stop
from stratalog.format.identity import NO_TOPIC_ID, PartitionId
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.format.metadata import parse_partition_metadata
from stratalog.format.seal import Seal
from stratalog.format.seal import parse as parse_seal
from stratalog.format.txn_index import AbortedTxn
from stratalog.format.txn_index import parse as parse_txn_index
from stratalog.fs import File, FileSystem
from stratalog.fs.contract import READ_FILE_LIMIT_BYTES
from stratalog.log.context import PartitionLocation
from stratalog.log.names import MAX_OFFSET, PARTITION_METADATA, SWAP, segment_name
from stratalog.log.segment.sidecars import Sidecars
from stratalog.model import SegmentInfo, SegmentState

SCAN_BYTES = 1 << 20
"""How much of a log is read at a time where speed, not latency, matters: what fits a core's cache."""
BLOCK_IN_MEMORY_BYTES = 300
"""Of a seal that was parsed: its file has 48."""

MAX_OFFSETS = 2**31
"""Offsets in a segment: an index holds them in 31 bits."""


class Scanned(NamedTuple):
    """Whole batches found in ``data``, which was read at ``position``; valid until the next one."""

    position: int
    data: memoryview
    scan: Scan


def scan_file(
    file: File,
    position: int,
    end: int,
    *,
    check_crc: bool = False,
    expect: int | None = None,
    due: int = 0,
) -> Iterator[Scanned]:
    """Yield chunks of whole batches from ``position`` to ``end``, up to the first that is wrong.

    With ``expect`` the first batch must have that base offset and all must be contiguous. Otherwise offsets
    must only increase, from ``due`` on. If the walk ends early, also because the file is shorter than
    ``end``, the last item has no batch (``scan.n == 0``) and the cause is in ``scan.stop`` and
    ``scan.reason``.
    """
    needed = 0
    buffer = bytearray(min(SCAN_BYTES, max(end - position, 0)))
    while position < end:
        want = min(max(SCAN_BYTES, needed), end - position)
        if len(buffer) < want:
            buffer = bytearray(want)
        view = memoryview(buffer)[:want]
        data = view[: file.pread_into(view, position)]
        more = end - position - want if len(data) == want else 0
        scan = batches.scan(data, check_crc=check_crc, expect=expect, due=due, more=more)
        if scan.n == 0:
            if scan.stop is Stop.PARTIAL and len(data) == want and want < scan.needed <= end - position:
                needed = scan.needed
                continue
            yield Scanned(position, data, scan)
            return
        yield Scanned(position, data, scan)
        position += scan.end
        needed = 0
        due = scan.last_offset + 1
        if expect is not None:
            expect = due


def owner_of(fs: FileSystem, directory: str, partition: int) -> PartitionId:
    """Return the identity of a partition directory; its topic id is zero when `partition.metadata` has none.

    Read at each call: a topic may be deleted and created again under the same name while readers run.
    """
    try:
        topic_id = parse_partition_metadata(fs.read_file(f"{directory}/{PARTITION_METADATA}")).bytes
    except (FileNotFoundError, NotADirectoryError, FormatError):
        topic_id = NO_TOPIC_ID
    return PartitionId(topic_id, partition)


class Start(NamedTuple):
    """Where to begin reading: the position of a batch and, if it came from an index, its last offset."""

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
        "location",
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
        location: PartitionLocation,
        base_offset: int,
        *,
        size: int,
        next_offset: int | None = None,
        suffix: str = "",
    ) -> None:
        self.location = location
        self.context, self.directory, self.topic, self.partition = location
        self.base_offset = base_offset
        self._name = segment_name(base_offset)
        self.suffix = suffix
        self.deleted = False
        """The topic was deleted: files of these names may belong to another topic."""
        self.swapping = False
        """The log has lost its ``.swap`` and a sidecar perhaps not yet: another process is swapping."""
        self.unsynced = False
        """Another process may not have synced its sidecars: a power cut may have left parts of them."""
        self.serial = next(_serials)
        """The key of cached data: after a swap the same path is another file."""
        self.size = size
        """Bytes that may be read. Grows for an active segment, after the bytes are written."""
        self.next_offset = next_offset
        """The first offset that is certainly not in this segment; None when only a scan could tell."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path()} {self.size} bytes>"

    @property
    def ceiling(self) -> int:
        """The lowest offset that the log cannot hold. No CRC covers a base offset: one from here on is wrong.

        A segment being swapped in may reach past the next one, which it replaces.
        """
        most = self.base_offset + MAX_OFFSETS
        if self.next_offset is None or self.is_active or self.suffix:
            return most
        return min(most, self.next_offset)

    def path(self, kind: str = "log") -> str:
        return f"{self.directory}/{self._name}.{kind}{self.suffix}"

    # -- files ---------------------------------------------------------------------------------

    @contextmanager
    def open_log(self) -> Iterator[File]:
        """Pin the log file while it is in use."""
        file = self.pin_log()
        try:
            yield file
        finally:
            self.unpin_log(file)

    def pin_log(self) -> File:
        """Return the log file, open until `unpin_log`, even if it is renamed or removed meanwhile."""
        file = self.context.handles.acquire(self.path(), "r")
        if self.deleted:
            self.context.handles.release(file)
            raise FileNotFoundError(self.path())
        return file

    def unpin_log(self, file: File) -> None:
        """Release a file of `pin_log`, once."""
        self.context.handles.release(file)

    def is_reserved(self, file: File, position: int) -> bool:
        """Return True if from ``position`` on there is only space that another broker reserved: zeros.

        It reserves space in the last segment, and gives back what it did not use when it begins another one.
        """
        if not (self.is_active or self.unsynced or self.next_offset is None):
            return False
        return not any(
            any(file.pread(min(SCAN_BYTES, self.size - at), at))
            for at in range(position, self.size, SCAN_BYTES)
        )

    @contextmanager
    def open_keyindex(self) -> Iterator[File]:
        """Pin the `.keyindex` likewise; FileNotFoundError when the segment has none."""
        with self.context.handles.pinned(self.path("keyindex")) as file:
            yield file

    def forget(self) -> None:
        """Drop cached handles and parsed sidecars, because the files were replaced or removed."""
        for kind in ("log", "keyindex"):
            self.context.handles.forget(self.path(kind))
        self.context.cache.forget(self.serial)

    def sidecar(self, kind: str, *, limit: int = 1 << 40) -> bytes | None:
        """Return the bytes of a derived file; None when there is none."""
        path = self.path(kind)
        for name in (path, path + SWAP, path) if self.swapping else (path,):
            with suppress(FileNotFoundError):
                return self.context.fs.read_file(name, limit)
        return None

    def inode(self) -> int:
        """Return the log's inode, so that a replacement is noticed; FileNotFoundError when it is gone."""
        return self.context.fs.stat(self.path()).inode

    def owner(self) -> PartitionId:
        """Return the partition that the seal must name."""
        return owner_of(self.context.fs, self.directory, self.partition)

    # -- sidecars ------------------------------------------------------------------------------

    @property
    def seal(self) -> Seal | None:
        """The seal if it exists and can be read. CorruptionError if it contradicts the log."""
        return self.context.cache.get(self.serial, "seal", self._load_seal)

    def _load_seal(self) -> tuple[Seal | None, int]:
        data = self.sidecar("seal", limit=READ_FILE_LIMIT_BYTES)
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
                " this segment, `stratalog repair TOPIC --action rebuild-indexes` accepts it as it is",
                path=self.path(),
                position=min(seal.size_bytes, self.size),
            )
        return seal, len(seal.blocks) * BLOCK_IN_MEMORY_BYTES

    def seal_of(self, size: int, owner: PartitionId) -> Seal | None:
        """Return the seal on disk if it is valid, of this segment of ``owner`` and covers ``size`` bytes."""
        try:
            seal = parse_seal(self.context.fs.read_file(self.path("seal")))
        except (FileNotFoundError, FormatError):
            return None
        if seal.size_bytes != size or seal.stranger(owner, self.base_offset):
            return None
        return seal

    @property
    def contiguous(self) -> bool:
        """True when every offset from base to end must be there: then a gap is damage."""
        seal = self.seal
        return seal is not None and seal.contiguous

    def offset_index(self) -> OffsetIndex:
        return self.context.cache.get(self.serial, "index", self._load_offset_index)

    def _load_offset_index(self) -> tuple[OffsetIndex, int]:
        data = self.sidecar("index", limit=READ_FILE_LIMIT_BYTES)
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
        unsure = self.unsynced and self.seal is None
        data = None if unsure else self.sidecar("timeindex", limit=READ_FILE_LIMIT_BYTES)
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
        """Build both indexes from the log, in memory; they replace the cached ones.

        Damaged batches are left out: neither their offsets nor their timestamps can be trusted.
        """
        made = Sidecars(self.base_offset, interval_bytes, keyed=False)
        made.sealer = None
        with self.open_log() as file, suppress(InvalidArgumentError):  # impossible offsets: readers name them
            position, due = 0, self.base_offset
            while position < self.size:
                for at, data, scan in scan_file(file, position, self.size, check_crc=True, due=due):
                    made.add(at, data, scan)
                    position, due = at + scan.end, max(due, scan.last_offset + 1)
                damaged = batches.peek(file.pread(batches.HEADER_SIZE, position))
                if damaged is None:
                    break  # the end, or nothing says where the next batch begins
                position += damaged.size
        with suppress(InvalidArgumentError):
            made.finish_times()
        offsets, times, cache = made.index, made.times, self.context.cache
        cache.forget(self.serial)
        cache.get(self.serial, "index", lambda: (offsets, len(offsets) * 8))
        cache.get(self.serial, "timeindex", lambda: (times, len(times) * 12))
        return offsets, times

    def derive(
        self,
        interval_bytes: int,
        *,
        keyed: bool,
        end: int | None = None,
        contiguous: bool = False,
        partial: bool = False,
    ) -> Sidecars:
        """Read the log once, up to ``end``, and return what is derived from it.

        With ``contiguous`` a gap counts as damage. Damage raises CorruptionError; with ``partial`` it only
        ends the pass, and ``size_bytes`` of the result says where.
        """
        end = self.size if end is None else end
        made = Sidecars(self.base_offset, interval_bytes, keyed=keyed, owner=self.owner())
        expect = self.base_offset if contiguous else None
        with self.open_log() as file, suppress(InvalidArgumentError):
            for at, data, scan in scan_file(file, 0, end, check_crc=True, expect=expect):
                made.add(at, data, scan)
        if made.size_bytes != end and not partial:
            raise CorruptionError("no whole batch", path=self.path(), position=made.size_bytes)
        return made

    def aborted(self) -> tuple[AbortedTxn, ...]:
        """Return the transactions aborted in this segment, from its `.txnindex`."""
        return self.context.cache.get(self.serial, "txnindex", self._load_aborted)

    def _load_aborted(self) -> tuple[tuple[AbortedTxn, ...], int]:
        data = self.sidecar("txnindex", limit=READ_FILE_LIMIT_BYTES) or b""
        seal = self.seal
        if seal is not None and (kernel.crc32c(data) if data else 0) != seal.txn_index_crc:
            raise CorruptionError(
                "the transaction index does not match the segment's seal; `stratalog repair TOPIC --action"
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
        """Return where to read from to find ``offset``: the indexed batch at or before it."""
        if offset <= self.base_offset:
            return Start(0, None)
        hit = self.offset_index().lookup(offset)
        return Start(0, None) if hit is None else Start(hit[1], hit[0])

    def batches_end_offset(self) -> int:
        """Return the offset after the last batch, by the seal or the headers after the last index entry."""
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
        """Return the newest record's timestamp without reading the log; None when no index can be trusted."""
        seal = self.seal
        if seal is not None:
            return seal.max_timestamp
        last = self.time_index().last()
        return None if last is None or not self.meets_time_entry(last) else last[0]

    def first_offset_since(self, timestamp: int) -> int:
        """Return an offset below which no record of this segment is at ``timestamp`` or later.

        By the seal's blocks if there is a seal. The time index has no checksum: an entry of it counts only if
        its batch has the same offset and timestamp.
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
        """Return True if the batch that ends with the entry's offset has its timestamp as its largest."""
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
        """Return the segment's facts without reading the log."""
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
