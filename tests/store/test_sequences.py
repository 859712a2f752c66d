"""Appends that the caller numbers: repeated, they are written once, whatever happened in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    ReadOnlyError,
)
from stratalog.testing import ManualClock

DAY_MS = 86_400_000


def open_store(path: Path, clock: ManualClock | None = None) -> Store:
    return stratalog.open(path / "data", background=False, clock=clock)


def values(topic: Topic) -> list[bytes | None]:
    return [record.value for record in topic.read()]


def test_a_repeated_sequence_is_written_once(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        assert topic.last_sequence("outbox-1") is None
        first = [topic.append(b"%d" % n, producer="outbox-1", sequence=n) for n in range(20)]
        topic.append(b"another's")
        again = [topic.append(b"%d" % n, producer="outbox-1", sequence=n) for n in range(20)]
        assert again == first, "the last five batches and older ones"
        assert topic.last_sequence("outbox-1") == 19
        assert topic.last_sequence("outbox-2") is None
        assert topic.append(b"other", producer="outbox-2", sequence=7).offset == 21, "it begins anywhere"
        assert len(values(topic)) == 22


def test_a_gap_names_the_sequence_that_is_expected(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append(b"a", producer="p", sequence=4)
        with pytest.raises(OutOfOrderSequenceError, match="expected 5") as caught:
            topic.append(b"c", producer="p", sequence=6)
        assert caught.value.expected == 5
        with pytest.raises(DuplicateSequenceError) as unknown:
            topic.append(b"before the first", producer="p", sequence=3)
        assert unknown.value.last_sequence == 4
        assert values(topic) == [b"a"]


def test_many_records_are_completed_after_a_part_of_them(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        rows = [Record(b"%d" % n) for n in range(10)]
        (placed,) = topic.append_many(rows[:4], producer="p", sequence=0)
        topic.append(b"another's")
        ranges = topic.append_many(rows, producer="p", sequence=0)
        assert ranges == [placed, (0, 5, 6)]
        assert topic.append_many(rows, producer="p", sequence=0) == ranges
        assert topic.append_many(rows[2:6], producer="p", sequence=2) == [(0, 2, 2), (0, 5, 2)]
        assert topic.append_many([], producer="p", sequence=10) == []
        assert len(values(topic)) == 11


def test_arrow_tables_have_sequences_too(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        topic.append_many([Record(b"%d" % n) for n in range(5)])
        table = topic.scan(columns=["value"]).read_all()
        placed = topic.append_many(table, producer="p", sequence=0)
        assert placed == topic.append_many(table, producer="p", sequence=0) == [(0, 5, 5)]


def test_batches_that_are_split_and_compressed_are_found(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        config = {"max.message.bytes": 400, "segment.bytes": 2000, "compression.type": "zstd"}
        topic = store.create_topic("orders", config=config)
        rows = [Record(os.urandom(100)) for _ in range(50)]
        placed = topic.append_many(rows, producer="p", sequence=100)
        assert placed == [(0, 0, 50)]
        assert len(topic.segments()) > 2
        assert topic.append_many(rows, producer="p", sequence=100) == placed
        assert topic.append(rows[7].value, producer="p", sequence=107).offset == 7


def test_sequences_count_in_each_partition(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders", 3)
        for partition in range(3):
            topic.append(b"x", partition=partition, producer="p", sequence=0)
        by_key = topic.append(b"y", key=b"k", producer="p", sequence=1)
        assert topic.last_sequence("p", by_key.partition) == 1
        assert [topic.last_sequence("p", each) for each in range(3)].count(0) == 2
        with pytest.raises(InvalidArgumentError, match="partition="):
            topic.append(b"z", producer="p", sequence=2)
        with pytest.raises(InvalidArgumentError, match="partition="):
            topic.append_many([Record(b"z")], producer="p", sequence=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"producer": "p"},
        {"sequence": 1},
        {"producer": "", "sequence": 1},
        {"producer": 5, "sequence": 1},
        {"producer": "p", "sequence": -1},
        {"producer": "p", "sequence": 2**31},
        {"producer": "p", "sequence": True},
        {"producer": "p", "sequence": 0, "expected_offset": 0},
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        with pytest.raises(InvalidArgumentError):
            topic.append(b"x", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError):
            topic.append_many([Record(b"x")], **wrong)  # type: ignore[arg-type]
        assert values(topic) == []


def test_the_last_sequence_and_what_comes_after(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        last = topic.append(b"x", producer="p", sequence=2**31 - 1)
        assert topic.append(b"x", producer="p", sequence=2**31 - 1) == last
        with pytest.raises(InvalidArgumentError, match="another producer name"):
            topic.append_many([Record(b"x"), Record(b"y")], producer="p", sequence=2**31 - 1)


def test_a_wrong_record_takes_no_sequence(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        with pytest.raises(InvalidRecordError, match="record 1"):
            topic.append_many([Record(b"x"), "text"], producer="p", sequence=0)  # type: ignore[list-item]
        assert topic.last_sequence("p") is None


def test_a_clean_stop_and_a_long_pause_forget_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(tmp_path, clock) as store:
        topic = store.create_topic("orders", config={"segment.bytes": 1000})
        placed = [topic.append(b"%d" % n, producer="p", sequence=n) for n in range(30)]
    clock.advance(30 * DAY_MS)
    with open_store(tmp_path, clock) as store:
        topic = store.topic("orders")
        store.tick()
        assert topic.last_sequence("p") == 29
        assert [topic.append(b"%d" % n, producer="p", sequence=n) for n in range(30)] == placed


def test_records_that_retention_took_are_known_to_be_appended(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders", config={"segment.bytes": 500, "file.delete.delay.ms": 0})
        for n in range(60):
            topic.append(b"%d" % n, producer="p", sequence=n)
        topic.roll()
        topic.delete_records(0, -1)
        store.retain("orders")
    with open_store(tmp_path) as store:
        topic = store.topic("orders")
        assert topic.last_sequence("p") == 59
        with pytest.raises(DuplicateSequenceError, match="Continue with sequence 60") as caught:
            topic.append(b"3", producer="p", sequence=3)
        assert caught.value.last_sequence == 59
        assert topic.append(b"60", producer="p", sequence=60).offset == 60


def test_the_last_append_may_be_repeated_when_its_record_is_gone(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        placed = topic.append(b"1", producer="p", sequence=0)
        topic.delete_records(0, -1)
        again = topic.append(b"1", producer="p", sequence=0)
        assert again == placed._replace(timestamp=-1)
        assert asyncio.run(topic.aappend(b"1", producer="p", sequence=0)) == again
        assert topic.log_end_offset() == 1


def test_compaction_keeps_the_last_sequence(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("state", config={"cleanup.policy": "compact", "segment.bytes": 500})
        for n in range(40):
            topic.append(b"%d" % n, key=b"k%d" % (n % 2), producer="p", sequence=n)
        topic.roll()
        store.compact("state", force=True)
    with open_store(tmp_path) as store:
        topic = store.topic("state")
        assert topic.last_sequence("p") == 39
        assert topic.append(b"39", key=b"k1", producer="p", sequence=39).offset == 39


def test_a_killed_program_finds_its_place(tmp_path: Path) -> None:
    script = """
