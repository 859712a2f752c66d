"""Find offsets by time and by name (Kafka's ListOffsets), and where leader epochs end. Reads only."""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from stratalog.errors import FormatError, InvalidArgumentError, OffsetOutOfRangeError
from stratalog.format import checkpoints
from stratalog.format.batch import Bounds
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext
from stratalog.log.names import LEADER_EPOCH_CHECKPOINT
from stratalog.log.read.chunks import FULL_CHUNK, Chunk
from stratalog.log.read.gaps import check_joined
from stratalog.log.read.reader import (
    Isolation,
    LogView,
    aborted_rows,
    decode_rows,
    iter_chunks,
    or_gone,
    relisting,
    segments_between,
)
from stratalog.log.segment.segment import Segment
from stratalog.model import LONG_MAX, Record

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """An epoch and the offset after its last record; both are -1 when the log does not know."""

    epoch: int
    end_offset: int


def end_offset_for_epoch(epochs: Sequence[tuple[int, int]], epoch: int, log_end_offset: int) -> EpochEnd:
    """Return the largest known epoch up to ``epoch`` and where it ends.

    The latest epoch ends at ``log_end_offset``. An epoch beyond the latest is unknown. One of the past ends
    where the next one begins; one before the first entry has no records, and ends where the first one begins.
    """
    if not epochs or not 0 <= epoch <= epochs[-1][0]:
        return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    if epoch == epochs[-1][0]:
        return EpochEnd(epoch, log_end_offset)
    higher = bisect_right(epochs, epoch, key=lambda entry: entry[0])
    return EpochEnd(epochs[higher - 1][0] if higher else epoch, epochs[higher][1])


def epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    """Return the leader epoch that ``offset`` was or will be written in; -1 when the log does not know."""
    later = bisect_right(epochs, offset, key=lambda entry: entry[1])
    return epochs[later - 1][0] if later else UNDEFINED_EPOCH


def read_epochs(fs: FileSystem, directory: str) -> list[tuple[int, int]]:
    """Return the epochs of a partition; none without the file. CorruptionError if it is damaged."""
    try:
        data = fs.read_file(f"{directory}/{LEADER_EPOCH_CHECKPOINT}")
    except FileNotFoundError:
        return []
    return list(checkpoints.parse_leader_epochs(data))


T = TypeVar("T")

NO_TIMESTAMP = -1


class OffsetSpec(enum.IntEnum):
    """Named offsets; the numbers are those that Kafka uses instead of a timestamp."""

    LATEST = -1
    """The end: the high watermark, or the last stable offset."""
    EARLIEST = -2
    """The log start offset."""
    MAX_TIMESTAMP = -3
    """The record with the largest timestamp, the first one where several have it."""
    EARLIEST_LOCAL = -4
    """The first offset that lies on this machine; those before it are in the archive."""
    LATEST_TIERED = -5
    """The last offset that is in the archive."""


class ListedOffset(NamedTuple):
    """An offset, the timestamp of its record and the leader epoch it was written in.

    The timestamp is -1 where no record was looked for, the leader epoch where it is not known.
    """

    offset: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = UNDEFINED_EPOCH


class OffsetsView(LogView, Protocol):
    """A partition that offsets are listed of."""

    context: LogContext

    @property
    def next_offset(self) -> int: ...

    def local_segments(self) -> tuple[Segment, ...]: ...

    def cold_segments(self) -> tuple[Segment, ...]: ...


def list_offset(
    view: OffsetsView, which: int, isolation: Isolation = "read_uncommitted"
) -> ListedOffset | None:
    """Return an offset by its name (`OffsetSpec`), or the first one at the timestamp ``which`` or later.

    None when there is none: no record as late as that, no record at all, nothing archived. Only records that
    a reader with this ``isolation`` sees count.
    """
    if which >= 0:
        return offset_for_time(view, which, isolation)
    try:
        spec = OffsetSpec(which)
    except ValueError:
        known = ", ".join(f"{each.value} ({each.name})" for each in OffsetSpec)
        raise InvalidArgumentError(
            f"no offset is called {which}; use a timestamp in milliseconds, or one of {known}"
        ) from None
    if spec is OffsetSpec.MAX_TIMESTAMP:
        return _relisting(view, lambda: _max_timestamp(view, isolation))
    view.refresh()
    return relisting(view, lambda: _named(view, spec, isolation))


def _named(view: OffsetsView, spec: OffsetSpec, isolation: Isolation) -> ListedOffset | None:
    if spec is OffsetSpec.LATEST:
        epochs = _epochs(view)
        return ListedOffset(view.end_offset(isolation), leader_epoch=epochs[-1][0] if epochs else -1)
    offset = view.log_start_offset
    if spec is OffsetSpec.EARLIEST_LOCAL:
        local = view.local_segments()
        offset = max(offset, local[0].base_offset) if local else view.next_offset
    elif spec is OffsetSpec.LATEST_TIERED:
        cold = view.cold_segments()
        if not cold:
            return None
        offset = (cold[-1].next_offset or 0) - 1
    return ListedOffset(offset, leader_epoch=epoch_at(_epochs(view), offset))


def end_of_epoch(view: OffsetsView, epoch: int) -> EpochEnd:
    """Return the largest known leader epoch up to ``epoch`` and where it ends (OffsetsForLeaderEpoch)."""
    view.refresh()
    return relisting(view, lambda: end_offset_for_epoch(_epochs(view), epoch, view.next_offset))


