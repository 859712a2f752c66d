"""Fetching whole batches as they lie in the log, for a server that sends them on.

Nothing is decoded, copied or summed: the answer names a range of bytes of a segment's file, which the caller
hands to ``sendfile``, and the client checks the CRCs. The range is found by the offset index and by the
headers behind an index entry, at its beginning and at its end; what lies between is not looked at.

The file is pinned until it is released: compaction, retention and a move to another log directory take its
name away and never its bytes. Segments without a file descriptor (archived ones, filesystems in memory)
answer with the bytes themselves. Reads only; nothing here matters after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Protocol

from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format.batch import Scan, Stop
from stratalog.format.txn_index import AbortedTxn
from stratalog.fs import File
from stratalog.log.read.chunks import cut_short, scan_error
from stratalog.log.read.gaps import check_joined
from stratalog.log.read.reader import Isolation, LogView, Relists, or_gone, out_of_range, segment_index
from stratalog.log.segment.segment import Segment

_new_tuple = tuple.__new__  # a named tuple's own costs a Python call
HEADERS_BYTES = 8 << 10
"""How much is read at a time to go from header to header: twice the usual distance of index entries."""


class FetchView(LogView, Protocol):
    """A partition that batches are fetched from."""

    @property
    def next_offset(self) -> int:
        """The offset the next record gets: where the written log ends."""


class Fetched:
    """Whole batches of one segment, and how far the log could be read when they were found.

    ``file`` is the segment's log, open and pinned: send ``length`` bytes from ``position`` on of its
    ``fileno()``. Where ``file`` is None, ``data`` holds the bytes and ``position`` is 0. ``next_offset`` is
    the offset to fetch next. ``aborted`` lists the aborted transactions that overlap the batches, also those
    that began before them; it is empty for ``read_uncommitted``.

    Call `release` when the bytes are sent, or use it as a context manager: a file that is never released
    stays open until the process ends.
    """

    __slots__ = (
        "_pins",
        "aborted",
        "data",
        "file",
        "high_watermark",
        "last_stable_offset",
        "length",
        "log_start_offset",
        "next_offset",
        "position",
    )

    def __init__(
        self,
        found: _Range,
        pinned: tuple[Segment, File] | None,
        *,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        aborted: list[AbortedTxn],
    ) -> None:
        self.file: File | None = None
        self.data: bytes | None = b""
        self.position = 0
        self.length = found.end - found.position
        self.next_offset = found.next_offset
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.aborted = aborted
        self._pins: list[tuple[Segment, File]] = []
        if pinned is None:
            return
        segment, file = pinned
        if self.length and file.fileno() >= 0:
            self.file, self.data, self.position = file, None, found.position
            self._pins.append(pinned)
            return
        self.data = file.pread(self.length, found.position) if self.length else b""
        segment.unpin_log(file)

    def __repr__(self) -> str:
        where = "bytes" if self.file is None else self.file.path
        return f"<Fetched {self.length} bytes at {self.position} of {where}, next offset {self.next_offset}>"

    def read(self) -> bytes:
        """Return the bytes themselves, for a connection that cannot send from a file. Before `release`."""
        if self.file is None:
            return self.data or b""
        return self.file.pread(self.length, self.position)

    def release(self) -> None:
        """Let the file go. Further calls do nothing; any thread may call it."""
        while self._pins:
            try:
                segment, file = self._pins.pop()
            except IndexError:  # another thread took it
                return
            segment.unpin_log(file)

    def __enter__(self) -> Fetched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Range(NamedTuple):
    """Bytes of a log and the offset that follows them."""

    position: int
    end: int
    next_offset: int


def fetch(
    view: FetchView,
    offset: int,
    max_bytes: int,
    isolation: Isolation = "read_uncommitted",
    *,
    minimum_one: bool = True,
) -> Fetched:
    """Return whole batches from the one that holds ``offset`` on, at most ``max_bytes``, of one segment.

    Where no batch holds ``offset`` (compaction took it) the next one comes first. With ``minimum_one`` the
    first batch comes even if it is larger than ``max_bytes``. Nothing at or past the high watermark comes,
    nor, with ``read_committed``, at or past the last stable offset; at the end the answer is empty. An offset
    before the log's start or past its written end is an OffsetOutOfRangeError. Damage that the headers and
    the index show raises CorruptionError; the rest is for the client to find.
    """
    view.refresh()
    relists: Relists | None = None
    while True:
        # In this order: the last stable offset is never past the high watermark.
        stable, high = view.end_offset("read_committed"), view.end_offset()
        start, end = view.log_start_offset, max(view.next_offset, high)
        if not start <= offset <= end:
            raise out_of_range(view, offset, start, end)
        committed = isolation == "read_committed"
        bound = stable if committed else high
        segments = view.segments()
        pinned: tuple[Segment, File] | None = None
        try:
            found, pinned = _find(view, segments, offset, bound, max_bytes, minimum_one)
            aborted: list[AbortedTxn] = []
            if committed and found.end > found.position:
                aborted = view.aborted(offset, found.next_offset)
                if view.segments()[: len(segments) - 1] != segments[:-1]:
                    # The transactions may be those of a cleaned segment, the batches of the one before.
                    raise FileNotFoundError(view.directory)
            return Fetched(
                found,
                pinned,
                high_watermark=high,
                last_stable_offset=stable,
                log_start_offset=start,
                aborted=aborted,
            )
        except BaseException as error:
            if pinned is not None:
                pinned[0].unpin_log(pinned[1])
            if not isinstance(error, FileNotFoundError):
                raise
            relists = relists or Relists(view)
            relists.again(error, offset)


def _find(
    view: FetchView,
    segments: tuple[Segment, ...],
    offset: int,
    bound: int,
    max_bytes: int,
    minimum_one: bool,
) -> tuple[_Range, tuple[Segment, File] | None]:
    """Return the bytes and the file that holds them, pinned. FileNotFoundError if it was replaced."""
    if offset >= bound:
        return _Range(0, 0, offset), None
    at = segment_index(segments, offset)
    while at < len(segments) and segments[at].base_offset < bound:
        segment, at = segments[at], at + 1
        following = segments[at] if at < len(segments) else None
        with or_gone(view, segment):
            file = segment.pin_log()
            try:
                found = _in_segment(segment, file, offset, bound, max_bytes, minimum_one)
                if found is None:
                    check_joined(view, segment, following, offset, bound)
                # A name may have meant another file by the time it was opened.
                if view.replaced(segment):
                    raise FileNotFoundError(segment.path())
            except BaseException:
                segment.unpin_log(file)
                raise
        if found is not None:
            return found, (segment, file)
        segment.unpin_log(file)
    return _Range(0, 0, max(bound, offset)), None


def _in_segment(
    segment: Segment, file: File, offset: int, bound: int, max_bytes: int, minimum_one: bool
) -> _Range | None:
    """Return the bytes of one segment; None when it has no batch at or after ``offset`` below ``bound``."""
    begin, window = _begin(segment, file, offset)
    for run in _runs(segment, file, begin, window=window):
        row = run.scan.find_offset(offset)
        if row < run.scan.n:
            break
    else:
        return None
    position, end, last_offset = run.span(row)
    if last_offset >= bound:
        return None
    if end - position > max_bytes and not minimum_one:
        return _Range(position, position, offset)
    limit = max(position + max_bytes, end)
    end, following, more = run.cut(row + 1, limit, bound)
    if more and following < bound and end < min(limit, segment.size):
        window = b""
        entry = segment.offset_index().last_before(min(bound, _ceiling(segment)), limit)
        if entry is not None and entry[1] > end:
            there = _window(segment, file, entry[1])
            met = batches.peek(there)
            if met is not None and met.last_offset == entry[0] and met.base_offset >= following:
                end, following, window = entry[1], met.base_offset, there
        for run in _runs(segment, file, end, following, window=window):
            end, following, more = run.cut(0, limit, bound)
            if not more:
                break
    if end > run.seen and file.size() < end:
        raise cut_short(segment, end, file.size())
    return _new_tuple(_Range, (position, end, following))


class _Run(NamedTuple):
    """Headers of batches that follow one another from ``position`` on; the file was read up to ``seen``."""

    scan: Scan
    position: int
    seen: int
    floor: int

    def span(self, row: int) -> tuple[int, int, int]:
        """Return where a batch begins and ends in the file, and its last offset."""
        position, end, last_offset = self.scan.span(row)
        return self.position + position, self.position + end, last_offset

    def cut(self, first: int, limit: int, bound: int) -> tuple[int, int, bool]:
        """Return where the last batch ends that lies before ``limit`` and below offset ``bound``.

        With it the offset after it, and whether it is the last one here. Batches before ``first`` count.
        """
        scan, limit = self.scan, limit - self.position
        rows = scan.n if scan.end <= limit else scan.find_position(limit + 1) - 1
        if scan.last_offset >= bound:
            rows = min(rows, scan.find_offset(bound))
        rows = max(rows, first)
        if not rows:
            return self.position, self.floor, False
        _, end, last_offset = self.span(rows - 1)
        return end, last_offset + 1, rows == scan.n


def _ceiling(segment: Segment) -> int:
    """Return the lowest offset not to take: of a segment being swapped in, too, where the next one begins."""
    if segment.suffix and segment.next_offset is not None:
        return segment.next_offset
    return segment.ceiling


def _begin(segment: Segment, file: File, offset: int) -> tuple[int, bytes]:
    """Return the position of a batch at or before ``offset``, and what lies there.

    It is an index entry's that meets the log, or the segment's first byte.
    """
    entry = segment.offset_index().lookup(offset) if offset > segment.base_offset else None
    if entry is None:
        return 0, _window(segment, file, 0)
    last_offset, position = entry
    window = _window(segment, file, position)
    met = batches.peek(window)
    if met is None or met.last_offset != last_offset:
        segment.context.warn(f"{segment.path('index')}: does not meet the log; rebuilt from it")
        segment.rebuild_indexes()
        return 0, _window(segment, file, 0)
    return position, window


def _window(segment: Segment, file: File, position: int) -> bytes:
    want = min(HEADERS_BYTES, segment.size - position)
    window = file.pread(want, position)
    if len(window) < want:
        raise cut_short(segment, segment.size, position + len(window))
    return window


def _runs(
    segment: Segment, file: File, position: int, floor: int | None = None, *, window: bytes = b""
) -> Iterator[_Run]:
    """Yield the headers of all batches from ``position`` on, to the end of the segment, some at a time.

    Offsets rise, from ``floor`` on, and in a contiguous segment without a gap: else it is damage, which is
    raised behind the headers before it. ``window`` is what lies at ``position``, where that was read.
    """
    size, contiguous, ceiling = segment.size, segment.contiguous, _ceiling(segment)
    exact = contiguous and (position == 0 or floor is not None)
    expect = segment.base_offset if floor is None else floor
    while position < size:
        window = window or _window(segment, file, position)
        due = None
        if contiguous:
            due = expect if exact else int.from_bytes(window[:8], "big", signed=True)
        scan = batches.scan(window, check_crc=False, expect=due, reach=size - position, due=expect)
        beyond = scan.n > 0 and scan.last_offset >= ceiling
        if beyond:
            good = scan.find_offset(ceiling)
            scan = batches.scan(window, check_crc=False, expect=due, max_batches=good, reach=size - position)
        if scan.n:
            yield _new_tuple(_Run, (scan, position, position + len(window), expect))
            position += scan.end
            expect = scan.last_offset + 1
        if beyond:
            if segment.suffix:
                return  # being swapped in: it may reach past the next one, which it replaces
            raise CorruptionError(
                f"an offset past the end in a segment that ends before {ceiling}",
                path=segment.path(),
                position=position,
            )
        if scan.stop is Stop.ZERO and not contiguous and segment.is_reserved(file, position):
            return
        if scan.stop is not Stop.END and not (scan.n and scan.stop in (Stop.FULL, Stop.PARTIAL)):
            raise scan_error(segment, scan, position)
        window, exact = b"", contiguous
