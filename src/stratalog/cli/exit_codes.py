"""What the exit code of ``stratalog`` means, and which error ends in which.

Scripts may rely on these numbers: they do not change within a major version.
"""

from __future__ import annotations

import enum

from stratalog import errors


class ExitCode(enum.IntEnum):
    """One meaning each; the docstring table of the help text is made from ``MEANING``."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    OFFSET_OUT_OF_RANGE = 4
    CORRUPTION = 5
    LOCKED = 6
    STORAGE = 7
    RECORD_REFUSED = 8
    UNSUPPORTED_FORMAT = 9
    TOPIC_EXISTS = 10
    UNFINISHED = 11
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "failed in a way not listed here",
    ExitCode.USAGE: "wrong command line, setting or topic name",
    ExitCode.NOT_FOUND: "no such store, topic, partition or key",
    ExitCode.OFFSET_OUT_OF_RANGE: "an offset outside the log",
    ExitCode.CORRUPTION: "damaged data was found",
    ExitCode.LOCKED: "the store is held by a process that cannot be asked, or that refused",
    ExitCode.STORAGE: "disk full, read-only or failing, or the archive is",
    ExitCode.RECORD_REFUSED: "a record the log cannot take",
    ExitCode.UNSUPPORTED_FORMAT: "files of an older or newer format",
    ExitCode.TOPIC_EXISTS: "the topic is already there",
    ExitCode.UNFINISHED: "some of the work could not be done; the notes say what and why",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
    ExitCode.BROKEN_PIPE: "the reader of the output went away",
}

# The first row that matches wins: subclasses stand before their base.
_BY_ERROR: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.InvalidRecordError, ExitCode.RECORD_REFUSED),
    (errors.InvalidArgumentError, ExitCode.USAGE),
    (errors.NotFoundError, ExitCode.NOT_FOUND),
    (errors.TopicExistsError, ExitCode.TOPIC_EXISTS),
    (errors.OffsetOutOfRangeError, ExitCode.OFFSET_OUT_OF_RANGE),
    (errors.UnsupportedFormat, ExitCode.UNSUPPORTED_FORMAT),
    (errors.FormatError, ExitCode.CORRUPTION),
    (errors.StoreLockedError, ExitCode.LOCKED),
    (errors.ControlError, ExitCode.LOCKED),
    (errors.ReadOnlyError, ExitCode.STORAGE),
    (errors.ArchiveConflictError, ExitCode.LOCKED),
    (errors.ArchiveError, ExitCode.STORAGE),
    (errors.StorageError, ExitCode.STORAGE),
    (FileNotFoundError, ExitCode.NOT_FOUND),
    (NotADirectoryError, ExitCode.NOT_FOUND),
    (OSError, ExitCode.STORAGE),
)


def exit_code(error: BaseException) -> ExitCode:
    """The code an error ends the program with."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILURE


def epilog() -> str:
    """The table as one paragraph for the end of ``--help``."""
    return "Exit codes: " + " · ".join(f"{code.value} {meaning}" for code, meaning in MEANING.items()) + "."
