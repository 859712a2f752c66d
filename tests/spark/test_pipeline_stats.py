"""Statistics are those of a plain count over every record, however the log is cut and wherever it lies."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record, kernel
from stratalog.cli.app import app
from stratalog.cli.commands.pipelines.commands import hot_keys_table, partitions_table, topics_table
from stratalog.errors import InvalidArgumentError, UnknownTopicError
from stratalog.spark.logs import opened
from stratalog.spark.pipelines import executors
from stratalog.spark.pipelines.executors import pinned, where_of
from stratalog.spark.pipelines.stats import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    CountKeys,
    FindKeys,
    HeaderCounts,
    add_to_windows,
    hashes,
    stats,
    window_for,
)
from stratalog.spark.planning import cut
from tests.spark.direct import START_MS, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Duplicates over segments, tombstones, records without keys, a key in two partitions, a hot key."""
    path = tmp_path_factory.mktemp("stats") / "log"
    chance = random.Random(7)
    with stratalog.open(path) as store:
        topic = store.create_topic("orders", 3, {"compression.type": "lz4"})
        for turn in range(4):
            for partition in range(3):
                made = []
                for at in range(200):
                    number = 0 if chance.random() < 0.3 else chance.randrange(100)
                    key = None if chance.random() < 0.05 else f"{partition}-{number}".encode()
                    value = None if chance.random() < 0.1 else bytes(chance.randrange(60))
                    made.append(Record(value, key, (), START_MS + turn * 600_000 + at * 1000))
                topic.append_many(made, partition=partition)
            topic.append_many([Record(b"x", b"everywhere", (), START_MS)], partition=turn % 2)
            topic.roll()
        store.create_topic("nothing", 2)
    return path


def plainly(path: Path, topic: str) -> dict[int, dict[str, Any]]:
    """The numbers of each partition, one record after the other."""
    made: dict[int, dict[str, Any]] = {}
    with stratalog.open(path, read_only=True) as store:
        for partition in range(store.topic(topic).partitions):
            records = list(store.topic(topic).read(partition=partition, start=0, end=1 << 62))
            keyed = [each for each in records if each.key is not None]
            latest = {each.key: each for each in keyed}
            made[partition] = {
                "records": len(records),
                "keyed_records": len(keyed),
                "null_keys": len(records) - len(keyed),
                "keys": len(latest),
                "tombstones": sum(each.value is None for each in keyed),
                "deleted_keys": sum(each.value is None for each in latest.values()),
                "payload_bytes": sum(len(each.key or b"") + len(each.value or b"") for each in keyed),
                "latest_bytes": sum(len(k or b"") + len(each.value or b"") for k, each in latest.items()),
                "superseded": len(keyed) - len(latest),
                "counts": Counter(each.key for each in keyed),
            }
    return made


def test_stats_are_those_of_a_plain_count(spark: SparkSession, log: Path) -> None:
    told: list[tuple[str, int, int]] = []
    result = stats(spark, path=str(log), progress=lambda *said: told.append(said))
    wanted = plainly(log, "orders")
    details: Any = result.details
    nothing, orders = details["topics"]
    for row in orders["by_partition"]:
        here = wanted[row["partition"]]
        assert {name: row[name] for name in here if name != "counts"} == {
            name: value for name, value in here.items() if name != "counts"
        }
    assert orders["keys"] == len({key for each in wanted.values() for key in each["counts"]})
    assert orders["spread_keys"] == 1
    assert orders["duplicate_ratio"] == round(orders["superseded"] / orders["keyed_records"], 4)
    assert 0 < orders["compaction_saves_bytes"] < orders["bytes"]
    assert list(orders["codecs"]) == ["lz4"]
    assert orders["peak_at"] is not None
    assert orders["records_per_second"] == pytest.approx(orders["records"] / 1999, rel=1e-3)
    assert (nothing["records"], nothing["keys"], nothing["skew"]["records"]) == (0, 0, 1.0)
    hottest = max((n, p, k) for p, each in wanted.items() for k, n in each["counts"].items())
    first = details["hot_keys"][0]
    assert (first["records"], first["partition"], first["key"].encode()) == hottest
    assert result.counts["records"] == sum(each["records"] for each in wanted.values())
    assert any("more than one partition" in note for note in result.notes)
    text = topics_table(details["topics"], True).plain().splitlines()
    assert text[2].split()[0] == "orders"
    assert "2404 records" in text[-1]
    assert len(partitions_table(details["topics"], True).plain().splitlines()) == 6
    assert repr(first["key"]) in hot_keys_table(details["hot_keys"]).plain()
    assert {what for what, _, _ in told} == {"headers", "keys"}
    assert all(0 <= done <= total for _, done, total in told)
    json.dumps(result.to_json())


