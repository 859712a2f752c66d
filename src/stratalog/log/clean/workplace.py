"""What a cleaning knows of its partition, and how what it made takes the old one's place.

A round works on a `Workplace`. Where this process writes the partition that is the `WriterPlace`: every group
is swapped in as soon as it is made. Where another process does, it is a copy of the facts and a directory of
its own (`elsewhere`). The rules of cleaning are the same in both, and so are the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from stratalog.config import TopicConfig
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.check.damage import Damage
from stratalog.log.clean.reading import aborted_of
from stratalog.log.clean.rewriting import Target
from stratalog.log.clean.swap import swap_in
from stratalog.log.context import LogContext
from stratalog.log.policy.cleaning import Cleanable
from stratalog.log.segment.segment import Segment
from stratalog.log.write.writer import PartitionWriter

Aborted = tuple[AbortedTxn, ...] | Damage
"""The transactions aborted in a segment, or why nobody can tell."""


class Workplace(Protocol):
    """One partition while it is cleaned. One round at a time is the caller's care."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def directory(self) -> str:
        """The partition's own, where its snapshots lie."""

    @property
    def config(self) -> TopicConfig: ...

    @property
    def context(self) -> LogContext: ...

    def sealed(self) -> Sequence[Segment]:
        """The local segments that are sealed, in order, as they are by now."""

    def transactions(self) -> Iterator[tuple[int, Aborted]]:
        """For every local segment, the active one too: its base offset and what was aborted in it."""

    def archived_end(self) -> int:
        """Below this offset records lie in the archive, out of a round's sight."""

    def producers(self) -> Sequence[ProducerEntry]:
        """The producers that are active."""

    def target(self, group: Sequence[Segment]) -> Target:
        """Where to write what becomes of a group."""

    def swap(self, group: Sequence[Segment], made: Sequence[Segment]) -> bool:
        """Put ``made`` in the place of ``group``; False when the log no longer has all of it."""


class WriterPlace:
    """A partition that this process writes."""

    def __init__(self, writer: PartitionWriter) -> None:
        self._writer = writer
        self.topic = writer.topic
        self.partition = writer.partition
        self.directory = writer.directory
        self.config = writer.config
        self.context = writer.context

    def sealed(self) -> Sequence[Segment]:
        return self._writer.local_segments()[:-1]

    def transactions(self) -> Iterator[tuple[int, Aborted]]:
        for segment in self._writer.local_segments():
            yield segment.base_offset, aborted_of(segment)

    def archived_end(self) -> int:
        local = self._writer.local_segments()
        return local[0].base_offset if len(self._writer.segments()) > len(local) else 0

    def producers(self) -> Sequence[ProducerEntry]:
        with self._writer.lock:
            return self._writer.producers.to_entries()

    def target(self, group: Sequence[Segment]) -> Target:
        return Target.beside(group[0], self.config)

    def swap(self, group: Sequence[Segment], made: Sequence[Segment]) -> bool:
        return swap_in(self._writer, group, made)


def round_end(writer: PartitionWriter, cleanable: Cleanable) -> int:
    """Where a round ends: at a segment's base, not past the last stable offset or the active one's."""
    bound = min(cleanable.first_uncleanable_offset, writer.end_offset("read_committed"))
    local = writer.local_segments()
    return max((each.base_offset for each in local if each.base_offset <= bound), default=bound)
