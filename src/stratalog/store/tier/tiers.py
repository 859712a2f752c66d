"""The local state of one partition's archive, and how readers see it.

The copy of the manifest in the partition's directory, `stratalog.archive`, is what a store opens and lists
with, without asking anybody. Before the first byte is read from the archive, and before anything there is
changed, the archive's own manifest is read: a crash may have left the copy behind it, and what was
erased or deleted in between must not be read.

Crash policy: the copy is replaced atomically, after the archive's manifest and before any local file goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from stratalog import locks
from stratalog.archive import About, Archive, Manifest, PartitionArchive, SegmentEntry
from stratalog.archive.manifest import LocalCopy, pack_local, parse_local
from stratalog.errors import ArchiveError, ClosedError, CorruptionError, FormatError, StorageError
from stratalog.format.identity import NO_TOPIC_ID
from stratalog.format.keyindex import KeyIndexReader
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.names import ARCHIVE, KEYINDEX, parse_partition_dir
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.follower import is_still
from stratalog.log.read.list_offsets import read_epochs
from stratalog.log.segment.directory_state import list_files, view_of
from stratalog.log.segment.segment import Segment, owner_of

ANOTHER_ARCHIVE = (
    "set log.archive.url, with --store-config or STRATALOG_CONFIG, to the archive that has the records"
)


def read_local_copy(fs: FileSystem, directory: str) -> LocalCopy | None:
    """`stratalog.archive` of a partition; None when there is none. CorruptionError when it is damaged."""
    path = f"{directory}/{ARCHIVE}"
    try:
        return parse_local(fs.read_file(path), path)
    except FileNotFoundError:
        return None


def local_start_offset(fs: FileSystem, directory: str) -> int:
    """From where on a partition's log lies here; what is left of files below it is to be removed."""
    try:
        copy = read_local_copy(fs, directory)
    except FormatError:
        return 0  # then nothing is removed; attaching the archive reports that the copy is damaged
    return 0 if copy is None else copy.local_start_offset


def missing_in(fs: FileSystem, log_dirs: Iterable[str], archive: Archive) -> list[str]:
    """Compare an archive with the local copies of its manifests; return a line for each part it lacks."""
    lines = []
    for log_dir in log_dirs:
        if not fs.exists(log_dir):
            continue
        for name in fs.list_dir(log_dir):
            parsed = parse_partition_dir(name)
            if parsed is None or parsed.state:
                continue
            try:
                copy = read_local_copy(fs, f"{log_dir}/{name}")
                if copy is None:
                    continue
                known, start = copy
                there = archive.partition(known.topic, known.topic_id, known.partition)
                found = there.manifest(refresh=True)
            except FormatError as error:
                lines.append(str(error))
                continue
            missing = _lost(known, start, found)
            if missing is None and found is None and known.segments:
                missing = known.segments[0].base_offset  # local too, and yet: this is another archive
            if missing is not None:
                lines.append(f"{name}: {_not_there(there, missing, found)} ({ANOTHER_ARCHIVE})")
    return lines


def _not_there(archive: PartitionArchive, offset: int, found: Manifest | None) -> ArchiveError:
    """Build the error for records that only the archive should have, and has not."""
    fault = f", which has no such topic {archive.topic}" if found is None else " and is not"
    error = ArchiveError(
        f"offset {offset} should be in this archive{fault}; was log.archive.url changed?", url=archive.url
    )
    error.add_note(ANOTHER_ARCHIVE)
    return error


