"""Limits: how they are written, how they are judged, and that what is measured is what is there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record
from stratalog.cli.app import app
from stratalog.errors import ConfigError
from stratalog.spark.logs import opened
from stratalog.spark.pipelines import check as module
from stratalog.spark.pipelines.check import (
    Limits,
    Measures,
    check,
    judge,
    measure_headers,
    measure_records,
    null_fields,
    read_limits,
)
from stratalog.spark.pipelines.executors import pinned, where_of
from stratalog.spark.planning import LogRange, cut
from tests.spark.direct import START_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = START_MS + 3_600_000


@pytest.mark.parametrize(
    ("limit", "kept", "broken"),
    [
        ({"max_age": "1m"}, {"newest": NOW_MS - 60_000}, {"newest": NOW_MS - 60_001}),
        ({"max_age": "1m"}, {"newest": NOW_MS + 9}, {"newest": None}),
        ({"max_ahead": "1s"}, {"newest": NOW_MS + 1000}, {"newest": NOW_MS + 1001}),
        ({"min_records": 5}, {"records": 5}, {"records": 4}),
        ({"max_records": 5}, {"records": 5}, {"records": 6}),
        ({"min_bytes": "1KiB"}, {"bytes": 1024}, {"bytes": 1023}),
        ({"max_bytes": 9}, {"bytes": 9}, {"bytes": 10}),
        ({"max_null_keys": "10%"}, {"null_keys": 1, "records": 10}, {"null_keys": 2, "records": 10}),
        ({"max_null_values": 0}, {"records": 0}, {"null_values": 1, "records": 1000}),
        ({"max_late": 0.5}, {"late": 1, "records": 2}, {"late": 2, "records": 3}),
        ({"max_lateness": "1h"}, {"lateness": 3_600_000}, {"lateness": 3_600_001}),
        (
            {"max_null_fields": {"a": 0.5}},
            {"null_fields": {"a": 1}, "records": 4, "null_values": 2},
            {"null_fields": {"a": 2}, "records": 5, "null_values": 2},
        ),
    ],
    ids=lambda value: next(iter(value)),
)
def test_limits_are_judged(limit: dict[str, Any], kept: dict[str, Any], broken: dict[str, Any]) -> None:
    limits = Limits.parse(limit)
    assert limits.any
    for found, ok in ((kept, True), (broken, False)):
        (finding,) = judge("orders", limits, Measures(**found), NOW_MS)
        assert finding.ok is ok
        assert finding.limit.startswith(next(iter(limit)))
        assert finding.text.startswith("orders: ")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"max_ages": "1m"}, "no limit 'max_ages' .did you mean max_age.*there are max_age, max_ahead"),
        ({"max_age": 5}, "max_age: expected a duration such as .*, got 5"),
        ({"min_records": "many"}, "min_records: expected a whole number, got 'many'"),
        ({"min_records": -1}, "min_records: .* got -1"),
        ({"max_late": "200%"}, "max_late: expected a share .*, got '200%'"),
        ({"max_null_fields": ["a"]}, "max_null_fields: expected a table"),
    ],
)
def test_limits_that_cannot_be(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Limits.parse(said)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x", "not TOML"),
        ("limit = 1", "no 'limit'"),
        ("limits = 1", "a table"),
        ("topics.a = 1", "topics.a: .* got 1"),
    ],
)
def test_files_that_cannot_be(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"f.toml: .*{told}"):
        read_limits(text, "f.toml")


class Here:
    """What Spark does with the ranges, in this process."""

    def __init__(self, spark: None, where: Any, ranges: Sequence[LogRange], task: Callable[..., Any]) -> None:
        with opened(where) as logs:
            self.made = [each for number, part in enumerate(ranges) for each in task(logs, number, part)]

    def collect(self) -> list[Any]:
        return self.made


@pytest.mark.parametrize("seed", range(6))
def test_lateness_does_not_depend_on_the_cuts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    """Ranges that begin and end within batches, batches of any size, times in any order."""
    monkeypatch.setattr(module, "over_ranges", Here)
    chance = random.Random(seed)
    late = lateness = total = nulls = 0
    limits = Limits.parse({"late_after": "20s", "max_late": 0, "max_lateness": "1s", "max_null_keys": 0})
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 2)
        for partition in range(2):
            newest = -1
            for _ in range(chance.randrange(1, 8)):
                made = []
                for _ in range(chance.randrange(1, 30)):
                    time = START_MS + chance.randrange(100_000)
                    key = None if chance.random() < 0.2 else b"key"
                    made.append(Record(b"v", key, (), time))
                    newest = max(newest, time)
                    late += newest - time > 20_000
                    lateness = max(lateness, newest - time)
                    nulls += key is None
                total += len(made)
                topic.append_many(made, partition=partition)
                if chance.random() < 0.4:
                    topic.roll(partition)
    where = where_of(str(tmp_path / "log"))
    spark: Any = None
    for size in (1, 3, 17, 1000):
        with opened(where) as logs:
            ranges = cut(logs, pinned(logs), max_records=size)
        found = measure_records(spark, where, ranges, {"orders": limits})["orders"]
        assert (found.records, found.null_keys, found.late, found.lateness) == (total, nulls, late, lateness)
        seen = measure_headers(spark, where, ranges)
        assert sum(each.measures.records for each in seen) == total


def test_a_log_that_begins_within_a_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "over_ranges", Here)
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 1)
        for turn in range(3):
            topic.append_many([Record(b"v", b"k", (), START_MS + turn * 100 + at) for at in range(10)])
        topic.delete_records(0, 4)
    where = where_of(str(tmp_path / "log"))
    with opened(where) as logs:
        (seen,) = measure_headers(None, where, pinned(logs))  # type: ignore[arg-type]
        assert (seen.measures.records, seen.measures.newest) == (26, START_MS + 209)
        (part,) = pinned(logs, since_ms=START_MS + 103, until_ms=START_MS + 205)
        assert (part.start, part.end) == (13, 25)


def test_fields_of_json_values() -> None:
    values = [b'{"a": 1, "b": {"c": null}}', b'{"b": {"c": 0}}', b"[1]", b"\xff", None, b"{}", b'{"b": 3}']
    assert null_fields(pa.array(values, pa.binary()), ("a", "b.c")) == {"a": 5, "b.c": 5}


def test_check(spark: SparkSession, tmp_path: Path) -> None:
    """Through Spark and the command line: a file's limits, the options over them, and the exit code."""
    with stratalog.open(tmp_path / "log") as store:
        for name in ("orders", "clicks"):
            topic = store.create_topic(name, 2)
            for at in range(20):
                value = json.dumps({"amount": None if at % 10 == 0 else at}).encode()
                key = None if at == 3 else b"k%d" % at
                topic.append(value, key=key, timestamp=START_MS + at * 1000, partition=at % 2)
            topic.roll()
    file = tmp_path / "limits.toml"
    file.write_text(
        """
        [limits]
        max_age = "1h"
        min_records = 20
        [topics.orders]
        max_null_keys = "5%"
        max_null_fields = { amount = 0.05 }
        """
    )
    arguments: dict[str, Any] = {"path": str(tmp_path / "log"), "limits_file": str(file), "now_ms": NOW_MS}
    result = check(spark, **arguments)
    assert [(row["topic"], row["limit"], row["ok"]) for row in result.details["findings"]] == [  # type: ignore[attr-defined]
        ("clicks", "max_age", True),
        ("clicks", "min_records", True),
        ("orders", "max_age", True),
        ("orders", "min_records", True),
        ("orders", "max_null_keys", True),
        ("orders", "max_null_fields.amount", False),
    ]
    assert not result.ok
    assert result.notes == ("orders: 2 of 20 values have no amount (10.00%), 5.00% is allowed",)
    assert dict(result.counts) == {"topics": 2, "records": 40, "limits": 6, "broken": 1}
    json.dumps(result.to_json())

    line = ["pipeline", "check", "--data", str(tmp_path / "log"), "--limits", str(file), "-t", "orders"]
    line += ["--max-null-field", "amount=10%", "--max-age", "9999d", "--since", str(START_MS + 10_000)]
    told = CliRunner().invoke(app, [*line, "--json"])
    assert told.exit_code == 1, told.output
    found = json.loads(told.stdout)
    assert [row["limit"] for row in found["details"]["findings"] if not row["ok"]] == ["min_records"]
    assert found["details"]["topics"]["orders"]["records"] == 10
    kept = CliRunner().invoke(app, [*line, "--min-records", "10"])
    assert kept.exit_code == 0, kept.output
    assert "all kept" in kept.stderr
    assert "broken" not in kept.stdout

    damaged = tmp_path / "log" / "orders-1" / f"{0:020}.log"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    torn = CliRunner().invoke(app, line)
    assert torn.exit_code == 5, "an executor's error is told as our own"
    assert str(damaged) in torn.stderr
    assert len(torn.stderr.splitlines()) == 1


def test_what_cannot_be_checked(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("orders", 1)
    spark: Any = None
    with pytest.raises(ConfigError, match="no limit is given"):
        check(spark, path=str(tmp_path / "log"))
    with pytest.raises(ConfigError, match="no limit for orders"):
        check(spark, path=str(tmp_path / "log"), topics=["orders"], limits={"late_after": "1m"})
    with pytest.raises(ConfigError, match="topics.orders: there is no limit 'x'"):
        check(spark, path=str(tmp_path / "log"), topic_limits={"orders": {"x": 1}})
    empty = check(spark, path=str(tmp_path / "log"), limits={"max_age": "1m"})
    assert empty.notes == ("orders: there is no record; the newest may be 1m old",)
