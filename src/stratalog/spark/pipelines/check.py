"""``check``: topics held against limits of freshness, volume, nulls and late data.

Freshness and, without a time range, volume come from headers and sidecars; the rest reads the records, only
the columns and the time it needs. Changes nothing; a broken limit makes the result not ``ok``.
"""

from __future__ import annotations

import difflib
import json
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.config.units import format_duration_ms, format_time, parse_bytes, parse_duration_ms, parse_time
from stratalog.errors import ConfigError, InvalidArgumentError
from stratalog.log.read.reader import Isolation
from stratalog.model import SegmentState
from stratalog.spark.logs import Logs, opened
from stratalog.spark.offsets import Pair
from stratalog.spark.options import Where
from stratalog.spark.pipelines.executors import over_ranges, pinned, ranges_of, read, watched, where_of
from stratalog.spark.pipelines.places import Path
from stratalog.spark.pipelines.result import PipelineResult, Progress
from stratalog.spark.planning import LogRange, pair_of
from stratalog.spark.views import batch_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.spark.logs import Logs


# -- limits ------------------------------------------------------------------------------------------
#
# What `check` holds a topic to, and its judgement: pure functions of limits, measures and the time.
#
# Limits are written as in a TOML file:
#
#     since = "-1h"                    # optional: only what was appended since then
#
#     [limits]                         # of every topic
#     max_age = "15m"                  # the newest record is no older
#     max_ahead = "1m"                 # and no further in the future
#     max_null_keys = "1%"             # of the records
#
#     [topics.orders]                  # of this one besides
#     min_records = 1000
#     max_null_fields = { amount = 0, "customer.id" = 0.01 }   # of JSON values
#     late_after = "5m"                # behind the largest timestamp before it in its partition
#     max_late = 0.001                 # share of late records
#     max_lateness = "1h"              # of any record