class Tier:
    """One partition's archive as this process sees it. Thread-safe."""

    def __init__(self, context: LogContext, directory: str, archive: PartitionArchive) -> None:
        self.archive = archive
        self.directory = directory
        self.lock = locks.rlock("tier")
        """Held during a change of the archive, I/O and all."""
        self._known: tuple[Manifest | None, int] = (None, 0)
        """The manifest and the local start offset, replaced together."""
        self.closed = False
        """True when the partition is being moved, or was: another tier takes over."""
        self._context = context
        self._mutex = locks.lock("tier.manifest")
        self._saving = locks.lock("tier.copy")
        self._confirmed = False
        self._saved: Manifest | None = None
        self._segments: dict[str, ArchivedSegment] = {}
        self._cold: tuple[Manifest | None, tuple[ArchivedSegment, ...]] = (None, ())
        self.changed: Callable[[], None] = lambda: None
        """Called when the archive turns out to be ahead of the copy."""

    @property
    def manifest(self) -> Manifest | None:
        return self._known[0]

    @property
    def local_start_offset(self) -> int:
        return self._known[1]

    def load(self, *, lacks_its_start: bool = False) -> None:
        """Take what the local copy says; the archive counts from the first use on.

        A copy that is damaged, or is gone although the files here lack the start of the log, is no answer:
        the archive is asked at once.
        """
        try:
            copy = read_local_copy(self._context.fs, self.directory)
        except FormatError as error:
            self._context.warn(f"{error}; the archive is asked instead")
            with self._mutex:
                self._known, self._confirmed = (None, 0), False
            self._ask()
            return
        if copy is not None:
            with self._mutex:
                self._known, self._confirmed = (copy.manifest, copy.local_start_offset), False
            self._saved = copy.manifest
        elif lacks_its_start:
            self._ask()

    def _ask(self) -> None:
        try:
            self.confirm()
        except ArchiveError as unreachable:
            self._context.warn(f"{self.directory}: the archived segments are unknown: {unreachable}")

    def save(self, local_start: int = 0) -> None:
        """Write the local copy; from then on what ends at or below ``local_start`` is no longer local."""
        with self._saving:
            if self.closed:
                raise ClosedError(f"{self.directory} is no longer open")
            if self.manifest is not None:
                manifest, start = self.manifest, max(self.local_start_offset, local_start)
                data = pack_local(LocalCopy(manifest, start))
                self._context.fs.write_atomic(f"{self.directory}/{ARCHIVE}", data)
                with self._mutex:
                    self._known = (self.manifest, start)
                self._saved = manifest

    @property
    def behind(self) -> bool:
        """True when the archive is known to be ahead of the copy."""
        return self.manifest is not self._saved and self.manifest != self._saved

    def close(self) -> None:
        """Write nothing more to the partition's directory; waits for a copy that is being written."""
        with self._saving:
            self.closed = True

    def confirm(self) -> None:
        """Ask the archive, once. ArchiveError when it lost what only it should have.

        FileNotFoundError when the topic was deleted meanwhile, and its archive with it.
        """
        while not self._confirmed:
            manifest, local_start = known = self._known
            found = self.archive.manifest(refresh=True)  # under no lock: readers of local files must not wait
            if found is not None and manifest is None and found.owner != self.archive.store_id:
                found = None  # another store's, which a copy of it must not lean on
            missing = _lost(manifest, local_start, found)
            if missing is not None and self._is_gone():
                raise FileNotFoundError(self.directory)
            with self._mutex:
                if self._known is not known:
                    continue  # the copy may be newer than the manifest that was read
                if missing is not None:
                    raise _not_there(self.archive, missing, found)
                self._known, self._confirmed = (found, local_start), True
            if found != manifest:
                self.changed()

    def _is_gone(self) -> bool:
        """Return True if the directory is not there, or belongs to the next topic of the name."""
        fs = self._context.fs
        ids = (NO_TOPIC_ID, self.archive.topic_id.bytes)
        return not fs.exists(self.directory) or owner_of(fs, self.directory, 0).topic_id not in ids

    def doubt(self) -> None:
        """Mark the manifest as possibly out of date: a change failed half-way, or an object is gone."""
        self._confirmed = False

    @property
    def mine(self) -> bool:
        """True if this store is the one that writes the archive, as far as is known."""
        return self.manifest is not None and self.manifest.owner == self.archive.store_id

    def committed(self) -> None:
        """Keep a copy of the manifest that this process has just changed."""
        manifest = self.archive.manifest()
        with self._mutex:
            before = self.manifest
            if before is None or manifest is None or manifest.generation >= before.generation:
                self._known = (manifest, self.local_start_offset)  # else another thread's change came after
        self.save()

    def describe(self, partitions: int, overrides: dict[str, str]) -> None:
        """Set what the archive's manifests contain of the topic from now on."""
        epochs: list[tuple[int, int]] = []
        with suppress(CorruptionError):  # a rebuilt partition begins with epoch 0, as one without the file
            epochs = read_epochs(self._context.fs, self.directory)
        self.archive.describe(About(partitions, overrides, tuple(epochs) or ((0, 0),)))

    def cold(self) -> tuple[tuple[ArchivedSegment, ...], int]:
        """Return the archived segments, the same objects each time, and the archive's log start offset."""
        with self._mutex:
            manifest = self.manifest
            if manifest is None:
                return (), 0
            start = manifest.log_start_offset
            if self._cold[0] is not manifest:
                found: dict[str, ArchivedSegment] = {}
                for entry in manifest.segments:
                    if entry.next_offset > start:
                        found[entry.name] = self._segments.get(entry.name) or self._segment(entry)
                self._segments = found
                self._cold = (manifest, tuple(found.values()))
            return self._cold[1], start

    def _segment(self, entry: SegmentEntry) -> ArchivedSegment:
        archive = self.archive
        location = PartitionLocation(self._context, self.directory, archive.topic, archive.partition)
        return ArchivedSegment(location, archive.open_segment(entry, self._check, self._listed))

    def _listed(self, entry: SegmentEntry) -> bool:
        """After an object was found missing; the next read asks the archive before anything else."""
        listed = self.archive.is_listed(entry)
        if not listed:
            self.doubt()
        return listed

    def _check(self, entry: SegmentEntry) -> None:
        """Before a read: the copy's word is not enough."""
        if self._confirmed:
            return
        self.confirm()
        manifest = self.manifest
        if manifest is None or all(each.name != entry.name for each in manifest.segments):
            raise FileNotFoundError(f"{self.archive.url}: segment {entry.base_offset} was replaced")


