"""The background thread of a writable store: it does what time makes due, and waits for nobody.

The control socket is served by threads of its own (`stratalog.store.admin.control_server`): a client that
does not read, or a command that takes long, must not delay ``flush.ms``.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.log.context import logger
from stratalog.store.admin.control import listen
from stratalog.store.admin.control_server import ControlServer

if TYPE_CHECKING:
    from stratalog.store.store import Store

LONGEST_PAUSE_S = 1.0


class Background:
    """Runs until `stop`. Errors of the work itself are logged; they never end the thread."""

    def __init__(self, store: Store, *, control: bool) -> None:
        self._store = store
        self._stopping = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._control = self._serve() if control else None
        self._thread = threading.Thread(target=self._run, name="stratalog-background", daemon=True)
        self._thread.start()

    def _serve(self) -> ControlServer | None:
        for each in self._store._partitions.dirs.online():
            try:
                return ControlServer(self._store, *listen(each.path))
            except OSError as error:
                logger.warning("no control socket in %s: %s", each.path, error)
        return None

    @property
    def address(self) -> str | None:
        """The address of the control socket; None if there is none."""
        return None if self._control is None else self._control.address

    def wake(self) -> None:
        """Look now: a rolled segment has to be synced, or a flush may be due earlier. Takes no lock."""
        self._wakes.put(None)

    def stop(self) -> None:
        """End the threads, waiting for what they are doing."""
        if self._control is not None:
            self._control.stop()
        self._stopping = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """In a forked child, where no thread runs: close the descriptors of the parent's sockets."""
        if self._control is not None:
            self._control.abandon()

    def _run(self) -> None:
        pause_s = LONGEST_PAUSE_S
        while not self._stopping:
            try:
                self._store.tick()
                pause_s = self._store._partitions.tick_interval_s()
            except Exception:  # noqa: BLE001 - the thread must live
                logger.exception("background work failed")
            with suppress(queue.Empty):
                self._wakes.get(timeout=pause_s)
                while True:
                    self._wakes.get_nowait()
