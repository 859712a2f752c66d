"""Appending: the short ways that nearly every record takes end where the long ones do."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog import Record, Store, errors
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.log.write.append import KEPT_BYTES, give_back, take_buffer

NOW = 1_760_000_000_000


def opened(fs: Any = None, **config: Any) -> Store:
    return stratalog.open("/d", fs=fs or MemoryFileSystem(), background=False, config=config)


def values(store: Store, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in store.topic("t").read(partition)]


def test_one_by_one_and_together_give_the_same_records() -> None:
    rows = [
        Record(b"v%d" % i, b"k%d" % (i % 3) if i % 4 else None, (("h", b"x"),) if i % 5 == 0 else (), NOW + i)
        for i in range(200)
    ]
    found = []
    for way in ("one", "list", "tuple", "arrow", "batch"):
        with opened() as store:
            topic = store.create_topic("t", config={"segment.bytes": 1024, "index.interval.bytes": 100})
            if way == "one":
                for row in rows:
                    topic.append(row.value, row.key, row.headers, row.timestamp)
            elif way in ("list", "tuple"):
                for start in range(0, len(rows), 20):
                    part = rows[start : start + 20]
                    placed = topic.append_many(part if way == "list" else tuple(part))
                    assert placed == [stratalog.AppendedRange(0, start, 20)]
            else:
                table = pa.table(
                    {
                        "value": pa.array([row.value for row in rows], pa.binary()),
                        "key": pa.array([row.key for row in rows], pa.binary()),
                        "timestamp": pa.array([row.timestamp for row in rows], pa.int64()),
                        "headers": [[{"key": k, "value": v} for k, v in row.headers] for row in rows],
                    }
                )
                for start in range(0, len(rows), 20):
                    part = table.slice(start, 20)
                    topic.append_many(part if way == "arrow" else part.to_batches()[0])
            assert len(topic.segments()) > 2
            found.append(list(topic.read()))
    assert all(records == found[0] for records in found)
    assert [record.value for record in found[0]] == [row.value for row in rows]


def test_a_table_of_many_small_chunks_is_one_batch() -> None:
    with opened() as store:
        topic = store.create_topic("t")
        table = pa.concat_tables([pa.table({"value": [b"%d" % i]}) for i in range(300)])
        topic.append_many(table)
        assert values(store) == [b"%d" % i for i in range(300)]
        assert topic.size_bytes() < 300 * 20
        assert topic.append_many(table.slice(0, 0)) == []
        with pytest.raises(errors.InvalidRecordError, match="value"):
            topic.append_many(pa.table({"key": [b"k"]}))
        with pytest.raises(errors.InvalidRecordError, match="no column 'colour'"):
            topic.append_many(pa.table({"value": [b"v"], "colour": [b"red"]}))


@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_a_failed_write_leaves_the_buffers_usable(codec: str) -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    with opened(fs) as store:
        topic = store.create_topic("t", config={"compression.type": codec})
        topic.append_many([Record(b"a" * 100) for _ in range(10)])
        kept = []
        for partial_bytes in (0, 50):
            fs.inject(Fault("pwrite", "*.log", errno.ENOSPC, times=1, partial_bytes=partial_bytes))
            with pytest.raises(errors.DiskFullError) as caught:
                topic.append_many([Record(b"b" * 1000) for _ in range(100)])
            kept.append(caught)  # and with it the frames that saw the buffer
            fs.inject(Fault("pwrite", "*.log", errno.ENOSPC, times=1, partial_bytes=partial_bytes))
            with pytest.raises(errors.DiskFullError):
                topic.append(b"c")
        fs.heal()
        topic.append_many([Record(b"d" * 100_000) for _ in range(5)])
        topic.append(b"e")
        assert values(store) == [b"a" * 100] * 10 + [b"d" * 100_000] * 5 + [b"e"]


def test_too_large_and_too_far_from_now() -> None:
    with opened() as store:
        topic = store.create_topic(
            "t", config={"max.message.bytes": 1000, "message.timestamp.after.max.ms": 1000}
        )
        with pytest.raises(errors.RecordTooLargeError):
            topic.append(bytes(2000))
        with pytest.raises(errors.RecordTooLargeError, match="record 1"):
            topic.append_many([Record(b"fits"), Record(bytes(2000))])
        with pytest.raises(errors.RecordTooLargeError, match="record 0"):
            topic.append_many(pa.table({"value": [bytes(2000)]}))
        for late in (Record(b"x", None, (), 2**60),), (Record(b"now"), Record(b"x", None, (), 2**60)):
            with pytest.raises(errors.InvalidRecordError, match="too far"):
                topic.append_many(list(late))
        with pytest.raises(errors.InvalidRecordError, match="too far"):
            topic.append(b"x", timestamp=2**60)
        assert topic.append(b"y").offset == topic.log_end_offset() - 1
        assert values(store) == [b"fits", b"y"]


def test_headers_that_append_themselves_are_refused() -> None:
    """They run in the middle of an append; the offset it was going to have is taken."""

    class Sly(list[Any]):
        def __iter__(self) -> Any:
            topic.append(b"in between")
            return super().__iter__()

    with opened() as store:
        topic = store.create_topic("t")
        with pytest.raises(RuntimeError, match="appended while"):
            topic.append(b"x", headers=Sly([("k", b"v")]))
        with pytest.raises(RuntimeError, match="appended while"):
            topic.append_many([Record(b"y"), Record(b"x", None, Sly([("k", b"v")]))])
        topic.append(b"last")
        assert values(store) == [b"in between", b"in between", b"last"]
        assert [record.offset for record in topic.read()] == [0, 1, 2]


def test_threads_do_not_share_a_buffer(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "d") as store:
        topic = store.create_topic("t", partitions=4)

        def work(partition: int) -> None:
            for turn in range(50):
                mark = b"%d-%d" % (partition, turn)
                topic.append_many([Record(mark * (1 + turn)) for _ in range(40)], partition=partition)

        threads = [threading.Thread(target=work, args=(partition,)) for partition in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for partition in range(4):
            expected = [b"%d-%d" % (partition, turn) * (1 + turn) for turn in range(50) for _ in range(40)]
            assert values(store, partition) == expected


def test_huge_buffers_are_not_kept() -> None:
    kept = take_buffer()
    give_back(bytearray(KEPT_BYTES + 1))
    assert len(other := take_buffer()) <= KEPT_BYTES
    assert other is not kept
    give_back(kept)
    assert take_buffer() is kept