class ColdFollower:
    """The archived segments of a partition that another process writes, by the copy in its directory.

    ``open_archive`` is called when there is a copy, or to `ask` because there is none. Each call costs one
    stat while nothing changed.
    """

    def __init__(
        self, context: LogContext, directory: str, open_archive: Callable[[], PartitionArchive]
    ) -> None:
        self._context = context
        self._directory = directory
        self._open_archive = open_archive
        self._tier: Tier | None = None
        self._seen: tuple[int, ...] = ()

    def ask(self, log_start: int) -> None:
        """Ask the archive itself if the copy is gone and the files here begin behind ``log_start``."""
        fs = self._context.fs
        with suppress(FileNotFoundError):
            local = view_of(list_files(fs, self._directory)).segments
            lacks = bool(local) and local[0].base_offset > log_start
            if lacks and not fs.exists(f"{self._directory}/{ARCHIVE}"):
                tier = Tier(self._context, self._directory, self._open_archive())
                tier.load(lacks_its_start=True)
                self._tier = tier

    def __call__(self) -> tuple[tuple[Segment, ...], int]:
        """Return what the archive has, and its log start offset."""
        try:
            stat = self._context.fs.stat(f"{self._directory}/{ARCHIVE}")
        except FileNotFoundError:
            return ((), 0) if self._tier is None else self._tier.cold()
        if self._tier is None:
            self._tier = Tier(self._context, self._directory, self._open_archive())
        seen = (stat.mtime_ns, *stat.identity)
        if seen != self._seen:
            read_at = time.time_ns()
            self._tier.load()
            self._seen = seen if is_still(stat.mtime_ns, read_at) else ()
        return self._tier.cold()


def copy_of(manifest: Manifest | None, segment: Segment) -> SegmentEntry | None:
    """Return the entry that is a copy of this local segment, as it is now."""
    entry = None if manifest is None else manifest.entry(segment.base_offset)
    if entry is None or entry.next_offset != segment.next_offset or entry.size_bytes != segment.size:
        return None
    try:
        seal = segment.seal
    except (CorruptionError, StorageError):
        return None
    if seal is None:
        return entry if entry.object("seal") is None else None
    return entry if entry.same_log(segment.size, seal.crc) else None


def keys_in(
    context: LogContext,
    segments: Sequence[ArchivedSegment],
    keys: Iterable[bytes],
    hash_of: Callable[[bytes], int],
) -> set[bytes]:
    """Return the keys that archived segments may hold, by their key indexes; all if one has none."""
    wanted = set(keys)
    left = sorted((hash_of(key), key) for key in wanted)
    found: set[bytes] = set()
    for segment in segments:
        try:
            here = _held(segment, left)
        except (ArchiveError, FormatError, FileNotFoundError) as error:
            context.warn(f"{segment.path(KEYINDEX)}: {error}; every key may be there")
            here = None
        if here is None:
            return wanted
        found |= here
        left = [pair for pair in left if pair[1] not in here]
    return found


def _held(segment: ArchivedSegment, keys: Sequence[tuple[int, bytes]]) -> set[bytes] | None:
    """Return the keys whose hash is in a segment's key index; None when it has none to go by."""
    if not segment.has(KEYINDEX):
        return None
    with segment.open_keyindex() as file:
        reader = KeyIndexReader(file.pread, file.size())
        if not reader.matches(segment.size, segment.source.crc):
            return None
        return {key for digest, key in keys if next(reader.newest_first(digest), None) is not None}


def _lost(known: Manifest | None, local_start: int, found: Manifest | None) -> int | None:
    """Return the first offset that only the archive should have, by the local copy, and does not."""
    if known is None:
        return None
    start = max(known.log_start_offset, found.log_start_offset if found is not None else 0)
    cold = [each for each in known.segments if start < each.next_offset <= local_start]
    at = max(start, cold[0].base_offset) if cold else local_start
    for each in () if found is None else found.segments:
        if each.base_offset <= at:
            at = max(at, each.next_offset)
    return at if at < local_start else None
