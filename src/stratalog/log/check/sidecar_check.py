"""What is derived from a log, compared with the log as it goes by.

Each of these is fed the good batches of one segment in order and ends with a reason, or none. The log is
the truth here: nothing below ever judges it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.errors import ArchiveError, CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format.batch import Scan
from stratalog.format.batch.header_scan import WIDTH
from stratalog.format.offset_index import OffsetIndex
from stratalog.format.seal import Seal
from stratalog.format.time_index import TimeIndex
from stratalog.format.txn_index import AbortedTxn
from stratalog.format.txn_index import parse as parse_txn_index
from stratalog.log.check.damage import Damage, derived_damage, reason_of
from stratalog.log.names import SNAPSHOT, parse_file
from stratalog.log.segment.directory_state import list_files
from stratalog.log.segment.segment import Segment, scan_file
from stratalog.log.write.producers import ProducerBatch, load_snapshot

if TYPE_CHECKING:
    from stratalog.log.check.segment_check import CheckedSegment

_POSITION, _BASE, _LAST, _COUNT, _ATTRIBUTES, _NEWEST, _OLDEST = 0, 2, 3, 4, 6, 9, 10
"""Columns of a scan's table."""
_CONTROL = 0x20


def sidecar_of(segment: Segment, kind: str) -> bytes | None:
    """A derived file as it is; None when there is none. CorruptionError when the archive has lost it."""
    try:
        return segment.sidecar(kind)
    except ArchiveError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise  # the archive cannot be reached: nobody knows
        raise CorruptionError(error.reason, path=error.url) from error


class IndexCheck:
    """Does every entry of an offset index meet the batch it promises?"""

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
            if where >= position:  # else it points into damage, where nothing can be told
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
    """Does every entry (t, o) of a time index keep its promise: nothing newer than t up to o, and t at o?"""

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
        """After the last batch: the last entry must hold the largest timestamp."""
        if self.reason or not whole:
            return
        last = self._times.last()
        if self.at < len(self._times):
            self.reason = f"points to offset {self._times.entry(self.at)[1]}, past the end of the segment"
        elif (-1 if last is None else last[0]) < self._newest:
            self.reason = f"does not hold the largest timestamp, {self._newest}"


class SealFacts:
    """Are the facts a seal states of each block those of its batches?"""

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
        """What the seal states that is not so; blocks with damage in them are left out."""
        for at, block in enumerate(self._seal.blocks):
            start, end = block.position, block.position + self._seal.block_size(at)
            if any(damage.start < end and start < damage.end for damage in damages):
                continue
            if self._found.get(at) != list(block[2:]):
                return f"block {at} states {list(block[2:])}, the log gives {self._found.get(at)}"
        return ""


class Transactions:
    """The aborted transactions a log gives, segment by segment from the first one on."""

    def __init__(self, first: Segment) -> None:
        context, directory = first.context, first.directory
        try:
            listed = list_files(context.fs, directory)
        except (FileNotFoundError, NotADirectoryError):
            listed = {}  # nothing but the archive is left of this log
        parsed = (parse_file(name) for name in listed)
        self._snapshots = [
            each.base_offset
            for each in parsed
            if each is not None and each.kind == SNAPSHOT and not each.suffix
        ]
        self._state, at = load_snapshot(context, directory, self._snapshots, first.base_offset, 2**63 - 1)
        self.certain = at == first.base_offset
        """False when something before, deleted, cleaned or damaged, may matter."""

    def _begin(self, segment: Segment) -> None:
        """Take up a snapshot where the log before cannot tell: it knows where open transactions began."""
        if self.certain or segment.base_offset not in self._snapshots:
            return
        found = load_snapshot(
            segment.context, segment.directory, self._snapshots, segment.base_offset, 2**63 - 1
        )
        if found[1] == segment.base_offset:
            self._state, self.certain = found[0], True

    def aborted(self, segment: Segment) -> list[AbortedTxn]:
        """Replay one segment, whose log must be whole; the transactions aborted in it."""
        found = []
        with segment.open_log() as file:
            for _, data, scan in scan_file(file, 0, segment.size):
                if not scan.has_producers:
                    continue
                for header in scan:
                    if header.producer_id < 0:
                        continue
                    marker, epoch = batches.decode_control(data, header) if header.is_control else (None, -1)
                    completed = self._state.update(ProducerBatch.of(header, marker, epoch), replay=True)
                    if completed is not None and completed.aborted:
                        found.append(completed.aborted_txn())
        return found

    def check(self, checked: CheckedSegment) -> None:
        """Judge a segment's transaction index, and say what it should hold."""
        segment = checked.segment
        path = segment.path("txnindex")
        self._begin(segment)
        stored: list[AbortedTxn] | None = []
        try:
            stored = parse_txn_index(sidecar_of(segment, "txnindex") or b"")
        except FormatError as error:
            stored = None
            if checked.at_rest:
                checked.sidecars["txnindex"] = derived_damage(path, reason_of(error))
        try:
            self.certain &= checked.intact
            expected = self.aborted(segment) if checked.has_producers and checked.intact else []
        except (FormatError, FileNotFoundError):
            self.certain = False
        if not checked.contiguous:
            self.certain = False  # cleaning takes batches away, perhaps the one that began a transaction
        if not self.certain:
            return
        checked.aborted = expected
        if checked.at_rest and stored is not None and stored != expected:
            checked.sidecars["txnindex"] = derived_damage(path, f"lists {stored}, the log gives {expected}")
