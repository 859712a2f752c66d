"""Fetching whole batches: what a client makes of them is what `read` returns; files stay until released."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store, Topic, errors
from stratalog.archive.objects import DirectoryObjects
from stratalog.format import batch as batches
from stratalog.fs import FileSystem, MemoryFileSystem, RealFileSystem
from stratalog.log.read.fetch import Fetched
from stratalog.log.read.reader import Isolation
from tests.store.pausing import PausingFileSystem, Running
from tests.store.test_door import NOW, make_batch

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
COMPACTED: dict[str, object] = {
    "cleanup.policy": "compact",
    "index.interval.bytes": 300,
    "file.delete.delay.ms": 0,
    "min.cleanable.dirty.ratio": 0.0,
}


def sent(fetched: Fetched) -> bytes:
    """The bytes as a server would send them."""
    if fetched.file is None:
        assert fetched.data is not None
        return fetched.data
    return os.pread(fetched.file.fileno(), fetched.length, fetched.position)


class Client:
    """Fetches a partition as Kafka's consumer does, and checks every answer."""

    def __init__(self, topic: Topic, isolation: Isolation, rng: random.Random) -> None:
        self.topic = topic
        self.isolation = isolation
        self.rng = rng

    def read(self, offset: int) -> list[Record]:
        """Everything from ``offset`` to the end."""
        found: list[Record] = []
        while True:
            more, offset = self.once(offset)
            if offset < 0:
                return found
            found += more

    def once(self, offset: int) -> tuple[list[Record], int]:
        max_bytes = self.rng.choice([0, 1, 200, 1000, 5000, 1 << 20])
        with self.topic.fetch(0, offset, max_bytes, self.isolation) as fetched:
            data = sent(fetched)
            assert data == fetched.read()
            scan = batches.scan(data)  # with every CRC
            assert len(data) == fetched.length == scan.end, "whole batches"
            end = fetched.high_watermark
            if self.isolation == "read_committed":
                end = fetched.last_stable_offset
            assert fetched.log_start_offset == self.topic.log_start_offset()
            assert fetched.last_stable_offset <= fetched.high_watermark
            if not scan.n:
                assert fetched.next_offset == max(offset, end)
                return [], -1
            assert fetched.length <= max_bytes or scan.n == 1
            assert scan.header(0).last_offset >= offset
            assert offset < scan.last_offset + 1 <= fetched.next_offset <= end
            self.check_full(fetched, max_bytes)
            return self.decode(data, scan, fetched, offset), fetched.next_offset

    def check_full(self, fetched: Fetched, max_bytes: int) -> None:
        """The next batch is in another segment, not visible yet, or did not fit."""
        with self.topic.fetch(0, fetched.next_offset, 0, self.isolation) as following:
            if fetched.file is not None and following.file is not None:
                same = fetched.file.path == following.file.path
                if same and following.position == fetched.position + fetched.length:
                    assert fetched.length + following.length > max_bytes

    def decode(self, data: bytes, scan: batches.Scan, fetched: Fetched, offset: int) -> list[Record]:
        """As KafkaConsumer: a producer's batches are left out between its abort's first offset and marker."""
        waiting = sorted(fetched.aborted, key=lambda txn: txn.first_offset)
        aborting: set[int] = set()
        skip = set()
        for row, header in enumerate(scan):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            if header.is_control:
                if batches.decode_control(data, header)[0] == "abort":
                    aborting.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in aborting:
                skip.add(row)
        if self.isolation == "read_uncommitted":
            assert not fetched.aborted
        return batches.decode_records(
            data, scan, topic=self.topic.name, partition=0, bounds=batches.Bounds(offset), skip=skip
        )


class Workload:
    """Batches of many sizes, transactions, rolls."""

    def __init__(self, topic: Topic, rng: random.Random) -> None:
        self.topic = topic
        self.rng = rng
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        rng, topic = self.rng, self.topic
        what = rng.random()
        if what < 0.1:
            topic.roll()
        elif what < 0.5:
            count = rng.choice([1, 1, 3, 20])
            size = rng.choice([0, 10, 400, 3000])
            topic.append_many(
                [
                    Record(rng.randbytes(size), b"k%d" % key, timestamp=NOW + rng.randrange(10**6))
                    for key in rng.choices(range(6), k=count)
                ]
            )
        elif what < 0.85 or not self.open:
            producer = rng.randrange(3)
            first = self.sequences.get(producer, 0)
            values = [rng.randbytes(rng.choice([1, 300])) for _ in range(rng.choice([1, 4]))]
            topic.append_batches(
                0,
                make_batch(
                    values,
                    producer_id=producer,
                    epoch=0,
                    sequence=first,
                    transactional=True,
                    key=b"k%d" % rng.randrange(6),
                ),
            )
            self.sequences[producer] = first + len(values)
            self.open.add(producer)
        else:
            self.end(rng.choice(sorted(self.open)))

    def end(self, producer: int) -> None:
        self.topic.end_transaction(0, producer_id=producer, producer_epoch=0, commit=self.rng.random() < 0.5)
        self.open.discard(producer)


