"""``stats``: what topics hold, how fast it comes, and how it is spread.

Sizes, counts, codecs and rates come from the views of segments and batches, which read headers only. Keys
need the records: see `stratalog.spark.pipelines.census`. Everything is counted up to the ends the partitions
have when it begins. Changes nothing.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stratalog.config.units import format_bytes, format_time
from stratalog.errors import InvalidArgumentError
from stratalog.log.reader import Isolation
from stratalog.model import SegmentState
from stratalog.spark.logs import Logs, opened
from stratalog.spark.offsets import Pair
from stratalog.spark.pipelines.census import Census, HotKey, KeyCounts, census
from stratalog.spark.pipelines.headers import HeaderCounts, Headers, count_headers, least, most, window_for
from stratalog.spark.pipelines.jobs import watched
from stratalog.spark.pipelines.places import Path
from stratalog.spark.pipelines.ranges import pinned, ranges_of, read, where_of
from stratalog.spark.pipelines.result import PipelineResult, Progress
from stratalog.spark.planning import LogRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SKEWED = 2.0
_WORTH_COMPACTING = 0.5
_HOT_SHARE = 0.1


def stats(
    spark: SparkSession,
    *,
    path: Path = None,
    archive: str | None = None,
    topics: Sequence[str] | None = None,
    keys: bool = True,
    key_sample: float = 1.0,
    top: int = 10,
    isolation: Isolation = "read_uncommitted",
    progress: Progress | None = None,
) -> PipelineResult:
    """Sizes, rates, keys, duplicates and skew of these topics, or of all: ``details["topics"]`` has each.

    ``keys=False`` reads headers only. ``key_sample=0.1`` counts a tenth of the keys and scales up. ``top`` is
    how many of the most frequent keys are named. ``duplicate_ratio`` is the share of keyed records that a
    later one supersedes, ``compaction_saves_bytes`` about what the log would shrink by without them.
    """
    if not 0 < key_sample <= 1:
        raise InvalidArgumentError(f"key_sample is {key_sample}, takes a share above 0 and up to 1")
    began_s = time.monotonic()
    where = where_of(path, archive)
    with opened(where) as logs:
        extents = pinned(logs, topics, isolation=isolation)
        found = {(each.topic, each.partition): _partition(each) for each in extents}
        ranges = ranges_of(spark, logs, extents)
        span_ms = _add_segments(logs, found)
        with watched(spark, progress, "headers"):
            headers = count_headers(spark, where, ranges, window_for(span_ms))
        for pair, each in headers.partitions.items():
            found[pair] |= asdict(each)
        counted = Census()
        if keys:
            records = sum(each["records"] for each in found.values())
            with watched(spark, progress, "keys"):
                counted = census(
                    spark,
                    where,
                    ranges,
                    records=records,
                    sample=key_sample,
                    top=top,
                    isolation=isolation,
                )
        hot = [_hot_key(logs, each, found) for each in counted.hot]
    shown = [
        _topic(
            name, [row for pair, row in found.items() if pair[0] == name], headers, counted if keys else None
        )
        for name in sorted({pair[0] for pair in found})
    ]
    names: tuple[str, ...] = ("partitions", "segments", "batches", "records", "bytes", "archived_bytes")
    names += ("keys", "null_keys", "tombstones", "superseded", "compaction_saves_bytes") if keys else ()
    return PipelineResult(
        "stats",
        {"topics": len(shown), **{name: sum(each[name] for each in shown) for name in names}},
        {"topics": shown, "hot_keys": hot, "key_sample": key_sample if keys else 0.0},
        _notes(shown, hot),
        seconds=time.monotonic() - began_s,
    )


def _partition(extent: LogRange) -> dict[str, Any]:
    return {
        "topic": extent.topic,
        "partition": extent.partition,
        "start_offset": extent.start,
        "end_offset": extent.end,
        "segments": 0,
        "bytes": 0,
        "archived_bytes": 0,
        **asdict(HeaderCounts()),
    }


def _add_segments(logs: Logs, found: Mapping[Pair, dict[str, Any]]) -> int:
    """What lies on disk and in the archive, less what only waits for its removal; gives the span of time."""
    oldest: int | None = None
    newest: int | None = None
    for pair, sums in found.items():
        for info in logs.segment_infos(*pair):
            if info.state is SegmentState.DELETED:
                continue
            sums["segments"] += 1
            sums["archived_bytes" if info.state is SegmentState.ARCHIVED else "bytes"] += info.size_bytes
            oldest, newest = least(oldest, info.min_timestamp), most(newest, info.max_timestamp)
    return 0 if oldest is None or newest is None else max(newest - oldest, 0)


def _topic(
    name: str, rows: Sequence[dict[str, Any]], headers: Headers, counted: Census | None
) -> dict[str, Any]:
    """A topic's numbers from those of its partitions."""
    made: dict[str, Any] = {"topic": name, "partitions": len(rows)}
    for column in ("segments", "batches", "records", "bytes", "archived_bytes"):
        made[column] = sum(row[column] for row in rows)
    made["codecs"] = {
        codec: sum(row["codecs"].get(codec, 0) for row in rows)
        for codec in sorted({codec for row in rows for codec in row["codecs"]})
    }
    oldest, newest = None, None
    for row in rows:
        row["records_per_second"] = _rate(row["records"], row["oldest_ms"], row["newest_ms"])
        oldest, newest = least(oldest, row["oldest_ms"]), most(newest, row["newest_ms"])
        for side in ("oldest", "newest"):
            moment = row.pop(f"{side}_ms")
            row[side] = None if moment is None else format_time(moment)
    made["oldest"] = None if oldest is None else format_time(oldest)
    made["newest"] = None if newest is None else format_time(newest)
    made |= _rates(made, oldest, newest, headers.peak(name))
    made["skew"] = {column: _skew([row[column] for row in rows]) for column in ("records", "bytes")}
    if counted is not None:
        for row in rows:
            row |= _keys(row, counted.partitions.get((name, row["partition"]), KeyCounts()))
        for column in ("keyed_records", "null_keys", "tombstones", "superseded", "compaction_saves_bytes"):
            made[column] = sum(row[column] for row in rows)
        made["keys"] = counted.topic_keys.get(name, 0)
        made["deleted_keys"] = sum(row["deleted_keys"] for row in rows)
        made["spread_keys"] = counted.spread_keys.get(name, 0)
        made["duplicate_ratio"] = _ratio(made["superseded"], made["keyed_records"])
        made["skew"]["keys"] = _skew([row["keys"] for row in rows])
    made["by_partition"] = [{key: value for key, value in row.items() if key != "topic"} for row in rows]
    return made


