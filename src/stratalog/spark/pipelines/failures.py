"""What went wrong in a task, in the words of this package.

An error raised on an executor, or inside the source, arrives as one of Spark's with a traceback as its text.
The type and the words of ours are in there; the rest is for ``--debug``.
"""

from __future__ import annotations

import re

from stratalog import errors
from stratalog.errors import OffsetOutOfRangeError, StratalogError

_OURS = re.compile(r"stratalog\.errors\.(\w+): ([^\n]*(?:\noption [^\n]*)?)")
_OTHER = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Failure)): ([^\n]*)", re.MULTILINE)
_LONGEST = 2000


def ours(error: BaseException) -> StratalogError | None:
    """The error of this package behind one of Spark's; one line of a foreign one; None when it is no failure
    of Spark's at all."""
    if isinstance(error, StratalogError):
        return error
    if not is_sparks(error):
        return None
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, words = found[-1]
        return _make(getattr(errors, name, StratalogError), words.strip())
    raised = _OTHER.findall(text)
    line = f"{raised[-1][0]}: {raised[-1][1]}" if raised else text.strip().partition("\n")[0]
    return StratalogError(f"Spark failed: {line[:_LONGEST]}")


def is_sparks(error: BaseException) -> bool:
    """Whether Spark, or the bridge to it, raised it."""
    return type(error).__module__.startswith(("pyspark.", "py4j."))


def is_unknown(error: BaseException) -> bool:
    """Whether Spark raised it and nothing of ours is behind it: then its own messages may say why."""
    return is_sparks(error) and not _OURS.search(str(error))


def _make(kind: type[StratalogError], words: str) -> StratalogError:
    """An error whose words are known but not the parts they were made of."""
    if issubclass(kind, OffsetOutOfRangeError):
        return StratalogError(words)
    made = kind(words)
    made.args = (words,)
    return made
