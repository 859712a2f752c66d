"""Opening a partition for writing: settle what a crash left, find the end, cut a torn tail.

After a clean stop nothing is scanned. After a crash only the part past the synced end is: every batch there
must be valid and follow the one before; at the first that does not, the log is cut, and everything behind,
later segments included, is saved as `.torn` and synced before anything is truncated. Below the synced end
nothing is ever cut: damage there is corruption, which readers name and `repair` may give up.

The synced end is in `stratalog.tail` or, if that is missing or a Kafka broker wrote last, the recovery point
of the log directory's checkpoint. After a broker's clean stop all of the log is synced.

Recovery can itself be cut short at any call: the next one derives the same decisions again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.errors import CorruptionError, FormatError, UnsupportedFormat
from stratalog.format import batch as batches
from stratalog.format import checkpoints, producer_snapshot, txn_index
from stratalog.format import tail as tails
from stratalog.format.batch import Scan, Stop
from stratalog.format.seal import pack as pack_seal
from stratalog.format.seal import parse as parse_seal
from stratalog.format.tail import Tail
from stratalog.format.txn_index import AbortedTxn
from stratalog.log import names
from stratalog.log.check.damage import reason_of
from stratalog.log.check.orphans import checkpointed_start
from stratalog.log.check.resync import resume, scan_past_damage
from stratalog.log.context import PartitionLocation
from stratalog.log.read.chunks import meet
from stratalog.log.read.gaps import in_cleaner_checkpoint
from stratalog.log.read.list_offsets import read_epochs
from stratalog.log.segment.directory_state import DirectoryView, list_files, run_actions, swap_end, view_of
from stratalog.log.segment.segment import SCAN_BYTES, Segment, owner_of, scan_file
from stratalog.log.write.active import Activation, ActiveSegment
from stratalog.log.write.producers import ProducerState, replay_producers
from stratalog.log.write.sync import SyncedEnd, TailFile, read_tail, sync_file


class WriterState(NamedTuple):
    """What recovery found; the writer starts from it."""

    sealed: tuple[Segment, ...]
    active: ActiveSegment
    log_start_offset: int
    synced: SyncedEnd
    producers: ProducerState
    leader_epoch: int
    tail: Tail | None
    unsynced: tuple[Segment, ...] = ()
    recovered: bool = False
    """A close must write the state down even if nothing is appended."""


EVERYTHING = 2**63 - 1
"""The synced end of a log that was closed in order by a writer that did not record where."""


@dataclass(slots=True)
class RecoveryReport:
    """What opening a partition found and did."""

    directory: str
    scanned_bytes: int = 0
    cuts: list[str] = field(default_factory=list)
    """A line for each tail that was cut, with the path of the saved bytes."""
    damages: list[str] = field(default_factory=list)
    """A line for each thing missing below the synced end."""


@dataclass(frozen=True, slots=True)
class OpenAs:
    """What the store knows about the partition from its root files."""

    clean: bool = False
    """The last writer stopped in order."""
    foreign: bool = False
    """The last writer was not this library: our tail and seals may be stale."""
    recovery_point: int | None = None
    log_start_offset: int = 0
    local_start_offset: int = 0
    """Segments wholly below this are in the archive only; local files of them are removed."""
    producer_expiration_ms: int = 86_400_000


def open_partition(
    location: PartitionLocation, config: TopicConfig, how: OpenAs
) -> tuple[WriterState, RecoveryReport]:
    """Settle the directory; return what the writer needs, and a report. Raises what the filesystem raises."""
    return _Recovery(location, config, how).run()


class _Recovery:
    def __init__(
        self,
        location: PartitionLocation,
        config: TopicConfig,
        how: OpenAs,
    ) -> None:
        self.location = location
        self.context, self.directory, self.topic, self.partition = location
        self.fs = self.context.fs
        self.config = config
        self.how = how
        self.report = RecoveryReport(self.directory)
        self.owner = owner_of(self.fs, self.directory, self.partition)
        self.saw_producers = False
        self.aborted_known = True
        self.synced_offset = 0
        """Batches below this offset are on disk: a bad one is corruption, not a torn tail."""
        self.ends_damaged = False
        """The last segment ends with damaged bytes below the synced end: the log goes on in another one."""

    def run(self) -> tuple[WriterState, RecoveryReport]:
        if not self.how.clean:
            self.fs.sync_dir(self.directory)  # the names a killed process left may not be durable
        view = self._settle()
        tail = self._read_tail(view)
        if tail is not None and tail.clean and self.how.clean:
            # The tail may lag: it is not synced. The recovery point is, before the mark of a clean stop.
            known = max(tail.synced_offset, tail.high_watermark, self.how.recovery_point or 0)
            self._check_log_start(known)
        segments = self._segments(view)
        if not segments:
            segments = [self._create(max(self.how.log_start_offset, self.how.local_start_offset))]
        self.synced_offset = self._known_synced(tail)
        self._settle_orphans(view)
        trusted = self._trusted(segments, tail)
        active, unsynced, end = self._find_end(segments, trusted)
        aborted: dict[int, list[AbortedTxn]] = {}
        if not self.how.clean or not self.aborted_known or unsynced:
            active.sidecars.aborted.clear()
            past = [segment for segment in segments if segment.base_offset >= trusted.base_offset]
            aborted = {segment.base_offset: [] for segment in past}
        if not self.how.clean:
            self._remove_torn_snapshots(view.snapshots, trusted.base_offset)
        known_free = tail is not None and not tail.producers and not self.saw_producers
        producers = replay_producers(
            self.location,
            [*(segment for segment in segments if not segment.is_active), active],
            view.snapshots,
            end.offset,
            trusted_offset=end.offset if known_free else None,
            expiration_ms=self.how.producer_expiration_ms,
            snapshot_limit=trusted.base_offset if aborted else end.offset,
            aborted=aborted,
        )
        active.sidecars.aborted.extend(aborted.pop(active.base_offset, ()))
        if not active.sidecars.aborted:
            self._remove(active.path("txnindex"))  # a power cut took the markers it lists
        self._write_aborted(aborted)
        keep = max(end.offset, self.how.log_start_offset)
        if self.synced_offset < EVERYTHING:
            keep = max(keep, self.synced_offset)
        if tail is not None:
            keep = max(keep, tail.high_watermark)
        if self.ends_damaged:
            keep = max(keep, active.base_offset + 1)
        if keep > end.offset or self.ends_damaged:
            # These offsets were acknowledged or seen and their records are gone: never assign them again.
            lost = end.offset < self.synced_offset < EVERYTHING
            if lost:
                self._damage(f"offsets {end.offset} to {self.synced_offset - 1} were synced and are missing")
            active = self._skip_to(segments, active, keep, producers, lost=lost)
            if not lost and not self.ends_damaged and len(segments) > 1:
                self._allow_gap(segments[-2])
            end = SyncedEnd(active.base_offset, 0, keep)
            tail = self._settle_skip(unsynced + segments[-3:-1], end, tail)
            unsynced, trusted = [], end
            segments = self._without_deleted(segments)
        log_start = max(self.how.log_start_offset, segments[0].base_offset)
        state = WriterState(
            sealed=tuple(segment for segment in segments if segment.base_offset < active.base_offset),
            active=active,
            log_start_offset=min(log_start, end.offset),
            synced=trusted,
            producers=producers,
            leader_epoch=self._leader_epoch(),
            tail=tail,
            unsynced=tuple(unsynced),
            recovered=not self.how.clean and not self.how.foreign,
        )
        return state, self.report

    def _check_log_start(self, end: int) -> None:
        """Raise CorruptionError, before a segment is removed, if a log closed in order ends before it starts.

        After a crash that is possible: the records below the log start offset need not have been synced.
        """
        if self.how.log_start_offset > end:
            raise CorruptionError(
                f"the log start offset of {self.topic}-{self.partition} is {self.how.log_start_offset},"
                f" but the log ends at offset {end}; correct the number, or remove the line to start at the"
                f" first segment",
                path=f"{self.directory.rpartition('/')[0]}/{checkpoints.LOG_START}",
            )

    def _write_aborted(self, aborted: dict[int, list[AbortedTxn]]) -> None:
        """Write the `.txnindex` of sealed segments past the synced end, and its CRC in their seals."""
        for base_offset, txns in aborted.items():
            stem = f"{self.directory}/{names.segment_name(base_offset)}"
            data = txn_index.pack(txns)
            if data:
                self.fs.write_file(f"{stem}.txnindex", data, sync=False)
            else:
                self._remove(f"{stem}.txnindex")
            if self.fs.exists(f"{stem}.seal"):  # a damaged segment has none
                seal = parse_seal(self.fs.read_file(f"{stem}.seal"))
                seal = replace(seal, txn_index_crc=kernel.crc32c(data) if data else 0)
                self.fs.write_file(f"{stem}.seal", pack_seal(seal), sync=False)

    # -- the directory -------------------------------------------------------------------------

    def _settle(self) -> DirectoryView:
        """Finish or undo swaps and remove deleted files, by Kafka's rules."""
        entries = list_files(self.fs, self.directory)
        view = view_of(entries, lambda base: swap_end(self.context, self.directory, base))
        if view.leftovers:
            run_actions(self.context, self.directory, view.leftovers)
            view = view_of(list_files(self.fs, self.directory))
        return view

    def _settle_orphans(self, view: DirectoryView) -> None:
        """Remove the sidecars that a deletion or a power cut left without a log; others tell of a loss."""
        if not view.orphans:
            return
        # Not the start in `how`: one that only follows the first segment explains nothing.
        start = checkpointed_start(self.fs, self.directory, self.topic, self.partition)
        start = max(start, self.how.local_start_offset)
        bases = sorted((*view.orphans, *(files.base_offset for files in view.segments)))
        for base, following in pairwise(bases):
            if base not in view.orphans:
                continue
            if following <= start or following > self.synced_offset:
                for kind in names.SEGMENT_KINDS:
                    self._remove(f"{self.directory}/{names.file_name(base, kind)}")
            else:
                self._damage(f"{names.file_name(base, names.LOG)} is missing, but its indexes exist")

    def _segments(self, view: DirectoryView) -> list[Segment]:
        found = [Segment(self.location, files.base_offset, size=files.size) for files in view.segments]
        for segment, following in pairwise(found):
            segment.next_offset = following.base_offset
        return self._without_deleted(found)

    def _without_deleted(self, segments: list[Segment]) -> list[Segment]:
        """Finish a deletion of the log's head: a power cut may have kept any of its renames."""
        if self.how.foreign:
            return segments
        start = max(self.how.log_start_offset, self.how.local_start_offset)
        below = [segment for segment in segments[1:] if segment.base_offset <= start]
        if below:
            # The producers' state at the new start must outlive what is deleted.
            sync_file(self.fs, f"{self.directory}/{names.segment_name(below[-1].base_offset)}.snapshot")
            self.fs.sync_dir(self.directory)
        for segment in segments[: len(below)]:
            for kind in (*names.SEGMENT_KINDS, names.SNAPSHOT):  # the log first: readers beside look for it
                self._remove(segment.path(kind))
        if below:
            # Durable before a checkpoint is written: its log start need not be where a segment begins.
            self.fs.sync_dir(self.directory)
        return segments[len(below) :]

    def _read_tail(self, view: DirectoryView) -> Tail | None:
        if self.how.foreign:
            return None
        try:
            return read_tail(self.fs, self.directory, self.owner)
        except UnsupportedFormat:
            raise
        except FormatError as error:
            self._damage(f"{names.TAIL}: {reason_of(error)}; the log is scanned instead")
            return None

    def _create(self, base_offset: int) -> Segment:
        segment = Segment(self.location, base_offset, size=0)
        self.fs.open(segment.path(), "x").close()
        self.fs.sync_dir(self.directory)
        return segment

    def _leader_epoch(self) -> int:
        try:
            epochs = read_epochs(self.fs, self.directory)
        except CorruptionError as error:
            path = f"{self.directory}/{names.LEADER_EPOCH_CHECKPOINT}"
            self.context.warn(f"{path}: {error.reason}; epoch 0 is assumed")
            epochs = []
        return epochs[-1][0] if epochs else 0

    # -- the end -------------------------------------------------------------------------------

    def _known_synced(self, tail: Tail | None) -> int:
        """Return the offset up to which the last writer synced the log, as far as known."""
        known = max(self.how.recovery_point or 0, 0 if tail is None else tail.synced_offset)
        closed = self.how.clean and tail is None and self.how.recovery_point is None
        return EVERYTHING if closed else known

    def _trusted(self, segments: list[Segment], tail: Tail | None) -> SyncedEnd:
        """Return where the scan must begin: the synced end, as far as known."""
        by_base = {segment.base_offset: segment for segment in segments}
        if tail is not None:
            segment = by_base.get(tail.synced_base)
            if segment is not None and segment.size >= tail.synced_position:
                return SyncedEnd(tail.synced_base, tail.synced_position, tail.synced_offset)
            if segment is not None:
                self._damage(f"{segment.path()} has {segment.size} bytes, {tail.synced_position} were synced")
                return SyncedEnd(segment.base_offset, 0, segment.base_offset)
        last = segments[-1]
        if self.how.clean:
            return self._end_of(last)
        point = self.how.recovery_point
        at = last if point is None else segments[0]
        for segment in segments:
            if point is not None and segment.base_offset <= point:
                at = segment
        if point is None and tail is None:
            at = segments[0]
        return SyncedEnd(at.base_offset, 0, at.base_offset)

    def _end_of(self, segment: Segment) -> SyncedEnd:
        """Find the end of a log that was closed in order, from the last index entry on."""
        start = segment.start_for(2**63 - 1)
        position, offset = start.position, segment.base_offset
        with segment.open_log() as file:
            for at, _, scan in scan_file(file, position, segment.size, check_crc=True):
                if scan.n:
                    position, offset = at + scan.end, scan.last_offset + 1
        return SyncedEnd(segment.base_offset, position, offset)

    def _find_end(
        self, segments: list[Segment], trusted: SyncedEnd
    ) -> tuple[ActiveSegment, list[Segment], SyncedEnd]:
        """Scan from the trusted end on; return the active segment, the unsynced sealed ones, the end.

        Segments that had to be cut off are removed from ``segments``.
        """
        at = next(i for i, segment in enumerate(segments) if segment.base_offset == trusted.base_offset)
        position, offset = trusted.position, trusted.offset
        unsynced: list[Segment] = []
        while True:
            segment = segments[at]
            known = trusted if segment.base_offset == trusted.base_offset else None
            activation = Activation(self.context, self.config, segment, known, self.owner)
            end_position, end_offset = self._scan(activation, segment, position, offset)
            if end_position < segment.size and end_offset < self.synced_offset:
                synced = self._behind_damage(segment, end_position, end_offset)
                activation = self._activate_again(activation, segment, synced)
                end_position, end_offset = self._scan(activation, segment, synced.position, synced.offset)
            last = at == len(segments) - 1
            broken = end_position < segment.size
            if not broken and not last and not self._follows(segment, segments[at + 1], end_offset):
                following = segments[at + 1].base_offset
                if end_offset < min(self.synced_offset, following):
                    self._damage(f"offsets {end_offset} to {following - 1} were synced and are missing")
                else:
                    broken = True
            jump = self._jump(segment, end_position) if broken or last else None
            if jump is not None:
                end_position, end_offset = jump
                broken = end_offset >= self.synced_offset
                if not broken:
                    following = end_offset if self.synced_offset == EVERYTHING else self.synced_offset
                    self._lost(segment, end_position, segment.size, end_offset, following)
                    self.ends_damaged = True
                    end_position, end_offset = segment.size, following
                end = SyncedEnd(segment.base_offset, end_position, end_offset)
                activation = self._activate_again(activation, segment, end)
            if broken:
                self._check_order(segment, end_position, end_offset)
                self._cut(segments, at, end_position, end_offset)
                activation.forget_seal()
                last = True
            active = activation.finish(end_position, end_offset)
            active.gaps = self._may_have_gaps(segment, activation)
            self.saw_producers = self.saw_producers or activation.saw_producers
            if last:
                if self.how.clean:
                    self._take_aborted(segment, active)
                self.context.cache.forget(segment.serial)  # `active` has its own place in it
                segments[-1] = active
                return active, unsynced, SyncedEnd(active.base_offset, end_position, end_offset)
            # Also when all of its log is synced: its sidecars were written after that.
            known_seal = segment.seal_of(segment.size, self.owner)
            active.write_sidecars(keyed=self.config.key_index_enable, known=known_seal)
            segment.forget()
            unsynced.append(segment)
            at += 1
            position, offset = 0, segments[at].base_offset

    def _activate_again(self, given_up: Activation, segment: Segment, end: SyncedEnd) -> Activation:
        """Return an activation of what lies before ``end``, in place of one that took in too much."""
        self.saw_producers = self.saw_producers or given_up.saw_producers
        return Activation(self.context, self.config, segment, end, self.owner)

    def _jump(self, segment: Segment, end: int) -> tuple[int, int] | None:
        """Return where a broker's last batch begins, and the offset due there, if its own is wrong.

        No CRC covers a base offset, and no batch follows that would tell that it was raised. It is taken for
        wrong if it leaves the only gap of the segment, and nothing else shows that the log was cleaned.
        """
        if not self.how.foreign or in_cleaner_checkpoint(segment):
            return None
        if self.how.clean:  # look at the end only, unless a batch there is not where the index has it
            start = segment.start_for(names.MAX_OFFSET)
            with segment.open_log() as file:
                met = start.last_offset is None or meet(file, start) is not None
            if met and start.position and self._only_gap(segment, start.position, end) is None:
                return None
        return self._only_gap(segment, 0, end)

    def _only_gap(self, segment: Segment, position: int, end: int) -> tuple[int, int] | None:
        """Return where the last batch begins, and the offset due there, if it alone leaves a gap."""
        jump, due = None, segment.base_offset if position == 0 else -1
        with segment.open_log() as file:
            for at, _, scan in scan_past_damage(
                segment, file, position, limit=end, at_least=segment.base_offset
            ):
                if at > position or due < 0:
                    due = scan.first_base_offset  # nothing is known of the batch before it
                position = at + scan.end
                if jump is None and scan.first_base_offset == due and scan.is_dense:
                    due = scan.last_offset + 1
                    continue
                for header in scan:
                    if jump is not None or header.count <= header.last_offset - header.base_offset:
                        return None
                    if header.base_offset > due:
                        jump = at + header.position, due
                    due = header.next_offset
        return jump

    def _check_order(self, segment: Segment, position: int, offset: int) -> None:
        """Raise CorruptionError if a synced batch lies behind ``position``, where the log is to be cut.

        It has an offset below the synced end, and no copy of it stands before: then a batch before it claims
        an offset that is too high.
        """
        if not offset >= self.synced_offset > segment.base_offset:
            return
        with segment.open_log() as file:
            behind = scan_past_damage(
                segment, file, position, limit=segment.size, at_least=segment.base_offset, check_crc=True
            )
            suspects = [
                (header.base_offset, at + header.position)
                for at, _, scan in behind
                for header in scan
                if header.base_offset < self.synced_offset
            ]
            known = set[int]()
            if suspects:
                before = scan_past_damage(segment, file, 0, limit=position, at_least=segment.base_offset)
                known = {header.base_offset for _, _, scan in before for header in scan}
        for base_offset, at in suspects:
            if base_offset not in known:
                raise CorruptionError(
                    f"offset {base_offset} comes after {offset - 1}, and everything below"
                    f" {self.synced_offset} was synced: the base offset of a batch is wrong;"
                    f" `stratalog dump` shows the batches",
                    path=segment.path(),
                    position=at,
                )

    def _behind_damage(self, segment: Segment, position: int, offset: int) -> SyncedEnd:
        """Report all damage from ``position`` up to the synced end; return where that is in the segment."""
        following = offset
        with segment.open_log() as file:
            while position < segment.size and following < self.synced_offset:
                stop = position
                for at, data, scan in scan_file(file, position, segment.size, check_crc=True, due=following):
                    if scan.stop is Stop.UNSUPPORTED and not scan.n:
                        raise UnsupportedFormat(f"{segment.path()} at byte {at + scan.end}: {scan.reason}")
                    whole, scan = scan.n, _within(segment, data, scan)
                    if not scan.n:
                        break
                    if scan.first_base_offset > following and not self._gaps_allowed(segment):
                        self._lost(segment, at, at, following, scan.first_base_offset)
                    row = scan.find_offset(self.synced_offset)
                    if row < scan.n and scan.header(row).base_offset >= self.synced_offset:
                        first = scan.header(row)
                        return SyncedEnd(segment.base_offset, at + first.position, first.base_offset)
                    stop, following = at + scan.end, scan.last_offset + 1
                    if scan.n < whole:
                        break
                if stop < segment.size and following < self.synced_offset:
                    most = segment.ceiling - 1
                    position = resume(
                        segment, file, stop, limit=segment.size, at_least=following, at_most=most
                    )
                    if position < segment.size:
                        found = int.from_bytes(file.pread(8, position), "big")
                    elif segment.next_offset is not None:
                        found = min(self.synced_offset, segment.next_offset)
                    else:
                        found = following if self.synced_offset == EVERYTHING else self.synced_offset
                        self.ends_damaged = True
                    self._lost(segment, stop, position, following, found)
                    following = found
                else:
                    position = stop
        return SyncedEnd(segment.base_offset, position, following)

    def _lost(self, segment: Segment, start: int, end: int, first: int, following: int) -> None:
        offsets = f"offsets {first} to {following - 1}" if following > first else "no offset is certain"
        where = f"bytes {start} to {end - 1}" if end > start else f"before byte {start}"
        self._damage(f"{segment.path()}: damaged below the synced end, {where}, {offsets}")

    def _follows(self, segment: Segment, following: Segment, offset: int) -> bool:
        """Return True if ``following`` may come after ``segment``, which ends at ``offset``."""
        return following.base_offset == offset or (
            following.base_offset > offset and self._gaps_allowed(segment)
        )

    def _gaps_allowed(self, segment: Segment) -> bool:
        """Return True if offsets may be missing: a broker may have cleaned it, or its seal says so."""
        if self.how.foreign:
            return True
        seal = segment.seal_of(segment.size, self.owner)
        return seal is not None and not seal.contiguous

    def _may_have_gaps(self, segment: Segment, activation: Activation) -> bool:
        """Return True if readers must allow gaps in the active segment, as they will when it is sealed.

        A log that was closed in order and has no seal is another broker's, or was damaged then.
        """
        seal, sealer = activation.seal_of(segment.size), activation.active.sidecars.sealer
        if seal is not None and not self.how.foreign:
            return not seal.contiguous
        joined = sealer is not None and sealer.sums.contiguous
        return not joined and (self.how.foreign or self.how.clean)

    def _scan(self, activation: Activation, segment: Segment, position: int, offset: int) -> tuple[int, int]:
        """Check every batch from ``position`` on; return where the good part ends, and its next offset."""
        if position >= segment.size:
            return position, offset
        expect = None if self._gaps_allowed(segment) else offset
        with segment.open_log() as file:
            for at, data, scan in scan_file(
                file, position, segment.size, check_crc=True, expect=expect, due=offset
            ):
                if scan.stop is Stop.UNSUPPORTED:
                    raise UnsupportedFormat(f"{segment.path()} at byte {at + scan.end}: {scan.reason}")
                self.report.scanned_bytes += scan.end
                whole, scan = scan.n, _within(segment, data, scan)
                if scan.n == 0:
                    break
                activation.feed(at, data, scan)
                position, offset = at + scan.end, scan.last_offset + 1
                if scan.n < whole:
                    break
        return position, offset

    def _cut(self, segments: list[Segment], at: int, position: int, end_offset: int) -> None:
        """Save everything behind (segment ``at``, ``position``), sync that, then remove it."""
        segment = segments[at]
        saved = self._save_tail(segment, position)
        for later in segments[at + 1 :]:
            if later.size == 0:
                self.fs.remove(later.path())
                continue
            target = self._torn_path(later, 0)
            self.fs.rename(later.path(), target)
            saved.append(target)
        self.fs.sync_dir(self.directory)
        if position < segment.size:
            with self.fs.open(segment.path(), "w") as file:
                file.truncate(position)
                file.sync()
        for doomed in segments[at:]:
            for kind in names.SEGMENT_KINDS:
                if kind != names.LOG:
                    self._remove(doomed.path(kind))
            doomed.forget()
        for offset in view_of(list_files(self.fs, self.directory)).snapshots:
            if offset > end_offset:
                self._remove(f"{self.directory}/{names.segment_name(offset)}.snapshot")
        self.fs.sync_dir(self.directory)
        if saved:
            line = f"{segment.path()}: cut at byte {position} (offset {end_offset}); saved {', '.join(saved)}"
            self.report.cuts.append(line)
            self.context.warn(line)
        del segments[at + 1 :]

    def _save_tail(self, segment: Segment, position: int) -> list[str]:
        if position >= segment.size:
            return []
        target = self._torn_path(segment, position)
        anything = False
        with segment.open_log() as source, self.fs.open(target, "x") as copy:
            at = position
            while at < segment.size:
                data = source.pread(min(SCAN_BYTES, segment.size - at), at)
                if not data:
                    break
                anything = anything or any(data)
                copy.pwrite(data, at - position)
                at += len(data)
            copy.sync()
        if not anything:
            # Zeros that a crash left behind the end of the file.
            self.fs.remove(target)
            return []
        return [target]

    def _torn_path(self, segment: Segment, position: int) -> str:
        copy = 0
        while True:
            path = f"{self.directory}/{names.torn_name(segment.base_offset, position, copy)}"
            if not self.fs.exists(path):
                return path
            copy += 1

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.remove(path)

    def _remove_torn_snapshots(self, offsets: Iterable[int], trusted_offset: int) -> None:
        """Remove unsynced snapshots that a crash damaged; the log holds the same."""
        for offset in offsets:
            path = f"{self.directory}/{names.segment_name(offset)}.snapshot"
            try:
                if offset > trusted_offset:
                    producer_snapshot.parse(self.fs.read_file(path))
            except FileNotFoundError:
                continue  # it went with the torn tail
            except FormatError:
                self._remove(path)

    def _take_aborted(self, segment: Segment, active: ActiveSegment) -> None:
        """Take the active segment's aborted transactions from its index, if that is valid."""
        try:
            active.sidecars.aborted.extend(
                txn for txn in segment.aborted() if txn.last_offset < active.next_offset
            )
        except CorruptionError as error:
            self.context.warn(f"{error}; rebuilt from the log")
            self.aborted_known = False

    def _skip_to(
        self,
        segments: list[Segment],
        active: ActiveSegment,
        offset: int,
        producers: ProducerState,
        *,
        lost: bool,
    ) -> ActiveSegment:
        """Begin a new segment at ``offset``: all offsets below it are already assigned.

        If records are ``lost`` there, a segment that allows no gap stands before it, empty if need be: a
        cleaned one does, and readers and `verify` would pass over the loss.
        """
        # Durable before the segment is: if all below it is deleted, only this snapshot has the producers.
        snapshot = f"{self.directory}/{names.segment_name(offset)}.snapshot"
        self.fs.write_file(snapshot, producer_snapshot.pack(producers.to_entries()), sync=True)
        if active.size or lost:
            segments[-1] = self._sealed(active)
            seal = segments[-1].seal
            if lost and seal is not None and not seal.contiguous:
                segments.append(self._sealed(self._begin(active.next_offset)))
        else:
            segments.pop()
            for kind in names.SEGMENT_KINDS:
                self._remove(active.path(kind))
        if segments:
            segments[-1].next_offset = offset
        fresh = self._begin(offset)
        segments.append(fresh)
        return fresh

    def _begin(self, offset: int) -> ActiveSegment:
        return Activation(self.context, self.config, self._create(offset), None, self.owner).finish(0, offset)

    def _sealed(self, active: ActiveSegment) -> Segment:
        active.write_sidecars(keyed=self.config.key_index_enable)
        return active.sealed()

    def _allow_gap(self, segment: Segment) -> None:
        """Note in the seal that offsets are missing behind the segment: readers pass over them."""
        seal = segment.seal_of(segment.size, self.owner)
        if seal is not None:
            self.fs.write_file(segment.path("seal"), pack_seal(replace(seal, contiguous=False)), sync=False)
        segment.forget()

    def _settle_skip(self, unsynced: list[Segment], end: SyncedEnd, tail: Tail | None) -> Tail:
        """Make the skipped gap durable: otherwise the next recovery would cut the log there."""
        for segment in unsynced:
            for kind in names.SEGMENT_KINDS:
                sync_file(self.fs, segment.path(kind))
        file = TailFile(self.context, self.directory, self.partition, tail)
        flags = 0 if self.config.flush_messages == 1 else tails.READ_PAST_HIGH_WATERMARK
        if tail is None or tail.producers:
            flags |= tails.PRODUCERS
        written = file.write(*end, end.offset, flags=flags)
        sync_file(self.fs, file.path)
        self.fs.sync_dir(self.directory)
        return written

    def _damage(self, what: str) -> None:
        self.report.damages.append(what)
        self.context.warn(f"{self.directory}: {what}; see `stratalog verify`")


def _within(segment: Segment, data: memoryview, scan: Scan) -> Scan:
    """Leave out batches with offsets that the segment cannot hold: no CRC covers a batch's base offset."""
    most = segment.ceiling
    if not scan.n or scan.last_offset < most:
        return scan
    row = scan.find_offset(most)
    return batches.scan(data, 0, scan.header(row).position, check_crc=False)
