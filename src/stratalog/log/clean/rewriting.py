"""Segments written anew, beside the old ones: the bytes that survive, and every file derived from them.

What is written lies under ``.cleaned`` (or whatever suffix is asked for) until `swap_in` gives it its name;
it is synced, file by file, before anybody hears of it. A crash leaves ``.cleaned`` files, which the next
start removes. Memory: one chunk read, one made, and the indexes of the segment being written.

As long as a lone source loses nothing, nothing is written at all: a log that is mostly clean is mostly
read. Only when the first batch changes is the part before it copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from stratalog.config import TopicConfig
from stratalog.errors import FormatError, StorageError
from stratalog.format.batch import Scan
from stratalog.format.batch.filter import Filtered
from stratalog.format.identity import PartitionId
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import File
from stratalog.log import names
from stratalog.log.clean.pacing import Pace
from stratalog.log.clean.reading import VanishedSegmentError, damaged, sound_chunks
from stratalog.log.context import LogContext
from stratalog.log.read.chunks import Chunk
from stratalog.log.segment.segment import Segment, owner_of
from stratalog.log.segment.sidecars import Sidecars

MAX_LOG_BYTES = 2**31 - 1
"""Positions in an index are 31 bits: a log that outgrows them goes on in another segment."""

Filter = Callable[[Segment, Chunk], Filtered]
"""What stays of a chunk's batches."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where rewritten segments go."""

    context: LogContext
    directory: str
    topic: str
    partition: int
    config: TopicConfig
    suffix: str = names.CLEANED
    max_bytes: int = MAX_LOG_BYTES
    home: str = ""
    """The directory of the partition, when the new segments are written elsewhere."""

    def owner(self) -> PartitionId:
        """Return the partition that the new seals name."""
        return owner_of(self.context.fs, self.home or self.directory, self.partition)

    @classmethod
    def beside(cls, segment: Segment, config: TopicConfig) -> Target:
        """In the directory of ``segment``, waiting to be swapped in."""
        return cls(segment.context, segment.directory, segment.topic, segment.partition, config)


@dataclass(slots=True)
class Rewritten:
    """What came of a run of sources. ``segments`` is empty when nothing changed and nothing was written."""

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
    target: Target,
    keep: Filter,
    *,
    take_aborted: Callable[[], list[AbortedTxn]],
    pace: Pace,
    cleaned: bool,
    lazily: bool = False,
) -> Rewritten:
    """Write what ``keep`` leaves of ``sources`` into one new segment at the base of the first.

    ``take_aborted()`` gives the aborted transactions whose markers were written since it was last asked.
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
                out.take(segment, chunk, made, take_aborted())
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
    """Whether the bytes are the old ones: a header that was left empty before is made anew, and equal."""
    end = chunk.scan.end
    return len(made.data) == end and bytes(made.data) == bytes(memoryview(chunk.data)[:end])


class _Output:
    """The new segments: one, or more when one would outgrow its index."""

    def __init__(self, target: Target, sources: Sequence[Segment], *, cleaned: bool, lazily: bool) -> None:
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
        """The part of a source that stays byte for byte, read again."""
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
        """Sync everything, and make the new files as old as the newest of their sources."""
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

    def __init__(self, target: Target, base_offset: int, *, keyed: bool) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.sidecars = Sidecars(
            base_offset, target.config.index_interval_bytes, keyed=keyed, owner=target.owner()
        )
        self._segment = Segment(
            target.context,
            target.directory,
            target.topic,
            target.partition,
            base_offset,
            size=0,
            suffix=target.suffix,
        )
        self.discard()  # what a round that was stopped may have left
        self._file: File | None = target.context.fs.open(self._segment.path(), "x")

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
        """Remove every file of it, the log last."""
        file, self._file = getattr(self, "_file", None), None
        if file is not None:
            file.close()
        segment = self._segment
        for kind in reversed(names.SEGMENT_KINDS):
            with suppress(FileNotFoundError):
                segment.context.fs.remove(segment.path(kind))
        segment.forget()
