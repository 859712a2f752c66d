"""Reading a partition that another process writes: ours, or a running Kafka broker's.

The view is a pure function of the directory, taken when two listings agree. Its last segment is live:
it ends at the last whole batch with a right CRC or, where that process acknowledges only what is
synced, at the high watermark it publishes in `stratalog.tail`. Looking again costs two stats while
nothing changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from stratalog.errors import FormatError
from stratalog.format.batch import HEADER_SIZE, peek
from stratalog.format.offset_index import OffsetIndex
from stratalog.format.seal import Seal
from stratalog.format.tail import Tail
from stratalog.format.time_index import TimeIndex
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.context import LogContext
from stratalog.log.listing import settled_view
from stratalog.log.partition import aborted_in, of_segments, with_cold
from stratalog.log.producers import ProducerState
from stratalog.log.reader import MAX_RELISTS, Isolation, or_gone
from stratalog.log.replay import load_snapshot, replay
from stratalog.log.scanning import scan_file
from stratalog.log.segment import Segment
from stratalog.log.tailfile import read_tail
from stratalog.model import SegmentInfo, SegmentState

POLL_S = 0.01
MAX_SEGMENT_BYTES = 2**31 - 1
STILL_NS = 50_000_000
"""A directory changed less than this before it was listed may change again without its time moving."""


class LiveSegment(Segment):
    """The last segment of a log that somebody else is appending to."""

    __slots__ = ("_index", "_index_size", "ours")

    is_active = True

    def __init__(self, segment: Segment, *, ours: bool) -> None:
        super().__init__(
            segment.context,
            segment.directory,
            segment.topic,
            segment.partition,
            segment.base_offset,
            size=0,
            next_offset=segment.base_offset,
            suffix=segment.suffix,
        )
        self.ours = ours
        self._index: OffsetIndex | None = None
        self._index_size = -1

    @property
    def seal(self) -> Seal | None:
        return None

    @property
    def contiguous(self) -> bool:
        return self.ours

    def offset_index(self) -> OffsetIndex:
        """What the writer has written of its index so far; entries past our readable end are left out."""
        if self._index is None or self.size > 2 * self._index_size:
            try:
                data = self.context.fs.read_file(self.path("index"))
                self._index = OffsetIndex.parse(data, self.base_offset, MAX_SEGMENT_BYTES)
                self._index.truncate(self.size)  # the writer may be ahead of what we have looked at
            except (FileNotFoundError, FormatError):
                self._index = OffsetIndex(self.base_offset)
            self._index_size = self.size
        return self._index

    def rebuild_indexes(self, interval_bytes: int = 4096) -> tuple[OffsetIndex, TimeIndex]:
        self._index = OffsetIndex(self.base_offset)
        return self._index, TimeIndex(self.base_offset)

    def time_index(self) -> TimeIndex:
        return TimeIndex(self.base_offset)

    def max_timestamp(self) -> int | None:
        return None

    def first_offset_since(self, timestamp: int) -> int:
        return self.base_offset


class PartitionFollower:
    """The `LogView` of a directory.

    ``log_start`` tells the checkpointed log start offset, ``cold`` what the archive has; both are asked when
    the directory changed, because nothing leaves it without a trace there.
    """

    def __init__(
        self,
        context: LogContext,
        directory: str,
        topic: str,
        partition: int,
        *,
        log_start: Callable[[], int] = lambda: 0,
        cold: Callable[[], tuple[Segment, ...]] = lambda: (),
    ) -> None:
        self.context = context
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self._log_start = log_start
        self._cold_of = cold
        self._cold: tuple[Segment, ...] = ()
        self._lock = threading.RLock()
        self._segments: tuple[Segment, ...] = ()
        self._snapshots: tuple[int, ...] = ()
        self._inodes: dict[int, int] = {}
        self._seen = (-1, -1)
        self._tail: Tail | None = None
        self._producers: tuple[ProducerState, int] | None = None
        self._aborted: dict[int, list[AbortedTxn]] = {}
        self.refresh()

    # -- LogView ---------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        segments = self.segments()
        return max(self._log_start(), segments[0].base_offset if segments else 0)

    @property
    def next_offset(self) -> int:
        segments = self._segments
        if not segments:
            return self._log_start()
        return segments[-1].next_offset or 0

    def segments(self) -> tuple[Segment, ...]:
        return with_cold(self._cold, self._segments)

    def local_segments(self) -> tuple[Segment, ...]:
        """The segments that lie in this directory."""
        return self._segments

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        end = self.next_offset
        tail = self._tail
        if tail is not None and not tail.read_past_high_watermark:
            end = min(end, max(tail.high_watermark, self.log_start_offset))
        if isolation == "read_committed":
            with self._lock:
                return max(self._replayed(end).last_stable_offset(end), self.log_start_offset)
        return end

    def replaced(self, segment: Segment) -> bool:
        if segment in self._cold:
            return False
        if segment not in self._segments:
            return True
        try:
            inode = self.context.fs.stat(segment.path()).inode
        except FileNotFoundError:
            return True
        return inode != self._inodes.get(segment.base_offset)

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        for _ in range(MAX_RELISTS):
            with suppress(FileNotFoundError):
                return self._aborted_now(start, end)
            self.refresh()
        return self._aborted_now(start, end)

    def _aborted_now(self, start: int, end: int) -> list[AbortedTxn]:
        """FileNotFoundError when a segment was replaced: its index may have been gone when it was read."""
        with self._lock:
            segments = self.segments()
            self._replayed(self.next_offset)
            live = self._aborted.get(segments[-1].base_offset, []) if segments else []
            found = [txn for txn in live if txn.last_offset >= start and txn.first_offset < end]
            for segment in reversed(segments[:-1]):
                if segment.next_offset is not None and segment.next_offset <= start:
                    break
                with or_gone(self, segment):
                    found = aborted_in([segment], start, end) + found
                if self.replaced(segment):
                    raise FileNotFoundError(segment.path())
        return found

    def wait(self, offset: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            self.refresh()
            if self.end_offset() >= offset:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(POLL_S, left))

    # -- looking -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Look again. Two stats when nothing changed."""
        with self._lock:
            self._tail = self._read_tail()
            stat = self.context.fs.stat(self.directory)
            seen = (stat.mtime_ns, stat.inode)
            if seen != self._seen or not self._segments:
                listed_at = time.time_ns()
                self._list()
                self._seen = seen if listed_at - stat.mtime_ns > STILL_NS else (-1, -1)
            self._cold = self._cold_of()
            if self._segments:
                self._extend(self._segments[-1])

    def _read_tail(self) -> Tail | None:
        try:
            return read_tail(self.context.fs, self.directory)
        except FormatError:
            return None

    def _list(self) -> None:
        view, inodes = settled_view(self.context.fs, self.directory)
        known = {segment.base_offset: segment for segment in self._segments}
        found: list[Segment] = []
        now: dict[int, int] = {}
        for files in view.segments:
            old = known.get(files.base_offset)
            now[files.base_offset] = inode = inodes[files.log]
            same = old is not None and self._inodes.get(files.base_offset) == inode
            if same and old is not None and not old.is_active and old.suffix == files.suffix:
                found.append(old)
                continue
            segment = Segment(
                self.context,
                self.directory,
                self.topic,
                self.partition,
                files.base_offset,
                size=files.size,
                suffix=files.suffix,
            )
            segment.swapping = files.swapping
            # A name may mean another file than it did: what is open or parsed under it must go.
            segment.forget()
            found.append(segment)
        self._inodes = now
        for segment, following in pairwise(found):
            segment.next_offset = following.base_offset
        if found:
            last = found[-1]
            live = known.get(last.base_offset)
            going_on = isinstance(live, LiveSegment) and live.suffix == last.suffix
            found[-1] = live if going_on and live is not None else self._live(last)
        self._segments = tuple(found)
        self._snapshots = view.snapshots

    def _live(self, segment: Segment) -> LiveSegment:
        """The last segment, readable up to the last point that is known without scanning."""
        tail = self._tail
        live = LiveSegment(segment, ours=tail is not None)
        if tail is None:
            self._begin_at_index(live, segment.size)
        if (
            tail is not None
            and tail.synced_base == segment.base_offset
            and segment.size >= tail.synced_position
        ):
            live.size, live.next_offset = tail.synced_position, tail.synced_offset
        return live

    def _begin_at_index(self, live: LiveSegment, size: int) -> None:
        """Another broker's segment: what lies before its last index entry was whole long ago."""
        live.size = size
        last = live.offset_index().last()
        live.size = 0
        if last is None:
            return
        with live.open_log() as file:
            found = peek(file.pread(HEADER_SIZE, last[1]))
        if found is not None and found.last_offset == last[0]:
            live.size, live.next_offset = last[1], found.base_offset

    def _extend(self, segment: Segment) -> None:
        """Let the live segment grow to the last whole valid batch."""
        try:
            with segment.open_log() as file:
                size = file.size()
                if size < segment.size:
                    segment.size, segment.next_offset = 0, segment.base_offset
                expect = segment.next_offset if segment.contiguous else None
                for at, _, found in scan_file(file, segment.size, size, check_crc=True, expect=expect):
                    if found.n == 0 or found.first_base_offset < (segment.next_offset or 0):
                        return
                    segment.size = at + found.end
                    segment.next_offset = found.last_offset + 1
        except FileNotFoundError:
            self._seen = (-1, -1)

    def _replayed(self, end: int) -> ProducerState:
        """Producer state as of ``end``, carried on from the last time it was asked for."""
        for _ in range(MAX_RELISTS):
            with suppress(FileNotFoundError):
                return self._replayed_now(end)
            self._producers, self._aborted = None, {}  # half carried on: begin anew
            self.refresh()
        return self._replayed_now(end)

    def _replayed_now(self, end: int) -> ProducerState:
        if self._producers is None:
            # From before the live segment on: its own transaction index has no checksum to go by.
            limit = self._segments[-1].base_offset if self._segments else 0
            self._producers = load_snapshot(
                self.context, self.directory, self._snapshots, limit, expiration_ms=2**63 - 1
            )
        state, at = self._producers
        if at < end:
            for segment in self._segments:
                if segment.next_offset is None or segment.next_offset > at:
                    self._aborted.setdefault(segment.base_offset, [])
            replay(state, self._segments, at, end, self._aborted)
            for segment in self._segments[:-1]:
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
