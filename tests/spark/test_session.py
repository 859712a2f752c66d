"""Sessions: what is checked before one starts, and a source that was found without being told of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog.errors import ConfigError
from stratalog.spark.session import check_java
from tests.spark.direct import fill

FOUND = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)
frame = spark.read.format("stratalog").option("subscribe", "orders").load(sys.argv[1])
print("rows", frame.where("offset >= 30").count(), frame.count(), frame.where("partition = 7").count())
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
print("rows", frame.where("offset >= 30").count(), frame.count())
import stratalog.spark
stratalog.spark.register(spark)
frame = spark.read.format("stratalog").option("subscribe", "orders").load(sys.argv[1])
print("rows", frame.where("offset >= 30").count(), frame.count())
"""


def test_found_without_registering(tmp_path: Path) -> None:
    """It works, unpruned, whatever the session's setting is, and says so once."""
    fill(tmp_path / "log", partitions=2, records=10)
    done = subprocess.run(
        [sys.executable, "-c", FOUND, str(tmp_path / "log")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("rows")]
    assert told == ["rows 20 80 0", "rows 20 80", "rows 20 80"], done.stderr
    assert done.stderr.count("this session does not push filters down") == 1
    assert "replaced a statically registered" not in done.stderr


def java(where: Path, says: str) -> None:
    program = where / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


def test_a_jdk_is_looked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="needs a JDK 17 or later and none was found; install one"):
        check_java()
    java(tmp_path / "old", 'openjdk version "1.8.0_292"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(ConfigError, match="needs a JDK 17 or later; .* is Java 8; install one"):
        check_java()
    java(tmp_path / "new", 'openjdk version "21.0.1" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    check_java()


def test_without_pyspark(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('no pyspark')")
    done = subprocess.run(
        [sys.executable, "-c", "import stratalog.spark"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        "stratalog.errors.ConfigError: stratalog.spark needs PySpark 4.2 or later;"
        " pip install 'stratalog[spark]'"
    )
