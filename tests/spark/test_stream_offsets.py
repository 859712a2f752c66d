"""The stream reader without Spark around it: offsets, limits, what is carried, what a poll costs."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

import stratalog
from stratalog.errors import ConfigError, OffsetOutOfRangeError, UnknownPartitionError
from stratalog.fs import RealFileSystem
from stratalog.spark import stream as limits
from stratalog.spark.logs import forget
from stratalog.spark.options import Limits
from stratalog.spark.planning import Span
from stratalog.spark.source import StratalogSource
from stratalog.spark.stream import IDS, LAG, START, StratalogStreamReader
from tests.spark.direct import START_MS, append, fill


def stream(path: Path, **options: object) -> StratalogStreamReader:
    said = {"path": str(path), "subscribe": "orders", **{name: str(each) for name, each in options.items()}}
    source = StratalogSource(said)
    return source.streamReader(source.schema())


def travelled(offset: dict[str, Any]) -> dict[str, Any]:
    """As the checkpoint keeps it."""
    return dict(json.loads(json.dumps(offset)))


def bare(offset: dict[str, Any]) -> dict[str, Any]:
    """Without the ids of the topics."""
    return {name: each for name, each in offset.items() if name != IDS}


def batch(reader: StratalogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    parts = pickle.loads(pickle.dumps(reader.partitions(travelled(start), travelled(end))))
    executor = stream(Path(reader.options.where.paths[0]), startingOffsets="earliest")
    found = [row for part in parts for each in executor.read(part) for row in each.to_pylist()]
    return sorted((row["partition"], row["offset"]) for row in found)


def grow(path: Path, records: int) -> None:
    with stratalog.open(path) as store:
        append(store.topic("orders"), records)


def test_offsets_have_the_shape_of_kafkas(tmp_path: Path) -> None:
    fill(tmp_path / "log", partitions=2, records=5)
    reader = stream(tmp_path / "log", startingOffsets="earliest")
    start = reader.initialOffset()
    with stratalog.open(tmp_path / "log", read_only=True) as store:
        assert start == {"orders": {"0": 0, "1": 0}, IDS: {"orders": store.topic("orders").id}}
    end = reader.latestOffset(travelled(start), ReadAllAvailable())
    assert end == {"orders": {"0": 20, "1": 20}, IDS: start[IDS], START: bare(start)}
    assert batch(reader, start, end) == [(part, at) for part in (0, 1) for at in range(20)]
    again = reader.latestOffset(travelled(end), ReadAllAvailable())
    assert json.dumps(again) == json.dumps(end), "nothing new: the very same text"
    grow(tmp_path / "log", 3)
    following = reader.latestOffset(travelled(end), ReadAllAvailable())
    assert bare(following) == {"orders": {"0": 23, "1": 23}}
    assert batch(reader, end, following) == [(part, at) for part in (0, 1) for at in range(20, 23)]


@pytest.mark.parametrize("starting", ["latest", "-10m", "2023-11-14T22:13:30Z"])
def test_a_failed_first_batch_loses_nothing(tmp_path: Path, starting: str) -> None:
    """Spark asks for the start again until the first batch is committed; by then it would be another one."""
    fill(tmp_path / "log", records=5)
    first = stream(tmp_path / "log", startingOffsets=starting)
    start = first.initialOffset()
    begin = start["orders"]["0"]
    grow(tmp_path / "log", 4)
    end = first.latestOffset(travelled(start), ReadAllAvailable())
    grow(tmp_path / "log", 4)
    restarted = stream(tmp_path / "log", startingOffsets=starting)
    later = restarted.initialOffset()
    assert batch(restarted, later, end) == [(0, at) for at in range(begin, 24)]
    following = restarted.latestOffset(travelled(end), ReadAllAvailable())
    assert batch(restarted, end, following) == [(0, at) for at in range(24, 28)]


def test_a_start_is_written_down_before_there_is_anything_to_read(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    reader = stream(tmp_path / "log", startingOffsets="latest")
    start = reader.initialOffset()
    end = reader.latestOffset(travelled(start), ReadAllAvailable())
    assert bare(end) == {"orders": {"0": 20}, START: {"orders": {"0": 20}}}
    assert batch(reader, start, end) == []
    assert reader.latestOffset(travelled(end), ReadAllAvailable()) == end
    calm = stream(tmp_path / "log", startingOffsets='{"orders": {"0": 20}}')
    told = calm.initialOffset()
    assert calm.latestOffset(travelled(told), ReadAllAvailable()) == told, "offsets stay what they are"


def test_new_partitions_are_read_from_their_beginning(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    reader = stream(tmp_path / "log", startingOffsets="latest")
    start = reader.initialOffset()
    end = reader.latestOffset(travelled(start), ReadAllAvailable())
    with stratalog.open(tmp_path / "log") as store:
        store.add_partitions("orders", 2)
        append(store.topic("orders"), 2)
    following = reader.latestOffset(travelled(end), ReadAllAvailable())
    assert bare(following) == {"orders": {"0": 22, "1": 2}, START: {"orders": {"1": 0}}}
    assert batch(reader, end, following) == [(0, 20), (0, 21), (1, 0), (1, 1)]


def test_limits(tmp_path: Path) -> None:
    fill(tmp_path / "log", partitions=2, records=25)
    few = stream(tmp_path / "log", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert few.getDefaultReadLimit() == ReadMaxRows(10)
    at = few.initialOffset()
    seen: list[tuple[int, int]] = []
    for _ in range(100):
        end = few.latestOffset(travelled(at), few.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(at):
            break
        taken = batch(few, at, end)
        assert 0 < len(taken) <= 10
        seen += taken
        at = end
    assert sorted(seen) == [(part, each) for part in (0, 1) for each in range(100)]
    everything = few.latestOffset(few.initialOffset(), ReadAllAvailable())
    assert everything["orders"] == {"0": 100, "1": 100}

    some = stream(tmp_path / "log", startingOffsets="earliest", maxBytesPerTrigger="1k")
    assert some.getDefaultReadLimit() == ReadMaxBytes(1024)
    at, seen, rounds = some.initialOffset(), [], 0
    while json.dumps(end := some.latestOffset(travelled(at), some.getDefaultReadLimit())) != json.dumps(at):
        seen += batch(some, at, end)
        at, rounds = end, rounds + 1
    assert sorted(seen) == [(part, each) for part in (0, 1) for each in range(100)]
    assert rounds >= 4


@pytest.mark.parametrize("sealed", [False, True])
def test_a_limit_that_one_batch_exceeds_stays_what_it_is(tmp_path: Path, sealed: bool) -> None:
    """The records of the batch that were read do not count again, or each trigger would take fewer."""
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("orders", 1)
        topic.append_many([stratalog.Record(bytes(100)) for _ in range(1000)])
        if sealed:
            topic.roll()
    reader = stream(tmp_path / "log", startingOffsets="earliest", maxBytesPerTrigger="10k")
    at, sizes = reader.initialOffset(), []
    while at["orders"]["0"] < 1000:
        end = reader.latestOffset(travelled(at), reader.getDefaultReadLimit())
        sizes.append(end["orders"]["0"] - at["orders"]["0"])
        at = end
    assert len(sizes) < 16, sizes
    assert min(sizes[:-1]) > 80, sizes


def test_waiting_for_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "log", records=5)
    now = [START_MS]
    monkeypatch.setattr("stratalog.spark.stream._now_ms", lambda: now[0])
    reader = stream(
        tmp_path / "log", startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="1m"
    )
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert end["orders"] == {"0": 20}
    grow(tmp_path / "log", 3)
    assert reader.latestOffset(travelled(end), limit) == end, "three are not worth a batch"
    now[0] += 61_000
    assert reader.latestOffset(travelled(end), limit)["orders"] == {"0": 23}


def test_available_now_stops_where_it_was_told(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    reader = stream(tmp_path / "log", startingOffsets="earliest", maxOffsetsPerTrigger=15)
    reader.prepareForTriggerAvailableNow()
    grow(tmp_path / "log", 50)
    at, ends = reader.initialOffset(), []
    while json.dumps(end := reader.latestOffset(travelled(at), ReadMaxRows(15))) != json.dumps(at):
        ends.append(end["orders"]["0"])
        at = end
    assert ends == [15, 20]


def test_the_lag_is_reported(tmp_path: Path) -> None:
    fill(tmp_path / "log", partitions=2, records=5)
    reader = stream(tmp_path / "log", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    assert reader.reportLatestOffset() == {
        "orders": {"0": 20, "1": 20},
        LAG: {
            "minOffsetsBehindLatest": 15,
            "maxOffsetsBehindLatest": 15,
            "avgOffsetsBehindLatest": 15.0,
        },
    }


def test_a_poll_costs_stats_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "log", records=5)
    reader = stream(tmp_path / "log", startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    listed: list[str] = []
    opened_files: list[str] = []
    list_dir, open_file = RealFileSystem.list_dir, RealFileSystem.open

    def listing(self: RealFileSystem, path: str) -> list[str]:
        listed.append(path)
        return list_dir(self, path)

    def opening(self: RealFileSystem, path: str, mode: Any = "r") -> Any:
        opened_files.append(path)
        return open_file(self, path, mode)

    monkeypatch.setattr(RealFileSystem, "list_dir", listing)
    monkeypatch.setattr(RealFileSystem, "open", opening)
    time.sleep(0.1)  # a directory that changed a moment ago is listed once more
    reader.latestOffset(travelled(end), ReadAllAvailable())
    listed.clear()
    opened_files.clear()
    for _ in range(50):
        assert reader.latestOffset(travelled(end), ReadAllAvailable()) == end
    assert listed == []
    assert not [path for path in opened_files if path.endswith((".log", ".index", ".seal"))]


def test_what_is_gone(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    strict = stream(tmp_path / "log", startingOffsets="earliest")
    start = strict.initialOffset()
    end = strict.latestOffset(travelled(start), ReadAllAvailable())
    with stratalog.open(tmp_path / "log") as store:
        store.topic("orders").delete_records(0, 7)
    forget()  # where a log begins is asked again after a second
    strict = stream(tmp_path / "log", startingOffsets="earliest")
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to 6 are gone.*\n.*'failOnDataLoss'"):
        strict.partitions(start, end)
    kind = stream(tmp_path / "log", startingOffsets="earliest", failOnDataLoss="false")
    assert batch(kind, start, end) == [(0, at) for at in range(7, 20)]


def test_a_topic_made_anew(tmp_path: Path) -> None:
    fill(tmp_path / "log", records=5)
    kind = stream(tmp_path / "log", startingOffsets="earliest", failOnDataLoss="false")
    end = kind.latestOffset(kind.initialOffset(), ReadAllAvailable())
    with stratalog.open(tmp_path / "log") as store:
        store.delete_topic("orders")
        append(store.create_topic("orders", 1), 3)
    strict = stream(tmp_path / "log", startingOffsets="earliest")
    with pytest.raises(UnknownPartitionError):
        strict.latestOffset(travelled(end), ReadAllAvailable())
    following = kind.latestOffset(travelled(end), ReadAllAvailable())
    assert bare(following) == {"orders": {"0": 3}, START: {"orders": {"0": 0}}}
    assert batch(kind, end, following) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("options", "last_line"),
    [
        (
            {"endingOffsets": "latest"},
            "option 'endingOffsets': a stream has no end; expected a batch query",
        ),
        ({"view": "batches"}, "option 'view': 'batches' cannot be streamed; expected a batch query"),
    ],
)
def test_what_a_stream_refuses(tmp_path: Path, options: dict[str, str], last_line: str) -> None:
    with pytest.raises(ConfigError) as error:
        stream(tmp_path, **options)
    assert str(error.value).splitlines()[-1] == last_line


def test_shares_of_a_limit() -> None:
    one, two = ("orders", 0), ("orders", 1)
    assert limits.by_offsets({one: 0, two: 0}, {one: 300, two: 100}, 40) == {one: 30, two: 10}
    assert limits.by_offsets({one: 0, two: 0}, {one: 1000, two: 1}, 10) == {one: 9, two: 1}
    assert limits.by_offsets({one: 5}, {one: 9}, 10) == {one: 9}
    spans = {one: [Span(0, 10, 100), Span(10, 30, 100)]}
    assert limits.by_bytes(spans, {one: 30}, 150) == {one: 20}
    assert limits.by_bytes(spans, {one: 30}, 1) == {one: 1}
    assert limits.worth_a_batch(Limits(), 0, 0)
    assert not limits.worth_a_batch(Limits(min_offsets=5, max_delay_ms=100), 4, 100)
