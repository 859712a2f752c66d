"""Export by a real session: rows as the source has them, payloads as columns, dead letters once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record
from stratalog.cli.app import app
from stratalog.errors import ConfigError, CorruptionError, StoreError
from stratalog.spark.pipelines import dead_letters
from stratalog.spark.pipelines.export import committed_files, export
from stratalog.spark.pipelines.export_iceberg import catalog_of
from tests.spark.exports import NEW_YEAR_MS, fill, log_rows, parquet_rows, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, key STRING, tags ARRAY<STRING>, at TIMESTAMP"


@pytest.fixture
def payments(tmp_path: Path) -> Path:
    """JSON, of which some is none."""
    values: list[bytes | None] = [
        b'{"id": %d, "key": "%d", "tags": ["a"], "at": "2026-01-31T12:00:00Z"}' % (n, n) for n in range(50)
    ]
    values[3], values[17], values[20] = b"nonsense", b'{"id": "seventeen"}', None
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("payments", 2, {"retention.ms": "-1"})
        for number, value in enumerate(values):
            topic.append(value, b"k", (), NEW_YEAR_MS + number, partition=number % 2)
        topic.roll()
    return tmp_path / "log"


def letters(log: Path) -> list[tuple[bytes | None, dict[str, str]]]:
    with stratalog.open(log, read_only=True) as store:
        records = [*store.topic("payments.dead-letters").read()]
    return sorted(
        (each.value, {name: (text or b"").decode() for name, text in each.headers}) for each in records
    )


def test_the_rows_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 1)
    told: list[tuple[str, int, int]] = []
    done = export(spark, path=str(log), output=str(output), progress=lambda *said: told.append(said))
    assert done.counts["records"] == 307
    assert told
    assert told[-1][1] == told[-1][2] > 0
    assert parquet_rows(output) == log_rows(log)
    source = spark.read.format("stratalog").option("includeHeaders", "true").option("subscribe", "orders")
    wanted = source.load(str(log))
    found = spark.read.parquet(str(output)).where("topic = 'orders'").select(*wanted.columns)
    assert Counter(map(str, wanted.collect())) == Counter(map(str, found.collect()))
    assert spark.read.parquet(str(output)).schema["date"].dataType.simpleString() == "date"


def test_a_damaged_segment_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 2)
    victim = log / "orders-1" / f"{0:020d}.log"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptionError, match="orders-1"):
        export(spark, path=str(log), output=str(output))
    assert not [path for path in output.rglob("*") if path.is_file()]


def test_payloads_become_columns_and_dead_letters_are_sent_once(
    spark: SparkSession, payments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = str(tmp_path / "out")
    said: dict[str, Any] = {"path": str(payments), "topics": "payments", "schema": SCHEMA}

    def fails(*_: Any, **__: Any) -> None:
        raise StoreError("the store is away")

    with monkeypatch.context() as broken:
        broken.setattr(dead_letters, "send", fails)
        with pytest.raises(StoreError, match="away"):
            export(spark, output=output, **said)
    done = export(spark, output=output, **said)  # the commit is made; the rest of it is rolled forward
    assert done.notes[0] == "finished commit 1, which an earlier run could not"
    assert done.counts["records"] == 0
    rows = {row["id"]: row for row in spark.read.parquet(output).collect()}
    assert len(rows) == 48
    assert (rows[4]["value_key"], bytes(rows[4]["key"]), rows[4]["tags"]) == ("4", b"k", ["a"])
    assert (rows[4]["at"].isoformat(), rows[4]["offset"]) == ("2026-01-31T12:00:00", 2)
    assert rows[None]["offset"] == 10
    assert "value" not in spark.read.parquet(output).columns
    [nonsense, wrong] = letters(payments)
    assert wrong[0] == b'{"id": "seventeen"}'
    assert wrong[1]["where"] == "payments-1@8"
    assert nonsense[1] == {
        "reason": "not JSON: Expecting value: line 1 column 1 (char 0)",
        "source": "export payments",
        "where": "payments-1@1",
    }
    assert export(spark, output=output, **said).notes == (
        "the payload's field key is the column value_key: the record has a key of its own",
    )
    assert len(letters(payments)) == 2
    with pytest.raises(ConfigError, match="schema: m is map"):
        export(spark, output=output, **said | {"schema": "m MAP<STRING, INT>"})
    with pytest.raises(ConfigError, match="schema"):
        export(spark, output=output, **said | {"schema": "not a schema at all"})


def test_an_iceberg_table_grows_columns(spark: SparkSession, payments: Path, tmp_path: Path) -> None:
    output = tmp_path / "lake"
    said: dict[str, Any] = {"path": str(payments), "output": str(output), "table": "iceberg"}
    export(spark, topics="payments", **said)
    with stratalog.open(payments) as store:
        store.topic("payments").append_many([Record(b'{"id": 7}'), Record(b"{")], partition=0)
        store.topic("payments").roll()
    done = export(spark, topics="payments", schema=SCHEMA, keep_value=True, merge=True, **said)
    assert (done.counts["records"], done.counts["dead_letters"], done.counts["merged_files"]) == (1, 1, 0)
    table = catalog_of(str(output), None).load_table("stratalog.records").scan().to_arrow()
    assert [row["id"] for row in table.to_pylist() if row["id"] is not None] == [7]
    assert table_rows(table) == [row for row in log_rows(payments, ["payments"]) if row[4] != b"{"]
    assert [value for value, _ in letters(payments)] == [b"{"]
    assert export(spark, topics="payments", schema=SCHEMA, **said).counts["dead_letters"] == 0
    assert len(letters(payments)) == 1


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 3)
    words = ["pipeline", "export", str(output), "--data", str(log), "--json", "--until", "2026-01-03"]
    done = CliRunner().invoke(app, [*words, "--topic", "orders", "--merge"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["counts"]["records"] == len(parquet_rows(output))
    assert told["details"]["files_in_all"] == len(committed_files(str(output))) == 2
    assert CliRunner().invoke(app, [*words, "--replace"]).exit_code == 2
