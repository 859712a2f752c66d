"""What to read, cut into ranges of offsets: the input partitions of a query.

An input partition is logical: topic, partition, first offset, pinned end. It names no file; the reader looks
for the files when it reads, so compaction, archiving and retries never change its rows. Ranges are cut at
offsets that seals and indexes know, at most 128 MB of log each; small ones share a task, because starting one
costs more than reading them. Reads sidecars only, never a record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from stratalog.errors import OffsetOutOfRangeError, StratalogError, UnknownPartitionError, UnknownTopicError
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.reader import MAX_RELISTS, LogView, or_gone, segment_index
from stratalog.log.segment.segment import Segment
from stratalog.spark.filters import Bounds
from stratalog.spark.logs import Logs, LookedAt
from stratalog.spark.offsets import Pair, Position, bad_option, resolve
from stratalog.spark.options import SourceOptions

logger = logging.getLogger("stratalog.spark")

RANGE_BYTES = 128 << 20
LARGER_RANGES = {"batches": 1 << 30, "totals": 512 << 20}
"""Ranges of views that read headers only, or decode few records: a task costs more than many headers."""
FEWEST_TASKS = 16
"""Up to so many ranges have a task each, as in Kafka's source; of more the small ones share tasks."""
BUNDLE_SHARE = 8
"""Ranges share a task up to this part of the largest range."""
OPEN_BYTES = 512 << 10
"""The cost of one more partition, as bytes of log that could be read meanwhile."""
SEGMENT_BYTES = 64 << 10
"""The least cost of a segment: a smaller one is read sooner than its sidecars."""
MANY_SEGMENTS = 256
"""In a partition with more, the sidecars of small ones are not read for planning."""
GRAIN_BYTES = 2 << 20
"""The smallest piece of a segment; seals and indexes have finer ones than a task is worth."""

EARLIEST = Position("startingOffsets", "earliest")
LATEST = Position("endingOffsets", "latest")


@dataclass(frozen=True)
class LogRange(InputPartition):
    """Offsets [start, end) of one partition, at times [since_ms, until_ms)."""

    topic: str
    partition: int
    start: int
    end: int
    since_ms: int | None = None
    until_ms: int | None = None
    size_bytes: int = 0
    """About how much of the log it is; a small range counts as what it costs."""
    also: tuple[LogRange, ...] = ()
    """Small ranges, of other partitions mostly, that are read after this one by the same task."""
    topic_id: str = ""
    """The topic that was planned: one of the same name that is made later is another."""

    def each(self) -> tuple[LogRange, ...]:
        """Return the ranges of this task one by one, in order."""
        return (replace(self, also=()), *self.also) if self.also else (self,)


class Span(NamedTuple):
    """Neighbouring batches that belong together."""

    start: int
    end: int
    size_bytes: int


def plan(logs: Logs, looked: LookedAt, options: SourceOptions, bounds: Bounds, now_ms: int) -> list[LogRange]:
    """Return the input partitions of a batch query up to the ends that ``looked`` has, without what its
    filters rule out."""
    pairs = logs.choose(options.subscription)
    wanted = [pair for pair in pairs if bounds.admits(*pair)]
    starting, ending = options.starting or EARLIEST, options.ending or LATEST
    if starting.kind == "latest" or -1 in (starting.offsets.values() if starting.kind == "offsets" else ()):
        raise bad_option(starting.option, "'latest' would read nothing in a batch query", "an earlier start")
    starts = resolve(starting, looked, pairs, wanted, isolation=options.isolation, now_ms=now_ms)
    ends = resolve(ending, looked, pairs, wanted, isolation=options.isolation, now_ms=now_ms)
    losses = Losses(options.fail_on_data_loss)
    extents = []
    for pair in wanted:
        start, end = starts[pair], ends[pair]
        first, visible = looked.start_offset(*pair), looked.end_offset(*pair, options.isolation)
        start, end = losses.within(pair, start, end, first, visible)
        start = max(start, bounds.first_offset or 0)
        end = end if bounds.end_offset is None else min(end, bounds.end_offset)
        extents.append(
            LogRange(*pair, start, end, bounds.since_ms, bounds.until_ms, topic_id=logs.topic_id(pair[0]))
        )
    return tasks_of(logs, options, extents)


def tasks_of(logs: Logs, options: SourceOptions, extents: Sequence[LogRange]) -> list[LogRange]:
    """Cut extents into input partitions, as the options ask for."""
    at_least, at_most = options.min_partitions, options.max_records_per_partition
    size = LARGER_RANGES.get(options.view)
    ranges = cut(logs, extents, min_partitions=at_least, max_records=at_most, range_bytes=size)
    return bundled(ranges, min_partitions=at_least, max_records=at_most)


