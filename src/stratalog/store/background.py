"""The background thread of a writable store, and what time makes due: idle rolls, flushes, write-behind.

The thread waits for nothing else, so that ``flush.ms`` is kept: the control socket and the janitor have
threads of their own. A partition's failure is reported once and does not stop the others. A partition in
which nothing has happened since the last tick costs a few comparisons.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.config import TopicConfig
from stratalog.log.context import LogContext, logger
from stratalog.log.segment.segment import Segment
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.admin.control import listen
from stratalog.store.admin.control_server import ControlServer

if TYPE_CHECKING:
    from stratalog.store.catalog import Registry
    from stratalog.store.store import Store


LONGEST_PAUSE_S = 1.0


class Background:
    """Runs until `stop`. Errors of the work itself are logged; they never end the thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stopping = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._control: ControlServer | None = None
        self._thread = threading.Thread(target=self._run, name="stratalog-background", daemon=True)

    def start(self, control: tuple[Callable[..., Any], Callable[..., int]] | None) -> None:
        """Start the threads; when this is interrupted, `stop` ends those that began.

        ``control`` are the first two arguments of a `ControlServer`; without them there is no socket.
        """
        if control is not None:
            self._serve(*control)
        self._thread.start()

    def _serve(self, run: Callable[..., Any], limit: Callable[..., int]) -> None:
        for each in self._store.partitions.dirs.online():
            try:
                self._control = ControlServer(run, limit, *listen(each.path))
            except OSError as error:
                logger.warning("no control socket in %s: %s", each.path, error)
            else:
                self._control.start()
                return

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
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
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
                pause_s = self._store.partitions.tick_interval_s()
            except Exception:  # noqa: BLE001 - the thread must live
                logger.exception("background work failed")
            with suppress(queue.Empty):
                self._wakes.get(timeout=pause_s)
                while True:
                    self._wakes.get_nowait()


LONGEST_QUIET_MS = 10_000
"""A quiet partition is looked at this often at least; an idle roll may be late by as much."""


class Troubles:
    """Failures that were reported. Each is reported once, until its cause is gone or another one comes."""

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._known: dict[str, str] = {}

    def report(self, where: str, error: Exception) -> None:
        """Warn of a failure, unless it is the one that was reported last for this place."""
        text = str(error) or type(error).__name__
        message = text if text.startswith(where) else f"{where}: {text}"
        if self._known.get(where) != message:
            self._known[where] = message
            self._context.warn(message)

    def clear(self, where: str) -> None:
        """Report the next failure again: this place works."""
        if self._known:
            self._known.pop(where, None)


class _Quiet(NamedTuple):
    """A partition in which everything was done; until one of these changes there is nothing to do."""

    next_offset: int
    segments: tuple[Segment, ...]
    config: TopicConfig
    seen_ms: int
    for_ms: int


class Ticker:
    """Looks after the writers of a store. Called by one thread at a time."""

    def __init__(self, context: LogContext, registry: Registry) -> None:
        self._context = context
        self._registry = registry
        self._quiet: dict[PartitionWriter, _Quiet] = {}
        self.troubles = Troubles(context)

    def tick(self) -> None:
        """Do what is due in every partition."""
        now_ms, before, quiet = self._context.clock.now_ms(), self._quiet, {}
        for writer in self._registry.writers:
            known = before.get(writer)
            if (
                known is None
                or known.next_offset != writer.next_offset
                or known.segments is not writer.local_segments()
                or known.config is not writer.config
                or not 0 <= now_ms - known.seen_ms < known.for_ms
            ):
                known = self._look_after(writer, now_ms)
            if known is not None:
                quiet[writer] = known
        self._quiet = quiet

    def _look_after(self, writer: PartitionWriter, now_ms: int) -> _Quiet | None:
        offset, segments, config = writer.next_offset, writer.local_segments(), writer.config
        try:
            writer.tick()
        except Exception as error:  # noqa: BLE001 - the other partitions must be looked after
            if self._registry.view(writer.topic, writer.partition) is writer:
                self.troubles.report(writer.directory, error)
            return None  # else its topic was deleted meanwhile
        self.troubles.clear(writer.directory)
        if writer.recovery_point < offset or writer.unusable is not None:
            return None
        shortest_ms = min(config.segment_ms, config.segment_align_ms or config.segment_ms)
        return _Quiet(offset, segments, config, now_ms, min(LONGEST_QUIET_MS, shortest_ms // 10))
