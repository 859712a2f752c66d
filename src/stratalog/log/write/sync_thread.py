"""A thread that makes things durable for those who must not wait themselves, such as an event loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from stratalog import locks

logger = logging.getLogger("stratalog")

LINGER_S = 1.0
"""How long the thread waits for more work before it ends."""


class SyncThread:
    """Runs rounds for those who must not wait themselves, such as an event loop. One per store.

    The thread starts with the first job and ends when there was none for a while. Ctrl-C never reaches it.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._guard = locks.lock("sync-thread")
        self._running = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` in the thread; what it raises is for those it told itself."""
        self._jobs.put(job)
        with self._guard:
            if not self._running:
                threading.Thread(target=self._run, name="stratalog-sync", daemon=True).start()
                self._running = True

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=LINGER_S)
            except queue.Empty:
                with self._guard:
                    if self._jobs.empty():
                        self._running = False
                        return
                continue
            try:
                job()
            except Exception as error:  # noqa: BLE001 - told to those who wait by the syncer itself
                logger.debug("sync: %s", error)
