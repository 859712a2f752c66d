"""Follow a partition that another process writes: ours, or a running Kafka broker's.

The view is a pure function of the directory, taken when two listings agree. Its last segment is live: it ends
at the last whole batch with a valid CRC or, where that process acknowledges only what is synced, at the high
watermark it publishes in `stratalog.tail`. A refresh costs two stats while nothing changed.
"""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import NamedTuple, TypeVar

from stratalog import locks
from stratalog.errors import CorruptionError, FormatError
from stratalog.format import checkpoints
from stratalog.format.batch import HEADER_SIZE, peek
from stratalog.format.identity import NO_TOPIC_ID, PartitionId
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.format.metadata import CLEAN_SHUTDOWN
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.seal import Seal
from stratalog.format.tail import Tail
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import FileStat
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.names import LOCK, MAX_OFFSET, TAIL, segment_name
from stratalog.log.read.reader import Isolation, or_gone, relisting, segment_index
from stratalog.log.segment.directory_state import SegmentFiles, settled_view
from stratalog.log.segment.segment import Segment, owner_of, scan_file
from stratalog.log.write.producers import ProducerState, load_snapshot, replay
from stratalog.log.write.segment_list import aborted_in, of_segments, with_cold
from stratalog.log.write.sync import read_tail
from stratalog.model import SegmentInfo, SegmentState

T = TypeVar("T")
POLL_S = 0.01
MAX_MOVES = 10
"""How often one refresh follows a partition that keeps moving."""
MAX_SEGMENT_BYTES = 2**31 - 1
TICK_NS, COARSE_TICK_NS = 50_000_000, 3_000_000_000
"""A clock of file times moves at least this often, and that of a file system which keeps whole seconds."""


def is_still(changed_ns: int, looked_at_ns: int) -> bool:
    """Return False if a file or directory that changed then may change again without its time moving."""
    return looked_at_ns - changed_ns > (TICK_NS if changed_ns % 1_000_000_000 else COARSE_TICK_NS)


class LiveSegment(Segment):
    """The last segment of a log that another process appends to."""

    __slots__ = ("_index", "_index_size", "_newest", "ours")

    is_active = True

    def __init__(self, segment: Segment, *, ours: bool) -> None:
        super().__init__(
            segment.location,
            segment.base_offset,
            size=0,
            next_offset=segment.base_offset,
            suffix=segment.suffix,
        )
        self.ours = ours
        self._index: OffsetIndex | None = None
        self._index_size = -1
        self._newest = (0, -1)
        """How far the headers were looked at for the newest timestamp, and that timestamp."""

    @property
    def seal(self) -> Seal | None:
        return None

    @property
    def contiguous(self) -> bool:
        return self.ours

    def offset_index(self) -> OffsetIndex:
        """Read the writer's index so far, without entries past our readable end."""
        if self._index is None or self.size > 2 * self._index_size:
            size = self.size
            try:
                data = self.context.fs.read_file(self.path("index"))
                index = OffsetIndex.parse(data, self.base_offset, MAX_SEGMENT_BYTES)
                index.truncate(size)  # the writer may be ahead of what we have looked at
            except (FileNotFoundError, FormatError):
                index = OffsetIndex(self.base_offset)
            self._index, self._index_size = index, size
            return index
        return self._index

    def rebuild_indexes(self, interval_bytes: int = 4096) -> tuple[OffsetIndex, TimeIndex]:
        self._index = OffsetIndex(self.base_offset)
        return self._index, TimeIndex(self.base_offset)

    def time_index(self) -> TimeIndex:
        return TimeIndex(self.base_offset)

    def batches_end_offset(self) -> int:
        return self.next_offset or self.base_offset

    def max_timestamp(self) -> int | None:
        return None

    def first_offset_since(self, timestamp: int) -> int:
        return self.base_offset

    def full_info(self) -> SegmentInfo:
        """Return `info` with the record count and the newest timestamp of the headers."""
        info, end = self.info(SegmentState.ACTIVE), self.next_offset or self.base_offset
        return replace(info, max_timestamp=self._newest_timestamp(), records=end - self.base_offset)

    def _newest_timestamp(self) -> int | None:
        """Scan the headers from the last entry of the writer's time index on."""
        position, newest = self._newest
        if not 0 < position <= self.size:
            position, newest = self._last_time_entry()
        with self.open_log() as file:
            for at, _, scan in scan_file(file, position, self.size):
                if scan.n:
                    position, newest = at + scan.end, max(newest, scan.max_timestamp)
        self._newest = (position, newest)
        return newest if newest >= 0 else None

    def _last_time_entry(self) -> tuple[int, int]:
        """Return position and timestamp of the last time index entry that meets the log; else the start."""
        with suppress(FileNotFoundError, FormatError):
            index = TimeIndex.parse(self.context.fs.read_file(self.path("timeindex")), self.base_offset)
            last = index.last()
            if last is not None and self.meets_time_entry(last):
                return self.start_for(last[1]).position, last[0]
        return 0, -1


