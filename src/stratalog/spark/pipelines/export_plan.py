"""What an export has to do: the sealed records that its output does not hold yet.

Reads sidecars and manifests only. Ends are pinned here, so that what is appended, sealed or removed while the
export runs changes nothing about what it covers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stratalog.config.units import format_time, parse_time
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StoreError
from stratalog.format.metadata import id_to_text, parse_partition_metadata
from stratalog.log.reader import Isolation
from stratalog.spark.archived import ArchivedLog
from stratalog.spark.logs import Logs, View
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Subscription
from stratalog.spark.pipelines.export_coverage import ALWAYS, Extent, end_of, missing
from stratalog.spark.planning import LogRange, cut

DAY_MS = 86_400_000
INTERNAL = "__"
"""Kafka's own topics begin so; they are exported when named."""


@dataclass(frozen=True)
class Wanted:
    """What the caller asked for."""

    topics: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    isolation: Isolation = "read_committed"
    include_active: bool = False
    fail_on_data_loss: bool = True

    @property
    def times(self) -> tuple[int, int]:
        return (
            ALWAYS[0] if self.since_ms is None else self.since_ms,
            ALWAYS[1] if self.until_ms is None else self.until_ms,
        )


@dataclass(frozen=True)
class Plan:
    """Extents that will be covered, and the ranges to read for it."""

    extents: tuple[Extent, ...] = ()
    ranges: tuple[LogRange, ...] = ()
    lost: tuple[Extent, ...] = ()
    """What was never exported and is no longer in the log; part of ``extents``."""

    def __bool__(self) -> bool:
        return bool(self.extents)


def plan(logs: Logs, wanted: Wanted, covered: Sequence[Extent]) -> Plan:
    """What is new since the commits that cover ``covered``."""
    extents: list[Extent] = []
    lost: list[Extent] = []
    for pair in choose(logs, wanted.topics):
        view = logs.view(*pair)
        view.refresh()
        topic_id = topic_id_of(view)
        log = (pair[0], topic_id, pair[1])
        _check_same_log(log, view, covered)
        first, end = view.log_start_offset, sealed_end(view, wanted)
        whole = Extent(*log, first, end, *wanted.times)
        taken = end_of(covered, log)
        if taken is not None and taken < first and whole.always:
            gone = Extent(*log, taken, first)
            _lose(gone, first, view.end_offset(), wanted.fail_on_data_loss)
            lost.append(gone)
        extents += missing(whole, covered)
    ranges = cut(logs, [range_of(each) for each in extents])
    return Plan((*lost, *extents), tuple(ranges), tuple(lost))


def plan_again(logs: Logs, wanted: Wanted, covered: Sequence[Extent], oldest: Mapping[Pair, int]) -> Plan:
    """Everything at these times once more, in the place of what the output holds of them.

    ``oldest`` is the first offset of each partition that would be replaced: StoreError when the log does not
    hold it any more, because replacing would lose it.
    """
    extents = []
    for pair in choose(logs, wanted.topics):
        view = logs.view(*pair)
        view.refresh()
        log = (pair[0], topic_id_of(view), pair[1])
        _check_same_log(log, view, covered)
        if pair in oldest and (oldest[pair] < view.log_start_offset or not _only(log, covered)):
            raise StoreError(
                f"{pair[0]}-{pair[1]}: the output holds offset {oldest[pair]} at these times, which the"
                " log does not hold any more (or held under another topic of that name): replacing them"
                " would lose it"
            )
        taken = max((each.end for each in covered if each.log == log), default=0)
        end = min(max(sealed_end(view, wanted), taken), view.end_offset(wanted.isolation))
        extents.append(Extent(*log, view.log_start_offset, end, *wanted.times))
    extents = [each for each in extents if each]
    return Plan(tuple(extents), tuple(cut(logs, [range_of(each) for each in extents])))


def _only(log: tuple[str, str, int], covered: Iterable[Extent]) -> bool:
    topic, _, partition = log
    return all(each.log == log for each in covered if (each.topic, each.partition) == (topic, partition))


def choose(logs: Logs, topics: Sequence[str]) -> list[Pair]:
    """The partitions of these topics, or of all but Kafka's own."""
    pairs = logs.choose(Subscription(topics=tuple(topics)))
    return pairs if topics else [pair for pair in pairs if not pair[0].startswith(INTERNAL)]


def range_of(extent: Extent) -> LogRange:
    since, until = (
        None if mine == bound else mine
        for mine, bound in zip((extent.since_ms, extent.until_ms), ALWAYS, strict=True)
    )
    return LogRange(extent.topic, extent.partition, extent.start, extent.end, since, until)


def sealed_end(view: View, wanted: Wanted) -> int:
    """The first offset that is not to be exported: that of the active segment, or the end readers see."""
    end = view.end_offset(wanted.isolation)
    segments = view.segments()
    if segments and segments[-1].is_active and not wanted.include_active:
        end = min(end, segments[-1].base_offset)
    return max(end, view.log_start_offset)


def topic_id_of(view: View) -> str:
    """Which topic of its name it is; empty where nothing says (a directory older than topic ids)."""
    if isinstance(view, ArchivedLog):
        place = re.escape(view.topic) + r"-([A-Za-z0-9_-]{22})/" + str(view.partition)
        found = re.search(rf"/{place}(?:/|\Z)", view.directory)
        if found is None:
            raise StoreError(f"{view.directory}: it does not say which topic it is the archive of")
        return found[1]
    try:
        data = view.context.fs.read_file(f"{view.directory}/partition.metadata")
    except FileNotFoundError:
        return ""
    return id_to_text(parse_partition_metadata(data))


def _check_same_log(log: tuple[str, str, int], view: View, covered: Iterable[Extent]) -> None:
    known = max((each.end for each in covered if each.log == log), default=0)
    if known > view.end_offset():
        raise StoreError(
            f"{log[0]}-{log[2]}: the output holds offsets up to {known - 1}, the log ends at"
            f" {view.end_offset()}: it is another log, or was restored from an older copy; export it to"
            " another output"
        )


def _lose(gone: Extent, first: int, end: int, fail: bool) -> None:
    if fail:
        raise OffsetOutOfRangeError(
            f"{gone.topic}-{gone.partition}: offsets {gone.start} to {gone.end - 1} were never exported"
            " and are no longer in the log; fail_on_data_loss=False (--allow-data-loss) goes on"
            " without them",
            offset=gone.start,
            first=first,
            end=end,
        )


Moment = str | int | None
Bound = Literal["since", "until"]


def moment(said: Moment, bound: Bound, now_ms: int) -> int | None:
    """A time as people write it, in milliseconds."""
    if said is None or isinstance(said, int):
        return said
    try:
        return parse_time(said, now_ms)
    except ValueError as error:
        raise ConfigError(f"{bound}: {error}") from None


def check_times(wanted: Wanted, *, replace: bool) -> None:
    """ConfigError when the times make no sense together."""
    since, until = wanted.since_ms, wanted.until_ms
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"since ({format_time(since)}) is not before until ({format_time(until)})")
    if replace and (since is None or until is None or since % DAY_MS or until % DAY_MS):
        raise ConfigError(
            "replace writes whole dates again: give since and until, both at midnight UTC, as in 2026-01-31"
        )
