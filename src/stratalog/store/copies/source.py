"""Where copies come from: a store read without holding it, live or closed, ours or a Kafka broker's, or an
archive alone.

A partition is copied from what its directory lists, and the copy counts if the directory still lists the same
files afterwards: compaction and retention may replace and remove segments meanwhile, and then it is copied
again. Sealed segments never change, so they are linked where the filesystem allows. Two kinds are copied all
the same: what another program wrote (a broker rewrites its indexes in place), and what lies past the synced
end (recovery after a crash may rewrite its sidecars). Of an archive, what was never archived is missing: the
active segments first of all.

Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from itertools import pairwise, zip_longest
from typing import TypeVar

from stratalog.config import BrokerConfig, TopicConfig
from stratalog.errors import (
    CorruptionError,
    FormatError,
    LogDirOfflineError,
    NotFoundError,
    StorageError,
    StratalogError,
    UnknownPartitionError,
)
from stratalog.format import metadata
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.log import names
from stratalog.log.context import Clock
from stratalog.log.names import LOCK, SEGMENT_KINDS, Kind
from stratalog.log.read.gaps import check_complete
from stratalog.log.read.list_offsets import read_epochs
from stratalog.log.segment.directory_state import (
    LISTING_TRIES,
    DirectoryView,
    SegmentFiles,
    UnsettledError,
    settled_listing,
    swap_end,
    view_of,
)
from stratalog.log.segment.segment import Segment, owner_of
from stratalog.log.write.sync import read_tail
from stratalog.store import logdir
from stratalog.store.admin.control import ControlClient
from stratalog.store.catalog import TopicEntry
from stratalog.store.lifecycle.claims import Claims
from stratalog.store.paths import Paths, absolute_places, path_list
from stratalog.store.read_only import ArchiveView, ReadOnlyLogs
from stratalog.store.settings import remembered
from stratalog.store.store import Store

SETTLE_TIMEOUT_S = 30.0

T = TypeVar("T")


class Source:
    """A store or an archive to copy from. Made by `open_source`."""

    def __init__(self, logs: ReadOnlyLogs, claims: Claims | None = None) -> None:
        self.logs = logs
        self.context = logs.context
        self.config = logs.config
        self.paths = logs.paths
        self._claims = claims  # None when the store is not open in this process

    def parts(self, wanted: str | Iterable[str] | None = None) -> list[Part]:
        """Return every partition of these topics, or of all; an error names those that are missing."""
        chosen = [wanted] if isinstance(wanted, str) else wanted
        found = []
        offline = (
            [] if self.logs.local is None else [each for each in self.logs.local.dirs.all if each.offline]
        )
        if offline and chosen is None:
            raise LogDirOfflineError(
                f"log directory {offline[0].path} is offline, and its partitions would be missing from the"
                f" copy: {offline[0].offline}; bring it back, or name the topics to copy"
            ) from offline[0].offline
        for name in sorted({*(self.logs.topics() if chosen is None else chosen)}):
            entry = self.logs.entry(name)
            absent = [number for number in range(entry.partitions) if number not in entry.directories]
            if absent and entry.directories:
                raise UnknownPartitionError(
                    f"partitions {', '.join(map(str, absent))} of {name} are not in {', '.join(self.paths)};"
                    " give all the log directories it is spread over"
                )
            found += [Part(self, entry, number) for number in range(entry.partitions)]
        return found

    def at_rest(self, topic: str, partition: int) -> AbstractContextManager[None]:
        """Keep compaction, archiving and moves away during the block, if the store is open here."""
        return nullcontext() if self._claims is None else self._claims.claim((topic, partition))

    def is_ours(self, entry: TopicEntry, partition: int) -> bool:
        """Return True if the files of a partition are ours, so that they may be linked and copied as is.

        They are not if the last program that wrote to the log directory, or one that writes to it now, is a
        Kafka broker.
        """
        if entry.foreign or partition not in entry.directories:
            return False
        where, fs = entry.directories[partition][0], self.context.fs
        try:
            epoch = metadata.parse_clean_shutdown(fs.read_file(where.file(metadata.CLEAN_SHUTDOWN)))
        except FileNotFoundError:
            holder = fs.lock_holder(where.file(LOCK))
            return holder is None or "started" in holder
        return epoch == logdir.OUR_BROKER_EPOCH


class Part:
    """One partition of a source, as of the last `look`."""

    segments: tuple[Segment, ...]
    """Archived ones, if any, then those in the directory; the last one of a store is live."""
    directory_files: Mapping[int, SegmentFiles]
    """The files of the segments that lie in the directory, by base offset."""
    snapshots: tuple[int, ...]
    """Offsets of the producer snapshots in the directory."""

    def __init__(self, source: Source, entry: TopicEntry, number: int) -> None:
        self.context = source.context
        self.entry = entry
        self.topic = entry.name
        self.partition = number
        self.ours = source.is_ours(entry, number)
        self._source = source
        self._inodes: Mapping[str, int] = {}
        self._linkable_below = 0
        self._tail_synced = False
        with self.at_rest():
            self.view = source.logs.view(entry.name, number)
            self.look()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def directory(self) -> str:
        """Where the partition lies: another place after a move."""
        return self.view.directory

    @property
    def config(self) -> TopicConfig:
        return self.entry.config(self._source.config)

    @property
    def log_start_offset(self) -> int:
        return self.view.log_start_offset

    @property
    def end_offset(self) -> int:
        """The high watermark at the last look."""
        return max(self.view.end_offset(), self.log_start_offset)

    def leader_epochs(self) -> list[tuple[int, int]]:
        if isinstance(self.view, ArchiveView):
            return self.view.leader_epochs()
        try:
            return read_epochs(self.context.fs, self.directory)
        except FormatError:
            return []

    def linkable_below(self) -> int:
        """Return an offset below which no segment file is ever written again.

        The tail that says so is synced first: no power cut brings an older one back.
        """
        if self._linkable_below and not self._tail_synced:
            with self.context.fs.open(f"{self.directory}/{names.TAIL}", "r") as file:
                file.sync()
            self._tail_synced = True
        return self._linkable_below

    def segments_below(self, end: int, *, archived: bool = True) -> Iterator[tuple[Segment, int, bool]]:
        """Yield the segments with offsets from the log start to ``end``: each, where it ends, and if whole.

        A segment is whole if its successor begins where it ends; the last one is cut at ``end``. Without
        ``archived`` the archive is not asked, and its segments are left out. Raise CorruptionError if offsets
        are missing, FileNotFoundError if the source changed.
        """
        start, segments = self.log_start_offset, self.segments
        if not archived:
            segments = tuple(each for each in segments if each.base_offset in self.directory_files)
        try:
            check_complete(segments, start, end)
        except CorruptionError as error:
            files = [name for each in self.directory_files.values() for name in names_of(each).values()]
            if self.unchanged(files):
                raise
            raise FileNotFoundError(self.directory) from error
        for segment, following in zip_longest(segments, segments[1:]):
            if segment.base_offset >= end:
                return
            if following is None or following.base_offset > end:
                yield segment, end, False
            elif following.base_offset > start:
                yield segment, following.base_offset, True

    # -- looking -------------------------------------------------------------------------------------

    def at_rest(self) -> AbstractContextManager[None]:
        """Keep rewriting and moving away during the block, as `Source.at_rest` does."""
        return self._source.at_rest(self.topic, self.partition)

    def look(self) -> None:
        """List the partition again."""
        follower = self.view
        if isinstance(follower, ArchiveView):
            follower.refresh()
            self.segments, self.directory_files, self.snapshots = follower.segments(), {}, ()
            return
        for _ in range(LISTING_TRIES):
            follower.refresh()
            view, inodes = self._settled()
            live = follower.segments()
            # After a roll since the first look, segments behind its last one are not part of this look.
            here = [files for files in view.segments if not live or files.base_offset <= live[-1].base_offset]
            if live and here and live[-1].base_offset == here[-1].base_offset:
                break
        local: list[Segment] = [follower.segment_of(files) for files in here]
        if local:
            cold = [segment for segment in live if segment.base_offset < local[0].base_offset]
            local = [*cold, *local[:-1], live[-1]]
        else:
            local = list(live)
        for segment, following in pairwise(local):
            if not segment.is_active:
                segment.next_offset = following.base_offset
        self.segments = tuple(local)
        self.directory_files = {files.base_offset: files for files in here}
        self.snapshots = view.snapshots
        self._inodes = inodes
        self._linkable_below = self._find_linkable() if self.ours else 0
        self._tail_synced = False

    def _settled(self) -> tuple[DirectoryView, dict[str, int]]:
        """Return what the directory means once a swap under way is finished, from two listings that agree."""
        fs, directory = self.context.fs, self.directory
        for _ in range(LISTING_TRIES):
            entries, stats = settled_listing(fs, directory)
            with suppress(FileNotFoundError):
                view = view_of(entries, lambda base: swap_end(self.context, directory, base))
                return view, {name: stat.inode for name, stat in stats.items()}
        raise UnsettledError(f"{directory}: changes too fast to be listed; try again")

    def _find_linkable(self) -> int:
        """Return where recovery of the source would begin at the latest."""
        fs = self.context.fs
        try:
            tail = read_tail(fs, self.directory, owner_of(fs, self.directory, self.partition))
        except FormatError:
            return 0
        return tail.synced_base if tail is not None else 0

    def unchanged(self, used: Iterable[str]) -> bool:
        """Return True if these names of the last look still mean the same files; archives never change."""
        if isinstance(self.view, ArchiveView):
            return True
        try:
            view, inodes = self._settled()
        except (FileNotFoundError, UnsettledError, CorruptionError):
            return False
        named = {name for files in view.segments for name in names_of(files).values()}
        return all(self._inodes.get(name) == inodes.get(name) and name in named for name in used)


def names_of(files: SegmentFiles) -> dict[Kind, str]:
    """Return the files of a segment by kind, under their present names."""
    found = {kind: files.file(kind) for kind in SEGMENT_KINDS}
    return {kind: name for kind, name in found.items() if name is not None}


def retry_when_changed(what: str, tries: int, act: Callable[[bool], T]) -> T:
    """Return ``act(False)``; call ``act(True)`` when segments were replaced or removed under it."""
    for attempt in range(tries):
        with suppress(FileNotFoundError, UnsettledError):
            return act(attempt > 0)
    raise changed_too_often(what)


def changed_too_often(what: str) -> StorageError:
    """Build the error for a copy that the source's changes kept from being made."""
    return StorageError(
        f"{what}: its segments were replaced or removed while they were copied; try again when no cleanup is"
        " running"
    )


