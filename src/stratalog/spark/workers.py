"""Process-level tweaks for the Python processes that Spark starts for a query.

A query that has rows enough (``limit``, ``show``, ``first``) closes its connection to the worker, which then
fails to flush, prints a traceback, and ends. That is no failure; and after a real one, the task that closed
the connection reports it. Only that traceback is left out: everything else a worker prints stays, and what a
reader raises goes to Spark by another way.

After every task Spark collects garbage. Imported modules are kept out of that: searching them takes longer
than a small task.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from functools import cache
from typing import Any

logger = logging.getLogger("stratalog.spark")

_DAEMON = "pyspark.daemon"
_PLANNERS = "pyspark.sql.worker."
_print_exc = traceback.print_exc


def _main() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)


def expect_hang_ups() -> None:
    """Leave out that traceback in one of Spark's workers; anywhere else do nothing."""
    if _main() == _DAEMON:
        traceback.print_exc = print_exc


@cache
def spare_the_collector() -> None:
    """Keep what is imported by now out of garbage collection in Spark's processes; anywhere else do
    nothing."""
    if _main() == _DAEMON or _main().startswith(_PLANNERS):
        gc.collect()
        gc.freeze()


def print_exc(*args: Any, **options: Any) -> None:
    """What a worker calls before it ends."""
    if not is_hang_up(sys.exc_info()[1]):
        _print_exc(*args, **options)


def is_hang_up(error: BaseException | None) -> bool:
    """True if the last flush of Spark's daemon to its JVM found the connection closed."""
    if not isinstance(error, BrokenPipeError | ConnectionResetError):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    daemons_own = ("__main__", "worker")
    return bool(frames) and (frames[-1].f_globals.get("__name__"), frames[-1].f_code.co_name) == daemons_own


@cache
def warn_once(name: str, message: str) -> None:
    """Warn once in an application, though many short-lived processes work for it.

    Spark gives every application a directory of its own, which is removed with it: a file there is the
    memory.
    """
    from pyspark import SparkFiles

    try:
        path = os.path.join(SparkFiles.getRootDirectory(), f".stratalog-{name}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    except (OSError, TypeError, AssertionError):
        pass  # there is no such directory in this process
    logger.warning(message)
