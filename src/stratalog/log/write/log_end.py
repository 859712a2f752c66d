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
from _thread import allocate_lock
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


class Completion:
    """Completes once, when an end reaches an offset or when it never will.

    Callbacks run in the thread that moved the end, under the partition's lock: they must be quick, take no
    lock of the log and call nothing of it. ``loop.call_soon_threadsafe`` is such a callback.
    """

    __slots__ = ("_callbacks", "_waiting", "done", "end", "error", "offset")

    def __init__(self, end: End, offset: int, waiting: dict[Completion, None]) -> None:
        self.end = end
        self.offset = offset
        self.done = False
        self.error: BaseException | None = None
        self._callbacks: list[Callable[[Completion], object]] = []
        # Registered before the end is read: an end that moves in between is seen by one of the two.
        self._waiting = waiting
        waiting[self] = None

    def add_callback(self, call: Callable[[Completion], object]) -> None:
        """Call ``call(self)`` once, when this is done; at once if it is done already."""
        self._callbacks.append(call)
        if self.done:
            self._tell()

    def complete(self, error: BaseException | None = None) -> None:
        """Mark as done and run the callbacks. Further calls do nothing."""
        if not self.done:
            self.error = error
            self.done = True
        self._tell()

    def cancel(self) -> None:
        """Stop waiting: callbacks that have not begun by now never run. Do this when a wait timed out."""
        self._waiting.pop(self, None)
        self._callbacks.clear()

    def _tell(self) -> None:
        while self._callbacks:
            try:
                call = self._callbacks.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                call(self)
            except Exception:
                logger.exception("a listener failed")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until this is done; False on time-out. Raise the error it ended with."""
        if not self.done:
            self._block(timeout_s)
        if self.error is not None:
            raise again(self.error)
        return self.done

    def _block(self, timeout_s: float | None) -> None:
        gate = allocate_lock()  # a gate for one thread, not a lock with a place in `locks.ORDER`
        gate.acquire()

        def open_gate(_: Completion) -> None:
            gate.release()

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self.add_callback(open_gate)
            while not self.done:
                left = RECHECK_S if deadline is None else min(deadline - time.monotonic(), RECHECK_S)
                if left <= 0 or gate.acquire(timeout=left):
                    return
        finally:
            with suppress(ValueError):  # it was called
                self._callbacks.remove(open_gate)


class LogEnd:
    """The high watermark of one partition, and all waits for one of its ends.

    ``now(end)`` returns the present value of an end; it may take the partition's lock.
    """

    __slots__ = ("_now", "error", "high_watermark", "waiting")

    def __init__(self, high_watermark: int, now: Callable[[End], int]) -> None:
        self.high_watermark = high_watermark
        self.waiting: dict[Completion, None] = {}
        self.error: BaseException | None = None
        """Set when the log is closed: nothing moves any more."""
        self._now = now

    def when(self, end: End, offset: int) -> Completion:
        """Return a completion that is done when ``end`` is at or past ``offset``, or when the log closes."""
        completion = Completion(end, offset, self.waiting)
        if self.error is not None:
            self._finish(completion, self.error)
        elif self._now(end) >= offset:
            self._finish(completion)
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
                self._finish(completion)

    def fail(self, error: BaseException, *, only: End | None = None) -> None:
        """Complete waits with an error: all of them, for good, or only those for one end."""
        if only is None:
            self.error = error
        for completion in list(self.waiting):
            if only is None or completion.end == only:
                self._finish(completion, error)

    def _finish(self, completion: Completion, error: BaseException | None = None) -> None:
        completion.complete(error)
        self.waiting.pop(completion, None)
