"""What verify finds: a table of damages, and what must be said of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.format import batch as batches
from stratalog.format import seal as seals
from stratalog.fs import HandleCache, MemoryFileSystem
from stratalog.log.check.damage import Damage
from stratalog.log.check.verify import VerifyReport, verify_partition
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.read.follower import PartitionFollower
from tests.store.test_door import make_batch

DIRECTORY = "/data/t-0"
FIRST, SECOND, ACTIVE = 0, 8, 16
RECORDS_A_BATCH, BATCHES = 2, 4


def log(base: int) -> str:
    return f"{DIRECTORY}/{base:020d}.log"


@pytest.fixture
def fs() -> MemoryFileSystem:
    """Two sealed segments and an active one, each with four batches of two records."""
    fs = MemoryFileSystem()
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.create_topic(
            "t", partitions=1, config={"key.index.enable": True, "index.interval.bytes": 0}
        )
        for base in (FIRST, SECOND, ACTIVE):
            if base:
                topic.roll()
            for offset in range(base, base + BATCHES * RECORDS_A_BATCH, RECORDS_A_BATCH):
                topic.append_many(
                    [Record(b"value", b"%d" % (offset + i), (), 1000 + offset) for i in range(2)]
                )
    return fs


def follow(fs: MemoryFileSystem) -> PartitionFollower:
    context = LogContext(fs, HandleCache(fs, 50), warn=lambda message: None)
    return PartitionFollower(PartitionLocation(context, DIRECTORY, "t", 0))


def verify(fs: MemoryFileSystem) -> VerifyReport:
    return verify_partition(follow(fs))


def headers(fs: MemoryFileSystem, base: int) -> list[batches.BatchHeader]:
    return list(batches.scan(fs.read_file(log(base))))


def overwrite(fs: MemoryFileSystem, path: str, position: int, data: bytes) -> None:
    with fs.open(path, "w") as file:
        file.pwrite(data, position)


def the_one(report: VerifyReport) -> Damage:
    assert len(report.damages) == 1, report.damages
    return report.damages[0]


def test_a_sound_partition(fs: MemoryFileSystem) -> None:
    report = verify(fs)
    assert report.ok
    assert (report.segments, report.records) == (3, 24)
    assert report.bytes == sum(len(fs.read_file(log(base))) for base in (FIRST, SECOND, ACTIVE))


def test_progress_covers_every_byte(fs: MemoryFileSystem) -> None:
    overwrite(fs, log(SECOND), 30, b"\xff\xff")
    seen: list[int] = []
    report = verify_partition(follow(fs), progress=seen.append)
    assert sum(seen) == report.bytes


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 1), (3, 3), (1, 2), (2, 3), (0, 3)], ids=str)
def test_overwritten_batches_are_named_with_their_offsets(
    fs: MemoryFileSystem, first: int, last: int
) -> None:
    found = headers(fs, SECOND)
    start, end = found[first].position, found[last].position + found[last].size
    overwrite(fs, log(SECOND), start, b"\xa5" * (end - start))
    damage = the_one(verify(fs))
    assert (damage.path, damage.start, damage.end) == (log(SECOND), start, end)
    assert (damage.first_offset, damage.last_offset) == (SECOND + 2 * first, SECOND + 2 * last + 1)
    assert not damage.derived


def test_two_damages_in_one_segment(fs: MemoryFileSystem) -> None:
    found = headers(fs, SECOND)
    for row in (0, 2):
        overwrite(fs, log(SECOND), found[row].position + 50, b"\xa5\xa5\xa5")
    report = verify(fs)
    assert [(damage.first_offset, damage.last_offset) for damage in report.damages] == [(8, 9), (12, 13)]
    assert report.records == 20


def test_a_lost_page_of_zeros(fs: MemoryFileSystem) -> None:
    found = headers(fs, SECOND)
    overwrite(fs, log(SECOND), found[1].position, bytes(found[1].size))
    damage = the_one(verify(fs))
    assert (damage.first_offset, damage.last_offset) == (10, 11)


def test_a_batch_inside_a_value_is_not_taken_for_the_log() -> None:
    """Behind damage the search for a header must not land in a record that holds one."""
    fs = MemoryFileSystem()
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.create_topic("t", partitions=1)
        inner, _ = batches.encode_records(
            [Record(b"inner", None, (), 1)],
            0,
            options=batches.BatchOptions(
                base_offset=1, leader_epoch=0, now_ms=0, timestamp_type=0, codec=0, level=None, max_bytes=1000
            ),
        )
        topic.append(b"zero")
        topic.append(bytes(inner.data) + b" and more")
        topic.append(b"two")
        topic.roll()
    found = headers(fs, 0)
    overwrite(fs, log(0), found[1].position + 17, b"\0\0\0\0")
    damage = the_one(verify(fs))
    assert (damage.start, damage.end) == (found[1].position, found[2].position)
    assert (damage.first_offset, damage.last_offset) == (1, 1)


def test_a_log_cut_short(fs: MemoryFileSystem) -> None:
    found = headers(fs, FIRST)
    with fs.open(log(FIRST), "w") as file:
        file.truncate(found[2].position + 5)
    report = verify(fs)
    lost = [(each.first_offset, each.last_offset) for each in report.damages if each.offsets]
    assert lost == [(4, 7)]
    assert {each.path for each in report.damages} == {log(FIRST), log(FIRST)[:-3] + "index"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("base", [FIRST, ACTIVE])
def test_a_log_cut_at_any_byte_is_named(fs: MemoryFileSystem, base: int) -> None:
    whole = fs.read_file(log(base))
    for size in reversed(range(len(whole))):
        with fs.open(log(base), "w") as file:
            file.truncate(size)
        report = verify(fs)
        assert any(each.path == log(base) and not each.derived for each in report.damages), size
        assert max(each.last_offset for each in report.damages) == base + 7


def test_a_log_cut_at_a_batch(fs: MemoryFileSystem) -> None:
    found = headers(fs, FIRST)
    size = found[-1].position + found[-1].size
    with fs.open(log(FIRST), "w") as file:
        file.truncate(found[2].position)
    damage = verify(fs).damages[0]
    assert (damage.start, damage.end, damage.first_offset, damage.last_offset) == (
        found[2].position,
        size,
        4,
        7,
    )
    assert not damage.derived


def test_a_missing_segment_is_a_gap(fs: MemoryFileSystem) -> None:
    for name in fs.list_dir(DIRECTORY):
        if name.startswith(f"{SECOND:020d}") and not name.endswith("snapshot"):
            fs.remove(f"{DIRECTORY}/{name}")
    damage = the_one(verify(fs))
    assert (damage.path, damage.first_offset, damage.last_offset) == (log(SECOND), 8, 15)


def test_a_segment_without_a_seal_is_not_damaged(fs: MemoryFileSystem) -> None:
    fs.remove(log(FIRST)[:-3] + "seal")
    assert verify(fs).ok


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "short": lambda data: data[:-1],
    "reversed": lambda data: data[::-1],
    "long": lambda data: data + b"\x01",
}


@pytest.mark.parametrize("kind", ["index", "timeindex", "seal", "keyindex"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_wrong_sidecar_costs_nothing(fs: MemoryFileSystem, kind: str, harm: str) -> None:
    path = log(SECOND)[:-3] + kind
    fs.write_file(path, HARMS[harm](fs.read_file(path)), sync=False)
    damage = the_one(verify(fs))
    assert (damage.path, damage.derived, damage.first_offset) == (path, True, -1)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_missing_index(fs: MemoryFileSystem, kind: str) -> None:
    fs.remove(log(SECOND)[:-3] + kind)
    damage = the_one(verify(fs))
    assert damage.derived
    assert "missing" in damage.reason


def test_a_sound_seal_that_tells_lies(fs: MemoryFileSystem) -> None:
    path = log(SECOND)[:-3] + "seal"
    seal = seals.parse(fs.read_file(path))
    block = seal.blocks[0]._replace(min_timestamp=1)
    fs.write_file(path, seals.pack(replace(seal, blocks=(block,))), sync=False)
    damage = the_one(verify(fs))
    assert (damage.path, damage.derived) == (path, True)


def test_a_changed_offset_in_a_segment_with_gaps(fs: MemoryFileSystem) -> None:
    """Where offsets need not follow one another only the seal's CRC knows; all of the block is in doubt."""
    path = log(SECOND)[:-3] + "seal"
    seal = seals.parse(fs.read_file(path))
    fs.write_file(path, seals.pack(replace(seal, contiguous=False, cleaned=True)), sync=False)
    assert verify(fs).ok
    found = headers(fs, SECOND)
    overwrite(fs, log(SECOND), found[1].position, (11).to_bytes(8, "big"))
    damage = verify(fs).damages[0]
    assert (damage.start, damage.end) == (0, seal.size_bytes)
    assert (damage.first_offset, damage.last_offset) == (8, 15)


