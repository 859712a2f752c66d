"""Check one segment: one pass over its log, and every derived file compared with the log on the way.

Behind damage the walk goes on at the next believable batch. Damage of the log is a range of bytes and the
offsets lost in it; a wrong sidecar can be rebuilt. Reads through the handle cache, writes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stratalog import kernel
from stratalog.errors import ArchiveError, CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format import keyindex
from stratalog.format.batch import Scan, Stop
from stratalog.format.batch.header_scan import WIDTH
from stratalog.format.indexes import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from stratalog.format.metadata import CLEAN_SHUTDOWN
from stratalog.format.seal import Seal
from stratalog.format.seal import parse as parse_seal
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import File
from stratalog.log.check.damage import UNKNOWN, Damage, derived_damage, reason_of
from stratalog.log.check.resync import resume
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.segment.segment import SCAN_BYTES, Segment
from stratalog.log.write.active import ActiveSegment
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.log.write.sync import read_tail

_POSITION, _BASE, _LAST, _COUNT, _ATTRIBUTES, _NEWEST, _OLDEST = 0, 2, 3, 4, 6, 9, 10
"""Columns of a scan's table."""
_CONTROL = 0x20


def sidecar_of(segment: Segment, kind: str) -> bytes | None:
    """Read a derived file; None when there is none. CorruptionError when the archive has lost it."""
    try:
        return segment.sidecar(kind)
    except ArchiveError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise  # the archive cannot be reached: the state is unknown
        raise CorruptionError(error.reason, path=error.url) from error


class IndexCheck:
    """Checks that every entry of an offset index meets its batch."""

    def __init__(self, index: OffsetIndex) -> None:
        self._index = index
        self.at = 0
        """The entry in question."""
        self.reason = ""

    def feed(self, position: int, scan: Scan) -> None:
        while not self.reason and self.at < len(self._index):
            offset, where = self._index.entry(self.at)
            if where >= position + scan.end:
                return
            if where >= position:  # else it points into damage, where nothing can be checked
                row = scan.find_position(where - position)
                found = scan.table[row * WIDTH : (row + 1) * WIDTH]
                if not found or found[_POSITION] != where - position:
                    self.reason = f"points to byte {where}, where no batch begins"
                    return
                if found[_LAST] != offset:
                    self.reason = f"says that offset {offset} is at byte {where}, where {found[_LAST]} is"
                    return
            self.at += 1


class TimeCheck:
    """Checks every entry (t, o) of a time index: nothing newer than t up to o, and t at o."""

    def __init__(self, times: TimeIndex) -> None:
        self._times = times
        self._newest = -1
        self.at = 0
        self.reason = ""

    def feed(self, scan: Scan) -> None:
        newest, table = self._newest, scan.table
        begun = 0
        while not self.reason and self.at < len(self._times):
            timestamp, offset = self._times.entry(self.at)
            if offset > scan.last_offset:
                break
            row = scan.find_offset(offset)
            if offset >= scan.first_base_offset:
                newest = max(
                    newest, max(table[begun * WIDTH + _NEWEST : (row + 1) * WIDTH : WIDTH], default=-1)
                )
                begun = row + 1
                held = table[row * WIDTH + _NEWEST]
                if newest > timestamp:
                    self.reason = (
                        f"promises nothing newer than {timestamp} up to offset {offset}; {newest} is"
                    )
                elif held != timestamp:
                    self.reason = f"says {timestamp} at offset {offset}, where {held} is"
                if self.reason:
                    return
            self.at += 1
        self._newest = max(newest, max(table[begun * WIDTH + _NEWEST :: WIDTH], default=-1))

    def finish(self, *, whole: bool) -> None:
        """Check after the last batch that the last entry holds the largest timestamp."""
        if self.reason or not whole:
            return
        last = self._times.last()
        if self.at < len(self._times):
            self.reason = f"points to offset {self._times.entry(self.at)[1]}, past the end of the segment"
        elif (-1 if last is None else last[0]) < self._newest:
            self.reason = f"does not hold the largest timestamp, {self._newest}"


