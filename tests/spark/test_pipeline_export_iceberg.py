"""The same promises for an Iceberg table, read back with pyiceberg and DuckDB. Tasks run in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import Table

from stratalog.errors import ConfigError, CorruptionError
from stratalog.spark.logs import forget
from stratalog.spark.pipelines import PipelineResult
from stratalog.spark.pipelines import export as module
from stratalog.spark.pipelines.executors import spread
from stratalog.spark.pipelines.export import export
from stratalog.spark.pipelines.lake.iceberg import END, IcebergOutput, catalog_of
from tests.spark.exports import fill, log_rows, table_rows
from tests.spark.in_process import in_process


def run(log: Path, output: Path, **said: Any) -> PipelineResult:
    forget()
    return export(in_process(), path=str(log), output=str(output), table="iceberg", **said)


def table_at(output: Path) -> Table:
    return catalog_of(str(output), None).load_table("stratalog.records")


def test_a_table_holds_every_record_once(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    for seed in (1, 2):
        fill(log, seed)
        run(log, output)
    table = table_at(output)
    assert table_rows(table.scan().to_arrow()) == log_rows(log)
    assert [field.name for field in table.spec().fields] == ["topic", "date"]
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    topic_id = table.properties["stratalog.topic.orders"]
    assert summary["stratalog.run"] == table.properties["stratalog.run"]
    assert f'"{topic_id}:2": 200' in str(summary["stratalog.ends"])
    assert [table.properties[f"{END}{topic_id}:{number}"] for number in range(3)] == ["200"] * 3
    day = table.scan("topic = 'orders' and timestamp < '2026-01-02T00:00:00+00:00'")
    assert len({task.file.partition[1] for task in day.plan_files()}) == 1
    with duckdb.connect() as connection:
        connection.register("records", table.scan().to_arrow())
        count = connection.sql('select count(*), count(distinct (topic, partition, "offset")) from records')
        assert count.fetchall() == [(len(log_rows(log)),) * 2]


def test_the_documented_code_opens_the_catalog(tmp_path: Path) -> None:
    """By its name: SQLite catalogs keep it with every table."""
    log, output = tmp_path / "log", tmp_path / "lake"
    fill(log, 1)
    run(log, output)
    page = (Path(__file__).parents[2] / "docs" / "PIPELINES.md").read_text()
    documented = re.search(r"```py\n(from pyiceberg.catalog import load_catalog\n.*?)```", page, re.DOTALL)
    assert documented is not None
    assert "/lake" in documented[1]
    found: dict[str, Any] = {}
    exec(documented[1].replace("/lake", str(output)), found)
    assert table_rows(found["table"].scan().to_arrow()) == log_rows(log)
    catalogs = found["catalog"], found["load_catalog"]("another", **found["catalog"].properties)
    assert [each.list_namespaces() for each in catalogs] == [[("stratalog",)], []]


def test_a_change_by_somebody_else_is_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    fill(log, 5)
    run(log, output)
    fill(log, 6)

    def meanwhile(*said: Any) -> Any:
        with table_at(output).transaction() as change:
            change.set_properties({"by": "hand"})
            with change.update_snapshot().fast_append():
                pass
        return spread(*said)

    monkeypatch.setattr(module, "spread", meanwhile)
    run(log, output)
    assert table_rows(table_at(output).scan().to_arrow()) == log_rows(log)
    assert table_at(output).properties["by"] == "hand"


def test_what_a_commit_left_in_doubt_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    fill(log, 7)
    apply = IcebergOutput._apply

    def lost(self: Any, change: Any) -> int:
        apply(self, change)
        raise CommitStateUnknownException("the answer got lost")

    monkeypatch.setattr(IcebergOutput, "_apply", lost)
    assert run(log, output).counts["records"] == 307
    monkeypatch.undo()
    assert run(log, output).counts["records"] == 0
    assert table_rows(table_at(output).scan().to_arrow()) == log_rows(log)
    with table_at(output).transaction() as change:
        topic_id = table_at(output).properties["stratalog.topic.orders"]
        change.set_properties({f"{END}{topic_id}:0": "many"})
    with pytest.raises(CorruptionError, match="not an offset"):
        run(log, output)


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fill(log, 8, count=9)
    with pytest.raises(ConfigError, match="NAMESPACE.TABLE"):
        run(log, tmp_path / "lake", table_name="records")
    with pytest.raises(ConfigError, match="the embedded catalog lies in a directory"):
        export(in_process(), path=str(log), output="s3://bucket/lake", table="iceberg")
    with pytest.raises(ConfigError, match="catalog"):
        run(log, tmp_path / "lake", catalog={"type": "no such"})
    own = {"type": "sql", "uri": f"sqlite:///{tmp_path}/own.db", "warehouse": f"file://{tmp_path}/house"}
    done = run(log, tmp_path / "lake", catalog=own, table_name="lake.orders", topics="orders")
    assert done.details["location"] == f"{tmp_path}/lake/lake.orders"
    assert catalog_of("", own).load_table("lake.orders").scan().to_arrow().num_rows == 9
