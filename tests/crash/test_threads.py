"""Crashes under three threads: a slice of the seeds, ``STRATALOG_CRASH=full`` takes many."""

from __future__ import annotations

import os

import pytest

from stratalog.log.write.sync import Syncer
from tests.crash import threads

FULL = os.environ.get("STRATALOG_CRASH") == "full"
ASKED = os.environ.get("STRATALOG_CRASH_SEED")
GROUPS, EACH = (40, 100) if FULL else (4, 8)
pytestmark = pytest.mark.timeout(7200 if FULL else 600)


@pytest.mark.parametrize("group", range(1 if ASKED else GROUPS))
def test_a_crash_under_threads_loses_nothing(group: int) -> None:
    seeds = [int(ASKED)] * 20 if ASKED else range(group * EACH, (group + 1) * EACH)
    failures = failed(seeds)
    assert not failures, "\n\n".join(failures)


def failed(seeds: list[int] | range, *, until: str = "") -> list[str]:
    """What was wrong, seed by seed; up to the first failure that tells ``until``."""
    found: list[str] = []
    for seed in seeds:
        try:
            threads.crash(seed)
        except Exception as error:  # noqa: BLE001 - told with its seed
            found.append(f"seed {seed}: {type(error).__name__}: {error}")
            if until and until in found[-1]:
                break
    return found


def test_a_sync_that_answers_for_later_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a round of syncs acknowledges what other threads wrote while it ran."""
    one_round = Syncer._round

    def too_much(self: Syncer) -> None:
        one_round(self)
        with self._lock:
            self.end = self._written()
            self._on_synced(self.end)

    monkeypatch.setattr(Syncer, "_round", too_much)
    found = failed(range(400), until="after a crash")
    assert "after a crash" in found[-1], found
