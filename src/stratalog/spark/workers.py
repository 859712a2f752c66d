"""Manners of the processes Spark starts for a query, and gives one task after the other.

A query that has rows enough (``limit``, ``show``, ``first``) closes its connection to the worker, which then
fails to flush what nobody wants, prints a traceback, and ends. Nothing went wrong; and when something did,
the task that hung up says so itself. Only that traceback is left out: whatever else a worker prints is
printed, and what a reader raises goes to Spark by another way.

After every task Spark collects garbage, which takes longer than a small task does while everything that was
imported is looked through again.
"""

from __future__ import annotations

import gc
import sys
import traceback
from functools import cache
from typing import Any

_DAEMON = "pyspark.daemon"
_PLANNERS = "pyspark.sql.worker."
_spoken = traceback.print_exc


def _main() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)


def expect_hang_ups() -> None:
    """In one of Spark's workers; anywhere else it does nothing."""
    if _main() == _DAEMON:
        traceback.print_exc = print_exc


@cache
def spare_the_collector() -> None:
    """What is imported by now stays, so it need not be looked through; anywhere else it does nothing."""
    if _main() == _DAEMON or _main().startswith(_PLANNERS):
        gc.collect()
        gc.freeze()


def print_exc(*args: Any, **options: Any) -> None:
    """What a worker prints before it ends."""
    if not is_hang_up(sys.exc_info()[1]):
        _spoken(*args, **options)


def is_hang_up(error: BaseException | None) -> bool:
    """Whether the last flush of Spark's daemon to its JVM found nobody there."""
    if not isinstance(error, BrokenPipeError | ConnectionResetError):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    daemons_own = ("__main__", "worker")
    return bool(frames) and (frames[-1].f_globals.get("__name__"), frames[-1].f_code.co_name) == daemons_own
