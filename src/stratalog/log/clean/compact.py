"""Compaction of one partition: the latest record of every key stays, at its offset.

A pass reads the dirty part into a map from key to latest offset, then rewrites every segment from the start
of the log to the end of what the map covers, group by group, each swapped in before the next is begun. When
the keys do not fit into the memory allowed, the pass covers less and another one follows: more passes, not
more memory. The checkpoint moves after each.

A round works on a `Workplace`. Where this process writes the partition that is the `WriterPlace`. Where
another process does, it is a copy of the facts and a directory of its own (`remote_compaction`). The rules
are the same in both, and so are the bytes.

A segment that cannot be read is quarantined: left as it is, named in the report, and the rest goes on.
Segments above it keep their tombstones and markers, and the checkpoint does not pass it, so that after a
repair everything above is applied to it before any tombstone goes.

Crash policy: a crash leaves every group old or new. Groups are done from the lowest up, so what a tombstone
deletes is gone before the tombstone can be; the checkpoint is written last, so a round is at worst repeated.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from stratalog import locks
from stratalog.config import TopicConfig
from stratalog.errors import ConfigError, FormatError
from stratalog.format import batch as batches
from stratalog.format import producer_snapshot
from stratalog.format.batch.filter import Filtered, build
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.txn_index import AbortedTxn
from stratalog.kernel import KeyMap
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
from stratalog.log.clean.rules import (
    CleanedTransactions,
    CompactionFilter,
    LastBatches,
    MayBeBelow,
    group_segments,
    skip_aborted,
)
from stratalog.log.clean.swap import swap_in
from stratalog.log.context import LogContext
from stratalog.log.names import segment_name
from stratalog.log.policy.cleaning import Cleanable
from stratalog.log.read.chunks import FULL_CHUNK, Chunk, read_chunks
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.segment.segment import Segment, Start
from stratalog.log.write.writer import PartitionWriter


@dataclass(frozen=True, slots=True)
class CleanReport:
    """One compaction of a partition. Counts are of the cleaned range; bytes are those of `.log` files."""

    topic: str
    partition: int
    first_offset: int
    """The base offset of the first segment that was looked at."""
    next_dirty_offset: int
    """Where the next round begins: the last offset saved in the cleaner's checkpoint."""
    passes: int
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    tombstones_dropped: int
    groups: int
    """Groups of segments that were replaced by one each."""
    bytes_read: int
    """Of the log, all passes together, for the key map and for the rewriting."""
    seconds: float
    quarantined: tuple[Damage, ...] = ()
    """Segments that could not be read; they stay as they are, and so do the tombstones above them."""
    stopped: str | None = None
    """Why it ended early; None when the whole range was cleaned."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CleanReport:
        return cls(**{**value, "quarantined": tuple(Damage(**each) for each in value["quarantined"])})


Aborted = tuple[AbortedTxn, ...] | Damage
"""The transactions aborted in a segment, or the damage that hides them."""


class Workplace(Protocol):
    """One partition while it is cleaned. The caller ensures that only one round of a partition runs."""

    topic: str
    partition: int
    directory: str
    """The partition's own directory, which holds its snapshots."""
    config: TopicConfig
    context: LogContext

    def sealed(self) -> Sequence[Segment]:
        """Return the sealed local segments as they are now, in order."""

    def transactions(self) -> Iterator[tuple[int, Aborted]]:
        """Yield the base offset and the aborted transactions of every local segment, the active one too."""

    def archived_end(self) -> int:
        """Return the offset below which records are in the archive, where a round does not see them."""

    def producers(self) -> Sequence[ProducerEntry]:
        """Return the active producers."""

    def target(self, group: Sequence[Segment]) -> RewriteTarget:
        """Return where to write the replacement of a group."""

    def swap(self, group: Sequence[Segment], made: Sequence[Segment]) -> bool:
        """Put ``made`` in the place of ``group``; False when the log no longer has all of it."""


class WriterPlace:
    """A partition that this process writes."""

    def __init__(self, writer: PartitionWriter) -> None:
        self._writer = writer
        self.topic = writer.topic
        self.partition = writer.partition
        self.directory = writer.directory
        self.config = writer.config
        self.context = writer.context

    def sealed(self) -> Sequence[Segment]:
        return self._writer.local_segments()[:-1]

    def transactions(self) -> Iterator[tuple[int, Aborted]]:
        for segment in self._writer.local_segments():
            yield segment.base_offset, aborted_of(segment)

    def archived_end(self) -> int:
        local = self._writer.local_segments()
        return local[0].base_offset if len(self._writer.segments()) > len(local) else 0

    def producers(self) -> Sequence[ProducerEntry]:
        with self._writer.lock:
            return self._writer.producers.to_entries()

    def target(self, group: Sequence[Segment]) -> RewriteTarget:
        return RewriteTarget.beside(group[0], self.config)

    def swap(self, group: Sequence[Segment], made: Sequence[Segment]) -> bool:
        return swap_in(self._writer, group, made)


