"""Process-level tweaks for the Python processes that Spark starts for a query.

A query that has rows enough (``limit``, ``show``, ``first``) closes its connection to the worker, which then
fails to flush, prints a traceback, and ends. That is no failure; and after a real one, the task that closed
the connection reports it. Only that traceback is left out: everything else a worker prints stays, and what a
reader raises goes to Spark by another way.

Spark's process that pushes filters down cannot read a time past the year 9999; here it can.

After every task Spark collects garbage. Imported modules are kept out of that: searching them takes longer
than a small task.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

logger = logging.getLogger("stratalog.spark")

_DAEMON = "pyspark.daemon"
_PLANNERS = "pyspark.sql.worker."
_PUSHDOWN = _PLANNERS + "data_source_pushdown_filters"
_print_exc = traceback.print_exc


def _main() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return "" if spec is None else str(spec.name)


def expect_hang_ups() -> None:
    """Leave out that traceback in one of Spark's workers; anywhere else do nothing."""
    if _main() == _DAEMON:
        traceback.print_exc = print_exc


def keep_late_times() -> None:
    """In Spark's process that pushes filters down: times that no datetime can be arrive as microseconds.

    Past the year 9999 in UTC Spark would raise OverflowError. Anywhere else do nothing.
    """
    if _PUSHDOWN not in (*sys.modules, _main()):
        return
    from pyspark.sql.variant_utils import VariantUtils

    plain: Any = VariantUtils._get_timestamp

    def read(value: bytes, pos: int, zone_id: str) -> Any:
        try:
            return plain(value, pos, zone_id)
        except OverflowError:
            return int.from_bytes(value[pos + 1 : pos + 9], "little", signed=True)

    VariantUtils._get_timestamp = read  # type: ignore[method-assign]


@cache
def spare_the_collector() -> None:
    """Keep what is imported by now out of garbage collection in Spark's processes; anywhere else do
    nothing."""
    if _main() == _DAEMON or _main().startswith(_PLANNERS):
        gc.collect()
        gc.freeze()


def print_exc(*args: Any, **options: Any) -> None:
    """Print the traceback unless it is of a query that stopped early; a worker's last call."""
    if not is_hang_up(sys.exc_info()[1]):
        _print_exc(*args, **options)


def is_hang_up(error: BaseException | None) -> bool:
    """Return True if the last flush of Spark's daemon to its JVM found the connection closed."""
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
    try:
        path = _application_file(name)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    except NO_APPLICATION:
        pass
    logger.warning(message)


FAILED = -1
"""The count of a series after one of its writes failed."""


@contextmanager
def counted_write(series: str, batch: int) -> Iterator[int | None]:
    """Yield how many writes of a series this micro-batch has committed, and count one more.

    If the body fails, it is `FAILED` from then on. Yield None where nothing can be counted. Writes of one
    series wait for each other.
    """
    try:
        path = _application_file(hashlib.sha256(series.encode()).hexdigest()[:32])
        file = open(path, "a+b")  # noqa: SIM115 - closed below
    except NO_APPLICATION:
        yield None
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last, count = map(int, (file.read() or b"-1 0").split())
        count = count if last == batch else 0
        after = FAILED
        try:
            yield count
            after = FAILED if count == FAILED else count + 1
        finally:
            file.truncate(0)
            file.write(b"%d %d" % (batch, after))


def count_failed_write(series: str, batch: int) -> None:
    """Make what `counted_write` yields `FAILED`."""
    with suppress(_WriteFailedError), counted_write(series, batch):
        raise _WriteFailedError


class _WriteFailedError(Exception):
    """Ends the body of a `counted_write`."""


FORGOTTEN_S = 3600.0
"""So long the planners of a query share what they know."""


@contextmanager
def shared_facts(query: str, about: str) -> Iterator[dict[str, int]]:
    """Yield what the processes that plan a query know about something; what the body adds is known to the
    others.

    They wait for each other. Without a query or an application nothing is shared.
    """
    try:
        if not query:
            raise FileNotFoundError(query)
        path = _application_file("query-" + hashlib.sha256(f"{query} {about}".encode()).hexdigest()[:32])
        _remove_old(path)
        file = open(path, "a+b")  # noqa: SIM115 - closed below
    except NO_APPLICATION:
        yield {}
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known: dict[str, int] = json.loads(file.read() or b"{}")
        before = len(known)
        yield known
        if len(known) > before:
            file.truncate(0)
            file.write(json.dumps(known).encode())


def _remove_old(path: str) -> None:
    """Remove what the planners of queries of long ago shared, when a new query begins."""
    if os.path.exists(path):
        return
    folder, name = os.path.split(path)
    kind = name.rpartition("-")[0]
    for entry in os.scandir(folder):
        if entry.name.startswith(kind) and entry.stat().st_mtime < time.time() - FORGOTTEN_S:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)


NO_APPLICATION = (OSError, TypeError, AssertionError)
"""The errors of a process without a directory of its application."""


def _application_file(name: str) -> str:
    from pyspark import SparkFiles

    return os.path.join(SparkFiles.getRootDirectory(), f".stratalog-{name}")