def cut(
    logs: Logs,
    extents: Sequence[LogRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    range_bytes: int | None = None,
) -> list[LogRange]:
    """Cut extents into ranges of at most ``range_bytes``; leave out what no wanted record can be in."""
    largest = range_bytes or RANGE_BYTES
    spans = [
        [
            span._replace(size_bytes=max(span.size_bytes, SEGMENT_BYTES))
            for span in spans_of(logs.view(each.topic, each.partition), each)
        ]
        for each in extents
    ]
    sizes = [sum(span.size_bytes for span in found) for found in spans]
    counts = [-(-size // largest) if size else 0 for size in sizes]
    if min_partitions is not None and sum(counts) < min_partitions:
        total = max(sum(sizes), 1)
        counts = [
            max(count, -(-min_partitions * size // total)) for count, size in zip(counts, sizes, strict=True)
        ]
    ranges: list[LogRange] = []
    for extent, found, count in zip(extents, spans, counts, strict=True):
        for span in _merged(found, max(count, 1)):
            part = replace(extent, start=span.start, end=span.end, size_bytes=span.size_bytes)
            ranges += _by_records(part, max_records)
    return ranges


def bundled(
    ranges: Sequence[LogRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[LogRange]:
    """Return the same ranges in fewer tasks: small neighbours share one, as far as the options allow."""
    weights = [part.size_bytes + OPEN_BYTES for part in ranges]
    fewest = max(FEWEST_TASKS, min_partitions or 1)
    limit = min(RANGE_BYTES // BUNDLE_SHARE, sum(weights) // fewest)
    spare = len(ranges) - fewest
    tasks: list[list[LogRange]] = []
    weight = records = 0
    for part, more in zip(ranges, weights, strict=True):
        count = part.end - part.start
        fits = weight + more <= limit and (max_records is None or records + count <= max_records)
        if tasks and fits and spare > 0:
            tasks[-1].append(part)
            spare -= 1
        else:
            tasks.append([part])
            weight = records = 0
        weight, records = weight + more, records + count
    return [replace(task[0], also=tuple(task[1:])) if len(task) > 1 else task[0] for task in tasks]


def spans_of(view: LogView, extent: LogRange) -> Iterator[Span]:
    """Yield the batches of an extent in pieces of a few megabytes, without those that time rules out."""
    at, relists = extent.start, 0
    while at < extent.end:
        try:
            for span in _spans(view, replace(extent, start=at)):
                yield span
                at = span.end
            return
        except FileNotFoundError:  # replaced or removed meanwhile
            relists += 1
            if relists > MAX_RELISTS:
                raise
            view.refresh()


def _spans(view: LogView, extent: LogRange) -> Iterator[Span]:
    segments = view.segments()
    judged_bytes = SEGMENT_BYTES if len(segments) > MANY_SEGMENTS else 0
    small: Span | None = None
    for segment in segments[segment_index(segments, extent.start) :] if segments else ():
        if segment.base_offset >= extent.end:
            break
        start, end = max(extent.start, segment.base_offset), extent.end
        if not segment.is_active and segment.next_offset is not None:
            end = min(end, segment.next_offset)
        if start >= end:
            continue
        if 0 < segment.size <= judged_bytes and type(segment) is Segment and not segment.is_active:
            size = SEGMENT_BYTES if small is None else small.size_bytes + SEGMENT_BYTES
            small = Span(start if small is None else small.start, end, size)
            if size >= GRAIN_BYTES:
                yield small
                small = None
            continue
        if small is not None:
            yield small
            small = None
        if not segment.size:
            yield Span(start, end, 0)  # a cleaner left it so, or its batches are lost: who reads it will know
            continue
        with or_gone(view, segment):
            if extent.since_ms is None and extent.until_ms is None:
                yield from _by_index(segment, start, end)
            else:
                yield from _by_time(segment, start, end, extent.since_ms, extent.until_ms)
    if small is not None:
        yield small


def _by_index(segment: Segment, start: int, end: int) -> Iterator[Span]:
    if start == segment.base_offset and end == segment.next_offset and segment.size <= GRAIN_BYTES:
        yield Span(start, end, segment.size)
        return
    index = segment.offset_index()
    position, known = segment.start_for(start)
    first = segment.base_offset if known is None else min(known + 1, start)
    while (entry := index.after_position(position + GRAIN_BYTES)) is not None and entry[0] + 1 < end:
        yield Span(start, entry[0] + 1, _share(entry[1] - position, first, start, entry[0] + 1))
        first = start = entry[0] + 1
        position = entry[1]
    last = index.lookup(end) if end != segment.next_offset else None
    limit = segment.size if last is None else last[1]
    yield Span(start, end, _share(limit - position, first, start, end))


def _share(size_bytes: int, first: int, start: int, end: int) -> int:
    """Return how much of the bytes of [first, end) belongs to [start, end), if they are spread evenly."""
    return max(size_bytes * (end - start) // (end - first), 1)


def _by_time(segment: Segment, start: int, end: int, since: int | None, until: int | None) -> Iterator[Span]:
    if isinstance(segment, ArchivedSegment) and _outside(
        segment.source.min_timestamp, segment.source.max_timestamp, since, until
    ):
        return  # by the manifest: nothing is fetched
    seal = None if segment.is_active else segment.seal
    if seal is None:
        # Without a seal only a lower bound rules anything out: no header has the smallest timestamp.
        if since is not None and not segment.is_active:
            newest = segment.max_timestamp()
            if newest is not None and newest < since:
                start = max(start, segment.batches_end_offset())  # behind it: missing, no time rules it out
            else:
                start = max(start, segment.first_offset_since(since))
        if start < end:
            yield from _by_index(segment, start, end)
        return
    for at, block in enumerate(seal.blocks):
        if block.last_offset < start or block.first_offset >= end:
            continue
        if not _outside(block.min_timestamp, block.max_timestamp, since, until):
            yield Span(max(start, block.first_offset), min(end, block.last_offset + 1), seal.block_size(at))
    if seal.contiguous and max(start, seal.last_offset + 1) < end:
        yield Span(max(start, seal.last_offset + 1), end, 0)  # missing: no time rules it out


def _outside(oldest: int | None, newest: int | None, since: int | None, until: int | None) -> bool:
    if since is not None and newest is not None and newest < since:
        return True
    return until is not None and oldest is not None and oldest >= until


def _merged(spans: Sequence[Span], count: int) -> Iterator[Span]:
    """Merge many small spans into about ``count`` of the same size; cut large ones."""
    target = max(sum(span.size_bytes for span in spans) / count, 1.0)
    begun: int | None = None
    done, number = 0, 1
    for span in spans:
        begun = span.start if begun is None else begun
        while number < count and done + span.size_bytes >= number * target:
            at = span.end
            if span.size_bytes > target / 4:
                share = (number * target - done) / span.size_bytes
                at = span.start + int((span.end - span.start) * share)
            number += 1
            if at > begun:
                yield Span(begun, at, int(target))
                begun = at
        done += span.size_bytes
        begun = None if begun == span.end else begun
    if begun is not None:
        yield Span(begun, spans[-1].end, int(target))


def _by_records(part: LogRange, max_records: int | None) -> Iterator[LogRange]:
    """Split by offsets, as Kafka's source does: gaps make ranges smaller, never larger."""
    if max_records is None:
        yield part
        return
    length = part.end - part.start
    parts = -(-length // max_records)
    for number in range(parts):
        start, end = part.start + length * number // parts, part.start + length * (number + 1) // parts
        if start < end:
            yield replace(part, start=start, end=end, size_bytes=part.size_bytes // parts)


def pair_of(part: LogRange) -> Pair:
    return part.topic, part.partition


# -- losses ------------------------------------------------------------------------------------------
#
# Offsets that a query needs and the log no longer has: an error, or a warning. Gaps that compaction and
# transactions leave are no losses; only offsets before the log's start or past its end are.


GONE = (UnknownTopicError, UnknownPartitionError, FileNotFoundError)
"""The errors of a partition that was deleted."""


MADE_ANEW = "the topic was deleted and created again"


class Losses:
    """What ``failOnDataLoss`` decides: raise, or warn and go on."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._warned: set[str] = set()

    def within(self, pair: Pair, start: int, end: int, first: int, visible: int) -> tuple[int, int]:
        """Return the part of [start, end) that the log has; the rest is lost."""
        if start >= end:
            return start, start
        if start < first:
            self.lost(pair, start, min(first, end), first, visible)
            start = min(first, end)
        if end > visible:
            self.lost(pair, max(start, visible), end, first, visible)
            end = max(start, visible)
        return start, end

    def lost(self, pair: Pair, start: int, end: int, first: int, visible: int) -> None:
        """Report that offsets [start, end) are gone."""
        gone = f"{pair[0]}-{pair[1]}: offsets {start} to {end - 1} are gone; the log holds"
        gone += f" offsets {first} to {visible - 1}" if first < visible else f" none, its end is {visible}"
        how = "\noption 'failOnDataLoss': set it to false to go on without them"
        self._report(gone, OffsetOutOfRangeError(gone + how, offset=start, first=first, end=visible))

    def lost_partition(self, pair: Pair, start: int, why: str = "the partition is gone") -> None:
        """Report that a partition that was read up to ``start`` is gone."""
        gone = f"{pair[0]}-{pair[1]}: {why}; offsets up to {start} were read"
        how = "\noption 'failOnDataLoss': set it to false to go on without it"
        self._report(gone, UnknownPartitionError(gone + how))

    def _report(self, gone: str, error: StratalogError) -> None:
        if self.fail:
            raise error
        if gone not in self._warned:  # a stream asks again and again
            self._warned.add(gone)
            logger.warning("data loss: %s", gone)
