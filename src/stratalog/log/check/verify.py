"""Check a partition to the last byte, changing nothing.

Every batch: its CRC, its form, each record in it, its place among the offsets. Every seal: its own CRC and
the CRCs and facts it states. Every index entry: that it meets its batch. One bad byte costs one batch, and
each `Damage` names the bytes and the offsets lost, which follow from the batches before and after.

Works on any `LogView`, also beside a running writer: a segment that is replaced or removed meanwhile is
looked up again and never taken for damage. Bytes past a live segment's readable end are not judged: a torn
tail is not corruption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stratalog.errors import ArchiveError, CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format import producer_snapshot
from stratalog.format.checkpoints import parse_leader_epochs
from stratalog.format.metadata import PARTITION_METADATA, parse_partition_metadata
from stratalog.format.tail import Tail
from stratalog.format.txn_index import AbortedTxn
from stratalog.format.txn_index import parse as parse_txn_index
from stratalog.log.check.damage import UNKNOWN, Damage, derived_damage, reason_of
from stratalog.log.check.orphans import check_orphans
from stratalog.log.check.segment_check import CheckedSegment, check_segment, sidecar_of
from stratalog.log.names import LEADER_EPOCH_CHECKPOINT as EPOCHS
from stratalog.log.names import MAX_OFFSET, SNAPSHOT, TAIL, parse_file
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.gaps import lost_behind, missing_between
from stratalog.log.read.reader import LogView, segment_index
from stratalog.log.segment.directory_state import list_files
from stratalog.log.segment.segment import Segment, owner_of, scan_file
from stratalog.log.write.producers import ProducerBatch, load_snapshot
from stratalog.log.write.sync import read_tail

Check = Callable[[int], CheckedSegment | None]

UNREAD = "the archive cannot be read"

LOOKS = 5
"""So often is a segment looked at that changes, or is gone, while it is checked."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked, and the damage found."""

    segments: int = 0
    bytes: int = 0
    records: int = 0
    damages: tuple[Damage, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.damages

    def merge(self, other: VerifyReport) -> VerifyReport:
        return VerifyReport(
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.records + other.records,
            self.damages + other.damages,
        )


def verify_partition(view: LogView, *, progress: Callable[[int], None] | None = None) -> VerifyReport:
    """Read and check every byte of a partition; ``progress`` gets the bytes as they are read."""
    found: list[Damage] = []
    segments = size = records = 0
    unread: list[Damage] = []
    for checked in check_segments(view, progress, unread=unread):
        segments += 1
        size += checked.segment.size
        records += checked.records
        found += checked.damages
    found += unread + [each for each in check_files(view) if not is_named(each, found)]
    return VerifyReport(segments, size, records, tuple(found))


def is_named(damage: Damage, found: Sequence[Damage]) -> bool:
    """Return True if the loss of these offsets of a log is known from its batches already."""
    return damage.first_offset >= 0 and any(
        each.path == damage.path
        and each.first_offset <= damage.first_offset
        and damage.last_offset <= each.last_offset
        for each in found
    )


def check_segments(
    view: LogView,
    progress: Callable[[int], None] | None = None,
    *,
    check: Check | None = None,
    unread: list[Damage] | None = None,
) -> Iterator[CheckedSegment]:
    """Check every segment of a view, in order, by itself and against the one before it.

    ``check`` checks one by itself, given its base offset. An archive that cannot be read is asked once: its
    segments are left out and added to ``unread`` as one damage; without that list the error is raised.
    """
    check = check or (lambda base_offset: check_standing_still(view, base_offset, progress))
    view.refresh()
    before: CheckedSegment | None = None
    transactions: Transactions | None = None
    done = UNKNOWN
    while True:
        segment = next((each for each in view.segments() if each.base_offset > done), None)
        if segment is None:
            break
        done = segment.base_offset
        if not segment.is_active and (segment.next_offset or MAX_OFFSET) <= view.log_start_offset:
            continue  # its deletion has begun, and may have been cut short
        try:
            checked = check(done)
        except ArchiveError as error:
            if unread is None:
                raise
            cold = [each for each in view.segments() if each.base_offset >= done and not _is_here(each)]
            unread.append(_unread(view, cold or [segment], error))
            done = max(each.base_offset for each in cold or [segment])
            if before is not None:
                yield before
            before = transactions = None
            continue
        if checked is None:
            continue  # removed while we looked: not damage
        if transactions is None:
            transactions = Transactions(checked.segment)
        transactions.check(checked)
        if before is not None:
            _check_gap(view, before, checked)
            yield before
        before = checked
    if before is not None:
        yield before


def _is_here(segment: Segment) -> bool:
    return not isinstance(segment, ArchivedSegment)


def _unread(view: LogView, segments: Sequence[Segment], error: ArchiveError) -> Damage:
    """Build the damage for segments in an archive that cannot be read."""
    first, last = segments[0].base_offset, (segments[-1].next_offset or segments[-1].base_offset + 1) - 1
    count = f"{len(segments)} segment{'' if len(segments) == 1 else 's'}"
    why = f"{UNREAD}: {error}; {count} there, offsets {first} to {last}, were not checked"
    return Damage(f"{view.topic}-{view.partition}", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, why)


def check_standing_still(
    view: LogView, base_offset: int, progress: Callable[[int], None] | None = None
) -> CheckedSegment | None:
    """Check one segment by itself, again while it is being replaced; None when it was removed meanwhile."""
    checked: CheckedSegment | None = None
    for _ in range(LOOKS):
        segment = _segment_at(view, base_offset)
        if segment is None:
            return None
        try:
            inode = segment.inode()
            checked = check_segment(segment, progress)
            checked.inode = inode
            if not checked.damages or (segment.inode() == inode and not view.replaced(segment)):
                return checked
        except FileNotFoundError:
            checked = None
        segment.forget()
        view.refresh()
    if checked is None and segment is not None:
        checked = CheckedSegment(segment, at_rest=False, next_offset=segment.base_offset)
        last = max(segment.next_offset or 0, segment.base_offset) - 1
        first = segment.base_offset if last >= segment.base_offset else UNKNOWN
        checked.log.append(
            Damage(segment.path(), 0, UNKNOWN, first, max(last, UNKNOWN), "the file is missing")
        )
    return checked


def _segment_at(view: LogView, base_offset: int) -> Segment | None:
    segments = view.segments()
    found = segments[segment_index(segments, base_offset)] if segments else None
    return found if found is not None and found.base_offset == base_offset else None


def _check_gap(view: LogView, before: CheckedSegment, after: CheckedSegment) -> None:
    """Record the offsets missing between two neighbours, unless the log changed there meanwhile."""
    try:
        if _missing(before, before.segment, after) is None:
            return
        view.refresh()
        current = _segment_at(view, before.segment.base_offset)
        if current is None:
            return  # the head of the log was deleted
        lost = _missing(before, current, after)
    except FileNotFoundError:
        return
    if lost is not None and lost.first_offset >= view.log_start_offset:
        before.log.append(lost)


def _missing(before: CheckedSegment, segment: Segment, after: CheckedSegment) -> Damage | None:
    """Return what is missing behind a segment and not yet named by its own check."""
    base = after.segment.base_offset
    named = max((each.last_offset + 1 for each in before.log), default=0)
    try:
        return missing_between(segment, after.segment, named, base)
    except CorruptionError:  # the seal contradicts the log, which is named: it still tells where that ended
        seal = before.seal
        if seal is None or not seal.contiguous or seal.last_offset + 1 >= base:
            return None
        return lost_behind(segment, seal.last_offset + 1, base)


def check_files(view: LogView) -> list[Damage]:
    """Check the files that belong to no segment: metadata and snapshots must parse, the tail must be its own.

    Without a writer here, a snapshot past the synced end may be a leftover of a power cut.
    """
    segments = view.segments()
    if not segments:
        return []
    fs, directory = segments[0].context.fs, view.directory
    try:
        listed = list_files(fs, directory)
    except (FileNotFoundError, NotADirectoryError):
        return []  # nothing but the archive is left of it
    found = []
    synced = known = min((each.base_offset for each in segments if each.unsynced), default=MAX_OFFSET)
    try:
        tail = read_tail(fs, directory, owner_of(fs, directory, view.partition))
        found += _check_end(view) if tail is None else _check_synced(view, tail)
        known = known if tail is None else min(known, tail.synced_offset)
        if tail is not None and tail.clean:
            synced = max(synced, tail.synced_offset)
    except FormatError as error:
        found.append(derived_damage(f"{directory}/{TAIL}", reason_of(error)))
    with suppress(FileNotFoundError):
        found += check_orphans(view, known)
    for name, parse in ((PARTITION_METADATA, parse_partition_metadata), (EPOCHS, parse_leader_epochs)):
        try:
            parse(fs.read_file(f"{directory}/{name}"))
        except FileNotFoundError:
            continue
        except CorruptionError as error:
            found.append(derived_damage(f"{directory}/{name}", error.reason))
    for name in listed:
        parsed = parse_file(name)
        path = f"{directory}/{name}"
        if parsed is None or parsed.kind != SNAPSHOT or parsed.suffix or parsed.base_offset > synced:
            continue
        try:
            producer_snapshot.parse(fs.read_file(path))
        except FileNotFoundError:
            continue
        except FormatError as error:
            found.append(derived_damage(path, reason_of(error)))
    return found


def _check_synced(view: LogView, tail: Tail) -> list[Damage]:
    """Check that the last segment reaches the synced end; read after the tail, which never leads it."""
    view.refresh()
    last = view.segments()[-1]
    if last.base_offset > tail.synced_base:
        return []
    first, size = last.base_offset, 0
    with suppress(FileNotFoundError), last.open_log() as file:
        if last.base_offset == tail.synced_base and file.size() >= tail.synced_position:
            return []
        for at, _, scan in scan_file(file, 0, file.size()):
            if scan.n:
                first, size = scan.last_offset + 1, at + scan.end
    first = min(first, tail.synced_offset - 1)
    reason = f"the log ends before its synced end, offset {tail.synced_offset}"
    end = tail.synced_position if last.base_offset == tail.synced_base else UNKNOWN
    start = size if end >= 0 else UNKNOWN
    return [Damage(last.path(), start, end, first, tail.synced_offset - 1, reason)]


def _check_end(view: LogView) -> list[Damage]:
    """Check, where no tail tells, that the last segment reaches the recovery point."""
    view.refresh()
    end = view.end_offset()
    last = view.segments()[-1]
    first = last.next_offset
    if first is None or first >= end:
        return []
    reason = f"the log ends before its recovery point, offset {end}"
    return [Damage(last.path(), UNKNOWN, UNKNOWN, first, end - 1, reason)]


class Transactions:
    """Replays a log segment by segment to find the aborted transactions."""

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
        self._state, at = load_snapshot(first.location, self._snapshots, first.base_offset, 2**63 - 1)
        self.certain = at == first.base_offset
        """False when something before, deleted, cleaned or damaged, may matter."""

    def _begin(self, segment: Segment) -> None:
        """Load the snapshot at a segment's base where the log before it is not enough."""
        if self.certain or segment.base_offset not in self._snapshots:
            return
        found = load_snapshot(segment.location, self._snapshots, segment.base_offset, 2**63 - 1)
        if found[1] == segment.base_offset:
            self._state, self.certain = found[0], True

    def aborted(self, segment: Segment) -> list[AbortedTxn]:
        """Replay one intact segment and return the transactions aborted in it."""
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
        """Check a segment's transaction index, and record what it should hold."""
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
