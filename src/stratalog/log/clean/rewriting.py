"""Rewriting segments: strict reading of the sources, new segments with all their sidecars beside them.

A reader serves what is whole and names what is not. Rewriting is stricter, because what it did not read is
lost afterwards: a segment counts as read only when every byte of it is part of a valid batch (or of zeros
behind the last one, which other brokers preallocate).

New files have the suffix ``.cleaned`` (or another one) until `swap_in` renames them, and are synced before
they are returned. A crash leaves ``.cleaned`` files, which the next start removes. Memory: one chunk read,
one made, and the indexes of the segment being written. A lone source that loses nothing is only read; when
the first batch changes, the part before it is copied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from stratalog.config import TopicConfig
from stratalog.errors import CorruptionError, FormatError, StorageError, UnsupportedFormat
from stratalog.format import txn_index
from stratalog.format.batch import Scan
from stratalog.format.batch.filter import Filtered
from stratalog.format.identity import PartitionId
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import File
from stratalog.log import names
from stratalog.log.check.damage import UNKNOWN, Damage, derived_damage, reason_of
from stratalog.log.context import PartitionLocation
from stratalog.log.read.chunks import FULL_CHUNK, Chunk, read_chunks
from stratalog.log.segment.segment import Segment, Start, owner_of
from stratalog.log.segment.sidecars import Sidecars

PAUSE_S = 0.1
"""The longest wait between two checks whether to stop."""


class StopCleaningError(Exception):
    """The round was asked to stop. Groups swapped in stay, the rest is as before."""


class Pace:
    """The speed limit, progress and stop request of one round. It waits in real time."""

    def __init__(
        self,
        io_bytes_per_s: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        limited = io_bytes_per_s is not None and 0 < io_bytes_per_s < float(1 << 62)
        self._rate = io_bytes_per_s if limited else None
        self._progress = progress
        self._stop = stop
        self._began = time.monotonic()
        self._moved = 0
        self.bytes_read = 0
        self.total_bytes = 0
        """What there is to read, as far as it is known: the whole for `progress`."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def plan(self, bytes_left: int) -> None:
        """Set how many bytes are left to read."""
        self.total_bytes = self.bytes_read + bytes_left
        self._tell()

    def read(self, size: int) -> None:
        """Count bytes that were read."""
        self.bytes_read += size
        self._tell()
        self._wait(size)

    def wrote(self, size: int) -> None:
        self._wait(size)

    def check(self) -> None:
        """Raise StopCleaningError when the round should stop."""
        if self._stop is not None and self._stop():
            raise StopCleaningError

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(min(self.bytes_read, self.total_bytes), self.total_bytes)

    def _wait(self, size: int) -> None:
        self.check()
        if self._rate is None:
            return
        self._moved += size
        due = self._began + self._moved / self._rate
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, PAUSE_S))
            self.check()


READ_AHEAD_FROM = 4 * FULL_CHUNK
"""Smaller segments are read without a second thread."""


class DamagedSegmentError(Exception):
    """A segment cannot be read; it stays as it is and is named in the report."""

    def __init__(self, segment: Segment, damage: Damage) -> None:
        super().__init__(damage.reason)
        self.segment = segment
        self.damage = damage


class VanishedSegmentError(Exception):
    """A segment was removed meanwhile, by retention or another rewrite."""


def sound_chunks(segment: Segment, offset: int = -1) -> Iterator[Chunk]:
    """Yield the checked batches of a sealed segment: all of them, or those from about ``offset`` on."""
    end = 0
    try:
        start = Start(0, None) if offset < 0 else segment.start_for(offset)
        ahead = segment.size > READ_AHEAD_FROM
        turns = [bytearray(FULL_CHUNK), bytearray(FULL_CHUNK)] if ahead else None
        chunks = read_chunks(segment, start, offset=offset, first_size=FULL_CHUNK, turns=turns)
        if ahead:
            chunks = _read_ahead(chunks)
        for chunk in chunks:
            end = chunk.position + chunk.scan.end
            yield chunk
    except FileNotFoundError as error:
        raise VanishedSegmentError(segment.path()) from error
    except (FormatError, StorageError) as error:
        raise damaged(segment, error, end) from error


def _read_ahead(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the same chunks, each read and checked by another thread while the one before is in use.

    Their buffers must take turns by two.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="stratalog-read-ahead") as thread:
        coming = thread.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = thread.submit(next, chunks, None)
            yield chunk


