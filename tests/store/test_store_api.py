"""The public API as users write it: topics, appends, reads by offset, time and key, the store's life."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog import Record, Store, errors
from stratalog.kernel import partition_for_key

NOW = 1_760_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data") as opened:
        yield opened


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data", config={"log.segment.bytes": 64 * 2**20}) as store:
        orders = store.create_topic("orders", partitions=4, config={"segment.ms": 3_600_000})
        where = orders.append(b"created", key=b"order-1", headers=[("source", b"web")])
        assert where.partition == partition_for_key(b"order-1", 4)
        assert where.offset == 0
        orders.append_many([Record(b"paid", key=b"order-1"), Record(b"shipped", key=b"order-1")])
        records = list(orders.read(partition=where.partition, start=0))
        assert [record.value for record in records] == [b"created", b"paid", b"shipped"]
        assert records[0].headers == (("source", b"web"),)
        assert orders.get(b"order-1").value == b"shipped"
        assert len(list(orders.history(b"order-1"))) == 3
        table = orders.scan(columns=["key", "offset"]).read_all()
        assert table.column_names == ["key", "offset"]
        assert table.num_rows == 3
        assert orders.offset_for_time(where.partition, where.timestamp) == 0
        assert orders.roll() == 1
        states = [segment.state for segment in orders.segments(where.partition)]
        assert states == ["sealed", "active"]
        assert store.topics() == ["orders"]
        assert store.topic("orders").partitions == 4
        assert orders.log_end_offset(where.partition) == 3


def test_names_are_checked(store: Store) -> None:
    for name in ("", ".", "..", "a/b", "x" * 250, "ü"):
        with pytest.raises(errors.InvalidTopicError):
            store.create_topic(name)
    store.create_topic("a.b")
    with pytest.raises(errors.TopicExistsError):
        store.create_topic("a_b")
    with pytest.raises(errors.TopicExistsError):
        store.create_topic("a.b")
    with pytest.raises(errors.UnknownTopicError, match=r"a\.b"):
        store.topic("nope")
    with pytest.raises(errors.InvalidArgumentError):
        store.create_topic("many", partitions=0)
    with pytest.raises(errors.ConfigError, match=r"segment\.bytes"):
        store.create_topic("typo", config={"segment.byte": 1})
    assert store.topics() == ["a.b"]


def test_an_unknown_topic_is_answered_with_a_similar_one_or_with_some(store: Store, tmp_path: Path) -> None:
    def told(asked: Store, name: str) -> str:
        with pytest.raises(errors.UnknownTopicError) as caught:
            asked.topic(name)
        return str(caught.value)

    with store.transaction("makes internal topics"):
        pass
    assert told(store, "nope") == "no topic 'nope'; there are: none yet"
    for number in range(12):
        store.create_topic(f"t{number:02}")
    store.create_topic("orders")
    listed = "orders, t00, t01, t02, t03, t04, t05, t06, t07, t08 and 3 more"
    with stratalog.open(tmp_path / "data", read_only=True) as reader:
        for asked in (store, reader):
            assert told(asked, "order") == "no topic 'order'; did you mean orders?"
            assert told(asked, "nope") == f"no topic 'nope'; there are: {listed}"


def test_unknown_partitions_and_offsets(store: Store) -> None:
    topic = store.create_topic("t", partitions=2)
    topic.append(b"x", partition=1)
    with pytest.raises(errors.UnknownPartitionError, match="0 to 1"):
        topic.append(b"x", partition=2)
    with pytest.raises(errors.UnknownPartitionError):
        topic.read(7)
    for start in (-1, 2):
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            topic.read(1, start)
        assert (caught.value.first, caught.value.end, caught.value.offset) == (0, 1, start)
    assert list(topic.read(1, 1)) == []
    with pytest.raises(errors.InvalidArgumentError):
        topic.read(1, isolation="dirty")
    with pytest.raises(errors.InvalidArgumentError, match="offset"):
        topic.scan(columns=["off"])


def test_records_come_back_as_they_went_in(store: Store) -> None:
    topic = store.create_topic("t", config={"segment.bytes": 4096})
    given = []
    for i in range(500):
        value = None if i % 7 == 0 else os.urandom(i % 50)
        key = None if i % 3 == 0 else b"k%d" % (i % 11)
        headers = [(f"h{n}", None if n % 2 else b"%d" % n) for n in range(i % 4)]
        given.append(Record(value, key, headers, NOW + i))
    for record in given[:100]:
        topic.append(record.value, record.key, record.headers, record.timestamp)
    topic.append_many(given[100:])
    assert len(topic.segments()) > 3
    for start in (0, 1, 99, 100, 101, 250, 499):
        found = list(topic.read(0, start))
        assert [record.offset for record in found] == list(range(start, 500))
        for record in found:
            original = given[record.offset]
            assert (record.value, record.key, record.timestamp) == (*original[:2], original.timestamp)
            assert list(record.headers) == list(original.headers)
    assert [record.offset for record in topic.read(0, 120, 130)] == list(range(120, 130))


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(store: Store, codec: str) -> None:
    topic = store.create_topic(f"c-{codec}", config={"compression.type": codec})
    topic.append(b"one" * 100, b"k")
    topic.append_many([Record(b"two" * 100, b"k", timestamp=NOW) for _ in range(50)])
    assert [len(record.value or b"") for record in topic.read()] == [300] * 51
    assert topic.scan(columns=["value"]).read_all().num_rows == 51


def test_log_append_time(store: Store) -> None:
    topic = store.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    before = time.time_ns() // 1_000_000
    topic.append(b"x", timestamp=1)
    topic.append_many([Record(b"y", timestamp=2)])
    for record in topic.read():
        assert record.timestamp_type == 1
        assert before <= record.timestamp <= before + 60_000


def test_what_a_topic_refuses(store: Store) -> None:
    topic = store.create_topic("t", config={"max.message.bytes": 1000})
    with pytest.raises(errors.RecordTooLargeError, match=r"max\.message\.bytes"):
        topic.append(b"x" * 2000)
    with pytest.raises(errors.RecordTooLargeError):
        topic.append_many([Record(b"x" * 2000)])
    with pytest.raises(errors.InvalidRecordError, match=r"message\.timestamp"):
        topic.append(b"x", timestamp=2**50)
    bads: list[Any] = ["text", 5, object()]
    for bad in bads:
        with pytest.raises(errors.InvalidRecordError):
            topic.append(bad)
        with pytest.raises(errors.InvalidRecordError):
            topic.append_many([Record(bad)])
    with pytest.raises(errors.InvalidRecordError):
        topic.append(b"x", headers=[("h", bads[0])])
    assert topic.log_end_offset() == 0
    compacted = store.create_topic("c", config={"cleanup.policy": "compact"})
    with pytest.raises(errors.InvalidRecordError, match="key"):
        compacted.append(b"x")
    with pytest.raises(errors.InvalidRecordError, match="key"):
        compacted.append_many([Record(b"x", b"k"), Record(b"x")])


def test_rolling_by_records_time_and_window(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        by_records = store.create_topic("records", config={"segment.records": 10})
        for _ in range(35):
            by_records.append(b"x")
        assert [segment.base_offset for segment in by_records.segments()] == [0, 10, 20, 30]
        by_time = store.create_topic("time", config={"segment.ms": 1000})
        for i in range(10):
            by_time.append(b"x", timestamp=NOW + i * 400)
        assert len(by_time.segments()) > 2
        windows = store.create_topic("window", config={"segment.align.ms": 60_000})
        for i in range(6):
            windows.append(b"x", timestamp=60_000 * 1000 + i * 30_000)
        assert [segment.base_offset for segment in windows.segments()] == [0, 2, 4]


def test_idle_segments_roll_too(tmp_path: Path) -> None:
    class Moving:
        now = NOW

        def now_ms(self) -> int:
            return self.now

        def monotonic_s(self) -> float:
            return self.now / 1000

    clock = Moving()
    with stratalog.open(tmp_path / "data", clock=clock, background=False) as store:
        topic = store.create_topic("t", config={"segment.ms": 60_000})
        topic.append(b"x")
        store.tick()
        assert len(topic.segments()) == 1
        clock.now += 61_000
        store.tick()
        assert len(topic.segments()) == 2
        store.tick()
        assert len(topic.segments()) == 2


def test_arrow_in_and_out(store: Store) -> None:
    source = store.create_topic("source", partitions=3)
    source.append_many(
        [Record(b"v%d" % i, b"k%d" % (i % 20), [("h", b"%d" % i)], NOW + i) for i in range(1000)]
    )
    table = source.scan().read_all()
    copy = store.create_topic("copy", partitions=3)
    placed = copy.append_many(table)
    assert sum(each.count for each in placed) == 1000
    again = copy.scan().read_all()
    for column in ("key", "value", "partition", "timestamp", "headers"):
        assert again.column(column).to_pylist() == table.column(column).to_pylist()
    by_key = store.create_topic("by-key", partitions=3)
    by_key.append_many(table.select(["key", "value"]))
    for partition in range(3):
        for record in by_key.read(partition):
            assert partition_for_key(record.key or b"", 3) == partition
    with pytest.raises(errors.InvalidRecordError, match="value"):
        copy.append_many(pa.table({"key": [b"k"]}))


def test_time_ranges_are_half_open_whatever_the_order(store: Store) -> None:
    topic = store.create_topic("t", config={"segment.bytes": 2048, "index.interval.bytes": 64})
    stamps = [NOW + (i * 7919) % 1000 for i in range(1000)]
    for start in range(0, 1000, 25):
        topic.append_many([Record(b"x", b"k", timestamp=stamp) for stamp in stamps[start : start + 25]])
    for since, until in ((NOW, NOW + 1), (NOW + 100, NOW + 200), (NOW + 999, NOW + 5000), (NOW - 5, NOW)):
        rows = (
            topic.scan(columns=["offset"], since=since, until=until).read_all().column("offset").to_pylist()
        )
        assert rows == [i for i, stamp in enumerate(stamps) if since <= stamp < until]
    for timestamp in (NOW - 1, NOW, NOW + 500, NOW + 999, NOW + 1000):
        expected = next((i for i, stamp in enumerate(stamps) if stamp >= timestamp), None)
        assert topic.offset_for_time(0, timestamp) == expected


@pytest.mark.parametrize("indexed", [True, False])
def test_by_key(tmp_path: Path, indexed: bool) -> None:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("t", config={"segment.bytes": 4096, "key.index.enable": indexed})
        for i in range(600):
            topic.append(b"v%d" % i, b"k%d" % (i % 37))
        assert topic.get(b"k5").value == b"v597"
        assert [record.value for record in topic.history(b"k5")] == [b"v%d" % i for i in range(5, 600, 37)]
        assert topic.get(b"absent") is None
        sidecars = list((tmp_path / "data" / "t-0").glob("*.keyindex"))
        assert bool(sidecars) == indexed
    with stratalog.open(tmp_path / "data") as store:
        topic = store.topic("t")
        assert [record.value for record in topic.history(b"k5")] == [b"v%d" % i for i in range(5, 600, 37)]
        topic.append(b"last", b"k5")
        assert topic.get(b"k5").value == b"last"
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert store.topic("t").get(b"k5").value == b"last"


def test_follow_in_process_and_across_stores(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("t", config={"segment.records": 7})
        reader = stratalog.open(tmp_path / "data", read_only=True)
        seen: dict[str, list[int]] = {"here": [], "there": []}

        def follow(name: str, source: stratalog.Topic) -> None:
            for record in source.read(0, follow=True):
                seen[name].append(record.offset)
                if record.value == b"end":
                    return

        threads = [
            threading.Thread(target=follow, args=("here", topic)),
            threading.Thread(target=follow, args=("there", reader.topic("t"))),
        ]
        for thread in threads:
            thread.start()
        for i in range(50):
            topic.append(b"%d" % i)
            if i % 10 == 0:
                time.sleep(0.01)
        topic.append(b"end")
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert seen == {"here": list(range(51)), "there": list(range(51))}
        assert list(topic.read(0, 51, follow=True, timeout_s=0.05)) == []


def test_delete_records(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("t", config={"segment.records": 10})
        for i in range(45):
            topic.append(b"%d" % i)
        assert topic.delete_records(0, 25) == 25
        assert topic.log_start_offset() == 25
        assert [record.offset for record in topic.read()] == list(range(25, 45))
        assert topic.segments()[0].base_offset == 20
        with pytest.raises(errors.OffsetOutOfRangeError):
            topic.read(0, 24)
        with pytest.raises(errors.InvalidArgumentError):
            topic.delete_records(0, 46)
    with stratalog.open(tmp_path / "data") as store:
        topic = store.topic("t")
        assert topic.log_start_offset() == 25
        topic.delete_records(0, 45)
        assert list(topic.read()) == []
        assert topic.append(b"next").offset == 45
    assert not list((tmp_path / "data" / "t-0").glob("*.deleted"))


def test_settings_change_and_survive(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        store.create_topic("t", config={"segment.bytes": 1 << 20})
        store.alter_topic("t", {"segment.records": 5})
        for _ in range(12):
            store.topic("t").append(b"x")
        assert len(store.topic("t").segments()) == 3
        with pytest.raises(errors.ConfigError):
            store.alter_topic("t", {"segment.records": -7})
        store.alter_topic("t", {"segment.records": None})
        sources = {entry.name: entry.source for entry in store.describe_topic("t")}
        assert sources["segment.bytes"] == "topic"
        assert sources["segment.records"] == "default"
    with stratalog.open(tmp_path / "data", config={"log.retention.ms": 5000}) as store:
        assert store.topic("t").config.segment_bytes == 1 << 20
        assert store.topic("t").config.retention_ms == 5000
        store.add_partitions("t", 3)
        assert store.topic("t").partitions == 3
        assert store.topic("t").append(b"x", partition=2).offset == 0
        store.delete_topic("t")
        assert store.topics() == []
        store.create_topic("t")
        assert store.topic("t").log_end_offset() == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir() if path.is_dir()) == ["t-0"]


def test_several_log_dirs_and_a_move(tmp_path: Path) -> None:
    dirs = [tmp_path / "one", tmp_path / "two"]
    with stratalog.open(dirs) as store:
        topic = store.create_topic("t", partitions=4)
        assert [info.partitions for info in store.log_dirs()] == [2, 2]
        for partition in range(4):
            topic.append_many([Record(b"%d" % i) for i in range(100)], partition=partition)
        place = next(partition for partition in range(4) if (dirs[0] / f"t-{partition}").exists())
        store.move_partition("t", place, str(dirs[1]))
        assert [info.partitions for info in store.log_dirs()] == [1, 3]
        assert len(list(topic.read(place))) == 100
        assert topic.append(b"after", partition=place).offset == 100
        with pytest.raises(errors.InvalidArgumentError):
            store.move_partition("t", place, str(tmp_path / "elsewhere"))
    with stratalog.open(list(reversed(dirs))) as store:
        assert [len(list(store.topic("t").read(partition))) for partition in range(4)].count(101) == 1
    with pytest.raises(errors.InvalidArgumentError, match="twice"):
        stratalog.open([dirs[0], dirs[0]])


def test_read_only_refuses_and_sees_new_topics(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError):
        stratalog.open(tmp_path / "data", read_only=True)
    with stratalog.open(tmp_path / "data") as store:
        reader = stratalog.open(tmp_path / "data", read_only=True)
        store.create_topic("t").append(b"x")
        assert [record.value for record in reader.topic("t").read()] == [b"x"]
        with pytest.raises(errors.ReadOnlyError):
            reader.topic("t").append(b"y")
        with pytest.raises(errors.ReadOnlyError):
            reader.create_topic("u")
        with pytest.raises(errors.StoreLockedError, match=str(os.getpid())):
            stratalog.open(tmp_path / "data")


def test_closed_and_reopened(tmp_path: Path) -> None:
    store = stratalog.open(tmp_path / "data")
    topic = store.create_topic("t")
    topic.append(b"x", sync=True)
    store.close()
    store.close()
    with pytest.raises(errors.ClosedError):
        topic.append(b"y")
    with pytest.raises(errors.ClosedError):
        store.topics()
    with stratalog.open(tmp_path / "data") as again:
        assert [report.scanned_bytes for report in again.recovery] == [0]
        assert [record.value for record in again.topic("t").read()] == [b"x"]


def test_the_reports_of_recovery_do_not_grow_with_topics_and_moves(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    with stratalog.open(places) as store:
        store.create_topic("t").append(b"x")
        assert store.recovery == []
    with stratalog.open(places) as store:
        for place in (*places, *places):
            store.create_topic("u")
            store.delete_topic("u")
            store.move_partition("t", 0, str(place))
        assert len(store.recovery) == 1


def test_many_threads_one_order(store: Store) -> None:
    topic = store.create_topic("t", config={"segment.bytes": 1 << 16})

    def work(number: int) -> None:
        for i in range(200):
            topic.append(b"%d:%d" % (number, i), sync=i % 50 == 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = list(topic.read())
    assert [record.offset for record in records] == list(range(1600))
    for number in range(8):
        mine = [record.value for record in records if record.value.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, i) for i in range(200)]


def test_scan_is_the_same_in_any_number_of_threads(store: Store) -> None:
    topic = store.create_topic("t", partitions=2, config={"segment.bytes": 1 << 20})
    for _ in range(30):
        topic.append_many([Record(os.urandom(200), b"k%d" % i) for i in range(500)])
    expected = [(*record[:2], record.offset) for p in range(2) for record in topic.read(p)]
    for threads in (1, 2, 5):
        table = topic.scan(columns=["value", "key", "offset"], threads=threads).read_all()
        found = list(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))
        assert found == expected
    part = topic.scan([1], ["offset"], start=100, end={1: 200}).read_all()
    assert part.column("offset").to_pylist() == list(range(100, 200))
