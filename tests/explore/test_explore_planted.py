"""Does the explorer have teeth? Concurrency defects the log has had are planted again; each must be found.

Some are no matter of two operations and are found elsewhere. An interrupt between a write and its accounting,
and one in a sync, are planted in `tests/log/test_interrupts.py`. A damaged ``.swap`` in one partition, which
kept the whole store from opening, is a state of the disk: `tests/store/test_offline_partition.py` has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratalog import locks
from stratalog.log.write import produce
from stratalog.log.write.active_keys import ActiveKeyIndex
from stratalog.log.write.log_end import LogEnd
from stratalog.log.write.writer import PartitionWriter
from stratalog.store import reading
from stratalog.store.checkpoints import OffsetCheckpoint
from stratalog.store.partitions import Partitions
from stratalog.testing.locks import LockChecker
from tests.explore import explorer, schedules

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


HUNTS: list[tuple[Callable[[Patch], None], explorer.Pair]] = [
    (duplicates_do_not_wait, ("batch", "batch")),
    (checkpoints_without_an_owner, ("tick", "delete_records")),
    (keys_lag_behind, ("append", "get")),
    (followers_wait_for_the_high_watermark, ("append", "follow")),
    (settings_leave_the_end_where_it_was, ("append", "alter")),
    (appends_do_not_wait_for_a_move, ("move", "append")),
    (a_close_that_fails_wakes_nobody, ("close_failing", "follow_until_closed")),
]


@pytest.mark.parametrize(("plant", "pair"), HUNTS, ids=[each[0].__name__ for each in HUNTS])
def test_the_explorer_finds(
    plant: Callable[[Patch], None], pair: explorer.Pair, monkeypatch: Patch, lock_checker: LockChecker
) -> None:
    plant(monkeypatch)
    for pause_at in range(1, 80):
        calls, wrong = explorer.run(lock_checker, pair, pause_at)
        if wrong:
            return
        assert calls >= pause_at, f"not found in {pause_at} schedules"
