"""What the headers of a partition tell: records, bytes, times, codecs, producers, and visible damage.

Reads batch headers, sizes, indexes and the small files, and no record: a directory of any size is read in the
time that its headers take. A flipped byte inside a batch is not seen; `verify` reads every byte. Changes
nothing, and works on any directory that can be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest

from stratalog.errors import CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format.batch import Scan, Stop
from stratalog.format.batch.header_scan import WIDTH
from stratalog.format.codecs import CODEC_NAMES
from stratalog.format.indexes import OffsetIndex, TimeIndex
from stratalog.fs import File
from stratalog.fs.contract import READ_FILE_LIMIT_BYTES
from stratalog.log.check.damage import UNKNOWN, Damage, derived_damage, reason_of
from stratalog.log.check.resync import next_valid
from stratalog.log.check.verify import check_files, is_named, verify_partition
from stratalog.log.names import MAX_OFFSET
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.read.gaps import missing_between
from stratalog.log.segment.segment import Segment

WINDOW_BYTES = 64 << 10
"""How much is read at a time; a batch that is longer is passed over."""

_COLUMNS = {name: at for at, name in enumerate(batches.BatchHeader._fields)}
_NO_FIRST_TIME = 0x40 | 0x08
"""Batches whose base timestamp is not their first record's: with a delete horizon, or with LogAppendTime."""
_CONTROL = 0x20


@dataclass(slots=True)
class HeaderFacts:
    """What the files of a partition hold, by their headers. Times are epoch milliseconds."""

    segments: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    """Records in the files: also those below the log start offset, not the markers of transactions."""
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    codecs: tuple[str, ...] = ()
    producers: int = 0
    last_producer_id: int | None = None
    """The producer of the last batch; None when it has none."""
    torn_bytes: int = 0
    """Bytes behind the last whole batch that a stop without warning explains: recovery cuts them."""
    damages: tuple[Damage, ...] = ()


def inspect_partition(
    view: PartitionFollower,
    *,
    clean: bool,
    recovery_point: int | None,
    full: bool = False,
    progress: Callable[[int], None] = lambda size: None,
) -> HeaderFacts:
    """Walk the headers of a partition; with ``full`` also check every byte.

    ``clean``: the last writer stopped in order, so that a torn end is damage. ``recovery_point``: what lies
    below this offset was on disk.
    """
    facts, found = HeaderFacts(), list[Damage]()
    codecs, producers = set[int](), set[int]()
    segments = view.local_segments()
    for segment, following in zip_longest(segments, segments[1:]):
        try:
            size = view.context.fs.stat(segment.path()).size
            facts.segments, facts.bytes = facts.segments + 1, facts.bytes + size
            end = 0
            with segment.open_log() as file:
                for position, scan in _walk(file, size):
                    if scan.n:
                        end = position + scan.end
                        _add(facts, scan, codecs, producers)
            progress(size)
            if following is None:
                found += _judge_end(view, segment, size, facts, clean, recovery_point or 0)
            elif end < size:
                found.append(_broken(segment, size, end, scan))
            if not segment.is_active and not segment.unsynced:
                found += _check_indexes(segment)
            if following is not None:
                with suppress(CorruptionError):  # which is named already
                    lost = missing_between(segment, following, view.log_start_offset, MAX_OFFSET)
                    found += [] if lost is None or is_named(lost, found) else [lost]
        except FileNotFoundError:
            found.append(
                Damage(segment.path(), 0, UNKNOWN, segment.base_offset, UNKNOWN, "the file is missing")
            )
    if full:
        verified = verify_partition(view, progress=progress).damages
        found = [*verified, *(each for each in found if not _covered(each, verified))]
    else:
        found += [each for each in check_files(view) if not is_named(each, found)]
    facts.codecs = tuple(CODEC_NAMES[codec] for codec in sorted(codecs) if codec < len(CODEC_NAMES))
    facts.producers = len(producers - {-1})
    facts.damages = tuple(found)
    return facts


def _walk(file: File, size: int) -> Iterator[tuple[int, Scan]]:
    """Yield positions and headers up to the end, or to the first batch that is wrong, which has no row."""
    position = 0
    while position < size:
        window = file.pread(min(WINDOW_BYTES, size - position), position)
        scan = batches.scan(window, check_crc=False, reach=size - position)
        yield position, scan
        if scan.n == 0:
            return
        position += scan.end


