"""Reading a whole topic: partitions merged, times in every form, following that ends when asked."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

import stratalog
from stratalog import Record, Store, Topic, kernel
from stratalog.errors import ClosedError, InvalidArgumentError, OffsetOutOfRangeError
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.log.read import reader
from stratalog.log.read.chunks import FIRST_CHUNK, read_chunks
from stratalog.store.reading import ReadOptions, Records
from stratalog.testing import ManualClock
from tests.log.interrupting import Interrupter
from tests.store.pausing import PausingFileSystem, Running

DAY = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
DAY_MS = int(DAY.timestamp() * 1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    clock = ManualClock(DAY_MS)
    with stratalog.open(tmp_path / "data", clock=clock, background=False) as opened:
        yield opened


@pytest.fixture
def topic(store: Store) -> Topic:
    """Records 0 to 29, one second apart, in three partitions by turns; segments of a few records."""
    made = store.create_topic("t", 3, {"segment.bytes": 400})
    for number in range(30):
        made.append(b"%d" % number, timestamp=DAY_MS + 1000 * number, partition=number % 3)
    return made


def numbers(records: Iterator[Record]) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def test_all_partitions_are_merged_by_time(topic: Topic) -> None:
    assert numbers(topic.read()) == list(range(30))
    assert {record.partition for record in topic.read()} == {0, 1, 2}
    assert numbers(topic.read(order="partition")) == [*range(0, 30, 3), *range(1, 30, 3), *range(2, 30, 3)]
    assert numbers(topic.read(1)) == list(range(1, 30, 3))
    assert numbers(topic.read([2, 0])) == [n for n in range(30) if n % 3 != 1]
    assert numbers(topic.read(partition=range(2), start={1: 8}, end={0: 1})) == [0, 25, 28]


def test_what_is_asked_for_wrongly_is_refused(topic: Topic) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"start is one offset for several partitions; .*partition="
    ):
        topic.read(start=3)
    with pytest.raises(InvalidArgumentError, match="order 'key' is not known; use 'time' or 'partition'"):
        topic.read(order="key")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="does not go with until"):
        topic.read(follow=True, until="now")
    with pytest.raises(OffsetOutOfRangeError, match="t-1: offset 99"):
        topic.read(start={1: 99})
    with pytest.raises(InvalidArgumentError, match="a partition in start must be a whole number"):
        topic.read(start={"1": 0})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "since",
    [
        DAY_MS + 10_000,
        DAY + dt.timedelta(seconds=10),
        (DAY + dt.timedelta(seconds=10)).astimezone(dt.timezone(dt.timedelta(hours=5))),
        "2026-11-01T12:00:10Z",
        "2026-11-01 12:00:10",
        str(DAY_MS + 10_000),
        "+10s",
    ],
)
def test_times_are_given_as_people_write_them(store: Store, topic: Topic, since: Any) -> None:
    assert numbers(topic.read(since=since)) == list(range(10, 30))
    assert numbers(topic.read(until=since)) == list(range(10))
    assert numbers(topic.read(1, since=since, until="+20s")) == [10, 13, 16, 19]
    assert topic.scan(since=since).read_all().num_rows == 20
    assert topic.scan(until=since).read_all().num_rows == 10
    assert topic.offset_for_time(1, since) == 3


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (dt.datetime(2026, 11, 1), "without a time zone"),  # noqa: DTZ001
        (1_763_000_000.5, r"a whole number of milliseconds .*int\(seconds \* 1000\)"),
        ("yesterday", "is not a time; write"),
        (True, "whole number"),
        (dt.date(2026, 1, 1), "epoch milliseconds or a datetime"),
        (dt.timedelta(minutes=-10), "epoch milliseconds or a datetime"),
    ],
)
def test_times_that_mean_nothing_are_refused(topic: Topic, bad: Any, why: str) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: topic.read(since=bad),
        lambda: topic.read(until=bad),
        lambda: topic.scan(since=bad),
        lambda: topic.offset_for_time(0, bad),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=why):
            call()
    if not isinstance(bad, str):
        with pytest.raises(InvalidArgumentError, match=f"timestamp.*{why}"):
            topic.append(b"x", timestamp=bad, partition=0)
    assert numbers(topic.read()) == list(range(30))


def test_a_datetime_is_a_timestamp(topic: Topic) -> None:
    when = DAY + dt.timedelta(milliseconds=7)
    assert topic.append(b"30", timestamp=when, partition=0).timestamp == DAY_MS + 7
    rows = [Record(b"31", None, (), when), Record(b"32", b"k", (), DAY_MS)]  # type: ignore[arg-type]
    topic.append_many(rows, partition=0)
    assert [record.timestamp for record in topic.read(0, 10)] == [DAY_MS + 7, DAY_MS + 7, DAY_MS]
    with pytest.raises(InvalidArgumentError, match="record 1: timestamp is a datetime without a time zone"):
        topic.append_many([Record(b""), Record(b"", None, (), dt.datetime(2026, 1, 1))], partition=0)  # type: ignore[arg-type]  # noqa: DTZ001
    assert topic.log_end_offset(0) == 13


def test_records_out_of_order_are_found_by_their_times(store: Store) -> None:
    topic = store.create_topic("t", 1, {"segment.bytes": 200})
    stamps = [5, 1, 9, 2, 8, 3, 7, 4, 6, 0]
    for stamp in stamps:
        topic.append(b"%d" % stamp, timestamp=DAY_MS + stamp)
    for low in range(11):
        for high in range(low, 11):
            wanted = [stamp for stamp in stamps if low <= stamp < high]
            assert numbers(topic.read(since=DAY_MS + low, until=DAY_MS + high)) == wanted


# -- following -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "stop", "with"])
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("read_only", [False, True])
def test_following_ends_when_asked(store: Store, partitions: int, read_only: bool, how: str) -> None:
    topic = store.create_topic("f", partitions)
    with stratalog.open(store.log_dirs()[0].path, read_only=True) as beside:
        source = beside["f"] if read_only else topic
        stop = threading.Event()
        records = source.read(follow=True, stop=stop if how == "stop" else None)
        seen: list[int] = []
        arrived = threading.Semaphore(0)

        def follow() -> None:
            for record in records:
                seen.append(int(record.value or b""))
                arrived.release()

        following = Running(follow)
        for number in range(6):
            topic.append(b"%d" % number, partition=number % partitions)
            assert arrived.acquire(timeout=10)
        if how == "stop":
            stop.set()
        elif how == "close":
            records.close()
        else:
            with records:
                pass
        following.result()
        assert seen == list(range(6))
        assert list(records) == []


@pytest.mark.parametrize("follow", [False, True])
def test_an_event_stops_before_the_next_record(store: Store, follow: bool) -> None:
    topic, stop = store.create_topic("t"), threading.Event()
    topic.append_many([Record(b"%d" % number) for number in range(100)])
    seen = []
    for record in topic.read(follow=follow, stop=stop):
        seen.append(record.offset)
        if record.offset == 41:
            stop.set()
    assert seen == list(range(42))


def test_following_several_partitions_waits_and_times_out(topic: Topic) -> None:
    began = time.monotonic()
    assert numbers(topic.read(follow=True, timeout_s=0.2)) == list(range(30))
    assert time.monotonic() - began >= 0.2
    ends = {0: 10, 1: 10, 2: 11}
    following = Running(lambda: numbers(topic.read(start={0: 9, 1: 9, 2: 9}, end=ends, follow=True)))
    topic.append(b"30", partition=2, timestamp=DAY_MS + 30_000)
    assert sorted(following.result()) == [27, 28, 29, 30], "each partition up to its end"


def test_following_several_partitions_through_a_move(tmp_path: Path) -> None:
    with stratalog.open([tmp_path / "one", tmp_path / "two"]) as store:
        topic = store.create_topic("t", 2)
        records = topic.read(follow=True)
        following = Running(lambda: [int(next(records).value or b"") for _ in range(4)])
        for number in range(2):
            topic.append(b"%d" % number, partition=number)
        for number in range(2):
            here = store.partitions.place("t", number)[0].path
            other = next(each.path for each in store.log_dirs() if each.path != here)
            store.move_partition("t", number, other)
        for number in range(2, 4):
            topic.append(b"%d" % number, partition=number % 2)
        assert sorted(following.result()) == [0, 1, 2, 3]


def test_following_several_partitions_ends_with_the_store(store: Store, topic: Topic) -> None:
    records = topic.read(start={0: 10, 1: 10, 2: 10}, follow=True)
    following = Running(lambda: list(records))
    following.ends_or_blocks()
    store.close()
    with pytest.raises(ClosedError):
        following.result()


def test_a_reader_that_is_dropped_holds_nothing(store: Store, topic: Topic) -> None:
    topic.flush()
    gc.disable()
    try:
        for order in ("time", "partition"):
            records = topic.read(order=order)  # type: ignore[arg-type]
            assert next(records).offset == 0
            rest = iter(records)
            assert next(rest) is not None
            del records, rest
        store.close()
        assert store.open_files() == 0
    finally:
        gc.enable()


def test_a_timeout_counts_from_the_last_record_that_came(store: Store) -> None:
    """Records that are left out for their times do not keep a reader waiting."""
    topic, stop = store.create_topic("t"), threading.Event()

    def append() -> None:
        while not stop.wait(0.01):
            topic.append(b"old", timestamp=DAY_MS)

    appending = Running(append)
    began = time.monotonic()
    assert list(topic.read(since=DAY_MS + 1, follow=True, timeout_s=0.2)) == []
    assert time.monotonic() - began < 5

    async def work() -> None:
        async with asyncio.timeout(5):
            assert [each async for each in topic.aread(since=DAY_MS + 1, follow=True, timeout_s=0.2)] == []

    asyncio.run(work())
    stop.set()
    appending.result()


@pytest.mark.parametrize("read_only", [False, True])
def test_partitions_that_are_added_are_followed(
    store: Store, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.locks.RECHECK_S", 0.05)
    topic = store.create_topic("t")
    with stratalog.open(store.log_dirs()[0].path, read_only=True) as beside:
        records = (beside["t"] if read_only else topic).read(follow=True)
        following = Running(lambda: sorted(int(next(records).value or b"") for _ in range(3)))
        topic.append(b"0")
        store.add_partitions("t", 3)
        for number in (1, 2):
            topic.append(b"%d" % number, partition=number)
        assert following.result() == [0, 1, 2]


def test_segments_outside_the_times_are_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.create_topic("t")
    for number in range(20):
        topic.append_many(
            [Record(b"%d" % (5 * number + each), None, (), DAY_MS + 5 * number + each) for each in range(5)]
        )
        topic.roll()
    read: list[int] = []
    chunks = read_chunks

    def counted(segment: Any, *args: Any, **kwargs: Any) -> Any:
        read.append(segment.base_offset)
        return chunks(segment, *args, **kwargs)

    monkeypatch.setattr(reader, "read_chunks", counted)
    assert numbers(topic.read(since=DAY_MS + 42, until=DAY_MS + 47)) == [42, 43, 44, 45, 46]
    assert set(read) <= {40, 45, 100}
    read.clear()
    assert numbers(topic.read(until=DAY_MS + 3)) == [0, 1, 2]
    assert set(read) <= {0, 100}
    assert numbers(topic.read(since=DAY_MS + 1000)) == []
    topic.delete_records(0, 41)
    assert numbers(topic.read(until=DAY_MS + 47)) == [41, 42, 43, 44, 45, 46]
    assert numbers(topic.read(0, 43, 46, until=DAY_MS + 47)) == [43, 44, 45]


def test_damage_is_skipped_also_where_a_time_is_searched(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("t")
        for number in range(40):
            topic.append(b"%d" % number, timestamp=DAY_MS + number)
        path = Path(topic.segments(0)[0].path)
    data = bytearray(path.read_bytes())
    at = data.index(b"\x04" + b"20") if b"\x04" + b"20" in data else len(data) // 2
    data[at + 1] ^= 0xFF
    path.write_bytes(data)
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        skipped: list[Any] = []
        everything = numbers(store["t"].read(skip_damaged=skipped.append))
        assert skipped
        for since in (0, 19, 20, 21, 39):
            found = numbers(store["t"].read(since=DAY_MS + since, skip_damaged=True))
            assert found == [each for each in everything if each >= since]


def test_wrong_arguments_are_named(topic: Topic) -> None:
    assert numbers(topic.read([0, 0])) == list(range(0, 30, 3)), "each partition once"
    for bad in ({"stop": object()}, {"timeout_s": float("nan")}, {"timeout_s": "1"}, {"order": "x"}):
        for where in ((), (0, 0, 1)):
            with pytest.raises(InvalidArgumentError):
                topic.read(*where, follow=False, **bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="start names partition 7, which is not read"):
        topic.read(start={7: 3})
    records = topic.read(0, 10, follow=True, timeout_s=10**400)
    following = Running(lambda: next(records))
    topic.append(b"30", partition=0)
    assert following.result().value == b"30"


def test_a_reading_that_is_closed_first_gives_nothing(topic: Topic) -> None:
    for follow in (False, True):
        records = topic.read(follow=follow)
        records.close()
        assert list(records) == []


# -- the store as a container, and optimistic appends ----------------------------------------------------


def test_a_store_is_a_container_of_topics(store: Store) -> None:
    assert store, "an empty store is not nothing"
    assert len(store) == 0
    orders = store.create_topic("orders", 2)
    assert store.create_topic("orders", 9, if_not_exists=True) is orders
    assert orders.partitions == 2
    store.create_topic("clicks", if_not_exists=True)
    assert [each.name for each in store] == ["clicks", "orders"]
    assert store["orders"] is orders
    assert "orders" in store
    assert "nope" not in store
    assert 5 not in store
    with pytest.raises(LookupError, match="nope"):
        store["nope"]
    with pytest.raises(stratalog.errors.TopicExistsError):
        store.create_topic("orders")


def test_threads_create_a_topic_once(store: Store) -> None:
    made = [Running(lambda: store.create_topic("t", if_not_exists=True)) for _ in range(8)]
    assert {id(each.result()) for each in made} == {id(store["t"])}


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_an_append_may_expect_the_end_of_the_log(store: Store, codec: str) -> None:
    topic = store.create_topic("t", 2, {"compression.type": codec})
    assert topic.append(b"a", partition=1, expected_offset=0).offset == 0
    with pytest.raises(stratalog.errors.ConflictError, match="t-1 ends at offset 1, not at 0") as caught:
        topic.append(b"b", partition=1, expected_offset=0)
    assert (caught.value.partition, caught.value.expected, caught.value.actual) == (1, 0, 1)
    rows = [Record(b"c"), Record(b"d")]
    assert topic.append_many(rows, partition=1, expected_offset=1)[0].offset == 1
    with pytest.raises(stratalog.errors.ConflictError):
        topic.append_many(rows, partition=1, expected_offset=1)
    with pytest.raises(InvalidArgumentError, match="pass partition="):
        topic.append_many(rows, expected_offset=3)
    with pytest.raises(
        stratalog.errors.ConflictError, match="t-1 ends at offset 3, not at 9: the log is shorter"
    ):
        topic.append(b"", partition=1, expected_offset=9)
    with pytest.raises(stratalog.errors.ConflictError):
        topic.append_many([], partition=1, expected_offset=9)
    assert topic.append_many([], partition=1, expected_offset=3) == []
    with pytest.raises(InvalidArgumentError, match="value must be bytes"):
        topic.append("text", partition=1, expected_offset=3)  # type: ignore[arg-type]
    place = kernel.partition_for_key(b"key", 2)
    assert topic.append(b"e", b"key", expected_offset=3 * place).partition == place
    table = topic.scan(columns=["value"]).read_all()
    with pytest.raises(stratalog.errors.ConflictError):
        topic.append_many(table, partition=1, expected_offset=0)
    assert topic.append_many(table, partition=0, expected_offset=topic.log_end_offset(0))


def test_an_expected_offset_needs_to_know_its_partition(store: Store) -> None:
    topic = store.create_topic("t", 2)
    topic.append(b"first", partition=0)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="expected_offset .* pass partition= or a key"):
            topic.append(b"second", expected_offset=0)  # partition 1 ends at 0: not what the caller read
        with pytest.raises(InvalidArgumentError, match="expected_offset .* pass partition= or a key"):
            asyncio.run(topic.aappend(b"second", expected_offset=0))
    assert [record.value for record in topic.read()] == [b"first"]


def test_of_two_that_expect_the_same_offset_one_gets_it(store: Store) -> None:
    topic = store.create_topic("t")
    wins: list[int] = []
    overtaken: list[int] = []

    def append(number: int) -> None:
        done = 0
        while done < 50:
            end = topic.log_end_offset()
            try:
                wins.append(topic.append(b"%d" % number, expected_offset=end).offset)
                done += 1
            except stratalog.errors.ConflictError as error:
                overtaken.append(error.actual - end)

    threads = [Running(append, number) for number in range(4)]
    for thread in threads:
        thread.result()
    assert sorted(wins) == list(range(200))
    assert all(each > 0 for each in overtaken)


def test_copies_are_methods_of_the_store(store: Store, topic: Topic, tmp_path: Path) -> None:
    store.clone(tmp_path / "clone")
    store.restore(tmp_path / "restored", to_time="+10s")
    store.export("t", tmp_path / "t.topic")
    assert store.import_topic(tmp_path / "t.topic", name="again").topic == "again"
    assert numbers(store["again"].read()) == list(range(30))
    for where in ("clone", "restored"):
        with stratalog.open(tmp_path / where, read_only=True) as copy:
            assert numbers(copy["t"].read()) == list(range(30 if where == "clone" else 11))


def test_the_package_shows_what_there_is() -> None:
    assert {"open", "connect", "Record", "errors", "Store"} <= set(dir(stratalog))
    for name in dir(stratalog):
        assert getattr(stratalog, name) is not None


# -- in an event loop ------------------------------------------------------------------------------------


def test_an_event_loop_appends_and_reads(store: Store, topic: Topic) -> None:
    async def work() -> None:
        assert [int(each.value or b"") async for each in topic.aread()] == list(range(30))
        assert [each.offset async for each in topic.aread(1, 3, 4)] == [3]
        placed = await topic.aappend(b"30", partition=0, sync=True, timestamp=DAY)
        assert placed == (0, 10, DAY_MS)
        await asyncio.gather(*(topic.aappend(b"%d" % n, b"k%d" % n, sync=True) for n in range(31, 50)))
        ranges = await topic.aappend_many([Record(b"%d" % n) for n in range(50, 60)], partition=2, sync=True)
        assert [each.count for each in ranges] == [10]
        assert await topic.aappend_many([]) == []
        with pytest.raises(stratalog.errors.ConflictError):
            await topic.aappend(b"", partition=0, expected_offset=0)
        with pytest.raises(stratalog.errors.ConflictError):
            await topic.aappend_many([Record(b"")], partition=0, expected_offset=0)
        with pytest.raises(InvalidArgumentError, match="Arrow"):
            await topic.aappend_many(topic.scan().read_all())
        with pytest.raises(stratalog.errors.InvalidRecordError):
            await topic.aappend("text", partition=0)  # type: ignore[arg-type]

    asyncio.run(work())
    assert sorted(numbers(topic.read())) == list(range(60))


def test_an_event_loop_waits_for_all_partitions_at_the_same_time(tmp_path: Path) -> None:
    fs = PausingFileSystem(RealFileSystem())
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        topic = store.create_topic("t", 2)

        async def work() -> int:
            return len(await topic.aappend_many([Record(b"", b"%d" % each) for each in range(9)], sync=True))

        with fs.pause_at("sync", "*/t-0/*.log") as first, fs.pause_at("sync", "*/t-1/*.log") as second:
            appending = Running(asyncio.run, work())
            first.wait_until_reached()
            second.wait_until_reached()
        assert appending.result() == 2


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("partitions", [1, 3])
def test_an_event_loop_follows_until_it_is_told_to_stop(
    store: Store, partitions: int, read_only: bool
) -> None:
    topic = store.create_topic("f", partitions)

    async def work(source: Topic) -> list[int]:
        seen: list[int] = []
        came: asyncio.Queue[Record] = asyncio.Queue()
        records = source.aread(follow=True)

        async def follow() -> None:
            async for record in records:
                await came.put(record)

        task = asyncio.create_task(follow())
        for number in range(6):
            await topic.aappend(b"%d" % number, partition=number % partitions)
            seen.append(int((await asyncio.wait_for(came.get(), 10)).value or b""))
        records.close()
        await asyncio.wait_for(task, 10)
        assert [each async for each in source.aread(follow=True, timeout_s=0.05)][-1].value == b"5"
        waits = aiter(source.aread(0, topic.log_end_offset(0), follow=True))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(waits), 0.05)
        return seen

    with stratalog.open(store.log_dirs()[0].path, read_only=True) as beside:
        assert asyncio.run(work(beside["f"] if read_only else topic)) == list(range(6))
    waiting = [view.ends.waiting for view in store.partitions.writers()]
    assert not any(waiting), "no listener is left behind"


@pytest.mark.parametrize("follow", [False, True])
def test_a_loop_that_is_left_goes_on_where_it_was(store: Store, follow: bool) -> None:
    topic = store.create_topic("t")
    topic.append_many([Record(b"%d" % number) for number in range(2000)])

    async def work() -> None:
        records = topic.aread(follow=follow, timeout_s=0.05)
        seen: list[int] = []
        while len(seen) < 2000:
            async for record in records:
                seen.append(record.offset)
                if len(seen) % 3 == 0:
                    break
        assert seen == list(range(2000))

    asyncio.run(work())


def test_a_wait_that_is_given_up_loses_no_record(store: Store) -> None:
    topic = store.create_topic("t")

    async def work() -> None:
        records = topic.aread(follow=True)
        seen: list[int] = []
        for number in range(30):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(records), 0.001)
            topic.append(b"%d" % number)
            seen.append((await asyncio.wait_for(anext(records), 10)).offset)
        assert seen == list(range(30))

    asyncio.run(work())


def test_records_before_damage_are_handed_out_first(store: Store, topic: Topic) -> None:
    def damaged() -> Iterator[Record]:
        yield from topic.read(0)
        raise stratalog.errors.CorruptionError("here")

    seen: list[int] = []

    async def work() -> None:
        async for record in Records([], ReadOptions(), damaged()):
            seen.append(record.offset)  # noqa: PERF401

    with pytest.raises(stratalog.errors.CorruptionError, match="here"):
        asyncio.run(work())
    assert seen == list(range(10))


def test_a_move_does_not_hold_up_an_event_loop(tmp_path: Path) -> None:
    fs = PausingFileSystem(RealFileSystem())
    with stratalog.open([tmp_path / "one", tmp_path / "two"], fs=cast(FileSystem, fs)) as store:
        topic = store.create_topic("t")
        topic.append(b"0", sync=True)
        here = store.partitions.place("t", 0)[0].path
        other = next(each.path for each in store.log_dirs() if each.path != here)

        async def work() -> None:
            with fs.pause_at("rename", f"{other}/t-0") as pause:
                moving = asyncio.create_task(asyncio.to_thread(store.move_partition, "t", 0, other))
                await asyncio.to_thread(pause.wait_until_reached)
                appending = asyncio.create_task(topic.aappend(b"1"))
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert not appending.done(), "it waits for the move, the loop does not"
            assert (await asyncio.wait_for(appending, 10)).offset == 1
            await moving

        asyncio.run(work())


def test_an_event_loop_appends_and_follows_through_a_move(tmp_path: Path) -> None:
    with stratalog.open([tmp_path / "one", tmp_path / "two"]) as store:
        topic = store.create_topic("t", 1, {"flush.messages": 1})

        async def work() -> None:
            records = aiter(topic.aread(follow=True))
            for number in range(4):
                here = store.partitions.place("t", 0)[0].path
                other = next(each.path for each in store.log_dirs() if each.path != here)
                _, placed = await asyncio.gather(
                    asyncio.to_thread(store.move_partition, "t", 0, other), topic.aappend(b"%d" % number)
                )
                assert placed.offset == number
                assert (await asyncio.wait_for(anext(records), 10)).offset == number

        asyncio.run(work())


@pytest.mark.usefixtures("plain_locks")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C in a finalizer
def test_an_interrupt_between_two_chunks_is_raised_as_it_is(store: Store) -> None:
    topic = store.create_topic("t", 1)
    for number in range(20):
        topic.append(bytes(FIRST_CHUNK) + b"%d" % number)
    counting = Interrupter(KeyboardInterrupt, within="/log/read/chunks.py")
    assert counting.run(lambda: len(list(topic.read()))) == 20
    assert counting.events > 20
    for at in range(1, counting.events + 1):
        interrupter = Interrupter(KeyboardInterrupt, at, within="/log/read/chunks.py")
        with suppress(KeyboardInterrupt):
            assert interrupter.run(lambda: len(list(topic.read()))) == 20
