"""`restore`: a new store as of a moment equals the records as of that moment, hundreds of times."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.fs import MemoryFileSystem, RealFileSystem
from stratalog.store.copies import RestoreReport, clones, restore
from stratalog.testing import ManualClock
from tests.store.copies.copies_life import CONFIG, LIVES, TOPIC, Life

MOMENTS = 5


def judge(life: Life, target: str, report: RestoreReport, cuts: dict[int, int]) -> None:
    """What is at ``target`` is exactly the past of ``life`` up to each cut, and can go on from there."""
    for mode in ("beside", "writer", "again"):
        with stratalog.open(
            target, CONFIG, fs=life.fs, clock=life.clock, background=False, read_only=mode == "beside"
        ) as store:
            topic = store.topic(TOPIC)
            for copy in report.partitions:
                partition, cut = copy.partition, cuts[copy.partition]
                assert topic.high_watermark(partition) == cut == copy.end_offset
                first = min(life.topic.log_start_offset(partition), cut)
                assert topic.log_start_offset(partition) == first == copy.log_start_offset
                assert list(topic.read(partition)) == life.expected(partition, cut)
                found = list(topic.read(partition, isolation="read_committed"))
                assert found == life.expected(partition, cut, "read_committed")
                stable = topic.high_watermark(partition, "read_committed")
                assert stable >= topic.log_start_offset(partition)
                if topic.log_start_offset(partition) < cut:  # an empty log is stable up to its end
                    assert bool(copy.open_transactions) == (stable < cut)
            assert not stratalog.verify(store).damages
            if mode == "writer":
                assert [each for each in store.recovery if each.cuts or each.damages] == []
                assert sum(each.scanned_bytes for each in store.recovery) == 0
    with stratalog.open(target, CONFIG, fs=life.fs, clock=life.clock, background=False) as store:
        topic = store.topic(TOPIC)
        for partition, cut in cuts.items():
            go_on(life, topic, partition, cut)


def go_on(life: Life, topic: stratalog.Topic, partition: int, cut: int) -> None:
    """Producers are known up to the cut: the next sequence is taken and the one after it is not."""
    for producer in life.producers:
        sent = [
            each for each in life.raw(partition) if each.header.producer_id == producer.id and not each.marker
        ]
        sent = [each for each in sent if each.header.base_offset < cut]
        if not sent:
            continue  # unknown, or known from before the log's start
        last = sent[-1].header
        following = last.base_sequence + min(cut - last.base_offset, last.count)
        record = [Record(b"next", b"k", timestamp=life.clock.now_ms())]
        with pytest.raises(errors.OutOfOrderSequenceError):
            life.append_from(topic, partition, producer, record, transactional=False, sequence=following + 1)
        if producer.id not in dict(_open(life, partition, cut)):
            life.append_from(topic, partition, producer, record, transactional=False, sequence=following)
    assert topic.append(b"on", b"k", partition=partition).offset >= cut


def _open(life: Life, partition: int, cut: int) -> list[tuple[int, int]]:
    found: dict[int, int] = {}
    for each in life.raw(partition):
        if each.header.base_offset >= cut:
            break
        if each.marker is not None:
            found.pop(each.header.producer_id, None)
        elif each.header.is_transactional:
            found.setdefault(each.header.producer_id, each.header.base_offset)
    return list(found.items())


@pytest.mark.parametrize("seed", range(LIVES))
def test_restores_equal_the_records_as_of_that_moment(seed: int) -> None:
    life = Life(seed)
    chance = life.chance
    for n in range(MOMENTS):
        target = f"/data/restored-{n}"
        if chance.random() < 0.5:
            now = life.clock.now_ms()
            moment = chance.choice(
                (now, chance.randint(1_700_000_000_000, now), now - chance.randrange(120_000))
            )
            cuts = {p: life.end_at(p, moment) for p in range(life.partitions)}
            report = restore(life.store, target, to_time=moment)
        else:
            cuts = {
                p: chance.randint(life.topic.log_start_offset(p), life.topic.high_watermark(p))
                for p in range(life.partitions)
            }
            offsets = {(TOPIC, p): cut for p, cut in cuts.items()}
            report = restore(life.root, target, to_offsets=offsets, fs=life.fs, clock=life.clock)
        judge(life, target, report, cuts)
    life.store.close()


@pytest.mark.parametrize("seed", range(3000, 3000 + LIVES // 4))
def test_from_local_and_archived_segments(seed: int) -> None:
    life = Life(seed, archived=True, steps=60)
    life.leave()
    now = life.clock.now_ms()
    for n in range(3):
        moment = life.chance.randint(now - 400_000, now)
        cuts = {p: life.end_at(p, moment) for p in range(life.partitions)}
        report = restore(life.store, f"/data/restored-{n}", to_time=moment)
        judge(life, f"/data/restored-{n}", report, cuts)
    life.store.close()


@pytest.mark.parametrize("seed", range(4000, 4000 + LIVES // 4))
def test_from_an_archive_alone(seed: int) -> None:
    """What was archived comes back with its settings; the active segments were never there."""
    life = Life(seed, archived=True, steps=60)
    life.leave()
    settings = life.topic.config
    ends = {
        p: max((each.next_offset for each in life.topic.segments(p) if each.state == "archived"), default=0)
        for p in range(life.partitions)
    }
    archive = f"{life.root}.archive"
    try:
        report = restore(None, "/data/rebuilt", archive=archive, fs=life.fs, clock=life.clock)
    except errors.NotFoundError:
        assert not any(ends.values())
        life.store.close()
        return
    for copy in report.partitions:
        assert copy.end_offset >= ends[copy.partition]
    cuts = {copy.partition: copy.end_offset for copy in report.partitions}
    with stratalog.open("/data/rebuilt", CONFIG, fs=life.fs, clock=life.clock, background=False) as store:
        found_settings = store.topic(TOPIC).config
        assert replace(found_settings, local_retention_ms=settings.local_retention_ms) == settings
        assert not stratalog.verify(store).damages
        for p, cut in cuts.items():
            assert list(store.topic(TOPIC).read(p)) == life.expected(p, cut)
            found = list(store.topic(TOPIC).read(p, isolation="read_committed"))
            assert found == life.expected(p, cut, "read_committed")
    half = {(TOPIC, p): (cut + life.topic.log_start_offset(p)) // 2 for p, cut in cuts.items() if cut}
    restore(None, "/data/half", archive=archive, to_offsets=half, fs=life.fs, clock=life.clock)
    with stratalog.open("/data/half", CONFIG, fs=life.fs, clock=life.clock, background=False) as store:
        for (_, p), cut in half.items():
            assert list(store.topic(TOPIC).read(p)) == life.expected(p, cut)
    with pytest.raises(errors.UnknownTopicError, match="there are: t"):
        restore(None, "/data/none", archive=archive, topics=["other"], fs=life.fs)
    life.store.close()


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_on_a_real_disk_whole_segments_are_linked(seed: int, tmp_path: Path) -> None:
    life = Life(seed, fs=RealFileSystem(), root=str(tmp_path / "log"))
    life.store.flush()
    cuts = {p: life.topic.high_watermark(p) for p in range(life.partitions)}
    offsets = {(TOPIC, p): cut for p, cut in cuts.items()}
    report = restore(life.store, str(tmp_path / "copy"), to_offsets=offsets)
    for copy in report.partitions:
        sealed = [each for each in life.topic.segments(copy.partition) if each.state != "active"]
        assert copy.linked_segments == len(sealed)
        for each in sealed:
            ours = Path(str(tmp_path / "copy")) / Path(each.path).parent.name / Path(each.path).name
            assert os.path.samefile(ours, each.path)
    judge(life, str(tmp_path / "copy"), report, cuts)
    life.store.close()


def make(fs: MemoryFileSystem, clock: ManualClock, times: list[int]) -> stratalog.Store:
    store = stratalog.open("/s", CONFIG, fs=fs, clock=clock, background=False)
    topic = store.create_topic(TOPIC, 1)
    for n, timestamp in enumerate(times):
        topic.append(b"v%d" % n, timestamp=timestamp)
    return store


def values(fs: MemoryFileSystem, target: str) -> list[bytes | None]:
    with stratalog.open(target, CONFIG, fs=fs, read_only=True, background=False) as store:
        return [record.value for record in store.topic(TOPIC).read()]


def test_late_records_behind_a_newer_one_are_left_out_and_told() -> None:
    clock = ManualClock(10_000_000)
    fs = MemoryFileSystem(clock=clock.now_ns)
    with make(fs, clock, [1000, 2000, 5000, 1500, 6000]) as store:
        report = restore(store, "/c", to_time=2000)
    assert values(fs, "/c") == [b"v0", b"v1"]
    (copy,) = report.partitions
    assert (copy.end_offset, copy.cut_timestamp, copy.late_from_offset) == (2, 5000, 3)
    assert "to_offsets" in copy.notes[0]


def test_a_record_stamped_in_the_future_was_there_when_its_segment_was() -> None:
    clock = ManualClock(1_000_000)
    fs = MemoryFileSystem(clock=clock.now_ns)
    store = make(fs, clock, [1_000_000, 3_000_000, 1_000_001])
    store.topic(TOPIC).roll()
    clock.advance(2_000_000)
    store.topic(TOPIC).append(b"later", timestamp=2_999_999)
    restore(store, "/c", to_time=1_500_000)
    assert values(fs, "/c") == [b"v0", b"v1", b"v2"]
    restore(store, "/d", to_time=999_999)
    assert values(fs, "/d") == []
    store.close()


def test_a_cut_through_what_compaction_left() -> None:
    """Segments and batches with holes: the copy ends where it was told, and goes on from there."""
    clock = ManualClock(1_700_000_000_000)
    fs = MemoryFileSystem(clock=clock.now_ns)
    store = stratalog.open("/s", CONFIG, fs=fs, clock=clock, background=False)
    config = {"cleanup.policy": "compact", "segment.bytes": 1500, "cleaner.min.segment.age.ms": 0}
    topic = store.create_topic(TOPIC, 1, config)
    for n in range(40):
        topic.append_many([Record(b"v%d" % n, b"k%d" % (key % (n + 1))) for key in range(7)], partition=0)
    topic.roll()
    clock.advance(10_000)
    store.compact(TOPIC, force=True)
    whole, end = list(topic.read()), topic.high_watermark()
    assert len(whole) < 60 < end
    offsets = [record.offset for record in whole]
    cuts = {0, 1, end - 1, end, *offsets[::9], *(offset + 1 for offset in offsets[::7])}
    for cut in sorted(cuts):
        restore(store, f"/c{cut}", to_offsets={(TOPIC, 0): cut})
        for _ in range(2):
            with stratalog.open(f"/c{cut}", CONFIG, fs=fs, clock=clock, background=False) as copy:
                found = list(copy.topic(TOPIC).read(end=cut))
                assert found == [record for record in whole if record.offset < cut]
                assert copy.topic(TOPIC).log_end_offset() >= cut
                assert not stratalog.verify(copy).damages
                assert not any(each.cuts or each.damages for each in copy.recovery)
                copy.topic(TOPIC).append(b"on", b"k")
    store.close()


def test_open_transactions_can_be_rolled_back() -> None:
    life = next(life for life in map(Life, range(200)) if _open(life, 0, life.topic.high_watermark(0)))
    end = life.topic.high_watermark(0)
    kept = restore(life.store, "/kept", to_offsets={})
    assert kept.partitions[0].open_transactions
    report = restore(life.store, "/aborted", to_offsets={}, open_transactions="abort")
    assert report.partitions[0].open_transactions == ()
    assert report.partitions[0].end_offset > end
    with stratalog.open("/aborted", CONFIG, fs=life.fs, clock=life.clock, background=False) as store:
        assert list(store.topic(TOPIC).read(0)) == life.expected(0, end)
        assert store.topic(TOPIC).high_watermark(0, "read_committed") == report.partitions[0].end_offset
        read = list(store.topic(TOPIC).read(0, isolation="read_committed"))
        assert [record.offset for record in read if record.offset < end]
    life.store.close()


def test_retention_is_held_where_it_would_delete_at_once() -> None:
    clock = ManualClock(1_700_000_000_000)
    fs = MemoryFileSystem(clock=clock.now_ns)
    with make(fs, clock, [1_600_000_000_000]) as store:
        store.alter_topic(TOPIC, {"retention.ms": 86_400_000})
        report = restore(store, "/c", to_time=clock.now_ms())
        assert report.held_retention == {TOPIC: "86400000"}
        kept = restore(store, "/d", to_time=clock.now_ms(), keep_retention=True)
        assert kept.held_retention == {}
    for target, expected in (("/c", -1), ("/d", 86_400_000)):
        with stratalog.open(target, CONFIG, fs=fs, read_only=True, background=False) as copy:
            assert copy.topic(TOPIC).config.retention_ms == expected


def test_what_cannot_be_restored_is_refused_with_the_way_out() -> None:
    clock = ManualClock(10_000)
    fs = MemoryFileSystem(clock=clock.now_ns)
    store = make(fs, clock, [1, 2, 3])
    with pytest.raises(errors.InvalidArgumentError, match="to_time"):
        restore(store, "/c")
    with pytest.raises(errors.OffsetOutOfRangeError, match="holds offsets 0-2"):
        restore(store, "/c", to_offsets={(TOPIC, 0): 4})
    with pytest.raises(errors.InvalidArgumentError, match="no partition"):
        restore(store, "/c", to_offsets={("other", 0): 1})
    with pytest.raises(errors.UnknownTopicError, match="there are: t"):
        restore(store, "/c", to_time=1, topics=["other"])
    with pytest.raises(errors.InvalidArgumentError, match="not empty"):
        restore(store, "/s", to_time=1)
    assert not fs.exists("/c")
    assert not fs.exists("/c.building")
    restore(store, "/c", to_time=2)
    with pytest.raises(errors.InvalidArgumentError, match="not empty"):
        restore(store, "/c", to_time=2)
    assert [(each.kind, each.target, each.exists) for each in clones("/s", fs=fs)[0]] == [
        ("restore", "/c", True)
    ]
    store.close()
