"""Reading archived segments: ranges, the cache, read-ahead, and objects that are not what they were."""

from __future__ import annotations

import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stratalog import errors
from stratalog.archive import BlockCache, Objects, SegmentUpload
from stratalog.archive.cache import AHEAD_BLOCKS, BLOCK_BYTES, RUN_BLOCKS, Blocks
from stratalog.archive.objects import DirectoryObjects
from stratalog.archive.source import StoredSegment
from stratalog.fs import FailingFileSystem, Fault, HandleCache, MemoryFileSystem, RealFileSystem
from stratalog.kernel import hash64
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.lookup import key_offsets
from stratalog.log.segment.segment import Segment
from stratalog.model import SegmentState
from tests.archive.faulty import FaultyObjects, Killed
from tests.archive.samples import TOPIC, make_segments, open_for, partition_of

BIG_PART = 3 << 20


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SegmentUpload:
    """One segment of a few megabytes."""
    return make_segments(tmp_path_factory.mktemp("big"), segments=1, records=9_000, value_bytes=1000)[0]


@pytest.fixture
def cloud() -> FaultyObjects:
    return FaultyObjects(DirectoryObjects(MemoryFileSystem(), "/cloud"))


def segment_of(source: StoredSegment) -> ArchivedSegment:
    fs = RealFileSystem()
    return ArchivedSegment(PartitionLocation(LogContext(fs, HandleCache(fs)), "/nowhere", TOPIC, 0), source)


def test_any_range_of_any_file(objects: Objects, sample: SegmentUpload) -> None:
    data = Path(sample.files["log"]).read_bytes()
    with open_for(objects, threads=4, part_bytes=BIG_PART) as archive:
        entry = partition_of(archive).upload(sample)
        assert len(entry.parts()) == 3
        source = partition_of(archive).open_segment(entry)
        rng = random.Random(1)
        with source.open() as file:
            assert (file.size(), file.fileno()) == (len(data), -1)
            for _ in range(40):
                start = rng.randrange(len(data) + 10)
                size = rng.choice([1, 100, 70_000, 2_000_000])
                assert file.pread(size, start) == data[start : start + size]
                buffer = bytearray(size)
                count = file.pread_into(buffer, start)
                assert buffer[:count] == data[start : start + size]
            at = 0
            while at < len(data):  # sequentially, with what is fetched ahead
                got = file.pread(300_000, at)
                assert got == data[at : at + 300_000]
                at += len(got)
            with pytest.raises(errors.StorageError):
                file.pwrite(b"x", 0)
            with pytest.raises(errors.StorageError):
                file.truncate(0)
        for kind, path in sample.files.items():
            if kind != "log":
                assert source.read(kind) == Path(path).read_bytes()
                assert source.has(kind)
        assert source.read("txnindex") is None
        with pytest.raises(FileNotFoundError):
            source.open("txnindex")


def test_it_answers_as_the_local_segment_does(cloud: FaultyObjects, sample: SegmentUpload) -> None:
    directory = str(Path(sample.files["log"]).parent)
    with open_for(cloud, threads=2, part_bytes=BIG_PART) as archive:
        archived = segment_of(partition_of(archive).open_segment(partition_of(archive).upload(sample)))
        local = Segment(
            archived.location._replace(directory=directory),
            0,
            size=sample.size_bytes,
            next_offset=sample.next_offset,
        )
        count = len(cloud.requests)
        told, here = archived.info(), local.info()
        assert told.state is SegmentState.ARCHIVED
        assert (told.records, told.min_timestamp, told.max_timestamp, told.size_bytes, told.next_offset) == (
            here.records,
            here.min_timestamp,
            here.max_timestamp,
            here.size_bytes,
            here.next_offset,
        )
        assert archived.max_timestamp() == local.max_timestamp()
        assert archived.aborted() == ()
        assert len(cloud.requests) == count, "the manifest told all of that"
        assert archived.seal == local.seal
        for offset in (0, 1, 4_000, 8_999):
            assert archived.start_for(offset) == local.start_for(offset)
        for timestamp in (0, here.min_timestamp + 5_000_000, here.max_timestamp + 1):
            assert archived.first_offset_since(timestamp) == local.first_offset_since(timestamp)
        for key in (b"key 3", b"nobody"):
            assert list(key_offsets(archived, hash64(key))) == list(key_offsets(local, hash64(key)))
        assert archived.path().startswith("file:///cloud/orders-")
        assert archived.path("seal").endswith("/seal")
        assert archived.modified_ms == sample.modified_ms


