"""A partition as a long read sees it: the same before and after it moves to another log directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from stratalog.errors import ClosedError, CorruptionError
from stratalog.log.write.writer import PartitionWriter

if TYPE_CHECKING:
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.read.reader import Isolation
    from stratalog.log.segment.segment import Segment
    from stratalog.store.partitions import Partitions
    from stratalog.store.registry import State, View

P = ParamSpec("P")
T = TypeVar("T")


def steady(partitions: Partitions, view: View) -> View:
    """Return a view that goes on with a partition's new writer after a move; a follower stays as it is."""
    if not isinstance(view, PartitionWriter):
        return view
    return cast(PartitionWriter, _SteadyView(partitions, view))


def unmoved(
    partitions: Partitions,
    view: View,
    look: Callable[Concatenate[View, P], T],
    *args: P.args,
    **options: P.kwargs,
) -> T:
    """Return ``look(view, …)``; look again, with its new writer, when the partition was moved meanwhile.

    For a short look: a file that went with the old directory is missing, or looks like one that never was.
    """
    registry = partitions.registry
    while True:
        try:
            found = look(view, *args, **options)
            if registry.view(view.topic, view.partition) is view:
                return found
        except (FileNotFoundError, CorruptionError):
            if registry.view(view.topic, view.partition) is view:
                raise
        after = partitions.successor(view) if isinstance(view, PartitionWriter) else None
        if after is None:
            return look(view, *args, **options)
        view = after


class _SteadyView:
    """Passes everything on to the writer that the partition has now; what is asked often, by a method."""

    __slots__ = ("_partitions", "_registry", "_state", "_writer", "partition", "topic")

    def __init__(self, partitions: Partitions, writer: PartitionWriter) -> None:
        self.topic = writer.topic
        self.partition = writer.partition
        self._partitions = partitions
        self._registry = partitions.registry
        self._state: State | None = None
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    def _now(self) -> PartitionWriter:
        state = self._registry.state
        if state is not self._state:
            self._writer = self._partitions.successor(self._writer) or self._writer
            self._state = state
        return self._writer

    @property
    def log_start_offset(self) -> int:
        return self._now().segment_list.log_start_offset

    @property
    def next_offset(self) -> int:
        return self._now().active.ledger.next_offset

    def refresh(self) -> None:
        self._now().refresh()

    def end_offset(self, isolation: Isolation = "read_uncommitted") -> int:
        return self._now().end_offset(isolation)

    def segments(self) -> tuple[Segment, ...]:
        return self._now().segment_list.all()

    def replaced(self, segment: Segment) -> bool:
        return self._now().replaced(segment)

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        return unmoved(self._partitions, self._now(), lambda view: view.aborted(start, end))

    def wait(self, *args: Any, **options: Any) -> bool:
        """Wait as the writer does; a move under way is waited for."""
        while True:
            writer = self._now()
            try:
                return writer.wait(*args, **options)
            except ClosedError:
                found = self._partitions.wait_for_successor(writer)
                if found is None:
                    raise
                self._writer = found
