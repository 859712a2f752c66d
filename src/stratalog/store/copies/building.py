"""Making a partition directory: segments are linked, copied or rewritten, then everything is added that a
writer leaves behind when it closes.

No store opens the directory before it is complete: it has a name that stores ignore, and every file and name
in it is synced before it is renamed. Existing files are only linked or read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from stratalog import kernel
from stratalog.config import TopicConfig
from stratalog.errors import FormatError, StorageError
from stratalog.format import checkpoints, metadata, producer_snapshot
from stratalog.format import seal as seals
from stratalog.format import tail as tails
from stratalog.format.identity import PartitionId
from stratalog.format.txn_index import AbortedTxn
from stratalog.log import names
from stratalog.log.context import PartitionLocation
from stratalog.log.names import Kind, file_name
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.segment.segment import Segment
from stratalog.log.segment.sidecars import Sidecars
from stratalog.log.write.producers import load_snapshot, replay
from stratalog.log.write.sync import TailFile
from stratalog.store.copies.cutting import pieces_before
from stratalog.store.copies.source import Part, names_of, retry_when_changed

COPY_BYTES = 4 << 20
COPY_TRIES = 50
FOR_EVER_MS = 2**63 - 1

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all; a linked segment counts as done at once."""


class Meter:
    """Adds up the bytes of one copy and reports them."""

    def __init__(self, progress: Progress | None, total_bytes: int = 0) -> None:
        self._progress = progress
        self.total_bytes = total_bytes
        self.done_bytes = 0

    def done(self, more_bytes: int) -> None:
        self.done_bytes += more_bytes
        self.total_bytes = max(self.total_bytes, self.done_bytes)
        if self._progress is not None:
            self._progress(self.done_bytes, self.total_bytes)


