"""The janitor of an open store: rounds of lifecycle work when they are due, by the monotonic clock.

Rounds wait for disks and object stores, so none of them runs on the store's background thread: retention has
a thread for its time, compaction and archiving have another. Rounds of one kind never overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratalog.errors import StratalogError
from stratalog.log.context import logger
from stratalog.store.lifecycle.lifecycle import Lifecycle

SWEEP_EVERY_S = 3600.0
"""How often the archive is looked through for what nobody needs; it means listing all of it."""


class _Rounds:
    """One kind of round: when the next is due, and the thread of the one that runs."""

    def __init__(self, name: str, work: Callable[[], None], every_s: float, first_s: float) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._next_s = first_s
        self._thread: threading.Thread | None = None

    def begin_if_due(self, now_s: float) -> None:
        """Start a round in a thread of its own, unless it is too early or the last one still runs."""
        if now_s < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_s = now_s + self._every_s
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self._thread = thread  # only once it can be joined

    def _run(self) -> None:
        try:
            self._work()
        except StratalogError as error:
            logger.warning("%s: the round ended early: %s", self._name, error)
        except Exception:  # noqa: BLE001 - the next round must come
            logger.exception("%s: the round failed", self._name)

    def join(self) -> None:
        """Wait for the round that runs."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


class Janitor:
    """Called with every tick of the store."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        partitions = lifecycle.partitions
        self._clock = partitions.context.clock
        now_s = self._clock.monotonic_s()
        retain_every_s = partitions.config.get_int("log.retention.check.interval.ms") / 1000
        clean_every_s = max(partitions.config.get_int("log.cleaner.backoff.ms") / 1000, 0.1)
        self._retention = _Rounds("stratalog-retention", self._retain, retain_every_s, now_s)
        self._long = _Rounds("stratalog-janitor", self._long_round, clean_every_s, now_s)
        self._next_sweep_s = now_s

    def tick(self) -> None:
        """Begin what is due."""
        lifecycle, now_s = self._lifecycle, self._clock.monotonic_s()
        lifecycle.observe_clock()
        if not lifecycle.stopping:
            self._retention.begin_if_due(now_s)
            self._long.begin_if_due(now_s)

    def wait_for_retention(self) -> None:
        """Wait for a round of retention under way."""
        self._retention.join()

    def _retain(self) -> None:
        self._lifecycle.retain(None, preview=False)

    def _long_round(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_EVERY_S
            self._lifecycle.sweep_archive()
        self._lifecycle.everything(preview=False, progress=None)

    def join(self) -> None:
        """Wait for rounds under way; they end soon once the store is stopping."""
        self._retention.join()
        self._long.join()
