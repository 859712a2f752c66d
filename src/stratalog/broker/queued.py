"""The memory of large requests and answers, bounded for all connections together.

The first buffer of a connection is not counted: the number of connections bounds those. At the limit, empty
buffers are given back, and large requests wait half received. One request at a time may exceed the limit, so
that there is always progress; its connection is closed if it takes too long while others wait.

All methods are for the loop's thread; `taken` and `left` may be read in any.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from stratalog.broker.loop import EventLoop, Timer

PATIENCE_S = 30.0
"""How long a request beyond the limit may take while others wait."""


class Holder(Protocol):
    """What holds memory and waits for more: a connection."""

    def give_back(self) -> None:
        """Give back what holds no bytes."""

    def make_room(self) -> None:
        """Take the memory that `QueuedBytes.may_take` refused, and go on."""

    def close(self, why: str = "") -> None:
        """Give everything back."""


class QueuedBytes:
    """Counts the memory that connections hold, and decides which of them may take more."""

    def __init__(self, loop: EventLoop, limit: int, tell: Callable[[str], None]) -> None:
        self._loop = loop
        self._limit = limit
        self._tell = tell
        self.taken = 0
        self._held: dict[Holder, int] = {}
        self._waiting: dict[Holder, int] = {}
        """What each waits for; the first came first."""
        self._first: Holder | None = None
        """The connection that may exceed the limit."""
        self._timer: Timer | None = None

    @property
    def left(self) -> int:
        """How much more may be taken."""
        return max(0, self._limit - self.taken)

    @property
    def waiting(self) -> int:
        """How many wait for memory."""
        return len(self._waiting)

    @property
    def short(self) -> bool:
        """True if what is not needed should be given back."""
        return bool(self._waiting) or self.taken > self._limit

    def may_take(self, holder: Holder, size: int) -> bool:
        """Return True if ``size`` more may be taken now; else `Holder.make_room` is called when it may."""
        if holder is self._first or self.taken + size <= self._limit:
            return True
        self._tell(f"{self.taken} of queued.max.request.bytes={self._limit} are taken: large requests wait")
        for each in list(self._held):
            each.give_back()
        if self.taken + size <= self._limit:
            return True
        if self._first is None:
            self._prefer(holder)
            return True
        self._waiting[holder] = size
        return False

    def hold(self, holder: Holder, size: int) -> None:
        """Set how much a connection holds now."""
        was = self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
        self.taken += size - was
        if size < was:
            if self.taken <= self._limit:
                self._prefer(None)
            self._next()

    def served(self, holder: Holder) -> None:
        """Note that a request was handled: the next one may exceed the limit."""
        if holder is self._first:
            self._prefer(None)
            self._next()

    def forget(self, holder: Holder) -> None:
        """Release the memory of a closed connection."""
        self._waiting.pop(holder, None)
        self.hold(holder, 0)
        self.served(holder)

    def _next(self) -> None:
        while self._waiting:
            holder, size = next(iter(self._waiting.items()))
            if self.taken + size > self._limit:
                if self._first is not None:
                    return
                self._prefer(holder)
            del self._waiting[holder]
            holder.make_room()

    def _prefer(self, holder: Holder | None) -> None:
        self._first = holder
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if holder is not None:
            self._timer = self._loop.call_later(PATIENCE_S, partial(self._too_slow, holder))

    def _too_slow(self, holder: Holder) -> None:
        if self._waiting:
            holder.close("its request came too slowly while others waited for memory")
        else:
            self._prefer(holder)
