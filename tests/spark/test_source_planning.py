"""Ranges: how large, how many, and that together they are the log, whatever cut them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stratalog
from stratalog import Record
from stratalog.spark import planning
from tests.spark.direct import fill, offsets, plan, rows


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("planning") / "log"
    with stratalog.open(where) as store:
        topic = store.create_topic("orders", 2, {"segment.bytes": 4 << 20, "index.interval.bytes": 4096})
        values = [Record(bytes(1000)) for _ in range(100)]
        for _ in range(200):
            topic.append_many(values, partition=0)
        topic.append_many(values, partition=1)
    return where


def test_a_hot_partition_is_cut(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "RANGE_BYTES", 4 << 20)
    monkeypatch.setattr(planning, "GRAIN_BYTES", 256 << 10)
    parts = plan(log, subscribe="orders")
    hot = [part for part in parts if part.partition == 0]
    assert len(hot) == 5
    assert hot[0].start == 0
    assert hot[-1].end == 20_000
    assert all(one.end == two.start for one, two in pairwise(hot))
    assert all(2 << 20 <= part.size_bytes <= 5 << 20 for part in hot)
    assert len([part for part in parts if part.partition == 1]) == 1
    assert offsets(rows(log, subscribe="orders")) == [(0, at) for at in range(20_000)] + [
        (1, at) for at in range(100)
    ]


def test_whole_partitions_when_they_are_small(log: Path) -> None:
    assert [(part.start, part.end) for part in plan(log, subscribe="orders")] == [(0, 20_000), (0, 100)]


@given(
    min_partitions=st.one_of(st.none(), st.integers(1, 40)),
    max_records=st.one_of(st.none(), st.integers(300, 30_000)),
    first=st.integers(0, 19_999),
)
def test_ranges_tile_the_log(
    log: Path, min_partitions: int | None, max_records: int | None, first: int
) -> None:
    options: dict[str, Any] = {"startingOffsets": f'{{"orders": {{"0": {first}, "1": 50}}}}'}
    if min_partitions is not None:
        options["minPartitions"] = min_partitions
    if max_records is not None:
        options["maxRecordsPerPartition"] = max_records
    parts = plan(log, subscribe="orders", **options)
    hot = [part for part in parts if part.partition == 0]
    assert (hot[0].start, hot[-1].end) == (first, 20_000)
    assert all(one.end == two.start and one.start < one.end for one, two in pairwise(hot))
    if max_records is not None:
        assert all(part.end - part.start <= max_records for part in parts)
    if min_partitions is not None and first < 19_000:
        assert len(parts) >= min_partitions


def test_offsets_that_are_not_there(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    with pytest.raises(stratalog.errors.OffsetOutOfRangeError, match="offsets 20 to 29 are gone"):
        plan(tmp_path / "log", subscribe="orders", endingOffsets='{"orders": {"0": 30}}')
    kind: dict[str, Any] = {"endingOffsets": '{"orders": {"0": 30}}', "failOnDataLoss": "false"}
    assert len(rows(tmp_path / "log", subscribe="orders", **kind)) == 20
