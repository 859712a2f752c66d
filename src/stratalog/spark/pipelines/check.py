"""``check``: topics held against limits of freshness, volume, nulls and late data.

Freshness and, without a time range, volume come from headers and sidecars; the rest reads the records, only
the columns and the time it needs. Changes nothing; a broken limit makes the result not ``ok``. Limits are
written as in a TOML file:

    since = "-1h"                    # optional: only what was appended since then

    [limits]                         # of every topic
    max_age = "15m"                  # the newest record is no older
    max_ahead = "1m"                 # and no further in the future
    max_null_keys = "1%"             # of the records

    [topics.orders]                  # of this one besides
    min_records = 1000
    max_null_fields = { amount = 0, "customer.id" = 0.01 }   # of JSON values
    late_after = "5m"                # behind the largest timestamp before it in its partition
    max_late = 0.001                 # share of late records
    max_lateness = "1h"              # of any record
"""

from __future__ import annotations

import difflib
import json
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.config.units import format_duration_ms, format_time, parse_bytes, parse_duration_ms
from stratalog.errors import ConfigError
from stratalog.log.read.reader import Isolation
from stratalog.model import SegmentState
from stratalog.spark.logs import Logs, opened
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Where
from stratalog.spark.pipelines import PipelineResult, Progress
from stratalog.spark.pipelines.executors import (
    Engine,
    Moment,
    Path,
    moment_ms,
    names_of,
    over_ranges,
    pinned,
    ranges_of,
    read,
    settled,
    watched,
    where_of,
)
from stratalog.spark.planning import LogRange, pair_of
from stratalog.spark.views import batch_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- limits ------------------------------------------------------------------------------------------


def _duration(value: object) -> int:
    if isinstance(value, str):
        return parse_duration_ms(value)
    raise TypeError


