"""Run one call up to its k-th line in a file, another call meanwhile, then the rest of the first."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from types import FrameType
from typing import Any

BLOCKED_S = 0.005
"""A second call that has not returned by then waits for the first one, which then goes on."""


def interleave(where: str, first: Callable[[], object], second: Callable[[], object], line: int) -> bool:
    """Pause ``first`` at its ``line``-th line below ``where`` and run ``second``; False when it has fewer.

    ``where`` is a part of the path of source files. An exception of either call is raised here.
    """
    paused, go_on = threading.Event(), threading.Event()
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if where not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                paused.set()
                go_on.wait(10)
        return trace

    def traced() -> None:
        sys.settrace(trace)
        try:
            first()
        finally:
            sys.settrace(None)
            paused.set()

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(traced)
        paused.wait(10)
        reached = left <= 0
        two = pool.submit(second)
        wait([two], BLOCKED_S)
        go_on.set()
        one.result(10)
        two.result(10)
    return reached


def lines() -> Iterator[int]:
    """Line numbers for `interleave`, until the caller breaks off."""
    yield from range(1, 2000)