def _rates(
    made: Mapping[str, Any], oldest: int | None, newest: int | None, peak: tuple[int, float] | None
) -> dict[str, Any]:
    return {
        "records_per_second": _rate(made["records"], oldest, newest),
        "bytes_per_second": _rate(sum(made["codecs"].values()), oldest, newest),
        "peak_records_per_second": None if peak is None else round(peak[1], 3),
        "peak_at": None if peak is None else format_time(peak[0]),
    }


def _rate(number: int, oldest: int | None, newest: int | None) -> float | None:
    if oldest is None or newest is None or newest <= oldest:
        return None
    return round(number * 1000 / (newest - oldest), 3)


def _keys(row: Mapping[str, Any], counts: KeyCounts) -> dict[str, Any]:
    superseded = max(counts.records - counts.keys, 0)
    payload = counts.payload_bytes + counts.null_key_bytes
    size = sum(row["codecs"].values())
    saved = max(counts.payload_bytes - counts.latest_bytes, 0)
    facts = asdict(counts)
    facts["keyed_records"] = facts.pop("records")
    facts["superseded"] = superseded
    facts["duplicate_ratio"] = _ratio(superseded, counts.records)
    facts["compaction_saves_bytes"] = size * saved // payload if payload else 0
    return facts


def _hot_key(logs: Logs, hot: HotKey, found: Mapping[Pair, Mapping[str, Any]]) -> dict[str, Any]:
    part = LogRange(hot.topic, hot.partition, hot.offset, hot.offset + 1)
    key = next((each for batch in read(logs, part, ("key",)) for each in batch.column(0).to_pylist()), None)
    made: dict[str, Any] = {"topic": hot.topic, "partition": hot.partition}
    try:
        made["key"] = None if key is None else key.decode()
    except UnicodeDecodeError:
        made["key_base64"] = base64.b64encode(key or b"").decode()
    records = found[hot.topic, hot.partition]["records"]
    return made | {"records": hot.records, "share_of_partition": _ratio(hot.records, records)}


def _notes(topics: Sequence[Mapping[str, Any]], hot: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    notes = []
    for each in topics:
        name = each["topic"]
        if (each.get("duplicate_ratio") or 0) >= _WORTH_COMPACTING:
            saved = format_bytes(each["compaction_saves_bytes"])
            notes.append(
                f"{name}: a later record supersedes {each['duplicate_ratio']:.0%} of those with a key;"
                f" compaction would save about {saved}"
            )
        if each.get("spread_keys"):
            notes.append(
                f"{name}: {each['spread_keys']:,} keys are in more than one partition: the order among their"
                " records is lost"
            )
        if each["skew"]["bytes"] >= _SKEWED and each["partitions"] > 1:
            largest = max(each["by_partition"], key=lambda row: int(row["bytes"]))
            notes.append(
                f"{name}: partition {largest['partition']} has {each['skew']['bytes']:.1f} times its share"
            )
    for each in hot:
        if each["records"] > 1 and each["share_of_partition"] >= _HOT_SHARE:
            shown = repr(each["key"]) if "key" in each else each["key_base64"]
            share = f"{each['share_of_partition']:.0%}"
            notes.append(f"{each['topic']}: key {shown} is {share} of partition {each['partition']}")
    return tuple(notes)


def _skew(sizes: Sequence[int]) -> float:
    """The largest over the mean: 1 when all are equal, their number when one has everything."""
    total = sum(sizes)
    return round(max(sizes) * len(sizes) / total, 3) if total else 1.0


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
