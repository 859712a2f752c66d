"""Does the explorer have teeth? Concurrency defects the log has had are planted again; each must be found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratalog import locks
from stratalog.log.write import produce, sync
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.log.write.log_end import LogEnd
from stratalog.log.write.writer import PartitionWriter
from stratalog.store import reading
from stratalog.store.checkpoints import OffsetCheckpoint
from stratalog.store.opening import Opening
from stratalog.store.partitions import Partitions
from stratalog.testing.locks import LockChecker
from tests.explore import explorer, schedules
from tests.explore.world import Judged

Patch = pytest.MonkeyPatch
PATIENCE_S = 1.5


@pytest.fixture(autouse=True)
def quiet(monkeypatch: Patch) -> Iterator[None]:
    monkeypatch.setattr(schedules, "PATIENCE_S", PATIENCE_S)
    logger = logging.getLogger("stratalog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def duplicates_do_not_wait(patch: Patch) -> None:
    append_batches = produce.append_batches

    def at_once(writer: PartitionWriter, data: bytes, *, sync: bool = False, **options: Any) -> Any:
        known = vars(writer).get("planted", False)
        vars(writer)["planted"] = True
        return append_batches(writer, data, sync=sync and not known, **options)

    patch.setattr(produce, "append_batches", at_once)


def checkpoints_without_an_owner(patch: Patch) -> None:
    def change(self: OffsetCheckpoint, change: Callable[[Any], Any]) -> None:
        entries = dict(change(self.read()))
        self.context.fs.exists(self.path)  # time passes between looking and writing
        self.write(entries)

    patch.setattr(OffsetCheckpoint, "change", change)


def keys_lag_behind(patch: Patch) -> None:
    newest_first = ActiveKeyIndex.newest_first

    def stale(self: ActiveKeyIndex, hash64: int) -> Iterator[int]:
        return iter(list(newest_first(self, hash64))[1:])

    patch.setattr(ActiveKeyIndex, "newest_first", stale)


def followers_wait_for_the_high_watermark(patch: Patch) -> None:
    listen = reading._listen

    def more(parts: list[reading.Part], *args: Any) -> bool:
        return any(part.view.end_offset() > (part.offset or 0) for part in parts) or listen(parts, *args)

    patch.setattr(reading, "_listen", more)


def settings_leave_the_end_where_it_was(patch: Patch) -> None:
    apply_config = PartitionWriter.apply_config

    def unseen(self: PartitionWriter, config: Any) -> None:
        vars(self)["advance"] = lambda offset: None
        try:
            apply_config(self, config)
        finally:
            del vars(self)["advance"]

    patch.setattr(PartitionWriter, "apply_config", unseen)


def appends_do_not_wait_for_a_move(patch: Patch) -> None:
    patch.setattr(Partitions, "wait_for_successor", lambda self, writer: None)


def a_close_that_fails_wakes_nobody(patch: Patch) -> None:
    close, fail = PartitionWriter.close, LogEnd.fail

    def told_at_last(self: PartitionWriter) -> None:
        told: list[tuple[LogEnd, BaseException]] = []
        with patch.context() as meanwhile:
            meanwhile.setattr(LogEnd, "fail", lambda ends, error, only=None: told.append((ends, error)))
            close(self)
        for ends, error in told:
            fail(ends, error)

    patch.setattr(PartitionWriter, "close", told_at_last)
    patch.setattr(locks, "RECHECK_S", 60.0)  # else they look again by themselves


def what_was_cut_short_is_not_read_again(patch: Patch) -> None:
    """Bytes that an interrupted append wrote and never accounted for stay, behind the next record."""

    def only_unmarked(self: PartitionWriter) -> None:
        self.active.ledger.in_doubt = False
        self.swapping = False

    patch.setattr(PartitionWriter, "_reload", only_unmarked)


def an_interrupted_sync_counts_as_a_failed_one(patch: Patch) -> None:
    patch.setattr(sync, "_disk_failure", lambda error, before: error)


def a_damaged_swap_stops_the_store(patch: Patch) -> None:
    patch.setattr(Opening, "_open", Opening._open_writer)


HUNTS: list[tuple[Callable[[Patch], None], explorer.Pair]] = [
    (duplicates_do_not_wait, ("batch", "batch")),
    (checkpoints_without_an_owner, ("tick", "delete_records")),
    (keys_lag_behind, ("append", "get")),
    (followers_wait_for_the_high_watermark, ("append", "follow")),
    (settings_leave_the_end_where_it_was, ("append", "alter")),
    (appends_do_not_wait_for_a_move, ("move", "append")),
    (a_close_that_fails_wakes_nobody, ("close_failing", "follow_until_closed")),
    (what_was_cut_short_is_not_read_again, ("append", "read")),
    (an_interrupted_sync_counts_as_a_failed_one, ("append_sync", "read")),
    (a_damaged_swap_stops_the_store, ("compact", "read")),
]


@pytest.mark.parametrize(("plant", "pair"), HUNTS, ids=[each[0].__name__ for each in HUNTS])
def test_the_explorer_finds(
    plant: Callable[[Patch], None], pair: explorer.Pair, monkeypatch: Patch, lock_checker: LockChecker
) -> None:
    plant(monkeypatch)
    judged = Judged()
    for pause_at in range(1, 160):
        for interrupt in (False, True):
            point = explorer.Point(pause_at, interrupt=interrupt)
            calls, wrong = explorer.run(lock_checker, pair, point, judged)
            if wrong:
                return
            assert calls >= pause_at, f"not found in {pause_at} schedules"
