"""Bringing producer state up to the end of the log: the newest snapshot, then the batches after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stratalog.errors import FormatError
from stratalog.format import batch as batches
from stratalog.format import producer_snapshot
from stratalog.format.batch import Scan
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.check.resync import resume
from stratalog.log.context import LogContext
from stratalog.log.names import segment_name
from stratalog.log.segment.scanning import scan_file
from stratalog.log.segment.segment import Segment
from stratalog.log.write.producers import ProducerBatch, ProducerState

NO_LISTS: Mapping[int, list[AbortedTxn]] = {}


def load_snapshot(
    context: LogContext, directory: str, offsets: Iterable[int], end: int, expiration_ms: int
) -> tuple[ProducerState, int]:
    """The newest snapshot at or below ``end`` that can be read, and the offset it speaks for."""
    for offset in sorted(offsets, reverse=True):
        if offset > end:
            continue
        path = f"{directory}/{segment_name(offset)}.snapshot"
        try:
            entries = producer_snapshot.parse(context.fs.read_file(path))
        except FileNotFoundError:
            continue
        except FormatError as error:
            context.warn(f"{path}: {error}; using an older one")
            continue
        state = ProducerState.from_entries(entries, expiration_ms)
        state.expire(context.clock.now_ms())
        return state, offset
    return ProducerState(expiration_ms), 0


def headers_from(segments: Sequence[Segment], offset: int) -> Iterator[tuple[Segment, memoryview, Scan]]:
    """Scans (headers only, no CRC) of everything at or after ``offset``, for replaying."""
    for segment in segments:
        if segment.next_offset is not None and segment.next_offset <= offset:
            continue
        position = segment.start_for(offset).position
        at_least = segment.base_offset
        with segment.open_log() as file:
            while position < segment.size:
                for at, data, scan in scan_file(file, position, segment.size):
                    if scan.n:
                        yield segment, data, scan
                        position, at_least = at + scan.end, scan.last_offset + 1
                if position < segment.size:
                    # Damage, which readers name: what is behind it counts all the same.
                    position = resume(segment, file, position, limit=segment.size, at_least=at_least)


def replay_producers(
    context: LogContext,
    directory: str,
    segments: Sequence[Segment],
    snapshots: Iterable[int],
    end: int,
    *,
    trusted_offset: int | None,
    expiration_ms: int,
    snapshot_limit: int,
    aborted: Mapping[int, list[AbortedTxn]],
) -> ProducerState:
    """Producer state as of ``end``.

    ``trusted_offset`` is given when it is known that no batch below it has a producer id. ``aborted`` is
    filled, by base offset of the segment, with the aborted transactions of the part that is replayed;
    no snapshot past ``snapshot_limit`` is used, so that this part covers the segments asked for.
    """
    state, at = load_snapshot(context, directory, snapshots, snapshot_limit, expiration_ms)
    start = at if trusted_offset is None or len(state) else max(at, min(trusted_offset, end))
    if start < end:
        replay(state, segments, start, end, aborted)
    return state


def replay(
    state: ProducerState,
    segments: Sequence[Segment],
    start: int,
    end: int,
    aborted: Mapping[int, list[AbortedTxn]] = NO_LISTS,
) -> None:
    """Carry ``state`` from ``start`` on to ``end``; what was aborted meanwhile goes to its segment's list."""
    for segment, data, scan in headers_from(segments, start):
        if not scan.has_producers:
            continue
        for header in scan:
            if header.producer_id < 0 or not start <= header.base_offset < end:
                continue
            marker, epoch = batches.decode_control(data, header) if header.is_control else (None, -1)
            completed = state.update(ProducerBatch.of(header, marker, epoch), replay=True)
            if completed is not None and completed.aborted and segment.base_offset in aborted:
                aborted[segment.base_offset].append(completed.aborted_txn())