def test_a_damaged_snapshot(fs: MemoryFileSystem) -> None:
    path = f"{DIRECTORY}/{SECOND:020d}.snapshot"
    fs.write_file(path, b"\0\1nonsense", sync=False)
    damage = the_one(verify(fs))
    assert (damage.path, damage.derived) == (path, True)


def test_what_lies_past_the_readable_end_is_judged_after_a_clean_stop_only(fs: MemoryFileSystem) -> None:
    size = len(fs.read_file(log(ACTIVE)))
    overwrite(fs, log(ACTIVE), size, b"half a batch")
    [damage] = verify(fs).damages
    assert (damage.path, damage.start, damage.end) == (log(ACTIVE), size, size + 12)
    fs.remove("/data/.kafka_cleanshutdown")
    assert verify(fs).ok, "a torn tail, or a writer at work"


def test_damage_below_the_synced_end_of_the_last_segment(fs: MemoryFileSystem) -> None:
    found = headers(fs, ACTIVE)
    overwrite(fs, log(ACTIVE), found[1].position + 55, b"\xa5\xa5")
    damage = verify(fs).damages[0]
    assert (damage.path, damage.first_offset, damage.last_offset) == (log(ACTIVE), 18, 19)


def test_through_the_writer(fs: MemoryFileSystem) -> None:
    found = headers(fs, SECOND)
    overwrite(fs, log(SECOND), found[1].position + 55, b"\xa5\xa5")
    with stratalog.open("/data", fs=fs, background=False) as store:
        store.topic("t").append(b"more")
        report = stratalog.verify(store)
    damage = the_one(report)
    assert (damage.first_offset, damage.last_offset) == (10, 11)
    assert report.records == 23