import os, signal, stratalog
store = stratalog.open(os.environ["PLACE"])
topic = store.create_topic("orders", config={"segment.bytes": 700})
for n in range(50):
    topic.append(b"%d" % n, producer="outbox", sequence=n)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PLACE": str(tmp_path / "data")}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with open_store(tmp_path) as store:
        topic = store.topic("orders")
        assert topic.last_sequence("outbox") == 49
        for n in range(40, 60):
            assert topic.append(b"%d" % n, producer="outbox", sequence=n).offset == n
        assert values(topic) == [b"%d" % n for n in range(60)]


def test_two_threads_with_the_same_numbers(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        offsets: list[list[int]] = [[], []]

        def run(mine: list[int]) -> None:
            mine += [topic.append(b"%d" % n, producer="p", sequence=n).offset for n in range(200)]

        threads = [threading.Thread(target=run, args=(each,)) for each in offsets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert offsets[0] == offsets[1] == list(range(200))
        assert values(topic) == [b"%d" % n for n in range(200)]


def test_event_loops_number_their_appends(tmp_path: Path) -> None:
    async def run(topic: Topic) -> None:
        placed = await topic.aappend(b"a", producer="p", sequence=0, sync=True)
        assert placed == await topic.aappend(b"a", producer="p", sequence=0)
        rows = [Record(b"a"), Record(b"b"), Record(b"c")]
        assert await topic.aappend_many(rows, producer="p", sequence=0) == [(0, 0, 3)]
        assert await topic.aappend_many(rows, producer="p", sequence=0, sync=True) == [(0, 0, 3)]

    with open_store(tmp_path) as store:
        topic = store.create_topic("orders")
        asyncio.run(run(topic))
        assert values(topic) == [b"a", b"b", b"c"]


def test_a_read_only_store_appends_no_sequence(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.create_topic("orders").append(b"a", producer="p", sequence=0)
    with stratalog.open(tmp_path / "data", read_only=True) as store, pytest.raises(ReadOnlyError):
        store.topic("orders").append(b"a", producer="p", sequence=0)
