"""Two operations interleaved: the first stops before its k-th filesystem call, then the second runs.

Or before it takes a lock for the k-th time: what it read before may be out of date under the lock.
It then goes on, or it is interrupted: by Ctrl-C, as that call returns.
The second runs until it ends or waits for a lock or a condition, which checked locks tell; a wait they cannot
see (a pool, a thread) counts after `BLIND_WAIT_S` without a filesystem call. Nothing else decides the order:
a schedule named ``append@7 x delete_records``, ``append@lock7 x ...`` or ``append@7^C x ...`` runs the
same way again.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from stratalog.testing import SimulatedCrash
from stratalog.testing.locks import LockChecker

BLIND_WAIT_S = 0.25
PATIENCE_S = 8.0


class ScheduleError(AssertionError):
    """The two operations did not come to an end."""


class Schedule:
    """One interleaving. ``before_call`` is to be called before every filesystem call."""

    def __init__(
        self, checker: LockChecker, pause_at: int, *, at_locks: bool = False, interrupt: bool = False
    ) -> None:
        self.calls = 0
        """Filesystem calls of the first operation so far, or locks taken by it."""
        self.interrupted = False
        """The first operation was interrupted."""
        self._at_locks = at_locks
        self._interrupt = interrupt
        self._due = False
        self.paused_at = ""
        self._pause_at = pause_at
        self._checker = checker
        self._first: threading.Thread | None = None
        self._second: threading.Thread | None = None
        self._paused = threading.Event()
        self._resume = threading.Event()
        self._moved = threading.Event()
        self._stuck = threading.Event()

    def before_call(self, call: str) -> None:
        """Stop the first operation when its time has come."""
        thread = threading.current_thread()
        if thread is self._first:
            if not self._at_locks:
                self._count(call)
        elif thread is not threading.main_thread():
            self._moved.set()

    def _before_lock(self, name: str) -> None:
        if self._at_locks and threading.current_thread() is self._first:
            self._count(f"the lock {name!r}")

    def _after_call(self) -> None:
        if self._due and threading.current_thread() is self._first:
            self._due, self.interrupted = False, True
            raise KeyboardInterrupt(f"at {self.paused_at}")

    def _count(self, call: str) -> None:
        self.calls += 1
        if self.calls == self._pause_at:
            self.paused_at = call
            self._paused.set()
            if not self._resume.wait(PATIENCE_S):
                raise ScheduleError("never resumed")
            self._due = self._interrupt

    def run(self, first: Callable[[], None], second: Callable[[], None], paused: Callable[[], None]) -> None:
        """Run both; ``paused`` is called when the first stands and the second has ended or waits."""
        self._first = threading.Thread(target=self._until_the_end, args=(first,), name="first", daemon=True)
        self._second = threading.Thread(
            target=self._until_the_end, args=(second,), name="second", daemon=True
        )
        self._checker.on_block, self._checker.on_take = self._on_block, self._before_lock
        self._checker.on_done = self._after_call if self._interrupt else None
        try:
            self._first.start()
            self._wait(self._paused, "the first operation neither ends nor stops")
            if self.paused_at:
                self._second.start()
                self._until_stuck()
                paused()
                self._resume.set()
            self._join(self._first)
            if not self.paused_at:
                self._second.start()
            self._join(self._second)
        finally:
            self._resume.set()
            self._checker.on_block, self._checker.on_take = (lambda _: None), (lambda _: None)
            self._checker.on_done = None

    def _until_the_end(self, act: Callable[[], None]) -> None:
        try:
            act()
        except SimulatedCrash:
            return
        finally:
            self._paused.set()

    def _until_stuck(self) -> None:
        assert self._second is not None
        waited, end = 0.0, time.monotonic() + PATIENCE_S / 2
        while self._second.is_alive() and not self._stuck.is_set() and time.monotonic() < end:
            self._moved.clear()
            self._second.join(0.0005)
            waited = 0.0 if self._moved.is_set() else waited + 0.0005
            if waited >= BLIND_WAIT_S:
                return

    def _on_block(self, blocked: bool) -> None:
        if threading.current_thread() not in (self._first, threading.main_thread()):
            (self._stuck.set if blocked else self._stuck.clear)()

    def _wait(self, event: threading.Event, what: str) -> None:
        if not event.wait(PATIENCE_S):
            raise ScheduleError(f"{what}\n{self._stacks()}")

    def _join(self, thread: threading.Thread) -> None:
        thread.join(PATIENCE_S)
        if thread.is_alive():
            stacks = self._stacks()
            for each in (self._first, self._second):
                _stop(each)
            raise ScheduleError(f"the {thread.name} operation does not end\n{stacks}")

    def _stacks(self) -> str:
        frames = sys._current_frames()
        told = []
        for thread in (self._first, self._second):
            frame = frames.get(thread.ident or 0) if thread is not None else None
            if thread is not None and frame is not None:
                told.append(f"{thread.name}:\n" + "".join(traceback.format_stack(frame)[-8:]))
        return "\n".join(told)


@contextmanager
def repeatable_draws() -> Iterator[None]:
    """Draw random names from a seed, for each kind of thread: a schedule leaves the same files again."""
    streams: dict[str, random.Random] = {}

    def draw(count: int) -> bytes:
        name = threading.current_thread().name.strip("_-0123456789")
        if name not in streams:
            streams[name] = random.Random(name)
        return streams[name].randbytes(count)

    with mock.patch.object(os, "urandom", draw), mock.patch.object(random, "_urandom", draw):
        yield


def _stop(thread: threading.Thread | None) -> None:
    """Raise in a thread that spins, so that it does not disturb what comes next; one that waits stays."""
    if thread is not None and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(SimulatedCrash)
        )