def damaged(segment: Segment, error: FormatError | StorageError, position: int) -> DamagedSegmentError:
    """Build the error for a segment whose bytes around ``position`` are wrong or unreadable."""
    reason = reason_of(error) if isinstance(error, FormatError) else str(error)
    if isinstance(error, CorruptionError) and error.position >= 0:
        position = error.position
    last = UNKNOWN if segment.next_offset is None else segment.next_offset - 1
    return DamagedSegmentError(
        segment, Damage(segment.path(), position, segment.size, segment.base_offset, last, reason)
    )


def aborted_of(segment: Segment) -> tuple[AbortedTxn, ...] | Damage:
    """Return the transactions aborted in a segment, or the damage that hides them.

    With a seal that contradicts its log, only the transaction index itself counts.
    """
    try:
        return segment.aborted()
    except FormatError as error:
        first = error
    try:
        if segment.seal is not None:
            return derived_damage(segment.path("txnindex"), reason_of(first))
    except FormatError:
        pass
    try:
        data = segment.context.fs.read_file(segment.path("txnindex"))
    except FileNotFoundError:
        return ()
    try:
        return tuple(txn_index.parse(data))
    except (CorruptionError, UnsupportedFormat) as error:
        return derived_damage(segment.path("txnindex"), reason_of(error))


MAX_LOG_BYTES = 2**31 - 1
"""Positions in an index are 31 bits: a log that outgrows them goes on in another segment."""

Filter = Callable[[Segment, Chunk], Filtered]
"""What stays of a chunk's batches."""


@dataclass(frozen=True, slots=True)
class RewriteTarget:
    """Where rewritten segments go."""

    location: PartitionLocation
    config: TopicConfig
    suffix: str = names.CLEANED
    max_bytes: int = MAX_LOG_BYTES
    home: str = ""
    """The directory of the partition, when the new segments are written elsewhere."""

    def owner(self) -> PartitionId:
        context, directory, _, partition = self.location
        return owner_of(context.fs, self.home or directory, partition)

    @classmethod
    def beside(cls, segment: Segment, config: TopicConfig) -> RewriteTarget:
        """Return a target in the directory of ``segment``, with the suffix ``.cleaned``."""
        return cls(segment.location, config)


@dataclass(slots=True)
class Rewritten:
    """The new segments, and counts; ``segments`` is empty when nothing changed and nothing was written."""

    segments: list[Segment]
    records_in: int = 0
    records_out: int = 0
    tombstones_in: int = 0
    tombstones_out: int = 0
    bytes_out: int = 0

    def count(self, made: Filtered) -> None:
        self.records_in += made.records_in
        self.records_out += made.records_out
        self.tombstones_in += made.tombstones_in
        self.tombstones_out += made.tombstones_out
        self.bytes_out += len(made.data)


def rewrite(
    sources: Sequence[Segment],
    target: RewriteTarget,
    keep: Filter,
    *,
    aborted: list[AbortedTxn],
    pace: Pace,
    cleaned: bool,
    lazily: bool = False,
) -> Rewritten:
    """Write what ``keep`` leaves of ``sources`` into one new segment at the base of the first.

    ``aborted`` gets the aborted transactions whose markers ``keep`` left; they are taken out of it.
    ``lazily``: a lone source that loses nothing stays as it is. Raises DamagedSegmentError naming the source,
    VanishedSegmentError, StopCleaningError; then everything written is removed.
    """
    result = Rewritten([])
    out = _Output(target, sources, cleaned=cleaned, lazily=lazily and len(sources) == 1)
    try:
        for segment in sources:
            for chunk in sound_chunks(segment):
                try:
                    made = keep(segment, chunk)
                except FormatError as error:
                    raise damaged(segment, _placed(error, segment, chunk), chunk.position) from error
                pace.read(chunk.scan.end)
                result.count(made)
                before = out.written
                out.take(segment, chunk, made, aborted)
                aborted.clear()
                pace.wrote(out.written - before)
        result.segments = out.finish()
    except Exception as error:
        with suppress(StorageError):
            out.discard()
        if isinstance(error, FileNotFoundError):
            raise VanishedSegmentError(sources[0].path()) from error
        raise
    return result


def _placed(error: FormatError, segment: Segment, chunk: Chunk) -> FormatError:
    at = getattr(error, "at", None)
    return at(segment.path(), chunk.position) if at is not None else error


def _same(chunk: Chunk, made: Filtered) -> bool:
    """Return whether the bytes did not change."""
    end = chunk.scan.end
    return len(made.data) == end and bytes(made.data) == bytes(memoryview(chunk.data)[:end])


