"""Where errors end: one clear line on stderr, with what to do, and an exit code with one meaning.

A traceback is shown only with ``--debug``. A reader that went away (``| head``) and Ctrl-C end the
program quietly.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import sys
from collections.abc import Iterator

from stratalog import errors
from stratalog.cli.console import is_terminal, warnings
from stratalog.fs.contract import is_refusal


class ExitCode(enum.IntEnum):
    """Scripts may rely on these numbers: they do not change within a major version."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "done"
    FAILURE = 1, "failed in a way not listed here"
    USAGE = 2, "wrong command line, setting or topic name"
    NOT_FOUND = 3, "no such store, topic, partition or key"
    OFFSET_OUT_OF_RANGE = 4, "an offset outside the log"
    CORRUPTION = 5, "damaged data was found"
    LOCKED = 6, "the store is held by a process that cannot be asked, or that refused"
    STORAGE = 7, "disk full, read-only or failing, or the archive is"
    RECORD_REFUSED = 8, "a record the log does not accept"
    UNSUPPORTED_FORMAT = 9, "files of an older or newer format"
    TOPIC_EXISTS = 10, "the topic already exists"
    UNFINISHED = 11, "some of the work could not be done; notes on stderr say what and why"
    INTERRUPTED = 130, "interrupted with Ctrl-C"
    BROKEN_PIPE = 141, "the reader of the output went away"


_KNOWN: tuple[tuple[type[BaseException], ExitCode, str], ...] = (
    (
        errors.RecordTooLargeError,
        ExitCode.RECORD_REFUSED,
        "`stratalog config TOPIC` shows both, `stratalog topic alter TOPIC --config NAME=VALUE` raises one",
    ),
    (errors.InvalidRecordError, ExitCode.RECORD_REFUSED, ""),
    (errors.InvalidTopicError, ExitCode.USAGE, "use up to 249 letters, digits, '.', '_' and '-'"),
    (errors.ConfigError, ExitCode.USAGE, "`stratalog config` lists the settings"),
    (errors.InvalidArgumentError, ExitCode.USAGE, ""),
    (errors.UnknownTopicError, ExitCode.NOT_FOUND, "`stratalog topic list` shows the topics"),
    (
        errors.UnknownPartitionError,
        ExitCode.NOT_FOUND,
        "`stratalog topic describe TOPIC` shows the partitions",
    ),
    (errors.NotFoundError, ExitCode.NOT_FOUND, ""),
    (errors.TopicExistsError, ExitCode.TOPIC_EXISTS, ""),
    (errors.ConflictError, ExitCode.RECORD_REFUSED, ""),
    (errors.OffsetOutOfRangeError, ExitCode.OFFSET_OUT_OF_RANGE, ""),
    (errors.UnsupportedFormat, ExitCode.UNSUPPORTED_FORMAT, "not damage: another version wrote it"),
    (
        errors.CorruptionError,
        ExitCode.CORRUPTION,
        "`stratalog verify` names every damaged range, `stratalog repair TOPIC` shows what can be done",
    ),
    (errors.FormatError, ExitCode.CORRUPTION, ""),
    (errors.StoreLockedError, ExitCode.LOCKED, ""),
    (errors.ControlError, ExitCode.LOCKED, "`stratalog log-dirs` shows who holds the store"),
    (errors.ReadOnlyError, ExitCode.STORAGE, ""),
    (
        errors.ArchiveConflictError,
        ExitCode.LOCKED,
        "only one store may write an archive: stop the other one, or give this one its own archive",
    ),
    (
        errors.ArchiveError,
        ExitCode.STORAGE,
        "nothing is lost: segments not yet in the archive stay local; try again",
    ),
    (errors.DiskFullError, ExitCode.STORAGE, "make room; appends then work again by themselves"),
    (
        errors.SyncFailedError,
        ExitCode.STORAGE,
        "records appended since may be lost: check the disk, then open the store again",
    ),
    (errors.StorageError, ExitCode.STORAGE, ""),
    (FileNotFoundError, ExitCode.NOT_FOUND, ""),
    (NotADirectoryError, ExitCode.NOT_FOUND, ""),
    (OSError, ExitCode.STORAGE, ""),
)
"""Errors, their exit code and what to do. The first match wins: subclasses stand before their base."""


def _known(error: BaseException) -> tuple[ExitCode, str]:
    return next(
        ((code, hint) for kind, code, hint in _KNOWN if isinstance(error, kind)), (ExitCode.FAILURE, "")
    )


def exit_code(error: BaseException) -> ExitCode:
    """Return the code an error ends the program with."""
    return _known(error)[0]


def epilog() -> str:
    """Return the codes as one paragraph for the end of ``--help``."""
    return "Exit codes: " + " · ".join(f"{code.value} {code.meaning}" for code in ExitCode) + "."


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
    logger = logging.getLogger("stratalog")
    warnings.said.clear()
    logger.addHandler(warnings)
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
        if _is_parsers(error):
            explain_usage(error)
        if _debug or _is_parsers(error):
            raise
        complain(f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)")
        raise SystemExit(ExitCode.FAILURE) from None
    finally:
        logger.removeHandler(warnings)


def explain_usage(error: BaseException) -> None:
    """Leave with one line for a wrong command line where stderr is no terminal; else the parser shows it."""
    tell = getattr(error, "format_message", None)
    if tell is None or type(error).__name__ == "NoArgsIsHelpError" or is_terminal(sys.stderr):
        return
    context = getattr(error, "ctx", None)
    path = "stratalog" if context is None else context.command_path
    complain(f"{tell()} — `{path} -h` shows how it is used")
    raise SystemExit(ExitCode.USAGE) from None


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
        unreadable = _unreadable(error)
        if unreadable:
            return f"this user may not read {unreadable}: check the owner and the mode"
        return "commands that only read work here; to write, check the mount, the owner and the mode"
    if isinstance(error, errors.StoreLockedError):
        return _locked(error)
    return _known(error)[1]


def _unreadable(error: BaseException | None) -> str:
    """Return the file or directory that a refusal is about if this user may not even read it."""
    while error is not None and not (isinstance(error, OSError) and error.filename):
        error = error.__cause__
    path = "" if error is None else os.path.abspath(os.fsdecode(error.filename))
    while path.strip("/") and not os.path.lexists(path):
        path = os.path.dirname(path)
    needed = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
    return "" if not path or os.access(path, needed) else path


def _locked(error: errors.StoreLockedError) -> str:
    if error.pid is None:
        return "stop that process, or only read"
    if error.control is None:
        return "it takes no commands from others: stop it, or only read"
    return "it did not answer: try again, or stop it"


def _is_parsers(error: BaseException) -> bool:
    """True for usage errors, ``Exit`` and ``Abort``, which the command-line parser handles itself."""
    return any(base.__module__.partition(".")[0] in ("typer", "click") for base in type(error).__mro__)
