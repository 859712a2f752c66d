"""Paths are made absolute where a query is written: executors work elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import errors
from stratalog.spark.options import parse_options
from stratalog.spark.pipelines.executors import place_options


def test_spark_s_options_are_absolute_on_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path
    monkeypatch.chdir(here)
    said = {"path": "data", "archive": "cold", "log.archive.cache.dir": "cache", "subscribe": "t"}
    where = parse_options(said).where
    assert where.paths == (str(here / "data"),)
    assert where.archive == str(here / "cold")
    assert ("log.archive.cache.dir", str(here / "cache")) in where.config
    assert place_options("data", "cold")["archive"] == str(here / "cold")
    assert place_options(None, "s3://bucket/logs")["archive"] == "s3://bucket/logs"
    with pytest.raises(errors.InvalidArgumentError, match="names no log directory"):
        place_options("")
