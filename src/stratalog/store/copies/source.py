"""Where copies come from: a store looked at without holding it, live or at rest, ours or a Kafka broker's.

A partition is copied from what its directory means (`view`), and accepted when the directory still meant
the same behind the copy: compaction and retention may replace and remove segments meanwhile, and then it
is copied again. Sealed segments never change, so those are linked where the filesystem allows; two kinds
are copied all the same: what another program wrote (a broker rewrites its indexes in place), and what lies
past the synced end (recovery after a crash may write its sidecars anew).

Reads only. What a crash leaves is the business of whoever builds the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise

from stratalog.config import TopicConfig
from stratalog.errors import (
    CorruptionError,
    FormatError,
    StratalogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from stratalog.format import metadata
from stratalog.fs import FileSystem, RealFileSystem
from stratalog.log import names
from stratalog.log.context import Clock, LogContext
from stratalog.log.read.epochs import read_epochs
from stratalog.log.read.follower import PartitionFollower
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
from stratalog.store.copies.parts import names_of
from stratalog.store.lifecycle.claims import Claims
from stratalog.store.logdir import LogDir
from stratalog.store.partitions import Partitions
from stratalog.store.paths import Paths, path_list
from stratalog.store.store import Store, open_store

SETTLE_TIMEOUT_S = 30.0


class Source:
    """A store to copy from. Made by `open_source`."""

    def __init__(self, partitions: Partitions, claims: Claims | None = None) -> None:
        self._partitions = partitions
        self._claims = claims  # None when the store is not open in this process
        self.context = partitions.context
        self.config = partitions.config
        self.paths = [each.path for each in partitions.dirs.all]

    def topics(self, wanted: Iterable[str] | None = None) -> list[TopicEntry]:
        """The topics asked for, or all, by name."""
        entries = self._partitions.entries
        if wanted is None:
            return [entries[name] for name in sorted(entries)]
        chosen = [wanted] if isinstance(wanted, str) else list(wanted)
        for name in chosen:
            if name not in entries:
                known = ", ".join(sorted(entries)[:10]) or "none"
                raise UnknownTopicError(f"no topic {name!r} in {', '.join(self.paths)}; there are: {known}")
        return [entries[name] for name in sorted(set(chosen))]

    def partition(self, entry: TopicEntry, number: int) -> SourcePartition:
        """A partition as it is now; look again with `SourcePartition.look`."""
        placed = entry.directories[number]
        ours = not entry.foreign and not self._written_by_another(placed[0])
        with self.at_rest(entry.name, number):
            view = self._partitions.view(entry.name, number)
            assert isinstance(view, PartitionFollower)
            return SourcePartition(self, entry, number, view, ours=ours)

    def at_rest(self, topic: str, partition: int) -> AbstractContextManager[None]:
        """Keep compaction, archiving and moves away during the block, if the store is open here."""
        return nullcontext() if self._claims is None else self._claims.claim((topic, partition))

    def _written_by_another(self, where: LogDir) -> bool:
        """Whether the last to write there, or whoever writes there now, was a Kafka broker."""
        fs = self.context.fs
        try:
            epoch = metadata.parse_clean_shutdown(fs.read_file(where.file(logdir.CLEAN_SHUTDOWN)))
        except FileNotFoundError:
            holder = fs.lock_holder(where.file(logdir.LOCK))
            return holder is not None and "started" not in holder
        return epoch != logdir.OUR_BROKER_EPOCH

    def partitions(self, wanted: Iterable[str] | None = None) -> list[SourcePartition]:
        """Every partition of the topics asked for."""
        return [
            self.partition(entry, number)
            for entry in self.topics(wanted)
            for number in range(entry.partitions)
        ]

    def complete(self, topic: str) -> list[SourcePartition]:
        """Every partition of one topic; an error names those that are in none of the directories."""
        entry = self.topics([topic])[0]
        missing = [number for number in range(entry.partitions) if number not in entry.directories]
        if missing:
            raise UnknownPartitionError(
                f"partitions {', '.join(map(str, missing))} of {topic} are not in {', '.join(self.paths)};"
                " give all the log directories it is spread over"
            )
        return self.partitions([topic])


@contextmanager
def open_source(
    source: Store | Paths,
    config: Mapping[str, object] | None = None,
    *,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> Iterator[Source]:
    """Look at a store without holding it. An open `Store` is looked at from outside, as its files are."""
    objects = claims = None
    if isinstance(source, Store):
        inside, claims = source._partitions, source._lifecycle.claims
        paths = [each.path for each in inside.dirs.all]
        config, fs, clock = inside.config.explicit, inside.context.fs, inside.context.clock
        objects = inside.archives._objects
    else:
        paths = path_list(fs or RealFileSystem(), source)
    store = open_store(
        paths,
        config,
        read_only=True,
        create=False,
        fs=fs,
        clock=clock,
        background=False,
        objects=objects,
    )
    with store:
        yield Source(store._partitions, claims)


def settle(source: Store | Paths, fs: FileSystem | None = None) -> None:
    """Have whoever holds the store sync what it has sealed: only then is it safe to link.

    A holder that does not answer only means that more is copied.
    """
    with suppress(StratalogError, OSError):
        if isinstance(source, Store):
            if not source.read_only:
                source.flush()
            return
        fs = fs or RealFileSystem()
        for path in path_list(fs, source):
            holder = fs.lock_holder(f"{path}/{logdir.LOCK}")
            address = holder.get("control") if holder is not None else None
            if isinstance(address, str):
                client = ControlClient(address, None, SETTLE_TIMEOUT_S)
                try:
                    client.request("flush", {})
                finally:
                    client.close()
                return


@dataclass(frozen=True, slots=True)
class _Look:
    """A directory at one moment, and what identifies its files."""

    view: DirectoryView
    inodes: Mapping[str, int]
    segments: tuple[Segment, ...]
    files: Mapping[int, SegmentFiles]
    linkable_below: int
    """Segments that end at or below this offset are safe to link."""


class SourcePartition:
    """One partition of a source."""

    def __init__(
        self,
        source: Source,
        entry: TopicEntry,
        number: int,
        view: PartitionFollower,
        *,
        ours: bool,
    ) -> None:
        self.source = source
        self.entry = entry
        self.topic = entry.name
        self.partition = number
        self.view = view
        self.ours = ours
        self._synced: _Look | None = None
        self._look = self.look()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def directory(self) -> str:
        """Where the partition lies: another place after a move."""
        return self.view.directory

    @property
    def context(self) -> LogContext:
        return self.source.context

    @property
    def config(self) -> TopicConfig:
        return self.entry.config(self.source.config)

    @property
    def log_start_offset(self) -> int:
        return self.view.log_start_offset

    @property
    def end_offset(self) -> int:
        """The high watermark when the partition was last looked at."""
        return max(self.view.end_offset(), self.log_start_offset)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Archived ones, if any, then those in the directory; the last one is live."""
        return self._look.segments

    @property
    def directory_files(self) -> Mapping[int, SegmentFiles]:
        """The files of the segments that lie in the directory, by base offset."""
        return self._look.files

    @property
    def snapshots(self) -> tuple[int, ...]:
        return self._look.view.snapshots

    @property
    def linkable_below(self) -> int:
        """Segments that end at or below this offset are never written to again.

        The tail that says so is synced first, so that no power cut brings an older one back.
        """
        if self._look.linkable_below and self._synced is not self._look:
            with self.context.fs.open(f"{self.directory}/{names.TAIL}", "r") as file:
                file.sync()
            self._synced = self._look
        return self._look.linkable_below

    def leader_epochs(self) -> list[tuple[int, int]]:
        try:
            return read_epochs(self.context.fs, self.directory)
        except FormatError:
            return []

    # -- looking -------------------------------------------------------------------------------------

    def at_rest(self) -> AbstractContextManager[None]:
        """Keep those who rewrite or move the partition away, as `Source.at_rest` does."""
        return self.source.at_rest(self.topic, self.partition)

    def look(self) -> _Look:
        """List the directory anew and remember what it means."""
        for _ in range(LISTING_TRIES):
            self.view.refresh()
            view, inodes = self._settled()
            live = self.view.segments()
            # Rolled since the first look: what came behind its last segment is not part of this one.
            here = [files for files in view.segments if not live or files.base_offset <= live[-1].base_offset]
            if live and here and live[-1].base_offset == here[-1].base_offset:
                break
        local: list[Segment] = [self.view.segment_of(files) for files in here]
        if local:
            cold = [segment for segment in live if segment.base_offset < local[0].base_offset]
            local = [*cold, *local[:-1], live[-1]]
        else:
            local = list(live)
        for segment, following in pairwise(local):
            if not segment.is_active:
                segment.next_offset = following.base_offset
        self._look = _Look(
            view,
            inodes,
            tuple(local),
            {files.base_offset: files for files in here},
            self._linkable_below(),
        )
        return self._look

    def _settled(self) -> tuple[DirectoryView, dict[str, int]]:
        """What the directory means once a swap under way is finished, from two listings that agree."""
        fs, directory = self.context.fs, self.directory
        for _ in range(LISTING_TRIES):
            entries, stats = settled_listing(fs, directory)
            with suppress(FileNotFoundError):
                view = view_of(entries, lambda base: swap_end(self.context, directory, base))
                return view, {name: stat.inode for name, stat in stats.items()}
        raise UnsettledError(f"{directory}: changes too fast to be listed; try again")

    def _linkable_below(self) -> int:
        """Where recovery of the source would begin at the latest: below it no file is ever written again."""
        fs = self.context.fs
        if not self.ours:
            return 0
        try:
            tail = read_tail(fs, self.directory, owner_of(fs, self.directory, self.partition))
        except FormatError:
            return 0
        return tail.synced_base if tail is not None else 0

    def unchanged(self, used: Iterable[str]) -> bool:
        """Whether these files of the last look are still what their names mean."""
        try:
            view, inodes = self._settled()
        except (FileNotFoundError, UnsettledError, CorruptionError):
            return False
        named = {name for files in view.segments for name in names_of(files).values()}
        return all(self._look.inodes.get(name) == inodes.get(name) and name in named for name in used)
