"""Erasing keys: every record of them goes from the sealed segments, no other offset moves.

It goes through the same rewriting and the same swap as compaction, one segment at a time; segments that
hold none of the keys are only read, or not even that where a key index can tell. A batch that loses all its
records goes too, unless it is a producer's last or the log's last: then its empty header stays.

What earlier lives left in the directory goes as well: files waiting for their removal, and saved torn bytes
unless they can be shown to be free of the keys. The active segment is the caller's business: roll first.

Crash policy: each segment is old or new. Erasing again finishes what a crash interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from stratalog import kernel
from stratalog.errors import FormatError
from stratalog.format import batch as batches
from stratalog.format.batch import HEADER_SIZE, Stop
from stratalog.format.batch.filter import Filtered, filter_batches
from stratalog.format.keyindex import KeyIndexReader
from stratalog.fs import FileSystem
from stratalog.kernel import DropSet
from stratalog.log.check.damage import Damage
from stratalog.log.clean.rewriting import (
    DamagedSegmentError,
    Pace,
    RewriteTarget,
    Rewritten,
    StopCleaningError,
    VanishedSegmentError,
    aborted_of,
    damaged,
    is_cleaned,
    rewrite,
    sound_chunks,
)
from stratalog.log.clean.rules import LastBatches
from stratalog.log.clean.swap import swap_in
from stratalog.log.names import DELETED, TORN, parse_file
from stratalog.log.read.chunks import Chunk
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.segment.segment import Segment
from stratalog.log.write.writer import PartitionWriter


@dataclass(frozen=True, slots=True)
class EraseReport:
    """One removal of keys from a partition."""

    topic: str
    partition: int
    keys: int
    records_erased: int
    segments_rewritten: int
    bytes_before: int
    bytes_after: int
    bytes_read: int
    files_removed: tuple[str, ...] = ()
    """Leftovers of earlier lives (`.deleted`, `.torn`) that may have held one of the keys."""
    unreachable: tuple[Damage, ...] = ()
    """Segments that could not be read, and so may still hold one of the keys."""
    seconds: float = 0.0
    dry_run: bool = False
    stopped: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EraseReport:
        return cls(
            **{
                **value,
                "files_removed": tuple(value["files_removed"]),
                "unreachable": tuple(Damage(**each) for each in value["unreachable"]),
            }
        )


INDEXED_LOOKUPS = 256
"""With more keys than this, reading a segment is cheaper than asking its key index for each."""

SEARCH_BYTES = 1 << 20


def erase_keys(
    writer: PartitionWriter,
    keys: Collection[bytes],
    *,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> EraseReport:
    """Remove every record of ``keys`` from the sealed segments of a partition.

    The caller must ensure that only one rewrite of a partition runs at a time.
    """
    writer.make_usable()
    pace = Pace(None, progress, stop)
    erasing = _Erasing(writer, keys, pace)
    return _run(erasing, pace, lambda segment: erasing.erase(writer, segment), dry_run=False)


def count_keys(
    view: PartitionWriter | PartitionFollower,
    keys: Collection[bytes],
    *,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> EraseReport:
    """Count what `erase_keys` would remove; changes nothing."""
    pace = Pace(None, progress, stop)
    erasing = _Erasing(view, keys, pace)
    return _run(erasing, pace, erasing.count, dry_run=True)


def _run(erasing: _Erasing, pace: Pace, act: Callable[[Segment], None], *, dry_run: bool) -> EraseReport:
    stopped: str | None = None
    try:
        erasing.run(act, dry_run=dry_run)
    except StopCleaningError:
        stopped = "a stop was requested"
    except VanishedSegmentError as error:
        stopped = f"the log changed meanwhile: {error} is gone"
    return replace(erasing.report, seconds=pace.seconds, bytes_read=pace.bytes_read, stopped=stopped)


def erase_segment(source: Segment, target: RewriteTarget, keys: Collection[bytes]) -> Rewritten:
    """Rewrite one segment without ``keys`` at ``target``; no new segment if it held none.

    The source may lie anywhere, in the archive too. Its last batch stays, if need be empty.
    """
    last = LastBatches((), source.next_offset if source.next_offset is not None else -1)
    return _erase_segment(source, target, DropSet(keys), last, Pace())


def _erase_segment(
    source: Segment, target: RewriteTarget, drop: DropSet, last: LastBatches, pace: Pace
) -> Rewritten:
    found = aborted_of(source)
    if isinstance(found, Damage):
        raise DamagedSegmentError(source, found)
    return rewrite(
        [source],
        target,
        _eraser(drop, last),
        aborted=list(found),
        pace=pace,
        cleaned=is_cleaned(source),
        lazily=True,
    )


def _eraser(drop: DropSet, last: LastBatches) -> Callable[[Segment, Chunk], Filtered]:
    def judge(segment: Segment, chunk: Chunk) -> Filtered:
        flags = bytearray(chunk.scan.n)
        last.mark(chunk, flags)
        return filter_batches(chunk.data, chunk.scan, drop_keys=drop, retention=flags)

    return judge


class _Erasing:
    def __init__(
        self, view: PartitionWriter | PartitionFollower, keys: Collection[bytes], pace: Pace
    ) -> None:
        self._view = view
        self._fs: FileSystem = view.context.fs
        self._pace = pace
        self._keys = frozenset(keys)
        self._drop = DropSet(self._keys)
        self._digests = sorted(kernel.hash64(key) for key in self._keys)
        if isinstance(view, PartitionWriter):
            with view.lock:
                producers = view.producers.to_entries()
        else:
            producers = view.producer_entries()
        self._last = LastBatches(producers, view.local_segments()[-1].base_offset)
        self.report = EraseReport(view.topic, view.partition, len(self._keys), 0, 0, 0, 0, 0)

    def run(self, act: Callable[[Segment], None], *, dry_run: bool) -> None:
        self.report = replace(self.report, dry_run=dry_run)
        segments = self._view.local_segments()[:-1]
        self._pace.plan(sum(each.size for each in segments))
        for segment in segments:
            try:
                if self._may_hold(segment):
                    act(segment)
            except DamagedSegmentError as error:
                self.report = replace(self.report, unreachable=(*self.report.unreachable, error.damage))
        self._leftovers(dry_run=dry_run)

    def erase(self, writer: PartitionWriter, segment: Segment) -> None:
        target = RewriteTarget.beside(segment, writer.config)
        made = _erase_segment(segment, target, self._drop, self._last, self._pace)
        if not made.segments:
            return
        if not swap_in(writer, [segment], made.segments):
            raise VanishedSegmentError(segment.path())
        self._add(segment, made.records_in - made.records_out, made.bytes_out)

    def count(self, segment: Segment) -> None:
        gone = left = 0
        judge = _eraser(self._drop, self._last)
        for chunk in sound_chunks(segment):
            try:
                made = judge(segment, chunk)
            except FormatError as error:
                raise damaged(segment, error, chunk.position) from error
            gone += made.records_in - made.records_out
            left += len(made.data)
            self._pace.read(chunk.scan.end)
        if gone:
            self._add(segment, gone, left)

    def _add(self, segment: Segment, records: int, bytes_after: int) -> None:
        done = self.report
        self.report = replace(
            done,
            records_erased=done.records_erased + records,
            segments_rewritten=done.segments_rewritten + 1,
            bytes_before=done.bytes_before + segment.size,
            bytes_after=done.bytes_after + bytes_after,
        )

    def _may_hold(self, segment: Segment) -> bool:
        """Return False when a key index that fits the segment knows none of the keys."""
        if len(self._digests) > INDEXED_LOOKUPS:
            return True
        try:
            seal = segment.seal
            with self._fs.open(segment.path("keyindex")) as file:
                reader = KeyIndexReader(file.pread, file.size())
                if seal is None or (reader.log_size, reader.log_crc) != (segment.size, seal.crc):
                    return True
                return any(reader.lookup(digest) for digest in self._digests)
        except (FileNotFoundError, FormatError):
            return True

    # -- what earlier lives left ------------------------------------------------------------------------

    def _leftovers(self, *, dry_run: bool) -> None:
        directory, removed = self._view.directory, []
        for name in self._fs.list_dir(directory):
            parsed = parse_file(name)
            path = f"{directory}/{name}"
            if parsed is None:
                continue
            dead = parsed.suffix == DELETED
            if dead or (parsed.kind == TORN and not self._is_free(path)):
                removed.append(path)
        if removed and not dry_run:
            for path in removed:
                self._view.context.handles.forget(path)
                with suppress(FileNotFoundError):
                    self._fs.remove(path)
            self._fs.sync_dir(directory)
        self.report = replace(self.report, files_removed=tuple(removed))

    def _is_free(self, path: str) -> bool:
        """Return whether saved torn bytes are all readable and hold none of the keys."""
        longest = max((len(key) for key in self._keys), default=0)
        with self._fs.open(path) as file:
            size = file.size()
            if not _is_plain(file.pread(min(size, 1 << 30), 0)):
                return False
            at, rest = 0, b""
            while data := file.pread(SEARCH_BYTES, at):
                window = rest + data
                if any(key in window for key in self._keys):
                    return False
                at, rest = at + len(data), window[-longest:] if longest else b""
        return True


def _is_plain(data: bytes) -> bool:
    """Return whether these are uncompressed batches, except for a last one that is cut short."""
    scan = batches.scan(data, check_crc=False)
    if any(header.codec for header in scan):
        return False
    if scan.stop is Stop.PARTIAL:
        left = data[scan.end :]
        return len(left) < HEADER_SIZE or not left[22] & 7
    return scan.stop in (Stop.END, Stop.ZERO) and not any(data[scan.end :])