class Vanishing(PartitionFollower):
    """A view whose second segment is deleted by somebody else while the first one is being checked."""

    def __init__(self, fs: MemoryFileSystem) -> None:
        self.fs = fs
        super().__init__(PartitionLocation(LogContext(fs, HandleCache(fs, 50)), DIRECTORY, "t", 0))

    def delete(self, _: int) -> None:
        for name in self.fs.list_dir(DIRECTORY):
            if name[:20] in (f"{FIRST:020d}", f"{SECOND:020d}"):
                self.fs.remove(f"{DIRECTORY}/{name}")


def test_segments_that_vanish_meanwhile_are_no_damage(fs: MemoryFileSystem) -> None:
    view = Vanishing(fs)
    report = verify_partition(view, progress=view.delete)
    assert report.ok, report.damages
    assert report.segments in (1, 2)


def test_reports_add_up() -> None:
    damage = Damage("x", 0, 1, 2, 3, "why")
    both = VerifyReport(1, 2, 3).merge(VerifyReport(10, 20, 30, (damage,)))
    assert both == VerifyReport(11, 22, 33, (damage,))
    assert not both.ok
    assert damage.offsets == 2


def test_the_golden_logs_are_sound() -> None:
    """There is nothing wrong with what a real broker wrote, compacted, transactional, in every codec."""
    for report in golden_reports():
        assert report.ok, report.damages
        assert report.segments


@pytest.mark.parametrize("seed", range(5))
def test_a_topic_is_sound_after_every_compaction_of_its_transactions(seed: int) -> None:
    rng, fs = random.Random(seed), MemoryFileSystem()
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "cleaner.min.segment.age.ms": 0,
        "key.index.enable": True,
    }
    sequences = dict.fromkeys(range(3), 0)
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.create_topic("t", config=settings)
        for _ in range(4):
            for _ in range(5):
                producer, values = rng.randrange(3), [b"v"] * rng.randint(1, 3)
                at, key = sequences[producer], b"k%d" % rng.randrange(3)
                options = {"producer_id": producer, "epoch": 0, "sequence": at}
                topic.append_batches(0, make_batch(values, transactional=True, key=key, **options))
                sequences[producer] += len(values)
                if rng.random() < 0.7:
                    commit = rng.random() < 0.5
                    topic.end_transaction(0, producer_id=producer, producer_epoch=0, commit=commit)
            topic.roll()
            store.compact("t", force=True)
            assert stratalog.verify(store, "t").damages == ()
        assert len(list(topic.read())) < sum(sequences.values()), "compacted"
    with stratalog.open("/data", fs=fs, read_only=True) as store:
        assert stratalog.verify(store).damages == ()


GOLDEN = Path(__file__).parents[1] / "golden"


def golden_reports() -> Iterator[VerifyReport]:
    for root in sorted(GOLDEN.rglob("meta.properties")):
        with stratalog.open(root.parent, read_only=True) as store:
            for topic in store.topics():
                yield stratalog.verify(store, topic)
