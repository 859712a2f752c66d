"""Where errors end: one clear line on stderr, with what to do, and an exit code with one meaning.

A traceback is shown only with ``--debug``. A reader that went away (``| head``) and Ctrl-C end the
program quietly.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Iterator

from stratalog import errors
from stratalog.fs.contract import is_refusal


class ExitCode(enum.IntEnum):
    """Scripts may rely on these numbers: they do not change within a major version."""

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
    ExitCode.RECORD_REFUSED: "a record the log does not accept",
    ExitCode.UNSUPPORTED_FORMAT: "files of an older or newer format",
    ExitCode.TOPIC_EXISTS: "the topic already exists",
    ExitCode.UNFINISHED: "some of the work could not be done; notes on stderr say what and why",
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
    """Return the code an error ends the program with."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILURE


def epilog() -> str:
    """Return the table as one paragraph for the end of ``--help``."""
    return "Exit codes: " + " · ".join(f"{code.value} {meaning}" for code, meaning in MEANING.items()) + "."


_debug = False


def set_debug(value: bool) -> None:
    """Show tracebacks (``--debug``) or not."""
    global _debug
    _debug = value


def debugging() -> bool:
    """True if ``--debug`` was given."""
    return _debug


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run a command; every error leaves as ``SystemExit`` with its line already printed."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        raise SystemExit(ExitCode.BROKEN_PIPE) from None
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None
    except (errors.StratalogError, OSError) as error:
        if _debug:
            raise
        complain(explain(error))
        raise SystemExit(exit_code(error)) from None
    except Exception as error:
        if _debug or _is_parsers(error):
            raise
        complain(f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)")
        raise SystemExit(ExitCode.FAILURE) from None


def complain(message: str) -> None:
    """Print a message as one line on stderr."""
    line = " ".join(message.split())
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    print(f"stratalog: {line}", file=sys.stderr)


def silence_stdout() -> None:
    """Point stdout, whose reader went away, at nothing so that the interpreter's last flush is quiet."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def explain(error: BaseException) -> str:
    """Return what happened and, if known, what to do."""
    text = (error.message if isinstance(error, errors.StratalogError) else str(error)) or type(error).__name__
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        text = f"{error.filename}: no such file or directory"
    elif isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    hint = _hint(error)
    return f"{text} — {hint}" if hint else text


@contextlib.contextmanager
def hinting(kind: type[BaseException], hint: str) -> Iterator[None]:
    """Add to errors of a kind a hint that fits the command better than the usual one."""
    try:
        yield
    except kind as error:
        error.add_note(hint)
        raise


def _hint(error: BaseException) -> str:
    notes: list[str] = getattr(error, "__notes__", [])
    if notes:
        return notes[-1]
    if is_refusal(error):
        return "commands that only read work here; to write, check the mount, the owner and the mode"
    if isinstance(error, errors.OffsetOutOfRangeError):
        return (
            f"the log holds offsets {error.first} to {error.end - 1}"
            if error.end > error.first
            else "it is empty"
        )
    if isinstance(error, errors.StoreLockedError):
        return _locked(error)
    for kind, hint in _HINTS:
        if isinstance(error, kind):
            return hint
    return ""


def _locked(error: errors.StoreLockedError) -> str:
    if error.pid is None:
        return "stop that process, or only read"
    if error.control is None:
        return "it takes no commands from others: stop it, or only read"
    return "it did not answer: try again, or stop it"


_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.UnknownTopicError, "`stratalog topic list` shows the topics"),
    (errors.UnknownPartitionError, "`stratalog topic describe TOPIC` shows the partitions"),
    (errors.InvalidTopicError, "use up to 249 letters, digits, '.', '_' and '-'"),
    (errors.ConfigError, "`stratalog config` lists the settings"),
    (
        errors.RecordTooLargeError,
        "`stratalog topic alter TOPIC --config max.message.bytes=…` raises the limit",
    ),
    (
        errors.CorruptionError,
        "`stratalog verify` names every damaged range, `stratalog repair TOPIC` shows what can be done",
    ),
    (errors.UnsupportedFormat, "not damage: another version wrote it"),
    (errors.DiskFullError, "make room; appends then work again by themselves"),
    (
        errors.SyncFailedError,
        "records appended since may be lost: check the disk, then open the store again",
    ),
    (
        errors.ArchiveConflictError,
        "only one store may write an archive: stop the other one, or give this one its own archive",
    ),
    (errors.ArchiveError, "nothing is lost: segments not yet in the archive stay local; try again"),
    (errors.ControlError, "`stratalog log-dirs` shows who holds the store"),
)


def _is_parsers(error: BaseException) -> bool:
    """True for usage errors, ``Exit`` and ``Abort``, which the command-line parser handles itself."""
    return any(base.__module__.partition(".")[0] in ("typer", "click") for base in type(error).__mro__)
