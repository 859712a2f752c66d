"""Reading a topic: one partition or several, once, or following new records until stopped.

Several partitions are merged by time. A reader that follows reads the existing records, then waits for any of
its partitions: for the ends of a log that this process writes, by looking again for one that another writes.
An event loop has functions of its own, which import asyncio when they are used: it takes long.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypedDict

from stratalog import locks
from stratalog.errors import ClosedError, CorruptionError, InvalidArgumentError, StratalogError, again
from stratalog.log.arguments import Moment, check_number, wrong_type
from stratalog.log.read.archived_segment import ArchivedSegment
from stratalog.log.read.follower import POLL_S, PartitionFollower
from stratalog.log.read.list_offsets import offset_for_time
from stratalog.log.read.reader import Isolation, SkipDamaged, check_start, read_records
from stratalog.log.segment.segment import Segment
from stratalog.log.write.log_end import Completion, End
from stratalog.log.write.writer import PartitionWriter
from stratalog.model import Record, time_of

if TYPE_CHECKING:
    import asyncio

Order = Literal["time", "partition"]
Offsets = int | Mapping[int, int]
STOP_POLL_S = 0.1
"""How often a waiting reader looks at the event it was given to stop by."""
Steady = PartitionWriter | PartitionFollower


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Which records, besides their offsets, and how. Times are in milliseconds, [since, until)."""

    since: int | None = None
    until: int | None = None
    order: Order = "time"
    isolation: Isolation = "read_uncommitted"
    follow: bool = False
    timeout_s: float | None = None
    stop: threading.Event | None = None
    skip_damaged: SkipDamaged = False
    more: Callable[[int], list[Part]] | None = None
    """Called now and then while waiting, with the number of partitions: returns those that were added."""

    @property
    def by_time(self) -> bool:
        """True if records are chosen by their timestamps."""
        return self.since is not None or self.until is not None


PLAIN = ReadOptions()


class Part:
    """One partition of a reading: how far it has got, and where it ends. ``offset`` None is the log start."""

    __slots__ = ("end", "offset", "view")

    def __init__(self, view: Steady, offset: int | None, end: int | None) -> None:
        self.view = view
        self.offset = offset
        self.end = end

    @classmethod
    def of(cls, view: Steady, start: int | None, end: int | None, options: ReadOptions) -> Part:
        """Begin at an offset; OffsetOutOfRangeError if it is outside the log."""
        view.refresh()
        if start is not None:
            check_start(view, start, options.isolation)
        return cls(view, start, end)

    def begin(self, options: ReadOptions) -> None:
        """Find the first record of a time, if no offset was given."""
        if self.offset is None and options.since is not None:
            try:
                found = offset_for_time(self.view, options.since, options.isolation)
            except CorruptionError:
                if not options.skip_damaged:
                    raise
                return  # every record is looked at
            self.offset = self.view.end_offset(options.isolation) if found is None else found.offset

    def visible(self, isolation: Isolation) -> int:
        """Return where readers must stop now."""
        end = self.view.end_offset(isolation)
        return end if self.end is None else min(end, self.end)

    @property
    def done(self) -> bool:
        """True when the requested end is reached."""
        return self.end is not None and self.offset is not None and self.offset >= self.end