def check(topic: Topic, rng: random.Random) -> None:
    for isolation in ISOLATIONS:
        wanted = list(topic.read(0, isolation=isolation))
        client = Client(topic, isolation, rng)
        start, end = topic.log_start_offset(), topic.high_watermark(0)
        assert client.read(start) == wanted
        for _ in range(10):
            offset = rng.randint(start, end)
            records, following = client.once(offset)
            stop = following if following >= 0 else end
            assert records == [record for record in wanted if offset <= record.offset < stop]
        for outside in (start - 1, topic.log_end_offset() + 1):
            with pytest.raises(errors.OffsetOutOfRangeError) as caught:
                topic.fetch(0, outside, 100, isolation)
            assert (caught.value.offset, caught.value.first) == (outside, start)


FILESYSTEMS: list[Callable[[], FileSystem]] = [RealFileSystem, MemoryFileSystem]


@pytest.mark.parametrize("make_fs", FILESYSTEMS)
@pytest.mark.parametrize("seed", range(6))
def test_a_client_that_fetches_gets_what_read_returns(
    seed: int, make_fs: Callable[[], FileSystem], tmp_path: Path
) -> None:
    rng, fs = random.Random(seed), make_fs()
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        codec = rng.choice(["producer", "lz4"])
        topic = store.create_topic("t", config={**COMPACTED, "compression.type": codec})
        work = Workload(topic, rng)
        with stratalog.open(tmp_path / "data", fs=fs, read_only=True) as beside:
            for _ in range(3):
                work.run(25)
                check(topic, rng)
                check(beside.topic("t"), rng)
            topic.roll()
            store.compact("t", force=True)
            check(topic, rng)
            check(beside.topic("t"), rng)
            middle = rng.randint(topic.log_start_offset(), topic.high_watermark())
            topic.delete_records(0, middle)
            work.run(10)
            check(topic, rng)
        assert store.partitions.context.handles.stats().pinned <= 1, "the active segment's own"


@pytest.mark.parametrize("seed", range(3))
def test_archived_segments_answer_with_bytes(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    objects = DirectoryObjects(RealFileSystem(), str(tmp_path / "cloud"))
    with stratalog.open(tmp_path / "data", objects=objects, background=False) as store:
        config = {"remote.storage.enable": True, "index.interval.bytes": 300, "file.delete.delay.ms": 0}
        topic = store.create_topic("t", config={**config, "local.retention.ms": 1})
        work = Workload(topic, rng)
        work.run(60)
        for producer in sorted(work.open):
            work.end(producer)
        topic.roll()
        store.archive()
        store.archive()
        work.run(10)
        states = [str(segment.state) for segment in topic.segments(0)]
        assert states[0] == "archived"
        check(topic, rng)
        with topic.fetch(0, 0, 1 << 20) as fetched:
            assert fetched.file is None
            assert fetched.data


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open([tmp_path / "one", tmp_path / "two"], background=False, janitor=False) as opened:
        yield opened


def test_the_first_batch_comes_however_large_it_is(store: Store) -> None:
    topic = store.create_topic("t")
    topic.append_many([Record(b"x" * 1000)] * 5)
    topic.append(b"y")
    with topic.fetch(0, 3, 10) as fetched:
        assert (fetched.position, fetched.next_offset) == (0, 5), "the whole batch that holds offset 3"
        assert batches.scan(sent(fetched)).n == 1
    with topic.fetch(0, 3, 10, minimum_one=False) as fetched:
        assert (fetched.length, fetched.next_offset, fetched.read()) == (0, 3, b"")
    assert topic.fetch(0, 6, 10).length == 0, "the end"


def test_what_is_not_synced_yet_is_not_fetched(store: Store) -> None:
    topic = store.create_topic("t", config={"flush.messages": 1})
    topic.append_batches(0, make_batch([b"a"]))
    topic.append_batches(0, make_batch([b"b"]), wait=False)
    for offset in (1, 2):
        with topic.fetch(0, offset, 1000) as fetched:
            assert (fetched.length, fetched.high_watermark, fetched.next_offset) == (0, 1, offset)
    with pytest.raises(errors.OffsetOutOfRangeError):
        topic.fetch(0, 3, 1000)


def test_an_abort_that_began_before_the_fetch_is_named(store: Store) -> None:
    topic = store.create_topic("t")
    for sequence in range(2):
        batch = make_batch([b"a"], producer_id=7, epoch=0, sequence=sequence, transactional=True)
        topic.append_batches(0, batch)
        topic.append(b"between")
    assert topic.fetch(0, 0, 1000, "read_committed").length == 0, "nothing is stable yet"
    topic.roll()
    topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=False)
    with topic.fetch(0, 2, 1000, "read_committed") as fetched:
        assert fetched.next_offset == 4
        assert [txn[:3] for txn in fetched.aborted] == [(7, 0, 4)]


