"""Segments that lie only in the archive, read like local ones through a `SegmentSource` of the room above.

Small files come whole, the log and the key index by ranges; errors name the object's address. The manifest's
counts and times of a segment are trusted (they come from its seal, and the manifest has a checksum), so
lists, previews and time lookups fetch nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from stratalog.format.identity import PartitionId
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import File
from stratalog.log.context import PartitionLocation
from stratalog.log.names import KEYINDEX, TXNINDEX
from stratalog.log.segment.segment import Segment
from stratalog.model import SegmentInfo, SegmentState


class SegmentSource(Protocol):
    """One archived segment. Every method may be called from any thread."""

    base_offset: int
    next_offset: int
    size: int
    crc: int
    """CRC-32C of the log."""
    records: int | None
    min_timestamp: int | None
    max_timestamp: int | None
    cleaned: bool
    modified_ms: int | None

    def url(self, kind: str = "log") -> str:
        """Return the address of one of its files."""

    def has(self, kind: str) -> bool:
        """Return whether it has a file of that kind; makes no request."""

    def read(self, kind: str) -> bytes | None:
        """Return a whole file, checked; None when there is none."""

    def open(self, kind: str = "log") -> File:
        """Open a file for reading by ranges; FileNotFoundError when there is none, or no longer."""

    def forget(self) -> None:
        """Drop its cached blocks."""


class ArchivedSegment(Segment):
    """A segment of the archive. ``next_offset`` is where the next one, archived or local, begins."""

    __slots__ = ("source",)

    def __init__(
        self,
        location: PartitionLocation,
        source: SegmentSource,
    ) -> None:
        super().__init__(
            location,
            source.base_offset,
            size=source.size,
            next_offset=source.next_offset,
        )
        self.source = source

    def path(self, kind: str = "log") -> str:
        return self.source.url(kind)

    def pin_log(self) -> File:
        return self.source.open()

    def unpin_log(self, file: File) -> None:
        file.close()

    @contextmanager
    def open_keyindex(self) -> Iterator[File]:
        with self.source.open(KEYINDEX) as file:
            yield file

    def forget(self) -> None:
        self.source.forget()
        self.context.cache.forget(self.serial)

    def has(self, kind: str) -> bool:
        return self.source.has(kind)

    @property
    def modified_ms(self) -> int | None:
        """When its log was last written to, before it went to the archive."""
        return self.source.modified_ms

    def owner(self) -> PartitionId:
        # The manifest vouches for the object; a restored topic may have another id than its archive.
        return PartitionId(partition=self.partition)

    def inode(self) -> int:
        return self.serial  # objects never change

    def sidecar(self, kind: str, *, limit: int = 1 << 40) -> bytes | None:
        return self.source.read(kind)

    def _load_aborted(self) -> tuple[tuple[AbortedTxn, ...], int]:
        # Most segments have none, and a seal need not be fetched to know it.
        return super()._load_aborted() if self.source.has(TXNINDEX) else ((), 0)

    def max_timestamp(self) -> int | None:
        known = self.source.max_timestamp
        return known if known is not None else super().max_timestamp()

    def info(self, state: SegmentState | None = None) -> SegmentInfo:
        source = self.source
        newest = source.max_timestamp
        return SegmentInfo(
            topic=self.topic,
            partition=self.partition,
            base_offset=self.base_offset,
            next_offset=self.base_offset if self.next_offset is None else self.next_offset,
            state=SegmentState.ARCHIVED if state is None else state,
            size_bytes=self.size,
            path=self.path(),
            min_timestamp=source.min_timestamp if source.records else None,
            max_timestamp=newest if newest is not None and newest >= 0 else None,
            records=source.records,
        )