class Report:
    """Base of the frozen values that copies return."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True, slots=True)
class PartitionCopy(Report):
    """One partition of a copy. Offsets are those of the source; ``end_offset`` is not in the copy."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    source_end_offset: int
    """Where the source ended: the copy lacks ``end_offset`` up to here."""
    segments: int = 0
    linked_segments: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    cut_timestamp: int | None = None
    """With a time as the cut: the time of the first record that did not exist then."""
    late_from_offset: int | None = None
    """The first offset behind the cut that is stamped at or before that time: appended after
    something newer, it is not part of the copy. None if there is none."""
    oldest_timestamp: int | None = None
    """The newest record of the oldest segment, which ``retention.ms`` is compared with; None without one."""
    open_transactions: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of transactions that no marker inside the copy ends."""
    notes: tuple[str, ...] = ()

    def would_expire(self, config: TopicConfig, now_ms: int) -> bool:
        """Return True if ``retention.ms`` would delete records of the copy at once."""
        oldest, limit = self.oldest_timestamp, config.retention_ms
        return config.delete and limit >= 0 and oldest is not None and oldest < now_ms - limit


class _Last(NamedTuple):
    """The segment that was written last and may become the active one."""

    segment: Segment
    sidecars: Sidecars
    cleaned: bool | None
    aborted_known: bool = True
    """True if its aborted transactions came with it; else they are found by replaying it."""


class PartitionBuilder:
    """Fill a new directory from the lowest offset up, then `finish` it."""

    def __init__(
        self,
        location: PartitionLocation,
        config: TopicConfig,
        meter: Meter,
        topic_id: uuid.UUID,
    ) -> None:
        self.location = location
        self.context, self.directory, self.topic, self.partition = location
        self.meter = meter
        self.segments: list[Segment] = []
        self._fs = self.context.fs
        self._config = config
        self._topic_id = topic_id
        self._owner = PartitionId(topic_id.bytes, self.partition)
        self._fs.make_dir(self.directory)
        self._begin()

    def _begin(self) -> None:
        """Write the topic's id first: the seals that are written here contain it."""
        self.segments.clear()
        self._notes: list[str] = []
        self._linked_segments = self._linked_bytes = self._copied_bytes = 0
        self._snapshots: list[int] = []
        self._last: _Last | None = None
        self._fs.write_atomic(
            f"{self.directory}/{names.PARTITION_METADATA}", metadata.pack_partition_metadata(self._topic_id)
        )

    def path(self, base_offset: int, kind: Kind) -> str:
        return f"{self.directory}/{file_name(base_offset, kind)}"

    def start_over(self) -> None:
        """Empty the directory: the source changed while it was copied."""
        for segment in self.segments:
            segment.forget()
        for name in self._fs.list_dir(self.directory):
            self.context.handles.forget(f"{self.directory}/{name}")
            self._fs.remove(f"{self.directory}/{name}")
        self._begin()

    # -- segments ------------------------------------------------------------------------------------

    def link(self, segment: Segment, files: Mapping[Kind, str], next_offset: int) -> bool:
        """Link the files of a sealed segment; return False, with nothing linked, if that is not possible."""
        made: list[str] = []
        try:
            for kind, path in files.items():
                if kind != names.SEAL or not self._write_seal(path, segment.base_offset):
                    self._fs.link(path, self.path(segment.base_offset, kind))
                made.append(self.path(segment.base_offset, kind))
        except StorageError:
            # Another filesystem, or one without links.
            for path in made:
                self._fs.remove(path)
            return False
        self._add(segment.base_offset, segment.size, next_offset)
        self._linked_segments += 1
        self._linked_bytes += segment.size
        self.meter.done(segment.size)
        return True

    def copy(self, segment: Segment, files: Mapping[Kind, str], next_offset: int) -> None:
        """Copy the files of a sealed segment as they are; damage is copied too, and noted."""
        crc = 0
        for kind, path in files.items():
            if kind == names.LOG:
                crc = self._copy_file(path, self.path(segment.base_offset, kind), segment.size, metered=True)
            elif kind != names.SEAL or not self._write_seal(path, segment.base_offset):
                with suppress(FileNotFoundError):  # derived data may be replaced meanwhile
                    self._copy_file(path, self.path(segment.base_offset, kind), None, metered=False)
        try:
            seal = segment.seal
        except FormatError as error:
            self._notes.append(f"{segment.path()}: copied as it is: {error}")
        else:
            if seal is not None and seal.crc != crc:
                self._notes.append(
                    f"{segment.path()}: damaged, and copied as it is: its CRC is not the seal's;"
                    " see `stratalog verify`"
                )
        self._add(segment.base_offset, segment.size, next_offset)
        self._copied_bytes += segment.size

    def _write_seal(self, source: str, base_offset: int) -> bool:
        """Write the seal of a copy; return False if the source has no valid one."""
        try:
            seal = seals.parse(self._fs.read_file(source))
        except (FileNotFoundError, FormatError):
            return False
        seal = replace(seal, owner=self._owner, base_offset=base_offset)
        self._fs.write_file(self.path(base_offset, "seal"), seals.pack(seal), sync=True)
        return True

    def write(self, segment: Segment, cut: int, *, whole: bool) -> None:
        """Write the batches of ``segment`` below ``cut``, each checked, and derive the sidecars.

        ``whole``: the segment ends there and has a successor. Else it is the last and may become active.
        """
        base = segment.base_offset
        made = Sidecars(
            base,
            self._config.index_interval_bytes,
            keyed=self._config.key_index_enable,
            owner=self._owner,
        )
        path, size = self.path(base, "log"), 0
        with self._fs.open(path, "x") as file:
            for data, scan in pieces_before(segment, cut):
                file.pwrite(data, size)
                made.add(size, data, scan)
                size += len(data)
                self.meter.done(len(data))
            file.sync()
        if not size and (self.segments or not whole):
            self._fs.remove(path)
            return
        self._keep_time(segment.path(), path)
        self._copied_bytes += size
        known = None if segment.is_active else segment.seal
        added = self._add(base, size, cut)
        if not segment.is_active:
            made.aborted = [txn for txn in segment.aborted() if txn.last_offset < cut]
        cleaned = known.cleaned if known is not None else None
        last = _Last(added, made, cleaned, aborted_known=not segment.is_active)
        if whole:
            self._seal(last, cut)
        else:
            self._last = last

    def take_written(self, base_offset: int, next_offset: int, *, cleaned: bool | None, whole: bool) -> None:
        """Check every batch of a ``.log`` that already lies in the directory and derive the sidecars.

        Its ``.txnindex``, if it came with one, is used.
        """
        size = self._fs.stat(self.path(base_offset, "log")).size
        segment = self._add(base_offset, size, next_offset)
        made = segment.derive(self._config.index_interval_bytes, keyed=self._config.key_index_enable)
        made.aborted = list(segment.aborted())
        self._copied_bytes += size
        last = _Last(segment, made, cleaned)
        if whole:
            self._seal(last, next_offset)
        else:
            self._last = last

    def _add(self, base_offset: int, size: int, next_offset: int) -> Segment:
        segment = Segment(self.location, base_offset, size=size, next_offset=next_offset)
        self.segments.append(segment)
        return segment

    def _seal(self, last: _Last, next_offset: int) -> None:
        """Write the sidecars of a segment. One that does not reach its successor is not contiguous."""
        made = last.sidecars
        contiguous = made.seal.contiguous and made.seal.last_offset + 1 == next_offset
        cleaned = last.cleaned if last.cleaned is not None else not contiguous
        made.seal = replace(made.seal, contiguous=contiguous, cleaned=cleaned)
        made.write(last.segment)
        last.segment.forget()

    def _copy_file(self, source: str, target: str, size: int | None, *, metered: bool) -> int:
        """Copy and sync ``size`` bytes, or the whole file; return their CRC-32C."""
        crc = at = 0
        with self._fs.open(source, "r") as reading, self._fs.open(target, "x") as writing:
            end = reading.size() if size is None else size
            while at < end:
                data = reading.pread(min(COPY_BYTES, end - at), at)
                if not data:
                    raise StorageError(f"{source}: ended at byte {at} of {end} while it was copied")
                writing.pwrite(data, at)
                crc = kernel.crc32c(data, crc)
                at += len(data)
                if metered:
                    self.meter.done(len(data))
            writing.sync()
        self._keep_time(source, target)
        return crc

    def _keep_time(self, source: str, target: str) -> None:
        """Keep the time a segment was last written, which retention and `restore` use."""
        with suppress(FileNotFoundError, NotADirectoryError, StorageError):
            self._fs.set_mtime_ns(target, self._fs.stat(source).mtime_ns)

    # -- the rest ------------------------------------------------------------------------------------

    def take_snapshots(self, directory: str, offsets: Iterable[int], end: int) -> None:
        """Copy the producer snapshots that belong to the segments taken."""
        bases = {segment.base_offset for segment in self.segments}
        for offset in offsets:
            if offset > end or (offset not in bases and offset != end):
                continue
            with suppress(FileNotFoundError):
                self.add_snapshot(offset, self._fs.read_file(f"{directory}/{file_name(offset, 'snapshot')}"))

    def add_snapshot(self, offset: int, data: bytes) -> None:
        """Add a producer snapshot that lies in no directory."""
        self._fs.write_file(self.path(offset, "snapshot"), data, sync=True)
        self._snapshots.append(offset)

    def finish(
        self,
        *,
        end: int,
        log_start_offset: int,
        leader_epochs: Iterable[tuple[int, int]],
    ) -> PartitionCopy:
        """Write the active segment, the producers' state at the end and the tail; durable on return."""
        last = self._last
        replayed: dict[int, list[AbortedTxn]] = {}
        limit = end
        if last is not None and not last.aborted_known:
            replayed, limit = {last.segment.base_offset: last.sidecars.aborted}, last.segment.base_offset
        state, at = load_snapshot(self.location, self._snapshots, limit, FOR_EVER_MS)
        replay(state, self.segments, at, end, replayed)
        if last is not None:
            self._seal(last, end)
        seal = last.sidecars.seal if last is not None else None
        if last is not None and seal is not None and seal.contiguous and seal.last_offset + 1 == end:
            active = last.segment
        else:
            self._fs.open(self.path(end, "log"), "x").close()
            active = self._add(end, 0, end)
            with self._fs.open(active.path(), "w") as file:
                file.sync()
        self._fs.write_file(self.path(end, "snapshot"), producer_snapshot.pack(state.to_entries()), sync=True)
        epochs = [each for each in leader_epochs if each[1] < end] or [(0, 0)]
        self._fs.write_atomic(
            f"{self.directory}/{names.LEADER_EPOCH_CHECKPOINT}", checkpoints.pack_leader_epochs(epochs)
        )
        self._write_tail(active, end, producers=len(state) > 0)
        self._fs.sync_dir(self.directory)
        oldest = self.segments[0].max_timestamp() if self.segments[0].size else None
        for segment in self.segments:
            segment.forget()
        return PartitionCopy(
            self.topic,
            self.partition,
            max(log_start_offset, self.segments[0].base_offset),
            end,
            end,
            segments=len(self.segments),
            linked_segments=self._linked_segments,
            linked_bytes=self._linked_bytes,
            copied_bytes=self._copied_bytes,
            oldest_timestamp=oldest if oldest is not None and oldest >= 0 else None,
            open_transactions=tuple((producer, first) for first, producer in state.open_txns().items()),
            notes=tuple(self._notes),
        )

    def _write_tail(self, active: Segment, end: int, *, producers: bool) -> None:
        flags = tails.CLEAN | (tails.PRODUCERS if producers else 0)
        if self._config.flush_messages != 1:
            flags |= tails.READ_PAST_HIGH_WATERMARK
        file = TailFile(self.context, self.directory, self.partition, None)
        file.write(active.base_offset, active.size, end, end, flags=flags)
        file.sync()
        self.context.handles.forget(file.path)


