"""Segments between this machine and the archive, through the store's own API."""

from __future__ import annotations

import random
import threading
import time
import traceback

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.archive import Manifest, PartitionArchive
from stratalog.archive.manifest import parse_local
from stratalog.format import batch as batches
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.store.tier.tiers import read_local_copy
from stratalog.testing.locks import LockChecker
from tests.store.tiered import CONFIG, RECORDS, ROOT, TOPIC, Tiered

COPY = f"{ROOT}/{TOPIC}-0/stratalog.archive"


@pytest.fixture
def tiered() -> Tiered:
    made = Tiered()
    made.open()
    made.create()
    return made


def test_reads_run_across_the_boundary(tiered: Tiered) -> None:
    tiered.seal(3)
    tiered.append(5)
    tiered.archive()
    assert {state for _, state in tiered.states()[:-1]} == {"sealed"}, "copied, and still here"
    tiered.check()
    tiered.leave()
    assert [state for _, state in tiered.states()] == ["archived"] * 3 + ["active"]
    names = tiered.fs.list_dir(f"{ROOT}/{TOPIC}-0")
    assert [name for name in names if name.endswith(".log")] == [f"{3 * RECORDS:020d}.log"]
    assert tiered.topic.log_start_offset() == 0
    tiered.check()
    tiered.check_archive()
    infos = tiered.topic.segments(0)
    assert infos[0].path.startswith("file:///cloud/orders-")
    assert infos[0].records == RECORDS
    tiered.close()
    tiered.open()
    tiered.check()