class SealFacts:
    """Checks the facts that a seal states of each block."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._starts = [block.position for block in seal.blocks]
        self._found: dict[int, list[int]] = {}

    def feed(self, position: int, scan: Scan) -> None:
        row = 0
        while row < scan.n:
            at = bisect_right(self._starts, position + scan.table[row * WIDTH]) - 1
            end = self._starts[at + 1] if at + 1 < len(self._starts) else self._seal.size_bytes
            last = max(scan.find_position(end - position), row + 1)
            self._add(at, scan.table[row * WIDTH : last * WIDTH])
            row = last

    def _add(self, at: int, rows: Sequence[int]) -> None:
        counts, attributes = rows[_COUNT::WIDTH], rows[_ATTRIBUTES::WIDTH]
        records = sum(count for count, bits in zip(counts, attributes, strict=True) if not bits & _CONTROL)
        oldest, newest = min(rows[_OLDEST::WIDTH]), max(rows[_NEWEST::WIDTH])
        known = self._found.get(at)
        if known is None:
            self._found[at] = [rows[_BASE], rows[-WIDTH + _LAST], records, oldest, newest, len(counts)]
        else:
            known[1] = rows[-WIDTH + _LAST]
            known[2] += records
            known[3] = min(known[3], oldest)
            known[4] = max(known[4], newest)
            known[5] += len(counts)

    def difference(self, damages: Sequence[Damage]) -> str:
        """Return the first wrong statement of the seal; blocks with damage in them are left out."""
        for at, block in enumerate(self._seal.blocks):
            start, end = block.position, block.position + self._seal.block_size(at)
            if any(damage.start < end and start < damage.end for damage in damages):
                continue
            if self._found.get(at) != list(block[2:]):
                return f"block {at} states {list(block[2:])}, the log gives {self._found.get(at)}"
        return ""


Sidecar = Literal["index", "timeindex", "txnindex", "seal", "keyindex"]

_Block = tuple[int, int, int, int]
"""Start and end in bytes, first and last offset."""


@dataclass(slots=True)
class CheckedSegment:
    """The result of checking one segment."""

    segment: Segment
    at_rest: bool
    """Sealed and synced, or closed in order: then its sidecars must be right too."""
    seal: Seal | None = None
    """The stored seal, when it is sound and speaks of a log of this size."""
    contiguous: bool = False
    countable: bool = False
    """True if every offset had a record, by its seal or the batches that are left: lost ones are counted."""
    records: int = 0
    next_offset: int = 0
    """After the last good batch."""
    log: list[Damage] = field(default_factory=list)
    """Damaged ranges of the log, ascending."""
    sidecars: dict[Sidecar, Damage] = field(default_factory=dict)
    unsupported: bool = False
    """Not one batch of it is in a format this library reads."""
    has_producers: bool = False
    inode: int = UNKNOWN
    """Which file it was."""
    aborted: list[AbortedTxn] | None = None
    """What the transaction index should hold; None when the log cannot tell."""

    @property
    def damages(self) -> tuple[Damage, ...]:
        return (*self.log, *self.sidecars.values())

    @property
    def intact(self) -> bool:
        """True if no record of the log is lost, whatever the sidecars say."""
        return all(damage.derived for damage in self.log)


def check_segment(segment: Segment, progress: Callable[[int], None] | None = None) -> CheckedSegment:
    """Check one segment: its log and, when it is at rest, everything derived from it.

    Raise ArchiveError when its archive does not answer; an object that the archive has lost is damage.
    """
    if isinstance(segment, ArchivedSegment):
        segment.forget()  # read the archive, not the cache
    try:
        return _SegmentCheck(segment, progress).run()
    except ArchiveError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        lost = CheckedSegment(segment, at_rest=True, next_offset=segment.base_offset)
        last = max(segment.next_offset or 0, segment.base_offset + 1) - 1
        lost.log.append(Damage(error.url, 0, segment.size, segment.base_offset, last, error.reason))
        return lost


class _SegmentCheck:
    """One pass over the log, which feeds the checks of the sidecars."""

    def __init__(self, segment: Segment, progress: Callable[[int], None] | None) -> None:
        self.segment = segment
        self.size = segment.size
        self.progress = progress
        self.out = CheckedSegment(segment, at_rest=_at_rest(segment))
        self.stored: Seal | None = None
        self.next_offset = segment.base_offset
        self.batches = 0
        self.newest = UNKNOWN

    def run(self) -> CheckedSegment:
        out, segment = self.out, self.segment
        if not segment.is_active or out.at_rest:
            self._read_seal()
        seal = out.seal
        out.contiguous = seal.contiguous if seal is not None else segment.is_active and segment.contiguous
        told = out.contiguous or self.stored is not None
        dense = out.contiguous or (self.stored is not None and self.stored.contiguous)
        self.crc, bad_blocks = _crcs(segment, self.size, seal)
        suspects = [block for block in bad_blocks if not out.contiguous and _sound(segment, *block[:2])]
        index = self._read_index() if out.at_rest and self.size else None
        times = self._read_times() if out.at_rest and self.size else None
        facts = None if seal is None else SealFacts(seal)
        data = self._read("keyindex") if out.at_rest else None
        keys = ActiveKeyIndex() if data is not None else None
        for position, chunk, scan in self._walk(suspects):
            out.records += scan.records
            out.has_producers |= scan.has_producers
            dense = dense if told else (dense or not self.batches) and scan.is_dense
            self.batches += scan.n
            if index is not None:
                index.feed(position, scan)
            if times is not None:
                times.feed(scan)
            if facts is not None:
                facts.feed(position, scan)
            if keys is not None:
                keys.extend(*batches.decode_keys(chunk, scan))
        out.next_offset, out.countable = self.next_offset, dense
        if segment.is_active and not isinstance(segment, ActiveSegment):
            self._judge_end()
        out.unsupported = out.unsupported and not self.batches
        self._judge_seal(facts, bad_blocks)
        if index is not None and index.reason:
            self._wrong(
                "index", index.reason, index.at * OFFSET_ENTRY_SIZE, (index.at + 1) * OFFSET_ENTRY_SIZE
            )
        if times is not None:
            times.finish(whole=out.intact)
            if times.reason:
                self._wrong(
                    "timeindex", times.reason, times.at * TIME_ENTRY_SIZE, (times.at + 1) * TIME_ENTRY_SIZE
                )
        if keys is not None and data is not None:
            self._judge_keys(keys, data)
        if not out.at_rest:
            out.sidecars.clear()
        return out

    # -- sidecars --------------------------------------------------------------------------------

    def _read(self, kind: Sidecar) -> bytes | None:
        try:
            return sidecar_of(self.segment, kind)
        except FormatError as error:
            self._wrong(kind, reason_of(error))
            return None

    def _wrong(self, kind: Sidecar, reason: str, start: int = UNKNOWN, end: int = UNKNOWN) -> None:
        """Record what is wrong with a sidecar, the first finding only."""
        self.out.sidecars.setdefault(kind, derived_damage(self.segment.path(kind), reason, start, end))

    def _read_seal(self) -> None:
        data = self._read("seal")
        if data is None:
            return
        try:
            self.stored = parse_seal(data)
        except FormatError as error:
            self._wrong("seal", reason_of(error))
            return
        stranger = self.stored.stranger(self.segment.owner(), self.segment.base_offset)
        if stranger:
            self._wrong("seal", stranger)
            self.stored = None
            return
        if self.stored.size_bytes == self.size:
            self.out.seal = self.stored
        elif self.segment.is_active:
            self._wrong("seal", f"speaks of {self.stored.size_bytes} bytes, the log has {self.size}")
            self.stored = None

    def _judge_seal(self, facts: SealFacts | None, bad_blocks: list[_Block]) -> None:
        out, stored, path = self.out, self.stored, self.segment.path()
        for start, end, _, _ in bad_blocks:
            if not any(damage.start < end and start < damage.end for damage in out.log):
                reason = "bytes outside every batch CRC (a leader epoch) are not those that were sealed"
                out.log.append(derived_damage(path, reason, start, end))
        out.log.sort(key=lambda damage: damage.start)
        if facts is not None and "seal" not in out.sidecars:
            reason = facts.difference(out.log)
            if not reason and not out.log and out.seal is not None and out.seal.crc != self.crc:
                reason = "the CRC of the whole log is another one"
            if reason:
                self._wrong("seal", reason)
        if stored is not None and out.seal is None:
            lost = stored.last_offset >= self.next_offset
            last_one = out.log[-1] if out.log else None
            if last_one is not None and last_one.end == self.size < stored.size_bytes and not lost:
                out.log[-1] = replace(last_one, end=stored.size_bytes)  # one loss: the log was cut there
                return
            first, last = (self.next_offset, stored.last_offset) if lost else (UNKNOWN, UNKNOWN)
            start, end = sorted((self.size, stored.size_bytes))
            reason = f"the seal says {stored.size_bytes} bytes, the log has {self.size}"
            out.log.append(Damage(path, start, end, first, last, reason, derived=not lost and out.intact))

    def _judge_end(self) -> None:
        """Check that nothing lies behind the last batch of a log that was closed in order.

        A writer removes the clean-shutdown mark before it writes: look for it after the size.
        """
        with self.segment.open_log() as file:
            end = file.size()
        root = self.segment.directory.rpartition("/")[0]
        if end > self.size and self.segment.context.fs.exists(f"{root}/{CLEAN_SHUTDOWN}"):
            reason = "bytes behind the end of a log that was closed in order"
            self.out.log.append(Damage(self.segment.path(), self.size, end, UNKNOWN, UNKNOWN, reason))

    def _read_index(self) -> IndexCheck | None:
        data = self._read("index")
        if data is None:
            if not self.segment.is_active:
                self._wrong("index", "the file is missing")
            return None
        try:
            return IndexCheck(OffsetIndex.parse(data, self.segment.base_offset, self.size))
        except FormatError as error:
            self._wrong("index", reason_of(error))
            return None

    def _read_times(self) -> TimeCheck | None:
        data = self._read("timeindex")
        if data is None:
            if not self.segment.is_active:
                self._wrong("timeindex", "the file is missing")
            return None
        try:
            return TimeCheck(TimeIndex.parse(data, self.segment.base_offset))
        except FormatError as error:
            self._wrong("timeindex", reason_of(error))
            return None

    def _judge_keys(self, keys: ActiveKeyIndex, data: bytes) -> None:
        base = self.segment.base_offset
        if self.out.intact and data == keyindex.pack(*keys.arrays(), base, self.size, self.crc):
            return
        try:
            reader = keyindex.KeyIndexReader(lambda size, at: data[at : at + size], len(data))
            reader.verify()
            if not self.out.intact:
                return  # its expected contents are unknown
            same = reader.matches(self.size, self.crc)
            self._wrong("keyindex", "the log holds other keys" if same else "made from another log")
        except FormatError as error:
            self._wrong("keyindex", reason_of(error))

    # -- the log ---------------------------------------------------------------------------------

    def _end_offset(self) -> int:
        """Return the offset at which the segment must end; 0 when nothing says so."""
        if self.stored is not None:
            return self.stored.last_offset + 1
        return self.segment.next_offset or 0

    def _walk(self, suspects: list[_Block]) -> Iterator[tuple[int, bytes, Scan]]:
        """Yield runs of valid batches; add the damage between them to ``out.log``."""
        segment, size, contiguous = self.segment, self.size, self.out.contiguous
        position = needed = 0
        with segment.open_log() as file:
            while position < size:
                if suspects and position == suspects[0][0]:
                    _, end, first, last = suspects.pop(0)
                    reason = "a block does not match the segment's seal: an offset in it is another one"
                    self._bad(position, end, first, last, reason)
                    position, self.next_offset = end, max(self.next_offset, last + 1)
                    continue
                limit = suspects[0][0] if suspects else size
                want = min(max(SCAN_BYTES, needed), limit - position)
                data = file.pread(want, position)
                expect = self.next_offset if contiguous else None
                more = limit - position - want if len(data) == want else 0
                scan = batches.scan(data, expect=expect, due=self.next_offset, more=more)
                if not scan.n and scan.stop is Stop.PARTIAL and want < scan.needed <= limit - position:
                    needed = scan.needed
                    continue
                good, reason = self._good_rows(data, scan)
                if good:
                    if good < scan.n:
                        scan = batches.scan(data, 0, scan.header(good).position, expect=expect)
                    yield position, data, scan
                    self.next_offset = scan.last_offset + 1
                    if self.progress is not None:
                        self.progress(scan.end)
                    position += scan.end
                    needed = 0
                    continue
                if scan.stop is Stop.ZERO and not contiguous and segment.is_reserved(file, position):
                    return
                position = self._skip(file, position, limit, reason or scan.reason, scan.stop)
                needed = 0

    def _good_rows(self, data: bytes, scan: Scan) -> tuple[int, str]:
        """Return how many batches of a scan are valid to the last record, and what is wrong with the next."""
        good, reason = scan.find_offset(self.segment.ceiling), ""
        if good < scan.n:
            last = scan.header(good).last_offset
            reason = f"offset {last} in a segment that ends before {self.segment.ceiling}"
        try:
            batches.measure(data, scan)
            batches.decode_records(data, scan, topic="", partition=0)
        except CorruptionError as error:
            found = scan.find_position(error.position)
            return (good, reason) if good <= found else (found, error.reason)
        return good, reason

    def _skip(self, file: File, position: int, limit: int, reason: str, stop: Stop) -> int:
        """Record the damage at ``position``; return where valid batches go on."""
        self.out.unsupported |= stop is Stop.UNSUPPORTED
        first = self.next_offset
        most = None if self.stored is None else self.stored.last_offset
        end = resume(self.segment, file, position, limit=limit, at_least=first, at_most=most)
        if end < limit:
            following = int.from_bytes(file.pread(8, end), "big")
        else:
            following = max(first, self._end_offset()) if limit == self.size else first
        if stop is Stop.PARTIAL:
            reason = "a batch runs past the end of the segment"
        elif stop is Stop.END:
            reason = f"the log ends at byte {position}, and should have {self.size} bytes"
        lost = following > first
        self._bad(position, end, first if lost else UNKNOWN, following - 1 if lost else UNKNOWN, reason)
        self.next_offset = following
        return end

    def _bad(self, start: int, end: int, first: int, last: int, reason: str) -> None:
        self.out.log.append(Damage(self.segment.path(), start, end, first, last, reason))
        if self.progress is not None:
            self.progress(end - start)


def _at_rest(segment: Segment) -> bool:
    """Return whether a segment is sealed and synced, or the last one of a log that was closed in order."""
    if segment.unsynced or isinstance(segment, ActiveSegment):
        return False  # the tail may tell of an older clean stop than the log directory does
    if not segment.is_active:
        return True
    try:
        tail = read_tail(segment.context.fs, segment.directory, segment.owner())
    except FormatError:
        return False
    return (
        tail is not None
        and tail.clean
        and (tail.synced_base, tail.synced_position) == (segment.base_offset, segment.size)
    )


def _crcs(segment: Segment, size: int, seal: Seal | None) -> tuple[int, list[_Block]]:
    """Return the CRC of the whole log, and the blocks that differ from the seal."""
    crc, bad = 0, []
    with segment.open_log() as file:
        if seal is None:
            for start in range(0, size, SCAN_BYTES):
                crc = kernel.crc32c(file.pread(min(SCAN_BYTES, size - start), start), crc)
            return crc, []
        for i, block in enumerate(seal.blocks):
            length = seal.block_size(i)
            data = file.pread(length, block.position)
            crc = kernel.crc32c(data, crc)
            if kernel.crc32c(data) != block.crc:
                bad.append((block.position, block.position + length, block.first_offset, block.last_offset))
    return crc, bad


def _sound(segment: Segment, start: int, end: int) -> bool:
    """Return whether every batch in a range has a valid CRC, whatever its offset."""
    with segment.open_log() as file:
        data = file.pread(end - start, start)
    position = 0
    while position < len(data):
        scan = batches.scan(data, position, max_batches=1)
        if not scan.n:
            return False
        position = scan.end
    return True