@dataclass(frozen=True, slots=True)
class Limits:
    """None is no limit. Times are in milliseconds, shares between 0 and 1."""

    max_age: int | None = None
    max_ahead: int | None = None
    min_records: int | None = None
    max_records: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    max_null_keys: float | None = None
    max_null_values: float | None = None
    max_null_fields: Mapping[str, float] = field(default_factory=dict)
    late_after: int = 0
    max_late: float | None = None
    max_lateness: int | None = None

    @classmethod
    def parse(cls, said: Mapping[str, object], where: str = "limits") -> Limits:
        """Limits as people write them; ConfigError names the one that is wrong and what it takes."""
        made: dict[str, Any] = {}
        for name, value in said.items():
            if name not in _READERS:
                close = difflib.get_close_matches(name, _READERS, 1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise ConfigError(
                    f"{where}: there is no limit {name!r}{hint}; there are {', '.join(_READERS)}"
                )
            if value is None:
                continue
            read, takes = _READERS[name]
            try:
                made[name] = read(value)
            except (TypeError, ValueError):
                raise ConfigError(f"{where}: {name} is {value!r}, takes {takes}") from None
        return cls(**made)

    @property
    def any(self) -> bool:
        """Whether anything at all is limited."""
        return self != Limits(late_after=self.late_after)

    @property
    def judges_lateness(self) -> bool:
        return self.max_late is not None or self.max_lateness is not None

    @property
    def reads_records(self) -> bool:
        """Whether headers do not tell enough."""
        sizes = (self.min_bytes, self.max_bytes, self.max_null_keys, self.max_null_values)
        return any(each is not None for each in sizes) or bool(self.max_null_fields) or self.judges_lateness


@dataclass(slots=True)
class Measures:
    """What was found of one topic, or of one range of it. Times are in milliseconds."""

    newest: int | None = None
    records: int = 0
    bytes: int = 0
    """Of keys and values."""
    null_keys: int = 0
    null_values: int = 0
    null_fields: dict[str, int] = field(default_factory=dict)
    late: int = 0
    lateness: int = 0
    """The largest."""

    def add(self, other: Measures) -> None:
        """The same of both together."""
        for name in ("records", "bytes", "null_keys", "null_values", "late"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, count in other.null_fields.items():
            self.null_fields[name] = self.null_fields.get(name, 0) + count
        self.lateness = max(self.lateness, other.lateness)
        if other.newest is not None:
            self.newest = other.newest if self.newest is None else max(self.newest, other.newest)


@dataclass(frozen=True, slots=True)
class Finding:
    """One limit of one topic: what was measured, what is allowed, and a sentence about it."""

    topic: str
    limit: str
    measured: float | None
    allowed: float
    ok: bool
    text: str

    def to_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "limit": self.limit,
            "measured": self.measured,
            "allowed": self.allowed,
            "ok": self.ok,
            "text": self.text,
        }


def judge(topic: str, limits: Limits, found: Measures, now_ms: int) -> list[Finding]:
    """Every limit of a topic held against what was found, kept ones too."""
    made: list[Finding] = []

    def say(limit: str, measured: float | None, allowed: float | None, ok: bool, text: str) -> None:
        if allowed is not None:
            made.append(Finding(topic, limit, measured, allowed, ok, f"{topic}: {text}"))

    age = None if found.newest is None else now_ms - found.newest
    if limits.max_age is not None:
        allowed = format_duration_ms(limits.max_age)
        if age is None:
            say(
                "max_age", None, limits.max_age, False, f"there is no record; the newest may be {allowed} old"
            )
        else:
            old = format_duration_ms(max(age, 0))
            kept = age <= limits.max_age
            say("max_age", age, limits.max_age, kept, f"the newest record is {old} old, {allowed} is allowed")
    if limits.max_ahead is not None:
        ahead = 0 if age is None else max(-age, 0)
        allowed = format_duration_ms(limits.max_ahead)
        text = f"the newest record is {format_duration_ms(ahead)} in the future, {allowed} is allowed"
        say("max_ahead", ahead, limits.max_ahead, ahead <= limits.max_ahead, text)
    for what in ("records", "bytes"):
        number = getattr(found, what)
        least, most = getattr(limits, f"min_{what}"), getattr(limits, f"max_{what}")
        if least is not None:
            say(
                f"min_{what}",
                number,
                least,
                number >= least,
                f"{number:,} {what}, at least {least:,} are due",
            )
        if most is not None:
            say(
                f"max_{what}",
                number,
                most,
                number <= most,
                f"{number:,} {what}, at most {most:,} are allowed",
            )
    shares = [
        ("max_null_keys", found.null_keys, found.records, limits.max_null_keys, "records have no key"),
        (
            "max_null_values",
            found.null_values,
            found.records,
            limits.max_null_values,
            "records have no value",
        ),
        ("max_late", found.late, found.records, limits.max_late, "records are late"),
    ]
    values = found.records - found.null_values
    for name, most in limits.max_null_fields.items():
        nulls = found.null_fields.get(name, 0)
        shares.append((f"max_null_fields.{name}", nulls, values, most, f"values have no {name}"))
    for limit, part, whole, most, text in shares:
        if most is not None:
            share = part / whole if whole else 0.0
            said = f"{part:,} of {whole:,} {text} ({share:.2%}), {most:.2%} is allowed"
            say(limit, round(share, 6), most, share <= most, said)
    if limits.max_lateness is not None:
        said = f"a record is {format_duration_ms(found.lateness)} late"
        said += f", {format_duration_ms(limits.max_lateness)} is allowed"
        say("max_lateness", found.lateness, limits.max_lateness, found.lateness <= limits.max_lateness, said)
    return made


def read_limits(text: str, where: str) -> dict[str, Any]:
    """A limits file; ConfigError when it is not TOML or has something else in it."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from None
    for name, value in said.items():
        if name not in ("since", "until", "limits", "topics"):
            raise ConfigError(
                f"{where}: there is no {name!r}; there are since, until, [limits], [topics.NAME]"
            )
        if name in ("limits", "topics") and not isinstance(value, dict):
            raise ConfigError(f"{where}: {name} is {value!r}, takes a table")
    for name, value in said.get("topics", {}).items():
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: topics.{name} is {value!r}, takes a table of limits")
    return said


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
        raise InvalidArgumentError(f"{value} is not a share")
    return share


def _shares(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {str(name): _share(each) for name, each in value.items()}


_A_DURATION = "a duration such as 10m or 1h30m"
_A_COUNT = "a whole number"
_A_SIZE = "a size such as 64MiB"
_A_SHARE = "a share such as 0.01 or 1%"
_READERS: Mapping[str, tuple[Callable[[object], object], str]] = {
    "max_age": (_duration, _A_DURATION),
    "max_ahead": (_duration, _A_DURATION),
    "min_records": (_count, _A_COUNT),
    "max_records": (_count, _A_COUNT),
    "min_bytes": (_size, _A_SIZE),
    "max_bytes": (_size, _A_SIZE),
    "max_null_keys": (_share, _A_SHARE),
    "max_null_values": (_share, _A_SHARE),
    "max_null_fields": (_shares, "a table of fields and shares such as { amount = 0.01 }"),
    "late_after": (_duration, _A_DURATION),
    "max_late": (_share, _A_SHARE),
    "max_lateness": (_duration, _A_DURATION),
}


# -- measuring ---------------------------------------------------------------------------------------
#
# Measuring records for `check`: executors read their range and send on a handful of numbers.
#
# A record is late by how far its timestamp is behind the largest one before it in its partition. What lies
# before a range is known from the batch headers of the ranges before it, so ranges are measured side by side.


NO_TIMESTAMP = -1


class Seen(NamedTuple):
    """What the batch headers of a range say."""

    number: int
    measures: Measures
    behind: int
    """The offset behind its last batch, which may lie in the next range."""


def measure_headers(spark: SparkSession, where: Where, ranges: Sequence[LogRange]) -> list[Seen]:
    """Of each range: its records and its largest timestamp. A batch belongs to the range it begins in."""
    made = [Seen(number, Measures(), part.start) for number, part in enumerate(ranges)]
    if ranges:
        begins = {pair_of(part): number for number, part in reversed(list(enumerate(ranges)))}
        task = MeasureHeaders(frozenset(begins.values()))
        for seen in over_ranges(spark, where, ranges, task).collect():
            made[seen.number] = seen
    return made


def measure_records(
    spark: SparkSession,
    where: Where,
    ranges: Sequence[LogRange],
    limits: Mapping[str, Limits],
    isolation: Isolation = "read_uncommitted",
) -> dict[str, Measures]:
    """Of each topic everything its limits ask for. Ranges of one partition are in their order."""
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
    """The ranges moved to where batches begin, and of each the largest timestamp before it."""
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
    """Counts of a range by its batch headers; of a batch that the log begins in the middle of, by records."""

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
    """Counts of a range by its records, reading only the columns that the topic's limits need."""

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
                # A start only the sum takes; so the floor goes in front, and is left out again.
                running = pc.cumulative_max(pa.concat_arrays([pa.array([floor], pa.int64()), times]))
                floor = running[-1].as_py()
                lateness = pc.subtract(running.slice(1), times)
                found.newest = pc.max(times).as_py()
                found.late = pc.sum(pc.greater(lateness, limits.late_after)).as_py()
                found.lateness = pc.max(lateness).as_py()
            made.add(found)
        yield part.topic, made


def null_fields(values: pa.Array, names: Sequence[str]) -> dict[str, int]:
    """How many of the values that are there lack each field, or have null in it.

    A name with dots goes into nested objects. What is not a JSON object lacks every field.
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
    both (see `stratalog.spark.pipelines.check`), and what is given here wins over it. Without ``topics``,
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