def round_end(writer: PartitionWriter, cleanable: Cleanable) -> int:
    """Return where a round ends: at a segment's base, not past the last stable offset or the active one's."""
    bound = min(cleanable.first_uncleanable_offset, writer.end_offset("read_committed"))
    local = writer.local_segments()
    return max((each.base_offset for each in local if each.base_offset <= bound), default=bound)


BUFFER_BYTES = 8 << 20
"""Of the memory allowed, what buffers take: a chunk read, a chunk made, indexes. The map gets the rest."""

WATCHED_SHARE = 64
"""What part of the memory allowed may hold bits of superseded offsets; it is taken from the buffers'."""

MAX_MAP_OFFSETS = 2**32 - 2
"""How far from its base offset a key map can count."""


def clean(
    writer: PartitionWriter,
    cleanable: Cleanable,
    *,
    memory_bytes: int,
    now_ms: int,
    save: Callable[[int], None],
    pace: Pace | None = None,
    may_be_below: MayBeBelow | None = None,
) -> CleanReport:
    """Compact a partition from its start up to ``cleanable.first_uncleanable_offset``.

    ``save(next_dirty_offset)`` stores the cleaner's checkpoint durably, after each pass. When ``pace``
    asks to stop, groups that are already swapped in stay.
    ``may_be_below(keys)`` returns the keys that an archived segment may still hold: their tombstones stay.
    With nothing dirty, expired tombstones and markers are removed and small segments merged.

    The caller must ensure that only one rewrite of a partition runs at a time.
    """
    writer.make_usable()
    span = (cleanable.first_dirty_offset, round_end(writer, cleanable))
    return Cleaning(WriterPlace(writer), span, memory_bytes, now_ms, may_be_below, pace or Pace()).run(save)