def replaced(store: Store, topic: Topic, tmp_path: Path) -> None:
    store.compact("t", force=True)


def deleted(store: Store, topic: Topic, tmp_path: Path) -> None:
    topic.delete_records(0, -1)


def moved(store: Store, topic: Topic, tmp_path: Path) -> None:
    here = Path(topic.segments(0)[0].path).parent.parent
    store.move_partition("t", 0, str(tmp_path / ("two" if here.name == "one" else "one")))


def topic_gone(store: Store, topic: Topic, tmp_path: Path) -> None:
    store.delete_topic("t")


def store_closed(store: Store, topic: Topic, tmp_path: Path) -> None:
    store.close()


@pytest.mark.parametrize("act", [replaced, deleted, moved, topic_gone, store_closed])
@pytest.mark.parametrize("offset", [0, 30])
def test_a_file_stays_readable_until_it_is_released(
    store: Store, tmp_path: Path, act: Callable[[Store, Topic, Path], None], offset: int
) -> None:
    topic = store.create_topic("t", config=COMPACTED)
    for _ in range(3):
        topic.append_many([Record(b"v" * 50, b"k") for _ in range(10)])
        topic.roll()
    topic.append_many([Record(b"active", b"k")])
    fetched = topic.fetch(0, offset, 1 << 20)
    assert fetched.file is not None
    wanted = sent(fetched)
    assert batches.scan(wanted).n == 1
    act(store, topic, tmp_path)
    if act is not store_closed:
        store.tick()
    assert sent(fetched) == fetched.read() == wanted
    handles = store.partitions.context.handles
    pinned = handles.stats().pinned
    fetched.release()
    fetched.release()
    still_written = offset == 30 and act in (replaced, deleted)
    assert handles.stats().pinned == pinned - (not still_written)
    if act in (replaced, deleted, moved):
        assert topic.append(b"on", b"k").offset == 31


def test_a_segment_that_is_replaced_while_it_is_opened_is_looked_up_again(tmp_path: Path) -> None:
    fs = PausingFileSystem(RealFileSystem())
    with stratalog.open(tmp_path / "data", fs=fs, background=False) as store:
        topic = store.create_topic("t", config=COMPACTED)
        for _ in range(2):
            topic.append_many([Record(b"v" * 50, b"k%d" % (at % 2)) for at in range(10)])
            topic.append_many([Record(b"w" * 90, b"k%d" % (at % 2)) for at in range(10)])
            topic.roll()
        context = store.partitions.context
        for segment in topic.segments(0):
            context.handles.forget(segment.path)
        with fs.pause_at("open", f"*/t-0/{0:020d}.log") as pause:
            running = Running(topic.fetch, 0, 0, 1 << 20)
            pause.wait_until_reached()
            store.compact("t", force=True)
        with running.result() as fetched:
            data = sent(fetched)
            scan = batches.scan(data)
            assert scan.end == len(data)
            found = batches.decode_records(data, scan, topic="t", partition=0)
            assert found == list(topic.read(0, end=fetched.next_offset))


def test_damage_that_headers_show_is_named(store: Store) -> None:
    topic = store.create_topic("t")
    for _ in range(3):
        topic.append_many([Record(b"v" * 50)] * 10)
        topic.roll()
    first, second = (Path(segment.path) for segment in topic.segments(0)[:2])
    with first.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(errors.CorruptionError, match="it was cut"):
        topic.fetch(0, 0, 1000)
    with second.open("r+b") as file:
        file.write(b"\xff" * 61)
    with pytest.raises(errors.CorruptionError):
        topic.fetch(0, 15, 1000)
    with topic.fetch(0, 20, 1000) as fetched:
        assert fetched.next_offset == 30
    assert store.partitions.context.handles.stats().pinned <= 1


def test_a_missing_segment_is_not_passed_over(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("t")
        for _ in range(3):
            topic.append_many([Record(b"v")] * 10)
            topic.roll()
        lost = topic.segments(0)[1].path
    for each in Path(lost).parent.glob(Path(lost).stem + ".*"):
        each.unlink()
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        topic = store.topic("t")
        assert topic.fetch(0, 5, 1000).next_offset == 10
        for offset in (10, 15):
            with pytest.raises(errors.CorruptionError, match="offsets 10-19 are missing"):
                topic.fetch(0, offset, 1000)
        assert topic.fetch(0, 20, 1000).next_offset == 30