class _Gate:
    """An event for one waiting thread, made of single steps: an interrupt leaves no lock taken."""

    __slots__ = ("_shut",)

    def __init__(self) -> None:
        self._shut = allocate_lock()
        self._shut.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is open
            self._shut.release()

    def clear(self) -> None:
        self._shut.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until it is set, and clear it."""
        self._shut.acquire(timeout=timeout_s)


class Stop:
    """Whether a reading is to end; asked between batches and while waiting. Another thread may ask for it."""

    __slots__ = ("_asked", "_event", "on_ask", "wake")

    def __init__(self, event: threading.Event | None, follow: bool) -> None:
        self._asked = False
        self._event = event
        self.wake = _Gate() if follow else None
        self.on_ask: Callable[[], object] = lambda: None
        """Wakes an event loop."""

    def ask(self) -> None:
        self._asked = True
        if self.wake is not None:
            self.wake.set()
        self.on_ask()

    def __call__(self) -> bool:
        return self._asked or (self._event is not None and self._event.is_set())

    @property
    def polled(self) -> bool:
        """True if it can only be found out by looking."""
        return self._event is not None


class Selection(TypedDict, total=False):
    """What `Topic.scan` takes beside partitions and columns."""

    start: Offsets | None
    end: Offsets | None
    since: Moment | None
    until: Moment | None
    isolation: str
    threads: int


class Records(Iterator[Record]):
    """A lazy iterator over records: use it in a ``for`` or ``async for`` loop, or call `next`.

    Only one thread or task may read; a second one gets `ConcurrentUseError` from `next`. `close` ends it from
    any thread: a loop with ``follow`` ends before the next record, another loop after the records that were
    already read ahead.
    """

    __slots__ = (
        "_ahead",
        "_change",
        "_deadline",
        "_failed",
        "_options",
        "_parts",
        "_records",
        "_run",
        "_stop",
        "_task",
    )

    def __init__(
        self, parts: list[Part], options: ReadOptions, records: Iterator[Record] | None = None
    ) -> None:
        # None of these refers back to this object: what a reader holds is freed when it is dropped.
        self._parts = parts
        self._options = options
        self._stop = Stop(options.stop, options.follow)
        self._records = records
        self._run: Iterator[Record] | None = None
        self._ahead: deque[Record] = deque()
        self._failed: Exception | None = None
        self._task: asyncio.Future[None] | None = None
        self._deadline: float | None = None
        self._change: Callable[[Record], Record] | None = None

    def through(self, change: Callable[[Record], Record]) -> Records:
        """Return this reading with records as ``change`` returns them; after an error of it, it goes on."""
        self._change = change
        return self

    def __iter__(self) -> Iterator[Record]:
        records = self._begun()
        return records if self._change is None else map(self._change, records)

    def _begun(self) -> Iterator[Record]:
        if self._records is None:
            read = _follow if self._options.follow else _once
            self._records = read(self._parts, self._options, self._stop)
        return self._records

    def __next__(self) -> Record:
        try:
            return next(iter(self))
        except ValueError as error:
            if str(error) == "generator already executing":
                raise locks.refused("a reading") from None
            raise

    def close(self) -> None:
        """Stop reading; wake up a thread that waits for the next record."""
        self._stop.ask()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in an event loop ----------------------------------------------------------------------------
    # Records are read in a thread, some at a time, because a read may wait for a disk or an archive. What is
    # waited for is waited for in the loop, by the same listeners: no thread stands by.

    def __aiter__(self) -> Records:
        return self

    async def __anext__(self) -> Record:
        import asyncio  # it takes long

        while not self._stop():
            if self._ahead:
                self._deadline = None
                record = self._ahead.popleft()
                return record if self._change is None else self._change(record)
            if self._failed is not None:
                error, self._failed = self._failed, None
                raise error
            if self._task is None:
                self._task = asyncio.ensure_future(asyncio.to_thread(self._read_ahead))
            try:
                await asyncio.shield(self._task)  # a caller that gives up loses no record
            finally:
                if self._task.done():
                    self._task = None
            if self._ahead or self._failed is not None:
                continue
            if not self._options.follow:
                break
            if self._deadline is None:
                self._deadline = deadline_of(self._options)
            if not await _wait_async(self._parts, self._options, self._stop, self._deadline):
                break
        raise StopAsyncIteration

    def _read_ahead(self) -> None:
        if self._run is None:
            follow = self._options.follow
            self._run = what_is_there(self._parts, self._options, self._stop) if follow else self._begun()
        self._failed = take(self._run, AT_ONCE, self._ahead)
        if not self._ahead:
            self._run = None


AT_ONCE = 512
"""Records that are read ahead at a time."""


def take(records: Iterator[Record], most: int, into: deque[Record]) -> Exception | None:
    """Read some records; return the error that ended it, which those before it must not be lost to."""
    try:
        into.extend(islice(records, most))
    except Exception as error:  # noqa: BLE001 - raised when its turn comes
        return error
    return None


def read(parts: list[Part], options: ReadOptions) -> Records:
    """Read the partitions from where they are."""
    return Records(parts, options)


def just(records: Iterator[Record]) -> Records:
    """Return records that are found without waiting."""
    return Records([], PLAIN, records)


def check_stop(stop: object) -> threading.Event | None:
    """Return ``stop`` if it can be asked whether it is set."""
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise wrong_type("stop", "a threading.Event", stop)
    return stop  # type: ignore[return-value]


def check_order(order: str) -> Order:
    """Return ``order``; InvalidArgumentError if there is none of that name."""
    if order not in ("time", "partition"):
        raise InvalidArgumentError(f"order {order!r} is not known; use 'time' or 'partition'")
    return order  # type: ignore[return-value]


def offset_of(name: str, offsets: Offsets | None, partition: int, chosen: Sequence[int]) -> int | None:
    """Return the offset given for one partition; a number alone is not clear when several are read."""
    if isinstance(offsets, Mapping):
        for each in offsets:
            if check_number(f"a partition in {name}", each) not in chosen:
                raise InvalidArgumentError(f"{name} names partition {each}, which is not read")
        offsets = offsets.get(partition)
    elif offsets is not None and len(chosen) > 1:
        raise InvalidArgumentError(
            f"{name} is one offset for several partitions; pass partition=, or {{partition: offset}}"
        )
    return None if offsets is None else check_number(name, offsets)


def _once(parts: list[Part], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    if stop():
        return iter(())
    return _merged([_run(part, part.end, options, stop) for part in parts], options, stop)


def _follow(parts: list[Part], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    pid, deadline = os.getpid(), deadline_of(options)
    while not stop():
        came = False
        for record in what_is_there(parts, options, stop):
            came = True
            yield record
        locks.check_process(pid)
        if came:
            deadline = deadline_of(options)
        if not wait(parts, options, stop, deadline):
            return


def what_is_there(parts: list[Part], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    """Read the records that exist now."""
    runs = []
    for part in parts:
        part.view.refresh()
        end = part.visible(options.isolation)
        if part.offset is None or part.offset < end:
            runs.append(_run(part, end, options, stop))
    return _merged(runs, options, stop)


def _run(part: Part, end: int | None, options: ReadOptions, stop: Stop) -> Iterator[Record]:
    """Read one partition up to ``end`` and remember how far that was."""
    part.begin(options)
    ranges = [(part.offset, end)] if options.follow or not options.by_time else _ranges(part, end, options)
    runs = [
        read_records(
            part.view,
            first,
            last,
            isolation=options.isolation,
            skip_damaged=options.skip_damaged,
            stopped=stop,
        )
        for first, last in ranges
    ]
    records = runs[0] if len(runs) == 1 else _chained(runs)
    if options.by_time:
        low = -(2**63) if options.since is None else options.since
        high = 2**63 if options.until is None else options.until
        records = (record for record in records if low <= time_of(record) < high)
    return _then(records, part, end, stop) if options.follow else records


def _ranges(part: Part, end: int | None, options: ReadOptions) -> list[tuple[int | None, int | None]]:
    """Return the offsets to read: not the batches of segments whose records are all too early or too late.

    What is missing behind such a segment is read all the same, and named: no time is known of it.
    """
    ranges: list[tuple[int | None, int | None]] = []
    for number, segment in enumerate(part.view.segments()):
        begin = segment.base_offset if segment.is_active else _read_from(segment, options)
        last = None if segment.is_active else segment.next_offset
        if last is not None and begin >= last:
            continue
        # None: the log start, which may lie inside the first segment
        first = begin if number or begin > segment.base_offset else None
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    start, most = part.offset or 0, 2**63 - 1 if end is None else end
    return [
        (first if part.offset is None else max(first or 0, start), min(most if last is None else last, most))
        for first, last in ranges
        if (last is None or last > start) and (first or 0) < most
    ]


def _read_from(segment: Segment, options: ReadOptions) -> int:
    """Return where to begin in a segment: after its batches if their times are out of range."""
    try:
        info = segment.info()
        low, high = info.min_timestamp, info.max_timestamp
        too_late = low is not None and options.until is not None and low >= options.until
        if too_late or (high is not None and options.since is not None and high < options.since):
            if isinstance(segment, ArchivedSegment):
                return segment.source.next_offset  # by the manifest: nothing is fetched
            return segment.batches_end_offset()
    except (StratalogError, FileNotFoundError):
        pass  # reading it tells
    return segment.base_offset


def _then(records: Iterable[Record], part: Part, end: int | None, stop: Stop) -> Iterator[Record]:
    yield from records
    if not stop():  # else the records may have ended before
        part.offset = end


def _merged(runs: Sequence[Iterator[Record]], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    if len(runs) == 1:
        return _until(runs[0], stop) if options.follow or options.stop is not None else runs[0]
    return _until(_chained(runs) if options.order == "partition" else heapq.merge(*runs, key=time_of), stop)


def _chained(runs: Iterable[Iterator[Record]]) -> Iterator[Record]:
    for run in runs:
        yield from run


def _until(records: Iterable[Record], stop: Stop) -> Iterator[Record]:
    for record in records:
        if stop():
            return
        yield record


# -- waiting ---------------------------------------------------------------------------------------------

_Waits = list[tuple[Part, Completion]]


def wait(parts: list[Part], options: ReadOptions, stop: Stop, deadline: float | None) -> bool:
    """Wait until one of the partitions has more; False when it is too late or the reading is to end.

    False also when nothing can come: all of them are read to their requested ends.
    """
    wake = stop.wake
    assert wake is not None
    while not stop() and not all(part.done for part in parts):
        wake.clear()
        waits: _Waits = []
        try:
            if _listen(parts, options, waits, wake.set):
                return not stop()
            left = _patience(parts, deadline, stop)
            if left <= 0:
                return False
            if not stop():  # it may have come before `clear`
                wake.wait(left)
            _settle(waits, options)
        finally:
            _cancel(waits)
    return False


def _listen(parts: list[Part], options: ReadOptions, waits: _Waits, wake: Callable[[], object]) -> bool:
    """Return True if a partition has more; else have ``wake`` called when one does, if possible."""
    if options.more is not None:
        added = options.more(len(parts))
        if added:
            parts += added
            return True
    end: End = "last_stable_offset" if options.isolation == "read_committed" else "high_watermark"
    for part in parts:
        if part.done:
            continue
        part.view.refresh()
        if part.offset is None or part.visible(options.isolation) > part.offset:
            return True
        if not isinstance(part.view, PartitionFollower):
            completion = part.view.ends.when(end, part.offset + 1)
            waits.append((part, completion))
            completion.add_callback(lambda completion: wake())
    return False


def deadline_of(options: ReadOptions) -> float | None:
    """Return until when to wait, from now on."""
    return None if options.timeout_s is None else time.monotonic() + options.timeout_s


def _patience(parts: Sequence[Part], deadline: float | None, stop: Stop) -> float:
    """Return for how long to wait before looking again; 0 or less when the time is over."""
    beside = any(isinstance(part.view, PartitionFollower) for part in parts)
    left = POLL_S if beside else STOP_POLL_S if stop.polled else locks.RECHECK_S
    return left if deadline is None else min(left, deadline - time.monotonic())


def _settle(waits: _Waits, options: ReadOptions) -> None:
    """Raise if a log was closed for good; one that is being moved is waited for."""
    for part, completion in waits:
        if completion.error is not None:
            part.view.wait((part.offset or 0) + 1, 0.0, options.isolation)


def _cancel(waits: _Waits) -> None:
    for _, completion in waits:
        completion.cancel()


async def _wait_async(parts: list[Part], options: ReadOptions, stop: Stop, deadline: float | None) -> bool:
    """`wait` for an event loop."""
    import asyncio

    woken = asyncio.Event()
    wake = stop.on_ask = _waking(asyncio.get_running_loop(), woken)
    while not stop() and not all(part.done for part in parts):
        woken.clear()
        waits: _Waits = []
        try:
            if _listen(parts, options, waits, wake):
                return not stop()
            left = _patience(parts, deadline, stop)
            if left <= 0:
                return False
            if not stop():
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), left)
            if any(completion.error is not None for _, completion in waits):
                await asyncio.to_thread(_settle, waits, options)
        finally:
            _cancel(waits)
    return False


async def done(completion: Completion, after_a_move: Callable[[], Completion]) -> None:
    """Wait in an event loop until a completion is done; raise the error it ended with.

    One that a move cut short is replaced by that of ``after_a_move()``, which waits for the move.
    """
    import asyncio

    while True:
        woken = asyncio.Event()
        try:
            completion.add_callback(_waking(asyncio.get_running_loop(), woken))
            await woken.wait()
            if completion.error is None:
                return
            if not isinstance(completion.error, ClosedError):
                raise again(completion.error)
        finally:
            completion.cancel()
        completion = await asyncio.to_thread(after_a_move)


def _waking(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[..., object]:
    def wake(completion: Completion | None = None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(event.set)

    return wake
