"""Every topic a real broker wrote, read through Spark, equals what its own client read."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1"


def _identity(value: bytes | None, like: Any) -> Any:
    if isinstance(like, dict):
        assert value is not None
        return {"len": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    return None if value is None else base64.b64encode(value).decode()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_golden_topics(spark: SparkSession, isolation: str) -> None:
    # Where there is nothing transactional a client reads the same at both levels, and there is one file.
    paths = {path.name.removesuffix(".jsonl"): path for path in sorted(GOLDEN.glob("records/*.jsonl"))}
    committed = {name for name in paths if name.endswith(".committed")}
    assert committed
    for name in committed:
        path = paths.pop(name)
        if isolation == "read_committed":
            paths[name.removesuffix(".committed")] = path
    everything = (
        spark.read.format("stratalog")
        .option("subscribePattern", ".*")
        .option("includeHeaders", "true")
        .option("isolationLevel", isolation)
        .load(str(GOLDEN / "log-dir"))
        .selectExpr("*", "unix_millis(timestamp) as ms")
    )
    found = defaultdict(list)
    for row in everything.collect():
        found[f"{row.topic}-{row.partition}"].append(row)
    assert len(paths) > 15
    for name, path in paths.items():
        lines = [json.loads(line) for line in path.read_text().splitlines()][1:]
        rows = sorted(found[name], key=lambda row: row.offset)
        assert [row.offset for row in rows] == [line["offset"] for line in lines], name
        for row, line in zip(rows, lines, strict=True):
            assert row.ms == line["timestamp"]
            assert row.timestampType == line["timestampType"]
            assert _identity(row.key, line["key"]) == line["key"]
            assert _identity(row.value, line["value"]) == line["value"]
            headers = [[each.key, each.value] for each in row.headers or []]
            wanted = line["headers"] or []
            assert [[key, _identity(value, None)] for key, value in headers] == wanted
    others = [name for name in found if name not in paths and not name.startswith("__")]
    assert not others, "rows of a partition that no client read"
