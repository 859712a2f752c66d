"""Where errors end: one clear line on stderr, with what to do, and an exit code with one meaning.

A traceback is shown only with ``--debug``. A reader that went away (``| head``) and Ctrl-C end the
program quietly.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import typer

from stratalog import errors
from stratalog.cli.console import is_terminal, warnings
from stratalog.fs.contract import is_refusal


class WrongUsage(typer.BadParameter):
    """A wrong command line. The message is shown as it is, without the parser's "Invalid value"."""

    def format_message(self) -> str:
        return self.message


class ExitCode(enum.IntEnum):
    """Scripts may rely on these numbers: they do not change within a major version."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "done"
    FAILURE = 1, "other failure"
    USAGE = 2, "wrong command line, setting or topic name"
    NOT_FOUND = 3, "no such store, topic, partition or key"
    OFFSET_OUT_OF_RANGE = 4, "an offset outside the log"
    CORRUPTION = 5, "damaged data was found"
    LOCKED = 6, "the store is locked by another process, which did not answer or refused"
    STORAGE = 7, "disk or archive full, read-only or failing"
    RECORD_REFUSED = 8, "a record was rejected"
    UNSUPPORTED_FORMAT = 9, "files of an older or newer format"
    TOPIC_EXISTS = 10, "the topic already exists"
    UNFINISHED = 11, "some of the work could not be done; see stderr"
    CLUSTER = 12, "no broker of the Kafka cluster answered, or it refused; a consumer group is in use"
    INTERRUPTED = 130, "interrupted with Ctrl-C"
    BROKEN_PIPE = 141, "the output pipe was closed"


_KNOWN: tuple[tuple[type[BaseException], ExitCode, str], ...] = (
    (
        errors.RecordTooLargeError,
        ExitCode.RECORD_REFUSED,
        "see `stratalog config TOPIC`; `stratalog topic alter TOPIC --config NAME=VALUE` raises a limit",
    ),
    (errors.InvalidRecordError, ExitCode.RECORD_REFUSED, ""),
    (errors.InvalidTopicError, ExitCode.USAGE, ""),
    (errors.ConfigError, ExitCode.USAGE, "see `stratalog config`"),
    (errors.InvalidArgumentError, ExitCode.USAGE, ""),
    (errors.UnknownTopicError, ExitCode.NOT_FOUND, "see `stratalog topic list`"),
    (
        errors.UnknownPartitionError,
        ExitCode.NOT_FOUND,
        "see `stratalog topic describe TOPIC`",
    ),
    (errors.NotFoundError, ExitCode.NOT_FOUND, ""),
    (errors.TopicExistsError, ExitCode.TOPIC_EXISTS, ""),
    (errors.ConflictError, ExitCode.RECORD_REFUSED, ""),
    (errors.SerializationError, ExitCode.RECORD_REFUSED, ""),
    (errors.OffsetOutOfRangeError, ExitCode.OFFSET_OUT_OF_RANGE, ""),
    (
        errors.UnsupportedFormat,
        ExitCode.UNSUPPORTED_FORMAT,
        "this is not damage: another version wrote the file",
    ),
    (
        errors.CorruptionError,
        ExitCode.CORRUPTION,
        "`stratalog verify` lists every damaged range, `stratalog repair TOPIC` shows how to repair it",
    ),
    (errors.FormatError, ExitCode.CORRUPTION, ""),
    (errors.StoreLockedError, ExitCode.LOCKED, ""),
    (errors.ControlError, ExitCode.LOCKED, "`stratalog log-dirs` shows the process that holds the store"),
    (errors.ClusterError, ExitCode.CLUSTER, ""),
    (errors.GroupInUseError, ExitCode.CLUSTER, ""),
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
    (
        errors.DiskFullError,
        ExitCode.STORAGE,
        "free some disk space; appends then work again without a restart",
    ),
    (
        errors.SyncFailedError,
        ExitCode.STORAGE,
        "records appended since the last sync may be lost: check the disk, then reopen the store",
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
    """Return True if ``--debug`` was given."""
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
        complain(f"unexpected {type(error).__name__}: {error} (please report it, with the output of --debug)")
        raise SystemExit(ExitCode.FAILURE) from None
    finally:
        logger.removeHandler(warnings)


def explain_usage(error: BaseException) -> None:
    """Leave with one line for a wrong command line where stderr is no terminal; else the parser shows it.

    Without arguments it is the help page: the parser shows only pages that it drew itself.
    """
    _place_option(error)
    tell = getattr(error, "format_message", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        if tell is not None and tell():
            print(tell())
        raise SystemExit(ExitCode.USAGE) from None
    if tell is None or is_terminal(sys.stderr):
        return
    context = getattr(error, "ctx", None)
    path = "stratalog" if context is None else context.command_path
    complain(f"{tell().rstrip('.')} — see `{path} -h`")
    raise SystemExit(ExitCode.USAGE) from None


_BEHIND = ("--json", "--read-only", "--store-config", "-S", "--bootstrap-server", "--command-config")
"""Options of every command that a group of commands does not take."""


def _place_option(error: Any) -> None:
    """Make the error say where an option of every command stands if it was given to a group of commands."""
    context: Any = getattr(error, "ctx", None)
    option = getattr(error, "option_name", "")
    if option in _BEHIND and hasattr(getattr(context, "command", None), "list_commands"):
        told = f"{option} stands behind the command: `{context.command_path} COMMAND … {option}`"
        vars(error).update(message=told, possibilities=None)


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
def stopped_by_sigterm() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets: a service manager stops the janitor that way."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def hinting(kind: type[BaseException], hint: str) -> Iterator[None]:
    """Add to errors of a kind a hint that fits the command better than the usual one; the innermost stays."""
    try:
        yield
    except kind as error:
        if not getattr(error, "__notes__", None):
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
        return "stop that process, or use commands that only read"
    if error.control is None:
        return "that process accepts no commands: stop it, or use commands that only read"
    return "that process did not answer: try again, or stop it"


def _is_parsers(error: BaseException) -> bool:
    """Return True for usage errors, ``Exit`` and ``Abort``, which the command-line parser handles itself."""
    return any(base.__module__.partition(".")[0] in ("typer", "click") for base in type(error).__mro__)
