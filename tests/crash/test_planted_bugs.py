"""Does the suite have teeth? Bugs are planted, one at a time, and each must be caught by the checks above it.

Every bug here is one that a log like this has had, somewhere. A check that finds nothing with the bug in
place says nothing without it either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from stratalog.errors import StratalogError
from stratalog.format import batch as batches
from stratalog.format import checkpoints
from stratalog.format.batch import Peek
from stratalog.fs import SurvivorMode
from stratalog.fs.memory import MemoryFileSystem
from stratalog.log.read import chunks
from stratalog.log.segment import directory_state
from stratalog.log.segment.segment import scan_file
from stratalog.log.write import producers, recovery
from stratalog.log.write.active import ActiveSegment
from stratalog.log.write.producers import ProducerState
from stratalog.log.write.recovery import _Recovery
from stratalog.log.write.sync import SyncedEnd, Syncer
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.checkpoints import Checkpoints, OffsetCheckpoint
from stratalog.store.logdir import LogDir
from stratalog.store.opening import Opening
from stratalog.store.partitions import Partitions
from stratalog.testing import HistoryError
from tests.crash import damage, workload
from tests.crash.campaign import Tally, every_call

Patch = pytest.MonkeyPatch


def no_directory_sync(patch: Patch) -> None:
    patch.setattr(MemoryFileSystem, "sync_dir", lambda self, path: None)


def acknowledge_before_sync(patch: Patch) -> None:
    patch.setattr(Syncer, "_sync", lambda self, path: None)


def sealed_segments_not_synced(patch: Patch) -> None:
    patch.setattr(Syncer, "_sync_sealed", lambda self, segment: None)


def new_segment_not_in_directory(patch: Patch) -> None:
    def sealed(self: Syncer, segment: object) -> None:
        self._unsynced = (*self._unsynced, segment)  # type: ignore[arg-type]

    patch.setattr(Syncer, "sealed", sealed)


def tail_leads_the_log(patch: Patch) -> None:
    sync = Syncer._sync

    def first_the_tail(self: Syncer, path: str) -> None:
        with self._lock:
            self.end = self._written()
            self._on_synced(self.end)
        sync(self, path)

    patch.setattr(Syncer, "_sync", first_the_tail)


def readers_see_the_unsynced(patch: Patch) -> None:
    wait = PartitionWriter._sync_to

    def visible_at_once(self: PartitionWriter, end: int, **options) -> None:
        self.ends.high_watermark = self.next_offset
        wait(self, end, **options)

    patch.setattr(PartitionWriter, "_sync_to", visible_at_once)


def clean_marker_before_the_data(patch: Patch) -> None:
    close_writers = Partitions.close_writers

    def marked_first(self: Partitions) -> None:
        for each in self.dirs.online():
            each.mark_clean()
        close_writers(self)

    patch.setattr(Partitions, "close_writers", marked_first)


def clean_marker_stays(patch: Patch) -> None:
    patch.setattr(LogDir, "mark_dirty", lambda self: None)


def torn_tail_is_kept(patch: Patch) -> None:
    def unchecked(file, position, end, *, check_crc=False, **offsets):
        return scan_file(file, position, end, check_crc=False, **offsets)

    patch.setattr(recovery, "scan_file", unchecked)


def sidecars_past_the_end_are_trusted(patch: Patch) -> None:
    find_end = _Recovery._find_end

    def as_they_are(self: _Recovery, *args):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ActiveSegment, "write_sidecars", lambda self, **options: None)
            return find_end(self, *args)

    patch.setattr(_Recovery, "_find_end", as_they_are)


def aborted_not_rebuilt(patch: Patch) -> None:
    patch.setattr(_Recovery, "_write_aborted", lambda self, aborted: None)


def producers_forgotten(patch: Patch) -> None:
    patch.setattr(recovery, "replay_producers", lambda *args, **kwargs: ProducerState(86_400_000))


def snapshot_alone(patch: Patch) -> None:
    patch.setattr(producers, "replay", lambda *args, **kwargs: None)


def log_start_not_durable(patch: Patch) -> None:
    def plainly(self: OffsetCheckpoint, entries: Mapping[tuple[str, int], int]) -> None:
        self.context.fs.write_file(self.path, checkpoints.pack_offsets(entries), sync=False)

    patch.setattr(OffsetCheckpoint, "write", plainly)


def old_checkpoints_outlive_a_topic(patch: Patch) -> None:
    patch.setattr(Checkpoints, "forget", lambda self, keys: None)


def half_made_topics_stay(patch: Patch) -> None:
    patch.setattr(Opening, "finish_creations", lambda self: None)


def holes_below_the_start_stay(patch: Patch) -> None:
    patch.setattr(_Recovery, "_without_deleted", lambda self, segments: segments)


HUNTS: list[tuple[Callable[[Patch], None], SurvivorMode, int, str]] = [
    (no_directory_sync, "drop", 5, ""),
    (acknowledge_before_sync, "drop", 5, ""),
    (sealed_segments_not_synced, "drop", 5, ""),
    (new_segment_not_in_directory, "drop", 5, ""),
    (tail_leads_the_log, "reorder", 3, ""),
    (readers_see_the_unsynced, "drop", 3, ""),
    (clean_marker_before_the_data, "reorder", 1, "sync /data/log/plain-1"),
    (clean_marker_stays, "reorder", 1, "plain-0/00000000000000000037"),
    (torn_tail_is_kept, "reorder", 1, "plain-1"),
    (sidecars_past_the_end_are_trusted, "reorder", 2, ""),
    (aborted_not_rebuilt, "reorder", 1, "index"),
    (producers_forgotten, "kill", 7, ""),
    (snapshot_alone, "kill", 7, ""),
    (log_start_not_durable, "drop", 1, "checkpoint"),
    (old_checkpoints_outlive_a_topic, "kill", 1, "doomed-0/partition.metadata"),
    (half_made_topics_stay, "kill", 5, ""),
    (holes_below_the_start_stay, "reorder", 1, ".deleted"),
]


@pytest.mark.parametrize(("plant", "mode", "every", "at"), HUNTS, ids=[each[0].__name__ for each in HUNTS])
def test_crashes_find(
    plant: Callable[[Patch], None], mode: SurvivorMode, every: int, at: str, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    tally = Tally()
    try:
        every_call(tally, workload.run, (mode,), seeds=2, every=every, at=at, stop_at_first=True)
    except (HistoryError, StratalogError) as error:
        tally.fail("without a crash", error)
    assert tally.failures, f"not found in {tally.states} states"


def test_a_wrong_index_is_not_believed() -> None:
    damage.wrong_index()


def test_damage_is_named_and_kept() -> None:
    damage.flipped_record(sealed=True)
    damage.flipped_record(sealed=False)


def test_a_swap_is_finished_wherever_it_was_cut() -> None:
    tally = Tally()
    damage.swap_cut_short(tally)
    assert tally.points > 20
    assert not tally.failures, tally.report()


def test_a_failed_sync_is_final() -> None:
    damage.failed_sync()


def test_trusting_the_index_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(chunks, "meet", lambda file, start: Peek(0, 0, start.last_offset, 0))
    monkeypatch.setattr(chunks, "_begins_with", lambda *arguments: True)
    with pytest.raises((HistoryError, StratalogError)):
        damage.wrong_index()


def test_not_checking_the_crc_is_caught(monkeypatch: Patch) -> None:
    scan = batches.scan
    unchecked = SimpleNamespace(**vars(batches))
    unchecked.scan = lambda data, **options: scan(data, **{**options, "check_crc": False})
    monkeypatch.setattr(chunks, "batches", unchecked)
    with pytest.raises(HistoryError, match="damaged"):
        damage.flipped_record(sealed=True)


def test_cutting_below_the_synced_end_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        _Recovery,
        "_trusted",
        lambda self, segments, tail: SyncedEnd(segments[0].base_offset, 0, segments[0].base_offset),
    )
    monkeypatch.setattr(_Recovery, "_known_synced", lambda self, tail: 0)
    with pytest.raises(HistoryError, match="cut below its synced end"):
        damage.flipped_record(sealed=False)


def test_a_swap_in_the_wrong_order_is_caught(monkeypatch: Patch) -> None:
    run_actions = directory_state.run_actions
    monkeypatch.setattr(
        recovery,
        "run_actions",
        lambda context, directory, actions: run_actions(context, directory, list(reversed(list(actions)))),
    )
    tally = Tally()
    try:
        damage.swap_cut_short(tally)
    except (HistoryError, StratalogError) as error:
        tally.fail("without a crash", error)
    assert tally.failures


def test_forgetting_a_failed_sync_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(PartitionWriter, "_on_sync_failed", lambda self, error: None)
    wait = Syncer.wait

    def forgetful(self: Syncer, offset: int, **options) -> None:
        self.failure = None
        wait(self, offset, **options)

    monkeypatch.setattr(Syncer, "wait", forgetful)
    with pytest.raises(HistoryError, match="after a failed sync"):
        damage.failed_sync()
