"""The ends of a log that is being written, and the waits for them to move.

A log has three ends besides the written one. The high watermark is the first offset readers may not see.
The last stable offset is where ``read_committed`` stops. The synced end is where durability stops. All three
only grow. Threads, followers, an event loop and a network server all wait for a `Completion` or attach a
callback to it.

Nothing here takes a lock, so an interrupt can leave nothing locked: each step is a single operation on a
dict or list. Touches no disk; a crash loses nothing.
"""

from __future__ import annotations

import logging
import time
from _thread import LockType, allocate_lock
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, get_args

from stratalog.errors import InvalidArgumentError, again
from stratalog.locks import RECHECK_S

logger = logging.getLogger("stratalog")

End = Literal["high_watermark", "last_stable_offset", "synced"]
ENDS: tuple[End, ...] = get_args(End)


def check_end(end: str) -> End:
    """Return ``end``; raise InvalidArgumentError if a log has no such end."""
    if end not in ENDS:
        raise InvalidArgumentError(f"a log has no end {end!r}; use one of {', '.join(ENDS)}")
    return end


_CANCELLED = RuntimeError("cancelled")


class Completion:
    """Completes once, when an end reaches an offset or when it never will.

    Callbacks run in the thread that moved the end, under the partition's lock: they must be quick, take no
    lock of the log and call nothing of it. ``loop.call_soon_threadsafe`` is such a callback.
    """

    __slots__ = ("_callbacks", "_gates", "_outcomes", "_waiting", "end", "offset")

    def __init__(self, end: End, offset: int, waiting: dict[Completion, None]) -> None:
        self.end = end
        self.offset = offset
        self._outcomes: list[BaseException | None] = []  # the first one counts
        self._callbacks: list[Callable[[Completion], object]] = []
        self._gates: list[LockType] = []  # of threads that wait
        # Registered before the end is read: an end that moves in between is seen by one of the two.
        self._waiting = waiting
        waiting[self] = None

    @property
    def cancelled(self) -> bool:
        """True when it was cancelled before it was done."""
        return bool(self._outcomes) and self._outcomes[0] is _CANCELLED

    @property
    def done(self) -> bool:
        """True when the end is there, or never will be."""
        return bool(self._outcomes) and self._outcomes[0] is not _CANCELLED

    @property
    def error(self) -> BaseException | None:
        """Why the end never gets there."""
        return self._outcomes[0] if self.done else None

    def add_callback(self, call: Callable[[Completion], object]) -> None:
        """Call ``call(self)`` once, when this is done; at once if it is done already."""
        self._callbacks.append(call)
        if self.done:
            self._tell()

    def complete(self, error: BaseException | None = None) -> None:
        """Mark as done and run the callbacks, unless it is done or cancelled already."""
        self._outcomes.append(error)
        if self.done:
            self._tell()
        self._waiting.pop(self, None)

    def cancel(self) -> None:
        """Stop waiting: callbacks that have not begun by now never run, and `wait` returns False.

        Do this when a wait timed out.
        """
        self._outcomes.append(_CANCELLED)
        self._waiting.pop(self, None)
        self._callbacks.clear()
        self._open_gates()

    def _tell(self) -> None:
        self._open_gates()
        while self._callbacks:
            try:
                call = self._callbacks.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                call(self)
            except Exception:
                logger.exception("a listener failed")

    def _open_gates(self) -> None:
        while self._gates:
            with suppress(IndexError):  # another thread took the last one
                self._gates.pop().release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until this is done; False on time-out or if it is cancelled. Raise the error it ended with."""
        if not self._outcomes:
            self._block(timeout_s)
        if self.error is not None:
            raise again(self.error)
        return self.done

    def _block(self, timeout_s: float | None) -> None:
        gate = allocate_lock()  # a gate for one thread, not a lock with a place in `locks.ORDER`
        gate.acquire()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._gates.append(gate)
            while not self._outcomes:
                left = RECHECK_S if deadline is None else min(deadline - time.monotonic(), RECHECK_S)
                if left <= 0 or gate.acquire(timeout=left):
                    return
        finally:
            with suppress(ValueError):  # it was opened
                self._gates.remove(gate)


class LogEnd:
    """The high watermark of one partition, and all waits for one of its ends.

    ``now(end)`` returns the present value of an end; it may take the partition's lock.
    """

    __slots__ = ("_failed", "_now", "error", "high_watermark", "waiting")

    def __init__(self, high_watermark: int, now: Callable[[End], int]) -> None:
        self.high_watermark = high_watermark
        self.waiting: dict[Completion, None] = {}
        self.error: BaseException | None = None
        """Set when the log is closed: nothing moves any more."""
        self._failed: dict[End, BaseException] = {}
        """Ends that do not move any more."""
        self._now = now

    def when(self, end: End, offset: int) -> Completion:
        """Return a completion that is done when ``end`` is at or past ``offset``, or when the log closes."""
        completion = Completion(end, offset, self.waiting)
        if self.error is not None:
            completion.complete(self.error)
        elif self._now(end) >= offset:
            completion.complete()
        elif end in self._failed:
            completion.complete(self._failed[end])
        return completion

    def wait(self, end: End, offset: int, timeout_s: float | None) -> bool:
        """Wait in this thread until ``end`` is at or past ``offset``; False on time-out.

        Raise the error the log was closed with if it never gets there.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._now(end) < offset:
            if self.error is not None:
                raise again(self.error)
            left = RECHECK_S if deadline is None else min(deadline - time.monotonic(), RECHECK_S)
            if left <= 0:
                return False
            completion = self.when(end, offset)
            try:
                completion.wait(left)
            finally:
                completion.cancel()
        return True

    def reached(self, end: End, offset: int) -> None:
        """Complete the waits for ``end`` up to ``offset``."""
        for completion in list(self.waiting):
            if completion.end == end and completion.offset <= offset:
                completion.complete()

    def fail(self, error: BaseException, *, only: End | None = None) -> None:
        """Complete waits with an error, for good: all of them, or only those for one end."""
        if only is None:
            self.error = error
        else:
            self._failed[only] = error
        for completion in list(self.waiting):
            if only is None or completion.end == only:
                completion.complete(error)