def _epochs(view: OffsetsView) -> list[tuple[int, int]]:
    """Return the epochs of a partition. FileNotFoundError if its directory is gone: it may have moved."""
    fs, directory = view.context.fs, view.directory
    try:
        epochs = read_epochs(fs, directory)
        if not epochs and not fs.exists(directory):
            raise FileNotFoundError(directory)
        return epochs
    except FormatError as error:
        view.context.warn(f"{view.directory}: {error}; no leader epoch is known")
        return []


def offset_for_time(
    view: LogView, timestamp: int, isolation: Isolation = "read_uncommitted"
) -> ListedOffset | None:
    """Return the first record at ``timestamp`` or later; None when there is none."""
    return _relisting(view, lambda: _offset_for_time(view, timestamp, isolation))


def _relisting(view: LogView, find: Callable[[], T]) -> T:
    """Run ``find``, again when a file was replaced or removed meanwhile."""
    view.refresh()
    while True:
        with suppress(OffsetOutOfRangeError):  # records were deleted: it begins with the log start again
            return relisting(view, find)


def _offset_for_time(view: LogView, timestamp: int, isolation: Isolation) -> ListedOffset | None:
    for segment, start, stop in _readable(view, isolation):
        with or_gone(view, segment):
            newest = segment.max_timestamp()
            if newest is not None and newest < timestamp:
                continue
            begin = max(start, segment.first_offset_since(timestamp))
        aborted = view.aborted(begin, stop) if isolation == "read_committed" else []
        for found, chunk, limit in iter_chunks(view, begin, stop, full_size=FULL_CHUNK):
            skip = aborted_rows(chunk.scan, aborted)
            row = chunk.scan.find_offset(begin)
            bounds = Bounds(begin, limit, timestamp)
            records = decode_rows(view, found, chunk, row, None, bounds, skip)
            if records:
                return _listed(chunk, records[0])
    return None


def _readable(view: LogView, isolation: Isolation) -> Iterator[tuple[Segment, int, int]]:
    """Yield each segment with the offsets [start, stop) of it that a reader sees; a missing one is damage."""
    start, end = view.log_start_offset, view.end_offset(isolation)
    for segment, following, stop in segments_between(view.segments(), start, end):
        if stop > start:
            yield segment, max(start, segment.base_offset), stop
        if following is not None:
            with or_gone(view, segment):
                check_joined(view, segment, following, start, end)


def _max_timestamp(view: LogView, isolation: Isolation) -> ListedOffset | None:
    newest: list[tuple[int, Segment, int, int]] = []
    for segment, start, stop in _readable(view, isolation):
        with or_gone(view, segment):
            known = segment.max_timestamp()
        newest.append((LONG_MAX if known is None else known, segment, start, stop))
    best: ListedOffset | None = None
    for known, segment, start, stop in sorted(newest, key=lambda each: (-each[0], each[1].base_offset)):
        if best is not None and (known, -start) < (best.timestamp, -best.offset):
            continue
        found = _newest_of(view, segment, start, stop, isolation)
        if found is not None and (
            best is None or (found.timestamp, -found.offset) > (best.timestamp, -best.offset)
        ):
            best = found
    return best


def _newest_of(
    view: LogView, segment: Segment, start: int, stop: int, isolation: Isolation
) -> ListedOffset | None:
    """Return the newest record of a segment, looking only where the seal or the time index says it can be.

    The newest entry may be a marker or out of range, so older entries are tried one by one.
    """
    for timestamp in _newest_first(segment):
        begin = start
        if timestamp is not None:
            with or_gone(view, segment):
                begin = max(start, segment.first_offset_since(timestamp))
        found = _newest_between(view, begin, stop, isolation) if begin < stop else None
        if timestamp is None or (found is not None and found.timestamp >= timestamp):
            return found
    return None


def _newest_first(segment: Segment) -> Iterator[int | None]:
    """Yield timestamps that batches of a segment have, falling, in growing steps; None at the end."""
    newest = segment.max_timestamp()
    if newest is not None:
        yield newest
        seal = segment.seal
        if seal is not None:
            known = sorted(block.max_timestamp for block in seal.blocks)
        else:
            times = segment.time_index()
            known = [times.entry(i)[0] for i in range(len(times))]
        step = 1
        while step <= len(known):
            yield known[-step]
            step *= 2
    yield None


def _newest_between(view: LogView, begin: int, stop: int, isolation: Isolation) -> ListedOffset | None:
    best: ListedOffset | None = None
    aborted = view.aborted(begin, stop) if isolation == "read_committed" else []
    for found, chunk, limit in iter_chunks(view, begin, stop, full_size=FULL_CHUNK):
        scan, skip = chunk.scan, aborted_rows(chunk.scan, aborted)
        newest, bounds = [header.max_timestamp for header in scan], Bounds(begin, limit)
        for row in sorted(range(scan.find_offset(begin), scan.n), key=lambda row: (-newest[row], row)):
            if best is not None and newest[row] <= best.timestamp:
                break
            for record in decode_rows(view, found, chunk, row, row + 1, bounds, skip):
                if best is None or (record.timestamp or 0) > best.timestamp:
                    best = _listed(chunk, record)
    return best


def _listed(chunk: Chunk, record: Record) -> ListedOffset:
    header = chunk.scan.header(chunk.scan.find_offset(record.offset))
    timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
    return ListedOffset(record.offset, timestamp, header.leader_epoch)
