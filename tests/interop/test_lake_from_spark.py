"""Spark reads what ``export`` and ``materialize`` wrote: the same rows that delta-rs and pyiceberg read.

Delta tables through Delta Lake's own connector; the Iceberg table by the list of its files, because there is
no Iceberg connector for Spark 4.2.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import stratalog
from stratalog import Record
from stratalog.spark.logs import forget
from stratalog.spark.pipelines.export import export
from stratalog.spark.pipelines.lake.iceberg import catalog_of
from stratalog.spark.pipelines.materialize import materialize
from tests.interop.kafka import ROOT
from tests.spark.exports import NEW_YEAR_MS, delta_rows, fill, iceberg_rows, log_rows, table_rows
from tests.spark.in_process import in_process

pytestmark = pytest.mark.interop


def read_with_spark(scratch: Path, plan: dict[str, str | list[str]]) -> dict[str, Path]:
    """Parquet files with what Spark read, by the names of the plan."""
    command = [sys.executable, "-m", "tests.interop.delta_driver", str(scratch), json.dumps(plan)]
    done = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return {name: scratch / f"{name}.parquet" for name in plan}


def fill_and_export(base: Path) -> None:
    """Tables that were begun and continued twice, and then had a date written again."""
    log, spark = str(base / "log"), in_process()
    for seed in (1, 2, 3):
        fill(log, seed)
        for kind in ("delta", "iceberg"):
            forget()
            export(spark, path=log, output=str(base / kind), table=kind)
    for kind in ("delta", "iceberg"):
        done = export(
            spark,
            path=log,
            output=str(base / kind),
            table=kind,
            replace=True,
            since="2026-01-02",
            until="2026-01-03",
        )
        assert done.counts["replaced_files"] == 3


def fill_and_materialize(base: Path) -> None:
    """Three runs: keys are new, changed, deleted and back again."""
    chance = random.Random(5)
    with stratalog.open(base / "state") as store:
        topic = store.create_topic("users", 3, {"cleanup.policy": "compact"})
        for turn in range(3):
            topic.append_many(
                Record(
                    None if chance.random() < 0.25 else b"%d" % chance.randrange(99),
                    b"k%d" % chance.randrange(60),
                    [("trace", b"\xff"), ("nothing", None)],
                    NEW_YEAR_MS + turn * 1000 + number,
                )
                for number in range(120)
            )
            forget()
            done = materialize(
                in_process(),
                path=str(base / "state"),
                topic="users",
                output=str(base / "users"),
                headers=True,
            )
            assert done.counts["tombstones"] > 0


def rows_by_key(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["key"])


def test_spark_reads_the_same_rows(tmp_path: Path) -> None:
    fill_and_export(tmp_path)
    fill_and_materialize(tmp_path)
    tasks = list(
        catalog_of(str(tmp_path / "iceberg"), None).load_table("stratalog.records").scan().plan_files()
    )
    assert not any(task.delete_files for task in tasks)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    seen = read_with_spark(
        scratch,
        {
            "delta": str(tmp_path / "delta"),
            "users": str(tmp_path / "users"),
            "iceberg": [task.file.file_path for task in tasks],
        },
    )
    expected = log_rows(tmp_path / "log")
    assert len(expected) == 921
    assert table_rows(pq.read_table(seen["delta"])) == delta_rows(tmp_path / "delta") == expected
    assert table_rows(pq.read_table(seen["iceberg"])) == iceberg_rows(tmp_path / "iceberg") == expected
    by_delta_rs = rows_by_key(DeltaTable(str(tmp_path / "users")).to_pyarrow_table())
    assert rows_by_key(pq.read_table(seen["users"])) == by_delta_rs
    assert 0 < len(by_delta_rs) < 60
