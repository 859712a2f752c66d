"""No traceback when a query stops before its Python workers do.

A query that has rows enough (``limit``, ``show``, ``first``) closes its connection to the worker, which then
fails to flush what nobody wants, prints a traceback, and ends. Nothing went wrong; and when something did,
the task that hung up says so itself. Only that traceback is left out: whatever else a worker prints is
printed, and what a reader raises goes to Spark by another way.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

_spoken = traceback.print_exc


def expect_hang_ups() -> None:
    """In one of Spark's workers; anywhere else it does nothing."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == "pyspark.daemon":
        traceback.print_exc = print_exc


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
