"""Raise an exception at the n-th event of a call, as a signal handler or a failed allocation would.

CPython runs signal handlers only where it looks for them: when a Python function begins, after a C function
returned, and inside C functions that wait or that a signal cuts short. Those are the events counted here for
KeyboardInterrupt, by `sys.setprofile`: ``call``, ``c_return``, and ``c_call`` of functions that wait. Jumps
backwards count too in CPython; every loop here has a call in it, whose events see the same states. Between
taking a lock in a ``with`` statement and its body, and before a lock is given back at its end, there is no
such place, and none is counted. MemoryError may come from whatever allocates: every ``call``, every
``c_call`` but those that give a lock back, and bytecodes that make an object.

Frames of the filesystem in memory stand for C code: they are not cut in two. An exception may come before
such a call and after it.
"""

from __future__ import annotations

import dis
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import stratalog

SOURCE = stratalog.__file__.rpartition("/")[0]
AS_IF_COMPILED = ("/fs/memory.py", "/testing/")
MAKES_AN_OBJECT = "BUILD_LIST BUILD_MAP BUILD_SET BUILD_STRING BUILD_TUPLE BINARY_OP FORMAT_VALUE"
ALLOCATES = tuple(dis.opmap[name] for name in MAKES_AN_OBJECT.split() if name in dis.opmap)
WAITS = ("acquire", "wait", "sleep")
GIVES_BACK = ("__exit__", "release")
PATIENCE_S = 30.0


class Interrupter:
    """Counts the events of one thread and raises at one of them; 0 only counts.

    ``within`` is the end of a path: only events of that file count.
    """

    def __init__(self, error: type[BaseException], at: int = 0, within: str = "") -> None:
        self.error = error
        self.at = at
        self.within = within
        self.events = 0
        self.where = ""

    def run(self, act: Callable[[], Any]) -> Any:
        """Call ``act`` and raise in it when the time has come."""
        if self.error is MemoryError:
            sys.settrace(self._trace)
        sys.setprofile(self._profile)
        try:
            return act()
        finally:
            sys.setprofile(None)
            sys.settrace(None)

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if self.within and not frame.f_code.co_filename.endswith(self.within):
            return
        if frame.f_code.co_flags & inspect.CO_GENERATOR and event == "call":
            return  # also when it is only closed, which no signal handler sees
        if _is_ours(frame):
            name = getattr(argument, "__name__", "")
            if self.error is MemoryError:
                counts = event == "call" or (event == "c_call" and name not in GIVES_BACK)
            else:
                counts = event in ("call", "c_return") or (event == "c_call" and name in WAITS)
            if counts:
                self._count(frame, event, name)
        elif event in ("call", "return") and _is_double(frame) and _is_ours(frame.f_back):
            self._count(frame, event, "")

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not _is_ours(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in ALLOCATES:
            self._count(frame, dis.opname[frame.f_code.co_code[frame.f_lasti]], "")
        return self._trace

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self.events += 1
        if self.events == self.at:
            name = getattr(argument, "__qualname__", "")
            code = frame.f_code
            self.where = (
                f"{event} {name} in {code.co_filename[len(SOURCE) :]}:{frame.f_lineno} {code.co_name}"
            )
            raise self.error(f"event {self.at}")


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(SOURCE) and not _is_double(frame)


def _is_double(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(SOURCE) and any(part in name for part in AS_IF_COMPILED)


def in_time(act: Callable[[], None], what: str) -> None:
    """Run ``act`` in a thread of its own; a deadlock becomes an AssertionError that shows where it waits."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident or 0)
        raise AssertionError(f"{what}: deadlock\n" + "".join(traceback.format_stack(frame)))
    if failed:
        raise failed[0]