@contextmanager
def open_source(
    source: Store | Paths | None,
    config: Mapping[str, object] | None = None,
    *,
    archive: str = "",
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> Iterator[Source]:
    """Read a store without holding it, or with None for the source an archive that belongs to no store here.

    An open `Store` is read from outside, by its files.
    """
    objects = claims = None
    paths: list[str] = []
    if isinstance(source, Store):
        inside, claims = source.partitions, source.partitions.claims
        paths = [each.path for each in inside.dirs.all]
        broker, fs, clock = inside.config, inside.context.fs, inside.context.clock
        objects = inside.archives.objects
    else:
        fs = fs or RealFileSystem()
        paths = [] if source is None else path_list(fs, source)
        broker = remembered(fs, paths) if config is None else BrokerConfig.parse(absolute_places(config))
    with closing(ReadOnlyLogs(broker, paths, archive, fs=fs, clock=clock, objects=objects)) as logs:
        if archive and not logs.topics():
            raise NotFoundError(f"{archive}: no archived topic is here; is this the right archive?")
        if logs.local is not None:
            logs.local.opening.warn_of_missing()
        yield Source(logs, claims)


def settle(source: Store | Paths, fs: FileSystem | None = None) -> None:
    """Ask the holder of the store to sync what it has sealed: only that may be linked.

    If the holder does not answer, more is copied.
    """
    with suppress(StratalogError, OSError):
        if isinstance(source, Store):
            if not source.read_only:
                source.flush()
            return
        fs = fs or RealFileSystem()
        for path in path_list(fs, source):
            holder = fs.lock_holder(f"{path}/{LOCK}")
            address = holder.get("control") if holder is not None else None
            if isinstance(address, str):
                with closing(ControlClient(address, None, SETTLE_TIMEOUT_S)) as client:
                    client.request("flush", {})
                return