def test_a_store_opens_and_lists_without_its_archive(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.leave()
    tiered.close()
    tiered.objects.fail = lambda number, request: "before"
    count = len(tiered.objects.requests)
    tiered.open()
    assert [state for _, state in tiered.states()] == ["archived", "archived", "active"]
    assert tiered.topic.log_start_offset() == 0
    assert len(tiered.objects.requests) == count, "nobody was asked"
    tiered.append(4)
    assert [record.offset for record in tiered.topic.read(0, start=24)] == [24, 25, 26, 27]
    with pytest.raises(errors.ArchiveError, match="file:///cloud/.*did not go through"):
        list(tiered.topic.read(0, start=0))
    report = tiered.store.janitor()
    assert not report.preview
    tiered.objects.fail = lambda number, request: None
    tiered.check()


def test_nothing_leaves_before_it_is_safe_in_the_archive(tiered: Tiered) -> None:
    tiered.seal(3)
    tiered.archive()
    writer = tiered.store.partitions.writer(TOPIC, 0)
    gone = next(key for key in sorted(tiered.stored()) if "/00000000000000000012/" in key)
    tiered.cloud.delete([gone])
    with pytest.raises(errors.ArchiveError, match="the archive does not") as caught:
        tiered.tiering.drop_local(writer, 36)
    assert caught.value.url.endswith(gone)
    assert len(writer.local_segments()) == 4
    tiered.seal()
    tiered.check()


@pytest.mark.parametrize("gone_from", ["this machine", "the archive too"])
def test_a_segment_deleted_while_the_archive_is_asked_stays_deleted(tiered: Tiered, gone_from: str) -> None:
    """No lock that deletions need is held while the archive answers, and what they remove is not missing."""
    tiered.seal(3)
    tiered.archive()
    writer = tiered.store.partitions.writer(TOPIC, 0)
    deleting = threading.Thread(target=tiered.delete_records, args=(12,))
    dropped = threading.Event()
    if gone_from == "the archive too":
        dropped.set()

    def meanwhile(request: str) -> None:
        if threading.current_thread() is deleting:
            dropped.wait(10)
        elif request.startswith("list") and deleting.ident is None:
            deleting.start()
            patience = time.monotonic() + 10
            while writer.local_segments()[0].base_offset == 0 or (dropped.is_set() and deleting.is_alive()):
                assert time.monotonic() < patience, "a deletion of records waits for the archive's answer"
                time.sleep(0.001)

    tiered.objects.before = meanwhile
    gone = tiered.tiering.drop_local(writer, 36)
    dropped.set()
    deleting.join()
    assert [segment.base_offset for segment in gone] == [12, 24]
    tiered.check()
    tiered.check_archive()


def test_only_the_head_may_leave(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.archive()
    tiered.seal(2)
    writer = tiered.store.partitions.writer(TOPIC, 0)
    gone = tiered.tiering.drop_local(writer, 48)
    assert [segment.base_offset for segment in gone] == [0, 12], "the rest is not archived yet"
    tiered.check()


def test_retention_reaches_into_the_archive(tiered: Tiered) -> None:
    tiered.seal(4)
    tiered.leave()
    sizes = [segment.size_bytes for segment in tiered.topic.segments(0)]
    tiered.store.alter_topic(TOPIC, {"retention.bytes": sum(sizes[2:])})
    report = tiered.store.retain(preview=True)
    assert [step.base_offset for step in report.steps if step.action == "delete" and step.due] == [0, 12]
    tiered.store.retain()
    tiered.surely_gone = tiered.perhaps_gone = set(range(24))
    assert tiered.topic.log_start_offset() == 24
    assert [base for base, _ in tiered.states()] == [24, 36, 48]
    tiered.check()
    tiered.check_archive()
    tiered.reboot()
    assert tiered.topic.log_start_offset() == 24
    tiered.check()


def test_deleted_records_stay_deleted(tiered: Tiered) -> None:
    tiered.seal(3)
    tiered.leave()
    tiered.delete_records(17)
    assert tiered.topic.log_start_offset() == 17
    tiered.check()
    tiered.check_archive()
    with tiered.look() as archive:
        (manifest,) = archive.manifests()
    assert manifest.log_start_offset == 17
    assert [entry.base_offset for entry in manifest.segments] == [12, 24]
    tiered.reboot()
    tiered.check()


def test_erased_keys_leave_the_archive(tiered: Tiered) -> None:
    tiered.seal(3)
    tiered.leave()
    tiered.seal(2)
    tiered.archive()
    tiered.append(5)
    before = tiered.stored()
    tiered.erase(b"k3")
    tiered.check()
    assert all(record.key != b"k3" for record in tiered.topic.read(0))
    tiered.check_archive()
    assert not any(b"value 3 " in tiered.cloud.get(key).data for key in tiered.stored())
    assert len(before & tiered.stored()) == 1, (
        "every segment held the key: only the manifest has its old name"
    )
    assert not tiered.fs.exists(f"{ROOT}.archive-work")
    tiered.reboot()
    tiered.check()


def test_a_deleted_topic_leaves_the_archive(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.leave()
    other = tiered.store.create_topic("other", config={"remote.storage.enable": True})
    other.append(b"x")
    other.roll()
    tiered.archive()
    tiered.store.delete_topic(TOPIC)
    assert all(key.startswith("other-") for key in tiered.stored())
    tiered.check_archive()


def test_compacted_topics_are_archived_and_replaced(tiered: Tiered) -> None:
    """Cleaned segments take the place of what the archive had of them, and what was there does not return."""
    tiered.store.delete_topic(TOPIC)
    tiered.create(cleanup_policy="compact", cleaner_min_segment_age_ms=0, min_cleanable_dirty_ratio=0.0)
    tiered.seal(2)
    tiered.store.compact(TOPIC, force=True)
    tiered.archive()
    tiered.check_archive()
    tiered.records = {record.offset: record for record in tiered.topic.read(0)}
    assert len(tiered.records) < 2 * RECORDS
    kept = dict(tiered.records)
    tiered.seal(2)
    tiered.store.compact(TOPIC, force=True)
    tiered.records = {record.offset: record for record in tiered.topic.read(0)}
    assert not kept.keys() & tiered.records.keys(), "every key has a newer record"
    tiered.archive()
    tiered.check_archive()
    tiered.leave()
    assert next(state for _, state in tiered.states()) == "archived"
    assert {record.offset for record in tiered.topic.read(0)} == tiered.records.keys()
    tiered.check_archive()


def test_a_tombstone_stays_while_the_archive_may_hold_its_key(tiered: Tiered) -> None:
    tiered.store.delete_topic(TOPIC)
    tiered.create(
        cleanup_policy="compact",
        cleaner_min_segment_age_ms=0,
        min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=0,
    )
    tiered.seal(1)
    tiered.store.compact(TOPIC, force=True)
    tiered.leave()
    assert tiered.states()[0] == (0, "archived")
    below = tiered.tiering.may_be_below(tiered.store.partitions.writer(TOPIC, 0))
    assert below is not None
    assert below([b"k1", b"nobody", b"k4"]) == {b"k1", b"k4"}
    for key in (b"k1", b"nobody"):
        tiered.topic.append(None, key=key)
    tiered.topic.append(b"later", key=b"k2")
    tiered.topic.roll()
    for _ in range(3):
        tiered.clock.advance(10_000)
        tiered.topic.append(b"more", key=b"k9")
        tiered.topic.roll()
        tiered.store.compact(TOPIC, force=True)
    local = [record.key for record in tiered.topic.read(0, start=12) if record.value is None]
    assert local == [b"k1"], "that of a key the archive cannot hold is gone"
    assert tiered.topic.get(b"k1") is None or tiered.topic.get(b"k1").value is None


def test_another_store_cannot_write_here(tiered: Tiered) -> None:
    """A copy of the whole store, ids and all, on another machine: whoever comes later is the writer."""
    tiered.seal(2)
    tiered.archive()
    twin = Tiered(tiered.cloud, tiered.fs.survivor("kill", random.Random(0)))
    twin.records = dict(tiered.records)
    twin.open()
    twin.seal()
    twin.archive()
    tiered.seal()
    report = tiered.store.archive()
    assert any("another process with the id of this store" in note for note in report.notes)
    writer = tiered.store.partitions.writer(TOPIC, 0)
    with pytest.raises(errors.ArchiveConflictError):
        tiered.tiering.drop_local(writer, 24)
    tiered.check()
    twin.check()
    twin.check_archive()


def test_the_wrong_archive_is_noticed(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.leave()
    tiered.seal(1)
    tiered.close()
    elsewhere = Tiered(fs=tiered.fs)
    elsewhere.records = tiered.records
    elsewhere.open()
    with pytest.raises(errors.ArchiveError, match="was log.archive.url changed"):
        list(elsewhere.topic.read(0))
    report = elsewhere.store.archive()
    assert any("was log.archive.url changed" in note for note in report.notes)
    assert elsewhere.stored() == set(), "nothing is begun there"
    elsewhere.close()
    tiered.open()
    tiered.archive()
    tiered.check()


@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_copy_of_the_manifest_is_replaced(tiered: Tiered, gone: bool) -> None:
    tiered.seal(3)
    tiered.leave()
    tiered.close()
    if gone:
        tiered.fs.remove(COPY)
    else:
        tiered.fs.write_file(COPY, b"rubbish", sync=True)
    tiered.open()
    assert [state for _, state in tiered.states()] == ["archived"] * 3 + ["active"]
    tiered.seal(1)
    tiered.archive()
    assert parse_local(tiered.fs.read_file(COPY)).manifest.next_offset == 48
    tiered.check()


@pytest.mark.parametrize("late", [False, True])
def test_a_reader_without_the_copy_of_the_manifest_asks_the_archive(tiered: Tiered, late: bool) -> None:
    tiered.seal(3)
    tiered.leave()
    tiered.append(3)
    if not late:
        tiered.fs.remove(COPY)
    with stratalog.open(ROOT, CONFIG, read_only=True, fs=tiered.fs, objects=tiered.objects) as beside:
        topic = beside.topic(TOPIC)
        if late:
            assert topic.log_start_offset(0) == 0
            tiered.fs.remove(COPY)
        assert [record.offset for record in topic.read(0)] == list(range(39))
        assert [segment.state for segment in topic.segments(0)] == ["archived"] * 3 + ["active"]


def test_a_reader_without_the_copy_and_the_archive_says_so(
    tiered: Tiered, caplog: pytest.LogCaptureFixture
) -> None:
    tiered.seal(3)
    tiered.leave()
    tiered.fs.remove(COPY)
    tiered.objects.fail = lambda number, request: "before"
    with stratalog.open(ROOT, CONFIG, read_only=True, fs=tiered.fs, objects=tiered.objects) as beside:
        beside.topic(TOPIC).log_start_offset(0)
    assert "the archived segments are unknown" in caplog.text


def test_readers_beside_the_writer_see_the_archive(tiered: Tiered) -> None:
    tiered.seal(3)
    tiered.append(3)
    beside = stratalog.open(
        ROOT, CONFIG, read_only=True, fs=tiered.fs, clock=tiered.clock, objects=tiered.objects
    )
    topic = beside.topic(TOPIC)
    reading = topic.read(0)
    first = [next(reading).offset for _ in range(5)]
    assert first == [0, 1, 2, 3, 4]
    tiered.leave()
    assert [record.offset for record in reading] == list(range(5, 39)), "the files went while it read"
    assert [segment.state for segment in topic.segments(0)] == ["archived"] * 3 + ["active"]
    assert [record.offset for record in topic.history(b"k1")] == list(range(1, 39, 5))
    tiered.erase(b"k1")
    assert list(topic.history(b"k1")) == []
    assert len(list(topic.read(0))) == 39 - 8
    beside.close()


def test_what_a_crash_left_behind_the_archive_is_not_read(tiered: Tiered) -> None:
    """The copy of the manifest is older than the archive, whose old objects are still there."""
    tiered.seal(3)
    tiered.leave()
    old = tiered.fs.read_file(COPY)
    tiered.objects.fail = lambda number, request: "before" if request.startswith("delete") else None
    with pytest.raises(errors.ArchiveError):
        tiered.store.erase(TOPIC, [b"k2"])
    tiered.perhaps_gone = {offset for offset in tiered.records if offset % 5 == 2}
    tiered.fs.write_file(COPY, old, sync=True)
    tiered.reboot()
    found = [record for record in tiered.topic.read(0) if record.key == b"k2"]
    assert min(record.offset for record in found) >= RECORDS, "the first segment was rewritten"
    tiered.erase(b"k2")
    tiered.archive()
    tiered.check()
    tiered.check_archive()


def test_rewriting_is_limited_to_what_may_hold_a_key(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.leave()
    writer = tiered.store.partitions.writer(TOPIC, 0)
    segments = tiered.tiering.archived(writer)
    assert all(isinstance(segment, ArchivedSegment) for segment in segments)
    assert tiered.tiering.may_hold(segments[0], [b"k1", b"x"])
    assert not tiered.tiering.may_hold(segments[0], [b"x", b"y"])
    assert tiered.tiering.rewrite(writer, lambda segment, directory: []) == []
    tiered.check_archive()


def test_a_rebuilt_store_may_take_the_archive_over(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.archive()
    other = Tiered(tiered.cloud, tiered.fs.survivor("kill", random.Random(0)))
    other.records = dict(tiered.records)
    other.fs.remove(f"{ROOT}/meta.properties")  # so that it is another store
    other.fs.remove(COPY)
    other.open()
    writer = other.store.partitions.writer(TOPIC, 0)
    report = other.store.archive()
    assert any("belongs to the store" in note for note in report.notes)
    assert not any(other.tiering.is_archived(segment) for segment in writer.local_segments()[:-1])
    tiered.seal(1)
    tiered.archive()
    with pytest.raises(errors.ArchiveConflictError, match="reaches to offset 36, this log ends at 24"):
        other.tiering.take_over(writer)
    other.seal(1)
    other.tiering.take_over(writer)
    other.archive()
    other.leave()
    other.check()
    other.check_archive()
    tiered.seal(1)
    assert any("belongs to the store" in note for note in tiered.store.archive().notes)
    tiered.check()


def test_a_store_that_does_not_own_the_archive_leaves_it_alone(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.archive()
    before = tiered.stored()
    other = Tiered(tiered.cloud, tiered.fs.survivor("kill", random.Random(0)))
    other.fs.remove(f"{ROOT}/meta.properties")
    other.open()
    other.topic.delete_records(0, 20)
    other.store.delete_topic(TOPIC)
    assert tiered.stored() == before
    tiered.check()
    tiered.check_archive()


def test_turning_the_archive_off_may_empty_it(tiered: Tiered) -> None:
    tiered.seal(2)
    tiered.archive()
    off = {"remote.storage.enable": False, "remote.log.delete.on.disable": True}
    tiered.store.alter_topic(TOPIC, off)
    tiered.store.janitor()
    with tiered.look() as archive:
        assert [manifest.segments for manifest in archive.manifests()] == [()]
    tiered.check()
    tiered.check_archive()


def test_transactions_are_read_across_the_boundary(tiered: Tiered) -> None:
    """What was aborted stays hidden, by the archived transaction index."""
    topic = tiered.topic
    for number, marker in enumerate(("commit", "abort", "commit", "abort")):
        encoded, _ = batches.encode_records(
            [Record(f"{marker} {number}".encode(), key=b"k")],
            0,
            options=batches.BatchOptions(
                base_offset=0,
                leader_epoch=0,
                now_ms=tiered.clock.now_ms(),
                timestamp_type=0,
                codec=0,
                level=None,
                max_bytes=1 << 20,
                producer_id=7,
                producer_epoch=0,
                base_sequence=number,
                transactional=True,
            ),
        )
        topic.append_batches(0, bytes(encoded.data))
        topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=marker == "commit")
        topic.roll()
    committed = [record.value for record in topic.read(0, isolation="read_committed")]
    assert committed == [b"commit 0", b"commit 2"]
    tiered.clock.advance(60_000)
    tiered.leave()
    assert [state for _, state in tiered.states()][:4] == ["archived"] * 4
    assert [record.value for record in topic.read(0, isolation="read_committed")] == committed
    assert len(list(topic.read(0))) == 4
    tiered.close()
    tiered.open()
    assert [record.value for record in tiered.topic.read(0, isolation="read_committed")] == committed


@pytest.mark.parametrize(
    "settings",
    [
        {"log.archive.url": f"{ROOT}/archive"},
        {"log.archive.url": "file:///data"},
        {"log.archive.cache.dir": f"{ROOT}/cache"},
    ],
)
def test_an_archive_does_not_lie_in_a_log_directory(settings: dict[str, object]) -> None:
    tiered = Tiered()
    tiered.open(**settings)
    with pytest.raises(errors.ConfigError, match="must not be inside or above the log directory"):
        tiered.create()


def test_a_deletion_that_the_archive_did_not_follow_leaves_no_hole_there(tiered: Tiered) -> None:
    """The process may die between the two; what is uploaded meanwhile must not look like a loss."""
    tiered.seal()
    tiered.archive()
    tiered.seal(3)
    tiered.objects.fail = lambda number, request: "before"
    with pytest.raises(errors.ArchiveError):
        tiered.delete_records(2 * RECORDS + 1)
    tiered.objects.fail = lambda number, request: None
    writer = tiered.store.partitions.writer(TOPIC, 0)
    tiered.tiering.copy(writer, [2 * RECORDS, 3 * RECORDS])
    tiered.tiering.drop_local(writer, 3 * RECORDS)
    tiered.reboot()
    tiered.check()
    tiered.check_archive()


def test_a_deletion_beside_a_change_of_the_archive_is_not_undone(
    tiered: Tiered, lock_checker: LockChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the archive's side read of the log start is out of date when it gets the partition's lock."""
    tiered.seal(2)
    writer = tiered.store.partitions.writer(TOPIC, 0)
    deleted: list[int] = []

    def delete(name: str) -> None:
        if name == "partition" and not deleted and "_publish" in stack():
            deleted.append(RECORDS + 2)
            writer.advance_log_start(RECORDS + 2)

    monkeypatch.setattr(lock_checker, "on_take", delete)
    tiered.archive()
    assert deleted
    assert writer.log_start_offset == tiered.topic.log_start_offset() == RECORDS + 2


def stack() -> set[str]:
    return {frame.name for frame in traceback.extract_stack()}


def test_a_reader_beside_knows_of_deletions_by_the_archive(tiered: Tiered) -> None:
    tiered.seal(3)
    tiered.leave()
    tiered.delete_records(RECORDS + 2)
    tiered.close()
    tiered.fs.remove(f"{ROOT}/log-start-offset-checkpoint")
    for read_only in (True, False):
        with stratalog.open(
            ROOT, fs=tiered.fs, objects=tiered.objects, read_only=read_only, background=False
        ) as store:
            assert store.topic(TOPIC).log_start_offset() == RECORDS + 2
            assert next(iter(store.topic(TOPIC).read(0))).offset == RECORDS + 2


def test_two_changes_of_the_archive_at_once_leave_the_newer_manifest(
    tiered: Tiered, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiered.seal(3)
    tiered.archive()
    look = PartitionArchive.manifest
    late: list[Manifest | None] = []

    def manifest(archive: PartitionArchive, *, refresh: bool = False) -> Manifest | None:
        found = look(archive, refresh=refresh)
        if not refresh and not late and "committed" in stack():
            late.append(found)
            tiered.topic.delete_records(0, RECORDS + 2)  # another thread, between the look and its use
        return found

    tiered.seal()
    monkeypatch.setattr(PartitionArchive, "manifest", manifest)
    tiered.archive()
    assert late
    writer = tiered.store.partitions.writer(TOPIC, 0)
    copy = read_local_copy(tiered.fs, writer.directory)
    assert copy is not None
    with tiered.look() as archive:
        assert [copy.manifest] == archive.manifests()
    assert [segment.base_offset for segment in tiered.topic.segments(0)] == [12, 24, 36, 48]