@pytest.mark.parametrize("steps", [1024, 256])
@pytest.mark.parametrize("records", [37, 1000])
def test_counting_keys_does_not_depend_on_the_cuts(log: Path, records: int, steps: int) -> None:
    """The two steps as executors run them, over ranges that begin and end within batches."""
    where = where_of(str(log))
    with opened(where) as logs:
        ranges = cut(logs, pinned(logs, ["orders"]), max_records=records)
        find = FindKeys(tuple(each.partition for each in ranges), steps, 4, "read_uncommitted")
        buckets: dict[int, list[tuple[int, bytes]]] = {}
        for number, part in enumerate(ranges):
            for bucket, data in find(logs, number, part):
                buckets.setdefault(bucket, []).append((bucket, data))
    sums = [row for each in buckets.values() for row in CountKeys((0, 0, 0), 3)(each)]
    wanted = plainly(log, "orders")
    for partition, here in wanted.items():
        mine = [row for kind, slot, row in sums if kind == "partition" and slot == partition]
        taken = {key for key in here["counts"] if kernel.hash64(key) % 1024 < steps}
        keyed = [row for row in mine if "keys" in row]
        assert sum(row["keys"] for row in keyed) == len(taken)
        assert sum(row["keyed_records"] for row in keyed) == sum(here["counts"][key] for key in taken)
        assert sum(row.get("null_keys", 0) for row in mine) == here["null_keys"]
        if steps == 1024:
            for name in ("latest_bytes", "deleted_keys"):
                assert sum(row[name] for row in keyed) == here[name]
    assert sum(row["spread_keys"] for kind, _, row in sums if kind == "topic") <= 1


def test_hashes_of_slices() -> None:
    keys = pa.array([b"", b"a", b"b" * 100, b"c"], pa.binary())
    for part in (keys, keys.slice(1), keys.slice(1, 2), keys.slice(4)):
        wanted = [kernel.hash64(each.as_py()) for each in part]
        assert [each % 2**64 for each in hashes(part).to_pylist()] == wanted


def test_archived_and_local_are_counted_as_one(spark: SparkSession, tmp_path: Path) -> None:
    """On the command line, in the session that is there, which is left running."""
    archive = str(tmp_path / "cold")
    settings = {"remote.storage.enable": True, "retention.ms": -1, "file.delete.delay.ms": 0}
    fill(tmp_path / "log", partitions=2, config=settings, store_config={"log.archive.url": archive})
    with stratalog.open(tmp_path / "log") as store:
        size = store.topic("orders").size_bytes()
        store.archive()
        store.alter_topic("orders", {"local.retention.ms": 1})
        store.archive()
    both = CliRunner().invoke(app, ["pipeline", "stats", "--data", str(tmp_path / "log"), "--json"])
    assert both.exit_code == 0, both.output
    counts = json.loads(both.stdout)["counts"]
    assert (counts["records"], counts["keys"]) == (160, 5)
    assert counts["archived_bytes"] > 0
    assert counts["bytes"] + counts["archived_bytes"] == size
    alone = stats(spark, archive=archive, keys=False)
    assert alone.counts["records"] == 160, "the active segment was old enough to be sealed and archived too"
    assert "keys" not in alone.counts
    assert CliRunner().invoke(app, ["pipeline", "stats", "--archive", archive, "-t", "no"]).exit_code == 3


def test_windows_of_time() -> None:
    windows = Counter[int]()
    first, last = pa.array([0, 60_000, None, 500_000]), pa.array([59_999, 239_999, None, 61_000])
    add_to_windows(windows, first, last, pa.array([5, 7, 9, 1]), 60_000)
    assert windows == {0: 5, 1: 4, 2: 2, 3: 2}
    peak = HeaderCounts(windows=windows).peak(60_000)
    assert peak == {"peak_records_per_second": round(5 / 60, 3), "peak_at": "1970-01-01T00:00:00.000Z"}
    assert [window_for(days * DAY_MS) for days in (1, 100, 3000)] == [MINUTE_MS, HOUR_MS, DAY_MS]


def test_what_cannot_be_is_told(spark: SparkSession, log: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="key_sample: .* got 0"):
        stats(spark, path=str(log), key_sample=0)
    with pytest.raises(UnknownTopicError, match="no topic 'no'"):
        stats(spark, path=str(log), topics=["no"])


def test_without_spark_the_numbers_are_the_same(
    spark: SparkSession, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, and where Spark is started because there is much to read."""
    wanted = stats(spark, path=str(log))
    assert (stats(None, path=str(log)).details, stats(None, path=str(log)).counts) == (
        wanted.details,
        wanted.counts,
    )
    started = []

    def start() -> SparkSession:
        started.append(1)
        return spark

    for keys, small_bytes in ((True, executors.SMALL_BYTES), (False, 0), (True, 0)):
        monkeypatch.setattr(executors, "SMALL_BYTES", small_bytes)
        found = stats(executors.OnDemand(start), path=str(log), keys=keys)
        assert found.details == stats(spark, path=str(log), keys=keys).details
        assert started == [1] * (keys and not small_bytes)