def _add(facts: HeaderFacts, scan: Scan, codecs: set[int], producers: set[int]) -> None:
    column = {name: scan.table[at::WIDTH] for name, at in _COLUMNS.items()}
    facts.batches += scan.n
    facts.records += scan.records
    codecs.update(flags & 7 for flags in set(column["attributes"]))
    producers.update(column["producer_id"])
    last = column["producer_id"][-1]
    facts.last_producer_id = last if last >= 0 else None
    rows = zip(column["attributes"], column["base_timestamp"], column["max_timestamp"], strict=True)
    times = [
        (newest if flags & _NO_FIRST_TIME else first, newest)
        for flags, first, newest in rows
        if newest >= 0 and not flags & _CONTROL
    ]
    if times:
        known = [] if facts.first_timestamp is None else [facts.first_timestamp]
        facts.first_timestamp = min(*known, *(max(first, 0) for first, _ in times), times[0][1])
        facts.last_timestamp = max(facts.last_timestamp or 0, *(newest for _, newest in times), 0)


def _judge_end(
    view: PartitionFollower, last: Segment, size: int, facts: HeaderFacts, clean: bool, recovery_point: int
) -> list[Damage]:
    """Judge the bytes behind the last batch that readers see: torn by a crash, or damage."""
    if size <= last.size:
        return []
    end = last.next_offset or last.base_offset
    with last.open_log() as file:
        scan = batches.scan(file.pread(WINDOW_BYTES, last.size), check_crc=False, reach=size - last.size)
    if scan.stop is Stop.ZERO and scan.n == 0 and not any(_zeros(last, size)):
        return []  # space that the broker reserved
    whole = Segment(last.location, last.base_offset, size=size)
    goes_on = next_valid(whole, last.size + 1)
    if goes_on is None and not clean and end >= recovery_point:
        facts.torn_bytes = size - last.size
        return []
    return [_broken(whole, size, last.size, scan, first=end)]


def _zeros(segment: Segment, size: int) -> Iterator[bool]:
    with segment.open_log() as file:
        for position in range(segment.size, size, WINDOW_BYTES):
            yield any(file.pread(min(WINDOW_BYTES, size - position), position))


def _broken(segment: Segment, size: int, position: int, scan: Scan, first: int | None = None) -> Damage:
    """Name the bytes from ``position`` to the next valid batch, and the offsets between its neighbours."""
    goes_on = next_valid(segment, position + 1)
    if first is None:
        first = segment.base_offset
        with segment.open_log() as file:
            for _, each in _walk(file, position):
                first = each.last_offset + 1 if each.n else first
    last = UNKNOWN if segment.next_offset is None else segment.next_offset - 1
    if goes_on is not None:
        with segment.open_log() as file:
            found = batches.peek(file.pread(batches.HEADER_SIZE, goes_on))
        last = last if found is None else found.base_offset - 1
    reason = scan.reason if scan.n == 0 and scan.reason else "a batch that does not match its CRC"
    return Damage(segment.path(), position, size if goes_on is None else goes_on, first, last, reason)


def _check_indexes(segment: Segment) -> list[Damage]:
    """Check that the indexes of a closed segment parse and stay inside it, and that its seal is its own."""
    found = []
    try:
        _ = segment.seal
    except CorruptionError as error:
        found.append(Damage(segment.path(), error.position, UNKNOWN, UNKNOWN, UNKNOWN, error.reason))
    for kind in ("index", "timeindex"):
        try:
            data = segment.sidecar(kind, limit=READ_FILE_LIMIT_BYTES)
            if data is None:
                found += [derived_damage(segment.path(kind), "the file is missing")] if segment.size else []
            elif kind == "index":
                OffsetIndex.parse(data, segment.base_offset, segment.size)
            else:
                TimeIndex.parse(data, segment.base_offset)
        except FormatError as error:
            found.append(derived_damage(segment.path(kind), reason_of(error)))
    return found


def _covered(damage: Damage, verified: tuple[Damage, ...]) -> bool:
    """Return True if the check of every byte named the same: the same offsets, or the same derived file."""
    return is_named(damage, verified) or any(
        each.path == damage.path and (damage.derived or each.start == damage.start) for each in verified
    )