def test_small_reads_fetch_little_and_nothing_twice(cloud: FaultyObjects, sample: SegmentUpload) -> None:
    with open_for(cloud, threads=2, part_bytes=16 << 20) as archive:
        source = partition_of(archive).open_segment(partition_of(archive).upload(sample))
        cloud.requests.clear()
        with source.open() as file:
            file.pread(100, 5 * BLOCK_BYTES + 10)
            file.pread(100, 5 * BLOCK_BYTES + 5000)
        with source.open() as file:
            file.pread(100, 5 * BLOCK_BYTES + 400_000)
        assert [request.split()[0] for request in cloud.requests] == ["get_range"]
        assert archive.cache_stats().used_bytes == BLOCK_BYTES


def test_sequential_reads_are_led_and_share_fetches(cloud: FaultyObjects, sample: SegmentUpload) -> None:
    data = Path(sample.files["log"]).read_bytes()
    with open_for(cloud, threads=4, part_bytes=16 << 20, cache_bytes=64 << 20) as archive:
        source = partition_of(archive).open_segment(partition_of(archive).upload(sample))
        cloud.requests.clear()

        def read_all() -> bytes:
            with source.open() as file:
                return b"".join(file.pread(64 << 10, at) for at in range(0, len(data), 64 << 10))

        with ThreadPoolExecutor(4) as pool:
            assert all(found == data for found in pool.map(lambda _: read_all(), range(4)))
        blocks = -(-len(data) // BLOCK_BYTES)
        fetches = [request for request in cloud.requests if request.startswith("get_range")]
        assert len(fetches) < blocks, "several blocks with one request"
        assert archive.cache_stats().blocks == blocks


def test_a_fetch_that_fails_ahead_is_not_the_readers_business(
    cloud: FaultyObjects, sample: SegmentUpload, quiet: None
) -> None:
    with open_for(cloud, threads=2, part_bytes=16 << 20) as archive:
        source = partition_of(archive).open_segment(partition_of(archive).upload(sample))
        main = threading.current_thread()
        cloud.fail = lambda number, request: "before" if threading.current_thread() is not main else None
        data = Path(sample.files["log"]).read_bytes()
        with source.open() as file:
            found = b"".join(file.pread(1 << 19, at) for at in range(0, len(data), 1 << 19))
        assert found == data
        cloud.fail = lambda number, request: "before"
        source.forget()
        with source.open() as file, pytest.raises(errors.ArchiveError, match="log.00000: did not go through"):
            file.pread(1, 0)


def test_damaged_and_missing_objects_are_named(cloud: FaultyObjects, sample: SegmentUpload) -> None:
    with open_for(cloud, part_bytes=BIG_PART) as archive:
        partition = partition_of(archive)
        entry = partition.upload(sample)
        source = partition.open_segment(entry)
        folder = f"{partition.prefix}/segments/{entry.name}"
        good = cloud.get(f"{folder}/seal").data
        cloud.put(f"{folder}/seal", good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(errors.CorruptionError, match=f"{cloud.url}/{folder}/seal: .* archived were"):
            source.read("seal")
        cloud.delete([f"{folder}/index", f"{folder}/log.00001"])
        with pytest.raises(
            errors.ArchiveError, match="the manifest lists it, but the archive does not have it"
        ) as caught:
            source.read("index")
        assert caught.value.url == f"{cloud.url}/{folder}/index"
        with source.open() as file, pytest.raises(errors.ArchiveError) as caught:
            file.pread(10, BIG_PART + 5)
        assert caught.value.url == f"{cloud.url}/{folder}/log.00001"
        partition.remove([entry])
        with pytest.raises(FileNotFoundError):
            source.read("timeindex")
        with source.open() as file, pytest.raises(FileNotFoundError):
            file.pread(10, 0)


def test_a_flipped_bit_in_the_log_is_found_by_its_reader(cloud: FaultyObjects, sample: SegmentUpload) -> None:
    from stratalog.log.read.chunks import read_chunks
    from stratalog.log.segment.segment import Start

    with open_for(cloud, part_bytes=BIG_PART) as archive:
        partition = partition_of(archive)
        entry = partition.upload(sample)
        key = f"{partition.prefix}/segments/{entry.name}/log.00001"
        data = bytearray(cloud.get(key).data)
        data[1000] ^= 4
        cloud.put(key, bytes(data))
        segment = segment_of(partition.open_segment(entry))
        with pytest.raises(errors.CorruptionError) as caught:
            for _ in read_chunks(segment, Start(0, None)):
                pass
        assert caught.value.path == segment.path()


@pytest.mark.parametrize("where", ["memory", "files"])
def test_the_cache_is_bounded(where: str) -> None:
    fs = MemoryFileSystem()
    cache = BlockCache(1000, fs, "/cache" if where == "files" else "")
    for number in range(50):
        cache.put(("a", number), bytes([number]) * 100)
    stats = cache.stats()
    assert (stats.used_bytes, stats.blocks, stats.evictions) == (1000, 10, 40)
    assert cache.get(("a", 39)) is None
    assert cache.get(("a", 40)) == bytes([40]) * 100
    cache.put(("b", 0), b"x" * 100)
    assert cache.get(("a", 41)) is None, "the one that was not used for longest went"
    assert cache.get(("a", 40)) is not None
    cache.put(("c", 0), b"x" * 1001)
    assert cache.get(("c", 0)) is None, "too large at all"
    cache.put(("b", 0), b"x" * 100)
    cache.forget("a")
    assert cache.stats().blocks == 1
    cache.close()
    cache.put(("d", 0), b"late")
    assert cache.get(("d", 0)) is None
    if where == "files":
        assert fs.list_dir("/cache") == []


def test_cached_files_that_rot_or_vanish_cost_a_fetch() -> None:
    fs = MemoryFileSystem()
    cache = BlockCache(1000, fs, "/cache")
    cache.put(("a", 0), b"zero")
    cache.put(("a", 1), b"one")
    (own,) = fs.list_dir("/cache")
    first, second = (f"/cache/{own}/{name}" for name in fs.list_dir(f"/cache/{own}") if name.isdigit())
    fs.write_file(first, b"zer0", sync=False)
    fs.remove(second)
    assert cache.get(("a", 0)) is None
    assert cache.get(("a", 1)) is None
    assert cache.stats().used_bytes == 0


def test_a_full_disk_only_means_that_nothing_is_cached() -> None:
    full = Fault("pwrite", "/cache/*/[0-9]*", errno.ENOSPC, after=2, partial_bytes=50)
    fs = FailingFileSystem(MemoryFileSystem(), [full])
    cache = BlockCache(10_000, fs, "/cache")
    for number in range(9):
        cache.put(("a", number), b"x" * 200)
    assert (cache.stats().used_bytes, cache.stats().blocks) == (400, 2)
    (own,) = fs.list_dir("/cache")
    assert len(fs.list_dir(f"/cache/{own}")) == 3, "two blocks and the lock: no half-written one"


def test_what_dead_processes_cached_is_removed() -> None:
    fs = MemoryFileSystem()
    alive = BlockCache(1000, fs, "/cache")
    alive.put(("a", 0), b"mine")
    fs.make_dir("/cache/blocks-1-dead")
    fs.write_file("/cache/blocks-1-dead/1", b"left over", sync=False)
    fs.write_file("/cache/not-ours", b"", sync=False)
    other = BlockCache(1000, fs, "/cache")
    assert "blocks-1-dead" not in fs.list_dir("/cache")
    assert "not-ours" in fs.list_dir("/cache")
    assert alive.get(("a", 0)) == b"mine"
    alive.close()
    other.close()


def test_one_fetch_serves_everybody_who_waits() -> None:
    inner = DirectoryObjects(MemoryFileSystem(), "/cloud")
    inner.put("k", bytes(range(256)) * 20_000)
    objects = FaultyObjects(inner)
    gate = threading.Event()
    objects.before = lambda request: gate.wait(20)  # type: ignore[assignment,return-value]
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(8) as readers:
        blocks = Blocks(objects, BlockCache(64 << 20), pool)

        def read(_: int) -> bytes:
            buffer = bytearray(1000)
            blocks.read_into("k", 5_120_000, 500, memoryview(buffer))
            return bytes(buffer)

        waiting = [readers.submit(read, number) for number in range(8)]
        while not objects.requests:
            pass
        gate.set()
        assert {future.result() for future in waiting} == {inner.get("k").data[500:1500]}
        assert len(objects.requests) <= 2
        objects.kill_at = len(objects.requests)
        with pytest.raises(Killed):
            blocks.read_into("k", 5_120_000, 4 << 20, memoryview(bytearray(10)))
    assert RUN_BLOCKS <= AHEAD_BLOCKS