def copy_partition(
    part: Part,
    builder: PartitionBuilder,
    cut_at: Callable[[Part], int],
    *,
    archived: bool = True,
    anew: bool = False,
) -> PartitionCopy:
    """Fill ``builder`` with the records of a partition below the offset that ``cut_at`` returns.

    ``cut_at`` is called again if the source changed meanwhile. Without ``archived`` only segments in the
    directory are taken; ``anew`` rewrites every segment, each batch checked.
    """
    done_before = builder.meter.done_bytes

    def copy(again: bool) -> PartitionCopy:
        with part.at_rest():
            if again:
                builder.start_over()
                builder.meter.done_bytes = done_before
                part.look()
            cut = cut_at(part)
            used = _copy_segments(part, builder, cut, archived=archived, anew=anew)
            if not part.unchanged(used):
                raise FileNotFoundError(part.directory)
            _copy_snapshots(part, builder, cut)
            made = builder.finish(
                end=cut, log_start_offset=part.log_start_offset, leader_epochs=part.leader_epochs()
            )
            return replace(
                made,
                log_start_offset=min(max(part.log_start_offset, builder.segments[0].base_offset), cut),
                source_end_offset=part.end_offset,
            )

    return retry_when_changed(str(part), COPY_TRIES, copy)


def _copy_segments(
    part: Part, builder: PartitionBuilder, cut: int, *, archived: bool, anew: bool
) -> list[str]:
    """Copy every segment below ``cut``; return the file names that must not have changed afterwards."""
    used: list[str] = []
    for segment, stop, whole in part.segments_below(cut, archived=archived):
        files = part.directory_files.get(segment.base_offset)
        if files is not None:
            used.append(files.log)
        if files is None or anew or not whole or not part.ours:
            builder.write(segment, stop, whole=whole)
            continue
        paths = {kind: f"{part.directory}/{name}" for kind, name in names_of(files).items()}
        if stop <= part.linkable_below() and builder.link(segment, paths, stop):
            used.extend(names_of(files).values())
        else:
            builder.copy(segment, paths, stop)
    return used


def _copy_snapshots(part: Part, builder: PartitionBuilder, cut: int) -> None:
    """Copy the producers' state at the segments' beginnings; an archived segment has that at its own end."""
    builder.take_snapshots(part.directory, part.snapshots, cut)
    archived = [
        segment
        for segment in part.segments
        if isinstance(segment, ArchivedSegment) and segment.source.next_offset <= cut
    ]
    if archived and not any(offset <= cut for offset in part.snapshots):
        data = archived[-1].source.read("snapshot")
        if data is not None:
            builder.add_snapshot(archived[-1].source.next_offset, data)
