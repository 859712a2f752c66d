"""Lookups beside an appender: by key, by offset and by time they answer as a plain read does.

Each test pauses one thread at every line of the code in question and lets the other one run meanwhile.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

import pytest

import stratalog
from stratalog import Record
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.fs import FailingFileSystem, MemoryFileSystem
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.store.topic import Topic
from tests.log.interleaved import interleave, lines

NOW = 1_760_000_000_000


def small() -> ActiveKeyIndex:
    index = ActiveKeyIndex()
    index.extend(array("Q", [7, 8, 7]), array("q", [0, 1, 2]))
    return index


def grown() -> ActiveKeyIndex:
    """The next lookup rebuilds its table."""
    index = small()
    index.extend(array("Q", range(100, 2200)), array("q", range(3, 2103)))
    return index


@pytest.mark.parametrize("make", [small, grown])
@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.add_row(struct.pack("=QQ", 7, 9000)),
        lambda index: index.extend(array("Q", [7, 7]), array("q", [9000, 9001])),
        lambda index: index.lookup(8),
    ],
    ids=["add", "extend", "lookup"],
)
@pytest.mark.parametrize("lookup_first", [True, False])
def test_key_lookup_beside_a_change(
    make: Callable[[], ActiveKeyIndex], change: Callable[[ActiveKeyIndex], object], lookup_first: bool
) -> None:
    for line in lines():
        index, found = make(), list[list[int]]()

        def look(index: ActiveKeyIndex = index, found: list[list[int]] = found) -> None:
            found.append(index.lookup(7))

        def alter(index: ActiveKeyIndex = index) -> None:
            change(index)

        calls = (look, alter) if lookup_first else (alter, look)
        reached = interleave("/log/write/active_keys.py", calls[0], calls[1], line)
        assert found[0] in ([0, 2], [0, 2, 9000], [0, 2, 9000, 9001])
        assert index.lookup(7) == (plain := sorted(index.lookup(7)))
        assert len(plain) == len(set(plain))
        assert index.lookup(8) == [1]
        if not reached or line > 60:
            return


def test_offset_and_time_index_beside_a_cut() -> None:
    for line in lines():
        offsets, times = OffsetIndex(0), TimeIndex(0)
        for at in range(1, 5):
            offsets.append(at * 10, at * 100)
            times.maybe_append(at * 1000, at * 10)

        def look(offsets: OffsetIndex = offsets, times: TimeIndex = times) -> None:
            assert offsets.around(25) in (((20, 200), (30, 300)), ((20, 200), None))
            assert offsets.lookup(45) in ((40, 400), (20, 200))
            assert offsets.after_position(250) in ((30, 300), None)
            assert offsets.last() in ((40, 400), (20, 200))
            assert times.lookup(2500) == (2000, 20)
            assert times.lookup(9000) in ((4000, 40), (2000, 20))
            assert times.last() in ((4000, 40), (2000, 20))

        def cut(offsets: OffsetIndex = offsets, times: TimeIndex = times) -> None:
            offsets.truncate(300)
            times.truncate(30)

        reached = interleave("/stratalog/format/", look, cut, line)
        assert offsets.last() == (20, 200)
        assert times.last() == (2000, 20)
        if not reached:
            return


def answers_agree(topic: Topic) -> None:
    """What a read sees, the lookups that come after it find."""
    seen = list(topic.read())
    newest = topic.get(b"k")
    assert newest is not None
    assert newest.offset is not None
    assert newest.offset >= max(r.offset or 0 for r in seen if r.key == b"k")
    assert len(list(topic.history(b"k"))) >= sum(record.key == b"k" for record in seen)
    last = seen[-1]
    assert last.offset is not None
    assert topic.at(last.offset) == last
    assert topic.offset_for_time(0, last.timestamp or 0) is not None


@pytest.mark.parametrize("many", [False, True])
def test_lookups_while_an_append_is_under_way(many: bool) -> None:
    with stratalog.open("/d", fs=MemoryFileSystem()) as store:
        topic = store.create_topic("t", config={"key.index.enable": True, "index.interval.bytes": 1})
        topic.append(b"0", b"k", timestamp=NOW)
        for line in lines():
            stamp = NOW + line * 10

            def append(stamp: int = stamp) -> None:
                if many:
                    topic.append_many([Record(b"v", b"k", (), stamp), Record(b"v", b"o", (), stamp + 1)])
                else:
                    topic.append(b"v", b"k", timestamp=stamp)

            reached = interleave("/stratalog/log/", append, lambda: answers_agree(topic), line)
            if not reached:
                return


@pytest.mark.parametrize("batch", [1, 500])
@pytest.mark.parametrize("keyed", [True, False])
def test_history_reads_the_log_a_few_times_not_once_a_record(batch: int, keyed: bool) -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    with stratalog.open("/d", fs=fs, config={"log.segment.bytes": 1 << 20}) as store:
        topic = store.create_topic("t", config={"key.index.enable": keyed})
        records = [Record(b"%d" % i, b"k%d" % (i % 3), (), NOW) for i in range(6000)]
        for at in range(0, len(records), batch):
            topic.append_many(records[at : at + batch])
        topic.roll()
        topic.append_many(records[:10])
        wanted = [record for record in topic.read() if record.key == b"k1"]
        fs.calls.clear()
        assert list(topic.history(b"k1")) == wanted
        assert sum(call.startswith("pread") for call in fs.calls) < 150


def test_history_of_far_and_near_records_in_any_isolation() -> None:
    fs = MemoryFileSystem()
    with stratalog.open("/d", fs=fs) as store:
        topic = store.create_topic("t", config={"index.interval.bytes": 500})
        for at in range(300):
            topic.append(bytes(at % 7 * 900), b"k" if at % 11 in (1, 2, 5) or at > 280 else b"other")
        for isolation in ("read_uncommitted", "read_committed"):
            wanted = [record for record in topic.read(isolation=isolation) if record.key == b"k"]
            assert list(topic.history(b"k", isolation=isolation)) == wanted