class _Unsynced:
    """The rules for a log before recovery: what a power cut may have left past the synced end.

    A missing sidecar is no damage there, and a sealed log may be torn: recovery would cut the log there.
    """

    def __init__(self, context: LogContext, topic: str, partition: int) -> None:
        self._fs = context.fs
        self._key = (topic, partition)
        self._known = 0
        """The synced end by what lies outside the partition's directory."""
        self._ours = False
        self.end = 0
        """The recovery point, if there is no tail and no writer: a log that ends before it is damaged."""

    def look(self, directory: str, tail: Tail | None) -> None:
        """Read the synced end as the log directory knows it.

        All of a log that was closed in order. The recovery point where there is no valid tail: a power cut
        may have emptied or removed it. Without a checkpoint nothing says that any part was not synced.
        """
        fs, root = self._fs, posixpath.dirname(directory)
        self._ours = tail is not None or fs.exists(f"{directory}/{TAIL}")
        recovery_point = self._recovery_point(root) if tail is None else None
        if fs.exists(f"{root}/{CLEAN_SHUTDOWN}"):
            self._known = MAX_OFFSET
        elif tail is not None:
            self._known = 0
        elif recovery_point is not None:
            self._known = recovery_point
        else:
            self._known = 0 if self._ours else MAX_OFFSET
        # A broker that runs may have made a topic anew whose name is still in its checkpoint.
        self.end = recovery_point if recovery_point and fs.lock_holder(f"{root}/{LOCK}") is None else 0

    def _recovery_point(self, root: str) -> int | None:
        """Return the recovery point of the log directory's checkpoint, 0 if it has none; None without one."""
        try:
            data = self._fs.read_file(f"{root}/{checkpoints.RECOVERY_POINT}")
            return checkpoints.parse_offsets(data).get(self._key, 0)
        except (FileNotFoundError, FormatError):
            return None

    def mark(self, segments: Sequence[Segment], tail: Tail | None) -> None:
        synced = max(self._known, 0 if tail is None else tail.synced_base)
        for segment, following in zip_longest(segments, segments[1:]):
            segment.unsynced = (MAX_OFFSET if following is None else following.base_offset) > synced

    def cut_torn(self, segments: list[Segment], tail: Tail | None) -> None:
        """Leave out what follows the first sealed log that lost its end, or the next log, in a power cut."""
        for at, segment in enumerate(segments[:-1]):
            if segment.unsynced and self._is_torn(segment, tail):
                del segments[at + 1 :]
                return

    def _is_torn(self, segment: Segment, tail: Tail | None) -> bool:
        """Return True if offsets are missing behind the segment that are not known to have been synced."""
        try:
            seal = segment.seal
            if not self._ours or (seal is not None and not seal.contiguous):
                return False
            end = segment.batches_end_offset()
        except CorruptionError:  # the seal speaks of another size
            return True
        except FileNotFoundError:
            return False
        if end >= (segment.next_offset or 0):
            return False
        if tail is None:
            return end >= self._known
        # The tail may lag: it is not synced. The recovery point is.
        root = posixpath.dirname(segment.directory)
        return end >= max(tail.synced_offset, self._recovery_point(root) or 0)

    def first_of(self, segments: Sequence[Segment]) -> int:
        """Return where producers are replayed from at the latest: before the first segment not synced.

        A power cut may have taken an index there. The live segment counts as one of them: its transaction
        index has no checksum.
        """
        last = segments[-1].base_offset if segments else 0
        return min((each.base_offset for each in segments if each.unsynced), default=last)


Cold = Callable[[], tuple[tuple[Segment, ...], int]]
"""Returns the archived segments of a partition, and up to where its archive knows of deletions."""


