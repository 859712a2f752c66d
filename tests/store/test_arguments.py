"""Numbers that callers hand in: what is not a whole number in its range is refused and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, Store, errors

Call = Callable[[Store, Any], object]

NO_NUMBERS: tuple[object, ...] = (True, False, "1", b"1", 1.5, float("nan"), [1], {})

CALLS: dict[str, Call] = {
    "create_topic partitions": lambda store, bad: store.create_topic("new", bad),
    "add_partitions total": lambda store, bad: store.add_partitions("t", bad),
    "move_partition partition": lambda store, bad: store.move_partition("t", bad, "/elsewhere"),
    "repair partition": lambda store, bad: store.repair("t", bad, action="rebuild-indexes"),
    "compact partition": lambda store, bad: store.compact("t", bad),
    "lend_compaction partition": lambda store, bad: store.lend_compaction("t", bad),
    "lend_compaction beside": lambda store, bad: store.lend_compaction("t", 0, beside=bad),
    "append partition": lambda store, bad: store.topic("t").append(b"x", partition=bad),
    "append partition of one": lambda store, bad: store.topic("one").append(b"x", partition=bad),
    "append timestamp": lambda store, bad: store.topic("t").append(b"x", timestamp=bad),
    "append_many partition": lambda store, bad: store.topic("t").append_many([Record(b"x")], partition=bad),
    "append_batches partition": lambda store, bad: store.topic("t").append_batches(bad, b""),
    "end_transaction partition": lambda store, bad: store.topic("t").end_transaction(
        bad, producer_id=1, producer_epoch=0, commit=True
    ),
    "end_transaction producer_id": lambda store, bad: store.topic("t").end_transaction(
        0, producer_id=bad, producer_epoch=0, commit=True
    ),
    "end_transaction producer_epoch": lambda store, bad: store.topic("t").end_transaction(
        0, producer_id=1, producer_epoch=bad, commit=True
    ),
    "end_transaction coordinator_epoch": lambda store, bad: store.topic("t").end_transaction(
        0, producer_id=1, producer_epoch=0, coordinator_epoch=bad, commit=True
    ),
    "roll partition": lambda store, bad: store.topic("t").roll(bad),
    "flush partition": lambda store, bad: store.topic("t").flush(bad),
    "delete_records partition": lambda store, bad: store.topic("t").delete_records(bad, 0),
    "delete_records before_offset": lambda store, bad: store.topic("t").delete_records(0, bad),
    "read partition": lambda store, bad: store.topic("t").read(bad),
    "read start": lambda store, bad: store.topic("t").read(0, bad),
    "read end": lambda store, bad: store.topic("t").read(0, 0, bad),
    "at offset": lambda store, bad: store.topic("t").at(bad),
    "at partition": lambda store, bad: store.topic("t").at(0, bad),
    "scan partition": lambda store, bad: store.topic("t").scan([bad]),
    "scan start": lambda store, bad: store.topic("t").scan([0], start=bad),
    "scan end": lambda store, bad: store.topic("t").scan([0], end={0: bad}),
    "scan since": lambda store, bad: store.topic("t").scan(since=bad),
    "scan until": lambda store, bad: store.topic("t").scan(until=bad),
    "scan threads": lambda store, bad: store.topic("t").scan(threads=bad),
    "get partition": lambda store, bad: store.topic("t").get(b"k", bad),
    "history partition": lambda store, bad: list(store.topic("t").history(b"k", bad)),
    "offset_for_time partition": lambda store, bad: store.topic("t").offset_for_time(bad),
    "offset_for_time timestamp": lambda store, bad: store.topic("t").offset_for_time(0, bad),
    "fetch partition": lambda store, bad: store.topic("t").fetch(bad, 0, 1),
    "fetch offset": lambda store, bad: store.topic("t").fetch(0, bad, 1),
    "fetch max_bytes": lambda store, bad: store.topic("t").fetch(0, 0, bad),
    "list_offset which": lambda store, bad: store.topic("t").list_offset(0, bad),
    "end_of_epoch leader_epoch": lambda store, bad: store.topic("t").end_of_epoch(0, bad),
    "durable end": lambda store, bad: store.topic("t").durable(0, bad),
    "when offset": lambda store, bad: store.topic("t").when(0, "synced", bad),
    "log_start_offset partition": lambda store, bad: store.topic("t").log_start_offset(bad),
    "log_end_offset partition": lambda store, bad: store.topic("t").log_end_offset(bad),
    "high_watermark partition": lambda store, bad: store.topic("t").high_watermark(bad),
    "segments partition": lambda store, bad: store.topic("t").segments(bad),
    "size_bytes partition": lambda store, bad: store.topic("t").size_bytes(bad),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as opened:
        opened.create_topic("one")
        opened.create_topic("t", partitions=2).append(b"x", partition=0)
        yield opened


@pytest.mark.parametrize("what", CALLS)
def test_what_is_no_whole_number_is_refused(store: Store, what: str) -> None:
    name = what.split()[1].removesuffix("s")
    for bad in NO_NUMBERS:
        if isinstance(bad, dict) and what == "scan start":
            continue  # a mapping says where to start in each partition
        with pytest.raises(errors.InvalidArgumentError, match=f"{name}s? is a whole number, not "):
            CALLS[what](store, bad)
    assert store.topics() == ["one", "t"]
    assert store.topic("t").partitions == 2
    assert [record.value for record in store.topic("t").read()] == [b"x"]
    assert store.topic("one").log_end_offset() == 0


@pytest.mark.parametrize("count", [0, -1, 100_001, 2**31, 2**63, 2**70])
def test_a_topic_has_a_sensible_number_of_partitions(store: Store, count: int) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="partitions is a number from 1 to 100000"):
        store.create_topic("new", count)
    with pytest.raises(errors.InvalidArgumentError, match="total is a number from 1 to 100000"):
        store.add_partitions("t", count)
    with pytest.raises(errors.InvalidArgumentError, match="t has 2 partitions; 2 is not more"):
        store.add_partitions("t", 2)
    assert store.topics() == ["one", "t"]


def test_the_store_opens_after_a_refused_number(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store, pytest.raises(errors.InvalidArgumentError):
        store.create_topic("t", partitions=True)
    with stratalog.open(tmp_path / "data") as store:
        assert store.topics() == []
        store.create_topic("t", partitions=1).append(b"x")
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert [record.value for record in store.topic("t").read()] == [b"x"]