def _size(value: object) -> int:
    return parse_bytes(value) if isinstance(value, str) else _count(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError
    return value


def _share(value: object) -> float:
    if isinstance(value, str):
        number = float(value.strip().removesuffix("%"))
        share = number / 100 if value.strip().endswith("%") else number
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        share = float(value)
    else:
        raise TypeError
    if not 0 <= share <= 1:
        raise ValueError
    return share


def _shares(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {str(name): _share(each) for name, each in value.items()}


_EXPECTED: Mapping[Callable[[Any], object], str] = {
    _duration: "a duration such as 10m or 1h30m",
    _size: "a size such as 64MiB",
    _count: "a whole number",
    _share: "a share such as 0.01 or 1%",
    _shares: "a table of fields and shares such as { amount = 0.01 }",
}


def _limit(parse: Callable[[Any], object]) -> Any:
    """Return a field of `Limits`, by default no limit, with its parser."""
    return field(default=None, metadata={"parse": parse})


@dataclass(frozen=True)
class Limits:
    """None is no limit. Times are in milliseconds, shares between 0 and 1."""

    max_age: int | None = _limit(_duration)
    max_ahead: int | None = _limit(_duration)
    min_records: int | None = _limit(_count)
    max_records: int | None = _limit(_count)
    min_bytes: int | None = _limit(_size)
    max_bytes: int | None = _limit(_size)
    max_null_keys: float | None = _limit(_share)
    max_null_values: float | None = _limit(_share)
    max_null_fields: Mapping[str, float] | None = _limit(_shares)
    late_after: int | None = _limit(_duration)
    max_late: float | None = _limit(_share)
    max_lateness: int | None = _limit(_duration)

    @classmethod
    def parse(cls, given: Mapping[str, object], where: str = "limits") -> Limits:
        """Parse limits; raise ConfigError naming the one that is wrong and what was expected."""
        parsers = {each.name: each.metadata["parse"] for each in fields(cls)}
        made: dict[str, Any] = {}
        for name, value in given.items():
            if name not in parsers:
                close = difflib.get_close_matches(name, parsers, 1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ConfigError(
                    f"{where}: there is no limit {name!r}{hint}; there are {', '.join(parsers)}"
                )
            try:
                made[name] = None if value is None else parsers[name](value)
            except (TypeError, ValueError):
                expected = _EXPECTED[parsers[name]]
                raise ConfigError(f"{where}: {name}: expected {expected}, got {value!r}") from None
        return cls(**made)

    @property
    def any(self) -> bool:
        """True if anything at all is limited."""
        return self != Limits(late_after=self.late_after)

    @property
    def judges_lateness(self) -> bool:
        return self.max_late is not None or self.max_lateness is not None

    @property
    def counts_records(self) -> bool:
        return self.min_records is not None or self.max_records is not None

    @property
    def reads_records(self) -> bool:
        """True if headers do not tell enough."""
        sizes = (self.min_bytes, self.max_bytes, self.max_null_keys, self.max_null_values)
        return any(each is not None for each in sizes) or bool(self.max_null_fields) or self.judges_lateness


@dataclass(slots=True)
class Measures:
    """The measures of one topic, or of one range of it. Times are in milliseconds, bytes of keys and values,
    ``lateness`` is the largest."""

    newest: int | None = None
    records: int = 0
    bytes: int = 0
    null_keys: int = 0
    null_values: int = 0
    null_fields: dict[str, int] = field(default_factory=dict)
    late: int = 0
    lateness: int = 0

    def add(self, other: Measures) -> None:
        for name in ("records", "bytes", "null_keys", "null_values", "late"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, count in other.null_fields.items():
            self.null_fields[name] = self.null_fields.get(name, 0) + count
        self.lateness = max(self.lateness, other.lateness)
        self.newest = max((each for each in (self.newest, other.newest) if each is not None), default=None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One limit of one topic: what was measured, what is allowed, and a sentence about it."""

    topic: str
    limit: str
    measured: float | None
    allowed: float
    ok: bool
    text: str


def judge(topic: str, limits: Limits, found: Measures, now_ms: int) -> list[Finding]:
    """Compare every limit of a topic with what was measured; return kept ones too."""
    made: list[Finding] = []

    def add(limit: str, measured: float | None, allowed: float, ok: bool, text: str) -> None:
        made.append(Finding(topic, limit, measured, allowed, ok, f"{topic}: {text}"))

    age = None if found.newest is None else now_ms - found.newest
    if (most := limits.max_age) is not None:
        allowed = format_duration_ms(most)
        if age is None:
            add("max_age", None, most, False, f"there is no record; the newest may be {allowed} old")
        else:
            old = format_duration_ms(max(age, 0))
            add("max_age", age, most, age <= most, f"the newest record is {old} old, {allowed} is allowed")
    if (most := limits.max_ahead) is not None:
        ahead = 0 if age is None else max(-age, 0)
        text = f"the newest record is {format_duration_ms(ahead)} in the future"
        add("max_ahead", ahead, most, ahead <= most, f"{text}, {format_duration_ms(most)} is allowed")
    for what in ("records", "bytes"):
        number = getattr(found, what)
        if (least := getattr(limits, f"min_{what}")) is not None:
            add(
                f"min_{what}",
                number,
                least,
                number >= least,
                f"{number:,} {what}, at least {least:,} are due",
            )
        if (most := getattr(limits, f"max_{what}")) is not None:
            text = f"{number:,} {what}, at most {most:,} are allowed"
            add(f"max_{what}", number, most, number <= most, text)
    records, values = found.records, found.records - found.null_values
    shares: list[tuple[str, int, int, float | None, str]] = [
        ("max_null_keys", found.null_keys, records, limits.max_null_keys, "records have no key"),
        ("max_null_values", found.null_values, records, limits.max_null_values, "records have no value"),
        ("max_late", found.late, records, limits.max_late, "records are late"),
    ]
    for name, share in (limits.max_null_fields or {}).items():
        nulls = found.null_fields.get(name, 0)
        shares.append((f"max_null_fields.{name}", nulls, values, share, f"values have no {name}"))
    for limit, part, whole, allowed_share, text in shares:
        if allowed_share is not None:
            share = part / whole if whole else 0.0
            text = f"{part:,} of {whole:,} {text} ({share:.2%}), {allowed_share:.2%} is allowed"
            add(limit, round(share, 6), allowed_share, share <= allowed_share, text)
    if (most := limits.max_lateness) is not None:
        text = f"a record is {format_duration_ms(found.lateness)} late"
        text += f", {format_duration_ms(most)} is allowed"
        add("max_lateness", found.lateness, most, found.lateness <= most, text)
    return made


def read_limits(text: str, where: str) -> dict[str, Any]:
    """Parse a limits file; raise ConfigError if it is not TOML or has something else in it."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from None
    for name, value in found.items():
        if name not in ("since", "until", "limits", "topics"):
            raise ConfigError(
                f"{where}: there is no {name!r}; there are since, until, [limits], [topics.NAME]"
            )
        if name in ("limits", "topics") and not isinstance(value, dict):
            raise ConfigError(f"{where}: {name}: expected a table, got {value!r}")
    for name, value in found.get("topics", {}).items():
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: topics.{name}: expected a table of limits, got {value!r}")
    return found


# -- measuring ---------------------------------------------------------------------------------------
#
# Executors read their range and return a handful of numbers. A record is late by how far its timestamp is
# behind the largest one before it in its partition. The batch headers of the earlier ranges tell the largest
# timestamp before a range, so ranges are measured side by side.


NO_TIMESTAMP = -1


class Seen(NamedTuple):
    """The measures of a range by its batch headers."""

    number: int
    measures: Measures
    behind: int
    """The offset behind its last batch, which may lie in the next range."""


def measure_headers(spark: SparkSession | None, where: Where, ranges: Sequence[LogRange]) -> list[Seen]:
    """Measure the records and the largest timestamp of each range. A batch belongs to the range it begins
    in."""
    made = [Seen(number, Measures(), part.start) for number, part in enumerate(ranges)]
    if ranges:
        begins = {pair_of(part): number for number, part in reversed(list(enumerate(ranges)))}
        task = MeasureHeaders(frozenset(begins.values()))
        for seen in over_ranges(spark, where, ranges, task).collect():
            made[seen.number] = seen
    return made


def measure_records(
    spark: SparkSession | None,
    where: Where,
    ranges: Sequence[LogRange],
    limits: Mapping[str, Limits],
    isolation: Isolation = "read_uncommitted",
) -> dict[str, Measures]:
    """Measure everything that the limits of each topic need. Ranges of one partition are in their order."""
    made = {topic: Measures() for topic in limits}
    if not ranges:
        return made
    floors = [NO_TIMESTAMP] * len(ranges)
    several = len({pair_of(each) for each in ranges}) < len(ranges)
    if several and any(each.judges_lateness for each in limits.values()):
        ranges, floors = in_turn(ranges, measure_headers(spark, where, ranges))
    task = MeasureRecords(dict(limits), tuple(floors), isolation)
    for topic, found in over_ranges(spark, where, ranges, task).collect():
        made[topic].add(found)
    return made


def in_turn(ranges: Sequence[LogRange], seen: Sequence[Seen]) -> tuple[list[LogRange], list[int]]:
    """Move the ranges to where batches begin; return them and the largest timestamp before each."""
    largest: dict[Pair, int] = {}
    reached: dict[Pair, int] = {}
    ends: dict[Pair, int] = {pair_of(part): part.end for part in ranges}
    moved, floors = [], []
    for part, (_, measures, behind) in zip(ranges, seen, strict=True):
        pair = pair_of(part)
        start = max(part.start, reached.get(pair, part.start))
        reached[pair] = end = min(max(start, part.end, behind), ends[pair])
        moved.append(replace(part, start=start, end=end))
        floors.append(largest.get(pair, NO_TIMESTAMP))
        largest[pair] = max(floors[-1], NO_TIMESTAMP if measures.newest is None else measures.newest)
    return moved, floors


@dataclass(frozen=True)
class MeasureHeaders:
    """Measures a range by its batch headers; a batch that the log begins in the middle of, by its records."""

    begins: frozenset[int]
    """The numbers of the ranges with which a partition begins."""

    def __call__(self, logs: Logs, number: int, part: LogRange) -> Iterator[Seen]:
        made, behind = Measures(), part.start
        first: int | None = None
        for batch in batch_rows(
            logs, part, ("baseOffset", "lastOffset", "records", "maxTimestamp", "isControl")
        ):
            first = batch.column("baseOffset")[0].as_py() if first is None else first
            behind = batch.column("lastOffset")[-1].as_py() + 1
            batch = batch.filter(pc.invert(batch.column("isControl")))
            newest = pc.max(batch.column("maxTimestamp").cast(pa.int64())).as_py()
            made.add(
                Measures(
                    newest=None if newest is None else newest // 1000,
                    records=pc.sum(batch.column("records")).as_py() or 0,
                )
            )
        if number in self.begins and first != part.start:
            rest = replace(part, end=part.end if first is None else first)
            for batch in read(logs, rest, ("timestamp",)):
                times = pc.max(batch.column(0).cast(pa.int64())).as_py()
                made.add(Measures(newest=times // 1000, records=len(batch)))
        yield Seen(number, made, behind)


@dataclass(frozen=True)
class MeasureRecords:
    """Measures a range by its records, reading only the columns that the topic's limits need."""

    limits: Mapping[str, Limits]
    floors: tuple[int, ...]
    isolation: Isolation

    def __call__(self, logs: Logs, number: int, part: LogRange) -> Iterator[tuple[str, Measures]]:
        limits = self.limits[part.topic]
        columns = ["timestamp"]
        sized = limits.min_bytes is not None or limits.max_bytes is not None
        if sized or limits.max_null_keys is not None:
            columns.append("key")
        if sized or limits.max_null_values is not None or limits.max_null_fields:
            columns.append("value")
        made, floor = Measures(), self.floors[number]
        for batch in read(logs, part, columns, self.isolation):
            found = Measures(records=len(batch))
            for name in columns[1:]:
                column = batch.column(name)
                found.bytes += pc.sum(pc.binary_length(column)).as_py() or 0
                setattr(found, f"null_{name}s", column.null_count)
            if limits.max_null_fields:
                found.null_fields = null_fields(batch.column("value"), tuple(limits.max_null_fields))
            times = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)
            times = times.filter(pc.greater(times, NO_TIMESTAMP))
            if len(times):
                # Only the cumulative sum takes a start; so the floor goes in front, and is left out again.
                running = pc.cumulative_max(pa.concat_arrays([pa.array([floor], pa.int64()), times]))
                floor = running[-1].as_py()
                lateness = pc.subtract(running.slice(1), times)
                found.newest = pc.max(times).as_py()
                found.late = pc.sum(pc.greater(lateness, limits.late_after or 0)).as_py()
                found.lateness = pc.max(lateness).as_py()
            made.add(found)
        yield part.topic, made


def null_fields(values: pa.Array, names: Sequence[str]) -> dict[str, int]:
    """Count the values that lack each field, or have null in it; null values do not count.

    A name with dots goes into nested objects. A value that is not a JSON object lacks every field.
    """
    paths = [name.split(".") for name in names]
    nulls = [0] * len(names)
    for value in values.drop_null().to_pylist():
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            document = None
        for at, path in enumerate(paths):
            found = document
            for step in path:
                found = found.get(step) if isinstance(found, dict) else None
            nulls[at] += found is None
    return dict(zip(names, nulls, strict=True))


# -- the pipeline ------------------------------------------------------------------------------------


def check(
    spark: Engine,
    *,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | None = None,
    limits: Mapping[str, object] | None = None,
    topic_limits: Mapping[str, Mapping[str, object]] | None = None,
    limits_file: str | None = None,
    since: Moment = None,
    until: Moment = None,
    now_ms: int | None = None,
    isolation: Isolation = "read_uncommitted",
    progress: Progress | None = None,
) -> PipelineResult:
    """Hold topics against limits; ``details["findings"]`` has every one of them, kept or broken.

    ``limits`` hold for all topics, ``topic_limits`` for one each besides; ``limits_file`` is a TOML file with
    both, and the arguments win over it. Without ``topics``, those that have limits of their own are checked,
    and all of them when there are limits for all. ``since`` and ``until`` (ISO, ``-1h``) narrow everything
    but freshness to what was appended in that time. Without Spark (None) everything is read in this process.
    """
    began_s = time.monotonic()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    file = {} if limits_file is None else read_limits(FilePath(limits_file).read_text(), limits_file)
    since_ms = moment_ms(file.get("since") if since is None else since, "since", now_ms)
    until_ms = moment_ms(file.get("until") if until is None else until, "until", now_ms)
    where = where_of(path, archive)
    with opened(where) as logs:
        held = _held(file, limits or {}, topic_limits or {}, limits_file or "limits", names_of(topics), logs)
        extents = pinned(logs, list(held), since_ms=since_ms, until_ms=until_ms, isolation=isolation)
        windowed = since_ms is not None or until_ms is not None
        deep = ranges_of(spark, logs, [each for each in extents if _reads(held[each.topic], windowed)])
        flat = [each for each in extents if _only_counts(held[each.topic], windowed)]
        runner = settled(spark, deep)
        with watched(runner, progress, "checking"):
            found = measure_records(runner, where, deep, held, isolation)
            ranges = ranges_of(runner, logs, flat)
            for part, seen in zip(ranges, measure_headers(runner, where, ranges), strict=True):
                found[part.topic].add(seen.measures)
        for topic, limit in held.items():
            if limit.max_age is not None or limit.max_ahead is not None:
                found[topic].newest = _newest(runner, where, logs, topic)
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
            "findings": [asdict(each) for each in findings],
            "topics": {
                topic: asdict(each) | {"newest": _time_text(each.newest)} for topic, each in found.items()
            },
            "since": _time_text(since_ms),
            "until": _time_text(until_ms),
        },
        tuple(each.text for each in broken) or (f"{len(findings):,} limits, all kept",),
        ok=not broken,
        seconds=time.monotonic() - began_s,
    )


def _time_text(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_time(at_ms)


def _held(
    file: Mapping[str, Any],
    limits: Mapping[str, object],
    topic_limits: Mapping[str, Mapping[str, object]],
    source: str,
    names: Sequence[str],
    logs: Logs,
) -> dict[str, Limits]:
    """Return the topics to check with their limits; raise ConfigError if nothing is limited.

    The caller's limits win over the file's, and those of a topic over those of all.
    """
    for_all = {**file.get("limits", {}), **limits}
    of_topics = file.get("topics", {})
    own = dict.fromkeys([*of_topics, *topic_limits])
    limited = Limits.parse(for_all, source).any
    if not names:
        # Kafka's own topics begin with two underscores.
        every = [name for name in logs.topics() if not name.startswith("__")] if limited else []
        names = [*every, *own]
    held: dict[str, Limits] = {}
    for name in dict.fromkeys(names):
        given = {**file.get("limits", {}), **of_topics.get(name, {}), **limits, **topic_limits.get(name, {})}
        held[name] = Limits.parse(given, f"{source}: topics.{name}" if name in own else source)
        if not held[name].any:
            raise ConfigError(f"no limit for {name}: pass one such as max_age='15m', or a limits file")
    if not held:
        raise ConfigError("no limit is given: pass one such as max_age='15m', or a limits file")
    return held


def _reads(limits: Limits, windowed: bool) -> bool:
    """Return True if the records of a topic are read, not only its headers."""
    return limits.reads_records or (windowed and limits.counts_records)


def _only_counts(limits: Limits, windowed: bool) -> bool:
    return limits.counts_records and not _reads(limits, windowed)


def _newest(spark: SparkSession | None, where: Where, logs: Logs, topic: str) -> int | None:
    """Return the largest timestamp of a topic, by its segments' sidecars; by batch headers where they do not
    tell."""
    known: list[int] = []
    unsure: list[LogRange] = []
    for partition in logs.partitions(topic):
        for info in logs.segment_infos(topic, partition):
            if info.state is SegmentState.DELETED or not info.size_bytes:
                continue
            if info.max_timestamp is None:
                unsure.append(LogRange(topic, partition, info.base_offset, info.next_offset))
            elif info.max_timestamp >= 0:
                known.append(info.max_timestamp)
    if unsure:
        seen = measure_headers(spark, where, ranges_of(spark, logs, unsure))
        known += [each.measures.newest for each in seen if each.measures.newest is not None]
    return max(known, default=None)
