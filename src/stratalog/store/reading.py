"""Reading a topic: one partition or several, once or as records come, until told to stop.

Several partitions are merged by time. A reader that follows reads what is there, then waits for any of its
partitions: for the ends of a log that this process writes, by looking again for one that another writes.
An event loop has functions of its own, which import asyncio when they are used: it takes long.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from _thread import allocate_lock
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from stratalog import locks
from stratalog.errors import ClosedError, InvalidArgumentError, again
from stratalog.log.arguments import check_number
from stratalog.log.read.follower import POLL_S, PartitionFollower
from stratalog.log.read.list_offsets import offset_for_time
from stratalog.log.read.reader import Isolation, LogView, SkipDamaged, check_start, read_records
from stratalog.log.write.log_end import Completion, End
from stratalog.log.write.writer import PartitionWriter
from stratalog.model import Record

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
        """Find where to begin and to end; OffsetOutOfRangeError if ``start`` is outside the log."""
        view.refresh()
        if start is not None:
            check_start(view, start, options.isolation)
        elif options.since is not None:
            found = offset_for_time(view, options.since, options.isolation)
            start = view.end_offset(options.isolation) if found is None else found.offset
        if options.until is not None:
            before = _end_before(view, options.until)
            end = before if end is None else min(before, end)
        return cls(view, start, end)

    def visible(self, isolation: Isolation) -> int:
        """Return where readers must stop now."""
        end = self.view.end_offset(isolation)
        return end if self.end is None else min(end, self.end)

    @property
    def done(self) -> bool:
        """True when the end that was asked for is reached."""
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
        with suppress(RuntimeError):  # the loop is closed
            self.on_ask()

    def __call__(self) -> bool:
        return self._asked or (self._event is not None and self._event.is_set())

    @property
    def polled(self) -> bool:
        """True if it can only be found out by looking."""
        return self._event is not None


class Records(Iterator[Record]):
    """Records on their way out of a topic, lazily: use it in a ``for`` or ``async for`` loop, or call `next`.

    `close` ends the reading, from any thread. A loop that follows ends before the next record, another one at
    the latest after the batch at hand.
    """

    __slots__ = ("_options", "_parts", "_records", "_stop")

    def __init__(
        self, records: Iterator[Record], stop: Stop, parts: Sequence[Part], options: ReadOptions
    ) -> None:
        # Neither of these refers back to this object: what a reader holds is freed when it is dropped.
        self._records = records
        self._stop = stop
        self._parts = parts
        self._options = options

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def __next__(self) -> Record:
        return next(self._records)

    def __aiter__(self) -> AsyncIterator[Record]:
        if self._options.follow:
            return _follow_async(self._parts, self._options, self._stop)
        return _in_a_thread(self._records, self._stop)

    def close(self) -> None:
        """End the reading; a thread that waits for the next record wakes up."""
        self._stop.ask()

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(parts: Sequence[Part], options: ReadOptions) -> Records:
    """Read the partitions from where they are."""
    stop = Stop(options.stop, options.follow)
    records = _follow(parts, options, stop) if options.follow else _once(parts, options, stop)
    return Records(records, stop, parts, options)


def just(records: Iterator[Record]) -> Records:
    """Return records that are found without waiting."""
    return Records(records, Stop(None, follow=False), (), PLAIN)


def check_order(order: str) -> Order:
    """Return ``order``; InvalidArgumentError if there is none of that name."""
    if order not in ("time", "partition"):
        raise InvalidArgumentError(f"order {order!r} is not known; use 'time' or 'partition'")
    return order  # type: ignore[return-value]


def offset_of(name: str, offsets: Offsets | None, partition: int, chosen: Sequence[int]) -> int | None:
    """Return the offset given for one partition; a number alone is not clear when several are read."""
    if isinstance(offsets, Mapping):
        for each in offsets:
            check_number(f"a partition in {name}", each)
        offsets = offsets.get(partition)
    elif offsets is not None and len(chosen) > 1:
        raise InvalidArgumentError(
            f"{name} is one offset for several partitions; pass partition=, or {{partition: offset}}"
        )
    return None if offsets is None else check_number(name, offsets)


def _end_before(view: LogView, until: int) -> int:
    """Return an offset from which on no segment holds a record before ``until``."""
    end = view.end_offset("read_uncommitted")
    for segment in reversed(view.segments()):
        first = None if segment.is_active else segment.info().min_timestamp
        if first is None or first < until:
            break
        end = segment.base_offset
    return end


def _once(parts: Sequence[Part], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    return _merged([_run(part, part.end, options, stop) for part in parts], options, stop)


def _follow(parts: Sequence[Part], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    pid = os.getpid()
    while not stop():
        yield from what_is_there(parts, options, stop)
        locks.check_process(pid)
        open_parts = [part for part in parts if not part.done]
        if not open_parts or not wait(open_parts, options, stop):
            return


def what_is_there(parts: Sequence[Part], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    """Read what is there now."""
    runs = []
    for part in parts:
        part.view.refresh()
        end = part.visible(options.isolation)
        if part.offset is None or part.offset < end:
            runs.append(_run(part, end, options, stop))
    return _merged(runs, options, stop)


def _run(part: Part, end: int | None, options: ReadOptions, stop: Stop) -> Iterator[Record]:
    """Read one partition up to ``end`` and remember how far that was."""
    records = read_records(
        part.view,
        part.offset,
        end,
        isolation=options.isolation,
        skip_damaged=options.skip_damaged,
        stopped=stop,
    )
    if options.by_time:
        low = -(2**63) if options.since is None else options.since
        high = 2**63 if options.until is None else options.until
        records = (record for record in records if low <= _time(record) < high)
    return _then(records, part, end, stop) if options.follow else records


def _then(records: Iterable[Record], part: Part, end: int | None, stop: Stop) -> Iterator[Record]:
    yield from records
    if not stop():  # else the records may have ended before
        part.offset = end


def _merged(runs: Sequence[Iterator[Record]], options: ReadOptions, stop: Stop) -> Iterator[Record]:
    if len(runs) == 1:
        return _until(runs[0], stop) if options.follow or options.stop is not None else runs[0]
    return _until(_chained(runs) if options.order == "partition" else heapq.merge(*runs, key=_time), stop)


def _chained(runs: Iterable[Iterator[Record]]) -> Iterator[Record]:
    for run in runs:
        yield from run


def _until(records: Iterable[Record], stop: Stop) -> Iterator[Record]:
    for record in records:
        if stop():
            return
        yield record


def _time(record: Record) -> int:
    return -1 if record.timestamp is None else record.timestamp


# -- waiting ---------------------------------------------------------------------------------------------

_Waits = list[tuple[Part, Completion]]


def wait(parts: Sequence[Part], options: ReadOptions, stop: Stop) -> bool:
    """Wait until one of the partitions has more; False when it took too long or the reading is to end."""
    wake = stop.wake
    assert wake is not None
    deadline = _deadline_of(options)
    while not stop():
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


def _listen(parts: Sequence[Part], options: ReadOptions, waits: _Waits, wake: Callable[[], object]) -> bool:
    """Return True if a partition has more; else have ``wake`` called when one does, if it can be told."""
    end: End = "last_stable_offset" if options.isolation == "read_committed" else "high_watermark"
    for part in parts:
        part.view.refresh()
        if part.offset is None or part.visible(options.isolation) > part.offset:
            return True
        if not isinstance(part.view, PartitionFollower):
            completion = part.view.ends.when(end, part.offset + 1)
            waits.append((part, completion))
            completion.add_callback(lambda completion: wake())
    return False


def _deadline_of(options: ReadOptions) -> float | None:
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


# -- in an event loop ------------------------------------------------------------------------------------
# Records are read in a thread, some at a time, because a read may wait for a disk or an archive. What is
# waited for is waited for in the loop, by the same listeners: no thread stands by.

AT_ONCE = 512
"""Records that a thread reads for an event loop at a time."""


async def done(completion: Completion, after_a_move: Callable[[], Completion]) -> None:
    """Wait until a completion is done; raise the error it ended with.

    One that a move cut short is replaced by that of ``after_a_move()``, which waits for the move.
    """
    import asyncio

    while True:
        try:
            return await _done(completion)
        except ClosedError:
            completion = await asyncio.to_thread(after_a_move)


async def _done(completion: Completion) -> None:
    import asyncio

    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    try:
        completion.add_callback(lambda completion: loop.call_soon_threadsafe(woken.set))
        await woken.wait()
        if completion.error is not None:
            raise again(completion.error)
    finally:
        completion.cancel()


async def _in_a_thread(records: Iterator[Record], stop: Stop) -> AsyncIterator[Record]:
    import asyncio

    while batch := await asyncio.to_thread(_some, records):
        for record in batch:
            if stop():
                return
            yield record


def _some(records: Iterator[Record]) -> list[Record]:
    return list(islice(records, AT_ONCE))


async def _follow_async(parts: Sequence[Part], options: ReadOptions, stop: Stop) -> AsyncIterator[Record]:
    import asyncio

    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    stop.on_ask = lambda: loop.call_soon_threadsafe(woken.set)
    while not stop():
        async for record in _in_a_thread(what_is_there(parts, options, stop), stop):
            yield record
        open_parts = [part for part in parts if not part.done]
        if not open_parts or not await _wait_async(open_parts, options, stop, woken):
            return


async def _wait_async(parts: Sequence[Part], options: ReadOptions, stop: Stop, woken: asyncio.Event) -> bool:
    """Wait until one of the partitions has more; False when it took too long or the reading is to end."""
    import asyncio

    loop, deadline = asyncio.get_running_loop(), _deadline_of(options)
    while not stop():
        woken.clear()
        waits: _Waits = []
        try:
            if _listen(parts, options, waits, lambda: loop.call_soon_threadsafe(woken.set)):
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
