"""What to read, cut into ranges of offsets: the input partitions of a query.

An input partition is logical: topic, partition, first offset, pinned end. No file is named in it; whoever
reads it looks for the files then, so compaction, archiving and retries never change its rows. Ranges are
cut at offsets that seals and indexes know, at most 128 MB of log each; small ones share a task, because
starting one costs more than reading them. Reads sidecars only, never a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.reader import MAX_RELISTS, LogView, or_gone, segment_index
from stratalog.log.segment.segment import Segment
from stratalog.spark.filters import Bounds
from stratalog.spark.logs import Logs, LookedAt
from stratalog.spark.loss import Losses
from stratalog.spark.offsets import Pair, Position, bad_option, resolve
from stratalog.spark.options import SourceOptions

RANGE_BYTES = 128 << 20
HEADERS_RANGE_BYTES = 1 << 30
"""A range of which only batch headers are read: a task costs more than a hundred thousand of them."""
FEWEST_TASKS = 16
"""As many ranges have a task each, as Kafka's source does it; among more the small ones share some."""
BUNDLE_SHARE = 8
"""They do up to this part of the largest range."""
OPEN_BYTES = 512 << 10
"""What looking at one more partition costs, as bytes of log that could be read meanwhile."""
SEGMENT_BYTES = 64 << 10
"""And a segment, at least: a smaller one is read sooner than its sidecars."""
MANY_SEGMENTS = 256
"""In a partition with more, the sidecars of small ones are left to whoever reads them."""
GRAIN_BYTES = 2 << 20
"""How finely a segment is cut at most; seals and indexes know finer places than a task is worth."""

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
    """About how much of the log it is; what is small counts as what it costs."""
    also: tuple[LogRange, ...] = ()
    """Small ranges, of other partitions mostly, that are read after this one by the same task."""

    def each(self) -> tuple[LogRange, ...]:
        """Every range of this task by itself, in order."""
        return (replace(self, also=()), *self.also) if self.also else (self,)


class Span(NamedTuple):
    """Neighbouring batches that belong together."""

    start: int
    end: int
    size_bytes: int


def plan(logs: Logs, options: SourceOptions, bounds: Bounds, now_ms: int) -> list[LogRange]:
    """The input partitions of a batch query, the largest part of the work ruled out already."""
    pairs = logs.choose(options.subscription)
    wanted = [pair for pair in pairs if bounds.admits(*pair)]
    starting, ending = options.starting or EARLIEST, options.ending or LATEST
    if starting.kind == "latest" or -1 in (starting.offsets.values() if starting.kind == "offsets" else ()):
        raise bad_option(starting.option, "'latest' would read nothing in a batch query", "an earlier start")
    looked = LookedAt(logs)
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
        extents.append(LogRange(*pair, start, end, bounds.since_ms, bounds.until_ms))
    at_least, at_most = options.min_partitions, options.max_records_per_partition
    headers = options.view == "batches"
    ranges = cut(
        logs,
        extents,
        min_partitions=at_least,
        max_records=at_most,
        range_bytes=HEADERS_RANGE_BYTES if headers else None,
    )
    return bundled(ranges, min_partitions=at_least, max_records=at_most)


def cut(
    logs: Logs,
    extents: Sequence[LogRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    range_bytes: int | None = None,
) -> list[LogRange]:
    """Extents cut into ranges of at most ``range_bytes``; what no wanted record can be in is left out."""
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
    """The same ranges in fewer tasks: small neighbours share one, as far as what was asked for allows."""
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
    """The batches of an extent in pieces of a few megabytes, without those that time rules out."""
    at, relists = extent.start, 0
    while at < extent.end:
        try:
            for span in _spans(view, replace(extent, start=at)):
                yield span
                at = span.end
            return
        except FileNotFoundError:  # replaced or removed while we looked
            relists += 1
            if relists > MAX_RELISTS:
                raise
            view.refresh()


def _spans(view: LogView, extent: LogRange) -> Iterator[Span]:
    segments = view.segments()
    judged_bytes = SEGMENT_BYTES if len(segments) > MANY_SEGMENTS else 0
    for segment in segments[segment_index(segments, extent.start) :] if segments else ():
        if segment.base_offset >= extent.end:
            return
        start, end = max(extent.start, segment.base_offset), extent.end
        if not segment.is_active and segment.next_offset is not None:
            end = min(end, segment.next_offset)
        if start >= end or not segment.size:
            continue
        with or_gone(view, segment):
            plain = extent.since_ms is None and extent.until_ms is None
            if plain or (segment.size <= judged_bytes and not isinstance(segment, ArchivedSegment)):
                yield from _by_index(segment, start, end)
            else:
                yield from _by_time(segment, start, end, extent.since_ms, extent.until_ms)


def _by_index(segment: Segment, start: int, end: int) -> Iterator[Span]:
    if start == segment.base_offset and end == segment.next_offset and segment.size <= GRAIN_BYTES:
        yield Span(start, end, segment.size)
        return
    index = segment.offset_index()
    position = segment.start_for(start).position
    while (entry := index.after_position(position + GRAIN_BYTES)) is not None and entry[0] + 1 < end:
        yield Span(start, entry[0] + 1, entry[1] - position)
        start, position = entry[0] + 1, entry[1]
    last = index.lookup(end) if end != segment.next_offset else None
    limit = segment.size if last is None else last[1]
    yield Span(start, end, max(limit - position, 1))


def _by_time(segment: Segment, start: int, end: int, since: int | None, until: int | None) -> Iterator[Span]:
    if isinstance(segment, ArchivedSegment) and _outside(
        segment.source.min_timestamp, segment.source.max_timestamp, since, until
    ):
        return  # the manifest says so: nothing is fetched
    seal = None if segment.is_active else segment.seal
    if seal is None:
        # Without a seal only a lower bound can rule anything out: no header tells the smallest timestamp.
        if since is not None and not segment.is_active:
            newest = segment.max_timestamp()
            if newest is not None and newest < since:
                return
            start = max(start, segment.first_offset_since(since))
        if start < end:
            yield from _by_index(segment, start, end)
        return
    for at, block in enumerate(seal.blocks):
        if block.last_offset < start or block.first_offset >= end:
            continue
        if not _outside(block.min_timestamp, block.max_timestamp, since, until):
            yield Span(max(start, block.first_offset), min(end, block.last_offset + 1), seal.block_size(at))


def _outside(oldest: int | None, newest: int | None, since: int | None, until: int | None) -> bool:
    if since is not None and newest is not None and newest < since:
        return True
    return until is not None and oldest is not None and oldest >= until


def _merged(spans: Sequence[Span], count: int) -> Iterator[Span]:
    """About ``count`` spans of the same size in the place of many small ones; large ones are cut through."""
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


def _split(span: Span, parts: int) -> Iterator[Span]:
    for part in range(parts):
        start = span.start + (span.end - span.start) * part // parts
        end = span.start + (span.end - span.start) * (part + 1) // parts
        if start < end:
            yield Span(start, end, span.size_bytes // parts)


def _by_records(part: LogRange, max_records: int | None) -> Iterator[LogRange]:
    """Offsets are counted, as Kafka's source does: gaps make ranges smaller, never larger."""
    if max_records is None:
        yield part
        return
    parts = -(-(part.end - part.start) // max_records)
    for span in _split(Span(part.start, part.end, part.size_bytes), parts):
        yield replace(part, start=span.start, end=span.end, size_bytes=span.size_bytes)


def pair_of(part: LogRange) -> Pair:
    return part.topic, part.partition
