"""The janitor of an open store: rounds of lifecycle work when they are due, by the monotonic clock.

Retention and rolling are quick and run on the store's background thread. Compaction and archiving take long:
a round of them runs in a thread of its own, one at a time, and the store's thread goes on meanwhile.
"""

from __future__ import annotations

import threading

from stratalog.errors import StratalogError
from stratalog.log.context import logger
from stratalog.store.lifecycle import Lifecycle

SWEEP_EVERY_S = 3600.0
"""How often the archive is looked through for what nobody needs; it means listing all of it."""


class Janitor:
    """Called with every tick of the store."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        partitions = lifecycle.partitions
        self._clock = partitions.context.clock
        self._retain_every_s = partitions.config.get_int("log.retention.check.interval.ms") / 1000
        self._clean_every_s = max(partitions.config.get_int("log.cleaner.backoff.ms") / 1000, 0.1)
        self._next_retain_s = self._next_clean_s = self._clock.monotonic_s()
        self._next_sweep_s = self._next_clean_s
        self._worker: threading.Thread | None = None

    def tick(self) -> None:
        """Do, or begin, what is due."""
        lifecycle, now_s = self._lifecycle, self._clock.monotonic_s()
        lifecycle.observe_clock()
        if lifecycle.stopping.is_set():
            return
        if now_s >= self._next_retain_s:
            self._next_retain_s = now_s + self._retain_every_s
            lifecycle.retain(None, preview=False)
        if now_s >= self._next_clean_s and (self._worker is None or not self._worker.is_alive()):
            self._next_clean_s = now_s + self._clean_every_s
            self._worker = threading.Thread(target=self._long_round, name="stratalog-janitor", daemon=True)
            self._worker.start()

    def _long_round(self) -> None:
        try:
            now_s = self._clock.monotonic_s()
            if now_s >= self._next_sweep_s:
                self._next_sweep_s = now_s + SWEEP_EVERY_S
                self._lifecycle.sweep_archive()
            self._lifecycle.everything(preview=False, progress=None)
        except StratalogError as error:
            logger.warning("the janitor's round ended early: %s", error)
        except Exception:  # noqa: BLE001 - the next round must come
            logger.exception("the janitor's round failed")

    def join(self) -> None:
        """Wait for a round under way; it ends soon once the store is stopping."""
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join()
