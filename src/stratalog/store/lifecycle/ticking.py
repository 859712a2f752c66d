"""What time makes due in the partitions of a store: idle rolls, flushes, write-behind.

Each partition's failure is its own: it is reported once and the others go on. A partition in which nothing
has happened since it was last looked at costs a few comparisons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.config import TopicConfig
from stratalog.log.context import LogContext
from stratalog.log.segment.segment import Segment
from stratalog.log.write.writer import PartitionWriter

if TYPE_CHECKING:
    from stratalog.store.registry import Registry

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
