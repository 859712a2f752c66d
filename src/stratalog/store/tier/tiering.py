"""Moving segments between this machine and the archive.

A store without an archived topic never opens an archive (`Archives`). `Tiering.copy` puts sealed segments
into the archive, `drop_local` removes their files here, `expire` makes the archive follow the log start
offset, `rewrite` replaces archived segments by rewritten ones, `attach` gives a partition that is opened what
the archive has of it, `sweep` removes what earlier processes left there.

Crash policy. The archive's own order is in `archive.partition`. Here: the copy of the manifest in the
partition's directory is written after the archive's and before any local file goes, and says from which
offset on the log is local. A local segment counts as archived only while it is the very log the archive
has: after cleaning or erasing it is not, and replaces its predecessors there, oldest first, before its files
may go. So the archive is never newer in one place than in a place before it. A segment that only the archive
has is rewritten in a directory outside the log directories; until the archive's manifest changes, nothing has
happened, and the next sweep removes what a crash leaves there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from stratalog import kernel, locks
from stratalog.archive import (
    Archive,
    ArchiveOptions,
    Manifest,
    PartitionArchive,
    SegmentEntry,
    SegmentUpload,
    open_archive,
)
from stratalog.config import TopicConfig
from stratalog.errors import (
    ArchiveConflictError,
    ArchiveError,
    ClosedError,
    ConfigError,
    FormatError,
    StorageError,
    StratalogError,
)
from stratalog.format import metadata
from stratalog.format.metadata import META_PROPERTIES
from stratalog.fs import FileSystem
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.names import ARCHIVE, partition_dir
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.follower import Cold, nothing_cold
from stratalog.log.segment.segment import Segment
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.admin.control import Progress
from stratalog.store.tier.tiers import (
    ANOTHER_ARCHIVE,
    ColdFollower,
    Tier,
    copy_of,
    keys_in,
    read_local_copy,
)

if TYPE_CHECKING:
    from stratalog.archive.objects import Objects
    from stratalog.log.policy.preview import Step
    from stratalog.store.catalog import TopicEntry, View
    from stratalog.store.partitions import Partitions


Stop = Callable[[], bool]


class Tiering:
    """The archive of a store, for the partitions it writes. Thread-safe; one change a partition at a time.

    ``work_dir`` is where archived segments are rewritten: outside the log directories, removed afterwards.
    """

    def __init__(self, partitions: Partitions, archive: Archive, work_dir: str) -> None:
        self._partitions = partitions
        self._context = partitions.context
        self.archive = archive
        self._work_dir = work_dir
        self._lock = locks.lock("tiers")
        self._tiers: dict[tuple[str, int], Tier] = {}

    # -- opening -------------------------------------------------------------------------------------

    def attach(self, writer: PartitionWriter, entry: TopicEntry) -> None:
        """Give a writer that was just opened what the archive has.

        By the local copy: no request is made unless that is damaged or gone, and an archive out of reach is
        no reason not to open.
        """
        if entry.id is None:
            return
        key = (writer.topic, writer.partition)
        archive = self.archive.partition(writer.topic, entry.id, writer.partition)
        tier = self._tier(*key)
        if tier is None or tier.closed or tier.directory != writer.directory or tier.archive is not archive:
            tier = Tier(self._context, writer.directory, archive)
            lacks = writer.local_segments()[0].base_offset > writer.segment_list.deleted_to
            tier.load(lacks_its_start=lacks)  # not under the lock: it may ask the archive
            with self._lock:
                self._tiers[key] = tier
        tier.describe(entry.partitions, dict(entry.overrides))
        tier.changed = partial(_publish, writer, tier)
        if tier.manifest is not None:
            tier.changed()

    def suspend(self, topic: str, partition: int) -> None:
        """Before a partition is moved: from now on nothing is written to its directory from here.

        A thread that is changing the archive gets `ClosedError` and continues with the next writer.
        """
        tier = self._tier(topic, partition)
        if tier is not None:
            tier.close()

    @contextmanager
    def _changing(self, writer: PartitionWriter, tier: Tier) -> Iterator[None]:
        """Around a change of the archive: keep a copy of its manifest here, and let readers see it.

        A change that failed may have happened, in part or yet to come: then the archive is asked again.
        """
        try:
            yield
        except BaseException:
            tier.doubt()
            raise
        try:
            tier.committed()
        finally:
            # Without room for the copy no local file goes, but the archive has what it has.
            _publish(writer, tier)

    def _tier(self, topic: str, partition: int) -> Tier | None:
        with self._lock:
            return self._tiers.get((topic, partition))

    def _changeable(self, writer: PartitionWriter) -> Tier:
        """Return the tier of a partition, once the archive was asked."""
        tier = self._tier(writer.topic, writer.partition)
        if tier is None:
            raise ArchiveError(f"{writer.topic}-{writer.partition} has no topic id and cannot be archived")
        tier.confirm()
        if tier.manifest is None:
            self._refuse_another(tier)
        entry = self._partitions.entries.get(writer.topic)
        if entry is not None:
            tier.describe(entry.partitions, dict(entry.overrides))
        if tier.mine and tier.manifest is not None and tier.manifest.deleted:
            with self._changing(writer, tier):  # a deletion that was cut short before it counted
                tier.archive.mark_deleted(False)
        return tier

    def _refuse_another(self, tier: Tier) -> None:
        """Raise ArchiveError if segments of a partition are archived, and this archive has none of them."""
        copy = None
        with suppress(FormatError):
            copy = read_local_copy(self._context.fs, tier.directory)
        if copy is None or not copy.manifest.segments:
            return
        error = ArchiveError(
            f"this archive has no topic {copy.manifest.topic}, and segments of it are archived; was"
            f" log.archive.url changed? If their archive is lost for good, remove {tier.directory}/{ARCHIVE}",
            url=tier.archive.url,
        )
        error.add_note(ANOTHER_ARCHIVE)
        raise error

    # -- facts ---------------------------------------------------------------------------------------

    def is_archived(self, segment: Segment) -> bool:
        """Return True if the archive has a verified copy of this local segment, just as it is now."""
        tier = self._tier(segment.topic, segment.partition)
        return tier is not None and tier.mine and copy_of(tier.manifest, segment) is not None

    def archived(self, writer: PartitionWriter) -> list[ArchivedSegment]:
        """Return the segments that only the archive has."""
        return [segment for segment in writer.segments() if isinstance(segment, ArchivedSegment)]

    def may_be_below(self, writer: PartitionWriter) -> Callable[[Sequence[bytes]], set[bytes]] | None:
        """Return a filter for keys that an archived segment may hold, or None without an archive."""
        cold = self.archived(writer)
        if not cold:
            return None
        return lambda keys: keys_in(self._context, cold, keys, kernel.hash64)

    def may_hold(self, segment: ArchivedSegment, keys: Collection[bytes]) -> bool:
        """Return True if an archived segment may hold one of ``keys``: no key index, no certainty."""
        return bool(keys_in(self._context, [segment], keys, kernel.hash64))

    # -- carrying out --------------------------------------------------------------------------------

    def carry_out(
        self,
        writer: PartitionWriter,
        steps: Sequence[Step],
        *,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> None:
        """Carry out the steps of one plan that concern the archive."""
        leaving = [step.next_offset for step in steps if step.action == "drop-local"]
        if leaving:
            self.drop_local(writer, max(leaving))
        forgotten = {step.base_offset for step in steps if step.action == "drop-archive"}
        if forgotten:
            self.drop_archived(writer, forgotten)
        going = {step.base_offset for step in steps if step.action == "archive"}
        if going:
            self.copy(writer, going, progress=progress, stop=stop)

    def copy(
        self,
        writer: PartitionWriter,
        base_offsets: Collection[int],
        *,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> list[SegmentEntry]:
        """Put local sealed segments into the archive, oldest first, each verified before the next begins.

        Segments below them of which the archive has an older state go along.
        """
        tier = self._changeable(writer)
        done: list[SegmentEntry] = []
        with tier.lock:
            writer.settle_sealed()
            for group in _groups(writer, tier, base_offsets):
                if stop is not None and stop():
                    break
                self.expire(writer)  # or what was deleted since would look like a hole before this group
                try:
                    uploads = [_upload_of(segment) for segment in group]
                    with self._changing(writer, tier):
                        done += tier.archive.upload_all(uploads, _named(writer, progress))
                except FileNotFoundError:
                    local = writer.local_segments()
                    if all(segment in local for segment in group):
                        raise
                    # Else it was deleted meanwhile; what is left of the group goes in the next round.
        return done

    def drop_local(self, writer: PartitionWriter, offset: int) -> list[Segment]:
        """Remove the local files of archived segments below ``offset``, as far as they are safe there.

        The oldest first and without a gap: it stops before a segment the archive does not have as it is
        now, with every object there.
        """
        tier = self._changeable(writer)
        with tier.lock:
            # The archive is asked before `maintenance` is taken: deletions of records need that lock.
            tier.archive.claim()  # only the archive's writer may count on it
            held = self._held_by_archive(tier, writer, offset)
            with writer.maintenance:
                end = None
                for segment in writer.local_segments()[:-1]:
                    entry = copy_of(tier.manifest, segment)
                    if entry is None or entry not in held:  # replaced meanwhile
                        break
                    end = segment.next_offset
                if end is None:
                    return []
                writer.settle_tail()
                tier.save(end)
                gone = writer.drop_local(end)
                delay_s = writer.config.file_delete_delay_ms / 1000
                self._context.deletions.add(self._context, writer.directory, gone, delay_s)
                return gone

    def _held_by_archive(self, tier: Tier, writer: PartitionWriter, offset: int) -> list[SegmentEntry]:
        """Return the archive's copies of the oldest local segments below ``offset``, every object there."""
        held: list[SegmentEntry] = []
        for segment in writer.local_segments()[:-1]:
            entry = copy_of(tier.manifest, segment)
            if segment.next_offset is None or segment.next_offset > offset or entry is None:
                break
            missing = tier.archive.missing(entry)
            if missing:
                listed = tier.archive.manifest()
                if listed is None or all(each.name != entry.name for each in listed.segments):
                    continue  # deleted meanwhile: it leaves the manifest before its objects go
                reason = f"the manifest lists it, but the archive does not have it; {segment.path()} is kept"
                raise ArchiveError(reason, url=missing[0])
            held.append(entry)
        return held

    def drop_archived(self, writer: PartitionWriter, base_offsets: Collection[int]) -> None:
        """Remove the archive's copies of segments that are local: it is turned off for this topic."""
        tier = self._changeable(writer)
        with tier.lock:
            first = writer.local_segments()[0].base_offset
            known = () if tier.manifest is None else tier.manifest.segments
            entries = [
                each for each in known if each.base_offset in base_offsets and each.base_offset >= first
            ]
            if entries:
                with self._changing(writer, tier):
                    tier.archive.remove(entries)

    def expire(self, writer: PartitionWriter) -> PartitionWriter:
        """Make the archive follow the log start offset: what lies below it goes, and does not come back.

        Call it after the log start offset was made durable here, and before a deletion is acknowledged.
        It claims nothing, so that a deletion waits for no upload: ClosedError says that the partition was
        moved meanwhile, and its next writer is to be asked.
        """
        if self._partitions.registry.view(writer.topic, writer.partition) is not writer:
            raise ClosedError(f"{writer.directory} is no longer open")
        tier = self._tier(writer.topic, writer.partition)
        if tier is None or (tier.manifest is None and not writer.config.remote_storage_enable):
            return writer
        tier.confirm()
        manifest, start = tier.manifest, writer.log_start_offset
        if manifest is None or not tier.mine:
            return writer
        if start > manifest.log_start_offset or _below(manifest, start):
            with self._changing(writer, tier):
                tier.archive.set_log_start(start)
        elif tier.behind:
            tier.save()
        return writer

    def rewrite(
        self,
        writer: PartitionWriter,
        engine: Engine,
        *,
        wanted: Callable[[ArchivedSegment], bool] = lambda segment: True,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> list[SegmentEntry]:
        """Rewrite the segments that only the archive has: fetched, given to ``engine``, replaced there.

        Local ones that were rewritten since they were archived take their old copies' place too. Returns the
        entries that are new. Old objects are gone on return, or, after a crash, after the next sweep.
        """
        if self._tier(writer.topic, writer.partition) is None:
            return []  # nothing of this partition was ever archived
        tier = self._changeable(writer)
        work = f"{self._work_dir}/{partition_dir(writer.topic, writer.partition)}"
        done: list[SegmentEntry] = []
        with tier.lock:
            for segment in self.archived(writer):
                entry = None if tier.manifest is None else tier.manifest.entry(segment.base_offset)
                if entry is None or not wanted(segment):
                    continue
                if stop is not None and stop():
                    return done
                with self._changing(writer, tier):
                    done += rewrite_archived(
                        self._context, tier, entry, engine, work, _named(writer, progress)
                    )
            with suppress(StorageError, FileNotFoundError):
                self._context.fs.remove_dir(self._work_dir)  # unless another partition is at work there
            done += self.copy(writer, _outdated(writer, tier.manifest), progress=progress, stop=stop)
        return done

    def take_over(self, writer: PartitionWriter) -> None:
        """Become the writer of an archive whose store is gone: this one was rebuilt from it, or is its copy.

        ArchiveConflictError when the archive reaches past the end of this log: then it is another log's.
        """
        tier = self._tier(writer.topic, writer.partition)
        found = None if tier is None else tier.archive.manifest(refresh=True)
        if tier is None or found is None:
            return
        end = writer.end_offset()
        if found.segments and found.next_offset > end:
            reason = f"it reaches to offset {found.next_offset}, this log ends at {end}: not taken over"
            raise ArchiveConflictError(reason, url=tier.archive.url, owner=found.owner)
        with tier.lock, self._changing(writer, tier):
            tier.archive.claim(take_over=True)

    # -- the end of topics, and rubbish --------------------------------------------------------------

    def begin_deletion(self, entry: TopicEntry) -> None:
        """Before a topic's deletion is made durable: mark its archive, so that it does not come back."""
        for archive in self._archives(entry):
            archive.mark_deleted()

    def finish_deletion(self, entry: TopicEntry) -> None:
        """After it was: remove the topic's archive."""
        for archive in self._archives(entry):
            archive.delete_everything()
        for number in range(entry.partitions):
            with self._lock:
                self._tiers.pop((entry.name, number), None)
            if entry.id is not None:
                self.archive.forget(entry.id, number)

    def _archives(self, entry: TopicEntry) -> list[PartitionArchive]:
        tiers = (self._tier(entry.name, partition) for partition in range(entry.partitions))
        found = [(tier.archive, tier.archive.manifest(refresh=True)) for tier in tiers if tier is not None]
        return [
            archive
            for archive, manifest in found
            if manifest is not None and manifest.owner == self.archive.store_id
        ]

    def sweep(self) -> list[str]:
        """Remove what earlier lives left in the archive and in the work directory; URLs of what went.

        What lies below a log start offset goes too. Uploads of segments that are still to be archived stay:
        the next `copy` takes them up again.
        """
        remove_tree(self._context.fs, self._work_dir)
        for writer in self._partitions.writers():
            try:
                self.expire(writer)
            except ClosedError:
                continue  # being moved or deleted: the next sweep looks again
            except StratalogError as error:
                self._context.warn(f"{writer.directory}: {error}")
        return self.archive.sweep(self._to_keep)

    def _to_keep(self, manifest: Manifest) -> Collection[int] | None:
        entry = self._partitions.entries.get(manifest.topic)
        if entry is None or entry.id != manifest.topic_id:
            return None
        view = self._partitions.registry.view(manifest.topic, manifest.partition)
        if not isinstance(view, PartitionWriter) or not view.config.remote_storage_enable:
            return ()
        local = view.local_segments()[:-1]
        return [segment.base_offset for segment in local if copy_of(manifest, segment) is None]


def _publish(writer: PartitionWriter, tier: Tier) -> None:
    """Let a writer's readers see what the archive has now."""
    with writer.lock:  # or an older state might come after a newer one
        writer.attach_cold(*tier.cold())


def _groups(writer: PartitionWriter, tier: Tier, base_offsets: Collection[int]) -> Iterator[list[Segment]]:
    """Return what to upload, each time with one change of the manifest: up to where an archived one ends."""
    local = writer.local_segments()[:-1]
    last = max(base_offsets, default=-1)
    at = 0
    while at < len(local) and local[at].base_offset <= last:
        segment, manifest = local[at], tier.manifest
        at += 1
        if copy_of(manifest, segment) is not None:
            continue
        group, end = [segment], segment.next_offset or 0
        olds = _overlapping(manifest, segment.base_offset, end)
        if not olds and segment.base_offset not in base_offsets:
            continue
        while olds and olds[-1].next_offset > end and at < len(local):
            group.append(local[at])
            end = local[at].next_offset or 0
            at += 1
            olds = _overlapping(manifest, segment.base_offset, end)
        if olds and olds[-1].next_offset > end:
            return  # the rest of what it replaces is not sealed yet
        yield group


def _overlapping(manifest: Manifest | None, start: int, end: int) -> tuple[SegmentEntry, ...]:
    return () if manifest is None else manifest.overlapping(start, end)


def _outdated(writer: PartitionWriter, manifest: Manifest | None) -> list[int]:
    """Local segments of which the archive has an older state."""
    return [
        segment.base_offset
        for segment in writer.local_segments()[:-1]
        if copy_of(manifest, segment) is None
        and _overlapping(manifest, segment.base_offset, segment.next_offset or 0)
    ]


def _below(manifest: Manifest, offset: int) -> bool:
    return bool(manifest.segments) and manifest.segments[0].next_offset <= offset


def _upload_of(segment: Segment) -> SegmentUpload:
    assert segment.next_offset is not None
    return SegmentUpload.collect(
        segment.context.fs, segment.directory, segment.base_offset, segment.next_offset
    )


def _named(writer: PartitionWriter, progress: Progress | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    name = f"{writer.topic}-{writer.partition}"
    return lambda done, total: progress(name, done, total)


Engine = Callable[[Segment, str], Sequence[Segment]]
"""Rewrites a segment into a directory: the new segments, written and synced there under any suffix, the first
with the base offset of the old one; or none when nothing is to change."""


def rewrite_archived(
    context: LogContext,
    tier: Tier,
    entry: SegmentEntry,
    engine: Engine,
    work: str,
    progress: Callable[[int, int], None] | None = None,
) -> list[SegmentEntry]:
    """Return what takes the place of ``entry`` in the archive now; empty when the engine left it as it is."""
    fs = context.fs
    old, new = f"{work}/old", f"{work}/new"
    remove_tree(fs, work)
    for directory in (old, new):
        fs.make_dir(directory)
    archive = tier.archive
    source = Segment(
        PartitionLocation(context, old, archive.topic, archive.partition),
        entry.base_offset,
        size=entry.size_bytes,
        next_offset=entry.next_offset,
    )
    made: list[Segment] = []
    try:
        archive.download(entry, old, progress=progress)
        made += engine(source, new)
        if not made:
            return []
        return archive.replace([entry], _uploads(fs, made, entry, old), progress)
    finally:
        for segment in (source, *made):
            segment.forget()
        remove_tree(fs, work)


def _uploads(fs: FileSystem, made: Sequence[Segment], entry: SegmentEntry, old: str) -> list[SegmentUpload]:
    """Return the rewritten segments, up to the old one's end; its snapshot still holds there."""
    uploads = []
    for at, segment in enumerate(made):
        end = made[at + 1].base_offset if at + 1 < len(made) else entry.next_offset
        found = SegmentUpload.collect(fs, segment.directory, segment.base_offset, end, segment.suffix)
        snapshot = f"{old}/{entry.next_offset:020d}.snapshot"
        if end == entry.next_offset and fs.exists(snapshot):
            found = replace(found, files={**found.files, "snapshot": snapshot})
        uploads.append(found)
    return uploads


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory and all in it, if it is there."""
    if fs.exists(path):
        fs.remove_tree(path)


WORK = ".archive-work"


class Archives:
    """One archive, or none yet. Thread-safe."""

    def __init__(self, partitions: Partitions, objects: Objects | None) -> None:
        self._partitions = partitions
        self.objects = objects
        self._lock = locks.lock("archives")
        self._archive: Archive | None = None
        self.tiering: Tiering | None = None

    def check(self, config: TopicConfig) -> None:
        """Raise ConfigError for a topic that uses the archive if the store's settings name none that works.

        Partitions of such a topic could not be opened.
        """
        if config.remote_storage_enable:
            self._ensure_archive()

    def attach(self, writer: PartitionWriter, entry: TopicEntry) -> None:
        """Give a writer that was just opened, or whose settings changed, what the archive has of it."""
        if writer.config.remote_storage_enable or writer.context.fs.exists(f"{writer.directory}/{ARCHIVE}"):
            self._ensure_tiering().attach(writer, entry)

    def sweep(self) -> None:
        """Remove what earlier processes left in the archive: interrupted uploads, replaced and expired ones.

        Looks for an archive where one is set or lies in its usual place, archived topics or not.
        """
        if self.tiering is None:
            partitions = self._partitions
            usual = ArchiveOptions.of(partitions.config, partitions.dirs.all[0].path).url
            if not str(partitions.config.get("log.archive.url")) and not partitions.context.fs.exists(usual):
                return
        try:
            self._ensure_tiering().sweep()
        except ArchiveError as error:
            self._partitions.context.warn(f"the archive was not swept: {error}")

    def copies_of(self, view: View) -> Callable[[Segment], bool] | None:
        """Return the test whether the archive has a verified copy of a partition's local segment.

        None where there is no archive. A read-only store goes by the copy of the manifest.
        """
        if self.tiering is not None:
            return self.tiering.is_archived
        if not self._partitions.read_only:
            return None
        try:
            copy = read_local_copy(self._partitions.context.fs, view.directory)
        except FormatError as error:
            self._partitions.context.warn(f"{error}; the archived segments are unknown")
            return None
        if copy is None or copy.manifest.owner != self._store_id():
            return None
        return lambda segment: copy_of(copy.manifest, segment) is not None

    def cold(self, entry: TopicEntry, partition: int, directory: str, log_start: int) -> Cold:
        """Return what finds the archived segments of a followed partition; none for a topic without an id.

        The archive is asked at once if the topic uses one, no copy of its manifest is here, and the files
        here begin behind ``log_start``.
        """
        topic_id = entry.id
        if topic_id is None:
            return nothing_cold
        found = ColdFollower(
            self._partitions.context,
            directory,
            lambda: self._ensure_archive().partition(entry.name, topic_id, partition),
        )
        with suppress(ConfigError):
            if entry.config(self._partitions.config).remote_storage_enable:
                found.ask(log_start)
        return found

    def _ensure_archive(self) -> Archive:
        with self._lock:
            if self._archive is None:
                partitions = self._partitions
                options = ArchiveOptions.of(partitions.config, partitions.dirs.all[0].path)
                options.check_outside([each.path for each in partitions.dirs.all])
                self._archive = open_archive(
                    options,
                    partitions.context.fs,
                    store_id=self._store_id(),
                    objects=self.objects,
                    now_ms=partitions.context.clock.now_ms,
                )
            return self._archive

    def _ensure_tiering(self) -> Tiering:
        archive = self._ensure_archive()
        with self._lock:
            if self.tiering is None:
                work = self._partitions.dirs.all[0].path + WORK
                self.tiering = Tiering(self._partitions, archive, work)
            return self.tiering

    def _store_id(self) -> str:
        """Return the writer's id in the archive: the cluster id in `meta.properties`, which never changes."""
        fs = self._partitions.context.fs
        for each in self._partitions.dirs.online():
            try:
                known = metadata.parse_meta_properties(fs.read_file(each.file(META_PROPERTIES)))
            except (FileNotFoundError, FormatError):
                continue
            if known.cluster_id:
                return known.cluster_id
        return self._partitions.dirs.all[0].path

    def close(self) -> None:
        with self._lock:
            if self._archive is not None:
                self._archive.close()
                self._archive = self.tiering = None
