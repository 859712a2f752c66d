"""The same promises for an Iceberg table, read back with pyiceberg and DuckDB. Tasks run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.table import Table

from stratalog.errors import ConfigError, CorruptionError, StoreError
from stratalog.spark.logs import forget
from stratalog.spark.pipelines import export_iceberg
from stratalog.spark.pipelines.export import export
from stratalog.spark.pipelines.export_iceberg import STATE, catalog_of
from stratalog.spark.pipelines.result import PipelineResult
from stratalog.spark.pipelines.spread import spread
from tests.spark.exports import fill, log_rows, table_rows
from tests.spark.in_process import in_process


def run(log: Path, output: Path, **said: Any) -> PipelineResult:
    forget()
    return export(in_process(), path=str(log), output=str(output), table="iceberg", **said)


def table_at(output: Path) -> Table:
    return catalog_of(str(output), None).load_table("stratalog.records")


def files_on_disk(output: Path) -> int:
    return len([*output.rglob("data/*/*.parquet")])


def test_a_table_holds_every_record_once(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    fill(log, 1)
    first = run(log, output)
    assert first.counts["records"] == 307
    assert run(log, output).counts["records"] == 0
    fill(log, 2)
    run(log, output, since="2026-01-02", until="2026-01-03")
    run(log, output)
    table = table_at(output)
    assert table_rows(table.scan().to_arrow()) == log_rows(log)
    assert [field.name for field in table.spec().fields] == ["topic", "date"]
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary[f"{STATE}.version"] == "3"
    assert '"orders"' in str(summary[f"{STATE}.offsets"])
    day = table.scan("topic = 'orders' and timestamp < '2026-01-02T00:00:00+00:00'")
    assert len({task.file.partition[1] for task in day.plan_files()}) == 1
    count = duckdb.sql(
        f"select count(*) from read_parquet('{output}/stratalog/records/data/*/*.parquet')"
    ).fetchall()
    assert count == [(len(log_rows(log)),)]


def test_files_are_merged_and_dates_replaced(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    for seed in range(3):
        fill(log, seed, count=30)
        run(log, output)
    merged = run(log, output, merge=True)
    assert merged.counts["merged_files"] == 15
    assert len([*table_at(output).scan().plan_files()]) == 5
    assert table_rows(table_at(output).scan().to_arrow()) == log_rows(log)
    replaced = run(log, output, replace=True, since="2026-01-01", until="2026-01-03", topics=["orders"])
    assert (replaced.counts["replaced_files"], replaced.counts["files"]) == (2, 2)
    assert table_rows(table_at(output).scan().to_arrow()) == log_rows(log)


def test_of_two_at_once_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    fill(log, 3)
    run(log, output)
    fill(log, 4)

    def meanwhile(*said: Any) -> Any:
        written = spread(*said)
        monkeypatch.setattr(export_iceberg, "spread", spread)
        run(log, output)
        return written

    monkeypatch.setattr(export_iceberg, "spread", meanwhile)
    with pytest.raises(StoreError, match="another export made commit 2 first"):
        run(log, output)
    assert run(log, output).counts["records"] == 0
    assert table_rows(table_at(output).scan().to_arrow()) == log_rows(log)
    assert files_on_disk(output) == len([*table_at(output).scan().plan_files()])


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

    monkeypatch.setattr(export_iceberg, "spread", meanwhile)
    run(log, output)
    assert table_rows(table_at(output).scan().to_arrow()) == log_rows(log)
    assert table_at(output).properties["by"] == "hand"


def test_what_a_dead_run_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    fill(log, 7)
    monkeypatch.setattr(export_iceberg, "add_to", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(log, output)
    assert files_on_disk(output) == 5
    monkeypatch.undo()
    run(log, output)
    assert files_on_disk(output) == 5
    assert table_rows(table_at(output).scan().to_arrow()) == log_rows(log)
    with table_at(output).transaction() as change:
        change.set_properties({STATE: "{}"})
    with pytest.raises(CorruptionError, match=STATE):
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
