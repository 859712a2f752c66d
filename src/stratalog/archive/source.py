"""One archived segment, to be read as if it lay in the partition's directory.

Small objects (seal, indexes, snapshot) are fetched whole and checked against the manifest's CRC. The log and
the key index are read by blocks, and checked by their reader, batch by batch and page by page.

A caller that has a segment only from a copy of the manifest passes ``check``: it is called before anything is
fetched, and raises FileNotFoundError when the archive's own manifest no longer has the segment.

An object that is not there any more raises FileNotFoundError, as a local file does, when the manifest no
longer has the segment: the reader then looks for its offset again. One that the manifest still has is damage
and raises ArchiveError.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from stratalog.archive.cache import Blocks
from stratalog.archive.manifest import SegmentEntry, StoredObject
from stratalog.archive.objects import Objects
from stratalog.errors import ArchiveError, CorruptionError, StorageError
from stratalog.fs import Buffer
from stratalog.kernel import crc32c

if TYPE_CHECKING:
    from stratalog.fs import File


class StoredSegment:
    """Reads one entry of a manifest.

    ``listed`` returns whether the archive's manifest still has it, when an object is missing; ``check`` is
    called before anything is fetched, and raises FileNotFoundError when it has not.
    """

    def __init__(
        self,
        objects: Objects,
        blocks: Blocks,
        prefix: str,
        entry: SegmentEntry,
        listed: Callable[[SegmentEntry], bool],
        check: Callable[[SegmentEntry], None] | None = None,
    ) -> None:
        self.entry = entry
        self.base_offset, self.next_offset = entry.base_offset, entry.next_offset
        self.size, self.crc, self.records = entry.size_bytes, entry.crc, entry.records
        self.min_timestamp, self.max_timestamp = entry.min_timestamp, entry.max_timestamp
        self.cleaned, self.modified_ms = entry.cleaned, entry.modified_ms
        self._objects = objects
        self._blocks = blocks
        self._prefix = prefix
        self._listed = listed
        self._check = check

    def __repr__(self) -> str:
        return f"<StoredSegment {self.url()}>"

    def url(self, kind: str = "log") -> str:
        """Return the object's address; of a log in several parts their common prefix."""
        parts = self.entry.parts()
        name = parts[0].name if kind == "log" and len(parts) == 1 else kind
        return self._objects.url_of(f"{self._prefix}/{name}")

    def has(self, kind: str) -> bool:
        return any(each.kind == kind for each in self.entry.objects)

    def read(self, kind: str) -> bytes | None:
        """Return a whole object, checked; None when the segment has none of that kind."""
        stored = self.entry.object(kind)
        if stored is None:
            return None
        if self._check is not None:
            self._check(self.entry)
        try:
            data = self._objects.get(f"{self._prefix}/{stored.name}").data
        except FileNotFoundError as error:
            self._missing(error, stored.name)
        if len(data) != stored.size or crc32c(data) != stored.crc:
            raise CorruptionError(
                f"{len(data)} bytes with CRC {crc32c(data):08x}, archived were {stored.size} with"
                f" {stored.crc:08x}",
                path=self.url(kind),
            )
        return data

    def open(self, kind: str = "log") -> File:
        """Open the log or another object for reading; FileNotFoundError when there is none."""
        stored = [each for each in self.entry.objects if each.kind == kind]
        if not stored and not (kind == "log" and self.size == 0):
            raise FileNotFoundError(f"no object at {self.url(kind)}")
        if self._check is not None:
            self._check(self.entry)
        return ArchivedFile(self, self.url(kind), stored)

    def read_into(self, stored: StoredObject, position: int, buffer: memoryview) -> None:
        try:
            self._blocks.read_into(f"{self._prefix}/{stored.name}", stored.size, position, buffer)
        except FileNotFoundError as error:
            self._missing(error, stored.name)

    def lead(self, stored: StoredObject, position: int) -> None:
        self._blocks.lead(f"{self._prefix}/{stored.name}", stored.size, position)

    def forget(self) -> None:
        """Drop the cached blocks of this segment."""
        self._blocks.forget(f"{self._prefix}/")

    def _missing(self, error: FileNotFoundError, name: str) -> NoReturn:
        if self._listed(self.entry):
            url = self._objects.url_of(f"{self._prefix}/{name}")
            raise ArchiveError("the manifest lists it, but the archive does not have it", url=url) from error
        raise error


class ArchivedFile:
    """A read-only file of one or several objects. It holds nothing open."""

    __slots__ = ("_ends", "_next", "_objects", "_segment", "_size", "path")

    def __init__(self, segment: StoredSegment, path: str, objects: list[StoredObject]) -> None:
        self.path = path
        self._segment = segment
        self._objects = objects
        self._ends = list(accumulate(each.size for each in objects))
        self._size = self._ends[-1] if objects else 0
        self._next = -1

    def size(self) -> int:
        return self._size

    def pread(self, size: int, offset: int) -> bytes:
        length = max(0, min(size, self._size - offset))
        buffer = bytearray(length)
        self.pread_into(buffer, offset)
        return bytes(buffer)

    def pread_into(self, buffer: bytearray | memoryview, offset: int) -> int:
        view = memoryview(buffer)
        length = max(0, min(len(view), self._size - offset))
        goes_on, at = offset == self._next, 0
        self._next = offset + length
        while at < length:
            part = bisect_right(self._ends, offset + at)
            stored = self._objects[part]
            inside = offset + at - (self._ends[part] - stored.size)
            taken = min(length - at, stored.size - inside)
            if goes_on:
                self._lead(part, inside + taken)
            self._segment.read_into(stored, inside, view[at : at + taken])
            at += taken
        return length

    def _lead(self, part: int, position: int) -> None:
        """Fetch ahead the rest of this object, or the beginning of the next."""
        stored = self._objects[part]
        if position < stored.size:
            self._segment.lead(stored, position)
        elif part + 1 < len(self._objects):
            self._segment.lead(self._objects[part + 1], 0)

    def pwrite(self, data: Buffer, offset: int) -> None:
        raise StorageError(f"{self.path}: an archived segment is not written to")

    def reserve(self, offset: int, size: int) -> bool:
        return False

    def truncate(self, size: int) -> None:
        raise StorageError(f"{self.path}: an archived segment is not written to")

    def sync(self) -> None:
        """It has been durable since it was put."""

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> ArchivedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
