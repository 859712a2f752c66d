"""The archive of one partition: a manifest, and folders of objects that it names.

    <topic>-<topic id>/<partition>/manifest.json
    <topic>-<topic id>/<partition>/segments/<base offset>/<number>/log.00000 index timeindex seal …

There is one writer at a time (`ManifestObject`), so whatever the manifest does not name is rubbish and may be
swept at once.

Order: objects, their read-back, the manifest; and the other way round when something goes: the manifest,
then the objects. Crash policy: between two requests the manifest is the old or the new one and everything it
names is there; what a crash leaves besides is finished by the next upload or removed by `sweep`.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from stratalog import locks
from stratalog.archive import manifest as manifests
from stratalog.archive.cache import Blocks
from stratalog.archive.manifest import About, Manifest, ManifestObject, SegmentEntry
from stratalog.archive.objects import Objects
from stratalog.archive.source import StoredSegment
from stratalog.archive.upload import PART_BYTES, Progress, SegmentUpload, Uploaded, read_back, upload
from stratalog.errors import ArchiveConflictError, ArchiveError, CorruptionError, InvalidArgumentError
from stratalog.format.metadata import id_to_text
from stratalog.fs import FileSystem


@dataclass(frozen=True, slots=True)
class Tools:
    """What all partitions of an archive share."""

    objects: Objects
    fs: FileSystem
    blocks: Blocks
    pool: ThreadPoolExecutor
    store_id: str
    session: str
    part_bytes: int = PART_BYTES
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


def partition_prefix(topic: str, topic_id: uuid.UUID, partition: int) -> str:
    return f"{topic}-{id_to_text(topic_id)}/{partition}"


class PartitionArchive:
    """Reads and changes the archive of one partition. Thread-safe; changes exclude each other."""

    def __init__(self, tools: Tools, topic: str, topic_id: uuid.UUID, partition: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.store_id = tools.store_id
        self.prefix = partition_prefix(topic, topic_id, partition)
        self._tools = tools
        self._objects = tools.objects
        self._key = f"{self.prefix}/{manifests.FILE_NAME}"
        self._lock = locks.rlock("archive.partition")
        self._busy: set[str] = set()
        """Folders that are being filled: no manifest names them yet, and they must not be swept."""
        blank = (topic, topic_id, partition)
        self._manifest_object = ManifestObject(tools.objects, self._key, blank, tools.store_id, tools.session)

    @property
    def url(self) -> str:
        """The address of the manifest."""
        return self._manifest_object.url

    def describe(self, about: About) -> None:
        """Set what manifests written from now on say of the topic."""
        self._manifest_object.about = about

    # -- reading -------------------------------------------------------------------------------------

    def manifest(self, *, refresh: bool = False) -> Manifest | None:
        """Return the manifest; None when the archive holds nothing of this partition, not even a claim.

        Without ``refresh`` it may be old, except for the writer.
        """
        return self._manifest_object.read(refresh=refresh)

    def open_segment(
        self,
        entry: SegmentEntry,
        check: Callable[[SegmentEntry], None] | None = None,
        listed: Callable[[SegmentEntry], bool] | None = None,
    ) -> StoredSegment:
        """Open a segment for reading by ranges through the cache; see `StoredSegment` for the callbacks."""
        folder = self._folder(entry.name)
        known = listed or self.is_listed
        return StoredSegment(self._objects, self._tools.blocks, folder, entry, known, check)

    def is_listed(self, entry: SegmentEntry) -> bool:
        """Return whether the archive's manifest has this segment now."""
        manifest = self.manifest(refresh=True)
        return manifest is not None and any(each.name == entry.name for each in manifest.segments)

    def _folder(self, name: str) -> str:
        return f"{self.prefix}/segments/{name}"

    def missing(self, entry: SegmentEntry) -> list[str]:
        """Return the URLs of a segment's objects that are missing or have another size."""
        folder = self._folder(entry.name)
        sizes = {info.key: info.size for info in self._objects.list(f"{folder}/")}
        keys = ((f"{folder}/{each.name}", each.size) for each in entry.objects)
        return [self._objects.url_of(key) for key, size in keys if sizes.get(key) != size]

    def verify(self, entry: SegmentEntry, progress: Progress | None = None) -> None:
        """Read every object of a segment and compare; CorruptionError or ArchiveError for a bad one."""
        total, done = entry.stored_bytes, 0
        for each in entry.objects:
            try:
                read_back(self._objects, self._folder(entry.name), each)
            except FileNotFoundError as error:
                url = self._objects.url_of(f"{self._folder(entry.name)}/{each.name}")
                reason = "the manifest lists it, but the archive does not have it"
                raise ArchiveError(reason, url=url) from error
            done += each.size
            if progress is not None:
                progress(done, total)

    def download(self, entry: SegmentEntry, directory: str, *, progress: Progress | None = None) -> list[str]:
        """Write a segment's files into a directory, checked and synced; return their paths, the log's first.

        The caller must sync the directory.
        """
        fs, folder = self._tools.fs, self._folder(entry.name)
        total, done, paths = entry.stored_bytes, 0, []
        log = f"{directory}/{entry.base_offset:020d}.log"
        with fs.open(log, "x") as file:
            position = 0
            for part in entry.parts():
                file.pwrite(read_back(self._objects, folder, part), position)
                position += part.size
                done += part.size
                if progress is not None:
                    progress(done, total)
            file.sync()
        paths.append(log)
        for kind in manifests.KINDS[1:]:
            stored = entry.object(kind)
            if stored is None:
                continue
            offset = entry.next_offset if kind == "snapshot" else entry.base_offset
            path = f"{directory}/{offset:020d}.{kind}"
            fs.write_file(path, read_back(self._objects, folder, stored), sync=True)
            paths.append(path)
            done += stored.size
            if progress is not None:
                progress(done, total)
        if entry.modified_ms is not None:
            fs.set_mtime_ns(log, entry.modified_ms * 1_000_000)
        return paths

    def claim(self, *, take_over: bool = False) -> Manifest:
        """Become the one writer, as every change does first. ``take_over`` is for when the owner is gone.

        Raise ArchiveConflictError when another store, or a later process of this store, owns it.
        """
        with self._lock:
            return self._manifest_object.claim(take_over=take_over)

    # -- changes -------------------------------------------------------------------------------------

    def upload(self, segment: SegmentUpload, progress: Progress | None = None) -> SegmentEntry:
        """Archive one segment; on return it is durable, read back and in the manifest."""
        return self.upload_all([segment], progress)[0]

    def upload_all(
        self, segments: Sequence[SegmentUpload], progress: Progress | None = None
    ) -> list[SegmentEntry]:
        """Archive neighbours with one change of the manifest.

        They replace archived segments of the same offsets, none of which may reach further. A segment that is
        archived byte for byte stays as it is; one that the log start offset has passed is not archived.
        """
        with self._lock:
            manifest = self._manifest_object.claim()
            if manifest.deleted:
                raise ArchiveError("the topic is being deleted from this archive", url=self.url)
            _check_fit(manifest, segments)
        known = [self._present(manifest, segment) for segment in segments]
        start, end = segments[0].base_offset, segments[-1].next_offset
        with self._putting(manifest, segments, known, progress) as entries:
            names = {entry.name for entry in entries}

            def change(current: Manifest) -> tuple[SegmentEntry, ...]:
                wanted = [each for each in entries if each.next_offset > current.log_start_offset]
                # An earlier try whose answer got lost may have put these very objects into the manifest.
                covered = current.overlapping(start, end)
                kept = [each for each in current.segments if each.name not in names and each not in covered]
                return (*kept, *wanted)

            if any(entry not in manifest.segments for entry in entries):
                self._swap(change, entries)
            return entries

    def replace(
        self, olds: Sequence[SegmentEntry], news: Sequence[SegmentUpload], progress: Progress | None = None
    ) -> list[SegmentEntry]:
        """Replace archived segments by rewritten ones in one change of the manifest; delete the old objects.

        Raise ArchiveConflictError, with nothing changed, when one of ``olds`` is no longer in the manifest.
        """
        with self._lock:
            manifest = self._manifest_object.claim()
        with self._putting(manifest, news, [None] * len(news), progress) as entries:
            names = {entry.name for entry in entries}

            def change(current: Manifest) -> tuple[SegmentEntry, ...]:
                done = any(each.name in names for each in current.segments)
                if not done and any(old not in current.segments for old in olds):
                    raise ArchiveConflictError("a segment was changed meanwhile", url=self.url)
                kept = [each for each in current.segments if each not in olds and each.name not in names]
                return (*kept, *entries)

            self._swap(change, entries)
            return entries

    def _swap(
        self, change: Callable[[Manifest], tuple[SegmentEntry, ...]], entries: Sequence[SegmentEntry]
    ) -> None:
        """Change the list of segments, then delete the objects of those that left it."""
        before: list[SegmentEntry] = []

        def applied(current: Manifest) -> Manifest:
            before[:] = current.segments
            segments = sorted(change(current), key=lambda each: each.base_offset)
            return replace(current, segments=tuple(segments))

        with self._lock:
            kept = {each.name for each in self._manifest_object.change(applied).segments}
        self._delete_objects([each for each in (*before, *entries) if each.name not in kept])

    @contextmanager
    def _putting(
        self,
        manifest: Manifest,
        segments: Sequence[SegmentUpload],
        known: Sequence[SegmentEntry | None],
        progress: Progress | None,
    ) -> Iterator[list[SegmentEntry]]:
        """Put the objects of segments and yield their entries; they are not swept while the block runs."""
        busy: list[str] = []
        try:
            entries = []
            for segment, present in zip(segments, known, strict=True):
                if present is None:
                    with self._lock:
                        name, found = self._begun(manifest, segment)
                        self._busy.add(name)
                        busy.append(name)
                    present = self._put_objects(name, found, segment, progress)
                entries.append(present)
            yield entries
        finally:
            with self._lock:
                self._busy.difference_update(busy)

    def _present(self, manifest: Manifest, segment: SegmentUpload) -> SegmentEntry | None:
        """Return the entry that is a whole copy of this segment."""
        entry = manifest.entry(segment.base_offset)
        seal = segment.seal
        if entry is None or seal is None or entry.next_offset != segment.next_offset:
            return None
        kinds = {each.kind for each in entry.objects} - {"snapshot"}
        same = entry.same_log(segment.size_bytes, seal.crc) and set(segment.files) - {"snapshot"} == kinds
        return entry if same and not self.missing(entry) else None

    def _put_objects(
        self, name: str, present: dict[str, int], segment: SegmentUpload, progress: Progress | None
    ) -> SegmentEntry:
        try:
            done = upload(
                self._objects,
                self._tools.fs,
                self._folder(name),
                segment,
                self._tools.pool,
                present=present,
                part_bytes=self._tools.part_bytes,
                progress=progress,
            )
        except CorruptionError:
            # It will not get better by trying again: leave nothing of it.
            with suppress(ArchiveError):
                self._objects.delete([info.key for info in self._objects.list(f"{self._folder(name)}/")])
            raise
        unknown = set(present) - {each.name for each in done.objects}
        if unknown:
            self._objects.delete([f"{self._folder(name)}/{each}" for each in sorted(unknown)])
        return _entry(segment, name, done, self._tools.now_ms())

    def _begun(self, manifest: Manifest, segment: SegmentUpload) -> tuple[str, dict[str, int]]:
        """Return the folder of an interrupted upload and its objects; else the name of a new one."""
        taken = {each.name for each in manifest.segments} | self._busy
        stem = f"{segment.base_offset:020d}"
        root = self._folder(stem)
        folders: dict[str, dict[str, int]] = {}
        for info in self._objects.list(f"{root}/"):
            number, _, rest = info.key[len(root) + 1 :].partition("/")
            if f"{stem}/{number}" not in taken and manifests.is_number(number):
                folders.setdefault(f"{stem}/{number}", {})[rest] = info.size
        if folders:
            name = min(folders)
            return name, folders[name]
        return f"{stem}/{secrets.token_hex(8)}", {}

    def remove(self, entries: Collection[SegmentEntry], *, log_start_offset: int = 0) -> None:
        """Remove segments from the archive; the log start offset moves with them, never back."""
        with self._lock:
            if not entries and not log_start_offset:
                return
            self.claim()
            names = {each.name for each in entries}
            self._manifest_object.change(
                lambda current: replace(
                    current,
                    segments=tuple(each for each in current.segments if each.name not in names),
                    log_start_offset=max(current.log_start_offset, log_start_offset),
                )
            )
            self._delete_objects(entries)

    def set_log_start(self, offset: int) -> list[SegmentEntry]:
        """Remove the segments that lie below ``offset``, and return them."""
        with self._lock:
            manifest = self.claim()
            gone = [each for each in manifest.segments if each.next_offset <= offset]
            if gone or offset > manifest.log_start_offset:
                self.remove(gone, log_start_offset=offset)
            return gone

    def mark_deleted(self, deleted: bool = True) -> None:
        """Mark the topic as being deleted, before `delete_everything`; or as not, after all."""
        with self._lock:
            manifest = self.manifest(refresh=True)
            if manifest is not None and manifest.deleted != deleted:
                self.claim()
                self._manifest_object.change(lambda current: replace(current, deleted=deleted))

    def delete_everything(self) -> None:
        """Remove all objects, the manifest last. Only after `mark_deleted`."""
        with self._lock:
            manifest = self.manifest(refresh=True)
            if manifest is None:
                return
            if not manifest.deleted:
                raise InvalidArgumentError(f"{self.url}: not marked as deleted")
            self.claim()
            keys = [info.key for info in self._objects.list(f"{self.prefix}/") if info.key != self._key]
            self._objects.delete(keys)
            self._objects.delete([self._key])
            self._manifest_object.forget()
            self._tools.blocks.forget(f"{self.prefix}/")

    # -- rubbish -------------------------------------------------------------------------------------

    def orphans(self, keep: Collection[int] = ()) -> list[str]:
        """Return the keys that the manifest does not name: leftovers of interrupted uploads and removals.

        ``keep``: base offsets of local segments whose upload will go on.
        """
        listed = [info.key for info in self._objects.list(f"{self.prefix}/")]
        manifest = self.manifest(refresh=True)
        segments = () if manifest is None else manifest.segments
        named = {f"{self._folder(each.name)}/{stored.name}" for each in segments for stored in each.objects}
        kept = [f"{self._folder(f'{base:020d}')}/" for base in keep]
        kept += [f"{self._folder(name)}/" for name in self._busy]
        return [
            key for key in listed if key not in named and key != self._key and not key.startswith(tuple(kept))
        ]

    def sweep(self, keep: Collection[int] = ()) -> list[str]:
        """Remove orphans and return their URLs, unless another store owns the archive."""
        with self._lock:
            if not self.orphans(keep):
                return []
            self.claim()
            # A put of the manifest that was given up as failed must not take effect behind our back.
            self._manifest_object.change(lambda current: current)
            doomed = self.orphans(keep)
            self._objects.delete(doomed)
            return [self._objects.url_of(key) for key in doomed]

    def _delete_objects(self, entries: Collection[SegmentEntry]) -> None:
        for entry in entries:
            folder = self._folder(entry.name)
            self._objects.delete([f"{folder}/{each.name}" for each in entry.objects])
            self._tools.blocks.forget(f"{folder}/")


def _check_fit(manifest: Manifest, segments: Sequence[SegmentUpload]) -> None:
    end = segments[0].base_offset
    for segment in segments:
        if segment.base_offset != end or segment.next_offset <= end:
            raise InvalidArgumentError(
                f"segments to archive are not neighbours at offset {segment.base_offset}"
            )
        end = segment.next_offset
    start = segments[0].base_offset
    for old in manifest.overlapping(start, end):
        if old.base_offset < start or old.next_offset > end:
            raise InvalidArgumentError(
                f"archived segment {old.base_offset} to {old.next_offset} reaches past {start} to {end}"
            )


def _entry(segment: SegmentUpload, name: str, done: Uploaded, now_ms: int) -> SegmentEntry:
    seal = segment.seal
    known = seal is not None and seal.batches > 0
    return SegmentEntry(
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        name=name,
        size_bytes=segment.size_bytes,
        crc=done.log_crc,
        objects=done.objects,
        records=None if seal is None else seal.records,
        min_timestamp=seal.min_timestamp if seal is not None and known else None,
        max_timestamp=seal.max_timestamp if seal is not None and known else None,
        cleaned=seal is not None and seal.cleaned,
        modified_ms=segment.modified_ms,
        uploaded_ms=now_ms,
    )