def nothing_cold() -> tuple[tuple[Segment, ...], int]:
    """Return no archived segments: the partition has no archive."""
    return (), 0


class _Look(NamedTuple):
    """What one look at the directory found. Replaced whole: no reader sees a part of it."""

    stamp: tuple[int, int] = (-1, -1)
    segments: tuple[Segment, ...] = ()
    stats: Mapping[int, FileStat] = {}
    """The log of each segment when it was listed, so that another file under its name is noticed."""
    snapshots: tuple[int, ...] = ()
    cold: tuple[Segment, ...] = ()
    tail: Tail | None = None
    recovered: int = 0
    """The recovery point that counts where there is no tail."""
    log_start: int = 0


class PartitionFollower:
    """The `LogView` of a directory.

    ``log_start`` returns the checkpointed log start offset, ``cold`` the archived segments. ``find_again`` is
    asked when the directory is gone or belongs to another topic: it returns where the partition is now, and
    its ``cold``, or raises.
    """

    def __init__(
        self,
        location: PartitionLocation,
        *,
        topic_id: uuid.UUID | None = None,
        log_start: Callable[[], int] = lambda: 0,
        cold: Cold = nothing_cold,
        find_again: Callable[[], tuple[str, Cold] | None] = lambda: None,
    ) -> None:
        self.location = location
        self.context, self.directory, self.topic, self.partition = location
        self._log_start = log_start
        self._cold_of = cold
        self._find_again = find_again
        self._lock = locks.rlock("follower")
        self._last = _Look()
        self._whole = False
        """False while a look is under way, and after one that was cut short: the next one begins anew."""
        self._owner = PartitionId(NO_TOPIC_ID if topic_id is None else topic_id.bytes, self.partition)
        self._unsynced = _Unsynced(self.context, self.topic, self.partition)
        self._producers: tuple[ProducerState, int] | None = None
        self._aborted: dict[int, list[AbortedTxn]] = {}
        self._aborted_from = 0
        """From this offset on the log itself told what was aborted."""
        self.refresh()

    # -- LogView ---------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        last = self._last
        segments = with_cold(last.cold, last.segments)
        return max(last.log_start, segments[0].base_offset if segments else 0)

    @property
    def next_offset(self) -> int:
        last = self._last
        return (last.segments[-1].next_offset or 0) if last.segments else last.log_start

    def segments(self) -> tuple[Segment, ...]:
        last = self._last
        return with_cold(last.cold, last.segments)

    def local_segments(self) -> tuple[Segment, ...]:
        return self._last.segments

    def cold_segments(self) -> tuple[Segment, ...]:
        """Return the archived segments, including those that are still here."""
        return self._last.cold

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        end, tail = max(self.next_offset, self._last.recovered), self._last.tail
        if tail is not None:
            end = max(end, tail.synced_offset)
        if tail is not None and not tail.read_past_high_watermark:
            end = min(end, max(tail.high_watermark, self.log_start_offset))
        if isolation == "read_committed":
            stable = self._again(lambda: self._replayed(end).last_stable_offset(end))
            return max(stable, self.log_start_offset)
        return end

    def keyed_end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        return self.end_offset(isolation)

    def replaced(self, segment: Segment) -> bool:
        last = self._last
        if _has(last.cold, segment):
            return False
        if not _has(last.segments, segment):
            return True
        try:
            stat = self.context.fs.stat(segment.path())
        except FileNotFoundError:
            return True
        listed = last.stats.get(segment.base_offset)
        if listed is None or segment.is_active:  # which grows
            return listed is None or stat.inode != listed.inode
        return stat.identity != listed.identity

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        return self._again(lambda: self._aborted_now(start, end))

    def _again(self, look: Callable[[], T]) -> T:
        """Run ``look`` under the lock; again when a file was removed, replaced or moved meanwhile."""

        def locked() -> T:
            with self._lock:
                return look()

        return relisting(self, locked)

    def _aborted_now(self, start: int, end: int) -> list[AbortedTxn]:
        """Raise FileNotFoundError if a segment was replaced: its index may have been gone when read."""
        segments = self.segments()
        self._replayed(self.next_offset)
        found = [
            txn
            for _, told in sorted(self._aborted.items())
            for txn in told
            if txn.last_offset >= start and txn.first_offset < end
        ]
        for segment in reversed(segments[:-1]):
            if segment.next_offset is not None and segment.next_offset <= start:
                break
            if segment.base_offset >= self._aborted_from:
                continue
            with or_gone(self, segment):
                listed = aborted_in([segment], start, end)
                found = [txn for txn in listed if txn.last_offset < self._aborted_from] + found
            if self.replaced(segment):
                raise FileNotFoundError(segment.path())
        return found

    def wait(self, offset: int, timeout_s: float, isolation: Isolation = "read_uncommitted") -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            self.refresh()
            if self.end_offset(isolation) >= offset:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(POLL_S, left))

    # -- looking -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look again: a few stats when nothing changed."""
        for _ in range(MAX_MOVES):
            try:
                self._look()
                return
            except FileNotFoundError:
                owner = owner_of(self.context.fs, self.directory, self.partition)  # before the store is asked
                found = self._find_again()  # takes locks of the store, which come before this one
                if found is None:
                    raise
            with self._lock:
                if found[0] == self.directory:
                    self._owner = owner  # it is this topic all the same: another broker wrote its id, or none
                self.directory, self._cold_of = found
                self.location = self.location._replace(directory=self.directory)
                self._whole = False
        self._look()

    def _look(self) -> None:
        with self._lock:
            whole, self._whole = self._whole, False
            last = self._last if whole else _Look()
            if not whole:
                self._producers, self._aborted = None, {}
            if self._owner.topic_id == NO_TOPIC_ID:
                self._check_owner()
            tail, stat = self._read_tail(), self.context.fs.stat(self.directory)
            found = last._replace(tail=tail)
            stamp = (stat.mtime_ns, stat.inode)
            if stamp != last.stamp or not last.segments:
                self._check_owner()
                listed_at = time.time_ns()
                found = self._list(last, tail)
                if is_still(stat.mtime_ns, listed_at):
                    found = found._replace(stamp=stamp)
            cold, archive_start = self._cold_of()
            self._unsynced.mark(found.segments, tail)
            if found.segments and not self._extend(found.segments[-1], tail):
                found = found._replace(stamp=(-1, -1))
            # Read last: a log start moves before any segment goes, and its entry goes after the directory.
            log_start = max(self._log_start(), archive_start)
            if self.context.fs.stat(self.directory).inode != stat.inode:
                raise FileNotFoundError(self.directory)
            gone = set(self._last.segments).difference(found.segments)
            self._last = found._replace(cold=cold, log_start=log_start)
            self._whole = True
        for segment in gone:
            segment.forget()  # or its file stays open, and its space in use

    def _check_owner(self) -> None:
        """Raise FileNotFoundError if the directory belongs to another topic: this one was deleted."""
        owner = owner_of(self.context.fs, self.directory, self.partition)
        if owner != self._owner and self._owner.topic_id != NO_TOPIC_ID:
            raise FileNotFoundError(self.directory)
        self._owner = owner

    def _read_tail(self) -> Tail | None:
        try:
            return read_tail(self.context.fs, self.directory, self._owner)
        except FormatError:
            self._check_owner()
            return None

    def _list(self, last: _Look, tail: Tail | None) -> _Look:
        view, stats = settled_view(self.context.fs, self.directory)
        known = {segment.base_offset: segment for segment in last.segments}
        found: list[Segment] = []
        now: dict[int, FileStat] = {}
        for files in view.segments:
            old = known.get(files.base_offset)
            before, stat = last.stats.get(files.base_offset), stats[files.log]
            now[files.base_offset] = stat
            same = before is not None and before.identity == stat.identity
            if same and old is not None and not old.is_active and old.suffix == files.suffix:
                found.append(old)
                continue
            segment = self.segment_of(files)
            # A name may mean another file than it did: what is open or parsed under it must go.
            segment.forget()
            found.append(segment)
        for segment, following in pairwise(found):
            segment.next_offset = following.base_offset
        self._unsynced.look(self.directory, tail)
        synced, base = (
            (self._unsynced.end, self._log_start())
            if tail is None
            else (tail.synced_offset, tail.synced_base)
        )
        if not found and synced > self._log_start():
            missing = SegmentFiles(base, "", 0, f"{segment_name(base)}.log")
            found.append(self.segment_of(missing))  # reading it raises an error that names the file
        self._unsynced.mark(found, tail)
        self._unsynced.cut_torn(found, tail)
        if found:
            newest = found[-1]
            live = known.get(newest.base_offset)
            going_on = isinstance(live, LiveSegment) and live.suffix == newest.suffix
            found[-1] = live if going_on and live is not None else self._live(newest, tail)
        return _Look(
            segments=tuple(found),
            stats=now,
            snapshots=view.snapshots,
            tail=tail,
            recovered=self._unsynced.end,
        )

    def segment_of(self, files: SegmentFiles) -> Segment:
        """Build a segment from the files of a listing, with their current names."""
        segment = Segment(
            self.location,
            files.base_offset,
            size=files.size,
            suffix=files.suffix,
        )
        segment.swapping = files.swapping
        return segment

    def _live(self, segment: Segment, tail: Tail | None) -> LiveSegment:
        """Build the last segment, readable up to the last point that is known without scanning."""
        live = LiveSegment(segment, ours=tail is not None)
        if tail is None:
            self._begin_at_index(live, segment.size)
        else:
            self._begin_at_synced_end(live, tail)
        return live

    def _begin_at_synced_end(self, live: Segment, tail: Tail | None) -> None:
        """Begin with the synced bytes of our segment; reading it names any that are missing."""
        live.size, live.next_offset = 0, live.base_offset
        if tail is not None and tail.synced_base == live.base_offset:
            live.size, live.next_offset = tail.synced_position, tail.synced_offset

    def _begin_at_index(self, live: LiveSegment, size: int) -> None:
        """Begin at the last index entry of another broker's segment: all before it is whole."""
        live.size = size
        last = live.offset_index().last()
        live.size = 0
        if last is None:
            return
        with live.open_log() as file:
            found = peek(file.pread(HEADER_SIZE, last[1]))
        if found is not None and found.last_offset == last[0]:
            live.size, live.next_offset = last[1], found.base_offset

    def _extend(self, segment: Segment, tail: Tail | None) -> bool:
        """Extend the live segment to the last whole valid batch; False if its file is gone."""
        try:
            with segment.open_log() as file:
                size = file.size()
                if size < segment.size:
                    self._begin_at_synced_end(segment, tail)
                expect = segment.next_offset if segment.contiguous else None
                for at, _, found in scan_file(
                    file, segment.size, size, check_crc=True, expect=expect, due=segment.next_offset or 0
                ):
                    if found.n == 0:
                        break
                    segment.size = at + found.end
                    segment.next_offset = found.last_offset + 1
        except FileNotFoundError:
            return False
        return True

    def _replayed(self, end: int) -> ProducerState:
        """Return the producer state as of ``end``, continuing from the last call. Call it under the lock."""
        try:
            return self._replayed_now(end)
        except BaseException:
            self._producers, self._aborted = None, {}  # half carried on: begin anew
            raise

    def producer_entries(self) -> list[ProducerEntry]:
        """Return the producers as of the end of the log."""
        return self._again(lambda: self._replayed(self.next_offset).to_entries())

    def _replayed_now(self, end: int) -> ProducerState:
        segments = self._last.segments
        if self._producers is None:
            limit = self._unsynced.first_of(segments)
            self._producers = load_snapshot(
                self.location, self._last.snapshots, limit, expiration_ms=2**63 - 1
            )
            first = segments[0].base_offset if segments else 0
            self._aborted_from = max(self._producers[1], first)
        state, at = self._producers
        if at < end:
            for segment in segments:
                if segment.next_offset is None or segment.next_offset > at:
                    self._aborted.setdefault(segment.base_offset, [])
            replay(state, segments, at, end, self._aborted)
            for segment in segments[:-1]:
                if (segment.next_offset is None or segment.next_offset > at) and self.replaced(segment):
                    raise FileNotFoundError(segment.path())
            self._producers = (state, end)
        return state

    def close(self) -> None:
        """Nothing is held."""

    # -- facts -------------------------------------------------------------------------------------

    def segment_infos(self) -> list[SegmentInfo]:
        self.refresh()
        return of_segments(
            self, lambda segment: segment.info(SegmentState.ACTIVE if segment.is_active else None)
        )


def _has(segments: Sequence[Segment], segment: Segment) -> bool:
    return bool(segments) and segments[segment_index(segments, segment.base_offset)] is segment
