"""Finding records by key in one partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from stratalog import kernel
from stratalog.errors import FormatError, OffsetOutOfRangeError
from stratalog.format import batch as batches
from stratalog.format.keyindex import KeyIndexReader
from stratalog.log.read.chunks import FULL_CHUNK, read_chunks
from stratalog.log.read.gaps import check_joined
from stratalog.log.read.reader import Isolation, KeyedView, LogView, Relists, or_gone
from stratalog.log.read.record_at import record_at, records_at
from stratalog.log.segment.segment import Segment, Start
from stratalog.log.write.active import ActiveSegment
from stratalog.model import Record

TOGETHER_BYTES = 16 << 10
TOGETHER_RECORDS = 4096
"""Records of a key that lie within 16 KiB of each other are read in one pass, at most 4096 at a time."""


def key_offsets(segment: Segment, digest: int) -> Iterable[int]:
    """Offsets in a segment that may hold a key with this hash, newest first."""
    if isinstance(segment, ActiveSegment) and segment.keys is not None:
        return segment.keys.newest_first(digest)
    if not segment.is_active:
        indexed = _indexed(segment, digest)
        if indexed is not None:
            return reversed(indexed)
    return reversed(_scanned(segment, digest))


def _indexed(segment: Segment, digest: int) -> list[int] | None:
    """By the `.keyindex`; None when there is none to trust."""
    try:
        with segment.open_keyindex() as file:
            reader = KeyIndexReader(file.pread, file.size())
            seal = segment.seal
            if reader.log_size != segment.size or (seal is not None and seal.crc != reader.log_crc):
                return None
            return reader.lookup(digest)
    except FileNotFoundError:
        return None
    except FormatError as error:
        segment.context.warn(f"{segment.path('keyindex')}: {error}; scanning the segment instead")
        return None


def _scanned(segment: Segment, digest: int) -> list[int]:
    """By reading every key of the segment."""
    found: list[int] = []
    for chunk in read_chunks(segment, Start(0, None), first_size=FULL_CHUNK):
        hashes, offsets = batches.decode_keys(chunk.data, chunk.scan)
        at = 0
        with suppress(ValueError):
            while True:
                at = hashes.index(digest, at)
                found.append(offsets[at])
                at += 1
    return found


def history_backwards(
    view: KeyedView, key: bytes, isolation: Isolation = "read_uncommitted"
) -> Iterator[Record]:
    """Every record of a key, newest first. Equal hashes are not equal keys: the key on the record decides."""
    view.refresh()
    digest = kernel.hash64(key)
    start = view.log_start_offset
    bound = view.keyed_end_offset(isolation)
    relists: Relists | None = None
    while True:
        try:
            following: Segment | None = None
            for segment in reversed(view.segments()):
                if segment.base_offset >= bound:
                    following = segment
                    continue
                with or_gone(view, segment):
                    check_joined(segment, following, start, bound)
                    offsets = [at for at in key_offsets(segment, digest) if start <= at < bound]
                for record in _newest_first(view, segment, offsets, isolation):
                    if record.key == key:
                        yield record
                        assert record.offset is not None
                        bound = record.offset
                bound, following = min(bound, segment.base_offset), segment
            return
        except (FileNotFoundError, OffsetOutOfRangeError) as error:
            # A segment was replaced or removed: go on below the records that were already yielded.
            if isinstance(error, FileNotFoundError):
                relists = relists or Relists(view)
                relists.again(error, bound)
            start = max(start, view.log_start_offset)
            if bound <= start:
                return


def newest(view: KeyedView, key: bytes, isolation: Isolation = "read_uncommitted") -> Record | None:
    """Return the newest record of a key; None when there is none."""
    return next(history_backwards(view, key, isolation), None)


def _newest_first(
    view: LogView, segment: Segment, offsets: list[int], isolation: Isolation
) -> Iterator[Record]:
    """The records at ``offsets`` of a segment, newest first like these.

    The first is read alone, because a lookup mostly wants no other. Then those that lie near each other are
    read together, more and more at a time.
    """
    records = max((segment.next_offset or 0) - segment.base_offset, 1)
    near = max(TOGETHER_BYTES * records // max(segment.size, 1), 1)
    at, limit = 0, 1
    while at < len(offsets):
        end = at + 1
        while end < len(offsets) and end - at < limit and offsets[end - 1] - offsets[end] <= near:
            end += 1
        if end - at == 1:
            record = record_at(view, offsets[at], isolation)
            if record is not None:
                yield record
        else:
            yield from reversed(list(records_at(view, offsets[at:end][::-1], isolation)))
        at, limit = end, min(limit * 4, TOGETHER_RECORDS)
