"""What copies are made from, whatever it is: a partition of a store, or of an archive alone.

Only shapes; touches no disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from stratalog.config import BrokerConfig, TopicConfig
from stratalog.log.context import LogContext
from stratalog.log.names import SEGMENT_KINDS, Kind
from stratalog.log.segment.directory_state import SegmentFiles
from stratalog.log.segment.segment import Segment
from stratalog.store.catalog import TopicEntry

CutAt: TypeAlias = Callable[["Part"], int]


class Part(Protocol):
    """A partition to copy from: of a store, or of an archive alone."""

    topic: str
    partition: int
    entry: TopicEntry
    ours: bool
    """Whether its files are ours, so that they may be linked and copied as they are."""

    @property
    def directory(self) -> str: ...

    @property
    def context(self) -> LogContext: ...

    @property
    def config(self) -> TopicConfig: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int:
        """The high watermark when the partition was last looked at."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Archived ones, if any, then those in the directory."""

    @property
    def directory_files(self) -> Mapping[int, SegmentFiles]:
        """The files of the segments that lie in the directory, by base offset."""

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Offsets of the producer snapshots in the directory."""

    @property
    def linkable_below(self) -> int:
        """Segments that end at or below this offset are never written to again."""

    def leader_epochs(self) -> list[tuple[int, int]]: ...

    def at_rest(self) -> AbstractContextManager[None]:
        """Keep those who rewrite segments away for the length of the block, if they can be reached."""

    def look(self) -> object:
        """Look anew."""

    def unchanged(self, used: Iterable[str]) -> bool:
        """Whether these files of the last look are still what their names mean."""


class Origin(Protocol):
    """Where partitions come from."""

    context: LogContext
    config: BrokerConfig
    paths: list[str]

    def partitions(self, wanted: Iterable[str] | None = None) -> Sequence[Part]: ...


def names_of(files: SegmentFiles) -> dict[Kind, str]:
    """The files of a segment by kind, under their names of the moment."""
    found: dict[Kind, str] = {}
    for kind in SEGMENT_KINDS:
        name = files.file(kind)
        if name is not None:
            found[kind] = name
    return found
