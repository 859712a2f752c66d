"""Spark Declarative Pipelines: the example of docs/SPARK.md, by `spark-pipelines` and so by Spark Connect."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

import stratalog
from stratalog import Record
from tests.spark.cluster import descendants, environment_of, signal_group, signal_one

DOCS = Path(__file__).parents[2] / "docs" / "SPARK.md"
TRIED_S = 800

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def pipelines(where: Path, *words: str) -> str:
    """Run `spark-pipelines`; return what it said."""
    home, log = Path(pyspark.__file__).parent, where / "run.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-pipelines"), *words],
            env=environment_of(home),
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(TRIED_S)
        finally:
            below = [*descendants([process.pid])]
            if process.poll() is None:
                signal_group(process.pid)
                process.wait(60)
            for pid in below:
                signal_one(pid)
    said = log.read_text(errors="replace")
    assert process.returncode == 0, said
    return said


def test_the_documented_pipeline(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "log") as store:
        events = store.create_topic("events", 2)
        for partition, count in ((0, 7), (1, 4)):
            events.append_many([Record(b"%d" % number) for number in range(count)], partition=partition)
    documented = re.search(r"```py\n(@dp\.table\n.*?)```", DOCS.read_text(), re.DOTALL)
    assert documented is not None
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    (definitions / "events.py").write_text(
        "from pyspark import pipelines as dp\n"
        "from pyspark.sql import SparkSession, functions as F\n\n"
        "spark = SparkSession.active()\n\n\n"
        + documented[1]
        + "\n\n@dp.materialized_view\n"
        + "def ends():\n"
        + '    found = spark.read.format("stratalog").option("subscribe", "events")\n'
        + '    found = found.load("/var/lib/stratalog").groupBy("partition")\n'
        + '    return found.agg(F.max("offset").alias("last"))\n'
    )
    for path in definitions.iterdir():
        path.write_text(path.read_text().replace("/var/lib/stratalog", str(tmp_path / "log")))
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: events\nstorage: file://{tmp_path / 'storage'}\n"
        "libraries:\n  - glob:\n      include: definitions/**\n"
    )
    assert "Run is COMPLETED" in pipelines(tmp_path, "run")
    tables = tmp_path / "spark-warehouse"
    rows = ds.dataset(tables / "events", format="parquet", exclude_invalid_files=True).to_table()
    found = zip(*(rows[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
    expected = [(at, number, b"%d" % number) for at, count in ((0, 7), (1, 4)) for number in range(count)]
    assert sorted(found) == expected
    ends = ds.dataset(tables / "ends", format="parquet", exclude_invalid_files=True).to_table()
    assert sorted(zip(ends["partition"].to_pylist(), ends["last"].to_pylist(), strict=True)) == [
        (0, 6),
        (1, 3),
    ]