class _Output:
    """The new segments: one, or more when one would outgrow its index."""

    def __init__(
        self, target: RewriteTarget, sources: Sequence[Segment], *, cleaned: bool, lazily: bool
    ) -> None:
        self._target = target
        self._sources = sources
        self._cleaned = cleaned
        self._spared: list[AbortedTxn] | None = [] if lazily else None
        self._keyed = target.config.key_index_enable or any(
            each.context.fs.exists(each.path("keyindex")) for each in sources
        )
        self._done: list[_NewSegment] = []
        self._current: _NewSegment | None = None
        self.written = 0

    def take(self, source: Segment, chunk: Chunk, made: Filtered, aborted: list[AbortedTxn]) -> None:
        if self._spared is not None:
            if made.unchanged or _same(chunk, made):
                self._spared += aborted
                return
            spared, self._spared = self._spared, None
            self._copy(source, chunk.position)
            self._open(source.base_offset).sidecars.aborted += spared
        self._add(made.data, made.scan)
        self._open(self._sources[0].base_offset).sidecars.aborted += aborted

    def _copy(self, source: Segment, end: int) -> None:
        """Copy the part of a source that stays byte for byte."""
        for chunk in sound_chunks(source):
            if chunk.position >= end:
                return
            self._add(memoryview(chunk.data)[: chunk.scan.end], chunk.scan, measured=False)

    def _add(self, data: bytearray | memoryview, scan: Scan, *, measured: bool = True) -> None:
        if not scan.n:
            return
        current = self._open(self._sources[0].base_offset)
        if current.size and current.size + len(data) > self._target.max_bytes:
            current.close_log()
            self._done.append(current)
            self._current = None
            current = self._open(scan.first_base_offset)
        current.add(data, scan, measured=measured)
        self.written += len(data)

    def _open(self, base_offset: int) -> _NewSegment:
        if self._current is None:
            self._current = _NewSegment(self._target, base_offset, keyed=self._keyed)
        return self._current

    def finish(self) -> list[Segment]:
        """Sync everything, and give the new files the newest modification time of their sources."""
        if self._spared is not None:
            return []
        last = self._open(self._sources[0].base_offset)
        last.close_log()
        self._done.append(last)
        self._current = None
        newest = max(each.context.fs.stat(each.path()).mtime_ns for each in self._sources)
        ends = [each.base_offset for each in self._done[1:]] + [self._sources[-1].next_offset]
        return [
            each.finish(next_offset=end, cleaned=self._cleaned, mtime_ns=newest)
            for each, end in zip(self._done, ends, strict=True)
        ]

    def discard(self) -> None:
        for each in [*self._done, *([self._current] if self._current is not None else [])]:
            each.discard()


class _NewSegment:
    """One segment as it is written."""

    def __init__(self, target: RewriteTarget, base_offset: int, *, keyed: bool) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.sidecars = Sidecars(
            base_offset, target.config.index_interval_bytes, keyed=keyed, owner=target.owner()
        )
        self._segment = Segment(
            target.location,
            base_offset,
            size=0,
            suffix=target.suffix,
        )
        self.discard()  # what a round that was stopped may have left
        self._file: File | None = target.location.context.fs.open(self._segment.path(), "x")

    def add(self, data: bytearray | memoryview, scan: Scan, *, measured: bool) -> None:
        assert self._file is not None
        self._file.pwrite(data, self.size)
        self.sidecars.add(self.size, data, scan, measured=measured)
        self.size += len(data)

    def close_log(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    def finish(self, *, next_offset: int | None, cleaned: bool, mtime_ns: int) -> Segment:
        # Not contiguous: a reader must not take a gap for damage, and checks block CRCs instead.
        self.sidecars.seal = replace(self.sidecars.seal, contiguous=False, cleaned=cleaned)
        self.sidecars.write(self._segment)
        fs, path = self._segment.context.fs, self._segment.path()
        fs.set_mtime_ns(path, mtime_ns)
        self._segment.size, self._segment.next_offset = self.size, next_offset
        return self._segment

    def discard(self) -> None:
        """Remove all its files, the log last."""
        file, self._file = getattr(self, "_file", None), None
        if file is not None:
            file.close()
        segment = self._segment
        for kind in reversed(names.SEGMENT_KINDS):
            with suppress(FileNotFoundError):
                segment.context.fs.remove(segment.path(kind))
        segment.forget()


def is_cleaned(segment: Segment) -> bool:
    """Return whether the seal of a segment says that it was cleaned; False when no sound seal tells."""
    try:
        seal = segment.seal
    except FormatError:
        return False
    return seal is not None and seal.cleaned
