"""What an export has to do: the sealed records that its output does not hold yet.

Reads sidecars and manifests only. Ends are pinned here, so that what is appended, sealed or removed while the
export runs changes nothing about what it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stratalog.config.units import format_time, parse_time
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StoreError
from stratalog.format.metadata import id_to_text, parse_partition_metadata
from stratalog.log.read.reader import Isolation
from stratalog.spark.logs import Logs
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Subscription
from stratalog.spark.pipelines.lake.table import Dates, LakeTable, Log
from stratalog.spark.planning import LogRange, cut
from stratalog.store.read_only import ArchiveView, View

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
    replace: bool = False

    @property
    def dates(self) -> Dates | None:
        """The dates to write again."""
        if not self.replace or self.since_ms is None or self.until_ms is None:
            return None
        return Dates(self.topics, self.since_ms, self.until_ms)


@dataclass(frozen=True)
class Plan:
    """The ranges to read, and where the output ends afterwards."""

    before: Mapping[Log, int] = field(default_factory=dict)
    ends: Mapping[Log, int] = field(default_factory=dict)
    """Of the logs that are written to; with the same end as before where dates are written again."""
    ranges: tuple[LogRange, ...] = ()
    lost: tuple[str, ...] = ()
    """Sentences about offsets that were never exported and are no longer in the log."""

    def __bool__(self) -> bool:
        return bool(self.ends)


def logs_of(logs: Logs, topics: Sequence[str]) -> dict[Log, View]:
    """The logs of these topics, or of all but Kafka's own, as they are now."""
    found = {}
    for pair in choose(logs, topics):
        view = logs.view(*pair)
        view.refresh()
        found[Log(pair[0], topic_id_of(view), pair[1])] = view
    return found


def plan(logs: Logs, views: Mapping[Log, View], wanted: Wanted, table: LakeTable) -> Plan:
    """Plan what is new in each log since the end that the table holds, or the dates to write again."""
    before = table.ends(list(views))
    for log, view in views.items():
        _check_same_log(log, view, before.get(log, 0))
    if (dates := wanted.dates) is not None:
        return _again(logs, views, wanted, table, dates, before)
    if before and (wanted.since_ms is not None or wanted.until_ms is not None):
        held = min(before)
        raise ConfigError(
            f"since and until: {table.url} holds {held.topic}-{held.partition} up to offset"
            f" {before[held] - 1} already; pass replace (--replace) to write dates again, or leave them out"
        )
    ends: dict[Log, int] = {}
    lost: list[str] = []
    ranges: list[LogRange] = []
    for log, view in views.items():
        first, end = view.log_start_offset, sealed_end(view, wanted)
        start = before.get(log, first)
        if start < first:
            lost.append(_lose(log, start, first, view.end_offset(), wanted.fail_on_data_loss))
            start = first
        if start < end:
            ends[log] = end
            ranges.append(LogRange(log.topic, log.partition, start, end, wanted.since_ms, wanted.until_ms))
    return Plan(before, ends, tuple(cut(logs, ranges)), tuple(lost))


def _again(
    logs: Logs,
    views: Mapping[Log, View],
    wanted: Wanted,
    table: LakeTable,
    dates: Dates,
    before: Mapping[Log, int],
) -> Plan:
    """Take the exported offsets of these dates once more; raise StoreError where that would lose some."""
    oldest = table.oldest(dates)
    ranges = []
    for log, view in views.items():
        pair: Pair = (log.topic, log.partition)
        held = oldest.pop(pair, None)
        if held is not None and (held < view.log_start_offset or table.ids_of(log.topic) - {log.topic_id}):
            raise StoreError(
                f"{log.topic}-{log.partition}: the output holds offset {held} at these dates, which the log"
                " does not hold any more (or held under another topic of that name): replacing it would lose"
                " it"
            )
        start, end = view.log_start_offset, min(before.get(log, 0), view.end_offset(wanted.isolation))
        if start < end:
            ranges.append(LogRange(*pair, start, end, dates.since_ms, dates.until_ms))
    if oldest:
        topic, partition = min(oldest)
        raise StoreError(
            f"{topic}-{partition}: the output holds it at these dates and the log has no such partition:"
            " replacing it would lose it; name the topics to replace"
        )
    return Plan(before, before, tuple(cut(logs, ranges)))


def choose(logs: Logs, topics: Sequence[str]) -> list[Pair]:
    """The partitions of these topics, or of all but Kafka's own."""
    pairs = logs.choose(Subscription(topics=tuple(topics)))
    return pairs if topics else [pair for pair in pairs if not pair[0].startswith(INTERNAL)]


def sealed_end(view: View, wanted: Wanted) -> int:
    """The first offset that is not to be exported: that of the active segment, or the end readers see."""
    end = view.end_offset(wanted.isolation)
    segments = view.segments()
    if segments and segments[-1].is_active and not wanted.include_active:
        end = min(end, segments[-1].base_offset)
    return max(end, view.log_start_offset)


def topic_id_of(view: View) -> str:
    """Which topic of its name it is; empty where nothing says (a directory older than topic ids)."""
    if isinstance(view, ArchiveView):
        return id_to_text(view.topic_id)
    try:
        data = view.context.fs.read_file(f"{view.directory}/partition.metadata")
    except FileNotFoundError:
        return ""
    return id_to_text(parse_partition_metadata(data))


def _check_same_log(log: Log, view: View, known: int) -> None:
    if known > view.end_offset():
        raise StoreError(
            f"{log.topic}-{log.partition}: the output holds offsets up to {known - 1}, the log ends at"
            f" {view.end_offset()}: it is another log, or was restored from an older copy; export it to"
            " another output"
        )


def _lose(log: Log, start: int, first: int, end: int, fail: bool) -> str:
    gone = f"{log.topic}-{log.partition}: offsets {start} to {first - 1}"
    if fail:
        raise OffsetOutOfRangeError(
            f"{gone} were never exported and are no longer in the log; fail_on_data_loss=False"
            " (--allow-data-loss) goes on without them",
            offset=start,
            first=first,
            end=end,
        )
    return f"{gone} left the log before they were exported"


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


def check_times(wanted: Wanted) -> None:
    """Raise ConfigError when the times make no sense together."""
    since, until = wanted.since_ms, wanted.until_ms
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"since ({format_time(since)}) is not before until ({format_time(until)})")
    if wanted.replace and (since is None or until is None or since % DAY_MS or until % DAY_MS):
        raise ConfigError(
            "replace writes whole dates again: give since and until, both at midnight UTC, as in 2026-01-31"
        )
