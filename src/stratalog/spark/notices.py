"""Things to say once for a whole application, though many short-lived processes work for it.

Spark gives every application a directory of its own, which goes with it: a file there is the memory.
"""

from __future__ import annotations

import logging
import os

from pyspark import SparkFiles

logger = logging.getLogger("stratalog.spark")
_said: set[str] = set()


def say_once(what: str, message: str) -> None:
    """Warn, unless some process of this application did."""
    if what in _said:
        return
    _said.add(what)
    try:
        path = os.path.join(SparkFiles.getRootDirectory(), f".stratalog-{what}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    except (OSError, TypeError, AssertionError):
        pass  # no such directory here: say it
    logger.warning(message)
