"""Spark's own messages, out of the way of ours.

The JVM and the Python workers below it write to the error output they were started with. While a session
starts, that is a file; whatever they say later goes there too. Warnings of this package in it are shown at
the end, and the file is named when Spark fails, and removed when it does not. ``--debug`` leaves everything
on the screen.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from stratalog.cli import guard
from stratalog.cli.console import note

_OURS = ("data loss: ", "stratalog: ", "stratalog reads ")
_MOST_LINES = 100


@contextlib.contextmanager
def errors_to(handle: int) -> Iterator[None]:
    """Processes started meanwhile have this file, which is closed here, as their error output."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(handle, 2)
    os.close(handle)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class SparkLog:
    """The file that takes Spark's messages; None on a debugging run, which has none."""

    def __init__(self) -> None:
        self._path: Path | None = None

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Processes started meanwhile write into the file, for as long as they live."""
        if guard.debugging():
            yield
            return
        handle, name = tempfile.mkstemp(prefix="stratalog-spark-", suffix=".log")
        self._path = Path(name)
        with errors_to(handle):
            yield

    def close(self, *, failed: bool) -> None:
        """Tell what of it is worth telling; after a failure also where the rest is."""
        if self._path is None:
            return
        with self._path.open(errors="replace") as lines:
            ours = dict.fromkeys(line.rstrip() for line in lines if line.startswith(_OURS))
        for line in list(ours)[:_MOST_LINES]:
            note(line)
        if failed:
            note(f"Spark's own messages are in {self._path}; --debug shows them as they come")
        else:
            self._path.unlink(missing_ok=True)
