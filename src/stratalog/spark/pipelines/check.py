"""``check``: topics held against limits of freshness, volume, nulls and late data.

Freshness and, without a time range, volume come from headers and sidecars; the rest reads the records, only
the columns and the time it needs. Changes nothing; a broken limit makes the result not ``ok``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from stratalog.config.units import format_time, parse_time
from stratalog.errors import ConfigError
from stratalog.log.reader import Isolation
from stratalog.model import SegmentState
from stratalog.spark.logs import Logs, opened
from stratalog.spark.options import Where
from stratalog.spark.pipelines.jobs import watched
from stratalog.spark.pipelines.limits import Finding, Limits, Measures, judge, read_limits
from stratalog.spark.pipelines.measures import measure_headers, measure_records
from stratalog.spark.pipelines.places import Path
from stratalog.spark.pipelines.ranges import pinned, ranges_of, where_of
from stratalog.spark.pipelines.result import PipelineResult, Progress
from stratalog.spark.planning import LogRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Said = Mapping[str, object]


def check(
    spark: SparkSession,
    *,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | None = None,
    limits: Said | None = None,
    topic_limits: Mapping[str, Said] | None = None,
    limits_file: str | None = None,
    since: str | int | None = None,
    until: str | int | None = None,
    now_ms: int | None = None,
    isolation: Isolation = "read_uncommitted",
    progress: Progress | None = None,
) -> PipelineResult:
    """Hold topics against limits; ``details["findings"]`` has every one of them, kept or broken.

    ``limits`` hold for all topics, ``topic_limits`` for one each besides; ``limits_file`` is a TOML file with
    both (see `stratalog.spark.pipelines.limits`), and what is given here wins over it. Without ``topics``,
    those that have limits of their own are checked, and all of them when there are limits for all. ``since``
    and ``until`` (ISO, ``-1h``) narrow everything but freshness to what was appended in that time.
    """
    began_s = time.monotonic()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    said = _Said.of(limits, topic_limits, limits_file)
    since_ms, until_ms = (
        _moment(given, said.file.get(name), now_ms, name)
        for name, given in (("since", since), ("until", until))
    )
    where = where_of(path, archive)
    with opened(where) as logs:
        held = said.topics(topics, logs)
        extents = pinned(logs, list(held), since_ms=since_ms, until_ms=until_ms, isolation=isolation)
        windowed = since_ms is not None or until_ms is not None
        with watched(spark, progress, "checking"):
            found = _measure(spark, where, logs, extents, held, windowed, isolation)
        for topic, limit in held.items():
            if limit.max_age is not None or limit.max_ahead is not None:
                found[topic].newest = _newest(spark, where, logs, topic)
    findings = [each for topic, limit in held.items() for each in judge(topic, limit, found[topic], now_ms)]
    broken = [each for each in findings if not each.ok]
    return PipelineResult(
        "check",
        {
            "topics": len(held),
            "records": sum(each.records for each in found.values()),
            "limits": len(findings),
            "broken": len(broken),
        },
        {
            "findings": [each.to_json() for each in findings],
            "topics": {topic: _facts(each) for topic, each in found.items()},
            "since": None if since_ms is None else format_time(since_ms),
            "until": None if until_ms is None else format_time(until_ms),
        },
        _notes(broken, len(findings)),
        ok=not broken,
        seconds=time.monotonic() - began_s,
    )


class _Said:
    """Limits as they were written, from a file and from the caller."""

    def __init__(
        self, file: Mapping[str, Any], limits: Said, topic_limits: Mapping[str, Said], where: str
    ) -> None:
        self.file = file
        self._limits, self._topic_limits = limits, topic_limits
        self._own = dict.fromkeys([*file.get("topics", {}), *topic_limits])
        self._where = where
        self.for_all = Limits.parse({**file.get("limits", {}), **limits}, where)

    def _of(self, topic: str) -> Limits:
        """What the caller says wins over the file, what is said of a topic over what is said of all."""
        where = f"{self._where}: topics.{topic}" if topic in self._own else self._where
        file = {**self.file.get("limits", {}), **self.file.get("topics", {}).get(topic, {})}
        return Limits.parse({**file, **self._limits, **self._topic_limits.get(topic, {})}, where)

    @classmethod
    def of(cls, limits: Said | None, topic_limits: Mapping[str, Said] | None, file: str | None) -> _Said:
        read: dict[str, Any] = {}
        if file is not None:
            read = read_limits(FilePath(file).read_text(), file)
        return cls(read, limits or {}, topic_limits or {}, file or "limits")

    def topics(self, wanted: Sequence[str] | None, logs: Logs) -> dict[str, Limits]:
        """The topics to check with their limits; ConfigError when nothing is limited."""
        if wanted is None or not list(wanted):
            # Kafka's own topics begin with two underscores.
            everything = [name for name in logs.topics() if not name.startswith("__")]
            wanted = [*everything, *self._own] if self.for_all.any else list(self._own)
        held: dict[str, Limits] = {}
        for name in dict.fromkeys([wanted] if isinstance(wanted, str) else wanted):
            limits = self._of(name)
            if not limits.any:
                raise ConfigError(f"no limit for {name}: give one such as max_age='15m', or a limits file")
            held[name] = limits
        if not held:
            raise ConfigError("no limit is given: give one such as max_age='15m', or a limits file")
        return held


def _measure(
    spark: SparkSession,
    where: Where,
    logs: Logs,
    extents: Sequence[LogRange],
    held: Mapping[str, Limits],
    windowed: bool,
    isolation: Isolation,
) -> dict[str, Measures]:
    deep = [
        each for each in extents if held[each.topic].reads_records or (windowed and _counts(held[each.topic]))
    ]
    made = measure_records(spark, where, ranges_of(spark, logs, deep), held, isolation)
    flat = [each for each in extents if each not in deep and _counts(held[each.topic])]
    ranges = ranges_of(spark, logs, flat)
    for part, seen in zip(ranges, measure_headers(spark, where, ranges), strict=True):
        made[part.topic].add(seen.measures)
    return made


def _counts(limits: Limits) -> bool:
    return limits.min_records is not None or limits.max_records is not None


def _newest(spark: SparkSession, where: Where, logs: Logs, topic: str) -> int | None:
    """The largest timestamp of a topic, by its segments' sidecars; by batch headers where they do not say."""
    newest: int | None = None
    unsure: list[LogRange] = []
    for partition in logs.partitions(topic):
        for info in logs.segment_infos(topic, partition):
            if info.state is SegmentState.DELETED or not info.size_bytes:
                continue
            if info.max_timestamp is None:
                unsure.append(LogRange(topic, partition, info.base_offset, info.next_offset))
            elif info.max_timestamp >= 0:
                newest = info.max_timestamp if newest is None else max(newest, info.max_timestamp)
    if unsure:
        for _, each, _ in measure_headers(spark, where, ranges_of(spark, logs, unsure)):
            if each.newest is not None:
                newest = each.newest if newest is None else max(newest, each.newest)
    return newest


def _moment(given: str | int | None, in_file: object, now_ms: int, name: str) -> int | None:
    said = in_file if given is None else given
    if said is None or (isinstance(said, int) and not isinstance(said, bool)):
        return said
    if not isinstance(said, str):
        raise ConfigError(f"{name} is {said!r}, takes a time such as 2026-01-01T12:00:00Z or -1h")
    return parse_time(said, now_ms)


def _facts(found: Measures) -> dict[str, object]:
    facts = asdict(found)
    newest = facts.pop("newest")
    return {"newest": None if newest is None else format_time(newest)} | facts


def _notes(broken: Sequence[Finding], limits: int) -> tuple[str, ...]:
    if not broken:
        return (f"{limits:,} limits, all kept",)
    return tuple(each.text for each in broken)