class Cleaning:
    """One round. ``span``: the first dirty offset, and the base offset where the round ends."""

    def __init__(
        self,
        place: Workplace,
        span: tuple[int, int],
        memory_bytes: int,
        now_ms: int,
        may_be_below: MayBeBelow | None,
        pace: Pace,
    ) -> None:
        self._place = place
        self._config = place.config
        self._now_ms = now_ms
        self._may_be_below = may_be_below
        self._pace = pace
        self._quarantined: dict[Segment, Damage] = {}
        self._derived: list[Damage] = []
        self._ours: set[Segment] = set()
        self._counts = Rewritten([])
        self._groups = 0
        self._passes = 0
        self._aborted: list[AbortedTxn] = []
        first_dirty, self._upper = span
        segments = self._segments(self._upper)
        self._first_offset = segments[0].base_offset if segments else self._upper
        self._dirty = max(first_dirty, self._first_offset)
        self._before = (len(segments), sum(each.size for each in segments))
        self._keys = KeyMap(self._map_bytes(memory_bytes, segments), self._dirty)
        self._keys.watch(min(max(self._upper - self._dirty, 0) // 8 + 1, memory_bytes // WATCHED_SHARE))

    def _map_bytes(self, memory_bytes: int, segments: Sequence[Segment]) -> int:
        records = 0
        for segment in segments:
            if (segment.next_offset or 0) > self._dirty:
                records += (segment.next_offset or 0) - max(segment.base_offset, self._dirty)
        return max(64, min(memory_bytes - min(BUFFER_BYTES, memory_bytes // 4), KeyMap.memory_for(records)))

    def _segments(self, end: int) -> list[Segment]:
        return [each for each in self._place.sealed() if each.base_offset < end]

    # -- the round -----------------------------------------------------------------------------------

    def run(self, save: Callable[[int], None]) -> CleanReport:
        first_dirty = next_dirty = self._dirty
        stopped: str | None = None
        try:
            while True:
                stopped = self._learn_aborted()
                self._pass()
                next_dirty = min(self._dirty, max(first_dirty, self._floor()))
                save(next_dirty)
                if self._dirty >= self._upper:
                    break
        except StopCleaningError:
            stopped = "a stop was requested"
        except VanishedSegmentError as error:
            stopped = f"the log changed meanwhile: {error} is gone"
        return self._report(next_dirty, stopped)

    def _pass(self) -> None:
        self._passes += 1
        segments = self._segments(self._upper)
        size = sum(each.size for each in segments)
        self._pace.plan(sum(each.size for each in segments if (each.next_offset or 0) > self._dirty) + size)
        end = self._build(segments)
        todo = [each for each in segments if each.base_offset < end]
        self._pace.plan(sum(each.size for each in todo))
        self._rewrite_all(todo)
        self._dirty = max(self._dirty, end)

    def _floor(self) -> int:
        """Return the lowest base offset of a segment that could not be read."""
        return min((each.base_offset for each in self._quarantined), default=2**63 - 1)

    def _quarantine(self, error: DamagedSegmentError) -> None:
        self._quarantined[error.segment] = error.damage
        self._place.context.warn(
            f"{error.damage.path}: {error.damage.reason}; compaction leaves this segment as it is"
        )

    # -- transactions --------------------------------------------------------------------------------

    def _learn_aborted(self) -> str | None:
        """Find the aborted transactions; where they are unknown the round ends before. Return why.

        A transaction that was open when a segment with an unreadable index began may have been aborted in it,
        so nothing from its first record on can be judged.
        """
        self._aborted = []
        why: str | None = None
        bases: list[int] = []
        for base_offset, found in self._place.transactions():
            bases.append(base_offset)
            if not isinstance(found, Damage):
                self._aborted += found
                continue
            why = f"{found.path}: {found.reason}"
            if found not in self._derived:
                self._derived.append(found)
            limit = min(base_offset, self._first_open(base_offset))
            below = max((each for each in bases if each <= limit), default=self._first_offset)
            self._upper = min(self._upper, below)
        return why

    def _first_open(self, base_offset: int) -> int:
        """Return the first offset of a transaction open where a segment begins; 0 when it is unknown."""
        path = f"{self._place.directory}/{segment_name(base_offset)}.snapshot"
        try:
            entries = producer_snapshot.parse(self._place.context.fs.read_file(path))
        except (FileNotFoundError, FormatError):
            return 0
        open_ones = [each.current_txn_first_offset for each in entries if each.current_txn_first_offset >= 0]
        return min(open_ones, default=base_offset)

    # -- the map -------------------------------------------------------------------------------------

    def _build(self, segments: Sequence[Segment]) -> int:
        """Fill the map from the first dirty offset on; return the offset up to which it covers every key."""
        keys, dirty = self._keys, self._dirty
        keys.clear(dirty)
        transactions = CleanedTransactions(self._aborted)
        for at, segment in enumerate(segments):
            end = segments[at + 1].base_offset if at + 1 < len(segments) else self._upper
            if end <= dirty:
                continue
            if segment not in self._quarantined:
                try:
                    for chunk in sound_chunks(segment, dirty):
                        if not self._add(segment, chunk, transactions):
                            return self._covered()
                except DamagedSegmentError as error:
                    self._quarantine(error)
            keys.latest_offset = end - 1
        keys.latest_offset = max(keys.latest_offset, self._upper - 1)
        return self._upper

    def _add(self, segment: Segment, chunk: Chunk, transactions: CleanedTransactions) -> bool:
        """Add a chunk's keys; return False when they did not all fit."""
        scan = chunk.scan
        if scan.last_offset - self._dirty > MAX_MAP_OFFSETS:
            return False
        try:
            skip = skip_aborted(chunk, transactions)
            first = scan.find_offset(self._dirty)
            row = build(self._keys, chunk.data, scan, first, skip=skip, lo=self._dirty)
        except FormatError as error:
            raise damaged(segment, error, chunk.position) from error
        self._pace.read(scan.end)
        return row >= scan.n

    def _covered(self) -> int:
        end = self._keys.latest_offset + 1
        if end <= self._dirty:
            raise ConfigError(
                f"log.cleaner.dedupe.buffer.size is too small for the batch at offset {self._dirty}"
            )
        return end

    # -- rewriting -----------------------------------------------------------------------------------

    def _rewrite_all(self, segments: Sequence[Segment]) -> None:
        transactions = CleanedTransactions(self._aborted, unseen_below=self._place.archived_end())
        groups = deque(group_segments(segments, self._config, self._upper, apart=self._quarantined.keys()))
        while groups:
            group = groups.popleft()
            if self._floor() < group[0].base_offset:
                transactions.pass_over()
            before = transactions.copy()
            try:
                self._rewrite_group(group, transactions)
            except DamagedSegmentError as error:
                self._quarantine(error)
                transactions = before
                at = group.index(error.segment)
                groups.extendleft(reversed([part for part in (group[:at], group[at + 1 :]) if part]))

    def _rewrite_group(self, group: list[Segment], transactions: CleanedTransactions) -> None:
        floor = self._floor()
        judge = CompactionFilter(
            self._keys,
            transactions,
            LastBatches(self._place.producers(), self._upper),
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
            may_be_below=self._may_be_below,
            hold_above=floor if floor < group[-1].base_offset else None,
        )

        fresh = 0

        def keep(segment: Segment, chunk: Chunk) -> Filtered:
            nonlocal fresh
            made = judge(segment, chunk)
            fresh += 0 if segment in self._ours else made.records_in
            return made

        made = rewrite(
            group,
            self._place.target(group),
            keep,
            aborted=transactions.entries,
            pace=self._pace,
            cleaned=True,
            lazily=is_cleaned(group[0]),
        )
        if made.segments and not self._place.swap(group, made.segments):
            raise VanishedSegmentError(group[0].path())
        self._counts.records_in += fresh
        self._counts.records_out += made.records_in - made.records_out
        self._counts.tombstones_out += made.tombstones_in - made.tombstones_out
        self._ours.update(made.segments or group)
        self._groups += bool(made.segments)

    def _report(self, next_dirty: int, stopped: str | None) -> CleanReport:
        after = self._segments(self._upper)
        return CleanReport(
            topic=self._place.topic,
            partition=self._place.partition,
            first_offset=self._first_offset,
            next_dirty_offset=next_dirty,
            passes=self._passes,
            segments_before=self._before[0],
            segments_after=len(after),
            bytes_before=self._before[1],
            bytes_after=sum(each.size for each in after),
            records_before=self._counts.records_in,
            records_after=self._counts.records_in - self._counts.records_out,
            tombstones_dropped=self._counts.tombstones_out,
            groups=self._groups,
            bytes_read=self._pace.bytes_read,
            seconds=self._pace.seconds,
            quarantined=(*self._quarantined.values(), *self._derived),
            stopped=stopped,
        )


SKETCH_HASHES = 2048
_ALL_HASHES = 2.0**64


class Sketch(NamedTuple):
    """``records`` with a key, and the smallest hashes of their keys, ascending, each once."""

    records: int
    smallest: array[int]


class DuplicateEstimates:
    """Estimates how many records a compaction would drop, by sketches of keys. Thread-safe.

    A sketch keeps the smallest key hashes of a segment (k minimum values): how small they are tells how many
    different keys there are, within a few percent, and sketches can be joined. A sealed segment never
    changes, so its sketch is made once and kept in memory, as long as its partition is open.
    """

    def __init__(self) -> None:
        self._lock = locks.lock("estimates")
        self._sketches: WeakKeyDictionary[
            PartitionWriter | PartitionFollower, dict[tuple[int, int], Sketch]
        ] = WeakKeyDictionary()

    def ratio(self, view: PartitionWriter | PartitionFollower, cleanable: Cleanable) -> float | None:
        """Return the share of keyed records below the first uncleanable offset that a later one supersedes.

        None when there are none. CorruptionError when a segment cannot be read.
        """
        end = cleanable.first_uncleanable_offset
        segments = [each for each in view.local_segments()[:-1] if each.base_offset < end]
        with self._lock:
            known = self._sketches.get(view, {})
        found = {(each.base_offset, each.size): known.get((each.base_offset, each.size)) for each in segments}
        sketches = {
            (each.base_offset, each.size): found[each.base_offset, each.size] or sketch_of(each)
            for each in segments
        }
        with self._lock:
            self._sketches[view] = sketches
        records = sum(sketch.records for sketch in sketches.values())
        if not records:
            return None
        return max(0.0, 1.0 - distinct_keys(sketches.values()) / records)


def sketch_of(segment: Segment) -> Sketch:
    """Read the keys of a sealed segment once."""
    records = 0
    smallest: list[int] = []
    bound = 1 << 64
    for chunk in read_chunks(segment, Start(0, None), first_size=FULL_CHUNK):
        hashes, _ = batches.decode_keys(chunk.data, chunk.scan)
        records += len(hashes)
        fresh = set(hashes) if bound >> 64 else {each for each in hashes if each < bound}
        if fresh:
            smallest = sorted(fresh.union(smallest))[:SKETCH_HASHES]
            if len(smallest) == SKETCH_HASHES:
                bound = smallest[-1]
    return Sketch(records, array("Q", smallest))


def distinct_keys(sketches: Iterable[Sketch]) -> float:
    """Estimate how many different keys the segments of these sketches hold; exact while they are few."""
    joined = sorted({each for sketch in sketches for each in sketch.smallest})[:SKETCH_HASHES]
    if len(joined) < SKETCH_HASHES:
        return float(len(joined))
    return (SKETCH_HASHES - 1) * _ALL_HASHES / (joined[-1] + 1)
