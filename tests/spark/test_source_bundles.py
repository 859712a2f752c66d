"""Small ranges share tasks: fewer tasks, the same rows, and what was asked for still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.log.read.follower import PartitionFollower
from stratalog.spark.planning import LogRange, bundled
from tests.spark.direct import fill, offsets, plan, rows

PARTITIONS = 60
RECORDS = 4


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("bundles") / "log"
    fill(where, partitions=PARTITIONS, segments=0, records=RECORDS)
    return where


def test_tiny_partitions_share_tasks(log: Path) -> None:
    tasks = plan(log, subscribe="orders")
    assert 16 <= len(tasks) <= 20
    everything = [(each.partition, each.start, each.end) for task in tasks for each in task.each()]
    assert everything == [(partition, 0, RECORDS) for partition in range(PARTITIONS)]
    assert all(not each.also for task in tasks for each in task.each())
    expected = [(partition, at) for partition in range(PARTITIONS) for at in range(RECORDS)]
    assert offsets(rows(log, subscribe="orders")) == expected
    headers = rows(log, subscribe="orders", view="batches")
    assert sum(row["records"] for row in headers) == PARTITIONS * RECORDS


def test_what_was_asked_for_still_holds(log: Path) -> None:
    assert len(plan(log, subscribe="orders", minPartitions=25)) >= 25
    tasks = plan(log, subscribe="orders", maxRecordsPerPartition=10)
    assert all(sum(each.end - each.start for each in task.each()) <= 10 for task in tasks)
    assert len(tasks) == PARTITIONS * RECORDS // 8


def test_a_partition_is_looked_at_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(log, subscribe="orders")  # opened and kept from here on
    looks: list[int] = []
    refresh = PartitionFollower.refresh

    def counted(self: PartitionFollower) -> None:
        looks.append(self.partition)
        refresh(self)

    monkeypatch.setattr(PartitionFollower, "refresh", counted)
    options: dict[str, Any] = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    plan(log, subscribe="orders", **options)
    assert looks == list(range(PARTITIONS))


@given(
    sizes=st.lists(st.integers(1, 200 << 20), max_size=40),
    min_partitions=st.one_of(st.none(), st.integers(1, 60)),
    max_records=st.one_of(st.none(), st.integers(10, 100)),
)
def test_bundles_hold_every_range_once(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [LogRange("t", at, 0, 10, size_bytes=size) for at, size in enumerate(sizes)]
    tasks = bundled(ranges, min_partitions=min_partitions, max_records=max_records)
    assert [each for task in tasks for each in task.each()] == ranges
    if min_partitions is not None:
        assert len(tasks) >= min(min_partitions, len(ranges))
    if max_records is not None:
        assert all(10 * len(task.each()) <= max_records for task in tasks)
