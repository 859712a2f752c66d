"""The event loop: sockets that are ready, timers that are due, and calls from other threads.

A plain epoll loop: beside asyncio it halves the CPU of a small request, and `sendfile` needs no thread. All
methods but `call_soon` are for the loop's own thread.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import select
import time
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")
READ, WRITE = select.EPOLLIN, select.EPOLLOUT
FIRST_BUFFER = 64 << 10
SWEEP = 1024
"""The least number of timers among which those that were taken back are looked for."""
PATIENCE_S = 0.0003
"""How long a pause is waited for."""

_log = logging.getLogger("stratalog.broker")


class Timer:
    """A call that is due at a time; `cancel` takes it back."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        """Do not call. Further calls do nothing."""
        self.act = None


class EventLoop:
    """Runs until it is stopped. Use `close` afterwards."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._sweep_at = SWEEP
        self._numbers = count()
        self._calls: deque[Callable[[], None]] = deque()
        self._at_pause: list[Callable[[], None]] = []
        self._pause_at_s = 0.0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Closed with the last reference: a thread that wakes an ended loop must not write to the next file
        # that got this number.
        weakref.finalize(self, os.close, self._wake)
        self._stopped = False
        self._asleep = False
        self.buffer = memoryview(bytearray(FIRST_BUFFER))
        """Where connections receive what they handle at once."""
        self.crowded = False
        """Several are ready in this turn."""
        self.turn_s = time.monotonic()
        """When this turn began."""
        self.watch(self._wake, READ, self._woken)

    def watch(self, fd: int, events: int, act: Callable[[int], None]) -> None:
        """Call ``act(events)`` whenever a file descriptor is ready."""
        self._ready[fd] = act
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a file descriptor."""
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Watch a file descriptor no more."""
        if self._ready.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def call_soon(self, act: Callable[[], None]) -> None:
        """Call ``act`` in the loop's thread; any thread may ask for it."""
        self._calls.append(act)
        if self._asleep:  # else it looks for calls before it sleeps
            with contextlib.suppress(BlockingIOError):  # it is awake already
                os.eventfd_write(self._wake, 1)

    def at_end_of_turn(self, act: Callable[[], None]) -> None:
        """Call ``act`` after what is ready now. Only for the loop's own thread: it wakes no other thread."""
        self._calls.append(act)

    def at_pause(self, act: Callable[[], None]) -> None:
        """Call ``act`` when nothing is ready any more, or after `PATIENCE_S`. For the loop's own thread."""
        if not self._at_pause:
            self._pause_at_s = self.turn_s + PATIENCE_S
        self._at_pause.append(act)

    def call_later(self, delay_s: float, act: Callable[[], None]) -> Timer:
        """Call ``act`` after a time."""
        if len(self._timers) >= self._sweep_at:  # those that were taken back may be far from due
            self._timers = [each for each in self._timers if each[2].act is not None]
            heapq.heapify(self._timers)
            self._sweep_at = max(SWEEP, 2 * len(self._timers))
        timer = Timer(act)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), timer))
        return timer

    def stop(self) -> None:
        """End `run` after what is being done; any thread may call it."""
        self._stopped = True
        self.call_soon(lambda: None)

    def run(self) -> None:
        """Serve until `stop`. An error in a call is logged and ends that call alone."""
        while not self._stopped:
            self._asleep = True  # before calls are looked for: one that comes after that wakes
            found = self._epoll.poll(self._timeout_s())
            self._asleep = False
            self.turn_s = now = time.monotonic()
            self.crowded = len(found) > 1
            for fd, events in found:
                act = self._ready.get(fd)
                if act is not None:
                    try:
                        act(events)
                    except Exception:  # noqa: BLE001 - as in `attempt`, without its call
                        self.report()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if timer.act is not None:
                    self.attempt(timer.act)
            self._make_calls()
            if self._at_pause and (not found or now >= self._pause_at_s):
                self._pause()

    def close(self) -> None:
        """Make the calls that are left and wait for nothing more; later calls are never made."""
        self._make_calls()
        self._pause()
        self._epoll.close()

    def _timeout_s(self) -> float:
        while self._timers and self._timers[0][2].act is None:
            heapq.heappop(self._timers)
        if self._calls or self._at_pause:
            return 0
        return max(0, self._timers[0][0] - time.monotonic()) if self._timers else -1

    def _make_calls(self) -> None:
        for _ in range(len(self._calls)):
            self.attempt(self._calls.popleft())

    def _pause(self) -> None:
        acts, self._at_pause = self._at_pause, []
        for act in acts:
            self.attempt(act)

    def _woken(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    @staticmethod
    def attempt(act: Callable[[*Ts], None], *args: *Ts) -> None:
        """Call ``act``; log an error in it."""
        try:
            act(*args)
        except Exception:  # noqa: BLE001 - a mistake in one call must not end the others
            EventLoop.report()

    @staticmethod
    def report() -> None:
        """Log the error that is being handled."""
        _log.exception("an unexpected error in the broker")
