"""What a run of ``materialize`` finds in the log: where each partition begins and ends for it.

Reads sidecars and what a time lookup needs; no record is decoded. Changes nothing.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from stratalog.config.units import format_duration_ms
from stratalog.errors import ConfigError, FormatError, OffsetOutOfRangeError
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.reader import Isolation, LogView
from stratalog.log.segment.segment import Segment
from stratalog.spark.logs import Logs


class AsOf(NamedTuple):
    """Up to where: nothing for all there is."""

    offsets: dict[int, int] | int | None
    time_ms: int | None


@dataclass(frozen=True)
class Looked:
    """One partition."""

    start: int
    end: int
    whole: bool
    """The end is that of the log."""
    size_bytes: int
    cleaned: tuple[tuple[int, int], ...]
    """Offsets of segments that compaction may have rewritten."""

    def read_ms(self, now: Now) -> int:
        """When everything up to the end had been read, for the next run."""
        return now.now_ms if self.whole else 0

    def why_again(self, read_end: int, read_ms: int, now: Now) -> str:
        """Say why the offsets from ``read_end`` on are not enough; empty if they are.

        ``read_ms`` is when an earlier run had read everything up to there, 0 if the log went on then.
        """
        if self.end < read_end:
            return f"it is to end at offset {self.end}, the last result ends at {read_end}"
        late_ms = now.now_ms - read_ms
        touched = any(start < self.end and read_end < end for start, end in self.cleaned)
        if touched and late_ms >= now.delete_retention_ms:
            if not read_ms:
                return "the last result ended inside the log, where compaction has been since"
            return (
                f"compaction may have removed tombstones since the last run {format_duration_ms(late_ms)}"
                f" ago (delete.retention.ms is {format_duration_ms(now.delete_retention_ms)})"
            )
        return ""


@dataclass(frozen=True)
class Now:
    """A topic at the beginning of a run."""

    topic: str
    topic_id: uuid.UUID | None
    delete_retention_ms: int
    now_ms: int
    partitions: dict[int, Looked]
    notes: tuple[str, ...]


def look(logs: Logs, topic: str, isolation: Isolation, as_of: AsOf, now_ms: int) -> Now:
    """The topic as it is, and as far as it is wanted; ConfigError when that cannot be."""
    if as_of.offsets is not None and as_of.time_ms is not None:
        raise ConfigError("as_of_offset and as_of_time: takes one of them")
    numbers = logs.partitions(topic)
    offsets = as_of.offsets
    if isinstance(offsets, int):
        if len(numbers) != 1:
            raise ConfigError(
                f"as_of_offset={offsets}: {topic} has {len(numbers)} partitions, takes one for each:"
                ' {"0": 100, "1": 200}'
            )
        offsets = {numbers[0]: offsets}
    for number in offsets or {}:
        if number not in numbers:
            raise ConfigError(f"as_of_offset: {topic} has no partition {number}, takes {numbers}")
    found, notes = {}, []
    for number in numbers:
        view = logs.view(topic, number)
        view.refresh()
        wanted = None if offsets is None else offsets.get(number)
        if as_of.time_ms is not None:
            wanted = logs.offset_for_time(topic, number, as_of.time_ms, isolation)
        looked = _look(view, isolation, wanted)
        found[number] = looked
        later = max((end for _, end in looked.cleaned), default=0)
        if wanted is not None and later > looked.end:
            notes.append(
                f"{topic}-{number}: compaction has gone past offset {looked.end}: keys that came again"
                f" between it and {later} are missing as of then"
            )
    topic_id, retention_ms = _facts(logs, topic)
    return Now(topic, topic_id, retention_ms, now_ms, found, tuple(notes))


def _look(view: LogView, isolation: Isolation, wanted: int | None) -> Looked:
    start = view.log_start_offset
    end = last = max(view.end_offset(isolation), start)
    if wanted is not None:
        if not start <= wanted <= end:
            raise OffsetOutOfRangeError(
                f"{view.topic}-{view.partition}: as of offset {wanted}: the log holds {start} to {end}"
                " (the end is not included)",
                offset=wanted,
                first=start,
                end=end,
            )
        end = wanted
    segments = view.segments()
    cleaned = tuple(
        (each.base_offset, each.next_offset or each.base_offset)
        for each in segments
        if not each.is_active and _may_be_cleaned(each)
    )
    return Looked(start, end, end == last, sum(each.size for each in segments), cleaned)


def _may_be_cleaned(segment: Segment) -> bool:
    """Whether compaction may have rewritten it; a segment without a seal does not say."""
    if isinstance(segment, ArchivedSegment):
        return segment.source.cleaned
    try:
        seal = segment.seal
    except (FormatError, FileNotFoundError):
        return True
    return seal is None or seal.cleaned


def _facts(logs: Logs, topic: str) -> tuple[uuid.UUID | None, int]:
    """The topic's id, and for how long its tombstones stay."""
    entry = logs.entry(topic)
    return entry.id, entry.config(logs.config).delete_retention_ms
